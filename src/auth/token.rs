//! A token as text, taken apart: the compact form of a signed JWT (RFC 7515 section 7.1) and nothing else.
//!
//! Nothing here is believed yet. What two readers could read differently is refused before anybody reads it: other
//! alphabets and padding of base64, bits that are left over, members that are there twice.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::Algorithm;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::refused::Refused;
use crate::json;

/// Longest token, in bytes (contract, section 3).
pub(super) const TOKEN_BYTES_MAX: usize = 8 * 1024;
/// Longest name of a key, in bytes.
pub(super) const KID_BYTES_MAX: usize = 256;

/// A token that is well-formed, and nothing more.
#[derive(Debug)]
pub(super) struct Token<'a> {
    /// What the signature is of.
    pub(super) signed: &'a str,
    /// base64url
    pub(super) signature: &'a str,
    /// As the header says.
    pub(super) algorithm: Algorithm,
    /// Which key it names.
    pub(super) kid: Option<String>,
    /// What it says it is.
    pub(super) kind: Option<String>,
    /// Not yet believed.
    pub(super) claims: Map<String, Value>,
}

/// The members of a header that count. All others are not looked at: `jku`, `jwk`, `x5u`, `x5c` above all, which would
/// let a token bring its own key (RFC 8725 section 3.10).
#[derive(Debug, Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    typ: Option<String>,
}

/// What makes a token something else than a signed JWT as we read it, whatever its value is: extensions that must be
/// understood (RFC 7515 section 4.1.11), an unencoded payload (RFC 7797), nesting (RFC 7519 section 5.2), encryption
/// and compression (RFC 7516 section 4.1).
const REFUSED_MEMBERS: [&str; 5] = ["crit", "b64", "cty", "enc", "zip"];

impl<'a> Token<'a> {
    /// Takes a token apart that is not longer than [`TOKEN_BYTES_MAX`].
    pub(super) fn read(text: &'a str) -> Result<Self, Refused> {
        let (signed, signature) = text.rsplit_once('.').ok_or(Refused::Malformed)?;
        let (header, claims) = signed.split_once('.').ok_or(Refused::Malformed)?;
        // Every part has something in it; an encrypted one has five.
        if header.is_empty() || signature.is_empty() || claims.contains('.') {
            return Err(Refused::Malformed);
        }
        // The signature's base64 is checked where it is read; a bad one here is not worth a key's time.
        URL_SAFE_NO_PAD
            .decode(signature)
            .map_err(|_| Refused::Malformed)?;

        let header = object(header)?;
        if REFUSED_MEMBERS
            .iter()
            .any(|name| header.contains_key(*name))
        {
            return Err(Refused::Header);
        }
        let null = |name: &str| header.get(name).is_some_and(Value::is_null);
        if null("kid") || null("typ") {
            return Err(Refused::Malformed);
        }
        let header: Header =
            serde_json::from_value(Value::Object(header)).map_err(|_| Refused::Malformed)?;
        if header
            .kid
            .as_ref()
            .is_some_and(|kid| kid.len() > KID_BYTES_MAX)
        {
            return Err(Refused::Malformed);
        }
        Ok(Token {
            signed,
            signature,
            // "none" is no algorithm here; names are compared byte by byte (RFC 7515 section 4.1.1).
            algorithm: header.alg.parse().map_err(|_| Refused::Algorithm)?,
            kid: header.kid,
            kind: header.typ,
            claims: object(claims)?,
        })
    }
}

/// A JSON object in base64url, without a member twice at any depth.
fn object(part: &str) -> Result<Map<String, Value>, Refused> {
    // The engine takes neither padding nor bits that are left over.
    let bytes = URL_SAFE_NO_PAD
        .decode(part)
        .map_err(|_| Refused::Malformed)?;
    let text = std::str::from_utf8(&bytes).map_err(|_| Refused::Malformed)?;
    json::walk(text).map_err(|_| Refused::Malformed)?;
    serde_json::from_str(text).map_err(|_| Refused::Malformed)
}

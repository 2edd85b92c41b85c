//! Public keys of an issuer: from a JWKS (RFC 7517), from PEM, or a shared secret; checked before the first token is.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, DecodingKeyKind};
use ring::agreement::{self, EphemeralPrivateKey, UnparsedPublicKey};
use ring::rand::SystemRandom;
use rustls::pki_types::SubjectPublicKeyInfoDer;
use rustls::pki_types::pem::PemObject;
use serde::Deserialize;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use super::spki;
use super::token::{KID_BYTES_MAX, Token};
use crate::json;

/// Most keys of one issuer.
const KEYS_MAX: usize = 100;
/// Of what is wrong with a document so many characters are said.
const SYNTAX_CHARS_MAX: usize = 200;
/// Most keys that one token is tried with, where it names none or several share a name.
const CANDIDATES_MAX: usize = 4;
/// Shortest RSA key (RFC 7518 section 3.3).
const RSA_BITS_MIN: usize = 2048;
/// Longest: the time of a check grows with the square.
const RSA_BITS_MAX: usize = 8192;
/// Smallest public exponent (FIPS 186-5 section 5.4: greater than 2^16).
const RSA_EXPONENT_MIN: u64 = 65_537;
/// Shortest shared secret: as long as the hash (RFC 7518 section 3.2).
const SECRET_BYTES_MIN: usize = 32;

/// What kind of key it is, which alone decides what it may check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    Rsa,
    P256,
    P384,
    Ed25519,
    Secret,
}

impl Shape {
    /// Whether signatures of this algorithm are made with such keys (RFC 7518 section 3.1, RFC 8037 section 3.1).
    fn fits(self, algorithm: Algorithm) -> bool {
        match self {
            Shape::Rsa => algorithm.family() == AlgorithmFamily::Rsa,
            Shape::P256 => algorithm == Algorithm::ES256,
            Shape::P384 => algorithm == Algorithm::ES384,
            Shape::Ed25519 => algorithm == Algorithm::EdDSA,
            Shape::Secret => algorithm == Algorithm::HS256,
        }
    }
}

/// A key that may check signatures.
#[derive(Clone)]
pub(super) struct Key {
    kid: Option<String>,
    /// The one algorithm that its owner means it for.
    algorithm: Option<Algorithm>,
    shape: Shape,
    decoding: DecodingKey,
}

impl fmt::Debug for Key {
    /// Without the key: it may be a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({:?}, {:?})", self.kid, self.shape)
    }
}

impl Key {
    pub(super) fn decoding(&self) -> &DecodingKey {
        &self.decoding
    }

    /// Of the key alone, whatever it is called.
    fn thumbprint(&self) -> [u8; 32] {
        match self.decoding.kind() {
            DecodingKeyKind::SecretOrDer(bytes) => Sha256::digest(bytes),
            DecodingKeyKind::RsaModulusExponent { n, e } => {
                Sha256::new_with_prefix(n).chain_update(e).finalize()
            }
        }
        .into()
    }

    fn is(&self, kid: &str) -> bool {
        self.kid.as_deref() == Some(kid)
    }

    fn fits(&self, algorithm: Algorithm) -> bool {
        self.shape.fits(algorithm) && self.algorithm.is_none_or(|own| own == algorithm)
    }
}

/// By what a token was found to be good.
#[derive(Debug)]
pub(super) struct Signed {
    /// As the token names it.
    kid: Option<String>,
    algorithm: Algorithm,
    thumbprint: [u8; 32],
}

impl Signed {
    pub(super) fn new(token: &Token<'_>, key: &Key) -> Self {
        Signed {
            kid: token.kid.clone(),
            algorithm: token.algorithm,
            thumbprint: key.thumbprint(),
        }
    }

    pub(super) fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

/// The keys of one issuer.
#[derive(Debug, Clone, Default)]
pub(super) struct KeySet {
    keys: Vec<Key>,
    /// Of what they were read from: two sets with the same one are the same.
    digest: [u8; 32],
    /// What of them is not used, to be told with the name of their issuer.
    unused: Vec<BadKeys>,
}

/// Why a document with keys, or one key of it, is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadKeys {
    #[error("neither a JWKS nor a PEM public key")]
    Neither,
    #[error("not a JWKS: {0}")]
    Syntax(String),
    #[error("more than {KEYS_MAX} keys")]
    TooMany,
    #[error("no key for {0}")]
    None(String),
    #[error("key {which}: {why}")]
    Key { which: String, why: &'static str },
    #[error(
        "{found} keys for {algorithm:?} {named}, of which only the first {CANDIDATES_MAX} would be tried; give each its own \
         kid (in a JWKS; PEM has none), or take out those that sign no more"
    )]
    Crowd {
        found: usize,
        algorithm: Algorithm,
        named: String,
    },
    #[error("holds a private key; give the public one alone")]
    Private,
    #[error("holds a certificate; give its public key: openssl x509 -in FILE -pubkey -noout")]
    Certificate,
    #[error("a shared secret needs at least {SECRET_BYTES_MIN} bytes, this one has {0}")]
    ShortSecret(usize),
    #[error("holds a public key or a JWKS, which everybody may know: no shared secret")]
    PublicSecret,
}

/// What to do with a key of a JWKS that cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Strictness {
    /// The operator's own file: a broken key is a mistake to be told.
    File,
    /// Somebody else's document: the good keys count, or else one new key of an unknown kind would stop everything.
    Remote,
}

impl KeySet {
    /// The keys to try for a token. A key without a name is meant by any; none that names another is.
    pub(super) fn candidates<'a>(
        &'a self,
        kid: Option<&'a str>,
        algorithm: Algorithm,
    ) -> impl Iterator<Item = &'a Key> {
        let any_named = self.names(kid, algorithm);
        self.keys
            .iter()
            .filter(move |key| key.fits(algorithm))
            .filter(move |key| match kid {
                Some(kid) if any_named => key.is(kid),
                Some(_) => key.kid.is_none(),
                None => true,
            })
            .take(CANDIDATES_MAX)
    }

    /// Whether a key has the name that a token gives.
    pub(super) fn names(&self, kid: Option<&str>, algorithm: Algorithm) -> bool {
        let is = |kid| {
            let mut keys = self.keys.iter();
            keys.any(|key| key.is(kid) && key.fits(algorithm))
        };
        kid.is_some_and(is)
    }

    /// Whether the key of a token that was good would be tried for it now.
    pub(super) fn would_try(&self, signed: &Signed) -> bool {
        self.candidates(signed.kid.as_deref(), signed.algorithm)
            .any(|key| key.thumbprint() == signed.thumbprint)
    }

    /// Takes what is to be told of those that are not used.
    pub(super) fn take_unused(&mut self) -> Vec<BadKeys> {
        std::mem::take(&mut self.unused)
    }

    /// How many can be used.
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether the other one was read from the same document.
    pub(super) fn same_as(&self, other: &KeySet) -> bool {
        self.digest == other.digest
    }

    /// A JWKS or PEM public keys, as a file has them.
    pub(super) fn from_file(text: &str, algorithms: &[Algorithm]) -> Result<Self, BadKeys> {
        let start = text.trim_start();
        if start.starts_with('{') {
            return KeySet::from_jwks(text, algorithms, Strictness::File);
        }
        if !start.contains("-----BEGIN ") {
            return Err(BadKeys::Neither);
        }
        if start.contains("PRIVATE KEY-----") {
            return Err(BadKeys::Private);
        }
        if start.contains("BEGIN CERTIFICATE-----") {
            return Err(BadKeys::Certificate);
        }
        let mut keys = Vec::new();
        for der in SubjectPublicKeyInfoDer::pem_slice_iter(text.as_bytes()) {
            let which = || (keys.len() + 1).to_string();
            let wrong = |why| BadKeys::Key {
                which: which(),
                why,
            };
            let der = der.map_err(|_| wrong("not PEM of type PUBLIC KEY"))?;
            if keys.len() == KEYS_MAX {
                return Err(BadKeys::TooMany);
            }
            let (shape, decoding) = match spki::read(&der).map_err(wrong)? {
                spki::Public::Rsa { n, e } => (Shape::Rsa, rsa(n, e).map_err(wrong)?),
                spki::Public::Point(shape, point) => {
                    (shape, point_key(shape, point).map_err(wrong)?)
                }
            };
            keys.push(Key {
                kid: None,
                algorithm: None,
                shape,
                decoding,
            });
        }
        KeySet::of(keys, Vec::new(), text, algorithms, Strictness::File)
    }

    /// A JWKS. `Strictness::Remote` leaves out what cannot be used, which [`KeySet::take_unused`] tells.
    pub(super) fn from_jwks(
        text: &str,
        algorithms: &[Algorithm],
        strictness: Strictness,
    ) -> Result<Self, BadKeys> {
        #[derive(Deserialize)]
        struct Jwks<'a> {
            #[serde(borrow)]
            keys: Vec<&'a RawValue>,
        }
        // It may quote all of the document, which is somebody else's.
        let syntax = |why: String| BadKeys::Syntax(json::cut(&why, SYNTAX_CHARS_MAX).into_owned());
        json::walk(text).map_err(|refused| syntax(refused.why()))?;
        let jwks: Jwks<'_> =
            serde_json::from_str(text).map_err(|error| syntax(error.to_string()))?;
        if jwks.keys.len() > KEYS_MAX {
            return Err(BadKeys::TooMany);
        }
        let (mut keys, mut unused) = (Vec::new(), Vec::new());
        for (at, jwk) in jwks.keys.iter().enumerate() {
            match read_jwk(jwk) {
                Ok(key) => keys.push(key),
                // Others' use of a shared document: encryption keys, curves of the future.
                Err((_, Unfit::Foreign)) => {}
                Err((kid, Unfit::Broken(why))) => {
                    let which = kid.map_or_else(
                        || format!("{} of the list", at + 1),
                        |kid| format!("{:?}", json::short(&kid)),
                    );
                    let bad = BadKeys::Key { which, why };
                    if strictness == Strictness::File {
                        return Err(bad);
                    }
                    unused.push(bad);
                }
            }
        }
        KeySet::of(keys, unused, text, algorithms, strictness)
    }

    /// A shared secret: the file as it is, without the line end that editors put there.
    pub(super) fn from_secret(bytes: &[u8]) -> Result<Self, BadKeys> {
        let secret = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let secret = secret.strip_suffix(b"\r").unwrap_or(secret);
        // Whoever checks HS256 with a public key lets everybody sign (RFC 8725 section 2.1).
        let text = String::from_utf8_lossy(secret);
        if text.contains("-----BEGIN ") || text.trim_start().starts_with('{') {
            return Err(BadKeys::PublicSecret);
        }
        if secret.len() < SECRET_BYTES_MIN {
            return Err(BadKeys::ShortSecret(secret.len()));
        }
        Ok(KeySet {
            keys: vec![Key {
                kid: None,
                algorithm: Some(Algorithm::HS256),
                shape: Shape::Secret,
                decoding: DecodingKey::from_secret(secret),
            }],
            digest: Sha256::digest(secret).into(),
            unused: Vec::new(),
        })
    }

    fn of(
        mut keys: Vec<Key>,
        mut unused: Vec<BadKeys>,
        text: &str,
        algorithms: &[Algorithm],
        strictness: Strictness,
    ) -> Result<Self, BadKeys> {
        // Others would be counted as good.
        keys.retain(|key| algorithms.iter().any(|algorithm| key.fits(*algorithm)));
        if keys.is_empty() {
            let wanted: Vec<String> = algorithms.iter().map(|a| format!("{a:?}")).collect();
            let wanted = wanted.join(", ");
            return Err(BadKeys::None(match unused.first() {
                None => wanted,
                Some(first) => format!("{wanted} ({} cannot be used: {first})", unused.len()),
            }));
        }
        // Counted as good and never tried: nobody would see why the tokens of such a key are refused.
        if let Some(crowd) = crowd(&keys, algorithms) {
            if strictness == Strictness::File {
                return Err(crowd);
            }
            unused.push(crowd);
        }
        Ok(KeySet {
            keys,
            digest: Sha256::digest(text.as_bytes()).into(),
            unused,
        })
    }
}

/// Keys that a token cannot tell apart, more of them than are tried.
fn crowd(keys: &[Key], algorithms: &[Algorithm]) -> Option<BadKeys> {
    algorithms.iter().find_map(|algorithm| {
        let fitting = || keys.iter().filter(|key| key.fits(*algorithm));
        fitting().find_map(|one| {
            let found = fitting().filter(|key| key.kid == one.kid).count();
            (found > CANDIDATES_MAX).then(|| BadKeys::Crowd {
                found,
                algorithm: *algorithm,
                named: one.kid.as_ref().map_or_else(
                    || "without a kid".to_owned(),
                    |kid| format!("with the kid {:?}", json::short(kid)),
                ),
            })
        })
    })
}

// === one key of a JWKS ===

/// RFC 7517 section 4, RFC 7518 section 6, RFC 8037 section 2. What can be a private part is only looked for.
#[derive(Debug, Deserialize)]
struct Jwk {
    kty: String,
    kid: Option<String>,
    #[serde(rename = "use")]
    usage: Option<String>,
    key_ops: Option<Vec<String>>,
    alg: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
    d: Option<serde::de::IgnoredAny>,
    k: Option<serde::de::IgnoredAny>,
    p: Option<serde::de::IgnoredAny>,
}

enum Unfit {
    /// A good key for something else.
    Foreign,
    /// A bad key.
    Broken(&'static str),
}

fn read_jwk(json: &RawValue) -> Result<Key, (Option<String>, Unfit)> {
    let broken = |why| Unfit::Broken(why);
    let jwk: Jwk = serde_json::from_str(json.get()).map_err(|_| {
        (
            None,
            broken("not a JWK: kty is missing or a member has a wrong type"),
        )
    })?;
    let kid = jwk.kid.clone();
    match fit(jwk) {
        Ok(key) => Ok(key),
        Err(why) => Err((kid, why)),
    }
}

fn fit(jwk: Jwk) -> Result<Key, Unfit> {
    let broken = |why| Unfit::Broken(why);
    if jwk
        .kid
        .as_ref()
        .is_some_and(|kid| kid.len() > KID_BYTES_MAX)
    {
        return Err(broken("its kid is longer than 256 bytes"));
    }
    if jwk.kty == "oct" || jwk.k.is_some() {
        return Err(broken(
            "a shared secret does not belong into a JWKS; use secret_file",
        ));
    }
    if jwk.d.is_some() || jwk.p.is_some() {
        return Err(broken("a private key; whoever can read it can make tokens"));
    }
    if jwk.usage.as_ref().is_some_and(|usage| usage != "sig") {
        return Err(Unfit::Foreign);
    }
    if jwk
        .key_ops
        .as_ref()
        .is_some_and(|ops| !ops.iter().any(|op| op == "verify"))
    {
        return Err(Unfit::Foreign);
    }
    let algorithm = jwk
        .alg
        .as_deref()
        .map(|alg| alg.parse::<Algorithm>().map_err(|_| Unfit::Foreign))
        .transpose()?;
    let bytes = |member: Option<&String>| {
        member
            .and_then(|text| URL_SAFE_NO_PAD.decode(text).ok())
            .ok_or(broken("n, e, x or y is missing or no base64url"))
    };
    let (shape, decoding) = match (jwk.kty.as_str(), jwk.crv.as_deref()) {
        ("RSA", _) => {
            let (n, e) = (bytes(jwk.n.as_ref())?, bytes(jwk.e.as_ref())?);
            (Shape::Rsa, rsa(&n, &e).map_err(broken)?)
        }
        ("EC", Some(curve @ ("P-256" | "P-384"))) => {
            let (shape, width) = if curve == "P-256" {
                (Shape::P256, 32)
            } else {
                (Shape::P384, 48)
            };
            let (x, y) = (bytes(jwk.x.as_ref())?, bytes(jwk.y.as_ref())?);
            // RFC 7518 section 6.2.1.2: as long as the field, leading zeros included.
            if x.len() != width || y.len() != width {
                return Err(broken("x and y must be as long as the curve's field"));
            }
            let point = [&[4], x.as_slice(), &y].concat();
            (shape, point_key(shape, &point).map_err(broken)?)
        }
        ("OKP", Some("Ed25519")) => {
            let x = bytes(jwk.x.as_ref())?;
            (
                Shape::Ed25519,
                point_key(Shape::Ed25519, &x).map_err(broken)?,
            )
        }
        _ => return Err(Unfit::Foreign),
    };
    if algorithm.is_some_and(|algorithm| !shape.fits(algorithm)) {
        return Err(broken("its alg is not one for its kty and crv"));
    }
    Ok(Key {
        kid: jwk.kid,
        algorithm,
        shape,
        decoding,
    })
}

/// An RSA key, if it is strong enough.
fn rsa(n: &[u8], e: &[u8]) -> Result<DecodingKey, &'static str> {
    // Some issuers write the sign byte of ASN.1 (RFC 7518 section 6.3.1.1 warns of it).
    let trim = |bytes: &[u8]| -> Vec<u8> {
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        bytes[zeros..].to_vec()
    };
    let (n, e) = (trim(n), trim(e));
    let top = n.first().map_or(8, |byte| byte.leading_zeros() as usize);
    let bits = (n.len() * 8).saturating_sub(top);
    if bits < RSA_BITS_MIN {
        return Err("RSA keys of less than 2048 bits are not taken (RFC 7518 section 3.3)");
    }
    if bits > RSA_BITS_MAX {
        return Err("RSA keys of more than 8192 bits are not taken");
    }
    if e.len() > 4 {
        return Err("its exponent is longer than 32 bits");
    }
    let exponent = e.iter().fold(0, |sum, byte| (sum << 8) | u64::from(*byte));
    if exponent < RSA_EXPONENT_MIN || exponent.is_multiple_of(2) {
        return Err("its exponent must be odd and at least 65537 (FIPS 186-5)");
    }
    if n.last().is_none_or(|byte| byte.is_multiple_of(2)) {
        return Err("its modulus is even: not the product of two primes");
    }
    Ok(DecodingKey::from_rsa_raw_components(&n, &e))
}

/// A point of one of our curves, if it is one.
fn point_key(shape: Shape, point: &[u8]) -> Result<DecodingKey, &'static str> {
    let curve = match shape {
        Shape::P256 => &agreement::ECDH_P256,
        Shape::P384 => &agreement::ECDH_P384,
        _ => {
            let point: &[u8; 32] = point.try_into().map_err(|_| "x must be 32 bytes")?;
            if is_weak_edwards_point(point) {
                return Err("a point of small order, for which anybody can sign");
            }
            return Ok(DecodingKey::from_ed_der(point));
        }
    };
    // ring checks that a point is on its curve where it uses it; a key agreement whose result nobody keeps is the one
    // use that needs no signature (SEC 1 section 3.2.2.1; CVE-2022-21449 took the point 0, 0).
    let own = EphemeralPrivateKey::generate(curve, &SystemRandom::new())
        .map_err(|_| "the system has no random numbers")?;
    agreement::agree_ephemeral(own, &UnparsedPublicKey::new(curve, point), |_| ())
        .map_err(|_| "not a point of its curve")?;
    Ok(DecodingKey::from_ec_der(point))
}

/// The encodings of points whose order divides the cofactor, sign bit aside, and y beyond the field (RFC 8032 section
/// 5.1.3). With such a public key a signature can hold for any message.
fn is_weak_edwards_point(point: &[u8; 32]) -> bool {
    let mut y = *point;
    y[31] &= 0x7f;
    let small = |last: u8, fill: u8, first: u8| {
        let mut bytes = [fill; 32];
        (bytes[0], bytes[31]) = (first, last);
        bytes
    };
    // y >= 2^255 - 19: not canonical, which covers 0 and 1 written as p and p + 1.
    let beyond_field = y[31] == 0x7f && y[1..31].iter().all(|byte| *byte == 0xff) && y[0] >= 0xed;
    beyond_field
        || y == small(0, 0, 0)
        || y == small(0, 0, 1)
        // -1
        || y == small(0x7f, 0xff, 0xec)
        || ORDER_8.contains(&y)
}

/// The two y coordinates of the points of order 8.
const ORDER_8: [[u8; 32]; 2] = [
    [
        0x26, 0xe8, 0x95, 0x8f, 0xc2, 0xb2, 0x27, 0xb0, 0x45, 0xc3, 0xf4, 0x89, 0xf2, 0xef, 0x98,
        0xf0, 0xd5, 0xdf, 0xac, 0x05, 0xd3, 0xc6, 0x33, 0x39, 0xb1, 0x38, 0x02, 0x88, 0x6d, 0x53,
        0xfc, 0x05,
    ],
    [
        0xc7, 0x17, 0x6a, 0x70, 0x3d, 0x4d, 0xd8, 0x4f, 0xba, 0x3c, 0x0b, 0x76, 0x0d, 0x10, 0x67,
        0x0f, 0x2a, 0x20, 0x53, 0xfa, 0x2c, 0x39, 0xcc, 0xc6, 0x4e, 0xc7, 0xfd, 0x77, 0x92, 0xac,
        0x03, 0x7a,
    ],
];

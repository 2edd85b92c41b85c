//! Keys and tokens for development: what `skillgate token` makes. Nothing here takes part in judging a request.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, EncodingKey};
use ring::rand::SystemRandom;
use ring::rsa::PublicKeyComponents;
use ring::signature::{self, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RsaKeyPair};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::crypto;

/// Characters of a line of PEM (RFC 7468 section 2).
const PEM_LINE_CHARS: usize = 64;

/// A private key that signs tokens for development.
pub struct DevelopmentKey {
    algorithm: Algorithm,
    /// PKCS #8
    private: EncodingKey,
    public: Map<String, Value>,
}

impl fmt::Debug for DevelopmentKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DevelopmentKey({:?})", self.algorithm)
    }
}

/// Why there is no key or no token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MintError {
    /// None that keys are made for.
    #[error("keys can be made for ES256, ES384 and EdDSA")]
    Algorithm,
    /// Not a key that we can sign with.
    #[error(
        "not a PEM private key (PKCS #8) of type P-256, P-384, Ed25519 or RSA with at least 2048 bits"
    )]
    Key,
    /// The system has no random numbers, or the key cannot sign.
    #[error("the cryptography failed")]
    Crypto,
}

impl DevelopmentKey {
    /// A new one for `ES256`, `ES384` or `EdDSA`.
    ///
    /// # Errors
    /// [`MintError::Algorithm`] for another name.
    pub fn generate(algorithm: &str) -> Result<Self, MintError> {
        let random = SystemRandom::new();
        let ecdsa = |scheme| EcdsaKeyPair::generate_pkcs8(scheme, &random);
        let document = match algorithm {
            "ES256" => ecdsa(&signature::ECDSA_P256_SHA256_FIXED_SIGNING),
            "ES384" => ecdsa(&signature::ECDSA_P384_SHA384_FIXED_SIGNING),
            "EdDSA" => Ed25519KeyPair::generate_pkcs8(&random),
            _ => return Err(MintError::Algorithm),
        };
        DevelopmentKey::from_pkcs8(document.map_err(|_| MintError::Crypto)?.as_ref())
    }

    /// The one in a PEM text.
    ///
    /// # Errors
    /// [`MintError::Key`]
    pub fn from_pem(text: &str) -> Result<Self, MintError> {
        let key =
            PrivatePkcs8KeyDer::from_pem_slice(text.as_bytes()).map_err(|_| MintError::Key)?;
        DevelopmentKey::from_pkcs8(key.secret_pkcs8_der())
    }

    fn from_pkcs8(der: &[u8]) -> Result<Self, MintError> {
        let random = SystemRandom::new();
        let text = |bytes: &[u8]| Value::from(URL_SAFE_NO_PAD.encode(bytes));
        let curves = [
            (
                &signature::ECDSA_P256_SHA256_FIXED_SIGNING,
                Algorithm::ES256,
                "P-256",
            ),
            (
                &signature::ECDSA_P384_SHA384_FIXED_SIGNING,
                Algorithm::ES384,
                "P-384",
            ),
        ];
        for (scheme, algorithm, curve) in curves {
            if let Ok(pair) = EcdsaKeyPair::from_pkcs8(scheme, der, &random) {
                // 4, then x and y of the same length (SEC 1 section 2.3.3).
                let point = &pair.public_key().as_ref()[1..];
                let (x, y) = point.split_at(point.len() / 2);
                let public = json!({ "crv": curve, "kty": "EC", "x": text(x), "y": text(y) });
                return Ok(Self::of(algorithm, EncodingKey::from_ec_der(der), public));
            }
        }
        if let Ok(pair) = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der) {
            let x = text(pair.public_key().as_ref());
            let public = json!({ "crv": "Ed25519", "kty": "OKP", "x": x });
            let private = EncodingKey::from_ed_der(der);
            return Ok(Self::of(Algorithm::EdDSA, private, public));
        }
        let pair = RsaKeyPair::from_pkcs8(der).map_err(|_| MintError::Key)?;
        let PublicKeyComponents::<Vec<u8>> { n, e } = pair.public().into();
        let public = json!({ "e": text(&e), "kty": "RSA", "n": text(&n) });
        let private = EncodingKey::from_rsa_der(der);
        Ok(Self::of(Algorithm::RS256, private, public))
    }

    fn of(algorithm: Algorithm, private: EncodingKey, public: Value) -> Self {
        // RFC 7638 section 3: the required members alone, in the order of their names, without spaces. That is how
        // serde_json writes a map.
        let name = URL_SAFE_NO_PAD.encode(Sha256::digest(public.to_string().as_bytes()));
        let mut public = match public {
            Value::Object(members) => members,
            _ => Map::new(),
        };
        public.insert("kid".into(), name.into());
        public.insert("use".into(), "sig".into());
        public.insert("alg".into(), format!("{algorithm:?}").into());
        DevelopmentKey {
            algorithm,
            private,
            public,
        }
    }

    /// What it signs with.
    pub fn algorithm(&self) -> String {
        format!("{:?}", self.algorithm)
    }

    /// Its name in the JWKS: the thumbprint of RFC 7638.
    pub fn kid(&self) -> &str {
        self.public["kid"].as_str().unwrap_or_default()
    }

    /// The public half, as `jwks_file` takes it.
    pub fn jwks(&self) -> Value {
        json!({ "keys": [self.public] })
    }

    /// The private key, to be kept where nobody else can read it.
    pub fn to_pem(&self) -> String {
        let body = STANDARD.encode(self.private.as_bytes());
        let mut pem = String::from("-----BEGIN PRIVATE KEY-----\n");
        // base64 is ASCII: each of its bytes is a character.
        for line in body.as_bytes().chunks(PEM_LINE_CHARS) {
            pem.push_str(&String::from_utf8_lossy(line));
            pem.push('\n');
        }
        pem + "-----END PRIVATE KEY-----\n"
    }

    /// The signature of any text, by any algorithm of the key's family.
    #[cfg(test)]
    pub(super) fn sign(&self, algorithm: Algorithm, text: &str) -> String {
        crypto::sign(algorithm, &self.private, text).expect("the key fits")
    }

    /// An access token (RFC 9068) with these claims.
    ///
    /// # Errors
    /// [`MintError::Crypto`]
    pub fn token(&self, claims: &Map<String, Value>) -> Result<String, MintError> {
        let header = json!({ "alg": self.algorithm(), "kid": self.kid(), "typ": "at+jwt" });
        let part = |text: String| URL_SAFE_NO_PAD.encode(text);
        let claims = Value::Object(claims.clone());
        let signed = format!("{}.{}", part(header.to_string()), part(claims.to_string()));
        let signature =
            crypto::sign(self.algorithm, &self.private, &signed).map_err(|_| MintError::Crypto)?;
        Ok(format!("{signed}.{signature}"))
    }
}

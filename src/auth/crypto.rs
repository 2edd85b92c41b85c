//! Signatures: the cryptography behind `jsonwebtoken`, by ring.
//!
//! The crate offers two backends of its own and this door for a third one. ring is here because TLS needs it already:
//! one implementation to trust and to keep up to date, and none with a known weakness (the `rsa` crate of the other
//! backend has RUSTSEC-2023-0071). ring's fixed-length ECDSA refuses r or s outside of [1, n-1] and its Ed25519 refuses
//! s >= L (RFC 8032 section 5.1.7); it takes RSA keys of 2048 to 8192 bits only, with a salt as long as the hash for PSS
//! (RFC 7518 section 3.5).

use jsonwebtoken::crypto::{self, CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::signature::{self, Signer, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind, EncodingKey};
use ring::rand::SystemRandom;
use ring::rsa::PublicKeyComponents;
use ring::signature as scheme;
use ring::{error::Unspecified, hmac};

/// Whether `signature` (base64url) is that of `message` by `key` under `algorithm`.
pub(super) fn verifies(
    algorithm: Algorithm,
    key: &DecodingKey,
    message: &str,
    signature: &str,
) -> bool {
    install();
    crypto::verify(signature, message.as_bytes(), key, algorithm).unwrap_or(false)
}

/// The signature of `message`, base64url. Private keys are PKCS #8.
///
/// # Errors
/// When the key is none for this algorithm.
pub(super) fn sign(
    algorithm: Algorithm,
    key: &EncodingKey,
    message: &str,
) -> Result<String, Error> {
    install();
    crypto::sign(message.as_bytes(), key, algorithm)
}

/// Nobody else in this program installs one, so that a second time is the same one again.
fn install() {
    static PROVIDER: CryptoProvider = CryptoProvider {
        signer_factory,
        verifier_factory,
        // For JWKs made from private keys, which `mint.rs` does itself.
        key_utils: KeyUtils::new_unimplemented(),
    };
    let _already = PROVIDER.install_default();
}

fn verifier_factory(
    algorithm: &Algorithm,
    key: &DecodingKey,
) -> Result<Box<dyn JwtVerifier>, Error> {
    if key.family() != algorithm.family() {
        return Err(ErrorKind::InvalidAlgorithm.into());
    }
    Ok(Box::new(ByRing {
        algorithm: *algorithm,
        key: key.clone(),
    }))
}

fn signer_factory(algorithm: &Algorithm, key: &EncodingKey) -> Result<Box<dyn JwtSigner>, Error> {
    if key.family() != algorithm.family() {
        return Err(ErrorKind::InvalidAlgorithm.into());
    }
    Ok(Box::new(ByRing {
        algorithm: *algorithm,
        key: key.clone(),
    }))
}

/// An algorithm with a key of its family.
struct ByRing<K> {
    algorithm: Algorithm,
    key: K,
}

impl JwtVerifier for ByRing<DecodingKey> {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl Verifier<Vec<u8>> for ByRing<DecodingKey> {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), signature::Error> {
        check(self.algorithm, self.key.kind(), message, signature)
            .map_err(|Unspecified| signature::Error::new())
    }
}

fn check(
    algorithm: Algorithm,
    key: &DecodingKeyKind,
    message: &[u8],
    signature: &[u8],
) -> Result<(), Unspecified> {
    let rsa = match algorithm {
        Algorithm::RS256 => &scheme::RSA_PKCS1_2048_8192_SHA256,
        Algorithm::RS384 => &scheme::RSA_PKCS1_2048_8192_SHA384,
        Algorithm::RS512 => &scheme::RSA_PKCS1_2048_8192_SHA512,
        Algorithm::PS256 => &scheme::RSA_PSS_2048_8192_SHA256,
        Algorithm::PS384 => &scheme::RSA_PSS_2048_8192_SHA384,
        Algorithm::PS512 => &scheme::RSA_PSS_2048_8192_SHA512,
        _ => {
            let DecodingKeyKind::SecretOrDer(key) = key else {
                return Err(Unspecified);
            };
            let curve: &dyn scheme::VerificationAlgorithm = match algorithm {
                Algorithm::ES256 => &scheme::ECDSA_P256_SHA256_FIXED,
                Algorithm::ES384 => &scheme::ECDSA_P384_SHA384_FIXED,
                Algorithm::EdDSA => &scheme::ED25519,
                Algorithm::HS256 => {
                    // Compares in constant time.
                    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
                    return hmac::verify(&key, message, signature);
                }
                _ => return Err(Unspecified),
            };
            return scheme::UnparsedPublicKey::new(curve, key).verify(message, signature);
        }
    };
    let DecodingKeyKind::RsaModulusExponent { n, e } = key else {
        return Err(Unspecified);
    };
    PublicKeyComponents { n, e }.verify(rsa, message, signature)
}

impl JwtSigner for ByRing<EncodingKey> {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl Signer<Vec<u8>> for ByRing<EncodingKey> {
    fn try_sign(&self, message: &[u8]) -> Result<Vec<u8>, signature::Error> {
        make(self.algorithm, self.key.as_bytes(), message).ok_or_else(signature::Error::new)
    }
}

fn make(algorithm: Algorithm, key: &[u8], message: &[u8]) -> Option<Vec<u8>> {
    let random = SystemRandom::new();
    let ecdsa = |scheme| {
        let pair = scheme::EcdsaKeyPair::from_pkcs8(scheme, key, &random).ok()?;
        Some(pair.sign(&random, message).ok()?.as_ref().to_vec())
    };
    let rsa = |padding: &'static dyn scheme::RsaEncoding| {
        let pair = scheme::RsaKeyPair::from_pkcs8(key).ok()?;
        let mut signature = vec![0; pair.public().modulus_len()];
        pair.sign(padding, &random, message, &mut signature).ok()?;
        Some(signature)
    };
    match algorithm {
        Algorithm::RS256 => rsa(&scheme::RSA_PKCS1_SHA256),
        Algorithm::RS384 => rsa(&scheme::RSA_PKCS1_SHA384),
        Algorithm::RS512 => rsa(&scheme::RSA_PKCS1_SHA512),
        Algorithm::PS256 => rsa(&scheme::RSA_PSS_SHA256),
        Algorithm::PS384 => rsa(&scheme::RSA_PSS_SHA384),
        Algorithm::PS512 => rsa(&scheme::RSA_PSS_SHA512),
        Algorithm::ES256 => ecdsa(&scheme::ECDSA_P256_SHA256_FIXED_SIGNING),
        Algorithm::ES384 => ecdsa(&scheme::ECDSA_P384_SHA384_FIXED_SIGNING),
        Algorithm::EdDSA => {
            let pair = scheme::Ed25519KeyPair::from_pkcs8_maybe_unchecked(key).ok()?;
            Some(pair.sign(message).as_ref().to_vec())
        }
        Algorithm::HS256 => {
            let key = hmac::Key::new(hmac::HMAC_SHA256, key);
            Some(hmac::sign(&key, message).as_ref().to_vec())
        }
        _ => None,
    }
}

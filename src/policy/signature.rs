//! Signed bundles, as `opa sign` makes them: `.signatures.json` holds a JWT whose payload names every file and its
//! digest (OPA documentation, "Bundles", section "Signing").
//!
//! Whether a signature is needed is said by the configuration alone. An implementation that looked at the bundle to
//! find out took one whose signature had been cut off (GHSA-g2pf-6v5v-qcc8).

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::signature::{self as scheme, UnparsedPublicKey, VerificationAlgorithm};
use serde::Deserialize;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256, Sha384, Sha512};

use super::bundle::{BundleError, Files, MANIFEST, SIGNATURES, is_wanted, lacks_room};
use crate::auth::der_value;
use crate::config::PolicyKey;
use crate::json;

/// Bytes of a signature file.
const SIGNATURES_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Bytes of a key's file.
const KEY_BYTES_MAX: u64 = 64 * 1024;

/// A key that is trusted to sign bundles.
struct Key {
    id: String,
    algorithm: &'static str,
    scheme: &'static dyn VerificationAlgorithm,
    bytes: Vec<u8>,
}

#[derive(Deserialize)]
struct Signatures {
    signatures: Vec<String>,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    /// A reader that does not know an extension that it must know has to refuse (RFC 7515 section 4.1.11).
    crit: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct Payload {
    files: Vec<Signed>,
    keyid: Option<String>,
}

#[derive(Deserialize)]
struct Signed {
    name: String,
    hash: String,
    #[serde(default)]
    algorithm: String,
}

/// Checks a bundle against the configured keys; without any there is nothing to check.
pub(super) fn verify(files: &Files, keys: &[PolicyKey], place: &str) -> Result<(), BundleError> {
    if keys.is_empty() {
        return Ok(());
    }
    let keys = keys.iter().map(read_key).collect::<Result<Vec<_>, _>>()?;
    let refuse = |why: String| BundleError::new(format!("{place}/{SIGNATURES}"), why);
    let Some(text) = files.contents.get(SIGNATURES) else {
        return Err(refuse(
            "is missing: policy.keys is configured, so the bundle must be signed (`opa sign`)"
                .into(),
        ));
    };
    check(files, &keys, text).map_err(refuse)
}

fn check(files: &Files, keys: &[Key], text: &[u8]) -> Result<(), String> {
    if text.len() > SIGNATURES_BYTES_MAX {
        return Err("is too large".into());
    }
    let text = std::str::from_utf8(text).map_err(|_| "is not UTF-8 text".to_owned())?;
    let signatures: Signatures = serde_json::from_str(text).map_err(|error| error.to_string())?;
    // `opa sign` writes one; with several it would be unclear which of them counts.
    let [token] = signatures.signatures.as_slice() else {
        return Err("must hold exactly one signature".into());
    };
    let payload = open(token, keys)?;
    let mut signed: BTreeMap<&str, &Signed> = BTreeMap::new();
    for file in &payload.files {
        let name = file.name.trim_start_matches('/');
        if signed.insert(name, file).is_some() {
            return Err(format!("names {name:?} twice"));
        }
    }
    for (path, bytes) in files
        .contents
        .iter()
        .filter(|(path, _)| *path != SIGNATURES)
    {
        let file = signed
            .remove(path.as_str())
            .ok_or_else(|| unnamed(path, signed.keys().copied()))?;
        let digest = digest(path, bytes, &file.algorithm)?;
        if digest != file.hash.to_ascii_lowercase() {
            return Err(format!(
                "the file {path:?} has another content than was signed"
            ));
        }
    }
    // `opa sign` names each file of a directory, and those that are no part of the bundle are not read here.
    match signed.keys().find(|path| is_wanted(path)) {
        None => Ok(()),
        Some(missing) => Err(format!("names the file {missing:?}, which is missing")),
    }
}

/// That a file is not among those that were signed. `opa sign` names them as it has been told to find them.
fn unnamed<'a>(path: &str, mut signed: impl Iterator<Item = &'a str>) -> String {
    let elsewhere = signed.find_map(|name| name.strip_suffix(path)?.strip_suffix('/'));
    let how = elsewhere.map_or_else(String::new, |above| {
        format!(
            ", but one below {above:?}: sign from within the bundle's directory (opa sign -b .)"
        )
    });
    format!("does not name the file {path:?}{how}")
}

/// The payload, once a key says that it is its own. The algorithm is the key's; the token only agrees or does not.
fn open(token: &str, keys: &[Key]) -> Result<Payload, String> {
    let mut parts = token.rsplitn(2, '.');
    let (Some(signature), Some(message)) = (parts.next(), parts.next()) else {
        return Err("holds no JWT".into());
    };
    let Some((header, payload)) = message.split_once('.') else {
        return Err("holds no JWT".into());
    };
    let decode = |part: &str| {
        URL_SAFE_NO_PAD
            .decode(part)
            .map_err(|_| "holds a JWT that is not base64url".to_owned())
    };
    let header: Header = parse(&decode(header)?)?;
    if header.crit.is_some() {
        return Err("has a JWT with extensions that are not understood (`crit`)".into());
    }
    let payload = decode(payload)?;
    let signature = decode(signature)?;
    let claims: Payload = parse(&payload)?;
    let id = header.kid.as_ref().or(claims.keyid.as_ref());
    let mut candidates = keys
        .iter()
        .filter(|key| key.algorithm == header.alg && id.is_none_or(|id| *id == key.id));
    let genuine = candidates.any(|key| {
        UnparsedPublicKey::new(key.scheme, &key.bytes)
            .verify(message.as_bytes(), &signature)
            .is_ok()
    });
    match genuine {
        true => Ok(claims),
        false => Err(format!(
            "is not signed by a key of policy.keys (it says algorithm {:?}, key {:?})",
            crate::json::short(&header.alg),
            crate::json::short(id.map_or("", String::as_str))
        )),
    }
}

fn parse<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "has a JWT that is not UTF-8".to_owned())?;
    json::walk(text).map_err(json::Refused::why)?;
    serde_json::from_str(text).map_err(|error| error.to_string())
}

// === digests ===

fn digest(path: &str, bytes: &[u8], algorithm: &str) -> Result<String, String> {
    let content = match is_structured(path) {
        true => canonical(bytes).map_err(|why| format!("the file {path:?}: {why}"))?,
        false => bytes.to_vec(),
    };
    match algorithm {
        "SHA-256" | "" => Ok(hex::encode(Sha256::digest(content))),
        "SHA-384" => Ok(hex::encode(Sha384::digest(content))),
        "SHA-512" => Ok(hex::encode(Sha512::digest(content))),
        other => Err(format!(
            "uses the digest {:?} for {path:?}; SHA-256, SHA-384 and SHA-512 are taken",
            crate::json::short(other)
        )),
    }
}

/// Files of which OPA signs the document rather than the bytes.
fn is_structured(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    name == "data.json" || name == MANIFEST
}

/// The document as OPA digests it: members sorted, no space, numbers as written, texts as Go's encoder writes them.
fn canonical(bytes: &[u8]) -> Result<Vec<u8>, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "is not UTF-8 text".to_owned())?;
    // Also bounds the depth of what follows.
    json::walk(text).map_err(json::Refused::why)?;
    let raw: &RawValue = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let mut out = Vec::with_capacity(text.len());
    write(raw, &mut out).map_err(|error| error.to_string())?;
    Ok(out)
}

fn write(value: &RawValue, out: &mut Vec<u8>) -> Result<(), serde_json::Error> {
    let text = value.get();
    match text.as_bytes().first() {
        Some(b'{') => {
            // Names are unique: `walk` has looked.
            let members: BTreeMap<String, &RawValue> = serde_json::from_str(text)?;
            out.push(b'{');
            for (index, (name, value)) in members.into_iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write_text(&name, out)?;
                out.push(b':');
                write(value, out)?;
            }
            out.push(b'}');
        }
        Some(b'[') => {
            let items: Vec<&RawValue> = serde_json::from_str(text)?;
            out.push(b'[');
            for (index, value) in items.into_iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write(value, out)?;
            }
            out.push(b']');
        }
        Some(b'"') => write_text(&serde_json::from_str::<String>(text)?, out)?,
        _ => out.extend_from_slice(text.as_bytes()),
    }
    Ok(())
}

fn write_text(text: &str, out: &mut Vec<u8>) -> Result<(), serde_json::Error> {
    let encoded = serde_json::to_string(text)?;
    // Go escapes the two line separators of Unicode, serde_json does not.
    let encoded = encoded
        .replace('\u{2028}', "\\u2028")
        .replace('\u{2029}', "\\u2029");
    out.extend_from_slice(encoded.as_bytes());
    Ok(())
}

// === keys ===

fn read_key(key: &PolicyKey) -> Result<Key, BundleError> {
    let wrong = |why: &str| BundleError::new(key.file.display(), format!("policy.keys: {why}"));
    let read = std::fs::File::open(&key.file).and_then(|file| {
        let mut text = String::new();
        std::io::Read::read_to_string(&mut std::io::Read::take(file, KEY_BYTES_MAX), &mut text)?;
        Ok(text)
    });
    let text = read.map_err(|error| BundleError {
        is_passing: lacks_room(&error),
        ..wrong(&format!("cannot be read: {error}"))
    })?;
    let scheme: &'static dyn VerificationAlgorithm = match key.algorithm {
        "ES256" => &scheme::ECDSA_P256_SHA256_FIXED,
        "ES384" => &scheme::ECDSA_P384_SHA384_FIXED,
        "PS256" => &scheme::RSA_PSS_2048_8192_SHA256,
        "PS384" => &scheme::RSA_PSS_2048_8192_SHA384,
        "PS512" => &scheme::RSA_PSS_2048_8192_SHA512,
        "RS256" => &scheme::RSA_PKCS1_2048_8192_SHA256,
        "RS384" => &scheme::RSA_PKCS1_2048_8192_SHA384,
        "RS512" => &scheme::RSA_PKCS1_2048_8192_SHA512,
        _ => return Err(wrong("an algorithm that is not known")),
    };
    let bytes = public_key(&text).ok_or_else(|| {
        wrong("is no public key in PEM (`-----BEGIN PUBLIC KEY-----`, as `openssl pkey -pubout` writes it)")
    })?;
    Ok(Key {
        id: key.id.clone(),
        algorithm: key.algorithm,
        scheme,
        bytes,
    })
}

/// What is in the BIT STRING of a SubjectPublicKeyInfo (RFC 5280 section 4.1): the form that ring takes.
fn public_key(pem: &str) -> Option<Vec<u8>> {
    let (_, rest) = pem.split_once("-----BEGIN PUBLIC KEY-----")?;
    let (body, _) = rest.split_once("-----END PUBLIC KEY-----")?;
    let body: String = body.chars().filter(|c| !c.is_whitespace()).collect();
    let der = STANDARD.decode(body).ok()?;
    let (info, rest) = der_value(0x30, &der)?;
    let (_algorithm, key) = der_value(0x30, info)?;
    let (bits, after) = der_value(0x03, key)?;
    let (unused, key) = bits.split_first()?;
    (rest.is_empty() && after.is_empty() && *unused == 0).then(|| key.to_vec())
}

#[cfg(test)]
mod tests {
    use ring::rand::SystemRandom;
    use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
    use serde_json::{Value, json};

    use super::*;

    struct Signer {
        pair: EcdsaKeyPair,
        random: SystemRandom,
    }

    impl Signer {
        fn new() -> Self {
            let random = SystemRandom::new();
            let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
            let document = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
            let pair = EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref(), &random).unwrap();
            Signer { pair, random }
        }

        fn key(&self) -> Key {
            Key {
                id: "k1".into(),
                algorithm: "ES256",
                scheme: &scheme::ECDSA_P256_SHA256_FIXED,
                bytes: self.pair.public_key().as_ref().to_vec(),
            }
        }

        fn token(&self, header: &Value, payload: &Value) -> String {
            let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
            let message = format!("{}.{}", part(header), part(payload));
            let signature = self.pair.sign(&self.random, message.as_bytes()).unwrap();
            format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature))
        }
    }

    fn files(list: &[(&str, &str)]) -> Files {
        let mut files = Files::default();
        for (path, text) in list {
            files.add((*path).into(), text.as_bytes().to_vec()).unwrap();
        }
        files
    }

    fn listed(files: &Files) -> Value {
        let of = |(path, bytes): (&String, &Vec<u8>)| json!({ "name": path, "hash": digest(path, bytes, "SHA-256").unwrap(), "algorithm": "SHA-256" });
        files.contents.iter().map(of).collect()
    }

    fn outcome(files: &Files, keys: &[Key], tokens: &[String]) -> Result<(), String> {
        check(
            files,
            keys,
            json!({ "signatures": tokens }).to_string().as_bytes(),
        )
    }

    #[test]
    fn a_signed_bundle_and_what_is_none() {
        let signer = Signer::new();
        let keys = [signer.key()];
        let bundle = files(&[
            (".manifest", "{}"),
            ("a.rego", "package a"),
            ("b/data.json", "{\"x\": 1}"),
        ]);
        let header = json!({ "alg": "ES256", "kid": "k1" });
        let payload = json!({ "files": listed(&bundle) });
        let good = signer.token(&header, &payload);
        assert_eq!(outcome(&bundle, &keys, std::slice::from_ref(&good)), Ok(()));

        // A document is signed, not its spaces.
        let spaced = files(&[
            (".manifest", "{ }"),
            ("a.rego", "package a"),
            ("b/data.json", "{\"x\":1}"),
        ]);
        assert_eq!(outcome(&spaced, &keys, std::slice::from_ref(&good)), Ok(()));

        let changed = files(&[
            (".manifest", "{}"),
            ("a.rego", "package b"),
            ("b/data.json", "{\"x\": 1}"),
        ]);
        let other_number = files(&[
            (".manifest", "{}"),
            ("a.rego", "package a"),
            ("b/data.json", "{\"x\": 1.0}"),
        ]);
        let extra = files(&[
            (".manifest", "{}"),
            ("a.rego", "package a"),
            ("b/data.json", "{\"x\": 1}"),
            ("c.rego", "package c"),
        ]);
        let missing = files(&[(".manifest", "{}"), ("a.rego", "package a")]);
        for (bundle, why) in [
            (&changed, "another content"),
            (&other_number, "another content"),
            (&extra, "does not name"),
            (&missing, "which is missing"),
        ] {
            let error = outcome(bundle, &keys, std::slice::from_ref(&good)).unwrap_err();
            assert!(error.contains(why), "{error}");
        }

        // As `opa sign` names what is in a directory: all of it, and from where it was called.
        let beside = files(&[
            (".manifest", "{}"),
            ("a.rego", "package a"),
            ("b/data.json", "{\"x\": 1}"),
            ("README.md", "# Ours"),
            ("b/notes.json", "{}"),
        ]);
        let token = signer.token(&header, &json!({ "files": listed(&beside) }));
        assert_eq!(outcome(&bundle, &keys, &[token]), Ok(()));
        let mut names = listed(&bundle);
        for file in names.as_array_mut().unwrap() {
            file["name"] = format!("ours/{}", file["name"].as_str().unwrap()).into();
        }
        let token = signer.token(&header, &json!({ "files": names }));
        let error = outcome(&bundle, &keys, &[token]).unwrap_err();
        let advice = "one below \"ours\": sign from within the bundle's directory (opa sign -b .)";
        assert!(error.ends_with(advice), "{error}");

        let mut stripped = good.clone();
        stripped.truncate(good.rfind('.').unwrap() + 1);
        let none = good.replacen(
            &URL_SAFE_NO_PAD.encode(header.to_string()),
            &URL_SAFE_NO_PAD.encode(json!({ "alg": "none" }).to_string()),
            1,
        );
        let stranger = Signer::new().token(&header, &payload);
        let by_name = signer.token(&json!({ "alg": "HS256", "kid": "k1" }), &payload);
        let critical = signer.token(&json!({ "alg": "ES256", "crit": ["x"] }), &payload);
        let elsewhere = signer.token(&json!({ "alg": "ES256", "kid": "k2" }), &payload);
        let weak = signer.token(
            &header,
            &json!({ "files": [{ "name": "a", "hash": "x", "algorithm": "MD5" }] }),
        );
        for token in [
            stripped,
            none,
            stranger,
            by_name,
            critical,
            elsewhere,
            weak,
            "a.b.c".into(),
            String::new(),
        ] {
            assert!(
                outcome(&bundle, &keys, std::slice::from_ref(&token)).is_err(),
                "{token}"
            );
        }
        assert!(outcome(&bundle, &keys, &[]).is_err());
        assert!(outcome(&bundle, &keys, &[good.clone(), good]).is_err());
    }

    #[test]
    fn keys_demand_a_signature() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("key.pem");
        std::fs::write(&file, "no key").unwrap();
        let bundle = files(&[("a.rego", "package a")]);
        assert_eq!(verify(&bundle, &[], "b"), Ok(()));
        let key = PolicyKey {
            id: "k".into(),
            algorithm: "ES256",
            file: file.clone(),
        };
        let error = verify(&bundle, std::slice::from_ref(&key), "b").unwrap_err();
        assert!(error.message.contains("no public key"), "{error}");
        // `openssl ecparam -name prime256v1 -genkey | openssl pkey -pubout`
        std::fs::write(&file, "-----BEGIN PUBLIC KEY-----\nMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEEVs/o5+uQbTjL3chynL4wXgUg2R9\nq9UU8I5mEovUf86QZ7kOBIjJwqnzD1omageEHWwHdBO6B+dFabmdT9POxg==\n-----END PUBLIC KEY-----\n").unwrap();
        let error = verify(&bundle, &[key], "b").unwrap_err();
        assert!(error.message.contains("must be signed"), "{error}");
    }

    #[test]
    fn documents_have_one_form() {
        for (written, wanted) in [
            (
                r#"{ "b": [1, 2.50, 1e3], "a": {"z": null, "y": "\u2028<é\n"} }"#,
                "{\"a\":{\"y\":\"\\u2028<é\\n\",\"z\":null},\"b\":[1,2.50,1e3]}",
            ),
            ("[ ]", "[]"),
        ] {
            assert_eq!(
                String::from_utf8(canonical(written.as_bytes()).unwrap()).unwrap(),
                wanted
            );
        }
        assert!(canonical(br#"{"a":1,"a":2}"#).is_err());
    }
}

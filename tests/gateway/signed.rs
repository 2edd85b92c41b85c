//! Signed policies: what `skillgate policy check` says of one is what the gateway says of it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::alone;
use crate::policy::{policy_in, said, skillgate};
use crate::support::gateway::{House, Settings, must_not_start};

/// A key of `policy.keys`, and what `opa sign` does with its other half.
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

    fn pem(&self) -> String {
        // The SubjectPublicKeyInfo of a point on P-256 differs from another in the point alone.
        let mut info = hex::decode("3059301306072a8648ce3d020106082a8648ce3d030107034200").unwrap();
        info.extend_from_slice(self.pair.public_key().as_ref());
        format!(
            "-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n",
            STANDARD.encode(info)
        )
    }

    fn sign(&self, bundle: &Path) {
        let listed = |(name, bytes): (String, Vec<u8>)| {
            // Of these two the document is signed, whatever its spaces are.
            let bytes = match name.ends_with("data.json") || name == ".manifest" {
                true => {
                    let document: Value = serde_json::from_slice(&bytes).unwrap();
                    document.to_string().into_bytes()
                }
                false => bytes,
            };
            json!({ "name": name, "hash": hex::encode(Sha256::digest(bytes)), "algorithm": "SHA-256" })
        };
        let files: Vec<Value> = files(bundle).into_iter().map(listed).collect();
        let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let message = format!(
            "{}.{}",
            part(json!({ "alg": "ES256", "kid": "team" })),
            part(json!({ "files": files }))
        );
        let signature = self.pair.sign(&self.random, message.as_bytes()).unwrap();
        let token = format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature));
        let text = json!({ "signatures": [token] }).to_string();
        fs::write(bundle.join(".signatures.json"), text).unwrap();
    }
}

/// The files of a bundle by their path in it, without the signature.
fn files(bundle: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut todo = vec![PathBuf::new()];
    while let Some(below) = todo.pop() {
        for entry in fs::read_dir(bundle.join(&below)).unwrap() {
            let entry = entry.unwrap();
            let name = below.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                todo.push(name);
            } else if name != Path::new(".signatures.json") {
                let bytes = fs::read(entry.path()).unwrap();
                found.insert(name.to_str().unwrap().to_owned(), bytes);
            }
        }
    }
    found
}

/// Exit code and output of `policy check` in a house.
fn check(house: &House, more: &[&str]) -> (Option<i32>, String) {
    let args = ["policy", "check", "--config", "skillgate.toml"];
    let output = skillgate(house, &[&args, more].concat());
    (output.status.code(), said(&output))
}

const KEYS: &str = "[[policy.keys]]\nid = \"team\"\nalgorithm = \"ES256\"\nfile = \"team.pem\"\n";

#[test]
fn a_check_says_of_a_signature_what_the_gateway_says() {
    let _alone = alone();
    let policy = "[policy]\npath = \"policies\"\n";
    let house = House::new(Settings {
        extra: &format!("{policy}{KEYS}"),
        ..Settings::default()
    });
    let policies = policy_in(&house, |_| ());
    let signer = Signer::new();
    fs::write(house.path().join("team.pem"), signer.pem()).unwrap();
    let note = "note: the signature was not looked at (--unsigned)";

    let (code, text) = check(&house, &[]);
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.starts_with("policies/.signatures.json: is missing: policy.keys is configured"),
        "{text}"
    );
    // Before it is signed, all the rest, and it says so.
    let (code, text) = check(&house, &["--unsigned"]);
    assert!(code == Some(0) && text.contains(": fine: "), "{text}");
    assert!(text.contains(note), "{text}");
    assert!(text.contains("warning: no golden decisions "), "{text}");
    let (_, text) = check(&house, &["--unsigned", "--output", "json"]);
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answer["signature"], "not_looked_at", "{text}");

    // `opa sign` names this one too, which is no part of the bundle.
    fs::write(policies.join("README.md"), "# Ours\n").unwrap();
    signer.sign(&policies);
    let (code, text) = check(&house, &[]);
    assert!(code == Some(0) && text.contains(": fine: "), "{text}");
    assert!(!text.contains("note"), "{text}");
    let (_, text) = check(&house, &["--output", "json"]);
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answer["signature"], "good", "{text}");

    // Rules that are as good as before, and not what was signed.
    let custom = policies.join("skills/custom/more.rego");
    let changed = fs::read_dir(policies.join("skills/authz"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .min()
        .unwrap();
    let before = fs::read_to_string(&changed).unwrap();
    fs::write(&changed, format!("{before}\n# Changed.\n")).unwrap();
    let (code, tampered) = check(&house, &[]);
    assert_eq!(code, Some(1), "{tampered}");
    assert!(
        tampered.starts_with("policies/.signatures.json: the file \"skills/authz/")
            && tampered.contains("has another content than was signed"),
        "{tampered}"
    );
    let (code, gateway) = must_not_start(house.command());
    assert!(
        code == Some(3) && gateway.contains(tampered.trim()),
        "{gateway}"
    );
    fs::write(&changed, before).unwrap();
    fs::write(&custom, "package skills.custom\n").unwrap();
    let (code, text) = check(&house, &[]);
    assert!(code == Some(1) && text.contains("does not name"), "{text}");
    fs::remove_file(custom).unwrap();

    // By somebody whom nobody has named.
    Signer::new().sign(&policies);
    let (code, text) = check(&house, &[]);
    assert!(
        code == Some(1) && text.contains("is not signed by a key of policy.keys"),
        "{text}"
    );

    // Without keys nobody needs a signature, and there is nothing that was not looked at.
    house.configure(Settings {
        extra: policy,
        ..Settings::default()
    });
    for more in [&[][..], &["--unsigned"]] {
        let (code, text) = check(&house, more);
        assert!(code == Some(0) && !text.contains("note"), "{text}");
    }
}

#[test]
fn a_check_says_of_an_older_bundle_what_the_gateway_says() {
    let _alone = alone();
    let policy = "[policy]\npath = \"policies\"\n";
    let house = House::new(Settings {
        extra: policy,
        ..Settings::default()
    });
    let policies = policy_in(&house, |_| ());
    let numbered = |sequence: u64| {
        let manifest = json!({ "revision": format!("r{sequence}"), "roots": ["skills"], "metadata": { "sequence": sequence } });
        fs::write(policies.join(".manifest"), manifest.to_string()).unwrap();
    };
    numbered(6);
    let (code, text) = check(&house, &[]);
    assert_eq!(code, Some(0), "nothing was in force here: {text}");
    numbered(7);
    house.start().stop();
    let (code, text) = check(&house, &[]);
    assert_eq!(code, Some(0), "it is in force: {text}");

    numbered(6);
    let (code, text) = check(&house, &[]);
    assert!(
        code == Some(1) && text.contains("7 of revision \"r7\" was in force already"),
        "{text}"
    );
    let (code, gateway) = must_not_start(house.command());
    assert!(
        code == Some(3) && gateway.contains(text.trim()),
        "{gateway}"
    );
    house.configure(Settings {
        extra: &format!("{policy}allow_rollback = true\n"),
        ..Settings::default()
    });
    let (code, text) = check(&house, &[]);
    assert_eq!(code, Some(0), "{text}");
}

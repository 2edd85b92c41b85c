//! Signatures: which are taken, which are refused, and what the refusal says. Made here, as minisign makes them.
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on says so by panicking"
)]

mod support;

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use blake2::{Blake2b512, Digest};
use ring::signature::{Ed25519KeyPair, KeyPair};
use sha2::Sha256;
use skillgate_plugin_host::{Pin, Plugin};
use support::{probe, sdk_plugin};

/// A vendor with a key.
struct Vendor {
    key: Ed25519KeyPair,
    number: [u8; 8],
}

impl Vendor {
    fn new(seed: u8) -> Self {
        Vendor {
            key: Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).unwrap(),
            number: [seed; 8],
        }
    }

    fn public(&self) -> String {
        STANDARD.encode([b"Ed", &self.number[..], self.key.public_key().as_ref()].concat())
    }

    /// Writes `<file>.minisig`. `prehashed`: as minisign does; else the form that it made long ago.
    fn sign(&self, file: &Path, comment: &str, prehashed: bool) -> PathBuf {
        let bytes = std::fs::read(file).unwrap();
        let (algorithm, signed) = if prehashed {
            (b"ED", Blake2b512::digest(&bytes).to_vec())
        } else {
            (b"Ed", bytes)
        };
        let signature = self.key.sign(&signed);
        let all = [signature.as_ref(), comment.as_bytes()].concat();
        let text = format!(
            "untrusted comment: signature\n{}\ntrusted comment: {comment}\n{}\n",
            STANDARD.encode([algorithm, &self.number[..], signature.as_ref()].concat()),
            STANDARD.encode(self.key.sign(&all)),
        );
        let path = PathBuf::from(format!("{}.minisig", file.display()));
        std::fs::write(&path, text).unwrap();
        path
    }

    fn pin(&self) -> Pin {
        Pin {
            minisign_key: Some(self.public()),
            ..Pin::default()
        }
    }
}

fn refusal(file: &Path, pin: &Pin) -> String {
    let text = Plugin::load(file, pin).unwrap_err().to_string();
    assert!(text.starts_with(&file.display().to_string()), "{text}");
    assert!(!text.contains('\n'), "one sentence: {text}");
    text
}

/// A copy that a signature can lie beside.
fn plugin(dir: &Path) -> PathBuf {
    let file = dir.join("vendor.so");
    std::fs::copy(sdk_plugin(), &file).unwrap();
    file
}

#[test]
fn a_signature_of_this_plugin_and_version_counts() {
    let (dir, vendor) = (tempfile::tempdir().unwrap(), Vendor::new(1));
    let file = plugin(dir.path());
    vendor.sign(&file, "skillgate-plugin org.skillgate.test 1.2.3", true);
    let loaded = Plugin::load(&file, &vendor.pin()).unwrap();
    assert_eq!(loaded.info().version, "1.2.3");
}

#[test]
fn what_does_not_fit_is_refused() {
    let (dir, vendor) = (tempfile::tempdir().unwrap(), Vendor::new(1));
    let file = plugin(dir.path());
    let text = refusal(&file, &vendor.pin());
    assert!(
        text.contains(".minisig cannot be read (No such file"),
        "{text}"
    );
    assert!(
        text.contains("put the vendor's .minisig beside it"),
        "{text}"
    );

    let good = "skillgate-plugin org.skillgate.test 1.2.3";
    let signature = vendor.sign(&file, good, true);
    let again = "get the file and its .minisig again, from the vendor";
    let text = refusal(&file, &Vendor::new(2).pin());
    assert!(
        text.contains("does not fit") && text.ends_with(again),
        "{text}"
    );

    // Another byte in the file.
    let bytes = std::fs::read(&file).unwrap();
    let other = [&bytes[..], &[0]].concat();
    std::fs::write(&file, other).unwrap();
    assert!(refusal(&file, &vendor.pin()).contains("does not fit"));
    std::fs::write(&file, bytes).unwrap();

    // Another trusted comment under the same signature.
    let text = std::fs::read_to_string(&signature).unwrap();
    std::fs::write(&signature, text.replace("1.2.3", "9.9.9")).unwrap();
    assert!(refusal(&file, &vendor.pin()).contains("does not fit"));

    std::fs::write(&signature, "no signature").unwrap();
    assert!(refusal(&file, &vendor.pin()).contains("does not fit"));

    vendor.sign(&file, good, false);
    assert!(refusal(&file, &vendor.pin()).contains("does not fit"));

    let no_key = Pin {
        minisign_key: Some(format!("RW{}", "A".repeat(54))),
        ..Pin::default()
    };
    let text = refusal(&file, &no_key);
    assert!(
        text.contains("minisign_key") || text.contains("does not fit"),
        "{text}"
    );
}

#[test]
fn a_signature_counts_for_one_plugin_and_one_version() {
    let (dir, vendor) = (tempfile::tempdir().unwrap(), Vendor::new(1));
    let file = plugin(dir.path());
    for (comment, expected) in [
        // Refused before any of its code has run: the version is not known yet.
        (
            "skillgate-plugin org.skillgate.other 1.2.3",
            "skillgate-plugin org.skillgate.test <version>",
        ),
        (
            "timestamp:1700000000\tfile:vendor.so",
            "skillgate-plugin org.skillgate.test <version>",
        ),
        (
            "skillgate-plugin org.skillgate.test 1.2.2",
            "skillgate-plugin org.skillgate.test 1.2.3",
        ),
    ] {
        vendor.sign(&file, comment, true);
        let text = refusal(&file, &vendor.pin());
        assert!(
            text.contains(&format!(
                "it is signed as {comment:?}, and it is {expected:?}"
            )),
            "{text}"
        );
    }
}

/// A note holds the beginning of an id, and a compiler cuts it without a word, or with a warning.
#[test]
fn an_id_that_is_longer_than_a_note_may_be_signed() {
    let (dir, vendor) = (tempfile::tempdir().unwrap(), Vendor::new(1));
    let long = "org.skillgate.probe-with-an-id-of-more-than-44-bytes";
    for bytes in [43, 44, 45, long.len()] {
        let id = &long[..bytes];
        let options = [
            &format!("-DNOTE_ID=\"{id}\""),
            &format!("-DENTRY_ID=\"{id}\""),
            "-w",
        ];
        let file = probe(dir.path(), &format!("long{bytes}"), &options);
        vendor.sign(&file, &format!("skillgate-plugin {id} 1.0.0"), true);
        Plugin::load(&file, &vendor.pin()).unwrap_or_else(|error| panic!("{error}"));
        let other = format!("skillgate-plugin {}x 1.0.0", &id[..42]);
        vendor.sign(&file, &other, true);
        assert!(refusal(&file, &vendor.pin()).contains("it is signed as"));
    }
}

#[test]
fn a_key_and_a_pin_must_both_fit() {
    let (dir, vendor) = (tempfile::tempdir().unwrap(), Vendor::new(1));
    let file = probe(dir.path(), "both", &[]);
    vendor.sign(&file, "skillgate-plugin org.skillgate.probe 1.0.0", true);
    let wrong = Pin {
        sha256: Some("0".repeat(64)),
        ..vendor.pin()
    };
    let pins = "and the configuration pins 0000";
    assert!(refusal(&file, &wrong).contains(pins));
    let both = |vendor: &Vendor| Pin {
        sha256: Some(hex::encode(Sha256::digest(std::fs::read(&file).unwrap()))),
        ..vendor.pin()
    };
    let text = refusal(&file, &both(&Vendor::new(2)));
    assert!(text.contains("its signature does not fit"), "{text}");
    Plugin::load(&file, &both(&vendor)).unwrap();
}

//! Which keys are taken, from files and from others' documents.

use super::super::keys::{BadKeys, KeySet, Strictness};
use super::super::spki;
use super::malleable::SMALL_ORDER;
use super::*;

use rustls::pki_types::SubjectPublicKeyInfoDer;
use rustls::pki_types::pem::PemObject;

const ALL: &[Algorithm] = &ASYMMETRIC;

fn jwk(key: &DevelopmentKey) -> Value {
    key.jwks()["keys"][0].clone()
}

/// Takes a JWKS of this one key from a file and from elsewhere; gives what is said of the file.
fn take(jwk: &Value) -> Result<usize, String> {
    let text = json!({ "keys": [jwk] }).to_string();
    let from = |strictness| KeySet::from_jwks(&text, ALL, strictness).map(|set| set.len());
    let (file, remote) = (from(Strictness::File), from(Strictness::Remote));
    assert_eq!(file.is_ok(), remote.is_ok(), "{jwk}");
    file.map_err(|error| error.to_string())
}

/// It is one line of the log, at every attempt.
#[test]
fn what_is_no_jwks_is_not_said_back_whole() {
    let text = format!(r#"{{"keys": "{}"}}"#, "A".repeat(100_000));
    let error = KeySet::from_jwks(&text, ALL, Strictness::Remote).unwrap_err();
    let said = error.to_string();
    assert!(said.contains("invalid type") && said.len() < 500, "{said}");
}

#[test]
fn good_keys_of_every_kind_are_taken() {
    for algorithm in ["ES256", "ES384", "EdDSA"] {
        let key = DevelopmentKey::generate(algorithm).unwrap();
        assert_eq!(take(&jwk(&key)), Ok(1), "{algorithm}");
    }
    let rsa = DevelopmentKey::from_pem(&fixture("rsa-2048.pem")).unwrap();
    let mut key = jwk(&rsa);
    assert_eq!(take(&key), Ok(1));
    key["key_ops"] = json!(["verify"]);
    key["x5c"] = json!(["MIIB"]);
    key["new member"] = json!({ "of": "the future" });
    assert_eq!(take(&key), Ok(1));
    let n = URL_SAFE_NO_PAD.decode(key["n"].as_str().unwrap()).unwrap();
    key["n"] = URL_SAFE_NO_PAD.encode([&[0], n.as_slice()].concat()).into();
    assert_eq!(take(&key), Ok(1), "with the sign byte of ASN.1");
}

#[test]
fn weak_and_broken_keys_are_refused_by_name() {
    let (rsa, p256, ed) = (
        jwk(&DevelopmentKey::from_pem(&fixture("rsa-2048.pem")).unwrap()),
        jwk(&DevelopmentKey::generate("ES256").unwrap()),
        jwk(&DevelopmentKey::generate("EdDSA").unwrap()),
    );
    let b64 = |bytes: &[u8]| Value::from(URL_SAFE_NO_PAD.encode(bytes));
    let odd = |bytes: usize| {
        let mut n = vec![0xff; bytes];
        n[bytes - 1] = 1;
        n
    };
    let even = [&odd(256)[..255], &[2]].concat();
    let cases: [(&Value, &str, Value, &str); 31] = [
        (&rsa, "n", b64(&odd(64)), "less than 2048 bits"),
        (&rsa, "n", b64(&odd(128)), "less than 2048 bits"),
        (
            &rsa,
            "n",
            b64(&[&[0x7f], &odd(255)[..]].concat()),
            "less than 2048 bits",
        ),
        (
            &rsa,
            "n",
            b64(&[&[0; 128], &odd(128)[..]].concat()),
            "less than 2048 bits",
        ),
        (&rsa, "n", b64(&odd(1025)), "more than 8192 bits"),
        (&rsa, "n", b64(&even), "even"),
        (&rsa, "n", b64(&[]), "less than 2048 bits"),
        (&rsa, "n", json!("not base64!"), "no base64url"),
        (&rsa, "n", json!(7), "wrong type"),
        (&rsa, "e", b64(&[1]), "exponent"),
        (&rsa, "e", b64(&[3]), "exponent"),
        (&rsa, "e", b64(&[1, 0, 0]), "exponent"),
        (&rsa, "e", b64(&[1, 0, 2]), "exponent"),
        (&rsa, "e", b64(&[]), "exponent"),
        (&rsa, "e", b64(&[1, 0, 0, 0, 1]), "exponent"),
        (&rsa, "e", json!("AQAB="), "no base64url"),
        (&rsa, "d", json!("AQAB"), "private"),
        (&rsa, "p", json!("AQAB"), "private"),
        (&rsa, "k", json!("AQAB"), "shared secret"),
        (
            &rsa,
            "alg",
            json!("ES256"),
            "its alg is not one for its kty",
        ),
        (&rsa, "kid", json!("k".repeat(257)), "256 bytes"),
        (&rsa, "kid", json!(["k"]), "wrong type"),
        (&p256, "x", b64(&[0; 32]), "not a point"),
        (&p256, "y", p256["x"].clone(), "not a point"),
        (&p256, "x", b64(&[7; 31]), "as long as"),
        (&p256, "y", b64(&[0; 33]), "as long as"),
        (&p256, "crv", json!("P-384"), "as long as"),
        (&p256, "d", json!("AQAB"), "private"),
        (&ed, "x", b64(&[7; 31]), "32 bytes"),
        (&ed, "alg", json!("RS256"), "its alg is not one for its kty"),
        (&ed, "d", json!("AQAB"), "private"),
    ];
    for (key, member, value, expected) in cases {
        let mut key = key.clone();
        key[member] = value;
        let said = take(&key).unwrap_err();
        assert!(
            said.contains(expected),
            "{member}: {said}, expected {expected}"
        );
    }
    // CVE-2022-21449 began with zeros that were taken for a point.
    let mut zero = p256.clone();
    (zero["x"], zero["y"]) = (b64(&[0; 32]), b64(&[0; 32]));
    assert!(take(&zero).unwrap_err().contains("not a point"));
    for point in SMALL_ORDER {
        let mut key = ed.clone();
        key["x"] = b64(&hex::decode(point).unwrap());
        assert!(take(&key).unwrap_err().contains("small order"), "{point}");
    }
    // What only looks like the end of the field, where y is not canonical any more, is a key like another.
    for (first, fill, last) in [(0xeb, 0xff, 0x7f), (0xed, 0, 0x7f), (0xff, 0xff, 0x3f)] {
        let mut point = [fill; 32];
        (point[0], point[31]) = (first, last);
        for sign in [0, 0x80] {
            point[31] |= sign;
            let mut key = ed.clone();
            key["x"] = b64(&point);
            assert_eq!(take(&key), Ok(1), "{point:02x?}");
        }
    }
    let secret = json!({ "kty": "oct", "k": "c2VjcmV0", "alg": "HS256" });
    assert!(take(&secret).unwrap_err().contains("shared secret"));
}

#[test]
fn keys_for_other_uses_are_left_out() {
    let good = jwk(&DevelopmentKey::generate("ES256").unwrap());
    for (member, value) in [
        ("use", json!("enc")),
        ("use", json!("SIG")),
        ("key_ops", json!(["sign"])),
        ("key_ops", json!([])),
        ("alg", json!("ECDH-ES")),
        ("alg", json!("none")),
        ("crv", json!("P-521")),
        ("crv", json!("secp256k1")),
        ("kty", json!("ec")),
        ("kty", json!("AKP")),
    ] {
        let mut other = good.clone();
        other[member] = value.clone();
        let said = take(&other).unwrap_err();
        assert!(said.starts_with("no key for"), "{member} {value}: {said}");
        let both = json!({ "keys": [other, good] }).to_string();
        let set = KeySet::from_jwks(&both, ALL, Strictness::File).unwrap();
        assert_eq!(set.len(), 1, "{member} {value}");
    }
    // A broken key beside a good one: a mistake of the operator, or somebody else's.
    let mut broken = good.clone();
    broken["x"] = "AAAA".into();
    let both = json!({ "keys": [broken, good] }).to_string();
    assert!(KeySet::from_jwks(&both, ALL, Strictness::File).is_err());
    let set = KeySet::from_jwks(&both, ALL, Strictness::Remote).unwrap();
    assert_eq!(set.len(), 1);
    let mut set = set;
    let unused = set.take_unused();
    assert!(
        matches!(&*unused, [BadKeys::Key { why, .. }] if why.starts_with("x and y")),
        "{unused:?}"
    );
    // A key for what the issuer may not use is none, also beside others.
    let other = jwk(&DevelopmentKey::generate("EdDSA").unwrap());
    let both = json!({ "keys": [good, other] }).to_string();
    let set = KeySet::from_jwks(&both, &[Algorithm::ES256], Strictness::Remote).unwrap();
    assert_eq!(set.len(), 1);
    let text = json!({ "keys": [good] }).to_string();
    let none = KeySet::from_jwks(&text, &[Algorithm::RS256], Strictness::Remote);
    assert_eq!(none.unwrap_err(), BadKeys::None("RS256".into()));
}

#[test]
fn documents_that_are_no_jwks_are_refused() {
    let good = jwk(&DevelopmentKey::generate("ES256").unwrap());
    // With a key that can be used, as many as may be, and one more.
    let foreign = |others: usize| {
        let mut keys = vec![json!({ "kty": "AKP" }); others];
        keys.push(good.clone());
        json!({ "keys": keys }).to_string()
    };
    let many = foreign(100);
    assert_eq!(
        KeySet::from_jwks(&foreign(99), ALL, Strictness::File)
            .unwrap()
            .len(),
        1
    );
    let twice = format!(r#"{{"keys":[],"keys":[{good}]}}"#);
    let kid_twice = format!(
        r#"{{"keys":[{}]}}"#,
        good.to_string().replacen('{', r#"{"kid":"x","#, 1)
    );
    for text in [
        "",
        "null",
        "[]",
        "{}",
        r#"{"keys":null}"#,
        r#"{"keys":{}}"#,
        r#"{"keys":[1]}"#,
        r#"{"keys":[[]]}"#,
        r#"{"keys":[{}]}"#,
        r#"{"keys":[]}"#,
        "<html>",
        "{\"keys\":[]",
        &many,
        &twice,
        &kid_twice,
    ] {
        for strictness in [Strictness::File, Strictness::Remote] {
            assert!(
                KeySet::from_jwks(text, ALL, strictness).is_err(),
                "{text:.40}"
            );
        }
    }
}

#[test]
fn pem_files() {
    for name in ["rsa-2048", "p256", "p384", "ed25519"] {
        let pem = fixture(&format!("{name}.pub.pem"));
        let set = KeySet::from_file(&pem, ALL);
        assert_eq!(set.unwrap().len(), 1, "{name}");
        let crlf = pem.replace('\n', "\r\n");
        assert_eq!(KeySet::from_file(&crlf, ALL).unwrap().len(), 1, "{name}");
    }
    let two = fixture("rsa-2048.pub.pem") + &fixture("ed25519.pub.pem");
    assert_eq!(KeySet::from_file(&two, ALL).unwrap().len(), 2);
    // Those count that the issuer may not use.
    let of_ed = |others: usize| {
        let text = fixture("p256.pub.pem").repeat(others) + &fixture("ed25519.pub.pem");
        KeySet::from_file(&text, &[Algorithm::EdDSA]).map(|set| set.len())
    };
    assert_eq!(of_ed(99), Ok(1));
    assert_eq!(of_ed(100), Err(BadKeys::TooMany));

    let said = |text: &str| KeySet::from_file(text, ALL).unwrap_err().to_string();
    for (name, expected) in [
        ("rsa-1024.pub.pem", "key 1: RSA keys of less than 2048 bits"),
        ("rsa-2048-e3.pub.pem", "key 1: its exponent"),
        ("p521.pub.pem", "key 1: not an RSA, P-256, P-384 or Ed25519"),
        ("rsa-2048.pem", "holds a private key"),
        ("ca.pem", "holds a certificate"),
    ] {
        let said = said(&fixture(name));
        assert!(said.starts_with(expected), "{name}: {said}");
    }
    assert_eq!(said("hello"), "neither a JWKS nor a PEM public key");
    assert_eq!(said(""), "neither a JWKS nor a PEM public key");
    // Any byte cut off or changed in the frame around the key is an error, never a panic.
    let pem = fixture("rsa-2048.pub.pem");
    for cut in 0..pem.len() - 26 {
        assert!(KeySet::from_file(&pem[..cut], ALL).is_err(), "{cut}");
    }
    for at in 27..80 {
        let mut bytes = pem.clone().into_bytes();
        bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
        let text = String::from_utf8(bytes).unwrap();
        let _no_panic = KeySet::from_file(&text, ALL);
    }
}

/// DER has one spelling: nothing behind a point or short of it, and no other algorithm with a key that looks alike.
#[test]
fn a_public_key_in_der_is_read_whole_or_not_at_all() {
    let der = |name: &str| {
        let pem = fixture(&format!("{name}.pub.pem"));
        let der = SubjectPublicKeyInfoDer::from_pem_slice(pem.as_bytes()).unwrap();
        der.as_ref().to_vec()
    };
    for name in ["rsa-2048", "p256", "p384", "ed25519"] {
        let good = der(name);
        assert!(spki::read(&good).is_ok(), "{name}");
        let (short, long) = (&good[..good.len() - 1], [&good[..], &[0]].concat());
        assert!(spki::read(short).is_err(), "{name}");
        assert!(spki::read(&long).is_err(), "{name}");
    }
    // id-RSASSA-PSS 1.2.840.113549.1.1.10 (RFC 4055 section 1.2): such a key is for PSS alone.
    let (good, rsa) = (der("rsa-2048"), [0xf7, 0x0d, 1, 1, 1]);
    let at = good.windows(5).position(|part| part == rsa).unwrap();
    let mut pss = good;
    pss[at + 4] = 10;
    assert!(spki::read(&pss).is_err());
}

/// RFC 7517 section 4.4: a key that says what it is for checks nothing else, and its name says nothing of another's.
#[test]
fn a_key_is_for_its_own_algorithm_alone() {
    let rsa = DevelopmentKey::from_pem(&fixture("rsa-2048.pem")).unwrap();
    let mut key = jwk(&rsa);
    assert_eq!(key["alg"], "RS256");
    let tried = |key: &Value, algorithm| {
        let text = json!({ "keys": [key] }).to_string();
        let set = KeySet::from_jwks(&text, ALL, Strictness::Remote).unwrap();
        let kid = Some(rsa.kid());
        let named = set.names(kid, algorithm);
        (named, set.candidates(kid, algorithm).count())
    };
    assert_eq!(tried(&key, Algorithm::RS256), (true, 1));
    for other in [Algorithm::RS384, Algorithm::PS256, Algorithm::ES256] {
        assert_eq!(tried(&key, other), (false, 0), "{other:?}");
    }
    key.as_object_mut().unwrap().remove("alg");
    assert_eq!(tried(&key, Algorithm::PS256), (true, 1));
    assert_eq!(tried(&key, Algorithm::ES256), (false, 0));

    // A token of that name under another algorithm may be by the key that has none.
    let mut nameless = jwk(&DevelopmentKey::generate("ES256").unwrap());
    nameless.as_object_mut().unwrap().remove("kid");
    let text = json!({ "keys": [key, nameless] }).to_string();
    let set = KeySet::from_jwks(&text, ALL, Strictness::File).unwrap();
    let kid = Some(rsa.kid());
    assert_eq!(set.candidates(kid, Algorithm::ES256).count(), 1);
    assert_eq!(set.candidates(kid, Algorithm::RS256).count(), 1);
}

/// What a token cannot tell apart is tried one after the other, four at most: a fifth would be there and never count.
#[test]
fn no_more_keys_of_one_name_than_are_tried() {
    // One more than a token is tried with, told apart by nothing, or by no name of their own.
    let nameless = (0..5)
        .map(|_| {
            let mut key = jwk(&DevelopmentKey::generate("ES256").unwrap());
            key.as_object_mut().unwrap().remove("kid");
            key
        })
        .collect::<Vec<_>>();
    let file = |keys: &[Value]| {
        let text = json!({ "keys": keys }).to_string();
        KeySet::from_jwks(&text, ALL, Strictness::File).map_err(|error| error.to_string())
    };
    let mut same = nameless.clone();
    for key in &mut same {
        key["kid"] = "k".into();
    }
    for (keys, named) in [(&nameless, "without a kid"), (&same, "with the kid \"k\"")] {
        assert_eq!(file(&keys[..4]).unwrap().len(), 4);
        let said = file(keys).unwrap_err();
        let expected =
            format!("5 keys for ES256 {named}, of which only the first 4 would be tried");
        assert!(said.starts_with(&expected), "{said}");
        assert!(said.contains("give each its own kid"), "{said}");
        // Somebody else's document: the rest of it is good.
        let text = json!({ "keys": keys }).to_string();
        let mut set = KeySet::from_jwks(&text, ALL, Strictness::Remote).unwrap();
        let unused = set.take_unused();
        assert!(
            matches!(&*unused, [BadKeys::Crowd { found: 5, .. }]),
            "{unused:?}"
        );
    }
    // Other algorithms and other names are others.
    let mut apart = nameless.clone();
    apart[4]["kid"] = "k".into();
    assert_eq!(file(&apart).unwrap().len(), 5);
    apart[4] = jwk(&DevelopmentKey::generate("EdDSA").unwrap());
    apart[4].as_object_mut().unwrap().remove("kid");
    assert_eq!(file(&apart).unwrap().len(), 5);

    let pem = fixture("p256.pub.pem");
    assert_eq!(KeySet::from_file(&pem.repeat(4), ALL).unwrap().len(), 4);
    let said = KeySet::from_file(&pem.repeat(5), ALL).unwrap_err();
    assert!(
        said.to_string()
            .starts_with("5 keys for ES256 without a kid"),
        "{said}"
    );
}

#[test]
fn secrets() {
    let said = |bytes: &[u8]| KeySet::from_secret(bytes).map(|set| set.len());
    assert_eq!(said(&[b'x'; 32]), Ok(1));
    assert_eq!(said(&[b'x'; 31]), Err(BadKeys::ShortSecret(31)));
    assert_eq!(
        said(&[&[b'x'; 31][..], b"\r\n"].concat()),
        Err(BadKeys::ShortSecret(31)),
        "a line end is no part of it"
    );
    assert_eq!(said(b""), Err(BadKeys::ShortSecret(0)));
    let jwks = DevelopmentKey::generate("ES256")
        .unwrap()
        .jwks()
        .to_string();
    for public in [fixture("rsa-2048.pub.pem"), fixture("ca.pem"), jwks] {
        assert_eq!(said(public.as_bytes()), Err(BadKeys::PublicSecret));
    }
}

/// RFC 7638 section 3.1 has the thumbprint of an RSA key; ours are checked with the same rule.
#[test]
fn keys_for_development() {
    for algorithm in ["ES256", "ES384", "EdDSA"] {
        let key = DevelopmentKey::generate(algorithm).unwrap();
        assert_eq!(key.algorithm(), algorithm);
        let again = DevelopmentKey::from_pem(&key.to_pem()).unwrap();
        assert_eq!(again.jwks(), key.jwks());
        assert_eq!(key.kid().len(), 43, "SHA-256 in base64url");
        assert!(!format!("{key:?}").contains(key.kid()));
        assert!(key.jwks()["keys"][0].get("d").is_none());
    }
    for wrong in ["", "none", "HS256", "RS256", "es256"] {
        assert_eq!(
            DevelopmentKey::generate(wrong).unwrap_err(),
            MintError::Algorithm
        );
    }
    for wrong in [
        "",
        "hello",
        &fixture("rsa-2048.pub.pem"),
        &fixture("ca.pem"),
    ] {
        assert_eq!(DevelopmentKey::from_pem(wrong).unwrap_err(), MintError::Key);
    }
}

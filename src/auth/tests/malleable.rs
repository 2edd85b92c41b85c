//! The arithmetic of signatures: what a changed signature of the right form may do. Signatures whose numbers are out of
//! range, or points that are none, must not hold; keys that would let them hold must not be taken.

use super::*;

use jsonwebtoken::DecodingKey;

/// The order of P-256 (SEC 2 section 2.4.2).
const P256_ORDER: &str = "ffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551";
/// The order of P-384 (SEC 2 section 2.5.1).
const P384_ORDER: &str = "ffffffffffffffffffffffffffffffffffffffffffffffffc7634d81f4372ddf581a0db248b0a77aecec196accc52973";
/// L of Ed25519 (RFC 8032 section 5.1), big-endian.
const ED_ORDER: &str = "1000000000000000000000000000000014def9dea2f79cd65812631a5cf5d3ed";

/// a + b or a - b of the same length, big-endian; the carry is lost.
fn combine(a: &[u8], b: &[u8], plus: bool) -> Vec<u8> {
    let mut out = vec![0; a.len()];
    let mut carry = 0_i16;
    for at in (0..a.len()).rev() {
        let b = i16::from(b[at]);
        let sum = i16::from(a[at]) + if plus { b } else { -b } + carry;
        out[at] = sum.rem_euclid(256) as u8;
        carry = sum.div_euclid(256);
    }
    out
}

fn backwards(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().rev().copied().collect()
}

/// What a good token of issuer A signs, and its signature.
async fn token(world: &World, algorithm: Algorithm) -> (String, Vec<u8>) {
    let key = world.key(algorithm);
    let token = signed(
        key,
        algorithm,
        &header(algorithm, key).to_string(),
        &claims_of(A).to_string(),
    );
    assert_eq!(world.ask(&token).await.unwrap().id, "alice");
    let (text, signature) = token.rsplit_once('.').unwrap();
    (text.to_owned(), URL_SAFE_NO_PAD.decode(signature).unwrap())
}

/// A public key that is taken for a shared secret lets everybody sign (RFC 8725 section 2.1). An issuer's keys are asked
/// before whether they fit; this says the same of each one.
#[test]
fn a_key_is_none_for_an_algorithm_of_another_family() {
    use super::super::crypto::{sign, verifies};
    let (key, hmac) = ([4; 65], Algorithm::HS256);
    let signature = sign(hmac, &EncodingKey::from_secret(&key), "text").unwrap();
    let secret = DecodingKey::from_secret(&key);
    assert!(verifies(hmac, &secret, "text", &signature));
    for public in [
        DecodingKey::from_ec_der(&key),
        DecodingKey::from_ed_der(&key),
        DecodingKey::from_rsa_der(&key),
    ] {
        assert!(!verifies(hmac, &public, "text", &signature));
    }
    assert!(sign(hmac, &EncodingKey::from_ec_der(&key), "text").is_err());
}

#[tokio::test]
async fn ecdsa() {
    let world = World::new().await;
    for (algorithm, order, width) in [
        (Algorithm::ES256, P256_ORDER, 32),
        (Algorithm::ES384, P384_ORDER, 48),
    ] {
        let order = hex::decode(order).unwrap();
        let (text, signature) = token(&world, algorithm).await;
        let (r, s) = signature.split_at(width);
        let zero = vec![0; width];
        let mut one = zero.clone();
        one[width - 1] = 1;
        let full = vec![0xff; width];
        let der = {
            let int = |n: &[u8]| [&[2, width as u8 + 1, 0], n].concat();
            let body = [int(r), int(s)].concat();
            [&[0x30, body.len() as u8], body.as_slice()].concat()
        };
        let mut attacks: Vec<(String, Vec<u8>)> = Vec::new();
        let numbers: [(&str, &[u8]); 6] = [
            ("0", &zero),
            ("1", &one),
            ("n", &order),
            ("2^k-1", &full),
            ("r", r),
            ("s", s),
        ];
        for (name_r, r) in numbers {
            for (name_s, s) in numbers {
                if (name_r, name_s) != ("r", "s") {
                    attacks.push((format!("({name_r}, {name_s})"), [r, s].concat()));
                }
            }
        }
        attacks.extend([
            (
                "(-r, s)".to_owned(),
                [&combine(&order, r, false), s].concat(),
            ),
            ("(r + n, s)".into(), [&combine(r, &order, true), s].concat()),
            ("(r, s + n)".into(), [r, &combine(s, &order, true)].concat()),
            ("a byte less".into(), signature[1..].to_vec()),
            (
                "a zero before".into(),
                [&[0], signature.as_slice()].concat(),
            ),
            (
                "a zero behind".into(),
                [signature.as_slice(), &[0]].concat(),
            ),
            ("twice".into(), [signature.as_slice(), &signature].concat()),
            ("r alone".into(), r.to_vec()),
            ("DER".into(), der),
            (
                "of the other curve's length".into(),
                vec![1; if width == 32 { 96 } else { 64 }],
            ),
        ]);
        for (name, attack) in &attacks {
            let token = format!("{text}.{}", URL_SAFE_NO_PAD.encode(attack));
            assert!(world.ask(&token).await.is_err(), "{algorithm:?} {name}");
        }
        println!("{algorithm:?}: {} attacks, 0 taken", attacks.len());

        // (r, n - s) is a signature of the same text by definition, and half of all signers give that one: ECDSA has
        // no other way to say it (RFC 7518 section 3.4 asks for no low s). It is the same claims for the same caller:
        // nothing here goes by the bytes of a token.
        let other = [r, &combine(&order, s, false)].concat();
        let token = format!("{text}.{}", URL_SAFE_NO_PAD.encode(other));
        assert_eq!(world.ask(&token).await.unwrap().id, "alice");
    }
}

#[tokio::test]
async fn eddsa() {
    let world = World::new().await;
    let (text, signature) = token(&world, Algorithm::EdDSA).await;
    let (r, s) = signature.split_at(32);
    let order = hex::decode(ED_ORDER).unwrap();
    let beyond = |times: usize| {
        let mut s = backwards(s);
        for _ in 0..times {
            s = combine(&s, &order, true);
        }
        backwards(&s)
    };
    let mut identity = vec![0; 32];
    identity[0] = 1;
    let zero = vec![0; 32];
    let mut sign_bit = r.to_vec();
    sign_bit[31] ^= 0x80;
    let mut attacks = vec![
        ("(R, 0)", [r, &zero].concat()),
        ("(0, s)", [&zero, s].concat()),
        ("(0, 0)", [zero.clone(), zero.clone()].concat()),
        ("(identity, 0)", [&identity, zero.as_slice()].concat()),
        ("(identity, s)", [&identity, s].concat()),
        ("(R, L)", [r, &backwards(&order)].concat()),
        ("(R with the other sign, s)", [&sign_bit, s].concat()),
        ("a byte less", signature[..63].to_vec()),
        ("a byte more", [signature.as_slice(), &[0]].concat()),
        ("all ones", vec![0xff; 64]),
    ];
    // Up to 15 times: what fits into 256 bits (RFC 8032 section 5.1.7 asks for s < L).
    attacks.extend((1..=15).map(|times| ("(R, s + kL)", [r, &beyond(times)].concat())));
    for point in SMALL_ORDER {
        let point = hex::decode(point).unwrap();
        attacks.push(("(R of small order, 0)", [&point, zero.as_slice()].concat()));
        attacks.push(("(R of small order, s)", [&point, s].concat()));
    }
    for (name, attack) in &attacks {
        let token = format!("{text}.{}", URL_SAFE_NO_PAD.encode(attack));
        assert!(world.ask(&token).await.is_err(), "{name}");
    }
    println!("EdDSA: {} attacks, 0 taken", attacks.len());
}

#[tokio::test]
async fn rsa() {
    let world = World::new().await;
    let n = {
        let jwks = world.rsa.jwks();
        let n = jwks["keys"][0]["n"].as_str().unwrap().to_owned();
        URL_SAFE_NO_PAD.decode(n).unwrap()
    };
    for algorithm in [Algorithm::RS256, Algorithm::PS256] {
        let (text, signature) = token(&world, algorithm).await;
        let mut one = vec![0; n.len()];
        one[n.len() - 1] = 1;
        let mut attacks = vec![
            ("0", vec![0; n.len()]),
            ("1", one.clone()),
            ("n", n.clone()),
            ("n - 1", combine(&n, &one, false)),
            ("n - s", combine(&n, &signature, false)),
            ("s + n", combine(&signature, &n, true)),
            ("a zero before", [&[0], signature.as_slice()].concat()),
            ("a zero behind", [signature.as_slice(), &[0]].concat()),
            ("a byte less", signature[1..].to_vec()),
            ("all ones", vec![0xff; n.len()]),
            // What is encrypted to itself by exponent 1: the padded hash.
            ("the padded message", padded(&text, n.len())),
        ];
        let extended = [&[1], combine(&signature, &n, true).as_slice()].concat();
        attacks.push(("s + n with its carry", extended));
        for (name, attack) in &attacks {
            let token = format!("{text}.{}", URL_SAFE_NO_PAD.encode(attack));
            assert!(world.ask(&token).await.is_err(), "{algorithm:?} {name}");
        }
        println!("{algorithm:?}: {} attacks, 0 taken", attacks.len());
    }
}

/// EMSA-PKCS1-v1_5 with SHA-256 (RFC 8017 section 9.2).
fn padded(text: &str, length: usize) -> Vec<u8> {
    use sha2::{Digest, Sha256};
    let info = hex::decode("3031300d060960864801650304020105000420").unwrap();
    let tail = [info, Sha256::digest(text.as_bytes()).to_vec()].concat();
    let mut out = vec![0xff; length - tail.len()];
    (out[0], out[1]) = (0, 1);
    let last = out.len() - 1;
    out[last] = 0;
    out.extend(tail);
    out
}

/// Encodings of the points whose order divides 8, canonical or not, as libsodium's `ge25519_has_small_order` and "Taming
/// the many EdDSAs" (2020), table 2, list them.
pub(super) const SMALL_ORDER: [&str; 14] = [
    "0100000000000000000000000000000000000000000000000000000000000000",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "0000000000000000000000000000000000000000000000000000000000000080",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
    "0100000000000000000000000000000000000000000000000000000000000080",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
];

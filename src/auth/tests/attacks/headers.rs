//! What a header asks for: algorithms, keys, extensions.

use super::*;

/// RFC 8725 section 2.1: the algorithm that the token names.
pub(super) fn algorithms(world: &World) -> Vec<Attack> {
    let mut table = Vec::new();
    let good = world.good();
    let signature = good.rsplit_once('.').unwrap().1;
    for alg in [
        "none",
        "None",
        "NONE",
        "nOnE",
        "NoNe",
        "none ",
        " none",
        "",
        "null",
        "es256",
        "Es256",
        "ES256 ",
        "ES256\0",
        "ES256K",
        "ES512",
        "HS1",
        "RS1",
        "RS256,ES256",
        "A128KW",
        "RSA-OAEP",
        "dir",
        "Ed25519",
        "Ed448",
        "EDDSA",
        "ML-DSA-65",
        "*",
        "\u{0395}S256",
    ] {
        let header = json!({ "alg": alg, "kid": world.p256.kid(), "typ": "JWT" }).to_string();
        let text = unsigned(header.as_bytes(), claims_of(A).to_string().as_bytes());
        table.push(attack(
            format!("alg {alg:?} with a signature"),
            "algorithm",
            {
                signed(
                    &world.p256,
                    Algorithm::ES256,
                    &header,
                    &claims_of(A).to_string(),
                )
            },
        ));
        table.push(attack(
            format!("alg {alg:?}, empty signature"),
            "malformed",
            format!("{text}."),
        ));
        table.push(attack(
            format!("alg {alg:?}, another token's signature"),
            "algorithm",
            format!("{text}.{signature}"),
        ));
    }
    for value in [
        json!(null),
        json!(1),
        json!(["ES256"]),
        json!({}),
        json!(true),
    ] {
        let name = format!("alg is {value}");
        table.push(attack(name, "malformed", world.member("alg", value)));
    }
    table.push(attack("no alg", "malformed", {
        world.with(|header, _| {
            header.as_object_mut().unwrap().remove("alg");
        })
    }));
    table.push(attack("ALG instead of alg", "malformed", {
        world.with(|header, _| {
            header.as_object_mut().unwrap().remove("alg");
            header["ALG"] = "ES256".into();
        })
    }));
    table
}

/// Each algorithm's signature under each other name, and public keys as secrets.
pub(super) fn confusion(world: &World) -> Vec<Attack> {
    let mut table = Vec::new();
    for made in ASYMMETRIC {
        for said in ASYMMETRIC.into_iter().filter(|said| *said != made) {
            for (which, kid) in [
                ("its", world.key(said).kid()),
                ("the other", world.key(made).kid()),
            ] {
                // The same key for both: once is enough.
                if which == "its" && world.key(said).kid() == world.key(made).kid() {
                    continue;
                }
                let header = json!({ "alg": format!("{said:?}"), "kid": kid, "typ": "JWT" });
                table.push(attack(
                    format!("made with {made:?}, says {said:?}, {which} key"),
                    "signature",
                    signed(
                        world.key(made),
                        made,
                        &header.to_string(),
                        &claims_of(A).to_string(),
                    ),
                ));
            }
        }
    }
    let pem = fixture("rsa-2048.pub.pem");
    let jwk = world.rsa.jwks();
    let n = URL_SAFE_NO_PAD
        .decode(jwk["keys"][0]["n"].as_str().unwrap())
        .unwrap();
    let der = pem
        .lines()
        .filter(|line| !line.starts_with('-'))
        .collect::<String>();
    let der = base64::engine::general_purpose::STANDARD
        .decode(der)
        .unwrap();
    let secrets: [(&str, Vec<u8>); 10] = [
        ("PEM", pem.clone().into_bytes()),
        (
            "PEM without its last line end",
            pem.trim_end().as_bytes().to_vec(),
        ),
        ("PEM with CRLF", pem.replace('\n', "\r\n").into_bytes()),
        ("PEM without lines", pem.replace('\n', "").into_bytes()),
        ("DER", der),
        ("modulus", n),
        ("JWKS", jwk.to_string().into_bytes()),
        ("JWK", jwk["keys"][0].to_string().into_bytes()),
        ("no bytes", Vec::new()),
        ("\"secret\"", b"secret".to_vec()),
    ];
    for (name, secret) in secrets {
        for alg in ["HS256", "HS384", "HS512"] {
            let header = json!({ "alg": alg, "kid": world.rsa.kid(), "typ": "JWT" }).to_string();
            table.push(attack(
                format!("{alg} with the public key as a secret: {name}"),
                "algorithm",
                by_secret(&secret, &header, &claims_of(A).to_string()),
            ));
        }
        let header = json!({ "alg": "RS256", "kid": world.rsa.kid(), "typ": "JWT" }).to_string();
        table.push(attack(
            format!("says RS256, is an HMAC by {name}"),
            "signature",
            by_secret(&secret, &header, &claims_of(A).to_string()),
        ));
        table.push(attack(
            format!("to the issuer with a secret, with another one: {name}"),
            "signature",
            by_secret(&secret, r#"{"alg":"HS256"}"#, &claims_of(C).to_string()),
        ));
    }
    table
}

/// `kid`: it is looked up among the keys of the issuer, and nowhere else.
pub(super) fn names_of_keys(world: &World) -> Vec<Attack> {
    let mut table = Vec::new();
    let long = "k".repeat(257);
    for (kid, reason) in [
        (json!("../../../../dev/null"), "signature"),
        (json!("/dev/null"), "signature"),
        (json!("' OR 1=1 --"), "signature"),
        (json!("x' UNION SELECT 'key"), "signature"),
        (json!("$(touch /tmp/x)"), "signature"),
        (json!("http://169.254.169.254/keys"), "signature"),
        (json!("\u{0}"), "signature"),
        (json!(""), "signature"),
        (json!("unknown"), "signature"),
        (json!(world.p256.kid().to_lowercase()), "signature"),
        (json!(format!("{} ", world.p256.kid())), "signature"),
        (json!(world.b.kid()), "signature"),
        (json!(world.rsa.kid()), "signature"),
        (json!(world.p384.kid()), "signature"),
        (json!(long), "malformed"),
        (json!(null), "malformed"),
        (json!(0), "malformed"),
        (json!([world.p256.kid()]), "malformed"),
        (json!({ "kid": world.p256.kid() }), "malformed"),
        (json!(true), "malformed"),
    ] {
        let mut name = format!("kid {kid}");
        name.truncate(60);
        table.push(attack(name, reason, world.member("kid", kid)));
    }
    let stranger = |kid: Option<&str>| {
        let mut header = header(Algorithm::ES256, &world.stranger);
        match kid {
            Some(kid) => header["kid"] = kid.into(),
            None => drop(header.as_object_mut().unwrap().remove("kid")),
        }
        signed(
            &world.stranger,
            Algorithm::ES256,
            &header.to_string(),
            &claims_of(A).to_string(),
        )
    };
    table.push(attack(
        "a stranger's key, its own kid",
        "signature",
        stranger(Some(world.stranger.kid())),
    ));
    table.push(attack(
        "a stranger's key, our kid",
        "signature",
        stranger(Some(world.p256.kid())),
    ));
    table.push(attack(
        "a stranger's key, no kid",
        "signature",
        stranger(None),
    ));
    table
}

/// Keys that a token brings itself (RFC 8725 section 3.10), and what must be understood.
pub(super) fn headers(world: &World) -> Vec<Attack> {
    let mut table = Vec::new();
    let jwk = world.stranger.jwks()["keys"][0].clone();
    let mut as_ours = jwk.clone();
    as_ours["kid"] = world.p256.kid().into();
    for (name, value) in [
        ("jwk", jwk.clone()),
        ("jwk", as_ours),
        ("jku", json!("https://evil.example/keys")),
        ("jku", json!("file:///tmp/keys")),
        ("x5u", json!("https://evil.example/certificate")),
        ("x5c", json!(["MIIB"])),
        ("x5t", json!("AAAA")),
        ("x5t#S256", json!("AAAA")),
        ("keys", json!([jwk])),
    ] {
        for kid in [world.stranger.kid(), world.p256.kid()] {
            let mut header = header(Algorithm::ES256, &world.p256);
            header["kid"] = kid.into();
            header[name] = value.clone();
            table.push(attack(
                format!("a stranger's signature with {name}, kid {kid}"),
                "signature",
                signed(
                    &world.stranger,
                    Algorithm::ES256,
                    &header.to_string(),
                    &claims_of(A).to_string(),
                ),
            ));
        }
    }
    for (name, value) in [
        ("crit", json!([])),
        ("crit", json!(["x"])),
        ("crit", json!(["exp"])),
        ("crit", json!(["alg"])),
        ("crit", json!(["b64"])),
        ("crit", json!("exp")),
        ("crit", json!(null)),
        ("crit", json!(false)),
        ("b64", json!(false)),
        ("b64", json!(true)),
        ("b64", json!(null)),
        ("zip", json!("DEF")),
        ("cty", json!("JWT")),
        ("cty", json!("jwt")),
        ("cty", json!("json")),
        ("enc", json!("A128GCM")),
    ] {
        let title = format!("{name} is {value}");
        table.push(attack(title, "malformed", world.member(name, value)));
    }
    table.push(attack("crit and b64, as RFC 7797 has them", "malformed", {
        world.with(|header, _| {
            header["crit"] = json!(["b64"]);
            header["b64"] = json!(false);
        })
    }));
    table
}

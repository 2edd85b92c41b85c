//! How a token is written: what two readers could read differently, and whose key signs for whom.

use super::*;

/// Members that are there twice: the check and its user could see different ones.
pub(super) fn twice(world: &World) -> Vec<Attack> {
    let mut table = Vec::new();
    let (head, body) = (
        header(Algorithm::ES256, &world.p256).to_string(),
        claims_of(A).to_string(),
    );
    let more = |text: &str, first: bool, member: &str| {
        if first {
            text.replacen('{', &format!("{{{member},"), 1)
        } else {
            format!("{},{member}}}", text.strip_suffix('}').unwrap())
        }
    };
    for first in [true, false] {
        let place = if first { "before" } else { "after" };
        for member in [
            r#""iss":"https://evil.example""#,
            r#""aud":"other""#,
            r#""aud":"skillgate""#,
            r#""exp":9999999999"#,
            r#""sub":"root""#,
            r#""tenant":"other""#,
            r#""roles":["admin"]"#,
            r#""nbf":0"#,
            r#""iat":0"#,
            r#""\u0069ss":"https://evil.example""#,
            r#""t\u0065nant":"other""#,
            r#""x":{"a":1,"a":2}"#,
            r#""x":[{"a":1,"\u0061":2}]"#,
        ] {
            let claims = more(&body, first, member);
            table.push(attack(
                format!("claim {member} {place}"),
                "malformed",
                world.text(&head, &claims),
            ));
        }
        for member in [
            r#""alg":"none""#,
            r#""alg":"ES256""#,
            r#""\u0061lg":"none""#,
            r#""kid":"other""#,
            r#""typ":"at+jwt""#,
            r#""x":{"a":1,"a":2}"#,
        ] {
            let header = more(&head, first, member);
            table.push(attack(
                format!("header {member} {place}"),
                "malformed",
                world.text(&header, &body),
            ));
        }
    }
    table
}

/// Other shapes than three parts with an object in the first two.
pub(super) fn forms(world: &World) -> Vec<Attack> {
    let good = world.good();
    let (text, signature) = good.rsplit_once('.').unwrap();
    let (head, body) = text.split_once('.').unwrap();
    let flattened =
        json!({ "protected": head, "payload": body, "signature": signature }).to_string();
    let general =
        json!({ "payload": body, "signatures": [{ "protected": head, "signature": signature }] })
            .to_string();
    let long = "x".repeat(1 << 20);
    let mut table: Vec<Attack> = [
        ("nothing", ""),
        ("a dot", "."),
        ("two dots", ".."),
        ("three dots", "..."),
        ("a word", "token"),
        ("null", "null"),
        ("undefined", "undefined"),
        ("two parts", text),
        ("two parts and a dot", &format!("{text}.")),
        ("no header", &format!(".{body}.{signature}")),
        ("no claims", &format!("{head}..{signature}")),
        ("four parts", &format!("{good}.x")),
        ("a dot behind", &format!("{good}.")),
        ("a dot before", &format!(".{good}")),
        (
            "five parts, as if encrypted",
            &format!("{head}.x.x.{body}.{signature}"),
        ),
        ("a doubled dot", &format!("{head}..{body}.{signature}")),
        ("twice in a row", &format!("{good},{good}")),
        ("twice with a space", &format!("{good} {good}")),
        ("in quotes", &format!("\"{good}\"")),
        ("in angles", &format!("<{good}>")),
        ("Bearer twice", &format!("Bearer {good}")),
        ("JSON, flattened", &flattened),
        ("JSON, general", &general),
        ("swapped parts", &format!("{body}.{head}.{signature}")),
        ("a NUL behind", &format!("{good}\0")),
        ("a megabyte", &long),
        ("a megabyte of dots", &".".repeat(1 << 20)),
        (
            "a megabyte with three parts",
            &format!("{head}.{long}.{signature}"),
        ),
    ]
    .into_iter()
    .map(|(name, token)| attack(name, "malformed", token.to_owned()))
    .collect();

    let claims = claims_of(A).to_string();
    let header = header(Algorithm::ES256, &world.p256).to_string();
    let deep = format!(r#"{{"x":{}1{}}}"#, "[".repeat(200), "]".repeat(200));
    let nested = format!("\"{good}\"");
    for (name, text) in [
        ("empty", ""),
        ("null", "null"),
        ("a number", "1"),
        ("a list", "[]"),
        ("a token in a string", &nested),
        ("a list of the object", &format!("[{claims}]")),
        ("cut off", &claims[..claims.len() - 1]),
        ("two objects", &format!("{claims}{claims}")),
        ("something behind", &format!("{claims}x")),
        ("a NUL behind", &format!("{claims}\0")),
        ("a BOM", &format!("\u{feff}{claims}")),
        ("a comment", &format!("/**/{claims}")),
        ("single quotes", &claims.replace('"', "'")),
        ("a lone surrogate", &claims.replace("alice", "\\ud800")),
        ("too deep", &deep),
        (
            "a control character",
            &claims.replace("alice", "al\u{1}ice"),
        ),
        ("a comma too many", &claims.replace('}', ",}")),
    ] {
        table.push(attack(
            format!("claims: {name}"),
            "malformed",
            world.text(&header, text),
        ));
        table.push(attack(
            format!("header: {name}"),
            "malformed",
            world.text(text, &claims),
        ));
    }
    let latin = unsigned(
        header.as_bytes(),
        &claims
            .replace("alice", "al\u{e9}")
            .chars()
            .map(|c| c as u8)
            .collect::<Vec<_>>(),
    );
    let signature = world.p256.sign(Algorithm::ES256, &latin);
    table.push(attack(
        "claims in latin-1",
        "malformed",
        format!("{latin}.{signature}"),
    ));
    let wide: Vec<u8> = claims.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let wide = unsigned(header.as_bytes(), &wide);
    let signature = world.p256.sign(Algorithm::ES256, &wide);
    table.push(attack(
        "claims in UTF-16",
        "malformed",
        format!("{wide}.{signature}"),
    ));
    // Good in all but its length: one byte too many, and the longest that a claim can make it.
    let of_length = |wanted: usize| {
        (0..9000)
            .rev()
            .map(|pad| {
                world.with(|header, claims| {
                    header["pad"] = "h".repeat(pad % 4).into();
                    claims["pad"] = "p".repeat(pad).into();
                })
            })
            .find(|token| token.len() <= wanted)
            .unwrap()
    };
    table.push(attack(
        "too long by a little",
        "malformed",
        of_length(8192 + 4).clone(),
    ));
    table
}

/// base64url in one spelling (RFC 7515 section 2; RFC 4648 section 3.5).
pub(super) fn encodings(world: &World) -> Vec<Attack> {
    let mut table = Vec::new();
    // Parts whose last character has bits to spare, and a signature with both characters of the other alphabet.
    let good = (0..)
        .map(|i| world.claim("jti", json!("x".repeat(i % 3) + &i.to_string())))
        .find(|token| {
            let parts: Vec<&str> = token.split('.').collect();
            !parts[1].len().is_multiple_of(4) && parts[2].contains('-') && parts[2].contains('_')
        })
        .unwrap();
    let parts: Vec<String> = good.split('.').map(str::to_owned).collect();
    let join = |at: usize, part: String| {
        let mut parts = parts.clone();
        parts[at] = part;
        parts.join(".")
    };
    for (at, name) in ["header", "claims", "signature"].into_iter().enumerate() {
        let part = &parts[at];
        let half = part.len() / 2;
        for (what, other) in [
            ("padding", format!("{part}=")),
            ("more padding", format!("{part}==")),
            ("too much padding", format!("{part}====")),
            (
                "a space inside",
                format!("{} {}", &part[..half], &part[half..]),
            ),
            (
                "a line end inside",
                format!("{}\n{}", &part[..half], &part[half..]),
            ),
            ("a tab behind", format!("{part}\t")),
            ("CRLF behind", format!("{part}\r\n")),
            (
                "a NUL inside",
                format!("{}\0{}", &part[..half], &part[half..]),
            ),
            ("a percent sign", format!("{part}%3D")),
            ("a letter that is none", format!("{part}\u{e4}")),
            ("a dash before", format!("+{part}")),
        ] {
            table.push(attack(
                format!("{name} with {what}"),
                "malformed",
                join(at, other),
            ));
        }
    }
    table.push(attack("signature in the other alphabet", "malformed", {
        join(2, parts[2].replace('-', "+").replace('_', "/"))
    }));
    // The last character of a part of 86 (64 bytes) has four bits to spare, that of the claims two or four.
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    for (at, name) in [(1, "claims"), (2, "signature")] {
        let (front, last) = parts[at].split_at(parts[at].len() - 1);
        let value = ALPHABET
            .iter()
            .position(|c| *c == last.as_bytes()[0])
            .unwrap();
        for spare in 1..4 {
            let other = format!("{front}{}", char::from(ALPHABET[value ^ spare]));
            table.push(attack(
                format!("{name} with spare bits {spare}"),
                "malformed",
                join(at, other),
            ));
        }
    }
    for length in [1, 40, 84, 85] {
        let reason = if length % 4 == 1 {
            "malformed"
        } else {
            "signature"
        };
        // A cut can leave bits to spare: what counts is that it is refused.
        let cut =
            URL_SAFE_NO_PAD.encode(&URL_SAFE_NO_PAD.decode(&parts[2]).unwrap()[..length * 3 / 4]);
        let cut = if length % 4 == 1 {
            parts[2][..length].to_owned()
        } else {
            cut
        };
        table.push(attack(
            format!("signature cut to {length} characters"),
            reason,
            join(2, cut),
        ));
    }
    // A bit of each part: the signature is of every byte of the text.
    for seed in 0..24 {
        let mut bytes = URL_SAFE_NO_PAD.decode(&parts[2]).unwrap();
        bytes[(seed * 37) % 64] ^= 1 << (seed % 8);
        table.push(attack(
            format!("a bit of the signature, {seed}"),
            "signature",
            join(2, URL_SAFE_NO_PAD.encode(bytes)),
        ));
    }
    for (name, old, new) in [
        ("subject", "alice", "malic"),
        ("tenant", "acme", "evil"),
        ("role", "author", "admins"),
    ] {
        let claims = String::from_utf8(URL_SAFE_NO_PAD.decode(&parts[1]).unwrap()).unwrap();
        let claims = URL_SAFE_NO_PAD.encode(claims.replace(old, new));
        table.push(attack(
            format!("another {name} under the same signature"),
            "signature",
            join(1, claims),
        ));
    }
    let other = world.claim("sub", json!("bob"));
    let other: Vec<&str> = other.split('.').collect();
    table.push(attack(
        "another token's claims",
        "signature",
        join(1, other[1].to_owned()),
    ));
    table.push(attack(
        "another token's signature",
        "signature",
        join(2, other[2].to_owned()),
    ));
    table
}

/// One issuer's keys for another's tokens (RFC 8725 section 3.8).
pub(super) fn issuers(world: &World) -> Vec<Attack> {
    let mut table = Vec::new();
    let mut cross = |name: &str, reason, key: &DevelopmentKey, kid: &str, iss: &str| {
        let mut header = header(Algorithm::ES256, key);
        header["kid"] = kid.into();
        header["typ"] = "at+jwt".into();
        let claims = claims_of(iss).to_string();
        table.push(attack(
            name,
            reason,
            signed(key, Algorithm::ES256, &header.to_string(), &claims),
        ));
    };
    let (a, b) = (&world.p256, &world.b);
    cross("B's key for A, its own kid", "signature", b, b.kid(), A);
    cross("B's key for A, A's kid", "signature", b, a.kid(), A);
    cross("A's key for B, its own kid", "signature", a, a.kid(), B);
    cross("A's key for B, B's kid", "signature", a, b.kid(), B);
    cross("A's key for C", "algorithm", a, a.kid(), C);
    cross(
        "A's key for nobody",
        "issuer",
        a,
        a.kid(),
        "https://d.example",
    );
    for issuer in [A, B] {
        table.push(attack(
            format!("C's secret for {issuer}"),
            "algorithm",
            by_secret(
                SECRET.as_bytes(),
                r#"{"alg":"HS256","typ":"at+jwt"}"#,
                &claims_of(issuer).to_string(),
            ),
        ));
    }
    for tenant in ["acme", "Beta", "beta2", "default"] {
        let name = format!("B speaks for the tenant {tenant}");
        table.push(attack(
            name,
            "tenant",
            of_b(world, |_, claims| claims["tenant"] = tenant.into()),
        ));
    }
    table.push(attack("B's tenant is null, not absent", "claim", {
        of_b(world, |_, claims| claims["tenant"] = Value::Null)
    }));
    let header = header(Algorithm::EdDSA, &world.ed).to_string();
    table.push(attack("an algorithm that B may not use", "algorithm", {
        signed(
            &world.ed,
            Algorithm::EdDSA,
            &header,
            &claims_of(B).to_string(),
        )
    }));
    table
}

//! What a token claims: times, names, and what it is for.

use super::*;

/// `exp`, `nbf`, `iat`: types, limits, arithmetic.
pub(super) fn times(world: &World) -> Vec<Attack> {
    let mut table = Vec::new();
    for claim in ["exp", "nbf", "iat"] {
        for value in [
            json!(null),
            json!(true),
            json!(""),
            json!((NOW + 300).to_string()),
            json!("2027-01-15T08:00:00Z"),
            json!([NOW + 300]),
            json!({ "$date": NOW }),
            json!(-1),
            json!(i64::MIN),
            json!(1.5),
            json!((NOW as f64) + 0.5),
            json!(1e308),
            json!(253_402_300_800_u64),
            json!(i64::MAX),
            json!(u64::MAX),
        ] {
            let name = format!("{claim} is {value}");
            table.push(attack(name, "claim", world.claim(claim, value)));
        }
        for (value, reason) in [
            // 2^64, and what wraps to a moment within the next hour.
            ("18446744073709551616", "claim"),
            ("18446744075509551916", "claim"),
            ("-18446744073709551616", "claim"),
            ("1.8e9", "claim"),
            ("18e8", "claim"),
            ("1800000300.0", "claim"),
            ("-0", "claim"),
            ("-0.0", "claim"),
            ("1e400", "malformed"),
            ("NaN", "malformed"),
            ("Infinity", "malformed"),
            ("0x6b49d200", "malformed"),
            ("+1800000300", "malformed"),
            ("01800000300", "malformed"),
            ("1_800_000_300", "malformed"),
            (".5", "malformed"),
        ] {
            table.push(attack(
                format!("{claim} is written {value}"),
                reason,
                world.raw_claim(claim, value),
            ));
        }
    }
    for exp in [0, 1, NOW - 300, NOW - LEEWAY - 1, NOW - LEEWAY] {
        table.push(attack(
            format!("exp is {exp}"),
            "expired",
            world.claim("exp", json!(exp)),
        ));
    }
    for time in [NOW + LEEWAY + 1, NOW + 250, 253_402_300_799] {
        for claim in ["nbf", "iat"] {
            table.push(attack(
                format!("{claim} is {time}"),
                "not_yet_valid",
                world.claim(claim, json!(time)),
            ));
        }
    }
    table.push(attack("iat after exp", "claim", {
        world.with(|_, claims| {
            claims["iat"] = json!(NOW + 20);
            claims["exp"] = json!(NOW + 10);
        })
    }));
    table.push(attack("no exp", "claim", {
        world.with(|_, claims| {
            claims.as_object_mut().unwrap().remove("exp");
        })
    }));
    table.push(attack("Exp instead of exp", "claim", {
        world.with(|_, claims| {
            let exp = claims.as_object_mut().unwrap().remove("exp");
            claims["Exp"] = exp.unwrap();
        })
    }));
    table
}

/// `iss`, `aud`, `sub`: exactly what is configured, and of the right type.
pub(super) fn names(world: &World) -> Vec<Attack> {
    let mut table = Vec::new();
    for value in [
        json!(null),
        json!(1),
        json!([A]),
        json!({ "iss": A }),
        json!(true),
        json!(""),
        json!("https://a.example/"),
        json!("https://A.example"),
        json!("HTTPS://a.example"),
        json!("http://a.example"),
        json!("https://a.example:443"),
        json!(" https://a.example"),
        json!("https://a.example "),
        json!("https://a.example#"),
        json!("https://a.example?"),
        json!("https://a.exampl"),
        json!("https://a.example.evil.example"),
        json!("a.example"),
        json!("https://\u{0430}.example"),
        json!("https://a.example\u{0}"),
        json!("*"),
        json!("https://evil.example"),
    ] {
        table.push(attack(
            format!("iss is {value}"),
            "issuer",
            world.claim("iss", value),
        ));
    }
    for (value, reason) in [
        (json!(""), "audience"),
        (json!("Skillgate"), "audience"),
        (json!("SKILLGATE"), "audience"),
        (json!("skillgat"), "audience"),
        (json!("skillgatee"), "audience"),
        (json!(" skillgate"), "audience"),
        (json!("skillgate "), "audience"),
        (json!("skillgate/"), "audience"),
        (json!("another"), "audience"),
        (json!("skillgate other"), "audience"),
        (json!("skillgate,other"), "audience"),
        (json!("*"), "audience"),
        (json!("skillg\u{0430}te"), "audience"),
        (json!("skillgate\u{0}"), "audience"),
        (json!([]), "audience"),
        (json!(["other"]), "audience"),
        (json!(["Skillgate", "skill", "gate"]), "audience"),
        (json!(null), "claim"),
        (json!(1), "claim"),
        (json!(true), "claim"),
        (json!({ "skillgate": 1 }), "claim"),
        (json!([["skillgate"]]), "claim"),
        (json!(["skillgate", 1]), "claim"),
        (json!(["skillgate", null]), "claim"),
        (json!([{ "aud": "skillgate" }]), "claim"),
        (json!(["skillgate", ["other"]]), "claim"),
    ] {
        table.push(attack(
            format!("aud is {value}"),
            reason,
            world.claim("aud", value),
        ));
    }
    for value in [
        json!(null),
        json!(1),
        json!([]),
        json!(["alice"]),
        json!({ "id": "alice" }),
        json!(true),
        json!(""),
        json!(" alice"),
        json!("alice "),
        json!("al\u{0}ice"),
        json!("al\nice"),
        json!("al\u{202e}ice"),
        json!("\u{0430}lice"),
        json!("a".repeat(256)),
    ] {
        let mut name = format!("sub is {value}");
        name.truncate(60);
        table.push(attack(name, "claim", world.claim("sub", value)));
    }
    for (claim, reason) in [
        ("iss", "issuer"),
        ("aud", "claim"),
        ("sub", "claim"),
        ("tenant", "claim"),
    ] {
        table.push(attack(format!("no {claim}"), reason, {
            world.with(|_, claims| {
                claims.as_object_mut().unwrap().remove(claim);
            })
        }));
        table.push(attack(format!("{claim} in capitals"), reason, {
            world.with(|_, claims| {
                let value = claims.as_object_mut().unwrap().remove(claim);
                claims[claim.to_uppercase()] = value.unwrap();
            })
        }));
    }
    table
}

/// What the mapping reads: a claim of another type is no claim that is absent.
pub(super) fn mapped(world: &World) -> Vec<Attack> {
    let mut table = Vec::new();
    for value in [
        json!(null),
        json!(1),
        json!(true),
        json!([]),
        json!(["acme"]),
        json!({ "id": "acme" }),
        json!(""),
        json!(" acme"),
        json!("acme "),
        json!("../acme"),
        json!(".."),
        json!(".acme"),
        json!("*"),
        json!("a/b"),
        json!("a\\b"),
        json!("a b"),
        json!("acme\n"),
        json!("acme\u{0}"),
        json!("\u{0430}cme"),
        json!("%2e%2e"),
        json!("-acme"),
        json!("a".repeat(129)),
        json!("acme;drop"),
        json!("acme\u{200b}"),
    ] {
        let mut name = format!("tenant is {value}");
        name.truncate(60);
        table.push(attack(name, "claim", world.claim("tenant", value)));
    }
    for claim in ["roles", "groups", "scope", "scp"] {
        for value in [
            json!(null),
            json!(1),
            json!(true),
            json!({ "admin": true }),
            json!([1]),
            json!([null]),
            json!([["admin"]]),
            json!([""]),
            json!(["admin\n"]),
            json!(["r".repeat(257)]),
            json!(["author", { "role": "admin" }]),
        ] {
            let mut name = format!("{claim} is {value}");
            name.truncate(60);
            table.push(attack(name, "claim", world.claim(claim, value)));
        }
    }
    let nested = world.claim("realm_access", json!({ "roles": "admin\u{7f}" }));
    table.push(attack(
        "a control character in a nested role",
        "claim",
        nested,
    ));
    for value in [
        json!(null),
        json!("bob"),
        json!({}),
        json!({ "sub": 1 }),
        json!({ "sub": "" }),
    ] {
        table.push(attack(
            format!("act is {value}"),
            "claim",
            world.claim("act", value),
        ));
    }
    table
}

/// Tokens that are meant for something else (RFC 8725 section 3.11 and 3.12).
pub(super) fn kinds(world: &World) -> Vec<Attack> {
    let mut table = Vec::new();
    for typ in [
        "dpop+jwt",
        "id+jwt",
        "secevent+jwt",
        "logout+jwt",
        "token-introspection+jwt",
        "rt+jwt",
        "JOSE",
        "JWE",
        "at+jwt+x",
        "application/json",
        "application/at+jwt; x=y",
        "",
        " JWT",
        "JWT ",
        "at jwt",
        "at%2Bjwt",
        "application/application/at+jwt",
        "text/at+jwt",
    ] {
        table.push(attack(
            format!("typ {typ:?}"),
            "not_an_access_token",
            world.member("typ", json!(typ)),
        ));
    }
    for typ in [json!(null), json!(1), json!(["JWT"]), json!({})] {
        table.push(attack(
            format!("typ is {typ}"),
            "malformed",
            world.member("typ", typ),
        ));
    }
    table.push(attack("no typ", "not_an_access_token", {
        world.with(|header, _| {
            header.as_object_mut().unwrap().remove("typ");
        })
    }));
    for claim in ["nonce", "at_hash", "c_hash", "s_hash"] {
        table.push(attack(
            format!("an ID token with {claim}"),
            "not_an_access_token",
            world.claim(claim, json!("n")),
        ));
        table.push(attack(
            format!("an ID token with {claim}, by secret and without typ"),
            "not_an_access_token",
            of_c(|_, claims| claims[claim] = json!("n")),
        ));
    }
    for (claim, value) in [
        ("typ", json!("ID")),
        ("typ", json!("Refresh")),
        ("typ", json!("Offline")),
        ("typ", json!("Logout")),
        ("typ", json!("JWT")),
        ("typ", json!("")),
        ("typ", json!(1)),
        ("typ", json!(null)),
        ("typ", json!(["Bearer"])),
        ("token_use", json!("id")),
        ("token_use", json!("refresh")),
        ("token_use", json!(null)),
    ] {
        let name = format!("claim {claim} is {value}");
        table.push(attack(
            name,
            "not_an_access_token",
            world.claim(claim, value),
        ));
    }
    for value in [
        json!({ "jkt": "x" }),
        json!({ "x5t#S256": "x" }),
        json!({}),
        json!(null),
        json!("x"),
    ] {
        table.push(attack(
            format!("cnf is {value}"),
            "bound",
            world.claim("cnf", value),
        ));
    }
    table.push(attack(
        "JWT where only at+jwt is taken",
        "not_an_access_token",
        of_b(world, |header, _| header["typ"] = "JWT".into()),
    ));
    for (claim, value) in [
        ("client_id", json!("another")),
        ("client_id", json!(["good-client"])),
        ("client_id", json!(null)),
        ("client_id", json!("Good-Client")),
        ("azp", json!("another")),
        ("cid", json!("another")),
    ] {
        let name = format!("{claim} is {value}");
        table.push(attack(
            name,
            "client",
            of_b(world, |_, claims| claims[claim] = value),
        ));
    }
    table.push(attack("no client_id, no azp and no cid", "client", {
        of_b(world, |_, claims| {
            drop(claims.as_object_mut().unwrap().remove("client_id"))
        })
    }));
    table
}

//! Tokens that must not be taken, each with the reason that must be the one: a token that is refused for another one
//! than was meant would prove nothing. The sources are RFC 8725, RFC 7515, and what has been found in other
//! implementations; `malleable.rs` has the arithmetic of signatures.

use super::*;

mod claimed;
mod headers;
mod written;

/// An attack: what it is called, why it must fail, and the value of `Authorization` after `Bearer `.
type Attack = (String, &'static str, String);

#[tokio::test]
async fn the_table_of_attacks() {
    let world = World::new().await;
    // First what is good, or else the table would pass for a gateway that takes nothing.
    for algorithm in ASYMMETRIC {
        let key = world.key(algorithm);
        let (header, claims) = (header(algorithm, key).to_string(), claims_of(A).to_string());
        let token = signed(key, algorithm, &header, &claims);
        let subject = world.ask(&token).await;
        assert_eq!(subject.unwrap().id, "alice", "{algorithm:?}");
    }
    assert_eq!(
        world.ask(&of_b(&world, |_, _| ())).await.unwrap().tenant,
        "beta"
    );
    assert_eq!(world.ask(&of_c(|_, _| ())).await.unwrap().tenant, "acme");
    for client in ["azp", "cid"] {
        let token = of_b(&world, |_, claims| {
            claims[client] = claims["client_id"].take();
            drop(claims.as_object_mut().unwrap().remove("client_id"));
        });
        assert!(world.ask(&token).await.is_ok(), "{client}");
    }

    // Who marks access tokens, in one of the ways that there are, has marked this one.
    for (claim, word) in [
        ("typ", "Bearer"),
        ("typ", "at+JWT"),
        ("token_use", "access"),
    ] {
        let token = world.claim(claim, json!(word));
        assert!(world.ask(&token).await.is_ok(), "{claim} is {word}");
    }
    // So has the typ of RFC 9068, whatever an ID token has as well.
    for claim in ["nonce", "at_hash", "c_hash", "s_hash"] {
        let token = world.with(|header, claims| {
            header["typ"] = "at+jwt".into();
            claims[claim] = json!("n");
        });
        assert!(world.ask(&token).await.is_ok(), "{claim}");
    }

    let mut attacks = Vec::new();
    for table in [
        headers::algorithms(&world),
        headers::confusion(&world),
        headers::names_of_keys(&world),
        headers::headers(&world),
        claimed::times(&world),
        claimed::names(&world),
        claimed::mapped(&world),
        claimed::kinds(&world),
        written::twice(&world),
        written::forms(&world),
        written::encodings(&world),
        written::issuers(&world),
    ] {
        attacks.extend(table);
    }
    let (mut taken, mut otherwise) = (Vec::new(), Vec::new());
    let mut seen = std::collections::HashSet::new();
    for (name, reason, token) in &attacks {
        assert!(seen.insert(token), "there twice: {name}");
        match world.ask_why(token).await {
            None => taken.push(name),
            Some(why) if why == *reason => {}
            Some(why) => otherwise.push(format!("{name}: {why}, expected {reason}")),
        }
    }
    println!("{} attacks, {} taken", attacks.len(), taken.len());
    assert!(taken.is_empty(), "taken: {taken:#?}");
    assert!(otherwise.is_empty(), "for another reason: {otherwise:#?}");
    assert!(attacks.len() >= 300, "{}", attacks.len());
}

impl World {
    /// Why a token is refused, if it is.
    async fn ask_why(&self, token: &str) -> Option<&'static str> {
        let mode = self.auth.0.mode.load_full();
        let Mode::Jwt(jwt) = &*mode else {
            panic!("no tokens here");
        };
        let refused = jwt.verifier.verify(token).await.err()?;
        // What is told has nothing of the token in it and fits into one line.
        let told = refused.to_string();
        assert!(told.len() < 200 && !told.contains('\n'), "{told}");
        Some(refused.reason())
    }

    fn claim(&self, name: &str, value: Value) -> String {
        self.with(|_, claims| claims[name] = value)
    }

    fn member(&self, name: &str, value: Value) -> String {
        self.with(|header, _| header[name] = value)
    }

    /// A claim whose value is not even made by a JSON library.
    fn raw_claim(&self, name: &str, value: &str) -> String {
        let mut claims = claims_of(A);
        claims[name] = "@".into();
        let text = claims.to_string().replace("\"@\"", value);
        self.text(&header(Algorithm::ES256, &self.p256).to_string(), &text)
    }
}

fn of_b(world: &World, change: impl FnOnce(&mut Value, &mut Value)) -> String {
    let (mut header, mut claims) = (header(Algorithm::ES256, &world.b), claims_of(B));
    header["typ"] = "at+jwt".into();
    claims["tenant"] = "beta".into();
    claims["client_id"] = "good-client".into();
    change(&mut header, &mut claims);
    signed(
        &world.b,
        Algorithm::ES256,
        &header.to_string(),
        &claims.to_string(),
    )
}

fn of_c(change: impl FnOnce(&mut Value, &mut Value)) -> String {
    let (mut header, mut claims) = (json!({ "alg": "HS256" }), claims_of(C));
    change(&mut header, &mut claims);
    by_secret(SECRET.as_bytes(), &header.to_string(), &claims.to_string())
}

fn attack(name: impl Into<String>, reason: &'static str, token: String) -> Attack {
    (name.into(), reason, token)
}

//! Who a token is for, and how long it is kept.

use super::*;
use crate::telemetry::logged::Log;

#[tokio::test]
async fn what_policies_see_of_a_token() {
    let world = World::new().await;
    let token = world.with(|header, claims| {
        header["typ"] = "application/AT+JWT".into();
        *claims = json!({
            "iss": A, "aud": ["account", AUDIENCE], "sub": "auth0|7", "tenant": "acme-2.eu_x", "exp": NOW + 60,
            "roles": ["author", "author"], "realm_access": { "roles": ["viewer", "author"] },
            "groups": "/Sales EMEA", "scope": "skills  runs", "scp": ["blobs", "runs"],
            "client_id": "agent", "act": { "sub": "agent:crm", "act": { "sub": "x" } },
            "amr": ["mfa"], "org": { "unit": 7 }, "org.unit": 8, "email": "alice@example.com",
        });
    });
    let subject = world.ask(&token).await.unwrap();
    let Subject {
        authenticated,
        kind,
        id,
        tenant,
        issuer,
        roles,
        groups,
        scopes,
        claims,
        actor,
        expires_s,
        accepted_until_s,
        signed: _,
    } = &*subject;
    assert!(*authenticated);
    assert_eq!(
        (*kind, id.as_str(), tenant.as_str()),
        ("user", "auth0|7", "acme-2.eu_x")
    );
    assert_eq!((issuer.as_str(), *expires_s), (A, Some(NOW + 60)));
    assert_eq!(*accepted_until_s, Some(NOW + 60 + LEEWAY));
    assert_eq!(roles, &["author", "viewer"], "joined, each once");
    assert_eq!(groups, &["/Sales EMEA"], "a name may have spaces");
    assert_eq!(scopes, &["skills", "runs", "blobs"]);
    assert_eq!(actor.as_ref().unwrap().id, "agent:crm");
    assert_eq!(
        Value::Object(claims.clone()),
        json!({ "amr": ["mfa"], "org.unit": 7 }),
        "what is on the list and nothing else"
    );
}

/// A record of it must be a line that can be read again.
#[tokio::test]
async fn what_policies_see_is_not_nested_deeply() {
    let nested = |levels: usize| {
        (0..levels).fold(json!("x"), |inside, level| match level % 2 {
            0 => json!([1, inside]),
            _ => json!({ "a": null, "b": inside }),
        })
    };
    let world = World::new().await;
    for levels in [0, 1, 16] {
        let token = world.with(|_, claims| claims["org"] = json!({ "unit": nested(levels) }));
        let subject = world.ask(&token).await.unwrap();
        assert_eq!(subject.claims["org.unit"], nested(levels));
    }
    for levels in [17, 120] {
        let token = world.with(|_, claims| claims["amr"] = nested(levels));
        let refusal = world.ask(&token).await.unwrap_err();
        assert_eq!(
            refusal.message,
            "the token's amr is not what it must be: lists and objects within each other at most 16 levels deep"
        );
        // What nobody sees may be as it is.
        let token = world.with(|_, claims| claims["other"] = nested(levels));
        assert!(world.ask(&token).await.is_ok());
    }
}

/// An integer beyond 64 bits is read as a double, and so is the one beside it.
#[tokio::test]
async fn what_policies_see_is_not_rounded() {
    let world = World::new().await;
    let number = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    for good in [
        "18446744073709551615",
        "-9223372036854775808",
        "0.5",
        "-1e18",
    ] {
        let token = world.with(|_, claims| claims["org"] = json!({ "unit": [number(good)] }));
        let subject = world.ask(&token).await.unwrap();
        assert_eq!(subject.claims["org.unit"], json!([number(good)]));
    }
    for bad in ["18446744073709551616", "-9223372036854775809", "1e19"] {
        let token = world.with(|_, claims| claims["amr"] = json!([{ "a": number(bad) }]));
        let refusal = world.ask(&token).await.unwrap_err();
        assert_eq!(
            refusal.message,
            "the token's amr is not what it must be: without numbers beyond 64 bits, of which rules would see rounded ones: as a text it can be long"
        );
        let token = world.with(|_, claims| claims["other"] = number(bad));
        assert!(world.ask(&token).await.is_ok());
    }
}

#[tokio::test]
async fn services_act_for_themselves() {
    let world = World::new().await;
    for (claim, value) in [
        ("client_id", "alice"),
        ("azp", "alice"),
        ("cid", "alice"),
        ("idtyp", "app"),
    ] {
        let token = world.with(|_, claims| claims[claim] = value.into());
        assert_eq!(world.ask(&token).await.unwrap().kind, "service", "{claim}");
    }
    assert_eq!(world.ask(&world.good()).await.unwrap().kind, "user");
}

/// Whatever claim names the caller: others may be what a user has written himself.
#[test]
fn a_service_is_one_by_its_sub() {
    let subject = |claims: Value| {
        let mapping = mapping(r#"{ subject = ["preferred_username", "sub"] }"#);
        mapping.subject(A, claims.as_object().unwrap(), 1).unwrap()
    };
    for client in ["client_id", "azp", "cid"] {
        let user = subject(json!({ "sub": "7", "preferred_username": "agent", client: "agent" }));
        assert_eq!((user.id.as_str(), user.kind), ("agent", "user"), "{client}");
        let app = subject(json!({ "sub": "agent", "preferred_username": "bot", client: "agent" }));
        assert_eq!((app.id.as_str(), app.kind), ("bot", "service"), "{client}");
    }
}

/// `auth.issuers.claims` as they would be written.
fn mapping(claims: &str) -> super::super::claims::Mapping {
    let text = format!(
        "auth.mode = \"jwt\"\n[[auth.issuers]]\nissuer = \"{A}\"\naudiences = [\"x\"]\ndiscovery = true\nalgorithms = [\"ES256\"]\n\
         default_tenant = \"fallback\"\nclaims = {claims}\n"
    );
    super::super::claims::Mapping::new(&configuration(&text).unwrap().auth.issuers[0])
}

#[test]
fn claims_are_found_where_the_configuration_says() {
    let subject = |claims: &str, of: Value| mapping(claims).subject(A, of.as_object().unwrap(), 1);
    let both = json!({ "sub": "s", "upn": "u", "tid": "t", "org": { "id": "o" } });
    let found = |mapping: &str| {
        let subject = subject(mapping, both.clone()).unwrap();
        format!("{} {}", subject.id, subject.tenant)
    };
    assert_eq!(found("{}"), "s fallback");
    assert_eq!(
        found(r#"{ subject = ["email", "upn", "sub"] }"#),
        "u fallback"
    );
    assert_eq!(found(r#"{ tenant = ["tenant", "tid"] }"#), "s t");
    assert_eq!(found(r#"{ tenant = "org.id" }"#), "s o");
    assert_eq!(
        found(r#"{ tenant = "sub.id" }"#),
        "s fallback",
        "text has no members"
    );

    let named = subject(
        r#"{ roles = "https://example.com/roles" }"#,
        json!({ "sub": "s", "https://example": { "com/roles": "wrong" }, "https://example.com/roles": ["right"] }),
    );
    assert_eq!(named.unwrap().roles, ["right"]);
    // The first that is there counts, even when it is not what it must be: the next one is not its substitute.
    let wrong = subject(
        r#"{ tenant = ["tid", "tenant"] }"#,
        json!({ "sub": "s", "tid": 7, "tenant": "acme" }),
    );
    assert_eq!(wrong.unwrap_err().reason(), "claim");
    assert_eq!(
        subject(r#"{ subject = "upn" }"#, json!({ "sub": "s" }))
            .unwrap_err()
            .reason(),
        "claim"
    );
}

#[tokio::test]
async fn times_have_the_leeway_of_the_configuration() {
    let world = World::new().await;
    let asked = |exp: u64, nbf: u64| {
        let token = world.with(|_, claims| {
            claims["exp"] = json!(exp);
            claims["nbf"] = json!(nbf);
            claims["iat"] = json!(nbf);
        });
        let world = &world;
        async move {
            world
                .ask(&token)
                .await
                .map(|_| ())
                .map_err(|refusal| refusal.message)
        }
    };
    // A token without iat and nbf is good (RFC 7519 section 4.1).
    let plain = world.with(|_, claims| {
        for claim in ["iat", "nbf"] {
            claims.as_object_mut().unwrap().remove(claim);
        }
    });
    assert!(world.ask(&plain).await.is_ok());
    assert_eq!(asked(NOW + 1, NOW).await, Ok(()));
    assert_eq!(asked(NOW + 100, NOW + LEEWAY).await, Ok(()));
    assert!(asked(NOW + 100, NOW + LEEWAY + 1).await.is_err());
    assert_eq!(asked(NOW - LEEWAY + 1, 0).await, Ok(()));
    assert!(asked(NOW - LEEWAY, 0).await.is_err());
    assert_eq!(asked(253_402_300_799, 0).await, Ok(()));
}

#[tokio::test]
async fn a_token_that_was_verified_ends_in_time() {
    let world = World::new().await;
    let token = world.with(|_, claims| claims["exp"] = json!(NOW + 100));
    let first = world.ask(&token).await.unwrap();
    assert!(
        Arc::ptr_eq(&first, &world.ask(&token).await.unwrap()),
        "from the cache"
    );
    world.hands.pass(99);
    assert!(Arc::ptr_eq(&first, &world.ask(&token).await.unwrap()));
    world.hands.pass(1);
    let again = world.ask(&token).await.unwrap();
    assert!(
        !Arc::ptr_eq(&first, &again),
        "at exp the leeway holds, the cache does not"
    );
    world.hands.pass(LEEWAY);
    let refusal = world.ask(&token).await.unwrap_err();
    assert_eq!(refusal.message, "the token has expired; get a new one");
}

/// Expiry is seen where a call begins, not only where its request did.
#[tokio::test]
async fn a_caller_expires_on_its_way() {
    let world = World::new().await;
    let bearer = HeaderValue::from_str(&format!("Bearer {}", world.good())).unwrap();
    let headers = HeaderMap::from_iter([(header::AUTHORIZATION, bearer)]);
    let caller = world.auth.authenticate(&headers, None, IP).await.unwrap();
    assert_eq!(caller.lapsed(), None);
    world.hands.pass(300 + LEEWAY - 1);
    assert_eq!(caller.lapsed(), None, "as long as the token would be taken");
    world.hands.pass(1);
    assert_eq!(caller.lapsed(), Some(Lapsed::Expired));
    assert!(world.auth.authenticate(&headers, None, IP).await.is_err());
    assert_eq!(world.auth.local().lapsed(), None);
}

/// In 1970 no token would have expired that says nothing but when it will.
#[tokio::test]
async fn a_clock_that_is_not_set_lets_nobody_in() {
    let world = World::new().await;
    let token = world.with(|_, claims| {
        let claims = claims.as_object_mut().unwrap();
        claims.retain(|name, _| name != "iat" && name != "nbf");
    });
    let bearer = HeaderValue::from_str(&format!("Bearer {token}")).unwrap();
    let headers = HeaderMap::from_iter([(header::AUTHORIZATION, bearer)]);
    let caller = world.auth.authenticate(&headers, None, IP).await.unwrap();
    let (log, _here) = Log::begin();
    world.hands.unset(true);
    for _ in 0..2 {
        let refusal = world.ask(&token).await.unwrap_err();
        assert_eq!(refusal.status, StatusCode::SERVICE_UNAVAILABLE);
        let about = "this server's clock is not set";
        assert!(refusal.message.starts_with(about), "{}", refusal.message);
        let wait = (header::RETRY_AFTER, HeaderValue::from(30));
        assert_eq!(refusal.headers, [wait]);
        assert_eq!(caller.lapsed(), Some(Lapsed::ClockUnset));
        assert!(!world.auth.tells_time());
    }
    let said = log.taken();
    assert_eq!(said.matches("clock is not set").count(), 1, "{said}");
    world.hands.unset(false);
    assert!(world.ask(&token).await.is_ok());
    assert_eq!(caller.lapsed(), None);
    assert!(world.auth.tells_time() && Authenticator::off().tells_time());
}

#[tokio::test]
async fn the_longest_token() {
    let world = World::new().await;
    // Four characters of base64 for three bytes, so that two members of different parts reach every length.
    let of_length = |wanted: usize| {
        (0..4)
            .flat_map(|head| (5800..6000).map(move |pad| (head, pad)))
            .map(|(head, pad)| {
                world.with(|header, claims| {
                    header["pad"] = "h".repeat(head).into();
                    claims["pad"] = "p".repeat(pad).into();
                })
            })
            .find(|token| token.len() == wanted)
            .unwrap()
    };
    assert!(world.ask(&of_length(8192)).await.is_ok());
    let refusal = world.ask(&of_length(8193)).await.unwrap_err();
    assert_eq!(refusal.message, "the token is longer than 8192 bytes");
}

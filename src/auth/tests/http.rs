//! What is taken from a request's head, and what is answered to one that is not let in.

use super::super::challenge::Challenge;
use super::*;
use crate::server::full;

use tower::service_fn;

/// A request through the layer: the caller below it, or the refusal.
async fn through(
    auth: &Authenticator,
    uri: &str,
    headers: &[(&'static str, &str)],
) -> Result<(String, bool), Refusal> {
    const OPEN: &[&str] = &["/livez", "/open/"];
    let layer = AuthLayer {
        authenticator: auth.clone(),
        open: OPEN,
        metrics: Metrics::default(),
    };
    let seen = Arc::new(std::sync::Mutex::new((String::new(), false)));
    let below = seen.clone();
    let service = layer.layer(service_fn(move |request: Authenticated| {
        let id = request.caller.subject().id.clone();
        let has_token = request
            .request
            .headers()
            .contains_key(header::AUTHORIZATION);
        *below.lock().unwrap() = (id, has_token);
        async { Ok(Response::new(full("in"))) }
    }));
    let mut request = Request::builder()
        .uri(uri)
        .header("host", "gate.example:8080");
    for (name, value) in headers {
        request = request.header(*name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
    }
    let named = Named {
        request_id: RequestId::new(),
        request: request.body(full("")).unwrap(),
    };
    service.oneshot(named).await?;
    let seen = seen.lock().unwrap();
    Ok(seen.clone())
}

fn challenge(refusal: &Refusal) -> String {
    refusal
        .headers
        .iter()
        .find(|(name, _)| name == header::WWW_AUTHENTICATE)
        .map(|(_, value)| value.to_str().unwrap().to_owned())
        .unwrap_or_default()
}

const METADATA: &str =
    "resource_metadata=\"http://gate.example:8080/.well-known/oauth-protected-resource\"";

#[tokio::test]
async fn the_one_header_that_is_taken() {
    let world = World::new().await;
    let good = world.good();
    for header in [
        format!("Bearer {good}"),
        format!("bearer {good}"),
        format!("BEARER  {good}"),
    ] {
        let (id, has_token) = through(&world.auth, "/rpc", &[("authorization", &header)])
            .await
            .unwrap();
        assert_eq!(id, "alice");
        assert!(!has_token, "nothing below sees the token");
    }
    let good = good.as_str();
    let bearer = format!("Bearer {good}");
    type Case<'a> = (&'a str, &'a [(&'static str, &'a str)], u16, &'a str);
    let cases: [Case<'_>; 20] = [
        ("/rpc", &[], 401, "unauthenticated"),
        (
            &format!("/rpc?access_token={good}"),
            &[],
            401,
            "unauthenticated",
        ),
        (
            &format!("/rpc?x=1&access_token={good}"),
            &[],
            401,
            "unauthenticated",
        ),
        (&format!("/rpc?token={good}"), &[], 401, "unauthenticated"),
        (
            "/rpc",
            &[("authorization", &bearer), ("authorization", &bearer)],
            400,
            "bad_request",
        ),
        (
            "/rpc",
            &[("authorization", &bearer), ("authorization", "Bearer x")],
            400,
            "bad_request",
        ),
        (
            "/rpc",
            &[("authorization", "Bearer x"), ("authorization", &bearer)],
            400,
            "bad_request",
        ),
        (
            "/rpc",
            &[
                ("authorization", "Basic YWxpY2U6"),
                ("authorization", &bearer),
            ],
            400,
            "bad_request",
        ),
        (
            "/rpc",
            &[("authorization", &format!("Bearer {good}\u{e9}"))],
            400,
            "bad_request",
        ),
        ("/rpc", &[("authorization", "")], 401, "unauthenticated"),
        (
            "/rpc",
            &[("authorization", "Bearer")],
            401,
            "unauthenticated",
        ),
        ("/rpc", &[("authorization", good)], 401, "unauthenticated"),
        (
            "/rpc",
            &[("authorization", &format!("Token {good}"))],
            401,
            "unauthenticated",
        ),
        (
            "/rpc",
            &[("authorization", &format!("Basic {good}"))],
            401,
            "unauthenticated",
        ),
        (
            "/rpc",
            &[("authorization", &format!("DPoP {good}"))],
            401,
            "unauthenticated",
        ),
        (
            "/rpc",
            &[("authorization", &format!("Bearer: {good}"))],
            401,
            "unauthenticated",
        ),
        (
            "/rpc",
            &[("authorization", &format!("Bearer\t{good}"))],
            401,
            "unauthenticated",
        ),
        (
            "/rpc",
            &[("authorization", &format!("{bearer}, {bearer}"))],
            401,
            "unauthenticated",
        ),
        (
            "/rpc",
            &[
                ("proxy-authorization", &bearer),
                ("x-authorization", &bearer),
            ],
            401,
            "unauthenticated",
        ),
        (
            "/rpc",
            &[(
                "cookie",
                &format!("access_token={good}; Authorization={bearer}"),
            )],
            401,
            "unauthenticated",
        ),
    ];
    for (uri, headers, status, kind) in cases {
        let refusal = through(&world.auth, uri, headers).await.unwrap_err();
        assert_eq!(
            (refusal.status.as_u16(), refusal.kind),
            (status, kind),
            "{uri:.40} {headers:?}"
        );
        let told = challenge(&refusal);
        assert!(
            told.starts_with("Bearer ") && told.ends_with(METADATA),
            "{told}"
        );
        assert!(!told.contains(good) && !refusal.message.contains(good));
    }
}

/// RFC 6750 section 3, RFC 9728 section 5.1.
#[tokio::test]
async fn challenges() {
    let world = World::new().await;
    let ask = |token: String| {
        let auth = world.auth.clone();
        async move {
            let header = format!("Bearer {token}");
            through(&auth, "/rpc", &[("authorization", &header)])
                .await
                .unwrap_err()
        }
    };
    let nothing = through(&world.auth, "/rpc", &[]).await.unwrap_err();
    assert_eq!(
        challenge(&nothing),
        format!("Bearer {METADATA}"),
        "who has sent nothing gets no error code"
    );
    let in_url = through(&world.auth, "/rpc?a=b&access_token=x", &[]).await;
    assert_eq!(
        challenge(&in_url.unwrap_err()),
        format!(
            "Bearer error=\"invalid_request\", error_description=\"a token in the URL is not taken; \
             send the header 'Authorization: Bearer <token>'\", {METADATA}"
        )
    );
    let expired = ask(world.with(|_, claims| claims["exp"] = json!(NOW - 100))).await;
    assert_eq!(
        challenge(&expired),
        format!(
            "Bearer error=\"invalid_token\", error_description=\"the token has expired; get a new one\", {METADATA}"
        )
    );
    assert_eq!(
        (expired.status.as_u16(), expired.kind),
        (401, "unauthenticated")
    );

    // Whoever tries learns no more of a known kid than of an unknown one, or of a wrong signature.
    let good = world.good();
    let cut = good.rsplit_once('.').unwrap().0;
    let told = [
        ask(world.with(|header, _| header["kid"] = "unknown".into())).await,
        ask(format!("{cut}.{}", URL_SAFE_NO_PAD.encode([1; 64]))).await,
        ask(signed(
            &world.stranger,
            Algorithm::ES256,
            &header(Algorithm::ES256, &world.p256).to_string(),
            "{\"iss\":\"https://a.example\"}",
        ))
        .await,
    ];
    assert!(
        told.iter().all(|refusal| refusal.message == told[0].message
            && challenge(refusal) == challenge(&told[0]))
    );
    // And nothing of claims that nobody vouches for.
    let unsigned = world.with(|_, claims| claims["aud"] = "other".into());
    let unsigned = format!(
        "{}.{}",
        unsigned.rsplit_once('.').unwrap().0,
        URL_SAFE_NO_PAD.encode([1; 64])
    );
    assert_eq!(ask(unsigned).await.message, told[0].message);
}

#[tokio::test]
async fn open_paths_are_for_anybody_and_make_nobody_somebody() {
    let world = World::new().await;
    let bearer = format!("Bearer {}", world.good());
    for uri in ["/livez", "/livez?verbose", "/open/", "/open/x"] {
        for headers in [
            &[] as &[_],
            &[("authorization", bearer.as_str())],
            &[("authorization", "Bearer x")],
        ] {
            let (id, _) = through(&world.auth, uri, headers).await.unwrap();
            assert_eq!(id, "", "{uri}");
        }
    }
    for uri in [
        "/livez/",
        "/livez/x",
        "/LIVEZ",
        "//livez",
        "/%6civez",
        "/livez%00",
        "/open",
        "/opener",
        "/",
        "/rpc/../livez",
    ] {
        assert!(through(&world.auth, uri, &[]).await.is_err(), "{uri}");
    }
    let nobody = &world.auth.0.nobody;
    assert!(!nobody.authenticated && nobody.tenant.is_empty() && nobody.roles.is_empty());

    let off = Authenticator::off();
    assert_eq!(through(&off, "/rpc", &[]).await.unwrap().0, "local");
    assert_eq!(off.metadata(&HeaderMap::new()), None);
}

#[tokio::test]
async fn scopes_that_everybody_needs_and_the_name_of_the_resource() {
    let dir = tempfile::tempdir().unwrap();
    let key = DevelopmentKey::generate("EdDSA").unwrap();
    let path = dir.path().join("keys.json");
    std::fs::write(&path, key.jwks().to_string()).unwrap();
    let text = format!(
        "[auth]\nmode = \"jwt\"\nresource = \"https://gate.example.com/rpc/\"\nrequired_scopes = [\"skills\", \"runs:make\"]\n\
         [[auth.issuers]]\nissuer = \"{A}\"\naudiences = [\"{AUDIENCE}\"]\nalgorithms = [\"EdDSA\"]\njwks_file = {path:?}\n"
    );
    let config = configuration(&text).unwrap();
    let auth = Authenticator::new(prepare(&config, Hands::default().clock()).await.unwrap());
    let ask = |scope: Value| {
        let mut claims = claims_of(A);
        claims["scope"] = scope;
        let token = key.token(claims.as_object().unwrap()).unwrap();
        let auth = auth.clone();
        async move {
            through(
                &auth,
                "/rpc",
                &[("authorization", &format!("Bearer {token}"))],
            )
            .await
        }
    };
    assert!(ask(json!("other runs:make skills")).await.is_ok());
    for scope in [
        json!(""),
        json!("skills"),
        json!("skill runs:make"),
        json!("skills,runs:make"),
        json!([]),
    ] {
        let refusal = ask(scope.clone()).await.unwrap_err();
        assert_eq!(
            (refusal.status, refusal.kind),
            (StatusCode::FORBIDDEN, "insufficient_scope"),
            "{scope}"
        );
        assert_eq!(
            challenge(&refusal),
            "Bearer error=\"insufficient_scope\", error_description=\"the token lacks a required scope\", \
             scope=\"skills runs:make\", \
             resource_metadata=\"https://gate.example.com/.well-known/oauth-protected-resource/rpc/\""
        );
    }
    let metadata = auth.metadata(&HeaderMap::new()).unwrap();
    assert_eq!(
        serde_json::from_str::<Value>(&metadata).unwrap(),
        json!({
            "resource": "https://gate.example.com/rpc/", "authorization_servers": [A], "resource_name": "skillgate",
            "bearer_methods_supported": ["header"], "scopes_supported": ["skills", "runs:make"],
        })
    );
}

/// RFC 9728 sections 2 and 3.1.
#[test]
fn a_list_of_no_scopes_is_left_out_and_so_is_a_slash_that_only_ends_the_host() {
    for (resource, path) in [
        ("https://gate.example.com", ""),
        ("https://gate.example.com/", ""),
        ("https://gate.example.com/rpc", "/rpc"),
        ("https://gate.example.com/rpc/", "/rpc/"),
    ] {
        let challenge = Challenge {
            resource: Some(resource.to_owned()),
            ..Challenge::default()
        };
        let headers = HeaderMap::new();
        let (_, told) = challenge.expired("", &headers);
        let url = format!("https://gate.example.com/.well-known/oauth-protected-resource{path}");
        let told = told.to_str().unwrap();
        assert!(told.ends_with(&format!("=\"{url}\"")), "{told}");
        let document: Value = serde_json::from_str(&challenge.metadata(&headers)).unwrap();
        assert_eq!(document["resource"], resource);
        assert_eq!(document.get("scopes_supported"), None);
    }
}

/// It was good when the request came.
#[tokio::test]
async fn a_token_that_expires_under_way_is_challenged_like_one_that_has() {
    let world = World::new().await;
    let bearer = format!("Bearer {}", world.good());
    let answer = |auth: &Authenticator, status| {
        let layer = AuthLayer {
            authenticator: auth.clone(),
            open: &[],
            metrics: Metrics::default(),
        };
        let below = service_fn(move |_: Authenticated| async move {
            Err::<Response<Body>, _>(Refusal::new(status, "a_kind", "get a \"new\" one"))
        });
        let request = Request::builder()
            .header("host", "gate.example:8080")
            .header("authorization", &bearer)
            .body(full(""));
        layer.layer(below).oneshot(Named {
            request_id: RequestId::new(),
            request: request.unwrap(),
        })
    };
    let refusal = answer(&world.auth, StatusCode::UNAUTHORIZED)
        .await
        .unwrap_err();
    assert_eq!(
        challenge(&refusal),
        format!(
            "Bearer error=\"invalid_token\", error_description=\"get a 'new' one\", {METADATA}"
        )
    );
    assert_eq!(refusal.kind, "a_kind");
    let other = answer(&world.auth, StatusCode::FORBIDDEN)
        .await
        .unwrap_err();
    assert_eq!(challenge(&other), "");
    let off = answer(&Authenticator::off(), StatusCode::UNAUTHORIZED)
        .await
        .unwrap_err();
    assert_eq!(challenge(&off), "", "nobody is asked for a token");
}

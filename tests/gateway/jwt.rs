//! Tokens, black box: the real program asked over HTTP by good and bad callers. The whole table of attacks is beside the
//! code (`src/auth/tests`); here is a sample of it, and what only the whole program can show.

use std::path::Path;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value, json};
use skillgate::auth::DevelopmentKey;

use crate::alone;
use crate::operator::{metrics, value};
use crate::policy::policy_in;
use crate::stopping::SLEEPS;
use crate::support::eventually;
use crate::support::gateway::{Gateway, House, Settings};
use crate::support::http::{Answer, Client};
use crate::swap::reload;

const ISSUER: &str = "http://localhost/dev";
pub(crate) const LIST: &[u8] =
    br#"{"jsonrpc":"2.0","id":1,"method":"list_skills","params":{"limit":1}}"#;

pub(crate) fn now_s() -> u64 {
    let now = std::time::SystemTime::now();
    now.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs()
}

pub(crate) fn claims(subject: &str, tenant: &str) -> Map<String, Value> {
    let now = now_s();
    let Value::Object(claims) = json!({
        "iss": ISSUER, "aud": "skillgate", "sub": subject, "tenant": tenant, "roles": ["admin"],
        "iat": now, "exp": now + 600,
    }) else {
        panic!("an object");
    };
    claims
}

/// `[auth]` for one issuer whose keys are at `source`.
pub(crate) fn auth(source: &str, algorithms: &str) -> String {
    format!(
        "[auth]\nmode = \"jwt\"\n[[auth.issuers]]\nissuer = \"{ISSUER}\"\naudiences = [\"skillgate\"]\n{source}\n\
         algorithms = {algorithms}\n"
    )
}

/// A house for tokens of this key, whose policy knows these tenants; and the sections that its configuration needs for it.
pub(crate) fn house_of(key: &DevelopmentKey, tenants: &[&str]) -> (House, String) {
    let house = House::new(Settings::default());
    let jwks = house.path().join("jwks.json");
    std::fs::write(&jwks, key.jwks().to_string()).unwrap();
    policy_in(&house, |data| {
        for tenant in tenants {
            data["tenants"][tenant] = json!({ "source_cidrs": [], "limits": {} });
        }
    });
    let auth = auth(&format!("jwks_file = {jwks:?}"), r#"["ES256"]"#);
    (house, format!("{auth}[policy]\npath = \"policies\"\n"))
}

pub(crate) fn house(auth: &str) -> House {
    House::new(Settings {
        extra: auth,
        ..Settings::default()
    })
}

/// A gateway that takes tokens of this key.
fn start(key: &DevelopmentKey, more: &str) -> (House, Gateway) {
    let dir = house("");
    let path = dir.path().join("jwks.json");
    std::fs::write(&path, key.jwks().to_string()).unwrap();
    let source = format!("jwks_file = {path:?}");
    dir.configure(Settings {
        extra: &(auth(&source, r#"["ES256", "RS256", "EdDSA"]"#) + more),
        ..Settings::default()
    });
    let gateway = dir.start();
    (dir, gateway)
}

pub(crate) fn ask(client: &mut Client, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    let mut all = vec![("Content-Type", "application/json")];
    all.extend(headers);
    client.request("POST", "/rpc", &all, body).unwrap()
}

pub(crate) fn with_token(client: &mut Client, token: &str, body: &[u8]) -> Answer {
    ask(
        client,
        &[("Authorization", &format!("Bearer {token}"))],
        body,
    )
}

pub(crate) fn key() -> DevelopmentKey {
    DevelopmentKey::generate("ES256").unwrap()
}

pub(crate) fn call(client: &mut Client, token: &str, method: &str, params: Value) -> Value {
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    let answer = with_token(client, token, body.to_string().as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json().unwrap()
}

#[test]
fn policies_see_who_asks() {
    let key = key();
    let (_house, gateway) = start(&key, "");
    let mut client = gateway.client();
    let blob = json!({ "content": "x", "kind": "text/plain" });
    let admin = key.token(&claims("alice", "default")).unwrap();
    let made = call(&mut client, &admin, "create_blob", blob.clone());
    assert!(made["result"]["blob_id"].is_string(), "{made}");
    let mut plain = claims("alice", "default");
    plain.remove("roles");
    for (who, claims) in [
        ("no role", plain),
        ("no such tenant", claims("alice", "north")),
    ] {
        let token = key.token(&claims).unwrap();
        let denied = call(&mut client, &token, "create_blob", blob.clone());
        assert_eq!(
            denied["error"]["data"]["kind"], "policy_denied",
            "{who}: {denied}"
        );
    }
    gateway.stop();
}

#[test]
fn a_token_opens_its_tenant_and_nothing_else() {
    for key in [
        key(),
        DevelopmentKey::generate("EdDSA").unwrap(),
        DevelopmentKey::from_pem(
            &std::fs::read_to_string(
                Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/keys/rsa-2048.pem"),
            )
            .unwrap(),
        )
        .unwrap(),
    ] {
        let (_house, gateway) = start(&key, "[policy]\nmode = \"off\"\n");
        let mut client = gateway.client();
        let [alice, bob] = [("alice", "north"), ("bob", "south")]
            .map(|(subject, tenant)| key.token(&claims(subject, tenant)).unwrap());
        let made = call(
            &mut client,
            &alice,
            "create_blob",
            json!({ "content": "x", "kind": "text/plain" }),
        );
        let read = json!({ "blob_id": made["result"]["blob_id"], "mode": "full" });
        assert_eq!(
            call(&mut client, &alice, "read_blob", read.clone())["result"]["content"],
            "x",
            "{made}"
        );
        let theirs = call(&mut client, &bob, "read_blob", read);
        assert_eq!(
            theirs["error"]["data"]["kind"], "blob_not_found",
            "{theirs}"
        );
        gateway.stop();
    }
}

#[test]
fn whoever_is_not_let_in_learns_what_to_do_and_nothing_more() {
    let key = key();
    let (_house, gateway) = start(&key, "");
    let mut client = gateway.client();
    let good = key.token(&claims("alice", "acme")).unwrap();
    assert_eq!(
        with_token(&mut client, &good, LIST).status,
        200,
        "what is good is taken"
    );

    let (text, signature) = good.rsplit_once('.').unwrap();
    let (head, body) = text.split_once('.').unwrap();
    let with = |name: &str, value: Value| {
        let mut claims = claims("alice", "acme");
        claims.insert(name.to_owned(), value);
        key.token(&claims).unwrap()
    };
    let header = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let none = header(json!({ "alg": "none" }));
    let public = header(json!({ "alg": "HS256", "kid": key.kid(), "typ": "at+jwt" }));
    let stranger = self::key();
    let jwk = header(json!({ "alg": "ES256", "jwk": stranger.jwks()["keys"][0], "typ": "at+jwt" }));
    let now = now_s();
    let tokens = [
        (String::new(), "compact form"),
        ("x".repeat(9000), "longer than 8192"),
        (format!("{none}.{body}."), "compact form"),
        (format!("{none}.{body}.{signature}"), "alg"),
        (format!("{public}.{body}.{signature}"), "alg"),
        (format!("{jwk}.{body}.{signature}"), "signature"),
        (format!("{head}.{body}.{}", "A".repeat(86)), "signature"),
        (format!("{head}.{body}.{signature}="), "compact form"),
        (
            format!(
                "{head}.{}.{signature}",
                header(Value::Object(claims("root", "acme")))
            ),
            "signature",
        ),
        (
            stranger.token(&claims("alice", "acme")).unwrap(),
            "signature",
        ),
        (with("exp", json!(now - 60)), "expired"),
        (with("exp", json!(now.to_string())), "exp"),
        (with("exp", json!(1e308)), "exp"),
        (with("nbf", json!(now + 600)), "not valid yet"),
        (with("iat", json!(now + 600)), "future"),
        (with("aud", json!("other")), "audience"),
        (with("aud", json!(["other"])), "audience"),
        (with("aud", json!(7)), "aud"),
        (with("iss", json!("http://localhost/dev/")), "issuer"),
        (with("sub", json!(null)), "sub"),
        (with("tenant", json!("../acme")), "tenant"),
        (with("roles", json!({ "admin": true })), "roles"),
        (with("typ", json!("ID")), "no access token"),
        (with("cnf", json!({ "jkt": "x" })), "cnf"),
    ];
    for (token, expected) in &tokens {
        let answer = with_token(&mut client, token, LIST);
        let error = answer.json().unwrap()["error"].take();
        assert_eq!(
            (answer.status, error["code"].as_i64()),
            (401, Some(-32001)),
            "{expected}"
        );
        assert_eq!(error["data"]["kind"], "unauthenticated");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(expected), "{message}, expected {expected}");
        let challenge = answer.header("www-authenticate").unwrap();
        assert!(
            challenge.starts_with("Bearer error=\"invalid_token\", error_description=\""),
            "{challenge}"
        );
        assert!(!answer.text().contains(&token[..token.len().min(40)]) || token.is_empty());
    }
    for (headers, status) in [
        (vec![], 401),
        (
            vec![("Authorization", "Basic YWxpY2U6eA==".to_owned())],
            401,
        ),
        (
            vec![
                ("Authorization", format!("Bearer {good}")),
                ("Authorization", format!("Bearer {good}")),
            ],
            400,
        ),
        (vec![("X-Authorization", format!("Bearer {good}"))], 401),
        (vec![("Cookie", format!("access_token={good}"))], 401),
    ] {
        let headers: Vec<(&str, &str)> = headers
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        assert_eq!(
            ask(&mut client, &headers, LIST).status,
            status,
            "{headers:?}"
        );
    }
    let path = format!("/rpc?access_token={good}");
    let in_url = client
        .request("POST", &path, &[("Content-Type", "application/json")], LIST)
        .unwrap();
    assert_eq!(in_url.status, 401);
    assert!(
        in_url.text().contains("in the URL is not taken"),
        "{}",
        in_url.text()
    );
    // Every other path asks as well, known or not.
    for (method, path) in [
        ("GET", "/tools"),
        ("GET", "/system-prompt"),
        ("GET", "/openrpc.json"),
        ("POST", "/blobs"),
        ("GET", "/blobs/x"),
        ("GET", "/"),
        ("GET", "/nothing"),
        ("GET", "/livez/"),
        ("GET", "/readyz/../rpc"),
        ("POST", "/RPC"),
        ("GET", "//livez"),
        ("OPTIONS", "/rpc"),
    ] {
        let answer = client.request(method, path, &[], b"").unwrap();
        assert_eq!(answer.status, 401, "{method} {path}: {}", answer.text());
        assert!(answer.header("www-authenticate").is_some());
    }
    assert_eq!(
        with_token(&mut client, &good, LIST).status,
        200,
        "the connection is as good as before"
    );
    // No token is in the log, in whole or in part.
    let log = gateway.log();
    assert!(
        log.contains("reason=\"expired\""),
        "the operator sees why: {log:.500}"
    );
    assert!(!log.contains(signature) && !log.contains(&body[..40]));
    gateway.stop();
}

#[test]
fn anybody_may_ask_where_to_get_a_token() {
    let key = key();
    let (_house, gateway) = start(&key, "");
    let mut client = gateway.client();
    for path in ["/livez", "/readyz"] {
        assert_eq!(client.get(path).unwrap().status, 200, "{path}");
    }
    let refused = client.post(LIST).unwrap();
    assert_eq!(refused.status, 401);
    let challenge = refused.header("www-authenticate").unwrap();
    let url = challenge.split('"').nth(1).unwrap();
    let path = url
        .strip_prefix(&format!("http://{}", gateway.address))
        .unwrap();
    for path in [
        path,
        "/.well-known/oauth-protected-resource/rpc",
        "/.well-known/oauth-protected-resource/mcp",
    ] {
        let answer = client.get(path).unwrap();
        assert_eq!(
            (answer.status, answer.header("content-type")),
            (200, Some("application/json"))
        );
        let document = answer.json().unwrap();
        assert_eq!(document["authorization_servers"], json!([ISSUER]));
        assert_eq!(document["resource"], format!("http://{}", gateway.address));
        assert_eq!(document["bearer_methods_supported"], json!(["header"]));
    }
    let wrong = client.request("POST", path, &[], b"").unwrap();
    assert_eq!(wrong.status, 405);
    gateway.stop();

    // Nobody is asked for a token, so nobody needs to know where to get one.
    let open = house("").start();
    assert_eq!(
        open.client()
            .get("/.well-known/oauth-protected-resource")
            .unwrap()
            .status,
        404
    );
    open.stop();
}

/// A gateway with one place for runs, which takes tokens of this key, and the call that has the place.
fn busy(key: &DevelopmentKey) -> (House, Gateway, Client) {
    let dir = house("");
    let path = dir.path().join("jwks.json");
    std::fs::write(&path, key.jwks().to_string()).unwrap();
    let source = format!("jwks_file = {path:?}\nleeway_s = 0");
    dir.configure(Settings {
        runs: "max_concurrent = 1",
        extra: &auth(&source, r#"["ES256"]"#),
        ..Settings::default()
    });
    let gateway = dir.start();
    let (mut first, code) = (gateway.client(), run(SLEEPS));
    let bearer = format!("Bearer {}", key.token(&claims("alice", "default")).unwrap());
    let headers = [
        ("Authorization", bearer.as_str()),
        ("Content-Type", "application/json"),
        ("Content-Length", &code.len().to_string()),
    ];
    first.head("POST", "/rpc", &headers).unwrap();
    first.write(code.as_bytes()).unwrap();
    eventually("the first has the place", PATIENCE, || {
        gateway.log().contains("run started")
    });
    (dir, gateway, first)
}

fn run(code: &str) -> String {
    let params = json!({ "language": "python", "code": code });
    json!({ "jsonrpc": "2.0", "id": 1, "method": "run_code", "params": params }).to_string()
}

const PATIENCE: Duration = Duration::from_secs(20);
const QUICK: &str = "def main(args):\n    return 1\n";

/// What waits for its place is asked again when it gets it.
#[test]
fn a_run_that_waits_is_not_begun_when_its_token_has_expired() {
    // Its caller has to come before the token's end.
    let _alone = alone();
    let key = key();
    let (_house, gateway, first) = busy(&key);
    let mut short = claims("bob", "default");
    // Long enough to come and wait.
    let end_s = now_s() + 5;
    short.insert("exp".into(), end_s.into());
    let short = key.token(&short).unwrap();
    let code = run(QUICK);
    std::thread::scope(|scope| {
        let second = scope.spawn(|| with_token(&mut gateway.client(), &short, code.as_bytes()));
        eventually("the second waits", PATIENCE, || {
            value(&metrics(&gateway), "skillgate_run_queue_depth ") == 1.0
        });
        eventually("its token has expired", PATIENCE, || now_s() >= end_s);
        first.hang_up();
        let refused = second.join().unwrap().json().unwrap();
        assert_eq!(
            refused["error"]["data"]["kind"], "unauthenticated",
            "{refused}"
        );
    });
    gateway.stop();
}

/// The same when the key has gone that vouches for it, and so for what comes after it in its batch.
#[test]
fn a_run_that_waits_is_not_begun_when_its_key_has_been_withdrawn() {
    let _alone = alone();
    let old = key();
    let (house, gateway, first) = busy(&old);
    let token = old.token(&claims("bob", "default")).unwrap();
    let list = String::from_utf8_lossy(LIST).into_owned();
    let batch = format!("[{},{list}]", run(QUICK));
    std::thread::scope(|scope| {
        let second = scope.spawn(|| with_token(&mut gateway.client(), &token, batch.as_bytes()));
        eventually("the second waits", PATIENCE, || {
            value(&metrics(&gateway), "skillgate_run_queue_depth ") == 1.0
        });
        std::fs::write(house.path().join("jwks.json"), key().jwks().to_string()).unwrap();
        reload(&gateway, "reloaded: ");
        let late = with_token(&mut gateway.client(), &token, LIST);
        assert_eq!(late.status, 401, "{}", late.text());
        first.hang_up();
        let refused = second.join().unwrap().json().unwrap();
        for answer in refused.as_array().unwrap() {
            assert_eq!(answer["error"]["data"]["kind"], "unauthenticated");
            let message = answer["error"]["message"].as_str().unwrap();
            assert!(message.contains("key is trusted no more"), "{message}");
        }
        assert_eq!(refused.as_array().unwrap().len(), 2);
    });
    let log = std::fs::read_to_string(house.path().join(".skillgate/audit.jsonl")).unwrap();
    assert_eq!(log.matches("\"token_withdrawn\"").count(), 1, "{log}");
    gateway.stop();
}

//! Tokens, black box: the real program asked over HTTP by good and bad callers. The whole table of attacks is beside the
//! code (`src/auth/tests`); here is a sample of it, and what only the whole program can show.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value, json};
use skillgate::auth::DevelopmentKey;

use crate::operator::{metrics, value};
use crate::stopping::SLEEPS;
use crate::support::eventually;
use crate::support::gateway::{Gateway, House, Settings};
use crate::support::http::{Answer, Client};

const ISSUER: &str = "http://localhost/dev";
const LIST: &[u8] = br#"{"jsonrpc":"2.0","id":1,"method":"list_skills","params":{"limit":1}}"#;

fn now_s() -> u64 {
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

fn house(auth: &str) -> House {
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

fn with_token(client: &mut Client, token: &str, body: &[u8]) -> Answer {
    ask(
        client,
        &[("Authorization", &format!("Bearer {token}"))],
        body,
    )
}

fn key() -> DevelopmentKey {
    DevelopmentKey::generate("ES256").unwrap()
}

fn call(client: &mut Client, token: &str, method: &str, params: Value) -> Value {
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

#[test]
fn a_broken_file_of_keys_stops_the_start_with_its_place() {
    let dir = house("");
    let path = dir.path().join("jwks.json");
    for (text, expected) in [
        (None, "No such file"),
        (Some("{}"), "not a JWKS"),
        (
            Some("{\"keys\":[{\"kty\":\"oct\",\"k\":\"AAAA\"}]}"),
            "a shared secret does not belong into a JWKS",
        ),
    ] {
        if let Some(text) = text {
            std::fs::write(&path, text).unwrap();
        }
        dir.configure(Settings {
            extra: &auth(&format!("jwks_file = {path:?}"), r#"["ES256"]"#),
            ..Settings::default()
        });
        let output = dir.command().output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(3), "{said}");
        let config = std::fs::read_to_string(dir.config()).unwrap();
        let line = 1 + config
            .lines()
            .position(|line| line.starts_with("jwks_file"))
            .unwrap();
        let place = format!("skillgate.toml:{line}:13: auth.issuers[0].jwks_file: ");
        assert!(said.contains(&place) && said.contains(expected), "{said}");
    }
}

/// An issuer's keys, by plain HTTP on a loopback address. Counts the requests; without keys it answers 503.
pub(crate) struct Issuer {
    pub(crate) url: String,
    pub(crate) asked: Arc<Mutex<u32>>,
}

impl Issuer {
    pub(crate) fn start(keys: &Arc<Mutex<Option<String>>>) -> Issuer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/keys", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(0));
        let (keys, count) = (keys.clone(), asked.clone());
        // It ends with the test program.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut head = [0; 4096];
                let mut length = 0;
                while !head[..length].ends_with(b"\r\n\r\n") {
                    length += stream.read(&mut head[length..]).unwrap();
                }
                *count.lock().unwrap() += 1;
                let keys = keys.lock().unwrap().clone();
                let status = if keys.is_some() { "200 OK" } else { "503 Busy" };
                let body = keys.unwrap_or_default();
                let answer = format!(
                    "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}",
                    body.len()
                );
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        Issuer { url, asked }
    }
}

#[test]
fn keys_from_an_issuer_that_comes_later() {
    let key = key();
    let token = key.token(&claims("alice", "acme")).unwrap();
    let keys = Arc::new(Mutex::new(Some(key.jwks().to_string())));
    let issuer = Issuer::start(&keys);
    let source = auth(&format!("jwks_url = \"{}\"", issuer.url), r#"["ES256"]"#);
    let dir = house(&source);
    let gateway = dir.start();
    let mut client = gateway.client();
    assert_eq!(*issuer.asked.lock().unwrap(), 1, "before the first request");
    assert_eq!(with_token(&mut client, &token, LIST).status, 200);
    // Within 30 s of the first fetch nobody can cause another one.
    for number in 0..200 {
        let mut other = self::key().token(&claims("x", "y")).unwrap();
        if number % 2 == 0 {
            other.push('A');
        }
        assert_eq!(with_token(&mut client, &other, LIST).status, 401);
    }
    assert_eq!(*issuer.asked.lock().unwrap(), 1);
    gateway.stop();

    // It starts without its issuer, says so, and is not to blame the caller.
    *keys.lock().unwrap() = None;
    let gateway = dir.start();
    let mut client = gateway.client();
    let refused = with_token(&mut client, &token, LIST);
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert_eq!(refused.header("retry-after"), Some("30"));
    assert_eq!(
        refused.json().unwrap()["error"]["data"]["kind"],
        "unavailable"
    );
    assert!(!refused.text().contains("127.0.0.1"), "{}", refused.text());
    eventually("readyz says so", Duration::from_secs(5), || {
        gateway.client().get("/readyz").unwrap().status == 503
    });
    assert_eq!(client.get("/livez").unwrap().status, 200);
    // Nobody sends it anything, since it is not ready: it asks by itself, 30 seconds after it has asked last.
    *keys.lock().unwrap() = Some(key.jwks().to_string());
    eventually("it is ready", Duration::from_secs(60), || {
        gateway.client().get("/readyz").unwrap().status == 200
    });
    assert_eq!(with_token(&mut gateway.client(), &token, LIST).status, 200);
    gateway.stop();
}

/// What waits for its place is asked again when it gets it.
#[test]
fn a_run_that_waits_is_not_begun_when_its_token_has_expired() {
    const PATIENCE: Duration = Duration::from_secs(20);
    let key = key();
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
    let run = |code: &str| {
        let params = json!({ "language": "python", "code": code });
        json!({ "jsonrpc": "2.0", "id": 1, "method": "run_code", "params": params }).to_string()
    };
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
    let mut short = claims("bob", "default");
    // Long enough to come and wait.
    let end_s = now_s() + 5;
    short.insert("exp".into(), end_s.into());
    let short = key.token(&short).unwrap();
    let code = run("def main(args):\n    return 1\n");
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

/// The keys of a file, replaced as a deployment does it: a whole new file under the same name.
fn replace(path: &Path, text: &str) {
    let next = path.with_extension("next");
    std::fs::write(&next, text).unwrap();
    std::fs::rename(next, path).unwrap();
}

/// Rotation by file, taken by `take`: the old key's tokens are refused and the new one's taken, also on a connection and
/// with a token that were good before; a broken file changes nothing and is told until it is mended.
fn rotates(watch_ms: u64, take: impl Fn(&Gateway)) {
    const PATIENCE: Duration = Duration::from_secs(20);
    let [old, new] = [key(), key()];
    let dir = house("");
    let path = dir.path().join("jwks.json");
    replace(&path, &old.jwks().to_string());
    dir.configure(Settings {
        server: &format!("reload_watch_ms = {watch_ms}"),
        extra: &auth(&format!("jwks_file = {path:?}"), r#"["ES256"]"#),
        ..Settings::default()
    });
    let gateway = dir.start();
    let [old_token, new_token] =
        [&old, &new].map(|key| key.token(&claims("alice", "default")).unwrap());
    let mut client = gateway.client();
    let mut statuses =
        || [&old_token, &new_token].map(|token| with_token(&mut client, token, LIST).status);
    let successful = || {
        let page = Client::open(&gateway.admin)
            .unwrap()
            .get("/metrics")
            .unwrap();
        let page = page.text();
        let name = "skillgate_config_last_reload_successful ";
        page.lines()
            .find_map(|line| line.strip_prefix(name))
            .map(str::to_owned)
    };
    let health = || {
        Client::open(&gateway.admin)
            .unwrap()
            .get("/readyz?verbose")
            .unwrap()
    };
    assert_eq!(statuses(), [200, 401]);
    assert_eq!(successful().as_deref(), Some("1"));

    // For a while both, as issuers do it.
    let [first, second] = [&old, &new].map(|key| key.jwks()["keys"][0].take());
    replace(&path, &json!({ "keys": [first, second] }).to_string());
    take(&gateway);
    eventually("both are good", PATIENCE, || statuses() == [200, 200]);
    replace(&path, &new.jwks().to_string());
    take(&gateway);
    eventually("the old one is gone", PATIENCE, || statuses() == [401, 200]);

    for broken in [
        Some(r#"{"keys":["#),
        Some(r#"{"keys":[]}"#),
        Some("-----BEGIN PRIVATE KEY-----\nx\n-----END PRIVATE KEY-----\n"),
        None,
    ] {
        let refused = || gateway.log().matches("reload refused").count();
        let before = refused();
        match broken {
            Some(text) => replace(&path, text),
            None => std::fs::remove_file(&path).unwrap(),
        }
        take(&gateway);
        eventually("it is refused", PATIENCE, || refused() > before);
        assert_eq!(statuses(), [401, 200], "the last good keys");
        assert_eq!(successful().as_deref(), Some("0"));
        // What is known of the parts is kept for a moment.
        eventually("health says so", PATIENCE, || {
            let health = health();
            assert_eq!(health.status, 200, "it serves on");
            health.text().lines().any(|line| {
                line.starts_with("[!]reload impaired: refused, the last good state is kept")
                    && line.contains("auth.issuers[0].jwks_file")
                    && line.contains("jwks.json")
            })
        });
        // Whoever asks on the public side learns nothing of it.
        assert_eq!(gateway.client().get("/readyz").unwrap().text(), "ok\n");
    }
    replace(&path, &old.jwks().to_string());
    take(&gateway);
    eventually("the old key is back", PATIENCE, || statuses() == [200, 401]);
    eventually("and all is well", PATIENCE, || {
        successful().as_deref() == Some("1")
    });
    eventually("and health says so", PATIENCE, || {
        health().text().contains("[+]reload ok")
    });
    gateway.stop();
}

#[test]
fn keys_of_a_file_rotate_by_signal() {
    rotates(0, |gateway| gateway.signal("HUP"));
}

#[test]
fn keys_of_a_file_rotate_by_themselves() {
    rotates(20, |_| ());
}

//! Keys that are not there, come later and are replaced: from a file and from a network, seen by callers and operators.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;

use crate::jwt::{LIST, auth, claims, house, key, with_token};
use crate::support::eventually;
use crate::support::gateway::{Gateway, Settings, must_not_start};
use crate::support::http::Client;

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
        let (code, said) = must_not_start(dir.command());
        assert_eq!(code, Some(3), "{said}");
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
        let mut other = crate::jwt::key().token(&claims("x", "y")).unwrap();
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

/// The keys of a file, replaced as a deployment does it: a whole new file under the same name.
fn replace(path: &Path, text: &str) {
    let next = path.with_extension("next");
    std::fs::write(&next, text).unwrap();
    std::fs::rename(next, path).unwrap();
}

/// Rotation by file, taken by `take`: the old key's tokens are refused and the new one's taken, also on a connection and
/// with a token that were good before; a broken file changes nothing and is told until it is mended; one without a key
/// takes all.
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
                    && line.contains("keys and secrets of before still count")
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

    // An issuer that has no key any more has withdrawn all of them: no mistake, which would leave them in force.
    replace(&path, r#"{"keys":[]}"#);
    take(&gateway);
    eventually("the old key is gone", PATIENCE, || statuses() == [401, 401]);
    eventually("health says so", PATIENCE, || {
        let health = health();
        let text = health.text();
        health.status == 503 && text.contains("[-]issuers failed") && text.contains("[+]reload ok")
    });
    let said = |line: &str| line.contains("a file of keys has none") && line.contains("jwks.json");
    eventually("the log names the file", PATIENCE, || {
        gateway.log().lines().any(said)
    });
    replace(&path, &new.jwks().to_string());
    take(&gateway);
    eventually("the new key is taken", PATIENCE, || {
        statuses() == [401, 200]
    });
    gateway.stop();
    // At a start there is nothing to withdraw.
    replace(&path, r#"{"keys":[]}"#);
    let (code, said) = must_not_start(dir.command());
    assert!(
        code == Some(3) && said.contains("no key for ES256"),
        "{said}"
    );
}

#[test]
fn keys_of_a_file_rotate_by_signal() {
    rotates(0, |gateway| gateway.signal("HUP"));
}

#[test]
fn keys_of_a_file_rotate_by_themselves() {
    rotates(20, |_| ());
}

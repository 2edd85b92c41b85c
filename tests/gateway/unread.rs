//! Clients that ask and do not read: each is let go after a time, and others do not notice.

use std::io::ErrorKind;
use std::time::Duration;

use serde_json::{Value, json};
use skillgate::auth::DevelopmentKey;

use crate::alone;
use crate::jwt::{claims, house_of};
use crate::stopping::begun;
use crate::support::gateway::{Gateway, House, Settings};
use crate::support::http::{Answer, Client};
use crate::support::{MIB, eventually};

const PATIENCE: Duration = Duration::from_secs(30);
/// More than a connection's two ends hold: an answer that nobody reads waits.
const BLOB_BYTES: usize = 32 * MIB as usize;

/// The path of a blob that does not fit into a connection.
pub(crate) fn large_blob(client: &mut Client) -> String {
    let headers = [("Content-Type", "text/plain")];
    let content = vec![b'x'; BLOB_BYTES];
    let answer = client.request("POST", "/blobs", &headers, &content);
    let answer = answer.unwrap();
    assert_eq!(answer.status, 201, "{}", answer.text());
    let id = answer.json().unwrap()["blob_id"].take();
    format!("/blobs/{}", id.as_str().unwrap())
}

/// A client that has asked for it, and reads no more than how the answer begins.
pub(crate) fn asks(gateway: &Gateway, path: &str) -> (Client, Answer) {
    let mut client = gateway.client();
    client.head("GET", path, &[]).unwrap();
    let head = client.answer_head().unwrap();
    assert_eq!(head.status, 200);
    (client, head)
}

#[test]
fn who_does_not_read_is_let_go() {
    let _alone = alone();
    let house = House::new(Settings {
        // Of which one address alone has four.
        server: "max_connections = 5\nwrite_timeout_ms = 500\nheader_timeout_ms = 60000",
        extra: "[log]\nfilter = \"info,skillgate::server=debug\"",
        ..Settings::default()
    });
    let gateway = house.start();
    let mut quiet = gateway.client();
    let path = large_blob(&mut quiet);
    std::thread::scope(|scope| {
        let run = scope.spawn(|| {
            let code = "import time\ndef main(args):\n    time.sleep(2)\n    return 'done'\n";
            let mut client = gateway.client();
            (client.run(code, json!({})), client)
        });
        let (mut unread, head) = asks(&gateway, &path);
        // Answers of which each is small: they wait as well.
        let mut pipelined = gateway.client();
        let asked = format!("GET /nothing HTTP/1.1\r\nHost: {}\r\n\r\n", gateway.address);
        let asked = asked.repeat(1000);
        let error = loop {
            if let Err(error) = pipelined.write(asked.as_bytes()) {
                break error;
            }
        };
        let ended = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
        assert!(ended.contains(&error.kind()), "{error}");
        let let_go = || {
            let log = gateway.log();
            log.matches("the client does not read (server.write_timeout_ms)")
                .count()
        };
        eventually("both are let go", PATIENCE, || let_go() == 2);
        let mut read = 0;
        let body = unread.body(&head, |piece| read += piece.len());
        println!("of {BLOB_BYTES} bytes {read} came: {body:?}");
        assert!(body.is_err());

        // Whoever has nothing to read may stay, and so may whoever waits for a run.
        let (ran, _its_place) = run.join().unwrap();
        assert_eq!(ran.unwrap()["output"], "done");
        assert_eq!(quiet.get("/livez").unwrap().status, 200);
        // With those two there are four.
        eventually("both places are free", PATIENCE, || {
            let mut two = [gateway.client(), gateway.client()];
            two.iter_mut()
                .all(|client| client.get("/livez").is_ok_and(|it| it.status == 200))
        });
        assert_eq!(let_go(), 2, "{}", gateway.said());
    });
    gateway.stop();
}

/// An answer is small to ask for and large to keep: it has a place until it has been read.
#[test]
fn large_answers_have_places() {
    let _alone = alone();
    let house = House::new(Settings {
        server: "max_large_bodies = 1\nbody_timeout_ms = 300",
        ..Settings::default()
    });
    let gateway = house.start();
    let mut other = gateway.client();
    let path = large_blob(&mut other);
    let id = path.trim_start_matches("/blobs/");
    let skill = json!({
        "manifest": { "name": "user.x", "version": "1.0.0", "description": "x", "kind": "instruction", "namespace": "user" },
        "skill_md": format!("---\nname: user.x\ndescription: x\n---\n{}\n", "x".repeat(300_000)),
    });
    other.result("create_skill", skill).unwrap();
    let large = [
        (
            "read_blob",
            json!({ "blob_id": id, "mode": "full", "max_bytes": 12 * MIB }),
        ),
        (
            "read_skill_file",
            json!({ "name": "user.x", "path": "SKILL.md" }),
        ),
        (
            "describe_skill",
            json!({ "name": "user.x", "detail": "full" }),
        ),
    ];
    let small = [
        ("read_blob", json!({ "blob_id": id })),
        ("describe_skill", json!({ "name": "user.x" })),
    ];
    let mut unread = gateway.client();
    unread.ask("read_blob", large[0].1.clone()).unwrap();
    let head = unread.answer_head().unwrap();
    for (method, params) in large.clone() {
        let refused = other.call(method, params).unwrap();
        assert_eq!(refused["error"]["code"], -32007, "{method}: {refused}");
        assert_eq!(refused["error"]["data"]["kind"], "unavailable");
    }
    for (method, params) in small {
        other.result(method, params).unwrap();
    }
    unread.body(&head, |_| ()).unwrap();
    for (method, params) in large {
        // The place is free when the gateway has seen that all of it was read.
        eventually("it has its place", PATIENCE, || {
            let answer = other.call(method, params.clone()).unwrap();
            answer.get("result").is_some()
        });
    }
    gateway.stop();
}

/// What is small by itself, or small as it is stored, is large in a batch or as JSON.
#[test]
fn large_answers_of_small_content_have_places() {
    let _alone = alone();
    let house = House::new(Settings {
        server: "max_large_bodies = 1\nbody_timeout_ms = 300\nmax_batch = 60\nheader_timeout_ms = 60000",
        ..Settings::default()
    });
    let gateway = house.start();
    let mut other = gateway.client();
    let blob = |client: &mut Client, content: &[u8]| {
        let headers = [("Content-Type", "application/octet-stream")];
        let answer = client.request("POST", "/blobs", &headers, content);
        answer.unwrap().json().unwrap()["blob_id"].take()
    };
    let read = |id: &Value| ("read_blob", json!({ "blob_id": id, "mode": "full" }));
    // As JSON each byte has six.
    let control = read(&blob(&mut other, &[1; 256 << 10]));
    let plain = read(&blob(&mut other, &[b'x'; 250_000]));
    for n in 0..80 {
        let name = format!("user.x{n}");
        let text = "x".repeat(1000);
        let tags: Vec<String> = (0..40).map(|n| format!("{}{n}", "x".repeat(60))).collect();
        let skill = json!({
            "manifest": { "name": name, "version": "1.0.0", "description": text, "kind": "instruction", "namespace": "user", "tags": tags },
            "skill_md": format!("---\nname: {name}\ndescription: {text}\n---\n"),
        });
        other.result("create_skill", skill).unwrap();
    }
    let list = (
        "list_skills",
        json!({ "detail": "summary", "limit": 1000, "namespace": "user" }),
    );
    let batch = |(method, params): &(&str, Value), calls: usize| {
        let calls = (0..calls)
            .map(|id| json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        Value::from_iter(calls).to_string()
    };
    // How many of the calls are answered before there is no more room.
    for (call, calls, alone) in [(&control, 20, 0), (&plain, 60, 1), (&list, 60, 0)] {
        let body = batch(call, calls);
        let mut unread = gateway.client();
        let length = body.len().to_string();
        let headers = [
            ("Content-Type", "application/json"),
            ("Content-Length", length.as_str()),
        ];
        unread.head("POST", "/rpc", &headers).unwrap();
        unread.write(body.as_bytes()).unwrap();
        let head = unread.answer_head().unwrap();
        let answers = other.post(body.as_bytes()).unwrap().json().unwrap();
        let answers = answers.as_array().unwrap();
        assert_eq!(answers.len(), calls);
        for (n, answer) in answers.iter().enumerate() {
            let expected = (n >= alone).then_some(-32007);
            assert_eq!(
                answer["error"]["code"].as_i64(),
                expected,
                "{n} of {}",
                call.0
            );
        }
        // One whose answer is small has room.
        other.result(plain.0, plain.1.clone()).unwrap();
        unread.body(&head, |_| ()).unwrap();
        eventually("it has its place", PATIENCE, || {
            let answers = other.post(body.as_bytes()).unwrap().json().unwrap();
            answers[alone].get("result").is_some()
        });
    }
    gateway.stop();
}

/// Nobody waits for the run any more, and it has the request's code all the same.
#[test]
fn a_large_request_has_its_place_until_its_run_has_ended() {
    let _alone = alone();
    let house = House::new(Settings {
        server: "max_large_bodies = 1\nbody_timeout_ms = 300",
        runs: "on_disconnect = \"finish\"",
        ..Settings::default()
    });
    let gateway = house.start();
    let large = "#".repeat(300_000);
    let sleeps = "import os, time\ndef main(args):\n    if os.fork() == 0:\n        time.sleep(1000)\n    time.sleep(8)\n";
    let code = format!("{sleeps}{large}\n");
    begun(&gateway, &code).hang_up();
    let mut other = gateway.client();
    let code = format!("def main(args):\n    return 1\n{large}\n");
    let refused = other.run(&code, json!({})).unwrap_err();
    assert!(refused.to_string().contains("HTTP 503"), "{refused}");
    eventually("the run has ended", PATIENCE, || {
        gateway.client().run(&code, json!({})).is_ok()
    });
    gateway.stop();
}

/// An answer that comes before its request has been read is not lost with the connection, whatever is still being sent.
#[test]
fn who_sends_to_the_end_before_reading_is_told_why_it_was_refused() {
    let _alone = alone();
    let key = DevelopmentKey::generate("ES256").unwrap();
    let (house, sections) = house_of(&key, &["default"]);
    house.configure(Settings {
        // Of which one address alone has one: whoever comes next is turned away.
        server: "max_connections = 1",
        extra: &sections,
        ..Settings::default()
    });
    let gateway = house.start();
    let good = key.token(&claims("ann", "default")).unwrap();
    let length = BLOB_BYTES.to_string();
    let sends = |mut client: Client, path: &str, token: &str, kind: &str| {
        let token = format!("Bearer {token}");
        let headers = [
            ("Authorization", token.as_str()),
            ("Content-Type", kind),
            ("Content-Length", length.as_str()),
        ];
        client.head("POST", path, &headers).unwrap();
        client.write(&vec![b'x'; BLOB_BYTES]).unwrap();
        let answer = client.answer().unwrap();
        let error = answer.json().unwrap()["error"]["data"].take();
        assert_eq!(error["request_id"].as_str(), answer.header("x-request-id"));
        answer
    };
    let open = || {
        let mut held = None;
        eventually("there is a place", PATIENCE, || {
            let mut client = gateway.client();
            let has_place = client.get("/livez").is_ok_and(|it| it.status == 200);
            held = has_place.then_some(client);
            held.is_some()
        });
        held.unwrap()
    };
    for (path, token, kind, status) in [
        ("/rpc", good.as_str(), "text/plain", 415),
        ("/rpc", good.as_str(), "application/json", 413),
        ("/rpc", "bad", "application/json", 401),
        ("/blobs", "bad", "text/plain", 401),
    ] {
        let answer = sends(open(), path, token, kind);
        assert_eq!(answer.status, status, "{path}: {}", answer.text());
        let challenged = answer.header("www-authenticate").is_some();
        assert_eq!(challenged, status == 401);
    }
    let _held = open();
    let answer = sends(gateway.client(), "/rpc", &good, "application/json");
    assert_eq!(answer.status, 503, "{}", answer.text());
    gateway.stop();
}

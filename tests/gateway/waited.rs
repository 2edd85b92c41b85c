//! What was decided about before the store is exchanged, and is read after that.

use std::fs::File;
use std::io::Write as _;
use std::time::Duration;

use serde_json::json;
use skillgate::auth::DevelopmentKey;

use crate::alone;
use crate::examples::{instead, waiting_store};
use crate::jwt::{claims, house_of, now_s, with_token};
use crate::operator::metrics;
use crate::policy::policy_in;
use crate::support::gateway::{House, Settings};
use crate::support::{MIB, eventually};
use crate::swap::{TAKEN, another_store, readyz, reload};
use crate::unread::large_blob;

const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn a_read_that_waited_is_of_the_skill_that_was_decided_about() {
    let _alone = alone();
    let house = House::new(Settings {
        // A large answer that nobody reads keeps others waiting.
        server: "max_large_bodies = 1",
        ..Settings::default()
    });
    let in_store = another_store(&house);
    let gateway = house.start();
    let publish = |letter: &str| {
        let params = json!({
            "manifest": { "name": "user.x", "version": "1.0.0", "description": "x", "kind": "instruction", "namespace": "user" },
            "skill_md": format!("---\nname: user.x\n---\n{}\n", letter.repeat(300_000)),
        });
        gateway.client().result("create_skill", params).unwrap();
    };
    let exchange = |store: &str| {
        in_store(store);
        reload(&gateway, TAKEN);
    };
    let blob = large_blob(&mut gateway.client());
    let blob = blob.trim_start_matches("/blobs/");
    publish("x");
    exchange("same");
    publish("x");
    exchange("other");
    publish("y");
    exchange("store");

    let stores = [("same", true), ("other", false), ("none", false)];
    for (asked, (next, is_same)) in (1..).zip(stores) {
        let mut unread = gateway.client();
        let params = json!({ "blob_id": blob, "mode": "full", "max_bytes": 12 * MIB });
        unread.ask("read_blob", params).unwrap();
        let head = unread.answer_head().unwrap();
        let reads = [
            (
                "read_skill_file",
                json!({ "name": "user.x", "path": "SKILL.md" }),
            ),
            (
                "describe_skill",
                json!({ "name": "user.x", "detail": "full" }),
            ),
        ];
        let wait = reads.map(|(method, params)| {
            let mut waits = gateway.client();
            waits.ask(method, params).unwrap();
            let decided = format!(
                "skillgate_policy_decisions_total{{action=\"{method}\",decision=\"allow\",mode=\"enforce\"}} {asked}\n"
            );
            eventually("it has been decided about", PATIENCE, || {
                metrics(&gateway).contains(&decided)
            });
            waits
        });
        exchange(next);
        unread.body(&head, |_| ()).unwrap();
        for mut waits in wait {
            let answer = waits.answer().unwrap().json().unwrap();
            if is_same {
                assert!(answer["result"].is_object(), "{next}: {answer}");
                continue;
            }
            let error = &answer["error"];
            assert_eq!(error["code"], -32007, "{next}: {answer}");
            assert_eq!(error["data"]["kind"], "unavailable");
            assert_eq!(error["data"]["retry_after_ms"], 0);
        }
        exchange("store");
    }
    gateway.stop();
}

/// A call that has the old store at hand and waits for the new one would wait for who waits for it.
#[test]
fn a_list_that_is_under_way_is_made_to_its_end_and_the_store_exchanged_after_that() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let usual = std::fs::read_to_string(house.config()).unwrap();
    let (store, pipe) = waiting_store(&house, "skill_get");
    let text = instead(&usual, r#"name = "storage-fs""#, &store);
    std::fs::write(house.config(), text).unwrap();
    let gateway = house.start();
    for name in ["user.one", "user.two"] {
        let params = json!({
            "manifest": { "name": name, "version": "1.0.0", "description": "x", "kind": "instruction", "namespace": "user" },
            "skill_md": "# x\n",
        });
        gateway.client().result("create_skill", params).unwrap();
    }
    let mut lists = gateway.client();
    let params = json!({ "namespace": "user", "detail": "summary" });
    lists.ask("list_skills", params).unwrap();
    let asked = r#"skillgate_plugin_calls_in_flight{plugin="storage"} 1"#;
    eventually("it reads the first skill", PATIENCE, || {
        metrics(&gateway).lines().any(|line| line == asked)
    });
    std::fs::write(house.config(), usual).unwrap();
    let before = gateway.log().matches(TAKEN).count();
    gateway.signal("HUP");
    eventually("the store is being exchanged", PATIENCE, || {
        readyz(&gateway).1.contains("it is being exchanged")
    });
    // Also a reader, so that what is for the second skill stays there until that is read.
    let mut pipe = File::options().read(true).write(true).open(pipe).unwrap();
    pipe.write_all(b"xx").unwrap();
    let answer = lists.answer().unwrap().json().unwrap();
    let listed = answer["result"]["skills"].as_array();
    assert_eq!(listed.map(Vec::len), Some(2), "{answer}");
    eventually("it has been exchanged", PATIENCE, || {
        gateway.log().matches(TAKEN).count() > before
    });
    gateway.stop();
}

/// The same of a run that reads one blob while it writes another.
#[test]
fn a_blob_that_is_being_written_is_written_to_its_end_and_the_store_exchanged_after_that() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let usual = std::fs::read_to_string(house.config()).unwrap();
    let (store, pipe) = waiting_store(&house, "blob_write");
    let text = instead(&usual, r#"name = "storage-fs""#, &store);
    std::fs::write(house.config(), text).unwrap();
    let gateway = house.start();
    let mut pipe = File::options().read(true).write(true).open(pipe).unwrap();
    // For the first blob, which is one piece.
    pipe.write_all(b"x").unwrap();
    let code = "from runtime import blobs\n\ndef main(args):\n    one = blobs.write_bytes(bytes(400_000))\n    \
                with blobs.open(one) as stream:\n        blobs.write_file(stream)\n";
    let mut runs = gateway.client();
    let params = json!({ "language": "python", "code": code });
    runs.ask("run_code", params).unwrap();
    let begun = r#"skillgate_plugin_calls_total{plugin="storage",op="blob_create",outcome="ok"} 2"#;
    eventually("it writes the second blob", PATIENCE, || {
        metrics(&gateway).lines().any(|line| line == begun)
    });
    std::fs::write(house.config(), usual).unwrap();
    let before = gateway.log().matches(TAKEN).count();
    gateway.signal("HUP");
    eventually("the store is being exchanged", PATIENCE, || {
        readyz(&gateway).1.contains("it is being exchanged")
    });
    pipe.write_all(b"x").unwrap();
    let answer = runs.answer().unwrap().json().unwrap();
    let made = answer["result"]["output_blobs"].as_array();
    assert_eq!(made.map(Vec::len), Some(2), "{answer}");
    eventually("it has been exchanged", PATIENCE, || {
        gateway.log().matches(TAKEN).count() > before
    });
    gateway.stop();
}

/// A run has its turn and waits for the store, which has to find a blob: what allowed it is looked at again after that.
#[test]
fn a_run_whose_blob_came_late_is_not_begun_by_rules_or_a_token_that_have_ended() {
    // The token has to hold until its run waits.
    let _alone = alone();
    let key = DevelopmentKey::generate("ES256").unwrap();
    let (house, sections) = house_of(&key, &["default"]);
    house.configure(Settings {
        extra: &sections.replace("algorithms", "leeway_s = 0\nalgorithms"),
        ..Settings::default()
    });
    let usual = std::fs::read_to_string(house.config()).unwrap();
    let (store, pipe) = waiting_store(&house, "blob_fd");
    let text = instead(&usual, r#"name = "storage-fs""#, &store);
    std::fs::write(house.config(), text).unwrap();
    let gateway = house.start();
    let long = key.token(&claims("ann", "default")).unwrap();
    let headers = [
        ("Authorization", format!("Bearer {long}")),
        ("Content-Type", "text/plain".to_owned()),
    ];
    let headers = headers
        .each_ref()
        .map(|(name, value)| (*name, value.as_str()));
    let made = gateway.client().request("POST", "/blobs", &headers, b"x");
    let blob = made.unwrap().json().unwrap()["blob_id"].take();
    let code = "def main(args):\n    return 1\n";
    let params = json!({ "language": "python", "code": code, "input_blobs": [blob] });
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "run_code", "params": params });
    let call = call.to_string();
    let mut short = claims("bob", "default");
    let end_s = now_s() + 8;
    short.insert("exp".into(), end_s.into());
    let short = key.token(&short).unwrap();
    std::thread::scope(|scope| {
        let runs = [&long, &short].map(|token| {
            let call = call.as_bytes();
            let mut client = gateway.client();
            scope.spawn(move || with_token(&mut client, token, call))
        });
        let asked = r#"skillgate_plugin_calls_in_flight{plugin="storage"} 2"#;
        eventually("both wait for their blob", PATIENCE, || {
            metrics(&gateway).lines().any(|line| line == asked)
        });
        policy_in(&house, |data| {
            data["tenants"]["default"]["limits"] = json!({ "timeout_ms": 1000 })
        });
        reload(&gateway, TAKEN);
        eventually("a token has expired", PATIENCE, || now_s() > end_s);
        let mut pipe = File::options().read(true).write(true).open(&pipe).unwrap();
        pipe.write_all(b"xx").unwrap();
        let refused = runs.map(|run| {
            let answer = run.join().unwrap().json().unwrap();
            answer["error"]["data"]["kind"].clone()
        });
        assert_eq!(refused, ["unavailable", "unauthenticated"]);
    });
    assert_eq!(gateway.log().matches("run started").count(), 0);
    let log = std::fs::read_to_string(house.path().join(".skillgate/audit.jsonl")).unwrap();
    for reason in ["policy_changed", "token_expired"] {
        assert_eq!(log.matches(&format!("\"{reason}\"")).count(), 1, "{log}");
    }
    gateway.stop();
}

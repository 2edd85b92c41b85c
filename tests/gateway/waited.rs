//! What was decided about before the store is exchanged, and is read after that.

use std::time::Duration;

use serde_json::json;

use crate::alone;
use crate::operator::metrics;
use crate::support::gateway::{House, Settings};
use crate::support::{MIB, eventually};
use crate::swap::{TAKEN, another_store, reload};
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

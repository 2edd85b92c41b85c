//! Plugins in processes of their own, behind the whole gateway: they serve, they are killed, and the gateway goes on.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::alone;
use crate::audit;
use crate::examples::{compiled, instead, plugins, waiting_store};
use crate::operator::{metrics, value};
use crate::support::gateway::{Gateway, House, Settings, signal};
use crate::support::http::Client;
use crate::support::look::{self, Process};
use crate::support::{Over, eventually, writing_end};

/// As `ps` shows the process of a plugin.
const NAME: &str = "skillgate-host";

const PATIENCE: Duration = Duration::from_secs(20);

fn start(house: &House, plugin: &str) -> Gateway {
    let mut command = house.command();
    command.env(format!("SKILLGATE_PLUGINS__{plugin}__ISOLATION"), "process");
    house.start_as(command)
}

/// The process of the one plugin that has one.
pub(crate) fn host(gateway: &Gateway) -> Option<Process> {
    let mut all = look::descendants(gateway.pid);
    all.retain(|process| process.name == NAME);
    assert!(all.len() <= 1, "{all:?}");
    all.pop()
}

fn kill(process: &Process) {
    signal("KILL", process.pid);
}

fn blob(client: &mut Client, content: &str) -> std::io::Result<serde_json::Value> {
    let params = json!({ "content": content, "kind": "text/plain" });
    client.call("create_blob", params)
}

/// The store's process is killed while clients write and read: what was acknowledged is there, everything else is
/// refused in words, and the gateway itself does not notice.
#[test]
fn a_store_that_is_killed_costs_its_calls_and_nothing_else() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let gateway = start(&house, "STORAGE");
    let first = host(&gateway).expect("the store has a process");
    let stop = AtomicBool::new(false);
    let answered = AtomicU64::new(0);
    let stored = std::thread::scope(|scope| {
        let over = Over(&stop);
        let clients: Vec<_> = (0..4)
            .map(|n| {
                let (gateway, stop, answered) = (&gateway, &stop, &answered);
                scope.spawn(move || {
                    let mut client = gateway.client();
                    let (mut stored, mut refused) = (Vec::new(), 0);
                    while !stop.load(Ordering::Relaxed) {
                        let content = format!("{n} {}", stored.len());
                        // An error here would be a connection that was lost: the gateway's own failure.
                        let answer = blob(&mut client, &content).unwrap();
                        match answer["result"]["blob_id"].as_str() {
                            Some(id) => {
                                stored.push((id.to_owned(), content));
                                answered.fetch_add(1, Ordering::Relaxed);
                            }
                            None => {
                                assert_eq!(
                                    answer["error"]["data"]["kind"], "unavailable",
                                    "{answer}"
                                );
                                refused += 1;
                            }
                        }
                    }
                    (stored, refused)
                })
            })
            .collect();
        let mut last = first;
        for _ in 0..3 {
            let before = answered.load(Ordering::Relaxed);
            eventually("the store is busy", Duration::from_secs(20), || {
                answered.load(Ordering::Relaxed) >= before + 20
            });
            kill(&last);
            let killed = Instant::now();
            let next = || host(&gateway).filter(|next| next.pid != last.pid);
            eventually("the store is back", Duration::from_secs(20), || {
                next().is_some()
            });
            println!("the store's process was back after {:?}", killed.elapsed());
            last = next().expect("it was there");
        }
        eventually("the store serves", Duration::from_secs(20), || {
            let answer = blob(&mut gateway.client(), "after").unwrap();
            answer["result"]["blob_id"].is_string()
        });
        drop(over);
        let ended: Vec<_> = clients.into_iter().map(|c| c.join().unwrap()).collect();
        let refused: usize = ended.iter().map(|(_, refused)| refused).sum();
        let stored: Vec<_> = ended.into_iter().flat_map(|(stored, _)| stored).collect();
        println!("{} blobs stored, {refused} calls refused", stored.len());
        stored
    });
    assert!(!stored.is_empty());
    let mut client = gateway.client();
    for (id, content) in &stored {
        let answer = client.get(&format!("/blobs/{id}")).unwrap();
        assert_eq!(
            (answer.status, answer.text().as_str()),
            (200, content.as_str()),
            "{id}"
        );
    }
    // What the lost process was writing was swept when the next one began.
    assert_eq!(house.unfinished(), 0);
    let last = host(&gateway).expect("it is there");
    gateway.stop();
    assert!(!last.lives(), "nothing is left");
}

/// What the store had of an upload is gone with its process. The next one may have begun with something else under the same number.
#[test]
fn an_upload_that_outlives_its_store_is_to_be_sent_again() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let gateway = start(&house, "STORAGE");
    let first = host(&gateway).expect("the store has a process");
    let mut client = gateway.client();
    let headers = [("Content-Type", "text/plain"), ("Content-Length", "10")];
    client.head("POST", "/blobs", &headers).unwrap();
    client.write(b"01234").unwrap();
    let tmp = house.store().join("tmp");
    eventually("half of it is there", Duration::from_secs(20), || {
        let names = look::tree(&tmp).into_iter();
        let mut files = names.filter_map(|name| std::fs::metadata(tmp.join(name)).ok());
        files.any(|file| file.is_file() && file.len() == 5)
    });
    // The store's word for that is on its way; this comes behind it.
    blob(&mut gateway.client(), "before").unwrap();
    kill(&first);
    eventually("the store serves", Duration::from_secs(20), || {
        let answer = blob(&mut gateway.client(), "after").unwrap();
        answer["result"]["blob_id"].is_string()
    });
    client.write(b"56789").unwrap();
    let answer = client.answer().unwrap();
    let error = answer.json().unwrap()["error"].take();
    assert_eq!(
        (answer.status, &error["code"], &error["data"]["kind"]),
        (503, &json!(-32007), &json!("unavailable")),
        "{error}"
    );
    assert!(error["data"]["retry_after_ms"].is_u64(), "{error}");
    assert!(gateway.log().contains("that had this open has ended"));
    // Nothing is left of it but what others have stored.
    assert_eq!((house.unfinished(), house.blobs().len()), (0, 2));
    gateway.stop();
}

/// The sandbox's process is killed under a run: the run is lost and said to be, and the next one works.
#[test]
fn a_sandbox_that_is_killed_costs_its_runs_and_nothing_else() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let gateway = start(&house, "SANDBOX");
    let first = host(&gateway).expect("the sandbox has a process");
    let answer = std::thread::scope(|scope| {
        let run = scope.spawn(|| {
            let code = "import time\nfrom runtime import blobs\ndef main(args):\n    blobs.write_text('begun', kind='text/plain')\n    time.sleep(1000)\n";
            let params = json!({ "language": "python", "code": code, "args": {} });
            gateway.client().call("run_code", params).unwrap()
        });
        eventually("the run has begun", Duration::from_secs(20), || {
            !house.blobs().is_empty()
        });
        kill(&first);
        run.join().unwrap()
    });
    let result = &answer["result"];
    assert_eq!(
        (&result["status"], &result["error"]["type"]),
        (&json!("failed"), &json!("WorkerLost")),
        "{answer}"
    );
    // Nobody has counted what it used: no number is better than a wrong one.
    let recorded = audit::lines(&audit::path(&house));
    let lost = recorded.iter().find(|line| line["kind"] == "run");
    let lost = lost.expect("its end is recorded");
    assert_eq!(lost["error_type"], "WorkerLost");
    for usage in [&result["usage"], &lost["usage"]] {
        let known: Vec<&String> = usage.as_object().unwrap().keys().collect();
        assert_eq!(known, ["wall_ms"], "{answer}");
    }
    let mut client = gateway.client();
    eventually("the sandbox is back", Duration::from_secs(20), || {
        let answer = client.call(
            "execute_skill",
            json!({ "name": "hello.world", "args": { "name": "you" } }),
        );
        answer.unwrap()["result"]["output"]["greeting"] == "Hello, you!"
    });
    gateway.stop();
}

/// What was read from it is what it has no more: another one that is published then is what is described and run.
#[test]
fn a_store_that_has_lost_a_skill_may_have_another_of_its_name() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let text = std::fs::read_to_string(house.config()).unwrap();
    let store = compiled(&house, "store", &plugins().join("example-c/store.c"));
    let text = instead(&text, r#"name = "storage-fs""#, &store);
    std::fs::write(house.config(), text).unwrap();
    let gateway = house.start();
    let publish = |says: &str| {
        let params = json!({
            "manifest": {
                "name": "acme.says", "version": "1.0.0", "description": says, "kind": "action", "namespace": "acme",
                "runtime": { "language": "python", "entrypoint": "code/main.py", "export": "main" },
            },
            "skill_md": "---\nname: acme.says\n---\n",
            "files": [{ "path": "code/main.py", "content": format!("def main(args):\n    return {says:?}\n") }],
        });
        let answer = gateway.client().call("create_skill", params).unwrap();
        answer["result"].is_object()
    };
    let executed = |version: Option<&str>| {
        let mut params = json!({ "name": "acme.says", "args": {} });
        if let Some(version) = version {
            params["version"] = json!(version);
        }
        gateway.client().call("execute_skill", params).unwrap()
    };
    assert!(publish("the first"));
    assert_eq!(executed(None)["result"]["output"], "the first");
    for (version, says) in [(Some("1.0.0"), "the second"), (None, "the third")] {
        kill(&host(&gateway).expect("the store has a process"));
        eventually("it is back", Duration::from_secs(20), || publish(says));
        let answer = executed(version);
        assert_eq!(answer["result"]["output"], says, "{answer}");
    }
    gateway.stop();
}

/// Its sandbox is gone, and what it has asked of the store is not: until that comes back it is one of the runs that go on, or
/// runs that are lost one after the other would take all threads of the gateway.
#[test]
fn a_lost_run_that_hangs_in_the_store_has_its_place_until_that_lets_go() {
    let _alone = alone();
    let house = House::new(Settings {
        runs: "max_concurrent = 1\nmax_queued = 0",
        ..Settings::default()
    });
    let text = std::fs::read_to_string(house.config()).unwrap();
    let (store, pipe) = waiting_store(&house, "blob_create");
    let store = format!("{store}\nisolation = \"gateway\"");
    let text = instead(&text, r#"name = "storage-fs""#, &store);
    std::fs::write(house.config(), text).unwrap();
    let gateway = start(&house, "SANDBOX");
    let first = host(&gateway).expect("the sandbox has a process");
    let (answer, mut go) = std::thread::scope(|scope| {
        let run = scope.spawn(|| {
            let code = "from runtime import blobs\ndef main(args):\n    blobs.write_text('x')\n";
            let params = json!({ "language": "python", "code": code });
            gateway.client().result("run_code", params).unwrap()
        });
        // The store is in the call.
        let go = writing_end(&pipe, Duration::from_secs(20));
        kill(&first);
        (run.join().unwrap(), go)
    });
    assert_eq!(answer["error"]["type"], "WorkerLost", "{answer}");
    let in_flight = || value(&metrics(&gateway), "skillgate_runs_in_flight ");
    assert!((in_flight() - 1.0).abs() < 0.1, "it hangs");
    let greet = || {
        let params = json!({ "name": "hello.world", "args": { "name": "you" } });
        gateway.client().call("execute_skill", params).unwrap()
    };
    let refused = greet();
    let said = refused["error"]["message"].as_str().unwrap_or_default();
    assert!(said.starts_with("too many runs"), "{refused}");
    go.write_all(b"x").unwrap();
    eventually("its place is free", Duration::from_secs(20), || {
        greet()["result"]["output"]["greeting"] == "Hello, you!"
    });
    gateway.stop();
}

/// A store's calls cannot see that their caller has gone, and to end its process for one that takes long would take what all
/// others have open there.
#[test]
fn who_leaves_while_the_store_is_at_his_blob_ends_nobody_elses_upload() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let text = std::fs::read_to_string(house.config()).unwrap();
    let (store, pipe) = waiting_store(&house, "blob_commit");
    let text = instead(&text, r#"name = "storage-fs""#, &store);
    std::fs::write(house.config(), text).unwrap();
    let mut command = house.command();
    command.env("SKILLGATE_PLUGINS__PROCESS_CANCEL_GRACE_MS", "1");
    let gateway = house.start_as(command);
    let process = host(&gateway).expect("a store that is named by its path has a process");
    let begin = |sent: &[u8]| {
        let mut client = gateway.client();
        let headers = [("Content-Type", "text/plain"), ("Content-Length", "3")];
        client.head("POST", "/blobs", &headers).unwrap();
        client.write(sent).unwrap();
        client
    };
    let shows = |line: &str| metrics(&gateway).lines().any(|it| it == line);
    let created = |times: u32| {
        let line = format!(
            r#"skillgate_plugin_calls_total{{plugin="storage",op="blob_create",outcome="ok"}} {times}"#
        );
        eventually("the upload has begun", PATIENCE, || shows(&line));
    };
    let mut stays = begin(b"s");
    created(1);
    let leaves = begin(b"go!");
    created(2);
    // The store is at it.
    let mut go = writing_end(&pipe, PATIENCE);
    leaves.hang_up();
    eventually("it is noticed", PATIENCE, || {
        shows(r#"skillgate_http_requests_total{route="/blobs",code="499"} 1"#)
    });
    stays.write(b"ay").unwrap();
    go.write_all(b"xx").unwrap();
    let answer = stays.answer().unwrap();
    assert_eq!(answer.status, 201, "{}", answer.text());
    let log = gateway.log();
    assert!(!log.contains("after it was cancelled"), "{log}");
    assert_eq!(host(&gateway).map(|it| it.pid), Some(process.pid));
    gateway.stop();
}

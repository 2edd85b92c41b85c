//! Clients that go away, and a gateway that is asked to.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::alone;
use crate::audit;
use crate::operator::{metrics, value};
use crate::support::eventually;
use crate::support::gateway::{Gateway, House, Settings, signal};
use crate::support::http::Client;
use crate::support::look;

/// Sends a run without waiting for its answer.
fn asked(gateway: &Gateway, code: &str) -> Client {
    let mut client = gateway.client();
    let params = json!({ "language": "python", "code": code });
    client.ask("run_code", params).unwrap();
    client
}

/// Sends a run without waiting for its answer, and waits until it is under way.
pub(crate) fn begun(gateway: &Gateway, code: &str) -> Client {
    let started = || gateway.log().matches("run started").count();
    let before = started();
    let client = asked(gateway, code);
    eventually("the run is under way", Duration::from_secs(20), || {
        // The code says so by a second process: the first is there before the code is. One that is being made for a later
        // run looks like it for a moment.
        started() > before && gateway.inside().len() >= 3
    });
    client
}

/// With a child, so that there is something to be left behind.
pub(crate) const SLEEPS: &str = "import os, time\ndef main(args):\n    if os.fork() == 0:\n        time.sleep(1000)\n    time.sleep(1000)\n";

#[test]
fn a_run_ends_with_its_caller() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let gateway = house.start();
    // What follows the request is not looked at before that is answered.
    for after in ["", "\r\n"] {
        let mut client = begun(&gateway, SLEEPS);
        client.write(after.as_bytes()).unwrap();
        client.hang_up();
        let took = eventually("the run is gone", Duration::from_secs(2), || {
            gateway.inside().is_empty()
        });
        println!(
            "the caller went, everything inside was gone after {} ms",
            took.as_millis()
        );
    }
    gateway
        .client()
        .run("def main(args):\n    return 1\n", json!({}))
        .unwrap();
    gateway.stop();
}

/// A launcher that does nothing. It goes on when this ends, also with a test that fails: else it would stay for ever.
struct Stopped(u32);

impl Stopped {
    fn new(launcher: u32) -> Stopped {
        signal("STOP", launcher);
        Stopped(launcher)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        signal("CONT", self.0);
    }
}

/// The sandbox cannot end it, since its launcher is stopped.
#[test]
fn a_cancelled_run_has_its_place_until_it_has_ended() {
    let _alone = alone();
    let house = House::new(Settings {
        runs: "max_concurrent = 1",
        ..Settings::default()
    });
    let gateway = house.start();
    let client = begun(&gateway, SLEEPS);
    let stopped = Stopped::new(gateway.launcher().pid);
    client.hang_up();
    eventually("its end is recorded", Duration::from_secs(5), || {
        let records = audit::lines(&audit::path(&house));
        records.iter().any(|line| line["status"] == "cancelled")
    });
    let mut next = asked(&gateway, "def main(args):\n    return 1\n");
    eventually("the next one waits", Duration::from_secs(5), || {
        let page = metrics(&gateway);
        ["skillgate_runs_in_flight ", "skillgate_run_queue_depth "].map(|name| value(&page, name))
            == [1.0, 1.0]
    });
    drop(stopped);
    let answer = next.answer().unwrap();
    assert_eq!(answer.json().unwrap()["result"]["output"], 1);
    gateway.stop();
}

#[test]
fn a_cancelled_run_is_recorded_with_what_it_has_stored() {
    let _alone = alone();
    let house = House::new(Settings {
        server: "drain_timeout_ms = 0",
        ..Settings::default()
    });
    let gateway = house.start();
    let code = "import os, time\nfrom runtime import blobs\ndef main(args):\n    for text in 'one', 'two':\n        blobs.write_text(text, kind='text/plain')\n    if os.fork() == 0:\n        time.sleep(1000)\n    time.sleep(1000)\n";
    let ends = || {
        let mut all = audit::lines(&audit::path(&house));
        all.retain(|line| line["kind"] == "run");
        all
    };
    let stored = |count: usize| {
        eventually("they are stored", Duration::from_secs(20), || {
            house.blobs().len() == count
        });
    };
    let client = begun(&gateway, code);
    stored(2);
    client.hang_up();
    eventually("its end is recorded", Duration::from_secs(5), || {
        ends().len() == 1
    });
    eventually("the run is gone", Duration::from_secs(5), || {
        gateway.inside().is_empty()
    });
    let of_first = ends().remove(0);
    let mut client = gateway.client();
    for (at, text) in ["one", "two"].iter().enumerate() {
        let id = of_first["output_blobs"][at].as_str().unwrap();
        let blob = client.get(&format!("/blobs/{id}")).unwrap();
        assert_eq!(
            (blob.status, blob.text().as_str()),
            (200, *text),
            "{of_first}"
        );
    }
    // The other way to be cancelled.
    let _client = begun(&gateway, code);
    stored(4);
    gateway.stop();
    let ends = ends();
    assert_eq!((ends.len(), house.blobs().len()), (2, 4));
    for end in ends {
        assert_eq!(end["status"], "cancelled");
        assert_eq!(end["output_blobs"].as_array().unwrap().len(), 2, "{end}");
        // Nobody has waited to hear what else it used.
        let usage = end["usage"].as_object().unwrap();
        assert_eq!(usage.keys().collect::<Vec<_>>(), ["wall_ms"], "{end}");
        assert!(usage["wall_ms"].is_u64(), "{end}");
    }
}

#[test]
fn a_run_may_outlive_its_caller() {
    let _alone = alone();
    let house = House::new(Settings {
        runs: "on_disconnect = \"finish\"",
        ..Settings::default()
    });
    let gateway = house.start();
    let code = "import os, time\nfrom runtime import blobs\ndef main(args):\n    if os.fork() == 0:\n        time.sleep(1000)\n    time.sleep(1)\n    blobs.write_text('finished', kind='text/plain')\n";
    let client = begun(&gateway, code);
    assert_eq!(house.blobs().len(), 0, "it is not done yet");
    client.hang_up();
    eventually(
        "the run has stored its blob",
        Duration::from_secs(20),
        || house.blobs().len() == 1,
    );
    eventually("the run has ended", Duration::from_secs(10), || {
        gateway.inside().is_empty() && gateway.log().contains("run ended")
    });
    gateway.stop();
}

#[test]
fn sigterm_lets_runs_finish() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let mut gateway = house.start();
    let mut idle = gateway.client();
    assert_eq!(idle.get("/readyz").unwrap().status, 200);
    let instance = gateway.instance();
    let code = "import os, time\ndef main(args):\n    if os.fork() == 0:\n        time.sleep(1000)\n    time.sleep(5)\n    return 'finished'\n";
    let mut client = begun(&gateway, code);
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "run_code", "params": { "language": "python", "code": "def main(args): pass" } });
    let call = call.to_string();
    let mut half = gateway.client();
    half.write(b"POST /rpc HTTP/1.1\r\nHost: localhost\r\n")
        .unwrap();
    eventually("the gateway has it", Duration::from_secs(20), || {
        half.is_read()
    });
    gateway.signal("TERM");
    let began = Instant::now();
    eventually(
        "new connections are refused",
        Duration::from_secs(3),
        || {
            TcpStream::connect(&gateway.address)
                .is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
        },
    );
    // A connection that was idle is closed; on one that is not yet, a balancer is told.
    if let Ok(answer) = idle.get("/readyz") {
        assert_eq!(answer.status, 503, "{}", answer.text());
        assert!(answer.header("retry-after").is_some());
    }
    // One on which a request has begun to arrive is read to its end, and nothing is done for it.
    let rest = format!(
        "Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{call}",
        call.len()
    );
    half.write(rest.as_bytes()).unwrap();
    let refused = half.answer().unwrap();
    let error = refused.json().unwrap()["error"].clone();
    assert_eq!(
        (refused.status, &error["code"], &error["data"]["kind"]),
        (503, &json!(-32007), &json!("unavailable")),
        "{error}"
    );
    assert_eq!(
        (refused.header("retry-after"), refused.header("connection")),
        (Some("1"), Some("close"))
    );
    assert!(gateway.ended().is_none(), "it waits for the run");
    let answer = client.answer().unwrap();
    let reply = answer.json().unwrap();
    assert_eq!(reply["result"]["output"], "finished", "{reply}");
    let status = gateway.end(Duration::from_secs(10));
    println!(
        "SIGTERM during a run: answered, ended with {status} after {} ms",
        began.elapsed().as_millis()
    );
    assert_eq!(status.code(), Some(0));
    assert!(!gateway.launcher().lives());
    assert!(look::groups(&instance).is_empty() && look::members(&instance).is_empty());
}

/// Stops a gateway whose run goes on for longer than `drain_timeout_ms`, and gives what the log has of the run and after it.
fn outlived(house: &House, mut gateway: Gateway, drain: Duration) -> Vec<Value> {
    let instance = gateway.instance();
    let inside = gateway.inside();
    let began = Instant::now();
    gateway.signal("TERM");
    let status = gateway.end(drain + Duration::from_secs(5));
    let took = began.elapsed();
    println!(
        "SIGTERM during a run of 1000 s, drain_timeout_ms = {}: ended with {status} after {} ms",
        drain.as_millis(),
        took.as_millis()
    );
    assert_eq!(status.code(), Some(0));
    assert!(took >= drain, "the run had all the time that it may have");
    assert!(!gateway.launcher().lives() && inside.iter().all(|process| !process.lives()));
    assert!(look::groups(&instance).is_empty() && look::members(&instance).is_empty());
    audit::assert_holds(house);
    let mut all = audit::lines(&audit::path(house));
    all.retain(|line| line["kind"] == "run" || line["event"] == "stopped");
    all
}

/// Each of them is told what has become of it: in a connection that just ends nobody would know.
#[test]
fn what_outlives_the_drain_is_ended_recorded_and_told() {
    let _alone = alone();
    for on_disconnect in ["kill", "finish"] {
        let house = House::new(Settings {
            server: "drain_timeout_ms = 500",
            runs: &format!("on_disconnect = {on_disconnect:?}\nmax_concurrent = 1"),
            ..Settings::default()
        });
        let gateway = house.start();
        let mut begun = begun(&gateway, SLEEPS);
        let mut waits = asked(&gateway, "def main(args):\n    return 1\n");
        eventually("the next one waits", Duration::from_secs(5), || {
            value(&metrics(&gateway), "skillgate_run_queue_depth ") == 1.0
        });
        let mut sends = gateway.client();
        let half = "POST /blobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nx";
        sends.write(half.as_bytes()).unwrap();
        eventually("the gateway has it", Duration::from_secs(20), || {
            sends.is_read()
        });
        let records = outlived(&house, gateway, Duration::from_millis(500));
        let mut said: Vec<_> = records
            .iter()
            .map(|record| {
                let of = |name| record[name].as_str().unwrap_or_default();
                (of("kind"), of("status"), of("reason"))
            })
            .collect();
        // The two runs end at the same moment.
        said.sort_unstable();
        assert_eq!(
            said,
            [
                ("log", "", ""),
                ("run", "cancelled", ""),
                ("run", "not_started", "stopping")
            ],
            "{on_disconnect}: {records:?}"
        );

        let answer = begun.answer().unwrap();
        let reply = answer.json().unwrap();
        assert_eq!(
            (answer.status, answer.header("connection")),
            (200, Some("close")),
            "{reply}"
        );
        assert_eq!(
            (
                &reply["result"]["status"],
                &reply["result"]["error"]["type"]
            ),
            (&json!("failed"), &json!("Cancelled")),
            "{reply}"
        );
        let message = reply["result"]["error"]["message"].as_str().unwrap();
        assert!(message.contains("the gateway was stopped"), "{message}");

        let answer = waits.answer().unwrap();
        let error = answer.json().unwrap()["error"].clone();
        assert_eq!(
            (&error["code"], &error["data"]["retry_after_ms"]),
            (&json!(-32007), &json!(1000)),
            "{error}"
        );
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("nothing was run"), "{message}");

        let answer = sends.answer().unwrap();
        let error = answer.json().unwrap()["error"].clone();
        assert_eq!(
            (answer.status, answer.header("retry-after"), &error["code"]),
            (503, None, &json!(-32007)),
            "{error}"
        );
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("not known"), "{message}");
    }
}

#[test]
fn a_run_without_a_caller_has_the_same_time() {
    let _alone = alone();
    let house = House::new(Settings {
        server: "drain_timeout_ms = 500",
        runs: "on_disconnect = \"finish\"",
        ..Settings::default()
    });
    let gateway = house.start();
    begun(&gateway, SLEEPS).hang_up();
    let records = outlived(&house, gateway, Duration::from_millis(500));
    assert_eq!(
        (records.len(), &records[0]["status"], &records[1]["event"]),
        (2, &json!("cancelled"), &json!("stopped")),
        "{records:?}"
    );

    // One that ends by itself is waited for, and no longer.
    house.configure(Settings {
        runs: "on_disconnect = \"finish\"",
        ..Settings::default()
    });
    let gateway = house.start();
    let code = "import os, time\nfrom runtime import blobs\ndef main(args):\n    if os.fork() == 0:\n        time.sleep(1000)\n    time.sleep(1.5)\n    blobs.write_text('finished', kind='text/plain')\n";
    begun(&gateway, code).hang_up();
    gateway.stop();
    assert_eq!(house.blobs().len(), 1);
    let records = audit::lines(&audit::path(&house));
    let run = &records[records.len() - 2];
    assert_eq!(
        (&run["kind"], &run["status"]),
        (&json!("run"), &json!("completed")),
        "{run}"
    );
}

#[test]
fn a_second_sigterm_ends_at_once() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let mut gateway = house.start();
    let instance = gateway.instance();
    let _client = begun(&gateway, SLEEPS);
    let inside = gateway.inside();
    gateway.signal("TERM");
    eventually("it drains", Duration::from_secs(5), || {
        gateway.log().contains("draining")
    });
    let began = Instant::now();
    gateway.signal("TERM");
    let status = gateway.end(Duration::from_secs(2));
    println!(
        "the second SIGTERM: ended with {status} after {} ms",
        began.elapsed().as_millis()
    );
    assert!(!status.success(), "{status}");
    eventually("nothing is left", Duration::from_secs(5), || {
        !gateway.launcher().lives()
            && inside.iter().all(|process| !process.lives())
            && look::members(&instance).is_empty()
            && look::groups(&instance).is_empty()
    });
}

//! Many runs, loud runs, more runs than there is room for.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::operator::{metrics, value};
use crate::stopping::{SLEEPS, begun};
use crate::support::gateway::{Gateway, House, Settings, is_root};
use crate::support::http::Client;
use crate::support::{MIB, eventually, look};
use crate::{alone, audit, count};

const AT_ONCE: u64 = 32;
/// What the gateway may grow by between the first hundred runs and the last: allocators keep some.
const GROWTH_KIB_MAX: u64 = 8 * 1024;

/// Everything that a run could leave behind.
#[derive(Debug, PartialEq, Eq)]
struct Remains {
    processes: usize,
    mounts_launcher: usize,
    mounts_host: usize,
    groups: usize,
    descriptors_gateway: usize,
    descriptors_launcher: usize,
    files: BTreeSet<String>,
}

impl Remains {
    fn of(house: &House, gateway: &Gateway, instance: &str) -> Remains {
        let launcher = gateway.launcher().pid;
        Remains {
            processes: look::descendants(gateway.pid).len(),
            mounts_launcher: look::mounts(&launcher.to_string()),
            mounts_host: look::mounts("self"),
            groups: look::groups(instance).len(),
            descriptors_gateway: look::descriptors(gateway.pid),
            descriptors_launcher: look::descriptors(launcher),
            files: look::tree(house.path()),
        }
    }
}

/// Runs of every ending: returned, raised, out of time, with processes and files that it does not clean up.
fn one_run(client: &mut crate::support::http::Client, number: u64, blob: &str) {
    let code = |text: &str, timeout_ms: u64| json!({ "language": "python", "code": text, "args": { "n": number }, "input_blobs": [blob], "limits": { "timeout_ms": timeout_ms } });
    let (method, params, status, error) = match number % 8 {
        0 => (
            "run_code",
            code(
                "def main(args):\n    n = args['n']\n    raise ValueError(n)\n",
                60_000,
            ),
            "failed",
            json!("ValueError"),
        ),
        1 => (
            "run_code",
            code(
                "import os, time\ndef main(args):\n    n = args['n']\n    for _ in range(4):\n        if os.fork() == 0:\n            os.setsid()\n            time.sleep(1000)\n    return n\n",
                60_000,
            ),
            "completed",
            Value::Null,
        ),
        2 => (
            "run_code",
            code(
                "from runtime import blobs\ndef main(args):\n    n = args['n']\n    for i in range(50):\n        open(f'/workspace/{i}', 'w').write('x' * 4096)\n    return blobs.list()\n",
                60_000,
            ),
            "completed",
            Value::Null,
        ),
        3 => (
            "run_code",
            code(
                "import time\ndef main(args):\n    n = args['n']\n    time.sleep(1000)\n",
                400,
            ),
            "failed",
            json!("Timeout"),
        ),
        _ => (
            "execute_skill",
            json!({ "name": "hello.world", "args": { "name": "you" } }),
            "completed",
            Value::Null,
        ),
    };
    let result = client.result(method, params).unwrap();
    assert_eq!(result["status"], status, "{result}");
    assert_eq!(result["error"]["type"], error, "{result}");
}

fn many(gateway: &Gateway, runs: u64, blob: &str) -> f64 {
    let next = AtomicU64::new(0);
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                let mut client = gateway.client();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= runs {
                        break;
                    }
                    one_run(&mut client, number, blob);
                }
            });
        }
    });
    runs as f64 / began.elapsed().as_secs_f64()
}

#[test]
fn many_runs_leave_nothing() {
    let _alone = alone();
    let runs = count(200, 1000);
    // A pool of one size and namespaces of one run: what there is when nothing runs can be counted.
    let sandbox = if is_root() {
        r#"{ pool_min = 4, pool_max = 4, namespaces = "fresh" }"#
    } else {
        r#"{ pool_min = 4, pool_max = 4, namespaces = "fresh", downgrades = ["cgroup"] }"#
    };
    let house = House::new(Settings {
        sandbox: Some(sandbox),
        ..Settings::default()
    });
    let gateway = house.start();
    let instance = gateway.instance();
    let blob = gateway
        .client()
        .result(
            "create_blob",
            json!({ "content": "a,b\n1,2\n", "kind": "text/csv" }),
        )
        .unwrap();
    let blob = blob["blob_id"].as_str().unwrap();

    // Threads, pools and allocators have their size after some.
    many(&gateway, 3 * AT_ONCE, blob);
    eventually("the first runs are gone", Duration::from_secs(10), || {
        gateway.inside().is_empty()
    });
    let settled = || Remains::of(&house, &gateway, &instance);
    let (mut before, mut since) = (settled(), Instant::now());
    // The sockets of the clients above close a moment after their threads have ended, and an interpreter that was made for a
    // run that waited no longer ends when nobody has wanted it for 2 s.
    eventually(
        "what the first runs made is gone",
        Duration::from_secs(60),
        || {
            let now = settled();
            if now != before {
                (before, since) = (now, Instant::now());
            }
            since.elapsed() > Duration::from_secs(3)
        },
    );
    let rss_before = gateway.rss_kib();
    let launcher_before = look::status_kib(gateway.launcher().pid, "VmRSS");

    let rate = many(&gateway, runs, blob);

    let mut after = settled();
    let took = {
        let began = Instant::now();
        while after != before && began.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(20));
            after = settled();
        }
        began.elapsed()
    };
    let rss = gateway.rss_kib();
    let launcher = look::status_kib(gateway.launcher().pid, "VmRSS");
    println!(
        "{runs} runs, {AT_ONCE} at a time: {rate:.1} per second; after the last answer all was as before in {} ms",
        took.as_millis()
    );
    let line = |what: &str, before: usize, after: usize| {
        println!("  {what:<28}{before:>7} before {after:>7} after")
    };
    line("processes", before.processes, after.processes);
    line(
        "mounts (launcher)",
        before.mounts_launcher,
        after.mounts_launcher,
    );
    line("mounts (host)", before.mounts_host, after.mounts_host);
    line("control groups", before.groups, after.groups);
    line(
        "descriptors (gateway)",
        before.descriptors_gateway,
        after.descriptors_gateway,
    );
    line(
        "descriptors (launcher)",
        before.descriptors_launcher,
        after.descriptors_launcher,
    );
    line("files", before.files.len(), after.files.len());
    line("memory of gateway, KiB", rss_before as usize, rss as usize);
    line(
        "memory of launcher, KiB",
        launcher_before as usize,
        launcher as usize,
    );
    assert_eq!(before, after);
    assert!(
        rss <= rss_before + GROWTH_KIB_MAX && launcher <= launcher_before + GROWTH_KIB_MAX,
        "memory is flat"
    );
    gateway.stop();
}

#[test]
fn floods_are_drained() {
    let _alone = alone();
    let bytes = count(256 * MIB, 4096 * MIB);
    let house = House::new(Settings::default());
    let gateway = house.start();
    let mut client = gateway.client();
    let code = "import os\ndef main(args):\n    n = args['n']\n    piece = b'flood ' * 20000\n    left = n\n    while left > 0:\n        left -= os.write(1, piece[:left])\n        if left > 0:\n            left -= os.write(2, piece[:left])\n    return left\n";
    client.run(code, json!({ "n": 1000 })).unwrap();
    let before = gateway.rss_kib();
    let launcher_before = look::status_kib(gateway.launcher().pid, "VmRSS");
    look::reset_peak(gateway.pid);
    let began = Instant::now();
    let result = client.run(code, json!({ "n": bytes })).unwrap();
    let took = began.elapsed();
    let grown = look::status_kib(gateway.pid, "VmHWM").saturating_sub(before);
    let launcher =
        look::status_kib(gateway.launcher().pid, "VmRSS").saturating_sub(launcher_before);
    println!(
        "a run that prints {} MiB: completed in {:.1} s ({:.0} MiB/s), the gateway's peak grew by {grown} KiB, the launcher by {launcher} KiB",
        bytes / MIB,
        took.as_secs_f64(),
        bytes as f64 / MIB as f64 / took.as_secs_f64()
    );
    assert_eq!(result["output"], 0, "{result}");
    assert_eq!(result["logs_truncated"], true, "{result}");
    let logs = result["logs_preview"].as_str().unwrap();
    assert!(
        !logs.is_empty() && logs.len() <= 2048,
        "{} bytes of logs",
        logs.len()
    );
    assert!(grown <= 8 * 1024 && launcher <= 1024, "memory is bounded");
    gateway.stop();
}

#[test]
fn a_full_queue_refuses_at_once() {
    let _alone = alone();
    let house = House::new(Settings {
        runs: "max_concurrent = 2\nmax_queued = 1",
        ..Settings::default()
    });
    let gateway = house.start();
    let running = [(); 2].map(|()| begun(&gateway, SLEEPS));
    let code = |code: &str| json!({ "language": "python", "code": code });
    let mut waits = gateway.client();
    waits
        .ask("run_code", code("def main(args): return 'done'\n"))
        .unwrap();
    eventually("the third waits", Duration::from_secs(20), || {
        value(&metrics(&gateway), "skillgate_run_queue_depth ") == 1.0
    });
    let (mut client, began) = (gateway.client(), Instant::now());
    let reply = client.call("run_code", code("def main(args): pass\n"));
    let (reply, took) = (reply.unwrap(), began.elapsed());
    let error = &reply["error"];
    println!(
        "two run, one waits, the fourth is told after {} ms: {error}",
        took.as_millis()
    );
    assert_eq!(error["code"], -32007, "{reply}");
    assert_eq!(error["data"]["kind"], "unavailable", "{reply}");
    assert!(
        error["data"]["retry_after_ms"]
            .as_u64()
            .is_some_and(|ms| ms > 0),
        "{reply}"
    );
    assert!(took < Duration::from_secs(1), "refused after {took:?}");
    // There is room again, and who waited has it.
    running.into_iter().for_each(Client::hang_up);
    let answer = waits.answer().unwrap().json().unwrap();
    assert_eq!(answer["result"]["output"], "done", "{answer}");
    // The policy allowed all four, so the log says which of them was none.
    let log = audit::lines(&audit::path(&house));
    let mut runs = log.iter().filter(|line| line["kind"] == "run");
    let refused = runs.find(|run| run["status"] == "not_started").unwrap();
    assert_eq!(refused["reason"], "queue_full", "{refused}");
    let decision = &refused["decision_id"];
    let allowed = log
        .iter()
        .find(|line| line["kind"] == "decision" && line["decision_id"] == *decision);
    assert_eq!(allowed.unwrap()["result"]["allow"], true, "{refused}");
    gateway.stop();
}

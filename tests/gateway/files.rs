//! The limit of open files: raised as far as it may be, and where that is not far, what lacks them comes back. And that of a dump.

use std::fs;
use std::process::Command;
use std::time::Duration;

use serde_json::json;

use crate::alone;
use crate::support::eventually;
use crate::support::gateway::{Gateway, House, Settings, is_root};
use crate::support::http::Client;

/// How long the sandbox may take to be as it was.
const PATIENCE: Duration = Duration::from_secs(30);

/// The gateway as a shell with other limits starts it.
fn start(house: &House, limit: &str) -> Gateway {
    let gateway = house.command();
    let mut shell = Command::new("sh");
    shell
        .args(["-c", &format!("ulimit {limit} && exec \"$0\" \"$@\"")])
        .arg(gateway.get_program())
        .args(gateway.get_args());
    house.clean(&mut shell);
    house.start_as(shell)
}

/// Of a process's limit, the soft and the hard one.
fn limits(pid: u32, name: &str) -> [String; 2] {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let line = limits.lines().find_map(|l| l.strip_prefix(name)).unwrap();
    let mut words = line.split_whitespace().map(str::to_owned);
    [words.next().unwrap(), words.next().unwrap()]
}

/// A value of the sandbox's health.
fn value(gateway: &Gateway, name: &str) -> u64 {
    let start = format!("skillgate_plugin_value{{plugin=\"sandbox\",name=\"{name}\"}} ");
    let metrics = Client::open(&gateway.admin)
        .unwrap()
        .get("/metrics")
        .unwrap()
        .text();
    let value = metrics.lines().find_map(|l| l.strip_prefix(&start));
    value
        .unwrap_or_else(|| panic!("no {start}"))
        .parse()
        .unwrap()
}

#[test]
fn the_soft_limit_is_raised_to_the_hard_one() {
    let house = House::new(Settings::default());
    let gateway = start(&house, "-S -n 100");
    let [soft, hard] = limits(gateway.pid, "Max open files");
    assert_eq!(soft, hard);
    gateway.stop();
}

/// All secrets are in its memory. With 1 there is no file, and no call of a handler, which there would be with 0.
#[test]
fn the_gateway_leaves_no_dump() {
    const NAME: &str = "Max core file size";
    let [_, most] = limits(std::process::id(), NAME);
    let house = House::new(Settings::default());
    for before in ["0", "$(ulimit -H -c)"] {
        let gateway = start(&house, &format!("-S -c {before}"));
        let [soft, hard] = limits(gateway.pid, NAME);
        if most == "0" && !is_root() {
            assert_eq!([soft, hard], ["0", "0"], "nobody can raise it");
        } else {
            assert_eq!(soft, "1");
            assert!(most == "0" || hard == most, "{hard}: it stays, for prlimit");
        }
        gateway.stop();
    }
}

/// Callers and runs together want more than there is. Some are refused, in words; nothing of it lasts.
#[test]
fn where_files_lack_runs_are_refused_and_the_next_ones_are_not() {
    const FILES: usize = 160;
    let _alone = alone();
    let sandbox = if is_root() {
        "{ pool_min = 64 }"
    } else {
        r#"{ pool_min = 64, downgrades = ["cgroup"] }"#
    };
    let house = House::new(Settings {
        sandbox: Some(sandbox),
        ..Settings::default()
    });
    let gateway = start(&house, &format!("-n {FILES}"));
    for said in [
        "fewer connections than server.max_connections can be open",
        "fewer interpreters wait than pool_max says",
    ] {
        assert!(gateway.log().contains(said), "{said}: {}", gateway.log());
    }
    let most = (FILES / 4 / 11) as u64;
    eventually("as many wait as may", PATIENCE, || {
        value(&gateway, "pool_idle") == most
    });
    let code = "import time\ndef main(args):\n    time.sleep(0.5)\n    return 'done'\n";
    let (mut done, mut refused, mut turned_away) = (0, 0, 0);
    std::thread::scope(|scope| {
        let callers: Vec<_> = (0..FILES)
            .map(|_| {
                scope.spawn(|| {
                    let params = json!({ "language": "python", "code": code });
                    gateway.client().call("run_code", params)
                })
            })
            .collect();
        for caller in callers {
            match caller.join().unwrap() {
                Ok(reply) if reply["result"]["output"] == "done" => done += 1,
                // Another time.
                Ok(reply) => {
                    let unwatched = reply["result"]["summary"]
                        .as_str()
                        .is_some_and(|said| said.contains("could not be watched"));
                    assert!(
                        unwatched || reply["error"]["data"]["kind"] == "unavailable",
                        "{reply}"
                    );
                    refused += 1;
                }
                // At the door.
                Err(_) => turned_away += 1,
            }
        }
    });
    println!("of {FILES}, {done} done, {refused} refused, {turned_away} turned away");
    assert!(done > 0 && refused > 0);
    // What is known of the sandbox is kept for a moment: it must be of a time after these.
    let has_completed = |runs: u64| value(&gateway, "runs_completed") >= runs;
    eventually("as many wait as before", PATIENCE, || {
        has_completed(done) && value(&gateway, "pool_idle") == most
    });
    let before = value(&gateway, "runs_fresh");
    let reply = gateway
        .client()
        .run("def main(args):\n    return 'again'\n", json!({}))
        .unwrap();
    assert_eq!(reply["output"], "again", "{reply}");
    eventually("it is counted", PATIENCE, || has_completed(done + 1));
    assert_eq!(value(&gateway, "runs_fresh"), before, "{}", gateway.log());
    gateway.stop();
}

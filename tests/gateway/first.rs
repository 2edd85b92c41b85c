//! The gateway as a container's first program, whose children everybody becomes who has lost a parent.

use std::process::Command;
use std::time::Duration;

use serde_json::json;

use crate::alone;
use crate::support::gateway::{House, Settings, is_root, must_not_start, signal};
use crate::support::{eventually, look, tools};

const PATIENCE: Duration = Duration::from_secs(30);
const LAUNCHER: &str = "skillgate-runs";

#[test]
fn as_process_1_it_leaves_no_zombies_and_ends_as_ever() {
    if !is_root() {
        // Who may not make a pid namespace alone does not come to be process 1 of one.
        return tools::left_out("the gateway as process 1: it takes root");
    }
    let _alone = alone();
    let house = House::new(Settings::default());
    let first = || {
        let serve = house.command();
        let mut command = Command::new("unshare");
        command
            .args(["--pid", "--fork", "--mount-proc", "--kill-child"])
            .arg(serve.get_program())
            .args(serve.get_args());
        house.clean(&mut command);
        command
    };
    let mut gateway = house.start_as(first());
    // Of `unshare`, which only waits.
    gateway.pid = look::descendants(gateway.pid)[0].pid;

    // What it forks has its name at first, and is found after it.
    let launcher = || {
        let mut all = look::descendants(gateway.pid).into_iter();
        all.find(|process| process.name == LAUNCHER && process.lives())
    };
    for _ in 0..3 {
        let before = launcher().unwrap();
        signal("KILL", before.pid);
        let code = "def main(args):\n    return 1\n";
        let ran = gateway.client().run(code, json!({})).unwrap();
        assert_eq!(ran["output"], 1, "{ran}");
        assert_ne!(launcher().unwrap().pid, before.pid);
    }
    eventually("nobody is left without a parent who asks", PATIENCE, || {
        look::descendants(gateway.pid)
            .iter()
            .all(look::Process::lives)
    });
    gateway.signal("HUP");
    eventually("it hears of a reload", PATIENCE, || {
        gateway.log().contains("reloaded: ")
    });
    gateway.signal("TERM");
    assert!(gateway.end(PATIENCE).success(), "{}", gateway.said());

    // And how it ends is told.
    let mut gateway = house.start_as(first());
    let below = look::descendants(gateway.pid);
    // Process 1, and its child.
    assert_eq!([&*below[0].name, &*below[1].name], ["skillgate"; 2]);
    signal("KILL", below[1].pid);
    assert_eq!(gateway.end(PATIENCE).code(), Some(128 + 9));
    // Everything in the pid namespace went with it, whoever would have removed its control groups too: the next one does.
    house.start().stop();
    std::fs::write(house.config(), "[server\n").unwrap();
    let (code, said) = must_not_start(first());
    assert_eq!(code, Some(3), "{said}");
    assert_eq!(said.matches("error: ").count(), 1, "{said}");
}

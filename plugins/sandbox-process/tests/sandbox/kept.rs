//! What the launcher keeps for the next runs, when it has no descriptor left for one that is here.

use std::process::Command;

use serde_json::json;

use crate::basics::{mount, open_to_all};
use crate::pool::namespaces;
use crate::support::*;
use crate::tools;
use crate::zygote::warm;
use skillgate_plugin_sdk::blocking::Sandbox;
use skillgate_plugin_sdk::model::{RunRequest, Source};

/// So many at once, each long enough for all to be there.
const BURST: usize = 12;
const MOUNTS: usize = 200;
const RUN: &str = "def main(args): return 1\n";
const LONG: &str = "import time\ndef main(args):\n    time.sleep(1)\n    return 1\n";

/// Leaves the launcher so many numbers for new descriptors.
fn leave(launcher: u32, count: usize) {
    let is_free = |fd: &u32| !std::path::Path::new(&format!("/proc/{launcher}/fd/{fd}")).exists();
    let end = (0..).filter(is_free).nth(count).unwrap();
    let mut prlimit = Command::new("prlimit");
    prlimit.args(["--pid", &launcher.to_string(), &format!("--nofile={end}:")]);
    succeeds(&mut prlimit);
}

/// An instance whose launcher had so many numbers for descriptors before a burst of runs, or all that there are, and what it keeps
/// of those.
fn after_a_burst(left: Option<usize>) -> (Instance, u32) {
    let instance = warm(json!({"pool_min": 1, "pool_max": 1}));
    let launcher = instance.plugin.launcher_pid().unwrap();
    if let Some(left) = left {
        leave(launcher, left);
    }
    at_once(BURST, BURST, |_| assert_eq!(instance.output(LONG), 1));
    eventually("leases are kept, and nothing is under way", || {
        processes_of_runs(launcher).is_empty()
            && metric(&instance, "pool_idle") == 1
            && namespaces(launcher) > BURST / 2
    });
    (instance, launcher)
}

/// What belongs to the launcher of an ordinary user does not show its descriptors.
#[test]
fn what_is_kept_for_the_next_runs_makes_room_for_one_that_is_here() {
    if !is_root() {
        return tools::left_out("the launcher of an ordinary user does not show its descriptors");
    }
    // With what is kept there are fewer left than the run has mounts: the directories of control groups of version 2 are the runs'
    // own, and of a lease its namespaces alone are kept, each of them a descriptor.
    let report = warm(json!({})).plugin.health().unwrap().report_json;
    let each = if report.contains("(v2)") { 19 } else { 24 };
    for fresh in [true, false] {
        let (instance, _) = after_a_burst(Some(BURST * each));
        let skill = tempfile::tempdir().unwrap();
        open_to_all(skill.path());
        let source = || Source::Path(skill.path().display().to_string());
        let run = RunRequest {
            fresh,
            mounts: (0..MOUNTS)
                .map(|n| mount(&format!("/skills/a{n}"), source()))
                .collect(),
            ..request(RUN)
        };
        let tries = || {
            let ways = ["runs_from_pool", "runs_on_demand", "runs_fresh"];
            ways.map(|way| metric(&instance, way)).iter().sum::<u64>()
        };
        let before = tries();
        let (result, services) = instance.run(run);
        assert_eq!(returned::<u32>(&result, &services), 1);
        assert_eq!(tries() - before, 1);
        let counted = ["zygotes_lost", "launcher_starts"].map(|name| metric(&instance, name));
        assert_eq!(counted, [0, 1]);
    }
}

/// ... and so for the next, where it could not even be heard of.
#[test]
fn what_is_kept_goes_when_a_run_cannot_be_heard_of() {
    if !is_root() {
        return tools::left_out("the launcher of an ordinary user does not show its descriptors");
    }
    let (instance, launcher) = after_a_burst(None);
    leave(launcher, 0);
    let run = RunRequest {
        fresh: true,
        ..request(RUN)
    };
    let refused = instance.plugin.run(run, &Services::default()).unwrap_err();
    assert!(refused.not_executed, "{refused:?}");
    // That of home, and the waiting child's.
    eventually("nothing is kept", || namespaces(launcher) <= 2);
    assert_eq!(metric(&instance, "launcher_starts"), 1);
}

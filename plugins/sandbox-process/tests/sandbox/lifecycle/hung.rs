//! A launcher that lives and does nothing: it is stopped, or in a call that does not return.

use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, Instant};

use serde_json::json;

use super::alive;
use crate::support::*;
use crate::tools;
use skillgate_plugin_sdk::blocking::Sandbox;

fn pid_namespace(pid: u32) -> Option<u64> {
    let namespace = std::fs::metadata(format!("/proc/{pid}/ns/pid")).ok()?;
    Some(namespace.ino())
}

/// Nothing counts what such a run uses but its processes, so that the plugin leaves their end to the launcher at first.
#[test]
fn a_run_ends_at_its_deadline_although_its_launcher_does_nothing() {
    const SOON: Duration = Duration::from_millis(200);
    let without = json!({ "cgroup_parent": "/no-such-group", "downgrades": ["cgroup"] });
    let instance = Instance::with(&config_with(without), None);
    let launcher = instance.plugin.launcher_pid().unwrap();
    let namespace = "os.stat('/proc/self/ns/pid').st_ino";
    let mut long = request(&format!(
        "import os, time\ndef main(args):\n    print({namespace}, flush=True)\n    time.sleep(100)\n"
    ));
    long.limits.wall_ms = 3000;
    let services = Services::default();
    let mut below = Vec::new();
    let result = std::thread::scope(|scope| {
        let run = scope.spawn(|| instance.plugin.run(long, &services).unwrap());
        eventually("it runs", || services.text().ends_with('\n'));
        let its_own = services.text().trim().parse().unwrap();
        below = descendants(launcher);
        below.retain(|pid| pid_namespace(*pid) == Some(its_own));
        assert!(below.len() >= 2, "its init and its interpreter: {below:?}");
        assert!(tools::kill("-STOP", launcher));
        run.join().unwrap()
    });
    let answered = Instant::now();
    assert_eq!(result.error_type, "Timeout", "{result:?}");
    eventually("it is over", || below.iter().all(|pid| !alive(*pid)));
    let took = answered.elapsed();
    assert!(took < SOON, "it has outlived its answer by {took:?}");
    assert!(tools::kill("-CONT", launcher));
    assert_eq!(instance.output("def main(args): return 1\n"), 1);
}

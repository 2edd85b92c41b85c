//! A launcher that lives and does nothing: it is stopped, or in a call that does not return.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
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
    // The machine of a test may be busy with others.
    let mut took = Vec::new();
    while took.len() < 3 {
        took.push(outlived_its_answer());
        if took.last().is_some_and(|took| *took < SOON) {
            return;
        }
    }
    panic!("it has outlived its answer by {took:?}");
}

/// A run whose launcher is stopped: how long its processes are there after its answer.
fn outlived_its_answer() -> Duration {
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
        // Its init and its interpreter, of which an ordinary user may not look at both; they end together.
        let seen = if is_root() { 2 } else { 1 };
        assert!(below.len() >= seen, "{below:?}");
        assert!(tools::kill("-STOP", launcher));
        run.join().unwrap()
    });
    let answered = Instant::now();
    assert_eq!(result.error_type, "Timeout", "{result:?}");
    eventually("it is over", || below.iter().all(|pid| !alive(*pid)));
    let took = answered.elapsed();
    assert!(tools::kill("-CONT", launcher));
    assert_eq!(instance.output("def main(args): return 1\n"), 1);
    took
}

/// Has what a process has open on a file, and traces it: until this ends that is not closed, and that the process has ended is not
/// seen by who has started it.
const KEEPER: &str = "\
import ctypes, os, sys
pid, path = int(sys.argv[1]), sys.argv[2]
call = ctypes.CDLL(None).syscall
PIDFD_OPEN, PIDFD_GETFD, PTRACE_SEIZE = 434, 438, 0x4206
process = call(PIDFD_OPEN, pid, 0)
opened = f'/proc/{pid}/fd'
[number] = [int(fd) for fd in os.listdir(opened) if os.readlink(f'{opened}/{fd}') == path]
assert call(PIDFD_GETFD, process, number, 0) >= 0
assert ctypes.CDLL(None).ptrace(PTRACE_SEIZE, pid, 0, 0) == 0
print('kept', flush=True)
sys.stdin.read()
";

fn keep_from_ending(launcher: u32, lock: &Path) -> Child {
    let mut keeper = Command::new("python3")
        .args(["-c", KEEPER, &launcher.to_string()])
        .arg(lock)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    let mut stdout = BufReader::new(keeper.stdout.take().unwrap());
    stdout.read_line(&mut said).unwrap();
    assert_eq!(said, "kept\n");
    keeper
}

/// In a call that a kill does not end either.
#[test]
fn a_launcher_that_cannot_be_ended_is_replaced() {
    if !is_root() {
        return tools::left_out("an ordinary user may not trace the launcher");
    }
    let instance = Instance::new();
    let first = instance.plugin.launcher_pid().unwrap();
    let lock = instance.state.path().join("state/launcher.lock");
    let mut keeper = keep_from_ending(first, &lock.canonicalize().unwrap());
    assert!(tools::kill("-STOP", first));
    let is_replaced = |_: &u32| {
        let mut asked = request("def main(args): return 1\n");
        asked.fresh = true;
        asked.limits.wall_ms = 200;
        instance.run(asked);
        instance.plugin.launcher_pid() != Some(first)
    };
    (0..100).find(is_replaced).expect("another launcher");
    assert_eq!(instance.output("def main(args): return 1\n"), 1);
    assert!(Path::new(&format!("/proc/{first}")).exists());
    assert_eq!(metric(&instance, "launcher_starts"), 2);
    // The second one has the directory to itself.
    let error = create(instance.state.path(), &config(), None).unwrap_err();
    let second = instance.plugin.launcher_pid().unwrap();
    let holder = format!("(process {second}) holds");
    assert!(error.message.contains(&holder), "{error}");
    drop(keeper.stdin.take());
    keeper.wait().unwrap();
    drop(instance.plugin);
    assert!(!Path::new(&format!("/proc/{first}")).exists());
}

//! Before a run has begun: while a launcher starts, or its files are fetched, which may take long.

use std::fs::File;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;

use super::{alive, kill_9};
use crate::basics::mount;
use crate::support::*;
use crate::tools;
use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::blocking::Sandbox;
use skillgate_plugin_sdk::model::Source;
use skillgate_sandbox_process::SandboxProcess;

/// Of a machine that has much to do. A launcher waits longer for the one before it, whose lock is held here.
const SOON: Duration = Duration::from_secs(4);

/// Its launcher's, and it is dead: one that was killed may live for a while yet, and is the one that is asked for until then.
fn end(plugin: &SandboxProcess) {
    let launcher = plugin.launcher_pid().unwrap();
    kill_9(launcher);
    eventually("the launcher has died", || !alive(launcher));
}

/// The first has a launcher started, the others find that another thread does: none waits beyond its time.
#[test]
fn no_run_waits_for_a_launcher_beyond_its_time_or_its_cancel() {
    let instance = Instance::new();
    let lock = File::open(instance.state.path().join("state/launcher.lock")).unwrap();
    end(&instance.plugin);
    lock.lock().unwrap();
    let began = Instant::now();
    let mut short = request("def main(args): return 1\n");
    short.limits.wall_ms = 500;
    let long = request("def main(args): return 1\n");
    let long_id = long.run_id.clone();
    let (short, long, health) = std::thread::scope(|scope| {
        let run = |request| scope.spawn(|| instance.run(request).0);
        let (short, long) = (run(short), run(long));
        let health = scope.spawn(|| instance.plugin.health().unwrap());
        let short = short.join().unwrap();
        eventually("the other one is cancelled", || {
            instance.plugin.cancel(&long_id);
            long.is_finished()
        });
        (short, long.join().unwrap(), health.join().unwrap())
    });
    let took = began.elapsed();
    lock.unlock().unwrap();
    assert_eq!(short.error_type, "Timeout", "{short:?}");
    let why = "500 ms, in which there was no interpreter for it";
    assert!(short.error_message.ends_with(why), "{short:?}");
    assert!(short.create_us >= 500_000, "{short:?}");
    assert_eq!(long.error_type, "Cancelled", "{long:?}");
    assert_eq!(health.state, abi::HEALTH_DOWN, "{health:?}");
    assert!(health.message.contains("being started"), "{health:?}");
    assert!(took < SOON, "{took:?}");
    // The start has gone on.
    assert_eq!(instance.output("def main(args): return 1\n"), 1);
    assert_eq!(metric(&instance, "launcher_starts"), 2);
}

/// As after an update to another minor version, under a gateway that serves: nothing else would say what to do.
#[test]
fn a_launcher_whose_interpreter_is_gone_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let python = dir.path().join("python3");
    let program = "import os, sys; print(os.path.realpath(sys.executable))";
    let program = succeeds(Command::new("python3").args(["-c", program]));
    std::fs::copy(program.trim_end(), &python).unwrap();
    if !Command::new(&python)
        .args(["-c", ""])
        .status()
        .is_ok_and(|it| it.success())
    {
        return tools::left_out("this Python cannot be copied");
    }
    let instance = Instance::with(&config_with(json!({ "interpreter": python })), None);
    assert_eq!(instance.output("def main(args): return 1\n"), 1);
    std::fs::remove_file(&python).unwrap();
    end(&instance.plugin);
    let parts = [
        "tried again soon",
        python.to_str().unwrap(),
        "start the gateway anew",
    ];
    eventually("it says so while the next try is not due", || {
        let health = instance.plugin.health().unwrap();
        assert_eq!(health.state, abi::HEALTH_DOWN, "{health:?}");
        parts.iter().all(|part| health.message.contains(part))
    });
}

/// Its start ends with it.
#[test]
fn an_instance_that_goes_leaves_no_launcher_that_was_starting() {
    let Instance { plugin, state } = Instance::new();
    let lock = File::open(state.path().join("state/launcher.lock")).unwrap();
    end(&plugin);
    lock.lock().unwrap();
    let mut short = request("def main(args): return 1\n");
    short.limits.wall_ms = 1;
    let result = plugin.run(short, &Services::default()).unwrap();
    assert_eq!(result.error_type, "Timeout", "{result:?}");
    lock.unlock().unwrap();
    drop(plugin);
    assert!(lock.try_lock().is_ok(), "nobody has the directory");
}

/// Its code and its secrets are for nobody any more.
#[test]
fn a_run_whose_time_is_over_when_its_files_are_there_is_handed_to_no_child() {
    let instance = Instance::new();
    let services = Services {
        on_read: Some(|_| std::thread::sleep(Duration::from_millis(30))),
        ..Services::default()
    };
    let blob = ("blob:aa".to_owned(), b"content".to_vec());
    services.blobs.lock().unwrap().extend([blob]);
    let mut late = request("def main(args): return 1\n");
    late.limits.wall_ms = 20;
    late.mounts
        .push(mount("/blobs/aa", Source::Blob("blob:aa".into())));
    let result = instance.plugin.run(late, &services).unwrap();
    assert_eq!(result.error_type, "Timeout", "{result:?}");
    let why = "20 ms, in which there was no interpreter for it";
    assert!(result.error_message.ends_with(why), "{result:?}");
}

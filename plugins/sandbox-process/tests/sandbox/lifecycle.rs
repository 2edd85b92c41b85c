//! Whatever dies, in whatever order: nothing is left behind, and the next run works.

mod hung;
mod starting;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::basics::{mount, open_to_all};
use crate::support::*;
use crate::tools;
use skillgate_plugin_sdk::blocking::Sandbox;
use skillgate_plugin_sdk::model::Source;
use skillgate_plugin_sdk::{abi, testing};

fn kill_9(pid: u32) {
    assert!(tools::kill("-9", pid));
}

/// Control groups of instances whose state directory is this, anywhere.
pub(crate) fn groups_of(state: &Path) -> Vec<PathBuf> {
    let marker = group_marker(state);
    let mut found = Vec::new();
    let mut todo = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(dir) = todo.pop() {
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|t| t.is_dir()) {
                if entry.file_name().to_string_lossy().starts_with(&marker) {
                    found.push(entry.path());
                }
                todo.push(entry.path());
            }
        }
    }
    found
}

fn group_marker(state: &Path) -> String {
    let state = state.join("state").canonicalize().unwrap();
    skillgate_sandbox_process::group_name("test", &state).unwrap()
}

pub(crate) fn mounts_with(part: &Path) -> usize {
    std::fs::read_to_string("/proc/self/mountinfo")
        .unwrap()
        .lines()
        .filter(|l| l.contains(part.to_str().unwrap()))
        .count()
}

#[test]
fn a_dead_launcher_fails_its_runs_and_is_replaced() {
    let instance = Instance::new();
    let long = request(
        "import time\ndef main(args):\n    print('here', flush=True)\n    time.sleep(100)\n",
    );
    let services = Services::default();
    let launcher = instance.plugin.launcher_pid().unwrap();
    let mut below = Vec::new();
    let error = std::thread::scope(|scope| {
        let run = scope.spawn(|| instance.plugin.run(long, &services).unwrap_err());
        eventually("it runs", || services.text().contains("here"));
        below = descendants(launcher);
        assert!(below.len() >= 2, "init and the interpreter");
        kill_9(launcher);
        run.join().unwrap()
    });
    assert_eq!(error.code, abi::E_UNAVAILABLE);
    assert!(error.retryable && !error.not_executed, "{error:?}");
    let started = Instant::now();
    assert_eq!(instance.output("def main(args): return 1\n"), 1);
    assert!(started.elapsed() < Duration::from_secs(5));
    assert_ne!(instance.plugin.launcher_pid().unwrap(), launcher);
    eventually("the run died with its launcher", || {
        below.iter().all(|p| !alive(*p))
    });
    let left: Vec<PathBuf> = groups_of(instance.state.path())
        .into_iter()
        .filter(|g| g.to_str().unwrap().ends_with(&format!("-{launcher}")))
        .collect();
    assert_eq!(left, Vec::<PathBuf>::new(), "the new launcher sweeps");
    let health = instance.plugin.health().unwrap();
    assert!(
        health.metrics_json.contains(r#""launcher_starts":2"#),
        "{}",
        health.metrics_json
    );
}

/// Also those that it has been asked for, with an interpreter of their own and with a child of a zygote, and that are given files,
/// which takes the launcher.
#[test]
fn a_dead_launcher_loses_no_run_that_had_not_begun() {
    const FRESH: u64 = 8;
    let instance = Instance::new();
    let asked = metric(&instance, "runs_fresh") + FRESH;
    let dir = tempfile::tempdir().unwrap();
    open_to_all(dir.path());
    std::fs::write(dir.path().join("blob"), "content").unwrap();
    let run = |fresh| {
        let mut request = request("def main(args): return open('/blobs/00ff').read()\n");
        let blob = File::open(dir.path().join("blob")).unwrap();
        request.mounts = vec![mount("/blobs/00ff", Source::Fd(blob.into()))];
        request.fresh = fresh;
        instance.plugin.run(request, &Services::default())
    };
    let launcher = instance.plugin.launcher_pid().unwrap();
    assert!(tools::kill("-STOP", launcher));
    std::thread::scope(|scope| {
        let begin = |n| scope.spawn(move || run(n < FRESH));
        let runs: Vec<_> = (0..5 * FRESH).map(begin).collect();
        eventually("it has been asked for some", || {
            metric(&instance, "runs_fresh") >= asked
        });
        kill_9(launcher);
        for run in runs {
            let result = run.join().unwrap().unwrap();
            assert_eq!(result.output_json, br#""content""#, "{result:?}");
        }
    });
    assert_eq!(metric(&instance, "launcher_starts"), 2);
}

/// Stopped, or in a call that does not return: nobody else would end it, and every run would wait for it in vain.
#[test]
fn a_launcher_that_reads_nothing_is_replaced() {
    let instance = Instance::new();
    let launcher = instance.plugin.launcher_pid().unwrap();
    let began = Instant::now();
    assert!(tools::kill("-STOP", launcher));
    let is_replaced = |_: &u32| {
        let mut asked = request("def main(args): return 1\n");
        asked.fresh = true;
        asked.limits.wall_ms = 200;
        let result = instance.plugin.run(asked, &Services::default()).unwrap();
        assert!(
            result.completed || result.error_type == "Timeout",
            "{result:?}"
        );
        instance.plugin.launcher_pid().unwrap() != launcher
    };
    (0..100).find(is_replaced).expect("another launcher");
    assert!(
        began.elapsed() >= Duration::from_secs(5),
        "it was ended before it was known to be hung"
    );
    assert_eq!(instance.output("def main(args): return 1\n"), 1);
    eventually("the first is gone", || !alive(launcher));
    assert_eq!(metric(&instance, "launcher_starts"), 2);
}

/// A terminal's ^C and a service manager's stop reach the launcher too; the gateway is the one to decide.
#[test]
fn signals_for_the_gateway_do_not_end_runs() {
    let instance = Instance::new();
    let launcher = instance.plugin.launcher_pid().unwrap();
    let code = "import time\ndef main(args):\n    print('here', flush=True)\n    time.sleep(0.3)\n    return 1\n";
    let services = Services::default();
    std::thread::scope(|scope| {
        let run = scope.spawn(|| instance.plugin.run(request(code), &services).unwrap());
        eventually("it runs", || services.text().contains("here"));
        for signal in ["-INT", "-TERM", "-HUP"] {
            assert!(tools::kill(signal, launcher));
        }
        assert!(run.join().unwrap().completed);
    });
    let session = |pid| stat_field(pid, 6);
    assert_ne!(session(std::process::id()), session(launcher));
}

/// Who starts the gateway may not want to hear of its children: what is ignored stays so in the programs that a process executes.
#[test]
fn a_gateway_that_ignores_the_end_of_children_has_runs() {
    let starter = "\
import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.execv(sys.argv[1], sys.argv[1:])
";
    let mut gateway = Command::new("python3");
    gateway.args(["-c", starter]);
    gateway.arg(std::env::current_exe().unwrap());
    gateway.args([
        "--exact",
        "basics::hello",
        "lifecycle::destroy_leaves_nothing",
    ]);
    gateway.arg("zygote::what_a_killed_run_has_used_is_known");
    let text = succeeds(&mut gateway);
    assert!(text.contains("3 passed"), "{text}");
}

#[test]
fn destroy_leaves_nothing() {
    let instance = Instance::new();
    assert_eq!(instance.output("def main(args): return 1\n"), 1);
    let launcher = instance.plugin.launcher_pid().unwrap();
    assert_eq!(groups_of(instance.state.path()).is_empty(), !is_root());
    drop(instance.plugin);
    assert!(!Path::new(&format!("/proc/{launcher}")).exists());
    assert_eq!(groups_of(instance.state.path()), Vec::<PathBuf>::new());
    assert_eq!(
        mounts_with(instance.state.path()),
        0,
        "no mount ever shows in the host's namespace"
    );
}

#[test]
fn drain_waits_for_the_last_run_and_takes_no_new_one() {
    let instance = Instance::new();
    let long = request(
        "import time\ndef main(args):\n    print('here', flush=True)\n    time.sleep(0.3)\n    print('over', flush=True)\n    return 1\n",
    );
    let services = Services::default();
    std::thread::scope(|scope| {
        let run = scope.spawn(|| instance.plugin.run(long, &services).unwrap());
        eventually("it runs", || services.text().contains("here"));
        instance.plugin.drain().unwrap();
        assert!(services.text().contains("over"), "{}", services.text());
        assert!(run.join().unwrap().completed);
    });
    let error = instance
        .plugin
        .run(request("def main(args): return 1\n"), &Services::default())
        .unwrap_err();
    assert!(
        error.not_executed && error.message.contains("draining"),
        "{error}"
    );
}

/// Nobody waits for what a run leaves, but a drain does.
#[test]
fn a_run_is_answered_before_what_it_leaves_is_put_away() {
    let instance = Instance::new();
    let (tell, answered) = channel();
    let (go, goes) = channel::<()>();
    let reply = testing::reply_to(move |answer| {
        tell.send(answer).unwrap();
        goes.recv().unwrap();
    });
    let mut again = request("def main(args): return 1\n");
    let first = request("def main(args): return 1\n");
    again.run_id.clone_from(&first.run_id);
    let services = Services::default();
    std::thread::scope(|scope| {
        let go = go; // goes with what fails here, and nobody waits for it
        let run = scope.spawn(|| instance.plugin.run_and_clear(first, &services, reply));
        assert!(answered.recv().unwrap().unwrap().completed);
        assert_eq!(metric(&instance, "runs_in_flight"), 0);
        // Its name is free.
        assert!(instance.run(again).0.completed);
        let drain = scope.spawn(|| instance.plugin.drain().unwrap());
        let refused = || {
            let another = request("def main(args): return 1\n");
            instance.plugin.run(another, &Services::default()).is_err()
        };
        eventually("it drains", refused);
        assert!((0..1000).all(|_| refused() && !drain.is_finished()));
        go.send(()).unwrap();
        drain.join().unwrap();
        run.join().unwrap();
    });
}

/// What was the run's may hold something of it, or be read by who answers for it, until all of that is closed.
#[test]
fn what_is_lent_to_a_run_is_no_others_until_it_is_put_away() {
    let instance = crate::zygote::warm(serde_json::json!({"pool_max": 0}));
    let network = "print(os.stat('/proc/self/ns/net').st_ino, flush=True)\n";
    let code = |then: &str| format!("import os\ndef main(args):\n    {network}    {then}\n");
    let (tell, answered) = channel();
    let (go, goes) = channel::<()>();
    let reply = testing::reply_to(move |answer| {
        tell.send(answer).unwrap();
        // Until the other end has gone.
        let _ = goes.recv();
    });
    let mut first = request(&code("while True: pass"));
    first.limits.wall_ms = 300;
    let services = Services::default();
    std::thread::scope(|scope| {
        let _go = go; // goes with what fails here, and nobody waits for it
        scope.spawn(|| instance.plugin.run_and_clear(first, &services, reply));
        let result = answered.recv().unwrap().unwrap();
        assert_eq!(result.error_type, "Timeout", "{result:?}");
        let (result, second) = instance.code(&code("return 1"));
        assert!(result.completed, "{result:?}");
        assert_ne!(services.text(), second.text());
    });
}

#[test]
#[ignore = "the process that `a_killed_gateway_leaves_nothing` kills"]
fn gateway_to_be_killed() {
    let Some(state) = std::env::var_os("SANDBOX_TEST_STATE") else {
        return;
    };
    let plugin = create(Path::new(&state), &config(), None).unwrap();
    println!("launcher {}", plugin.launcher_pid().unwrap());
    let services = Services::default();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| plugin.run(request("import os, time\ndef main(args):\n    if os.fork() == 0: os.setsid()\n    print('here', flush=True)\n    time.sleep(100)\n"), &services));
        }
        eventually("they run", || services.text().matches("here").count() == 8);
        println!("everything runs");
        std::thread::sleep(Duration::from_secs(100));
    });
}

#[test]
fn a_killed_gateway_leaves_nothing() {
    let state = tempfile::tempdir().unwrap();
    let mut gateway = Command::new(std::env::current_exe().unwrap())
        .args([
            "--ignored",
            "--exact",
            "lifecycle::gateway_to_be_killed",
            "--nocapture",
        ])
        .env("SANDBOX_TEST_STATE", state.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut launcher = 0;
    for line in BufReader::new(gateway.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok)
    {
        if let Some((_, pid)) = line.split_once("launcher ") {
            launcher = pid.trim().parse().unwrap();
        }
        if line.contains("everything runs") {
            break;
        }
    }
    let all = descendants(gateway.id());
    assert!(
        all.contains(&launcher) && all.len() >= 13,
        "launcher, and three processes of each run: {all:?}"
    );
    let started = Instant::now();
    gateway.kill().unwrap();
    gateway.wait().unwrap();
    eventually("every process is gone", || all.iter().all(|p| !alive(*p)));
    eventually("every group is gone", || groups_of(state.path()).is_empty());
    assert!(
        started.elapsed() < Duration::from_secs(3),
        "{:?}",
        started.elapsed()
    );
    // The next life takes over the same directory.
    let instance = Instance {
        plugin: create(state.path(), &config(), None).unwrap(),
        state,
    };
    assert_eq!(instance.output("def main(args): return 1\n"), 1);
}

/// A zombie is dead: whoever inherits it reaps it when it likes.
fn alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|s| !s.rsplit(')').next().unwrap().trim().starts_with('Z'))
}

#[test]
fn a_thousand_runs_leave_nothing() {
    // Of what is leased so many are kept, or as many as may wait if that is more.
    const KEPT_MIN: usize = 32;
    let instance = Instance::with(&config_with(json!({ "pool_max": 16 })), None);
    let launcher = instance.plugin.launcher_pid().unwrap();
    let many = |count: usize| {
        let next = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..32 {
                scope.spawn(|| {
                    while next.fetch_add(1, std::sync::atomic::Ordering::Relaxed) < count {
                        let mut one = request("def main(args):\n    print('x')\n    return 1\n");
                        // However busy the host is: on two processors 32 interpreters of their own start at once.
                        one.limits.wall_ms = 600_000;
                        let (result, services) = instance.run(one);
                        assert!(result.completed, "{result:?} {}", services.text());
                    }
                });
            }
        });
    };
    let open = |pid: u32| {
        std::fs::read_dir(format!("/proc/{pid}/fd"))
            .unwrap()
            .count()
    };
    // Of its own: how many pages of its file are mapped is the kernel's to say, which takes some back where memory is short.
    let own_kib = |pid: u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:"));
        let kib = line.and_then(|l| l.split_whitespace().next());
        kib.unwrap().parse::<usize>().unwrap()
    };
    many(200);
    // The launcher's own (some twenty), two groups that are made ahead (twelve), leases (three, and ten for what of a control
    // group is lent), which are kept, and children that wait (nine). One that were lost with each run would be more. This
    // process's descriptors are shared with other tests.
    let most = || {
        let waiting = metric(&instance, "pool_idle") as usize;
        24 + 2 * 12 + 13 * (KEPT_MIN + waiting) + 9 * waiting
    };
    let before = own_kib(launcher);
    let threads = std::fs::read_dir("/proc/self/task").unwrap().count();
    many(800);
    let after = own_kib(launcher);
    eventually("the launcher has closed what it opened", || {
        open(launcher) <= most()
    });
    assert!(
        after < before + 2048,
        "memory of the launcher: {before} and {after} KiB"
    );
    assert!(std::fs::read_dir("/proc/self/task").unwrap().count() < threads + 64);
    eventually("every process of a run is gone", || {
        processes_of_runs(launcher).is_empty()
    });
    eventually("the runs' groups are gone", || {
        let waiting = metric(&instance, "pool_idle") as usize;
        groups_of(instance.state.path()).iter().all(|g| {
            let inside = std::fs::read_dir(g).unwrap().flatten();
            let groups = inside.filter(|e| e.file_type().unwrap().is_dir()).count();
            // Version 1: what has nothing of a run is kept for the next.
            let path = g.to_string_lossy();
            let lent = ["/cpu", "/pids"].iter().any(|name| path.contains(name));
            // Two are made ahead.
            groups <= waiting + 2 + if lent { KEPT_MIN } else { 0 }
        })
    });
}

/// All other layers are "ok", but Landlock where it is old.
fn assert_well_but(layers: &[&str], report: &[serde_json::Value]) {
    for line in report {
        let name = line["layer"].as_str().unwrap();
        let state = if name == "landlock" && has_old_landlock() {
            "degraded"
        } else {
            "ok"
        };
        assert!(
            layers.contains(&name) || line["state"] == state,
            "{report:#?}"
        );
    }
}

#[test]
fn a_missing_layer_is_named_and_refused() {
    let state = tempfile::tempdir().unwrap();
    // A parent group that does not exist: the same as a host without control groups.
    let error = create(state.path(), r#"{"cgroup_parent":"/no-such-group"}"#, None).unwrap_err();
    assert_eq!(error.code, abi::E_PRECONDITION);
    assert!(
        error.message.starts_with(
            "this host cannot isolate runs: cgroup: no memory and no pids and no cpu controller"
        ),
        "{error}"
    );
    assert!(
        error.message.contains("write `cgroup` into `downgrades`"),
        "{error}"
    );
    let report: Vec<serde_json::Value> = serde_json::from_str(&error.detail_json).unwrap();
    let cgroup = report.iter().find(|l| l["layer"] == "cgroup").unwrap();
    assert_eq!(cgroup["state"], "missing");
    let detail = cgroup["detail"].as_str().unwrap();
    assert!(
        detail.contains("there is no group /sys/fs/cgroup"),
        "{detail}"
    );
    assert_well_but(&["cgroup"], &report);
    let plugin = create(
        state.path(),
        r#"{"cgroup_parent":"/no-such-group","downgrades":["cgroup"]}"#,
        None,
    )
    .unwrap();
    let caps = plugin.caps();
    assert_eq!(
        caps.enforces & (abi::LIMIT_MEMORY | abi::LIMIT_PIDS | abi::LIMIT_CPU),
        0,
        "it does not claim what it cannot do"
    );
    let health = plugin.health().unwrap();
    assert_eq!(health.state, abi::HEALTH_DEGRADED);
    assert!(
        health.report_json.contains("excused by `downgrades`"),
        "{}",
        health.report_json
    );
    assert!(
        health.message.contains("cgroup: ") && health.message.contains("excused by"),
        "{}",
        health.message
    );
    let instance = Instance { plugin, state };
    assert_eq!(instance.output("def main(args): return 1\n"), 1);
}

#[test]
fn a_wrong_configuration_is_named() {
    let state = tempfile::tempdir().unwrap();
    for (config, part) in [
        (
            r#"{"downgrades":["seccomp"]}"#,
            "only cgroup, landlock and user_namespace",
        ),
        (r#"{"interpreter":"/no/python"}"#, "/no/python"),
        (r#"{"interpreter":"/bin/true"}"#, "/bin/true"),
        (r#"{"pool":1}"#, "unknown field `pool`"),
    ] {
        let error = create(state.path(), config, None).unwrap_err();
        assert!(error.message.contains(part), "{error}");
    }
}

#[test]
fn one_launcher_per_state_directory() {
    let instance = Instance::new();
    let copy_of_a_run = instance.state.path().join("state/copies/run/blob");
    std::fs::create_dir_all(&copy_of_a_run).unwrap();
    let error = create(instance.state.path(), &config(), None).unwrap_err();
    assert!(error.message.contains("launcher.lock"), "{error}");
    assert!(copy_of_a_run.exists(), "it is not the second one's");
    assert_eq!(instance.output("def main(args): return 1\n"), 1);
    let Instance { plugin, state } = instance;
    drop(plugin);
    let _next = create(state.path(), &config(), None).unwrap();
    assert!(!copy_of_a_run.exists(), "an earlier life has left it");
}

#[test]
fn health_says_every_layer() {
    let instance = Instance::new();
    let health = instance.plugin.health().unwrap();
    let report: Vec<serde_json::Value> = serde_json::from_str(&health.report_json).unwrap();
    let layers: Vec<&str> = report
        .iter()
        .map(|l| l["layer"].as_str().unwrap())
        .collect();
    assert_eq!(
        layers,
        [
            "namespaces",
            "mounts",
            "user_namespace",
            "capabilities",
            "seccomp",
            "landlock",
            "cgroup",
            "run",
            "zygote"
        ]
    );
    if is_root() {
        let state = if has_old_landlock() {
            abi::HEALTH_DEGRADED
        } else {
            abi::HEALTH_OK
        };
        assert_eq!(health.state, state, "{report:#?}");
        assert_well_but(&[], &report);
        let caps = instance.plugin.caps();
        assert_eq!(
            caps.enforces,
            abi::LIMIT_WALL
                | abi::LIMIT_CPU
                | abi::LIMIT_MEMORY
                | abi::LIMIT_PIDS
                | abi::LIMIT_DISK
                | abi::LIMIT_NONROOT
        );
    }
}

//! Runs that misbehave, and what the gateway is told of them.

mod channel;

use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::*;
use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::blocking::Sandbox;
use skillgate_plugin_sdk::model::{RunRequest, RunResult};

/// The answer may come this long after the deadline.
const LATE_MAX: Duration = Duration::from_millis(100);

/// A run with a wall clock of `wall_ms`: the answer and how long it took.
fn timed(
    instance: &Instance,
    request: RunRequest,
    wall_ms: u64,
) -> (RunResult, Services, Duration) {
    let services = Services::default();
    let (result, took) = timed_with(instance, request, wall_ms, &services);
    (result, services, took)
}

fn timed_with(
    instance: &Instance,
    mut request: RunRequest,
    wall_ms: u64,
    services: &Services,
) -> (RunResult, Duration) {
    request.limits.wall_ms = wall_ms;
    let started = Instant::now();
    let result = instance.plugin.run(request, services);
    (result.unwrap_or_else(|e| panic!("{e}")), started.elapsed())
}

/// A run that is ended at its deadline, and in time. The machine of a test may be busy with others: three tries, and further ones
/// for those that were over before their code had begun.
fn ended_in_time(instance: &Instance, code: &str, wall_ms: u64) -> (RunResult, Services) {
    ended_in_time_with(instance, code, wall_ms, Services::default, |_| true)
}

fn ended_in_time_with(
    instance: &Instance,
    code: &str,
    wall_ms: u64,
    services: impl Fn() -> Services,
    has_begun: impl Fn(&Services) -> bool,
) -> (RunResult, Services) {
    let (mut took, mut tries) = (Vec::new(), 0);
    while took.len() < 3 {
        tries += 1;
        assert!(tries < 10, "none of {tries} runs of {wall_ms} ms has begun");
        let services = services();
        let (result, t) = timed_with(instance, request(code), wall_ms, &services);
        let wall = Duration::from_millis(wall_ms);
        assert!(t >= wall, "{t:?}");
        if !has_begun(&services) {
            continue;
        }
        if t < wall + LATE_MAX {
            return (result, services);
        }
        took.push(t);
    }
    panic!("the answer of a run of {wall_ms} ms came after {took:?}");
}

pub(crate) fn assert_gone(instance: &Instance) {
    let launcher = instance.plugin.launcher_pid().unwrap();
    eventually("every process of the run is gone", || {
        processes_of_runs(launcher).is_empty()
    });
}

#[test]
fn the_deadline_ends_everything() {
    let instance = Instance::new();
    for (what, body) in [
        ("sleeps", "time.sleep(100)"),
        ("spins", "\n    while True: pass"),
        ("spins in C", "10 ** 10 ** 9"),
        ("stops itself", "os.kill(os.getpid(), signal.SIGSTOP)"),
        (
            "blocks signals",
            "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()); time.sleep(100)",
        ),
        (
            "waits for a child",
            "\n    if os.fork() == 0: time.sleep(100)\n    os.wait()",
        ),
        (
            "leaves a daemon",
            "\n    if os.fork() == 0:\n        os.setsid()\n        if os.fork() == 0: time.sleep(100)\n        os._exit(0)\n    time.sleep(100)",
        ),
    ] {
        let code = format!(
            "import os, signal, time\ndef main(args):\n    print('before', flush=True)\n    {body}\n"
        );
        let has_begun = |services: &Services| !services.text().is_empty();
        let (result, services) =
            ended_in_time_with(&instance, &code, 1000, Services::default, has_begun);
        assert_eq!(result.error_type, "Timeout", "{what}: {result:?}");
        assert!(
            result.error_message.contains("1000 ms"),
            "{}",
            result.error_message
        );
        assert_eq!(services.text(), "before\n", "{what}");
        assert_gone(&instance);
    }
}

#[test]
fn a_daemon_does_not_hold_the_answer() {
    let instance = Instance::new();
    let code = "\
import os, time
def main(args):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0: time.sleep(100)
        os._exit(0)
    return 'done'
";
    let (result, _, took) = timed(&instance, request(code), 20_000);
    assert!(
        result.completed && took < Duration::from_secs(5),
        "{result:?} {took:?}"
    );
    assert_gone(&instance);
}

#[test]
fn a_flood_of_output_is_drained_at_bounded_memory() {
    let instance = Instance::new();
    let code = "import os\ndef main(args):\n    b = b'x' * (1 << 20)\n    for _ in range(1024):\n        n = 0\n        while n < len(b): n += os.write(1, b[n:])\n    return 'done'\n";
    let services = Services {
        keep: Some(2048),
        ..Services::default()
    };
    let before = resident();
    let mut request = request(code);
    request.limits.wall_ms = 120_000;
    let result = instance.plugin.run(request, &services).unwrap();
    assert!(result.completed, "{result:?}");
    assert_eq!(services.text().len(), 2048);
    assert!(
        resident() < before + (64 << 20),
        "the gateway's memory grew"
    );
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|l| l.strip_prefix("VmRSS:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

#[test]
fn a_fork_bomb_stays_in_its_limit() {
    let instance = Instance::new();
    let (result, _, _) = timed(
        &instance,
        request("import os\ndef main(args):\n    while True: os.fork()\n"),
        5000,
    );
    assert!(
        ["TooManyProcesses", "Timeout", "BlockingIOError"].contains(&result.error_type.as_str()),
        "{result:?}"
    );
    assert_gone(&instance);
    let code = "import os, time\ndef main(args):\n    for _ in range(100):\n        if os.fork() == 0: time.sleep(100)\n";
    let (result, _, _) = timed(&instance, request(code), 20_000);
    assert!(
        result.error_type == "TooManyProcesses"
            || (!is_root() && result.error_type == "BlockingIOError"),
        "{result:?}"
    );
    let code = "import threading, time\ndef main(args):\n    for _ in range(100): threading.Thread(target=time.sleep, args=(100,), daemon=True).start()\n";
    let (result, _, _) = timed(&instance, request(code), 20_000);
    assert!(
        result.error_type == "TooManyProcesses"
            || (!is_root() && result.error_type == "RuntimeError"),
        "{result:?}"
    );
    assert_gone(&instance);
}

#[test]
fn a_memory_hog_is_out_of_memory() {
    let instance = Instance::new();
    let code = "def main(args):\n    held = []\n    while True: held.append(bytearray(1 << 20))\n";
    let (result, _, _) = timed(&instance, request(code), 20_000);
    if is_root() {
        assert_eq!(result.error_type, "OutOfMemory", "{result:?}");
        // And not the host's: who is told to call again later does the same again.
        let own = "the run needed more than its 268435456 bytes of memory";
        assert_eq!(result.error_message, own, "{result:?}");
        assert!(
            result.peak_memory_bytes > 200 << 20 && result.peak_memory_bytes <= 257 << 20,
            "{result:?}"
        );
        // A child's memory is the run's, and so is what is in the tmpfs beyond the disk's limit.
        let code = "import os, mmap\ndef main(args):\n    for _ in range(8):\n        if os.fork() == 0:\n            b = bytearray(64 << 20)\n            while True: pass\n    os.wait()\n    raise SystemError('a child was killed')\n";
        let (result, _, _) = timed(&instance, request(code), 20_000);
        assert!(
            !result.completed && result.peak_memory_bytes <= 257 << 20,
            "{result:?}"
        );
        assert!(result.error_message.contains(own), "{result:?}");
    } else {
        assert_eq!(result.error_type, "MemoryError", "{result:?}");
    }
    assert_gone(&instance);
}

#[test]
fn the_disk_is_bounded_in_bytes_and_files() {
    let instance = Instance::new();
    for (what, body) in [
        (
            "bytes",
            "open('/workspace/big', 'wb').write(b'x' * (31 << 20)); open('/tmp/more', 'wb').write(b'x' * (8 << 20))",
        ),
        (
            "bytes of one file, where there is no other",
            "os.unlink('/tmp/run_code.py')\n    try: open('/workspace/big', 'wb').write(b'x' * (33 << 20))\n    except OSError as e:\n        assert e.errno == errno.ENOSPC, e\n        raise",
        ),
        (
            "a file without content",
            "open('/workspace/big', 'wb').truncate(64 << 20)",
        ),
        (
            "shared memory",
            "open('/dev/shm/big', 'wb').write(b'x' * (31 << 20)); open('/workspace/more', 'wb').write(b'x' * (8 << 20))",
        ),
        (
            "files",
            "\n    for i in range(2000): open('/workspace/%d' % i, 'w').close()",
        ),
        (
            "directories",
            "\n    for i in range(2000): os.mkdir('/tmp/%d' % i)",
        ),
        (
            "links",
            "\n    for i in range(2000): os.symlink('x', '/dev/shm/%d' % i)",
        ),
    ] {
        let (result, _, _) = timed(
            &instance,
            request(&format!("import errno, os\ndef main(args):\n    {body}\n")),
            20_000,
        );
        assert_eq!(result.error_type, "DiskFull", "{what}: {result:?}");
    }
}

#[test]
fn processor_time_of_all_processes_together_is_bounded() {
    let instance = Instance::new();
    let mut request = request("import os\ndef main(args):\n    os.fork()\n    while True: pass\n");
    // It makes way for short runs, and other tests have many of those: what it may use comes slowly.
    request.limits.cpu_ms = 300;
    let (result, _, _) = timed(&instance, request, 120_000);
    assert_eq!(result.error_type, "Timeout", "{result:?}");
    // And not of the time that has passed.
    assert!(
        result.error_message.contains("processor time"),
        "{result:?}"
    );
    if is_root() {
        assert!(
            result.cpu_us >= 300_000 && result.cpu_us < 800_000,
            "{result:?}"
        );
    }
}

/// `cpus` holds for the first milliseconds too, when nothing of its kind has been used.
#[test]
fn what_is_used_of_the_processors_at_once_is_bounded() {
    let instance = Instance::with(&config_with(json!({"cpus": 0.5})), None);
    let code = "\
import os, time
def main(args):
    began = time.monotonic()
    children = []
    for _ in range(3):
        pid = os.fork()
        if pid == 0: break
        children.append(pid)
    until = time.process_time() + 0.025
    while time.process_time() < until: pass
    if pid == 0: os._exit(0)
    for pid in children: os.waitpid(pid, 0)
    return time.monotonic() - began
";
    let took = instance.output(code).as_f64().unwrap();
    // Four processes: a tenth of a second, at half a processor.
    if is_root() {
        assert!(took > 0.17, "{took}");
    }
}

#[test]
fn endings_without_a_result() {
    let instance = Instance::new();
    for (what, body, code, signal) in [
        ("exits", "os._exit(3)", 3, 0),
        ("exits with 0", "os._exit(0)", 0, 0),
        ("is killed", "os.kill(os.getpid(), 9)", -1, 9),
        ("crashes", "ctypes.string_at(0)", -1, 11),
        ("aborts", "os.abort()", -1, 6),
    ] {
        let (result, services) = instance.code(&format!(
            "import os, ctypes\ndef main(args):\n    print('before', flush=True)\n    {body}\n"
        ));
        assert_eq!(
            (result.error_type.as_str(), result.exit_code, result.signal),
            ("SandboxError", code, signal),
            "{what}: {result:?}"
        );
        assert_eq!(services.text(), "before\n", "{what}");
    }
}

#[test]
fn init_cannot_be_harmed() {
    let instance = Instance::new();
    let code = "\
import errno, os, resource, signal
def main(args):
    out = {}
    for s in (9, 15, 19, 11, 1):
        try:
            os.kill(1, s); out[str(s)] = 'sent'
        except OSError as e:
            out[str(s)] = errno.errorcode[e.errno]
    try:
        resource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0)); out['limit'] = 'set'
    except OSError as e:
        out['limit'] = errno.errorcode[e.errno]
    try:
        os.kill(-1, 0); out['all'] = 'sent'
    except OSError as e:
        out['all'] = errno.errorcode[e.errno]
    return out
";
    let s = instance.output(code);
    assert_eq!(s["limit"], "EPERM", "{s}");
}

#[test]
fn cancel_ends_a_run_soon() {
    let instance = Instance::new();
    let request = request(
        "import time\ndef main(args):\n    print('here', flush=True)\n    time.sleep(100)\n",
    );
    let id = request.run_id.clone();
    let services = Services::default();
    let result = std::thread::scope(|scope| {
        let run = scope.spawn(|| instance.plugin.run(request, &services).unwrap());
        eventually("it runs", || services.text().contains("here"));
        let started = Instant::now();
        instance.plugin.cancel(&id);
        let result = run.join().unwrap();
        assert!(started.elapsed() < Duration::from_secs(2));
        result
    });
    assert_eq!(result.error_type, "Cancelled");
    instance.plugin.cancel(&id);
    assert_gone(&instance);
}

/// Before it could be found here, and nobody says it again.
#[test]
fn a_run_that_was_cancelled_just_before_it_began_does_not_begin() {
    let instance = Instance::new();
    let services = Services {
        cancelled: true,
        ..Services::default()
    };
    let sleeps = request("import time\ndef main(args): time.sleep(60)\n");
    let error = instance.plugin.run(sleeps, &services).unwrap_err();
    assert_eq!(error.code, abi::E_CANCELLED);
    assert!(error.not_executed, "{error:?}");
}

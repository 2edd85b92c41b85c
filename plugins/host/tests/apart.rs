//! Plugins in processes of their own that crash, hang, lie or are killed: what the gateway and its callers see.
#![allow(unsafe_code, reason = "signals")]
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on says so by panicking"
)]

mod hangs;
mod killed;
mod left;
mod shortage;
mod support;
#[path = "../../../tests/support/tools.rs"]
mod tools;

use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use skillgate_plugin_host::model::{BlobCreate, Error, RunRequest, RunResult, SkillQuery};
use skillgate_plugin_host::{
    Counted as _, Isolation, Pin, Plugin, ProcessSettings, SandboxInstance,
};
use skillgate_plugin_sdk::abi;
use support::{Gateway, config, probe, run, sdk_plugin, settings};

/// Only there to fail.
const PATIENCE: Duration = Duration::from_secs(30);

fn plugin(settings: &ProcessSettings) -> Plugin {
    let opened = Plugin::open(sdk_plugin(), &Pin::default(), Isolation::Process, settings);
    opened.unwrap_or_else(|error| panic!("{error}"))
}

async fn echo() -> Arc<SandboxInstance> {
    echo_with(&settings(), "{}").await
}

async fn echo_with(settings: &ProcessSettings, json: &str) -> Arc<SandboxInstance> {
    plugin(settings).sandbox(config(json)).await.unwrap()
}

fn output(result: &RunResult) -> &str {
    std::str::from_utf8(&result.output_json).unwrap()
}

async fn ask(sandbox: &SandboxInstance, function: &str) -> Result<String, Error> {
    let result = sandbox.run(run(function), Gateway::new()).await?;
    Ok(output(&result).to_owned())
}

/// Until the plugin's process is back.
async fn again(sandbox: &SandboxInstance, function: &str) -> String {
    let waiting = async {
        loop {
            match ask(sandbox, function).await {
                Ok(output) => return output,
                Err(error) => {
                    assert!(error.not_executed && error.retryable, "{error:?}");
                    assert_eq!(error.code, abi::E_UNAVAILABLE, "{error:?}");
                }
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.unwrap()
}

fn kill(pid: &str) {
    signal(pid, libc::SIGKILL);
}

fn signal(pid: &str, signal: libc::c_int) {
    let pid = pid.parse().unwrap();
    // SAFETY: a process of this test.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
}

fn is_there(pid: &str) -> bool {
    // A process that has ended and was not waited for is no process any more.
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap().starts_with(" Z"))
}

async fn until_gone(pid: &str) {
    let waiting = async {
        while is_there(pid) {
            tokio::task::yield_now().await;
        }
    };
    let gone = tokio::time::timeout(PATIENCE, waiting).await;
    gone.unwrap_or_else(|_| panic!("the process {pid} does not end"));
}

/// Runs that have begun and wait to be cancelled.
async fn waiting_runs(
    sandbox: &Arc<SandboxInstance>,
    count: usize,
) -> Vec<tokio::task::JoinHandle<(Error, Instant)>> {
    begun_runs(sandbox, "wait", count).await
}

async fn begun_runs(
    sandbox: &Arc<SandboxInstance>,
    function: &str,
    count: usize,
) -> Vec<tokio::task::JoinHandle<(Error, Instant)>> {
    let (told, mut started) = tokio::sync::mpsc::unbounded_channel();
    let mut runs = Vec::new();
    for i in 0..count {
        let mut request = run(function);
        request.run_id = format!("{function}_{i}");
        let gateway = Arc::new(Gateway {
            told: Some(told.clone()),
            ..Gateway::default()
        });
        let sandbox = Arc::clone(sandbox);
        runs.push(tokio::spawn(async move {
            let error = sandbox.run(request, gateway).await.unwrap_err();
            (error, Instant::now())
        }));
    }
    for _ in 0..count {
        let started = tokio::time::timeout(PATIENCE, started.recv()).await;
        assert_eq!(started.unwrap().unwrap(), "started");
    }
    runs
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_is_one_error_and_the_plugin_comes_back() {
    let sandbox = echo().await;
    let mut pids = vec![ask(&sandbox, "pid").await.unwrap()];
    for function in ["segfault", "abort", "exit"] {
        let error = ask(&sandbox, function).await.unwrap_err();
        assert_eq!(error.code, abi::E_CRASHED, "{function}: {error:?}");
        assert!(
            !error.not_executed,
            "a run that had begun is not tried again"
        );
        assert_eq!(
            error.message,
            "run: the process of the plugin org.skillgate.test has ended"
        );
        pids.push(again(&sandbox, "pid").await);
        let (old, new) = (&pids[pids.len() - 2], &pids[pids.len() - 1]);
        assert_ne!(old, new);
        until_gone(old).await;
    }
    let counts = sandbox.counts().all();
    assert!(counts.contains(&("run", "crashed", 3)), "{counts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn sigkill_under_32_runs_answers_all_of_them_at_once() {
    let sandbox = echo().await;
    let pid = ask(&sandbox, "pid").await.unwrap();
    let runs = waiting_runs(&sandbox, 32).await;
    let killed = Instant::now();
    kill(&pid);
    let mut last = Duration::ZERO;
    for run in runs {
        let (error, when) = tokio::time::timeout(PATIENCE, run).await.unwrap().unwrap();
        assert_eq!((error.code, error.not_executed), (abi::E_CRASHED, false));
        last = last.max(when - killed);
    }
    println!("the last of 32 callers had its error after {last:?}");
    // The target is 10 ms; a busy machine is given more, and a timeout would take far longer.
    assert!(last < Duration::from_secs(1), "{last:?}");
    assert_ne!(again(&sandbox, "pid").await, pid);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_that_goes_on_writing_does_not_keep_its_dead_plugin() {
    let sandbox = echo().await;
    let pid = ask(&sandbox, "pid").await.unwrap();
    let gateway = Gateway::new();
    let running = sandbox.run(run("leave a child"), gateway.clone());
    let ended = tokio::time::timeout(PATIENCE, running).await;
    let error = ended.unwrap_or_else(|_| panic!("the end of {pid} is not heard of"));
    assert_eq!(error.unwrap_err().code, abi::E_CRASHED);
    assert_ne!(again(&sandbox, "pid").await, pid);
    let (_, child) = gateway.output.lock().unwrap().pop().unwrap();
    until_gone(std::str::from_utf8(&child).unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_that_goes_on_beginning_does_not_keep_its_dead_plugin() {
    let sandbox = echo().await;
    let gateway = Gateway::new();
    let (pid, error) = lost(&sandbox, "leave a child that begins", gateway.clone()).await;
    // What the plugin had said before counts.
    assert_eq!((error.code, error.not_executed), (abi::E_CRASHED, false));
    assert_ne!(again(&sandbox, "pid").await, pid);
    let (_, child) = gateway.output.lock().unwrap().pop().unwrap();
    until_gone(std::str::from_utf8(&child).unwrap()).await;
}

/// Whoever has read it, a thread for each life, has closed it then.
#[tokio::test(flavor = "multi_thread")]
async fn a_child_that_keeps_standard_error_does_not_keep_its_reader() {
    let sandbox = echo().await;
    for _ in 0..3 {
        let gateway = Gateway::new();
        let (pid, error) = lost(&sandbox, "leave a child with stderr", gateway.clone()).await;
        assert_eq!(error.code, abi::E_CRASHED);
        assert_ne!(again(&sandbox, "pid").await, pid);
        let (_, child) = gateway.output.lock().unwrap().pop().unwrap();
        until_gone(std::str::from_utf8(&child).unwrap()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_says_no_more_and_goes_on_beginning_is_ended() {
    let sandbox = echo().await;
    let (pid, error) = lost(&sandbox, "say no more and begin", Gateway::new()).await;
    assert_eq!((error.code, error.not_executed), (abi::E_CRASHED, false));
    until_gone(&pid).await;
    assert_ne!(again(&sandbox, "pid").await, pid);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_asks_and_does_not_read_is_ended() {
    let sandbox = echo().await;
    let (pid, error) = lost(&sandbox, "ask and do not read", Gateway::new()).await;
    assert_eq!(error.code, abi::E_CRASHED);
    until_gone(&pid).await;
    assert_ne!(again(&sandbox, "pid").await, pid);
}

/// A run that does not survive its process, with that one's number.
async fn lost(sandbox: &SandboxInstance, function: &str, gateway: Arc<Gateway>) -> (String, Error) {
    let pid = ask(sandbox, "pid").await.unwrap();
    let began = Instant::now();
    let running = sandbox.run(run(function), gateway);
    let ended = tokio::time::timeout(PATIENCE, running).await;
    let waited = began.elapsed();
    // A thread of the event loop that does not come back may be the one that has the clock.
    assert!(ended.is_ok() && waited < PATIENCE, "{pid}: {waited:?}");
    (pid, ended.unwrap().unwrap_err())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_plugin_had_not_begun_was_not_executed() {
    let settings = ProcessSettings {
        // One that works and one that reads.
        threads_max: 2,
        ..settings()
    };
    let sandbox = echo_with(&settings, "{}").await;
    let pid = ask(&sandbox, "pid").await.unwrap();
    let begun = waiting_runs(&sandbox, 1).await.pop().unwrap();
    let queued = {
        let sandbox = Arc::clone(&sandbox);
        tokio::spawn(async move { ask(&sandbox, "echo").await })
    };
    // Sent before this, so it is there when this has been answered: what needs no thread is not kept waiting.
    let cancelled = tokio::time::timeout(Duration::from_millis(50), ask(&sandbox, "echo")).await;
    assert!(cancelled.is_err() && !queued.is_finished());
    kill(&pid);
    assert_eq!(begun.await.unwrap().0.code, abi::E_CRASHED);
    let error = queued.await.unwrap().unwrap_err();
    assert!(error.not_executed && error.retryable, "{error:?}");
    assert_eq!(error.code, abi::E_UNAVAILABLE);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_ignores_its_cancellation_ends_the_process() {
    let settings = ProcessSettings {
        cancel_grace: Duration::from_millis(20),
        ..settings()
    };
    let sandbox = echo_with(&settings, "{}").await;
    let pid = ask(&sandbox, "pid").await.unwrap();
    let bystander = waiting_runs(&sandbox, 1).await.pop().unwrap();
    // One that the plugin had not begun would end by itself.
    begun_runs(&sandbox, "hang", 1).await.remove(0).abort();
    let (error, _) = tokio::time::timeout(PATIENCE, bystander)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(error.code, abi::E_CRASHED);
    until_gone(&pid).await;
    again(&sandbox, "pid").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_listens_to_its_cancellation_is_left_alone() {
    let settings = ProcessSettings {
        // In which its answer has to come, from one process to the other.
        cancel_grace: Duration::from_secs(1),
        ..settings()
    };
    let sandbox = echo_with(&settings, "{}").await;
    let pid = ask(&sandbox, "pid").await.unwrap();
    let waits = tokio::time::timeout(Duration::from_millis(50), ask(&sandbox, "wait")).await;
    assert!(waits.is_err());
    tokio::time::sleep(settings.cancel_grace + Duration::from_millis(200)).await;
    assert_eq!(ask(&sandbox, "pid").await.unwrap(), pid);
}

/// Nobody waits for it any more, and the plugin is at it all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_its_caller_has_left_is_a_use_until_it_has_ended() {
    let settings = ProcessSettings {
        cancel_grace: Duration::from_millis(500),
        ..settings()
    };
    let sandbox = echo_with(&settings, "{}").await;
    sandbox.unused().await;
    let hangs = begun_runs(&sandbox, "hang", 1).await.remove(0);
    let began = Instant::now();
    hangs.abort();
    let unused = tokio::time::timeout(PATIENCE, sandbox.unused()).await;
    assert!(unused.is_ok() && began.elapsed() >= settings.cancel_grace);
}

/// A call in the hands of whoever sends it, and leaves.
type Caller<T> = std::pin::Pin<Box<dyn Future<Output = T> + Send>>;

/// Sends a call.
fn send<T>(caller: &mut Caller<T>) {
    let sent = caller
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()));
    assert!(sent.is_pending());
}

#[tokio::test]
async fn what_waits_for_the_plugins_own_lock_does_not_keep_a_reply_from_it() {
    let dir = tempfile::tempdir().unwrap();
    for flags in ["-DFLAGS=0", "-DFLAGS=SKG_F_BLOCKING"] {
        let file = probe(dir.path(), "locking", &[flags]);
        let plugin = Plugin::open(file, &Pin::default(), Isolation::Process, &settings());
        let sandbox = plugin.unwrap().sandbox(config("{}")).await.unwrap();
        // It reads a secret under its lock. Before the reply its health is asked for, and the run is cancelled.
        let gateway = Gateway::new();
        let request = RunRequest {
            secrets: vec!["TOKEN".into()],
            ..run("secret")
        };
        let (same, host) = (Arc::clone(&sandbox), gateway.clone());
        let mut running: Caller<_> = Box::pin(async move { same.run(request, host).await });
        send(&mut running);
        let same = Arc::clone(&sandbox);
        let mut health: Caller<_> = Box::pin(async move { same.health().await });
        let (told, asked) = tokio::sync::oneshot::channel();
        *gateway.meanwhile.lock().unwrap() = Some(Box::new(move || {
            send(&mut health);
            drop(running);
            drop(told.send(health));
        }));
        let health = tokio::time::timeout(PATIENCE, async { asked.await.unwrap().await }).await;
        let health = health.unwrap_or_else(|_| panic!("{flags}: it hangs"));
        assert_eq!(health.unwrap().state, abi::HEALTH_OK);
        assert_eq!(ask(&sandbox, "echo").await.unwrap(), r#"{"a":1}"#);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_refuses_to_start_is_named_once() {
    let refused = plugin(&settings()).sandbox(config("refuse")).await;
    let error = refused.expect_err("it was asked to refuse");
    let (who, why) = error
        .message
        .split_once(" refused to start the instance ")
        .unwrap();
    assert_eq!(who, "the plugin org.skillgate.test");
    assert!(
        why.ends_with(": asked to refuse") && !why.contains("refused"),
        "{why}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn while_it_is_down_calls_are_refused() {
    down_while_there_is("refuse").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_can_do_less_than_before_is_not_taken() {
    down_while_there_is("refuse.less").await;
}

/// A sandbox that takes what it can do from its host finds a larger one, or gets more of it.
#[tokio::test(flavor = "multi_thread")]
async fn one_that_can_do_more_than_before_is_taken() {
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("refuse");
    let sandbox = echo_with(&settings(), json.to_str().unwrap()).await;
    std::fs::write(dir.path().join("refuse.more"), "").unwrap();
    ask(&sandbox, "abort").await.unwrap_err();
    assert_eq!(again(&sandbox, "made from").await, "test /nowhere");
    // The gateway goes on by what the first life has said.
    assert_eq!(sandbox.caps().max_concurrent, 9);
}

/// The plugin does not start again, or says another thing of itself, while this file is there.
async fn down_while_there_is(name: &str) {
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("refuse");
    let file = dir.path().join(name);
    let sandbox = echo_with(&settings(), json.to_str().unwrap()).await;
    std::fs::write(&file, "").unwrap();
    ask(&sandbox, "abort").await.unwrap_err();
    for _ in 0..3 {
        let began = Instant::now();
        let error = sandbox.health().await.unwrap_err();
        assert_eq!(error.code, abi::E_UNAVAILABLE);
        assert!(
            error.not_executed && error.retry_after_ms >= 100,
            "{error:?}"
        );
        assert!(
            error
                .message
                .contains("the process of the plugin org.skillgate.test has ended"),
            "{error}"
        );
        assert!(began.elapsed() < Duration::from_secs(1), "nobody waits");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    std::fs::remove_file(&file).unwrap();
    // The same instance as before: what it has left behind it finds and sweeps.
    assert_eq!(again(&sandbox, "made from").await, "test /nowhere");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handle_of_an_earlier_life_is_stale() {
    let store = plugin(&settings()).storage(config("{}")).await.unwrap();
    let mut old = store.blob_create(BlobCreate::default()).await.unwrap();
    old.write("lost").await.unwrap();
    let crash = store.skill_get("t", "abort", "1.0.0").await.unwrap_err();
    assert_eq!(crash.code, abi::E_CRASHED);
    let waiting = async {
        while store.skill_list(SkillQuery::default()).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.unwrap();
    // It has the number that the old one had.
    let mut new = store.blob_create(BlobCreate::default()).await.unwrap();
    new.write("kept").await.unwrap();
    let error = old.write("mixed").await.unwrap_err();
    assert_eq!(error.code, abi::E_STALE, "{error}");
    drop(old);
    assert_eq!(new.commit().await.unwrap().size_bytes, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn it_has_nothing_of_the_gateways() {
    // What a careless library of the gateway might leave open for every child.
    let shared = tempfile::NamedTempFile::new().unwrap();
    let fd = std::os::fd::AsRawFd::as_raw_fd(shared.as_file());
    // SAFETY: a flag of an open descriptor.
    assert_eq!(unsafe { libc::fcntl(fd, libc::F_SETFD, 0) }, 0);
    let sandbox = echo().await;
    let text = ask(&sandbox, "surroundings").await.unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(
        lines[..4],
        [
            "NoNewPrivs: 1",
            "dumpable 0",
            "variables []",
            "Max core file size 0 0 bytes"
        ]
    );
    assert!(!text.contains(shared.path().to_str().unwrap()), "{text}");
    let count = |what: &str| lines[4..].iter().filter(|l| l.starts_with(what)).count();
    assert_eq!((count("socket:"), count("/dev/null")), (1, 2), "{text}");

    let privileged = ProcessSettings {
        no_new_privs: false,
        ..settings()
    };
    let text = ask(&*echo_with(&privileged, "{}").await, "surroundings").await;
    assert!(text.unwrap().starts_with("NoNewPrivs: 0"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_for_the_whole_service_does_not_end_it() {
    let sandbox = echo().await;
    let pid = ask(&sandbox, "pid").await.unwrap();
    for sent in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        signal(&pid, sent);
    }
    assert_eq!(ask(&sandbox, "pid").await.unwrap(), pid);
    // A plugin without drain() would say so; this one has it, and the process ends with its instance.
    sandbox.shutdown().await.unwrap();
    until_gone(&pid).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn much_output_arrives_whole_and_in_order() {
    let gateway = Gateway::new();
    let result = echo().await.run(run("flood"), gateway.clone()).await;
    assert_eq!(output(&result.unwrap()), "flooded");
    let all: Vec<u8> = gateway
        .output
        .lock()
        .unwrap()
        .iter()
        .flat_map(|(_, data)| data.clone())
        .collect();
    let expected: Vec<u8> = (0..64_u8).flat_map(|i| vec![i; 100_000]).collect();
    assert!(all == expected, "{} bytes", all.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn much_output_in_small_pieces_does_not_wait_for_ever() {
    let gateway = Gateway::new();
    let sandbox = echo().await;
    let running = sandbox.run(run("drizzle"), gateway.clone());
    let result = tokio::time::timeout(PATIENCE, running).await.unwrap();
    assert_eq!(output(&result.unwrap()), "drizzled");
    assert_eq!(gateway.output.lock().unwrap().len(), 2560);
}

#[test]
fn a_process_that_does_not_start_says_why() {
    let open = |settings: &ProcessSettings| {
        let opened = Plugin::open(sdk_plugin(), &Pin::default(), Isolation::Process, settings);
        opened.unwrap_err().to_string()
    };
    let program = |path: &str, args: &[&str]| ProcessSettings {
        program: Path::new(path).to_owned(),
        ..ProcessSettings::this_program(args)
    };
    let text = open(&program("/nowhere/skillgate", &[]));
    assert!(
        text.contains("its process did not start: No such file"),
        "{text}"
    );
    let text = open(&program("/bin/false", &[]));
    assert!(text.ends_with("it has exited with code 1"), "{text}");
    let text = open(&ProcessSettings {
        start_timeout: Duration::from_millis(200),
        ..program("/bin/sleep", &["100"])
    });
    assert!(
        text.contains("it took too long; it was ended by signal 9"),
        "{text}"
    );
    let text = open(&ProcessSettings {
        args: vec!["lies".into()],
        ..settings()
    });
    assert!(text.contains("frame: kind 255"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_does_not_start_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let broken = probe(dir.path(), "entry", &["-DENTRY_MAJOR=9"]);
    let refused = Plugin::open(&broken, &Pin::default(), Isolation::Process, &settings());
    let text = refused.unwrap_err().to_string();
    assert!(
        text.contains("entry.so: it is built for major 9 of the plugin contract"),
        "{text}"
    );
    let crashing = probe(dir.path(), "crashing", &["-DCRASH_IN_CREATE"]);
    let plugin = Plugin::open(crashing, &Pin::default(), Isolation::Process, &settings());
    let error = plugin.unwrap().sandbox(config("{}")).await.unwrap_err();
    assert_eq!(error.code, abi::E_CRASHED);
    assert!(
        error.message.contains("it was ended by signal 6"),
        "{error}"
    );
    assert!(
        error
            .message
            .ends_with("its last words: create has no future"),
        "{error}"
    );
}

#[test]
fn plugins_that_must_have_a_process_get_one() {
    let dir = tempfile::tempdir().unwrap();
    for (options, expected) in [
        ("-DFLAGS=SKG_F_OWN_PROCESS", Isolation::Process),
        ("-DGO", Isolation::Process),
        ("-DGO_WITHOUT_ID", Isolation::Process),
        ("-DFLAGS=0", Isolation::Gateway),
    ] {
        let file = probe(dir.path(), "forced", &[options]);
        let plugin = Plugin::open(file, &Pin::default(), Isolation::Gateway, &settings());
        assert_eq!(plugin.unwrap().isolation(), expected, "{options}");
    }
}

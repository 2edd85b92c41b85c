//! Descriptors for which the one that receives them has no room, or of which too many are under way: one call ends, and no
//! process. Threads that there is no room for.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use skillgate_plugin_host::model::{BlobCreate, Error, Mount, RunRequest, Source};
use skillgate_plugin_host::{Counted as _, Isolation, SandboxInstance};
use skillgate_plugin_sdk::abi;

use super::tools;
use super::{Caller, PATIENCE, again, ask, echo, kill, signal, until_gone};
use crate::support::{Gateway, config, load, open, probe, run, sdk_plugin};

fn is_exhausted(error: &Error) {
    assert_eq!(error.code, abi::E_EXHAUSTED, "{error:?}");
    let lost = error
        .message
        .contains("descriptors that came with it were lost");
    assert!(lost, "{error}");
}

/// Lets the plugin's process open so many descriptors more.
async fn make_room_for(sandbox: &SandboxInstance, count: &str) {
    let request = RunRequest {
        code: count.into(),
        ..run("make room for")
    };
    sandbox.run(request, Gateway::new()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_plugin_has_no_room_for_is_one_error() {
    let sandbox = echo().await;
    let before = ask(&sandbox, "pid").await.unwrap();
    let open_before = ask(&sandbox, "surroundings").await.unwrap();
    let with_mounts = || {
        let mount = |target: &str| Mount {
            target: target.into(),
            read_only: true,
            source: Source::Fd(std::fs::File::open("/").unwrap().into()),
            sha256: String::new(),
            size_bytes: 0,
        };
        RunRequest {
            mounts: vec![mount("/skills/a"), mount("/skills/b")],
            ..run("mounts")
        }
    };
    // A run lets go of what it was given when it has answered.
    let until_closed = async || {
        let closed = async {
            while ask(&sandbox, "surroundings").await.unwrap() != open_before {
                tokio::task::yield_now().await;
            }
        };
        let closed = tokio::time::timeout(PATIENCE, closed).await;
        closed
            .unwrap_or_else(|_| panic!("what came in part is not closed: more than {open_before}"));
    };
    // What is still open of the run before would be room when it is closed.
    let make_exactly = async |count: &str| {
        make_room_for(&sandbox, "100").await;
        until_closed().await;
        make_room_for(&sandbox, count).await;
    };
    // None of the two comes, or one of them.
    for room in ["0", "1"] {
        make_exactly(room).await;
        let refused = sandbox
            .run(with_mounts(), Gateway::new())
            .await
            .unwrap_err();
        is_exhausted(&refused);
        assert!(refused.not_executed, "the plugin has not heard of it");
    }
    // Both come, and the SDK has no room for its own of the first, or of the second.
    for room in ["2", "3"] {
        make_exactly(room).await;
        let refused = sandbox.run(with_mounts(), Gateway::new()).await;
        let refused = refused.unwrap_err();
        assert_eq!(refused.code, abi::E_EXHAUSTED, "{room}: {refused}");
        assert!(refused.not_executed && refused.retryable, "{refused:?}");
        assert!(refused.message.contains("mounts.fd"), "{refused}");
    }
    // The listener is open, and the host's table has no room for its own.
    make_exactly("1").await;
    let refused = ask(&sandbox, "gate").await.unwrap_err();
    assert_eq!(refused.code, abi::E_EXHAUSTED, "{refused}");
    make_exactly("0").await;
    // What the host says of a service reaches the plugin as a code.
    let refused = ask(&sandbox, "blob by descriptor").await.unwrap_err();
    assert_eq!(refused.code, abi::E_EXHAUSTED, "{refused}");
    make_room_for(&sandbox, "100").await;
    sandbox.run(with_mounts(), Gateway::new()).await.unwrap();
    assert_eq!(ask(&sandbox, "blob by descriptor").await.unwrap(), "given");
    assert_eq!(ask(&sandbox, "pid").await.unwrap(), before);
    until_closed().await;
}

/// One of the ignored tests here, in a process of its own: a limit is a whole process's.
fn alone(test: &str) {
    let mut host = Command::new(std::env::current_exe().unwrap());
    host.args(["--exact", test, "--ignored"]);
    let output = host.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{errors}");
}

#[test]
fn what_the_gateway_has_no_room_for_is_one_error() {
    alone("shortage::child_without_room");
}

/// Sets how much of something this process may have, and gives what it could before.
fn limit_to(what: libc::__rlimit_resource_t, count: u64) -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: a struct that the kernel fills, and reads.
    unsafe {
        assert_eq!(libc::getrlimit(what, &raw mut limit), 0);
        let before = std::mem::replace(&mut limit.rlim_cur, count);
        assert_eq!(libc::setrlimit(what, &raw const limit), 0);
        before
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by what_the_gateway_has_no_room_for_is_one_error, in a process of its own"]
async fn child_without_room() {
    let store = open(&sdk_plugin(), Isolation::Process);
    let store = store.storage(config("{}")).await.unwrap();
    let sandbox = echo().await;
    let pid = ask(&sandbox, "pid").await.unwrap();
    // Of a process that ends, it would be stale.
    let mut blob = store.blob_create(BlobCreate::default()).await.unwrap();

    let lowest = std::fs::File::open("/dev/null").unwrap();
    let lowest_free = std::os::fd::AsRawFd::as_raw_fd(&lowest);
    drop(lowest);
    let all = limit_to(libc::RLIMIT_NOFILE, u64::try_from(lowest_free).unwrap());
    is_exhausted(&store.skill_tree("t", "s", "1.0.0").await.unwrap_err());
    let file = store.skill_read("t", "s", "1.0.0", "file").await;
    is_exhausted(&file.unwrap_err());
    let refused = ask(&sandbox, "gate").await.unwrap_err();
    assert_eq!(refused.code, abi::E_EXHAUSTED, "{refused}");
    limit_to(libc::RLIMIT_NOFILE, all);

    store.skill_tree("t", "s", "1.0.0").await.unwrap();
    blob.write("goes on").await.unwrap();
    assert_eq!(ask(&sandbox, "gate").await.unwrap(), "served");
    assert_eq!(ask(&sandbox, "pid").await.unwrap(), pid);
}

#[test]
fn descriptors_of_which_too_many_are_under_way_are_one_error_each() {
    alone("shortage::child_with_many_under_way");
}

/// From now on this thread, and what it starts, may not do what the system lets an administrator do: the limit of descriptors
/// under way is not for him.
fn be_nobody_special() {
    const VERSION_3: u32 = 0x2008_0522;
    const OF_ADMINISTRATORS: [u32; 2] = [21, 24];
    let mut header = [VERSION_3, 0];
    // Effective, permitted and inheritable; the lower and the upper half of them.
    let mut sets = [[0_u32; 3]; 2];
    let (call, of) = (header.as_mut_ptr(), sets.as_mut_ptr());
    // SAFETY: the header and the two sets of capget(2).
    assert_eq!(unsafe { libc::syscall(libc::SYS_capget, call, of) }, 0);
    for cap in OF_ADMINISTRATORS {
        sets[0][0] &= !(1 << cap);
        sets[0][1] &= !(1 << cap);
        // SAFETY: takes numbers. Whoever may not change it has none of them.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, cap, 0, 0, 0) };
    }
    let of = sets.as_ptr();
    // SAFETY: as above.
    assert_eq!(unsafe { libc::syscall(libc::SYS_capset, call, of) }, 0);
}

/// All of it on one thread, whose rights are meant.
#[tokio::test]
#[ignore = "run by descriptors_of_which_too_many_are_under_way_are_one_error_each, in a process of its own"]
async fn child_with_many_under_way() {
    const LIMIT: u64 = 64;
    const RUNS: usize = LIMIT as usize;
    be_nobody_special();
    limit_to(libc::RLIMIT_NOFILE, LIMIT);
    let sandbox = echo().await;
    let store = open(&sdk_plugin(), Isolation::Process);
    let store = store.storage(config("{}")).await.unwrap();
    let pid = ask(&sandbox, "pid").await.unwrap();
    let root = || Mount {
        target: "/skills/a".into(),
        read_only: true,
        source: Source::Fd(std::fs::File::open("/").unwrap().into()),
        sha256: String::new(),
        size_bytes: 0,
    };
    let request = Arc::new(RunRequest {
        mounts: vec![root(), root()],
        ..run("mounts")
    });
    signal(&pid, libc::SIGSTOP);
    while !is_stopped(&pid) {
        std::thread::yield_now();
    }
    let mut running = Vec::new();
    for _ in 0..RUNS {
        let (sandbox, request) = (Arc::clone(&sandbox), Arc::clone(&request));
        let mut run: Caller<_> =
            Box::pin(async move { sandbox.run(request, Gateway::new()).await });
        let sent = run.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        running.push((run, sent));
    }
    // The other way, of another process of the same user.
    let refused = store.skill_tree("t", "s", "1.0.0").await.unwrap_err();
    are_too_many(&refused);
    signal(&pid, libc::SIGCONT);
    let mut refused = 0;
    for (run, sent) in running {
        match sent {
            Poll::Ready(refusal) => {
                let refusal = refusal.unwrap_err();
                are_too_many(&refusal);
                assert!(refusal.not_executed, "the plugin has not heard of it");
                refused += 1;
            }
            Poll::Pending => {
                let ran = tokio::time::timeout(PATIENCE, run).await;
                let ran = ran.unwrap_or_else(|_| panic!("a run is not heard of"));
                ran.unwrap();
            }
        }
    }
    assert!((1..RUNS).contains(&refused), "{refused}");
    store.skill_tree("t", "s", "1.0.0").await.unwrap();
    sandbox.run(request, Gateway::new()).await.unwrap();
    assert_eq!(ask(&sandbox, "pid").await.unwrap(), pid);
}

/// With all its threads.
fn is_stopped(pid: &str) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let mut stats =
        threads.map(|thread| std::fs::read_to_string(thread.unwrap().path().join("stat")));
    stats.all(|stat| stat.is_ok_and(|stat| stat.rsplit(") ").next().unwrap().starts_with('T')))
}

fn are_too_many(error: &Error) {
    assert_eq!(error.code, abi::E_EXHAUSTED, "{error:?}");
    assert!(error.message.contains("were not sent"), "{error}");
    assert!(error.retryable, "{error:?}");
}

/// The same for a limit that is not for root. The test begins with [`be_nobody`].
fn alone_as_nobody(test: &str) {
    // SAFETY: asks for a number.
    let is_root = unsafe { libc::geteuid() } == 0;
    let is_open = |at: &Path| at.metadata().unwrap().mode() & 0o001 != 0;
    if is_root && !sdk_plugin().ancestors().all(is_open) {
        tools::left_out("the limit is not for root, and nobody else reaches what was built");
        return;
    }
    alone(test);
}

fn be_nobody() {
    const NOBODY: libc::uid_t = 65534;
    // SAFETY: numbers; this process is there for one test.
    unsafe {
        if libc::geteuid() == 0 {
            assert_eq!(libc::setresuid(NOBODY, NOBODY, NOBODY), 0);
        }
    }
}

#[test]
fn a_plugin_that_gets_no_thread_beside_those_it_has_is_served() {
    alone_as_nobody("shortage::child_whose_plugin_gets_no_thread");
}

/// The only child of this process.
fn child() -> i32 {
    let ours = std::process::id().to_string();
    let is_ours = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
        stat.is_ok_and(|stat| stat.rsplit(") ").next().unwrap().split(' ').nth(1) == Some(&ours))
    };
    let all = std::fs::read_dir("/proc").unwrap();
    let pids = all.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    let children: Vec<i32> = pids.filter(is_ours).collect();
    assert_eq!(children.len(), 1, "{children:?}");
    children[0]
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by a_plugin_that_gets_no_thread_beside_those_it_has_is_served, in a process of its own"]
async fn child_whose_plugin_gets_no_thread() {
    be_nobody();
    let sandbox = echo().await;
    let none = libc::rlimit {
        rlim_cur: 1,
        rlim_max: 1,
    };
    // SAFETY: a process of this test, and a struct that the kernel reads.
    let limited = unsafe {
        libc::prlimit(
            child(),
            libc::RLIMIT_NPROC,
            &raw const none,
            std::ptr::null_mut(),
        )
    };
    assert_eq!(limited, 0);
    for _ in 0..3 {
        let health = tokio::time::timeout(PATIENCE, sandbox.health()).await;
        let health = health.unwrap_or_else(|_| panic!("it hangs"));
        assert_eq!(health.unwrap().state, abi::HEALTH_OK);
    }
}

#[test]
fn a_plugin_whose_gateway_has_no_thread_comes_back_when_it_has() {
    alone_as_nobody("shortage::child_without_threads");
}

/// So that no thread is begun any more; gives what could be before.
fn no_threads() -> u64 {
    let all = limit_to(libc::RLIMIT_NPROC, 1);
    let thread = std::thread::Builder::new().spawn(|| {});
    assert!(thread.is_err(), "there may be a thread more");
    all
}

/// Of its threads that may block.
const NAME: &str = "may-block";

/// One whose threads soon end when they have nothing to do.
fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().thread_name(NAME);
    builder.thread_keep_alive(std::time::Duration::from_millis(1));
    builder.build().unwrap()
}

/// Until it has no such thread.
async fn idle() {
    let own = std::fs::read_to_string("/proc/thread-self/comm").unwrap();
    let has_threads = || {
        let all = std::fs::read_dir("/proc/self/task").unwrap();
        let names = all.map(|thread| std::fs::read_to_string(thread.unwrap().path().join("comm")));
        // One that has just begun has the name of this thread, which began it.
        let its = names
            .flatten()
            .filter(|name| name.trim_end() == NAME || *name == own);
        its.count() > 1
    };
    while has_threads() {
        tokio::task::yield_now().await;
    }
}

#[test]
#[ignore = "run by a_plugin_whose_gateway_has_no_thread_comes_back_when_it_has, in a process of its own"]
fn child_without_threads() {
    be_nobody();
    runtime().block_on(async {
        let sandbox = echo().await;
        let pid = ask(&sandbox, "pid").await.unwrap();
        idle().await;
        let all = no_threads();
        let blob = ask(&sandbox, "blob").await.unwrap_err();
        assert_eq!(blob.code, abi::E_EXHAUSTED, "{blob:?}");
        kill(&pid);
        until_gone(&pid).await;
        // Until it could not be started again either, at least once.
        let mut advice = 0;
        while advice <= 100 {
            let error = ask(&sandbox, "pid").await.unwrap_err();
            assert!(!error.message.contains("is stopping"), "{error}");
            advice = error.retry_after_ms;
            tokio::task::yield_now().await;
        }
        limit_to(libc::RLIMIT_NPROC, all);
        assert_ne!(again(&sandbox, "pid").await, pid);
        assert!(ask(&sandbox, "blob").await.is_ok());
    });
}

#[test]
fn a_store_whose_gateway_has_no_thread_is_unavailable_until_it_has() {
    alone_as_nobody("shortage::child_with_a_store_and_no_threads");
}

#[test]
#[ignore = "run by a_store_whose_gateway_has_no_thread_is_unavailable_until_it_has, in a process of its own"]
fn child_with_a_store_and_no_threads() {
    be_nobody();
    runtime().block_on(async {
        let store = load(&sdk_plugin()).storage(config("{}")).await.unwrap();
        let writer = store.blob_create(BlobCreate::default()).await.unwrap();
        let blob = writer.commit().await.unwrap();
        let reader = store.blob_open("t", &blob.id, 0, 0).await.unwrap();
        let readers = async || store.health().await.unwrap().capacity;
        assert_eq!(readers().await, 1);
        idle().await;
        let all = no_threads();
        for _ in 0..3 {
            let error = store.skill_get("t", "s", "").await.unwrap_err();
            assert_eq!(error.code, abi::E_UNAVAILABLE, "{error:?}");
            assert!(error.not_executed, "{error:?}");
        }
        assert_eq!(store.counts().in_flight(), 0);
        drop(reader);
        limit_to(libc::RLIMIT_NPROC, all);
        store.skill_get("t", "s", "").await.unwrap();
        // It was let go of meanwhile, which is made up for.
        while readers().await > 0 {
            tokio::task::yield_now().await;
        }
    });
}

#[test]
fn an_instance_for_which_there_is_no_thread_is_refused() {
    alone_as_nobody("shortage::child_without_a_thread_for_an_instance");
}

#[test]
#[ignore = "run by an_instance_for_which_there_is_no_thread_is_refused, in a process of its own"]
fn child_without_a_thread_for_an_instance() {
    be_nobody();
    let plugin = load(&sdk_plugin());
    runtime().block_on(async {
        let all = no_threads();
        let refused = plugin.sandbox(config("{}")).await.unwrap_err();
        assert_eq!(refused.code, abi::E_UNAVAILABLE, "{refused}");
        limit_to(libc::RLIMIT_NPROC, all);
        plugin.sandbox(config("{}")).await.unwrap();
    });
}

#[test]
fn the_place_of_an_instance_that_no_thread_destroys_stays_taken() {
    alone_as_nobody("shortage::child_with_a_singleton_and_no_threads");
}

#[test]
#[ignore = "run by the_place_of_an_instance_that_no_thread_destroys_stays_taken, in a process of its own"]
fn child_with_a_singleton_and_no_threads() {
    be_nobody();
    let dir = tempfile::tempdir().unwrap();
    let plugin = load(&probe(dir.path(), "single", &["-DFLAGS=SKG_F_SINGLETON"]));
    runtime().block_on(async {
        let first = plugin.sandbox(config("{}")).await.unwrap();
        idle().await;
        let all = no_threads();
        drop(first);
        limit_to(libc::RLIMIT_NPROC, all);
        let second = plugin.sandbox(config("{}")).await.unwrap_err();
        assert_eq!(second.code, abi::E_ALREADY_EXISTS, "{second}");
    });
}

//! A machine that lacks something for a while: what was asked for then is done later.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, Signal, getpid, getrlimit, kill_process, setrlimit};

use super::*;
use tools::{left_out, left_out_but_in_ci};

#[path = "../../../tests/support/tools.rs"]
mod tools;

/// Longer than it takes until it is tried again, in the runtime's time.
const PATIENCE: Duration = Duration::from_secs(600);

/// Whom the limit holds, as it does not hold root.
const NOBODY: u32 = 65534;

/// One of the ignored tests, in a process of its own: the limit is a whole process's.
pub(crate) fn alone_as_nobody(test: &str) {
    let program = std::env::current_exe().unwrap();
    let is_open = |at: &Path| at.metadata().unwrap().mode() & 0o001 != 0;
    let is_root = Path::new("/proc/self").metadata().unwrap().uid() == 0;
    let mut child = Command::new(&program);
    child.args(["--exact", test, "--ignored"]);
    if is_root {
        if !program.ancestors().all(is_open) {
            left_out("the limit is not for root, and nobody else reaches what was built");
            return;
        }
        child.uid(NOBODY).gid(NOBODY);
    }
    let output = match child.output() {
        // Root of a namespace that has no other users, or in which none can be become.
        Err(error)
            if is_root
                && [Errno::INVAL, Errno::PERM]
                    .map(Some)
                    .contains(&Errno::from_io_error(&error)) =>
        {
            left_out_but_in_ci(&format!(
                "the limit is not for root, who cannot become the user {NOBODY} here: {error}"
            ));
            return;
        }
        output => output.unwrap(),
    };
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{errors}");
    assert!(said.contains("1 passed"), "{said}");
}

/// How many threads this process and others of its user may have; gives how many they could before.
pub(crate) fn limit_threads_to(current: Option<u64>) -> Option<u64> {
    let before = getrlimit(Resource::Nproc);
    let (all, maximum) = (before.current, before.maximum);
    setrlimit(Resource::Nproc, Rlimit { current, maximum }).unwrap();
    all
}

/// Refused so often because the machine lacks something, and whether it was.
struct Short(AtomicU64, AtomicBool);

impl Part for Short {
    fn name(&self) -> &'static str {
        "short"
    }
    fn prepare(&self, _: &Config) -> Result<Install, String> {
        let left = self.0.load(Ordering::Relaxed);
        self.1.store(left > 0, Ordering::Relaxed);
        if left == 0 {
            return Ok(Install::new(|| ()));
        }
        self.0.store(left - 1, Ordering::Relaxed);
        Err("one process too many".into())
    }
    fn is_short(&self) -> bool {
        self.1.load(Ordering::Relaxed)
    }
    fn watched(_: &Config) -> Vec<PathBuf> {
        Vec::new()
    }
}

/// How many were taken and refused, when that is so.
async fn until(report: &Report, is_so: impl Fn(&Status) -> bool) -> (u64, u64) {
    let waits = async {
        while !is_so(&report.status()) {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    let waited = tokio::time::timeout(PATIENCE, waits).await;
    waited.unwrap_or_else(|_| panic!("{:?}", report.status()));
    let status = report.status();
    (status.taken, status.refused)
}

/// Also where nothing but SIGHUP asks.
#[tokio::test(start_paused = true)]
async fn what_the_machine_had_no_room_for_is_tried_again() {
    for interval in [Duration::ZERO, Duration::from_secs(1)] {
        let short = Short(AtomicU64::new(2), AtomicBool::new(false));
        let reload = started(Box::new(|| Ok(config())), vec![Box::new(short)]);
        let report = reload.report();
        let began = Instant::now();
        reload.now().unwrap_err();
        let hangup = signal(SignalKind::hangup()).unwrap();
        let following = tokio::spawn(reload.follow(hangup, interval, std::future::pending()));
        assert_eq!(until(&report, |now| now.taken == 1).await, (1, 2));
        let again = began.elapsed().as_secs();
        assert!((120..130).contains(&again), "{again} s");
        tokio::time::sleep(PATIENCE).await;
        let status = report.status();
        assert_eq!((status.taken, status.refused), (1, 2), "and no more");
        following.abort();
    }
}

/// Where SIGHUP alone asks, it has asked for what stood there: whoever edits it afterwards may be in the middle of that.
#[tokio::test(start_paused = true)]
async fn what_is_edited_while_it_is_tried_again_waits_for_the_next_sighup() {
    let files = Files::new();
    let short = Short(AtomicU64::new(1), AtomicBool::new(false));
    let source = files.source();
    let reload = Reload::new(source.read().unwrap(), source, vec![Box::new(short)]);
    let report = reload.report();
    reload.now().unwrap_err();
    files.put("rules", "half of the new ones");
    let hangup = signal(SignalKind::hangup()).unwrap();
    let never = std::future::pending();
    let following = tokio::spawn(reload.clone().follow(hangup, Duration::ZERO, never));
    tokio::time::sleep(PATIENCE).await;
    let status = report.status();
    assert_eq!((status.taken, status.refused), (0, 1));
    following.abort();
    reload.now().unwrap();
}

/// Of what is looked at: a mistake of ours keeps all from being looked at.
static IS_BROKEN: AtomicBool = AtomicBool::new(false);

fn breaks(_: &Config) -> Vec<PathBuf> {
    assert!(!IS_BROKEN.load(Ordering::SeqCst), "nobody looks");
    Vec::new()
}

#[tokio::test(start_paused = true)]
async fn what_nobody_could_look_at_is_not_tried_again() {
    let short = Short(AtomicU64::new(1), AtomicBool::new(false));
    let source = Source::new(Box::new(|| Ok(config())), breaks);
    let reload = Reload::new(source.read().unwrap(), source, vec![Box::new(short)]);
    let report = reload.report();
    reload.now().unwrap_err();
    IS_BROKEN.store(true, Ordering::SeqCst);
    let hangup = signal(SignalKind::hangup()).unwrap();
    let never = std::future::pending();
    let following = tokio::spawn(reload.follow(hangup, Duration::from_secs(1), never));
    tokio::time::sleep(PATIENCE).await;
    let status = report.status();
    assert_eq!((status.taken, status.refused), (0, 1));
    IS_BROKEN.store(false, Ordering::SeqCst);
    assert_eq!(until(&report, |now| now.taken == 1).await, (1, 1));
    following.abort();
}

/// In force, and not on the disk until it is tried again: whether it lacks that, and how often that was tried.
#[derive(Clone, Default)]
struct Unwritten(Arc<(AtomicBool, AtomicU64)>);

impl Part for Unwritten {
    fn name(&self) -> &'static str {
        "rules"
    }
    fn prepare(&self, _: &Config) -> Result<Install, String> {
        let this = self.clone();
        let is_first = this.0.1.load(Ordering::Relaxed) == 0;
        let fails = move || this.0.0.store(is_first, Ordering::Relaxed);
        Ok(Install::new(|| ()).preceded_by(fails))
    }
    fn is_lost(&self) -> bool {
        self.0.0.load(Ordering::Relaxed)
    }
    fn recover(&self) -> Result<(), String> {
        self.0.0.store(false, Ordering::Relaxed);
        self.0.1.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
    fn watched(_: &Config) -> Vec<PathBuf> {
        Vec::new()
    }
}

/// A disk that has refused it is not asked again at once, and what is in force is not said to be lost.
#[test]
fn what_a_reload_could_not_keep_is_not_tried_twice_at_once() {
    let rules = Unwritten::default();
    let reload = started(Box::new(|| Ok(config())), vec![Box::new(rules.clone())]);
    let (log, _here) = Log::begin();
    reload.now().unwrap();
    assert!(rules.is_lost());
    assert_eq!(rules.0.1.load(Ordering::Relaxed), 0);
    reload.again(true);
    assert_eq!(rules.0.1.load(Ordering::Relaxed), 1);
    let said = log.taken();
    assert!(said.contains("is again as it should be"), "{said}");
    assert!(!said.contains("lost"), "{said}");
}

#[test]
fn a_reload_for_which_there_is_no_thread_is_refused_and_comes_later() {
    alone_as_nobody("reload::tests::shortage::child_without_threads");
}

#[test]
#[ignore = "run by a_reload_for_which_there_is_no_thread_is_refused_and_comes_later, in a process of its own"]
fn child_without_threads() {
    for interval in [Duration::ZERO, Duration::from_secs(1)] {
        // One without a thread that is idle.
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().start_paused(true);
        runtime.build().unwrap().block_on(comes_later(interval));
    }
}

async fn comes_later(interval: Duration) {
    let (log, _here) = Log::begin();
    let reload = started(Box::new(|| Ok(config())), vec![]);
    // What SIGHUP asks for is new, and nobody can look at it then.
    assert!(reload.changed().is_some());
    let report = reload.report();
    let hangup = signal(SignalKind::hangup()).unwrap();
    let never = std::future::pending();
    let following = tokio::spawn(reload.follow(hangup, interval, never));
    let all = limit_threads_to(Some(1));
    assert!(std::thread::Builder::new().spawn(|| ()).is_err());

    kill_process(getpid(), Signal::HUP).unwrap();
    while report.status().refused == 0 {
        assert!(!following.is_finished(), "it follows nothing any more");
        tokio::task::yield_now().await;
    }
    assert_eq!(report.status().error.as_deref(), Some(NO_THREAD));
    // The clock stands still while something waits for a thread, and nobody asks again.
    let began = std::time::Instant::now();
    let until = async |is_so: fn(&Status) -> bool| {
        while !is_so(&report.status()) {
            assert!(began.elapsed() < PATIENCE, "{:?}", report.status());
            tokio::time::advance(Duration::from_secs(1)).await;
            tokio::task::yield_now().await;
        }
    };
    until(|now| now.refused == 3).await;
    limit_threads_to(all);
    until(|now| now.taken == 1).await;
    assert_eq!(report.status().error, None);
    let said = log.taken();
    let blind = said.matches("cannot look for changes").count();
    assert_eq!(blind, 1, "{said}");
    following.abort();
}

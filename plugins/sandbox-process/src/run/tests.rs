use std::io::{Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use super::tries::complete;
use super::ways::{Attempt, over_before_it_began};
use super::*;
use crate::cgroup::{Held, Part};
use crate::channel::fake::{Store, channel, get, result, say};
use crate::job::{Frames, Wiped};
use crate::pool::{Pool, PoolRules};
use crate::wire::{Request, RunSpec, Taken};

const HOUR_NS: u64 = 3_600_000_000_000;
const NUMBER: u64 = 7;
const TAKEN: Taken = Taken {
    number: NUMBER,
    deadline_ns: 0,
    cpu_ms: 0,
    cpu_before_us: 0,
};
const RULES: PoolRules = PoolRules {
    min: 0,
    max: 9,
    per_tenant: false,
};

/// One with a channel and nothing else that would say anything, and what is the run's and the launcher's of it.
struct Begun<'a> {
    running: Running<'a>,
    theirs: OwnedFd,
    _output: OwnedFd,
}

fn begun<'a>(
    host: &'a Host,
    store: &'a Store<'a>,
    handle: &'a Handle,
    notice: OwnedFd,
) -> Begun<'a> {
    let (channel, theirs) = channel(store);
    let (output, output_in) = sys::pipe().unwrap();
    sys::set_nonblocking(output.as_fd()).unwrap();
    let running = Running {
        host,
        services: store,
        cancel: handle.wake.as_fd(),
        silence: Arc::default(),
        channel,
        output,
        output_open: true,
        output_wanted: true,
        output_bytes: 0,
        slow_ns: 0,
        place: None,
        child: None,
        notice,
        pidfd: None,
        is_counted: false,
        started_ns: 0,
        ready_ns: None,
        deadline_ns: sys::now_ns() + HOUR_NS,
        result_ns: None,
        verdict: None,
        killed_ns: None,
        buffer: Vec::new(),
    };
    Begun {
        running,
        theirs,
        _output: output_in,
    }
}

fn tell(launcher: &OwnedFd, notice: &Notice) {
    let text = serde_json::to_vec(notice).unwrap();
    sys::send_message(launcher.as_fd(), &text, &[]).unwrap();
}

/// Tells the launcher that nobody listens any more, though a test may have failed.
struct Over(OwnedFd);

impl Drop for Over {
    fn drop(&mut self) {
        let _ = sys::shut_down_writing(self.0.as_fd());
    }
}

/// Until the run is over, with a launcher that ends it when it is told to.
fn attend(running: &mut Running<'_>, launcher: &OwnedFd) -> Outcome {
    std::thread::scope(|scope| {
        let _over = Over(running.notice.try_clone().unwrap());
        scope.spawn(|| {
            let told = sys::receive_message(launcher.as_fd(), &mut [0; 16]);
            if matches!(told, Ok(None)) {
                // Who has heard of the end already does not listen any more.
                let end = serde_json::to_vec(&Notice::Ended(End::default())).unwrap();
                let _ = sys::send_message(launcher.as_fd(), &end, &[]);
            }
        });
        running.attend()
    })
}

#[test]
fn what_ends_a_run_is_looked_at_between_two_requests() {
    let host = Host::for_tests(|_, _, _, _| {});
    for (what, verdict) in [
        ("cancelled", Some(Verdict::Cancelled)),
        ("timeout", Some(Verdict::Timeout)),
        ("ended", None),
        ("lost", None),
    ] {
        let (notice, launcher) = sys::socketpair(libc::SOCK_SEQPACKET).unwrap();
        let handle = Handle::new().unwrap();
        let deadline_ns = match what {
            "timeout" => sys::now_ns() + 20_000_000,
            _ => sys::now_ns() + HOUR_NS,
        };
        let store = Store::new(|| match what {
            "cancelled" => handle.cancel(),
            "ended" => tell(&launcher, &Notice::Ended(End::default())),
            "lost" => sys::shut_down(launcher.as_fd()).unwrap(),
            // What it is asked for takes as long as the run may.
            _ => while sys::now_ns() < deadline_ns {},
        });
        let mut begun = begun(&host, &store, &handle, notice);
        begun.running.deadline_ns = deadline_ns;
        say(&begun.theirs, &vec![get(); 100]);
        let outcome = attend(&mut begun.running, &launcher);
        assert_eq!(begun.running.verdict, verdict, "{what}");
        assert_eq!(matches!(outcome, Outcome::LauncherLost), what == "lost");
        // On a machine that is too busy the time may be over before the first.
        let least = usize::from(what != "timeout");
        assert!(
            (least..=1).contains(&store.asked()),
            "{what}: {}",
            store.asked()
        );
    }
}

/// A short run costs the launcher no message; one that asks the store for something is watched while it is asked.
#[test]
fn the_launcher_hears_of_a_run_before_its_first_request() {
    let host = Host::for_tests(|_, _, _, _| {});
    for asks in [false, true] {
        let (control, heard) = sys::socketpair(libc::SOCK_SEQPACKET).unwrap();
        let pool = Pool::new(control, RULES);
        let (notice, launcher) = sys::socketpair(libc::SOCK_SEQPACKET).unwrap();
        let handle = Handle::new().unwrap();
        let words = || {
            let mut buf = [0; 8192];
            let word = sys::take_message(heard.as_fd(), &mut buf).ok()?;
            let (n, _) = word.unwrap();
            match serde_json::from_slice(&buf[..n]).unwrap() {
                Request::Pool(needs) => Some(needs.taken),
                other => panic!("{other:?}"),
            }
        };
        pool.open();
        assert!(words().is_some());
        let store = Store::new(|| {
            let taken = words().expect("it was told before");
            assert_eq!(taken.iter().map(|t| t.number).collect::<Vec<_>>(), [NUMBER]);
        });
        let mut begun = begun(&host, &store, &handle, notice);
        begun.running.child = Some(Child::of_nothing(&pool, TAKEN));
        // So that it is not told because of the time that is over.
        begun.running.ready_ns = Some(begun.running.deadline_ns);
        let requests = if asks { 1 } else { 0 };
        let said = [vec![get(); requests], vec![result()]].concat();
        say(&begun.theirs, &said);
        attend(&mut begun.running, &launcher);
        assert_eq!(store.asked(), requests);
        assert!(begun.running.channel.result.is_some());
        assert!(words().is_none(), "and once");
    }
}

/// Who hears the launcher for the pool may sleep until it says something, and it has nothing to say.
#[test]
fn a_launcher_that_did_not_read_is_told_again_by_the_run() {
    let host = Host::for_tests(|_, _, _, _| {});
    let (control, heard) = sys::socketpair(libc::SOCK_SEQPACKET).unwrap();
    let fill = control.try_clone().unwrap();
    let pool = Pool::new(control, RULES);
    let (notice, launcher) = sys::socketpair(libc::SOCK_SEQPACKET).unwrap();
    let handle = Handle::new().unwrap();
    pool.open();
    while sys::try_send_message(fill.as_fd(), b"{}", &[]).is_ok() {}
    let said = Mutex::new(Vec::new());
    let store = Store::new(|| {
        let mut buf = [0; 8192];
        while let Ok(Some((n, _))) = sys::take_message(heard.as_fd(), &mut buf) {
            if let Ok(Request::Pool(needs)) = serde_json::from_slice(&buf[..n]) {
                said.lock()
                    .unwrap()
                    .extend(needs.taken.iter().map(|t| t.number));
            }
        }
    });
    let mut begun = begun(&host, &store, &handle, notice);
    begun.running.child = Some(Child::of_nothing(&pool, TAKEN));
    begun.running.ready_ns = Some(begun.running.deadline_ns);
    say(&begun.theirs, &[vec![get(); 2], vec![result()]].concat());
    attend(&mut begun.running, &launcher);
    assert_eq!(*said.lock().unwrap(), [NUMBER]);
}

/// The host may make such a run again, and so must not if it has done something.
#[test]
fn what_has_said_something_was_executed() {
    let host = Host::for_tests(|_, _, _, _| {});
    let said = [vec![], vec![get()], vec![get()[..9].to_vec()]];
    for (said, reads, fails) in said.into_iter().flat_map(|s| {
        let ways = [(false, false), (true, false), (false, true)];
        ways.map(|(reads, fails)| (s.clone(), reads, fails))
    }) {
        let (notice, launcher) = sys::socketpair(libc::SOCK_SEQPACKET).unwrap();
        let handle = Handle::new().unwrap();
        let store = Store::new(|| ());
        let mut begun = begun(&host, &store, &handle, notice);
        say(&begun.theirs, &said);
        if reads {
            assert_ne!(sys::read(begun.theirs.as_fd(), &mut [0; 100]).unwrap(), 0);
        }
        drop(begun.theirs);
        if fails {
            let message = "no words".to_owned();
            tell(&launcher, &Notice::Failed { message });
        } else {
            sys::shut_down(launcher.as_fd()).unwrap();
        }
        let outcome = attend(&mut begun.running, &launcher);
        let error = begun.running.answer(outcome, &RunRequest::default());
        let error = error.unwrap_err();
        assert!(error.retryable, "{error:?}");
        assert_eq!(error.not_executed, said.is_empty() && !reads, "{error:?}");
    }
}

/// Its launcher says so while the run's channel is open, by whose end alone it is known what has been read.
#[test]
fn a_child_that_could_not_be_made_ones_own_is_not_the_last_that_is_tried() {
    let host = Host::for_tests(|_, _, _, _| {});
    let (control, _heard) = sys::socketpair(libc::SOCK_SEQPACKET).unwrap();
    let pool = Pool::new(control, RULES);
    for said in [vec![], get()] {
        let (notice, launcher) = sys::socketpair(libc::SOCK_SEQPACKET).unwrap();
        let handle = Handle::new().unwrap();
        let store = Store::new(|| ());
        let mut begun = begun(&host, &store, &handle, notice);
        begun.running.child = Some(Child::of_nothing(&pool, TAKEN));
        say(&begun.theirs, std::slice::from_ref(&said));
        let message = "no descriptor left".to_owned();
        tell(&launcher, &Notice::Failed { message });
        let outcome = attend(&mut begun.running, &launcher);
        assert_eq!(begun.running.is_untouched(&outcome), said.is_empty());
    }
}

/// What it has done is done. Whoever is told that the sandbox was unavailable does it once more.
#[test]
fn a_run_that_has_its_result_keeps_it_though_the_launcher_dies() {
    let host = Host::for_tests(|_, _, _, _| {});
    for (says, verdict, expected) in [
        (true, None, ""),
        (false, Some(Verdict::Timeout), "Timeout"),
        (false, Some(Verdict::Cancelled), "Cancelled"),
    ] {
        let (notice, launcher) = sys::socketpair(libc::SOCK_SEQPACKET).unwrap();
        let handle = Handle::new().unwrap();
        let store = Store::new(|| ());
        let mut begun = begun(&host, &store, &handle, notice);
        begun.running.verdict = verdict;
        assert_ne!(sys::read(begun.theirs.as_fd(), &mut [0; 100]).unwrap(), 0);
        if says {
            say(&begun.theirs, &[result()]);
        }
        sys::shut_down(launcher.as_fd()).unwrap();
        let outcome = begun.running.attend();
        assert!(matches!(outcome, Outcome::LauncherLost));
        // Of what outlives the launcher nobody knows what else it does.
        say(&begun.theirs, &[result()]);
        begun.running.channel.hear_its_end(0);
        let mut request = RunRequest::default();
        request.limits.output_bytes = 9;
        let answer = begun.running.answer(outcome, &request).unwrap();
        assert_eq!((answer.completed, &*answer.error_type), (says, expected));
    }
}

/// No descriptor is left for what the launcher sends: who has read nothing of its job has not begun, and its caller may try again.
#[test]
fn a_run_that_could_not_be_watched_has_begun_if_it_has_read_its_job() {
    let host = Host::for_tests(|_, _, _, _| {});
    for reads in [false, true] {
        let (notice, launcher) = sys::socketpair(libc::SOCK_SEQPACKET).unwrap();
        let handle = Handle::new().unwrap();
        let store = Store::new(|| ());
        let mut begun = begun(&host, &store, &handle, notice);
        if reads {
            assert_ne!(sys::read(begun.theirs.as_fd(), &mut [0; 100]).unwrap(), 0);
        }
        drop(begun.theirs);
        begun.running.channel.hear_its_end(0);
        let lack = io::Error::from_raw_os_error(libc::EMFILE);
        let outcome = Outcome::Unwatched(lack);
        assert!(!begun.running.is_untouched(&outcome));
        match begun.running.answer(outcome, &RunRequest::default()) {
            Ok(result) if reads => assert_eq!(result.error_type, abi::RUN_SANDBOX_ERROR),
            Err(e) if !reads => assert!(e.not_executed && e.retry_after_ms > 0, "{e:?}"),
            other => panic!("reads: {reads}, {other:?}"),
        }
        drop(launcher);
    }
}

/// Whoever was held up reads what was said to it meanwhile, and not what may be another's by now.
#[test]
fn an_end_that_was_told_counts_however_late_it_is_heard() {
    let (said, heard) = std::sync::mpsc::channel();
    let host = Host::for_tests(move |level, _, _, fields| {
        said.send(format!("{level:?} {fields:?}")).unwrap();
    });
    let (notice, launcher) = sys::socketpair(libc::SOCK_SEQPACKET).unwrap();
    let handle = Handle::new().unwrap();
    let store = Store::new(|| ());
    let mut begun = begun(&host, &store, &handle, notice);
    begun.running.verdict = Some(Verdict::Timeout);
    begun.running.killed_ns = Some(0);
    assert!(matches!(begun.running.attend(), Outcome::Stuck));
    let logged = heard.try_recv().unwrap();
    assert_eq!(logged, r#"Warn [("waited_ms", "90")]"#);
    let ended = End {
        cpu_us: 5,
        ..End::default()
    };
    tell(&launcher, &Notice::Ready);
    tell(&launcher, &Notice::Ended(ended));
    let outcome = begun.running.attend();
    assert!(matches!(outcome, Outcome::Ended(end) if end.cpu_us == 5));
}

/// Of a short run the launcher has not heard when that ends.
#[test]
fn what_making_its_child_has_cost_is_not_the_runs() {
    let host = Host::for_tests(|_, _, _, _| {});
    let (control, _heard) = sys::socketpair(libc::SOCK_SEQPACKET).unwrap();
    let pool = Pool::new(control, RULES);
    let (notice, launcher) = sys::socketpair(libc::SOCK_SEQPACKET).unwrap();
    let handle = Handle::new().unwrap();
    let store = Store::new(|| ());
    let mut begun = begun(&host, &store, &handle, notice);
    let taken = Taken {
        cpu_before_us: 3,
        ..TAKEN
    };
    begun.running.child = Some(Child::of_nothing(&pool, taken));
    let ended = End {
        cpu_us: 5,
        ..End::default()
    };
    tell(&launcher, &Notice::Ended(ended));
    let outcome = begun.running.attend();
    assert!(matches!(outcome, Outcome::Ended(end) if end.cpu_us == 2));
}

/// It has waited for an interpreter, and nobody has told it.
#[test]
fn none_is_started_for_a_run_that_is_over() {
    let handle = Handle::new().unwrap();
    let of = |deadline_ns| {
        over_before_it_began(deadline_ns, &handle, 0, 7).map(|result| result.error_type)
    };
    let later = sys::now_ns() + HOUR_NS;
    assert_eq!(of(later), None);
    assert_eq!(of(sys::now_ns()).as_deref(), Some("Timeout"));
    handle.cancel();
    assert_eq!(of(later).as_deref(), Some("Cancelled"));
}

/// It is waited for so that it can be tried again: not past its time, but as long as the kernel may have to do.
#[test]
fn the_end_of_a_lost_run_is_waited_for_while_it_may_last() {
    const MS: u64 = 1_000_000;
    for (left_ms, wait_ms) in [(0, 100), (99, 100), (700, 700), (60_000, 2000)] {
        let now_ns = 5 * HOUR_NS;
        assert_eq!(
            lost_wait_ns(now_ns + left_ms * MS, now_ns),
            wait_ms * MS,
            "{left_ms} ms are left"
        );
    }
    assert_eq!(lost_wait_ns(0, HOUR_NS), 100 * MS, "its time is over");
}

/// It may be stopped, or wait for a file system that does not answer, and its socket is full of what others have asked.
#[test]
fn a_launcher_that_does_not_read_holds_no_run_beyond_its_time() {
    const PATIENCE_NS: u64 = 10_000_000_000;
    let host = Host::for_tests(|_, _, _, _| {});
    for (wall_ns, is_cancelled) in [(50_000_000, false), (HOUR_NS, true)] {
        let (control, reads_nothing) = sys::socketpair(libc::SOCK_SEQPACKET).unwrap();
        while sys::try_send_message(control.as_fd(), b"{}", &[]).is_ok() {}
        let launcher = Arc::new(Launcher::of_nothing(control));
        let (store, handle) = (Store::new(|| ()), Handle::new().unwrap());
        let spec = RunSpec {
            deadline_ns: sys::now_ns() + wall_ns,
            ..RunSpec::default()
        };
        let attempt = Attempt {
            services: &store,
            handle: &handle,
            launcher: &launcher,
            host: &host,
            tenant: "",
            spec: &spec,
            frames: &Frames {
                job: Wiped(b"{}".to_vec()),
                code: Vec::new(),
            },
            blobs: &[],
            started_ns: sys::now_ns(),
        };
        if is_cancelled {
            handle.cancel();
        }
        let (answer, in_time) = std::thread::scope(|scope| {
            let run = scope.spawn(|| {
                if is_cancelled {
                    // As if it had been asked a moment before.
                    attempt.ask(&Request::Run(spec.clone()), &[])?;
                }
                let (result, _) = complete(&attempt, &RunRequest::default(), &Ways::default())?;
                Ok::<_, Error>(result.error_type)
            });
            let until = sys::now_ns() + PATIENCE_NS;
            while !run.is_finished() && sys::now_ns() < until {
                std::thread::yield_now();
            }
            let in_time = run.is_finished();
            // Whoever still waits for it ends with it.
            drop(reads_nothing);
            (run.join().unwrap(), in_time)
        });
        assert!(in_time, "{answer:?}");
        match answer {
            Err(e) if is_cancelled => assert!(e.not_executed, "{e:?}"),
            answer => assert_eq!(answer.unwrap(), "Timeout"),
        }
    }
}

/// Linux before 5.19 has no `memory.peak`, and version 1 may have no `cpuacct`.
#[test]
fn what_a_group_does_not_say_its_process_says() {
    let (control, _heard) = sys::socketpair(libc::SOCK_SEQPACKET).unwrap();
    let pool = Pool::new(control, RULES);
    let mut shell = Command::new("sh")
        .args(["-c", "cat; true"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // Its child is there when that has said something back.
    let mut cat = shell.stdin.take().unwrap();
    cat.write_all(b"x").unwrap();
    let mut said = [0];
    shell
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut said)
        .unwrap();
    let directory = tempfile::tempdir().unwrap();
    let group = |v2, files: &[(&str, &str)]| {
        for (name, text) in files {
            std::fs::write(directory.path().join(name), text).unwrap();
        }
        let path = directory.path().as_os_str().as_bytes();
        let at = sys::open(path, libc::O_PATH | libc::O_DIRECTORY).unwrap();
        let part = Part {
            v2,
            controllers: vec!["memory".into()],
        };
        Held::new(vec![(part, at)], Default::default())
    };
    let of = |group| Child::of_nothing(&pool, TAKEN).with(shell.id(), group);
    let pidfd = sys::pidfd_open(shell.id() as i32).unwrap();
    let without = of(group(true, &[("cpu.stat", "usage_usec 7\n")]));
    for used in [
        without.used_so_far(false).unwrap(),
        used_by_stuck(Some(&without), Some(&pidfd)),
    ] {
        assert_eq!(used.cpu_us, 7);
        assert!(used.peak_memory_bytes > 4096, "{used:?}");
    }
    // The process may be another's by now.
    let used = used_by_stuck(Some(&without), None);
    assert_eq!((used.cpu_us, used.peak_memory_bytes), (7, 0));
    let with = of(group(true, &[("memory.peak", "5\n")]));
    assert_eq!(with.used_so_far(false).unwrap().peak_memory_bytes, 5);
    let without_time = of(group(false, &[("memory.max_usage_in_bytes", "6\n")]));
    let used = without_time.used_so_far(false).unwrap();
    assert_eq!(used.peak_memory_bytes, 6);
    assert!(used.cpu_us > 0, "{used:?}");
    drop(cat);
    shell.wait().unwrap();
}

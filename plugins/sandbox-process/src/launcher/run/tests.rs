use super::*;

fn listener(report: OwnedFd) -> Run {
    sys::set_nonblocking(report.as_fd()).unwrap();
    let (notice, _plugins) = sys::socketpair(libc::SOCK_SEQPACKET).unwrap();
    let pid = std::process::id() as i32;
    let pidfd = sys::pidfd_open(pid).unwrap();
    Run::new(Process { pid, pidfd }, notice, report)
}

fn heard(text: &[u8]) -> Run {
    let (report, said) = sys::pipe().unwrap();
    sys::write(said.as_fd(), text).unwrap();
    drop(said);
    let mut run = listener(report);
    run.hear();
    run
}

#[test]
fn what_a_run_makes_its_process_1_say_is_how_it_ended_and_no_more() {
    let failed = r#"{"Failed":{"step":"Init","error":"none"}}"#;
    let exited = r#"{"Exited":{"code":3,"signal":0}}"#;
    let run = heard(format!("{failed}\n{exited}\n").as_bytes());
    assert_eq!(run.failed.as_deref(), Some("isolation step Init: none"));
    for lie in [failed, "\"Ready\"", "no JSON", "\u{0}", "[[[[", ""] {
        let run = heard(format!("\"Begun\"\n{lie}\n{exited}\n{lie}\n").as_bytes());
        assert_eq!((run.failed, run.exited), (None, Some((3, 0))), "{lie}");
    }
}

/// It has been answered, or is about to be, and its job lies in its socket all the same.
#[test]
fn what_is_over_is_not_begun() {
    let later = sys::now_ns() + 3_600_000_000_000;
    let (notice, plugins) = sys::socketpair(libc::SOCK_SEQPACKET).unwrap();
    assert!(!is_too_late(notice.as_fd(), later));
    assert!(
        is_too_late(notice.as_fd(), sys::now_ns()),
        "its time is over"
    );
    sys::shut_down_writing(plugins.as_fd()).unwrap();
    assert!(is_too_late(notice.as_fd(), later), "it was cancelled");
    let (notice, plugins) = sys::socketpair(libc::SOCK_SEQPACKET).unwrap();
    drop(plugins);
    assert!(is_too_late(notice.as_fd(), later), "it was answered");
}

/// Of what is killed with its process 1 that has waited for nobody: where nothing counts it, it is not known.
#[test]
fn what_process_1_has_used_is_not_what_its_run_has_used() {
    let init = Exit {
        cpu_us: 5,
        peak_rss_bytes: 7,
        ..Exit::default()
    };
    let used = |run: &Run| {
        let end = run.end(init);
        (end.cpu_us, end.peak_memory_bytes)
    };
    let mut run = heard(b"");
    assert_eq!(used(&run), (0, 0));
    run.used_before = GroupUse {
        cpu_us: Some(3),
        peak_memory_bytes: Some(4),
        ..GroupUse::default()
    };
    assert_eq!(used(&run), (3, 4));
    run.exited = Some((0, 0));
    assert_eq!(used(&run), (5, 7), "it has waited for the program");
}

/// Whether it is ended before its time when it has been let go of, and has used so many microseconds then.
fn ends_early(used_us: Option<u64>) -> bool {
    const MS: u64 = 1_000_000;
    let mut child = std::process::Command::new("sleep")
        .arg("100")
        .spawn()
        .unwrap();
    let pid = child.id() as libc::pid_t;
    let nothing = || sys::open("/dev/null", libc::O_RDONLY).unwrap();
    let init = Process {
        pid,
        pidfd: sys::pidfd_open(pid).unwrap(),
    };
    let mut run = Run::new(init, nothing(), nothing());
    run.begin(20 * MS);
    let began = run.lasting.began_ns();
    run.ends_ns = Some(began + 50 * MS);
    assert!(!run.looked(began + 4 * MS, used_us), "it lasts no more");
    let killed = run.killed;
    child.kill().unwrap();
    child.wait().unwrap();
    killed
}

#[test]
fn what_has_answered_and_takes_the_processors_is_ended_before_its_time() {
    let used = [Some(300), Some(1900), Some(2100), Some(4000), None];
    assert_eq!(used.map(ends_early), [false, false, true, true, false]);
}

/// A pipe takes a megabyte of it, and the launcher has other runs to see to.
#[test]
fn nobody_listens_to_a_run_for_ever() {
    let (report, said) = sys::pipe().unwrap();
    let mut run = listener(report);
    sys::write(said.as_fd(), b"\"Begun\"\n").unwrap();
    run.hear();
    assert!(run.begun && !run.report_over);
    let mut lines = 0;
    while !run.report_over {
        sys::write(said.as_fd(), &[b'\n'; 1024]).unwrap();
        lines += 1024;
        run.hear();
    }
    assert_eq!(lines, REPORT_BYTES_MAX);
    let (report, said) = sys::pipe().unwrap();
    sys::write(said.as_fd(), &[b'\n'; 60_000]).unwrap();
    let mut run = listener(report);
    run.hear();
    assert!(
        run.report_over && run.spoken < 2 * REPORT_BYTES_MAX,
        "{}",
        run.spoken
    );
}

/// A zygote's child.
fn child(init: Process, notice: OwnedFd, untold: Option<Box<Untold>>) -> Run {
    let nothing = || sys::open("/dev/null", libc::O_RDONLY).unwrap();
    let mut run = Run::new(init, notice, nothing());
    run.pooled = Some(Pooled {
        number: 1,
        domain: String::new(),
        lease: Lease {
            id: Id::of_a_test(),
            network: nothing(),
            ipc: nothing(),
            user: None,
        },
        orders: nothing(),
        is_watched: true,
        is_mute: false,
        taken: false,
        spec: RunSpec::default(),
        furnishing: 1,
        untold,
        activation: None,
        cpu_before_us: 0,
    });
    run
}

fn of_this_process() -> Run {
    let pid = std::process::id() as i32;
    let pidfd = sys::pidfd_open(pid).unwrap();
    let (notice, _plugins) = sys::socketpair(libc::SOCK_SEQPACKET).unwrap();
    child(Process { pid, pidfd }, notice, None)
}

const TAKEN: Taken = Taken {
    number: 1,
    deadline_ns: u64::MAX,
    cpu_ms: 0,
    cpu_before_us: 0,
};

/// The end of a child is the end of its orders, when the plugin lets go of it: that may be heard of first.
#[test]
fn a_child_that_nobody_wanted_has_not_failed_at_its_birth() {
    let pid = std::process::id() as i32;
    let pidfd = || sys::pidfd_open(pid).unwrap();
    let (notice, plugins) = sys::socketpair(libc::SOCK_SEQPACKET).unwrap();
    let mut run = child(
        Process {
            pid,
            pidfd: pidfd(),
        },
        notice,
        None,
    );
    assert!(run.was_stillborn());
    for ends in [
        |run: &mut Run| run.begun = !run.begun,
        |run: &mut Run| run.exited = run.exited.xor(Some((0, 0))),
        |run: &mut Run| run.ends_ns = run.ends_ns.xor(Some(1)),
        |run: &mut Run| run.pooled.as_mut().unwrap().taken ^= true,
    ] {
        ends(&mut run);
        assert!(!run.was_stillborn());
        ends(&mut run);
    }
    run.exited = Some((1, 0));
    assert!(run.was_stillborn());
    sys::shut_down_writing(plugins.as_fd()).unwrap();
    assert!(!run.was_stillborn(), "the plugin has killed it");
    drop(plugins);
    assert!(!run.was_stillborn());
}

/// A run that waits has its child before that is built. Where none is made ahead all have theirs so, and three each.
#[test]
fn a_child_that_cannot_be_built_has_failed_at_its_birth_though_a_run_has_it() {
    let pid = std::process::id() as i32;
    let pidfd = sys::pidfd_open(pid).unwrap();
    let (notice, _plugins) = sys::socketpair(libc::SOCK_SEQPACKET).unwrap();
    let (report, said) = sys::pipe().unwrap();
    sys::set_nonblocking(report.as_fd()).unwrap();
    let mut run = child(Process { pid, pidfd }, notice, None);
    run.report = report;
    run.take(&TAKEN, 0);
    run.hear();
    assert!(!run.was_stillborn(), "it has met the limits of its run");
    let failed = br#"{"Failed":{"step":"Init","error":"no process"}}"#;
    sys::write(said.as_fd(), &[failed, &b"\n"[..]].concat()).unwrap();
    run.hear();
    assert!(run.was_stillborn());
}

/// Who knows of which part that was subtracts it.
#[test]
fn what_is_told_of_an_end_is_the_same_whether_or_not_its_run_was_told_of() {
    for was_told in [false, true] {
        let mut run = of_this_process();
        run.used_before.cpu_us = Some(5);
        if was_told {
            let taken = Taken {
                cpu_before_us: 3,
                ..TAKEN
            };
            run.take(&taken, 0);
        }
        assert_eq!(run.end(Exit::default()).cpu_us, 5, "{was_told}");
    }
}

/// Otherwise none would be made in its place for as long as it stays.
#[test]
fn a_child_that_has_answered_before_its_run_was_told_of_waits_no_more() {
    let [waits, mut stays, mut taken] = [(); 3].map(|()| of_this_process());
    assert!(waits.waiting().is_some());
    stays.ends_ns = Some(u64::MAX);
    assert!(stays.waiting().is_none());
    taken.take(&TAKEN, 0);
    assert!(taken.waiting().is_none());
}

/// Otherwise what it had used by the second time would be what it takes now, and it would be young again.
#[test]
fn a_run_that_was_activated_begins_once() {
    const MS: u64 = 1_000_000;
    let mut run = of_this_process();
    run.take(&TAKEN, 20 * MS);
    let began = run.lasting.began_ns();
    run.looked(began + 4 * MS, Some(3000));
    run.take(&TAKEN, 20 * MS);
    assert_eq!(run.lasting.began_ns(), began);
    assert!(!run.looked(began + 8 * MS, Some(3100)), "it rests");
}

/// The kernel has so many watches for a user, whose other programs may have taken them all.
#[test]
fn a_child_without_a_watch_is_asked() {
    let mut run = of_this_process();
    let asked = |run: &Run| run.to_be_asked().map(|asked| asked.map(|(what, _)| what));
    assert_eq!(asked(&run), [None, None, None]);
    run.pooled.as_mut().unwrap().is_watched = false;
    let [ended, let_go] = [Happened::Ended, Happened::LetGo].map(Some);
    assert_eq!(asked(&run), [None, ended, let_go]);
    run.ends_ns = Some(u64::MAX);
    assert_eq!(asked(&run), [None, ended, None]);
}

/// What the plugin gets of a child when it has mounted what the usual run wants.
fn untold(plugins_notice: OwnedFd) -> Box<Untold> {
    let nothing = || sys::open("/dev/null", libc::O_RDONLY).unwrap();
    Box::new(Untold {
        mounts: Vec::new(),
        word: Word::Gone {
            domain: String::new(),
        },
        plugins: [nothing(), nothing(), nothing(), plugins_notice],
    })
}

/// The other end: what another test forks has a copy of it for a moment.
fn is_seen_to_be_gone(socket: &OwnedFd) {
    let mut gone = [Poll::hung_up(socket.as_fd())];
    sys::poll(&mut gone, Some(10_000_000_000)).unwrap();
}

/// Most of those that are made ahead are for the usual run, and they fail as often as the others.
#[test]
fn a_child_that_dies_before_the_plugin_hears_of_it_has_failed_at_its_birth() {
    for has_ended in [true, false] {
        let (notice, plugins) = sys::socketpair(libc::SOCK_SEQPACKET).unwrap();
        let (orders, its) = sys::socketpair(libc::SOCK_SEQPACKET).unwrap();
        let pid = std::process::id() as i32;
        let pidfd = sys::pidfd_open(pid).unwrap();
        let mut run = child(Process { pid, pidfd }, notice, Some(untold(plugins)));
        // Otherwise there was no descriptor left for its place.
        let _lives = (!has_ended).then_some(its);
        if has_ended {
            is_seen_to_be_gone(&orders);
        }
        run.pooled.as_mut().unwrap().orders = orders;
        let is_asked = |run: &Run| run.to_be_asked()[0].is_some();
        assert!(is_asked(&run));
        run.has_no_place();
        assert!(!is_asked(&run), "it would be asked again and again");
        if !has_ended {
            is_seen_to_be_gone(&run.notice);
        }
        assert_eq!(run.was_stillborn(), has_ended);
    }
}

/// Whose run wants mounts, as that of nearly every skill does: what the child has said of its end is not lost by that.
#[test]
fn a_child_that_dies_before_it_is_given_what_its_run_needs_tells_why() {
    let (notice, plugins) = sys::socketpair(libc::SOCK_SEQPACKET).unwrap();
    let (orders, its) = sys::socketpair(libc::SOCK_SEQPACKET).unwrap();
    let mut process = std::process::Command::new("true").spawn().unwrap();
    let pid = process.id() as libc::pid_t;
    let pidfd = sys::pidfd_open(pid).unwrap();
    let mut run = child(Process { pid, pidfd }, notice, None);
    run.take(&TAKEN, 0);
    let pooled = run.pooled.as_mut().unwrap();
    pooled.activation = Some(RunSpec::default());
    drop(its);
    is_seen_to_be_gone(&orders);
    pooled.orders = orders;
    run.has_no_place();
    assert!(
        run.to_be_asked()[0].is_none(),
        "it would be asked again and again"
    );
    assert!(
        sys::take_message(plugins.as_fd(), &mut [0; 100]).is_err(),
        "its end says it"
    );
    run.failed = Some("no process".into());
    assert!(run.was_stillborn());
    process.wait().unwrap();
}

/// Its lease comes back when the plugin has closed its ends: of one that it has never heard of they are the launcher's.
#[test]
fn a_child_that_ends_before_the_plugin_hears_of_it_keeps_no_end_of_its_own_sockets() {
    let mut process = std::process::Command::new("true").spawn().unwrap();
    let pid = process.id() as libc::pid_t;
    let init = Process {
        pid,
        pidfd: sys::pidfd_open(pid).unwrap(),
    };
    let (notice, plugins_notice) = sys::socketpair(libc::SOCK_SEQPACKET).unwrap();
    let run = child(init, notice, Some(untold(plugins_notice)));
    let (_, returning) = run.finish();
    assert!(process.wait().is_err(), "it has been reaped");
    let mut gone = [Poll::hung_up(returning.as_ref().unwrap().notice.as_fd())];
    // What another test forks has a copy of the other end for a moment, until it executes something or is killed.
    sys::poll(&mut gone, Some(10_000_000_000)).unwrap();
    assert!(gone[0].is_ready());
}

use super::*;
use crate::launcher::Id;
use crate::launcher::back_off::{FIRST_NS, MAX_NS};
use crate::sys::Poll;
use crate::wire::Memory;

/// A zygote of processes that do nothing, and the other ends of their sockets, which keep them from having ended.
fn zygote() -> (Zygote, [OwnedFd; 2]) {
    let maker = || {
        let (control, theirs) = sys::socketpair(libc::SOCK_SEQPACKET).unwrap();
        sys::set_nonblocking(control.as_fd()).unwrap();
        let (pid, pidfd) = loiterer();
        (
            Maker {
                pid,
                pidfd,
                control,
            },
            theirs,
        )
    };
    let ((maker, its), (spare, spares)) = (maker(), maker());
    let zygote = Zygote {
        maker,
        spares_control: None,
        spare: Some(spare),
        number: 1,
        born_ns: 0,
        memory: Some(Memory {
            copied_bytes: 4096,
            ..Memory::default()
        }),
        children: 1,
    };
    (zygote, [its, spares])
}

/// A process that ends when it is killed, or with this test, and is reaped then.
fn loiterer() -> (libc::pid_t, OwnedFd) {
    let mut command = std::process::Command::new("cat");
    command.stdin(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    let pid = child.id() as libc::pid_t;
    let pidfd = sys::pidfd_open(pid).unwrap();
    let stays_open = child.stdin.take();
    std::thread::spawn(move || drop((child.wait(), stays_open)));
    (pid, pidfd)
}

/// Whose zygotes are never too old.
fn with_places(domains_max: usize) -> Zygotes {
    Zygotes::new(ZygoteRules {
        preload: Vec::new(),
        children_max: 1000,
        age_max_ns: u64::MAX,
        domains_max,
        kept_max: 0,
    })
}

#[test]
fn domains_that_lack_children_take_turns() {
    let mut zygotes = with_places(3);
    for (name, waiting) in [("flood", 1000), ("idle", 0), ("other", 1)] {
        let needs = PoolNeeds {
            domain: name.to_owned(),
            waiting: [waiting, 0],
            ..PoolNeeds::default()
        };
        let domain = Domain {
            needs,
            current: Some(zygote().0),
            ..Domain::default()
        };
        zygotes.domains.insert(name.to_owned(), domain);
    }
    let ordered = || {
        let (name, ..) = zygotes.lacking(u32::MAX, 0, |_| There::default())?;
        zygotes.needs(&name).map(|_| name)
    };
    let turns: Vec<String> = std::iter::from_fn(ordered).take(4).collect();
    assert_eq!(turns, ["flood", "other", "flood", "other"]);
}

/// A domain with a zygote, and what keeps that one's sockets open.
fn domain() -> (Domain, [OwnedFd; 2]) {
    let (zygote, theirs) = zygote();
    let domain = Domain {
        current: Some(zygote),
        ..Domain::default()
    };
    (domain, theirs)
}

fn words(events: &[Event]) -> Vec<&Word> {
    let mut said = Vec::new();
    for event in events {
        if let Event::Tell(word) = event {
            said.push(word);
        }
    }
    said
}

#[test]
fn the_spare_takes_the_place_of_one_that_dies_and_nobody_the_spares() {
    let (mut domain, [its, spares]) = domain();
    let (mut leaving, mut events) = (Vec::new(), Vec::new());
    domain.hear("", &mut leaving, &mut events);
    assert!(leaving.is_empty() && events.is_empty(), "both live");

    sys::shut_down(its.as_fd()).unwrap();
    domain.hear("", &mut leaving, &mut events);
    assert!(matches!(words(&events)[..], [Word::Replaced { .. }]));
    let zygote = domain.current.as_ref().unwrap();
    assert!(zygote.spare.is_none() && leaving.len() == 1);
    assert_eq!(zygote.number, 1, "children of either are the same");
    let copied = zygote.memory.as_ref().unwrap().copied_bytes;
    assert_eq!(copied, 0, "what the other had pinned");

    sys::shut_down(spares.as_fd()).unwrap();
    domain.hear("", &mut leaving, &mut events);
    assert!(matches!(words(&events)[1..], [Word::Cold { .. }]));
    assert!(domain.current.is_none() && leaving.len() == 2);
}

/// A child that has been ordered of a domain's zygote.
fn pending() -> Pending {
    let null = || sys::open("/dev/null", libc::O_RDONLY).unwrap();
    let child = Ordered {
        lease: Lease {
            id: Id::of_a_test(),
            network: null(),
            ipc: null(),
            user: None,
        },
        group: None,
        spec: RunSpec::default(),
        limits: GroupLimits::default(),
        furnishing: None,
        idle_ns: 0,
        sockets: Theirs::make().unwrap().0,
    };
    Pending {
        number: 1,
        child,
        since_ns: sys::now_ns(),
        ticks_seen: None,
    }
}

/// Under load the next child is ordered as soon as one is born: there is never a look at a zygote that has no order.
#[test]
fn one_that_is_warm_takes_over_between_two_orders() {
    let (mut domain, [its, _spares]) = domain();
    let (next, _nexts) = zygote();
    domain.next = Some(Zygote { number: 2, ..next });
    domain.pending = Some(pending());
    let (mut leaving, mut events) = (Vec::new(), Vec::new());
    domain.hear("", &mut leaving, &mut events);
    assert!(events.is_empty() && domain.next.is_some(), "one is ordered");

    let pidfd = sys::pidfd_open(std::process::id() as libc::pid_t).unwrap();
    sys::send_message(its.as_fd(), b"7", &[pidfd.as_fd()]).unwrap();
    domain.hear("", &mut leaving, &mut events);
    assert!(matches!(
        events[..],
        [
            Event::Born { zygote: 1, .. },
            Event::Tell(Word::Warm { zygote: 2, .. })
        ]
    ));
    assert_eq!(domain.current.unwrap().number, 2);
    assert_eq!(leaving.len(), 2, "the one before, and its spare");
}

/// Children that wait are made anew with each zygote.
#[test]
fn no_zygote_is_replaced_for_the_children_that_wait_alone() {
    let mut domain = Domain::default();
    domain.needs.ahead = 4;
    for (configured, expected) in [(1, 5), (5, 5), (6, 6), (5000, 5000)] {
        let rules = ZygoteRules {
            preload: Vec::new(),
            children_max: configured,
            age_max_ns: 0,
            domains_max: 1,
            kept_max: 0,
        };
        assert_eq!(domain.children_max(&rules), expected);
    }
}

/// What has been made and not told of yet is no stray.
#[test]
fn a_zygote_is_at_a_birth_until_it_tells_of_it() {
    let mut zygotes = with_places(1);
    let (mut domain, [its, _spares]) = domain();
    let (next, _nexts) = zygote();
    domain.pending = Some(pending());
    domain.next = Some(Zygote {
        number: 2,
        memory: None,
        ..next
    });
    zygotes.domains.insert(String::new(), domain);
    let both = BTreeSet::from([Birth::Child(1), Birth::Spare(2)]);
    assert_eq!(zygotes.births(), both);

    let pidfd = sys::pidfd_open(std::process::id() as libc::pid_t).unwrap();
    sys::send_message(its.as_fd(), b"7", &[pidfd.as_fd()]).unwrap();
    let domain = zygotes.domains.get_mut("").unwrap();
    domain.hear("", &mut Vec::new(), &mut Vec::new());
    assert_eq!(zygotes.births(), BTreeSet::from([Birth::Spare(2)]));
}

#[test]
fn a_spare_that_dies_changes_nothing_for_runs() {
    let (mut domain, [_its, spares]) = domain();
    let (mut leaving, mut events) = (Vec::new(), Vec::new());
    sys::shut_down(spares.as_fd()).unwrap();
    domain.hear("", &mut leaving, &mut events);
    assert!(events.is_empty());
    assert!(domain.current.unwrap().spare.is_none() && leaving.len() == 1);
}

/// It has a spare from when it is warm, and takes over only between two orders of the other, which may hang.
#[test]
fn a_spare_that_dies_before_its_zygote_takes_over_wakes_nobody_again_and_again() {
    let mut zygotes = with_places(1);
    let (mut domain, _its) = domain();
    let (next, [_nexts, spares]) = zygote();
    domain.next = Some(Zygote { number: 2, ..next });
    domain.pending = Some(pending());
    zygotes.domains.insert(String::new(), domain);
    sys::shut_down(spares.as_fd()).unwrap();
    let mut leaving = Vec::new();
    let domain = zygotes.domains.get_mut("").unwrap();
    domain.hear("", &mut leaving, &mut Vec::new());
    assert_eq!(leaving.len(), 1);
    let mut said: Vec<_> = zygotes.sockets().map(Poll::readable).collect();
    sys::poll(&mut said, Some(0)).unwrap();
    assert!(said.iter().all(|poll| !poll.is_ready()));
}

/// Whatever the time is for, until it has come nobody wakes for it again and again.
#[test]
fn the_launcher_sleeps_until_another_zygote_is_to_be_started() {
    const BACK_OFF_NS: u64 = 5_000;
    for (age_max_ns, has_spare, wait_ns) in [
        (1_000_000, true, 1_000_000),
        (1_000, true, BACK_OFF_NS),
        (1_000_000, false, BACK_OFF_NS),
    ] {
        let mut zygotes = Zygotes::new(ZygoteRules {
            preload: Vec::new(),
            children_max: 1000,
            age_max_ns,
            domains_max: 1,
            kept_max: 0,
        });
        let (mut domain, _theirs) = domain();
        domain.starts.not_before_ns = BACK_OFF_NS;
        if !has_spare {
            domain.current.as_mut().unwrap().spare = None;
        }
        zygotes.domains.insert(String::new(), domain);
        assert_eq!(
            zygotes.patience(0),
            Some(wait_ns),
            "{age_max_ns} {has_spare}"
        );
    }
}

/// One that is killed is missed for as long as it takes to start another; those that fail in a row do not take the host.
#[test]
fn the_first_failure_costs_no_wait_and_the_next_ones_do() {
    let mut starts = BackOff::default();
    let mut waits = (0..12).map(|now| {
        starts.failed(now);
        (starts.not_before_ns - now) / FIRST_NS
    });
    let begin: Vec<u64> = waits.by_ref().take(4).collect();
    assert_eq!(begin, [0, 1, 2, 4]);
    assert_eq!(waits.last(), Some(MAX_NS / FIRST_NS));
}

/// A host that has nothing left for another would be kept busy with them for as long as it has not.
#[test]
fn children_that_die_at_their_birth_are_not_made_as_fast_as_they_can_be() {
    const LIFE_NS: u64 = 1_000_000_000;
    let mut zygotes = with_places(1);
    let (mut domain, _theirs) = domain();
    domain.needs.ahead = 2;
    zygotes.domains.insert(String::new(), domain);
    let is_lacking = |zygotes: &Zygotes, now| {
        zygotes
            .lacking(u32::MAX, now, |_| There::default())
            .is_some()
    };
    let mut now = 1;
    assert!(zygotes.birth_failed("", now, "none", now).is_empty());
    assert!(is_lacking(&zygotes, now), "it may have been an accident");
    let with_it = zygotes.birth_failed("", now - 1, "none", now);
    assert!(with_it.is_empty() && is_lacking(&zygotes, now));
    for wait_ns in [1, 2, 4, 8].map(|n| n * FIRST_NS) {
        let events = zygotes.birth_failed("", now, "none", now);
        match words(&events)[..] {
            [Word::Cold { why, lives, .. }] if wait_ns == FIRST_NS => {
                assert!(*lives && why.contains("none"), "{why}");
            }
            [] => {}
            _ => panic!("said once in a row"),
        }
        let again = now + wait_ns;
        assert_eq!(zygotes.patience(now), Some(wait_ns));
        assert!(!is_lacking(&zygotes, again - 1));
        assert!(is_lacking(&zygotes, again));
        now = again;
    }
    // Where none is made ahead, one shows how it is.
    zygotes.domains.get_mut("").unwrap().needs.ahead = 0;
    assert!(is_lacking(&zygotes, now));
    let lives = |at| move |_: &str, since, until| (since..=until).contains(&at);
    let too_soon = zygotes.proven(now + LIFE_NS - 1, lives(now));
    let born_before = zygotes.proven(now + LIFE_NS, lives(0));
    assert!(too_soon.is_empty() && born_before.is_empty());
    assert_eq!(zygotes.proven(now + LIFE_NS, lives(now)), [""]);

    let events = zygotes.birth_succeeded("");
    assert!(matches!(words(&events)[..], [Word::Warm { zygote: 1, .. }]));
    assert!(!is_lacking(&zygotes, now));
    assert!(zygotes.birth_failed("", now, "none", now).is_empty());
}

/// A domain that wants a child ahead, whose births have failed until the ninth nanosecond, and what keeps its zygote.
fn after_failed_births() -> (Zygotes, impl Sized) {
    let mut zygotes = with_places(1);
    let (mut domain, theirs) = domain();
    domain.needs.ahead = 1;
    zygotes.domains.insert(String::new(), domain);
    for now in 1..=9 {
        zygotes.birth_failed("", now, "none", now);
    }
    assert!(!lacks_one(&zygotes), "it waits");
    (zygotes, theirs)
}

/// Whether a child would be made now, in that nanosecond.
fn lacks_one(zygotes: &Zygotes) -> bool {
    zygotes.lacking(u32::MAX, 9, |_| There::default()).is_some()
}

/// The plugin hears that there is one, and has runs wait for its children.
#[test]
fn whether_the_children_of_another_zygote_live_is_found_out_at_once() {
    let (mut zygotes, _theirs) = after_failed_births();
    let (next, _nexts) = zygote();
    let domain = zygotes.domains.get_mut("").unwrap();
    domain.next = Some(Zygote { number: 2, ..next });
    let mut events = Vec::new();
    domain.hear("", &mut Vec::new(), &mut events);
    assert!(matches!(words(&events)[..], [Word::Warm { zygote: 2, .. }]));
    assert!(lacks_one(&zygotes));
    assert!(zygotes.birth_failed("", 10, "none", 10).is_empty());
    let events = zygotes.birth_failed("", 11, "none", 11);
    assert!(matches!(words(&events)[..], [Word::Cold { .. }]));
}

/// Runs wait for its brothers then, and nothing wakes the launcher when a wait is over that was for a failure.
#[test]
fn when_a_child_lives_the_next_is_made_at_once() {
    let (mut zygotes, _theirs) = after_failed_births();
    let events = zygotes.birth_succeeded("");
    assert!(matches!(words(&events)[..], [Word::Warm { zygote: 1, .. }]));
    assert!(lacks_one(&zygotes));
}

/// Children that wait are there still when the host has nothing left for others, and runs have them.
#[test]
fn a_run_on_a_child_that_was_there_before_says_nothing_of_births() {
    let mut zygotes = with_places(1);
    let (domain, _theirs) = domain();
    zygotes.domains.insert(String::new(), domain);
    for now in [5, 7] {
        zygotes.birth_failed("", now, "none", now);
    }
    for born_ns in [1, 6] {
        assert!(zygotes.run_has_begun("", born_ns).is_empty(), "{born_ns}");
    }
    let events = zygotes.run_has_begun("", 8);
    assert!(matches!(words(&events)[..], [Word::Warm { zygote: 1, .. }]));
}

/// The host, short of memory, or somebody by hand ends one that waits, and later another: each was there for long.
#[test]
fn a_child_that_has_lived_was_born_well() {
    const LIFE_NS: u64 = 1_000_000_000;
    let mut zygotes = with_places(1);
    zygotes.domains.insert(String::new(), domain().0);
    for killed in [5, 9, 20].map(|s| s * LIFE_NS) {
        let events = zygotes.birth_failed("", killed - LIFE_NS, "killed", killed);
        assert!(events.is_empty(), "{killed}");
    }
    let failures = |zygotes: &Zygotes| zygotes.domains[""].births.failures;
    assert_eq!(failures(&zygotes), 0);
    zygotes.birth_failed("", 30 * LIFE_NS, "none", 31 * LIFE_NS - 1);
    assert_eq!(failures(&zygotes), 1);
}

#[test]
fn a_zygote_stays_that_has_no_process_for_a_child() {
    for (code, stays) in [
        (libc::EAGAIN, true),
        (libc::ENFILE, true),
        (libc::EPERM, false),
    ] {
        let (mut domain, [its, _spares]) = domain();
        let maker = domain.current.as_ref().unwrap().maker.pid;
        for failures in 1..3 {
            domain.pending = Some(pending());
            let word = format!("!{code}");
            sys::send_message(its.as_fd(), word.as_bytes(), &[]).unwrap();
            let (mut leaving, mut events) = (Vec::new(), Vec::new());
            domain.hear("", &mut leaving, &mut events);
            let current = domain.current.as_ref().unwrap();
            assert_eq!(current.maker.pid == maker, stays, "{code}");
            let unborn = events.iter().any(|e| matches!(e, Event::Unborn(_)));
            assert_eq!((unborn, leaving.is_empty()), (stays, stays), "{code}");
            if !stays {
                break;
            }
            assert_eq!(domain.births.failures, failures);
            let said = matches!(words(&events)[..], [Word::Cold { lives: true, .. }]);
            assert_eq!(said, failures == 2);
        }
    }
}

#[test]
fn what_is_no_number_of_one_process_is_no_child() {
    for word in ["0", "-1", "-7"] {
        let (mut domain, [its, _spares]) = domain();
        domain.pending = Some(pending());
        let (_, pidfd) = loiterer();
        sys::send_message(its.as_fd(), word.as_bytes(), &[pidfd.as_fd()]).unwrap();
        let (mut leaving, mut events) = (Vec::new(), Vec::new());
        domain.hear("", &mut leaving, &mut events);
        let born = events.iter().any(|e| matches!(e, Event::Born { .. }));
        assert_eq!((born, leaving.len()), (false, 1), "{word}");
    }
}

#[test]
#[ignore = "the launcher of `a_zygote_stays_for_whose_child_no_descriptor_is_left`"]
fn launcher_without_descriptors() {
    let (mut domain, [its, _spares]) = domain();
    let maker = domain.current.as_ref().unwrap().maker.pid;
    domain.pending = Some(pending());
    let (pid, pidfd) = loiterer();
    sys::send_message(its.as_fd(), pid.to_string().as_bytes(), &[pidfd.as_fd()]).unwrap();
    sys::set_limit(libc::RLIMIT_NOFILE as i32, 64).unwrap();
    let taken: Vec<_> =
        std::iter::from_fn(|| sys::open("/dev/null", libc::O_RDONLY).ok()).collect();
    let (mut leaving, mut events) = (Vec::new(), Vec::new());
    domain.hear("", &mut leaving, &mut events);
    drop(taken);
    assert!(matches!(events[..], [Event::Unborn(_)]));
    assert_eq!(domain.current.as_ref().unwrap().maker.pid, maker);
    assert!(leaving.is_empty() && !sys::is_alive(pidfd.as_fd()).unwrap());
    assert_eq!(domain.births.failures, 1);
    // What is no child is not ended for it.
    domain.pending = Some(pending());
    sys::send_message(its.as_fd(), b"1", &[]).unwrap();
    domain.hear("", &mut leaving, &mut events);
    assert_eq!(leaving.len(), 1);
}

/// It has done what it was told, and with the one in its place there would be as few. In a process of its own: the others need
/// their descriptors.
#[test]
fn a_zygote_stays_for_whose_child_no_descriptor_is_left() {
    let launcher = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact"])
        .arg("launcher::zygotes::tests::launcher_without_descriptors")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&launcher.stdout);
    assert!(launcher.status.success(), "{text}");
    assert!(text.contains("1 passed"), "{text}");
}

fn gone(events: &[Event]) -> Vec<&str> {
    let names = words(events).into_iter().map(|word| match word {
        Word::Gone { domain } => domain.as_str(),
        word => panic!("{word:?}"),
    });
    names.collect()
}

#[test]
fn the_one_that_no_run_has_used_for_longest_makes_room() {
    const MINUTE_NS: u64 = 60_000_000_000;
    let mut zygotes = with_places(2);
    let of = |name: &str, waiting| PoolNeeds {
        domain: name.to_owned(),
        waiting,
        ..PoolNeeds::default()
    };
    let mut at = (1..).map(|n| n * MINUTE_NS);
    let mut now = || at.next().unwrap();
    zygotes.need(of("a", [0; 2]), now());
    zygotes.need(of("b", [0; 2]), now());
    // Its children are replaced, and it shrinks.
    zygotes.needs("a");
    zygotes.need(of("a", [0; 2]), now());
    assert_eq!(gone(&zygotes.need(of("c", [0; 2]), now())), ["a"]);
    // Runs that wait, and those of which only the end is heard.
    zygotes.need(of("b", [0, 1]), now());
    assert_eq!(gone(&zygotes.need(of("d", [0; 2]), now())), ["c"]);
    zygotes.used("b", now());
    assert_eq!(gone(&zygotes.need(of("e", [0; 2]), now())), ["d"]);
}

/// Each would take the place of the one that comes next, for ever.
#[test]
fn tenants_that_have_runs_by_turns_do_not_push_each_other_out() {
    const KEPT_NS: u64 = 4_000_000_000;
    let mut zygotes = with_places(2);
    let mut need = |name: &str, now| {
        let needs = PoolNeeds {
            domain: name.to_owned(),
            waiting: [1, 0],
            ..PoolNeeds::default()
        };
        let events = zygotes.need(needs, now);
        gone(&events).join(" ")
    };
    for round in 0..3 {
        let at = round * 1000;
        assert_eq!(need("a", at), "");
        assert_eq!(need("b", at + 1), "");
        assert_eq!(need("c", at + 2), "c", "it has no place");
    }
    assert_eq!(need("c", 2000 + KEPT_NS - 1), "c");
    assert_eq!(need("c", 2000 + KEPT_NS), "a");
    assert_eq!(need("c", 2001 + KEPT_NS), "");
    assert_eq!(need("a", 2001 + KEPT_NS), "b");
}

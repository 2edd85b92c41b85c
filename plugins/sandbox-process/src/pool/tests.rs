mod closed;
mod files;
mod surplus;

use super::*;
use crate::cgroup::GroupLimits;
use crate::wire::{Memory, MountSpec};

fn waiting(number: u64, built: Instant, ready: Instant) -> Waiting {
    let nothing = || sys::open("/dev/null", libc::O_RDONLY).unwrap();
    Waiting {
        number,
        zygote: 1,
        process_1: 0,
        disk: [0, 0],
        furnishing: 0,
        ready,
        built,
        orders: nothing(),
        channel: nothing(),
        output: nothing(),
        notice: nothing(),
        pidfd: sys::pidfd_open(std::process::id() as _).unwrap(),
        group: Held::new(Vec::new(), GroupLimits::default()),
    }
}

fn taken(number: u64) -> Taken {
    Taken {
        number,
        deadline_ns: u64::MAX,
        cpu_ms: 0,
        cpu_before_us: 0,
    }
}

#[test]
fn the_last_that_has_rehearsed_is_first_and_then_under_load_the_last_that_was_built() {
    let (start, ms) = (Instant::now(), Duration::from_millis);
    let rules = PoolRules {
        min: 0,
        max: 9,
        per_tenant: false,
    };
    // The fourth is being built; the third and the fifth rehearse when nobody has wanted them for long.
    let children = [
        (0, 0, 0),
        (1, 0, 0),
        (2, 0, 0),
        (3, 0, 2000),
        (4, 900, 1000),
        (5, 0, 3000),
    ];
    for (apart, expected) in [(ms(30), [2, 1, 0, 3, 4, 5]), (ms(1), [2, 1, 0, 5, 3, 4])] {
        let mut state = State::default();
        let domain = domain_of(&mut state, "", rules);
        for (number, built, ready) in children {
            let child = waiting(number, start + ms(built), start + ms(ready));
            domain.idle.push_back(child);
        }
        let taken = (0..).map_while(|n| Some(domain.take(&spec(), start + apart * n)?.number));
        assert_eq!(taken.collect::<Vec<_>>(), expected, "{apart:?} between two");
        assert_eq!(domain.least_idle, 0);
    }
}

/// A spec with these mounts, and a domain whose usual ones are those of the first.
fn furnished_domain() -> (Domain, [RunSpec; 2], u64) {
    let rules = PoolRules {
        min: 8,
        max: 8,
        per_tenant: false,
    };
    let specs = ["a", "b"].map(|name| RunSpec {
        mounts: vec![MountSpec {
            target: format!("/skills/{name}"),
            path: String::new(),
            dev: 0,
            ino: 0,
        }],
        ..spec()
    });
    let mut domain = Domain::new(rules);
    domain.zygote = 1;
    while domain.usual.number_of(&specs[0].mounts) == 0 {
        domain.usual.count(&specs[0].mounts, || 7);
    }
    (domain, specs, 7)
}

#[test]
fn a_child_with_mounts_is_for_runs_that_want_just_these() {
    let start = Instant::now();
    let (mut domain, [a, b], number) = furnished_domain();
    let of = |n, furnishing, disk| Waiting {
        furnishing,
        disk,
        ..waiting(n, start, start)
    };
    for child in [
        of(1, number, [0, 0]),
        of(2, number, [0, 0]),
        of(3, 0, [0, 0]),
        of(4, number + 1, [0, 0]),
        of(5, number, [9, 9]),
        of(6, 0, [0, 0]),
    ] {
        domain.idle.push_back(child);
    }
    domain.idle.push_back(Waiting {
        ready: start + Duration::from_secs(1),
        ..of(7, number, [0, 0])
    });
    let mut take = |spec: &RunSpec| Some(domain.take(spec, start)?.number);
    assert_eq!(take(&a), Some(2));
    assert_eq!(take(&b), Some(6));
    assert_eq!(take(&a), Some(1));
    assert_eq!(take(&a), Some(3), "any that has rehearsed will do");
    assert_eq!(take(&a), Some(7), "better than none");
    // What is left has other mounts, or another disk.
    assert_eq!([&a, &b, &spec()].map(take), [None; 3]);
    let idle = |domain: &Domain| domain.idle.iter().map(|c| c.number).collect::<Vec<_>>();
    assert_eq!(idle(&domain), [4, 5]);
    assert_eq!(domain.needs("").ahead, 9, "for one that is stale");
    assert!(domain.drop_replaced() && !domain.drop_replaced());
    assert_eq!(idle(&domain), [5]);
}

#[test]
fn nothing_waits_with_mounts_that_nobody_has_wanted_in_a_window() {
    let (mut domain, ..) = furnished_domain();
    let child = Waiting {
        furnishing: 7,
        ..waiting(1, Instant::now(), Instant::now())
    };
    domain.idle.push_back(child);
    for (window, furnished) in [(1, 6), (2, 0)] {
        assert_eq!(domain.needs("").furnishing.children, 6);
        domain.shrink(8, domain.window_ends);
        assert_eq!(domain.needs("").furnishing.children, furnished, "{window}");
        let told = std::mem::take(&mut domain.unsent);
        assert!(told, "the launcher is to hear of it, window {window}");
    }
    assert!(domain.drop_replaced());
}

#[test]
fn a_child_that_has_died_makes_way_for_the_one_that_replaces_it() {
    let (mut domain, ..) = furnished_domain();
    let mut dead = std::process::Command::new("true").spawn().unwrap();
    let mut pidfd = Some(sys::pidfd_open(dead.id() as _).unwrap());
    dead.wait().unwrap();
    for number in 0..3 {
        let mut child = waiting(number, Instant::now(), Instant::now());
        if number == 1 {
            child.pidfd = pidfd.take().unwrap();
        }
        domain.idle.push_back(child);
    }
    domain.ahead = 3;
    assert!(!domain.drop_replaced(), "none has come for it yet");
    domain.ahead = 2;
    assert!(domain.drop_replaced());
    assert_eq!(
        domain.idle.iter().map(|c| c.number).collect::<Vec<_>>(),
        [0, 2]
    );
}

/// A new one would be told to the launcher, which would warm a zygote for it in the place of one that is used.
#[test]
fn a_domain_that_has_made_room_does_not_come_back_when_its_last_run_ends() {
    let rules = PoolRules {
        min: 2,
        max: 9,
        per_tenant: true,
    };
    for taken_first in [true, false] {
        let (pool, host, launcher) = warm(rules);
        assert!(matches!(told(&launcher), Some(Request::Pool(_))));
        let gone = || Word::Gone {
            domain: String::new(),
        };
        if taken_first {
            pool.taken("", taken(1));
            pool.hear_word(gone(), Vec::new(), &host);
        } else {
            pool.hear_word(gone(), Vec::new(), &host);
            pool.taken("", taken(1));
        }
        assert!(pool.state().domains.is_empty() && told(&launcher).is_none());
        // Of one that lasts the launcher hears: otherwise nobody but this process knew its limits.
        pool.lasts("", 1);
        let heard = told(&launcher);
        assert!(
            matches!(heard, Some(Request::Taken(Taken { number: 1, .. }))),
            "{heard:?}"
        );
        pool.lasts("", 1);
        pool.over("", 1);
        assert!(pool.state().domains.is_empty() && told(&launcher).is_none());
    }
}

/// ... whether or not the domain is there again, for another run.
#[test]
fn the_launcher_hears_of_a_run_that_lasts_longer_than_its_domain() {
    let rules = PoolRules {
        min: 2,
        max: 9,
        per_tenant: true,
    };
    let (pool, host, launcher) = warm(rules);
    for number in [1, 2] {
        pool.taken("", taken(number));
    }
    let domain = String::new();
    pool.hear_word(Word::Gone { domain }, Vec::new(), &host);
    pool.over("", 1);
    pool.hear_word(is_warm(), Vec::new(), &host);
    while told(&launcher).is_some() {}
    // It does not read at the moment, and is told a little later.
    while sys::try_send_message(pool.control.as_fd(), b"{}", &[]).is_ok() {}
    pool.lasts("", 2);
    while sys::take_message(launcher.as_fd(), &mut [0; 8192]).is_ok() {}
    assert_eq!(pool.wait(), TRY_AGAIN);
    pool.tidy();
    let heard = told(&launcher);
    assert!(
        matches!(heard, Some(Request::Taken(Taken { number: 2, .. }))),
        "{heard:?}"
    );
    pool.tidy();
    assert!(told(&launcher).is_none() && pool.wait() > TRY_AGAIN);
}

/// It did not read when that was to be said, and the domain has made room before it was said again.
#[test]
fn the_launcher_hears_of_a_run_that_lasted_before_its_domain_went() {
    let (pool, host, launcher) = warm(PoolRules {
        min: 2,
        max: 9,
        per_tenant: true,
    });
    pool.taken("", taken(1));
    while sys::try_send_message(pool.control.as_fd(), b"{}", &[]).is_ok() {}
    pool.lasts("", 1);
    let domain = String::new();
    pool.hear_word(Word::Gone { domain }, Vec::new(), &host);
    while sys::take_message(launcher.as_fd(), &mut [0; 8192]).is_ok() {}
    pool.tidy();
    let heard = told(&launcher);
    assert!(
        matches!(heard, Some(Request::Taken(Taken { number: 1, .. }))),
        "{heard:?}"
    );
}

/// What the launcher is told next.
fn told(launcher: &OwnedFd) -> Option<Request> {
    let mut buf = [0; 8192];
    let (n, _) = sys::take_message(launcher.as_fd(), &mut buf).ok()??;
    Some(serde_json::from_slice(&buf[..n]).unwrap())
}

#[test]
fn who_waits_in_vain_has_time_left_for_an_interpreter_of_its_own() {
    let rules = PoolRules {
        min: 0,
        max: 9,
        per_tenant: false,
    };
    let (pool, _host, _launcher) = warm(rules);
    let began = sys::now_ns();
    let short = RunSpec {
        deadline_ns: began + 1_000_000_000,
        ..spec()
    };
    assert!(pool.take("", &short, || false).is_none());
    let waited = sys::now_ns() - began;
    assert!((450_000_000..1_000_000_000).contains(&waited), "{waited}");
}

/// Nothing wakes who hears the launcher when it could not be told: it has nothing to say.
#[test]
fn a_launcher_that_did_not_read_for_a_moment_hears_of_a_run_that_waits() {
    let (pool, host, launcher) = warm(PoolRules {
        min: 0,
        max: 9,
        per_tenant: false,
    });
    let pool = Arc::new(pool);
    let hears = listen(&pool, &host).unwrap();
    while sys::try_send_message(pool.control.as_fd(), &[b' '; 4096], &[]).is_ok() {}
    let over = AtomicU64::new(0);
    let is_over = || over.load(Ordering::Relaxed) > 0;
    std::thread::scope(|scope| {
        let run = scope.spawn(|| pool.take("", &spec(), is_over));
        while pool.look().waiting == 0 {
            std::thread::yield_now();
        }
        let until = Instant::now() + CHILD_WAIT / 2;
        let mut hears_of_it = false;
        while !hears_of_it && Instant::now() < until {
            let mut buf = [0; 4096];
            let mut said = [Poll::readable(launcher.as_fd())];
            sys::poll(&mut said, Some(50_000_000)).unwrap();
            if let Ok(Some((n, _))) = sys::take_message(launcher.as_fd(), &mut buf) {
                hears_of_it = matches!(
                    serde_json::from_slice(&buf[..n]),
                    Ok(Request::Pool(needs)) if needs.waiting == [1, 0]
                );
            }
        }
        over.store(1, Ordering::Relaxed);
        assert!(run.join().unwrap().is_none());
        assert!(hears_of_it);
    });
    drop(launcher);
    hears.join().unwrap();
}

/// A child that the launcher had in hand when the domain made room, and then a run that has waited there meanwhile.
#[test]
fn a_domain_that_has_made_room_does_not_come_back_by_what_comes_too_late() {
    let rules = PoolRules {
        min: 2,
        max: 9,
        per_tenant: true,
    };
    let (pool, host, launcher) = warm(rules);
    let told = || told(&launcher).is_some();
    while told() {}
    let gone = || Word::Gone {
        domain: String::new(),
    };
    let child = || {
        let fds = (0..5).map(|_| sys::open("/dev/null", libc::O_RDONLY).unwrap());
        let word = Word::Child {
            domain: String::new(),
            number: 1,
            zygote: 1,
            process_1: 0,
            network: false,
            idle_ns: 0,
            parts: Vec::new(),
            limits: GroupLimits::default(),
            disk_bytes: 0,
            disk_inodes: 0,
            furnishing: 7,
        };
        (word, fds.collect::<Vec<_>>())
    };
    pool.hear_word(gone(), Vec::new(), &host);
    let (word, fds) = child();
    pool.hear_word(word, fds, &host);
    assert!(pool.state().domains.is_empty() && !told());

    // It is there again for a run, which waits when it makes room.
    let (word, fds) = (
        Word::Warm {
            domain: String::new(),
            zygote: 2,
            memory: Memory::default(),
        },
        Vec::new(),
    );
    pool.hear_word(word, fds, &host);
    while told() {}
    std::thread::scope(|scope| {
        let run = scope.spawn(|| pool.take("", &spec(), || false).is_none());
        let awaited = || pool.state().domains.values().any(Domain::is_awaited);
        while !awaited() {
            std::thread::yield_now();
        }
        while !told() {}
        pool.hear_word(gone(), Vec::new(), &host);
        let (word, fds) = child();
        pool.hear_word(word, fds, &host);
        assert!(run.join().unwrap());
    });
    assert!(pool.state().domains.is_empty() && !told());
}

#[test]
fn a_run_of_a_domains_last_life_is_none_of_those_that_it_has_now() {
    let (pool, host, _launcher) = warm(PoolRules {
        min: 0,
        max: 99,
        per_tenant: true,
    });
    pool.taken("", taken(1));
    let domain = String::new();
    pool.hear_word(Word::Gone { domain }, Vec::new(), &host);
    pool.hear_word(is_warm(), Vec::new(), &host);
    pool.taken("", taken(2));
    pool.over("", 1);
    assert!(pool.take("", &spec(), || true).is_none());
    assert_eq!(pool.look().ahead, 4, "for two at once");
}

/// A child of the domain's last life may come yet.
#[test]
fn a_number_is_not_given_again_when_a_domain_has_been_forgotten() {
    let rules = PoolRules {
        min: 0,
        max: 9,
        per_tenant: false,
    };
    let (pool, host, _launcher) = warm(rules);
    let (_, specs, _) = furnished_domain();
    let mut numbers = specs.map(|spec| {
        for _ in 0..9 {
            assert!(pool.take("", &spec, || true).is_none());
        }
        let number = pool.state().domains[""].usual.number_of(&spec.mounts);
        let domain = String::new();
        pool.hear_word(Word::Gone { domain }, Vec::new(), &host);
        assert!(pool.state().domains.is_empty());
        number
    });
    numbers.sort_unstable();
    assert!(numbers[0] > 0 && numbers[0] < numbers[1], "{numbers:?}");
}

/// A pool that has heard nothing yet.
fn opened(rules: PoolRules) -> (Pool, Host, OwnedFd) {
    let (control, launcher) = sys::socketpair(libc::SOCK_SEQPACKET).unwrap();
    (
        Pool::new(control, rules),
        Host::for_tests(|_, _, _, _| {}),
        launcher,
    )
}

/// A pool with a warm zygote and no child.
fn warm(rules: PoolRules) -> (Pool, Host, OwnedFd) {
    let (pool, host, launcher) = opened(rules);
    pool.hear_word(is_warm(), Vec::new(), &host);
    (pool, host, launcher)
}

fn is_warm() -> Word {
    Word::Warm {
        domain: String::new(),
        zygote: 1,
        memory: Memory::default(),
    }
}

/// What doctor and a readiness probe ask right after the start.
#[test]
fn who_asks_early_hears_of_the_first_zygote() {
    const LONG: Duration = Duration::from_secs(600);
    let rules = PoolRules {
        min: 0,
        max: 9,
        per_tenant: false,
    };
    let cold = Word::Cold {
        domain: String::new(),
        why: "it cannot be started".to_owned(),
        lives: false,
    };
    for (word, zygotes) in [(is_warm(), 1), (cold, 0)] {
        let (pool, host, _launcher) = opened(rules);
        pool.open();
        pool.settle(Duration::ZERO);
        assert_eq!(pool.look().zygotes, 0, "nothing is known");
        std::thread::scope(|scope| {
            let (tell, told) = std::sync::mpsc::channel();
            let pool = &pool;
            let asks = scope.spawn(move || {
                tell.send(()).unwrap();
                pool.settle(LONG);
                pool.look()
            });
            told.recv().unwrap();
            // One that does not wait has the time to be seen.
            (0..1000).for_each(|_| std::thread::yield_now());
            assert!(!asks.is_finished());
            pool.hear_word(word, Vec::new(), &host);
            let heard = asks.join().unwrap();
            assert_eq!(
                (heard.zygotes, heard.cold.is_some()),
                (zygotes, zygotes == 0)
            );
        });
    }
    // The launcher has gone: nothing more will be heard.
    let (pool, host, launcher) = opened(rules);
    drop(launcher);
    pool.hear(&host);
    pool.settle(LONG);
    // Of each tenant's nothing is to be heard before its first run.
    let rules = PoolRules {
        per_tenant: true,
        ..rules
    };
    opened(rules).0.settle(LONG);
}

fn spec() -> RunSpec {
    RunSpec {
        deadline_ns: u64::MAX,
        ..RunSpec::default()
    }
}

#[test]
fn twice_as_many_are_made_ahead_as_were_wanted_at_once() {
    let (pool, ..) = warm(PoolRules {
        min: 2,
        max: 60,
        per_tenant: false,
    });
    let in_turn = [(0, 4), (0, 7), (0, 11), (0, 16), (0, 16)];
    let at_once = [(7, 16), (19, 40), (1, 40), (39, 60), (60, 60)];
    for (in_hand, ahead) in in_turn.into_iter().chain(at_once) {
        (0..in_hand).for_each(|number| pool.taken("", taken(number)));
        // There is none, and it does not wait for one.
        assert!(pool.take("", &spec(), || true).is_none());
        assert_eq!(pool.look().ahead, ahead, "with {in_hand} others");
        (0..in_hand).for_each(|number| pool.over("", number));
    }
}

/// A run that comes later, or again, waits behind those that wait already.
#[test]
fn who_has_waited_longest_is_first() {
    let (pool, host, _launcher) = warm(PoolRules {
        min: 0,
        max: 9,
        per_tenant: false,
    });
    let spec = spec();
    let domain = String::new;
    let child = |number| {
        let nothing = || sys::open("/dev/null", libc::O_RDONLY).unwrap();
        let word = Word::Child {
            domain: domain(),
            number,
            zygote: 1,
            process_1: 0,
            network: false,
            idle_ns: 0,
            parts: Vec::new(),
            limits: GroupLimits::default(),
            disk_bytes: 0,
            disk_inodes: 0,
            furnishing: 0,
        };
        pool.hear_word(word, (0..5).map(|_| nothing()).collect(), &host);
    };
    const RUNS: u64 = 8;
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        for run in 0..RUNS {
            let (pool, spec, tell) = (&pool, &spec, tell.clone());
            scope.spawn(move || {
                let taken = pool.take("", spec, || false);
                tell.send((run, taken.map(|(child, waited)| (child.number, waited))))
            });
            let seated = || pool.state().domains[""].waiting[0].len() as u64;
            while seated() <= run {
                std::thread::yield_now();
            }
        }
        assert_eq!(pool.look().waiting as u64, RUNS);
        for run in 0..RUNS {
            child(run);
            assert_eq!(told.recv().unwrap(), (run, Some((run, true))));
            assert_eq!(pool.look().waiting as u64, RUNS - run - 1);
        }
    });
}

#[test]
fn no_more_wait_than_a_quarter_of_the_files_can_hold_and_each_domain_has_its_part() {
    let rules = PoolRules {
        min: 16,
        max: 128,
        per_tenant: false,
    };
    for (domains, files, expected) in [
        (1, 1 << 20, (16, 128)),
        (1, 1024, (16, 23)),
        (1, 64, (1, 1)),
        (1, 20, (0, 0)),
        (1, libc::RLIM_INFINITY, (16, 128)),
        (8, 1 << 20, (16, 16)),
        (8, 1024, (2, 2)),
        (200, 1 << 20, (1, 1)),
    ] {
        let part = rules.for_each(domains, files);
        assert_eq!((part.min, part.max), expected, "{domains} of {files} files");
    }
}

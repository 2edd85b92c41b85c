//! What there is beyond what is wanted, and when it goes.

use super::*;
use crate::pool::domain::SETTLED;

fn idle(domain: &Domain) -> Vec<u64> {
    domain.idle.iter().map(|c| c.number).collect()
}

fn seat() -> Seat {
    Seat {
        ticket: 0,
        thread: std::thread::current(),
    }
}

/// A pool that wants two, whose domain has these: by their zygotes, of which the second is the one that there is now.
fn with_children(zygotes: &[u64]) -> (Pool, OwnedFd) {
    let rules = PoolRules {
        min: 2,
        max: 2,
        per_tenant: false,
    };
    let (pool, _host, launcher) = opened(rules);
    let mut state = pool.state();
    let domain = domain_of(&mut state, "", rules);
    (domain.zygote, domain.unsent) = (2, false);
    for (number, zygote) in (0..).zip(zygotes) {
        let child = waiting(number, Instant::now(), Instant::now());
        domain.idle.push_back(Waiting {
            zygote: *zygote,
            ..child
        });
    }
    drop(state);
    (pool, launcher)
}

/// Each new one comes for an old one; those that come while runs wait are for these, and the old ones stay. When the last of
/// these runs has its child, as many as are wanted may be new ones, and no further one comes that an old one could go for.
#[test]
fn old_ones_go_when_no_run_waits_any_more_and_there_are_enough_new_ones() {
    let (pool, launcher) = with_children(&[1, 2, 1, 2, 1]);
    pool.state().domains.get_mut("").unwrap().waiting[0].push_back(seat());
    pool.taken("", taken(8));
    assert_eq!(
        idle(&pool.state().domains[""]),
        [0, 1, 2, 3, 4],
        "one waits"
    );
    pool.state().domains.get_mut("").unwrap().waiting[0].clear();
    pool.taken("", taken(9));
    assert_eq!(idle(&pool.state().domains[""]), [1, 3]);
    let Some(Request::Pool(needs)) = told(&launcher) else {
        panic!("the launcher hears that no more are wanted than there are");
    };
    assert_eq!((needs.ahead, needs.taken.len()), (2, 2));
}

#[test]
fn an_old_one_stays_while_there_are_too_few_new_ones() {
    let (pool, launcher) = with_children(&[1, 2]);
    pool.taken("", taken(9));
    assert_eq!(idle(&pool.state().domains[""]), [0, 1]);
    assert!(told(&launcher).is_none());
}

/// They were made for runs that were given up.
#[test]
fn what_is_more_than_is_wanted_goes_when_it_has_shown_that_it_lives() {
    let (pool, _launcher) = with_children(&[2; 5]);
    let mut state = pool.state();
    let domain = state.domains.get_mut("").unwrap();
    assert!(
        !domain.drop_replaced(),
        "one may be the proof that children live"
    );
    let last = domain.idle.back().unwrap().built;
    domain.settle(last + SETTLED - Duration::from_nanos(1));
    assert_eq!((idle(domain).len(), domain.unsent), (5, false));
    domain.waiting[0].push_back(seat());
    domain.settle(last + SETTLED);
    assert_eq!(idle(domain).len(), 5, "a run waits");
    domain.waiting[0].clear();
    drop(state);
    assert!(pool.wait() <= SETTLED, "who looks after it is awake then");
    let mut state = pool.state();
    let domain = state.domains.get_mut("").unwrap();
    domain.settle(last + SETTLED);
    assert_eq!((idle(domain), domain.unsent), (vec![3, 4], true));
    assert_eq!((domain.ahead, domain.settles()), (2, None));
}

/// More than there are too many: the launcher makes others.
#[test]
fn of_what_is_more_than_is_wanted_any_number_may_have_died() {
    let (pool, _launcher) = with_children(&[2; 5]);
    let mut state = pool.state();
    let domain = state.domains.get_mut("").unwrap();
    let mut dead = std::process::Command::new("true").spawn().unwrap();
    let pidfds: Vec<_> = (0..4)
        .map(|_| sys::pidfd_open(dead.id() as _).unwrap())
        .collect();
    dead.wait().unwrap();
    for (child, pidfd) in domain.idle.iter_mut().zip(pidfds) {
        child.pidfd = pidfd;
    }
    let last = domain.idle.back().unwrap().built;
    domain.settle(last + SETTLED);
    assert_eq!((idle(domain), domain.unsent), (vec![4], true));
}

/// One that a run has not taken which has given up, here because it was made for others.
#[test]
fn what_a_run_that_gives_up_leaves_is_not_kept() {
    let (pool, _host, launcher) = warm(PoolRules {
        min: 0,
        max: 0,
        per_tenant: false,
    });
    while told(&launcher).is_some() {}
    let child = Waiting {
        furnishing: 7,
        ..waiting(1, Instant::now(), Instant::now())
    };
    let mut state = pool.state();
    state.domains.get_mut("").unwrap().idle.push_back(child);
    drop(state);
    assert!(pool.take("", &spec(), || true).is_none());
    assert!(pool.state().domains[""].idle.is_empty());
}

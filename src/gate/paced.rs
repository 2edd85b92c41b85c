//! How fast the runs of a tenant make connections, one after the other. A connection that is closed at once costs a run no byte
//! and no place, but the gateway a source port towards that host, of some 28,000, for a minute (TIME_WAIT): with all of them
//! used up nobody's run would reach that host. And each is a record in the audit log.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::pace::{Key, Ledger, Pace};

/// Tenants that are counted each for itself. Of more that make connections at the same time, further ones have one count together.
const TENANTS_MAX: usize = 10_000;

/// Counts connections by tenant.
#[derive(Debug)]
pub(super) struct Paced {
    ledger: Mutex<Ledger>,
    secrets: [RandomState; 2],
    began: Instant,
}

impl Paced {
    pub(super) fn new(pace: Pace) -> Self {
        Paced {
            ledger: Mutex::new(Ledger::new(pace, TENANTS_MAX)),
            secrets: [RandomState::new(), RandomState::new()],
            began: Instant::now(),
        }
    }

    /// Counts a connection that is to be made now, unless it comes too early.
    pub(super) fn admits(&self, tenant: &str) -> bool {
        self.admits_at(tenant, self.began.elapsed())
    }

    fn admits_at(&self, tenant: &str, now: Duration) -> bool {
        let [one, other] = &self.secrets;
        let key = Key(one.hash_one(tenant), other.hash_one(tenant));
        let now_ns = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        // A panic while it was held leaves counts, all of them valid.
        let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        let place = ledger.place(key, now_ns);
        ledger.count(place, now_ns).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of ten that are asked for at this moment.
    fn admitted(paced: &Paced, tenant: &str, ms: u64) -> usize {
        let now = Duration::from_millis(ms);
        (0..10).filter(|_| paced.admits_at(tenant, now)).count()
    }

    #[test]
    fn some_at_once_and_then_as_they_come_back() {
        let paced = Paced::new(Pace::new(2, 1, 3));
        assert_eq!(admitted(&paced, "north", 0), 3);
        assert_eq!(admitted(&paced, "south", 0), 3);
        assert_eq!(admitted(&paced, "north", 499), 0);
        assert_eq!(admitted(&paced, "north", 500), 1);
        assert_eq!(admitted(&paced, "north", 60_000), 3);
    }

    /// However many tenants there are, what is remembered of them has an end, and so has what they get.
    #[test]
    fn tenants_beyond_those_that_are_counted_share() {
        let paced = Paced::new(Pace::new(1, 1, 1));
        let all = (0..2 * TENANTS_MAX).map(|number| format!("tenant-{number}"));
        let first = all.filter(|tenant| paced.admits_at(tenant, Duration::ZERO));
        // And one for those that share.
        assert!((TENANTS_MAX / 2..=TENANTS_MAX + 1).contains(&first.count()));
        assert!(paced.ledger.lock().unwrap().keys() <= TENANTS_MAX);
        assert_eq!(admitted(&paced, "one more", 2000), 1);
    }
}

//! How often, for each of many keys (`[[rate_limit]]`, `gate.tenant_connections_per_s`): bounded memory, and arithmetic by `governor`.
//!
//! `governor` has the algorithm (GCRA); the memory is ours for two reasons. Its own stores grow with every key that was
//! ever seen, and they take one key of one rule at a time, while a call must be counted by all rules or by none.

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::num::NonZeroU32;
use std::time::Duration;

use governor::clock::{Clock, Reference};
use governor::middleware::StateInformationMiddleware;
use governor::nanos::Nanos;
use governor::state::StateStore;
use governor::{Quota, RateLimiter};

/// The keys of a ledger are spread over so many maps, so that a sweep or a growing map stops its callers for a moment
/// only.
const PARTS: usize = 16;

/// A full part is swept at most this often: whoever keeps it full does not buy a sweep with each request.
const SWEEP_PAUSE_NS: u64 = 100_000_000;

/// A key as it is kept: 128 bits of keyed hashes. A caller can choose neither its own nor somebody else's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key(pub(crate) u64, pub(crate) u64);

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.1);
    }
}

/// [`Key`] is random already.
#[derive(Default)]
pub(crate) struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }
    fn write_u64(&mut self, word: u64) {
        self.0 = word;
    }
}

/// For each key, when it will have its whole burst again (GCRA's theoretical arrival time), in nanoseconds of the
/// limiter's clock.
type Part = HashMap<Key, u64, BuildHasherDefault<AsItIs>>;

/// What is allowed to each key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Between two calls at the steady rate. Rounded up: never more than the quota.
    pub(crate) interval_ns: u64,
    /// At once.
    pub(crate) burst: u32,
}

impl Pace {
    /// So many in so many seconds, and so many at once.
    pub fn new(quota: u64, per_s: u64, burst: u64) -> Self {
        // The configuration keeps all of them far from these ends.
        let interval = (u128::from(per_s) * 1_000_000_000).div_ceil(u128::from(quota.max(1)));
        Pace {
            interval_ns: u64::try_from(interval).unwrap_or(u64::MAX).max(1),
            burst: u32::try_from(burst).unwrap_or(u32::MAX).max(1),
        }
    }

    /// Calls that are left at `now`, and nanoseconds until there is one more.
    pub(crate) fn left(self, full_at: Option<u64>, now: u64) -> (u64, u64) {
        let (interval, burst) = (self.interval_ns, u64::from(self.burst));
        let used = full_at.unwrap_or(now).saturating_sub(now);
        let left = burst.saturating_sub(used.div_ceil(interval));
        let next = used.saturating_sub((burst - left).saturating_sub(1) * interval);
        (left, next)
    }
}

/// Where a key's count is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Its own.
    Own(Key),
    /// All keys that there is no room for have one together.
    Shared,
}

/// What is remembered of the keys of one pace.
pub(crate) struct Ledger {
    parts: [Part; PARTS],
    sweep_from_ns: [u64; PARTS],
    part_keys_max: usize,
    shared: Option<u64>,
    /// The shared count as the last key of each part found it that there was no room for: a key that comes into the part when there
    /// is may be one of those, and would have a second burst.
    shared_by: [Option<u64>; PARTS],
    next_part: usize,
    gcra: Gcra,
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger")
            .field("keys", &self.keys())
            .finish_non_exhaustive()
    }
}

impl Ledger {
    /// Keeps at most about `keys_max` keys apart.
    pub(crate) fn new(pace: Pace, keys_max: usize) -> Self {
        Ledger {
            parts: std::array::from_fn(|_| Part::default()),
            sweep_from_ns: [0; PARTS],
            part_keys_max: keys_max.div_ceil(PARTS),
            shared: None,
            shared_by: [None; PARTS],
            next_part: 0,
            gcra: Gcra::new(pace),
        }
    }

    /// Finds the place of a key. One that has its whole burst again is as good as one that was never seen and makes
    /// room; where there is none, the key shares.
    pub(crate) fn place(&mut self, key: Key, now: u64) -> Place {
        let at = part_of(key);
        let part = &mut self.parts[at];
        if part.len() < self.part_keys_max || part.contains_key(&key) {
            return Place::Own(key);
        }
        if now >= self.sweep_from_ns[at] {
            self.sweep_from_ns[at] = now + SWEEP_PAUSE_NS;
            part.retain(|_, full_at| *full_at > now);
            if part.len() < self.part_keys_max {
                return Place::Own(key);
            }
        }
        // With the call that is about to be counted.
        self.shared_by[at] = self.gcra.check(self.shared, now).ok().or(self.shared);
        Place::Shared
    }

    pub(crate) fn full_at(&self, place: Place) -> Option<u64> {
        match place {
            Place::Own(key) => {
                let at = part_of(key);
                self.parts[at].get(&key).copied().or(self.shared_by[at])
            }
            Place::Shared => self.shared,
        }
    }

    pub(crate) fn set(&mut self, place: Place, full_at: Option<u64>) {
        match (place, full_at) {
            (Place::Own(key), Some(full_at)) => {
                self.parts[part_of(key)].insert(key, full_at);
            }
            (Place::Own(key), None) => {
                self.parts[part_of(key)].remove(&key);
            }
            (Place::Shared, full_at) => self.shared = full_at,
        }
    }

    /// Counts one call, or says how many nanoseconds it comes too early.
    pub(crate) fn count(&mut self, place: Place, now: u64) -> Result<(), u64> {
        let full_at = self.gcra.check(self.full_at(place), now)?;
        self.set(place, Some(full_at));
        Ok(())
    }

    /// Drops idle keys of one part; after [`PARTS`] times all have been looked at.
    pub(crate) fn sweep_some(&mut self, now: u64) {
        let part = &mut self.parts[self.next_part];
        part.retain(|_, full_at| *full_at > now);
        if part.capacity() > 4 * part.len() {
            part.shrink_to(2 * part.len());
        }
        self.next_part = (self.next_part + 1) % PARTS;
    }

    /// Keys that are kept apart now.
    pub(crate) fn keys(&self) -> usize {
        self.parts.iter().map(Part::len).sum()
    }
}

fn part_of(key: Key) -> usize {
    (key.0 % PARTS as u64) as usize
}

// === governor ===

/// One key's state while `governor` looks at it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Draft(Cell<Option<u64>>);

impl Hash for Draft {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.get().hash(state);
    }
}

/// Keeps nothing: the state comes and goes in the key.
#[derive(Debug)]
struct InTheKey;

impl StateStore for InTheKey {
    type Key = Draft;
    fn measure_and_replace<T, F, E>(&self, key: &Draft, f: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        let (answer, next) = f(key.0.get().map(Nanos::from))?;
        key.0.set(Some(next.into()));
        Ok(answer)
    }
}

/// The moment that a check is about: all that count one thing together see the same one.
#[derive(Debug)]
struct Moment(Cell<u64>);

impl Clock for Moment {
    type Instant = Nanos;
    fn now(&self) -> Nanos {
        self.0.get().into()
    }
}

#[derive(Debug)]
struct Gcra(RateLimiter<Draft, InTheKey, Moment, StateInformationMiddleware>);

impl Gcra {
    fn new(pace: Pace) -> Self {
        let burst = NonZeroU32::new(pace.burst).unwrap_or(NonZeroU32::MIN);
        let quota = Quota::with_period(Duration::from_nanos(pace.interval_ns))
            .unwrap_or(Quota::per_hour(NonZeroU32::MIN))
            .allow_burst(burst);
        // It begins at 0, so that its times are those of the clock.
        Gcra(RateLimiter::new(quota, InTheKey, Moment(Cell::new(0))))
    }

    /// The new state, or the wait in nanoseconds.
    fn check(&self, full_at: Option<u64>, now: u64) -> Result<u64, u64> {
        self.0.clock().0.set(now);
        let draft = Draft(Cell::new(full_at));
        match self.0.check_key(&draft) {
            Ok(_) => Ok(draft.0.get().unwrap_or(now)),
            Err(until) => Err(until
                .earliest_possible()
                .duration_since(now.into())
                .as_u64()),
        }
    }
}

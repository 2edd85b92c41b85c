//! How often an instance was called, by call and by how the calls ended, and how many go on.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use skillgate_plugin_abi as abi;

/// The counts of one instance. Cheap to clone; keeps nothing alive but itself.
///
/// Both words are the program's own, never a plugin's: there are as many counts as calls in the contract times outcomes
/// in [`outcome`] at most.
#[derive(Debug, Clone, Default)]
pub struct CallCounts(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    ended: RwLock<BTreeMap<Ended, AtomicU64>>,
    in_flight: AtomicUsize,
    going: Mutex<Goings>,
}

/// The calls that go on, in the order in which they came: name, and since when.
#[derive(Debug, Default)]
struct Goings {
    last: u64,
    since: BTreeMap<u64, (&'static str, Instant)>,
}

/// Calls of one name that have not ended for long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slow {
    /// As the contract names it.
    pub call: &'static str,
    /// How many there are.
    pub calls: usize,
    /// For how long the first of them has gone on.
    pub longest: Duration,
}

/// Name of the call, outcome.
type Ended = (&'static str, &'static str);

impl CallCounts {
    /// `(call, outcome, how often)`, in order; `outcome` is `ok` or a word for the error's code.
    #[must_use]
    pub fn all(&self) -> Vec<(&'static str, &'static str, u64)> {
        // A panic while it was held leaves a map, whole.
        let counts = self.0.ended.read();
        let counts = counts.unwrap_or_else(PoisonError::into_inner);
        counts
            .iter()
            .map(|((call, outcome), count)| (*call, *outcome, count.load(Ordering::Relaxed)))
            .collect()
    }

    /// Calls that have not ended, those included that wait for a thread.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.0.in_flight.load(Ordering::Acquire)
    }

    /// Of the calls that go on those that have gone on for `after` at `now`, by their names.
    #[must_use]
    pub fn slow(&self, now: Instant, after: Duration) -> Vec<Slow> {
        let mut slow: Vec<Slow> = Vec::new();
        for (call, since) in self.going().since.values() {
            let longest = now.saturating_duration_since(*since);
            if longest < after {
                // Those behind have come later.
                break;
            }
            match slow.iter_mut().find(|it| it.call == *call) {
                Some(known) => known.calls += 1,
                None => slow.push(Slow {
                    call,
                    calls: 1,
                    longest,
                }),
            }
        }
        slow
    }

    /// A call of this name begins.
    pub(crate) fn begin(&self, call: &'static str) -> Going {
        self.begin_at(call, Instant::now())
    }

    fn begin_at(&self, call: &'static str, now: Instant) -> Going {
        let mut going = self.going();
        going.last += 1;
        let number = going.last;
        going.since.insert(number, (call, now));
        drop(going);
        Going {
            before: self.0.in_flight.fetch_add(1, Ordering::AcqRel),
            number,
            counts: self.clone(),
        }
    }

    fn going(&self) -> MutexGuard<'_, Goings> {
        // A panic while it was held leaves a map, whole.
        self.0.going.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call has ended with this code, `abi::OK` or an error's, or was refused before it began.
    pub(crate) fn add(&self, call: &'static str, code: i32) {
        self.add_many((call, outcome(code)), 1);
    }

    fn add_many(&self, ended: Ended, times: u64) {
        let counts = self.0.ended.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get(&ended) {
            count.fetch_add(times, Ordering::Relaxed);
            return;
        }
        drop(counts);
        // Once for each in the life of an instance.
        let mut counts = self.0.ended.write().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(ended).or_default();
        count.fetch_add(times, Ordering::Relaxed);
    }

    /// Adds what the other has now.
    fn take_in(&self, other: &CallCounts) {
        for (call, outcome, times) in other.all() {
            self.add_many((call, outcome), times);
        }
        let going = other.in_flight();
        self.0.in_flight.fetch_add(going, Ordering::AcqRel);
    }

    /// Does nobody else have it, who could count on? Then what others have counted is seen: to look at how many have it would not
    /// see to that.
    fn is_final(&mut self) -> bool {
        Arc::get_mut(&mut self.0).is_some()
    }
}

/// A call that goes on, until this is dropped.
#[derive(Debug)]
pub(crate) struct Going {
    counts: CallCounts,
    /// How many others went on when it began.
    pub(crate) before: usize,
    number: u64,
}

impl Going {
    /// It has ended with this code.
    pub(crate) fn ended(self, call: &'static str, code: i32) {
        self.counts.add(call, code);
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        self.counts.going().since.remove(&self.number);
        self.counts.0.in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}

/// An instance whose calls are counted.
pub trait Counted {
    /// How often it was called, and how many of its calls go on.
    fn counts(&self) -> CallCounts;
}

/// The counts of instances that follow each other in one place: none is lost with its instance, and what an exchanged one still
/// has to end is seen.
#[derive(Debug, Default)]
pub(crate) struct Succession {
    /// Of those that are gone, all together.
    gone: CallCounts,
    others: Vec<CallCounts>,
}

impl Succession {
    /// Has this one's calls counted too. It may come again: an exchange that failed leaves the instance that there was.
    pub(crate) fn follow(&mut self, counts: &CallCounts) {
        self.settle();
        let mut others = self.others.iter();
        if !others.any(|other| Arc::ptr_eq(&other.0, &counts.0)) {
            self.others.push(counts.clone());
        }
    }

    /// All together, as they are now.
    pub(crate) fn total(&mut self) -> CallCounts {
        self.settle();
        let total = CallCounts::default();
        for counts in self.others.iter().chain([&self.gone]) {
            total.take_in(counts);
        }
        total
    }

    /// An instance that is gone counts no more.
    fn settle(&mut self) {
        let gone = &self.gone;
        self.others.retain_mut(|counts| {
            let is_final = counts.is_final();
            if is_final {
                gone.take_in(counts);
            }
            !is_final
        });
    }
}

/// The word for a code. A plugin may answer any number: what the contract does not know is `other`.
fn outcome(code: i32) -> &'static str {
    match code {
        abi::OK => "ok",
        abi::E_CANCELLED => "cancelled",
        abi::E_UNKNOWN => "unknown",
        abi::E_INVALID_ARGUMENT => "invalid_argument",
        abi::E_DEADLINE => "deadline",
        abi::E_NOT_FOUND => "not_found",
        abi::E_ALREADY_EXISTS => "already_exists",
        abi::E_PERMISSION => "permission",
        abi::E_EXHAUSTED => "exhausted",
        abi::E_PRECONDITION => "precondition",
        abi::E_ABORTED => "aborted",
        abi::E_OUT_OF_RANGE => "out_of_range",
        abi::E_UNIMPLEMENTED => "unimplemented",
        abi::E_INTERNAL => "internal",
        abi::E_UNAVAILABLE => "unavailable",
        abi::E_CORRUPT => "corrupt",
        abi::E_STALE => "stale",
        abi::E_WOULD_DEADLOCK => "would_deadlock",
        abi::E_PANIC => "panic",
        abi::E_PROTOCOL => "protocol",
        abi::E_CRASHED => "crashed",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_ending_has_its_count_and_no_plugin_makes_words() {
        let counts = CallCounts::default();
        for code in [abi::OK, abi::OK, abi::E_NOT_FOUND, 7, i32::MIN, -999] {
            counts.add("run", code);
        }
        counts.clone().add("health", abi::OK);
        assert_eq!(
            counts.all(),
            [
                ("health", "ok", 1),
                ("run", "not_found", 1),
                ("run", "ok", 2),
                ("run", "other", 3)
            ]
        );
    }

    #[test]
    fn a_call_goes_on_until_it_has_ended() {
        let counts = CallCounts::default();
        let (first, second) = (counts.begin("run"), counts.begin("run"));
        assert_eq!((first.before, second.before, counts.in_flight()), (0, 1, 2));
        first.ended("run", abi::OK);
        assert_eq!((counts.in_flight(), counts.all().len()), (1, 1));
        // It was never made.
        drop(second);
        assert_eq!((counts.in_flight(), counts.all().len()), (0, 1));
    }

    #[test]
    fn calls_that_do_not_end_are_found_by_their_names() {
        const AFTER: Duration = Duration::from_secs(30);
        let (counts, start) = (CallCounts::default(), Instant::now());
        let at = |s| start + Duration::from_secs(s);
        let first = counts.begin_at("skill_get", at(0));
        let _second = counts.begin_at("health", at(1));
        let _third = counts.begin_at("skill_get", at(2));
        let _late = counts.begin_at("blob_read", at(20));
        let slow = |now| counts.slow(at(now), AFTER);
        let of = |call, calls, s| Slow {
            call,
            calls,
            longest: Duration::from_secs(s),
        };
        assert_eq!(slow(29), []);
        assert_eq!(slow(30), [of("skill_get", 1, 30)]);
        assert_eq!(slow(40), [of("skill_get", 2, 40), of("health", 1, 39)]);
        first.ended("skill_get", abi::OK);
        assert_eq!(slow(40), [of("health", 1, 39), of("skill_get", 1, 38)]);
        // A clock that stands still is no reason to panic.
        assert_eq!(counts.slow(start, AFTER), []);
    }

    #[test]
    fn what_was_counted_outlives_its_instance() {
        let mut all = Succession::default();
        let (old, new) = (CallCounts::default(), CallCounts::default());
        all.follow(&old);
        old.add("run", abi::OK);
        let late = old.begin("run");
        all.follow(&new);
        new.add("run", abi::OK);
        let going = new.begin("run");
        let seen = |all: &mut Succession| {
            let total = all.total();
            (total.all(), total.in_flight())
        };
        assert_eq!(seen(&mut all), (vec![("run", "ok", 2)], 2));
        // The new one did not come up, and the old one serves on.
        all.follow(&old);
        assert_eq!(seen(&mut all), (vec![("run", "ok", 2)], 2));
        // The last of an exchanged one.
        drop(old);
        late.ended("run", abi::E_CRASHED);
        let counted = vec![("run", "crashed", 1), ("run", "ok", 2)];
        assert_eq!(seen(&mut all), (counted.clone(), 1));
        drop((new, going));
        assert_eq!(seen(&mut all), (counted, 0));
        assert!(all.others.is_empty(), "what is gone is not kept");
    }

    #[test]
    fn each_code_of_the_contract_has_a_word_of_its_own() {
        let codes = [
            abi::OK,
            abi::E_CANCELLED,
            abi::E_UNKNOWN,
            abi::E_INVALID_ARGUMENT,
            abi::E_DEADLINE,
            abi::E_NOT_FOUND,
            abi::E_ALREADY_EXISTS,
            abi::E_PERMISSION,
            abi::E_EXHAUSTED,
            abi::E_PRECONDITION,
            abi::E_ABORTED,
            abi::E_OUT_OF_RANGE,
            abi::E_UNIMPLEMENTED,
            abi::E_INTERNAL,
            abi::E_UNAVAILABLE,
            abi::E_CORRUPT,
            abi::E_STALE,
            abi::E_WOULD_DEADLOCK,
            abi::E_PANIC,
            abi::E_PROTOCOL,
            abi::E_CRASHED,
        ];
        let words: std::collections::BTreeSet<_> = codes.map(outcome).into();
        assert_eq!(words.len(), codes.len());
        assert!(!words.contains("other"));
    }
}

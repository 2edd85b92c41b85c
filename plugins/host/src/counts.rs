//! How often an instance was called, by call and by how the calls ended.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use skillgate_plugin_abi as abi;

/// The counts of one instance. Cheap to clone; keeps nothing alive but itself.
///
/// Both words are the program's own, never a plugin's: there are as many counts as calls in the contract times outcomes
/// in [`outcome`] at most.
#[derive(Debug, Clone, Default)]
pub struct CallCounts(Arc<RwLock<BTreeMap<Ended, AtomicU64>>>);

/// Name of the call, outcome.
type Ended = (&'static str, &'static str);

impl CallCounts {
    /// `(call, outcome, how often)`, in order; `outcome` is `ok` or a word for the error's code.
    #[must_use]
    pub fn all(&self) -> Vec<(&'static str, &'static str, u64)> {
        // A panic while it was held leaves a map, whole.
        let counts = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let counts = counts.iter();
        counts
            .map(|((call, outcome), count)| (*call, *outcome, count.load(Ordering::Relaxed)))
            .collect()
    }

    /// A call has ended with this code, `abi::OK` or an error's.
    pub(crate) fn add(&self, call: &'static str, code: i32) {
        let ended = (call, outcome(code));
        let counts = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get(&ended) {
            count.fetch_add(1, Ordering::Relaxed);
            return;
        }
        drop(counts);
        // Once for each in the life of an instance.
        let mut counts = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(ended).or_default();
        count.fetch_add(1, Ordering::Relaxed);
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

//! How much a plugin may log: one that does not stop would fill the disk that the log is on, or the pipe, from which the
//! gateway's own records would be missing then.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of records that an instance may log for long, in a second, and at once.
const BYTES_PER_S: u64 = 256 << 10;
const BYTES_AT_ONCE: u64 = 4 << 20;
/// What a record costs beside its texts: time, level, names.
const RECORD_BYTES: usize = 256;
/// How often it is said that some are not kept.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// Of one instance. GCRA, in bytes.
#[derive(Debug, Default)]
pub(crate) struct Pace(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// What it has logged keeps it busy so long, at its pace.
    busy_until: Option<Instant>,
    dropped: u64,
    told_at: Option<Instant>,
}

/// What becomes of a record.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Kept,
    /// It is not kept, and neither were so many before it, where it is time to say so.
    Dropped(Option<u64>),
}

impl Pace {
    /// Of a record with so many bytes of text that comes now.
    pub(super) fn fate(&self, bytes: usize, now: Instant) -> Fate {
        // A panic while it was held leaves times, each of them valid.
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let takes = |bytes: u64| Duration::from_nanos(bytes * 1_000_000_000 / BYTES_PER_S);
        let from = state.busy_until.map_or(now, |until| until.max(now));
        let until = from + takes((bytes + RECORD_BYTES) as u64);
        if until - now <= takes(BYTES_AT_ONCE) {
            state.busy_until = Some(until);
            return Fate::Kept;
        }
        state.dropped += 1;
        let is_time = |at: Instant| now.saturating_duration_since(at) >= TELL_EVERY;
        Fate::Dropped(state.told_at.is_none_or(is_time).then(|| {
            state.told_at = Some(now);
            std::mem::take(&mut state.dropped)
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: usize = (64 << 10) - RECORD_BYTES;

    #[test]
    fn a_plugin_logs_a_burst_then_at_its_pace_and_says_what_is_missing() {
        let (pace, now) = (Pace::default(), Instant::now());
        let log = |ms: u64| pace.fate(RECORD, now + Duration::from_millis(ms));
        let burst = BYTES_AT_ONCE / (64 << 10);
        for _ in 0..burst {
            assert_eq!(log(0), Fate::Kept);
        }
        assert_eq!(log(0), Fate::Dropped(Some(1)), "said at once");
        // A quarter of a second for each from here on; of the others it is said once a second.
        assert_eq!(log(249), Fate::Dropped(None));
        assert_eq!(log(250), Fate::Kept);
        assert_eq!(log(251), Fate::Dropped(None));
        assert_eq!(log(500), Fate::Kept);
        assert_eq!(log(750), Fate::Kept);
        assert_eq!(log(999), Fate::Dropped(None));
        assert_eq!(log(1000), Fate::Kept);
        assert_eq!(log(1001), Fate::Dropped(Some(4)));
        // Who is quiet has all of it again.
        let later = 1000 * (BYTES_AT_ONCE / BYTES_PER_S) + 1001;
        for _ in 0..burst {
            assert_eq!(log(later), Fate::Kept);
        }
        assert_eq!(log(later), Fate::Dropped(Some(1)));
    }
}

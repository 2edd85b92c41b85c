//! Time, as a parameter: what the calendar says for tokens, and how long the machine runs for everything that is
//! counted in intervals, which a change of the calendar must not touch.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_gettime};

/// 2026-01-01. This program is no older, so a calendar that says an earlier time is that of a machine without a battery for its
/// clock, which has not been told the time yet. By such a one no token would ever have expired.
const SET_FROM_S: u64 = 1_767_225_600;
/// Who comes while it is not set is told to come again after so long: a machine is told the time soon after its start.
pub(super) const UNSET_RETRY_AFTER_S: u64 = 30;

/// A moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Seconds since 1970-01-01T00:00:00Z, as NumericDate counts them (RFC 7519 section 2).
    pub unix_s: u64,
    /// Since some fixed moment; never goes back, and goes on while the machine sleeps.
    pub uptime: Duration,
}

impl Now {
    /// Whether the calendar can be right.
    pub(super) fn is_set(self) -> bool {
        self.unix_s >= SET_FROM_S
    }
}

/// Says what time it is.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Now + Send + Sync>);

impl Clock {
    /// The system's. All of them agree, so that an age outlives the clock that it was measured with.
    pub fn system() -> Self {
        Clock::new(|| Now {
            // Before 1970 it is not set.
            unix_s: SystemTime::now()
                .duration_since(SystemTime::UNIX_EPOCH)
                .map_or(0, |since| since.as_secs()),
            // `Instant` stands still while the machine sleeps: keys that an issuer has withdrawn meanwhile would pass for fresh.
            uptime: Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default(),
        })
    }

    /// Another one.
    pub fn new(now: impl Fn() -> Now + Send + Sync + 'static) -> Self {
        Clock(Arc::new(now))
    }

    /// What time it is.
    pub fn now(&self) -> Now {
        (self.0)()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Clock({:?})", self.now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_that_a_machine_sleeps_counts() {
        let booted = || Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap();
        let before = booted();
        let uptime = Clock::system().now().uptime;
        assert!((before..=booted()).contains(&uptime), "{uptime:?}");
    }
}

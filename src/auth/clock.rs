//! Time, as a parameter: what the calendar says for tokens, and how long the program runs for everything that is
//! counted in intervals, which a change of the calendar must not touch.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

/// A moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Seconds since 1970-01-01T00:00:00Z, as NumericDate counts them (RFC 7519 section 2).
    pub unix_s: u64,
    /// Since some fixed moment; never goes back.
    pub uptime: Duration,
}

/// Says what time it is.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Now + Send + Sync>);

impl Clock {
    /// The system's. All of them agree, so that an age outlives the clock that it was measured with.
    pub fn system() -> Self {
        static START: OnceLock<Instant> = OnceLock::new();
        let start = *START.get_or_init(Instant::now);
        Clock::new(move || Now {
            // Before 1970 nothing is valid yet, and everything that has an end is refused by `nbf` and `iat`.
            unix_s: SystemTime::now()
                .duration_since(SystemTime::UNIX_EPOCH)
                .map_or(0, |since| since.as_secs()),
            uptime: start.elapsed(),
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

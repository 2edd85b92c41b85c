//! The least pace of what goes between a client and the gateway, in either direction. A limit on the time without any progress
//! alone lets whoever sends or reads a byte now and then keep his places for as long as he likes.

use std::time::Duration;

/// Bytes for each second that is waited for the client.
pub(crate) const BYTES_PER_S_MIN: u64 = 1024;
/// It is looked at over so many times what may pass without any progress.
pub(crate) const TIMEOUTS: u32 = 10;

/// How what is sent or read goes on.
#[derive(Debug)]
pub(crate) struct Progress {
    /// It is looked at when so long has been waited for the client. What the store takes is not his time.
    looked_after: Duration,
    /// Since then.
    waited: Duration,
    bytes: u64,
}

impl Progress {
    /// Where `idle` may pass without any.
    pub(crate) fn new(idle: Duration) -> Self {
        Progress {
            looked_after: idle * TIMEOUTS,
            waited: Duration::ZERO,
            bytes: 0,
        }
    }

    /// Whether it is quick enough, with so many bytes more, which were waited for.
    pub(crate) fn is_enough(&mut self, bytes: usize, waited: Duration) -> bool {
        self.waited += waited;
        self.bytes = self.bytes.saturating_add(bytes as u64);
        if self.waited < self.looked_after {
            return true;
        }
        let least = BYTES_PER_S_MIN as f64 * self.waited.as_secs_f64();
        let is_enough = self.bytes as f64 >= least;
        (self.waited, self.bytes) = (Duration::ZERO, 0);
        is_enough
    }
}

//! How long what fails again and again is let be, so that it does not take the host.

/// The wait after a second failure in a row, doubled each time.
pub(super) const FIRST_NS: u64 = 100_000_000;
pub(super) const MAX_NS: u64 = 10_000_000_000;

/// What has failed in a row, of one kind.
#[derive(Debug, Default)]
pub(super) struct BackOff {
    pub(super) failures: u32,
    /// When the last one was seen.
    pub(super) failed_ns: u64,
    /// There is to be no other try before.
    pub(super) not_before_ns: u64,
}

impl BackOff {
    pub(super) fn failed(&mut self, now: u64) {
        // The first may have been an accident: another is begun at once.
        let wait = match self.failures {
            0 => 0,
            before => FIRST_NS << (before - 1).min(10),
        };
        self.failures = self.failures.saturating_add(1);
        self.failed_ns = now;
        self.not_before_ns = now + wait.min(MAX_NS);
    }

    pub(super) fn succeeded(&mut self) {
        self.failures = 0;
    }
}

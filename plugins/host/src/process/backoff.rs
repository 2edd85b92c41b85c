//! When a plugin's process that has ended is started again.

use std::time::Duration;

/// A process that has lived so long was healthy: what was before it is forgotten.
const HEALTHY: Duration = Duration::from_secs(60);
/// Before the second start; each further one waits twice as long.
const FIRST_DELAY: Duration = Duration::from_millis(100);
/// From so many short lives in a row on, the circuit is open: the plugin is tried every [`OPEN`] only.
const SHORT_LIVES: u32 = 6;
/// How long the open circuit keeps it down.
const OPEN: Duration = Duration::from_secs(30);

/// Counts short lives.
#[derive(Debug, Default)]
pub(crate) struct Restarts(u32);

impl Restarts {
    /// A process has ended after so long: how long to wait before the next start. The first time none.
    pub(crate) fn ended(&mut self, lived: Duration) -> Duration {
        if lived >= HEALTHY {
            self.0 = 0;
        }
        self.failed()
    }

    /// The same of one that did not come up: however long that took, it has not lived.
    pub(crate) fn failed(&mut self) -> Duration {
        let before = self.0;
        self.0 = before.saturating_add(1);
        match before {
            0 => Duration::ZERO,
            n if n >= SHORT_LIVES - 1 => OPEN,
            n => FIRST_DELAY * (1 << (n - 1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longer_and_longer_then_given_up_until_one_lives() {
        let mut restarts = Restarts::default();
        let mut after = |lived_ms| restarts.ended(Duration::from_millis(lived_ms)).as_millis();
        let delays: Vec<_> = (0..8).map(|_| after(5)).collect();
        assert_eq!(delays, [0, 100, 200, 400, 800, 30_000, 30_000, 30_000]);
        assert_eq!(after(59_999), 30_000);
        assert_eq!([after(60_000), after(0)], [0, 100]);
    }

    #[test]
    fn a_start_that_fails_is_no_life_however_long_it_took() {
        let mut restarts = Restarts::default();
        // A healthy one, so the first start comes at once.
        let mut delays = vec![restarts.ended(HEALTHY)];
        delays.extend((0..6).map(|_| restarts.failed()));
        let delays: Vec<_> = delays.iter().map(Duration::as_millis).collect();
        assert_eq!(delays, [0, 100, 200, 400, 800, 30_000, 30_000]);
    }
}

//! Whether a launcher that lives does anything.

use std::sync::atomic::{AtomicU64, Ordering};

/// One that has read nothing of what it was told, and said nothing, for so long does neither any more. It reads everything within
/// milliseconds, however much is asked of it.
pub(super) const LONG_MS: u64 = 5_000;
const LONG_NS: u64 = LONG_MS * 1_000_000;

/// Since when a launcher has been seen with something unread, and not been heard of. 0: it is not silent.
#[derive(Debug, Default)]
pub(crate) struct Silence(AtomicU64);

impl Silence {
    /// It has said something.
    pub(crate) fn end(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Whether it has lasted too long. `unread`: something that it was told lies there.
    pub(super) fn is_long(&self, unread: bool, now_ns: u64) -> bool {
        if !unread {
            self.end();
            return false;
        }
        match self
            .0
            .compare_exchange(0, now_ns, Ordering::Relaxed, Ordering::Relaxed)
        {
            Ok(_) => false,
            Err(since_ns) => now_ns.saturating_sub(since_ns) >= LONG_NS,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_long_where_nothing_is_read_and_nothing_is_said() {
        let silence = Silence::default();
        assert!(!silence.is_long(true, 5), "it begins");
        assert!(!silence.is_long(true, 4 + LONG_NS));
        assert!(silence.is_long(true, 5 + LONG_NS));
        silence.end();
        assert!(!silence.is_long(true, 6 + LONG_NS), "it has said something");
        assert!(silence.is_long(true, 6 + 2 * LONG_NS));
        assert!(!silence.is_long(false, 7 + 2 * LONG_NS), "it has read");
        assert!(!silence.is_long(true, 8 + 2 * LONG_NS));
    }
}

//! Whether runs come so fast that what is done ahead of them is done at their expense.

use std::collections::VecDeque;

/// So many runs for each processor that have ended within [`WINDOW_NS`] are load: a short run takes some 3 ms of a processor
/// with all that is made for it, over HTTP 5, and a rehearsal one more.
const RUNS: usize = 2;
const WINDOW_NS: u64 = 20_000_000;

/// When the last runs have ended (answered, or gone without), the oldest first: as many as are load when none of them is older
/// than the window.
#[derive(Debug)]
pub(super) struct Load {
    ended_ns: VecDeque<u64>,
}

impl Load {
    pub(super) fn new(processors: u32) -> Self {
        Load {
            ended_ns: vec![0; processors as usize * RUNS].into(),
        }
    }

    pub(super) fn has_ended(&mut self, now: u64) {
        self.ended_ns.pop_front();
        self.ended_ns.push_back(now);
    }

    pub(super) fn is_high(&self, now: u64) -> bool {
        now < self.until_ns()
    }

    /// When it is over if no other run ends.
    pub(super) fn until_ns(&self) -> u64 {
        self.ended_ns
            .front()
            .map_or(0, |oldest| oldest.saturating_add(WINDOW_NS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_high_while_as_many_runs_have_ended_within_the_window_as_there_may() {
        const MS: u64 = 1_000_000;
        let mut load = Load::new(2);
        let mut now = 1000 * MS;
        for _ in 0..3 {
            load.has_ended(now);
            now += MS;
            assert!(!load.is_high(now), "{now}");
        }
        load.has_ended(now);
        assert!(load.is_high(now));
        assert_eq!(load.until_ns(), 1020 * MS, "the first leaves the window");
        assert!(!load.is_high(1020 * MS));
        // One run every 8 ms is none for two processors, one every 4 ms is.
        for (every, high) in [(8 * MS, false), (4 * MS, true), (10 * MS, false)] {
            (0..10).for_each(|i| load.has_ended(2000 * MS + i * every));
            assert_eq!(load.is_high(2000 * MS + 9 * every), high, "{every}");
        }
    }
}

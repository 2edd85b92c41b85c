//! Whether a run lasts: when it is looked at, and what follows from what it has used of the processors by then.
//!
//! One that takes them again and again is to make way for those that have just begun, and while it goes on the pace is kept
//! ([`super::pace`]). One that sleeps is in nobody's way, however old it is.

/// What a short run does not use, between two looks.
const HUNGRY_US: u64 = 2000;
/// ... nor this part of the time between them.
const HUNGRY_PART: u64 = 16;
/// A run that lasts is looked at again after so long.
const AGAIN_NS: u64 = 250_000_000;
/// One that sleeps is looked at when it is twice as old, and after so long in any case: it may only have waited.
const SLEEPS_MAX_NS: u64 = 500_000_000;

/// One run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lasting {
    began_ns: u64,
    /// It makes way when it has used so much.
    lasts_ns: u64,
    has_made_way: bool,
    /// The last look, and what it had used.
    seen_ns: u64,
    used_us: u64,
    /// The next one.
    pub(super) next_ns: u64,
}

/// What a look has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    /// Now it is to make way.
    pub(super) makes_way: bool,
    /// It takes the processors.
    pub(super) is_hungry: bool,
}

impl Lasting {
    /// What has no run yet, or none any more.
    pub(super) const NO_RUN: Lasting = Lasting {
        began_ns: 0,
        lasts_ns: 0,
        has_made_way: false,
        seen_ns: 0,
        used_us: 0,
        next_ns: u64::MAX,
    };

    /// It begins. It is looked at first when a fifth of what makes it last may have been used.
    pub(super) fn begin(now: u64, lasts_ns: u64) -> Self {
        Lasting {
            began_ns: now,
            lasts_ns,
            seen_ns: now,
            next_ns: now + lasts_ns / 5,
            ..Self::NO_RUN
        }
    }

    pub(super) fn has_made_way(&self) -> bool {
        self.has_made_way
    }

    pub(super) fn began_ns(&self) -> u64 {
        self.began_ns
    }

    /// A look, and when the next one is. `None`: nothing counts what it uses, and its age has to do.
    pub(super) fn look(&mut self, now: u64, used_us: Option<u64>) -> Found {
        let age_ns = now.saturating_sub(self.began_ns);
        let (lasts, is_hungry) = match used_us {
            Some(used) => {
                let since_us = used.saturating_sub(self.used_us);
                let part_us = now.saturating_sub(self.seen_ns) / 1000 / HUNGRY_PART;
                self.used_us = used;
                let lasts = used.saturating_mul(1000) >= self.lasts_ns;
                (lasts, since_us >= part_us.max(HUNGRY_US))
            }
            None => (age_ns >= self.lasts_ns, age_ns >= self.lasts_ns),
        };
        self.seen_ns = now;
        let makes_way = lasts && !std::mem::replace(&mut self.has_made_way, lasts);
        self.next_ns = now
            + match used_us {
                _ if lasts && is_hungry => AGAIN_NS,
                None => self.lasts_ns - age_ns,
                // As soon as one processor could have been used enough.
                Some(used) if is_hungry => (self.lasts_ns - used * 1000).max(self.lasts_ns / 5),
                Some(_) => age_ns.clamp(self.lasts_ns / 5, SLEEPS_MAX_NS),
            };
        Found {
            makes_way,
            is_hungry,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const BEGAN: u64 = 1000 * MS;

    /// What each look finds of a run that has used so many microseconds at so many milliseconds: the age at which it was looked
    /// at, whether it makes way, whether it is hungry.
    fn looks(used_us: impl Fn(u64) -> Option<u64>, until_ms: u64) -> Vec<(u64, bool, bool)> {
        let mut lasting = Lasting::begin(BEGAN, 20 * MS);
        let mut all = Vec::new();
        while lasting.next_ns <= BEGAN + until_ms * MS {
            let now = lasting.next_ns;
            let age = (now - BEGAN) / MS;
            let found = lasting.look(now, used_us(age));
            assert!(lasting.next_ns > now);
            all.push((age, found.makes_way, found.is_hungry));
        }
        all
    }

    #[test]
    fn one_that_takes_a_processor_makes_way_once_and_is_hungry_as_long_as_it_does() {
        let takes_all = looks(|ms| Some(ms * 1000), 530);
        let expected = [
            (4, false, true),
            (20, true, true),
            (270, false, true),
            (520, false, true),
        ];
        assert_eq!(takes_all, expected);
        let half = looks(|ms| Some(ms * 500), 60);
        let ages: Vec<u64> = half.iter().map(|(age, ..)| *age).collect();
        assert_eq!(ages, [4, 22, 31, 35, 39, 43]);
        assert!(half.iter().all(|(_, _, hungry)| *hungry));
        assert_eq!(half.iter().position(|(_, way, _)| *way), Some(5));
    }

    #[test]
    fn a_short_one_and_one_that_sleeps_are_neither() {
        for used in [0, 1500, 1999] {
            let sleeps = looks(|_| Some(used), 2000);
            let ages: Vec<u64> = sleeps.iter().map(|(age, ..)| *age).collect();
            assert_eq!(ages, [4, 8, 16, 32, 64, 128, 256, 512, 1012, 1512]);
            assert!(sleeps.iter().all(|(_, way, hungry)| !way && !hungry));
        }
    }

    /// It is no longer than so until that is seen, and what it had slept before does not count for it.
    #[test]
    fn one_that_wakes_after_a_long_sleep_makes_way_too() {
        let wakes = looks(|ms| Some(ms.saturating_sub(60_000) * 1000), 61_000);
        let made_way = wakes.iter().filter(|(_, way, _)| *way);
        let ages: Vec<u64> = made_way.map(|(age, ..)| *age).collect();
        assert!(matches!(ages[..], [60_020..=60_512]), "{ages:?}");
    }

    #[test]
    fn one_that_has_made_way_and_sleeps_is_hungry_no_more() {
        let rests = looks(|ms| Some(ms.min(100) * 1000), 1500);
        let hungry = rests.iter().filter(|(_, _, hungry)| *hungry);
        assert_eq!(hungry.map(|(age, ..)| *age).max(), Some(270));
    }

    #[test]
    fn where_nothing_counts_its_age_does() {
        let unknown = looks(|_| None, 300);
        assert_eq!(
            unknown,
            [(4, false, false), (20, true, true), (270, false, true)]
        );
    }
}

//! What holds the launcher back from making children ahead of runs, and when it looks again.

use super::run::LINGER_NS;

/// A run that has just been told to begin has the processors for itself for so long, or until a run ends, while there are
/// other children left: making one takes as much of them as a short run does.
const HOLD_NS: u64 = 3_000_000;
/// So many children are made ahead for each processor under load. One that waits takes processors and caches from runs, and
/// one that is made when it is wanted comes as soon.
const BUSY_AHEAD_MAX: u32 = 2;
/// When it is looked again whether there are too many young children.
const CROWDED_AGAIN_NS: u64 = 1_000_000;
/// When it is looked again whether there are as many runs still: nobody waits for that.
const MANY_AGAIN_NS: u64 = 10_000_000;

/// Until when one child at most is made ahead of runs.
#[derive(Debug, Default)]
pub(super) struct Hold {
    begun_ns: u64,
    answered_ns: u64,
}

impl Hold {
    /// A run has just been told to begin.
    pub(super) fn begun(&mut self, now: u64) {
        self.begun_ns = now + HOLD_NS;
    }

    /// A run is over, and its child gone.
    pub(super) fn ended(&mut self) {
        self.begun_ns = 0;
    }

    /// The plugin has let go of a run, which is ended after `linger_ns`: its answer is on its way, and what comes in the place of its
    /// child waits as long as that. With many at once the answer is one of many, and what is made for those who wait comes first.
    pub(super) fn answered(&mut self, now: u64, linger_ns: u64) {
        if linger_ns <= LINGER_NS {
            self.answered_ns = now + linger_ns;
        }
    }

    pub(super) fn until_ns(&self) -> u64 {
        self.begun_ns.max(self.answered_ns)
    }
}

/// What is there when it is asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    pub(super) now: u64,
    pub(super) processors: u32,
    /// There are as many young children as there may be.
    pub(super) is_crowded: bool,
    /// A run that has just begun, or whose answer is on its way, has the processors for itself until then.
    pub(super) hold_ns: u64,
    /// Runs have come so fast that it is load until then.
    pub(super) load_until_ns: u64,
    /// Many runs have come at once.
    pub(super) has_many_runs: bool,
}

impl Seen {
    /// Whether what is done ahead of runs would be done at their expense.
    pub(super) fn is_busy(&self) -> bool {
        self.now < self.load_until_ns || self.has_many_runs
    }
}

/// Both parts are of one moment. Were it asked again, later, how long the launcher may sleep, the reason could have ended
/// between the two: nothing would wake it, and fewer children would wait than are wanted until the next run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Restraint {
    /// So many children there may be ahead of runs. 0: none is made, for whatever it is.
    pub(super) ahead_max: u32,
    /// When it is looked again, in nanoseconds of the monotonic clock. `None`: nothing restrains.
    pub(super) again_ns: Option<u64>,
}

impl Restraint {
    pub(super) const NONE: Restraint = Restraint {
        ahead_max: u32::MAX,
        again_ns: None,
    };

    pub(super) fn of(seen: Seen) -> Self {
        let Seen { now, .. } = seen;
        if seen.is_crowded {
            return Restraint {
                ahead_max: 0,
                again_ns: Some(now + CROWDED_AGAIN_NS),
            };
        }
        let held = (now < seen.hold_ns).then_some(seen.hold_ns);
        let fast = (now < seen.load_until_ns).then_some(seen.load_until_ns);
        let many = seen.has_many_runs.then_some(now + MANY_AGAIN_NS);
        Restraint {
            ahead_max: if held.is_some() {
                1
            } else if seen.is_busy() {
                seen.processors * BUSY_AHEAD_MAX
            } else {
                u32::MAX
            },
            again_ns: [held, fast, many].into_iter().flatten().min(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::run::LINGER_LONG_NS;
    use super::*;

    const NOW: u64 = 1_000_000_000;
    const QUIET: Seen = Seen {
        now: NOW,
        processors: 2,
        is_crowded: false,
        hold_ns: 0,
        load_until_ns: 0,
        has_many_runs: false,
    };

    #[test]
    fn each_reason_has_its_measure_and_its_end() {
        let held = Seen {
            hold_ns: NOW + 3,
            ..QUIET
        };
        let fast = Seen {
            load_until_ns: NOW + 5,
            ..QUIET
        };
        let many = Seen {
            has_many_runs: true,
            ..QUIET
        };
        let crowded = Seen {
            is_crowded: true,
            ..held
        };
        let held_and_fast = Seen {
            hold_ns: NOW + 9,
            ..fast
        };
        for (seen, ahead_max, again_ns) in [
            (QUIET, u32::MAX, None),
            (held, 1, Some(NOW + 3)),
            (fast, 4, Some(NOW + 5)),
            (many, 4, Some(NOW + MANY_AGAIN_NS)),
            (crowded, 0, Some(NOW + CROWDED_AGAIN_NS)),
            (held_and_fast, 1, Some(NOW + 5)),
        ] {
            let expected = Restraint {
                ahead_max,
                again_ns,
            };
            assert_eq!(Restraint::of(seen), expected, "{seen:?}");
        }
    }

    /// Whatever holds it back, and whenever that ends: it is looked again, and not at once.
    #[test]
    fn what_is_held_back_is_looked_for_again() {
        for reasons in 0..16_u32 {
            let has = |bit: u32| reasons & 1 << bit != 0;
            for until in [NOW - 1, NOW, NOW + 1, NOW + 50_000_000] {
                let seen = Seen {
                    is_crowded: has(0),
                    hold_ns: if has(1) { until } else { 0 },
                    load_until_ns: if has(2) { until } else { 0 },
                    has_many_runs: has(3),
                    ..QUIET
                };
                let Restraint {
                    ahead_max,
                    again_ns,
                } = Restraint::of(seen);
                assert_eq!(ahead_max < u32::MAX, again_ns.is_some(), "{seen:?}");
                assert!(again_ns.is_none_or(|at| at > NOW), "{seen:?}");
            }
        }
    }

    #[test]
    fn a_run_has_the_processors_until_it_has_ended_and_its_answer_until_it_is_there() {
        let mut hold = Hold::default();
        hold.begun(NOW);
        assert_eq!(hold.until_ns(), NOW + HOLD_NS);
        hold.ended();
        assert_eq!(hold.until_ns(), 0);
        hold.answered(NOW, LINGER_NS);
        // Another's end, while this one's answer is on its way.
        hold.ended();
        assert_eq!(hold.until_ns(), NOW + LINGER_NS);
        // Where runs come one upon the other nothing is put off any more.
        hold.answered(NOW + 1, 0);
        assert_eq!(hold.until_ns(), NOW + 1);
        hold.answered(NOW, LINGER_LONG_NS);
        assert_eq!(hold.until_ns(), NOW + 1, "there are many");
        hold.begun(NOW);
        hold.answered(NOW, LINGER_NS);
        assert_eq!(hold.until_ns(), NOW + HOLD_NS);
    }

    #[test]
    fn nothing_restrains_what_is_quiet() {
        assert_eq!(Restraint::of(QUIET), Restraint::NONE);
        // At its very end a reason is none any more.
        let over = Seen {
            hold_ns: NOW,
            load_until_ns: NOW,
            ..QUIET
        };
        assert_eq!(Restraint::of(over), Restraint::NONE);
    }
}

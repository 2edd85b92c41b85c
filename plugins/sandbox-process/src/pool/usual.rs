//! What the runs of a domain want mounted again and again, so that children can wait with it.

use crate::wire::{Furnishing, MountSpec};

/// So many runs of one kind, more than of all others since, make it the usual one, ...
const USUAL_FROM: u32 = 6;
/// ... which it is until so few are left of that lead: what changes with each run would only be told and made anew.
const USUAL_UNTIL: u32 = 2;
/// A lead does not grow beyond this, and is lost in as many runs.
const LEAD_MAX: u32 = 8;
/// Children wait with no more mounts than this.
const WAITING_MOUNTS_MAX: usize = 16;

/// The mounts that most runs want: a majority vote of which only the lead is kept (Boyer and Moore, MJRTY, 1981).
#[derive(Debug, Default)]
pub(super) struct Usual {
    mounts: Vec<MountSpec>,
    /// Of these mounts, and never of others.
    number: u64,
    lead: u32,
    is_usual: bool,
    /// A run has wanted them in this window.
    is_wanted: bool,
}

impl Usual {
    /// A run wants these. If others take the first place, theirs is the next number. Gives whether what is to be made changes.
    pub(super) fn count(&mut self, mounts: &[MountSpec], next: impl FnOnce() -> u64) -> bool {
        let was_usual = self.is_usual;
        // Those with which no child can wait are of one kind.
        let mounts = if can_wait(mounts) { mounts } else { &[] };
        if mounts == self.mounts {
            self.lead = (self.lead + 1).min(LEAD_MAX);
            self.is_wanted = true;
        } else if self.lead > 0 {
            self.lead -= 1;
        } else {
            *self = Usual {
                mounts: mounts.to_vec(),
                number: next(),
                lead: 1,
                is_usual: false,
                is_wanted: true,
            };
        }
        let least = if was_usual { USUAL_UNTIL } else { USUAL_FROM };
        self.is_usual = self.lead >= least && !self.mounts.is_empty();
        self.is_usual != was_usual
    }

    /// The number of the children that have these mounts; 0: of those that have none.
    pub(super) fn number_of(&self, mounts: &[MountSpec]) -> u64 {
        if self.is_usual && mounts == self.mounts {
            self.number
        } else {
            0
        }
    }

    /// What is to be made of `ahead` children that wait: three of four are for the usual run, and the others for any. Of fewer
    /// than four all: the pool grows with the first run that finds none.
    pub(super) fn furnishing(&self, ahead: u32) -> Furnishing {
        if !self.is_usual {
            return Furnishing::default();
        }
        Furnishing {
            number: self.number,
            mounts: self.mounts.clone(),
            children: ahead - ahead / 4,
        }
    }

    /// Whether children with this number are for no run any more.
    pub(super) fn is_over(&self, number: u64) -> bool {
        number != 0 && !(self.is_usual && number == self.number)
    }

    /// What nobody has wanted in a whole window is not the usual until somebody does, so that what waits holds no file of the
    /// host for long. Gives whether the launcher is to hear of it: what is the usual still, too, since it may have given it up.
    pub(super) fn end_window(&mut self) -> bool {
        let was_usual = self.is_usual;
        if !std::mem::take(&mut self.is_wanted) {
            self.is_usual = false;
            self.lead = self.lead.min(USUAL_FROM - 1);
        }
        was_usual
    }
}

/// Blobs are another run's each time.
fn can_wait(mounts: &[MountSpec]) -> bool {
    let skill = |m: &MountSpec| m.target.starts_with("/skills/");
    mounts.len() <= WAITING_MOUNTS_MAX && mounts.iter().all(skill)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mounts(of: &str) -> Vec<MountSpec> {
        let mount = |name| MountSpec {
            target: format!("/{name}"),
            path: String::new(),
            dev: 0,
            ino: 0,
        };
        of.split_whitespace().map(mount).collect()
    }

    /// How many of sixteen are made for the usual run, after each of these.
    fn made(runs: &[&str]) -> Vec<u32> {
        let (mut usual, mut numbers) = (Usual::default(), 0);
        let mut made = 0;
        let mut count = |of: &&str| {
            let changes = usual.count(&mounts(of), || {
                numbers += 1;
                numbers
            });
            let now = usual.furnishing(16).children;
            assert_eq!(changes, now != made);
            made = now;
            made
        };
        runs.iter().map(&mut count).collect()
    }

    #[test]
    fn what_most_runs_want_is_made_ahead_until_most_want_something_else() {
        let (a, b) = ("skills/a", "skills/b");
        let mut runs = [[a; 9], [b; 9]].concat();
        let (wait, no) = (12, 0);
        let expected = [
            &[no; 5][..],   // b
            &[wait; 4][..], // a leads by six, by eight in the end
            &[wait; 6][..], // of which b takes six
            &[no; 3][..],
        ];
        assert_eq!(made(&runs), expected.concat());
        runs.extend([b; 5]);
        assert_eq!(made(&runs)[18..], [no, no, no, no, wait]);
        // Nobody leads.
        assert_eq!(made(&[a, b].repeat(20)), [no; 40]);
        assert_eq!(made(&[a, a, b].repeat(9))[18..], [wait; 9]);
    }

    #[test]
    fn blobs_nothing_and_very_many_mounts_are_never_the_usual() {
        let many = |n: usize| (0..n).map(|i| format!("skills/{i} ")).collect::<String>();
        for (of, expected) in [
            ("skills/a skills/b", 12),
            ("", 0),
            ("skills/a blobs/b", 0),
            (&many(WAITING_MOUNTS_MAX), 12),
            (&many(WAITING_MOUNTS_MAX + 1), 0),
        ] {
            assert_eq!(made(&[of; 20])[19], expected, "{of}");
        }
    }

    #[test]
    fn a_number_is_of_the_same_mounts_for_ever_and_of_the_usual_alone() {
        let (mut usual, mut numbers) = (Usual::default(), 0);
        let mut next = || {
            numbers += 1;
            numbers
        };
        let (a, b) = (mounts("skills/a"), mounts("skills/b"));
        let mut other_inode = a.clone();
        other_inode[0].ino = 1;
        for _ in 0..USUAL_FROM {
            assert_eq!(usual.number_of(&a), 0);
            usual.count(&a, &mut next);
        }
        let of_a = usual.number_of(&a);
        assert_ne!(of_a, 0);
        assert_eq!(usual.furnishing(4).number, of_a);
        let made = [0, 1, 2, 3, 4, 7, 8].map(|ahead| usual.furnishing(ahead).children);
        assert_eq!(made, [0, 1, 2, 3, 3, 6, 6]);
        let others = [&b, &other_inode, &Vec::new()];
        assert_eq!(others.map(|m| usual.number_of(m)), [0; 3]);
        assert_eq!(
            [0, of_a, of_a + 1].map(|n| usual.is_over(n)),
            [false, false, true]
        );
        while usual.number_of(&b) == 0 {
            usual.count(&b, &mut next);
        }
        assert!(usual.number_of(&b) > of_a && usual.is_over(of_a));
        assert_eq!(usual.number_of(&a), 0);
        // Wanted in the window that ends first, and not in the next.
        let of_b = usual.number_of(&b);
        for expected in [of_b, 0] {
            assert!(usual.end_window());
            assert_eq!(usual.number_of(&b), expected);
        }
        assert!(usual.is_over(of_b) && !usual.end_window());
        // The first that wants them again is enough.
        assert!(usual.count(&b, &mut next));
        assert_eq!(usual.number_of(&b), of_b);
    }
}

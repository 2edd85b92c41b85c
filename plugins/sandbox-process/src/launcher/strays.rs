//! Children of the launcher that it has not been told of.
//!
//! A zygote's children are the launcher's own, so that it sees them end, and their maker tells of each. One that dies in between
//! leaves a child that nobody knows, with the namespaces and the group that it was to have: those are nobody else's while it
//! lives. But a child of the launcher's that nobody has told of may be one, too, that a living zygote is about to tell of.

use std::collections::BTreeSet;
use std::os::fd::AsFd as _;

use super::run::Process;
use super::zygotes::{Birth, Ordered};
use crate::sys;

/// What was found when zygotes had died.
#[derive(Debug)]
pub(super) struct Strays {
    processes: Vec<Process>,
    /// What living zygotes were at then, and have not told of since.
    births: BTreeSet<Birth>,
    /// What the dead ones had been ordered.
    lost: Vec<Ordered>,
}

impl Strays {
    /// Of the launcher's children those that are not `known`, at a time when living zygotes are at these `births`.
    pub(super) fn find(
        known: &BTreeSet<libc::pid_t>,
        births: BTreeSet<Birth>,
        lost: Vec<Ordered>,
    ) -> Self {
        let own = std::process::id();
        let list = std::fs::read_to_string(format!("/proc/{own}/task/{own}/children"));
        // They are this process's own children and not reaped: the numbers are nobody else's.
        let processes = list
            .unwrap_or_default()
            .split_whitespace()
            .filter_map(|p| p.parse().ok())
            .filter(|p| !known.contains(p))
            .filter_map(|pid| {
                let pidfd = sys::pidfd_open(pid).ok()?;
                Some(Process { pid, pidfd })
            })
            .collect();
        Strays {
            processes,
            births,
            lost,
        }
    }

    /// Whether whoever can still tell of one of them has done so or has ended. That is soon: there is a longest time for each.
    pub(super) fn are_certain(&mut self, births: &BTreeSet<Birth>) -> bool {
        self.births.retain(|birth| births.contains(birth));
        self.births.is_empty()
    }

    /// Kills and reaps those that are not `known` by now. Gives what had been lost with them, which is free then.
    pub(super) fn end(self, known: &BTreeSet<libc::pid_t>) -> Vec<Ordered> {
        let strays = || self.processes.iter().filter(|p| !known.contains(&p.pid));
        for stray in strays() {
            let _ = sys::kill_by_pidfd(stray.pidfd.as_fd());
        }
        for stray in strays() {
            // Not by its number: one that was told of may have been reaped since, and that is another's.
            let _ = sys::reap(stray.pidfd.as_fd());
        }
        self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that nobody has reaped.
    fn process() -> (std::process::Child, Process) {
        let child = std::process::Command::new("sleep").arg("100").spawn();
        let child = child.unwrap();
        let pid = child.id() as libc::pid_t;
        let pidfd = sys::pidfd_open(pid).unwrap();
        (child, Process { pid, pidfd })
    }

    fn found<const N: usize>(processes: [Process; N], births: &[Birth]) -> Strays {
        Strays {
            processes: processes.into(),
            births: births.iter().copied().collect(),
            lost: Vec::new(),
        }
    }

    #[test]
    fn what_a_living_zygote_tells_of_is_none_and_all_others_are_ended() {
        let ((mut told, known), (mut untold, unknown)) = (process(), process());
        let known_pids = BTreeSet::from([known.pid]);
        let mut strays = found([known, unknown], &[Birth::Child(1), Birth::Spare(1)]);
        for (births, certain) in [
            (vec![Birth::Child(1), Birth::Spare(1)], false),
            (vec![Birth::Child(1), Birth::Child(2)], false),
            // The next order's child was not there then.
            (vec![Birth::Child(2), Birth::Spare(2)], true),
        ] {
            let births = births.into_iter().collect();
            assert_eq!(strays.are_certain(&births), certain, "{births:?}");
        }
        strays.end(&known_pids);
        assert!(untold.try_wait().is_err(), "it has been reaped");
        assert!(told.try_wait().unwrap().is_none(), "it lives");
        told.kill().unwrap();
        told.wait().unwrap();
    }

    /// It was told of and is not known any more, since its run is over.
    #[test]
    fn what_has_been_reaped_meanwhile_is_not_waited_for() {
        let (mut child, told) = process();
        let (mut other, _) = process();
        child.kill().unwrap();
        child.wait().unwrap();
        // Its number is another's by now.
        let reused = Process {
            pid: other.id() as libc::pid_t,
            pidfd: told.pidfd,
        };
        found([reused], &[]).end(&BTreeSet::new());
        assert!(other.try_wait().unwrap().is_none(), "it lives");
        other.kill().unwrap();
        other.wait().unwrap();
    }
}

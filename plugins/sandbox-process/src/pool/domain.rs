//! What is known of one trust domain's pool: the children that wait there, the runs that wait, and how many are wanted.

use std::collections::{BTreeSet, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::thread::Thread;
use std::time::{Duration, Instant};

use super::PoolRules;
use super::usual::Usual;
use crate::cgroup::{GroupLimits, Held};
use crate::sys;
use crate::wire::{LIVES_NS, Memory, PoolNeeds, RunSpec, Taken};

/// The pool shrinks by what nobody has needed for so long.
pub(super) const WINDOW: Duration = Duration::from_secs(10);
/// What is more than is wanted stays so long after the last child came: one may be the proof that children live.
pub(super) const SETTLED: Duration = Duration::from_nanos(2 * LIVES_NS);
/// So many at most are made ahead for runs that come one after the other, faster than children can be made.
const IN_TURN_MAX: u32 = 16;
/// Two runs that have begun within so long are load.
const BUSY: Duration = Duration::from_millis(20);

/// A child that has no run yet.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) number: u64,
    pub(crate) zygote: u64,
    /// Its process 1's id, which is nobody else's while it waits.
    pub(crate) process_1: u32,
    /// The size that its disk has: bytes and files.
    pub(crate) disk: [u64; 2],
    /// What it has mounted: the number of a [`crate::wire::Furnishing`], and 0 for nothing.
    pub(crate) furnishing: u64,
    /// When it has rehearsed, as far as can be known.
    pub(super) ready: Instant,
    /// When it is built, as far as can be known.
    pub(super) built: Instant,
    pub(crate) orders: OwnedFd,
    pub(crate) channel: OwnedFd,
    pub(crate) output: OwnedFd,
    /// Goes before the notice socket, for whose end the launcher waits.
    pub(crate) group: Held,
    pub(crate) notice: OwnedFd,
    pub(crate) pidfd: OwnedFd,
}

/// A run that waits for a child: in the order in which they have come, whatever the scheduler does.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) ticket: u64,
    pub(super) thread: Thread,
}

#[derive(Debug)]
pub(super) struct Domain {
    pub(super) idle: VecDeque<Waiting>,
    /// Made for a run with network: those whose run did not wait for them.
    pub(super) connected: VecDeque<Waiting>,
    /// The number of the zygote that children come from.
    pub(super) zygote: u64,
    pub(super) warm: bool,
    /// It has made room for another, and runs wait here that have not seen it yet.
    pub(super) gone: bool,
    pub(super) memory: Memory,
    pub(super) ahead: u32,
    /// Runs without and with network.
    pub(super) waiting: [VecDeque<Seat>; 2],
    /// Runs that have a child: its number, since one may end that has begun in this domain's last life.
    pub(super) in_hand: BTreeSet<u64>,
    /// Have a run, which the launcher does not know yet.
    pub(super) untold: Vec<Taken>,
    pub(super) unsent: bool,
    pub(super) limits: GroupLimits,
    pub(super) disk_bytes: u64,
    pub(super) disk_inodes: u64,
    /// What its runs want mounted.
    pub(super) usual: Usual,
    /// The fewest that were idle in this window, and when it ends.
    pub(super) least_idle: u32,
    pub(super) window_ends: Instant,
    /// When the last two runs began.
    taken: [Option<Instant>; 2],
}

impl Domain {
    pub(super) fn new(rules: PoolRules) -> Self {
        Domain {
            idle: VecDeque::new(),
            connected: VecDeque::new(),
            zygote: 0,
            warm: false,
            gone: false,
            memory: Memory::default(),
            ahead: rules.min.min(rules.max),
            waiting: Default::default(),
            in_hand: BTreeSet::new(),
            untold: Vec::new(),
            unsent: false,
            limits: GroupLimits::default(),
            disk_bytes: 0,
            disk_inodes: 0,
            usual: Usual::default(),
            least_idle: 0,
            taken: [None; 2],
            window_ends: Instant::now() + WINDOW,
        }
    }

    /// What the launcher is to make for it.
    pub(super) fn needs(&self, name: &str) -> PoolNeeds {
        let stale = self.idle.iter().filter(|c| self.is_stale(c));
        PoolNeeds {
            domain: name.to_owned(),
            ahead: self.ahead + stale.count() as u32,
            waiting: self.waiting.each_ref().map(|seats| seats.len() as u32),
            taken: self.untold.clone(),
            limits: self.limits,
            disk_bytes: self.disk_bytes,
            disk_inodes: self.disk_inodes,
            furnishing: self.usual.furnishing(self.ahead),
        }
    }

    /// Of a zygote that has been replaced, or made for runs that are not the usual ones any more.
    fn is_stale(&self, child: &Waiting) -> bool {
        child.zygote != self.zygote || self.usual.is_over(child.furnishing)
    }

    /// Lets go of one that a new one has come for. Gives whether there was any to let go of.
    pub(super) fn drop_replaced(&mut self) -> bool {
        let stale = self.idle.iter().position(|c| self.is_stale(c));
        let replaced = stale.and_then(|at| self.idle.remove(at));
        self.drop_surplus() || replaced.is_some()
    }

    /// Lets go of what is old or dead where there is more than is wanted and no run waits for it. Gives whether there was any. A new
    /// one stays, until [`Domain::settle`].
    pub(super) fn drop_surplus(&mut self) -> bool {
        let (before, ahead) = (self.idle.len(), self.ahead as usize);
        // What came in their place came while runs waited, and nothing more comes.
        while self.idle.len() > ahead
            && let Some(at) = self.idle.iter().position(|c| self.is_stale(c))
        {
            self.idle.remove(at);
        }
        // For those that die while they wait the launcher makes others, and says nothing.
        if self.idle.len() > ahead {
            let is_alive = |c: &Waiting| sys::is_alive(c.pidfd.as_fd()).unwrap_or(true);
            self.idle.retain(is_alive);
        }
        self.idle.len() < before
    }

    /// More are needed than there are: twice as many as are wanted at once, since behind those whom the host lets in others may
    /// wait, or a few more each time for those that come one upon the other.
    pub(super) fn grow(&mut self, max: u32) {
        let wanted = (self.in_hand.len() + self.waiting[0].len()) as u32 + 1;
        let in_turn = self.ahead + self.ahead / 2 + 1;
        let ahead = (wanted * 2).max(in_turn.min(IN_TURN_MAX));
        self.ahead = self.ahead.max(ahead).min(max);
    }

    /// Whether runs wait here.
    pub(super) fn is_awaited(&self) -> bool {
        self.waiting.iter().any(|seats| !seats.is_empty())
    }

    /// Children that wait with what the usual run wants mounted.
    pub(super) fn furnished(&self) -> usize {
        let is_one = |c: &&Waiting| c.furnishing != 0 && !self.is_stale(c);
        self.idle.iter().filter(is_one).count()
    }

    /// Wakes the one who has waited longest, if there is a child.
    pub(super) fn call_first(&self, kind: usize) {
        let there = [&self.idle, &self.connected][kind];
        if let (Some(first), false) = (self.waiting[kind].front(), there.is_empty()) {
            first.thread.unpark();
        }
    }

    /// Wakes all who wait.
    pub(super) fn call_all(&self) {
        self.waiting
            .iter()
            .flatten()
            .for_each(|s| s.thread.unpark());
    }

    /// The one that has rehearsed last: what it will touch is in the processors' caches still, which makes a run take half
    /// as long. If none has, the one that was built last under load, where none has the time to, for the same reason, and
    /// else the oldest, which is the nearest to it. One that has the run's mounts comes before one that has none, and one
    /// that has others is not for it.
    pub(super) fn take(&mut self, spec: &RunSpec, now: Instant) -> Option<Waiting> {
        if spec.network {
            return self.connected.pop_front();
        }
        let busy = self.taken[0].is_some_and(|before| now < before + BUSY);
        let furnishing = self.usual.number_of(&spec.mounts);
        let disk = [spec.disk_bytes, spec.disk_inodes];
        let serves = |c: &Waiting| match c.furnishing {
            0 => true,
            // The launcher would have to change its disk, and has no way into it any more.
            number => number == furnishing && c.disk == disk,
        };
        let last = |of: fn(&Waiting) -> Instant| {
            let there = |c: &Waiting| serves(c) && of(c) <= now;
            let has_all = |c: &Waiting| c.furnishing == furnishing && there(c);
            let idle = || self.idle.iter();
            idle()
                .rposition(has_all)
                .or_else(|| idle().rposition(there))
        };
        let built = || if busy { last(|c| c.built) } else { None };
        let oldest = || self.idle.iter().position(serves);
        let at = last(|c| c.ready).or_else(built).or_else(oldest);
        let child = at.and_then(|at| self.idle.remove(at));
        if child.is_some() {
            self.taken = [self.taken[1], Some(now)];
        }
        self.least_idle = self.least_idle.min(self.idle.len() as u32);
        child
    }

    /// When what is more than is wanted goes, if there is any.
    pub(super) fn settles(&self) -> Option<Instant> {
        let is_surplus = self.idle.len() > self.ahead as usize && !self.is_awaited();
        let last = self.idle.iter().map(|c| c.built).max();
        last.filter(|_| is_surplus).map(|built| built + SETTLED)
    }

    /// Lets go of it: of what was made for runs that were given up, or was under way when an old one went.
    pub(super) fn settle(&mut self, now: Instant) {
        if self.settles().is_some_and(|at| at <= now) {
            self.drop_surplus();
            let surplus = self.idle.len().saturating_sub(self.ahead as usize);
            self.idle.drain(..surplus);
            self.unsent = true;
        }
    }

    /// Lets go of children that nobody has needed for a while.
    pub(super) fn shrink(&mut self, min: u32, now: Instant) {
        if now < self.window_ends {
            return;
        }
        let spare = self
            .least_idle
            .div_ceil(2)
            .min(self.ahead.saturating_sub(min));
        if spare > 0 {
            self.ahead -= spare;
            for _ in 0..spare {
                self.idle.pop_front();
            }
            self.unsent = true;
        }
        self.least_idle = self.idle.len() as u32;
        self.connected.clear();
        self.unsent |= self.usual.end_window();
        self.window_ends = now + WINDOW;
    }
}

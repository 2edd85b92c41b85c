//! Which zygotes there are, and which children they are to make.
//!
//! One per trust domain. The plugin says how many children of a domain should wait (`ahead`) and how many runs wait for
//! one; the launcher compares that with the children that have no run yet and orders the difference, one after the
//! other. So a lost or failed child needs no bookkeeping: the next comparison sees that it is not there.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::birth::{Sockets, Theirs};
use super::lacking::{Kind, There, lacks};
use super::leases::Lease;
use super::nursery::{self, Zygote};
use super::run::Process;
use crate::cgroup::{GroupLimits, RunGroup};
use crate::isolate::Ground;
use crate::sys;
use crate::wire::{Furnishing, Memory, PoolNeeds, RunSpec, Word, ZygoteRules};

/// How long a zygote may take to become warm, from a cold disk.
const WARM_WAIT_NS: u64 = 30_000_000_000;
/// A zygote that has not answered for so long is looked at.
const ORDER_LOOK_NS: u64 = 60_000_000;
/// One that answers nothing for so long is given up, whatever it seems to be doing.
const ORDER_WAIT_NS: u64 = 2_000_000_000;
/// The wait after a second zygote that could not be started or made no child, doubled each time.
const BACK_OFF_FIRST_NS: u64 = 100_000_000;
const BACK_OFF_MAX_NS: u64 = 10_000_000_000;
/// What a zygote says at once: a [`Memory`] with its reasons is the longest.
const WORD_BYTES_MAX: usize = 4096;

/// A trust domain.
#[derive(Debug, Default)]
pub(super) struct Domain {
    needs: PoolNeeds,
    current: Option<Zygote>,
    /// Warming, to take the other's place.
    next: Option<Zygote>,
    pending: Option<Pending>,
    failures: u32,
    not_before_ns: u64,
    used_ns: u64,
    told_cold: bool,
}

/// A child that has been ordered.
#[derive(Debug)]
struct Pending {
    child: Ordered,
    since_ns: u64,
    /// The zygote's processor time when it was looked at first.
    ticks_seen: Option<u64>,
}

/// The launcher's side of a child, and what the plugin gets.
#[derive(Debug)]
pub(super) struct Ordered {
    pub(super) lease: Lease,
    pub(super) group: Option<RunGroup>,
    /// What it is made for: limits, the size of its disk, whether it has a network.
    pub(super) spec: RunSpec,
    pub(super) limits: GroupLimits,
    /// What it has mounted before the plugin hears of it.
    pub(super) furnishing: Option<Furnishing>,
    /// How long it waits for a run before it rehearses.
    pub(super) idle_ns: u64,
    pub(super) sockets: Sockets,
}

/// What has come of looking at the zygotes.
pub(super) enum Event {
    Born {
        domain: String,
        zygote: u64,
        child: Box<Ordered>,
        init: Process,
    },
    /// It was ordered and has not come.
    Lost(Box<Ordered>),
    Tell(Word),
    /// Zygotes are dead: one may have made a child that it could not tell of any more. `all`: every one that was to end, so
    /// that nothing more comes of what was lost before.
    Sweep {
        all: bool,
    },
}

/// All of them.
#[derive(Debug)]
pub(super) struct Zygotes {
    pub(super) rules: ZygoteRules,
    domains: BTreeMap<String, Domain>,
    number: u64,
    /// Have been told to go, or killed.
    leaving: Vec<Zygote>,
}

impl Zygotes {
    pub(super) fn new(rules: ZygoteRules) -> Self {
        Zygotes {
            rules,
            domains: BTreeMap::new(),
            number: 0,
            leaving: Vec::new(),
        }
    }

    /// What a domain's pool needs from now on.
    pub(super) fn need(&mut self, needs: PoolNeeds) -> Vec<Event> {
        let mut events = Vec::new();
        if !self.domains.contains_key(&needs.domain) && self.domains.len() >= self.rules.domains_max
        {
            // The one that has not been asked for anything for longest makes room.
            let oldest = self.domains.iter().min_by_key(|(_, d)| d.used_ns);
            if let Some(name) = oldest.map(|(name, _)| name.clone()) {
                events.extend(self.end_domain(&name));
            }
        }
        let domain = self.domains.entry(needs.domain.clone()).or_default();
        domain.used_ns = sys::now_ns();
        domain.needs = needs;
        events
    }

    fn end_domain(&mut self, name: &str) -> Vec<Event> {
        let Some(mut domain) = self.domains.remove(name) else {
            return Vec::new();
        };
        self.leaving.extend(
            [domain.current.take(), domain.next.take()]
                .into_iter()
                .flatten()
                .map(ended),
        );
        let lost = domain
            .pending
            .take()
            .map(|p| Event::Lost(Box::new(p.child)));
        let word = Word::Gone {
            domain: name.to_owned(),
        };
        lost.into_iter().chain([Event::Tell(word)]).collect()
    }

    /// What to wait for: each zygote's socket, which ends with it.
    pub(super) fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.domains
            .values()
            .flat_map(|d| [&d.current, &d.next])
            .flatten()
            .map(|z| z.control.as_fd())
            .chain(self.leaving.iter().map(|z| z.pidfd.as_fd()))
    }

    /// How long the launcher may sleep.
    pub(super) fn patience(&self, now: u64) -> Option<u64> {
        let wait = |d: &Domain| {
            let pending = d.pending.as_ref().map(|p| {
                let looked = p.since_ns + ORDER_LOOK_NS;
                if now < looked {
                    looked - now
                } else {
                    ORDER_LOOK_NS
                }
            });
            let age = d
                .current
                .as_ref()
                .filter(|_| d.next.is_none())
                .map(|z| (z.born_ns + self.rules.age_max_ns).saturating_sub(now));
            let start = d.current.is_none().then(|| {
                if d.next.is_some() {
                    WARM_WAIT_NS
                } else {
                    d.not_before_ns.saturating_sub(now)
                }
            });
            [pending, age, start].into_iter().flatten().min()
        };
        self.domains.values().filter_map(wait).min()
    }

    /// Looks at every zygote: what it has said, whether it is there, whether it is time for another.
    pub(super) fn attend(&mut self, ground: &Ground) -> Vec<Event> {
        let now = sys::now_ns();
        let mut events = Vec::new();
        let before = self.leaving.len();
        self.leaving.retain(|zygote| !reaped(zygote));
        let swept = self.leaving.len() < before;
        let names: Vec<String> = self.domains.keys().cloned().collect();
        for name in names {
            let Some(domain) = self.domains.get_mut(&name) else {
                continue;
            };
            domain.hear(&name, &mut self.leaving, &mut events);
            domain.look_after(&name, now, &mut self.leaving, &mut events);
            let old = domain.current.as_ref().is_some_and(|z| {
                z.children >= self.rules.children_max
                    || now >= z.born_ns.saturating_add(self.rules.age_max_ns)
            });
            let wanted = domain.next.is_none() && (domain.current.is_none() || old);
            if wanted && now >= domain.not_before_ns {
                self.number += 1;
                match nursery::start(ground, &self.rules.preload, self.number) {
                    Ok(zygote) => domain.next = Some(zygote),
                    Err(e) => domain.failed(&name, &format!("cannot start: {e}"), &mut events),
                }
            }
        }
        if swept {
            // Last: a child that has been heard of just now is no stray.
            events.push(Event::Sweep {
                all: self.leaving.is_empty(),
            });
        }
        events
    }

    /// A domain whose zygote is free and that lacks a child, of which kind, and what is `there`. So many at most are for
    /// runs that are still to come. In turns: a domain that lacks very many leaves the others theirs.
    pub(super) fn lacking(
        &self,
        ahead_max: u32,
        there: impl Fn(&PoolNeeds) -> There,
    ) -> Option<(String, Kind, There)> {
        self.domains
            .iter()
            .filter(|(_, d)| d.pending.is_none() && d.current.is_some())
            .filter_map(|(name, d)| {
                let there = there(&d.needs);
                Some((name, d.used_ns, lacks(&d.needs, there, ahead_max)?, there))
            })
            .min_by_key(|(_, used_ns, ..)| *used_ns)
            .map(|(name, _, kind, there)| (name.clone(), kind, there))
    }

    /// What a domain's next child needs, and how many bytes are copied for it ahead; `None`: there is nobody to make it.
    pub(super) fn needs(&mut self, name: &str) -> Option<(&PoolNeeds, u64)> {
        let domain = self.domains.get_mut(name)?;
        // What is ordered takes the place of what was used.
        domain.used_ns = sys::now_ns();
        let memory = domain.current.as_ref()?.warm.as_ref();
        Some((&domain.needs, memory.map_or(0, |m| m.copied_bytes)))
    }

    /// A domain's children cannot be given what the usual run wants mounted. It will hear why itself, and none is made for it
    /// until the plugin has something new to say.
    pub(super) fn cannot_furnish(&mut self, name: &str) {
        if let Some(domain) = self.domains.get_mut(name) {
            domain.needs.furnishing.children = 0;
        }
    }

    /// Orders a child of a domain. When that does not work, nothing of it lives.
    pub(super) fn order(
        &mut self,
        name: &str,
        child: Ordered,
        theirs: &Theirs,
    ) -> Result<(), (Box<Ordered>, io::Error)> {
        let found = self.domains.get_mut(name);
        let Some((zygote, pending)) =
            found.and_then(|d| Some((d.current.as_ref()?, &mut d.pending)))
        else {
            return Err((Box::new(child), io::ErrorKind::NotFound.into()));
        };
        if let Err(e) = theirs.send(zygote, &child) {
            return Err((Box::new(child), e));
        }
        *pending = Some(Pending {
            child,
            since_ns: sys::now_ns(),
            ticks_seen: None,
        });
        Ok(())
    }

    /// The launcher cannot do its part: another try later, from the start.
    pub(super) fn give_up(&mut self, name: &str, why: &str) -> Vec<Event> {
        let mut events = Vec::new();
        if let Some(domain) = self.domains.get_mut(name) {
            domain.back_off();
            domain.lose(name, why, &mut self.leaving, &mut events);
        }
        events
    }

    /// The processes that are known here.
    pub(super) fn pids(&self) -> impl Iterator<Item = libc::pid_t> {
        let zygotes = self.domains.values().flat_map(|d| [&d.current, &d.next]);
        zygotes.flatten().chain(&self.leaving).map(|z| z.pid)
    }

    /// The launcher goes: every zygote is killed and reaped. Gives what they had been ordered.
    pub(super) fn finish(&mut self) -> Vec<Ordered> {
        let mut ordered = Vec::new();
        for domain in self.domains.values_mut() {
            let zygotes = [domain.current.take(), domain.next.take()];
            self.leaving.extend(zygotes.into_iter().flatten());
            ordered.extend(domain.pending.take().map(|p| p.child));
        }
        for zygote in self.leaving.drain(..) {
            // Ours to kill; its end is waited for next.
            let _ = sys::kill_by_pidfd(zygote.pidfd.as_fd());
            let _ = sys::wait(zygote.pid);
        }
        ordered
    }
}

impl Domain {
    /// What its zygotes have said.
    fn hear(&mut self, name: &str, leaving: &mut Vec<Zygote>, events: &mut Vec<Event>) {
        match self.next.as_ref().map(heard) {
            Some(Heard::Said(word, _)) if is_warm(&word).is_some() => {
                if let Some(next) = &mut self.next {
                    next.warm = is_warm(&word);
                }
                // Not in the middle of an order of the other's, which is short.
                if self.pending.is_none() {
                    self.succeed(name, leaving, events);
                }
            }
            Some(Heard::Nothing) | None => {
                if self.pending.is_none() && self.next.as_ref().is_some_and(|z| z.warm.is_some()) {
                    self.succeed(name, leaving, events);
                }
            }
            Some(_) => {
                leaving.extend(self.next.take().map(ended));
                self.failed(name, "it ended before it was warm", events);
            }
        }
        match self.current.as_ref().map(heard) {
            Some(Heard::Nothing) | None => {}
            Some(Heard::Said(word, mut fds)) => {
                let pid = std::str::from_utf8(&word).ok().and_then(|w| w.parse().ok());
                match (self.pending.take(), pid, fds.pop(), &mut self.current) {
                    (Some(pending), Some(pid), Some(pidfd), Some(zygote)) => {
                        zygote.children += 1;
                        self.failures = 0;
                        events.push(Event::Born {
                            domain: name.to_owned(),
                            zygote: zygote.number,
                            child: Box::new(pending.child),
                            init: Process { pid, pidfd },
                        });
                    }
                    (pending, ..) => {
                        events.extend(pending.map(|p| Event::Lost(Box::new(p.child))));
                        self.lose(name, "it cannot make children", leaving, events);
                    }
                }
            }
            Some(Heard::End) => self.lose(name, "it has died", leaving, events),
        }
    }

    /// The one that is warm takes the place of the one before.
    fn succeed(&mut self, name: &str, leaving: &mut Vec<Zygote>, events: &mut Vec<Event>) {
        let Some(next) = self.next.take() else {
            return;
        };
        events.push(Event::Tell(Word::Warm {
            domain: name.to_owned(),
            zygote: next.number,
            memory: next.warm.clone().unwrap_or_default(),
        }));
        self.told_cold = false;
        leaving.extend(self.current.replace(next).map(ended));
    }

    /// Gives the current one up.
    fn lose(&mut self, name: &str, why: &str, leaving: &mut Vec<Zygote>, events: &mut Vec<Event>) {
        if let Some(zygote) = self.current.take() {
            if zygote.children == 0 {
                self.back_off();
            }
            leaving.push(ended(zygote));
        }
        events.extend(self.pending.take().map(|p| Event::Lost(Box::new(p.child))));
        self.say_cold(name, why, events);
    }

    fn look_after(
        &mut self,
        name: &str,
        now: u64,
        leaving: &mut Vec<Zygote>,
        events: &mut Vec<Event>,
    ) {
        let late = |z: &Zygote| z.warm.is_none() && now >= z.born_ns + WARM_WAIT_NS;
        if self.next.as_ref().is_some_and(late) {
            leaving.extend(self.next.take().map(ended));
            self.failed(name, "it does not become warm", events);
        }
        if let (Some(pending), Some(zygote)) = (&mut self.pending, &self.current)
            && now >= pending.since_ns + ORDER_LOOK_NS
            && (now >= pending.since_ns + ORDER_WAIT_NS || pending.is_stuck(zygote.pid))
        {
            self.lose(name, "it does not answer", leaving, events);
        }
    }

    /// It could not be started.
    fn failed(&mut self, name: &str, why: &str, events: &mut Vec<Event>) {
        self.back_off();
        if self.current.is_none() {
            self.say_cold(name, why, events);
        }
    }

    fn back_off(&mut self) {
        // The first may have been an accident: another is begun at once.
        let wait = match self.failures {
            0 => 0,
            before => BACK_OFF_FIRST_NS << (before - 1).min(10),
        };
        self.failures = self.failures.saturating_add(1);
        self.not_before_ns = sys::now_ns() + wait.min(BACK_OFF_MAX_NS);
    }

    fn say_cold(&mut self, name: &str, why: &str, events: &mut Vec<Event>) {
        if !std::mem::replace(&mut self.told_cold, true) {
            events.push(Event::Tell(Word::Cold {
                domain: name.to_owned(),
                why: why.to_owned(),
            }));
        }
    }
}

enum Heard {
    Nothing,
    Said(Vec<u8>, Vec<OwnedFd>),
    End,
}

fn heard(zygote: &Zygote) -> Heard {
    let mut buf = [0; WORD_BYTES_MAX];
    match sys::receive_message(zygote.control.as_fd(), &mut buf) {
        Ok(Some((n, fds))) => Heard::Said(buf[..n].to_vec(), fds),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Heard::Nothing,
        Ok(None) | Err(_) => Heard::End,
    }
}

/// What a zygote's first word says.
fn is_warm(word: &[u8]) -> Option<Memory> {
    serde_json::from_slice(word).ok()
}

/// It is to go, however it is.
fn ended(zygote: Zygote) -> Zygote {
    // Both fail only for one that is gone already.
    let _ = sys::shut_down(zygote.control.as_fd());
    let _ = sys::kill_by_pidfd(zygote.pidfd.as_fd());
    zygote
}

fn reaped(zygote: &Zygote) -> bool {
    if sys::is_alive(zygote.pidfd.as_fd()).unwrap_or(true) {
        return false;
    }
    // Dead: this does not wait.
    let _ = sys::wait(zygote.pid);
    true
}

/// State and processor time, in ticks of 10 ms, of a process.
fn look(pid: libc::pid_t) -> Option<(char, u64)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    let mut times = fields.skip(10).map_while(|f| f.parse::<u64>().ok());
    Some((state, times.next()? + times.next()?))
}

impl Pending {
    /// Whether the zygote is stopped, or busy with something else than an order. One that only waits for a processor on a
    /// loaded host is not.
    fn is_stuck(&mut self, zygote: libc::pid_t) -> bool {
        const TICKS: u64 = 10;
        let Some((state, ticks)) = look(zygote) else {
            return true;
        };
        let before = *self.ticks_seen.get_or_insert(ticks);
        "TtZX".contains(state) || ticks >= before + TICKS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zygote() -> Zygote {
        let pid = std::process::id() as libc::pid_t;
        Zygote {
            pid,
            pidfd: sys::pidfd_open(pid).unwrap(),
            control: sys::socketpair(libc::SOCK_SEQPACKET).unwrap().0,
            number: 1,
            born_ns: 0,
            warm: Some(Memory::default()),
            children: 0,
        }
    }

    #[test]
    fn domains_that_lack_children_take_turns() {
        let mut zygotes = Zygotes::new(ZygoteRules {
            preload: Vec::new(),
            children_max: 1000,
            age_max_ns: u64::MAX,
            domains_max: 3,
            kept_max: 0,
        });
        for (name, waiting) in [("flood", 1000), ("idle", 0), ("other", 1)] {
            let needs = PoolNeeds {
                domain: name.to_owned(),
                waiting: [waiting, 0],
                ..PoolNeeds::default()
            };
            let domain = Domain {
                needs,
                current: Some(zygote()),
                ..Domain::default()
            };
            zygotes.domains.insert(name.to_owned(), domain);
        }
        let ordered = || {
            let (name, ..) = zygotes.lacking(u32::MAX, |_| There::default())?;
            zygotes.needs(&name).map(|_| name)
        };
        let turns: Vec<String> = std::iter::from_fn(ordered).take(4).collect();
        assert_eq!(turns, ["flood", "other", "flood", "other"]);
    }

    /// One that is killed is missed for as long as it takes to start another; those that fail in a row do not take the host.
    #[test]
    fn the_first_failure_costs_no_wait_and_the_next_ones_do() {
        let mut domain = Domain::default();
        let mut waits = (0..12).map(|_| {
            let before = sys::now_ns();
            domain.back_off();
            domain.not_before_ns.saturating_sub(before) / BACK_OFF_FIRST_NS
        });
        let begin: Vec<u64> = waits.by_ref().take(4).collect();
        assert_eq!(begin, [0, 1, 2, 4]);
        assert_eq!(waits.last(), Some(BACK_OFF_MAX_NS / BACK_OFF_FIRST_NS));
    }
}

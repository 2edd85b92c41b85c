//! Which zygotes there are, and which children they are to make.
//!
//! One per trust domain. The plugin says how many children of a domain should wait (`ahead`) and how many runs wait for
//! one; the launcher compares that with the children that have no run yet and orders the difference, one after the
//! other. So a lost or failed child needs no bookkeeping: the next comparison sees that it is not there. Where one after the
//! other fails at its birth, the next waits ([`births`]).

mod births;
mod places;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::back_off::BackOff;
use super::birth::{Sockets, Theirs};
use super::lacking::{Kind, There, lacks};
use super::leases::Lease;
use super::nursery::{self, Maker, Zygote};
use super::run::Process;
use crate::cgroup::{GroupLimits, RunGroup};
use crate::isolate::Ground;
use crate::sys;
use crate::wire::{Furnishing, PoolNeeds, RunSpec, Word, ZygoteRules};

/// How long a zygote may take to become warm, from a cold disk.
const WARM_WAIT_NS: u64 = 30_000_000_000;
/// A zygote that has not answered for so long is looked at.
const ORDER_LOOK_NS: u64 = 60_000_000;
/// One that answers nothing for so long is given up, whatever it seems to be doing.
const ORDER_WAIT_NS: u64 = 2_000_000_000;
/// What a zygote says at once: a [`Memory`](crate::wire::Memory) with its reasons is the longest.
const WORD_BYTES_MAX: usize = 4096;

/// A trust domain.
#[derive(Debug, Default)]
pub(super) struct Domain {
    needs: PoolNeeds,
    current: Option<Zygote>,
    /// Warming, to take the other's place.
    next: Option<Zygote>,
    pending: Option<Pending>,
    /// What was ordered last is for a run with network.
    connected_last: bool,
    /// Of zygotes that could not be started or made no child.
    starts: BackOff,
    /// Of children that died at their birth.
    births: BackOff,
    /// When a child of it was ordered last.
    ordered_ns: u64,
    /// When a run last wanted, had or gave back one.
    used_ns: u64,
    told_cold: bool,
}

/// What a zygote is at, until it tells of the process that it has made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Birth {
    /// The number of the order.
    Child(u64),
    /// The number of the zygote, which is not warm yet.
    Spare(u64),
}

/// A child that has been ordered.
#[derive(Debug)]
struct Pending {
    number: u64,
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
    /// It was ordered, and there is no process of it.
    Unborn(Box<Ordered>),
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
    /// How many children have been ordered.
    orders: u64,
    /// Have been told to go, or killed.
    leaving: Vec<Maker>,
}

impl Zygotes {
    pub(super) fn new(rules: ZygoteRules) -> Self {
        Zygotes {
            rules,
            domains: BTreeMap::new(),
            number: 0,
            orders: 0,
            leaving: Vec::new(),
        }
    }

    /// What to wait for: the socket of each maker, which ends with it.
    pub(super) fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.domains
            .values()
            .flat_map(|d| [&d.current, &d.next])
            .flatten()
            .flat_map(Zygote::makers)
            .map(|maker| maker.control.as_fd())
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
            let zygote = match (&d.current, &d.next) {
                (_, Some(next)) if next.memory.is_some() => None,
                (_, Some(next)) => Some(next.born_ns + WARM_WAIT_NS),
                (Some(z), None) if z.spare.is_some() => {
                    let old_ns = z.born_ns.saturating_add(self.rules.age_max_ns);
                    Some(old_ns.max(d.starts.not_before_ns))
                }
                _ => Some(d.starts.not_before_ns),
            };
            let zygote = zygote.map(|at| at.saturating_sub(now));
            let birth = d.births_patience(now);
            [pending, zygote, birth].into_iter().flatten().min()
        };
        self.domains.values().filter_map(wait).min()
    }

    /// Looks at every zygote: what it has said, whether it is there, whether it is time for another.
    pub(super) fn attend(&mut self, ground: &Ground) -> Vec<Event> {
        let now = sys::now_ns();
        let mut events = Vec::new();
        let before = self.leaving.len();
        self.leaving.retain(|maker| !reaped(maker));
        let swept = self.leaving.len() < before;
        let names: Vec<String> = self.domains.keys().cloned().collect();
        for name in names {
            let Some(domain) = self.domains.get_mut(&name) else {
                continue;
            };
            domain.hear(&name, &mut self.leaving, &mut events);
            domain.look_after(&name, now, &mut self.leaving, &mut events);
            // One without a spare has lost its own, or is it: whoever has made it be so may know its layout.
            let old = domain.current.as_ref().is_some_and(|z| {
                z.spare.is_none()
                    || z.children >= domain.children_max(&self.rules)
                    || now >= z.born_ns.saturating_add(self.rules.age_max_ns)
            });
            let wanted = domain.next.is_none() && (domain.current.is_none() || old);
            if wanted && now >= domain.starts.not_before_ns {
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
        now: u64,
        there: impl Fn(&PoolNeeds) -> There,
    ) -> Option<(String, Kind, There)> {
        self.domains
            .iter()
            .filter(|(_, d)| d.pending.is_none() && d.current.is_some())
            .filter(|(_, d)| now >= d.births.not_before_ns)
            .filter_map(|(name, d)| {
                let there = there(&d.needs);
                let kind = lacks(&d.needs, there, ahead_max, d.connected_last)
                    .or_else(|| d.lacks_proof(there))?;
                Some((name, d.ordered_ns, kind, there))
            })
            .min_by_key(|(_, ordered_ns, ..)| *ordered_ns)
            .map(|(name, _, kind, there)| (name.clone(), kind, there))
    }

    /// What a domain's next child needs, and how many bytes are copied for it ahead; `None`: there is nobody to make it.
    pub(super) fn needs(&mut self, name: &str) -> Option<(&PoolNeeds, u64)> {
        let domain = self.domains.get_mut(name)?;
        domain.ordered_ns = sys::now_ns();
        let memory = domain.current.as_ref()?.memory.as_ref();
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
        let Some((zygote, pending, connected_last)) =
            found.and_then(|d| Some((d.current.as_ref()?, &mut d.pending, &mut d.connected_last)))
        else {
            return Err((Box::new(child), io::ErrorKind::NotFound.into()));
        };
        if let Err(e) = theirs.send(&zygote.maker, &child) {
            return Err((Box::new(child), e));
        }
        self.orders += 1;
        *connected_last = child.spec.network;
        *pending = Some(Pending {
            number: self.orders,
            child,
            since_ns: sys::now_ns(),
            ticks_seen: None,
        });
        Ok(())
    }

    /// The processes that are known here.
    pub(super) fn pids(&self) -> impl Iterator<Item = libc::pid_t> {
        let zygotes = self.domains.values().flat_map(|d| [&d.current, &d.next]);
        let makers = zygotes.flatten().flat_map(Zygote::makers);
        makers.chain(&self.leaving).map(|maker| maker.pid)
    }

    /// What they are at.
    pub(super) fn births(&self) -> BTreeSet<Birth> {
        let of = |d: &Domain| {
            let child = d.pending.as_ref().map(|p| Birth::Child(p.number));
            let cold = d.next.as_ref().filter(|z| z.memory.is_none());
            [child, cold.map(|z| Birth::Spare(z.number))]
        };
        self.domains.values().flat_map(of).flatten().collect()
    }

    /// The launcher goes: every zygote is killed and reaped. Gives what they had been ordered.
    pub(super) fn finish(&mut self) -> Vec<Ordered> {
        let mut ordered = Vec::new();
        for domain in self.domains.values_mut() {
            let zygotes = [domain.current.take(), domain.next.take()];
            let makers = zygotes.into_iter().flatten().flat_map(Zygote::into_makers);
            self.leaving.extend(makers);
            ordered.extend(domain.pending.take().map(|p| p.child));
        }
        for maker in self.leaving.drain(..) {
            // Ours to kill; its end is waited for next.
            let _ = sys::kill_by_pidfd(maker.pidfd.as_fd());
            let _ = sys::wait(maker.pid);
        }
        ordered
    }
}

impl Domain {
    /// So many children at least as wait, which are made anew with each zygote: else it would be time for the next as soon as they
    /// are there, for ever and without a run.
    fn children_max(&self, rules: &ZygoteRules) -> u64 {
        rules.children_max.max(u64::from(self.needs.ahead) + 1)
    }

    /// What its zygotes have said.
    fn hear(&mut self, name: &str, leaving: &mut Vec<Maker>, events: &mut Vec<Event>) {
        self.hear_next(name, leaving, events);
        self.hear_spares(leaving);
        match self.current.as_ref().map(|z| heard(&z.maker)) {
            Some(Heard::Nothing) | None => {}
            Some(Heard::Said(word, mut fds)) => {
                let word = std::str::from_utf8(&word).unwrap_or_default();
                // 0 and less are many processes to kill(2) and wait4(2).
                let pid = word.parse().ok().filter(|pid| *pid > 0);
                let pidfd = fds.pop();
                let lack = match (&self.pending, pid, &pidfd) {
                    (Some(_), Some(pid), None) => births::end_unwatched(pid),
                    _ => births::shortage(word),
                };
                let told = pid.zip(pidfd);
                match (self.pending.take(), told, lack, &mut self.current) {
                    (Some(pending), Some((pid, pidfd)), _, Some(zygote)) => {
                        zygote.children += 1;
                        self.starts.succeeded();
                        events.push(Event::Born {
                            domain: name.to_owned(),
                            zygote: zygote.number,
                            child: Box::new(pending.child),
                            init: Process { pid, pidfd },
                        });
                    }
                    (Some(pending), None, Some(lack), Some(_)) => {
                        self.unborn(name, pending, &lack, events);
                    }
                    (pending, ..) => {
                        events.extend(pending.map(|p| Event::Lost(Box::new(p.child))));
                        self.lose(name, "it cannot make children", leaving, events);
                    }
                }
            }
            Some(Heard::End) => self.lose(name, "it has died", leaving, events),
        }
        // Not in the middle of an order of the other's, which is short. Between the one heard of just now and the next one,
        // which under load follows at once.
        if self.pending.is_none() && self.next.as_ref().is_some_and(|z| z.memory.is_some()) {
            self.succeed(name, leaving, events);
        }
    }

    /// Whether the next one is warm.
    fn hear_next(&mut self, name: &str, leaving: &mut Vec<Maker>, events: &mut Vec<Event>) {
        let Some(next) = &mut self.next else {
            return;
        };
        match heard(&next.maker) {
            Heard::Nothing => {}
            Heard::Said(word, mut fds) => match (serde_json::from_slice(&word), fds.pop()) {
                (Ok(warm), Some(spare)) if next.memory.is_none() => next.becomes_warm(warm, spare),
                _ => self.fail_next("it says what makes no sense", name, leaving, events),
            },
            Heard::End => self.fail_next("it ended before it was warm", name, leaving, events),
        }
    }

    fn fail_next(
        &mut self,
        why: &str,
        name: &str,
        leaving: &mut Vec<Maker>,
        events: &mut Vec<Event>,
    ) {
        if let Some(next) = self.next.take() {
            end(next, leaving);
        }
        self.failed(name, why, events);
    }

    /// A spare says nothing as long as it is one: it has died. Another comes with another zygote.
    fn hear_spares(&mut self, leaving: &mut Vec<Maker>) {
        for zygote in [&mut self.current, &mut self.next].into_iter().flatten() {
            let has_died = |spare: &mut Maker| !matches!(heard(spare), Heard::Nothing);
            leaving.extend(zygote.spare.take_if(has_died).map(ended));
        }
    }

    /// The one that is warm takes the place of the one before.
    fn succeed(&mut self, name: &str, leaving: &mut Vec<Maker>, events: &mut Vec<Event>) {
        let Some(next) = self.next.take() else {
            return;
        };
        self.say_warm(name, &next, events);
        // Runs wait for its children from now on: whether those live is to be found out at once.
        self.births = BackOff::default();
        if let Some(before) = self.current.replace(next) {
            end(before, leaving);
        }
    }

    /// Gives up the one that makes children at the moment.
    fn lose(&mut self, name: &str, why: &str, leaving: &mut Vec<Maker>, events: &mut Vec<Event>) {
        if let Some(zygote) = self.current.take() {
            if zygote.children == 0 {
                self.starts.failed(sys::now_ns());
            }
            let (gone, with_spare) = zygote.with_spare();
            leaving.push(ended(gone));
            self.current = with_spare;
        }
        events.extend(self.pending.take().map(|p| Event::Lost(Box::new(p.child))));
        if self.current.is_some() {
            events.push(Event::Tell(Word::Replaced {
                domain: name.to_owned(),
                why: why.to_owned(),
            }));
        } else {
            self.say_cold(name, why, false, events);
        }
    }

    fn look_after(
        &mut self,
        name: &str,
        now: u64,
        leaving: &mut Vec<Maker>,
        events: &mut Vec<Event>,
    ) {
        let late = |z: &Zygote| z.memory.is_none() && now >= z.born_ns + WARM_WAIT_NS;
        if self.next.as_ref().is_some_and(late) {
            self.fail_next("it does not become warm", name, leaving, events);
        }
        if let (Some(pending), Some(zygote)) = (&mut self.pending, &self.current)
            && now >= pending.since_ns + ORDER_LOOK_NS
            && (now >= pending.since_ns + ORDER_WAIT_NS || pending.is_stuck(zygote.maker.pid))
        {
            self.lose(name, "it does not answer", leaving, events);
        }
    }

    /// It could not be started.
    fn failed(&mut self, name: &str, why: &str, events: &mut Vec<Event>) {
        self.starts.failed(sys::now_ns());
        if self.current.is_none() {
            self.say_cold(name, why, false, events);
        }
    }

    fn say_warm(&mut self, name: &str, zygote: &Zygote, events: &mut Vec<Event>) {
        self.told_cold = false;
        events.push(Event::Tell(Word::Warm {
            domain: name.to_owned(),
            zygote: zygote.number,
            memory: zygote.memory.clone().unwrap_or_default(),
        }));
    }

    /// `lives`: there is a zygote.
    fn say_cold(&mut self, name: &str, why: &str, lives: bool, events: &mut Vec<Event>) {
        if !std::mem::replace(&mut self.told_cold, true) {
            events.push(Event::Tell(Word::Cold {
                domain: name.to_owned(),
                why: why.to_owned(),
                lives,
            }));
        }
    }
}

enum Heard {
    Nothing,
    Said(Vec<u8>, Vec<OwnedFd>),
    End,
}

fn heard(maker: &Maker) -> Heard {
    let mut buf = [0; WORD_BYTES_MAX];
    match sys::receive_what_fits(maker.control.as_fd(), &mut buf) {
        Ok(Some((n, fds))) => Heard::Said(buf[..n].to_vec(), fds),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Heard::Nothing,
        Ok(None) | Err(_) => Heard::End,
    }
}

/// It is to go, however it is, and its spare with it.
fn end(zygote: Zygote, leaving: &mut Vec<Maker>) {
    leaving.extend(zygote.into_makers().map(ended));
}

fn ended(maker: Maker) -> Maker {
    // Both fail only for one that is gone already.
    let _ = sys::shut_down(maker.control.as_fd());
    let _ = sys::kill_by_pidfd(maker.pidfd.as_fd());
    maker
}

fn reaped(maker: &Maker) -> bool {
    if sys::is_alive(maker.pidfd.as_fd()).unwrap_or(true) {
        return false;
    }
    // Dead: this does not wait.
    let _ = sys::wait(maker.pid);
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
        // Who is dead is heard of on its socket. It is this process that has no descriptor to look with.
        let Some((state, ticks)) = look(zygote) else {
            return false;
        };
        let before = *self.ticks_seen.get_or_insert(ticks);
        "TtZX".contains(state) || ticks >= before + TICKS
    }
}

#[cfg(test)]
mod tests;

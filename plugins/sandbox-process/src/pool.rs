//! The plugin's side of the zygotes: children that wait for a run, and runs that wait for a child.
//!
//! A waiting child is a handful of descriptors here, so a run takes one and speaks to it with no process in between. The
//! launcher is told afterwards, and only of runs that last: a short one it sees end.

mod domain;
mod usual;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use skillgate_plugin_sdk::{Host, Level};

use crate::cgroup::Held;
use crate::supervisor::Silence;
use crate::sys::{self, Poll};
use crate::wire::{MESSAGE_BYTES_MAX, Request, RunSpec, Taken, Word};
pub(crate) use domain::Waiting;
use domain::{Domain, Seat, WINDOW};

const TARGET: &str = "sandbox_process::pool";
/// A run waits for a child so long while there is a zygote to make it, then has an interpreter of its own started. A
/// zygote that makes none is noticed and said to be cold long before.
const CHILD_WAIT: Duration = Duration::from_secs(5);
/// Who asks how a pool is doing that was opened only now is answered when its first zygote is warm, or after so long.
pub(crate) const FIRST_ZYGOTE_WAIT: Duration = Duration::from_millis(500);
/// How often a run that waits looks whether it is still wanted.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// What a child takes to rehearse, on a machine that is not too busy.
const REHEARSAL: Duration = Duration::from_millis(5);
/// What a child takes to be built, on a machine that is not too busy.
const BUILDING: Duration = Duration::from_millis(1);
/// Between tries to tell a launcher whose socket is full, or to take a child for which descriptors lack.
const TRY_AGAIN: Duration = Duration::from_millis(20);
/// How often the operator hears that descriptors lack, at most.
const LACK_SAID_EVERY: Duration = Duration::from_secs(10);
/// Of the files that may be open, children that wait have one in so many at most: connections, runs and the store need theirs.
const SHARE_OF_FILES: u64 = 4;
/// Descriptors of a child that waits: five, and those of its control groups (six of version 1).
const FILES: u64 = 11;

/// How large a pool is, and whose pools there are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PoolRules {
    pub(crate) min: u32,
    pub(crate) max: u32,
    /// A zygote for each tenant, instead of one for all.
    pub(crate) per_tenant: bool,
}

impl PoolRules {
    /// The part of each of so many domains, of what a process can hold that may have so many files open.
    pub(crate) fn for_each(self, domains: usize, files: u64) -> Self {
        let domains = u32::try_from(domains).unwrap_or(u32::MAX).max(1);
        let held = u32::try_from(files / SHARE_OF_FILES / FILES).unwrap_or(u32::MAX);
        let most = self.max.div_ceil(domains).min(held / domains);
        PoolRules {
            min: self.min.min(most),
            max: most,
            ..self
        }
    }
}

/// The pools of one launcher.
#[derive(Debug)]
pub(crate) struct Pool {
    control: OwnedFd,
    /// Of the launcher.
    pub(crate) silence: Arc<Silence>,
    rules: PoolRules,
    opened: Instant,
    state: Mutex<State>,
    /// A zygote is warm, or it is known why runs get no children.
    heard: Condvar,
    tickets: AtomicU64,
    /// Of what children wait with. Here, and not in a domain, which may be forgotten while there is a child of it.
    furnishings: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    domains: HashMap<String, Domain>,
    homeless: Vec<Homeless>,
    /// Why no run gets a child of a domain, where that is not for the moment of its start.
    cold: HashMap<String, String>,
    /// Zygotes that have died or been given up while runs came from them.
    lost: u64,
    closed: bool,
}

/// A run whose domain has made room, and of which the launcher does not know yet.
#[derive(Debug)]
struct Homeless {
    taken: Taken,
    /// The launcher should know of it.
    lasts: bool,
}

/// What a pool looks like from outside.
#[derive(Debug, Clone, Default)]
pub(crate) struct PoolState {
    /// Runs are to come from zygotes.
    pub(crate) is_wanted: bool,
    pub(crate) zygotes: usize,
    pub(crate) zygotes_in_large_pages: usize,
    pub(crate) zygotes_copied_ahead: usize,
    pub(crate) zygotes_lost: u64,
    /// What one of them lacks of both, with the reasons.
    pub(crate) lacks: Vec<String>,
    pub(crate) idle: usize,
    /// Of these, with what the usual run wants mounted.
    pub(crate) furnished: usize,
    pub(crate) ahead: u32,
    /// Runs that wait for a child.
    pub(crate) waiting: usize,
    /// Why runs start their own interpreter at the moment.
    pub(crate) cold: Option<String>,
}

impl Homeless {
    fn new(taken: Taken) -> Self {
        Homeless {
            taken,
            lasts: false,
        }
    }
}

impl Pool {
    pub(crate) fn new(control: OwnedFd, rules: PoolRules) -> Self {
        Pool {
            control,
            silence: Arc::default(),
            rules,
            opened: Instant::now(),
            state: Mutex::default(),
            heard: Condvar::new(),
            tickets: AtomicU64::new(0),
            furnishings: AtomicU64::new(0),
        }
    }

    /// Which pool a tenant's runs come from.
    pub(crate) fn domain<'a>(&self, tenant: &'a str) -> &'a str {
        if self.rules.per_tenant { tenant } else { "" }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change below is whole before anything that could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the first zygote started before the first run.
    pub(crate) fn open(&self) {
        if !self.rules.per_tenant {
            let mut state = self.state();
            let domain = domain_of(&mut state, "", self.rules);
            self.tell(domain, "");
        }
    }

    /// Waits until it is known how the first zygote is doing, for so long after the pool was opened: a moment later it would be
    /// no question.
    pub(crate) fn settle(&self, wait: Duration) {
        if self.rules.per_tenant {
            return; // it has none before the first run
        }
        let left = wait.saturating_sub(self.opened.elapsed());
        let is_open = |state: &mut State| {
            let warm = state.domains.values().any(|d| d.warm);
            !warm && !state.closed && state.cold.is_empty()
        };
        // Poisoned or not, what is known then is what is known.
        drop(self.heard.wait_timeout_while(self.state(), left, is_open));
    }

    /// A child for a run, and whether it was waited for; `None`: there is no zygote that could give one in time.
    pub(crate) fn take(
        &self,
        name: &str,
        spec: &RunSpec,
        cancelled: impl Fn() -> bool,
    ) -> Option<(Waiting, bool)> {
        let left = Duration::from_nanos(spec.deadline_ns.saturating_sub(sys::now_ns()));
        // What is left is for an interpreter of its own, if there is no other.
        let until = Instant::now() + CHILD_WAIT.min(left / 2);
        let mut state = self.state();
        if state.closed {
            return None; // nobody would hear what the launcher is asked for
        }
        let rules = self.rules;
        let domain = domain_of(&mut state, name, rules);
        // It comes back for this run.
        domain.gone = false;
        let limits = spec.group_limits();
        let known = (domain.limits, domain.disk_bytes, domain.disk_inodes);
        if known != (limits, spec.disk_bytes, spec.disk_inodes) {
            // The next children have them from the start. Told when this run is under way.
            domain.limits = limits;
            (domain.disk_bytes, domain.disk_inodes) = (spec.disk_bytes, spec.disk_inodes);
            domain.unsent = true;
        }
        let kind = usize::from(spec.network);
        if !spec.network {
            let next = || self.furnishings.fetch_add(1, Ordering::Relaxed) + 1;
            domain.unsent |= domain.usual.count(&spec.mounts, next);
        }
        // Those who wait already come first.
        if domain.waiting[kind].is_empty()
            && let Some(child) = domain.take(spec, Instant::now())
        {
            return Some((child, false));
        }
        if !domain.warm {
            self.tell(domain, name);
            return None;
        }
        if !spec.network {
            domain.grow(rules.max);
        }
        let ticket = self.tickets.fetch_add(1, Ordering::Relaxed);
        domain.waiting[kind].push_back(Seat {
            ticket,
            thread: std::thread::current(),
        });
        self.tell(domain, name);
        loop {
            drop(state);
            let left = until.saturating_duration_since(Instant::now());
            std::thread::park_timeout(left.min(LOOK_EVERY));
            state = self.state();
            let over = state.closed || Instant::now() >= until || cancelled();
            let domain = domain_of(&mut state, name, rules);
            let first = domain.waiting[kind].front();
            let child = if first.is_some_and(|seat| seat.ticket == ticket) {
                domain.take(spec, Instant::now())
            } else {
                None
            };
            if child.is_some() || over || !domain.warm {
                domain.waiting[kind].retain(|seat| seat.ticket != ticket);
                domain.call_first(kind);
                if child.is_none() && domain.waiting[0].is_empty() {
                    domain.drop_surplus();
                }
                if child.is_some() {
                    // Said with the rest when it has its run.
                    domain.unsent = true;
                } else if !domain.gone {
                    self.tell(domain, name);
                } else if !domain.is_awaited() {
                    state.domains.remove(name);
                }
                return child.map(|child| (child, true));
            }
            if domain.unsent {
                // Who hears the launcher tries again too, but sleeps perhaps since before this could not be said.
                self.tell(domain, name);
            }
        }
    }

    /// A child has its run. If runs have waited, the launcher hears at once that one does no more.
    pub(crate) fn taken(&self, name: &str, taken: Taken) {
        let mut state = self.state();
        let Some(domain) = state.domains.get_mut(name).filter(|d| !d.gone) else {
            // It has made room since, and is not to come back by this.
            return state.homeless.push(Homeless::new(taken));
        };
        domain.in_hand.insert(taken.number);
        domain.untold.push(taken);
        if domain.waiting[0].is_empty() && domain.drop_surplus() {
            domain.unsent = true;
        }
        if domain.unsent {
            self.tell(domain, name);
        }
    }

    /// The run lasts: the launcher should know of it. Whether it does; it may not read at the moment.
    pub(crate) fn lasts(&self, name: &str, number: u64) -> bool {
        let mut state = self.state();
        if let Some(domain) = state.domains.get_mut(name)
            && domain.untold.iter().any(|t| t.number == number)
        {
            self.tell(domain, name);
            return !domain.unsent;
        }
        if let Some(run) = state.homeless.iter_mut().find(|h| h.taken.number == number) {
            run.lasts = true;
            self.tell_of_homeless(&mut state);
        }
        !state.homeless.iter().any(|h| h.taken.number == number)
    }

    /// The run is over.
    pub(crate) fn over(&self, name: &str, number: u64) {
        let mut state = self.state();
        // It may have begun with a domain that has made room since: for another tenant's, and not to come back by this. One
        // that is there again does not know of it.
        if let Some(domain) = state.domains.get_mut(name) {
            domain.in_hand.remove(&number);
            domain.untold.retain(|t| t.number != number);
        }
        state.homeless.retain(|h| h.taken.number != number);
    }

    /// What is there now.
    pub(crate) fn look(&self) -> PoolState {
        let state = self.state();
        let warm = || state.domains.values().filter(|d| d.warm);
        PoolState {
            is_wanted: true,
            zygotes: warm().count(),
            zygotes_in_large_pages: warm().filter(|d| d.memory.in_large_pages).count(),
            zygotes_copied_ahead: warm().filter(|d| d.memory.copied_bytes > 0).count(),
            zygotes_lost: state.lost,
            lacks: warm()
                .map(|d| d.memory.lacks.clone())
                .max_by_key(Vec::len)
                .unwrap_or_default(),
            idle: state.domains.values().map(|d| d.idle.len()).sum(),
            furnished: state.domains.values().map(Domain::furnished).sum(),
            ahead: state.domains.values().map(|d| d.ahead).sum(),
            waiting: state
                .domains
                .values()
                .flat_map(|d| d.waiting.each_ref().map(VecDeque::len))
                .sum(),
            cold: state.cold.values().next().cloned(),
        }
    }

    /// Sends what is needed. A launcher that does not read at the moment is told later: nobody waits here.
    fn tell(&self, domain: &mut Domain, name: &str) {
        let sent = self.try_send(&Request::Pool(domain.needs(name)));
        // A launcher that is gone is noticed where its words are read.
        domain.unsent = sent.is_err();
        if sent.is_ok() {
            domain.untold.clear();
        }
    }

    /// The same of runs that last and have no domain that could say so.
    fn tell_of_homeless(&self, state: &mut State) {
        let is_said = |h: &Homeless| self.try_send(&Request::Taken(h.taken)).is_ok();
        state.homeless.retain(|h| !h.lasts || !is_said(h));
    }

    fn try_send(&self, request: &Request) -> io::Result<()> {
        let text = serde_json::to_vec(request)?;
        sys::try_send_message(self.control.as_fd(), &text, &[])
    }

    /// Hears the launcher until it goes. For a thread of its own.
    pub(crate) fn hear(&self, host: &Host) {
        let _closes = Closes(self);
        let mut buf = vec![0; MESSAGE_BYTES_MAX];
        let mut lack_said: Option<Instant> = None;
        loop {
            let mut ready = [Poll::readable(self.control.as_fd())];
            let wait = self.wait();
            if sys::poll(&mut ready, Some(wait.as_nanos() as u64)).is_err() {
                break;
            }
            if ready[0].is_ready() {
                let (n, fds) = match sys::receive_message(self.control.as_fd(), &mut buf) {
                    Ok(Some(message)) => message,
                    Err(e) if sys::is_lack_of_files(&e) => {
                        // The launcher ends what nobody has, and makes another: not as fast as it can.
                        if lack_said.is_none_or(|said| said.elapsed() >= LACK_SAID_EVERY) {
                            lack_said = Some(Instant::now());
                            host.log(
                                Level::Warn,
                                TARGET,
                                "waiting interpreters cannot be taken over: raise the limit of open files (ulimit -n)",
                                &[("error", &e.to_string())],
                            );
                        }
                        std::thread::sleep(TRY_AGAIN);
                        continue;
                    }
                    Ok(None) | Err(_) => break,
                };
                self.silence.end();
                match serde_json::from_slice(&buf[..n]) {
                    Ok(word) => self.hear_word(word, fds, host),
                    Err(e) => host.log(
                        Level::Error,
                        TARGET,
                        "the launcher said something strange",
                        &[("error", &e.to_string())],
                    ),
                }
            }
            self.tidy();
        }
    }

    fn wait(&self) -> Duration {
        let state = self.state();
        let now = Instant::now();
        let next = |d: &Domain| {
            if d.unsent {
                TRY_AGAIN
            } else {
                let next = d
                    .settles()
                    .map_or(d.window_ends, |at| at.min(d.window_ends));
                next.saturating_duration_since(now)
            }
        };
        let homeless = state.homeless.iter().filter(|h| h.lasts);
        let waits = state.domains.values().map(next);
        waits
            .chain(homeless.map(|_| TRY_AGAIN))
            .min()
            .unwrap_or(WINDOW)
    }

    fn hear_word(&self, word: Word, fds: Vec<OwnedFd>, host: &Host) {
        match word {
            Word::Child {
                domain,
                number,
                zygote,
                process_1,
                network,
                idle_ns,
                parts,
                limits,
                disk_bytes,
                disk_inodes,
                furnishing,
            } => {
                let mut fds = fds.into_iter();
                let mut next = || fds.next();
                let (Some(orders), Some(channel), Some(output), Some(notice), Some(pidfd)) =
                    (next(), next(), next(), next(), next())
                else {
                    return;
                };
                let group = Held::new(parts.into_iter().zip(fds).collect(), limits);
                let child = Waiting {
                    number,
                    zygote,
                    process_1,
                    disk: [disk_bytes, disk_inodes],
                    furnishing,
                    ready: Instant::now() + Duration::from_nanos(idle_ns) + REHEARSAL,
                    built: Instant::now() + BUILDING,
                    orders,
                    channel,
                    output,
                    notice,
                    pidfd,
                    group,
                };
                let mut state = self.state();
                // Of one that has made room it comes too late, and is let go of: it must not bring the domain back.
                let Some(of) = state.domains.get_mut(&domain).filter(|d| !d.gone) else {
                    drop(state);
                    return drop(child);
                };
                let place = if network {
                    &mut of.connected
                } else {
                    &mut of.idle
                };
                place.push_back(child);
                // A new one for an old one.
                if of.waiting[0].is_empty() && of.drop_replaced() {
                    self.tell(of, &domain);
                }
                of.call_first(usize::from(network));
            }
            Word::Warm {
                domain,
                zygote,
                memory,
            } => {
                let mut state = self.state();
                state.cold.remove(&domain);
                let of = domain_of(&mut state, &domain, self.rules);
                of.warm = true;
                of.memory = memory;
                of.zygote = zygote;
                self.tell(of, &domain);
                self.heard.notify_all();
            }
            Word::Replaced { domain, why } => {
                let mut state = self.state();
                let of = domain_of(&mut state, &domain, self.rules);
                // The copies are gone with whoever had made them.
                of.memory.copied_bytes = 0;
                state.lost += 1;
                drop(state);
                host.log(
                    Level::Warn,
                    TARGET,
                    "a warmed interpreter is lost; its spare serves until another is warm",
                    &[("why", &why), ("domain", &domain)],
                );
            }
            Word::Cold { domain, why, lives } => {
                let mut state = self.state();
                let of = domain_of(&mut state, &domain, self.rules);
                let was_warm = std::mem::replace(&mut of.warm, false);
                of.call_all();
                state.lost += u64::from(was_warm && !lives);
                state.cold.insert(domain.clone(), why.clone());
                drop(state);
                self.heard.notify_all();
                let what = if lives {
                    "interpreters cannot be made ahead; runs start their own until one lives"
                } else if was_warm {
                    "a warmed interpreter is lost; runs start their own until it is replaced"
                } else {
                    "no interpreter could be warmed; runs start their own until one is"
                };
                host.log(
                    Level::Warn,
                    TARGET,
                    what,
                    &[("why", &why), ("domain", &domain)],
                );
            }
            Word::Gone { domain } => {
                let mut guard = self.state();
                let state = &mut *guard;
                state.cold.remove(&domain);
                // Runs that wait there see that it is not warm; the last of them puts it away.
                if let Some(of) = state.domains.get_mut(&domain) {
                    of.warm = false;
                    of.gone = true;
                    of.idle.clear();
                    of.connected.clear();
                    // What could not be said may have been that one of them lasts, which is not said again.
                    let lasts = of.unsent;
                    let untold = of.untold.drain(..);
                    let homeless = untold.map(|taken| Homeless { taken, lasts });
                    state.homeless.extend(homeless);
                    of.call_all();
                }
                state
                    .domains
                    .retain(|name, d| *name != domain || d.is_awaited());
            }
        }
    }

    /// Lets go of children that nobody has needed for a while, and says what could not be said.
    fn tidy(&self) {
        let mut state = self.state();
        self.tell_of_homeless(&mut state);
        let now = Instant::now();
        for (name, domain) in state.domains.iter_mut().filter(|(_, d)| !d.gone) {
            domain.settle(now);
            domain.shrink(self.rules.min.min(self.rules.max), now);
            if domain.unsent {
                self.tell(domain, name);
            }
        }
    }
}

fn domain_of<'a>(state: &'a mut State, name: &str, rules: PoolRules) -> &'a mut Domain {
    let domain = state.domains.entry(name.to_owned());
    domain.or_insert_with(|| Domain::new(rules))
}

/// That nobody hears the launcher any more, also by a panic: what runs wait for does not come.
struct Closes<'a>(&'a Pool);

impl Drop for Closes<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.closed = true;
        let domains = std::mem::take(&mut state.domains);
        drop(state);
        self.0.heard.notify_all();
        domains.values().for_each(Domain::call_all);
    }
}

/// Starts the thread that hears the launcher.
pub(crate) fn listen(pool: &Arc<Pool>, host: &Host) -> io::Result<std::thread::JoinHandle<()>> {
    let (pool, host) = (pool.clone(), host.clone());
    std::thread::Builder::new()
        .name("skillgate-pool".into())
        .spawn(move || pool.hear(&host))
}

#[cfg(test)]
mod tests;

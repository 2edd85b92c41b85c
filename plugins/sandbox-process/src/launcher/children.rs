//! The launcher's part in zygotes' children: ordering them, handing them to the plugin, and what only it can give them.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::birth::Theirs;
use super::lacking::{Kind, There};
use super::restraint::{Restraint, Seen};
use super::run::{Happened, Pooled, Process, Run, Untold, tell};
use super::start::detached_all;
use super::strays::Strays;
use super::zygotes::{Event, Ordered, Zygotes};
use super::{Cannot, Launcher, make_room};
use crate::cgroup::{GroupLimits, RunGroup};
use crate::guard::Without;
use crate::isolate::{self, Ground};
use crate::sys::{self, Poll};
use crate::usage;
use crate::wire::{Furnishing, Notice, PoolNeeds, RunSpec, Taken, Word};
use crate::zygote::READY;

/// A run that has used more of a processor makes way for others.
const LASTS_NS: u64 = 20_000_000;

/// So many young children for each processor at most, and so many tasks of the whole machine that want it: more would only be
/// in each other's way. Runs that sleep want none, and many may.
const YOUNG_MAX: u32 = 4;

/// Under load, and where children are scarce, one rehearses when nobody has wanted it for so long: none waits that long
/// while it is in demand, and those that a burst leaves behind get their rehearsal too.
const IDLE_NS: u64 = 100_000_000;

impl Launcher {
    /// What the plugin needs of a pool.
    pub(super) fn pool(&mut self, control: BorrowedFd<'_>, needs: PoolNeeds) {
        needs.taken.iter().for_each(|taken| self.taken(taken));
        let Some(zygotes) = &mut self.zygotes else {
            return;
        };
        let events = zygotes.need(needs, sys::now_ns());
        self.act(control, events);
    }

    /// A child has a run. One that has died meanwhile has said so on its own socket.
    pub(super) fn taken(&mut self, taken: &Taken) {
        if let Some((_, run)) = self.child(taken.number) {
            run.take(taken, LASTS_NS);
        }
    }

    /// The child with this number, and its slot.
    fn child(&mut self, number: u64) -> Option<(u32, &mut Run)> {
        let of_it = |run: &Run| run.pooled.as_ref().is_some_and(|p| p.number == number);
        let (slot, run) = self.runs.iter_mut().find(|(_, run)| of_it(run))?;
        Some((*slot, run))
    }

    /// Hears the zygotes, starts those that are wanted and orders children.
    pub(super) fn mind_zygotes(&mut self, control: BorrowedFd<'_>) {
        let Some(zygotes) = &mut self.zygotes else {
            return;
        };
        let events = zygotes.attend(&self.ground);
        self.act(control, events);
        self.end_strays();
        self.prove_births(control);
        while self.order(control) {}
    }

    /// What the end of a child says of births.
    pub(super) fn judge_birth(&mut self, control: BorrowedFd<'_>, run: &mut Run, now: u64) {
        if run.pooled.is_some() {
            // All that it has said.
            run.hear();
        }
        let (Some(pooled), Some(zygotes)) = (&run.pooled, &mut self.zygotes) else {
            return;
        };
        let events = if run.begun {
            // Of a short run this is all that is ever heard.
            zygotes.used(&pooled.domain, now);
            zygotes.run_has_begun(&pooled.domain, run.born_ns)
        } else if run.was_stillborn() {
            let why = run.failed.as_deref().unwrap_or("killed");
            zygotes.birth_failed(&pooled.domain, run.born_ns, why, now)
        } else {
            return;
        };
        self.act(control, events);
    }

    /// Looks whether children live where births have failed.
    fn prove_births(&mut self, control: BorrowedFd<'_>) {
        let lives = |name: &str, since_ns, until_ns| {
            let is_one = |run: &Run| run.waiting().is_some_and(|p| p.domain == name);
            let mut born = self.runs.values().filter(|run| is_one(run));
            born.any(|run| (since_ns..=until_ns).contains(&run.born_ns))
        };
        let zygotes = self.zygotes.as_ref();
        let proven = zygotes.map(|z| z.proven(sys::now_ns(), lives));
        for name in proven.unwrap_or_default() {
            let events = self.zygotes.as_mut().map(|z| z.birth_succeeded(&name));
            self.act(control, events.unwrap_or_default());
        }
    }

    /// Orders one child, if one is lacking.
    fn order(&mut self, control: BorrowedFd<'_>) -> bool {
        let now = sys::now_ns();
        let seen = self.seen(now);
        self.restraint = Restraint::of(seen);
        let ahead_max = self.restraint.ahead_max;
        if ahead_max == 0 {
            return false;
        }
        let zygotes = self.zygotes.as_ref();
        let lacking = zygotes.and_then(|z| z.lacking(ahead_max, now, |needs| self.there(needs)));
        let Some((name, kind, there)) = lacking else {
            return false;
        };
        match self.try_order(&name, kind, there, seen.is_busy()) {
            Ok(ordered) => ordered,
            Err(cannot) => {
                if cannot.lacks_files {
                    self.make_room();
                }
                let zygotes = self.zygotes.as_mut();
                let events = zygotes.map(|z| z.cannot_order(&name, &cannot.message, now));
                self.act(control, events.unwrap_or_default());
                // The next one at once, as when one has died at its birth: the others wait.
                true
            }
        }
    }

    /// The children of a domain that have no run yet.
    fn there(&self, needs: &PoolNeeds) -> There {
        let mut there = There::default();
        for child in self
            .runs
            .values()
            .filter_map(Run::waiting)
            .filter(|p| p.domain == needs.domain)
        {
            if child.spec.network {
                there.connected += 1;
                continue;
            }
            there.ahead += 1;
            match child.furnishing {
                0 => there.plain += 1,
                number if number == needs.furnishing.number => there.furnished += 1,
                // It is about to be let go of.
                _ => {}
            }
        }
        there
    }

    /// What may hold back whoever makes children.
    fn seen(&self, now: u64) -> Seen {
        let is_crowded = self.has_too_many(|run| now < run.young_until_ns());
        Seen {
            now,
            processors: self.processors,
            is_crowded,
            hold_ns: self.hold.until_ns(),
            load_until_ns: self.load.until_ns(),
            // To find out is to ask the kernel: not where it makes no difference.
            has_many_runs: !is_crowded && !self.load.is_high(now) && self.has_many_runs(),
        }
    }

    /// Whether many runs have come at once, of which none need have ended yet.
    pub(super) fn has_many_runs(&self) -> bool {
        self.has_too_many(Run::is_under_way)
    }

    /// Whether there are as many of them as there may be young ones, and tasks that want a processor.
    fn has_too_many(&self, is_one: impl Fn(&Run) -> bool) -> bool {
        let most = self.processors * YOUNG_MAX;
        let there = self.runs.values().filter(|run| is_one(run)).count() as u32;
        there >= most && usage::running() > most
    }

    /// All that a child needs, and the order for it. `false`: the zygote has died, which is heard from its socket next; it is
    /// not the launcher that cannot do its part.
    fn try_order(
        &mut self,
        name: &str,
        kind: Kind,
        there: There,
        busy: bool,
    ) -> Result<bool, Cannot> {
        let network = kind == Kind::Connected;
        let cannot = |e: io::Error| Cannot::new("a child cannot be ordered", &e);
        let (Some(zygotes), Some(leases)) = (&mut self.zygotes, &mut self.leases) else {
            return Ok(false);
        };
        let runs = &self.runs;
        let ids = &self.ids;
        let lease = leases
            .take(|leases| ids.take(|slot| runs.contains_key(&slot) || leases.has(slot)))
            .map_err(|e| Cannot::new("namespaces for it cannot be made", &e))?;
        let (mut group, mut scarce, mut furnishing) = (None, false, None);
        let made = || -> io::Result<_> {
            let (needs, copied_bytes) = zygotes.needs(name).ok_or(io::ErrorKind::NotFound)?;
            let limits = GroupLimits {
                copied_bytes,
                connects: network,
                ..needs.limits
            };
            // It is for a run that waits, or there are too few to last until it has rehearsed.
            scarce = network
                || there.ahead < needs.waiting[0]
                || there.ahead.saturating_mul(2) < needs.ahead;
            furnishing = (kind == Kind::Furnished).then(|| needs.furnishing.clone());
            if let Some(groups) = &mut self.groups {
                group = Some(groups.make_run(limits)?);
            }
            let (sockets, theirs) = Theirs::make()?;
            let spec = RunSpec {
                max_pids: limits.pids,
                memory_bytes: limits.memory_bytes,
                disk_bytes: needs.disk_bytes,
                disk_inodes: needs.disk_inodes,
                network,
                ..RunSpec::default()
            };
            Ok((limits, spec, sockets, theirs))
        }();
        let (limits, spec, sockets, theirs) = match made {
            Ok(made) => made,
            Err(e) => {
                leases.give_back(lease, true);
                self.leaving.extend(group);
                return Err(cannot(e));
            }
        };
        let child = Ordered {
            lease,
            group,
            spec,
            limits,
            furnishing,
            idle_ns: if busy || scarce { IDLE_NS } else { 0 },
            sockets,
        };
        match zygotes.order(name, child, &theirs) {
            Ok(()) => Ok(true),
            Err((child, e)) => {
                leases.give_back(child.lease, true);
                self.leaving.extend(child.group);
                match e.kind() {
                    io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Ok(false),
                    _ => Err(cannot(e)),
                }
            }
        }
    }

    fn act(&mut self, control: BorrowedFd<'_>, events: Vec<Event>) {
        for event in events {
            match event {
                Event::Tell(word) => say(control, &word, &[]),
                Event::Sweep { all } => self.look_for_strays(all),
                Event::Lost(child) => self.lost.push(*child),
                Event::Unborn(child) => {
                    if let Some(leases) = &mut self.leases {
                        leases.give_back(child.lease, true);
                    }
                    self.leaving.extend(child.group);
                }
                Event::Born {
                    domain,
                    zygote,
                    child,
                    init,
                } => self.born(control, domain, zygote, *child, init),
            }
        }
    }

    fn born(
        &mut self,
        control: BorrowedFd<'_>,
        domain: String,
        zygote: u64,
        child: Ordered,
        init: Process,
    ) {
        let slot = child.lease.id.slot();
        let (limits, idle_ns) = (child.limits, child.idle_ns);
        let process_1 = init.pid as u32;
        let RunSpec {
            network,
            disk_bytes,
            disk_inodes,
            ..
        } = child.spec;
        let (mut run, plugins, furnishing) = self.run_of(child, init, domain.clone());
        let number = self.children;
        let (parts, _) = run.group.as_ref().map(RunGroup::parts).unwrap_or_default();
        let word = Word::Child {
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
            furnishing: furnishing.as_ref().map_or(0, |f| f.number),
        };
        match (furnishing, &mut run.pooled) {
            (Some(Furnishing { mounts, .. }), Some(pooled)) => {
                pooled.untold = Some(Box::new(Untold {
                    mounts,
                    word,
                    plugins,
                }));
            }
            _ => introduce(control, &run, &word, &plugins),
        }
        let is_watched = self.watch(&run).is_ok();
        if let Some(pooled) = &mut run.pooled {
            pooled.is_watched = is_watched;
        }
        self.runs.insert(slot, run);
    }

    /// Has the end of a child seen, and that the plugin lets go of it. Fails when the user has as many watches as the kernel
    /// gives one, for all of its programs together (epoll(7), max_user_watches).
    fn watch(&self, run: &Run) -> io::Result<()> {
        let watch = &self.children_watch;
        watch.add(run.init.pidfd.as_fd(), self.children << 1)?;
        watch.add(run.notice.as_fd(), self.children << 1 | 1)
    }

    /// What has been seen of the child with this number. Its slot may be another's by now.
    pub(super) fn attend_child(&mut self, control: BorrowedFd<'_>, token: u64) {
        let (number, let_go) = (token >> 1, token & 1 == 1);
        let Some((slot, _)) = self.child(number) else {
            return;
        };
        let what = if let_go {
            Happened::LetGo
        } else {
            Happened::Ended
        };
        self.attend(control, slot, what);
    }

    /// A child as a run, the plugin's ends of its sockets, and what it is to have mounted.
    fn run_of(
        &mut self,
        child: Ordered,
        init: Process,
        domain: String,
    ) -> (Run, [OwnedFd; 4], Option<Furnishing>) {
        self.children += 1;
        let run = Run {
            group: child.group,
            born_ns: sys::now_ns(),
            pooled: Some(Pooled {
                number: self.children,
                domain,
                lease: child.lease,
                orders: child.sockets.orders,
                is_watched: false,
                is_mute: false,
                taken: false,
                spec: child.spec,
                furnishing: child.furnishing.as_ref().map_or(0, |f| f.number),
                untold: None,
                activation: None,
                cpu_before_us: 0,
            }),
            ..Run::new(init, child.sockets.notice, child.sockets.report)
        };
        (run, child.sockets.plugins, child.furnishing)
    }

    /// Looks for what dead zygotes have made and could not tell of. `all`: every one that was to end has, so that nothing more
    /// comes of what was lost before.
    fn look_for_strays(&mut self, all: bool) {
        let lost = if all {
            std::mem::take(&mut self.lost)
        } else {
            Vec::new()
        };
        let births = self.zygotes.as_ref().map(Zygotes::births);
        let found = Strays::find(&self.known(), births.unwrap_or_default(), lost);
        self.strays.push(found);
    }

    /// Ends those of which it is certain by now that nobody tells of them.
    fn end_strays(&mut self) {
        if self.strays.is_empty() {
            return;
        }
        let births = self.zygotes.as_ref().map(Zygotes::births);
        let births = births.unwrap_or_default();
        let known = self.known();
        let certain = self.strays.extract_if(.., |s| s.are_certain(&births));
        let lost: Vec<Ordered> = certain.flat_map(|s| s.end(&known)).collect();
        for child in lost {
            // What they have left in their namespaces is not known.
            if let Some(leases) = &mut self.leases {
                leases.give_back(child.lease, false);
            }
            self.leaving.extend(child.group);
        }
    }

    /// The launcher goes, and its zygotes are dead: whatever is there and not known is a stray.
    pub(super) fn end_all_strays(&mut self) {
        self.look_for_strays(true);
        self.end_strays();
    }

    /// The launcher's children that it has made or been told of.
    fn known(&self) -> BTreeSet<libc::pid_t> {
        self.zygotes
            .iter()
            .flat_map(Zygotes::pids)
            .chain(self.runs.values().map(|r| r.init.pid))
            .chain(self.pace.pids())
            .collect()
    }

    /// A child has a run that needs what the plugin cannot give it.
    pub(super) fn activate(&mut self, control: BorrowedFd<'_>, taken: &Taken, spec: RunSpec) {
        let now = sys::now_ns();
        // One that has died meanwhile has said so on its own socket.
        let Some((slot, run)) = self.child(taken.number) else {
            return;
        };
        run.take(taken, LASTS_NS);
        if let Some(pooled) = &mut run.pooled {
            pooled.activation = Some(spec);
        }
        let pooled = self.runs.get(&slot).and_then(|run| run.pooled.as_ref());
        if let (Some(zygotes), Some(pooled)) = (&mut self.zygotes, pooled) {
            zygotes.used(&pooled.domain, now);
        }
        self.hold.begun(now);
        self.furnish(control, slot);
    }

    /// Gives a child what its run needs, as soon as it has a place for it, and tells it for which run it is; or what the usual
    /// run wants, and tells the plugin that it is there.
    pub(super) fn furnish(&mut self, control: BorrowedFd<'_>, slot: u32) {
        let Some(run) = self.runs.get_mut(&slot) else {
            return;
        };
        let Some(pooled) = &mut run.pooled else {
            return;
        };
        let mut word = [Poll::readable(pooled.orders.as_fd())];
        if (pooled.activation.is_none() && pooled.untold.is_none())
            || sys::poll(&mut word, Some(0)).is_err()
            || !word[0].is_ready()
        {
            return;
        }
        let Some(place) = place_of(pooled.orders.as_fd()) else {
            return run.has_no_place();
        };
        let give = |spec: &RunSpec, mounts: Vec<OwnedFd>, pooled: &Pooled| {
            let home = self.home.as_fd();
            furnished(&self.ground, home, place.as_fd(), spec, &mounts, pooled)
        };
        let detached = |spec: &RunSpec| detached_all(&spec.mounts, &Without::default());
        if let Some(untold) = pooled.untold.take() {
            let spec = RunSpec {
                mounts: untold.mounts,
                ..pooled.spec.order()
            };
            let given = detached(&spec).and_then(|mounts| give(&spec, mounts, pooled));
            if given.is_ok() {
                introduce(control, run, &untold.word, &untold.plugins);
            } else {
                if let Some(zygotes) = &mut self.zygotes {
                    zygotes.cannot_furnish(&pooled.domain);
                }
                run.kill();
            }
            return;
        }
        let Some(spec) = pooled.activation.take() else {
            return;
        };
        let mut mounts = detached(&spec);
        if mounts.as_ref().is_err_and(|cannot| cannot.lacks_files) {
            make_room(&mut self.leases, &mut self.groups, &mut self.leaving);
            mounts = detached(&spec);
        }
        let gate = match (spec.network, &self.leases) {
            // Its filter and its lease are for the other kind of run.
            (network, _) if network != pooled.spec.network => {
                Err(io::ErrorKind::InvalidInput.into())
            }
            (true, Some(leases)) => leases.open_gate(&pooled.lease, run.notice.as_fd()),
            _ => Ok(()),
        };
        let sent = gate
            .map_err(|e| Cannot::new("its network cannot be prepared", &e))
            .and_then(|()| give(&spec, mounts?, pooled))
            .and_then(|()| told(pooled.orders.as_fd(), &spec));
        if let Err(Cannot { message, .. }) = sent
            && !run.is_mute()
        {
            // Said first: what follows its end would be a less telling word.
            tell(run.notice.as_fd(), &Notice::Failed { message }, None);
            run.kill();
        }
    }
}

/// The mount namespace that a child gives away when it is ready. The plugin, when it has given the run up, may have taken it
/// meanwhile.
fn place_of(orders: BorrowedFd<'_>) -> Option<OwnedFd> {
    let mut word = [0; READY.len()];
    let (n, mut fds) = sys::take_message(orders, &mut word).ok()??;
    (&word[..n] == READY).then(|| fds.pop())?
}

/// Puts up what a child's run is given, in `place`, its mount namespace. No code of the run is there yet.
fn furnished(
    ground: &Ground,
    home: BorrowedFd<'_>,
    place: BorrowedFd<'_>,
    spec: &RunSpec,
    mounts: &[OwnedFd],
    pooled: &Pooled,
) -> Result<(), Cannot> {
    let disk = |spec: &RunSpec| (spec.disk_bytes, spec.disk_inodes);
    let resize = disk(spec) != disk(&pooled.spec);
    if mounts.is_empty() && !resize {
        return Ok(());
    }
    sys::enter_namespace(place, libc::CLONE_NEWNS)
        .map_err(|e| Cannot::new("its mount namespace cannot be entered", &e))?;
    let done = isolate::furnish(ground, spec, mounts, resize);
    if sys::enter_namespace(home, libc::CLONE_NEWNS).is_err() {
        // Every path from here on would be one of the run's.
        sys::exit_now(3);
    }
    done.map_err(|failed| Cannot::new(&format!("isolation step {:?}", failed.step), &failed.error))
}

/// Tells a child of its run.
fn told(orders: BorrowedFd<'_>, spec: &RunSpec) -> Result<(), Cannot> {
    serde_json::to_vec(&spec.order())
        .map_err(io::Error::from)
        .and_then(|message| sys::send_message(orders, &message, &[]))
        .map_err(|e| Cannot::new("a waiting interpreter cannot be told of its run", &e))
}

/// Hands a child to the plugin.
fn introduce(control: BorrowedFd<'_>, run: &Run, word: &Word, plugins: &[OwnedFd; 4]) {
    let (_, dirs) = run.group.as_ref().map(RunGroup::parts).unwrap_or_default();
    let fds: Vec<BorrowedFd<'_>> = plugins
        .iter()
        .chain([&run.init.pidfd])
        .map(AsFd::as_fd)
        .chain(dirs)
        .collect();
    say(control, word, &fds);
}

fn say(control: BorrowedFd<'_>, word: &Word, fds: &[BorrowedFd<'_>]) {
    // The plugin has gone: the launcher is about to see that.
    let _ = serde_json::to_vec(word).map(|text| sys::send_message(control, &text, fds));
}

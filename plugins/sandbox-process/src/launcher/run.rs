//! One run as the launcher has it: what to kill, what to listen to, what to tell.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::ids::Id;
use super::lasting::Lasting;
use super::leases::Lease;
use crate::cgroup::{GroupUse, RunGroup};
use crate::sys::{self, Exit, Poll};
use crate::usage;
use crate::wire::{End, MountSpec, Notice, Report, RunSpec, Taken, Word};

/// A zygote's child that the plugin has let go of has given its result, as a rule, and is ended so much later: to end takes as
/// much of the processors as a short run does, and the answer wants them first. So long no child is made in its place either,
/// while there are others: a fork of the zygote takes a processor longer than the answer needs to its caller. Where runs come one
/// upon the other both would only be put off, and their caches would be lost.
pub(super) const LINGER_NS: u64 = 500_000;

/// Where many have come at once the answers of the others want them first, too.
pub(super) const LINGER_LONG_NS: u64 = 50_000_000;

/// Even where there are many, a child is built within the one time, and when it has a short run that is over within the other:
/// until then it wants a processor.
const YOUNG_NS: [u64; 2] = [5_000_000, 50_000_000];

/// What process 1 says of a run has some hundreds of bytes, an error's text included.
const REPORT_BYTES_MAX: usize = 8 << 10;

/// A process that is the launcher's to kill and to reap.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) pid: libc::pid_t,
    pub(super) pidfd: OwnedFd,
}

impl Process {
    /// Waits for its end.
    pub(super) fn reap(&self) -> Exit {
        let reaped = sys::wait(self.pid).ok().flatten();
        reaped.map(|(_, exit)| exit).unwrap_or_default()
    }
}

/// What a launcher hears of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Happened {
    /// Init has said something, or has closed its report.
    Said,
    /// A zygote's child can be given what its run needs.
    Ready,
    /// It has ended.
    Ended,
    /// The plugin has closed its notice socket, or says nothing more on it: the run is to end.
    LetGo,
}

pub(super) struct Run {
    pub(super) init: Process,
    pub(super) notice: OwnedFd,
    pub(super) report: OwnedFd,
    pub(super) heard: Vec<u8>,
    /// Bytes that have been heard in all.
    pub(super) spoken: usize,
    /// Init has closed it, since it ends, which takes a while; or it has said more than there is to say.
    pub(super) report_over: bool,
    /// Of a zygote's child: the code of the run is there, and process 1 has its memory. Only how it ended is believed now.
    pub(super) begun: bool,
    pub(super) failed: Option<String>,
    /// What init says of the interpreter.
    pub(super) exited: Option<(i32, i32)>,
    pub(super) group: Option<RunGroup>,
    /// Of a zygote's child.
    pub(super) born_ns: u64,
    pub(super) deadline_ns: u64,
    /// Whether it takes the processors again and again.
    pub(super) lasting: Lasting,
    pub(super) cpu_limit_us: u64,
    pub(super) cpu_exhausted: bool,
    pub(super) deadline_passed: bool,
    pub(super) killed: bool,
    /// What it had used then, where nothing counts it that outlives it.
    pub(super) used_before: GroupUse,
    /// The plugin has let go of it: when it is killed.
    pub(super) ends_ns: Option<u64>,
    /// Of a run with an interpreter of its own: nobody else's until it has ended. A zygote's child has its lease's.
    pub(super) _id: Option<Id>,
    /// Of a zygote's child.
    pub(super) pooled: Option<Pooled>,
}

/// What a zygote's child has beside.
pub(super) struct Pooled {
    /// Its own, for ever.
    pub(super) number: u64,
    pub(super) domain: String,
    pub(super) lease: Lease,
    /// Where it is told for which run it is.
    pub(super) orders: OwnedFd,
    /// Its end, and that the plugin lets go of it, is heard from the launcher's watch. Otherwise it is asked each time.
    pub(super) is_watched: bool,
    /// It has ended, and will not say that it can be given something.
    pub(super) is_mute: bool,
    /// It has a run.
    pub(super) taken: bool,
    /// What it was made for.
    pub(super) spec: RunSpec,
    /// What it has mounted, or will have when the plugin hears of it: the number of a [`crate::wire::Furnishing`].
    pub(super) furnishing: u64,
    /// What it is to have mounted before the plugin hears of it, and what the plugin gets of it.
    pub(super) untold: Option<Box<Untold>>,
    /// Its run, until it is ready to be told of it.
    pub(super) activation: Option<RunSpec>,
    pub(super) cpu_before_us: u64,
}

/// A child that is furnished before the plugin hears of it.
pub(super) struct Untold {
    pub(super) mounts: Vec<MountSpec>,
    pub(super) word: Word,
    pub(super) plugins: [OwnedFd; 4],
}

/// What a zygote's child leaves that others get: once the plugin, which reads what its run has used and may still set its
/// limits, has closed the other end of its notice socket.
pub(super) struct Returning {
    pub(super) notice: OwnedFd,
    pub(super) group: Option<RunGroup>,
    pub(super) lease: Lease,
    pub(super) is_connected: bool,
}

impl Run {
    /// One that has just been made: nothing is known of it, and nothing limits it.
    pub(super) fn new(init: Process, notice: OwnedFd, report: OwnedFd) -> Self {
        Run {
            init,
            notice,
            report,
            heard: Vec::new(),
            spoken: 0,
            report_over: false,
            begun: false,
            failed: None,
            exited: None,
            group: None,
            born_ns: 0,
            deadline_ns: u64::MAX,
            lasting: Lasting::NO_RUN,
            cpu_limit_us: 0,
            cpu_exhausted: false,
            deadline_passed: false,
            killed: false,
            used_before: GroupUse::default(),
            ends_ns: None,
            _id: None,
            pooled: None,
        }
    }

    /// What to listen to, each time. The end of a zygote's child, and that the plugin lets go of it, is watched for from its
    /// birth on where the kernel has a watch for it, and what it reports is asked for when it has ended.
    pub(super) fn to_be_asked(&self) -> [Option<(Happened, BorrowedFd<'_>)>; 3] {
        // An end that has been seen says nothing more, and would be said again and again.
        let unless = |seen: bool, what| (!seen).then_some(what);
        match &self.pooled {
            None => [
                unless(self.report_over, (Happened::Said, self.report.as_fd())),
                Some((Happened::Ended, self.init.pidfd.as_fd())),
                unless(self.is_over(), (Happened::LetGo, self.notice.as_fd())),
            ],
            Some(pooled) => [
                unless(
                    pooled.is_mute || (pooled.activation.is_none() && pooled.untold.is_none()),
                    (Happened::Ready, pooled.orders.as_fd()),
                ),
                unless(
                    pooled.is_watched,
                    (Happened::Ended, self.init.pidfd.as_fd()),
                ),
                unless(
                    pooled.is_watched || self.is_over(),
                    (Happened::LetGo, self.notice.as_fd()),
                ),
            ],
        }
    }

    /// Of a zygote's child; a long time ago for others, and for one that is over.
    pub(super) fn young_until_ns(&self) -> u64 {
        match &self.pooled {
            Some(pooled) if !self.is_over() => {
                let [born, began] = YOUNG_NS;
                match pooled.taken {
                    true => self.lasting.began_ns() + began,
                    false => self.born_ns + born,
                }
            }
            _ => 0,
        }
    }

    /// Of a zygote's child that waits for a run. One that is over has had one, whether or not that was ever said: of a short one
    /// it is not.
    pub(super) fn waiting(&self) -> Option<&Pooled> {
        let pooled = self.pooled.as_ref()?;
        (!pooled.taken && !self.is_over()).then_some(pooled)
    }

    /// Of a zygote's child: it has a run, whose answer has not been given.
    pub(super) fn is_under_way(&self) -> bool {
        let taken = self.pooled.as_ref().is_some_and(|p| p.taken);
        taken && !self.is_over()
    }

    /// It is to end, or will have.
    pub(super) fn is_over(&self) -> bool {
        self.killed || self.ends_ns.is_some()
    }

    pub(super) fn kill(&mut self) {
        if self.killed {
            return;
        }
        self.killed = true;
        let is_awaited = self.is_awaited();
        if is_awaited && !self.is_counted() {
            self.used_before = usage::of_run(self.init.pid as u32).unwrap_or_default();
        }
        // The kernel refuses only for a process that is not ours to kill, which this one is.
        let _ = sys::kill_by_pidfd(self.init.pidfd.as_fd());
        if is_awaited {
            self.make_haste();
        }
    }

    /// Its end does not come last where it is waited for.
    fn make_haste(&self) {
        // Before process 1 is dead no other is killed, and they may take all there is. Who is no root cannot have it so.
        let _ = sys::weigh_more(self.init.pid);
        if self.lasting.has_made_way() {
            // One whose group has gone under its hands has ended.
            let _ = self.group.as_ref().map(RunGroup::make_haste);
        }
    }

    /// A zygote's child that was to be given something has no place for it. It has ended instead, or is let go of, and will be
    /// seen to; or there was no descriptor left for it, and then its run would wait for ever.
    pub(super) fn has_no_place(&mut self) {
        if self.is_mute() {
            return;
        }
        let Some(pooled) = &mut self.pooled else {
            return;
        };
        pooled.untold = None;
        if pooled.activation.take().is_some() {
            let message = "it could not be given what its run needs".to_owned();
            tell(self.notice.as_fd(), &Notice::Failed { message }, None);
            self.kill();
        }
    }

    /// A zygote's child has ended, and its end says why. The plugin's part of it stays until then: it is none that the plugin has
    /// let go of.
    pub(super) fn is_mute(&mut self) -> bool {
        let Some(pooled) = &mut self.pooled else {
            return false;
        };
        let mut over = [Poll::hung_up(pooled.orders.as_fd())];
        pooled.is_mute = sys::poll(&mut over, Some(0)).is_ok() && over[0].is_ready();
        pooled.is_mute
    }

    /// It is a run from now on, and one that lasts when it has used so much of a processor.
    pub(super) fn begin(&mut self, lasts_ns: u64) {
        self.lasting = Lasting::begin(sys::now_ns(), lasts_ns);
    }

    /// A zygote's child has a run. Of one that was activated that is said a second time.
    pub(super) fn take(&mut self, taken: &Taken, lasts_ns: u64) {
        if self.pooled.as_ref().is_some_and(|p| p.taken) {
            return;
        }
        self.deadline_ns = taken.deadline_ns;
        self.begin(lasts_ns);
        self.cpu_limit_us = taken.cpu_ms.saturating_mul(1000);
        if let Some(pooled) = &mut self.pooled {
            pooled.taken = true;
            pooled.cpu_before_us = taken.cpu_before_us;
        }
    }

    /// Looks at it when it is time to. If it lasts, what there is of the processors goes to short runs first. Gives whether it
    /// takes them.
    pub(super) fn look(&mut self, now: u64) -> bool {
        if now < self.lasting.next_ns || self.killed {
            return false;
        }
        let used = self.cpu_us();
        self.looked(now, used)
    }

    fn looked(&mut self, now: u64, used: Option<u64>) -> bool {
        let found = self.lasting.look(now, used);
        if self.ends_ns.is_some() {
            // It may stay so that its end takes the processors from nobody. It must not take them itself: it has no place any
            // more, and there could be as many as have answered in that time.
            if found.is_hungry && used.is_some() {
                self.kill();
            }
            return false;
        }
        if found.makes_way {
            // One whose group has gone under its hands is ending.
            let _ = self.group.as_mut().map(RunGroup::make_way);
        }
        // Where nothing counts for it alone, somebody else than the launcher has a processor.
        found.is_hungry && (used.is_some() || usage::running() > 1)
    }

    /// When there is something to do for it if nothing happens. Of one that has been let go of that is its end: if it is in
    /// somebody's way, something happens.
    pub(super) fn next_ns(&self) -> u64 {
        match self.ends_ns {
            Some(ends) => ends.min(self.deadline_ns),
            None => self.lasting.next_ns.min(self.deadline_ns),
        }
    }

    /// The plugin has closed its notice socket, and nobody asks for the run any more, or waits there for its end. In the first
    /// case it need not end at once.
    pub(super) fn let_go(&mut self, now: u64, linger_ns: u64) {
        if self.pooled.is_some() && linger_ns > 0 && !self.is_awaited() {
            self.ends_ns = Some(now + linger_ns);
        } else {
            self.kill();
        }
    }

    /// Listens to what there is, and no longer than to so much: who has the memory of process 1 can say anything.
    pub(super) fn hear(&mut self) {
        let mut buf = [0; 4096];
        while !self.report_over {
            match sys::read(self.report.as_fd(), &mut buf) {
                Ok(0) => self.report_over = true,
                Ok(n) => {
                    self.heard.extend_from_slice(&buf[..n]);
                    self.spoken += n;
                    self.report_over = self.spoken > REPORT_BYTES_MAX;
                }
                // Nothing there yet, or nothing to be read any more: then its end says so.
                Err(_) => break,
            }
        }
        let whole = self
            .heard
            .iter()
            .rposition(|b| *b == b'\n')
            .map_or(0, |end| end + 1);
        let rest = self.heard.split_off(whole);
        for line in std::mem::replace(&mut self.heard, rest).split_inclusive(|b| *b == b'\n') {
            match serde_json::from_slice(line) {
                Ok(Report::Begun) => self.begun = true,
                Ok(Report::Exited { code, signal }) => self.exited = Some((code, signal)),
                _ if self.begun => {}
                Ok(Report::Ready) => tell(self.notice.as_fd(), &Notice::Ready, None),
                Ok(Report::Failed { step, error }) => {
                    self.failed = Some(format!("isolation step {step}: {error}"))
                }
                Err(e) => self.failed = Some(format!("init said something strange: {e}")),
            }
        }
    }

    /// Processor time of the run so far, without what its process had used before, where that is known.
    pub(super) fn cpu_us(&self) -> Option<u64> {
        let before_us = self.pooled.as_ref().map_or(0, |p| p.cpu_before_us);
        self.counted_us().map(|us| us.saturating_sub(before_us))
    }

    /// Its group tells all of it, also when it has ended. Version 2 tells the peak since Linux 5.19.
    fn is_counted(&self) -> bool {
        let used = self.group.as_ref().map(RunGroup::used).unwrap_or_default();
        used.cpu_us.is_some() && used.peak_memory_bytes.is_some()
    }

    fn counted_us(&self) -> Option<u64> {
        self.group.as_ref()?.cpu_us()
    }

    /// Reaps it (it is dead or has been killed), tells the plugin and gives back what is to be cleared away: now, or when the
    /// plugin has put its own part away.
    pub(super) fn finish(mut self) -> (Option<RunGroup>, Option<Returning>) {
        let exit = self.init.reap();
        self.hear();
        let is_awaited = self.is_awaited();
        if is_awaited {
            let notice = match self.failed.take() {
                Some(message) => Notice::Failed { message },
                None => Notice::Ended(self.end(exit)),
            };
            tell(self.notice.as_fd(), &notice, None);
        }
        match self.pooled {
            None => (self.group, None),
            // Its orders and what else was to come go here. The plugin has had nothing of it, where that is still untold.
            Some(pooled) => {
                let (back, later) = match is_awaited {
                    true => (None, self.group),
                    // Mostly: the next child has it at once.
                    false => (self.group, None),
                };
                let returning = Returning {
                    notice: self.notice,
                    group: later,
                    lease: pooled.lease,
                    is_connected: pooled.spec.network,
                };
                (back, Some(returning))
            }
        }
    }

    /// Whether the plugin wants to hear of its end. Mostly the answer has been given long before.
    fn is_awaited(&self) -> bool {
        let mut gone = [Poll::hung_up(self.notice.as_fd())];
        sys::poll(&mut gone, Some(0)).is_err() || !gone[0].is_ready()
    }

    /// Of a child that has ended: whether it has failed before it was a run. One that a run has already must have said of which
    /// step, none of which needs more than the least that a run may have: else the run's limits may be what it has met. Not where
    /// nobody wanted it any more: then it ends well, since its orders do, which may be heard of first. Nor where the plugin has
    /// ended it, as it does with a run that is cancelled before that has begun.
    pub(super) fn was_stillborn(&self) -> bool {
        let has_said = self.failed.is_some();
        let is_one = |p: &Pooled| !p.taken || has_said;
        let has_failed = self.pooled.as_ref().is_some_and(is_one);
        let ended_well = self.exited == Some((0, 0));
        has_failed && !self.begun && !ended_well && !self.is_over() && !self.is_let_go()
    }

    /// Whether [`Happened::LetGo`] is still to be heard of: the plugin says nothing on this socket but its end.
    fn is_let_go(&self) -> bool {
        is_let_go(self.notice.as_fd())
    }

    fn end(&self, init: Exit) -> End {
        let used = self.group.as_ref().map(RunGroup::used).unwrap_or_default();
        // Where nothing counts it: what was seen of it, or what was waited for.
        let seen_us = self.used_before.cpu_us.unwrap_or(0);
        let seen_bytes = self.used_before.peak_memory_bytes.unwrap_or(0);
        // Without init's word the program was killed with it, and init has waited for nobody: what it has used is its own.
        let (exit_code, signal) = self.exited.unwrap_or((-1, init.signal));
        let (waited_us, waited_bytes) = match self.exited {
            Some(_) => (init.cpu_us, init.peak_rss_bytes),
            None => (0, 0),
        };
        End {
            exit_code,
            signal,
            cpu_us: self.counted_us().unwrap_or(waited_us.max(seen_us)),
            peak_memory_bytes: used
                .peak_memory_bytes
                .unwrap_or(waited_bytes.max(seen_bytes)),
            oom_kills: used.oom_kills,
            killed_for_others: used.killed_for_others,
            pids_refused: used.pids_refused,
            cpu_exhausted: self.cpu_exhausted,
            deadline_passed: self.deadline_passed,
        }
    }
}

fn is_let_go(notice: BorrowedFd<'_>) -> bool {
    let mut over = [Poll::readable(notice)];
    sys::poll(&mut over, Some(0)).is_ok() && over[0].is_ready()
}

/// Whether a run that is still to begin has been answered, or is about to be: its time is over, or the plugin has let go of it. Its
/// job may lie in its socket all the same, and would be done.
pub(super) fn is_too_late(notice: BorrowedFd<'_>, deadline_ns: u64) -> bool {
    sys::now_ns() >= deadline_ns || is_let_go(notice)
}

pub(super) fn tell(notice: BorrowedFd<'_>, what: &Notice, pidfd: Option<BorrowedFd<'_>>) {
    let fds: Vec<BorrowedFd<'_>> = pidfd.into_iter().collect();
    // The plugin has let go of the run: then nobody needs to know.
    let _ = serde_json::to_vec(what).map(|text| sys::send_message(notice, &text, &fds));
}

#[cfg(test)]
mod tests;

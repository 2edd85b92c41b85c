//! How a run gets its interpreter: a child of a zygote that waits already, one that is made for it, or one that the
//! launcher starts from nothing. What is isolated is the same; only what has happened before the request differs.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use skillgate_plugin_sdk::model::{Error, RunResult};
use skillgate_plugin_sdk::{Host, RunServices, abi};

use super::tries::CHILDREN_MAX;
use super::{Handle, Running};
use crate::answer::Fill as _;
use crate::cgroup::{GroupUse, Held};
use crate::channel::Channel;
use crate::job::Frames;
use crate::pool::{Pool, Waiting};
use crate::supervisor::Launcher;
use crate::sys::{self, Poll};
use crate::usage;
use crate::wire::{End, MESSAGE_BYTES_MAX, Request, RunSpec, Taken};
use crate::zygote::READY;

/// After so long a launcher that did not read is told again: the kernel says that there is room only when much of it is free.
const TELL_AGAIN_NS: u64 = 20_000_000;

/// A run that is to be, whichever way.
pub(super) struct Attempt<'a> {
    pub(super) services: &'a dyn RunServices,
    pub(super) handle: &'a Handle,
    pub(super) launcher: &'a Arc<Launcher>,
    pub(super) host: &'a Host,
    pub(super) tenant: &'a str,
    pub(super) spec: &'a RunSpec,
    pub(super) frames: &'a Frames,
    pub(super) blobs: &'a [String],
    pub(super) started_ns: u64,
}

/// How many runs went which way, and how long all of them together have waited for a child.
#[derive(Debug, Default)]
pub(crate) struct Ways {
    pub(crate) waited_us: AtomicU64,
    pub(crate) pooled: AtomicU64,
    pub(crate) on_demand: AtomicU64,
    /// Of those from the pool, on a child that had their mounts.
    pub(crate) furnished: AtomicU64,
    pub(crate) fresh: AtomicU64,
}

/// A zygote's child that has become a run.
pub(super) struct Child<'a> {
    pool: &'a Pool,
    domain: &'a str,
    number: u64,
    process_1: u32,
    group: Held,
    cpu_before_us: u64,
    pub(super) told: bool,
    /// When it is tried again to tell the launcher of it.
    pub(super) tell_again_ns: u64,
}

#[cfg(test)]
impl<'a> Child<'a> {
    /// One of which there is no process.
    pub(super) fn of_nothing(pool: &'a Pool, taken: Taken) -> Self {
        pool.taken("", taken);
        Child {
            pool,
            domain: "",
            number: taken.number,
            process_1: u32::MAX,
            group: Held::new(Vec::new(), Default::default()),
            cpu_before_us: taken.cpu_before_us,
            told: false,
            tell_again_ns: 0,
        }
    }

    pub(super) fn with(mut self, process_1: u32, group: Held) -> Self {
        self.process_1 = process_1;
        self.group = group;
        self
    }
}

impl Child<'_> {
    /// What it has used so far, and no more of its end than that. `events`: also how often a limit was met.
    pub(super) fn used_so_far(&self, events: bool) -> Option<End> {
        let seen = || usage::of_run(self.process_1);
        let Some(used) = self.counted(events) else {
            return Some(self.end(seen()?));
        };
        // Version 2 says the peak since Linux 5.19, and version 1 the time with `cpuacct`.
        if used.cpu_us.is_some() && used.peak_memory_bytes.is_some() {
            return Some(self.end(used));
        }
        let seen = seen().unwrap_or_default();
        Some(self.end(GroupUse {
            cpu_us: used.cpu_us.or(seen.cpu_us),
            peak_memory_bytes: used.peak_memory_bytes.or(seen.peak_memory_bytes),
            ..used
        }))
    }

    /// What its group says.
    fn counted(&self, events: bool) -> Option<GroupUse> {
        self.group.is_there().then(|| self.group.used(events))
    }

    /// What the launcher says of its end, as its run's.
    pub(super) fn ended(&self, end: End) -> End {
        End {
            cpu_us: end.cpu_us.saturating_sub(self.cpu_before_us),
            ..end
        }
    }

    fn end(&self, used: GroupUse) -> End {
        self.ended(End {
            cpu_us: used.cpu_us.unwrap_or_default(),
            peak_memory_bytes: used.peak_memory_bytes.unwrap_or_default(),
            oom_kills: used.oom_kills,
            killed_for_others: used.killed_for_others,
            pids_refused: used.pids_refused,
            ..End::default()
        })
    }

    /// The launcher hears of it, once: from now on it watches the run's limits too. Where it does not read at the moment, it is
    /// told again: who hears it for the pool may sleep for seconds.
    pub(super) fn tell(&mut self) {
        self.told = self.pool.lasts(self.domain, self.number);
        self.tell_again_ns = sys::now_ns() + TELL_AGAIN_NS;
    }
}

impl Drop for Child<'_> {
    fn drop(&mut self) {
        self.pool.over(self.domain, self.number);
    }
}

/// Where a child has sent its mount namespace when it was sealed, for the launcher, which has not asked for it. Whoever lets go of
/// that last frees the files of the run: this thread, since the launcher has other runs to see to.
pub(super) struct Place(OwnedFd);

impl Drop for Place {
    fn drop(&mut self) {
        // Nothing is there if no code of the run was, either.
        drop(sys::take_message(self.0.as_fd(), &mut [0; READY.len()]));
    }
}

fn unavailable(e: io::Error) -> Error {
    Error::new(abi::E_UNAVAILABLE, format!("cannot start a run: {e}"))
        .not_executed()
        .retryable(100)
}

impl<'a> Attempt<'a> {
    /// With a zygote's child. `None`: there is none to be had.
    pub(super) fn on_child(&self, ways: &Ways) -> Result<Option<Running<'a>>, Error> {
        let Some(pool) = &self.launcher.pool else {
            return Ok(None);
        };
        let domain = pool.domain(self.tenant);
        for _ in 0..CHILDREN_MAX {
            let cancelled = || self.handle.is_cancelled();
            let asked = Instant::now();
            let taken = pool.take(domain, self.spec, cancelled);
            if !matches!(taken, Some((_, false))) {
                let waited_us = asked.elapsed().as_micros() as u64;
                ways.waited_us.fetch_add(waited_us, Ordering::Relaxed);
            }
            let Some((waiting, waited)) = taken else {
                break;
            };
            // A run that has become unwanted meanwhile, or whose time is over, is handed to nobody: see `complete`.
            if cancelled() || sys::now_ns() >= self.spec.deadline_ns {
                break;
            }
            let furnished = waiting.furnishing != 0;
            // One that has died while it waited, or whose group cannot have these limits, is let go of.
            if let Some(running) = self.activate(pool, domain, waiting)? {
                let way = if waited {
                    &ways.on_demand
                } else {
                    &ways.pooled
                };
                way.fetch_add(1, Ordering::Relaxed);
                ways.furnished
                    .fetch_add(u64::from(furnished), Ordering::Relaxed);
                return Ok(Some(running));
            }
        }
        Ok(None)
    }

    /// Makes a waiting child the run's: the job is in its channel before it is told, so it is woken once.
    fn activate(
        &self,
        pool: &'a Pool,
        domain: &'a str,
        mut waiting: Waiting,
    ) -> Result<Option<Running<'a>>, Error> {
        if waiting.group.limit(self.spec.group_limits()).is_err() {
            return Ok(None);
        }
        let seen_us = || usage::of_run(waiting.process_1).and_then(|u| u.cpu_us);
        let cpu_before_us = waiting.group.cpu_us().or_else(seen_us).unwrap_or(0);
        let mut channel = Channel::new(waiting.channel, self.frames, self.blobs, self.services)
            .map_err(unavailable)?;
        channel.begin();
        let taken = Taken {
            number: waiting.number,
            deadline_ns: self.spec.deadline_ns,
            cpu_ms: self.spec.cpu_ms,
            cpu_before_us,
        };
        let disk = [self.spec.disk_bytes, self.spec.disk_inodes];
        let has_mounts = self.spec.mounts.is_empty() || waiting.furnishing != 0;
        let by_launcher = !has_mounts || self.spec.network || disk != waiting.disk;
        if by_launcher {
            self.ask(
                &Request::Activate {
                    taken,
                    spec: self.spec.clone(),
                },
                &[],
            )?;
        } else {
            let message =
                serde_json::to_vec(&self.spec.order()).map_err(|e| unavailable(e.into()))?;
            if sys::send_message(waiting.orders.as_fd(), &message, &[]).is_err() {
                return Ok(None);
            }
        }
        let child = Child {
            pool,
            domain,
            number: waiting.number,
            process_1: waiting.process_1,
            group: waiting.group,
            cpu_before_us,
            told: by_launcher,
            tell_again_ns: 0,
        };
        let mut running = self.running(channel, waiting.output, waiting.notice);
        running.place = (!by_launcher && waiting.furnishing == 0).then(|| Place(waiting.orders));
        running.ready_ns = Some(sys::now_ns());
        running.pidfd = Some(waiting.pidfd);
        running.child = Some(child);
        pool.taken(domain, taken);
        Ok(Some(running))
    }

    /// With an interpreter that is started for it.
    pub(super) fn on_its_own(&self, ways: &Ways) -> Result<Running<'a>, Error> {
        let (output, output_in) = sys::pipe().map_err(unavailable)?;
        let (channel, channel_in) = sys::socketpair(libc::SOCK_STREAM).map_err(unavailable)?;
        let (notice, notice_in) = sys::socketpair(libc::SOCK_SEQPACKET).map_err(unavailable)?;
        sys::set_nonblocking(output.as_fd()).map_err(unavailable)?;
        let channel =
            Channel::new(channel, self.frames, self.blobs, self.services).map_err(unavailable)?;
        self.ask(
            &Request::Run(self.spec.clone()),
            &[output_in.as_fd(), channel_in.as_fd(), notice_in.as_fd()],
        )?;
        ways.fresh.fetch_add(1, Ordering::Relaxed);
        Ok(self.running(channel, output, notice))
    }

    pub(super) fn ask(
        &self,
        request: &Request,
        fds: &[std::os::fd::BorrowedFd<'_>],
    ) -> Result<(), Error> {
        let message = serde_json::to_vec(request).map_err(|e| unavailable(e.into()))?;
        if message.len() > MESSAGE_BYTES_MAX {
            return Err(Error::new(
                abi::E_INVALID_ARGUMENT,
                "the paths of the run's mounts are too long together",
            )
            .not_executed());
        }
        let launcher = self.launcher.control.as_fd();
        loop {
            match sys::try_send_message(launcher, &message, fds) {
                Ok(()) => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.wait_for_room()?,
                Err(e) => {
                    self.launcher.has_lost_a_run();
                    return Err(unavailable(e));
                }
            }
        }
    }

    /// A launcher that is stopped, or that waits for a file system, reads nothing. The run waits for it as long as it may last and
    /// is wanted, and no longer.
    fn wait_for_room(&self) -> Result<(), Error> {
        let left_ns = self.spec.deadline_ns.saturating_sub(sys::now_ns());
        if left_ns == 0 || self.handle.is_cancelled() {
            let why = "the launcher of runs does not read what it is told";
            return Err(unavailable(io::Error::other(why)));
        }
        let mut room = [
            Poll::writable(self.launcher.control.as_fd()),
            Poll::readable(self.handle.wake.as_fd()),
        ];
        sys::poll(&mut room, Some(left_ns.min(TELL_AGAIN_NS))).map_err(unavailable)
    }

    fn running(&self, channel: Channel<'a>, output: OwnedFd, notice: OwnedFd) -> Running<'a> {
        Running {
            host: self.host,
            services: self.services,
            cancel: self.handle.wake.as_fd(),
            silence: self.launcher.silence.clone(),
            channel,
            output,
            output_open: true,
            output_wanted: true,
            output_bytes: 0,
            slow_ns: 0,
            place: None,
            notice,
            pidfd: None,
            is_counted: self.launcher.promises.counts_all,
            child: None,
            started_ns: self.started_ns,
            ready_ns: None,
            deadline_ns: self.spec.deadline_ns,
            result_ns: None,
            verdict: None,
            killed_ns: None,
            buffer: Vec::new(),
        }
    }
}

/// What a run has used whose end nobody waits for any more. No more than its group says if that has just come: whatever else was
/// asked may be another's process by now.
pub(super) fn used_by_stuck(child: Option<&Child<'_>>, pidfd: Option<&OwnedFd>) -> End {
    let Some(child) = child else {
        return End::default();
    };
    let used = child.used_so_far(true);
    let alive = |pidfd: &OwnedFd| sys::is_alive(pidfd.as_fd()).unwrap_or(false);
    let used = if pidfd.is_some_and(alive) {
        used
    } else {
        child.counted(true).map(|used| child.end(used))
    };
    used.unwrap_or_default()
}

/// The result of a run that nobody wants any more, or whose time is over, and that has waited for an interpreter until now: none
/// is started for it.
pub(super) fn over_before_it_began(
    deadline_ns: u64,
    handle: &Handle,
    started_ns: u64,
    wall_ms: u64,
) -> Option<RunResult> {
    let now = sys::now_ns();
    let mut result = RunResult {
        exit_code: -1,
        create_us: now.saturating_sub(started_ns) / 1000,
        ..RunResult::default()
    };
    if now >= deadline_ns {
        let why = format!(
            "the run was stopped at its limit of {wall_ms} ms, in which there was no interpreter for it"
        );
        result.fail(abi::RUN_TIMEOUT, why);
    } else if handle.is_cancelled() {
        result.fail(abi::RUN_CANCELLED, "the run was cancelled".into());
    } else {
        return None;
    }
    Some(result)
}

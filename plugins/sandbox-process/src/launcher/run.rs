//! One run as the launcher has it: what to kill, what to listen to, what to tell.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::leases::Lease;
use crate::cgroup::RunGroup;
use crate::sys::{self, Exit, Poll};
use crate::wire::{End, Notice, Report};

/// A zygote's child that the plugin has let go of has given its result, as a rule, and is ended so much later, where that is
/// not load: to end takes as much of the processors as a short run does, and the answer wants them first.
const LINGER_NS: u64 = 500_000;

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

pub(super) struct Run {
    pub(super) init: Process,
    /// Of a zygote's child, until it is reaped: process 2, which is no child of its init's.
    pub(super) program: Option<Process>,
    /// How that ended.
    pub(super) program_exit: Option<Exit>,
    pub(super) notice: OwnedFd,
    pub(super) report: OwnedFd,
    pub(super) heard: Vec<u8>,
    /// Init has closed it: it ends, which takes a while.
    pub(super) report_over: bool,
    pub(super) failed: Option<String>,
    /// What init says of the interpreter.
    pub(super) exited: Option<(i32, i32)>,
    pub(super) group: Option<RunGroup>,
    pub(super) deadline_ns: u64,
    pub(super) cpu_limit_us: u64,
    pub(super) cpu_exhausted: bool,
    pub(super) deadline_passed: bool,
    pub(super) killed: bool,
    /// The plugin has let go of it: when it is killed.
    pub(super) ends_ns: Option<u64>,
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
    /// It has a run.
    pub(super) taken: bool,
    pub(super) network: bool,
    pub(super) cpu_before_us: u64,
}

impl Run {
    pub(super) fn kill(&mut self) {
        // The kernel refuses only for a process that is not ours to kill, which this one is.
        let _ = sys::kill_by_pidfd(self.init.pidfd.as_fd());
        self.killed = true;
    }

    /// The plugin has closed its notice socket: nobody asks for the run any more.
    pub(super) fn let_go(&mut self, busy: bool) {
        if self.pooled.is_some() && !busy {
            self.ends_ns = Some(sys::now_ns() + LINGER_NS);
        } else {
            self.kill();
        }
    }

    /// Process 2 has ended: it is reaped, and with init everything goes that it has left behind.
    pub(super) fn program_ended(&mut self) {
        if let Some(program) = self.program.take() {
            let exit = program.reap();
            if !self.killed {
                self.exited = Some((exit.code, exit.signal));
            }
            self.program_exit = Some(exit);
            self.kill();
        }
    }

    pub(super) fn hear(&mut self) {
        let mut buf = [0; 4096];
        loop {
            match sys::read(self.report.as_fd(), &mut buf) {
                Ok(0) => self.report_over = true,
                Ok(n) => {
                    self.heard.extend_from_slice(&buf[..n]);
                    continue;
                }
                // Nothing there yet, or nothing to be read any more: then its end says so.
                Err(_) => {}
            }
            break;
        }
        while let Some(end) = self.heard.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = self.heard.drain(..=end).collect();
            match serde_json::from_slice(&line) {
                Ok(Report::Ready) => tell(self.notice.as_fd(), &Notice::Ready, None),
                Ok(Report::Failed { step, error }) => {
                    self.failed = Some(format!("isolation step {step}: {error}"))
                }
                Ok(Report::Exited { code, signal }) => self.exited = Some((code, signal)),
                Err(e) => self.failed = Some(format!("init said something strange: {e}")),
            }
        }
    }

    /// Processor time of the run so far.
    pub(super) fn cpu_us(&self) -> Option<u64> {
        let used = self.group.as_ref()?.cpu_us()?;
        Some(used.saturating_sub(self.pooled.as_ref().map_or(0, |p| p.cpu_before_us)))
    }

    /// Reaps both (they are dead or have been killed), tells the plugin and gives back what is to be cleared away.
    pub(super) fn finish(mut self) -> (Option<RunGroup>, Option<(OwnedFd, Pooled)>) {
        // First: init's end waits for it.
        self.program_ended();
        let mut exit = self.init.reap();
        if let Some(program) = self.program_exit {
            exit.cpu_us += program.cpu_us;
            exit.peak_rss_bytes = exit.peak_rss_bytes.max(program.peak_rss_bytes);
        }
        self.hear();
        if self.is_awaited() {
            let notice = match self.failed.take() {
                Some(message) => Notice::Failed { message },
                None => Notice::Ended(self.end(exit)),
            };
            tell(self.notice.as_fd(), &notice, None);
        }
        (self.group, self.pooled.map(|pooled| (self.notice, pooled)))
    }

    /// Whether the plugin wants to hear of its end. Mostly the answer has been given long before.
    fn is_awaited(&self) -> bool {
        let mut gone = [Poll::hung_up(self.notice.as_fd())];
        sys::poll(&mut gone, Some(0)).is_err() || !gone[0].is_ready()
    }

    fn end(&self, init: Exit) -> End {
        let used = self.group.as_ref().map(RunGroup::used).unwrap_or_default();
        // Without init's word the program was killed with it.
        let (exit_code, signal) = self.exited.unwrap_or((-1, init.signal));
        End {
            exit_code,
            signal,
            cpu_us: self.cpu_us().unwrap_or(init.cpu_us),
            peak_memory_bytes: used.peak_memory_bytes.unwrap_or(init.peak_rss_bytes),
            oom_kills: used.oom_kills,
            pids_refused: used.pids_refused,
            cpu_exhausted: self.cpu_exhausted,
            deadline_passed: self.deadline_passed,
        }
    }
}

pub(super) fn tell(notice: BorrowedFd<'_>, what: &Notice, pidfd: Option<BorrowedFd<'_>>) {
    let fds: Vec<BorrowedFd<'_>> = pidfd.into_iter().collect();
    // The plugin has let go of the run: then nobody needs to know.
    let _ = serde_json::to_vec(what).map(|text| sys::send_message(notice, &text, &fds));
}

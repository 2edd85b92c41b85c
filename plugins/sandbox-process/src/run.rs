//! One run, from the plugin's side: a thread that hands it to the launcher, serves its channel, takes its output and
//! ends it at the deadline, whatever it does.

mod compile;
mod ready;
mod tries;
mod ways;

use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use skillgate_plugin_sdk::model::{Error, RunRequest, RunResult};
use skillgate_plugin_sdk::{Host, Level, RunServices, abi};

use crate::answer::Fill as _;
use crate::channel::{Channel, Status};
use crate::supervisor::{Launcher, Silence};
use crate::sys::{self, Poll};
use crate::wire::{End, Notice};
pub(crate) use ready::Around;
pub(crate) use tries::run;
pub(crate) use ways::Ways;
use ways::{Child, Place, used_by_stuck};

const TARGET: &str = "sandbox_process::run";
/// After its result a run has this long to end by itself; then its namespace is ended.
const GRACE_NS: u64 = 100_000_000;
/// The answer of a run that has come to its deadline waits this long for its last process to be reaped. Contract: 100 ms.
const DEADLINE_WAIT_NS: u64 = 90_000_000;
/// The same for a run that is ended for another reason: nobody has been promised a time.
const END_WAIT_NS: u64 = 5_000_000_000;
/// For the end of a run whose launcher has died: only then is it known that it had not begun, and may be tried again. At least so
/// long, and at most, for as long as the run may last: a busy kernel takes its time to put away what a launcher had.
const LOST_WAIT_NS: RangeInclusive<u64> = 100_000_000..=2_000_000_000;
const OUTPUT_BYTES: usize = 64 << 10;
/// What a run says is first looked for so long after its begin: most runs have their result by then, and to be woken for
/// a line before it would take the processor from the run. A run that fills the pipe sooner waits.
const OUTPUT_LATER_NS: u64 = 2_000_000;
/// So much of what a run says is taken as it comes.
const OUTPUT_QUICK_BYTES: usize = 1 << 20;
/// What it says then, or what nobody wants, is taken from the pipe so often, [`OUTPUT_BYTES`] at a time: a run that says more waits,
/// and does not keep a processor of the plugin's busy.
const SLOW_EVERY_NS: u64 = 1_000_000;
/// What is taken from the pipe at the end: more than any pipe holds. A writer may live on for a moment.
const LAST_OUTPUT_BYTES_MAX: usize = 16 << 20;
/// A run that lasts longer is watched by the launcher too, should the plugin's thread be held up by the host.
const LAUNCHER_TOLD_NS: u64 = 10_000_000;

/// Why the plugin has ended a run.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    Timeout,
    Cancelled,
    /// It has given its result and did not end.
    Lingering,
    /// It has broken a rule of the channel.
    Broken(String),
}

/// What a run can be told from another thread.
#[derive(Debug)]
pub(crate) struct Handle {
    wake: OwnedFd,
}

impl Handle {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Handle {
            wake: sys::eventfd()?,
        })
    }

    /// Whether it has been told to end.
    fn is_cancelled(&self) -> bool {
        let mut told = [Poll::readable(self.wake.as_fd())];
        // What cannot be asked will be found out by the run itself.
        sys::poll(&mut told, Some(0)).is_ok() && told[0].is_ready()
    }

    /// Ends the run soon.
    pub(crate) fn cancel(&self) {
        // Full means that it has been told before.
        let _ = sys::write(self.wake.as_fd(), &1u64.to_ne_bytes());
    }
}

struct Running<'a> {
    host: &'a Host,
    services: &'a dyn RunServices,
    cancel: BorrowedFd<'a>,
    /// Of the launcher.
    silence: Arc<Silence>,
    channel: Channel<'a>,
    output: OwnedFd,
    output_open: bool,
    output_wanted: bool,
    output_bytes: usize,
    /// When more of it is taken.
    slow_ns: u64,
    /// Held until the answer is given, also where the run is killed: whoever is the last to let go of it waits for all who are
    /// reading in the kernel (`synchronize_rcu_expedited`), and among them may be runs that wait for a processor themselves.
    /// This and the next go before the notice socket, for whose end the launcher waits: then it removes the group, of which no
    /// file may be open, or the kernel remembers it.
    place: Option<Place>,
    child: Option<Child<'a>>,
    notice: OwnedFd,
    pidfd: Option<OwnedFd>,
    /// Something counts what it uses that outlives it.
    is_counted: bool,
    started_ns: u64,
    ready_ns: Option<u64>,
    deadline_ns: u64,
    result_ns: Option<u64>,
    verdict: Option<Verdict>,
    killed_ns: Option<u64>,
    buffer: Vec<u8>,
}

/// How the launcher's part ended.
enum Outcome {
    Ended(End),
    Failed(String),
    /// The launcher has closed the run's socket without a last word.
    LauncherLost,
    /// Killed, and not seen to end in time.
    Stuck,
    /// Told to end, since its end would not be seen: no descriptor was left here for what the launcher sent.
    Unwatched(io::Error),
}

impl<'a> Running<'a> {
    /// Whether nothing of the run has happened: a zygote's child that could not be made one's own, as its launcher says, or
    /// that had been killed while it waited, and has read no byte of the job.
    fn is_untouched(&self, outcome: &Outcome) -> bool {
        let has_not_begun = match outcome {
            // Said before its channel is closed, by which alone it is known what has been read.
            Outcome::Failed(_) => !self.channel.has_heard(),
            Outcome::Ended(_) => self.channel.is_unread(),
            // For another there would be no descriptors either.
            Outcome::LauncherLost | Outcome::Stuck | Outcome::Unwatched(_) => false,
        };
        self.child.is_some() && self.verdict.is_none() && has_not_begun
    }

    fn end(
        mut self,
        outcome: Outcome,
        request: &RunRequest,
        launcher: &Launcher,
    ) -> Result<(RunResult, Option<Running<'a>>), Error> {
        self.channel.abandon();
        if matches!(outcome, Outcome::LauncherLost) {
            // The kernel ends it with the launcher, unless its code has found a way to be spared.
            if let Some(pidfd) = &self.pidfd {
                let _ = sys::kill_by_pidfd(pidfd.as_fd());
            }
            // Only then is it known whether it had read its job.
            self.channel
                .hear_its_end(lost_wait_ns(self.deadline_ns, sys::now_ns()));
            launcher.has_lost_a_run();
        }
        if matches!(outcome, Outcome::Unwatched(_)) {
            self.channel
                .hear_its_end(lost_wait_ns(self.deadline_ns, sys::now_ns()));
        }
        let is_stuck = matches!(outcome, Outcome::Stuck | Outcome::Unwatched(_));
        let answer = self.answer(outcome, request);
        if is_stuck && let Some(pidfd) = &self.pidfd {
            // Its launcher should have done it and does nothing. Not before what the run has used is read, which goes with it.
            let _ = sys::kill_by_pidfd(pidfd.as_fd());
        }
        Ok((answer?, Some(self)))
    }

    /// The result of a zygote's child is there: what it has said and used until now is the run's. What is left of it is
    /// ended by the launcher, for which the answer does not wait.
    fn settle(&mut self) -> Option<Outcome> {
        let failed = self.channel.result.as_ref()?.status == Status::Failed;
        let child = self.child.as_ref()?;
        let Some(end) = child.used_so_far(failed) else {
            // Only its end tells what it has used.
            self.kill_now();
            return None;
        };
        Some(Outcome::Ended(end))
    }

    /// Without a verdict of its own.
    fn kill_now(&mut self) {
        // The launcher kills when this ends. It is the way where it has to see first what has been used, and while the pidfd
        // is still to come. Before the rest, so that the launcher never takes that end for an accident.
        let _ = sys::shut_down_writing(self.notice.as_fd());
        if self.is_counted
            && let Some(pidfd) = &self.pidfd
        {
            // It is ours to kill, and to be gone already is no error.
            let _ = sys::kill_by_pidfd(pidfd.as_fd());
        }
    }

    /// Until the run is over and everything that it said is here.
    fn attend(&mut self) -> Outcome {
        let outcome = loop {
            let now = sys::now_ns();
            if now >= self.tell_ns()
                && let Some(child) = &mut self.child
            {
                child.tell();
            }
            if now >= self.deadline_ns {
                self.kill(Verdict::Timeout);
            }
            if self.result_ns.is_some_and(|t| now >= t + GRACE_NS) {
                self.kill(Verdict::Lingering);
            }
            if self.stuck_ns().is_some_and(|t| now >= t) {
                // Whoever was held up here may have been told long ago.
                if let Some(outcome) = self.listen_to_all() {
                    break outcome;
                }
                let (waited_ns, level) = self.end_wait();
                let waited_ms = (waited_ns / 1_000_000).to_string();
                let said = "a run was killed and has not ended in time: its answer goes without";
                let fields = [("waited_ms", &*waited_ms)];
                self.host.log(level, TARGET, said, &fields);
                break Outcome::Stuck;
            }
            // Then nothing is waited for, but first it is looked whether the run is over.
            let at_once = self.verdict.is_none() && self.channel.has_frame();
            let patience = if at_once { 0 } else { self.patience(now) };
            let mut polls = [
                Poll::readable(self.notice.as_fd()),
                if self.output_open && now >= self.output_ns() {
                    Poll::readable(self.output.as_fd())
                } else {
                    Poll::nothing()
                },
                if self.verdict.is_some() {
                    Poll::nothing()
                } else {
                    self.channel.interest()
                },
                if self.verdict.is_some() {
                    Poll::nothing()
                } else {
                    Poll::readable(self.cancel)
                },
            ];
            if let Err(e) = sys::poll(&mut polls, Some(patience)) {
                self.kill(Verdict::Broken(format!(
                    "the plugin cannot wait for a run: {e}"
                )));
            }
            if polls[1].is_ready() {
                self.take_output();
            }
            if polls[2].is_ready()
                && let Some(outcome) = self.serve()
            {
                break outcome;
            }
            if polls[3].is_ready() {
                // The host cancels at the same deadline; then the reason is the deadline.
                let late = sys::now_ns().saturating_add(5_000_000) >= self.deadline_ns;
                self.kill(if late {
                    Verdict::Timeout
                } else {
                    Verdict::Cancelled
                });
            }
            if polls[0].is_ready()
                && let Some(outcome) = self.listen()
            {
                break outcome;
            }
            if at_once
                && self.verdict.is_none()
                && let Some(outcome) = self.serve()
            {
                break outcome;
            }
        };
        if matches!(outcome, Outcome::Ended(_)) && self.verdict.is_none() {
            self.serve_rest();
        }
        // Every writer is dead, or has said its last word: what is in the pipe and in the socket is all that counts.
        let mut left = LAST_OUTPUT_BYTES_MAX;
        while self.output_open && left > 0 && self.take_output() {
            left = left.saturating_sub(OUTPUT_BYTES);
        }
        if !matches!(self.verdict, Some(Verdict::Broken(_)))
            && let Err(broken) = self.channel.drain()
        {
            self.verdict.get_or_insert(Verdict::Broken(broken));
        }
        outcome
    }

    /// When the answer is given although a killed run has not been seen to end.
    fn stuck_ns(&self) -> Option<u64> {
        self.killed_ns.map(|t| t + self.end_wait().0)
    }

    /// How long the end of a run that was killed is waited for, and how grave it is that it has not come. At a deadline it is the
    /// answer that cannot wait: where more is to be done than the machine can that happens, and is nothing to look into.
    fn end_wait(&self) -> (u64, Level) {
        match self.verdict {
            Some(Verdict::Timeout) => (DEADLINE_WAIT_NS, Level::Warn),
            _ => (END_WAIT_NS, Level::Error),
        }
    }

    fn patience(&self, now: u64) -> u64 {
        let until = match (self.stuck_ns(), self.result_ns) {
            (Some(stuck), _) => stuck,
            (None, Some(result)) => self.deadline_ns.min(result + GRACE_NS),
            (None, None) => self.deadline_ns,
        };
        let output = Some(self.output_ns()).filter(|t| *t > now);
        until
            .min(self.tell_ns())
            .min(output.unwrap_or(u64::MAX))
            .saturating_sub(now)
    }

    /// When its output is looked for. It is a zygote's child that is quick.
    fn output_ns(&self) -> u64 {
        let first = match (&self.child, self.ready_ns) {
            (Some(_), Some(ready)) => ready + OUTPUT_LATER_NS,
            _ => 0,
        };
        first.max(self.slow_ns)
    }

    /// When the launcher hears of it.
    fn tell_ns(&self) -> u64 {
        match &self.child {
            Some(child) if !child.told => {
                (self.ready_ns.unwrap_or(0) + LAUNCHER_TOLD_NS).max(child.tell_again_ns)
            }
            _ => u64::MAX,
        }
    }

    /// Ends everything of the run. The first reason counts.
    fn kill(&mut self, verdict: Verdict) {
        if self.killed_ns.is_some() {
            return;
        }
        self.killed_ns = Some(sys::now_ns());
        self.verdict.get_or_insert(verdict);
        self.kill_now();
    }

    /// Reads once; `false` when there was nothing.
    fn take_output(&mut self) -> bool {
        self.buffer.clear();
        match sys::read_more(self.output.as_fd(), &mut self.buffer, OUTPUT_BYTES) {
            Ok(0) => self.output_open = false,
            Ok(_) => {
                self.output_bytes += self.buffer.len();
                if self.output_wanted {
                    self.output_wanted = self.services.output(abi::STDOUT, &self.buffer);
                }
                if !self.output_wanted || self.output_bytes > OUTPUT_QUICK_BYTES {
                    self.slow_ns = sys::now_ns() + SLOW_EVERY_NS;
                }
                return true;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => return true,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => self.output_open = false,
        }
        false
    }

    fn serve(&mut self) -> Option<Outcome> {
        let untold = self.child.as_mut().filter(|child| !child.told);
        // However long the store takes, somebody watches the run meanwhile.
        let asked = || untold.into_iter().for_each(Child::tell);
        if let Err(broken) = self.channel.attend(asked) {
            self.kill(Verdict::Broken(broken));
        }
        if self.channel.result.is_some() {
            self.result_ns.get_or_insert_with(sys::now_ns);
        }
        self.settle()
    }

    /// What it had asked the store for when it ended by itself, as far as that is here: while it might have gone on.
    fn serve_rest(&mut self) {
        self.channel.hears_nothing();
        while self.channel.has_frame() && sys::now_ns() < self.deadline_ns {
            let mut cancel = [Poll::readable(self.cancel)];
            if sys::poll(&mut cancel, Some(0)).is_err() || cancel[0].is_ready() {
                return;
            }
            if let Err(broken) = self.channel.attend(|| ()) {
                self.verdict = Some(Verdict::Broken(broken));
                return;
            }
        }
    }

    /// What the launcher has said already.
    fn listen_to_all(&mut self) -> Option<Outcome> {
        loop {
            let mut said = [Poll::readable(self.notice.as_fd())];
            if sys::poll(&mut said, Some(0)).is_err() || !said[0].is_ready() {
                return None;
            }
            if let Some(outcome) = self.listen() {
                return Some(outcome);
            }
        }
    }

    /// What the launcher says; the last word is an outcome.
    fn listen(&mut self) -> Option<Outcome> {
        let mut buf = [0; 8192];
        let (n, mut fds) = match sys::receive_message(self.notice.as_fd(), &mut buf) {
            Ok(Some(message)) => message,
            Err(e) if sys::is_lack_of_files(&e) => {
                self.kill_now();
                return Some(Outcome::Unwatched(e));
            }
            Ok(None) | Err(_) => return Some(Outcome::LauncherLost),
        };
        self.silence.end();
        match serde_json::from_slice(&buf[..n]) {
            Ok(Notice::Started) => {
                self.pidfd = fds.pop();
                if self.killed_ns.is_some() {
                    // Stopped before it was there.
                    self.kill_now();
                }
                None
            }
            Ok(Notice::Listening) => {
                let served = match fds.pop() {
                    Some(listener) => self.services.gate_serve(listener),
                    None => Err(Error::new(abi::E_INTERNAL, "no listener came")),
                };
                if let Err(e) = served {
                    // A run that was promised a way out is not left without one.
                    self.host.log(
                        Level::Error,
                        TARGET,
                        "the host does not serve a run's gate",
                        &[("error", &e.message)],
                    );
                    self.kill(Verdict::Broken("its gate could not be opened".into()));
                }
                None
            }
            Ok(Notice::Ready) => {
                self.ready_ns = Some(sys::now_ns());
                None
            }
            Ok(Notice::Failed { message }) => Some(Outcome::Failed(message)),
            Ok(Notice::Ended(end)) => Some(Outcome::Ended(match &self.child {
                Some(child) => child.ended(end),
                None => end,
            })),
            Err(e) => Some(Outcome::Failed(format!(
                "the launcher said something strange: {e}"
            ))),
        }
    }

    fn answer(&mut self, outcome: Outcome, request: &RunRequest) -> Result<RunResult, Error> {
        // What has asked for blobs, or given a result, has run, whatever the launcher could still say of it.
        let unless_heard = |error: Error| match self.channel.has_heard() {
            true => error,
            false => error.not_executed(),
        };
        let is_known = self.channel.result.is_some() || self.verdict.is_some();
        let outcome = match outcome {
            // What it had said before, or was ended for, is how it ended, whoever has died since.
            Outcome::LauncherLost | Outcome::Unwatched(_) if is_known => Outcome::Stuck,
            Outcome::Unwatched(e) if !self.channel.is_unread() => {
                self.verdict = Some(Verdict::Broken(unwatched(&e)));
                Outcome::Stuck
            }
            other => other,
        };
        let end = match outcome {
            Outcome::Ended(end) => end,
            Outcome::Stuck => End {
                exit_code: -1,
                signal: libc::SIGKILL,
                ..used_by_stuck(self.child.as_ref(), self.pidfd.as_ref())
            },
            Outcome::Failed(_) if self.verdict.is_some() => End {
                exit_code: -1,
                ..End::default()
            },
            Outcome::Failed(message) => {
                let error = Error::new(
                    abi::E_UNAVAILABLE,
                    format!("cannot isolate a run: {message}"),
                );
                return Err(unless_heard(error.retryable(100)));
            }
            // It has read nothing of its job.
            Outcome::Unwatched(e) => {
                let error = Error::new(abi::E_UNAVAILABLE, unwatched(&e));
                return Err(error.not_executed().retryable(100));
            }
            Outcome::LauncherLost => {
                let error = Error::new(
                    abi::E_UNAVAILABLE,
                    "the launcher of runs has died, or had no descriptors left for this run",
                )
                .retryable(100);
                // It may have begun without a word: it had its job in any case, and who says that it has not is gone.
                return Err(match self.channel.is_unread() {
                    true => error.not_executed(),
                    false => error,
                });
            }
        };
        let ready_ns = self.ready_ns.unwrap_or_else(sys::now_ns);
        let mut result = RunResult {
            output_blobs: std::mem::take(&mut self.channel.blobs),
            exit_code: end.exit_code,
            signal: end.signal,
            create_us: (ready_ns - self.started_ns) / 1000,
            exec_us: self
                .result_ns
                .unwrap_or_else(sys::now_ns)
                .saturating_sub(ready_ns)
                / 1000,
            cpu_us: end.cpu_us,
            peak_memory_bytes: end.peak_memory_bytes,
            ..RunResult::default()
        };
        let guest = self.channel.result.take();
        if end.deadline_passed {
            self.verdict.get_or_insert(Verdict::Timeout);
        }
        match (&self.verdict, guest) {
            (Some(Verdict::Broken(why)), _) => result.fail(
                abi::RUN_SANDBOX_ERROR,
                format!("the run was stopped: {why}"),
            ),
            (_, Some(guest)) => result.take(guest, request, &end),
            (Some(Verdict::Timeout), None) => {
                result.fail(
                    abi::RUN_TIMEOUT,
                    format!(
                        "the run was stopped at its limit of {} ms",
                        request.limits.wall_ms
                    ),
                );
            }
            (Some(Verdict::Cancelled), None) => {
                result.fail(abi::RUN_CANCELLED, "the run was cancelled".into())
            }
            (Some(Verdict::Lingering) | None, None) => result.died(request, &end),
        }
        result.lost_one_for_memory(request, &end);
        Ok(result)
    }
}

fn unwatched(why: &io::Error) -> String {
    format!("it could not be watched: {why}")
}

fn lost_wait_ns(deadline_ns: u64, now_ns: u64) -> u64 {
    let left_ns = deadline_ns.saturating_sub(now_ns);
    left_ns.clamp(*LOST_WAIT_NS.start(), *LOST_WAIT_NS.end())
}

#[cfg(test)]
mod tests;

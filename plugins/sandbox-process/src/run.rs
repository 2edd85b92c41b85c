//! One run, from the plugin's side: a thread that hands it to the launcher, serves its channel, takes its output and
//! ends it at the deadline, whatever it does.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use skillgate_plugin_sdk::model::{Error, RunRequest, RunResult};
use skillgate_plugin_sdk::{Host, Level, RunServices, abi};

use crate::channel::{Channel, GuestResult, Status};
use crate::supervisor::Launcher;
use crate::sys::{self, Poll};
use crate::wire::{End, MESSAGE_BYTES_MAX, Notice, RunSpec};
use crate::{job, mounts};

const TARGET: &str = "sandbox_process::run";
/// After its result a run has this long to end by itself; then its namespace is ended.
const GRACE_NS: u64 = 20_000_000;
/// The answer of a run that was stopped waits this long for its last process to be reaped. Contract: 100 ms.
const STOP_WAIT_NS: u64 = 90_000_000;
const OUTPUT_BYTES: usize = 64 << 10;
const SUMMARY_BYTES_MAX: usize = 4096;
const TYPE_BYTES_MAX: usize = 256;
const MESSAGE_TEXT_BYTES_MAX: usize = 64 << 10;

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
    channel: Channel<'a>,
    output: OwnedFd,
    output_open: bool,
    output_wanted: bool,
    notice: OwnedFd,
    pidfd: Option<OwnedFd>,
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
    LauncherDied,
    /// Killed, and not seen to end in time.
    Stuck,
}

/// From the request to the answer.
pub(crate) fn run(
    mut request: RunRequest,
    services: &dyn RunServices,
    handle: &Handle,
    launcher: &Arc<Launcher>,
    host: &Host,
    state_dir: &Path,
) -> Result<RunResult, Error> {
    let started_ns = sys::now_ns();
    check(&request)?;
    let prepared = mounts::prepare(
        std::mem::take(&mut request.mounts),
        &request.run_id,
        state_dir,
        services,
    )?;
    let job = job::frame(&request, &prepared.blobs, services)?;
    let unavailable = |e: io::Error| {
        Error::new(abi::E_UNAVAILABLE, format!("cannot start a run: {e}"))
            .not_executed()
            .retryable(100)
    };

    let (output, output_in) = sys::pipe().map_err(unavailable)?;
    let (channel, channel_in) = sys::socketpair(libc::SOCK_STREAM).map_err(unavailable)?;
    let (notice, notice_in) = sys::socketpair(libc::SOCK_SEQPACKET).map_err(unavailable)?;
    sys::set_nonblocking(output.as_fd()).map_err(unavailable)?;
    let channel =
        Channel::new(channel, &job.0, prepared.blobs.clone(), services).map_err(unavailable)?;
    drop(job);
    let limits = &request.limits;
    let deadline_ns = sys::now_ns().saturating_add(limits.wall_ms.saturating_mul(1_000_000));
    let spec = RunSpec {
        run_id: request.run_id.clone(),
        deadline_ns,
        max_pids: limits.max_pids,
        cpu_ms: limits.cpu_ms,
        memory_bytes: limits.memory_bytes,
        disk_bytes: limits.disk_bytes,
        disk_inodes: limits.disk_inodes,
        mounts: prepared.specs.clone(),
    };
    let message = serde_json::to_vec(&spec).map_err(|e| unavailable(e.into()))?;
    if message.len() > MESSAGE_BYTES_MAX {
        return Err(Error::new(
            abi::E_INVALID_ARGUMENT,
            "the paths of the run's mounts are too long together",
        )
        .not_executed());
    }
    if let Err(e) = sys::send_message(
        launcher.control.as_fd(),
        &message,
        &[output_in.as_fd(), channel_in.as_fd(), notice_in.as_fd()],
    ) {
        launcher.mark_dead();
        return Err(unavailable(e));
    }
    drop((output_in, channel_in, notice_in));

    let mut running = Running {
        host,
        services,
        cancel: handle.wake.as_fd(),
        channel,
        output,
        output_open: true,
        output_wanted: true,
        notice,
        pidfd: None,
        started_ns,
        ready_ns: None,
        deadline_ns,
        result_ns: None,
        verdict: None,
        killed_ns: None,
        buffer: vec![0; OUTPUT_BYTES],
    };
    let outcome = running.attend();
    running.channel.abandon();
    if matches!(outcome, Outcome::LauncherDied) {
        launcher.mark_dead();
    }
    running.answer(outcome, &request)
}

fn check(request: &RunRequest) -> Result<(), Error> {
    let refuse = |code, message: String| Err(Error::new(code, message).not_executed());
    if request.language != "python" {
        return refuse(
            abi::E_INVALID_ARGUMENT,
            format!("language {:?}: this sandbox runs python", request.language),
        );
    }
    if request.network != abi::NET_NONE {
        return refuse(abi::E_UNIMPLEMENTED, "this sandbox has no network".into());
    }
    let id = &request.run_id;
    if id.is_empty()
        || id.len() > 128
        || !id
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
    {
        return refuse(
            abi::E_INVALID_ARGUMENT,
            format!("run id {id:?}: use letters, digits, `_` and `-`"),
        );
    }
    if request.limits.wall_ms == 0 || request.limits.max_pids == 0 {
        return refuse(
            abi::E_INVALID_ARGUMENT,
            "limits.wall_ms and limits.max_pids must be set".into(),
        );
    }
    Ok(())
}

impl Running<'_> {
    /// Until the run is over and everything that it said is here.
    fn attend(&mut self) -> Outcome {
        let outcome = loop {
            let now = sys::now_ns();
            if now >= self.deadline_ns {
                self.kill(Verdict::Timeout);
            }
            if self.result_ns.is_some_and(|t| now >= t + GRACE_NS) {
                self.kill(Verdict::Lingering);
            }
            if self.killed_ns.is_some_and(|t| now >= t + STOP_WAIT_NS) {
                self.host.log(
                    Level::Error,
                    TARGET,
                    "a run was killed and has not ended in time",
                    &[],
                );
                break Outcome::Stuck;
            }
            let mut polls = [
                Poll::readable(self.notice.as_fd()),
                if self.output_open {
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
            if let Err(e) = sys::poll(&mut polls, Some(self.patience(now))) {
                self.kill(Verdict::Broken(format!(
                    "the plugin cannot wait for a run: {e}"
                )));
            }
            if polls[1].is_ready() {
                self.take_output();
            }
            if polls[2].is_ready() {
                self.serve();
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
        };
        // Every writer is dead: what is left in the pipe and in the socket is all there will be.
        while self.output_open && self.take_output() {}
        if !matches!(self.verdict, Some(Verdict::Broken(_)))
            && let Err(broken) = self.channel.drain()
        {
            self.verdict = Some(Verdict::Broken(broken));
        }
        outcome
    }

    fn patience(&self, now: u64) -> u64 {
        let until = match (self.killed_ns, self.result_ns) {
            (Some(killed), _) => killed + STOP_WAIT_NS,
            (None, Some(result)) => self.deadline_ns.min(result + GRACE_NS),
            (None, None) => self.deadline_ns,
        };
        until.saturating_sub(now)
    }

    /// Ends everything of the run. The first reason counts.
    fn kill(&mut self, verdict: Verdict) {
        if self.killed_ns.is_some() {
            return;
        }
        self.killed_ns = Some(sys::now_ns());
        self.verdict.get_or_insert(verdict);
        if let Some(pidfd) = &self.pidfd {
            // It is ours to kill, and to be gone already is no error.
            let _ = sys::kill_by_pidfd(pidfd.as_fd());
        }
        // The launcher kills when this ends; it is also the way while the pidfd is still to come.
        let _ = sys::shut_down_writing(self.notice.as_fd());
    }

    /// Reads once; `false` when there was nothing.
    fn take_output(&mut self) -> bool {
        match sys::read(self.output.as_fd(), &mut self.buffer) {
            Ok(0) => self.output_open = false,
            Ok(n) => {
                if self.output_wanted {
                    self.output_wanted = self.services.output(abi::STDOUT, &self.buffer[..n]);
                }
                return true;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => return true,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => self.output_open = false,
        }
        false
    }

    fn serve(&mut self) {
        if let Err(broken) = self.channel.attend() {
            self.kill(Verdict::Broken(broken));
        }
        if self.channel.result.is_some() {
            self.result_ns.get_or_insert_with(sys::now_ns);
        }
    }

    /// What the launcher says; the last word is an outcome.
    fn listen(&mut self) -> Option<Outcome> {
        let mut buf = [0; 8192];
        let (n, mut fds) = match sys::receive_message(self.notice.as_fd(), &mut buf) {
            Ok(Some(message)) => message,
            Ok(None) | Err(_) => return Some(Outcome::LauncherDied),
        };
        match serde_json::from_slice(&buf[..n]) {
            Ok(Notice::Started) => {
                self.pidfd = fds.pop();
                if let (Some(_), Some(pidfd)) = (self.killed_ns, &self.pidfd) {
                    // Stopped before it was there.
                    let _ = sys::kill_by_pidfd(pidfd.as_fd());
                }
                None
            }
            Ok(Notice::Ready) => {
                self.ready_ns = Some(sys::now_ns());
                None
            }
            Ok(Notice::Failed { message }) => Some(Outcome::Failed(message)),
            Ok(Notice::Ended(end)) => Some(Outcome::Ended(end)),
            Err(e) => Some(Outcome::Failed(format!(
                "the launcher said something strange: {e}"
            ))),
        }
    }

    fn answer(mut self, outcome: Outcome, request: &RunRequest) -> Result<RunResult, Error> {
        let end = match outcome {
            Outcome::Ended(end) => end,
            Outcome::Stuck => End {
                exit_code: -1,
                signal: libc::SIGKILL,
                ..End::default()
            },
            Outcome::Failed(_)
                if matches!(self.verdict, Some(Verdict::Timeout | Verdict::Cancelled)) =>
            {
                End {
                    exit_code: -1,
                    ..End::default()
                }
            }
            Outcome::Failed(message) => {
                return Err(Error::new(
                    abi::E_UNAVAILABLE,
                    format!("cannot isolate a run: {message}"),
                )
                .not_executed()
                .retryable(100));
            }
            Outcome::LauncherDied => {
                let error = Error::new(
                    abi::E_UNAVAILABLE,
                    "the launcher of runs has died, and this run with it",
                )
                .retryable(100);
                return Err(if self.ready_ns.is_none() {
                    error.not_executed()
                } else {
                    error
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
        match (&self.verdict, guest) {
            (Some(Verdict::Broken(why)), _) => result.fail(
                abi_words::SANDBOX_ERROR,
                format!("the run was stopped: {why}"),
            ),
            (_, Some(guest)) => result.take(guest, request, &end),
            (Some(Verdict::Timeout), None) => {
                result.fail(
                    abi_words::TIMEOUT,
                    format!(
                        "the run was stopped at its limit of {} ms",
                        request.limits.wall_ms
                    ),
                );
            }
            (Some(Verdict::Cancelled), None) => {
                result.fail(abi_words::CANCELLED, "the run was cancelled".into())
            }
            (Some(Verdict::Lingering) | None, None) => result.died(request, &end),
        }
        Ok(result)
    }
}

/// `SKG_RUN_*`: what a run is said to have failed of when the sandbox ended it.
mod abi_words {
    pub(super) const TIMEOUT: &str = "Timeout";
    pub(super) const OUT_OF_MEMORY: &str = "OutOfMemory";
    pub(super) const TOO_MANY_PROCESSES: &str = "TooManyProcesses";
    pub(super) const DISK_FULL: &str = "DiskFull";
    pub(super) const CANCELLED: &str = "Cancelled";
    pub(super) const SANDBOX_ERROR: &str = "SandboxError";
}

trait Fill {
    fn fail(&mut self, kind: &str, message: String);
    fn take(&mut self, guest: GuestResult, request: &RunRequest, end: &End);
    fn died(&mut self, request: &RunRequest, end: &End);
}

impl Fill for RunResult {
    fn fail(&mut self, kind: &str, message: String) {
        self.completed = false;
        self.error_type = kind.into();
        self.error_message = message;
    }

    /// What the guest said, within its limits.
    fn take(&mut self, guest: GuestResult, request: &RunRequest, end: &End) {
        self.summary = cut(guest.summary.unwrap_or_default(), SUMMARY_BYTES_MAX);
        match (guest.status, guest.error) {
            (Status::Completed, _) => {
                let output = guest
                    .output
                    .map(|o| o.get().as_bytes().to_vec())
                    .unwrap_or_default();
                if output.len() as u64 > request.limits.output_bytes {
                    return self.fail(
                        abi_words::SANDBOX_ERROR,
                        format!(
                            "the run sent {} bytes of output past its limit of {}",
                            output.len(),
                            request.limits.output_bytes
                        ),
                    );
                }
                if guest.spilled && (self.output_blobs.is_empty() || !output.is_empty()) {
                    return self.fail(
                        abi_words::SANDBOX_ERROR,
                        "the run says that its output is a blob and there is none".into(),
                    );
                }
                self.completed = true;
                self.output_spilled = guest.spilled;
                self.output_json = output;
            }
            (Status::Failed, None) => self.fail(
                abi_words::SANDBOX_ERROR,
                "the run failed and did not say how".into(),
            ),
            (Status::Failed, Some(error)) => {
                let kind = cut(
                    error.kind.lines().next().unwrap_or_default().to_owned(),
                    TYPE_BYTES_MAX,
                );
                let message = cut(error.message, MESSAGE_TEXT_BYTES_MAX);
                let refused = matches!(
                    kind.as_str(),
                    "BlockingIOError" | "RuntimeError" | "OSError"
                ) && end.pids_refused > 0;
                let full = kind == "OSError" && message.contains("[Errno 28]");
                if refused {
                    self.fail(
                        abi_words::TOO_MANY_PROCESSES,
                        format!(
                            "the run reached its limit of {} processes and threads\n{message}",
                            request.limits.max_pids
                        ),
                    );
                } else if full {
                    self.fail(
                        abi_words::DISK_FULL,
                        format!(
                            "the run filled its {} bytes or {} files\n{message}",
                            request.limits.disk_bytes, request.limits.disk_inodes
                        ),
                    );
                } else {
                    self.fail(
                        if kind.is_empty() {
                            abi_words::SANDBOX_ERROR
                        } else {
                            &kind
                        },
                        message,
                    );
                }
            }
        }
    }

    /// It ended without a result.
    fn died(&mut self, request: &RunRequest, end: &End) {
        let limits = &request.limits;
        if end.cpu_exhausted || end.signal == libc::SIGXCPU {
            self.fail(
                abi_words::TIMEOUT,
                format!(
                    "the run has used its {} ms of processor time",
                    limits.cpu_ms
                ),
            );
        } else if end.oom_kills > 0 {
            self.fail(
                abi_words::OUT_OF_MEMORY,
                format!(
                    "the run needed more than its {} bytes of memory",
                    limits.memory_bytes
                ),
            );
        } else if end.signal != 0 {
            self.fail(
                abi_words::SANDBOX_ERROR,
                format!(
                    "the interpreter was ended by signal {} before it gave a result",
                    end.signal
                ),
            );
        } else {
            self.fail(
                abi_words::SANDBOX_ERROR,
                format!(
                    "the interpreter ended with exit code {} before it gave a result",
                    end.exit_code
                ),
            );
        }
    }
}

/// At most `bytes_max` bytes, never through a character.
fn cut(mut text: String, bytes_max: usize) -> String {
    if text.len() > bytes_max {
        let end = (0..=bytes_max)
            .rev()
            .find(|i| text.is_char_boundary(*i))
            .unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}

//! The process between the kit and a case: it ends the case that hangs, and whatever a case leaves behind.
//!
//! A process that a plugin starts may make a session of its own, or outlive its parent twice over: neither a process group
//! nor the parent's pid finds it then. This process is the subreaper of all of them (`PR_SET_CHILD_SUBREAPER`): an orphan
//! becomes its child. It loads nothing, so a plugin can neither crash nor hang it.
//!
//! Its standard input is a pipe whose other end is the kit's. When that is closed, by the kit or because there is no kit any
//! more, however it has ended, the case is over: then this process ends it, and removes its directory too.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, kill_process, kill_process_group, pidfd_open,
    set_child_subreaper, wait,
};
use serde::{Deserialize, Serialize};

use crate::KitError;
use crate::process_state::children;
use crate::run::JOB;

/// Names of its files in a case's directory: its orders, and how the case ended.
pub(crate) const ORDERS: &str = "watchdog.json";
const END: &str = "end.json";
/// The case's own: a byte for each second that it has waited for answers which came.
pub(crate) const ANSWERED: &str = "answered";

/// How long what a case leaves behind may take to end by itself: a sandbox's helper removes control groups.
const GRACE: Duration = Duration::from_secs(2);
/// How long it may take when it was killed.
const KILLED_LIMIT: Duration = Duration::from_secs(10);
/// Longest that it takes to end a case, with all that this has started.
pub(crate) const END_LIMIT: Duration = GRACE.saturating_add(KILLED_LIMIT.saturating_mul(2));
/// Between two looks at what is left.
const LOOK: Duration = Duration::from_millis(2);

/// What it is to do, as a file.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Orders {
    pub(crate) program: PathBuf,
    pub(crate) case_args: Vec<OsString>,
    /// Longest that the case may take, in milliseconds, beside what it waits for answers.
    pub(crate) limit_ms: u64,
    /// Most that it may take for these.
    pub(crate) answers_ms_max: u64,
}

impl Orders {
    /// Longest that the watchdog itself takes.
    pub(crate) fn limit(&self) -> Duration {
        Duration::from_millis(self.limit_ms)
            + Duration::from_millis(self.answers_ms_max)
            + END_LIMIT
    }

    /// Longest that the case of this directory may take, as it is known by now. A store that is far away takes its time for
    /// each of many calls, which is no hanging.
    fn case_limit(&self, dir: &Path) -> Duration {
        // One that has no such file has waited for nothing.
        let answered_s = std::fs::metadata(dir.join(ANSWERED)).map_or(0, |file| file.len());
        let answered_ms = answered_s.saturating_mul(1000).min(self.answers_ms_max);
        Duration::from_millis(self.limit_ms) + Duration::from_millis(answered_ms)
    }
}

/// How a case's process has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum End {
    Code(i32),
    Signal(i32),
    /// It was killed: it took longer than so many milliseconds.
    Hung(u64),
}

impl End {
    fn of(status: ExitStatus) -> End {
        match status.signal() {
            Some(signal) => End::Signal(signal),
            None => End::Code(status.code().unwrap_or_default()),
        }
    }

    /// How the case of this directory has ended; `watchdog` is how its watchdog has.
    pub(crate) fn read(dir: &Path, watchdog: Option<ExitStatus>) -> Result<End, KitError> {
        match watchdog {
            Some(status) if status.success() => {
                let words = std::fs::read(dir.join(END)).map_err(KitError::os("read an end"))?;
                serde_json::from_slice(&words).map_err(|error| KitError::Words { what: END, error })
            }
            status => {
                let how = status.map_or("hangs".to_owned(), |status| status.to_string());
                let error = std::io::Error::other(format!("its watchdog: {how}"));
                Err(KitError::os("watch a case")(error))
            }
        }
    }
}

/// What the watchdog does: runs the case beside its orders, and leaves nothing of it but files.
pub(crate) fn run(orders: &Path) -> Result<(), KitError> {
    let words = std::fs::read(orders).map_err(KitError::os("read a watchdog's orders"))?;
    let of: Orders = serde_json::from_slice(&words).map_err(|error| KitError::Words {
        what: ORDERS,
        error,
    })?;
    let dir = orders.parent().unwrap_or(Path::new("."));
    set_child_subreaper(Some(getpid()))
        .map_err(|errno| KitError::os("become a subreaper")(errno.into()))?;
    let child = Command::new(&of.program)
        .args(&of.case_args)
        .arg(dir.join(JOB))
        .stdin(Stdio::null())
        // A signal to the whole group of a case is not one to its watchdog.
        .process_group(0)
        .spawn()
        .map_err(KitError::os(format!("start {}", of.program.display())))?;
    let kit = std::io::stdin();
    let limit = || of.case_limit(dir);
    let watched = watch(child, limit, Some(kit.as_fd()));
    let (waited, status) = watched.map_err(KitError::os("wait for a case"))?;
    let left = end_orphans().map_err(KitError::os("end what a case has left"));
    // It may also have gone only now. Nobody waits for an end then, and nobody else removes what is there.
    if is_closed(kit.as_fd()).map_err(KitError::os("look for the kit"))? {
        drop(std::fs::remove_dir_all(dir));
        return left;
    }
    left?;
    let end = match waited {
        Waited::Ended => End::of(status),
        Waited::TooLong | Waited::Over => {
            End::Hung(u64::try_from(limit().as_millis()).unwrap_or(u64::MAX))
        }
    };
    let words = serde_json::to_vec(&end).map_err(|error| KitError::Words { what: END, error })?;
    std::fs::write(dir.join(END), words).map_err(KitError::os("write an end"))
}

/// How it ends to wait for a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waited {
    Ended,
    TooLong,
    /// Somebody has closed the other end of the pipe.
    Over,
}

/// Waits for a child, no longer than `limit` says, nor than the other end of `pipe` is open; then it is killed. Whatever else is
/// in its process group is killed in any case.
pub(crate) fn watch(
    mut child: Child,
    limit: impl Fn() -> Duration,
    pipe: Option<BorrowedFd<'_>>,
) -> std::io::Result<(Waited, ExitStatus)> {
    let group = Pid::from_child(&child);
    let waited = wait_for(group, limit, pipe);
    // ESRCH: nobody is left.
    let _ = kill_process_group(group, Signal::KILL);
    let status = child.wait()?;
    Ok((waited?, status))
}

/// Waits for a process, which stays to be waited for, and sees when the other end of `pipe` is closed. When the limit is
/// there it may have become another.
pub(crate) fn wait_for(
    pid: Pid,
    limit: impl Fn() -> Duration,
    pipe: Option<BorrowedFd<'_>>,
) -> std::io::Result<Waited> {
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    let began = Instant::now();
    loop {
        let left = limit().saturating_sub(began.elapsed());
        let is_due = left.is_zero();
        let left = Timespec::try_from(left).map_err(std::io::Error::other)?;
        let mut fds = vec![PollFd::new(&pidfd, PollFlags::IN)];
        // Of its end poll() tells unasked.
        fds.extend(pipe.map(|pipe| PollFd::from_borrowed_fd(pipe, PollFlags::empty())));
        match poll(&mut fds, Some(&left)) {
            Ok(0) if is_due => return Ok(Waited::TooLong),
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) if fds[0].revents().is_empty() => return Ok(Waited::Over),
            Ok(_) => return Ok(Waited::Ended),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Is the other end of this pipe closed?
fn is_closed(pipe: BorrowedFd<'_>) -> std::io::Result<bool> {
    let mut fds = [PollFd::from_borrowed_fd(pipe, PollFlags::empty())];
    let at_once = Timespec::default();
    Ok(retry_on_intr(|| poll(&mut fds, Some(&at_once)))? > 0)
}

/// Waits until this process has no children: for those that do not end by themselves, kills them. What a killed one had
/// below it becomes a child in turn.
fn end_orphans() -> std::io::Result<()> {
    let began = Instant::now();
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(None) => {}
            Ok(Some(_)) | Err(Errno::INTR) => continue,
            Err(Errno::CHILD) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
        if began.elapsed() > GRACE + KILLED_LIMIT {
            let left: Vec<_> = children()?.into_iter().map(|(_, name)| name).collect();
            let left = format!("these do not end: {}", left.join(", "));
            return Err(std::io::Error::other(left));
        }
        if began.elapsed() > GRACE {
            for (pid, _) in children()? {
                // It may have ended by now, or be another user's: then the limit says so.
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        std::thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_that_is_answered_has_longer_and_not_for_ever() {
        let dir = tempfile::tempdir().unwrap();
        let of = Orders {
            program: PathBuf::new(),
            case_args: Vec::new(),
            limit_ms: 100,
            answers_ms_max: 1000,
        };
        let sleep = || Command::new("sleep").arg("0.6").spawn().unwrap();
        let watched = || {
            watch(sleep(), || of.case_limit(dir.path()), None)
                .unwrap()
                .0
        };
        assert_eq!(watched(), Waited::TooLong);
        let answered = |seconds| std::fs::write(dir.path().join(ANSWERED), vec![b'.'; seconds]);
        answered(1).unwrap();
        assert_eq!(watched(), Waited::Ended);
        answered(1000).unwrap();
        assert_eq!(of.case_limit(dir.path()), Duration::from_millis(1100));
    }

    #[test]
    fn a_limit_may_grow_while_it_is_waited_for() {
        let child = Command::new("sleep").arg("0.6").spawn().unwrap();
        let began = Instant::now();
        // More with every look: its calls are answered.
        let limit = || began.elapsed().min(Duration::from_secs(30)) + Duration::from_millis(50);
        assert_eq!(watch(child, limit, None).unwrap().0, Waited::Ended);
    }
}

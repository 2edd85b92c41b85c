//! What an interpreter says of itself, from a process that may hang, fail, or not be one.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use super::InterpreterError;
use crate::root::GUEST;
use crate::sys;

const ANSWER_BYTES_MAX: u64 = 8 << 20;
/// What is kept of an interpreter's stderr, of whose end one line is told.
const STDERR_BYTES_MAX: usize = 1024;
/// What is read of it at once.
const HEARD_BYTES: usize = 64 << 10;
/// What a pipe holds where pages are the largest that there are: sixteen of 64 KiB (pipe(7)).
const PIPE_BYTES_MAX: usize = 16 * HEARD_BYTES;

/// Runs `discover.py`. PATH and HOME go along for interpreters that are started by a shim.
pub(super) fn ask(
    path: &Path,
    guest: &[(String, String)],
    time: Duration,
) -> Result<String, InterpreterError> {
    let started = Instant::now();
    let keep = ["PATH", "HOME"]
        .into_iter()
        .filter_map(|n| Some((n, std::env::var_os(n)?)));
    let mut child = Command::new(path)
        .args(["-I", "-S", "-B", "-c", include_str!("discover.py")])
        .env_clear()
        .envs(keep)
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| InterpreterError::Start(path.into(), e))?;
    let mut complaints = Complaints::of(child.stderr.take());
    let guest: BTreeMap<&str, &str> = guest
        .iter()
        .map(|(n, t)| (n.as_str(), t.as_str()))
        .collect();
    let given = serde_json::json!({"directory": GUEST, "guest": guest}).to_string();
    // Apart, so that one that neither reads nor ends holds up nobody for longer than it may take. What it has started may have
    // both ends still when it has ended.
    let (stdin, out) = (child.stdin.take(), child.stdout.take());
    let (said, heard) = std::sync::mpsc::channel();
    // It reads to the end before it says anything long. If it has died, its exit code says so below.
    let writes = move || stdin.map(|mut stdin| stdin.write_all(given.as_bytes()));
    let reads = move || {
        let mut text = String::new();
        let read = out.map(|out| out.take(ANSWER_BYTES_MAX).read_to_string(&mut text));
        // Whoever has asked may have given up.
        let _ = said.send(read.is_some_and(|read| read.is_ok()).then_some(text));
    };
    let thread = || std::thread::Builder::new().name("skillgate-asks".into());
    let begun = thread().spawn(writes);
    if let Err(e) = begun.and_then(|_| thread().spawn(reads)) {
        end(&mut child);
        return Err(InterpreterError::Start(path.into(), e));
    }
    let status = loop {
        complaints.hear();
        let ended = match child.try_wait() {
            // Whoever has started the gateway ignores the end of children (SIGCHLD), and so the kernel does not say how this one
            // ended: its answer does.
            Err(e) if e.raw_os_error() == Some(libc::ECHILD) => break None,
            other => other.map_err(|e| InterpreterError::Start(path.into(), e))?,
        };
        match ended {
            Some(status) => break Some(status),
            None if started.elapsed() > time => {
                end(&mut child);
                return Err(InterpreterError::Slow(path.into()));
            }
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    complaints.hear_the_rest();
    if let Some(status) = status.filter(|status| !status.success()) {
        return Err(InterpreterError::Answer(
            path.into(),
            format!("it ended with {status}{}", complaints.last_line()),
        ));
    }
    let answer = heard
        .recv_timeout(time.saturating_sub(started.elapsed()))
        .map_err(|_| InterpreterError::Slow(path.into()))?;
    // Of one whose status is not known, or says nothing.
    answer.filter(|answer| !answer.is_empty()).ok_or_else(|| {
        let why = format!("it ended without an answer{}", complaints.last_line());
        InterpreterError::Answer(path.into(), why)
    })
}

fn end(child: &mut Child) {
    // Both can only fail when it is gone already.
    let _ = child.kill();
    let _ = child.wait();
}

/// What an interpreter says on stderr. It is read now and then, so that nobody waits for room there, and never waited for: what it
/// has started may have the other end still.
struct Complaints {
    from: Option<ChildStderr>,
    end: Vec<u8>,
}

impl Complaints {
    fn of(from: Option<ChildStderr>) -> Self {
        Complaints {
            // One that would be waited for is not read.
            from: from.filter(|from| sys::set_nonblocking(from.as_fd()).is_ok()),
            end: Vec::new(),
        }
    }

    /// Whether there was something.
    fn hear(&mut self) -> bool {
        let mut room = vec![0; HEARD_BYTES];
        let read = self
            .from
            .as_mut()
            .and_then(|from| from.read(&mut room).ok());
        self.end.extend_from_slice(&room[..read.unwrap_or(0)]);
        let before = self.end.len().saturating_sub(STDERR_BYTES_MAX);
        self.end.drain(..before);
        read.is_some_and(|bytes| bytes > 0)
    }

    /// Of one that has ended. What it has started may go on and on, and is not listened to for longer.
    fn hear_the_rest(&mut self) {
        let mut heard = 0;
        while heard < PIPE_BYTES_MAX && self.hear() {
            heard += HEARD_BYTES;
        }
    }

    /// With which Python says what was wrong; empty when nothing was said.
    fn last_line(&self) -> String {
        let text = String::from_utf8_lossy(&self.end);
        let last = text.lines().rev().map(str::trim).find(|it| !it.is_empty());
        last.map_or_else(String::new, |last| format!(": {last}"))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::os::unix::fs::MetadataExt as _;
    use std::os::unix::process::CommandExt as _;

    use rustix::process::{Resource, Rlimit, WaitOptions, getrlimit, setrlimit, wait};

    use super::super::Interpreter;
    use super::*;
    use crate::tools::{left_out, left_out_but_in_ci};

    pub(in crate::interpreter) fn make_shim(shim: &Path, script: &str) {
        // By another process: what is open for writing here, and in what another test starts, cannot be executed.
        let made = Command::new("sh")
            .args([
                "-c",
                "printf '#!/bin/sh\n%s\n' \"$1\" > \"$0\"; chmod +x \"$0\"",
            ])
            .args([shim.as_os_str(), script.as_ref()])
            .status();
        assert!(made.unwrap().success());
    }

    /// A shim that hangs, or that leaves something running, is said to be slow instead of holding up the start for ever.
    #[test]
    fn an_interpreter_that_does_not_answer_is_waited_for_no_longer_than_it_may_take() {
        let guest = [("large.py".to_owned(), "#".repeat(1 << 20))];
        let dir = tempfile::tempdir().unwrap();
        let shim = dir.path().join("python3");
        let stays = "while [ -e \"$0\" ]; do sleep 0.1; done";
        for script in [
            "exec sleep 100",
            &format!("cat > /dev/null; {stays} & exit 0"),
        ] {
            make_shim(&shim, script);
            let started = Instant::now();
            let answer = ask(&shim, &guest, Duration::from_millis(500));
            assert!(
                matches!(answer, Err(InterpreterError::Slow(_))),
                "{script}: {answer:?}"
            );
            assert!(started.elapsed() < Duration::from_secs(50), "{script}");
        }
    }

    /// A limit is a whole process's, and none is root's.
    #[test]
    fn an_interpreter_for_which_there_is_no_process_or_no_thread_is_an_error_and_leaves_none() {
        let program = std::env::current_exe().unwrap();
        let mut child = Command::new(&program);
        child.args(["--exact", "--ignored"]);
        child.arg("interpreter::ask::tests::child_without_threads");
        if rustix::process::geteuid().is_root() {
            let is_open = |at: &Path| at.metadata().unwrap().mode() & 0o001 != 0;
            if !program.ancestors().all(is_open) {
                return left_out("nobody but root reaches what was built");
            }
            child.uid(65534).gid(65534);
        }
        let output = match child.output() {
            // Root of a user namespace, which may have nobody else in it.
            Err(e) if matches!(e.raw_os_error(), Some(libc::EINVAL | libc::EPERM)) => {
                return left_out_but_in_ci(&format!("nobody else can be had here: {e}"));
            }
            output => output.unwrap(),
        };
        let said = String::from_utf8_lossy(&output.stdout);
        let passed = output.status.success() && said.contains("1 passed");
        assert!(passed, "{said}{}", String::from_utf8_lossy(&output.stderr));
    }

    /// More threads than a user has where this is tested: as many as a system has, as the kernel begins (`kernel.pid_max`).
    const ROOM_MAX: u64 = 1 << 15;

    #[test]
    #[ignore = "run by an_interpreter_for_which_there_is_no_process_or_no_thread_is_an_error_and_leaves_none"]
    fn child_without_threads() {
        let mut refused = 0;
        for room in 1..=ROOM_MAX {
            let current = Some(room);
            let maximum = getrlimit(Resource::Nproc).maximum;
            setrlimit(Resource::Nproc, Rlimit { current, maximum }).unwrap();
            // First there is no process for it, then no thread beside it, no second one, and in the end all that it takes.
            let answer = ask("/bin/true".as_ref(), &[], Duration::from_secs(20));
            let left = wait(WaitOptions::NOHANG);
            assert!(left.is_err(), "a process is left: {left:?}");
            match answer {
                Err(InterpreterError::Answer(..)) => return assert!(refused > 0),
                Err(InterpreterError::Start(_, error)) => {
                    assert_eq!(error.raw_os_error(), Some(libc::EAGAIN));
                    refused += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        panic!("there was no room for it at all, {refused} times");
    }

    #[test]
    fn an_interpreter_that_fails_is_told_with_its_last_line() {
        let dir = tempfile::tempdir().unwrap();
        let shim = dir.path().join("python3");
        let told = |script: &str| {
            make_shim(&shim, script);
            let why = Interpreter::discover(shim.to_str(), &[]).unwrap_err();
            why.to_string().replace(shim.to_str().unwrap(), "IT")
        };
        let silent = "the interpreter IT cannot be used: it ended with exit status: 3";
        assert_eq!(told("exit 3"), silent);
        let long = "head -c 1000000 /dev/zero | tr '\\0' x >&2; echo >&2";
        for script in [
            "{ echo Traceback; echo \"OSError: no more\"; echo; } >&2; exit 3",
            // More than anybody keeps, or most pipes hold.
            &format!("{long}; echo 'OSError: no more' >&2; exit 3"),
        ] {
            assert_eq!(told(script), format!("{silent}: OSError: no more"));
        }
        let empty = "the interpreter IT cannot be used: it ended without an answer";
        assert_eq!(told("exit 0"), empty);
        let complains = told("echo 'OSError: no more' >&2; exit 0");
        assert_eq!(complains, format!("{empty}: OSError: no more"));
        let line = told(&format!("{long}; exit 3"));
        assert_eq!(
            line,
            format!("{silent}: {}", "x".repeat(STDERR_BYTES_MAX - 1))
        );
    }
}

//! The trial in a process of its own.
//!
//! The parser of the rules takes time that doubles with each level of nesting, and a stack that it can overflow, which
//! ends a process; a thread could neither be ended nor contained. So a bundle is tried by a second process of this
//! program, with limits, that the gateway can lose. Only what has passed there is parsed here.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, Signal, setrlimit};
use serde::{Deserialize, Serialize};

use super::bundle::{Bundle, Files, lacks_room};
use super::trial::{self, Report};

/// The hidden command that the second process runs.
const COMMAND: [&str; 2] = ["policy", "trial"];
/// How long a trial may take. One of a large bundle (100,000 entries) takes about two seconds.
const WALL_MAX: Duration = Duration::from_secs(60);
/// Seconds of processor time of a trial.
const CPU_S_MAX: u64 = 60;
/// Memory of a trial in bytes of address space.
const MEMORY_BYTES_MAX: u64 = 8 << 30;
const SIGKILL: i32 = Signal::KILL.as_raw();
/// Bytes of a trial's report.
const REPORT_BYTES_MAX: u64 = 1 << 20;

/// What is tried: on the second process's standard input.
#[derive(Debug, Serialize, Deserialize)]
struct Task {
    place: String,
    instructions_max: u64,
    files: Vec<(String, String)>,
    left_out: Vec<String>,
}

/// What came of it: on its standard output.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Passed(Report),
    Refused(Vec<String>),
}

/// Why there is no verdict.
#[derive(Debug, thiserror::Error)]
enum NoVerdict {
    #[error("the trial could not be held, not because of what is in it: {0}")]
    NotHeld(#[from] std::io::Error),
    #[error(
        "its trial took longer than {} s: a rule or a literal in it is too complicated",
        WALL_MAX.as_secs()
    )]
    Late,
    /// By something else than the limits below: what is too large or too deep is ended by another signal, and what lasts is late.
    #[error(
        "its trial was killed, and again when it was repeated: not because of what is in it, but as a host does that lacks memory; make room and try again"
    )]
    Killed,
    #[error(
        "its trial ended early ({0}): a rule or a literal in it is nested too deep or too complicated"
    )]
    EndedEarly(ExitStatus),
}

impl NoVerdict {
    /// It says nothing of what is in the bundle: the machine had no room for the trial, and may have later. Not where it was killed:
    /// what takes more memory than there is would be tried for ever, beside the runs that need it.
    fn is_passing(&self) -> bool {
        matches!(self, NoVerdict::NotHeld(error) if lacks_room(error))
    }
}

/// Why a bundle has not passed.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) problems: Vec<String>,
    /// See [`BundleError::is_passing`](super::BundleError::is_passing).
    pub(super) is_passing: bool,
}

impl From<Vec<String>> for Failed {
    fn from(problems: Vec<String>) -> Self {
        Failed {
            problems,
            is_passing: false,
        }
    }
}

impl From<NoVerdict> for Failed {
    fn from(error: NoVerdict) -> Self {
        Failed {
            problems: vec![error.to_string()],
            is_passing: error.is_passing(),
        }
    }
}

/// Tries a bundle with `program`, this program itself.
pub(super) fn run(
    program: &Path,
    files: &Files,
    place: &str,
    instructions_max: u64,
) -> Result<Report, Failed> {
    let mut texts = Vec::with_capacity(files.contents.len());
    for (path, bytes) in &files.contents {
        match std::str::from_utf8(bytes) {
            Ok(text) => texts.push((path.clone(), text.to_owned())),
            Err(_) => return Err(vec![format!("{place}/{path}: is not UTF-8 text")].into()),
        }
    }
    let task = Task {
        place: place.to_owned(),
        instructions_max,
        files: texts,
        left_out: files.left_out.clone(),
    };
    let task: Arc<[u8]> = serde_json::to_vec(&task)
        .map_err(|error| NoVerdict::NotHeld(error.into()))?
        .into();
    // A change that is refused is not looked at again before the next one: what says nothing of the rules refuses none.
    let verdict = match hold(program, task.clone()) {
        Err(NoVerdict::Killed) => hold(program, task),
        verdict => verdict,
    };
    match verdict {
        Ok(Verdict::Passed(report)) => Ok(report),
        Ok(Verdict::Refused(problems)) => Err(problems.into()),
        Err(error) => Err(error.into()),
    }
}

fn hold(program: &Path, task: Arc<[u8]>) -> Result<Verdict, NoVerdict> {
    let mut child = Command::new(program)
        .args(COMMAND)
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let (send, receive) = mpsc::channel();
    let reads = move || {
        let mut report = Vec::new();
        let read = stdout.map(|stdout| stdout.take(REPORT_BYTES_MAX).read_to_end(&mut report));
        // Nobody waits any more when the time is over.
        let _ = send.send(read.is_some_and(|read| read.is_ok()).then_some(report));
    };
    let writes = move || {
        // A trial that has ended early does not read all of it; its end says so.
        stdin.map(|mut stdin| stdin.write_all(&task))
    };
    let thread = || std::thread::Builder::new().name("policy-trial".into());
    let begun = thread().spawn(reads);
    if let Err(error) = begun.and_then(|_| thread().spawn(writes)) {
        // It may have ended already.
        let _ = child.kill();
        child.wait()?;
        return Err(error.into());
    }
    let report = receive.recv_timeout(WALL_MAX);
    // It has said everything, or it is too late for it. How one ends that is ending already stays as it is.
    let _ = child.kill();
    let status = child.wait()?;
    let report = report.map_err(|_| NoVerdict::Late)?.unwrap_or_default();
    serde_json::from_slice(&report).map_err(|_| match status.signal() {
        Some(SIGKILL) => NoVerdict::Killed,
        _ => NoVerdict::EndedEarly(status),
    })
}

/// The second process: limits itself, reads the task, writes the verdict.
///
/// # Errors
/// What keeps it from that.
pub(crate) fn serve(out: &mut dyn std::io::Write) -> std::io::Result<()> {
    let limit = |resource, max| {
        let limit = Rlimit {
            current: Some(max),
            maximum: Some(max),
        };
        setrlimit(resource, limit).map_err(std::io::Error::from)
    };
    limit(Resource::Cpu, CPU_S_MAX)?;
    limit(Resource::As, MEMORY_BYTES_MAX)?;
    limit(Resource::Core, 0)?;
    // It writes to its pipe and to nothing else.
    limit(Resource::Fsize, 0)?;
    let task: Task = serde_json::from_reader(std::io::stdin().lock())?;
    let mut files = Files {
        contents: BTreeMap::new(),
        left_out: task.left_out,
    };
    for (path, text) in task.files {
        files
            .add(path, text.into_bytes())
            .map_err(std::io::Error::other)?;
    }
    let verdict = match Bundle::new(&files, &task.place) {
        Err(error) => Verdict::Refused(vec![error.to_string()]),
        Ok(bundle) => match trial::run(&bundle, task.instructions_max) {
            Ok(report) => Verdict::Passed(report),
            Err(problems) => Verdict::Refused(problems),
        },
    };
    serde_json::to_writer(&mut *out, &verdict)?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reload::tests::shortage::{alone_as_nobody, limit_threads_to};

    /// More threads than a user has where this is tested: as many as a system has, as the kernel begins (`kernel.pid_max`).
    const ROOM_MAX: u64 = 1 << 15;

    /// A program in the trial's place: it is killed so often, then it refuses.
    fn killed(times: u32) -> Failed {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("trial");
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/killed-trial");
        std::os::unix::fs::symlink(script, &program).unwrap();
        for nth in 0..times {
            std::fs::write(dir.path().join(format!("trial.{nth}")), "").unwrap();
        }
        run(&program, &Files::default(), "policies", 1000).unwrap_err()
    }

    #[test]
    fn a_trial_that_the_host_kills_is_repeated() {
        for times in 0..=1 {
            let Failed {
                problems,
                is_passing,
            } = killed(times);
            assert_eq!(problems, ["what it says"]);
            assert!(!is_passing, "it is refused");
        }
        let twice = killed(2);
        assert!(
            twice.problems[0].contains("as a host does that lacks memory"),
            "{twice:?}"
        );
        assert!(!twice.is_passing, "it may need more than there ever is");
    }

    #[test]
    fn a_program_that_is_not_there_does_not_come_by_waiting() {
        let nowhere = "/nowhere/at/all".as_ref();
        let failed = run(nowhere, &Files::default(), "p", 1000).unwrap_err();
        assert!(failed.problems[0].contains("No such file"), "{failed:?}");
        assert!(!failed.is_passing);
        for errno in crate::policy::bundle::NO_ROOM {
            let failed = Failed::from(NoVerdict::from(std::io::Error::from(errno)));
            assert!(failed.is_passing, "{failed:?}");
        }
    }

    #[test]
    fn a_trial_for_which_there_is_no_process_or_no_thread_refuses_no_rules() {
        alone_as_nobody("policy::child::tests::child_without_threads");
    }

    #[test]
    #[ignore = "run by a_trial_for_which_there_is_no_process_or_no_thread_refuses_no_rules, in a process of its own"]
    fn child_without_threads() {
        // First there is no process for it, then no thread beside it, no second one, and in the end all that it takes.
        let (mut errors, mut is_held) = (Vec::new(), false);
        for room in 1..=ROOM_MAX {
            limit_threads_to(Some(room));
            // One that says nothing, and begins nothing itself.
            let failed = run("/bin/true".as_ref(), &Files::default(), "p", 1000).unwrap_err();
            let left = rustix::process::wait(rustix::process::WaitOptions::NOHANG);
            assert!(left.is_err(), "a process is left: {left:?}");
            if !failed.is_passing {
                assert!(failed.problems[0].contains("ended early"), "{failed:?}");
                is_held = true;
                break;
            }
            errors.extend(failed.problems);
        }
        assert!(is_held, "{:?}", errors.last());
        assert!(!errors.is_empty());
        let no_room = |error: &String| error.contains("temporarily unavailable");
        assert!(errors.iter().all(no_room), "{errors:?}");
    }
}

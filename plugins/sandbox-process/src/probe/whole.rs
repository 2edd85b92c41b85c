//! Last of all, a run: with everything of a run's but a skill's code.

use std::io;
use std::os::fd::AsFd;

use skillgate_plugin_guest::BOOTSTRAP;

use super::{MOUNTS_ADVICE, missing, ok};
use crate::cgroup::{Groups, RunGroup};
use crate::interpreter::Interpreter;
use crate::isolate::{Ground, Isolation, Step};
use crate::launcher;
use crate::root::GUEST;
use crate::sys::{self, Fork, Poll};
use crate::wire::{Layer, LayerReport, MountSpec, Report, RunSpec};

/// How long the interpreter may take to start, the first time, from a cold disk.
const TRIAL_NS: u64 = 30_000_000_000;
/// Where the trial finds what it has mounted, which is the interpreter's library once more: as a run has its skills.
const MOUNTED: &str = "/skills/probe";

/// The whole way of a run, to the end of an interpreter that finds itself where it should be.
pub(super) fn whole(ground: &Ground, id: u32, groups: Option<&mut Groups>) -> LayerReport {
    match try_whole(ground, id, groups) {
        Ok(()) => started(&ground.interpreter),
        Err(trouble) => missing(Layer::Run, trouble.detail, trouble.advice),
    }
}

/// As safe where its library is not compiled, so no reason to call it degraded.
fn started(interpreter: &Interpreter) -> LayerReport {
    let detail = format!("Python {} starts isolated", interpreter.version);
    let Some((program, library)) = &interpreter.uncompiled else {
        return ok(Layer::Run, detail);
    };
    LayerReport {
        advice: format!(
            "`{program} -m compileall -q {library}`, as who may write there, and a restart: without it each run compiles anew what it imports of it, which takes several times as long"
        ),
        ..ok(
            Layer::Run,
            detail + "; its standard library is not compiled",
        )
    }
}

/// What the trial of the whole fails at.
struct Trouble {
    detail: String,
    advice: &'static str,
}

impl From<String> for Trouble {
    fn from(detail: String) -> Self {
        let advice = "see the detail; `interpreter` names another Python";
        Trouble { detail, advice }
    }
}

impl From<io::Error> for Trouble {
    fn from(e: io::Error) -> Self {
        e.to_string().into()
    }
}

impl Trouble {
    /// Of a step that has failed.
    fn at(step: &str, error: &str) -> Self {
        const PROC_ADVICE: &str = "in a container, a /proc of which nothing is masked (Docker's `--security-opt systempaths=unconfined`, Kubernetes' `procMount: Unmasked`): in a user namespace the kernel makes a run's own /proc only beside such a one";
        let refused = io::Error::from_raw_os_error(libc::EPERM).to_string();
        let detail = format!("isolation step {step}: {error}");
        if step == format!("{:?}", Step::Proc) && error == refused {
            let advice = PROC_ADVICE;
            return Trouble { detail, advice };
        }
        detail.into()
    }
}

fn trial_spec(interpreter: &Interpreter) -> io::Result<RunSpec> {
    let Some((_, library)) = interpreter.shown.first() else {
        return Err(io::Error::other("the interpreter has no library"));
    };
    let stat = sys::stat(sys::open(library, libc::O_PATH)?.as_fd())?;
    let mount = MountSpec {
        target: MOUNTED.into(),
        path: library.clone(),
        dev: stat.dev,
        ino: stat.ino,
    };
    Ok(RunSpec {
        run_id: "run_probe".into(),
        deadline_ns: u64::MAX,
        max_pids: 8,
        cpu_ms: 0,
        memory_bytes: 512 << 20,
        disk_bytes: 1 << 20,
        disk_inodes: 64,
        mounts: vec![mount],
        network: false,
    })
}

fn try_whole(ground: &Ground, id: u32, groups: Option<&mut Groups>) -> Result<(), Trouble> {
    let spec = trial_spec(&ground.interpreter)?;
    // Made as those of runs are: by a kernel that is too old for these, each run with a skill would fail.
    let detached = |mount: &MountSpec| launcher::detached(mount, &ground.without);
    let mounts: io::Result<Vec<_>> = spec.mounts.iter().map(detached).collect();
    let mounts = mounts.map_err(|e| Trouble {
        detail: format!("cannot make the mount of a skill: {e}"),
        advice: MOUNTS_ADVICE,
    })?;
    let mut group = groups
        .map(|groups| groups.make_run(spec.group_limits()))
        .transpose()?;
    let entrance = group.as_ref().map(RunGroup::entrance).unwrap_or_default();
    let (report, report_in) = sys::pipe()?;
    let (output, output_in) = sys::pipe()?;
    sys::set_nonblocking(output.as_fd())?;
    let (channel, channel_in) = sys::socketpair(libc::SOCK_STREAM)?;
    let check = format!(
        "import os, json, sys; sys.exit(0 if os.getpid() > 1 and os.path.isfile('{GUEST}/{BOOTSTRAP}') and os.path.isdir('{MOUNTED}') else 3)"
    );
    let arguments = [
        ground.interpreter.program.as_str(),
        "-I",
        "-S",
        "-B",
        "-c",
        &check,
    ]
    .into_iter()
    .map(sys::cstr)
    .collect::<io::Result<_>>();
    let isolation = Isolation {
        ground,
        spec: &spec,
        outer_id: id,
        entrance: &entrance,
        mounts: &mounts,
        output: output_in.as_fd(),
        channel: channel_in.as_fd(),
        report: report_in.as_fd(),
        notice: None,
        arguments: Some(arguments?),
    };
    let (pid, pidfd) = match sys::clone_process(ground.born_in(), entrance.born_in)? {
        Fork::Child => launcher::enter(&isolation),
        Fork::Parent { pid, pidfd } => (pid, pidfd),
    };
    drop((report_in, output_in, channel_in));
    let mut ended = [Poll::readable(pidfd.as_fd())];
    sys::poll(&mut ended, Some(TRIAL_NS))?;
    sys::kill_by_pidfd(pidfd.as_fd())?;
    sys::wait(pid)?;
    drop(channel);
    if let Some(group) = &mut group {
        // Empty at once or swept later; a trial must not fail for it.
        let _ = group.try_remove();
    }
    let mut heard = String::new();
    io::Read::read_to_string(&mut std::fs::File::from(report), &mut heard)?;
    let mut said = [0; 1024];
    let said = sys::read(output.as_fd(), &mut said)
        .map(|n| String::from_utf8_lossy(&said[..n]).into_owned())
        .unwrap_or_default();
    for line in heard.lines() {
        match serde_json::from_str(line) {
            Ok(Report::Ready | Report::Begun) => {}
            Ok(Report::Failed { step, error }) => {
                return Err(Trouble::at(&step, &error));
            }
            Ok(Report::Exited { code: 0, signal: 0 }) => return Ok(()),
            Ok(Report::Exited { code, signal }) => {
                return Err(format!(
                    "the interpreter ended with code {code} signal {signal}: {}",
                    said.trim()
                )
                .into());
            }
            Err(e) => return Err(format!("init said something strange: {e}").into()),
        }
    }
    Err(if ended[0].is_ready() {
        "init ended without a word".to_owned().into()
    } else {
        "the interpreter did not start in time".to_owned().into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::LayerState;

    fn interpreter() -> Interpreter {
        Interpreter {
            version: "3.12".into(),
            shown: vec![("/usr/lib/python3.12".into(), "/".into())],
            ..Interpreter::default()
        }
    }

    #[test]
    fn what_is_tried_has_a_mount_as_a_run_with_a_skill_has() {
        let spec = trial_spec(&interpreter()).unwrap();
        let stat = sys::stat(sys::open("/", libc::O_PATH).unwrap().as_fd()).unwrap();
        let mount = MountSpec {
            target: MOUNTED.into(),
            path: "/".into(),
            dev: stat.dev,
            ino: stat.ino,
        };
        assert_eq!(spec.mounts, [mount]);
    }

    #[test]
    fn a_masked_proc_is_not_said_to_be_the_interpreters() {
        let refused = io::Error::from_raw_os_error(libc::EPERM).to_string();
        let advice = |step, error: &str| Trouble::at(step, error).advice;
        assert!(advice("Proc", &refused).contains("systempaths=unconfined"));
        for (step, error) in [("Proc", "no such device"), ("Root", &refused)] {
            assert!(advice(step, error).contains("`interpreter`"), "{step}");
        }
        let said = Trouble::at("Proc", &refused).detail;
        assert_eq!(said, format!("isolation step Proc: {refused}"));
    }

    #[test]
    fn a_library_that_is_not_compiled_is_told_with_what_compiles_it() {
        let compiled = started(&interpreter());
        assert_eq!(compiled.detail, "Python 3.12 starts isolated");
        assert_eq!(compiled.advice, "");
        let uncompiled = started(&Interpreter {
            uncompiled: Some(("/opt/bin/python3.12".into(), "/opt/lib/python3.12".into())),
            ..interpreter()
        });
        assert_eq!(uncompiled.state, LayerState::Ok);
        assert!(uncompiled.detail.ends_with("is not compiled"));
        let command = "`/opt/bin/python3.12 -m compileall -q /opt/lib/python3.12`";
        assert!(uncompiled.advice.starts_with(command));
    }
}

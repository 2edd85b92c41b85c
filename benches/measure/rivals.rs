//! What else there is to start a Python with: by itself, in bubblewrap, in crun. Each runs the least program there is, or
//! `runner.py`, which does a job and gives a result as a run of ours does. All do less than a run of ours: no filter of
//! system calls of ours, no landlock, no control group (bubblewrap).

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use serde_json::{Value, json};

use super::Clients;
use super::machine::interpreter;

/// Does nothing, with as little of the library as there can be.
pub(crate) const PROGRAM: [&str; 5] = ["-I", "-S", "-B", "-c", "pass"];
/// Does a job: the one of [`JOB`], which it reads from its standard input.
pub(crate) const RUNNER: [&str; 5] = ["-I", "-S", "-B", "-c", include_str!("runner.py")];
/// What `Direct::hello` runs.
const JOB: &[u8] =
    br#"{"function":"main","args":{},"code":"def main(args):\n    return {'hello': 'world'}\n"}"#;
const RESULT: &[u8] = br#"{"status": "completed", "output": {"hello": "world"}}"#;
const BUBBLEWRAP: &str = "--unshare-all --die-with-parent --new-session --cap-drop ALL --clearenv --ro-bind /usr /usr --symlink usr/lib /lib --symlink usr/lib64 /lib64 --symlink usr/bin /bin --proc /proc --dev /dev --tmpfs /tmp --tmpfs /workspace --";

fn command(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// Works, or why not.
fn tried(name: &str, mut command: Command) -> Result<Command, String> {
    match command.status() {
        Ok(status) if status.success() => Ok(command),
        Ok(status) => Err(format!("{name} refuses here: {status}")),
        Err(error) => Err(format!("{name} is not here: {error}")),
    }
}

fn clients(make: impl Fn() -> Command + Sync + 'static) -> Clients {
    Box::new(move || {
        let mut command = make();
        Box::new(move || {
            assert!(command.status().unwrap().success());
            Instant::now()
        })
    })
}

/// Each gets the job and gives its result.
fn with_job(make: impl Fn() -> Command + Sync + 'static) -> Clients {
    Box::new(move || {
        let mut command = make();
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Box::new(move || {
            let mut child = command.spawn().unwrap();
            child.stdin.take().unwrap().write_all(JOB).unwrap();
            assert_eq!(child.wait_with_output().unwrap().stdout, RESULT);
            Instant::now()
        })
    })
}

pub(crate) fn plain(arguments: &'static [&'static str]) -> Clients {
    clients(|| command(interpreter(), arguments))
}

pub(crate) fn plain_with_job() -> Clients {
    with_job(|| command(interpreter(), &RUNNER))
}

fn in_bubblewrap(program: &[&str]) -> Command {
    let mut arguments: Vec<&str> = BUBBLEWRAP.split(' ').collect();
    arguments.push(interpreter());
    arguments.extend(program);
    command("bwrap", &arguments)
}

/// With the program that does nothing, and with the one that does a job.
pub(crate) fn bubblewrap() -> Result<[Clients; 2], String> {
    tried("bubblewrap", in_bubblewrap(&PROGRAM))?;
    Ok([
        clients(|| in_bubblewrap(&PROGRAM)),
        with_job(|| in_bubblewrap(&RUNNER)),
    ])
}

/// A bundle that crun starts containers from.
pub(crate) struct Crun {
    bundle: tempfile::TempDir,
    next: AtomicU64,
}

impl Crun {
    pub(crate) fn new() -> Result<Arc<Crun>, String> {
        let bundle = tempfile::Builder::new()
            .prefix("skillgate-crun-")
            .tempdir()
            .unwrap();
        let root = bundle.path().join("rootfs");
        for name in ["usr", "proc", "dev", "sys", "tmp"] {
            fs::create_dir_all(root.join(name)).unwrap();
        }
        for name in ["lib", "lib64", "bin"] {
            symlink(Path::new("usr").join(name), root.join(name)).unwrap();
        }
        let mut spec = command("crun", &["spec"]);
        spec.current_dir(bundle.path());
        tried("crun", spec)?;
        let file = bundle.path().join("config.json");
        let mut config: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        let arguments: Vec<&str> = [interpreter()].into_iter().chain(PROGRAM).collect();
        config["process"]["args"] = json!(arguments);
        config["process"]["terminal"] = json!(false);
        config["root"] = json!({ "path": "rootfs", "readonly": true });
        config["mounts"].as_array_mut().unwrap().push(
            json!({ "destination": "/usr", "type": "bind", "source": "/usr", "options": ["rbind", "ro"] }),
        );
        fs::write(&file, config.to_string()).unwrap();
        let crun = Arc::new(Crun {
            bundle,
            next: AtomicU64::new(0),
        });
        if crun.shell().run(&crun) {
            Ok(crun)
        } else {
            Err("crun refuses here".into())
        }
    }

    /// It takes no host with both versions of control groups: in the shell's mount namespace there is one.
    fn shell(&self) -> Shell {
        let script = "umount /sys/fs/cgroup/unified 2>/dev/null; while read name; do crun run \"$name\" </dev/null >/dev/null 2>&1; echo $?; done";
        let mut child = Command::new("unshare")
            .args(["-m", "sh", "-c", script])
            .current_dir(self.bundle.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Shell {
            input: child.stdin.take(),
            output: BufReader::new(child.stdout.take().unwrap()),
            child,
        }
    }

    pub(crate) fn clients(self: &Arc<Self>) -> Clients {
        let crun = self.clone();
        Box::new(move || {
            let (crun, mut shell) = (crun.clone(), crun.shell());
            Box::new(move || {
                assert!(shell.run(&crun));
                Instant::now()
            })
        })
    }
}

/// Starts one container after the other.
struct Shell {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Shell {
    fn run(&mut self, crun: &Crun) -> bool {
        let number = crun.next.fetch_add(1, Ordering::Relaxed);
        let name = format!("skillgate-bench-{}-{number}\n", std::process::id());
        let mut answer = String::new();
        let sent = self
            .input
            .as_mut()
            .map(|input| input.write_all(name.as_bytes()));
        sent.is_some_and(|sent| sent.is_ok())
            && self.output.read_line(&mut answer).is_ok()
            && answer.trim() == "0"
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        drop(self.input.take());
        // Its input is at its end: it ends.
        let _status = self.child.wait();
    }
}

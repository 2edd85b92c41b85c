//! Which Python runs inside, and exactly which files of the host it needs there.
//!
//! The program, the dynamic loader and the shared libraries are copied into the template root (about 20 MB, once); the
//! standard library is shown read-only where it is. Inside, the installation's prefix is always `/usr`, wherever it is
//! outside, so that no path of the host appears in a traceback. Libraries are placed under their SONAME in the
//! directory of the C library, which is the one that the dynamic loader searches without a cache.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::root::GUEST;
use crate::sys;
use crate::sys::python::OBJECT_HEAD_BYTES;

/// An interpreter, ready to be laid out in a root.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Interpreter {
    /// Inside: `/usr/bin/python3.11`.
    pub(crate) program: String,
    /// `3.11`
    pub(crate) version: String,
    /// Files to copy: inside, outside.
    pub(crate) copies: Vec<(String, String)>,
    /// Directories to show: inside, outside.
    pub(crate) shown: Vec<(String, String)>,
    /// Directories inside that are to be seen empty: packages that an operator has installed are not part of a run.
    pub(crate) hidden: Vec<String>,
    /// Symbolic links: inside, what they say.
    pub(crate) links: Vec<(String, String)>,
    /// The guest's modules as this interpreter compiles them: name below the guest's directory, bytes as hex.
    pub(crate) compiled: BTreeMap<String, String>,
    /// Trusted certificates: inside, where OpenSSL looks for them; outside. `None`: the host or its Python has none.
    pub(crate) certificates: Option<(String, String)>,
    /// What may be executed, beside the program: the dynamic loader.
    pub(crate) loader: Option<String>,
    /// How the standard library is compiled, where it is not: program and library, outside.
    pub(crate) uncompiled: Option<(String, String)>,
}

/// Why an interpreter cannot be used.
#[derive(Debug)]
pub(crate) enum InterpreterError {
    NotFound,
    Start(PathBuf, std::io::Error),
    Slow(PathBuf),
    Answer(PathBuf, String),
    TooOld(PathBuf, String),
    NotCpython(PathBuf, String),
    OtherObjects(PathBuf),
}

impl std::fmt::Display for InterpreterError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotFound => f.write_str("no python3 at /usr/bin/python3 or on PATH; install Python 3.9 or later, or name one in `interpreter`"),
            Self::Start(p, e) => write!(f, "cannot execute the interpreter {}: {e}", p.display()),
            Self::Slow(p) => write!(f, "the interpreter {} did not describe itself within {} s", p.display(), DISCOVERY_TIME.as_secs()),
            Self::Answer(p, e) => write!(f, "the interpreter {} cannot be used: {e}", p.display()),
            Self::TooOld(p, v) => write!(f, "the interpreter {} is Python {v}; 3.9 or later is needed: name another in `interpreter`", p.display()),
            Self::NotCpython(p, v) => write!(f, "the interpreter {} is {v}; CPython is needed: name another in `interpreter`", p.display()),
            Self::OtherObjects(p) => write!(f, "the interpreter {} is a free-threaded build of CPython, or one that traces references: take an ordinary one, as python3.13 instead of python3.13t", p.display()),
        }
    }
}

/// Where programs that name a file of certificates most often find one.
const CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";
/// Where `C.UTF-8` is, by both names that distributions give it.
const LOCALES: [&str; 2] = ["/usr/lib/locale/C.utf8", "/usr/lib/locale/C.UTF-8"];
const ANSWER_BYTES_MAX: u64 = 8 << 20;
const DISCOVERY_TIME: Duration = Duration::from_secs(30);
/// What is kept of an interpreter's stderr, of whose end one line is told.
const STDERR_BYTES_MAX: usize = 1024;

/// What `discover.py` prints first, and alone where that is enough to be refused.
#[derive(Deserialize)]
struct Named {
    version: (u32, u32),
    implementation: String,
}

/// What it prints besides.
#[derive(Deserialize)]
struct Discovered {
    head_bytes: u64,
    program: String,
    prefixes: Vec<String>,
    stdlib: String,
    is_compiled: bool,
    dynload: Vec<String>,
    loader: Option<String>,
    libraries: Vec<(String, String)>,
    compiled: BTreeMap<String, String>,
    certificates: Option<(String, String)>,
}

impl Interpreter {
    /// Asks the named interpreter, or the default one.
    pub(crate) fn discover(
        named: Option<&str>,
        guest: &[(String, String)],
    ) -> Result<Self, InterpreterError> {
        let path = match named {
            Some(path) => PathBuf::from(path),
            None => default_path().ok_or(InterpreterError::NotFound)?,
        };
        let answer = ask(&path, guest, DISCOVERY_TIME)?;
        let unreadable =
            |e: serde_json::Error| InterpreterError::Answer(path.clone(), e.to_string());
        let named: Named = serde_json::from_str(&answer).map_err(unreadable)?;
        if named.implementation != "cpython" {
            return Err(InterpreterError::NotCpython(path, named.implementation));
        }
        let version = format!("{}.{}", named.version.0, named.version.1);
        if named.version < (3, 9) {
            return Err(InterpreterError::TooOld(path, version));
        }
        let found: Discovered = serde_json::from_str(&answer).map_err(unreadable)?;
        if found.head_bytes != OBJECT_HEAD_BYTES {
            return Err(InterpreterError::OtherObjects(path));
        }
        Ok(Self::plan(found, version))
    }

    fn plan(found: Discovered, version: String) -> Self {
        let program = format!("/usr/bin/python{version}");
        let mut copies = vec![(program.clone(), found.program.clone())];
        if let Some(loader) = &found.loader {
            copies.push((loader.clone(), loader.clone()));
        }
        let loader_name = found
            .loader
            .as_deref()
            .and_then(|l| Path::new(l).file_name());
        let directory = libraries_directory(&found.libraries);
        let mut taken = BTreeSet::new();
        for (outside, soname) in &found.libraries {
            if Some(std::ffi::OsStr::new(soname)) != loader_name && taken.insert(soname.clone()) {
                copies.push((format!("{directory}/{soname}"), outside.clone()));
            }
        }
        let inside = |path: &str| {
            let below = |p: &String| {
                path.strip_prefix(p.as_str())
                    .filter(|rest| rest.starts_with('/'))
            };
            found
                .prefixes
                .iter()
                .filter(|p| p.as_str() != "/")
                .find_map(below)
                .map_or_else(|| path.to_owned(), |rest| format!("/usr{rest}"))
        };
        let mut shown = vec![(inside(&found.stdlib), found.stdlib.clone())];
        shown.extend(
            found
                .dynload
                .iter()
                .filter(|d| !d.starts_with(&format!("{}/", found.stdlib)))
                .map(|d| (inside(d), d.clone())),
        );
        let hidden = ["site-packages", "dist-packages"]
            .iter()
            .filter(|name| Path::new(&found.stdlib).join(name).is_dir())
            .map(|name| format!("{}/{name}", shown[0].0))
            .collect();
        // Time zones are data, and every program that handles dates wants them.
        let zones = "/usr/share/zoneinfo";
        if Path::new(zones).is_dir() {
            shown.push((zones.into(), zones.into()));
        }
        // The locale that a run's environment names, which glibc has in files: whoever asks for it is to get it.
        let locales = LOCALES.iter().filter(|locale| Path::new(locale).is_dir());
        shown.extend(locales.map(|locale| ((*locale).into(), (*locale).into())));
        let name = format!("python{version}");
        let mut links = vec![
            ("/usr/bin/python3".into(), name.clone()),
            ("/usr/bin/python".into(), name),
        ];
        if let Some((place, _)) = &found.certificates
            && place != CERTIFICATES
        {
            links.push((CERTIFICATES.into(), place.clone()));
        }
        Interpreter {
            program,
            version,
            copies,
            shown,
            hidden,
            links,
            compiled: found.compiled,
            certificates: found.certificates,
            loader: found.loader,
            uncompiled: (!found.is_compiled).then_some((found.program, found.stdlib)),
        }
    }
}

impl Interpreter {
    /// What this very file needs to be loaded by the interpreter, inside: libgcc, which threads of Python want too.
    pub(crate) fn add_libraries_of_this(&mut self) -> std::io::Result<()> {
        let name = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
        let there: BTreeSet<String> = self.copies.iter().map(|(inside, _)| name(inside)).collect();
        let directory = self
            .copies
            .iter()
            .map(|(inside, _)| inside)
            .find(|i| name(i) == "libc.so.6" || name(i).starts_with("libc.musl-"))
            .and_then(|i| i.rsplit_once('/'))
            .map_or("/usr/lib".to_owned(), |(directory, _)| directory.to_owned());
        let maps = sys::proc_text("/proc/self/maps")?;
        let mapped: BTreeSet<&str> = maps
            .lines()
            .filter_map(|line| line.split_whitespace().nth(5))
            .filter(|path| path.contains("/lib") && path.contains(".so."))
            .collect();
        for path in mapped {
            if !there.contains(&name(path)) {
                self.copies
                    .push((format!("{directory}/{}", name(path)), path.to_owned()));
            }
        }
        Ok(())
    }
}

/// Where the C library is: the one directory that the dynamic loader is sure to search.
fn libraries_directory(libraries: &[(String, String)]) -> String {
    libraries
        .iter()
        .find(|(_, soname)| soname == "libc.so.6" || soname.starts_with("libc.musl-"))
        .and_then(|(path, _)| Path::new(path).parent())
        .map_or_else(|| "/usr/lib".to_owned(), |p| p.display().to_string())
}

fn default_path() -> Option<PathBuf> {
    let usual = PathBuf::from("/usr/bin/python3");
    if usual.is_file() {
        return Some(usual);
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|d| d.join("python3"))
        .find(|p| p.is_file())
}

/// Runs `discover.py`. PATH and HOME go along for interpreters that are started by a shim.
fn ask(
    path: &Path,
    guest: &[(String, String)],
    time: Duration,
) -> Result<String, InterpreterError> {
    let started = Instant::now();
    let keep = ["PATH", "HOME"]
        .into_iter()
        .filter_map(|n| Some((n, std::env::var_os(n)?)));
    let mut child = Command::new(path)
        .args([
            "-I",
            "-S",
            "-B",
            "-c",
            include_str!("interpreter/discover.py"),
        ])
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
    if let Some(status) = status.filter(|status| !status.success()) {
        complaints.hear();
        return Err(InterpreterError::Answer(
            path.into(),
            format!("it ended with {status}{}", complaints.last_line()),
        ));
    }
    let answer = heard
        .recv_timeout(time.saturating_sub(started.elapsed()))
        .map_err(|_| InterpreterError::Slow(path.into()))?;
    Ok(answer.unwrap_or_default())
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

    fn hear(&mut self) {
        // As much as a pipe holds: who goes on and on is not listened to for longer than he may take.
        let mut room = vec![0; 1 << 16];
        let read = self
            .from
            .as_mut()
            .and_then(|from| from.read(&mut room).ok());
        self.end.extend_from_slice(&room[..read.unwrap_or(0)]);
        let before = self.end.len().saturating_sub(STDERR_BYTES_MAX);
        self.end.drain(..before);
    }

    /// With which Python says what was wrong; empty when nothing was said.
    fn last_line(&self) -> String {
        let text = String::from_utf8_lossy(&self.end);
        let last = text.lines().rev().map(str::trim).find(|it| !it.is_empty());
        last.map_or_else(String::new, |last| format!(": {last}"))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;
    use std::os::unix::process::CommandExt as _;

    use rustix::process::{Resource, Rlimit, WaitOptions, getrlimit, setrlimit, wait};

    use super::*;

    fn found(prefix: &str) -> Discovered {
        Discovered {
            head_bytes: OBJECT_HEAD_BYTES,
            program: format!("{prefix}/bin/python3.12"),
            prefixes: vec![prefix.into()],
            stdlib: format!("{prefix}/lib/python3.12"),
            is_compiled: true,
            dynload: vec![format!("{prefix}/lib/python3.12/lib-dynload")],
            loader: Some("/lib64/ld-linux-x86-64.so.2".into()),
            compiled: BTreeMap::new(),
            certificates: Some((
                format!("{prefix}/ssl/cert.pem"),
                "/etc/pki/tls/certs/ca-bundle.crt".into(),
            )),
            libraries: vec![
                (
                    "/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2".into(),
                    "ld-linux-x86-64.so.2".into(),
                ),
                (
                    "/usr/lib/x86_64-linux-gnu/libc.so.6".into(),
                    "libc.so.6".into(),
                ),
                (
                    format!("{prefix}/lib/libpython3.12.so.1.0"),
                    "libpython3.12.so.1.0".into(),
                ),
            ],
        }
    }

    fn make_shim(shim: &Path, script: &str) {
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
        child.arg("interpreter::tests::child_without_threads");
        if rustix::process::geteuid().is_root() {
            let is_open = |at: &Path| at.metadata().unwrap().mode() & 0o001 != 0;
            if !program.ancestors().all(is_open) {
                eprintln!("left out of these tests: nobody but root reaches what was built");
                return;
            }
            child.uid(65534).gid(65534);
        }
        let output = child.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let passed = output.status.success() && said.contains("1 passed");
        assert!(passed, "{said}{}", String::from_utf8_lossy(&output.stderr));
    }

    #[test]
    #[ignore = "run by an_interpreter_for_which_there_is_no_process_or_no_thread_is_an_error_and_leaves_none"]
    fn child_without_threads() {
        let mut refused = 0;
        for room in 1_u64.. {
            let current = Some(room);
            let maximum = getrlimit(Resource::Nproc).maximum;
            setrlimit(Resource::Nproc, Rlimit { current, maximum }).unwrap();
            // First there is no process for it, then no thread beside it, no second one, and in the end all that it takes.
            let answer = ask("/bin/true".as_ref(), &[], Duration::from_secs(20));
            let left = wait(WaitOptions::NOHANG);
            assert!(left.is_err(), "a process is left: {left:?}");
            match answer {
                Ok(nothing) => return assert!(nothing.is_empty() && refused > 0),
                Err(InterpreterError::Start(_, error)) => {
                    assert_eq!(error.raw_os_error(), Some(libc::EAGAIN));
                    refused += 1;
                }
                other => panic!("{other:?}"),
            }
        }
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
            // More than anybody keeps, or a pipe holds.
            &format!("{long}; echo 'OSError: no more' >&2; exit 3"),
        ] {
            assert_eq!(told(script), format!("{silent}: OSError: no more"));
        }
        let line = told(&format!("{long}; exit 3"));
        assert_eq!(
            line,
            format!("{silent}: {}", "x".repeat(STDERR_BYTES_MAX - 1))
        );
    }

    /// What it needs to describe itself is not there in old ones.
    #[test]
    fn an_interpreter_that_is_none_of_ours_is_told_before_anything_is_asked_of_it() {
        let python = default_path().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let shim = dir.path().join("python3");
        let told = |is: &str| {
            let code = format!(
                "import sys; from importlib import _bootstrap_external as b; del b._code_to_hash_pyc; {is}"
            );
            let python = python.display();
            make_shim(&shim, &format!("exec {python} -I -S -B -c \"{code}\n$5\""));
            let guest = [("a.py".to_owned(), "1".to_owned())];
            let why = Interpreter::discover(shim.to_str(), &guest).unwrap_err();
            why.to_string().replace(shim.to_str().unwrap(), "IT")
        };
        assert_eq!(
            told("sys.version_info = (3, 6, 15)"),
            "the interpreter IT is Python 3.6; 3.9 or later is needed: name another in `interpreter`"
        );
        assert_eq!(
            told("sys.implementation.name = 'pypy'"),
            "the interpreter IT is pypy; CPython is needed: name another in `interpreter`"
        );
    }

    #[test]
    fn a_library_that_is_not_compiled_is_known() {
        let python = default_path().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let (shim, caches) = (dir.path().join("python3"), dir.path().join("caches"));
        let exec = format!(
            "exec {} -X pycache_prefix={}",
            python.display(),
            caches.display()
        );
        make_shim(&shim, &format!("{exec} \"$@\""));
        let uncompiled = || {
            Interpreter::discover(shim.to_str(), &[])
                .unwrap()
                .uncompiled
        };
        let (program, library) = uncompiled().unwrap();
        let is_there = Path::new(&program).is_file() && Path::new(&library).join("os.py").is_file();
        assert!(is_there, "{program} {library}");
        // Whose bytes are of no use, but there.
        let makes = "import glob, os, sys; from importlib.util import cache_from_source as of
paths = [of(path) for path in glob.glob(os.path.dirname(os.__file__) + '/*.py')]
os.makedirs(os.path.dirname(paths[0]))
for path in paths: open(path, 'w').close()";
        let made = Command::new(&shim).args(["-I", "-B", "-c", makes]).status();
        assert!(made.unwrap().success());
        assert_eq!(uncompiled(), None);
    }

    /// Its module would be loaded with another layout than it has, and every zygote would crash.
    #[test]
    fn an_interpreter_whose_objects_are_others_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let shim = dir.path().join("python3.13t");
        let discover = |head_bytes: u64| {
            let mut said = serde_json::json!({
                "version": [3, 13], "implementation": "cpython", "program": "/usr/bin/python3.13t",
                "prefixes": ["/usr"], "stdlib": "/usr/lib/python3.13t", "is_compiled": true, "dynload": [], "loader": null,
                "libraries": [], "compiled": {}, "certificates": null,
            });
            said["head_bytes"] = head_bytes.into();
            make_shim(&shim, &format!("cat > /dev/null; echo '{said}'"));
            Interpreter::discover(shim.to_str(), &[])
        };
        assert_eq!(discover(16).unwrap().version, "3.13");
        let why = discover(32).unwrap_err().to_string();
        let expected = "is a free-threaded build of CPython, or one that traces references: take an ordinary one";
        assert!(why.contains(expected), "{why}");
    }

    #[test]
    fn every_prefix_is_usr_inside() {
        let plan = Interpreter::plan(found("/home/x/py"), "3.12".into());
        assert_eq!(plan.program, "/usr/bin/python3.12");
        assert_eq!(
            plan.shown[0],
            (
                "/usr/lib/python3.12".into(),
                "/home/x/py/lib/python3.12".into()
            )
        );
        assert!(plan.copies.contains(&(
            "/usr/lib/x86_64-linux-gnu/libpython3.12.so.1.0".into(),
            "/home/x/py/lib/libpython3.12.so.1.0".into()
        )));
        assert!(
            plan.copies
                .iter()
                .all(|(inside, _)| !inside.contains("home"))
        );
        assert!(
            !plan
                .copies
                .iter()
                .any(|(inside, _)| inside.ends_with("gnu/ld-linux-x86-64.so.2")),
            "the loader is at its own path only"
        );
        let place = "/home/x/py/ssl/cert.pem".to_owned();
        assert!(plan.links.contains(&(CERTIFICATES.into(), place)));
    }
}

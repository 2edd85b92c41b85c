//! Which Python runs inside, and exactly which files of the host it needs there.
//!
//! The program, the dynamic loader and the shared libraries are copied into the template root (about 20 MB, once); the
//! standard library is shown read-only where it is. Inside, the installation's prefix is always `/usr`, wherever it is
//! outside, so that no path of the host appears in a traceback. Libraries are placed under their SONAME in the
//! directory of the C library, which is the one that the dynamic loader searches without a cache.

mod ask;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use self::ask::ask;
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
const DISCOVERY_TIME: Duration = Duration::from_secs(30);

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

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::ask::tests::make_shim;
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

//! Runs the Python tests with every interpreter found, and keeps `FILES` equal to the directory.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use skillgate_plugin_guest::{BOOTSTRAP, FILES};

/// The oldest and the newest that are tried; 3.9 is the oldest supported one.
const MINORS: std::ops::RangeInclusive<u32> = 9..=16;

#[test]
fn files_are_those_of_the_directory() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("python");
    let mut on_disk = BTreeSet::new();
    collect(&root, &root, &mut on_disk);
    let embedded: BTreeSet<String> = FILES.iter().map(|(path, _)| (*path).to_owned()).collect();
    assert_eq!(embedded, on_disk);
    assert_eq!(embedded.len(), FILES.len(), "a path is embedded twice");
    assert!(embedded.contains(BOOTSTRAP));
}

#[test]
fn python_tests_pass() {
    let interpreters = interpreters();
    assert!(
        !interpreters.is_empty(),
        "no python3 of version 3.9 or later on PATH: install one"
    );
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python");
    for interpreter in interpreters {
        let output = Command::new(&interpreter)
            .args([
                "-I",
                "-B",
                "-W",
                "error::ResourceWarning",
                "-m",
                "unittest",
                "discover",
                "-s",
            ])
            .arg(&tests)
            .stdin(Stdio::null())
            .output()
            .expect("the interpreter that has just answered starts");
        assert!(
            output.status.success(),
            "tests fail with {}\n{}{}",
            interpreter.display(),
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

fn collect(root: &Path, directory: &Path, into: &mut BTreeSet<String>) {
    for entry in fs::read_dir(directory).expect("a readable source directory") {
        let path = entry.expect("a readable entry").path();
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "__pycache__") {
                collect(root, &path, into);
            }
        } else {
            let relative = path.strip_prefix(root).expect("a path below the root");
            into.insert(relative.to_str().expect("a UTF-8 name").to_owned());
        }
    }
}

/// `python3` and every `python3.N` on PATH, each real interpreter once. `SKILLGATE_TEST_PYTHONS` (separated like
/// PATH) names them instead.
fn interpreters() -> BTreeSet<PathBuf> {
    let named: Vec<PathBuf> = match std::env::var_os("SKILLGATE_TEST_PYTHONS") {
        Some(list) => std::env::split_paths(&list).collect(),
        None => std::iter::once("python3".to_owned())
            .chain(MINORS.map(|minor| format!("python3.{minor}")))
            .map(PathBuf::from)
            .collect(),
    };
    named
        .iter()
        .filter_map(|name| real_interpreter(name))
        .collect()
}

/// The path of the interpreter itself (a name on PATH may be a shim), when it is new enough.
fn real_interpreter(name: &Path) -> Option<PathBuf> {
    let output = Command::new(name)
        .args([
            "-I",
            "-c",
            "import sys; print(sys.executable if sys.version_info >= (3, 9) else '')",
        ])
        .stdin(Stdio::null())
        .output()
        .ok()?;
    let path = String::from_utf8(output.stdout).ok()?;
    let path = path.trim();
    if !output.status.success() || path.is_empty() {
        None
    } else {
        fs::canonicalize(path).ok()
    }
}

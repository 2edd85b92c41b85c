//! What `export_plugin!` tells who gives it kinds that one plugin cannot have: seen by compiling such plugins.
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on says so by panicking"
)]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

const ABI: &str = "skillgate_plugin_abi";
const SDK: &str = "skillgate_plugin_sdk";

/// Compiles, as far as it takes to find what is wrong; gives that.
fn compile(dir: &Path, name: &str, source: &Path, with: &[&str]) -> Result<(), String> {
    let rustc = std::env::var_os("RUSTC");
    let mut command = Command::new(rustc.as_deref().unwrap_or(OsStr::new("rustc")));
    command
        .args([
            "--edition",
            "2021",
            "--crate-type",
            "rlib",
            "--emit",
            "metadata",
        ])
        .args(["--crate-name", name, "--out-dir"])
        .arg(dir)
        .arg("-L")
        .arg(dir)
        .env("CARGO_PKG_VERSION", "0.1.0");
    for library in with {
        command.args(["--extern", library]);
    }
    let output = command.arg(source).output().unwrap();
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn kinds_that_do_not_go_together_are_refused_with_words() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dir = TempDir::new();
    compile(&dir.0, ABI, &here.join("../abi/src/lib.rs"), &[]).unwrap();
    compile(&dir.0, SDK, &here.join("src/lib.rs"), &[ABI]).unwrap();
    let good = here.join("tests/oldest_compiler/later.rs");
    compile(&dir.0, "good", &good, &[SDK]).unwrap();
    let good = std::fs::read_to_string(good).unwrap();
    let kinds = "storage: crate::Later,\n    sandbox: crate::Later,";
    assert!(good.contains(kinds));
    let together = "error: a plugin is blocking as a whole, or not: after `config_schema` comes `storage: T` or \
                    `sandbox: U`, or both in this order, each of them or none with `blocking` before it; one of each \
                    makes two plugins";
    let none = "error: a plugin without a kind does nothing: after `config_schema` comes `storage: T` or `sandbox: U`, or \
                both in this order";
    for (wrong, words) in [
        (
            "blocking storage: crate::Later, sandbox: crate::Later",
            together,
        ),
        (
            "storage: crate::Later, blocking sandbox: crate::Later,",
            together,
        ),
        (
            "sandbox: crate::Later, blocking storage: crate::Later",
            together,
        ),
        ("sandbox: crate::Later, storage: crate::Later,", together),
        ("storage: crate::Later, storage: crate::Later,", together),
        ("", none),
    ] {
        let source = dir.0.join("wrong.rs");
        std::fs::write(&source, good.replace(kinds, wrong)).unwrap();
        let said = compile(&dir.0, "wrong", &source, &[SDK]).unwrap_err();
        let said: Vec<_> = said
            .lines()
            .filter(|line| line.starts_with("error"))
            .collect();
        assert_eq!(said.first(), Some(&words), "{wrong}: {said:?}");
    }
}

struct TempDir(PathBuf);

impl TempDir {
    /// This crate has no dependencies but the contract, in tests neither.
    fn new() -> Self {
        let name = format!("skillgate-sdk-export-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        TempDir(path)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

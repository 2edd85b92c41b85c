//! Vendors have the compiler of their distribution: the contract's crates and a plugin made with them compile with the
//! oldest one that Cargo.toml promises.
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on says so by panicking"
)]

use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "../../../tests/support/tools.rs"]
mod tools;

/// Names a rustc of that version, where it is not in the usual place.
const COMPILER: &str = "SKILLGATE_TEST_OLDEST_RUSTC";
/// Where Debian 12 has one, beside whichever is first in `PATH`. Other distributions have others there.
const USUAL: &str = "/usr/bin/rustc";

/// "rustc 1.63.0"; none: it does not run.
fn version(compiler: &Path) -> Option<String> {
    let output = Command::new(compiler).arg("--version").output().ok()?;
    String::from_utf8(output.stdout).ok()
}

/// The compiler of that version that this machine has.
fn find(oldest: &str) -> Option<PathBuf> {
    let wanted = format!("rustc {oldest}.");
    match std::env::var_os(COMPILER) {
        Some(named) => {
            let named = PathBuf::from(named);
            let version = version(&named).unwrap_or_default();
            assert!(version.starts_with(&wanted), "{COMPILER} is {version:?}");
            Some(named)
        }
        None => version(Path::new(USUAL))?
            .starts_with(&wanted)
            .then(|| USUAL.into()),
    }
}

fn promised(manifest: &Path) -> String {
    let text = std::fs::read_to_string(manifest).unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("rust-version = \""));
    let line = line.unwrap_or_else(|| panic!("{} promises no version", manifest.display()));
    line.trim_end_matches('"').to_owned()
}

#[test]
fn the_oldest_compiler_compiles_a_plugin() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let oldest = promised(&here.join("Cargo.toml"));
    assert_eq!(
        oldest,
        promised(&here.join("../abi/Cargo.toml")),
        "one promise for both"
    );
    let Some(compiler) = find(&oldest) else {
        tools::left_out(&format!(
            "neither {USUAL} nor {COMPILER} is a rustc {oldest}; clippy's incompatible_msrv looks at the library's part"
        ));
        return;
    };
    let dir = tempdir();
    let compile = |name: &str, kind: &str, source: PathBuf, with: &[&str]| {
        let mut command = Command::new(&compiler);
        command
            .args(["--edition", "2021", "-D", "warnings", "--crate-name", name])
            .args(["--crate-type", kind, "--out-dir"])
            .arg(&dir.0)
            .arg("-L")
            .arg(&dir.0)
            .env("CARGO_PKG_VERSION", "0.1.0");
        for library in with {
            command.args(["--extern", library]);
        }
        let output = command.arg(source).output().unwrap();
        assert!(
            output.status.success(),
            "{name}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    };
    let (abi, sdk) = ("skillgate_plugin_abi", "skillgate_plugin_sdk");
    compile(abi, "rlib", here.join("../abi/src/lib.rs"), &[]);
    compile(sdk, "rlib", here.join("src/lib.rs"), &[abi]);
    // What a vendor starts from, and one whose answers come later.
    let start = here.join("../../src/cli/plugin_new/sandbox.rs.in");
    let start = std::fs::read_to_string(start).unwrap();
    let plugin = dir.0.join("plugin.rs");
    std::fs::write(&plugin, start.replace("{id}", "com.acme.old")).unwrap();
    compile("plugin", "cdylib", plugin, &[sdk]);
    let later = here.join("tests/oldest_compiler/later.rs");
    compile("later", "cdylib", later, &[sdk]);
}

struct TempDir(PathBuf);

impl Drop for TempDir {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

/// This crate has no dependencies but the contract, in tests neither.
fn tempdir() -> TempDir {
    let name = format!("skillgate-sdk-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    std::fs::create_dir(&path).unwrap();
    TempDir(path)
}

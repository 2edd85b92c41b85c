//! Programs that tests use and that a machine with Rust, a C compiler and python3 may be without. Tests of several crates
//! share this file by its path, so it needs the standard library alone, and that of the SDK's oldest compiler.
#![allow(dead_code, reason = "each of the programs that share this uses a part")]

use std::io::Write;
use std::process::Command;

/// The programs and the Debian packages that bring them.
const PACKAGES: [(&str, &str); 8] = [
    ("bash", "bash"),
    ("c++", "g++"),
    ("ip", "iproute2"),
    ("make", "make"),
    ("mkfs.ext4", "e2fsprogs"),
    ("mount", "mount"),
    ("nsenter", "util-linux"),
    ("strace", "strace"),
];

/// Whether `program` is there. Where it is not, says that the test leaves out `what`, and which package it takes; but a
/// machine that tests for others (`CI`) has to have it, or something would never be tested and nobody would know.
pub(crate) fn there(program: &str, what: &str) -> bool {
    let package = PACKAGES.iter().find(|(name, _)| *name == program);
    let package = package.map(|(_, package)| *package);
    let package = package.unwrap_or_else(|| panic!("{program}: name its package in PACKAGES"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    if std::env::split_paths(&path).any(|dir| dir.join(program).is_file()) {
        return true;
    }
    let why = format!("{what}: there is no {program} here (Debian: apt install {package})");
    left_out_but_in_ci(&why);
    false
}

/// As [`left_out`], where the machine that tests for others has what it takes (`.ci/run`): with `CI` set this fails.
pub(crate) fn left_out_but_in_ci(why: &str) {
    let ci = std::env::var("CI").unwrap_or_default();
    let must = !ci.is_empty() && ci != "false";
    assert!(!must, "{why}, and CI is set");
    left_out(why);
}

/// Says what the test that runs leaves out and why. What is printed in a test that passes is not shown, so this is
/// written to standard error past that.
pub(crate) fn left_out(why: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    let line = format!("left out of {test}: {why}\n");
    let _nobody_reads = std::io::stderr().write_all(line.as_bytes());
}

/// Sends a signal, like `-TERM`, and says whether there was somebody to send it to. The shell does it: the program that is
/// called kill is in a package of its own (Debian: procps), which small systems are without.
pub(crate) fn kill(signal: &str, pid: u32) -> bool {
    let mut shell = Command::new("sh");
    shell.args(["-c", r#"kill "$0" "$1""#, signal, &pid.to_string()]);
    shell
        .output()
        .expect("every system has sh")
        .status
        .success()
}

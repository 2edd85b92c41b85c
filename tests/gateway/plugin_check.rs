//! `skillgate plugin check` as an operator or a vendor runs it: the cases are children of the real program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::alone;
use crate::support::heeding;

/// Where a test's build puts it; beside the program there is one only after `cargo build`.
fn bundled() -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_skillgate"));
    program.with_file_name("deps/libskillgate_storage_fs.so")
}

fn check(plugin: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_skillgate"));
    command.args(["plugin", "check"]).arg(plugin);
    command.args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_plugin_that_passes() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config.json");
    fs::write(&config, r#"{"root": "${scratch}/store"}"#).unwrap();
    let config = config.to_str().unwrap();
    let report = dir.path().join("report.json");
    for isolation in ["gateway", "process"] {
        let output = check(
            &bundled(),
            &[
                "--config",
                config,
                "--report",
                report.to_str().unwrap(),
                "--isolation",
                isolation,
                "--only",
                "contract/answers",
                "--only",
                "storage/publish",
                "--skip",
                "storage/publish-twice",
            ],
        );
        let said = text(&output.stdout) + &text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{said}");
        assert!(said.contains("3 passed, 0 failed, 1 skipped"), "{said}");
        let report: Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
        assert_eq!(report["plugin"]["id"], "org.skillgate.storage-fs");
        assert_eq!(report["isolation"], isolation);
        assert!(said.contains(report["sha256"].as_str().unwrap()), "{said}");
        let names: Vec<_> = report["cases"]
            .as_array()
            .unwrap()
            .iter()
            .map(|c| &c["name"])
            .collect();
        let expected = [
            "file/loads",
            "contract/answers",
            "storage/publish-and-read",
            "storage/publish-twice",
        ];
        assert_eq!(names, expected);
    }
    let output = check(
        &bundled(),
        &[
            "--config",
            config,
            "--only",
            "file/loads",
            "--output",
            "json",
        ],
    );
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["plugin"]["id"], "org.skillgate.storage-fs");
    assert_eq!(report["cases"][0]["status"], "passed", "{report}");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn one_that_does_not() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let plugin = dir.path().join("plugin.so");
    fs::write(&plugin, "#!/bin/sh\n").unwrap();
    let report = dir.path().join("report.xml");
    let output = check(&plugin, &["--report", report.to_str().unwrap()]);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("FAIL  file/inspected") && said.contains("not an ELF file"),
        "{said}"
    );
    assert!(said.contains("to do:"), "{said}");
    let xml = fs::read_to_string(&report).unwrap();
    assert!(
        xml.contains(r#"<testcase classname="file" name="loads""#),
        "{xml}"
    );
    assert!(xml.contains(r#"tests="2" failures="2""#), "{xml}");
    // Without a configuration that fits, create() says so, and the kit too.
    let output = check(&bundled(), &["--only", "contract/answers"]);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("there is nothing to serve") && said.contains("does --config fit it?"),
        "{said}"
    );
}

/// Ends a check by a signal when it is in the middle of a case: its code, what it said, and what it has left.
fn ended_by(signal: Signal) -> (Option<i32>, String, Vec<PathBuf>) {
    let dir = tempfile::tempdir().unwrap();
    let (config, place) = (dir.path().join("config.json"), dir.path().join("place"));
    fs::write(&config, r#"{"root": "${scratch}/store"}"#).unwrap();
    fs::create_dir(&place).unwrap();
    let mut command = heeding(env!("CARGO_BIN_EXE_skillgate"));
    command.args(["plugin", "check"]).arg(bundled());
    // It waits for the end of a blob, for a second at least.
    command.args(["--only", "storage/blob-ttl", "--config"]);
    command.arg(&config).env("TMPDIR", &place);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let check = command.spawn().unwrap();
    let names = || -> Vec<_> {
        let entries = fs::read_dir(&place).unwrap().flatten();
        entries.map(|entry| entry.path()).collect()
    };
    let is_there = |case: &PathBuf| {
        let job = fs::read_to_string(case.join("job.json")).unwrap_or_default();
        // It has noted its first step.
        let steps = fs::read_to_string(case.join("steps")).unwrap_or_default();
        job.contains("storage/blob-ttl") && !steps.is_empty()
    };
    let limit = Instant::now() + Duration::from_secs(30);
    while !names().iter().any(is_there) {
        assert!(Instant::now() < limit, "the case does not begin");
        std::thread::sleep(Duration::from_millis(5));
    }
    kill_process(Pid::from_child(&check), signal).unwrap();
    let output = check.wait_with_output().unwrap();
    let mut left = names();
    for process in fs::read_dir("/proc").unwrap().flatten() {
        // One that ends just now is none.
        let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
        if text(&line).contains(place.to_str().unwrap()) {
            left.push(process.path());
        }
    }
    (output.status.code(), text(&output.stderr), left)
}

#[test]
fn one_that_is_interrupted_leaves_nothing_behind() {
    let _alone = alone();
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let (ended, said, left) = ended_by(signal);
        assert_eq!((ended, left), (Some(code), Vec::new()), "{said}");
        let part = "the check was stopped before its last case had ended";
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn what_makes_no_sense() {
    let dir = tempfile::tempdir().unwrap();
    let broken = dir.path().join("broken.json");
    fs::write(&broken, "{").unwrap();
    for (arguments, code, part) in [
        (
            &["--report", "report.txt"][..],
            2,
            "its ending says no form of report",
        ),
        (
            &["--only", "storage/nothing"],
            2,
            "there is no case \"storage/nothing\"",
        ),
        (
            &["--config", "/nowhere.json"],
            3,
            "/nowhere.json cannot be read",
        ),
        (&["--config", broken.to_str().unwrap()], 3, "is not JSON"),
        (&["--isolation", "elsewhere"], 2, "elsewhere"),
    ] {
        let output = check(&bundled(), arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.starts_with("error: ") && said.contains(part), "{said}");
    }
}

//! What the tests of the kit share.

use std::path::{Path, PathBuf};

use skillgate_plugin_check::{Report, Settings, Status, check};

fn deps() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    exe.parent().unwrap().to_owned()
}

/// A bundled plugin, which cargo has built for this test.
pub(crate) fn bundled(name: &str) -> PathBuf {
    deps().join(format!("libskillgate_{name}.so"))
}

fn example(name: &str) -> PathBuf {
    let file = deps().parent().unwrap().join("examples").join(name);
    let built = file.exists();
    assert!(
        built,
        "{}: `cargo build -p skillgate-plugin-check --examples`",
        file.display()
    );
    file
}

/// The program that cases and plugins run in.
pub(crate) fn program() -> PathBuf {
    example("skillgate_check_program")
}

pub(crate) fn settings(plugin: &Path, config: &serde_json::Value) -> Settings {
    Settings {
        program: program(),
        config_json: config.to_string(),
        ..Settings::new(plugin, &["case"], &["host"])
    }
}

/// What an instance of a bundled plugin is made from.
pub(crate) fn config_of(name: &str) -> serde_json::Value {
    if name == "storage_fs" {
        return serde_json::json!({"root": "${scratch}/store"});
    }
    let uid = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap());
    let downgrades: &[&str] = if uid == 0 { &[] } else { &["cgroup"] };
    // Few wait: most cases make one run.
    serde_json::json!({"downgrades": downgrades, "pool_min": 1, "pool_max": 2})
}

/// The whole report as a person reads it.
pub(crate) fn table(report: &Report) -> String {
    let mut out = Vec::new();
    report.write_table(&mut out).unwrap();
    String::from_utf8(out).unwrap()
}

pub(crate) fn run(settings: &Settings) -> Report {
    check(settings, |_| {}).unwrap()
}

/// The names of the cases that ended so.
pub(crate) fn ended(report: &Report, status: Status) -> Vec<&'static str> {
    let cases = report.cases.iter().filter(|case| case.status == status);
    cases.map(|case| case.name).collect()
}

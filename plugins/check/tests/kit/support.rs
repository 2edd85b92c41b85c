//! What the tests of the kit share.

use std::path::{Path, PathBuf};
use std::process::Command;

use skillgate_plugin_check::{Report, Settings, Status, check};

use crate::tools;

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

/// The plugin that wraps a bundled one and does one thing wrong.
pub(crate) fn saboteur(kind: &str) -> PathBuf {
    example(&format!("libskillgate_saboteur_{kind}.so"))
}

/// Its configuration.
pub(crate) fn sabotaged(inner: &str, sabotage: &str) -> serde_json::Value {
    serde_json::json!({
        "inner": bundled(inner),
        "config": config_of(inner),
        "sabotage": sabotage,
    })
}

/// The plugin of that kind that answers later.
pub(crate) fn one_thread(kind: &str) -> PathBuf {
    example(&format!("libskillgate_one_thread_{kind}.so"))
}

/// Compiles the C plugin of the plugin host's tests into `dir`.
pub(crate) fn probe(dir: &Path, name: &str, options: &[&str]) -> PathBuf {
    let mut all = vec!["-std=c99", "-D_GNU_SOURCE", "-pthread"];
    all.extend(options);
    compile("cc", "../host/tests/loading/probe.c", dir, name, &all)
}

const EXAMPLE_C: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../example-c/store.c");

/// How strictly vendors may compile the example for them.
const STRICT: [&str; 6] = [
    "-std=c99",
    "-Wall",
    "-Wextra",
    "-Wpedantic",
    "-Werror",
    "-pthread",
];

/// The example for vendors.
pub(crate) fn example_c(dir: &Path) -> PathBuf {
    compile("cc", EXAMPLE_C, dir, "store", &STRICT)
}

/// The same, with other words in the place of some.
pub(crate) fn changed_c(dir: &Path, changes: &[(&str, &str)]) -> PathBuf {
    changed_c_with(dir, changes, &[])
}

/// And compiled with more options.
pub(crate) fn changed_c_with(dir: &Path, changes: &[(&str, &str)], more: &[&str]) -> PathBuf {
    let mut text = std::fs::read_to_string(EXAMPLE_C).unwrap();
    for (from, to) in changes {
        assert!(text.contains(from), "{from}");
        text = text.replace(from, to);
    }
    let source = dir.join("changed.c");
    std::fs::write(&source, text).unwrap();
    let options = [&STRICT, more].concat();
    compile("cc", source.to_str().unwrap(), dir, "changed", &options)
}

/// Compiles a plugin that throws; `None`: there is no compiler for C++.
pub(crate) fn thrower(dir: &Path) -> Option<PathBuf> {
    let source = "tests/thrower/thrower.cpp";
    tools::there("c++", "a plugin that throws")
        .then(|| compile("c++", source, dir, "thrower", &["-std=c++11"]))
}

fn compile(compiler: &str, source: &str, dir: &Path, name: &str, options: &[&str]) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let file = dir.join(format!("{name}.so"));
    let output = Command::new(compiler)
        .args(["-O1", "-fPIC", "-shared", "-I"])
        .arg(here.join("../abi/include"))
        .args(options)
        .arg("-o")
        .arg(&file)
        .arg(here.join(source))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    file
}

pub(crate) fn settings(plugin: &Path, config: &serde_json::Value) -> Settings {
    Settings {
        program: program(),
        config_json: config.to_string(),
        ..Settings::new(plugin, &["case"], &["host"])
    }
}

/// Whether to take the time for everything.
pub(crate) fn full() -> bool {
    std::env::var_os("SKILLGATE_TEST_FULL").is_some_and(|value| value != "0")
}

pub(crate) fn is_root() -> bool {
    let this = std::fs::metadata("/proc/self").unwrap();
    std::os::unix::fs::MetadataExt::uid(&this) == 0
}

/// What the bundled sandbox cannot enforce here, and says so: an ordinary user has no control groups in the tests.
pub(crate) fn not_enforced() -> &'static [&'static str] {
    if is_root() {
        &[]
    } else {
        &[
            "sandbox/limit-cpu",
            "sandbox/limit-memory",
            "sandbox/limit-pids",
        ]
    }
}

/// What an instance of a bundled plugin is made from.
pub(crate) fn config_of(name: &str) -> serde_json::Value {
    if name == "storage_fs" {
        return serde_json::json!({"root": "${scratch}/store"});
    }
    let downgrades: &[&str] = if is_root() { &[] } else { &["cgroup"] };
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
    check(settings, |_| Ok(())).unwrap()
}

/// The names of the cases that ended so.
pub(crate) fn ended(report: &Report, status: Status) -> Vec<&'static str> {
    let cases = report.cases.iter().filter(|case| case.status == status);
    cases.map(|case| case.name).collect()
}

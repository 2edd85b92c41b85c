//! The kit leaves the machine of whoever runs it as it was, whatever a plugin does.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use skillgate_plugin_check::{KitError, Settings, Status};

use crate::support::{ended, example_c, program, run, sabotaged, saboteur, settings, table};

/// What hangs waits for it.
const SHORT: Duration = Duration::from_secs(3);
/// Only there to fail.
const LONG: Duration = Duration::from_secs(30);

fn check(sabotage: &str, case: &str, limit: Duration) -> skillgate_plugin_check::Report {
    run(&Settings {
        only: vec![case.to_owned()],
        limit_max: Some(limit),
        ..settings(&saboteur("store"), &sabotaged("storage_fs", sabotage))
    })
}

/// Processes that were started under this name.
fn named(name: &str) -> Vec<String> {
    whose(|line| line.split('\0').next() == Some(name))
}

/// Processes whose command line is such a one.
fn whose(is_it: impl Fn(&str) -> bool) -> Vec<String> {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let found = all.filter(|process| {
        // One that ends just now is none.
        let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        is_it(&String::from_utf8_lossy(&line))
    });
    found
        .map(|process| process.file_name().to_string_lossy().into_owned())
        .collect()
}

#[test]
fn what_a_case_leaves_in_a_session_of_its_own_ends_with_it() {
    for (does, seen, limit) in [("hangs", "it hangs", SHORT), ("aborts", "SIGABRT", LONG)] {
        // No other run of this test on the machine has the name.
        let mark = format!("leaves a session and {does} {}", std::process::id());
        let case = "operations/exactly-once";
        let report = check(&mark, case, limit);
        assert_eq!(ended(&report, Status::Failed), [case], "{}", table(&report));
        assert!(table(&report).contains(seen), "{}", table(&report));
        assert_eq!(named(&mark), Vec::<String>::new());
    }
}

/// Names of processes that other tests start meanwhile may begin with that of this one's, and numbers of other runs with its number.
#[test]
fn a_process_is_looked_for_by_its_whole_name() {
    let name = format!("has a whole name {}", std::process::id());
    let longer = ["1", " until it is stopped"].map(|more| format!("{name}{more}"));
    let mut others = longer.each_ref().map(|other| {
        let mut sleep = Command::new("sleep");
        sleep.arg0(other).arg("30").spawn().unwrap()
    });
    // A process is there, and its program begun, a moment before its command line can be read.
    until("each has its name", || {
        longer.iter().all(|other| !named(other).is_empty())
    });
    let found = named(&name);
    let each = longer.each_ref().map(|other| named(other));
    let pids = others.each_ref().map(|other| vec![other.id().to_string()]);
    for other in &mut others {
        other.kill().unwrap();
        other.wait().unwrap();
    }
    assert_eq!(found, Vec::<String>::new());
    assert_eq!(each, pids);
}

/// Waits until it is so.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let limit = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < limit, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

const HANGS: &str = "leaves a session and hangs";

/// A signal that ends the kit, one that nobody can handle among them, reaches neither the case nor what that has started.
#[test]
fn a_case_ends_with_whoever_checks() {
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let dir = tempfile::tempdir().unwrap();
        let mark = format!("{HANGS} {signal:?} {}", std::process::id());
        let mut kit = Command::new(program())
            .arg("check")
            .arg(saboteur("store"))
            .arg(sabotaged("storage_fs", &mark).to_string())
            .arg("operations/exactly-once")
            .env("TMPDIR", dir.path())
            .spawn()
            .unwrap();
        until("it hangs", || !named(&mark).is_empty());
        let place = dir.path().to_str().unwrap();
        let case = || whose(|line| line.contains(place));
        assert_eq!(case().len(), 2, "a watchdog and a case");
        kill_process(Pid::from_child(&kit), signal).unwrap();
        kit.wait().unwrap();
        until("a process is left", || {
            named(&mark).is_empty() && case().is_empty()
        });
        let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().flatten().collect();
        assert!(left.is_empty(), "{signal:?}: {left:?}");
    }
}

#[test]
fn a_check_that_is_stopped_ends_when_nothing_is_left_of_its_case() {
    let (stop, end) = std::io::pipe().unwrap();
    let mark = format!("{HANGS} {} until it is stopped", std::process::id());
    let settings = Settings {
        only: vec!["operations/exactly-once".to_owned()],
        stop: Some(Arc::new(stop.into())),
        ..settings(&saboteur("store"), &sabotaged("storage_fs", &mark))
    };
    let checks = std::thread::spawn(move || skillgate_plugin_check::check(&settings, |_| Ok(())));
    until("it hangs", || !named(&mark).is_empty());
    drop(end);
    let error = checks.join().unwrap().unwrap_err();
    assert!(matches!(error, KitError::Stopped), "{error}");
    assert_eq!(named(&mark), Vec::<String>::new());
}

#[test]
fn a_plugin_that_writes_to_where_it_is_does_so_in_its_case_and_fails_it() {
    let case = "operations/exactly-once";
    let report = check("writes to where it is", case, SHORT);
    assert_eq!(ended(&report, Status::Failed), [case], "{}", table(&report));
    let here = Path::new("saboteur-was-here");
    let written = here.exists();
    // Not for the next run of the test.
    let _not_there = std::fs::remove_file(here);
    assert!(!written, "it is among the files of whoever runs the kit");
}

/// A vendor publishes the report beside the file, by its sha256.
#[test]
fn a_file_that_is_built_anew_during_its_check_gets_no_report() {
    let dir = tempfile::tempdir().unwrap();
    let plugin = example_c(dir.path());
    let settings = Settings {
        only: vec!["file".to_owned()],
        ..settings(&plugin, &serde_json::json!({}))
    };
    let mut cases = 0;
    let checked = skillgate_plugin_check::check(&settings, |_| {
        cases += 1;
        if cases > 1 {
            return Ok(());
        }
        // What stands behind an ELF file changes nothing of it but its digest.
        let mut bytes = std::fs::read(&plugin)?;
        bytes.push(0);
        std::fs::write(&plugin, bytes)
    });
    let error = checked.unwrap_err();
    assert!(matches!(error, KitError::Changed { .. }), "{error}");
    assert!(error.to_string().contains("was changed during the check"));
}

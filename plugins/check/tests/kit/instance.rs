//! Of a plugin that makes no instance one case says so, and the others are left out.

use std::time::Duration;

use skillgate_plugin_check::{Report, Settings, Status};

use crate::sabotage::NEEDS_ROOT;
use crate::support::{changed_c, ended, run, settings, table};

/// What hangs waits for it.
const SHORT: Duration = Duration::from_secs(3);
const MADE: &str = "contract/instance";

fn checked(change: (&str, &str), only: &[&str]) -> Report {
    let dir = tempfile::tempdir().unwrap();
    run(&Settings {
        only: only.iter().map(|&name| name.to_owned()).collect(),
        limit_max: Some(SHORT),
        ..settings(&changed_c(dir.path(), &[change]), &serde_json::json!({}))
    })
}

fn skipped_for_want_of_one<'a>(report: &'a Report, why: &str) -> Vec<&'a str> {
    let skipped = report.cases.iter().filter(|case| {
        let needs = format!("it needs an instance, and {MADE} has none: ");
        case.status == Status::Skipped && case.seen.starts_with(&needs) && case.seen.contains(why)
    });
    skipped.map(|case| case.name).collect()
}

#[test]
fn a_create_that_refuses_is_told_once() {
    let report = checked(NEEDS_ROOT, &[]);
    assert_eq!(ended(&report, Status::Failed), [MADE], "{}", table(&report));
    assert!(!report.is_good());
    let skipped = skipped_for_want_of_one(&report, "needs root");
    let (passed, all) = (ended(&report, Status::Passed), report.cases.len());
    assert!(
        passed.iter().all(|case| case.starts_with("file/")),
        "{passed:?}"
    );
    let full = usize::from(!skipped.contains(&"storage/blob-large"));
    assert_eq!(
        passed.len() + 1 + skipped.len() + full,
        all,
        "{}",
        table(&report)
    );
}

/// Each case that makes one would wait for it.
#[test]
fn a_create_that_hangs_is_waited_for_once() {
    let hangs = (
        "    s = calloc(1, sizeof *s);\n",
        "    for (;;) sleep(1);\n    s = calloc(1, sizeof *s);\n",
    );
    let report = checked(hangs, &[]);
    assert_eq!(ended(&report, Status::Failed), [MADE], "{}", table(&report));
    assert!(
        skipped_for_want_of_one(&report, "it hangs").len() > 30,
        "{}",
        table(&report)
    );
}

/// The case that makes one need not be asked for: the first that fails of those that are says why with its words.
#[test]
fn of_chosen_cases_one_fails_for_want_of_an_instance() {
    let report = checked(NEEDS_ROOT, &["storage/order", "storage/tenants"]);
    let failed = ended(&report, Status::Failed);
    assert_eq!(failed, [MADE, "storage/order"], "{}", table(&report));
    let advice: Vec<_> = report
        .cases
        .iter()
        .filter(|case| case.status == Status::Failed)
        .collect();
    assert_eq!(advice[0].advice, advice[1].advice);
    assert_eq!(
        skipped_for_want_of_one(&report, "needs root"),
        ["storage/tenants"]
    );
}

/// What it touches is the matter of the cases that take memory away, and these say it.
#[test]
fn a_create_that_faults_is_looked_at_by_the_cases_that_look_for_faults() {
    let faults = (
        "    s = calloc(1, sizeof *s);\n",
        "    if (((const volatile char *)host)[host->struct_size] == 1) return SKG_E_INTERNAL;\n    s = calloc(1, sizeof *s);\n",
    );
    let report = checked(faults, &["contract", "storage/tenants"]);
    let failed = ended(&report, Status::Failed);
    let by_fault = ["older-host", "newer-host", "empty-values", "borrowed"];
    let by_fault = by_fault.map(|name| format!("contract/{name}"));
    assert_eq!(failed[0], MADE, "{}", table(&report));
    assert!(
        failed[1..]
            .iter()
            .all(|case| by_fault.contains(&(*case).to_owned())),
        "{failed:?}"
    );
    assert!(failed.contains(&"contract/older-host"), "{failed:?}");
    let skipped = skipped_for_want_of_one(&report, "SIGSEGV");
    assert!(skipped.contains(&"storage/tenants"), "{}", table(&report));
}

/// One was made, so the others have their turn.
#[test]
fn a_destroy_that_crashes_is_none_of_the_others_matter() {
    let crashes = (
        "static void destroy(void *self) {\n    struct store *s = self;\n",
        "static void destroy(void *self) {\n    struct store *s = self;\n    abort();\n",
    );
    let report = checked(crashes, &[MADE, "storage/caps", "storage/tenants"]);
    let failed = ended(&report, Status::Failed);
    assert_eq!(failed[0], MADE, "{}", table(&report));
    assert!(report.cases[1].seen.contains("it was at: destroy"));
    assert_eq!(ended(&report, Status::Skipped), [] as [&str; 0]);
}

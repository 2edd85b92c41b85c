//! The bundled plugins pass, here and in processes of their own.

use skillgate_plugin_check::{Isolation, Settings, Status};

use crate::support::{bundled, config_of, ended, full, not_enforced, run, settings, table};

fn passes(name: &str, isolation: Isolation, only: &[&str], may_skip: &[&str]) {
    let only = only.iter().map(|&name| name.to_owned()).collect();
    let settings = Settings {
        isolation,
        only,
        ..settings(&bundled(name), &config_of(name))
    };
    let report = run(&settings);
    assert!(report.is_good(), "{}", table(&report));
    let skipped = ended(&report, Status::Skipped);
    assert!(
        skipped.iter().all(|case| may_skip.contains(case)),
        "{skipped:?}"
    );
}

#[test]
fn storage_fs_passes() {
    passes(
        "storage_fs",
        Isolation::Gateway,
        &[],
        &["storage/blob-large"],
    );
}

#[test]
fn storage_fs_passes_in_a_process_of_its_own() {
    let only = ["storage", "figures", "contract/answers"];
    passes(
        "storage_fs",
        Isolation::Process,
        &only,
        &["storage/blob-large"],
    );
}

#[test]
fn sandbox_process_passes() {
    passes("sandbox_process", Isolation::Gateway, &[], not_enforced());
}

#[test]
fn sandbox_process_passes_in_a_process_of_its_own() {
    // Runs are slow to make without optimisation: every day only what goes another way there.
    let every_day = [
        "contract/answers",
        "sandbox/answers",
        "sandbox/blobs",
        "sandbox/egress-gate",
        "sandbox/killed",
        "sandbox/many",
        "sandbox/mounts",
        "sandbox/output",
        "sandbox/secrets",
    ];
    let all = ["sandbox", "figures", "contract/answers"];
    let only: &[&str] = if full() { &all } else { &every_day };
    passes("sandbox_process", Isolation::Process, only, not_enforced());
}

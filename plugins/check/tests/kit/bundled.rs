//! The bundled plugins and the example in C pass, here and in processes of their own.

use std::time::Duration;

use skillgate_plugin_check::{Isolation, Settings, Status};

use crate::support::{
    bundled, changed_c, config_of, ended, example_c, full, not_enforced, run, settings, table,
};

/// No case may take longer whose calls do not: a thousand calls over a network do.
const EVERY_DAY_LIMIT: Duration = Duration::from_secs(30);

fn passes(name: &str, isolation: Isolation, only: &[&str], may_skip: &[&str]) {
    let settings = Settings {
        isolation,
        only: only.iter().map(|&name| name.to_owned()).collect(),
        ..settings(&bundled(name), &config_of(name))
    };
    all_pass(&settings, may_skip);
}

pub(crate) fn all_pass(settings: &Settings, may_skip: &[&str]) {
    let report = run(settings);
    assert!(report.is_good(), "{}", table(&report));
    let skipped = ended(&report, Status::Skipped);
    let fairly = skipped.iter().all(|case| may_skip.contains(case));
    assert!(fairly, "{skipped:?}");
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

/// A store may have skills that nobody has published: the operator's.
#[test]
fn storage_fs_passes_beside_read_only_skills() {
    let shelf = concat!(env!("CARGO_MANIFEST_DIR"), "/../../skills");
    let config = serde_json::json!({"root": "${scratch}/store", "read_only_skills": [shelf]});
    let settings = Settings {
        only: vec!["storage".to_owned()],
        ..settings(&bundled("storage_fs"), &config)
    };
    all_pass(&settings, &["storage/blob-large"]);
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
        "sandbox/skills",
    ];
    let all = ["sandbox", "figures", "contract/answers"];
    let only: &[&str] = if full() { &all } else { &every_day };
    passes("sandbox_process", Isolation::Process, only, not_enforced());
}

/// It keeps everything in memory, and says so: of what is there after its process was killed nothing is asked.
#[test]
fn the_store_in_c_passes() {
    let dir = tempfile::tempdir().unwrap();
    let store = example_c(dir.path());
    for isolation in [Isolation::Gateway, Isolation::Process] {
        let settings = Settings {
            isolation,
            ..settings(&store, &serde_json::json!({}))
        };
        let may_skip = [
            "storage/blob-durability",
            "storage/blob-large",
            "storage/durability",
        ];
        all_pass(&settings, &may_skip);
    }
}

/// A store may keep only skills, or only blobs, and need not say how it is: what it has not is not asked for.
#[test]
fn a_store_that_has_one_half_passes() {
    let dir = tempfile::tempdir().unwrap();
    let all = "SKG_ST_SKILLS | SKG_ST_SKILLS_WRITE | SKG_ST_BLOBS | SKG_ST_BLOB_FD |";
    let skills = [
        "health",
        "blob_create",
        "blob_write",
        "blob_commit",
        "blob_abort",
        "blob_stat",
        "blob_open",
        "blob_read",
        "blob_close",
        "blob_fd",
        "blob_delete",
    ];
    let blobs = [
        "health",
        "skill_list",
        "skill_get",
        "skill_read",
        "skill_tree",
        "skill_put",
    ];
    for (has, lacks) in [
        ("SKG_ST_SKILLS | SKG_ST_SKILLS_WRITE |", &skills[..]),
        ("SKG_ST_BLOBS | SKG_ST_BLOB_FD |", &blobs),
    ] {
        let lacks = lacks
            .iter()
            .map(|of| (format!("    t->{of} = {of};"), format!("    (void){of};")));
        let lacks: Vec<(String, String)> = lacks.collect();
        let changes = lacks.iter().map(|(of, none)| (of.as_str(), none.as_str()));
        let changes: Vec<_> = changes.chain([(all, has)]).collect();
        let settings = settings(&changed_c(dir.path(), &changes), &serde_json::json!({}));
        let report = run(&settings);
        assert!(report.is_good(), "{has}: {}", table(&report));
        let skipped = ended(&report, Status::Skipped);
        assert!(
            skipped.iter().all(|case| case.starts_with("storage/")),
            "{has}: {skipped:?}"
        );
        let figures = report.cases.iter().flat_map(|case| &case.figures);
        let lists = figures
            .filter(|of| of.name.starts_with("skill_list"))
            .count();
        assert_eq!(lists > 0, has.contains("SKILLS"), "{has}");
    }
}

/// Where none is due, 0 is what a struct that was only zeroed has: nobody's standard input is closed for it.
#[test]
fn a_store_that_leaves_out_the_descriptor_where_none_is_due_passes() {
    let dir = tempfile::tempdir().unwrap();
    let changes = [("            c.fd = -1;\n", ""), ("    o.fd = -1;\n", "")];
    let store = changed_c(dir.path(), &changes);
    let only = [
        "contract/answers",
        "operations/exactly-once",
        "process/descriptors",
        "storage/publish-and-read",
        "storage/blob-ranges",
    ];
    for isolation in [Isolation::Gateway, Isolation::Process] {
        let settings = Settings {
            isolation,
            only: only.map(str::to_owned).to_vec(),
            ..settings(&store, &serde_json::json!({}))
        };
        all_pass(&settings, &[]);
    }
}

/// Whose calls go over a network, as it looks from here: each takes its time, and nothing else is wrong.
#[test]
fn a_store_that_is_far_away_passes() {
    let dir = tempfile::tempdir().unwrap();
    let changes = [
        (
            "#include <pthread.h>",
            "#include <poll.h>\n#include <pthread.h>",
        ),
        ("resume(s);", "poll(NULL, 0, 45); resume(s);"),
    ];
    let store = changed_c(dir.path(), &changes);
    // Those with many calls take minutes then.
    let every_day = ["contract/answers", "figures", "storage/cursors"];
    let only: &[&str] = if full() { &[] } else { &every_day };
    let settings = Settings {
        only: only.iter().map(|&name| name.to_owned()).collect(),
        limit_max: (!full()).then_some(EVERY_DAY_LIMIT),
        ..settings(&store, &serde_json::json!({}))
    };
    all_pass(&settings, &["storage/blob-large", "storage/durability"]);
    let report = run(&Settings {
        only: vec!["figures".to_owned()],
        ..settings
    });
    let figures = &report.cases.last().unwrap().figures;
    let calls = figures
        .iter()
        .find(|figure| figure.name == "skill_list_calls");
    let calls = calls.unwrap().value;
    assert!((1.0..1000.0).contains(&calls), "{calls}");
}

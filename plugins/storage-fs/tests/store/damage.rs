//! Somebody has changed what is stored of a skill: it is not given out to be run until it is restored. Or what is stored of a blob:
//! it can be deleted.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::blocking::Storage;
use skillgate_storage_fs::StorageFs;

use crate::support::*;

const CODE: &[u8] = b"def main(args):\n    return 1\n";
const EVIL: &[u8] = b"def main(args):\n    return 2\n";

/// A store with one version, and where that is.
fn published(bench: &Bench) -> (StorageFs, PathBuf) {
    let store = bench.store();
    store
        .skill_put(&skill("acme", "a.b", "1.0.0", CODE))
        .unwrap();
    (store, bench.root().join("tenants/acme/skills/a.b/1.0.0"))
}

fn refused(store: &StorageFs, what: &str, part: &str) {
    let error = store.skill_tree("acme", "a.b", "").expect_err(what);
    assert_eq!(error.code, abi::E_CORRUPT, "{what}: {error}");
    assert!(error.message.contains(part), "{what}: {error}");
}

#[test]
fn a_tree_that_is_not_what_was_published_is_given_to_nobody() {
    // What is changed below `files`, and which file of it the error names.
    type Change = (&'static str, fn(&Path), &'static str);
    let changes: [Change; 10] = [
        (
            "other content of the same length",
            |files| std::fs::write(files.join("code/main.py"), EVIL).unwrap(),
            "code/main.py",
        ),
        (
            "longer",
            |files| std::fs::write(files.join("code/main.py"), [CODE, CODE].concat()).unwrap(),
            "code/main.py",
        ),
        (
            "shorter",
            |files| std::fs::write(files.join("code/main.py"), "").unwrap(),
            "code/main.py",
        ),
        (
            "lost",
            |files| std::fs::remove_file(files.join("code/main.py")).unwrap(),
            "code/main.py",
        ),
        (
            "one more",
            |files| std::fs::write(files.join("code/json.py"), EVIL).unwrap(),
            "code/json.py",
        ),
        (
            "one more beside",
            |files| std::fs::write(files.join("a.py"), EVIL).unwrap(),
            "files/a.py",
        ),
        (
            "a link",
            |files| symlink("main.py", files.join("code/json.py")).unwrap(),
            "code/json.py",
        ),
        (
            "a directory in its place",
            |files| {
                std::fs::remove_file(files.join("code/main.py")).unwrap();
                std::fs::create_dir(files.join("code/main.py")).unwrap();
            },
            "code/main.py",
        ),
        (
            "directories below each other",
            |files| std::fs::create_dir_all(files.join("d/".repeat(65))).unwrap(),
            "nested deeper than 64 directories",
        ),
        (
            "all of it lost",
            |files| std::fs::remove_dir_all(files).unwrap(),
            "1.0.0/files",
        ),
    ];
    for is_first in [true, false] {
        for (what, change, part) in changes {
            let bench = Bench::new();
            let store = bench.store();
            store
                .skill_put(&skill("acme", "a.b", "1.0.0", CODE))
                .unwrap();
            if !is_first {
                store.skill_tree("acme", "a.b", "").unwrap();
            }
            change(&bench.root().join("tenants/acme/skills/a.b/1.0.0/files"));
            refused(&store, what, part);
            // And by another life of it.
            drop(store);
            refused(&bench.store(), what, part);
        }
    }
}

#[test]
fn the_operator_is_told_once_and_until_it_is_restored() {
    let bench = Bench::new();
    let store = bench.store();
    store
        .skill_put(&skill("acme", "a.b", "1.0.0", CODE))
        .unwrap();
    store
        .skill_put(&skill("acme", "c.d", "1.0.0", CODE))
        .unwrap();
    let version = bench.root().join("tenants/acme/skills/a.b/1.0.0");
    let file = version.join("files/code/main.py");
    std::fs::write(&file, EVIL).unwrap();
    for _ in 0..2 {
        refused(&store, "changed", "code/main.py");
    }
    store.skill_tree("acme", "c.d", "").unwrap();
    assert_eq!(
        bench.count_logged("Error a skill is not what was published"),
        1
    );
    let health = store.health().unwrap();
    assert_eq!(health.state, abi::HEALTH_DEGRADED);
    assert!(health.message.contains("see the log"), "{}", health.message);
    assert!(health.metrics_json.contains(r#""skills_damaged":1"#));
    std::fs::write(&file, CODE).unwrap();
    store.skill_tree("acme", "a.b", "").unwrap();
    assert_eq!(bench.count_logged("what was published again"), 1);
    let health = store.health().unwrap();
    assert_eq!(health.state, abi::HEALTH_OK, "{}", health.message);
    assert!(health.metrics_json.contains(r#""skills_damaged":0"#));
}

/// The gateway asks for it before it asks for the directory, and never comes to that.
#[test]
fn a_record_that_is_damaged_is_told_whoever_asks_first() {
    type Ask = fn(&StorageFs) -> i32;
    let asks: [Ask; 3] = [
        |store| code_of(store.skill_get("acme", "a.b", "")),
        |store| code_of(store.skill_read("acme", "a.b", "", "code/main.py")),
        |store| code_of(store.skill_tree("acme", "a.b", "")),
    ];
    type Change = fn(&Path);
    let changes: [Change; 3] = [
        |meta| std::fs::write(meta, "{").unwrap(),
        |meta| std::fs::remove_file(meta).unwrap(),
        |meta| {
            std::fs::remove_file(meta).unwrap();
            std::fs::create_dir(meta).unwrap();
        },
    ];
    for change in changes {
        for ask in asks {
            let bench = Bench::new();
            let (store, version) = published(&bench);
            change(&version.join("meta.json"));
            assert_eq!([ask(&store), ask(&store)], [abi::E_CORRUPT; 2]);
            assert_eq!(
                bench.count_logged("Error a skill is not what was published"),
                1
            );
            let health = store.health().unwrap();
            assert_eq!(health.state, abi::HEALTH_DEGRADED);
            assert!(health.metrics_json.contains(r#""skills_damaged":1"#));
        }
    }
}

fn code_of<T>(outcome: skillgate_plugin_sdk::model::Result<T>) -> i32 {
    outcome.err().map_or(abi::OK, |error| error.code)
}

/// A skill is known, and decided about, by its digest: who writes the record of another content cannot keep it.
#[test]
fn a_record_that_fits_the_changed_file_is_seen_through() {
    let bench = Bench::new();
    let (store, version) = published(&bench);
    std::fs::write(version.join("files/code/main.py"), EVIL).unwrap();
    let sealed = std::fs::read_to_string(version.join("meta.json")).unwrap();
    let record = |tree: Option<String>| {
        let changed = sealed.replace(&hex_digest(CODE), &hex_digest(EVIL));
        let sealed: Value = serde_json::from_str(&changed).unwrap();
        let mut meta = sealed["meta"].clone();
        if let Some(tree) = tree {
            meta["head"]["tree_sha256"] = tree.into();
        }
        let check = hex_digest(meta.to_string().as_bytes());
        let sealed = json!({ "check": check, "meta": meta });
        std::fs::write(version.join("meta.json"), sealed.to_string()).unwrap();
    };
    record(None);
    refused(
        &store,
        "with the digest of before",
        "is not that of its files",
    );
    let read = store.skill_read("acme", "a.b", "", "code/main.py");
    assert_eq!(read.unwrap_err().code, abi::E_CORRUPT);
    record(Some(skill("acme", "a.b", "1.0.0", EVIL).tree_sha256));
    refused(&store, "with its own digest", "about other content");
    drop(store);
    record(None);
    let store = bench.store();
    let there = store.skill_get("acme", "a.b", "");
    assert_eq!(there.unwrap_err().code, abi::E_NOT_FOUND);
    assert!(bench.logged("is not that of its files"));
}

/// Of the same files, and so of the same digest: who has published them is somebody else.
#[test]
fn the_record_of_another_skill_version_or_tenant_is_seen_through() {
    let bench = Bench::new();
    let (store, version) = published(&bench);
    for (tenant, name, number) in [
        ("zeta", "a.b", "1.0.0"),
        ("acme", "a.c", "1.0.0"),
        ("acme", "a.b", "0.9.0"),
    ] {
        store.skill_put(&skill(tenant, name, number, CODE)).unwrap();
        let other = format!("tenants/{tenant}/skills/{name}/{number}/meta.json");
        std::fs::copy(bench.root().join(&other), version.join("meta.json")).unwrap();
        refused(&store, &other, "about another skill, version or tenant");
        let got = store.skill_get("acme", "a.b", "");
        assert_eq!(got.unwrap_err().code, abi::E_CORRUPT, "{other}");
    }
}

#[test]
fn what_is_in_the_place_of_a_record_is_damage_and_can_be_deleted() {
    type Change = fn(&Path);
    let code = |store: &StorageFs, id: &str| store.blob_stat("acme", id).unwrap_err().code;
    let changes: [Change; 2] = [
        |meta| {
            std::fs::remove_file(meta).unwrap();
            std::fs::create_dir(meta).unwrap();
        },
        // More than is read of one.
        |meta| {
            let file = std::fs::File::options().write(true).open(meta);
            file.unwrap().set_len(9 << 20).unwrap();
        },
    ];
    for change in changes {
        let bench = Bench::new();
        let store = bench.store();
        let id = store_blob(&store, &blob_of("acme"), b"x").unwrap().id;
        change(&bench.blob_dir("acme", &id).join("meta.json"));
        assert_eq!(code(&store, &id), abi::E_CORRUPT);
        store.blob_delete("acme", &id).unwrap();
        assert_eq!(code(&store, &id), abi::E_NOT_FOUND);
    }
}

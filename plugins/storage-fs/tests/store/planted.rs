//! Somebody else has put things into the store or onto the shelf: links, pipes, devices. They are refused and never followed.

use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::blocking::Storage;
use skillgate_plugin_sdk::model::Error;

use crate::support::*;

/// Puts something that is no regular file at `path`; false when this user may not.
fn plant(what: &str, path: &Path, secret: &Path) -> bool {
    if path.is_dir() {
        std::fs::remove_dir_all(path).unwrap();
    } else if path.symlink_metadata().is_ok() {
        std::fs::remove_file(path).unwrap();
    }
    let mode = Mode::from_raw_mode(0o666);
    match what {
        "symlink" => symlink(secret, path).unwrap(),
        "relative symlink" => symlink("meta.json", path).unwrap(),
        "magic link" => symlink("/proc/self/environ", path).unwrap(),
        "fifo" => mknodat(CWD, path, FileType::Fifo, mode, 0).unwrap(),
        "socket" => drop(std::os::unix::net::UnixListener::bind(path).unwrap()),
        // /dev/zero would give bytes for ever.
        "device" => {
            return mknodat(
                CWD,
                path,
                FileType::CharacterDevice,
                mode,
                rustix::fs::makedev(1, 5),
            )
            .is_ok();
        }
        "directory" => std::fs::create_dir(path).unwrap(),
        other => panic!("{other}"),
    }
    true
}

const KINDS: [&str; 7] = [
    "symlink",
    "relative symlink",
    "magic link",
    "fifo",
    "socket",
    "device",
    "directory",
];

fn refused<T: std::fmt::Debug>(result: Result<T, Error>, what: &str) {
    let error = result.expect_err(what);
    // A socket cannot even be opened (ENXIO).
    let fine = [abi::E_CORRUPT, abi::E_INVALID_ARGUMENT, abi::E_INTERNAL].contains(&error.code);
    assert!(fine, "{what}: {error}");
    assert!(!error.message.contains("top secret"), "{what}: {error}");
}

#[test]
fn in_the_store_they_are_refused() {
    let bench = Bench::new();
    let secret = bench.dir.path().join("secret");
    std::fs::write(&secret, "top secret").unwrap();
    let store = bench.store();
    store
        .skill_put(&skill("acme", "a.b", "1.0.0", b"top secret"))
        .unwrap();
    let version = bench.root().join("tenants/acme/skills/a.b/1.0.0");
    let small = store_blob(&store, &blob_of("acme"), b"top secret")
        .unwrap()
        .id;
    let large = store_blob(&store, &blob_of("acme"), &bytes(1, 2_000_000))
        .unwrap()
        .id;
    for what in KINDS {
        if !plant(what, &version.join("files/code/main.py"), &secret) {
            println!("skipped: this user may not make a {what}");
            continue;
        }
        refused(store.skill_read("acme", "a.b", "", "code/main.py"), what);
        for (id, file) in [(&small, "data"), (&large, "chunks"), (&small, "meta.json")] {
            let path = bench.blob_dir("acme", id).join(file);
            let kept = std::fs::read(&path).unwrap();
            plant(what, &path, &secret);
            refused(store.blob_open("acme", id, 0, 0), what);
            if file != "chunks" {
                refused(store.blob_fd("acme", id), what);
            }
            if path.is_dir() {
                std::fs::remove_dir(&path).unwrap();
            } else {
                std::fs::remove_file(&path).unwrap();
            }
            std::fs::write(&path, kept).unwrap();
        }
        plant(what, &version.join("files/SKILL.md"), &secret);
        refused(store.skill_read("acme", "a.b", "", "SKILL.md"), what);
    }
    assert_eq!(read_blob(&store, "acme", &small).unwrap(), b"top secret");
    // A directory on the way that is a link, with everything behind it that one could wish for.
    let outside = bench.dir.path().join("outside");
    std::fs::rename(version.join("files"), &outside).unwrap();
    std::fs::remove_dir(outside.join("SKILL.md")).unwrap();
    std::fs::write(outside.join("SKILL.md"), "---\nname: x\n---\n# x\n").unwrap();
    symlink(&outside, version.join("files")).unwrap();
    refused(
        store.skill_read("acme", "a.b", "", "SKILL.md"),
        "a linked directory",
    );
    refused(store.skill_tree("acme", "a.b", ""), "a linked directory");
    let blob = bench.blob_dir("acme", &small);
    std::fs::rename(&blob, bench.dir.path().join("blob")).unwrap();
    symlink(bench.dir.path().join("blob"), &blob).unwrap();
    refused(store.blob_stat("acme", &small), "a linked blob");
    // A link within the store is one too: to another tenant's files, for instance.
    store
        .skill_put(&skill("zeta", "z.z", "1.0.0", b"theirs"))
        .unwrap();
    std::fs::remove_file(version.join("files")).unwrap();
    symlink(
        "../../../../zeta/skills/z.z/1.0.0/files",
        version.join("files"),
    )
    .unwrap();
    assert!(version.join("files/SKILL.md").exists());
    refused(
        store.skill_tree("acme", "a.b", ""),
        "a link within the store",
    );
    // What is a link is taken away as a link.
    store.blob_delete("acme", &small).unwrap();
    assert!(bench.dir.path().join("blob/data").exists());
}

#[test]
fn at_the_start_they_are_left_out() {
    let bench = Bench::new();
    let store = bench.store();
    for version in ["1.0.0", "1.1.0"] {
        store
            .skill_put(&skill("acme", "a.b", version, b"x"))
            .unwrap();
    }
    store
        .skill_put(&skill("zeta", "a.b", "1.0.0", b"x"))
        .unwrap();
    drop(store);
    let tenants = bench.root().join("tenants");
    for what in KINDS {
        let planted = plant(
            what,
            &tenants.join("acme/skills/a.b/1.0.0/meta.json"),
            &tenants.join("acme/skills/a.b/1.1.0/meta.json"),
        );
        if planted {
            let store = bench.store();
            assert_eq!(store.skill_get("acme", "a.b", "").unwrap().version, "1.1.0");
            assert_eq!(
                store.skill_get("acme", "a.b", "1.0.0").unwrap_err().code,
                abi::E_NOT_FOUND,
                "{what}"
            );
            assert!(bench.logged("a.b/1.0.0"));
        }
    }
    symlink(tenants.join("zeta"), tenants.join("linked")).unwrap();
    let store = bench.store();
    assert_eq!(
        store.skill_get("linked", "a.b", "").unwrap_err().code,
        abi::E_NOT_FOUND
    );
}

#[test]
fn a_planted_lock_format_or_directory_is_not_followed() {
    for name in ["lock", "format", "tmp", "tenants"] {
        let bench = Bench::new();
        drop(bench.store());
        let path = bench.root().join(name);
        if path.is_dir() {
            std::fs::remove_dir_all(&path).unwrap();
        } else if path.exists() {
            std::fs::remove_file(&path).unwrap();
        }
        let target = bench.dir.path().join("target");
        if name == "lock" || name == "format" {
            std::fs::write(&target, "skillgate-store 1\n").unwrap();
        } else {
            std::fs::create_dir(&target).unwrap();
            std::fs::write(target.join("kept"), "x").unwrap();
        }
        symlink(&target, &path).unwrap();
        let result = bench.create(&format!(
            r#"{{"root": {:?}, "fsync": false}}"#,
            bench.root()
        ));
        match result {
            Err(error) => assert_eq!(error.code, abi::E_CORRUPT, "{name}: {error}"),
            // It is only found to be a link when something is to be put there.
            Ok(store) => {
                assert_eq!(name, "tenants");
                assert_eq!(
                    store_blob(&store, &blob_of("acme"), b"x").unwrap_err().code,
                    abi::E_CORRUPT
                );
            }
        }
        if target.is_dir() {
            assert_eq!(count(&target), 1, "{name}");
        } else {
            assert_eq!(
                std::fs::read(&target).unwrap(),
                b"skillgate-store 1\n",
                "{name}"
            );
        }
    }
}

/// Nobody knows how many skills are in it; that there is something is told as long as the store lives.
#[test]
fn a_directory_that_cannot_be_listed_at_the_start_is_counted() {
    let bench = Bench::new();
    drop(bench.store());
    let tenant = bench.root().join("tenants/acme");
    std::fs::create_dir_all(&tenant).unwrap();
    symlink(bench.dir.path(), tenant.join("skills")).unwrap();
    let health = bench.store().health().unwrap();
    assert_eq!(health.state, abi::HEALTH_DEGRADED, "{health:?}");
    let counted = health.metrics_json.contains(r#""skills_unread":1,"#);
    assert!(counted, "{health:?}");
}

/// Nobody knows how many blobs have expired; that they are not removed is told.
#[test]
fn a_sweep_that_cannot_look_is_counted() {
    let bench = Bench::new();
    drop(bench.store());
    std::fs::write(bench.root().join("expires"), "").unwrap();
    let store = bench.store();
    bench.wait_until_logged("could not look for all expired blobs", 1);
    let health = store.health().unwrap();
    assert_eq!(health.state, abi::HEALTH_DEGRADED, "{health:?}");
    let counted = health.metrics_json.contains(r#""expired_stuck":1,"#);
    assert!(counted, "{health:?}");
}

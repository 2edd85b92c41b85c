//! Full disks and memory, each in a process of its own.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::blocking::Storage;
use skillgate_plugin_sdk::model::{CreateRequest, Error};
use skillgate_storage_fs::StorageFs;

use crate::child::{self, say};
use crate::support::*;
use crate::tools;

const MIB: usize = 1024 * 1024;

fn open(root: &Path) -> StorageFs {
    let host = skillgate_plugin_sdk::Host::for_tests(|_, _, _, _| {});
    let config =
        format!(r#"{{"root": {root:?}, "fsync": false, "reserve_bytes": 0, "reserve_inodes": 0}}"#);
    StorageFs::create(
        host,
        CreateRequest {
            config_json: config.into_bytes(),
            ..CreateRequest::default()
        },
    )
    .unwrap()
}

/// The child's part: on a file system of a few MiB.
pub(crate) fn fill_the_disk(dir: &Path) {
    let store = open(&dir.join("store"));
    let tmp = dir.join("store/tmp");
    let kept = store_blob(&store, &blob_of("acme"), b"kept").unwrap().id;
    let known = skill("acme", "a.known", "1.0.0", b"x");
    store.skill_put(&known).unwrap();
    let exhausted = |error: Error| {
        assert_eq!(error.code, abi::E_EXHAUSTED, "{error}");
        assert!(
            error.retryable && error.retry_after_ms >= 10_000,
            "{error:?}"
        );
        assert_eq!(count(&tmp), 0, "nothing is left behind");
        let health = store.health().unwrap();
        assert_eq!(health.state, abi::HEALTH_DEGRADED, "{}", health.message);
        assert!(
            health.message.contains("No space left"),
            "{}",
            health.message
        );
        assert!(health.metrics_json.contains(r#""writes_refused":1"#));
    };
    for size in [16 * MIB, 64 * MIB] {
        exhausted(store_blob(&store, &blob_of("acme"), &bytes(1, size)).unwrap_err());
        exhausted(
            store
                .skill_put(&skill("acme", "a.b", "1.0.0", &bytes(1, 8 * MIB)))
                .unwrap_err(),
        );
    }
    // Almost full, so that the small files of a blob are what does not fit.
    let mut filled = 0;
    let error = loop {
        match store_blob(&store, &blob_of("acme"), &bytes(filled, 40_000)) {
            Ok(_) => filled += 1,
            Err(error) => break error,
        }
    };
    exhausted(error);
    // To have what is there already stored again is no news of the disk.
    store.skill_put(&known).unwrap();
    assert_eq!(store.health().unwrap().state, abi::HEALTH_DEGRADED);
    assert!(filled > 10, "{filled}");
    assert_eq!(
        store.skill_get("acme", "a.b", "").unwrap_err().code,
        abi::E_NOT_FOUND
    );
    assert_eq!(read_blob(&store, "acme", &kept).unwrap(), b"kept");
    // Full to the last byte, and the lock is one that a start before could not write into, or has another's number: it opens, since
    // what is in it may go.
    drop(store);
    std::fs::write(dir.join("store/lock"), "").unwrap();
    let mut rest = std::fs::File::create(dir.join("rest")).unwrap();
    while rest.write_all(&[0; 512]).is_ok() {}
    let store = open(&dir.join("store"));
    std::fs::remove_file(dir.join("rest")).unwrap();
    assert_eq!(store.health().unwrap().state, abi::HEALTH_OK);
    store
        .skill_put(&skill("acme", "a.b", "1.0.0", &bytes(1, 8 * MIB)))
        .unwrap_err();
    assert_eq!(store.health().unwrap().state, abi::HEALTH_DEGRADED);
    // Space again, and it works again without a restart. Deleting works on a full disk.
    for prefix in std::fs::read_dir(dir.join("store/tenants/acme/blobs")).unwrap() {
        for blob in std::fs::read_dir(prefix.unwrap().path()).unwrap() {
            let id = format!("blob:{}", blob.unwrap().file_name().to_str().unwrap());
            if id != kept {
                store.blob_delete("acme", &id).unwrap();
            }
        }
    }
    store
        .skill_put(&skill("acme", "a.b", "1.0.0", b"x"))
        .unwrap();
    let health = store.health().unwrap();
    assert_eq!(health.state, abi::HEALTH_OK, "{}", health.message);
    assert!(health.metrics_json.contains(r#""writes_refused":0"#));
    say("survived");
}

#[test]
fn a_full_disk_is_an_answer_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    // A mount namespace of its own: the file system is gone with the process.
    for unshare in [&["-m"][..], &["-Urm"]] {
        let mut command = Command::new("unshare");
        command.args(unshare).args([
            "sh",
            "-c",
            r#"mount -t tmpfs -o size=6m none "$0" && echo mounted >&2 && exec "$@""#,
        ]);
        command
            .arg(dir.path())
            .arg(std::env::current_exe().unwrap())
            .args(child::ARGS);
        child::set_job(&mut command, "full", dir.path());
        let said = command
            .output()
            .map(|output| String::from_utf8_lossy(&output.stderr).into_owned())
            .unwrap_or_default();
        if said.contains("mounted") {
            assert!(said.contains("survived"), "{said}");
            return;
        }
    }
    // Root in CI makes namespaces elsewhere too (tests/gateway/egress.rs).
    tools::left_out_but_in_ci("a full disk: no mount namespace to be had here");
}

/// The most memory that this process has had in RAM, in KiB.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM:"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// The child's part.
pub(crate) fn stream_much(dir: &Path) {
    let store = open(&dir.join("store"));
    // Everything that is allocated once is, before the measurement.
    let warm = store_blob(&store, &blob_of("acme"), &bytes(1, 2 * MIB))
        .unwrap()
        .id;
    read_blob(&store, "acme", &warm).unwrap();
    let mut buf = bytes(5, MIB);
    let mib = if exhaustive() { 1024 } else { 128 };
    let before = peak_kib();
    let started = std::time::Instant::now();
    let writer = store.blob_create(&blob_of("acme")).unwrap();
    for _ in 0..mib {
        store.blob_write(writer, &buf).unwrap();
    }
    let stat = store.blob_commit(writer).unwrap();
    let written = started.elapsed();
    assert_eq!(stat.size_bytes, (mib * MIB) as u64);
    let (reader, _) = store.blob_open("acme", &stat.id, 0, 0).unwrap();
    let mut total = 0;
    loop {
        let (n, end) = store.blob_read(reader, &mut buf[..100_000]).unwrap();
        total += n;
        if end {
            break;
        }
    }
    assert_eq!(total, mib * MIB);
    let read = started.elapsed() - written;
    store.blob_fd("acme", &stat.id).unwrap();
    let verified = started.elapsed() - written - read;
    store.blob_delete("acme", &stat.id).unwrap();
    say(&format!(
        "{mib} MiB in {written:?}, out {read:?}, by descriptor {verified:?}"
    ));
    say(&format!("grown {}", peak_kib() - before));
}

#[test]
fn much_streams_through_little_memory() {
    let dir = tempfile::tempdir().unwrap();
    let output = child::command("stream", dir.path())
        .stdout(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    println!("{said}");
    let grown = said
        .lines()
        .find_map(|line| line.strip_prefix("grown "))
        .unwrap_or_else(|| panic!("{said}"));
    let grown: u64 = grown.parse().unwrap();
    assert!(grown < 8 * 1024, "{grown} KiB");
}

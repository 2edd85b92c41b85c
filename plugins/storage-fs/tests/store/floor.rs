//! The floor of free space, on a file system that says what the test wants.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};

use skillgate_plugin_sdk::blocking::Storage;
use skillgate_plugin_sdk::model::{CreateRequest, Error, PutSkill};
use skillgate_plugin_sdk::{Host, abi};
use skillgate_storage_fs::{Free, StorageFs};

use crate::support::*;

const MIB: u64 = 1024 * 1024;
const RESERVE: u64 = 100 * MIB;
const RESERVE_INODES: u64 = 500;
const PIECE: usize = 256 * 1024;

/// What each file and directory is promised beside its content.
const BLOCK: u64 = 4096;
/// What a blob is promised before anything of it is known: all that it can have and be in.
const BLOB_BEFORE: u64 = 12 * BLOCK;

/// `LOOK_EVERY_BYTES` of the store.
const LOOK_EVERY: u64 = 8 * MIB;

fn store(bench: &Bench) -> StorageFs {
    let root = bench.root();
    bench
        .create(&format!(
            r#"{{"root": {root:?}, "fsync": false, "reserve_bytes": {RESERVE}, "reserve_inodes": {RESERVE_INODES}}}"#
        ))
        .unwrap()
}

fn free(bench: &Bench, bytes: u64) {
    bench.free_bytes.store(bytes, Ordering::Relaxed);
}

fn looks(bench: &Bench) -> u64 {
    bench.looks.swap(0, Ordering::Relaxed)
}

fn assert_full(bench: &Bench, error: &Error) {
    assert_less(bench, error, &format!("{RESERVE} bytes"));
}

fn assert_less(bench: &Bench, error: &Error, what: &str) {
    assert_eq!(error.code, abi::E_EXHAUSTED, "{error}");
    assert!(
        error.retryable && error.retry_after_ms >= 10_000,
        "{error:?}"
    );
    let words = format!("less than {what} free");
    assert!(
        error.message.contains(&words) && error.message.contains("store less"),
        "{error}"
    );
    let place = bench.dir.path().to_str().unwrap();
    assert!(!error.message.contains(place), "{error}");
}

#[test]
fn below_the_floor_nothing_is_made_and_the_rest_goes_on() {
    let bench = Bench::new();
    let store = store(&bench);
    let kept = store_blob(&store, &blob_of("acme"), b"kept").unwrap().id;
    let gone = store_blob(&store, &blob_of("acme"), b"gone").unwrap().id;
    let put = skill("acme", "a.b", "1.0.0", b"x");
    store.skill_put(&put).unwrap();

    free(&bench, RESERVE - 1);
    assert_full(&bench, &store.blob_create(&blob_of("other")).unwrap_err());
    let new = skill("acme", "a.b", "2.0.0", b"x");
    assert_full(&bench, &store.skill_put(&new).unwrap_err());
    assert_eq!(bench.in_tmp(), 0);
    // Nothing is added by these.
    assert_eq!(store.skill_put(&put).unwrap().version, "1.0.0");
    assert_eq!(read_blob(&store, "acme", &kept).unwrap(), b"kept");
    store.blob_delete("acme", &gone).unwrap();

    free(&bench, RESERVE + BLOB_BEFORE - 1);
    assert_full(&bench, &store.blob_create(&blob_of("acme")).unwrap_err());
    free(&bench, RESERVE + BLOB_BEFORE);
    let writer = store.blob_create(&blob_of("acme")).unwrap();
    assert_full(&bench, &store.blob_write(writer, b"x").unwrap_err());
    store.blob_abort(writer);
    free(&bench, RESERVE + BLOB_BEFORE + 1);
    store_blob(&store, &blob_of("acme"), b"x").unwrap();
    assert_full(
        &bench,
        &store_blob(&store, &blob_of("acme"), b"xy").unwrap_err(),
    );
    assert_eq!(bench.in_tmp(), 0);
}

/// Bytes of all files below a directory. What is moved or removed meanwhile may count twice or not at all.
fn taken(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => taken(&entry.path()),
        Ok(meta) => meta.len(),
        Err(_) => 0,
    };
    entries.map(size).sum()
}

/// A skill's size is known, so it is refused before anything of it is written.
#[test]
fn a_skill_counts_with_all_its_files() {
    let bench = Bench::new();
    let store = store(&bench);
    let put = |version| skill("acme", "a.b", version, &bytes(1, 1000));
    store.skill_put(&put("1.0.0")).unwrap();
    // Four files in two directories, and what is beside and above.
    let inodes = 4 + 2 + 7;
    let size = taken(&bench.root().join("tenants")) + inodes * BLOCK;
    free(&bench, RESERVE + size - 1);
    assert_full(&bench, &store.skill_put(&put("1.0.1")).unwrap_err());
    free(&bench, RESERVE + size);
    store.skill_put(&put("1.0.2")).unwrap();
}

/// Each of them fits, all of them together do not, and none of them is on the disk when the others begin.
#[test]
fn skills_that_come_at_once_leave_the_floor() {
    const SKILLS: usize = 48;
    const FIT: u64 = 8;
    let bench = Bench::new();
    let files: Vec<(String, Vec<u8>)> = (0..8u64)
        .map(|n| (format!("data/{n}"), bytes(n, PIECE / 8)))
        .collect();
    let files: Vec<(&str, &[u8])> = files.iter().map(|(p, d)| (&**p, &**d)).collect();
    let puts: Vec<_> = (0..SKILLS)
        .map(|n| put_of("acme", &format!("a.s{n}"), "1.0.0", &files))
        .collect();
    let root = bench.root();
    let room = FIT * (PIECE as u64 + 4096);
    let stored = put_at_once(&bench, &puts, room, taken);
    assert!((1..=FIT).contains(&stored), "{stored}");
    assert!(taken(&root.join("tenants")) <= room);
    assert_eq!(bench.in_tmp(), 0);
}

/// With so much room above the floor, of which files and directories take what `taken` says. How many have been stored.
fn put_at_once(bench: &Bench, puts: &[PutSkill], room: u64, taken: fn(&Path) -> u64) -> u64 {
    let root = bench.root();
    let (tmp, tenants) = (root.join("tmp"), root.join("tenants"));
    let config = format!(r#"{{"root": {root:?}, "fsync": true, "reserve_bytes": {RESERVE}}}"#);
    // What is being moved counts twice, as it is looked for first where it comes from.
    let space = move |_: std::os::fd::BorrowedFd<'_>| {
        let taken = taken(&tmp) + taken(&tenants);
        Ok(Free {
            bytes: Some((RESERVE + room).saturating_sub(taken)),
            ..Free::default()
        })
    };
    let store = bench.create_on(&config, Arc::new(space)).unwrap();
    let (store, ready) = (&store, &Barrier::new(puts.len()));
    let put = |put| {
        move || {
            ready.wait();
            store.skill_put(put)
        }
    };
    let answers: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = puts.iter().map(|one| scope.spawn(put(one))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    for refused in answers.iter().filter_map(|answer| answer.as_ref().err()) {
        assert_full(bench, refused);
    }
    answers.iter().filter(|answer| answer.is_ok()).count() as u64
}

/// As the kernel makes it after an error of the disk: nobody's write gets so far as to fail in an fsync.
#[test]
fn a_file_system_that_has_become_read_only_is_told() {
    let bench = Bench::new();
    let read_only = Arc::new(AtomicBool::new(false));
    let said = Arc::clone(&read_only);
    let space = move |_: std::os::fd::BorrowedFd<'_>| {
        Ok(Free {
            is_read_only: said.load(Ordering::Relaxed),
            ..Free::default()
        })
    };
    let config = format!(r#"{{"root": {:?}, "fsync": false}}"#, bench.root());
    let store = bench.create_on(&config, Arc::new(space)).unwrap();
    for (is_so, state) in [(false, abi::HEALTH_OK), (true, abi::HEALTH_DEGRADED)] {
        read_only.store(is_so, Ordering::Relaxed);
        let health = store.health().unwrap();
        assert_eq!(health.state, state, "{health:?}");
        assert_eq!(health.message.contains("read-only"), is_so, "{health:?}");
    }
}

/// Bytes of all blocks below a directory, on a file system where a directory has one at least.
pub(crate) fn blocks(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => BLOCK + blocks(&entry.path()),
        Ok(meta) => meta.len().next_multiple_of(BLOCK),
        Err(_) => 0,
    };
    entries.map(size).sum()
}

/// Of content they have next to nothing.
#[test]
fn deep_trees_that_come_at_once_leave_the_floor() {
    const SKILLS: usize = 16;
    const FIT: u64 = 4;
    let bench = Bench::new();
    let files: Vec<(String, Vec<u8>)> = (0..4)
        .map(|n| (format!("{n}/{}x", "d/".repeat(10)), vec![n]))
        .collect();
    let files: Vec<(&str, &[u8])> = files.iter().map(|(p, d)| (&**p, &**d)).collect();
    let puts: Vec<_> = (0..SKILLS)
        .map(|n| put_of("acme", &format!("a.s{n}"), "1.0.0", &files))
        .collect();
    // Of each the directories and the file, what is beside and above, and what `meta.json` has in it.
    let room = FIT * (4 * 12 + 7 + 2) * BLOCK;
    let stored = put_at_once(&bench, &puts, room, blocks);
    assert!((1..=FIT).contains(&stored), "{stored}");
    assert!(blocks(&bench.root().join("tenants")) <= room);
    assert_eq!(bench.in_tmp(), 0);
}

/// So many files and directories below a directory.
fn inodes(dir: &Path) -> u64 {
    let below = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => 1 + inodes(&entry.path()),
        _ => 1,
    };
    std::fs::read_dir(dir)
        .unwrap()
        .map(|e| below(e.unwrap()))
        .sum()
}

/// A million empty files fill a disk as well.
#[test]
fn inodes_have_a_floor_too() {
    let bench = Bench::new();
    let store = store(&bench);
    let free = |inodes| bench.free_inodes.store(inodes, Ordering::Relaxed);
    let assert_full =
        |error: &Error| assert_less(&bench, error, &format!("{RESERVE_INODES} inodes"));
    let before = inodes(&bench.root());
    let mut ends = blob_of("acme");
    ends.ttl_s = 600;
    // Of more than one chunk, and with an end: as many as a blob can have.
    store_blob(&store, &ends, &bytes(1, 2 * PIECE * 4 + 1)).unwrap();
    let of_a_blob = inodes(&bench.root()) - before;
    let files = [("a/b/c", &b""[..]), ("a/b/d", b""), ("e", b"")];
    let put = |version| put_of("acme", "a.b", version, &files);
    let before = inodes(&bench.root());
    store.skill_put(&put("1.0.0")).unwrap();
    let of_a_skill = inodes(&bench.root()) - before;

    free(RESERVE_INODES + of_a_blob - 1);
    assert_full(&store.blob_create(&blob_of("acme")).unwrap_err());
    free(RESERVE_INODES + of_a_blob);
    let first = store.blob_create(&blob_of("acme")).unwrap();
    let no_more_begin = || assert_full(&store.blob_create(&blob_of("acme")).unwrap_err());
    // Nothing of it is on the disk yet.
    no_more_begin();
    // What it takes of its promise does not stop it; somebody else who takes of the floor does.
    free(RESERVE_INODES);
    no_more_begin();
    store.blob_write(first, b"x").unwrap();
    free(RESERVE_INODES - 1);
    no_more_begin();
    assert_full(&store.blob_write(first, b"x").unwrap_err());
    store.blob_abort(first);
    free(RESERVE_INODES + of_a_blob);
    store_blob(&store, &blob_of("acme"), b"").unwrap();
    free(RESERVE_INODES + of_a_skill - 1);
    assert_full(&store.skill_put(&put("2.0.0")).unwrap_err());
    assert_eq!(store.skill_put(&put("1.0.0")).unwrap().version, "1.0.0");

    free(RESERVE_INODES - 1);
    let health = store.health().unwrap();
    assert_eq!(health.state, abi::HEALTH_DEGRADED);
    assert!(health.message.contains("reserve_inodes"), "{health:?}");
    let metrics: serde_json::Value = serde_json::from_str(&health.metrics_json).unwrap();
    assert_eq!(metrics["free_inodes"], RESERVE_INODES - 1);
    assert_eq!(bench.in_tmp(), 0);
}

/// However many writers there are, all of them together write no more between two looks.
#[test]
fn writers_that_are_open_stop_too() {
    let bench = Bench::new();
    let store = store(&bench);
    let writers: Vec<u64> = (0..64)
        .map(|_| store.blob_create(&blob_of("acme")).unwrap())
        .collect();
    // From here on somebody else fills the disk.
    free(&bench, RESERVE - 1);
    let piece = bytes(1, PIECE);
    let mut written = 0;
    for writer in &writers {
        match store.blob_write(*writer, &piece) {
            Ok(()) => written += PIECE as u64,
            Err(error) => assert_full(&bench, &error),
        }
    }
    assert_eq!(written, LOOK_EVERY);
    // What was refused is not committed, what was not is.
    let committed = writers
        .iter()
        .filter(|writer| store.blob_commit(**writer).is_ok())
        .count();
    assert_eq!(committed as u64, LOOK_EVERY / PIECE as u64);
    assert_eq!(bench.in_tmp(), 0);
}

#[test]
fn the_last_room_above_the_floor_is_used_and_no_more() {
    let bench = Bench::new();
    let store = store(&bench);
    free(&bench, RESERVE + BLOB_BEFORE + MIB);
    let writer = store.blob_create(&blob_of("acme")).unwrap();
    let piece = bytes(1, PIECE);
    for _ in 0..MIB / PIECE as u64 {
        store.blob_write(writer, &piece).unwrap();
    }
    free(&bench, RESERVE + BLOB_BEFORE);
    assert_full(&bench, &store.blob_write(writer, b"x").unwrap_err());
    store.blob_abort(writer);
}

#[test]
fn the_file_system_is_not_asked_with_each_write() {
    let bench = Bench::new();
    let store = store(&bench);
    looks(&bench);
    let writer = store.blob_create(&blob_of("acme")).unwrap();
    let piece = bytes(1, PIECE);
    for _ in 0..4 * LOOK_EVERY / PIECE as u64 {
        store.blob_write(writer, &piece).unwrap();
    }
    store.blob_commit(writer).unwrap();
    // At the beginning, and each time a grant is used up; what made it necessary is not part of the next.
    assert_eq!(looks(&bench), 4);
}

#[test]
fn health_and_log_say_it_once() {
    const WARNED: &str = "Warn the store's file system has no more free space";
    const WELL: &str = "Info the store's file system has room again";
    let bench = Bench::new();
    let store = store(&bench);
    free(&bench, 2 * RESERVE);
    let health = store.health().unwrap();
    assert_eq!(health.state, abi::HEALTH_OK);
    let metrics: serde_json::Value = serde_json::from_str(&health.metrics_json).unwrap();
    assert_eq!(metrics["free_bytes"], 2 * RESERVE);

    free(&bench, RESERVE - 1);
    for _ in 0..3 {
        store.blob_create(&blob_of("acme")).unwrap_err();
        let health = store.health().unwrap();
        assert_eq!(health.state, abi::HEALTH_DEGRADED);
        assert!(health.message.contains("reserve_bytes"), "{health:?}");
    }
    assert_eq!(bench.count_logged(WARNED), 1);
    // To and fro around the floor is one change.
    for at in [
        RESERVE + BLOB_BEFORE + 1,
        RESERVE - 1,
        RESERVE + LOOK_EVERY - 1,
    ] {
        free(&bench, at);
        // What it is promised is no longer when the next number is looked at.
        if let Ok(writer) = store.blob_create(&blob_of("acme")) {
            store.blob_abort(writer);
        }
        assert_eq!(store.health().unwrap().state, abi::HEALTH_DEGRADED);
    }
    assert_eq!(
        (bench.count_logged(WARNED), bench.count_logged(WELL)),
        (1, 0)
    );
    free(&bench, RESERVE + LOOK_EVERY);
    assert_eq!(store.health().unwrap().state, abi::HEALTH_OK);
    assert_eq!(bench.count_logged(WELL), 1);
    // Nobody has to write for it to be seen.
    free(&bench, 0);
    assert_eq!(store.health().unwrap().state, abi::HEALTH_DEGRADED);
    assert_eq!(bench.count_logged(WARNED), 2);
}

/// 0 is none of the one, whatever the other is.
#[test]
fn a_floor_of_bytes_is_none_of_inodes_and_the_other_way_round() {
    for (mine, other) in [("bytes", "inodes"), ("inodes", "bytes")] {
        let bench = Bench::new();
        let root = bench.root();
        let config = format!(
            r#"{{"root": {root:?}, "fsync": false, "reserve_{mine}": 1, "reserve_{other}": 0}}"#
        );
        let store = bench.create(&config).unwrap();
        let (empty, full) = match mine {
            "bytes" => (&bench.free_inodes, &bench.free_bytes),
            _ => (&bench.free_bytes, &bench.free_inodes),
        };
        empty.store(0, Ordering::Relaxed);
        store_blob(&store, &blob_of("acme"), b"x").unwrap();
        full.store(0, Ordering::Relaxed);
        let refused = store.blob_create(&blob_of("acme")).unwrap_err();
        assert_less(&bench, &refused, &format!("1 {mine}"));
    }
}

#[test]
fn without_a_floor_nobody_asks() {
    let bench = Bench::new();
    let root = bench.root();
    let store = bench
        .create(&format!(
            r#"{{"root": {root:?}, "fsync": false, "reserve_bytes": 0, "reserve_inodes": 0}}"#
        ))
        .unwrap();
    free(&bench, 0);
    looks(&bench);
    store_blob(&store, &blob_of("acme"), b"x").unwrap();
    assert_eq!(looks(&bench), 0);
    assert_eq!(store.health().unwrap().state, abi::HEALTH_OK);
}

/// The other tests say what is free; whoever runs a gateway has the file system say it.
#[test]
fn the_file_system_itself_is_asked() {
    let bench = Bench::new();
    let vfs = rustix::fs::statvfs(bench.dir.path()).unwrap();
    for (n, reserve) in ["reserve_bytes", "reserve_inodes"].iter().enumerate() {
        let root = bench.dir.path().join(n.to_string());
        let most = u64::MAX / 2;
        let config = format!(r#"{{"root": {root:?}, "fsync": false, "{reserve}": {most}}}"#);
        let request = CreateRequest {
            config_json: config.into_bytes(),
            ..CreateRequest::default()
        };
        let store = StorageFs::create(Host::for_tests(|_, _, _, _| {}), request).unwrap();
        let made = store.blob_create(&blob_of("acme"));
        let metrics = store.health().unwrap().metrics_json;
        let metrics: serde_json::Value = serde_json::from_str(&metrics).unwrap();
        // btrfs makes inodes as it needs them, and a tmpfs may have no end.
        let (name, known) = match *reserve {
            "reserve_bytes" => ("free_bytes", vfs.f_blocks > 0),
            _ => ("free_inodes", vfs.f_files > 0),
        };
        assert_eq!(metrics[name].is_u64(), known, "{metrics}");
        assert_eq!(made.is_err(), known, "{reserve}");
    }
}

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use skillgate_plugin_sdk::Host;

use super::{Ground, Published, take_lock};
use crate::fault::{Fault, Result};
use crate::floor::{self, Floor, Free, Size};

#[test]
fn what_is_being_built_counts_before_it_is_on_the_disk() {
    const RESERVE: u64 = 1000;
    let dir = tempfile::tempdir().unwrap();
    let free = Arc::new(AtomicU64::new(RESERVE + 10));
    let said = Arc::clone(&free);
    let of = |bytes| Size { bytes, inodes: 0 };
    let floor = Floor::new(
        of(RESERVE),
        Arc::new(move |_| {
            Ok(Free {
                bytes: Some(said.load(Ordering::Relaxed)),
                ..Free::default()
            })
        }),
    );
    let host = Host::for_tests(|_, _, _, _| {});
    let ground = Arc::new(Ground::open(dir.path(), false, floor, host).unwrap());
    let in_tmp = || std::fs::read_dir(dir.path().join("tmp")).unwrap().count();
    let full = |result: Result<()>| matches!(result, Err(Fault::Full(_)));

    // Nothing of it is written, and the file system says the same as before.
    let mut first = ground.stage(of(6)).unwrap();
    assert!(full(ground.stage(of(5)).map(drop)));
    let second = ground.stage(of(4)).unwrap();
    assert!(full(second.expect(1)), "for who goes on as well");
    assert_eq!(in_tmp(), 2);
    drop(second);
    assert!(ground.stage(of(4)).is_ok(), "given up is given back");

    // From here on the file system knows.
    first.write("a", b"12345").unwrap();
    free.store(RESERVE + 5, Ordering::Relaxed);
    assert!(full(ground.stage(of(5)).map(drop)));
    assert!(ground.stage(of(4)).is_ok());
    drop(first);
    free.store(RESERVE + 10, Ordering::Relaxed);
    assert!(ground.stage(of(10)).is_ok());
    assert_eq!(in_tmp(), 0);
}

/// Callers hold a lock while they publish, and a tree may have very many directories.
#[test]
fn publishing_touches_nothing_of_what_was_built() {
    let dir = tempfile::tempdir().unwrap();
    let floor = Floor::new(Size::default(), floor::of_the_file_system());
    let host = Host::for_tests(|_, _, _, _| {});
    let ground = Arc::new(Ground::open(dir.path(), true, floor, host).unwrap());
    let tmp = dir.path().join("tmp");
    let in_tmp = || {
        std::fs::read_dir(&tmp)
            .unwrap()
            .map(|one| one.unwrap().path())
    };
    let staging = || {
        let mut staging = ground.stage(Size::default()).unwrap();
        staging.write("a/b/c", b"c").unwrap();
        staging
    };
    let lose = |lost: &str| {
        let built = in_tmp().next().unwrap();
        std::fs::remove_dir_all(built.join(lost)).unwrap();
    };

    // What is not there cannot be made durable: the one step asks for it, the other one does not.
    let incomplete = staging();
    lose("a/b");
    assert!(incomplete.synced().unwrap_err().is_missing());
    let mut durable = staging().synced().unwrap();
    lose("a");
    assert_eq!(durable.publish("x", "y").unwrap(), Published::Done);
    drop(durable);
    assert!(dir.path().join("x/y").exists());

    // Nor is it removed meanwhile.
    let mut late = staging().synced().unwrap();
    assert_eq!(late.publish("x", "y").unwrap(), Published::Exists);
    assert!(in_tmp().next().unwrap().join("a/b/c").exists());
    drop(late);
    assert_eq!(in_tmp().count(), 0);
}

/// The failure of another's directory, reported once: its next fsync says "fine" without having written anything.
#[test]
fn what_had_begun_before_an_fsync_failed_is_not_acknowledged_either() {
    let dir = tempfile::tempdir().unwrap();
    let floor = Floor::new(Size::default(), floor::of_the_file_system());
    let host = Host::for_tests(|_, _, _, _| {});
    let ground = Arc::new(Ground::open(dir.path(), true, floor, host).unwrap());
    ground.ensure_dir("x").unwrap();
    let mut durable = ground.stage(Size::default()).unwrap().synced().unwrap();
    ground.broken.store(true, Ordering::Release);
    assert!(matches!(
        durable.publish("x", "y"),
        Err(Fault::Unavailable(_))
    ));
    assert!(!dir.path().join("x/y").exists());
    drop(durable);
    let in_tmp = std::fs::read_dir(dir.path().join("tmp")).unwrap();
    assert_eq!(in_tmp.count(), 0);
}

#[test]
fn a_child_that_is_being_made_does_not_keep_the_lock() {
    let dir = tempfile::tempdir().unwrap();
    let root = std::fs::File::open(dir.path()).unwrap().into();
    let lock = take_lock(&root, "here").unwrap();
    assert!(take_lock(&root, "here").is_err());
    // What a fork gives to a child.
    let child = lock.0.try_clone().unwrap();
    drop(lock);
    assert!(take_lock(&root, "here").is_ok());
    drop(child);
}

#[test]
fn a_directory_that_somebody_has_removed_is_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let floor = Floor::new(Size::default(), floor::of_the_file_system());
    let host = Host::for_tests(|_, _, _, _| {});
    let ground = Ground::open(dir.path(), false, floor, host).unwrap();
    for gone in ["a", "a/b", "a/b/c"] {
        ground.ensure_dir("a/b/c").unwrap();
        std::fs::remove_dir_all(dir.path().join(gone)).unwrap();
        ground.ensure_dir("a/b/c").unwrap();
        assert!(dir.path().join("a/b/c").is_dir(), "{gone}");
    }
}

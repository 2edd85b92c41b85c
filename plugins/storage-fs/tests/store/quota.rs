//! What one tenant's blobs, and its skills, may take together.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex};

use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::blocking::Storage;
use skillgate_plugin_sdk::model::{BlobCreate, Error};
use skillgate_storage_fs::StorageFs;

use crate::floor::blocks;
use crate::support::*;

const KIB: usize = 1024;
/// A blob counts for so much beside its content.
const BESIDE: usize = 12 * KIB;
/// For two that have so much together.
const CONTENT: usize = 64 * KIB;
const QUOTA: usize = CONTENT + 2 * BESIDE;
/// As a file or a directory of a skill.
const BLOCK: usize = 4 * KIB;

fn store(bench: &Bench) -> StorageFs {
    let root = bench.root();
    bench
        .create(&format!(
            r#"{{"root": {root:?}, "fsync": false, "tenant_blob_bytes": {QUOTA}}}"#
        ))
        .unwrap()
}

fn put(store: &StorageFs, tenant: &str, size: usize) -> Result<String, Error> {
    store_blob(store, &blob_of(tenant), &bytes(1, size)).map(|stat| stat.id)
}

fn assert_full(error: &Error) {
    assert_eq!(error.code, abi::E_EXHAUSTED, "{error}");
    // Nothing of it has an end.
    assert!(error.of_tenant && !error.retryable, "{error:?}");
    let words = format!("more than the {QUOTA} bytes");
    assert!(
        error.message.contains(&words) && error.message.contains("tenant_blob_bytes"),
        "{error}"
    );
}

#[test]
fn a_tenant_has_its_part_and_takes_nothing_from_others() {
    let bench = Bench::new();
    let first = {
        let store = store(&bench);
        let first = put(&store, "acme", 40 * KIB).unwrap();
        assert_full(&put(&store, "acme", 24 * KIB + 1).unwrap_err());
        assert_eq!(bench.in_tmp(), 0, "nothing of it is left");
        put(&store, "acme", 24 * KIB).unwrap();
        assert_full(&store.blob_create(&blob_of("acme")).unwrap_err());
        put(&store, "other", QUOTA - BESIDE).unwrap();
        first
    };
    // In another life: by what is there.
    let store = store(&bench);
    assert_full(&put(&store, "acme", 1).unwrap_err());
    assert_eq!(read_blob(&store, "acme", &first).unwrap().len(), 40 * KIB);
    store.blob_delete("acme", &first).unwrap();
    put(&store, "acme", 40 * KIB).unwrap();
    assert_full(&put(&store, "acme", 1).unwrap_err());
}

#[test]
fn what_is_being_written_counts_until_it_is_given_up() {
    let bench = Bench::new();
    let store = store(&bench);
    let [one, other] = [(); 2].map(|()| store.blob_create(&blob_of("acme")).unwrap());
    store.blob_write(one, &bytes(1, 40 * KIB)).unwrap();
    assert_full(&store.blob_write(other, &bytes(1, 40 * KIB)).unwrap_err());
    store.blob_abort(other);
    assert_full(&put(&store, "acme", 40 * KIB).unwrap_err());
    store.blob_abort(one);
    put(&store, "acme", QUOTA - BESIDE).unwrap();
}

/// Whoever waits for what stays waits for ever.
#[test]
fn who_is_full_of_what_expires_is_told_to_wait() {
    let bench = Bench::new();
    let store = store(&bench);
    let ending = BlobCreate {
        ttl_s: 600,
        ..blob_of("acme")
    };
    store_blob(&store, &ending, &bytes(1, QUOTA - BESIDE)).unwrap();
    let error = store_blob(&store, &ending, &bytes(1, 1)).unwrap_err();
    assert_eq!(error.code, abi::E_EXHAUSTED, "{error}");
    assert!(
        error.of_tenant && error.retryable && error.retry_after_ms >= 10_000,
        "{error:?}"
    );
}

/// Of small ones there may not be any number: each takes a directory and its record.
#[test]
fn a_blob_of_nothing_counts_too() {
    let bench = Bench::new();
    let store = store(&bench);
    for _ in 0..QUOTA / BESIDE {
        put(&store, "acme", 0).unwrap();
    }
    assert_full(&put(&store, "acme", 0).unwrap_err());
}

/// Whoever gives each tenant its part of a disk gives away no more than that.
#[test]
fn what_a_blob_counts_for_is_at_least_what_it_takes() {
    const MIB: usize = 1024 * KIB;
    for size in [0, 1, 4096, 4097, MIB, MIB + 1, 3 * MIB + 1] {
        let bench = Bench::new();
        let root = bench.root();
        let quota = |bytes: u64| {
            let config =
                format!(r#"{{"root": {root:?}, "fsync": false, "tenant_blob_bytes": {bytes}}}"#);
            bench.create(&config).unwrap()
        };
        let id = put(&quota(1 << 40), "acme", size).unwrap();
        let on_disk = BLOCK as u64 + blocks(&bench.blob_dir("acme", &id));
        // Where the disk would not have room for two, there are no two.
        let refused = put(&quota(2 * on_disk - 1), "acme", size).unwrap_err();
        assert!(refused.of_tenant, "{size}: {on_disk} bytes each");
    }
}

/// Nobody tells the store: when a minute has passed it looks.
#[test]
fn what_somebody_else_removes_makes_room() {
    let bench = Bench::new();
    let store = store(&bench);
    let id = put(&store, "acme", QUOTA - BESIDE).unwrap();
    std::fs::remove_dir_all(bench.blob_dir("acme", &id)).unwrap();
    assert_full(&put(&store, "acme", 1).unwrap_err());
    bench.pass_ms(60_000);
    put(&store, "acme", 1).unwrap();
}

/// Never more than fit, however often it is counted meanwhile; and in the end as many.
#[test]
fn those_who_come_at_once_share_it() {
    const EACH: usize = 8 * KIB;
    const FIT: usize = QUOTA / (EACH + BESIDE);
    const ROUNDS: usize = 20;
    let bench = Bench::new();
    let store = store(&bench);
    for round in 0..ROUNDS {
        let kept = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            // Two tenants, each of which has room for half of them.
            for other in ["north", "south"].repeat(4) {
                let (store, kept) = (&store, &kept);
                scope.spawn(move || {
                    for _ in 0..3 {
                        match put(store, "acme", EACH) {
                            Ok(id) => kept.lock().unwrap().push(id),
                            Err(error) => assert_full(&error),
                        }
                    }
                    // Has whoever is refused next count.
                    let gone = put(store, other, 1).unwrap();
                    store.blob_delete(other, &gone).unwrap();
                });
            }
        });
        let mut kept = kept.into_inner().unwrap();
        assert!(kept.len() <= FIT, "round {round}");
        // Two that are begun at once may both be in the way of the other.
        kept.extend(std::iter::from_fn(|| put(&store, "acme", EACH).ok()));
        assert_eq!(kept.len(), FIT, "round {round}");
        for id in kept {
            store.blob_delete("acme", &id).unwrap();
        }
    }
}

const SKILL_QUOTA: usize = 1024 * KIB;
/// Of one file of a version. Three of them fit, with a block for each file and directory.
const LARGE: usize = 265 * KIB;

fn store_of_skills(bench: &Bench) -> StorageFs {
    let root = bench.root();
    bench
        .create(&format!(
            r#"{{"root": {root:?}, "fsync": false, "tenant_skill_bytes": {SKILL_QUOTA}}}"#
        ))
        .unwrap()
}

fn publish(store: &StorageFs, tenant: &str, version: usize, size: usize) -> Result<(), Error> {
    let version = format!("{version}.0.0");
    let put = skill(tenant, "acme.large", &version, &bytes(1, size));
    store.skill_put(&put).map(drop)
}

fn assert_full_of_skills(error: &Error) {
    assert_eq!(error.code, abi::E_EXHAUSTED, "{error}");
    // What is published stays.
    assert!(error.of_tenant && !error.retryable, "{error:?}");
    let words = format!("more than the {SKILL_QUOTA} bytes");
    for part in [&words, "tenant_skill_bytes", "publish less"] {
        assert!(error.message.contains(part), "{error}");
    }
}

#[test]
fn a_directory_of_many_files_counts_once() {
    let bench = Bench::new();
    let paths: Vec<String> = (0..40)
        .map(|n| format!("code/a/b/c/d/e/f/m{n:02}.py"))
        .collect();
    let mut files: Vec<(&str, &[u8])> = vec![("SKILL.md", b"# x")];
    files.extend(paths.iter().map(|path| (path.as_str(), &b"x = 1\n"[..])));
    files.push(("skill.toml", b""));
    let put = put_of("acme", "acme.deep", "1.0.0", &files);
    store_of_skills(&bench).skill_put(&put).unwrap();
    // In another life it is counted anew.
    let store = store_of_skills(&bench);
    for version in ["2.0.0", "3.0.0", "4.0.0"] {
        let put = put_of("acme", "acme.deep", version, &files);
        store.skill_put(&put).unwrap();
    }
    let put = put_of("acme", "acme.deep", "5.0.0", &files);
    assert_full_of_skills(&store.skill_put(&put).unwrap_err());
}

#[test]
fn the_skills_of_a_tenant_have_their_part_and_take_nothing_from_others() {
    let bench = Bench::new();
    let check = |store: &StorageFs| {
        assert_full_of_skills(&publish(store, "acme", 4, LARGE).unwrap_err());
        assert_eq!(bench.in_tmp(), 0, "nothing of it is left");
        // What is there already takes nothing.
        publish(store, "acme", 1, LARGE).unwrap();
    };
    {
        let store = store_of_skills(&bench);
        // What comes to nothing is given back.
        let free = bench.free_bytes.swap(0, Ordering::Relaxed);
        for _ in 0..5 {
            let error = publish(&store, "acme", 1, LARGE).unwrap_err();
            assert!(
                error.message.contains("bytes free, which it keeps"),
                "{error}"
            );
        }
        bench.free_bytes.store(free, Ordering::Relaxed);
        for version in 1..=3 {
            publish(&store, "acme", version, LARGE).unwrap();
        }
        check(&store);
        publish(&store, "other", 1, LARGE).unwrap();
    }
    // In another life: by what is there.
    let store = store_of_skills(&bench);
    check(&store);
    publish(&store, "other", 2, LARGE).unwrap();
    // Small ones count with their files and directories.
    publish(&store, "acme", 5, 0).unwrap();
    assert_full_of_skills(&publish(&store, "acme", 6, 0).unwrap_err());
    // Blobs are others.
    put(&store, "acme", 2 * SKILL_QUOTA).unwrap();
}

#[test]
fn skills_that_come_at_once_share_it() {
    let bench = Bench::new();
    let store = store_of_skills(&bench);
    let published = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for version in 0..8 {
            let (store, published) = (&store, &published);
            scope.spawn(move || match publish(store, "acme", version, LARGE) {
                Ok(()) => {
                    published.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => assert_full_of_skills(&error),
            });
        }
    });
    assert_eq!(published.into_inner(), 3);
}

/// The version that all of them bring fits once.
#[test]
fn the_same_skill_at_once_takes_its_part_once() {
    const THREADS: usize = 8;
    let bench = Bench::new();
    let root = bench.root();
    let config = |quota: usize| {
        format!(r#"{{"root": {root:?}, "fsync": false, "tenant_skill_bytes": {quota}}}"#)
    };
    let once = (1..)
        .map(|blocks| blocks * BLOCK)
        .find(|quota| {
            let store = bench.create(&config(*quota)).unwrap();
            publish(&store, "once", 1, 1).is_ok()
        })
        .unwrap();
    let store = bench.create(&config(once)).unwrap();
    for round in 0..30 {
        let (tenant, start) = (format!("t{round}"), Barrier::new(THREADS));
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    start.wait();
                    publish(&store, &tenant, 1, 1).unwrap();
                });
            }
        });
        let error = publish(&store, &tenant, 2, 1).unwrap_err();
        assert_eq!(error.code, abi::E_EXHAUSTED, "{error}");
    }
    assert_eq!(bench.in_tmp(), 0);
}

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use skillgate_plugin_sdk::blocking::Storage;
use skillgate_plugin_sdk::model::{BlobCreate, CreateRequest, Error};
use skillgate_plugin_sdk::{Host, abi};
use skillgate_storage_fs::{Free, StorageFs, Sweeps, World};

use crate::support::*;

const MIB: usize = 1024 * 1024;

fn code<T: std::fmt::Debug>(result: Result<T, Error>) -> i32 {
    result.unwrap_err().code
}

#[test]
fn what_goes_in_comes_out() {
    let bench = Bench::new();
    let store = bench.store();
    for size in [0, 1, 4095, MIB - 1, MIB, MIB + 1, 2 * MIB, 3 * MIB + 17] {
        let content = bytes(size as u64, size);
        let stat = store_blob(&store, &blob_of("acme"), &content).unwrap();
        assert_eq!(stat.size_bytes, size as u64);
        assert_eq!(stat.sha256, hex_digest(&content));
        assert_eq!(
            (stat.owner.as_str(), stat.kind.as_str()),
            ("alice", "application/octet-stream")
        );
        assert_eq!(store.blob_stat("acme", &stat.id).unwrap(), stat);
        assert!(
            read_blob(&store, "acme", &stat.id).unwrap() == content,
            "{size}"
        );
        let (fd, by_fd) = store.blob_fd("acme", &stat.id).unwrap();
        assert_eq!(by_fd, stat);
        let mut file = std::fs::File::from(fd);
        let mut got = Vec::new();
        file.read_to_end(&mut got).unwrap();
        assert!(got == content, "{size}");
        assert!(
            std::io::Write::write_all(&mut file, b"x").is_err(),
            "the descriptor is read-only"
        );
        let mode = |name: &str| {
            let path = bench.blob_dir("acme", &stat.id).join(name);
            std::fs::metadata(path).map(|m| m.permissions().mode() & 0o7777)
        };
        assert_eq!(mode("data").unwrap(), 0o644);
        assert_eq!(
            mode("chunks").is_ok(),
            size > MIB,
            "one chunk needs no list of digests"
        );
    }
    assert_eq!(bench.in_tmp(), 0);
    // And again after a restart.
    let ids: Vec<String> = (0..3)
        .map(|n| {
            store_blob(&store, &blob_of("acme"), &bytes(n, 99))
                .unwrap()
                .id
        })
        .collect();
    drop(store);
    let store = bench.store();
    for (n, id) in ids.iter().enumerate() {
        assert_eq!(read_blob(&store, "acme", id).unwrap(), bytes(n as u64, 99));
    }
}

#[test]
fn ranges_are_what_they_say() {
    let bench = Bench::new();
    let store = bench.store();
    let content = bytes(7, 3 * MIB + 17);
    let id = store_blob(&store, &blob_of("acme"), &content).unwrap().id;
    let size = content.len();
    let cases = [
        (0, 1),
        (0, size),
        (5, 10),
        (MIB - 1, 2),
        (MIB, MIB),
        (MIB, MIB + 1),
        (size - 1, 1),
        (size - 1, 100),
        (2 * MIB - 3, MIB + 9),
        (3 * MIB, 0),
        (size, 0),
        (size, 5),
        (17, 0),
        (17, usize::MAX),
    ];
    for (offset, len) in cases {
        let end = if len == 0 {
            size
        } else {
            offset.saturating_add(len).min(size)
        };
        let got = read_range(&store, "acme", &id, offset as u64, len as u64).unwrap();
        assert!(got == content[offset..end], "{offset} {len}");
    }
    assert_eq!(
        code(read_range(&store, "acme", &id, size as u64 + 1, 1)),
        abi::E_OUT_OF_RANGE
    );
    // A buffer of no bytes is no end, and a reader at the end stays there.
    let (reader, _) = store.blob_open("acme", &id, 0, 3).unwrap();
    assert_eq!(store.blob_read(reader, &mut []).unwrap(), (0, false));
    assert_eq!(store.blob_read(reader, &mut [0; 9]).unwrap(), (3, true));
    assert_eq!(store.blob_read(reader, &mut [0; 9]).unwrap(), (0, true));
    store.blob_close(reader);
    assert_eq!(code(store.blob_read(reader, &mut [0; 9])), abi::E_STALE);
    store.blob_close(reader);
}

#[test]
fn nothing_is_left_of_what_was_not_committed() {
    let bench = Bench::new();
    let store = bench.store();
    let aborted = store.blob_create(&blob_of("acme")).unwrap();
    store.blob_write(aborted, b"abc").unwrap();
    assert_eq!(bench.in_tmp(), 1);
    store.blob_abort(aborted);
    assert_eq!(bench.in_tmp(), 0);
    store.blob_abort(aborted);
    store.blob_abort(123_456);
    assert_eq!(code(store.blob_write(aborted, b"x")), abi::E_STALE);
    assert_eq!(code(store.blob_commit(aborted)), abi::E_STALE);

    let small = BlobCreate {
        max_bytes: 5,
        ..blob_of("acme")
    };
    let writer = store.blob_create(&small).unwrap();
    store.blob_write(writer, b"12345").unwrap();
    assert_eq!(code(store.blob_write(writer, b"6")), abi::E_OUT_OF_RANGE);
    // What the writer has is not what its caller meant: it cannot be committed by mistake.
    assert_eq!(code(store.blob_write(writer, b"")), abi::E_PRECONDITION);
    assert_eq!(code(store.blob_commit(writer)), abi::E_PRECONDITION);
    assert_eq!(code(store.blob_commit(writer)), abi::E_STALE);
    assert_eq!(bench.in_tmp(), 0);

    let dropped = store.blob_create(&blob_of("acme")).unwrap();
    store.blob_write(dropped, &bytes(1, 2 * MIB)).unwrap();
    drop(store);
    assert_eq!(bench.in_tmp(), 0);
}

#[test]
fn other_tenants_expired_deleted_and_malformed_answer_alike() {
    let bench = Bench::new();
    let store = bench.store();
    let id = store_blob(&store, &blob_of("acme"), b"secret").unwrap().id;
    let mortal = BlobCreate {
        ttl_s: 10,
        ..blob_of("acme")
    };
    let expired = store_blob(&store, &mortal, b"short").unwrap().id;
    let deleted = store_blob(&store, &blob_of("acme"), b"gone").unwrap().id;
    store.blob_delete("acme", &deleted).unwrap();
    bench.pass_ms(9_999);
    assert!(store.blob_stat("acme", &expired).is_ok());
    bench.pass_ms(1);
    let unknown = format!("blob:{}", "a".repeat(26));
    let long = format!("blob:{}", "a".repeat(512));
    let absent = [
        ("other", id.as_str()),
        ("Acme", &id),
        ("acme/", &id),
        ("acme", &expired),
        ("acme", &deleted),
        ("acme", &unknown),
        ("acme", ""),
        ("acme", "blob:"),
        ("acme", "blob:../x"),
        ("acme", "blob:\0"),
        ("acme", &long),
        ("acme", &id.to_uppercase()),
        ("acme", &id[5..]),
    ];
    let mut texts = std::collections::BTreeSet::new();
    for (tenant, id) in absent {
        for error in [
            store.blob_stat(tenant, id).unwrap_err(),
            store.blob_open(tenant, id, 0, 0).unwrap_err(),
            store.blob_fd(tenant, id).unwrap_err(),
            store.blob_delete(tenant, id).unwrap_err(),
        ] {
            assert_eq!(error.code, abi::E_NOT_FOUND, "{tenant} {id}: {error}");
            texts.insert(error.message);
        }
    }
    assert_eq!(texts.len(), 1, "{texts:?}");
    assert_eq!(read_blob(&store, "acme", &id).unwrap(), b"secret");
}

#[test]
fn a_deleted_blob_is_read_to_its_end_by_who_has_it_open() {
    let bench = Bench::new();
    let store = bench.store();
    let content = bytes(3, 2 * MIB);
    let id = store_blob(&store, &blob_of("acme"), &content).unwrap().id;
    let (reader, _) = store.blob_open("acme", &id, 0, 0).unwrap();
    store.blob_delete("acme", &id).unwrap();
    assert!(!bench.blob_dir("acme", &id).exists());
    let mut buf = vec![0; MIB];
    for half in content.chunks(MIB) {
        assert_eq!(store.blob_read(reader, &mut buf).unwrap().0, MIB);
        assert!(buf == half);
    }
}

#[test]
fn whoever_opens_a_blob_that_is_deleted_meanwhile_has_it_or_finds_none() {
    let bench = Bench::new();
    let store = bench.store();
    let both = Barrier::new(2);
    for round in 0..300 {
        let id = store_blob(&store, &blob_of("acme"), b"soon gone")
            .unwrap()
            .id;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                both.wait();
                store.blob_delete("acme", &id).unwrap();
            });
            both.wait();
            loop {
                let opened = store.blob_open("acme", &id, 0, 0);
                let opened = opened.map(|(reader, _)| store.blob_close(reader));
                let given = store.blob_fd("acme", &id).map(drop);
                let Err(error) = opened.and(given) else {
                    continue;
                };
                assert_eq!(error.code, abi::E_NOT_FOUND, "round {round}: {error}");
                break;
            }
        });
    }
}

#[test]
fn the_bytes_of_blobs_are_counted_with_health_a_part_at_a_time() {
    let bench = Bench::new();
    let store = bench.store();
    let counted = || -> Option<u64> {
        let said = store.health().unwrap().metrics_json;
        let numbers: serde_json::Value = serde_json::from_str(&said).unwrap();
        numbers.get("blob_bytes").map(|n| n.as_u64().unwrap())
    };
    assert_eq!(counted(), Some(0));
    let small = store_blob(&store, &blob_of("acme"), b"12345").unwrap().id;
    store_blob(&store, &blob_of("other"), &bytes(1, 2 * MIB)).unwrap();
    // Two digests of chunks.
    assert_eq!(counted(), Some(5 + 2 * MIB as u64 + 64));
    store.blob_delete("acme", &small).unwrap();
    assert_eq!(counted(), Some(2 * MIB as u64 + 64));
    // More than one call looks at: what was known stays until all have been looked at.
    for n in 0..10_002 {
        let dir = bench
            .root()
            .join(format!("tenants/many/blobs/{:02}/{n}", n % 3));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("data"), b"1").unwrap();
    }
    assert_eq!(counted(), Some(2 * MIB as u64 + 64));
    assert_eq!(counted(), Some(2 * MIB as u64 + 64 + 10_002));
}

pub(crate) const SWEPT: &str = "removed expired blobs";
const STUCK: &str = "Warn could not remove what has expired";

fn mortal(tenant: &str, ttl_s: u64) -> BlobCreate {
    BlobCreate {
        ttl_s,
        ..blob_of(tenant)
    }
}

#[test]
fn expired_blobs_go_and_nobody_asks_for_it() {
    let mut bench = Bench::new();
    bench.sweeps.every = Duration::from_millis(1);
    let store = bench.store();
    let short = store_blob(&store, &mortal("acme", 1), b"1").unwrap().id;
    let later = store_blob(&store, &mortal("acme", 400), b"2").unwrap().id;
    let stays = store_blob(&store, &blob_of("acme"), b"3").unwrap().id;
    let there = |id: &str| bench.blob_dir("acme", id).exists();
    assert!(there(&short));
    bench.pass_ms(120_000);
    bench.wait_until_logged(SWEPT, 1);
    assert!(!there(&short) && there(&later));
    bench.pass_ms(600_000);
    bench.wait_until_logged(SWEPT, 2);
    assert!(!there(&later) && there(&stays));
    assert_eq!(count(&bench.root().join("expires")), 0, "no marker is left");
    // A clock that was set back does not hinder: the minute's directory is made anew.
    bench.now_ms.store(1_800_000_000_000, Ordering::Relaxed);
    let again = store_blob(&store, &mortal("acme", 1), b"5").unwrap().id;
    assert_eq!(read_blob(&store, "acme", &again).unwrap(), b"5");
    assert_eq!(read_blob(&store, "acme", &stays).unwrap(), b"3");
    assert_eq!(bench.in_tmp(), 0);
}

/// Its end would be past as soon as the clock is set.
#[test]
fn a_blob_with_an_end_waits_for_a_clock_that_is_set() {
    let bench = Bench::new();
    let store = bench.store();
    let writer = store.blob_create(&mortal("acme", 60)).unwrap();
    let now = bench.now_ms.swap(1000, Ordering::Relaxed);
    let stays = store_blob(&store, &blob_of("acme"), b"1").unwrap().id;
    for refused in [
        store.blob_create(&mortal("acme", 60)).map(drop),
        store.blob_commit(writer).map(drop),
    ] {
        let error = refused.unwrap_err();
        assert_eq!((error.code, error.retryable), (abi::E_UNAVAILABLE, true));
        assert!(error.message.contains("clock is not set"), "{error}");
    }
    assert_eq!(bench.in_tmp(), 0);
    bench.now_ms.store(now, Ordering::Relaxed);
    assert!(store_blob(&store, &mortal("acme", 60), b"2").is_ok());
    assert_eq!(read_blob(&store, "acme", &stays).unwrap(), b"1");
}

#[test]
fn health_does_not_sweep_and_a_start_does() {
    let bench = Bench::new();
    let store = bench.store();
    let id = store_blob(&store, &mortal("acme", 1), b"1").unwrap().id;
    let there = || bench.blob_dir("acme", &id).exists();
    bench.pass_ms(120_000);
    store.health().unwrap();
    assert!(there(), "whoever asks for health waits for nothing");
    assert_eq!(code(store.blob_stat("acme", &id)), abi::E_NOT_FOUND);
    drop(store);
    let _store = bench.store();
    bench.wait_until_logged(SWEPT, 1);
    assert!(!there());
}

#[test]
fn what_cannot_be_removed_is_told_and_the_others_go() {
    let bench = Bench::new();
    let store = bench.store();
    let put = |tenant, ttl_s| store_blob(&store, &mortal(tenant, ttl_s), b"x").unwrap().id;
    // In the first minute, and of the first tenant.
    let stuck = put("a", 1);
    let others = [
        ("b", put("b", 1)),
        ("a", put("a", 100)),
        ("c", put("c", 100)),
    ];
    // A blob behind a link, which is not followed.
    let prefix = bench.blob_dir("a", &stuck);
    let prefix = prefix.parent().unwrap();
    let aside = bench.dir.path().join("aside");
    std::fs::rename(prefix, &aside).unwrap();
    std::os::unix::fs::symlink(&aside, prefix).unwrap();
    // Directories where markers should be.
    let minutes = std::fs::read_dir(bench.root().join("expires")).unwrap();
    let first = minutes.map(|minute| minute.unwrap().path()).min().unwrap();
    for last in 'c'..='l' {
        let name = format!("{}{last}", "b".repeat(25));
        std::fs::create_dir(first.join("a").join(name)).unwrap();
    }
    bench.pass_ms(600_000);
    drop(store);

    let sweep = |swept, told| {
        let store = bench.store();
        bench.wait_until_logged(SWEPT, swept);
        assert_eq!(bench.count_logged(STUCK), told);
        let said = store.health().unwrap().metrics_json;
        let numbers: serde_json::Value = serde_json::from_str(&said).unwrap();
        numbers["expired_stuck"].as_u64().unwrap()
    };
    assert_eq!(sweep(1, 8), 11);
    assert!(
        !others
            .iter()
            .any(|(tenant, id)| bench.blob_dir(tenant, id).exists())
    );
    let id = &stuck[5..];
    assert!(aside.join(id).exists());
    assert!(
        bench.logged(&format!("blobs/{}/{id}", &id[..2])) && bench.logged("symbolic link"),
        "{:?}",
        bench.logs
    );
    std::fs::remove_file(prefix).unwrap();
    std::fs::rename(&aside, prefix).unwrap();
    assert_eq!(sweep(2, 16), 10);
    assert!(!bench.blob_dir("a", &stuck).exists());
}

#[test]
fn with_the_store_its_thread_ends() {
    let bench = Bench::new();
    let store = bench.store();
    let known_to = || Arc::strong_count(&bench.now_ms);
    assert_eq!(known_to(), 2, "the test, and the store's clock");
    drop(store);
    assert_eq!(known_to(), 1, "nobody has the clock who could look at it");

    // One that is at work is waited for.
    let (asks, knows) = (Arc::new(Barrier::new(2)), Arc::new(AtomicBool::new(false)));
    let (it_asks, it_knows) = (Arc::clone(&asks), Arc::clone(&knows));
    let world = World {
        clock: Arc::new(move || {
            it_asks.wait();
            // Time enough for who does not wait.
            (0..10_000).for_each(|_| std::thread::yield_now());
            it_knows.store(true, Ordering::Relaxed);
            0
        }),
        space: Arc::new(|_| Ok(Free::default())),
        sweeps: Sweeps {
            after: bench.sweeps.every,
            ..bench.sweeps
        },
    };
    let request = CreateRequest {
        config_json: format!(r#"{{"root": {:?}}}"#, bench.root()).into_bytes(),
        ..CreateRequest::default()
    };
    let store = StorageFs::within(Host::for_tests(|_, _, _, _| {}), &request, world).unwrap();
    asks.wait();
    drop(store);
    assert!(knows.load(Ordering::Relaxed));
}

/// Every byte of a stored file, flipped in turn when the file is small, else a sample.
fn flip(path: &std::path::Path, at: usize) {
    let mut content = std::fs::read(path).unwrap();
    content[at] ^= 0x10;
    std::fs::write(path, content).unwrap();
}

#[test]
fn a_flipped_bit_is_corrupt_for_its_chunk_only() {
    let bench = Bench::new();
    let store = bench.store();
    let content = bytes(11, 3 * MIB + 100);
    let id = store_blob(&store, &blob_of("acme"), &content).unwrap().id;
    store.blob_fd("acme", &id).unwrap();
    let data = bench.blob_dir("acme", &id).join("data");
    flip(&data, MIB + 5);
    for (chunk, good) in [(0, true), (1, false), (2, true), (3, true)] {
        let (offset, len) = (chunk * MIB, MIB.min(content.len() - chunk * MIB));
        let got = read_range(&store, "acme", &id, offset as u64, len as u64);
        match got {
            Ok(got) => assert!(good && got == content[offset..offset + len], "{chunk}"),
            Err(error) => assert!(!good && error.code == abi::E_CORRUPT, "{chunk}: {error}"),
        }
        // A byte of a chunk is not given out either when the bad byte is another one of the same chunk.
        assert_eq!(
            read_range(&store, "acme", &id, (offset + 90) as u64, 1).is_ok(),
            good
        );
    }
    assert_eq!(
        code(store.blob_fd("acme", &id)),
        abi::E_CORRUPT,
        "verified before, and changed since"
    );
    flip(&data, MIB + 5);
    assert!(store.blob_fd("acme", &id).is_ok());
    assert!(read_blob(&store, "acme", &id).unwrap() == content);
    // The list of digests, and the length.
    let chunks = bench.blob_dir("acme", &id).join("chunks");
    flip(&chunks, 33);
    assert!(read_range(&store, "acme", &id, 0, 5).is_ok());
    assert_eq!(
        code(read_range(&store, "acme", &id, MIB as u64, 5)),
        abi::E_CORRUPT
    );
    flip(&chunks, 33);
    for (file, len) in [(&data, 3 * MIB), (&chunks, 96)] {
        let whole = std::fs::read(file).unwrap();
        std::fs::write(file, &whole[..len]).unwrap();
        assert_eq!(code(store.blob_open("acme", &id, 0, 1)), abi::E_CORRUPT);
        std::fs::write(file, &whole).unwrap();
    }
    assert!(read_blob(&store, "acme", &id).unwrap() == content);
}

#[test]
fn every_flipped_byte_of_a_small_blob_is_found() {
    let bench = Bench::new();
    let store = bench.store();
    let content = bytes(12, 200);
    let id = store_blob(&store, &blob_of("acme"), &content).unwrap().id;
    for file in ["data", "meta.json"] {
        let path = bench.blob_dir("acme", &id).join(file);
        let len = std::fs::read(&path).unwrap().len();
        for at in 0..len {
            flip(&path, at);
            assert_eq!(
                code(read_blob(&store, "acme", &id)),
                abi::E_CORRUPT,
                "{file} {at}"
            );
            flip(&path, at);
        }
    }
    assert_eq!(read_blob(&store, "acme", &id).unwrap(), content);
    for file in ["data", "meta.json"] {
        let path = bench.blob_dir("acme", &id).join(file);
        let kept = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(
            code(read_blob(&store, "acme", &id)),
            abi::E_CORRUPT,
            "{file} missing"
        );
        std::fs::write(&path, kept).unwrap();
    }
    // What is damaged can still be deleted.
    flip(&bench.blob_dir("acme", &id).join("meta.json"), 30);
    store.blob_delete("acme", &id).unwrap();
    assert_eq!(code(store.blob_stat("acme", &id)), abi::E_NOT_FOUND);
}

#[test]
fn a_blob_moved_to_another_tenant_or_id_is_refused() {
    let bench = Bench::new();
    let store = bench.store();
    let id = store_blob(&store, &blob_of("acme"), b"theirs").unwrap().id;
    store_blob(&store, &blob_of("evil"), b"mine").unwrap();
    let stolen = bench.blob_dir("evil", &id);
    std::fs::create_dir_all(stolen.parent().unwrap()).unwrap();
    std::fs::rename(bench.blob_dir("acme", &id), &stolen).unwrap();
    assert_eq!(code(store.blob_stat("evil", &id)), abi::E_CORRUPT);
}

#[test]
fn sixty_four_threads_write_and_read() {
    let bench = Bench::new();
    let store = bench.store();
    let written = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..64u64 {
            let (store, written) = (&store, &written);
            scope.spawn(move || {
                let tenant = format!("t{}", thread % 5);
                for n in 0..8u64 {
                    let size = if n == 0 {
                        MIB + 1000
                    } else {
                        1 + (thread * 37 + n * 1009) as usize
                    };
                    let content = bytes(thread * 100 + n, size);
                    let stat = store_blob(store, &blob_of(&tenant), &content).unwrap();
                    assert!(read_blob(store, &tenant, &stat.id).unwrap() == content);
                    written.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(written.into_inner(), 64 * 8);
    assert_eq!(bench.in_tmp(), 0);
    assert_eq!(store.health().unwrap().in_flight, 0);
}

#[test]
fn open_writers_and_readers_are_bounded() {
    let bench = Bench::new();
    let store = bench.store();
    let id = store_blob(&store, &blob_of("acme"), b"x").unwrap().id;
    // Descriptors may run out before the handles do: the answer is the same.
    let exhausted = |error: Error| {
        assert_eq!(error.code, abi::E_EXHAUSTED, "{error}");
        assert!(error.retryable);
    };
    let mut readers = Vec::new();
    exhausted(loop {
        match store.blob_open("acme", &id, 0, 0) {
            Ok((reader, _)) => readers.push(reader),
            Err(error) => break error,
        }
    });
    assert!(readers.len() <= 768, "{}", readers.len());
    for reader in readers {
        store.blob_close(reader);
    }
    let mut writers = Vec::new();
    exhausted(loop {
        match store.blob_create(&blob_of("acme")) {
            Ok(writer) => writers.push(writer),
            Err(error) => break error,
        }
    });
    assert!(writers.len() <= 768, "{}", writers.len());
    for writer in writers {
        store.blob_abort(writer);
    }
    assert_eq!(bench.in_tmp(), 0);
    assert!(store_blob(&store, &blob_of("acme"), b"y").is_ok());
}

#[test]
fn health_counts_what_is_open() {
    let bench = Bench::new();
    let store = bench.store();
    let counted = || {
        let health = store.health().unwrap();
        let metrics: serde_json::Value = serde_json::from_str(&health.metrics_json).unwrap();
        let of = |name: &str| metrics[name].as_u64().unwrap();
        let open = (of("open_writers"), of("open_readers"));
        (open, health.in_flight, health.capacity)
    };
    let ((writers, readers), in_flight, most) = counted();
    assert_eq!((writers, readers, in_flight), (0, 0, 0));
    assert!(most > 100, "{most}");
    let id = store_blob(&store, &blob_of("acme"), b"x").unwrap().id;
    let writers = [(); 3].map(|()| store.blob_create(&blob_of("acme")).unwrap());
    let readers = [(); 2].map(|()| store.blob_open("acme", &id, 0, 0).unwrap().0);
    // Room is for writers: that is what the gateway asks before it sends one more.
    assert_eq!(counted(), ((3, 2), 5, most - 3));
    for writer in writers {
        store.blob_abort(writer);
    }
    for reader in readers {
        store.blob_close(reader);
    }
    assert_eq!(counted(), ((0, 0), 0, most));
}

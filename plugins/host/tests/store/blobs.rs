//! Blobs: written once as a stream, read in ranges, gone when deleted or expired.

use super::limits::until_taken;
use super::*;
use skillgate_plugin_sdk::abi;
use std::time::Duration;

#[tokio::test]
async fn what_was_written_is_what_is_read() {
    let store = store().await;
    assert_eq!(
        store.caps(),
        abi::ST_SKILLS | abi::ST_SKILLS_WRITE | abi::ST_BLOBS | abi::ST_BLOB_FD | abi::ST_VOLATILE
    );
    for len in [0, 1, 55, 56, 63, 64, 65, 4096, 1_000_003] {
        let content = bytes(len);
        let id = put_blob(&store, "acme", &content).await.unwrap();
        let stat = store.blob_stat("acme", &id).await.unwrap();
        assert!(id.starts_with("blob:") && id.len() == 31, "{id}");
        assert_eq!(
            (stat.id.as_str(), stat.size_bytes, stat.sha256.as_str()),
            (id.as_str(), len as u64, hex_digest(&content).as_str())
        );
        assert_eq!(
            (stat.kind.as_str(), stat.owner.as_str()),
            ("text/csv", "alice")
        );
        assert!(stat.created_unix_ms > 1_700_000_000_000);
        assert!(read_blob(&store, "acme", &id, 0, 0).await.unwrap() == content);
        let (fd, told) = store.blob_fd("acme", &id).await.unwrap();
        assert_eq!(told, stat);
        let mut file = std::fs::File::from(fd);
        let mut read = Vec::new();
        std::io::Read::read_to_end(&mut file, &mut read).unwrap();
        assert!(read == content, "{len} bytes from the file");
        assert!(std::io::Write::write_all(&mut file, b"x").is_err());
    }
    end(store).await;
}

#[tokio::test]
async fn ranges() {
    let store = store().await;
    let content = bytes(10_000);
    let id = put_blob(&store, "t", &content).await.unwrap();
    for (offset, len, expected) in [
        (0, 0, 0..10_000),
        (0, 1, 0..1),
        (9_999, 1, 9_999..10_000),
        (9_999, 0, 9_999..10_000),
        (5_000, 100_000, 5_000..10_000),
        (5_000, u64::MAX, 5_000..10_000),
        (10_000, 0, 10_000..10_000),
        (10_000, 5, 10_000..10_000),
    ] {
        let read = read_blob(&store, "t", &id, offset, len).await.unwrap();
        assert!(read == content[expected], "{offset} {len}");
    }
    for offset in [10_001, u64::MAX] {
        let read = read_blob(&store, "t", &id, offset, 0).await;
        assert_eq!(code(read), abi::E_OUT_OF_RANGE);
    }
    end(store).await;
}

#[tokio::test]
async fn a_blob_is_not_there_before_it_is_whole() {
    let store = store().await;
    let mut writer = store.blob_create(blob_of("t")).await.unwrap();
    writer.write(bytes(100_000)).await.unwrap();
    // Thrown away: the handle of a writer aborts it, and the bytes are given back.
    drop(writer);
    let mut limited = store
        .blob_create(BlobCreate {
            max_bytes: 10,
            ..blob_of("t")
        })
        .await
        .unwrap();
    limited.write(bytes(10)).await.unwrap();
    assert_eq!(code(limited.write(bytes(1)).await), abi::E_OUT_OF_RANGE);
    // What it has is not what was meant.
    assert_eq!(code(limited.write(bytes(0)).await), abi::E_PRECONDITION);
    assert_eq!(code(limited.commit().await), abi::E_PRECONDITION);
    settled(&store).await;
    until_taken(&store, 0).await;
    end(store).await;
}

#[tokio::test]
async fn what_one_tenant_has_stored_does_not_exist_for_another() {
    let store = store().await;
    let id = put_blob(&store, "acme", b"secret").await.unwrap();
    let unknown = format!("blob:{}", "a".repeat(26));
    for (tenant, id) in [
        ("other", id.as_str()),
        ("acm", &id),
        ("acme2", &id),
        ("", &id),
        ("acme", &unknown),
        ("acme", "blob:"),
        ("acme", ""),
        ("acme", &id[..30]),
    ] {
        let codes = [
            code(store.blob_stat(tenant, id).await),
            code(store.blob_open(tenant, id, 0, 0).await),
            code(store.blob_fd(tenant, id).await),
            code(store.blob_delete(tenant, id).await),
        ];
        assert_eq!(codes, [abi::E_NOT_FOUND; 4], "{tenant:?} {id:?}");
    }
    assert_eq!(
        read_blob(&store, "acme", &id, 0, 0).await.unwrap(),
        b"secret"
    );
    assert_eq!(
        code(store.blob_create(blob_of("")).await),
        abi::E_INVALID_ARGUMENT
    );
    end(store).await;
}

#[tokio::test]
async fn a_deleted_blob_is_gone_but_open_readers_go_on() {
    let store = store().await;
    let content = bytes(200_000);
    let id = put_blob(&store, "t", &content).await.unwrap();
    let mut reader = store.blob_open("t", &id, 0, 0).await.unwrap();
    let (mut read, _) = reader.read(1000).await.unwrap();
    store.blob_delete("t", &id).await.unwrap();
    assert_eq!(code(store.blob_stat("t", &id).await), abi::E_NOT_FOUND);
    assert_eq!(code(store.blob_delete("t", &id).await), abi::E_NOT_FOUND);
    loop {
        let (more, end) = reader.read(70_000).await.unwrap();
        read.extend_from_slice(&more);
        if end {
            break;
        }
    }
    assert!(read == content);
    drop(reader);
    end(store).await;
}

#[tokio::test]
async fn a_blob_with_an_end_is_gone_then() {
    let store = store().await;
    let with_end = |ttl_s| BlobCreate {
        ttl_s,
        ..blob_of("t")
    };
    let mut writer = store.blob_create(with_end(1)).await.unwrap();
    writer.write(b"short".to_vec()).await.unwrap();
    let short = writer.commit().await.unwrap();
    let mut ids = vec![];
    for ttl_s in [0, 3600, u64::MAX] {
        let writer = store.blob_create(with_end(ttl_s)).await.unwrap();
        ids.push(writer.commit().await.unwrap().id);
    }
    assert_eq!(store.blob_stat("t", &short.id).await.unwrap(), short);
    let waiting = async {
        // Looking at the clock of the store is all that there is to do.
        let mut ticks = tokio::time::interval(Duration::from_millis(20));
        while store.blob_stat("t", &short.id).await.is_ok() {
            ticks.tick().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), waiting)
        .await
        .expect("it has an end");
    let codes = [
        code(store.blob_stat("t", &short.id).await),
        code(store.blob_open("t", &short.id, 0, 0).await),
        code(store.blob_fd("t", &short.id).await),
        code(store.blob_delete("t", &short.id).await),
    ];
    assert_eq!(codes, [abi::E_NOT_FOUND; 4]);
    for id in ids {
        store.blob_stat("t", &id).await.unwrap();
    }
    end(store).await;
}

#[tokio::test]
async fn many_at_once() {
    let store = store().await;
    let tasks: Vec<_> = (0..32_usize)
        .map(|n| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                let content = bytes(1000 * n + n);
                let id = put_blob(&store, "t", &content).await.unwrap();
                assert!(read_blob(&store, "t", &id, 0, 0).await.unwrap() == content);
                if n % 2 == 0 {
                    store.blob_delete("t", &id).await.unwrap();
                }
                id
            })
        })
        .collect();
    let mut ids = std::collections::BTreeSet::new();
    for task in tasks {
        assert!(ids.insert(task.await.unwrap()), "an id comes twice");
    }
    end(store).await;
}

/// How many aborts the store that refuses has heard, once there are so many.
async fn aborts(store: &StorageInstance, least: u32) -> u32 {
    let waiting = async {
        loop {
            let heard = store.health().await.unwrap().capacity;
            if heard >= least {
                return heard;
            }
            tokio::task::yield_now().await;
        }
    };
    let heard = tokio::time::timeout(Duration::from_secs(30), waiting).await;
    heard.unwrap_or_else(|_| panic!("{least} aborts are not heard"))
}

/// A call that is refused has no op that the writer could have gone with: it is thrown away as if nobody had asked.
#[tokio::test]
async fn a_writer_whose_commit_is_refused_is_aborted_once() {
    let inline = "-DFLAGS=0";
    for options in [
        &[inline][..],
        &["-DFLAGS=SKG_F_BLOCKING"],
        &[inline, "-DNO_COMMIT"],
    ] {
        let dir = tempfile::tempdir().unwrap();
        let options = [&["-Wno-unused-function"], options].concat();
        let file = compile("tests/store/refuses.c", dir.path(), "refuses", &options);
        let plugin = support::open(&file, ISOLATION);
        let store = plugin.storage(config("{}")).await.unwrap();
        let writer = store.blob_create(blob_of("t")).await.unwrap();
        let error = writer.commit().await.unwrap_err();
        assert!(error.not_executed, "{options:?}: {error:?}");
        assert_eq!(aborts(&store, 1).await, 1, "{options:?}");
        // That of another one comes after all that there are of the first.
        drop(store.blob_create(blob_of("t")).await.unwrap());
        assert_eq!(aborts(&store, 2).await, 2, "{options:?}");
    }
}

//! Blobs: writers and readers, and what becomes of those that are dropped.

use std::task::{Context, Waker};

use super::storage::pipe_in;
use super::*;

fn blob() -> BlobCreate {
    BlobCreate {
        tenant: "t".into(),
        kind: "text/plain".into(),
        owner: "me".into(),
        ..BlobCreate::default()
    }
}

#[tokio::test]
async fn a_blob_from_writer_to_reader() {
    let store = store().await;
    let mut writer = store.blob_create(blob()).await.unwrap();
    writer.write(b"hello ".to_vec()).await.unwrap();
    writer.write(Vec::new()).await.unwrap();
    writer.write("world").await.unwrap();
    let stat = writer.commit().await.unwrap();
    assert_eq!(
        (stat.size_bytes, stat.kind.as_str(), stat.owner.as_str()),
        (11, "text/plain", "me")
    );
    assert_eq!(store.blob_stat("t", &stat.id).await.unwrap(), stat);

    let mut reader = store.blob_open("t", &stat.id, 1, 7).await.unwrap();
    assert_eq!(reader.stat(), &stat);
    assert_eq!(reader.read(5).await.unwrap(), (b"ello ".to_vec(), false));
    assert_eq!(reader.read(100).await.unwrap(), (b"wo".to_vec(), true));
    drop(reader);

    // The same on a thread that may wait: nothing of it is on the event loop.
    let blocking = store.blocking();
    let id = stat.id.clone();
    let read = tokio::task::spawn_blocking(move || {
        let mut writer = blocking.blob_create(blob()).unwrap();
        writer.write_blocking("again").unwrap();
        let written = writer.commit_blocking().unwrap();
        let mut reader = blocking.blob_open("t", &id, 0, 0).unwrap();
        (written.size_bytes, reader.read_blocking(100).unwrap())
    });
    assert_eq!(read.await.unwrap(), (5, (b"hello world".to_vec(), true)));

    store.blob_delete("t", &stat.id).await.unwrap();
    assert_eq!(
        store.blob_stat("t", &stat.id).await.unwrap_err().code,
        abi::E_NOT_FOUND
    );
    until("closing the readers", async || {
        store.health().await.unwrap().capacity == 0
    })
    .await;
}

/// What a store gives that no range can be: whoever reads to the end gets as much as he asked for, or an error.
#[tokio::test]
async fn a_blob_that_is_not_what_was_asked_for_is_an_error() {
    let store = store().await;
    for (id, len, what) in [
        ("blob:made-up-10-11", 0, "more of a blob"),
        ("blob:made-up-10", 5, "more of a blob"),
        ("blob:made-up-10-9", 0, "ended before"),
        ("blob:made-up-10-", 0, "nothing of a blob"),
    ] {
        let mut reader = store.blob_open("t", id, 0, len).await.unwrap();
        let error = reader.read(100).await.unwrap_err();
        assert!(
            error.code == abi::E_CORRUPT && error.message.contains(what),
            "{id}: {error:?}"
        );
    }
}

#[tokio::test]
async fn what_is_dropped_is_ended() {
    let store = store().await;
    let writer = store.blob_create(blob()).await.unwrap();
    assert_eq!(store.health().await.unwrap().in_flight, 1);
    drop(writer);
    until("aborting the writer", async || {
        store.health().await.unwrap().in_flight == 0
    })
    .await;
    // A writer nobody got: its creation ends after the caller has left.
    let creating = store.blob_create(blob());
    tokio::select! { biased; _ = creating => {}, () = std::future::ready(()) => {} }
    until("ending the unwanted writer", async || {
        store.health().await.unwrap().in_flight == 0
    })
    .await;
}

#[tokio::test]
async fn a_write_that_was_given_up_spoils_the_writer() {
    let store = store().await;
    // The plugin may be faster than the first look at its answer: then the write was not given up.
    loop {
        let mut writer = store.blob_create(blob()).await.unwrap();
        let given_up = tokio::select! {
            biased;
            _ = writer.write("lost") => false,
            () = std::future::ready(()) => true,
        };
        if given_up {
            assert_eq!(writer.write("more").await.unwrap_err().code, abi::E_ABORTED);
            assert_eq!(writer.commit().await.unwrap_err().code, abi::E_ABORTED);
            break;
        }
    }
    until("aborting the writers", async || {
        store.health().await.unwrap().in_flight == 0
    })
    .await;
}

/// The error says that the store has not heard of it, and to try again.
#[test]
fn what_is_refused_at_once_spoils_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = pipe_in(dir.path());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let store = store().await;
        let mut writer = store.blob_create(blob()).await.unwrap();
        let mut reader = store.blob_open("t", "blob:made-up-9", 0, 0).await.unwrap();
        // All the calls that its tenant may have.
        let mut nobody = Context::from_waker(Waker::noop());
        let mut hanging = Vec::new();
        loop {
            let mut call = Box::pin(store.skill_get("t", "hang", pipe.to_str().unwrap()));
            if call.as_mut().poll(&mut nobody).is_ready() {
                break;
            }
            hanging.push(call);
        }
        let mut refused = Vec::new();
        for _ in 0..2 {
            refused.push(writer.write("x").await.err());
            refused.push(reader.read(9).await.err());
        }
        // As the end of whatever it hangs on.
        let pipe = std::fs::File::options().read(true).write(true).open(&pipe);
        for call in hanging {
            call.await.unwrap();
        }
        drop(pipe);
        for error in refused {
            let error = error.unwrap();
            let how = (error.code, error.retryable, error.not_executed);
            assert_eq!(how, (abi::E_UNAVAILABLE, true, true), "{error}");
        }
        writer.write("x").await.unwrap();
        assert_eq!(writer.commit().await.unwrap().size_bytes, 1);
        assert_eq!(reader.read(9).await.unwrap().0.len(), 9);
    });
}

//! Calls whose callers leave while they wait in the plugin's process behind others.

use std::path::Path;
use std::sync::Arc;

use skillgate_plugin_host::model::BlobCreate;
use skillgate_plugin_host::{Counted as _, Over, ProcessSettings, StorageInstance};
use skillgate_plugin_sdk::abi;

use super::{Caller, PATIENCE, ask, echo_with, plugin, send, waiting_runs};
use crate::support::{config, settings};

/// One thread that works and one that reads, and nothing ends because of its grace.
fn narrow() -> ProcessSettings {
    ProcessSettings {
        threads_max: 2,
        cancel_grace: 2 * PATIENCE,
        ..settings()
    }
}

async fn until(what: &str, is_so: impl AsyncFn() -> bool) {
    let waiting = async {
        while !is_so().await {
            tokio::task::yield_now().await;
        }
    };
    let came = tokio::time::timeout(PATIENCE, waiting).await;
    came.unwrap_or_else(|_| panic!("{what}: not after {PATIENCE:?}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_the_plugin_has_not_begun_ends_at_once() {
    let sandbox = echo_with(&narrow(), "{}").await;
    let begun = waiting_runs(&sandbox, 1).await.pop().unwrap();
    let (run, asked) = (Arc::clone(&sandbox), Arc::clone(&sandbox));
    let mut run: Caller<_> = Box::pin(async move { ask(&run, "echo").await.map(drop) });
    let mut health: Caller<_> = Box::pin(async move { asked.health().await.map(drop) });
    send(&mut run);
    send(&mut health);
    assert_eq!(sandbox.counts().in_flight(), 3);
    drop(run);
    until("the run ends", async || sandbox.counts().in_flight() == 2).await;
    drop(health);
    until("the health ends", async || {
        sandbox.counts().in_flight() == 1
    })
    .await;
    let counts = sandbox.counts().all();
    for ended in [("run", "cancelled", 1), ("health", "cancelled", 1)] {
        assert!(counts.contains(&ended), "{counts:?}");
    }
    assert!(!begun.is_finished());
    // The one that it has begun is told, as ever.
    begun.abort();
    until("the first ends", async || sandbox.counts().in_flight() == 0).await;
}

/// On which a call of the echo store's hangs until somebody opens it.
fn pipe_in(dir: &Path) -> std::path::PathBuf {
    let pipe = dir.join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    pipe
}

async fn writers(store: &StorageInstance) -> u32 {
    store.health().await.unwrap().in_flight
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_whose_commit_the_plugin_has_not_begun_is_thrown_away() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = pipe_in(dir.path());
    let store = plugin(&narrow()).storage(config("{}")).await.unwrap();
    let writer = store.blob_create(BlobCreate::default()).await.unwrap();
    assert_eq!(writers(&store).await, 1);
    let (hangs, on) = (Arc::clone(&store), pipe.to_str().unwrap().to_owned());
    let mut hangs: Caller<_> = Box::pin(async move { hangs.skill_get("t", "hang", &on).await });
    send(&mut hangs);
    let mut commit: Caller<_> = Box::pin(writer.commit());
    send(&mut commit);
    assert_eq!(store.counts().in_flight(), 2);
    drop(commit);
    until("the commit ends", async || store.counts().in_flight() == 1).await;
    // As the end of what it hangs on.
    let pipe = std::fs::File::options().read(true).write(true).open(&pipe);
    hangs.await.unwrap();
    drop(pipe);
    until("the writer is gone", async || writers(&store).await == 0).await;
}

/// A call that hangs keeps neither the thread of who asked nor the store from whoever wants to exchange it.
#[tokio::test(flavor = "multi_thread")]
async fn a_thread_of_one_who_is_over_waits_no_longer() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = pipe_in(dir.path());
    let store = plugin(&narrow()).storage(config("{}")).await.unwrap();
    let began = std::time::Instant::now();
    let late = loop {
        let over = Over::default();
        let asked = store.blocking().until(&over);
        let (late, on) = (asked.clone(), pipe.to_str().unwrap().to_owned());
        let hangs = tokio::task::spawn_blocking(move || asked.skill_get("t", "hang", &on));
        until("it asks", async || store.counts().in_flight() == 1).await;
        assert!(!hangs.is_finished() && !store.is_deserted());
        over.set();
        let left = hangs.await.unwrap().unwrap_err();
        assert_eq!(left.code, abi::E_CANCELLED);
        // Else it has not got as far as to the plugin.
        if !left.not_executed {
            break late;
        }
        assert!(began.elapsed() < PATIENCE, "it never asks the plugin");
    };
    let late = tokio::task::spawn_blocking(move || late.blob_create(BlobCreate::default()));
    let late = late.await.unwrap().unwrap_err();
    assert_eq!((late.code, late.not_executed), (abi::E_CANCELLED, true));
    assert_eq!(store.counts().in_flight(), 1, "it hangs as before");
    assert!(store.is_deserted());
    // As the end of what it hangs on.
    let pipe = std::fs::File::options().read(true).write(true).open(&pipe);
    until("it ends", async || store.counts().in_flight() == 0).await;
    drop(pipe);
}

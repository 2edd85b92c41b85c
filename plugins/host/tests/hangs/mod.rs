//! The gateway's own store hangs while runs make blobs in it: nobody else's run ends with theirs, and what hangs counts for as
//! long as it does.

use std::sync::Arc;
use std::time::Duration;

use skillgate_plugin_host::model::{Error, RunResult};
use skillgate_plugin_host::{Counted as _, ProcessSettings, SandboxInstance};
use skillgate_plugin_sdk::abi;
use tokio::task::JoinHandle;

use super::{PATIENCE, again, ask, echo_with, kill, waiting_runs};
use crate::support::{Gateway, HangingStore, run, settings};

/// Services about blobs that the gateway works on at the same time (process/services.rs).
const BLOB_SERVICES_MAX: u32 = 256;

async fn until(what: &str, is: impl Fn() -> bool) {
    let waiting = async {
        while !is() {
            tokio::task::yield_now().await;
        }
    };
    let came = tokio::time::timeout(PATIENCE, waiting).await;
    came.unwrap_or_else(|_| panic!("never: {what}"));
}

/// Lets the store go when a test ends, however it does: its threads are waited for.
struct Store(Arc<HangingStore>);

impl Drop for Store {
    fn drop(&mut self) {
        self.0.let_go();
    }
}

impl Store {
    fn new() -> Self {
        Store(Arc::default())
    }

    /// A run that makes a blob in it.
    fn run(&self, sandbox: &Arc<SandboxInstance>) -> JoinHandle<Result<RunResult, Error>> {
        let gateway = Arc::new(Gateway {
            store: Some(Arc::clone(&self.0)),
            ..Gateway::default()
        });
        let sandbox = Arc::clone(sandbox);
        tokio::spawn(async move { sandbox.run(run("blob"), gateway).await })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_cancelled_while_the_store_hangs_ends_alone() {
    let settings = ProcessSettings {
        cancel_grace: Duration::from_secs(1),
        ..settings()
    };
    let sandbox = echo_with(&settings, "{}").await;
    let pid = ask(&sandbox, "pid").await.unwrap();
    let bystander = waiting_runs(&sandbox, 1).await.pop().unwrap();
    let store = Store::new();
    let left = store.run(&sandbox);
    until("the store is asked", || store.0.came() == 1).await;
    left.abort();
    let ended = |how: &str| sandbox.counts().all().contains(&("run", how, 1));
    until("the run ends", || {
        ended("cancelled") || bystander.is_finished()
    })
    .await;
    assert!(ended("cancelled") && !bystander.is_finished());
    assert_eq!(ask(&sandbox, "pid").await.unwrap(), pid);
    // What comes of it after all is nobody's.
    drop(store);
    assert_eq!(ask(&sandbox, "blob").await.unwrap(), "ello");
    assert_eq!(ask(&sandbox, "pid").await.unwrap(), pid);
    assert!(!bystander.is_finished());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_hangs_in_the_store_counts_in_the_next_life_too() {
    let settings = ProcessSettings {
        // Besides, one that reads.
        threads_max: BLOB_SERVICES_MAX + 1,
        ..settings()
    };
    let sandbox = echo_with(&settings, "{}").await;
    let pid = ask(&sandbox, "pid").await.unwrap();
    let store = Store::new();
    let runs: Vec<_> = (0..BLOB_SERVICES_MAX)
        .map(|_| store.run(&sandbox))
        .collect();
    until("all are asked", || store.0.came() == runs.len()).await;
    kill(&pid);
    for run in runs {
        assert_eq!(run.await.unwrap().unwrap_err().code, abi::E_CRASHED);
    }
    assert_ne!(again(&sandbox, "pid").await, pid);
    let refused = ask(&sandbox, "blob").await.unwrap_err();
    assert_eq!(refused.code, abi::E_EXHAUSTED, "{refused:?}");
    drop(store);
    let come_back = async {
        while let Err(error) = ask(&sandbox, "blob").await {
            assert_eq!(error.code, abi::E_EXHAUSTED, "{error:?}");
        }
    };
    tokio::time::timeout(PATIENCE, come_back).await.unwrap();
}

//! A plugin that answers later, with one thread for everything: it passes, and has more calls in flight than anybody has
//! threads.

use std::sync::Arc;
use std::time::Duration;

use skillgate_plugin_check::{Isolation, Settings};
use skillgate_plugin_host::model::{CreateRequest, Error};
use skillgate_plugin_host::{Pin, Plugin, ProcessSettings, StorageInstance};
use skillgate_plugin_sdk::abi;

use crate::bundled::all_pass;
use crate::support::{one_thread, program, settings};

/// What the kit asks of stores that keep skills, or more than their process does.
const NOT_ITS_OWN: [&str; 11] = [
    "storage/blob-descriptors",
    "storage/blob-large",
    "storage/concurrent-publish",
    "storage/cursors",
    "storage/durability",
    "storage/latest",
    "storage/names",
    "storage/order",
    "storage/publish-and-read",
    "storage/publish-twice",
    "storage/tenants",
];
/// Calls in flight at once; the host has one thread for blocking ones here, and a plugin's process two for all.
const TOGETHER: usize = 2000;
/// Only there to fail.
const LONG: Duration = Duration::from_secs(60);

#[test]
fn it_passes() {
    // What goes another way in a process of its own.
    let apart = ["storage", "figures", "contract/answers"];
    for (isolation, only) in [(Isolation::Gateway, &[][..]), (Isolation::Process, &apart)] {
        let settings = Settings {
            isolation,
            only: only.iter().map(|&name| name.to_owned()).collect(),
            ..settings(&one_thread(), &serde_json::json!({}))
        };
        all_pass(&settings, &NOT_ITS_OWN);
    }
}

async fn open(isolation: Isolation) -> Arc<StorageInstance> {
    let process = ProcessSettings {
        program: program(),
        threads_max: 2,
        ..ProcessSettings::this_program(&["host"])
    };
    let plugin = Plugin::open(one_thread(), &Pin::default(), isolation, &process).unwrap();
    assert!(!plugin.info().blocking);
    let request = CreateRequest {
        instance_id: "later".into(),
        state_dir: "/nowhere".into(),
        config_json: b"{}".to_vec(),
    };
    plugin.storage(request).await.unwrap()
}

/// Asks for what is answered when `count` have asked for it.
async fn meet(store: Arc<StorageInstance>, count: usize) -> Result<(), Error> {
    let id = format!("together:{count}");
    store.blob_stat("t", &id).await.map(drop)
}

async fn in_flight(store: &StorageInstance) -> usize {
    store.health().await.unwrap().in_flight as usize
}

/// Nothing is answered before all are there, so all are in flight at once.
async fn many_at_once(isolation: Isolation) {
    let store = open(isolation).await;
    let calls: Vec<_> = (0..TOGETHER)
        .map(|_| tokio::spawn(meet(Arc::clone(&store), TOGETHER)))
        .collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }

    // One caller leaves, and a drain ends with what the others have left.
    let mut left: Vec<_> = (0..2)
        .map(|_| tokio::spawn(meet(Arc::clone(&store), TOGETHER)))
        .collect();
    while in_flight(&store).await < 2 {
        tokio::task::yield_now().await;
    }
    let drain = {
        let store = Arc::clone(&store);
        tokio::spawn(async move { store.drain().await })
    };
    // From the drain on nothing begins.
    while store.blob_stat("t", "blob:").await.unwrap_err().code != abi::E_UNAVAILABLE {
        tokio::task::yield_now().await;
    }
    left.pop().unwrap().abort();
    while in_flight(&store).await > 1 {
        tokio::task::yield_now().await;
    }
    assert!(!drain.is_finished(), "one is left");
    left.pop().unwrap().abort();
    drain.await.unwrap().unwrap();
    store.shutdown().await.unwrap();
}

#[test]
fn one_thread_has_thousands_of_calls_in_flight() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .max_blocking_threads(1)
        .enable_all()
        .build()
        .unwrap();
    for isolation in [Isolation::Gateway, Isolation::Process] {
        runtime
            .block_on(async { tokio::time::timeout(LONG, many_at_once(isolation)).await })
            .unwrap_or_else(|_| panic!("{isolation:?}: not all are in flight at once"));
    }
}

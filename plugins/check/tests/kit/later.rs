//! Plugins that answer later, with one thread for everything: they pass, and have more calls in flight than anybody has
//! threads.

use std::sync::Arc;
use std::time::Duration;

use skillgate_plugin_check::{Isolation, Settings};
use skillgate_plugin_host::model::{CreateRequest, Error, Limits, RunRequest};
use skillgate_plugin_host::{Pin, Plugin, ProcessSettings, RunHost, StorageInstance};
use skillgate_plugin_sdk::abi;

use crate::bundled::all_pass;
use crate::support::{one_thread, program, settings};

/// What the kit asks of stores that keep skills, or more than their process does.
const NOT_ITS_OWN: [&str; 13] = [
    "storage/blob-descriptors",
    "storage/blob-durability",
    "storage/blob-large",
    "storage/concurrent-publish",
    "storage/cursors",
    "storage/durability",
    "storage/latest",
    "storage/names",
    "storage/order",
    "storage/publish-and-read",
    "storage/publish-twice",
    "storage/skills-published-at-once",
    "storage/tenants",
];
/// Calls in flight at once; the host has one thread for blocking ones here, and a plugin's process two for all.
const TOGETHER: usize = 2000;
/// Only there to fail.
const LONG: Duration = Duration::from_secs(60);

#[test]
fn the_store_passes() {
    // What goes another way in a process of its own.
    let apart = ["storage", "figures", "contract/answers"];
    for (isolation, only) in [(Isolation::Gateway, &[][..]), (Isolation::Process, &apart)] {
        let settings = Settings {
            isolation,
            only: only.iter().map(|&name| name.to_owned()).collect(),
            ..settings(&one_thread("store"), &serde_json::json!({}))
        };
        all_pass(&settings, &NOT_ITS_OWN);
    }
}

/// Of its runs the kit asks nothing: it does not run python.
#[test]
fn the_sandbox_passes() {
    let settings = Settings {
        only: ["file", "contract", "operations", "process"]
            .map(str::to_owned)
            .to_vec(),
        ..settings(&one_thread("sandbox"), &serde_json::json!({}))
    };
    all_pass(&settings, &["operations/cancel-during", "operations/drain"]);
}

fn plugin(kind: &str, isolation: Isolation) -> Plugin {
    let process = ProcessSettings {
        program: program(),
        threads_max: 2,
        ..ProcessSettings::this_program(&["host"])
    };
    let plugin = Plugin::open(one_thread(kind), &Pin::default(), isolation, &process).unwrap();
    assert!(!plugin.info().blocking);
    plugin
}

fn instance() -> CreateRequest {
    CreateRequest {
        instance_id: "later".into(),
        state_dir: "/nowhere".into(),
        config_json: b"{}".to_vec(),
    }
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
    let store = plugin("store", isolation)
        .storage(instance())
        .await
        .unwrap();
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

/// The host has one thread for calls that block.
fn in_both<F: Future<Output = ()>>(test: impl Fn(Isolation) -> F) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .max_blocking_threads(1)
        .enable_all()
        .build()
        .unwrap();
    for isolation in [Isolation::Gateway, Isolation::Process] {
        runtime
            .block_on(async { tokio::time::timeout(LONG, test(isolation)).await })
            .unwrap_or_else(|_| panic!("{isolation:?}: it goes on for ever"));
    }
}

#[test]
fn one_thread_has_thousands_of_calls_in_flight() {
    in_both(many_at_once);
}

/// The gateway's side of a run: one secret, blobs that are counted, and output that is waited for.
#[derive(Default)]
struct Gateway {
    said: tokio::sync::Notify,
    written: std::sync::Mutex<Vec<Vec<u8>>>,
}

impl RunHost for Gateway {
    fn output(&self, stream: u32, data: &[u8]) -> bool {
        assert_eq!((stream, data), (abi::STDOUT, &b"waiting\n"[..]));
        self.said.notify_one();
        true
    }
    fn secret(&self, name: &str) -> Result<Vec<u8>, Error> {
        Ok(format!("the value of {name}").into_bytes())
    }
    fn blob_fd(&self, _: &str) -> Result<std::os::fd::OwnedFd, Error> {
        Err(Error::new(abi::E_UNIMPLEMENTED, ""))
    }
    fn blob_read(&self, _: &str, _: u64, _: &mut [u8]) -> Result<usize, Error> {
        Err(Error::new(abi::E_NOT_FOUND, ""))
    }
    fn blob_create(&self, _: &str) -> Result<i64, Error> {
        Ok(7)
    }
    fn blob_write(&self, _: i64, data: &[u8]) -> Result<(), Error> {
        self.written.lock().unwrap().push(data.to_vec());
        Ok(())
    }
    fn blob_finish(&self, _: i64, commit: bool) -> Result<Option<String>, Error> {
        Ok(commit.then(|| "blob:made".to_owned()))
    }
    fn gate_serve(&self, _: std::os::fd::OwnedFd) -> Result<(), Error> {
        Err(Error::new(abi::E_PERMISSION, ""))
    }
}

fn program_of(code: &str) -> RunRequest {
    RunRequest {
        run_id: format!("run_{code}"),
        language: "echo".into(),
        code: code.into(),
        args_json: b"{}".to_vec(),
        secrets: vec!["KEY".into()],
        limits: Limits {
            wall_ms: 60_000,
            output_bytes: 4096,
            ..Limits::default()
        },
        ..RunRequest::default()
    }
}

/// The plugin's thread uses what the host lends a run, until the run is answered; a caller who leaves ends it.
async fn a_run_and_its_services(isolation: Isolation) {
    let sandbox = plugin("sandbox", isolation)
        .sandbox(instance())
        .await
        .unwrap();
    let gateway = Arc::new(Gateway::default());
    let run = |code| {
        let (sandbox, gateway) = (Arc::clone(&sandbox), Arc::clone(&gateway));
        async move { sandbox.run(program_of(code), gateway).await }
    };
    assert_eq!(run("").await.unwrap().output_json, b"{}");
    assert_eq!(run("store").await.unwrap().output_blobs, ["blob:made"]);
    assert_eq!(*gateway.written.lock().unwrap(), [b"the value of KEY"]);
    // What it still has of the run before is of no use to it.
    assert_eq!(run("late").await.unwrap_err().code, abi::E_STALE);
    assert_eq!(gateway.written.lock().unwrap().len(), 1);

    let waits = tokio::spawn(run("wait"));
    gateway.said.notified().await;
    assert_eq!(sandbox.health().await.unwrap().in_flight, 1);
    waits.abort();
    while sandbox.health().await.unwrap().in_flight > 0 {
        tokio::task::yield_now().await;
    }
    sandbox.drain().await.unwrap();
    sandbox.shutdown().await.unwrap();
}

#[test]
fn a_run_has_its_services_until_its_answer() {
    in_both(a_run_and_its_services);
}

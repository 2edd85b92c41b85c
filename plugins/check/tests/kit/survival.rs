//! The gateway's side of plugins that do things wrong: in a process of its own each costs its own calls, and another
//! plugin answers all the while.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use skillgate_plugin_check::Isolation;
use skillgate_plugin_host::model::{
    BlobCreate, CreateRequest, Error, Limits, Result, RunRequest, SkillQuery,
};
use skillgate_plugin_host::{LoadError, Pin, Plugin, ProcessSettings, RunHost, StorageInstance};
use skillgate_plugin_sdk::abi;

use crate::sabotage::{IN_C, SANDBOX, STORE};
use crate::support::{bundled, config_of, probe, program, sabotaged, saboteur, thrower};

/// A call that takes longer is left: its caller has gone away.
const PATIENCE: Duration = Duration::from_millis(300);
/// Between two calls of the other plugin.
const PACE: Duration = Duration::from_millis(2);
/// Only there to fail.
const LONG: Duration = Duration::from_secs(30);

fn open(path: &Path, dir: &Path) -> Plugin {
    try_open(path, dir).unwrap_or_else(|error| panic!("{error}"))
}

/// Its process is in `dir`: one that writes to where it is must not do so among the sources.
fn try_open(path: &Path, dir: &Path) -> std::result::Result<Plugin, LoadError> {
    let words = ["-c", "cd \"$1\" && exec \"$0\" host"].map(OsString::from);
    let settings = ProcessSettings {
        program: "sh".into(),
        args: words
            .into_iter()
            .chain([program().into(), dir.into()])
            .collect(),
        no_new_privs: false,
        cancel_grace: Duration::from_millis(50),
        ..ProcessSettings::this_program(&[])
    };
    Plugin::open(path, &Pin::default(), Isolation::Process, &settings)
}

fn request(dir: &Path, config: &serde_json::Value) -> CreateRequest {
    let scratch = dir.display().to_string();
    CreateRequest {
        instance_id: "survival".into(),
        config_json: config
            .to_string()
            .replace("${scratch}", &scratch)
            .into_bytes(),
        state_dir: scratch,
    }
}

/// How a call ended is its own matter; that it ends, and that this process is there to see it, is the test's.
async fn ends<T>(call: impl Future<Output = Result<T>>) {
    drop(tokio::time::timeout(PATIENCE, call).await);
}

/// A run gets nothing.
struct NoServices;

impl RunHost for NoServices {
    fn output(&self, _: u32, _: &[u8]) -> bool {
        true
    }
    fn secret(&self, _: &str) -> Result<Vec<u8>> {
        Err(Error::new(abi::E_NOT_FOUND, ""))
    }
    fn blob_fd(&self, _: &str) -> Result<std::os::fd::OwnedFd> {
        Err(Error::new(abi::E_NOT_FOUND, ""))
    }
    fn blob_read(&self, _: &str, _: u64, _: &mut [u8]) -> Result<usize> {
        Err(Error::new(abi::E_NOT_FOUND, ""))
    }
    fn blob_create(&self, _: &str) -> Result<i64> {
        Err(Error::new(abi::E_EXHAUSTED, ""))
    }
    fn blob_write(&self, _: i64, _: &[u8]) -> Result<()> {
        Err(Error::new(abi::E_STALE, ""))
    }
    fn blob_finish(&self, _: i64, _: bool) -> Result<Option<String>> {
        Err(Error::new(abi::E_STALE, ""))
    }
    fn gate_serve(&self, _: std::os::fd::OwnedFd) -> Result<()> {
        Err(Error::new(abi::E_PERMISSION, ""))
    }
}

fn query() -> SkillQuery {
    SkillQuery {
        limit: 10,
        tenant: "t".into(),
        ..SkillQuery::default()
    }
}

/// Uses a store that does one thing wrong, as a gateway would.
async fn use_store(sabotage: &str) {
    let dir = tempfile::tempdir().unwrap();
    let plugin = open(&saboteur("store"), dir.path());
    let config = request(dir.path(), &sabotaged("storage_fs", sabotage));
    // Else nothing of it would be called.
    let store = plugin.storage(config).await.unwrap();
    ends(store.health()).await;
    ends(store.skill_list(query())).await;
    ends(store.skill_get("t", "check.none", "1.0.0")).await;
    let create = BlobCreate {
        tenant: "t".into(),
        kind: "text/plain".into(),
        max_bytes: 100,
        ..BlobCreate::default()
    };
    ends(async {
        let mut writer = store.blob_create(create).await?;
        writer.write(vec![1, 2, 3]).await?;
        let stat = writer.commit().await?;
        store
            .blob_open("t", &stat.id, 0, 0)
            .await?
            .read(100)
            .await?;
        store.blob_delete("t", &stat.id).await
    })
    .await;
    ends(store.shutdown()).await;
}

/// Likewise a sandbox.
async fn use_sandbox(sabotage: &str) {
    let dir = tempfile::tempdir().unwrap();
    let plugin = open(&saboteur("sandbox"), dir.path());
    let config = request(dir.path(), &sabotaged("sandbox_process", sabotage));
    let sandbox = plugin.sandbox(config).await.unwrap();
    ends(sandbox.health()).await;
    let run = RunRequest {
        run_id: "run_survival".into(),
        tenant: "t".into(),
        language: "python".into(),
        code: "def main(args):\n    return 1\n".into(),
        function: "main".into(),
        args_json: b"{}".to_vec(),
        limits: Limits {
            wall_ms: 5000,
            max_pids: 8,
            memory_bytes: 1 << 28,
            ..Limits::default()
        },
        ..RunRequest::default()
    };
    ends(sandbox.run(run, Arc::new(NoServices))).await;
    ends(sandbox.shutdown()).await;
}

/// A good plugin that is asked again and again, until `stop`.
async fn ask_on(
    store: Arc<StorageInstance>,
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
) -> Result<()> {
    while !stop.load(Ordering::Acquire) {
        store.skill_list(query()).await?;
        answered.fetch_add(1, Ordering::AcqRel);
        // A caller, not a flood: the others need the processors too.
        tokio::time::sleep(PACE).await;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_gateway_survives_all_of_them_and_answers_others_meanwhile() {
    let dir = tempfile::tempdir().unwrap();
    let good = open(&bundled("storage_fs"), dir.path());
    let config = request(dir.path(), &config_of("storage_fs"));
    let store = good.storage(config).await.unwrap();
    let (stop, answered) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
    let other = tokio::spawn(ask_on(store, Arc::clone(&stop), Arc::clone(&answered)));
    let count = || answered.load(Ordering::Acquire);
    let mut sabotages: Vec<_> = STORE.iter().map(|row| (true, row.0)).collect();
    sabotages.extend(SANDBOX.iter().map(|row| (false, row.0)));
    sabotages.dedup();
    assert!(sabotages.len() >= 25);
    for (is_store, sabotage) in sabotages {
        let before = count();
        let used = async {
            // Its calls may be over before anybody else has had the processor.
            loop {
                if is_store {
                    use_store(sabotage).await;
                } else {
                    use_sandbox(sabotage).await;
                }
                if count() > before {
                    break;
                }
            }
        };
        let used = tokio::time::timeout(LONG, used).await;
        assert!(
            used.is_ok(),
            "{sabotage}: a call of it never ends, or nobody else is answered meanwhile"
        );
    }
    for (i, (options, ..)) in IN_C.iter().enumerate() {
        let options: Vec<_> = options.split(' ').collect();
        let file = probe(dir.path(), &format!("probe{i}"), &options);
        // Most are refused before they run.
        if let Ok(plugin) = try_open(&file, dir.path()) {
            ends(plugin.sandbox(request(dir.path(), &serde_json::json!({})))).await;
        }
    }
    if let Some(plugin) = thrower(dir.path()) {
        let config = request(dir.path(), &serde_json::json!({}));
        let made = open(&plugin, dir.path()).sandbox(config).await;
        assert_eq!(made.unwrap_err().code, abi::E_CRASHED);
    }
    stop.store(true, Ordering::Release);
    // Not one of its calls has failed.
    other.await.unwrap().unwrap();
}

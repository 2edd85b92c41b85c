//! Calls into plugins: good answers, broken ones, panics, and callers who leave.

mod blobs;
mod in_c;
mod runs;
mod storage;

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use crate::ISOLATION;
use crate::support::{self, Gateway, config, example_c, probe, run, sdk_plugin};
use skillgate_plugin_host::model::{
    BlobCreate, Content, Mount, PutSkill, RunRequest, RunResult, RunSkill, SkillQuery, Source,
};
use skillgate_plugin_host::{Isolation, Plugin, SandboxInstance, StorageInstance};
use skillgate_plugin_sdk::abi;

fn load(path: &std::path::Path) -> Plugin {
    support::open(path, ISOLATION)
}

async fn store() -> Arc<StorageInstance> {
    load(&sdk_plugin()).storage(config("{}")).await.unwrap()
}

async fn echo() -> Arc<SandboxInstance> {
    load(&sdk_plugin()).sandbox(config("{}")).await.unwrap()
}

/// The C plugin, whose file is gone again when this returns: the code does not need it.
async fn c_plugin(options: &[&str]) -> Arc<SandboxInstance> {
    let dir = tempfile::tempdir().unwrap();
    load(&probe(dir.path(), "probe", options))
        .sandbox(config("{}"))
        .await
        .unwrap()
}

fn output(result: &RunResult) -> &str {
    std::str::from_utf8(&result.output_json).unwrap()
}

/// Waits for something that happens on another thread; the timeout is only there to fail.
async fn until(what: &str, mut ready: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !ready().await {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), waiting)
        .await
        .unwrap_or_else(|_| panic!("{what} does not happen"));
}

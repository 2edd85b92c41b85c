//! The gateway is killed: no process of a plugin stays, whatever the plugin is doing.

use std::io::BufRead as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use skillgate_plugin_host::{Isolation, Pin, Plugin};

use super::{PATIENCE, ask, echo, is_there, until_gone};
use crate::support::{config, probe, settings};

/// Tells a host of these tests where the plugin is that hangs, and where that one says its process's number.
const PLUGIN: &str = "SKILLGATE_TEST_HANGS";
const TOLD: &str = "SKILLGATE_TEST_HANGS_TOLD";

/// One of the ignored tests here, as a host of its own.
fn host(test: &str) -> Command {
    let mut host = Command::new(std::env::current_exe().unwrap());
    host.args(["--exact", test, "--ignored", "--nocapture"]);
    host
}

fn kill(mut host: Child) {
    host.kill().unwrap();
    host.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_when_the_host_is_killed() {
    let mut host = host("killed::child_with_a_busy_plugin");
    let mut host = host.stdout(Stdio::piped()).spawn().unwrap();
    let lines = std::io::BufReader::new(host.stdout.take().unwrap()).lines();
    let pids: Vec<String> = lines
        .map_while(Result::ok)
        .filter_map(|line| line.strip_prefix("plugin ").map(str::to_owned))
        .take(2)
        .collect();
    assert!(
        pids.len() == 2 && pids.iter().all(|pid| is_there(pid)),
        "{pids:?}"
    );
    kill(host);
    for pid in &pids {
        until_gone(pid).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by nothing_is_left_when_the_host_is_killed, in a process of its own"]
async fn child_with_a_busy_plugin() {
    // One whose plugin hangs and one that is idle.
    let (busy, idle) = (echo().await, echo().await);
    for sandbox in [&busy, &idle] {
        println!("plugin {}", ask(sandbox, "pid").await.unwrap());
    }
    drop(ask(&busy, "hang").await);
}

/// What hangs on the thread that would read: nobody sees the end of the socket there.
async fn nothing_is_left_of_one_that_hangs(option: &str) {
    let dir = tempfile::tempdir().unwrap();
    let (plugin, told) = (
        probe(dir.path(), "hangs", &[option]),
        dir.path().join("told"),
    );
    let mut host = host("killed::child_with_a_plugin_that_hangs");
    host.env(PLUGIN, plugin).env(TOLD, &told);
    let host = host.stdout(Stdio::null()).spawn().unwrap();
    let waiting = async {
        loop {
            let number = std::fs::read_to_string(&told).unwrap_or_default();
            if let Some(number) = number.strip_suffix('\n') {
                return number.to_owned();
            }
            tokio::task::yield_now().await;
        }
    };
    let pid = tokio::time::timeout(PATIENCE, waiting).await.unwrap();
    assert!(is_there(&pid), "{pid}");
    kill(host);
    until_gone(&pid).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_of_one_that_hangs_in_create() {
    nothing_is_left_of_one_that_hangs("-DHANG_IN_CREATE").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_of_a_store_that_hangs_in_a_call_though_it_does_not_block() {
    nothing_is_left_of_one_that_hangs("-DHANG_IN_GET").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by nothing_is_left_of_one_that_hangs, in a process of its own"]
async fn child_with_a_plugin_that_hangs() {
    let file = std::env::var_os(PLUGIN).unwrap();
    let open = || {
        let file = Path::new(&file);
        Plugin::open(file, &Pin::default(), Isolation::Process, &settings()).unwrap()
    };
    let told = std::env::var(TOLD).unwrap();
    // The one that is no store hangs here.
    let store = match open().storage(config(&told)).await {
        Ok(store) => store,
        Err(_) => {
            drop(open().sandbox(config(&told)).await);
            return;
        }
    };
    drop(store.skill_get("t", "hang", "1.0.0").await);
}

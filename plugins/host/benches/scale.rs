//! A hundred plugins at once, and blobs as streams, in the gateway's process and in processes of their own.
//!
//!     cargo build --release -p skillgate-plugin-host --examples
//!     cargo bench -p skillgate-plugin-host --bench scale
//!
//! As root: the kernel lets nobody else look into a plugin's process.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a measurement that fails says so by panicking, and prints what it saw"
)]

#[path = "../tests/support/mod.rs"]
mod support;

use std::path::Path;
use std::time::{Duration, Instant};

use skillgate_plugin_host::model::BlobCreate;
use skillgate_plugin_host::{Isolation, StorageInstance};
use support::{Gateway, config, example_c, open, run, sdk_plugin};

/// Plugins that are loaded at once, each from a copy of its own.
const PLUGINS: usize = 100;
/// What the gateway reads and writes at once.
const CHUNK_BYTES: usize = 256 << 10;
/// A short stream and a long one: what a long one needs more is what does not stay flat.
const STREAMS_BYTES: [u64; 2] = [64 << 20, 1 << 30];
/// Each stream so often: the best of them, which other work on the machine has disturbed least.
const TURNS: usize = 3;

const MIB: f64 = (1 << 20) as f64;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    // On a worker, as the gateway's calls are.
    runtime.block_on(async { tokio::spawn(measure()).await.unwrap() });
}

async fn measure() {
    let dir = tempfile::tempdir().unwrap();
    let c = example_c(dir.path());
    println!(
        "| {PLUGINS} plugins | load all | memory of one | all answer | all stop |\n|---|---|---|---|---|"
    );
    // Processes first: what is loaded into this one stays.
    for isolation in [Isolation::Process, Isolation::Gateway] {
        many("C", &c, isolation).await;
        many("Rust", &sdk_plugin(), isolation).await;
    }
    println!(
        "\n| stream of 1 GiB, {} KiB at once | GiB/s | peak MiB, gateway: 64 MiB, 1 GiB | peak MiB, plugin: 64 MiB, 1 GiB |\n|---|---|---|---|",
        CHUNK_BYTES >> 10
    );
    for isolation in [Isolation::Gateway, Isolation::Process] {
        for way in [Way::Read, Way::Write] {
            stream(isolation, way).await;
        }
    }
}

/// Where it is loaded, in a row's name.
fn place(isolation: Isolation) -> &'static str {
    match isolation {
        Isolation::Gateway => "gateway",
        Isolation::Process => "process",
    }
}

// === a hundred plugins ===

async fn many(language: &str, file: &Path, isolation: Isolation) {
    let before = status_kib("self", "VmRSS:");
    let began = Instant::now();
    let mut all = Vec::new();
    for _ in 0..PLUGINS {
        all.push(open(file, isolation).sandbox(config("{}")).await.unwrap());
    }
    let loaded = began.elapsed();
    let kib = match isolation {
        Isolation::Gateway => status_kib("self", "VmRSS:").saturating_sub(before),
        // Its own, with its share of what all of them share.
        Isolation::Process => children().iter().map(|pid| pss_kib(pid)).sum(),
    };
    let began = Instant::now();
    let calls: Vec<_> = all
        .iter()
        .map(|sandbox| {
            let sandbox = sandbox.clone();
            tokio::spawn(async move { sandbox.run(run("echo"), Gateway::new()).await })
        })
        .collect();
    for call in calls {
        assert!(call.await.unwrap().unwrap().completed);
    }
    let answered = began.elapsed();
    let began = Instant::now();
    let stops: Vec<_> = all
        .into_iter()
        .map(|sandbox| tokio::spawn(sandbox.shutdown()))
        .collect();
    for stop in stops {
        stop.await.unwrap().unwrap();
    }
    let stopped = began.elapsed();
    println!(
        "| {}, {language} | {loaded:.1?} | {} KiB | {answered:.2?} | {stopped:.2?} |",
        place(isolation),
        kib / PLUGINS as u64
    );
}

// === streams ===

#[derive(Clone, Copy)]
enum Way {
    Read,
    Write,
}

/// One stream in each length; the plugin makes up what is read and counts what is written.
async fn stream(isolation: Isolation, way: Way) {
    let store = open(&sdk_plugin(), isolation);
    let store = store.storage(config("{}")).await.unwrap();
    let plugin = match isolation {
        Isolation::Gateway => None,
        Isolation::Process => children().pop(),
    };
    let mut took = Duration::MAX;
    let mut peaks = Vec::new();
    for bytes in STREAMS_BYTES {
        for pid in ["self"].into_iter().chain(plugin.as_deref()) {
            // Only the peaks, see proc_pid_clear_refs(5).
            std::fs::write(format!("/proc/{pid}/clear_refs"), "5").unwrap();
        }
        took = Duration::MAX;
        for _ in 0..TURNS {
            let began = Instant::now();
            match way {
                Way::Read => read(&store, bytes).await,
                Way::Write => write(&store, bytes).await,
            }
            took = took.min(began.elapsed());
        }
        let peak = |pid: &str| status_kib(pid, "VmHWM:") >> 10;
        peaks.push((peak("self"), plugin.as_deref().map(peak)));
    }
    let rate = STREAMS_BYTES[1] as f64 / MIB / 1024.0 / took.as_secs_f64();
    let of_plugin: Vec<_> = peaks
        .iter()
        .map(|(_, plugin)| plugin.map_or("–".to_owned(), |mib| mib.to_string()))
        .collect();
    println!(
        "| {}, {} | {rate:.2} | {}, {} | {} |",
        place(isolation),
        match way {
            Way::Read => "read",
            Way::Write => "written",
        },
        peaks[0].0,
        peaks[1].0,
        of_plugin.join(", ")
    );
    store.shutdown().await.unwrap();
}

async fn read(store: &StorageInstance, bytes: u64) {
    let id = format!("blob:made-up-{bytes}");
    let mut reader = store.blob_open("t", &id, 0, 0).await.unwrap();
    let mut got = 0;
    loop {
        let (piece, end) = reader.read(CHUNK_BYTES).await.unwrap();
        got += piece.len() as u64;
        if end {
            break;
        }
    }
    assert_eq!(got, bytes);
}

async fn write(store: &StorageInstance, bytes: u64) {
    let create = BlobCreate {
        tenant: "t".into(),
        kind: "application/x-counted".into(),
        max_bytes: bytes,
        ..BlobCreate::default()
    };
    let mut writer = store.blob_create(create).await.unwrap();
    let piece = bytes::Bytes::from(vec![7; CHUNK_BYTES]);
    for _ in 0..bytes / CHUNK_BYTES as u64 {
        writer.write(piece.clone()).await.unwrap();
    }
    assert_eq!(writer.commit().await.unwrap().size_bytes, bytes);
}

// === what the kernel says ===

fn status_kib(pid: &str, name: &str) -> u64 {
    kib_in(&format!("/proc/{pid}/status"), name)
}

fn pss_kib(pid: &str) -> u64 {
    kib_in(&format!("/proc/{pid}/smaps_rollup"), "Pss:")
}

fn kib_in(file: &str, name: &str) -> u64 {
    let text = std::fs::read_to_string(file).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let words = line.unwrap().trim();
    words.trim_end_matches(" kB").parse().unwrap()
}

/// Processes that this one has started and that live.
fn children() -> Vec<String> {
    let this = std::process::id().to_string();
    let mut found = Vec::new();
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let pid = process.file_name().to_string_lossy().into_owned();
        // One that ends just now is none.
        let stat = std::fs::read_to_string(process.path().join("stat")).unwrap_or_default();
        let rest = stat.rsplit(") ").next().unwrap_or_default();
        let mut words = rest.split(' ');
        if words.next().is_some_and(|state| state != "Z") && words.next() == Some(&this) {
            found.push(pid);
        }
    }
    found
}

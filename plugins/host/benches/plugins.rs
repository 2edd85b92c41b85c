//! What a call of a plugin costs, here and in a process of its own, and how long such a process takes to start and its
//! callers to hear of its end.
//!
//!     cargo build --release -p skillgate-plugin-host --examples
//!     cargo bench -p skillgate-plugin-host
//!
//! All rows are measured in turns of one run, so that whatever else the machine does meets all of them alike.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a measurement that cannot go on says so by panicking; the figures are what it is for"
)]
#![allow(unsafe_code, reason = "it kills the processes that it measures")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use skillgate_plugin_host::model::{Limits, Mount, RunRequest, RunSkill, Source};
use skillgate_plugin_host::{Isolation, SandboxInstance};
use support::{Gateway, config, example_c, open, probe, run, sdk_plugin};

/// Turns of all rows.
const ROUNDS: usize = 9;
/// Calls of a row in a turn, one after the other.
const CALLS: usize = 2000;
/// Calls at the same time, where it is about how many there are in a second.
const TASKS: usize = 64;

fn quantile(sorted: &[Duration], share: f64) -> Duration {
    sorted[((sorted.len() - 1) as f64 * share) as usize]
}

/// As large as a real one: 2 KB of code, 7 mounts, 6 variables, 3 secrets.
fn full() -> RunRequest {
    let skill = |i: usize| RunSkill {
        name: format!("acme.sales.skill{i}"),
        version: "1.2.3".into(),
        entrypoint: "code/main.py".into(),
        function: "main".into(),
    };
    let mount = |i: usize| Mount {
        target: format!("/skills/acme.sales.skill{i}"),
        read_only: true,
        source: Source::Path(format!("/srv/store/skills/acme.sales.skill{i}/1.2.3")),
        sha256: "ab".repeat(32),
        size_bytes: 4096,
    };
    RunRequest {
        run_id: "run_0123456789abcdef01234567".into(),
        tenant: "default".into(),
        language: "echo".into(),
        code: "x = 1\n".repeat(340),
        function: "echo".into(),
        args_json: br#"{"a":1}"#.to_vec(),
        skills: (0..7).map(skill).collect(),
        mounts: (0..7).map(mount).collect(),
        env: (0..6)
            .map(|i| (format!("NAME_{i}"), "value".repeat(5)))
            .collect(),
        secrets: (0..3).map(|i| format!("SECRET_{i}")).collect(),
        limits: Limits {
            wall_ms: 1000,
            output_bytes: 4096,
            ..Limits::default()
        },
        ..RunRequest::default()
    }
}

struct Row {
    name: &'static str,
    sandbox: Arc<SandboxInstance>,
    request: fn() -> RunRequest,
    seen: Vec<Duration>,
    per_second: Vec<f64>,
}

async fn made(file: &std::path::Path, isolation: Isolation) -> Arc<SandboxInstance> {
    open(file, isolation).sandbox(config("{}")).await.unwrap()
}

impl Row {
    async fn one_by_one(&mut self) {
        let host = Gateway::new();
        for _ in 0..CALLS {
            // Made and freed by the caller, before and after.
            let request = Arc::new((self.request)());
            let began = Instant::now();
            let result = self.sandbox.run(request.clone(), host.clone()).await;
            self.seen.push(began.elapsed());
            assert!(result.unwrap().completed);
        }
    }

    async fn at_once(&mut self) {
        let began = Instant::now();
        let tasks: Vec<_> = (0..TASKS)
            .map(|_| {
                let (sandbox, request) = (Arc::clone(&self.sandbox), self.request);
                tokio::spawn(async move {
                    let host = Gateway::new();
                    for _ in 0..CALLS / 8 {
                        sandbox.run(request(), host.clone()).await.unwrap();
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        let calls = (TASKS * (CALLS / 8)) as f64;
        self.per_second.push(calls / began.elapsed().as_secs_f64());
    }
}

/// From the request to load a plugin to its first answer in a process of its own, and from SIGKILL to the error of the
/// call that it had.
async fn lives() {
    let (mut starts, mut ends) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS * 3 {
        let began = Instant::now();
        let sandbox = made(&sdk_plugin(), Isolation::Process).await;
        starts.push(began.elapsed());
        let pid = sandbox.run(run("pid"), Gateway::new()).await.unwrap();
        let pid: i32 = std::str::from_utf8(&pid.output_json)
            .unwrap()
            .parse()
            .unwrap();
        let (told, mut started) = tokio::sync::mpsc::unbounded_channel();
        let host = Arc::new(Gateway {
            told: Some(told),
            ..Gateway::default()
        });
        let waits = tokio::spawn(async move {
            let error = sandbox.run(run("wait"), host).await;
            (error.unwrap_err(), Instant::now())
        });
        started.recv().await.unwrap();
        let killed = Instant::now();
        // SAFETY: a process of this measurement.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
        let (_, heard) = waits.await.unwrap();
        ends.push(heard - killed);
    }
    for times in [&mut starts, &mut ends] {
        times.sort();
    }
    let plugin = std::fs::metadata(sdk_plugin()).unwrap().len() / 1024;
    println!("\n| | p50 | worst of {} |\n|---|---|---|", starts.len());
    println!(
        "| read, check, start the process, load {plugin} KiB, make an instance | {:.1?} | {:.1?} |",
        quantile(&starts, 0.5),
        quantile(&starts, 1.0)
    );
    println!(
        "| SIGKILL until the caller has its error | {:.2?} | {:.2?} |",
        quantile(&ends, 0.5),
        quantile(&ends, 1.0)
    );
}

/// What the machine gives at best: a byte to another thread and one back, without a runtime.
fn floor() -> Vec<Duration> {
    let (mut ours, mut theirs) = UnixStream::pair().unwrap();
    let other = std::thread::spawn(move || {
        let mut byte = [0];
        while theirs.read_exact(&mut byte).is_ok() {
            theirs.write_all(&byte).unwrap();
        }
    });
    let mut byte = [0];
    let seen = (0..CALLS).map(|_| {
        let began = Instant::now();
        ours.write_all(&byte).unwrap();
        ours.read_exact(&mut byte).unwrap();
        began.elapsed()
    });
    let seen = seen.collect();
    drop(ours);
    other.join().unwrap();
    seen
}

/// What it costs to free a full request, which is the caller's.
fn freeing() -> Vec<Duration> {
    let freed = (0..CALLS).map(|_| {
        let request = Arc::new(full());
        let began = Instant::now();
        drop(request);
        began.elapsed()
    });
    freed.collect()
}

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
    let c = probe(dir.path(), "probe", &[]);
    let echo = example_c(dir.path());
    let row = |name, sandbox, request| Row {
        name,
        sandbox,
        request,
        seen: Vec::new(),
        per_second: Vec::new(),
    };
    let (here, there) = (Isolation::Gateway, Isolation::Process);
    let small: fn() -> RunRequest = || run("echo");
    let mut rows = [
        row(
            "gateway, C, answered at once, small",
            made(&echo, here).await,
            small,
        ),
        row(
            "gateway, C, answered at once, full",
            made(&echo, here).await,
            full,
        ),
        row(
            "gateway, C, answered by a thread of its own",
            made(&c, here).await,
            || run("worker"),
        ),
        row(
            "gateway, Rust, blocking, full",
            made(&sdk_plugin(), here).await,
            full,
        ),
        row("process, C, small", made(&echo, there).await, small),
        row("process, C, full", made(&echo, there).await, full),
        row(
            "process, Rust, blocking, small",
            made(&sdk_plugin(), there).await,
            small,
        ),
        row(
            "process, Rust, blocking, full",
            made(&sdk_plugin(), there).await,
            full,
        ),
    ];
    let (mut floors, mut freed) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        floors.extend(tokio::task::spawn_blocking(floor).await.unwrap());
        freed.extend(freeing());
        for row in &mut rows {
            row.one_by_one().await;
            row.at_once().await;
        }
    }
    println!("| call | p50 us | p99 us | {TASKS} at once, per second |\n|---|---|---|---|");
    for (name, mut seen) in [
        ("(a byte through a socket to a thread and back)", floors),
        ("(freeing a full request)", freed),
    ] {
        seen.sort();
        let us = |share| quantile(&seen, share).as_secs_f64() * 1e6;
        println!("| {name} | {:.2} | {:.1} | |", us(0.5), us(0.99));
    }
    for row in &mut rows {
        row.seen.sort();
        row.per_second.sort_by(f64::total_cmp);
        let us = |share| quantile(&row.seen, share).as_secs_f64() * 1e6;
        let per_second = row.per_second[row.per_second.len() / 2];
        println!(
            "| {} | {:.2} | {:.1} | {per_second:.0} |",
            row.name,
            us(0.5),
            us(0.99)
        );
    }
    lives().await;
}

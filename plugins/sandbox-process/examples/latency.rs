//! Prints how long a hello run takes, from the call to the answer:
//! `cargo run --release -p skillgate-sandbox-process --example latency -- [runs] [at once]`.
#![allow(clippy::print_stdout, reason = "printing is what it is for")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Instant;

use skillgate_plugin_sdk::blocking::Sandbox;
use skillgate_plugin_sdk::model::{CreateRequest, Limits, RunRequest};
use skillgate_plugin_sdk::testing::{self, Run};
use skillgate_sandbox_process::{Parts, SandboxProcess};

fn hello(i: usize) -> RunRequest {
    RunRequest {
        run_id: format!("run_{i}"),
        language: "python".into(),
        code: "def main(args):\n    print('hello')\n    return {'hello': args['name']}\n".into(),
        function: "main".into(),
        args_json: br#"{"name":"world"}"#.to_vec(),
        limits: Limits {
            max_pids: 32,
            wall_ms: 60_000,
            cpu_ms: 0,
            memory_bytes: 256 << 20,
            disk_bytes: 32 << 20,
            disk_inodes: 1000,
            output_bytes: 4096,
        },
        ..RunRequest::default()
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1).take(2).map(|a| a.parse::<usize>());
    let runs = args.next().transpose()?.unwrap_or(200);
    let at_once = args.next().transpose()?.unwrap_or(1);
    let pause = std::env::args().nth(4).map_or(Ok(0), |a| a.parse())?;
    let pause = std::time::Duration::from_millis(pause);
    let config = std::env::args().nth(3).unwrap_or(r#"{"cpus":2}"#.into());
    let pool = !config.contains("\"fresh\":true");
    let exe = std::env::current_exe()?;
    let target = exe
        .ancestors()
        .nth(2)
        .ok_or("an example is below target/")?;
    let launcher = target.join("deps/libskillgate_sandbox_process.so");
    let state = tempfile::tempdir()?;
    let request = CreateRequest {
        instance_id: "latency".into(),
        state_dir: state.path().display().to_string(),
        config_json: config.into_bytes(),
    };
    let parts = Parts {
        launcher: Some(launcher),
        ..Parts::default()
    };
    let started = Instant::now();
    let plugin = SandboxProcess::create_with(testing::host().0, request, parts)?;
    println!("create: {:?}", started.elapsed());
    while pool && !plugin.health()?.metrics_json.contains("\"zygotes\":1") {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    println!("warm: {:?}", started.elapsed());
    std::thread::sleep(std::time::Duration::from_millis(100));
    let next = AtomicUsize::new(0);
    let started = Instant::now();
    let mut times: Vec<(u128, u64, u64, u64)> = std::thread::scope(|scope| {
        let work = || {
            let mut mine = Vec::new();
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                if i >= runs {
                    return mine;
                }
                std::thread::sleep(pause);
                let t = Instant::now();
                let (answered, answer) = channel();
                let reply = testing::reply_to(move |result| {
                    let _ = answered.send((t.elapsed(), result));
                });
                plugin.run_and_clear(hello(i), &Run::new(), reply);
                match answer.recv() {
                    Ok((took, Ok(r))) if r.completed => {
                        mine.push((took.as_micros(), r.create_us, r.exec_us, r.cpu_us));
                    }
                    other => println!("run {i}: {other:?}"),
                }
            }
        };
        let threads: Vec<_> = (0..at_once).map(|_| scope.spawn(work)).collect();
        threads
            .into_iter()
            .flat_map(|t| t.join().unwrap_or_default())
            .collect()
    });
    let elapsed = started.elapsed();
    let at = |times: &[(u128, u64, u64, u64)], share: f64| {
        times[(times.len() as f64 * share) as usize % times.len()]
    };
    times.sort_unstable();
    let (p50, p99) = (at(&times, 0.5).0, at(&times, 0.99).0);
    println!("least {} us, p10 {} us", times[0].0, at(&times, 0.1).0);
    times.sort_unstable_by_key(|t| t.1);
    let create = at(&times, 0.5).1;
    times.sort_unstable_by_key(|t| t.2);
    let exec = at(&times, 0.5).2;
    times.sort_unstable_by_key(|t| t.3);
    let cpu = at(&times, 0.5).3;
    println!("processor time of a run: {cpu} us (p50)");
    println!(
        "{runs} runs, {at_once} at once: p50 {p50} us, p99 {p99} us; isolated after {create} us, from there to the result {exec} us (p50); {:.0} runs/s",
        runs as f64 / elapsed.as_secs_f64()
    );
    println!("{}", plugin.health()?.metrics_json);
    if std::env::var_os("SLEEP").is_some() {
        std::thread::sleep(std::time::Duration::from_secs(3));
    }
    Ok(())
}

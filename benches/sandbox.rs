//! Starting a run: this sandbox in each of its modes beside a bare Python, bubblewrap and crun, by itself and behind the
//! whole gateway. `README.md` says how to run it and how to read it.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on stops")]
#![allow(clippy::print_stdout, reason = "the table is what it is run for")]

#[path = "measure/direct.rs"]
mod direct;
mod measure;
#[path = "../tests/support/mod.rs"]
mod support;

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use direct::Direct;
use measure::machine::{self, Household};
use measure::{Clients, Row, clients_of, measure, rivals, run, whole_stack};
use serde_json::json;
use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::testing::Run;
use support::gateway::{Gateway, House};
use support::{look, median, quantile};

/// Slices of every row.
const ROUNDS: usize = 12;
/// Operations of one client in one slice, of what takes tens of milliseconds and of what does not.
const SLOW: usize = 10;
const QUICK: usize = 30;
/// Time for a pool to get its next child ready; and longer, so that processors sleep and forget.
const PAUSES: [Duration; 2] = [Duration::from_millis(6), Duration::from_millis(20)];
const IN_PARALLEL: [usize; 3] = [1, 2, 4];
/// Ends of runs that are watched.
const ENDS: usize = 20;
/// Runs that come at once, and how often they do.
const BURSTS: [(usize, usize); 2] = [(100, 9), (1000, 1)];
/// A pool has got over a burst after so long.
const RECOVERY: Duration = Duration::from_secs(3);
/// Clients and parts of a sustained load.
const CLIENTS: usize = 4;
const PARTS: u32 = 10;

/// Name, `config` as JSON and as TOML, and operations in a slice.
type Setting = (&'static str, &'static str, &'static str, usize);
const MODES: [Setting; 3] = [
    ("fresh", r#"{"fresh":true}"#, "{ fresh = true }", SLOW),
    ("on demand", r#"{"pool_max":0}"#, "{ pool_max = 0 }", QUICK),
    ("pooled", "{}", "{}", QUICK),
];
/// Pools that do not follow the load: one of a quiet gateway, and one for whom a hundred at once is nothing unusual.
const FIXED: [Setting; 2] = [
    (
        "pooled, 16 of them",
        r#"{"pool_min":16,"pool_max":16}"#,
        "{ pool_min = 16, pool_max = 16 }",
        QUICK,
    ),
    (
        "pooled, 112 of them",
        r#"{"pool_min":112,"pool_max":112}"#,
        "{ pool_min = 112, pool_max = 112 }",
        QUICK,
    ),
];

/// A mode with its instances: one by itself, one behind a gateway.
struct Mode {
    name: &'static str,
    each: usize,
    direct: Arc<Direct>,
    gateway: Gateway,
    token: String,
    _house: House,
}

fn instances(settings: &[Setting]) -> Vec<Mode> {
    let mut modes = Vec::new();
    for &(name, config, toml, each) in settings {
        let direct = match Direct::new(config) {
            Ok(direct) => direct,
            Err(why) => {
                println!("left out: {name}, since {why}");
                continue;
            }
        };
        let (house, gateway, token) = whole_stack("max_queued = 10000", Some(toml));
        modes.push(Mode {
            name,
            each,
            direct,
            gateway,
            token,
            _house: house,
        });
    }
    modes
}

impl Mode {
    fn by_itself(&self, name: String, clients: usize) -> Row {
        Row::new(name, clients, self.each, self.alone())
    }

    fn behind_http(&self, name: String, clients: usize) -> Row {
        Row::new(name, clients, self.each, self.over_http())
    }

    fn alone(&self) -> Clients {
        let direct = self.direct.clone();
        Box::new(move || {
            let direct = direct.clone();
            Box::new(move || direct.hello())
        })
    }

    fn over_http(&self) -> Clients {
        let operation = run(json!({ "name": "hello.world", "args": {} }));
        clients_of(&self.gateway.address, Some(&self.token), operation)
    }
}

/// Calls that came at once.
struct Burst {
    all_s: f64,
    p50_ms: f64,
    p99_ms: f64,
}

impl Mode {
    /// Each from a connection of its own that was open before, after a time in which nothing was asked.
    fn burst(&self, count: usize) -> Burst {
        let (clients, all_there) = (self.over_http(), Barrier::new(count + 1));
        let (began, mut ms) = std::thread::scope(|scope| {
            let client = || {
                let mut operation = clients();
                all_there.wait();
                operation()
            };
            let asking: Vec<_> = (0..count)
                .map(|_| {
                    std::thread::Builder::new()
                        .stack_size(256 << 10)
                        .spawn_scoped(scope, client)
                        .unwrap()
                })
                .collect();
            std::thread::sleep(RECOVERY);
            let began = Instant::now();
            all_there.wait();
            let ms: Vec<f64> = asking
                .into_iter()
                .map(|asking| (asking.join().unwrap() - began).as_secs_f64() * 1000.0)
                .collect();
            (began, ms)
        });
        let all_s = began.elapsed().as_secs_f64();
        ms.sort_by(f64::total_cmp);
        Burst {
            all_s,
            p50_ms: quantile(&ms, 0.5),
            p99_ms: quantile(&ms, 0.99),
        }
    }
}

fn starts(modes: &[Mode]) {
    let mut rows = Vec::new();
    let (bubblewrap, crun) = (rivals::bubblewrap, rivals::Crun::new());
    for clients in IN_PARALLEL {
        rows.push(Row::new(
            "python3 -I -S -B -c pass",
            clients,
            SLOW,
            rivals::plain(&rivals::PROGRAM),
        ));
        rows.push(Row::new(
            "python3 and a runner's job",
            clients,
            SLOW,
            rivals::plain_with_job(),
        ));
        match bubblewrap() {
            Ok([nothing, job]) => rows.extend([
                Row::new("bubblewrap + python3 -c pass", clients, SLOW, nothing),
                Row::new(
                    "bubblewrap + python3 and a runner's job",
                    clients,
                    SLOW,
                    job,
                ),
            ]),
            Err(why) => println!("left out: {why}"),
        }
        match &crun {
            Ok(crun) => rows.push(Row::new(
                "crun + python3 -c pass",
                clients,
                SLOW,
                crun.clients(),
            )),
            Err(why) => println!("left out: {why}"),
        }
        for mode in modes {
            let over_http = format!("{}, whole gateway over HTTP", mode.name);
            rows.push(mode.by_itself(mode.name.to_owned(), clients));
            rows.push(mode.behind_http(over_http.clone(), clients));
            for pause in PAUSES.into_iter().filter(|_| mode.name == "pooled") {
                let paced = |name: &str| format!("{name}, {} ms between two", pause.as_millis());
                rows.extend([
                    mode.by_itself(paced(mode.name), clients).pausing(pause),
                    mode.behind_http(paced(&over_http), clients).pausing(pause),
                ]);
            }
        }
    }
    measure(&mut rows, ROUNDS);
}

/// What waits for runs, and how long the end of a run takes after its answer.
fn idle_and_ends(modes: &[Mode]) {
    println!(
        "\n| mode | interpreters waiting | PSS of one, KiB | PSS of the launcher and what runs are forked from, KiB | from the answer to the last process gone, p50 ms |"
    );
    println!("|---|---|---|---|---|");
    for mode in modes {
        let launcher = mode.direct.launcher_pid();
        let household = Household::of(launcher);
        let ends: Vec<f64> = (0..ENDS).map(|_| end_of_run(&mode.direct)).collect();
        println!(
            "| {} | {} | {} | {} | {:.2} |",
            mode.name,
            household.children,
            household.kib_of_one(),
            household.own_kib,
            median(&ends)
        );
    }
}

/// Milliseconds from a run's answer until nothing is in its pid namespace.
fn end_of_run(direct: &Arc<Direct>) -> f64 {
    let services = Arc::new(Run::new());
    let (theirs, here) = (services.clone(), direct.clone());
    let code = "import os, time\ndef main(args):\n    print(os.readlink('/proc/self/ns/pid'), flush=True)\n    time.sleep(0.2)\n";
    let running = std::thread::spawn(move || here.run(code, &theirs).1);
    let mut pids = Vec::new();
    while pids.is_empty() {
        let heard = String::from_utf8_lossy(&services.said(abi::STDOUT))
            .trim()
            .to_owned();
        let inside = |pid: u32| machine::pid_namespace(pid).is_some_and(|name| name == *heard);
        let below = look::descendants(direct.launcher_pid());
        pids = below
            .into_iter()
            .filter(|process| inside(process.pid))
            .collect();
        assert!(!running.is_finished(), "it was not seen: {heard:?}");
    }
    let answered = running.join().unwrap();
    while pids.iter().any(look::Process::lives) {
        std::hint::spin_loop();
    }
    answered.elapsed().as_secs_f64() * 1000.0
}

fn bursts(modes: &[Mode]) {
    println!(
        "\n| mode | runs at once over HTTP | times | all answered after, s | p50 ms | p99 ms | least and greatest p99 ms | p99 ms of the first |"
    );
    println!("|{}", "---|".repeat(8));
    for mode in modes {
        for (count, times) in BURSTS {
            let all: Vec<Burst> = (0..times).map(|_| mode.burst(count)).collect();
            let of = |part: fn(&Burst) -> f64| all.iter().map(part).collect::<Vec<f64>>();
            let p99 = of(|burst| burst.p99_ms);
            println!(
                "| {} | {count} | {times} | {:.2} | {:.0} | {:.0} | {:.0}, {:.0} | {:.0} |",
                mode.name,
                median(&of(|burst| burst.all_s)),
                median(&of(|burst| burst.p50_ms)),
                median(&p99),
                p99.iter().copied().fold(f64::MAX, f64::min),
                p99.iter().copied().fold(0.0, f64::max),
                p99[0],
            );
        }
    }
}

/// Calls of four clients, of each one upon the other.
struct Closed {
    runs: usize,
    per_s: f64,
    p50_ms: f64,
    p99_ms: f64,
}

impl Closed {
    fn of(work: &Clients, time: Duration) -> Closed {
        let began = Instant::now();
        let mut ms: Vec<f64> = std::thread::scope(|scope| {
            let client = || {
                let (mut operation, mut ms) = (work(), Vec::new());
                while began.elapsed() < time {
                    let one = Instant::now();
                    ms.push((operation() - one).as_secs_f64() * 1000.0);
                }
                ms
            };
            let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
            clients
                .into_iter()
                .flat_map(|client| client.join().unwrap())
                .collect()
        });
        ms.sort_by(f64::total_cmp);
        Closed {
            runs: ms.len(),
            per_s: ms.len() as f64 / began.elapsed().as_secs_f64(),
            p50_ms: quantile(&ms, 0.5),
            p99_ms: quantile(&ms, 0.99),
        }
    }

    fn cells(&self) -> String {
        format!(
            "{} | {:.0} | {:.2} | {:.2}",
            self.runs, self.per_s, self.p50_ms, self.p99_ms
        )
    }
}

/// Four clients for a long time, of the rival, of each mode by itself and of its gateway in turns: what drifts would drift
/// here, and what the machine does meanwhile meets all of them.
fn sustained(modes: &[Mode], seconds: u64) {
    let part = Duration::from_secs(seconds) / PARTS;
    let rival = rivals::bubblewrap().map(|[_, job]| job);
    if let Err(why) = &rival {
        println!("left out: {why}");
    }
    for mode in modes {
        println!(
            "\n{}, {CLIENTS} clients, {seconds} s by itself and {seconds} s over HTTP, {}",
            mode.name,
            machine::description()
        );
        println!(
            "| s | bubblewrap + python3 and a runner's job, per second | by itself: runs | per second | p50 ms | p99 ms | whole gateway over HTTP: runs | per second | p50 ms | p99 ms | gateway KiB | launcher and below KiB | namespaces | of them net, with those to be taken down | control groups |"
        );
        println!("|{}", "---|".repeat(15));
        let over_http = mode.over_http();
        let (mut rivals, mut rates) = (Vec::new(), [Vec::new(), Vec::new()]);
        for number in 1..=PARTS {
            let other = rival
                .as_ref()
                .ok()
                .map(|job| Closed::of(job, part / 3).per_s);
            let own = [&mode.alone(), &over_http].map(|work| Closed::of(work, part));
            let household = Household::of(mode.gateway.launcher().pid);
            let (namespaces, net) = machine::namespaces();
            println!(
                "| {:.0} | {} | {} | {} | {} | {} | {namespaces} | {} | {} |",
                (part * number).as_secs_f64(),
                other.map_or("–".to_owned(), |per_s| format!("{per_s:.0}")),
                own[0].cells(),
                own[1].cells(),
                mode.gateway.rss_kib(),
                household.own_kib + household.children_kib,
                net.map_or("–".to_owned(), |net| net.to_string()),
                look::groups(&mode.gateway.instance()).len(),
            );
            rivals.extend(other);
            for (rates, own) in rates.iter_mut().zip(&own) {
                rates.push(own.per_s);
            }
        }
        if !rivals.is_empty() {
            let times = rates.map(|own| median(&own) / median(&rivals));
            println!(
                "\nMedians of the parts: {:.1} times bubblewrap by itself, {:.1} times over HTTP.",
                times[0], times[1]
            );
        }
    }
}

fn main() {
    // As the gateway does, for those that are measured by themselves.
    skillgate::app::allow_all_files();
    let arguments: Vec<String> = std::env::args().collect();
    let seconds = arguments
        .windows(2)
        .find(|pair| pair[0] == "--sustained")
        .map(|pair| pair[1].parse().expect("--sustained SECONDS [MODE]"));
    let named = |mode: &&Setting| arguments.iter().any(|argument| argument == mode.0);
    let named: Vec<Setting> = MODES.iter().filter(named).copied().collect();
    let wanted = if named.is_empty() { &MODES[..] } else { &named };
    let mut modes = instances(wanted);
    match seconds {
        Some(seconds) => sustained(&modes, seconds),
        None => {
            starts(&modes);
            if named.is_empty() {
                modes.extend(instances(&FIXED));
            }
            idle_and_ends(&modes);
            bursts(&modes);
        }
    }
    for mode in modes {
        mode.gateway.stop();
    }
}

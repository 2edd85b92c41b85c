//! Runs that take all they can get, beside a tenant who wants nothing but its own: it hardly notices, and they end with the
//! right name.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use skillgate_plugin_sdk::blocking::Sandbox;

use crate::support::*;

/// Half a processor for each run, so that on two processors there is one for others.
const CPUS: &str = r#""cpus":0.5"#;
/// Runs of the neighbour in one stretch; a quiet one and a loud one take turns.
const STRETCH: usize = 6;
const TURNS: usize = 2;
const TURNS_FULL: usize = 160;
/// The wall clock of bombs that end by themselves, and of those that do not: longer than a neighbour's stretch, and with
/// `SKILLGATE_TEST_FULL` not much longer, so that there are more of them.
const WALL_MS: u64 = 20_000;
const WALL_ENDLESS_MS: u64 = 1000;
const WALL_ENDLESS_FULL_MS: u64 = 250;
/// With `SKILLGATE_TEST_FULL`, for a machine that nobody else uses: the loud p99 against the quiet one.
const RATIO_FULL: f64 = 2.0;
/// Otherwise the p90, since every other test runs beside it, and what a busy machine may add in any case.
const RATIO: f64 = 4.0;
const SLACK_MS: f64 = 250.0;

struct Bomb {
    name: &'static str,
    body: &'static str,
    endless: bool,
    /// What it ends with, as root with control groups and as an ordinary user without.
    ends: [&'static str; 2],
}

const fn bomb(
    name: &'static str,
    endless: bool,
    ends: [&'static str; 2],
    body: &'static str,
) -> Bomb {
    Bomb {
        name,
        body,
        endless,
        ends,
    }
}

const BOMBS: &[Bomb] = &[
    bomb(
        "processes",
        false,
        ["TooManyProcesses", "BlockingIOError"],
        "while True:\n        if os.fork() == 0: time.sleep(100)",
    ),
    bomb(
        "processes of processes",
        true,
        ["Timeout", "Timeout"],
        "while True:\n        try: os.fork()\n        except OSError: pass",
    ),
    bomb(
        "threads",
        false,
        ["TooManyProcesses", "RuntimeError"],
        "while True: threading.Thread(target=time.sleep, args=(100,), daemon=True).start()",
    ),
    bomb(
        "memory",
        false,
        ["OutOfMemory", "MemoryError"],
        "held = []\n    while True: held.append(bytearray(1 << 20))",
    ),
    bomb(
        "memory of the disk",
        false,
        ["DiskFull", "DiskFull"],
        "open('/dev/shm/all', 'wb').write(b'x' * (64 << 20))",
    ),
    bomb(
        "disk",
        false,
        ["DiskFull", "DiskFull"],
        "for n in range(1000): open('/workspace/%d' % n, 'wb').write(b'x' * (1 << 20))",
    ),
    bomb(
        "files",
        false,
        ["DiskFull", "DiskFull"],
        "for n in range(100000): open('/tmp/%d' % n, 'w').close()",
    ),
    bomb(
        "directories in directories",
        false,
        ["DiskFull", "DiskFull"],
        "while True:\n        os.mkdir('d'); os.chdir('d')",
    ),
    bomb(
        "descriptors",
        false,
        ["OSError", "OSError"],
        "held = [os.open('/dev/null', 0) for _ in range(100000)]",
    ),
    bomb(
        "output",
        true,
        ["Timeout", "Timeout"],
        "while True: os.write(1, b'x' * 65536)",
    ),
    bomb(
        "processor",
        true,
        ["Timeout", "Timeout"],
        "[os.fork() for _ in range(4)]\n    while True: pass",
    ),
    bomb(
        "the scheduler",
        true,
        ["Timeout", "Timeout"],
        "[os.fork() for _ in range(4)]\n    while True: os.sched_yield()",
    ),
    bomb(
        "signals",
        true,
        ["Timeout", "Timeout"],
        "signal.signal(10, lambda n, f: None)\n    os.fork()\n    while True: os.kill(0, 10)",
    ),
    bomb(
        "faults",
        true,
        ["Timeout", "Timeout"],
        "while True: mmap.mmap(-1, 64 << 20).write(b'x' * (64 << 20))",
    ),
];

/// All of them, or those that SANDBOX_BOMBS names, with commas between them: in full one takes minutes in fresh mode.
fn chosen() -> Vec<&'static Bomb> {
    let Ok(names) = std::env::var("SANDBOX_BOMBS") else {
        return BOMBS.iter().collect();
    };
    let found = |name: &str| {
        let known = || BOMBS.iter().map(|bomb| bomb.name).collect::<Vec<_>>();
        let bomb = BOMBS.iter().find(|bomb| bomb.name == name);
        bomb.unwrap_or_else(|| panic!("SANDBOX_BOMBS: {name:?} is none of {:?}", known()))
    };
    names.split(',').map(|name| found(name.trim())).collect()
}

/// Milliseconds of so many runs that do nothing, one after the other.
fn neighbour(instance: &Instance) -> Vec<f64> {
    (0..STRETCH).map(|_| took_ms(instance)).collect()
}

/// Sets it off again and again until it is over; every one must end as it should.
fn explode(instance: &Instance, bomb: &Bomb, over: &AtomicBool, lit: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        let code = format!(
            "import mmap, os, signal, threading, time\ndef main(args):\n    print('lit', flush=True)\n    {}\n",
            bomb.body
        );
        let mut request = request(&code);
        request.limits.wall_ms = match (bomb.endless, full()) {
            (false, _) => WALL_MS,
            (true, false) => WALL_ENDLESS_MS,
            (true, true) => WALL_ENDLESS_FULL_MS,
        };
        let services = Services {
            keep: Some(1024),
            ..Services::default()
        };
        lit.store(true, Ordering::Release);
        let result = instance.plugin.run(request, &services).unwrap();
        // Without control groups it depends on who was refused whether the limit is known by name.
        let ends = &bomb.ends[..if is_root() { 1 } else { 2 }];
        assert!(
            ends.contains(&result.error_type.as_str()),
            "{}: {result:?}",
            bomb.name
        );
    }
}

/// The neighbour's times without the bomb and beside it.
fn beside(instance: &Instance, bomb: &Bomb, turns: usize) -> (Vec<f64>, Vec<f64>) {
    let (mut quiet, loud) = (Vec::new(), Mutex::new(Vec::new()));
    for _ in 0..turns {
        quiet.extend(neighbour(instance));
        let (over, lit) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let _over = Over(&over);
            scope.spawn(|| explode(instance, bomb, &over, &lit));
            eventually("it has begun", || lit.load(Ordering::Acquire));
            loud.lock().unwrap().extend(neighbour(instance));
        });
    }
    (quiet, loud.into_inner().unwrap())
}

#[test]
fn bombs_end_well_and_the_neighbour_hardly_notices() {
    let modes = modes();
    // The last is what a gateway does by itself.
    let modes = if full() {
        &modes[..]
    } else {
        &modes[modes.len() - 1..]
    };
    let mut noticed = Vec::new();
    for mode in modes {
        let config = mode
            .config
            .replacen('{', &format!("{{{CPUS},"), 1)
            .replace(",}", "}");
        let instance = Instance::with(&config, None);
        for bomb in chosen() {
            let began = Instant::now();
            let (quiet, loud) = beside(&instance, bomb, if full() { TURNS_FULL } else { TURNS });
            let share = if full() { 0.99 } else { 0.9 };
            let (quiet, loud) = (quantile(quiet, share), quantile(loud, share));
            let most = if full() {
                quiet * RATIO_FULL
            } else {
                quiet * RATIO + SLACK_MS
            };
            let told = format!(
                "{}, {}: p{} of the neighbour {quiet:.1} ms, beside it {loud:.1} ms ({:.1} times; {:.1?})",
                mode.name,
                bomb.name,
                share * 100.0,
                loud / quiet,
                began.elapsed()
            );
            println!("{told}");
            if loud > most {
                noticed.push(told);
            }
        }
    }
    assert!(noticed.is_empty(), "{noticed:#?}");
}

//! What must come in time although the processors have more to do than they can: the answer of a run that has reached its
//! deadline, and another zygote where one was killed. With `SKILLGATE_TEST_FULL` each takes the whole machine: `--test-threads=1`.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use serde_json::json;
use skillgate_plugin_sdk::blocking::Sandbox;
use skillgate_plugin_sdk::testing;

use crate::support::*;
use crate::tools;
use crate::zygote::{settled, signal, warm};

/// The answer may come this long after the deadline.
const LATE_MAX_MS: f64 = 100.0;
const WALL_MS: u64 = 100;
const RUNS: usize = 64;
const RUNS_FULL: usize = 4000;
/// Of the answers, so many must be in time. Every other test runs beside it but with `SKILLGATE_TEST_FULL`.
const IN_TIME: f64 = 0.5;
const IN_TIME_FULL: f64 = 0.999;
/// Runs that wait for their deadline at the same time, and others beside them, one after the other.
const AT_ONCE: usize = 8;
const NEIGHBOURS: usize = 2;

/// Ways to be there still when the deadline comes; those that take what they get of a processor first.
const WAYS: &[&str] = &[
    "while True: pass",
    "10 ** 10 ** 9",
    "[os.fork() for _ in range(3)]\n    while True: pass",
    "time.sleep(100)",
    "os.kill(os.getpid(), signal.SIGSTOP)",
];
const BUSY_WAYS: usize = 3;
/// With `SKILLGATE_TEST_FULL`, of zygotes' children: so many may have no processor time in their record, though they have had it.
const UNCOUNTED_FULL: f64 = 0.001;

/// From a killed zygote to the first run on a child of another.
const BACK_MAX_FULL_MS: f64 = 200.0;
/// Without `SKILLGATE_TEST_FULL` every other test runs beside it: the middle one, in runs on an interpreter of their own.
const BACK_STARTS_MAX: f64 = 2.0;
const BOTH_BACK_STARTS_MAX: f64 = 8.0;
const KILLS_TIMED: usize = 11;
const KILLS: usize = 5;
const KILLS_FULL: usize = 100;

/// How late the answers of runs are that have to be ended, in milliseconds, and in how many the processor time is missing.
fn lateness(instance: &Instance, runs: usize) -> (Vec<f64>, usize) {
    let (late, over) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    let uncounted = AtomicUsize::new(0);
    let ends = |number: usize| {
        let body = WAYS[number % WAYS.len()];
        let mut request = request(&format!(
            "import os, signal, time\ndef main(args):\n    {body}\n"
        ));
        request.limits.wall_ms = WALL_MS;
        let began = Instant::now();
        // Until the answer is given. What the run leaves is put away after that.
        let services = Services::default();
        let (reply, replied) = testing::reply();
        let (result, took) = std::thread::scope(|scope| {
            scope.spawn(|| instance.plugin.run_and_clear(request, &services, reply));
            let result = replied.wait().unwrap();
            (result, began.elapsed().as_secs_f64() * 1000.0)
        });
        assert_eq!(
            result.error_type,
            "Timeout",
            "{body}: {result:?} {}",
            services.text()
        );
        assert!(took >= WALL_MS as f64, "{body}: {took} ms");
        late.lock().unwrap().push(took - WALL_MS as f64);
        if number % WAYS.len() < BUSY_WAYS && result.cpu_us == 0 {
            uncounted.fetch_add(1, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..NEIGHBOURS {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    assert_eq!(instance.output("def main(args): return 1\n"), 1);
                }
            });
        }
        let _over = Over(&over);
        at_once(AT_ONCE, runs, ends);
    });
    (late.into_inner().unwrap(), uncounted.into_inner())
}

#[test]
fn a_deadline_is_kept_under_full_load() {
    let (runs, share) = if full() {
        (RUNS_FULL, IN_TIME_FULL)
    } else {
        (RUNS, IN_TIME)
    };
    for mode in modes() {
        let instance = Instance::with(&mode.config, None);
        let (late, uncounted) = lateness(&instance, runs);
        let at = |share| quantile(late.clone(), share);
        println!(
            "{}: {runs} runs ended at {WALL_MS} ms, {AT_ONCE} at once: p50 {:.1} ms late, p99 {:.1}, p99.9 {:.1}, the last {:.1}; {uncounted} without processor time",
            mode.name,
            at(0.5),
            at(0.99),
            at(0.999),
            at(1.0)
        );
        assert!(
            at(share) <= LATE_MAX_MS,
            "{}: {:.1} ms late at {share}",
            mode.name,
            at(share)
        );
        assert!(
            !full() || !mode.forks || uncounted as f64 <= runs as f64 * UNCOUNTED_FULL,
            "{}: {uncounted} without processor time",
            mode.name
        );
    }
}

/// A group of version 1 whose processes stand still, also where they have been killed, until this is dropped.
struct Frozen(PathBuf);

impl Frozen {
    /// `None`: there is version 2 alone, where what stands still can be killed.
    fn make() -> Option<Self> {
        let freezer = Path::new("/sys/fs/cgroup/freezer");
        if !freezer.join("cgroup.procs").exists() {
            return None;
        }
        // Process ids are those of a namespace.
        let unique = std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap();
        let dir = freezer.join(format!("standing-still-{}", unique.trim()));
        std::fs::create_dir(&dir).unwrap();
        Some(Frozen(dir))
    }

    /// They are there, and stand still.
    fn hold(&self, pids: &[u32]) {
        for pid in pids {
            std::fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
        }
        let state = self.0.join("freezer.state");
        std::fs::write(&state, "FROZEN").unwrap();
        eventually("they stand still", || {
            std::fs::read_to_string(&state).unwrap() == "FROZEN\n"
        });
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        std::fs::write(self.0.join("freezer.state"), "THAWED").unwrap();
        eventually("they have ended", || std::fs::remove_dir(&self.0).is_ok());
    }
}

fn nice_of(pid: &u32) -> i32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // The 19th field (proc_pid_stat(5)); the second ends with the last parenthesis.
    let rest = stat.rsplit_once(')').unwrap().1;
    rest.split_whitespace().nth(16).unwrap().parse().unwrap()
}

/// One that has made way for others does not end behind them too.
#[test]
fn a_run_that_is_ended_has_its_share_of_the_processors_again() {
    for mode in modes() {
        // An ordinary user has no groups.
        let Some(frozen) = is_root().then(Frozen::make).flatten() else {
            return tools::left_out("runs that stand still: it takes root and version 1 of groups");
        };
        // Whichever way this ends they go on before it is put away: of what stands still nothing can be.
        let (instance, frozen) = (Instance::with(&mode.config, None), frozen);
        let launcher = instance.plugin.launcher_pid().unwrap();
        let mut busy = request("def main(args):\n    while True: pass\n");
        busy.limits.wall_ms = 30_000;
        let id = busy.run_id.clone();
        std::thread::scope(|scope| {
            let run = scope.spawn(|| instance.run(busy));
            let lasts = eventually_there("it has made way", || {
                let all = processes_of_runs(launcher).into_iter();
                let lasts: Vec<u32> = all
                    .filter(|pid| share_of(pid).is_some_and(|s| s < SHARE))
                    .collect();
                // Process 1 and the one with the code: one of them may have been looked at before.
                if lasts.len() < 2 {
                    Err("it has not")
                } else {
                    Ok(lasts)
                }
            });
            frozen.hold(&lasts);
            instance.plugin.cancel(&id);
            assert_eq!(run.join().unwrap().0.error_type, "Cancelled");
            eventually("it has its share again", || {
                lasts.iter().all(|pid| share_of(pid) == Some(SHARE))
            });
            let nice: Vec<i32> = lasts.iter().map(nice_of).collect();
            assert!(nice.iter().any(|n| *n < 0), "process 1 first: {nice:?}");
        });
        drop(frozen);
        eventually("it is over", || processes_of_runs(launcher).is_empty());
    }
}

#[test]
fn a_killed_zygote_is_soon_back() {
    let kills = if full() { KILLS_FULL } else { KILLS_TIMED };
    let instance = warm(json!({"pool_max": 0}));
    let own = Instance::with(&fresh().config, None);
    let mut pair = settled(&instance, &[]);
    // The zygote alone, of which there is a spare; and both.
    for together in [false, true] {
        let (mut back, mut starts) = (Vec::new(), Vec::new());
        for _ in 0..kills {
            starts.push(took_ms(&own));
            let served = metric(&instance, "runs_on_demand");
            if together {
                signal(pair[1], "-9");
            }
            signal(pair[0], "-9");
            let killed = Instant::now();
            // Meanwhile each has an interpreter of its own.
            back.push(loop {
                took_ms(&instance);
                let at = killed.elapsed().as_secs_f64() * 1000.0;
                if metric(&instance, "runs_on_demand") > served {
                    break at;
                }
            });
            pair = settled(&instance, &pair);
        }
        let at = |share| quantile(back.clone(), share);
        let (start, what) = (
            median(starts),
            ["zygotes", "zygotes and their spares"][usize::from(together)],
        );
        println!(
            "{kills} {what} killed: the first run on a child after {:.1} ms (p50), {:.1} (the last), where an interpreter of its own took {start:.1}",
            at(0.5),
            at(1.0)
        );
        let (took, most) = match (together, full()) {
            (false, true) => (at(1.0), BACK_MAX_FULL_MS),
            (false, false) => (at(0.5), start * BACK_STARTS_MAX),
            (true, _) => (at(0.5), start * BOTH_BACK_STARTS_MAX),
        };
        assert!(took <= most, "{what}: {took:.1} ms, allowed {most:.1}");
    }
    assert_eq!(metric(&instance, "launcher_starts"), 1);
}

/// Whatever a run was at when the zygote died, from which its child came or was to come.
#[test]
fn no_run_is_lost_with_a_zygote() {
    let kills = if full() { KILLS_FULL } else { KILLS };
    for keys in [json!({}), json!({"pool_max": 0})] {
        let instance = warm(keys.clone());
        let (over, runs) = (AtomicBool::new(false), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..AT_ONCE {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        assert_eq!(instance.output("def main(args): return 1\n"), 1);
                        runs.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let _over = Over(&over);
            let served =
                || metric(&instance, "runs_from_pool") + metric(&instance, "runs_on_demand");
            let mut pair = settled(&instance, &[]);
            for kill in 0..kills {
                let so_far = served();
                for pid in &pair[kill % 2..] {
                    signal(*pid, "-9");
                }
                pair = settled(&instance, &pair);
                // With the children of the one before, of its spare or of this one: not in a row before it is warm.
                eventually("runs have children again", || served() > so_far);
            }
        });
        println!(
            "{keys}: {kills} zygotes killed under {} runs, of which {} had an interpreter of their own: none was lost",
            runs.into_inner(),
            metric(&instance, "runs_fresh")
        );
        assert_eq!(metric(&instance, "launcher_starts"), 1);
    }
}

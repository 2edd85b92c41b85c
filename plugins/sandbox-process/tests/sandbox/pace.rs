//! While a run lasts, something wakes on every processor, so that the kernel looks who is next there.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::pool::while_it_runs;
use crate::support::*;
use crate::tools;
use crate::zygote::{signal, warm};

const SHORT: &str = "def main(args): return 1\n";
/// Takes a processor for that many milliseconds.
const LONG_MS: u64 = 400;
/// Who is to wake in a millisecond and has not for so long sleeps.
const LONG_STILL: Duration = Duration::from_millis(300);

fn pacers(instance: &Instance) -> Vec<u32> {
    descendants(instance.plugin.launcher_pid().unwrap())
        .into_iter()
        .filter(|pid| name_of(*pid) == "skillgate-pace")
        .collect()
}

/// A line of /proc/PID/status.
fn status(pid: u32, name: &str) -> String {
    let all = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = all.lines().find_map(|l| l.strip_prefix(name));
    line.unwrap_or_else(|| panic!("no {name} in {all}"))
        .trim()
        .into()
}

/// How often each has gone to sleep, and so woken.
fn slept(pacers: &[u32]) -> Vec<u64> {
    let times = |pid: &u32| status(*pid, "voluntary_ctxt_switches:").parse().unwrap();
    pacers.iter().map(times).collect()
}

fn is_real_time(pid: u32) -> bool {
    stat_field(pid, 41) == libc::SCHED_FIFO as u64
}

fn last(instance: &Instance) {
    let code = format!(
        "import time\ndef main(args):\n    end = time.monotonic() + {LONG_MS} / 1000\n    while time.monotonic() < end: pass\n    return 1\n"
    );
    assert_eq!(instance.output(&code), 1);
}

#[test]
fn processors_are_paced_while_a_run_lasts_and_else_left_alone() {
    let instance = warm(json!({}));
    let processors = std::thread::available_parallelism().unwrap().get();
    eventually("each processor has one", || {
        pacers(&instance).len() == processors
    });
    let pacers = pacers(&instance);
    assert_eq!(metric(&instance, "processors_paced"), pacers.len() as u64);
    let places: HashSet<_> = pacers
        .iter()
        .map(|pid| status(*pid, "Cpus_allowed_list:"))
        .collect();
    assert_eq!(places.len(), processors, "{places:?}");
    let first = pacers.iter().filter(|pid| is_real_time(**pid)).count();
    assert_eq!(
        metric(&instance, "processors_paced_in_real_time"),
        first as u64
    );
    for pid in &pacers {
        assert_eq!(status(*pid, "CapEff:"), "0000000000000000");
        assert_eq!(status(*pid, "NoNewPrivs:"), "1");
    }
    // A busy machine may be late, and one whose processor stands still does not wake: of three tries the best.
    let enough = LONG_MS / 8;
    let tries: Vec<u64> = (0..3)
        .map(|_| {
            // In this order: what wakes in between is counted in both.
            let (began, before) = (Instant::now(), slept(&pacers));
            last(&instance);
            let after = slept(&pacers);
            // Once in a millisecond at most.
            let most = began.elapsed().as_millis() as u64 + 1;
            let times = before
                .iter()
                .zip(after)
                .map(|(before, after)| after - before);
            let times: Vec<u64> = times.collect();
            assert!(
                times.iter().all(|n| *n <= most),
                "{times:?} times in {most} ms"
            );
            times.into_iter().min().unwrap()
        })
        .collect();
    // It takes some to see that the run lasts.
    assert!(
        tries.iter().any(|n| *n >= enough),
        "{tries:?} times, not {enough}"
    );
    if !is_root() {
        // A run's age has to do then, and on a busy machine each of them is old.
        return tools::left_out("an ordinary user has no control groups");
    }
    let sleeps = "import time\ndef main(args): print('here', flush=True); time.sleep(60)\n";
    while_it_runs(&instance, sleeps, || {
        let mut seen = (slept(&pacers), Instant::now());
        eventually("they sleep while a run does", || {
            let now = slept(&pacers);
            if now != seen.0 {
                seen = (now, Instant::now());
            }
            seen.1.elapsed() >= LONG_STILL
        });
    });
    // On a machine that has other things to do, none may be so short that it is not looked at.
    if full() {
        eventually("they sleep while all is short", || {
            let before = slept(&pacers);
            (0..20).for_each(|_| assert_eq!(instance.output(SHORT), 1));
            slept(&pacers) == before
        });
    }
}

#[test]
fn one_that_is_killed_is_replaced_while_a_run_lasts() {
    let instance = warm(json!({}));
    eventually("there are some", || !pacers(&instance).is_empty());
    let before = pacers(&instance);
    signal(before[0], "-9");
    eventually("another has its place", || {
        last(&instance);
        let now = pacers(&instance);
        now.len() == before.len() && !now.contains(&before[0])
    });
}

#[test]
fn whoever_wants_none_has_none() {
    let instance = warm(json!({"pace_us": 0}));
    last(&instance);
    assert_eq!(metric(&instance, "processors_paced"), 0);
    assert!(pacers(&instance).is_empty());
}

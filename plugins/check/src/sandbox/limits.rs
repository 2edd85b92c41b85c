//! Limits that the plugin says it enforces: a run tries to get past each.

use std::sync::Arc;
use std::time::{Duration, Instant};

use skillgate_plugin_host::SandboxInstance;
use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::model::{Limits, RunRequest, RunResult};

use super::{Services, WALL_MS, request, run};
use crate::bench::{Bench, Done, Stop, demand, failed};

/// A limit of time that is this much late is not kept.
const LATE_MAX: Duration = Duration::from_secs(8);
const SHORT_MS: u64 = 500;
/// Of a run that is to be ended for its processor time, of which a busy machine gives it little.
const CPU_WALL_MS: u64 = 60_000;
const PIDS: u32 = 16;
const MEMORY_BYTES: u64 = 128 << 20;
const DISK_BYTES: u64 = 8 << 20;
/// A file system's own bookkeeping.
const DISK_SLACK_BYTES: u64 = 1 << 20;

fn claiming(bench: &Bench, limit: u32, name: &str) -> Done<Arc<SandboxInstance>> {
    let sandbox = super::python(bench)?;
    if sandbox.caps().enforces & limit == 0 {
        return Err(Stop::Skipped(format!("caps.enforces does not say {name}")));
    }
    Ok(sandbox)
}

fn attempt(
    bench: &Bench,
    sandbox: &SandboxInstance,
    what: &str,
    code: &str,
    limit: impl Fn(&mut Limits),
) -> Done<(RunResult, Duration)> {
    let mut request: RunRequest = request(code);
    limit(&mut request.limits);
    let began = Instant::now();
    let result = run(bench, sandbox, what, request, &Arc::default())?;
    Ok((result, began.elapsed()))
}

/// [`attempt`], after a run with the same limits that keeps within them: where that one ends too, it is not the limit that ends a
/// run.
fn beyond(
    bench: &Bench,
    sandbox: &SandboxInstance,
    what: &str,
    code: &str,
    limit: impl Fn(&mut Limits),
) -> Done<RunResult> {
    let small = "def main(args):\n    return 1\n";
    let (result, _) = attempt(
        bench,
        sandbox,
        "one that keeps within its limits",
        small,
        &limit,
    )?;
    demand(result.completed, || {
        format!(
            "a run that keeps within its limits ends with {:?}: {}",
            result.error_type, result.error_message
        )
    })?;
    Ok(attempt(bench, sandbox, what, code, &limit)?.0)
}

/// That a run has not completed is not enough: it has to be said that it was this limit that ended it.
fn ended_by(result: &RunResult, limit: &str, error_types: &[&str]) -> Done {
    demand(error_types.contains(&result.error_type.as_str()), || {
        format!(
            "a run beyond {limit} ends with {:?} instead of {}: {}",
            result.error_type,
            error_types.join(" or "),
            result.error_message
        )
    })
}

/// How many a run of the kit says that it has got.
fn count(result: &RunResult, limit: &str) -> Done<u64> {
    serde_json::from_slice(&result.output_json).map_err(|_| {
        failed(format!(
            "a run beyond {limit} completes and says {:?} instead of how many it has got",
            String::from_utf8_lossy(&result.output_json)
        ))
    })
}

pub(crate) fn wall(bench: &Bench) -> Done {
    let sandbox = claiming(bench, abi::LIMIT_WALL, "SKG_LIMIT_WALL")?;
    let code = "import time\ndef main(args):\n    time.sleep(300)\n";
    let (result, took) = attempt(
        bench,
        &sandbox,
        "one that sleeps beyond wall_ms",
        code,
        |limits| {
            limits.wall_ms = SHORT_MS;
        },
    )?;
    demand(took < Duration::from_millis(SHORT_MS) + LATE_MAX, || {
        format!(
            "with wall_ms {SHORT_MS} a run went on for {} ms",
            took.as_millis()
        )
    })?;
    demand(
        !result.completed && result.error_type == abi::RUN_TIMEOUT,
        || {
            format!(
                "a run beyond wall_ms ends with {:?} instead of {:?}",
                result.error_type,
                abi::RUN_TIMEOUT
            )
        },
    )
}

pub(crate) fn cpu(bench: &Bench) -> Done {
    let sandbox = claiming(bench, abi::LIMIT_CPU, "SKG_LIMIT_CPU")?;
    let code =
        "import time\ndef main(args):\n    while time.process_time() < 4: pass\n    return 1\n";
    let mut request = request(code);
    (request.limits.cpu_ms, request.limits.wall_ms) = (SHORT_MS, CPU_WALL_MS);
    bench.step("run: one that computes for 4 s");
    let began = Instant::now();
    let limit = Duration::from_millis(CPU_WALL_MS) + LATE_MAX;
    let result = bench.wait_within(limit, sandbox.run(request, Arc::new(Services::default())))?;
    ended_for_processor_time(&result, began.elapsed())
}

/// That a run has ended before its end is not enough: it may have been its clock that ended it.
fn ended_for_processor_time(result: &RunResult, took: Duration) -> Done {
    demand(!result.completed, || {
        format!("with cpu_ms {SHORT_MS} a run has computed for 4 s of processor time")
    })?;
    // 0: not known, and no more than the time that has passed. What a plugin counts and when it looks is its own.
    let used = match result.cpu_us {
        0 => took >= Duration::from_millis(SHORT_MS / 2),
        us => us >= SHORT_MS * 1000 / 2,
    };
    demand(used && took < Duration::from_millis(CPU_WALL_MS), || {
        format!(
            "with cpu_ms {SHORT_MS} a run that computes has ended after {} ms and cpu_us {}: not for its processor time, or this \
             machine is too busy to tell",
            took.as_millis(),
            result.cpu_us
        )
    })
}

pub(crate) fn memory(bench: &Bench) -> Done {
    let sandbox = claiming(bench, abi::LIMIT_MEMORY, "SKG_LIMIT_MEMORY")?;
    let code = "def main(args):\n    kept = []\n    for i in range(384):\n        kept.append(bytearray(b'x' * (1 << 20)))\n    return len(kept)\n";
    let result = beyond(
        bench,
        &sandbox,
        "one that takes 384 MiB of memory",
        code,
        |limits| {
            limits.memory_bytes = MEMORY_BYTES;
        },
    )?;
    demand(!result.completed, || {
        format!("with memory_bytes {MEMORY_BYTES} a run has filled 384 MiB")
    })?;
    // Ended, or refused more and ended by that.
    ended_by(
        &result,
        "memory_bytes",
        &[abi::RUN_OUT_OF_MEMORY, "MemoryError"],
    )
}

pub(crate) fn pids(bench: &Bench) -> Done {
    let sandbox = claiming(bench, abi::LIMIT_PIDS, "SKG_LIMIT_PIDS")?;
    let code = "import os, signal, time\ndef main(args):\n    made = []\n    try:\n        for i in range(100):\n            pid = os.fork()\n            if pid == 0:\n                time.sleep(10)\n                os._exit(0)\n            made.append(pid)\n    except OSError: pass\n    for pid in made:\n        os.kill(pid, signal.SIGKILL)\n        os.waitpid(pid, 0)\n    return len(made)\n";
    let result = beyond(
        bench,
        &sandbox,
        "one that forks 100 times",
        code,
        |limits| {
            limits.max_pids = PIDS;
        },
    )?;
    if !result.completed {
        return ended_by(&result, "max_pids", &[abi::RUN_TOO_MANY_PROCESSES]);
    }
    let made = count(&result, "max_pids")?;
    demand(made <= u64::from(PIDS), || {
        format!("with max_pids {PIDS} a run has made {made} processes")
    })
}

pub(crate) fn disk(bench: &Bench) -> Done {
    let sandbox = claiming(bench, abi::LIMIT_DISK, "SKG_LIMIT_DISK")?;
    let code = "import os\ndef main(args):\n    total = 0\n    made = []\n    for place in ('/workspace', '/tmp', '/dev/shm'):\n        name = place + '/skillgate-check-fill'\n        try:\n            with open(name, 'wb', buffering=0) as f:\n                made.append(name)\n                for i in range(24):\n                    total += f.write(b'x' * (1 << 20))\n        except OSError: pass\n    for name in made: os.unlink(name)\n    return total\n";
    let result = beyond(
        bench,
        &sandbox,
        "one that writes 72 MiB of files",
        code,
        |limits| {
            limits.disk_bytes = DISK_BYTES;
        },
    )?;
    if !result.completed {
        return ended_by(&result, "disk_bytes", &[abi::RUN_DISK_FULL]);
    }
    let total = count(&result, "disk_bytes")?;
    demand(total > 0 && total <= DISK_BYTES + DISK_SLACK_BYTES, || {
        format!("with disk_bytes {DISK_BYTES} a run has written {total} bytes")
    })
}

pub(crate) fn nonroot(bench: &Bench) -> Done {
    let sandbox = claiming(bench, abi::LIMIT_NONROOT, "SKG_LIMIT_NONROOT")?;
    let code = "import os\ndef main(args):\n    return [os.getuid(), os.geteuid(), os.getgid()]\n";
    let (result, _) = attempt(bench, &sandbox, "one that asks who it is", code, |limits| {
        limits.wall_ms = WALL_MS;
    })?;
    let ids: Vec<u32> = serde_json::from_slice(&result.output_json).unwrap_or_default();
    demand(ids.len() == 3 && !ids.contains(&0), || {
        format!("a run has the user, effective user and group ids {ids:?}")
    })
}

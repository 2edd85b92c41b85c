//! What a result says that a run has used: it is what an operator is told, and what tenants are charged for.

use std::sync::Arc;

use super::{request, run};
use crate::bench::{Bench, Done, demand, failed, failed_at};

/// What the run uses, by its own clock, and has of memory at once.
const BURNT_US: u64 = 300_000;
const HELD_BYTES: u64 = 48 << 20;
/// Of the run's own processor time: its interpreter's start, and whatever the sandbox counts with it.
const MORE_US: u64 = 15_000_000;
/// A clock that ticks is as coarse as this.
const PART: u64 = 2;

pub(crate) fn used(bench: &Bench) -> Done {
    let sandbox = super::python(bench)?;
    let code = format!(
        "import time\ndef main(args):\n    held = bytearray(b'x') * {HELD_BYTES}\n    until, last = time.process_time() + 0.3, time.monotonic() + 10\n    while time.process_time() < until and time.monotonic() < last: pass\n    return [time.process_time() >= until, len(held)]\n"
    );
    let what = "one that computes for 300 ms and holds 48 MiB";
    let result = run(bench, &sandbox, what, request(&code), &Arc::default())?;
    let wrong = |seen: String| Err(failed_at("skg_run_result", seen));
    if !result.completed {
        let (class, message) = (&result.error_type, &result.error_message);
        return wrong(format!("{what}: it fails: {class}: {message}"));
    }
    let said: (bool, u64) = serde_json::from_slice(&result.output_json).map_err(|error| {
        failed(format!(
            "output_json is not what code has returned: {error}"
        ))
    })?;
    let (cpu_us, peak) = (result.cpu_us, result.peak_memory_bytes);
    // 0: not known. On a machine that gave it no time nothing is known of what it has used.
    if cpu_us != 0 && said.0 && cpu_us < BURNT_US / PART {
        return wrong(format!(
            "a run that has computed for 300 ms by its own clock has cpu_us {cpu_us}: it counts microseconds, of the run and all that it has started, and 0 is \"not known\""
        ));
    }
    demand(cpu_us <= BURNT_US + MORE_US, || {
        format!(
            "a run that has computed for 300 ms has cpu_us {cpu_us}, which is {} s",
            cpu_us / 1_000_000
        )
    })?;
    if peak != 0 && peak < HELD_BYTES / PART {
        return wrong(format!(
            "a run that has held {HELD_BYTES} bytes has peak_memory_bytes {peak}: it counts bytes, and 0 is \"not known\""
        ));
    }
    let machine = machine_bytes()?;
    demand(peak <= machine.max(request("").limits.memory_bytes), || {
        format!("peak_memory_bytes is {peak}, and this machine has {machine}")
    })
}

/// All memory of this machine.
fn machine_bytes() -> std::io::Result<u64> {
    let known = std::fs::read_to_string("/proc/meminfo")?;
    let line = known
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    Ok(kib.map_or(u64::MAX, |kib| kib.saturating_mul(1024)))
}

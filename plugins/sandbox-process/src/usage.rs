//! What /proc says: of what a run has used where no control group counts it, and of how busy the machine is.

use std::fs;

use crate::cgroup::GroupUse;
use crate::sys;

/// Nothing where /proc does not tell (one that hides processes): then only the end of the run tells, and not all if it is
/// killed, since the kernel then reaps in place of process 1, and counts for nobody (zap_pid_ns_processes). Time of the
/// interpreter's first thread and of the processes that it has waited for; the largest resident set of the interpreter,
/// which is the first child of the run's process 1.
pub(crate) fn of_run(process_1: u32) -> Option<GroupUse> {
    let read = |path: String| sys::proc_text(path).ok();
    let children = read(format!("/proc/{process_1}/task/{process_1}/children"))?;
    let pid: u32 = children.split_whitespace().next()?.parse().ok()?;
    let thread = read(format!("/proc/{pid}/schedstat"))?;
    let thread_ns: u64 = thread.split_whitespace().next()?.parse().ok()?;
    let status = read(format!("/proc/{pid}/status"))?;
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    let peak_kib: u64 = peak.split_whitespace().next()?.parse().ok()?;
    let stat = read(format!("/proc/{pid}/stat"))?;
    Some(GroupUse {
        cpu_us: Some(thread_ns / 1000 + waited_us(&stat)?),
        peak_memory_bytes: Some(peak_kib * 1024),
        ..GroupUse::default()
    })
}

/// Processor time of ended children, from /proc/PID/stat. In the kernel's unit for user space: hundredths of a second.
fn waited_us(stat: &str) -> Option<u64> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    Some((field(16)? + field(17)?) * 10_000)
}

/// How many tasks of the whole machine have a processor or wait for one; 0 where /proc does not tell.
pub(crate) fn running() -> u32 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    running_of(&text).unwrap_or(0)
}

/// The fourth field of /proc/loadavg: those that run, and after a slash all.
fn running_of(loadavg: &str) -> Option<u32> {
    let tasks = loadavg.split_whitespace().nth(3)?;
    tasks.split_once('/')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_stat() {
        let stat = "42 (a) b) S 1 42 42 0 -1 4194560 1 2 3 4 100 200 5 7 20 0 1 0 9 8 7";
        assert_eq!(waited_us(stat), Some(120_000));
        assert_eq!(waited_us("42 (a"), None);
    }

    #[test]
    fn running_of_all() {
        assert_eq!(running_of("2.36 6.80 6.02 11/142 20815\n"), Some(11));
        assert_eq!(running_of("2.36 6.80 6.02"), None);
        assert!(running() > 0, "this one runs");
    }

    #[test]
    fn a_process_that_is_not_there_says_nothing() {
        assert!(of_run(u32::MAX).is_none());
    }
}

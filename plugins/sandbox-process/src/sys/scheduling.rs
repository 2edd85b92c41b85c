//! Which processor a process is on, and before whom it gets there.

use std::io;

use super::check;

/// The slice of [`come_first`] where it must do without a real-time priority: the kernel's smallest.
const SLICE_NS: u64 = 100_000;

/// The processors that this process may use, by number. Of more than 1024, none: see sched_getaffinity(2).
pub(crate) fn processors() -> io::Result<Vec<usize>> {
    // SAFETY: a set is plain data, and the empty one is all zeroes.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is as large as is said.
    check(unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) }.into())?;
    // SAFETY: the numbers are those that a set has room for.
    let has = |number: &usize| unsafe { libc::CPU_ISSET(*number, &set) };
    Ok((0..8 * size_of_val(&set)).filter(has).collect())
}

/// The process `pid`, or the calling thread (0), is on that processor and no other.
pub(crate) fn stay_on(pid: libc::pid_t, processor: usize) -> io::Result<()> {
    // SAFETY: as in `processors`.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    if processor >= 8 * size_of_val(&set) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: the set has room for the number.
    unsafe { libc::CPU_SET(processor, &mut set) };
    // SAFETY: `set` is as large as is said.
    check(unsafe { libc::sched_setaffinity(pid, size_of_val(&set), &set) }.into()).map(drop)
}

/// What [`come_first`] could give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Precedence {
    RealTime,
    ShortSlice,
}

/// When the process `pid`, or the calling thread (0), wakes it has its processor before all others that have no priority of
/// their own: at once with the lowest real-time priority; else, where that is not to be had (CAP_SYS_NICE, a control group
/// without real-time), with the shortest of slices, which since Linux 6.12 does the same for one that mostly sleeps
/// (sched_setattr(2)).
pub(crate) fn come_first(pid: libc::pid_t) -> io::Result<Precedence> {
    let lowest = libc::sched_param { sched_priority: 1 };
    // SAFETY: the parameters are read.
    if unsafe { libc::sched_setscheduler(pid, libc::SCHED_FIFO, &lowest) } == 0 {
        return Ok(Precedence::RealTime);
    }
    let short = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: libc::SCHED_OTHER as u32,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: SLICE_NS,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: as above; the structure says its size.
    check(unsafe { libc::syscall(libc::SYS_sched_setattr, pid, &raw const short, 0) })?;
    Ok(Precedence::ShortSlice)
}

/// [`weigh_more`]: nine times as much as others. With the most that the kernel has, 87 times, a group's part of the processors goes
/// where this one was last, also while it sleeps: what the group has on another one waits for a tenth of a second.
const NICE: libc::c_int = -10;

/// The process `pid` gets most of what its group has of a processor (sched(7), "The nice value"). Fails without CAP_SYS_NICE.
pub(crate) fn weigh_more(pid: libc::pid_t) -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::setpriority(libc::PRIO_PROCESS, pid as u32, NICE) }.into()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_stays_where_it_is_put() {
        let all = processors().unwrap();
        let one = *all.last().unwrap();
        // 0 is the calling thread: not that of another test.
        let there = std::thread::spawn(move || stay_on(0, one).and_then(|()| processors()));
        assert_eq!(there.join().unwrap().unwrap(), [one]);
        assert_eq!(processors().unwrap(), all);
        assert!(stay_on(0, usize::MAX).is_err());
    }
}

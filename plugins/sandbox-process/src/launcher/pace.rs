//! While a run lasts, who is next on a processor is decided more often than at the ticks of the kernel's clock.
//!
//! The kernel takes a processor from one task for another when something wakes on it, and at its ticks: every 4 ms where the
//! clock has 250 of them (CONFIG_HZ; Debian's). A short run is a millisecond of work in a handful of processes that wake each
//! other, and beside one that lasts each of these may wait for the next tick, though the processor is owed to it long before. What
//! the kernel needs is an occasion to look: a process on each processor that wakes, does nothing, and sleeps again.
//! Where nobody lasts they sleep, since where all are short it would be in their way.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use super::run::Process;
use crate::sys::{self, Fork};

/// For so long after a run that lasts has been seen: whoever begins the next of its kind finds it there.
const KEEP_NS: u64 = 500_000_000;

/// One process for each processor, as far as there are any.
#[derive(Debug)]
pub(super) struct Pace {
    pacers: Vec<Pacer>,
    every_ns: u64,
    until_ns: u64,
}

#[derive(Debug)]
struct Pacer {
    processor: usize,
    process: Process,
    /// Until when it is to wake, in nanoseconds of the monotonic clock: 8 bytes each time.
    told: OwnedFd,
}

impl Pace {
    pub(super) const NONE: Pace = Pace {
        pacers: Vec::new(),
        every_ns: 0,
        until_ns: 0,
    };

    /// Where `every_ns` is 0, or a process cannot be made, there are none or fewer: runs wait for the kernel's clock.
    pub(super) fn start(launcher: BorrowedFd<'_>, every_ns: u64) -> Self {
        let processors = match every_ns {
            0 => Vec::new(),
            _ => sys::processors().unwrap_or_default(),
        };
        let start = |processor| Pacer::start(launcher, processor, every_ns).ok();
        Pace {
            pacers: processors.into_iter().map_while(start).collect(),
            every_ns,
            until_ns: 0,
        }
    }

    /// How many processors have one.
    pub(super) fn processors(&self) -> u32 {
        self.pacers.len() as u32
    }

    /// A run that lasts has been seen.
    pub(super) fn keep(&mut self, launcher: BorrowedFd<'_>, now: u64) {
        // They need not be told each time.
        if now + KEEP_NS / 2 < self.until_ns {
            return;
        }
        self.until_ns = now + KEEP_NS;
        let (until, every_ns) = (self.until_ns, self.every_ns);
        self.pacers.retain_mut(|pacer| {
            if pacer.tell(until) {
                return true;
            }
            // It has been killed. Its place is taken, or given up.
            pacer.process.reap();
            match Pacer::start(launcher, pacer.processor, every_ns) {
                Ok(next) => {
                    *pacer = next;
                    pacer.tell(until)
                }
                Err(_) => false,
            }
        });
    }

    pub(super) fn pids(&self) -> impl Iterator<Item = libc::pid_t> {
        self.pacers.iter().map(|pacer| pacer.process.pid)
    }

    pub(super) fn end(&mut self) {
        for pacer in self.pacers.drain(..) {
            // Ours to kill; its end is waited for next.
            let _ = sys::kill_by_pidfd(pacer.process.pidfd.as_fd());
            pacer.process.reap();
        }
    }
}

impl Pacer {
    fn start(launcher: BorrowedFd<'_>, processor: usize, every_ns: u64) -> io::Result<Self> {
        let (orders, told) = sys::pipe()?;
        sys::set_nonblocking(told.as_fd())?;
        match sys::clone_process(0, None)? {
            Fork::Child => {
                let wake =
                    std::panic::AssertUnwindSafe(|| wake(launcher, &orders, processor, every_ns));
                // Whatever it was: the launcher finds that nobody reads.
                let _ = std::panic::catch_unwind(wake);
                sys::exit_now(0)
            }
            Fork::Parent { pid, pidfd } => Ok(Pacer {
                processor,
                process: Process { pid, pidfd },
                told,
            }),
        }
    }

    /// `false`: there is nobody any more.
    fn tell(&self, until_ns: u64) -> bool {
        match sys::write(self.told.as_fd(), &until_ns.to_ne_bytes()) {
            Err(e) => e.kind() != io::ErrorKind::BrokenPipe,
            // Or it has not read for so long that it has enough to read.
            Ok(_) => true,
        }
    }
}

/// In the process: wakes on its processor as often as it is told to, for as long, until the launcher goes.
fn wake(
    launcher: BorrowedFd<'_>,
    orders: &OwnedFd,
    processor: usize,
    every_ns: u64,
) -> io::Result<()> {
    sys::close_all_from(0, &[launcher.as_raw_fd(), orders.as_raw_fd()])?;
    sys::stay_on(processor)?;
    sys::come_first()?;
    sys::set_no_new_privs()?;
    sys::drop_capabilities()?;
    sys::set_process_name(c"skillgate-pace");
    sys::set_parent_death_signal(libc::SIGKILL)?;
    if !sys::is_alive(launcher)? {
        return Ok(());
    }
    let mut until = [0; 8];
    while sys::read(orders.as_fd(), &mut until)? == until.len() {
        while sys::now_ns() < u64::from_ne_bytes(until) {
            std::thread::sleep(Duration::from_nanos(every_ns));
        }
    }
    Ok(())
}

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
use crate::sys::{self, Fork, Precedence};
use crate::wire::Paced;

/// For so long after a run that lasts has been seen: whoever begins the next of its kind finds it there.
const KEEP_NS: u64 = 500_000_000;

/// One process for each processor, as far as there are any.
#[derive(Debug)]
pub(super) struct Pace {
    places: Vec<Place>,
    every_ns: u64,
    until_ns: u64,
}

#[derive(Debug)]
struct Place {
    processor: usize,
    /// `None`: it has been killed, and another could not be made yet.
    pacer: Option<Pacer>,
}

#[derive(Debug)]
struct Pacer {
    process: Process,
    precedence: Precedence,
    /// Until when it is to wake, in nanoseconds of the monotonic clock: 8 bytes each time.
    told: OwnedFd,
}

impl Pace {
    pub(super) const NONE: Pace = Pace {
        places: Vec::new(),
        every_ns: 0,
        until_ns: 0,
    };

    /// Where `every_ns` is 0 there are none.
    pub(super) fn start(launcher: BorrowedFd<'_>, every_ns: u64) -> (Self, Paced) {
        if every_ns == 0 {
            return (Pace::NONE, Paced::default());
        }
        match sys::processors() {
            Ok(processors) => Pace::start_on(&processors, launcher, every_ns),
            Err(e) => {
                let lacks = Some(format!("the numbers of its processors: {e}"));
                (
                    Pace::NONE,
                    Paced {
                        lacks,
                        ..Paced::default()
                    },
                )
            }
        }
    }

    /// The first processor that cannot have one is the last that is tried, and it is said why: there, and on those after it,
    /// runs wait for the kernel's clock.
    fn start_on(processors: &[usize], launcher: BorrowedFd<'_>, every_ns: u64) -> (Self, Paced) {
        let mut pace = Pace {
            every_ns,
            ..Pace::NONE
        };
        let mut paced = Paced::default();
        for processor in processors.iter().copied() {
            match Pacer::start(launcher, processor, every_ns) {
                Ok(pacer) => {
                    paced.processors += 1;
                    paced.real_time += u32::from(pacer.precedence == Precedence::RealTime);
                    pace.places.push(Place {
                        processor,
                        pacer: Some(pacer),
                    });
                }
                Err(e) => {
                    paced.lacks = Some(format!(
                        "a process that keeps the pace of processor {processor}: {e}"
                    ));
                    break;
                }
            }
        }
        (pace, paced)
    }

    /// A run that lasts has been seen.
    pub(super) fn keep(&mut self, launcher: BorrowedFd<'_>, now: u64) {
        // They need not be told each time.
        if now + KEEP_NS / 2 < self.until_ns {
            return;
        }
        self.until_ns = now + KEEP_NS;
        for place in &mut self.places {
            let told = |pacer: &Pacer| pacer.tell(self.until_ns);
            if place.pacer.as_ref().is_some_and(told) {
                continue;
            }
            if let Some(killed) = place.pacer.take() {
                killed.process.reap();
            }
            // If there is none now, the next time: a lack of processes or memory need not last.
            place.pacer = Pacer::start(launcher, place.processor, self.every_ns).ok();
            place.pacer.as_ref().map(told);
        }
    }

    pub(super) fn pids(&self) -> impl Iterator<Item = libc::pid_t> {
        let pacers = self.places.iter().filter_map(|place| place.pacer.as_ref());
        pacers.map(|pacer| pacer.process.pid)
    }

    pub(super) fn end(&mut self) {
        for pacer in self.places.drain(..).filter_map(|place| place.pacer) {
            end(&pacer.process);
        }
    }
}

impl Pacer {
    fn start(launcher: BorrowedFd<'_>, processor: usize, every_ns: u64) -> io::Result<Self> {
        let (orders, told) = sys::pipe()?;
        sys::set_nonblocking(told.as_fd())?;
        match sys::clone_process(0, None)? {
            Fork::Child => {
                let wake = std::panic::AssertUnwindSafe(|| wake(launcher, &orders, every_ns));
                // Whatever it was: the launcher finds that nobody reads.
                let _ = std::panic::catch_unwind(wake);
                sys::exit_now(0)
            }
            Fork::Parent { pid, pidfd } => {
                let process = Process { pid, pidfd };
                // From here and not from there: so it is known what it got.
                match sys::stay_on(pid, processor).and_then(|()| sys::come_first(pid)) {
                    Ok(precedence) => Ok(Pacer {
                        process,
                        precedence,
                        told,
                    }),
                    Err(e) => {
                        end(&process);
                        Err(e)
                    }
                }
            }
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

fn end(process: &Process) {
    // Ours to kill; its end is waited for next.
    let _ = sys::kill_by_pidfd(process.pidfd.as_fd());
    process.reap();
}

/// In the process: wakes as often as it is to, for as long as it is told to, until the launcher goes.
fn wake(launcher: BorrowedFd<'_>, orders: &OwnedFd, every_ns: u64) -> io::Result<()> {
    sys::close_all_from(0, &[launcher.as_raw_fd(), orders.as_raw_fd()])?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_that_cannot_have_one_is_named() {
        let own = sys::pidfd_open(std::process::id() as _).unwrap();
        let mut processors = sys::processors().unwrap();
        let there = processors.len();
        processors.push(usize::MAX);
        let (mut pace, paced) = Pace::start_on(&processors, own.as_fd(), 1_000_000);
        assert_eq!(pace.pids().count(), there);
        pace.end();
        assert_eq!(paced.processors as usize, there);
        let lacks = paced.lacks.unwrap();
        let expected = format!(
            "a process that keeps the pace of processor {}: ",
            usize::MAX
        );
        assert!(lacks.starts_with(&expected), "{lacks}");
    }
}

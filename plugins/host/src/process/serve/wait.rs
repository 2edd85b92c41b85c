//! Waiting for the gateway's next bytes: awake for a moment where that has paid, asleep otherwise.
//!
//! A thread that sleeps is woken on a processor that sleeps too, as a rule: on a virtual machine a third of what a call
//! costs. Calls come in rows (the requests of a busy gateway, the reads of one blob), so after one that came soon the next
//! is looked for without sleeping. That costs at most [`AWAKE`] of a processor, which others may have meanwhile, for each
//! row.

use std::io;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::super::frame::Incoming;

/// How long the next bytes are looked for before the thread sleeps; about the time that a caller takes to hear an answer and
/// to ask again.
const AWAKE: Duration = Duration::from_micros(50);

/// Whether it pays, as far as the last time says.
#[derive(Debug, Default)]
pub(super) struct Wait {
    awake: bool,
}

impl Wait {
    /// Receives what comes next, waiting for it; 0: the end.
    pub(super) fn receive(
        &mut self,
        socket: &UnixStream,
        incoming: &mut Incoming,
    ) -> io::Result<usize> {
        self.receive_by(socket, incoming, Instant::now)
    }

    fn receive_by(
        &mut self,
        socket: &UnixStream,
        incoming: &mut Incoming,
        mut now: impl FnMut() -> Instant,
    ) -> io::Result<usize> {
        let until = now() + AWAKE;
        while self.awake {
            match incoming.receive(socket, libc::MSG_DONTWAIT) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                received => return received,
            }
            self.awake = now() < until;
            std::thread::yield_now();
        }
        let received = incoming.receive(socket, 0);
        self.awake = now() < until;
        received
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// Waits for one byte, which comes when the clock has been read `reads` times; each reading takes `step`. How often it
    /// was read.
    fn wait(wait: &mut Wait, reads: usize, step: Duration) -> usize {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (start, mut count) = (Instant::now(), 0);
        let now = || {
            count += 1;
            if count == reads {
                theirs.write_all(b"x").unwrap();
            }
            start + step * u32::try_from(count).unwrap()
        };
        let received = wait.receive_by(&ours, &mut Incoming::new(1), now);
        assert_eq!(received.unwrap(), 1);
        count
    }

    #[test]
    fn it_is_awake_while_that_pays() {
        let mut it = Wait::default();
        let slow = AWAKE + Duration::from_micros(1);
        wait(&mut it, 1, slow);
        assert!(!it.awake, "that took long");
        wait(&mut it, 1, AWAKE / 10);
        assert!(it.awake, "that came at once");
        assert_eq!(wait(&mut it, 8, AWAKE / 10), 8, "looked for");
        assert!(it.awake);
        assert_eq!(
            wait(&mut it, 11, AWAKE / 10),
            12,
            "looked for in vain, and slept"
        );
        assert!(!it.awake);
        assert_eq!(wait(&mut it, 1, slow), 2, "and now only sleeps");
    }

    #[test]
    fn the_end_is_the_end_either_way() {
        for awake in [false, true] {
            let (ours, theirs) = UnixStream::pair().unwrap();
            drop(theirs);
            let received = Wait { awake }.receive(&ours, &mut Incoming::new(1));
            assert_eq!(received.unwrap(), 0);
        }
    }
}

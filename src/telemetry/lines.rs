//! The log's way to stderr. Nobody who logs waits for whoever reads: a collector that hangs would hold up every call, since each
//! has something to say.
//!
//! What stderr takes at once is written by who logs: to wake a thread for a line would cost a run more than the line does. What
//! it does not take waits for a thread that may wait itself, up to `log.buffer_bytes`; further lines are dropped and counted, and
//! said when there is room again. A file is written by who logs in any case: nobody has to read it.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind, IoSlice, Write};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::{ReadWriteFlags, pwritev2};

/// What the thread takes of what waits, at once.
const PIECE_BYTES: usize = 64 * 1024;
/// After this the thread tries again where somebody else who has the same pipe has made it non-blocking.
const AGAIN: Duration = Duration::from_millis(20);

/// Writes lines, and keeps those that have to wait. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Lines(Arc<Inner>);

#[derive(Debug)]
pub(super) struct Inner {
    out: File,
    is_file: bool,
    waiting_bytes_max: usize,
    state: Mutex<State>,
    /// Something waits.
    some: Condvar,
    /// All has been written.
    none: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<u8>,
    /// The thread has taken a piece, and has not written it yet.
    writing: bool,
    /// Lines that were dropped.
    lost: u64,
    /// And of those, how many the log has not said yet.
    untold: u64,
}

impl State {
    fn is_done(&self) -> bool {
        self.waiting.is_empty() && !self.writing
    }

    fn lose(&mut self, lines: u64) {
        self.lost += lines;
        self.untold += lines;
    }
}

impl Lines {
    /// To this descriptor; `waiting_bytes_max` of those that have to wait.
    pub(super) fn to(out: OwnedFd, waiting_bytes_max: usize) -> io::Result<Self> {
        let out = File::from(out);
        let inner = Arc::new(Inner {
            is_file: out.metadata()?.is_file(),
            out,
            waiting_bytes_max,
            state: Mutex::default(),
            some: Condvar::new(),
            none: Condvar::new(),
        });
        let of_thread = inner.clone();
        std::thread::Builder::new()
            .name("skillgate-log".into())
            .spawn(move || of_thread.write_what_waits())?;
        Ok(Lines(inner))
    }

    /// As `tracing_subscriber` takes it.
    pub(super) fn writer(&self) -> Arc<Inner> {
        self.0.clone()
    }

    /// Lines that were dropped.
    pub(super) fn lost(&self) -> u64 {
        self.0.state().lost
    }

    /// Waits until all has been written, but no longer than this.
    pub(super) fn flush(&self, limit: Duration) {
        let inner = &*self.0;
        let waited = inner
            .none
            .wait_timeout_while(inner.state(), limit, |state| !state.is_done());
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

/// Each write is a line.
impl Write for &Inner {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.put(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, line: &[u8]) {
        let mut state = self.state();
        let mut rest = line;
        // In their order, and what was dropped is said first.
        if state.is_done() && state.untold == 0 {
            rest = &line[self.at_once(line)..];
            if rest.is_empty() {
                return;
            }
        }
        let is_begun = rest.len() < line.len();
        if !is_begun && state.waiting.len() + rest.len() > self.waiting_bytes_max {
            return state.lose(1);
        }
        state.waiting.extend(rest);
        drop(state);
        self.some.notify_one();
    }

    /// How many of these bytes are taken without waiting. Not by O_NONBLOCK: that would be so for everybody who has the same pipe
    /// or terminal. None where the kernel cannot say.
    fn at_once(&self, line: &[u8]) -> usize {
        if self.is_file {
            return (&self.out).write(line).unwrap_or(0);
        }
        let here = u64::MAX;
        pwritev2(
            &self.out,
            &[IoSlice::new(line)],
            here,
            ReadWriteFlags::NOWAIT,
        )
        .unwrap_or(0)
    }

    fn write_what_waits(&self) {
        let mut state = self.state();
        loop {
            state.writing = false;
            if state.waiting.is_empty() {
                self.none.notify_all();
            }
            state = self
                .some
                .wait_while(state, |state| state.waiting.is_empty())
                .unwrap_or_else(PoisonError::into_inner);
            let bytes = state.waiting.len().min(PIECE_BYTES);
            let piece: Vec<u8> = state.waiting.drain(..bytes).collect();
            state.writing = true;
            drop(state);
            let rest = self.write(&piece);
            let lost = rest.iter().filter(|byte| **byte == b'\n').count();
            state = self.state();
            state.lose(lost as u64);
            // Only when there is room: else this line would be one more.
            if rest.is_empty() && state.waiting.is_empty() && state.untold > 0 {
                let lines = std::mem::take(&mut state.untold);
                drop(state);
                tracing::warn!(
                    lines,
                    "stderr took nothing of the log for a time: lines were dropped (log.buffer_bytes)"
                );
                state = self.state();
            }
        }
    }

    /// Gives what could not be written, for as long as it may take.
    fn write<'a>(&self, mut piece: &'a [u8]) -> &'a [u8] {
        while !piece.is_empty() {
            match (&self.out).write(piece) {
                Ok(0) => break,
                Ok(bytes) => piece = &piece[bytes..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(AGAIN),
                Err(_) => break,
            }
        }
        piece
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead as _, BufReader, pipe};

    const LONG: Duration = Duration::from_secs(30);
    const MAX: usize = 10_000;

    #[test]
    fn nobody_waits_for_who_does_not_read() {
        let (reads, writes) = pipe().unwrap();
        let lines = Lines::to(writes.into(), MAX).unwrap();
        let writer = lines.writer();
        // Longer than what a pipe takes at once, or as one piece.
        let line = |n: usize| format!("{n:06}{}\n", "x".repeat(n % 9000));
        let all = 1000;
        let mut sent = 0;
        for n in 0..all {
            (&*writer).write_all(line(n).as_bytes()).unwrap();
            sent += line(n).len();
        }
        lines.flush(Duration::from_millis(1));
        let lost = lines.lost();
        assert!((1..all as u64).contains(&lost), "{lost}");
        drop(writer);
        let reader = std::thread::spawn(move || {
            let came = BufReader::new(reads).lines().map(Result::unwrap);
            came.take_while(|line| line != "last").collect::<Vec<_>>()
        });
        lines.flush(LONG);
        // There is room again.
        (&*lines.writer()).write_all(b"last\n").unwrap();
        let came = reader.join().unwrap();
        assert_eq!(came.len() as u64 + lost, all as u64);
        let held: usize = came.iter().map(|line| line.len() + 1).sum();
        // The pipe, what waits, what the thread has.
        assert!(
            held < sent && held <= (64 << 10) + MAX + PIECE_BYTES,
            "{held}"
        );
        // Whole, and in their order.
        let numbers = came.iter().map(|it| it[..6].parse::<usize>().unwrap());
        let numbers: Vec<_> = numbers.collect();
        assert!(numbers.is_sorted());
        for (number, came) in numbers.iter().zip(&came) {
            assert_eq!(*came, line(*number).trim_end());
        }
    }

    #[test]
    fn what_cannot_be_written_is_counted() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let lines = Lines::to(full.into(), MAX).unwrap();
        for n in 1..=3 {
            (&*lines.writer()).write_all(b"a line\n").unwrap();
            lines.flush(LONG);
            assert_eq!(lines.lost(), n);
        }
    }
}

//! The log's way to stderr. Nobody who logs waits for whoever reads: a collector that hangs would hold up every call, since each
//! has something to say.
//!
//! What stderr takes at once is written by who logs: to wake a thread for a line would cost a run more than the line does. What
//! it does not take waits for a thread that may wait itself, up to `log.buffer_bytes`; further lines are dropped and counted, and
//! said when there is room again. A file says of no write beforehand whether its disk takes it: who logs writes there too, but one
//! at a time, and what others log meanwhile waits for the thread. So a disk that hangs holds up no more than one.

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
/// How long who logs to a file waits for room for a line: several log faster than one thread is woken, and of what a disk would
/// take nothing is to be dropped. Where it hangs, each waits this once.
const ROOM_MAX: Duration = Duration::from_millis(10);

/// Writes lines, and keeps those that have to wait. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Lines(Arc<Inner>);

#[derive(Debug)]
pub(super) struct Inner {
    out: File,
    is_file: bool,
    waiting_bytes_max: usize,
    room_max: Duration,
    state: Mutex<State>,
    /// Something waits, and nobody writes.
    some: Condvar,
    /// Something has been written that waited, or all has been.
    less: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<u8>,
    /// Somebody writes, without this lock: the thread a piece, or who logs a line to a file. Nobody else does meanwhile.
    writing: bool,
    /// What was written last is not the end of a line.
    in_line: bool,
    /// And what is left of that line was dropped: whatever is written next begins with the end of it.
    torn: bool,
    /// There was no room for too long. Until something that waited is written, nobody waits for room.
    hangs: bool,
    /// Who waits for `less`: to wake nobody takes a system call too.
    for_less: usize,
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

    /// So much of this is in the file.
    fn wrote(&mut self, written: &[u8]) {
        if let Some(last) = written.last() {
            self.in_line = *last != b'\n';
        }
    }

    /// What could not be written is given up, up to the end of its last line.
    fn give_up(&mut self, rest: &[u8]) {
        let ends = |byte: &&u8| **byte == b'\n';
        self.lose(rest.iter().filter(ends).count() as u64);
        if !rest.is_empty() && !rest.ends_with(b"\n") {
            let more = self.waiting.iter().position(|byte| *byte == b'\n');
            self.waiting.drain(..more.map_or(0, |at| at + 1));
            self.lose(1);
        }
        self.torn = !rest.is_empty() && self.in_line;
    }

    /// Of a line that came before all that waits.
    fn put_first(&mut self, rest: &[u8]) {
        if rest.is_empty() {
            return;
        }
        let mut later = std::mem::take(&mut self.waiting);
        self.waiting.extend(rest);
        self.waiting.append(&mut later);
    }
}

impl Lines {
    /// To this descriptor; `waiting_bytes_max` of those that have to wait.
    pub(super) fn to(out: OwnedFd, waiting_bytes_max: usize) -> io::Result<Self> {
        let out = File::from(out);
        let is_file = out.metadata()?.is_file();
        Self::of(out, is_file, waiting_bytes_max, ROOM_MAX)
    }

    fn of(
        out: File,
        is_file: bool,
        waiting_bytes_max: usize,
        room_max: Duration,
    ) -> io::Result<Self> {
        let inner = Arc::new(Inner {
            out,
            is_file,
            waiting_bytes_max,
            room_max,
            state: Mutex::default(),
            some: Condvar::new(),
            less: Condvar::new(),
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
        drop(inner.wait_while(inner.state(), limit, |state| !state.is_done()));
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
    /// Nothing is done under this lock that may wait.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_while<'a>(
        &self,
        mut state: MutexGuard<'a, State>,
        limit: Duration,
        is_so: impl FnMut(&mut State) -> bool,
    ) -> MutexGuard<'a, State> {
        state.for_less += 1;
        let waited = self.less.wait_timeout_while(state, limit, is_so);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.for_less -= 1;
        state
    }

    fn put(&self, line: &[u8]) {
        let mut state = self.state();
        // In their order, and what was dropped is said first.
        let is_first = state.is_done() && state.untold == 0 && !state.torn;
        let mut rest = line;
        if is_first && self.is_file {
            state.writing = true;
            drop(state);
            // The disk may hang.
            rest = &line[(&self.out).write(line).unwrap_or(0)..];
            state = self.state();
            state.writing = false;
            state.wrote(&line[..line.len() - rest.len()]);
        } else if is_first {
            rest = &line[self.at_once(line)..];
            state.wrote(&line[..line.len() - rest.len()]);
        } else if self.is_file {
            state = self.when_there_is_room(state, line.len());
        }
        let is_begun = rest.len() < line.len();
        if !is_begun && !self.has_room(&state, rest.len()) {
            state.lose(1);
        } else if is_first {
            state.put_first(rest);
        } else {
            state.waiting.extend(rest);
        }
        // Whoever writes looks when he has written.
        let has_some = !state.waiting.is_empty() && !state.writing;
        let is_done = state.is_done() && state.for_less > 0;
        drop(state);
        if has_some {
            self.some.notify_one();
        }
        if is_done {
            self.less.notify_all();
        }
    }

    fn has_room(&self, state: &State, bytes: usize) -> bool {
        state.waiting.len() + bytes <= self.waiting_bytes_max
    }

    /// Or when it has become clear that there will be none.
    fn when_there_is_room<'a>(
        &self,
        state: MutexGuard<'a, State>,
        bytes: usize,
    ) -> MutexGuard<'a, State> {
        let will_have = bytes <= self.waiting_bytes_max;
        let has_none =
            |state: &mut State| will_have && !state.hangs && !self.has_room(state, bytes);
        let mut state = self.wait_while(state, self.room_max, has_none);
        state.hangs |= has_none(&mut state);
        state
    }

    /// How many of these bytes are taken without waiting. Not by O_NONBLOCK: that would be so for everybody who has the same pipe
    /// or terminal. None where the kernel cannot say.
    fn at_once(&self, line: &[u8]) -> usize {
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
            state = self
                .some
                .wait_while(state, |state| state.waiting.is_empty() || state.writing)
                .unwrap_or_else(PoisonError::into_inner);
            let bytes = state.waiting.len().min(PIECE_BYTES);
            let torn = state.torn.then_some(b'\n');
            let piece: Vec<u8> = torn
                .into_iter()
                .chain(state.waiting.drain(..bytes))
                .collect();
            if state.for_less > 0 {
                self.less.notify_all();
            }
            state.writing = true;
            drop(state);
            let rest = self.write(&piece);
            let written = piece.len() - rest.len();
            state = self.state();
            state.wrote(&piece[..written]);
            // Without what ends a line that is counted already.
            state.give_up(&piece[written.max(usize::from(torn.is_some()))..]);
            state.hangs = false;
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
            state.writing = false;
            if state.for_less > 0 {
                self.less.notify_all();
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
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use std::io::{BufRead as _, BufReader, Read, Seek as _, SeekFrom, pipe};
    use std::os::unix::fs::FileExt as _;
    use std::os::unix::net::UnixStream;
    use std::process::Command;
    use std::sync::mpsc::channel;
    use std::thread::JoinHandle;

    const LONG: Duration = Duration::from_secs(30);
    const MAX: usize = 10_000;

    fn put(lines: &Lines, line: &str) {
        lines.0.put(format!("{line}\n").as_bytes());
    }

    fn while_idle(lines: &Lines) {
        while lines.0.state().is_done() {
            std::thread::yield_now();
        }
    }

    /// What comes before the line "last".
    fn read_all(reads: impl Read + Send + 'static) -> JoinHandle<Vec<String>> {
        std::thread::spawn(move || {
            let came = BufReader::new(reads).lines().map(Result::unwrap);
            came.take_while(|line| line != "last").collect()
        })
    }

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
        let reader = read_all(reads);
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

    /// A pipe instead of a disk, since it hangs until somebody reads.
    #[test]
    fn of_a_disk_that_hangs_one_who_logs_waits_and_nobody_else() {
        let (mut reads, writes) = pipe().unwrap();
        let mut filled = vec![b'-'; 4096];
        while pwritev2(
            &writes,
            &[IoSlice::new(&filled[..4096])],
            u64::MAX,
            ReadWriteFlags::NOWAIT,
        )
        .is_ok()
        {
            filled.extend_from_within(..4096);
        }
        filled.truncate(filled.len() - 4096);
        let lines = Lines::of(OwnedFd::from(writes).into(), true, MAX, ROOM_MAX).unwrap();
        // Longer than what the pipe takes at once.
        let long = "a1".repeat(100_000);
        let hangs = {
            let (lines, long) = (lines.clone(), long.clone());
            std::thread::spawn(move || {
                put(&lines, &long);
                put(&lines, "a2");
            })
        };
        let (tell, told) = channel();
        let goes_on = {
            let lines = lines.clone();
            std::thread::spawn(move || {
                while_idle(&lines);
                put(&lines, "b1");
                // Room is waited for once.
                for _ in 0..10_000 {
                    put(&lines, &"x".repeat(MAX - 1));
                }
                put(&lines, "b2");
                lines.flush(Duration::from_millis(1));
                tell.send(lines.lost()).unwrap();
            })
        };
        assert_eq!(told.recv_timeout(LONG), Ok(10_000));
        goes_on.join().unwrap();
        assert!(!hangs.is_finished());
        reads.read_exact(&mut filled).unwrap();
        let reader = read_all(reads);
        hangs.join().unwrap();
        lines.flush(LONG);
        assert!(lines.0.state().is_done());
        put(&lines, "last");
        assert_eq!(reader.join().unwrap(), [&long, "b1", "b2", "a2"]);
    }

    /// As of a disk that has filled up.
    #[test]
    fn what_is_left_of_a_line_comes_before_what_others_logged_meanwhile() {
        let (reads, writes) = UnixStream::pair().unwrap();
        writes
            .set_write_timeout(Some(Duration::from_millis(50)))
            .unwrap();
        let lines = Lines::of(OwnedFd::from(writes).into(), true, 32 << 20, ROOM_MAX).unwrap();
        let long = "a".repeat(10 << 20);
        std::thread::scope(|scope| {
            scope.spawn(|| put(&lines, &long));
            while_idle(&lines);
            put(&lines, "b");
        });
        let reader = read_all(reads);
        lines.flush(LONG);
        put(&lines, "last");
        let came = reader.join().unwrap();
        assert!(came == [&long, "b"], "{}", came.len());
    }

    #[test]
    fn lines_of_many_to_a_file_are_all_there_and_in_their_order() {
        const OF_EACH: usize = 100;
        let (reads, writes) = pipe().unwrap();
        let lines = Lines::of(OwnedFd::from(writes).into(), true, MAX, LONG).unwrap();
        let reader = read_all(reads);
        let line = |who: usize, n: usize| format!("{who} {n:06} {}", "x".repeat(n * 997 % 9000));
        std::thread::scope(|scope| {
            for who in 0..4 {
                let (lines, line) = (&lines, &line);
                scope.spawn(move || (0..OF_EACH).for_each(|n| put(lines, &line(who, n))));
            }
        });
        lines.flush(LONG);
        assert_eq!(lines.lost(), 0);
        put(&lines, "last");
        let mut came = reader.join().unwrap();
        // Of each in the order in which they came.
        came.sort_by_key(|line| line[..1].to_owned());
        let sent = (0..4).flat_map(|who| (0..OF_EACH).map(move |n| line(who, n)));
        assert!(came.into_iter().eq(sent));
    }

    /// The limit of a file, as of a disk that has filled up in the middle of a line, is a whole process's.
    #[test]
    fn a_line_of_which_a_half_was_written_is_one_that_is_lost_and_no_other() {
        let script = "trap '' XFSZ; exec \"$0\" --exact --ignored \"$1\"";
        let output = Command::new("sh")
            .args(["-c", script])
            .arg(std::env::current_exe().unwrap())
            .arg("telemetry::lines::tests::child_whose_files_are_full")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && said.contains("1 passed"),
            "{said}"
        );
    }

    #[test]
    #[ignore = "run by a_line_of_which_a_half_was_written_is_one_that_is_lost_and_no_other, in a process of its own"]
    fn child_whose_files_are_full() {
        let current = Some(4096);
        let maximum = getrlimit(Resource::Fsize).maximum;
        setrlimit(Resource::Fsize, Rlimit { current, maximum }).unwrap();
        for (half, line) in [(4096, 5000), (4096, 3 * PIECE_BYTES), (0, 5000)] {
            let mut disk = tempfile::tempfile().unwrap();
            disk.seek(SeekFrom::Start(4096 - half)).unwrap();
            let lines = Lines::to(disk.try_clone().unwrap().into(), MAX).unwrap();
            for _ in 0..2 {
                put(&lines, &"a".repeat(line));
                lines.flush(LONG);
            }
            assert_eq!(lines.lost(), 2);
            // There is room at the beginning.
            disk.rewind().unwrap();
            for one in ["b", "c"] {
                put(&lines, one);
                lines.flush(LONG);
            }
            let ended = if half > 0 { "\nb\nc\n" } else { "b\nc\n" };
            let mut came = vec![0; ended.len()];
            disk.read_exact_at(&mut came, 0).unwrap();
            assert_eq!(String::from_utf8_lossy(&came), ended, "{half} of {line}");
            assert_eq!(lines.lost(), 2);
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

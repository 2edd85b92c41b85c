//! What writes: whoever has a record, when it is its turn at once and nothing else has to be waited for; else a thread of its
//! own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Map, Value, json};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::chain::Head;
use super::file::{Active, Lock, Names, OpenError, Uncut, is_of_the_disk, make_dir};
use super::memory::{Memory, goes_on};
use super::record::{Encoded, Kind, Record, member};
use super::timestamp::rfc3339;
use super::{APPEND_TIMEOUT, State, Unwritten};
use crate::config::{self, Fsync, OnAuditFailure};

/// Bytes of records that are written at once: behind so many a batch takes none.
const BATCH_BYTES_MAX: usize = 1 << 20;
/// While it fails: how often it is tried without being asked. A gateway that is not ready is not asked.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// How long whoever has a record tries to get its turn: somewhat longer than one is written, and shorter than the way to the
/// thread and back, which two changes of threads make.
const TURN_WAIT: Duration = Duration::from_micros(30);
/// What a line has beside its record: more than it ever is.
const LINE_OVERHEAD_BYTES: u64 = 4096;

/// What is sent to the writer.
pub(super) enum Entry {
    Record(Waiting),
    /// Nothing to write: something has changed about when it must be looked at.
    Wake,
    /// Ends the log.
    Close(oneshot::Sender<()>),
}

/// A record that is to be written.
pub(super) struct Waiting {
    pub(super) record: Encoded,
    /// Says whether it is; none of one that was posted.
    pub(super) answer: Option<oneshot::Sender<bool>>,
    /// Its place in the queue, freed with it.
    pub(super) room: OwnedSemaphorePermit,
    pub(super) fate: Fate,
}

/// Who comes first: the writer that takes a record, or the caller that gives it up. Without it the record of a call
/// that was refused because it could not be recorded would say later that the call was allowed.
///
/// A record that the writer has taken cannot be called back: the system may have its bytes already. When it is in the
/// file after all, the log says behind it that its caller had given it up (`late`). What remains is a gateway that ends
/// between the two: then the record stands alone, as it does when the gateway ends before the call goes on.
///
/// A record that is lost is counted, once: by a caller that has waited for long enough, or by the writer, who also knows of one
/// whose caller has left.
#[derive(Debug, Clone)]
pub(super) struct Fate(Arc<(AtomicU8, AtomicBool)>);

const WAITS: u8 = 0;
const TAKEN: u8 = 1;
const WRITTEN: u8 = 2;
const GIVEN_UP: u8 = 3;

impl Fate {
    pub(super) fn new(unwritten: Unwritten) -> Fate {
        let counts = unwritten == Unwritten::Lost;
        Fate(Arc::new((AtomicU8::new(WAITS), AtomicBool::new(counts))))
    }

    /// It is not written, or not soon enough for its caller.
    pub(super) fn lose(&self, state: &State) {
        if self.0.1.swap(false, Ordering::AcqRel) {
            state.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The writer, before it writes: whether anybody wants it still.
    pub(super) fn take(&self) -> bool {
        self.step(WAITS, TAKEN)
    }

    /// The writer, behind it: whether its caller has waited for so long.
    pub(super) fn end(&self) -> bool {
        self.step(TAKEN, WRITTEN)
    }

    /// The caller: whether it is in the file all the same, and the answer just on its way.
    pub(super) fn give_up(&self) -> bool {
        !self.step(WAITS, GIVEN_UP) && !self.step(TAKEN, GIVEN_UP)
    }

    fn step(&self, from: u8, to: u8) -> bool {
        let order = (Ordering::AcqRel, Ordering::Acquire);
        self.0
            .0
            .compare_exchange(from, to, order.0, order.1)
            .is_ok()
    }
}

/// Owns the file and the chain.
pub(super) struct Writer {
    names: Names,
    _lock: Lock,
    fsync: Fsync,
    file_bytes_max: u64,
    clock: fn() -> SystemTime,
    state: Arc<State>,
    head: Head,
    /// None after a failure: it is opened again before the next write.
    active: Option<Active>,
    /// What the failure has left behind the end of the file.
    uncut: Option<Uncut>,
    /// The first record of this life and the time of the start, until it is written.
    started: Option<(Encoded, String)>,
    /// Since when something is written that is not synced.
    unsynced: Option<Instant>,
    /// Records since the start that were to be written and were not.
    unwritten: u64,
    /// Some of those were given up since the last `resumed` record.
    is_behind: bool,
    /// Some of them found no room in the queue, since then.
    was_full: bool,
    /// Sequences of records that are in the file and that their callers had given up, not yet said in the log.
    late: Vec<u64>,
    /// How long the file is when it is renamed next: after a rename that failed, its length then and the limit once more.
    rotate_at_bytes: u64,
}

impl Writer {
    pub(super) fn open(
        settings: &config::Audit,
        clock: fn() -> SystemTime,
        state: Arc<State>,
    ) -> Result<Writer, OpenError> {
        let at = |path: &PathBuf| std::path::absolute(path);
        let path = at(&settings.path)
            .map_err(|error| OpenError::new(&settings.path, "cannot resolve it", error))?;
        let no_file = || std::io::Error::other("expected the name of a file");
        let names =
            Names::of(&path).ok_or_else(|| OpenError::new(&path, "it names no file", no_file()))?;
        make_dir(&names.dir).map_err(|error| {
            OpenError::new(&path, "cannot make its directory or make it durable", error)
        })?;
        let lock = Lock::take(&names)?;
        let memory = Memory::read(&names).unwrap_or_else(|error| {
            tracing::warn!(path = %names.memory().display(), %error, "what is remembered of where the audit log ended cannot be used, and counts as nothing");
            None
        });
        let found = Active::find(&names)?;
        let (head, lack) = goes_on(found.was, found.head, memory);
        let mut writer = Writer {
            names,
            _lock: lock,
            fsync: settings.fsync,
            file_bytes_max: settings.max_file_bytes,
            clock,
            state,
            head,
            active: Some(found.active),
            uncut: None,
            started: None,
            unsynced: None,
            unwritten: 0,
            is_behind: false,
            was_full: false,
            late: Vec::new(),
            rotate_at_bytes: settings.max_file_bytes,
        };
        let mut more = vec![("version", Value::from(env!("CARGO_PKG_VERSION")))];
        if let Some(torn) = found.torn {
            tracing::warn!(
                path = %path.display(),
                cut_bytes = torn.bytes,
                "the audit log ended in the middle of a record: that part was cut off, and the next record says so"
            );
            let repaired = json!({ "cut_bytes": torn.bytes, "cut_sha256": torn.sha256 });
            more.push(("repaired", repaired));
        }
        if let Some(lack) = &lack {
            more.extend(lack.members());
            let next = writer.head.sequence + 1;
            tracing::warn!(
                path = %path.display(),
                reason = lack.reason,
                had_at_least = lack.had_at_least,
                next,
                "the audit log is not what it was when it was last written: the log says so in its next record"
            );
        }
        // A disk that is full is better known now than at the first call.
        writer.started = Some((writer.event("started", &more), rfc3339(clock())));
        if let Err(error) = writer.commit([]) {
            let goes_on = settings.on_failure == OnAuditFailure::Continue && is_of_the_disk(&error);
            if !goes_on {
                return Err(OpenError::new(&path, "cannot write it", error));
            }
            writer.fail(&error);
        }
        Ok(writer)
    }

    /// Keeps where the chain is, for a start that does not find the file; says whether it could.
    fn remember(&self, is_last: bool) -> bool {
        let kept = Memory::of(&self.head, is_last).write(&self.names);
        if let Err(error) = &kept {
            tracing::warn!(path = %self.names.memory().display(), %error, "where the audit log is cannot be kept beside it: a start that does not find its file would not know what it had");
        }
        kept.is_ok()
    }

    /// What is remembered is in the file that has just begun: then the full ones, whose last record is before it, never look like
    /// all that there was. Durable first, or a power cut would leave a memory of what there never was.
    fn remember_a_new_file(&self) {
        if self
            .active
            .as_ref()
            .is_some_and(|active| active.sync().is_ok())
        {
            self.remember(false);
        }
    }

    /// Goes on in another file, as if it were the same.
    #[cfg(test)]
    pub(super) fn write_into(&mut self, file: std::fs::File) {
        self.active.as_mut().unwrap().write_into(file);
    }

    /// When it must be looked at although nobody asks.
    fn wakes_in(&self) -> Option<Duration> {
        match self.fsync {
            _ if self.active.is_none() => Some(RETRY_INTERVAL),
            Fsync::Interval(interval) => Some(match self.unsynced {
                Some(since) => interval.saturating_sub(since.elapsed()),
                // Records may be written without the thread.
                None => interval,
            }),
            Fsync::Always | Fsync::Never => None,
        }
    }

    /// Writes one record where it is asked for: a write into the system's memory, some microseconds, where the way to
    /// the thread and back costs ten times that. `None` when something would have to be waited for.
    fn write_at_once(&mut self, record: &Encoded) -> Option<bool> {
        let active = self.active.as_ref()?;
        let full = active.bytes + record.members.len() as u64 + LINE_OVERHEAD_BYTES;
        if self.fsync == Fsync::Always || full > self.rotate_at_bytes {
            return None;
        }
        // Its caller's time limit does not hold in here: whoever asks how the log is has to see it.
        let writes = self.state.writes();
        let written = self.commit([record]);
        drop(writes);
        match &written {
            Ok(()) => {
                self.state.records.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => {
                self.unwritten += 1;
                self.fail(error);
            }
        }
        Some(written.is_ok())
    }

    /// Nobody has asked for anything, but something is due.
    fn tick(&mut self) {
        let outcome = match self.active {
            Some(_) if self.unsynced.is_none() => Ok(()),
            Some(_) => self.sync(),
            // The `resumed` record alone.
            None => self.commit([]),
        };
        if let Err(error) = outcome {
            self.fail(&error);
        }
    }

    fn write(&mut self, batch: Batch) {
        let all = batch.entries.len();
        if all == 0 {
            return;
        }
        let mut entries = batch.entries;
        // At the last moment: behind it nobody can give one up any more.
        entries.retain(|waiting| waiting.fate.take());
        let given_up = (all - entries.len()) as u64;
        self.unwritten += given_up;
        self.is_behind |= given_up > 0;
        let written = self.commit(entries.iter().map(|waiting| &waiting.record));
        let count = entries.len() as u64;
        match &written {
            Ok(()) => {
                self.state.records.fetch_add(count, Ordering::Relaxed);
            }
            Err(error) => {
                self.unwritten += count;
                self.fail(error);
            }
        }
        let before = self.head.sequence.saturating_sub(count);
        for (sequence, waiting) in (before + 1..).zip(entries) {
            if written.is_ok() && !waiting.fate.end() {
                self.late.push(sequence);
            }
            if written.is_err() {
                waiting.fate.lose(&self.state);
            }
            drop(waiting.room);
            if let Some(answer) = waiting.answer {
                // Whoever asked may have gone; the record stays.
                let _ = answer.send(written.is_ok());
            }
        }
        // At once: nobody knows when the next record comes.
        self.count_unqueued();
        let is_full = self.was_full && self.active.is_some();
        if (is_full || !self.late.is_empty())
            && let Err(error) = self.commit([])
        {
            self.fail(&error);
        }
        if let (Fsync::Interval(interval), Some(since)) = (self.fsync, self.unsynced)
            && since.elapsed() >= interval
        {
            self.tick();
        }
    }

    /// Writes records as one piece: all of them are in the file, or none is and the chain is where it was.
    ///
    /// A panic is a write that failed, and counted: else the log's thread would have ended, and no record would be written any more.
    /// Of one behind the last step, where only the memory of where the chain is was left to do, the records are there all the same.
    fn commit<'a>(
        &mut self,
        records: impl IntoIterator<Item = &'a Encoded>,
    ) -> std::io::Result<()> {
        let appended = catch_unwind(AssertUnwindSafe(|| self.append(records)));
        appended.unwrap_or_else(|_| {
            // It is opened again, and looked at, before the next.
            self.active = None;
            let said =
                "the writer panicked, which is a mistake in skillgate; the place has been reported";
            Err(std::io::Error::other(said))
        })
    }

    fn append<'a>(
        &mut self,
        records: impl IntoIterator<Item = &'a Encoded>,
    ) -> std::io::Result<()> {
        self.count_unqueued();
        let (mut head, mut out) = (self.head.clone(), Vec::new());
        let now = rfc3339((self.clock)());
        let gone = self.active.as_ref().and_then(|it| it.is_gone(&self.names));
        if let Some(why) = gone {
            tracing::warn!(path = %self.names.active.display(), why, "the audit log is not what was written: its chain goes on in what is there now");
            self.active = None;
        }
        let is_new = self.active.is_none();
        let mut active = match self.active.take() {
            Some(active) => active,
            None => Active::reopen(&self.names, self.uncut)?,
        };
        self.uncut = None;
        if let Some((started, at)) = &self.started {
            seal(&mut head, started, at, &mut out);
        }
        if is_new || self.is_behind || self.was_full || !self.late.is_empty() {
            seal(&mut head, &self.resumed(gone), &now, &mut out);
        }
        for record in records {
            seal(&mut head, record, &now, &mut out);
        }
        let mut is_first = false;
        if active.bytes > 0 && active.bytes + out.len() as u64 > self.rotate_at_bytes {
            // By itself: the system says once that it has lost something, and that is no name that cannot be changed.
            active.sync()?;
            match active.rotate(&self.names) {
                Ok(()) => {
                    self.state.rotations.fetch_add(1, Ordering::Relaxed);
                    self.rotate_at_bytes = self.file_bytes_max;
                    is_first = true;
                }
                // The name is ours still, and the file goes on being written: nothing is lost, it only grows.
                Err(error) if active.is_gone(&self.names).is_none() => {
                    tracing::error!(path = %self.names.active.display(), %error, "the audit log is full and cannot be renamed: it goes on growing");
                    self.rotate_at_bytes = active.bytes + self.file_bytes_max;
                }
                Err(error) => return Err(error),
            }
        }
        // Durable, or a power cut would leave a memory of what there never was.
        let is_start = self.started.is_some();
        if let Err(error) = active.append(&out, is_start || self.fsync == Fsync::Always) {
            self.uncut = active.take_back();
            return Err(error);
        }
        self.unsynced = self.unsynced.or_else(|| Some(Instant::now()));
        self.active = Some(active);
        self.head = head;
        (self.is_behind, self.was_full) = (false, false);
        (self.started, self.late) = (None, Vec::new());
        if is_start {
            // Now and not before: until this record is there, what was remembered is all that shows what the log lacks.
            if !self.remember(false) {
                Memory::forget(&self.names);
            }
        } else if is_first {
            self.remember_a_new_file();
        }
        self.state.progress();
        if self.state.failing.swap(false, Ordering::AcqRel) {
            tracing::warn!(path = %self.names.active.display(), "the audit log is written again");
        }
        Ok(())
    }

    /// What found no room came to nobody who writes. It is counted here from now on, whether or not the next write succeeds.
    fn count_unqueued(&mut self) {
        let unqueued = self.state.unqueued.swap(0, Ordering::Relaxed);
        self.unwritten += unqueued;
        self.was_full |= unqueued > 0;
    }

    /// The first record after a failure: why, what the log lacks since the start, and what it has of refused calls.
    fn resumed(&self, gone: Option<&str>) -> Encoded {
        let reason = if let Some(why) = gone {
            why.to_owned()
        } else if self.state.failing.load(Ordering::Acquire) {
            self.state.reason()
        } else if self.was_full {
            "more waited to be written than there is room for".to_owned()
        } else if self.is_behind || !self.late.is_empty() {
            format!("writing took longer than {} s", APPEND_TIMEOUT.as_secs())
        } else {
            "a write was broken off".to_owned()
        };
        let mut more = vec![("reason", Value::from(reason))];
        if !self.late.is_empty() {
            more.push(("late", self.late.as_slice().into()));
        }
        self.event("resumed", &more)
    }

    fn event(&self, event: &str, more: &[(&str, Value)]) -> Encoded {
        let mut body = Map::new();
        body.insert("event".into(), event.into());
        body.insert("unwritten".into(), self.unwritten.into());
        for (name, value) in more {
            body.insert((*name).to_owned(), value.clone());
        }
        Record::new(Kind::Log, body).encode()
    }

    fn sync(&mut self) -> std::io::Result<()> {
        self.unsynced = None;
        match &self.active {
            Some(active) => active.sync(),
            None => Ok(()),
        }
    }

    fn fail(&mut self, error: &std::io::Error) {
        self.active = None;
        self.unsynced = None;
        let was_failing = self.state.failing.load(Ordering::Acquire);
        self.state.fail(error.to_string());
        if !was_failing {
            tracing::error!(path = %self.names.active.display(), %error, "the audit log cannot be written");
        }
    }

    fn end(&mut self) {
        self.count_unqueued();
        let record = self.event("stopped", &[]);
        let ended = self.commit([&record]).and_then(|()| self.sync());
        match ended {
            Ok(()) => {
                self.remember(true);
            }
            Err(error) => self.fail(&error),
        }
    }
}

/// The writer, for the thread and for whoever has a record. `None` after the end.
#[derive(Clone)]
pub(super) struct Desk(Arc<Mutex<Option<Writer>>>);

impl Desk {
    pub(super) fn new(writer: Writer) -> Self {
        Desk(Arc::new(Mutex::new(Some(writer))))
    }

    pub(super) fn wait(&self) -> MutexGuard<'_, Option<Writer>> {
        // Of what can panic, a write leaves no open file: it is opened again, and looked at, before the next.
        self.0.clear_poison();
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is written; `None` when the thread has to do it. Waits for one that is being written, not for more.
    pub(super) fn write_at_once(&self, record: &Encoded) -> Option<bool> {
        let mut until = None;
        loop {
            match self.0.try_lock() {
                Ok(mut writer) => return writer.as_mut()?.write_at_once(record),
                Err(TryLockError::Poisoned(_)) => return None,
                Err(TryLockError::WouldBlock) => {}
            }
            if Instant::now() >= *until.get_or_insert_with(|| Instant::now() + TURN_WAIT) {
                return None;
            }
            std::hint::spin_loop();
        }
    }

    /// The thread: until the log is closed or nobody is left who could write to it.
    pub(super) fn run(self, entries: Receiver<Entry>) {
        let mut closed = None;
        while closed.is_none() {
            let wakes_in = self.wait().as_ref().and_then(Writer::wakes_in);
            let next = match wakes_in {
                None => entries.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(wait) => entries.recv_timeout(wait),
            };
            let mut batch = Batch::default();
            match next {
                Ok(entry) => closed = batch.take(entry),
                Err(RecvTimeoutError::Timeout) => {
                    if let Some(writer) = self.wait().as_mut() {
                        writer.tick();
                    }
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
            while closed.is_none()
                && batch.bytes < BATCH_BYTES_MAX
                && let Ok(entry) = entries.try_recv()
            {
                closed = batch.take(entry);
            }
            if let Some(writer) = self.wait().as_mut() {
                writer.write(batch);
            }
        }
        if let Some(mut writer) = self.wait().take() {
            writer.end();
        }
        // Before anybody is told: what is sent from now on fails, and the next gateway may have the file.
        drop(entries);
        if let Some(done) = closed {
            // Whoever asked may have given up waiting.
            let _ = done.send(());
        }
    }
}

fn seal(head: &mut Head, record: &Encoded, now: &str, out: &mut Vec<u8>) {
    let mut timestamp = Vec::new();
    if !record.has_timestamp {
        member(&mut timestamp, "timestamp", &now);
    }
    head.seal(record.kind.name(), &[&timestamp, &record.members], out);
}

#[derive(Default)]
struct Batch {
    entries: Vec<Waiting>,
    bytes: usize,
}

impl Batch {
    /// Puts a record in; gives back who waits for the end.
    fn take(&mut self, entry: Entry) -> Option<oneshot::Sender<()>> {
        match entry {
            Entry::Record(waiting) => {
                self.bytes += waiting.record.members.len();
                self.entries.push(waiting);
                None
            }
            Entry::Wake => None,
            Entry::Close(done) => Some(done),
        }
    }
}

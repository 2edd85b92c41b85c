//! The audit log: one JSON line per decision, per run, per connection, chained by hashes so that a change shows.
//!
//! # The format
//!
//! A line is one JSON object in UTF-8, at most [`LINE_BYTES_MAX`] bytes with its line end (one `\n`), made of exactly
//! these bytes, no space between them:
//!
//! ```text
//! {"sequence":N,"prev":"P","kind":"K" ...the record's members... ,"hash":"H"}
//! ```
//!
//! - `N`: decimal, 1 for the first record of a log, then one more each.
//! - `P`: the `H` of the record before; for `N` = 1 it is 64 zeros, and for one that follows an end that nobody knows.
//! - `H`: lower case hex of the SHA-256 of the line's bytes from the `{` up to, not with, the `,"hash":"`. Those are the
//!   line's bytes without its line end and without the 75 before that.
//! - `K`: `decision`, `run`, `connection`, or `log` for what the log says of itself (`event`: `started`, `resumed`,
//!   `stopped`). `timestamp` is a member of every record (RFC 3339, UTC, nanoseconds).
//!
//! Since each `H` covers the `P` before it, changing, removing, adding or swapping lines anywhere but at the very end
//! breaks the chain at that place. In Python, for one file:
//!
//! ```text
//! prev = None
//! for line in open(path, "rb").read().splitlines():
//!     body, h = line[:-75], line[-66:-2].decode()
//!     assert hashlib.sha256(body).hexdigest() == h and prev in (None, json.loads(line)["prev"])
//!     prev = h
//! ```
//!
//! A log is a set of files: the one that is written (`audit.jsonl`) and those that reached `audit.max_file_bytes`, which
//! are renamed after the first sequence that they hold (`audit.00000000000000000001.jsonl`). Names sort in the order of
//! the chain, and the first `prev` of a file is the last `hash` of the one before: there is no seam.
//!
//! What the chain cannot show: that lines were cut off at its end, or that somebody who can write the file has made all
//! of it anew from some line on. Against both, lines or now and then the last hash have to leave the host.
//!
//! Where the chain ended is also beside it (`audit.jsonl.head`), for a start that does not find the file. It goes on from there
//! when the gateway was stopped; when it was killed, with a number that no record can have had. Where the file is there, it alone
//! counts. `reason` in the `started` record says what was found, and `had_at_least` which record the log had that is not before.
//!
//! # Writing
//!
//! Whoever has a record writes it, when it gets its turn within microseconds and nothing else has to be waited for; else a
//! thread of its own writes, as many records at once as are waiting. [`Audit::append`] comes back when the record is in
//! the file (and, with `fsync = "always"`, on the disk). What a crash cut in the middle is cut off at the next start, and
//! the `started` record says how many bytes these were and their SHA-256.
//!
//! While the log cannot be written, `on_failure = "deny"` makes [`Audit::append`] fail: nothing runs and nothing is made
//! that is not recorded. [`Audit::note`], for what only reads, never fails. What is lost is counted, and the `resumed`
//! record, the first one after it works again, says how much (`unwritten`).
//!
//! A disk that hangs is waited for so long and no longer, but by who was writing when it began to: a write that the system
//! has cannot be left. The decision whose call was refused then is not written when it works again; if it was being written
//! just then, the `resumed` record behind it names its sequence in `late`: that call was refused, whatever its decision says.

mod chain;
mod file;
mod memory;
mod record;
mod run;
mod timestamp;
mod verify;
mod writer;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::config;
pub use chain::LINE_BYTES_MAX;
pub use file::OpenError;
use record::Encoded;
pub use record::{Kind, Record};
pub(crate) use run::{Outcome, RunEnd, What};
pub use verify::{Break, LogFile, Report, check, find, verify, verify_in_order};
use writer::{Desk, Entry, Fate, Waiting, Writer};

/// Bytes of records that wait for the writer; who comes later waits for room.
const QUEUE_BYTES_MAX: u32 = 16 << 20;
/// A record counts for at least so much of it: what surrounds it costs memory too.
const QUEUE_RECORD_BYTES_MIN: u32 = 256;
/// How long a caller waits for its record to be written before it counts as failed: a disk that hangs must not hang
/// every call.
const APPEND_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a record waits or is being written, with nothing written meanwhile, before the log counts as failing. Less than a
/// caller waits, so that nobody is refused by a gateway that says it is ready.
const HUNG_AFTER: Duration = Duration::from_secs(2);

/// The record could not be written, and `audit.on_failure` says that then nothing is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the gateway cannot write its audit log, so it does nothing that has to be recorded")]
pub struct Unavailable;

/// How the log is; for readiness and metrics.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Health {
    /// Why the last write failed, or that one takes too long; none while it works.
    pub failing: Option<String>,
    /// The gateway refuses what has to be recorded, because of that.
    pub denies: bool,
    /// Records in the file since the start.
    pub records: u64,
    /// Records that could not be written while what they are about went on.
    pub lost: u64,
    /// Calls that were refused because they could not be recorded.
    pub refused: u64,
    /// Batches that could not be written or synced.
    pub failures: u64,
    /// Files that were full and renamed.
    pub rotations: u64,
}

/// The log. Cheap to clone.
#[derive(Clone)]
pub struct Audit(Option<Arc<Inner>>);

struct Inner {
    desk: Desk,
    queue: mpsc::Sender<Entry>,
    room: Arc<Semaphore>,
    state: Arc<State>,
    on_failure: config::OnAuditFailure,
}

/// What the writer and the callers both know.
#[derive(Debug, Default)]
struct State {
    failing: AtomicBool,
    reason: Mutex<String>,
    /// When something was written last, or began to wait where nothing was waiting.
    progress: Mutex<Option<Instant>>,
    /// Since when somebody writes its own record, who waits in no queue; none while nobody does.
    writing: Mutex<Option<Instant>>,
    records: AtomicU64,
    lost: AtomicU64,
    /// Records that found no room in the queue, until the writer counts them among those that were not written.
    unqueued: AtomicU64,
    refused: AtomicU64,
    failures: AtomicU64,
    rotations: AtomicU64,
}

impl State {
    fn reason(&self) -> String {
        let reason = self.reason.lock();
        reason.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn fail(&self, reason: String) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        *self.reason.lock().unwrap_or_else(PoisonError::into_inner) = reason;
        self.failing.store(true, Ordering::Release);
    }

    fn progress(&self) {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        *progress = Some(Instant::now());
    }

    /// Somebody writes from now on, until what is given back is dropped.
    fn writes(self: &Arc<Self>) -> Writes {
        let mut writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        *writing = Some(Instant::now());
        Writes(self.clone())
    }
}

/// It is being written; a panic ends that too.
struct Writes(Arc<State>);

impl Drop for Writes {
    fn drop(&mut self) {
        let writing = self.0.writing.lock();
        *writing.unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl fmt::Debug for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Audit")
            .field("on", &self.0.is_some())
            .finish_non_exhaustive()
    }
}

impl Audit {
    /// Records nothing: for the commands that are no gateway, and for tests.
    pub fn off() -> Self {
        Audit(None)
    }

    /// Whether it records anything: making a record costs time.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Opens the log where the last gateway left it and starts the writer. Blocking: reads the end of the file.
    ///
    /// # Errors
    /// [`OpenError`], which names the file and says what to do.
    pub fn open(settings: &config::Audit) -> Result<Self, OpenError> {
        Audit::open_at(settings, SystemTime::now)
    }

    fn open_at(settings: &config::Audit, clock: fn() -> SystemTime) -> Result<Self, OpenError> {
        let state = Arc::new(State::default());
        let desk = Desk::new(Writer::open(settings, clock, state.clone())?);
        let (queue, entries) = mpsc::channel();
        let thread = std::thread::Builder::new().name("audit".into());
        let own = desk.clone();
        thread
            .spawn(move || own.run(entries))
            .map_err(|error| OpenError::new(&settings.path, "no thread for it", error))?;
        Ok(Audit(Some(Arc::new(Inner {
            desk,
            queue,
            room: Arc::new(Semaphore::new(QUEUE_BYTES_MAX as usize)),
            state,
            on_failure: settings.on_failure,
        }))))
    }

    /// Records something that must not happen without a record, and comes back when it is in the file.
    ///
    /// # Errors
    /// [`Unavailable`] when it is not, and `audit.on_failure = "deny"`.
    pub async fn append(&self, record: Record) -> Result<(), Unavailable> {
        let Some(inner) = &self.0 else {
            return Ok(());
        };
        // What was decided is void when the call is refused; a run that has ended has ended.
        let unwritten = match inner.on_failure {
            config::OnAuditFailure::Deny if record.kind() == Kind::Decision => Unwritten::Void,
            config::OnAuditFailure::Deny => Unwritten::Late,
            config::OnAuditFailure::Continue => Unwritten::Lost,
        };
        if inner.write(record, unwritten).await {
            return Ok(());
        }
        match inner.on_failure {
            config::OnAuditFailure::Deny => {
                inner.state.refused.fetch_add(1, Ordering::Relaxed);
                Err(Unavailable)
            }
            config::OnAuditFailure::Continue => Ok(()),
        }
    }

    /// Records something that goes on whether it can be recorded or not: what only reads, or a refusal. Comes back when
    /// it is in the file or counted as lost; either happens also when whoever waits for it goes away.
    pub async fn note(&self, record: Record) {
        if let Some(inner) = &self.0 {
            inner.write(record, Unwritten::Lost).await;
        }
    }

    /// The same for somebody who cannot wait, in a `drop`: what does not fit into the queue is lost, and counted.
    pub fn post(&self, record: Record) {
        let Some(inner) = &self.0 else {
            return;
        };
        let record = record.encode();
        let fate = Fate::new(Unwritten::Lost);
        inner.begins_to_wait();
        let room = inner.room.clone();
        let sent = room
            .try_acquire_many_owned(queued_bytes(&record))
            .is_ok_and(|room| inner.send(record, room, fate.clone(), None));
        if !sent {
            inner.state.unqueued.fetch_add(1, Ordering::Relaxed);
            fate.lose(&inner.state);
        }
    }

    /// Whether something may begin whose end will be posted: half of the queue is for the ends of what has begun. Always, where
    /// the operator wants things to go on without records.
    pub fn can_post(&self) -> bool {
        self.0.as_ref().is_none_or(|inner| {
            let has_room = inner.room.available_permits() >= QUEUE_BYTES_MAX as usize / 2;
            inner.on_failure == config::OnAuditFailure::Continue
                || has_room
                    && !inner.state.failing.load(Ordering::Acquire)
                    && !inner.hangs(Instant::now())
        })
    }

    /// How it is.
    pub fn health(&self) -> Health {
        self.health_at(Instant::now())
    }

    fn health_at(&self, now: Instant) -> Health {
        let Some(inner) = &self.0 else {
            return Health::default();
        };
        let state = &inner.state;
        let failing = state.failing.load(Ordering::Acquire);
        let hangs = || format!("writing takes longer than {} s", HUNG_AFTER.as_secs());
        let failing = match failing {
            true => Some(state.reason()),
            false => inner.hangs(now).then(hangs),
        };
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Health {
            denies: failing.is_some() && inner.on_failure == config::OnAuditFailure::Deny,
            failing,
            records: count(&state.records),
            lost: count(&state.lost),
            refused: count(&state.refused),
            failures: count(&state.failures),
            rotations: count(&state.rotations),
        }
    }

    /// Writes what is waiting and a last record, syncs, and gives the file free, in [`APPEND_TIMEOUT`] at most: what a disk that
    /// hangs has not taken by then is in the log as missing. What is appended afterwards fails.
    pub async fn close(&self) {
        if let Some(inner) = &self.0 {
            let (done, closed) = oneshot::channel();
            if inner.queue.send(Entry::Close(done)).is_ok() {
                // A channel that ends without a word: the writer is gone already.
                if tokio::time::timeout(APPEND_TIMEOUT, closed).await.is_err() {
                    tracing::error!(
                        seconds = APPEND_TIMEOUT.as_secs(),
                        "the audit log could not be closed in time: its last records may be missing"
                    );
                }
            }
        }
    }
}

/// What becomes of a record that is not written in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unwritten {
    /// What it says is not true then, so it must not be there later.
    Void,
    /// It may be there later.
    Late,
    /// The same, and it counts as lost.
    Lost,
}

/// A record on its way into the queue. Counted when it does not get there, also where who waits for its room goes away: a
/// client that hangs up.
struct Entering<'a> {
    state: &'a State,
    fate: Fate,
    is_queued: bool,
}

impl Drop for Entering<'_> {
    fn drop(&mut self) {
        if !self.is_queued {
            self.state.unqueued.fetch_add(1, Ordering::Relaxed);
            self.fate.lose(self.state);
        }
    }
}

impl Inner {
    /// Whether it is in the file.
    async fn write(&self, record: Record, unwritten: Unwritten) -> bool {
        let record = record.encode();
        if let Some(written) = self.desk.write_at_once(&record) {
            if !written {
                // It may be waiting for the next entry, however long: now it has to try again. An error means that it is gone.
                let _ = self.queue.send(Entry::Wake);
                Fate::new(unwritten).lose(&self.state);
            }
            return written;
        }
        let fate = Fate::new(unwritten);
        self.begins_to_wait();
        let mut entering = Entering {
            state: &self.state,
            fate: fate.clone(),
            is_queued: false,
        };
        let written = async {
            let bytes = queued_bytes(&record);
            let room = self.room.clone().acquire_many_owned(bytes).await.ok()?;
            let (answer, written) = oneshot::channel();
            entering.is_queued = self.send(record, room, fate.clone(), Some(answer));
            entering.is_queued.then_some(written)?.await.ok()
        };
        let is_written = match tokio::time::timeout(APPEND_TIMEOUT, written).await {
            Ok(written) => written == Some(true),
            Err(_) => unwritten == Unwritten::Void && fate.give_up(),
        };
        if !is_written && entering.is_queued {
            fate.lose(&self.state);
        }
        is_written
    }

    fn is_idle(&self) -> bool {
        self.room.available_permits() == QUEUE_BYTES_MAX as usize
    }

    /// Before a record takes its room in the queue: nobody has waited since before this, where nobody was waiting.
    fn begins_to_wait(&self) {
        if self.is_idle() {
            self.state.progress();
        }
    }

    /// Whether records wait for a write that does not end, or one has begun that does not. Looked at, and not set by who waited: a
    /// write that ends just then would have to take it back.
    fn hangs(&self, now: Instant) -> bool {
        let is_long = |since: &Mutex<Option<Instant>>| {
            let since = *since.lock().unwrap_or_else(PoisonError::into_inner);
            since.is_some_and(|since| now.saturating_duration_since(since) > HUNG_AFTER)
        };
        // First: who waits by now has said since when before.
        let waits = !self.is_idle();
        is_long(&self.state.writing) || waits && is_long(&self.state.progress)
    }

    fn send(
        &self,
        record: Encoded,
        room: OwnedSemaphorePermit,
        fate: Fate,
        answer: Option<oneshot::Sender<bool>>,
    ) -> bool {
        let entry = Entry::Record(Waiting {
            record,
            answer,
            room,
            fate,
        });
        let sent = self.queue.send(entry);
        if sent.is_err() {
            self.state.fail("it is closed".into());
        }
        sent.is_ok()
    }
}

/// What a record takes of the queue.
fn queued_bytes(record: &Encoded) -> u32 {
    let bytes = u32::try_from(record.members.len()).unwrap_or(QUEUE_BYTES_MAX);
    bytes.clamp(QUEUE_RECORD_BYTES_MIN, QUEUE_BYTES_MAX)
}

#[cfg(test)]
mod tests;

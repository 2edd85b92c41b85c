//! Blobs that are being written or read: handles that end themselves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use skillgate_plugin_abi as abi;
use skillgate_plugin_sdk::model::{BlobStat, Error, Result};

use crate::ask::{BlobCommit, BlobRead, BlobWrite, Handle};
use crate::call::{Call, Home, Place, Until, User};
use crate::instance::StorageTable;

type Store = Place<StorageTable>;
type StoreCall<A> = Call<StorageTable, A>;

/// A reader's or writer's handle. The plugin takes calls on one handle one after the other, so every op in flight keeps
/// it: it is closed when the caller and the last op have let go.
struct Held {
    store: Store,
    /// Whose blob it is, and so its calls.
    tenant: Arc<str>,
    handle: Handle,
    /// It is still there to be closed.
    open: Arc<AtomicBool>,
    which: Which,
}

#[derive(Clone, Copy)]
pub(crate) enum Which {
    Reader,
    Writer,
}

impl Which {
    /// Lets go of a handle. May wait.
    pub(crate) fn close(self, table: &StorageTable, handle: u64) {
        let close = match self {
            Which::Reader => table.0.blob_close,
            Which::Writer => table.0.blob_abort,
        };
        if let Some(f) = close {
            // SAFETY: the instance lives: the caller keeps it.
            unsafe { f(table.0.self_, handle) };
        }
    }
}

impl Held {
    fn new(store: &Store, tenant: Arc<str>, handle: u64, life: u64, which: Which) -> Arc<Self> {
        Arc::new(Held {
            store: store.clone(),
            tenant,
            handle: Handle {
                number: handle,
                life,
            },
            open: Arc::new(AtomicBool::new(true)),
            which,
        })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.open.load(Ordering::Acquire) {
            return;
        }
        let (which, handle) = (self.which, self.handle);
        match &self.store.home {
            Home::Here(instance) => {
                instance.background(&self.tenant, move |table| which.close(table, handle.number));
            }
            Home::There(remote) => remote.close(&self.tenant, which, handle),
        }
    }
}

/// Set while a call is in flight. A future that was dropped leaves it set: what that call did is not known, so nothing
/// may follow it.
#[derive(Default)]
struct Busy(bool);

impl Busy {
    fn start(&mut self, what: &str) -> Result<()> {
        if self.0 {
            return Err(Error::new(
                abi::E_ABORTED,
                format!("{what}: an earlier call on this blob was given up before it ended"),
            ));
        }
        self.0 = true;
        Ok(())
    }
}

/// A blob that is being written. Dropped without [`BlobWriter::commit`], it is thrown away.
pub struct BlobWriter {
    held: Arc<Held>,
    busy: Busy,
    until: Until,
    _user: User,
}

impl std::fmt::Debug for BlobWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlobWriter")
            .field("handle", &self.held.handle.number)
            .finish_non_exhaustive()
    }
}

impl BlobWriter {
    pub(crate) fn new(store: &Store, tenant: Arc<str>, handle: u64, life: u64) -> Self {
        BlobWriter {
            held: Held::new(store, tenant, handle, life, Which::Writer),
            busy: Busy::default(),
            until: Until::default(),
            _user: store.user(),
        }
    }

    pub(crate) fn until(mut self, until: &Until) -> Self {
        self.until = until.clone();
        self
    }

    fn start_write(&mut self, data: Bytes) -> Result<StoreCall<()>> {
        self.busy.start("blob_write")?;
        let held = Arc::clone(&self.held);
        let write = BlobWrite {
            tenant: Arc::clone(&held.tenant),
            writer: held.handle,
            data,
        };
        let call = self
            .held
            .store
            .call_with(write, None, move |(), _| drop(held));
        // One that was refused was never in flight.
        self.busy.0 = call.is_ok();
        call
    }

    /// Appends. A future that is dropped before it is ready spoils the writer: later calls say `E_ABORTED`.
    pub async fn write(&mut self, data: impl Into<Bytes>) -> Result<()> {
        let written = self.start_write(data.into())?.wait().await;
        self.busy.0 = false;
        written
    }

    /// The same for a thread that may wait.
    pub fn write_blocking(&mut self, data: impl Into<Bytes>) -> Result<()> {
        let written = self.start_write(data.into())?;
        let written = written.wait_blocking(&self.until);
        // It may go on there.
        self.busy.0 = written.is_err() && self.until.is_over();
        written
    }

    fn start_commit(mut self) -> Result<StoreCall<BlobStat>> {
        self.busy.start("blob_commit")?;
        let held = self.held;
        let commit = BlobCommit {
            tenant: Arc::clone(&held.tenant),
            writer: held.handle,
            open: Arc::clone(&held.open),
        };
        let store = held.store.clone();
        store.call_with(commit, None, move |stat, _| {
            drop(held);
            stat
        })
    }

    /// Makes the blob visible, durably before it returns. The writer is gone, also when this fails.
    pub async fn commit(self) -> Result<BlobStat> {
        self.start_commit()?.wait().await
    }

    /// The same for a thread that may wait, and waits for the outcome in any case.
    pub fn commit_blocking(self) -> Result<BlobStat> {
        self.start_commit()?.wait_blocking(&Until::default())
    }
}

/// A range of a blob that is being read.
pub struct BlobReader {
    held: Arc<Held>,
    stat: BlobStat,
    /// Bytes that are still to come.
    left: u64,
    busy: Busy,
    until: Until,
    _user: User,
}

impl std::fmt::Debug for BlobReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlobReader")
            .field("handle", &self.held.handle.number)
            .field("stat", &self.stat)
            .finish_non_exhaustive()
    }
}

/// Most bytes of one read.
const READ_BYTES: usize = 16 << 20;

impl BlobReader {
    /// Of `[offset, offset + len)`; `len` 0: to the end.
    pub(crate) fn new(
        store: &Store,
        tenant: Arc<str>,
        handle: u64,
        life: u64,
        stat: BlobStat,
        offset: u64,
        len: u64,
    ) -> Self {
        let there = stat.size_bytes.saturating_sub(offset);
        BlobReader {
            held: Held::new(store, tenant, handle, life, Which::Reader),
            left: if len == 0 { there } else { len.min(there) },
            stat,
            busy: Busy::default(),
            until: Until::default(),
            _user: store.user(),
        }
    }

    pub(crate) fn until(mut self, until: &Until) -> Self {
        self.until = until.clone();
        self
    }

    /// What is known of the blob.
    #[must_use]
    pub fn stat(&self) -> &BlobStat {
        &self.stat
    }

    fn start_read(&mut self, max: usize) -> Result<StoreCall<(Vec<u8>, bool)>> {
        self.busy.start("blob_read")?;
        let held = Arc::clone(&self.held);
        let read = BlobRead::new(
            Arc::clone(&held.tenant),
            held.handle,
            max.clamp(1, READ_BYTES),
        );
        let call = self.held.store.call_with(read, None, move |read, _| {
            drop(held);
            read
        });
        // As above.
        self.busy.0 = call.is_ok();
        call
    }

    /// At most `max` bytes (no more than 16 MiB at once), and whether the end is reached. What it gives was checked
    /// against the digest, else `E_CORRUPT`; so is a store's answer that cannot be a part of this range. A future that is
    /// dropped before it is ready spoils the reader: later calls say `E_ABORTED`.
    pub async fn read(&mut self, max: usize) -> Result<(Vec<u8>, bool)> {
        let read = self.start_read(max)?.wait().await;
        self.taken(read)
    }

    /// The same for a thread that may wait.
    pub fn read_blocking(&mut self, max: usize) -> Result<(Vec<u8>, bool)> {
        let read = self.start_read(max)?.wait_blocking(&self.until);
        let is_given_up = read.is_err() && self.until.is_over();
        let taken = self.taken(read);
        self.busy.0 = is_given_up;
        taken
    }

    /// Whoever reads to the end holds as much as was asked for, and comes to an end, whatever the store says.
    fn taken(&mut self, read: Result<(Vec<u8>, bool)>) -> Result<(Vec<u8>, bool)> {
        self.busy.0 = false;
        let (piece, end) = read?;
        let left = self.left.checked_sub(piece.len() as u64);
        let wrong = match left {
            None => "gives more of a blob than was asked for",
            Some(1..) if end => "says that a blob has ended before its size",
            Some(_) if piece.is_empty() && !end => "gives nothing of a blob, and not its end",
            Some(left) => {
                self.left = left;
                return Ok((piece, end));
            }
        };
        let why = format!("the plugin {} {wrong}", self.held.store.name());
        Err(Error::new(abi::E_CORRUPT, why))
    }
}

//! Blobs that are being written or read: handles that end themselves.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use skillgate_plugin_abi as abi;
use skillgate_plugin_sdk::model::{BlobStat, Error, Result};
use skillgate_plugin_sdk::wire::Malformed;

use crate::answer;
use crate::instance::{Call, Instance, StorageTable};
use crate::storage::invoke;

type Store = Arc<Instance<StorageTable>>;
type StoreCall<A> = Call<StorageTable, A>;

/// A reader's or writer's handle. The plugin takes calls on one handle one after the other, so every op in flight keeps
/// it: it is closed when the caller and the last op have let go.
struct Held {
    store: Store,
    handle: u64,
    open: AtomicBool,
    close: fn(&StorageTable, u64),
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.open.load(Ordering::Acquire) {
            let (close, handle) = (self.close, self.handle);
            self.store.background(move |table| close(table, handle));
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
}

impl std::fmt::Debug for BlobWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlobWriter")
            .field("handle", &self.held.handle)
            .finish_non_exhaustive()
    }
}

impl BlobWriter {
    pub(crate) fn new(store: &Store, handle: u64) -> Self {
        let close = |t: &StorageTable, handle: u64| {
            if let Some(f) = t.0.blob_abort {
                // SAFETY: the instance lives: the caller of `close` keeps it.
                unsafe { f(t.0.self_, handle) };
            }
        };
        let held = Held {
            store: Arc::clone(store),
            handle,
            open: AtomicBool::new(true),
            close,
        };
        BlobWriter {
            held: Arc::new(held),
            busy: Busy::default(),
        }
    }

    fn start_write(&mut self, data: Bytes) -> Result<StoreCall<()>> {
        self.busy.start("blob_write")?;
        let (held, handle) = (Arc::clone(&self.held), self.held.handle);
        // The op owns the data until the plugin is done with it, whoever waits.
        let keep = data.clone();
        let decode = move |_| {
            drop((keep, held));
            Ok(())
        };
        self.held
            .store
            .call("blob_write", None, decode, move |t, op| {
                invoke!(t.blob_write(op, handle, abi::Bytes::of(&data)))
            })
    }

    /// Appends. A future that is dropped before it is ready spoils the writer: later calls say `E_ABORTED`.
    pub async fn write(&mut self, data: impl Into<Bytes>) -> Result<()> {
        let written = self.start_write(data.into())?.wait().await;
        self.busy.0 = false;
        written
    }

    /// The same for a thread that may wait.
    pub fn write_blocking(&mut self, data: impl Into<Bytes>) -> Result<()> {
        let written = self.start_write(data.into())?.wait_blocking();
        self.busy.0 = false;
        written
    }

    fn start_commit(mut self) -> Result<StoreCall<BlobStat>> {
        self.busy.start("blob_commit")?;
        let held = self.held;
        // The writer is gone with this call, however it ends: unless it never reaches the plugin.
        let (keep, handle) = (Arc::clone(&held), held.handle);
        let decode = move |p: *const c_void| {
            let _keep = keep;
            // SAFETY: the contract: blob_commit answers with a skg_blob_stat.
            unsafe { answer::blob_stat(p.cast()) }
        };
        let store = Arc::clone(&held.store);
        store.call("blob_commit", None, decode, move |t, op| {
            held.open.store(false, Ordering::Release);
            invoke!(t.blob_commit(op, handle))
        })
    }

    /// Makes the blob visible, durably before it returns. The writer is gone, also when this fails.
    pub async fn commit(self) -> Result<BlobStat> {
        self.start_commit()?.wait().await
    }

    /// The same for a thread that may wait.
    pub fn commit_blocking(self) -> Result<BlobStat> {
        self.start_commit()?.wait_blocking()
    }
}

/// A range of a blob that is being read.
pub struct BlobReader {
    held: Arc<Held>,
    stat: BlobStat,
    busy: Busy,
}

impl std::fmt::Debug for BlobReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlobReader")
            .field("handle", &self.held.handle)
            .field("stat", &self.stat)
            .finish_non_exhaustive()
    }
}

/// Most bytes of one read.
const READ_BYTES: usize = 16 << 20;

/// Memory that a plugin writes into. Reached by its pointer alone until the op has completed, so that moving the owner
/// does not touch it.
struct Target {
    start: *mut u8,
    len: usize,
}

// SAFETY: it owns its memory; the pointer is only used by one side at a time.
unsafe impl Send for Target {}

impl Target {
    fn new(len: usize) -> Self {
        Target {
            start: Box::into_raw(vec![0_u8; len].into_boxed_slice()).cast(),
            len,
        }
    }
    fn into_vec(self) -> Vec<u8> {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: the slice that `new` gave up, once: Drop does not run.
        unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(this.start, this.len)) }
            .into_vec()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // SAFETY: the slice that `new` gave up; into_vec has not taken it.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.start, self.len)) });
    }
}

impl BlobReader {
    pub(crate) fn new(store: &Store, handle: u64, stat: BlobStat) -> Self {
        let close = |t: &StorageTable, handle: u64| {
            if let Some(f) = t.0.blob_close {
                // SAFETY: the instance lives: the caller of `close` keeps it.
                unsafe { f(t.0.self_, handle) };
            }
        };
        let held = Held {
            store: Arc::clone(store),
            handle,
            open: AtomicBool::new(true),
            close,
        };
        BlobReader {
            held: Arc::new(held),
            stat,
            busy: Busy::default(),
        }
    }

    /// What is known of the blob.
    #[must_use]
    pub fn stat(&self) -> &BlobStat {
        &self.stat
    }

    fn start_read(&mut self, max: usize) -> Result<StoreCall<(Vec<u8>, bool)>> {
        self.busy.start("blob_read")?;
        let target = Target::new(max.clamp(1, READ_BYTES));
        let (held, handle) = (Arc::clone(&self.held), self.held.handle);
        let (start, cap) = (target.start.expose_provenance(), target.len);
        // The op owns the memory until the plugin is done with it, whoever waits.
        let decode = move |p: *const c_void| {
            let _held = held;
            // SAFETY: the contract: blob_read answers with a skg_count.
            let count: abi::Count = unsafe { answer::frozen(p, "count") }?;
            let mut data = target.into_vec();
            match usize::try_from(count.n) {
                Ok(n) if n <= data.len() => data.truncate(n),
                _ => {
                    return Err(Malformed(format!(
                        "count.n: {} bytes read into {cap}",
                        count.n
                    )));
                }
            }
            Ok((data, count.eof != 0))
        };
        self.held
            .store
            .call("blob_read", None, decode, move |t, op| {
                invoke!(t.blob_read(
                    op,
                    handle,
                    std::ptr::with_exposed_provenance_mut(start),
                    cap as u64
                ))
            })
    }

    /// At most `max` bytes (no more than 16 MiB at once), and whether the end is reached. What it gives was checked
    /// against the digest, else `E_CORRUPT`. A future that is dropped before it is ready spoils the reader: later calls
    /// say `E_ABORTED`.
    pub async fn read(&mut self, max: usize) -> Result<(Vec<u8>, bool)> {
        let read = self.start_read(max)?.wait().await;
        self.busy.0 = false;
        read
    }

    /// The same for a thread that may wait.
    pub fn read_blocking(&mut self, max: usize) -> Result<(Vec<u8>, bool)> {
        let read = self.start_read(max)?.wait_blocking();
        self.busy.0 = false;
        read
    }
}

//! A storage instance: skills and blobs.
//!
//! Each call exists twice: `async` for the event loop, and on [`BlockingStorage`] for threads that may wait.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use skillgate_plugin_abi as abi;
use skillgate_plugin_sdk::model::{
    BlobCreate, BlobStat, Content, Error, Health, PutSkill, Result, Skill, SkillPage, SkillQuery,
};
use skillgate_plugin_sdk::wire::Malformed;

use crate::instance::{Call, Instance, StorageTable};
use crate::{answer, request};

type Store = Arc<Instance<StorageTable>>;
type StoreCall<A> = Call<StorageTable, A>;

/// An instance of a storage plugin. It is destroyed when the last `Arc`, reader and writer is gone and every call has
/// ended.
pub struct StorageInstance {
    store: Store,
    caps: u32,
}

impl std::fmt::Debug for StorageInstance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StorageInstance")
            .field("instance", &self.store.host.instance)
            .field("caps", &self.caps)
            .finish_non_exhaustive()
    }
}

/// Calls a function of the table, which may be missing.
macro_rules! invoke {
    ($table:ident . $f:ident ( $($arg:expr),* )) => {
        match $table.0.$f {
            // SAFETY: the instance lives until its ops have ended; what the arguments borrow outlives the call, and
            // buffers belong to the op (see the decode closure beside each use).
            Some(f) => unsafe { f($table.0.self_, $($arg),*) },
            None => abi::E_UNIMPLEMENTED,
        }
    };
}

/// Who, which skill: owned, because the call may outlive its caller.
#[derive(Clone)]
struct Which {
    tenant: String,
    name: String,
    version: String,
}

impl Which {
    fn new(tenant: &str, name: &str, version: &str) -> Self {
        Which {
            tenant: tenant.to_owned(),
            name: name.to_owned(),
            version: version.to_owned(),
        }
    }
    fn skill_ref(&self) -> abi::SkillRef {
        abi::SkillRef {
            name: abi::Str::of(&self.name),
            version: abi::Str::of(&self.version),
        }
    }
}

fn list(store: &Store, query: SkillQuery) -> Result<StoreCall<SkillPage>> {
    let limit = query.limit;
    // SAFETY: the contract: skill_list answers with a skg_skill_page.
    let decode = move |p: *const std::ffi::c_void| unsafe { answer::skill_page(p.cast(), limit) };
    store.call("skill_list", None, decode, move |t, op| {
        invoke!(t.skill_list(op, &request::list(&query)))
    })
}

fn get(store: &Store, w: Which) -> Result<StoreCall<Skill>> {
    // SAFETY: the contract: skill_get answers with a skg_skill.
    let decode = |p: *const std::ffi::c_void| unsafe { answer::skill(p.cast()) };
    store.call("skill_get", None, decode, move |t, op| {
        invoke!(t.skill_get(op, abi::Str::of(&w.tenant), &w.skill_ref()))
    })
}

fn read(store: &Store, w: Which, path: String) -> Result<StoreCall<Content>> {
    // SAFETY: the contract: skill_read answers with a skg_content, whose descriptor it gives away.
    let decode = |p: *const std::ffi::c_void| unsafe { answer::content(p.cast()) };
    store.call("skill_read", None, decode, move |t, op| {
        invoke!(t.skill_read(
            op,
            abi::Str::of(&w.tenant),
            &w.skill_ref(),
            abi::Str::of(&path)
        ))
    })
}

fn tree(store: &Store, w: Which) -> Result<StoreCall<Content>> {
    // SAFETY: the contract: skill_tree answers with a skg_content, whose descriptor it gives away.
    let decode = |p: *const std::ffi::c_void| unsafe { answer::content(p.cast()) };
    store.call("skill_tree", None, decode, move |t, op| {
        invoke!(t.skill_tree(op, abi::Str::of(&w.tenant), &w.skill_ref()))
    })
}

fn put(store: &Store, p: PutSkill) -> Result<StoreCall<Skill>> {
    // SAFETY: the contract: skill_put answers with a skg_skill.
    let decode = |p: *const std::ffi::c_void| unsafe { answer::skill(p.cast()) };
    store.call("skill_put", None, decode, move |t, op| {
        let files = request::put_files(&p);
        invoke!(t.skill_put(op, &request::put(&p, &files)))
    })
}

fn create(store: &Store, c: BlobCreate) -> Result<StoreCall<BlobWriter>> {
    let keep = Arc::clone(store);
    let decode = move |p: *const std::ffi::c_void| {
        // SAFETY: the contract: blob_create answers with a skg_handle.
        let handle: abi::Handle = unsafe { answer::frozen(p, "handle") }?;
        Ok(BlobWriter::new(&keep, handle.handle))
    };
    store.call("blob_create", None, decode, move |t, op| {
        invoke!(t.blob_create(op, &request::blob_create(&c)))
    })
}

fn stat(store: &Store, tenant: String, id: String) -> Result<StoreCall<BlobStat>> {
    // SAFETY: the contract: blob_stat answers with a skg_blob_stat.
    let decode = |p: *const std::ffi::c_void| unsafe { answer::blob_stat(p.cast()) };
    store.call("blob_stat", None, decode, move |t, op| {
        invoke!(t.blob_stat(op, abi::Str::of(&tenant), abi::Str::of(&id)))
    })
}

fn open(
    store: &Store,
    tenant: String,
    id: String,
    offset: u64,
    len: u64,
) -> Result<StoreCall<BlobReader>> {
    let keep = Arc::clone(store);
    let decode = move |p: *const std::ffi::c_void| {
        // SAFETY: the contract: blob_open answers with a skg_blob_opened.
        let (reader, stat) = unsafe { answer::blob_reader(p.cast()) }?;
        Ok(BlobReader::new(&keep, reader, stat))
    };
    store.call("blob_open", None, decode, move |t, op| {
        invoke!(t.blob_open(op, abi::Str::of(&tenant), abi::Str::of(&id), offset, len))
    })
}

fn fd(store: &Store, tenant: String, id: String) -> Result<StoreCall<(OwnedFd, BlobStat)>> {
    // SAFETY: the contract: blob_fd answers with a skg_blob_opened, whose descriptor it gives away.
    let decode = |p: *const std::ffi::c_void| unsafe { answer::blob_fd(p.cast()) };
    store.call("blob_fd", None, decode, move |t, op| {
        invoke!(t.blob_fd(op, abi::Str::of(&tenant), abi::Str::of(&id)))
    })
}

fn delete(store: &Store, tenant: String, id: String) -> Result<StoreCall<()>> {
    store.call(
        "blob_delete",
        None,
        |_| Ok(()),
        move |t, op| invoke!(t.blob_delete(op, abi::Str::of(&tenant), abi::Str::of(&id))),
    )
}

impl StorageInstance {
    pub(crate) fn new(store: Store, caps: u32) -> Self {
        StorageInstance { store, caps }
    }

    /// `ST_*` of the ABI, as it said when it was made.
    #[must_use]
    pub fn caps(&self) -> u32 {
        self.caps
    }

    /// The same calls for a thread that may wait, such as the one that a [`crate::RunHost`] is called on. A blocking
    /// plugin is then called right there, without a hop to another thread.
    #[must_use]
    pub fn blocking(&self) -> BlockingStorage {
        BlockingStorage {
            store: Arc::clone(&self.store),
        }
    }

    /// How it is doing.
    pub async fn health(&self) -> Result<Health> {
        self.store.call_health()?.wait().await
    }

    /// Asks it to take no new work, and waits until nothing is in flight.
    pub async fn drain(&self) -> Result<()> {
        self.store.call_drain()?.wait().await
    }

    /// Drains, gives this reference up, and waits until the plugin has destroyed the instance: that is, until every other
    /// reference, reader and writer is gone too. Put a timeout around it.
    pub async fn shutdown(self: Arc<Self>) -> Result<()> {
        let drained = self.drain().await;
        let mut destroyed = self.store.destroyed();
        drop(self);
        // An error says that the sender is gone, which is as good an end as any.
        drop(destroyed.wait_for(|done| *done).await);
        drained
    }

    /// A page of skills in the order of `SkillKey`, at most `query.limit`.
    pub async fn skill_list(&self, query: SkillQuery) -> Result<SkillPage> {
        list(&self.store, query)?.wait().await
    }

    /// A skill with manifest and files; `version` empty: the latest.
    pub async fn skill_get(&self, tenant: &str, name: &str, version: &str) -> Result<Skill> {
        get(&self.store, Which::new(tenant, name, version))?
            .wait()
            .await
    }

    /// One file of a skill.
    pub async fn skill_read(
        &self,
        tenant: &str,
        name: &str,
        version: &str,
        path: &str,
    ) -> Result<Content> {
        read(
            &self.store,
            Which::new(tenant, name, version),
            path.to_owned(),
        )?
        .wait()
        .await
    }

    /// A skill's directory, as a descriptor of it or as a tar.
    pub async fn skill_tree(&self, tenant: &str, name: &str, version: &str) -> Result<Content> {
        tree(&self.store, Which::new(tenant, name, version))?
            .wait()
            .await
    }

    /// Publishes a version, durably before it returns.
    pub async fn skill_put(&self, skill: PutSkill) -> Result<Skill> {
        put(&self.store, skill)?.wait().await
    }

    /// A writer for a new blob.
    pub async fn blob_create(&self, blob: BlobCreate) -> Result<BlobWriter> {
        create(&self.store, blob)?.wait().await
    }

    /// What is known of a blob.
    pub async fn blob_stat(&self, tenant: &str, id: &str) -> Result<BlobStat> {
        stat(&self.store, tenant.to_owned(), id.to_owned())?
            .wait()
            .await
    }

    /// A reader of `[offset, offset + len)`; `len` 0: to the end.
    pub async fn blob_open(
        &self,
        tenant: &str,
        id: &str,
        offset: u64,
        len: u64,
    ) -> Result<BlobReader> {
        open(&self.store, tenant.to_owned(), id.to_owned(), offset, len)?
            .wait()
            .await
    }

    /// A read-only descriptor of the checked content, when the store has `ST_BLOB_FD`.
    pub async fn blob_fd(&self, tenant: &str, id: &str) -> Result<(OwnedFd, BlobStat)> {
        fd(&self.store, tenant.to_owned(), id.to_owned())?
            .wait()
            .await
    }

    /// Deletes a blob.
    pub async fn blob_delete(&self, tenant: &str, id: &str) -> Result<()> {
        delete(&self.store, tenant.to_owned(), id.to_owned())?
            .wait()
            .await
    }
}

/// A store's calls for threads that may wait. Called on the event loop inside a plugin's call, each refuses with
/// `E_WOULD_DEADLOCK`. Cheap to clone; keeps the instance alive.
#[derive(Clone)]
pub struct BlockingStorage {
    store: Store,
}

impl std::fmt::Debug for BlockingStorage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlockingStorage")
            .field("instance", &self.store.host.instance)
            .finish_non_exhaustive()
    }
}

impl BlockingStorage {
    /// See [`StorageInstance::skill_list`].
    pub fn skill_list(&self, query: SkillQuery) -> Result<SkillPage> {
        list(&self.store, query)?.wait_blocking()
    }
    /// See [`StorageInstance::skill_get`].
    pub fn skill_get(&self, tenant: &str, name: &str, version: &str) -> Result<Skill> {
        get(&self.store, Which::new(tenant, name, version))?.wait_blocking()
    }
    /// See [`StorageInstance::skill_read`].
    pub fn skill_read(
        &self,
        tenant: &str,
        name: &str,
        version: &str,
        path: &str,
    ) -> Result<Content> {
        read(
            &self.store,
            Which::new(tenant, name, version),
            path.to_owned(),
        )?
        .wait_blocking()
    }
    /// See [`StorageInstance::skill_tree`].
    pub fn skill_tree(&self, tenant: &str, name: &str, version: &str) -> Result<Content> {
        tree(&self.store, Which::new(tenant, name, version))?.wait_blocking()
    }
    /// See [`StorageInstance::skill_put`].
    pub fn skill_put(&self, skill: PutSkill) -> Result<Skill> {
        put(&self.store, skill)?.wait_blocking()
    }
    /// See [`StorageInstance::blob_create`].
    pub fn blob_create(&self, blob: BlobCreate) -> Result<BlobWriter> {
        create(&self.store, blob)?.wait_blocking()
    }
    /// See [`StorageInstance::blob_stat`].
    pub fn blob_stat(&self, tenant: &str, id: &str) -> Result<BlobStat> {
        stat(&self.store, tenant.to_owned(), id.to_owned())?.wait_blocking()
    }
    /// See [`StorageInstance::blob_open`].
    pub fn blob_open(&self, tenant: &str, id: &str, offset: u64, len: u64) -> Result<BlobReader> {
        open(&self.store, tenant.to_owned(), id.to_owned(), offset, len)?.wait_blocking()
    }
    /// See [`StorageInstance::blob_fd`].
    pub fn blob_fd(&self, tenant: &str, id: &str) -> Result<(OwnedFd, BlobStat)> {
        fd(&self.store, tenant.to_owned(), id.to_owned())?.wait_blocking()
    }
    /// See [`StorageInstance::blob_delete`].
    pub fn blob_delete(&self, tenant: &str, id: &str) -> Result<()> {
        delete(&self.store, tenant.to_owned(), id.to_owned())?.wait_blocking()
    }
    /// See [`StorageInstance::health`].
    pub fn health(&self) -> Result<Health> {
        self.store.call_health()?.wait_blocking()
    }
}

// === readers and writers ===

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
    fn new(store: &Store, handle: u64) -> Self {
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
        let decode = move |p: *const std::ffi::c_void| {
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
    fn new(store: &Store, handle: u64, stat: BlobStat) -> Self {
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
        let decode = move |p: *const std::ffi::c_void| {
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

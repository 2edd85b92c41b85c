//! A storage instance: skills and blobs.
//!
//! Each call exists twice: `async` for the event loop, and on [`BlockingStorage`] for threads that may wait.

use std::ffi::c_void;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use skillgate_plugin_abi as abi;
use skillgate_plugin_sdk::model::{
    BlobCreate, BlobStat, Content, Health, PutSkill, Result, Skill, SkillPage, SkillQuery,
};

use crate::blobs::{BlobReader, BlobWriter};
use crate::counts::CallCounts;
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
pub(crate) use invoke;

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
    let decode = move |p: *const c_void| unsafe { answer::skill_page(p.cast(), limit) };
    store.call("skill_list", None, decode, move |t, op| {
        invoke!(t.skill_list(op, &request::list(&query)))
    })
}

fn get(store: &Store, w: Which) -> Result<StoreCall<Skill>> {
    // SAFETY: the contract: skill_get answers with a skg_skill.
    let decode = |p: *const c_void| unsafe { answer::skill(p.cast()) };
    store.call("skill_get", None, decode, move |t, op| {
        invoke!(t.skill_get(op, abi::Str::of(&w.tenant), &w.skill_ref()))
    })
}

fn read(store: &Store, w: Which, path: String) -> Result<StoreCall<Content>> {
    // SAFETY: the contract: skill_read answers with a skg_content, whose descriptor it gives away.
    let decode = |p: *const c_void| unsafe { answer::content(p.cast()) };
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
    let decode = |p: *const c_void| unsafe { answer::content(p.cast()) };
    store.call("skill_tree", None, decode, move |t, op| {
        invoke!(t.skill_tree(op, abi::Str::of(&w.tenant), &w.skill_ref()))
    })
}

fn put(store: &Store, p: PutSkill) -> Result<StoreCall<Skill>> {
    // SAFETY: the contract: skill_put answers with a skg_skill.
    let decode = |p: *const c_void| unsafe { answer::skill(p.cast()) };
    store.call("skill_put", None, decode, move |t, op| {
        let files = request::put_files(&p);
        invoke!(t.skill_put(op, &request::put(&p, &files)))
    })
}

fn create(store: &Store, c: BlobCreate) -> Result<StoreCall<BlobWriter>> {
    let keep = Arc::clone(store);
    let decode = move |p: *const c_void| {
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
    let decode = |p: *const c_void| unsafe { answer::blob_stat(p.cast()) };
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
    let decode = move |p: *const c_void| {
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
    let decode = |p: *const c_void| unsafe { answer::blob_fd(p.cast()) };
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

    /// How often it was called.
    #[must_use]
    pub fn counts(&self) -> CallCounts {
        self.store.counts.clone()
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

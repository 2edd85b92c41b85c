//! A storage instance: skills and blobs.
//!
//! Each call exists twice: `async` for the event loop, and on [`BlockingStorage`] for threads that may wait.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use skillgate_plugin_abi as abi;
use skillgate_plugin_sdk::model::{
    BlobCreate, BlobStat, Content, Health, PutSkill, Result, Skill, SkillPage, SkillQuery,
};

use crate::ask::{
    AskFd, AskHealth, AskStat, Blob, BlobDelete, BlobOpen, Drain, SkillGet, SkillList, SkillPut,
    SkillRead, SkillTree, Which,
};
use crate::blobs::{BlobReader, BlobWriter};
use crate::call::{Call, Destroyed, Over, Place, Until, User};
use crate::counts::{CallCounts, Counted};
use crate::instance::StorageTable;

type Store = Place<StorageTable>;
type StoreCall<A> = Call<StorageTable, A>;

/// An instance of a storage plugin. It is destroyed when the last `Arc`, reader and writer is gone and every call has
/// ended.
pub struct StorageInstance {
    store: Store,
    caps: u32,
    is_ours: bool,
}

impl std::fmt::Debug for StorageInstance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StorageInstance")
            .field("instance", &self.store.name())
            .field("caps", &self.caps)
            .finish_non_exhaustive()
    }
}

fn create(store: &Store, blob: BlobCreate) -> Result<StoreCall<BlobWriter>> {
    let (keep, tenant) = (store.clone(), blob.tenant.as_str().into());
    store.call_with(blob, None, move |handle, life| {
        BlobWriter::new(&keep, tenant, handle, life)
    })
}

fn open(
    store: &Store,
    tenant: &str,
    id: &str,
    offset: u64,
    len: u64,
) -> Result<StoreCall<BlobReader>> {
    let (keep, blob, tenant) = (store.clone(), Blob::new(tenant, id), tenant.into());
    store.call_with(
        BlobOpen { blob, offset, len },
        None,
        move |(handle, stat), life| BlobReader::new(&keep, tenant, handle, life, stat, offset, len),
    )
}

fn read(
    store: &Store,
    tenant: &str,
    name: &str,
    version: &str,
    path: &str,
) -> Result<StoreCall<Content>> {
    store.call(SkillRead {
        which: Which::new(tenant, name, version),
        path: path.to_owned(),
    })
}

impl Counted for StorageInstance {
    fn counts(&self) -> CallCounts {
        self.store.counts()
    }
}

impl StorageInstance {
    pub(crate) fn new(store: Store, caps: u32, is_ours: bool) -> Self {
        StorageInstance {
            store,
            caps,
            is_ours,
        }
    }

    /// Its plugin came with this program: the operator's pin of it is not [`crate::Pin::guarded`]. Not by what it says of itself.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.is_ours
    }

    /// `ST_*` of the ABI, as it said when it was made.
    #[must_use]
    pub fn caps(&self) -> u32 {
        self.caps
    }

    /// It says that it has skills. One that does not need not have the functions for them: it is asked for none.
    #[must_use]
    pub fn keeps_skills(&self) -> bool {
        self.caps & abi::ST_SKILLS != 0
    }

    /// The same of blobs.
    #[must_use]
    pub fn keeps_blobs(&self) -> bool {
        self.caps & abi::ST_BLOBS != 0
    }

    /// The id of its plugin.
    #[must_use]
    pub fn plugin(&self) -> &str {
        self.store.plugin()
    }

    /// As the gateway calls it: the `instance_id` that it was made with.
    #[must_use]
    pub fn name(&self) -> &str {
        self.store.name()
    }

    /// The same calls for a thread that may wait, such as the one that a [`crate::RunHost`] is called on. A blocking
    /// plugin is then called right there, without a hop to another thread.
    #[must_use]
    pub fn blocking(&self) -> BlockingStorage {
        BlockingStorage {
            store: self.store.clone(),
            until: Until::default(),
            _user: self.store.user(),
        }
    }

    /// How it is doing.
    pub async fn health(&self) -> Result<Health> {
        self.store.call(AskHealth)?.wait().await
    }

    /// Asks it to take no new work, and waits until nothing is in flight.
    pub async fn drain(&self) -> Result<()> {
        self.store.call(Drain)?.wait().await
    }

    /// Drains, gives this reference up, and waits until the plugin has destroyed the instance: that is, until every other
    /// reference, reader and writer is gone too. Put a timeout around it.
    pub async fn shutdown(self: Arc<Self>) -> Result<()> {
        let drained = self.drain().await;
        let mut destroyed = self.destroyed();
        drop(self);
        destroyed.wait().await;
        drained
    }

    /// Its end, for who waits longer than for a shutdown.
    #[must_use]
    pub fn destroyed(&self) -> Destroyed {
        self.store.destroyed()
    }

    /// Waits until nobody else has it, neither for a call nor for what it began: readers, writers, runs. Who waits for that
    /// has seen to it that nobody gets it any more.
    pub async fn unused(self: &Arc<Self>) {
        // The last to let go need not know that somebody waits, so this looks.
        while Arc::strong_count(self) > 1 || self.store.is_used() {
            tokio::time::sleep(Place::<StorageTable>::LOOK).await;
        }
    }

    /// Whether all that goes on in it are calls that nobody waits for any more, in a process of its own: it can be
    /// ended with them ([`StorageInstance::end_process`]). Who asks has seen to it that nobody gets the instance any more.
    #[must_use]
    pub fn is_deserted(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) == 1 && self.store.is_deserted()
    }

    /// Has the process of a store that [is deserted](StorageInstance::is_deserted) end: as it ends by itself, or killed when a
    /// call hangs there for longer than `cancel_grace`. [`StorageInstance::destroyed`] is when it is gone.
    pub fn end_process(self: Arc<Self>) {
        self.store.end_process();
    }

    /// A page of skills in the order of `SkillKey`, at most `query.limit`.
    pub async fn skill_list(&self, query: SkillQuery) -> Result<SkillPage> {
        self.store.call(SkillList(query))?.wait().await
    }

    /// A skill with manifest and files; `version` empty: the latest.
    pub async fn skill_get(&self, tenant: &str, name: &str, version: &str) -> Result<Skill> {
        self.store
            .call(SkillGet(Which::new(tenant, name, version)))?
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
        read(&self.store, tenant, name, version, path)?.wait().await
    }

    /// A skill's directory, as a descriptor of it or as a tar.
    pub async fn skill_tree(&self, tenant: &str, name: &str, version: &str) -> Result<Content> {
        self.store
            .call(SkillTree(Which::new(tenant, name, version)))?
            .wait()
            .await
    }

    /// Publishes a version, durably before it returns.
    pub async fn skill_put(&self, skill: PutSkill) -> Result<Skill> {
        self.skill_put_with(skill, ()).await
    }

    /// The same; `room` is kept until the store has done with what it was given, which may be long after its caller has gone.
    pub async fn skill_put_with(
        &self,
        skill: PutSkill,
        room: impl Send + 'static,
    ) -> Result<Skill> {
        let done = move |skill, _| {
            drop(room);
            skill
        };
        let put = self.store.call_with(SkillPut(skill), None, done)?;
        put.wait().await
    }

    /// A writer for a new blob.
    pub async fn blob_create(&self, blob: BlobCreate) -> Result<BlobWriter> {
        create(&self.store, blob)?.wait().await
    }

    /// What is known of a blob.
    pub async fn blob_stat(&self, tenant: &str, id: &str) -> Result<BlobStat> {
        self.store
            .call(AskStat(Blob::new(tenant, id)))?
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
        open(&self.store, tenant, id, offset, len)?.wait().await
    }

    /// A read-only descriptor of the checked content, when the store has `ST_BLOB_FD`.
    pub async fn blob_fd(&self, tenant: &str, id: &str) -> Result<(OwnedFd, BlobStat)> {
        self.store.call(AskFd(Blob::new(tenant, id)))?.wait().await
    }

    /// Deletes a blob.
    pub async fn blob_delete(&self, tenant: &str, id: &str) -> Result<()> {
        self.store
            .call(BlobDelete(Blob::new(tenant, id)))?
            .wait()
            .await
    }
}

/// A store's calls for threads that may wait. Called on the event loop inside a plugin's call, each refuses with
/// `E_WOULD_DEADLOCK`. Cheap to clone; keeps the instance alive.
#[derive(Clone)]
pub struct BlockingStorage {
    store: Store,
    until: Until,
    _user: User,
}

impl std::fmt::Debug for BlockingStorage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlockingStorage")
            .field("instance", &self.store.name())
            .finish_non_exhaustive()
    }
}

impl BlockingStorage {
    /// The same for one who is over some time: until then its threads wait, here and at what they open here, and after it they
    /// are refused with `E_CANCELLED`. Two things last longer: [`BlobWriter::commit_blocking`], of whose outcome somebody has to
    /// know, and a call of a blocking plugin that is in the gateway, which has the thread itself.
    #[must_use]
    pub fn until(mut self, over: &Over) -> Self {
        self.until = over.into();
        self
    }
    /// See [`StorageInstance::skill_list`].
    pub fn skill_list(&self, query: SkillQuery) -> Result<SkillPage> {
        self.store
            .call(SkillList(query))?
            .wait_blocking(&self.until)
    }
    /// See [`StorageInstance::skill_get`].
    pub fn skill_get(&self, tenant: &str, name: &str, version: &str) -> Result<Skill> {
        self.store
            .call(SkillGet(Which::new(tenant, name, version)))?
            .wait_blocking(&self.until)
    }
    /// See [`StorageInstance::skill_read`].
    pub fn skill_read(
        &self,
        tenant: &str,
        name: &str,
        version: &str,
        path: &str,
    ) -> Result<Content> {
        read(&self.store, tenant, name, version, path)?.wait_blocking(&self.until)
    }
    /// See [`StorageInstance::skill_tree`].
    pub fn skill_tree(&self, tenant: &str, name: &str, version: &str) -> Result<Content> {
        self.store
            .call(SkillTree(Which::new(tenant, name, version)))?
            .wait_blocking(&self.until)
    }
    /// See [`StorageInstance::skill_put`].
    pub fn skill_put(&self, skill: PutSkill) -> Result<Skill> {
        self.store.call(SkillPut(skill))?.wait_blocking(&self.until)
    }
    /// See [`StorageInstance::blob_create`].
    pub fn blob_create(&self, blob: BlobCreate) -> Result<BlobWriter> {
        let made = create(&self.store, blob)?.wait_blocking(&self.until);
        made.map(|writer| writer.until(&self.until))
    }
    /// See [`StorageInstance::blob_stat`].
    pub fn blob_stat(&self, tenant: &str, id: &str) -> Result<BlobStat> {
        self.store
            .call(AskStat(Blob::new(tenant, id)))?
            .wait_blocking(&self.until)
    }
    /// See [`StorageInstance::blob_open`].
    pub fn blob_open(&self, tenant: &str, id: &str, offset: u64, len: u64) -> Result<BlobReader> {
        let opened = open(&self.store, tenant, id, offset, len)?.wait_blocking(&self.until);
        opened.map(|reader| reader.until(&self.until))
    }
    /// See [`StorageInstance::blob_fd`].
    pub fn blob_fd(&self, tenant: &str, id: &str) -> Result<(OwnedFd, BlobStat)> {
        self.store
            .call(AskFd(Blob::new(tenant, id)))?
            .wait_blocking(&self.until)
    }
    /// See [`StorageInstance::blob_delete`].
    pub fn blob_delete(&self, tenant: &str, id: &str) -> Result<()> {
        self.store
            .call(BlobDelete(Blob::new(tenant, id)))?
            .wait_blocking(&self.until)
    }
    /// See [`StorageInstance::health`].
    pub fn health(&self) -> Result<Health> {
        self.store.call(AskHealth)?.wait_blocking(&self.until)
    }
}

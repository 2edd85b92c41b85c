//! A blocking plugin is one whose answers come before its calls return.

use std::os::unix::io::OwnedFd;
use std::sync::Arc;

use skillgate_plugin_abi as abi;

use super::{sandbox, storage};
use crate::blocking;
use crate::model::{
    BlobCreate, BlobStat, Content, CreateRequest, Health, PutSkill, Result, RunRequest, RunResult,
    SandboxCaps, Skill, SkillPage, SkillQuery, SkillRef,
};
use crate::{BlobBuffer, BlobData, Host, Reply, RunServices, Sandbox, Storage};

/// A blocking plugin as one that answers. Shared with the functions that cancel its runs.
pub(super) struct Blocking<S>(pub(super) Arc<S>);

/// The factory of a blocking storage plugin.
#[must_use]
pub const fn storage_factory<S: blocking::Storage>() -> abi::StorageFactory {
    storage::made_by(storage::create_instance::<Blocking<S>, true>)
}

/// The factory of a blocking sandbox plugin.
#[must_use]
pub const fn sandbox_factory<S: blocking::Sandbox>() -> abi::SandboxFactory {
    sandbox::made_by(sandbox::create_instance::<Blocking<S>, true>)
}

impl<S: blocking::Storage> Storage for Blocking<S> {
    fn create(host: Host, request: CreateRequest) -> Result<Self> {
        S::create(host, request).map(|store| Blocking(Arc::new(store)))
    }
    fn caps(&self) -> u32 {
        self.0.caps()
    }
    fn health(&self, reply: Reply<Health>) {
        reply.finish(self.0.health());
    }
    fn skill_list(&self, query: SkillQuery, reply: Reply<SkillPage>) {
        reply.finish(self.0.skill_list(&query));
    }
    fn skill_get(&self, r: SkillRef, reply: Reply<Skill>) {
        reply.finish(self.0.skill_get(&r.tenant, &r.name, &r.version));
    }
    fn skill_read(&self, r: SkillRef, path: String, reply: Reply<Content>) {
        reply.finish(self.0.skill_read(&r.tenant, &r.name, &r.version, &path));
    }
    fn skill_tree(&self, r: SkillRef, reply: Reply<Content>) {
        reply.finish(self.0.skill_tree(&r.tenant, &r.name, &r.version));
    }
    fn skill_put(&self, put: PutSkill, reply: Reply<Skill>) {
        reply.finish(self.0.skill_put(&put));
    }
    fn blob_create(&self, create: BlobCreate, reply: Reply<u64>) {
        reply.finish(self.0.blob_create(&create));
    }
    fn blob_write(&self, writer: u64, data: BlobData) {
        let written = self.0.blob_write(writer, data.bytes());
        data.finish(written);
    }
    fn blob_commit(&self, writer: u64, reply: Reply<BlobStat>) {
        reply.finish(self.0.blob_commit(writer));
    }
    fn blob_abort(&self, writer: u64) {
        self.0.blob_abort(writer);
    }
    fn blob_stat(&self, tenant: String, id: String, reply: Reply<BlobStat>) {
        reply.finish(self.0.blob_stat(&tenant, &id));
    }
    fn blob_open(
        &self,
        tenant: String,
        id: String,
        offset: u64,
        len: u64,
        reply: Reply<(u64, BlobStat)>,
    ) {
        reply.finish(self.0.blob_open(&tenant, &id, offset, len));
    }
    fn blob_read(&self, reader: u64, mut buffer: BlobBuffer) {
        let read = self.0.blob_read(reader, buffer.room());
        buffer.finish(read);
    }
    fn blob_close(&self, reader: u64) {
        self.0.blob_close(reader);
    }
    fn blob_fd(&self, tenant: String, id: String, reply: Reply<(OwnedFd, BlobStat)>) {
        reply.finish(self.0.blob_fd(&tenant, &id));
    }
    fn blob_delete(&self, tenant: String, id: String, reply: Reply<()>) {
        reply.finish(self.0.blob_delete(&tenant, &id));
    }
    fn drain(&self, reply: Reply<()>) {
        reply.finish(self.0.drain());
    }
}

impl<S: blocking::Sandbox> Sandbox for Blocking<S> {
    fn create(host: Host, request: CreateRequest) -> Result<Self> {
        S::create(host, request).map(|sandbox| Blocking(Arc::new(sandbox)))
    }
    fn caps(&self) -> SandboxCaps {
        self.0.caps()
    }
    fn health(&self, reply: Reply<Health>) {
        reply.finish(self.0.health());
    }
    /// The host cancels ops, the trait cancels runs.
    fn run(&self, request: RunRequest, services: Arc<dyn RunServices>, reply: Reply<RunResult>) {
        let (sandbox, run_id) = (Arc::clone(&self.0), request.run_id.clone());
        reply.on_cancel(move || sandbox.cancel(&run_id));
        if reply.cancelled() {
            return reply.fail(sandbox::cancelled_before());
        }
        self.0.run_and_clear(request, &*services, reply);
    }
    fn drain(&self, reply: Reply<()>) {
        reply.finish(self.0.drain());
    }
}

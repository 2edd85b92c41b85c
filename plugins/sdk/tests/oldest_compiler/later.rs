//! A sandbox and a store whose answers come later, for a compiler that is old. They do nothing.
#![forbid(unsafe_code)]

use std::sync::Arc;

use skillgate_plugin_sdk::model::{
    BlobCreate, BlobStat, Content, CreateRequest, Error, Health, PutSkill, Result, RunRequest,
    RunResult, SandboxCaps, Skill, SkillPage, SkillQuery, SkillRef,
};
use skillgate_plugin_sdk::{
    abi, BlobBuffer, BlobData, Host, Reply, RunServices, Sandbox, Storage,
};

skillgate_plugin_sdk::export_plugin! {
    id: "com.acme.later",
    version: env!("CARGO_PKG_VERSION"),
    vendor: "Acme",
    description: "answers later",
    license: "",
    config_schema: "",
    storage: crate::Later,
    sandbox: crate::Later,
}

pub struct Later;

fn later<T: Send + 'static>(reply: Reply<T>) {
    let _ends_by_itself = std::thread::spawn(move || {
        reply.fail(Error::new(abi::E_UNIMPLEMENTED, "it does nothing"));
    });
}

impl Sandbox for Later {
    fn create(_: Host, _: CreateRequest) -> Result<Self> {
        Ok(Later)
    }
    fn caps(&self) -> SandboxCaps {
        SandboxCaps::default()
    }
    fn health(&self, reply: Reply<Health>) {
        reply.ok(Health::default());
    }
    fn run(&self, request: RunRequest, services: Arc<dyn RunServices>, reply: Reply<RunResult>) {
        let run_id = request.run_id;
        reply.on_cancel(move || {
            services.output(abi::STDOUT, run_id.as_bytes());
        });
        later(reply);
    }
}

impl Storage for Later {
    fn create(_: Host, _: CreateRequest) -> Result<Self> {
        Ok(Later)
    }
    fn caps(&self) -> u32 {
        0
    }
    fn health(&self, reply: Reply<Health>) {
        reply.ok(Health::default());
    }
    fn skill_list(&self, _: SkillQuery, reply: Reply<SkillPage>) {
        later(reply);
    }
    fn skill_get(&self, _: SkillRef, reply: Reply<Skill>) {
        later(reply);
    }
    fn skill_read(&self, _: SkillRef, _: String, reply: Reply<Content>) {
        later(reply);
    }
    fn skill_tree(&self, _: SkillRef, reply: Reply<Content>) {
        later(reply);
    }
    fn skill_put(&self, _: PutSkill, reply: Reply<Skill>) {
        later(reply);
    }
    fn blob_create(&self, _: BlobCreate, reply: Reply<u64>) {
        later(reply);
    }
    fn blob_write(&self, _: u64, data: BlobData) {
        let _ends_by_itself = std::thread::spawn(move || data.finish(Ok(())));
    }
    fn blob_commit(&self, _: u64, reply: Reply<BlobStat>) {
        later(reply);
    }
    fn blob_abort(&self, _: u64) {}
    fn blob_stat(&self, _: String, _: String, reply: Reply<BlobStat>) {
        later(reply);
    }
    fn blob_open(&self, _: String, _: String, _: u64, _: u64, reply: Reply<(u64, BlobStat)>) {
        later(reply);
    }
    fn blob_read(&self, _: u64, mut buffer: BlobBuffer) {
        buffer.room().fill(0);
        buffer.finish(Ok((0, true)));
    }
    fn blob_close(&self, _: u64) {}
    fn blob_delete(&self, _: String, _: String, reply: Reply<()>) {
        later(reply);
    }
}

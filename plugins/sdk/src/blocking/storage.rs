//! The blocking storage plugin as a Rust trait.

use std::os::unix::io::OwnedFd;

use crate::model::{
    BlobCreate, BlobStat, Content, CreateRequest, Error, Health, PutSkill, Result, Skill,
    SkillPage, SkillQuery,
};
use crate::Host;
use skillgate_plugin_abi as abi;

/// A storage plugin whose calls may block (`SKG_F_BLOCKING`): the host calls it on a pool of threads, each call
/// returns its answer. `version` is empty for "latest". Errors carry `E_*` of the ABI: `E_NOT_FOUND` for what is not
/// there or belongs to another tenant, `E_ALREADY_EXISTS`, `E_OUT_OF_RANGE`, `E_EXHAUSTED` (with
/// [`Error::of_tenant`](crate::model::Error::of_tenant()) where it is full for this tenant alone), `E_CORRUPT`,
/// `E_UNIMPLEMENTED`.
pub trait Storage: Send + Sync + Sized + 'static {
    /// Makes an instance, and removes what an earlier life of it has left half-done.
    fn create(host: Host, request: CreateRequest) -> Result<Self>;
    /// `ST_*` of the ABI. `ST_VOLATILE`, and nothing has to be durable.
    fn caps(&self) -> u32;
    /// How it is doing.
    fn health(&self) -> Result<Health>;
    /// In the order of [`crate::model::SkillKey`].
    fn skill_list(&self, query: &SkillQuery) -> Result<SkillPage>;
    /// With manifest and files.
    fn skill_get(&self, tenant: &str, name: &str, version: &str) -> Result<Skill>;
    /// One file: [`Content::Data`] or [`Content::File`].
    fn skill_read(&self, tenant: &str, name: &str, version: &str, path: &str) -> Result<Content>;
    /// The directory: [`Content::Dir`], readable by others (files o+r, directories o+rx) whatever the umask, or [`Content::Tar`].
    fn skill_tree(&self, tenant: &str, name: &str, version: &str) -> Result<Content>;
    /// Publishes, durably before it returns.
    fn skill_put(&self, put: &PutSkill) -> Result<Skill>;
    /// A writer.
    fn blob_create(&self, create: &BlobCreate) -> Result<u64>;
    /// Appends.
    fn blob_write(&self, writer: u64, data: &[u8]) -> Result<()>;
    /// Makes it visible, durably before it returns. The writer is gone, also when this fails.
    fn blob_commit(&self, writer: u64) -> Result<BlobStat>;
    /// Throws it away; unknown writers are ignored.
    fn blob_abort(&self, writer: u64);
    /// What is known of it.
    fn blob_stat(&self, tenant: &str, id: &str) -> Result<BlobStat>;
    /// A reader of `[offset, offset + len)`; `len` 0: to the end.
    fn blob_open(&self, tenant: &str, id: &str, offset: u64, len: u64) -> Result<(u64, BlobStat)>;
    /// Bytes read, 0 only with the end, and whether that is reached. What it gives is checked against the digest, else
    /// `E_CORRUPT`.
    fn blob_read(&self, reader: u64, buf: &mut [u8]) -> Result<(usize, bool)>;
    /// Unknown readers are ignored.
    fn blob_close(&self, reader: u64);
    /// A read-only descriptor of the checked content; a file that has a name is readable by others (o+r).
    fn blob_fd(&self, _tenant: &str, _id: &str) -> Result<(OwnedFd, BlobStat)> {
        Err(Error::new(
            abi::E_UNIMPLEMENTED,
            "this store gives no descriptors",
        ))
    }
    /// Deletes it.
    fn blob_delete(&self, tenant: &str, id: &str) -> Result<()>;
    /// Ends what works in the background, before the instance is destroyed. The SDK has ended new work
    /// (`E_UNAVAILABLE`) and waited: no call is in flight any more. What is open may still be written, committed, read,
    /// aborted and closed, and `health` asked. Called again when the host drains again.
    fn drain(&self) -> Result<()> {
        Ok(())
    }
}

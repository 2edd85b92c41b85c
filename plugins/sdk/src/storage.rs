//! The storage plugin as a Rust trait.

use std::os::unix::io::OwnedFd;

use skillgate_plugin_abi as abi;

use crate::model::{
    BlobCreate, BlobStat, Content, CreateRequest, Error, Health, PutSkill, Result, Skill,
    SkillPage, SkillQuery, SkillRef,
};
use crate::{Host, Reply};

/// A storage plugin that never waits while it is called: the host calls it on its event loop, and is answered later, from
/// whichever thread has the answer. One thread of the plugin's own can so serve thousands of calls to a service elsewhere.
///
/// Every call but `create`, `blob_abort` and `blob_close` returns within a millisecond: it hands its request and its
/// [`Reply`] to a thread of the plugin's own, or to the runtime that it has there. [`crate::blocking::Storage`] is the kind
/// whose calls may wait.
///
/// Errors carry `E_*` of the ABI: `E_NOT_FOUND` for what is not there or belongs to another tenant, `E_ALREADY_EXISTS`,
/// `E_OUT_OF_RANGE`, `E_EXHAUSTED` (with [`Error::of_tenant`](crate::model::Error::of_tenant()) where it is full for this
/// tenant alone), `E_CORRUPT`, `E_UNIMPLEMENTED`.
pub trait Storage: Send + Sync + Sized + 'static {
    /// Makes an instance, and removes what an earlier life of it has left half-done. Called on a thread that may wait.
    ///
    /// The instance is dropped on such a thread too, when every call has been answered. Its threads have ended when the
    /// drop returns.
    fn create(host: Host, request: CreateRequest) -> Result<Self>;
    /// `ST_*` of the ABI. `ST_VOLATILE`, and nothing has to be durable.
    fn caps(&self) -> u32;
    /// How it is doing.
    fn health(&self, reply: Reply<Health>);
    /// In the order of [`crate::model::SkillKey`].
    fn skill_list(&self, query: SkillQuery, reply: Reply<SkillPage>);
    /// With manifest and files.
    fn skill_get(&self, which: SkillRef, reply: Reply<Skill>);
    /// One file: [`Content::Data`] or [`Content::File`].
    fn skill_read(&self, which: SkillRef, path: String, reply: Reply<Content>);
    /// The directory: [`Content::Dir`], readable by others (files o+r, directories o+rx) whatever the umask, or [`Content::Tar`].
    fn skill_tree(&self, which: SkillRef, reply: Reply<Content>);
    /// Publishes, durably before it is answered.
    fn skill_put(&self, put: PutSkill, reply: Reply<Skill>);
    /// A writer. Calls on one writer come one after the other.
    fn blob_create(&self, create: BlobCreate, reply: Reply<u64>);
    /// Appends.
    fn blob_write(&self, writer: u64, data: BlobData);
    /// Makes it visible, durably before it is answered. The writer is gone, also when this fails.
    fn blob_commit(&self, writer: u64, reply: Reply<BlobStat>);
    /// Throws it away; unknown writers are ignored. Called on a thread that may wait, and from inside of the answer of
    /// `blob_create` for a writer that the host did not take.
    fn blob_abort(&self, writer: u64);
    /// What is known of it.
    fn blob_stat(&self, tenant: String, id: String, reply: Reply<BlobStat>);
    /// A reader of `[offset, offset + len)`; `len` 0: to the end. Calls on one reader come one after the other.
    fn blob_open(
        &self,
        tenant: String,
        id: String,
        offset: u64,
        len: u64,
        reply: Reply<(u64, BlobStat)>,
    );
    /// The next bytes, which are checked against the digest, else `E_CORRUPT`. None only with the end.
    fn blob_read(&self, reader: u64, buffer: BlobBuffer);
    /// Unknown readers are ignored. As [`Storage::blob_abort`].
    fn blob_close(&self, reader: u64);
    /// A read-only descriptor of the checked content; a file that has a name is readable by others (o+r).
    fn blob_fd(&self, _tenant: String, _id: String, reply: Reply<(OwnedFd, BlobStat)>) {
        reply.fail(Error::new(
            abi::E_UNIMPLEMENTED,
            "this store gives no descriptors",
        ));
    }
    /// Deletes it.
    fn blob_delete(&self, tenant: String, id: String, reply: Reply<()>);
    /// The host lets go of this instance: end what works in the background, as far as calls do not need it. The SDK has ended
    /// new work (`E_UNAVAILABLE`); what is in flight goes on, and the host is told when that, and this, has been answered.
    /// What is open may still be written, committed, read, aborted and closed, and `health` asked. Called again when the host
    /// drains again.
    fn drain(&self, reply: Reply<()>) {
        reply.ok(());
    }
}

/// The bytes of one `blob_write`, and its reply: the host lends them until the answer.
pub struct BlobData {
    data: *const u8,
    len: usize,
    reply: Reply<()>,
}

// SAFETY: memory that the host lends to whoever answers the call, on any thread; nobody writes to it meanwhile.
unsafe impl Send for BlobData {}

impl BlobData {
    /// # Safety
    /// `data` is readable until the reply has been answered, and nobody writes to it.
    pub(crate) unsafe fn new(data: &[u8], reply: Reply<()>) -> Self {
        BlobData {
            data: data.as_ptr(),
            len: data.len(),
            reply,
        }
    }

    /// What is to be appended.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the promise of new(): the reply is here, so it has not been answered.
        unsafe { std::slice::from_raw_parts(self.data, self.len) }
    }

    /// For [`Reply::cancelled`] and [`Reply::on_cancel`].
    pub fn reply(&self) -> &Reply<()> {
        &self.reply
    }

    /// The answer.
    pub fn finish(self, result: Result<()>) {
        self.reply.finish(result);
    }
}

impl std::fmt::Debug for BlobData {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlobData").field("len", &self.len).finish()
    }
}

/// The room that one `blob_read` has for bytes, and its reply: the host lends it until the answer.
pub struct BlobBuffer {
    room: *mut u8,
    len: usize,
    reply: Reply<(usize, bool)>,
}

// SAFETY: memory that the host lends to whoever answers the call, on any thread, and to nobody else meanwhile.
unsafe impl Send for BlobBuffer {}

impl BlobBuffer {
    /// # Safety
    /// `room` is initialised, and nobody else's until the reply has been answered.
    pub(crate) unsafe fn new(room: &mut [u8], reply: Reply<(usize, bool)>) -> Self {
        BlobBuffer {
            room: room.as_mut_ptr(),
            len: room.len(),
            reply,
        }
    }

    /// Where the bytes go, from the beginning on.
    #[must_use]
    pub fn room(&mut self) -> &mut [u8] {
        // SAFETY: the promise of new(): the reply is here, so it has not been answered; &mut self: once at a time.
        unsafe { std::slice::from_raw_parts_mut(self.room, self.len) }
    }

    /// For [`Reply::cancelled`] and [`Reply::on_cancel`].
    pub fn reply(&self) -> &Reply<(usize, bool)> {
        &self.reply
    }

    /// The answer: how many bytes are in the room, which may be fewer than fit, and whether the end is reached.
    pub fn finish(self, result: Result<(usize, bool)>) {
        let room = self.len;
        self.reply.finish(match result {
            Ok((n, _)) if n > room => Err(Error::new(
                abi::E_INTERNAL,
                format!("the plugin says that it has put {n} bytes into room for {room}"),
            )),
            result => result,
        });
    }
}

impl std::fmt::Debug for BlobBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlobBuffer")
            .field("len", &self.len)
            .finish()
    }
}

//! Calls about blobs.

use std::ffi::c_void;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use skillgate_plugin_abi as abi;
use skillgate_plugin_sdk::model::{BlobCreate, BlobStat};
use skillgate_plugin_sdk::wire::Malformed;

use super::Ask;
use crate::instance::StorageTable;
use crate::wire::{In, Out, Read, Wire};
use crate::{answer, request};

/// A reader's or writer's number, and the life of the plugin's process that gave it. Only the number travels: a process
/// knows one life.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Handle {
    pub(crate) number: u64,
    pub(crate) life: u64,
}

impl Wire for Handle {
    fn put(&self, out: &mut Out) {
        out.u64(self.number);
    }
    fn take(from: &mut In<'_>) -> Read<Self> {
        let number = from.u64("handle")?;
        Ok(Handle { number, life: 0 })
    }
}

impl Ask<StorageTable> for BlobCreate {
    const NAME: &'static str = "blob_create";
    const CODE: u8 = 20;
    type Answer = u64;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn invoke(&self, t: &StorageTable, op: abi::Op) -> i32 {
        invoke!(t.blob_create(op, &request::blob_create(self)))
    }
    unsafe fn read(&self, p: *const c_void) -> Read<u64> {
        // SAFETY: the caller's promise: blob_create answers with a skg_handle.
        let handle: abi::Handle = unsafe { answer::frozen(p, "handle") }?;
        Ok(handle.handle)
    }
}

pub(crate) struct BlobWrite {
    /// As of [`BlobCommit`] and [`BlobRead`]: the plugin knows whose the handle is, and the host divides its threads by it.
    pub(crate) tenant: Arc<str>,
    pub(crate) writer: Handle,
    pub(crate) data: Bytes,
}

impl Wire for BlobWrite {
    fn put(&self, out: &mut Out) {
        self.writer.put(out);
        out.text(&self.tenant);
        out.data(&self.data);
    }
    fn take(from: &mut In<'_>) -> Read<Self> {
        let writer = Handle::take(from)?;
        let tenant = from.text("tenant", usize::MAX)?.into();
        let data = Bytes::copy_from_slice(from.data("data", usize::MAX)?);
        Ok(BlobWrite {
            tenant,
            writer,
            data,
        })
    }
}

impl Ask<StorageTable> for BlobWrite {
    const NAME: &'static str = "blob_write";
    const CODE: u8 = 21;
    type Answer = ();
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn life(&self) -> Option<u64> {
        Some(self.writer.life)
    }
    fn invoke(&self, t: &StorageTable, op: abi::Op) -> i32 {
        invoke!(t.blob_write(op, self.writer.number, abi::Bytes::of(&self.data)))
    }
    unsafe fn read(&self, _: *const c_void) -> Read<()> {
        Ok(())
    }
}

pub(crate) struct BlobCommit {
    pub(crate) tenant: Arc<str>,
    pub(crate) writer: Handle,
    /// Whether the writer is still there to be thrown away.
    pub(crate) open: Arc<AtomicBool>,
}

impl Wire for BlobCommit {
    fn put(&self, out: &mut Out) {
        self.writer.put(out);
        out.text(&self.tenant);
    }
    fn take(from: &mut In<'_>) -> Read<Self> {
        let writer = Handle::take(from)?;
        Ok(BlobCommit {
            tenant: from.text("tenant", usize::MAX)?.into(),
            writer,
            open: Arc::new(AtomicBool::new(true)),
        })
    }
}

impl Ask<StorageTable> for BlobCommit {
    const NAME: &'static str = "blob_commit";
    const CODE: u8 = 22;
    type Answer = BlobStat;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    /// The writer is gone with this call, however it ends: unless it never reaches the plugin, or is refused.
    fn begun(&self) {
        self.open.store(false, Ordering::Release);
    }
    fn refused(&self) {
        self.open.store(true, Ordering::Release);
    }
    fn ends(&self) -> Option<&Arc<AtomicBool>> {
        Some(&self.open)
    }
    fn life(&self) -> Option<u64> {
        Some(self.writer.life)
    }
    fn invoke(&self, t: &StorageTable, op: abi::Op) -> i32 {
        invoke!(t.blob_commit(op, self.writer.number))
    }
    unsafe fn read(&self, p: *const c_void) -> Read<BlobStat> {
        // SAFETY: the caller's promise: blob_commit answers with a skg_blob_stat.
        unsafe { answer::blob_stat(p.cast()) }
    }
}

/// Whose, and which blob.
pub(crate) struct Blob {
    pub(crate) tenant: String,
    pub(crate) id: String,
}
request!(Blob {
    tenant: text,
    id: text
});

impl Blob {
    pub(crate) fn new(tenant: &str, id: &str) -> Self {
        Blob {
            tenant: tenant.to_owned(),
            id: id.to_owned(),
        }
    }
    fn tenant(&self) -> abi::Str {
        abi::Str::of(&self.tenant)
    }
    fn id(&self) -> abi::Str {
        abi::Str::of(&self.id)
    }
}

pub(crate) struct AskStat(pub(crate) Blob);

wraps!(AskStat(Blob));

impl Ask<StorageTable> for AskStat {
    const NAME: &'static str = "blob_stat";
    const CODE: u8 = 23;
    type Answer = BlobStat;
    fn tenant(&self) -> &str {
        &self.0.tenant
    }
    fn invoke(&self, t: &StorageTable, op: abi::Op) -> i32 {
        invoke!(t.blob_stat(op, self.0.tenant(), self.0.id()))
    }
    unsafe fn read(&self, p: *const c_void) -> Read<BlobStat> {
        // SAFETY: the caller's promise: blob_stat answers with a skg_blob_stat.
        unsafe { answer::blob_stat(p.cast()) }
    }
}

pub(crate) struct BlobOpen {
    pub(crate) blob: Blob,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}
request!(BlobOpen {
    blob: part,
    offset: number,
    len: number
});

impl Ask<StorageTable> for BlobOpen {
    const NAME: &'static str = "blob_open";
    const CODE: u8 = 24;
    type Answer = (u64, BlobStat);
    fn tenant(&self) -> &str {
        &self.blob.tenant
    }
    fn invoke(&self, t: &StorageTable, op: abi::Op) -> i32 {
        let (tenant, id) = (self.blob.tenant(), self.blob.id());
        invoke!(t.blob_open(op, tenant, id, self.offset, self.len))
    }
    unsafe fn read(&self, p: *const c_void) -> Read<(u64, BlobStat)> {
        // SAFETY: the caller's promise: blob_open answers with a skg_blob_opened.
        unsafe { answer::blob_reader(p.cast()) }
    }
}

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

pub(crate) struct BlobRead {
    tenant: Arc<str>,
    pub(crate) reader: Handle,
    max: usize,
    /// From the call to the plugin on; the op owns it until the plugin is done with it, whoever waits.
    target: Mutex<Option<Target>>,
}

impl BlobRead {
    pub(crate) fn new(tenant: Arc<str>, reader: Handle, max: usize) -> Self {
        BlobRead {
            tenant,
            reader,
            max,
            target: Mutex::new(None),
        }
    }
    fn target(&self) -> std::sync::MutexGuard<'_, Option<Target>> {
        self.target.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wire for BlobRead {
    fn put(&self, out: &mut Out) {
        self.reader.put(out);
        out.text(&self.tenant);
        out.u64(self.max as u64);
    }
    fn take(from: &mut In<'_>) -> Read<Self> {
        let reader = Handle::take(from)?;
        let tenant = from.text("tenant", usize::MAX)?.into();
        let max = usize::try_from(from.u64("max")?).unwrap_or(usize::MAX);
        Ok(BlobRead::new(tenant, reader, max))
    }
}

impl Ask<StorageTable> for BlobRead {
    const NAME: &'static str = "blob_read";
    const CODE: u8 = 25;
    type Answer = (Vec<u8>, bool);
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn life(&self) -> Option<u64> {
        Some(self.reader.life)
    }
    fn invoke(&self, t: &StorageTable, op: abi::Op) -> i32 {
        let target = Target::new(self.max);
        let (start, cap) = (target.start, target.len as u64);
        *self.target() = Some(target);
        invoke!(t.blob_read(op, self.reader.number, start.cast(), cap))
    }
    unsafe fn read(&self, p: *const c_void) -> Read<(Vec<u8>, bool)> {
        // SAFETY: the caller's promise: blob_read answers with a skg_count.
        let count: abi::Count = unsafe { answer::frozen(p, "count") }?;
        let target = self.target().take();
        let mut data = target.map(Target::into_vec).unwrap_or_default();
        let cap = data.len();
        match usize::try_from(count.n) {
            Ok(n) if n <= cap => data.truncate(n),
            _ => {
                return Err(Malformed(format!(
                    "count.n: {} bytes read into {cap}",
                    count.n
                )));
            }
        }
        Ok((data, count.eof != 0))
    }
    fn check(&self, (data, _): &(Vec<u8>, bool)) -> Read<()> {
        if data.len() > self.max {
            let (n, cap) = (data.len(), self.max);
            return Err(Malformed(format!("count.n: {n} bytes read into {cap}")));
        }
        Ok(())
    }
}

pub(crate) struct AskFd(pub(crate) Blob);

wraps!(AskFd(Blob));

impl Ask<StorageTable> for AskFd {
    const NAME: &'static str = "blob_fd";
    const CODE: u8 = 26;
    type Answer = (OwnedFd, BlobStat);
    fn tenant(&self) -> &str {
        &self.0.tenant
    }
    fn invoke(&self, t: &StorageTable, op: abi::Op) -> i32 {
        invoke!(t.blob_fd(op, self.0.tenant(), self.0.id()))
    }
    unsafe fn read(&self, p: *const c_void) -> Read<(OwnedFd, BlobStat)> {
        // SAFETY: the caller's promise: blob_fd answers with a skg_blob_opened, whose descriptor it gives away.
        unsafe { answer::blob_fd(p.cast()) }
    }
}

pub(crate) struct BlobDelete(pub(crate) Blob);

wraps!(BlobDelete(Blob));

impl Ask<StorageTable> for BlobDelete {
    const NAME: &'static str = "blob_delete";
    const CODE: u8 = 27;
    type Answer = ();
    fn tenant(&self) -> &str {
        &self.0.tenant
    }
    fn invoke(&self, t: &StorageTable, op: abi::Op) -> i32 {
        invoke!(t.blob_delete(op, self.0.tenant(), self.0.id()))
    }
    unsafe fn read(&self, _: *const c_void) -> Read<()> {
        Ok(())
    }
}

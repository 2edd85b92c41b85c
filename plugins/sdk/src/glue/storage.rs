//! `skg_storage` over [`Storage`].

use std::ffi::c_void;
use std::mem::size_of;
use std::sync::Arc;

use skillgate_plugin_abi as abi;

use super::host_table::HostTable;
use super::instance::Instance;
use super::panics::{guard, quietly};
use super::{convert, create};
use crate::model::{Error, SkillRef};
use crate::storage::{BlobBuffer, BlobData};
use crate::wire::Malformed;
use crate::Storage;

/// An instance: the table that the host sees, and what is behind it.
pub(super) struct Cell<S> {
    table: abi::Storage,
    pub(super) instance: Arc<Instance<S>>,
}

/// The factory of a storage plugin.
#[must_use]
pub const fn factory<S: Storage>() -> abi::StorageFactory {
    made_by(create_instance::<S, false>)
}

type Create = unsafe extern "C" fn(
    *const abi::Host,
    *const abi::CreateRequest,
    *mut *const abi::Storage,
    *mut abi::Error,
) -> i32;

pub(super) const fn made_by(create: Create) -> abi::StorageFactory {
    abi::StorageFactory {
        struct_size: size_of::<abi::StorageFactory>() as u32,
        reserved: 0,
        create: Some(create),
    }
}

/// `BLOCKING`: every answer of the plugin comes before its call returns, and so does that of drain().
pub(super) unsafe extern "C" fn create_instance<S: Storage, const BLOCKING: bool>(
    host: *const abi::Host,
    request: *const abi::CreateRequest,
    out: *mut *const abi::Storage,
    err: *mut abi::Error,
) -> i32 {
    let make = |host: Arc<HostTable>, request| {
        let store = S::create(host.facade(), request)?;
        let cell = Cell {
            table: table::<S, BLOCKING>(),
            instance: Instance::new(host, store),
        };
        let cell = Box::into_raw(Box::new(cell));
        // SAFETY: made just now, nobody else has it yet. The table's self is the cell, until destroy.
        unsafe {
            (*cell).table.self_ = cell.cast();
            Ok(std::ptr::addr_of!((*cell).table))
        }
    };
    // SAFETY: create()'s own arguments.
    unsafe { create(host, request, out, err, make) }
}

/// # Safety
/// `self_` is that of a table made by [`create_instance`] for the same `S`, and not destroyed.
unsafe fn instance<'a, S>(self_: *mut c_void) -> &'a Arc<Instance<S>> {
    // SAFETY: the caller's promise; a cell is only shared until destroy.
    unsafe { &(*self_.cast::<Cell<S>>()).instance }
}

fn table<S: Storage, const BLOCKING: bool>() -> abi::Storage {
    abi::Storage {
        struct_size: size_of::<abi::Storage>() as u32,
        reserved: 0,
        self_: std::ptr::null_mut(),
        caps: Some(caps::<S>),
        cancel: Some(cancel::<S>),
        health: Some(health::<S>),
        drain: Some(drain::<S, BLOCKING>),
        destroy: Some(destroy::<S>),
        get_extension: None,
        skill_list: Some(skill_list::<S>),
        skill_get: Some(skill_get::<S>),
        skill_read: Some(skill_read::<S>),
        skill_tree: Some(skill_tree::<S>),
        skill_put: Some(skill_put::<S>),
        blob_create: Some(blob_create::<S>),
        blob_write: Some(blob_write::<S>),
        blob_commit: Some(blob_commit::<S>),
        blob_abort: Some(blob_abort::<S>),
        blob_stat: Some(blob_stat::<S>),
        blob_open: Some(blob_open::<S>),
        blob_read: Some(blob_read::<S>),
        blob_close: Some(blob_close::<S>),
        blob_fd: Some(blob_fd::<S>),
        blob_delete: Some(blob_delete::<S>),
    }
}

/// Functions of the table that complete an op: read the arguments, hand them to the plugin, encode the answer. `begin` is
/// refused while the instance drains, `resume` goes on with a writer or reader that is open.
macro_rules! functions {
    ($($how:ident fn $name:ident($($arg:ident: $t:ty),*) $read:block
        => $ask:expr => $encode:expr;)+) => { $(
        unsafe extern "C" fn $name<S: Storage>(self_: *mut c_void, op: abi::Op $(, $arg: $t)*) -> i32 {
            // SAFETY: the contract: the table's own self, before destroy.
            let instance = unsafe { instance::<S>(self_) };
            let read = || -> Result<_, Malformed> { $read };
            instance.serve(op, functions!(@$how instance), read, $ask, $encode)
        }
    )+ };
    (@begin $instance:ident) => { $instance.calls.begin().map(Some) };
    (@resume $instance:ident) => { Ok(Some($instance.calls.resume())) };
}

/// # Safety
/// The host's arguments, good during the call.
unsafe fn which(tenant: abi::Str, r: *const abi::SkillRef) -> Result<SkillRef, Malformed> {
    // SAFETY: the caller's promise.
    unsafe {
        let tenant = convert::text(tenant, "tenant")?;
        let (name, version) = convert::skill_ref(r)?;
        Ok(SkillRef {
            tenant,
            name,
            version,
        })
    }
}

/// # Safety
/// The host's arguments, good during the call.
unsafe fn blob(tenant: abi::Str, id: abi::Str) -> Result<(String, String), Malformed> {
    // SAFETY: the caller's promise.
    unsafe { Ok((convert::text(tenant, "tenant")?, convert::text(id, "id")?)) }
}

functions! {
    begin fn skill_list(r: *const abi::ListRequest) {
        // SAFETY: the contract: the request is good during the call.
        unsafe { convert::list(r) }
    } => S::skill_list => |_, page, complete| convert::skill_page(page, complete);
    begin fn skill_get(tenant: abi::Str, r: *const abi::SkillRef) {
        // SAFETY: the contract: the arguments are good during the call.
        unsafe { which(tenant, r) }
    } => S::skill_get => |_, skill, complete| convert::skill(skill, complete);
    begin fn skill_read(tenant: abi::Str, r: *const abi::SkillRef, path: abi::Str) {
        // SAFETY: the contract: the arguments are good during the call.
        unsafe { Ok((which(tenant, r)?, convert::text(path, "path")?)) }
    } => |store, (which, path), reply| store.skill_read(which, path, reply)
      => |_, content, complete| convert::content(content, complete);
    begin fn skill_tree(tenant: abi::Str, r: *const abi::SkillRef) {
        // SAFETY: the contract: the arguments are good during the call.
        unsafe { which(tenant, r) }
    } => S::skill_tree => |_, content, complete| convert::content(content, complete);
    begin fn skill_put(r: *const abi::PutSkill) {
        // SAFETY: the contract: the request is good during the call.
        unsafe { convert::put(r) }
    } => S::skill_put => |_, skill, complete| convert::skill(skill, complete);
    begin fn blob_create(r: *const abi::BlobCreateRequest) {
        // SAFETY: the contract: the request is good during the call.
        unsafe { convert::blob_create(r) }
    } => S::blob_create => |instance, writer, complete| {
        // A host that does not take the writer will not end it either.
        if convert::handle(writer, complete) != abi::OK {
            instance.with(|store| store.blob_abort(writer));
        }
    };
    resume fn blob_write(writer: u64, data: abi::Bytes) {
        // SAFETY: the contract: data is good until the op completes, and BlobData ends with that.
        unsafe { convert::data(data, "data") }
    } => |store, data, reply| {
        // SAFETY: as above.
        store.blob_write(writer, unsafe { BlobData::new(data, reply) })
    } => |_, none, complete| convert::none(none, complete);
    resume fn blob_commit(writer: u64) { Ok(writer) }
      => S::blob_commit => |_, stat, complete| convert::blob_stat(stat, complete);
    begin fn blob_stat(tenant: abi::Str, id: abi::Str) {
        // SAFETY: the contract: the arguments are good during the call.
        unsafe { blob(tenant, id) }
    } => |store, (tenant, id), reply| store.blob_stat(tenant, id, reply)
      => |_, stat, complete| convert::blob_stat(stat, complete);
    begin fn blob_open(tenant: abi::Str, id: abi::Str, offset: u64, len: u64) {
        // SAFETY: the contract: the arguments are good during the call.
        unsafe { blob(tenant, id) }
    } => |store, (tenant, id), reply| store.blob_open(tenant, id, offset, len, reply)
      => |instance, (reader, stat), complete| {
        // A host that does not take the reader will not close it either.
        if convert::blob_reader(reader, &stat, complete) != abi::OK {
            instance.with(|store| store.blob_close(reader));
        }
    };
    resume fn blob_read(reader: u64, buf: *mut c_void, cap: u64) {
        // SAFETY: the contract: buf is the callee's until the op completes, and initialised. BlobBuffer ends with that.
        unsafe { convert::buffer(buf, cap) }
    } => |store, room, reply| {
        // SAFETY: as above.
        store.blob_read(reader, unsafe { BlobBuffer::new(room, reply) })
    } => |_, count, complete| convert::count(count, complete);
    begin fn blob_fd(tenant: abi::Str, id: abi::Str) {
        // SAFETY: the contract: the arguments are good during the call.
        unsafe { blob(tenant, id) }
    } => |store, (tenant, id), reply| store.blob_fd(tenant, id, reply)
      => |_, opened, complete| convert::blob_fd(opened, complete);
    begin fn blob_delete(tenant: abi::Str, id: abi::Str) {
        // SAFETY: the contract: the arguments are good during the call.
        unsafe { blob(tenant, id) }
    } => |store, (tenant, id), reply| store.blob_delete(tenant, id, reply)
      => |_, none, complete| convert::none(none, complete);
}

unsafe extern "C" fn caps<S: Storage>(self_: *mut c_void, out: *mut u32) -> i32 {
    let caps = guard(|| {
        if out.is_null() {
            return Err(Error::new(abi::E_INVALID_ARGUMENT, "out is null"));
        }
        // SAFETY: the contract: the table's own self, before destroy.
        let caps = unsafe { instance::<S>(self_) }.with(S::caps);
        caps.ok_or_else(|| Error::new(abi::E_STALE, "the instance is destroyed"))
    });
    match caps {
        Ok(caps) => {
            // SAFETY: not null, and the host's to be written.
            unsafe { out.write(caps) };
            abi::OK
        }
        Err(error) => error.code,
    }
}

unsafe extern "C" fn health<S: Storage>(self_: *mut c_void, op: abi::Op) -> i32 {
    // SAFETY: the contract: the table's own self, before destroy.
    let instance = unsafe { instance::<S>(self_) };
    instance.serve(
        op,
        Ok(None),
        || Ok(()),
        |store, (), reply| store.health(reply),
        |_, health, complete| convert::health(health, complete),
    )
}

unsafe extern "C" fn drain<S: Storage, const BLOCKING: bool>(
    self_: *mut c_void,
    op: abi::Op,
) -> i32 {
    // SAFETY: the contract: the table's own self, before destroy.
    let instance = unsafe { instance::<S>(self_) };
    if BLOCKING {
        instance.drain_here(op, S::drain)
    } else {
        instance.drain(op, S::drain)
    }
}

unsafe extern "C" fn cancel<S: Storage>(self_: *mut c_void, op: abi::Op) {
    // SAFETY: the contract: the table's own self, before destroy.
    let instance = unsafe { instance::<S>(self_) };
    instance.cancel(op);
}

unsafe extern "C" fn blob_abort<S: Storage>(self_: *mut c_void, writer: u64) {
    // SAFETY: the contract: the table's own self, before destroy.
    let instance = unsafe { instance::<S>(self_) };
    let _call = instance.calls.resume();
    quietly(|| {
        instance.with(|store| store.blob_abort(writer));
    });
}

unsafe extern "C" fn blob_close<S: Storage>(self_: *mut c_void, reader: u64) {
    // SAFETY: the contract: the table's own self, before destroy.
    let instance = unsafe { instance::<S>(self_) };
    let _call = instance.calls.resume();
    quietly(|| {
        instance.with(|store| store.blob_close(reader));
    });
}

unsafe extern "C" fn destroy<S: Storage>(self_: *mut c_void) {
    // SAFETY: the contract: once, after all ops are complete. The box that create_instance gave up.
    let cell = unsafe { Box::from_raw(self_.cast::<Cell<S>>()) };
    cell.instance.destroy();
}

//! `skg_storage` over [`Storage`].

use std::ffi::c_void;
use std::mem::size_of;
use std::sync::Arc;

use skillgate_plugin_abi as abi;

use super::in_flight::InFlight;
use super::{convert, create, guard, malformed, quietly, HostTable};
use crate::model::Error;
use crate::Storage;

/// An instance: the table that the host sees, and what is behind it.
pub(super) struct Cell<S> {
    table: abi::Storage,
    host: Arc<HostTable>,
    pub(super) store: S,
    pub(super) calls: InFlight,
}

/// The factory of a storage plugin.
#[must_use]
pub const fn factory<S: Storage>() -> abi::StorageFactory {
    abi::StorageFactory {
        struct_size: size_of::<abi::StorageFactory>() as u32,
        reserved: 0,
        create: Some(create_instance::<S>),
    }
}

unsafe extern "C" fn create_instance<S: Storage>(
    host: *const abi::Host,
    request: *const abi::CreateRequest,
    out: *mut *const abi::Storage,
    err: *mut abi::Error,
) -> i32 {
    let make = |host: Arc<HostTable>, request| {
        let store = S::create(host.facade(), request)?;
        let cell = Cell {
            table: table::<S>(),
            host,
            store,
            calls: InFlight::default(),
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
unsafe fn cell<'a, S>(self_: *mut c_void) -> &'a Cell<S> {
    // SAFETY: the caller's promise; a cell is only shared until destroy.
    unsafe { &*self_.cast::<Cell<S>>() }
}

fn table<S: Storage>() -> abi::Storage {
    abi::Storage {
        struct_size: size_of::<abi::Storage>() as u32,
        reserved: 0,
        self_: std::ptr::null_mut(),
        caps: Some(caps::<S>),
        cancel: Some(cancel::<S>),
        health: Some(health::<S>),
        drain: Some(drain::<S>),
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

/// Functions of the table that complete an op: the body reads the arguments and calls the trait, the encoder lends the
/// answer. `begin` is refused while the instance drains, `resume` goes on with a writer or reader that is open.
macro_rules! functions {
    ($($how:ident fn $name:ident($cell:ident $(, $arg:ident: $t:ty)*) $body:block => $encode:expr;)+) => { $(
        unsafe extern "C" fn $name<S: Storage>(self_: *mut c_void, op: abi::Op $(, $arg: $t)*) -> i32 {
            // SAFETY: the contract: the table's own self, before destroy.
            let $cell = unsafe { cell::<S>(self_) };
            functions!(@$how $cell, op, || $body, $encode)
        }
    )+ };
    (@begin $cell:ident, $op:ident, $body:expr, $encode:expr) => {
        $cell.host.serve_new(&$cell.calls, $op, $body, $encode)
    };
    (@resume $cell:ident, $op:ident, $body:expr, $encode:expr) => {{
        let _call = $cell.calls.resume();
        $cell.host.serve($op, $body, $encode)
    }};
}

functions! {
    begin fn skill_list(c, r: *const abi::ListRequest) {
        // SAFETY: the contract: the request is good during the call.
        let query = unsafe { convert::list(r) }.map_err(malformed)?;
        c.store.skill_list(&query)
    } => convert::skill_page;
    begin fn skill_get(c, tenant: abi::Str, r: *const abi::SkillRef) {
        // SAFETY: the contract: the arguments are good during the call.
        let (tenant, which) = unsafe { (convert::text(tenant, "tenant"), convert::skill_ref(r)) };
        let (tenant, (name, version)) = (tenant.map_err(malformed)?, which.map_err(malformed)?);
        c.store.skill_get(&tenant, &name, &version)
    } => convert::skill;
    begin fn skill_read(c, tenant: abi::Str, r: *const abi::SkillRef, path: abi::Str) {
        // SAFETY: the contract: the arguments are good during the call.
        let (tenant, which, path) = unsafe {
            (convert::text(tenant, "tenant"), convert::skill_ref(r), convert::text(path, "path"))
        };
        let (tenant, (name, version)) = (tenant.map_err(malformed)?, which.map_err(malformed)?);
        c.store.skill_read(&tenant, &name, &version, &path.map_err(malformed)?)
    } => convert::content;
    begin fn skill_tree(c, tenant: abi::Str, r: *const abi::SkillRef) {
        // SAFETY: the contract: the arguments are good during the call.
        let (tenant, which) = unsafe { (convert::text(tenant, "tenant"), convert::skill_ref(r)) };
        let (tenant, (name, version)) = (tenant.map_err(malformed)?, which.map_err(malformed)?);
        c.store.skill_tree(&tenant, &name, &version)
    } => convert::content;
    begin fn skill_put(c, r: *const abi::PutSkill) {
        // SAFETY: the contract: the request is good during the call.
        let put = unsafe { convert::put(r) }.map_err(malformed)?;
        c.store.skill_put(&put)
    } => convert::skill;
    begin fn blob_create(c, r: *const abi::BlobCreateRequest) {
        // SAFETY: the contract: the request is good during the call.
        let request = unsafe { convert::blob_create(r) }.map_err(malformed)?;
        c.store.blob_create(&request)
    } => |writer, complete| {
        // A host that does not take the writer will not end it either.
        if convert::handle(writer, complete) != abi::OK {
            c.store.blob_abort(writer);
        }
    };
    resume fn blob_write(c, writer: u64, data: abi::Bytes) {
        // SAFETY: the contract: data is good until the op completes.
        let data = unsafe { convert::data(data, "data") }.map_err(malformed)?;
        c.store.blob_write(writer, data)
    } => convert::none;
    resume fn blob_commit(c, writer: u64) { c.store.blob_commit(writer) } => convert::blob_stat;
    begin fn blob_stat(c, tenant: abi::Str, id: abi::Str) {
        // SAFETY: the contract: the arguments are good during the call.
        let (tenant, id) = unsafe { (convert::text(tenant, "tenant"), convert::text(id, "id")) };
        c.store.blob_stat(&tenant.map_err(malformed)?, &id.map_err(malformed)?)
    } => convert::blob_stat;
    begin fn blob_open(c, tenant: abi::Str, id: abi::Str, offset: u64, len: u64) {
        // SAFETY: the contract: the arguments are good during the call.
        let (tenant, id) = unsafe { (convert::text(tenant, "tenant"), convert::text(id, "id")) };
        c.store.blob_open(&tenant.map_err(malformed)?, &id.map_err(malformed)?, offset, len)
    } => |(reader, stat), complete| {
        // A host that does not take the reader will not close it either.
        if convert::blob_reader(reader, &stat, complete) != abi::OK {
            c.store.blob_close(reader);
        }
    };
    resume fn blob_read(c, reader: u64, buf: *mut c_void, cap: u64) {
        // SAFETY: the contract: buf is the callee's until the op completes, and initialised.
        let buf = unsafe { convert::buffer(buf, cap) }.map_err(malformed)?;
        c.store.blob_read(reader, buf)
    } => convert::count;
    begin fn blob_fd(c, tenant: abi::Str, id: abi::Str) {
        // SAFETY: the contract: the arguments are good during the call.
        let (tenant, id) = unsafe { (convert::text(tenant, "tenant"), convert::text(id, "id")) };
        c.store.blob_fd(&tenant.map_err(malformed)?, &id.map_err(malformed)?)
    } => convert::blob_fd;
    begin fn blob_delete(c, tenant: abi::Str, id: abi::Str) {
        // SAFETY: the contract: the arguments are good during the call.
        let (tenant, id) = unsafe { (convert::text(tenant, "tenant"), convert::text(id, "id")) };
        c.store.blob_delete(&tenant.map_err(malformed)?, &id.map_err(malformed)?)
    } => convert::none;
}

unsafe extern "C" fn caps<S: Storage>(self_: *mut c_void, out: *mut u32) -> i32 {
    let caps = guard(|| {
        if out.is_null() {
            return Err(Error::new(abi::E_INVALID_ARGUMENT, "out is null"));
        }
        // SAFETY: the contract: the table's own self, before destroy.
        Ok(unsafe { cell::<S>(self_) }.store.caps())
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
    let cell = unsafe { cell::<S>(self_) };
    cell.host.serve(op, || cell.store.health(), convert::health)
}

unsafe extern "C" fn drain<S: Storage>(self_: *mut c_void, op: abi::Op) -> i32 {
    // SAFETY: the contract: the table's own self, before destroy.
    let cell = unsafe { cell::<S>(self_) };
    cell.host
        .serve_drain(&cell.calls, op, || cell.store.drain())
}

/// Calls of the trait answer before they return: only a drain waits for others.
unsafe extern "C" fn cancel<S: Storage>(self_: *mut c_void, _op: abi::Op) {
    // SAFETY: the contract: the table's own self, before destroy.
    unsafe { cell::<S>(self_) }.calls.look_again();
}

unsafe extern "C" fn blob_abort<S: Storage>(self_: *mut c_void, writer: u64) {
    // SAFETY: the contract: the table's own self, before destroy.
    let cell = unsafe { cell::<S>(self_) };
    let _call = cell.calls.resume();
    quietly(|| cell.store.blob_abort(writer));
}

unsafe extern "C" fn blob_close<S: Storage>(self_: *mut c_void, reader: u64) {
    // SAFETY: the contract: the table's own self, before destroy.
    let cell = unsafe { cell::<S>(self_) };
    let _call = cell.calls.resume();
    quietly(|| cell.store.blob_close(reader));
}

unsafe extern "C" fn destroy<S: Storage>(self_: *mut c_void) {
    // SAFETY: the contract: once, after all ops are complete. The box that create_instance gave up.
    let cell = unsafe { Box::from_raw(self_.cast::<Cell<S>>()) };
    let host = Arc::clone(&cell.host);
    quietly(|| drop(cell));
    host.shut();
}

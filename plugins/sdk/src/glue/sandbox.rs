//! `skg_sandbox` over [`Sandbox`].

use std::ffi::c_void;
use std::mem::size_of;
use std::sync::Arc;

use skillgate_plugin_abi as abi;

use super::host_table::HostTable;
use super::instance::Instance;
use super::panics::{guard, quietly};
use super::services::Services;
use super::{convert, create};
use crate::model::Error;
use crate::reply::Reply;
use crate::{wire, Sandbox};

/// An instance: the table that the host sees, and what is behind it.
pub(super) struct Cell<S> {
    table: abi::Sandbox,
    pub(super) instance: Arc<Instance<S>>,
}

/// The factory of a sandbox plugin.
#[must_use]
pub const fn factory<S: Sandbox>() -> abi::SandboxFactory {
    made_by(create_instance::<S, false>)
}

type Create = unsafe extern "C" fn(
    *const abi::Host,
    *const abi::CreateRequest,
    *mut *const abi::Sandbox,
    *mut abi::Error,
) -> i32;

pub(super) const fn made_by(create: Create) -> abi::SandboxFactory {
    abi::SandboxFactory {
        struct_size: size_of::<abi::SandboxFactory>() as u32,
        reserved: 0,
        create: Some(create),
    }
}

/// `BLOCKING`: every answer of the plugin comes before its call returns, and so does that of drain().
pub(super) unsafe extern "C" fn create_instance<S: Sandbox, const BLOCKING: bool>(
    host: *const abi::Host,
    request: *const abi::CreateRequest,
    out: *mut *const abi::Sandbox,
    err: *mut abi::Error,
) -> i32 {
    let make = |host: Arc<HostTable>, request| {
        let sandbox = S::create(host.facade(), request)?;
        let cell = Cell {
            table: table::<S, BLOCKING>(),
            instance: Instance::new(host, sandbox),
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

fn table<S: Sandbox, const BLOCKING: bool>() -> abi::Sandbox {
    abi::Sandbox {
        struct_size: size_of::<abi::Sandbox>() as u32,
        reserved: 0,
        self_: std::ptr::null_mut(),
        caps: Some(caps::<S>),
        run: Some(run::<S>),
        cancel: Some(cancel::<S>),
        health: Some(health::<S>),
        drain: Some(drain::<S, BLOCKING>),
        destroy: Some(destroy::<S>),
        get_extension: None,
    }
}

unsafe extern "C" fn caps<S: Sandbox>(self_: *mut c_void, out: *mut abi::SandboxCaps) -> i32 {
    let caps = guard(|| {
        // SAFETY: the contract: the table's own self, before destroy.
        let caps = unsafe { instance::<S>(self_) }.with(S::caps);
        caps.ok_or_else(|| Error::new(abi::E_STALE, "the instance is destroyed"))
    });
    match caps {
        Ok(caps) => {
            let caps = abi::SandboxCaps {
                struct_size: wire::size_of_u32::<abi::SandboxCaps>(),
                egress: caps.egress,
                max_concurrent: caps.max_concurrent,
                isolation: caps.isolation,
                max_memory_bytes: caps.max_memory_bytes,
                max_timeout_ms: caps.max_timeout_ms,
                enforces: caps.enforces,
                reserved: 0,
            };
            // SAFETY: the contract: out says how large it is, and is the host's to be written.
            unsafe { wire::fill(out, &caps) };
            abi::OK
        }
        Err(error) => error.code,
    }
}

unsafe extern "C" fn run<S: Sandbox>(
    self_: *mut c_void,
    op: abi::Op,
    r: *const abi::RunRequest,
) -> i32 {
    // SAFETY: the contract: the table's own self, before destroy.
    let instance = unsafe { instance::<S>(self_) };
    let call = match instance.calls.begin() {
        Ok(call) => call,
        Err(error) => {
            instance.host.fail(op, &error);
            return abi::OK;
        }
    };
    let services = Arc::new(Services::new(&instance.host, op));
    let (host, of_run) = (Arc::clone(&instance.host), Arc::clone(&services));
    let reply = Reply::new(op, instance.origin(), move |result| {
        of_run.end();
        host.end(op, result, convert::run_result);
        drop(call);
    });
    let work = || {
        // SAFETY: the contract: the request is good during the call.
        match unsafe { convert::run(r) } {
            Err(error) => reply.fail(error.into()),
            Ok(_) if reply.cancelled() => reply.fail(cancelled_before()),
            Ok(request) => {
                instance.with(|sandbox| sandbox.run(request, services, reply));
            }
        }
    };
    instance.host.about(op, || quietly(work));
    abi::OK
}

/// The end of a run that the plugin has not begun.
pub(super) fn cancelled_before() -> Error {
    Error::new(abi::E_CANCELLED, "cancelled before it began").not_executed()
}

unsafe extern "C" fn cancel<S: Sandbox>(self_: *mut c_void, op: abi::Op) {
    // SAFETY: the contract: the table's own self, before destroy.
    let instance = unsafe { instance::<S>(self_) };
    instance.cancel(op);
}

unsafe extern "C" fn health<S: Sandbox>(self_: *mut c_void, op: abi::Op) -> i32 {
    // SAFETY: the contract: the table's own self, before destroy.
    let instance = unsafe { instance::<S>(self_) };
    instance.serve(
        op,
        Ok(None),
        || Ok(()),
        |sandbox, (), reply| sandbox.health(reply),
        |_, health, complete| convert::health(health, complete),
    )
}

unsafe extern "C" fn drain<S: Sandbox, const BLOCKING: bool>(
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

unsafe extern "C" fn destroy<S: Sandbox>(self_: *mut c_void) {
    // SAFETY: the contract: once, after all ops are complete. The box that create_instance gave up.
    let cell = unsafe { Box::from_raw(self_.cast::<Cell<S>>()) };
    cell.instance.destroy();
}

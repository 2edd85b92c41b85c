//! `skg_sandbox` over [`Sandbox`], and [`RunServices`] over the host's table.

use std::collections::HashMap;
use std::ffi::c_void;
use std::mem::size_of;
use std::os::unix::io::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use skillgate_plugin_abi as abi;

use super::in_flight::InFlight;
use super::{convert, create, guard, malformed, quietly, HostTable};
use crate::model::{Error, Result};
use crate::{wire, RunServices, Sandbox};

/// An instance: the table that the host sees, and what is behind it.
pub(super) struct Cell<S> {
    table: abi::Sandbox,
    host: Arc<HostTable>,
    pub(super) sandbox: S,
    runs: Runs,
    pub(super) calls: InFlight,
}

/// The host cancels ops, the trait cancels runs.
#[derive(Default)]
struct Runs(Mutex<HashMap<abi::Op, String>>);

impl Runs {
    fn lock(&self) -> MutexGuard<'_, HashMap<abi::Op, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// The op is known by its run's id as long as the result lives.
    fn know(&self, op: abi::Op, run_id: &str) -> Known<'_> {
        self.lock().insert(op, run_id.to_owned());
        Known { runs: self, op }
    }
}

struct Known<'a> {
    runs: &'a Runs,
    op: abi::Op,
}

impl Drop for Known<'_> {
    fn drop(&mut self) {
        self.runs.lock().remove(&self.op);
    }
}

/// The factory of a sandbox plugin.
#[must_use]
pub const fn factory<S: Sandbox>() -> abi::SandboxFactory {
    abi::SandboxFactory {
        struct_size: size_of::<abi::SandboxFactory>() as u32,
        reserved: 0,
        create: Some(create_instance::<S>),
    }
}

unsafe extern "C" fn create_instance<S: Sandbox>(
    host: *const abi::Host,
    request: *const abi::CreateRequest,
    out: *mut *const abi::Sandbox,
    err: *mut abi::Error,
) -> i32 {
    let make = |host: Arc<HostTable>, request| {
        let sandbox = S::create(host.facade(), request)?;
        let cell = Cell {
            table: table::<S>(),
            host,
            sandbox,
            runs: Runs::default(),
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

fn table<S: Sandbox>() -> abi::Sandbox {
    abi::Sandbox {
        struct_size: size_of::<abi::Sandbox>() as u32,
        reserved: 0,
        self_: std::ptr::null_mut(),
        caps: Some(caps::<S>),
        run: Some(run::<S>),
        cancel: Some(cancel::<S>),
        health: Some(health::<S>),
        drain: Some(drain::<S>),
        destroy: Some(destroy::<S>),
        get_extension: None,
    }
}

unsafe extern "C" fn caps<S: Sandbox>(self_: *mut c_void, out: *mut abi::SandboxCaps) -> i32 {
    // SAFETY: the contract: the table's own self, before destroy.
    match guard(|| Ok(unsafe { cell::<S>(self_) }.sandbox.caps())) {
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
    let cell = unsafe { cell::<S>(self_) };
    let body = || {
        // SAFETY: the contract: the request is good during the call.
        let request = unsafe { convert::run(r) }.map_err(malformed)?;
        let services = Services {
            host: &cell.host,
            op,
        };
        let _known = cell.runs.know(op, &request.run_id);
        // The host marks an op before it calls cancel: whoever cancelled before the op was known here is seen now.
        if services.cancelled() {
            let error = Error::new(abi::E_CANCELLED, "cancelled before it began");
            return Err(error.not_executed());
        }
        cell.sandbox.run(request, &services)
    };
    cell.host
        .serve_new(&cell.calls, op, body, convert::run_result)
}

unsafe extern "C" fn cancel<S: Sandbox>(self_: *mut c_void, op: abi::Op) {
    // SAFETY: the contract: the table's own self, before destroy.
    let cell = unsafe { cell::<S>(self_) };
    quietly(|| {
        // Not under the lock: the vendor's code may end the run right there.
        let run_id = cell.runs.lock().get(&op).cloned();
        match run_id {
            Some(run_id) => cell.sandbox.cancel(&run_id),
            // Not a run, or none yet: it may be a drain.
            None => cell.calls.look_again(),
        }
    });
}

unsafe extern "C" fn health<S: Sandbox>(self_: *mut c_void, op: abi::Op) -> i32 {
    // SAFETY: the contract: the table's own self, before destroy.
    let cell = unsafe { cell::<S>(self_) };
    cell.host
        .serve(op, || cell.sandbox.health(), convert::health)
}

unsafe extern "C" fn drain<S: Sandbox>(self_: *mut c_void, op: abi::Op) -> i32 {
    // SAFETY: the contract: the table's own self, before destroy.
    let cell = unsafe { cell::<S>(self_) };
    cell.host
        .serve_drain(&cell.calls, op, || cell.sandbox.drain())
}

unsafe extern "C" fn destroy<S: Sandbox>(self_: *mut c_void) {
    // SAFETY: the contract: once, after all ops are complete. The box that create_instance gave up.
    let cell = unsafe { Box::from_raw(self_.cast::<Cell<S>>()) };
    let host = Arc::clone(&cell.host);
    quietly(|| drop(cell));
    host.shut();
}

/// The host's services for one run. Lives only as long as the call of `run`.
struct Services<'a> {
    host: &'a HostTable,
    op: abi::Op,
}

/// Longest blob id that the contract allows.
const BLOB_ID_BYTES: usize = 128;
/// Room for a secret at first; longer ones say how long they are.
const SECRET_BYTES: usize = 4096;
const SECRET_BYTES_MAX: usize = 64 << 20;

fn lacks(what: &str) -> Error {
    Error::new(
        abi::E_UNIMPLEMENTED,
        format!("this host does not offer {what}"),
    )
}

/// A result of a host call: negative is an error.
fn answer(what: &str, code: impl Into<i64>) -> Result<i64> {
    let code = code.into();
    if code >= 0 {
        return Ok(code);
    }
    let code = i32::try_from(code).unwrap_or(abi::E_PROTOCOL);
    Err(Error::new(code, format!("the host refuses {what}")))
}

/// A length of a host call, at most `max`.
fn length(what: &str, n: i64, max: usize) -> Result<usize> {
    match usize::try_from(answer(what, n)?) {
        Ok(n) if n <= max => Ok(n),
        _ => {
            let message = format!("the host answers {what} with the length {n}, more than {max}");
            Err(Error::new(abi::E_PROTOCOL, message))
        }
    }
}

// In every SAFETY comment below: "in the run" means that the op is in flight, so that the host's table is valid, and
// that what the arguments point to is good during the call.
impl RunServices for Services<'_> {
    fn output(&self, stream: u32, data: &[u8]) -> bool {
        let f = match self.host.table.run_output {
            Some(f) => f,
            None => return false,
        };
        // SAFETY: in the run.
        unsafe { f(self.host.table.ctx, self.op, stream, abi::Bytes::of(data)) == abi::OK }
    }

    fn secret(&self, name: &str) -> Result<Vec<u8>> {
        let f = self
            .host
            .table
            .secret_read
            .ok_or_else(|| lacks("secret_read"))?;
        let mut buf = vec![0; SECRET_BYTES];
        for _ in 0..2 {
            let (ptr, cap) = (buf.as_mut_ptr().cast(), buf.len() as u64);
            // SAFETY: in the run; cap bytes are writable.
            let n = unsafe { f(self.host.table.ctx, self.op, abi::Str::of(name), ptr, cap) };
            let n = length("secret_read", n, SECRET_BYTES_MAX)?;
            if n <= buf.len() {
                buf.truncate(n);
                return Ok(buf);
            }
            // Nothing was copied: the secret is longer than the buffer, and this is how long.
            buf = vec![0; n];
        }
        Err(Error::new(
            abi::E_PROTOCOL,
            "the host answers secret_read with another length each time",
        ))
    }

    fn blob_fd(&self, id: &str) -> Result<OwnedFd> {
        let f = self.host.table.blob_fd.ok_or_else(|| lacks("blob_fd"))?;
        // SAFETY: in the run.
        let fd = unsafe { f(self.host.table.ctx, self.op, abi::Str::of(id)) };
        answer("blob_fd", fd)?;
        // SAFETY: the contract: a descriptor that is ours from here on.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    fn blob_read(&self, id: &str, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let f = self
            .host
            .table
            .blob_read
            .ok_or_else(|| lacks("blob_read"))?;
        let (ptr, cap) = (buf.as_mut_ptr().cast(), buf.len() as u64);
        // SAFETY: in the run; cap bytes are writable.
        let n = unsafe {
            f(
                self.host.table.ctx,
                self.op,
                abi::Str::of(id),
                offset,
                ptr,
                cap,
            )
        };
        length("blob_read", n, buf.len())
    }

    fn blob_create(&self, kind: &str) -> Result<i64> {
        let f = self
            .host
            .table
            .blob_create
            .ok_or_else(|| lacks("blob_create"))?;
        // SAFETY: in the run.
        let writer = unsafe { f(self.host.table.ctx, self.op, abi::Str::of(kind)) };
        answer("blob_create", writer)
    }

    fn blob_write(&self, writer: i64, data: &[u8]) -> Result<()> {
        let f = self
            .host
            .table
            .blob_write
            .ok_or_else(|| lacks("blob_write"))?;
        // SAFETY: in the run.
        let code = unsafe { f(self.host.table.ctx, self.op, writer, abi::Bytes::of(data)) };
        answer("blob_write", code).map(|_| ())
    }

    fn blob_finish(&self, writer: i64, commit: bool) -> Result<Option<String>> {
        let f = self
            .host
            .table
            .blob_finish
            .ok_or_else(|| lacks("blob_finish"))?;
        let mut id = [0; BLOB_ID_BYTES];
        let (ptr, cap) = (id.as_mut_ptr(), id.len() as u64);
        // SAFETY: in the run; cap bytes are writable.
        let n = unsafe {
            f(
                self.host.table.ctx,
                self.op,
                writer,
                i32::from(commit),
                ptr,
                cap,
            )
        };
        let n = length("blob_finish", n, id.len())?;
        if !commit {
            return Ok(None);
        }
        match std::str::from_utf8(&id[..n]) {
            Ok(id) => Ok(Some(id.to_owned())),
            Err(_) => Err(Error::new(
                abi::E_PROTOCOL,
                "the host gives a blob id that is not UTF-8",
            )),
        }
    }

    fn gate_serve(&self, listener: OwnedFd) -> Result<()> {
        let f = self
            .host
            .table
            .gate_serve
            .ok_or_else(|| lacks("gate_serve"))?;
        // SAFETY: in the run; the descriptor is open, and ours until the host says OK.
        let code = unsafe { f(self.host.table.ctx, self.op, listener.as_raw_fd()) };
        answer("gate_serve", code)?;
        // The host's now, and the host closes it.
        let _ = listener.into_raw_fd();
        Ok(())
    }

    fn cancelled(&self) -> bool {
        self.host.cancelled(self.op)
    }
}

//! The C side: what [`crate::export_plugin!`] puts between the contract's tables and the traits. Not part of the SDK's
//! promise to vendors.
//!
//! Nothing unwinds into C, nothing that the host gave is kept beyond its time, and every op that was accepted is
//! completed: a panic ends the op with `SKG_E_PANIC` and the panic's text.

mod convert;
mod in_flight;
mod sandbox;
mod storage;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{c_void, CStr};
use std::mem::size_of;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, Mutex, Once, PoisonError, RwLock, Weak};

use skillgate_plugin_abi as abi;

pub use sandbox::factory as sandbox_factory;
pub use storage::factory as storage_factory;

use in_flight::InFlight;

use crate::host::Service;
use crate::model::{CreateRequest, Error, Result};
use crate::wire::{self, Malformed};
use crate::{Host, Level};

// === the exported statics ===

/// Bytes of an ELF note before what it describes: three lengths and the owner.
const NOTE_HEAD_BYTES: usize = 3 * 4 + 12;

/// The ELF note of a plugin. The id is cut to what the note holds.
#[must_use]
pub const fn note(id: &str, flags: u32) -> abi::NoteV1 {
    let mut cut = [0; 44];
    let id = id.as_bytes();
    let mut i = 0;
    while i < id.len() && i < cut.len() - 1 {
        cut[i] = id[i];
        i += 1;
    }
    abi::NoteV1 {
        namesz: 10,
        descsz: (size_of::<abi::NoteV1>() - NOTE_HEAD_BYTES) as u32,
        type_: abi::NOTE_TYPE,
        name: *b"SkillGate\0\0\0",
        magic: abi::MAGIC,
        abi_major: abi::ABI_MAJOR,
        abi_minor: abi::ABI_MINOR,
        min_host_minor: 0,
        flags,
        id: cut,
    }
}

/// The entry of a plugin.
#[must_use]
pub const fn entry(
    info: &'static abi::PluginInfo,
    flags: u32,
    get_factory: unsafe extern "C" fn(*const u8) -> *const c_void,
) -> abi::EntryV1 {
    abi::EntryV1 {
        magic: abi::MAGIC,
        struct_size: size_of::<abi::EntryV1>() as u32,
        abi_major: abi::ABI_MAJOR,
        abi_minor: abi::ABI_MINOR,
        min_host_minor: 0,
        flags,
        info,
        get_factory: Some(get_factory),
    }
}

/// The factory with this id, which ends with its NUL. From the first question on, panics of the plugin go to the host's log.
///
/// # Safety
/// `id` is null or NUL-terminated.
#[must_use]
pub unsafe fn find_factory(id: *const u8, factories: &[(&[u8], *const c_void)]) -> *const c_void {
    log_panics();
    // SAFETY: the caller's promise.
    unsafe { pick_factory(id, factories) }
}

/// # Safety
/// `id` is null or NUL-terminated.
unsafe fn pick_factory(id: *const u8, factories: &[(&[u8], *const c_void)]) -> *const c_void {
    if id.is_null() {
        return std::ptr::null();
    }
    // SAFETY: not null; the caller's promise.
    let id = unsafe { CStr::from_ptr(id.cast()) }.to_bytes_with_nul();
    factories
        .iter()
        .find(|(kind, _)| *kind == id)
        .map_or(std::ptr::null(), |(_, factory)| *factory)
}

// === the host's table ===

/// The host as one instance has it. Shut before destroy() returns, so that what outlives the instance is not a call into
/// the host.
pub(crate) struct HostTable {
    table: abi::Host,
    open: RwLock<bool>,
}

// SAFETY: the contract: every function of the table is thread-safe; the pointers are valid until destroy() has returned,
// and `open` says so.
unsafe impl Send for HostTable {}
// SAFETY: as above.
unsafe impl Sync for HostTable {}

impl HostTable {
    /// # Safety
    /// `host` is the table given to create().
    unsafe fn new(host: *const abi::Host) -> Result<Arc<Self>, Malformed> {
        // SAFETY: the caller's promise.
        let table = unsafe { wire::prefix(host, "host") }?;
        if table.abi_major != abi::ABI_MAJOR {
            return Err(Malformed(format!(
                "host: major {} of the contract",
                table.abi_major
            )));
        }
        if table.complete.is_none() {
            return Err(Malformed("host: complete is null".into()));
        }
        let host = Arc::new(HostTable {
            table,
            open: RwLock::new(true),
        });
        instances().push(Arc::downgrade(&host));
        Ok(host)
    }

    fn shut(&self) {
        *self.open.write().unwrap_or_else(PoisonError::into_inner) = false;
    }

    fn facade(self: &Arc<Self>) -> Host {
        Host {
            service: Arc::<Self>::clone(self),
        }
    }

    /// Would the host keep such a record? It must be open.
    fn keeps(&self, level: Level, target: &str) -> bool {
        match (self.table.log, self.table.log_enabled) {
            // SAFETY: open: the table is valid; the target is readable during the call.
            (Some(_), Some(enabled)) => unsafe {
                enabled(self.table.ctx, level as u32, abi::Str::of(target)) != 0
            },
            (log, _) => log.is_some(),
        }
    }

    fn complete(&self, op: abi::Op, completion: &abi::Completion) -> i32 {
        match self.table.complete {
            // SAFETY: an op in flight keeps the instance and so the table; the completion is readable during the call.
            Some(complete) => unsafe { complete(self.table.ctx, op, completion) },
            None => abi::E_UNIMPLEMENTED,
        }
    }

    /// Ends an op with a result struct of the contract, or null for "none".
    fn answer(&self, op: abi::Op, result: *const c_void) -> i32 {
        self.complete(
            op,
            &abi::Completion {
                struct_size: wire::size_of_u32::<abi::Completion>(),
                status: abi::OK,
                error: std::ptr::null(),
                result,
            },
        )
    }

    fn fail(&self, op: abi::Op, error: &Error) -> i32 {
        let code = if error.code < 0 {
            error.code
        } else {
            abi::E_INTERNAL
        };
        let error = c_error(error, code);
        self.complete(
            op,
            &abi::Completion {
                struct_size: wire::size_of_u32::<abi::Completion>(),
                status: code,
                error: std::ptr::addr_of!(error),
                result: std::ptr::null(),
            },
        )
    }

    /// Does the host no longer want this op?
    fn cancelled(&self, op: abi::Op) -> bool {
        match self.table.op_cancelled {
            // SAFETY: an op in flight keeps the instance and so the table.
            Some(cancelled) => unsafe { cancelled(self.table.ctx, op) == 1 },
            None => false,
        }
    }

    /// Serves one op that begins something: refused while the instance drains. In flight until it is completed.
    fn serve_new<A>(
        &self,
        calls: &InFlight,
        op: abi::Op,
        body: impl FnOnce() -> Result<A>,
        encode: impl FnOnce(A, &mut dyn FnMut(*const c_void) -> i32),
    ) -> i32 {
        match calls.begin() {
            Ok(_call) => self.serve(op, body, encode),
            Err(error) => {
                self.fail(op, &error);
                abi::OK
            }
        }
    }

    /// Serves drain(): `hook` is the plugin's own part of it.
    fn serve_drain(&self, calls: &InFlight, op: abi::Op, hook: impl FnOnce() -> Result<()>) -> i32 {
        let body = || {
            calls.drain(|| self.cancelled(op))?;
            hook()
        };
        self.serve(op, body, convert::none)
    }

    /// Serves one op: `body` does the work, `encode` lends the answer as a C struct. Always accepted, always completed.
    fn serve<A>(
        &self,
        op: abi::Op,
        body: impl FnOnce() -> Result<A>,
        encode: impl FnOnce(A, &mut dyn FnMut(*const c_void) -> i32),
    ) -> i32 {
        match guard(body) {
            Ok(answer) => {
                let mut completed = false;
                let mut complete = |result: *const c_void| {
                    completed = true;
                    self.answer(op, result)
                };
                let encoded = guard(|| {
                    encode(answer, &mut complete);
                    Ok(())
                });
                match encoded {
                    Err(error) if !completed => {
                        self.fail(op, &error);
                    }
                    _ => {}
                }
            }
            Err(error) => {
                self.fail(op, &error);
            }
        }
        abi::OK
    }
}

impl Service for HostTable {
    fn log(&self, level: Level, target: &str, message: &str, fields: &[(&str, &str)]) -> bool {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        if !*open {
            return false;
        }
        let log = match self.table.log {
            Some(log) if self.keeps(level, target) => log,
            _ => return true,
        };
        let fields: Vec<_> = fields
            .iter()
            .map(|(k, v)| abi::Kv {
                key: abi::Str::of(k),
                value: abi::Str::of(v),
            })
            .collect();
        let record = abi::LogRecord {
            struct_size: wire::size_of_u32::<abi::LogRecord>(),
            level: level as u32,
            op: 0,
            target: abi::Str::of(target),
            message: abi::Str::of(message),
            fields: abi::List::of(&fields),
        };
        // SAFETY: open: the table is valid; the record is readable during the call.
        unsafe { log(self.table.ctx, std::ptr::addr_of!(record)) };
        true
    }

    fn log_enabled(&self, level: Level, target: &str) -> Option<bool> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.then(|| self.keeps(level, target))
    }
}

/// An error that borrows its texts.
fn c_error(error: &Error, code: i32) -> abi::Error {
    let mut flags = 0;
    if error.retryable {
        flags |= abi::ERR_RETRYABLE;
    }
    if error.not_executed {
        flags |= abi::ERR_NOT_EXECUTED;
    }
    abi::Error {
        struct_size: wire::size_of_u32::<abi::Error>(),
        code,
        flags,
        retry_after_ms: error.retry_after_ms,
        message: abi::Str::of(&error.message),
        detail_json: abi::Str::of(&error.detail_json),
    }
}

/// A request that breaks the contract.
fn malformed(e: Malformed) -> Error {
    Error::new(abi::E_INVALID_ARGUMENT, e.0).not_executed()
}

// === panics ===

/// Runs code of the plugin; a panic becomes an error with its text.
fn guard<R>(f: impl FnOnce() -> Result<R>) -> Result<R> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        let error = Error::new(
            abi::E_PANIC,
            format!("the plugin panicked: {}", panic_text(&*panic)),
        );
        // A payload may panic when it is dropped: then it is not dropped.
        std::mem::forget(panic);
        Err(error)
    })
}

/// A call without an op: a panic has nowhere to go but the log, where the hook has put it.
fn quietly(f: impl FnOnce()) {
    drop(guard(|| {
        f();
        Ok(())
    }));
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    if let Some(text) = panic.downcast_ref::<&str>() {
        text
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text
    } else {
        "(no text)"
    }
}

static INSTANCES: Mutex<Vec<Weak<HostTable>>> = Mutex::new(Vec::new());

fn instances() -> std::sync::MutexGuard<'static, Vec<Weak<HostTable>>> {
    let mut instances = INSTANCES.lock().unwrap_or_else(PoisonError::into_inner);
    instances.retain(|host| host.strong_count() > 0);
    instances
}

/// A plugin has its own copy of the standard library, and so its own panic hook. The default one would write to standard
/// error, which is not the plugin's to write to: this one writes to the host's log, for panics on the plugin's own
/// threads too.
fn log_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        std::panic::set_hook(Box::new(|info| {
            let place = info.location().map(ToString::to_string).unwrap_or_default();
            let text = panic_text(info.payload());
            let fields = [("panic", text), ("at", &place)];
            // Not under the lock: the host is called. Any instance that is not destroyed will do; they share the log.
            let hosts: Vec<_> = instances().iter().filter_map(Weak::upgrade).collect();
            hosts
                .iter()
                .any(|host| host.log(Level::Error, "panic", "the plugin panicked", &fields));
        }));
    });
}

// === create ===

thread_local! {
    /// The texts of the last refused create on this thread: the contract keeps them until the next call.
    static LAST_ERROR: RefCell<Option<Error>> = const { RefCell::new(None) };
}

/// Makes an instance: reads the request, runs `make`, and reports an error the way create() does.
///
/// # Safety
/// The arguments are create()'s.
unsafe fn create<T>(
    host: *const abi::Host,
    request: *const abi::CreateRequest,
    out: *mut *const T,
    err: *mut abi::Error,
    make: impl FnOnce(Arc<HostTable>, CreateRequest) -> Result<*const T>,
) -> i32 {
    let mut table = None;
    let made = guard(|| {
        if out.is_null() {
            return Err(Error::new(abi::E_INVALID_ARGUMENT, "out is null"));
        }
        // SAFETY: the caller's promise: the host's table and request.
        let (host, request) = unsafe {
            (
                HostTable::new(host).map_err(malformed)?,
                convert::create(request).map_err(malformed)?,
            )
        };
        table = Some(Arc::clone(&host));
        make(host, request)
    });
    match made {
        Ok(instance) => {
            // SAFETY: not null, and the host's to be written.
            unsafe { out.write(instance) };
            abi::OK
        }
        Err(error) => {
            // There is no instance, so the host is nobody's any more, whoever has kept it.
            if let Some(table) = table {
                table.shut();
            }
            let code = if error.code < 0 {
                error.code
            } else {
                abi::E_INTERNAL
            };
            LAST_ERROR.with(|last| {
                let mut last = last.borrow_mut();
                let error = c_error(last.insert(error), code);
                // SAFETY: the contract: err is null or says how large it is, and is the host's to be written.
                unsafe { wire::fill(err, &error) };
            });
            code
        }
    }
}

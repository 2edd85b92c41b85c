//! The C side: what [`crate::export_plugin!`] puts between the contract's tables and the traits. Not part of the SDK's
//! promise to vendors.
//!
//! Nothing unwinds into C, nothing that the host gave is kept beyond its time, and every op that was accepted is
//! completed: a panic ends the op with `SKG_E_PANIC` and the panic's text.
//!
//! The tables are over the traits whose answers come later; a blocking plugin is one whose answers come before its calls
//! return (`glue/blocking.rs`).

mod blocking;
mod convert;
mod host_table;
mod in_flight;
mod instance;
pub(crate) mod panics;
mod sandbox;
mod services;
mod storage;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::ffi::{c_void, CStr};
use std::mem::size_of;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};

use skillgate_plugin_abi as abi;

pub use blocking::{
    sandbox_factory as blocking_sandbox_factory, storage_factory as blocking_storage_factory,
};
pub use sandbox::factory as sandbox_factory;
pub use storage::factory as storage_factory;

use host_table::{c_error, error_code, HostTable};
use panics::{guard, panic_text};

use crate::host::Service;
use crate::model::{CreateRequest, Error, Result};
use crate::wire::{self, Malformed};
use crate::Level;

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

/// A request that breaks the contract.
fn malformed(e: Malformed) -> Error {
    Error::new(abi::E_INVALID_ARGUMENT, e.0).not_executed()
}

// === the log of panics ===

static INSTANCES: Mutex<Vec<Weak<HostTable>>> = Mutex::new(Vec::new());

fn instances() -> MutexGuard<'static, Vec<Weak<HostTable>>> {
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
            let code = error_code(&error);
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

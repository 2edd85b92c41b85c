//! A plugin that wraps another one and does one thing wrong, for the tests of the kit. Its configuration:
//!
//! ```json
//! {"inner": "/path/to/a/good/plugin.so", "config": {...}, "sabotage": "name"}
//! ```
//!
//! What it does not break it leaves to the good one, whose tables it copies: so a check that fails has found the sabotage
//! and nothing else. The good one must be `SKG_F_BLOCKING`: all of its completions come while it is called.
mod answers;
mod naked;
mod process;
mod sandbox;
mod storage;

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use skillgate_plugin_sdk::wire::{self, Grows, size_of_u32};
use skillgate_plugin_sdk::{abi, glue};

/// Its flags are those of the plugins that it wraps.
const FLAGS: u32 = abi::F_BLOCKING;
const ID: &str = "org.skillgate.saboteur";

static INFO: abi::PluginInfo = abi::PluginInfo {
    struct_size: size_of::<abi::PluginInfo>() as u32,
    reserved: 0,
    id: abi::Str::new(ID),
    version: abi::Str::new("1.0.0"),
    vendor: abi::Str::EMPTY,
    description: abi::Str::EMPTY,
    license: abi::Str::EMPTY,
    config_schema_json: abi::Str::EMPTY,
    build_info: abi::Str::EMPTY,
};

#[unsafe(no_mangle)]
#[allow(
    non_upper_case_globals,
    unreachable_pub,
    reason = "a symbol, by the name that the contract gives it"
)]
pub static skillgate_plugin_entry_v1: abi::EntryV1 = glue::entry(&INFO, FLAGS, get_factory);

#[used]
#[unsafe(link_section = ".note.skillgate")]
static NOTE: abi::NoteV1 = glue::note(ID, FLAGS);

static STORAGE: abi::StorageFactory = abi::StorageFactory {
    struct_size: size_of::<abi::StorageFactory>() as u32,
    reserved: 0,
    create: Some(create_storage),
};
static SANDBOX: abi::SandboxFactory = abi::SandboxFactory {
    struct_size: size_of::<abi::SandboxFactory>() as u32,
    reserved: 0,
    create: Some(create_sandbox),
};

/// `crate::KIND` is the one kind that it offers: before create() it does not know what it wraps.
unsafe extern "C" fn get_factory(id: *const u8) -> *const c_void {
    // SAFETY: the host gives a NUL-terminated id.
    let id = unsafe { CStr::from_ptr(id.cast()) };
    if id != crate::KIND {
        return std::ptr::null();
    }
    if id == c"skillgate.storage/1" {
        (&raw const STORAGE).cast()
    } else {
        (&raw const SANDBOX).cast()
    }
}

// === what is known of the process's instances ===

static SABOTAGE: OnceLock<String> = OnceLock::new();

/// The first instance's.
static STATE_DIR: OnceLock<String> = OnceLock::new();

/// Is this what is asked for?
fn asked(sabotage: &str) -> bool {
    SABOTAGE.get().is_some_and(|asked| asked == sabotage)
}

/// The rest of what is asked for, if it begins so.
fn asked_after(beginning: &str) -> Option<&'static str> {
    SABOTAGE.get()?.strip_prefix(beginning)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

type Complete = unsafe extern "C" fn(*mut c_void, abi::Op, *const abi::Completion) -> i32;

/// The host's complete() by its ctx.
static HOSTS: Mutex<Option<HashMap<usize, Complete>>> = Mutex::new(None);
static INSTANCES: AtomicUsize = AtomicUsize::new(0);

/// The good plugin's tables, by self.
struct Inner<T>(Mutex<Option<HashMap<usize, T>>>);

// SAFETY: tables of functions that may be called from any thread; the pointer in them is given back to those alone.
unsafe impl<T> Sync for Inner<T> {}

static STORES: Inner<abi::Storage> = Inner(Mutex::new(None));
static SANDBOXES: Inner<abi::Sandbox> = Inner(Mutex::new(None));

impl<T: Copy> Inner<T> {
    fn add(&self, of: *mut c_void, table: T) {
        lock(&self.0)
            .get_or_insert_default()
            .insert(of as usize, table);
    }
    fn get(&self, of: *mut c_void) -> T {
        lock(&self.0)
            .as_ref()
            .and_then(|all| all.get(&(of as usize)).copied())
            .unwrap()
    }
}

thread_local! {
    /// The call that this thread is in, when a sabotage wants to know its completion.
    static CALL: Cell<&'static str> = const { Cell::new("") };
}

/// Calls the good plugin under a name that complete() sees.
fn under<R>(call: &'static str, f: impl FnOnce() -> R) -> R {
    let before = CALL.replace(call);
    let result = f();
    CALL.set(before);
    result
}

/// The host's own complete().
///
/// # Safety
/// As complete().
unsafe fn complete(ctx: *mut c_void, op: abi::Op, c: *const abi::Completion) -> i32 {
    let real = *lock(&HOSTS).as_ref().unwrap().get(&(ctx as usize)).unwrap();
    // SAFETY: the caller's promise; this is the function of that ctx.
    unsafe { real(ctx, op, c) }
}

type RunOutput = unsafe extern "C" fn(*mut c_void, abi::Op, u32, abi::Bytes) -> i32;

/// The host's run_output(), which is the same for all instances.
static OUTPUT: OnceLock<RunOutput> = OnceLock::new();

type OpCancelled = unsafe extern "C" fn(*mut c_void, abi::Op) -> i32;

/// Likewise its op_cancelled().
static CANCELLED: OnceLock<OpCancelled> = OnceLock::new();

type SecretRead = unsafe extern "C" fn(*mut c_void, abi::Op, abi::Str, *mut c_void, u64) -> i64;

/// Likewise its secret_read().
static SECRET: OnceLock<SecretRead> = OnceLock::new();

/// Completes with a result.
///
/// # Safety
/// `result` is what the call's answer is, and `ctx` a host's.
unsafe fn answer(ctx: *mut c_void, op: abi::Op, result: *const c_void) -> i32 {
    let completion = abi::Completion {
        struct_size: size_of_u32::<abi::Completion>(),
        status: abi::OK,
        error: std::ptr::null(),
        result,
    };
    // SAFETY: the caller's promise; the completion lives until complete() returns.
    unsafe { complete(ctx, op, &raw const completion) }
}

unsafe extern "C" fn swallow(_: *mut c_void, _: abi::Op, _: u32, _: abi::Bytes) -> i32 {
    abi::OK
}

type GateServe = unsafe extern "C" fn(*mut c_void, abi::Op, abi::Fd) -> i32;

/// Likewise its gate_serve().
static GATE: OnceLock<GateServe> = OnceLock::new();

/// # Safety
/// As gate_serve().
unsafe extern "C" fn serve_without_blocking(ctx: *mut c_void, run: abi::Op, fd: abi::Fd) -> i32 {
    // SAFETY: the caller's promise: the descriptor is open, and goes to the host's own function.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK);
        GATE.get().unwrap()(ctx, run, fd)
    }
}

unsafe extern "C" fn no_blob(_: *mut c_void, _: abi::Op, _: abi::Str) -> i64 {
    i64::from(abi::E_EXHAUSTED)
}

// === create ===

#[derive(serde::Deserialize)]
struct Config {
    inner: String,
    config: serde_json::Value,
    sabotage: String,
}

/// Loads the good plugin: its factory of a kind.
fn factory<F: Grows>(path: &str) -> F {
    let path = CString::new(path).unwrap();
    // SAFETY: loads a plugin that the test has built.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!library.is_null(), "{path:?} cannot be loaded");
    // SAFETY: a NUL-terminated name in a library that stays.
    let entry = unsafe { libc::dlsym(library, abi::ENTRY_SYMBOL.as_ptr().cast()) };
    assert!(!entry.is_null());
    // SAFETY: the entry of a good plugin, and its own function.
    unsafe {
        let entry = &*entry.cast::<abi::EntryV1>();
        let factory = (entry.get_factory.unwrap())(crate::KIND.as_ptr().cast());
        wire::prefix(factory.cast::<F>(), "factory").unwrap()
    }
}

/// What create() does for both kinds: reads the configuration, shows the host to the good plugin, and copies its table.
///
/// # Safety
/// The arguments are create()'s.
unsafe fn make<F: Grows, T: Grows>(
    host: *const abi::Host,
    request: *const abi::CreateRequest,
    err: *mut abi::Error,
    call: impl FnOnce(&F, *const abi::Host, *const abi::CreateRequest, *mut *const T) -> i32,
) -> Result<T, i32> {
    // SAFETY: the host's table and request.
    let (known, request) = unsafe {
        (
            wire::prefix(host, "host").unwrap(),
            wire::prefix(request, "request").unwrap(),
        )
    };
    // SAFETY: the request's own texts, good during this call.
    let json = unsafe { request.config_json.bytes() };
    let config: Config = match serde_json::from_slice(json) {
        Ok(config) => config,
        Err(_) => {
            let refusal = abi::Error {
                struct_size: size_of_u32::<abi::Error>(),
                code: abi::E_INVALID_ARGUMENT,
                flags: 0,
                retry_after_ms: 0,
                message: abi::Str::new("the configuration is not the saboteur's"),
                detail_json: abi::Str::EMPTY,
            };
            // SAFETY: err is the host's to be written.
            unsafe { wire::fill(err, &refusal) };
            return Err(abi::E_INVALID_ARGUMENT);
        }
    };
    let mut inner_config = config.config;
    SABOTAGE.get_or_init(|| config.sabotage);
    let count = INSTANCES.fetch_add(1, Ordering::SeqCst) + 1;
    if asked("reads past the host's struct_size") {
        // SAFETY: none: this is what it is for.
        let last = unsafe { host.add(1).cast::<u64>().read_volatile() };
        std::hint::black_box(last);
    }
    if asked("refuses a newer host") && known.abi_minor > abi::ABI_MINOR {
        return Err(abi::E_PRECONDITION);
    }
    if asked("has one instance without saying so") && count > 1 {
        return Err(abi::E_EXHAUSTED);
    }
    if asked("forgets at its end") || asked(storage::FORGETS_BLOBS) {
        let root = inner_config["root"].as_str().unwrap();
        inner_config["root"] = format!("{root}-{}", std::process::id()).into();
    }
    // SAFETY: the request's own text, good during this call.
    STATE_DIR.get_or_init(|| unsafe { wire::shown(request.state_dir, 1000) });
    process::sabotage();
    let ctx = known.ctx as usize;
    let real = known.complete.unwrap();
    if let Some(output) = known.run_output {
        OUTPUT.get_or_init(|| output);
    }
    if let Some(cancelled) = known.op_cancelled {
        CANCELLED.get_or_init(|| cancelled);
    }
    if let Some(secret) = known.secret_read {
        SECRET.get_or_init(|| secret);
    }
    lock(&HOSTS).get_or_insert_default().insert(ctx, real);
    let mut shown = abi::Host {
        struct_size: size_of_u32::<abi::Host>(),
        complete: Some(answers::completed),
        ..known
    };
    if asked("swallows the output of runs") {
        shown.run_output = Some(swallow);
    }
    if let Some(gate) = known.gate_serve {
        GATE.get_or_init(|| gate);
    }
    if asked("gives a listener that does not block") {
        shown.gate_serve = Some(serve_without_blocking);
    }
    if asked("stores no blobs of runs") {
        shown.blob_create = Some(no_blob);
    }
    let shown: &'static abi::Host = Box::leak(Box::new(shown));
    let inner_config: &'static str = inner_config.to_string().leak();
    let request = abi::CreateRequest {
        struct_size: size_of_u32::<abi::CreateRequest>(),
        config_json: abi::Bytes::of(inner_config.as_bytes()),
        ..request
    };
    let mut out: *const T = std::ptr::null();
    let code = call(
        &factory::<F>(&config.inner),
        shown,
        &raw const request,
        &raw mut out,
    );
    if code < 0 {
        return Err(code);
    }
    // SAFETY: create has succeeded.
    Ok(unsafe { wire::prefix(out, "instance").unwrap() })
}

unsafe extern "C" fn create_storage(
    host: *const abi::Host,
    request: *const abi::CreateRequest,
    out: *mut *const abi::Storage,
    err: *mut abi::Error,
) -> i32 {
    // SAFETY: create()'s arguments, and the good plugin's create().
    let made = unsafe {
        make(
            host,
            request,
            err,
            |factory: &abi::StorageFactory, host, request, out| {
                factory.create.unwrap()(host, request, out, err)
            },
        )
    };
    match made {
        Ok(table) => {
            STORES.add(table.self_, table);
            answers::of_instance(table.self_, host);
            let table = Box::leak(Box::new(storage::wrap(table)));
            // SAFETY: the host's to be written.
            unsafe { out.write(table) };
            i32::from(asked("makes an instance and says 7")) * 7
        }
        Err(code) => code,
    }
}

unsafe extern "C" fn create_sandbox(
    host: *const abi::Host,
    request: *const abi::CreateRequest,
    out: *mut *const abi::Sandbox,
    err: *mut abi::Error,
) -> i32 {
    // SAFETY: as in create_storage.
    let made = unsafe {
        make(
            host,
            request,
            err,
            |factory: &abi::SandboxFactory, host, request, out| {
                factory.create.unwrap()(host, request, out, err)
            },
        )
    };
    match made {
        Ok(table) => {
            SANDBOXES.add(table.self_, table);
            answers::of_instance(table.self_, host);
            let table = Box::leak(Box::new(sandbox::wrap(table)));
            // SAFETY: the host's to be written.
            unsafe { out.write(table) };
            i32::from(asked("makes an instance and says 7")) * 7
        }
        Err(code) => code,
    }
}

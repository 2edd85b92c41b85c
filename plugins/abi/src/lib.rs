//! The SkillGate plugin ABI, major 1: the Rust spelling of `skillgate_plugin.h`.
//!
//! `no_std`, no dependency, no code that runs: types and constants only, so that it compiles with
//! old toolchains and never changes behaviour by an update. The header is the authority; the test
//! `tests/layout.rs` compiles the header with the C compiler and compares size, alignment and
//! every field offset of every type with this file.
#![no_std]
#![allow(unsafe_code, reason = "the contract's types are raw pointers; reading them is what this crate is for")]
use core::ffi::c_void;

pub const ABI_MAJOR: u32 = 1;
pub const ABI_MINOR: u32 = 0;
pub const MAGIC: u32 = 0x3147_4b53;
pub const ENTRY_SYMBOL: &[u8] = b"skillgate_plugin_entry_v1\0";
pub const SANDBOX_ID: &[u8] = b"skillgate.sandbox/1\0";
pub const STORAGE_ID: &[u8] = b"skillgate.storage/1\0";

/// `error_type` of runs that the sandbox, not the code, ended.
pub const RUN_TIMEOUT: &str = "Timeout";
/// See [`RUN_TIMEOUT`].
pub const RUN_OUT_OF_MEMORY: &str = "OutOfMemory";
/// See [`RUN_TIMEOUT`].
pub const RUN_TOO_MANY_PROCESSES: &str = "TooManyProcesses";
/// See [`RUN_TIMEOUT`].
pub const RUN_DISK_FULL: &str = "DiskFull";
/// See [`RUN_TIMEOUT`].
pub const RUN_CANCELLED: &str = "Cancelled";
/// See [`RUN_TIMEOUT`].
pub const RUN_SANDBOX_ERROR: &str = "SandboxError";

#[cfg(not(all(target_pointer_width = "64", target_endian = "little")))]
compile_error!("the SkillGate plugin ABI is defined for 64-bit little-endian targets only");

/// True when `field` of `T` lies inside the struct that the other side handed over.
#[macro_export]
macro_rules! has {
    ($t:ty, $p:expr, $f:ident) => {{
        let p: *const $t = $p;
        let end = {
            let u = ::core::mem::MaybeUninit::<$t>::uninit();
            let b = u.as_ptr();
            // SAFETY: only addresses are computed; nothing is read.
            unsafe {
                let f = ::core::ptr::addr_of!((*b).$f);
                (f as usize - b as usize) + $crate::size_of_pointee(f)
            }
        };
        // SAFETY: the caller's promise: p points to a struct whose first u32 is struct_size.
        (unsafe { *(p as *const u32) }) as usize >= end
    }};
}
#[doc(hidden)]
pub const fn size_of_pointee<T>(_: *const T) -> usize { core::mem::size_of::<T>() }

pub type Op = u64;
pub type Fd = i32;

macro_rules! consts { ($($t:ty: $($n:ident = $v:expr),+ ;)+) => { $($(pub const $n: $t = $v;)+)+ } }
consts! {
    i32: OK = 0, E_CANCELLED = -1, E_UNKNOWN = -2, E_INVALID_ARGUMENT = -3,
         E_DEADLINE = -4, E_NOT_FOUND = -5, E_ALREADY_EXISTS = -6, E_PERMISSION = -7,
         E_EXHAUSTED = -8, E_PRECONDITION = -9, E_ABORTED = -10, E_OUT_OF_RANGE = -11,
         E_UNIMPLEMENTED = -12, E_INTERNAL = -13, E_UNAVAILABLE = -14, E_CORRUPT = -15,
         E_STALE = -100, E_WOULD_DEADLOCK = -101, E_PANIC = -102, E_PROTOCOL = -103, E_CRASHED = -104;
    u32: ERR_RETRYABLE = 1, ERR_NOT_EXECUTED = 2,
         LOG_TRACE = 1, LOG_DEBUG = 2, LOG_INFO = 3, LOG_WARN = 4, LOG_ERROR = 5,
         STDOUT = 1, STDERR = 2, RUNLOG = 3,
         EGRESS_CAN_DENY = 1, EGRESS_GATE_LISTENER = 2, EGRESS_GATE_URL = 4, EGRESS_SELF_ENFORCED = 8,
         ISO_PROCESS = 1, ISO_CONTAINER = 2, ISO_MICROVM = 3, ISO_REMOTE = 4,
         LIMIT_WALL = 1, LIMIT_CPU = 2, LIMIT_MEMORY = 4, LIMIT_PIDS = 8, LIMIT_DISK = 16, LIMIT_NONROOT = 32,
         SRC_PATH = 1, SRC_FD = 2, SRC_TAR = 3, SRC_BLOB = 4,
         NET_NONE = 0, NET_GATE = 1, NET_SELF = 2,
         RUN_COMPLETED = 1, RUN_FAILED = 2, HEALTH_OK = 1, HEALTH_DEGRADED = 2, HEALTH_DOWN = 3,
         ST_SKILLS = 1, ST_SKILLS_WRITE = 2, ST_BLOBS = 4, ST_BLOB_FD = 8, SKILL_READ_ONLY = 1, CONTENT_DATA = 0, CONTENT_FILE = 1, CONTENT_DIR = 2, CONTENT_TAR = 3,
         F_BLOCKING = 1, F_OWN_PROCESS = 2, F_SINGLETON = 4, NOTE_TYPE = 1;
}

/// Every struct of the ABI is declared through this macro, which also lists its fields for the
/// layout test (`abi_layout!`), so a field cannot be added here and forgotten there.
macro_rules! abi_structs {
    ($($(#[$m:meta])* struct $n:ident = $c:literal { $($f:ident : $t:ty),+ $(,)? })+) => {
        $($(#[$m])* #[repr(C)] #[derive(Clone, Copy, Debug)] pub struct $n { $(pub $f: $t),+ })+
        #[doc(hidden)]
        pub fn layout(mut emit: impl FnMut(&str, &str, usize, &str)) {
            $({
                emit($c, "", core::mem::size_of::<$n>(), stringify!($n));
                let u = core::mem::MaybeUninit::<$n>::uninit();
                let b = u.as_ptr();
                $(
                    // SAFETY: addresses only; nothing is read.
                    emit($c, stringify!($f), unsafe { core::ptr::addr_of!((*b).$f) as usize } - b as usize, stringify!($t));
                )+
            })+
        }
    };
}

abi_structs! {
    struct Str = "skg_str" { ptr: *const u8, len: u64 }
    struct Bytes = "skg_bytes" { ptr: *const u8, len: u64 }
    struct List = "skg_list" { ptr: *const c_void, len: u32, stride: u32 }
    struct Error = "skg_error" { struct_size: u32, code: i32, flags: u32, retry_after_ms: u32, message: Str, detail_json: Str }
    struct Completion = "skg_completion" { struct_size: u32, status: i32, error: *const Error, result: *const c_void }
    struct Kv = "skg_kv" { key: Str, value: Str }
    struct LogRecord = "skg_log_record" { struct_size: u32, level: u32, op: Op, target: Str, message: Str, fields: List }
    struct BlobStat = "skg_blob_stat" { struct_size: u32, flags: u32, size_bytes: u64, id: Str, kind: Str, sha256: Str, owner: Str, created_unix_ms: u64 }
    struct Host = "skg_host" {
        struct_size: u32, abi_major: u32, abi_minor: u32, flags: u32, ctx: *mut c_void, name: Str, version: Str,
        complete: Option<unsafe extern "C" fn(*mut c_void, Op, *const Completion) -> i32>,
        op_cancelled: Option<unsafe extern "C" fn(*mut c_void, Op) -> i32>,
        log_enabled: Option<unsafe extern "C" fn(*mut c_void, u32, Str) -> i32>,
        log: Option<unsafe extern "C" fn(*mut c_void, *const LogRecord)>,
        get_extension: Option<unsafe extern "C" fn(*mut c_void, *const u8) -> *const c_void>,
        run_output: Option<unsafe extern "C" fn(*mut c_void, Op, u32, Bytes) -> i32>,
        secret_read: Option<unsafe extern "C" fn(*mut c_void, Op, Str, *mut c_void, u64) -> i64>,
        blob_fd: Option<unsafe extern "C" fn(*mut c_void, Op, Str) -> i32>,
        blob_read: Option<unsafe extern "C" fn(*mut c_void, Op, Str, u64, *mut c_void, u64) -> i64>,
        blob_create: Option<unsafe extern "C" fn(*mut c_void, Op, Str) -> i64>,
        blob_write: Option<unsafe extern "C" fn(*mut c_void, Op, i64, Bytes) -> i32>,
        blob_finish: Option<unsafe extern "C" fn(*mut c_void, Op, i64, i32, *mut u8, u64) -> i64>,
        gate_serve: Option<unsafe extern "C" fn(*mut c_void, Op, Fd) -> i32>,
    }
    struct CreateRequest = "skg_create_request" { struct_size: u32, flags: u32, instance_id: Str, state_dir: Str, config_json: Bytes }
    struct SandboxCaps = "skg_sandbox_caps" { struct_size: u32, egress: u32, max_concurrent: u32, isolation: u32,
        max_memory_bytes: u64, max_timeout_ms: u64, enforces: u32, reserved: u32 }
    struct Limits = "skg_limits" { struct_size: u32, max_pids: u32, wall_ms: u64, cpu_ms: u64, memory_bytes: u64, disk_bytes: u64, disk_inodes: u64, output_bytes: u64 }
    struct Mount = "skg_mount" { struct_size: u32, source_kind: u32, read_only: u32, fd: Fd, target: Str, path: Str, blob_id: Str, sha256: Str, size_bytes: u64 }
    struct RunSkill = "skg_run_skill" { struct_size: u32, reserved: u32, name: Str, version: Str, entrypoint: Str, function: Str }
    struct EgressRule = "skg_egress_rule" { struct_size: u32, port: u32, scheme: Str, host: Str, path_prefix: Str }
    struct Gate = "skg_gate" { struct_size: u32, mode: u32, url: Str, token: Str, ca_pem: Str, rules: List }
    struct RunRequest = "skg_run_request" {
        struct_size: u32, flags: u32, run_id: Str, tenant: Str, language: Str, code: Str, skill: Str, function: Str,
        args_json: Bytes, skills: List, mounts: List, env: List, secrets: List, limits: *const Limits, gate: *const Gate, traceparent: Str }
    struct RunResult = "skg_run_result" {
        struct_size: u32, status: u32, output_json: Bytes, summary: Str, error_type: Str, error_message: Str, output_blobs: List,
        exit_code: i32, signal: i32, create_us: u64, exec_us: u64, cpu_us: u64, peak_memory_bytes: u64, output_spilled: u32, reserved: u32 }
    struct Health = "skg_health" { struct_size: u32, state: u32, in_flight: u32, capacity: u32, message: Str, metrics_json: Str, report_json: Str }
    struct Sandbox = "skg_sandbox" {
        struct_size: u32, reserved: u32, self_: *mut c_void,
        caps: Option<unsafe extern "C" fn(*mut c_void, *mut SandboxCaps) -> i32>,
        run: Option<unsafe extern "C" fn(*mut c_void, Op, *const RunRequest) -> i32>,
        cancel: Option<unsafe extern "C" fn(*mut c_void, Op)>,
        health: Option<unsafe extern "C" fn(*mut c_void, Op) -> i32>,
        drain: Option<unsafe extern "C" fn(*mut c_void, Op) -> i32>,
        destroy: Option<unsafe extern "C" fn(*mut c_void)>,
        get_extension: Option<unsafe extern "C" fn(*mut c_void, *const u8) -> *const c_void>,
    }
    struct SandboxFactory = "skg_sandbox_factory" { struct_size: u32, reserved: u32,
        create: Option<unsafe extern "C" fn(*const Host, *const CreateRequest, *mut *const Sandbox, *mut Error) -> i32> }
    struct SkillRef = "skg_skill_ref" { name: Str, version: Str }
    struct SkillKey = "skg_skill_key" { namespace_: Str, name: Str, version: Str }
    struct SkillFile = "skg_skill_file" { struct_size: u32, reserved: u32, path: Str, sha256: Str, size_bytes: u64 }
    struct Skill = "skg_skill" { struct_size: u32, flags: u32, name: Str, version: Str, namespace_: Str, kind: Str, description: Str,
        tree_sha256: Str, publisher: Str, manifest_json: Bytes, files: List }
    struct ListRequest = "skg_list_request" { struct_size: u32, limit: u32, tenant: Str, namespace_: Str, after: SkillKey }
    struct SkillPage = "skg_skill_page" { struct_size: u32, more: u32, skills: List }
    struct Content = "skg_content" { struct_size: u32, kind: u32, fd: Fd, reserved: u32, data: Bytes, size_bytes: u64 }
    struct PutFile = "skg_put_file" { path: Str, data: Bytes }
    struct PutSkill = "skg_put_skill" { struct_size: u32, flags: u32, tenant: Str, name: Str, version: Str, namespace_: Str, kind: Str,
        description: Str, publisher: Str, tree_sha256: Str, manifest_json: Bytes, files: List }
    struct BlobOpened = "skg_blob_opened" { struct_size: u32, fd: Fd, reader: u64, stat: *const BlobStat }
    struct Count = "skg_count" { n: u64, eof: u64 }
    struct Handle = "skg_handle" { handle: u64 }
    struct BlobCreateRequest = "skg_blob_create_request" { struct_size: u32, flags: u32, tenant: Str, kind: Str, owner: Str, run_id: Str,
        max_bytes: u64, ttl_s: u64 }
    struct Storage = "skg_storage" {
        struct_size: u32, reserved: u32, self_: *mut c_void,
        caps: Option<unsafe extern "C" fn(*mut c_void, *mut u32) -> i32>,
        cancel: Option<unsafe extern "C" fn(*mut c_void, Op)>,
        health: Option<unsafe extern "C" fn(*mut c_void, Op) -> i32>,
        drain: Option<unsafe extern "C" fn(*mut c_void, Op) -> i32>,
        destroy: Option<unsafe extern "C" fn(*mut c_void)>,
        get_extension: Option<unsafe extern "C" fn(*mut c_void, *const u8) -> *const c_void>,
        skill_list: Option<unsafe extern "C" fn(*mut c_void, Op, *const ListRequest) -> i32>,
        skill_get: Option<unsafe extern "C" fn(*mut c_void, Op, Str, *const SkillRef) -> i32>,
        skill_read: Option<unsafe extern "C" fn(*mut c_void, Op, Str, *const SkillRef, Str) -> i32>,
        skill_tree: Option<unsafe extern "C" fn(*mut c_void, Op, Str, *const SkillRef) -> i32>,
        skill_put: Option<unsafe extern "C" fn(*mut c_void, Op, *const PutSkill) -> i32>,
        blob_create: Option<unsafe extern "C" fn(*mut c_void, Op, *const BlobCreateRequest) -> i32>,
        blob_write: Option<unsafe extern "C" fn(*mut c_void, Op, u64, Bytes) -> i32>,
        blob_commit: Option<unsafe extern "C" fn(*mut c_void, Op, u64) -> i32>,
        blob_abort: Option<unsafe extern "C" fn(*mut c_void, u64)>,
        blob_stat: Option<unsafe extern "C" fn(*mut c_void, Op, Str, Str) -> i32>,
        blob_open: Option<unsafe extern "C" fn(*mut c_void, Op, Str, Str, u64, u64) -> i32>,
        blob_read: Option<unsafe extern "C" fn(*mut c_void, Op, u64, *mut c_void, u64) -> i32>,
        blob_close: Option<unsafe extern "C" fn(*mut c_void, u64)>,
        blob_fd: Option<unsafe extern "C" fn(*mut c_void, Op, Str, Str) -> i32>,
        blob_delete: Option<unsafe extern "C" fn(*mut c_void, Op, Str, Str) -> i32>,
    }
    struct StorageFactory = "skg_storage_factory" { struct_size: u32, reserved: u32,
        create: Option<unsafe extern "C" fn(*const Host, *const CreateRequest, *mut *const Storage, *mut Error) -> i32> }
    struct PluginInfo = "skg_plugin_info" { struct_size: u32, reserved: u32, id: Str, version: Str, vendor: Str, description: Str,
        license: Str, config_schema_json: Str, build_info: Str }
    struct EntryV1 = "skg_entry_v1" { magic: u32, struct_size: u32, abi_major: u32, abi_minor: u32, min_host_minor: u32, flags: u32,
        info: *const PluginInfo, get_factory: Option<unsafe extern "C" fn(*const u8) -> *const c_void> }
    struct NoteV1 = "skg_note_v1" { namesz: u32, descsz: u32, type_: u32, name: [u8; 12], magic: u32, abi_major: u32, abi_minor: u32,
        min_host_minor: u32, flags: u32, id: [u8; 44] }
}

// SAFETY: static, read-only descriptions; whoever makes one keeps what it points to unchanged.
unsafe impl Sync for EntryV1 {}
// SAFETY: static, read-only descriptions; whoever makes one keeps what it points to unchanged.
unsafe impl Sync for PluginInfo {}
// SAFETY: static, read-only descriptions; whoever makes one keeps what it points to unchanged.
unsafe impl Sync for SandboxFactory {}
// SAFETY: static, read-only descriptions; whoever makes one keeps what it points to unchanged.
unsafe impl Sync for StorageFactory {}

impl Str {
    pub const fn new(s: &'static str) -> Self { Str { ptr: s.as_ptr(), len: s.len() as u64 } }
    pub const EMPTY: Str = Str { ptr: core::ptr::null(), len: 0 };
    /// Borrows for as long as the caller says that the call lasts.
    pub fn of(s: &str) -> Self { Str { ptr: s.as_ptr(), len: s.len() as u64 } }
    /// # Safety
    /// `ptr..ptr+len` is readable for `'a`, or `len` is 0 (then `ptr` is not looked at).
    pub unsafe fn bytes<'a>(self) -> &'a [u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: the caller's promise; a null pointer with length 0 was answered above.
        unsafe { core::slice::from_raw_parts(self.ptr, self.len as usize) }
    }
}
impl Bytes {
    pub const EMPTY: Bytes = Bytes { ptr: core::ptr::null(), len: 0 };
    pub fn of(s: &[u8]) -> Self { Bytes { ptr: s.as_ptr(), len: s.len() as u64 } }
    /// # Safety
    /// As `Str::bytes`.
    pub unsafe fn bytes<'a>(self) -> &'a [u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: the caller's promise; a null pointer with length 0 was answered above.
        unsafe { core::slice::from_raw_parts(self.ptr, self.len as usize) }
    }
}
impl List {
    pub const EMPTY: List = List { ptr: core::ptr::null(), len: 0, stride: 0 };
    pub fn of<T>(s: &[T]) -> Self {
        List { ptr: s.as_ptr() as *const c_void, len: s.len() as u32, stride: core::mem::size_of::<T>() as u32 }
    }
    /// # Safety
    /// `i < len`; elements begin with the fields of `T` that the reader then checks with `has!`.
    pub unsafe fn at<T>(&self, i: u32) -> *const T {
        // SAFETY: i < len, so the element lies inside the list that the producer made.
        unsafe { (self.ptr as *const u8).add(i as usize * self.stride as usize) as *const T }
    }
}

//! The structs that both kinds of plugin share, in the header's order. The header says more: this says what a reader of
//! Rust code needs at hand.

use core::ffi::c_void;

use crate::{Fd, Op};

/// A text: UTF-8, not NUL-terminated; `ptr` may be null only when `len` is 0. Frozen.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Str {
    /// First byte or element.
    pub ptr: *const u8,
    /// Bytes, or elements.
    pub len: u64,
}

/// Bytes; `ptr` may be null only when `len` is 0. Frozen.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Bytes {
    /// First byte or element.
    pub ptr: *const u8,
    /// Bytes, or elements.
    pub len: u64,
}

/// `len` elements, `stride` bytes apart: the producer's element may be larger than ours. Frozen.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct List {
    /// First byte or element.
    pub ptr: *const c_void,
    /// Bytes, or elements.
    pub len: u32,
    /// Bytes from one element to the next.
    pub stride: u32,
}

/// Why a call failed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Error {
    /// Bytes of the producer's struct.
    pub struct_size: u32,
    /// `SKG_E_*`.
    pub code: i32,
    /// `SKG_ERR_*`.
    pub flags: u32,
    /// 0: no advice.
    pub retry_after_ms: u32,
    /// One line for operators; no secrets.
    pub message: Str,
    /// Optional, for logs.
    pub detail_json: Str,
}

/// How an op ends.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// Bytes of the producer's struct.
    pub struct_size: u32,
    /// `SKG_OK` or `SKG_E_*`.
    pub status: i32,
    /// Optional, when status != `SKG_OK`.
    pub error: *const Error,
    /// The op's result struct, when `SKG_OK`; each vtable entry names its type, or "none".
    pub result: *const c_void,
}

/// A pair of texts. Frozen.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Kv {
    /// Name.
    pub key: Str,
    /// Value.
    pub value: Str,
}

/// A log record.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LogRecord {
    /// Bytes of the producer's struct.
    pub struct_size: u32,
    /// `SKG_LOG_*`.
    pub level: u32,
    /// 0, or the op this is about (its span).
    pub op: Op,
    /// Module path or component.
    pub target: Str,
    /// One line.
    pub message: Str,
    /// `skg_kv`.
    pub fields: List,
}

/// What is known of a blob.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BlobStat {
    /// Bytes of the producer's struct.
    pub struct_size: u32,
    /// Zero today.
    pub flags: u32,
    /// Bytes.
    pub size_bytes: u64,
    /// "blob:" and at least 128 random bits, as 22 to 123 of `A-Z a-z 0-9 . _ -`, the first of them no `.`.
    pub id: Str,
    /// MIME type.
    pub kind: Str,
    /// 64 lower-case hex digits.
    pub sha256: Str,
    /// Subject that created it.
    pub owner: Str,
    /// Milliseconds since 1970.
    pub created_unix_ms: u64,
}

/// The host's functions, given to `create` and valid until `destroy` has returned.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Host {
    /// Bytes of the producer's struct.
    pub struct_size: u32,
    /// Of the host.
    pub abi_major: u32,
    /// Of the host.
    pub abi_minor: u32,
    /// Zero today.
    pub flags: u32,
    /// First argument of everything below.
    pub ctx: *mut c_void,
    /// "skillgate".
    pub name: Str,
    /// SemVer.
    pub version: Str,
    /// Ends an op; exactly once per op, see rule 3. `SKG_OK`: taken, with every descriptor in it.
    /// `SKG_E_STALE`: there is no such op (any more). `SKG_E_PROTOCOL`: the answer broke this contract, and the
    /// op has ended with that error. The host never calls the plugin from inside.
    pub complete: Option<unsafe extern "C" fn(*mut c_void, Op, *const Completion) -> i32>,
    /// 1 when the caller no longer wants this op, or it has ended; else 0: for code that polls. Set before
    /// `cancel()` is called.
    pub op_cancelled: Option<unsafe extern "C" fn(*mut c_void, Op) -> i32>,
    /// 1 when a record of this level would be kept.
    pub log_enabled: Option<unsafe extern "C" fn(*mut c_void, u32, Str) -> i32>,
    /// Writes a record. Texts are cut at 64 KiB, a target at 256 bytes, a field at 4 KiB; the fields count up
    /// to 64.
    pub log: Option<unsafe extern "C" fn(*mut c_void, *const LogRecord)>,
    /// Id is NUL-terminated, "vendor.name/revision"; NULL when not offered. What it gives is static.
    pub get_extension: Option<unsafe extern "C" fn(*mut c_void, *const u8) -> *const c_void>,
    /// Output of the skill, in order per stream. The host keeps what its limits allow; `SKG_E_EXHAUSTED` says:
    /// keep draining, send no more. `SKG_E_INVALID_ARGUMENT`: no such stream.
    pub run_output: Option<unsafe extern "C" fn(*mut c_void, Op, u32, Bytes) -> i32>,
    /// Copies the plaintext of a secret that the request named into buf. Returns its length; more than cap
    /// means nothing was copied. A read is not recorded: the run's audit record has the names of the secrets that
    /// it was granted. Wipe buf as soon as the sandbox has the value. `SKG_E_PERMISSION`: the request does not
    /// name it.
    pub secret_read: Option<unsafe extern "C" fn(*mut c_void, Op, Str, *mut c_void, u64) -> i64>,
    /// Input blobs, and those that this run has made. blob_fd: a readable, seekable descriptor (`SKG_FD`), or
    /// `SKG_E_UNIMPLEMENTED` when the store has none: then read ranges. blob_read: bytes read, 0 at the end.
    /// `SKG_E_NOT_FOUND`: not a blob of this run; `SKG_E_CORRUPT`: digest. Blocking.
    pub blob_fd: Option<unsafe extern "C" fn(*mut c_void, Op, Str) -> i32>,
    /// Blocking.
    pub blob_read: Option<unsafe extern "C" fn(*mut c_void, Op, Str, u64, *mut c_void, u64) -> i64>,
    /// Output blobs: create gives a writer (> 0); write any number of times, one after the other; then finish:
    /// commit=1 stores it, copies its id to buf and returns the id's length, commit=0 throws it away and
    /// returns 0. An id has at most 128 bytes: a commit with a smaller cap is `SKG_E_INVALID_ARGUMENT` and the
    /// writer stays. Writers that are left when the run ends are thrown away. `SKG_E_EXHAUSTED`,
    /// `SKG_E_OUT_OF_RANGE`: a quota is reached; a run has 8 writers at once, and create is `SKG_E_OUT_OF_RANGE`
    /// beyond. Blocking.
    pub blob_create: Option<unsafe extern "C" fn(*mut c_void, Op, Str) -> i64>,
    /// Blocking.
    pub blob_write: Option<unsafe extern "C" fn(*mut c_void, Op, i64, Bytes) -> i32>,
    /// Blocking.
    pub blob_finish: Option<unsafe extern "C" fn(*mut c_void, Op, i64, i32, *mut u8, u64) -> i64>,
    /// From now until the op completes, or the host gives the run up, the host accepts on this listening socket and is the run's gate
    /// there.
    /// Takes the descriptor (`SKG_FD`) when it returns `SKG_OK`; else it stays the plugin's. May be called more
    /// than once: a run has up to 4 listeners. `SKG_E_INVALID_ARGUMENT`: one more, or no listening socket.
    /// `SKG_E_PERMISSION`: the run has no gate.
    pub gate_serve: Option<unsafe extern "C" fn(*mut c_void, Op, Fd) -> i32>,
}

/// What an instance is made from; borrowed during `create`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CreateRequest {
    /// Bytes of the producer's struct.
    pub struct_size: u32,
    /// Zero today.
    pub flags: u32,
    /// The same after a restart: mark what you make with it, and in `create()` remove what bears your mark, which an
    /// earlier life has left behind, and nothing else.
    pub instance_id: Str,
    /// A private directory, kept across restarts, whichever plugin has it then.
    pub state_dir: Str,
    /// The plugin's own section of the configuration.
    pub config_json: Bytes,
}

/// How an instance is doing.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Health {
    /// Bytes of the producer's struct.
    pub struct_size: u32,
    /// `SKG_HEALTH_*`.
    pub state: u32,
    /// Calls that have begun and not ended.
    pub in_flight: u32,
    /// How many more it would take now.
    pub capacity: u32,
    /// One line.
    pub message: Str,
    /// Flat {"name": number}, or empty.
    pub metrics_json: Str,
    /// What this host can and cannot enforce, layer by layer: [{"layer","state","detail","advice"}], state "ok"
    /// | "degraded" | "missing"; or empty. A `create()` that refuses because of a missing layer gives the same
    /// in its error's detail_json.
    pub report_json: Str,
}

/// What a plugin says of itself.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PluginInfo {
    /// Bytes of the producer's struct.
    pub struct_size: u32,
    /// Zero.
    pub reserved: u32,
    /// "com.acme.firecracker": stable, reverse-DNS.
    pub id: Str,
    /// SemVer of the plugin.
    pub version: Str,
    /// Who made it.
    pub vendor: Str,
    /// One line.
    pub description: Str,
    /// SPDX.
    pub license: Str,
    /// JSON Schema of its section, or empty.
    pub config_schema_json: Str,
    /// Compiler, commit: for bug reports.
    pub build_info: Str,
}

/// The one exported symbol, `skillgate_plugin_entry_v1`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct EntryV1 {
    /// `SKG_MAGIC`.
    pub magic: u32,
    /// Bytes of the producer's struct.
    pub struct_size: u32,
    /// `SKG_ABI_MAJOR` of the header it was built with.
    pub abi_major: u32,
    /// `SKG_ABI_MINOR` likewise.
    pub abi_minor: u32,
    /// The oldest host minor that it can work with.
    pub min_host_minor: u32,
    /// `SKG_F_*`.
    pub flags: u32,
    /// Static.
    pub info: *const PluginInfo,
    /// The skg_*_factory of a kind (`SKG_SANDBOX_ID`, `SKG_STORAGE_ID`); NULL when this plugin does not offer
    /// it. Static, never freed.
    pub get_factory: Option<unsafe extern "C" fn(*const u8) -> *const c_void>,
}

/// The ELF note, section `.note.skillgate`: what a plugin says before any of its code has run.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NoteV1 {
    /// 10.
    pub namesz: u32,
    /// Bytes from `magic` on.
    pub descsz: u32,
    /// `SKG_NOTE_TYPE`.
    pub type_: u32,
    /// "SkillGate", NUL, and padding.
    pub name: [u8; 12],
    /// `SKG_MAGIC`.
    pub magic: u32,
    /// As in the entry.
    pub abi_major: u32,
    /// As in the entry.
    pub abi_minor: u32,
    /// As in the entry.
    pub min_host_minor: u32,
    /// As in the entry.
    pub flags: u32,
    /// `info->id`, cut at 43 bytes, NUL-padded.
    pub id: [u8; 44],
}

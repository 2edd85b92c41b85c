//! The structs of a sandbox plugin, in the header's order.

use core::ffi::c_void;

use crate::{Bytes, CreateRequest, Error, Fd, Host, List, Op, Str};

/// What a sandbox can do.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SandboxCaps {
    /// Bytes of the producer's struct.
    pub struct_size: u32,
    /// `SKG_EGRESS_*`.
    pub egress: u32,
    /// 0: no limit of its own.
    pub max_concurrent: u32,
    /// `SKG_ISO_*`.
    pub isolation: u32,
    /// Largest limit it can enforce; 0: cannot.
    pub max_memory_bytes: u64,
    /// Longest `wall_ms` that it takes; 0: any.
    pub max_timeout_ms: u64,
    /// `SKG_LIMIT_*` that it really enforces.
    pub enforces: u32,
    /// Zero.
    pub reserved: u32,
}

/// Limits of a run.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of the producer's struct.
    pub struct_size: u32,
    /// Processes and threads; 0: no limit.
    pub max_pids: u32,
    /// Always set; the host cancels at this deadline, or 2 s after it where the caps say that the sandbox enforces it.
    pub wall_ms: u64,
    /// 0: no limit, here and below.
    pub cpu_ms: u64,
    /// 0: no limit.
    pub memory_bytes: u64,
    /// /workspace, /tmp and /dev/shm together.
    pub disk_bytes: u64,
    /// Files and directories there.
    pub disk_inodes: u64,
    /// Largest `output` the host will take: the guest stores what is larger as a blob, see
    /// `skg_run_result`.output_spilled.
    pub output_bytes: u64,
}

/// One mount inside a sandbox.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Mount {
    /// Bytes of the producer's struct.
    pub struct_size: u32,
    /// `SKG_SRC_*`.
    pub source_kind: u32,
    /// 1: mounted read-only.
    pub read_only: u32,
    /// Borrowed until the op completes, or -1.
    pub fd: Fd,
    /// Absolute path inside, e.g. "/skills/acme.x".
    pub target: Str,
    /// `SKG_SRC_PATH`.
    pub path: Str,
    /// `SKG_SRC_BLOB`.
    pub blob_id: Str,
    /// Of the content (tree digest); a cache key.
    pub sha256: Str,
    /// Bytes; 0 when not known.
    pub size_bytes: u64,
}

/// A skill that the code can import.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RunSkill {
    /// Bytes of the producer's struct.
    pub struct_size: u32,
    /// Zero.
    pub reserved: u32,
    /// "salesforce.leads.sync".
    pub name: Str,
    /// SemVer.
    pub version: Str,
    /// "code/main.py"; empty: an instruction skill.
    pub entrypoint: Str,
    /// Runtime.export of the manifest.
    pub function: Str,
}

/// What a run may connect to.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct EgressRule {
    /// Bytes of the producer's struct.
    pub struct_size: u32,
    /// 0: the scheme's.
    pub port: u32,
    /// "https", "http", "tcp".
    pub scheme: Str,
    /// "api.example.com" or "*.example.com".
    pub host: Str,
    /// Empty: any.
    pub path_prefix: Str,
}

/// The run's way out: the gateway's own endpoint for it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Gate {
    /// Bytes of the producer's struct.
    pub struct_size: u32,
    /// `SKG_NET_*`.
    pub mode: u32,
    /// Https://host:port, or empty.
    pub url: Str,
    /// Proxy-Authorization / Authorization: Bearer.
    pub token: Str,
    /// CA to trust inside, or empty.
    pub ca_pem: Str,
    /// `skg_egress_rule`: for defence in depth.
    pub rules: List,
}

/// One run.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RunRequest {
    /// Bytes of the producer's struct.
    pub struct_size: u32,
    /// `SKG_REQUEST_*`.
    pub flags: u32,
    /// Of the run, or empty.
    pub run_id: Str,
    /// Whose.
    pub tenant: Str,
    /// "python".
    pub language: Str,
    /// Run_code: source; execute_skill: empty.
    pub code: Str,
    /// Execute_skill: which of `skills` to call.
    pub skill: Str,
    /// What to call: runtime.export, or run_code's entrypoint.
    pub function: Str,
    /// A JSON object.
    pub args_json: Bytes,
    /// `skg_run_skill`.
    pub skills: List,
    /// `skg_mount`: the skills' directories, the blobs.
    pub mounts: List,
    /// `skg_kv`: plain, not secret.
    pub env: List,
    /// `skg_str`: names; host->secret_read has values.
    pub secrets: List,
    /// Never null.
    pub limits: *const Limits,
    /// Go by its mode; null is as `NET_NONE`.
    pub gate: *const Gate,
    /// W3C, or empty.
    pub traceparent: Str,
}

/// How a run ended.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RunResult {
    /// Bytes of the producer's struct.
    pub struct_size: u32,
    /// `SKG_RUN_*`.
    pub status: u32,
    /// Empty: none (failed, or stored as a blob).
    pub output_json: Bytes,
    /// What the code said of itself, or empty.
    pub summary: Str,
    /// `SKG_RUN_FAILED`: "AuthenticationError".
    pub error_type: Str,
    /// Traceback or sentence.
    pub error_message: Str,
    /// `skg_str`: ids from host->blob_finish.
    pub output_blobs: List,
    /// Of the first process.
    pub exit_code: i32,
    /// That ended it, or 0.
    pub signal: i32,
    /// Until the sandbox was ready.
    pub create_us: u64,
    /// Of the code.
    pub exec_us: u64,
    /// Of everything in the sandbox.
    pub cpu_us: u64,
    /// 0 when not known.
    pub peak_memory_bytes: u64,
    /// 1: the output was over limits.output_bytes and is the last of output_blobs.
    pub output_spilled: u32,
    /// Zero.
    pub reserved: u32,
}

/// An instance of a sandbox plugin.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Sandbox {
    /// Bytes of the producer's struct.
    pub struct_size: u32,
    /// Zero.
    pub reserved: u32,
    /// Goes back as the first argument of every function.
    pub self_: *mut c_void,
    /// Fills *out, as far as out->struct_size (set by the host) reaches. Asked once, after `create()`.
    pub caps: Option<unsafe extern "C" fn(*mut c_void, *mut SandboxCaps) -> i32>,
    /// One run: create, execute, collect, destroy. A failure of the code is a result (`SKG_RUN_FAILED`), a
    /// failure of the sandbox an error: with `SKG_ERR_NOT_EXECUTED` when no code of the skill has run.
    /// `SKG_E_EXHAUSTED`: no room now. `SKG_E_UNIMPLEMENTED`, not executed: it does not run this language.
    /// `SKG_E_OUT_OF_RANGE`, not executed: its code and arguments are more than it takes. -> `skg_run_result`.
    pub run: Option<unsafe extern "C" fn(*mut c_void, Op, *const RunRequest) -> i32>,
    /// Advice, idempotent, never blocks; races with completion, and with the beginning of `run()`: who
    /// registers an op asks `op_cancelled()` after that. The plugin still completes the op, soon, with
    /// `SKG_E_CANCELLED` or its result.
    pub cancel: Option<unsafe extern "C" fn(*mut c_void, Op)>,
    /// Asked now and then, and by `doctor`. -> `skg_health`.
    pub health: Option<unsafe extern "C" fn(*mut c_void, Op) -> i32>,
    /// Take no new work (`SKG_E_UNAVAILABLE`); complete when nothing is in flight. -> none.
    pub drain: Option<unsafe extern "C" fn(*mut c_void, Op) -> i32>,
    /// Once. All ops are complete. Returns when every thread that the instance started is gone; the host table
    /// is invalid afterwards. Called on a thread that may wait.
    pub destroy: Option<unsafe extern "C" fn(*mut c_void)>,
    /// As in `skg_host`; may be NULL.
    pub get_extension: Option<unsafe extern "C" fn(*mut c_void, *const u8) -> *const c_void>,
}

/// Makes sandbox instances.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SandboxFactory {
    /// Bytes of the producer's struct.
    pub struct_size: u32,
    /// Zero.
    pub reserved: u32,
    /// Once per instance. Returns `SKG_OK` and sets *out to an instance that stays valid until its `destroy()`;
    /// or an error < 0, with *err filled (its struct_size is set by the host; its strings static, or valid
    /// until the next call on this thread). Called on a thread that may wait. Refuses with `SKG_E_PRECONDITION`
    /// when this host lacks what the configuration requires, `SKG_E_INVALID_ARGUMENT` when the configuration is
    /// wrong. The name that `dladdr()` gives for the plugin's own code can be opened for reading: it is the
    /// file that was checked.
    pub create: Option<
        unsafe extern "C" fn(
            *const Host,
            *const CreateRequest,
            *mut *const Sandbox,
            *mut Error,
        ) -> i32,
    >,
}

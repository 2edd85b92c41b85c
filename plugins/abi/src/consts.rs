//! The constants, without `SKG_`, in the header's order.

/// Done; of a call that takes an op: accepted.
pub const OK: i32 = 0;
/// The caller no longer wanted it.
pub const E_CANCELLED: i32 = -1;
/// No better code fits.
pub const E_UNKNOWN: i32 = -2;
/// The request is wrong, whatever the state.
pub const E_INVALID_ARGUMENT: i32 = -3;
/// It took too long.
pub const E_DEADLINE: i32 = -4;
/// Not there, or another tenant's.
pub const E_NOT_FOUND: i32 = -5;
/// There, with other content.
pub const E_ALREADY_EXISTS: i32 = -6;
/// Not allowed.
pub const E_PERMISSION: i32 = -7;
/// Quota, pool, disk.
pub const E_EXHAUSTED: i32 = -8;
/// The state does not permit it.
pub const E_PRECONDITION: i32 = -9;
/// Conflict: retry the whole thing.
pub const E_ABORTED: i32 = -10;
/// Beyond the end or a limit.
pub const E_OUT_OF_RANGE: i32 = -11;
/// Not offered.
pub const E_UNIMPLEMENTED: i32 = -12;
/// A defect.
pub const E_INTERNAL: i32 = -13;
/// Not now.
pub const E_UNAVAILABLE: i32 = -14;
/// Digest mismatch, data loss.
pub const E_CORRUPT: i32 = -15;
/// Op or handle unknown or already done.
pub const E_STALE: i32 = -100;
/// Blocking host call on the event loop.
pub const E_WOULD_DEADLOCK: i32 = -101;
/// An SDK caught a panic or exception.
pub const E_PANIC: i32 = -102;
/// The other side broke this contract.
pub const E_PROTOCOL: i32 = -103;
/// The plugin's process died (host-made).
pub const E_CRASHED: i32 = -104;

/// Same request may succeed later.
pub const ERR_RETRYABLE: u32 = 0x1;
/// No skill code ran: safe to run again.
pub const ERR_NOT_EXECUTED: u32 = 0x2;
/// With `E_EXHAUSTED`: this tenant has used up what it may have.
pub const ERR_TENANT: u32 = 0x4;

/// Finest.
pub const LOG_TRACE: u32 = 1;
/// For developers.
pub const LOG_DEBUG: u32 = 2;
/// For operators.
pub const LOG_INFO: u32 = 3;
/// Something is off.
pub const LOG_WARN: u32 = 4;
/// Something failed.
pub const LOG_ERROR: u32 = 5;

/// Standard output of the skill.
pub const STDOUT: u32 = 1;
/// Standard error of the skill.
pub const STDERR: u32 = 2;
/// `runtime.log` of the in-sandbox helper.
pub const RUNLOG: u32 = 3;

/// No network at all.
pub const EGRESS_CAN_DENY: u32 = 0x1;
/// Hands host->gate_serve a listener that is reachable from inside; nothing else is.
pub const EGRESS_GATE_LISTENER: u32 = 0x2;
/// Remote: gate.url is reachable from inside; nothing else is.
pub const EGRESS_GATE_URL: u32 = 0x4;
/// Enforces `rules` itself. This version of the gateway does not use it.
pub const EGRESS_SELF_ENFORCED: u32 = 0x8;

/// Processes of this kernel.
pub const ISO_PROCESS: u32 = 1;
/// A container of this kernel.
pub const ISO_CONTAINER: u32 = 2;
/// A kernel of its own.
pub const ISO_MICROVM: u32 = 3;
/// Another machine.
pub const ISO_REMOTE: u32 = 4;

/// Enforces `wall_ms`.
pub const LIMIT_WALL: u32 = 0x01;
/// Enforces `cpu_ms`.
pub const LIMIT_CPU: u32 = 0x02;
/// Enforces `memory_bytes`.
pub const LIMIT_MEMORY: u32 = 0x04;
/// Enforces `max_pids`.
pub const LIMIT_PIDS: u32 = 0x08;
/// Enforces `disk_bytes` and `disk_inodes`.
pub const LIMIT_DISK: u32 = 0x10;
/// The code is not root.
pub const LIMIT_NONROOT: u32 = 0x20;

/// A directory or file that the host can see.
pub const SRC_PATH: u32 = 1;
/// An open descriptor; a directory may be one.
pub const SRC_FD: u32 = 2;
/// Fd of a plain tar of the directory.
pub const SRC_TAR: u32 = 3;
/// Fetch with host->blob_fd / blob_read.
pub const SRC_BLOB: u32 = 4;

/// No network: `gate_serve` is [`E_PERMISSION`].
pub const NET_NONE: u32 = 0;
/// Only through the gate, which enforces policy.
pub const NET_GATE: u32 = 1;
/// The plugin enforces `rules`.
pub const NET_SELF: u32 = 2;

/// `skg_run_request`.flags: the interpreter of this run shares no address layout and no hash seed with another run's.
pub const REQUEST_FRESH: u32 = 1;

/// The code returned.
pub const RUN_COMPLETED: u32 = 1;
/// The skill's own failure: not a `skg_error`.
pub const RUN_FAILED: u32 = 2;
/// `error_type`: over `wall_ms` or `cpu_ms`.
pub const RUN_TIMEOUT: &str = "Timeout";
/// `error_type`: over `memory_bytes`.
pub const RUN_OUT_OF_MEMORY: &str = "OutOfMemory";
/// `error_type`: over `max_pids`.
pub const RUN_TOO_MANY_PROCESSES: &str = "TooManyProcesses";
/// `error_type`: over `disk_bytes` or `disk_inodes`.
pub const RUN_DISK_FULL: &str = "DiskFull";
/// `error_type`: cancelled.
pub const RUN_CANCELLED: &str = "Cancelled";
/// `error_type`: the sandbox failed under the code.
pub const RUN_SANDBOX_ERROR: &str = "SandboxError";

/// All is well.
pub const HEALTH_OK: u32 = 1;
/// Works, with less than it should have.
pub const HEALTH_DEGRADED: u32 = 2;
/// Takes no work.
pub const HEALTH_DOWN: u32 = 3;

/// Has skills.
pub const ST_SKILLS: u32 = 0x1;
/// Takes `skill_put`.
pub const ST_SKILLS_WRITE: u32 = 0x2;
/// Has blobs.
pub const ST_BLOBS: u32 = 0x4;
/// Blob_fd gives descriptors.
pub const ST_BLOB_FD: u32 = 0x8;
/// What it holds ends with the instance's process, if not before: for tests and caches.
pub const ST_VOLATILE: u32 = 0x10;

/// `skg_skill`.flags: from the operator's own directories, the same for every tenant. The bundled store's alone: of any other
/// the skill is broken.
pub const SKILL_READ_ONLY: u32 = 0x1;

/// `data` has the bytes.
pub const CONTENT_DATA: u32 = 0;
/// Fd is a file, to be read from offset 0.
pub const CONTENT_FILE: u32 = 1;
/// Fd is the skill's directory.
pub const CONTENT_DIR: u32 = 2;
/// Fd is a plain tar of the directory.
pub const CONTENT_TAR: u32 = 3;

/// Calls may block: the host runs them on a thread pool, and every op is complete when its call returns.
pub const F_BLOCKING: u32 = 0x1;
/// Never load into the gateway itself: a host without plugin processes refuses the plugin.
pub const F_OWN_PROCESS: u32 = 0x2;
/// At most one instance per process.
pub const F_SINGLETON: u32 = 0x4;

/// Type of the ELF note; its owner is "SkillGate".
pub const NOTE_TYPE: u32 = 1;

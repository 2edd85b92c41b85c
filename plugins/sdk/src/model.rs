//! The contract's structs as plain Rust values, shared by the SDK (plugin side) and the host (gateway side).
//!
//! Nothing here knows about pointers; `skillgate_plugin.h` says what each field means.

use std::os::unix::io::OwnedFd;

/// Why a call failed. The codes are `skillgate_plugin_abi::E_*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// `E_*` of the ABI: negative.
    pub code: i32,
    /// One line for operators, without secrets.
    pub message: String,
    /// The same request may succeed later.
    pub retryable: bool,
    /// No skill code ran: safe to run again.
    pub not_executed: bool,
    /// This tenant has used up what it may have, and the store is not full: with `E_EXHAUSTED` a plugin's answer, with
    /// `E_UNAVAILABLE` the host's, of the calls that may wait for one.
    pub of_tenant: bool,
    /// Advice, 0 for none.
    pub retry_after_ms: u32,
    /// JSON for logs, or for a refused `create` the capability report. May be empty.
    pub detail_json: String,
}

/// What every call of a plugin answers.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error with a code of the ABI and a message.
    pub fn new(code: i32, message: impl Into<String>) -> Self {
        Error {
            code,
            message: message.into(),
            retryable: false,
            not_executed: false,
            of_tenant: false,
            retry_after_ms: 0,
            detail_json: String::new(),
        }
    }
    /// The same, marked as "no skill code ran".
    #[must_use]
    pub fn not_executed(mut self) -> Self {
        self.not_executed = true;
        self
    }
    /// The same, marked as "this tenant has used up what it may have".
    #[must_use]
    pub fn of_tenant(mut self) -> Self {
        self.of_tenant = true;
        self
    }
    /// The same, marked as worth another try after `retry_after_ms`.
    #[must_use]
    pub fn retryable(mut self, retry_after_ms: u32) -> Self {
        self.retryable = true;
        self.retry_after_ms = retry_after_ms;
        self
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (code {})", self.message, self.code)
    }
}

impl std::error::Error for Error {}

/// What an instance is made from.
#[derive(Debug, Clone, Default)]
pub struct CreateRequest {
    /// The same after a restart: mark what you make with it, and sweep what an earlier life left behind, which bears your mark.
    pub instance_id: String,
    /// A private directory, kept across restarts, whichever plugin has it then.
    pub state_dir: String,
    /// The plugin's own section of the configuration: a JSON object.
    pub config_json: Vec<u8>,
}

/// How an instance is doing.
#[derive(Debug, Clone, Default)]
pub struct Health {
    /// `HEALTH_*` of the ABI.
    pub state: u32,
    /// Runs or calls in flight.
    pub in_flight: u32,
    /// How many more it would take now.
    pub capacity: u32,
    /// One line.
    pub message: String,
    /// Flat `{"name": number}`, or empty.
    pub metrics_json: String,
    /// What this host can and cannot enforce: `[{"layer","state","detail","advice"}]`, or empty.
    pub report_json: String,
}

// === storage ===

/// A skill version as the store has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Skill {
    /// From the operator's own directories, the same for every tenant (`SKILL_READ_ONLY`). The bundled store's alone: of any other
    /// the skill is broken.
    pub read_only: bool,
    /// `salesforce.leads.sync`
    pub name: String,
    /// SemVer.
    pub version: String,
    /// Of the manifest, or the first segment of the name.
    pub namespace: String,
    /// `action` or `instruction`.
    pub kind: String,
    /// One line.
    pub description: String,
    /// 64 lower-case hex digits; see [`PutSkill::tree_sha256`].
    pub tree_sha256: String,
    /// The subject that published it, or empty.
    pub publisher: String,
    /// `skill.toml` as JSON: get and put only, empty in a list.
    pub manifest_json: Vec<u8>,
    /// Sorted by path: get and put only, empty in a list.
    pub files: Vec<SkillFile>,
}

/// One file of a skill.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SkillFile {
    /// `code/main.py`
    pub path: String,
    /// 64 lower-case hex digits.
    pub sha256: String,
    /// Bytes.
    pub size_bytes: u64,
}

/// Which version of a skill.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SkillRef {
    /// Whose.
    pub tenant: String,
    /// Name.
    pub name: String,
    /// SemVer; empty: the latest.
    pub version: String,
}

/// A place in the order of a listing: namespace, name, version descending. All empty: before the first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SkillKey {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Version.
    pub version: String,
}

/// What to list.
#[derive(Debug, Clone, Default)]
pub struct SkillQuery {
    /// 1 to 1000.
    pub limit: u32,
    /// Whose.
    pub tenant: String,
    /// Empty: all; else that namespace and all below it.
    pub namespace: String,
    /// Only what sorts strictly after this.
    pub after: SkillKey,
}

/// A page of a listing.
#[derive(Debug, Clone, Default)]
pub struct SkillPage {
    /// There is at least one more after these.
    pub more: bool,
    /// In order.
    pub skills: Vec<Skill>,
}

/// Bytes, by value or by descriptor.
#[derive(Debug)]
pub enum Content {
    /// The bytes.
    Data(Vec<u8>),
    /// A file, to be read from offset 0.
    File(OwnedFd, u64),
    /// A directory.
    Dir(OwnedFd),
    /// A plain tar of the directory.
    Tar(OwnedFd, u64),
}

/// A new skill version.
#[derive(Debug, Clone, Default)]
pub struct PutSkill {
    /// Whose.
    pub tenant: String,
    /// Name.
    pub name: String,
    /// SemVer.
    pub version: String,
    /// Namespace.
    pub namespace: String,
    /// `action` or `instruction`.
    pub kind: String,
    /// One line.
    pub description: String,
    /// The subject.
    pub publisher: String,
    /// sha256 over, for each file by path, `"<path>\0<sha256 of its content, 64 hex>\n"`.
    pub tree_sha256: String,
    /// `skill.toml` as JSON.
    pub manifest_json: Vec<u8>,
    /// Path and content, sorted by path, `skill.toml` and `SKILL.md` included.
    pub files: Vec<(String, Vec<u8>)>,
}

/// What is known of a blob.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BlobStat {
    /// `blob:` and at least 128 random bits, as 22 to 123 of `A-Z a-z 0-9 . _ -`, the first of them no `.`.
    pub id: String,
    /// MIME type.
    pub kind: String,
    /// Bytes.
    pub size_bytes: u64,
    /// 64 lower-case hex digits.
    pub sha256: String,
    /// The subject that created it.
    pub owner: String,
    /// Milliseconds since 1970.
    pub created_unix_ms: u64,
}

/// What a new blob is to be.
#[derive(Debug, Clone, Default)]
pub struct BlobCreate {
    /// Whose.
    pub tenant: String,
    /// MIME type.
    pub kind: String,
    /// The subject.
    pub owner: String,
    /// The run that made it, or empty.
    pub run_id: String,
    /// A write beyond it is `E_OUT_OF_RANGE`.
    pub max_bytes: u64,
    /// After this it is as if deleted; 0: never.
    pub ttl_s: u64,
}

// === sandbox ===

/// What a sandbox can do (`skg_sandbox_caps`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SandboxCaps {
    /// `EGRESS_*`.
    pub egress: u32,
    /// 0: no limit of its own.
    pub max_concurrent: u32,
    /// `ISO_*`.
    pub isolation: u32,
    /// Largest limit it can enforce; 0: cannot.
    pub max_memory_bytes: u64,
    /// Longest `wall_ms` that it takes, in milliseconds; 0: any.
    pub max_timeout_ms: u64,
    /// `LIMIT_*` that it really enforces.
    pub enforces: u32,
}

/// Limits of a run; 0 is "none" except for `wall_ms`, which is always set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Limits {
    /// Processes and threads.
    pub max_pids: u32,
    /// The host cancels at this deadline, or 2 s after it where the caps say that the sandbox enforces it.
    pub wall_ms: u64,
    /// CPU time.
    pub cpu_ms: u64,
    /// Memory.
    pub memory_bytes: u64,
    /// `/workspace`, `/tmp` and `/dev/shm` together.
    pub disk_bytes: u64,
    /// Files and directories there.
    pub disk_inodes: u64,
    /// Largest `output`; the guest stores what is larger as a blob.
    pub output_bytes: u64,
}

/// Where the content of a mount comes from.
#[derive(Debug)]
pub enum Source {
    /// A path that the host can see.
    Path(String),
    /// An open descriptor: a directory or a file.
    Fd(OwnedFd),
    /// A plain tar of the directory.
    Tar(OwnedFd),
    /// Fetch with the run's `blob_fd` or `blob_read`.
    Blob(String),
}

/// One mount inside the sandbox.
#[derive(Debug)]
pub struct Mount {
    /// Absolute path inside: `/skills/acme.x`, `/blobs/<id without "blob:">`.
    pub target: String,
    /// Always true today.
    pub read_only: bool,
    /// Where from.
    pub source: Source,
    /// Of the content (tree digest or blob digest), or empty; a cache key.
    pub sha256: String,
    /// Bytes, 0 when not known.
    pub size_bytes: u64,
}

/// A skill that the code can import; its directory is mounted at `/skills/<name>`.
#[derive(Debug, Clone, Default)]
pub struct RunSkill {
    /// Name.
    pub name: String,
    /// Version.
    pub version: String,
    /// `code/main.py`; empty: an instruction skill.
    pub entrypoint: String,
    /// `runtime.export` of the manifest.
    pub function: String,
}

/// One run: create, execute, collect, destroy.
#[derive(Debug, Default)]
pub struct RunRequest {
    /// `run_...`
    pub run_id: String,
    /// Whose.
    pub tenant: String,
    /// `python`
    pub language: String,
    /// run_code: source; execute_skill: empty.
    pub code: String,
    /// execute_skill: which of `skills` to call; run_code: empty.
    pub skill: String,
    /// What to call.
    pub function: String,
    /// A JSON object.
    pub args_json: Vec<u8>,
    /// Importable.
    pub skills: Vec<RunSkill>,
    /// The skills' directories and the input blobs.
    pub mounts: Vec<Mount>,
    /// Plain, not secret.
    pub env: Vec<(String, String)>,
    /// Names; the values come from the run's `secret`.
    pub secrets: Vec<String>,
    /// Limits.
    pub limits: Limits,
    /// `NET_*`.
    pub network: u32,
    /// An interpreter that shares no address layout and no hash seed with another run's.
    pub fresh: bool,
    /// W3C Trace Context, version 00, of the call: what a plugin does for it may be a span below. May be empty.
    pub traceparent: String,
}

/// How a run ended. A run that failed by its own doing is a result, not an [`Error`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RunResult {
    /// Completed, or failed.
    pub completed: bool,
    /// JSON of what the function returned; empty when there is none.
    pub output_json: Vec<u8>,
    /// The output was over `limits.output_bytes` and is the last of `output_blobs`.
    pub output_spilled: bool,
    /// What the code said of itself, or empty.
    pub summary: String,
    /// `ValueError`, `Timeout`, ...; empty when completed.
    pub error_type: String,
    /// Traceback or sentence; empty when completed.
    pub error_message: String,
    /// Ids from the run's `blob_finish`, in order.
    pub output_blobs: Vec<String>,
    /// Exit code of the first process.
    pub exit_code: i32,
    /// Signal that ended it, or 0.
    pub signal: i32,
    /// Until the sandbox was ready.
    pub create_us: u64,
    /// Of the code.
    pub exec_us: u64,
    /// CPU time of everything in the sandbox; 0 when not known.
    pub cpu_us: u64,
    /// Peak memory; 0 when not known.
    pub peak_memory_bytes: u64,
}

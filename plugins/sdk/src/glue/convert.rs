//! Requests of the host as plain values, and plain values as answers to the host.

use std::ffi::c_void;
use std::os::unix::io::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};

use skillgate_plugin_abi as abi;

use super::malformed;
use crate::model::{
    BlobCreate, BlobStat, Content, CreateRequest, Error, Health, Limits, Mount, PutSkill,
    RunRequest, RunResult, RunSkill, Skill, SkillFile, SkillKey, SkillPage, SkillQuery, Source,
};
use crate::wire::{self, size_of_u32, Malformed, Reader};

type Read<T> = Result<T, Malformed>;

/// Why a request with descriptors is not taken.
pub(super) enum Refused {
    Malformed(Malformed),
    /// The request is as it should be; there is no room for its descriptors now.
    NoRoom(String),
}

impl From<Malformed> for Refused {
    fn from(why: Malformed) -> Self {
        Refused::Malformed(why)
    }
}

impl From<Refused> for Error {
    fn from(why: Refused) -> Self {
        match why {
            Refused::Malformed(why) => malformed(why),
            Refused::NoRoom(why) => Error::new(abi::E_EXHAUSTED, why)
                .not_executed()
                .retryable(NO_ROOM_MS),
        }
    }
}

/// When a run for which there was no descriptor is worth another try: others have ended by then.
const NO_ROOM_MS: u32 = 1000;
/// The system's numbers for "this process has as many files open as it may have", and the same of the whole system.
const EMFILE: i32 = 24;
const ENFILE: i32 = 23;

/// Most elements in a list of a request. The host is trusted with sizes; this only keeps a garbled length from being an
/// allocation.
const MAX: u32 = 1_000_000;
const ANY: usize = usize::MAX;

fn reader() -> Reader {
    Reader::new(ANY)
}

/// # Safety
/// As [`Reader::text`].
pub(super) unsafe fn text(s: abi::Str, what: &str) -> Read<String> {
    // SAFETY: the caller's promise.
    unsafe { reader().text(s, what, ANY) }
}

/// # Safety
/// `b` is readable as long as the result lives, or null.
pub(super) unsafe fn data<'a>(b: abi::Bytes, what: &str) -> Read<&'a [u8]> {
    if b.len > 0 && (b.ptr.is_null() || b.len > wire::LONGEST as u64) {
        let len = b.len;
        return Err(Malformed(format!(
            "{what}: null or too large, with length {len}"
        )));
    }
    // SAFETY: no longer than a slice may be; the caller's promise.
    Ok(unsafe { b.bytes() })
}

/// # Safety
/// `cap` initialised bytes at `buf` are the callee's as long as the result lives, or `buf` is null.
pub(super) unsafe fn buffer<'a>(buf: *mut c_void, cap: u64) -> Read<&'a mut [u8]> {
    match usize::try_from(cap) {
        Ok(0) => Ok(&mut []),
        Ok(cap) if !buf.is_null() && cap <= wire::LONGEST => {
            // SAFETY: not null, and no longer than a slice may be; the caller's promise.
            Ok(unsafe { std::slice::from_raw_parts_mut(buf.cast(), cap) })
        }
        _ => Err(Malformed(format!("buf: null or too large, with cap {cap}"))),
    }
}

/// # Safety
/// The host's request, good during the call.
pub(super) unsafe fn create(p: *const abi::CreateRequest) -> Read<CreateRequest> {
    // SAFETY: the caller's promise.
    unsafe {
        let r = wire::prefix(p, "request")?;
        Ok(CreateRequest {
            instance_id: text(r.instance_id, "instance_id")?,
            state_dir: text(r.state_dir, "state_dir")?,
            config_json: reader().bytes(r.config_json, "config_json", ANY)?,
        })
    }
}

/// Name and version.
///
/// # Safety
/// The host's request, good during the call.
pub(super) unsafe fn skill_ref(p: *const abi::SkillRef) -> Read<(String, String)> {
    if p.is_null() {
        return Err(Malformed("skill_ref: is null".into()));
    }
    // SAFETY: not null; a frozen type; the caller's promise.
    unsafe {
        let r = p.read_unaligned();
        Ok((text(r.name, "name")?, text(r.version, "version")?))
    }
}

/// # Safety
/// The host's request, good during the call.
pub(super) unsafe fn list(p: *const abi::ListRequest) -> Read<SkillQuery> {
    // SAFETY: the caller's promise.
    unsafe {
        let r = wire::prefix(p, "request")?;
        Ok(SkillQuery {
            limit: r.limit,
            tenant: text(r.tenant, "tenant")?,
            namespace: text(r.namespace_, "namespace")?,
            after: SkillKey {
                namespace: text(r.after.namespace_, "after.namespace")?,
                name: text(r.after.name, "after.name")?,
                version: text(r.after.version, "after.version")?,
            },
        })
    }
}

/// # Safety
/// The host's request, good during the call.
pub(super) unsafe fn put(p: *const abi::PutSkill) -> Read<PutSkill> {
    // SAFETY: the caller's promise; every bit pattern is a skg_put_file.
    unsafe {
        let r = wire::prefix(p, "request")?;
        let mut files = Vec::new();
        for f in reader().frozen::<abi::PutFile>(r.files, "files", MAX)? {
            let data = reader().bytes(f.data, "files.data", ANY)?;
            files.push((text(f.path, "files.path")?, data));
        }
        Ok(PutSkill {
            tenant: text(r.tenant, "tenant")?,
            name: text(r.name, "name")?,
            version: text(r.version, "version")?,
            namespace: text(r.namespace_, "namespace")?,
            kind: text(r.kind, "kind")?,
            description: text(r.description, "description")?,
            publisher: text(r.publisher, "publisher")?,
            tree_sha256: text(r.tree_sha256, "tree_sha256")?,
            manifest_json: reader().bytes(r.manifest_json, "manifest_json", ANY)?,
            files,
        })
    }
}

/// # Safety
/// The host's request, good during the call.
pub(super) unsafe fn blob_create(p: *const abi::BlobCreateRequest) -> Read<BlobCreate> {
    // SAFETY: the caller's promise.
    unsafe {
        let r = wire::prefix(p, "request")?;
        Ok(BlobCreate {
            tenant: text(r.tenant, "tenant")?,
            kind: text(r.kind, "kind")?,
            owner: text(r.owner, "owner")?,
            run_id: text(r.run_id, "run_id")?,
            max_bytes: r.max_bytes,
            ttl_s: r.ttl_s,
        })
    }
}

/// A descriptor of a request stays the host's: this is the plugin's own, close-on-exec.
///
/// # Safety
/// `fd` is open during the call, as the contract says.
unsafe fn dup(fd: abi::Fd, what: &str) -> Result<OwnedFd, Refused> {
    if fd < 0 {
        return Err(Malformed(format!("{what}: no descriptor")).into());
    }
    // SAFETY: not -1; open by the caller's promise.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    borrowed.try_clone_to_owned().map_err(|e| {
        let why = format!("{what}: descriptor {fd}: {e}");
        match e.raw_os_error() {
            Some(EMFILE | ENFILE) => Refused::NoRoom(why),
            _ => Malformed(why).into(),
        }
    })
}

/// # Safety
/// A mount of the host's request, good during the call.
unsafe fn mount(m: &abi::Mount) -> Result<Mount, Refused> {
    // SAFETY: the caller's promise.
    unsafe {
        Ok(Mount {
            target: text(m.target, "mounts.target")?,
            read_only: m.read_only != 0,
            source: match m.source_kind {
                abi::SRC_PATH => Source::Path(text(m.path, "mounts.path")?),
                abi::SRC_FD => Source::Fd(dup(m.fd, "mounts.fd")?),
                abi::SRC_TAR => Source::Tar(dup(m.fd, "mounts.fd")?),
                abi::SRC_BLOB => Source::Blob(text(m.blob_id, "mounts.blob_id")?),
                kind => {
                    let why = format!("mounts.source_kind: {kind} is not known to this plugin");
                    return Err(Malformed(why).into());
                }
            },
            sha256: text(m.sha256, "mounts.sha256")?,
            size_bytes: m.size_bytes,
        })
    }
}

/// # Safety
/// The host's request, good during the call.
pub(super) unsafe fn run(p: *const abi::RunRequest) -> Result<RunRequest, Refused> {
    // SAFETY: the caller's promise; every bit pattern is a skg_kv and a skg_str.
    unsafe {
        let r = wire::prefix(p, "request")?;
        let limits = wire::prefix(r.limits, "limits")?;
        let gate = if r.gate.is_null() {
            wire::zeroed()
        } else {
            wire::prefix(r.gate, "gate")?
        };
        let mut skills = Vec::new();
        for s in reader().items::<abi::RunSkill>(r.skills, "skills", MAX)? {
            skills.push(RunSkill {
                name: text(s.name, "skills.name")?,
                version: text(s.version, "skills.version")?,
                entrypoint: text(s.entrypoint, "skills.entrypoint")?,
                function: text(s.function, "skills.function")?,
            });
        }
        let mut mounts = Vec::new();
        for m in reader().items::<abi::Mount>(r.mounts, "mounts", MAX)? {
            mounts.push(mount(&m)?);
        }
        let mut env = Vec::new();
        for pair in reader().frozen::<abi::Kv>(r.env, "env", MAX)? {
            env.push((text(pair.key, "env.key")?, text(pair.value, "env.value")?));
        }
        let mut secrets = Vec::new();
        for name in reader().frozen::<abi::Str>(r.secrets, "secrets", MAX)? {
            secrets.push(text(name, "secrets")?);
        }
        Ok(RunRequest {
            run_id: text(r.run_id, "run_id")?,
            tenant: text(r.tenant, "tenant")?,
            language: text(r.language, "language")?,
            code: text(r.code, "code")?,
            skill: text(r.skill, "skill")?,
            function: text(r.function, "function")?,
            args_json: reader().bytes(r.args_json, "args_json", ANY)?,
            skills,
            mounts,
            env,
            secrets,
            limits: Limits {
                max_pids: limits.max_pids,
                wall_ms: limits.wall_ms,
                cpu_ms: limits.cpu_ms,
                memory_bytes: limits.memory_bytes,
                disk_bytes: limits.disk_bytes,
                disk_inodes: limits.disk_inodes,
                output_bytes: limits.output_bytes,
            },
            network: gate.mode,
            fresh: r.flags & abi::REQUEST_FRESH != 0,
            traceparent: text(r.traceparent, "traceparent")?,
        })
    }
}

// === answers: each lends a C struct to `complete` ===

pub(super) type Complete<'a> = &'a mut dyn FnMut(*const c_void) -> i32;

fn lend<T>(answer: &T, complete: Complete<'_>) -> i32 {
    complete((answer as *const T).cast())
}

pub(super) fn none((): (), complete: Complete<'_>) {
    complete(std::ptr::null());
}

pub(super) fn health(h: Health, complete: Complete<'_>) {
    let answer = abi::Health {
        struct_size: size_of_u32::<abi::Health>(),
        state: h.state,
        in_flight: h.in_flight,
        capacity: h.capacity,
        message: abi::Str::of(&h.message),
        metrics_json: abi::Str::of(&h.metrics_json),
        report_json: abi::Str::of(&h.report_json),
    };
    lend(&answer, complete);
}

fn skill_files(s: &Skill) -> Vec<abi::SkillFile> {
    let file = |f: &SkillFile| abi::SkillFile {
        struct_size: size_of_u32::<abi::SkillFile>(),
        reserved: 0,
        path: abi::Str::of(&f.path),
        sha256: abi::Str::of(&f.sha256),
        size_bytes: f.size_bytes,
    };
    s.files.iter().map(file).collect()
}

fn skill_with(s: &Skill, files: &[abi::SkillFile]) -> abi::Skill {
    abi::Skill {
        struct_size: size_of_u32::<abi::Skill>(),
        flags: if s.read_only { abi::SKILL_READ_ONLY } else { 0 },
        name: abi::Str::of(&s.name),
        version: abi::Str::of(&s.version),
        namespace_: abi::Str::of(&s.namespace),
        kind: abi::Str::of(&s.kind),
        description: abi::Str::of(&s.description),
        tree_sha256: abi::Str::of(&s.tree_sha256),
        publisher: abi::Str::of(&s.publisher),
        manifest_json: abi::Bytes::of(&s.manifest_json),
        files: abi::List::of(files),
    }
}

pub(super) fn skill(s: Skill, complete: Complete<'_>) {
    let files = skill_files(&s);
    lend(&skill_with(&s, &files), complete);
}

pub(super) fn skill_page(page: SkillPage, complete: Complete<'_>) {
    let files: Vec<_> = page.skills.iter().map(skill_files).collect();
    let with_files = page.skills.iter().zip(&files);
    let skills: Vec<_> = with_files.map(|(s, f)| skill_with(s, f)).collect();
    let answer = abi::SkillPage {
        struct_size: size_of_u32::<abi::SkillPage>(),
        more: u32::from(page.more),
        skills: abi::List::of(&skills),
    };
    lend(&answer, complete);
}

/// A descriptor goes to the host when the host says OK; else it stays ours and is closed.
fn lend_with_fd<T>(fd: OwnedFd, answer: &T, complete: Complete<'_>) {
    if lend(answer, complete) == abi::OK {
        // The host's now, and the host closes it.
        let _ = fd.into_raw_fd();
    }
}

pub(super) fn content(content: Content, complete: Complete<'_>) {
    let mut answer = abi::Content {
        struct_size: size_of_u32::<abi::Content>(),
        kind: abi::CONTENT_DATA,
        fd: -1,
        reserved: 0,
        data: abi::Bytes::EMPTY,
        size_bytes: 0,
    };
    let (kind, fd, size_bytes) = match content {
        Content::Data(data) => {
            answer.data = abi::Bytes::of(&data);
            answer.size_bytes = data.len() as u64;
            lend(&answer, complete);
            return;
        }
        Content::File(fd, size) => (abi::CONTENT_FILE, fd, size),
        Content::Dir(fd) => (abi::CONTENT_DIR, fd, 0),
        Content::Tar(fd, size) => (abi::CONTENT_TAR, fd, size),
    };
    answer.kind = kind;
    answer.fd = fd.as_raw_fd();
    answer.size_bytes = size_bytes;
    lend_with_fd(fd, &answer, complete);
}

fn stat(s: &BlobStat) -> abi::BlobStat {
    abi::BlobStat {
        struct_size: size_of_u32::<abi::BlobStat>(),
        flags: 0,
        size_bytes: s.size_bytes,
        id: abi::Str::of(&s.id),
        kind: abi::Str::of(&s.kind),
        sha256: abi::Str::of(&s.sha256),
        owner: abi::Str::of(&s.owner),
        created_unix_ms: s.created_unix_ms,
    }
}

pub(super) fn blob_stat(s: BlobStat, complete: Complete<'_>) {
    lend(&stat(&s), complete);
}

/// The reader is the host's when this returns OK.
pub(super) fn blob_reader(reader: u64, s: &BlobStat, complete: Complete<'_>) -> i32 {
    let stat = stat(s);
    let answer = abi::BlobOpened {
        struct_size: size_of_u32::<abi::BlobOpened>(),
        fd: -1,
        reader,
        stat: std::ptr::addr_of!(stat),
    };
    lend(&answer, complete)
}

pub(super) fn blob_fd((fd, s): (OwnedFd, BlobStat), complete: Complete<'_>) {
    let stat = stat(&s);
    let answer = abi::BlobOpened {
        struct_size: size_of_u32::<abi::BlobOpened>(),
        fd: fd.as_raw_fd(),
        reader: 0,
        stat: std::ptr::addr_of!(stat),
    };
    lend_with_fd(fd, &answer, complete);
}

/// The writer is the host's when this returns OK.
pub(super) fn handle(handle: u64, complete: Complete<'_>) -> i32 {
    lend(&abi::Handle { handle }, complete)
}

pub(super) fn count((n, eof): (usize, bool), complete: Complete<'_>) {
    let answer = abi::Count {
        n: n as u64,
        eof: u64::from(eof),
    };
    lend(&answer, complete);
}

pub(super) fn run_result(r: RunResult, complete: Complete<'_>) {
    let output_blobs: Vec<_> = r.output_blobs.iter().map(|id| abi::Str::of(id)).collect();
    let answer = abi::RunResult {
        struct_size: size_of_u32::<abi::RunResult>(),
        status: if r.completed {
            abi::RUN_COMPLETED
        } else {
            abi::RUN_FAILED
        },
        output_json: abi::Bytes::of(&r.output_json),
        summary: abi::Str::of(&r.summary),
        error_type: abi::Str::of(&r.error_type),
        error_message: abi::Str::of(&r.error_message),
        output_blobs: abi::List::of(&output_blobs),
        exit_code: r.exit_code,
        signal: r.signal,
        create_us: r.create_us,
        exec_us: r.exec_us,
        cpu_us: r.cpu_us,
        peak_memory_bytes: r.peak_memory_bytes,
        output_spilled: u32::from(r.output_spilled),
        reserved: 0,
    };
    lend(&answer, complete);
}

//! The structs of a storage plugin, in the header's order.

use core::ffi::c_void;

use crate::{BlobStat, Bytes, CreateRequest, Error, Fd, Host, List, Op, Str};

/// Which skill; `version` empty: the latest. Frozen.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SkillRef {
    /// Name.
    pub name: Str,
    /// SemVer.
    pub version: Str,
}

/// A place in the order of `skill_list`. All empty: before the first. Frozen.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SkillKey {
    /// Namespace.
    pub namespace_: Str,
    /// Name.
    pub name: Str,
    /// SemVer.
    pub version: Str,
}

/// One file of a skill.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SkillFile {
    /// Bytes of the producer's struct.
    pub struct_size: u32,
    /// Zero.
    pub reserved: u32,
    /// "code/main.py": '/', relative, no "..".
    pub path: Str,
    /// 64 lower-case hex digits.
    pub sha256: Str,
    /// Bytes.
    pub size_bytes: u64,
}

/// A skill version.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Skill {
    /// Bytes of the producer's struct.
    pub struct_size: u32,
    /// `SKG_SKILL_*`.
    pub flags: u32,
    /// Name.
    pub name: Str,
    /// SemVer.
    pub version: Str,
    /// Namespace.
    pub namespace_: Str,
    /// "action" or "instruction".
    pub kind: Str,
    /// One line.
    pub description: Str,
    /// Over its files, see `skg_put_skill`; 64 hex.
    pub tree_sha256: Str,
    /// Subject that published it, or empty.
    pub publisher: Str,
    /// Get and put: skill.toml as JSON.
    pub manifest_json: Bytes,
    /// Get and put: `skg_skill_file`, sorted by path.
    pub files: List,
}

/// What to list.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ListRequest {
    /// Bytes of the producer's struct.
    pub struct_size: u32,
    /// 1 to 1000.
    pub limit: u32,
    /// Whose.
    pub tenant: Str,
    /// Empty: all; "skills" finds "skills" itself and all below it ("skills.protocol").
    pub namespace_: Str,
    /// Only what sorts strictly after this.
    pub after: SkillKey,
}

/// A page of a listing.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SkillPage {
    /// Bytes of the producer's struct.
    pub struct_size: u32,
    /// 1: there is at least one more after these.
    pub more: u32,
    /// `skg_skill`, in the order of `skg_skill_key`.
    pub skills: List,
}

/// Bytes, by value or by descriptor.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Content {
    /// Bytes of the producer's struct.
    pub struct_size: u32,
    /// `SKG_CONTENT_*`.
    pub kind: u32,
    /// Owned by the receiver, or -1.
    pub fd: Fd,
    /// Zero.
    pub reserved: u32,
    /// The bytes.
    pub data: Bytes,
    /// Of the file or data.
    pub size_bytes: u64,
}

/// A file to publish. Frozen.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PutFile {
    /// Relative, with `/`.
    pub path: Str,
    /// The bytes.
    pub data: Bytes,
}

/// A new skill version.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PutSkill {
    /// Bytes of the producer's struct.
    pub struct_size: u32,
    /// Zero today.
    pub flags: u32,
    /// Whose.
    pub tenant: Str,
    /// Name.
    pub name: Str,
    /// SemVer.
    pub version: Str,
    /// Namespace.
    pub namespace_: Str,
    /// Kind: of a skill "action" or "instruction", of a blob a MIME type.
    pub kind: Str,
    /// One line.
    pub description: Str,
    /// The subject.
    pub publisher: Str,
    /// Digest of the content, 64 lower-case hex digits.
    pub tree_sha256: Str,
    /// `skill.toml` as JSON.
    pub manifest_json: Bytes,
    /// `skg_put_file`, skill.toml and SKILL.md included, sorted by path.
    pub files: List,
}

/// A reader or a descriptor of a blob.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BlobOpened {
    /// Bytes of the producer's struct.
    pub struct_size: u32,
    /// Blob_fd: owned by the receiver; else -1.
    pub fd: Fd,
    /// Blob_open: for blob_read and blob_close.
    pub reader: u64,
    /// What is known of the blob.
    pub stat: *const BlobStat,
}

/// How much was read. Frozen.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Count {
    /// Bytes.
    pub n: u64,
    /// 1: the end is reached.
    pub eof: u64,
}

/// A writer. Frozen.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Handle {
    /// Never 0.
    pub handle: u64,
}

/// What a new blob is to be.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BlobCreateRequest {
    /// Bytes of the producer's struct.
    pub struct_size: u32,
    /// Zero today.
    pub flags: u32,
    /// Whose.
    pub tenant: Str,
    /// Kind: of a skill "action" or "instruction", of a blob a MIME type.
    pub kind: Str,
    /// Subject.
    pub owner: Str,
    /// The run that made it, or empty.
    pub run_id: Str,
    /// A write beyond it is `SKG_E_OUT_OF_RANGE`.
    pub max_bytes: u64,
    /// After this it is as if deleted; 0: never.
    pub ttl_s: u64,
}

/// An instance of a storage plugin.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Storage {
    /// Bytes of the producer's struct.
    pub struct_size: u32,
    /// Zero.
    pub reserved: u32,
    /// Goes back as the first argument of every function.
    pub self_: *mut c_void,
    /// Sets *out_flags (`SKG_ST_*`). Asked once, after `create()`.
    pub caps: Option<unsafe extern "C" fn(*mut c_void, *mut u32) -> i32>,
    /// Advice, as in `skg_sandbox`.
    pub cancel: Option<unsafe extern "C" fn(*mut c_void, Op)>,
    /// -> `skg_health`.
    pub health: Option<unsafe extern "C" fn(*mut c_void, Op) -> i32>,
    /// -> none.
    pub drain: Option<unsafe extern "C" fn(*mut c_void, Op) -> i32>,
    /// Once.
    pub destroy: Option<unsafe extern "C" fn(*mut c_void)>,
    /// As in `skg_host`; may be null.
    pub get_extension: Option<unsafe extern "C" fn(*mut c_void, *const u8) -> *const c_void>,
    /// A page of the tenant's skills: every version is an element, without manifest and files. ->
    /// `skg_skill_page`.
    pub skill_list: Option<unsafe extern "C" fn(*mut c_void, Op, *const ListRequest) -> i32>,
    /// One version with manifest and files. "latest": the highest version by SemVer precedence, a pre-release
    /// only when there is nothing else. -> `skg_skill`.
    pub skill_get: Option<unsafe extern "C" fn(*mut c_void, Op, Str, *const SkillRef) -> i32>,
    /// One file of a version. -> `skg_content`: DATA or FILE.
    pub skill_read: Option<unsafe extern "C" fn(*mut c_void, Op, Str, *const SkillRef, Str) -> i32>,
    /// A version's directory, to be mounted where code reads it that may be another user's: all of it is readable by
    /// others (files o+r, directories o+rx), whatever the umask. -> `skg_content`: DIR or TAR.
    pub skill_tree: Option<unsafe extern "C" fn(*mut c_void, Op, Str, *const SkillRef) -> i32>,
    /// Publishes a version; the answer is what skill_get would say. `SKG_E_ALREADY_EXISTS`: it is there with
    /// other content. `SKG_E_UNIMPLEMENTED`: read-only (no `SKG_ST_SKILLS_WRITE`). -> `skg_skill`.
    pub skill_put: Option<unsafe extern "C" fn(*mut c_void, Op, *const PutSkill) -> i32>,
    /// A writer (> 0), until blob_commit or blob_abort. Of writers that nobody ended, the next `create()` of
    /// this instance throws the remains away. -> `skg_handle`.
    pub blob_create: Option<unsafe extern "C" fn(*mut c_void, Op, *const BlobCreateRequest) -> i32>,
    /// Appends. `SKG_E_OUT_OF_RANGE`: beyond max_bytes. `SKG_E_STALE`: no such writer. -> none.
    pub blob_write: Option<unsafe extern "C" fn(*mut c_void, Op, u64, Bytes) -> i32>,
    /// Makes the blob visible. The writer is gone with the op, also when that fails; refused, it stays. -> `skg_blob_stat`.
    pub blob_commit: Option<unsafe extern "C" fn(*mut c_void, Op, u64) -> i32>,
    /// Throws the writer away; an unknown one is ignored. No op of it is in flight; the call that has completed the
    /// last one may not have returned yet. Called on a thread that may wait.
    pub blob_abort: Option<unsafe extern "C" fn(*mut c_void, u64)>,
    /// What is known of a blob. -> `skg_blob_stat`.
    pub blob_stat: Option<unsafe extern "C" fn(*mut c_void, Op, Str, Str) -> i32>,
    /// A reader (> 0) of `[offset, offset+len)`, until blob_close; len 0: to the end. What it gives has been
    /// checked against the digest, else `SKG_E_CORRUPT`. `SKG_E_OUT_OF_RANGE`: offset is beyond the end. ->
    /// `skg_blob_opened`.
    pub blob_open: Option<unsafe extern "C" fn(*mut c_void, Op, Str, Str, u64, u64) -> i32>,
    /// The next bytes, at most cap; n may be smaller without being the end, which eof says. -> `skg_count`.
    pub blob_read: Option<unsafe extern "C" fn(*mut c_void, Op, u64, *mut c_void, u64) -> i32>,
    /// As blob_abort, for a reader.
    pub blob_close: Option<unsafe extern "C" fn(*mut c_void, u64)>,
    /// A read-only, seekable descriptor of the checked content (`SKG_ST_BLOB_FD`); a file that has a name is o+r.
    /// -> `skg_blob_opened`.
    pub blob_fd: Option<unsafe extern "C" fn(*mut c_void, Op, Str, Str) -> i32>,
    /// From then on it is as if it had never been; open readers may go on. -> none.
    pub blob_delete: Option<unsafe extern "C" fn(*mut c_void, Op, Str, Str) -> i32>,
}

/// Makes storage instances.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct StorageFactory {
    /// Bytes of the producer's struct.
    pub struct_size: u32,
    /// Zero.
    pub reserved: u32,
    /// As that of `skg_sandbox_factory`.
    pub create: Option<
        unsafe extern "C" fn(
            *const Host,
            *const CreateRequest,
            *mut *const Storage,
            *mut Error,
        ) -> i32,
    >,
}

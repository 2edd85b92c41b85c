//! The contract's values in bytes: each struct once, field by field, with the bound of each field.

use std::os::fd::{AsRawFd, OwnedFd};

use skillgate_plugin_sdk::model::{
    BlobCreate, BlobStat, Content, CreateRequest, Error, Health, Limits, Mount, PutSkill,
    RunRequest, RunResult, RunSkill, SandboxCaps, Skill, SkillFile, SkillKey, SkillPage,
    SkillQuery, Source,
};
use skillgate_plugin_sdk::wire::Malformed;

use crate::answer::{
    DOCUMENT_BYTES, FILES, NAME_BYTES, OUTPUT_BLOBS, SHOWN_BYTES, TEXT_BYTES, check_type, named,
};
use crate::inspect::Note;
use crate::plugin::Info;
use crate::wire::{In, Out, Read, Wire};

/// Most elements of a list in a request; requests come from the gateway.
const ITEMS: u32 = 1 << 20;
/// Most skills of a page.
const PAGE: u32 = 1000;

/// Fields: how each kind of them is written and read.
mod field {
    use super::*;

    macro_rules! number {
        ($name:ident, $type:ident) => {
            pub(crate) mod $name {
                use super::*;
                pub(crate) fn put(n: &$type, out: &mut Out) {
                    out.bytes.extend_from_slice(&n.to_le_bytes());
                }
                pub(crate) fn take(from: &mut In<'_>, what: &str) -> Read<$type> {
                    from.$type(what)
                }
            }
        };
    }
    number!(n32, u32);
    number!(n64, u64);
    number!(int, i32);

    macro_rules! text {
        ($name:ident, $max:expr) => {
            pub(crate) mod $name {
                use super::*;
                pub(crate) fn put(text: &str, out: &mut Out) {
                    out.text(text);
                }
                pub(crate) fn take(from: &mut In<'_>, what: &str) -> Read<String> {
                    from.text(what, $max)
                }
            }
        };
    }
    text!(name, NAME_BYTES);
    text!(text, TEXT_BYTES);
    text!(shown, SHOWN_BYTES);
    text!(report, DOCUMENT_BYTES);
    // From the gateway: as long as it likes.
    text!(long, usize::MAX);

    /// The id that a store gives to a blob.
    pub(crate) mod id {
        use super::*;
        pub(crate) fn put(id: &str, out: &mut Out) {
            out.text(id);
        }
        pub(crate) fn take(from: &mut In<'_>, what: &str) -> Read<String> {
            from.text(what, NAME_BYTES).and_then(named)
        }
    }

    macro_rules! data {
        ($name:ident, $max:expr) => {
            pub(crate) mod $name {
                use super::*;
                pub(crate) fn put(data: &[u8], out: &mut Out) {
                    out.data(data);
                }
                pub(crate) fn take(from: &mut In<'_>, what: &str) -> Read<Vec<u8>> {
                    from.data(what, $max).map(<[u8]>::to_vec)
                }
            }
        };
    }
    data!(document, DOCUMENT_BYTES);
    // As long as its frame.
    data!(data, usize::MAX);

    pub(crate) mod flag {
        use super::*;
        pub(crate) fn put(flag: &bool, out: &mut Out) {
            out.u8(u8::from(*flag));
        }
        pub(crate) fn take(from: &mut In<'_>, what: &str) -> Read<bool> {
            from.flag(what)
        }
    }

    /// Something with fields of its own.
    pub(crate) mod part {
        use super::*;
        pub(crate) fn put<T: Wire>(value: &T, out: &mut Out) {
            value.put(out);
        }
        pub(crate) fn take<T: Wire>(from: &mut In<'_>, _: &str) -> Read<T> {
            T::take(from)
        }
    }

    macro_rules! list {
        ($name:ident, $max:expr) => {
            pub(crate) mod $name {
                use super::*;
                pub(crate) fn put<T: Wire>(items: &[T], out: &mut Out) {
                    out.u32(u32::try_from(items.len()).unwrap_or(u32::MAX));
                    items.iter().for_each(|item| item.put(out));
                }
                pub(crate) fn take<T: Wire>(from: &mut In<'_>, what: &str) -> Read<Vec<T>> {
                    let count = from.count(what, $max)?;
                    (0..count).map(|_| T::take(from)).collect()
                }
            }
        };
    }
    list!(files, FILES);
    list!(skills, PAGE);
    list!(blobs, OUTPUT_BLOBS);
    list!(items, ITEMS);
}

/// Implements [`Wire`] for a struct: each field and its kind.
macro_rules! wire {
    ($($type:ty { $($name:ident: $kind:ident),+ $(,)? })+) => { $(
        impl Wire for $type {
            fn put(&self, out: &mut Out) {
                $(field::$kind::put(&self.$name, out);)+
            }
            fn take(from: &mut In<'_>) -> Read<Self> {
                $(let $name = field::$kind::take(from, stringify!($name))?;)+
                Ok(Self { $($name),+ })
            }
        }
    )+ };
}

wire! {
    Error {
        code: int, message: shown, retryable: flag, not_executed: flag, of_tenant: flag, retry_after_ms: n32,
        detail_json: shown
    }
    CreateRequest { instance_id: name, state_dir: long, config_json: data }
    Health { state: n32, in_flight: n32, capacity: n32, message: text, metrics_json: text, report_json: report }
    SandboxCaps {
        egress: n32, max_concurrent: n32, isolation: n32, max_memory_bytes: n64, max_timeout_ms: n64, enforces: n32,
    }
    Info {
        id: name, version: name, vendor: shown, description: shown, license: shown, config_schema_json: text,
        build_info: shown, abi_minor: n32, blocking: flag, singleton: flag,
    }
    Note { id: name, abi_major: n32, abi_minor: n32, min_host_minor: n32, flags: n32 }
    SkillFile { path: name, sha256: name, size_bytes: n64 }
    Skill {
        read_only: flag, name: name, version: name, namespace: name, kind: name, description: text, tree_sha256: name,
        publisher: name, manifest_json: document, files: files,
    }
    SkillPage { more: flag, skills: skills }
    BlobStat { id: id, kind: name, size_bytes: n64, sha256: name, owner: name, created_unix_ms: n64 }
    RunResult {
        completed: flag, output_json: data, output_spilled: flag, summary: text, error_type: name, error_message: text,
        output_blobs: blobs, exit_code: int, signal: int, create_us: n64, exec_us: n64, cpu_us: n64,
        peak_memory_bytes: n64,
    }
    SkillKey { namespace: long, name: long, version: long }
    SkillQuery { limit: n32, tenant: long, namespace: long, after: part }
    PutSkill {
        tenant: long, name: long, version: long, namespace: long, kind: long, description: long, publisher: long,
        tree_sha256: long, manifest_json: data, files: items,
    }
    BlobCreate { tenant: long, kind: long, owner: long, run_id: long, max_bytes: n64, ttl_s: n64 }
    RunSkill { name: long, version: long, entrypoint: long, function: long }
    Limits {
        max_pids: n32, wall_ms: n64, cpu_ms: n64, memory_bytes: n64, disk_bytes: n64, disk_inodes: n64,
        output_bytes: n64,
    }
    Mount { target: long, read_only: flag, source: part, sha256: long, size_bytes: n64 }
    RunRequest {
        run_id: long, tenant: long, language: long, code: long, skill: long, function: long, args_json: data,
        skills: items, mounts: items, env: items, secrets: items, limits: part, network: n32, fresh: flag, traceparent: long,
    }
}

impl Wire for () {
    fn put(&self, _: &mut Out) {}
    fn take(_: &mut In<'_>) -> Read<()> {
        Ok(())
    }
}

impl Wire for u32 {
    fn put(&self, out: &mut Out) {
        out.u32(*self);
    }
    fn take(from: &mut In<'_>) -> Read<u32> {
        from.u32("number")
    }
}

impl Wire for u64 {
    fn put(&self, out: &mut Out) {
        out.u64(*self);
    }
    fn take(from: &mut In<'_>) -> Read<u64> {
        from.u64("number")
    }
}

/// A name: of a blob, of a secret.
impl Wire for String {
    fn put(&self, out: &mut Out) {
        out.text(self);
    }
    fn take(from: &mut In<'_>) -> Read<String> {
        from.text("name", NAME_BYTES)
    }
}

/// A variable.
impl Wire for (String, String) {
    fn put(&self, out: &mut Out) {
        out.text(&self.0);
        out.text(&self.1);
    }
    fn take(from: &mut In<'_>) -> Read<Self> {
        Ok((
            from.text("key", usize::MAX)?,
            from.text("value", usize::MAX)?,
        ))
    }
}

/// A file to be stored.
impl Wire for (String, Vec<u8>) {
    fn put(&self, out: &mut Out) {
        out.text(&self.0);
        out.data(&self.1);
    }
    fn take(from: &mut In<'_>) -> Read<Self> {
        let path = from.text("path", usize::MAX)?;
        Ok((path, from.data("data", usize::MAX)?.to_vec()))
    }
}

/// What was read of a blob, and whether that was the end.
impl Wire for (Vec<u8>, bool) {
    fn put(&self, out: &mut Out) {
        out.u8(u8::from(self.1));
        out.data(&self.0);
    }
    fn take(from: &mut In<'_>) -> Read<Self> {
        let end = from.flag("eof")?;
        Ok((from.data("data", usize::MAX)?.to_vec(), end))
    }
}

/// A reader and what it reads.
impl Wire for (u64, BlobStat) {
    fn put(&self, out: &mut Out) {
        out.u64(self.0);
        self.1.put(out);
    }
    fn take(from: &mut In<'_>) -> Read<Self> {
        Ok((from.u64("reader")?, BlobStat::take(from)?))
    }
}

/// A file and what it is.
impl Wire for (OwnedFd, BlobStat) {
    fn put(&self, out: &mut Out) {
        out.fd(&self.0);
        self.1.put(out);
    }
    fn take(from: &mut In<'_>) -> Read<Self> {
        let fd = file(from, libc::S_IFREG)?;
        Ok((fd, BlobStat::take(from)?))
    }
}

/// A descriptor of the plugin's process that is what it is said to be.
pub(crate) fn file(from: &mut In<'_>, expected: libc::mode_t) -> Read<OwnedFd> {
    let fd = from.fd("fd")?;
    check_type(fd.as_raw_fd(), expected, "fd")?;
    Ok(fd)
}

impl Wire for Content {
    fn put(&self, out: &mut Out) {
        match self {
            Content::Data(data) => {
                out.u8(0);
                out.data(data);
            }
            Content::File(fd, size) => {
                out.u8(1);
                out.fd(fd);
                out.u64(*size);
            }
            Content::Dir(fd) => {
                out.u8(2);
                out.fd(fd);
            }
            Content::Tar(fd, size) => {
                out.u8(3);
                out.fd(fd);
                out.u64(*size);
            }
        }
    }
    fn take(from: &mut In<'_>) -> Read<Self> {
        Ok(match from.u8("content")? {
            0 => Content::Data(from.data("data", usize::MAX)?.to_vec()),
            1 => Content::File(file(from, libc::S_IFREG)?, from.u64("size_bytes")?),
            2 => Content::Dir(file(from, libc::S_IFDIR)?),
            3 => Content::Tar(file(from, libc::S_IFREG)?, from.u64("size_bytes")?),
            n => return Err(Malformed(format!("content: {n} is not one of this host's"))),
        })
    }
}

/// In a request: the descriptors stay the gateway's, what arrives are duplicates.
impl Wire for Source {
    fn put(&self, out: &mut Out) {
        match self {
            Source::Path(path) => {
                out.u8(0);
                out.text(path);
            }
            Source::Fd(fd) => {
                out.u8(1);
                out.fd(fd);
            }
            Source::Tar(fd) => {
                out.u8(2);
                out.fd(fd);
            }
            Source::Blob(id) => {
                out.u8(3);
                out.text(id);
            }
        }
    }
    fn take(from: &mut In<'_>) -> Read<Self> {
        Ok(match from.u8("source")? {
            0 => Source::Path(from.text("path", usize::MAX)?),
            1 => Source::Fd(from.fd("fd")?),
            2 => Source::Tar(from.fd("fd")?),
            3 => Source::Blob(from.text("blob_id", NAME_BYTES)?),
            n => return Err(Malformed(format!("source: {n} is not one of this host's"))),
        })
    }
}

/// An error as one side tells the other: never one that says that all is well.
pub(crate) fn take_error(from: &mut In<'_>) -> Read<Error> {
    let error = Error::take(from)?;
    if error.code >= 0 {
        return Err(Malformed(format!("error: code {}", error.code)));
    }
    Ok(error)
}

/// As long as it may be: what is only shown is cut before it is written.
pub(crate) fn put_error(error: &Error, out: &mut Out) {
    let mut error = error.clone();
    for text in [&mut error.message, &mut error.detail_json] {
        let end = text.floor_char_boundary(SHOWN_BYTES.min(text.len()));
        text.truncate(end);
    }
    error.put(out);
}

#[cfg(test)]
mod tests;

//! Each call of the contract once, in C.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::wire::size_of_u32;

use super::host::services::SECRET;
use super::host::{Answer, End, Lent};
use super::instance::{Called, RawInstance, Table};
use super::place::{Room, Shape, keep, lend, lend_list, place, place_list};
use crate::bench::Done;

/// Of a run in a tour.
const WALL_MS: u64 = 10_000;
/// Of a run that is to be cancelled: much longer than that may take, so that it is not this which ends it.
const CANCELLED_WALL_MS: u64 = 60_000;
const MEMORY_BYTES: u64 = 256 << 20;
const DISK_BYTES: u64 = 32 << 20;

/// What is read of a blob at once.
pub(crate) const READ_BYTES: usize = 64;

/// What the texts and lists of requests are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Values {
    /// Something that makes sense.
    Plain,
    /// Null, with length 0.
    Null,
    /// An address that cannot be read, with length 0.
    Dangling,
}

/// An address in the first page, which is never there.
const NOWHERE: usize = 16;

impl Values {
    pub(crate) fn text(self, text: &'static str) -> abi::Str {
        match self {
            Values::Plain => abi::Str {
                ptr: lend(text.as_bytes()),
                len: text.len() as u64,
            },
            Values::Null => abi::Str::EMPTY,
            Values::Dangling => abi::Str {
                ptr: std::ptr::without_provenance(NOWHERE),
                len: 0,
            },
        }
    }

    pub(crate) fn bytes(self, bytes: &'static [u8]) -> abi::Bytes {
        match self {
            Values::Plain => abi::Bytes {
                ptr: lend(bytes),
                len: bytes.len() as u64,
            },
            Values::Null => abi::Bytes::EMPTY,
            Values::Dangling => abi::Bytes {
                ptr: std::ptr::without_provenance(NOWHERE),
                len: 0,
            },
        }
    }

    fn list(self) -> abi::List {
        match self {
            Values::Plain | Values::Null => abi::List::EMPTY,
            Values::Dangling => abi::List {
                ptr: std::ptr::without_provenance(NOWHERE),
                len: 0,
                stride: 0,
            },
        }
    }
}

const TENANT: &str = "tour";
const NAME: &str = "check.tour";
const VERSION: &str = "1.0.0";
const FILES: [(&str, &[u8]); 2] = [
    ("SKILL.md", b"---\nname: check.tour\n---\n"),
    ("skill.toml", b"name = \"check.tour\"\n"),
];
const MANIFEST: &[u8] = br#"{"name":"check.tour","version":"1.0.0"}"#;
/// `tree_sha256` of FILES; a test computes it.
const TREE: &str = "1760b44c33809dfc30c3121dfcce928d28a9dd579727b91afb951eb468a16c4e";

macro_rules! call {
    ($instance:ident . $field:ident ($($arg:expr),*), $answer:expr) => {
        call!($instance.$field($($arg),*), $answer, false)
    };
    ($instance:ident . $field:ident ($($arg:expr),*), $answer:expr, $cancelled:expr) => {
        $instance.make(stringify!($field), $answer, $cancelled, |op| match &$instance.table {
            // SAFETY: the instance's own function, for an op of its host; what the arguments point to is lent for ever.
            Table::Storage(table) => table.$field.map(|f| unsafe { f(table.self_, op, $($arg),*) }),
            Table::Sandbox(_) => None,
        })
    };
}

impl RawInstance {
    pub(crate) fn skill_list(&self, values: Values, shape: Shape) -> io::Result<Called> {
        self.list(values, shape, false)
    }

    /// The same for a caller who is gone before it begins.
    pub(crate) fn cancelled_skill_list(&self) -> io::Result<Called> {
        self.list(Values::Plain, Shape::Whole, true)
    }

    fn list(&self, values: Values, shape: Shape, cancelled: bool) -> io::Result<Called> {
        let request = abi::ListRequest {
            struct_size: 0,
            limit: 10,
            tenant: values.text(TENANT),
            namespace_: values.text(""),
            after: abi::SkillKey {
                namespace_: values.text(""),
                name: values.text(""),
                version: values.text(""),
            },
        };
        let request = place(&request, shape)?;
        Ok(call!(self.skill_list(request), Answer::Page, cancelled))
    }

    pub(crate) fn skill_put(&self, values: Values, shape: Shape) -> io::Result<Called> {
        let files = FILES.map(|(path, data)| abi::PutFile {
            path: values.text(path),
            data: values.bytes(data),
        });
        let request = abi::PutSkill {
            struct_size: 0,
            flags: 0,
            tenant: values.text(TENANT),
            name: values.text(NAME),
            version: values.text(VERSION),
            namespace_: values.text("check"),
            kind: values.text("instruction"),
            description: values.text("a skill of the kit"),
            publisher: values.text("kit"),
            tree_sha256: values.text(TREE),
            manifest_json: values.bytes(MANIFEST),
            files: match values {
                Values::Plain => lend_list(&files),
                Values::Null | Values::Dangling => values.list(),
            },
        };
        let request = place(&request, shape)?;
        Ok(call!(self.skill_put(request), Answer::Skill))
    }

    fn reference(values: Values) -> *const abi::SkillRef {
        let which = abi::SkillRef {
            name: values.text(NAME),
            version: values.text(VERSION),
        };
        lend(std::slice::from_ref(keep(Box::new(which))))
    }

    pub(crate) fn skill_get(&self, values: Values) -> Called {
        let which = Self::reference(values);
        call!(self.skill_get(values.text(TENANT), which), Answer::Skill)
    }

    pub(crate) fn skill_read(&self, values: Values) -> Called {
        let which = Self::reference(values);
        call!(
            self.skill_read(values.text(TENANT), which, values.text("SKILL.md")),
            Answer::Content
        )
    }

    pub(crate) fn skill_tree(&self, values: Values) -> Called {
        let which = Self::reference(values);
        call!(self.skill_tree(values.text(TENANT), which), Answer::Content)
    }

    pub(crate) fn blob_create(&self, values: Values, shape: Shape) -> io::Result<Called> {
        let request = abi::BlobCreateRequest {
            struct_size: 0,
            flags: 0,
            tenant: values.text(TENANT),
            kind: values.text("text/plain"),
            owner: values.text("kit"),
            run_id: values.text(""),
            max_bytes: 16 << 20,
            ttl_s: 0,
        };
        let request = place(&request, shape)?;
        Ok(call!(self.blob_create(request), Answer::Handle))
    }

    /// The data is lent until the op completes.
    pub(crate) fn blob_write(&self, writer: u64, data: Room) -> Called {
        let bytes = abi::Bytes {
            ptr: data.pointer(),
            len: data.len(),
        };
        self.write(writer, bytes, Some(data))
    }

    fn write(&self, writer: u64, bytes: abi::Bytes, room: Option<Room>) -> Called {
        self.make("blob_write", Answer::None, false, |op| {
            self.lent_to(op, room);
            match &self.table {
                // SAFETY: the instance's own function; the bytes are readable until the op completes.
                Table::Storage(table) => table
                    .blob_write
                    .map(|f| unsafe { f(table.self_, op, writer, bytes) }),
                Table::Sandbox(_) => None,
            }
        })
    }

    fn lent_to(&self, op: abi::Op, room: Option<Room>) {
        let lent = Lent {
            room,
            ..Lent::default()
        };
        self.host.lends(op, lent);
    }

    pub(crate) fn blob_commit(&self, writer: u64) -> Called {
        call!(self.blob_commit(writer), Answer::Stat)
    }

    fn blob_stat(&self, tenant: abi::Str, id: abi::Str) -> Called {
        call!(self.blob_stat(tenant, id), Answer::Stat)
    }

    fn blob_open(&self, tenant: abi::Str, id: abi::Str, offset: u64) -> Called {
        call!(self.blob_open(tenant, id, offset, 0), Answer::Reader)
    }

    /// A reader of a blob of the tour's tenant, from there to its end.
    pub(crate) fn blob_open_at(&self, id: &'static str, offset: u64) -> Called {
        self.blob_open(Values::Plain.text(TENANT), Values::Plain.text(id), offset)
    }

    /// A reader of a blob that is made for it; `None` when there is none to be had.
    pub(crate) fn reader(&self, limit: Duration) -> Done<Option<u64>> {
        let created = self.blob_create(Values::Plain, Shape::Whole)?;
        let writer = self.end(&created, limit)?.handle;
        self.end(&self.blob_write(writer, Room::of(b"hello")?), limit)?;
        let id: &'static str = keep(self.end(&self.blob_commit(writer), limit)?.id.into());
        let opened = self.end(&self.blob_open_at(id, 0), limit)?;
        Ok((opened.status == abi::OK).then_some(opened.handle))
    }

    /// The room is lent until the op completes; what was read is in its end.
    pub(crate) fn blob_read(&self, reader: u64, cap: usize) -> io::Result<Called> {
        let room = Room::new(cap)?;
        let (buffer, cap) = (room.pointer().cast(), room.len());
        Ok(self.make("blob_read", Answer::Count, false, |op| {
            self.lent_to(op, Some(room));
            match &self.table {
                // SAFETY: the instance's own function; so many bytes are writable until the op completes.
                Table::Storage(table) => table
                    .blob_read
                    .map(|f| unsafe { f(table.self_, op, reader, buffer, cap) }),
                Table::Sandbox(_) => None,
            }
        }))
    }

    fn blob_fd(&self, tenant: abi::Str, id: abi::Str) -> Called {
        call!(self.blob_fd(tenant, id), Answer::Opened)
    }

    fn blob_delete(&self, tenant: abi::Str, id: abi::Str) -> Called {
        call!(self.blob_delete(tenant, id), Answer::None)
    }

    /// Ends a writer and a reader, which may be none.
    pub(crate) fn let_go(&self, writer: u64, reader: u64) {
        if let Table::Storage(table) = &self.table {
            // SAFETY: the instance's own functions, which take any number.
            unsafe {
                if let Some(abort) = table.blob_abort {
                    abort(table.self_, writer);
                }
                if let Some(close) = table.blob_close {
                    close(table.self_, reader);
                }
            }
        }
    }

    /// A run of code.
    pub(crate) fn run(
        &self,
        code: &'static str,
        values: Values,
        shape: Shape,
    ) -> io::Result<Called> {
        self.run_of(code, values, shape, WALL_MS, false)
    }

    /// A run that ends when it is cancelled, and not before; `cancelled`: it is so already.
    pub(crate) fn run_to_cancel(&self, code: &'static str, cancelled: bool) -> io::Result<Called> {
        let (values, shape) = (Values::Plain, Shape::Whole);
        self.run_of(code, values, shape, CANCELLED_WALL_MS, cancelled)
    }

    fn run_of(
        &self,
        code: &'static str,
        values: Values,
        shape: Shape,
        wall_ms: u64,
        cancelled: bool,
    ) -> io::Result<Called> {
        let limits = abi::Limits {
            struct_size: 0,
            max_pids: 32,
            wall_ms,
            cpu_ms: 0,
            memory_bytes: MEMORY_BYTES,
            disk_bytes: DISK_BYTES,
            disk_inodes: 1000,
            output_bytes: 4096,
        };
        let gate = abi::Gate {
            struct_size: 0,
            mode: abi::NET_NONE,
            url: values.text(""),
            token: values.text(""),
            ca_pem: values.text(""),
            rules: values.list(),
        };
        let (lists, descriptors) = match values {
            Values::Plain => self.lists(shape)?,
            Values::Null | Values::Dangling => (Lists::all(values.list()), Vec::new()),
        };
        let gate = abi::Gate {
            rules: lists.rules,
            ..gate
        };
        static RUNS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        let number = RUNS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let run_id: &'static str = keep(format!("run_check_{number}").into());
        let request = abi::RunRequest {
            struct_size: 0,
            flags: 0,
            run_id: values.text(run_id),
            tenant: values.text(TENANT),
            language: values.text("python"),
            code: values.text(code),
            skill: values.text(""),
            function: values.text("main"),
            args_json: values.bytes(b"{}"),
            skills: lists.skills,
            mounts: lists.mounts,
            env: lists.env,
            secrets: lists.secrets,
            limits: place(&limits, shape)?,
            gate: match values {
                Values::Plain => place(&gate, shape)?,
                Values::Null | Values::Dangling => std::ptr::null(),
            },
            traceparent: values.text(""),
        };
        let request = place(&request, shape)?;
        Ok(self.make("run", Answer::Run, cancelled, |op| {
            let lent = Lent {
                room: None,
                descriptors,
            };
            self.host.lends(op, lent);
            match &self.table {
                // SAFETY: the instance's own function; the request is lent for ever, its descriptors until it ends.
                Table::Sandbox(table) => table.run.map(|f| unsafe { f(table.self_, op, request) }),
                Table::Storage(_) => None,
            }
        }))
    }

    /// Two of everything: who walks a list by the size that he knows is right about the first. No run looks at any of it.
    fn lists(&self, shape: Shape) -> io::Result<(Lists, Vec<OwnedFd>)> {
        let text = |text| Values::Plain.text(text);
        let skills = MOUNTED.map(|(name, _)| abi::RunSkill {
            struct_size: size_of_u32::<abi::RunSkill>(),
            reserved: 0,
            name: text(name),
            version: text(VERSION),
            entrypoint: text(""),
            function: text(""),
        });
        let (mut mounts, mut descriptors) = (Vec::new(), Vec::new());
        for (name, target) in MOUNTED {
            let directory: OwnedFd = File::open(self.mounted.join(name))?.into();
            mounts.push(abi::Mount {
                struct_size: size_of_u32::<abi::Mount>(),
                source_kind: abi::SRC_FD,
                read_only: 1,
                fd: directory.as_raw_fd(),
                target: text(target),
                path: text(""),
                blob_id: text(""),
                sha256: text(TREE),
                size_bytes: 0,
            });
            descriptors.push(directory);
        }
        let rules = ["one.example.com", "two.example.com"].map(|host| abi::EgressRule {
            struct_size: size_of_u32::<abi::EgressRule>(),
            port: 0,
            scheme: text("https"),
            host: text(host),
            path_prefix: text(""),
        });
        let env = ["CHECK_ONE", "CHECK_TWO"].map(|key| abi::Kv {
            key: text(key),
            value: text("set by the kit"),
        });
        let lists = Lists {
            skills: place_list(&skills, shape)?,
            mounts: place_list(&mounts, shape)?,
            rules: place_list(&rules, shape)?,
            env: lend_list(&env),
            secrets: lend_list(&[text(SECRET)]),
        };
        Ok((lists, descriptors))
    }
}

/// Those of a run.
struct Lists {
    skills: abi::List,
    mounts: abi::List,
    rules: abi::List,
    env: abi::List,
    secrets: abi::List,
}

impl Lists {
    fn all(list: abi::List) -> Self {
        Lists {
            skills: list,
            mounts: list,
            rules: list,
            env: list,
            secrets: list,
        }
    }
}

/// Skills that nobody imports, and where they are.
const MOUNTED: [(&str, &str); 2] = [
    ("check.one", "/skills/check.one"),
    ("check.two", "/skills/check.two"),
];

/// Makes the directories of the skills that runs are given. A sandbox whose user is nobody has to be able to read them.
pub(super) fn make_mounted(dir: &Path) -> io::Result<()> {
    let readable = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode));
    for (name, _) in MOUNTED {
        let skill = dir.join(name);
        fs::create_dir_all(&skill)?;
        readable(&skill, 0o755)?;
        for (path, data) in FILES {
            fs::write(skill.join(path), data)?;
            readable(&skill.join(path), 0o644)?;
        }
    }
    Ok(())
}

/// A run that answers at once.
pub(crate) fn run_code() -> &'static str {
    "def main(args):\n    return 1\n"
}

/// Each call once but drain and destroy, one after the other; how each ended.
pub(crate) fn tour(
    instance: &RawInstance,
    values: Values,
    shape: Shape,
    limit: Duration,
    step: impl Fn(&str),
) -> Done<Vec<(Called, End)>> {
    let mut ends = Vec::new();
    let mut make = |name: &str, make: &mut dyn FnMut() -> io::Result<Called>| -> Done<End> {
        step(name);
        let called = make()?;
        let end = instance.end(&called, limit)?;
        ends.push((called, end.clone()));
        Ok(end)
    };
    make("health", &mut || Ok(instance.health()))?;
    if let Table::Sandbox(_) = &instance.table {
        make("run", &mut || instance.run(run_code(), values, shape))?;
        return Ok(ends);
    }
    let tenant = || values.text(TENANT);
    make("skill_put", &mut || instance.skill_put(values, shape))?;
    make("skill_list", &mut || instance.skill_list(values, shape))?;
    make("skill_get", &mut || Ok(instance.skill_get(values)))?;
    make("skill_read", &mut || Ok(instance.skill_read(values)))?;
    make("skill_tree", &mut || Ok(instance.skill_tree(values)))?;
    let writer = make("blob_create", &mut || instance.blob_create(values, shape))?.handle;
    make("blob_write", &mut || match values {
        Values::Plain => Ok(instance.blob_write(writer, Room::of(b"hello")?)),
        Values::Null | Values::Dangling => Ok(instance.write(writer, values.bytes(b""), None)),
    })?;
    let id = make("blob_commit", &mut || Ok(instance.blob_commit(writer)))?.id;
    let id: &'static str = keep(id.into());
    let id = || values.text(id);
    make("blob_stat", &mut || Ok(instance.blob_stat(tenant(), id())))?;
    let reader = make("blob_open", &mut || {
        Ok(instance.blob_open(tenant(), id(), 0))
    })?;
    let reader = reader.handle;
    make("blob_read", &mut || instance.blob_read(reader, READ_BYTES))?;
    make("blob_fd", &mut || Ok(instance.blob_fd(tenant(), id())))?;
    step("blob_close and blob_abort");
    instance.let_go(writer, reader);
    make("blob_delete", &mut || {
        Ok(instance.blob_delete(tenant(), id()))
    })?;
    Ok(ends)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::{Digest, Sha256};

    #[test]
    fn the_digest_of_the_tours_skill_is_that_of_its_files() {
        let lines =
            FILES.map(|(path, data)| format!("{path}\0{}\n", hex::encode(Sha256::digest(data))));
        assert_eq!(TREE, hex::encode(Sha256::digest(lines.concat())));
    }
}

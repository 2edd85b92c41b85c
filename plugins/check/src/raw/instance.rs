//! The plugin's tables as C has them.

use std::ffi::{CStr, c_void};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use skillgate_plugin_host::Plugin;
use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::model::CreateRequest;
use skillgate_plugin_sdk::wire::{self, Grows, size_of_u32};

use super::host::{Answer, End, HostShape, RawHost};
use super::place::{Shape, keep, place, take_back};
use super::tour::{Values, make_mounted};
use crate::bench::{Done, failed_at};

/// What a plugin offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Storage,
    Sandbox,
}

impl Kind {
    fn id(self) -> &'static CStr {
        match self {
            Kind::Storage => c"skillgate.storage/1",
            Kind::Sandbox => c"skillgate.sandbox/1",
        }
    }
}

/// A plugin in this process.
pub(crate) struct RawPlugin {
    pub(crate) entry: abi::EntryV1,
    /// Where the directories are that runs are given.
    mounted: PathBuf,
}

/// What create() said.
pub(crate) enum Made {
    Instance(Box<RawInstance>),
    /// The code, the message, whether the message can be shown.
    Refused(i32, String),
}

/// One call: its op, what the function returned (`None`: it is null), how long that took.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Called {
    pub(crate) name: &'static str,
    pub(crate) op: abi::Op,
    pub(crate) code: Option<i32>,
    pub(crate) took: Duration,
}

#[derive(Clone, Copy)]
pub(super) enum Table {
    Storage(abi::Storage),
    Sandbox(abi::Sandbox),
}

/// An instance.
pub(crate) struct RawInstance {
    pub(crate) host: &'static RawHost,
    pub(super) table: Table,
    /// As its plugin's.
    pub(super) mounted: PathBuf,
    /// What its table, and its factory, say that they measure: (struct, said, declared).
    pub(crate) sizes: Vec<(&'static str, u32, u32)>,
}

// SAFETY: the contract: every function of the table may be called from any thread, concurrently with itself.
unsafe impl Send for RawInstance {}
// SAFETY: as above.
unsafe impl Sync for RawInstance {}

impl RawPlugin {
    /// `dir` is the case's own.
    pub(crate) fn new(plugin: &Plugin, dir: &Path) -> Done<Self> {
        let entry = plugin.entry();
        let entry =
            entry.ok_or_else(|| failed_at("the kit", "the plugin is not in this process"))?;
        let mounted = dir.join("mounted");
        make_mounted(&mounted)?;
        Ok(RawPlugin { entry, mounted })
    }

    /// What `get_factory` gives for an id, as an address.
    pub(crate) fn factory_of(&self, id: &CStr) -> usize {
        // SAFETY: the entry's own function, for a NUL-terminated id.
        self.entry
            .get_factory
            .map_or(0, |get| unsafe { get(id.as_ptr().cast()) } as usize)
    }

    /// What the entry says of its own structs: (struct, said, declared).
    pub(crate) fn sizes(&self) -> Vec<(&'static str, u32, u32)> {
        let mut sizes = vec![(
            "skg_entry_v1",
            self.entry.struct_size,
            size_of_u32::<abi::EntryV1>(),
        )];
        if !self.entry.info.is_null() {
            // SAFETY: not null: the entry's static info, which begins with its size.
            let said = unsafe { self.entry.info.cast::<u32>().read_unaligned() };
            sizes.push(("skg_plugin_info", said, size_of_u32::<abi::PluginInfo>()));
        }
        sizes
    }

    /// Makes an instance.
    pub(crate) fn create(
        &self,
        kind: Kind,
        host: HostShape,
        request: &CreateRequest,
        shape: Shape,
    ) -> Done<Made> {
        // Lent for ever: see the top of this room.
        let request: &'static CreateRequest = keep(Box::new(request.clone()));
        self.create_of(
            kind,
            host,
            Values::Plain.text(&request.instance_id),
            Values::Plain.text(&request.state_dir),
            Values::Plain.bytes(&request.config_json),
            shape,
        )
    }

    /// The same with texts that are C's own.
    pub(crate) fn create_of(
        &self,
        kind: Kind,
        host: HostShape,
        instance_id: abi::Str,
        state_dir: abi::Str,
        config_json: abi::Bytes,
        shape: Shape,
    ) -> Done<Made> {
        let (host, table) = RawHost::new(host)?;
        let request = abi::CreateRequest {
            struct_size: size_of_u32::<abi::CreateRequest>(),
            flags: 0,
            instance_id,
            state_dir,
            config_json,
        };
        let request = place(&request, shape)?;
        match kind {
            Kind::Storage => self.make::<abi::StorageFactory, abi::Storage>(
                kind,
                host,
                |factory, out, err| {
                    // SAFETY: the contract of create(): the host lives, and the rest is good for this call.
                    factory
                        .create
                        .map(|create| unsafe { create(table, request, out, err) })
                },
                Table::Storage,
            ),
            Kind::Sandbox => self.make::<abi::SandboxFactory, abi::Sandbox>(
                kind,
                host,
                |factory, out, err| {
                    // SAFETY: as above.
                    factory
                        .create
                        .map(|create| unsafe { create(table, request, out, err) })
                },
                Table::Sandbox,
            ),
        }
    }

    fn make<F: Grows, T: Grows>(
        &self,
        kind: Kind,
        host: &'static RawHost,
        create: impl FnOnce(&F, *mut *const T, *mut abi::Error) -> Option<i32>,
        table: impl FnOnce(T) -> Table,
    ) -> Done<Made> {
        let wrong = |seen: String| failed_at("create", seen);
        let at = self.factory_of(kind.id()) as *const F;
        // SAFETY: the contract: null, or the static factory of the kind that was asked for.
        let factory = unsafe { wire::prefix(at, "factory") }.map_err(|e| wrong(e.0))?;
        let mut out: *const T = std::ptr::null();
        let mut error: abi::Error = wire::zeroed();
        error.struct_size = size_of_u32::<abi::Error>();
        let code = create(&factory, &raw mut out, &raw mut error)
            .ok_or_else(|| wrong("the factory has no create".into()))?;
        take_back();
        if code > 0 {
            return Err(wrong(positive("create", code)));
        }
        if code < 0 {
            // SAFETY: the contract: its texts are valid until the next call on this thread.
            let message = unsafe { wire::shown(error.message, 300) };
            return Ok(Made::Refused(code, message));
        }
        // SAFETY: the contract: create has succeeded, so out is an instance, valid until its destroy.
        let instance = unsafe { wire::prefix(out, "instance") }.map_err(|e| wrong(e.0))?;
        // SAFETY: both are there, or a line above had returned; both begin with their sizes.
        let (of_factory, of_table) = unsafe {
            (
                at.cast::<u32>().read_unaligned(),
                out.cast::<u32>().read_unaligned(),
            )
        };
        let names = match kind {
            Kind::Storage => ("skg_storage_factory", "skg_storage"),
            Kind::Sandbox => ("skg_sandbox_factory", "skg_sandbox"),
        };
        Ok(Made::Instance(Box::new(RawInstance {
            host,
            table: table(instance),
            mounted: self.mounted.clone(),
            sizes: vec![
                (names.0, of_factory, size_of_u32::<F>()),
                (names.1, of_table, size_of_u32::<T>()),
            ],
        })))
    }
}

/// What no function of a plugin returns.
fn positive(name: &str, code: i32) -> String {
    format!("{name} returns {code}, and a result is SKG_OK (0) or less than 0")
}

/// What each of SKG_ST_* promises.
const PROMISES: [(u32, &str); 5] = [
    (abi::ST_SKILLS, "SKG_ST_SKILLS"),
    (abi::ST_SKILLS_WRITE, "SKG_ST_SKILLS_WRITE"),
    (abi::ST_BLOBS, "SKG_ST_BLOBS"),
    (abi::ST_BLOB_FD, "SKG_ST_BLOB_FD"),
    (abi::ST_VOLATILE, "SKG_ST_VOLATILE"),
];

macro_rules! of_table {
    ($self:ident . $field:ident) => {
        match &$self.table {
            Table::Storage(table) => table.$field,
            Table::Sandbox(table) => table.$field,
        }
    };
}

impl RawInstance {
    pub(super) fn this(&self) -> *mut c_void {
        of_table!(self.self_)
    }

    /// Makes one call; `make` is `None` when the function is null.
    pub(super) fn make(
        &self,
        name: &'static str,
        answer: Answer,
        cancelled: bool,
        make: impl FnOnce(abi::Op) -> Option<i32>,
    ) -> Called {
        let op = self.host.begin(name, answer, cancelled);
        let began = Instant::now();
        let code = make(op);
        let took = began.elapsed();
        take_back();
        if code.is_none_or(|code| code < 0) {
            self.host.refused(op, code.unwrap_or(abi::E_UNIMPLEMENTED));
        }
        Called {
            name,
            op,
            code,
            took,
        }
    }

    pub(crate) fn health(&self) -> Called {
        self.make("health", Answer::Health, false, |op| {
            // SAFETY: the instance's own function, for an op of its host.
            of_table!(self.health).map(|f| unsafe { f(self.this(), op) })
        })
    }

    pub(crate) fn drain(&self) -> Called {
        self.make("drain", Answer::None, false, |op| {
            // SAFETY: as above.
            of_table!(self.drain).map(|f| unsafe { f(self.this(), op) })
        })
    }

    /// Marks the op and tells the plugin; how long that took, `None` when it has no cancel.
    pub(crate) fn cancel(&self, op: abi::Op) -> Option<Duration> {
        self.host.mark_cancelled(op);
        let began = Instant::now();
        // SAFETY: the instance's own function, which takes any op: it is advice.
        of_table!(self.cancel).map(|f| unsafe { f(self.this(), op) })?;
        Some(began.elapsed())
    }

    /// What get_extension gives for an id that nobody has.
    pub(crate) fn unknown_extension(&self) -> usize {
        // SAFETY: the instance's own function, for a NUL-terminated id.
        of_table!(self.get_extension).map_or(0, |f| unsafe {
            f(self.this(), c"org.skillgate.nothing/7".as_ptr().cast())
        } as usize)
    }

    /// What caps says, asked with a struct of a shape. The code, and for storage the flags.
    pub(crate) fn caps(&self, shape: Shape) -> Done<(Option<i32>, u32)> {
        let (code, flags) = self.asked_caps(shape)?;
        match code {
            Some(code) if code > 0 => Err(failed_at("caps", positive("caps", code))),
            code => Ok((code, flags)),
        }
    }

    fn asked_caps(&self, shape: Shape) -> Done<(Option<i32>, u32)> {
        match &self.table {
            Table::Storage(table) => {
                let mut flags = 0_u32;
                // SAFETY: the instance's own function; flags may be written.
                let code = table
                    .caps
                    .map(|f| unsafe { f(table.self_, &raw mut flags) });
                Ok((code, flags))
            }
            Table::Sandbox(table) => {
                let empty: abi::SandboxCaps = wire::zeroed();
                let out = place(&empty, shape)?.cast_mut();
                // SAFETY: the instance's own function; placed memory may be written, as far as its struct_size says.
                let code = table.caps.map(|f| unsafe { f(table.self_, out) });
                // SAFETY: placed above; at least the size is there.
                let caps = unsafe { wire::prefix(out.cast_const(), "caps") };
                Ok((code, caps.map_err(|e| failed_at("caps", e.0))?.enforces))
            }
        }
    }

    /// What of a store's flags is no promise that it can keep: functions that are null, bits that there are not.
    pub(crate) fn broken_promises(&self, flags: u32) -> Vec<String> {
        let Table::Storage(table) = &self.table else {
            return Vec::new();
        };
        let functions = [
            (abi::ST_SKILLS, "skill_list", table.skill_list.is_some()),
            (abi::ST_SKILLS, "skill_get", table.skill_get.is_some()),
            (abi::ST_SKILLS, "skill_read", table.skill_read.is_some()),
            (abi::ST_SKILLS, "skill_tree", table.skill_tree.is_some()),
            (abi::ST_SKILLS_WRITE, "skill_put", table.skill_put.is_some()),
            (abi::ST_BLOBS, "blob_create", table.blob_create.is_some()),
            (abi::ST_BLOBS, "blob_write", table.blob_write.is_some()),
            (abi::ST_BLOBS, "blob_commit", table.blob_commit.is_some()),
            (abi::ST_BLOBS, "blob_abort", table.blob_abort.is_some()),
            (abi::ST_BLOBS, "blob_stat", table.blob_stat.is_some()),
            (abi::ST_BLOBS, "blob_open", table.blob_open.is_some()),
            (abi::ST_BLOBS, "blob_read", table.blob_read.is_some()),
            (abi::ST_BLOBS, "blob_close", table.blob_close.is_some()),
            (abi::ST_BLOBS, "blob_delete", table.blob_delete.is_some()),
            (abi::ST_BLOB_FD, "blob_fd", table.blob_fd.is_some()),
        ];
        let mut broken = Vec::new();
        for (bit, name) in PROMISES {
            let missing = functions
                .iter()
                .filter(|(of, _, is_there)| *of == bit && !is_there);
            if flags & bit != 0 {
                broken.extend(
                    missing.map(|(_, function, _)| {
                        format!("caps says {name}, and {function} is NULL")
                    }),
                );
            }
        }
        let unknown = PROMISES.iter().fold(flags, |rest, (bit, _)| rest & !bit);
        if unknown != 0 {
            broken.push(format!(
                "caps has {unknown:#x}, which is no SKG_ST_* of the header"
            ));
        }
        broken
    }

    /// How a call ended: its completion, or the code that it was refused with.
    pub(crate) fn end(&self, called: &Called, limit: Duration) -> Done<End> {
        match called.code {
            Some(code) if code > 0 => Err(failed_at(called.name, positive(called.name, code))),
            Some(code) if code >= 0 => self.host.ended(called.op, limit).ok_or_else(|| {
                failed_at(
                    called.name,
                    format!(
                        "{} was accepted and not completed within {} s",
                        called.name,
                        limit.as_secs()
                    ),
                )
            }),
            // Who refuses a call has not begun it.
            code => Ok(End {
                status: code.unwrap_or(abi::E_UNIMPLEMENTED),
                not_executed: true,
                ..End::default()
            }),
        }
    }

    /// Destroys the instance. Every op has ended.
    pub(crate) fn destroy(&self) {
        if let Some(destroy) = of_table!(self.destroy) {
            // SAFETY: once, by the one who has made the instance; every op has ended.
            unsafe { destroy(self.this()) };
        }
        self.host.destroyed();
    }
}

//! A loaded plugin, and making instances of it.

use std::ffi::CStr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;
use skillgate_plugin_abi as abi;
use skillgate_plugin_sdk::model::{CreateRequest, Error, Result, SandboxCaps};
use skillgate_plugin_sdk::wire::{self, Grows};

use crate::hosttable::{self, HostContext};
use crate::inspect::Inspection;
use crate::instance::{Instance, SandboxTable, StorageTable, Table};
use crate::load::{self, Loaded};
use crate::sandbox::SandboxInstance;
use crate::storage::StorageInstance;
use crate::{LoadError, Pin, answer, request};

/// What a plugin says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Info {
    /// Stable, reverse-DNS.
    pub id: String,
    /// SemVer of the plugin.
    pub version: String,
    /// Who made it.
    pub vendor: String,
    /// One line.
    pub description: String,
    /// SPDX.
    pub license: String,
    /// JSON Schema of its section of the configuration, or empty.
    pub config_schema_json: String,
    /// Compiler, commit: for bug reports.
    pub build_info: String,
    /// Built with this minor of the contract.
    pub abi_minor: u32,
    /// Its calls may block: they are made on tokio's blocking threads.
    pub blocking: bool,
    /// At most one instance in a process.
    pub singleton: bool,
}

/// A plugin whose code is in this process, for as long as the process lives. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Plugin(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    loaded: Loaded,
    inspection: Inspection,
    /// For a singleton: there is an instance.
    taken: Arc<AtomicBool>,
}

impl Plugin {
    /// Reads the file once, checks it (pin, then what `inspect` finds), and loads the bytes that were checked. The code
    /// of the plugin runs for the first time when everything about the file is in order; what it says of itself must
    /// then agree. Loading the same file again makes a second copy of the code.
    ///
    /// Blocks for some milliseconds: call it at start, or on a blocking thread.
    pub fn load(path: impl AsRef<Path>, pin: &Pin) -> Result<Plugin, LoadError> {
        let checked = load::check(path.as_ref(), pin)?;
        Ok(Plugin(Arc::new(Inner {
            loaded: load::load(&checked)?,
            inspection: checked.inspection,
            taken: Arc::new(AtomicBool::new(false)),
        })))
    }

    /// What the plugin says of itself.
    #[must_use]
    pub fn info(&self) -> &Info {
        &self.0.loaded.info
    }

    /// What the file was found to be, with its sha256.
    #[must_use]
    pub fn inspection(&self) -> &Inspection {
        &self.0.inspection
    }

    /// Does it offer storage?
    #[must_use]
    pub fn offers_storage(&self) -> bool {
        self.factory::<StorageTable>().is_ok()
    }

    /// Does it offer a sandbox?
    #[must_use]
    pub fn offers_sandbox(&self) -> bool {
        self.factory::<SandboxTable>().is_ok()
    }

    /// Makes a storage instance, on a blocking thread. Must be called inside a tokio runtime, which the instance then
    /// uses for its blocking calls. Dropping the future does not stop the plugin's `create`: its instance is then
    /// destroyed.
    pub async fn storage(&self, config: CreateRequest) -> Result<Arc<StorageInstance>> {
        let (instance, caps) = self.make::<StorageTable>(config).await?;
        Ok(Arc::new(StorageInstance::new(instance, caps)))
    }

    /// Makes a sandbox instance, on a blocking thread; see [`Plugin::storage`]. The error of a host that lacks a layer
    /// carries the capability report in `detail_json`.
    pub async fn sandbox(&self, config: CreateRequest) -> Result<Arc<SandboxInstance>> {
        let (instance, caps) = self.make::<SandboxTable>(config).await?;
        Ok(Arc::new(SandboxInstance::new(instance, caps)))
    }

    fn factory<K: Kind>(&self) -> Result<K::Factory> {
        let id = &self.info().id;
        let lacks = || {
            Error::new(
                abi::E_UNIMPLEMENTED,
                format!("the plugin {id} offers no {}", K::ID.to_string_lossy()),
            )
        };
        let get = self.0.loaded.entry.get_factory.ok_or_else(lacks)?;
        // SAFETY: the entry's own function, for a NUL-terminated id.
        let factory: *const K::Factory = unsafe { get(K::ID.as_ptr().cast()) }.cast();
        if factory.is_null() {
            return Err(lacks());
        }
        // SAFETY: not null: the static factory of the kind that was asked for.
        unsafe { wire::prefix(factory, "factory") }
            .map_err(|e| Error::new(abi::E_PROTOCOL, format!("the plugin {id}: {e}")))
    }

    async fn make<K: Kind>(&self, config: CreateRequest) -> Result<(Arc<Instance<K>>, K::Caps)> {
        let place = self.take_place()?;
        let factory = self.factory::<K>()?;
        let plugin = self.clone();
        let runtime = tokio::runtime::Handle::current();
        let job = runtime.clone().spawn_blocking(move || {
            let (table, host) = plugin.create::<K>(&factory, &config)?;
            // From here on, an error destroys the instance.
            let instance = Instance::new(
                table,
                host,
                plugin.info().blocking,
                runtime,
                Box::new(place),
            );
            let caps = instance.table.caps()?;
            Ok((instance, caps))
        });
        match job.await {
            Ok(made) => made,
            Err(error) => Err(Error::new(
                abi::E_UNAVAILABLE,
                format!(
                    "create of the plugin {} did not end: {error}",
                    self.info().id
                ),
            )),
        }
    }

    fn create<K: Kind>(
        &self,
        factory: &K::Factory,
        config: &CreateRequest,
    ) -> Result<(K, &'static HostContext)> {
        let id = &self.info().id;
        let Some(create) = K::create(factory) else {
            return Err(Error::new(
                abi::E_UNIMPLEMENTED,
                format!("the plugin {id} has a factory without create"),
            ));
        };
        let (context, host) = hosttable::make(id, &config.instance_id);
        let mut out: *const K::Abi = std::ptr::null();
        let mut error: abi::Error = wire::zeroed();
        error.struct_size = wire::size_of_u32::<abi::Error>();
        let request = request::create(config);
        // SAFETY: the contract: host lives until destroy (ours for ever), request, out and error for this call.
        let code = unsafe { create(host, &raw const request, &raw mut out, &raw mut error) };
        if code < 0 {
            // SAFETY: the contract: the texts are valid until the next call on this thread.
            let mut error = unsafe { hosttable::error_of(code, &raw const error) };
            if error.message.is_empty() {
                error.message = "it gave no reason".into();
            }
            error.message = format!(
                "the plugin {id} refused to start the instance {}: {}",
                config.instance_id, error.message
            );
            return Err(error);
        }
        // SAFETY: the contract: create has succeeded, so out is an instance that lives until its destroy.
        match unsafe { wire::prefix(out, "instance") } {
            Ok(table) => Ok((K::wrap(table), context)),
            Err(e) => Err(Error::new(abi::E_PROTOCOL, format!("the plugin {id}: {e}"))),
        }
    }

    fn take_place(&self) -> Result<Place> {
        if !self.info().singleton {
            return Ok(Place(None));
        }
        if self.0.taken.swap(true, Ordering::AcqRel) {
            let message = format!(
                "the plugin {} allows one instance in a process, and there is one",
                self.info().id
            );
            return Err(Error::new(abi::E_ALREADY_EXISTS, message));
        }
        Ok(Place(Some(Arc::clone(&self.0.taken))))
    }
}

/// A singleton's one place, free again when this is dropped.
struct Place(Option<Arc<AtomicBool>>);

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(taken) = &self.0 {
            taken.store(false, Ordering::Release);
        }
    }
}

type Create<A> = unsafe extern "C" fn(
    *const abi::Host,
    *const abi::CreateRequest,
    *mut *const A,
    *mut abi::Error,
) -> i32;

/// A kind of plugin: its factory, its table, its capabilities.
trait Kind: Table {
    const ID: &CStr;
    type Factory: Grows + Send + 'static;
    type Abi: Grows;
    type Caps: Send + 'static;
    fn create(factory: &Self::Factory) -> Option<Create<Self::Abi>>;
    fn wrap(table: Self::Abi) -> Self;
    fn caps(&self) -> Result<Self::Caps>;
}

fn check(code: i32) -> Result<()> {
    if code < 0 {
        Err(Error::new(code, "the plugin does not say what it can do"))
    } else {
        Ok(())
    }
}

impl Kind for StorageTable {
    const ID: &CStr = c"skillgate.storage/1";
    type Factory = abi::StorageFactory;
    type Abi = abi::Storage;
    type Caps = u32;
    fn create(factory: &Self::Factory) -> Option<Create<Self::Abi>> {
        factory.create
    }
    fn wrap(table: Self::Abi) -> Self {
        StorageTable(table)
    }
    fn caps(&self) -> Result<u32> {
        let mut caps = 0;
        if let Some(f) = self.0.caps {
            // SAFETY: the instance lives; caps is writable.
            check(unsafe { f(self.0.self_, &raw mut caps) })?;
        }
        Ok(caps)
    }
}

impl Kind for SandboxTable {
    const ID: &CStr = c"skillgate.sandbox/1";
    type Factory = abi::SandboxFactory;
    type Abi = abi::Sandbox;
    type Caps = SandboxCaps;
    fn create(factory: &Self::Factory) -> Option<Create<Self::Abi>> {
        factory.create
    }
    fn wrap(table: Self::Abi) -> Self {
        SandboxTable(table)
    }
    fn caps(&self) -> Result<SandboxCaps> {
        let mut caps: abi::SandboxCaps = wire::zeroed();
        caps.struct_size = wire::size_of_u32::<abi::SandboxCaps>();
        if let Some(f) = self.0.caps {
            // SAFETY: the instance lives; caps is writable and says how large it is.
            check(unsafe { f(self.0.self_, &raw mut caps) })?;
        }
        Ok(answer::sandbox_caps(&caps))
    }
}

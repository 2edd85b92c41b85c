//! A loaded plugin, and making instances of it.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::CStr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use skillgate_plugin_abi as abi;
use skillgate_plugin_sdk::model::{CreateRequest, Error, Result, SandboxCaps};
use skillgate_plugin_sdk::wire::{self, Malformed};

use crate::call::Place;
use crate::first::{self, First};
use crate::hosttable::{self, HostContext};
use crate::inspect::Inspection;
use crate::instance::{Instance, SandboxTable, StorageTable, Table};
use crate::lane::on_a_thread;
use crate::load::{self, Loaded};
use crate::process::{Fresh, Image, Kind as Which, ProcessSettings, Remote};
use crate::sandbox::SandboxInstance;
use crate::storage::StorageInstance;
use crate::wire::{In, Wire};
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

/// Where a plugin's code is to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// In this process.
    Gateway,
    /// In a process of its own, one for each instance.
    Process,
}

/// A plugin that was checked and loaded, here or in a process of its own. Cheap to clone. Code that was loaded here stays
/// for as long as the process lives.
#[derive(Debug, Clone)]
pub struct Plugin(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    info: Info,
    /// Shared by all that are made from it ([`Plugin::again`]).
    checked: Arc<load::Checked>,
    home: Home,
}

#[derive(Debug)]
enum Home {
    Here {
        loaded: Arc<Loaded>,
    },
    There {
        image: Arc<Image>,
        /// The process that was started to ask it what it is; the first instance is made there.
        first: Mutex<Option<Box<Fresh>>>,
        offers: u32,
    },
}

impl Plugin {
    /// Reads the file once, checks it (who can write it, pin, signature, then what `inspect` finds), and loads the bytes
    /// that were checked into this process. The code of the plugin runs for the first time when everything about the file
    /// is in order; what it says of itself must then agree. Loading the same file again makes a second copy of the code.
    ///
    /// Blocks for some milliseconds: call it at start, or on a blocking thread.
    pub fn load(path: impl AsRef<Path>, pin: &Pin) -> Result<Plugin, LoadError> {
        Plugin::load_here(Arc::new(load::check(path.as_ref(), pin)?))
    }

    /// The same, where `isolation` says. A plugin that must have a process of its own gets one either way: see
    /// [`Inspection::own_process`] and [`Plugin::isolation`].
    ///
    /// The process is started at once, and used for the first instance.
    pub fn open(
        path: impl AsRef<Path>,
        pin: &Pin,
        isolation: Isolation,
        settings: &ProcessSettings,
    ) -> Result<Plugin, LoadError> {
        let checked = Arc::new(load::check(path.as_ref(), pin)?);
        Plugin::open_checked(checked, isolation, settings)
    }

    /// The same plugin, where `isolation` says, from the bytes that were checked: what its file is by now, or whether it is there,
    /// is not asked. Of one that runs in a process this loads its code here, which stays, as all code that is loaded does.
    pub fn again(
        &self,
        isolation: Isolation,
        settings: &ProcessSettings,
    ) -> Result<Plugin, LoadError> {
        match (self.isolation(), isolation) {
            // Its code is here already.
            (Isolation::Gateway, Isolation::Gateway) => Ok(self.clone()),
            _ => Plugin::open_checked(Arc::clone(&self.0.checked), isolation, settings),
        }
    }

    fn open_checked(
        checked: Arc<load::Checked>,
        isolation: Isolation,
        settings: &ProcessSettings,
    ) -> Result<Plugin, LoadError> {
        if isolation == Isolation::Gateway && checked.inspection.own_process.is_none() {
            return Plugin::load_here(checked);
        }
        let image = Image {
            checked: Arc::clone(&checked),
            settings: settings.clone(),
        };
        let first = image.start()?;
        Ok(Plugin(Arc::new(Inner {
            info: first.info.clone(),
            checked,
            home: Home::There {
                offers: first.offers,
                image: Arc::new(image),
                first: Mutex::new(Some(Box::new(first))),
            },
        })))
    }

    /// As [`Plugin::load`] without a pin, for a process that is the plugin's own: one that must not share the gateway's is
    /// loaded too. For the conformance kit.
    pub fn load_alone(path: impl AsRef<Path>) -> Result<Plugin, LoadError> {
        let checked = load::check(path.as_ref(), &Pin::default())?;
        let loaded = load::load_alone(&checked)?;
        Ok(Plugin::here(loaded, Arc::new(checked)))
    }

    /// What it exports, if its code is in this process: for the conformance kit, which is a host of its own.
    #[must_use]
    pub fn entry(&self) -> Option<abi::EntryV1> {
        match &self.0.home {
            Home::Here { loaded, .. } => Some(loaded.entry),
            Home::There { .. } => None,
        }
    }

    fn load_here(checked: Arc<load::Checked>) -> Result<Plugin, LoadError> {
        let loaded = load::load(&checked)?;
        Ok(Plugin::here(loaded, checked))
    }

    fn here(loaded: Loaded, checked: Arc<load::Checked>) -> Plugin {
        Plugin(Arc::new(Inner {
            info: loaded.info.clone(),
            checked,
            home: Home::Here {
                loaded: Arc::new(loaded),
            },
        }))
    }

    /// What the plugin says of itself.
    #[must_use]
    pub fn info(&self) -> &Info {
        &self.0.info
    }

    /// What the file was found to be, with its sha256.
    #[must_use]
    pub fn inspection(&self) -> &Inspection {
        &self.0.checked.inspection
    }

    /// Where its code runs.
    #[must_use]
    pub fn isolation(&self) -> Isolation {
        match self.0.home {
            Home::Here { .. } => Isolation::Gateway,
            Home::There { .. } => Isolation::Process,
        }
    }

    /// Does it offer storage?
    #[must_use]
    pub fn offers_storage(&self) -> bool {
        self.offers(Which::Storage)
    }

    /// Does it offer a sandbox?
    #[must_use]
    pub fn offers_sandbox(&self) -> bool {
        self.offers(Which::Sandbox)
    }

    fn offers(&self, which: Which) -> bool {
        let offers = match &self.0.home {
            Home::Here { loaded, .. } => offers(loaded),
            Home::There { offers, .. } => *offers,
        };
        offers & which as u32 != 0
    }

    /// Makes a storage instance, on a thread of its own. Must be called inside a tokio runtime, which the instance then
    /// uses for its blocking calls. Dropping the future does not stop the plugin's `create`: its instance is then
    /// destroyed. After an error there is no instance any more.
    pub async fn storage(&self, config: CreateRequest) -> Result<Arc<StorageInstance>> {
        let (instance, caps) = self.make::<StorageTable>(config).await?;
        let is_ours = !self.0.checked.guarded;
        Ok(Arc::new(StorageInstance::new(instance, caps, is_ours)))
    }

    /// Makes a sandbox instance, on a thread of its own; see [`Plugin::storage`]. The error of a host that lacks a layer
    /// carries the capability report in `detail_json`.
    pub async fn sandbox(&self, config: CreateRequest) -> Result<Arc<SandboxInstance>> {
        let (instance, caps) = self.make::<SandboxTable>(config).await?;
        Ok(Arc::new(SandboxInstance::new(instance, caps)))
    }

    async fn make<K: Made>(&self, config: CreateRequest) -> Result<(Place<K>, K::Caps)> {
        match &self.0.home {
            Home::Here { loaded } => {
                let place = self.take_place()?;
                let loaded = Arc::clone(loaded);
                let runtime = tokio::runtime::Handle::current();
                let job = move || make_here::<K>(&loaded, &config, runtime, Box::new(place));
                match on_a_thread("plugin-create", job).await {
                    Ok(made) => made.map(|(instance, caps)| (Place::here(instance), caps)),
                    Err(error) => Err(Error::new(
                        abi::E_UNAVAILABLE,
                        format!(
                            "create of the plugin {} did not end: {error}",
                            self.info().id
                        ),
                    )),
                }
            }
            Home::There { image, first, .. } => {
                if !self.offers(K::WHICH) {
                    return Err(lacks::<K>(&self.info().id));
                }
                let first = first.lock().unwrap_or_else(PoisonError::into_inner).take();
                let (remote, caps) = Remote::make(
                    Arc::clone(image),
                    first.map(|first| *first),
                    K::WHICH,
                    config,
                )
                .await?;
                let mut nothing = VecDeque::new();
                let mut from = In::new(&caps, &mut nothing);
                let caps = K::Caps::take(&mut from).and_then(|caps| from.end().map(|()| caps));
                match caps {
                    Ok(caps) => Ok((Place::there(remote), caps)),
                    Err(Malformed(why)) => {
                        let mut destroyed = remote.destroyed();
                        drop(remote);
                        // An error says that the sender is gone, which is as good an end as any.
                        drop(destroyed.wait_for(|done| *done).await);
                        Err(Error::new(abi::E_PROTOCOL, why))
                    }
                }
            }
        }
    }

    fn take_place(&self) -> Result<OnlyPlace> {
        let Info { id, singleton, .. } = self.info();
        if !singleton {
            return Ok(OnlyPlace(None));
        }
        if !singletons().insert(id.clone()) {
            let message = format!(
                "the plugin {id} allows one instance in a process, and there is one: give it a process of its own (isolation = \"process\"), or end the other one first"
            );
            return Err(Error::new(abi::E_ALREADY_EXISTS, message));
        }
        Ok(OnlyPlace(Some(id.clone())))
    }
}

/// The ids of the singletons that have an instance in this process. Not by what was loaded: what a second copy of the code
/// shares with the first, such as a library that both need, is what there may be one user of.
fn singletons() -> MutexGuard<'static, BTreeSet<String>> {
    static TAKEN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    TAKEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A singleton's one place, free again when this is dropped.
struct OnlyPlace(Option<String>);

impl Drop for OnlyPlace {
    fn drop(&mut self) {
        if let Some(id) = &self.0 {
            singletons().remove(id);
        }
    }
}

// === plugins in this process ===

fn lacks<K: Made>(id: &str) -> Error {
    let message = format!("the plugin {id} offers no {}", K::ID.to_string_lossy());
    Error::new(abi::E_UNIMPLEMENTED, message)
}

/// The kinds that it offers, as bits.
pub(crate) fn offers(loaded: &Loaded) -> u32 {
    let mut offers = 0;
    // One that is no good is offered all the same: whoever makes an instance hears what is wrong with it.
    let is_there = |error: Option<Error>| error.is_none_or(|it| it.code != abi::E_UNIMPLEMENTED);
    if is_there(factory::<StorageTable>(loaded).err()) {
        offers |= Which::Storage as u32;
    }
    if is_there(factory::<SandboxTable>(loaded).err()) {
        offers |= Which::Sandbox as u32;
    }
    offers
}

fn factory<K: Made>(loaded: &Loaded) -> Result<K::Factory> {
    let id = &loaded.info.id;
    let get = loaded.entry.get_factory.ok_or_else(|| lacks::<K>(id))?;
    // SAFETY: the entry's own function, for a NUL-terminated id.
    let factory: *const K::Factory = unsafe { get(K::ID.as_ptr().cast()) }.cast();
    if factory.is_null() {
        return Err(lacks::<K>(id));
    }
    // SAFETY: not null: the static factory of the kind that was asked for.
    unsafe { first::prefix(factory, "factory") }
        .map_err(|e| Error::new(abi::E_PROTOCOL, format!("the plugin {id}: {e}")))
}

/// Makes an instance of a plugin that is loaded here, on this thread. `place` is dropped when the instance is destroyed.
pub(crate) fn make_here<K: Made>(
    loaded: &Loaded,
    config: &CreateRequest,
    runtime: tokio::runtime::Handle,
    place: Box<dyn std::any::Any + Send + Sync>,
) -> Result<(Arc<Instance<K>>, K::Caps)> {
    let factory = factory::<K>(loaded)?;
    let (table, host) = create::<K>(&loaded.info.id, &factory, config)?;
    let caps = table.caps().inspect_err(|error| {
        let (plugin, why) = (&loaded.info.id, &error.message);
        tracing::warn!(
            plugin,
            instance = config.instance_id,
            why,
            "a new instance gives no valid caps, and is destroyed"
        );
        // Here, before the error is known: after it another instance is made, and two must not have the data.
        if let Some(destroy) = table.destroy() {
            // SAFETY: called once, here; nobody else has the instance, and caps has returned.
            unsafe { destroy(table.self_()) };
        }
    })?;
    let instance = Instance::new(table, host, loaded.info.blocking, runtime, place);
    Ok((instance, caps))
}

fn create<K: Made>(
    id: &str,
    factory: &K::Factory,
    config: &CreateRequest,
) -> Result<(K, &'static HostContext)> {
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
    match unsafe { first::prefix(out, "instance") } {
        Ok(table) => Ok((K::wrap(table), context)),
        Err(e) => Err(Error::new(abi::E_PROTOCOL, format!("the plugin {id}: {e}"))),
    }
}

pub(crate) type Create<A> = unsafe extern "C" fn(
    *const abi::Host,
    *const abi::CreateRequest,
    *mut *const A,
    *mut abi::Error,
) -> i32;

/// A kind of plugin: its factory, its table, its capabilities.
pub(crate) trait Made: Table {
    const ID: &CStr;
    const WHICH: Which;
    type Factory: First + Send + 'static;
    type Abi: First;
    type Caps: Wire + Send + 'static;
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

impl Made for StorageTable {
    const ID: &CStr = c"skillgate.storage/1";
    const WHICH: Which = Which::Storage;
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

impl Made for SandboxTable {
    const ID: &CStr = c"skillgate.sandbox/1";
    const WHICH: Which = Which::Sandbox;
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

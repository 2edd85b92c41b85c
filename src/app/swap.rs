//! Exchanges the plugins while the gateway serves: the new one is checked and loaded beside the old one, and no call fails.
//!
//! A **sandbox** begins beside the old one, as another instance with a state of its own. New runs go to it; the old one ends
//! when its last run has ended.
//!
//! A **store** changes hands: its data is there once, and two instances of a store never have it at the same time (the header
//! lets the second throw away what the first is writing). Calls wait until those under way have ended, the old instance is
//! gone and the new one is there, which takes milliseconds. A call that does not end within five seconds, such as a slow
//! upload, stops the exchange instead, and the old store serves on. (But where nobody waits for it any more, and the store has a
//! process of its own, that is ended with it: what hangs does not keep a store for good.) So it does when the new one does not
//! come up: then it is made anew. While an old one does not end no other is made, and in the end calls are refused, until the
//! one before comes back: that is tried again and again, beside whatever else is reloaded.

mod late;
mod seats;
mod store;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, join_all};
use skillgate_plugin_host::{
    Current, Isolation, Plugin, SandboxInstance, StorageInstance, inspect,
};
use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::model::{self, Health};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

pub(super) use self::late::Ends;
use self::late::{Ending, Untaken, in_time};
use self::seats::{SANDBOXES_MAX, Seat, Seats, instance};
pub(super) use self::store::OfStorage;
use super::AppError;
use super::plugins::{Role, StateDir, again, load, sandbox, sandbox_name, storage};
use super::silent::heard;
use crate::catalog::Catalog;
use crate::config::{Config, PluginRef, PluginSource, Runs};
use crate::reload::{Install, Part};

/// How long a plugin may take to end; what it has acknowledged is durable already.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a new instance may take to say how it is.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(10);

/// What is in force of one plugin.
#[derive(Debug, Clone)]
struct Loaded {
    plugin: Plugin,
    /// What it was made from, beside the file, whose digest the plugin has: another one of these is another plugin.
    section: PluginRef,
    process_ms: [u64; 2],
    /// How long its create() may take when it is exchanged. A process of its own has an end that it is killed at.
    create_max: Duration,
}

impl Loaded {
    /// Reads, checks and loads the file.
    fn load(config: &Config, role: Role) -> Result<Loaded, AppError> {
        Ok(Loaded::of(load(config, role)?, config, role))
    }

    /// What is to take its place. One that came with the program changes with the program: its file may be that of the next
    /// version by now, or gone, and is not read.
    fn next(&self, config: &Config, role: Role) -> Result<Loaded, AppError> {
        let (was, is) = (&self.section, role.of(config));
        let is_bundled = matches!(is.source, PluginSource::Name(_));
        let is_same = was.source == is.source
            && was.sha256 == is.sha256
            && was.minisign_key == is.minisign_key;
        if !(is_bundled && is_same) {
            return Loaded::load(config, role);
        }
        Ok(Loaded::of(again(&self.plugin, config, role)?, config, role))
    }

    fn of(plugin: Plugin, config: &Config, role: Role) -> Loaded {
        let process_ms = process_ms(config);
        Loaded {
            section: role.of(config).clone(),
            create_max: match plugin.isolation() {
                Isolation::Gateway => Duration::from_millis(process_ms[0]),
                Isolation::Process => Duration::MAX,
            },
            process_ms,
            plugin,
        }
    }

    /// The same as far as the configuration and the file that it names tell? Executes nothing of the file.
    fn is_as(&self, config: &Config, role: Role) -> Result<bool, String> {
        let section = role.of(config);
        if self.section != *section || self.process_ms != process_ms(config) {
            return Ok(false);
        }
        match &section.source {
            PluginSource::Name(_) => Ok(true),
            PluginSource::Path(path) => {
                let found = inspect(path).map_err(|error| error.to_string())?;
                Ok(self.plugin.inspection().sha256 == found.sha256)
            }
        }
    }
}

fn process_ms(config: &Config) -> [u64; 2] {
    let plugins = &config.plugins;
    [
        plugins.process_start_timeout_ms,
        plugins.process_cancel_grace_ms,
    ]
}

/// Both plugins. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Plugins(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    state: StateDir,
    storage: Current<StorageInstance>,
    sandbox: Current<SandboxInstance>,
    loaded_storage: Mutex<Loaded>,
    loaded_sandbox: Mutex<(Loaded, Seat)>,
    seats: Arc<Seats>,
    /// Old sandboxes whose runs go on.
    ending: Mutex<Vec<JoinHandle<()>>>,
    /// The end of the store before, until it has been seen: no other one is made.
    leaving: Mutex<Option<Ending>>,
    /// As policies know the sandbox.
    sandbox_name: String,
    /// What is asked of a sandbox until the gateway ends.
    runs: Runs,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is inside is replaced as a whole, so it is good whenever it can be seen.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Plugins {
    /// Loads both and makes an instance of each.
    pub(super) async fn start(config: &Config, state: StateDir) -> Result<Plugins, AppError> {
        let of_storage = Loaded::load(config, Role::Storage)?;
        let store = storage(
            &of_storage.plugin,
            "store",
            &state,
            &of_storage.section.config,
        )
        .await?;
        let of_sandbox = Loaded::load(config, Role::Sandbox)?;
        let seats = Arc::new(Seats::default());
        let seat = seats.take().ok_or_else(no_seat)?;
        let runs = sandbox(
            &of_sandbox.plugin,
            &seat.instance(),
            &state,
            &of_sandbox.section.config,
            &config.runs,
        )
        .await?;
        Ok(Plugins(Arc::new(Inner {
            state,
            storage: Current::new(store),
            sandbox: Current::new(runs),
            loaded_storage: Mutex::new(of_storage),
            loaded_sandbox: Mutex::new((of_sandbox, seat)),
            seats,
            ending: Mutex::default(),
            leaving: Mutex::default(),
            sandbox_name: sandbox_name(config),
            runs: config.runs.clone(),
        })))
    }

    pub(super) fn storage(&self) -> Current<StorageInstance> {
        self.0.storage.clone()
    }

    pub(super) fn sandbox(&self) -> Current<SandboxInstance> {
        self.0.sandbox.clone()
    }

    /// What is loaded now: kind, id, version. Keeps no instance alive.
    pub(super) fn infos(
        &self,
    ) -> impl Fn() -> Vec<(&'static str, String, String)> + Send + Sync + use<> {
        let plugins = Arc::downgrade(&self.0);
        move || {
            let Some(plugins) = plugins.upgrade() else {
                return Vec::new();
            };
            let of_storage = lock(&plugins.loaded_storage).plugin.clone();
            let of_sandbox = lock(&plugins.loaded_sandbox).0.plugin.clone();
            [("storage", of_storage), ("sandbox", of_sandbox)]
                .map(|(kind, plugin)| {
                    (
                        kind,
                        plugin.info().id.clone(),
                        plugin.info().version.clone(),
                    )
                })
                .to_vec()
        }
    }

    pub(super) fn of_sandbox(&self, handle: Handle) -> OfSandbox {
        OfSandbox {
            plugins: self.clone(),
            handle,
        }
    }

    pub(super) fn of_storage(&self, handle: Handle, catalog: Catalog) -> OfStorage {
        OfStorage {
            plugins: self.clone(),
            handle,
            catalog,
        }
    }

    /// Removes what exchanged sandboxes have left behind when the gateway was killed: only who has the name can. Once, before
    /// the gateway serves.
    pub(super) async fn sweep(&self) {
        let loaded = lock(&self.0.loaded_sandbox).0.clone();
        for name in (1..SANDBOXES_MAX).map(instance) {
            let dir = self.0.state.root.join(&name);
            if !dir.is_dir() {
                continue;
            }
            match sandbox(
                &loaded.plugin,
                &name,
                &self.0.state,
                &loaded.section.config,
                &self.0.runs,
            )
            .await
            {
                Ok(made) => {
                    // What does not end has its directory still.
                    if !made.end().await {
                        continue;
                    }
                }
                Err(error) => {
                    tracing::warn!(instance = name, %error, "what an exchanged sandbox left is still there");
                    continue;
                }
            }
            match std::fs::remove_dir_all(&dir) {
                Ok(()) => tracing::info!(instance = name, "removed what an exchanged sandbox left"),
                Err(error) => {
                    tracing::warn!(dir = %dir.display(), %error, "the directory of an exchanged sandbox cannot be removed");
                }
            }
        }
    }

    /// Runs before stores, where they have blobs open and write more. Else what hangs holds up nothing of the others': each has its
    /// time, and all together no more. The last that has the instances.
    pub(super) async fn shutdown(self, shelf: Arc<StorageInstance>) {
        let sandbox = self.0.sandbox.take();
        let sandbox = sandbox.map(|it| it.end().map(drop).boxed());
        let old = std::mem::take(&mut *lock(&self.0.ending));
        let old = old.into_iter().map(|old| left(old).boxed());
        all_ended(sandbox.into_iter().chain(old)).await;
        let store = self.0.storage.take();
        let stores = store.into_iter().chain([shelf]);
        let stores = stores.map(|store| store.end().map(drop).boxed());
        let leaving = lock(&self.0.leaving).take();
        all_ended(stores.chain(leaving.map(|leaving| left(leaving).boxed()))).await;
    }
}

/// Waits for several at once, and so no longer than for one.
async fn all_ended(endings: impl IntoIterator<Item = BoxFuture<'static, ()>>) {
    join_all(endings).await;
}

/// Waits for the end of what was exchanged. That it has panicked, or does not end, was said then.
async fn left<T>(ending: impl Future<Output = T>) {
    let _ended = tokio::time::timeout(SHUTDOWN_TIMEOUT, ending).await;
}

fn no_seat() -> AppError {
    AppError::Create {
        which: "sandbox",
        error: model::Error::new(
            abi::E_EXHAUSTED,
            format!("{SANDBOXES_MAX} sandboxes still have runs that go on: wait for their end"),
        ),
    }
}

/// Which instance it is, for the log: its name has the gateway's mark in it, and the operator knows the plugin's.
struct Whose {
    role: &'static str,
    plugin: String,
    instance: String,
}

/// Whether this instance has ended in time. Says in the log when it did not, or not well: there is nobody left to answer for it.
async fn end(whose: Whose, ending: impl Future<Output = model::Result<()>>) -> bool {
    let Whose {
        role,
        plugin,
        instance,
    } = whose;
    match tokio::time::timeout(SHUTDOWN_TIMEOUT, ending).await {
        Ok(Ok(())) => true,
        Ok(Err(error)) => {
            let (code, reason) = (error.code, error.message);
            tracing::warn!(
                role,
                plugin,
                instance,
                code,
                reason,
                "a plugin did not end well"
            );
            true
        }
        Err(_) => {
            tracing::warn!(role, plugin, instance, "a plugin did not end in time");
            false
        }
    }
}

/// Does a new instance work, as far as it says itself?
async fn well(said: impl Future<Output = model::Result<Health>>) -> Result<(), String> {
    match tokio::time::timeout(HEALTH_TIMEOUT, said).await.map(heard) {
        Ok(Ok(health)) if health.state == abi::HEALTH_DOWN => Err(format!(
            "it says of itself that it is down: {}",
            health.message
        )),
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(format!("it does not say how it is: {}", error.message)),
        Err(_) => Err(format!(
            "it does not say within {} s how it is",
            HEALTH_TIMEOUT.as_secs()
        )),
    }
}

fn nothing() -> Install {
    Install::new(|| ())
}

fn watched(config: &Config, role: Role) -> Vec<PathBuf> {
    let plugin = role.of(config);
    let PluginSource::Path(path) = &plugin.source else {
        return Vec::new();
    };
    // It may come behind its file, which is refused until then.
    let signature = plugin.minisign_key.is_some().then(|| {
        let mut file = path.clone().into_os_string();
        file.push(".minisig");
        file.into()
    });
    std::iter::once(path.clone()).chain(signature).collect()
}

/// The plugin that runs code.
pub(super) struct OfSandbox {
    plugins: Plugins,
    handle: Handle,
}

impl Part for OfSandbox {
    fn name(&self) -> &'static str {
        "plugins.sandbox"
    }

    fn prepare(&self, config: &Config) -> Result<Install, String> {
        let Plugins(inner) = &self.plugins;
        let state = StateDir::new(config).map_err(|error| error.to_string())?;
        if state.root != inner.state.root {
            return Err(
                "plugins.state_dir cannot change while the gateway serves; restart it".into(),
            );
        }
        // Not held while the file is read: /metrics wants it too, and a disk may hang.
        let before = lock(&inner.loaded_sandbox).0.clone();
        if before.is_as(config, Role::Sandbox)? {
            return Ok(nothing());
        }
        if sandbox_name(config) != inner.sandbox_name {
            return Err(format!(
                "policies decide by the sandbox's name, and {:?} would be {:?}; restart the gateway",
                inner.sandbox_name,
                sandbox_name(config)
            ));
        }
        let say = |error: AppError| error.to_string();
        let loaded = before.next(config, Role::Sandbox).map_err(say)?;
        let seat = inner.seats.take().ok_or_else(no_seat).map_err(say)?;
        let (of, name, state) = (loaded.clone(), seat.instance(), inner.state.clone());
        let runs = inner.runs.clone();
        let making =
            async move { sandbox(&of.plugin, &name, &state, &of.section.config, &runs).await };
        let made = self.handle.block_on(in_time(making, loaded.create_max));
        let instance = match made {
            Ok(made) => made,
            Err(not) => {
                if let Some(ending) = not.ending {
                    inner.see_off(&self.handle, seat, ending);
                }
                return Err(not.why);
            }
        };
        let (plugins, handle) = (self.plugins.clone(), self.handle.clone());
        let untaken = Untaken::new(&plugins, &handle, instance, seat);
        self.handle.block_on(untaken.is_well())?;
        Ok(Install::new(move || {
            let Some((instance, seat)) = untaken.take() else {
                return;
            };
            let Plugins(inner) = plugins;
            let old = inner.sandbox.replace(instance);
            let (_, seat) = std::mem::replace(&mut *lock(&inner.loaded_sandbox), (loaded, seat));
            tracing::info!(
                part = "plugins.sandbox",
                "new runs go to the new plugin; the old one ends with its last run"
            );
            if let Some(old) = old {
                let ending = async move {
                    old.unused().await;
                    old.ended().await;
                };
                inner.see_off(&handle, seat, ending);
            }
        }))
    }

    fn watched(config: &Config) -> Vec<PathBuf> {
        watched(config, Role::Sandbox)
    }
}

impl Inner {
    /// Waits for the end of a sandbox, whose name is free from then on.
    fn see_off(
        &self,
        handle: &Handle,
        seat: Seat,
        ending: impl Future<Output = ()> + Send + 'static,
    ) {
        let ending = handle.spawn(async move {
            ending.await;
            let instance = seat.instance();
            drop(seat);
            tracing::info!(
                part = "plugins.sandbox",
                instance,
                "the old plugin has ended"
            );
        });
        let mut all = lock(&self.ending);
        all.retain(|ending| !ending.is_finished());
        all.push(ending);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Flags, Sources};

    /// It may be all that there is of the tenants' data: who says nothing is not refused like one that is down.
    #[tokio::test]
    async fn a_new_instance_is_taken_unless_it_is_down_or_cannot_say() {
        let says = |state| {
            Ok(Health {
                state,
                message: "no disk".into(),
                ..Health::default()
            })
        };
        let fails = |code| Err(model::Error::new(code, "no answer"));
        for (said, expected) in [
            (says(abi::HEALTH_OK), Ok(())),
            (says(abi::HEALTH_DEGRADED), Ok(())),
            (fails(abi::E_UNIMPLEMENTED), Ok(())),
            (
                says(abi::HEALTH_DOWN),
                Err("it says of itself that it is down: no disk"),
            ),
            (
                fails(abi::E_PROTOCOL),
                Err("it does not say how it is: no answer"),
            ),
        ] {
            let taken = well(std::future::ready(said)).await;
            assert_eq!(taken, expected.map_err(str::to_owned));
        }
    }

    fn whose(role: &'static str, instance: &str) -> Whose {
        Whose {
            role,
            plugin: "com.acme.it".into(),
            instance: instance.into(),
        }
    }

    /// Several are ended at once.
    #[tokio::test(start_paused = true)]
    async fn what_does_not_end_well_is_named() {
        let (log, _here) = crate::telemetry::logged::Log::begin();
        let failed = model::Error::new(abi::E_INTERNAL, "it is used");
        let sandbox = whose("sandbox", "sandbox-2");
        assert!(end(sandbox, std::future::ready(Err(failed))).await);
        assert!(!end(whose("storage", "store"), std::future::pending()).await);
        let lines = log.taken();
        for words in [
            "did not end well role=\"sandbox\" plugin=\"com.acme.it\" instance=\"sandbox-2\"",
            "did not end in time role=\"storage\" plugin=\"com.acme.it\" instance=\"store\"",
        ] {
            assert!(lines.contains(words), "{lines}");
        }
    }

    /// Or the service manager ends the gateway before its audit log is closed.
    #[tokio::test(start_paused = true)]
    async fn what_does_not_end_takes_the_time_of_one() {
        use std::future::pending;
        let began = tokio::time::Instant::now();
        let store = || whose("storage", "store");
        all_ended([
            end(store(), pending()).map(drop).boxed(),
            left(pending::<()>()).boxed(),
            end(store(), pending()).map(drop).boxed(),
        ])
        .await;
        // The clock goes by milliseconds.
        let took = began.elapsed();
        assert!(
            took < SHUTDOWN_TIMEOUT + Duration::from_millis(10),
            "{took:?}"
        );
    }

    #[test]
    fn a_signature_is_watched_like_the_file() {
        let watched = |known: &str, value: &str| {
            let mut env = std::collections::BTreeMap::new();
            env.insert(
                "SKILLGATE_PLUGINS__STORAGE__PATH".into(),
                "/vendor/store.so".into(),
            );
            env.insert(format!("SKILLGATE_PLUGINS__STORAGE__{known}"), value.into());
            let sources = Sources {
                env,
                secrets: Default::default(),
                read: Box::new(|_| Err(std::io::ErrorKind::NotFound.into())),
                is_dir: Box::new(|_| false),
                exe: None,
            };
            let config = Config::load(&sources, &Flags::default()).unwrap();
            super::watched(&config, Role::Storage)
        };
        let [file, signature] = ["/vendor/store.so", "/vendor/store.so.minisig"].map(PathBuf::from);
        let unsigned = watched("ALLOW_UNSIGNED", "true");
        assert_eq!(unsigned, std::slice::from_ref(&file));
        let key = "RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3";
        assert_eq!(watched("MINISIGN_KEY", key), [file, signature]);
    }
}

//! Finding, loading and making instances of plugins.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use skillgate_plugin_host::{
    Isolation, Pin, Plugin, ProcessSettings, SandboxInstance, StorageInstance,
};
use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::model::CreateRequest;

use super::AppError;
use super::hold::hold;
use super::unkept::unkept;
use crate::config::{Config, PluginIsolation, PluginRef, PluginSource, Runs};

/// Where plugins and the built-in skill keep what is theirs: `plugins.state_dir`.
#[derive(Debug, Clone)]
pub(super) struct StateDir {
    pub(super) root: PathBuf,
}

impl StateDir {
    pub(super) fn new(config: &Config) -> Result<Self, AppError> {
        let root = std::path::absolute(&config.plugins.state_dir).map_err(AppError::io(
            format!("cannot resolve {}", config.plugins.state_dir.display()),
        ))?;
        Ok(StateDir { root })
    }

    /// The same when no other program has instances here, and none can have any from now on. One that has may end within
    /// `patience`.
    pub(super) async fn held(self, patience: Duration) -> Result<Self, AppError> {
        make_directory(&self.root)?;
        hold(&self.root, patience).await?;
        Ok(self)
    }

    pub(super) fn directory(&self, name: &str) -> Result<PathBuf, AppError> {
        let path = self.root.join(name);
        make_directory(&path)?;
        Ok(path)
    }

    /// Of an instance: private, as the contract promises (skg_create_request). What a plugin keeps there is of all tenants.
    fn private(&self, instance: &str) -> Result<PathBuf, AppError> {
        let path = self.directory(instance)?;
        let mode = std::fs::metadata(&path).map(|meta| meta.mode());
        let closed = mode.and_then(|mode| {
            if mode & 0o077 == 0 {
                return Ok(());
            }
            std::fs::set_permissions(&path, Permissions::from_mode(0o700))
        });
        closed.map_err(AppError::io(format!(
            "cannot close the directory {} to others (plugins.state_dir); it has to be the gateway's own",
            path.display()
        )))?;
        Ok(path)
    }

    fn request(&self, instance: &str, config: &Value) -> Result<CreateRequest, AppError> {
        let state_dir = self.private(instance)?;
        Ok(CreateRequest {
            instance_id: self.instance_id(instance),
            state_dir: state_dir.to_string_lossy().into_owned(),
            config_json: config.to_string().into_bytes(),
        })
    }

    /// The same after a restart, another for another gateway on the same host: what a plugin marks with it and finds
    /// again is its own.
    fn instance_id(&self, instance: &str) -> String {
        use sha2::{Digest, Sha256};
        let digest = Sha256::digest(self.root.as_os_str().as_encoded_bytes());
        format!("{instance}-{}", hex::encode(&digest[..6]))
    }
}

fn make_directory(path: &Path) -> Result<(), AppError> {
    std::fs::create_dir_all(path).map_err(AppError::io(format!(
        "cannot make the directory {} (plugins.state_dir)",
        path.display()
    )))
}

pub(super) async fn storage(
    plugin: &Plugin,
    instance: &str,
    state: &StateDir,
    config: &Value,
) -> Result<Arc<StorageInstance>, AppError> {
    let request = state.request(instance, config)?;
    let made = plugin.storage(request).await;
    let made = made.map_err(|error| AppError::Create {
        which: "storage",
        error,
    })?;
    if made.caps() & abi::ST_VOLATILE != 0 {
        tracing::warn!(
            plugin = plugin.info().id,
            instance,
            "this store keeps nothing: every skill and blob in it is gone when it ends, which a restart, a reload of the plugin or a crash of it does"
        );
    }
    for (kept, what) in [
        (
            made.keeps_skills(),
            "skills (SKG_ST_SKILLS): it is asked for none, only the operator's are there, and none can be published",
        ),
        (
            made.keeps_blobs(),
            "blobs (SKG_ST_BLOBS): it is asked for none, and none can be made",
        ),
    ] {
        if !kept && instance != "shelf" {
            tracing::warn!(
                plugin = plugin.info().id,
                instance,
                "this store does not say in its caps that it keeps {what}"
            );
        }
    }
    Ok(made)
}

pub(super) async fn sandbox(
    plugin: &Plugin,
    instance: &str,
    state: &StateDir,
    config: &Value,
    runs: &Runs,
) -> Result<Arc<SandboxInstance>, AppError> {
    let request = state.request(instance, config)?;
    let made = plugin.sandbox(request).await;
    let made = made.map_err(|error| AppError::Create {
        which: "sandbox",
        error,
    })?;
    for what in unkept(made.caps(), runs) {
        tracing::warn!(plugin = plugin.info().id, instance, "{what}");
    }
    Ok(made)
}

/// What a plugin is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Storage,
    Sandbox,
}

impl Role {
    pub(super) fn of(self, config: &Config) -> &PluginRef {
        match self {
            Role::Storage => &config.plugins.storage,
            Role::Sandbox => &config.plugins.sandbox,
        }
    }
}

/// As policies know the sandbox: `process` for the bundled `sandbox-process`.
pub(super) fn sandbox_name(config: &Config) -> String {
    match &config.plugins.sandbox.source {
        PluginSource::Name(name) => name.strip_prefix("sandbox-").unwrap_or(name).to_owned(),
        PluginSource::Path(path) => path
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned(),
    }
}

pub(super) fn load(config: &Config, role: Role) -> Result<Plugin, AppError> {
    let plugin = role.of(config);
    let path = match &plugin.source {
        PluginSource::Name(name) => bundled_plugin(name)?,
        PluginSource::Path(path) => path.clone(),
    };
    let pin = Pin {
        sha256: plugin.sha256.clone(),
        minisign_key: plugin.minisign_key.clone(),
        guarded: matches!(plugin.source, PluginSource::Path(_)),
    };
    if pin.guarded && pin.sha256.is_none() && pin.minisign_key.is_none() {
        tracing::warn!(file = %path.display(), "a plugin's file is not verified (allow_unsigned): pin it with sha256");
    }
    let isolation = isolation(plugin);
    let loaded = Plugin::open(&path, &pin, isolation, &own_process(config, role))?;
    if matches!(plugin.source, PluginSource::Name(_)) {
        is_of_this_version(&loaded)?;
    }
    if let Some(why) = loaded.inspection().own_process
        && isolation == Isolation::Gateway
    {
        tracing::warn!(file = %path.display(), why, "a plugin has a process of its own although the configuration says gateway");
    }
    tracing::info!(id = loaded.info().id, version = loaded.info().version, file = %path.display(), sha256 = loaded.inspection().sha256, isolation = ?loaded.isolation(), "plugin loaded");
    Ok(loaded)
}

/// The bundled store once more, for the operator's shelf.
pub(super) fn of_shelf() -> Result<Plugin, AppError> {
    let plugin = Plugin::load(bundled_plugin("storage-fs")?, &Pin::default())?;
    is_of_this_version(&plugin)?;
    Ok(plugin)
}

/// Program and bundled plugins are one: what a store of the program's own says is not held against anything, and one that an
/// upgrade has left behind isolates runs as it did then.
fn is_of_this_version(bundled: &Plugin) -> Result<(), AppError> {
    let version = &bundled.info().version;
    if version == env!("CARGO_PKG_VERSION") {
        return Ok(());
    }
    Err(AppError::OtherVersion {
        file: bundled.inspection().path.clone(),
        version: version.clone(),
    })
}

/// The same plugin from what was read of its file when it was loaded, where the configuration says.
pub(super) fn again(plugin: &Plugin, config: &Config, role: Role) -> Result<Plugin, AppError> {
    let isolation = isolation(role.of(config));
    Ok(plugin.again(isolation, &own_process(config, role))?)
}

fn isolation(plugin: &PluginRef) -> Isolation {
    match plugin.isolation {
        PluginIsolation::Gateway => Isolation::Gateway,
        PluginIsolation::Process => Isolation::Process,
    }
}

/// The hidden command that a plugin's own process runs.
pub(crate) const PLUGIN_HOST: &str = "plugin-host";

fn own_process(config: &Config, role: Role) -> ProcessSettings {
    let plugins = &config.plugins;
    let threads = config.runs.max_concurrent + super::STORE_THREADS_MAX;
    ProcessSettings {
        // A sandbox may need a helper with privileges; a store needs none.
        no_new_privs: role == Role::Storage,
        start_timeout: Duration::from_millis(plugins.process_start_timeout_ms),
        cancel_grace: Duration::from_millis(plugins.process_cancel_grace_ms),
        threads_max: u32::try_from(threads).unwrap_or(u32::MAX),
        ..ProcessSettings::this_program(&[PLUGIN_HOST])
    }
}

/// The file of a bundled plugin: where cargo puts it beside the binary, or where a package does.
pub(super) fn bundled_plugin(name: &str) -> Result<PathBuf, AppError> {
    let file = format!("lib{}.so", format!("skillgate-{name}").replace('-', "_"));
    let exe =
        std::env::current_exe().map_err(AppError::io("cannot find the program's own file"))?;
    let dir = exe.parent().unwrap_or(Path::new("/"));
    // `deps` first: `cargo run` renews only that copy.
    let looked = vec![
        dir.join("deps").join(&file),
        dir.join(&file),
        dir.join("../lib/skillgate").join(&file),
    ];
    match looked.iter().find(|path| path.is_file()) {
        Some(path) => Ok(path.clone()),
        None => Err(AppError::NoSuchPlugin {
            name: name.to_owned(),
            looked,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_instance_keeps_is_closed_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("state");
        let state = StateDir { root: root.clone() };
        // One that an earlier version has left open, and one that is not there yet.
        std::fs::create_dir_all(root.join("store")).unwrap();
        std::fs::set_permissions(root.join("store"), Permissions::from_mode(0o755)).unwrap();
        for instance in ["store", "sandbox"] {
            let request = state.request(instance, &Value::Null).unwrap();
            let mode = std::fs::metadata(request.state_dir).unwrap().mode();
            assert_eq!(mode & 0o7777, 0o700, "{instance}");
        }
    }
}

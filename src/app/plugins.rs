//! Finding, loading and making instances of plugins.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use skillgate_plugin_host::{Pin, Plugin, SandboxInstance, StorageInstance};
use skillgate_plugin_sdk::model::CreateRequest;

use super::AppError;
use crate::config::{Config, PluginRef, PluginSource};

/// Where plugins and the built-in skill keep what is theirs: `plugins.state_dir`.
pub(super) struct State {
    pub(super) root: PathBuf,
}

impl State {
    pub(super) fn new(config: &Config) -> Result<Self, AppError> {
        let root = std::path::absolute(&config.plugins.state_dir).map_err(AppError::io(
            format!("cannot resolve {}", config.plugins.state_dir.display()),
        ))?;
        Ok(State { root })
    }

    pub(super) fn directory(&self, name: &str) -> Result<PathBuf, AppError> {
        let path = self.root.join(name);
        std::fs::create_dir_all(&path).map_err(AppError::io(format!(
            "cannot make the directory {} (plugins.state_dir)",
            path.display()
        )))?;
        Ok(path)
    }

    fn request(&self, instance: &str, config: &Value) -> Result<CreateRequest, AppError> {
        let state_dir = self.directory(instance)?;
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

pub(super) async fn storage(
    plugin: &Plugin,
    instance: &str,
    state: &State,
    config: Value,
) -> Result<Arc<StorageInstance>, AppError> {
    let request = state.request(instance, &config)?;
    plugin
        .storage(request)
        .await
        .map_err(|error| AppError::Create {
            which: "storage",
            error,
        })
}

pub(super) async fn sandbox(
    plugin: &Plugin,
    state: &State,
    config: &Value,
) -> Result<Arc<SandboxInstance>, AppError> {
    let request = state.request("sandbox", config)?;
    plugin
        .sandbox(request)
        .await
        .map_err(|error| AppError::Create {
            which: "sandbox",
            error,
        })
}

pub(super) fn load(plugin: &PluginRef) -> Result<Plugin, AppError> {
    let path = match &plugin.source {
        PluginSource::Name(name) => bundled_plugin(name)?,
        PluginSource::Path(path) => path.clone(),
    };
    let plugin = Plugin::load(
        &path,
        &Pin {
            sha256: plugin.sha256.clone(),
            minisign_key: plugin.minisign_key.clone(),
            guarded: matches!(plugin.source, PluginSource::Path(_)),
        },
    )?;
    tracing::info!(id = plugin.info().id, version = plugin.info().version, file = %path.display(), sha256 = plugin.inspection().sha256, "plugin loaded");
    Ok(plugin)
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

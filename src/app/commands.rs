//! The commands that need the whole gateway but no listener.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustix::fs::{Access, access};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use skillgate_plugin_host::{Current, Plugin, StorageInstance};
use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::model::{self, Health};
use tower::{Layer, ServiceExt};

use super::hold;
use super::plugins::{Role, StateDir, load, of_shelf, sandbox, sandbox_name, storage};
use super::signals::Signals;
use super::silent::heard;
use super::swap::Ends as _;
use super::unkept::{unkept, with};
use super::{App, AppError, prepared_policy, runtime, shelf};
use crate::audit::Audit;
use crate::auth::{Authenticator, Caller};
use crate::catalog::{self, Catalog};
use crate::config::{Config, OnDisconnect, PluginIsolation, PluginRef, PluginSource};
use crate::methods::{self, Perform};
use crate::policy::{self, Policy, PolicyLayer};
use crate::rpc::{Call, ErrorObject, Params, Space};
use crate::telemetry::trace::Trace;
use crate::{stack, telemetry};

/// A file that a run is given as a blob.
#[derive(Debug, Clone)]
pub struct FileBlob {
    /// The argument that holds the blob's id.
    pub argument: Option<String>,
    /// What is in it.
    pub file: PathBuf,
}

/// Runs one skill of a directory, with the same sandbox and the same policy as the gateway, without one, on a store that goes with
/// the run: what somebody tries has no business among what tenants keep. `args` and the answer are JSON as it is written: a tree of
/// values would keep neither the order of names nor the digits of a large number.
///
/// # Errors
/// [`AppError`] when it did not start; a run that fails is a result.
pub fn run_skill_dir(
    config: &Config,
    dir: &Path,
    args: &str,
    blobs: &[FileBlob],
    timeout_ms: Option<u64>,
) -> Result<Box<RawValue>, AppError> {
    telemetry::start(&config.log).map_err(AppError::Log)?;
    // Before there is anything that would be left behind.
    let mut signals = Signals::new()?;
    runtime(config)?.block_on(async {
        let scratch =
            tempfile::tempdir().map_err(AppError::io("cannot make a temporary directory"))?;
        let mut config = config.clone();
        // Nobody would hear of a run that outlives its command.
        config.runs.on_disconnect = OnDisconnect::Kill;
        config.skills.paths = vec![
            std::path::absolute(dir)
                .map_err(AppError::io(format!("cannot resolve {}", dir.display())))?,
        ];
        config.plugins.state_dir = scratch.path().join("state");
        config.plugins.storage = PluginRef {
            source: PluginSource::Name("storage-fs".into()),
            sha256: None,
            minisign_key: None,
            allow_unsigned: false,
            isolation: PluginIsolation::Gateway,
            config: json!({ "root": scratch.path().join("store") }),
        };
        let state = StateDir::new(&config)?.held(Duration::ZERO).await?;
        let app = App::build(&config, state, Audit::off()).await?;
        let outcome = signals
            .unless_ended(run_in(&app, dir, args, blobs, timeout_ms))
            .await;
        app.shutdown().await;
        outcome
    })
}

async fn run_in(
    app: &App,
    dir: &Path,
    args: &str,
    blobs: &[FileBlob],
    timeout_ms: Option<u64>,
) -> Result<Box<RawValue>, AppError> {
    let manifest = std::fs::read_to_string(dir.join("skill.toml")).map_err(AppError::io(
        format!("cannot read {}", dir.join("skill.toml").display()),
    ))?;
    let (name, version) = catalog::name_of(&manifest)
        .map_err(|message| AppError::Call(Box::new(ErrorObject::invalid_params("", message))))?;
    let (mut ids, mut named) = (Vec::new(), Vec::new());
    for FileBlob { argument, file } in blobs {
        let bytes =
            std::fs::read(file).map_err(AppError::io(format!("cannot read {}", file.display())))?;
        let blob = json!({ "content": STANDARD.encode(bytes), "encoding": "base64", "kind": "application/octet-stream" });
        let created: Created = read(&call(app, "create_blob", &blob).await?)?;
        if let Some(argument) = argument {
            named.push((argument.as_str(), created.blob_id.clone()));
        }
        ids.push(created.blob_id);
    }
    let execute = Execute {
        name,
        version,
        args: with_blobs(args, &named)?,
        input_blobs: ids,
        timeout_ms,
    };
    call(app, "execute_skill", &execute).await
}

/// Of what `create_blob` answers.
#[derive(Deserialize)]
struct Created {
    blob_id: String,
}

/// What `execute_skill` takes.
#[derive(Serialize)]
struct Execute {
    name: String,
    version: String,
    args: Box<RawValue>,
    input_blobs: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_ms: Option<u64>,
}

/// The arguments, an object's text, and behind them each of these with a blob's id.
fn with_blobs(args: &str, named: &[(&str, String)]) -> Result<Box<RawValue>, AppError> {
    let wrong = |why: String| refused(ErrorObject::invalid_params("/args", why));
    let raw: Box<RawValue> =
        serde_json::from_str(args).map_err(|error| wrong(error.to_string()))?;
    let members = raw
        .get()
        .strip_prefix('{')
        .and_then(|text| text.strip_suffix('}'))
        .ok_or_else(|| wrong("args must be an object".into()))?;
    let mut text = format!("{{{members}");
    let mut is_first = members.trim().is_empty();
    for (argument, id) in named {
        let comma = if is_first { "" } else { "," };
        text.push_str(&format!("{comma}{}:{}", json!(argument), json!(id)));
        is_first = false;
    }
    text.push('}');
    RawValue::from_string(text).map_err(|error| wrong(error.to_string()))
}

/// Every skill that the gateway would list, asked of the stores and of the policy alone: no sandbox is started. A store that is
/// not to be had now, since a running gateway has it, is left out, and the log says so.
///
/// # Errors
/// [`AppError`] when a plugin does not start or the store fails.
pub fn list_skills(config: &Config) -> Result<Vec<Value>, AppError> {
    telemetry::start(&config.log).map_err(AppError::Log)?;
    let mut signals = Signals::new()?;
    runtime(config)?.block_on(async {
        let named = policy::Sandbox {
            plugin: sandbox_name(config),
        };
        let prepared = prepared_policy(config).await?.unremembered();
        let policy = Policy::new(prepared, &named, Audit::off());
        // Its own state: a gateway that runs beside keeps its own.
        let scratch =
            tempfile::tempdir().map_err(AppError::io("cannot make a temporary directory"))?;
        let own = StateDir {
            root: scratch.path().to_owned(),
        };
        let shelf = shelf(config, &own).await?;
        let of_store = load(config, Role::Storage)?;
        let store = match open_store(config, &of_store).await {
            Ok(store) => Some(store),
            Err(why) if is_elsewhere(&why) => {
                let why = why.to_string();
                tracing::warn!(why, "published skills are left out: a gateway that runs lists them itself, with list_skills");
                None
            }
            Err(error) => return Err(error),
        };
        // What both have is listed once, as the shelf's.
        let second = Current::new(store.clone().unwrap_or_else(|| shelf.clone()));
        let (files_max, bytes_max) = (config.skills.max_files, config.skills.max_bytes);
        let opened = Catalog::open(shelf.clone(), second, files_max, bytes_max).await;
        let catalog = opened.map_err(|error| AppError::Create {
            which: "storage",
            error,
        })?;
        let skills = signals.unless_ended(all_pages(&catalog, &policy)).await;
        drop(catalog);
        for instance in store.into_iter().chain([shelf]) {
            instance.end().await;
        }
        skills
    })
}

/// The gateway's own, where no gateway has it: two instances of a store never have its data at the same time.
async fn open_store(config: &Config, plugin: &Plugin) -> Result<Arc<StorageInstance>, AppError> {
    let state = StateDir::new(config)?.held(Duration::ZERO).await?;
    storage(plugin, "store", &state, &config.plugins.storage.config).await
}

fn is_elsewhere(why: &AppError) -> bool {
    match why {
        AppError::InUse { .. } => true,
        AppError::Create { error, .. } => error.code == abi::E_UNAVAILABLE,
        _ => false,
    }
}

async fn all_pages(catalog: &Catalog, policy: &Policy) -> Result<Vec<Value>, AppError> {
    let caller = Authenticator::off().local();
    let mut skills = Vec::new();
    let mut cursor = Value::Null;
    loop {
        let params = json!({ "limit": 1000, "detail": "summary", "cursor": cursor });
        let call = asked(caller.clone(), "list_skills", &params)?;
        // It goes over no wire: `server.max_body_bytes` is no bound of it.
        let listing = methods::listing(catalog.clone(), u64::MAX, call)
            .map_err(|error| refused(error.into()))?;
        let answer = PolicyLayer(policy.clone())
            .layer(Perform)
            .oneshot(listing)
            .await;
        let mut page: Value = read(&answered(answer)?)?;
        if let Some(list) = page["skills"].as_array_mut() {
            skills.append(list);
        }
        cursor = page["next_cursor"].take();
        if cursor.is_null() {
            return Ok(skills);
        }
    }
}

/// One call of the command line, through the same layers as any other.
async fn call(app: &App, method: &str, params: &impl Serialize) -> Result<Box<RawValue>, AppError> {
    let call = asked(app.parts.authenticator.local(), method, params)?;
    answered(stack::calls(&app.parts).oneshot(call).await)
}

fn asked(caller: Caller, method: &str, params: &impl Serialize) -> Result<Call, AppError> {
    let text = serde_json::to_vec(params).map_err(|_| refused(ErrorObject::internal()))?;
    let params = Params::from_text(text.into()).map_err(refused)?;
    Ok(Call {
        caller,
        method: method.to_owned(),
        id: String::new(),
        params,
        counted: true,
        trace: Trace::new(),
        space: Space::unlimited(),
    })
}

fn answered(answer: Result<Box<RawValue>, methods::Error>) -> Result<Box<RawValue>, AppError> {
    answer.map_err(|error| refused(error.into()))
}

fn read<T: DeserializeOwned>(answer: &RawValue) -> Result<T, AppError> {
    serde_json::from_str(answer.get()).map_err(|_| refused(ErrorObject::internal()))
}

fn refused(error: ErrorObject) -> AppError {
    AppError::Call(Box::new(error))
}

/// What this host can and cannot enforce.
#[derive(Debug, Serialize)]
pub struct DoctorReport {
    /// Layer by layer: `{layer, state, detail, advice}`.
    pub layers: Vec<Value>,
    /// Each plugin: `{role, id, version, state, message}`.
    pub plugins: Vec<Value>,
    /// The gateway would start, with every layer that the configuration does not excuse.
    pub ok: bool,
}

/// Asks the plugins what they can do on this host, without serving anything.
///
/// # Errors
/// [`AppError`] when there is nothing to ask with; a plugin that is refused, or refuses, is part of the report.
pub fn doctor(config: &Config) -> Result<DoctorReport, AppError> {
    telemetry::start(&config.log).map_err(AppError::Log)?;
    let signals = Signals::new()?;
    runtime(config)?.block_on(async {
        // Its own state: a gateway that runs beside keeps its own.
        let scratch =
            tempfile::tempdir().map_err(AppError::io("cannot make a temporary directory"))?;
        let state = StateDir {
            root: scratch.path().to_owned(),
        };
        let mut report = DoctorReport {
            layers: Vec::new(),
            plugins: Vec::new(),
            ok: true,
        };

        let (plugin, health) = ask_sandbox(config, &state).await;
        report.add("sandbox", plugin.as_ref(), health);
        signals.check()?;
        let mut config = config.clone();
        let store = &mut config.plugins.storage;
        // A store of its own, with all else that is configured: else a mistake in it would be heard at the start.
        let is_own = store.source == PluginSource::Name("storage-fs".into());
        let root = store.config["root"].as_str().map(PathBuf::from);
        if is_own {
            store.config["root"] = json!(scratch.path().join("store"));
        }
        // Any other has its data once, as a gateway that runs may have it now.
        let in_use = if is_own {
            None
        } else {
            hold::in_use(&StateDir::new(&config)?.root)
        };
        let (plugin, mut health) = ask_storage(&config, &state, in_use).await;
        if is_own
            && let (Ok(health), Some(root)) = (&mut health, root)
            && health.state != abi::HEALTH_DOWN
        {
            not_opened(&root, health);
        }
        report.add("storage", plugin.as_ref(), health);
        // Another store has its shelf from the bundled one.
        if !is_own && let Err(error) = of_shelf() {
            report.add("shelf", None, Err(error));
        }
        signals.check()?;
        Ok(report)
    })
}

/// How the store is that was asked with another root than its own: what it says of that one's skills and room is not about `root`.
/// But what it could not read of skills is the operator's: an empty root has none.
fn not_opened(root: &Path, health: &mut Health) {
    let exists = |dir: &&Path| dir.exists();
    let there = root.ancestors().find(exists).unwrap_or(Path::new("."));
    let (shown, place) = (root.display(), there.display());
    let problem = if !there.is_dir() {
        format!("{place} is no directory: give plugins.storage.config.root another")
    } else if let Err(errno) = access(there, Access::WRITE_OK | Access::EXEC_OK) {
        format!(
            "{place} cannot be written by this user ({errno}): give it to whoever the gateway runs as, or ask as that user"
        )
    } else if unread(health) > 0 {
        return;
    } else {
        health.state = abi::HEALTH_OK;
        health.message =
            format!("its settings are good; what {shown} has, and how much room, is not looked at");
        return;
    };
    (health.state, health.message) = (abi::HEALTH_DOWN, problem);
}

/// Skills that it could not read when it was made.
fn unread(health: &Health) -> u64 {
    let metrics: Value = serde_json::from_str(&health.metrics_json).unwrap_or_default();
    metrics["skills_unread"].as_u64().unwrap_or(0)
}

/// The plugin, when its file could be loaded, and how it is, or why it does not start.
type Asked = (Option<Plugin>, Result<Health, AppError>);

async fn ask_sandbox(config: &Config, state: &StateDir) -> Asked {
    let loaded = match load(config, Role::Sandbox) {
        Ok(loaded) => loaded,
        Err(error) => return (None, Err(error)),
    };
    let settings = &config.plugins.sandbox.config;
    let health = match sandbox(&loaded, "sandbox", state, settings, &config.runs).await {
        Ok(instance) => {
            let unkept = unkept(instance.caps(), &config.runs);
            let health = heard(instance.health().await).map_err(|error| AppError::Create {
                which: "sandbox",
                error,
            });
            let health = health.map(|health| with(health, &unkept));
            instance.end().await;
            health
        }
        Err(error) => Err(error),
    };
    (Some(loaded), health)
}

/// `in_use`: who has its data now, so that it is not asked.
async fn ask_storage(config: &Config, state: &StateDir, in_use: Option<String>) -> Asked {
    let loaded = match load(config, Role::Storage) {
        Ok(loaded) => loaded,
        Err(error) => return (None, Err(error)),
    };
    if let Some(who) = in_use {
        let message = format!(
            "not asked: {who} has its data, and /readyz?verbose of that one says how it is"
        );
        let health = Health {
            state: abi::HEALTH_OK,
            message,
            ..Health::default()
        };
        return (Some(loaded), Ok(health));
    }
    let health = match storage(&loaded, "store", state, &config.plugins.storage.config).await {
        Ok(instance) => {
            let health = heard(instance.health().await).map_err(|error| AppError::Create {
                which: "storage",
                error,
            });
            instance.end().await;
            health
        }
        Err(error) => Err(error),
    };
    (Some(loaded), health)
}

impl DoctorReport {
    fn add(&mut self, role: &str, plugin: Option<&Plugin>, health: Result<Health, AppError>) {
        let (state, message, layers) = match health {
            Ok(health) => (health.state, health.message, health.report_json),
            Err(AppError::Create {
                error:
                    model::Error {
                        message,
                        detail_json,
                        ..
                    },
                ..
            }) => (abi::HEALTH_DOWN, message, detail_json),
            Err(error) => (abi::HEALTH_DOWN, error.to_string(), String::new()),
        };
        let state = match state {
            abi::HEALTH_OK => "ok",
            abi::HEALTH_DEGRADED => "degraded",
            _ => "refuses",
        };
        self.ok &= state != "refuses";
        if let Ok(Value::Array(layers)) = serde_json::from_str(&layers) {
            self.layers.extend(layers);
        }
        let (id, version) = plugin.map_or(("", ""), |plugin| {
            (plugin.info().id.as_str(), plugin.info().version.as_str())
        });
        self.plugins.push(json!({ "role": role, "id": id, "version": version, "state": state, "message": message }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_store_that_is_not_opened_what_is_the_operators_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let told = |unread, root: &Path| {
            let mut health = Health {
                state: abi::HEALTH_DEGRADED,
                message: "as it says".to_owned(),
                metrics_json: format!(r#"{{"skills":0,"skills_unread":{unread}}}"#),
                ..Health::default()
            };
            not_opened(root, &mut health);
            (health.state, health.message)
        };
        // A small disk under the temporary directory, say.
        let (state, message) = told(0, &dir.path().join("a/store"));
        assert_eq!(state, abi::HEALTH_OK);
        assert!(message.contains("a/store has"), "{message}");
        let own = (abi::HEALTH_DEGRADED, "as it says".to_owned());
        assert_eq!(told(1, dir.path()), own);
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let (state, message) = told(1, &file.join("store"));
        assert_eq!(state, abi::HEALTH_DOWN);
        assert!(message.contains("file is no directory"), "{message}");
    }
}

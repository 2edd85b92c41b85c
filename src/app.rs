//! The wiring: the only file that knows all parts. Decides nothing.

use std::fmt;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};
use skillgate_plugin_host::{LoadError, Pin, Plugin, SandboxInstance, StorageInstance};
use skillgate_plugin_sdk::model::{self, CreateRequest, Health};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tower::ServiceExt;

use crate::auth::Authenticator;
use crate::blobs::Blobs;
use crate::catalog::{self, Catalog};
use crate::config::{Config, OnDisconnect, PluginRef, PluginSource};
use crate::door::DoorLayer;
use crate::faces::{PATHS, Readiness};
use crate::methods::Rooms;
use crate::policy::Policy;
use crate::rescue::RequestId;
use crate::rpc::{self, Call, ErrorObject, Params};
use crate::runs::{self, Runs};
use crate::server::{self, serve as serve_connections};
use crate::stack::{self, Parts};
use crate::telemetry;

/// Why the gateway does not start, or a command does not finish.
#[derive(Debug)]
#[non_exhaustive]
pub enum AppError {
    /// A plugin's file was refused.
    Load(LoadError),
    /// There is no bundled plugin of this name.
    NoSuchPlugin {
        /// As configured.
        name: String,
        /// Where it was looked for.
        looked: Vec<PathBuf>,
    },
    /// A plugin refused to make an instance.
    Create {
        /// What for.
        which: &'static str,
        /// Why.
        error: model::Error,
    },
    /// Something of the system failed.
    Io {
        /// What was being done.
        what: String,
        /// How it failed.
        error: std::io::Error,
    },
    /// The log could not be started.
    Log(String),
    /// A call of the command line was refused.
    Call(Box<ErrorObject>),
}

impl AppError {
    /// The program's exit code (contract, section 1).
    pub fn exit_code(&self) -> u8 {
        match self {
            AppError::Call(_) => 1,
            AppError::Log(_) | AppError::NoSuchPlugin { .. } => 3,
            AppError::Load(_) | AppError::Create { .. } | AppError::Io { .. } => 4,
        }
    }

    fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |error| AppError::Io { what, error }
    }
}

impl fmt::Display for AppError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AppError::Load(error) => error.fmt(f),
            AppError::NoSuchPlugin { name, looked } => {
                write!(f, "there is no bundled plugin {name:?}; looked for")?;
                looked
                    .iter()
                    .try_for_each(|path| write!(f, " {}", path.display()))
            }
            AppError::Create { which, error } => {
                write!(f, "the {which} plugin refused to start: {}", error.message)
            }
            AppError::Io { what, error } => write!(f, "{what}: {error}"),
            AppError::Log(why) => f.write_str(why),
            AppError::Call(error) => f.write_str(&error.message),
        }
    }
}

impl std::error::Error for AppError {}

impl From<LoadError> for AppError {
    fn from(error: LoadError) -> Self {
        AppError::Load(error)
    }
}

/// Everything, put together.
#[derive(Debug)]
struct App {
    parts: Parts,
    plugins: Vec<Instance>,
}

/// A plugin's instance, to be let go at the end.
#[derive(Debug)]
enum Instance {
    Storage(Arc<StorageInstance>),
    Sandbox(Arc<SandboxInstance>),
}

impl App {
    async fn build(config: &Config) -> Result<App, AppError> {
        let state = State::new(config)?;
        let builtin = state.directory("builtin")?;
        catalog::write_builtin(&builtin)
            .map_err(AppError::io(format!("cannot write {}", builtin.display())))?;

        // The operator's shelf is always the bundled plugin: a vendor's store need not know about directories.
        let mut shelves = vec![builtin];
        shelves.extend(config.skills.paths.iter().cloned());
        let bundled = Plugin::load(bundled_plugin("storage-fs")?, &Pin::default())?;
        let shelf = storage(
            &bundled,
            "shelf",
            &state,
            json!({ "read_only_skills": shelves }),
        )
        .await?;

        let plugin = load(&config.plugins.storage)?;
        let store = storage(
            &plugin,
            "store",
            &state,
            config.plugins.storage.config.clone(),
        )
        .await?;
        let plugin = load(&config.plugins.sandbox)?;
        let sandbox = sandbox(&plugin, &state, &config.plugins.sandbox.config).await?;

        let catalog = Catalog::open(
            shelf.clone(),
            store.clone(),
            config.skills.max_files,
            config.skills.max_bytes,
        )
        .await
        .map_err(|error| AppError::Create {
            which: "storage",
            error,
        })?;
        let blobs = Blobs::new(store.clone(), config.blobs.max_bytes, config.blobs.ttl_s);
        let runs = Runs::new(
            sandbox.clone(),
            catalog.clone(),
            blobs.clone(),
            run_settings(config),
        );
        let parts = Parts {
            rooms: Rooms {
                catalog,
                blobs,
                runs,
                answer_bytes_max: config.server.max_body_bytes,
            },
            authenticator: Authenticator::off(),
            policy: Policy::Off,
            rpc: rpc::Limits {
                body_bytes_max: config.server.max_body_bytes as usize,
                body_timeout: Duration::from_millis(config.server.body_timeout_ms),
                batch_max: config.server.max_batch,
            },
            door: DoorLayer::new(&config.server.allowed_hosts),
            readiness: Readiness::default(),
        };
        Ok(App {
            parts,
            plugins: vec![
                Instance::Sandbox(sandbox),
                Instance::Storage(store),
                Instance::Storage(shelf),
            ],
        })
    }

    /// Lets go of the plugins, runs before stores, and waits until their threads and processes are gone.
    async fn shutdown(self) {
        let App { parts, plugins } = self;
        drop(parts);
        for instance in plugins {
            let outcome = match instance {
                Instance::Sandbox(sandbox) => sandbox.shutdown().await,
                Instance::Storage(store) => store.shutdown().await,
            };
            if let Err(error) = outcome {
                tracing::warn!(
                    code = error.code,
                    reason = error.message,
                    "a plugin did not end well"
                );
            }
        }
    }
}

fn run_settings(config: &Config) -> runs::Settings {
    let runs = &config.runs;
    runs::Settings {
        default_timeout_ms: runs.default_timeout_ms,
        timeout_ms_max: runs.max_timeout_ms,
        concurrent_max: runs.max_concurrent,
        queued_max: runs.max_queued,
        memory_bytes: runs.memory_bytes,
        pids_max: runs.max_pids as u32,
        workspace_bytes: runs.workspace_bytes,
        workspace_inodes: runs.workspace_inodes,
        output_blobs_max: runs.max_output_blobs,
        kill_on_disconnect: runs.on_disconnect == OnDisconnect::Kill,
    }
}

// === plugins ===

/// Where plugins and the built-in skill keep what is theirs: `plugins.state_dir`.
struct State {
    root: PathBuf,
}

impl State {
    fn new(config: &Config) -> Result<Self, AppError> {
        let root = std::path::absolute(&config.plugins.state_dir).map_err(AppError::io(
            format!("cannot resolve {}", config.plugins.state_dir.display()),
        ))?;
        Ok(State { root })
    }

    fn directory(&self, name: &str) -> Result<PathBuf, AppError> {
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

async fn storage(
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

async fn sandbox(
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

fn load(plugin: &PluginRef) -> Result<Plugin, AppError> {
    let path = match &plugin.source {
        PluginSource::Name(name) => bundled_plugin(name)?,
        PluginSource::Path(path) => path.clone(),
    };
    let plugin = Plugin::load(
        &path,
        &Pin {
            sha256: plugin.sha256.clone(),
        },
    )?;
    tracing::info!(id = plugin.info().id, version = plugin.info().version, file = %path.display(), sha256 = plugin.inspection().sha256, "plugin loaded");
    Ok(plugin)
}

/// The file of a bundled plugin: where cargo puts it beside the binary, or where a package does.
fn bundled_plugin(name: &str) -> Result<PathBuf, AppError> {
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

// === the commands that need the whole ===

fn runtime(config: &Config) -> Result<tokio::runtime::Runtime, AppError> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        // A run keeps one thread of its plugin busy from beginning to end; the store needs some beside them.
        .max_blocking_threads(config.runs.max_concurrent + STORE_THREADS_MAX)
        .build()
        .map_err(AppError::io("cannot start the runtime"))
}

/// Threads for blocking calls that are not runs.
const STORE_THREADS_MAX: usize = 64;

/// Runs the gateway until SIGTERM or SIGINT.
///
/// # Errors
/// [`AppError`] when it cannot start.
pub fn serve(config: &Config) -> Result<(), AppError> {
    telemetry::start(&config.log).map_err(AppError::Log)?;
    let runtime = runtime(config)?;
    let outcome = runtime.block_on(async {
        // Before the plugins: a port that is taken should be known before a sandbox is built.
        let listen = config.server.listen;
        let listener = TcpListener::bind(listen)
            .await
            .map_err(AppError::io(format!(
                "cannot listen on {listen} (server.listen)"
            )))?;
        let address = listener
            .local_addr()
            .map_err(AppError::io("cannot read the listen address"))?;
        let app = App::build(config).await?;
        announce(&format!("http://{address}")).map_err(AppError::io("cannot write to stdout"))?;

        let settings = server::Settings {
            header_timeout: Duration::from_millis(config.server.header_timeout_ms),
            connections_max: config.server.max_connections,
            drain_timeout: Duration::from_millis(config.server.drain_timeout_ms),
        };
        let mut terminate =
            signal(SignalKind::terminate()).map_err(AppError::io("cannot wait for SIGTERM"))?;
        let mut interrupt =
            signal(SignalKind::interrupt()).map_err(AppError::io("cannot wait for SIGINT"))?;
        let readiness = app.parts.readiness.clone();
        let stop = async move {
            tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
            readiness.draining();
            tracing::info!("stopping: a second signal ends at once");
            tokio::spawn(async move {
                tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
                tracing::warn!("second signal: ending without waiting");
                // The sandbox's launcher sees its socket close and ends what runs; nothing that was acknowledged is lost.
                std::process::exit(130);
            });
        };
        serve_connections(listener, stack::public(&app.parts), settings, stop).await;
        app.shutdown().await;
        tracing::info!("stopped");
        Ok(())
    });
    runtime.shutdown_timeout(Duration::from_secs(5));
    outcome
}

fn announce(base: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "skillgate {} serves", env!("CARGO_PKG_VERSION"))?;
    for (path, method, what) in PATHS {
        writeln!(out, "  {:<44} {method:<5} {what}", format!("{base}{path}"))?;
    }
    out.flush()
}

/// Runs one skill of a directory, with the same plugins and the same policy as the gateway, without one.
///
/// # Errors
/// [`AppError`] when it did not start; a run that fails is a result.
pub fn run_skill_dir(
    config: &Config,
    dir: &Path,
    args: &str,
    blobs: &[PathBuf],
    timeout_ms: Option<u64>,
) -> Result<Value, AppError> {
    telemetry::start(&config.log).map_err(AppError::Log)?;
    runtime(config)?.block_on(async {
        let scratch =
            tempfile::tempdir().map_err(AppError::io("cannot make a temporary directory"))?;
        let mut config = config.clone();
        config.skills.paths = vec![
            std::path::absolute(dir)
                .map_err(AppError::io(format!("cannot resolve {}", dir.display())))?,
        ];
        config.plugins.state_dir = scratch.path().join("state");
        if config.plugins.storage.source == PluginSource::Name("storage-fs".into()) {
            config.plugins.storage.config = json!({ "root": scratch.path().join("store") });
        }
        let app = App::build(&config).await?;
        let outcome = run_in(&app, dir, args, blobs, timeout_ms).await;
        app.shutdown().await;
        outcome
    })
}

async fn run_in(
    app: &App,
    dir: &Path,
    args: &str,
    blobs: &[PathBuf],
    timeout_ms: Option<u64>,
) -> Result<Value, AppError> {
    let manifest = std::fs::read_to_string(dir.join("skill.toml")).map_err(AppError::io(
        format!("cannot read {}", dir.join("skill.toml").display()),
    ))?;
    let (name, version) = catalog::name_of(&manifest)
        .map_err(|message| AppError::Call(Box::new(ErrorObject::invalid_params("", message))))?;
    let args: Value = serde_json::from_str(args).map_err(|error| {
        AppError::Call(Box::new(ErrorObject::invalid_params(
            "/args",
            error.to_string(),
        )))
    })?;
    let mut ids = Vec::new();
    for path in blobs {
        let bytes =
            std::fs::read(path).map_err(AppError::io(format!("cannot read {}", path.display())))?;
        let created = call(app, "create_blob", json!({ "content": catalog::base64(&bytes), "encoding": "base64", "kind": "application/octet-stream" })).await?;
        ids.push(created["blob_id"].clone());
    }
    let mut params = json!({ "name": name, "version": version, "args": args, "input_blobs": ids });
    if let Some(timeout_ms) = timeout_ms {
        params["timeout_ms"] = timeout_ms.into();
    }
    call(app, "execute_skill", params).await
}

/// Every skill that the gateway would list.
///
/// # Errors
/// [`AppError`] when a plugin does not start or the store fails.
pub fn list_skills(config: &Config) -> Result<Vec<Value>, AppError> {
    telemetry::start(&config.log).map_err(AppError::Log)?;
    runtime(config)?.block_on(async {
        let app = App::build(config).await?;
        let mut skills = Vec::new();
        let mut cursor = Value::Null;
        loop {
            let mut page = call(
                &app,
                "list_skills",
                json!({ "limit": 1000, "detail": "summary", "cursor": cursor }),
            )
            .await?;
            if let Some(list) = page["skills"].as_array_mut() {
                skills.append(list);
            }
            cursor = page["next_cursor"].take();
            if cursor.is_null() {
                break;
            }
        }
        app.shutdown().await;
        Ok(skills)
    })
}

/// One call of the command line, through the same layers as any other.
async fn call(app: &App, method: &str, params: Value) -> Result<Value, AppError> {
    let refused = |error: ErrorObject| AppError::Call(Box::new(error));
    let params = Params::from_text(params.to_string().into_bytes().into()).map_err(refused)?;
    let call = Call {
        caller: app.parts.authenticator.local(),
        method: method.to_owned(),
        id: String::new(),
        params,
        request_id: RequestId::new(),
    };
    let answer = stack::calls(&app.parts)
        .oneshot(call)
        .await
        .map_err(|error| refused(error.into()))?;
    serde_json::from_str(answer.get()).map_err(|_| refused(ErrorObject::internal()))
}

/// What this host can and cannot enforce.
#[derive(Debug, Serialize)]
pub struct DoctorReport {
    /// Layer by layer: `{layer, state, detail, advice}`.
    pub layers: Vec<Value>,
    /// Each plugin: `{role, id, version, file, state, message}`.
    pub plugins: Vec<Value>,
    /// The gateway would start, with every layer that the configuration does not excuse.
    pub ok: bool,
}

/// Asks the plugins what they can do on this host, without serving anything.
///
/// # Errors
/// [`AppError`] when a plugin's file is refused.
pub fn doctor(config: &Config) -> Result<DoctorReport, AppError> {
    telemetry::start(&config.log).map_err(AppError::Log)?;
    runtime(config)?.block_on(async {
        // Its own state: a gateway that runs beside keeps its own.
        let scratch =
            tempfile::tempdir().map_err(AppError::io("cannot make a temporary directory"))?;
        let state = State {
            root: scratch.path().to_owned(),
        };
        let mut report = DoctorReport {
            layers: Vec::new(),
            plugins: Vec::new(),
            ok: true,
        };

        let plugin = load(&config.plugins.sandbox)?;
        match sandbox(&plugin, &state, &config.plugins.sandbox.config).await {
            Ok(instance) => {
                let health = instance.health().await;
                report.add("sandbox", &plugin, health);
                drop(instance.shutdown().await);
            }
            Err(AppError::Create { error, .. }) => report.add("sandbox", &plugin, Err(error)),
            Err(other) => return Err(other),
        }
        let plugin = load(&config.plugins.storage)?;
        let store = json!({ "root": scratch.path().join("store") });
        let bundled = config.plugins.storage.source == PluginSource::Name("storage-fs".into());
        match storage(
            &plugin,
            "store",
            &state,
            if bundled {
                store
            } else {
                config.plugins.storage.config.clone()
            },
        )
        .await
        {
            Ok(instance) => {
                let health = instance.health().await;
                report.add("storage", &plugin, health);
                drop(instance.shutdown().await);
            }
            Err(AppError::Create { error, .. }) => report.add("storage", &plugin, Err(error)),
            Err(other) => return Err(other),
        }
        Ok(report)
    })
}

impl DoctorReport {
    fn add(&mut self, role: &str, plugin: &Plugin, health: model::Result<Health>) {
        let (state, message, layers) = match health {
            Ok(health) => (health.state, health.message, health.report_json),
            Err(error) => (
                skillgate_plugin_sdk::abi::HEALTH_DOWN,
                error.message,
                error.detail_json,
            ),
        };
        let state = match state {
            skillgate_plugin_sdk::abi::HEALTH_OK => "ok",
            skillgate_plugin_sdk::abi::HEALTH_DEGRADED => "degraded",
            _ => "refuses",
        };
        self.ok &= state != "refuses";
        if let Ok(Value::Array(layers)) = serde_json::from_str(&layers) {
            self.layers.extend(layers);
        }
        let info = plugin.info();
        self.plugins.push(json!({ "role": role, "id": info.id, "version": info.version, "state": state, "message": message }));
    }
}

//! The wiring: the only file that knows all parts. Decides nothing.

mod commands;
mod plugins;

use std::fmt;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use skillgate_plugin_host::{LoadError, Pin, Plugin, SandboxInstance, StorageInstance};
use skillgate_plugin_sdk::model;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::auth::{self, Authenticator};
use crate::blobs::Blobs;
use crate::catalog::{self, Catalog};
use crate::config::{Config, ConfigErrors, OnDisconnect};
use crate::door::DoorLayer;
use crate::faces::{PATHS, Readiness};
use crate::methods::Rooms;
use crate::policy::Policy;
use crate::rpc::{self, ErrorObject};
use crate::runs::{self, Runs};
use crate::server::{self, serve as serve_connections};
use crate::stack::{self, Parts};
use crate::telemetry;

pub use commands::{DoctorReport, doctor, list_skills, run_skill_dir};
use plugins::{State, bundled_plugin, load, sandbox, storage};

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
    /// What a file that the configuration names has in it is wrong.
    Config(ConfigErrors),
}

impl AppError {
    /// The program's exit code (contract, section 1).
    pub fn exit_code(&self) -> u8 {
        match self {
            AppError::Call(_) => 1,
            AppError::Log(_) | AppError::NoSuchPlugin { .. } | AppError::Config(_) => 3,
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
            AppError::Config(errors) => errors.fmt(f),
        }
    }
}

impl std::error::Error for AppError {}

impl From<ConfigErrors> for AppError {
    fn from(errors: ConfigErrors) -> Self {
        AppError::Config(errors)
    }
}

impl From<LoadError> for AppError {
    fn from(error: LoadError) -> Self {
        AppError::Load(error)
    }
}

/// How long a plugin may take to end; what it has acknowledged is durable already.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

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
            let ended = async {
                match instance {
                    Instance::Sandbox(sandbox) => sandbox.shutdown().await,
                    Instance::Storage(store) => store.shutdown().await,
                }
            };
            match tokio::time::timeout(SHUTDOWN_TIMEOUT, ended).await {
                Ok(outcome) => let_go(outcome),
                Err(_) => tracing::warn!("a plugin did not end in time"),
            }
        }
    }
}

/// Says in the log when a plugin did not end well: there is nobody left to answer for it.
fn let_go(outcome: model::Result<()>) {
    if let Err(error) = outcome {
        tracing::warn!(
            code = error.code,
            reason = error.message,
            "a plugin did not end well"
        );
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
        // Only the listener asks for tokens; commands need no issuer to answer.
        let authenticator = Authenticator::new(auth::prepare(config, auth::Clock::system()).await?);
        let mut app = App::build(config).await?;
        app.parts.authenticator = authenticator;
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

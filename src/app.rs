//! The wiring: the only file that knows all parts. Decides nothing.

mod commands;
mod dumps;
mod files;
mod hold;
mod operator;
mod plugins;
mod pulse;
mod reload;
mod sections;
mod signals;
mod silent;
mod slow;
mod swap;
mod unkept;

use std::fmt;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use skillgate_plugin_host::{ExitGuard, LoadError, STORE_THREADS_MAX, StorageInstance};
use skillgate_plugin_sdk::model;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

use crate::admin;
use crate::audit::{self, Audit};
use crate::auth::{self, Authenticator};
use crate::blobs::Blobs;
use crate::catalog::{self, Catalog};
use crate::config::{Config, ConfigErrors, OnDisconnect, PolicyMode};
use crate::door::DoorLayer;
use crate::faces::{PATHS, Readiness};
use crate::gate::{self, Gate, SystemResolver};
use crate::limit::{Limits, SinceStart};
use crate::methods::Rooms;
use crate::policy::{self, Policy};
use crate::reload::{Read, Source};
use crate::rpc::{self, ErrorObject};
use crate::runs::{self, Runs};
use crate::secrets::{self, Secrets};
use crate::server::{self, serve as serve_connections};
use crate::stack::{self, Parts};
use crate::telemetry;

pub use commands::{DoctorReport, FileBlob, doctor, list_skills, run_skill_dir};
pub use dumps::leave_no_dump;
pub use files::allow_all_files;
use operator::{CountedConnections, Operator, decisions, health, issuers, sources};
pub(crate) use plugins::PLUGIN_HOST;
use plugins::{StateDir, of_shelf, sandbox_name, storage};
use pulse::Pulse;
pub use sections::section_problems;
pub(crate) use signals::EndSignals;
use swap::Plugins;

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
    /// A bundled plugin is not of the program's version.
    OtherVersion {
        /// The plugin's file.
        file: PathBuf,
        /// The plugin's.
        version: String,
    },
    /// A plugin refused to make an instance.
    Create {
        /// What for.
        which: &'static str,
        /// Why.
        error: model::Error,
    },
    /// Another program has instances of plugins under the same names.
    InUse {
        /// Where they keep what is theirs.
        state_dir: PathBuf,
        /// The number of its process, where that is known.
        holder: Option<u32>,
    },
    /// Secrets could not be read.
    Secrets(secrets::Refused),
    /// The audit log could not be opened.
    Audit(audit::OpenError),
    /// Something of the system failed.
    Io {
        /// What was being done.
        what: String,
        /// How it failed.
        error: std::io::Error,
    },
    /// The policy was refused.
    Policy(String),
    /// The log could not be started.
    Log(String),
    /// A call of the command line was refused.
    Call(Box<ErrorObject>),
    /// What a file that the configuration names has in it is wrong.
    Config(ConfigErrors),
    /// A signal has ended it.
    Ended {
        /// As a shell says it.
        exit_code: u8,
    },
}

impl AppError {
    /// The program's exit code (contract, section 1).
    pub fn exit_code(&self) -> u8 {
        match self {
            AppError::Call(_) => 1,
            AppError::Ended { exit_code } => *exit_code,
            AppError::Log(_)
            | AppError::Config(_)
            | AppError::Policy(_)
            | AppError::Secrets(_)
            | AppError::NoSuchPlugin { .. }
            | AppError::OtherVersion { .. } => 3,
            AppError::Load(_)
            | AppError::Create { .. }
            | AppError::InUse { .. }
            | AppError::Audit(_)
            | AppError::Io { .. } => 4,
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
                    .try_for_each(|path| write!(f, " {}", path.display()))?;
                write!(
                    f,
                    "; `cargo install` does not bring it: put it beside the program's directory, in lib/skillgate (OPERATING.md, Installation)"
                )
            }
            AppError::OtherVersion { file, version } => {
                let (file, ours) = (file.display(), env!("CARGO_PKG_VERSION"));
                write!(
                    f,
                    "{file} is of version {version:?}, and the program of version {ours:?}, as half an upgrade leaves them: install both, the program and its plugins (OPERATING.md, Installation)"
                )
            }
            AppError::Create { which, error } => {
                write!(f, "the {which} plugin refused to start: {}", error.message)
            }
            AppError::InUse { state_dir, holder } => {
                let dir = state_dir.display();
                write!(
                    f,
                    "{dir} (plugins.state_dir) is in use by another skillgate"
                )?;
                if let Some(holder) = holder {
                    write!(f, " (process {holder})")?;
                }
                f.write_str(": stop it, or give this one another")
            }
            AppError::Secrets(error) => error.fmt(f),
            AppError::Audit(error) => error.fmt(f),
            AppError::Io { what, error } => write!(f, "{what}: {error}"),
            AppError::Policy(why) => write!(f, "the policy is refused (policy.path): {why}"),
            AppError::Log(why) => f.write_str(why),
            AppError::Call(error) => f.write_str(&error.message),
            AppError::Config(errors) => errors.fmt(f),
            AppError::Ended { .. } => f.write_str("ended by a signal"),
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

/// Everything, put together.
#[derive(Debug)]
struct App {
    parts: Parts,
    audit: Audit,
    plugins: Plugins,
    shelf: Arc<StorageInstance>,
}

impl App {
    /// `state` is held, and `audit` is where it records what it does.
    async fn build(config: &Config, state: StateDir, audit: Audit) -> Result<App, AppError> {
        // Before the plugins: a policy that is refused should be known before a sandbox is built.
        let policy = prepared_policy(config).await?;
        let shelf = shelf(config, &state).await?;
        let plugins = Plugins::start(config, state).await?;
        let (store, sandbox) = (plugins.storage(), plugins.sandbox());
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
        let metrics = operator::counted();
        let blobs = Blobs::new(store.clone(), config.blobs.max_bytes, config.blobs.ttl_s);
        let secrets = Secrets::new(Secrets::prepare(config).map_err(AppError::Secrets)?);
        let runs = Runs::new(
            sandbox.clone(),
            catalog.clone(),
            blobs.clone(),
            secrets,
            audit.clone(),
            Gate::new(
                gate::Settings::new(&config.gate),
                Arc::new(SystemResolver::default()),
                Arc::new(CountedConnections::new(audit.clone(), metrics.clone())),
            ),
            run_settings(config),
        )
        .watched_by(metrics.clone());
        let limits = Limits::new(Arc::new(SinceStart::default()));
        limits.install(Limits::prepare(config));
        let policy = Policy::new(
            policy,
            &policy::Sandbox {
                plugin: sandbox_name(config),
            },
            audit.clone(),
        )
        .watched_by(metrics.clone());
        let authenticator = Authenticator::off();
        issuers(&metrics, authenticator.clone());
        decisions(&metrics, policy.clone());
        let infos = plugins.infos();
        sources(&metrics, runs.load(), limits.clone(), audit.clone(), infos);
        let readiness = Readiness::new(
            audit.clone(),
            health(
                &metrics,
                &policy,
                authenticator.clone(),
                &store,
                &shelf,
                &sandbox,
                &config.runs,
            ),
        );
        let parts = Parts {
            rooms: Rooms {
                catalog,
                blobs,
                runs,
                answer_bytes_max: config.server.max_body_bytes,
            },
            authenticator: authenticator.clone(),
            policy,
            limits,
            rpc: rpc::Limits {
                body_bytes_max: config.server.max_body_bytes as usize,
                body_timeout: Duration::from_millis(config.server.body_timeout_ms),
                batch_max: config.server.max_batch,
                large_bodies_max: config.server.max_large_bodies,
            },
            transfers_max: config.blobs.max_transfers,
            door: DoorLayer::new(&config.server.allowed_hosts, "server.allowed_hosts"),
            readiness,
            metrics,
        };
        Ok(App {
            parts,
            audit,
            plugins,
            shelf,
        })
    }

    /// Lets go of the plugins, runs before stores, and waits until their threads and processes are gone.
    async fn shutdown(self) {
        let App {
            parts,
            audit,
            plugins,
            shelf,
        } = self;
        let gate = parts.rooms.runs.gate().clone();
        drop(parts);
        plugins.shutdown(shelf).await;
        // Last: a connection that was ended with its run is recorded too.
        gate.drain().await;
        audit.close().await;
    }
}

/// The operator's shelf, which is always the bundled plugin: a vendor's store need not know about directories.
async fn shelf(config: &Config, state: &StateDir) -> Result<Arc<StorageInstance>, AppError> {
    let builtin = state.directory("builtin")?;
    catalog::write_builtin(&builtin)
        .map_err(AppError::io(format!("cannot write {}", builtin.display())))?;
    let mut shelves = vec![builtin];
    shelves.extend(config.skills.paths.iter().cloned());
    let settings = json!({ "read_only_skills": shelves });
    storage(&of_shelf()?, "shelf", state, &settings).await
}

/// A thread may wait for the trial of a policy; the runtime's may not.
async fn prepared_policy(config: &Config) -> Result<policy::Prepared, AppError> {
    let config = config.clone();
    let prepared = tokio::task::spawn_blocking(move || policy::prepare(&config)).await;
    prepared
        .map_err(|_| AppError::Policy("the policy's trial ended early".into()))?
        .map_err(|error| AppError::Policy(error.to_string()))
}

fn run_settings(config: &Config) -> runs::Settings {
    let runs = &config.runs;
    runs::Settings {
        default_timeout_ms: runs.default_timeout_ms,
        timeout_ms_max: runs.max_timeout_ms,
        concurrent_max: runs.max_concurrent,
        tenant_concurrent_max: runs.max_concurrent_per_tenant,
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
        // One may be held up by a disk that hangs, as whoever writes a record is at first; the others still answer (`pulse`).
        .worker_threads(std::thread::available_parallelism().map_or(2, |n| n.get().max(2)))
        // A run keeps one thread of its plugin busy from beginning to end; the store, the shelf and the gateway's own work have
        // theirs beside them, so that no disk that hangs takes those of others.
        .max_blocking_threads(
            config.runs.max_concurrent + 2 * STORE_THREADS_MAX + OTHER_THREADS_MAX,
        )
        .build()
        .map_err(AppError::io("cannot start the runtime"))
}

/// How long the end of the gateway waits for a reload that goes on.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a start waits for who has `plugins.state_dir` and may be about to end: a `skill list`, or the gateway before.
const STATE_PATIENCE: Duration = Duration::from_secs(5);

/// Threads for what is neither a run nor a call of a store. What may hang there, the questions for names and the reads of what
/// stores have given, has fewer than these.
const OTHER_THREADS_MAX: usize = 64;

/// Runs the gateway until SIGTERM or SIGINT. `read` is how it reads its configuration, now and whenever it reloads.
///
/// # Errors
/// [`AppError`] when it cannot start.
pub fn serve(read: Read) -> Result<(), AppError> {
    // First of all: whoever asks for a reload during the start gets it after that, as does a change of what is read next.
    let hangup = hangup()?;
    let source = Source::new(read, reload::watched);
    let seen = source.read()?;
    let config = &seen.config;
    telemetry::start(&config.log).map_err(AppError::Log)?;
    let is_example =
        config.is_default("policy.path") && config.policy.path != Path::new("policies");
    if is_example && config.policy.mode != PolicyMode::Off {
        tracing::warn!(
            path = %config.policy.path.display(),
            "no policy.path, and no ./policies: the bundled rules, which are an example, are in force until the next start"
        );
    }
    // Until this returns nobody here calls exit() but for what a second signal does.
    let _exits = ExitGuard::set();
    let runtime = runtime(config)?;
    let _pulse = Pulse::of(runtime.handle()).map_err(AppError::io("cannot start a thread"))?;
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
        let operator = Operator::listen(config).await?;
        // Before the audit log: who has both is waited for and named, and nobody is told to begin a log of his own.
        let state = StateDir::new(config)?.held(STATE_PATIENCE).await?;
        let audit = Audit::open(&config.audit).map_err(AppError::Audit)?;
        // Only the listener asks for tokens; commands need no issuer to answer.
        let tokens = auth::prepare(config, auth::Clock::system()).await?;
        let mut app = App::build(config, state, audit).await?;
        app.parts.authenticator.install(tokens);
        app.plugins.sweep().await;
        // Before it says that it serves: from then on each of them has its meaning.
        let mut terminate =
            signal(SignalKind::terminate()).map_err(AppError::io("cannot wait for SIGTERM"))?;
        let mut interrupt =
            signal(SignalKind::interrupt()).map_err(AppError::io("cannot wait for SIGINT"))?;
        let settings = server::Settings {
            header_timeout: Duration::from_millis(config.server.header_timeout_ms),
            write_timeout: Duration::from_millis(config.server.write_timeout_ms),
            connections_max: files::connections(config.server.max_connections),
            drain_timeout: Duration::from_millis(config.server.drain_timeout_ms),
            leave_timeout: server::LEAVE_TIMEOUT,
        };
        if let Err(error) = announce(address, operator.address()) {
            tracing::warn!(
                %error, public = %format_args!("http://{address}"), operator = %format_args!("http://{}", operator.address()),
                "cannot write to stdout where it serves, and serves"
            );
        }

        let reload = reload::reload(seen.clone(), source, &mut app.parts, &app.plugins);
        let readiness = app.parts.readiness.clone();
        let stop = async move {
            tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
            readiness.draining();
            tracing::info!("stopping: a second signal ends at once");
            tokio::spawn(async move {
                tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
                tracing::warn!("second signal: ending without waiting");
                // The sandbox's launcher sees its socket close and ends what runs; nothing that was acknowledged is lost.
                telemetry::flush();
                ExitGuard::done();
                std::process::exit(130);
            });
        };
        let operator = operator.serve(&app.parts);
        tokio::spawn(app.parts.limits.clone().housekeeping());
        tokio::spawn(slow::watch(
            app.plugins.storage().downgrade(),
            Arc::downgrade(&app.shelf),
        ));
        tokio::spawn(app.parts.authenticator.clone().housekeeping());
        let interval = Duration::from_millis(config.server.reload_watch_ms);
        let (end, ends) = oneshot::channel::<()>();
        // With the sender.
        let ends = async { ends.await.unwrap_or(()) };
        let mut reloads = tokio::spawn(reload.follow(hangup, interval, ends));
        let (stack, metrics) = (stack::public(&app.parts), app.parts.metrics.clone());
        let left = serve_connections(listener, stack, settings, metrics, stop).await;
        // Those whose caller waits are answered in their connections; those whose caller has gone are in none. They end before
        // the plugins, which would wait for them.
        let ended = app.parts.rooms.runs.drain(left.until());
        tokio::join!(left.cut_off(server::WORDS_TIMEOUT), ended);
        drop(end);
        // It holds on to what ends next, and what a reload that goes on puts in place would never be ended.
        if tokio::time::timeout(RELOAD_TIMEOUT, &mut reloads)
            .await
            .is_err()
        {
            tracing::warn!("a reload goes on while the gateway ends: it is left to itself");
            reloads.abort();
        }
        app.shutdown().await;
        // Until the very end, for whoever watches it.
        operator.stop().await;
        tracing::info!("stopped");
        Ok(())
    });
    runtime.shutdown_timeout(Duration::from_secs(5));
    outcome
}

/// Hears of SIGHUP from now on, which by default would end the process. A runtime of its own asks for it, as the handler is the
/// process's: how large the one is that serves only the configuration says, which is read behind this.
fn hangup() -> Result<Signal, AppError> {
    let why = "cannot wait for SIGHUP";
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .map_err(AppError::io(why))?;
    let _here = runtime.enter();
    signal(SignalKind::hangup()).map_err(AppError::io(why))
}

fn announce(public: SocketAddr, operator: SocketAddr) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "skillgate {} serves", env!("CARGO_PKG_VERSION"))?;
    let of = |address, paths: &'static [_]| paths.iter().map(move |path| (address, path));
    // The operator's first: once the public ones are there, all are.
    for (address, (path, method, what)) in of(operator, &admin::PATHS).chain(of(public, &PATHS)) {
        let url = format!("http://{address}{path}");
        writeln!(out, "  {url:<44} {method:<5} {what}")?;
    }
    out.flush()
}

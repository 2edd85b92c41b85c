//! The operator's listener, and what it shows of the parts: their health, and the numbers that they keep themselves.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use skillgate_plugin_host::{SandboxInstance, StorageInstance};
use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::model::{self, Health as Said};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::AppError;
use crate::admin::{self, Admin};
use crate::audit::Audit;
use crate::config::Config;
use crate::door::DoorLayer;
use crate::limit::Limits;
use crate::runs::Load;
use crate::server;
use crate::stack::Parts;
use crate::telemetry::health::{Check, Health};
use crate::telemetry::metrics::Metrics;

/// How long what is being answered may take when the gateway ends.
const DRAIN: Duration = Duration::from_secs(1);

/// The listener, before there is anything to show.
pub(super) struct Operator {
    listener: TcpListener,
    address: SocketAddr,
    door: DoorLayer,
    settings: server::Settings,
}

/// The listener, serving.
pub(super) struct Serving {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Operator {
    pub(super) async fn listen(config: &Config) -> Result<Self, AppError> {
        let listen = config.admin.listen;
        let cannot = || AppError::io(format!("cannot listen on {listen} (admin.listen)"));
        let listener = TcpListener::bind(listen).await.map_err(cannot())?;
        Ok(Operator {
            address: listener.local_addr().map_err(cannot())?,
            listener,
            door: DoorLayer::new(&config.admin.allowed_hosts),
            settings: server::Settings {
                header_timeout: Duration::from_millis(config.server.header_timeout_ms),
                connections_max: admin::CONNECTIONS_MAX,
                drain_timeout: DRAIN,
            },
        })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn serve(self, parts: &Parts) -> Serving {
        let admin = Admin {
            readiness: parts.readiness.clone(),
            metrics: parts.metrics.clone(),
        };
        let (stop, stopped) = oneshot::channel();
        // It also ends when the sender is gone.
        let stopped = async { stopped.await.unwrap_or(()) };
        let stack = admin::stack(admin, self.door);
        let task = tokio::spawn(server::serve(self.listener, stack, self.settings, stopped));
        Serving { stop, task }
    }
}

impl Serving {
    pub(super) async fn stop(self) {
        drop(self.stop);
        if let Err(error) = self.task.await {
            tracing::warn!(%error, "the operator's listener did not end well");
        }
    }
}

/// The health of the plugins' instances. Holds on to none of them, so that they can end.
pub(super) fn health(
    storage: &Arc<StorageInstance>,
    shelf: &Arc<StorageInstance>,
    sandbox: &Arc<SandboxInstance>,
) -> Health {
    let store = |instance: &Arc<StorageInstance>| -> Check {
        let instance = Arc::downgrade(instance);
        Box::new(move || said(&instance, |it| async move { it.health().await }.boxed()))
    };
    let runs = Arc::downgrade(sandbox);
    Health::new(vec![
        ("storage", store(storage)),
        ("shelf", store(shelf)),
        (
            "sandbox",
            Box::new(move || said(&runs, |it| async move { it.health().await }.boxed())),
        ),
    ])
}

type Asked<T> = futures_util::future::BoxFuture<'static, T>;

fn said<I: Send + Sync + 'static>(
    instance: &Weak<I>,
    ask: impl FnOnce(Arc<I>) -> Asked<model::Result<Said>>,
) -> Asked<Result<String, String>> {
    let Some(instance) = instance.upgrade() else {
        return std::future::ready(Err("it has ended".to_owned())).boxed();
    };
    let asked = ask(instance);
    async move {
        let said = asked.await.map_err(|error| error.message)?;
        match said.state {
            abi::HEALTH_OK => Ok(said.message),
            abi::HEALTH_DEGRADED => Ok(format!("degraded: {}", said.message)),
            _ => Err(said.message),
        }
    }
    .boxed()
}

/// Lets the page of metrics ask those who keep numbers of their own.
pub(super) fn sources(
    metrics: &Metrics,
    load: Load,
    limits: Limits,
    audit: Audit,
    plugins: [(&'static str, String, String); 2],
) {
    metrics.add_source(move |page| {
        page.family(
            "skillgate_plugin_info",
            "gauge",
            "The plugins that are loaded.",
        );
        for (kind, name, version) in &plugins {
            let abi = format!("{}.{}", abi::ABI_MAJOR, abi::ABI_MINOR);
            page.sample(
                &[
                    ("name", name),
                    ("kind", kind),
                    ("version", version),
                    ("abi", &abi),
                ],
                1.0,
            );
        }
        let (running, waiting) = load.now();
        page.family("skillgate_runs_in_flight", "gauge", "Runs that go on.");
        page.sample(&[], running as f64);
        page.family(
            "skillgate_run_queue_depth",
            "gauge",
            "Runs that wait for a place.",
        );
        page.sample(&[], waiting as f64);

        let rules = limits.report();
        let mut by_rule = |name, kind, help, value: fn(&crate::limit::RuleReport) -> f64| {
            page.family(name, kind, help);
            for rule in &rules {
                page.sample(&[("rule", &rule.rule)], value(rule));
            }
        };
        by_rule(
            "skillgate_ratelimit_rejected_total",
            "counter",
            "Requests and calls that a rule has refused.",
            |rule| rule.refused as f64,
        );
        by_rule(
            "skillgate_ratelimit_keys",
            "gauge",
            "Keys that a rule counts apart.",
            |rule| rule.keys as f64,
        );
        by_rule(
            "skillgate_ratelimit_shared_total",
            "counter",
            "Calls that shared one count, since a rule had max_keys keys in use.",
            |rule| rule.shared as f64,
        );

        let audit = audit.health();
        for (name, help, value) in [
            (
                "skillgate_audit_records_total",
                "Records that were written.",
                audit.records,
            ),
            (
                "skillgate_audit_lost_total",
                "Records that could not be written while what they are about went on.",
                audit.lost,
            ),
            (
                "skillgate_audit_refused_total",
                "Calls that were refused because they could not be recorded.",
                audit.refused,
            ),
            (
                "skillgate_audit_failures_total",
                "Writes of the audit log that failed.",
                audit.failures,
            ),
        ] {
            page.family(name, "counter", help);
            page.sample(&[], value as f64);
        }
    });
}

//! The operator's listener, and what it shows of the parts: their health, and the numbers that they keep themselves.

mod said;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use skillgate_plugin_host::{
    CallCounts, Counted as _, Current, SANDBOX_CALLS, STORAGE_CALLS, SandboxInstance,
    StorageInstance, WeakCurrent,
};
use skillgate_plugin_sdk::abi;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use self::said::{Asker, Numbers, address};
use super::AppError;
use super::silent::heard;
use super::unkept::{unkept, with};
use crate::admin::{self, Admin};
use crate::audit::Audit;
use crate::auth::{self, Authenticator, IssuerState};
use crate::config::{Config, Runs};
use crate::door::DoorLayer;
use crate::gate::{Ledger, Record, Verdict};
use crate::limit::Limits;
use crate::methods;
use crate::policy::Policy;
use crate::runs::Load;
use crate::server;
use crate::stack::Parts;
use crate::telemetry::health::{Check, Health, State};
use crate::telemetry::lost_lines;
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
            door: DoorLayer::new(&config.admin.allowed_hosts, "admin.allowed_hosts"),
            settings: server::Settings {
                header_timeout: Duration::from_millis(config.server.header_timeout_ms),
                write_timeout: Duration::from_millis(config.server.write_timeout_ms),
                connections_max: admin::CONNECTIONS_MAX,
                drain_timeout: DRAIN,
                // It goes when all else has gone.
                leave_timeout: Duration::ZERO,
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
        // Of what is asked here nothing is counted.
        let uncounted = Metrics::default();
        let serving = server::serve(self.listener, stack, self.settings, uncounted, stopped);
        let task = tokio::spawn(async move {
            serving.await.cut_off(Duration::ZERO).await;
        });
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

/// The health of issuers' keys and of the plugins' instances, and the numbers that they say with it. Holds on to none of the instances, so
/// that they can end.
pub(super) fn health(
    metrics: &Metrics,
    policy: &Policy,
    authenticator: Authenticator,
    storage: &Current<StorageInstance>,
    shelf: &Arc<StorageInstance>,
    sandbox: &Current<SandboxInstance>,
    promised: &Runs,
) -> Health {
    let numbers = Numbers::default();
    let (of_shelf, instance) = (numbers.clone(), Arc::downgrade(shelf));
    let asker = Asker::default();
    let shelved: Check = Arc::new(move || match instance.upgrade() {
        Some(instance) => {
            let asked = asker.ask(address(&instance), async move { instance.health().await });
            of_shelf.clone().said("shelf", asked).boxed()
        }
        None => std::future::ready(ended()).boxed(),
    });
    let (of_store, current) = (numbers.clone(), storage.downgrade());
    let asker = Asker::default();
    let stores: Check = Arc::new(move || match in_force(&current) {
        Ok(instance) => {
            let asked = asker.ask(address(&instance), async move { instance.health().await });
            of_store.clone().said("storage", asked).boxed()
        }
        Err(state) => {
            of_store.forget("storage");
            std::future::ready(state).boxed()
        }
    });
    let (of_runs, current) = (numbers.clone(), sandbox.downgrade());
    let asker = Asker::default();
    let promised = promised.clone();
    let runs: Check = Arc::new(move || match in_force(&current) {
        Ok(instance) => {
            let unkept = unkept(instance.caps(), &promised);
            let asked = asker.ask(address(&instance), async move {
                let health = instance.health().await;
                heard(health).map(|health| with(health, &unkept))
            });
            of_runs.clone().said("sandbox", asked).boxed()
        }
        Err(state) => {
            of_runs.forget("sandbox");
            std::future::ready(state).boxed()
        }
    });
    let policy = policy.clone();
    let decides: Check = Arc::new(move || std::future::ready(rules(&policy)).boxed());
    let keys: Check = Arc::new(move || std::future::ready(of_issuers(&authenticator)).boxed());
    let checks = vec![
        ("policy", decides),
        ("issuers", keys),
        ("storage", stores),
        ("shelf", shelved),
        ("sandbox", runs),
    ];
    metrics.add_source(move |page| numbers.write(page));
    let (of_shelf, storage, sandbox) = (
        Arc::downgrade(shelf),
        storage.downgrade(),
        sandbox.downgrade(),
    );
    calls(metrics, move || {
        [
            ("storage", storage.upgrade().map(|it| it.counts())),
            ("shelf", of_shelf.upgrade().map(|it| it.counts())),
            ("sandbox", sandbox.upgrade().map(|it| it.counts())),
        ]
    });
    Health::new(checks)
}

/// What decides.
fn rules(policy: &Policy) -> State {
    let status = policy.status();
    let (mode, revision, age_s) = (status.mode, status.revision, status.age_s);
    let text = match revision.is_empty() {
        true => mode.to_owned(),
        false => format!("{mode}, revision {revision} for {age_s} s"),
    };
    let mut wrong = String::new();
    if status.engine_mismatches > 0 {
        let many = status.engine_mismatches;
        wrong += &format!("; the two engines disagreed on {many} calls");
    }
    if let Some(why) = status.unkept {
        wrong += &format!(
            "; the sequence is not on the disk, and a restart would take an older bundle: {why}"
        );
    }
    match wrong.is_empty() {
        true => State::Well(text),
        false => State::Impaired(text + &wrong),
    }
}

fn of_issuers(authenticator: &Authenticator) -> State {
    if !authenticator.tells_time() {
        let why = "this machine's clock is not set: no token is taken before it is";
        return State::Failed(why.into());
    }
    of_keys(&authenticator.issuers())
}

/// Without the keys of any issuer no token can be taken.
fn of_keys(issuers: &[IssuerState]) -> State {
    let names = |is: fn(&IssuerState) -> bool| -> Vec<&str> {
        let those = issuers.iter().filter(|issuer| is(issuer));
        those.map(|issuer| issuer.issuer.as_str()).collect()
    };
    let without = names(|issuer| issuer.keys == 0);
    // Some time before they are too old to be used.
    let failing = names(|issuer| issuer.keys > 0 && issuer.failing);
    let mut said = Vec::new();
    match (issuers.len(), without.len()) {
        (0, _) => return State::Well("auth.mode is off".into()),
        (all, none) if all == none => {
            return State::Failed("no issuer has given keys that can be used".into());
        }
        (all, 0) if failing.is_empty() => return State::Well(format!("keys of {all}")),
        (_, 0) => {}
        _ => said.push(format!("no keys of {}", without.join(", "))),
    }
    if !failing.is_empty() {
        said.push(format!(
            "those of {} cannot be fetched again, and are used until auth.jwks_max_stale_s",
            failing.join(", ")
        ));
    }
    State::Impaired(said.join("; "))
}

/// The instance that calls go to, or why there is none.
fn in_force<I>(current: &WeakCurrent<I>) -> Result<Arc<I>, State> {
    let current = current.upgrade().ok_or_else(ended)?;
    current.peek().ok_or_else(|| match current.gone() {
        Some(why) => State::Failed(why),
        None => State::Impaired("it is being exchanged: calls wait".into()),
    })
}

fn ended() -> State {
    State::Failed("it has ended".into())
}

/// What the gateway counts, before anything has happened.
pub(super) fn counted() -> Metrics {
    let metrics = Metrics::new(methods::names());
    metrics.begin_auth_failures(auth::failures());
    metrics
}

/// Outcomes of a plugin's call that are for the operator to look at: they are shown before there are any.
const WATCHED: [&str; 4] = ["corrupt", "crashed", "panic", "protocol"];

/// Keeps the records of runs' connections in the audit log, and counts them.
#[derive(Debug)]
pub(super) struct CountedConnections {
    audit: Audit,
    metrics: Metrics,
}

impl CountedConnections {
    pub(super) fn new(audit: Audit, metrics: Metrics) -> Self {
        CountedConnections { audit, metrics }
    }
}

impl Ledger for CountedConnections {
    fn keep(&self, record: Record) {
        self.audit.keep(record);
    }

    fn count(&self, record: &Record) {
        let verdict = match record.verdict {
            Verdict::Allowed => "allowed",
            Verdict::Refused => "refused",
        };
        let (up, down) = (record.bytes_up, record.bytes_down);
        self.metrics
            .connection_ended(verdict, record.reason, record.scheme, up, down);
    }

    fn can_keep(&self) -> bool {
        self.audit.can_keep()
    }
}

/// The calls of the plugins' instances, those of exchanged ones with them. `None`: it has ended with the gateway.
fn calls(
    metrics: &Metrics,
    instances: impl Fn() -> [(&'static str, Option<CallCounts>); 3] + Send + Sync + 'static,
) {
    metrics.add_source(move |page| {
        page.family(
            "skillgate_plugin_calls_total",
            "counter",
            "Calls of a plugin that have ended, by call and by how (ok, or the kind of its error).",
        );
        let instances = instances();
        for (plugin, counts) in &instances {
            let Some(counts) = counts else { continue };
            let ops: &[&str] = match *plugin {
                "sandbox" => SANDBOX_CALLS,
                _ => STORAGE_CALLS,
            };
            let zeros = ops.iter().flat_map(|op| WATCHED.map(|how| ((*op, how), 0)));
            let mut shown: BTreeMap<_, _> = zeros.collect();
            shown.extend(counts.all().into_iter().map(|(op, how, n)| ((op, how), n)));
            for ((op, outcome), count) in shown {
                let labels = [("plugin", *plugin), ("op", op), ("outcome", outcome)];
                page.sample(&labels, count as f64);
            }
        }
        page.family(
            "skillgate_plugin_calls_in_flight",
            "gauge",
            "Calls of a plugin that have not ended, those included that wait for a thread.",
        );
        for (plugin, counts) in &instances {
            if let Some(counts) = counts {
                page.sample(&[("plugin", plugin)], counts.in_flight() as f64);
            }
        }
    });
}

/// Lets the page of metrics ask those who keep numbers of their own.
pub(super) fn sources(
    metrics: &Metrics,
    load: Load,
    limits: Limits,
    audit: Audit,
    plugins: impl Fn() -> Vec<(&'static str, String, String)> + Send + Sync + 'static,
) {
    metrics.add_source(move |page| {
        page.family(
            "skillgate_plugin_info",
            "gauge",
            "The plugins that are loaded.",
        );
        for (kind, name, version) in &plugins() {
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
            "Calls that shared one count, since a rule had max_keys keys in use, also those that were refused.",
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
            (
                "skillgate_audit_rotations_total",
                "Files of the audit log that were full and were given a name of their own.",
                audit.rotations,
            ),
        ] {
            page.family(name, "counter", help);
            page.sample(&[], value as f64);
        }
        page.family(
            "skillgate_log_lost_lines_total",
            "counter",
            "Lines of the log that were dropped, since nobody took what was written to stderr, or that could not be written.",
        );
        page.sample(&[], lost_lines() as f64);
    });
}

/// The same for the rules that decide.
pub(super) fn decisions(metrics: &Metrics, policy: Policy) {
    metrics.add_source(move |page| {
        let status = policy.status();
        page.family(
            "skillgate_policy_info",
            "gauge",
            "The rules that are in force.",
        );
        page.sample(
            &[
                ("mode", status.mode),
                ("revision", &status.revision),
                ("sha256", &status.sha256),
            ],
            1.0,
        );
        page.family(
            "skillgate_policy_age_seconds",
            "gauge",
            "Since these rules were put in force.",
        );
        page.sample(&[], status.age_s as f64);
        page.family(
            "skillgate_policy_engine_mismatches_total",
            "counter",
            "Allowed calls on which the interpreter came to another decision, or to none.",
        );
        page.sample(&[], status.engine_mismatches_total as f64);
        page.family(
            "skillgate_policy_unconfirmed_total",
            "counter",
            "Samples that were not decided again because too many waited.",
        );
        page.sample(&[], status.unconfirmed as f64);
    });
}

/// The same for the keys of issuers.
pub(super) fn issuers(metrics: &Metrics, authenticator: Authenticator) {
    metrics.add_source(move |page| {
        let states = authenticator.issuers();
        page.family(
            "skillgate_jwks_keys",
            "gauge",
            "Keys of an issuer that can be used.",
        );
        for state in &states {
            page.sample(&[("issuer", &state.issuer)], state.keys as f64);
        }
        page.family(
            "skillgate_jwks_age_seconds",
            "gauge",
            "Since the keys of an issuer were fetched.",
        );
        for state in &states {
            if let Some(age) = state.age {
                page.sample(&[("issuer", &state.issuer)], age.as_secs_f64());
            }
        }
        page.family(
            "skillgate_jwks_refresh_total",
            "counter",
            "Fetches of the keys of an issuer.",
        );
        for state in &states {
            let (good, failed) = state.fetches.unwrap_or_default();
            for (outcome, count) in [("ok", good), ("failed", failed)] {
                if state.fetches.is_some() {
                    let labels = [("issuer", state.issuer.as_str()), ("outcome", outcome)];
                    page.sample(&labels, count as f64);
                }
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::{CallCounts, IssuerState, State, calls, counted, of_keys};

    #[test]
    fn an_issuer_that_does_not_answer_is_shown_while_its_keys_are_good() {
        let issuer = |name: &str, keys, failing| IssuerState {
            issuer: name.into(),
            keys,
            age: None,
            failing,
            fetches: None,
        };
        let well = || issuer("a", 2, false);
        assert_eq!(of_keys(&[]), State::Well("auth.mode is off".into()));
        assert_eq!(of_keys(&[well()]), State::Well("keys of 1".into()));
        let text = |issuers: &[IssuerState]| match of_keys(issuers) {
            State::Impaired(text) => text,
            other => panic!("{other:?}"),
        };
        let old = "those of b cannot be fetched again, and are used until auth.jwks_max_stale_s";
        assert_eq!(text(&[well(), issuer("b", 1, true)]), old);
        assert_eq!(text(&[well(), issuer("c", 0, true)]), "no keys of c");
        let all = [well(), issuer("b", 1, true), issuer("c", 0, false)];
        assert_eq!(text(&all), format!("no keys of c; {old}"));
        let none = of_keys(&[issuer("b", 0, true), issuer("c", 0, true)]);
        assert!(matches!(none, State::Failed(_)), "{none:?}");
    }

    /// The first event of a series that begins with it increases nothing.
    #[test]
    fn what_alarms_look_at_is_shown_before_anything_has_happened() {
        let metrics = counted();
        let none = || Some(CallCounts::default());
        let parts = ["storage", "shelf", "sandbox"];
        calls(&metrics, move || parts.map(|part| (part, none())));
        let page = metrics.page().into_text();
        let shown = |name: &str, label: &str| {
            let mut lines = page.lines().filter(|line| line.starts_with(name));
            assert!(lines.any(|line| line.contains(label)), "{name} {label}");
        };
        let manual = include_str!("../../OPERATING.md");
        let (_, alarms) = manual.split_once("Alarms that are worth having:").unwrap();
        let (alarms, _) = alarms.split_once("not HTTP codes").unwrap();
        let mut found = 0;
        for series in alarms.split('`').skip(1).step_by(2) {
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            if page.contains(&format!("# TYPE {name} counter\n")) {
                labels
                    .trim_end_matches('}')
                    .split(',')
                    .for_each(|label| shown(name, label));
                found += 1;
            }
        }
        assert_eq!(found, 4, "{alarms}");
        let (_, outcomes) = alarms.split_once("with an outcome ").unwrap();
        let (outcomes, _) = outcomes.split_once('|').unwrap();
        for outcome in outcomes.split('`').skip(1).step_by(2) {
            for part in parts {
                let call = format!("skillgate_plugin_calls_total{{plugin=\"{part}\",op=\"health\"");
                shown(&call, &format!("outcome=\"{outcome}\""));
            }
        }
        for reason in crate::auth::failures() {
            shown("skillgate_auth_failures_total", &format!("\"{reason}\""));
        }
        for kind in ["skill", "code"] {
            let runs = format!("skillgate_runs_total{{kind=\"{kind}\"");
            shown(&runs, "status=\"not_started\"");
            shown(&runs, "error_type=\"WorkerLost\"");
        }
    }
}

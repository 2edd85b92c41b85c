//! Counters, gauges and histograms in the text format of Prometheus (exposition format 0.0.4).
//!
//! A registry of our own, since all that it needs is below and its types hold the one rule that matters: a label of
//! what is counted in the request path is a `&'static str`, so a word of the program and never one of a caller. What a
//! caller names is mapped to a known word or to `other`. Values that are kept elsewhere anyway (queues, rules,
//! plugins) are asked for when the page is made.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

/// Bounds of what takes microseconds to seconds, in seconds.
const CALL_SECONDS: &[f64] = &[
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0,
];
/// Bounds of what takes milliseconds to minutes.
const RUN_SECONDS: &[f64] = &[
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0,
];
/// Bounds of a policy's decision.
const DECISION_SECONDS: &[f64] = &[
    0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05,
];

/// `error_type` of a failed run: the gateway's own and the most common classes of Python. Any other is the code's to
/// choose, so it is `other`.
const ERROR_TYPES: [&str; 21] = [
    "Timeout",
    "OutOfMemory",
    "TooManyProcesses",
    "DiskFull",
    "OutputNotSerializable",
    "EntrypointNotFound",
    "Cancelled",
    "SandboxError",
    "WorkerLost",
    "SyntaxError",
    "ImportError",
    "ModuleNotFoundError",
    "ValueError",
    "TypeError",
    "KeyError",
    "IndexError",
    "AttributeError",
    "NameError",
    "RuntimeError",
    "FileNotFoundError",
    "PermissionError",
];

/// `status` of a run of which nothing was executed.
pub const NOT_STARTED: &str = "not_started";

/// A word that is not known beforehand.
const OTHER: &str = "other";

/// What the gateway counts. Cheap to clone.
#[derive(Clone, Default)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    methods: Vec<&'static str>,
    http_requests: Family<2, Count>,
    rpc_requests: Family<3, Count>,
    rpc_duration: Family<1, Histogram>,
    runs: Family<3, Count>,
    run_duration: Family<0, Histogram>,
    run_queue_duration: Family<0, Histogram>,
    policy_decisions: Family<3, Count>,
    policy_duration: Family<0, Histogram>,
    auth_failures: Family<1, Count>,
    gate_connections: Family<3, Count>,
    gate_bytes: Family<1, Count>,
    sources: RwLock<Vec<Source>>,
}

type Source = Box<dyn Fn(&mut Page) + Send + Sync>;

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Default for Inner {
    fn default() -> Self {
        Inner {
            methods: Vec::new(),
            http_requests: Family::new(
                "skillgate_http_requests_total",
                "HTTP requests by path and status; what was refused before it had a path has the path other, what ended without an answer, as when its client had gone, the code 499.",
                ["route", "code"],
            ),
            rpc_requests: Family::new(
                "skillgate_rpc_requests_total",
                "Calls by method and outcome (ok, error, no_answer when the client had gone); kind is error.data.kind. A run that fails is an outcome ok: see skillgate_runs_total.",
                ["method", "outcome", "kind"],
            ),
            rpc_duration: Family::with(
                "skillgate_rpc_duration_seconds",
                "Time from a call to its answer, or to its end without one.",
                ["method"],
                CALL_SECONDS,
            ),
            runs: Family::new(
                "skillgate_runs_total",
                "Runs that have ended, by kind (skill, code), status (completed, failed, cancelled, not_started) and type of error.",
                ["kind", "status", "error_type"],
            ),
            run_duration: Family::with(
                "skillgate_run_duration_seconds",
                "Time of runs, without their time in the queue.",
                [],
                RUN_SECONDS,
            ),
            run_queue_duration: Family::with(
                "skillgate_run_queue_seconds",
                "Time that runs have waited for a place, also those that left before they had one.",
                [],
                RUN_SECONDS,
            ),
            policy_decisions: Family::new(
                "skillgate_policy_decisions_total",
                "Decisions by method, decision and mode.",
                ["action", "decision", "mode"],
            ),
            policy_duration: Family::with(
                "skillgate_policy_eval_seconds",
                "Time of decisions.",
                [],
                DECISION_SECONDS,
            ),
            auth_failures: Family::new(
                "skillgate_auth_failures_total",
                "Requests without a token that holds, by reason.",
                ["reason"],
            ),
            gate_connections: Family::new(
                "skillgate_gate_connections_total",
                "Connections of runs that have ended, by verdict, reason and scheme.",
                ["verdict", "reason", "scheme"],
            ),
            gate_bytes: Family::new(
                "skillgate_gate_bytes_total",
                "Bytes of those connections, by direction (up: from the run).",
                ["direction"],
            ),
            sources: RwLock::default(),
        }
    }
}

impl Metrics {
    /// Which words of callers are methods.
    pub fn new(methods: impl IntoIterator<Item = &'static str>) -> Self {
        let inner = Inner {
            methods: methods.into_iter().collect(),
            ..Inner::default()
        };
        for kind in ["skill", "code"] {
            inner.runs.begin([kind, NOT_STARTED, ""]);
            for error in ERROR_TYPES.into_iter().chain([OTHER]) {
                inner.runs.begin([kind, "failed", error]);
            }
        }
        Metrics(Arc::new(inner))
    }

    /// The words that [`Metrics::auth_failed`] is told.
    pub fn begin_auth_failures(&self, reasons: impl IntoIterator<Item = &'static str>) {
        for reason in reasons {
            self.0.auth_failures.begin([reason]);
        }
    }

    /// Adds what is asked for its values when the page is made.
    pub fn add_source(&self, source: impl Fn(&mut Page) + Send + Sync + 'static) {
        let mut sources = self
            .0
            .sources
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        sources.push(Box::new(source));
    }

    /// An HTTP request was answered.
    pub fn http_request(&self, route: &'static str, status: u16) {
        self.0
            .http_requests
            .at([route, status_word(status)], Count::add);
    }

    /// A call was answered; `kind` is that of its error.
    pub fn rpc_request(&self, method: &str, kind: Option<&'static str>, took: Duration) {
        let method = word(&self.0.methods, method);
        let outcome = if kind.is_none() { "ok" } else { "error" };
        self.0
            .rpc_requests
            .at([method, outcome, kind.unwrap_or("")], Count::add);
        self.0.rpc_duration.at([method], |times| times.add(took));
    }

    /// A call ended without an answer: its client had gone.
    pub fn rpc_unanswered(&self, method: &str, took: Duration) {
        let method = word(&self.0.methods, method);
        self.0
            .rpc_requests
            .at([method, "no_answer", ""], Count::add);
        self.0.rpc_duration.at([method], |times| times.add(took));
    }

    /// What arrived was not a call.
    pub fn rpc_refused(&self, kind: &'static str) {
        self.0.rpc_requests.at(["", "error", kind], Count::add);
    }

    /// A run ended.
    pub fn run_ended(
        &self,
        kind: &'static str,
        status: &'static str,
        error: Option<&str>,
        took: Duration,
    ) {
        let error = error.map_or("", |error| word(&ERROR_TYPES, error));
        self.0.runs.at([kind, status, error], Count::add);
        // One that was not started took no time: it would make all of them look quicker.
        if status != NOT_STARTED {
            self.0.run_duration.at([], |times| times.add(took));
        }
    }

    /// A run has its place, or waits for none any more.
    pub fn run_waited(&self, took: Duration) {
        self.0.run_queue_duration.at([], |times| times.add(took));
    }

    /// A call was decided about.
    pub fn policy_decided(
        &self,
        action: &'static str,
        decision: &'static str,
        mode: &'static str,
        took: Duration,
    ) {
        self.0
            .policy_decisions
            .at([action, decision, mode], Count::add);
        self.0.policy_duration.at([], |times| times.add(took));
    }

    /// A request was refused for its token, or for want of one.
    pub fn auth_failed(&self, reason: &'static str) {
        self.0.auth_failures.at([reason], Count::add);
    }

    /// A run's connection ended.
    pub fn connection_ended(
        &self,
        verdict: &'static str,
        reason: &'static str,
        scheme: &'static str,
        bytes_up: u64,
        bytes_down: u64,
    ) {
        let inner = &*self.0;
        inner
            .gate_connections
            .at([verdict, reason, scheme], Count::add);
        inner.gate_bytes.at(["up"], |sum| sum.add_many(bytes_up));
        inner
            .gate_bytes
            .at(["down"], |sum| sum.add_many(bytes_down));
    }

    /// The whole page.
    pub fn page(&self) -> Page {
        let inner = &*self.0;
        let mut page = Page::default();
        page.family("skillgate_build_info", "gauge", "The version that runs.");
        page.sample(&[("version", env!("CARGO_PKG_VERSION"))], 1.0);
        inner.http_requests.write(&mut page);
        inner.rpc_requests.write(&mut page);
        inner.rpc_duration.write(&mut page);
        inner.runs.write(&mut page);
        inner.run_duration.write(&mut page);
        inner.run_queue_duration.write(&mut page);
        inner.policy_decisions.write(&mut page);
        inner.policy_duration.write(&mut page);
        inner.auth_failures.write(&mut page);
        inner.gate_connections.write(&mut page);
        inner.gate_bytes.write(&mut page);
        let sources = inner.sources.read().unwrap_or_else(PoisonError::into_inner);
        for source in sources.iter() {
            source(&mut page);
        }
        page
    }
}

/// The known word that is meant.
fn word(known: &[&'static str], said: &str) -> &'static str {
    let found = known.iter().find(|word| **word == said);
    found.copied().unwrap_or(OTHER)
}

/// The statuses that the gateway answers with.
fn status_word(status: u16) -> &'static str {
    match status {
        200 => "200",
        201 => "201",
        204 => "204",
        206 => "206",
        304 => "304",
        400 => "400",
        401 => "401",
        403 => "403",
        404 => "404",
        405 => "405",
        408 => "408",
        409 => "409",
        413 => "413",
        414 => "414",
        415 => "415",
        416 => "416",
        429 => "429",
        431 => "431",
        499 => "499",
        500 => "500",
        503 => "503",
        _ => OTHER,
    }
}

// === what is counted with ===

/// A number for each combination of labels.
#[derive(Debug)]
struct Family<const LABELS: usize, T> {
    name: &'static str,
    help: &'static str,
    labels: [&'static str; LABELS],
    bounds: &'static [f64],
    series: RwLock<BTreeMap<[&'static str; LABELS], T>>,
}

trait Series: Sized {
    const KIND: &'static str;
    fn new(bounds: &'static [f64]) -> Self;
    fn write(&self, name: &str, labels: &[(&str, &str)], page: &mut Page);
}

impl<const LABELS: usize, T: Series> Family<LABELS, T> {
    fn new(name: &'static str, help: &'static str, labels: [&'static str; LABELS]) -> Self {
        Family::with(name, help, labels, &[])
    }

    fn with(
        name: &'static str,
        help: &'static str,
        labels: [&'static str; LABELS],
        bounds: &'static [f64],
    ) -> Self {
        Family {
            name,
            help,
            labels,
            bounds,
            series: RwLock::default(),
        }
    }

    /// Shows these from the start, as nothing yet: a series that begins with its first event has no increase by it, and an
    /// alarm misses that.
    fn begin(&self, labels: [&'static str; LABELS]) {
        self.at(labels, |_| ());
    }

    fn at(&self, labels: [&'static str; LABELS], count: impl Fn(&T)) {
        let series = self.series.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(one) = series.get(&labels) {
            return count(one);
        }
        drop(series);
        // Once for each combination in the life of the process.
        let mut series = self.series.write().unwrap_or_else(PoisonError::into_inner);
        count(series.entry(labels).or_insert_with(|| T::new(self.bounds)));
    }

    fn write(&self, page: &mut Page) {
        page.family(self.name, T::KIND, self.help);
        let series = self.series.read().unwrap_or_else(PoisonError::into_inner);
        for (values, one) in series.iter() {
            let labels: Vec<(&str, &str)> = self
                .labels
                .iter()
                .copied()
                .zip(values.iter().copied())
                .collect();
            one.write(self.name, &labels, page);
        }
    }
}

#[derive(Debug)]
struct Count(AtomicU64);

impl Count {
    fn add(&self) {
        self.add_many(1);
    }

    fn add_many(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }
}

impl Series for Count {
    const KIND: &'static str = "counter";
    fn new(_: &'static [f64]) -> Self {
        Count(AtomicU64::new(0))
    }
    fn write(&self, name: &str, labels: &[(&str, &str)], page: &mut Page) {
        page.line(name, labels, self.0.load(Ordering::Relaxed) as f64);
    }
}

#[derive(Debug)]
struct Histogram {
    bounds: &'static [f64],
    /// One for each bound, and one for what is above all of them.
    buckets: Vec<AtomicU64>,
    sum_ns: AtomicU64,
}

impl Histogram {
    fn add(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        let at = self.bounds.partition_point(|bound| *bound < seconds);
        self.buckets[at].fetch_add(1, Ordering::Relaxed);
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }
}

impl Series for Histogram {
    const KIND: &'static str = "histogram";
    fn new(bounds: &'static [f64]) -> Self {
        Histogram {
            bounds,
            buckets: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            sum_ns: AtomicU64::new(0),
        }
    }
    fn write(&self, name: &str, labels: &[(&str, &str)], page: &mut Page) {
        let bounds = self.bounds.iter().map(ToString::to_string);
        let mut total = 0;
        for (bound, count) in bounds.chain(["+Inf".to_owned()]).zip(&self.buckets) {
            total += count.load(Ordering::Relaxed);
            let labels: Vec<(&str, &str)> =
                labels.iter().copied().chain([("le", &*bound)]).collect();
            page.line(&format!("{name}_bucket"), &labels, total as f64);
        }
        let sum = Duration::from_nanos(self.sum_ns.load(Ordering::Relaxed));
        page.line(&format!("{name}_sum"), labels, sum.as_secs_f64());
        // The same number as the last bucket, also while others count.
        page.line(&format!("{name}_count"), labels, total as f64);
    }
}

/// The text that is being made.
#[derive(Debug, Default)]
pub struct Page {
    text: String,
    name: &'static str,
}

impl Page {
    /// Begins a metric; `kind` is `counter`, `gauge` or `histogram`.
    pub fn family(&mut self, name: &'static str, kind: &str, help: &str) {
        self.name = name;
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// What is on it.
    pub fn into_text(self) -> String {
        self.text
    }

    /// A value of the metric that was begun last.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: f64) {
        self.line(self.name, labels, value);
    }

    fn line(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.text.push_str(name);
        for (at, (label, value)) in labels.iter().enumerate() {
            let before = if at == 0 { '{' } else { ',' };
            let value = value
                .replace('\\', "\\\\")
                .replace('"', "\\\"")
                .replace('\n', "\\n");
            let _ = write!(self.text, "{before}{label}=\"{value}\"");
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        let _ = writeln!(self.text, " {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::{ERROR_TYPES, Metrics};
    use std::collections::BTreeSet;
    use std::time::Duration;

    #[test]
    fn the_page_is_what_prometheus_reads() {
        let metrics = Metrics::new(["describe_skill"]);
        metrics.http_request("/rpc", 200);
        metrics.http_request("/rpc", 200);
        metrics.http_request("/rpc", 429);
        metrics.rpc_request("describe_skill", None, Duration::from_micros(250));
        metrics.rpc_request(
            "describe_skill",
            Some("skill_not_found"),
            Duration::from_secs(60),
        );
        metrics.run_ended("code", "failed", Some("Timeout"), Duration::from_millis(7));
        metrics.add_source(|page| {
            page.family("skillgate_runs_in_flight", "gauge", "Runs.");
            page.sample(&[("odd", "a\"b\\c\nd")], 2.5);
        });
        let page = metrics.page().into_text();
        for line in [
            "# TYPE skillgate_http_requests_total counter",
            r#"skillgate_http_requests_total{route="/rpc",code="200"} 2"#,
            r#"skillgate_http_requests_total{route="/rpc",code="429"} 1"#,
            r#"skillgate_rpc_requests_total{method="describe_skill",outcome="ok",kind=""} 1"#,
            r#"skillgate_rpc_requests_total{method="describe_skill",outcome="error",kind="skill_not_found"} 1"#,
            "# TYPE skillgate_rpc_duration_seconds histogram",
            r#"skillgate_rpc_duration_seconds_bucket{method="describe_skill",le="0.0001"} 0"#,
            r#"skillgate_rpc_duration_seconds_bucket{method="describe_skill",le="0.00025"} 1"#,
            r#"skillgate_rpc_duration_seconds_bucket{method="describe_skill",le="10"} 1"#,
            r#"skillgate_rpc_duration_seconds_bucket{method="describe_skill",le="+Inf"} 2"#,
            r#"skillgate_rpc_duration_seconds_sum{method="describe_skill"} 60.00025"#,
            r#"skillgate_rpc_duration_seconds_count{method="describe_skill"} 2"#,
            r#"skillgate_runs_total{kind="code",status="failed",error_type="Timeout"} 1"#,
            r#"skillgate_runs_in_flight{odd="a\"b\\c\nd"} 2.5"#,
        ] {
            assert!(
                page.lines().any(|have| have == line),
                "{line}\nnot in\n{page}"
            );
        }
        let mut seen = BTreeSet::new();
        for line in page.lines().filter(|line| line.starts_with("# TYPE")) {
            assert!(seen.insert(line), "twice: {line}");
        }
    }

    #[test]
    fn words_of_callers_make_no_series() {
        let metrics = Metrics::new(["describe_skill"]);
        for number in 0..1000 {
            metrics.rpc_request(&format!("m{number}"), None, Duration::ZERO);
            let error = format!("MyError{number}");
            metrics.run_ended("code", "failed", Some(&error), Duration::ZERO);
        }
        let page = metrics.page().into_text();
        assert!(!page.contains("m7") && !page.contains("MyError"), "{page}");
        assert!(page.contains(r#"error_type="other"} 1000"#), "{page}");
    }

    #[test]
    fn a_run_that_was_not_started_took_no_time() {
        let metrics = Metrics::default();
        metrics.run_ended("code", "not_started", None, Duration::ZERO);
        metrics.run_ended("code", "cancelled", None, Duration::from_secs(1));
        let page = metrics.page().into_text();
        for line in [
            r#"skillgate_runs_total{kind="code",status="not_started",error_type=""} 1"#,
            "skillgate_run_duration_seconds_count 1",
        ] {
            assert!(page.lines().any(|have| have == line), "{line}: {page}");
        }
    }

    #[test]
    fn known_types_of_errors_are_each_there_once() {
        assert_eq!(
            ERROR_TYPES.iter().collect::<BTreeSet<_>>().len(),
            ERROR_TYPES.len()
        );
    }
}

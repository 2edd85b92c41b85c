//! What is allowed. Only this module makes a [`Permit`], and no method can act without one.
//!
//! The layer stands between a call whose parameters have been read and the method itself: what a decision is about
//! (which skills, which blobs, how long) is in [`Facts`]; what came out of it is in the [`Permit`]. A run's network
//! and secrets come from the permit, never from a manifest.
//!
//! ```text
//! Facts ─ input ─▶ engine (one immutable set of rules) ─▶ decision, read strictly ─▶ within the manifests ─▶ Permit
//!                                                     └▶ recorded before anything happens
//! ```
//!
//! Whatever goes wrong on this way is a denial where the rules are enforced: undefined, malformed, failing, too slow, panicking; and
//! not recorded, where the call has consequences and `audit.on_failure` is "deny". In shadow mode this last one alone denies.

mod archive;
mod bundle;
pub(crate) mod child;
mod confirm;
mod decision;
mod engine;
mod evaluate;
mod hidden;
mod input;
pub mod inspect;
mod load;
mod memo;
mod outcome;
mod record;
mod shape;
mod signature;
mod silent;
mod suite;
#[cfg(test)]
mod tests;
mod trial;
mod unread;
mod whole;
mod width;
mod words;

use std::borrow::Cow;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use futures_util::future::BoxFuture;
use serde_json::{Map, Value, json};
use skillgate_plugin_sdk::model::BlobStat;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tower::{Layer, Service, ServiceExt};

use crate::audit::Audit;
use crate::auth::Caller;
use crate::catalog::Skill;
use crate::config::{Confirm, Exposure, PolicyMode};
use crate::slots::Slots;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::trace::Trace;
use decision::Declared;
use engine::{Fault, PolicySet};
use input::Inputs;
use load::UnkeptPlace;
use memo::Memo;
use outcome::Outcome;

pub use bundle::BundleError;
pub use input::{ARGS_BYTES_MAX, Sandbox};
pub use load::{Prepared, Status, prepare, watched};

/// Decisions of the interpreter at once: it must not take the processors from the calls. Tenants have them in turn.
const CONFIRMATIONS_MAX: usize = 2;
/// Waiting for a background confirmation; more are left out and counted.
const SAMPLES_WAITING_MAX: usize = 64;

/// What a decision is about.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The method's name.
    pub method: &'static str,
    /// Who asks.
    pub caller: Caller,
    /// The text of the call's JSON-RPC id; empty where there is none.
    pub id: String,
    /// What else is asked, by the names of the input document: `detail`, `kind`, `code_bytes`, ...
    pub request: Map<String, Value>,
    /// The resolved skills: the target, or all that are mounted.
    pub skills: Vec<Arc<Skill>>,
    /// A skill named beside those that is not there. Where the call is refused it is answered with that, as one is that is there
    /// and hidden.
    pub missing: Option<String>,
    /// The skill is to be published by this call, so it is nobody's yet.
    pub publishes: bool,
    /// The blobs that are read.
    pub blobs: Vec<BlobStat>,
    /// Bytes of the blob that is to be made, where they are known before.
    pub blob_bytes: Option<u64>,
    /// `timeout_ms` as asked for.
    pub timeout_ms: Option<u64>,
    /// JSON text of a skill's arguments, where it is short enough for rules that ask for it (`policy.include_args`).
    pub args: Option<Arc<str>>,
    /// Where the call is in its trace: for the records, not for the rules.
    pub trace: Option<Trace>,
}

impl Facts {
    /// About nothing but the method and the caller.
    pub fn new(method: &'static str, caller: Caller, id: impl Into<String>) -> Self {
        Facts {
            method,
            caller,
            id: id.into(),
            request: Map::new(),
            skills: Vec::new(),
            missing: None,
            publishes: false,
            blobs: Vec::new(),
            blob_bytes: None,
            timeout_ms: None,
            args: None,
            trace: None,
        }
    }

    /// The same with one more member of `request`.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.request.insert(name.to_owned(), value.into());
        self
    }

    fn declared(&self) -> Vec<Declared<'_>> {
        self.skills
            .iter()
            .map(|skill| {
                let permissions = skill.manifest().permissions();
                Declared {
                    name: skill.name(),
                    network: Cow::Borrowed(&permissions.network),
                    secrets: Cow::Borrowed(&permissions.secrets),
                }
            })
            .collect()
    }

    /// Something runs or is made: unless `audit.on_failure` is "continue", such a call is not allowed without its record.
    fn has_consequences(&self) -> bool {
        // The others: one that is not known here has them.
        !matches!(
            self.method,
            "list_skills"
                | "describe_skill"
                | "read_skill_file"
                | "read_blob"
                | "load_skills_protocol_guide"
                | "rpc.discover"
        )
    }
}

/// A thing that can be decided about.
pub trait Decidable {
    /// What the decision is about.
    fn facts(&self) -> &Facts;
}

/// What a decision grants. Only this module makes one.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Permit {
    /// Names the decision in logs.
    pub decision_id: String,
    /// Patterns that the run may reach through the gate, in canonical form, each within what the manifests declare.
    pub network: Vec<String>,
    /// Names of the secrets that the run gets, each of them declared.
    pub secrets: Vec<String>,
    /// A ceiling for the run's time, where the decision has one.
    pub timeout_ms: Option<u64>,
    /// A ceiling for the run's memory.
    pub memory_bytes: Option<u64>,
    /// A ceiling for each blob that the call makes.
    pub max_blob_bytes: Option<u64>,
    /// Networks that the gate must not connect to, whatever a name resolves to.
    pub deny_cidrs: Vec<String>,
    /// The run's interpreter shares no address layout and no hash seed with another run's.
    pub fresh: bool,
    /// Namespaces whose skills a listing may show; none: all.
    pub visible: Option<Vec<String>>,
    /// Which of the sets of rules since the start has decided.
    pub generation: u64,
    /// What they are to whoever is decided about: `enforce`, `shadow` or `off`.
    pub mode: &'static str,
    /// The trace of the call that was decided about.
    pub trace: Option<Trace>,
    /// What the decision was about, where it may have to be made again while it is in use.
    basis: Option<Arc<Facts>>,
}

impl Permit {
    /// With a network, and without a decision.
    #[cfg(test)]
    pub(crate) fn for_tests(generation: u64, network: Vec<String>) -> Self {
        Permit {
            network,
            ..bare_permit(String::new(), generation, "enforce", None)
        }
    }

    /// Whether a listing may show a skill of this name.
    pub fn shows(&self, skill: &str) -> bool {
        decision::shows(self.visible.as_deref(), skill)
    }
}

/// Something that was allowed, with what was granted. Only this module makes one.
#[derive(Debug)]
pub struct Permitted<T> {
    value: T,
    permit: Permit,
}

impl<T> Permitted<T> {
    /// The thing.
    pub fn get(&self) -> &T {
        &self.value
    }

    /// The thing and its permit.
    pub fn into_parts(self) -> (T, Permit) {
        (self.value, self.permit)
    }
}

/// Why a call was not allowed.
#[derive(Debug)]
pub struct Denied {
    /// Names the decision in logs.
    pub decision_id: String,
    /// `{code, message, skill?, target?, secret?, blob?}` each, as far as callers are told.
    pub reasons: Vec<Value>,
    /// The same call may be allowed later.
    pub retryable: bool,
    /// A skill that the caller must not know of: it is answered as a missing one.
    pub hidden: Option<String>,
}

/// A reason in words; where callers are told codes alone, its code, since many of them pass on nothing but the message.
fn told(reason: &Value) -> Option<&str> {
    reason["message"].as_str().or(reason["code"].as_str())
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("denied by policy")?;
        let mut separator = ": ";
        for reason in self.reasons.iter().filter_map(told) {
            write!(f, "{separator}{reason}")?;
            separator = "; ";
        }
        Ok(())
    }
}

impl std::error::Error for Denied {}

/// What is in force. Replaced as a whole, so that no call sees a half of two.
#[derive(Debug)]
struct Active {
    mode: PolicyMode,
    confirm: Confirm,
    exposure: Exposure,
    include_args: Vec<String>,
    instructions_max: u64,
    generation: u64,
    /// None with `policy.mode = "off"`.
    set: Option<Arc<PolicySet>>,
    memo: Memo,
    /// Not by the calendar, which may be set meanwhile.
    since: Instant,
    /// Allowed calls on which the two engines disagreed since then.
    mismatches: Arc<AtomicU64>,
}

impl Active {
    /// Whether every call is decided alike by both. What callers are told of it is another matter.
    fn decides_as(&self, other: &Active) -> bool {
        let digest = |active: &Active| active.set.as_ref().map(|set| set.digest.clone());
        self.mode == other.mode
            && self.confirm == other.confirm
            && self.include_args == other.include_args
            && self.instructions_max == other.instructions_max
            && digest(self) == digest(other)
    }
}

/// The organisation's rules. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Policy(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    active: ArcSwap<Active>,
    inputs: Inputs,
    audit: Audit,
    clock: fn() -> SystemTime,
    allowed: AtomicU64,
    mismatches: AtomicU64,
    unsampled: AtomicU64,
    sampled_ms: AtomicU64,
    confirmations: Arc<Slots>,
    samples: Arc<Semaphore>,
    metrics: OnceLock<Metrics>,
    unkept: UnkeptPlace,
}

impl Policy {
    /// With a policy that passed its trial, and where its decisions are recorded.
    pub fn new(prepared: Prepared, sandbox: &Sandbox, audit: Audit) -> Self {
        let unkept = UnkeptPlace::default();
        let place = prepared.place().into_iter();
        place.for_each(|place| unkept.remember(place));
        Policy(Arc::new(Inner {
            active: ArcSwap::from_pointee(prepared.active),
            inputs: Inputs::new(sandbox),
            audit,
            clock: SystemTime::now,
            allowed: AtomicU64::new(0),
            mismatches: AtomicU64::new(0),
            unsampled: AtomicU64::new(0),
            sampled_ms: AtomicU64::new(0),
            confirmations: Slots::new(CONFIRMATIONS_MAX),
            samples: Arc::new(Semaphore::new(SAMPLES_WAITING_MAX)),
            metrics: OnceLock::new(),
            unkept,
        }))
    }

    /// Counts its decisions there.
    #[must_use]
    pub fn watched_by(self, metrics: Metrics) -> Self {
        self.0.metrics.get_or_init(|| metrics);
        self
    }

    /// Puts a prepared policy in force: calls that have begun keep the one that they began with.
    /// The same rules once more are no new ones: what they have allowed is allowed still.
    pub fn install(&self, mut prepared: Prepared) {
        let before = self.0.active.load_full();
        if prepared.active.decides_as(&before) {
            prepared.active.generation = before.generation;
            prepared.active.since = before.since;
            prepared.active.mismatches = before.mismatches.clone();
        } else {
            tracing::info!(revision = prepared.revision(), "policy is in force");
            prepared.active.generation = before.generation + 1;
        }
        self.0.active.store(Arc::new(prepared.active));
    }

    /// Of which generation a prepared policy would be, if its rules are other ones than those in force.
    fn next_generation(&self, prepared: &Prepared) -> Option<u64> {
        let before = self.0.active.load();
        let is_new = !prepared.active.decides_as(&before);
        is_new.then(|| before.generation + 1)
    }

    /// Which of the sets of rules since the start is in force.
    pub fn generation(&self) -> u64 {
        self.0.active.load().generation
    }

    /// What would be granted now for what a permit with a network was granted for; none for one without. Recorded like every
    /// decision.
    pub async fn reconsider(&self, permit: &Permit) -> Option<Result<Permit, Denied>> {
        Some(self.decide(permit.basis.as_ref()?).await)
    }

    /// For health and metrics.
    pub fn status(&self) -> Status {
        let active = self.0.active.load();
        let set = active.set.as_ref();
        Status {
            mode: load::mode_name(active.mode),
            revision: set.map(|set| set.revision.clone()).unwrap_or_default(),
            sha256: set.map(|set| set.digest.clone()).unwrap_or_default(),
            age_s: active.since.elapsed().as_secs(),
            engine_mismatches: active.mismatches.load(Ordering::Relaxed),
            engine_mismatches_total: self.0.mismatches.load(Ordering::Relaxed),
            unconfirmed: self.0.unsampled.load(Ordering::Relaxed),
            unkept: self.0.unkept.why(),
        }
    }

    /// Decides and records. The set of rules is taken once, so the whole decision is one revision's.
    async fn decide(&self, facts: &Facts) -> Result<Permit, Denied> {
        let active = self.0.active.load_full();
        let decision_id = format!("dec_{}", hex::encode(rand::random::<[u8; 12]>()));
        let mut outcome = self.evaluate_guarded(&active, facts);
        if outcome.allows() {
            self.confirm(&active, facts, &decision_id, &mut outcome)
                .await;
        }
        self.record(&active, facts, &decision_id, &mut outcome)
            .await;
        if let Some(metrics) = self.0.metrics.get() {
            let decision = match &outcome.decision {
                Ok(_) if outcome.allows() => "allow",
                Ok(_) => "deny",
                Err(_) => "fault",
            };
            let took = Duration::from_nanos(outcome.took_ns);
            metrics.policy_decided(facts.method, decision, load::mode_name(active.mode), took);
        }
        self.conclude(&active, facts, decision_id, outcome)
    }

    /// Writes the record. What has consequences does not happen without one, unless `audit.on_failure` is "continue".
    async fn record(
        &self,
        active: &Active,
        facts: &Facts,
        decision_id: &str,
        outcome: &mut Outcome,
    ) {
        let is_shadow = active.mode == PolicyMode::Shadow;
        record::report(is_shadow, facts, decision_id, outcome);
        // Also where the rules are not asked: whatever runs or is made is on record.
        if !self.0.audit.is_on() {
            return;
        }
        let record = record::record(active.mode, facts, decision_id, outcome);
        if !facts.has_consequences() || !is_shadow && !outcome.allows() {
            self.0.audit.note(record).await;
        } else if let Err(error) = self.0.audit.append(record).await {
            outcome.fail(Fault::Unavailable(error.to_string()));
        }
    }

    fn conclude(
        &self,
        active: &Active,
        facts: &Facts,
        decision_id: String,
        outcome: Outcome,
    ) -> Result<Permit, Denied> {
        let is_shadow = active.mode == PolicyMode::Shadow;
        let allowed = outcome.allows();
        let unrecorded = matches!(outcome.decision, Err(Fault::Unavailable(_)));
        match outcome.decision {
            Ok(decision) if allowed => Ok(Permit {
                decision_id,
                generation: active.generation,
                mode: load::mode_name(active.mode),
                trace: facts.trace,
                basis: (!outcome.grant.network.is_empty()).then(|| Arc::new(facts.clone())),
                network: outcome.grant.network,
                secrets: outcome.grant.secrets,
                deny_cidrs: decision.deny_cidrs,
                fresh: decision.fresh && !is_shadow,
                // Ceilings and visibility are enforcement; a shadow has none.
                timeout_ms: decision.limits.timeout_ms.filter(|_| !is_shadow),
                memory_bytes: decision.limits.memory_bytes.filter(|_| !is_shadow),
                max_blob_bytes: decision.limits.max_blob_bytes.filter(|_| !is_shadow),
                visible: decision.visible.filter(|_| !is_shadow),
            }),
            // A shadow lets everything pass, and gives nothing that the decision has not given.
            _ if is_shadow && !unrecorded => {
                let mode = load::mode_name(active.mode);
                Ok(bare_permit(
                    decision_id,
                    active.generation,
                    mode,
                    facts.trace,
                ))
            }
            Ok(decision) => Err(Denied {
                decision_id,
                reasons: exposed(decision.reasons_json(), active.exposure),
                retryable: false,
                hidden: hidden::of_refused(facts, &decision),
            }),
            Err(fault) => Err(Denied {
                decision_id,
                reasons: exposed(
                    vec![json!({ "code": fault.code(), "message": fault.message() })],
                    active.exposure,
                ),
                retryable: fault.is_retryable(),
                hidden: self.hidden_at_fault(active, facts, outcome.raw.as_ref()),
            }),
        }
    }
}

/// A permit without network, secrets or ceilings.
fn bare_permit(
    decision_id: String,
    generation: u64,
    mode: &'static str,
    trace: Option<Trace>,
) -> Permit {
    Permit {
        decision_id,
        generation,
        mode,
        trace,
        basis: None,
        network: Vec::new(),
        secrets: Vec::new(),
        timeout_ms: None,
        memory_bytes: None,
        max_blob_bytes: None,
        deny_cidrs: Vec::new(),
        fresh: false,
        visible: None,
    }
}

/// What callers are told of the reasons: `policy.exposure`.
fn exposed(mut reasons: Vec<Value>, exposure: Exposure) -> Vec<Value> {
    match exposure {
        Exposure::Full => {}
        Exposure::Codes => {
            for reason in &mut reasons {
                *reason = json!({ "code": reason["code"] });
            }
        }
        Exposure::None => reasons.clear(),
    }
    reasons
}

/// Makes [`PolicyGate`].
#[derive(Debug, Clone)]
pub struct PolicyLayer(pub Policy);

impl<S> Layer<S> for PolicyLayer {
    type Service = PolicyGate<S>;
    fn layer(&self, inner: S) -> PolicyGate<S> {
        PolicyGate {
            policy: self.0.clone(),
            inner,
        }
    }
}

/// Passes what is allowed on, with its permit.
#[derive(Debug, Clone)]
pub struct PolicyGate<S> {
    policy: Policy,
    inner: S,
}

impl<S, T> Service<T> for PolicyGate<S>
where
    T: Decidable + Send + 'static,
    S: Service<Permitted<T>> + Clone + Send + 'static,
    S::Error: From<Denied> + Send + 'static,
    S::Response: Send + 'static,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, asked: T) -> Self::Future {
        let (policy, inner) = (self.policy.clone(), self.inner.clone());
        Box::pin(async move {
            let permit = policy.decide(asked.facts()).await?;
            inner
                .oneshot(Permitted {
                    value: asked,
                    permit,
                })
                .await
        })
    }
}

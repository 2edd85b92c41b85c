//! What is allowed. Only this module makes a [`Permit`], and no method can act without one.
//!
//! The layer stands between a call whose parameters have been read and the method itself: what a decision is about
//! (which skills, which blobs, how long) is in [`Facts`]; what came out of it is in the [`Permit`]. A run's network
//! and secrets come from the permit, never from a manifest.
//! This version decides by configuration alone (`policy.mode = "off"`): every call passes, no run gets network or a
//! secret.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use serde_json::{Map, Value};
use skillgate_plugin_sdk::model::BlobStat;
use tower::{Layer, Service};

use crate::auth::Caller;
use crate::catalog::Skill;

/// What a decision is about.
#[derive(Debug)]
pub struct Facts {
    /// The method's name.
    pub method: &'static str,
    /// Who asks.
    pub caller: Caller,
    /// What else is asked, by the names of the input document: `detail`, `kind`, `code_bytes`, ...
    pub request: Map<String, Value>,
    /// The resolved skills: the target, or all that are mounted.
    pub skills: Vec<Arc<Skill>>,
    /// The blobs that are read.
    pub blobs: Vec<BlobStat>,
    /// `timeout_ms` as asked for.
    pub timeout_ms: Option<u64>,
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
    /// Patterns that the run may reach through the gate: empty in this version.
    pub network: Vec<String>,
    /// Names of the secrets that the run gets: empty in this version.
    pub secrets: Vec<String>,
    /// A ceiling for the run's time, where the decision has one.
    pub timeout_ms: Option<u64>,
    /// Networks that the gate must not connect to, whatever a name resolves to.
    pub deny_cidrs: Vec<String>,
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
    /// `{code, message, skill?, target?, secret?, blob?}` each.
    pub reasons: Vec<Value>,
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("denied by policy")?;
        let mut separator = ": ";
        for reason in self
            .reasons
            .iter()
            .filter_map(|reason| reason["message"].as_str())
        {
            write!(f, "{separator}{reason}")?;
            separator = "; ";
        }
        Ok(())
    }
}

impl std::error::Error for Denied {}

/// The organisation's rules.
#[derive(Debug, Clone)]
pub enum Policy {
    /// `policy.mode = "off"`
    Off,
}

impl Policy {
    fn decide(&self, facts: &Facts) -> Result<Permit, Denied> {
        let Policy::Off = self;
        let decision_id = format!("dec_{}", hex::encode(rand::random::<[u8; 12]>()));
        tracing::debug!(
            decision_id,
            method = facts.method,
            tenant = facts.caller.tenant(),
            "allowed: policy.mode is off"
        );
        Ok(Permit {
            decision_id,
            network: Vec::new(),
            secrets: Vec::new(),
            timeout_ms: None,
            deny_cidrs: Vec::new(),
        })
    }
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
    T: Decidable,
    S: Service<Permitted<T>>,
    S::Error: From<Denied> + Send + 'static,
    S::Response: Send + 'static,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future =
        futures_util::future::Either<S::Future, std::future::Ready<Result<S::Response, S::Error>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, asked: T) -> Self::Future {
        match self.policy.decide(asked.facts()) {
            Ok(permit) => futures_util::future::Either::Left(self.inner.call(Permitted {
                value: asked,
                permit,
            })),
            Err(denied) => {
                futures_util::future::Either::Right(std::future::ready(Err(denied.into())))
            }
        }
    }
}

//! How one decision ended, before it is recorded.

use std::sync::Arc;

use super::decision::{Decision, Grant, Log};
use super::engine::{Fault, PolicySet};

/// What was asked, what the rules said, and what came of it.
pub(super) struct Outcome {
    pub(super) set: Option<Arc<PolicySet>>,
    pub(super) input: regorus::Value,
    pub(super) raw: Option<regorus::Value>,
    pub(super) decision: Result<Decision, Fault>,
    /// What the log keeps where there is no decision.
    pub(super) log: Log,
    pub(super) grant: Grant,
    /// The rules had been asked the same in this second.
    pub(super) is_recalled: bool,
    pub(super) took_ns: u64,
}

impl Outcome {
    pub(super) fn allows(&self) -> bool {
        self.decision.as_ref().is_ok_and(|decision| decision.allow)
    }

    /// There is no decision after all. What it said of the log holds all the same: a refusal is recorded too.
    pub(super) fn fail(&mut self, fault: Fault) {
        if let Ok(decision) = std::mem::replace(&mut self.decision, Err(fault)) {
            self.log = decision.log;
        }
        self.grant = Grant::default();
    }

    /// What the log keeps of it.
    pub(super) fn log(&self) -> &Log {
        match &self.decision {
            Ok(decision) => &decision.log,
            Err(_) => &self.log,
        }
    }
}

//! From the configuration to a policy that can be put in force. Everything that can fail fails here.

use std::sync::Arc;
use std::time::SystemTime;

use super::bundle::{Bundle, BundleError, Files};
use super::engine::PolicySet;
use super::{Active, trial};
use crate::config::{self, PolicyMode};

/// How the policy is, for health and metrics.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Status {
    /// `enforce`, `shadow` or `off`.
    pub mode: &'static str,
    /// What decides; empty with `off`.
    pub revision: String,
    /// Since it was put in force.
    pub age_s: u64,
    /// Why the last reload was refused, if it was.
    pub last_error: Option<String>,
    /// Allowed calls on which the two engines disagreed.
    pub engine_mismatches: u64,
}

/// A policy that passed its trial and waits to be put in force.
#[derive(Debug)]
pub struct Prepared {
    pub(super) active: Active,
}

impl Prepared {
    /// Names it in logs and records.
    pub fn revision(&self) -> &str {
        self.active
            .set
            .as_ref()
            .map_or("off", |set| set.revision.as_str())
    }
}

pub(super) fn mode_name(mode: PolicyMode) -> &'static str {
    match mode {
        PolicyMode::Off => "off",
        PolicyMode::Shadow => "shadow",
        PolicyMode::Enforce => "enforce",
    }
}

/// Reads, tries and compiles what `[policy]` names. Slow; changes nothing.
///
/// # Errors
/// [`BundleError`] with the file, and the line where there is one.
pub fn prepare(config: &config::Policy) -> Result<Prepared, BundleError> {
    let set = match config.mode {
        PolicyMode::Off => None,
        PolicyMode::Shadow | PolicyMode::Enforce => Some(Arc::new(load(config)?)),
    };
    Ok(Prepared {
        active: Active {
            mode: config.mode,
            confirm: config.confirm,
            exposure: config.exposure,
            instructions_max: config.instruction_budget,
            set,
            since: SystemTime::now(),
        },
    })
}

fn load(config: &config::Policy) -> Result<PolicySet, BundleError> {
    let place = config.path.display().to_string();
    let files = Files::read(&config.path)?;
    let bundle = Bundle::new(&files, &place)?;
    let report = trial::run(&bundle, config.instruction_budget)
        .map_err(|problems| BundleError::new(&place, problems.join("\n")))?;
    let set =
        PolicySet::compile(&bundle).map_err(|error| BundleError::new(&place, error.to_string()))?;
    tracing::info!(
        revision = set.revision,
        sha256 = set.digest,
        modules = report.modules,
        tests = report.tests,
        goldens = report.goldens,
        "policy passed its trial"
    );
    Ok(set)
}

//! The end of a run in the audit log: each run that got its turn has exactly one, however it ends.

use std::sync::Arc;
use std::time::Instant;

use sha2::{Digest, Sha256};

use super::drain::Going;
use super::services::Services;
use super::{Answer, Job, Program};
use crate::audit::{Audit, Outcome, RunEnd, Unavailable, What};

/// Owed to the log from a run's beginning on; a run that is dropped with its caller pays by that.
#[derive(Debug)]
pub(super) struct Ending {
    audit: Audit,
    run: Option<RunEnd>,
    began: Instant,
    /// What it makes blobs with, once it has been given that.
    services: Option<Arc<Services>>,
    /// The gateway's end waits for the record, too.
    going: Option<Going>,
}

impl Ending {
    pub(super) fn new(audit: Audit, going: Going, job: &Job, run_id: &str) -> Self {
        let skill = |skill: &crate::catalog::Skill| {
            RunEnd::skill(skill.name(), skill.version(), skill.digest())
        };
        let run = RunEnd {
            run_id: run_id.to_owned(),
            decision_id: job.permit.decision_id.clone(),
            trace: job.permit.trace,
            requested_by: job.caller.subject().id.clone(),
            source_ip: job.caller.ip().to_string(),
            tenant: job.caller.tenant().to_owned(),
            what: match &job.program {
                Program::Skill(target) => What::Skill(skill(target)),
                Program::Code { code, .. } => What::Code {
                    sha256: hex::encode(Sha256::digest(code)),
                    bytes: code.len(),
                },
            },
            mounts: job.mounts.iter().map(|mount| skill(mount)).collect(),
            secrets: job.permit.secrets.clone(),
            network: job.permit.network.clone(),
        };
        Ending {
            audit,
            run: Some(run),
            began: Instant::now(),
            services: None,
            going: Some(going),
        }
    }

    /// It may make blobs from here on.
    pub(super) fn watches(&mut self, services: Arc<Services>) {
        self.services = Some(services);
    }

    /// The run has an answer, which may be given when this comes back.
    pub(super) async fn answered(self, answer: &Answer) -> Result<(), Unavailable> {
        let outcome = Outcome {
            status: answer.status,
            error_type: answer.error.as_ref().map(|error| error.r#type.as_str()),
            wall_ms: answer.usage.wall_ms,
            cpu_ms: answer.usage.cpu_ms,
            peak_memory_bytes: answer.usage.peak_memory_bytes,
            output_blobs: &answer.output_blobs,
        };
        self.record(&outcome).await
    }

    /// Nothing of it was executed; the caller gets the error that it is about, whether this can be recorded or not.
    pub(super) async fn not_started(self) {
        let outcome = Outcome {
            status: "not_started",
            error_type: None,
            wall_ms: self.wall_ms(),
            cpu_ms: Some(0),
            peak_memory_bytes: Some(0),
            output_blobs: &[],
        };
        let _ = self.record(&outcome).await;
    }

    async fn record(mut self, outcome: &Outcome<'_>) -> Result<(), Unavailable> {
        let Some(run) = self.run.take() else {
            return Ok(());
        };
        let (audit, going, record) = (self.audit.clone(), self.going.take(), run.record(outcome));
        // A task of its own: a caller that goes away now must not take the record along.
        let append = tokio::spawn(async move {
            let written = audit.append(record).await;
            drop(going);
            written
        });
        append.await.unwrap_or(Err(Unavailable))
    }

    fn wall_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let Some(run) = self.run.take() else {
            return;
        };
        let cancelled = Cancelled {
            audit: self.audit.clone(),
            run,
            wall_ms: self.wall_ms(),
            _going: self.going.take(),
        };
        match self.services.take() {
            Some(services) => services.cancel(cancelled),
            None => cancelled.post(&[]),
        }
    }
}

/// The end of a run that nobody waits for any more, all but the blobs that it has made.
#[derive(Debug)]
pub(super) struct Cancelled {
    audit: Audit,
    run: RunEnd,
    wall_ms: u64,
    _going: Option<Going>,
}

impl Cancelled {
    #[cfg(test)]
    pub(super) fn for_tests(audit: Audit) -> Self {
        let run = RunEnd {
            run_id: "run_1".into(),
            decision_id: "1".into(),
            trace: None,
            requested_by: "local".into(),
            source_ip: "127.0.0.1".into(),
            tenant: "default".into(),
            what: What::Skill(RunEnd::skill("a", "1.0.0", "")),
            mounts: Vec::new(),
            secrets: Vec::new(),
            network: Vec::new(),
        };
        Cancelled {
            audit,
            run,
            wall_ms: 1,
            _going: None,
        }
    }

    pub(super) fn post(self, output_blobs: &[String]) {
        let outcome = Outcome {
            status: "cancelled",
            error_type: None,
            wall_ms: self.wall_ms,
            cpu_ms: None,
            peak_memory_bytes: None,
            output_blobs,
        };
        self.audit.post(self.run.record(&outcome));
    }
}

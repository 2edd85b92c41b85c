//! The end of a run in the audit log: each run that got its turn has exactly one, however it ends.

use std::time::Instant;

use sha2::{Digest, Sha256};

use super::drain::Going;
use super::{Answer, Job, Program};
use crate::audit::{Audit, Outcome, RunEnd, Unavailable, What};

/// Owed to the log from a run's beginning on; a run that is dropped with its caller pays by that.
#[derive(Debug)]
pub(super) struct Ending {
    audit: Audit,
    run: Option<RunEnd>,
    began: Instant,
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
            going: Some(going),
        }
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
        let outcome = self.without_answer("not_started");
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

    fn without_answer(&self, status: &'static str) -> Outcome<'static> {
        Outcome {
            status,
            error_type: None,
            wall_ms: self.began.elapsed().as_millis() as u64,
            cpu_ms: 0,
            peak_memory_bytes: 0,
            output_blobs: &[],
        }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let outcome = self.without_answer("cancelled");
        if let Some(run) = self.run.take() {
            self.audit.post(run.record(&outcome));
        }
    }
}

//! The end of a run in the audit log: each run that got its turn has exactly one, however it ends, and so has each for which the
//! queue had no room.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::drain::Going;
use super::services::Services;
use super::{Answer, Job, Program};
use crate::audit::{Audit, Outcome, Record, RunEnd, Unavailable, What};

/// How long the record of a run that is over waits for blobs that are on their way into the store. To look through them has limits
/// of its own, and no blob is missing from the record because others' were looked through before it.
const ARRIVAL_PATIENCE: Duration = Duration::from_secs(60);
/// The same when the gateway ends, which then waits twice as long for the record.
const LAST_PATIENCE: Duration = Duration::from_millis(500);

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
            mode: job.permit.mode,
            trace: job.permit.trace,
            requested_by: job.caller.subject().id.clone(),
            source_ip: job.caller.ip().to_string(),
            tenant: job.caller.tenant().to_owned(),
            what: match &job.program {
                Program::Skill(target) => What::Skill(skill(target)),
                Program::Code { code, sha256, .. } => What::Code {
                    sha256: sha256.clone(),
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

    /// The run has an answer, which may be given when this comes back. It does not wait for a blob that is still on its way
    /// into the store: then the record is made when that has arrived.
    pub(super) async fn answered(self, answer: &Answer) -> Result<(), Unavailable> {
        let outcome = Outcome {
            status: answer.status,
            reason: None,
            error_type: answer.error.as_ref().map(|error| error.r#type.clone()),
            wall_ms: answer.usage.wall_ms,
            cpu_ms: answer.usage.cpu_ms,
            peak_memory_bytes: answer.usage.peak_memory_bytes,
        };
        self.record(outcome).await
    }

    /// Nothing of it was executed, for this reason; the caller gets the error that it is about, whether this can be recorded or
    /// not.
    pub(super) async fn not_started(self, reason: Option<&'static str>) {
        let outcome = Outcome {
            status: "not_started",
            reason,
            error_type: None,
            wall_ms: self.wall_ms(),
            cpu_ms: Some(0),
            peak_memory_bytes: Some(0),
        };
        let _ = self.record(outcome).await;
    }

    async fn record(mut self, outcome: Outcome) -> Result<(), Unavailable> {
        let Some((end, made)) = self.over(outcome) else {
            return Ok(());
        };
        let (audit, record, going) = end.into_record(&made);
        // A task of its own: a caller that goes away now must not take the record along.
        let append = tokio::spawn(async move {
            let written = audit.append(record).await;
            drop(going);
            written
        });
        append.await.unwrap_or(Err(Unavailable))
    }

    /// The end, and the blobs that belong to it; none when it is on record, or will be.
    fn over(&mut self, outcome: Outcome) -> Option<(End, Vec<String>)> {
        let run = self.run.take()?;
        let run_id = run.run_id.clone();
        let end = End {
            audit: self.audit.clone(),
            run,
            outcome,
            going: self.going.take(),
        };
        let Some(services) = self.services.take() else {
            return Some((end, Vec::new()));
        };
        let going = end.going.clone();
        match services.close(end) {
            Ok(closed) => Some(closed),
            Err(told) => {
                let owing = Owing(services);
                // Without a runtime the gateway has ended, and a store that does not answer has nobody to answer.
                if let Ok(runtime) = Handle::try_current() {
                    runtime.spawn(async move {
                        let services = &owing.0;
                        let look = async { _ = services.look_through().await };
                        let pay = || services.pay();
                        arrives(&run_id, told, look, pay, gateway_ends(going)).await;
                    });
                }
                None
            }
        }
    }

    fn wall_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }
}

/// Who waits for the blobs of a run that is over. One that goes before they are there, with the gateway, leaves no end owed that
/// nothing else would pay.
struct Owing(Arc<Services>);

impl Drop for Owing {
    fn drop(&mut self) {
        self.0.is_left();
    }
}

/// When the record of a run may wait no longer, since the gateway ends.
async fn gateway_ends(going: Option<Going>) {
    match going {
        Some(mut going) => {
            going.over().await;
            tokio::time::sleep(LAST_PATIENCE).await;
        }
        None => std::future::pending().await,
    }
}

/// Waits for the blobs of a run that is over, and looks through those that may be its output, but not for ever: a record without
/// one of them is better than none, which `pay` makes.
pub(super) async fn arrives(
    run_id: &str,
    mut told: oneshot::Receiver<()>,
    look_through: impl Future<Output = ()>,
    pay: impl Fn(),
    gateway_ends: impl Future<Output = ()>,
) {
    // Boxed, so that it can go as soon as nothing is to be waited for any more.
    let mut gateway_ends = Box::pin(gateway_ends);
    let in_time = tokio::select! {
        told = &mut told => Some(told),
        () = tokio::time::sleep(ARRIVAL_PATIENCE) => None,
        () = &mut gateway_ends => None,
    };
    // Its sender is dropped where there is nothing to look through. A secret does not stay in the store for having come too late
    // for the record.
    match in_time {
        Some(Err(_)) => {}
        Some(Ok(())) => {
            let mut look_through = pin!(look_through);
            tokio::select! {
                () = &mut look_through => return,
                () = gateway_ends => {}
            }
            tracing::error!(
                run_id,
                "the gateway ends while an output of a run is looked through: its record is without it"
            );
            pay();
            look_through.await;
        }
        None => {
            drop(gateway_ends);
            tracing::error!(
                run_id,
                "the store does not say whether it has a blob of a run that is over: its record is without it"
            );
            pay();
            if told.await.is_ok() {
                look_through.await;
            }
        }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let outcome = Outcome {
            status: "cancelled",
            reason: None,
            error_type: None,
            wall_ms: self.wall_ms(),
            cpu_ms: None,
            peak_memory_bytes: None,
        };
        if let Some((end, made)) = self.over(outcome) {
            end.post(&made);
        }
    }
}

/// The end of a run, all but the blobs that it has made.
#[derive(Debug)]
pub(super) struct End {
    audit: Audit,
    run: RunEnd,
    outcome: Outcome,
    going: Option<Going>,
}

impl End {
    #[cfg(test)]
    pub(super) fn for_tests(audit: Audit) -> Self {
        let run = RunEnd {
            run_id: "run_1".into(),
            decision_id: "1".into(),
            mode: "enforce",
            trace: None,
            requested_by: "local".into(),
            source_ip: "127.0.0.1".into(),
            tenant: "default".into(),
            what: What::Skill(RunEnd::skill("a", "1.0.0", "")),
            mounts: Vec::new(),
            secrets: Vec::new(),
            network: Vec::new(),
        };
        let outcome = Outcome {
            status: "failed",
            reason: None,
            error_type: Some("Timeout".into()),
            wall_ms: 1,
            cpu_ms: None,
            peak_memory_bytes: None,
        };
        End {
            audit,
            run,
            outcome,
            going: None,
        }
    }

    fn into_record(self, output_blobs: &[String]) -> (Audit, Record, Option<Going>) {
        let record = self.run.record(self.outcome, output_blobs);
        (self.audit, record, self.going)
    }

    /// Nobody waits for the record.
    pub(super) fn post(self, output_blobs: &[String]) {
        let (audit, record, _going) = self.into_record(output_blobs);
        audit.post(record);
    }
}

#[cfg(test)]
mod tests {
    use skillgate_plugin_sdk::{abi, model};

    use super::super::Error;
    use super::Unavailable;
    use crate::auth::Lapsed;

    #[test]
    fn why_a_run_was_not_started_is_in_the_manual() {
        let of = |code| Error::Sandbox(model::Error::new(code, "x"));
        let manual = include_str!("../../OPERATING.md");
        let why = "Of one that\nwas not started it has the `reason`";
        let (_, told) = manual.split_once(why).unwrap();
        let (told, _) = told.split_once("\n\n").unwrap();
        for error in [
            Error::QueueFull { retry_after_ms: 1 },
            Error::Outdated,
            Error::Lapsed(Lapsed::Expired),
            Error::Lapsed(Lapsed::Withdrawn),
            Error::Lapsed(Lapsed::KeysUnavailable),
            Error::Lapsed(Lapsed::ClockUnset),
            Error::NoGate,
            Error::Stopping,
            of(abi::E_OUT_OF_RANGE),
            of(abi::E_UNAVAILABLE),
        ] {
            let reason = error.reason().unwrap();
            assert!(told.contains(&format!("`{reason}`")), "{reason}: {told}");
        }
        // What the caller can change is told from what it cannot.
        for (code, reason) in [
            (abi::E_OUT_OF_RANGE, "too_large"),
            (abi::E_UNAVAILABLE, "sandbox_unavailable"),
        ] {
            assert_eq!(of(code).reason(), Some(reason));
        }
        // These have been started.
        for error in [Error::Audit(Unavailable), Error::Lost] {
            assert_eq!(error.reason(), None, "{error}");
        }
    }
}

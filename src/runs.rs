//! Runs: a permit, a skill or code, and arguments become one sandbox job; what comes back becomes a result.
//!
//! Everything that crosses from a run to the gateway is hostile bytes: the run's id, the list of its blobs, its
//! status and all sizes are the gateway's own; what the sandbox says is checked again.

mod answer;
mod drain;
mod ending;
mod limits;
mod logs;
mod permits;
mod queue;
mod recheck;
mod redaction;
mod request;
mod services;
mod usage;
mod watch;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::value::RawValue;
use skillgate_plugin_host::{Current, SandboxInstance};
use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::model::{self, BlobStat, RunRequest, RunResult, SandboxCaps};
use tracing::Instrument;

use crate::audit::{self, Audit};
use crate::auth::Caller;
use crate::auth::Lapsed;
use crate::blobs::{self, Blobs};
use crate::catalog::{self, Catalog, Skill};
use crate::gate::{self, Gate, Grant};
use crate::policy::Permit;
use crate::secrets::{self, Granted, Secrets};
use crate::telemetry::metrics::Metrics;
use crate::telemetry::with_sources;
pub(crate) use answer::Answer;
use answer::{answer, failure};
use drain::Drain;
use ending::Ending;
use permits::{InUse, Permits};
use queue::Queue;
use request::Given;
use services::Services;
use watch::{Wait, Watch};

/// Largest `output` in an answer, in bytes of compact UTF-8 JSON (specification, REQUIREMENTS E4).
pub(crate) const OUTPUT_BYTES_MAX: usize = 4096;
/// Largest `logs_preview`, in bytes (REQUIREMENTS E5).
pub(crate) const LOGS_BYTES_MAX: usize = 2048;
/// How long after its deadline a sandbox that enforces it may take to say so before the gateway answers without it.
const OVERTIME: Duration = Duration::from_secs(2);

/// What keeps a run from starting, or its end from being known. A run that fails is an [`Answer`].
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An instruction skill.
    #[error(
        "{name} is an instruction skill: it has no code to run; read its SKILL.md with read_skill_file"
    )]
    NotExecutable {
        /// Which.
        name: String,
    },
    /// `runs.max_queued` is reached.
    #[error("too many runs are waiting; try again in {retry_after_ms} ms")]
    QueueFull {
        /// Advice.
        retry_after_ms: u64,
    },
    /// A skill could not be mounted.
    #[error(transparent)]
    Catalog(#[from] catalog::Error),
    /// A blob could not be mounted.
    #[error(transparent)]
    Blobs(#[from] blobs::Error),
    /// A secret was granted that cannot be given.
    #[error(transparent)]
    Secrets(#[from] secrets::Missing),
    /// The run has ended, and its end could not be recorded.
    #[error(
        "the run has ended, and the gateway cannot write its audit log, so its result is withheld: look at what the run has done before you call it again"
    )]
    Audit(#[from] audit::Unavailable),
    /// The rules that allowed it have been replaced while it waited.
    #[error("the organisation's rules changed while this run waited: nothing was run, call again")]
    Outdated,
    /// The token of its caller is taken no more since it waits.
    #[error("{0} while this run waited: nothing was run; {remedy} and call again", remedy = .0.remedy())]
    Lapsed(Lapsed),
    /// The permit's network cannot be kept.
    #[error(transparent)]
    Grant(#[from] gate::BadGrant),
    /// The permit has a network, and the sandbox has no gate (`SKG_EGRESS_GATE_LISTENER`).
    #[error(
        "this gateway's sandbox cannot hold a run to the network that the policy grants it, so nothing was run; use a skill that needs no network, or ask the gateway's operator for a sandbox that can"
    )]
    NoGate,
    /// The sandbox did not take the run.
    #[error("sandbox failed")]
    Sandbox(#[source] model::Error),
    /// The gateway ends before it has begun.
    #[error(
        "the gateway is stopping, and this run had not begun: nothing was run; call again, at another gateway if there are several"
    )]
    Stopping,
    /// The task of the run is gone.
    #[error("the run's task ended without a result")]
    Lost,
}

impl Error {
    /// Why a run was not started, as its record has it: one word, which names nothing of this host. None of one that has ended.
    fn reason(&self) -> Option<&'static str> {
        Some(match self {
            Error::NotExecutable { .. } => "skill_not_executable",
            Error::QueueFull { .. } => "queue_full",
            Error::Catalog(_) => "skill_unavailable",
            Error::Blobs(_) => "blob_unavailable",
            Error::Secrets(_) => "secret_unavailable",
            Error::Outdated => "policy_changed",
            Error::Lapsed(Lapsed::Expired) => "token_expired",
            Error::Lapsed(Lapsed::Withdrawn) => "token_withdrawn",
            Error::Lapsed(Lapsed::KeysUnavailable) => "keys_unavailable",
            Error::Lapsed(Lapsed::ClockUnset) => "clock_unset",
            Error::Stopping => "stopping",
            Error::Grant(_) => "network_malformed",
            Error::NoGate => "no_gate",
            Error::Sandbox(error) if error.code == abi::E_OUT_OF_RANGE => "too_large",
            Error::Sandbox(_) => "sandbox_unavailable",
            Error::Audit(_) | Error::Lost => return None,
        })
    }
}

/// What to run.
#[derive(Debug)]
pub(crate) enum Program {
    /// A skill's entrypoint.
    Skill(Arc<Skill>),
    /// Submitted code.
    Code {
        /// Python source.
        code: String,
        /// Its SHA-256 in hexadecimal digits, as the decision had it.
        sha256: String,
        /// The function to call.
        entrypoint: String,
    },
}

/// One run as asked for and allowed.
#[derive(Debug)]
pub(crate) struct Job {
    /// Who asked.
    pub caller: Caller,
    /// What was granted.
    pub permit: Permit,
    /// What to run.
    pub program: Program,
    /// Skills that the code can import, besides the one that is run.
    pub mounts: Vec<Arc<Skill>>,
    /// JSON text of the arguments, an object.
    pub args: Box<RawValue>,
    /// Blobs that the run may read.
    pub input_blobs: Vec<BlobStat>,
    /// As asked for.
    pub timeout_ms: Option<u64>,
    /// What keeps the room of its code and arguments, which may be large, until it has ended: its request may be gone by then.
    #[expect(dead_code, reason = "kept, and no more")]
    pub room: Room,
}

/// Kept, and no more.
pub(crate) type Room = Box<dyn fmt::Debug + Send + Sync>;

/// What the configuration's `[runs]` says.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// When a caller does not say.
    pub default_timeout_ms: u64,
    /// A longer wish is cut to it.
    pub timeout_ms_max: u64,
    /// At once.
    pub concurrent_max: usize,
    /// At once of one tenant; 0: all of them.
    pub tenant_concurrent_max: usize,
    /// Waiting.
    pub queued_max: usize,
    /// For each run.
    pub memory_bytes: u64,
    /// For each run.
    pub pids_max: u32,
    /// For each run.
    pub workspace_bytes: u64,
    /// For each run.
    pub workspace_inodes: u64,
    /// For each run.
    pub output_blobs_max: usize,
    /// A run whose caller has gone is ended; else it goes on to its end.
    pub kill_on_disconnect: bool,
}

/// Starts runs and answers for them.
#[derive(Debug, Clone)]
pub(crate) struct Runs {
    sandbox: Current<SandboxInstance>,
    catalog: Catalog,
    blobs: Blobs,
    secrets: Secrets,
    audit: Audit,
    gate: Gate,
    permits: Arc<Permits>,
    settings: Arc<Settings>,
    queue: Arc<Queue>,
    drain: Drain,
    metrics: Metrics,
    counted: usage::Counted,
}

/// How busy the runs are. Keeps nothing but the counts.
#[derive(Debug, Clone)]
pub(crate) struct Load(Arc<Queue>);

impl Load {
    /// Runs that go on, and runs that wait.
    pub(crate) fn now(&self) -> (usize, usize) {
        self.0.load()
    }
}

impl Runs {
    /// On top of a sandbox.
    pub(crate) fn new(
        sandbox: Current<SandboxInstance>,
        catalog: Catalog,
        blobs: Blobs,
        secrets: Secrets,
        audit: Audit,
        gate: Gate,
        settings: Settings,
    ) -> Self {
        let queue = Queue::new(
            settings.concurrent_max,
            settings.tenant_concurrent_max,
            settings.queued_max,
        );
        Runs {
            sandbox,
            catalog,
            blobs,
            secrets,
            audit,
            gate,
            permits: Arc::default(),
            settings: Arc::new(settings),
            queue,
            drain: Drain::default(),
            metrics: Metrics::default(),
            counted: usage::Counted::default(),
        }
    }

    /// Counts its runs there.
    #[must_use]
    pub(crate) fn watched_by(self, metrics: Metrics) -> Self {
        Runs { metrics, ..self }
    }

    /// Where its secrets come from.
    pub(crate) fn secrets(&self) -> &Secrets {
        &self.secrets
    }

    /// The way out of those that a permit grants network.
    pub(crate) fn gate(&self) -> &Gate {
        &self.gate
    }

    /// From now on nothing begins on the strength of rules before that generation.
    pub(crate) fn outdate(&self, generation: u64) {
        self.permits.outdate(generation);
    }

    /// How busy it is.
    pub(crate) fn load(&self) -> Load {
        Load(self.queue.clone())
    }

    /// Lets runs go on until that moment at the latest, and comes back when they have ended and their ends are in the log.
    /// Nobody starts one any more.
    pub(crate) async fn drain(&self, until: tokio::time::Instant) {
        self.drain.wait(until).await;
    }

    /// Runs a job to its end. When the caller goes away the future is dropped, and the run with it, unless
    /// `runs.on_disconnect = "finish"`.
    ///
    /// # Errors
    /// [`Error`] when it did not start or was lost; a run that fails is an [`Answer`].
    pub(crate) async fn run(&self, job: Job) -> Result<Answer, Error> {
        if self.settings.kill_on_disconnect {
            return self.run_now(job).await;
        }
        let this = self.clone();
        let mut going = self.drain.enter();
        let run = async move {
            tokio::select! {
                outcome = this.run_now(job) => outcome,
                () = going.long_over() => Err(Error::Lost),
            }
        };
        // Its lines in the log keep the name of the request.
        tokio::spawn(run.in_current_span())
            .await
            .map_err(|_| Error::Lost)?
    }

    async fn run_now(&self, mut job: Job) -> Result<Answer, Error> {
        let caller = &job.caller;
        let run_id = format!("run_{}", hex::encode(rand::random::<[u8; 16]>()));
        let ending = || Ending::new(self.audit.clone(), self.drain.enter(), &job, &run_id);
        let mut going = self.drain.enter();
        let wait = Wait::new(self.metrics.clone());
        let turn = tokio::select! {
            biased;
            () = going.over() => Err((true, Error::Stopping)),
            turn = self.queue.turn(caller.tenant(), &caller.subject().id) => {
                turn.map_err(|full| (full.waited, Error::from(full)))
            }
        };
        let turn = match turn {
            Ok(turn) => turn,
            Err((has_waited, error)) => {
                if !has_waited {
                    wait.uncounted();
                }
                // It was allowed, and that is on record.
                Watch::new(self.metrics.clone(), &job.program).not_started();
                ending().not_started(error.reason()).await;
                return Err(error);
            }
        };
        drop(wait);
        let mut watch = Watch::new(self.metrics.clone(), &job.program);
        let label = label(&job.program);
        let mut ending = ending();
        // Behind what is recorded of it.
        let given = Given::take(&mut job);
        let job = job;
        // For the operator, who can do more about a secret that is not there than the caller.
        let say_why_not = |error: &Error| {
            let decision_id = &job.permit.decision_id;
            let error = with_sources(error);
            tracing::warn!(run_id, what = label, decision_id, %error, "run not started");
        };
        let ready = tokio::select! {
            ready = self.ready(&job, given, &run_id) => ready,
            () = going.over() => Err(Error::Stopping),
        };
        let Ready {
            // Until the end of this function.
            in_use: _in_use,
            granted,
            gate,
            request,
            sandbox,
        } = match ready {
            Ok(ready) => ready,
            Err(error) => {
                say_why_not(&error);
                watch.not_started();
                ending.not_started(error.reason()).await;
                return Err(error);
            }
        };
        let wall = Duration::from_millis(request.limits.wall_ms);
        let services = Arc::new(Services::new(
            self.blobs.within(job.permit.max_blob_bytes),
            &job,
            &run_id,
            granted,
            self.settings.output_blobs_max,
            gate,
            turn,
        ));
        ending.watches(services.clone());

        let began = Instant::now();
        tracing::info!(
            run_id,
            what = label,
            decision_id = job.permit.decision_id,
            "run started"
        );
        let patience = wall + overtime(sandbox.caps());
        let run = tokio::time::timeout(patience, sandbox.run(request, services.clone()));
        // Dropped where its time is over: that ends it.
        let outcome = tokio::select! {
            outcome = run => Some(outcome),
            () = going.over() => None,
        };
        let took = began.elapsed();
        let wall_ms = took.as_millis() as u64;
        // Until the answer; one that has not ended keeps it. One whose sandbox was lost may hang in the store as before, on a
        // thread of the gateway's: it has its place until that lets go of what serves it.
        let _turn = matches!(outcome, Some(Ok(Ok(_)))).then(|| services.turn_over());
        let Some(outcome) = outcome else {
            let ended = Err(failure(abi::RUN_CANCELLED, STOPPED.into()));
            tracing::info!(run_id, wall_ms, "run ended: the gateway stops");
            // What is on record, and counted, is what becomes of each run that is dropped.
            return Ok(answer(run_id, &label, ended, &services, wall_ms));
        };
        let ended = match outcome {
            Ok(Ok(mut result)) => {
                let (plugin, caps) = (sandbox.plugin(), sandbox.caps());
                self.counted.hold(&mut result, took, plugin, caps);
                Ok(result)
            }
            Ok(Err(mut error)) if error.not_executed => {
                // It may have asked for them before it refused.
                error.message = services.redacted(&error.message).into_owned();
                let error = Error::Sandbox(error);
                say_why_not(&error);
                watch.not_started();
                ending.not_started(error.reason()).await;
                return Err(error);
            }
            Ok(Err(error)) => Err(sandbox_failure(&run_id, &error, &services)),
            Err(_) => {
                // Of one that does not enforce it the gateway has ended the run, as it says it does.
                if patience > wall {
                    tracing::error!(run_id, "the sandbox did not keep the deadline");
                }
                Err(failure(
                    abi::RUN_TIMEOUT,
                    format!(
                        "the run was ended: it took longer than {} ms",
                        wall.as_millis()
                    ),
                ))
            }
        };
        let told = |mut result: RunResult| {
            if result.error_type == abi::RUN_TIMEOUT {
                let name = match job.program {
                    Program::Skill { .. } => "timeout_ms",
                    Program::Code { .. } => "limits.timeout_ms",
                };
                let (settings, permit) = (&self.settings, &job.permit);
                result.error_message += &limits::longer(name, settings, permit, job.timeout_ms);
            }
            result
        };
        let ended = ended.map(told).map_err(told);
        let ended = services.without_secrets_in_blob(ended).await;
        let answer = answer(run_id, &label, ended, &services, wall_ms);
        tracing::info!(
            run_id = answer.run_id,
            status = answer.status,
            error = answer.error.as_ref().map(|error| error.r#type.as_str()),
            wall_ms,
            cpu_ms = answer.usage.cpu_ms,
            "run ended"
        );
        watch.answered(&answer);
        ending.answered(&answer).await?;
        Ok(answer)
    }

    /// What can fail before anything of a run is executed.
    async fn ready(&self, job: &Job, given: Given, run_id: &str) -> Result<Ready, Error> {
        self.check(job)?;
        let in_use = self.permits.enter(run_id, &job.permit)?;
        let granted = self.secrets.grant(&job.permit.secrets).await?;
        let gate = self.open_gate(job, run_id, &granted)?;
        let request = self.request(job, given, run_id).await?;
        // Kept until the run has ended: calls may go to another one by then.
        let sandbox = self.sandbox.get().await.map_err(Error::Sandbox)?;
        if gate.is_some() && sandbox.caps().egress & abi::EGRESS_GATE_LISTENER == 0 {
            return Err(Error::NoGate);
        }
        // Once more, and last: a store may have kept it waiting for long. It is also behind the opening of the gate, since
        // new rules look for gates that are open, and may have looked before this one was.
        self.check(job)?;
        Ok(Ready {
            in_use,
            granted,
            gate,
            request,
            sandbox,
        })
    }

    /// That neither the caller's token nor the rules that allowed it have come to their end meanwhile.
    fn check(&self, job: &Job) -> Result<(), Error> {
        if let Some(lapsed) = job.caller.lapsed() {
            return Err(Error::Lapsed(lapsed));
        }
        self.permits.check(&job.permit)
    }

    /// The way out of a run whose permit has one.
    fn open_gate(
        &self,
        job: &Job,
        run_id: &str,
        granted: &Granted,
    ) -> Result<Option<gate::Open>, Error> {
        let permit = &job.permit;
        if permit.network.is_empty() {
            return Ok(None);
        }
        let grant = Grant::new(
            run_id,
            job.caller.tenant(),
            &permit.decision_id,
            &permit.network,
            &permit.deny_cidrs,
        )?
        .hiding(granted.redactor().cloned());
        Ok(Some(self.gate.open(grant)))
    }
}

/// What a run begins with.
struct Ready {
    in_use: Option<InUse>,
    granted: Granted,
    gate: Option<gate::Open>,
    request: RunRequest,
    sandbox: Arc<SandboxInstance>,
}

/// What a run gets beyond its deadline. Who does not say that it enforces one leaves that to the host, which the contract has
/// cancel at `wall_ms`: nothing would come of waiting.
fn overtime(caps: &SandboxCaps) -> Duration {
    match caps.enforces & abi::LIMIT_WALL {
        0 => Duration::ZERO,
        _ => OVERTIME,
    }
}

fn label(program: &Program) -> String {
    match program {
        Program::Skill(skill) => format!("{} {}", skill.name(), skill.version()),
        Program::Code { .. } => "code".into(),
    }
}

/// `error.type` of a run that the sandbox had begun with and gives no result of.
const WORKER_LOST: &str = "WorkerLost";

/// Of a run that went on when the gateway's time to stop was over.
const STOPPED: &str = "the gateway was stopped before the run ended, and ended it; what it had done by then is done: check for its effects before you call it again";

/// A run that had begun when its sandbox broke: what it did is not known, so it is failed, never run again.
fn sandbox_failure(run_id: &str, error: &model::Error, services: &Services) -> RunResult {
    tracing::error!(
        run_id,
        code = error.code,
        reason = %services.redacted(&error.message),
        "the sandbox failed during a run"
    );
    match error.code {
        abi::E_CANCELLED => failure(abi::RUN_CANCELLED, "the run was cancelled".into()),
        // Never run again from here: it may have had effects.
        _ => failure(WORKER_LOST, "the sandbox was lost while the run was under way; what the run had done until then is not known: check for its effects before you call it again".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_enforce_the_deadline_is_cancelled_at_it() {
        let caps = |enforces| SandboxCaps {
            enforces,
            ..SandboxCaps::default()
        };
        assert_eq!(overtime(&caps(0)), Duration::ZERO);
        assert_eq!(overtime(&caps(!abi::LIMIT_WALL)), Duration::ZERO);
        assert_eq!(overtime(&caps(abi::LIMIT_WALL)), OVERTIME);
    }
}

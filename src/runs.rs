//! Runs: a permit, a skill or code, and arguments become one sandbox job; what comes back becomes a result.
//!
//! Everything that crosses from a run to the gateway is hostile bytes: the run's id, the list of its blobs, its
//! status and all sizes are the gateway's own; what the sandbox says is checked again.

mod logs;
mod queue;
mod services;

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::value::RawValue;
use skillgate_plugin_host::SandboxInstance;
use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::model::{
    self, BlobStat, Limits, Mount, RunRequest, RunResult, RunSkill, Source,
};

use crate::auth::Caller;
use crate::blobs::{self, Blobs};
use crate::catalog::{self, Catalog, Skill};
use crate::policy::Permit;
use queue::Queue;
use services::Services;

/// Largest `output` in an answer, in bytes of compact UTF-8 JSON (specification, REQUIREMENTS E4).
pub const OUTPUT_BYTES_MAX: usize = 4096;
/// Largest `logs_preview`, in bytes (REQUIREMENTS E5).
pub const LOGS_BYTES_MAX: usize = 2048;
/// Longest `summary`, in bytes.
const SUMMARY_BYTES_MAX: usize = 1024;
/// Longest `error.message`, in bytes.
const ERROR_BYTES_MAX: usize = 16 * 1024;
/// Longest `error.type`, in bytes.
const ERROR_TYPE_BYTES_MAX: usize = 128;
/// How long after its deadline a sandbox may take to say so before the gateway answers without it.
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
    /// The sandbox did not take the run.
    #[error("sandbox failed")]
    Sandbox(#[source] model::Error),
    /// The task of the run is gone.
    #[error("the run's task ended without a result")]
    Lost,
}

/// What to run.
#[derive(Debug)]
pub enum Program {
    /// A skill's entrypoint.
    Skill(Arc<Skill>),
    /// Submitted code.
    Code {
        /// Python source.
        code: String,
        /// The function to call.
        entrypoint: String,
    },
}

/// One run as asked for and allowed.
#[derive(Debug)]
pub struct Job {
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
}

/// The result of a run (specification, "Runs"; contract, section 5).
#[derive(Debug, Serialize)]
pub struct Answer {
    status: &'static str,
    run_id: String,
    summary: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<Box<RawValue>>,
    output_blobs: Vec<String>,
    logs_preview: String,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    logs_truncated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Failure>,
    usage: Usage,
}

impl Answer {
    /// The run returned.
    pub fn completed(&self) -> bool {
        self.error.is_none()
    }
}

/// Why a run failed, in its own words.
#[derive(Debug, Serialize)]
struct Failure {
    r#type: String,
    message: String,
}

#[derive(Debug, Serialize)]
struct Usage {
    wall_ms: u64,
    cpu_ms: u64,
    peak_memory_bytes: u64,
}

/// What the configuration's `[runs]` says.
#[derive(Debug, Clone)]
pub struct Settings {
    /// When a caller does not say.
    pub default_timeout_ms: u64,
    /// A longer wish is cut to it.
    pub timeout_ms_max: u64,
    /// At once.
    pub concurrent_max: usize,
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
pub struct Runs {
    sandbox: Arc<SandboxInstance>,
    catalog: Catalog,
    blobs: Blobs,
    settings: Arc<Settings>,
    queue: Arc<Queue>,
}

impl Runs {
    /// On top of a sandbox.
    pub fn new(
        sandbox: Arc<SandboxInstance>,
        catalog: Catalog,
        blobs: Blobs,
        settings: Settings,
    ) -> Self {
        let queue = Arc::new(Queue::new(settings.concurrent_max, settings.queued_max));
        Runs {
            sandbox,
            catalog,
            blobs,
            settings: Arc::new(settings),
            queue,
        }
    }

    /// Runs a job to its end. When the caller goes away the future is dropped, and the run with it, unless
    /// `runs.on_disconnect = "finish"`.
    ///
    /// # Errors
    /// [`Error`] when it did not start or was lost; a run that fails is an [`Answer`].
    pub async fn run(&self, job: Job) -> Result<Answer, Error> {
        if self.settings.kill_on_disconnect {
            return self.run_now(job).await;
        }
        let this = self.clone();
        tokio::spawn(async move { this.run_now(job).await })
            .await
            .map_err(|_| Error::Lost)?
    }

    async fn run_now(&self, job: Job) -> Result<Answer, Error> {
        let _turn = self.queue.turn().await?;
        let run_id = format!("run_{}", hex::encode(rand::random::<[u8; 16]>()));
        let label = label(&job.program);
        let request = self.request(&job, &run_id).await?;
        let wall = Duration::from_millis(request.limits.wall_ms);
        let services = Arc::new(Services::new(
            self.blobs.clone(),
            &job,
            &run_id,
            self.settings.output_blobs_max,
        ));

        let began = Instant::now();
        tracing::info!(
            run_id,
            what = label,
            decision_id = job.permit.decision_id,
            "run started"
        );
        let outcome =
            tokio::time::timeout(wall + OVERTIME, self.sandbox.run(request, services.clone()))
                .await;
        let wall_ms = began.elapsed().as_millis() as u64;
        let result = match outcome {
            Ok(Ok(result)) => result,
            Ok(Err(error)) if error.not_executed => return Err(Error::Sandbox(error)),
            Ok(Err(error)) => sandbox_failure(&run_id, &error),
            Err(_) => {
                tracing::error!(run_id, "the sandbox did not keep the deadline");
                failure(
                    abi::RUN_TIMEOUT,
                    format!(
                        "the run was ended: it took longer than {} ms",
                        wall.as_millis()
                    ),
                )
            }
        };
        let answer = answer(run_id, &label, result, &services, wall_ms);
        tracing::info!(
            run_id = answer.run_id,
            status = answer.status,
            error = answer.error.as_ref().map(|error| error.r#type.as_str()),
            wall_ms,
            cpu_ms = answer.usage.cpu_ms,
            "run ended"
        );
        Ok(answer)
    }

    async fn request(&self, job: &Job, run_id: &str) -> Result<RunRequest, Error> {
        let tenant = job.caller.tenant();
        let asked = job.timeout_ms.unwrap_or(self.settings.default_timeout_ms);
        let wall_ms = asked
            .min(self.settings.timeout_ms_max)
            .min(job.permit.timeout_ms.unwrap_or(u64::MAX));
        let target = match &job.program {
            Program::Skill(skill) => Some(skill),
            Program::Code { .. } => None,
        };
        let mut request = RunRequest {
            run_id: run_id.to_owned(),
            tenant: tenant.to_owned(),
            language: "python".into(),
            args_json: job.args.get().as_bytes().to_vec(),
            secrets: job.permit.secrets.clone(),
            limits: Limits {
                max_pids: self.settings.pids_max,
                wall_ms,
                cpu_ms: 0,
                memory_bytes: self.settings.memory_bytes,
                disk_bytes: self.settings.workspace_bytes,
                disk_inodes: self.settings.workspace_inodes,
                output_bytes: OUTPUT_BYTES_MAX as u64,
            },
            network: abi::NET_NONE,
            ..RunRequest::default()
        };
        match &job.program {
            Program::Skill(skill) => {
                let runtime = skill.runtime().ok_or_else(|| Error::NotExecutable {
                    name: skill.name().to_owned(),
                })?;
                request.skill = skill.name().to_owned();
                request.function = runtime.export.to_string();
            }
            Program::Code { code, entrypoint } => {
                request.code.clone_from(code);
                request.function.clone_from(entrypoint);
            }
        }
        for skill in target.into_iter().chain(&job.mounts) {
            let runtime = skill.runtime();
            request.skills.push(RunSkill {
                name: skill.name().to_owned(),
                version: skill.version().to_owned(),
                entrypoint: runtime
                    .map(|runtime| runtime.entrypoint.to_string())
                    .unwrap_or_default(),
                function: runtime
                    .map(|runtime| runtime.export.to_string())
                    .unwrap_or_default(),
            });
            request.mounts.push(Mount {
                target: format!("/skills/{}", skill.name()),
                read_only: true,
                source: self.catalog.tree(tenant, skill).await?,
                sha256: skill.digest().to_owned(),
                size_bytes: 0,
            });
        }
        for blob in &job.input_blobs {
            let source = match self.blobs.fd(tenant, &blob.id).await? {
                Some(fd) => Source::Fd(fd),
                None => Source::Blob(blob.id.clone()),
            };
            request.mounts.push(Mount {
                target: format!("/blobs/{}", blob.id.trim_start_matches("blob:")),
                read_only: true,
                source,
                sha256: blob.sha256.clone(),
                size_bytes: blob.size_bytes,
            });
        }
        Ok(request)
    }
}

fn label(program: &Program) -> String {
    match program {
        Program::Skill(skill) => format!("{} {}", skill.name(), skill.version()),
        Program::Code { .. } => "code".into(),
    }
}

fn failure(kind: &str, message: String) -> RunResult {
    RunResult {
        error_type: kind.to_owned(),
        error_message: message,
        ..RunResult::default()
    }
}

/// A run that had begun when its sandbox broke: what it did is not known, so it is failed, never run again.
fn sandbox_failure(run_id: &str, error: &model::Error) -> RunResult {
    tracing::error!(
        run_id,
        code = error.code,
        reason = error.message,
        "the sandbox failed during a run"
    );
    match error.code {
        abi::E_CANCELLED => failure(abi::RUN_CANCELLED, "the run was cancelled".into()),
        _ => failure(abi::RUN_SANDBOX_ERROR, "the sandbox failed while the run was under way; what it had done until then is not known".into()),
    }
}

fn answer(
    run_id: String,
    label: &str,
    mut result: RunResult,
    services: &Services,
    wall_ms: u64,
) -> Answer {
    let (logs_preview, logs_truncated) = services.logs();
    // The ids are those that the gateway handed out itself, in their order, whatever the sandbox says.
    let output_blobs = services.created();
    let mut output = None;
    if result.completed && !result.output_spilled {
        match output_of(&result.output_json) {
            Ok(value) => output = Some(value),
            Err(message) => {
                tracing::error!(
                    run_id,
                    message,
                    "the sandbox gave an output that does not fit"
                );
                result = RunResult {
                    cpu_us: result.cpu_us,
                    peak_memory_bytes: result.peak_memory_bytes,
                    ..failure(abi::RUN_SANDBOX_ERROR, message)
                };
            }
        }
    }
    let spilled = result.completed && result.output_spilled;
    let error = (!result.completed).then(|| Failure {
        r#type: cut(
            if result.error_type.is_empty() {
                abi::RUN_SANDBOX_ERROR
            } else {
                &result.error_type
            },
            ERROR_TYPE_BYTES_MAX,
        ),
        message: cut(&result.error_message, ERROR_BYTES_MAX),
    });
    let mut summary = if !result.summary.is_empty() {
        result.summary
    } else if let Some(said) = output.as_deref().and_then(said_summary) {
        said
    } else if let Some(error) = &error {
        last_line(error)
    } else {
        format!("{label} completed in {wall_ms} ms")
    };
    summary = cut(&summary, SUMMARY_BYTES_MAX);
    if spilled && let Some(id) = output_blobs.last() {
        summary = format!(
            "{summary} (the output is over {OUTPUT_BYTES_MAX} bytes: it is stored as {id})"
        );
    }
    Answer {
        status: if error.is_none() {
            "completed"
        } else {
            "failed"
        },
        run_id,
        summary,
        output,
        output_blobs,
        logs_preview,
        logs_truncated,
        error,
        usage: Usage {
            wall_ms,
            cpu_ms: result.cpu_us / 1000,
            peak_memory_bytes: result.peak_memory_bytes,
        },
    }
}

fn output_of(json: &[u8]) -> Result<Box<RawValue>, String> {
    if json.len() > OUTPUT_BYTES_MAX {
        return Err(format!(
            "the sandbox returned {} bytes of output, over the limit of {OUTPUT_BYTES_MAX}",
            json.len()
        ));
    }
    let text = std::str::from_utf8(json)
        .map_err(|_| "the sandbox returned an output that is not UTF-8".to_owned())?;
    crate::json::walk(text)
        .map_err(|_| "the sandbox returned an output that is not JSON".to_owned())?;
    RawValue::from_string(text.to_owned())
        .map_err(|_| "the sandbox returned an output that is not JSON".to_owned())
}

/// REQUIREMENTS R7: a top-level string `summary` of a returned object.
fn said_summary(output: &RawValue) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Said {
        summary: String,
    }
    // serde would also take an array for a struct.
    let object = output.get().starts_with('{').then_some(output.get())?;
    serde_json::from_str::<Said>(object)
        .ok()
        .map(|said| said.summary)
        .filter(|summary| !summary.is_empty())
}

fn last_line(error: &Failure) -> String {
    let last = error
        .message
        .lines()
        .rev()
        .map(str::trim)
        .find(|line| !line.is_empty())
        .unwrap_or(&error.r#type);
    // A traceback names the class with its module: `urllib.error.URLError: no host`.
    let (class, said) = last.split_once(": ").unwrap_or((last, ""));
    match class.rsplit('.').next() {
        Some(name) if name == error.r#type && said.is_empty() => name.to_owned(),
        Some(name) if name == error.r#type => format!("{name}: {said}"),
        _ => format!("{}: {last}", error.r#type),
    }
}

/// At most `bytes_max` bytes, cut between characters, with a sign that something is missing.
fn cut(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(bytes_max - '…'.len_utf8());
    format!("{}…", &text[..end])
}

#[cfg(test)]
mod tests {
    use super::{Failure, OUTPUT_BYTES_MAX, cut, last_line, output_of, said_summary};

    #[test]
    fn outputs_are_checked_again() {
        let fits = format!("\"{}\"", "x".repeat(OUTPUT_BYTES_MAX - 2));
        assert!(output_of(fits.as_bytes()).is_ok());
        let over = format!("\"{}\"", "x".repeat(OUTPUT_BYTES_MAX - 1));
        assert!(
            output_of(over.as_bytes())
                .unwrap_err()
                .contains("4097 bytes")
        );
        for bad in [
            &b""[..],
            b"{",
            b"NaN",
            b"\xff",
            b"1 2",
            br#"{"a":1,"a":2}"#,
            br#""\ud800""#,
        ] {
            assert!(output_of(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn summaries() {
        let raw = |text: &str| serde_json::value::RawValue::from_string(text.to_owned()).unwrap();
        assert_eq!(
            said_summary(&raw(r#"{"summary":"3 rows","n":3}"#)).as_deref(),
            Some("3 rows")
        );
        assert_eq!(said_summary(&raw(r#"{"summary":5}"#)), None);
        assert_eq!(said_summary(&raw(r#"["summary"]"#)), None);
        let failed = |kind: &str, message: &str| {
            last_line(&Failure {
                r#type: kind.into(),
                message: message.into(),
            })
        };
        assert_eq!(
            failed("ValueError", "Traceback\n  x\nValueError: bad row\n"),
            "ValueError: bad row"
        );
        assert_eq!(
            failed("URLError", "urllib.error.URLError: <no: host>"),
            "URLError: <no: host>"
        );
        assert_eq!(
            failed("KeyboardInterrupt", "KeyboardInterrupt"),
            "KeyboardInterrupt"
        );
        assert_eq!(
            failed("Timeout", "the run was ended"),
            "Timeout: the run was ended"
        );
    }

    #[test]
    fn cuts_between_characters() {
        for max in 3..20 {
            let text = cut("aé漢🙂 und so weiter", max);
            assert!(text.len() <= max);
        }
        assert_eq!(cut("short", 5), "short");
    }
}

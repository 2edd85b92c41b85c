//! What a run asks of the sandbox.

use serde_json::value::RawValue;
use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::model::{Mount, RunRequest, RunSkill, Source};

use super::limits::limits;
use super::{Error, Job, Program, Runs};

/// What may be as large as a request: moved from the job into what the sandbox is asked, and not copied.
pub(super) struct Given {
    args_json: Vec<u8>,
    /// Empty for a skill.
    code: String,
}

impl Given {
    pub(super) fn take(job: &mut Job) -> Self {
        let args = std::mem::replace(&mut job.args, RawValue::NULL.to_owned());
        Given {
            args_json: Box::<str>::from(args).into_string().into_bytes(),
            code: match &mut job.program {
                Program::Skill(_) => String::new(),
                Program::Code { code, .. } => std::mem::take(code),
            },
        }
    }
}

impl Runs {
    /// What the sandbox is asked: the program with what it was granted, and what is mounted for it.
    pub(super) async fn request(
        &self,
        job: &Job,
        given: Given,
        run_id: &str,
    ) -> Result<RunRequest, Error> {
        let tenant = job.caller.tenant();
        let target = match &job.program {
            Program::Skill(skill) => Some(skill),
            Program::Code { .. } => None,
        };
        let mut request = RunRequest {
            run_id: run_id.to_owned(),
            tenant: tenant.to_owned(),
            language: "python".into(),
            args_json: given.args_json,
            secrets: job.permit.secrets.clone(),
            limits: limits(&self.settings, &job.permit, job.timeout_ms),
            network: if job.permit.network.is_empty() {
                abi::NET_NONE
            } else {
                abi::NET_GATE
            },
            fresh: job.permit.fresh,
            traceparent: job.permit.trace.map_or_else(String::new, |t| t.to_string()),
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
            Program::Code { entrypoint, .. } => {
                request.code = given.code;
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

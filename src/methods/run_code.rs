//! `run_code`: submitted code in a fresh sandbox, with skills that it can import (REQUIREMENTS E2, E15, E16, R10).

use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde::Deserialize;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use super::{
    Error, First, INPUT_BLOBS_MAX, MOUNT_SKILLS_MAX, Method, Object, Prepared, Rooms, Whole, find,
    input_blobs, keys, later, mountable, object, read_params, timeout,
};
use crate::catalog;
use crate::policy::Facts;
use crate::rpc::{Call, aside};
use crate::runs::{Job, Program};

/// The function to call when a caller does not say (REQUIREMENTS E2).
const ENTRYPOINT_DEFAULT: &str = "main";

pub(super) const METHOD: Method = Method {
    name: "run_code",
    tool: true,
    description: "Execute LLM-written code in a sandbox with specified skills and blobs mounted.",
    params: include_str!("schema/run_code.json"),
    result: include_str!("schema/run.result.json"),
    prepare,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    language: String,
    code: String,
    entrypoint: Option<String>,
    args: Option<Box<RawValue>>,
    mount_skills: Option<First<String, MOUNT_SKILLS_MAX>>,
    input_blobs: Option<First<String, INPUT_BLOBS_MAX>>,
    limits: Option<Object<Limits>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Limits {
    timeout_ms: Option<Whole>,
}

fn prepare(rooms: Arc<Rooms>, call: Call) -> BoxFuture<'static, Result<Prepared, Error>> {
    Box::pin(async move {
        let params: Params = read_params(&call.params, METHOD.params)?;
        if params.language != "python" {
            return Err(catalog::Error::LanguageUnsupported {
                message: format!(
                    "language {:?} is not supported; \"python\" is",
                    crate::json::short(&params.language)
                ),
            }
            .into());
        }
        let entrypoint = params
            .entrypoint
            .unwrap_or_else(|| ENTRYPOINT_DEFAULT.into());
        if !catalog::is_identifier(&entrypoint) {
            return Err(Error::params(
                "/entrypoint",
                "entrypoint must be the name of a function that the code defines, a Python identifier",
            ));
        }
        let args = object(params.args, "/args")?;
        let timeout_ms = timeout(
            params.limits.and_then(|limits| limits.0.timeout_ms),
            "/limits/timeout_ms",
        )?;
        let First(names) = params.mount_skills.unwrap_or_default();
        if names.len() > MOUNT_SKILLS_MAX {
            return Err(Error::params(
                "/mount_skills",
                format!("a run mounts at most {MOUNT_SKILLS_MAX} skills"),
            ));
        }
        // What a request is by itself comes before what there is: else its answer would tell a hidden skill from a missing one.
        let arg_keys = keys(&args)?;
        let references = names.iter().enumerate().map(|(index, name)| {
            catalog::reference(name)
                .map_err(|message| Error::params(format!("/mount_skills/{index}"), message))
        });
        let references = references.collect::<Result<Vec<_>, _>>()?;
        let tenant = call.caller.tenant();
        let mut mounts = Vec::with_capacity(references.len());
        let (mut late, mut missing) = (None, None);
        for (name, version) in references {
            match find(&rooms, tenant, &name, version.as_deref()).await {
                Ok((skill, error)) => {
                    mounts.push(skill);
                    late = late.or(error);
                }
                // One before it may be hidden, and that comes first.
                Err(error @ Error::Catalog(catalog::Error::SkillNotFound { .. }))
                    if !mounts.is_empty() =>
                {
                    late = Some(error);
                    missing = Some(name);
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        later(&mut late, mountable(&mounts));
        let blobs = input_blobs(&rooms, tenant, params.input_blobs.unwrap_or_default()).await;
        let blobs = later(&mut late, blobs);
        let digest = aside(params.code.len(), || Sha256::digest(&params.code));
        let sha256 = hex::encode(digest);
        let mut facts = Facts::new(METHOD.name, call.caller.clone(), call.id)
            .with("language", "python")
            .with("code_sha256", sha256.as_str())
            .with("code_bytes", params.code.len())
            .with("entrypoint", entrypoint.as_str())
            .with("arg_keys", arg_keys)
            .with("arg_bytes", args.get().len());
        facts.missing = missing;
        // Each name once: a run that mounts two versions of one is refused, and rules that give grants by name would have two
        // values for it.
        for skill in &mounts {
            if facts.skills.iter().all(|it| it.name() != skill.name()) {
                facts.skills.push(skill.clone());
            }
        }
        facts.blobs.clone_from(&blobs);
        facts.timeout_ms = timeout_ms;
        Ok(Prepared::json(facts, move |permit| async move {
            late.map_or(Ok(()), Err)?;
            let program = Program::Code {
                code: params.code,
                sha256,
                entrypoint,
            };
            let job = Job {
                caller: call.caller,
                permit,
                program,
                mounts,
                args,
                input_blobs: blobs,
                timeout_ms,
                room: Box::new(call.space),
            };
            Ok(rooms.runs.run(job).await?)
        }))
    })
}

//! `execute_skill`: a skill's entrypoint in a fresh sandbox (REQUIREMENTS E1, E14).

use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    Error, First, INPUT_BLOBS_MAX, Method, Prepared, Rooms, Whole, find, input_blobs, keys, later,
    object, read_params, timeout,
};
use crate::policy::{ARGS_BYTES_MAX, Facts};
use crate::rpc::Call;
use crate::runs::{self, Job, Program};

pub(super) const METHOD: Method = Method {
    name: "execute_skill",
    tool: true,
    description: "Execute a skill's entrypoint in an ephemeral sandbox.",
    params: include_str!("schema/execute_skill.json"),
    result: include_str!("schema/run.result.json"),
    prepare,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    name: String,
    version: Option<String>,
    args: Option<Box<RawValue>>,
    input_blobs: Option<First<String, INPUT_BLOBS_MAX>>,
    timeout_ms: Option<Whole>,
}

fn prepare(rooms: Arc<Rooms>, call: Call) -> BoxFuture<'static, Result<Prepared, Error>> {
    Box::pin(async move {
        let params: Params = read_params(&call.params, METHOD.params)?;
        let args = object(params.args, "/args")?;
        let timeout_ms = timeout(params.timeout_ms, "/timeout_ms")?;
        // Before it is found: else the answer would tell a hidden skill from a missing one.
        let arg_keys = keys(&args)?;
        let tenant = call.caller.tenant();
        let (skill, mut late) =
            find(&rooms, tenant, &params.name, params.version.as_deref()).await?;
        if skill.runtime().is_none() {
            late.get_or_insert(
                runs::Error::NotExecutable {
                    name: skill.name().to_owned(),
                }
                .into(),
            );
        }
        let blobs = input_blobs(&rooms, tenant, params.input_blobs.unwrap_or_default()).await;
        let blobs = later(&mut late, blobs);
        let mut facts = Facts::new(METHOD.name, call.caller.clone(), call.id)
            .with("version_pinned", params.version.is_some())
            .with("arg_keys", arg_keys)
            .with("arg_bytes", args.get().len());
        facts.skills = vec![skill.clone()];
        facts.blobs.clone_from(&blobs);
        facts.timeout_ms = timeout_ms;
        facts.args = (args.get().len() <= ARGS_BYTES_MAX).then(|| args.get().into());
        Ok(Prepared::json(facts, move |permit| async move {
            late.map_or(Ok(()), Err)?;
            let job = Job {
                caller: call.caller,
                permit,
                program: Program::Skill(skill),
                mounts: vec![],
                args,
                input_blobs: blobs,
                timeout_ms,
                room: Box::new(call.space),
            };
            Ok(rooms.runs.run(job).await?)
        }))
    })
}

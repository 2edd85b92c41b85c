//! `execute_skill`: a skill's entrypoint in a fresh sandbox (REQUIREMENTS E1, E14).

use futures_util::future::BoxFuture;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Error, Method, Prepared, Rooms, input_blobs, object, read_params, timeout};
use crate::policy::Facts;
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
    input_blobs: Option<Vec<String>>,
    timeout_ms: Option<u64>,
}

fn prepare(rooms: Rooms, call: Call) -> BoxFuture<'static, Result<Prepared, Error>> {
    Box::pin(async move {
        let params: Params = read_params(&call.params)?;
        let args = object(params.args, "/args")?;
        let timeout_ms = timeout(params.timeout_ms, "/timeout_ms")?;
        let tenant = call.caller.tenant();
        let skill = rooms
            .catalog
            .get(tenant, &params.name, params.version.as_deref())
            .await?;
        if skill.runtime().is_none() {
            return Err(runs::Error::NotExecutable {
                name: skill.name().to_owned(),
            }
            .into());
        }
        let blobs = input_blobs(&rooms, tenant, params.input_blobs.unwrap_or_default()).await?;
        let mut request = serde_json::Map::new();
        request.insert("version_pinned".into(), params.version.is_some().into());
        request.insert("arg_bytes".into(), args.get().len().into());
        let facts = Facts {
            method: "execute_skill",
            caller: call.caller.clone(),
            request,
            skills: vec![skill.clone()],
            blobs: blobs.clone(),
            timeout_ms,
        };
        Ok(Prepared::json(facts, move |permit| async move {
            let job = Job {
                caller: call.caller,
                permit,
                program: Program::Skill(skill),
                mounts: vec![],
                args,
                input_blobs: blobs,
                timeout_ms,
            };
            Ok(rooms.runs.run(job).await?)
        }))
    })
}

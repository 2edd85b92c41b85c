//! `read_skill_file`: one file of a skill, and nothing outside its directory (REQUIREMENTS D5, R3, R11).

use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde::Deserialize;

use super::{Content, Error, Method, Prepared, Rooms, find, read_params};
use crate::catalog;
use crate::policy::Facts;
use crate::rpc::Call;

pub(super) const METHOD: Method = Method {
    name: "read_skill_file",
    tool: true,
    description: "Read any file in a skill's directory (e.g., SKILL.md, extra docs, schemas).",
    params: include_str!("schema/read_skill_file.json"),
    result: include_str!("schema/read_skill_file.result.json"),
    prepare,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    name: String,
    version: Option<String>,
    path: String,
}

fn prepare(rooms: Arc<Rooms>, call: Call) -> BoxFuture<'static, Result<Prepared, Error>> {
    Box::pin(async move {
        let params: Params = read_params(&call.params, METHOD.params)?;
        let path = catalog::path(&params.path)?;
        let (skill, late) = find(
            &rooms,
            call.caller.tenant(),
            &params.name,
            params.version.as_deref(),
        )
        .await?;
        let mut facts =
            Facts::new(METHOD.name, call.caller.clone(), call.id).with("path", path.as_str());
        facts.skills = vec![skill.clone()];
        let instead = "read the file in a run that mounts the skill (run_code with mount_skills)";
        let bytes_max = rooms.answer_bytes_max;
        Ok(Prepared::reading(
            facts,
            call.space.clone(),
            bytes_max,
            instead,
            move |_permit| async move {
                late.map_or(Ok(()), Err)?;
                call.space.enter(skill.file_bytes(path.as_str())).await?;
                let bytes = rooms
                    .catalog
                    .read(call.caller.tenant(), &skill, &path, bytes_max)
                    .await?;
                Ok(Content::from(bytes))
            },
        ))
    })
}

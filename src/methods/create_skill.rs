//! `create_skill`: publishes a skill version, at once and for good, or not at all (REQUIREMENTS K7, R9).

use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use skillgate_skill::FILES_MAX;

use super::{Encoding, Error, First, Method, Object, Prepared, Rooms, decode, read_params};
use crate::catalog::NewSkill;
use crate::policy::Facts;
use crate::rpc::Call;

pub(super) const METHOD: Method = Method {
    name: "create_skill",
    // Not one of the eight tools that a model sees.
    tool: false,
    description: "Register a new skill version: its manifest, its SKILL.md and its files.",
    params: include_str!("schema/create_skill.json"),
    result: include_str!("schema/create_skill.result.json"),
    prepare,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    manifest: Box<RawValue>,
    skill_md: String,
    files: Option<First<Object<File>, FILES_MAX>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    path: String,
    content: String,
    encoding: Option<Encoding>,
}

#[derive(Serialize)]
struct Answer {
    name: String,
    version: String,
    /// What is hardly meant as it is, and is published. Where there is none the answer has no such member.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

fn prepare(rooms: Arc<Rooms>, call: Call) -> BoxFuture<'static, Result<Prepared, Error>> {
    Box::pin(async move {
        let params: Params = read_params(&call.params, METHOD.params)?;
        let mut files = Vec::new();
        let First(given) = params.files.unwrap_or_default();
        for (index, Object(file)) in given.into_iter().enumerate() {
            let content = decode(
                file.content,
                file.encoding,
                &format!("/files/{index}/content"),
            )?;
            files.push((file.path, content));
        }
        let new = NewSkill {
            manifest: params.manifest.get().to_owned(),
            skill_md: params.skill_md,
            files,
        };
        let draft = rooms
            .catalog
            .draft(&call.caller, new, call.space.clone())
            .await?;
        let mut facts = Facts::new(METHOD.name, call.caller, call.id)
            .with("file_count", draft.file_count())
            .with("bytes", draft.bytes());
        facts.skills = vec![draft.skill()];
        facts.publishes = true;
        Ok(Prepared::json(facts, move |_permit| async move {
            let warnings = draft.warnings();
            let published = rooms.catalog.publish(draft, call.space).await?;
            Ok(Answer {
                name: published.name,
                version: published.version,
                warnings,
            })
        }))
    })
}

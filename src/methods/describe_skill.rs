//! `describe_skill`: the manifest and the front matter of a skill (REQUIREMENTS D4).

use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use skillgate_skill::SKILL_MD;

use super::{Error, Method, Prepared, Rooms, bounded, find, read_params};
use crate::policy::Facts;
use crate::rpc::Call;

pub(super) const METHOD: Method = Method {
    name: "describe_skill",
    tool: true,
    description: "Retrieve a skill's manifest and documentation frontmatter.",
    params: include_str!("schema/describe_skill.json"),
    result: include_str!("schema/describe_skill.result.json"),
    prepare,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    name: String,
    version: Option<String>,
    detail: Option<Detail>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Detail {
    Manifest,
    Summary,
    Full,
}

impl Detail {
    /// As policies see it.
    fn name(self) -> &'static str {
        match self {
            Detail::Manifest => "manifest",
            Detail::Summary => "summary",
            Detail::Full => "full",
        }
    }
}

#[derive(Serialize)]
struct Answer<'a> {
    skill: Described<'a>,
}

#[derive(Serialize)]
struct Described<'a> {
    manifest: &'a Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    skill_md_frontmatter: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    skill_md: Option<String>,
    /// For `read_skill_file`: the first [`FILES_MAX`].
    #[serde(skip_serializing_if = "Option::is_none")]
    files: Option<Vec<File<'a>>>,
}

#[derive(Serialize)]
struct File<'a> {
    path: &'a str,
    size_bytes: u64,
}

/// Files that an answer names.
const FILES_MAX: usize = 100;

fn prepare(rooms: Arc<Rooms>, call: Call) -> BoxFuture<'static, Result<Prepared, Error>> {
    Box::pin(async move {
        let params: Params = read_params(&call.params, METHOD.params)?;
        let (skill, late) = find(
            &rooms,
            call.caller.tenant(),
            &params.name,
            params.version.as_deref(),
        )
        .await?;
        let detail = params.detail.unwrap_or(Detail::Summary);
        let mut facts =
            Facts::new(METHOD.name, call.caller.clone(), call.id).with("detail", detail.name());
        facts.skills = vec![skill.clone()];
        Ok(Prepared::new(facts, move |_permit| async move {
            late.map_or(Ok(()), Err)?;
            let skill_md = match detail {
                Detail::Full => {
                    call.space.enter(skill.file_bytes(SKILL_MD)).await?;
                    Some(rooms.catalog.skill_md(call.caller.tenant(), &skill).await?)
                }
                Detail::Manifest | Detail::Summary => None,
            };
            let files = skill.files().iter().take(FILES_MAX).map(|file| File {
                path: &file.path,
                size_bytes: file.size_bytes,
            });
            let skill = Described {
                files: (detail == Detail::Full).then(|| files.collect()),
                manifest: skill.manifest_json(),
                skill_md_frontmatter: (detail != Detail::Manifest).then(|| skill.frontmatter()),
                skill_md,
            };
            let instead = "leave detail out, and read SKILL.md in a run that mounts the skill (run_code with mount_skills)";
            let answer = Answer { skill };
            bounded(answer, &call.space, rooms.answer_bytes_max, instead).await
        }))
    })
}

//! `load_skills_protocol_guide`: the canonical guide, the same in every runtime (REQUIREMENTS D6, R3).

use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde::Deserialize;

use super::{Content, Error, Method, Prepared, Rooms, read_params};
use crate::policy::Facts;
use crate::rpc::Call;

pub(super) const METHOD: Method = Method {
    name: "load_skills_protocol_guide",
    tool: true,
    description: "Load the Skills Protocol Guide to learn how to use these tools. Call this first if you haven't read the guide yet.",
    params: include_str!("schema/load_skills_protocol_guide.json"),
    result: include_str!("schema/load_skills_protocol_guide.result.json"),
    prepare,
};

/// The guide's text: the specification's, byte for byte.
const GUIDE: &str = include_str!("../../skills/skills.protocol.guide/SKILL.md");

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {}

fn prepare(_rooms: Arc<Rooms>, call: Call) -> BoxFuture<'static, Result<Prepared, Error>> {
    Box::pin(async move {
        let Params {} = read_params(&call.params, METHOD.params)?;
        let facts = Facts::new(METHOD.name, call.caller, call.id);
        Ok(Prepared::json(facts, |_permit| async {
            Ok(Content::from(GUIDE.as_bytes().to_vec()))
        }))
    })
}

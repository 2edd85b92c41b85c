//! `read_blob`: a look at a blob (REQUIREMENTS P2 to P4, R11).

use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

use super::{Content, Error, Method, Prepared, Rooms, Whole, read_params};
use crate::blobs::{Mode, SAMPLE_BYTES_DEFAULT};
use crate::policy::Facts;
use crate::rpc::Call;

pub(super) const METHOD: Method = Method {
    name: "read_blob",
    tool: true,
    description: "Retrieve a preview of blob content. Full reads discouraged for large blobs.",
    params: include_str!("schema/read_blob.json"),
    result: include_str!("schema/read_blob.result.json"),
    prepare,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    blob_id: String,
    mode: Option<Mode>,
    max_bytes: Option<Whole>,
}

#[derive(Serialize)]
struct Answer {
    #[serde(flatten)]
    content: Content,
    truncated: bool,
    /// Of the whole blob, where this is a part of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    size_bytes: Option<u64>,
    kind: String,
}

fn prepare(rooms: Arc<Rooms>, call: Call) -> BoxFuture<'static, Result<Prepared, Error>> {
    Box::pin(async move {
        let params: Params = read_params(&call.params, METHOD.params)?;
        let max_bytes = params.max_bytes.map(|Whole(bytes)| bytes);
        if max_bytes == Some(0) {
            return Err(Error::params("/max_bytes", "max_bytes must be at least 1"));
        }
        let mode = params.mode.unwrap_or(Mode::SampleHead);
        let stat = rooms
            .blobs
            .stat(call.caller.tenant(), &params.blob_id)
            .await?;
        let mut facts = Facts::new(METHOD.name, call.caller.clone(), call.id)
            .with("mode", mode.name())
            .with("max_bytes", max_bytes);
        let most = match mode {
            Mode::Full => u64::MAX,
            Mode::SampleHead | Mode::SampleTail => SAMPLE_BYTES_DEFAULT,
        };
        let size_bytes = stat.size_bytes;
        let bytes = max_bytes.unwrap_or(most).min(size_bytes);
        facts.blobs = vec![stat.clone()];
        let instead = "read less with max_bytes, stream GET /blobs/{id}, or work on it in a run with input_blobs";
        let bytes_max = rooms.answer_bytes_max;
        Ok(Prepared::reading(
            facts,
            call.space.clone(),
            bytes_max,
            instead,
            move |_permit| async move {
                call.space.enter(bytes).await?;
                let preview = rooms
                    .blobs
                    .preview(call.caller.tenant(), stat, mode, max_bytes, bytes_max)
                    .await?;
                Ok(Answer {
                    content: Content::from(preview.bytes),
                    truncated: preview.truncated,
                    size_bytes: preview.truncated.then_some(size_bytes),
                    kind: preview.kind,
                })
            },
        ))
    })
}

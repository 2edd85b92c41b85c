//! `create_blob`: content in the request becomes a blob (REQUIREMENTS P1, R11). Larger content goes to `POST /blobs`.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use futures_util::stream;
use serde::{Deserialize, Serialize};

use super::{Encoding, Error, Method, Prepared, Rooms, decode, read_params};
use crate::blobs::Kind;
use crate::policy::Facts;
use crate::rpc::Call;

pub(super) const METHOD: Method = Method {
    name: "create_blob",
    tool: true,
    description: "Store large content as a blob and return its ID.",
    params: include_str!("schema/create_blob.json"),
    result: include_str!("schema/create_blob.result.json"),
    prepare,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    content: String,
    kind: String,
    encoding: Option<Encoding>,
}

/// Also the answer of `POST /blobs`.
#[derive(Debug, Serialize)]
pub(crate) struct Created {
    /// `blob:...`
    pub blob_id: String,
    /// Bytes, not characters.
    pub size_bytes: u64,
}

fn prepare(rooms: Arc<Rooms>, call: Call) -> BoxFuture<'static, Result<Prepared, Error>> {
    Box::pin(async move {
        let params: Params = read_params(&call.params, METHOD.params)?;
        let kind = Kind::parse(&params.kind).map_err(|message| Error::params("/kind", message))?;
        let content = decode(params.content, params.encoding, "/content")?;
        let mut facts =
            Facts::new(METHOD.name, call.caller.clone(), call.id).with("kind", kind.as_str());
        facts.blob_bytes = Some(content.len() as u64);
        Ok(Prepared::json(facts, move |permit| async move {
            let content = stream::iter([Ok::<_, Error>(call.space.keep(content))]);
            let stat = rooms
                .blobs
                .within(permit.max_blob_bytes)
                .create(&call.caller, &kind, content)
                .await?;
            Ok(Created {
                blob_id: stat.id,
                size_bytes: stat.size_bytes,
            })
        }))
    })
}

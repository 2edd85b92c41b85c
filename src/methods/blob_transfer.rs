//! `create_blob` and `read_blob` for content that does not go through JSON: streamed, behind the same policy.

use bytes::Bytes;
use futures_util::Stream;
use skillgate_plugin_host::BlobReader;
use skillgate_plugin_sdk::model::BlobStat;

use super::Prepared;
use super::create_blob::Created;
use crate::auth::Caller;
use crate::blobs::{Blobs, Kind};
use crate::policy::Facts;

/// Stores a stream as a blob: `create_blob` for large content, of `bytes` bytes where that is known before.
pub(crate) fn upload<E>(
    blobs: Blobs,
    caller: Caller,
    kind: Kind,
    bytes: Option<u64>,
    content: impl Stream<Item = Result<Bytes, E>> + Send + 'static,
) -> Prepared<Result<Created, E>>
where
    E: From<crate::blobs::Error> + Send + 'static,
{
    let mut facts = Facts::new("create_blob", caller.clone(), "").with("kind", kind.as_str());
    facts.blob_bytes = bytes;
    Prepared::new(facts, move |permit| async move {
        let blobs = blobs.within(permit.max_blob_bytes);
        let stored = blobs.create(&caller, &kind, content).await;
        Ok(stored.map(|stat| Created {
            blob_id: stat.id,
            size_bytes: stat.size_bytes,
        }))
    })
}

/// Reads a range of a blob: `read_blob` for large content. The reader gives exactly that range; nothing to read is no reader.
pub(crate) fn download(
    blobs: Blobs,
    caller: Caller,
    stat: BlobStat,
    offset: u64,
    len: u64,
) -> Prepared<Option<BlobReader>> {
    let mut facts = Facts::new("read_blob", caller.clone(), "")
        .with("mode", "full")
        .with("max_bytes", len);
    facts.blobs = vec![stat.clone()];
    Prepared::new(facts, move |_permit| async move {
        if len == 0 {
            return Ok(None);
        }
        let reader = blobs.open(caller.tenant(), &stat.id, offset, len).await?;
        Ok(Some(reader))
    })
}

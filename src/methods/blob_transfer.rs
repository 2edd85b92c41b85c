//! `create_blob` and `read_blob` for content that does not go through JSON: streamed, behind the same policy.

use bytes::Bytes;
use futures_util::Stream;
use skillgate_plugin_host::BlobReader;
use skillgate_plugin_sdk::model::BlobStat;

use super::create_blob::Created;
use super::{Error, Prepared, Rooms};
use crate::auth::Caller;
use crate::blobs::Kind;
use crate::policy::Facts;

/// A part of a blob on its way out.
#[derive(Debug)]
pub struct Download {
    /// Gives exactly the range that was asked for.
    pub reader: BlobReader,
}

/// Stores a stream as a blob: `create_blob` for large content, of `bytes` bytes where that is known before.
pub fn upload<E>(
    rooms: Rooms,
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
        let blobs = rooms.blobs.within(permit.max_blob_bytes);
        let stored = blobs.create(&caller, &kind, content).await;
        Ok(stored.map(|stat| Created {
            blob_id: stat.id,
            size_bytes: stat.size_bytes,
        }))
    })
}

/// Reads a range of a blob: `read_blob` for large content. Nothing to read is no reader.
pub fn download(
    rooms: Rooms,
    caller: Caller,
    stat: BlobStat,
    offset: u64,
    len: u64,
) -> Prepared<Option<Download>> {
    let mut facts = Facts::new("read_blob", caller.clone(), "")
        .with("mode", "full")
        .with("max_bytes", len);
    facts.blobs = vec![stat.clone()];
    Prepared::new(facts, move |_permit| async move {
        if len == 0 {
            return Ok(None);
        }
        let reader = rooms
            .blobs
            .open(caller.tenant(), &stat.id, offset, len)
            .await?;
        Ok(Some(Download { reader }))
    })
}

/// What a blob is, for whoever must know its size before asking for a range.
///
/// # Errors
/// As `read_blob`.
pub async fn stat(rooms: &Rooms, caller: &Caller, id: &str) -> Result<BlobStat, Error> {
    Ok(rooms.blobs.stat(caller.tenant(), id).await?)
}

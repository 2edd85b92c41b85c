//! `POST /blobs` and `GET /blobs/{id}`: blobs as bytes, streamed; behind the same policy as `create_blob` and
//! `read_blob`. Bound by `blobs.max_bytes`, not by `max_body_bytes`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, stream};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use skillgate_plugin_host::BlobReader;
use tokio::time::Instant;
use tower::{ServiceBuilder, ServiceExt};

use crate::auth::{Authenticated, Caller, Lapsed};
use crate::blobs::{self, Blobs, CHUNK_BYTES, Kind};
use crate::limit::{CallLimitLayer, Limits};
use crate::methods::{Perform, Prepared, blob_transfer};
use crate::policy::{Policy, PolicyLayer};
use crate::rescue::Refusal;
use crate::rpc::ErrorObject;
use crate::server::progress::{BYTES_PER_S_MIN, Progress, TIMEOUTS};
use crate::server::{Body, BodyError, Broken, full, next_piece};
use crate::slots::{Slot, Slots};
use crate::telemetry::trace::Trace;

/// Whoever keeps a blob asks before he uses it again, with its ETag: it may have ended, or may be nobody's business any more.
const ASKED_AGAIN: &str = "private, no-cache";

/// Blobs over plain HTTP.
#[derive(Debug, Clone)]
pub(crate) struct Transfer {
    blobs: Blobs,
    policy: Policy,
    limits: Limits,
    idle_timeout: Duration,
    /// Of the store's open blobs, so many are for those who come this way: the rest is for runs.
    places: Arc<Slots>,
}

impl Transfer {
    /// Of as many at the same time as `transfers_max` says, each of which goes on after `idle_timeout` at the latest.
    pub(crate) fn new(
        blobs: Blobs,
        policy: Policy,
        limits: Limits,
        idle_timeout: Duration,
        transfers_max: usize,
    ) -> Self {
        Transfer {
            blobs,
            policy,
            limits,
            idle_timeout,
            places: Slots::new(transfers_max),
        }
    }

    /// For a blob on its way, until it has arrived. Whoever sends or reads as slowly as he may keeps it from others of his own
    /// tenant.
    fn place(&self, caller: &Caller) -> Result<Slot, Refusal> {
        self.places.take(caller.tenant()).ok_or_else(|| {
            Refusal::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "unavailable",
                "too many blob transfers are under way (blobs.max_transfers): try again when some have ended",
            )
            .with(header::RETRY_AFTER, "1")
        })
    }

    async fn permitted<R: Send + 'static>(
        &self,
        trace: Trace,
        prepared: Prepared<R>,
    ) -> Result<R, Refusal> {
        let stack = ServiceBuilder::new()
            .layer(PolicyLayer(self.policy.clone()))
            .layer(CallLimitLayer(self.limits.clone()))
            .service(Perform);
        stack
            .oneshot(prepared.traced(trace))
            .await
            .map_err(Refusal::from)
    }

    /// Stores the body under its Content-Type.
    pub(super) async fn receive(&self, request: Authenticated) -> Result<Response<Body>, Refusal> {
        let Authenticated {
            caller, request, ..
        } = request;
        let kind = request
            .headers()
            .get(header::CONTENT_TYPE)
            .and_then(|value| value.to_str().ok())
            .unwrap_or("");
        let kind = Kind::parse(kind).map_err(|why| {
            Refusal::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "unsupported_media_type",
                format!("Content-Type: {why}"),
            )
        })?;
        if request.headers().contains_key(header::CONTENT_ENCODING) {
            return Err(Refusal::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "unsupported_media_type",
                "a Content-Encoding is not accepted: send the bytes as they are",
            ));
        }
        let _place = self.place(&caller)?;
        let bytes = http_body::Body::size_hint(request.body()).exact();
        // Before the rules, which may know of a ceiling as well: one limit has one answer, however the length is said.
        self.blobs
            .check_size(bytes.unwrap_or_default())
            .map_err(UploadError::from)?;
        let trace = Trace::in_request(&request);
        let content = pieces(request.into_body(), caller.clone(), self.idle_timeout);
        let stored = self
            .permitted(
                trace,
                blob_transfer::upload(self.blobs.clone(), caller, kind, bytes, content),
            )
            .await?;
        let created = stored.map_err(Refusal::from)?;
        let location = format!("/blobs/{}", created.blob_id);
        let text =
            serde_json::to_string(&created).map_err(|_| Refusal::from(ErrorObject::internal()))?;
        let mut response = super::text_response("application/json", text);
        *response.status_mut() = StatusCode::CREATED;
        if let Ok(location) = HeaderValue::from_str(&location) {
            response.headers_mut().insert(header::LOCATION, location);
        }
        Ok(response)
    }

    /// Sends a blob, or the range of it that was asked for (RFC 9110 section 14).
    pub(super) async fn send(
        &self,
        request: Authenticated,
        id: &str,
    ) -> Result<Response<Body>, Refusal> {
        let Authenticated {
            caller, request, ..
        } = request;
        let place = self.place(&caller)?;
        let stat = self.blobs.stat(caller.tenant(), id).await;
        let stat = stat.map_err(ErrorObject::from)?;
        let size = stat.size_bytes;
        let trace = Trace::in_request(&request);
        let etag = format!("\"{}\"", stat.sha256);
        let is_known = is_known(request.headers(), &etag);
        let range = range(request.method(), request.headers(), &etag, size);
        let (offset, len) = match range {
            // Nothing of it is sent.
            _ if is_known => (0, 0),
            Ok(Some(part)) => part,
            Ok(None) => (0, size),
            Err(Unsatisfiable) => (0, 0),
        };
        let head = request.method() == Method::HEAD;
        let kind = stat.kind.clone();
        // Also for a head and for a blob of no bytes: its type and its digest are somebody's.
        let download = self
            .permitted(
                trace,
                blob_transfer::download(self.blobs.clone(), caller, stat, offset, len),
            )
            .await?;
        if is_known {
            let mut response = Response::new(full(""));
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            let headers = response.headers_mut();
            if let Ok(etag) = HeaderValue::from_str(&etag) {
                headers.insert(header::ETAG, etag);
            }
            headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(ASKED_AGAIN));
            return Ok(response);
        }
        // After the decision: that a range is beyond the end says how long the blob is.
        let Ok(range) = range else {
            let mut refusal = Refusal::new(
                StatusCode::RANGE_NOT_SATISFIABLE,
                "bad_request",
                format!("the blob has {size} bytes"),
            );
            refusal.headers.extend(
                HeaderValue::from_str(&format!("bytes */{size}"))
                    .map(|value| (header::CONTENT_RANGE, value)),
            );
            return Err(refusal);
        };
        let body = match download {
            Some(reader) if !head => streamed(reader, place),
            _ => full(""),
        };
        let mut response = Response::new(body);
        if range.is_some() {
            *response.status_mut() = StatusCode::PARTIAL_CONTENT;
        }
        let headers = response.headers_mut();
        let mut set = |name, value: &str| {
            if let Ok(value) = HeaderValue::from_str(value) {
                headers.insert(name, value);
            }
        };
        set(header::CACHE_CONTROL, ASKED_AGAIN);
        set(header::CONTENT_TYPE, &kind);
        set(header::CONTENT_LENGTH, &len.to_string());
        set(header::ACCEPT_RANGES, "bytes");
        set(header::ETAG, &etag);
        // A blob is somebody's bytes: a browser must neither guess what it is nor show it as a page of ours.
        set(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
        set(header::CONTENT_DISPOSITION, "attachment");
        set(
            header::CONTENT_SECURITY_POLICY,
            "sandbox; default-src 'none'",
        );
        if range.is_some() {
            set(
                header::CONTENT_RANGE,
                &format!("bytes {offset}-{}/{size}", offset + len - 1),
            );
        }
        Ok(response)
    }
}

/// Why an upload broke off.
#[derive(Debug)]
enum UploadError {
    Body(Broken),
    /// It comes too slowly.
    Slow,
    /// Its caller's token is taken no more.
    Lapsed(Lapsed),
    Blob(blobs::Error),
}

impl From<blobs::Error> for UploadError {
    fn from(error: blobs::Error) -> Self {
        UploadError::Blob(error)
    }
}

impl From<UploadError> for Refusal {
    fn from(error: UploadError) -> Self {
        match error {
            UploadError::Body(broken) => broken.into(),
            UploadError::Slow => Refusal::new(
                StatusCode::REQUEST_TIMEOUT,
                "timeout",
                format!(
                    "the body comes too slowly: under {BYTES_PER_S_MIN} bytes in a second, for {TIMEOUTS} times \
                     server.body_timeout_ms; send it over a faster connection, or in smaller blobs"
                ),
            ),
            UploadError::Lapsed(lapsed) => {
                let remedy = lapsed.remedy();
                let message = format!(
                    "{lapsed} before the body had arrived, so nothing is stored; {remedy} and send it again"
                );
                ErrorObject::lapsed(lapsed, message).into()
            }
            UploadError::Blob(error) => ErrorObject::from(error).into(),
        }
    }
}

/// The data of a body. A pause longer than `idle` ends it, and so do a pace that is too slow and the end of the token, or of
/// the trust in its key: also that between the last piece and the end, after which it is stored.
fn pieces(
    body: Body,
    caller: Caller,
    idle: Duration,
) -> impl Stream<Item = Result<Bytes, UploadError>> + Send + 'static {
    let upload = Some((body, Progress::new(idle)));
    stream::unfold((upload, caller), move |(upload, caller)| async move {
        let (mut body, mut progress) = upload?;
        let began = Instant::now();
        let piece = next_piece(&mut body, idle).await;
        let why = match (caller.lapsed(), piece) {
            (Some(lapsed), _) => UploadError::Lapsed(lapsed),
            (None, None) => return None,
            (None, Some(Err(broken))) => UploadError::Body(broken),
            (None, Some(Ok(piece))) if progress.is_enough(piece.len(), began.elapsed()) => {
                return Some((Ok(piece), (Some((body, progress)), caller)));
            }
            (None, Some(Ok(_))) => UploadError::Slow,
        };
        Some((Err(why), (None, caller)))
    })
}

fn streamed(reader: BlobReader, place: Slot) -> Body {
    let pieces = stream::unfold(Some((reader, place)), |on_its_way| async move {
        let (mut reader, place) = on_its_way?;
        match reader.read(CHUNK_BYTES).await {
            Ok((piece, end)) => Some((
                Ok(Frame::data(Bytes::from(piece))),
                (!end).then_some((reader, place)),
            )),
            Err(error) => {
                // The status line is gone already: the connection breaks off, so that nobody takes a part for the whole.
                tracing::error!(
                    code = error.code,
                    reason = error.message,
                    "a blob could not be read to its end"
                );
                Some((
                    Err(BodyError("the blob could not be read to its end".into())),
                    None,
                ))
            }
        }
    });
    StreamBody::new(pieces).boxed_unsync()
}

/// Whether the client has it already (`If-None-Match`, RFC 9110 section 13.1.2). A blob is there, so `*` is it.
fn is_known(headers: &HeaderMap, etag: &str) -> bool {
    let all = headers.get_all(header::IF_NONE_MATCH).iter();
    // Our tag has no comma in it.
    let mut tags = all
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    tags.any(|tag| {
        let tag = tag.trim();
        tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == etag
    })
}

/// A range that lies outside the blob.
#[derive(Debug, PartialEq, Eq)]
struct Unsatisfiable;

impl fmt::Display for Unsatisfiable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the range lies outside the blob")
    }
}

/// One byte range as offset and length. Several ranges, other units and malformed ones are ignored, as RFC 9110
/// section 14.2 lets a server do: the whole blob is the answer. So are those of other methods than GET, for which it has
/// no meaning, and of who has a part of something else (`If-Range`, section 13.1.5; a date is nothing that we gave).
fn range(
    method: &Method,
    headers: &HeaderMap,
    etag: &str,
    size: u64,
) -> Result<Option<(u64, u64)>, Unsatisfiable> {
    let of_another = |value: &HeaderValue| value.as_bytes() != etag.as_bytes();
    if method != Method::GET || headers.get_all(header::IF_RANGE).iter().any(of_another) {
        return Ok(None);
    }
    let number = |text: &str| {
        (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()))
            .then(|| text.parse::<u64>().unwrap_or(u64::MAX))
    };
    let Some(value) = headers
        .get(header::RANGE)
        .and_then(|value| value.to_str().ok())
    else {
        return Ok(None);
    };
    let Some((first, last)) = value
        .strip_prefix("bytes=")
        .and_then(|spec| spec.split_once('-'))
    else {
        return Ok(None);
    };
    let (start, end) = match (number(first), number(last)) {
        (None, Some(suffix)) if first.is_empty() => (
            size.saturating_sub(suffix),
            if suffix == 0 { 0 } else { size },
        ),
        (Some(start), None) if last.is_empty() => (start, size),
        (Some(start), Some(last)) if start <= last => (start, last.saturating_add(1).min(size)),
        _ => return Ok(None),
    };
    if start >= end {
        Err(Unsatisfiable)
    } else {
        Ok(Some((start, end - start)))
    }
}

#[cfg(test)]
mod tests;

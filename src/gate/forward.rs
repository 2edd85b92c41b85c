//! A request over plain HTTP: made anew for the one host that was granted, on a connection of its own.
//!
//! Nothing of the run's bytes is passed on as it came: the request line, the framing and the Host are written here, from
//! what was decided about. So two parsers cannot disagree about where a request ends (RFC 9112, 11.2).

use std::borrow::Cow;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONNECTION, HOST, HeaderMap, HeaderName, HeaderValue};
use http::{Request, Response, StatusCode, Uri, Version};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::task::AbortHandle;

use super::dial::dial;
use super::meter::{Meter, Metered};
use super::record::{Counts, Entry};
use super::refusal::Refusal;
use super::target::Target;
use super::{Run, revoked};
use crate::slots::Slot;

/// Headers of an answer.
const HEADERS_MAX: usize = 200;
/// Bytes of an answer's head.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// Headers that are for the next hop alone (RFC 9110, 7.6.1; RFC 9112, 7.4 and C.2.2), and Expect, which the gate has
/// answered itself.
const HOP_BY_HOP: [HeaderName; 9] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    http::header::PROXY_AUTHENTICATE,
    http::header::PROXY_AUTHORIZATION,
    HeaderName::from_static("proxy-connection"),
    http::header::TE,
    http::header::TRAILER,
    http::header::TRANSFER_ENCODING,
    http::header::UPGRADE,
];

/// Takes away what is for one hop, with what Connection names.
pub(super) fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

/// Ends a task that nobody waits for any more.
#[derive(Debug)]
struct EndOnDrop(AbortHandle);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The body of an answer; with it the connection to the host ends.
#[derive(Debug)]
pub(super) struct Answer {
    body: Incoming,
    counts: Arc<Counts>,
    _connection: EndOnDrop,
}

impl Body for Answer {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(cx));
        if frame.is_none() || self.body.is_end_stream() {
            self.counts.complete.store(true, Ordering::Release);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Sends a granted request and gives the answer.
pub(super) async fn forward(
    run: &Arc<Run>,
    mut entry: Entry,
    slot: Slot,
    target: Target,
    request: Request<Incoming>,
) -> Result<Response<Answer>, Refusal> {
    let refuse = |mut entry: Entry, refusal: Refusal| {
        entry.refused(&refusal);
        Err(refusal)
    };
    let request = match rebuilt(request, &target) {
        Ok(request) => request,
        Err(()) => {
            let why = "it cannot be passed on".into();
            return refuse(entry, Refusal::BadRequest(why));
        }
    };
    let (stream, address) = match dial(run, &target).await {
        Ok(dialled) => dialled,
        Err(refusal) => return refuse(entry, refusal),
    };
    entry.dialled(address);
    let bad_answer = |_| Refusal::BadAnswer(target.clone());
    let meter = Meter::new(run.clone(), entry.counts.clone());
    let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .handshake(TokioIo::new(Metered::new(stream, meter.clone())))
        .await
        .map_err(bad_answer)?;
    let (counts, spent) = (entry.counts.clone(), meter.clone());
    let connection = {
        let (run, target) = (run.clone(), target.clone());
        tokio::spawn(async move {
            let _slot = slot;
            tokio::select! {
                biased;
                () = revoked(&run, &target, address) => entry.revoked(),
                () = meter.silence(run.gate.settings.idle_timeout) => entry.cut("idle"),
                // Where the answer waits for an error, the connection itself ends well: the meter knows.
                ended = connection => match ended {
                    _ if meter.is_spent() => entry.cut(Refusal::BytesSpent.code()),
                    Ok(()) => entry.ended("closed"),
                    Err(_) => entry.ended("broken"),
                },
            }
        })
    };
    let connection = EndOnDrop(connection.abort_handle());
    let response = sender.send_request(request).await.map_err(|error| {
        if spent.is_spent() {
            Refusal::BytesSpent
        } else {
            bad_answer(error)
        }
    })?;
    // Nothing was asked for that could be switched to.
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return Err(Refusal::BadAnswer(target));
    }
    let mut response = response.map(|body| Answer {
        body,
        counts,
        _connection: connection,
    });
    strip_hop_by_hop(response.headers_mut());
    *response.version_mut() = Version::HTTP_11;
    response.extensions_mut().clear();
    Ok(response)
}

/// In origin-form (RFC 9112, 3.2.1), with one Host, for this connection alone.
fn rebuilt(request: Request<Incoming>, target: &Target) -> Result<Request<Incoming>, ()> {
    let (parts, body) = request.into_parts();
    let mut headers = parts.headers;
    strip_hop_by_hop(&mut headers);
    headers.remove(http::header::EXPECT);
    let host = if target.port() == target.scheme().default_port() {
        target.host().to_owned()
    } else {
        format!("{}:{}", target.host(), target.port())
    };
    headers.insert(HOST, HeaderValue::try_from(host).map_err(|_| ())?);
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    // Behind an authority a path may be empty, here it may not.
    let path = if path.starts_with('/') {
        Cow::Borrowed(path)
    } else {
        Cow::Owned(format!("/{path}"))
    };
    let mut request = Request::new(body);
    *request.method_mut() = parts.method;
    *request.uri_mut() = Uri::try_from(&*path).map_err(|_| ())?;
    *request.version_mut() = Version::HTTP_11;
    *request.headers_mut() = headers;
    Ok(request)
}

//! What cannot be read as a request is refused as all else is. hyper has an answer of its own to it, which no service can
//! change: a bare status. It is whatever hyper writes while nobody has been asked for an answer.

use std::io::{self, ErrorKind, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use http::StatusCode;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{HEAD_BYTES_MAX, HEADERS_MAX, NO_ROUTE};
use crate::rescue::{Refusal, RequestId};
use crate::telemetry::metrics::Metrics;

/// All that was asked for has been written.
const NOTHING: u8 = 0;
/// A request has been read, and its answer goes on.
const ANSWER: u8 = 1;
/// hyper has all of the answer, and may have to write some of it yet.
const REST: u8 = 2;

/// What is read at once where nobody asks for a body. hyper begins with 8192 bytes: a read that fills them makes the next one
/// larger, up to [`super::READ_BYTES_MAX`], and the connection keeps the memory for it, however quiet it is then. So whoever
/// sends a few large heads, without a token, would have that for each of his connections.
const HEAD_READ_BYTES: usize = 8191;

/// So much of a request that was answered before all of it was read is read then, when it is there so soon: that is less work
/// than another connection. What is more is left to the end of this one.
pub(super) const REST_BYTES_MAX: u64 = 64 << 10;
const REST_TIMEOUT: Duration = Duration::from_millis(250);

/// What hyper writes now. Shared by who answers and who writes, which are one task.
#[derive(Debug, Clone, Default)]
pub(super) struct Due(Arc<State>);

#[derive(Debug, Default)]
struct State {
    writes: AtomicU8,
    /// Somebody has asked for the body of the request that is answered.
    wants_body: AtomicBool,
    /// That body has ended with trailers.
    has_trailers: AtomicBool,
    /// Of a request that has been answered before all of it was read: until the answer has been written.
    unread: Mutex<Option<Incoming>>,
}

/// A request's body. hyper goes on to the next request as soon as nobody wants the rest of this one and it is there, also while
/// it has to write some of the answer yet; and what it says to what is no request it then writes into that answer. So it is
/// wanted until the answer has been written.
#[derive(Debug)]
pub(super) struct Asked {
    /// Until all of it has been read.
    body: Option<Incoming>,
    due: Due,
}

/// From a request until the end of its answer: the answer's body has it.
#[derive(Debug)]
pub(super) struct Answering(Due);

impl Due {
    pub(super) fn answer(&self) -> Answering {
        self.0.wants_body.store(false, Ordering::Relaxed);
        self.0.has_trailers.store(false, Ordering::Relaxed);
        self.0.writes.store(ANSWER, Ordering::Relaxed);
        Answering(self.clone())
    }

    fn unread(&self) -> MutexGuard<'_, Option<Incoming>> {
        self.0.unread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All of the answer has been written, if it was at its end.
    fn written(&self) {
        self.go(REST, NOTHING);
        if self.is_nothing() {
            let unread = self.unread().take();
            drop(unread);
        }
    }

    /// Whether what comes may be a body that somebody waits for.
    fn reads_body(&self) -> bool {
        self.0.writes.load(Ordering::Relaxed) == ANSWER && self.0.wants_body.load(Ordering::Relaxed)
    }

    /// Whether all that was asked for has been answered.
    pub(super) fn is_nothing(&self) -> bool {
        self.0.writes.load(Ordering::Relaxed) == NOTHING
    }

    fn go(&self, from: u8, to: u8) {
        let order = (Ordering::Relaxed, Ordering::Relaxed);
        // Where it is not there nothing changes.
        let _ = self.0.writes.compare_exchange(from, to, order.0, order.1);
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.0.writes.store(REST, Ordering::Relaxed);
    }
}

impl Answering {
    pub(super) fn asked(&self, body: Incoming) -> Asked {
        Asked {
            body: Some(body),
            due: self.0.clone(),
        }
    }

    /// Whether something of the body is left that nobody wants.
    pub(super) fn is_unread(&self) -> bool {
        self.0.unread().is_some()
    }

    /// Whether nothing that follows the request may be read. hyper takes all up to an empty line that ends with CR LF for a
    /// section of trailers, and drops what is behind one that ends with LF alone; whoever is in front may take that as the end
    /// (RFC 9112 section 2.2), and his next request, which he believes to have been passed on, was dropped.
    pub(super) fn is_last(&self) -> bool {
        self.0.0.has_trailers.load(Ordering::Relaxed)
    }

    /// Reads what is left of it, and says whether that was all, and where it ends is beyond doubt ([`Answering::is_last`]).
    pub(super) async fn reads_rest(&self) -> bool {
        let Some(mut rest) = self.0.unread().take() else {
            return true;
        };
        let is_read = reads_rest(&mut rest).await;
        if !is_read {
            *self.0.unread() = Some(rest);
        }
        is_read
    }
}

async fn reads_rest<B: Body<Data = Bytes> + Unpin>(rest: &mut B) -> bool {
    let read = async {
        let mut left = REST_BYTES_MAX;
        while rest.size_hint().lower() <= left {
            let piece = match rest.frame().await {
                None => return true,
                Some(Err(_)) => return false,
                Some(Ok(frame)) => match frame.data_ref() {
                    Some(data) => data.len() as u64,
                    // Trailers.
                    None => return false,
                },
            };
            let Some(less) = left.checked_sub(piece) else {
                return false;
            };
            left = less;
        }
        false
    };
    let is_read = tokio::time::timeout(REST_TIMEOUT, read).await;
    is_read.unwrap_or(false)
}

impl Body for Asked {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Asked { body, due } = &mut *self;
        let Some(body) = body.as_mut() else {
            return Poll::Ready(None);
        };
        due.0
            .wants_body
            .store(!body.is_end_stream(), Ordering::Relaxed);
        let frame = ready!(Pin::new(body).poll_frame(cx));
        match &frame {
            None => self.body = None,
            Some(Ok(frame)) if frame.is_trailers() => {
                due.0.has_trailers.store(true, Ordering::Relaxed);
            }
            Some(_) => {}
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let body = self.body.as_ref();
        body.map_or(SizeHint::with_exact(0), Body::size_hint)
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let rest = self.body.take().filter(|body| !body.is_end_stream());
        let mut unread = self.due.unread();
        // Whoever has written the answer asks for it after that has been noted.
        if !self.due.is_nothing() {
            *unread = rest;
        }
    }
}

/// A stream on which hyper's own answer is replaced by ours.
#[derive(Debug)]
pub(super) struct Malformed<S> {
    stream: S,
    due: Due,
    peer: SocketAddr,
    metrics: Metrics,
    /// What is left of ours: hyper ends the connection with its own.
    ours: Option<Bytes>,
}

impl<S: AsyncWrite + Unpin> Malformed<S> {
    pub(super) fn new(stream: S, due: Due, peer: SocketAddr, metrics: Metrics) -> Self {
        Malformed {
            stream,
            due,
            peer,
            metrics,
            ours: None,
        }
    }

    /// Writes ours instead of these bytes, or nothing when it is not hyper who answers.
    fn instead(&mut self, cx: &mut Context<'_>, own: &[u8]) -> Option<Poll<io::Result<()>>> {
        if self.ours.is_none() && self.due.is_nothing() {
            let (request_id, refusal) = (RequestId::new(), refusal(own));
            tracing::info!(
                peer = %self.peer,
                id = request_id.as_str(),
                reason = refusal.message,
                "what came is no request"
            );
            let status = refusal.status.as_u16();
            self.metrics.http_request(NO_ROUTE, status);
            self.ours = Some(refusal.last_answer(&request_id).into());
        }
        let ours = self.ours.as_mut()?;
        while !ours.is_empty() {
            match Pin::new(&mut self.stream).poll_write(cx, ours) {
                Poll::Ready(Ok(0)) => return Some(Poll::Ready(Err(ErrorKind::WriteZero.into()))),
                Poll::Ready(Ok(written)) => ours.advance(written),
                Poll::Ready(Err(error)) => return Some(Poll::Ready(Err(error))),
                Poll::Pending => return Some(Poll::Pending),
            }
        }
        Some(Poll::Ready(Ok(())))
    }
}

/// Whether this, which no request was made of, is the beginning of one. Empty lines may stand before it (RFC 9112 section 2.2).
pub(super) fn is_begun(unread: &[u8]) -> bool {
    unread.iter().any(|byte| !matches!(byte, b'\r' | b'\n'))
}

/// To who has begun a request and does not go on.
pub(super) fn too_slow() -> Refusal {
    Refusal::new(
        StatusCode::REQUEST_TIMEOUT,
        "timeout",
        "the head of the request did not arrive in time (server.header_timeout_ms)",
    )
}

/// In the place of an answer that begins like this.
fn refusal(own: &[u8]) -> Refusal {
    let status = own.get("HTTP/1.1 ".len()..).and_then(|rest| rest.get(..3));
    let status = status.and_then(|digits| StatusCode::from_bytes(digits).ok());
    let (status, message) = match status {
        Some(status @ (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE | StatusCode::URI_TOO_LONG)) => {
            (
                status,
                format!(
                    "the head of the request has over {HEAD_BYTES_MAX} bytes or over {HEADERS_MAX} headers (or a Content-Length that is too large to be one): send less, and data in the body"
                ),
            )
        }
        _ => return no_request(),
    };
    Refusal::new(status, "bad_request", message)
}

/// To what does not begin as a request does.
pub(super) fn no_request() -> Refusal {
    Refusal::new(
        StatusCode::BAD_REQUEST,
        "bad_request",
        "this is no request of HTTP/1.1",
    )
}

impl<S: AsyncRead + Unpin> AsyncRead for Malformed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.due.reads_body() {
            return Pin::new(&mut self.stream).poll_read(cx, buf);
        }
        let most = HEAD_READ_BYTES.min(buf.remaining());
        let mut piece = ReadBuf::new(buf.initialize_unfilled_to(most));
        ready!(Pin::new(&mut self.stream).poll_read(cx, &mut piece))?;
        let read = piece.filled().len();
        buf.advance(read);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Malformed<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.instead(cx, buf) {
            Some(written) => written.map_ok(|()| buf.len()),
            None => Pin::new(&mut self.stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.instead(cx, bufs.first().map_or(&[], |buf| buf)) {
            Some(written) => written.map_ok(|()| bufs.iter().map(|buf| buf.len()).sum()),
            None => Pin::new(&mut self.stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// hyper flushes when it has written all that it has.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        self.due.written();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;

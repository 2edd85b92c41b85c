//! A connection that tells when the other end goes away, whatever hyper is at. hyper looks for that while it waits for an
//! answer, but not with bytes in its buffer: one line end after a request, and a run would go on that nobody waits for.

use std::future::poll_fn;
use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::header::{CONNECTION, EXPECT, HeaderValue};
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use rustix::net::{SendFlags, Shutdown, send, shutdown};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tower::ServiceExt as _;

use super::malformed::Answering;
use super::write_timeout::Socket;
use super::{BodyError, Stack};

/// How long a connection that has been answered stays for what its peer is still sending: in all, and without anything.
/// Meanwhile it has its place, which whoever sends a request slowly has for longer.
const LINGER_TIMEOUT: Duration = Duration::from_secs(10);
const LINGER_IDLE: Duration = Duration::from_secs(2);
/// And for so much of it: four times the default of `server.max_body_bytes`.
pub(super) const LINGER_BYTES_MAX: usize = 64 << 20;
/// What is thrown away at once.
const DISCARD_BYTES: usize = 16 << 10;

/// hyper's half of it, or the half of who watches.
#[derive(Debug, Clone)]
pub(super) struct Connection(Arc<TcpStream>);

/// The caller has gone: there is nobody to answer.
#[derive(Debug, thiserror::Error)]
#[error("the client has gone away")]
pub(super) struct Gone;

impl Connection {
    pub(super) fn new(stream: TcpStream) -> Self {
        Connection(Arc::new(stream))
    }

    /// The stack's answer to a request, unless the caller goes away before: then the request is dropped, with all that goes on
    /// for it. Who ends its side has gone, here as for hyper.
    ///
    /// An answer that hyper ends the connection behind, since not all of the request has been read, says so (RFC 9112 section
    /// 9.6): whoever has it would else send his next request into that end. So does one to a request with trailers.
    pub(super) async fn answer(
        self,
        stack: Stack,
        request: Request<Incoming>,
        due: Answering,
    ) -> Result<Response<impl Body<Data = Bytes, Error = BodyError>>, Gone> {
        // Such a client may wait to be asked for its body, which it is with the first look at it.
        let waits = request.headers().contains_key(EXPECT);
        let request = request.map(|body| {
            let body = due.asked(body);
            body.map_err(|error| BodyError(error.to_string()))
                .boxed_unsync()
        });
        let answered = async {
            let Ok(mut answer) = stack.oneshot(request).await;
            let is_last = answer.headers().contains_key(CONNECTION);
            let reads_on = !due.is_unread() || (!waits && due.reads_rest().await);
            if !is_last && (!reads_on || due.is_last()) {
                let close = HeaderValue::from_static("close");
                answer.headers_mut().insert(CONNECTION, close);
            }
            answer
        };
        tokio::select! {
            biased;
            answer = answered => Ok(answer.map(|body| Sent {
                body,
                connection: self.clone(),
                gone: None,
                _until_its_end: due,
            })),
            () = self.hung_up() => Err(Gone),
        }
    }

    /// After the last answer: takes what the peer is still sending, and throws it away. With bytes unread the close would be a
    /// reset, which takes the answer from whoever has not read it yet (RFC 9112 section 9.6).
    pub(super) async fn linger(mut self) {
        let taken = async {
            poll_fn(|cx| Pin::new(&mut self).poll_shutdown(cx)).await?;
            let mut left = LINGER_BYTES_MAX;
            while left > 0 {
                let piece = poll_fn(|cx| self.poll_discard(cx));
                match tokio::time::timeout(LINGER_IDLE, piece).await {
                    Ok(Ok(bytes @ 1..)) => left = left.saturating_sub(bytes),
                    // The peer has ended, or has nothing more to send.
                    Ok(Ok(0)) | Err(_) => break,
                    Ok(Err(error)) => return Err(error),
                }
            }
            io::Result::Ok(())
        };
        if let Ok(Err(error)) = tokio::time::timeout(LINGER_TIMEOUT, taken).await {
            tracing::debug!(%error, "the end of a connection");
        }
    }

    /// The buffer is not kept while it waits.
    fn poll_discard(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut piece = [0; DISCARD_BYTES];
        let mut buf = ReadBuf::new(&mut piece);
        ready!(Pin::new(self).poll_read(cx, &mut buf))?;
        Poll::Ready(Ok(buf.filled().len()))
    }

    async fn gone(self) {
        self.hung_up().await;
    }

    async fn hung_up(&self) {
        // What is readable may stay unread for long. The end is all that can come of this: nobody asks for urgent data.
        match self.0.ready(Interest::PRIORITY).await {
            Ok(ready) if ready.is_read_closed() => {}
            _ => std::future::pending().await,
        }
    }
}

/// An answer's body. One that comes slowly, from a store that hangs for one, ends with its caller as the request does.
struct Sent<B> {
    body: B,
    connection: Connection,
    /// While something is waited for: most bodies are whole.
    gone: Option<BoxFuture<'static, ()>>,
    _until_its_end: Answering,
}

impl<B: Body<Data = Bytes, Error = BodyError> + Unpin> Body for Sent<B> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Sent {
            body,
            connection,
            gone,
            ..
        } = &mut *self;
        if let Poll::Ready(frame) = Pin::new(body).poll_frame(cx) {
            return Poll::Ready(frame);
        }
        let gone = gone.get_or_insert_with(|| connection.clone().gone().boxed());
        ready!(gone.as_mut().poll(cx));
        Poll::Ready(Some(Err(BodyError(Gone.to_string()))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

// === as tokio's own stream, but shared ===

impl Socket for Connection {
    // Linux says that there is room when a third of the send buffer is free, and that may be megabytes: who reads a few
    // KiB a second has made progress long before. Whatever has left is room for this.
    fn offer(&self, bytes: &[u8]) -> io::Result<usize> {
        Ok(send(
            &*self.0,
            bytes,
            SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
        )?)
    }

    // Else the kernel keeps the send buffer for minutes after the close, in the hope that the peer reads.
    fn discard_unsent(&self) -> io::Result<()> {
        self.0.set_zero_linger()
    }
}

/// Tries as soon as there may be something to do, and again when there was not.
fn tried<T>(
    cx: &mut Context<'_>,
    is_ready: impl Fn(&mut Context<'_>) -> Poll<io::Result<()>>,
    mut attempt: impl FnMut() -> io::Result<T>,
) -> Poll<io::Result<T>> {
    loop {
        ready!(is_ready(cx))?;
        match attempt() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            outcome => return Poll::Ready(outcome),
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let stream = &self.0;
        let read = || stream.try_read_buf(buf).map(|_| ());
        tried(cx, |cx| stream.poll_read_ready(cx), read)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let stream = &self.0;
        tried(
            cx,
            |cx| stream.poll_write_ready(cx),
            || stream.try_write(buf),
        )
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let stream = &self.0;
        let write = || stream.try_write_vectored(bufs);
        tried(cx, |cx| stream.poll_write_ready(cx), write)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(match shutdown(&*self.0, Shutdown::Write) {
            // The peer was first.
            Err(rustix::io::Errno::NOTCONN) => Ok(()),
            outcome => outcome.map_err(Into::into),
        })
    }
}

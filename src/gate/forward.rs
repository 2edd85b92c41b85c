//! A request over plain HTTP: made anew for the one host that was granted, on a connection of its own.
//!
//! Nothing of the run's bytes is passed on as it came: the request line, the framing and the Host are written here, from
//! what was decided about. So two parsers cannot disagree about where a request ends (RFC 9112, 11.2).

use std::borrow::Cow;
use std::error::Error as _;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{
    CONNECTION, CONTENT_LENGTH, HOST, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING,
};
use http::{Request, Response, StatusCode, Uri, Version};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::task::{AbortHandle, JoinHandle};

use super::dial::dial;
use super::grant::Grant;
use super::meter::{Meter, Metered};
use super::record::{Counts, Entry};
use super::refusal::Refusal;
use super::target::Target;
use super::{Run, revoked};
use crate::server::is_plainly_framed;
use crate::slots::Slot;

/// Headers of an answer.
const HEADERS_MAX: usize = 200;
/// Bytes of an answer's head.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// Headers that are for the next hop alone (RFC 9110, 7.6.1; RFC 9112, 7.4 and C.2.2). Expect, which the gate has answered itself,
/// goes in [`rebuilt`].
const HOP_BY_HOP: [HeaderName; 9] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    http::header::PROXY_AUTHENTICATE,
    http::header::PROXY_AUTHORIZATION,
    HeaderName::from_static("proxy-connection"),
    http::header::TE,
    http::header::TRAILER,
    TRANSFER_ENCODING,
    http::header::UPGRADE,
];

/// Takes away what is for one hop, with what Connection names, and leaves one length of the body at most: none beside
/// Transfer-Encoding, which overrides it, and one of a list, whose members hyper has found equal (RFC 9112, 6.3).
fn strip_hop_by_hop(headers: &mut HeaderMap) {
    if headers.contains_key(TRANSFER_ENCODING) {
        headers.remove(CONTENT_LENGTH);
    } else if let Some(listed) = headers.get(CONTENT_LENGTH) {
        let one = listed.as_bytes().split(|byte| *byte == b',').next();
        let one = one.and_then(|one| HeaderValue::from_bytes(one.trim_ascii()).ok());
        if let Some(one) = one {
            headers.insert(CONTENT_LENGTH, one);
        }
    }
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
    let meter = Meter::new(run.clone(), entry.counts.clone());
    let counts = entry.counts.clone();
    let shaken = hyper::client::conn::http1::Builder::new()
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .handshake(TokioIo::new(Metered::new(stream, meter.clone())))
        .await;
    let (mut sender, connection) = match shaken {
        Ok(shaken) => shaken,
        Err(error) => return refuse(entry, unanswered(&error, &target)),
    };
    let connection = {
        let (run, target) = (run.clone(), target.clone());
        tokio::spawn(async move {
            let _slot = slot;
            let end = tokio::select! {
                biased;
                () = revoked(&run, &target, address) => End::Revoked,
                () = meter.silence(run.gate.settings.idle_timeout) => End::Idle,
                // Where the answer waits for an error, the connection itself ends well: the meter knows.
                ended = connection => match ended {
                    _ if meter.is_spent() => End::Spent,
                    Ok(()) => End::Closed,
                    Err(_) => End::Broken,
                },
            };
            end.note(&mut entry);
            (entry, end)
        })
    };
    let ends = EndOnDrop(connection.abort_handle());
    let answered = match sender.send_request(request).await {
        // Nothing was asked for that could be switched to, and a coding that is left on would be taken for the content.
        Ok(response)
            if response.status() == StatusCode::SWITCHING_PROTOCOLS
                || !is_plainly_framed(response.headers()) =>
        {
            Err(Refusal::BadAnswer(target.clone()))
        }
        Ok(response) => Ok(response),
        Err(error) => Err(unanswered(&error, &target)),
    };
    let response = match answered {
        Ok(response) => response,
        Err(refusal) => {
            // The connection has nothing more to do, and ends.
            drop(sender);
            return Err(settled(run, target, connection, refusal).await);
        }
    };
    let mut response = response.map(|body| Answer {
        body,
        counts,
        _connection: ends,
    });
    strip_hop_by_hop(response.headers_mut());
    *response.version_mut() = Version::HTTP_11;
    response.extensions_mut().clear();
    Ok(response)
}

/// How a connection to a host has ended.
#[derive(Debug, Clone, Copy)]
enum End {
    Revoked,
    Idle,
    Spent,
    Closed,
    Broken,
}

impl End {
    fn note(self, entry: &mut Entry) {
        match self {
            End::Revoked => entry.revoked(),
            End::Idle => entry.cut("idle"),
            End::Spent => entry.cut(Refusal::BytesSpent.code()),
            End::Closed => entry.ended("closed"),
            End::Broken => entry.ended("broken"),
        }
    }
}

/// Why there is no answer, as far as the request itself can tell.
fn unanswered(error: &hyper::Error, target: &Target) -> Refusal {
    // Inside is what was wrong with the body on its way here.
    if error.is_user() {
        return Refusal::BadRequest("its body has not come whole".into());
    }
    // Where the host was quicker than the request, its own error is inside.
    let first = error.source().and_then(|inner| inner.downcast_ref());
    let error: &hyper::Error = first.unwrap_or(error);
    let broken = error.source().is_some_and(|inner| inner.is::<io::Error>());
    if broken || error.is_incomplete_message() || error.is_closed() || error.is_canceled() {
        return Refusal::NoAnswer(target.clone());
    }
    Refusal::BadAnswer(target.clone())
}

/// Why there is no answer, for the run and on record: a rule or a limit that has ended the connection, else `refusal`.
async fn settled(
    run: &Run,
    target: Target,
    connection: JoinHandle<(Entry, End)>,
    refusal: Refusal,
) -> Refusal {
    // Nobody ends it from outside while the run waits here.
    let Ok((mut entry, end)) = connection.await else {
        return refusal;
    };
    match end {
        End::Revoked => taken(&run.grant(), target),
        End::Idle => Refusal::Timeout(target),
        End::Spent => Refusal::BytesSpent,
        End::Closed | End::Broken => {
            if let Refusal::NoAnswer(_) = refusal {
                entry.ended(refusal.code());
            } else {
                entry.refused(&refusal);
            }
            refusal
        }
    }
}

/// What new rules have taken: the host, or an address of it.
fn taken(grant: &Grant, target: Target) -> Refusal {
    if grant.allows(&target) {
        return Refusal::Address(target);
    }
    Refusal::NotGranted {
        target,
        granted: grant.patterns().to_vec(),
    }
}

/// In origin-form (RFC 9112, 3.2.1), with one Host, for this connection alone.
fn rebuilt<B: Body>(request: Request<B>, target: &Target) -> Result<Request<B>, ()> {
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
    // By itself hyper sends no body of unknown length with a method that rarely has one.
    if !body.is_end_stream() && body.size_hint().exact().is_none() {
        headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::{BodyExt as _, Empty};
    use hyper::client::conn::http1::handshake;
    use skillgate_skill::network::Scheme;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    fn target(authority: &str) -> Target {
        Target::parse(Scheme::Http, authority).unwrap()
    }

    fn request() -> Request<Empty<Bytes>> {
        Request::new(Empty::new())
    }

    #[test]
    fn a_host_is_named_with_its_port_where_that_is_another_than_the_schemes() {
        for (authority, name) in [
            ("a.example", "a.example"),
            ("a.example:80", "a.example"),
            ("a.example:443", "a.example:443"),
            ("a.example:8080", "a.example:8080"),
        ] {
            let rebuilt = rebuilt(request(), &target(authority)).unwrap();
            assert_eq!(rebuilt.headers()[HOST], name, "{authority}");
        }
    }

    /// What a record says of it where nothing else has ended the connection.
    #[tokio::test]
    async fn an_answer_is_complete_with_its_last_byte_and_not_before() {
        for (framing, first, last) in [
            ("Content-Length: 4", "ab", "cd"),
            (
                "Transfer-Encoding: chunked",
                "2\r\nab\r\n",
                "2\r\ncd\r\n0\r\n\r\n",
            ),
        ] {
            let (near, mut far) = tokio::io::duplex(1024);
            let (mut sender, connection) = handshake(TokioIo::new(near)).await.unwrap();
            let connection = tokio::spawn(connection);
            let begun = async {
                far.read_u8().await.unwrap();
                let head = format!("HTTP/1.1 200 OK\r\n{framing}\r\n\r\n{first}");
                far.write_all(head.as_bytes()).await.unwrap();
            };
            let (response, ()) = tokio::join!(sender.send_request(request()), begun);
            let counts = Arc::new(Counts::default());
            let mut answer = Answer {
                body: response.unwrap().into_body(),
                counts: counts.clone(),
                _connection: EndOnDrop(connection.abort_handle()),
            };
            answer.frame().await.unwrap().unwrap();
            assert!(!counts.complete.load(Ordering::Acquire), "{framing}");
            far.write_all(last.as_bytes()).await.unwrap();
            // As a server reads it: not beyond the end of one whose length is known.
            while !answer.is_end_stream()
                && let Some(frame) = answer.frame().await
            {
                frame.unwrap();
            }
            assert!(counts.complete.load(Ordering::Acquire), "{framing}");
        }
    }

    /// Whether it hears of the request or not: it is no host that answers what is not HTTP.
    #[tokio::test]
    async fn a_host_that_is_gone_has_given_no_answer() {
        let target = target("a.example");
        let no_answer = Refusal::NoAnswer(target.clone());

        let (near, far) = tokio::io::duplex(1024);
        let (mut sender, connection) = handshake(TokioIo::new(near)).await.unwrap();
        drop(far);
        let _ended = connection.await;
        let error = sender.send_request(request()).await.unwrap_err();
        assert_eq!(unanswered(&error, &target), no_answer, "before: {error:?}");

        let (near, far) = tokio::io::duplex(1024);
        let (mut sender, connection) = handshake(TokioIo::new(near)).await.unwrap();
        drop(far);
        let (answer, _ended) = tokio::join!(sender.send_request(request()), connection);
        let error = answer.unwrap_err();
        assert_eq!(unanswered(&error, &target), no_answer, "with it: {error:?}");

        let (near, _far) = tokio::io::duplex(1024);
        let (mut sender, connection) = handshake(TokioIo::new(near)).await.unwrap();
        let sent = sender.send_request(request());
        drop(connection);
        let error = sent.await.unwrap_err();
        assert_eq!(unanswered(&error, &target), no_answer, "after: {error:?}");
    }
}

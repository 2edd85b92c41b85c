//! Connections: accept, read requests, answer, drain. HTTP/1.1 only: a gateway's callers are programs, and every
//! protocol more is a surface more.

mod accept;
mod connection;
mod drain;
mod malformed;
pub(crate) mod progress;
mod write_timeout;

use std::error::Error as _;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use accept::{Accepting, Often};
use bytes::Bytes;
use connection::Connection;
use drain::Drain;
pub use drain::{Ends, Left};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use malformed::{Due, Malformed, is_begun, no_request, too_slow};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tower::util::BoxCloneSyncService;
use write_timeout::{Socket as _, WriteTimeout};

use crate::rescue::{Refusal, RequestId};
use crate::slots::{Slot, Slots};
use crate::telemetry::metrics::Metrics;

/// What can go wrong while a body is read or written.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BodyError(pub String);

/// Why a request's body was not read to its end.
#[derive(Debug)]
pub enum Broken {
    /// It could not be read.
    Read(BodyError),
    /// Nothing more of it came.
    Stalled,
}

/// A request's or an answer's body.
pub type Body = UnsyncBoxBody<Bytes, BodyError>;
/// The stack as the server calls it.
pub type Stack = BoxCloneSyncService<Request<Body>, Response<Body>, std::convert::Infallible>;

/// The other end of the connection, in a request's extensions.
#[derive(Debug, Clone, Copy)]
pub struct Peer(pub SocketAddr);

/// Who is connected. The connection's own address: forwarding headers can be written by anybody.
pub fn peer_ip<B>(request: &Request<B>) -> IpAddr {
    let peer = request.extensions().get::<Peer>();
    peer.map_or(IpAddr::from([0, 0, 0, 0]), |peer| peer.0.ip())
}

/// What an address counts as for a rate limit: an IPv6 network has a /64 (RFC 4291 section 2.5.1), of which each host could have
/// a new address for every connection.
pub(crate) fn network(ip: IpAddr) -> IpAddr {
    prefix(ip, 64)
}

/// What it counts as for connections: an IPv6 site has a /56 or more (RFC 6177), which is 256 networks, and a few of these
/// would have all connections between them.
fn site(ip: IpAddr) -> IpAddr {
    prefix(ip, 56)
}

/// The first `bits` of an IPv6 address; one of IPv4 is one host's, or a whole network's behind it.
fn prefix(ip: IpAddr, bits: u32) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & !(u128::MAX >> bits))),
        v4 => v4,
    }
}

/// A body that is there already.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// Whether a message is framed in the one way that everybody reads alike: by a length, or by `chunked` alone (RFC 9112 section
/// 6.1). hyper looks at the last coding only, takes `chunked` away and leaves the others in the body; whoever else is on the way
/// may do otherwise, and see another message begin.
pub(crate) fn is_plainly_framed(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    let is_chunked = |coding: &HeaderValue| {
        coding
            .as_bytes()
            .trim_ascii()
            .eq_ignore_ascii_case(b"chunked")
    };
    codings.next().is_none_or(is_chunked) && codings.next().is_none()
}

/// The next bytes of a body; `None` at its end. They may take as long as `idle`.
pub async fn next_piece(body: &mut Body, idle: Duration) -> Option<Result<Bytes, Broken>> {
    loop {
        return match tokio::time::timeout(idle, body.frame()).await {
            Err(_) => Some(Err(Broken::Stalled)),
            Ok(None) => None,
            Ok(Some(Err(error))) => Some(Err(Broken::Read(error))),
            Ok(Some(Ok(frame))) => match frame.into_data() {
                Ok(data) => Some(Ok(data)),
                // Trailers say nothing about the content.
                Err(_) => continue,
            },
        };
    }
}

/// Largest head of a request, request line and headers together; beyond it the answer is 431. As much of each connection may be
/// kept until its head has come or its time for it has passed, and nobody has asked for a token yet: so it is little more than
/// the longest token, 8 KiB, needs. The trailers of a body have as many.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// What is read at once, of a body above all: less makes uploads slower. hyper wants no more while it has any left.
const READ_BYTES_MAX: usize = 64 << 10;
/// Most headers of a request.
const HEADERS_MAX: usize = 100;
/// How long those may take whose time is over when the drain ends: to be answered that the gateway has ended their run, and as long
/// again to be told that there is no answer. The gateway goes right behind it, so it is no more than what a busy machine needs.
pub(crate) const WORDS_TIMEOUT: Duration = Duration::from_millis(500);
/// How long a connection on which nothing is asked stays when the drain begins. The request that its peer may be sending at that
/// moment is refused, in words; in a connection that just ends he would not know whether it was taken.
pub(crate) const LEAVE_TIMEOUT: Duration = Duration::from_millis(250);
/// Connections without a place that stay until they have read why; addresses share these too. More of them are closed at
/// once, and some of their peers see a reset.
const TURNED_AWAY_MAX: usize = 128;
/// What is counted of an answer to what no service has seen: its path was not read.
const NO_ROUTE: &str = "other";

/// What the configuration's `[server]` says of connections.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// `server.header_timeout_ms`
    pub header_timeout: Duration,
    /// `server.write_timeout_ms`
    pub write_timeout: Duration,
    /// `server.max_connections`; addresses share them.
    pub connections_max: usize,
    /// `server.drain_timeout_ms`
    pub drain_timeout: Duration,
    /// [`LEAVE_TIMEOUT`]
    pub leave_timeout: Duration,
}

/// Serves until `stop` resolves, and who has connected by then; then lets requests in flight finish for at most the drain
/// timeout. Comes back with what has not: it has to be cut off. What is answered here, and not by the stack, is counted in
/// `metrics`.
pub async fn serve(
    listener: TcpListener,
    stack: Stack,
    settings: Settings,
    metrics: Metrics,
    stop: impl Future<Output = ()>,
) -> Left {
    let places = Slots::new(settings.connections_max);
    let asides = Slots::new(TURNED_AWAY_MAX);
    let drain = Drain::new();
    let mut connections = JoinSet::new();
    let mut stop = std::pin::pin!(stop);
    let mut listener = Accepting::new(listener);
    let mut turned_away = Often::default();
    let mut is_over = false;
    loop {
        while connections.try_join_next().is_some() {}
        let accepted = if is_over {
            listener.waiting().await
        } else {
            tokio::select! {
                () = &mut stop => {
                    is_over = true;
                    continue;
                }
                accepted = listener.next() => Some(accepted),
            }
        };
        let Some((stream, peer)) = accepted else {
            break;
        };
        // Whoever holds many before a word is said leaves some to others.
        let address = site(peer.ip()).to_string();
        let Some(place) = places.take(&address) else {
            let refused = turned_away.once_more();
            let (stream, aside) = (Connection::new(stream), asides.take(&address));
            connections.spawn(turn_away(stream, peer, refused, aside, metrics.clone()));
            continue;
        };
        // An answer whose head and body are written one after the other must not wait for the peer's delayed ACK (40 ms).
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%peer, %error, "TCP_NODELAY");
        }
        // hyper has no time limit for writes.
        let ours = Connection::new(stream);
        let stream = WriteTimeout::new(ours.clone(), settings.write_timeout);
        let due = Due::default();
        let stream = Malformed::new(stream, due.clone(), peer, metrics.clone());
        let (last, was_due) = (ours.clone(), due.clone());
        let (stack, metrics) = (stack.clone(), metrics.clone());
        let mut drains = drain.enter();
        let ends = drains.clone();
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(Peer(peer));
            request.extensions_mut().insert(ends.clone());
            ours.clone().answer(stack.clone(), request, due.answer())
        });
        let mut connection = hyper::server::conn::http1::Builder::new()
            // Without a timer hyper's header timeout does nothing.
            .timer(TokioTimer::new())
            .header_read_timeout(settings.header_timeout)
            .max_header_size(HEAD_BYTES_MAX)
            .max_buf_size(READ_BYTES_MAX)
            .max_headers(HEADERS_MAX)
            .half_close(false)
            .serve_connection(TokioIo::new(stream), service);
        connections.spawn(async move {
            // Asked about the drain first: an answer that is given in it says that it is the last (RFC 9112 section 9.6).
            let mut ended = tokio::select! {
                biased;
                () = drains.drains() => None,
                ended = &mut connection => Some(ended),
            };
            if ended.is_none() && was_due.is_nothing() {
                let stays = settings.leave_timeout.min(settings.drain_timeout);
                ended = tokio::time::timeout(stays, &mut connection).await.ok();
            }
            let ended = match ended {
                Some(ended) => ended,
                None => {
                    std::pin::Pin::new(&mut connection).graceful_shutdown();
                    (&mut connection).await
                }
            };
            let is_begun = is_begun(&connection.into_parts().read_buf);
            drop(drains);
            if let Err(error) = &ended {
                let cause = error.source().map(ToString::to_string);
                tracing::debug!(%peer, %error, cause, "connection ended");
            }
            // The drain does not wait for this.
            let still_open =
                take_leave(ended, last, peer, was_due.is_nothing(), is_begun, &metrics).await;
            // In this order: where there was nothing to wait for, whoever sees that it is closed finds its place free.
            drop(place);
            drop(still_open);
        });
    }
    // Whoever is refused a connection sees each of his others end.
    drain.begin();
    drop(listener);
    tracing::info!("draining: no new connections");
    let until = Instant::now() + settings.drain_timeout;
    drain.wait(until, connections).await
}

/// Of who has no place. `refused`: so many of them, where the log is to have a line of it.
fn turn_away(
    connection: Connection,
    peer: SocketAddr,
    refused: Option<u64>,
    aside: Option<Slot>,
    metrics: Metrics,
) -> impl Future<Output = ()> + Send + 'static {
    let request_id = RequestId::new();
    let id = request_id.as_str();
    if let Some(refused) = refused {
        tracing::warn!(%peer, id, refused, "connection refused: server.max_connections is reached, or its address's share of them");
    }
    async move {
        let stays = aside.is_some();
        last_word(connection, no_place(), &request_id, &metrics, stays).await;
    }
}

/// The end of a connection that hyper has nothing more to do with. What cannot be read as a request has been answered too; of
/// what ended otherwise nobody waits for an answer: that is given back as it is.
async fn take_leave(
    ended: hyper::Result<()>,
    connection: Connection,
    peer: SocketAddr,
    nothing_is_due: bool,
    is_begun: bool,
    metrics: &Metrics,
) -> Option<Connection> {
    match ended {
        Err(error) if error.is_timeout() && nothing_is_due && is_begun => {
            let request_id = RequestId::new();
            let id = request_id.as_str();
            tracing::info!(%peer, id, "connection ended: server.header_timeout_ms");
            last_word(connection, too_slow(), &request_id, metrics, true).await;
        }
        // To this hyper says nothing itself.
        Err(error) if error.is_parse_version_h2() && nothing_is_due => {
            let request_id = RequestId::new();
            let id = request_id.as_str();
            tracing::info!(%peer, id, "what came is no request: HTTP/2 is not spoken here");
            last_word(connection, no_request(), &request_id, metrics, true).await;
        }
        Err(error) if !error.is_parse() => return Some(connection),
        _ => connection.linger().await,
    }
    None
}

/// The answer when there is no place left, whatever is asked.
fn no_place() -> Refusal {
    Refusal::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "unavailable",
        "too many connections are open, or too many from this address: use one for many calls, or try again later",
    )
    .with(header::RETRY_AFTER, "1")
}

/// Ends a connection with an answer to what no service has seen. `stays`: until its peer has read it.
async fn last_word(
    connection: Connection,
    refusal: Refusal,
    request_id: &RequestId,
    metrics: &Metrics,
    stays: bool,
) {
    metrics.http_request(NO_ROUTE, refusal.status.as_u16());
    let answer = refusal.last_answer(request_id);
    // One small write into an empty socket buffer: it does not wait for the peer.
    if let Err(error) = connection.offer(&answer) {
        tracing::debug!(%error, "could not end a connection politely");
    } else if stays {
        connection.linger().await;
    }
}

#[cfg(test)]
mod tests;

//! Connections: accept, read requests, answer, drain. HTTP/1.1 only: a gateway's callers are programs, and every
//! protocol more is a surface more.

mod accept;
mod connection;
mod malformed;
mod write_timeout;

use std::error::Error as _;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use accept::{Accepting, Often};
use bytes::Bytes;
use connection::Connection;
use http::{Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use malformed::{Due, Malformed, too_slow};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tower::util::BoxCloneSyncService;
use write_timeout::{Socket as _, WriteTimeout};

use crate::rescue::{Refusal, RequestId};
use crate::slots::Slots;
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

/// What an address counts as: an IPv6 host owns its /64 (RFC 6177), so it could have a new address for every connection.
pub(crate) fn network(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX))),
        v4 => v4,
    }
}

/// A body that is there already.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into())
        .map_err(|never| match never {})
        .boxed_unsync()
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

/// Largest head of a request, request line and headers together; beyond it the answer is 431.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Most headers of a request.
const HEADERS_MAX: usize = 100;
/// How long connections that are cut off may take to be gone: each ends where it waits next.
const CUT_TIMEOUT: Duration = Duration::from_secs(1);
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
}

/// Serves until `stop` resolves, then lets requests in flight finish for at most the drain timeout, and cuts off those that
/// have not. Comes back with the moment until which what else is under way may go on. What is answered here, and not by the
/// stack, is counted in `metrics`.
pub async fn serve(
    listener: TcpListener,
    stack: Stack,
    settings: Settings,
    metrics: Metrics,
    stop: impl Future<Output = ()>,
) -> Instant {
    let places = Slots::new(settings.connections_max);
    let asides = Slots::new(TURNED_AWAY_MAX);
    let graceful = GracefulShutdown::new();
    let mut connections = JoinSet::new();
    let mut stop = std::pin::pin!(stop);
    let mut listener = Accepting::new(listener);
    let mut turned_away = Often::default();
    loop {
        while connections.try_join_next().is_some() {}
        let (stream, peer) = tokio::select! {
            () = &mut stop => break,
            accepted = listener.next() => accepted,
        };
        // Whoever holds many before a word is said leaves some to others.
        let address = network(peer.ip()).to_string();
        let Some(place) = places.take(&address) else {
            let request_id = RequestId::new();
            let id = request_id.as_str();
            if let Some(refused) = turned_away.once_more() {
                tracing::warn!(%peer, id, refused, "connection refused: server.max_connections is reached, or its address's share of them");
            }
            let (stream, aside) = (Connection::new(stream), asides.take(&address));
            let metrics = metrics.clone();
            connections.spawn(async move {
                last_word(stream, no_place(), &request_id, &metrics, aside.is_some()).await;
            });
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
        let stream = Malformed::new(stream, due.clone(), metrics.clone());
        let (last, was_due) = (ours.clone(), due.clone());
        let (stack, metrics) = (stack.clone(), metrics.clone());
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(Peer(peer));
            ours.clone().answer(stack.clone(), request, due.answer())
        });
        let connection = hyper::server::conn::http1::Builder::new()
            // Without a timer hyper's header timeout does nothing.
            .timer(TokioTimer::new())
            .header_read_timeout(settings.header_timeout)
            .max_buf_size(HEAD_BYTES_MAX)
            .max_headers(HEADERS_MAX)
            .half_close(false)
            .serve_connection(TokioIo::new(stream), service);
        let connection = graceful.watch(connection);
        connections.spawn(async move {
            let ended = connection.await;
            if let Err(error) = &ended {
                let cause = error.source().map(ToString::to_string);
                tracing::debug!(%peer, %error, cause, "connection ended");
            }
            // What cannot be read as a request has been answered too; of what ended otherwise nobody waits for an answer. The
            // drain does not wait for this.
            match ended {
                Err(error) if error.is_timeout() && was_due.is_to_a_part() => {
                    let request_id = RequestId::new();
                    let id = request_id.as_str();
                    tracing::info!(%peer, id, "connection ended: server.header_timeout_ms");
                    last_word(last, too_slow(), &request_id, &metrics, true).await;
                }
                Err(error) if !error.is_parse() => {}
                _ => last.linger().await,
            }
            drop(place);
        });
    }
    drop(listener);
    tracing::info!("draining: no new connections");
    let until = Instant::now() + settings.drain_timeout;
    if tokio::time::timeout_at(until, graceful.shutdown())
        .await
        .is_err()
    {
        tracing::warn!(
            "requests were still in flight when the drain timeout ended: they are cut off"
        );
    }
    // Each request that is left is dropped with what it waits for: its run ends as if the caller had gone away. So is what
    // only stays for the rest of a request that has been answered.
    let gone = tokio::time::timeout(CUT_TIMEOUT, connections.shutdown()).await;
    if gone.is_err() {
        tracing::warn!("connections that are cut off do not end");
    }
    until
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
mod tests {
    use super::connection::LINGER_BYTES_MAX;
    use super::{Metrics, Settings, Stack, full, serve};
    use http::Response;
    use std::net::SocketAddr;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpSocket, TcpStream};
    use tower::service_fn;

    const PATIENT: Settings = Settings {
        header_timeout: Duration::from_secs(60),
        write_timeout: Duration::from_secs(60),
        connections_max: 8,
        drain_timeout: Duration::from_secs(5),
    };

    /// A server: its address, and how to stop it and wait until it has.
    async fn serving(stack: Stack, settings: Settings) -> (SocketAddr, impl AsyncFnOnce()) {
        counted(stack, settings, Metrics::default()).await
    }

    async fn counted(
        stack: Stack,
        settings: Settings,
        metrics: Metrics,
    ) -> (SocketAddr, impl AsyncFnOnce()) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let stopped = async move { stopped.await.unwrap_or(()) };
        let server = tokio::spawn(serve(listener, stack, settings, metrics, stopped));
        let stop = async move || {
            stop.send(()).unwrap();
            server.await.unwrap();
        };
        (address, stop)
    }

    /// Of what was answered before there was a path.
    fn counts(metrics: &Metrics, code: &str) -> usize {
        let page = metrics.page().into_text();
        let sample = format!(r#"skillgate_http_requests_total{{route="other",code="{code}"}} "#);
        let count = page.lines().find_map(|line| line.strip_prefix(&sample));
        count.map_or(0, |count| count.parse().unwrap())
    }

    /// Whoever opens many would fill the log with what he is refused.
    #[tokio::test]
    async fn connections_without_a_place_are_said_now_and_then() {
        let settings = Settings {
            connections_max: 1,
            ..PATIENT
        };
        let (log, _here) = crate::telemetry::logged::Log::begin();
        let metrics = Metrics::default();
        let (address, stop) = counted(constant("hello"), settings, metrics.clone()).await;
        let _the_place = TcpStream::connect(address).await.unwrap();
        for _ in 0..20 {
            let mut client = TcpStream::connect(address).await.unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
        }
        assert_eq!(counts(&metrics, "503"), 20);
        let log = log.taken();
        let said: Vec<_> = log
            .lines()
            .filter(|it| it.contains("connection refused"))
            .collect();
        assert_eq!(said.len(), 1, "{log}");
        assert!(said[0].contains("refused=1"), "{log}");
        stop().await;
    }

    /// Also one that comes after others, and while their answers have not been read.
    #[tokio::test]
    async fn what_is_no_request_is_refused_as_all_else() {
        let metrics = Metrics::default();
        let (address, stop) = counted(constant("hello"), PATIENT, metrics.clone()).await;
        let header = format!("X-Big: {}\r\n", "x".repeat(200_000));
        let headers = "X-Many: 1\r\n".repeat(101);
        let target = "x".repeat(200_000);
        for (what, status) in [
            (format!("GET / HTTP/1.1\r\n{header}\r\n"), "431"),
            (format!("GET / HTTP/1.1\r\n{headers}\r\n"), "431"),
            (format!("GET /{target} HTTP/1.1\r\n\r\n"), "431"),
            ("\u{16}\u{3}\u{1} hello\r\n\r\n".to_owned(), "400"),
        ] {
            for before in [0, 1, 100] {
                let mut client = TcpStream::connect(address).await.unwrap();
                let good = "GET / HTTP/1.1\r\nHost: x\r\n\r\n".repeat(before);
                client.write_all((good + &what).as_bytes()).await.unwrap();
                let mut text = String::new();
                client.read_to_string(&mut text).await.unwrap();
                let answers: Vec<_> = text.split("HTTP/1.1 ").skip(1).collect();
                let (last, others) = answers.split_last().unwrap();
                assert_eq!(others.len(), before, "{text}");
                assert!(others.iter().all(|it| it.ends_with("hello")), "{text}");
                assert!(last.starts_with(status), "{last}");
                let (head, body) = last.split_once("\r\n\r\n").unwrap();
                let error: serde_json::Value = serde_json::from_str(body).unwrap();
                assert_eq!(error["error"]["code"], -32600, "{last}");
                assert_eq!(error["error"]["data"]["kind"], "bad_request");
                let id = error["error"]["data"]["request_id"].as_str().unwrap();
                assert!(head.contains(&format!("x-request-id: {id}")), "{head}");
                assert!(head.contains(&format!("content-length: {}", body.len())));
            }
        }
        assert_eq!((counts(&metrics, "431"), counts(&metrics, "400")), (9, 3));
        stop().await;
    }

    /// Says when it is dropped.
    struct Held(std::sync::mpsc::Sender<()>);

    impl Drop for Held {
        fn drop(&mut self) {
            // The test may be over.
            let _gone = self.0.send(());
        }
    }

    #[tokio::test]
    async fn what_outlives_the_drain_is_dropped_before_it_is_over() {
        let settings = Settings {
            connections_max: 8,
            drain_timeout: Duration::from_millis(1),
            ..PATIENT
        };
        let (held, dropped) = std::sync::mpsc::channel();
        let (begun, mut begins) = tokio::sync::mpsc::unbounded_channel();
        let never = Stack::new(service_fn(move |_| {
            let held = Held(held.clone());
            begun.send(()).unwrap();
            async move {
                let _held = held;
                std::future::pending().await
            }
        }));
        let (address, stop) = serving(never, settings).await;
        let mut client = TcpStream::connect(address).await.unwrap();
        client
            .write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            .await
            .unwrap();
        begins.recv().await.unwrap();
        stop().await;
        dropped.try_recv().expect("its request is gone");
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0, "no answer");
    }

    #[tokio::test]
    async fn a_request_ends_with_its_caller_whatever_follows_it() {
        for after in ["", "\r\n", "GET / HTTP/1.1\r\nHost: x\r\n\r\n"] {
            let (held, mut dropped) = tokio::sync::mpsc::unbounded_channel::<()>();
            let (begun, mut begins) = tokio::sync::mpsc::unbounded_channel();
            let never = Stack::new(service_fn(move |_| {
                let held = held.clone();
                begun.send(()).unwrap();
                async move {
                    let _held = held;
                    std::future::pending().await
                }
            }));
            let (address, stop) = serving(never, PATIENT).await;
            let mut client = TcpStream::connect(address).await.unwrap();
            let request = format!("GET / HTTP/1.1\r\nHost: x\r\n\r\n{after}");
            client.write_all(request.as_bytes()).await.unwrap();
            begins.recv().await.unwrap();
            assert!(!dropped.is_closed());
            drop(client);
            // With the server, whose own one is dropped at its stop, no sender is left.
            let stopped = tokio::time::timeout(Duration::from_secs(4), stop());
            assert!(stopped.await.is_ok(), "its request goes on: {after:?}");
            assert_eq!(dropped.recv().await, None);
        }
    }

    /// A connection from an address, and what comes of a request for it.
    async fn ask(from: &str, to: SocketAddr) -> (TcpStream, String) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(from.parse().unwrap()).unwrap();
        let mut client = socket.connect(to).await.unwrap();
        client
            .write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            .await
            .unwrap();
        let mut answer = [0; 1024];
        let read = client.read(&mut answer).await.unwrap();
        (client, String::from_utf8_lossy(&answer[..read]).into())
    }

    #[tokio::test]
    async fn one_address_leaves_places_to_others() {
        let settings = Settings {
            connections_max: 4,
            ..PATIENT
        };
        let (address, stop) = serving(constant("hello"), settings).await;
        let mut held = Vec::new();
        for _ in 0..3 {
            let (client, answer) = ask("127.0.0.2:0", address).await;
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
            held.push(client);
        }
        let (_refused, answer) = ask("127.0.0.2:0", address).await;
        assert!(
            answer.starts_with("HTTP/1.1 503 ") && answer.contains("from this address"),
            "{answer}"
        );
        let (_other, answer) = ask("127.0.0.3:0", address).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        stop().await;
    }

    fn constant(text: &'static str) -> Stack {
        Stack::new(service_fn(
            move |_| async move { Ok(Response::new(full(text))) },
        ))
    }

    #[tokio::test]
    async fn a_connection_that_was_answered_takes_so_much_and_no_more() {
        let (address, stop) = serving(constant("hello"), PATIENT).await;
        let mut endless = TcpStream::connect(address).await.unwrap();
        endless
            .write_all(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000000\r\n\r\n")
            .await
            .unwrap();
        let (piece, mut sent) = (vec![0; 64 * 1024], 0);
        while let Ok(bytes) = endless.write(&piece).await {
            sent += bytes;
        }
        // Beside what the two ends of a connection hold.
        let expected = LINGER_BYTES_MAX..LINGER_BYTES_MAX + (32 << 20);
        assert!(expected.contains(&sent), "{sent}");
        stop().await;
    }

    #[tokio::test]
    async fn a_connection_that_was_answered_has_its_place_for_a_moment_only() {
        let settings = Settings {
            connections_max: 1,
            ..PATIENT
        };
        let (address, stop) = serving(constant("hello"), settings).await;
        let mut quiet = TcpStream::connect(address).await.unwrap();
        quiet
            .write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            .await
            .unwrap();
        let mut text = String::new();
        quiet.read_to_string(&mut text).await.unwrap();
        assert!(text.ends_with("hello"), "{text}");
        let others = async {
            let mut refused = 0;
            while !ask("127.0.0.1:0", address).await.1.ends_with("hello") {
                refused += 1;
            }
            refused
        };
        let refused = tokio::time::timeout(Duration::from_secs(8), others).await;
        assert!(refused.expect("the place is free again") > 0);
        stop().await;
    }

    #[tokio::test]
    async fn slow_headers_are_cut_off_and_full_houses_turn_away() {
        let settings = Settings {
            header_timeout: Duration::from_millis(300),
            connections_max: 1,
            ..PATIENT
        };
        let metrics = Metrics::default();
        let (address, stop) = counted(constant("hello"), settings, metrics.clone()).await;

        let mut slow = TcpStream::connect(address).await.unwrap();
        slow.write_all(b"POST /rpc HTTP/1.1\r\nHost: x\r\nX-Drip: ")
            .await
            .unwrap();
        let mut text = String::new();
        let mut second = TcpStream::connect(address).await.unwrap();
        second.read_to_string(&mut text).await.unwrap();
        assert!(
            text.starts_with("HTTP/1.1 503 ") && text.contains("unavailable"),
            "{text}"
        );
        assert_eq!(counts(&metrics, "503"), 1);

        text.clear();
        tokio::time::timeout(Duration::from_secs(5), slow.read_to_string(&mut text))
            .await
            .expect("ended by the header timeout")
            .unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 408 "), "{head}");
        let error: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(error["error"]["data"]["kind"], "timeout");
        assert_eq!(counts(&metrics, "408"), 1);
        drop(slow);

        let mut third = TcpStream::connect(address).await.unwrap();
        third
            .write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            .await
            .unwrap();
        text.clear();
        third.read_to_string(&mut text).await.unwrap();
        assert!(text.ends_with("hello"), "the place is free again: {text}");

        stop().await;
    }

    /// Who has asked for nothing more is told nothing, and nothing is put into an answer that goes on.
    #[tokio::test]
    async fn a_connection_that_is_quiet_just_ends() {
        let settings = Settings {
            header_timeout: Duration::from_millis(100),
            ..PATIENT
        };
        let metrics = Metrics::default();
        let (address, stop) = counted(constant("hello"), settings, metrics.clone()).await;
        let good = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
        for (said, answers, slow) in [
            (String::new(), 0, false),
            ("\r\n".to_owned(), 0, false),
            (good.to_owned(), 1, false),
            (format!("{good}\r\n"), 1, false),
            ("GET / HT".to_owned(), 0, true),
        ] {
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(said.as_bytes()).await.unwrap();
            let mut text = String::new();
            client.read_to_string(&mut text).await.unwrap();
            let count = |status: &str| text.matches(&format!("HTTP/1.1 {status} ")).count();
            assert_eq!(
                (count("200"), count("408")),
                (answers, slow.into()),
                "{text}"
            );
        }
        assert_eq!(counts(&metrics, "408"), 1);
        stop().await;
        assert!(
            TcpStream::connect(address).await.is_err(),
            "no new connections after the end"
        );
    }
}

//! Connections as their peers see them: what is answered to what, when each ends, and who has a place.

mod last;

use super::connection::LINGER_BYTES_MAX;
use super::{HEAD_BYTES_MAX, Metrics, Settings, Stack, full, serve};
use futures_util::stream::once;
use http::Response;
use http_body_util::{BodyExt as _, StreamBody};
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
    leave_timeout: Duration::ZERO,
};

/// A request after which its client asks nothing more.
const LAST: &str = "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";

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
    let server = tokio::spawn(async move {
        let left = serve(listener, stack, settings, metrics, stopped).await;
        left.cut_off(Duration::ZERO).await;
    });
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

/// A site's networks are one address to connections, and each of them one to rate limits.
#[test]
fn a_site_of_ipv6_is_one_address() {
    let ip = |text: &str| text.parse::<std::net::IpAddr>().unwrap();
    for n in 0..8 {
        let host = ip(&format!("2001:db8:1:ff0{n}::7"));
        assert_eq!(super::site(host), ip("2001:db8:1:ff00::"), "{host}");
        let own = ip(&format!("2001:db8:1:ff0{n}::"));
        assert_eq!(super::network(host), own, "{host}");
    }
    let other = ip("2001:db8:1:fe00::7");
    assert_eq!(super::site(other), ip("2001:db8:1:fe00::"));
    for host in ["192.0.2.1", "::ffff:192.0.2.1"] {
        assert_eq!(super::site(ip(host)), ip("192.0.2.1"), "{host}");
        assert_eq!(super::network(ip(host)), ip("192.0.2.1"), "{host}");
    }
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
    let (log, _here) = crate::telemetry::logged::Log::begin();
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
        // HTTP/2 without being asked.
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(), "400"),
    ] {
        for before in [0, 1, 100] {
            let mut client = TcpStream::connect(address).await.unwrap();
            let peer = format!("peer={} ", client.local_addr().unwrap());
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
            // Whoever looks for who it was has the address, and the id of the answer.
            let log = log.taken();
            let is_it = |line: &str| line.contains(&peer) && line.contains(id);
            assert!(log.lines().any(is_it), "{peer}: {log}");
        }
    }
    assert_eq!((counts(&metrics, "431"), counts(&metrics, "400")), (9, 6));
    stop().await;
}

/// Whoever goes on with it for ever is refused where it has become too large, and not when its time has passed: meanwhile all
/// of it would be in memory, before anybody has asked for a token.
#[tokio::test]
async fn a_head_is_read_no_further_than_it_may_go() {
    let metrics = Metrics::default();
    let (address, stop) = counted(constant("hello"), PATIENT, metrics.clone()).await;
    let of_length = |bytes: usize| {
        let (start, end) = ("GET / HTTP/1.1\r\nX-Big: ", "\r\n\r\n");
        let value = "x".repeat(bytes - start.len() - end.len());
        format!("{start}{value}{end}")
    };
    let unfinished = of_length(40 << 10).trim_end().to_owned();
    for (said, status) in [
        (unfinished, "431"),
        (of_length(HEAD_BYTES_MAX + 1), "431"),
        (of_length(HEAD_BYTES_MAX), "200"),
    ] {
        let client = TcpStream::connect(address).await.unwrap();
        client.set_nodelay(true).unwrap();
        let (mut reading, mut writing) = client.into_split();
        let writes = tokio::spawn(async move {
            for piece in said.as_bytes().chunks(1000) {
                // The server may have ended it before all is sent.
                if writing.write_all(piece).await.is_err() {
                    break;
                }
                tokio::task::yield_now().await;
            }
            writing
        });
        let mut answer = [0; 1024];
        let read = tokio::time::timeout(Duration::from_secs(10), reading.read(&mut answer));
        let read = read.await.expect("an answer at once").unwrap();
        let answer = String::from_utf8_lossy(&answer[..read]);
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{answer}"
        );
        if status == "431" {
            assert!(
                answer.contains("over 16384 bytes or over 100 headers"),
                "{answer}"
            );
        }
        drop(writes.await.unwrap());
    }
    assert_eq!(counts(&metrics, "431"), 2);
    stop().await;
}

/// Where its request was not read to its end, hyper goes on to what follows before the answer is written.
#[tokio::test]
async fn what_is_no_request_is_refused_behind_the_answer_before_it() {
    const BYTES: usize = 32 << 20;
    let large = Stack::new(service_fn(|_| async {
        Ok(Response::new(full(vec![7; BYTES])))
    }));
    let (address, stop) = serving(large, PATIENT).await;
    let head = "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
    for body in ["0\r\n\r\n", "5\r\nhello\r\n0\r\n\r\n"] {
        let mut client = TcpStream::connect(address).await.unwrap();
        let both = format!("{head}{body}\u{16}\u{3}\u{1} hello\r\n\r\n");
        client.write_all(both.as_bytes()).await.unwrap();
        let mut all = Vec::new();
        client.read_to_end(&mut all).await.unwrap();
        let end = |part: &[u8]| part.windows(4).position(|it| it == b"\r\n\r\n").unwrap() + 4;
        let (answer, last) = all.split_at(end(&all) + BYTES);
        assert!(answer.starts_with(b"HTTP/1.1 200 "));
        assert!(answer[end(answer)..].iter().all(|byte| *byte == 7));
        let last = String::from_utf8_lossy(last);
        assert!(last.starts_with("HTTP/1.1 400 "), "{last}");
        assert!(
            last.ends_with("this is no request of HTTP/1.1\"}}"),
            "{last}"
        );
    }
    stop().await;
}

#[tokio::test]
async fn a_body_that_outlives_its_answer_leaves_the_connection_to_the_next_request() {
    let (keep, mut kept) = tokio::sync::mpsc::unbounded_channel();
    let stack = Stack::new(service_fn(move |request: http::Request<super::Body>| {
        keep.send(request.into_body()).unwrap();
        async { Ok(Response::new(full("hello"))) }
    }));
    let (address, stop) = serving(stack, PATIENT).await;
    let mut client = TcpStream::connect(address).await.unwrap();
    let head = "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
    for _ in 0..2 {
        let request = format!("{head}5\r\nthere\r\n0\r\n\r\n");
        client.write_all(request.as_bytes()).await.unwrap();
        let body = kept.recv();
        let body = tokio::time::timeout(Duration::from_secs(10), body).await;
        let body = body.expect("it has come");
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\nhello") {
            assert!(client.read_buf(&mut answer).await.unwrap() > 0);
        }
        drop(body);
    }
    drop(client);
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

#[tokio::test]
async fn an_answer_that_does_not_go_on_ends_with_its_caller_whatever_follows_his_request() {
    for after in ["", "\r\n", "GET / HTTP/1.1\r\nHost: x\r\n\r\n"] {
        let (held, mut dropped) = tokio::sync::mpsc::unbounded_channel::<()>();
        let hangs = Stack::new(service_fn(move |_| {
            let held = held.clone();
            let pieces = once(async move {
                let _held = held;
                std::future::pending().await
            });
            std::future::ready(Ok(Response::new(StreamBody::new(pieces).boxed_unsync())))
        }));
        let (address, stop) = serving(hangs, PATIENT).await;
        let mut client = TcpStream::connect(address).await.unwrap();
        let request = format!("GET / HTTP/1.1\r\nHost: x\r\n\r\n{after}");
        client.write_all(request.as_bytes()).await.unwrap();
        let mut head = [0; 1024];
        let read = client.read(&mut head).await.unwrap();
        assert!(head[..read].ends_with(b"\r\n\r\n"), "{:?}", &head[..read]);
        drop(client);
        let stopped = tokio::time::timeout(Duration::from_secs(4), stop());
        assert!(stopped.await.is_ok(), "its answer goes on: {after:?}");
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
    quiet.write_all(LAST.as_bytes()).await.unwrap();
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

    let third = async { while !ask("127.0.0.1:0", address).await.1.ends_with("hello") {} };
    let third = tokio::time::timeout(Duration::from_secs(8), third).await;
    third.expect("the place is free again");
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
    let with_body = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}";
    for (said, answers, slow) in [
        (String::new(), 0, false),
        ("\r\n".to_owned(), 0, false),
        (good.to_owned(), 1, false),
        (format!("{good}\r\n"), 1, false),
        ("GET / HT".to_owned(), 0, true),
        // In one piece with the request before it.
        (format!("{good}GET / HT"), 1, true),
        (format!("{with_body}GET / HT"), 1, true),
        (with_body.to_owned(), 1, false),
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
    assert_eq!(counts(&metrics, "408"), 3);
    stop().await;
    assert!(
        TcpStream::connect(address).await.is_err(),
        "no new connections after the end"
    );
}

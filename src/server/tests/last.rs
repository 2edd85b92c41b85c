//! Answers that are the last of their connection.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Response;
use http_body_util::BodyExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tower::{ServiceBuilder, service_fn};

use super::super::malformed::REST_BYTES_MAX;
use super::super::{Body, Metrics, Settings, Stack, full, serve};
use super::{LAST, PATIENT, constant, serving};
use crate::rescue::{Named, RescueLayer};

/// Else hyper ends the connection without a word, and the client has sent his next request by then.
#[tokio::test]
async fn an_answer_to_what_is_not_read_says_whether_it_is_the_last() {
    let (address, stop) = serving(constant("hello"), PATIENT).await;
    let rest = REST_BYTES_MAX as usize;
    let sized = |size: usize, more: &str| format!("Content-Length: {size}\r\n{more}");
    let chunked = "Transfer-Encoding: chunked\r\n".to_owned();
    let whole = format!("7530\r\n{}\r\n0\r\n\r\n", "x".repeat(0x7530));
    for (header, body, is_last) in [
        (sized(rest, ""), "x".repeat(rest), false),
        (chunked.clone(), whole, false),
        (sized(rest + 1, ""), String::new(), true),
        (chunked, "5\r\nthere\r\n".to_owned(), true),
        (sized(5, "Expect: 100-continue\r\n"), String::new(), true),
    ] {
        let mut client = TcpStream::connect(address).await.unwrap();
        let head = format!("POST / HTTP/1.1\r\nHost: x\r\n{header}\r\n");
        let (begun, end) = (format!("{head}{body}"), "\r\n\r\nhello");
        let mut answer = Vec::new();
        for _ in 0..if is_last { 1 } else { 2 } {
            client.write_all(begun.as_bytes()).await.unwrap();
            answer.clear();
            while !answer.ends_with(end.as_bytes()) {
                assert!(client.read_buf(&mut answer).await.unwrap() > 0, "{head}");
            }
        }
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert_eq!(
            answer.contains("connection: close"),
            is_last,
            "{head}{answer}"
        );
    }
    stop().await;
}

/// A client's pool would send its next request into the end of the connection.
#[tokio::test]
async fn an_answer_that_is_given_in_the_drain_is_the_last() {
    // Which of two things that are ready comes first must not be left to chance.
    for _ in 0..20 {
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let stop = Arc::new(Mutex::new(Some(stop)));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stack = Stack::new(service_fn(move |_| {
            let stop = stop.lock().unwrap().take();
            async move {
                drop(stop);
                while std::net::TcpStream::connect(address).is_ok() {
                    tokio::task::yield_now().await;
                }
                Ok(Response::new(full("hello")))
            }
        }));
        let stopped = async move { stopped.await.unwrap_or(()) };
        let metrics = Metrics::default();
        let server = tokio::spawn(serve(listener, stack, PATIENT, metrics, stopped));
        let mut client = TcpStream::connect(address).await.unwrap();
        let request = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
        client.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert!(answer.contains("\r\nconnection: close\r\n"), "{answer}");
        server.await.unwrap().cut_off(Duration::ZERO).await;
    }
}

/// Its peer cannot know yet, and would not know of one that just ends whether it was taken.
#[tokio::test]
async fn a_request_that_is_on_its_way_when_the_drain_begins_is_answered() {
    let settings = Settings {
        drain_timeout: Duration::from_secs(60),
        leave_timeout: Duration::from_secs(60),
        ..PATIENT
    };
    let (address, stop) = serving(constant("hello"), settings).await;
    let mut client = TcpStream::connect(address).await.unwrap();
    client
        .write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        .await
        .unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\nhello") {
        assert!(client.read_buf(&mut answer).await.unwrap() > 0);
    }
    let asks = async {
        while std::net::TcpStream::connect(address).is_ok() {
            tokio::task::yield_now().await;
        }
        client.write_all(LAST.as_bytes()).await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("\r\n\r\nhello"), "{answer}");
    };
    tokio::join!(stop(), asks);
}

/// One waits for something that ends when the drain is over, and has its own answer; of the other nothing comes, and that is what
/// it is told.
#[tokio::test]
async fn what_has_no_answer_when_the_drain_is_over_is_told() {
    let (over, _) = tokio::sync::watch::channel(());
    let (begun, mut begins) = tokio::sync::mpsc::unbounded_channel();
    let waits = over.clone();
    let stack =
        ServiceBuilder::new()
            .layer(RescueLayer)
            .service(service_fn(move |named: Named| {
                begun.send(()).unwrap();
                let mut over = waits.subscribe();
                async move {
                    over.changed().await.unwrap();
                    if named.request.uri() == "/never" {
                        std::future::pending().await
                    }
                    Ok(Response::new(full("the end")))
                }
            }));
    let settings = Settings {
        drain_timeout: Duration::from_millis(1),
        ..PATIENT
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut clients = Vec::new();
    for path in ["/", "/never"] {
        let mut client = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
        client.write_all(request.as_bytes()).await.unwrap();
        clients.push(client);
    }
    let both_begin = async move {
        for _ in 0..2 {
            begins.recv().await.unwrap();
        }
    };
    let (stack, metrics) = (Stack::new(stack), Metrics::default());
    let left = serve(listener, stack, settings, metrics, both_begin).await;
    over.send_replace(());
    left.cut_off(Duration::from_millis(500)).await;
    let mut answers = Vec::new();
    for mut client in clients {
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert!(answer.contains("\r\nconnection: close\r\n"), "{answer}");
        answers.push(answer);
    }
    assert!(answers[0].starts_with("HTTP/1.1 200"), "{}", answers[0]);
    assert!(answers[0].ends_with("\r\n\r\nthe end"), "{}", answers[0]);
    assert!(answers[1].starts_with("HTTP/1.1 503"), "{}", answers[1]);
    assert!(answers[1].contains("is not known"), "{}", answers[1]);
    assert!(!answers[1].contains("retry"), "{}", answers[1]);
}

/// The kernel resets those that were not accepted.
#[tokio::test]
async fn who_has_connected_before_the_end_is_answered() {
    let settings = Settings {
        leave_timeout: PATIENT.drain_timeout,
        ..PATIENT
    };
    for _ in 0..20 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut clients = Vec::new();
        for _ in 0..3 {
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(LAST.as_bytes()).await.unwrap();
            clients.push(client);
        }
        let (stack, metrics) = (constant("hello"), Metrics::default());
        let left = serve(listener, stack, settings, metrics, std::future::ready(())).await;
        left.cut_off(Duration::ZERO).await;
        for mut client in clients {
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            assert!(answer.ends_with("\r\n\r\nhello"), "{answer}");
        }
    }
}

/// What hyper takes for trailers goes on up to an empty line that ends with CR LF; whoever is in front may take one that ends
/// with LF alone, and passes on what it holds for a request of its own.
#[tokio::test]
async fn nothing_is_answered_behind_trailers() {
    let reads = service_fn(async |request: http::Request<Body>| {
        let body = request.into_body().collect().await;
        assert!(["hello", ""].contains(&&*String::from_utf8_lossy(&body.unwrap().to_bytes())));
        Ok(Response::new(full("read")))
    });
    let (reading, stop_reading) = serving(Stack::new(reads), PATIENT).await;
    let (constant, stop_constant) = serving(constant("read"), PATIENT).await;
    let head =
        "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n";
    let hides = "GET /hidden HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let next = format!(
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{hides}",
        hides.len()
    );
    for address in [reading, constant] {
        for (end, follows, answers) in [
            ("\r\n", LAST, 2),
            ("X: 1\r\n\r\n", LAST, 1),
            ("\n", &next, 1),
            ("X: 1\n\n", &next, 1),
            ("X: 1\r\n\n", &next, 1),
            ("X: 1\n\r\n", &next, 1),
        ] {
            let mut client = TcpStream::connect(address).await.unwrap();
            let all = format!("{head}{end}{follows}");
            client.write_all(all.as_bytes()).await.unwrap();
            let mut text = String::new();
            client.read_to_string(&mut text).await.unwrap();
            let is_answered = text.matches("HTTP/1.1 ").count();
            assert_eq!(is_answered, answers, "{end:?}: {text}");
            assert!(
                text.contains("\r\nconnection: close\r\n"),
                "{end:?}: {text}"
            );
        }
    }
    stop_reading().await;
    stop_constant().await;
}

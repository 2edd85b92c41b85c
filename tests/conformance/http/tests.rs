//! Servers that are as wrong as can be: every one of them is done with in time, and what is said tells what it did.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

use super::*;

/// So that no test waits for what the suite would wait for.
const QUICK: Patience = Patience {
    answer: Duration::from_millis(1500),
    silence: Duration::from_millis(300),
};

/// A server of one connection that has read the request's head and goes on as `say` does.
fn server(say: impl FnOnce(&mut TcpStream) + Send + 'static) -> (Endpoint, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("it has an address").port();
    let serving = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("the client connects");
        let mut head = [0u8; 1024];
        let read = stream.read(&mut head).expect("the client sends a request");
        assert!(read > 0);
        say(&mut stream);
    });
    let endpoint = Endpoint {
        patience: QUICK,
        ..Endpoint::parse(&format!("http://127.0.0.1:{port}/rpc")).expect("this is an address")
    };
    (endpoint, serving)
}

/// What the client makes of a server that sends these bytes and closes.
fn told(bytes: &'static [u8]) -> Result<Answer, String> {
    let (endpoint, serving) = server(move |stream| stream.write_all(bytes).expect("they are read"));
    let answer = endpoint.post(b"{}");
    serving.join().expect("the server does as it was told");
    answer
}

/// What is said of a server that does as `say` does for as long as somebody reads.
fn why(patience: Patience, say: impl FnOnce(&mut TcpStream) + Send + 'static) -> String {
    let (mut endpoint, serving) = server(say);
    endpoint.patience = patience;
    let why = endpoint.post(b"{}").expect_err("this is no answer");
    assert_eq!(endpoint.unanswered(), 1);
    serving.join().expect("the server does as it was told");
    why
}

/// Until the client is gone.
fn wait(stream: &mut TcpStream) {
    let mut nothing = [0u8; 1];
    while matches!(stream.read(&mut nothing), Ok(n) if n > 0) {}
}

#[test]
fn an_answer_is_read_to_its_own_end() {
    let answer = |bytes| told(bytes).expect("this is an answer");
    let plain = answer(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}");
    assert_eq!((plain.status, plain.body.as_slice()), (200, &b"{}"[..]));
    let closed = answer(b"HTTP/1.0 404 Not Found\r\n\r\ngone");
    assert_eq!((closed.status, closed.body.as_slice()), (404, &b"gone"[..]));
    let chunked = answer(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n3;x=y\r\n{\"a\r\n4\r\n\":1}\r\n0\r\nT: 1\r\n\r\n",
    );
    assert_eq!(chunked.body, b"{\"a\":1}");
    let hinted = answer(
        b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n1",
    );
    assert_eq!((hinted.status, hinted.body.as_slice()), (200, &b"1"[..]));
    let latin = answer(b"HTTP/1.1 200 OK\r\nServer: M\xfcller\r\nContent-Length: 1\r\n\r\n1");
    assert_eq!(latin.status, 200);
    // What has no body shows what it sends all the same.
    let empty = answer(b"HTTP/1.1 204 No Content\r\n\r\nand yet");
    assert_eq!(empty.body, b"and yet");
}

/// The end of an answer is where its head says, not where the connection ends.
#[test]
fn a_connection_that_stays_open_keeps_nobody_waiting() {
    for bytes in [
        &b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"[..],
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    ] {
        let (endpoint, serving) = server(move |stream| {
            stream.write_all(bytes).expect("they are read");
            wait(stream);
        });
        let answer = endpoint.post(b"{}").expect("this is an answer");
        assert_eq!(answer.body, b"{}");
        assert!(answer.took < QUICK.answer, "{:?}", answer.took);
        serving.join().expect("the server does as it was told");
    }
}

#[test]
fn what_is_no_answer_says_why() {
    for (bytes, said) in [
        (&b""[..], "no answer: the server has closed the connection"),
        (b"SSH-2.0-Toy\r\n\r\n", "not an HTTP answer: \"SSH-2.0-Toy"),
        (
            b"HTTP/1.1 200 OK\r\nX: y",
            "an answer without its end, the server has closed",
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}",
            "it says that 9 bytes follow, of which 2 have come",
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999\r\n\r\n{}",
            "an answer of more than 33554432 bytes: it says that 99999999999999 follow the first 51",
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\n{}",
            "an answer whose Content-Length is none: [\"99999999999999999999999\"]",
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
            "an answer whose Content-Length is none: [\"1\", \"2\"]",
        ),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n",
            "no chunk of a chunked answer: \"zz",
        ),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}x\r\n0\r\n\r\n",
            "a chunk is longer than it says",
        ),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n{}\r\n",
            "it says that 18446744073709551615 follow the first 65",
        ),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n",
            "an answer without its end, the server has closed",
        ),
    ] {
        let why = told(bytes).expect_err("this is no answer");
        assert!(why.contains(said), "{said}\n{why}");
    }
}

#[test]
fn a_server_that_says_nothing_is_left() {
    let why = why(QUICK, wait);
    assert_eq!(why, "no answer in 1500 ms");
}

/// Each byte comes in time, and all of them would never have come.
#[test]
fn a_server_that_dribbles_is_left() {
    let why = why(QUICK, |stream| {
        let mut dribble = std::iter::once(&b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n"[..])
            .chain(std::iter::repeat(&b" "[..]));
        // As slowly as the client would still wait for each: `read` waits that long for what never comes.
        let pause = Some(Duration::from_millis(50));
        stream.set_read_timeout(pause).expect("that is a time");
        let mut rest = [0u8; 64];
        while stream
            .write_all(dribble.next().expect("there is always more"))
            .is_ok()
        {
            if matches!(stream.read(&mut rest), Ok(0)) {
                break;
            }
        }
    });
    assert!(
        why.starts_with("an answer without its end, that was all in 1500 ms"),
        "{why}"
    );
    assert!(why.contains("it says that 9999 bytes follow"), "{why}");
}

#[test]
fn an_answer_without_end_is_not_kept() {
    for begin in [
        &b"HTTP/1.1 200 OK\r\n\r\n"[..],
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    ] {
        let why = why(Patience::default(), move |stream| {
            // The bytes of a chunk of its own, in which the other reads no meaning.
            let block = [&b"100000\r\n"[..], &vec![b' '; 1 << 20], b"\r\n"].concat();
            if stream.write_all(begin).is_ok() {
                while stream.write_all(&block).is_ok() {}
            }
        });
        assert!(
            why.starts_with("an answer of more than 33554432 bytes: "),
            "{why}"
        );
    }
}

/// Of a head and of a chunk's line there may be no end either.
#[test]
fn a_head_without_end_is_not_kept() {
    for begin in [
        &b"HTTP/1.1 200 OK\r\nX: "[..],
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    ] {
        let why = why(Patience::default(), move |stream| {
            let block = vec![b'1'; 1 << 16];
            if stream.write_all(begin).is_ok() {
                while stream.write_all(&block).is_ok() {}
            }
        });
        assert!(
            why.starts_with("no end of a head or line in 262144 bytes"),
            "{why}"
        );
    }
}

#[test]
fn every_address_of_a_name_is_tried() {
    let open = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let there = open.local_addr().expect("it has an address");
    // A port that nobody listens on, and that nobody gets meanwhile: that of a connection.
    let taken = TcpStream::connect(there).expect("one listens");
    let not_there = taken.local_addr().expect("it has an address");
    let found = connect("localhost", [not_there, there].into_iter()).expect("one listens");
    assert_eq!(found.peer_addr().expect("it is connected"), there);
    let why = connect("localhost", [not_there, not_there].into_iter()).expect_err("none listens");
    assert_eq!(
        why.matches("cannot connect to 127.0.0.1:").count(),
        2,
        "{why}"
    );
    let why = connect("localhost", std::iter::empty()).expect_err("there is none");
    assert_eq!(why, "localhost has no address");
}

#[test]
fn an_answer_ends_the_count_of_those_without() {
    let (endpoint, serving) = server(|stream| {
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n1";
        stream.write_all(answer).expect("it is read");
    });
    let nobody = Endpoint {
        host: "127.0.0.1:1".into(),
        ..endpoint.clone()
    };
    for count in 1..4 {
        assert!(nobody.post(b"{}").is_err());
        assert_eq!(endpoint.unanswered(), count);
    }
    assert!(endpoint.post(b"{}").is_ok());
    assert_eq!(endpoint.unanswered(), 0);
    serving.join().expect("the server does as it was told");
}

/// Where an endpoint is; what is left out is what the scheme says.
#[test]
fn the_address_of_an_endpoint() {
    for (url, host, path) in [
        ("http://a.example/rpc", "a.example:80", "/rpc"),
        ("http://a.example:8080", "a.example:8080", "/rpc"),
        ("http://a.example/", "a.example:80", "/"),
        ("http://[::1]/x/rpc", "[::1]:80", "/x/rpc"),
        ("http://[::1]:8080/rpc", "[::1]:8080", "/rpc"),
        ("https://a.example/rpc", "a.example:443", "/rpc"),
        ("https://[::1]:8443/rpc", "[::1]:8443", "/rpc"),
    ] {
        let endpoint = Endpoint::trusting(url, Some(&authority())).expect("this is an address");
        assert_eq!((&*endpoint.host, &*endpoint.path), (host, path), "{url}");
        let scheme = url.split_once("://").unwrap_or_default().0;
        assert_eq!(endpoint.url(), format!("{scheme}://{host}{path}"));
    }
    for wrong in ["", "a.example/rpc", "ftp://a.example/rpc", "://a.example"] {
        let why = Endpoint::parse(wrong).expect_err("this is no address");
        assert!(
            why.contains("is not an http:// or https:// address"),
            "{why}"
        );
    }
    let why = Endpoint::trusting("https://a.example", Some(Path::new("none.pem")))
        .expect_err("nobody can be trusted");
    assert!(why.starts_with("none.pem: "), "{why}");
}

fn authority() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/keys/ca.pem")
}

/// What is said of a server that does so where TLS is spoken to it.
fn why_over_tls(say: impl FnOnce(&mut TcpStream) + Send + 'static) -> String {
    let (plain, serving) = server(say);
    let url = plain.url().replacen("http", "https", 1);
    let endpoint = Endpoint {
        patience: QUICK,
        ..Endpoint::trusting(&url, Some(&authority())).expect("this is an address")
    };
    let why = endpoint.post(b"{}").expect_err("this is no answer");
    assert_eq!(endpoint.unanswered(), 1);
    serving.join().expect("the server does as it was told");
    why
}

#[test]
fn who_does_not_speak_tls_is_done_with_in_time() {
    let why = why_over_tls(wait);
    assert!(why.starts_with("no answer in 1500 ms"), "{why}");

    let why = why_over_tls(|stream| {
        let answer = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
        stream.write_all(answer).expect("it is read");
        // Who ends a connection with something unread in it takes back what it said.
        wait(stream);
    });
    assert!(
        why.starts_with("no answer: received corrupt message"),
        "{why}"
    );

    // A handshake of which a byte comes now and then.
    let began = Instant::now();
    let why = why_over_tls(|stream| {
        let mut said = stream.write_all(&[22, 3, 3, 0x40, 0]);
        while said.is_ok() {
            std::thread::sleep(Duration::from_millis(20));
            said = stream.write_all(&[0]);
        }
    });
    assert!(why.starts_with("no answer in 1500 ms"), "{why}");
    assert!(began.elapsed() < 2 * QUICK.answer, "{why}");
}

/// It has done nothing of what it refuses so, and a wait that is longer than anybody has is an answer.
#[test]
fn who_is_told_when_to_come_comes_then() {
    let busy: [&[u8]; 3] = [
        b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n{\"error\":{\"code\":-32007,\"data\":{\"retry_after_ms\":1}}}",
    ];
    let last =
        b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 3600\r\nContent-Length: 0\r\n\r\n";
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("it has an address").port();
    let serving = std::thread::spawn(move || {
        for answer in busy.into_iter().chain([&last[..]]) {
            let (mut stream, _) = listener.accept().expect("the client connects");
            let mut request = [0u8; 1024];
            let read = stream.read(&mut request).expect("it sends a request");
            assert!(request[..read].ends_with(b"{}"));
            stream.write_all(answer).expect("it is read");
        }
    });
    let endpoint =
        Endpoint::parse(&format!("http://127.0.0.1:{port}/rpc")).expect("this is an address");
    let answer = endpoint.post(b"{}").expect("this is an answer");
    serving.join().expect("the client came four times");
    assert_eq!(answer.status, 503);
    assert_eq!(endpoint.waited(), LATER_MIN * 3);
}

//! Absolute-form requests: what reaches the host is made anew, and each request is decided by itself.

use super::super::record::Entry;
use super::*;

const OK: &[u8] = b"HTTP/1.1 200 Fine\r\nContent-Length: 2\r\nConnection: x-secret-hop\r\nX-Secret-Hop: 1\r\nKeep-Alive: 5\r\nX-Kept: yes\r\n\r\nhi";

async fn world() -> (World, Host, String) {
    let host = Host::new("127.0.0.2", OK).await;
    let (world, authority) = world_of(host.address);
    (world, host, authority)
}

/// Where the one at this address is all that is granted.
fn world_of(host: SocketAddr) -> (World, String) {
    let authority = format!("plain.example.com:{}", host.port());
    let world = World::new(settings(), grant(&[format!("http://{authority}")], &[]));
    world.resolver.say("plain.example.com", &[&["127.0.0.2"]]);
    (world, authority)
}

#[tokio::test]
async fn a_request_is_made_anew() {
    let (mut world, host, authority) = world().await;
    let answer = world
        .exchange(
            format!(
                "POST http://{authority}/a/b?c=%2f HTTP/1.1\r\nHost: {authority}\r\nProxy-Authorization: Basic eA==\r\n\
                 Proxy-Connection: keep-alive\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\nUpgrade: h2c\r\nTE: trailers\r\n\
                 X-Kept: yes\r\nContent-Length: 4\r\n\r\nbody"
            )
            .as_bytes(),
        )
        .await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(
        answer.ends_with("\r\n\r\nhi") && answer.contains("x-kept: yes"),
        "{answer}"
    );
    for gone in ["x-secret-hop", "keep-alive: 5"] {
        assert!(!answer.to_lowercase().contains(gone), "{answer}");
    }
    let got = host.text();
    assert!(
        got.starts_with("POST /a/b?c=%2f HTTP/1.1\r\n") && got.ends_with("\r\n\r\nbody"),
        "{got}"
    );
    let lower = got.to_lowercase();
    assert!(
        lower.contains(&format!("host: {authority}\r\n")) && lower.contains("x-kept: yes\r\n"),
        "{got}"
    );
    for gone in ["proxy-", "upgrade", "te:", "x-hop", "keep-alive"] {
        assert!(!lower.contains(gone), "{got}");
    }
    let record = world.record().await;
    assert_eq!(
        (record.verdict, record.reason, record.scheme),
        (Verdict::Allowed, "closed", "http")
    );
    assert_eq!(
        (record.bytes_up, record.bytes_down),
        (got.len() as u64, OK.len() as u64)
    );
}

/// As Python's urllib writes `http://host?c=1` to a proxy.
#[tokio::test]
async fn an_empty_path_is_passed_on_as_a_slash() {
    let (mut world, host, authority) = world().await;
    for (url, line) in [
        (format!("http://{authority}?c=1"), "GET /?c=1 HTTP/1.1\r\n"),
        (format!("http://{authority}"), "GET / HTTP/1.1\r\n"),
    ] {
        let before = host.text().len();
        let request = format!("GET {url} HTTP/1.1\r\nHost: {authority}\r\n\r\n");
        let answer = world.exchange(request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{url}: {answer}");
        let got = host.text().split_off(before);
        assert!(got.starts_with(line), "{url}: {got}");
        let record = world.record().await;
        assert_eq!(
            (record.verdict, record.reason),
            (Verdict::Allowed, "closed"),
            "{url}"
        );
        assert_eq!(record.bytes_up, got.len() as u64, "{url}");
    }
}

#[tokio::test]
async fn each_request_of_a_connection_is_decided_by_itself() {
    let (mut world, host, authority) = world().await;
    let sentinel = Host::new("127.0.0.2", OK).await;
    world.resolver.say("evil.com", &[&["127.0.0.2"]]);
    let answer = world
        .exchange(
            format!(
                "GET http://{authority}/1 HTTP/1.1\r\nHost: {authority}\r\n\r\n\
                 GET http://evil.com:{}/2 HTTP/1.1\r\nHost: evil.com:{0}\r\n\r\n\
                 GET http://{authority}/3 HTTP/1.1\r\nHost: {authority}\r\n\r\n",
                sentinel.address.port()
            )
            .as_bytes(),
        )
        .await;
    assert_eq!(answer.matches("HTTP/1.1 200 ").count(), 2, "{answer}");
    assert_eq!(answer.matches("HTTP/1.1 403 ").count(), 1, "{answer}");
    assert_eq!((host.reached(), sentinel.reached()), (2, 0));
    let mut verdicts = Vec::new();
    for _ in 0..3 {
        verdicts.push(world.record().await.verdict);
    }
    assert_eq!(
        verdicts.iter().filter(|v| **v == Verdict::Refused).count(),
        1
    );
}

/// Two lengths, one inside the other's reach: what is hidden in a body stays in a body.
#[tokio::test]
async fn nothing_is_smuggled() {
    let (world, host, authority) = world().await;
    let hidden = "GET http://evil.com/ HTTP/1.1\r\nHost: evil.com\r\n\r\n";
    let cases = [
        format!(
            "Content-Length: {}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}",
            hidden.len() + 5
        ),
        format!("Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n{hidden}"),
        format!(
            "Content-Length: 0\r\nContent-Length: {}\r\n\r\n{hidden}",
            hidden.len()
        ),
        format!("Content-Length: 0, {}\r\n\r\n{hidden}", hidden.len()),
        format!("Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n{hidden}"),
        format!("Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n{hidden}"),
        format!("Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n{hidden}"),
        format!("Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n{hidden}"),
        format!("Content-Length: +0\r\n\r\n{hidden}"),
        format!("Content-Length: -1\r\n\r\n{hidden}"),
        format!("Content-Length: 0x0\r\n\r\n{hidden}"),
        format!("X: a\nContent-Length: 0\r\n\r\n{hidden}"),
        format!(" Content-Length: 3\r\n\r\n{hidden}"),
        format!("X:\r\n Content-Length: 3\r\n\r\n{hidden}"),
        format!("Transfer-Encoding: chunked\r\n\r\n1;\nx\r\na\r\n0\r\n\r\n{hidden}"),
        format!("Transfer-Encoding: chunked\r\n\r\n-1\r\n{hidden}"),
        format!("Transfer-Encoding: chunked\r\n\r\n10000000000000000\r\n{hidden}"),
        format!(
            "Connection: Content-Length\r\nContent-Length: {}\r\n\r\n{hidden}",
            hidden.len()
        ),
        format!(
            "Connection: Host\r\nContent-Length: {}\r\n\r\n{hidden}",
            hidden.len()
        ),
    ];
    for headers in cases {
        let before = host.text().len();
        let answer = world
            .exchange(
                format!("POST http://{authority}/x HTTP/1.1\r\nHost: {authority}\r\n{headers}")
                    .as_bytes(),
            )
            .await;
        let got = host.text().split_off(before);
        assert!(
            got.matches("HTTP/1.1\r\n").count() <= 2,
            "{headers:?}: {got}"
        );
        // Where the host got the hidden text, it is the body of the one request, and framed as such.
        if let Some(at) = got.find("evil.com") {
            let head = got.find("\r\n\r\n").unwrap();
            assert!(at > head, "{headers:?}: {got}");
            let framed = got[..head].to_lowercase();
            assert!(
                framed.contains("content-length: ")
                    || framed.contains("transfer-encoding: chunked"),
                "{headers:?}: {got}"
            );
        }
        assert!(
            got.is_empty()
                || got
                    .to_lowercase()
                    .contains(&format!("host: {authority}\r\n")),
            "{headers:?}: {got}"
        );
        assert!(
            !answer.contains("200 Fine") || answer.matches("HTTP/1.1 200").count() == 1,
            "{headers:?}: {answer}"
        );
    }
    assert_eq!(
        world.resolver.asked.load(Ordering::SeqCst),
        host.reached(),
        "nobody else was looked for"
    );
}

#[tokio::test]
async fn what_is_not_for_a_proxy() {
    let (world, host, authority) = world().await;
    for (request, status) in [
        (format!("GET / HTTP/1.1\r\nHost: {authority}\r\n\r\n"), 404),
        (
            "GET /rt/blobs HTTP/1.1\r\nHost: gate\r\n\r\n".to_owned(),
            404,
        ),
        (
            format!("OPTIONS * HTTP/1.1\r\nHost: {authority}\r\n\r\n"),
            404,
        ),
        (
            format!("GET https://{authority}/ HTTP/1.1\r\nHost: {authority}\r\n\r\n"),
            400,
        ),
        (
            format!("GET ftp://{authority}/ HTTP/1.1\r\nHost: {authority}\r\n\r\n"),
            400,
        ),
        (
            format!("GET ws://{authority}/ HTTP/1.1\r\nHost: {authority}\r\n\r\n"),
            400,
        ),
        (
            format!("TRACE http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\n\r\n"),
            400,
        ),
        (
            format!("GET http://{authority}/ HTTP/1.1\r\nHost: evil.com\r\n\r\n"),
            400,
        ),
        (
            format!(
                "GET http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\nHost: evil.com\r\n\r\n"
            ),
            400,
        ),
        (
            format!(
                "GET http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\nHost: {authority}\r\n\r\n"
            ),
            400,
        ),
        (
            format!("GET http://{authority}/ HTTP/1.1\r\nHost:\r\n\r\n"),
            400,
        ),
        (
            format!("GET http://{authority}/ HTTP/1.1\r\nHost: plain.example.com\r\n\r\n"),
            400,
        ),
        (
            format!("CONNECT http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\n\r\n"),
            400,
        ),
        (
            format!("CONNECT / HTTP/1.1\r\nHost: {authority}\r\n\r\n"),
            400,
        ),
        (
            format!("CONNECT {authority} HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello"),
            400,
        ),
        (
            format!("CONNECT {authority} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
            400,
        ),
        (
            format!("CONNECT {authority} HTTP/1.1\r\nHost: evil.com:443\r\n\r\n"),
            400,
        ),
        ("CONNECT plain.example.com HTTP/1.1\r\n\r\n".to_owned(), 400),
        // Granted is http, and a tunnel is https.
        (format!("CONNECT {authority} HTTP/1.1\r\n\r\n"), 403),
        (
            "GET http://plain.example.com/ HTTP/1.1\r\nHost: plain.example.com\r\n\r\n".to_owned(),
            403,
        ),
    ] {
        let answer = world.exchange(request.as_bytes()).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{request:?}: {answer}"
        );
        assert!(
            json(&answer)["message"]
                .as_str()
                .is_some_and(|m| m.len() > 20),
            "{answer}"
        );
    }
    assert_eq!(host.reached(), 0);
    assert_eq!(world.resolver.asked.load(Ordering::SeqCst), 0);
}

/// Else the run would have a part for the whole.
#[tokio::test]
async fn an_answer_has_one_length() {
    for (reply, length, body) in [
        (
            &b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"[..],
            "transfer-encoding: chunked",
            "5\r\nhello\r\n0\r\n\r\n",
        ),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\nhello", "content-length: 5\r\n", "hello"),
    ] {
        let host = Host::new("127.0.0.2", reply).await;
        let (world, authority) = world_of(host.address);
        let request = format!("GET http://{authority}/ HTTP/1.1\r\nConnection: close\r\n\r\n");
        let answer = world.exchange(request.as_bytes()).await;
        let (head, got) = answer.split_once("\r\n\r\n").unwrap();
        assert_eq!(got, body, "{answer}");
        let lengths: Vec<_> = ["content-length", "transfer-encoding"]
            .into_iter()
            .filter(|name| head.contains(name))
            .collect();
        assert!(format!("{head}\r\n").contains(length) && lengths.len() == 1, "{answer}");
    }
}

/// That is what it was asked for.
#[tokio::test]
async fn an_answer_to_head_says_how_long_another_would_be() {
    let host = Host::new(
        "127.0.0.2",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4096\r\n\r\n",
    )
    .await;
    let (world, authority) = world_of(host.address);
    let request = format!("HEAD http://{authority}/ HTTP/1.1\r\nConnection: close\r\n\r\n");
    let answer = world.exchange(request.as_bytes()).await;
    assert!(answer.contains("content-length: 4096\r\n"), "{answer}");
    assert!(answer.ends_with("\r\n\r\n"), "{answer}");
}

/// It is the run's own request that is broken, not its host.
#[tokio::test]
async fn a_body_that_breaks_off() {
    let host = Host::new("127.0.0.2", b"").await;
    let (mut world, authority) = world_of(host.address);
    let rest = "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nnot a length\r\n";
    let request = format!("POST http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\n{rest}");
    let answer = world.exchange(request.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    let told = json(&answer);
    assert_eq!(told["error"], "bad_request");
    let message = told["message"].as_str().unwrap();
    assert!(message.contains("has not come whole"), "{message}");
    let record = world.record().await;
    assert_eq!(
        (record.verdict, record.reason),
        (Verdict::Refused, "bad_request")
    );
}

/// Some search with one.
#[tokio::test]
async fn a_body_goes_along_with_any_method() {
    let (world, host, authority) = world().await;
    let rest = "Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    let request = format!("GET http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\n{rest}");
    let answer = world.exchange(request.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let got = host.text();
    assert!(
        got.contains("transfer-encoding: chunked\r\n")
            && got.ends_with("\r\n5\r\nhello\r\n0\r\n\r\n"),
        "{got}"
    );
    let coded = request.replace("chunked", "gzip, chunked");
    let answer = world.exchange(coded.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert_eq!(host.text(), got, "it is not passed on");
}

#[tokio::test]
async fn a_host_that_misbehaves() {
    for (reply, status) in [
        (&b"SSH-2.0-x\r\n\r\n"[..], 502),
        (
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nraw",
            502,
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
            502,
        ),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
            502,
        ),
    ] {
        let host = Host::new("127.0.0.2", reply).await;
        let (mut world, authority) = world_of(host.address);
        let answer = world
            .exchange(format!("GET http://{authority}/ HTTP/1.1\r\n\r\n").as_bytes())
            .await;
        // No Host is fine for a proxy only in HTTP/1.0; the URL names it in any case.
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{answer}"
        );
        assert_eq!(json(&answer)["error"], "bad_answer");
        let record = world.record().await;
        assert_eq!(
            (record.verdict, record.reason),
            (Verdict::Refused, "bad_answer"),
            "{answer}"
        );
        assert_eq!(record.address, Some(host.address));
    }
}

/// It gave no answer, which is another thing than one that is not HTTP.
#[tokio::test]
async fn a_host_that_ends_without_an_answer() {
    for (said, reset) in [(&b""[..], false), (b"HTTP/1.1 20", false), (b"", true)] {
        let host = TcpListener::bind("127.0.0.2:0").await.unwrap();
        let (mut world, authority) = world_of(host.local_addr().unwrap());
        let request = format!("GET http://{authority}/ HTTP/1.1\r\n\r\n");
        let ends = async {
            let (mut stream, _) = host.accept().await.unwrap();
            head(&mut stream).await;
            stream.write_all(said).await.unwrap();
            if reset {
                stream.set_zero_linger().unwrap();
            }
        };
        let (answer, ()) = tokio::join!(world.exchange(request.as_bytes()), ends);
        assert!(answer.starts_with("HTTP/1.1 502"), "{answer}");
        assert_eq!(json(&answer)["error"], "no_answer");
        let record = world.record().await;
        assert_eq!(
            (record.verdict, record.reason),
            (Verdict::Allowed, "no_answer")
        );
    }
}

/// They take the host, or an address of it: the run hears which.
#[tokio::test]
async fn new_rules_that_come_before_the_answer() {
    let host = Host::new("127.0.0.2", b"").await;
    let without_address = Regrant {
        network: vec![format!("http://plain.example.com:{}", host.address.port())],
        deny_cidrs: vec!["127.0.0.0/8".to_owned()],
        ..Regrant::default()
    };
    for (rules, error, about) in [
        (
            Regrant::default(),
            "network.not_granted",
            "It may reach no host.",
        ),
        (
            without_address,
            "network.denied_address",
            "leads to an address",
        ),
    ] {
        let (mut world, authority) = world_of(host.address);
        let request = format!("GET http://{authority}/ HTTP/1.1\r\n\r\n");
        let before = host.text().len();
        let revoke = async {
            host.has(before + 20).await;
            world.gate.recheck(|_| Some(rules.clone()));
        };
        let (answer, ()) = tokio::join!(world.exchange(request.as_bytes()), revoke);
        assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
        let told = json(&answer);
        assert_eq!(told["error"], error);
        let message = told["message"].as_str().unwrap();
        assert!(message.contains(about), "{message}");
        let record = world.record().await;
        assert_eq!(
            (record.verdict, record.reason),
            (Verdict::Refused, "revoked")
        );
    }
}

/// Where nothing else has said it by the time that it is kept.
#[tokio::test]
async fn how_a_connection_has_ended() {
    for (is_complete, has_ended, reason) in [
        (true, false, "closed"),
        (true, true, "closed"),
        (false, true, "run_ended"),
        (false, false, "client_gone"),
    ] {
        let mut world = World::new(settings(), grant(&[], &[]));
        let run = world.open.as_ref().unwrap().run.clone();
        let mut entry = Entry::new(run.clone());
        entry.dialled("127.0.0.2:80".parse().unwrap());
        entry.counts.complete.store(is_complete, Ordering::SeqCst);
        run.ended.store(has_ended, Ordering::SeqCst);
        drop(entry);
        assert_eq!(world.record().await.reason, reason);
    }
}

/// A redirect is an answer like another: where it leads is a new request, and decided anew.
#[tokio::test]
async fn a_redirect_is_not_followed() {
    let sentinel = Host::new("127.0.0.1", OK).await;
    let reply = format!(
        "HTTP/1.1 302 Found\r\nLocation: http://{}/\r\nContent-Length: 0\r\n\r\n",
        sentinel.address
    );
    let host = Host::new("127.0.0.2", reply.leak().as_bytes()).await;
    let authority = format!("plain.example.com:{}", host.address.port());
    let world = World::new(settings(), grant(&[format!("http://{authority}")], &[]));
    world.resolver.say("plain.example.com", &[&["127.0.0.2"]]);
    let answer = world
        .exchange(format!("GET http://{authority}/ HTTP/1.1\r\n\r\n").as_bytes())
        .await;
    assert!(answer.starts_with("HTTP/1.1 302 "), "{answer}");
    assert_eq!(sentinel.reached(), 0);
}

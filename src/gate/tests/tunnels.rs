//! CONNECT: what is passed, what is held back, and how it ends.

use super::super::hello::RETRY_RANDOM;
use super::super::hello::tests::{hello, hello_with, message, record, sni};
use super::*;
use crate::audit::Audit;
use crate::gate::END_TIMEOUT;
use crate::gate::meter::Meter;
use crate::gate::tunnel::{End, both};

pub(super) async fn world() -> (World, Host, String) {
    let host = Host::new("127.0.0.2", b"SERVER").await;
    let authority = format!("api.example.com:{}", host.address.port());
    let world = World::new(settings(), grant(&[format!("https://{authority}")], &[]));
    world.resolver.say("api.example.com", &[&["127.0.0.2"]]);
    (world, host, authority)
}

#[tokio::test]
async fn a_tunnel_carries_both_ways() {
    let (mut world, host, authority) = world().await;
    let (mut client, head) = world.connect(&authority).await;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let hello = hello("api.example.com");
    client.write_all(&hello).await.unwrap();
    let mut got = [0; 6];
    client.read_exact(&mut got).await.unwrap();
    assert_eq!(&got, b"SERVER");
    client.write_all(b"\x17\x03\x03\x00\x03abc").await.unwrap();
    client.shutdown().await.unwrap();
    assert_eq!(rest(&mut client).await, "");
    assert_eq!(
        *host.got.lock().unwrap(),
        [&hello[..], b"\x17\x03\x03\x00\x03abc"].concat()
    );
    let record = world.record().await;
    assert_eq!(
        (record.verdict, record.reason),
        (Verdict::Allowed, "closed")
    );
    assert_eq!(
        (record.bytes_up, record.bytes_down),
        (hello.len() as u64 + 8, 6)
    );
    assert_eq!(
        (record.host.as_str(), record.port, record.scheme),
        ("api.example.com", host.address.port(), "https")
    );
    assert_eq!(record.address, Some(host.address));
    assert_eq!(record.body()["run_id"], "run_1");
}

/// Python's http.client up to 3.11 asks in HTTP/1.0 and without Host; others send the ClientHello with the request.
#[tokio::test]
async fn old_and_eager_clients() {
    let (world, host, authority) = world().await;
    let hello = hello("api.example.com");
    let mut client = world.client().await;
    let request = [
        format!("CONNECT {authority} HTTP/1.0\r\n\r\n").as_bytes(),
        &hello,
    ]
    .concat();
    client.write_all(&request).await.unwrap();
    let head = head(&mut client).await;
    assert!(
        head.starts_with("HTTP/1.0 200 ") || head.starts_with("HTTP/1.1 200 "),
        "{head}"
    );
    let mut got = [0; 6];
    client.read_exact(&mut got).await.unwrap();
    assert_eq!(*host.got.lock().unwrap(), hello);
}

/// What each ClientHello that is held back does to the tunnel.
#[tokio::test]
async fn a_wrong_hello_goes_nowhere() {
    let (mut world, host, authority) = world().await;
    let name = || (0, sni(b"api.example.com"));
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (hello("evil.com"), "tls.other_name"),
        (hello("api.example.com.evil.com"), "tls.other_name"),
        (hello("api.example.com."), "tls.other_name"),
        (hello_with(&[]), "tls.no_name"),
        (
            hello_with(&[name(), (0xfe0d, vec![0; 60])]),
            "tls.encrypted_hello",
        ),
        (hello_with(&[name(), (42, vec![])]), "tls.early_data"),
        (hello_with(&[name(), name()]), "tls.malformed"),
        (
            b"GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n".to_vec(),
            "tls.required",
        ),
        (b"SSH-2.0-OpenSSH_9\r\n".to_vec(), "tls.required"),
        (
            vec![22, 3, 1, 0, 4, 1, 0xff, 0xff, 0xff],
            "tls.hello_too_long",
        ),
    ];
    for (bytes, reason) in cases {
        let (mut client, head) = world.connect(&authority).await;
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        client.write_all(&bytes).await.unwrap();
        let said = rest(&mut client).await;
        let record = world.record().await;
        assert_eq!((record.verdict, record.reason), (Verdict::Refused, reason));
        assert_eq!(record.bytes_up, 0);
        if reason == "tls.required" {
            assert!(said.contains("carries TLS and nothing else"), "{said}");
        } else {
            assert!(
                said.starts_with('\u{15}') && said.len() >= 7,
                "an alert: {said:?}"
            );
        }
    }
    assert_eq!(host.text(), "", "not a byte got through");
}

#[tokio::test]
async fn a_hello_in_pieces() {
    let (world, host, authority) = world().await;
    let whole: Vec<u8> = message(&[(0, sni(b"api.example.com"))])
        .chunks(9)
        .flat_map(record)
        .collect();
    let (mut client, _) = world.connect(&authority).await;
    client.set_nodelay(true).unwrap();
    for piece in whole.chunks(4) {
        client.write_all(piece).await.unwrap();
        tokio::task::yield_now().await;
    }
    let mut got = [0; 6];
    client.read_exact(&mut got).await.unwrap();
    assert_eq!(*host.got.lock().unwrap(), whole);
}

/// After a HelloRetryRequest there is a second ClientHello: a name that changes in it does not pass.
#[tokio::test]
async fn a_second_hello_is_looked_at_too() {
    const CCS: &[u8] = &[20, 3, 3, 0, 1, 1];
    const WARNING: &[u8] = &[21, 3, 3, 0, 2, 1, 90];
    let first = hello("api.example.com");
    for between in [
        &b""[..],
        CCS,
        &[CCS, CCS].concat(),
        WARNING,
        &[WARNING, CCS].concat(),
    ] {
        let (mut world, host, authority) = world().await;
        let (mut client, _) = world.connect(&authority).await;
        client.write_all(&first).await.unwrap();
        let mut got = [0; 6];
        client.read_exact(&mut got).await.unwrap();
        client
            .write_all(&[between, &hello("evil.com")].concat())
            .await
            .unwrap();
        let _ = rest(&mut client).await;
        assert_eq!(world.record().await.reason, "tls.other_name");
        assert!(!host.text().contains("evil.com"));

        // The right one does, with what follows.
        let (mut client, _) = world.connect(&authority).await;
        client.write_all(&first).await.unwrap();
        client.read_exact(&mut got).await.unwrap();
        client
            .write_all(&[between, &hello("api.example.com"), b"\x17\x03\x03\x00\x01x"].concat())
            .await
            .unwrap();
        client.shutdown().await.unwrap();
        let _ = rest(&mut client).await;
        let record = world.record().await;
        assert_eq!(
            (record.reason, record.bytes_up),
            ("closed", (2 * first.len() + between.len() + 6) as u64)
        );
    }
}

/// It may be sent before it was asked for: then it comes with the first one.
#[tokio::test]
async fn a_second_hello_that_comes_too_early() {
    let (mut world, host, authority) = world().await;
    let first = hello("api.example.com");
    for second in [
        hello("evil.com"),
        [&[20, 3, 3, 0, 1, 1][..], &hello("evil.com")].concat(),
    ] {
        let (mut client, _) = world.connect(&authority).await;
        client
            .write_all(&[&first[..], &second].concat())
            .await
            .unwrap();
        let _ = rest(&mut client).await;
        assert_eq!(world.record().await.reason, "tls.other_name");
        assert!(!host.text().contains("evil.com"));
    }
    let (mut client, _) = world.connect(&authority).await;
    let all = [&first[..], &first, b"\x17\x03\x03\x00\x01x"].concat();
    client.write_all(&all).await.unwrap();
    client.shutdown().await.unwrap();
    let _ = rest(&mut client).await;
    let record = world.record().await;
    assert_eq!(
        (record.reason, record.bytes_up),
        ("closed", all.len() as u64)
    );
}

/// The end of a resumed TLS 1.2 handshake is encrypted, and one in 256 begins like a ClientHello. What the server has
/// answered says that it is none, however it comes in records; where it does not, the record is looked at.
#[tokio::test]
async fn an_encrypted_message_is_not_taken_for_a_second_hello() {
    let server_hello = |random: &[u8; 32]| {
        let rest = [0, 0xc0, 0x2f, 0]; // no session, a suite, no compression
        [&[2, 0, 0, 38, 3, 3][..], random, &rest].concat()
    };
    let (whole, retry) = (server_hello(&[7; 32]), server_hello(&RETRY_RANDOM));
    let warning = [21, 3, 3, 0, 2, 1, 112];
    let finished = [
        &[20, 3, 3, 0, 1, 1][..],
        &record(&[&[1][..], &[0xff; 39]].concat()),
    ]
    .concat();
    let cases = [
        (record(&whole), "closed"),
        (whole.chunks(5).flat_map(record).collect(), "closed"),
        (record(&retry), "tls.hello_too_long"),
        (
            retry.chunks(5).flat_map(record).collect(),
            "tls.hello_too_long",
        ),
        // A server that warns of the name goes on all the same (RFC 6066, 3), and may ask for another one.
        ([&warning[..], &record(&whole)].concat(), "closed"),
        (
            [&warning[..], &record(&retry)].concat(),
            "tls.hello_too_long",
        ),
        // Not one that could be read, nor one that says so much before.
        (record(&[&[3], &whole[1..]].concat()), "tls.hello_too_long"),
        (
            [&[21, 3, 3, 0, 2, 2, 112][..], &record(&whole)].concat(),
            "tls.hello_too_long",
        ),
        (
            [&warning.repeat(5)[..], &record(&whole)].concat(),
            "tls.hello_too_long",
        ),
        (
            [vec![22, 3, 3, 0, 0], record(&whole)].concat(),
            "tls.hello_too_long",
        ),
    ];
    for (answer, reason) in cases {
        let host = Host::new("127.0.0.2", answer.clone().leak()).await;
        let authority = format!("api.example.com:{}", host.address.port());
        let mut world = World::new(settings(), grant(&[format!("https://{authority}")], &[]));
        world.resolver.say("api.example.com", &[&["127.0.0.2"]]);
        let (mut client, _) = world.connect(&authority).await;
        client.write_all(&hello("api.example.com")).await.unwrap();
        let mut got = vec![0; answer.len()];
        client.read_exact(&mut got).await.unwrap();
        client.write_all(&finished).await.unwrap();
        client.shutdown().await.unwrap();
        let _ = rest(&mut client).await;
        assert_eq!(world.record().await.reason, reason, "{answer:?}");
        assert_eq!(
            host.got.lock().unwrap().ends_with(&finished),
            reason == "closed"
        );

        // In the clear there is no such excuse; nor for one that comes before the answer, which may ask for it.
        for early in [&b""[..], &[20, 3, 3, 0, 1, 1]] {
            let (mut client, _) = world.connect(&authority).await;
            let all = [&hello("api.example.com")[..], early, &hello("evil.com")].concat();
            client.write_all(&all).await.unwrap();
            client.shutdown().await.unwrap();
            let _ = rest(&mut client).await;
            let refused = world.record().await.reason == "tls.other_name";
            assert_eq!(refused, early.is_empty() || reason != "closed");
        }
    }
}

/// Then it has not taken the first one.
#[tokio::test]
async fn a_host_that_ends_without_an_answer() {
    let host = TcpListener::bind("127.0.0.2:0").await.unwrap();
    let authority = format!("api.example.com:{}", host.local_addr().unwrap().port());
    let mut world = World::new(settings(), grant(&[format!("https://{authority}")], &[]));
    world.resolver.say("api.example.com", &[&["127.0.0.2"]]);
    let (mut client, _) = world.connect(&authority).await;
    let (mut stream, _) = host.accept().await.unwrap();
    stream.shutdown().await.unwrap();
    let all = [
        &hello("api.example.com")[..],
        &[20, 3, 3, 0, 1, 1],
        &hello("evil.com"),
    ]
    .concat();
    client.write_all(&all).await.unwrap();
    let _ = rest(&mut client).await;
    assert_eq!(world.record().await.reason, "tls.other_name");
}

/// TLS 1.2 goes on with other handshake messages.
#[tokio::test]
async fn other_handshake_messages_pass() {
    let (mut world, host, authority) = world().await;
    let (mut client, _) = world.connect(&authority).await;
    client.write_all(&hello("api.example.com")).await.unwrap();
    let mut got = [0; 6];
    client.read_exact(&mut got).await.unwrap();
    let key_exchange = record(&[16, 0, 0, 2, 9, 9]);
    client.write_all(&key_exchange).await.unwrap();
    client.shutdown().await.unwrap();
    let _ = rest(&mut client).await;
    assert_eq!(world.record().await.reason, "closed");
    assert!(host.got.lock().unwrap().ends_with(&key_exchange));
}

/// However its records come, and though it ends in the middle of one.
#[tokio::test]
async fn a_client_that_ends_behind_its_hello() {
    let change_cipher_spec = [20, 3, 3, 0, 1, 1];
    let messages = [&change_cipher_spec[..], &record(&[16, 0, 0, 2, 9, 9])].concat();
    for (first, last) in [
        (&[][..], &[][..]),
        (&messages[..5], &messages[5..]),
        (&messages[..3], &[]),
        (&messages[..5], &[]),
        (&messages[..9], &[]),
    ] {
        let (mut world, host, authority) = world().await;
        let (mut client, _) = world.connect(&authority).await;
        let all = [&hello("api.example.com"), first].concat();
        client.write_all(&all).await.unwrap();
        let mut got = [0; 6];
        client.read_exact(&mut got).await.unwrap();
        client.write_all(last).await.unwrap();
        client.shutdown().await.unwrap();
        let _ = rest(&mut client).await;
        assert_eq!(world.record().await.reason, "closed", "{first:?}");
        let all = [&all, last].concat();
        assert_eq!(*host.got.lock().unwrap(), all, "{first:?}");
    }
}

/// One that refuses what is sent says so and ends, with the rest unread: that resets the connection under whoever still sends.
#[tokio::test]
async fn the_last_words_of_a_host_that_breaks_off_arrive() {
    let host = TcpListener::bind("127.0.0.2:0").await.unwrap();
    let authority = format!("api.example.com:{}", host.local_addr().unwrap().port());
    let mut world = World::new(settings(), grant(&[format!("https://{authority}")], &[]));
    world.resolver.say("api.example.com", &[&["127.0.0.2"]]);
    let (mut client, _) = world.connect(&authority).await;
    let (mut upstream, _) = host.accept().await.unwrap();
    let sent = hello("api.example.com");
    client.write_all(&sent).await.unwrap();
    upstream.read_exact(&mut vec![0; sent.len()]).await.unwrap();
    // From here on each direction is copied as it is.
    upstream.write_all(b"SERVER").await.unwrap();
    client.read_exact(&mut [0; 6]).await.unwrap();
    client.write_all(&[23, 3, 3, 0, 1, 0]).await.unwrap();
    upstream.peek(&mut [0]).await.unwrap();
    client.try_write(&[0; 4096]).unwrap();
    upstream.try_write(b"REFUSED").unwrap();
    drop(upstream);
    assert_eq!(rest(&mut client).await, "REFUSED");
    assert_eq!(world.record().await.reason, "broken");
}

/// Whichever direction finds out first.
#[tokio::test(start_paused = true)]
async fn a_host_that_takes_no_more_has_a_moment_for_what_it_has_said() {
    let world = World::new(settings(), grant(&[], &[]));
    let meter = Meter::new(world.open.as_ref().unwrap().run.clone(), Arc::default());
    for (takes_ms, is_heard) in [(0, true), (900, true), (1100, false)] {
        let mut heard = false;
        let down = async {
            tokio::time::sleep(Duration::from_millis(takes_ms)).await;
            heard = true;
            Ok(())
        };
        let said = both(async { Err(End::Broken) }, down, &meter).await;
        assert!(matches!(said, Err(End::Broken)));
        assert_eq!(heard, is_heard, "{takes_ms} ms");
    }
    // The gate itself has ended the other one: nothing more is passed on.
    let began = tokio::time::Instant::now();
    let hello = async { Err(End::HelloTimeout) };
    let said = both(hello, std::future::pending(), &meter).await;
    assert!(matches!(said, Err(End::HelloTimeout)));
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test]
async fn what_is_not_granted_says_who_can_grant_it() {
    let (mut world, host, authority) = world().await;
    let (mut client, head) = world.connect("evil.com:443").await;
    assert!(
        head.starts_with(
            "HTTP/1.1 403 https://evil.com is not granted to this run: permissions.network"
        ),
        "{head}"
    );
    assert!(!head.contains("retry-after"), "later is no better: {head}");
    client.shutdown().await.unwrap();
    let body: serde_json::Value = serde_json::from_str(&rest(&mut client).await).unwrap();
    assert_eq!(body["error"], "network.not_granted");
    assert_eq!(body["target"], "https://evil.com");
    let message = body["message"].as_str().unwrap();
    assert!(
        message.contains("skill.toml")
            && message.contains("administers")
            && message.contains(&authority),
        "{message}"
    );
    let record = world.record().await;
    assert_eq!(
        (record.verdict, record.reason, record.host.as_str()),
        (Verdict::Refused, "network.not_granted", "evil.com")
    );
    assert_eq!(
        world.resolver.asked.load(Ordering::SeqCst),
        0,
        "no name leaves before it is granted"
    );
    assert_eq!(host.reached(), 0);
}

#[tokio::test]
async fn the_end_of_a_run_ends_its_tunnels() {
    let (mut world, _host, authority) = world().await;
    let (mut client, _) = world.connect(&authority).await;
    client.write_all(&hello("api.example.com")).await.unwrap();
    let mut got = [0; 6];
    client.read_exact(&mut got).await.unwrap();
    world.open = None;
    assert_eq!(rest(&mut client).await, "");
    let record = world.record().await;
    assert_eq!(
        (record.verdict, record.reason),
        (Verdict::Allowed, "run_ended")
    );
    assert!(
        TcpStream::connect(world.address).await.is_err(),
        "nobody listens any more"
    );
}

#[tokio::test]
async fn new_rules_end_what_they_no_longer_grant() {
    let (mut world, _host, authority) = world().await;
    let mut got = [0; 6];
    let (mut client, _) = world.connect(&authority).await;
    client.write_all(&hello("api.example.com")).await.unwrap();
    client.read_exact(&mut got).await.unwrap();
    let same = || {
        Some(Regrant {
            decision_id: "dec_same".into(),
            network: vec![format!("https://{authority}")],
            deny_cidrs: Vec::new(),
        })
    };
    world.gate.recheck(|grant| {
        assert_eq!(grant.run_id, "run_1");
        same()
    });
    assert!(
        world
            .connect(&authority)
            .await
            .1
            .starts_with("HTTP/1.1 200"),
        "the same rules change nothing"
    );
    world.gate.recheck(|_| {
        Some(Regrant {
            decision_id: "dec_other".into(),
            network: same().unwrap().network,
            deny_cidrs: vec!["127.0.0.2/32".into()],
        })
    });
    assert_eq!(rest(&mut client).await, "");
    let records = [world.record().await, world.record().await];
    let mut reasons = records.each_ref().map(|record| record.reason);
    reasons.sort_unstable();
    assert!(reasons.contains(&"revoked"), "{reasons:?}");
    let revoked = records.iter().find(|record| record.reason == "revoked");
    assert_eq!(revoked.unwrap().decision_id, "dec_other");
    assert!(
        world
            .connect(&authority)
            .await
            .1
            .starts_with("HTTP/1.1 403")
    );
    assert_eq!(world.record().await.decision_id, "dec_other");
    // What is gone does not come back.
    world.gate.recheck(|_| same());
    assert!(
        world
            .connect(&authority)
            .await
            .1
            .starts_with("HTTP/1.1 403")
    );
    world.gate.recheck(|_| Some(Regrant::default()));
    assert!(world.connect(&authority).await.1.contains("is not granted"));
}

/// As two reloads close together do: whoever comes last gives nothing back.
#[tokio::test]
async fn rules_that_change_twice_at_once_take_what_either_takes() {
    let gate = Gate::for_tests();
    let patterns = ["https://a.example", "https://b.example"].map(str::to_owned);
    for round in 0..500 {
        let open = gate.open(grant(&patterns, &[]));
        let together = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            for kept in &patterns {
                scope.spawn(|| {
                    together.wait();
                    gate.recheck(|_| {
                        Some(Regrant {
                            network: vec![kept.clone()],
                            ..Regrant::default()
                        })
                    });
                });
            }
        });
        assert_eq!(open.run.grant().patterns(), [], "round {round}");
    }
}

/// The gateway's end: its log is closed behind this, and takes nothing more.
#[tokio::test]
async fn a_connection_that_ends_with_the_gateway_is_on_record() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.jsonl");
    let audit = Audit::open(&config::Audit {
        path: path.clone(),
        fsync: config::Fsync::Never,
        max_file_bytes: 1 << 20,
        on_failure: config::OnAuditFailure::Deny,
    })
    .unwrap();
    let host = Host::new("127.0.0.2", b"SERVER").await;
    let authority = format!("api.example.com:{}", host.address.port());
    let resolver = Arc::new(FakeResolver::default());
    resolver.say("api.example.com", &[&["127.0.0.2"]]);
    let gate = Gate::new(settings(), resolver, Arc::new(audit.clone()));
    let open = gate.open(grant(&[format!("https://{authority}")], &[]));
    let (fd, address) = listener();
    open.serve(fd).unwrap();
    let (_client, head) = connect_at(address, &authority).await;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    drop(open);
    gate.drain().await;
    audit.close().await;
    let text = std::fs::read_to_string(path).unwrap();
    let records = text
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let of_connections: Vec<_> = records
        .filter(|record| record["kind"] == "connection")
        .map(|record| record["reason"].clone())
        .collect();
    assert_eq!(of_connections, ["run_ended"], "{text}");
}

#[tokio::test(start_paused = true)]
async fn the_end_waits_for_runs_and_not_for_ever() {
    let gate = Gate::for_tests();
    let began = tokio::time::Instant::now();
    gate.drain().await;
    assert_eq!(began.elapsed(), Duration::ZERO, "there was none");
    let _open = gate.open(grant(&[], &[]));
    gate.drain().await;
    let waited = began.elapsed();
    assert!(
        waited >= END_TIMEOUT && waited < END_TIMEOUT * 2,
        "{waited:?}"
    );
}

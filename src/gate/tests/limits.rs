//! Every limit of `[gate]`, reached.

use super::super::hello::tests::hello;
use super::*;

pub(super) async fn host_and_grant(reply: &'static [u8]) -> (Host, String, Grant) {
    let host = Host::new("127.0.0.2", reply).await;
    let authority = format!("api.example.com:{}", host.address.port());
    let grant = grant(
        &[
            format!("https://{authority}"),
            format!("http://{authority}"),
        ],
        &[],
    );
    (host, authority, grant)
}

pub(super) fn world(settings: Settings, grant: Grant) -> World {
    let world = World::new(settings, grant);
    world.resolver.say("api.example.com", &[&["127.0.0.2"]]);
    world
}

#[tokio::test]
async fn tunnels_of_all_runs() {
    let (_host, authority, grant) = host_and_grant(b"SERVER").await;
    let mut world = world(
        Settings {
            tunnels_max: 1,
            ..settings()
        },
        grant,
    );
    let (first, head) = world.connect(&authority).await;
    assert!(head.starts_with("HTTP/1.1 200"));
    let (_second, head) = world.connect(&authority).await;
    assert!(
        head.starts_with("HTTP/1.1 503") && head.contains("retry-after: 1"),
        "{head}"
    );
    assert_eq!(world.record().await.reason, "busy");
    let answer = world
        .exchange(format!("GET http://{authority}/ HTTP/1.1\r\n\r\n").as_bytes())
        .await;
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert_eq!(world.record().await.reason, "busy");
    drop(first);
    assert_eq!(
        world.record().await.reason,
        "broken",
        "it ended without a ClientHello"
    );
    assert!(
        world
            .connect(&authority)
            .await
            .1
            .starts_with("HTTP/1.1 200")
    );
}

/// A tenant that keeps as many open as it can, in as many runs as it likes, leaves some to others.
#[tokio::test]
async fn tunnels_of_one_tenant() {
    let (_host, authority, _) = host_and_grant(b"SERVER").await;
    let of = |tenant: &str| {
        let network = [format!("https://{authority}")];
        Grant::new("run_1", tenant, "dec_1", &network, &[]).unwrap()
    };
    let settings = Settings {
        tunnels_max: 16,
        ..settings()
    };
    let world = world(settings, of("north"));
    let mut held = Vec::new();
    let second = world.gate.open(of("north"));
    let (fd, address) = listener();
    second.serve(fd).unwrap();
    for number in 0..16 {
        let address = if number % 2 == 0 {
            world.address
        } else {
            address
        };
        let (tunnel, head) = connect_at(address, &authority).await;
        assert_eq!(
            head.starts_with("HTTP/1.1 200"),
            number < 12,
            "{number}: {head}"
        );
        held.push(tunnel);
    }
    let other = world.gate.open(of("south"));
    let (fd, address) = listener();
    other.serve(fd).unwrap();
    let (_tunnel, head) = connect_at(address, &authority).await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
}

/// Whoever tries again while others of his tenant have all of them would have none when there are some.
#[tokio::test]
async fn a_connection_for_which_there_is_no_place_is_none_of_them() {
    let (_host, authority, grant) = host_and_grant(b"SERVER").await;
    let settings = Settings {
        tunnels_max: 1,
        tenant_pace: Pace::new(1, 3600, 2),
        ..settings()
    };
    let mut world = world(settings, grant);
    let (first, head) = world.connect(&authority).await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    for _ in 0..5 {
        let (_none, head) = world.connect(&authority).await;
        assert!(head.contains("too many connections open"), "{head}");
        assert_eq!(world.record().await.reason, "busy");
    }
    drop(first);
    assert_eq!(world.record().await.reason, "broken");
    let (_second, head) = world.connect(&authority).await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
}

/// A connection that is closed at once takes no place and no byte: nothing else would end a loop of them.
#[tokio::test]
async fn connections_of_one_tenant_one_after_the_other() {
    let (host, authority, _) = host_and_grant(b"SERVER").await;
    let of = |tenant: &str| {
        let network = [
            format!("https://{authority}"),
            format!("http://{authority}"),
        ];
        Grant::new("run_1", tenant, "dec_1", &network, &[]).unwrap()
    };
    let settings = Settings {
        tenant_pace: Pace::new(1, 3600, 3),
        ..settings()
    };
    let mut world = world(settings, of("north"));
    for _ in 0..3 {
        let (tunnel, head) = world.connect(&authority).await;
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        drop(tunnel);
        assert_eq!(world.record().await.reason, "broken");
    }
    let (_refused, head) = world.connect(&authority).await;
    assert!(
        head.starts_with("HTTP/1.1 503 this tenant's runs make connections too fast")
            && head.contains("retry-after: 1"),
        "{head}"
    );
    assert_eq!(world.record().await.reason, "busy");
    // As all that are refused: so many of a run are on record.
    let refusals = &world.open.as_ref().unwrap().run.refusals;
    assert_eq!(refusals.load(Ordering::SeqCst), 1);
    let request = format!("GET http://{authority}/ HTTP/1.1\r\n\r\n");
    let answer = world.exchange(request.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert_eq!(json(&answer)["error"], "busy");
    assert_eq!(world.record().await.reason, "busy");
    // What is refused for another reason is none of them, and other tenants have their own.
    let other = world.gate.open(of("south"));
    let (fd, address) = listener();
    other.serve(fd).unwrap();
    for _ in 0..4 {
        let (_client, head) = connect_at(address, "other.example.com:443").await;
        assert!(head.starts_with("HTTP/1.1 403"), "{head}");
    }
    let (_tunnel, head) = connect_at(address, &authority).await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let reached = async {
        while host.reached() < 4 {
            tokio::task::yield_now().await;
        }
    };
    let reached = tokio::time::timeout(Duration::from_secs(10), reached).await;
    assert!(reached.is_ok());
    assert_eq!(host.reached(), 4);
}

#[tokio::test]
async fn connections_of_one_run() {
    let (_host, authority, grant) = host_and_grant(b"SERVER").await;
    let world = world(
        Settings {
            run_connections_max: 1,
            ..settings()
        },
        grant,
    );
    let (first, _) = world.connect(&authority).await;
    let mut second = world.client().await;
    second
        .write_all(format!("CONNECT {authority} HTTP/1.1\r\n\r\n").as_bytes())
        .await
        .unwrap();
    let waiting = tokio::time::timeout(Duration::from_millis(200), head(&mut second)).await;
    assert!(waiting.is_err(), "it waits");
    drop(first);
    assert!(head(&mut second).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn time_for_a_head() {
    let (_host, _authority, grant) = host_and_grant(b"").await;
    let world = world(
        Settings {
            header_timeout: Duration::from_millis(100),
            ..settings()
        },
        grant,
    );
    let mut client = world.client().await;
    client.write_all(b"CONNECT api").await.unwrap();
    let said = rest(&mut client).await;
    assert!(
        said.is_empty() || said.starts_with("HTTP/1.1 408"),
        "{said}"
    );
}

#[tokio::test]
async fn bytes_of_a_head() {
    let (host, authority, grant) = host_and_grant(b"").await;
    let world = world(
        Settings {
            header_bytes_max: 8192,
            ..settings()
        },
        grant,
    );
    let long = "x".repeat(9000);
    let answer = world
        .exchange(format!("CONNECT {authority} HTTP/1.1\r\nX: {long}\r\n\r\n").as_bytes())
        .await;
    assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
    let many = "X: y\r\n".repeat(101);
    let answer = world
        .exchange(format!("CONNECT {authority} HTTP/1.1\r\n{many}\r\n").as_bytes())
        .await;
    assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
    assert_eq!(host.reached(), 0);
}

#[tokio::test]
async fn time_and_bytes_of_a_hello() {
    let (host, authority, grant) = host_and_grant(b"").await;
    let short = Settings {
        hello_timeout: Duration::from_millis(100),
        ..settings()
    };
    let mut hasty = world(short, grant.clone());
    let (mut client, _) = hasty.connect(&authority).await;
    client
        .write_all(&hello("api.example.com")[..20])
        .await
        .unwrap();
    let _ = rest(&mut client).await;
    assert_eq!(hasty.record().await.reason, "tls.hello_timeout");
    let small = Settings {
        hello_bytes_max: 1024,
        ..settings()
    };
    let mut world = world(small, grant);
    let (mut client, _) = world.connect(&authority).await;
    client
        .write_all(&[22, 3, 1, 8, 0, 1, 0, 7, 0xfc])
        .await
        .unwrap();
    client.write_all(&[0; 1100]).await.unwrap();
    let _ = rest(&mut client).await;
    assert_eq!(world.record().await.reason, "tls.hello_too_long");
    assert_eq!(host.text(), "");
}

#[tokio::test]
async fn silence() {
    let (_host, authority, grant) = host_and_grant(b"").await;
    let mut world = world(
        Settings {
            idle_timeout: Duration::from_millis(100),
            ..settings()
        },
        grant,
    );
    let (mut client, _) = world.connect(&authority).await;
    client.write_all(&hello("api.example.com")).await.unwrap();
    assert_eq!(rest(&mut client).await, "");
    assert_eq!(world.record().await.reason, "idle");
    let answer = world
        .exchange(format!("GET http://{authority}/ HTTP/1.1\r\n\r\n").as_bytes())
        .await;
    assert!(
        answer.starts_with("HTTP/1.1 504") && answer.contains("did not answer in time"),
        "{answer}"
    );
    assert_eq!(world.record().await.reason, "idle");
}

#[tokio::test]
async fn bytes_up() {
    let (host, authority, grant) = host_and_grant(b"SERVER").await;
    let hello = hello("api.example.com");
    let max = hello.len() as u64 + 10;
    let mut world = world(
        Settings {
            run_upload_bytes_max: max,
            ..settings()
        },
        grant,
    );
    let (mut client, _) = world.connect(&authority).await;
    client.write_all(&hello).await.unwrap();
    let mut got = [0; 6];
    client.read_exact(&mut got).await.unwrap();
    client.write_all(b"\x17\x03\x03\x00\x20").await.unwrap();
    client.write_all(&[7; 32]).await.unwrap();
    let _ = rest(&mut client).await;
    let record = world.record().await;
    assert_eq!((record.reason, record.bytes_up), ("bytes_spent", max));
    host.has(max as usize).await;
    // The run's, not the connection's: it gets no further one.
    let (_client, head) = world.connect(&authority).await;
    assert!(head.starts_with("HTTP/1.1 403"), "{head}");
    assert_eq!(world.record().await.reason, "bytes_spent");
    let answer = world
        .exchange(format!("GET http://{authority}/ HTTP/1.1\r\n\r\n").as_bytes())
        .await;
    assert!(
        answer.starts_with("HTTP/1.1 403") && answer.contains("as many bytes as it may"),
        "{answer}"
    );
    assert_eq!(host.got.lock().unwrap().len() as u64, max);
    assert_eq!(host.reached(), 1);
}

/// A part of a ClientHello is no ClientHello, and what follows it is none either.
#[tokio::test]
async fn bytes_up_that_end_in_a_hello() {
    let (host, authority, grant) = host_and_grant(b"").await;
    let few = Settings {
        run_upload_bytes_max: 10,
        ..settings()
    };
    let mut world = world(few, grant);
    let (mut client, _) = world.connect(&authority).await;
    client.write_all(&hello("api.example.com")).await.unwrap();
    let _ = rest(&mut client).await;
    let record = world.record().await;
    assert_eq!((record.reason, record.bytes_up), ("bytes_spent", 10));
    host.has(10).await;
}

#[tokio::test]
async fn bytes_down() {
    let few = || Settings {
        run_download_bytes_max: 16,
        ..settings()
    };
    let (host, authority, grant) =
        host_and_grant(b"HTTP/1.1 200 OK\r\nContent-Length: 4096\r\n\r\n").await;
    let post = format!("POST http://{authority}/ HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody");
    let mut tunnelled = world(few(), grant.clone());
    let (mut client, _) = tunnelled.connect(&authority).await;
    client.write_all(&hello("api.example.com")).await.unwrap();
    assert!(rest(&mut client).await.len() <= 16);
    let record = tunnelled.record().await;
    assert_eq!((record.reason, record.bytes_down), ("bytes_spent", 16));
    assert_eq!(host.reached(), 1);

    // Over plain HTTP, too, they are spent with the connection that would have more.
    let mut plain = world(few(), grant);
    let answer = plain.exchange(post.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    let record = plain.record().await;
    assert_eq!((record.reason, record.bytes_down), ("bytes_spent", 16));
    assert_eq!(host.reached(), 2);

    // A host that acted on a request of which nobody may see the answer would act again on the next one.
    for mut world in [tunnelled, plain] {
        let answer = world.exchange(post.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
        assert_eq!(world.record().await.reason, "bytes_spent");
        let (_client, head) = world.connect(&authority).await;
        assert!(head.starts_with("HTTP/1.1 403"), "{head}");
        assert_eq!(world.record().await.reason, "bytes_spent");
    }
    assert_eq!(host.reached(), 2);
}

#[tokio::test]
async fn time_to_connect() {
    /// Never answers.
    #[derive(Debug)]
    struct Silent;
    impl Resolver for Silent {
        fn resolve(
            &self,
            _host: &str,
            _tenant: &str,
            _turn: OwnedSemaphorePermit,
        ) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
            Box::pin(std::future::pending())
        }
    }
    let settings = Settings {
        connect_timeout: Duration::from_millis(100),
        ..settings()
    };
    let gate = Gate::new(settings, Arc::new(Silent), Arc::new(NoLedger));
    let open = gate.open(grant(&["https://api.example.com".into()], &[]));
    let (fd, address) = listener();
    open.serve(fd).unwrap();
    let mut client = TcpStream::connect(address).await.unwrap();
    client
        .write_all(b"CONNECT api.example.com:443 HTTP/1.1\r\n\r\n")
        .await
        .unwrap();
    let head = head(&mut client).await;
    assert!(
        head.starts_with("HTTP/1.1 504 https://api.example.com did not answer in time"),
        "{head}"
    );
    assert!(
        head.contains("proxy-status: skillgate; error=connection_timeout"),
        "{head}"
    );
}

/// A run whose names nobody answers does not hold up more than its share of questions, nor another run.
#[tokio::test]
async fn questions_of_one_run() {
    /// Counts questions that are open.
    #[derive(Debug, Default)]
    struct Slow(Arc<AtomicUsize>);
    impl Resolver for Slow {
        fn resolve(
            &self,
            _host: &str,
            _tenant: &str,
            turn: OwnedSemaphorePermit,
        ) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
            self.0.fetch_add(1, Ordering::SeqCst);
            Box::pin(async move {
                let _turn = turn;
                std::future::pending().await
            })
        }
    }
    let slow = Arc::new(Slow::default());
    let gate = Gate::new(settings(), slow.clone(), Arc::new(NoLedger));
    let ask = async |open: &Open| {
        let (fd, address) = listener();
        open.serve(fd).unwrap();
        let mut clients = Vec::new();
        for n in 0..8 {
            let mut client = TcpStream::connect(address).await.unwrap();
            client
                .write_all(format!("CONNECT h{n}.example.com:443 HTTP/1.1\r\n\r\n").as_bytes())
                .await
                .unwrap();
            clients.push(client);
        }
        clients
    };
    let (a, b) = (
        gate.open(grant(&["https://*.example.com".into()], &[])),
        gate.open(grant(&["https://*.example.com".into()], &[])),
    );
    let _a = ask(&a).await;
    while slow.0.load(Ordering::SeqCst) < RUN_LOOKUPS_MAX {
        tokio::task::yield_now().await;
    }
    let _b = ask(&b).await;
    while slow.0.load(Ordering::SeqCst) < 2 * RUN_LOOKUPS_MAX {
        tokio::task::yield_now().await;
    }
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(slow.0.load(Ordering::SeqCst), 2 * RUN_LOOKUPS_MAX);
}

#[tokio::test]
async fn no_connection_without_a_record() {
    /// A log whose disk is full.
    #[derive(Debug)]
    struct Full;
    impl Ledger for Full {
        fn keep(&self, _record: Record) {}
        fn can_keep(&self) -> bool {
            false
        }
    }
    let (host, authority, grant) = host_and_grant(b"").await;
    let resolver = Arc::new(FakeResolver::default());
    let gate = Gate::new(settings(), resolver.clone(), Arc::new(Full));
    let open = gate.open(grant);
    let (fd, address) = listener();
    open.serve(fd).unwrap();
    for request in [
        format!("CONNECT {authority} HTTP/1.1\r\n\r\n"),
        format!("GET http://{authority}/ HTTP/1.1\r\n\r\n"),
    ] {
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(request.as_bytes()).await.unwrap();
        let head = head(&mut client).await;
        assert!(
            head.starts_with("HTTP/1.1 503 the gateway cannot record"),
            "{head}"
        );
    }
    assert_eq!(
        (host.reached(), resolver.asked.load(Ordering::SeqCst)),
        (0, 0)
    );
}

/// A loop of requests for what is not granted does not fill the log; what is granted is recorded as ever.
#[tokio::test]
async fn refusals_on_record() {
    let (_host, authority, grant) = host_and_grant(b"SERVER").await;
    let mut world = world(settings(), grant);
    let request = b"CONNECT other.example.com:443 HTTP/1.1\r\n\r\n";
    let count = |answers: &str, part: &str| answers.matches(part).count() as u64;
    // The last of them ends the connection.
    let all = request.repeat(REFUSALS_RECORDED_MAX as usize + 1);
    let (mut reading, mut writing) = world.client().await.into_split();
    let written = tokio::spawn(async move {
        writing.write_all(&all).await.unwrap();
        writing
    });
    let mut answers = String::new();
    reading.read_to_string(&mut answers).await.unwrap();
    let _writing = written.await.unwrap();
    let refused = "\"error\":\"network.not_granted\"";
    assert_eq!(count(&answers, refused), REFUSALS_RECORDED_MAX + 1);
    assert_eq!(count(&answers, "connection: close"), 1);
    // So does each that follows, in the same words.
    for _ in 0..2 {
        let mut client = world.client().await;
        client.write_all(request).await.unwrap();
        let answer = rest(&mut client).await;
        assert!(
            answer.starts_with("HTTP/1.1 403") && answer.contains("connection: close"),
            "{answer}"
        );
        assert_eq!(count(&answer, refused), 1, "{answer}");
    }
    let (tunnel, head) = world.connect(&authority).await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    drop(tunnel);

    for _ in 0..REFUSALS_RECORDED_MAX {
        let record = world.record().await;
        assert_eq!(record.reason, "network.not_granted");
        assert_eq!(record.host, "other.example.com");
    }
    let last = world.record().await;
    assert_eq!(last.reason, "more_refusals_not_recorded");
    assert_eq!(
        (last.verdict, last.host.as_str(), last.port),
        (Verdict::Refused, "", 0)
    );
    let made = world.record().await;
    assert_eq!(
        (made.reason, made.host.as_str()),
        ("broken", "api.example.com")
    );
}

#[tokio::test]
async fn refusals_beyond_those_on_record_are_counted() {
    const REFUSALS: usize = 1500;
    /// Counts, by reason.
    #[derive(Debug)]
    struct Counts(mpsc::UnboundedSender<&'static str>);
    impl Ledger for Counts {
        fn keep(&self, _record: Record) {}
        fn count(&self, record: &Record) {
            let _ = self.0.send(record.reason);
        }
    }
    let (_host, _, grant) = host_and_grant(b"").await;
    let (sender, mut counted) = mpsc::unbounded_channel();
    let resolver = Arc::new(FakeResolver::default());
    let gate = Gate::new(settings(), resolver, Arc::new(Counts(sender)));
    let open = gate.open(grant);
    let (fd, address) = listener();
    open.serve(fd).unwrap();
    for _ in 0..REFUSALS {
        let (_client, head) = connect_at(address, "other.example.com:443").await;
        assert!(head.starts_with("HTTP/1.1 403"), "{head}");
    }
    for _ in 0..REFUSALS {
        assert_eq!(counted.recv().await, Some("network.not_granted"));
    }
}

/// The refusals of one run are not another's.
#[tokio::test]
async fn refusals_are_counted_by_run() {
    let (_host, _, grant) = host_and_grant(b"").await;
    let mut world = world(settings(), grant.clone());
    let run = &world.open.as_ref().unwrap().run;
    run.refusals
        .store(REFUSALS_RECORDED_MAX + 1, Ordering::SeqCst);
    let second = world.gate.open(grant);
    let (fd, address) = listener();
    second.serve(fd).unwrap();
    let (_client, head) = connect_at(address, "other.example.com:443").await;
    assert!(!head.contains("connection: close"), "{head}");
    assert_eq!(world.record().await.reason, "network.not_granted");
}

//! Names that lead where they should not, and what else a resolver can do.

use super::super::hello::tests::hello;
use super::*;

/// A host on 127.0.0.2, which may be dialled, and a sentinel at the same port of 127.0.0.1, which may not.
async fn world(deny: &[&str]) -> (World, Host, Host, String) {
    let host = Host::new("127.0.0.2", b"SERVER").await;
    let inside = SocketAddr::new("127.0.0.1".parse().unwrap(), host.address.port());
    let sentinel = Host::at(inside, b"INSIDE").await;
    let authority = format!("api.example.com:{}", host.address.port());
    let world = World::new(settings(), grant(&[format!("https://{authority}")], deny));
    (world, host, sentinel, authority)
}

/// The name leads to a granted place, and to an inner one the next time it is asked for.
#[tokio::test]
async fn rebinding() {
    let (world, host, sentinel, authority) = world(&[]).await;
    world
        .resolver
        .say("api.example.com", &[&["127.0.0.2"], &["127.0.0.1"]]);
    let (mut client, head) = world.connect(&authority).await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert_eq!(world.resolver.asked.load(Ordering::SeqCst), 1, "asked once");
    client.write_all(&hello("api.example.com")).await.unwrap();
    let mut got = [0; 6];
    client.read_exact(&mut got).await.unwrap();
    assert_eq!(&got, b"SERVER");
    for _ in 0..20 {
        let (_client, head) = world.connect(&authority).await;
        assert!(
            head.starts_with("HTTP/1.1 403 api.example.com leads to an address"),
            "{head}"
        );
    }
    assert_eq!((host.reached(), sentinel.reached()), (1, 0));
}

/// One bad address among good ones spoils the answer, wherever it stands in it.
#[tokio::test]
async fn answers() {
    let (mut world, host, sentinel, authority) = world(&["127.0.0.4/32"]).await;
    for bad in [
        &["127.0.0.1"][..],
        &["127.0.0.2", "127.0.0.1"],
        &["127.0.0.1", "127.0.0.2"],
        &["127.0.0.2", "::1"],
        &["127.0.0.2", "::ffff:127.0.0.1"],
        &["::ffff:127.0.0.2"],
        &["127.0.0.2", "0.0.0.0"],
        &["127.0.0.2", "10.0.0.1"],
        &["127.0.0.2", "169.254.169.254"],
        &["127.0.0.2", "fe80::1"],
        &["127.0.0.2", "64:ff9b::7f00:2"],
        &["127.0.0.2", "2002:7f00:2::"],
        // The policy's own list.
        &["127.0.0.4"],
        &["127.0.0.2", "127.0.0.4"],
    ] {
        world.resolver.say("api.example.com", &[bad]);
        let (_client, head) = world.connect(&authority).await;
        assert!(head.starts_with("HTTP/1.1 403 "), "{bad:?}: {head}");
        assert!(
            head.contains("error=destination_ip_prohibited") && !head.contains("127."),
            "no address: {head}"
        );
        let record = world.record().await;
        assert_eq!(
            (record.reason, record.address),
            ("network.denied_address", None)
        );
    }
    // Nothing, too much, and nobody there.
    let many: Vec<&str> = std::iter::repeat_n("127.0.0.2", 1000).collect();
    // Of a host with IPv4 alone DNS64 gives both.
    let synthesized = ["127.0.0.2", "64:ff9b::101:101"];
    for (answer, status) in [(&[][..], 502), (&many, 200), (&synthesized, 200)] {
        world.resolver.say("api.example.com", &[answer]);
        let (_client, head) = world.connect(&authority).await;
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
    }
    assert_eq!((host.reached(), sentinel.reached()), (2, 0));
    drop(host);
    world.resolver.say("api.example.com", &[&["127.0.0.2"]]);
    // The port is closed when the task of its listener has ended.
    let refused = async {
        while !world
            .connect(&authority)
            .await
            .1
            .starts_with("HTTP/1.1 502 ")
        {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), refused)
        .await
        .unwrap();
    assert_eq!(sentinel.reached(), 0);
}

/// Another run's gate serves that run's grant, whoever has found the way to it.
#[tokio::test]
async fn two_runs() {
    let (world, host, _sentinel, authority) = world(&[]).await;
    world.resolver.say("api.example.com", &[&["127.0.0.2"]]);
    let other = world
        .gate
        .open(grant(&["https://other.example.com".into()], &[]));
    let (fd, address) = listener();
    other.serve(fd).unwrap();
    let mut client = TcpStream::connect(address).await.unwrap();
    let request = format!("CONNECT {authority} HTTP/1.1\r\n\r\n");
    client.write_all(request.as_bytes()).await.unwrap();
    assert!(head(&mut client).await.starts_with("HTTP/1.1 403 "));
    drop(other);
    // One run's end is not another's.
    assert!(
        world
            .connect(&authority)
            .await
            .1
            .starts_with("HTTP/1.1 200 ")
    );
    assert_eq!(host.reached(), 1);
}

//! What a sandbox gives to be served: a socket that listens, and who else has a copy of it.

use super::super::hello::tests::hello;
use super::tunnels::world;
use super::*;
use crate::telemetry::logged::Log;
use rustix::net::{AddressFamily, SocketType};

#[tokio::test]
async fn a_unix_listener_serves_too() {
    let (world, host, authority) = world().await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("gate");
    let listener = unix::UnixListener::bind(&path).unwrap();
    world.open.as_ref().unwrap().serve(listener.into()).unwrap();
    let mut client = tokio::net::UnixStream::connect(&path).await.unwrap();
    client
        .write_all(format!("CONNECT {authority} HTTP/1.1\r\n\r\n").as_bytes())
        .await
        .unwrap();
    client.write_all(&hello("api.example.com")).await.unwrap();
    let mut buf = [0; 512];
    let mut all = Vec::new();
    while !all.ends_with(b"SERVER") {
        let n = client.read(&mut buf).await.unwrap();
        assert!(n > 0);
        all.extend_from_slice(&buf[..n]);
    }
    assert_eq!(host.reached(), 1);
    // Something that is no listener.
    let file = tempfile::tempfile().unwrap();
    assert!(world.open.as_ref().unwrap().serve(file.into()).is_err());
}

#[tokio::test]
async fn a_run_has_a_few_listeners_and_nothing_else() {
    let (world, _host, _authority) = world().await;
    let open = world.open.as_ref().unwrap();
    let (connected, _other) = unix::UnixStream::pair().unwrap();
    let unbound = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    for no_listener in [connected.into(), unbound] {
        let error = open.serve(no_listener).unwrap_err();
        assert_eq!(error.to_string(), "the socket does not listen");
    }
    // It has one already.
    for _ in 1..LISTENERS_MAX {
        open.serve(listener().0).unwrap();
    }
    let error = open.serve(listener().0).unwrap_err();
    assert!(error.to_string().contains("no more than 4"), "{error}");
}

/// O_NONBLOCK is every copy's, so that whoever has one can take it off: a thread of the gateway would wait in accept(2) until
/// somebody connects.
#[test]
fn who_keeps_a_copy_of_a_listener_holds_up_nobody() {
    let (done, ended) = std::sync::mpsc::channel();
    // Its own threads, which a failure of this leaves behind.
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let said = runtime.block_on(async {
            let world = World::new(settings(), grant(&[], &[]));
            let (fd, address) = listener();
            let copy = fd.try_clone().unwrap();
            world.open.as_ref().unwrap().serve(fd).unwrap();
            let mut said = Vec::new();
            for _ in 0..3 {
                rustix::io::ioctl_fionbio(&copy, false).unwrap();
                said.push(connect_at(address, "evil.com:443").await.1);
            }
            said
        });
        done.send(said).unwrap();
    });
    let said = ended.recv_timeout(Duration::from_secs(20)).unwrap();
    assert!(said.iter().all(|it| it.contains(" 403 ")), "{said:?}");
}

#[tokio::test]
async fn a_listener_that_is_none_any_more_is_told_of_and_left() {
    let world = World::new(settings(), grant(&[], &[]));
    let (fd, address) = listener();
    let copy = fd.try_clone().unwrap();
    let (log, _here) = Log::begin();
    world.open.as_ref().unwrap().serve(fd).unwrap();
    let (_client, head) = connect_at(address, "evil.com:443").await;
    assert!(head.contains(" 403 "), "{head}");
    rustix::net::shutdown(&copy, rustix::net::Shutdown::Both).unwrap();
    let mut lines = String::new();
    let told = async {
        while !lines.contains("listens no more") {
            tokio::task::yield_now().await;
            lines += &log.taken();
        }
    };
    tokio::time::timeout(Duration::from_secs(10), told)
        .await
        .unwrap();
    assert!(
        lines.contains("run_1") && lines.contains(" WARN "),
        "{lines}"
    );
    drop(world);
    assert_eq!((lines + &log.taken()).matches("a run's gate").count(), 1);
}

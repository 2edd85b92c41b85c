//! A run that does not read what comes for it: a pipe of a few bytes stands for its connection.

use super::super::hello::tests::hello;
use super::super::proxy;
use super::*;
use tokio::io::{AsyncRead, DuplexStream};
use tokio::task::JoinHandle;

/// Bytes that the pipe holds.
const PIPE_BYTES: usize = 64;

/// A run whose gate has one tunnel, and an open one of it.
async fn tunnel(reply: &'static [u8]) -> (World, Host, String, DuplexStream, JoinHandle<()>) {
    let host = Host::new("127.0.0.2", reply).await;
    let authority = format!("api.example.com:{}", host.address.port());
    let settings = Settings {
        tunnels_max: 1,
        ..settings()
    };
    let world = World::new(settings, grant(&[format!("https://{authority}")], &[]));
    world.resolver.say("api.example.com", &[&["127.0.0.2"]]);
    let run = world.open.as_ref().unwrap().run.clone();
    let (mut client, gates) = tokio::io::duplex(PIPE_BYTES);
    let serving = tokio::spawn(proxy::serve(gates, run));
    let request = format!("CONNECT {authority} HTTP/1.1\r\n\r\n");
    client.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await.unwrap());
    }
    assert!(head.starts_with(b"HTTP/1.1 200"));
    (world, host, authority, client, serving)
}

async fn count(mut client: impl AsyncRead + Unpin) -> u64 {
    let mut all = Vec::new();
    client.read_to_end(&mut all).await.unwrap() as u64
}

/// However it ends: what has come through is on record.
#[tokio::test]
async fn a_tunnel_that_ends_in_the_middle_of_a_piece() {
    let (mut world, _host, _authority, mut client, serving) = tunnel(&[7; 1000]).await;
    client.write_all(&hello("api.example.com")).await.unwrap();
    // The piece is on its way.
    client.read_u8().await.unwrap();
    serving.abort();
    let record = world.record().await;
    let got = 1 + count(client).await;
    assert!(got >= PIPE_BYTES as u64);
    assert_eq!(record.bytes_down, got);
}

/// Nobody has to hear the last words: they hold no tunnel of the gateway's, nor for long one of the run's connections.
#[tokio::test]
async fn last_words_that_nobody_reads() {
    let (mut world, host, authority, mut client, serving) = tunnel(b"").await;
    client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let record = world.record().await;
    assert_eq!(record.reason, "tls.required");
    let (_next, head) = world.connect(&authority).await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert_eq!(host.reached(), 2);
    tokio::time::timeout(Duration::from_secs(10), serving)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(count(client).await, PIPE_BYTES as u64);
}

//! The gate over real sockets: a listener on loopback stands for a run's, upstreams on 127.0.0.2 (named by
//! `allow_private`) for hosts, and sentinels on 127.0.0.1 and elsewhere for what must never be reached.

mod attacks;
mod dialling;
mod hellos;
mod limits;
mod listeners;
mod metered;
mod plain;
mod tunnels;
mod unread;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicUsize;

use futures_util::future::BoxFuture;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::*;

/// Answers what it was told, in turn; the last one stays. Counts questions.
#[derive(Debug, Default)]
pub(super) struct FakeResolver {
    answers: Mutex<HashMap<String, Vec<Vec<IpAddr>>>>,
    pub(super) asked: AtomicUsize,
}

impl FakeResolver {
    pub(super) fn say(&self, host: &str, answers: &[&[&str]]) {
        let answers = answers
            .iter()
            .map(|a| a.iter().map(|ip| ip.parse().unwrap()).collect())
            .collect();
        self.answers.lock().unwrap().insert(host.into(), answers);
    }
}

impl Resolver for FakeResolver {
    fn resolve(
        &self,
        host: &str,
        _tenant: &str,
        turn: OwnedSemaphorePermit,
    ) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let mut answers = self.answers.lock().unwrap();
        let answer = match answers.get_mut(host) {
            None => Err(io::Error::other("no such host")),
            Some(list) if list.len() > 1 => Ok(list.remove(0)),
            Some(list) => Ok(list[0].clone()),
        };
        Box::pin(async move {
            drop(turn);
            answer
        })
    }
}

/// Hands records to the test.
#[derive(Debug)]
struct Told(mpsc::UnboundedSender<Record>);

impl Ledger for Told {
    fn keep(&self, record: Record) {
        let _ = self.0.send(record);
    }
}

/// A server that keeps what it gets and answers with `reply`.
pub(super) struct Host {
    pub(super) address: SocketAddr,
    pub(super) connections: Arc<AtomicUsize>,
    pub(super) got: Arc<Mutex<Vec<u8>>>,
    task: AbortHandle,
}

impl Drop for Host {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Host {
    pub(super) async fn new(ip: &str, reply: &'static [u8]) -> Host {
        Host::at(format!("{ip}:0").parse().unwrap(), reply).await
    }

    pub(super) async fn at(address: SocketAddr, reply: &'static [u8]) -> Host {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (connections, got): (Arc<AtomicUsize>, Arc<Mutex<Vec<u8>>>) = Default::default();
        let (counted, kept) = (connections.clone(), got.clone());
        let task = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::SeqCst);
                let kept = kept.clone();
                tokio::spawn(async move {
                    let mut buf = vec![0; 65536];
                    let mut answered = false;
                    while let Ok(n @ 1..) = stream.read(&mut buf).await {
                        kept.lock().unwrap().extend_from_slice(&buf[..n]);
                        if !std::mem::replace(&mut answered, true) {
                            let _ = stream.write_all(reply).await;
                        }
                    }
                });
            }
        })
        .abort_handle();
        Host {
            address,
            connections,
            got,
            task,
        }
    }

    pub(super) fn reached(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// Waits until it has got so many bytes.
    pub(super) async fn has(&self, bytes: usize) {
        let there = async {
            while self.got.lock().unwrap().len() < bytes {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), there)
            .await
            .unwrap();
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.got.lock().unwrap()).into_owned()
    }
}

/// A gate with one open run.
pub(super) struct World {
    pub(super) gate: Gate,
    pub(super) open: Option<Open>,
    pub(super) address: SocketAddr,
    pub(super) resolver: Arc<FakeResolver>,
    pub(super) records: mpsc::UnboundedReceiver<Record>,
}

pub(super) fn settings() -> Settings {
    Settings {
        allow_private: vec!["127.0.0.2/32".parse().unwrap()],
        tunnels_max: 64,
        run_connections_max: 64,
        tenant_pace: Pace::new(1_000_000, 1, 1_000_000),
        connect_timeout: Duration::from_secs(5),
        idle_timeout: Duration::from_secs(30),
        header_timeout: Duration::from_secs(5),
        header_bytes_max: 16384,
        hello_timeout: Duration::from_secs(5),
        hello_bytes_max: 16384,
        run_upload_bytes_max: 1 << 30,
        run_download_bytes_max: 1 << 30,
    }
}

pub(super) fn grant(network: &[String], deny: &[&str]) -> Grant {
    let deny: Vec<String> = deny.iter().map(|d| (*d).to_owned()).collect();
    Grant::new("run_1", "default", "dec_1", network, &deny).unwrap()
}

pub(super) fn listener() -> (OwnedFd, SocketAddr) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener.into(), address)
}

impl Gate {
    /// One that finds no host and records nothing.
    pub(crate) fn for_tests() -> Self {
        Gate::new(
            settings(),
            Arc::new(FakeResolver::default()),
            Arc::new(NoLedger),
        )
    }
}

impl World {
    pub(super) fn new(settings: Settings, grant: Grant) -> World {
        let (sender, records) = mpsc::unbounded_channel();
        let resolver = Arc::new(FakeResolver::default());
        let gate = Gate::new(settings, resolver.clone(), Arc::new(Told(sender)));
        let open = gate.open(grant);
        let (fd, address) = listener();
        open.serve(fd).unwrap();
        World {
            gate,
            open: Some(open),
            address,
            resolver,
            records,
        }
    }

    pub(super) async fn client(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends requests and gives everything that comes back. The last one is for the gate itself, and ends it.
    pub(super) async fn exchange(&self, bytes: &[u8]) -> String {
        let mut client = self.client().await;
        let all = [bytes, b"GET /end HTTP/1.1\r\nConnection: close\r\n\r\n"].concat();
        // The gate may have ended it before all is sent.
        let _ = client.write_all(&all).await;
        rest(&mut client).await
    }

    /// Opens a tunnel; the head of the answer.
    pub(super) async fn connect(&self, authority: &str) -> (TcpStream, String) {
        connect_at(self.address, authority).await
    }

    /// The next record that is not about the end of an [`World::exchange`].
    pub(super) async fn record(&mut self) -> Record {
        loop {
            let record = self.any_record().await;
            if record.reason != "not_a_proxy_request" {
                return record;
            }
        }
    }

    async fn any_record(&mut self) -> Record {
        tokio::time::timeout(Duration::from_secs(10), self.records.recv())
            .await
            .unwrap()
            .unwrap()
    }
}

/// Opens a tunnel through the gate at an address; the head of the answer.
pub(super) async fn connect_at(gate: SocketAddr, authority: &str) -> (TcpStream, String) {
    let mut client = TcpStream::connect(gate).await.unwrap();
    let request = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n");
    client.write_all(request.as_bytes()).await.unwrap();
    let head = head(&mut client).await;
    (client, head)
}

/// The body of the first answer.
pub(super) fn json(answer: &str) -> serde_json::Value {
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    serde_json::Deserializer::from_str(body)
        .into_iter()
        .next()
        .unwrap()
        .unwrap()
}

/// What comes until the end, or until it is broken.
pub(super) async fn rest(stream: &mut TcpStream) -> String {
    let mut all = Vec::new();
    let mut buf = [0; 4096];
    loop {
        let read = tokio::time::timeout(Duration::from_secs(10), stream.read(&mut buf)).await;
        let Ok(n @ 1..) = read.expect("it comes to an end") else {
            break;
        };
        all.extend_from_slice(&buf[..n]);
    }
    String::from_utf8_lossy(&all).into_owned()
}

/// Up to the empty line.
pub(super) async fn head(stream: &mut TcpStream) -> String {
    let mut all = Vec::new();
    while !all.ends_with(b"\r\n\r\n") {
        match tokio::time::timeout(Duration::from_secs(10), stream.read_u8()).await {
            Ok(Ok(byte)) => all.push(byte),
            _ => break,
        }
    }
    String::from_utf8_lossy(&all).into_owned()
}

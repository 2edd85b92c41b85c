//! The egress gate beside a plain CONNECT proxy of the same crates that checks nothing. `README.md` says how to run it and
//! how to read it.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on stops")]
#![allow(clippy::print_stdout, reason = "the table is what it is run for")]

use std::convert::Infallible;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use skillgate::gate::{Gate, Grant, NoLedger, Resolver, Settings};
use skillgate::pace::Pace;
use tokio::sync::OwnedSemaphorePermit;

/// Every row is measured in so many slices, in turns with the others.
const ROUNDS: usize = 15;
/// Connections of one slice.
const CONNECTIONS: usize = 200;
/// Bytes that one tunnel carries in one slice.
const BYTES: u64 = 256 << 20;
/// What each direction of a tunnel holds.
const BUFFER_BYTES: usize = 32 << 10;
const NAME: &str = "api.example.com";

/// A ClientHello that names a host.
fn hello(name: &str) -> Vec<u8> {
    let number = |n: usize| (n as u16).to_be_bytes();
    let extension = [
        &number(0)[..],
        &number(name.len() + 5),
        &number(name.len() + 3),
        &[0],
        &number(name.len()),
        name.as_bytes(),
    ]
    .concat();
    let body = [
        &[3, 3][..],
        &[7; 32],
        &[0],
        &[0, 2, 0x13, 1],
        &[1, 0],
        &number(extension.len()),
        &extension,
    ]
    .concat();
    let message = [&[1, 0][..], &number(body.len()), &body].concat();
    [&[22, 3, 1][..], &number(message.len()), &message].concat()
}

/// What a client says: a hello, and how many bytes it wants.
fn wish(bytes: u64) -> Vec<u8> {
    [
        &hello(NAME)[..],
        b"\x17\x03\x03\x00\x08",
        &bytes.to_le_bytes(),
    ]
    .concat()
}

/// Gives what it is asked for.
fn upstream() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.2:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            std::thread::spawn(move || -> io::Result<()> {
                stream.set_nodelay(true)?;
                let mut wanted = wish(0);
                stream.read_exact(&mut wanted)?;
                let mut left = u64::from_le_bytes(wanted[wanted.len() - 8..].try_into().unwrap());
                let piece = vec![7; 64 << 10];
                while left > 0 {
                    let n = left.min(piece.len() as u64);
                    stream.write_all(&piece[..n as usize])?;
                    left -= n;
                }
                // Until the client goes.
                stream.read(&mut [0]).map(drop)
            });
        }
    });
    address
}

#[derive(Debug)]
struct Known;

impl Resolver for Known {
    fn resolve(
        &self,
        _host: &str,
        _tenant: &str,
        _turn: OwnedSemaphorePermit,
    ) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        Box::pin(std::future::ready(Ok(vec!["127.0.0.2".parse().unwrap()])))
    }
}

/// CONNECT, dial, copy.
async fn plain(listener: tokio::net::TcpListener, to: SocketAddr) {
    while let Ok((stream, _)) = listener.accept().await {
        let service = service_fn(move |request: Request<Incoming>| async move {
            let mut upstream = tokio::net::TcpStream::connect(to).await.unwrap();
            upstream.set_nodelay(true).unwrap();
            tokio::spawn(async move {
                if let Ok(upgraded) = hyper::upgrade::on(request).await {
                    let mut client = TokioIo::new(upgraded);
                    // With buffers as large as the gate's. Either side may go at any time.
                    let _ = tokio::io::copy_bidirectional_with_sizes(
                        &mut client,
                        &mut upstream,
                        BUFFER_BYTES,
                        BUFFER_BYTES,
                    )
                    .await;
                }
            });
            Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
        });
        tokio::spawn(
            hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .with_upgrades(),
        );
    }
}

/// Opens a tunnel and asks for bytes; the time until the first of them is here.
fn open(proxy: SocketAddr, port: u16, bytes: u64) -> (TcpStream, Duration) {
    let began = Instant::now();
    let mut stream = TcpStream::connect(proxy).unwrap();
    stream.set_nodelay(true).unwrap();
    write!(
        stream,
        "CONNECT {NAME}:{port} HTTP/1.1\r\nHost: {NAME}:{port}\r\n\r\n"
    )
    .unwrap();
    let mut head = Vec::new();
    let mut buf = [0; 1024];
    while !head.ends_with(b"\r\n\r\n") {
        let n = stream.read(&mut buf).unwrap();
        assert!(n > 0, "{}", String::from_utf8_lossy(&head));
        head.extend_from_slice(&buf[..n]);
    }
    assert!(
        head.starts_with(b"HTTP/1.1 200"),
        "{}",
        String::from_utf8_lossy(&head)
    );
    stream.write_all(&wish(bytes)).unwrap();
    stream.read_exact(&mut [0]).unwrap();
    (stream, began.elapsed())
}

fn carry(proxy: SocketAddr, port: u16) -> f64 {
    let (mut stream, _) = open(proxy, port, BYTES);
    let began = Instant::now();
    let mut buf = vec![0; 256 << 10];
    let mut left = BYTES - 1;
    while left > 0 {
        left -= stream.read(&mut buf).unwrap() as u64;
    }
    BYTES as f64 / began.elapsed().as_secs_f64() / (1 << 20) as f64
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let host = upstream();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let (plain_proxy, gate, _open) = runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let plain_proxy = listener.local_addr().unwrap();
        tokio::spawn(plain(listener, host));
        let ms = Duration::from_millis;
        let settings = Settings {
            allow_private: vec!["127.0.0.2/32".parse().unwrap()],
            tunnels_max: 4096,
            run_connections_max: 64,
            tenant_pace: Pace::new(1_000_000, 1, 1_000_000),
            connect_timeout: ms(10_000),
            idle_timeout: ms(120_000),
            header_timeout: ms(10_000),
            header_bytes_max: 16384,
            hello_timeout: ms(5000),
            hello_bytes_max: 16384,
            run_upload_bytes_max: 1 << 40,
            run_download_bytes_max: 1 << 40,
        };
        let gate = Gate::new(settings, Arc::new(Known), Arc::new(NoLedger));
        let network = [
            format!("https://{NAME}:{}", host.port()),
            "https://*.example.org".into(),
        ];
        let open = gate.open(
            Grant::new(
                "run_1",
                "default",
                "dec_1",
                &network,
                &["10.0.0.0/8".into()],
            )
            .unwrap(),
        );
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        open.serve(listener.into()).unwrap();
        (plain_proxy, address, open)
    });

    let mut setup = [Vec::new(), Vec::new()];
    let mut rate = [Vec::new(), Vec::new()];
    let mut together = [Vec::new(), Vec::new()];
    for round in 0..ROUNDS {
        for (which, proxy) in [plain_proxy, gate].into_iter().enumerate() {
            let us: Vec<f64> = (0..CONNECTIONS)
                .map(|_| open(proxy, host.port(), 1).1.as_secs_f64() * 1e6)
                .collect();
            let one = carry(proxy, host.port());
            let began = Instant::now();
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| carry(proxy, host.port()));
                }
            });
            let four = 4.0 * BYTES as f64 / began.elapsed().as_secs_f64() / (1 << 20) as f64;
            // The first one warms up.
            if round > 0 {
                setup[which].extend(us);
                rate[which].push(one);
                together[which].push(four);
            }
        }
    }
    let [plain_us, gate_us] = setup.each_mut().map(|values| median(values));
    let [plain_rate, gate_rate] = rate.each_mut().map(|values| median(values));
    let [plain_four, gate_four] = together.each_mut().map(|values| median(values));
    println!("| | plain proxy | gate | |");
    println!("|---|---|---|---|");
    println!(
        "| from connect to the first byte of the host, p50 | {plain_us:.0} us | {gate_us:.0} us | {:+.0} us |",
        gate_us - plain_us
    );
    println!(
        "| one tunnel | {plain_rate:.0} MiB/s | {gate_rate:.0} MiB/s | {:.2} |",
        gate_rate / plain_rate
    );
    println!(
        "| four tunnels | {plain_four:.0} MiB/s | {gate_four:.0} MiB/s | {:.2} |",
        gate_four / plain_four
    );
}

//! The gateway over HTTP, beside a bare server that gives the same bytes and a bare Python. `README.md` says how to run it
//! and how to read it.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on stops")]
#![allow(clippy::print_stdout, reason = "the table is what it is run for")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use skillgate::auth::DevelopmentKey;
use support::gateway::{Gateway, House, Settings};
use support::http::Client;
use support::quantile;

/// Every row is measured in so many slices, one after the other with the rest, so that what else the machine does meets all
/// of them alike.
const ROUNDS: usize = 12;
/// Requests of one client in one slice.
const QUICK: usize = 400;
const STORED: usize = 25;
const RUNS: usize = 6;

/// One row of the table.
struct Row {
    name: &'static str,
    clients: usize,
    /// Operations of each client in one slice.
    each: usize,
    /// Where its clients connect to; empty for what is no server.
    address: String,
    token: Option<String>,
    operation: Operation,
    ms: Vec<f64>,
    busy: Duration,
}

/// One operation on a connection of its own.
type Operation = Box<dyn Fn(Option<&mut Client>) + Sync>;

impl Row {
    fn slice(&mut self, keep: bool) {
        let began = Instant::now();
        let ms: Vec<f64> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.clients)
                .map(|_| {
                    scope.spawn(|| {
                        let mut client = (!self.address.is_empty())
                            .then(|| Client::open(&self.address).unwrap())
                            .map(|client| client.bearing(self.token.as_deref()));
                        let mut ms = Vec::with_capacity(self.each);
                        for _ in 0..self.each {
                            let began = Instant::now();
                            (self.operation)(client.as_mut());
                            ms.push(began.elapsed().as_secs_f64() * 1000.0);
                        }
                        ms
                    })
                })
                .collect();
            threads
                .into_iter()
                .flat_map(|thread| thread.join().unwrap())
                .collect()
        });
        if keep {
            self.busy += began.elapsed();
            self.ms.extend(ms);
        }
    }

    fn print(&mut self) {
        self.ms.sort_by(f64::total_cmp);
        println!(
            "| {:<34} | {:>7} | {:>8} | {:>8.2} | {:>8.2} | {:>8.2} | {:>8.0} |",
            self.name,
            self.clients,
            self.ms.len(),
            quantile(&self.ms, 0.5),
            quantile(&self.ms, 0.9),
            quantile(&self.ms, 0.99),
            self.ms.len() as f64 / self.busy.as_secs_f64()
        );
    }
}

/// hyper and nothing else: reads the body and gives always the same answer. Ends with the process.
fn bare_server(answer: Vec<u8>) -> SocketAddr {
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async move {
            let answer = Bytes::from(answer);
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            send.send(listener.local_addr().unwrap()).unwrap();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                stream.set_nodelay(true).unwrap();
                let answer = answer.clone();
                let service = service_fn(move |request: Request<Incoming>| {
                    let answer = answer.clone();
                    async move {
                        request.into_body().collect().await?;
                        let response =
                            Response::builder().header("content-type", "application/json");
                        Ok::<_, hyper::Error>(response.body(Full::new(answer)).unwrap())
                    }
                });
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service),
                );
            }
        });
    });
    receive.recv().unwrap()
}

fn call(method: &'static str, params: Value) -> Operation {
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string();
    Box::new(move |client| {
        let answer = client.unwrap().post(body.as_bytes()).unwrap();
        assert!(
            answer.status == 200 && answer.body.windows(9).any(|w| w == b"\"result\":"),
            "{}",
            answer.text()
        );
    })
}

/// A run that must complete.
fn run(params: Value) -> Operation {
    Box::new(move |client| {
        let result = client
            .unwrap()
            .result("execute_skill", params.clone())
            .unwrap();
        assert_eq!(result["status"], "completed", "{result}");
    })
}

/// The interpreter that `sandbox-process` takes, started by itself.
fn python(arguments: &'static [&'static str]) -> Operation {
    Box::new(move |_| {
        let status = Command::new(interpreter())
            .args(arguments)
            .stdin(Stdio::null())
            .status()
            .unwrap();
        assert!(status.success());
    })
}

/// A gateway with everything on: a token from each caller, limits of each kind, the bundled policy, the audit log.
fn whole_stack() -> (House, Gateway, String) {
    let key = DevelopmentKey::generate("ES256").unwrap();
    let house = House::new(Settings::default());
    let keys = house.path().join("jwks.json");
    fs::write(&keys, key.jwks().to_string()).unwrap();
    let auth = format!(
        "[auth]\nmode = \"jwt\"\n[[auth.issuers]]\nissuer = \"https://idp.example.com\"\naudiences = [\"skillgate\"]\njwks_file = {keys:?}\nalgorithms = [\"ES256\"]\n"
    );
    let limits: String = [
        ("address", r#"["ip"]"#),
        ("subject", r#"["tenant", "subject"]"#),
        ("method", r#"["subject", "method"]"#),
    ]
    .map(|(name, key)| {
        format!("[[rate_limit]]\nname = \"{name}\"\nkey = {key}\nquota = 1000000000\nper_s = 1\n")
    })
    .concat();
    house.configure(Settings {
        extra: &(auth + &limits),
        ..Settings::default()
    });
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let Value::Object(claims) = json!({
        "iss": "https://idp.example.com", "aud": "skillgate", "sub": "bench", "tenant": "default",
        "roles": ["operator"], "iat": now.as_secs(), "exp": now.as_secs() + 3600,
    }) else {
        panic!("an object");
    };
    let token = key.token(&claims).unwrap();
    let gateway = house.start();
    (house, gateway, token)
}

fn main() {
    let (_whole, full, token) = whole_stack();
    let house = House::new(Settings {
        extra: "[policy]\nmode = \"off\"\n",
        ..Settings::default()
    });
    let gateway = house.start();
    let mut client = gateway.client();
    for number in 0..60 {
        let manifest = json!({ "name": format!("bench.s{number:02}"), "version": "1.0.0", "description": "One of sixty.", "kind": "instruction", "namespace": "bench" });
        client
            .result(
                "create_skill",
                json!({ "manifest": manifest, "skill_md": "# One of sixty\n" }),
            )
            .unwrap();
    }
    let kibibyte = "x".repeat(1024);
    let stored = client
        .result(
            "create_blob",
            json!({ "content": kibibyte, "kind": "text/plain" }),
        )
        .unwrap();
    let path = format!("/blobs/{}", stored["blob_id"].as_str().unwrap());
    let describe = json!({ "name": "hello.world" });
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "describe_skill", "params": describe });
    let same = client.post(body.to_string().as_bytes()).unwrap().body;
    let bare = bare_server(same).to_string();
    let ours = gateway.address.clone();

    let mut rows = Vec::new();
    let mut row = |name, clients, each, address: &str, operation| {
        let token = (address == full.address).then(|| token.clone());
        rows.push(Row {
            name,
            clients,
            each,
            address: address.to_owned(),
            token,
            operation,
            ms: Vec::new(),
            busy: Duration::ZERO,
        });
    };
    for clients in [1, 4] {
        row(
            "bare hyper, the same bytes",
            clients,
            QUICK,
            &bare,
            call("describe_skill", describe.clone()),
        );
        row(
            "describe_skill",
            clients,
            QUICK,
            &ours,
            call("describe_skill", describe.clone()),
        );
        row(
            "describe_skill, the whole stack",
            clients,
            QUICK,
            &full.address,
            call("describe_skill", describe.clone()),
        );
        row(
            "list_skills, a page of 50",
            clients,
            QUICK,
            &ours,
            call("list_skills", json!({ "limit": 50 })),
        );
        let file = json!({ "name": "hello.world", "path": "code/main.py" });
        row(
            "read_skill_file",
            clients,
            QUICK,
            &ours,
            call("read_skill_file", file),
        );
    }
    let create = json!({ "content": kibibyte, "kind": "text/plain" });
    row(
        "create_blob + read_blob, 1 KiB",
        1,
        STORED,
        &ours,
        Box::new(move |client| {
            let client = client.unwrap();
            let id = client.result("create_blob", create.clone()).unwrap()["blob_id"].clone();
            client
                .result("read_blob", json!({ "blob_id": id }))
                .unwrap();
        }),
    );
    row(
        "GET /blobs/{id}, 1 KiB",
        1,
        STORED,
        &ours,
        Box::new(move |client| {
            assert_eq!(client.unwrap().get(&path).unwrap().body.len(), 1024);
        }),
    );
    for clients in [1, 2, 4] {
        row(
            "execute_skill hello.world",
            clients,
            RUNS,
            &ours,
            run(json!({ "name": "hello.world", "args": {} })),
        );
        row(
            "hello.world, the whole stack",
            clients,
            RUNS,
            &full.address,
            run(json!({ "name": "hello.world", "args": {} })),
        );
    }
    row("python3 -c pass", 1, RUNS, "", python(&["-c", "pass"]));
    row(
        "python3 -I -S -B -c pass",
        1,
        RUNS,
        "",
        python(&["-I", "-S", "-B", "-c", "pass"]),
    );

    for round in 0..=ROUNDS {
        for row in &mut rows {
            // The first round is for caches and pools.
            row.slice(round > 0);
        }
    }
    println!(
        "{} processors, {}, {}",
        std::thread::available_parallelism().map_or(0, usize::from),
        said("uname", &["-sr"]),
        said(interpreter(), &["--version"])
    );
    println!("| operation | clients | measured | p50 ms | p90 ms | p99 ms | per second |");
    println!("|---|---|---|---|---|---|---|");
    for row in &mut rows {
        row.print();
    }
    println!(
        "memory of the gateway at the end: {} KiB",
        gateway.rss_kib()
    );
    gateway.stop();
    full.stop();
}

fn interpreter() -> &'static str {
    let usual = "/usr/bin/python3";
    if Path::new(usual).exists() {
        usual
    } else {
        "python3"
    }
}

fn said(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    output.map_or_else(
        |error| error.to_string(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}

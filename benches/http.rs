//! The gateway over HTTP, beside a bare server that gives the same bytes and a bare Python. `README.md` says how to run it
//! and how to read it.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on stops")]
#![allow(clippy::print_stdout, reason = "the table is what it is run for")]

mod measure;
#[path = "../tests/support/mod.rs"]
mod support;

use std::net::SocketAddr;
use std::sync::{Arc, mpsc};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use measure::{Operation, Row, clients_of, measure, rivals, run, whole_stack};
use serde_json::{Value, json};
use support::gateway::{House, Settings};

/// Slices of every row.
const ROUNDS: usize = 12;
/// Requests of one client in one slice.
const QUICK: usize = 400;
const STORED: usize = 25;
const RUNS: usize = 6;

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
    Arc::new(move |client| {
        let answer = client.post(body.as_bytes()).unwrap();
        assert!(
            answer.status == 200 && answer.body.windows(9).any(|w| w == b"\"result\":"),
            "{}",
            answer.text()
        );
    })
}

fn main() {
    let (_whole, full, token) = whole_stack("", None);
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
    let mut row = |name, clients, each, address: &str, operation: Operation| {
        let token = (address == full.address).then_some(token.as_str());
        let work = clients_of(address, token, operation);
        rows.push(Row::new(name, clients, each, work));
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
        Arc::new(move |client| {
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
        Arc::new(move |client| {
            assert_eq!(client.get(&path).unwrap().body.len(), 1024);
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
    for (name, arguments) in [
        ("python3 -c pass", &["-c", "pass"][..]),
        ("python3 -I -S -B -c pass", &rivals::PROGRAM),
    ] {
        rows.push(Row::new(name, 1, RUNS, rivals::plain(arguments)));
    }
    measure(&mut rows, ROUNDS);
    println!(
        "memory of the gateway at the end: {} KiB",
        gateway.rss_kib()
    );
    gateway.stop();
    full.stop();
}

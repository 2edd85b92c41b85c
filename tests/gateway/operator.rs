//! The operator's listener, and what the public one does not say.

use std::time::Duration;

use serde_json::{Value, json};

use crate::alone;
use crate::audit;
use crate::support::eventually;
use crate::support::gateway::{Gateway, House, Settings};
use crate::support::http::Client;
use crate::support::look::linux;

fn operator(gateway: &Gateway) -> Client {
    Client::open(&gateway.admin).unwrap()
}

pub(crate) fn metrics(gateway: &Gateway) -> String {
    let answer = operator(gateway).get("/metrics").unwrap();
    assert_eq!(answer.status, 200);
    assert_eq!(
        answer.header("content-type"),
        Some("text/plain; version=0.0.4; charset=utf-8")
    );
    answer.text()
}

pub(crate) fn value(page: &str, series: &str) -> f64 {
    let line = page.lines().find_map(|line| line.strip_prefix(series));
    let line = line.unwrap_or_else(|| panic!("no {series} in\n{page}"));
    line.trim().parse().unwrap()
}

#[test]
fn health_part_by_part() {
    // It has to say so while a run goes on.
    let _alone = alone();
    let house = House::new(Settings::default());
    let mut gateway = house.start();
    let mut client = operator(&gateway);
    assert_eq!(client.get("/livez").unwrap().text(), "ok\n");
    assert_eq!(client.get("/readyz").unwrap().text(), "ready\n");
    let verbose = client.get("/readyz?verbose").unwrap();
    println!("{}", verbose.text());
    assert_eq!(verbose.status, 200);
    for part in [
        "draining", "audit", "policy", "issuers", "storage", "shelf", "sandbox", "reload",
    ] {
        let line = if part == "sandbox" && linux() < (6, 12) {
            // Landlock has fewer rules there than are wanted.
            "[!]sandbox impaired: runs are isolated with less than every layer: landlock: ABI "
                .into()
        } else {
            format!("[+]{part} ok")
        };
        assert!(verbose.text().contains(&line), "{part}: {}", verbose.text());
    }
    // While a run keeps it from ending, the gateway says that it stops.
    let mut caller = gateway.client();
    let code = "import time\ndef main(args):\n    time.sleep(5)\n";
    let params = json!({ "language": "python", "code": code });
    caller.ask("run_code", params).unwrap();
    eventually("the run is under way", Duration::from_secs(20), || {
        value(&metrics(&gateway), "skillgate_runs_in_flight ") == 1.0
    });
    gateway.signal("TERM");
    eventually("it says so", Duration::from_secs(2), || {
        let answer = client.get("/readyz?verbose").unwrap();
        answer.status == 503
            && answer
                .text()
                .contains("[-]draining failed: the gateway is stopping")
    });
    assert_eq!(client.get("/livez").unwrap().status, 200);
    assert_eq!(caller.answer().unwrap().status, 200);
    assert!(gateway.end(Duration::from_secs(20)).success());
}

#[test]
fn what_happened_is_counted() {
    let house = House::new(Settings {
        extra: "[[rate_limit]]\nname = \"guide\"\nkey = [\"method\"]\nmethods = [\"load_skills_protocol_guide\"]\nquota = 1\nper_s = 3600\n",
        ..Settings::default()
    });
    let gateway = house.start();
    let mut client = gateway.client();
    client
        .run("def main(args):\n    return 1\n", json!({}))
        .unwrap();
    let code = "class Mine(Exception):\n    pass\ndef main(args):\n    raise Mine('x')\n";
    let failing = json!({ "language": "python", "code": code });
    client.result("run_code", failing).unwrap();
    let name = json!({ "name": "hello.world", "args": { "name": "you" } });
    client.result("execute_skill", name).unwrap();
    client.call("no_such_method_of_mine", json!({})).unwrap();
    client
        .call("describe_skill", json!({ "name": "no.such" }))
        .unwrap();
    client
        .result("load_skills_protocol_guide", json!({}))
        .unwrap();
    for _ in 0..3 {
        let refused = client
            .call("load_skills_protocol_guide", json!({}))
            .unwrap();
        assert_eq!(refused["error"]["code"], -32005);
    }
    let blob = json!({ "kind": "text/plain", "content": "12345" });
    client.result("create_blob", blob).unwrap();
    client.post(b"{").unwrap();
    client.get("/no/such/path/of/mine").unwrap();
    client.get("/blobs/blob:no-such").unwrap();

    let page = metrics(&gateway);
    for (series, expected) in [
        (
            r#"skillgate_rpc_requests_total{method="run_code",outcome="ok",kind=""} "#,
            2.0,
        ),
        (
            r#"skillgate_rpc_requests_total{method="other",outcome="error",kind="method_not_found"} "#,
            1.0,
        ),
        (
            r#"skillgate_rpc_requests_total{method="describe_skill",outcome="error",kind="skill_not_found"} "#,
            1.0,
        ),
        (
            r#"skillgate_rpc_requests_total{method="load_skills_protocol_guide",outcome="error",kind="rate_limited"} "#,
            3.0,
        ),
        (
            r#"skillgate_rpc_requests_total{method="",outcome="error",kind="parse_error"} "#,
            1.0,
        ),
        (
            r#"skillgate_rpc_duration_seconds_count{method="run_code"} "#,
            2.0,
        ),
        (
            r#"skillgate_runs_total{kind="code",status="completed",error_type=""} "#,
            1.0,
        ),
        (
            r#"skillgate_runs_total{kind="code",status="failed",error_type="other"} "#,
            1.0,
        ),
        (
            r#"skillgate_runs_total{kind="skill",status="completed",error_type=""} "#,
            1.0,
        ),
        ("skillgate_run_duration_seconds_count ", 3.0),
        ("skillgate_run_queue_seconds_count ", 3.0),
        ("skillgate_runs_in_flight ", 0.0),
        ("skillgate_run_queue_depth ", 0.0),
        (r#"skillgate_ratelimit_rejected_total{rule="guide"} "#, 3.0),
        (r#"skillgate_ratelimit_keys{rule="guide"} "#, 1.0),
        (
            r#"skillgate_http_requests_total{route="other",code="404"} "#,
            1.0,
        ),
        (
            r#"skillgate_http_requests_total{route="/blobs/{id}",code="404"} "#,
            1.0,
        ),
        (
            r#"skillgate_http_requests_total{route="/rpc",code="200"} "#,
            11.0,
        ),
        (
            r#"skillgate_policy_decisions_total{action="run_code",decision="allow",mode="enforce"} "#,
            2.0,
        ),
        (
            r#"skillgate_policy_decisions_total{action="load_skills_protocol_guide",decision="allow",mode="enforce"} "#,
            4.0,
        ),
        (r#"skillgate_part_ready{part="sandbox"} "#, 1.0),
        (
            r#"skillgate_plugin_calls_total{plugin="sandbox",op="run",outcome="ok"} "#,
            3.0,
        ),
        (
            r#"skillgate_plugin_calls_total{plugin="storage",op="blob_stat",outcome="not_found"} "#,
            1.0,
        ),
        (
            r#"skillgate_plugin_value{plugin="sandbox",name="runs_completed"} "#,
            2.0,
        ),
        ("skillgate_blob_store_bytes ", 5.0),
    ] {
        assert_eq!(value(&page, series), expected, "{series}\n{page}");
    }
    for word in ["mine", "Mine", "hello.world", "no.such", "default\""] {
        assert!(!page.contains(word), "{word} in\n{page}");
    }
    assert!(page.contains("skillgate_plugin_info{") && page.contains("skillgate_build_info{"));
    gateway.stop();
}

/// Those that are given up have waited the longest.
#[test]
fn who_leaves_the_queue_has_waited_too() {
    let house = House::new(Settings {
        runs: "max_concurrent = 1\nmax_queued = 1",
        ..Settings::default()
    });
    let gateway = house.start();
    let shows = |line: &str| {
        eventually(line, Duration::from_secs(20), || {
            metrics(&gateway).lines().any(|have| have == line)
        });
    };
    let code = "import time\ndef main(args):\n    time.sleep(1000)\n";
    let params = json!({ "language": "python", "code": code });
    let mut holds = gateway.client();
    holds.ask("run_code", params.clone()).unwrap();
    shows("skillgate_runs_in_flight 1");
    let mut waits = gateway.client();
    waits.ask("run_code", params.clone()).unwrap();
    shows("skillgate_run_queue_depth 1");
    // Who is refused at once has not waited.
    let full = gateway.client().call("run_code", params).unwrap();
    assert_eq!(full["error"]["data"]["kind"], "unavailable", "{full}");
    shows(r#"skillgate_runs_total{kind="code",status="not_started",error_type=""} 1"#);
    shows("skillgate_run_queue_seconds_count 1");
    waits.hang_up();
    shows("skillgate_run_queue_depth 0");
    shows("skillgate_run_queue_seconds_count 2");
    holds.hang_up();
    gateway.stop();
}

#[test]
fn nothing_of_it_is_public() {
    let house = House::new(Settings::default());
    let gateway = house.start();
    let mut client = gateway.client();
    for path in [
        "/metrics",
        "/metrics/",
        "/admin",
        "/admin/api/v1/",
        "/console/",
        "/debug",
    ] {
        assert_eq!(client.get(path).unwrap().status, 404, "{path}");
    }
    for path in ["/livez", "/livez?verbose", "/readyz", "/readyz?verbose"] {
        let answer = client.get(path).unwrap();
        assert_eq!(
            (answer.status, answer.text().as_str()),
            (200, "ok\n"),
            "{path}"
        );
    }
    // And nothing of the public one is the operator's: a page of another site cannot reach it either.
    let mut client = operator(&gateway);
    for (method, path) in [("POST", "/rpc"), ("GET", "/tools"), ("GET", "/")] {
        let answer = client.request(method, path, &[], b"").unwrap();
        assert_eq!(answer.status, 404, "{path}");
    }
    let foreign = client.request(
        "GET",
        "/metrics",
        &[("Origin", "https://evil.example")],
        b"",
    );
    assert_eq!(foreign.unwrap().status, 403);
    gateway.stop();
}

#[test]
fn a_trace_goes_through() {
    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    let house = House::new(Settings::default());
    let gateway = house.start();
    let mut client = gateway.client();
    let given = format!("00-{TRACE}-00f067aa0ba902b7-01");
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "run_code", "params": { "language": "python", "code": "def main(args):\n    return 1\n" } });
    let headers = [
        ("Content-Type", "application/json"),
        ("traceparent", given.as_str()),
    ];
    let body = body.to_string();
    let answer = client
        .request("POST", "/rpc", &headers, body.as_bytes())
        .unwrap();
    assert_eq!(answer.status, 200);
    let ours = answer.header("traceparent").unwrap().to_owned();
    assert!(
        ours.starts_with(&format!("00-{TRACE}-")) && ours.ends_with("-01"),
        "{ours}"
    );
    assert_ne!(ours, given, "a span of its own");
    let log = gateway.log();
    for event in ["run started", "run ended"] {
        let has = |line: &str| line.contains(event) && line.contains(TRACE);
        assert!(log.lines().any(has), "{event} in\n{log}");
    }
    for bad in [
        "",
        "00-x",
        &given.to_uppercase(),
        "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
    ] {
        let answer = client
            .request("GET", "/livez", &[("traceparent", bad)], b"")
            .unwrap();
        let ours = answer.header("traceparent").unwrap();
        assert!(
            answer.status == 200 && ours.len() == 55 && !ours.contains(TRACE),
            "{bad}"
        );
    }
    let headers = [
        ("Content-Type", "text/plain"),
        ("traceparent", given.as_str()),
    ];
    let stored = client.request("POST", "/blobs", &headers, b"x").unwrap();
    assert_eq!(stored.status, 201);
    // Without a trace of the caller's there is one of our own.
    client.result("list_skills", json!({})).unwrap();
    gateway.stop();

    let records = audit::lines(&audit::path(&house));
    let of = |kind: &str, method: &str| {
        let is = |record: &&Value| {
            record["kind"] == kind
                && (kind == "run" || record["input"]["request"]["method"] == method)
        };
        let record = records
            .iter()
            .find(is)
            .unwrap_or_else(|| panic!("no {kind} {method}"));
        ["trace_id", "span_id"].map(|name| record[name].as_str().unwrap().to_owned())
    };
    let [_, trace, span, _] = ours.split('-').collect::<Vec<_>>()[..] else {
        panic!("{ours}");
    };
    for (kind, method) in [("decision", "run_code"), ("run", "")] {
        assert_eq!(of(kind, method), [trace, span], "{kind}");
    }
    let [uploaded, span_of_upload] = of("decision", "create_blob");
    assert_eq!(uploaded, TRACE);
    assert_ne!(span_of_upload, span);
    let [own, _] = of("decision", "list_skills");
    assert!(own.len() == 32 && own != TRACE, "{own}");
}

/// Who follows the advice for the other listener opens the public one, and is refused as before.
#[test]
fn a_host_that_is_refused_names_the_key_of_its_listener() {
    let house = House::new(Settings::default());
    let gateway = house.start();
    for (address, key) in [
        (&gateway.address, "server.allowed_hosts"),
        (&gateway.admin, "admin.allowed_hosts"),
    ] {
        let mut client = Client::open(address).unwrap();
        client
            .write(b"GET /metrics HTTP/1.1\r\nHost: gate.internal\r\n\r\n")
            .unwrap();
        let answer = client.answer().unwrap();
        assert_eq!(answer.status, 400);
        let text = answer.text();
        assert!(text.contains(&format!("adds it to {key}")), "{text}");
    }
    gateway.stop();
}

/// A request may have a head of 16 KiB, and there are three lines in the log for one that is refused.
#[test]
fn nobody_writes_long_lines_to_the_log() {
    let house = House::new(Settings::default());
    let gateway = house.start();
    let long = "x".repeat(16_000);
    let path = format!("/{long}");
    for (method, path, host, status) in [
        ("GET", path.as_str(), gateway.address.as_str(), 404),
        (long.as_str(), "/rpc", gateway.address.as_str(), 405),
        ("GET", "/rpc", long.as_str(), 400),
    ] {
        let mut client = gateway.client();
        let head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        client.write(head.as_bytes()).unwrap();
        assert_eq!(client.answer().unwrap().status, status);
    }
    let log = gateway.log();
    let longest = log.lines().map(str::len).max().unwrap();
    assert!(longest < 2048, "{longest}");
    assert!(log.matches("request refused").count() >= 1, "{log}");
    gateway.stop();
}

//! Rate limits over HTTP: exact counts, per call, and what a caller is told.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

use crate::audit;
use crate::jwt;
use crate::policy;
use crate::support::MIB;
use crate::support::gateway::{Gateway, House, Settings};
use crate::support::http::{Answer, Client};

/// No call comes back while a test runs.
fn rule(name: &str, key: &str, burst: u64, more: &str) -> String {
    format!(
        "[[rate_limit]]\nname = \"{name}\"\nkey = {key}\nquota = 1\nper_s = 3600\nburst = {burst}\n{more}\n"
    )
}

fn start(rules: &[String]) -> (House, Gateway) {
    let rules = rules.concat();
    let house = House::new(Settings {
        extra: &rules,
        ..Settings::default()
    });
    let gateway = house.start();
    (house, gateway)
}

fn call(client: &mut Client, method: &str, params: Value) -> Answer {
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    client.post(body.to_string().as_bytes()).unwrap()
}

fn list(client: &mut Client) -> Answer {
    call(client, "list_skills", json!({ "limit": 1 }))
}

/// The error of a call, or null.
fn error(answer: &Answer) -> Value {
    answer.json().unwrap()["error"].take()
}

/// An operator may allow larger requests than a sandbox takes.
#[test]
fn a_run_that_is_too_large_for_the_sandbox_says_what_to_do() {
    let house = House::new(Settings {
        server: &format!("max_body_bytes = {}", 64 * MIB),
        ..Settings::default()
    });
    let gateway = house.start();
    let large = "x".repeat(25 * usize::try_from(MIB).unwrap());
    let params = json!({
        "language": "python", "code": "def main(args):\n    return 1\n", "args": { "text": large },
    });
    let refused = error(&call(&mut gateway.client(), "run_code", params));
    assert_eq!(refused["code"], -32006, "{refused}");
    assert_eq!(refused["data"]["kind"], "too_large", "{refused}");
    let said = refused["message"].as_str().unwrap();
    assert!(said.contains("input_blobs"), "{said}");
    let recorded = audit::lines(&audit::path(&house));
    let run = recorded.iter().find(|line| line["kind"] == "run").unwrap();
    assert_eq!(
        (&run["status"], &run["reason"]),
        (&json!("not_started"), &json!("too_large")),
        "{run}"
    );
    gateway.stop();
}

#[test]
fn a_body_that_stops_arriving_is_refused_wherever_it_goes() {
    let house = House::new(Settings {
        server: "body_timeout_ms = 300",
        ..Settings::default()
    });
    let gateway = house.start();
    for path in ["/rpc", "/blobs"] {
        let mut client = gateway.client();
        let headers = [
            ("Content-Type", "application/json"),
            ("Content-Length", "1000"),
        ];
        client.head("POST", path, &headers).unwrap();
        client.write(b"{").unwrap();
        let answer = client.answer().unwrap();
        let refused = error(&answer);
        assert_eq!(
            (answer.status, &refused["data"]["kind"], &refused["message"]),
            (
                408,
                &json!("timeout"),
                &json!("the body stopped arriving (server.body_timeout_ms)")
            ),
            "{path}"
        );
    }
    gateway.stop();
}

#[test]
fn exactly_the_burst_passes_under_64_parallel_clients() {
    const CLIENTS: usize = 64;
    const EACH: u64 = 30;
    const CALLER: u64 = 1000;
    const METHOD: u64 = 700;
    let (_house, gateway) = start(&[
        rule("caller", r#"["tenant", "subject"]"#, CALLER, ""),
        rule("method", r#"["subject", "method"]"#, METHOD, ""),
    ]);
    let [passed, in_band, refused] = [const { AtomicU64::new(0) }; 3];
    let all = Barrier::new(CLIENTS);
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut client = gateway.client();
                all.wait();
                for _ in 0..EACH {
                    let answer = list(&mut client);
                    let counter = match (answer.status, error(&answer)["code"].as_i64()) {
                        (200, None) => &passed,
                        (200, Some(-32005)) => &in_band,
                        (429, Some(-32005)) => &refused,
                        other => panic!("{other:?}: {}", answer.text()),
                    };
                    counter.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let [passed, in_band, refused] = [passed, in_band, refused].map(AtomicU64::into_inner);
    println!("{CLIENTS} clients: {passed} passed, {in_band} refused in band, {refused} with 429");
    assert_eq!(passed, METHOD);
    assert_eq!(in_band, CALLER - METHOD);
    assert_eq!(refused, CLIENTS as u64 * EACH - CALLER);
    gateway.stop();
}

#[test]
fn what_a_caller_is_told() {
    let (_house, gateway) = start(&[
        rule("per-subject", r#"["tenant", "subject"]"#, 2, ""),
        rule("per-address", r#"["ip"]"#, 50, ""),
    ]);
    let mut client = gateway.client();
    let answer = list(&mut client);
    assert_eq!(answer.status, 200);
    let all = |answer: &Answer, name: &str| -> Vec<String> {
        let named = answer.headers.iter().filter(|(n, _)| n == name);
        named.map(|(_, value)| value.clone()).collect()
    };
    assert_eq!(
        all(&answer, "ratelimit-policy"),
        [
            "\"per-subject\";q=1;w=3600;skillgate-burst=2",
            "\"per-address\";q=1;w=3600;skillgate-burst=50"
        ]
    );
    let left = all(&answer, "ratelimit");
    assert!(left[0].starts_with("\"per-subject\";r=1;t="), "{left:?}");
    assert!(left[1].starts_with("\"per-address\";r=49;t="), "{left:?}");

    // What is refused behind the limits has cost as much as what is answered, and says so.
    let refused = client.get("/nowhere").unwrap();
    assert_eq!(refused.status, 404);
    let left = all(&refused, "ratelimit");
    assert!(left[0].starts_with("\"per-subject\";r=0;t="), "{left:?}");
    assert!(left[1].starts_with("\"per-address\";r=48;t="), "{left:?}");
    assert_eq!(all(&refused, "ratelimit-policy").len(), 2);

    let refused = list(&mut client);
    assert_eq!(refused.status, 429);
    let error = error(&refused);
    assert_eq!(error["code"], -32005);
    assert_eq!(error["data"]["kind"], "rate_limited");
    assert!(refused.json().unwrap()["id"].is_null());
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("\"per-subject\" is reached"), "{message}");
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    let wait_ms = error["data"]["retry_after_ms"].as_u64().unwrap();
    assert!((3590..=3600).contains(&wait) && wait_ms.div_ceil(1000) == wait);
    let left = refused.header("ratelimit").unwrap();
    assert_eq!(left, format!("\"per-subject\";r=0;t={wait}"));

    // Counted before the body: what a refused request sends is not even looked at.
    assert_eq!(client.post(b"no JSON").unwrap().status, 429);
    // Every path is counted but those of whoever watches over the gateway.
    assert_eq!(client.get("/tools").unwrap().status, 429);
    for path in ["/livez", "/readyz"] {
        let answer = client.get(path).unwrap();
        assert_eq!((answer.status, answer.header("ratelimit")), (200, None));
    }
    gateway.stop();
}

/// Where to get a token is told to everybody: all who have none yet must not share what one of them can spend. Who is held
/// back is held back by his address.
#[test]
fn nobody_spends_the_quota_of_those_without_a_token() {
    const METADATA: &str = "/.well-known/oauth-protected-resource";
    let key = jwt::key();
    let (house, auth) = jwt::house_of(&key, &["default"]);
    let rules = [
        rule("caller", r#"["tenant", "subject"]"#, 2, ""),
        rule("apart", r#"["ip", "subject"]"#, 5, ""),
        rule("address", r#"["ip"]"#, 50, ""),
    ];
    house.configure(Settings {
        extra: &(auth + &rules.concat()),
        ..Settings::default()
    });
    let gateway = house.start();
    let mut client = gateway.client();
    let statuses: Vec<u16> = (0..6)
        .map(|_| client.get(METADATA).unwrap().status)
        .collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429]);
    let token = key.token(&jwt::claims("alice", "default")).unwrap();
    let mut asked = || jwt::with_token(&mut client, &token, jwt::LIST).status;
    assert_eq!([asked(), asked(), asked()], [200, 200, 429]);
    // Nobody's token is refused before a caller is counted; what is left of the address is told with it.
    let refused = jwt::with_token(&mut client, "no.such.token", jwt::LIST);
    assert_eq!(refused.status, 401);
    let left = refused.header("ratelimit").unwrap();
    assert!(left.starts_with("\"address\";r=40;t="), "{left}");
    gateway.stop();
}

#[test]
fn each_call_of_a_batch_counts() {
    let (_house, gateway) = start(&[
        rule("caller", r#"["subject"]"#, 10, ""),
        rule(
            "guide",
            r#"["subject"]"#,
            3,
            r#"methods = ["load_skills_protocol_guide"]"#,
        ),
    ]);
    let mut client = gateway.client();
    let guide = json!({ "jsonrpc": "2.0", "id": 1, "method": "load_skills_protocol_guide" });
    let list = json!({ "jsonrpc": "2.0", "id": 2, "method": "list_skills" });
    let mut batch = |items: Vec<&Value>| -> Vec<i64> {
        let answer = client.post(json!(items).to_string().as_bytes()).unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
        let answers = answer.json().unwrap();
        let codes = answers.as_array().unwrap().iter();
        codes
            .map(|one| one["error"]["code"].as_i64().unwrap_or(0))
            .collect()
    };
    // Three of the guide's; each refused one has cost a call of the caller's all the same, since it was made.
    assert_eq!(batch(vec![&guide; 5]), [0, 0, 0, -32005, -32005]);
    // Five are left for the caller.
    let codes = batch(vec![&list, &list, &guide, &list, &list, &list, &list]);
    assert_eq!(codes, [0, 0, -32005, 0, 0, -32005, -32005]);
    gateway.stop();
}

#[test]
fn a_call_that_is_not_allowed_costs_nothing_by_method() {
    let (_house, gateway) = start(&[
        rule(
            "runs",
            r#"["subject", "method"]"#,
            2,
            r#"methods = ["execute_skill"]"#,
        ),
        rule("skills", r#"["skill"]"#, 3, ""),
    ]);
    let mut client = gateway.client();
    let execute = |client: &mut Client, name: &str| {
        error(&call(
            client,
            "execute_skill",
            json!({ "name": name, "args": {} }),
        ))["data"]["kind"]
            .take()
    };
    for _ in 0..5 {
        assert_eq!(execute(&mut client, "no.such.skill"), "skill_not_found");
    }
    assert!(execute(&mut client, "hello.world").is_null());
    assert!(execute(&mut client, "hello.world").is_null());
    assert_eq!(execute(&mut client, "hello.world"), "rate_limited");
    // What the one rule refused has not cost the other: the skill's third call is still there.
    let describe = |client: &mut Client| {
        error(&call(
            client,
            "describe_skill",
            json!({ "name": "hello.world" }),
        ))
    };
    assert!(describe(&mut client).is_null());
    let refused = describe(&mut client);
    assert_eq!(refused["code"], -32005);
    assert!(refused["data"]["retry_after_ms"].as_u64().unwrap() > 0);
    gateway.stop();
}

#[test]
fn a_call_that_the_policy_denies_costs_nothing_after_the_decision() {
    let rules = [
        "[policy]\npath = \"policies\"\n".to_owned(),
        rule(
            "runs",
            r#"["subject"]"#,
            2,
            r#"methods = ["run_code", "execute_skill"]"#,
        ),
        rule("calls", r#"["tenant"]"#, 9, ""),
    ]
    .concat();
    let house = House::new(Settings {
        extra: &rules,
        ..Settings::default()
    });
    // It lets nobody run code of their own.
    policy::policy_in(&house, policy::narrow);
    let gateway = house.start();
    let mut client = gateway.client();
    let mut kind = |method: &str, params: Value| {
        let answer = call(&mut client, method, params);
        match answer.status {
            200 => error(&answer)["data"]["kind"]
                .as_str()
                .unwrap_or("ok")
                .to_owned(),
            status => status.to_string(),
        }
    };
    let code = json!({ "language": "python", "code": "def main(args):\n    return 1\n" });
    let skill = json!({ "name": "hello.world", "args": { "name": "you" } });
    for _ in 0..5 {
        assert_eq!(kind("run_code", code.clone()), "policy_denied");
    }
    for expected in ["ok", "ok", "rate_limited"] {
        assert_eq!(kind("execute_skill", skill.clone()), expected);
    }
    // A denied call stays one for whoever has no calls left: the decision comes first.
    assert_eq!(kind("run_code", code), "policy_denied");
    // Before the decision each of the nine has counted.
    assert_eq!(kind("execute_skill", skill), "429");
    gateway.stop();
}

#[test]
fn blobs_over_http_are_calls_too() {
    let (_house, gateway) = start(&[rule("blobs", r#"["method"]"#, 1, "")]);
    let mut client = gateway.client();
    let mut put = || {
        let headers = [("Content-Type", "text/plain")];
        client
            .request("POST", "/blobs", &headers, b"hello")
            .unwrap()
    };
    assert_eq!(put().status, 201);
    let refused = put();
    assert_eq!(refused.status, 429);
    assert_eq!(error(&refused)["data"]["kind"], "rate_limited");
    assert!(refused.header("retry-after").is_some());
    let limit = refused.header("ratelimit").unwrap();
    assert!(limit.starts_with("\"blobs\";r=0;t="), "{limit}");
    let policy = refused.header("ratelimit-policy").unwrap();
    assert!(policy.starts_with("\"blobs\";q=1;w="), "{policy}");
    gateway.stop();
}

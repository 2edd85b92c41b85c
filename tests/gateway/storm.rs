//! Thousands of broken requests: each is answered as the contract says, and the gateway does not care.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::support::gateway::{House, Settings};
use crate::support::http::Client;
use crate::support::random::Random;
use crate::{alone, count};

/// What `/rpc` may refuse a request with before it is JSON-RPC.
const REFUSALS: [u16; 5] = [400, 408, 413, 415, 431];
const GROWTH_KIB_MAX: u64 = 24 * 1024;

/// Valid requests to begin with. None starts a run that does anything: a run costs more than a thousand refusals.
fn valid() -> Vec<String> {
    let call = |method: &str, params: Value| json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params });
    let manifest = json!({ "name": "storm.one", "version": "1.0.0", "description": "d", "kind": "instruction", "namespace": "storm" });
    [
        call("list_skills", json!({ "limit": 10, "detail": "summary", "query": "csv", "cursor": null })),
        call("describe_skill", json!({ "name": "hello.world", "version": "0.1.0", "detail": "full" })),
        call("read_skill_file", json!({ "name": "hello.world", "path": "code/main.py" })),
        call("execute_skill", json!({ "name": "no.such.skill", "args": { "a": [1, 2.5, "x", null, true] }, "input_blobs": ["blob:aaaaaaaaaaaaaaaaaaaaaaaaaa"] })),
        call("run_code", json!({ "language": "cobol", "code": "def main(args):\n    return 1\n", "args": {} })),
        call("create_blob", json!({ "content": "\u{fc}\u{1f600} text \\ \" \u{0}", "kind": "text/plain" })),
        call("read_blob", json!({ "blob_id": "blob:aaaaaaaaaaaaaaaaaaaaaaaaaa", "mode": "sample_head", "max_bytes": 100 })),
        call("create_skill", json!({ "manifest": manifest, "skill_md": "# x\n", "files": [{ "path": "a/b.txt", "content": "eA==", "encoding": "base64" }] })),
        call("load_skills_protocol_guide", json!({})),
        json!([call("list_skills", json!({})), { "jsonrpc": "2.0", "method": "list_skills" }]),
    ]
    .iter()
    .map(Value::to_string)
    .collect()
}

/// Numbers, texts and fragments that parsers stumble over.
const STRANGE: [&str; 24] = [
    "1e999999",
    "-0",
    "18446744073709551616",
    "9223372036854775808",
    "-1",
    "0.1e-400",
    "1E400",
    "01",
    "NaN",
    "null",
    "true",
    "[]",
    "{}",
    "\"\"",
    "\"\\ud800\"",
    "\"\\u0000\"",
    "\"../../etc/passwd\"",
    "\"%2e%2e/\"",
    "\"a\\u202eb\"",
    "\"blob:\"",
    "{\"a\":1,\"a\":2}",
    "[[[[[[]]]]]]",
    "\u{feff}",
    "\"\\uDC00\\uD800\"",
];

fn mutated(valid: &[String], random: &mut Random) -> Vec<u8> {
    let mut text = valid[random.below(valid.len() as u64) as usize]
        .clone()
        .into_bytes();
    match random.below(12) {
        // Some bytes are others.
        0..=2 => {
            for _ in 0..=random.below(3) {
                let at = random.below(text.len() as u64) as usize;
                // Mostly such that the text stays one: what is no JSON at all is refused at the first step.
                text[at] = match random.below(4) {
                    0 => random.next() as u8,
                    _ => b'0' + (random.below(75) as u8),
                };
            }
        }
        // A piece is missing, twice there, or the rest is.
        3 => {
            let at = random.below(text.len() as u64) as usize;
            let len = random.below(40) as usize;
            text.drain(at..(at + len).min(text.len()));
        }
        4 => {
            let at = random.below(text.len() as u64) as usize;
            let end = (at + random.below(60) as usize).min(text.len());
            let piece = text[at..end].to_vec();
            text.splice(at..at, piece);
        }
        5 => text.truncate(random.below(text.len() as u64) as usize),
        // A value is another.
        6..=8 => {
            let values: Vec<usize> = text
                .iter()
                .enumerate()
                .filter(|(_, b)| **b == b':')
                .map(|(i, _)| i + 1)
                .collect();
            let at = values[random.below(values.len() as u64) as usize];
            let end = text[at..]
                .iter()
                .position(|b| b",}".contains(b))
                .map_or(text.len(), |i| at + i);
            let strange = STRANGE[random.below(STRANGE.len() as u64) as usize];
            text.splice(at..end, strange.bytes());
        }
        // A member twice.
        9 | 10 => {
            let members = [
                r#""jsonrpc":"2.0","#,
                r#""id":7,"#,
                r#""method":"list_skills","#,
                r#""params":{},"#,
                r#""limit":1,"limit":1,"#,
                r#""name":"x","#,
            ];
            let at: Vec<usize> = text
                .iter()
                .enumerate()
                .filter(|(_, b)| **b == b'{')
                .map(|(i, _)| i + 1)
                .collect();
            let at = at[random.below(at.len() as u64) as usize];
            let member = members[random.below(members.len() as u64) as usize];
            text.splice(at..at, member.bytes());
        }
        // Deep, as a value or as the whole.
        _ => {
            let depth = 1 << random.below(15);
            let (open, close) = [("[", "]"), ("{\"a\":", "}")][random.below(2) as usize];
            let mut deep = open.repeat(depth);
            deep.push('1');
            deep.push_str(&close.repeat(depth));
            text = match random.below(3) {
                0 => deep.into_bytes(),
                1 => format!(r#"{{"jsonrpc":"2.0","id":1,"method":"execute_skill","params":{{"name":"no.such.skill","args":{{"a":{deep}}}}}}}"#).into_bytes(),
                _ => format!(r#"{{"jsonrpc":"2.0","id":{deep},"method":"list_skills"}}"#).into_bytes(),
            };
        }
    }
    text
}

/// Why this is no answer that the contract knows.
fn wrong(reply: &Value) -> Option<String> {
    let known = [-32700, -32600, -32601, -32602, -32004, -32006, -32007];
    let Some(object) = reply.as_object() else {
        return Some("not an object".into());
    };
    if object.get("jsonrpc") != Some(&json!("2.0")) || !object.contains_key("id") {
        return Some("no jsonrpc or no id".into());
    }
    let error = match (object.get("result"), object.get("error")) {
        (Some(_), None) => return None,
        (None, Some(error)) => error,
        _ => return Some("not one of result and error".into()),
    };
    let code = error["code"].as_i64()?;
    let texts = [
        &error["message"],
        &error["data"]["kind"],
        &error["data"]["request_id"],
    ];
    if !known.contains(&code) || texts.iter().any(|text| !text.is_string()) {
        return Some("not an error of the contract".into());
    }
    // Where the code is, and where the store is, is nobody's business.
    let text = error.to_string();
    [".rs:", "/tmp/", "panicked", "Error {", "state/", "store/"]
        .iter()
        .find(|leak| text.contains(**leak) && !text.contains("etc/passwd"))
        .map(|leak| format!("it leaks {leak:?}"))
}

#[test]
fn broken_requests_are_answered() {
    let _alone = alone();
    let each = count(800, 20_000);
    let mut random = Random::seeded("bad input");
    let house = House::new(Settings {
        store: ", fsync = false",
        ..Settings::default()
    });
    let gateway = house.start();
    let valid = valid();
    let storm = |each: u64, mut random: Random| {
        let mut seen: BTreeMap<String, u64> = BTreeMap::new();
        let mut client = gateway.client();
        for _ in 0..each {
            let body = mutated(&valid, &mut random);
            let answer = client.post(&body).unwrap_or_else(|error| {
                panic!(
                    "no answer ({error}) to {}\n{}",
                    String::from_utf8_lossy(&body),
                    gateway.said()
                )
            });
            let sent = || format!("{} to {}", answer.text(), String::from_utf8_lossy(&body));
            let what = match answer.status {
                204 => "204".to_owned(),
                200 => {
                    let reply = answer.json().unwrap();
                    let replies = reply.as_array().cloned().unwrap_or_else(|| vec![reply]);
                    assert!(!replies.is_empty(), "{}", sent());
                    for reply in &replies {
                        if let Some(why) = wrong(reply) {
                            panic!("{why}: {}", sent());
                        }
                    }
                    let error = &replies[0]["error"];
                    if error.is_null() {
                        "result".to_owned()
                    } else {
                        format!(
                            "{} {}",
                            error["code"],
                            error["data"]["kind"].as_str().unwrap_or("")
                        )
                    }
                }
                status if REFUSALS.contains(&status) => {
                    let reply = answer.json().unwrap();
                    assert!(
                        reply["id"].is_null() && wrong(&reply).is_none(),
                        "{}",
                        sent()
                    );
                    format!("HTTP {status}")
                }
                status => panic!("HTTP {status}: {}", sent()),
            };
            *seen.entry(what).or_default() += 1;
            if answer.header("connection") == Some("close") {
                client = gateway.client();
            }
        }
        seen
    };
    storm(each / 4, random.fork());
    let before = gateway.rss_kib();
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let random = random.fork();
                scope.spawn(|| storm(each, random))
            })
            .collect();
        for thread in threads {
            for (what, n) in thread.join().unwrap() {
                *seen.entry(what).or_default() += n;
            }
        }
    });
    let after = gateway.rss_kib();
    println!(
        "{} broken requests on 4 connections; memory {before} KiB before, {after} KiB after",
        4 * each
    );
    for (what, n) in &seen {
        println!("  {n:>7} {what}");
    }
    assert!(after <= before + GROWTH_KIB_MAX, "memory grew");
    assert!(seen.len() >= 5, "they were broken in many ways: {seen:?}");
    assert!(!gateway.log().contains("panicked"), "{}", gateway.said());
    let mut client: Client = gateway.client();
    let params = json!({ "name": "hello.world", "args": {} });
    assert_eq!(
        client.result("execute_skill", params).unwrap()["status"],
        "completed"
    );
    gateway.stop();
}

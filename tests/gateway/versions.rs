//! Ten thousand versions: the last page of a listing is as quick as the first.

use std::time::Instant;

use serde_json::{Value, json};

use crate::support::gateway::{House, Settings};
use crate::support::{median, quantile};
use crate::{alone, count};

/// Versions of each skill.
const EACH: u64 = 50;
const PAGE: u64 = 50;
/// The listing is walked so many times; a page counts with its best time, so that a busy machine measures the gateway.
const WALKS: usize = 5;

fn name(number: u64) -> String {
    format!("many.s{:04}", number / EACH)
}

fn version(number: u64) -> String {
    format!("0.{}.0", number % EACH)
}

#[test]
fn ten_thousand_versions() {
    let _alone = alone();
    let versions = count(1500, 10_000);
    let house = House::new(Settings {
        store: ", fsync = false",
        ..Settings::default()
    });
    let gateway = house.start();
    let mut client = gateway.client();
    let began = Instant::now();
    // Twenty at a time: that many calls fit into a batch.
    for first in (0..versions).step_by(20) {
        let calls: Vec<Value> = (first..versions.min(first + 20))
            .map(|number| {
                let params = json!({
                    "manifest": { "name": name(number), "version": version(number), "description": "One of many.", "kind": "instruction", "namespace": "many" },
                    "skill_md": "# One of many\n",
                });
                json!({ "jsonrpc": "2.0", "id": number, "method": "create_skill", "params": params })
            })
            .collect();
        let answer = client.post(json!(calls).to_string().as_bytes()).unwrap();
        for reply in answer.json().unwrap().as_array().unwrap() {
            assert!(reply["result"]["name"].is_string(), "{reply}");
        }
    }
    println!(
        "{versions} versions made, {:.0} per second",
        versions as f64 / began.elapsed().as_secs_f64()
    );

    let mut best: Vec<f64> = Vec::new();
    let mut walks: Vec<Vec<Value>> = Vec::new();
    for _ in 0..WALKS {
        let mut skills = Vec::new();
        let mut cursor = Value::Null;
        for page in 0.. {
            let began = Instant::now();
            let mut result = client
                .result("list_skills", json!({ "limit": PAGE, "cursor": cursor }))
                .unwrap();
            let ms = began.elapsed().as_secs_f64() * 1000.0;
            match best.get_mut(page) {
                Some(known) => *known = known.min(ms),
                None => best.push(ms),
            }
            cursor = result["next_cursor"].take();
            let Some(list) = result["skills"].as_array_mut() else {
                panic!("{result}");
            };
            assert!(
                list.len() as u64 == PAGE || cursor.is_null(),
                "a short page before the end"
            );
            skills.append(list);
            if cursor.is_null() {
                break;
            }
        }
        walks.push(skills);
    }
    assert!(
        walks.iter().all(|walk| *walk == walks[0]),
        "each walk is the same"
    );

    let key = |skill: &Value| {
        let text = |key: &str| skill[key].as_str().unwrap().to_owned();
        let version: Vec<u64> = text("version")
            .split('.')
            .map(|part| part.parse().unwrap())
            .collect();
        // Versions go down.
        (
            text("namespace"),
            text("name"),
            version
                .iter()
                .map(|part| u64::MAX - part)
                .collect::<Vec<_>>(),
        )
    };
    let keys: Vec<_> = walks[0].iter().map(key).collect();
    assert!(
        keys.windows(2).all(|pair| pair[0] < pair[1]),
        "in order, each once"
    );
    let ours = walks[0]
        .iter()
        .filter(|skill| skill["namespace"] == "many")
        .count();
    assert_eq!(ours as u64, versions, "complete");

    let part = (best.len() / 10).max(3);
    // The first request of a walk pays for nothing that a later one does not.
    let (early, late) = (&best[..part], &best[best.len() - 1 - part..best.len() - 1]);
    let mut sorted = best.clone();
    sorted.sort_by(f64::total_cmp);
    println!(
        "{} pages of {PAGE}: the first {part} take {:.2} ms (median), the last {:.2} ms; the slowest of all {:.2} ms, p99 {:.2} ms",
        best.len(),
        median(early),
        median(late),
        sorted[sorted.len() - 1],
        quantile(&sorted, 0.99),
    );
    assert!(
        median(late) <= 2.0 * median(early),
        "late pages are slower: {best:?}"
    );

    gateway.stop();
    let began = Instant::now();
    let gateway = house.start();
    println!(
        "with them in the store a start takes {} ms",
        began.elapsed().as_millis()
    );
    let page = gateway
        .client()
        .result("list_skills", json!({ "namespace": "many", "limit": 1 }))
        .unwrap();
    assert_eq!(page["skills"][0]["name"], name(0), "{page}");
    gateway.stop();
}

//! SIGKILL at any moment: what was acknowledged is there, what was not is there whole or not at all, and nothing runs on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::support::gateway::{Gateway, House, Settings};
use crate::support::http::Client;
use crate::support::random::Random;
use crate::support::{eventually, look};
use crate::{alone, count};

/// What clients were told is stored.
#[derive(Debug, Default)]
struct Acknowledged {
    /// id → digest of its content.
    blobs: BTreeMap<String, String>,
    /// (name, version) → content of its `code/main.py`.
    skills: BTreeMap<(String, String), String>,
    runs: u64,
}

fn digest(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

fn source(name: &str, version: &str) -> String {
    format!(
        "def main(args):\n    return {name:?}, {version:?}, {:?}\n",
        "x".repeat(2000)
    )
}

/// Works until the gateway does not answer any more.
fn client(
    kind: usize,
    round: u64,
    gateway: &Gateway,
    random: &mut Random,
    told: &Mutex<Acknowledged>,
) -> std::io::Result<()> {
    let mut client = Client::open(&gateway.address)?;
    for step in 0.. {
        match kind {
            0 | 1 => small_blob(&mut client, random, told)?,
            2 => streamed_blob(&mut client, random, told)?,
            3 => skill(&mut client, kind, round, step, told)?,
            _ => run(&mut client, kind as u64 + step, told)?,
        }
    }
    Ok(())
}

fn small_blob(
    client: &mut Client,
    random: &mut Random,
    told: &Mutex<Acknowledged>,
) -> std::io::Result<()> {
    let len = 1 + random.below(3000) as usize;
    let content = hex::encode(random.bytes(len));
    let result = client.result(
        "create_blob",
        json!({ "content": content, "kind": "text/plain" }),
    )?;
    let id = result["blob_id"].as_str().unwrap().to_owned();
    told.lock()
        .unwrap()
        .blobs
        .insert(id, digest(content.as_bytes()));
    Ok(())
}

fn streamed_blob(
    client: &mut Client,
    random: &mut Random,
    told: &Mutex<Acknowledged>,
) -> std::io::Result<()> {
    // Some are larger than the store's chunks of a mebibyte.
    let most = [300_000, 1_500_000][random.below(2) as usize];
    let len = 1 + random.below(most) as usize;
    let content = random.bytes(len);
    let kind = [("Content-Type", "application/octet-stream")];
    let answer = client.request("POST", "/blobs", &kind, &content)?;
    assert_eq!(answer.status, 201, "{}", answer.text());
    let id = answer.json()?["blob_id"].as_str().unwrap().to_owned();
    told.lock().unwrap().blobs.insert(id, digest(&content));
    Ok(())
}

fn skill(
    client: &mut Client,
    kind: usize,
    round: u64,
    step: u64,
    told: &Mutex<Acknowledged>,
) -> std::io::Result<()> {
    let (name, version) = (format!("crash.s{kind}"), format!("{round}.{step}.0"));
    let code = source(&name, &version);
    let params = json!({
        "manifest": {
            "name": name, "version": version, "description": "Survives.", "kind": "action", "namespace": "crash",
            "runtime": { "language": "python", "entrypoint": "code/main.py", "export": "main" },
        },
        "skill_md": format!("---\nname: {name}\n---\n\n# {version}\n"),
        "files": [{ "path": "code/main.py", "content": code }, { "path": "resources/a.txt", "content": version }],
    });
    let result = client.result("create_skill", params)?;
    assert_eq!(result["version"], version.as_str(), "{result}");
    told.lock().unwrap().skills.insert((name, version), code);
    Ok(())
}

/// Some end by themselves, some are under way whenever the end comes; some store.
fn run(client: &mut Client, step: u64, told: &Mutex<Acknowledged>) -> std::io::Result<()> {
    let code = match step % 3 {
        0 => {
            "from runtime import blobs\ndef main(args):\n    return blobs.write_text('from a run', kind='text/plain')\n"
        }
        1 => {
            "import os, time\ndef main(args):\n    if os.fork() == 0:\n        os.setsid()\n        time.sleep(1000)\n    time.sleep(1000)\n"
        }
        _ => "def main(args):\n    return 1\n",
    };
    let result = client.run(code, json!({}))?;
    let mut told = told.lock().unwrap();
    told.runs += 1;
    for id in result["output_blobs"].as_array().into_iter().flatten() {
        told.blobs
            .insert(id.as_str().unwrap().to_owned(), digest(b"from a run"));
    }
    Ok(())
}

/// Everything that is visible is whole, and nothing is missing that `told` names; what is in `seen` is not looked
/// at again, and the others come into it. How much there is.
fn check(
    house: &House,
    gateway: &Gateway,
    told: &Acknowledged,
    seen: &mut BTreeSet<String>,
) -> (usize, usize) {
    let mut client = gateway.client();
    for (id, expected) in &told.blobs {
        let answer = client.get(&format!("/blobs/{id}")).unwrap();
        assert_eq!(
            answer.status,
            200,
            "the acknowledged {id}: {}",
            answer.text()
        );
        assert_eq!(&digest(&answer.body), expected, "the content of {id}");
    }
    // The store's own directories: a blob that nobody was told of is whole all the same.
    let stored = house.blobs();
    for path in &stored {
        let id = format!("blob:{}", path.file_name().unwrap().to_string_lossy());
        if seen.insert(id.clone()) && !told.blobs.contains_key(&id) {
            let answer = client.get(&format!("/blobs/{id}")).unwrap();
            let whole = format!("\"{}\"", digest(&answer.body));
            assert_eq!(
                (answer.status, answer.header("etag")),
                (200, Some(whole.as_str())),
                "{id}"
            );
        }
    }
    let mut listed = BTreeSet::new();
    let mut cursor = Value::Null;
    loop {
        let page = client
            .result(
                "list_skills",
                json!({ "namespace": "crash", "limit": 500, "cursor": cursor }),
            )
            .unwrap();
        for skill in page["skills"].as_array().unwrap() {
            let text = |key: &str| skill[key].as_str().unwrap().to_owned();
            assert!(
                listed.insert((text("name"), text("version"))),
                "{skill} is listed twice"
            );
        }
        cursor = page["next_cursor"].clone();
        if cursor.is_null() {
            break;
        }
    }
    for skill in told.skills.keys() {
        assert!(
            listed.contains(skill),
            "the acknowledged {skill:?} is not listed"
        );
    }
    for (name, version) in &listed {
        if !seen.insert(format!("{name} {version}")) {
            continue;
        }
        let of = |path: &str| {
            let params = json!({ "name": name, "version": version, "path": path });
            gateway.client().result("read_skill_file", params).unwrap()["content"].clone()
        };
        assert_eq!(
            of("code/main.py"),
            source(name, version).as_str(),
            "{name} {version}"
        );
        assert_eq!(of("resources/a.txt"), version.as_str(), "{name} {version}");
    }
    (stored.len(), listed.len())
}

#[test]
fn kill_minus_9_loses_nothing() {
    let _alone = alone();
    let rounds = count(10, 100);
    let mut random = Random::seeded("kill -9");
    let house = House::new(Settings::default());
    let mut all = Acknowledged::default();
    let mut gone_ms: Vec<u128> = Vec::new();
    let mut in_flight = 0;
    let mut unfinished = 0;
    let mut seen = BTreeSet::new();
    for round in 0..rounds {
        let mut gateway = house.start();
        assert_eq!(
            house.unfinished(),
            0,
            "what was half-built is swept by the start"
        );
        let instance = gateway.instance();
        // Those of interpreters that wait come and go.
        let lives = |part: &str| {
            let mut found = look::groups(part);
            found.retain(|g| {
                !g.file_name()
                    .is_some_and(|n| n.to_string_lossy().starts_with("run-"))
            });
            found
        };
        let own = lives(&gateway.group());
        let found = lives(&instance);
        assert_eq!(
            found, own,
            "groups of the lives before are swept by the start"
        );

        let told = Mutex::new(Acknowledged::default());
        let moment = Duration::from_micros(random.below(700_000));
        let killed = AtomicBool::new(false);
        let mut watched = Vec::new();
        std::thread::scope(|scope| {
            for kind in 0..7 {
                let mut random = random.fork();
                let (gateway, told, killed) = (&gateway, &told, &killed);
                scope.spawn(move || {
                    let end = client(kind, round, gateway, &mut random, told);
                    assert!(
                        killed.load(Ordering::SeqCst),
                        "client {kind} before the kill: {end:?}: {}",
                        gateway.said()
                    );
                });
            }
            let began = Instant::now();
            while began.elapsed() < moment {
                std::thread::sleep(
                    Duration::from_millis(1).min(moment - began.elapsed().min(moment)),
                );
            }
            watched = look::descendants(gateway.launcher().pid);
            watched.push(gateway.launcher().clone());
            killed.store(true, Ordering::SeqCst);
            gateway.signal("KILL");
        });
        let began = Instant::now();
        gateway.kill();
        in_flight += watched.len() - 1;
        unfinished += house.unfinished();
        eventually(
            "the launcher and all inside are gone",
            Duration::from_secs(5),
            || {
                watched.iter().all(|process| !process.lives())
                    && look::members(&instance).is_empty()
            },
        );
        gone_ms.push(began.elapsed().as_millis());

        let told = told.into_inner().unwrap();
        let gateway = house.start();
        check(&house, &gateway, &told, &mut seen);
        all.blobs.extend(told.blobs);
        all.skills.extend(told.skills);
        all.runs += told.runs;
        gateway.stop();
    }
    let gateway = house.start();
    let (blobs, skills) = check(&house, &gateway, &all, &mut BTreeSet::new());
    gone_ms.sort_unstable();
    println!(
        "{rounds} times killed: {} blobs, {} skills and {} runs were acknowledged, {blobs} blobs and {skills} skills are there, all whole",
        all.blobs.len(),
        all.skills.len(),
        all.runs
    );
    println!(
        "  processes of runs at the kills: {in_flight}, all gone after {} ms (median), {} ms at most; paths half-built in the store: {unfinished}, all swept",
        gone_ms[gone_ms.len() / 2],
        gone_ms[gone_ms.len() - 1]
    );
    assert!(
        !all.blobs.is_empty() && !all.skills.is_empty(),
        "the clients did something"
    );
    gateway.stop();
}

//! Policies over HTTP and on the command line: directories of rules that say something else than the bundled one.

mod authors;
mod ceilings;
mod shadow;
mod twice;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::alone;
use crate::support::gateway::{House, Settings, must_not_start};
use crate::support::http::Client;

fn bundled() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("policies")
}

/// A copy of the bundled policy in the house, its data changed. Its tests are about the data as it was.
pub(crate) fn policy_in(house: &House, change: impl FnOnce(&mut Value)) -> PathBuf {
    let policies = house.path().join("policies");
    for part in [
        "skills/authz",
        "skills/custom",
        "skills/lib",
        "skills/config",
    ] {
        fs::create_dir_all(policies.join(part)).unwrap();
        for entry in fs::read_dir(bundled().join(part)).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), policies.join(part).join(entry.file_name())).unwrap();
        }
    }
    fs::copy(bundled().join(".manifest"), policies.join(".manifest")).unwrap();
    let file = policies.join("skills/config/data.json");
    let mut data: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    change(&mut data);
    fs::write(file, data.to_string()).unwrap();
    policies
}

fn house(policy: &str) -> House {
    House::new(Settings {
        extra: policy,
        ..Settings::default()
    })
}

/// The local administrator, made a reader of two namespaces who may run what is in them.
pub(crate) fn narrow(data: &mut Value) {
    data["roles"]["admin"] = json!({
        "actions": ["skills:list", "skills:read", "skills:execute", "guide:read", "blobs:write", "blobs:read"],
        "namespaces": ["hello", "skills"],
    });
    data["limits"]["max_blob_bytes"] = 1000.into();
}

pub(crate) fn skillgate(house: &House, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_skillgate"));
    command.args(args);
    house.clean(&mut command);
    command.output().unwrap()
}

pub(crate) fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// The error of a call, less what names the request.
fn error(client: &mut Client, method: &str, params: Value) -> Value {
    let mut reply = client.call(method, params).unwrap();
    let error = &mut reply["error"];
    assert!(error.is_object(), "{method} is refused");
    if let Some(data) = error["data"].as_object_mut() {
        data.remove("request_id");
    }
    error.take()
}

/// A skill that is there and may not be known ([`narrow`]), beside one that is not there, in everything that could tell.
pub(crate) fn hidden_is_missing(client: &mut Client, hidden: &str) {
    let unknown = "csv.nothing";
    let long = json!({ "a": "x".repeat(65_536) });
    let of_all = |mounts: &[&str]| json!({ "language": "python", "code": "def main(args): return {}", "mount_skills": mounts });
    for (method, params) in [
        ("describe_skill", json!({ "name": "NAME" })),
        (
            "describe_skill",
            json!({ "name": "NAME", "version": "9.9.9" }),
        ),
        (
            "describe_skill",
            json!({ "name": "NAME", "version": "0.1.0", "detail": "full" }),
        ),
        (
            "read_skill_file",
            json!({ "name": "NAME", "path": "SKILL.md" }),
        ),
        (
            "read_skill_file",
            json!({ "name": "NAME", "path": "no/such/file" }),
        ),
        ("execute_skill", json!({ "name": "NAME", "args": {} })),
        (
            "execute_skill",
            json!({ "name": "NAME", "args": {}, "input_blobs": ["blob:00000000000000000000000000000000"] }),
        ),
        (
            "run_code",
            json!({ "language": "python", "code": "def main(args): return {}", "mount_skills": ["NAME"] }),
        ),
        (
            "run_code",
            json!({ "language": "python", "code": "def main(args): return {}", "mount_skills": ["NAME", "NAME"] }),
        ),
        (
            "run_code",
            json!({ "language": "python", "code": "def main(args): return {}", "mount_skills": ["NAME@9.9.9"] }),
        ),
        ("execute_skill", json!({ "name": "NAME", "args": long })),
        ("run_code", of_all(&["NAME", "zz.none"])),
        ("run_code", of_all(&["NAME", "zz.none", "NAME"])),
        ("run_code", of_all(&["hello.world", "NAME", "zz.none"])),
        ("run_code", of_all(&["hello.world@9.9.9", "NAME"])),
    ] {
        let of = |name: &str| {
            serde_json::from_str::<Value>(&params.to_string().replace("NAME", name)).unwrap()
        };
        let of_hidden = error(client, method, of(hidden));
        let missing = error(client, method, of(unknown));
        assert_eq!(
            of_hidden["data"]["kind"], "skill_not_found",
            "{method}: {of_hidden}"
        );
        assert_eq!(
            of_hidden.to_string().replace(hidden, unknown),
            missing.to_string(),
            "{method} {params}"
        );
    }
}

#[test]
fn a_directory_of_rules_decides_what_is_done_and_what_is_seen() {
    let _alone = alone();
    let house = house("[policy]\npath = \"policies\"\ninclude_args = [\"csv.stats\"]");
    policy_in(&house, narrow);
    let gateway = house.start();
    let mut client = gateway.client();

    let page = client
        .result("list_skills", json!({ "limit": 100 }))
        .unwrap();
    let names: Vec<&str> = page["skills"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|skill| skill["name"].as_str())
        .collect();
    assert_eq!(
        names,
        ["hello.world", "skills.authoring", "skills.protocol.guide"]
    );
    let hello = client
        .result(
            "execute_skill",
            json!({ "name": "hello.world", "args": {} }),
        )
        .unwrap();
    assert_eq!(hello["status"], "completed", "{hello}");

    hidden_is_missing(&mut client, "csv.stats");
    let unknown = "csv.nothing";
    let of_all = |mounts: &[&str]| json!({ "language": "python", "code": "def main(args): return {}", "mount_skills": mounts });
    // What is wrong with a request by itself is wrong whatever there is.
    let many: serde_json::Map<_, _> = (0..1001).map(|n| (n.to_string(), json!(0))).collect();
    let mut crowded = of_all(&["NAME"]);
    crowded["args"] = json!(many);
    for (method, params, pointer) in [
        (
            "execute_skill",
            json!({ "name": "NAME", "args": many }),
            "/args",
        ),
        ("run_code", crowded, "/args"),
        (
            "run_code",
            of_all(&["NAME", "Bad Name!"]),
            "/mount_skills/1",
        ),
    ] {
        for name in ["csv.stats", unknown] {
            let params = params.to_string().replace("NAME", name);
            let bad = error(&mut client, method, serde_json::from_str(&params).unwrap());
            assert_eq!(bad["data"]["kind"], "invalid_params", "{method}: {bad}");
            assert_eq!(bad["data"]["pointer"], pointer, "{bad}");
        }
    }

    let denied = error(
        &mut client,
        "run_code",
        json!({ "language": "python", "code": "def main(args): return {}" }),
    );
    assert_eq!(
        (&denied["code"], &denied["data"]["kind"]),
        (&json!(-32003), &json!("policy_denied"))
    );
    assert_eq!(denied["data"]["reasons"][0]["code"], "rbac.no_permit");
    assert!(
        denied["message"]
            .as_str()
            .unwrap()
            .contains("ask an administrator"),
        "{denied}"
    );
    let decision = denied["data"]["decision_id"].as_str().unwrap();

    // Why, from the log.
    let explained = said(&skillgate(
        &house,
        &["policy", "explain", decision, "--config", "skillgate.toml"],
    ));
    for part in [
        "denied",
        "run_code by local of tenant default",
        "the same bundle",
        "FAILS  data.skills.authz.permitted",
        "holds  data.skills.authz.tenant_ok",
    ] {
        assert!(explained.contains(part), "{part}: {explained}");
    }
    // A run is found by its own id.
    let run = hello["run_id"].as_str().unwrap();
    let explained = skillgate(
        &house,
        &["policy", "explain", run, "--config", "skillgate.toml"],
    );
    let explained_run = said(&explained);
    assert!(explained.status.success(), "{explained_run}");
    // As `approved_digests` takes it.
    assert!(
        explained_run.contains("  hello.world is sha256:"),
        "{explained_run}"
    );
    // What the bundled policy would have said.
    let replay = skillgate(
        &house,
        &[
            "policy",
            "simulate",
            "--against",
            bundled().to_str().unwrap(),
            "--config",
            "skillgate.toml",
        ],
    );
    assert_eq!(replay.status.code(), Some(1), "{}", said(&replay));
    assert!(
        said(&replay).contains(&format!("{decision} run_code local")),
        "{}",
        said(&replay)
    );
    let replay = skillgate(
        &house,
        &[
            "policy",
            "simulate",
            "--against",
            "policies",
            "--config",
            "skillgate.toml",
            "--output",
            "json",
        ],
    );
    let replay: Value = serde_json::from_slice(&replay.stdout).unwrap();
    assert!(
        replay["replay"]["replayed"].as_u64() > Some(10) && replay["replay"]["flips"] == json!([]),
        "{replay}"
    );
    gateway.stop();
}

#[test]
fn ceilings_hold_where_the_size_is_known_and_where_it_is_not() {
    let _alone = alone();
    let house = house("[policy]\npath = \"policies\"\nexposure = \"codes\"");
    policy_in(&house, narrow);
    let gateway = house.start();
    let mut client = gateway.client();
    let denied = error(
        &mut client,
        "create_blob",
        json!({ "content": "x".repeat(1001), "kind": "text/plain" }),
    );
    assert_eq!(
        denied["data"]["reasons"],
        json!([{ "code": "blob.too_large" }]),
        "{denied}"
    );
    assert!(
        client
            .result(
                "create_blob",
                json!({ "content": "x".repeat(1000), "kind": "text/plain" })
            )
            .is_ok()
    );
    let answer = client
        .request(
            "POST",
            "/blobs",
            &[("Content-Type", "text/plain")],
            &[b'x'; 1001],
        )
        .unwrap();
    assert_eq!(answer.status, 403, "{}", answer.text());
    // In chunks nobody knows before: the permit's ceiling ends it.
    let mut client = gateway.client();
    client
        .head(
            "POST",
            "/blobs",
            &[
                ("Content-Type", "text/plain"),
                ("Transfer-Encoding", "chunked"),
            ],
        )
        .unwrap();
    client
        .write(format!("7d0\r\n{}\r\n0\r\n\r\n", "x".repeat(2000)).as_bytes())
        .unwrap();
    let answer = client.answer().unwrap();
    assert_eq!(answer.status, 413, "{}", answer.text());
    gateway.stop();
}

#[test]
fn a_policy_that_is_no_good_is_refused_at_the_start_with_its_place() {
    let _alone = alone();
    let house = house("[policy]\npath = \"policies\"");
    let policies = policy_in(&house, |_| {});
    let custom = policies.join("skills/custom/more.rego");
    let deep = format!(
        "package skills.custom\n\nx := {}1{}\n",
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    for (text, why) in [
        ("package skills.custom\n\ndeny contains x if {", "more.rego"),
        (
            "package skills.custom\n\ndeny contains {\"code\": \"x\"} if http.send({}).x",
            "more.rego:3",
        ),
        (&deep, "more.rego:3: brackets are nested deeper"),
        (
            "package skills.authz\n\nallow if true",
            "an empty input is allowed",
        ),
    ] {
        fs::write(&custom, text).unwrap();
        let began = Instant::now();
        let (code, said) = must_not_start(house.command());
        let took = began.elapsed();
        assert_eq!(code, Some(3), "{said}");
        assert!(said.contains(why) && said.contains("policy.path"), "{said}");
        assert!(took < Duration::from_secs(20), "{took:?}");
    }
    fs::remove_file(custom).unwrap();

    // Keys are configured, nothing is signed.
    let unsigned = "[policy]\npath = \"policies\"\n[[policy.keys]]\nid = \"k\"\nalgorithm = \"ES256\"\nfile = \"key.pem\"";
    house.configure(Settings {
        extra: unsigned,
        ..Settings::default()
    });
    let (code, said) = must_not_start(house.command());
    assert!(code == Some(3) && said.contains("key.pem"), "{said}");
    fs::write(house.path().join("key.pem"), "-----BEGIN PUBLIC KEY-----\nMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEEVs/o5+uQbTjL3chynL4wXgUg2R9\nq9UU8I5mEovUf86QZ7kOBIjJwqnzD1omageEHWwHdBO6B+dFabmdT9POxg==\n-----END PUBLIC KEY-----\n").unwrap();
    let (code, said) = must_not_start(house.command());
    assert!(
        code == Some(3) && said.contains(".signatures.json: is missing"),
        "{said}"
    );

    // A second life with an older bundle.
    let numbered = |sequence: u64| {
        let manifest = json!({ "revision": format!("r{sequence}"), "roots": ["skills"], "metadata": { "sequence": sequence } });
        fs::write(policies.join(".manifest"), manifest.to_string()).unwrap();
    };
    house.configure(Settings {
        extra: "[policy]\npath = \"policies\"",
        ..Settings::default()
    });
    numbered(7);
    house.start().stop();
    // Who only asks a later one puts nothing in force.
    numbered(8);
    crate::commands::skill_list(&house);
    numbered(7);
    house.start().stop();
    numbered(6);
    let (code, said) = must_not_start(house.command());
    assert!(
        code == Some(3)
            && said.contains("policies/.manifest")
            && said.contains("7 of revision \"r7\""),
        "{said}"
    );
    house.configure(Settings {
        extra: "[policy]\npath = \"policies\"\nallow_rollback = true",
        ..Settings::default()
    });
    house.start().stop();
}

#[test]
fn who_may_not_read_a_blob_learns_nothing_of_it() {
    let _alone = alone();
    let house = house("[policy]\npath = \"policies\"");
    policy_in(&house, |data| {
        data["roles"]["admin"] = json!({ "actions": ["blobs:write"], "namespaces": [] });
    });
    let gateway = house.start();
    let mut client = gateway.client();
    // So many digits are in no random id.
    let blob = json!({ "content": "x".repeat(1234567), "kind": "text/plain" });
    let blob = client.result("create_blob", blob).unwrap();
    let path = format!("/blobs/{}", blob["blob_id"].as_str().unwrap());
    // The last one cannot be satisfied, which says how long the blob is.
    for range in ["bytes=0-", "bytes=0-1", "bytes=1234567-"] {
        for method in ["GET", "HEAD"] {
            let headers = [("Range", range)];
            client.head(method, &path, &headers).unwrap();
            let mut answer = client.answer_head().unwrap();
            if method == "GET" {
                let mut body = Vec::new();
                client
                    .body(&answer, |piece| body.extend_from_slice(piece))
                    .unwrap();
                answer.body = body;
            }
            assert_eq!(answer.status, 403, "{method} {range}: {}", answer.text());
            assert!(!format!("{answer:?}").contains("1234567"), "{answer:?}");
        }
    }
    gateway.stop();
}

#[test]
fn rules_about_arguments_cannot_be_got_around() {
    let _alone = alone();
    let house = house("[policy]\npath = \"policies\"\ninclude_args = [\"hello.world\"]");
    let policies = policy_in(&house, |_| ());
    let rules = "package skills.custom\n\ndeny contains {\"code\": \"custom.name\", \"message\": \"not this one\"} if {\n\tinput.request.args.name == \"mallory-canary\"\n}\n";
    fs::write(policies.join("skills/custom/names.rego"), rules).unwrap();
    let gateway = house.start();
    let mut client = gateway.client();
    let mut greet = |args: Value| {
        let params = json!({ "name": "hello.world", "args": args });
        let reply = client.call("execute_skill", params).unwrap();
        let code = reply.pointer("/error/data/reasons/0/code");
        code.cloned().unwrap_or_default()
    };
    assert_eq!(greet(json!({ "name": "alice-canary" })), Value::Null);
    assert_eq!(greet(json!({ "name": "mallory-canary" })), "custom.name");
    let padded = json!({ "name": "mallory-canary", "padding": "x".repeat(65_536) });
    assert_eq!(greet(padded), "policy.error");
    // What the engine would read as something else, or not at all.
    for number in ["1", "no number"] {
        let hidden =
            json!({ "name": "mallory-canary", "z": { "$serde_json::private::Number": number } });
        let params = json!({ "name": "hello.world", "args": hidden });
        let reply = client.call("execute_skill", params).unwrap();
        assert_eq!(reply["error"]["code"], -32602, "{reply}");
    }
    gateway.stop();
    let audit = fs::read_to_string(house.path().join(".skillgate/audit.jsonl")).unwrap();
    assert!(!audit.contains("-canary"), "no record has arguments");
    assert!(
        audit.contains("longer than the 65536 bytes"),
        "the operator learns why"
    );
}

#[test]
fn skills_that_rules_name_get_an_interpreter_of_their_own() {
    let _alone = alone();
    let house = house("[policy]\npath = \"policies\"");
    policy_in(&house, |data| data["sandbox"]["fresh"] = json!(["apart"]));
    let gateway = house.start();
    let mut client = gateway.client();
    // Every interpreter draws a seed of its own; children of one warmed interpreter share it.
    let code = "def main(args):\n    return hash('a')\n";
    for namespace in ["apart", "shared"] {
        let manifest = json!({
            "name": format!("{namespace}.seed"), "version": "1.0.0", "description": "Says its hash seed.",
            "kind": "action", "namespace": namespace,
            "runtime": { "language": "python", "entrypoint": "code/main.py", "export": "main" },
        });
        let files = json!([{ "path": "code/main.py", "content": code }]);
        let params = json!({ "manifest": manifest, "skill_md": "# Seed\n", "files": files });
        client.result("create_skill", params).unwrap();
    }
    let mut seeds = |name: &str| -> BTreeSet<i64> {
        let run = |_| {
            let params = json!({ "name": name, "args": {} });
            let result = client.result("execute_skill", params).unwrap();
            result["output"]
                .as_i64()
                .unwrap_or_else(|| panic!("{result}"))
        };
        (0..4).map(run).collect()
    };
    assert_eq!(seeds("apart.seed").len(), 4);
    assert!(seeds("shared.seed").len() < 4);
    gateway.stop();
}

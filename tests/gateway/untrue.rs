//! A store of a vendor's: nothing that it gives and that was not published is shown or run, and what it is asked for (need `cc`).

use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::alone;
use crate::examples::{changed, instead};
use crate::operator::metrics;
use crate::support::gateway::{Gateway, House, Settings};
use crate::support::{eventually, writing_end};

const PATIENCE: Duration = Duration::from_secs(30);

fn manifest() -> Value {
    json!({
        "name": "user.one", "version": "1.0.0", "description": "Gives one.", "kind": "action",
        "runtime": { "language": "python", "entrypoint": "code/main.py", "export": "main" },
    })
}

/// The example's answer to skill_get, and the same after a change of `a`, in C.
const GET: &str = "return k == NULL ? SKG_OK : answer(s, op, &k->answer);";

fn got(change: &str) -> String {
    format!(
        "skg_skill a;\n    if (k == NULL) return SKG_OK;\n    a = k->answer;\n    {change}\n    return answer(s, op, &a);"
    )
}

/// A gateway whose store is the example's with other words in the place of some.
fn of_store(house: &House, changes: &[(&str, &str)]) -> Gateway {
    let text = std::fs::read_to_string(house.config()).unwrap();
    let store = changed(house, "store", changes);
    std::fs::write(
        house.config(),
        instead(&text, r#"name = "storage-fs""#, &store),
    )
    .unwrap();
    house.start()
}

fn skill() -> Value {
    json!({
        "manifest": manifest(),
        "skill_md": "# Gives one\n",
        "files": [{ "path": "code/main.py", "content": "def main(args):\n    return 1\n" }],
    })
}

/// The same with one skill in it.
fn with_store(house: &House, changes: &[(&str, &str)]) -> Gateway {
    let gateway = of_store(house, changes);
    gateway.client().result("create_skill", skill()).unwrap();
    gateway
}

/// Whoever asks learns no more than that it is broken; the log says how.
fn is_broken(gateway: &Gateway, method: &str, why: &str) {
    let mut params = json!({ "name": "user.one" });
    if method == "execute_skill" {
        params["args"] = json!({});
    }
    let answer = gateway.client().call(method, params).unwrap();
    let error = &answer["error"];
    assert_eq!(error["data"]["kind"], "internal", "{answer}");
    assert!(!answer.to_string().contains(why), "{answer}");
    let log = gateway.log();
    assert!(
        log.contains(&format!("stored skill user.one 1.0.0 is broken: {why}")),
        "{log}"
    );
}

fn runs(gateway: &Gateway) {
    let params = json!({ "name": "user.one", "args": {} });
    let run = gateway.client().result("execute_skill", params).unwrap();
    assert_eq!(run["output"], 1, "{run}");
}

#[test]
fn a_skill_whose_files_are_not_those_of_its_digest_is_broken() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let without_code = "skg_skill_file two[2];\n    two[0] = *SKG_AT(a.files, skg_skill_file, 0);\n    \
        two[1] = *SKG_AT(a.files, skg_skill_file, 2);\n    a.files = skg_list_of(two, 2, sizeof *two);";
    let gateway = with_store(&house, &[(GET, &got(without_code))]);
    for method in ["describe_skill", "execute_skill"] {
        is_broken(&gateway, method, "its digest is not that of its files");
    }
    gateway.stop();
}

/// For skill_get, in C: this manifest in the place of what was put.
fn with_manifest(manifest: &Value) -> String {
    let text = manifest.to_string();
    got(&format!(
        "a.manifest_json.ptr = (const uint8_t *){text:?};\n    a.manifest_json.len = {};",
        text.len()
    ))
}

#[test]
fn a_skill_whose_manifest_is_not_its_skill_toml_is_broken() {
    let _alone = alone();
    // It asks for nothing, and its store says that it asks for a host.
    let mut wider = manifest();
    wider["permissions"] = json!({ "network": ["https://example.com"] });
    let house = House::new(Settings::default());
    let gateway = with_store(&house, &[(GET, &with_manifest(&wider))]);
    let why = "its manifest is not that of its skill.toml: they differ in \"permissions\"";
    for method in ["describe_skill", "execute_skill"] {
        is_broken(&gateway, method, why);
    }
    gateway.stop();
    // What was sent, in another order and without the namespace that was filled in.
    let house = House::new(Settings::default());
    let gateway = with_store(&house, &[(GET, &with_manifest(&manifest()))]);
    runs(&gateway);
    gateway.stop();
}

/// What the example's skill_list does with each skill, and the same with another text in a member of it, in C.
const LISTED: &str = "items[n] = k->answer;";

fn with_other(member: &str, text: &str) -> String {
    format!(
        "{LISTED}\n        {{ static const skg_str other = SKG_LIT({text:?}); items[n].{member} = other; }}"
    )
}

#[test]
fn what_a_list_says_of_a_skill_is_what_its_manifest_says() {
    let _alone = alone();
    let list = |gateway: &Gateway, detail: &str| {
        let params = json!({ "namespace": "user", "detail": detail });
        gateway.client().result("list_skills", params).unwrap()
    };
    let another = |what| format!("its store lists it with another {what} than its manifest has");
    for (member, text, why) in [
        ("description", "Deletes one.", another("description")),
        ("kind", "instruction", another("kind")),
        ("namespace_", "user.one", another("namespace")),
        ("version", "2.0.0", "it cannot be read".to_owned()),
    ] {
        let house = House::new(Settings::default());
        let gateway = with_store(&house, &[(LISTED, &with_other(member, text))]);
        for detail in ["names", "summary"] {
            let listed = list(&gateway, detail);
            assert_eq!(listed["skills"], json!([]), "{member}: {listed}");
        }
        let log = gateway.log();
        let said: Vec<&str> = log.lines().filter(|it| it.contains(&why)).collect();
        assert_eq!(said.len(), 2, "{log}");
        assert!(said[0].contains("a skill is not listed"), "{log}");
        gateway.stop();
    }
    let house = House::new(Settings::default());
    let gateway = with_store(&house, &[]);
    for detail in ["names", "names", "summary"] {
        let listed = list(&gateway, detail);
        let skill = &listed["skills"][0];
        assert_eq!(skill["description"], "Gives one.", "{listed}");
        assert_eq!(skill["kind"], "action", "{listed}");
    }
    let asked = r#"skillgate_plugin_calls_total{plugin="storage",op="skill_get",outcome="ok"} 1"#;
    let page = metrics(&gateway);
    assert!(page.lines().any(|line| line == asked), "{page}");
    gateway.stop();
}

#[test]
fn a_store_that_answers_about_another_skill_is_not_believed_to_have_published_this_one() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let put = "return known == NULL ? fail_full(s, op) : answer(s, op, &known->answer);";
    let other = "{ static const skg_str other = SKG_LIT(\"2.0.0\"); skg_skill a; if (known == NULL) return fail_full(s, op); \
                 a = known->answer; a.version = other; return answer(s, op, &a); }";
    let gateway = of_store(&house, &[(put, other)]);
    let answer = gateway.client().call("create_skill", skill()).unwrap();
    assert_eq!(answer["error"]["data"]["kind"], "internal", "{answer}");
    let log = gateway.log();
    let why = "stored skill user.one 2.0.0 is broken: the store answered with another skill";
    assert!(log.contains(why), "{log}");
    gateway.stop();
}

/// A list that begins again and again has no end.
#[test]
fn a_list_that_does_not_go_on_is_an_error() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let page = "page.skills = skg_list_of(items, n, sizeof *items);";
    let more = format!("page.more = 1;\n    {page}");
    let from_the_start = "if (order_of_keys(&start, &after) < 0) start = after;";
    let gateway = with_store(&house, &[(page, &more), (from_the_start, "")]);
    let params = json!({ "namespace": "user" });
    let answer = gateway.client().call("list_skills", params).unwrap();
    assert_eq!(answer["error"]["data"]["kind"], "internal", "{answer}");
    let log = gateway.log();
    let why = "the store lists user.one 1.0.0 where it does not belong";
    assert!(log.contains(why), "{log}");
    gateway.stop();
}

#[test]
fn a_store_of_a_vendor_has_no_skills_of_the_operator() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let content = "k->data[i].ptr, k->data[i].len);\n    }\n    ok = ok";
    let first = "k->data[0].ptr, k->data[0].len);\n    }\n    ok = ok";
    let operators = got("a.flags |= SKG_SKILL_READ_ONLY;");
    let gateway = with_store(&house, &[(GET, &operators), (content, first)]);
    let why = "its store says that it is the operator's own (SKG_SKILL_READ_ONLY)";
    for method in ["describe_skill", "execute_skill"] {
        is_broken(&gateway, method, why);
    }
    gateway.stop();
}

#[test]
fn an_archive_that_is_not_what_was_published_is_not_run() {
    let _alone = alone();
    let house = House::new(Settings::default());
    // Every file has the content of the first one.
    let content = "k->data[i].ptr, k->data[i].len);\n    }\n    ok = ok";
    let first = "k->data[0].ptr, k->data[0].len);\n    }\n    ok = ok";
    let gateway = with_store(&house, &[(content, first)]);
    let why = "code/main.py: is not what its record says";
    is_broken(&gateway, "execute_skill", why);
    gateway.stop();
    let house = House::new(Settings::default());
    let gateway = with_store(&house, &[]);
    runs(&gateway);
    gateway.stop();
}

/// For the store's function, in C: first something else, and then this directory.
fn gives(dir: &Path, first: &str) -> String {
    format!(
        "c.kind = SKG_CONTENT_DIR;\n    {first}\n    c.fd = open({dir:?}, O_RDONLY | O_DIRECTORY | O_CLOEXEC);\n    \
         if (c.fd >= 0) {{ if (finish(s, op, SKG_OK, NULL, &c) != SKG_OK) close(c.fd); return SKG_OK; }}"
    )
}

/// The skill's files, as they were published.
fn copy(gateway: &Gateway, dir: &Path) {
    for path in ["SKILL.md", "code/main.py", "skill.toml"] {
        let params = json!({ "name": "user.one", "path": path });
        let read = gateway.client().result("read_skill_file", params).unwrap();
        std::fs::write(dir.join(path), read["content"].as_str().unwrap()).unwrap();
    }
}

#[test]
fn a_directory_that_is_not_what_was_published_is_not_run() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let dir = house.path().join("shown");
    std::fs::create_dir_all(dir.join("code")).unwrap();
    let gives = gives(&dir, "");
    let tar = "c.kind = SKG_CONTENT_TAR;";
    let gateway = with_store(&house, &[(tar, &gives)]);
    is_broken(&gateway, "execute_skill", "SKILL.md: is not there");
    copy(&gateway, &dir);
    std::fs::write(dir.join("code/json.py"), "").unwrap();
    let more = "\"code/json.py\": is none of the files that were published";
    is_broken(&gateway, "execute_skill", more);
    std::fs::remove_file(dir.join("code/json.py")).unwrap();
    runs(&gateway);
    gateway.stop();
}

#[test]
fn runs_that_come_together_have_their_store_asked_once() {
    const RUNS: usize = 4;
    let _alone = alone();
    let house = House::new(Settings::default());
    let dir = house.path().join("shown");
    std::fs::create_dir_all(dir.join("code")).unwrap();
    let (asked, pipe) = (house.path().join("asked"), house.path().join("go"));
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    // It notes that it was asked, and waits until somebody has written into a pipe.
    let waits = format!(
        "{{ char go; int note = open({asked:?}, O_WRONLY | O_CREAT | O_APPEND, 0600), pipe;\n    \
         if (note >= 0 && write(note, \"x\", 1) > 0) close(note);\n    \
         pipe = open({pipe:?}, O_RDONLY); if (read(pipe, &go, 1) >= 0) close(pipe); }}"
    );
    let tar = "c.kind = SKG_CONTENT_TAR;";
    let gateway = with_store(&house, &[(tar, &gives(&dir, &waits))]);
    copy(&gateway, &dir);
    let runs: Vec<_> = std::iter::repeat_with(|| gateway.client())
        .take(RUNS)
        .map(|mut client| {
            let params = json!({ "name": "user.one", "args": {} });
            client.ask("execute_skill", params).unwrap();
            client
        })
        .collect();
    let decided = format!(
        "skillgate_policy_decisions_total{{action=\"execute_skill\",decision=\"allow\",mode=\"enforce\"}} {RUNS}\n"
    );
    eventually("all have been decided about", PATIENCE, || {
        metrics(&gateway).contains(&decided) && asked.exists()
    });
    writing_end(&pipe, PATIENCE).write_all(b"x").unwrap();
    for mut run in runs {
        let answer = run.answer().unwrap().json().unwrap();
        assert_eq!(answer["result"]["output"], 1, "{answer}");
    }
    assert_eq!(std::fs::read_to_string(asked).unwrap(), "x");
    gateway.stop();
}

/// The id is the caller's, who may have made it up: no fault of the gateway's, nor a line in its log for each.
#[test]
fn an_id_that_a_store_takes_for_none_is_no_blobs() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let none = "SKG_E_NOT_FOUND, \"there is no such blob\"";
    let gateway = of_store(&house, &[(none, "SKG_E_INVALID_ARGUMENT, \"no id\"")]);
    let mut client = gateway.client();
    let id = "blob:made-up";
    let read = ("read_blob", json!({ "blob_id": id }));
    let run = json!({ "name": "hello.world", "args": {}, "input_blobs": [id] });
    for (method, params) in [read, ("execute_skill", run)] {
        let answer = client.call(method, params).unwrap();
        assert_eq!(
            answer["error"]["data"]["kind"], "blob_not_found",
            "{answer}"
        );
    }
    let answer = client.request("GET", "/blobs/blob:made-up", &[], b"");
    assert_eq!(answer.unwrap().status, 404);
    assert!(!gateway.log().contains("ERROR"), "{}", gateway.log());
    gateway.stop();
}

/// The contract lets a store have skills alone or blobs alone, and leave out the functions for the others: what it does not say
/// that it keeps it is not asked for.
#[test]
fn a_store_of_blobs_alone_is_asked_for_no_skills() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let caps = "SKG_ST_SKILLS | SKG_ST_SKILLS_WRITE | SKG_ST_BLOBS";
    let gateway = of_store(
        &house,
        &[
            (caps, "SKG_ST_BLOBS"),
            ("t->skill_list = skill_list;", ""),
            ("t->skill_get = skill_get;", ""),
            ("t->skill_read = skill_read;", ""),
            ("t->skill_tree = skill_tree;", ""),
            ("t->skill_put = skill_put;", ""),
        ],
    );
    let mut client = gateway.client();
    for detail in ["names", "summary"] {
        let listed = client.result("list_skills", json!({ "detail": detail }));
        let listed = listed.unwrap();
        let skills = listed["skills"].as_array().unwrap();
        assert!(!skills.is_empty(), "the operator's shelf: {listed}");
    }
    for (method, more) in [
        ("describe_skill", json!({})),
        ("execute_skill", json!({ "args": {} })),
        ("read_skill_file", json!({ "path": "SKILL.md" })),
    ] {
        for version in [None, Some("1.0.0")] {
            let mut params = more.clone();
            params["name"] = json!("user.one");
            if let Some(version) = version {
                params["version"] = json!(version);
            }
            let answer = client.call(method, params).unwrap();
            let kind = &answer["error"]["data"]["kind"];
            assert_eq!(kind, "skill_not_found", "{method}: {answer}");
        }
    }
    let answer = client.call("create_skill", skill()).unwrap();
    let error = &answer["error"];
    assert_eq!(error["code"], -32007, "{answer}");
    let said = error["message"].as_str().unwrap();
    assert!(said.contains("keeps no skills"), "{answer}");
    // What it is for it does.
    let blob = json!({ "kind": "text/plain", "content": "12345" });
    let id = client.result("create_blob", blob).unwrap()["blob_id"].take();
    let read = client.result("read_blob", json!({ "blob_id": id, "mode": "full" }));
    assert_eq!(read.unwrap()["content"], "12345");
    let log = gateway.log();
    assert!(!log.contains("ERROR"), "{log}");
    let told = "this store does not say in its caps that it keeps skills (SKG_ST_SKILLS)";
    assert!(log.contains(told), "{log}");
    gateway.stop();
}

#[test]
fn a_store_of_skills_alone_is_asked_for_no_blobs() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let caps = "SKG_ST_BLOBS | SKG_ST_BLOB_FD |";
    let gateway = with_store(
        &house,
        &[
            (caps, ""),
            ("t->blob_create = blob_create;", ""),
            ("t->blob_stat = blob_stat;", ""),
            ("t->blob_open = blob_open;", ""),
            ("t->blob_fd = blob_fd;", ""),
            ("t->blob_delete = blob_delete;", ""),
        ],
    );
    runs(&gateway);
    let mut client = gateway.client();
    let id = "blob:made-up";
    let run = json!({ "name": "user.one", "args": {}, "input_blobs": [id] });
    for (method, params) in [
        ("read_blob", json!({ "blob_id": id })),
        ("execute_skill", run),
    ] {
        let answer = client.call(method, params).unwrap();
        let kind = &answer["error"]["data"]["kind"];
        assert_eq!(kind, "blob_not_found", "{answer}");
    }
    let blob = json!({ "kind": "text/plain", "content": "12345" });
    let answer = client.call("create_blob", blob).unwrap();
    let error = &answer["error"];
    assert_eq!(error["code"], -32007, "{answer}");
    let said = error["message"].as_str().unwrap();
    assert!(said.contains("keeps no blobs"), "{answer}");
    let typed = [("Content-Type", "text/plain")];
    let sent = client.request("POST", "/blobs", &typed, b"12345").unwrap();
    assert_eq!(sent.status, 503);
    assert!(!gateway.log().contains("ERROR"), "{}", gateway.log());
    gateway.stop();
}

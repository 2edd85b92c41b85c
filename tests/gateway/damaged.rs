//! What is damaged in the store: no other skill goes with it.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde_json::{Value, json};

use crate::commands::skill_list;
use crate::policy::{hidden_is_missing, narrow, policy_in, said, skillgate};
use crate::support::gateway::{House, Settings};
use crate::support::http::Client;
use crate::{alone, audit};

/// Publishes an instruction, and changes what is stored of it behind the gateway's back.
fn publish_and_damage(house: &House, client: &mut Client, name: &str) {
    let params = json!({
        "manifest": { "name": name, "version": "0.1.0", "description": "One of many.", "kind": "instruction", "tags": ["t"] },
        "skill_md": "# One of many\n",
    });
    let made = client.result("create_skill", params).unwrap();
    assert_eq!(made["name"], name, "{made}");
    let stored = house.store().join("tenants/default/skills").join(name);
    let file = stored.join("0.1.0/files/SKILL.md");
    fs::remove_file(&file).unwrap();
    fs::write(file, "# One of none\n").unwrap();
}

#[test]
fn a_damaged_skill_hides_no_other_in_a_listing() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let gateway = house.start();
    let mut client = gateway.client();
    publish_and_damage(&house, &mut client, "many.torn");
    let page = client
        .result("list_skills", json!({ "detail": "summary", "limit": 100 }))
        .unwrap();
    let listed = |name: &str| -> &Value {
        let skills = page["skills"].as_array().unwrap();
        let found = skills.iter().find(|skill| skill["name"] == name);
        found.unwrap_or_else(|| panic!("no {name} in {page}"))
    };
    assert!(listed("hello.world")["tags"].is_array());
    // All that the listing itself knows.
    let torn = json!({
        "name": "many.torn", "version": "0.1.0", "description": "One of many.", "namespace": "many", "kind": "instruction",
    });
    assert_eq!(*listed("many.torn"), torn);
    let log = gateway.log();
    assert!(
        log.contains("a skill is listed without its tags") && log.contains("many.torn"),
        "{log}"
    );
    // It is still an error where it is asked for by name.
    let reply = client
        .call("describe_skill", json!({ "name": "many.torn" }))
        .unwrap();
    assert_eq!(reply["error"]["data"]["kind"], "internal", "{reply}");
    gateway.stop();
    // The operator may ask without one, as after an upgrade.
    let (names, said) = skill_list(&house);
    assert!(names.contains(&"many.torn".to_owned()), "{names:?}");
    let lines = said
        .lines()
        .filter(|line| line.contains("it cannot be read"));
    let told: Vec<&str> = lines.collect();
    assert_eq!(told.len(), 1, "{said}");
    assert!(told[0].contains("many.torn"), "{said}");
}

/// Nor does one whose files the gateway cannot read, or that are something else than files.
#[test]
fn a_skill_of_the_shelf_that_cannot_be_read_hides_no_other() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let shelf = house.path().join("shelf");
    for name in ["one.torn", "other.whole"] {
        let dir = shelf.join(name);
        fs::create_dir_all(&dir).unwrap();
        let toml = format!(
            "name = {name:?}\nversion = \"0.1.0\"\ndescription = \"One of many.\"\nkind = \"instruction\"\ntags = [\"t\"]\n"
        );
        fs::write(dir.join("skill.toml"), toml).unwrap();
        fs::write(dir.join("SKILL.md"), "# One of many\n").unwrap();
    }
    let config = fs::read_to_string(house.config()).unwrap();
    let bundled = Path::new(env!("CARGO_MANIFEST_DIR")).join("skills");
    let config = config.replace(&format!("{bundled:?}"), &format!("{shelf:?}"));
    fs::write(house.config(), config).unwrap();
    let gateway = house.start();
    let torn = shelf.join("one.torn/SKILL.md");
    fs::remove_file(&torn).unwrap();
    fs::create_dir(&torn).unwrap();
    let page = gateway
        .client()
        .result("list_skills", json!({ "detail": "summary" }))
        .unwrap();
    let skills = page["skills"].as_array().unwrap();
    let tags_of = |name: &str| {
        skills
            .iter()
            .find(|s| s["name"] == name)
            .map(|s| &s["tags"])
    };
    assert_eq!(tags_of("one.torn"), Some(&Value::Null), "{page}");
    assert_eq!(tags_of("other.whole"), Some(&json!(["t"])), "{page}");
    gateway.stop();
}

#[test]
fn a_damaged_skill_is_as_hidden_as_a_whole_one() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let gateway = house.start();
    let mut client = gateway.client();
    publish_and_damage(&house, &mut client, "csv.torn");
    publish_and_damage(&house, &mut client, "hello.torn");
    gateway.stop();

    house.configure(Settings {
        extra: "[policy]\npath = \"policies\"",
        ..Settings::default()
    });
    policy_in(&house, narrow);
    let gateway = house.start();
    let mut client = gateway.client();
    hidden_is_missing(&mut client, "csv.torn");
    // Whoever may see it learns that it is broken, and nothing is done.
    for (method, params) in [
        ("describe_skill", json!({ "name": "hello.torn" })),
        (
            "read_skill_file",
            json!({ "name": "hello.torn", "path": "SKILL.md" }),
        ),
        ("execute_skill", json!({ "name": "hello.torn", "args": {} })),
    ] {
        let reply = client.call(method, params).unwrap();
        assert_eq!(reply["error"]["data"]["kind"], "internal", "{reply}");
    }
    gateway.stop();
}

/// Nor does its record: a version that is there would be looked for.
#[test]
fn a_skill_that_cannot_be_read_is_on_record_without_version_and_digest() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let gateway = house.start();
    let mut client = gateway.client();
    publish_and_damage(&house, &mut client, "hello.torn");
    for params in [
        json!({ "name": "hello.torn" }),
        json!({ "name": "hello.torn", "version": "0.1.0" }),
        json!({ "name": "hello.world" }),
    ] {
        client.call("describe_skill", params).unwrap();
    }
    let asked = |log: Vec<Value>, name: &str| -> Vec<Value> {
        let of = |line: &Value| line["input"]["request"]["method"] == "describe_skill";
        let skills = log.into_iter().filter(of);
        let skills = skills.map(|mut line| line["input"]["skills"][0].take());
        skills.filter(|skill| skill["name"] == name).collect()
    };
    let torn = json!({
        "name": "hello.torn", "unread": true, "version": null, "namespace": "hello", "kind": null, "digest": null,
        "provenance": { "origin": "agent", "publisher": null, "signed": false },
        "permissions": { "network": [], "secrets": [] },
    });
    let log = audit::lines(&house.path().join(".skillgate/audit.jsonl"));
    assert_eq!(asked(log.clone(), "hello.torn"), [torn.clone(), torn]);
    let whole = &asked(log.clone(), "hello.world")[0];
    assert_eq!(whole["unread"], false, "{whole}");
    assert!(whole["version"].is_string() && whole["digest"].is_string());

    // The record is asked again as what it is.
    let bundle = Path::new(env!("CARGO_MANIFEST_DIR")).join("policies");
    let against = bundle.to_str().unwrap();
    let config = ["--config", "skillgate.toml"];
    let of_torn = |line: &&Value| line["input"]["skills"][0]["name"] == "hello.torn";
    let decision = log.iter().rfind(of_torn).unwrap();
    let explain = [
        "policy",
        "explain",
        decision["decision_id"].as_str().unwrap(),
    ];
    let told = said(&skillgate(&house, &[&explain[..], &config].concat()));
    assert!(
        told.contains(": hello.torn (could not be read)\n"),
        "{told}"
    );
    let simulate = ["policy", "simulate", "--against", against];
    let told = said(&skillgate(&house, &[&simulate[..], &config].concat()));
    assert!(
        told.contains("0 would be denied, 0 would be allowed")
            && told.contains("note: 2 were about a skill that could not be read"),
        "{told}"
    );
    gateway.stop();
}

#[test]
fn what_the_shelf_could_not_read_is_told_and_its_name_is_not_free() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let shelf = house.path().join("shelf");
    // A name that is no text can be listed and not opened, by root either.
    let version = shelf.join("acme.pay").join(OsStr::from_bytes(b"1.0.0\xff"));
    fs::create_dir_all(version).unwrap();
    house.shelve(&shelf);
    let gateway = house.start();
    let mut operator = Client::open(&gateway.admin).unwrap();
    let ready = operator.get("/readyz?verbose").unwrap();
    assert_eq!(ready.status, 200);
    let told = ready.text();
    let impaired = told.lines().find(|line| line.starts_with("[!]shelf"));
    assert!(impaired.unwrap_or(&told).contains("1 skills"), "{told}");
    let publish = |name: &str| {
        let params = json!({
            "manifest": { "name": name, "version": "1.0.0", "description": "d", "kind": "instruction" },
            "skill_md": "# A\n",
        });
        gateway.client().call("create_skill", params).unwrap()
    };
    let taken = publish("acme.pay");
    assert_eq!(taken["error"]["data"]["kind"], "already_exists", "{taken}");
    let free = publish("acme.free");
    assert_eq!(free["result"]["name"], "acme.free", "{free}");
    gateway.stop();
}

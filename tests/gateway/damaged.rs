//! What is damaged in the store: no other skill goes with it.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde_json::{Value, json};

use crate::alone;
use crate::policy::{hidden_is_missing, narrow, policy_in};
use crate::support::gateway::{House, Settings};
use crate::support::http::Client;

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

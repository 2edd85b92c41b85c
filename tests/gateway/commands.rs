//! Commands of the operator, beside a gateway that serves and without one.

use std::process::Output;

use serde_json::{Value, json};

use crate::alone;
use crate::support::gateway::{House, Settings};

fn skill_list(house: &House) -> (Vec<String>, String) {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_skillgate"));
    command.args(["skill", "list", "--output", "json", "--config"]);
    command.arg(house.config());
    house.clean(&mut command);
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    let said = String::from_utf8(stderr).unwrap();
    assert!(status.success(), "{status}: {said}");
    let listed: Value = serde_json::from_slice(&stdout).unwrap();
    let name = |skill: &Value| skill["name"].as_str().unwrap().to_owned();
    let names = listed["skills"].as_array().unwrap().iter().map(name);
    (names.collect(), said)
}

#[test]
fn skills_are_listed_beside_a_gateway_and_without_one() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let gateway = house.start();
    let published = json!({
        "manifest": { "name": "acme.published", "version": "1.0.0", "namespace": "acme", "kind": "instruction",
            "description": "Is in the store." },
        "skill_md": "---\nname: acme.published\ndescription: Is in the store.\n---\n# Published\n",
    });
    let answer = gateway.client().call("create_skill", published).unwrap();
    assert!(answer["result"].is_object(), "{answer}");

    let (names, said) = skill_list(&house);
    assert!(names.contains(&"hello.world".to_owned()), "{names:?}");
    assert!(!names.contains(&"acme.published".to_owned()), "{names:?}");
    assert_eq!(
        names.iter().filter(|name| *name == "hello.world").count(),
        1
    );
    assert!(
        said.contains("in use by another skillgate") && said.contains("list_skills"),
        "{said}"
    );
    gateway.stop();

    // A sandbox that would not start is not asked.
    house.configure(Settings {
        sandbox: Some("{ no_such_key = 1 }"),
        ..Settings::default()
    });
    let (names, said) = skill_list(&house);
    for name in ["hello.world", "acme.published"] {
        assert!(names.contains(&name.to_owned()), "{names:?}: {said}");
    }
    assert!(!said.contains("left out"), "{said}");
}

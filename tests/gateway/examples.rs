//! The examples for vendors, loaded by the real gateway: it says what they are not.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::alone;
use crate::support::gateway::{House, Settings};

/// Compiles one of `plugins/example-c` into the house; its section of the configuration.
fn example(house: &House, name: &str) -> String {
    let source = plugins().join(format!("example-c/{name}.c"));
    compiled(house, name, &source)
}

fn plugins() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("plugins")
}

fn compiled(house: &House, name: &str, source: &Path) -> String {
    let file = house.path().join(format!("{name}.so"));
    let output = Command::new("cc")
        .args(["-std=c99", "-fPIC", "-shared", "-pthread", "-I"])
        .arg(plugins().join("abi/include"))
        .arg("-o")
        .args([&file, source])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    format!("path = {file:?}\nallow_unsigned = true")
}

/// Puts it in the place of a bundled plugin, whose configuration is not its own.
fn instead(text: &str, bundled: &str, section: &str) -> String {
    let begin = text.find(bundled).unwrap();
    let config = begin + text[begin..].find("config = ").unwrap();
    let end = config + text[config..].find('\n').unwrap();
    format!("{}{section}{}", &text[..begin], &text[end..])
}

#[test]
fn a_sandbox_that_runs_no_python_refuses_every_run_and_says_why() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let text = std::fs::read_to_string(house.config()).unwrap();
    let echo = example(&house, "echo");
    let text = instead(&text, r#"name = "sandbox-process""#, &echo);
    std::fs::write(house.config(), text).unwrap();
    let gateway = house.start();
    let code = "def main(args):\n    return 1\n";
    let params = json!({ "language": "python", "code": code });
    let answer = gateway.client().call("run_code", params).unwrap();
    let error = &answer["error"];
    assert_eq!(error["data"]["kind"], "language_unsupported", "{answer}");
    let said = "the sandbox of this gateway does not run \"python\"";
    assert_eq!(error["message"], said, "{answer}");
    // The plugin's own words are the operator's.
    assert!(!answer.to_string().contains("echo"), "{answer}");
    let log = gateway.log();
    assert!(
        log.contains("this sandbox runs") && log.contains("echo"),
        "{log}"
    );
    gateway.stop();
}

#[test]
fn a_sandbox_without_a_gate_is_not_given_a_run_that_has_network() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let text = std::fs::read_to_string(house.config()).unwrap();
    let policy = crate::egress::policy(house.path());
    let echo = example(&house, "echo");
    let text = instead(&text, r#"name = "sandbox-process""#, &echo);
    let text = format!("{text}\n[policy]\npath = {policy:?}\n");
    std::fs::write(house.config(), text).unwrap();
    let gateway = crate::egress::start(&house);
    let warning = "does not say that it keeps runs from the network";
    assert!(!gateway.log().contains(warning), "{}", gateway.log());
    let params = json!({ "name": "net.try", "args": {} });
    let answer = gateway.client().call("execute_skill", params).unwrap();
    let error = &answer["error"];
    assert_eq!(error["data"]["kind"], "unavailable", "{answer}");
    let said = error["message"].as_str().unwrap();
    assert!(said.contains("needs no network"), "{answer}");
    // Without network it gets as far as the sandbox.
    let params = json!({ "language": "python", "code": "def main(args):\n    return 1\n" });
    let answer = gateway.client().call("run_code", params).unwrap();
    let kind = &answer["error"]["data"]["kind"];
    assert_eq!(kind, "language_unsupported", "{answer}");
    gateway.stop();
}

#[test]
fn a_sandbox_that_promises_no_containment_is_named_at_the_start() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let echo = std::fs::read_to_string(plugins().join("example-c/echo.c")).unwrap();
    let promise = "out->egress = SKG_EGRESS_CAN_DENY";
    assert!(echo.contains(promise));
    let source = house.path().join("open.c");
    std::fs::write(&source, echo.replace(promise, "out->egress = 0")).unwrap();
    let open = compiled(&house, "open", &source);
    let text = std::fs::read_to_string(house.config()).unwrap();
    let text = instead(&text, r#"name = "sandbox-process""#, &open);
    std::fs::write(house.config(), text).unwrap();
    let gateway = house.start();
    let log = gateway.log();
    let warning = "does not say that it keeps runs from the network";
    let line = log.lines().find(|line| line.contains(warning));
    let line = line.unwrap_or_else(|| panic!("{log}"));
    assert!(
        line.contains("WARN") && line.contains("org.skillgate"),
        "{line}"
    );
    gateway.stop();
}

#[test]
fn a_store_that_keeps_nothing_is_named_at_the_start() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let usual = std::fs::read_to_string(house.config()).unwrap();
    let warning = "this store keeps nothing";
    // The bundled one keeps everything.
    let gateway = house.start();
    assert!(!gateway.log().contains(warning), "{}", gateway.log());
    gateway.stop();
    let store = example(&house, "store");
    let text = instead(&usual, r#"name = "storage-fs""#, &store);
    std::fs::write(house.config(), text).unwrap();
    let gateway = house.start();
    let log = gateway.log();
    let line = log.lines().find(|line| line.contains(warning));
    let line = line.unwrap_or_else(|| panic!("{log}"));
    assert!(
        line.contains("WARN") && line.contains("org.skillgate.example-store"),
        "{line}"
    );
    let made = json!({ "content": "x", "kind": "text/plain" });
    let made = gateway.client().call("create_blob", made).unwrap();
    assert!(made["result"]["blob_id"].is_string(), "{made}");
    gateway.stop();
}

//! Rules that are tried and refuse nothing.

use super::*;

#[test]
fn a_shadow_records_and_does_not_refuse() {
    let _alone = alone();
    let house = house("[policy]\npath = \"policies\"\nmode = \"shadow\"");
    policy_in(&house, narrow);
    let gateway = house.start();
    let mut client = gateway.client();
    assert_eq!(
        client
            .run("def main(args): return {'x': 1}", json!({}))
            .unwrap()["output"],
        json!({ "x": 1 })
    );
    assert!(
        client
            .result("describe_skill", json!({ "name": "csv.stats" }))
            .is_ok()
    );
    let log = fs::read_to_string(house.path().join(".skillgate/audit.jsonl")).unwrap();
    // Which the first and the last record are not.
    let records: Vec<Value> = log
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .filter(|record: &Value| record["kind"] == "decision" || record["kind"] == "run")
        .collect();
    let (denials, others): (Vec<&Value>, Vec<&Value>) = records
        .iter()
        .partition(|record| record["result"]["allow"] == false);
    assert_eq!(denials.len(), 2, "{log}");
    assert!(others.iter().any(|record| record["kind"] == "run"), "{log}");
    assert!(
        records
            .iter()
            .all(|record| record["labels"]["mode"] == "shadow"),
        "{records:?}"
    );
    gateway.stop();
}

#[test]
fn what_was_enforced_before_a_shadow_is_enforced_again_after_it() {
    let _alone = alone();
    let in_mode = |mode: &str| format!("[policy]\npath = \"policies\"\nmode = {mode:?}");
    let house = house(&in_mode("enforce"));
    let policies = policy_in(&house, narrow);
    let set = |mode: &str, sequence: u64| {
        house.configure(Settings {
            // Both files are taken at once: by a signal.
            server: "reload_watch_ms = 0",
            extra: &in_mode(mode),
            ..Settings::default()
        });
        let manifest = json!({ "revision": format!("r{sequence}"), "roots": ["skills"], "metadata": { "sequence": sequence } });
        fs::write(policies.join(".manifest"), manifest.to_string()).unwrap();
    };
    set("enforce", 7);
    let gateway = house.start();
    let code = json!({ "language": "python", "code": "def main(args): return 1" });
    let reloaded = |outcome: &str| {
        let before = gateway.log().matches(outcome).count();
        gateway.signal("HUP");
        crate::support::eventually(outcome, Duration::from_secs(30), || {
            gateway.log().matches(outcome).count() > before
        });
        let reply = gateway.client().call("run_code", code.clone()).unwrap();
        reply["error"]["data"]["kind"].clone()
    };
    // The candidate is tried, and the one before it is enforced again.
    set("shadow", 8);
    assert_eq!(reloaded("reloaded"), Value::Null);
    set("enforce", 7);
    assert_eq!(reloaded("reloaded"), "policy_denied");
    // One that is older than what was enforced is not even tried.
    set("shadow", 6);
    assert_eq!(reloaded("reload refused"), "policy_denied");
    // And a candidate that was enforced is remembered.
    set("shadow", 8);
    assert_eq!(reloaded("reloaded"), Value::Null);
    set("enforce", 8);
    assert_eq!(reloaded("reloaded"), "policy_denied");
    set("enforce", 7);
    assert_eq!(reloaded("reload refused"), "policy_denied");
    gateway.stop();
}

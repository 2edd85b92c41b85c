//! What the policy grants a run of time and memory, against a run that takes more.

use super::*;

/// The result of code that asks for a minute, where the policy's limits are others.
fn under(limits: &[(&str, u64)], code: &str) -> Value {
    let house = house("[policy]\npath = \"policies\"");
    policy_in(&house, |data| {
        for (name, limit) in limits {
            data["limits"][*name] = (*limit).into();
        }
    });
    let gateway = house.start();
    let code = format!("import time\ndef main(args):\n    {code}\n");
    let params = json!({ "language": "python", "code": code, "limits": { "timeout_ms": 60_000 } });
    let result = gateway.client().result("run_code", params).unwrap();
    gateway.stop();
    result
}

#[test]
fn a_run_is_kept_to_the_time_and_the_memory_that_it_is_granted() {
    let _alone = alone();
    let slow = under(&[("timeout_ms", 500)], "time.sleep(30)");
    assert_eq!(slow["error"]["type"], "Timeout", "{slow}");
    let said = slow["error"]["message"].as_str().unwrap();
    assert!(said.contains("500 ms"), "{slow}");
    // Each page of it is written to.
    let large = under(&[("memory_mb", 64)], "return len(b'x' * (200 << 20))");
    let why = large["error"]["type"].as_str().unwrap_or_default();
    assert!(["OutOfMemory", "MemoryError"].contains(&why), "{large}");
}

//! Two versions of one skill in one run.

use super::*;
use crate::operator::{metrics, value};

/// Refused as a request that cannot be met, whatever each of them is granted: rules that give grants by the name of a skill would
/// have two values for one, and the engines would disagree on which.
#[test]
fn two_versions_of_a_skill_are_no_alarm() {
    let _alone = alone();
    let house = house("[policy]\npath = \"policies\"\nconfirm = \"always\"");
    let hosts = ["one.example.com", "other.example.com"];
    policy_in(&house, |data| {
        for host in hosts {
            data["network"]["allow"][host] = json!({ "exact": true, "subdomains": false, "schemes": ["https"], "ports": [443], "roles": ["admin"], "skills": ["two"] });
        }
    });
    let gateway = house.start();
    let mut client = gateway.client();
    for (index, host) in hosts.iter().enumerate() {
        let manifest = json!({
            "name": "two.hosts", "version": format!("1.{index}.0"), "description": "Reaches a host.", "kind": "action", "namespace": "two",
            "runtime": { "language": "python", "entrypoint": "code/main.py", "export": "main" },
            "permissions": { "network": [format!("https://{host}")], "secrets": [] },
        });
        let files =
            json!([{ "path": "code/main.py", "content": "def main(args):\n    return 1\n" }]);
        let params = json!({ "manifest": manifest, "skill_md": "# Two\n", "files": files });
        client.result("create_skill", params).unwrap();
    }
    let code = "def main(args):\n    return {}\n";
    let of =
        |mounts: &[&str]| json!({ "language": "python", "code": code, "mount_skills": mounts });
    let both = ["two.hosts@1.0.0", "two.hosts@1.1.0"];
    let refused = error(&mut client, "run_code", of(&both));
    assert_eq!(refused["code"], -32602, "{refused}");
    assert_eq!(
        (&refused["data"]["kind"], &refused["data"]["pointer"]),
        (&json!("invalid_params"), &json!("/mount_skills/1"))
    );
    assert_eq!(refused["message"], "two.hosts is mounted twice");
    let result = client.result("run_code", of(&both[..1])).unwrap();
    assert_eq!(result["status"], "completed", "{result}");
    let mismatches = "skillgate_policy_engine_mismatches_total";
    assert_eq!(value(&metrics(&gateway), mismatches), 0.0);
    gateway.stop();
}

//! The commands of those who write rules.

use super::*;

#[test]
fn the_command_line_for_authors() {
    let house = house("");
    let policies = bundled();
    let policies = policies.to_str().unwrap();
    let check = skillgate(&house, &["policy", "check", policies]);
    assert!(
        check.status.success() && said(&check).contains("fine: revision default-0.1.0"),
        "{}",
        said(&check)
    );
    let test = skillgate(&house, &["policy", "test", policies, "--coverage"]);
    assert!(
        test.status.success() && said(&test).contains("PASS: "),
        "{}",
        said(&test)
    );
    assert!(said(&test).contains("rbac.rego: "), "{}", said(&test));
    let golden = format!("{policies}/tests/decisions/run_code_shared.json");
    let eval = skillgate(&house, &["policy", "eval", policies, "--input", &golden]);
    assert!(
        eval.status.success() && said(&eval).starts_with("denied\n  secret.run_code: "),
        "{}",
        said(&eval)
    );

    // A copy whose data has been changed under its tests.
    let copy = policy_in(&house, narrow);
    fs::create_dir_all(copy.join("tests")).unwrap();
    for file in ["decision_test.rego", "fixtures.rego"] {
        fs::copy(
            bundled().join("tests").join(file),
            copy.join("tests").join(file),
        )
        .unwrap();
    }
    let copy = copy.to_str().unwrap();
    let test = skillgate(&house, &["policy", "test", copy]);
    assert_eq!(test.status.code(), Some(1), "{}", said(&test));
    let line = said(&test)
        .lines()
        .find(|line| line.contains("test_admin_uses_every_method"))
        .map(str::to_owned)
        .unwrap();
    assert!(
        line.contains("decision_test.rego:") && line.contains(": FAIL ("),
        "{line}"
    );
    let check = skillgate(&house, &["policy", "check", copy, "--output", "json"]);
    assert_eq!(check.status.code(), Some(1), "{}", said(&check));
    let check: Value = serde_json::from_slice(&check.stdout).unwrap();
    assert_eq!(check["ok"], false);
    // A bundle that overflows the parser's stack costs the command nothing but an answer.
    fs::write(
        Path::new(copy).join("skills/custom/more.rego"),
        format!(
            "package skills.custom\n\nx := {}1{}\n",
            "not ".repeat(200_000),
            ""
        ),
    )
    .unwrap();
    let check = skillgate(&house, &["policy", "check", copy]);
    assert_eq!(check.status.code(), Some(1), "{}", said(&check));
}

//! What of a decision is recorded, and what becomes of the call when that cannot be.

use std::sync::atomic::AtomicBool;

use super::*;
use crate::config;

fn audit_at(path: &Path, on_failure: config::OnAuditFailure) -> Audit {
    let settings = config::Audit {
        path: path.to_owned(),
        fsync: config::Fsync::Never,
        max_file_bytes: 1 << 30,
        on_failure,
    };
    Audit::open(&settings).unwrap()
}

/// The bundled policy, recorded.
fn recorded(mode: PolicyMode, audit: &Audit) -> Policy {
    let sandbox = Sandbox {
        plugin: "process".into(),
    };
    let rules = prepared(&bundled_files(), mode, Confirm::Off);
    Policy::new(rules, &sandbox, audit.clone())
}

#[tokio::test]
async fn what_cannot_be_recorded_is_denied_if_it_has_consequences() {
    use config::OnAuditFailure::{Continue, Deny};
    let ask = |method| {
        facts(
            method,
            if method == "execute_skill" {
                vec![salesforce()]
            } else {
                vec![]
            },
        )
    };
    let dir = tempfile::tempdir().unwrap();
    for (mode, on_failure) in [
        (PolicyMode::Enforce, Deny),
        (PolicyMode::Shadow, Deny),
        (PolicyMode::Off, Deny),
        (PolicyMode::Enforce, Continue),
    ] {
        let audit = audit_at(&dir.path().join("audit.jsonl"), on_failure);
        let policy = recorded(mode, &audit);
        let methods = ["execute_skill", "run_code", "create_blob"];
        for method in methods {
            assert!(policy.decide(&ask(method)).await.is_ok(), "{method}");
        }
        // What is appended to a closed log fails, as on a disk that is gone.
        audit.close().await;
        for method in methods {
            let ask = ask(method);
            match on_failure {
                Deny => assert_eq!(
                    fault(&policy, &ask).await,
                    ("policy.unavailable".into(), true),
                    "{mode:?} {method}"
                ),
                Continue => assert!(policy.decide(&ask).await.is_ok()),
            }
        }
        // What only reads goes on, and is counted.
        assert!(policy.decide(&facts("list_skills", vec![])).await.is_ok());
        let health = audit.health();
        let (refused, lost) = if on_failure == Deny { (3, 1) } else { (0, 4) };
        assert_eq!((health.refused, health.lost), (refused, lost));
    }
}

/// A shadow lets through what its rules deny: it runs, so it is on record or does not run.
#[tokio::test]
async fn what_a_shadow_would_have_denied_is_recorded_before_it_runs() {
    let dir = tempfile::tempdir().unwrap();
    let audit = audit_at(
        &dir.path().join("audit.jsonl"),
        config::OnAuditFailure::Deny,
    );
    let sandbox = Sandbox {
        plugin: "process".into(),
    };
    let denies = one("decision := {\"allow\": false}");
    let rules = |mode| prepared(&denies, mode, Confirm::Off);
    let shadow = Policy::new(rules(PolicyMode::Shadow), &sandbox, audit.clone());
    let enforced = Policy::new(rules(PolicyMode::Enforce), &sandbox, audit.clone());
    let ask = facts("execute_skill", vec![salesforce()]);
    assert!(enforced.decide(&ask).await.is_err(), "it is denied");
    assert!(shadow.decide(&ask).await.is_ok());
    audit.close().await;
    let unrecorded = ("policy.unavailable".to_owned(), true);
    assert_eq!(fault(&shadow, &ask).await, unrecorded);
    // What does not run anyway is denied for its own reason: later is no better.
    let denied = enforced.decide(&ask).await.unwrap_err();
    assert!(!denied.retryable, "{denied:?}");
}

/// Nothing runs and nothing is made that is not on record.
#[tokio::test]
async fn where_no_rules_are_asked_calls_are_recorded_too() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.jsonl");
    let audit = audit_at(&path, config::OnAuditFailure::Deny);
    let policy = recorded(PolicyMode::Off, &audit);
    let mut ask = facts("execute_skill", vec![salesforce()]);
    ask.trace = Some(Trace::new());
    let permit = policy.decide(&ask).await.unwrap();
    assert!(permit.network.is_empty() && permit.secrets.is_empty());
    assert!(policy.reconsider(&permit).await.is_none());
    audit.close().await;
    let text = std::fs::read_to_string(path).unwrap();
    let record: Value = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .find(|record: &Value| record["kind"] == "decision")
        .unwrap();
    assert_eq!(record["decision_id"], permit.decision_id);
    assert_eq!(record["labels"]["mode"], "off");
    assert_eq!(record["bundles"]["policy"]["sha256"], "");
    assert_eq!(record["requested_by"], "local");
    assert!(record["trace_id"].is_string());
    assert_eq!(record["input"]["request"]["method"], "execute_skill");
    let granted = json!({"network": [], "secrets": []});
    assert_eq!(record["result"]["allow"], true);
    assert_eq!(record["result"]["granted"], granted);
    assert!(record["input"]["subject"]["claims"].is_null(), "{record}");
}

#[tokio::test]
async fn a_panic_is_a_denial_and_the_next_call_is_decided() {
    static PANICS: AtomicBool = AtomicBool::new(false);
    fn once_told() -> SystemTime {
        assert!(
            !PANICS.swap(false, Ordering::Relaxed),
            "as the test wants it"
        );
        SystemTime::now()
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.jsonl");
    for mode in [PolicyMode::Enforce, PolicyMode::Shadow] {
        let audit = audit_at(&path, config::OnAuditFailure::Deny);
        let mut policy = recorded(mode, &audit);
        Arc::get_mut(&mut policy.0).unwrap().clock = once_told;
        let mut ask = facts("execute_skill", vec![salesforce()]);
        ask.trace = Some(Trace::new());
        for _ in 0..3 {
            PANICS.store(true, Ordering::Relaxed);
            match mode {
                PolicyMode::Enforce => {
                    assert_eq!(fault(&policy, &ask).await, ("policy.panic".into(), false));
                }
                // A shadow refuses nothing and gives nothing.
                _ => assert!(policy.decide(&ask).await.unwrap().network.is_empty()),
            }
            assert!(policy.decide(&ask).await.is_ok(), "the next is decided");
        }
        audit.close().await;
    }
    let text = std::fs::read_to_string(path).unwrap();
    let records: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .filter(|record: &Value| record["kind"] == "decision")
        .collect();
    assert_eq!(records.len(), 12);
    for (at, record) in records.iter().enumerate() {
        let code = &record["result"]["reasons"][0]["code"];
        assert_eq!(record["result"]["allow"], at % 2 == 1, "{record}");
        assert_eq!(code == "policy.panic", at % 2 == 0, "{record}");
        assert!(record["trace_id"].is_string() && record["requested_by"] == "local");
    }
}

/// What the rules hide from the log is hidden whatever becomes of their decision; where there is none, the claims are.
#[tokio::test]
async fn a_fault_is_recorded_without_what_is_masked() {
    let proxy = r#""grants": {"skills": {"salesforce.leads.sync": {"secrets": [{"name": "SALESFORCE_API_KEY", "delivery": "proxy"}]}}}"#;
    let two_values = "pick := x if { some x in [1, 2] }\n";
    let slow = "l := numbers.range(1, 1000)\ndecision := {\"allow\": true} if { some a in l; some b in l; some c in l; a + b + c < 0 }";
    let unsaid = json!(["/input/subject/claims", "/input/request/args"]);
    let masked = |pointer: &str| format!(r#""log": {{"level": "full", "mask": ["{pointer}"]}}"#);
    let (mail, none) = (
        masked("/input/subject/claims/email"),
        r#""log": {"level": "none"}"#,
    );
    let part = json!(["/input/subject/claims/email", "/input/request/args"]);
    let whole = json!([
        "/input/subject/claims",
        "/input/source/ip",
        "/input/request/args"
    ]);
    let claims_alone = json!(["/input/subject/claims"]);
    let nothing = json!([]);
    for (rules, code, erased) in [
        (
            "decision := {\"allow\": true} if input.nothing".to_owned(),
            "policy.undefined",
            &unsaid,
        ),
        (slow.to_owned(), "policy.limit", &unsaid),
        // The interpreter's words would quote what the function was given.
        (
            format!(
                "deny if lower(input.subject.claims) == 1\ndecision := {{\"allow\": true, {mail}}} if not deny"
            ),
            "policy.engine_mismatch",
            &part,
        ),
        (
            format!(
                "deny if lower(input.request.args) == 1\ndecision := {{\"allow\": true, {mail}}} if not deny"
            ),
            "policy.engine_mismatch",
            &part,
        ),
        // The machine's would too, and stay within the rule.
        (
            "decision := {\"allow\": true} if input.subject.claims.email + 1 == 2".to_owned(),
            "policy.undefined",
            &unsaid,
        ),
        // The arguments are too long for the rules, or the engine would read others, and not in the input.
        (
            "decision := {\"allow\": true}".to_owned(),
            "policy.error",
            &claims_alone,
        ),
        (
            "decision := {\"allow\": true} # rounded".to_owned(),
            "policy.error",
            &claims_alone,
        ),
        (
            "decision := input.subject".to_owned(),
            "policy.malformed",
            &unsaid,
        ),
        (
            format!(
                "decision := {{\"allow\": 1, {}}}",
                masked("/input/source/ip")
            ),
            "policy.malformed",
            &whole,
        ),
        (
            format!("decision := {{\"allow\": 1, {none}}}"),
            "policy.malformed",
            &nothing,
        ),
        (
            format!("decision := {{\"allow\": true, {proxy}, {mail}}}"),
            "policy.malformed",
            &part,
        ),
        (
            format!("decision := {{\"allow\": true, {proxy}, {none}}}"),
            "policy.malformed",
            &nothing,
        ),
        (
            format!("{two_values}decision := {{\"allow\": true, {mail}}} if pick == 2"),
            "policy.engine_mismatch",
            &part,
        ),
        (
            format!("{two_values}decision := {{\"allow\": true, {none}}} if pick == 2"),
            "policy.engine_mismatch",
            &nothing,
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.jsonl");
        let audit = audit_at(&path, config::OnAuditFailure::Deny);
        let mut prepared = prepared(&one(&rules), PolicyMode::Enforce, Confirm::Always);
        prepared.active.include_args = vec!["salesforce.leads.sync".into()];
        let sandbox = Sandbox {
            plugin: "process".into(),
        };
        let policy = Policy::new(prepared, &sandbox, audit.clone());
        let claims = json!({ "email": "canary@example.com" });
        let caller = Caller::for_tests("acme", "alice", &["author"]);
        let mut ask = facts("execute_skill", vec![salesforce()]).with("arg_bytes", 0);
        ask.caller = caller.with_claims(claims.as_object().unwrap().clone());
        ask.args = match code {
            "policy.error" if rules.contains("rounded") => Some(r#"{"to": 80492133776110901014}"#),
            "policy.error" => None,
            _ => Some(r#"{"to": "canary"}"#),
        }
        .map(Into::into);
        assert_eq!(fault(&policy, &ask).await.0, code, "{rules}");
        audit.close().await;

        let text = std::fs::read_to_string(&path).unwrap();
        let record: Value = serde_json::from_str(text.lines().nth(1).unwrap()).unwrap();
        for told in ["canary", "804921337761"] {
            assert!(!text.contains(told), "{rules}: {record:#}");
        }
        assert_eq!(record["erased"], *erased, "{rules}");
        // It says all the same who was refused what, and why.
        assert_eq!(record["requested_by"], "alice");
        assert_eq!(record["result"]["allow"], false);
        let reason = &record["result"]["reasons"][0];
        assert_eq!(reason["code"], code);
        if rules.contains("lower(") {
            let message = reason["message"].as_str().unwrap();
            assert!(message.contains("a.rego:3:"), "{message}");
        }
        let input = &record["input"];
        assert_eq!(input.is_null(), *erased == nothing, "{rules}");
        if !input.is_null() {
            let (subject, request) = (&input["subject"], &input["request"]);
            assert_eq!(
                (&subject["id"], &subject["tenant"]),
                (&json!("alice"), &json!("acme"))
            );
            assert_eq!(request["method"], "execute_skill");
            assert_eq!(input["skills"][0]["name"], "salesforce.leads.sync");
        }
    }
}

/// Arguments are as deep as a request can be, and what the rules make of them may be too.
#[test]
fn no_record_is_nested_too_deeply_to_be_read() {
    let nested = |levels| format!("{}1{}", "{\"a\":".repeat(levels), "}".repeat(levels));
    let claims = json!({ "c": serde_json::from_str::<Value>(&nested(16)).unwrap() });
    let mut ask = facts("execute_skill", vec![salesforce()]);
    ask.caller = Caller::for_tests("acme", "alice", &["author"])
        .with_claims(claims.as_object().unwrap().clone());
    ask.args = Some(nested(125).into());
    for members in [
        r#""allow": true, "log": {"level": "full"}"#,
        r#""allow": true, "log": {"level": "full"}, "echo": input"#,
        r#""allow": input, "log": {"level": "metadata"}"#,
        r#""allow": true, "log": {"level": "full"}, "reasons": [{"code": "x", "message": json.marshal(input)}]"#,
    ] {
        let rules = format!("decision := {{{members}}}");
        let policy = seeing_args("salesforce.leads.sync", &rules, Confirm::Off);
        let active = policy.0.active.load_full();
        let mut outcome = policy.evaluate(&active, &ask, SystemTime::now());
        // It is read again here.
        let record = record::record(PolicyMode::Enforce, &ask, "dec_1", &mut outcome).json();
        assert_eq!(record["input"]["subject"]["id"], "alice", "{members}");
    }
}

#[tokio::test]
async fn a_record_says_what_was_decided_and_nothing_more() {
    let policy = policy(&bundled_files(), PolicyMode::Enforce, Confirm::Off);
    let mut ask = facts("execute_skill", vec![salesforce()]).with("arg_keys", json!(["sheet"]));
    ask.timeout_ms = Some(1000);
    let active = policy.0.active.load_full();
    let mut outcome = policy.evaluate(&active, &ask, SystemTime::now());
    let record = record::record(PolicyMode::Shadow, &ask, "dec_1", &mut outcome).json();
    for (pointer, value) in [
        ("/decision_id", json!("dec_1")),
        ("/labels/mode", json!("shadow")),
        ("/path", json!("skills/authz/decision")),
        ("/requested_by", json!("local")),
        ("/result/allow", json!(true)),
        ("/result/granted", json!({ "network": [], "secrets": [] })),
        ("/input/request/method", json!("execute_skill")),
        ("/input/request/arg_keys", json!(["sheet"])),
        ("/input/limits/requested/timeout_ms", json!(1000)),
        (
            "/input/skills/0/permissions/network/0/suffixes",
            json!(["salesforce.com", "com"]),
        ),
        ("/bundles/policy/revision", json!("default-0.1.0")),
        ("/erased", json!(["/input/subject/claims"])),
    ] {
        assert_eq!(
            record.pointer(pointer),
            Some(&value),
            "{pointer} of {record:#}"
        );
    }
    assert!(
        record
            .pointer("/metrics/timer_policy_decision_ns")
            .is_some()
    );
}

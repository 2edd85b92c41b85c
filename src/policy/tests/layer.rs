//! From facts to a permit or a denial.

use std::sync::atomic::AtomicBool;

use super::*;
use crate::config;
use crate::policy::decision::Decision;
use crate::policy::engine::Fault;

/// Allows, and says exactly what the case is about.
fn saying(members: &str) -> Policy {
    enforced(&format!("decision := {{\"allow\": true, {members}}}"))
}

async fn fault(policy: &Policy, facts: &Facts) -> (String, bool) {
    let denied = policy.decide(facts).await.unwrap_err();
    (codes(&denied).join(","), denied.retryable)
}

#[tokio::test]
async fn the_local_administrator_runs_with_what_the_data_grants() {
    let policy = policy(&bundled_files(), PolicyMode::Enforce, Confirm::Always);
    let permit = policy
        .decide(&facts("execute_skill", vec![salesforce()]))
        .await
        .unwrap();
    assert!(
        permit.network.is_empty() && permit.secrets.is_empty(),
        "{permit:?}"
    );
    assert!(permit.deny_cidrs.contains(&"169.254.0.0/16".to_owned()));
    let listing = policy.decide(&facts("list_skills", vec![])).await.unwrap();
    assert!(listing.shows("anything.at.all"));
    assert_eq!(
        (permit.timeout_ms, permit.memory_bytes),
        (Some(600_000), Some(1024 << 20))
    );

    let mut granting = bundled_files();
    let data = granting.0.get_mut("skills/config/data.json").unwrap();
    let text = String::from_utf8(data.clone()).unwrap();
    *data = text
        .replace(
            "\"roles\": [\"sales-ops\"], \"skills\": [\"salesforce\"]",
            "\"roles\": [\"admin\"], \"skills\": [\"salesforce\"]",
        )
        .into_bytes();
    let policy = super::policy(&granting, PolicyMode::Enforce, Confirm::Always);
    let permit = policy
        .decide(&facts("execute_skill", vec![salesforce()]))
        .await
        .unwrap();
    assert_eq!(permit.network, ["https://*.salesforce.com"]);
    assert_eq!(permit.secrets, ["SALESFORCE_API_KEY"]);
    // Submitted code shares the sandbox: its skills' network, none of their secrets.
    let permit = policy
        .decide(&facts("run_code", vec![salesforce()]))
        .await
        .unwrap();
    assert_eq!(permit.network, ["https://*.salesforce.com"]);
    assert!(permit.secrets.is_empty(), "{permit:?}");
}

#[tokio::test]
async fn a_policy_narrows_and_never_widens() {
    let grants = |network: &str, secrets: &str| {
        saying(&format!(
            "\"grants\": {{\"code\": {{\"network\": {network}, \"secrets\": {secrets}}}, \"skills\": {{\"a.b\": {{\"network\": {network}, \"secrets\": {secrets}}}}}}}"
        ))
    };
    let wide = grants(
        r#"["https://evil.example", "https://*.a.com", "http://*.a.com", "https://*.a.com:8443", "https://x.a.com", "https://*.com.example"]"#,
        r#"[{"name": "A_KEY_1", "delivery": "env"}, {"name": "OTHER", "delivery": "env"}]"#,
    );
    let declares = |network: &str| {
        skill(
            "a.b",
            &format!("network = [{network}]\nsecrets = [\"A_KEY_1\"]"),
        )
    };
    for (declared, left) in [
        (r#""https://x.a.com""#, &["https://x.a.com"][..]),
        (
            r#""https://*.a.com""#,
            &["https://*.a.com", "https://x.a.com"],
        ),
        (r#""https://*.x.a.com""#, &["https://*.x.a.com"]),
        (r#""https://a.com""#, &[]),
        (r#""https://b.com""#, &[]),
        ("", &[]),
    ] {
        for method in ["execute_skill", "run_code"] {
            let permit = wide
                .decide(&facts(method, vec![declares(declared)]))
                .await
                .unwrap();
            let mut left = left.to_vec();
            left.sort_unstable();
            let mut got = permit.network.clone();
            got.sort();
            assert_eq!(got, left, "{method} {declared}");
            assert_eq!(permit.secrets, ["A_KEY_1"], "{method}");
        }
    }
    // Another skill's compartment is nobody else's, and what runs nothing gets nothing.
    let other = skill(
        "c.d",
        "network = [\"https://x.a.com\"]\nsecrets = [\"A_KEY_1\"]",
    );
    for facts in [
        facts("execute_skill", vec![other]),
        facts("create_skill", vec![declares("")]),
        facts("run_code", vec![]),
    ] {
        let permit = wide.decide(&facts).await.unwrap();
        assert!(
            permit.network.is_empty() && permit.secrets.is_empty(),
            "{permit:?}"
        );
    }
    let proxy = grants("[]", r#"[{"name": "A_KEY_1", "delivery": "proxy"}]"#);
    assert_eq!(
        fault(&proxy, &facts("execute_skill", vec![declares("")]))
            .await
            .0,
        "policy.malformed"
    );
}

#[tokio::test]
async fn whatever_goes_wrong_is_a_denial() {
    let ask = || facts("list_skills", vec![]);
    for (rules, code, retryable) in [
        (
            "decision := {\"allow\": true} if input.nothing",
            "policy.undefined",
            false,
        ),
        (
            "decision := {\"allow\": \"true\"}",
            "policy.malformed",
            false,
        ),
        ("decision := true", "policy.malformed", false),
        // 10^9 steps.
        (
            "l := [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]\ndecision := {\"allow\": true} if { some a in l; some b in l; some c in l; some d in l; some e in l; some f in l; some g in l; some h in l; some i in l; a + b + c + d + e + f + g + h + i > 1000 }",
            "policy.limit",
            true,
        ),
    ] {
        assert_eq!(
            fault(&enforced(rules), &ask()).await,
            (code.into(), retryable),
            "{rules}"
        );
    }
}

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

#[tokio::test]
async fn a_panic_is_a_denial_and_the_next_call_is_decided() {
    fn one_in_two() -> SystemTime {
        static CALLS: AtomicU64 = AtomicU64::new(0);
        assert!(
            CALLS.fetch_add(1, Ordering::Relaxed) % 2 == 1,
            "as the test wants it"
        );
        SystemTime::now()
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.jsonl");
    for mode in [PolicyMode::Enforce, PolicyMode::Shadow] {
        let audit = audit_at(&path, config::OnAuditFailure::Deny);
        let mut policy = recorded(mode, &audit);
        Arc::get_mut(&mut policy.0).unwrap().clock = one_in_two;
        let mut ask = facts("execute_skill", vec![salesforce()]);
        ask.trace = Some(Trace::new());
        for _ in 0..3 {
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

#[tokio::test]
async fn rules_see_arguments_of_named_skills_alone() {
    let rules = "decision := {\"allow\": true, \"log\": {\"level\": \"full\"}} if input.request.args.to == \"a@example.com\"";
    let mut rules = prepared(&one(rules), PolicyMode::Enforce, Confirm::Always);
    rules.active.include_args = vec!["salesforce.leads.sync".into()];
    let sandbox = Sandbox {
        plugin: "process".into(),
    };
    let policy = Policy::new(rules, &sandbox, Audit::off());
    let ask = |method, skill: Arc<Skill>, args: Option<&str>| {
        let mut facts = facts(method, vec![skill]);
        facts.args = args.map(Into::into);
        facts
    };
    let good = r#"{"to": "a@example.com", "text": "canary"}"#;
    let named = ask("execute_skill", salesforce(), Some(good));
    assert!(policy.decide(&named).await.is_ok());
    for (method, skill, args, code) in [
        (
            "execute_skill",
            salesforce(),
            Some(r#"{"to": "b@example.com"}"#),
            "policy.undefined",
        ),
        (
            "execute_skill",
            salesforce(),
            Some("{}"),
            "policy.undefined",
        ),
        // Too long for the rules: no way around them.
        ("execute_skill", salesforce(), None, "policy.error"),
        (
            "execute_skill",
            skill("mail.send", ""),
            Some(good),
            "policy.undefined",
        ),
        ("run_code", salesforce(), Some(good), "policy.undefined"),
    ] {
        let asked = ask(method, skill, args);
        assert_eq!(fault(&policy, &asked).await.0, code, "{method} {args:?}");
    }
    let active = policy.0.active.load_full();
    let mut outcome = policy.evaluate(&active, &named, SystemTime::now());
    let record = record::record(false, &named, "dec_1", &mut outcome).json();
    assert_eq!(record["result"]["allow"], true);
    assert_eq!(record["erased"], json!(["/input/request/args"]));
    assert!(!record.to_string().contains("canary"), "{record:#}");
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
        // The arguments are too long for the rules, and not in the input.
        (
            "decision := {\"allow\": true}".to_owned(),
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
        ask.args = (code != "policy.error").then(|| r#"{"to": "canary"}"#.into());
        assert_eq!(fault(&policy, &ask).await.0, code, "{rules}");
        audit.close().await;

        let text = std::fs::read_to_string(&path).unwrap();
        let record: Value = serde_json::from_str(text.lines().nth(1).unwrap()).unwrap();
        assert!(!text.contains("canary"), "{rules}: {record:#}");
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
        let mut rules = prepared(
            &one(&format!("decision := {{{members}}}")),
            PolicyMode::Enforce,
            Confirm::Off,
        );
        rules.active.include_args = vec!["salesforce.leads.sync".into()];
        let sandbox = Sandbox {
            plugin: "process".into(),
        };
        let policy = Policy::new(rules, &sandbox, Audit::off());
        let active = policy.0.active.load_full();
        let mut outcome = policy.evaluate(&active, &ask, SystemTime::now());
        // It is read again here.
        let record = record::record(false, &ask, "dec_1", &mut outcome).json();
        assert_eq!(record["input"]["subject"]["id"], "alice", "{members}");
    }
}

#[tokio::test]
async fn engines_that_disagree_are_a_denial_and_an_alarm() {
    // Two values for one rule: the virtual machine takes the last, the interpreter fails.
    let rules = "pick := x if { some x in [1, 2] }\ndecision := {\"allow\": true, \"visible\": {\"namespaces\": [\"*\"]}} if pick == 2";
    let ask = || facts("list_skills", vec![]);
    let policy = |confirm| super::policy(&one(rules), PolicyMode::Enforce, confirm);
    assert!(policy(Confirm::Off).decide(&ask()).await.is_ok());
    let always = policy(Confirm::Always);
    assert_eq!(fault(&always, &ask()).await.0, "policy.engine_mismatch");
    assert_eq!(always.status().engine_mismatches, 1);
    // In the background: this call passes, the alarm comes.
    let sample = policy(Confirm::Sample);
    assert!(sample.decide(&ask()).await.is_ok());
    while sample.status().engine_mismatches == 0 {
        tokio::task::yield_now().await;
    }
    // What stays is confirmed before, whatever the sample.
    let mut publish = facts("create_skill", vec![salesforce()]);
    publish.publishes = true;
    assert_eq!(fault(&sample, &publish).await.0, "policy.engine_mismatch");
}

#[test]
fn decisions_are_read_strictly() {
    let parse = |text: &str| Decision::parse(&regorus::Value::from_json_str(text).unwrap());
    for good in [
        r#"{"allow": false}"#,
        r#"{"allow": true, "reasons": [], "limits": {}, "grants": {"code": {}, "skills": {}}, "visible": {"namespaces": ["*"]}, "obligations": [{"type": "audit"}, {"type": "egress.deny_cidrs", "cidrs": ["10.0.0.0/8", "::1/128"]}, {"type": "sandbox.fresh"}], "log": {"level": "full", "mask": ["/input/subject/claims"]}, "cache_ttl_s": 30}"#,
    ] {
        assert!(parse(good).is_ok(), "{good}");
    }
    for bad in [
        "null",
        "true",
        "[]",
        "{}",
        r#"{"allow": null}"#,
        r#"{"allow": 1}"#,
        r#"{"allow": "true"}"#,
        r#"{"allow": true, "grant": {}}"#,
        r#"{"allow": true, "limits": {"timeout": 1}}"#,
        r#"{"allow": true, "limits": {"timeout_ms": -1}}"#,
        r#"{"allow": true, "limits": {"timeout_ms": 1.5}}"#,
        r#"{"allow": true, "limits": {"timeout_ms": "1"}}"#,
        r#"{"allow": true, "limits": []}"#,
        r#"{"allow": true, "obligations": [{"type": "approve"}]}"#,
        r#"{"allow": true, "obligations": ["audit"]}"#,
        r#"{"allow": true, "obligations": [{"type": "egress.deny_cidrs", "cidrs": ["10.0.0.0"]}]}"#,
        r#"{"allow": true, "obligations": [{"type": "egress.deny_cidrs", "cidrs": ["10.0.0.0/33"]}]}"#,
        r#"{"allow": true, "obligations": [{"type": "egress.deny_cidrs", "cidr": ["10.0.0.0/8"]}]}"#,
        r#"{"allow": true, "grants": {"code": {"network": ["*"]}}}"#,
        r#"{"allow": true, "grants": {"code": {"network": ["https://*"]}}}"#,
        r#"{"allow": true, "grants": {"code": {"network": "https://a.com"}}}"#,
        r#"{"allow": true, "grants": {"skills": {"a": {"secrets": ["KEY"]}}}}"#,
        r#"{"allow": true, "grants": {"skills": {"a": {"secrets": [{"name": "LD_PRELOAD", "delivery": "env"}]}}}}"#,
        r#"{"allow": true, "grants": {"skills": {"a": {"secrets": [{"name": "KEY", "delivery": "file"}]}}}}"#,
        r#"{"allow": true, "visible": ["*"]}"#,
        r#"{"allow": true, "visible": {"namespaces": [1]}}"#,
        r#"{"allow": true, "log": {"level": "loud"}}"#,
        r#"{"allow": true, "log": {"mask": ["/decision_id"]}}"#,
        r#"{"allow": false, "reasons": ["no"]}"#,
        r#"{"allow": false, "reasons": [{"message": "x"}]}"#,
        r#"{"allow": false, "reasons": [{"code": "x", "data": {}}]}"#,
        r#"{"allow": true, "cache_ttl_s": "x"}"#,
        r#"{"allow": true, "obligations": [{"type": "sandbox.fresh", "cidrs": []}]}"#,
    ] {
        assert!(matches!(parse(bad), Err(Fault::Malformed(_))), "{bad}");
    }
    let silent = parse(r#"{"allow": true}"#).unwrap();
    assert!(!silent.shows("a.b"), "what is not said is not shown");
}

#[tokio::test]
async fn what_may_not_be_known_is_answered_like_what_is_missing() {
    let rules = "decision := {\"allow\": false, \"reasons\": [{\"code\": \"rbac.no_permit\", \"message\": \"no\"}], \"visible\": {\"namespaces\": [\"gdrive\", \"salesforce.leads\"]}}";
    let policy = enforced(rules);
    let hidden = |name: &str| {
        let policy = policy.clone();
        let ask = facts("describe_skill", vec![skill(name, "")]);
        async move { policy.decide(&ask).await.unwrap_err().hidden }
    };
    assert_eq!(hidden("salesforce.leads.sync").await, None);
    assert_eq!(hidden("salesforce.leads").await, None);
    assert_eq!(hidden("gdrive.x").await, None);
    for name in [
        "salesforce.leadsx.sync",
        "salesforce.other",
        "stripe.pay",
        "gdrivex.y",
    ] {
        assert_eq!(hidden(name).await.as_deref(), Some(name));
    }
    let mut publish = facts("create_skill", vec![skill("stripe.pay", "")]);
    publish.publishes = true;
    assert_eq!(policy.decide(&publish).await.unwrap_err().hidden, None);
}

#[tokio::test]
async fn callers_are_told_as_much_as_is_configured() {
    let rules = "decision := {\"allow\": false, \"reasons\": [{\"code\": \"a.b\", \"message\": \"why\"}], \"visible\": {\"namespaces\": [\"*\"]}}";
    for (exposure, told, text) in [
        (
            Exposure::Full,
            json!([{ "code": "a.b", "message": "why" }]),
            "denied by policy: why",
        ),
        (
            Exposure::Codes,
            json!([{ "code": "a.b" }]),
            "denied by policy",
        ),
        (Exposure::None, json!([]), "denied by policy"),
    ] {
        let mut prepared = prepared(&one(rules), PolicyMode::Enforce, Confirm::Off);
        prepared.active.exposure = exposure;
        let policy = Policy::new(
            prepared,
            &Sandbox {
                plugin: "process".into(),
            },
            Audit::off(),
        );
        let denied = policy
            .decide(&facts("list_skills", vec![]))
            .await
            .unwrap_err();
        assert_eq!(Value::Array(denied.reasons.clone()), told);
        assert_eq!(denied.to_string(), text);
    }
}

#[tokio::test]
async fn a_shadow_refuses_nothing_and_gives_nothing() {
    let denies = "decision := {\"allow\": false, \"grants\": {\"skills\": {\"a.b\": {\"network\": [\"https://a.com\"]}}}}";
    let allows = "decision := {\"allow\": true, \"limits\": {\"timeout_ms\": 5}, \"visible\": {\"namespaces\": [\"x\"]}, \"obligations\": [{\"type\": \"egress.deny_cidrs\", \"cidrs\": [\"10.0.0.0/8\"]}], \"grants\": {\"skills\": {\"a.b\": {\"network\": [\"https://a.com\"]}}}}";
    let ask = || {
        facts(
            "execute_skill",
            vec![skill(
                "a.b",
                "network = [\"https://a.com\"]\nsecrets = [\"A_KEY_1\"]",
            )],
        )
    };
    for rules in [
        denies,
        "decision := 1",
        "decision := {\"allow\": true} if input.nothing",
    ] {
        let permit = policy(&one(rules), PolicyMode::Shadow, Confirm::Off)
            .decide(&ask())
            .await
            .unwrap();
        assert!(
            permit.network.is_empty() && permit.secrets.is_empty(),
            "{rules}: {permit:?}"
        );
    }
    let permit = policy(&one(allows), PolicyMode::Shadow, Confirm::Off)
        .decide(&ask())
        .await
        .unwrap();
    assert_eq!(
        permit.network,
        ["https://a.com"],
        "what the decision grants"
    );
    assert_eq!(
        permit.deny_cidrs,
        ["10.0.0.0/8"],
        "and what it grants it with"
    );
    assert!(permit.secrets.is_empty() && permit.timeout_ms.is_none() && permit.visible.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_decision_is_of_one_revision_while_they_change() {
    // Both numbers of a permit are of the same revision, or the decision was made of two.
    let revision = |n: u64| {
        let rules = format!(
            "decision := {{\"allow\": true, \"limits\": {{\"timeout_ms\": {n}, \"max_blob_bytes\": {n}}}}}"
        );
        prepared(&one(&rules), PolicyMode::Enforce, Confirm::Sample)
    };
    let policy = Policy::new(
        revision(0),
        &Sandbox {
            plugin: "process".into(),
        },
        Audit::off(),
    );
    let done = Arc::new(AtomicBool::new(false));
    let flipping = {
        let (policy, done) = (policy.clone(), done.clone());
        std::thread::spawn(move || {
            let mut flips = 0_u64;
            while !done.load(Ordering::Relaxed) {
                flips += 1;
                policy.install(revision(flips));
            }
            flips
        })
    };
    let asking: Vec<_> = (0..4)
        .map(|_| {
            let policy = policy.clone();
            tokio::spawn(async move {
                let (mut last, mut seen) = (0, 0);
                for _ in 0..2_500 {
                    let permit = policy
                        .decide(&facts("list_skills", vec![]))
                        .await
                        .expect("decided");
                    assert_eq!(permit.timeout_ms, permit.max_blob_bytes);
                    let revision = permit.timeout_ms.expect("of a revision");
                    assert!(revision >= last, "an older one came back");
                    seen += u64::from(revision != last);
                    last = revision;
                }
                seen
            })
        })
        .collect();
    for asked in asking {
        assert!(asked.await.unwrap() > 0, "no revision changed under it");
    }
    done.store(true, Ordering::Relaxed);
    assert!(flipping.join().unwrap() > 10);
    assert_eq!(policy.status().engine_mismatches, 0);
}

#[tokio::test]
async fn a_record_says_what_was_decided_and_nothing_more() {
    let policy = policy(&bundled_files(), PolicyMode::Enforce, Confirm::Off);
    let mut ask = facts("execute_skill", vec![salesforce()]).with("arg_keys", json!(["sheet"]));
    ask.timeout_ms = Some(1000);
    let active = policy.0.active.load_full();
    let mut outcome = policy.evaluate(&active, &ask, SystemTime::now());
    let record = record::record(true, &ask, "dec_1", &mut outcome).json();
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

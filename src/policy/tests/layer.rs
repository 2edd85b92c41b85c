//! From facts to a permit or a denial.

use std::sync::atomic::AtomicBool;

use super::*;
use crate::policy::decision::Decision;
use crate::policy::engine::Fault;

/// Allows, and says exactly what the case is about.
fn saying(members: &str) -> Policy {
    enforced(&format!("decision := {{\"allow\": true, {members}}}"))
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
    let data = granting
        .contents
        .get_mut("skills/config/data.json")
        .unwrap();
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

/// A caller can bring a fault about, and learns nothing of a skill by that.
#[tokio::test]
async fn a_hidden_skill_is_hidden_without_a_decision_too() {
    let listing = "decision := {\"allow\": true, \"visible\": {\"namespaces\": [\"mail\"]}} if input.request.method == \"list_skills\"\n";
    let malformed = "decision := {\"allow\": 1} if input.request.method == \"execute_skill\"\n";
    let refused = "decision := {\"allow\": false, \"visible\": {\"namespaces\": [\"mail\"]}} if input.request.method == \"execute_skill\"\n";
    let (shown, hidden) = ("mail.send", "salesforce.leads.sync");
    for (rules, names, missing, told) in [
        (listing.to_owned(), vec![shown], None, None),
        (listing.to_owned(), vec![hidden], None, Some(hidden)),
        (listing.to_owned(), vec![shown, hidden], None, Some(hidden)),
        (
            listing.to_owned(),
            vec![shown],
            Some("z.none"),
            Some("z.none"),
        ),
        (
            listing.to_owned(),
            vec![hidden],
            Some("z.none"),
            Some(hidden),
        ),
        (format!("{listing}{malformed}"), vec![shown], None, None),
        (
            format!("{listing}{malformed}"),
            vec![hidden],
            None,
            Some(hidden),
        ),
        (
            refused.to_owned(),
            vec![shown],
            Some("z.none"),
            Some("z.none"),
        ),
        (
            refused.to_owned(),
            vec![hidden],
            Some("z.none"),
            Some(hidden),
        ),
        // Nothing is shown by rules that do not say what is.
        (malformed.to_owned(), vec![shown], None, Some(shown)),
    ] {
        let skills = names.iter().map(|name| skill(name, "")).collect();
        let mut ask = facts("execute_skill", skills);
        ask.missing = missing.map(str::to_owned);
        let denied = enforced(&rules).decide(&ask).await.unwrap_err();
        assert_eq!(
            denied.hidden.as_deref(),
            told,
            "{rules} {names:?} {missing:?}"
        );
        // What is published is the caller's own.
        ask.publishes = true;
        ask.missing = None;
        let denied = enforced(&rules).decide(&ask).await.unwrap_err();
        assert_eq!(denied.hidden, None);
    }
}

#[tokio::test]
async fn rules_see_arguments_of_named_skills_alone() {
    let rules = "decision := {\"allow\": true, \"log\": {\"level\": \"full\"}} if input.request.args.to == \"a@example.com\"";
    let policy = seeing_args("salesforce.leads.sync", rules, Confirm::Always);
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
        // Too long for the rules, or nothing that the engine reads: no way around them.
        ("execute_skill", salesforce(), None, "policy.error"),
        (
            "execute_skill",
            salesforce(),
            Some(r#"{"to": "a@example.com", "z": {"$serde_json::private::Number": "z"}}"#),
            "policy.error",
        ),
        // To the engine it is its neighbour's, which the rules may allow.
        (
            "execute_skill",
            salesforce(),
            Some(r#"{"to": "a@example.com", "account": 123456789012345678901}"#),
            "policy.error",
        ),
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
    let record = record::record(PolicyMode::Enforce, &named, "dec_1", &mut outcome).json();
    assert_eq!(record["result"]["allow"], true);
    assert_eq!(record["erased"], json!(["/input/request/args"]));
    assert!(!record.to_string().contains("canary"), "{record:#}");
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
        r#"{"allow": true, "limits": {"timeout_ms": 0}}"#,
        r#"{"allow": true, "limits": {"memory_mb": 0}}"#,
        r#"{"allow": true, "limits": {"memory_mb": 15}}"#,
        r#"{"allow": true, "limits": {"timeout_ms": 1.5}}"#,
        r#"{"allow": true, "limits": {"timeout_ms": "1"}}"#,
        r#"{"allow": true, "limits": []}"#,
        r#"{"allow": true, "obligations": [{"type": "approve"}]}"#,
        r#"{"allow": true, "obligations": ["audit"]}"#,
        r#"{"allow": true, "obligations": [{"type": "egress.deny_cidrs", "cidrs": ["10.0.0.0"]}]}"#,
        r#"{"allow": true, "obligations": [{"type": "egress.deny_cidrs", "cidrs": ["10.0.0.0/33"]}]}"#,
        // Nor what the gate would not read.
        r#"{"allow": true, "obligations": [{"type": "egress.deny_cidrs", "cidrs": ["10.0.0.0/+8"]}]}"#,
        r#"{"allow": true, "obligations": [{"type": "egress.deny_cidrs", "cidrs": ["10.0.0.0/008"]}]}"#,
        r#"{"allow": true, "obligations": [{"type": "egress.deny_cidrs", "cidrs": ["010.0.0.0/8"]}]}"#,
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
            "denied by policy: a.b",
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
async fn a_sandbox_is_a_fresh_one_where_the_rules_ask_for_it() {
    let asked = "[{\"type\": \"sandbox.fresh\"}]";
    for (mode, obligations, is_fresh) in [
        (PolicyMode::Enforce, asked, true),
        (PolicyMode::Enforce, "[]", false),
        (PolicyMode::Shadow, asked, false),
    ] {
        let text = format!("decision := {{\"allow\": true, \"obligations\": {obligations}}}");
        let rules = policy(&one(&text), mode, Confirm::Off);
        let permit = rules.decide(&facts("run_code", vec![])).await.unwrap();
        assert_eq!(permit.fresh, is_fresh, "{mode:?} {obligations}");
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

/// A reload brings every part anew, also those that it does not change.
#[test]
fn the_same_rules_once_more_are_no_new_ones() {
    let rules = one("decision := {\"allow\": true}");
    let policy = policy(&rules, PolicyMode::Enforce, Confirm::Off);
    let again = |change: fn(&mut Active)| {
        let mut prepared = prepared(&rules, PolicyMode::Enforce, Confirm::Off);
        change(&mut prepared.active);
        policy.install(prepared);
        policy.generation()
    };
    let since = || policy.0.active.load().since;
    let began = since();
    assert_eq!(again(|active| active.since += Duration::from_secs(9)), 0);
    assert_eq!(since(), began);
    assert_eq!(again(|active| active.exposure = Exposure::Codes), 0);
    assert_eq!(policy.0.active.load().exposure, Exposure::Codes);
    for (change, generation) in [
        (|active| active.mode = PolicyMode::Shadow) as fn(&mut Active),
        |active| active.include_args = vec!["a".into()],
        |active| active.instructions_max -= 1,
        |active| active.confirm = Confirm::Always,
        |active| active.set = None,
    ]
    .into_iter()
    .zip((1..).step_by(2))
    {
        // One change alone, and it alone taken back.
        assert_eq!(again(change), generation);
        assert_eq!(again(|_| ()), generation + 1);
    }
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
        revision(1),
        &Sandbox {
            plugin: "process".into(),
        },
        Audit::off(),
    );
    let done = Arc::new(AtomicBool::new(false));
    let flipping = {
        let (policy, done) = (policy.clone(), done.clone());
        std::thread::spawn(move || {
            let mut flips = 1_u64;
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
                let (mut last, mut seen) = (1, 0);
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

/// What the policies' README has for a method, a skill, a secret and a host.
#[tokio::test]
async fn the_rules_of_the_readme_refuse_what_they_say() {
    let readme = include_str!("../../../policies/README.md");
    // Not the one before: what it refuses depends on the day.
    let (_, behind) = readme.split_once("each refused to everybody:").unwrap();
    let rules = behind.split("```").nth(1).unwrap();
    let mut files = bundled_files();
    let rules = rules.strip_prefix("rego\n").unwrap();
    let path = "skills/custom/readme.rego".to_owned();
    files.add(path, rules.into()).unwrap();
    let policy = policy(&files, PolicyMode::Enforce, Confirm::Always);
    let network = |pattern: &str| skill("acme.x", &format!("network = [{pattern:?}]"));
    for (method, skill, code) in [
        ("create_skill", skill("acme.x", ""), Some("custom.publish")),
        ("run_code", skill("acme.payroll", ""), Some("custom.skill")),
        ("describe_skill", skill("acme.payroll", ""), None),
        (
            "execute_skill",
            skill("acme.x", "secrets = [\"STRIPE_API_KEY\"]"),
            Some("custom.secret"),
        ),
        (
            "execute_skill",
            network("https://files.example.com"),
            Some("custom.host"),
        ),
        (
            "execute_skill",
            network("https://a.files.example.com:8443"),
            Some("custom.host"),
        ),
        (
            "execute_skill",
            network("https://*.example.com"),
            Some("custom.host"),
        ),
        ("execute_skill", network("https://example.com"), None),
        (
            "execute_skill",
            network("https://*.myfiles.example.com"),
            None,
        ),
    ] {
        let decided = policy.decide(&facts(method, vec![skill])).await;
        let refused = decided.err().map(|denied| codes(&denied).join(","));
        assert_eq!(refused.as_deref(), code, "{method}");
    }
}

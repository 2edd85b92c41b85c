//! A question that was answered in this second is not put to the rules again, and everything else is.

use super::super::memo::may_see_id;
use super::*;
use crate::policy::bundle::Module;
use std::time::UNIX_EPOCH;

const NOW: SystemTime = UNIX_EPOCH;

/// How one decision ended, and whether it was remembered.
fn ask_at(policy: &Policy, facts: &Facts, now: SystemTime) -> (bool, bool) {
    let active = policy.0.active.load_full();
    let outcome = policy.evaluate(&active, facts, now);
    (outcome.allows(), outcome.is_recalled)
}

fn ask(policy: &Policy, facts: &Facts) -> (bool, bool) {
    ask_at(policy, facts, NOW)
}

fn by(tenant: &str, id: &str, roles: &[&str]) -> Facts {
    let caller = Caller::for_tests(tenant, id, roles);
    Facts::new("execute_skill", caller, "1").with("arg_bytes", 2)
}

#[test]
fn the_bundled_rules_are_asked_once_a_second() {
    let policy = policy(&bundled_files(), PolicyMode::Enforce, Confirm::Off);
    let mut facts = facts("execute_skill", vec![skill("skills.protocol.x", "")]);
    assert_eq!(ask(&policy, &facts), (true, false));
    assert_eq!(ask(&policy, &facts), (true, true));
    facts.id = "another".into();
    assert_eq!(ask(&policy, &facts), (true, true));
    // The id of the record is the call's own.
    let active = policy.0.active.load_full();
    let mut outcome = policy.evaluate(&active, &facts, NOW);
    let record = record::record(PolicyMode::Enforce, &facts, "dec_1", &mut outcome).json();
    assert_eq!(record["input"]["request"]["id"], "another");
    assert_eq!(record["metrics"]["counter_policy_decision_recalled"], 1);
    let later = NOW + Duration::from_secs(1);
    assert_eq!(ask_at(&policy, &facts, later), (true, false));
}

#[test]
fn a_refusal_is_remembered_like_an_allow() {
    let policy = policy(&bundled_files(), PolicyMode::Enforce, Confirm::Off);
    let mut facts = by("default", "eve", &[]);
    facts.skills = vec![skill("skills.protocol.x", "")];
    assert_eq!(ask(&policy, &facts), (false, false));
    assert_eq!(ask(&policy, &facts), (false, true));
}

/// Each of these is another question, though it would be kept in the same place.
#[test]
fn whatever_differs_is_asked() {
    let rules = "decision := {\"allow\": true}";
    let base = || {
        let mut facts = by("acme", "alice", &["operator"]);
        facts.skills = vec![skill("a.b", "")];
        facts
    };
    type Change = fn(&mut Facts);
    let differing: [(&str, Change); 7] = [
        ("roles", |facts| {
            facts.caller = Caller::for_tests("acme", "alice", &["admin"]);
        }),
        ("who", |facts| {
            facts.caller = Caller::for_tests("acme", "bob", &["operator"]);
        }),
        ("tenant", |facts| {
            facts.caller = Caller::for_tests("other", "alice", &["operator"]);
        }),
        ("skill", |facts| {
            facts.skills = vec![skill("a.b", "network = [\"https://a.com\"]")];
        }),
        ("time", |facts| facts.timeout_ms = Some(1)),
        ("bytes", |facts| facts.blob_bytes = Some(1)),
        ("members", |facts| {
            facts.request.insert("arg_bytes".into(), 3.into());
        }),
    ];
    for (what, change) in differing {
        let policy = enforced(rules);
        assert_eq!(ask(&policy, &base()), (true, false), "{what}");
        let mut other = base();
        change(&mut other);
        assert_eq!(ask(&policy, &other), (true, false), "{what}");
        assert_eq!(ask(&policy, &other), (true, true), "{what}");
    }
}

#[test]
fn new_rules_remember_nothing() {
    let (before, after) = (
        one("decision := {\"allow\": true}"),
        one("decision := {\"allow\": false}"),
    );
    let policy = policy(&before, PolicyMode::Enforce, Confirm::Off);
    let facts = facts("execute_skill", Vec::new());
    assert_eq!(ask(&policy, &facts), (true, false));
    assert_eq!(ask(&policy, &facts), (true, true));
    policy.install(prepared(&after, PolicyMode::Enforce, Confirm::Off));
    assert_eq!(ask(&policy, &facts), (false, false));
}

#[test]
fn rules_that_see_the_id_are_asked_each_time() {
    let policy = enforced("decision := {\"allow\": input.request.id == \"1\"}");
    let mut facts = facts("execute_skill", Vec::new());
    assert_eq!(ask(&policy, &facts), (true, false));
    assert_eq!(ask(&policy, &facts), (true, false));
    facts.id = "2".into();
    assert_eq!(ask(&policy, &facts), (false, false));
}

#[test]
fn a_decision_that_failed_is_made_again() {
    let policy = enforced("decision := {\"allow\": \"yes\"}");
    let facts = facts("execute_skill", Vec::new());
    for _ in 0..2 {
        assert_eq!(ask(&policy, &facts), (false, false));
    }
}

/// Arguments are seen where they are named; what is large is not kept.
#[test]
fn what_is_not_for_keeping() {
    let rules = "decision := {\"allow\": input.request.args.n == 1}";
    let policy = seeing_args("a.b", rules, Confirm::Off);
    let mut with_args = facts("execute_skill", vec![skill("a.b", "")]);
    for (args, allows) in [
        ("{\"n\":1}", true),
        ("{\"n\":1}", true),
        ("{\"n\":2}", false),
    ] {
        with_args.args = Some(args.into());
        assert_eq!(ask(&policy, &with_args), (allows, false), "{args}");
    }

    let policy = enforced("decision := {\"allow\": true}");
    let large = |bytes| facts("list_skills", Vec::new()).with("namespace", "n".repeat(bytes));
    for (facts, is_kept) in [(large(1000), true), (large(1025), false)] {
        assert_eq!(ask(&policy, &facts), (true, false));
        assert_eq!(ask(&policy, &facts), (true, is_kept));
    }
    let two = facts("run_code", vec![skill("a.b", ""), skill("a.c", "")]);
    assert_eq!(ask(&policy, &two), (true, false));
    assert_eq!(ask(&policy, &two), (true, false));
}

#[test]
fn who_may_see_the_id() {
    for (code, sees) in [
        ("x if input.subject.id == \"a\"", false),
        ("x if input.request.method == \"id\"", false),
        ("x if input.request.idle", false),
        ("x if inputs.request.id", false),
        ("x if my_input == 1", false),
        ("# the input\nx := 1 # and the input", false),
        ("x := \"no # comment, and input\"", false),
        ("x := \"\\\" input\"", false),
        ("x := `\n# ` ; y := input", true),
        ("x := \"#\" ; y := input", true),
        ("x := \"\\\\\" ; y := input", true),
        ("x if input.request.id", true),
        ("x if input.request.id.y", true),
        ("x := input", true),
        ("x := input.request", true),
        ("x := input[\"request\"][\"id\"]", true),
        ("x := input.request[\"id\"]", true),
        ("x if input.request[y]", true),
        ("x if walk(input, y)", true),
        ("x := object.get(input, [\"request\", \"id\"], 1)", true),
        ("import input.request as r", true),
        ("import input as i", true),
        ("x if input\n.request.id", true),
        ("x := $\"{input.subject}\"", true),
    ] {
        let module = |text: &str| Module {
            path: "a.rego".into(),
            text: text.into(),
        };
        assert_eq!(
            may_see_id(&[module("x := 1"), module(code)]),
            sees,
            "{code}"
        );
    }
}

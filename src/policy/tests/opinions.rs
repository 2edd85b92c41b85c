//! What somebody is told who asks a bundle without a gateway.

use serde_json::{Value, json};

use super::*;
use crate::policy::inspect::{Candidate, Opinion, Replay};

fn candidate(rules: &str) -> Candidate {
    confirmed(rules, Confirm::Sample)
}

fn confirmed(rules: &str, confirm: Confirm) -> Candidate {
    Candidate::for_tests(bundle(&one(rules)), BUDGET, confirm)
}

/// A function that fails is no deny to the virtual machine, and an error with its place to the interpreter.
#[test]
fn both_engines_are_asked() {
    let rules = "decision := {\"allow\": allow}\n\ndefault allow := false\n\nallow if not low\n\n\
        low if to_number(input.subject.claims.level) < 3\n";
    let candidate = candidate(rules);
    let about = |method: &str, level: &str| json!({ "request": { "method": method }, "subject": { "claims": { "level": level } } });
    let of = |opinion: &Opinion| (opinion.allow, opinion.interpreter.is_some());
    let agreed = candidate.opinion(&about("read_blob", "5"));
    assert_eq!(of(&agreed), (true, false), "{agreed:?}");
    let denied = candidate.opinion(&about("read_blob", "2"));
    assert_eq!(of(&denied), (false, false), "{denied:?}");

    let input = about("read_blob", "abc");
    let differs = candidate.opinion(&input);
    let why = differs.interpreter.as_deref().unwrap();
    assert!(
        differs.allow && why.starts_with("policies/a.rego:9:"),
        "{why}"
    );
    assert!(why.contains("number") && !why.contains('\n'), "{why}");
    // As the gateway refuses what it asks both about before it answers.
    for input in [
        about("create_skill", "abc"),
        json!({ "request": { "method": "execute_skill", "args": {} }, "subject": { "claims": { "level": "abc" } } }),
    ] {
        let refused = candidate.opinion(&input);
        assert_eq!(of(&refused), (false, true), "{refused:?}");
        assert_eq!(refused.reasons[0]["code"], "policy.engine_mismatch");
    }
    // And as its configuration has it.
    for (confirm, method, allow) in [
        (Confirm::Always, "read_blob", false),
        (Confirm::Off, "create_skill", true),
    ] {
        let opinion = confirmed(rules, confirm).opinion(&about(method, "abc"));
        assert_eq!(of(&opinion), (allow, true), "{opinion:?}");
    }
    // The guard that it is about, and why.
    let guards = candidate.guards(&input);
    let error = guards[0].error.as_deref().unwrap();
    assert_eq!((guards.len(), guards[0].holds), (1, None));
    assert!(error.starts_with("policies/a.rego:9:"), "{error}");
}

/// That there is no decision has a reason, which the virtual machine does not tell.
#[test]
fn a_rule_with_two_values_is_named() {
    let rules = "decision := {\"allow\": true, \"limits\": limits}\n\nlimits := {\"timeout_ms\": 1000}\n\n\
        limits := {\"timeout_ms\": 2000} if input.request.method == \"run_code\"\n";
    let candidate = candidate(rules);
    let fine = candidate.opinion(&json!({ "request": { "method": "read_blob" } }));
    assert!(fine.allow && fine.interpreter.is_none(), "{fine:?}");
    let told = candidate.opinion(&json!({ "request": { "method": "run_code" } }));
    let why = told.interpreter.as_deref().unwrap();
    assert!(why.starts_with("policies/a.rego:"), "{told:?}");
}

/// A candidate that grants the same within less is no candidate that changes nothing.
#[test]
fn other_limits_and_obligations_are_changes() {
    let of = |limits: &str, more: &str| {
        candidate(&format!(
            "decision := {{\"allow\": true, \"limits\": {limits}, {more}}}\n"
        ))
    };
    let visible = |namespaces: &str| format!("\"visible\": {{\"namespaces\": {namespaces}}}");
    let record = |decision: Option<Value>| {
        let mut record = json!({
            "kind": "decision", "decision_id": "dec_1", "input": { "request": { "method": "list_skills" } },
            "result": { "allow": true, "granted": { "network": [], "secrets": [] }, "limits": { "timeout_ms": 1000, "memory_bytes": null, "max_blob_bytes": null } },
        });
        if let Some(decision) = decision {
            record["result"]["decision"] = decision;
        }
        record.to_string()
    };
    let replayed = |candidate: &Candidate, record: &str| {
        let mut replay = Replay::default();
        replay.add(candidate, record, 1);
        (
            replay.other_terms,
            replay.without_decision,
            replay.flips.len(),
        )
    };
    let same = of("{\"timeout_ms\": 1000}", &visible("[\"acme\"]"));
    let (plain, less) = (record(None), of("{\"timeout_ms\": 1001}", &visible("[]")));
    assert_eq!(replayed(&same, &plain), (0, 1, 0));
    assert_eq!(replayed(&less, &plain), (1, 1, 1));
    let whole = record(Some(json!({ "visible": { "namespaces": ["acme"] } })));
    assert_eq!(replayed(&same, &whole), (0, 0, 0));
    // What a mask has taken is not compared.
    let mut masked: Value = serde_json::from_str(&whole).unwrap();
    masked["erased"] = json!(["/result/decision/visible/namespaces", "/result/limits"]);
    masked["result"]["limits"] = json!({});
    masked["result"]["decision"]["visible"] = json!({});
    assert_eq!(replayed(&less, &masked.to_string()), (0, 1, 0));
    let hides = of("{\"timeout_ms\": 1000}", &visible("[]"));
    assert_eq!(replayed(&hides, &whole), (1, 0, 1));
    let fresh = format!(
        "{}, \"obligations\": [{{\"type\": \"audit\"}}]",
        visible("[\"acme\"]")
    );
    assert_eq!(
        replayed(&of("{\"timeout_ms\": 1000}", &fresh), &whole),
        (1, 0, 1)
    );
}

/// A grant that cannot be given is no disagreement of the engines.
#[test]
fn a_grant_that_is_none_is_the_same_to_both() {
    let rules = "decision := {\"allow\": true, \"grants\": {\"code\": {\"network\": [], \"secrets\": []}, \"skills\": {\"a.b\": {\"network\": [], \"secrets\": [{\"name\": \"KEY\", \"delivery\": \"proxy\"}]}}}}\n";
    let input = json!({
        "request": { "method": "execute_skill" },
        "skills": [{ "name": "a.b", "permissions": { "network": [], "secrets": ["KEY"] } }],
    });
    let told = candidate(rules).opinion(&input);
    assert!(!told.allow && told.interpreter.is_none(), "{told:?}");
    assert_eq!(told.reasons[0]["code"], "policy.malformed");
}

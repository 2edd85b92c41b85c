//! Default deny: for every method, an input that is allowed, and then the same with one thing taken out of it.

use std::collections::BTreeSet;

use super::*;
use crate::policy::decision::Decision;

/// An allowed input for each method, as the golden decisions have them.
fn allowed() -> Vec<(String, Value)> {
    let bundle = bundle(&bundled_files());
    let goldens = bundle.goldens().iter().filter(|golden| golden.expect.allow);
    let mut inputs: Vec<_> = goldens
        .map(|golden| {
            (
                golden.input["request"]["method"]
                    .as_str()
                    .unwrap()
                    .to_owned(),
                golden.input.clone(),
            )
        })
        .collect();
    inputs.sort_by(|a, b| a.0.cmp(&b.0));
    inputs.dedup_by(|a, b| a.0 == b.0);
    inputs
}

fn allows(set: &PolicySet, input: &Value) -> bool {
    let machine = set
        .decide(input.clone().into(), BUDGET)
        .and_then(|value| Decision::parse(&value));
    let interpreter = set
        .interpret(input.clone().into())
        .and_then(|value| Decision::parse(&value));
    let machine = machine.is_ok_and(|decision| decision.allow);
    // The machine's word counts. Where it allows, the interpreter must too; it may allow what the machine denies, since
    // it leaves out of a list what is undefined, where the machine has no list then.
    assert!(
        !machine || interpreter.is_ok_and(|decision| decision.allow),
        "{input}"
    );
    machine
}

/// Every member at every depth, as a pointer.
fn members(value: &Value, at: &str, found: &mut Vec<String>) {
    let below: Vec<(String, &Value)> = match value {
        Value::Object(members) => members
            .iter()
            .map(|(name, value)| (name.clone(), value))
            .collect(),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .map(|(index, value)| (index.to_string(), value))
            .collect(),
        _ => return,
    };
    for (name, value) in below {
        let pointer = format!("{at}/{name}");
        members(value, &pointer, found);
        found.push(pointer);
    }
}

fn without(input: &Value, pointer: &str) -> Value {
    let mut input = input.clone();
    let (above, name) = pointer.rsplit_once('/').unwrap();
    match input.pointer_mut(above).unwrap() {
        Value::Object(members) => drop(members.remove(name)),
        Value::Array(items) => drop(items.remove(name.parse().unwrap())),
        _ => {}
    }
    input
}

/// Looked at by no bundled rule, in no method: taking it out changes nothing.
const IDLE: &[&str] = &[
    "/schema",
    "/time",
    "/time/*",
    "/source/proxied",
    "/request/*",
    "/subject/id",
    "/subject/kind",
    "/subject/issuer",
    "/subject/scopes",
    "/subject/scopes/*",
    "/subject/actor",
    "/subject/actor/*",
    "/subject/claims",
    "/subject/claims/*",
    // A blob less, or less of it.
    "/blobs/0",
    "/blobs/0/*",
    "/limits/blob_bytes",
    "/limits/requested/*",
    // What could not be read asks for nothing.
    "/skills/0/unread",
    "/skills/0/version",
    "/skills/0/kind",
    "/skills/0/digest",
    "/skills/0/provenance/publisher",
    "/skills/0/provenance/signed",
    "/sandbox/plugin",
];

/// And by method: what only code that runs needs, what a skill does not ask for, the other way to a role.
const IDLE_IN: &[(&str, &[&str])] = &[
    (
        "execute_skill",
        &[
            "/sandbox/isolation",
            "/subject/roles",
            // A wildcard's host is its first suffix.
            "/skills/0/permissions/network/0/host",
            "/skills/0/permissions/network/0/suffixes/1",
            // Less that is asked for is less to grant.
            "/skills/0/permissions/network/0",
            "/skills/0/permissions/secrets/0",
        ],
    ),
    ("run_code", &["/sandbox", "/sandbox/*", "/subject/roles"]),
    (
        "create_skill",
        &[
            "/sandbox",
            "/sandbox/*",
            "/subject/groups",
            "/subject/groups/0",
            "/skills/0/provenance",
            "/skills/0/provenance/origin",
        ],
    ),
    ("describe_skill", READS),
    ("read_skill_file", READS),
    ("list_skills", READS),
    ("create_blob", READS),
    ("read_blob", READS),
    ("load_skills_protocol_guide", READS),
    ("rpc.discover", READS),
    ("describe_skill", UNBOUNDED),
    ("read_skill_file", UNBOUNDED),
    ("list_skills", UNBOUNDED),
    ("read_blob", UNBOUNDED),
    ("load_skills_protocol_guide", UNBOUNDED),
    ("rpc.discover", UNBOUNDED),
];

const READS: &[&str] = &[
    "/sandbox",
    "/sandbox/*",
    "/subject/roles",
    "/skills/0/provenance",
    "/skills/0/provenance/origin",
    "/skills/0/permissions",
    "/skills/0/permissions/*",
];

/// Nothing is made and nothing runs, so there is nothing to bound.
const UNBOUNDED: &[&str] = &["/limits", "/limits/*"];

/// Never idle, whatever a `*` above says.
const NEEDED: &[&str] = &["/request/method", "/blobs/0/tenant"];

fn is_idle(method: &str, pointer: &str) -> bool {
    let of_method = IDLE_IN.iter().filter(|(name, _)| *name == method);
    let mut idle = IDLE.iter().chain(of_method.flat_map(|(_, idle)| *idle));
    let covers = |idle: &str| match idle.strip_suffix('*') {
        Some(above) => pointer.starts_with(above),
        None => pointer == idle,
    };
    !NEEDED.contains(&pointer) && idle.any(|idle| covers(idle))
}

#[test]
fn every_field_of_every_method_is_needed_or_known_not_to_be() {
    let set = PolicySet::compile(&bundle(&bundled_files())).unwrap();
    let inputs = allowed();
    let methods: BTreeSet<&str> = inputs.iter().map(|(method, _)| method.as_str()).collect();
    assert_eq!(methods.len(), 10, "{methods:?}");
    let (mut denied, mut wrong) = (0, Vec::new());
    for (method, input) in &inputs {
        assert!(allows(&set, input), "{method}");
        let mut pointers = Vec::new();
        members(input, "", &mut pointers);
        for pointer in pointers {
            let allowed = allows(&set, &without(input, &pointer));
            denied += usize::from(!allowed);
            if allowed != is_idle(method, &pointer) {
                wrong.push(format!("{method} without {pointer}: allow = {allowed}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    println!("{denied} omissions are denied");
}

#[test]
fn a_value_of_another_type_is_no_key() {
    let set = PolicySet::compile(&bundle(&bundled_files())).unwrap();
    for (method, input) in allowed() {
        for pointer in [
            "/subject",
            "/request",
            "/request/method",
            "/subject/authenticated",
            "/subject/tenant",
            "/source",
            "/source/ip",
            "/blobs",
            "/skills",
        ] {
            for value in [
                Value::Null,
                json!(0),
                json!("x"),
                json!([1]),
                json!({}),
                json!({ "x": 1 }),
            ] {
                let mut input = input.clone();
                // Nothing is in an empty list of either form.
                if value == json!({}) && ["/blobs", "/skills"].contains(&pointer) {
                    continue;
                }
                *input.pointer_mut(pointer).unwrap() = value.clone();
                assert!(!allows(&set, &input), "{method}: {pointer} = {value}");
            }
        }
    }
}

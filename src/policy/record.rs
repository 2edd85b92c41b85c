//! The record of a decision, in the shape of an OPA decision log (OPA documentation, "Decision Logs").
//!
//! The input has no arguments, no code, no tokens and no secret's value to begin with; what the rules name in `log.mask`
//! is taken out as well, and `erased` says what was.

use serde_json::{Map, Value, json};

use super::decision::LogLevel;
use super::engine::Fault;
use super::{Facts, Outcome};

/// The path of the decision, as OPA writes it.
const PATH: &str = "skills/authz/decision";

/// Of a skill that `policy.include_args` names.
const ARGS: &str = "/input/request/args";

/// For the gateway's own log.
pub(super) fn report(is_shadow: bool, facts: &Facts, decision_id: &str, outcome: &Outcome) {
    let (method, tenant) = (facts.method, facts.caller.tenant());
    let revision = outcome.set.as_ref().map(|set| set.revision.as_str());
    if !outcome.grant.clamped.is_empty() {
        tracing::warn!(
            decision_id,
            method,
            beyond = ?outcome.grant.clamped,
            "the decision grants what no manifest declares; that part is left out"
        );
    }
    match &outcome.decision {
        Ok(decision) if decision.allow => {
            tracing::debug!(decision_id, method, tenant, revision, "allowed");
        }
        Ok(decision) => {
            let codes: Vec<_> = decision
                .reasons
                .iter()
                .map(|reason| reason["code"].as_str())
                .collect();
            tracing::info!(
                decision_id,
                method,
                tenant,
                revision,
                ?codes,
                shadow = is_shadow,
                "denied"
            );
        }
        Err(fault) => {
            tracing::error!(decision_id, method, tenant, revision, code = fault.code(), reason = %fault, shadow = is_shadow, "no decision: denied");
        }
    }
}

/// The record of one decision.
pub(super) fn body(
    is_shadow: bool,
    facts: &Facts,
    decision_id: &str,
    outcome: &Outcome,
) -> Map<String, Value> {
    let mode = if is_shadow { "shadow" } else { "enforce" };
    let (revision, digest) = outcome
        .set
        .as_ref()
        .map_or(("", ""), |set| (set.revision.as_str(), set.digest.as_str()));
    let log = outcome.decision.as_ref().map(|decision| &decision.log);
    let level = log.map_or(LogLevel::Full, |log| log.level);
    let mut record = json!({
        "decision_id": decision_id,
        "labels": { "product": "skillgate", "version": env!("CARGO_PKG_VERSION"), "mode": mode },
        "bundles": { "policy": { "revision": revision, "sha256": digest } },
        "path": PATH,
        "requested_by": facts.caller.subject().id,
        "result": result(outcome),
        "metrics": { "timer_policy_decision_ns": outcome.took_ns },
    });
    if let Some(trace) = &facts.trace {
        record["trace_id"] = trace.trace_id().into();
        record["span_id"] = trace.span_id().into();
    }
    if level != LogLevel::None {
        record["input"] = plain(&outcome.input);
    }
    if level == LogLevel::Full
        && let Some(raw) = &outcome.raw
    {
        record["result"]["decision"] = plain(raw);
    }
    if !outcome.grant.clamped.is_empty() {
        record["result"]["clamped"] = json!(outcome.grant.clamped);
    }
    let mut erased: Vec<&str> = Vec::new();
    for pointer in log.iter().flat_map(|log| &log.mask) {
        if erase(&mut record, pointer) {
            erased.push(pointer);
        }
    }
    // Whatever the rules say: no record has arguments.
    if erase(&mut record, ARGS) {
        erased.push(ARGS);
    }
    record["erased"] = json!(erased);
    match record {
        Value::Object(record) => record,
        _ => Map::new(),
    }
}

/// What came of it: what was granted after narrowing, not what was asked for.
fn result(outcome: &Outcome) -> Value {
    match &outcome.decision {
        Ok(decision) => json!({
            "allow": decision.allow,
            "reasons": decision.reasons_json(),
            "granted": { "network": outcome.grant.network, "secrets": outcome.grant.secrets },
            "limits": {
                "timeout_ms": decision.limits.timeout_ms,
                "memory_bytes": decision.limits.memory_bytes,
                "max_blob_bytes": decision.limits.max_blob_bytes,
            },
        }),
        Err(fault) => json!({ "allow": false, "reasons": [reason(fault)] }),
    }
}

fn reason(fault: &Fault) -> Value {
    json!({ "code": fault.code(), "message": fault.to_string() })
}

/// Removes what a pointer names (RFC 6901). Whether there was something.
fn erase(record: &mut Value, pointer: &str) -> bool {
    let Some((above, name)) = pointer.rsplit_once('/') else {
        return false;
    };
    let name = name.replace("~1", "/").replace("~0", "~");
    match record.pointer_mut(above) {
        Some(Value::Object(members)) => members.remove(&name).is_some(),
        Some(Value::Array(items)) => match name.parse::<usize>() {
            Ok(index) if index < items.len() => {
                // The others keep their places.
                items[index] = Value::Null;
                true
            }
            _ => false,
        },
        _ => false,
    }
}

/// An engine's value as JSON.
pub(super) fn plain(value: &regorus::Value) -> Value {
    use regorus::Value as Engine;
    match value {
        Engine::Null | Engine::Undefined => Value::Null,
        Engine::Bool(flag) => Value::Bool(*flag),
        Engine::Number(_) => value
            .as_u64()
            .map(Value::from)
            .or_else(|_| value.as_i64().map(Value::from))
            .or_else(|_| value.as_f64().map(Value::from))
            .unwrap_or(Value::Null),
        Engine::String(text) => Value::String(text.to_string()),
        Engine::Array(items) => items.iter().map(plain).collect(),
        Engine::Set(items) => items.iter().map(plain).collect(),
        Engine::Object(members) => members
            .iter()
            .map(|(name, value)| {
                let name = match name {
                    Engine::String(name) => name.to_string(),
                    other => plain(other).to_string(),
                };
                (name, plain(value))
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_mask_names_is_gone() {
        let mut record = json!({ "input": { "a/b": 1, "list": [1, 2], "x": { "y": "secret" } } });
        assert!(erase(&mut record, "/input/a~1b"));
        assert!(erase(&mut record, "/input/x/y"));
        assert!(erase(&mut record, "/input/list/0"));
        assert!(!erase(&mut record, "/input/nothing/here"));
        assert_eq!(record, json!({ "input": { "list": [null, 2], "x": {} } }));
    }
}

//! The record of a decision, in the shape of an OPA decision log (OPA documentation, "Decision Logs").
//!
//! The input has no arguments, no code, no tokens and no secret's value to begin with; what the rules name in `log.mask`
//! is taken out as well, and `erased` says what was. Of a call on which they said nothing, the claims are.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::Facts;
use super::decision::{Limits, LogLevel};
use super::load::mode_name;
use super::outcome::Outcome;
use crate::audit::{Kind, Record};
use crate::config::PolicyMode;

/// The path of the decision, as OPA writes it.
const PATH: &str = "skills/authz/decision";

/// Of a skill that `policy.include_args` names.
const ARGS: &str = "request/args";
const ARGS_POINTER: &str = "/input/request/args";

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

/// The record of one decision. Takes the input out of the outcome: nothing needs it any more.
pub(super) fn record(
    mode: PolicyMode,
    facts: &Facts,
    decision_id: &str,
    outcome: &mut Outcome,
) -> Record {
    let mut input = std::mem::replace(&mut outcome.input, regorus::Value::Null);
    let log = outcome.log();
    let level = log.level;
    let result = RecordedResult::of(outcome, level);
    let (mut erased, mut masked_result): (Vec<&str>, _) = (Vec::new(), None);
    for pointer in &log.mask {
        let is_there = if let Some(inside) = pointer.strip_prefix("/input/") {
            level != LogLevel::None && mask(&mut input, inside)
        } else if let Some(inside) = pointer.strip_prefix("/result") {
            let result = masked_result.get_or_insert_with(|| json!(result));
            erase(result, inside)
        } else {
            false
        };
        if is_there {
            erased.push(pointer);
        }
    }
    // Whatever the rules say: no record has arguments.
    if level != LogLevel::None && mask(&mut input, ARGS) {
        erased.push(ARGS_POINTER);
    }
    let set = outcome.set.as_ref();
    let mut record = Record::empty(Kind::Decision)
        .with("decision_id", &decision_id)
        .with(
            "labels",
            &Labels {
                product: "skillgate",
                version: env!("CARGO_PKG_VERSION"),
                mode: mode_name(mode),
            },
        )
        .with(
            "bundles",
            &Bundles {
                policy: Bundle {
                    revision: set.map_or("", |set| &set.revision),
                    sha256: set.map_or("", |set| &set.digest),
                },
            },
        )
        .with("path", &PATH)
        .with("requested_by", &facts.caller.subject().id);
    if let Some(trace) = &facts.trace {
        record = record
            .with("trace_id", &trace.trace_id())
            .with("span_id", &trace.span_id());
    }
    if level != LogLevel::None {
        record = record.with("input", &Json(&input));
    }
    let record = match masked_result {
        Some(masked) => record.with("result", &masked),
        None => record.with("result", &result),
    };
    let metrics = Metrics {
        timer_policy_decision_ns: outcome.took_ns,
        counter_policy_decision_recalled: u8::from(outcome.is_recalled),
    };
    record.with("metrics", &metrics).with("erased", &erased)
}

#[derive(Serialize)]
struct Labels {
    product: &'static str,
    version: &'static str,
    mode: &'static str,
}

#[derive(Serialize)]
struct Bundles<'a> {
    policy: Bundle<'a>,
}

#[derive(Serialize)]
struct Bundle<'a> {
    revision: &'a str,
    sha256: &'a str,
}

#[derive(Serialize)]
struct Metrics {
    timer_policy_decision_ns: u64,
    /// 1: the same was asked within the second, and this is what the rules said then.
    counter_policy_decision_recalled: u8,
}

/// What came of it: what was granted after narrowing, not what was asked for.
#[derive(Serialize)]
struct RecordedResult<'a> {
    allow: bool,
    reasons: Cow<'a, [BTreeMap<String, String>]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    granted: Option<Granted<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limits: Option<Limits>,
    /// What was granted beyond the manifests, and left out.
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    clamped: &'a [String],
    /// As the rules gave it.
    #[serde(skip_serializing_if = "Option::is_none")]
    decision: Option<Json<'a>>,
}

#[derive(Serialize)]
struct Granted<'a> {
    network: &'a [String],
    secrets: &'a [String],
}

impl<'a> RecordedResult<'a> {
    fn of(outcome: &'a Outcome, level: LogLevel) -> Self {
        let (reasons, limits) = match &outcome.decision {
            Ok(decision) => (Cow::Borrowed(&*decision.reasons), Some(decision.limits)),
            Err(fault) => {
                let reason = [
                    ("code", fault.code().to_owned()),
                    ("message", fault.to_string()),
                ];
                let reason = reason.map(|(name, text)| (name.to_owned(), text));
                (Cow::Owned(vec![BTreeMap::from(reason)]), None)
            }
        };
        let raw = outcome.raw.as_ref();
        RecordedResult {
            allow: outcome.allows(),
            reasons,
            granted: outcome.decision.is_ok().then_some(Granted {
                network: &outcome.grant.network,
                secrets: &outcome.grant.secrets,
            }),
            limits,
            clamped: &outcome.grant.clamped,
            decision: raw.filter(|_| level == LogLevel::Full).map(Json),
        }
    }
}

/// Takes what a pointer names (RFC 6901, without its first `/`) out of an engine's value. Whether there was something.
fn mask(value: &mut regorus::Value, pointer: &str) -> bool {
    let (name, below) = match pointer.split_once('/') {
        Some((name, below)) => (name, Some(below)),
        None => (pointer, None),
    };
    let name = name.replace("~1", "/").replace("~0", "~");
    if let Ok(items) = value.as_array_mut() {
        let item = name.parse::<usize>().ok().and_then(|n| items.get_mut(n));
        return match (item, below) {
            (Some(item), Some(below)) => mask(item, below),
            (Some(item), None) => {
                // The others keep their places.
                *item = regorus::Value::Null;
                true
            }
            (None, _) => false,
        };
    }
    let (Ok(members), name) = (value.as_object_mut(), name.into()) else {
        return false;
    };
    match below {
        Some(below) => members
            .get_mut(&name)
            .is_some_and(|value| mask(value, below)),
        None => members.remove(&name).is_some(),
    }
}

/// The same for JSON, with the first `/` of the pointer.
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
pub(super) struct Json<'a>(pub(super) &'a regorus::Value);

impl Serialize for Json<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        use regorus::Value as Engine;
        match self.0 {
            Engine::Null | Engine::Undefined => to.serialize_unit(),
            Engine::Bool(flag) => to.serialize_bool(*flag),
            Engine::Number(_) => {
                if let Ok(number) = self.0.as_u64() {
                    to.serialize_u64(number)
                } else if let Ok(number) = self.0.as_i64() {
                    to.serialize_i64(number)
                } else if let Ok(number) = self.0.as_f64() {
                    to.serialize_f64(number)
                } else {
                    to.serialize_unit()
                }
            }
            Engine::String(text) => to.serialize_str(text),
            Engine::Array(items) => to.collect_seq(items.iter().map(Json)),
            Engine::Set(items) => to.collect_seq(items.iter().map(Json)),
            Engine::Object(members) => to.collect_map(members.iter().map(|(name, value)| {
                let name = match name {
                    Engine::String(name) => Cow::Borrowed(&**name),
                    other => Cow::Owned(json!(Json(other)).to_string()),
                };
                (name, Json(value))
            })),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_mask_names_is_gone() {
        let whole = json!({ "a/b": 1, "list": [1, 2, { "z": 3 }], "x": { "y": "secret" } });
        let (mut ours, mut engines) = (whole.clone(), regorus::Value::from(whole));
        for (pointer, is_there) in [
            ("a~1b", true),
            ("x/y", true),
            ("list/0", true),
            ("list/2/z", true),
            ("list/7", false),
            ("nothing/here", false),
            ("x/y", false),
        ] {
            assert_eq!(
                erase(&mut ours, &format!("/{pointer}")),
                is_there,
                "{pointer}"
            );
            assert_eq!(mask(&mut engines, pointer), is_there, "{pointer}");
        }
        let left = json!({ "list": [null, 2, {}], "x": {} });
        assert_eq!((ours, json!(Json(&engines))), (left.clone(), left));
    }

    /// Parts of an input are those of other calls too.
    #[test]
    fn what_is_shared_stays_whole() {
        let claims = regorus::Value::from(json!({ "subject": { "claims": { "amr": ["mfa"] } } }));
        let mut recorded = claims.clone();
        assert!(mask(&mut recorded, "subject/claims/amr/0"));
        assert!(mask(&mut recorded, "subject/claims"));
        assert_eq!(json!(Json(&recorded)), json!({ "subject": {} }));
        assert_eq!(
            json!(Json(&claims)),
            json!({ "subject": { "claims": { "amr": ["mfa"] } } })
        );
    }
}

//! An answer as one JSON value, and what must be true of every answer.

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::expect::{holds, json_bytes};
use crate::http::Answer;

/// Members that a run's result may have.
const RUN_MEMBERS: &[&str] = &[
    "status",
    "run_id",
    "summary",
    "output",
    "output_blobs",
    "logs_preview",
    "error",
    "usage",
    "logs_truncated",
];

/// The answer as one JSON value for expectations to look into.
pub(crate) fn decode(answer: &Answer, expected_id: Option<&str>) -> Value {
    let headers: serde_json::Map<String, Value> = answer
        .headers
        .iter()
        .map(|(n, v)| (n.clone(), v.clone().into()))
        .collect();
    let mut seen = json!({
        "status": answer.status,
        "header": headers,
        "body": String::from_utf8_lossy(&answer.body),
        "took": u64::try_from(answer.took.as_millis()).unwrap_or(u64::MAX),
    });
    match serde_json::from_slice::<Value>(&answer.body) {
        Ok(reply) => seen["reply"] = reply,
        Err(why) => seen["no_json"] = why.to_string().into(),
    }
    // Numbers lose their spelling in a `Value`: the id is kept as the bytes that came.
    if let Ok(members) = serde_json::from_slice::<BTreeMap<String, Box<RawValue>>>(&answer.body)
        && let Some(id) = members.get("id")
    {
        seen["raw_id"] = id.get().into();
    }
    if let Some(id) = expected_id {
        seen["sent_id"] = id.into();
    }
    seen
}

/// A run's optional members, where null says that there is nothing, as it does of a parameter (R2). Not so `output`: null is one.
pub(crate) fn null_is_absent(seen: &mut Value) {
    let replies = match &mut seen["reply"] {
        Value::Array(items) => items.as_mut_slice(),
        one => std::slice::from_mut(one),
    };
    for reply in replies {
        if !says_it_is_a_run(reply) {
            continue;
        }
        if let Some(result) = reply.get_mut("result").and_then(Value::as_object_mut) {
            for name in ["error", "output_blobs", "logs_preview"] {
                if result.get(name).is_some_and(Value::is_null) {
                    result.remove(name);
                }
            }
        }
    }
}

/// The answers of a batch, or the one there is.
pub(crate) fn replies(seen: &Value) -> &[Value] {
    match &seen["reply"] {
        Value::Null => &[],
        Value::Array(items) => items,
        one => std::slice::from_ref(one),
    }
}

/// Whether a result is a run's, where the request does not tell.
pub(crate) fn says_it_is_a_run(reply: &Value) -> bool {
    let result = &reply["result"];
    result.get("run_id").is_some()
        || matches!(result["status"].as_str(), Some("completed" | "failed"))
}

/// What JSON-RPC asks of everything that an endpoint answers in JSON, to one request, to a batch or to what is neither. With an
/// error's HTTP status it may be somebody's in front of the server: then only what says that it is JSON-RPC is looked at.
pub(crate) fn members(seen: &Value) -> Vec<String> {
    let all = seen["status"] == 200 || seen["reply"].is_array();
    let theirs = |reply: &&Value| all || reply.get("jsonrpc").is_some();
    let mut wrong = Vec::new();
    for reply in replies(seen).iter().filter(theirs) {
        if reply["jsonrpc"] != "2.0" {
            wrong.push("expected \"jsonrpc\": \"2.0\" in every answer".into());
        }
        if reply.get("id").is_none() {
            wrong.push("expected an id in every answer, null where there is none".into());
        }
        wrong.extend(outcome(reply));
    }
    wrong.sort();
    wrong.dedup();
    wrong
}

/// A result or an error, and an error as JSON-RPC has it.
fn outcome(reply: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    if reply.get("result").is_some() == reply.get("error").is_some() {
        wrong.push("expected exactly one of result and error".into());
    }
    if let Some(error) = reply.get("error")
        && !(error["code"].is_i64() && error["message"].is_string())
    {
        wrong.push("expected error.code as an integer and error.message as text".into());
    }
    wrong
}

/// What JSON-RPC asks of every answer to a request with an id. It says nothing of the HTTP status of an error; skillgate does.
pub(crate) fn envelope(seen: &Value, product: bool) -> Vec<String> {
    let mut wrong = Vec::new();
    let reply = &seen["reply"];
    if seen["status"] != 200 && (product || reply.get("result").is_some()) {
        wrong.push(format!(
            "expected HTTP status 200, but it is {}",
            seen["status"]
        ));
    }
    let media = seen["header"]["content-type"].as_str().unwrap_or_default();
    let essence = media.split(';').next().unwrap_or_default().trim();
    if !essence.eq_ignore_ascii_case("application/json") {
        wrong.push(format!(
            "expected content-type application/json, but it is {media:?}"
        ));
    }
    if let Some(why) = seen["no_json"].as_str() {
        wrong.push(format!("expected JSON, but the body is none: {why}"));
        return wrong;
    }
    if reply["jsonrpc"] != "2.0" {
        wrong.push("expected \"jsonrpc\": \"2.0\" in the answer".into());
    }
    if seen["raw_id"] != seen["sent_id"] && seen["raw_id"] != Value::Null {
        wrong.push(format!(
            "expected the id {}, but it is {}",
            seen["sent_id"], seen["raw_id"]
        ));
    } else if seen["raw_id"] == Value::Null {
        wrong.push("expected the id in the answer".into());
    }
    wrong.extend(outcome(reply));
    wrong
}

/// What the specification asks of every result of a run; nothing of an error.
pub(crate) fn run_shape(reply: &Value, product: bool) -> Vec<String> {
    let Some(result) = reply.get("result") else {
        return Vec::new();
    };
    let mut wrong = Vec::new();
    let mut must = |fine: bool, what: &str| {
        if !fine {
            wrong.push(format!("expected of every run: {what}"));
        }
    };
    let status = result["status"].as_str().unwrap_or_default();
    must(
        matches!(status, "completed" | "failed"),
        "status is completed or failed",
    );
    must(
        result["run_id"].as_str().is_some_and(|id| !id.is_empty()),
        "a run_id",
    );
    must(
        result["summary"].as_str().is_some_and(|s| !s.is_empty()),
        "a summary",
    );
    must(
        result.get("error").is_some() == (status == "failed"),
        "an error exactly when it failed",
    );
    if let Some(error) = result.get("error") {
        must(
            error["type"].is_string() && error["message"].is_string(),
            "error has type and message",
        );
    }
    if let Some(output) = result.get("output") {
        must(json_bytes(output) <= 4096, "output of at most 4096 bytes");
    }
    if let Some(logs) = result.get("logs_preview") {
        must(
            logs.as_str().is_some_and(|l| l.len() <= 2048),
            "logs_preview of at most 2048 bytes",
        );
    }
    if let Some(blobs) = result.get("output_blobs") {
        let fine = blobs.as_array().is_some_and(|all| {
            all.iter()
                .all(|id| id.as_str().is_some_and(|id| id.starts_with("blob:")))
        });
        must(fine, "output_blobs is an array of blob ids");
    }
    if product && let Some(members) = result.as_object() {
        must(
            members.keys().all(|k| RUN_MEMBERS.contains(&k.as_str())),
            "no members of other names",
        );
        must(
            holds("result.run_id is run_id", &json!({ "reply": reply })).is_ok(),
            "run_id is run_ and 96 random bits",
        );
    }
    wrong
}

/// The answer as a person would want to read it.
pub(crate) fn picture(seen: &Value) -> String {
    let text = seen["body"]
        .as_str()
        .map_or_else(|| seen["reply"].to_string(), str::to_owned);
    format!(
        "HTTP {} after {} ms: {text} {}",
        seen["status"],
        seen["took"],
        seen["stderr"].as_str().unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(body: &[u8]) -> String {
        let answer = Answer {
            status: 200,
            headers: vec![("content-type".into(), "application/json".into())],
            body: body.to_vec(),
            ..Answer::default()
        };
        envelope(&decode(&answer, Some("7")), false).join("; ")
    }

    /// One thing is wrong with it, and that is said; not all that follows from it.
    #[test]
    fn what_is_no_json_is_said_to_be_none() {
        assert_eq!(told(br#"{"jsonrpc":"2.0","id":7,"result":{}}"#), "");
        for (body, why) in [
            (
                &b"<html>It works</html>"[..],
                "expected value at line 1 column 1",
            ),
            (b"", "EOF while parsing"),
            (
                b"{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":\"\xff\"}",
                "invalid unicode code point",
            ),
            (
                b"{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{}} and more",
                "trailing characters",
            ),
        ] {
            let said = told(body);
            let begins = format!("expected JSON, but the body is none: {why}");
            assert!(said.starts_with(&begins), "{said}");
            assert!(!said.contains("; "), "{said}");
        }
    }
}

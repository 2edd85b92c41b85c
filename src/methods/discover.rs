//! `rpc.discover`: the whole table as an OpenRPC document (open-rpc.org, 1.3), also at `GET /openrpc.json`.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde_json::{Value, json};

use super::{Error, Method, Prepared, Rooms, TABLE};
use crate::policy::Facts;
use crate::rpc::Call;

pub(super) const METHOD: Method = Method {
    name: "rpc.discover",
    tool: false,
    description: "This document: every method with its parameters and its result.",
    params: r#"{"type":"object","properties":{}}"#,
    result: r#"{"type":"object"}"#,
    prepare,
};

fn prepare(_rooms: Arc<Rooms>, call: Call) -> BoxFuture<'static, Result<Prepared, Error>> {
    Box::pin(async move {
        let facts = Facts::new(METHOD.name, call.caller, call.id);
        Ok(Prepared::json(facts, |_permit| async { Ok(openrpc()) }))
    })
}

/// The OpenRPC document.
pub(crate) fn openrpc() -> Value {
    let methods: Vec<Value> = TABLE.iter().map(describe).collect();
    json!({
        "openrpc": "1.3.2",
        "info": {
            "title": "Skills Protocol",
            "version": "0.1.0",
            "description": format!("Served by skillgate {} at POST /rpc", env!("CARGO_PKG_VERSION")),
        },
        "methods": methods,
    })
}

/// Parameters of ours beside those of a tool's schema, which the specification prints (REQUIREMENTS R11).
const BESIDE: [(&str, &str, &str); 1] = [(
    "create_blob",
    "encoding",
    r#"{"type":"string","enum":["base64"],"description":"Set when content is base64"}"#,
)];

fn describe(method: &Method) -> Value {
    let mut schema = schema(method.params);
    for (_, name, beside) in BESIDE.iter().filter(|it| it.0 == method.name) {
        schema["properties"][*name] = self::schema(beside);
    }
    let required: Vec<&str> = schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let params: Vec<Value> = schema["properties"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, property)| json!({ "name": name, "required": required.contains(&name.as_str()), "schema": property }))
        .collect();
    json!({
        "name": method.name,
        "summary": method.description,
        "paramStructure": "by-name",
        "params": params,
        "result": { "name": "result", "schema": self::schema(method.result) },
    })
}

/// A schema of the table as a value; a unit test reads every one of them.
pub(super) fn schema(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or(Value::Bool(true))
}

//! What a step says, made into what is sent.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::case::Step;

/// What `${x}` and `%{x}` stand for.
pub(crate) type Vars = BTreeMap<String, Value>;

/// The text of a JSON-RPC request, exactly as the case writes it.
pub(crate) fn request_body(step: &Step, id: &str, vars: &Vars) -> Option<String> {
    if let Some(body) = &step.post {
        return Some(fill(body, vars, true));
    }
    if let Some(code) = &step.run {
        let mut params = json!({"language": "python", "code": fill(code.trim_start_matches('\n'), vars, false), "limits": {"timeout_ms": 10_000}});
        for (name, text) in [("args", &step.args), ("", &step.params)] {
            let Some(text) = text else { continue };
            let value: Value = serde_json::from_str(&fill(text, vars, true)).ok()?;
            match value.as_object() {
                Some(more) if name.is_empty() => {
                    for (key, value) in more {
                        params[key] = value.clone();
                    }
                }
                _ => params[name] = value,
            }
        }
        return Some(format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"run_code","params":{params}}}"#
        ));
    }
    let method = Value::from(fill(step.call.as_deref()?, vars, false));
    let params = fill(step.params.as_deref().unwrap_or("{}"), vars, true);
    Some(format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":{method},"params":{params}}}"#
    ))
}

/// `${x}` becomes the variable: in JSON, text is escaped to stand between quotes and anything else is JSON;
/// `%{x}` becomes the variable's text as it is.
pub(crate) fn fill(text: &str, vars: &Vars, in_json: bool) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("${").into_iter().chain(rest.find("%{")).min() {
        let name_end = rest[at..].find('}').map(|n| at + n);
        let known = name_end.and_then(|end| vars.get(&rest[at + 2..end]).map(|v| (end, v)));
        let Some((end, value)) = known else {
            out.push_str(&rest[..at + 2]);
            rest = &rest[at + 2..];
            continue;
        };
        out.push_str(&rest[..at]);
        match value.as_str() {
            Some(inner) if in_json && rest[at..].starts_with('$') => {
                let quoted = Value::from(inner).to_string();
                out.push_str(&quoted[1..quoted.len() - 1]);
            }
            Some(inner) => out.push_str(inner),
            None => out.push_str(&value.to_string()),
        }
        rest = &rest[end + 1..];
    }
    out.push_str(rest);
    out
}

pub(crate) fn unhex(text: &str) -> Result<Vec<u8>, String> {
    let digits: String = text.split_whitespace().collect();
    (0..digits.len())
        .step_by(2)
        .map(|n| {
            u8::from_str_radix(digits.get(n..n + 2).unwrap_or("?"), 16).map_err(|e| e.to_string())
        })
        .collect()
}

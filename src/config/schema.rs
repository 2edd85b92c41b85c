//! A plugin's own section, held against the JSON Schema that the plugin gives of it. Of that are read the keywords that most use;
//! what one asks for in other ways the plugin itself has to refuse.

use serde_json::Value;

use super::problem::did_you_mean;
use super::raw::join;

/// What does not fit: the key, from `path` on, and why. Never a value, which may be a secret.
pub(crate) fn misfits(schema: &Value, value: &Value, path: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    look(schema, value, path, &mut found);
    found
}

fn look(schema: &Value, value: &Value, path: &str, found: &mut Vec<(String, String)>) {
    let mut wrong = |why: String| found.push((path.to_owned(), why));
    if let Some(kind) = schema["type"].as_str()
        && !is_a(kind, value)
    {
        return wrong(format!("the plugin expects its type to be {kind}"));
    }
    if let Some(words) = schema["enum"].as_array()
        && !words.contains(value)
    {
        let words: Vec<String> = words.iter().map(Value::to_string).collect();
        return wrong(format!("the plugin expects one of {}", words.join(", ")));
    }
    if let Some(number) = value.as_f64() {
        let bound = |name: &str| schema[name].as_f64();
        if let Some(least) = bound("minimum").filter(|least| number < *least) {
            wrong(format!("the plugin expects at least {least}"));
        }
        if let Some(most) = bound("maximum").filter(|most| number > *most) {
            wrong(format!("the plugin expects at most {most}"));
        }
    }
    for key in schema["required"].as_array().into_iter().flatten() {
        if let Some(key) = key.as_str().filter(|key| value.get(key).is_none()) {
            found.push((join(path, key), "missing, and the plugin needs it".into()));
        }
    }
    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
        look(&schema["items"], item, &format!("{path}[{index}]"), found);
    }
    for (key, below) in value.as_object().into_iter().flatten() {
        let path = join(path, key);
        if let Some(schema) = schema["properties"].get(key) {
            look(schema, below, &path, found);
        } else if schema["additionalProperties"] == false {
            let known = schema["properties"].as_object().into_iter().flatten();
            let meant = did_you_mean(key, known.map(|(key, _)| key.as_str()));
            let hint = meant.map_or(String::new(), |meant| format!("; did you mean `{meant}`?"));
            found.push((path, format!("the plugin has no such key{hint}")));
        }
    }
    let ways = schema["anyOf"].as_array().into_iter().flatten();
    let ways: Vec<_> = ways.map(|way| misfits(way, value, path)).collect();
    if ways.iter().all(|way| !way.is_empty()) {
        found.extend(ways.into_iter().next().unwrap_or_default());
    }
}

fn is_a(kind: &str, value: &Value) -> bool {
    match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "number" => value.is_number(),
        // Not 128.0, which JSON Schema counts in: TOML has integers, and a plugin that reads one takes nothing else.
        "integer" => value.is_i64() || value.is_u64(),
        // No word of JSON Schema.
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_plugin_says_of_its_section_is_looked_at() {
        let schema = json!({
            "type": "object", "additionalProperties": false,
            "properties": {
                "root": { "type": "string" },
                "pool": { "type": "integer", "minimum": 1, "maximum": 8 },
                "way": { "enum": ["a", "b"] },
                "dirs": { "type": "array", "items": { "type": "string" } },
                "open": { "type": "object" },
                "more": { "type": ["string", "null"], "pattern": "^x" }
            },
            "anyOf": [{ "required": ["root"] }, { "required": ["dirs"] }]
        });
        let said = |value: Value| {
            let found = misfits(&schema, &value, "config").into_iter();
            found
                .map(|(key, why)| format!("{key}: {why}"))
                .collect::<Vec<_>>()
        };
        let fine = json!({ "root": "a", "pool": 8, "way": "a", "open": { "x": 1 }, "more": 7 });
        assert!(said(fine).is_empty());
        assert!(said(json!({ "dirs": ["a"] })).is_empty());
        for (value, expected) in [
            (json!({}), "config.root: missing, and the plugin needs it"),
            (
                json!({ "root": "a", "pol": 1 }),
                "config.pol: the plugin has no such key; did you mean `pool`?",
            ),
            (
                json!({ "root": "a", "x": "secret" }),
                "config.x: the plugin has no such key",
            ),
            (
                json!({ "root": "a", "pool": 0 }),
                "config.pool: the plugin expects at least 1",
            ),
            (
                json!({ "root": "a", "pool": 9 }),
                "config.pool: the plugin expects at most 8",
            ),
            (
                json!({ "root": "a", "pool": 1.5 }),
                "config.pool: the plugin expects its type to be integer",
            ),
            (
                json!({ "root": "a", "pool": 8.0 }),
                "config.pool: the plugin expects its type to be integer",
            ),
            (
                json!({ "root": "a", "way": "c" }),
                "config.way: the plugin expects one of \"a\", \"b\"",
            ),
            (
                json!({ "dirs": ["a", 1] }),
                "config.dirs[1]: the plugin expects its type to be string",
            ),
        ] {
            assert_eq!(said(value), [expected]);
        }
        assert!(misfits(&json!(true), &json!({ "a": 1 }), "").is_empty());
    }
}

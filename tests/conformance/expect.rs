//! The expectation language: `path operator value`, one truth per line.

use std::cmp::Ordering;

use serde_json::Value;

/// Checks one line against what came back; the error says what was there instead.
pub(crate) fn holds(line: &str, seen: &Value) -> Result<(), String> {
    let (path, rest) = split_path(line)?;
    let (op, rest) = word(rest);
    let found = select(seen, path)?;
    if op == "is" && rest == "absent" {
        return match found.iter().flatten().next() {
            None => Ok(()),
            Some(value) => Err(format!("{path} is there: {}", short(value))),
        };
    }
    if found.is_empty() {
        return Err(format!("{path} names nothing to check"));
    }
    for value in found {
        let value = value.ok_or_else(|| format!("{path} is absent"))?;
        test(op, rest, value).map_err(|why| format!("{path} is {}: {why}", short(value)))?;
    }
    Ok(())
}

/// The one value at a path, for `save`.
pub(crate) fn value_at<'v>(path: &str, seen: &'v Value) -> Result<&'v Value, String> {
    match select(seen, path)?.as_slice() {
        [Some(value)] => Ok(value),
        _ => Err(format!("{path} is absent")),
    }
}

/// Size as compact UTF-8 JSON.
pub(crate) fn json_bytes(value: &Value) -> usize {
    serde_json::to_string(value).map_or(usize::MAX, |text| text.len())
}

fn test(op: &str, rest: &str, value: &Value) -> Result<(), String> {
    match op {
        "==" => same(value, &json(rest)?, true),
        "!=" => same(value, &json(rest)?, false),
        "<" | "<=" | ">" | ">=" => {
            let left = value.as_f64().ok_or("not a number")?;
            compare(left, op, &json(rest)?)
        }
        "len" => {
            let (op, rest) = word(rest);
            compare(length(value)? as f64, op, &json(rest)?)
        }
        "bytes" => {
            let (op, rest) = word(rest);
            let bytes = value.as_str().map_or_else(|| json_bytes(value), str::len);
            compare(bytes as f64, op, &json(rest)?).map_err(|e| format!("size in bytes: {e}"))
        }
        "in" => {
            let choices = json(rest)?;
            let choices = choices.as_array().ok_or("`in` takes an array")?;
            choices
                .contains(value)
                .then_some(())
                .ok_or_else(|| "none of those".to_owned())
        }
        "has" => subset(value, &json(rest)?),
        "contains" => contains(value, &json(rest)?)
            .then_some(())
            .ok_or_else(|| format!("does not contain {}", clip(rest))),
        "lacks" => (!contains(value, &json(rest)?))
            .then_some(())
            .ok_or_else(|| format!("contains {}", clip(rest))),
        "mentions" => mentions(value, &json(rest)?)
            .then_some(())
            .ok_or_else(|| format!("nowhere has {}", clip(rest))),
        "starts" | "ends" => {
            let want = json(rest)?;
            let want = want.as_str().ok_or("takes a text")?;
            let text = value.as_str().ok_or("not a text")?;
            let fine = if op == "starts" {
                text.starts_with(want)
            } else {
                text.ends_with(want)
            };
            fine.then_some(())
                .ok_or_else(|| format!("does not: {}", clip(want)))
        }
        "within" => {
            let want = json(rest)?;
            let want = want.as_str().ok_or("takes a namespace")?;
            let text = value.as_str().ok_or("not a text")?;
            within(text, want)
                .then_some(())
                .ok_or_else(|| format!("neither {want:?} nor below it"))
        }
        "sorted" if rest == "skills" => sorted_skills(value),
        "unique" => {
            let items = value.as_array().ok_or("not an array")?;
            let twice = items
                .iter()
                .enumerate()
                .find(|(n, item)| items[..*n].contains(item));
            twice.map_or(Ok(()), |(_, item)| {
                Err(format!("{} is there twice", short(item)))
            })
        }
        "is" => is(value, rest),
        _ => Err(format!("no operator is called {op:?}")),
    }
}

fn is(value: &Value, what: &str) -> Result<(), String> {
    let token = |prefix: &str, least: usize| {
        value
            .as_str()
            .and_then(|text| text.strip_prefix(prefix))
            .is_some_and(|rest| {
                rest.len() >= least
                    && rest
                        .bytes()
                        .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
            })
    };
    let fine = match what {
        "present" => true,
        "text" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        // Invalid params, or a code that JSON-RPC leaves to servers and applications (JSON-RPC 2.0, section 5.1).
        "refusal" => value.as_i64().is_some_and(|code| {
            code == -32602
                || (-32099..=-32000).contains(&code)
                || !(-32768..=-32000).contains(&code)
        }),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "null" => value.is_null(),
        "nonempty" => length(value)? > 0,
        // 96 random bits need at least 16 characters of base64url, 128 need 22.
        "run_id" => token("run_", 16),
        "blob_id" => token("blob:", 22),
        _ => return Err(format!("nothing is known of `is {what}`")),
    };
    fine.then_some(()).ok_or_else(|| format!("not {what}"))
}

fn same(value: &Value, want: &Value, equal: bool) -> Result<(), String> {
    if (value == want) == equal {
        Ok(())
    } else if equal {
        Err(format!("not {}", short(want)))
    } else {
        Err("that is what it must not be".to_owned())
    }
}

fn compare(left: f64, op: &str, right: &Value) -> Result<(), String> {
    let right = right.as_f64().ok_or("compares with a number")?;
    let fine = match op {
        "==" => left == right,
        "<" => left < right,
        "<=" => left <= right,
        ">" => left > right,
        ">=" => left >= right,
        _ => return Err(format!("no comparison is called {op:?}")),
    };
    fine.then_some(())
        .ok_or_else(|| format!("{left} is not {op} {right}"))
}

fn length(value: &Value) -> Result<usize, String> {
    match value {
        Value::Array(items) => Ok(items.len()),
        Value::Object(members) => Ok(members.len()),
        Value::String(text) => Ok(text.chars().count()),
        _ => Err("has no length".to_owned()),
    }
}

/// Every member of `want` is in `value`, all the way down; arrays match item by item.
fn subset(value: &Value, want: &Value) -> Result<(), String> {
    match (value, want) {
        (Value::Object(have), Value::Object(need)) => {
            for (name, inner) in need {
                let there = have
                    .get(name)
                    .ok_or_else(|| format!("no member {name:?}"))?;
                subset(there, inner).map_err(|e| format!("{name}: {e}"))?;
            }
            Ok(())
        }
        (Value::Array(have), Value::Array(need)) if have.len() == need.len() => {
            have.iter().zip(need).try_for_each(|(a, b)| subset(a, b))
        }
        _ => same(value, want, true),
    }
}

fn contains(value: &Value, want: &Value) -> bool {
    match (value, want) {
        (Value::String(text), Value::String(part)) => text.contains(part.as_str()),
        (Value::Array(items), _) => items.iter().any(|item| subset(item, want).is_ok()),
        (Value::Object(members), Value::String(name)) => members.contains_key(name),
        _ => false,
    }
}

fn mentions(value: &Value, want: &Value) -> bool {
    subset(value, want).is_ok()
        || match value {
            Value::Array(items) => items.iter().any(|item| mentions(item, want)),
            Value::Object(members) => members.values().any(|item| mentions(item, want)),
            _ => false,
        }
}

/// A namespace is the other one or lies below it, segment by segment.
fn within(namespace: &str, outer: &str) -> bool {
    namespace
        .strip_prefix(outer)
        .is_some_and(|below| below.is_empty() || below.starts_with('.'))
}

/// By namespace, name, then version with the highest first; no two alike. Versions of one precedence stand as they like.
fn sorted_skills(value: &Value) -> Result<(), String> {
    let items = value.as_array().ok_or("not an array")?;
    let text = |item: &Value, key: &str| item[key].as_str().unwrap_or_default().to_owned();
    for pair in items.windows(2) {
        let key = |item: &Value| (text(item, "namespace"), text(item, "name"));
        let order = key(&pair[0]).cmp(&key(&pair[1])).then_with(|| {
            version_key(&text(&pair[1], "version")).cmp(&version_key(&text(&pair[0], "version")))
        });
        let alike = text(&pair[0], "version") == text(&pair[1], "version");
        if order == Ordering::Greater || order == Ordering::Equal && alike {
            return Err(format!(
                "{} comes before {}",
                short(&pair[0]),
                short(&pair[1])
            ));
        }
    }
    Ok(())
}

/// Orders as SemVer 2.0.0 section 11 says: numbers by value, numbers before words, a release after its pre-releases.
fn version_key(version: &str) -> (Vec<u64>, bool, Vec<(bool, u64, String)>) {
    let version = version.split('+').next().unwrap_or_default();
    let (core, pre) = version
        .split_once('-')
        .map_or((version, None), |(c, p)| (c, Some(p)));
    let core = core
        .split('.')
        .map(|part| part.parse().unwrap_or(0))
        .collect();
    let parts = pre.map(|text| {
        text.split('.')
            .map(|part| match part.parse::<u64>() {
                Ok(number) => (false, number, String::new()),
                Err(_) => (true, 0, part.to_owned()),
            })
            .collect()
    });
    (core, pre.is_none(), parts.unwrap_or_default())
}

/// The values at `result.skills[*].name`, `reply[0].id`, `header["content-type"]`; `None` where a member is missing.
fn select<'v>(root: &'v Value, path: &str) -> Result<Vec<Option<&'v Value>>, String> {
    let mut found = vec![Some(root)];
    let mut rest = path;
    // What is not a root of its own is a member of the JSON answer.
    let first = rest.split(['.', '[']).next().unwrap_or_default();
    if root.get(first).is_none() {
        found = vec![root.get("reply")];
    }
    while !rest.is_empty() {
        if let Some(inner) = rest.strip_prefix('[') {
            let end = inner
                .find(']')
                .ok_or_else(|| format!("{path}: a [ is not closed"))?;
            let index = &inner[..end];
            rest = inner[end + 1..].trim_start_matches('.');
            found = found
                .into_iter()
                .flat_map(|value| step_into(value, index))
                .collect();
        } else {
            let end = rest.find(['.', '[']).unwrap_or(rest.len());
            let name = &rest[..end];
            rest = rest[end..].trim_start_matches('.');
            found = found
                .into_iter()
                .map(|value| value.and_then(|v| v.get(name)))
                .collect();
        }
    }
    Ok(found)
}

fn step_into<'v>(value: Option<&'v Value>, index: &str) -> Vec<Option<&'v Value>> {
    let Some(value) = value else {
        return vec![None];
    };
    if let Some(name) = index.strip_prefix('"').and_then(|n| n.strip_suffix('"')) {
        return vec![value.get(name)];
    }
    let Some(items) = value.as_array() else {
        return vec![None];
    };
    if index == "*" {
        return items.iter().map(Some).collect();
    }
    let place = match index.parse::<i64>() {
        Ok(n) if n < 0 => items.len().checked_sub(n.unsigned_abs() as usize),
        Ok(n) => Some(n.unsigned_abs() as usize),
        Err(_) => None,
    };
    vec![place.and_then(|n| items.get(n))]
}

/// The path ends at the first space outside of `[...]`: member names may hold spaces.
fn split_path(line: &str) -> Result<(&str, &str), String> {
    let mut depth = 0;
    for (n, c) in line.char_indices() {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            ' ' if depth == 0 => return Ok((&line[..n], line[n..].trim_start())),
            _ => {}
        }
    }
    Err(format!("{line:?} has a path but no operator"))
}

fn word(text: &str) -> (&str, &str) {
    text.split_once(' ')
        .map_or((text, ""), |(first, rest)| (first, rest.trim()))
}

fn json(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|e| format!("the case says {:?}: {e}", clip(text)))
}

fn short(value: &Value) -> String {
    clip(&value.to_string())
}

fn clip(text: &str) -> String {
    match text.char_indices().nth(300) {
        Some((n, _)) => format!("{}… ({} bytes)", &text[..n], text.len()),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::holds;

    fn sorted(versions: &[&str]) -> Result<(), String> {
        let skill = |version: &&str| json!({"namespace": "a", "name": "a.b", "version": version});
        let skills: Vec<_> = versions.iter().map(skill).collect();
        holds(
            "result.skills sorted skills",
            &json!({"reply": {"result": {"skills": skills}}}),
        )
    }

    #[test]
    fn a_namespace_is_within_itself_and_those_above() {
        let within = |namespace: &str| {
            let seen = json!({"reply": {"result": namespace}});
            holds(r#"result within "sales.force""#, &seen).is_ok()
        };
        assert!(within("sales.force") && within("sales.force.leads"));
        assert!(!within("sales") && !within("sales.forces") && !within(""));
    }

    #[test]
    fn the_order_is_that_of_semantic_versions() {
        let order = ["1.10.0", "1.9.0", "1.9.0-rc.10", "1.9.0-rc.9", "1.9.0-1"];
        assert_eq!(sorted(&order), Ok(()));
        for pair in order.windows(2) {
            assert!(sorted(&[pair[1], pair[0]]).is_err(), "{pair:?}");
        }
    }

    /// Build metadata say nothing of precedence (SemVer 2.0.0, section 10): a server orders what differs there alone as it likes.
    #[test]
    fn what_differs_in_build_metadata_alone_stands_in_either_order() {
        assert_eq!(sorted(&["1.0.0+a", "1.0.0+b", "0.9.0"]), Ok(()));
        assert_eq!(sorted(&["1.0.0+b", "1.0.0+a", "0.9.0"]), Ok(()));
        assert!(sorted(&["1.0.0+a", "1.0.0+a"]).is_err());
        assert!(sorted(&["0.9.0", "1.0.0+a"]).is_err());
    }
}

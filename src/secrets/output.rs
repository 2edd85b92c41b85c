//! Redaction of JSON text that stays JSON.

use std::collections::HashSet;

use super::Redactor;

/// Instead of an output that has a value which is JSON itself: what stands across strings and numbers cannot be replaced.
const WITHHELD: &str = r#""[the output is withheld: the value of a secret stands in it as JSON]""#;

/// The same JSON text without secrets: in strings and in member names, which stay different from each other, and for
/// numbers, which become strings. `json` has been checked to be JSON without members of the same name. None: there is
/// nothing to replace.
pub(crate) fn redact_json(redactor: &Redactor, json: &str) -> Option<String> {
    let mut out = String::with_capacity(json.len());
    // The names of each object that is open; the lists hold none.
    let mut open: Vec<HashSet<String>> = Vec::new();
    let mut changed = false;
    let mut rest = json;
    while let Some(first) = rest.chars().next() {
        let token = match first {
            '"' => string_end(rest),
            '{' | '[' | '}' | ']' | ',' | ':' | ' ' | '\t' | '\r' | '\n' => 1,
            _ => rest
                .find(|c: char| ",:[]{} \t\r\n".contains(c))
                .unwrap_or(rest.len()),
        };
        let (token, behind) = rest.split_at(token);
        rest = behind;
        match first {
            '{' | '[' => open.push(HashSet::new()),
            '}' | ']' => drop(open.pop()),
            _ => {}
        }
        if first == '"' {
            let is_name = rest.trim_start().starts_with(':');
            let text: String = serde_json::from_str(token).unwrap_or_default();
            // Nobody has cut it: an output that is too long is stored whole, and withheld where a secret stands in it.
            let plain = redactor.uncut(&text);
            changed |= plain != text;
            let mut said = plain.clone().into_owned();
            if is_name && let Some(names) = open.last_mut() {
                let mut count = 1;
                while !names.insert(said.clone()) {
                    count += 1;
                    said = format!("{plain} ({count})");
                }
            }
            if said == text {
                out.push_str(token);
            } else {
                changed = true;
                out.push_str(&serde_json::Value::from(said).to_string());
            }
        } else if let Some(mark) = redactor.first_mark(token) {
            changed = true;
            out.push_str(&serde_json::Value::from(mark).to_string());
        } else {
            out.push_str(token);
        }
    }
    if redactor.is_in(&out) {
        return Some(WITHHELD.to_owned());
    }
    changed.then_some(out)
}

/// The length of the string that `text` begins with, its quotes included.
fn string_end(text: &str) -> usize {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

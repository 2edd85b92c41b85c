//! What is recorded, and its bytes.

use std::io;

use serde::Serialize;
use serde_json::ser::{CharEscape, Formatter, Serializer};
use serde_json::{Map, Value};

/// Longest record before it is sealed, in bytes. Of a larger one the largest parts are left out and named in `erased`.
pub(super) const RECORD_BYTES_MAX: usize = 256 << 10;

/// What a record is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The policy has decided.
    Decision,
    /// A run has ended.
    Run,
    /// A run has asked for a connection.
    Connection,
    /// The log itself.
    Log,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Decision => "decision",
            Kind::Run => "run",
            Kind::Connection => "connection",
            Kind::Log => "log",
        }
    }
}

/// One record, already as text. Arguments, code, tokens and secret values do not belong into one: whoever makes it leaves
/// them out.
#[derive(Debug, Clone)]
pub struct Record {
    kind: Kind,
    /// Each member with a comma before it.
    text: Vec<u8>,
    has_timestamp: bool,
}

/// Most records have at most so many bytes: room is made once.
const RECORD_BYTES_USUAL: usize = 2048;
/// More members that are left out are not named: what has so many is nothing that this program records.
const ERASED_MAX: usize = 16;

/// Single parts of a record that are left out; then whole members are.
const CUTS_MAX: usize = 64;

/// The log's own members.
const RESERVED: [&str; 4] = ["sequence", "prev", "kind", "hash"];

/// A record as bytes, but for its place in the chain.
#[derive(Debug)]
pub(super) struct Encoded {
    pub(super) kind: Kind,
    /// Each member with a comma before it.
    pub(super) members: Vec<u8>,
    pub(super) has_timestamp: bool,
}

impl Record {
    /// A record with these members. `sequence`, `prev`, `kind` and `hash` are the log's own and are not taken from here;
    /// `timestamp` is added when it is not here.
    pub fn new(kind: Kind, body: Map<String, Value>) -> Self {
        let mut record = Record::empty(kind);
        for (name, value) in body {
            record.put(&name, &value);
        }
        record
    }

    /// One without members.
    pub fn empty(kind: Kind) -> Self {
        Record {
            kind,
            text: Vec::with_capacity(RECORD_BYTES_USUAL),
            has_timestamp: false,
        }
    }

    /// What it is about.
    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    /// The same with one more member.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: &impl Serialize) -> Self {
        self.put(name, value);
        self
    }

    /// Its members.
    #[cfg(test)]
    pub(crate) fn json(&self) -> Value {
        let text = self.text.get(1..).unwrap_or_default();
        serde_json::from_str(&format!("{{{}}}", str::from_utf8(text).unwrap())).unwrap()
    }

    fn put(&mut self, name: &str, value: &impl Serialize) {
        if !RESERVED.contains(&name) {
            member(&mut self.text, name, value);
            self.has_timestamp |= name == "timestamp";
        }
    }

    pub(super) fn encode(self) -> Encoded {
        let members = if self.text.len() > RECORD_BYTES_MAX {
            shortened(&self.text)
        } else {
            self.text
        };
        Encoded {
            kind: self.kind,
            members,
            has_timestamp: self.has_timestamp,
        }
    }
}

/// Leaves out what is largest until the rest fits, and names it beside what already is left out. It is as deep inside as
/// can be: who asked for what is seen however much somebody puts beside it.
fn shortened(text: &[u8]) -> Vec<u8> {
    let whole = [b"{", text.get(1..).unwrap_or_default(), b"}"].concat();
    let (mut body, mut erased) = match serde_json::from_slice(&whole) {
        Ok(Value::Object(mut body)) => {
            let already = body.remove("erased").map(serde_json::from_value);
            (body, already.and_then(Result::ok).unwrap_or_default())
        }
        // Nested more deeply than it can be read again: nothing is left of it.
        _ => (Map::new(), vec![String::new()]),
    };
    let (mut out, mut bytes, mut cuts) = (Vec::new(), text.len(), 0);
    loop {
        while bytes > RECORD_BYTES_MAX
            && let Some((pointer, gone)) = cut_largest(&mut body, cuts < CUTS_MAX)
        {
            bytes = bytes.saturating_sub(gone);
            cuts += 1;
            erased.push(pointer);
        }
        out.clear();
        for (name, value) in &body {
            member(&mut out, name, value);
        }
        member(&mut out, "erased", &&erased[..erased.len().min(ERASED_MAX)]);
        // The names of what is gone take some bytes themselves.
        if out.len() <= RECORD_BYTES_MAX || body.is_empty() {
            return out;
        }
        bytes = out.len();
    }
}

/// Takes out the largest member of the largest object of the largest ..., or of this one where `deep` is not said. A list
/// goes as a whole, but one of objects loses members of those. Gives the JSON pointer to it (RFC 6901) and its bytes.
fn cut_largest(members: &mut Map<String, Value>, deep: bool) -> Option<(String, usize)> {
    let (name, value) = members
        .iter_mut()
        .max_by_key(|(_, value)| bytes_of(value))?;
    let here = pointer(name);
    let inside = match value {
        _ if !deep => None,
        Value::Object(inner) => cut_largest(inner, deep),
        Value::Array(items) => {
            let objects = items.iter_mut().enumerate();
            let objects = objects.filter_map(|(at, item)| Some((at, item.as_object_mut()?)));
            let largest =
                objects.max_by_key(|(_, inner)| inner.values().map(bytes_of).sum::<usize>());
            largest.and_then(|(at, inner)| {
                let (below, bytes) = cut_largest(inner, deep)?;
                Some((format!("/{at}{below}"), bytes))
            })
        }
        _ => None,
    };
    if let Some((below, bytes)) = inside {
        return Some((here + &below, bytes));
    }
    let (name, bytes) = (name.clone(), bytes_of(value));
    members.remove(&name);
    Some((here, bytes))
}

/// Of a value, written: at least so many.
fn bytes_of(value: &Value) -> usize {
    match value {
        Value::Object(members) => members
            .iter()
            .map(|(name, value)| name.len() + 4 + bytes_of(value))
            .sum(),
        Value::Array(items) => items.iter().map(|item| 1 + bytes_of(item)).sum(),
        Value::String(text) => text.len() + 2,
        Value::Null | Value::Bool(_) | Value::Number(_) => 1,
    }
}

/// A JSON pointer to a member (RFC 6901), cut: a name may be long too.
fn pointer(name: &str) -> String {
    format!(
        "/{}",
        crate::json::short(name)
            .replace('~', "~0")
            .replace('/', "~1")
    )
}

/// Puts `,"name":value` at the end.
pub(super) fn member(out: &mut Vec<u8>, name: &str, value: &impl Serialize) {
    // Values of text, numbers, lists and maps that are written to memory: neither can fail.
    out.push(b',');
    let _ = name.serialize(&mut Serializer::with_formatter(&mut *out, Plain));
    out.push(b':');
    let _ = value.serialize(&mut Serializer::with_formatter(out, Plain));
}

/// JSON whose text cannot play tricks on whoever reads the log in a terminal or an editor: beside what JSON escapes
/// anyway, control characters, line separators, and what is invisible or changes the direction of text.
struct Plain;

impl Formatter for Plain {
    fn write_string_fragment<W: io::Write + ?Sized>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let mut rest = fragment;
        if fragment.bytes().all(|byte| byte < 0x7f) {
            // Nearly all of it, and none of it tricky.
            return writer.write_all(fragment.as_bytes());
        }
        while let Some(at) = rest.find(is_tricky) {
            writer.write_all(&rest.as_bytes()[..at])?;
            let tricky = rest[at..].chars().next().unwrap_or_default();
            for unit in tricky.encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
            rest = &rest[at + tricky.len_utf8()..];
        }
        writer.write_all(rest.as_bytes())
    }

    fn write_char_escape<W: io::Write + ?Sized>(
        &mut self,
        writer: &mut W,
        escape: CharEscape,
    ) -> io::Result<()> {
        serde_json::ser::CompactFormatter.write_char_escape(writer, escape)
    }
}

fn is_tricky(c: char) -> bool {
    matches!(c, '\u{7f}'..='\u{9f}' | '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::{Kind, RECORD_BYTES_MAX, Record};
    use serde_json::{Value, json};

    fn encode(body: &Value) -> (String, Value) {
        let body = body.as_object().unwrap().clone();
        let encoded = Record::new(Kind::Decision, body).encode();
        let text = String::from_utf8(encoded.members).unwrap();
        let value = serde_json::from_str(&format!("{{\"x\":0{text}}}")).unwrap();
        (text, value)
    }

    #[test]
    fn members_are_json_on_one_line_without_tricks() {
        let nasty = "a\"}\n\r\u{1b}[2J\u{7f}\u{85}\u{202e}\u{2028}\u{feff}\u{e0041}\u{0}é漢🙂";
        let (text, value) =
            encode(&json!({ nasty: [nasty, 1, null, {"b": true}], "hash": "h", "prev": 1 }));
        assert_eq!(value[nasty], json!([nasty, 1, null, {"b": true}]));
        assert!(
            text.chars()
                .all(|c| !c.is_control() && !super::is_tricky(c)),
            "{text}"
        );
        assert!(text.contains("é漢🙂"), "plain letters stay");
        assert!(value["hash"].is_null() && value["prev"].is_null());
    }

    #[test]
    fn what_is_too_large_is_left_out_by_name() {
        let large = "x".repeat(RECORD_BYTES_MAX);
        let (text, value) = encode(
            &json!({ "decision_id": "d", "in/put": large, "erased": ["/input/subject/claims"], "result": "y".repeat(1000) }),
        );
        assert!(text.len() <= RECORD_BYTES_MAX);
        assert_eq!(value["decision_id"], "d");
        assert_eq!(
            value["erased"],
            json!(["/input/subject/claims", "/in~1put"])
        );
        assert_eq!(value["result"].as_str().unwrap().len(), 1000);
        let (_, value) = encode(&json!({ "a": "x".repeat(RECORD_BYTES_MAX - 8) }));
        assert!(value["erased"].is_null(), "just fits");
        let (_, value) = encode(&json!({ "a": "x".repeat(RECORD_BYTES_MAX - 5) }));
        assert_eq!(value, json!({ "x": 0, "erased": ["/a"] }), "just does not");
    }

    /// Whoever asks for much is still seen to have asked.
    #[test]
    fn what_is_beside_the_large_parts_stays() {
        let skill = |n: usize| {
            let patterns = vec!["y".repeat(250); 64];
            json!({ "name": format!("fat.skill{n}"), "permissions": { "network": patterns, "secrets": ["S"] } })
        };
        let skills: Vec<Value> = (0..32).map(skill).collect();
        let keys: Vec<String> = (0..40_000).map(|n| format!("key{n}")).collect();
        let (text, value) = encode(&json!({ "decision_id": "d", "input": {
            "request": { "method": "run_code", "arg_keys": keys }, "source": { "ip": "192.0.2.1" }, "skills": skills,
        } }));
        assert!(text.len() <= RECORD_BYTES_MAX && text.len() > RECORD_BYTES_MAX / 2);
        let input = &value["input"];
        assert_eq!(
            (&input["request"]["method"], &input["source"]["ip"]),
            (&json!("run_code"), &json!("192.0.2.1"))
        );
        for (n, skill) in input["skills"].as_array().unwrap().iter().enumerate() {
            assert_eq!(skill["name"], format!("fat.skill{n}"));
            assert_eq!(skill["permissions"]["secrets"], json!(["S"]));
        }
        let erased = value["erased"].as_array().unwrap();
        assert!(
            erased.contains(&json!("/input/request/arg_keys")),
            "{erased:?}"
        );
        assert!(
            erased
                .iter()
                .any(|it| it.as_str().unwrap().ends_with("/permissions/network")),
            "{erased:?}"
        );
    }

    #[test]
    fn thousands_of_small_parts_are_left_out_too() {
        let claims: serde_json::Map<String, Value> = (0..20_000)
            .map(|n| (format!("claim{n}"), "z".repeat(20).into()))
            .collect();
        let (text, value) = encode(&json!({ "decision_id": "d", "input": { "claims": claims } }));
        assert!(text.len() <= RECORD_BYTES_MAX);
        assert_eq!(value["decision_id"], "d");
        assert_eq!(value["erased"].as_array().unwrap().len(), super::ERASED_MAX);
        assert!(value["input"].is_null());
    }
}

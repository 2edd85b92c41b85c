//! What is recorded, and its bytes.

use std::io;

use serde::Serialize;
use serde_json::ser::{CharEscape, Formatter, Serializer};
use serde_json::{Map, Value};
use skillgate_plugin_host::visible_json;

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
/// Single parts of a record that are left out; where more would have to be, whole members are. Enough for a run of as many
/// skills as can be mounted: what each declares, and what each is granted.
const CUTS_MAX: usize = 128;
/// A part has at least so many bytes: less would not pay for its name in `erased`.
const PART_BYTES_MIN: usize = 256;
/// What is deeper inside is no part of its own: its name would be long.
const PART_DEPTH_MAX: usize = 8;
/// More members that are left out are not named: what has so many is nothing that this program records.
const ERASED_MAX: usize = 2 * CUTS_MAX;

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
    let (mut out, mut bytes, mut cuts_left) = (Vec::new(), text.len(), CUTS_MAX);
    loop {
        let gone = cut(&mut body, bytes.saturating_sub(RECORD_BYTES_MAX), cuts_left);
        cuts_left = cuts_left.saturating_sub(gone.len());
        for pointer in gone {
            // What was left out of it before is left out with it.
            let within = format!("{pointer}/");
            erased.retain(|before: &String| !before.starts_with(&within));
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

/// Takes out the largest parts until so many bytes are gone, or the largest member where more than `cuts_max` would have to
/// go. Gives the JSON pointers to what is gone (RFC 6901). Measures everything once, and not again for each part.
fn cut(body: &mut Map<String, Value>, excess: usize, cuts_max: usize) -> Vec<String> {
    let mut sizes = Vec::new();
    take_parts(body, Place::default(), &mut |bytes| {
        sizes.push(bytes);
        false
    });
    sizes.sort_unstable_by(|one, other| other.cmp(one));
    let mut sum = 0;
    let last = sizes.iter().take(cuts_max).position(|bytes| {
        sum += bytes;
        sum >= excess
    });
    let Some(last) = last else {
        let largest = body.iter().max_by_key(|(_, value)| bytes_of(value));
        let name = largest.map(|(name, _)| name.clone());
        let gone = name.and_then(|name| body.remove(&name).map(|_| pointer(&name)));
        return gone.into_iter().collect();
    };
    let least = sizes[last];
    // Of those that are just as large, no more than have to go.
    let mut left = sizes[..=last].iter().filter(|it| **it == least).count();
    let is_taken = &mut |bytes: usize| {
        let is_taken = bytes > least || bytes == least && left > 0;
        left -= usize::from(is_taken && bytes == least);
        is_taken
    };
    take_parts(body, Place::default(), is_taken)
}

/// Where an object is in a record.
#[derive(Debug, Clone, Copy, Default)]
struct Place {
    /// Objects and lists above it.
    depth: usize,
    /// A list is among them.
    is_in_list: bool,
}

/// Takes out the parts of which `is_taken` says so, by their bytes, and gives the JSON pointers to them (RFC 6901). A part is a
/// member without members of its own. A list goes as a whole, but one of objects loses parts of those; a list inside of them goes
/// as a whole again, or what one skill declares would be a part for each of its patterns.
fn take_parts(
    members: &mut Map<String, Value>,
    place: Place,
    is_taken: &mut dyn FnMut(usize) -> bool,
) -> Vec<String> {
    let mut gone = Vec::new();
    let is_deep = place.depth >= PART_DEPTH_MAX;
    members.retain(|name, value| {
        let below = match value {
            Value::Object(inner) if !is_deep => {
                let depth = place.depth + 1;
                take_parts(inner, Place { depth, ..place }, is_taken)
            }
            Value::Array(items)
                if !is_deep && !place.is_in_list && items.iter().any(Value::is_object) =>
            {
                let inside = Place {
                    depth: place.depth + 2,
                    is_in_list: true,
                };
                let objects = items.iter_mut().enumerate();
                let objects = objects.filter_map(|(at, item)| Some((at, item.as_object_mut()?)));
                let of_each = objects.flat_map(|(at, inner)| {
                    let below = take_parts(inner, inside, is_taken).into_iter();
                    below.map(move |below| format!("/{at}{below}"))
                });
                of_each.collect()
            }
            _ => {
                let bytes = bytes_of(value);
                let goes = bytes >= PART_BYTES_MIN && is_taken(bytes);
                if goes {
                    gone.push(pointer(name));
                }
                return !goes;
            }
        };
        gone.extend(below.iter().map(|below| pointer(name) + below));
        true
    });
    gone
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

/// JSON whose text cannot play tricks on whoever reads the log in a terminal or an editor: all that is hidden is escaped, and
/// not only what JSON escapes anyway.
struct Plain;

impl Formatter for Plain {
    fn write_string_fragment<W: io::Write + ?Sized>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        writer.write_all(visible_json(fragment).as_bytes())
    }

    fn write_char_escape<W: io::Write + ?Sized>(
        &mut self,
        writer: &mut W,
        escape: CharEscape,
    ) -> io::Result<()> {
        serde_json::ser::CompactFormatter.write_char_escape(writer, escape)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

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
        let nasty = "a\"}\n\r\u{1b}[2J\u{7f}\u{85}\u{202e}\u{2028}\u{feff}\u{e0041}\u{0}\u{3164}\u{34f}\u{e0100}\u{200d}é漢🙂";
        let (text, value) =
            encode(&json!({ nasty: [nasty, 1, null, {"b": true}], "hash": "h", "prev": 1 }));
        assert_eq!(value[nasty], json!([nasty, 1, null, {"b": true}]));
        assert!(!text.contains(skillgate_skill::text::is_hidden), "{text:?}");
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

    /// As the rules see a pattern, with as many labels as one may have and about as many bytes.
    fn pattern(skill: usize, n: usize) -> Value {
        let labels = vec!["y".repeat(14); 15].join(".");
        let host = format!("s{skill}p{n}.{labels}");
        let dots = host.match_indices('.');
        let suffixes: Vec<&str> = dots.map(|(at, _)| &host[at..]).collect();
        json!({
            "pattern": format!("https://{host}:443"), "scheme": "https", "host": host, "wildcard": false, "port": 443,
            "suffixes": suffixes,
        })
    }

    fn skill(n: usize) -> Value {
        let network: Vec<Value> = (0..64).map(|at| pattern(n, at)).collect();
        let permissions = json!({ "network": network, "secrets": ["S"] });
        json!({ "name": format!("fat.skill{n}"), "version": "1.0.0", "permissions": permissions })
    }

    /// What is missing in `now`, or was emptied, by its pointer.
    fn missing(before: &Value, now: Option<&Value>, here: String, out: &mut Vec<String>) {
        match (before, now) {
            (Value::Object(members), Some(Value::Object(now))) => {
                for (name, value) in members {
                    missing(value, now.get(name), format!("{here}/{name}"), out);
                }
            }
            (Value::Array(items), Some(Value::Array(now))) => {
                for (at, item) in items.iter().enumerate() {
                    missing(item, now.get(at), format!("{here}/{at}"), out);
                }
            }
            (before, now) if Some(before) == now => {}
            _ => out.push(here),
        }
    }

    /// As many as can be mounted, each with as much as can be declared.
    #[test]
    fn what_a_run_of_many_skills_asks_for_stays() {
        let keys: Vec<String> = (0..40_000).map(|n| format!("key{n}")).collect();
        // Some skills, as many as can be mounted, and what is granted to all of them beside it.
        for (count, is_full) in [(3, false), (2, false), (32, false), (2, true), (32, true)] {
            let skills: Vec<Value> = (0..count).map(skill).collect();
            let of = |n: usize| skills[n]["permissions"]["network"].as_array().unwrap();
            let texts = |n: usize| of(n).iter().map(|it| it["pattern"].clone());
            let all: Vec<Value> = (0..count).flat_map(texts).collect();
            let grants: serde_json::Map<_, _> = (0..count)
                .map(|n| {
                    (
                        format!("fat.skill{n}"),
                        json!({ "network": texts(n).collect::<Vec<_>>() }),
                    )
                })
                .collect();
            let mut body = json!({ "decision_id": "d", "erased": ["/input/subject/claims"], "input": {
                "request": { "method": "run_code", "arg_keys": keys }, "source": { "ip": "192.0.2.1" }, "skills": skills,
            }, "result": { "allow": true, "granted": { "network": all } } });
            if is_full {
                let grants = json!({ "code": { "network": all }, "skills": grants });
                body["result"]["decision"] = json!({ "grants": grants });
            }
            let (text, value) = encode(&body);
            assert!(text.len() <= RECORD_BYTES_MAX);
            let input = &value["input"];
            assert_eq!(
                (&input["request"]["method"], &input["source"]["ip"]),
                (&json!("run_code"), &json!("192.0.2.1")),
                "{count} skills, full: {is_full}, erased: {}",
                value["erased"]
            );
            assert_eq!(value["result"]["allow"], true);
            for (n, skill) in input["skills"].as_array().unwrap().iter().enumerate() {
                assert_eq!(skill["name"], format!("fat.skill{n}"));
                assert_eq!(skill["permissions"]["secrets"], json!(["S"]));
            }
            let erased: Vec<String> = serde_json::from_value(value["erased"].clone()).unwrap();
            let mut gone = vec![];
            missing(&body, Some(&value), String::new(), &mut gone);
            gone.retain(|it| !it.starts_with("/erased"));
            gone.push("/input/subject/claims".into());
            let names = |of: &[String]| of.iter().cloned().collect::<BTreeSet<_>>();
            assert_eq!(names(&gone), names(&erased), "{count} skills");
            let network = "/input/skills/0/permissions/network";
            assert!(erased.iter().any(|it| it == network), "{erased:?}");
        }
    }

    #[test]
    fn thousands_of_small_parts_are_left_out_too() {
        let claims: serde_json::Map<String, Value> = (0..20_000)
            .map(|n| (format!("claim{n}"), "z".repeat(20).into()))
            .collect();
        let (text, value) = encode(&json!({ "decision_id": "d", "input": { "claims": claims } }));
        assert!(text.len() <= RECORD_BYTES_MAX);
        assert_eq!(value["decision_id"], "d");
        assert_eq!(
            value["erased"],
            json!(["/input"]),
            "and none of it by itself"
        );
        assert!(value["input"].is_null());
    }
}

//! What is recorded, and its bytes.

use std::borrow::Cow;
use std::io;

use serde::Serialize;
use serde_json::ser::{CharEscape, Formatter, Serializer};
use serde_json::{Map, Value};

/// Longest record before it is sealed, in bytes. Of a larger one the largest members are left out and named in `erased`.
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
    /// Name of each member, and where in the text it ends.
    members: Vec<(Cow<'static, str>, usize)>,
}

/// Most records have at most so many bytes and members: room is made once.
const RECORD_BYTES_USUAL: usize = 2048;
const MEMBERS_USUAL: usize = 12;
/// More members that are left out are not named: what has so many is nothing that this program records.
const ERASED_MAX: usize = 16;

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
            record.put(name.into(), &value);
        }
        record
    }

    /// One without members.
    pub fn empty(kind: Kind) -> Self {
        Record {
            kind,
            text: Vec::with_capacity(RECORD_BYTES_USUAL),
            members: Vec::with_capacity(MEMBERS_USUAL),
        }
    }

    /// The same with one more member.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: &impl Serialize) -> Self {
        self.put(name.into(), value);
        self
    }

    /// Its members.
    #[cfg(test)]
    pub(crate) fn json(&self) -> Value {
        let text = self.text.get(1..).unwrap_or_default();
        serde_json::from_str(&format!("{{{}}}", str::from_utf8(text).unwrap())).unwrap()
    }

    fn put(&mut self, name: Cow<'static, str>, value: &impl Serialize) {
        if !RESERVED.contains(&&*name) {
            member(&mut self.text, &name, value);
            self.members.push((name, self.text.len()));
        }
    }

    pub(super) fn encode(self) -> Encoded {
        let Record {
            kind,
            mut text,
            members,
        } = self;
        let has_timestamp = members.iter().any(|(name, _)| name == "timestamp");
        if text.len() > RECORD_BYTES_MAX {
            text = shortened(&text, &members);
        }
        Encoded {
            kind,
            members: text,
            has_timestamp,
        }
    }
}

/// Leaves out the largest members until the rest fits, and names them beside those that already are left out.
fn shortened(text: &[u8], members: &[(Cow<'static, str>, usize)]) -> Vec<u8> {
    let starts = [0].into_iter().chain(members.iter().map(|(_, end)| *end));
    let members: Vec<(&str, &[u8])> = members
        .iter()
        .zip(starts)
        .map(|((name, end), start)| (&**name, &text[start..*end]))
        .collect();
    let mut largest: Vec<&(&str, &[u8])> = members.iter().collect();
    largest.sort_by_key(|(_, text)| text.len());
    let (mut bytes, mut gone) = (text.len(), Vec::new());
    while bytes > RECORD_BYTES_MAX
        && let Some((name, text)) = largest.pop()
    {
        bytes -= text.len();
        gone.push(*name);
    }
    let already = members.iter().find(|(name, _)| *name == "erased");
    let already: Vec<String> = already
        .and_then(|(name, text)| serde_json::from_slice(&text[name.len() + 4..]).ok())
        .unwrap_or_default();
    let mut out: Vec<u8> = members
        .iter()
        .filter(|(name, _)| *name != "erased" && !gone.contains(name))
        .flat_map(|(_, text)| *text)
        .copied()
        .collect();
    let names = gone.into_iter().map(pointer).chain(already);
    member(
        &mut out,
        "erased",
        &names.take(ERASED_MAX).collect::<Vec<_>>(),
    );
    out
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
            json!(["/in~1put", "/input/subject/claims"])
        );
        assert_eq!(value["result"].as_str().unwrap().len(), 1000);
        let (_, value) = encode(&json!({ "a": "x".repeat(RECORD_BYTES_MAX - 8) }));
        assert!(value["erased"].is_null(), "just fits");
        let (_, value) = encode(&json!({ "a": "x".repeat(RECORD_BYTES_MAX - 5) }));
        assert_eq!(value, json!({ "x": 0, "erased": ["/a"] }), "just does not");
    }
}

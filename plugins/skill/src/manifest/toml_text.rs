//! TOML text to JSON values with places, and back.

use std::collections::BTreeMap;

use serde_json::{Map, Number, Value};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{KEY_BYTES_MAX, MANIFEST_DEPTH_MAX, ManifestError};
use crate::SKILL_TOML;
use crate::problem::{Code, PROBLEMS_MAX, Problem};
use crate::text::{line_column, one_line};

/// Where the values of a TOML text stand: JSON pointer to (line, column).
pub(super) type Places = BTreeMap<String, (u32, u32)>;

/// Places are kept down to `/permissions/network/0`; what is deeper is found by its parent.
const PLACES_DEPTH_MAX: usize = 3;

/// Adds one step to a JSON pointer (RFC 6901).
pub(super) fn step(pointer: &str, key: &str) -> String {
    format!("{pointer}/{}", key.replace('~', "~0").replace('/', "~1"))
}

pub(super) fn parse(text: &str) -> Result<(Map<String, Value>, Places), ManifestError> {
    let (table, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        let problems = errors.iter().take(PROBLEMS_MAX).map(|e| {
            let problem = Problem::error(SKILL_TOML, Code::Syntax, one_line(e.message()));
            match e.span() {
                Some(span) => problem.place(line_column(text, span.start)),
                None => problem,
            }
        });
        return Err(ManifestError {
            problems: problems.collect(),
        });
    }
    let mut reader = Reader {
        lines: Lines::of(text),
        text,
        // What is missing is missing in the whole.
        places: Places::from([(String::new(), (1, 1))]),
    };
    let written = reader
        .table(table.into_inner(), "", 1)
        .map_err(ManifestError::one)?;
    Ok((written, reader.places))
}

/// Where one value of a TOML text stands, if it is there.
pub(super) fn place_of(text: &str, pointer: &str) -> Option<(u32, u32)> {
    parse(text).ok()?.1.get(pointer).copied()
}

/// Where lines start: finding a place must not read the text again for each value.
struct Lines(Vec<usize>);

impl Lines {
    fn of(text: &str) -> Self {
        Lines(
            std::iter::once(0)
                .chain(text.match_indices('\n').map(|(at, _)| at + 1))
                .collect(),
        )
    }

    fn place(&self, text: &str, offset: usize) -> (u32, u32) {
        let line = self.0.partition_point(|start| *start <= offset).max(1);
        let start = self.0[line - 1];
        // Within one line, and a line can be as long as the text: bounded by columns that a person
        // would look for.
        const COLUMN_BYTES_MAX: usize = 1024;
        let column = if offset - start <= COLUMN_BYTES_MAX {
            text.get(start..offset)
                .map_or(1, |before| before.chars().count() + 1)
        } else {
            offset - start + 1
        };
        (crate::text::small(line), crate::text::small(column))
    }
}

struct Reader<'t> {
    text: &'t str,
    lines: Lines,
    places: Places,
}

impl Reader<'_> {
    fn table(
        &mut self,
        table: DeTable<'_>,
        pointer: &str,
        depth: usize,
    ) -> Result<Map<String, Value>, Problem> {
        let mut members = Map::new();
        for (key, value) in table {
            let place = self.lines.place(self.text, key.span().start);
            let key = key.into_inner();
            if key.len() > KEY_BYTES_MAX {
                return Err(too_long_key(SKILL_TOML, pointer, key.len()).place(place));
            }
            // A table is found by its key, anything else by itself: that is what will be wrong.
            let place = match value.get_ref() {
                DeValue::Table(_) => place,
                _ => self.lines.place(self.text, value.span().start),
            };
            let below = self.note(pointer, &key, depth, place);
            let value = self.value(value, &below, depth + 1)?;
            members.insert(key.into_owned(), value);
        }
        Ok(members)
    }

    /// Remembers a place and gives the pointer; below the kept depth, the parent's pointer.
    fn note(&mut self, pointer: &str, key: &str, depth: usize, place: (u32, u32)) -> String {
        if depth > PLACES_DEPTH_MAX {
            return pointer.to_owned();
        }
        let below = step(pointer, key);
        self.places.insert(below.clone(), place);
        below
    }

    fn value(
        &mut self,
        value: Spanned<DeValue<'_>>,
        pointer: &str,
        depth: usize,
    ) -> Result<Value, Problem> {
        let place = self.lines.place(self.text, value.span().start);
        let fail = |code, message: &str| {
            Err(Problem::error(SKILL_TOML, code, message)
                .at(pointer)
                .place(place))
        };
        let is_container = matches!(value.get_ref(), DeValue::Array(_) | DeValue::Table(_));
        if is_container && depth > MANIFEST_DEPTH_MAX {
            return fail(
                Code::TooDeep,
                &format!("nested more than {MANIFEST_DEPTH_MAX} deep"),
            );
        }
        match value.into_inner() {
            DeValue::String(text) => Ok(Value::String(text.into_owned())),
            DeValue::Boolean(b) => Ok(Value::Bool(b)),
            // JSON has no dates; their text is what a reader of JSON expects.
            DeValue::Datetime(date) => Ok(Value::String(date.to_string())),
            DeValue::Integer(n) => match i64::from_str_radix(n.as_str(), n.radix()) {
                Ok(n) => Ok(Value::Number(n.into())),
                Err(_) => fail(Code::Invalid, "the number does not fit in 64 bits"),
            },
            DeValue::Float(n) => match n.as_str().parse().ok().and_then(Number::from_f64) {
                Some(n) => Ok(Value::Number(n)),
                None => fail(
                    Code::Invalid,
                    "a number that is infinite or not a number is not allowed",
                ),
            },
            DeValue::Array(items) => {
                let mut list = Vec::new();
                for (index, item) in items.into_iter().enumerate() {
                    let place = self.lines.place(self.text, item.span().start);
                    let below = self.note(pointer, &index.to_string(), depth, place);
                    list.push(self.value(item, &below, depth + 1)?);
                }
                Ok(Value::Array(list))
            }
            DeValue::Table(table) => self.table(table, pointer, depth).map(Value::Object),
        }
    }
}

pub(super) fn too_long_key(file: &str, pointer: &str, bytes: usize) -> Problem {
    Problem::error(
        file,
        Code::TooLarge,
        format!("a key has {bytes} bytes, at most {KEY_BYTES_MAX} are allowed"),
    )
    .at(pointer)
}

/// The order in which a reader expects the known keys; the rest follows by name.
const ORDER: &[&str] = &[
    "name",
    "version",
    "description",
    "kind",
    "namespace",
    "tags",
    "runtime",
    "inputs",
    "permissions",
];

/// Writes a manifest. Values must be what `read` lets through: no nulls, integers within i64.
pub(super) fn write(written: &Map<String, Value>) -> String {
    let rank = |key: &str| {
        ORDER
            .iter()
            .position(|known| *known == key)
            .unwrap_or(ORDER.len())
    };
    let mut keys: Vec<&String> = written.keys().collect();
    keys.sort_by_key(|key| (rank(key), key.as_str()));

    // Plain keys must come before the first `[table]`, or they would belong to it.
    let (mut plain, mut tables) = (String::new(), String::new());
    for key in keys {
        let Some(value) = to_toml(&written[key]) else {
            continue;
        };
        let is_table = value.is_table();
        let line = if is_table {
            table_text(key, value)
        } else {
            entry_text(key, value)
        };
        if is_table {
            tables.push('\n');
            tables.push_str(&line);
        } else {
            plain.push_str(&line);
        }
    }
    plain + &tables
}

/// `key = value`, arrays and tables inline.
fn entry_text(key: &str, value: toml::Value) -> String {
    format!("{} = {value}\n", key_text(key))
}

/// `[key]` and one line for each member.
fn table_text(key: &str, value: toml::Value) -> String {
    let toml::Value::Table(table) = value else {
        return String::new();
    };
    let mut text = format!("[{}]\n", key_text(key));
    for (key, value) in table {
        text.push_str(&entry_text(&key, value));
    }
    text
}

/// A key, bare where TOML allows it, else a basic string.
fn key_text(key: &str) -> String {
    if !key.is_empty()
        && key
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
    {
        return key.to_owned();
    }
    let mut text = String::from("\"");
    for c in key.chars() {
        match c {
            '"' | '\\' => text.extend(['\\', c]),
            c if c.is_control() => text.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => text.push(c),
        }
    }
    text.push('"');
    text
}

fn to_toml(value: &Value) -> Option<toml::Value> {
    Some(match value {
        Value::Null => return None,
        Value::Bool(b) => toml::Value::Boolean(*b),
        Value::String(text) => toml::Value::String(text.clone()),
        Value::Number(n) => match n.as_i64() {
            Some(n) => toml::Value::Integer(n),
            None => toml::Value::Float(n.as_f64()?),
        },
        Value::Array(items) => toml::Value::Array(items.iter().filter_map(to_toml).collect()),
        Value::Object(members) => toml::Value::Table(
            members
                .iter()
                .filter_map(|(key, value)| Some((key.clone(), to_toml(value)?)))
                .collect(),
        ),
    })
}

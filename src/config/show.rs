//! The configuration in force, for people and programs to read, without what nobody should read.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::problem::Origin;
use super::raw::{self, Node, Table, Value};
use super::section::{Kind, any_item, as_text};

/// What is shown instead of a secret.
const MASK: &str = "***";

/// A key of a plugin's section whose name has one of these in it may hold a secret.
const SECRET_WORDS: [&str; 11] = [
    "key",
    "secret",
    "token",
    "pass",
    "pwd",
    "credential",
    "auth",
    "bearer",
    "cookie",
    "dsn",
    "private",
];

/// Has one of those in it, and none of its sense. `authorization` has.
const OTHER_WORDS: [&str; 7] = [
    "author",
    "authors",
    "authority",
    "bypass",
    "passive",
    "passthrough",
    "pass_through",
];

/// The tree after all layers, masked when it is made, so that no later mistake can show more.
#[derive(Debug, Clone, Default)]
pub(super) struct Effective {
    tree: Table,
}

impl Effective {
    /// `known` says which values a variable gives as plain text, and which tables are a plugin's own.
    pub(super) fn new(tree: Table, known: &BTreeMap<String, Kind>) -> Self {
        Effective {
            tree: settle_table("", tree, known, Kind::Toml),
        }
    }

    /// As TOML; with `origins` each value's place is in a comment.
    pub(super) fn to_toml(&self, origins: bool) -> String {
        let mut out = String::new();
        write_table(&mut out, "", &self.tree, origins);
        out
    }

    /// Whether the value at `path` is the built-in one.
    pub(super) fn is_default(&self, path: &str) -> bool {
        matches!(raw::origin(&self.tree, path), Some(Origin::Default { .. }))
    }

    /// Where the value at `path` was written, or else the nearest table above it.
    pub(super) fn origin(&self, path: &str) -> Option<&Origin> {
        raw::origin(&self.tree, path)
    }

    /// As JSON.
    pub(super) fn to_json(&self) -> serde_json::Value {
        json_table(&self.tree)
    }
}

fn settle_table(path: &str, table: Table, known: &BTreeMap<String, Kind>, above: Kind) -> Table {
    let settle = |(key, node): (String, Node)| {
        let path = raw::join(path, &key);
        let kind = if above == Kind::Open {
            above
        } else {
            known.get(&any_item(&path)).copied().unwrap_or(Kind::Toml)
        };
        let mask = above == Kind::Open && names_a_secret(&key);
        let value = if mask {
            Value::String(MASK.into())
        } else {
            settle(&path, node.value, known, kind)
        };
        (key, Node { value, ..node })
    };
    table.into_iter().map(settle).collect()
}

fn settle(path: &str, value: Value, known: &BTreeMap<String, Kind>, kind: Kind) -> Value {
    let value = match (value, kind) {
        (text @ Value::Text { .. }, Kind::Text) => {
            Value::String(as_text(&text).unwrap_or_default().to_owned())
        }
        (Value::Text { toml, .. }, _) => *toml,
        (value, _) => value,
    };
    match value {
        Value::Table(table) => Value::Table(settle_table(path, table, known, kind)),
        Value::List(items) => {
            let item = |item: Node| Node {
                value: settle(&format!("{path}[]"), item.value, known, kind),
                ..item
            };
            Value::List(items.into_iter().map(item).collect())
        }
        Value::String(text)
            if has_password(&text)
                || kind == Kind::Open && (sets_a_secret(&text) || has_bare_password(&text)) =>
        {
            Value::String(MASK.into())
        }
        value => value,
    }
}

fn names_a_secret(key: &str) -> bool {
    let key = key.to_lowercase();
    let is_other = |at: usize| {
        OTHER_WORDS.iter().any(|other| {
            key.match_indices(other).any(|(start, _)| {
                let end = start + other.len();
                // Not the beginning of another word, such as `authorization`.
                let ends = !key[end..].starts_with(|c: char| c.is_ascii_lowercase());
                (start..end).contains(&at) && ends
            })
        })
    };
    SECRET_WORDS
        .iter()
        .any(|word| key.match_indices(word).any(|(at, _)| !is_other(at)))
}

/// `host=db password=...`, as databases are named, `https://host/?api_key=...`, or `Authorization: Bearer ...`.
fn sets_a_secret(text: &str) -> bool {
    let is_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-');
    let named = |text: &str| {
        let name = text.rsplit(|c| !is_name(c)).next();
        name.is_some_and(names_a_secret)
    };
    let set = text.match_indices(['=', ':']).any(|(at, sign)| {
        // `https://auth:8080` sets nothing.
        let is_set = sign == "=" || text[at + 1..].starts_with(char::is_whitespace);
        is_set && named(text[..at].trim_end())
    });
    set || text.to_lowercase().contains("bearer ")
}

/// `user:password@tcp(host:3306)/name`, as some name databases, without a scheme.
fn has_bare_password(text: &str) -> bool {
    let Some((before, host)) = text.rsplit_once('@').filter(|_| !text.contains("://")) else {
        return false;
    };
    // What names an image and its digest is no user's.
    before.contains(':') && !host.starts_with("sha256:")
}

/// `scheme://user:password@host`
fn has_password(text: &str) -> bool {
    let mut authorities = text
        .split("://")
        .skip(1)
        .map(|rest| rest.split(['/', '?', '#']).next().unwrap_or_default());
    authorities.any(|authority| authority.contains('@'))
}

fn write_table(out: &mut String, path: &str, table: &Table, origins: bool) {
    let is_tables = |node: &Node| match &node.value {
        Value::List(items) => {
            !items.is_empty()
                && items
                    .iter()
                    .all(|item| matches!(item.value, Value::Table(_)))
        }
        _ => false,
    };
    let is_below = |node: &Node| matches!(node.value, Value::Table(_)) || is_tables(node);
    for (key, node) in table.iter().filter(|(_, node)| !is_below(node)) {
        let _ = write!(out, "{} = {}", quoted(key), inline(&node.value));
        let _ = match (&node.origin, origins) {
            (_, false) => writeln!(out),
            (Origin::Default { .. }, true) => writeln!(out, "  # default"),
            (origin, true) => writeln!(out, "  # {}", origin.to_string().escape_debug()),
        };
    }
    for (key, node) in table.iter().filter(|(_, node)| is_below(node)) {
        let path = if path.is_empty() {
            quoted(key)
        } else {
            format!("{path}.{}", quoted(key))
        };
        match &node.value {
            Value::Table(inner) => {
                // A table of nothing but tables needs no line of its own.
                if inner.is_empty() || !inner.iter().all(|(_, node)| is_below(node)) {
                    let _ = writeln!(out, "\n[{path}]");
                }
                write_table(out, &path, inner, origins);
            }
            Value::List(items) => {
                for item in items {
                    let _ = writeln!(out, "\n[[{path}]]");
                    if let Value::Table(inner) = &item.value {
                        write_table(out, &path, inner, origins);
                    }
                }
            }
            _ => {}
        }
    }
}

fn quoted(key: &str) -> String {
    let bare = !key.is_empty()
        && key
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    if bare {
        key.to_owned()
    } else {
        basic_string(key)
    }
}

fn inline(value: &Value) -> String {
    match value {
        Value::String(text) => basic_string(text),
        Value::Integer(number) => number.to_string(),
        // `{:?}` keeps the point of 1.0, which TOML needs; inf and nan are spelt alike.
        Value::Float(number) if number.is_nan() => "nan".into(),
        Value::Float(number) => format!("{number:?}"),
        Value::Boolean(flag) => flag.to_string(),
        Value::Datetime(date) => date.clone(),
        Value::List(items) => {
            format!(
                "[{}]",
                items
                    .iter()
                    .map(|item| inline(&item.value))
                    .collect::<Vec<_>>()
                    .join(", ")
            )
        }
        Value::Table(table) if table.is_empty() => "{}".into(),
        Value::Table(table) => {
            let entry =
                |(key, node): &(String, Node)| format!("{} = {}", quoted(key), inline(&node.value));
            format!(
                "{{ {} }}",
                table.iter().map(entry).collect::<Vec<_>>().join(", ")
            )
        }
        Value::Text { text, .. } => basic_string(text),
    }
}

/// One line, whatever is in it.
fn basic_string(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04X}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

fn json_table(table: &Table) -> serde_json::Value {
    serde_json::Value::Object(
        table
            .iter()
            .map(|(key, node)| (key.clone(), json(&node.value)))
            .collect(),
    )
}

fn json(value: &Value) -> serde_json::Value {
    match value {
        Value::String(text) | Value::Datetime(text) | Value::Text { text, .. } => {
            text.clone().into()
        }
        Value::Integer(number) => (*number).into(),
        Value::Float(number) => (*number).into(),
        Value::Boolean(flag) => (*flag).into(),
        Value::List(items) => items.iter().map(|item| json(&item.value)).collect(),
        Value::Table(table) => json_table(table),
    }
}

//! A configuration as written: a tree of values, each of which knows where it comes from. Layers of it (the defaults,
//! the file, the environment, the command line) are laid over each other here, before anything is checked.
//!
//! It is not a serde struct, because serde stops at the first error and knows no place for a value that does not come
//! from a file; here all problems are found at once, each with its place.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::problem::{Origin, Problem};
use crate::json;

/// A value and where it was written.
#[derive(Debug, Clone)]
pub(super) struct Node {
    /// Where its key is: where an unknown key is reported.
    pub(super) key_origin: Origin,
    /// Where it is itself.
    pub(super) origin: Origin,
    /// What it is.
    pub(super) value: Value,
}

/// What TOML knows, less the spellings.
#[derive(Debug, Clone)]
pub(super) enum Value {
    /// Text.
    String(String),
    /// A whole number; TOML's are at most 64 bits wide.
    Integer(i64),
    /// Any other number.
    Float(f64),
    /// true or false.
    Boolean(bool),
    /// No key of ours takes one.
    Datetime(String),
    /// `[a, b]` or `[[a]]`.
    List(Vec<Node>),
    /// `{ a = b }` or `[a]`.
    Table(Table),
    /// What a variable of the environment holds: as TOML if it is a TOML value, and as it is.
    Text {
        /// Read as TOML, or else the same text again.
        toml: Box<Value>,
        /// As it is.
        text: String,
    },
}

/// In the order in which it was written.
pub(super) type Table = Vec<(String, Node)>;

/// Tables and lists in each other, at most: what walks through them takes stack for each. The parser bounds the depth of one list and
/// the names of one key, and not what they make together.
pub(super) const LEVELS_MAX: usize = 128;

/// The value of `key`.
pub(super) fn get<'a>(table: &'a Table, key: &str) -> Option<&'a Node> {
    table.iter().find(|(k, _)| k == key).map(|(_, node)| node)
}

/// Where the value at `path` (`auth.mode`) is, or else the last table on the way to it that is there.
pub(super) fn origin<'a>(mut table: &'a Table, path: &str) -> Option<&'a Origin> {
    let mut origin = None;
    for part in path.split('.') {
        // `issuers[3]`
        let (key, item) = match part.strip_suffix(']').and_then(|part| part.split_once('[')) {
            Some((key, item)) => (key, item.parse::<usize>().ok()),
            None => (part, None),
        };
        let Some(mut node) = get(table, key) else {
            break;
        };
        if let (Value::List(items), Some(item)) = (&node.value, item) {
            node = items.get(item).unwrap_or(node);
        }
        origin = Some(&node.origin);
        match &node.value {
            Value::Table(inner) => table = inner,
            _ => break,
        }
    }
    origin
}

/// The same as [`get`], to change it.
pub(super) fn get_mut<'a>(table: &'a mut Table, key: &str) -> Option<&'a mut Node> {
    table
        .iter_mut()
        .find(|(k, _)| k == key)
        .map(|(_, node)| node)
}

/// Puts another value where `section.key` has one already; its place stays.
pub(super) fn replace(
    tree: &mut Table,
    section: &str,
    key: &str,
    value: impl FnOnce(&Origin) -> Value,
) {
    if let Some(Node {
        value: Value::Table(table),
        ..
    }) = get_mut(tree, section)
        && let Some(node) = get_mut(table, key)
    {
        node.value = value(&node.origin);
    }
}

impl Value {
    /// The value, with a variable's text read as TOML.
    pub(super) fn as_toml(&self) -> &Value {
        match self {
            Value::Text { toml, .. } => toml,
            other => other,
        }
    }

    /// For messages: the kind of value with its article.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Value::String(_) => "a string",
            Value::Integer(_) => "an integer",
            Value::Float(_) => "a float",
            Value::Boolean(_) => "a boolean",
            Value::Datetime(_) => "a date",
            Value::List(_) => "a list",
            Value::Table(_) => "a table",
            Value::Text { toml, .. } => toml.kind(),
        }
    }
}

/// Which text a tree is read from.
#[derive(Debug, Clone)]
pub(super) enum Document {
    /// The built-in one.
    Default,
    /// A file.
    File(Arc<str>),
}

/// Reads a document. All syntax errors are reported, up to the parser's own limit of what it can make sense of.
pub(super) fn parse(document: &Document, text: &str) -> Result<Table, Vec<Problem>> {
    let places = Places::new(document, text);
    let (tree, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        // What was recovered is a guess: only the syntax is reported.
        let problem = |e: toml::de::Error| Problem {
            origin: Some(places.at(&e.span().unwrap_or(0..0))),
            key: String::new(),
            message: format!(
                "not valid TOML: {}",
                e.message().lines().next().unwrap_or_default()
            ),
        };
        return Err(errors.into_iter().map(problem).collect());
    }
    let mut converter = Converter {
        at: &|span| places.at(span),
        level: 0,
        problems: Vec::new(),
    };
    let table = converter.table("", tree.get_ref());
    if converter.problems.is_empty() {
        Ok(table)
    } else {
        Err(converter.problems)
    }
}

/// Reads a variable's text: a TOML value, or else itself.
fn parse_variable(origin: &Origin, text: &str) -> Node {
    let mut converter = Converter {
        at: &|_| origin.clone(),
        level: 0,
        problems: Vec::new(),
    };
    let read = DeValue::parse(text)
        .ok()
        .map(|v| converter.node("", &v).value);
    let toml = read
        .filter(|_| converter.problems.is_empty())
        .unwrap_or_else(|| Value::String(text.to_owned()));
    let value = match toml {
        Value::Table(table) => Value::Table(table),
        toml => Value::Text {
            toml: Box::new(toml),
            text: text.to_owned(),
        },
    };
    Node {
        key_origin: origin.clone(),
        origin: origin.clone(),
        value,
    }
}

/// `SKILLGATE_SERVER__LISTEN=...` as the tree `{ server = { listen = ... } }`: `path` is `["server", "listen"]`.
pub(super) fn variable(name: &str, path: &[String], text: &str) -> Table {
    let origin = Origin::Environment {
        variable: name.into(),
    };
    branch(path, parse_variable(&origin, text))
}

/// An option of the command line as a tree.
pub(super) fn option(option: &'static str, path: &[String], value: Value) -> Table {
    let origin = Origin::CommandLine { option };
    branch(
        path,
        Node {
            key_origin: origin.clone(),
            origin,
            value,
        },
    )
}

/// A tree with one leaf.
fn branch(path: &[String], leaf: Node) -> Table {
    let Some((last, above)) = path.split_last() else {
        return Table::new();
    };
    let origin = leaf.origin.clone();
    above
        .iter()
        .rev()
        .fold(vec![(last.clone(), leaf)], |table, key| {
            let node = Node {
                key_origin: origin.clone(),
                origin: origin.clone(),
                value: Value::Table(table),
            };
            vec![(key.clone(), node)]
        })
}

/// Lays `over` on `base`: tables are joined key by key, everything else is replaced.
pub(super) fn overlay(base: &mut Table, over: Table) {
    // `over` has no key twice, so what it adds need not be looked through: a file of many keys stays linear.
    let below_count = base.len();
    for (key, above) in over {
        match base[..below_count].iter_mut().find(|(k, _)| *k == key) {
            None => base.push((key, above)),
            Some((_, below)) => match (&mut below.value, above.value) {
                (Value::Table(below), Value::Table(above)) => overlay(below, above),
                (_, value) => {
                    *below = Node {
                        key_origin: above.key_origin,
                        origin: above.origin,
                        value,
                    }
                }
            },
        }
    }
}

/// The places of a document's bytes.
struct Places<'a> {
    document: &'a Document,
    text: &'a str,
    line_starts: Vec<usize>,
}

impl<'a> Places<'a> {
    fn new(document: &'a Document, text: &'a str) -> Self {
        let line_starts = std::iter::once(0)
            .chain(text.match_indices('\n').map(|(i, _)| i + 1))
            .collect();
        Places {
            document,
            text,
            line_starts,
        }
    }

    fn at(&self, span: &Range<usize>) -> Origin {
        let byte = span.start.min(self.text.len());
        let line = self
            .line_starts
            .partition_point(|start| *start <= byte)
            .max(1);
        match self.document {
            Document::Default => Origin::Default { line },
            Document::File(file) => {
                let start = self.line_starts.get(line - 1).copied().unwrap_or(0);
                // Counted over bytes that start a character, so that a place inside of one is no panic.
                let is_start = |b: &&u8| (**b & 0xC0) != 0x80;
                let column = 1 + self.text.as_bytes()[start.min(byte)..byte]
                    .iter()
                    .filter(is_start)
                    .count();
                Origin::File {
                    file: Arc::clone(file),
                    line,
                    column,
                }
            }
        }
    }
}

/// From the parser's tree to ours. A number that does not fit is a problem, and so is what is too deep.
struct Converter<'a> {
    at: &'a dyn Fn(&Range<usize>) -> Origin,
    /// Tables and lists around what is read now.
    level: usize,
    problems: Vec<Problem>,
}

impl Converter<'_> {
    fn table(&mut self, path: &str, from: &DeTable<'_>) -> Table {
        // The parser sorts by key; the order of the text is the better one to show and to report in.
        let mut entries: Vec<_> = from.iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        let mut table = Table::new();
        for (key, from) in entries {
            let mut node = self.node(&join(path, key.get_ref()), from);
            node.key_origin = (self.at)(&key.span());
            table.push((key.get_ref().clone().into_owned(), node));
        }
        table
    }

    fn node(&mut self, path: &str, from: &Spanned<DeValue<'_>>) -> Node {
        let origin = (self.at)(&from.span());
        self.level += 1;
        let value = match from.get_ref() {
            DeValue::Array(_) | DeValue::Table(_) if self.level > LEVELS_MAX => {
                self.problems.push(Problem {
                    origin: Some(origin.clone()),
                    key: cut(path).into_owned(),
                    message: format!("nested more than {LEVELS_MAX} deep"),
                });
                Value::Boolean(false)
            }
            DeValue::String(s) => Value::String(s.clone().into_owned()),
            DeValue::Integer(i) => Value::Integer(
                i64::from_str_radix(i.as_str(), i.radix()).unwrap_or_else(|_| {
                    let message = format!("{i} is out of range: no integer is wider than 64 bits");
                    self.problems.push(Problem {
                        origin: Some(origin.clone()),
                        key: path.to_owned(),
                        message,
                    });
                    0
                }),
            ),
            DeValue::Float(x) => Value::Float(x.as_str().parse().unwrap_or(f64::NAN)),
            DeValue::Boolean(b) => Value::Boolean(*b),
            DeValue::Datetime(d) => Value::Datetime(d.to_string()),
            DeValue::Array(list) => {
                let item = |(i, item)| self.node(&format!("{path}[{i}]"), item);
                Value::List(list.iter().enumerate().map(item).collect())
            }
            DeValue::Table(table) => Value::Table(self.table(path, table)),
        };
        self.level -= 1;
        Node {
            key_origin: origin.clone(),
            origin,
            value,
        }
    }
}

/// `server` and `listen`: `server.listen`. A key that is no bare key is quoted, so that no control character and no
/// dot of it reaches a message unseen.
pub(super) fn join(path: &str, key: &str) -> String {
    let bare = !key.is_empty()
        && key
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    let key = if bare {
        key.to_owned()
    } else {
        format!("{:?}", cut(key))
    };
    if path.is_empty() {
        key
    } else {
        format!("{path}.{key}")
    }
}

/// At most 60 characters of a text from outside, for messages.
pub(super) fn cut(text: &str) -> Cow<'_, str> {
    json::cut(text, 60)
}

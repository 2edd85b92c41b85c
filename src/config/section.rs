//! Reads a table key by key into typed, checked values. A wrong value is noted and a stand-in is given, so that one
//! pass finds all problems; the stand-ins go nowhere, since a configuration with problems is refused.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;

use super::problem::{MAX_PROBLEMS, Origin, Problem, did_you_mean};
use super::raw::{self, Node, Table, Value};

/// What is noted while a configuration is read.
#[derive(Debug, Default)]
pub(super) struct Notes {
    /// What is wrong.
    pub(super) problems: RefCell<Vec<Problem>>,
    /// Every key that was asked for, as a path with `[]` for any item of a list.
    pub(super) known: RefCell<BTreeMap<String, Kind>>,
}

/// How a key is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// As text: a variable's value is taken as it is.
    Text,
    /// As what TOML makes of it.
    Toml,
    /// Whatever a plugin wants.
    Open,
}

/// A table that is being read.
#[derive(Debug)]
pub(super) struct Section<'a> {
    path: String,
    origin: Origin,
    table: &'a Table,
    /// The table is itself a stand-in: what is missing in it has been reported already.
    stand_in: bool,
    asked: RefCell<Vec<&'static str>>,
    notes: &'a Notes,
}

const NOTHING: &Table = &Table::new();

impl<'a> Section<'a> {
    /// Reads the whole tree with `read`, then notes the keys that nobody asked for.
    pub(super) fn root<T>(
        table: &'a Table,
        notes: &'a Notes,
        read: impl FnOnce(&Section<'a>) -> T,
    ) -> T {
        let origin = Origin::Default { line: 1 };
        Section {
            path: String::new(),
            origin,
            table,
            stand_in: false,
            asked: RefCell::default(),
            notes,
        }
        .finish(read)
    }

    fn finish<T>(self, read: impl FnOnce(&Section<'a>) -> T) -> T {
        let value = read(&self);
        let asked = self.asked.borrow();
        let unknown = self
            .table
            .iter()
            .filter(|(key, _)| !asked.contains(&key.as_str()));
        for (key, node) in unknown.take(MAX_PROBLEMS) {
            let meant = did_you_mean(key, asked.iter().copied());
            let hint = match (meant, &node.key_origin) {
                (Some(meant), Origin::Environment { .. }) => {
                    let variable = raw::join(&self.path, meant)
                        .replace('.', "__")
                        .to_uppercase();
                    let more = if self.path.is_empty() { "__..." } else { "" };
                    format!("; did you mean `{meant}` (SKILLGATE_{variable}{more})?")
                }
                (Some(meant), _) => format!("; did you mean `{meant}`?"),
                (None, _) => format!(", expected {}", list_of(asked.iter())),
            };
            self.note(&node.key_origin, key, format!("unknown key{hint}"));
        }
        value
    }

    // === what is there ===

    /// The node of `key`; null does not exist in TOML, so absent is absent.
    fn find(&self, key: &'static str, kind: Kind) -> Option<&'a Node> {
        self.asked.borrow_mut().push(key);
        let pattern: String = raw::join(&self.path, key);
        self.notes
            .known
            .borrow_mut()
            .insert(any_item(&pattern), kind);
        raw::get(self.table, key)
    }

    /// Whether `key` is there.
    pub(super) fn has(&self, key: &str) -> bool {
        raw::get(self.table, key).is_some()
    }

    /// Where the value of `path` (`mode`, or from the root `auth.mode`) is, or else the nearest table that is there.
    pub(super) fn origin(&self, path: &str) -> &Origin {
        raw::origin(self.table, path).unwrap_or(&self.origin)
    }

    /// The first of `paths` that is not a default: where the mistake was made, when several keys do not fit together.
    pub(super) fn written<'k>(&self, paths: &[&'k str]) -> &'k str {
        let written = |path: &&str| !matches!(self.origin(path), Origin::Default { .. });
        let mut paths = paths.iter().copied();
        let first = paths.clone().next().unwrap_or_default();
        paths.find(written).unwrap_or(first)
    }

    /// Notes that something is wrong with `path`, or with the table itself if it is empty.
    pub(super) fn wrong(&self, path: &str, message: impl Into<String>) {
        let full = match (self.path.as_str(), path) {
            ("", path) => path.to_owned(),
            (own, "") => own.to_owned(),
            (own, path) => format!("{own}.{path}"),
        };
        self.push(self.origin(path), full, message.into());
    }

    fn note(&self, origin: &Origin, key: &str, message: String) {
        self.push(origin, raw::join(&self.path, key), message);
    }

    fn push(&self, origin: &Origin, key: String, message: String) {
        // What a table that is no table lacks is a consequence, not a problem of its own.
        if !self.stand_in {
            self.notes.problems.borrow_mut().push(Problem {
                origin: Some(origin.clone()),
                key,
                message,
            });
        }
    }

    fn missing(&self, key: &str, expected: impl Display) {
        self.note(&self.origin, key, format!("missing, expected {expected}"));
    }

    fn mistyped(&self, key: &str, node: &Node, expected: impl Display) {
        self.note(
            &node.origin,
            key,
            format!(
                "{} does not fit here, expected {expected}",
                describe(&node.value)
            ),
        );
    }

    // === the types of values ===

    /// A whole number within `range`.
    pub(super) fn integer(&self, key: &'static str, range: RangeInclusive<u64>) -> u64 {
        let start = *range.start();
        self.optional_integer(key, range.clone())
            .unwrap_or_else(|| {
                if !self.has(key) {
                    self.missing(
                        key,
                        format_args!("an integer from {start} to {}", range.end()),
                    );
                }
                start
            })
    }

    /// The same, where absent means `absent`.
    pub(super) fn integer_or(
        &self,
        key: &'static str,
        range: RangeInclusive<u64>,
        absent: u64,
    ) -> u64 {
        self.optional_integer(key, range).unwrap_or(absent)
    }

    /// The same for counts that are used as sizes in memory: they fit into the machine's word by their range.
    pub(super) fn count(&self, key: &'static str, range: RangeInclusive<u32>) -> usize {
        usize::try_from(self.integer(key, u64::from(*range.start())..=u64::from(*range.end())))
            .unwrap_or(usize::MAX)
    }

    fn optional_integer(&self, key: &'static str, range: RangeInclusive<u64>) -> Option<u64> {
        let node = self.find(key, Kind::Toml)?;
        let (start, end) = (range.start(), range.end());
        let Value::Integer(number) = node.value.as_toml() else {
            self.mistyped(key, node, format_args!("an integer from {start} to {end}"));
            return None;
        };
        let number = u64::try_from(*number).ok().filter(|n| range.contains(n));
        if number.is_none() {
            self.mistyped(key, node, format_args!("{start} to {end}"));
        }
        number
    }

    /// true or false; absent is false.
    pub(super) fn flag(&self, key: &'static str) -> bool {
        match self
            .find(key, Kind::Toml)
            .map(|node| (node, node.value.as_toml()))
        {
            None => false,
            Some((_, Value::Boolean(flag))) => *flag,
            Some((node, _)) => {
                self.mistyped(key, node, "true or false");
                false
            }
        }
    }

    /// Some text that is not empty.
    pub(super) fn text(&self, key: &'static str, expected: &str) -> String {
        self.optional_text(key, expected).unwrap_or_else(|| {
            if !self.has(key) {
                self.missing(key, expected);
            }
            String::new()
        })
    }

    /// The same, where it may be absent.
    pub(super) fn optional_text(&self, key: &'static str, expected: &str) -> Option<String> {
        let node = self.find(key, Kind::Text)?;
        let text = as_text(&node.value).filter(|text| !text.is_empty() && !text.contains('\0'));
        if text.is_none() {
            self.mistyped(key, node, expected);
        }
        text.map(str::to_owned)
    }

    /// The text as `check` reads it. `expected` says what it takes.
    pub(super) fn parsed<T>(
        &self,
        key: &'static str,
        expected: &str,
        check: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        let text = self.optional_text(key, expected)?;
        let value = check(&text);
        if value.is_none() {
            self.wrong(
                key,
                format!(
                    "{:?} does not fit here, expected {expected}",
                    raw::cut(&text)
                ),
            );
        }
        value
    }

    /// A path.
    pub(super) fn path(&self, key: &'static str) -> PathBuf {
        PathBuf::from(self.text(key, "a path"))
    }

    /// A path that may be absent.
    pub(super) fn optional_path(&self, key: &'static str) -> Option<PathBuf> {
        self.optional_text(key, "a path").map(PathBuf::from)
    }

    /// An address and a port.
    pub(super) fn address(&self, key: &'static str) -> SocketAddr {
        let expected = "an address and a port, like \"127.0.0.1:8080\" or \"[::1]:8080\"";
        if !self.has(key) {
            self.missing(key, expected);
        }
        let nowhere = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
        self.parsed(key, expected, |text| {
            // The one name that needs no resolver.
            let numeric = text
                .strip_prefix("localhost:")
                .map(|port| format!("127.0.0.1:{port}"));
            numeric.as_deref().unwrap_or(text).parse().ok()
        })
        .unwrap_or(nowhere)
    }

    /// One of a few words.
    pub(super) fn choice<T: Copy>(&self, key: &'static str, words: &[(&'static str, T)]) -> T {
        let expected = list_of(words.iter().map(|(word, _)| format!("{word:?}")));
        let text = self.text(key, &expected);
        self.word(key, &text, words).unwrap_or(words[0].1)
    }

    fn word<T: Copy>(&self, key: &str, text: &str, words: &[(&'static str, T)]) -> Option<T> {
        let found = words
            .iter()
            .find(|(word, _)| *word == text)
            .map(|(_, value)| *value);
        if found.is_none() && !text.is_empty() {
            let hint = match did_you_mean(text, words.iter().map(|(word, _)| *word)) {
                Some(meant) => format!("; did you mean {meant:?}?"),
                None => String::new(),
            };
            let expected = list_of(words.iter().map(|(word, _)| format!("{word:?}")));
            self.wrong(
                key,
                format!(
                    "{:?} does not fit here, expected {expected}{hint}",
                    raw::cut(text)
                ),
            );
        }
        found
    }

    /// Some of a few words, each at most once.
    pub(super) fn choices<T: Copy + PartialEq>(
        &self,
        key: &'static str,
        words: &[(&'static str, T)],
    ) -> Vec<T> {
        self.choices_or(key, words, None)
    }

    /// The same, where absent means `absent`.
    pub(super) fn choices_or<T: Copy + PartialEq>(
        &self,
        key: &'static str,
        words: &[(&'static str, T)],
        absent: Option<&[&str]>,
    ) -> Vec<T> {
        let mut chosen = Vec::new();
        for text in self.texts(key, absent) {
            if let Some(value) = self.word(key, &text, words) {
                if chosen.contains(&value) {
                    self.wrong(key, format!("{text:?} is there twice"));
                }
                chosen.push(value);
            }
        }
        chosen
    }

    /// A list of texts. Absent is `absent`, or a problem where there is none.
    pub(super) fn texts(&self, key: &'static str, absent: Option<&[&str]>) -> Vec<String> {
        let Some(node) = self.find(key, Kind::Toml) else {
            if absent.is_none() {
                self.missing(key, "a list of strings");
            }
            return absent
                .unwrap_or_default()
                .iter()
                .map(|&text| text.to_owned())
                .collect();
        };
        let Value::List(items) = node.value.as_toml() else {
            let hint = match node.value.as_toml() {
                Value::String(text) => format!("a list of strings: [{:?}]", raw::cut(text)),
                _ => "a list of strings".to_owned(),
            };
            self.mistyped(key, node, hint);
            return Vec::new();
        };
        let mut texts = Vec::new();
        for item in items {
            match as_text(&item.value).filter(|text| !text.is_empty() && !text.contains('\0')) {
                Some(text) => texts.push(text.to_owned()),
                None => self.mistyped(key, item, "a string"),
            }
        }
        texts
    }

    /// The same, where one text stands for a list of one.
    pub(super) fn text_or_texts(&self, key: &'static str, absent: &[&str]) -> Vec<String> {
        match raw::get(self.table, key).map(|node| node.value.as_toml()) {
            Some(Value::String(_)) => self
                .optional_text(key, "a string or a list of strings")
                .into_iter()
                .collect(),
            _ => self.texts(key, Some(absent)),
        }
    }

    /// A table that `read` reads. Absent is an empty one, whose missing keys are then reported.
    pub(super) fn section<T>(&self, key: &'static str, read: impl FnOnce(&Section<'a>) -> T) -> T {
        match self.find(key, Kind::Toml) {
            Some(node) => self
                .table_of(key, raw::join(&self.path, key), node)
                .finish(read),
            None => {
                let path = raw::join(&self.path, key);
                let origin = self.origin.clone();
                Section {
                    path,
                    origin,
                    table: NOTHING,
                    stand_in: self.stand_in,
                    asked: RefCell::default(),
                    notes: self.notes,
                }
                .finish(read)
            }
        }
    }

    /// A table that may be absent.
    pub(super) fn optional_section<T>(
        &self,
        key: &'static str,
        read: impl FnOnce(&Section<'a>) -> T,
    ) -> Option<T> {
        let node = self.find(key, Kind::Toml)?;
        Some(
            self.table_of(key, raw::join(&self.path, key), node)
                .finish(read),
        )
    }

    /// A list of tables, `[[key]]`. Absent is empty.
    pub(super) fn sections<T>(
        &self,
        key: &'static str,
        mut read: impl FnMut(&Section<'a>) -> T,
    ) -> Vec<T> {
        let Some(node) = self.find(key, Kind::Toml) else {
            return Vec::new();
        };
        let Value::List(items) = node.value.as_toml() else {
            self.mistyped(
                key,
                node,
                format_args!("a list of tables: [[{}]]", raw::join(&self.path, key)),
            );
            return Vec::new();
        };
        let path = raw::join(&self.path, key);
        items
            .iter()
            .enumerate()
            .map(|(i, item)| {
                self.table_of(key, format!("{path}[{i}]"), item)
                    .finish(&mut read)
            })
            .collect()
    }

    fn table_of(&self, key: &str, path: String, node: &'a Node) -> Section<'a> {
        let (table, stand_in) = match node.value.as_toml() {
            Value::Table(table) => (table, self.stand_in),
            _ => {
                self.mistyped(key, node, "a table");
                (NOTHING, true)
            }
        };
        Section {
            path,
            origin: node.key_origin.clone(),
            table,
            stand_in,
            asked: RefCell::default(),
            notes: self.notes,
        }
    }

    /// A table whose keys are somebody else's, as JSON. Absent is empty.
    pub(super) fn open(&self, key: &'static str) -> serde_json::Value {
        let empty = || serde_json::Value::Object(serde_json::Map::new());
        let Some(node) = self.find(key, Kind::Open) else {
            return empty();
        };
        if !matches!(node.value, Value::Table(_)) {
            // Of what stands there the kind alone: it was meant for a plugin, and may be a database's name with its password.
            let kind = node.value.kind();
            let message = format!("{kind} does not fit here, expected a table");
            self.note(&node.origin, key, message);
            return empty();
        }
        self.json(&raw::join(&self.path, key), node)
    }

    fn json(&self, path: &str, node: &Node) -> serde_json::Value {
        let refuse = |message: &str| {
            let problem = Problem {
                origin: Some(node.origin.clone()),
                key: path.to_owned(),
                message: message.to_owned(),
            };
            self.notes.problems.borrow_mut().push(problem);
            serde_json::Value::Null
        };
        match node.value.as_toml() {
            Value::String(text) => text.clone().into(),
            Value::Integer(number) => (*number).into(),
            Value::Boolean(flag) => (*flag).into(),
            Value::Float(number) => match serde_json::Number::from_f64(*number) {
                Some(number) => number.into(),
                None => refuse("not a finite number: plugins take JSON, which knows none"),
            },
            Value::Datetime(_) => {
                refuse("a date does not fit here: plugins take JSON, write it as a string")
            }
            Value::List(items) => items
                .iter()
                .enumerate()
                .map(|(i, item)| self.json(&format!("{path}[{i}]"), item))
                .collect(),
            Value::Table(table) => {
                let entry = |(key, node): &(String, Node)| {
                    (key.clone(), self.json(&raw::join(path, key), node))
                };
                serde_json::Value::Object(table.iter().map(entry).collect())
            }
            // `as_toml` has unwrapped it; a text in a text does not exist.
            Value::Text { text, .. } => text.clone().into(),
        }
    }
}

/// The text of a string, or a variable's value as it is.
pub(super) fn as_text(value: &Value) -> Option<&str> {
    match value {
        Value::String(text) => Some(text),
        Value::Text { toml, text } => match &**toml {
            Value::String(quoted) => Some(quoted),
            _ => Some(text),
        },
        _ => None,
    }
}

/// `auth.issuers[3].claims` as `auth.issuers[].claims`.
pub(super) fn any_item(path: &str) -> String {
    let mut pattern = String::new();
    for part in path.split_inclusive('[') {
        pattern.push_str(part.trim_start_matches(|c: char| c.is_ascii_digit()));
    }
    pattern
}

/// A value as a message shows it.
fn describe(value: &Value) -> String {
    match value.as_toml() {
        Value::String(text) => format!("{:?}", raw::cut(text)),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Boolean(flag) => flag.to_string(),
        other => other.kind().to_owned(),
    }
}

/// `a`, `b` or `c`.
fn list_of(words: impl IntoIterator<Item = impl Display>) -> String {
    let mut words: Vec<String> = words.into_iter().map(|word| word.to_string()).collect();
    match words.pop() {
        Some(last) if !words.is_empty() => format!("{} or {last}", words.join(", ")),
        last => last.unwrap_or_default(),
    }
}

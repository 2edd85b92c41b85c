//! From values to a manifest: which keys, of which type, with which rules.

use serde_json::{Map, Value};

use super::toml_text::{Places, step, too_long_key};
use super::values::{self, Wrong};
use super::{
    KEY_BYTES_MAX, Kind, Manifest, ManifestError, NETWORK_PATTERNS_MAX, Permissions, Runtime,
    SECRETS_MAX, TAGS_MAX,
};
use crate::SKILL_TOML;
use crate::name::{Namespace, SkillName};
use crate::network::NetworkPattern;
use crate::problem::{Code, PROBLEMS_MAX, Problem, Severity};
use crate::python::{FunctionName, KEYWORDS};
use crate::secret::SecretName;
use crate::text::{is_hidden, quoted};
use crate::version::Version;

/// What problems call a manifest that came as JSON.
pub(super) const JSON_FILE: &str = "manifest";

/// Where the values came from: gives problems their place.
pub(super) enum Source {
    Toml { places: Places },
    Json,
}

const TOP_KEYS: &[&str] = &[
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
const RUNTIME_KEYS: &[&str] = &["language", "entrypoint", "export"];
const PERMISSION_KEYS: &[&str] = &["network", "secrets"];

pub(super) fn read(
    mut written: Map<String, Value>,
    source: Source,
) -> Result<Manifest, ManifestError> {
    let mut reader = Reader {
        source,
        problems: Vec::new(),
    };
    reader.tidy_members(&mut written, "");

    let name = reader.required(&written, "", "name", SkillName::parse);
    // Before what there may be so many of that nothing else has room.
    if let Some(name) = &name {
        reader.importable(name);
    }
    let version = reader.required(&written, "", "version", Version::parse);
    let description = reader.required(&written, "", "description", values::description);
    let kind = reader.required(&written, "", "kind", values::kind);
    let namespace = reader.optional(&written, "", "namespace", Namespace::parse);
    let tags = reader.list(&written, "", "tags", TAGS_MAX, values::tag);
    let runtime = reader
        .table(&written, "runtime")
        .map(|table| reader.runtime(table));
    let permissions = reader
        .table(&written, "permissions")
        .map(|table| reader.permissions(table))
        .unwrap_or_default();
    reader.inputs(&written);
    match (kind, &runtime) {
        (Some(Kind::Action), None) if !written.contains_key("runtime") => reader.error(
            "/runtime",
            Code::Missing,
            "an action needs [runtime]",
            Some(
                "add [runtime] with language, entrypoint and export, or set kind = \"instruction\"",
            ),
        ),
        (Some(Kind::Instruction), Some(_)) => reader.error(
            "/runtime",
            Code::Invalid,
            "an instruction has no [runtime]: it cannot be executed",
            Some("remove [runtime], or set kind = \"action\""),
        ),
        _ => {}
    }
    reader.unknown_keys(&written, "", TOP_KEYS);

    let has_error = reader.problems.iter().any(Problem::is_error);
    match (name, version, description, kind) {
        (Some(name), Some(version), Some(description), Some(kind)) if !has_error => Ok(Manifest {
            namespace: namespace.unwrap_or_else(|| name.default_namespace()),
            name,
            version,
            description,
            kind,
            tags,
            runtime: runtime.flatten(),
            permissions,
            written,
            warnings: reader.problems,
        }),
        _ => Err(ManifestError {
            problems: reader.problems,
        }),
    }
}

struct Reader {
    source: Source,
    problems: Vec<Problem>,
}

impl Reader {
    fn report(
        &mut self,
        severity: Severity,
        pointer: &str,
        code: Code,
        message: impl Into<String>,
        help: Option<&str>,
    ) {
        // Errors push warnings out: what refuses the skill must not be hidden by what does not.
        if self.problems.len() >= PROBLEMS_MAX {
            match self.problems.iter().rposition(|p| !p.is_error()) {
                Some(warning) if severity == Severity::Error => drop(self.problems.remove(warning)),
                _ => return,
            }
        }
        let file = match self.source {
            Source::Toml { .. } => SKILL_TOML,
            Source::Json => JSON_FILE,
        };
        let mut problem = Problem {
            severity,
            ..Problem::error(file, code, message)
        }
        .at(pointer);
        problem.help = help.map(str::to_owned);
        problem = match self.place(pointer) {
            Some(place) => problem.place(place),
            None => problem,
        };
        self.problems.push(problem);
    }

    fn error(&mut self, pointer: &str, code: Code, message: impl Into<String>, help: Option<&str>) {
        self.report(Severity::Error, pointer, code, message, help);
    }

    fn warn(&mut self, pointer: &str, code: Code, message: impl Into<String>, help: Option<&str>) {
        self.report(Severity::Warning, pointer, code, message, help);
    }

    /// Where a value stands, or the nearest table around it.
    fn place(&self, pointer: &str) -> Option<(u32, u32)> {
        let Source::Toml { places } = &self.source else {
            return None;
        };
        std::iter::successors(Some(pointer), |p| {
            p.rsplit_once('/').map(|(above, _)| above)
        })
        .find_map(|p| places.get(p).copied())
    }

    /// Takes null members out (absent) and refuses what TOML or a reader could not take.
    fn tidy_members(&mut self, members: &mut Map<String, Value>, pointer: &str) {
        members.retain(|_, value| !value.is_null());
        for (key, value) in members.iter_mut() {
            if key.len() > KEY_BYTES_MAX {
                let problem = too_long_key(JSON_FILE, pointer, key.len());
                self.error(pointer, problem.code, problem.message, None);
                continue;
            }
            if key.chars().any(is_hidden) {
                let message = format!(
                    "the key {} has characters that a reader cannot see",
                    quoted(key)
                );
                self.error(pointer, Code::Invalid, message, None);
                continue;
            }
            self.tidy(value, &step(pointer, key));
        }
    }

    fn tidy(&mut self, value: &mut Value, pointer: &str) {
        match value {
            Value::Object(members) => self.tidy_members(members, pointer),
            Value::Array(items) => {
                for (index, item) in items.iter_mut().enumerate() {
                    self.tidy(item, &step(pointer, &index.to_string()));
                }
            }
            Value::Null => self.error(
                pointer,
                Code::WrongType,
                "null in a list cannot be written in skill.toml",
                None,
            ),
            Value::Number(n) if n.is_u64() && !n.is_i64() => {
                self.error(
                    pointer,
                    Code::Invalid,
                    "the number does not fit in 64 bits with a sign",
                    None,
                );
            }
            _ => {}
        }
    }

    fn text<'v>(&mut self, value: &'v Value, pointer: &str) -> Option<&'v str> {
        if value.is_string() {
            return value.as_str();
        }
        let message = format!(
            "{} must be a string, not {}",
            key_of(pointer),
            type_of(value)
        );
        self.error(pointer, Code::WrongType, message, None);
        None
    }

    fn optional<T, E: Into<Wrong>>(
        &mut self,
        members: &Map<String, Value>,
        above: &str,
        key: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let pointer = step(above, key);
        let text = self.text(members.get(key)?, &pointer)?;
        match parse(text) {
            Ok(value) => Some(value),
            Err(wrong) => {
                let Wrong {
                    code,
                    message,
                    help,
                } = wrong.into();
                self.error(&pointer, code, format!("{key} {message}"), help);
                None
            }
        }
    }

    fn required<T, E: Into<Wrong>>(
        &mut self,
        members: &Map<String, Value>,
        above: &str,
        key: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        if !members.contains_key(key) {
            let message = match above.strip_prefix('/') {
                Some(table) => format!("{key} is missing in [{table}]"),
                None => format!("{key} is missing"),
            };
            self.error(
                &step(above, key),
                Code::Missing,
                message,
                Some(example(key)),
            );
            return None;
        }
        self.optional(members, above, key, parse)
    }

    fn list<T, E: Into<Wrong>>(
        &mut self,
        members: &Map<String, Value>,
        above: &str,
        key: &str,
        max: usize,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Vec<T> {
        let pointer = step(above, key);
        let items = match members.get(key) {
            None => return Vec::new(),
            Some(Value::Array(items)) => items,
            Some(other) => {
                let message = format!("{key} must be a list of strings, not {}", type_of(other));
                self.error(&pointer, Code::WrongType, message, Some(example(key)));
                return Vec::new();
            }
        };
        if items.len() > max {
            let message = format!(
                "{key} has {} entries, at most {max} are allowed",
                items.len()
            );
            self.error(&pointer, Code::TooLarge, message, None);
            return Vec::new();
        }
        let mut list = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let pointer = step(&pointer, &index.to_string());
            let Some(text) = self.text(item, &pointer) else {
                continue;
            };
            match parse(text) {
                Ok(value) => list.push(value),
                Err(wrong) => {
                    let Wrong {
                        code,
                        message,
                        help,
                    } = wrong.into();
                    self.error(&pointer, code, message, help);
                }
            }
        }
        list
    }

    fn table<'v>(
        &mut self,
        members: &'v Map<String, Value>,
        key: &str,
    ) -> Option<&'v Map<String, Value>> {
        match members.get(key)? {
            Value::Object(table) => Some(table),
            other => {
                let message = format!("{key} must be a table, not {}", type_of(other));
                self.error(&step("", key), Code::WrongType, message, None);
                None
            }
        }
    }

    fn runtime(&mut self, table: &Map<String, Value>) -> Option<Runtime> {
        let language = self.required(table, "/runtime", "language", values::language);
        let entrypoint = self.required(table, "/runtime", "entrypoint", values::entrypoint);
        let export = self.required(table, "/runtime", "export", FunctionName::parse);
        self.unknown_keys(table, "/runtime", RUNTIME_KEYS);
        language?;
        Some(Runtime {
            entrypoint: entrypoint?,
            export: export?,
        })
    }

    fn permissions(&mut self, table: &Map<String, Value>) -> Permissions {
        let network = self.list(
            table,
            "/permissions",
            "network",
            NETWORK_PATTERNS_MAX,
            NetworkPattern::parse_declared,
        );
        let secrets = self.list(
            table,
            "/permissions",
            "secrets",
            SECRETS_MAX,
            SecretName::parse,
        );
        self.unknown_keys(table, "/permissions", PERMISSION_KEYS);
        Permissions { network, secrets }
    }

    /// Informal by the specification: a wrong shape is worth a word, not a refusal.
    fn inputs(&mut self, members: &Map<String, Value>) {
        let Some(inputs) = self.table(members, "inputs") else {
            return;
        };
        for (key, value) in inputs {
            if !value.is_object() {
                let message = format!("input {} is {}, not a table", quoted(key), type_of(value));
                let help = "describe an input as { type = \"string\", description = \"...\" }";
                self.warn(&step("/inputs", key), Code::WrongType, message, Some(help));
            }
        }
    }

    fn unknown_keys(&mut self, table: &Map<String, Value>, above: &str, known: &[&str]) {
        for key in table.keys().filter(|key| !known.contains(&key.as_str())) {
            let near = known.iter().find(|known| is_near(key, known));
            let elsewhere = !above.is_empty() && TOP_KEYS.contains(&key.as_str());
            let help = match near {
                Some(near) => format!("did you mean {near}?"),
                None if elsewhere => format!("move {key} above the first [table]"),
                None if above.is_empty() => match meant_for(key) {
                    Some(table) => format!("write it in {table}"),
                    // Other keys at the top are an author's own business.
                    None => continue,
                },
                None => format!("known here: {}", known.join(", ")),
            };
            let message = format!("{} is not known here and has no effect", quoted(key));
            self.warn(&step(above, key), Code::UnknownKey, message, Some(&help));
        }
    }

    fn importable(&mut self, name: &SkillName) {
        let import = name.import_name();
        let odd = import
            .split('.')
            .find(|s| s.starts_with(|c: char| c.is_ascii_digit()) || KEYWORDS.contains(s));
        if let Some(segment) = odd {
            let message = format!(
                "{} cannot be written in a Python import statement",
                quoted(segment)
            );
            let help = "code that mounts the skill needs importlib.import_module to reach it";
            self.warn("/name", Code::NameNotImportable, message, Some(help));
        }
    }
}

fn example(key: &str) -> &'static str {
    match key {
        "name" => "add name = \"namespace.domain.action\"",
        "version" => "add version = \"0.1.0\"",
        "description" => "add description = \"one line\"",
        "kind" => "add kind = \"action\" or kind = \"instruction\"",
        "tags" => "write tags = [\"crm\", \"leads\"]",
        "language" => "add language = \"python\"",
        "entrypoint" => "add entrypoint = \"code/main.py\"",
        "export" => "add export = \"main\"",
        "network" => "write network = [\"https://api.example.com\"]",
        _ => "write secrets = [\"API_KEY\"]",
    }
}

/// The table that a key at the top was meant for: where it asks for a permission, or has a table's name before a dot, as one
/// writes it in TOML and not in JSON.
fn meant_for(key: &str) -> Option<&'static str> {
    let table = key.split_once('.').and_then(|(table, _)| {
        let mut tables = ["permissions", "runtime"].into_iter();
        tables.find(|known| is_near(table, known))
    });
    let is_permission = PERMISSION_KEYS.iter().any(|known| is_near(key, known));
    table.or(is_permission.then_some("permissions"))
}

fn key_of(pointer: &str) -> &str {
    pointer.trim_start_matches('/')
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "a table",
    }
}

/// Whether a key is a likely slip for a known one: other case, or one or two letters off.
fn is_near(key: &str, known: &str) -> bool {
    let key = key.to_lowercase();
    if key.len() > 32 {
        return false;
    }
    // Levenshtein, one row at a time.
    let known: Vec<char> = known.chars().collect();
    let mut row: Vec<usize> = (0..=known.len()).collect();
    for (i, a) in key.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in known.iter().enumerate() {
            let change = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = change.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[known.len()] <= if known.len() > 4 { 2 } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearness() {
        for (key, known, want) in [
            ("permision", "permissions", true),
            ("Version", "version", true),
            ("secret", "secrets", true),
            ("tag", "tags", true),
            ("author", "export", false),
            ("license", "language", false),
            ("home", "name", false),
            ("nam", "name", true),
            ("xxkind", "kind", false),
            ("kiiind", "kind", false),
            ("", "tags", false),
        ] {
            assert_eq!(is_near(key, known), want, "{key} {known}");
        }
    }
}

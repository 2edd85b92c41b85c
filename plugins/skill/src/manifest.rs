//! The manifest, `skill.toml`.

mod read;
mod toml_text;
mod values;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::name::{Namespace, SkillName};
use crate::network::NetworkPattern;
use crate::path::SkillPath;
use crate::problem::{Code, Problem};
use crate::python::FunctionName;
use crate::secret::SecretName;
use crate::version::Version;
use crate::{SKILL_TOML, json};

/// Largest manifest, in bytes of TOML or JSON.
pub const MANIFEST_BYTES_MAX: usize = 64 * 1024;
/// Deepest nesting of a manifest: the manifest itself is 1, `[inputs]` 2, an input 3.
pub const MANIFEST_DEPTH_MAX: usize = 16;
/// Longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 128;
/// Longest description, in bytes.
pub const DESCRIPTION_BYTES_MAX: usize = 1024;
/// Most tags.
pub const TAGS_MAX: usize = 64;
/// Longest tag, in bytes.
pub const TAG_BYTES_MAX: usize = 64;
/// Most network patterns.
pub const NETWORK_PATTERNS_MAX: usize = 64;
/// Most secrets.
pub const SECRETS_MAX: usize = 64;

/// What a skill is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Has a runtime, can be executed.
    Action,
    /// Documentation only, cannot be executed.
    Instruction,
}

impl Kind {
    /// `action` or `instruction`.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Action => "action",
            Kind::Instruction => "instruction",
        }
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How an action is executed. The language is Python; there is no other yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runtime {
    /// The module, a path that ends in `.py`.
    pub entrypoint: SkillPath,
    /// The function of that module which is called.
    pub export: FunctionName,
}

/// What a skill asks for. It is granted none of it by asking.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Permissions {
    /// Where it wants to connect to; empty: nowhere.
    pub network: Vec<NetworkPattern>,
    /// Which secrets it wants; empty: none.
    pub secrets: Vec<SecretName>,
}

/// A valid manifest: the parts that are understood, typed, and the whole as written.
///
/// Whoever holds one may rely on this: an action has a runtime and an instruction has none; the
/// description is one line without characters that deceive; the whole is JSON, is TOML
/// ([`Manifest::to_toml`]), is at most [`MANIFEST_BYTES_MAX`] of either and has no nulls.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    name: SkillName,
    version: Version,
    description: String,
    kind: Kind,
    namespace: Namespace,
    tags: Vec<String>,
    runtime: Option<Runtime>,
    permissions: Permissions,
    /// As written, unknown keys kept.
    written: Map<String, Value>,
    warnings: Vec<Problem>,
}

/// Why a text is not a manifest: at least one problem, each with its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestError {
    problems: Vec<Problem>,
}

impl ManifestError {
    fn one(problem: Problem) -> Self {
        ManifestError {
            problems: vec![problem],
        }
    }

    /// All problems, warnings included.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// All problems, warnings included.
    pub fn into_problems(self) -> Vec<Problem> {
        self.problems
    }

    /// The first error: what to tell a caller who can be told one thing.
    pub fn first(&self) -> &Problem {
        // Every way to make one puts an error in; the fallback keeps the type honest without a panic.
        self.problems
            .iter()
            .find(|p| p.is_error())
            .unwrap_or(&self.problems[0])
    }
}

impl std::fmt::Display for ManifestError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.first().fmt(f)?;
        match self.problems.iter().filter(|p| p.is_error()).count() {
            0 | 1 => Ok(()),
            n => write!(f, " (and {} more)", n - 1),
        }
    }
}

impl std::error::Error for ManifestError {}

impl Manifest {
    /// Reads `skill.toml`. Problems carry line and column.
    pub fn from_toml(text: &str) -> Result<Manifest, ManifestError> {
        check_bytes(SKILL_TOML, "", text.len())?;
        let (written, places) = toml_text::parse(text)?;
        read::read(written, read::Source::Toml { places })?.fits(SKILL_TOML)
    }

    /// Reads a manifest that came as JSON, the form that `create_skill` takes. Null members count
    /// as absent. Problems carry a JSON pointer into the manifest.
    pub fn from_json(text: &str) -> Result<Manifest, ManifestError> {
        check_bytes(read::JSON_FILE, "", text.len())?;
        let value = json::parse(text, MANIFEST_DEPTH_MAX).map_err(|e| {
            ManifestError::one(
                Problem::error(read::JSON_FILE, Code::Syntax, e.message).place((e.line, e.column)),
            )
        })?;
        let Value::Object(written) = value else {
            return Err(ManifestError::one(
                Problem::error(
                    read::JSON_FILE,
                    Code::WrongType,
                    "the manifest is not an object",
                )
                .help("send skill.toml as a JSON object"),
            ));
        };
        read::read(written, read::Source::Json)?.fits(read::JSON_FILE)
    }

    /// Either form can be longer than what was read: escapes differ, and the namespace is filled in. Stores keep the one and
    /// write the other; both must be readable again, and what is read from JSON has the namespace as if it had been written.
    fn fits(self, file: &str) -> Result<Manifest, ManifestError> {
        let filled_in = self.filled_in();
        check_bytes(file, " as TOML", toml_text::write(&filled_in).len())?;
        let json = Value::Object(filled_in).to_string();
        check_bytes(file, " as JSON", json.len())?;
        Ok(self)
    }

    /// The same manifest as the text of `skill.toml`: known keys first, the rest by name. Equal
    /// manifests give equal text, whatever the order that their keys came in.
    pub fn to_toml(&self) -> String {
        toml_text::write(&self.written)
    }

    /// The manifest as JSON: every key as written, unknown ones too, and the namespace filled in
    /// when it was not written. This is what `describe_skill` shows and what stores keep.
    pub fn to_json(&self) -> Value {
        Value::Object(self.filled_in())
    }

    fn filled_in(&self) -> Map<String, Value> {
        let mut all = self.written.clone();
        all.entry("namespace")
            .or_insert_with(|| Value::String(self.namespace.to_string()));
        all
    }

    /// Unique name.
    pub fn name(&self) -> &SkillName {
        &self.name
    }
    /// Version.
    pub fn version(&self) -> &Version {
        &self.version
    }
    /// One line, at most [`DESCRIPTION_BYTES_MAX`] bytes.
    pub fn description(&self) -> &str {
        &self.description
    }
    /// Action or instruction.
    pub fn kind(&self) -> Kind {
        self.kind
    }
    /// As written, or the first segment of the name.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }
    /// As written, in order.
    pub fn tags(&self) -> &[String] {
        &self.tags
    }
    /// Some for an action, none for an instruction.
    pub fn runtime(&self) -> Option<&Runtime> {
        self.runtime.as_ref()
    }
    /// What it asks for.
    pub fn permissions(&self) -> &Permissions {
        &self.permissions
    }
    /// The informal `[inputs]`, as written; nothing here is enforced.
    pub fn inputs(&self) -> Option<&Map<String, Value>> {
        self.written.get("inputs").and_then(Value::as_object)
    }
    /// What the author should look at. A manifest with warnings is valid.
    pub fn warnings(&self) -> &[Problem] {
        &self.warnings
    }
}

/// Where one value of the text of a `skill.toml` stands: for what can only be told later.
pub(crate) fn place_in_toml(text: &str, pointer: &str) -> Option<(u32, u32)> {
    toml_text::place_of(text, pointer)
}

fn check_bytes(file: &str, form: &str, bytes: usize) -> Result<(), ManifestError> {
    if bytes <= MANIFEST_BYTES_MAX {
        return Ok(());
    }
    Err(ManifestError::one(
        Problem::error(
            file,
            Code::TooLarge,
            format!(
                "the manifest has {bytes} bytes{form}, at most {MANIFEST_BYTES_MAX} are allowed"
            ),
        )
        .help("move long texts to SKILL.md or resources/"),
    ))
}

#[cfg(test)]
mod tests;

//! What is wrong with a skill, where, and what to do about it.

use std::collections::{BTreeSet, HashMap};
use std::fmt;

use serde::Serialize;

use crate::text::shown;

/// At most this many problems are reported at once; the rest would not be read.
pub const PROBLEMS_MAX: usize = 50;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The skill is accepted; the author should look.
    Warning,
    /// The skill is refused.
    Error,
}

/// The kind of a problem. The text form (`as_str`) is stable: tools may match on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Code {
    /// Not well-formed TOML, JSON or YAML.
    Syntax,
    /// The same key, tag, file or name twice.
    Duplicate,
    /// More bytes, entries or files than allowed.
    TooLarge,
    /// Nested more deeply than allowed.
    TooDeep,
    /// A required key is not there.
    Missing,
    /// A key holds another type than it must.
    WrongType,
    /// A value outside its grammar.
    Invalid,
    /// `runtime.language` is not one that this protocol version knows.
    LanguageUnsupported,
    /// A path that would leave the skill.
    PathEscape,
    /// A path outside the grammar of [`crate::SkillPath`].
    PathInvalid,
    /// Two files, or a file and a directory, that cannot be there together.
    PathConflict,
    /// A file that no skill may bring.
    FileRefused,
    /// A file that the skill needs is not among its files.
    FileMissing,
    /// Text was expected and the file is not UTF-8.
    NotUtf8,
    /// SKILL.md's front matter is not a closed block holding a mapping.
    FrontMatter,
    /// Warning: a key that this version does not know, close to one that it knows.
    UnknownKey,
    /// Warning: no definition of `runtime.export` was found in the entrypoint.
    ExportNotFound,
    /// Warning: a file of the skill's code is no Python, as its brackets and strings show.
    PythonSyntax,
    /// Warning: characters that a reader cannot see.
    HiddenCharacters,
    /// Warning: the name works, but not in a Python `import` statement.
    NameNotImportable,
    /// Warning: compiled code that may differ from the source beside it.
    CompiledCode,
}

impl Code {
    /// The stable text form, `snake_case`.
    pub fn as_str(self) -> &'static str {
        match self {
            Code::Syntax => "syntax",
            Code::Duplicate => "duplicate",
            Code::TooLarge => "too_large",
            Code::TooDeep => "too_deep",
            Code::Missing => "missing",
            Code::WrongType => "wrong_type",
            Code::Invalid => "invalid",
            Code::LanguageUnsupported => "language_unsupported",
            Code::PathEscape => "path_escape",
            Code::PathInvalid => "path_invalid",
            Code::PathConflict => "path_conflict",
            Code::FileRefused => "file_refused",
            Code::FileMissing => "file_missing",
            Code::NotUtf8 => "not_utf8",
            Code::FrontMatter => "front_matter",
            Code::UnknownKey => "unknown_key",
            Code::ExportNotFound => "export_not_found",
            Code::PythonSyntax => "python_syntax",
            Code::HiddenCharacters => "hidden_characters",
            Code::NameNotImportable => "name_not_importable",
            Code::CompiledCode => "compiled_code",
        }
    }
}

/// One thing wrong with a skill.
///
/// `Display` is `file:line:column: error: message` (parts that are not known are left out);
/// `{:#}` adds the help on a second line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The file inside the skill (`skill.toml`), or `manifest` for a manifest that came as JSON.
    pub file: String,
    /// From 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// From 1, in characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<u32>,
    /// JSON pointer to the value inside `file` (`/runtime/entrypoint`); empty: the whole.
    pub pointer: String,
    /// How bad it is.
    pub severity: Severity,
    /// What kind it is.
    pub code: Code,
    /// One line: what was wrong.
    pub message: String,
    /// One line: what to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub help: Option<String>,
}

impl Problem {
    /// An error without a place.
    pub fn error(file: impl Into<String>, code: Code, message: impl Into<String>) -> Self {
        Problem {
            file: file.into(),
            line: None,
            column: None,
            pointer: String::new(),
            severity: Severity::Error,
            code,
            message: message.into(),
            help: None,
        }
    }

    /// A warning without a place.
    pub fn warning(file: impl Into<String>, code: Code, message: impl Into<String>) -> Self {
        Problem {
            severity: Severity::Warning,
            ..Problem::error(file, code, message)
        }
    }

    /// The same with what to do.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// The same at a JSON pointer.
    #[must_use]
    pub fn at(mut self, pointer: impl Into<String>) -> Self {
        self.pointer = pointer.into();
        self
    }

    /// The same at a line and column.
    #[must_use]
    pub fn place(mut self, place: (u32, u32)) -> Self {
        (self.line, self.column) = (Some(place.0), Some(place.1));
        self
    }

    /// Whether this refuses the skill.
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&shown(&self.file))?;
        match (self.line, self.column) {
            (Some(line), Some(column)) => write!(f, ":{line}:{column}")?,
            (Some(line), None) => write!(f, ":{line}")?,
            // A manifest that came as JSON has no lines worth naming; the pointer says it.
            _ if !self.pointer.is_empty() => write!(f, ":{}", shown(&self.pointer))?,
            _ => {}
        }
        let severity = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        write!(f, ": {severity}: {}", self.message)?;
        match &self.help {
            Some(help) if f.alternate() => write!(f, "\n  help: {help}"),
            _ => Ok(()),
        }
    }
}

/// So many of these problems, and those that are left out, each in their order. Errors come before warnings, and of either the
/// first of each kind before the second of any: many of one kind hide none of another.
#[must_use]
pub fn some_of_each(problems: Vec<Problem>, max: usize) -> (Vec<Problem>, Vec<Problem>) {
    let mut of_its_kind = HashMap::new();
    let turn = |(at, problem): (usize, &Problem)| {
        let before: &mut usize = of_its_kind.entry(problem.code).or_default();
        *before += 1;
        (!problem.is_error(), *before, at)
    };
    let mut turns: Vec<_> = problems.iter().enumerate().map(turn).collect();
    turns.sort_unstable();
    let kept: BTreeSet<usize> = turns.into_iter().take(max).map(|(_, _, at)| at).collect();
    let all = problems.into_iter().enumerate();
    let (kept, left): (Vec<_>, Vec<_>) = all.partition(|(at, _)| kept.contains(at));
    let problems = |numbered: Vec<(usize, Problem)>| numbered.into_iter().map(|(_, it)| it);
    (problems(kept).collect(), problems(left).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_of_one_kind_hide_none_of_another() {
        use Code::{CompiledCode, Invalid, Missing, PythonSyntax, UnknownKey};
        let look = |codes: &[Code], max| {
            let problem = |(at, code): (usize, &Code)| match code {
                Invalid | Missing => Problem::error(at.to_string(), *code, ""),
                _ => Problem::warning(at.to_string(), *code, ""),
            };
            let all = codes.iter().enumerate().map(problem).collect();
            let (kept, left) = some_of_each(all, max);
            let files = |of: Vec<Problem>| of.into_iter().map(|p| p.file).collect::<Vec<_>>();
            (files(kept).join(" "), files(left).join(" "))
        };
        let many = [
            UnknownKey,
            PythonSyntax,
            PythonSyntax,
            PythonSyntax,
            CompiledCode,
            CompiledCode,
        ];
        for (max, kept, left) in [
            (0, "", "0 1 2 3 4 5"),
            (2, "0 1", "2 3 4 5"),
            (3, "0 1 4", "2 3 5"),
            (4, "0 1 2 4", "3 5"),
            (5, "0 1 2 4 5", "3"),
            (6, "0 1 2 3 4 5", ""),
            (9, "0 1 2 3 4 5", ""),
        ] {
            assert_eq!(look(&many, max), (kept.into(), left.into()), "{max}");
        }
        let refused = [UnknownKey, Invalid, Invalid, Missing];
        assert_eq!(look(&refused, 2), ("1 3".into(), "0 2".into()));
        assert_eq!(look(&refused, 3), ("1 2 3".into(), "0".into()));
    }

    #[test]
    fn display() {
        let p = Problem::error("skill.toml", Code::Invalid, "no");
        assert_eq!(p.to_string(), "skill.toml: error: no");
        assert_eq!(
            p.clone().at("/name").to_string(),
            "skill.toml:/name: error: no"
        );
        let p = p.at("/name").place((3, 8)).help("write it so");
        assert_eq!(p.to_string(), "skill.toml:3:8: error: no");
        assert_eq!(
            format!("{p:#}"),
            "skill.toml:3:8: error: no\n  help: write it so"
        );
        assert_eq!(
            Problem::warning("x", Code::UnknownKey, "hm").to_string(),
            "x: warning: hm"
        );
    }

    #[test]
    fn code_text_is_the_serialized_form() {
        for code in [
            Code::Syntax,
            Code::LanguageUnsupported,
            Code::NotUtf8,
            Code::NameNotImportable,
            Code::CompiledCode,
        ] {
            assert_eq!(serde_json::to_value(code).unwrap(), code.as_str());
        }
    }
}

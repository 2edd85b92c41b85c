//! The little that must be known about Python without running it.

mod broken;

pub use broken::{Broken, broken};

use thiserror::Error;

use crate::text::quoted;

/// Longest function name, in bytes.
pub const FUNCTION_NAME_BYTES_MAX: usize = 128;

/// The directory of supporting files, at the top of a skill.
const RESOURCES: &str = "resources/";

/// Python's reserved words (3.9 to 3.14). Soft keywords (`match`, `type`) are legal names.
pub(crate) const KEYWORDS: &[&str] = &[
    "False", "None", "True", "and", "as", "assert", "async", "await", "break", "class", "continue",
    "def", "del", "elif", "else", "except", "finally", "for", "from", "global", "if", "import",
    "in", "is", "lambda", "nonlocal", "not", "or", "pass", "raise", "return", "try", "while",
    "with", "yield",
];

/// Why a text is not the name of a function.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FunctionNameError {
    /// Outside `[A-Za-z_][A-Za-z0-9_]*`, or longer than [`FUNCTION_NAME_BYTES_MAX`].
    #[error(
        "{0} is not a function name: at most {FUNCTION_NAME_BYTES_MAX} ASCII letters, digits or `_`, not starting with a digit"
    )]
    Grammar(String),
    /// A reserved word.
    #[error("{0} is a Python keyword, not a function name")]
    Keyword(String),
    /// `__import__` and the like.
    #[error("{0} is one of Python's own names; only functions of the module can be called")]
    Dunder(String),
}

/// The name of a function at the top level of a module: an ASCII identifier, no keyword, no dunder.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionName(String);

string_type!(FunctionName, FunctionNameError);

impl FunctionName {
    /// Parses a name; dots are no part of it, an attribute of something else cannot be named.
    pub fn parse(text: &str) -> Result<Self, FunctionNameError> {
        let grammar = text.len() <= FUNCTION_NAME_BYTES_MAX
            && text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && text.bytes().all(is_word);
        if !grammar {
            return Err(FunctionNameError::Grammar(quoted(text)));
        }
        if KEYWORDS.contains(&text) {
            return Err(FunctionNameError::Keyword(quoted(text)));
        }
        if text.starts_with("__") && text.ends_with("__") {
            return Err(FunctionNameError::Dunder(quoted(text)));
        }
        Ok(FunctionName(text.to_owned()))
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Whether a skill with this entrypoint can import `path` as a module of its own: Python source beside it or below, under names
/// that Python has. Not the entrypoint itself, and not what the specification's layout keeps for other files than code.
pub fn is_module_of(entrypoint: &str, path: &str) -> bool {
    let directory = match entrypoint.rfind('/') {
        Some(end) => &entrypoint[..=end],
        None => "",
    };
    let module = path
        .strip_prefix(directory)
        .and_then(|rest| rest.strip_suffix(".py"));
    let is_resource = directory.is_empty() && path.starts_with(RESOURCES);
    path != entrypoint && !is_resource && module.is_some_and(|m| m.split('/').all(is_identifier))
}

/// As `str.isidentifier` of Python has it, as far as letters go that both know.
fn is_identifier(name: &str) -> bool {
    name.starts_with(|c: char| c.is_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_alphanumeric() || c == '_')
}

/// Whether `source` seems to define `name` at its top level, by the look of its lines.
///
/// Not a parser: `true` may be wrong (a line inside a string), `false` may be wrong too
/// (`globals()["main"] = ...` is taken as a definition of anything, but there are more ways). So
/// only a warning may rest on `false`.
pub fn seems_to_define(source: &str, name: &FunctionName) -> bool {
    let name = name.as_str();
    // An indented line counts when the last line without indentation opens a block that runs at
    // the top level (`if`, `try`), or an import that goes on.
    let mut inside = false;
    source.lines().any(|line| {
        let line = line.trim_end();
        let code = line.trim_start();
        if code.is_empty() || code.starts_with('#') {
            return false;
        }
        let indented = code.len() < line.len() || code.starts_with(')');
        if !indented {
            let first = code
                .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                .next()
                .unwrap_or("");
            let opens = [
                "if", "elif", "else", "try", "except", "finally", "with", "for", "while", "match",
                "from", "import",
            ];
            inside = opens.contains(&first);
        }
        (!indented || inside) && line_binds(code, name)
    })
}

fn line_binds(code: &str, name: &str) -> bool {
    if code.contains("globals()") || code.contains("def __getattr__") || code.contains("exec(") {
        return true;
    }
    if code.starts_with("from ") && code.trim_end_matches(')').trim_end().ends_with('*') {
        return true;
    }
    let words = code
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|w| !w.is_empty());
    let mut words = words.peekable();
    match words.peek().copied() {
        Some("from" | "import") => words.any(|word| word == name),
        Some("def" | "class") => words.nth(1) == Some(name),
        Some("async") => words.nth(1) == Some("def") && words.next() == Some(name),
        // `main = x`, `main: T = x`, `a = main = x`, `a, main = x`, and a line of an open import.
        _ => words.any(|word| word == name) && !code.starts_with(&format!("{name}(")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn function_names() {
        for good in [
            "main",
            "process_payment",
            "_x",
            "__x",
            "x__",
            "Main2",
            "match",
            "type",
            "_",
        ] {
            assert!(FunctionName::parse(good).is_ok(), "{good}");
        }
        let long = "a".repeat(129);
        for bad in [
            "",
            "2x",
            "a.b",
            "os.system",
            "a b",
            "a-b",
            "main()",
            "é",
            "__import__",
            "__class__",
            "____",
            "None",
            "class",
            "lambda",
            "async",
            "a\n",
            "a\0",
            &long,
        ] {
            assert!(FunctionName::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn modules() {
        for (entrypoint, path, want) in [
            ("code/main.py", "code/other.py", true),
            ("code/main.py", "code/a/__init__.py", true),
            ("code/main.py", "code/a/b_2/é.py", true),
            ("code/main.py", "code/resources/a.py", true),
            ("main.py", "a.py", true),
            ("main.py", "code/a.py", true),
            ("resources/main.py", "resources/a.py", true),
            ("main.py", "resources/a.py", false),
            ("code/main.py", "resources/a.py", false),
            ("code/main.py", "code/main.py", false),
            ("code/main.py", "a.py", false),
            ("code/main.py", "codes/a.py", false),
            ("code/a/main.py", "code/b.py", false),
            ("code/main.py", "code/a-b.py", false),
            ("code/main.py", "code/2/a.py", false),
            ("code/main.py", "code/{{name}}/a.py", false),
            ("code/main.py", "code/.py", false),
            ("code/main.py", "code/a.pyi", false),
            ("code/main.py", "code/a.PY", false),
        ] {
            assert_eq!(is_module_of(entrypoint, path), want, "{entrypoint} {path}");
        }
    }

    #[test]
    fn definitions() {
        let main = FunctionName::parse("main").unwrap();
        for (source, want) in [
            ("def main(args):\n    ...", true),
            ("x = 1\r\nasync  def main (args): pass", true),
            ("main = lambda args: 1", true),
            ("main: object = f", true),
            ("run, main = f()", true),
            ("class main:\n  pass", true),
            ("from impl import main", true),
            ("from impl import run as main", true),
            ("import main", true),
            ("from impl import *", true),
            ("from impl import (\n    other,\n    main,\n)", true),
            ("if True:\n    def main(args): ...", true),
            (
                "try:\n    from a import main\nexcept ImportError:\n    pass",
                true,
            ),
            ("globals()['ma' + 'in'] = 1", true),
            ("def __getattr__(name): ...", true),
            ("", false),
            ("def mainly(args): ...", false),
            ("def other(main): ...", false),
            ("async def other(main): ...", false),
            ("async def mainly(args): ...", false),
            ("from impl import other", false),
            ("import other", false),
            ("x = 2 *\\\n3", false),
            ("# def main(args)", false),
            ("class A:\n    def main(self): ...", false),
            ("def f():\n    main = 1", false),
            ("main()", false),
            ("domain = 1", false),
        ] {
            assert_eq!(seems_to_define(source, &main), want, "{source:?}");
        }
    }
}

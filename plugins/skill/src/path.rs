//! Paths inside a skill.

use thiserror::Error;
use unicode_normalization::is_nfc;

use crate::problem::{Code, Problem};
use crate::text::{is_hidden, quoted};

/// Longest path, in bytes.
pub const PATH_BYTES_MAX: usize = 512;
/// Longest component, in bytes.
pub const COMPONENT_BYTES_MAX: usize = 128;
/// Most components.
pub const PATH_DEPTH_MAX: usize = 16;

/// Why a text is not a path inside a skill. Both texts name the path and the rule.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PathError {
    /// It would lead out of the skill, or would on some system (protocol kind `path_escape`).
    #[error("path {path} leaves the skill: {rule}")]
    Escape {
        /// The path, quoted for display.
        path: String,
        /// What it broke.
        rule: &'static str,
    },
    /// It stays inside but is outside the grammar.
    #[error("path {path} {rule}")]
    Invalid {
        /// The path, quoted for display.
        path: String,
        /// What it broke.
        rule: String,
    },
}

impl PathError {
    /// Whether the protocol kind is `path_escape`.
    pub fn is_escape(&self) -> bool {
        matches!(self, PathError::Escape { .. })
    }

    /// As a problem of the set of files, for a caller who collects them.
    pub fn to_problem(&self, file: impl Into<String>) -> Problem {
        let code = if self.is_escape() {
            Code::PathEscape
        } else {
            Code::PathInvalid
        };
        Problem::error(file, code, self.to_string())
            .help("write a relative path with `/` between parts, such as code/main.py")
    }
}

/// A relative path inside a skill, such as `code/main.py`.
///
/// Whoever holds one may rely on this:
/// - it is 1 to [`PATH_BYTES_MAX`] bytes of UTF-8 in Unicode normal form C;
/// - it is 1 to [`PATH_DEPTH_MAX`] components joined by single `/`, each of 1 to
///   [`COMPONENT_BYTES_MAX`] bytes; so no `/` at the start or the end;
/// - no component is `.` or `..`;
/// - no backslash, no NUL or other control character, no character that a reader cannot see
///   (bidirectional controls, zero-width characters, joiners, tags);
/// - no component begins or ends with a space, and there is no other space than U+0020: a reader
///   would take `code /main.py` for `code/main.py`;
/// - it does not start with `~` nor with a drive (`C:`).
///
/// The bytes are taken as they are: `%2e%2e` is a file name of six characters, never decoded. Two
/// different paths may still be one file where case, or a dot at the end of a component, does not
/// count; [`crate::files::check`] sees to that. `Ord` is the order of bytes, the order of tree digests.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SkillPath(String);

string_type!(SkillPath, PathError);

impl SkillPath {
    /// Parses a path; see the type for what it promises.
    pub fn parse(text: &str) -> Result<Self, PathError> {
        let escape = |rule| {
            Err(PathError::Escape {
                path: quoted(text),
                rule,
            })
        };
        let invalid = |rule: String| {
            Err(PathError::Invalid {
                path: quoted(text),
                rule,
            })
        };

        if text.is_empty() {
            return invalid("is empty".into());
        }
        if text.len() > PATH_BYTES_MAX {
            return invalid(format!(
                "has {} bytes, at most {PATH_BYTES_MAX} are allowed",
                text.len()
            ));
        }
        // What leads out is said first: it is the more important thing to know.
        if text.starts_with('/') {
            return escape("it is absolute");
        }
        if text.contains('\0') {
            return escape("it has a NUL character, where some systems would cut it");
        }
        if text.contains('\\') {
            return escape("it has a backslash, a separator on some systems");
        }
        if text.split('/').any(|part| part == "..") {
            return escape("it has a `..` component");
        }
        if text.starts_with('~') {
            return escape("it starts with `~`, a home directory to some programs");
        }
        if let [letter, b':', ..] = text.as_bytes()
            && letter.is_ascii_alphabetic()
        {
            return escape("it starts with a drive");
        }
        if text.ends_with('/') {
            return invalid("ends with `/`: a directory, not a file".into());
        }
        let depth = text.split('/').count();
        if depth > PATH_DEPTH_MAX {
            return invalid(format!(
                "has {depth} components, at most {PATH_DEPTH_MAX} are allowed"
            ));
        }
        for part in text.split('/') {
            match part {
                "" => return invalid("has an empty component (`//`)".into()),
                "." => return invalid("has a `.` component".into()),
                _ if part.len() > COMPONENT_BYTES_MAX => {
                    return invalid(format!(
                        "has a component of {} bytes, at most {COMPONENT_BYTES_MAX} are allowed",
                        part.len()
                    ));
                }
                _ => {}
            }
        }
        if let Some(c) = text.chars().find(|c| is_hidden(*c)) {
            return invalid(format!(
                "has the character U+{:04X}, which a reader cannot see",
                u32::from(c)
            ));
        }
        // U+2800 is a braille cell without a dot.
        if let Some(c) = text
            .chars()
            .find(|c| *c == '\u{2800}' || c.is_whitespace() && *c != ' ')
        {
            return invalid(format!(
                "has the character U+{:04X}, which looks like a space: rename the file",
                u32::from(c)
            ));
        }
        if text.split('/').any(|part| part != part.trim_matches(' ')) {
            return invalid(
                "has a component that begins or ends with a space, which a reader cannot see"
                    .into(),
            );
        }
        if !is_nfc(text) {
            return invalid("is not in Unicode normal form C; write composed characters".into());
        }
        Ok(SkillPath(text.to_owned()))
    }

    /// `code`, `main.py`.
    pub fn components(&self) -> impl Iterator<Item = &str> {
        self.0.split('/')
    }

    /// The last component.
    pub fn file_name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or(&self.0)
    }

    /// The directories above it, nearest last: `a`, `a/b` for `a/b/c`.
    pub fn parents(&self) -> impl Iterator<Item = &str> {
        self.0.match_indices('/').map(|(at, _)| &self.0[..at])
    }

    /// The form in which two paths are equal that are one file on some system; see [`fold`].
    pub(crate) fn folded(&self) -> String {
        fold(&self.0)
    }
}

/// Lower, upper, lower, character by character, is close enough to Unicode case folding to catch
/// what case-insensitive file systems confuse (`ẞ`, `ß` and `SS`; `ſ` and `s`). Dots and spaces at
/// the end of a component do not count: Windows leaves them out, and a reader overlooks them.
pub(crate) fn fold(path: &str) -> String {
    let mut folded = String::with_capacity(path.len());
    for (at, part) in path.split('/').enumerate() {
        if at > 0 {
            folded.push('/');
        }
        let bare = match part.trim_end_matches(['.', ' ']) {
            // Of nothing but dots one is left, which no component is.
            "" => ".",
            bare => bare,
        };
        folded.extend(
            bare.chars()
                .flat_map(char::to_lowercase)
                .flat_map(char::to_uppercase)
                .flat_map(char::to_lowercase),
        );
    }
    folded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good() {
        let component = "a".repeat(128);
        let deep = ["a"; 16].join("/");
        let longest = format!("{0}/{0}/{0}/{1}", component, "b".repeat(125));
        for good in [
            "skill.toml",
            "SKILL.md",
            "code/main.py",
            "resources/a b.txt",
            "a/...",
            "..a",
            "a..",
            "a/..b/c",
            ".hidden",
            "a/.env",
            "%2e%2e/x",
            "%2e%2e%2fetc",
            "ü.md",
            "日本/語.txt",
            "1:b",
            "1:",
            "ab:c",
            "a~",
            "a/~b",
            "-rf",
            "con",
            "a?b*c",
            "😀",
            "$HOME",
            "`x`",
            "a;b",
            &component,
            &deep,
            &longest,
        ] {
            assert_eq!(
                SkillPath::parse(good).map(|p| p.to_string()).as_deref(),
                Ok(good)
            );
        }
    }

    #[test]
    fn escapes() {
        for bad in [
            "..",
            "../x",
            "a/..",
            "a/../b",
            "a/../../b",
            "../../etc/passwd",
            "code/../skill.toml",
            "/",
            "/etc/passwd",
            "//x",
            "\\",
            "a\\b",
            "..\\x",
            "\\\\server\\share",
            "C:",
            "C:/x",
            "c:x",
            "C:\\x",
            "~",
            "~/x",
            "~root/x",
            "a\0b",
            "\0",
            "a\0/../b",
            "./../x",
        ] {
            let e = SkillPath::parse(bad).unwrap_err();
            assert!(e.is_escape(), "{bad:?}: {e}");
        }
    }

    #[test]
    fn invalid() {
        let long = "a/".repeat(300);
        let component = "a".repeat(129);
        let deep = ["a"; 17].join("/");
        for bad in [
            "",
            ".",
            "./a",
            "a/.",
            "a/./b",
            "a//b",
            "a/",
            "a//",
            "a\nb",
            "a\r",
            "a\tb",
            "\u{1b}[31m",
            "a\u{7f}",
            "a\u{85}",
            "a\u{202e}fdp.py",
            "a\u{2066}",
            "a\u{200b}",
            "a\u{200d}b",
            "\u{feff}a",
            "a\u{ad}b",
            "\u{e0041}",
            "e\u{301}",
            "a\u{fe0f}",
            "\u{212b}",
            "가\u{11a8}",
            " ",
            " a",
            "a ",
            "code /main.py",
            "code/ main.py",
            "a\u{a0}b",
            "a\u{1680}b",
            "a\u{2000}b",
            "a\u{2007}b",
            "a\u{200a}b",
            "a\u{202f}b",
            "a\u{205f}b",
            "a\u{3000}b",
            "\u{3000}",
            "a\u{2800}b",
            &long,
            &component,
            &deep,
        ] {
            let e = SkillPath::parse(bad).unwrap_err();
            assert!(!e.is_escape(), "{bad:?}: {e}");
            assert!(!e.to_string().chars().any(is_hidden), "{e:?}");
        }
        let bytes = format!("{0}/{0}/{0}/{1}", &component[1..], "b".repeat(126));
        for (bad, why) in [
            ("", "is empty"),
            ("a/", "a directory, not a file"),
            (&bytes, "has 513 bytes, at most 512 are allowed"),
            (&deep, "has 17 components, at most 16 are allowed"),
        ] {
            let error = SkillPath::parse(bad).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn parts() {
        let path = SkillPath::parse("a/b/c.py").unwrap();
        assert_eq!(path.components().collect::<Vec<_>>(), ["a", "b", "c.py"]);
        assert_eq!(path.parents().collect::<Vec<_>>(), ["a", "a/b"]);
        assert_eq!(path.file_name(), "c.py");
        assert_eq!(SkillPath::parse("x").unwrap().parents().count(), 0);
        for (a, b) in [
            ("A/ẞ", "a/ß"),
            ("ſ", "S"),
            ("K", "\u{6b}"),
            ("ΟΔΟΣ", "οδος"),
            ("STRASSE", "straße"),
            ("a./B.. ./c.", "A/b/c"),
            ("a/...", "a/...."),
        ] {
            assert_eq!(fold(a), fold(b), "{a} {b}");
        }
        for (a, b) in [
            ("a.b", "ab"),
            (".a", "a"),
            ("a/...", "a"),
            ("a b", "ab"),
            ("a/b", "ab"),
        ] {
            assert_ne!(fold(a), fold(b), "{a} {b}");
        }
    }

    #[test]
    fn problems() {
        let p = SkillPath::parse("../x").unwrap_err().to_problem("files");
        assert_eq!(
            (p.code, p.to_string().as_str()),
            (
                Code::PathEscape,
                "files: error: path \"../x\" leaves the skill: it has a `..` component"
            )
        );
        assert_eq!(
            SkillPath::parse("a//x")
                .unwrap_err()
                .to_problem("files")
                .code,
            Code::PathInvalid
        );
    }
}

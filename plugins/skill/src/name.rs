//! Names of skills and namespaces.
//!
//! One grammar for both: segments of `[a-z0-9][a-z0-9_-]*` joined by dots, at most
//! [`NAME_BYTES_MAX`] bytes and [`NAME_SEGMENTS_MAX`] segments. So a name is ASCII, has one
//! spelling, is a safe single path component, and no segment can be `..`, hidden or a Python
//! dunder.

use thiserror::Error;

use crate::text::quoted;

/// Longest name or namespace, in bytes.
pub const NAME_BYTES_MAX: usize = 128;
/// Most segments of a name or namespace.
pub const NAME_SEGMENTS_MAX: usize = 16;

/// Why a text is not a name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NameError {
    /// Nothing there.
    #[error("is empty; a name is like `salesforce.leads.sync`")]
    Empty,
    /// Longer than [`NAME_BYTES_MAX`].
    #[error("has {0} bytes, at most {NAME_BYTES_MAX} are allowed")]
    TooLong(usize),
    /// More segments than [`NAME_SEGMENTS_MAX`].
    #[error("has {0} segments, at most {NAME_SEGMENTS_MAX} are allowed")]
    TooManySegments(usize),
    /// A dot at an end or two dots in a row.
    #[error("{0} has an empty segment; segments are joined by single dots")]
    EmptySegment(String),
    /// A segment that begins with `-` or `_`.
    #[error("segment {0} must start with a lower-case letter or a digit")]
    BadStart(String),
    /// A character outside the grammar.
    #[error(
        "{0} has the character {1:?}; only a-z, 0-9, `_`, `-` and dots between segments are allowed"
    )]
    BadCharacter(String, char),
}

fn check(text: &str) -> Result<(), NameError> {
    if text.is_empty() {
        return Err(NameError::Empty);
    }
    if text.len() > NAME_BYTES_MAX {
        return Err(NameError::TooLong(text.len()));
    }
    let segments = text.split('.').count();
    if segments > NAME_SEGMENTS_MAX {
        return Err(NameError::TooManySegments(segments));
    }
    for segment in text.split('.') {
        let mut chars = segment.chars();
        let Some(first) = chars.next() else {
            return Err(NameError::EmptySegment(quoted(text)));
        };
        if matches!(first, '_' | '-') {
            return Err(NameError::BadStart(quoted(segment)));
        }
        for c in segment.chars() {
            if !matches!(c, 'a'..='z' | '0'..='9' | '_' | '-') {
                return Err(NameError::BadCharacter(quoted(text), c));
            }
        }
    }
    Ok(())
}

/// The name of a skill, such as `salesforce.leads.sync`. Ordered by bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SkillName(String);

string_type!(SkillName, NameError);

impl SkillName {
    /// Parses a name; see the module for the grammar.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        check(text).map(|()| SkillName(text.to_owned()))
    }

    /// The namespace of a manifest that names none: the first segment.
    pub fn default_namespace(&self) -> Namespace {
        let first = self.0.split('.').next().unwrap_or(&self.0);
        Namespace(first.to_owned())
    }

    /// The name in a Python import, below `skills.`: `-` reads as `_`. Two names may share one
    /// import name (`a-b`, `a_b`); whoever mounts both must refuse.
    pub fn import_name(&self) -> String {
        self.0.replace('-', "_")
    }
}

/// A namespace, such as `skills.protocol`. Same grammar as a name. Ordered by bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Namespace(String);

string_type!(Namespace, NameError);

impl Namespace {
    /// Parses a namespace; see the module for the grammar.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        check(text).map(|()| Namespace(text.to_owned()))
    }
}

/// Whether `namespace` is `filter` itself or below it: `skills` finds `skills.protocol`, not
/// `skillsets`.
pub fn in_namespace(namespace: &str, filter: &str) -> bool {
    namespace
        .strip_prefix(filter)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let longest = format!("{}.b", "a".repeat(126));
        let sixteen = ["a"; 16].join(".");
        for good in [
            "a",
            "0",
            "salesforce.leads.sync",
            "best-practices.salesforce",
            "user.julaiti.save_sheet_as_csv",
            "a-.b_",
            "1.2.3",
            "skills.protocol.guide",
            "class.def",
            &longest,
            &sixteen,
        ] {
            assert_eq!(
                SkillName::parse(good).map(|n| n.to_string()).as_deref(),
                Ok(good)
            );
            assert!(Namespace::parse(good).is_ok());
        }
        let too_long = "a".repeat(129);
        let seventeen = ["a"; 17].join(".");
        for bad in [
            "",
            ".",
            "..",
            ".a",
            "a.",
            "a..b",
            "-a",
            "_a",
            "a.-b",
            "a._b",
            "__init__",
            "a.__init__",
            "A",
            "a.B",
            "a b",
            " a",
            "a\n",
            "a/b",
            "a\\b",
            "../a",
            "a\0",
            "é",
            "а",
            "a\u{200b}",
            "a:b",
            "a@1",
            "a%2e",
            "~a",
            "*",
            "a.*",
            &too_long,
            &seventeen,
        ] {
            assert!(SkillName::parse(bad).is_err(), "{bad:?}");
            assert!(Namespace::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn parts() {
        let name = SkillName::parse("best-practices.sales-force").unwrap();
        assert_eq!(name.default_namespace().as_str(), "best-practices");
        assert_eq!(name.import_name(), "best_practices.sales_force");
        assert_eq!(
            SkillName::parse("solo")
                .unwrap()
                .default_namespace()
                .as_str(),
            "solo"
        );
    }

    #[test]
    fn namespaces() {
        for (namespace, filter, want) in [
            ("skills", "skills", true),
            ("skills.protocol", "skills", true),
            ("skillsets", "skills", false),
            ("skills", "skills.protocol", false),
            ("skills.protocolx", "skills.protocol", false),
            ("a.skills", "skills", false),
        ] {
            assert_eq!(
                in_namespace(namespace, filter),
                want,
                "{namespace} in {filter}"
            );
        }
    }

    #[test]
    fn error_texts_show_what_cannot_be_seen() {
        let text = SkillName::parse("a\u{202e}b").unwrap_err().to_string();
        assert!(
            text.contains("\\u{202e}") && !text.contains('\u{202e}'),
            "{text}"
        );
        assert!(serde_json::from_str::<SkillName>("\"A\"").is_err());
        assert_eq!(
            serde_json::from_str::<SkillName>("\"\\u0061\"")
                .unwrap()
                .as_str(),
            "a"
        );
    }
}

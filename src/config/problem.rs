//! What is wrong with a configuration: where, which key, what, and what would be right.

use std::fmt;
use std::sync::Arc;

use serde::{Serialize, Serializer};

/// More than this many problems are not listed: the first ones are enough to work with.
pub(super) const MAX_PROBLEMS: usize = 100;

/// Where a value was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "from", rename_all = "snake_case")]
pub enum Origin {
    /// In `default.toml`, which is built in.
    Default {
        /// From 1.
        line: usize,
    },
    /// In a configuration file.
    File {
        /// As it was named.
        #[serde(serialize_with = "shared_text")]
        file: Arc<str>,
        /// From 1.
        line: usize,
        /// In characters, from 1.
        column: usize,
    },
    /// In a variable of the environment.
    Environment {
        /// Its name.
        #[serde(serialize_with = "shared_text")]
        variable: Arc<str>,
    },
    /// On the command line.
    CommandLine {
        /// The option, with its dashes.
        option: &'static str,
    },
}

/// serde's own support for `Arc` is a feature that would hold for the whole program.
fn shared_text<S: Serializer>(text: &Arc<str>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(text)
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default { line } => write!(f, "default.toml:{line}"),
            Origin::File { file, line, column } => write!(f, "{file}:{line}:{column}"),
            Origin::Environment { variable } => write!(f, "environment variable {variable}"),
            Origin::CommandLine { option } => f.write_str(option),
        }
    }
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Where; absent when the source as a whole could not be read.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// The key's full path, `auth.issuers[0].leeway_s`; empty for the file as a whole.
    pub key: String,
    /// What is wrong and what is expected.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(origin) = &self.origin {
            write!(f, "{origin}: ")?;
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.message)
    }
}

/// What is wrong with a configuration. Never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors {
    /// Those of the file are in its order, and at most 100; others in the order in which they were found.
    pub problems: Vec<Problem>,
}

impl ConfigErrors {
    /// The problems, cut to what a reader can use.
    pub(super) fn new(mut problems: Vec<Problem>) -> Self {
        problems.sort_by_key(|problem| match &problem.origin {
            Some(Origin::File { line, column, .. }) => (*line, *column),
            _ => (0, 0),
        });
        problems.truncate(MAX_PROBLEMS);
        ConfigErrors { problems }
    }

    /// A single problem with a source as a whole.
    pub(super) fn whole(message: String) -> Self {
        ConfigErrors::new(vec![Problem {
            origin: None,
            key: String::new(),
            message,
        }])
    }
}

impl fmt::Display for ConfigErrors {
    /// One problem per line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.problems.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

/// The known word that `wrong` is most likely meant to be, if one is near enough: at most a third of its letters
/// differ, swapped neighbours counting once.
pub(crate) fn did_you_mean<'a>(
    wrong: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    // A long word is no typing error of a short one; this also bounds the work on hostile input.
    if wrong.chars().count() > 64 {
        return None;
    }
    let (distance, best) = known
        .into_iter()
        .map(|word| (distance(wrong, word), word))
        .min_by_key(|(d, _)| *d)?;
    (distance <= wrong.chars().count().max(3) / 3).then_some(best)
}

/// The optimal string alignment distance.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![(0..=b.len()).collect::<Vec<_>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = replaced.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_words_are_suggested_and_far_ones_are_not() {
        let known = ["listen", "max_body_bytes", "max_batch"];
        assert_eq!(did_you_mean("lisen", known), Some("listen"));
        assert_eq!(did_you_mean("litsen", known), Some("listen"));
        assert_eq!(did_you_mean("max_body_byte", known), Some("max_body_bytes"));
        assert_eq!(did_you_mean("colour", known), None);
        assert_eq!(did_you_mean("", known), None);
        assert_eq!(did_you_mean("x", []), None);
        assert_eq!(did_you_mean(&"listen".repeat(100_000), known), None);
    }
}

//! SKILL.md: markdown, with YAML front matter at the top.

use serde::de::DeserializeSeed;
use serde_json::{Map, Value};
use thiserror::Error;

use crate::SKILL_MD;
use crate::json::Strict;
use crate::problem::{Code, Problem};
use crate::text::{one_line, quoted, small};

/// Largest SKILL.md, in bytes.
pub const SKILL_MD_BYTES_MAX: usize = 1024 * 1024;
/// Largest front matter, in bytes.
pub const FRONTMATTER_BYTES_MAX: usize = 64 * 1024;
/// Deepest nesting of front matter: the mapping itself is 1.
pub const FRONTMATTER_DEPTH_MAX: usize = 16;
/// Most YAML nodes (keys and values) in front matter.
pub const FRONTMATTER_NODES_MAX: usize = 8192;

/// Why a text is not a SKILL.md.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct SkillMdError {
    /// Which kind.
    pub code: Code,
    /// What was wrong.
    pub message: String,
    /// Line and column in the file, from 1.
    pub place: Option<(u32, u32)>,
    /// What to do.
    pub help: &'static str,
}

impl From<SkillMdError> for Problem {
    fn from(e: SkillMdError) -> Problem {
        let problem = Problem::error(SKILL_MD, e.code, e.message).help(e.help);
        match e.place {
            Some(place) => problem.place(place),
            None => problem,
        }
    }
}

/// A parsed SKILL.md.
#[derive(Debug, Clone, PartialEq)]
pub struct SkillMd<'t> {
    /// The front matter as JSON, dates as strings; empty when there is none.
    pub frontmatter: Map<String, Value>,
    /// What comes after it; all of the text when there is none.
    pub body: &'t str,
}

impl<'t> SkillMd<'t> {
    /// Splits the text and parses its front matter.
    ///
    /// Front matter is a first line `---`, YAML, and a line `---`. A text that starts with anything
    /// else has none. Anchors, aliases, merge keys, tags of one's own, duplicate keys and numbers
    /// outside JSON are refused.
    pub fn parse(text: &'t str) -> Result<SkillMd<'t>, SkillMdError> {
        if text.len() > SKILL_MD_BYTES_MAX {
            return Err(SkillMdError {
                code: Code::TooLarge,
                message: format!(
                    "the file has {} bytes, at most {SKILL_MD_BYTES_MAX} are allowed",
                    text.len()
                ),
                place: None,
                help: "move long texts to resources/",
            });
        }
        if text.starts_with('\u{feff}') {
            return Err(SkillMdError {
                code: Code::FrontMatter,
                message: "the file starts with a byte order mark, which hides front matter".into(),
                place: Some((1, 1)),
                help: "save it as UTF-8 without a byte order mark",
            });
        }
        let Some((yaml, body)) = split(text)? else {
            return Ok(SkillMd {
                frontmatter: Map::new(),
                body: text,
            });
        };
        Ok(SkillMd {
            frontmatter: parse_yaml(yaml)?,
            body,
        })
    }
}

fn is_fence(line: &str) -> bool {
    line.trim_end() == "---"
}

/// (YAML, body), or none when there is no front matter.
fn split(text: &str) -> Result<Option<(&str, &str)>, SkillMdError> {
    let mut lines = text.split_inclusive('\n');
    let Some(first) = lines.next().filter(|line| is_fence(line)) else {
        return Ok(None);
    };
    let start = first.len();
    let mut end = start;
    for line in lines {
        if is_fence(line) {
            return Ok(Some((&text[start..end], &text[end + line.len()..])));
        }
        end += line.len();
    }
    Err(SkillMdError {
        code: Code::FrontMatter,
        message: "the front matter is not closed".into(),
        place: Some((1, 1)),
        help: "end it with a line `---`; if the text has no front matter, do not start it with `---`",
    })
}

fn parse_yaml(yaml: &str) -> Result<Map<String, Value>, SkillMdError> {
    let fail = |code, message: String, place| SkillMdError {
        code,
        message,
        place,
        help: "front matter is a plain YAML mapping, such as `name: Salesforce Lead Sync`",
    };
    if yaml.len() > FRONTMATTER_BYTES_MAX {
        let message = format!(
            "the front matter has {} bytes, at most {FRONTMATTER_BYTES_MAX} are allowed",
            yaml.len()
        );
        return Err(fail(Code::TooLarge, message, Some((2, 1))));
    }
    // Nothing but blanks and comments: an empty mapping.
    if yaml
        .lines()
        .all(|line| line.trim().is_empty() || line.trim_start().starts_with('#'))
    {
        return Ok(Map::new());
    }
    match serde_saphyr::from_str_with_options::<Yaml>(yaml, options()) {
        Ok(Yaml(Value::Object(members))) => Ok(members),
        Ok(Yaml(_)) => Err(fail(
            Code::FrontMatter,
            "the front matter is not a mapping".into(),
            Some((2, 1)),
        )),
        Err(e) => {
            // The YAML starts on the second line of the file.
            let place = e.location().map(|at| {
                let number = |n: u64| usize::try_from(n).map_or(u32::MAX, small);
                (
                    number(at.line()).saturating_add(1),
                    number(at.column()).max(1),
                )
            });
            let (code, message) = explain(&e);
            Err(fail(code, message, place))
        }
    }
}

/// The library speaks to programmers (`set DuplicateKeyPolicy in Options`); authors get what they
/// can act on.
fn explain(e: &serde_saphyr::Error) -> (Code, String) {
    use serde_saphyr::Error as E;
    use serde_saphyr::budget::BudgetBreach as Breach;
    match e {
        E::DuplicateMappingKey { key: Some(key), .. } => {
            (Code::Duplicate, format!("duplicate key {}", quoted(key)))
        }
        E::DuplicateMappingKey { key: None, .. } => (Code::Duplicate, "duplicate key".into()),
        E::NonFiniteFloat { value, .. } => (
            Code::Invalid,
            format!(
                "the number {} is infinite or not a number; quote it if it is text",
                quoted(value)
            ),
        ),
        E::MergeKeyNotAllowed { .. } => (Code::Invalid, "merge keys (`<<`) are not allowed".into()),
        E::NullIntoString { .. } => (
            Code::Invalid,
            "a key is null; quote it if it is text".into(),
        ),
        E::Budget { breach, .. } => match breach {
            Breach::Anchors { .. } | Breach::Aliases { .. } => (
                Code::Invalid,
                "anchors and aliases (`&`, `*`) are not allowed".into(),
            ),
            Breach::MergeKeys { .. } => (Code::Invalid, "merge keys (`<<`) are not allowed".into()),
            Breach::Depth { .. } => (
                Code::TooDeep,
                format!("nested more than {FRONTMATTER_DEPTH_MAX} deep"),
            ),
            Breach::Documents { .. } => (Code::FrontMatter, "more than one YAML document".into()),
            _ => (
                Code::TooLarge,
                format!("more than {FRONTMATTER_NODES_MAX} keys and values"),
            ),
        },
        _ => {
            let mut message = one_line(&e.without_snippet().to_string());
            if let Some(at) = e.location() {
                let place = format!(" at line {}, column {}", at.line(), at.column());
                message.truncate(message.strip_suffix(&place).unwrap_or(&message).len());
            }
            (Code::Syntax, message)
        }
    }
}

fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: FRONTMATTER_DEPTH_MAX,
            max_nodes: FRONTMATTER_NODES_MAX,
            max_events: 4 * FRONTMATTER_NODES_MAX,
            max_documents: 1,
            // Front matter is written by hand for a reader: nothing in it needs to point elsewhere,
            // and what points elsewhere is how YAML bombs are made.
            max_anchors: 0,
            max_aliases: 0,
            max_merge_keys: 0,
            max_total_scalar_bytes: FRONTMATTER_BYTES_MAX,
        },
        duplicate_keys: serde_saphyr::options::DuplicateKeyPolicy::Error,
        merge_keys: serde_saphyr::options::MergeKeyPolicy::Error,
        // YAML 1.2: `no` is a word, not a boolean.
        strict_booleans: true,
        reject_unsupported_tags: true,
        reject_non_finite_typeless_float: true,
        emit_comments: false,
        with_snippet: false,
    }
}

struct Yaml(Value);

impl<'de> serde::Deserialize<'de> for Yaml {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Strict {
            depth_left: FRONTMATTER_DEPTH_MAX,
        }
        .deserialize(d)
        .map(Yaml)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn frontmatter(yaml: &str) -> Result<Value, SkillMdError> {
        SkillMd::parse(&format!("---\n{yaml}\n---\nbody")).map(|md| Value::Object(md.frontmatter))
    }

    #[test]
    fn good() {
        for (yaml, want) in [
            (
                "name: Salesforce Lead Sync\nshort_description: Sync leads from a sheet blob into Salesforce.\ntags: [crm, leads, sync]",
                json!({"name": "Salesforce Lead Sync", "short_description": "Sync leads from a sheet blob into Salesforce.", "tags": ["crm", "leads", "sync"]}),
            ),
            ("", json!({})),
            ("# only a comment\n\n", json!({})),
            ("{}", json!({})),
            (
                "date: 2024-01-01\nat: 2024-01-01T10:00:00Z\ntime: 12:30:00",
                json!({"date": "2024-01-01", "at": "2024-01-01T10:00:00Z", "time": "12:30:00"}),
            ),
            (
                "a: no\nb: yes\nc: true\nd: ~\ne:",
                json!({"a": "no", "b": "yes", "c": true, "d": null, "e": null}),
            ),
            (
                "a: 1\nb: -2\nc: 1.5\nd: '3'\ne: \"4\"",
                json!({"a": 1, "b": -2, "c": 1.5, "d": "3", "e": "4"}),
            ),
            ("1: x\ntrue: y", json!({"1": "x", "true": "y"})),
            (
                "a: |\n  two\n  lines\nb: >\n  one\n  line\n",
                json!({"a": "two\nlines\n", "b": "one line\n"}),
            ),
            ("a:\n  - b: {c: [d]}", json!({"a": [{"b": {"c": ["d"]}}]})),
            ("version: 1.2.3", json!({"version": "1.2.3"})),
        ] {
            assert_eq!(
                frontmatter(yaml).unwrap_or_else(|e| panic!("{yaml:?}: {e}")),
                want
            );
        }
    }

    #[test]
    fn bad() {
        let deep = format!("a: {}1{}", "[".repeat(20), "]".repeat(20));
        let deep_map = (0..20)
            .map(|n| format!("{}k:\n", " ".repeat(n)))
            .collect::<String>();
        let many = format!("a: [{}]", "1,".repeat(9000));
        for (yaml, code, line) in [
            ("a: 1\nb: 2\na: 3", Code::Duplicate, 4),
            ("x: {a: 1, a: 2}", Code::Duplicate, 2),
            ("a: &x 1", Code::Invalid, 2),
            ("a: *x", Code::Syntax, 2),
            ("a: &x {b: 1}\nc:\n  <<: *x", Code::Invalid, 2),
            ("a: 1\n<<: {b: 1}", Code::Invalid, 3),
            ("a: .nan", Code::Invalid, 2),
            ("a: -.inf", Code::Invalid, 2),
            ("a: 1e999", Code::Invalid, 2),
            ("a: !!python/object:os.system x", Code::Syntax, 2),
            ("a: !include /etc/passwd", Code::Syntax, 2),
            ("[a]: x", Code::Syntax, 2),
            ("~: x", Code::Invalid, 2),
            ("- a\n- b", Code::FrontMatter, 2),
            ("just text", Code::FrontMatter, 2),
            ("a: [1", Code::Syntax, 2),
            ("a: 'x", Code::Syntax, 3),
            ("a: 1\n...\nb: 2", Code::FrontMatter, 3),
            ("a: \0", Code::Syntax, 2),
            (&deep, Code::TooDeep, 2),
            (&deep_map, Code::TooDeep, 18),
            (&many, Code::TooLarge, 2),
        ] {
            let e = frontmatter(yaml).expect_err(yaml);
            assert_eq!(
                (e.code, e.place.map(|p| p.0)),
                (code, Some(line)),
                "{:.40}: {e}",
                yaml
            );
            assert!(
                !e.message.contains("at line") && !e.message.contains("Options"),
                "{e}"
            );
        }
    }

    #[test]
    fn splitting() {
        for (text, want) in [
            ("# My New Skill\n\n...", Ok((0, "# My New Skill\n\n..."))),
            ("", Ok((0, ""))),
            ("\n---\na: 1\n---\n", Ok((0, "\n---\na: 1\n---\n"))),
            (" ---\na: 1\n---\n", Ok((0, " ---\na: 1\n---\n"))),
            ("----\na: 1\n", Ok((0, "----\na: 1\n"))),
            (
                "---\na: 1\n---\nbody\n---\nmore",
                Ok((1, "body\n---\nmore")),
            ),
            (
                "---\r\na: 1\r\nb: 2\r\n---\r\nbody\r\n",
                Ok((2, "body\r\n")),
            ),
            ("--- \na: 1\n---\t\nbody", Ok((1, "body"))),
            ("---\na: 1\n---", Ok((1, ""))),
            ("---\n---\nbody", Ok((0, "body"))),
            ("---", Err(Code::FrontMatter)),
            ("---\na: 1\n", Err(Code::FrontMatter)),
            ("---\na: 1\n ---\n", Err(Code::FrontMatter)),
            ("---\na: 1\n----\n", Err(Code::FrontMatter)),
            ("\u{feff}---\na: 1\n---\n", Err(Code::FrontMatter)),
        ] {
            let got = SkillMd::parse(text)
                .map(|md| (md.frontmatter.len(), md.body))
                .map_err(|e| e.code);
            assert_eq!(got, want, "{text:?}");
        }
    }

    #[test]
    fn sizes() {
        let body = "x".repeat(SKILL_MD_BYTES_MAX);
        assert!(SkillMd::parse(&body).is_ok());
        assert_eq!(
            SkillMd::parse(&format!("{body}x")).unwrap_err().code,
            Code::TooLarge
        );
        assert!(frontmatter(&format!("a: {}", "x".repeat(60_000))).is_ok());
        assert_eq!(
            frontmatter(&format!("a: {}", "x".repeat(70_000)))
                .unwrap_err()
                .code,
            Code::TooLarge
        );
        // Comments are none of the values that the parser counts. The line's end is one byte of it.
        let comment = format!("a: 1 #{}", "x".repeat(FRONTMATTER_BYTES_MAX - 7));
        assert!(frontmatter(&comment).is_ok());
        assert_eq!(
            frontmatter(&format!("{comment}x")).unwrap_err().code,
            Code::TooLarge
        );
    }

    #[test]
    fn as_problem() {
        let p = Problem::from(frontmatter("a: 1\na: 2").unwrap_err());
        assert_eq!(p.to_string(), "SKILL.md:3:1: error: duplicate key \"a\"");
    }
}

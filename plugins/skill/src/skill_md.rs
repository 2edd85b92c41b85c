//! SKILL.md: markdown, with YAML front matter at the top.

use serde::de::DeserializeSeed;
use serde_json::{Map, Value};
use thiserror::Error;

use crate::SKILL_MD;
use crate::json::Strict;
use crate::problem::{Code, Problem};
use crate::text::{one_line, small};

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
            Err(fail(Code::Syntax, message_of(&e), place))
        }
    }
}

fn message_of(e: &serde_saphyr::Error) -> String {
    one_line(&e.without_snippet().to_string())
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

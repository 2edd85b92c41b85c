//! `skillgate skill new`: a small skill that validates and runs.

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use skillgate_skill::SkillName;

use super::failure::Failure;
use super::{Exit, new_files, plain};

#[derive(Debug, Args)]
pub(super) struct NewArgs {
    /// The skill's name: segments of lower case letters, digits, `-` and `_`, joined by dots
    #[arg(value_parser = SkillName::parse)]
    name: SkillName,
    /// The directory that the skill's own directory is made in
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Whether it can be run or is for reading
    #[arg(long, value_enum, default_value_t)]
    kind: NewKind,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum NewKind {
    /// Has code
    #[default]
    Action,
    /// Has instructions only
    Instruction,
}

const MANIFEST: &str = r#"name = "{name}"
version = "0.1.0"
description = "Counts the words of a text."
kind = "action"
tags = ["example"]

[runtime]
language = "python"
entrypoint = "code/main.py"
export = "main"

[inputs]
text = { type = "string", description = "The text whose words are counted" }
"#;

const CODE: &str = r#""""Counts the words of a text."""

from runtime import log


def main(args):
    """The entrypoint: takes the arguments as a dict, returns what JSON can hold."""
    text = args.get("text", "")
    if not isinstance(text, str):
        raise TypeError(f"text is not a string: {type(text).__name__}")
    log.info("counting")
    return {"words": len(text.split())}
"#;

const ACTION_MD: &str = r#"---
name: {name}
short_description: Counts the words of a text.
tags: [example]
---

# {name}

Counts the words of a text. Say here what the skill is for and when to use it: this is what an agent reads.

## Arguments

| name | type | default | meaning |
|---|---|---|---|
| `text` | string | `""` | the text whose words are counted |

## Returns

`{"words": 3}`
"#;

const INSTRUCTION_MANIFEST: &str = r#"name = "{name}"
version = "0.1.0"
description = "Says how something is done here."
kind = "instruction"
tags = ["example"]
"#;

const INSTRUCTION_MD: &str = r#"---
name: {name}
short_description: Says how something is done here.
tags: [example]
---

# {name}

Say here what is done, when, and how, step by step: this is what an agent reads.

1. First step.
2. Second step.
"#;

pub(super) fn run(args: &NewArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let dir = write_skill(args)?;
    let shown = plain(&dir.display().to_string());
    writeln!(out, "{shown}")?;
    let word = plain(&new_files::in_shell(&dir.display().to_string()));
    writeln!(out, "check it:  skillgate skill validate {word}")?;
    if args.kind == NewKind::Action {
        writeln!(
            out,
            "run it:    skillgate skill run {word} --args '{{\"text\": \"one two three\"}}'"
        )?;
    }
    writeln!(
        out,
        "serve it:  put it into a directory of skills.paths, by default skills/, and start the gateway anew"
    )?;
    Ok(Exit::Fine)
}

/// Writes all files of the skill into a directory that was not there before.
fn write_skill(args: &NewArgs) -> Result<PathBuf, Failure> {
    let dir = args.dir.join(args.name.as_str());
    let files: &[(&str, &str)] = match args.kind {
        NewKind::Action => &[
            ("skill.toml", MANIFEST),
            ("SKILL.md", ACTION_MD),
            ("code/main.py", CODE),
        ],
        NewKind::Instruction => &[
            ("skill.toml", INSTRUCTION_MANIFEST),
            ("SKILL.md", INSTRUCTION_MD),
        ],
    };
    let named = |text: &str| text.replace("{name}", args.name.as_str());
    let files = files.iter().map(|(name, text)| (*name, named(text)));
    new_files::write(&dir, files)?;
    Ok(dir)
}

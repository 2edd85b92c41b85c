//! `skillgate skill validate`

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};
use skillgate_skill::{Problem, SKILL_TOML, Skill, validate};

use super::failure::Failure;
use super::{ConfigFile, Exit, Output, OutputFormat, plain, print_json, skill_dir};

#[derive(Debug, Args)]
pub(super) struct ValidateArgs {
    /// Directories of skills, or directories that hold such directories
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Of which skills.max_bytes and skills.max_files count here
    #[command(flatten)]
    file: ConfigFile,
    #[command(flatten)]
    format: OutputFormat,
}

pub(super) fn run(args: &ValidateArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let limits = args.file.load_for_command()?.skills;
    let mut skills = Vec::new();
    for path in &args.paths {
        skills.extend(skills_in(path)?);
    }
    let checked: Vec<(PathBuf, Result<Skill, Vec<Problem>>)> = skills
        .into_iter()
        .map(|dir| {
            let outcome = skill_dir::read(&dir, limits.max_files, limits.max_bytes)
                .and_then(|files| validate(&files, limits.max_bytes));
            (dir, outcome)
        })
        .collect();
    match args.format.output {
        Output::Text => checked
            .iter()
            .try_for_each(|(dir, outcome)| print(dir, outcome, out))?,
        Output::Json => {
            let ok = checked.iter().all(|(_, outcome)| outcome.is_ok());
            let skills: Vec<Value> = checked
                .iter()
                .map(|(dir, outcome)| as_json(dir, outcome))
                .collect();
            print_json(out, &json!({ "ok": ok, "skills": skills }))?;
        }
    }
    match checked
        .iter()
        .filter(|(_, outcome)| outcome.is_err())
        .count()
    {
        0 => Ok(Exit::Fine),
        _ => Ok(Exit::Findings),
    }
}

/// The skill at `path`, or the skills below it.
fn skills_in(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    if path.file_name().is_some_and(|name| name == SKILL_TOML) && path.is_file() {
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
        return Ok(vec![dir.unwrap_or(Path::new(".")).to_owned()]);
    }
    if path.join(SKILL_TOML).exists() {
        return Ok(vec![path.to_owned()]);
    }
    let cannot = |error| {
        Failure::new(
            Exit::Runtime,
            format!("cannot read {}: {error}", path.display()),
        )
    };
    let mut skills = Vec::new();
    for entry in std::fs::read_dir(path).map_err(cannot)? {
        let dir = entry.map_err(cannot)?.path();
        if dir.join(SKILL_TOML).exists() {
            skills.push(dir);
        }
    }
    skills.sort();
    if skills.is_empty() {
        let failure = Failure::new(
            Exit::Usage,
            format!("no {SKILL_TOML} in {} or one level below", path.display()),
        );
        return Err(failure.hint("`skillgate skill new NAME` writes a skill to start from"));
    }
    Ok(skills)
}

fn print(
    dir: &Path,
    outcome: &Result<Skill, Vec<Problem>>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let problems = match outcome {
        Ok(skill) => &skill.warnings,
        Err(problems) => problems,
    };
    for problem in problems {
        // The problem's own text starts with its file: together they are a path that editors and terminals open.
        let place = dir.join("").display().to_string();
        for (i, line) in format!("{problem:#}").lines().enumerate() {
            writeln!(
                out,
                "{}{}",
                if i == 0 { plain(&place) } else { String::new() },
                plain(line)
            )?;
        }
    }
    if let Ok(skill) = outcome {
        let place = plain(&dir.display().to_string());
        writeln!(
            out,
            "{place}: {} {} is fine",
            skill.manifest.name(),
            skill.manifest.version()
        )?;
    }
    Ok(())
}

fn as_json(dir: &Path, outcome: &Result<Skill, Vec<Problem>>) -> Value {
    match outcome {
        Ok(skill) => json!({
            "path": dir, "ok": true, "name": skill.manifest.name(), "version": skill.manifest.version(),
            "tree_sha256": skill.tree_sha256, "problems": skill.warnings,
        }),
        Err(problems) => json!({ "path": dir, "ok": false, "problems": problems }),
    }
}

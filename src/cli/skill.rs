//! `skillgate skill`: the author's tools.

use std::io::Write;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::failure::Failure;
use super::{
    ConfigFile, Exit, Output, OutputFormat, plain, print_json, print_table, skill_new, skill_run,
    skill_validate,
};
use crate::app;

#[derive(Debug, Subcommand)]
pub(super) enum SkillCommand {
    /// Write a small skill that works, to start from
    New(skill_new::NewArgs),
    /// Check skills: file:line:column of everything that is wrong (exit code 1 if anything is)
    Validate(skill_validate::ValidateArgs),
    /// Run a skill of a directory as the gateway would (exit code 1 if the run fails)
    Run(skill_run::RunArgs),
    /// List the skills that the gateway would serve
    List(ListArgs),
}

#[derive(Debug, Args)]
pub(super) struct ListArgs {
    #[command(flatten)]
    file: ConfigFile,
    #[command(flatten)]
    format: OutputFormat,
}

pub(super) fn run(command: &SkillCommand, out: &mut dyn Write) -> Result<Exit, Failure> {
    match command {
        SkillCommand::New(args) => skill_new::run(args, out),
        SkillCommand::Validate(args) => skill_validate::run(args, out),
        SkillCommand::Run(args) => skill_run::run(args, out),
        SkillCommand::List(args) => list(args, out),
    }
}

fn list(args: &ListArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let skills = app::list_skills(&args.file.load_for_command()?)?;
    match args.format.output {
        Output::Json => print_json(out, &json!({ "skills": skills }))?,
        Output::Text => {
            let cell = |skill: &Value, key: &str| plain(skill[key].as_str().unwrap_or_default());
            let mut rows = vec![
                ["NAME", "VERSION", "KIND", "DESCRIPTION"]
                    .map(str::to_owned)
                    .to_vec(),
            ];
            let columns = ["name", "version", "kind", "description"];
            rows.extend(
                skills
                    .iter()
                    .map(|skill| columns.map(|key| cell(skill, key)).to_vec()),
            );
            print_table(out, &rows)?;
        }
    }
    Ok(Exit::Fine)
}

//! `skillgate config`: checks the configuration or shows what is in force.

use std::io::Write;

use clap::{Args, Subcommand};
use serde_json::json;

use super::failure::Failure;
use super::{ConfigFile, Exit, Output, OutputFormat, print_json};
use crate::auth;
use crate::config::{ConfigErrors, DEFAULT_TOML};

#[derive(Debug, Subcommand)]
pub(super) enum ConfigCommand {
    /// Find everything that is wrong with the configuration (exit code 3 if anything is)
    Check(CheckArgs),
    /// Print the configuration in force, secrets masked
    Show(ShowArgs),
}

#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    #[command(flatten)]
    file: ConfigFile,
    #[command(flatten)]
    format: OutputFormat,
}

#[derive(Debug, Args)]
pub(super) struct ShowArgs {
    #[command(flatten)]
    file: ConfigFile,
    /// Say in a comment where each value comes from
    #[arg(long, conflicts_with = "default")]
    origins: bool,
    /// Print the built-in defaults with their documentation instead: a file to start from
    #[arg(long, conflicts_with_all = ["config", "output"])]
    default: bool,
    #[command(flatten)]
    format: OutputFormat,
}

pub(super) fn run(command: &ConfigCommand, out: &mut dyn Write) -> Result<Exit, Failure> {
    match command {
        ConfigCommand::Check(args) => check(args, out),
        ConfigCommand::Show(args) => show(args, out),
    }
}

fn check(args: &CheckArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let outcome = args
        .file
        .load()
        .and_then(|config| auth::check(&config).map(|()| config));
    let file = outcome.as_ref().ok().and_then(|config| config.file.clone());
    match (args.format.output, outcome) {
        (Output::Text, Ok(_)) => {
            match file {
                Some(file) => writeln!(out, "{}: fine", file.display())?,
                None => writeln!(out, "no configuration file: the defaults are fine")?,
            }
            Ok(Exit::Fine)
        }
        (Output::Json, Ok(_)) => {
            print_json(out, &json!({ "ok": true, "file": file, "problems": [] }))?;
            Ok(Exit::Fine)
        }
        (Output::Json, Err(ConfigErrors { problems })) => {
            print_json(out, &json!({ "ok": false, "problems": problems }))?;
            Ok(Exit::Configuration)
        }
        // The problems are what was asked for: data, a line each.
        (Output::Text, Err(errors)) => {
            writeln!(out, "{errors}")?;
            let count = errors.problems.len();
            let problems = if count == 1 { "problem" } else { "problems" };
            Err(Failure::new(
                Exit::Configuration,
                format!("the configuration has {count} {problems}"),
            ))
        }
    }
}

fn show(args: &ShowArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    if args.default {
        write!(out, "{DEFAULT_TOML}")?;
        return Ok(Exit::Fine);
    }
    let config = args.file.load()?;
    match args.format.output {
        Output::Text => write!(out, "{}", config.show(args.origins))?,
        Output::Json => print_json(out, &config.show_json())?,
    }
    Ok(Exit::Fine)
}

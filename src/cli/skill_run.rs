//! `skillgate skill run`

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use serde_json::Value;

use super::failure::Failure;
use super::{ConfigFile, Exit, Output, OutputFormat, plain, print_json};
use crate::app;

#[derive(Debug, Args)]
pub(super) struct RunArgs {
    /// The skill's directory
    dir: PathBuf,
    /// Its arguments: a JSON object
    #[arg(long, value_name = "JSON", default_value = "{}", value_parser = object)]
    args: String,
    /// A file to give to it as a blob; may be repeated
    #[arg(long = "blob", value_name = "FILE")]
    blobs: Vec<PathBuf>,
    /// Milliseconds that it may take [default: runs.default_timeout_ms]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..))]
    timeout_ms: Option<u64>,
    #[command(flatten)]
    file: ConfigFile,
    #[command(flatten)]
    format: OutputFormat,
}

/// The text of a JSON object, as it is.
fn object(text: &str) -> Result<String, String> {
    match serde_json::from_str::<serde_json::Map<String, Value>>(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(format!("not a JSON object: {error}")),
    }
}

pub(super) fn run(args: &RunArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let config = args.file.load_for_command()?;
    let result = app::run_skill_dir(&config, &args.dir, &args.args, &args.blobs, args.timeout_ms)?;
    match args.format.output {
        Output::Json => print_json(out, &result)?,
        Output::Text => print(&result, out)?,
    }
    Ok(if result["status"] == "completed" {
        Exit::Fine
    } else {
        Exit::Findings
    })
}

/// What the run said, then what came of it.
pub(super) fn print(result: &Value, out: &mut dyn Write) -> Result<(), Failure> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let lines = |out: &mut dyn Write, text: &str| {
        text.lines()
            .try_for_each(|line| writeln!(out, "  {}", plain(line)))
    };
    writeln!(
        out,
        "{} {}",
        plain(&text(&result["run_id"])),
        plain(&text(&result["status"]))
    )?;
    if let Some(usage) = result["usage"].as_object() {
        let figures: Vec<String> = usage
            .iter()
            .map(|(name, figure)| format!("{name} {figure}"))
            .collect();
        writeln!(out, "usage: {}", figures.join(", "))?;
    }
    if let Some(summary) = result["summary"].as_str() {
        writeln!(out, "summary: {}", plain(summary))?;
    }
    let logs = text(&result["logs_preview"]);
    if !logs.is_empty() {
        writeln!(out, "logs:")?;
        lines(out, &logs)?;
    }
    for blob in result["output_blobs"].as_array().into_iter().flatten() {
        writeln!(
            out,
            "blob: {}",
            plain(
                &blob
                    .as_str()
                    .map_or_else(|| blob.to_string(), str::to_owned)
            )
        )?;
    }
    if let Some(error) = result["error"].as_object() {
        writeln!(out, "error: {}", plain(&text(&error["type"])))?;
        lines(out, &text(error.get("message").unwrap_or(&Value::Null)))?;
    }
    match &result["output"] {
        Value::Null => {}
        output => {
            writeln!(out, "output:")?;
            print_json(out, output)?;
        }
    }
    Ok(())
}

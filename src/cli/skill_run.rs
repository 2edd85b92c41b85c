//! `skillgate skill run`

use std::convert::Infallible;
use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use skillgate_plugin_host::visible_json;

use super::failure::Failure;
use super::{ConfigFile, Exit, Output, OutputFormat, plain};
use crate::app::{self, FileBlob};
use crate::json;

#[derive(Debug, Args)]
pub(super) struct RunArgs {
    /// The skill's directory
    dir: PathBuf,
    /// Its arguments: a JSON object
    #[arg(long, value_name = "JSON", default_value = "{}", value_parser = object)]
    args: String,
    /// A file to give to it as a blob, and the argument that is to hold the blob's id; may be repeated
    #[arg(long = "blob", value_name = "[ARGUMENT=]FILE", value_parser = blob)]
    blobs: Vec<FileBlob>,
    /// Milliseconds that it may take [default: runs.default_timeout_ms]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..))]
    timeout_ms: Option<u64>,
    #[command(flatten)]
    file: ConfigFile,
    #[command(flatten)]
    format: OutputFormat,
}

/// The text of a JSON object that everybody reads alike, as it is: what the gateway refuses is refused here too.
fn object(text: &str) -> Result<String, String> {
    if let Err(error) = serde_json::from_str::<serde_json::Map<String, Value>>(text) {
        return Err(format!("not a JSON object: {error}"));
    }
    json::walk(text).map_err(json::Refused::why)?;
    Ok(text.to_owned())
}

/// What has a `/` before its first `=` is a path.
fn blob(text: &str) -> Result<FileBlob, Infallible> {
    let named = text.split_once('=').filter(|(name, _)| !name.contains('/'));
    Ok(FileBlob {
        argument: named.map(|(name, _)| name.to_owned()),
        file: named.map_or(text, |(_, file)| file).into(),
    })
}

/// The arguments that `--args` and `--blob` both say, or two of `--blob`.
fn said_twice(args: &RunArgs) -> Result<(), Failure> {
    let mut said: serde_json::Map<String, Value> =
        serde_json::from_str(&args.args).map_err(std::io::Error::from)?;
    for name in args.blobs.iter().filter_map(|blob| blob.argument.clone()) {
        if said.insert(name.clone(), Value::Null).is_some() {
            let failure = Failure::new(Exit::Usage, format!("the argument {name} is given twice"));
            return Err(failure.hint("say it in --args or in one --blob"));
        }
    }
    Ok(())
}

pub(super) fn run(args: &RunArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    said_twice(args)?;
    let config = args.file.load_for_command()?;
    let result = app::run_skill_dir(&config, &args.dir, &args.args, &args.blobs, args.timeout_ms)?;
    match args.format.output {
        Output::Json => print_whole(&result, out)?,
        Output::Text => print(&result, out)?,
    }
    Ok(if read::<Value>(&result)?["status"] == "completed" {
        Exit::Fine
    } else {
        Exit::Findings
    })
}

fn read<'a, T: Deserialize<'a>>(result: &'a RawValue) -> Result<T, Failure> {
    Ok(serde_json::from_str(result.get()).map_err(std::io::Error::from)?)
}

/// What the run returned, as it is written.
#[derive(Deserialize)]
struct Returned<'a> {
    #[serde(borrow)]
    output: Option<&'a RawValue>,
}

/// A document as it is written, a line for each value.
pub(super) fn print_whole(document: &RawValue, out: &mut dyn Write) -> Result<(), Failure> {
    let text = json::indented(document.get());
    Ok(writeln!(out, "{}", visible_json(&text))?)
}

/// What the run said, then what came of it.
pub(super) fn print(result: &RawValue, out: &mut dyn Write) -> Result<(), Failure> {
    let Returned { output } = read(result)?;
    let result: Value = read(result)?;
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
    if let Some(output) = output {
        writeln!(out, "output:")?;
        print_whole(output, out)?;
    }
    Ok(())
}

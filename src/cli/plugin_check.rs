//! `skillgate plugin check`: the conformance kit on one plugin. Its cases are children of this program.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, ValueEnum};
use skillgate_plugin_check::{Isolation, KitError, Report, Settings, check, run_case};

use super::ended::Ended;
use super::failure::Failure;
use super::{Exit, Output, OutputFormat};
use crate::app::PLUGIN_HOST;

/// What a case's process is started with, before the path of its orders.
pub(super) const PLUGIN_CASE: &str = "plugin-check-case";

#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// The plugin's file
    path: PathBuf,
    /// The plugin's own section of the configuration, as a JSON file; ${scratch} in it becomes an empty directory [default: {}]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Also write the report to this file, as JSON (.json) or JUnit (.xml)
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Where the gateway would load it
    #[arg(long, value_enum, value_name = "WHERE", default_value_t)]
    isolation: Where,
    /// Also what takes minutes and gigabytes
    #[arg(long)]
    full: bool,
    /// Only cases whose name begins so, like storage or contract/older-host
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Leave out cases whose name begins so; the report says it
    #[arg(long, value_name = "NAME")]
    skip: Vec<String>,
    #[command(flatten)]
    format: OutputFormat,
}

/// Where the calls go that are made as the gateway makes them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Where {
    /// In the process that calls
    #[default]
    Gateway,
    /// In a process of its own
    Process,
}

/// A case's process: started by the kit.
#[derive(Debug, Args)]
pub(super) struct CaseArgs {
    /// Its orders
    job: PathBuf,
}

#[derive(Debug, Clone, Copy)]
enum Form {
    Json,
    Junit,
}

pub(super) fn run(args: &CheckArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let form = args.report.as_deref().map(form).transpose()?;
    let mut settings = Settings::new(&args.path, &[PLUGIN_CASE], &[PLUGIN_HOST]);
    if let Some(path) = &args.config {
        settings.config_json = std::fs::read_to_string(path).map_err(|error| {
            let why = format!("{} cannot be read: {error}", path.display());
            Failure::new(Exit::Configuration, why)
        })?;
    }
    settings.isolation = match args.isolation {
        Where::Gateway => Isolation::Gateway,
        Where::Process => Isolation::Process,
    };
    settings.full = args.full;
    settings.only.clone_from(&args.only);
    settings.skip.clone_from(&args.skip);
    let ended = Ended::by_signals().map_err(|error| {
        let why =
            format!("cannot wait for signals: {error}; it needs memory, a thread and descriptors");
        Failure::new(Exit::Runtime, why)
    })?;
    settings.stop = Some(Arc::clone(&ended.pipe));
    let is_text = matches!(args.format.output, Output::Text);
    // A row as soon as its case has ended: the whole takes a while.
    let checked = check(&settings, |case| {
        if is_text {
            case.write_row(out)?;
            out.flush()?;
        }
        Ok(())
    });
    let report = checked.map_err(|error| match ended.exit() {
        Some(exit) if matches!(error, KitError::Stopped) => Failure::new(exit, error.to_string()),
        _ => error.into(),
    })?;
    match args.format.output {
        Output::Text => report.write_sum(out)?,
        Output::Json => report.write_json(out)?,
    }
    if let (Some(path), Some(form)) = (&args.report, form) {
        write(&report, path, form).map_err(|error| {
            let why = format!("the report {} cannot be written: {error}", path.display());
            Failure::new(Exit::Runtime, why)
        })?;
    }
    Ok(if report.is_good() {
        Exit::Fine
    } else {
        Exit::Findings
    })
}

/// Runs one case, in a process that may not survive it.
pub(super) fn run_one(args: &CaseArgs) -> Result<Exit, Failure> {
    run_case(&args.job)?;
    Ok(Exit::Fine)
}

/// By the file's ending.
fn form(path: &Path) -> Result<Form, Failure> {
    match path.extension().and_then(|ending| ending.to_str()) {
        Some("json") => Ok(Form::Json),
        Some("xml") => Ok(Form::Junit),
        _ => Err(Failure::new(
            Exit::Usage,
            format!(
                "--report {}: its ending says no form of report",
                path.display()
            ),
        )
        .hint("name it .json, or .xml for JUnit")),
    }
}

fn write(report: &Report, path: &Path, form: Form) -> std::io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    match form {
        Form::Json => report.write_json(&mut file)?,
        Form::Junit => report.write_junit(&mut file)?,
    }
    file.flush()
}

impl From<KitError> for Failure {
    fn from(error: KitError) -> Self {
        match error {
            KitError::Report(error) => error.into(),
            KitError::Configuration(_) => Failure::new(Exit::Configuration, error.to_string()),
            KitError::NoSuchCase(_) => Failure::new(Exit::Usage, error.to_string())
                .hint("`skillgate plugin check FILE` shows the names of all"),
            _ => Failure::new(Exit::Runtime, error.to_string()),
        }
    }
}

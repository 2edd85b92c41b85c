//! `skillgate audit`: reads the audit log.

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::failure::Failure;
use super::{ConfigFile, Exit, Output, OutputFormat, plain, print_json};
use crate::audit::{Report, verify};

#[derive(Debug, Subcommand)]
pub(super) enum AuditCommand {
    /// Check the hash chain of the audit log and say where it breaks (exit code 1 if it does)
    Verify(VerifyArgs),
}

#[derive(Debug, Args)]
pub(super) struct VerifyArgs {
    /// The log's file, with the full ones of the same log before it; or a directory of logs [default: audit.path]
    file: Option<PathBuf>,
    #[command(flatten)]
    config: ConfigFile,
    #[command(flatten)]
    format: OutputFormat,
}

pub(super) fn run(command: &AuditCommand, out: &mut dyn Write) -> Result<Exit, Failure> {
    let AuditCommand::Verify(args) = command;
    let path = match &args.file {
        Some(file) => file.clone(),
        None => args.config.load()?.audit.path,
    };
    let report = verify(&path)
        .map_err(|error| Failure::new(Exit::Runtime, format!("{}: {error}", path.display())))?;
    match args.format.output {
        Output::Text => print(&report, out)?,
        Output::Json => print_json(out, &report)?,
    }
    Ok(if report.ok {
        Exit::Fine
    } else {
        Exit::Findings
    })
}

fn print(report: &Report, out: &mut dyn Write) -> Result<(), Failure> {
    for file in &report.files {
        let path = plain(&file.path.display().to_string());
        match file.records {
            0 => writeln!(out, "{path}: no records")?,
            count => writeln!(
                out,
                "{path}: {count} records, {} to {}, the last hash is {}",
                file.first_sequence, file.last_sequence, file.last_hash
            )?,
        }
    }
    for note in &report.notes {
        writeln!(out, "note: {}", plain(note))?;
    }
    for found in &report.breaks {
        let path = plain(&found.file.display().to_string());
        writeln!(out, "{path}:{}: {}", found.line, found.message)?;
    }
    let more = report.break_count - report.breaks.len();
    match report.break_count {
        0 => writeln!(out, "the chain holds")?,
        count if more > 0 => {
            writeln!(
                out,
                "the chain breaks at {count} places, {more} of them not listed"
            )?;
        }
        count => writeln!(out, "the chain breaks at {count} place(s)")?,
    }
    Ok(())
}

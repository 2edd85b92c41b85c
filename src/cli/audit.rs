//! `skillgate audit`: reads the audit log.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use super::failure::Failure;
use super::{ConfigFile, Exit, Output, OutputFormat, plain, print_json};
use crate::audit::{Report, verify, verify_in_order};

#[derive(Debug, Subcommand)]
pub(super) enum AuditCommand {
    /// Check the hash chain of the audit log and say where it breaks (exit code 1 if it does)
    Verify(VerifyArgs),
}

#[derive(Debug, Args)]
pub(super) struct VerifyArgs {
    /// The log's file, with the full ones of the same log before it; or a directory of logs; or several files, as one log in
    /// this order [default: audit.path]
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    config: ConfigFile,
    #[command(flatten)]
    format: OutputFormat,
}

pub(super) fn run(command: &AuditCommand, out: &mut dyn Write) -> Result<Exit, Failure> {
    let AuditCommand::Verify(args) = command;
    let of_one = |path: &Path| {
        let cannot = |error| Failure::new(Exit::Runtime, format!("{}: {error}", path.display()));
        verify(path).map_err(cannot)
    };
    let report = match args.files.as_slice() {
        [] => of_one(&args.config.load()?.audit.path)?,
        [one] => of_one(one)?,
        all => {
            verify_in_order(all).map_err(|error| Failure::new(Exit::Runtime, error.to_string()))?
        }
    };
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

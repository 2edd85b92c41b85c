//! `skillgate plugin`: what a plugin's author needs (a start, a check in processes of their own), and what an operator wants to
//! know of a plugin's file without running any of it.

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use skillgate_plugin_host::{Inspection, Refusal, inspect};

use super::failure::Failure;
use super::{Exit, Output, OutputFormat, plain, plugin_check, plugin_new, print_json, print_table};

#[derive(Debug, Subcommand)]
pub(super) enum PluginCommand {
    /// Write a small plugin that builds and runs, to start from
    New(plugin_new::NewArgs),
    /// Say what a plugin file is and whether it would be loaded, without executing it (exit code 1 if it would not)
    Inspect(InspectArgs),
    /// Check that a plugin keeps to the contract and does what it says (exit code 1 if it does not)
    Check(plugin_check::CheckArgs),
}

#[derive(Debug, Args)]
pub(super) struct InspectArgs {
    /// The plugin's file
    path: PathBuf,
    #[command(flatten)]
    format: OutputFormat,
}

pub(super) fn run(command: &PluginCommand, out: &mut dyn Write) -> Result<Exit, Failure> {
    match command {
        PluginCommand::New(args) => plugin_new::run(args, out),
        PluginCommand::Inspect(args) => look(args, out),
        PluginCommand::Check(args) => plugin_check::run(args, out),
    }
}

fn look(args: &InspectArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let found = inspect(&args.path).map_err(|error| {
        let exit = match error.why {
            Refusal::Unreadable(_) => Exit::Runtime,
            _ => Exit::Findings,
        };
        Failure::new(exit, error.to_string())
    })?;
    match args.format.output {
        Output::Text => print(&found, out)?,
        Output::Json => print_json(out, &found)?,
    }
    Ok(if found.refusals.is_empty() {
        Exit::Fine
    } else {
        Exit::Findings
    })
}

fn print(found: &Inspection, out: &mut dyn Write) -> Result<(), Failure> {
    let yes = |flag: bool| if flag { "yes" } else { "no" }.to_owned();
    let list = |items: &[String]| {
        if items.is_empty() {
            "-".to_owned()
        } else {
            items.join(", ")
        }
    };
    let note = found.note.as_ref().map_or_else(
        || "none".to_owned(),
        |note| {
            let (major, minor, least) = (note.abi_major, note.abi_minor, note.min_host_minor);
            format!(
                "{}, contract {major}.{minor}, needs a host of {major}.{least} or newer",
                note.id
            )
        },
    );
    let search = [&found.rpath, &found.runpath]
        .into_iter()
        .flatten()
        .cloned()
        .collect::<Vec<_>>();
    let rows = [
        ("file", found.path.display().to_string()),
        ("size", format!("{} bytes", found.size_bytes)),
        ("sha256", found.sha256.clone()),
        ("made for", format!("{} {}", found.class, found.machine)),
        ("note", note),
        ("entry symbol", yes(found.entry)),
        ("needs", list(&found.needed)),
        ("search path", list(&search)),
        ("executable stack", yes(found.executable_stack)),
        ("text relocations", yes(found.text_relocations)),
        ("static TLS", yes(found.static_tls)),
        (
            "own process",
            found.own_process.map_or_else(
                || "as configured".to_owned(),
                |why| format!("always: {why}"),
            ),
        ),
    ];
    let rows: Vec<_> = rows
        .into_iter()
        .map(|(name, value)| vec![name.to_owned(), plain(&value)])
        .collect();
    print_table(out, &rows)?;
    found
        .warnings
        .iter()
        .try_for_each(|text| writeln!(out, "warning: {}", plain(text)))?;
    found
        .refusals
        .iter()
        .try_for_each(|text| writeln!(out, "refused: {}", plain(text)))?;
    if found.refusals.is_empty() {
        writeln!(out, "this host would load it")?;
    }
    Ok(())
}

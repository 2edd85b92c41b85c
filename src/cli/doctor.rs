//! `skillgate doctor`: what this host can and cannot enforce, and what to do about it.

use std::io::Write;

use clap::Args;
use serde_json::Value;

use super::failure::Failure;
use super::{ConfigFile, Exit, Output, OutputFormat, plain, print_json, print_table};
use crate::app::{self, DoctorReport};

#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    #[command(flatten)]
    file: ConfigFile,
    #[command(flatten)]
    format: OutputFormat,
}

pub(super) fn run(args: &DoctorArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let report = app::doctor(&args.file.load_for_command()?)?;
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

pub(super) fn print(report: &DoctorReport, out: &mut dyn Write) -> Result<(), Failure> {
    let cell = |of: &Value, key: &str| match &of[key] {
        Value::String(text) => plain(text),
        Value::Null => String::new(),
        other => plain(&other.to_string()),
    };
    let mut rows = vec![["LAYER", "STATE", "DETAIL"].map(str::to_owned).to_vec()];
    rows.extend(report.layers.iter().map(|layer| {
        ["layer", "state", "detail"]
            .map(|key| cell(layer, key))
            .to_vec()
    }));
    if !report.layers.is_empty() {
        print_table(out, &rows)?;
        writeln!(out)?;
    }
    let mut rows = vec![
        ["PLUGIN", "ROLE", "VERSION", "STATE", "MESSAGE"]
            .map(str::to_owned)
            .to_vec(),
    ];
    let columns = ["id", "role", "version", "state", "message"];
    rows.extend(
        report
            .plugins
            .iter()
            .map(|plugin| columns.map(|key| cell(plugin, key)).to_vec()),
    );
    print_table(out, &rows)?;
    let advice: Vec<_> = report
        .layers
        .iter()
        .filter(|layer| !cell(layer, "advice").is_empty())
        .collect();
    if !advice.is_empty() {
        writeln!(out, "\nwhat to do:")?;
        for layer in advice {
            writeln!(out, "  {}: {}", cell(layer, "layer"), cell(layer, "advice"))?;
        }
    }
    let verdict = if report.ok {
        "the gateway would start on this host"
    } else {
        "the gateway would refuse to start on this host"
    };
    Ok(writeln!(out, "\n{verdict}")?)
}

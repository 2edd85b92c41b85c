//! `skillgate version`

use std::io::Write;

use clap::Args;
use serde_json::json;
use skillgate_plugin_sdk::abi;

use super::failure::Failure;
use super::{Exit, Output, OutputFormat, print_json};

#[derive(Debug, Args)]
pub(super) struct VersionArgs {
    #[command(flatten)]
    format: OutputFormat,
}

pub(super) fn run(args: &VersionArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let version = env!("CARGO_PKG_VERSION");
    let contract = format!("{}.{}", abi::ABI_MAJOR, abi::ABI_MINOR);
    match args.format.output {
        Output::Text => writeln!(
            out,
            "skillgate {version} (Skills Protocol 0.1, plugin contract {contract})"
        )?,
        Output::Json => {
            print_json(
                out,
                &json!({ "version": version, "skills_protocol": "0.1", "plugin_contract": contract }),
            )?;
        }
    }
    Ok(Exit::Fine)
}

//! `skillgate completions SHELL`

use std::io::Write;

use clap::{Args, CommandFactory as _};
use clap_complete::{Shell, generate};

use super::failure::Failure;
use super::{Cli, Exit};

#[derive(Debug, Args)]
pub(super) struct CompletionsArgs {
    /// Which shell
    shell: Shell,
}

pub(super) fn run(args: &CompletionsArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    // `generate` panics where it cannot write; memory always takes it.
    let mut script = Vec::new();
    generate(args.shell, &mut Cli::command(), "skillgate", &mut script);
    out.write_all(&script)?;
    Ok(Exit::Fine)
}

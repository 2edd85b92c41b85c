//! `skillgate policy`: for those who write the rules.

use std::io::Write;

use clap::Subcommand;

use super::Exit;
use super::failure::Failure;

#[derive(Debug, Subcommand)]
pub(super) enum PolicyCommand {
    /// Try a bundle from standard input; for the gateway itself
    #[command(hide = true)]
    Trial,
}

pub(super) fn run(command: &PolicyCommand, out: &mut dyn Write) -> Result<Exit, Failure> {
    match command {
        PolicyCommand::Trial => {
            crate::policy::child::serve(out)?;
            Ok(Exit::Fine)
        }
    }
}

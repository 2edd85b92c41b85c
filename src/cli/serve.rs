//! `skillgate serve`: runs the gateway.

use clap::Args;

use super::failure::Failure;
use super::{ConfigFile, Exit};
use crate::app;
use crate::config::{Config, Flags, Sources};

#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    #[command(flatten)]
    file: ConfigFile,
    /// Address and port of the public listener, instead of server.listen
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Listen on a non-loopback address although nobody is asked who they are: everybody who reaches it is the administrator
    #[arg(long)]
    insecure_no_auth: bool,
}

pub(super) fn run(args: &ServeArgs) -> Result<Exit, Failure> {
    let flags = Flags {
        config: args.file.config.clone(),
        listen: args.listen.clone(),
        insecure_no_auth: args.insecure_no_auth,
    };
    let sources = Sources::of_process();
    let read = move || Config::load(&sources, &flags);
    // It prints its addresses itself, as soon as they answer.
    app::serve(Box::new(read))?;
    Ok(Exit::Fine)
}

//! The command line: arguments → one command each, one file each in `cli/`.
//!
//! stdout is data, stderr is everything else. What goes wrong is one line `error: ...` and what to do about it in
//! `hint: ...` lines. Exit codes: see [`Exit`].

mod audit;
mod completions;
mod config;
mod control_group;
mod doctor;
mod ended;
mod failure;
mod init;
mod new_files;
mod plugin;
mod plugin_check;
mod plugin_new;
mod policy;
mod policy_log;
mod reader;
mod serve;
mod skill;
mod skill_dir;
mod skill_new;
mod skill_run;
mod skill_validate;
#[cfg(test)]
mod tests;
mod token;
mod version;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};
use skillgate_plugin_host::visible_json;
use skillgate_skill::text::is_deceptive;

use crate::app::{PLUGIN_HOST, allow_all_files, leave_no_dump};
use crate::config::{Config, ConfigErrors, Flags, Sources};
use crate::telemetry;
use failure::Failure;
use reader::Reader;

/// How a command ends (contract, section 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Exit {
    /// Nothing to complain about.
    Fine = 0,
    /// It did what it was asked for, and found something wrong.
    Findings = 1,
    /// The command line makes no sense.
    Usage = 2,
    /// The configuration makes no sense.
    Configuration = 3,
    /// Anything else went wrong.
    Runtime = 4,
    /// SIGHUP came, as a shell says it.
    HungUp = 129,
    /// SIGINT came.
    Interrupted = 130,
    /// SIGTERM came.
    Terminated = 143,
}

impl Exit {
    /// Of [`crate::app::EndSignals::next`].
    fn by_signal(exit_code: u8) -> Exit {
        match exit_code {
            129 => Exit::HungUp,
            130 => Exit::Interrupted,
            _ => Exit::Terminated,
        }
    }
}

/// A gateway that runs skills for agents: in real isolation, under your policy
#[derive(Debug, Parser)]
#[command(
    name = "skillgate",
    version,
    args_conflicts_with_subcommands = true,
    disable_help_subcommand = true
)]
#[command(
    after_help = "Without a command: serve. Exit codes: 0 fine, 1 findings, 2 usage, 3 configuration, 4 runtime."
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: serve::ServeArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the gateway
    Serve(serve::ServeArgs),
    /// Check or show the configuration
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Write, check, run and list skills
    #[command(subcommand)]
    Skill(skill::SkillCommand),
    /// Check, test and explain policies
    #[command(subcommand)]
    Policy(policy::PolicyCommand),
    /// Write plugins, look at them and check them
    #[command(subcommand)]
    Plugin(plugin::PluginCommand),
    /// The process of a plugin: started by the gateway
    #[command(hide = true, name = PLUGIN_HOST)]
    PluginHost,
    /// The process of a case: started by the kit
    #[command(hide = true, name = plugin_check::PLUGIN_CASE)]
    PluginCase(plugin_check::CaseArgs),
    /// Read the audit log
    #[command(subcommand)]
    Audit(audit::AuditCommand),
    /// Make keys and tokens for development
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// Say what this host can and cannot enforce, layer by layer
    Doctor(doctor::DoctorArgs),
    /// Print the version
    Version(version::VersionArgs),
    /// Print completions for a shell
    Completions(completions::CompletionsArgs),
}

/// Which configuration file.
#[derive(Debug, Clone, Default, Args)]
struct ConfigFile {
    /// Configuration file [default: $SKILLGATE_CONFIG, ./skillgate.toml, /etc/skillgate/skillgate.toml]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl ConfigFile {
    /// The configuration for a command that does not listen: what serves with a flag is no mistake to it.
    fn load(&self) -> Result<Config, ConfigErrors> {
        self.load_to_serve(true)
    }

    /// The configuration as `serve` reads it, with or without `--insecure-no-auth`.
    fn load_to_serve(&self, insecure_no_auth: bool) -> Result<Config, ConfigErrors> {
        let flags = Flags {
            config: self.config.clone(),
            insecure_no_auth,
            ..Flags::default()
        };
        Config::load(&Sources::of_process(), &flags)
    }

    /// The same for a command that does one thing and ends: it logs what is wrong, not its steps, unless the operator
    /// has written a filter.
    fn load_for_command(&self) -> Result<Config, ConfigErrors> {
        let mut config = self.load()?;
        if config.is_default("log.filter") {
            "warn".clone_into(&mut config.log.filter);
        }
        Ok(config)
    }
}

/// How data is printed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people
    #[default]
    Text,
    /// One JSON document
    Json,
}

/// How data is printed, as an option.
#[derive(Debug, Clone, Copy, Default, Args)]
struct OutputFormat {
    /// How to print the data
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    output: Output,
}

/// The whole program.
#[must_use]
pub fn main() -> ExitCode {
    // First of all: a plugin goes by what it finds.
    leave_no_dump();
    allow_all_files();
    let mut out = io::BufWriter::new(io::stdout());
    let exit = run(std::env::args_os(), &mut out, &mut io::stderr());
    ExitCode::from(exit as u8)
}

/// Runs one command line; data goes to `out`, the rest to `err`.
fn run(args: impl IntoIterator<Item = OsString>, out: &mut dyn Write, err: &mut dyn Write) -> Exit {
    let out = &mut Reader::of(out);
    let outcome = match Cli::try_parse_from(args) {
        Ok(cli) => execute(cli, out).and_then(|exit| Ok(out.flush().map(|()| exit)?)),
        Err(error) => {
            // Help and version are answers, the rest is usage; clap says both well.
            let text = error.render();
            let (written, exit) = if error.use_stderr() {
                (write!(err, "{text}"), Exit::Usage)
            } else {
                (write!(out, "{text}"), Exit::Fine)
            };
            written
                .and_then(|()| out.flush())
                .map(|()| exit)
                .map_err(Failure::from)
        }
    };
    // What was logged comes before what went wrong, and before the end.
    telemetry::flush();
    let failure = match outcome {
        Ok(exit) => return exit,
        Err(failure) => failure,
    };
    // Data that was already there is not lost. Nothing is left to tell anybody if one of these two writes fails.
    let _ = out.flush();
    let _ = write!(err, "{failure}");
    failure.exit()
}

fn execute(cli: Cli, out: &mut dyn Write) -> Result<Exit, Failure> {
    if has_runs(cli.command.as_ref()) {
        // Without that room the sandbox says what it lacks.
        let _ = control_group::make_room();
    }
    match cli.command {
        // The gateway that it starts is not process 1.
        None | Some(Command::Serve(_)) if init::is_first() => init::attend(),
        None => serve::run(&cli.serve),
        Some(Command::Serve(args)) => serve::run(&args),
        Some(Command::Config(command)) => config::run(&command, out),
        Some(Command::Skill(command)) => skill::run(&command, out),
        Some(Command::Policy(command)) => policy::run(&command, out),
        Some(Command::Plugin(command)) => plugin::run(&command, out),
        Some(Command::PluginHost) => {
            let Err(why) = skillgate_plugin_host::serve_plugin();
            Err(Failure::new(Exit::Runtime, why))
        }
        Some(Command::PluginCase(args)) => plugin_check::run_one(&args),
        Some(Command::Audit(command)) => audit::run(&command, out),
        Some(Command::Token(command)) => token::run(&command, out),
        Some(Command::Doctor(args)) => doctor::run(&args, out),
        Some(Command::Version(args)) => version::run(&args, out),
        Some(Command::Completions(args)) => completions::run(&args, out),
    }
}

/// Whether a sandbox comes to work.
fn has_runs(command: Option<&Command>) -> bool {
    use plugin::PluginCommand::Check;
    use skill::SkillCommand::Run;
    matches!(
        command,
        None | Some(
            Command::Serve(_)
                | Command::Doctor(_)
                | Command::Skill(Run(_))
                | Command::Plugin(Check(_))
        )
    )
}

/// Prints a JSON document and a line end. Its strings are others', and it may be for a terminal all the same.
fn print_json(out: &mut dyn Write, value: &impl serde::Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(io::Error::from)?;
    Ok(writeln!(out, "{}", visible_json(&text))?)
}

/// A cell of what is printed for people: of names and descriptions from elsewhere nothing must reach the terminal that it obeys,
/// or that deceives who reads it. Joiners and variation selectors stay, which prose needs.
fn plain(text: &str) -> String {
    text.chars()
        .flat_map(|c| {
            if c != '\t' && is_deceptive(c) {
                c.escape_unicode().collect()
            } else {
                vec![c]
            }
        })
        .collect()
}

/// Rows in columns as wide as their widest cell; the last one runs free.
fn print_table(out: &mut dyn Write, rows: &[Vec<String>]) -> io::Result<()> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
    };
    let widths: Vec<usize> = (0..columns)
        .map(|column| width(column).unwrap_or(0))
        .collect();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(&format!("{cell:<width$}  "));
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

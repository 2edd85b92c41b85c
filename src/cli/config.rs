//! `skillgate config`: checks the configuration or shows what is in force.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use clap::{Args, Subcommand};
use serde_json::json;

use super::failure::Failure;
use super::{ConfigFile, Exit, Output, OutputFormat, plain, print_json};
use crate::app;
use crate::auth;
use crate::config::{self, Config, ConfigErrors, DEFAULT_TOML, PluginSource, PolicyMode, Problem};
use crate::secrets::Secrets;

#[derive(Debug, Subcommand)]
pub(super) enum ConfigCommand {
    /// Find everything that is wrong with the configuration (exit code 3 if anything is)
    Check(CheckArgs),
    /// Print the configuration in force, secrets masked
    Show(ShowArgs),
}

#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    #[command(flatten)]
    file: ConfigFile,
    /// Check it as `serve --insecure-no-auth` reads it: a non-loopback address is taken although nobody is asked who they are
    #[arg(long)]
    insecure_no_auth: bool,
    #[command(flatten)]
    format: OutputFormat,
}

#[derive(Debug, Args)]
pub(super) struct ShowArgs {
    #[command(flatten)]
    file: ConfigFile,
    /// Say in a comment where each value comes from
    #[arg(long, conflicts_with = "default")]
    origins: bool,
    /// Print the built-in defaults with their documentation instead: a file to start from
    #[arg(long, conflicts_with_all = ["config", "output"])]
    default: bool,
    #[command(flatten)]
    format: OutputFormat,
}

pub(super) fn run(command: &ConfigCommand, out: &mut dyn Write) -> Result<Exit, Failure> {
    match command {
        ConfigCommand::Check(args) => check(args, out),
        ConfigCommand::Show(args) => show(args, out),
    }
}

fn check(args: &CheckArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let loaded = args.file.load_to_serve(args.insecure_no_auth);
    let outcome = loaded.and_then(|config| {
        let mut problems = auth::check(&config).map_or_else(|errors| errors.problems, |()| vec![]);
        problems.extend(unreadable(&config));
        problems.extend(bad_secrets(&config));
        problems.extend(app::section_problems(&config));
        match problems.is_empty() {
            true => Ok(config),
            false => Err(ConfigErrors { problems }),
        }
    });
    let file = outcome.as_ref().ok().and_then(|config| config.file.clone());
    match (args.format.output, outcome) {
        (Output::Text, Ok(_)) => {
            match file {
                Some(file) => writeln!(out, "{}: fine", plain(&file.display().to_string()))?,
                None => writeln!(out, "no configuration file: the defaults are fine")?,
            }
            Ok(Exit::Fine)
        }
        (Output::Json, Ok(_)) => {
            print_json(out, &json!({ "ok": true, "file": file, "problems": [] }))?;
            Ok(Exit::Fine)
        }
        (Output::Json, Err(ConfigErrors { problems })) => {
            print_json(out, &json!({ "ok": false, "problems": problems }))?;
            Ok(Exit::Configuration)
        }
        // The problems are what was asked for: data, a line each.
        (Output::Text, Err(errors)) => {
            for problem in &errors.problems {
                writeln!(out, "{}", plain(&problem.to_string()))?;
            }
            let count = errors.problems.len();
            let problems = if count == 1 { "problem" } else { "problems" };
            Err(Failure::new(
                Exit::Configuration,
                format!("the configuration has {count} {problems}"),
            ))
        }
    }
}

/// Of the files and directories that the gateway only reads, those that it could not. What it makes itself, such as the store
/// and the log, need not be there yet; what is there where the log is to be must be one.
fn unreadable(config: &Config) -> Vec<Problem> {
    let mut named: Vec<(String, &Path, Kind)> = Vec::new();
    if !config.is_default("skills.paths") {
        let paths = config.skills.paths.iter().enumerate();
        named.extend(paths.map(|(at, path)| {
            (
                format!("skills.paths[{at}]"),
                path.as_path(),
                Kind::Directory,
            )
        }));
    }
    if config.policy.mode != PolicyMode::Off {
        named.push(("policy.path".into(), &config.policy.path, Kind::Either));
        let keys = config.policy.keys.iter().enumerate();
        named.extend(keys.map(|(at, key)| {
            (
                format!("policy.keys[{at}].file"),
                key.file.as_path(),
                Kind::File,
            )
        }));
    }
    if let config::Secrets::Dir(dir) = &config.secrets {
        named.push(("secrets.dir".into(), dir, Kind::Directory));
    }
    let plugins = &config.plugins;
    for (role, plugin) in [("storage", &plugins.storage), ("sandbox", &plugins.sandbox)] {
        if let PluginSource::Path(path) = &plugin.source {
            named.push((format!("plugins.{role}.path"), path, Kind::File));
        }
    }
    let unread = named.into_iter().filter_map(|(key, path, kind)| {
        let error = read(path, kind).err()?;
        Some(config.wrong(&key, format!("cannot read {}: {error}", path.display())))
    });
    let log = config.audit.path.as_path();
    let unwritten = fs::metadata(log).is_ok_and(|found| !found.is_file());
    let unwritten = unwritten.then(|| {
        let why = format!("cannot write {}: it is no file", log.display());
        config.wrong("audit.path", why)
    });
    unread
        .chain(unwritten)
        .flat_map(|errors| errors.problems)
        .collect()
}

/// What the gateway does not take as a secret at its start, by variable or file.
fn bad_secrets(config: &Config) -> Vec<Problem> {
    let key = match &config.secrets {
        // That it cannot be read is said with the others.
        config::Secrets::Dir(dir) if read(dir, Kind::Directory).is_err() => return Vec::new(),
        config::Secrets::Dir(_) => "secrets.dir",
        config::Secrets::Env => "secrets.provider",
    };
    let refused = Secrets::prepare(config).err();
    let problems = refused.into_iter().flat_map(|refused| refused.problems);
    problems
        .flat_map(|why| {
            let why = why.strip_prefix("secrets.dir: ").unwrap_or(&why);
            config.wrong(key, why.to_owned()).problems
        })
        .collect()
}

/// What the gateway takes at a path.
#[derive(Debug, Clone, Copy)]
enum Kind {
    File,
    Directory,
    Either,
}

fn read(path: &Path, kind: Kind) -> io::Result<()> {
    let found = fs::metadata(path)?;
    match kind {
        Kind::Directory | Kind::Either if found.is_dir() => fs::read_dir(path).map(drop),
        Kind::File | Kind::Either if found.is_file() => fs::File::open(path).map(drop),
        Kind::Directory => Err(io::Error::other("it is no directory")),
        Kind::File => Err(io::Error::other("it is no file")),
        // To open a pipe would wait for who writes into it.
        Kind::Either => Err(io::Error::other("it is no file and no directory")),
    }
}

fn show(args: &ShowArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    if args.default {
        write!(out, "{DEFAULT_TOML}")?;
        return Ok(Exit::Fine);
    }
    let config = args.file.load()?;
    match args.format.output {
        Output::Text => write!(out, "{}", config.show(args.origins))?,
        Output::Json => print_json(out, &config.show_json())?,
    }
    Ok(Exit::Fine)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::super::run;
    use super::*;

    /// Each of these keeps the gateway from starting.
    #[test]
    fn a_file_is_wanted_where_a_file_is_read_and_a_directory_where_that_is() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("gate.toml");
        let (a_file, a_dir) = (file.to_str().unwrap(), dir.path().to_str().unwrap());
        let config = format!(
            "[skills]\npaths = [{a_dir:?}, {a_file:?}]\n\
             [[policy.keys]]\nid = \"team\"\nalgorithm = \"ES256\"\nfile = {a_dir:?}\n\
             [secrets]\nprovider = \"dir\"\ndir = {a_file:?}\n\
             [plugins.storage]\npath = {a_dir:?}\nallow_unsigned = true\n\
             [audit]\npath = {a_dir:?}\n"
        );
        fs::write(&file, config).unwrap();
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let args = ["skillgate", "config", "check", "--config", a_file].map(OsString::from);
        let exit = run(args, &mut out, &mut err);
        let out = String::from_utf8(out).unwrap();
        assert_eq!(exit, Exit::Configuration, "{out}");
        for (key, path, why) in [
            ("skills.paths[1]", a_file, "it is no directory"),
            ("policy.keys[0].file", a_dir, "it is no file"),
            ("secrets.dir", a_file, "it is no directory"),
            ("plugins.storage.path", a_dir, "it is no file"),
        ] {
            let said = format!(": {key}: cannot read {path}: {why}\n");
            assert!(out.contains(&said), "{said}{out}");
        }
        let said = format!(": audit.path: cannot write {a_dir}: it is no file\n");
        assert!(out.contains(&said), "{said}{out}");
        assert_eq!(out.lines().count(), 5, "{out}");
    }
}

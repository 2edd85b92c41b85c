//! The conformance kit: does a plugin keep to the contract, and does it do what it says?
//!
//! ```text
//! check(settings) ── for each case ──▶ a watchdog ──▶ a process, a directory of its own
//!                                        run_case(job) ── Bench ─┬─ plugin-host: the calls as the gateway makes them
//!                                                                └─ raw: the C tables, a host that counts
//!                 ◀── verdict ──         (none: it crashed, called exit(), or hung; its last step says where)
//!  Report: a table, JSON, JUnit
//! ```
//!
//! Every case runs in a process of its own, so that a plugin that ends it, or never answers, costs that case and no
//! more. `cases.rs` lists them, each with the function of the header that it holds the plugin to.
#![deny(unsafe_code)]

mod bench;
mod cases;
mod child;
mod report;
mod run;
mod watchdog;
mod words;

mod contract;
mod figures;
mod file;
mod operations;
mod process_state;
mod sandbox;
mod storage;

mod raw;

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use child::run_case;
pub use report::{About, CaseReport, Figure, Report, Status};
pub use run::check;
pub use skillgate_plugin_host::Isolation;

/// The names of all cases, in their order.
pub fn case_names() -> impl Iterator<Item = &'static str> {
    cases::CASES.iter().map(|case| case.name)
}

/// What to check and how.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The plugin's file.
    pub plugin: PathBuf,
    /// Its own section of the configuration, as JSON. `${scratch}` in it becomes an empty directory, another one for each
    /// instance.
    pub config_json: String,
    /// Where the calls go that are made as the gateway makes them. The cases that speak C to the plugin always load it
    /// into their own process.
    pub isolation: Isolation,
    /// Also what takes minutes and gigabytes.
    pub full: bool,
    /// No case may take longer than this, whatever its own watchdog allows.
    pub limit_max: Option<Duration>,
    /// Only cases whose name begins with one of these; empty: all.
    pub only: Vec<String>,
    /// Cases whose name begins with one of these are left out; the report says so.
    pub skip: Vec<String>,
    /// When the other end of this pipe is closed, the check ends with [`KitError::Stopped`], and nothing is left of the case
    /// that was under way.
    pub stop: Option<Arc<OwnedFd>>,
    /// This program: with `case_args` and a path it calls [`run_case`], with `host_args`
    /// [`skillgate_plugin_host::serve_plugin`].
    pub program: PathBuf,
    /// See `program`.
    pub case_args: Vec<OsString>,
    /// See `program`.
    pub host_args: Vec<String>,
}

impl Settings {
    /// All cases in the gateway's way, with an empty configuration; the children are this program itself.
    #[must_use]
    pub fn new(plugin: impl Into<PathBuf>, case_args: &[&str], host_args: &[&str]) -> Self {
        Settings {
            plugin: plugin.into(),
            config_json: "{}".into(),
            isolation: Isolation::Gateway,
            full: false,
            limit_max: None,
            only: Vec::new(),
            skip: Vec::new(),
            stop: None,
            program: PathBuf::from("/proc/self/exe"),
            case_args: case_args.iter().map(OsString::from).collect(),
            host_args: host_args.iter().map(|&arg| arg.to_owned()).collect(),
        }
    }
}

/// The kit itself could not go on; it says nothing about the plugin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KitError {
    /// A directory, file or process could not be made.
    #[error("the kit cannot {what}: {error}")]
    Os {
        /// What was tried.
        what: String,
        /// The system's answer.
        error: std::io::Error,
    },
    /// What passes between the kit and its child made no sense.
    #[error("the kit's own {what} cannot be read: {error}")]
    Words {
        /// Which file.
        what: &'static str,
        /// The parser's answer.
        error: serde_json::Error,
    },
    /// Whoever was told of a case could not take it.
    #[error("cannot write the output: {0}")]
    Report(std::io::Error),
    /// A case that there is not.
    #[error("there is no case {0:?}")]
    NoSuchCase(String),
    /// See [`Settings::stop`].
    #[error("the check was stopped before its last case had ended")]
    Stopped,
    /// Not all cases had the same file.
    #[error(
        "{} was changed during the check (its sha256 was {before:?}, and is {now:?}), so the report would be about neither: check it again when nothing builds it", file.display()
    )]
    Changed {
        /// The plugin.
        file: PathBuf,
        /// Its sha256 before the first case; empty: it was no plugin.
        before: String,
        /// And after the last.
        now: String,
    },
    /// The configuration is not JSON.
    #[error("the plugin's configuration is not JSON: {0}")]
    Configuration(serde_json::Error),
}

impl KitError {
    fn os(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |error| KitError::Os { what, error }
    }
}

/// A child's orders, as a file.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Job {
    case: String,
    plugin: PathBuf,
    config_json: String,
    own_process: bool,
    full: bool,
    program: PathBuf,
    host_args: Vec<String>,
}

/// A child's answer, as a file.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Verdict {
    /// What the plugin said of itself, from the case that asks.
    about: Option<About>,
    figures: Vec<Figure>,
    outcome: Outcome,
    /// Its last step was to make an instance.
    at_create: bool,
    /// It touched memory that faults.
    faulted: bool,
    /// Without a verdict: what the process had written to standard error.
    stderr: String,
}

#[derive(Debug, Default, Serialize, Deserialize)]
enum Outcome {
    #[default]
    Passed,
    Skipped(String),
    /// There is no verdict: how the process ended, and at what.
    Ended(String),
    Failed {
        function: String,
        seen: String,
    },
}

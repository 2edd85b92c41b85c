//! Why a command did not do what it was asked for, as a person reads it.

use std::fmt;
use std::io;

use super::{Exit, plain};
use crate::app::AppError;
use crate::config::ConfigErrors;

/// The end of a command that failed.
#[derive(Debug)]
pub(super) struct Failure {
    exit: Exit,
    error: String,
    hints: Vec<String>,
}

impl Failure {
    /// With one line of what went wrong.
    pub(super) fn new(exit: Exit, error: impl Into<String>) -> Self {
        Failure {
            exit,
            error: error.into(),
            hints: Vec::new(),
        }
    }

    /// The same with what to do about it.
    #[must_use]
    pub(super) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    pub(super) fn exit(&self) -> Exit {
        self.exit
    }
}

impl fmt::Display for Failure {
    /// All its lines, each with its end. What others have said is in them: of it a terminal obeys nothing.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A text of several lines would look like several errors.
        let mut lines = self.error.lines();
        writeln!(f, "error: {}", plain(lines.next().unwrap_or_default()))?;
        lines.try_for_each(|line| writeln!(f, "  {}", plain(line)))?;
        self.hints
            .iter()
            .try_for_each(|hint| writeln!(f, "hint: {}", plain(hint)))
    }
}

/// What was to be printed could not be.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::new(Exit::Runtime, format!("cannot write the output: {error}"))
    }
}

impl From<ConfigErrors> for Failure {
    fn from(errors: ConfigErrors) -> Self {
        match errors.problems.as_slice() {
            [one] => Failure::new(Exit::Configuration, one.to_string()),
            all => Failure::new(
                Exit::Configuration,
                format!("the configuration has {} problems\n{errors}", all.len()),
            ),
        }
    }
}

impl From<AppError> for Failure {
    fn from(error: AppError) -> Self {
        let exit = match error.exit_code() {
            1 => Exit::Findings,
            3 => Exit::Configuration,
            code @ (129 | 130 | 143) => Exit::by_signal(code),
            _ => Exit::Runtime,
        };
        let failure = Failure::new(exit, error.to_string());
        match error {
            AppError::Config(errors) => errors.into(),
            AppError::Create {
                which: "sandbox", ..
            } => {
                failure.hint("`skillgate doctor` says what this host lacks and what to do about it")
            }
            _ => failure,
        }
    }
}

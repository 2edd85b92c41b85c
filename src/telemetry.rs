//! Logs (tracing to stderr, since stdout is data), metrics, traces and health.

pub mod health;
mod lines;
#[cfg(test)]
pub(crate) mod logged;
pub mod metrics;
mod one_line;
mod sources;
pub mod trace;
pub mod watch;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::os::fd::AsFd as _;
use std::sync::OnceLock;
use std::time::Duration;

use tracing_subscriber::EnvFilter;

use crate::config::{Log, LogFormat};
use lines::Lines;
use one_line::{OneLine, VisibleJson};
pub(crate) use sources::with_sources;

/// The log of the process.
static LINES: OnceLock<Lines> = OnceLock::new();
/// How long the end of the process waits for lines that nobody takes.
const FLUSH_MAX: Duration = Duration::from_secs(1);

/// Starts the log of the process, once.
///
/// # Errors
/// A sentence, when the filter does not parse or a log was started before.
pub fn start(log: &Log) -> Result<(), String> {
    let filter = EnvFilter::builder()
        .parse(&log.filter)
        .map_err(|error| format!("log.filter: {error}"))?;
    let cannot = |error: std::io::Error| format!("the log cannot be started: {error}");
    let stderr = std::io::stderr().as_fd().try_clone_to_owned();
    let stderr = stderr.map_err(cannot)?;
    let lines = Lines::to(stderr, log.buffer_bytes).map_err(cannot)?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        // A line that cannot be written would be told of by `eprintln!`, which panics where stderr fails: a full disk under the
        // log, or a reader that has gone, would end whatever has something to say.
        .log_internal_errors(false)
        .with_writer(lines.writer());
    let started = match log.format {
        LogFormat::Text => builder
            .with_ansi(false)
            .fmt_fields(OneLine::default())
            .try_init(),
        LogFormat::Json => builder
            .json()
            .flatten_event(true)
            .map_writer(VisibleJson)
            .try_init(),
    };
    started.map_err(|error| format!("the log cannot be started: {error}"))?;
    LINES.get_or_init(|| lines);
    log_panics();
    Ok(())
}

/// A panic is a line of the log: in its format, with the request that it was in, and nobody waits for who reads it.
fn log_panics() {
    let otherwise = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        // Where the filter leaves it out it is said all the same.
        if !tracing::enabled!(tracing::Level::ERROR) {
            return otherwise(panic);
        }
        let backtrace = Backtrace::capture();
        let backtrace = match backtrace.status() {
            BacktraceStatus::Captured => Some(backtrace.to_string()),
            _ => None,
        };
        tracing::error!(
            place = panic.location().map(ToString::to_string),
            reason = panic.payload_as_str(),
            thread = std::thread::current().name(),
            backtrace,
            "panicked"
        );
    }));
}

/// Waits until what was logged is out, for a second at most. Before the process ends.
pub fn flush() {
    if let Some(lines) = LINES.get() {
        lines.flush(FLUSH_MAX);
    }
}

/// Lines that stderr did not take.
pub fn lost_lines() -> u64 {
    LINES.get().map_or(0, Lines::lost)
}

//! Logs (tracing to stderr, since stdout is data), metrics, traces and health.

pub mod health;
pub mod metrics;
pub mod trace;
pub mod watch;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::writer::MakeWriterExt;

use crate::config::{Log, LogFormat};

/// Starts the log of the process, once.
///
/// # Errors
/// A sentence, when the filter does not parse or a log was started before.
pub fn start(log: &Log) -> Result<(), String> {
    let filter = EnvFilter::builder()
        .parse(&log.filter)
        .map_err(|error| format!("log.filter: {error}"))?;
    let writer = std::io::stderr.with_max_level(tracing::Level::TRACE);
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        // A line that cannot be written would be told of by `eprintln!`, which panics where stderr fails: a full disk under the
        // log, or a reader that has gone, would end whatever has something to say.
        .log_internal_errors(false)
        .with_writer(writer);
    let started = match log.format {
        LogFormat::Text => builder.with_ansi(false).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    started.map_err(|error| format!("the log cannot be started: {error}"))
}

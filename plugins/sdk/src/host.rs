//! The host's services that do not belong to a run.

use std::sync::Arc;

/// Severity of a log record (`SKG_LOG_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Finest.
    Trace = 1,
    /// For developers.
    Debug = 2,
    /// For operators.
    Info = 3,
    /// Something is off.
    Warn = 4,
    /// Something failed.
    Error = 5,
}

/// Where log records go: level, target, message, fields.
type Log = dyn Fn(Level, &str, &str, &[(&str, &str)]) + Send + Sync;

/// The host as an instance sees it: cheap to clone, usable from any thread until the instance is destroyed.
#[derive(Clone)]
pub struct Host {
    log: Arc<Log>,
}

impl Host {
    pub(crate) fn new(
        log: impl Fn(Level, &str, &str, &[(&str, &str)]) + Send + Sync + 'static,
    ) -> Self {
        Host { log: Arc::new(log) }
    }
    /// A host for unit tests: log records go to `log(level, target, message, fields)`.
    pub fn for_tests(
        log: impl Fn(Level, &str, &str, &[(&str, &str)]) + Send + Sync + 'static,
    ) -> Self {
        Host::new(log)
    }
    /// Writes a log record: a constant sentence and fields.
    pub fn log(&self, level: Level, target: &str, message: &str, fields: &[(&str, &str)]) {
        (self.log)(level, target, message, fields);
    }
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Host")
    }
}

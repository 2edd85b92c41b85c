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

/// What is behind a [`Host`].
pub(crate) trait Service: Send + Sync {
    /// Writes a record, if its level is kept. False: the host is gone.
    fn log(&self, level: Level, target: &str, message: &str, fields: &[(&str, &str)]) -> bool;
    /// Would a record be kept? None: the host is gone.
    fn log_enabled(&self, level: Level, target: &str) -> Option<bool>;
}

/// A host of a unit test: keeps every record.
struct ForTests<F>(F);

impl<F> Service for ForTests<F>
where
    F: Fn(Level, &str, &str, &[(&str, &str)]) + Send + Sync,
{
    fn log(&self, level: Level, target: &str, message: &str, fields: &[(&str, &str)]) -> bool {
        (self.0)(level, target, message, fields);
        true
    }
    fn log_enabled(&self, _: Level, _: &str) -> Option<bool> {
        Some(true)
    }
}

/// The host as an instance sees it: cheap to clone, usable from any thread until the instance is destroyed.
#[derive(Clone)]
pub struct Host {
    pub(crate) service: Arc<dyn Service>,
}

impl Host {
    /// A host for unit tests: log records go to `log(level, target, message, fields)`.
    pub fn for_tests(
        log: impl Fn(Level, &str, &str, &[(&str, &str)]) + Send + Sync + 'static,
    ) -> Self {
        Host {
            service: Arc::new(ForTests(log)),
        }
    }
    /// Writes a log record: a constant sentence and fields. What a method logs before it returns, on the thread that it was
    /// called on, is about its call: the gateway's log has the `run_id` with it.
    pub fn log(&self, level: Level, target: &str, message: &str, fields: &[(&str, &str)]) {
        self.service.log(level, target, message, fields);
    }
    /// Would a record of this level be kept? For what is dear to put together; [`Host::log`] asks by itself.
    #[must_use]
    pub fn log_enabled(&self, level: Level, target: &str) -> bool {
        self.service.log_enabled(level, target).unwrap_or(false)
    }
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Host")
    }
}

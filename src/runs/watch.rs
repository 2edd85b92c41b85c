//! Counts a run when it ends, however it does.

use std::time::Instant;

use super::Program;
use super::answer::Answer;
use crate::telemetry::metrics::Metrics;

/// One run. What it is when it is dropped is what is counted: until it is told otherwise its caller has gone.
#[derive(Debug)]
pub(super) struct Watch {
    metrics: Metrics,
    kind: &'static str,
    began: Instant,
    status: &'static str,
    error: Option<String>,
}

impl Watch {
    pub(super) fn new(metrics: Metrics, program: &Program) -> Self {
        Watch {
            metrics,
            kind: match program {
                Program::Skill(_) => "skill",
                Program::Code { .. } => "code",
            },
            began: Instant::now(),
            status: "cancelled",
            error: None,
        }
    }

    pub(super) fn not_started(&mut self) {
        self.status = "not_started";
    }

    pub(super) fn answered(&mut self, answer: &Answer) {
        self.status = answer.status;
        self.error = answer.error.as_ref().map(|error| error.r#type.clone());
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let (error, took) = (self.error.as_deref(), self.began.elapsed());
        self.metrics.run_ended(self.kind, self.status, error, took);
    }
}

//! Counts a run when it ends, however it does, and what it has waited before.

use std::time::Instant;

use super::Program;
use super::answer::Answer;
use crate::telemetry::metrics::{Metrics, NOT_STARTED};

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
        self.status = NOT_STARTED;
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

/// A run's wait for its place, counted when this is dropped: with the place, or as its caller leaves.
#[derive(Debug)]
pub(super) struct Wait {
    metrics: Metrics,
    began: Option<Instant>,
}

impl Wait {
    pub(super) fn new(metrics: Metrics) -> Self {
        Wait {
            metrics,
            began: Some(Instant::now()),
        }
    }

    /// There was no wait.
    pub(super) fn uncounted(mut self) {
        self.began = None;
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        if let Some(began) = self.began {
            self.metrics.run_waited(began.elapsed());
        }
    }
}

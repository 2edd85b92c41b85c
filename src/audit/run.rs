//! The record of a run's end.

use serde_json::{Map, Value, json};

use super::{Kind, Record};
use crate::telemetry::trace::Trace;

/// What was run.
#[derive(Debug, Clone)]
pub(crate) enum What {
    /// A skill's entrypoint.
    Skill(Value),
    /// Submitted code; the SHA-256 of its text stands for it.
    Code { sha256: String, bytes: usize },
}

/// A run that has begun, with what is known of it from the start. No arguments, no code, no output, no values.
#[derive(Debug, Clone)]
pub(crate) struct RunEnd {
    pub(crate) run_id: String,
    pub(crate) decision_id: String,
    /// What the rules were to it, as in the decision's record: `enforce`, `shadow` or `off`.
    pub(crate) mode: &'static str,
    /// Of the call, as in the decision's record.
    pub(crate) trace: Option<Trace>,
    /// The subject's id, as in the decision's record.
    pub(crate) requested_by: String,
    /// Where the call came from.
    pub(crate) source_ip: String,
    pub(crate) tenant: String,
    pub(crate) what: What,
    /// `{name, version, digest}` of each mounted skill.
    pub(crate) mounts: Vec<Value>,
    /// What it was given, by name.
    pub(crate) secrets: Vec<String>,
    pub(crate) network: Vec<String>,
}

/// How it ended, all but the blobs that it has made.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// `completed`, `failed`, `cancelled` or `not_started`.
    pub(crate) status: &'static str,
    /// Why it was not started.
    pub(crate) reason: Option<&'static str>,
    pub(crate) error_type: Option<String>,
    pub(crate) wall_ms: u64,
    /// Not known of a run that nobody waited for, or that its sandbox lost: then the record does not have it.
    pub(crate) cpu_ms: Option<u64>,
    /// As `cpu_ms`.
    pub(crate) peak_memory_bytes: Option<u64>,
}

impl RunEnd {
    /// `{name, version, digest}`
    pub(crate) fn skill(name: &str, version: &str, digest: &str) -> Value {
        json!({ "name": name, "version": version, "digest": digest })
    }

    /// `output_blobs`: all that it has stored, however it ended.
    pub(crate) fn record(self, outcome: Outcome, output_blobs: &[String]) -> Record {
        let mut body = Map::new();
        let mut put = |name: &str, value: Value| body.insert(name.to_owned(), value);
        put("run_id", self.run_id.into());
        put("decision_id", self.decision_id.into());
        put("labels", json!({ "mode": self.mode }));
        if let Some(trace) = self.trace {
            put("trace_id", trace.trace_id().into());
            put("span_id", trace.span_id().into());
        }
        put("requested_by", self.requested_by.into());
        put("source_ip", self.source_ip.into());
        put("tenant", self.tenant.into());
        match self.what {
            What::Skill(skill) => put("skill", skill),
            What::Code { sha256, bytes } => {
                put("code", json!({ "sha256": sha256, "bytes": bytes }))
            }
        };
        put("mounts", self.mounts.into());
        put("secrets", self.secrets.into());
        put("network", self.network.into());
        put("status", outcome.status.into());
        if let Some(reason) = outcome.reason {
            put("reason", reason.into());
        }
        if let Some(kind) = outcome.error_type {
            put("error_type", kind.into());
        }
        put("output_blobs", output_blobs.into());
        let used = [
            ("wall_ms", Some(outcome.wall_ms)),
            ("cpu_ms", outcome.cpu_ms),
            ("peak_memory_bytes", outcome.peak_memory_bytes),
        ];
        let used = used.into_iter();
        let usage = used.filter_map(|(name, value)| Some((name.to_owned(), value?.into())));
        put("usage", Value::Object(usage.collect()));
        Record::new(Kind::Run, body)
    }
}

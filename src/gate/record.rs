//! What is kept of every connection: one tracing event and one record for the audit.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use serde::Serialize;

use super::refusal::Refusal;
use super::target::Target;
use super::{REFUSALS_RECORDED_MAX, Run};
use crate::audit::{self, Audit};

/// What became of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It was made.
    Allowed,
    /// It was not, or was cut by a rule.
    Refused,
}

/// One connection, or one request over plain HTTP.
#[derive(Debug, Clone, Serialize)]
pub struct Record {
    /// Whose.
    pub run_id: String,
    /// Whose run.
    pub tenant: String,
    /// The decision that granted, or did not grant it; of a connection that new rules have ended, the one that did.
    pub decision_id: String,
    /// What became of it.
    pub verdict: Verdict,
    /// Why it was refused or how it ended: a stable word. `more_refusals_not_recorded`: so many requests of the run have led to
    /// no connection that this record stands for all further ones.
    pub reason: &'static str,
    /// `http`, `https`; empty where the request named none.
    pub scheme: &'static str,
    /// In canonical form, the run's secrets in it replaced; empty where the request named none that could be read.
    pub host: String,
    /// 0 where the request named none.
    pub port: u16,
    /// The address that was dialled; for the operator's eyes.
    pub address: Option<std::net::SocketAddr>,
    /// From the run.
    pub bytes_up: u64,
    /// To the run.
    pub bytes_down: u64,
    /// From the request to the end.
    pub duration_ms: u64,
}

impl Record {
    /// As the body of an audit record.
    pub fn body(&self) -> serde_json::Map<String, serde_json::Value> {
        match serde_json::to_value(self) {
            Ok(serde_json::Value::Object(body)) => body,
            // A struct of texts and numbers is always an object.
            _ => serde_json::Map::new(),
        }
    }
}

/// Keeps records. It is called when a connection ends, on the event loop: it must not wait.
pub trait Ledger: fmt::Debug + Send + Sync + 'static {
    /// Keeps one.
    fn keep(&self, record: Record);

    /// Counts one, which may be a refusal beyond those of its run that are kept. Its host is as the run has written it.
    fn count(&self, _record: &Record) {}

    /// Whether it can keep records now. While it cannot, no connection is made.
    fn can_keep(&self) -> bool {
        true
    }
}

impl Ledger for Audit {
    fn keep(&self, record: Record) {
        self.post(audit::Record::new(audit::Kind::Connection, record.body()));
    }

    fn can_keep(&self) -> bool {
        self.can_post()
    }
}

/// Keeps nothing beyond the log.
#[derive(Debug, Clone, Copy)]
pub struct NoLedger;

impl Ledger for NoLedger {
    fn keep(&self, _record: Record) {}
}

/// The reason of a run's last record of a refusal.
const MORE_REFUSALS: &str = "more_refusals_not_recorded";

/// What has moved on one connection.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) up: AtomicU64,
    pub(super) down: AtomicU64,
    /// The answer to a request has come to its end.
    pub(super) complete: AtomicBool,
}

/// A record that is being made. It is kept when it is dropped, whatever ends the connection: also when its task is
/// ended with the run.
#[derive(Debug)]
pub(super) struct Entry {
    record: Record,
    began: Instant,
    pub(super) counts: Arc<Counts>,
    run: Arc<Run>,
}

impl Entry {
    pub(super) fn new(run: Arc<Run>) -> Self {
        let grant = run.grant();
        Entry {
            record: Record {
                run_id: grant.run_id.clone(),
                tenant: grant.tenant.clone(),
                decision_id: grant.decision_id.clone(),
                verdict: Verdict::Refused,
                reason: "",
                scheme: "",
                host: String::new(),
                port: 0,
                address: None,
                bytes_up: 0,
                bytes_down: 0,
                duration_ms: 0,
            },
            began: Instant::now(),
            counts: Arc::default(),
            run,
        }
    }

    pub(super) fn target(&mut self, target: &Target) {
        self.record.scheme = target.scheme().as_str();
        self.record.host = target.host().to_owned();
        self.record.port = target.port();
    }

    pub(super) fn dialled(&mut self, address: std::net::SocketAddr) {
        self.record.address = Some(address);
        self.record.verdict = Verdict::Allowed;
    }

    pub(super) fn refused(&mut self, refusal: &Refusal) {
        if let Some(target) = refusal.target() {
            self.target(target);
        }
        self.decided_now();
        self.cut(refusal.code());
    }

    /// Ended by new rules.
    pub(super) fn revoked(&mut self) {
        self.decided_now();
        self.cut("revoked");
    }

    /// By what the run may reach now, of which new rules may have taken something since the request came.
    fn decided_now(&mut self) {
        let grant = self.run.grant();
        self.record.decision_id.clone_from(&grant.decision_id);
    }

    /// Whether it is to be kept. The first one beyond what a run may have of refusals stands for all that follow, so it tells
    /// no target.
    fn is_kept(&mut self) -> bool {
        let was_made = self.record.address.is_some();
        if was_made {
            return true;
        }
        let before = self.run.count_refusal();
        if before == REFUSALS_RECORDED_MAX {
            self.cut(MORE_REFUSALS);
            self.record.scheme = "";
            self.record.host = String::new();
            self.record.port = 0;
        }
        before <= REFUSALS_RECORDED_MAX
    }

    /// Ended by a rule.
    pub(super) fn cut(&mut self, reason: &'static str) {
        self.record.verdict = Verdict::Refused;
        self.record.reason = reason;
    }

    /// Ended by one of the two sides.
    pub(super) fn ended(&mut self, reason: &'static str) {
        self.record.reason = reason;
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let record = &mut self.record;
        record.bytes_up = self.counts.up.load(Ordering::Relaxed);
        record.bytes_down = self.counts.down.load(Ordering::Relaxed);
        record.duration_ms = self.began.elapsed().as_millis() as u64;
        if record.reason.is_empty() {
            record.reason = if self.counts.complete.load(Ordering::Acquire) {
                "closed"
            } else if self.run.has_ended() {
                "run_ended"
            } else {
                "client_gone"
            };
        }
        // What is on record has a bound, what is counted none.
        self.run.gate.ledger.count(record);
        if !self.is_kept() {
            return;
        }
        let record = &mut self.record;
        if let Cow::Owned(plain) = self.run.grant().plain(&record.host) {
            record.host = plain;
        }
        let allowed = record.verdict == Verdict::Allowed;
        tracing::info!(
            run_id = record.run_id,
            decision_id = record.decision_id,
            allowed,
            reason = record.reason,
            scheme = record.scheme,
            host = record.host,
            port = record.port,
            bytes_up = record.bytes_up,
            bytes_down = record.bytes_down,
            duration_ms = record.duration_ms,
            "connection of a run"
        );
        self.run.gate.ledger.keep(record.clone());
    }
}

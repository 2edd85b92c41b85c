//! A sandbox instance: runs.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use skillgate_plugin_sdk::model::{Health, Result, RunRequest, RunResult, SandboxCaps};

use crate::ask::{AskHealth, Drain, Run};
use crate::call::{Destroyed, Place};
use crate::counts::{CallCounts, Counted};
use crate::instance::SandboxTable;

/// What the gateway does for one run; the host side of the SDK's `RunServices`. Called from the plugin's own threads or
/// from blocking threads, possibly several at a time. A call that was under way when the run ended may still come: it is to be refused.
/// It is dropped when the run has ended, and with it what the run has left open: writers, listeners.
///
/// `output`, `secret` and `gate_serve` may also be called on the event loop and answer at once. The `blob_*` functions
/// may wait: the host refuses them on the event loop (`E_WOULD_DEADLOCK`) before they get here.
pub trait RunHost: Send + Sync + 'static {
    /// Bytes of `STDOUT`, `STDERR` or `RUNLOG`. `false`: enough, send no more.
    fn output(&self, stream: u32, data: &[u8]) -> bool;
    /// The plaintext of a secret. The request named it: others do not get here. The host wipes what this returns.
    fn secret(&self, name: &str) -> Result<Vec<u8>>;
    /// A descriptor of an input blob, or of one that this run has created, or `E_UNIMPLEMENTED`.
    fn blob_fd(&self, id: &str) -> Result<OwnedFd>;
    /// A range of an input blob, or of one that this run has created. 0: the end.
    fn blob_read(&self, id: &str, offset: u64, buf: &mut [u8]) -> Result<usize>;
    /// A writer (> 0) for a new blob.
    fn blob_create(&self, kind: &str) -> Result<i64>;
    /// Appends.
    fn blob_write(&self, writer: i64, data: &[u8]) -> Result<()>;
    /// Commits and gives the id (at most 128 bytes), or throws it away and gives nothing.
    fn blob_finish(&self, writer: i64, commit: bool) -> Result<Option<String>>;
    /// From now until the run ends, accept on this listening socket and be the run's gate there.
    fn gate_serve(&self, listener: OwnedFd) -> Result<()>;
}

/// A run's services and what it was asked for, as long as its op lives.
pub(crate) struct RunContext {
    pub(crate) host: Arc<dyn RunHost>,
    pub(crate) request: Arc<RunRequest>,
}

/// An instance of a sandbox plugin. It is destroyed when the last `Arc` is gone and every run has ended.
pub struct SandboxInstance {
    instance: Place<SandboxTable>,
    caps: SandboxCaps,
}

impl std::fmt::Debug for SandboxInstance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SandboxInstance")
            .field("instance", &self.instance.name())
            .field("caps", &self.caps)
            .finish_non_exhaustive()
    }
}

impl Counted for SandboxInstance {
    fn counts(&self) -> CallCounts {
        self.instance.counts()
    }
}

impl SandboxInstance {
    pub(crate) fn new(instance: Place<SandboxTable>, caps: SandboxCaps) -> Self {
        SandboxInstance { instance, caps }
    }

    /// What it can do and enforce, as it said when it was made.
    #[must_use]
    pub fn caps(&self) -> &SandboxCaps {
        &self.caps
    }

    /// The id of its plugin.
    #[must_use]
    pub fn plugin(&self) -> &str {
        self.instance.plugin()
    }

    /// As the gateway calls it: the `instance_id` that it was made with.
    #[must_use]
    pub fn name(&self) -> &str {
        self.instance.name()
    }

    /// One run from beginning to end. A run that failed by its own doing is a result, an `Err` is the sandbox's fault.
    ///
    /// Dropping the future cancels the run: the plugin is told, and the run stays known, with what it was given, until
    /// the plugin has ended it.
    pub async fn run(
        &self,
        request: impl Into<Arc<RunRequest>>,
        host: Arc<dyn RunHost>,
    ) -> Result<RunResult> {
        let request = request.into();
        let context = Arc::new(RunContext {
            host,
            request: Arc::clone(&request),
        });
        self.instance
            .call_with(Run(request), Some(context), |result, _| result)?
            .wait()
            .await
    }

    /// How it is doing, with its capability report.
    pub async fn health(&self) -> Result<Health> {
        self.instance.call(AskHealth)?.wait().await
    }

    /// Asks it to take no new runs, and waits until none is in flight.
    pub async fn drain(&self) -> Result<()> {
        self.instance.call(Drain)?.wait().await
    }

    /// Waits until nobody else has it, neither for a call nor for what it began: readers, writers, runs. Who waits for that
    /// has seen to it that nobody gets it any more.
    pub async fn unused(self: &Arc<Self>) {
        // The last to let go need not know that somebody waits, so this looks.
        while Arc::strong_count(self) > 1 || self.instance.is_used() {
            tokio::time::sleep(Place::<SandboxTable>::LOOK).await;
        }
    }

    /// Drains, gives this reference up, and waits until the plugin has destroyed the instance: that is, until every other
    /// reference is gone too. Put a timeout around it.
    pub async fn shutdown(self: Arc<Self>) -> Result<()> {
        let drained = self.drain().await;
        let mut destroyed = self.destroyed();
        drop(self);
        destroyed.wait().await;
        drained
    }

    /// Its end, for who waits longer than for a shutdown.
    #[must_use]
    pub fn destroyed(&self) -> Destroyed {
        self.instance.destroyed()
    }
}

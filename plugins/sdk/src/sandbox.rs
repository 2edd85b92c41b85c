//! The sandbox plugin as a Rust trait.

use std::os::unix::io::OwnedFd;

use crate::model::{CreateRequest, Health, Result, RunRequest, RunResult, SandboxCaps};
use crate::Host;

/// A sandbox plugin whose `run` may block (`SKG_F_BLOCKING`): the host calls it on a pool of threads, one call is one
/// run from beginning to end.
pub trait Sandbox: Send + Sync + Sized + 'static {
    /// Makes an instance, and removes what an earlier life of it has left behind (marked by `instance_id`). Refuses
    /// when the host lacks a layer that the configuration does not excuse: then `detail_json` of the error is the
    /// capability report.
    fn create(host: Host, request: CreateRequest) -> Result<Self>;
    /// What it can do and enforce.
    fn caps(&self) -> SandboxCaps;
    /// How it is doing, with the capability report.
    fn health(&self) -> Result<Health>;
    /// One run. `services` are this run's and end with it. A language that it does not run is `E_UNIMPLEMENTED`, not
    /// executed.
    fn run(&self, request: RunRequest, services: &dyn RunServices) -> Result<RunResult>;
    /// Ends that run soon; advice, idempotent, from any thread, never waits. May race with the run's end and with its
    /// beginning: `run` registers what `cancel` will look for, and asks [`RunServices::cancelled`] after that.
    fn cancel(&self, run_id: &str);
    /// Ends what works in the background, before the instance is destroyed. The SDK has ended new runs
    /// (`E_UNAVAILABLE`) and waited: none is in flight any more. Called again when the host drains again.
    fn drain(&self) -> Result<()> {
        Ok(())
    }
}

/// What the host does for one run. All of it may block; call it from the run's own threads.
pub trait RunServices: Send + Sync {
    /// Bytes of `STDOUT`, `STDERR` or `RUNLOG`. `false`: the host has enough, keep draining and send no more.
    fn output(&self, stream: u32, data: &[u8]) -> bool;
    /// The plaintext of a secret that the request named.
    fn secret(&self, name: &str) -> Result<Vec<u8>>;
    /// A descriptor of an input blob, or `E_UNIMPLEMENTED`.
    fn blob_fd(&self, id: &str) -> Result<OwnedFd>;
    /// A range of an input blob, or of one that this run has created.
    fn blob_read(&self, id: &str, offset: u64, buf: &mut [u8]) -> Result<usize>;
    /// A writer for a new blob.
    fn blob_create(&self, kind: &str) -> Result<i64>;
    /// Appends.
    fn blob_write(&self, writer: i64, data: &[u8]) -> Result<()>;
    /// Commits and gives the id, or throws it away and gives nothing.
    fn blob_finish(&self, writer: i64, commit: bool) -> Result<Option<String>>;
    /// From now until the run ends the host accepts on this listening socket and is the run's gate there.
    fn gate_serve(&self, listener: OwnedFd) -> Result<()>;
    /// The caller no longer wants this run.
    fn cancelled(&self) -> bool;
}

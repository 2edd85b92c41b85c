//! The blocking sandbox plugin as a Rust trait.

use crate::model::{CreateRequest, Health, Result, RunRequest, RunResult, SandboxCaps};
use crate::{Host, Reply, RunServices};

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
    /// What the host calls for a run: [`Self::run`], if it is not defined. For a sandbox whose runs leave something that takes
    /// time to put away: it answers as soon as there is an answer, and goes on while nobody waits. `services` end with the
    /// answer; a drain of the SDK's waits for answers alone, so [`Self::drain`] is to wait for the rest.
    fn run_and_clear(
        &self,
        request: RunRequest,
        services: &dyn RunServices,
        reply: Reply<RunResult>,
    ) {
        reply.finish(self.run(request, services));
    }
    /// Ends that run soon; advice, idempotent, from any thread, never waits. May race with the run's end and with its
    /// beginning: `run` registers what `cancel` will look for, and asks [`RunServices::cancelled`] after that.
    fn cancel(&self, run_id: &str);
    /// Ends what works in the background, before the instance is destroyed. The SDK has ended new runs
    /// (`E_UNAVAILABLE`) and waited: none is in flight any more. Called again when the host drains again.
    fn drain(&self) -> Result<()> {
        Ok(())
    }
}

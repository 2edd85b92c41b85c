//! What a run is asked for, looked at, and what it is given.

use std::path::Path;
use std::sync::Arc;

use skillgate_plugin_sdk::model::{Error, RunRequest};
use skillgate_plugin_sdk::{Host, RunServices, abi};

use super::{Handle, Ways, compile};
use crate::codes::Codes;
use crate::job::{self, Frames, Work};
use crate::mounts;
use crate::supervisor::{Launcher, Supervisor};
use crate::sys;
use crate::wire::{MountSpec, RUN_ID_BYTES_MAX, RunSpec};

/// What there is of the plugin for every run.
pub(crate) struct Around<'a> {
    pub(crate) supervisor: &'a Supervisor,
    pub(crate) host: &'a Host,
    pub(crate) state_dir: &'a Path,
    pub(crate) ways: &'a Ways,
    pub(crate) codes: &'a Codes,
    /// That one run may use, at least one, where that can be enforced.
    pub(crate) processors: u32,
}

/// A run for which there is a launcher.
pub(super) struct Begun<'a> {
    pub(super) handle: &'a Handle,
    pub(super) launcher: &'a Arc<Launcher>,
    /// Of its time all is counted since the plugin has got it.
    pub(super) deadline_ns: u64,
    /// That it may use; 0: as many as there are.
    pub(super) processors: u32,
}

/// A request with all that its run is given.
pub(super) struct Ready {
    pub(super) mounts: mounts::Prepared,
    pub(super) spec: RunSpec,
    pub(super) frames: Frames,
}

impl Ready {
    pub(super) fn new(
        request: &mut RunRequest,
        services: &dyn RunServices,
        begun: &Begun<'_>,
        around: &Around<'_>,
    ) -> Result<Self, Error> {
        let mounts = std::mem::take(&mut request.mounts);
        let mounts = mounts::prepare(mounts, &request.run_id, around.state_dir, services)?;
        // What it takes to compile is time of the run that does, as in every run of a skill that is not kept.
        let codes = compile::codes_of(request, &mounts.specs, begun, around);
        let frames = job::frames(
            request,
            &mounts.blobs,
            services,
            Work::Run(&codes),
            begun.deadline_ns,
            begun.processors,
        )?;
        // The frames have them, and they may be large.
        request.args_json = Vec::new();
        request.code = String::new();
        Ok(Ready {
            frames,
            spec: spec_of(request, mounts.specs.clone(), begun.deadline_ns),
            mounts,
        })
    }
}

/// Of one whose time begins now.
pub(super) fn deadline_of(request: &RunRequest) -> u64 {
    sys::now_ns().saturating_add(request.limits.wall_ms.saturating_mul(1_000_000))
}

/// What the launcher is to give a run.
pub(super) fn spec_of(request: &RunRequest, mounts: Vec<MountSpec>, deadline_ns: u64) -> RunSpec {
    let limits = &request.limits;
    RunSpec {
        run_id: request.run_id.clone(),
        deadline_ns,
        max_pids: limits.max_pids,
        cpu_ms: limits.cpu_ms,
        memory_bytes: limits.memory_bytes,
        disk_bytes: limits.disk_bytes,
        disk_inodes: limits.disk_inodes,
        mounts,
        network: request.network == abi::NET_GATE,
    }
}

/// Refuses what is no run of this sandbox.
pub(super) fn check(request: &RunRequest) -> Result<(), Error> {
    let refuse = |code, message: String| Err(Error::new(code, message).not_executed());
    if request.language != "python" {
        return refuse(
            abi::E_UNIMPLEMENTED,
            format!("language {:?}: this sandbox runs python", request.language),
        );
    }
    if ![abi::NET_NONE, abi::NET_GATE].contains(&request.network) {
        return refuse(
            abi::E_PRECONDITION,
            "this sandbox has no network of its own: it reaches the gate, or nothing".into(),
        );
    }
    let id = &request.run_id;
    if id.is_empty()
        || id.len() > RUN_ID_BYTES_MAX
        || !id
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
    {
        return refuse(
            abi::E_INVALID_ARGUMENT,
            format!("run id {id:?}: use letters, digits, `_` and `-`"),
        );
    }
    if request.limits.wall_ms == 0 || request.limits.max_pids == 0 {
        return refuse(
            abi::E_INVALID_ARGUMENT,
            "limits.wall_ms and limits.max_pids must be set".into(),
        );
    }
    Ok(())
}

//! A run that compiles a skill for later ones, and executes nothing of it.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use skillgate_plugin_sdk::model::{Error, Limits, Result, RunRequest, RunSkill};
use skillgate_plugin_sdk::{RunServices, Secret, abi};

use super::ready::{Begun, deadline_of, spec_of};
use super::tries::complete;
use super::ways::Attempt;
use super::{Around, Ways};
use crate::codes::{self, Code, Look};
use crate::job::{self, Work};
use crate::mounts;
use crate::sys;
use crate::wire::MountSpec;

/// A skill that takes longer to compile, or longer than a quarter of what the run may take, is compiled by each of its runs,
/// as far as they import it.
const WALL_MS_MAX: u64 = 2000;
/// Base64 makes four bytes of three; paths come to it.
const OUTPUT_BYTES: u64 = 2 * codes::BYTES_MAX as u64;

/// The code of the skills that a run can import, where there is some. One of them at most is compiled now.
pub(super) fn codes_of(
    request: &RunRequest,
    mounts: &[MountSpec],
    begun: &Begun<'_>,
    around: &Around<'_>,
) -> Vec<Arc<Code>> {
    let copies = mounts::copies_dir(around.state_dir);
    let mut may_make = true;
    let mut found = Vec::new();
    // The one that is executed comes first.
    let mut skills: Vec<&RunSkill> = request.skills.iter().collect();
    skills.sort_by_key(|skill| skill.name != request.skill);
    for skill in skills {
        let target = format!("/skills/{}", skill.name);
        let mount = mounts.iter().find(|m| m.target == target);
        // What was unpacked for this run is gone after it.
        let Some(mount) = mount.filter(|m| !Path::new(&m.path).starts_with(&copies)) else {
            continue;
        };
        if skill.entrypoint.is_empty() {
            continue;
        }
        let place = around
            .codes
            .place(&request.tenant, mount, &skill.entrypoint);
        match around.codes.look(&place, may_make, Instant::now()) {
            Look::Code(code) => found.push(code),
            Look::Make => {
                may_make = false;
                let code = compile(request, skill, mount, begun, around);
                around.codes.keep(&place, code, Instant::now());
                // This run has it too.
                if let Look::Code(code) = around.codes.look(&place, false, Instant::now()) {
                    found.push(code);
                }
            }
            Look::Nothing => {}
        }
    }
    found
}

/// `None`: it could not be tried. A skill of which nothing can be compiled in time has no code.
fn compile(
    request: &RunRequest,
    skill: &RunSkill,
    mount: &MountSpec,
    begun: &Begun<'_>,
    around: &Around<'_>,
) -> Option<Code> {
    let limits = &request.limits;
    let compile = RunRequest {
        run_id: request.run_id.clone(),
        tenant: request.tenant.clone(),
        language: request.language.clone(),
        skill: skill.name.clone(),
        function: skill.function.clone(),
        args_json: b"{}".to_vec(),
        skills: vec![skill.clone()],
        network: abi::NET_NONE,
        fresh: request.fresh,
        // The run's own, so that a child that waits has them already.
        limits: Limits {
            wall_ms: (limits.wall_ms / 4).clamp(1, WALL_MS_MAX),
            output_bytes: OUTPUT_BYTES,
            ..limits.clone()
        },
        ..RunRequest::default()
    };
    let in_full_ns = deadline_of(&compile);
    let deadline_ns = in_full_ns.min(begun.deadline_ns);
    let (work, processors) = (Work::Compile, begun.processors);
    let frames = job::frames(&compile, &[], &Nobody, work, deadline_ns, processors).ok()?;
    let attempt = Attempt {
        services: &Nobody,
        handle: begun.handle,
        launcher: begun.launcher,
        host: around.host,
        tenant: &compile.tenant,
        spec: &spec_of(&compile, vec![mount.clone()], deadline_ns),
        frames: &frames,
        blobs: &[],
        started_ns: sys::now_ns(),
    };
    // Counted as no run of anybody's.
    let (result, _over) = complete(&attempt, &compile, &Ways::default()).ok()?;
    if result.completed {
        return Some(Code::parse(&result.output_json, &mount.target).unwrap_or_default());
    }
    // What a run had no time left for, another may have.
    let is_cut_short = deadline_ns < in_full_ns || result.error_type == abi::RUN_CANCELLED;
    (!is_cut_short).then(Code::default)
}

/// What serves a run that is to ask for nothing.
struct Nobody;

fn nobody<T>() -> Result<T> {
    Err(Error::new(
        abi::E_NOT_FOUND,
        "a skill is only compiled here",
    ))
}

impl RunServices for Nobody {
    fn output(&self, _: u32, _: &[u8]) -> bool {
        false
    }
    fn secret(&self, _: &str) -> Result<Secret> {
        nobody()
    }
    fn blob_fd(&self, _: &str) -> Result<OwnedFd> {
        nobody()
    }
    fn blob_read(&self, _: &str, _: u64, _: &mut [u8]) -> Result<usize> {
        nobody()
    }
    fn blob_create(&self, _: &str) -> Result<i64> {
        nobody()
    }
    fn blob_write(&self, _: i64, _: &[u8]) -> Result<()> {
        nobody()
    }
    fn blob_finish(&self, _: i64, _: bool) -> Result<Option<String>> {
        nobody()
    }
    fn gate_serve(&self, _: OwnedFd) -> Result<()> {
        nobody()
    }
    fn cancelled(&self) -> bool {
        false
    }
}

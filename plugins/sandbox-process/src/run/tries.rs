//! What is tried until a run has been: launchers, their children, an interpreter of its own. A run is lost only where it may have
//! begun.

use skillgate_plugin_sdk::RunServices;
use skillgate_plugin_sdk::model::{Error, RunRequest, RunResult};

use super::ready::{Begun, Ready, check, deadline_of};
use super::ways::{Attempt, over_before_it_began};
use super::{Around, Handle, Running, Ways};
use crate::sys;

/// Launchers that a run tries, should one after the other die before it has read the job.
const LAUNCHERS_MAX: usize = 3;
/// Children that a run tries, should one after the other be dead, or end before it has read the job.
pub(super) const CHILDREN_MAX: usize = 3;

/// From the request to the answer, which `answer` gets as soon as it is there. What the run leaves, descriptors above all, is
/// put away when that has returned: to close them takes a tenth of what a short run takes.
pub(crate) fn run<T>(
    mut request: RunRequest,
    services: &dyn RunServices,
    handle: &Handle,
    around: &Around<'_>,
    answer: impl FnOnce(Result<RunResult, Error>) -> T,
) -> T {
    let started_ns = sys::now_ns();
    if let Err(e) = check(&request) {
        return answer(Err(e));
    }
    let (wall_ms, deadline_ns) = (request.limits.wall_ms, deadline_of(&request));
    let over = || over_before_it_began(deadline_ns, handle, started_ns, wall_ms);
    let is_over = || over().is_some();
    // A launcher may have to be started: for no longer than the run may last and is wanted.
    let mut launcher = match around.supervisor.launcher(is_over) {
        Ok(launcher) => launcher,
        Err(e) => return answer(over().ok_or(e)),
    };
    let begun = Begun {
        handle,
        launcher: &launcher,
        deadline_ns,
        processors: if launcher.promises.processors {
            around.processors
        } else {
            0
        },
    };
    let ready = match Ready::new(&mut request, services, &begun, around) {
        Ok(ready) => ready,
        Err(e) => return answer(Err(e)),
    };
    let mut tried = 1;
    loop {
        let attempt = Attempt {
            services,
            handle,
            launcher: &launcher,
            host: around.host,
            tenant: &request.tenant,
            spec: &ready.spec,
            frames: &ready.frames,
            blobs: &ready.mounts.blobs,
            started_ns,
        };
        let error = match complete(&attempt, &request, around.ways) {
            Ok((result, _over)) => return answer(Ok(result)),
            Err(error) => error,
        };
        if !error.not_executed || tried >= LAUNCHERS_MAX {
            return answer(Err(error));
        }
        let Some(next) = around.supervisor.after(&launcher, is_over) else {
            return answer(over().ok_or(error));
        };
        launcher = next;
        tried += 1;
    }
}

/// Tries children and then an interpreter of its own, until one has run it: its result, and what is left of it.
pub(super) fn complete<'a>(
    attempt: &Attempt<'a>,
    request: &RunRequest,
    ways: &Ways,
) -> Result<(RunResult, Option<Running<'a>>), Error> {
    let launcher = attempt.launcher;
    let (spec, wall_ms) = (attempt.spec, request.limits.wall_ms);
    let over = || {
        let (handle, started_ns) = (attempt.handle, attempt.started_ns);
        let result = over_before_it_began(spec.deadline_ns, handle, started_ns, wall_ms)?;
        Some((result, None))
    };
    let children = if request.fresh { 0 } else { CHILDREN_MAX };
    for _ in 0..children {
        let mut running = match attempt.on_child(ways) {
            Ok(Some(running)) => running,
            Ok(None) => break,
            Err(e) => return over().ok_or(e),
        };
        let outcome = running.attend();
        if !running.is_untouched(&outcome) {
            return running.end(outcome, request, launcher);
        }
        running.channel.abandon();
    }
    if let Some(over) = over() {
        return Ok(over);
    }
    let mut running = match attempt.on_its_own(ways) {
        Ok(running) => running,
        Err(e) => return over().ok_or(e),
    };
    let outcome = running.attend();
    running.end(outcome, request, launcher)
}

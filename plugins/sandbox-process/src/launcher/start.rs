//! Starting a run with an interpreter of its own, and what an activation needs that only the launcher can make.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::run::{Process, Run, is_too_late, tell};
use super::{Cannot, Id, Launcher};
use crate::cgroup::{Entrance, GroupLimits, RunGroup};
use crate::guard::{Guard, Without};
use crate::isolate::Isolation;
use crate::sys::{self, Fork, NODEV, NOEXEC, NOSUID, NOSYMFOLLOW, RDONLY};
use crate::wire::{End, MountSpec, Notice, RunSpec};

/// A run with an interpreter of its own that has used more of a processor makes way for others: it has that to start first.
const LASTS_NS: u64 = 100_000_000;

impl Launcher {
    /// A run to start. Whatever is wrong with it is told on the run's own socket.
    pub(super) fn start(&mut self, spec: &RunSpec, fds: Vec<OwnedFd>) {
        let Ok([output, channel, notice]) = <[OwnedFd; 3]>::try_from(fds) else {
            return;
        };
        if is_too_late(notice.as_fd(), spec.deadline_ns) {
            // A failure would be tried again. Who has let go of it knows better how it ended.
            let end = End {
                exit_code: -1,
                deadline_passed: true,
                ..End::default()
            };
            return tell(notice.as_fd(), &Notice::Ended(end), None);
        }
        let mut started = self.try_start(spec, &output, &channel, &notice);
        if started.as_ref().is_err_and(|cannot| cannot.lacks_files) {
            self.make_room();
            started = self.try_start(spec, &output, &channel, &notice);
        }
        if let Err(Cannot { message, .. }) = started {
            tell(notice.as_fd(), &Notice::Failed { message }, None);
        }
    }

    fn try_start(
        &mut self,
        spec: &RunSpec,
        output: &OwnedFd,
        channel: &OwnedFd,
        notice: &OwnedFd,
    ) -> Result<(), Cannot> {
        let mounts = detached_all(&spec.mounts, &self.ground.without)?;
        // Before there is a process: one that nobody knows of would have no deadline.
        let kept = notice
            .try_clone()
            .map_err(|e| Cannot::new("its notice socket", &e))?;
        let is_leased = |slot| self.leases.as_ref().is_some_and(|l| l.has(slot));
        let id = self
            .ids
            .take(|slot| self.runs.contains_key(&slot) || is_leased(slot))
            .map_err(|e| Cannot::new("its user id", &e))?;
        let slot = id.slot();
        let limits = GroupLimits {
            connects: spec.network,
            ..spec.group_limits()
        };
        let group = self
            .groups
            .as_mut()
            .map(|groups| groups.make_run(limits))
            .transpose()
            .map_err(|e| Cannot::new("control group", &e))?;
        let entrance = group.as_ref().map(RunGroup::entrance).unwrap_or_default();
        let started = self.spawn(spec, &id, &mounts, &entrance, [output, channel, notice]);
        let (pid, pidfd, report) = match started {
            Ok(started) => started,
            Err(e) => {
                self.leaving.extend(group);
                return Err(Cannot::new("cannot make a process with its namespaces", &e));
            }
        };
        let mut run = Run {
            group,
            deadline_ns: spec.deadline_ns,
            cpu_limit_us: spec.cpu_ms.saturating_mul(1000),
            _id: Some(id),
            ..Run::new(Process { pid, pidfd }, kept, report)
        };
        run.begin(LASTS_NS);
        tell(
            run.notice.as_fd(),
            &Notice::Started,
            Some(run.init.pidfd.as_fd()),
        );
        self.runs.insert(slot, run);
        Ok(())
    }

    fn spawn(
        &self,
        spec: &RunSpec,
        id: &Id,
        mounts: &[OwnedFd],
        entrance: &Entrance<'_>,
        [output, channel, notice]: [&OwnedFd; 3],
    ) -> io::Result<(libc::pid_t, OwnedFd, OwnedFd)> {
        let (report, report_in) = sys::pipe()?;
        sys::set_nonblocking(report.as_fd())?;
        let outer_id = self.outer_id(id);
        sys::give(output.as_fd(), outer_id);
        let isolation = Isolation {
            ground: &self.ground,
            spec,
            outer_id,
            entrance,
            mounts,
            output: output.as_fd(),
            channel: channel.as_fd(),
            report: report_in.as_fd(),
            notice: Some(notice.as_fd()),
            arguments: None,
        };
        match sys::clone_process(self.ground.born_in(), entrance.born_in)? {
            Fork::Child => enter(&isolation),
            Fork::Parent { pid, pidfd } => Ok((pid, pidfd, report)),
        }
    }
}

/// In the child: nothing may ever return into the launcher's code, not even a panic.
pub(crate) fn enter(isolation: &Isolation<'_>) -> ! {
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| isolation.become_init()));
    match result {
        Ok(never) => never,
        Err(_) => sys::exit_now(124),
    }
}

/// What a run is given, in the order of `specs`.
pub(super) fn detached_all(specs: &[MountSpec], without: &Without) -> Result<Vec<OwnedFd>, Cannot> {
    let of = |spec: &MountSpec| {
        let named = |e| Cannot::new(&format!("mount {}", spec.target), &e);
        detached(spec, without).map_err(named)
    };
    specs.iter().map(of).collect()
}

/// The mount of a directory or file that the plugin holds open: opened by its path in this mount namespace, and
/// only used when it is the same file.
pub(crate) fn detached(spec: &MountSpec, without: &Without) -> io::Result<OwnedFd> {
    let at = sys::open(&spec.path, libc::O_PATH | libc::O_NOFOLLOW)?;
    let stat = sys::stat(at.as_fd())?;
    if (stat.dev, stat.ino) != (spec.dev, spec.ino) {
        return Err(io::Error::other("its path leads to something else now"));
    }
    let mount = sys::clone_mount(at.as_fd())?;
    let flags = if without.keeps(Guard::MountFlags) {
        NOSUID | NODEV | NOEXEC | NOSYMFOLLOW
    } else {
        0
    };
    sys::restrict(mount.as_fd(), RDONLY | flags)?;
    Ok(mount)
}

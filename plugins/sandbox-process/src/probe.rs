//! What this host can enforce: every layer is tried by really doing it, in a child that is thrown away.
//!
//! Flags in /proc and version numbers lie (a security module, a seccomp filter of the container around us, a masked
//! /proc); a trial does not. A layer that fails and is not excused in writing stops the instance from starting.

mod whole;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use crate::cgroup::{GroupLimits, Groups};
use crate::isolate::{self, BORN_IN, Ground};
use crate::launcher::{Id, Ids};
use crate::sys::{self, Fork};
use crate::wire::{EXCUSED, Layer, LayerReport, LayerState};
use crate::{landlock, seccomp};
use whole::whole;

/// Layers whose absence an operator may excuse, with the names for `downgrades`.
pub(crate) const EXCUSABLE: [Layer; 3] = [Layer::Cgroup, Layer::Landlock, Layer::UserNamespace];

/// As whom the launcher works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Root with its rights: every run has a user id of its own.
    Root,
    /// An ordinary user, in a user namespace of the launcher's own where it is root: every run has that one id.
    User,
}

/// Gives the launcher a mount namespace of its own, which follows the host's, with the right to mount in it.
pub(crate) fn stand() -> Result<Standing, Box<LayerReport>> {
    let (uid, gid) = sys::effective_ids();
    if uid == 0 && sys::unshare(libc::CLONE_NEWNS).is_ok() {
        return follow_host().map(|()| Standing::Root);
    }
    let enter = || -> io::Result<()> {
        sys::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS)?;
        std::fs::write("/proc/self/setgroups", "deny")?;
        std::fs::write("/proc/self/uid_map", format!("0 {uid} 1"))?;
        std::fs::write("/proc/self/gid_map", format!("0 {gid} 1"))
    };
    enter().map_err(|e| {
        Box::new(LayerReport {
            layer: Layer::UserNamespace,
            state: LayerState::Missing,
            detail: format!("user {uid} cannot make a user namespace: {e}"),
            advice: "allow unprivileged user namespaces (sysctl user.max_user_namespaces, Debian's kernel.unprivileged_userns_clone=1, Ubuntu's kernel.apparmor_restrict_unprivileged_userns=0 or an AppArmor profile with `userns`; in a container also its seccomp profile), or run the gateway as root".into(),
        })
    })?;
    follow_host().map(|()| Standing::User)
}

fn follow_host() -> Result<(), Box<LayerReport>> {
    sys::set_propagation(libc::MS_SLAVE).map_err(|e| {
        Box::new(missing(
            Layer::Mounts,
            format!("cannot change mount propagation: {e}"),
            MOUNTS_ADVICE,
        ))
    })
}

const MOUNTS_ADVICE: &str = "Linux 5.14 or later with CAP_SYS_ADMIN, or user namespaces for ordinary users; in a container, a seccomp profile that allows mounting";

/// The interpreter was asked what it needs when the instance was made, and the root may be built anew long after that.
fn root_advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => {
            "this file; where an update of Python has taken it away, start the gateway anew, so that it finds the new one"
        }
        _ => MOUNTS_ADVICE,
    }
}

/// The outcome of all trials.
pub(crate) struct Outcome {
    pub(crate) report: Vec<LayerReport>,
    pub(crate) refused: bool,
    pub(crate) groups: Option<Groups>,
}

fn ok(layer: Layer, detail: impl Into<String>) -> LayerReport {
    LayerReport {
        layer,
        state: LayerState::Ok,
        detail: detail.into(),
        advice: String::new(),
    }
}

fn missing(layer: Layer, detail: impl Into<String>, advice: &str) -> LayerReport {
    LayerReport {
        layer,
        state: LayerState::Missing,
        detail: detail.into(),
        advice: advice.into(),
    }
}

/// Tries every layer, sets in `ground` what is excused, and last tries all of it together.
pub(crate) fn layers(
    ground: &mut Ground,
    (ids, id): (&Ids, &Id),
    groups: Result<Groups, String>,
    built: io::Result<()>,
    excused: &[Layer],
) -> Outcome {
    let excused = &[excused, &ground.without.layers()].concat();
    let (standing, id) = (ids.standing(), id.outer());
    let mut report = vec![
        namespaces(),
        match &built {
            Ok(()) => ok(Layer::Mounts, "read-only root by the new mount API"),
            Err(e) => missing(
                Layer::Mounts,
                format!("cannot build the root: {e}"),
                root_advice(e),
            ),
        },
        user_namespace(ids, id),
        capabilities(id),
        seccomp(),
        landlock(ground.landlock_abi),
    ];
    let (line, mut groups) = cgroup(groups, standing);
    report.push(line);
    ground.memory_by_cgroup = groups.as_ref().is_some_and(|g| g.has("memory"));
    let is_excused = |l: &LayerReport| excused.contains(&l.layer) && EXCUSABLE.contains(&l.layer);
    let lost = |layer: Layer, report: &[LayerReport]| {
        report
            .iter()
            .any(|l| l.layer == layer && l.state == LayerState::Missing)
    };
    if lost(Layer::Landlock, &report) {
        ground.landlock_abi = None;
    }
    if lost(Layer::UserNamespace, &report) {
        ground.user_namespace = false;
    }
    let mut refused = report
        .iter()
        .any(|l| l.state == LayerState::Missing && !is_excused(l));
    if !refused {
        let line = whole(ground, id, groups.as_mut());
        refused = line.state == LayerState::Missing;
        report.push(line);
    }
    for line in report
        .iter_mut()
        .filter(|l| l.state == LayerState::Missing && excused.contains(&l.layer))
    {
        line.detail.push_str(EXCUSED);
    }
    if !ground.without.0.is_empty() {
        report.push(LayerReport {
            layer: Layer::Run,
            state: LayerState::Degraded,
            detail: format!("a test has left out {:?}", ground.without.0),
            advice: "start the gateway, not a test".into(),
        });
    }
    Outcome {
        report,
        refused,
        groups,
    }
}

/// Does something in a child that is thrown away.
fn trial(flags: libc::c_int, what: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    trial_in(flags, None, what)
}

fn trial_in(
    flags: libc::c_int,
    group: Option<BorrowedFd<'_>>,
    what: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    let (said, say) = sys::pipe()?;
    match sys::clone_process(flags, group)? {
        Fork::Child => {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(what));
            let error = match result {
                Ok(Ok(())) => sys::exit_now(0),
                Ok(Err(e)) => e.to_string(),
                Err(_) => "the trial panicked".into(),
            };
            // The exit code says it too.
            let _ = sys::write(say.as_fd(), error.as_bytes());
            sys::exit_now(1)
        }
        Fork::Parent { pid, .. } => {
            drop(say);
            let mut buf = [0; 1024];
            let n = sys::read(said.as_fd(), &mut buf)?;
            match sys::wait(pid)? {
                Some((_, exit)) if exit.code == 0 => Ok(()),
                Some((_, exit)) if n == 0 => Err(io::Error::other(format!(
                    "the trial ended with code {} signal {}",
                    exit.code, exit.signal
                ))),
                _ => Err(io::Error::other(
                    String::from_utf8_lossy(&buf[..n]).into_owned(),
                )),
            }
        }
    }
}

fn namespaces() -> LayerReport {
    const ADVICE: &str = "a kernel with pid, net, ipc, uts and cgroup namespaces; in a container, the right to make them (CAP_SYS_ADMIN, or a seccomp profile that allows clone3 and unshare)";
    let inside = || {
        sys::unshare(libc::CLONE_NEWCGROUP)
            .map_err(|e| io::Error::other(format!("cgroup namespace: {e}")))?;
        sys::loopback_up().map_err(|e| io::Error::other(format!("loopback interface: {e}")))?;
        sys::set_hostname("sandbox")
    };
    let Err(e) = trial(BORN_IN, inside) else {
        return ok(Layer::Namespaces, "mount, pid, net, ipc, uts, cgroup");
    };
    let each = [
        ("mount", libc::CLONE_NEWNS),
        ("pid", libc::CLONE_NEWPID),
        ("net", libc::CLONE_NEWNET),
        ("ipc", libc::CLONE_NEWIPC),
        ("uts", libc::CLONE_NEWUTS),
    ];
    let failing: Vec<&str> = each
        .iter()
        .filter(|(_, flag)| trial(*flag, || Ok(())).is_err())
        .map(|(name, _)| *name)
        .collect();
    let which = if failing.is_empty() {
        String::new()
    } else {
        format!(" ({})", failing.join(", "))
    };
    missing(
        Layer::Namespaces,
        format!("cannot make namespaces{which}: {e}"),
        ADVICE,
    )
}

fn user_namespace(ids: &Ids, id: u32) -> LayerReport {
    let is_root = ids.standing() == Standing::Root;
    let tried = trial(0, || {
        isolate::take_identity(id, is_root, true, isolate::INSIDE_ID)
    });
    match tried {
        Ok(()) => ok(
            Layer::UserNamespace,
            format!("one per run; {}, 1000 inside", ids.described()),
        ),
        Err(e) => missing(
            Layer::UserNamespace,
            format!("cannot give a run its own user namespace and id {id}: {e}"),
            "allow user namespaces (sysctl user.max_user_namespaces); inside a container set `uid_base` to ids that its own /proc/self/uid_map has",
        ),
    }
}

fn capabilities(id: u32) -> LayerReport {
    let result = trial(0, || {
        isolate::take_identity(id, false, true, isolate::INSIDE_ID)
            .or_else(|_| isolate::take_identity(id, false, false, isolate::INSIDE_ID))?;
        isolate::drop_rights()?;
        let status = std::fs::read_to_string("/proc/self/status")?;
        let left = status.lines().find(|l| {
            l.starts_with("Cap")
                && l.split_whitespace()
                    .nth(1)
                    .is_some_and(|v| v.bytes().any(|b| b != b'0'))
        });
        left.map_or(Ok(()), |l| {
            Err(io::Error::other(format!("a set is not empty: {l}")))
        })
    });
    match result {
        Ok(()) => ok(Layer::Capabilities, "all five sets are emptied and locked"),
        Err(e) => missing(
            Layer::Capabilities,
            format!("cannot give up every right: {e}"),
            "run the gateway as root with CAP_SETPCAP, CAP_SETUID and CAP_SETGID, or as an ordinary user with user namespaces",
        ),
    }
}

fn seccomp() -> LayerReport {
    let program = seccomp::program(false);
    // A run with network has another one.
    let result = [&program, &seccomp::program(true)]
        .into_iter()
        .try_for_each(|program| {
            trial(0, || {
                sys::set_no_new_privs()?;
                sys::install_filter(program)?;
                match sys::unshare(libc::CLONE_NEWUTS) {
                    Err(e) if e.raw_os_error() == Some(libc::EPERM) => Ok(()),
                    other => Err(io::Error::other(format!(
                        "the filter does not hold: {other:?}"
                    ))),
                }
            })
        });
    match result {
        Ok(()) => ok(
            Layer::Seccomp,
            format!("an allow-list, {} instructions", program.len()),
        ),
        Err(e) => missing(
            Layer::Seccomp,
            format!("cannot install a filter: {e}"),
            "a kernel with CONFIG_SECCOMP_FILTER",
        ),
    }
}

fn landlock(abi: Option<u32>) -> LayerReport {
    const ADVICE: &str = "a kernel with landlock (5.13 or later, `landlock` in the `lsm=` list); or write `landlock` into `downgrades`";
    let Some(abi) = abi else {
        return missing(Layer::Landlock, "the kernel has no landlock", ADVICE);
    };
    let result = trial(0, || {
        sys::set_no_new_privs()?;
        let rules = landlock::rules(abi, &[], &[], Some(isolate::GATE_PORT))?;
        landlock::enter(abi, rules.as_fd())?;
        match std::fs::OpenOptions::new()
            .write(true)
            .open("/proc/self/comm")
        {
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Ok(()),
            other => Err(io::Error::other(format!(
                "the rules do not hold: {other:?}"
            ))),
        }
    });
    match result {
        Ok(()) if landlock::lacks(abi).is_empty() => ok(Layer::Landlock, format!("ABI {abi}")),
        Ok(()) => LayerReport {
            layer: Layer::Landlock,
            state: LayerState::Degraded,
            detail: format!(
                "ABI {abi}: no rule yet for {}; other layers say no to them",
                landlock::lacks(abi).join(", ")
            ),
            advice: "Linux 6.12 or later".into(),
        },
        Err(e) => missing(Layer::Landlock, format!("cannot use landlock: {e}"), ADVICE),
    }
}

fn cgroup(groups: Result<Groups, String>, standing: Standing) -> (LayerReport, Option<Groups>) {
    let advice = match standing {
        Standing::Root => {
            "mount cgroup v2 with the memory, pids and cpu controllers (or v1) so that it can be written to, have systemd hand all of them to the service (`Delegate=yes`), in a container let nobody else be in the gateway's group, or name a delegated group in `cgroup_parent`; or write `cgroup` into `downgrades`: then there is no limit on the memory of a run as a whole"
        }
        Standing::User => {
            "delegate a cgroup v2 subtree (systemd: `Delegate=yes`) or name one in `cgroup_parent`; or write `cgroup` into `downgrades`: then there is no limit on the memory of a run as a whole"
        }
    };
    let mut groups = match groups {
        Ok(groups) => groups,
        Err(e) => {
            return (
                missing(
                    Layer::Cgroup,
                    format!("cannot make control groups: {e}"),
                    advice,
                ),
                None,
            );
        }
    };
    let lacking: Vec<&str> = ["memory", "pids", "cpu"]
        .into_iter()
        .filter(|c| !groups.has(c))
        .collect();
    let tried = groups
        .make_run(GroupLimits {
            memory_bytes: 64 << 20,
            pids: 8,
            ..GroupLimits::default()
        })
        .and_then(|mut group| {
            let entrance = group.entrance();
            let result = trial_in(0, entrance.born_in, || entrance.enter());
            // Empty at once or swept later; a trial must not fail for it.
            let _ = group.try_remove();
            result
        });
    let found = match groups.refused() {
        why if !lacking.is_empty() && !why.is_empty() => format!("{}; {why}", groups.describe()),
        _ => groups.describe(),
    };
    let line = match tried {
        Err(e) => {
            // Whoever does without them does without all of them: no run could be put there either. What stays is empty and
            // swept by the next start.
            let _ = groups.remove();
            let detail = format!("cannot put a process under limits ({found}): {e}");
            return (missing(Layer::Cgroup, detail, advice), None);
        }
        Ok(()) if lacking.is_empty() => ok(Layer::Cgroup, found),
        Ok(()) if lacking == ["cpu"] => LayerReport {
            layer: Layer::Cgroup,
            state: LayerState::Degraded,
            detail: format!(
                "{found}; no cpu controller that bounds: a run can use every processor"
            ),
            advice: advice.into(),
        },
        Ok(()) => missing(
            Layer::Cgroup,
            format!(
                "no {} controller can be used here (found: {found})",
                lacking.join(" and no ")
            ),
            advice,
        ),
    };
    (line, Some(groups))
}

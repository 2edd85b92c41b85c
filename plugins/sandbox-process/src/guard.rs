//! The pieces of a run's isolation by name, so that a test can leave some out and see what still holds.
//!
//! No key of the configuration leads here: an operator can only excuse what a host lacks (`downgrades`). A launcher that
//! was told to leave a piece out says so in its report.
//!
//! Not in the list, since it cannot be taken off alone: the mount namespace (the root is put together in it; without one
//! it would be the launcher's that is pivoted), `no_new_privs` (the kernel wants it before it takes a filter from a process
//! without rights) and the session (the launcher has no terminal either).

use serde::{Deserialize, Serialize};

use crate::wire::Layer;

/// One piece of the isolation.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Guard {
    /// The host's files are not in the run's tree. Without it they are below `/.run`.
    OwnRoot,
    /// The root cannot be written to, by itself and as a mount.
    ReadOnlyRoot,
    /// nosuid, nodev and noexec on what a run can write to and on what it is given, and nosymfollow on the latter.
    MountFlags,
    /// /proc shows the run's own processes and nothing of the system.
    HiddenProc,
    PidNamespace,
    NetNamespace,
    IpcNamespace,
    UtsNamespace,
    CgroupNamespace,
    UserNamespace,
    /// As root: a user id that nobody else has. Without it the run has the launcher's.
    OwnUser,
    /// All sets are emptied. Without it the run is root of its own user namespace.
    Capabilities,
    Seccomp,
    Landlock,
    /// The limits of a run as a whole on memory, processes and processors.
    ControlGroup,
    /// The limits of each process (`RLIMIT_*`).
    ResourceLimits,
    /// Size and count of files of what a run can write to.
    DiskLimits,
    /// Whatever is not the run's is closed. What is closed by executing a program still is.
    Descriptors,
    /// Processes of a run cannot be dumped or looked into.
    Undumpable,
    /// The run ends with its launcher.
    ParentDeath,
}

impl Guard {
    /// Every one.
    pub const ALL: [Guard; 20] = [
        Guard::OwnRoot,
        Guard::ReadOnlyRoot,
        Guard::MountFlags,
        Guard::HiddenProc,
        Guard::PidNamespace,
        Guard::NetNamespace,
        Guard::IpcNamespace,
        Guard::UtsNamespace,
        Guard::CgroupNamespace,
        Guard::UserNamespace,
        Guard::OwnUser,
        Guard::Capabilities,
        Guard::Seccomp,
        Guard::Landlock,
        Guard::ControlGroup,
        Guard::ResourceLimits,
        Guard::DiskLimits,
        Guard::Descriptors,
        Guard::Undumpable,
        Guard::ParentDeath,
    ];
}

/// What a test has left out; nothing, outside of tests.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Without(pub(crate) Vec<Guard>);

impl Without {
    /// Whether the piece is in place.
    pub(crate) fn keeps(&self, guard: Guard) -> bool {
        !self.0.contains(&guard)
    }

    /// Layers that are missing as a whole then, and have to be excused.
    pub(crate) fn layers(&self) -> Vec<Layer> {
        [
            (Guard::Landlock, Layer::Landlock),
            (Guard::ControlGroup, Layer::Cgroup),
        ]
        .into_iter()
        .filter(|(guard, _)| !self.keeps(*guard))
        .map(|(_, layer)| layer)
        .collect()
    }
}

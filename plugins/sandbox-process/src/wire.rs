//! What the plugin and the launcher say to each other. Both ends are this file, loaded twice: no version to agree on.
//!
//! Nothing of a job is in here. Code, arguments, environment, secrets and output go through the run's own socket and
//! pipe, which the launcher hands on and closes; so a launcher that is read, copied or inherited from has nothing to tell.

use serde::{Deserialize, Serialize};

use crate::cgroup::{GroupLimits, Part};
use crate::guard::Without;
use crate::interpreter::Interpreter;

/// The longest message on a socket; a [`RunSpec`] with [`MOUNTS_MAX`] mounts fits, where target and path have some 700 bytes together.
/// A run that does not fit is refused.
pub(crate) const MESSAGE_BYTES_MAX: usize = 192 * 1024;
/// The most mounts of a run.
pub(crate) const MOUNTS_MAX: usize = 256;

/// The first message: its descriptor is a file with this as JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// The stem of the names of control groups: who made them.
    pub(crate) instance: String,
    /// Where the template root is mounted, in the launcher's own mount namespace only, and where the lock is.
    pub(crate) state_dir: String,
    /// As root: the user ids outside of the runs are `uid_base + slot`.
    pub(crate) uid_base: u32,
    /// Processors that one run may use.
    pub(crate) cpus: f64,
    /// How often it is looked who is next on a processor while a run lasts; 0: when the kernel does.
    pub(crate) pace_ns: u64,
    /// Where to make control groups, instead of below the gateway's own.
    pub(crate) cgroup_parent: Option<String>,
    /// Layers that the operator has excused in writing.
    pub(crate) downgrades: Vec<Layer>,
    pub(crate) interpreter: Interpreter,
    /// Name and text of the files for `/usr/lib/skillgate`.
    pub(crate) guest: Vec<(String, String)>,
    /// Empty, but in tests.
    pub(crate) without: Without,
    /// `None`: every run is an interpreter of its own.
    pub(crate) zygotes: Option<ZygoteRules>,
}

/// How zygotes are kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ZygoteRules {
    /// Modules of the standard library that a zygote has imported.
    pub(crate) preload: Vec<String>,
    /// A zygote is replaced after so many children.
    pub(crate) children_max: u64,
    /// A zygote is replaced at this age.
    pub(crate) age_max_ns: u64,
    /// How many trust domains have one at a time.
    pub(crate) domains_max: usize,
    /// So many namespaces and directories of control groups are kept for the next runs, as long as there are descriptors for
    /// others; 0: they are made for one run, instead of leased to one after the other.
    pub(crate) kept_max: usize,
}

/// What the plugin asks of the launcher, on their one socket.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// An interpreter of its own for a run. With it come the write end of the output pipe, the inner end of the channel
    /// and the launcher's end of the run's notice socket.
    Run(RunSpec),
    /// What a trust domain's pool needs now: all of it, not a change.
    Pool(PoolNeeds),
    /// Tells a waiting child for which run it is, when it has what only the launcher can give it: mounts, a disk of another
    /// size, the listener of its gate.
    Activate { taken: Taken, spec: RunSpec },
    /// A child has a run that lasts, and a domain no more.
    Taken(Taken),
}

/// How many children of a domain's zygote there should be.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct PoolNeeds {
    pub(crate) domain: String,
    /// Waiting for runs, of those without network.
    pub(crate) ahead: u32,
    /// Runs that wait for a child: without and with network.
    pub(crate) waiting: [u32; 2],
    /// Children that have a run now, and were not told before.
    pub(crate) taken: Vec<Taken>,
    /// What the next run will most likely want.
    pub(crate) limits: GroupLimits,
    pub(crate) disk_bytes: u64,
    pub(crate) disk_inodes: u64,
    pub(crate) furnishing: Furnishing,
}

/// What some of the children that wait have mounted, for runs that will most likely want just that.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Furnishing {
    /// Of these mounts, and never of others while there is this launcher; 0: none.
    pub(crate) number: u64,
    pub(crate) mounts: Vec<MountSpec>,
    /// How many of those that wait without network.
    pub(crate) children: u32,
}

/// A child that has a run.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Taken {
    pub(crate) number: u64,
    /// As in [`RunSpec`].
    pub(crate) deadline_ns: u64,
    pub(crate) cpu_ms: u64,
    /// What making and rehearsing it has cost: not the run's.
    pub(crate) cpu_before_us: u64,
}

/// What the launcher tells the plugin, on the same socket.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Word {
    /// A child, being born or ready: what is sent to it waits for it. With it come the outer ends of its orders,
    /// channel, output and notice, its process 1's pidfd and the directories of its group.
    Child {
        domain: String,
        /// Never given again.
        number: u64,
        zygote: u64,
        /// Its process id outside.
        process_1: u32,
        /// Its filter leaves it the way to a gate: it is for a run with network.
        network: bool,
        /// How long it waits for a run before it rehearses.
        idle_ns: u64,
        parts: Vec<Part>,
        limits: GroupLimits,
        disk_bytes: u64,
        disk_inodes: u64,
        /// What it has mounted: the number of a [`Furnishing`].
        furnishing: u64,
    },
    /// The domain's zygote is warm; its children come from this one now, and older ones are not wanted any more.
    Warm {
        domain: String,
        zygote: u64,
        memory: Memory,
    },
    /// The process of it that made children is gone, for the reason said, and its spare makes them: they are as wanted as those
    /// before.
    Replaced { domain: String, why: String },
    /// It has none, for the reason said: nobody should wait for a child. `lives`: it has one, whose children die at their birth.
    Cold {
        domain: String,
        why: String,
        lives: bool,
    },
    /// It has no place, or others have taken it; its children are not wanted any more.
    Gone { domain: String },
}

/// How a zygote has its memory for its children, where the host gives what that takes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Memory {
    /// It lies in large pages, which they map.
    pub(crate) in_large_pages: bool,
    /// So much of it, which they will write to, is copied at their birth. The copies count as the zygote's.
    pub(crate) copied_bytes: u64,
    /// What of both it could not have, in whole or in part, and why. Its children are as safe, and made more slowly.
    pub(crate) lacks: Vec<String>,
}

/// The launcher's answer, with [`HelloReply::Ready`] only when it takes runs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum HelloReply {
    Ready {
        report: Vec<LayerReport>,
        promises: Promises,
        paced: Paced,
        /// `false`: whether another launcher has the state directory cannot be known there.
        is_alone: bool,
    },
    /// A layer is missing and not excused.
    Refused { report: Vec<LayerReport> },
    /// Something else: a broken state directory, another life of the instance that does not end.
    Broken { message: String },
}

/// What the launcher can enforce here, and whether it counts.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Promises {
    pub(crate) cpu: bool,
    /// A run can use no more processors at once than its `cpus`.
    pub(crate) processors: bool,
    /// What a run has used is known after its end.
    pub(crate) counts_all: bool,
    pub(crate) memory: bool,
    pub(crate) pids: bool,
}

/// What wakes on processors while a run lasts. One that is killed is replaced when it is needed next.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Paced {
    /// How many processors have it.
    pub(crate) processors: u32,
    /// Of these, with a real-time priority. The others have the shortest of slices.
    pub(crate) real_time: u32,
    /// What the host did not give for the others, and why.
    pub(crate) lacks: Option<String>,
}

/// A part of the isolation that a host can lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Layer {
    Namespaces,
    Mounts,
    UserNamespace,
    Capabilities,
    Seccomp,
    Landlock,
    Cgroup,
    /// All of it together, with the interpreter.
    Run,
    /// No layer of the isolation: where the interpreters of runs come from, as the plugin sees it.
    Zygote,
}

/// How the detail ends of a layer that is missing, with which the host takes runs all the same: the operator has said so.
pub(crate) const EXCUSED: &str = "; excused by `downgrades`";

/// What is known of a layer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct LayerReport {
    pub(crate) layer: Layer,
    pub(crate) state: LayerState,
    pub(crate) detail: String,
    pub(crate) advice: String,
}

impl LayerReport {
    /// `cgroup: no controller of memory`
    pub(crate) fn in_words(&self) -> String {
        let name = serde_json::to_value(self.layer).unwrap_or_default();
        format!("{}: {}", name.as_str().unwrap_or_default(), self.detail)
    }
}

/// Whether a layer holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LayerState {
    Ok,
    Degraded,
    Missing,
}

/// A child that has lived for so long was born well.
pub(crate) const LIVES_NS: u64 = 1_000_000_000;

/// Letters, digits, `_` and `-`.
pub(crate) const RUN_ID_BYTES_MAX: usize = 128;

/// What a run may and what it sees. This is also what a waiting child is activated by.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct RunSpec {
    pub(crate) run_id: String,
    /// CLOCK_MONOTONIC. The launcher kills at it too, should the plugin's thread be held up by the host.
    pub(crate) deadline_ns: u64,
    pub(crate) max_pids: u32,
    /// All of the run together, 0: none.
    pub(crate) cpu_ms: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) disk_bytes: u64,
    pub(crate) disk_inodes: u64,
    pub(crate) mounts: Vec<MountSpec>,
    /// It has a gate: a listener in its network namespace, and sockets that can connect to it.
    pub(crate) network: bool,
}

impl RunSpec {
    /// What a waiting child is told: what it has been given is there, and no more of its business.
    pub(crate) fn order(&self) -> RunSpec {
        RunSpec {
            run_id: self.run_id.clone(),
            mounts: Vec::new(),
            ..*self
        }
    }

    /// Of its control group. Init is a process of it too. Whether it connects is not among them: a waiting child's group has
    /// what it was made with.
    pub(crate) fn group_limits(&self) -> GroupLimits {
        GroupLimits {
            memory_bytes: self.memory_bytes,
            pids: self.max_pids.saturating_add(1),
            ..GroupLimits::default()
        }
    }
}

/// A directory or file of the host, to be shown read-only. The plugin holds it open; the launcher opens the path in
/// its own mount namespace (the kernel clones mounts of one's own namespace only) and compares device and inode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MountSpec {
    /// `/skills/<name>` or `/blobs/<id>`.
    pub(crate) target: String,
    pub(crate) path: String,
    pub(crate) dev: u64,
    pub(crate) ino: u64,
}

/// What the launcher tells of one run, on its notice socket. End of file without [`Notice::Ended`] or
/// [`Notice::Failed`]: the launcher has died, and the run with it, or it had no descriptors left for this run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Notice {
    /// The run's init exists; its pidfd comes with this.
    Started,
    /// The run's namespace has its listener, which comes with this. Said before any code of the run.
    Listening,
    /// Isolated; the interpreter is being executed.
    Ready,
    /// Never got there: no code has run.
    Failed { message: String },
    /// Everything of the run is dead and reaped.
    Ended(End),
}

/// How a run ended.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct End {
    /// Of the interpreter.
    pub(crate) exit_code: i32,
    pub(crate) signal: i32,
    /// On [`Notice::Ended`] with what a zygote's child had used before it had a run: of a short one the launcher does not know it.
    pub(crate) cpu_us: u64,
    pub(crate) peak_memory_bytes: u64,
    pub(crate) oom_kills: u64,
    /// Those were for the memory of the host, or of a group above, and not of the run's own limit.
    pub(crate) killed_for_others: bool,
    /// How often the limit of processes refused one.
    pub(crate) pids_refused: u64,
    /// The launcher ended it, since it had used its CPU time.
    pub(crate) cpu_exhausted: bool,
    /// The launcher ended it at its deadline: on a busy machine it may be awake before the plugin is.
    pub(crate) deadline_passed: bool,
}

/// What a child says to the launcher through the run's report pipe, one JSON text per line.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Report {
    Ready,
    Failed {
        step: String,
        error: String,
    },
    Exited {
        code: i32,
        signal: i32,
    },
    /// Of a zygote's child: no step can fail any more, and of what follows nothing is to be believed but how it ended.
    Begun,
}

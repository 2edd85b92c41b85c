//! Control groups: how much memory, how many processes and how much processor a run gets, and what it has used.
//!
//! Version 2 where it has the controllers, version 1 (a hierarchy per controller, or per set) where it has not; a host
//! may mix them. An instance has one parent group per hierarchy, `skillgate-<instance>-<hash of its state directory>-<pid>`, and a run
//! one child of it that is made before the run and removed after it. What has nothing of a run when that is over is lent to the next
//! (`lent.rs`).
//!
//! Traps that shape this file. Moving a process from outside (`cgroup.procs`) waits for an RCU grace period, about
//! 9 ms; being born in the group (v2) or moving oneself by writing 0 to `tasks` (v1) does not. And after one
//! `cgroup.kill` some kernels kill everything that is later born in that group: so it is not used, the end of the run's
//! pid namespace is what kills.

mod held;
mod hierarchy;
mod lent;
mod swept;
mod used;

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::sys;
pub(crate) use held::{Held, Part};
use hierarchy::{Hierarchy, enable, hierarchies};
use lent::Lent;
use swept::sweep;
pub(crate) use used::GroupUse;
use used::{count, counts_all};

/// What a run may use of the processors is counted in periods of this length. Many processes use it up at once, so that it
/// bounds how long they take everything, and whoever else has just come waits.
const CPU_PERIOD_US: u64 = 10_000;
/// A period is longer where less than this could be used in it: a short run would be stopped in its middle ...
const CPU_QUOTA_US: u64 = 5_000;
/// ... but no longer than this, since what has been stopped ends only when it may go on.
const CPU_PERIOD_US_MAX: u64 = 100_000;
/// The file with a group's share of the processors, in version 1 and 2 ...
const SHARE_FILE: [&str; 2] = ["cpu.shares", "cpu.weight"];
/// ... what is in it when a group is made ...
const SHARE: [&str; 2] = ["1024", "100"];
/// ... and for a run that lasts, beside one that does not: an eighth.
const SHARE_LASTING: [&str; 2] = ["128", "12"];
/// What connections of a run may hold in the kernel. Version 1 counts that for nobody where it has no limit of its own, and what
/// all of a host's connections hold is bounded too: beyond that, every one of them suffers. Version 2 counts it as memory.
const TCP_BYTES_MAX: u64 = 16 << 20;
/// Groups that wait for their runs: to make one takes as long as the rest that a launcher does for a run.
const AHEAD: usize = 2;

/// The instance's groups. Dropping it does nothing: [`Groups::remove`] says whether it worked.
#[derive(Debug)]
pub(crate) struct Groups {
    parents: Vec<(Arc<Hierarchy>, PathBuf)>,
    /// Why there are not more.
    refused: Vec<String>,
    cpus: f64,
    made: u64,
    /// Lent to nobody at the moment.
    free: Vec<Lent>,
    /// So many of them are kept; a burst may have made more.
    free_max: usize,
    ahead: Vec<(GroupLimits, RunGroup)>,
    /// What the last run wanted; `None`: none can be made at the moment.
    wanted: Option<GroupLimits>,
}

/// The limits of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct GroupLimits {
    pub(crate) memory_bytes: u64,
    /// Of these, what a zygote's child has from its birth: it counts in another group.
    pub(crate) copied_bytes: u64,
    /// Init included.
    pub(crate) pids: u32,
    /// It has a network, and what its connections hold is limited too.
    pub(crate) connects: bool,
}

/// One directory of a group.
#[derive(Debug)]
struct Place {
    hierarchy: Arc<Hierarchy>,
    dir: PathBuf,
    /// The same.
    at: OwnedFd,
    /// v1: the file by which a process moves itself here.
    tasks: Option<OwnedFd>,
}

impl Place {
    fn make(hierarchy: Arc<Hierarchy>, dir: PathBuf) -> io::Result<Self> {
        fs::create_dir(&dir)?;
        let opened = || -> io::Result<_> {
            let at = sys::open(bytes(&dir), libc::O_PATH | libc::O_DIRECTORY)?;
            let tasks = if hierarchy.v2 {
                None
            } else {
                Some(sys::open_at(at.as_fd(), "tasks", libc::O_WRONLY)?)
            };
            Ok((at, tasks))
        }();
        if opened.is_err() {
            // The first error is the one that matters.
            let _ = remove_if_there(&dir);
        }
        opened.map(|(at, tasks)| Place {
            hierarchy,
            dir,
            at,
            tasks,
        })
    }

    /// Writes one of its files.
    fn put(&self, file: &str, value: &str) -> io::Result<()> {
        let write = || {
            let file = sys::open_at(self.at.as_fd(), file, libc::O_WRONLY)?;
            sys::write(file.as_fd(), value.as_bytes())
        };
        let named = |e| cannot_write(&self.dir.join(file), value, e);
        write().map(drop).map_err(named)
    }

    /// What a run may use.
    fn limit(&self, cpus: f64, limits: GroupLimits) -> io::Result<()> {
        let v2 = self.hierarchy.v2;
        let (quota, period) = quota(cpus);
        for controller in &self.hierarchy.controllers {
            match (*controller, v2) {
                ("cpu", _) if !self.hierarchy.bounds_cpu => {}
                ("cpu", true) => self.put("cpu.max", &format!("{quota} {period}"))?,
                ("cpu", false) => {
                    self.put("cpu.cfs_period_us", &period.to_string())?;
                    match self.put("cpu.cfs_quota_us", &quota.to_string()) {
                        // No more than a group above has (sched-bwc in the kernel's documentation): then that one's holds.
                        Err(e) if e.kind() == io::ErrorKind::InvalidInput => {}
                        other => other?,
                    }
                }
                _ => {
                    for (file, value, needed) in limit_files(v2, controller, limits) {
                        match self.put(file, &value) {
                            // A kernel without swap accounting, or an older one, does not have it.
                            Err(e) if !needed && e.kind() == io::ErrorKind::NotFound => {}
                            other => other?,
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Nobody can enter it any more. The kernel remembers a file that was open when its directory went, and with it the
    /// directory, until memory is short: 2 KiB each time.
    fn remove(&mut self) -> io::Result<()> {
        self.tasks = None;
        remove_if_there(&self.dir)
    }
}

/// The group of one run.
#[derive(Debug)]
pub(crate) struct RunGroup {
    /// Made for it, and gone with it.
    own: Vec<Place>,
    lent: Option<Lent>,
    /// It had some of its own: when they can be removed, nothing of the run is left in the others.
    tells: bool,
    /// [`GroupLimits::copied_bytes`]
    copied_bytes: u64,
}

/// What a child needs to get into its group.
#[derive(Debug, Default)]
pub(crate) struct Entrance<'a> {
    /// v2: for the clone.
    pub(crate) born_in: Option<BorrowedFd<'a>>,
    /// v1: `tasks` files, to which the child writes 0.
    pub(crate) tasks: Vec<BorrowedFd<'a>>,
}

impl Groups {
    /// Finds the hierarchies, sweeps what earlier lives of this instance have left and makes the parent groups.
    /// `name` is unique to the instance and its state directory; the caller holds the lock that says that no other
    /// launcher uses it.
    pub(crate) fn make(
        name: &str,
        configured: Option<&str>,
        cpus: f64,
        free_max: usize,
    ) -> io::Result<Self> {
        let mut groups = Groups {
            parents: Vec::new(),
            refused: Vec::new(),
            cpus,
            made: 0,
            free: Vec::new(),
            free_max,
            ahead: Vec::new(),
            wanted: None,
        };
        let result = groups.make_parents(name, configured);
        if result.is_err() {
            // The first error is the one that matters.
            let _ = groups.remove();
        }
        result.map(|()| groups)
    }

    fn make_parents(&mut self, name: &str, configured: Option<&str>) -> io::Result<()> {
        let (all, refused) = hierarchies(
            &sys::proc_text("/proc/self/mountinfo")?,
            &sys::proc_text("/proc/self/cgroup")?,
            configured,
        );
        self.refused = refused;
        // Before there is anything of this life: an earlier one may have had the same process id, in a namespace of those.
        for h in &all {
            sweep(&h.base, name);
        }
        for mut h in all {
            let parent = h.base.join(format!("{name}-{}", std::process::id()));
            match fs::create_dir(&parent) {
                Ok(()) => {}
                // The other hierarchies may do: what is missing then is found by `probe::cgroup`.
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
                    ) =>
                {
                    continue;
                }
                Err(e) => {
                    return Err(io::Error::new(
                        e.kind(),
                        format!("{}: {e}", parent.display()),
                    ));
                }
            }
            self.refused.extend(h.look_for_quota(&parent));
            self.parents.push((Arc::new(h.clone()), parent.clone()));
            if h.v2 {
                enable(&parent, &h.controllers)?;
            }
        }
        Ok(())
    }

    /// Whether a controller is there, for `cpu` one that bounds; for `cpuacct`, whether what a run uses of the processors is counted,
    /// which version 2 does without one.
    pub(crate) fn has(&self, controller: &str) -> bool {
        self.parents.iter().any(|(h, _)| match controller {
            "cpu" => h.bounds_cpu,
            "cpuacct" if h.v2 => true,
            other => h.controllers.contains(&other),
        })
    }

    /// Whether a group tells all that its run has used, also when that has ended.
    pub(crate) fn counts_all(&self) -> bool {
        counts_all(&self.parents)
    }

    /// In words, for the report.
    pub(crate) fn describe(&self) -> String {
        let part = |(h, _): &(Arc<Hierarchy>, PathBuf)| {
            let controllers = h.controllers.join(",");
            match h.v2 {
                true => format!("{controllers} (v2) below {}", h.base.display()),
                false => format!("{controllers} (v1)"),
            }
        };
        if self.parents.is_empty() {
            "none".into()
        } else {
            self.parents.iter().map(part).collect::<Vec<_>>().join(", ")
        }
    }

    /// Why there are no more, in words.
    pub(crate) fn refused(&self) -> String {
        self.refused.join("; ")
    }

    /// A group with its limits, before anything is in it. One that was made ahead if it has these.
    pub(crate) fn make_run(&mut self, limits: GroupLimits) -> io::Result<RunGroup> {
        self.wanted = Some(limits);
        match self.ahead.iter().position(|made| made.0 == limits) {
            Some(at) => Ok(self.ahead.remove(at).1),
            None => self.make_now(limits),
        }
    }

    /// Whether there is something for [`Self::make_ahead`] to do.
    pub(crate) fn lacks(&self) -> bool {
        let fits = |made: &&(GroupLimits, RunGroup)| Some(made.0) == self.wanted;
        self.wanted.is_some() && self.ahead.iter().filter(fits).count() < AHEAD
    }

    /// Makes a group like the last, for a run that will be in a hurry. Gives one that is of no use any more.
    pub(crate) fn make_ahead(&mut self) -> Option<RunGroup> {
        let wanted = self.wanted?;
        match self.make_now(wanted) {
            Ok(group) => self.ahead.push((wanted, group)),
            // Whoever needs one next will say why.
            Err(_) => self.wanted = None,
        }
        let stale = self.ahead.iter().position(|made| made.0 != wanted);
        stale.map(|at| self.ahead.remove(at).1)
    }

    fn make_now(&mut self, limits: GroupLimits) -> io::Result<RunGroup> {
        self.made += 1;
        let mut group = RunGroup {
            own: Vec::new(),
            lent: self.free.pop(),
            tells: false,
            copied_bytes: limits.copied_bytes,
        };
        let result = self.fill(&mut group, limits);
        if result.is_err() {
            // The first error is the one that matters.
            let _ = group.try_remove();
        }
        result.map(|()| group)
    }

    fn fill(&self, group: &mut RunGroup, limits: GroupLimits) -> io::Result<()> {
        if let Some(lent) = &group.lent {
            lent.prepare(limits)?;
        }
        let stays = |h: &Hierarchy| !h.v2 && !h.controllers.contains(&"memory");
        for (h, parent) in &self.parents {
            if group.lent.is_some() && stays(h) {
                continue;
            }
            let dir = parent.join(format!("run-{}", self.made));
            // With its directory before anything can fail: it is removed with the group.
            group.own.push(Place::make(h.clone(), dir)?);
            if let Some(place) = group.own.last() {
                place.limit(self.cpus, limits)?;
            }
        }
        if group.lent.is_none() {
            let (lent, own) = std::mem::take(&mut group.own)
                .into_iter()
                .partition::<Vec<_>, _>(|place| stays(&place.hierarchy));
            group.own = own;
            // With its directories before anything can fail: they are removed with it.
            group.lent.insert(Lent::of(lent)).open()?;
        }
        group.tells = !group.own.is_empty();
        Ok(())
    }

    /// Takes a run's group away, or back. `false`: something is still in it, try again soon.
    pub(crate) fn take_back(&mut self, group: &mut RunGroup) -> bool {
        group.remove_own();
        if !group.own.is_empty() {
            return false;
        }
        if group.tells && self.free.len() < self.free_max {
            self.free
                .extend(group.lent.take_if(|lent| lent.is_as_new()));
        }
        group.try_remove()
    }

    /// Removes those that no run has, but for what it gives: to be tried again soon. None is made ahead until a run wants one.
    pub(crate) fn let_go(&mut self) -> Vec<RunGroup> {
        self.wanted = None;
        let free = self.free.drain(..).map(|lent| RunGroup {
            own: Vec::new(),
            lent: Some(lent),
            tells: false,
            copied_bytes: 0,
        });
        let ahead = self.ahead.drain(..).map(|(_, group)| group);
        let all = free.chain(ahead);
        all.filter_map(|mut group| (!group.try_remove()).then_some(group))
            .collect()
    }

    /// Removes the parent groups, when every run's is gone.
    pub(crate) fn remove(&mut self) -> io::Result<()> {
        // Nothing is in any of them.
        self.let_go();
        self.parents
            .iter()
            .try_for_each(|(_, dir)| remove_if_there(dir))
    }
}

impl RunGroup {
    fn places(&self) -> impl Iterator<Item = &Place> {
        let lent = self.lent.iter().flat_map(|lent| &lent.places);
        self.own.iter().chain(lent)
    }

    /// The way into it.
    pub(crate) fn entrance(&self) -> Entrance<'_> {
        let v2 = self.places().find(|place| place.hierarchy.v2);
        Entrance {
            born_in: v2.map(|place| place.at.as_fd()),
            tasks: self
                .places()
                .filter_map(|place| Some(place.tasks.as_ref()?.as_fd()))
                .collect(),
        }
    }

    /// What it has used, readable until it is removed.
    pub(crate) fn used(&self) -> GroupUse {
        let mut total = GroupUse::default();
        for place in self.places() {
            let h = &place.hierarchy;
            count(&mut total, h.v2, &h.controllers, true, |file| {
                fs::read_to_string(place.dir.join(file)).unwrap_or_default()
            });
        }
        total.with_copied(self.copied_bytes)
    }

    /// Processor time so far, in microseconds.
    pub(crate) fn cpu_us(&self) -> Option<u64> {
        let mut total = GroupUse::default();
        for place in self.places() {
            let h = &place.hierarchy;
            if h.v2 || h.controllers.contains(&"cpuacct") {
                count(&mut total, h.v2, &["cpuacct"], false, |file| {
                    fs::read_to_string(place.dir.join(file)).unwrap_or_default()
                });
            }
        }
        total.cpu_us
    }

    /// The run lasts: where processors are scarce, those that do not come first.
    pub(crate) fn make_way(&mut self) -> io::Result<()> {
        if let Some(lent) = &mut self.lent {
            lent.is_changed = true;
        }
        self.share(SHARE_LASTING)
    }

    /// A run that had made way is killed. What its processes have left to do, to free their memory, keeps those waiting who want to
    /// hear of its end, and behind runs that go on it would come last.
    pub(crate) fn make_haste(&self) -> io::Result<()> {
        self.share(SHARE)
    }

    fn share(&self, share: [&str; 2]) -> io::Result<()> {
        let of_cpu = |place: &&Place| place.hierarchy.controllers.contains(&"cpu");
        self.places().find(of_cpu).map_or(Ok(()), |place| {
            let version = usize::from(place.hierarchy.v2);
            place.put(SHARE_FILE[version], share[version])
        })
    }

    fn remove_own(&mut self) {
        self.own.retain_mut(|place| place.remove().is_err());
    }

    /// Removes all of it. `false`: something is still in it, try again soon.
    pub(crate) fn try_remove(&mut self) -> bool {
        self.remove_own();
        let lent = self.lent.as_mut().is_none_or(Lent::try_remove);
        self.own.is_empty() && lent
    }
}

impl Entrance<'_> {
    /// The child's own step (v1).
    pub(crate) fn enter(&self) -> io::Result<()> {
        self.tasks
            .iter()
            .try_for_each(|t| sys::write(*t, b"0").map(drop))
    }
}

/// The files that hold a run's limits, what to write, and whether the file must be there.
fn limit_files(
    v2: bool,
    controller: &str,
    limits: GroupLimits,
) -> Vec<(&'static str, String, bool)> {
    let memory = limits.memory_bytes.saturating_sub(limits.copied_bytes);
    // 0 would be no memory at all, also to begin with.
    let memory = memory.max(1).to_string();
    match (controller, v2) {
        ("memory", true) if limits.memory_bytes > 0 => vec![
            ("memory.max", memory, true),
            ("memory.swap.max", "0".into(), false),
            ("memory.oom.group", "1".into(), false),
        ],
        ("memory", false) if limits.memory_bytes > 0 => {
            let mut files = vec![
                ("memory.limit_in_bytes", memory.clone(), true),
                ("memory.memsw.limit_in_bytes", memory, false),
            ];
            if limits.connects {
                // A kernel without it counts none of it.
                let tcp = TCP_BYTES_MAX.to_string();
                files.push(("memory.kmem.tcp.limit_in_bytes", tcp, false));
            }
            files
        }
        // A run has init at least: 0 is not known yet.
        ("pids", _) if limits.pids > 0 => vec![("pids.max", limits.pids.to_string(), true)],
        _ => Vec::new(),
    }
}

fn bytes(path: &Path) -> &[u8] {
    use std::os::unix::ffi::OsStrExt;
    path.as_os_str().as_bytes()
}

fn cannot_write(path: &Path, value: &str, e: io::Error) -> io::Error {
    io::Error::new(
        e.kind(),
        format!("cannot write {value} to {}: {e}", path.display()),
    )
}

fn remove_if_there(dir: &Path) -> io::Result<()> {
    match fs::remove_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Microseconds that may be used of so many processors, and in how many; the kernel takes a millisecond and more
/// (sched-bwc.rst).
fn quota(cpus: f64) -> (u64, u64) {
    let long_enough = (CPU_QUOTA_US as f64 / cpus).round() as u64;
    let period = long_enough.clamp(CPU_PERIOD_US, CPU_PERIOD_US_MAX);
    ((cpus * period as f64).round() as u64, period)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_takes_the_quota_of_every_number_of_processors() {
        for (cpus, expected) in [
            (0.01, (1000, 100_000)),
            (0.05, (5000, 100_000)),
            (0.3, (5000, 16_667)),
            (0.5, (5000, 10_000)),
            (1.0, (10_000, 10_000)),
            (1024.0, (10_240_000, 10_000)),
        ] {
            assert_eq!(quota(cpus), expected, "{cpus}");
        }
    }

    #[test]
    fn what_a_child_has_from_its_birth_is_the_runs_too() {
        for (memory_bytes, copied_bytes, most) in [(64, 0, "64"), (64, 3, "61"), (2, 3, "1")] {
            let limits = GroupLimits {
                memory_bytes,
                copied_bytes,
                ..GroupLimits::default()
            };
            for v2 in [false, true] {
                let files = limit_files(v2, "memory", limits);
                assert_eq!(files[0].1, most, "{limits:?}");
            }
        }
        let used = |peak_memory_bytes| GroupUse {
            peak_memory_bytes,
            ..GroupUse::default()
        };
        let peak = |before| used(before).with_copied(3).peak_memory_bytes;
        assert_eq!([peak(Some(4)), peak(None)], [Some(7), None]);
    }
}

//! What the kernel says of processes, mounts and control groups; what is in a directory.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The kernel's version: the first two numbers of it.
pub(crate) fn linux() -> (u32, u32) {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(str::parse::<u32>);
    let mut next = || numbers.next().unwrap().unwrap();
    (next(), next())
}

/// A process: an id alone may be another's by the time it is looked at.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// In clock ticks since the machine's start.
    born: u64,
    /// `Z`: it has ended and nobody has asked for its status yet.
    state: char,
    pub(crate) name: String,
    parent: u32,
}

impl Process {
    fn read(pid: u32) -> Option<Process> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (head, rest) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        Some(Process {
            pid,
            state: fields.first()?.chars().next()?,
            born: fields.get(19)?.parse().ok()?,
            name: head.split_once('(')?.1.to_owned(),
            parent: fields.get(1)?.parse().ok()?,
        })
    }

    /// Still running. What has ended and waits for the system's first process to ask for its status does not: some ask
    /// once in a second.
    pub(crate) fn lives(&self) -> bool {
        Process::read(self.pid)
            .is_some_and(|now| now.born == self.born && !"ZX".contains(now.state))
    }
}

fn numbers_in(dir: &str) -> Vec<u32> {
    fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// Everything below a process, itself not included.
pub(crate) fn descendants(pid: u32) -> Vec<Process> {
    let all: Vec<Process> = numbers_in("/proc")
        .into_iter()
        .filter_map(Process::read)
        .collect();
    let mut children: BTreeMap<u32, Vec<&Process>> = BTreeMap::new();
    for process in &all {
        children.entry(process.parent).or_default().push(process);
    }
    let mut found: Vec<Process> = Vec::new();
    let mut todo = vec![pid];
    while let Some(parent) = todo.pop() {
        for child in children.get(&parent).into_iter().flatten() {
            todo.push(child.pid);
            found.push((*child).clone());
        }
    }
    found
}

/// Processes in a control group with this in its name, whoever their parent is.
pub(crate) fn members(group: &str) -> Vec<Process> {
    if group.is_empty() {
        return Vec::new();
    }
    numbers_in("/proc")
        .into_iter()
        .filter(|pid| {
            fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|text| text.contains(group))
        })
        .filter_map(Process::read)
        .filter(Process::lives)
        .collect()
}

/// A line such as `VmRSS` of `/proc/<pid>/status`, in KiB.
pub(crate) fn status_kib(pid: u32, name: &str) -> u64 {
    fs::read_to_string(format!("/proc/{pid}/status"))
        .unwrap_or_default()
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .and_then(|value| value.split_whitespace().next()?.parse().ok())
        .unwrap_or_else(|| panic!("process {pid} has no {name}"))
}

/// From now on `VmHWM` is the most that it has from here on.
pub(crate) fn reset_peak(pid: u32) {
    fs::write(format!("/proc/{pid}/clear_refs"), "5").unwrap();
}

pub(crate) fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

pub(crate) fn mounts(pid: &str) -> usize {
    fs::read_to_string(format!("/proc/{pid}/mountinfo"))
        .unwrap_or_default()
        .lines()
        .count()
}

/// Control groups of every hierarchy whose name has this in it, with what is below them.
pub(crate) fn groups(part: &str) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    if part.is_empty() {
        return found;
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    for line in mounts.lines() {
        let Some((left, right)) = line.split_once(" - ") else {
            continue;
        };
        if right.starts_with("cgroup") {
            let point = left.split(' ').nth(4).unwrap_or("/");
            groups_below(Path::new(point), part, false, &mut found);
        }
    }
    found
}

fn groups_below(dir: &Path, part: &str, all: bool, found: &mut BTreeSet<PathBuf>) {
    // A group may go while it is looked at.
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let ours = all || entry.file_name().to_string_lossy().contains(part);
        if ours {
            found.insert(entry.path());
        }
        groups_below(&entry.path(), part, ours, found);
    }
}

/// Every path below a directory, relative to it, sorted.
pub(crate) fn tree(dir: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut todo = vec![dir.to_owned()];
    while let Some(next) = todo.pop() {
        for entry in fs::read_dir(&next).into_iter().flatten().flatten() {
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                todo.push(path.clone());
            }
            if let Ok(relative) = path.strip_prefix(dir) {
                found.insert(relative.to_string_lossy().into_owned());
            }
        }
    }
    found
}

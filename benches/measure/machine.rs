//! What the kernel counts, and what this machine is.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::support::look;

/// The interpreter that `sandbox-process` takes.
pub(crate) fn interpreter() -> &'static str {
    let usual = "/usr/bin/python3";
    if Path::new(usual).exists() {
        usual
    } else {
        "python3"
    }
}

/// One line for the head of a table.
pub(crate) fn description() -> String {
    format!(
        "{} processors, {}, {}, commit {}",
        std::thread::available_parallelism().map_or(0, usize::from),
        said("uname", &["-sr"]),
        said(interpreter(), &["--version"]),
        said("git", &["describe", "--always", "--dirty", "--exclude=*"])
    )
}

pub(crate) fn said(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    output.map_or_else(
        |error| error.to_string(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}

/// Processor time that the whole machine has spent on something, by ticks of 10 ms: of a run much is the kernel's own, and
/// its processes are waited for by nobody who counts.
pub(crate) fn busy() -> Duration {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let first = stat.lines().next().unwrap_or_default();
    let ticks: Vec<u64> = first
        .split_whitespace()
        .filter_map(|n| n.parse().ok())
        .collect();
    // user, nice, system; idle, iowait; irq, softirq; then what others have taken.
    let of_it = [0, 1, 2, 5, 6].map(|at| ticks.get(at).copied().unwrap_or(0));
    Duration::from_millis(of_it.iter().sum::<u64>() * 10)
}

/// Memory that is a process's own, with its share of what it shares.
pub(crate) fn pss_kib(pid: u32) -> u64 {
    fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))
        .unwrap_or_default()
        .lines()
        .find_map(|line| {
            line.strip_prefix("Pss:")?
                .trim()
                .strip_suffix(" kB")?
                .parse()
                .ok()
        })
        .unwrap_or(0)
}

/// The pid namespace that a process is in, where that may be looked at.
pub(crate) fn pid_namespace(pid: u32) -> Option<std::ffi::OsString> {
    fs::read_link(format!("/proc/{pid}/ns/pid"))
        .ok()
        .map(Into::into)
}

/// What there is below a launcher: interpreters that wait, and what each of them costs.
#[derive(Debug, Default)]
pub(crate) struct Household {
    /// The launcher and the processes that runs are forked from.
    pub(crate) own_kib: u64,
    pub(crate) children: usize,
    pub(crate) children_kib: u64,
}

impl Household {
    pub(crate) fn of(launcher: u32) -> Household {
        let home = pid_namespace(launcher);
        let mut found = Household {
            own_kib: pss_kib(launcher),
            ..Household::default()
        };
        let mut inside: BTreeMap<_, u64> = BTreeMap::new();
        for process in look::descendants(launcher) {
            let kib = pss_kib(process.pid);
            match pid_namespace(process.pid) {
                // Process 1 has the memory of process 2, and is not counted again.
                Some(namespace) if Some(&namespace) != home.as_ref() => {
                    let most = inside.entry(namespace).or_default();
                    *most = kib.max(*most);
                }
                _ => found.own_kib += kib,
            }
        }
        found.children = inside.len();
        found.children_kib = inside.values().sum();
        found
    }

    pub(crate) fn kib_of_one(&self) -> u64 {
        self.children_kib / (self.children as u64).max(1)
    }
}

/// Namespaces of all kinds that processes are in, and network namespaces that the kernel has not taken down yet.
pub(crate) fn namespaces() -> (usize, Option<u64>) {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        for namespace in fs::read_dir(entry.path().join("ns"))
            .into_iter()
            .flatten()
            .flatten()
        {
            found.extend(fs::read_link(namespace.path()).ok());
        }
    }
    let slabs = fs::read_to_string("/proc/slabinfo").unwrap_or_default();
    let net = slabs.lines().find_map(|line| {
        line.strip_prefix("net_namespace")?
            .split_whitespace()
            .next()?
            .parse()
            .ok()
    });
    (found.len(), net)
}

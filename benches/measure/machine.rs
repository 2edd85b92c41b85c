//! What the kernel counts, and what this machine is.

use std::collections::BTreeSet;
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

/// Processor time of a process and of everything that it has waited for, by ticks of 10 ms.
pub(crate) fn cpu_of(pid: u32) -> Duration {
    // It may have gone: then its time is with its parent.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<u64> = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .skip(11)
        .take(4)
        .filter_map(|field| field.parse().ok())
        .collect();
    Duration::from_millis(fields.iter().sum::<u64>() * 10)
}

/// The same with everything below it that lives.
pub(crate) fn cpu_of_tree(pid: u32) -> Duration {
    let below = look::descendants(pid);
    below
        .iter()
        .map(|process| cpu_of(process.pid))
        .sum::<Duration>()
        + cpu_of(pid)
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
        let mut namespaces = BTreeSet::new();
        for process in look::descendants(launcher) {
            let kib = pss_kib(process.pid);
            match pid_namespace(process.pid) {
                Some(inside) if Some(&inside) != home.as_ref() => {
                    namespaces.insert(inside);
                    found.children_kib += kib;
                }
                _ => found.own_kib += kib,
            }
        }
        found.children = namespaces.len();
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

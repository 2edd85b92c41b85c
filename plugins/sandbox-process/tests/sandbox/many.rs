//! Many runs: nothing is left of them, and the last are as fast as the first.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::basics::{mount, open_to_all};
use crate::lifecycle::{groups_of, mounts_with};
use crate::support::*;
use skillgate_plugin_sdk::model::Source;

const RUNS: usize = 500;
const RUNS_FULL: usize = 100_000;
const AT_ONCE: usize = 4;
/// At first: what can be lent again is kept for as many as there ever were at once, those included that are over and not gone,
/// of which a machine that others use too may have more at any time.
const MOST_AT_ONCE: usize = 32;
/// What a pool's leases and waiting children may hold more of than they did before. One that were lost with each run would
/// be more than twice as many.
const SLACK: usize = 150;
/// What the launcher has of a child that waits: its sockets and pipes, its leases and the directories of its group.
const DESCRIPTORS_OF_ONE: usize = 21;
const PROCESSES_OF_ONE: usize = 2;
/// What else it has, by which a pool that has been refilled since has more: all the kinds that are looked at, and in version 1 a
/// group for each controller.
const NAMESPACES_OF_ONE: usize = NAMESPACES.len();
const GROUPS_OF_ONE: usize = 4;
const NAMESPACES: [&str; 7] = ["mnt", "pid", "net", "ipc", "uts", "cgroup", "user"];
/// For what ends after its run's answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Memory that an allocator may have kept.
const GROWTH_BYTES_MAX: u64 = 3 << 20;
/// The median of the last runs against the first, on a machine that others use too.
const DRIFT_MAX: f64 = 5.0;
const DRIFT_MAX_FULL: f64 = 1.5;
/// With `SKILLGATE_TEST_FULL`, when nobody else opens files: what the kernel may remember more of, for each run. It was 2.3 KiB of
/// cgroup files, some for each; the rest of the host opens files too.
const INODES_MAX_FULL: f64 = 0.2;

/// What there is of an instance when no run is under way. Of what waits for runs the most, since it comes and goes.
#[derive(Debug)]
struct Remains {
    processes: usize,
    namespaces: usize,
    groups: usize,
    launcher_descriptors: usize,
    launcher_mounts: usize,
    files: BTreeSet<String>,
    launcher_bytes: u64,
}

impl Remains {
    fn of(instance: &Instance) -> Remains {
        let launcher = instance.plugin.launcher_pid().unwrap();
        let below = descendants(launcher);
        let mut namespaces = BTreeSet::new();
        for pid in &below {
            for kind in NAMESPACES {
                namespaces.extend(std::fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok());
            }
        }
        let lines = |path: String| std::fs::read_to_string(path).unwrap().lines().count();
        let statm = std::fs::read_to_string(format!("/proc/{launcher}/statm")).unwrap();
        Remains {
            processes: below.len(),
            namespaces: namespaces.len(),
            groups: groups_below(groups_of(instance.state.path())),
            launcher_descriptors: std::fs::read_dir(format!("/proc/{launcher}/fd"))
                .unwrap()
                .count(),
            launcher_mounts: lines(format!("/proc/{launcher}/mountinfo")),
            files: tree(instance.state.path()),
            launcher_bytes: statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096,
        }
    }

    /// Whether there is no more than this of anything that is counted, give or take what a pool may hold.
    fn within(&self, most: &Remains, slack: usize) -> bool {
        let more_wait = self.processes.saturating_sub(most.processes) / PROCESSES_OF_ONE;
        self.processes <= most.processes + slack
            && self.namespaces <= most.namespaces + slack + more_wait * NAMESPACES_OF_ONE
            && self.groups <= most.groups + slack + more_wait * GROUPS_OF_ONE
            && self.launcher_descriptors
                <= most.launcher_descriptors + slack + more_wait * DESCRIPTORS_OF_ONE
            && self.launcher_mounts <= most.launcher_mounts
            && self.files.is_subset(&most.files)
    }

    /// Every count at its most.
    fn join(&mut self, other: Remains) {
        self.processes = self.processes.max(other.processes);
        self.namespaces = self.namespaces.max(other.namespaces);
        self.groups = self.groups.max(other.groups);
        self.launcher_descriptors = self.launcher_descriptors.max(other.launcher_descriptors);
        self.launcher_mounts = self.launcher_mounts.max(other.launcher_mounts);
        self.launcher_bytes = self.launcher_bytes.max(other.launcher_bytes);
        self.files.extend(other.files);
    }
}

fn groups_below(parents: Vec<std::path::PathBuf>) -> usize {
    let count = |dir: &std::path::PathBuf| {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        entries
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .count()
    };
    parents.iter().map(count).sum::<usize>() + parents.len()
}

/// How many files the kernel remembers, whether there are any. One that was open when its directory went is remembered until
/// memory is short.
fn inodes() -> u64 {
    let text = std::fs::read_to_string("/proc/sys/fs/inode-nr").unwrap();
    text.split_whitespace().next().unwrap().parse().unwrap()
}

fn tree(dir: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut todo = vec![dir.to_owned()];
    while let Some(next) = todo.pop() {
        for entry in std::fs::read_dir(&next).into_iter().flatten().flatten() {
            found.insert(entry.path().display().to_string());
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                todo.push(entry.path());
            }
        }
    }
    found
}

/// Runs of every ending, most of them with `skill` mounted: the milliseconds that each of those that simply return took.
fn many(instance: &Instance, skill: &Path, threads: usize, count: usize) -> Vec<f64> {
    let took = Mutex::new(Vec::new());
    let one = |number: usize| {
        let (code, fails) = match number % 10 {
            0 => (
                "def main(args):\n    raise ValueError('no')\n",
                "ValueError",
            ),
            1 => (
                "import os\ndef main(args):\n    for i in range(20):\n        open('/workspace/%d' % i, 'w').write('x' * 4096)\n    if os.fork() == 0:\n        os.setsid()\n        import time; time.sleep(100)\n    return 1\n",
                "",
            ),
            2 => (
                "import os\ndef main(args):\n    os.kill(os.getpid(), 9)\n",
                "SandboxError",
            ),
            _ => ("def main(args):\n    print('x')\n    return 1\n", ""),
        };
        let mut request = request(code);
        if number % 10 > 3 {
            let source = Source::Path(skill.display().to_string());
            request.mounts = vec![mount("/skills/acme.many", source)];
        }
        let began = Instant::now();
        let (result, services) = instance.run(request);
        assert_eq!(result.error_type, fails, "{result:?} {}", services.text());
        if number % 10 > 2 {
            took.lock()
                .unwrap()
                .push(began.elapsed().as_secs_f64() * 1000.0);
        }
    };
    at_once(threads, count, one);
    took.into_inner().unwrap()
}

#[test]
fn nothing_is_left_and_nothing_slows_down() {
    let runs = if full() { RUNS_FULL } else { RUNS };
    for mode in modes() {
        let instance = Instance::with(&mode.config, None);
        let skill = tempfile::tempdir().unwrap();
        open_to_all(skill.path());
        let many = |count| many(&instance, skill.path(), AT_ONCE, count);
        // Until pools and allocators are as large as they get; twice, since a pool is refilled after its runs.
        self::many(&instance, skill.path(), MOST_AT_ONCE, 2 * MOST_AT_ONCE);
        let mut most = Remains::of(&instance);
        let mut first = Vec::new();
        for _ in 0..2 {
            first = many(runs / 10);
            most.join(Remains::of(&instance));
        }
        let inodes_before = inodes();
        many(runs * 7 / 10);
        let last = many(runs / 10);
        let mut now = Remains::of(&instance);
        let until = Instant::now() + PATIENCE;
        while !now.within(&most, if mode.forks { SLACK } else { 0 }) {
            assert!(
                Instant::now() < until,
                "{}: {now:#?} after {most:#?}",
                mode.name
            );
            std::thread::yield_now();
            now = Remains::of(&instance);
        }
        assert!(
            now.launcher_bytes <= most.launcher_bytes + GROWTH_BYTES_MAX,
            "{}: {now:?} after {most:?}",
            mode.name
        );
        assert_eq!(
            mounts_with(instance.state.path()),
            0,
            "no mount shows on the host"
        );
        let more = inodes().saturating_sub(inodes_before);
        assert!(
            !full() || more as f64 <= runs as f64 * INODES_MAX_FULL,
            "{}: the kernel remembers {more} files more",
            mode.name
        );
        let (first, last) = (median(first), median(last));
        println!(
            "{}: {runs} runs, {} with mounts that had waited for them; p50 of the first {first:.2} ms, of the last {last:.2} ms; {more} files more in the kernel's memory; {now:?}",
            mode.name,
            metric(&instance, "runs_furnished")
        );
        let most = first * if full() { DRIFT_MAX_FULL } else { DRIFT_MAX };
        assert!(last <= most, "{}: {first} ms, then {last} ms", mode.name);
    }
}

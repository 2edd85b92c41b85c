//! The gateway as a container's first program, whose children everybody becomes who has lost a parent.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::alone;
use crate::support::gateway::{House, Settings, is_root, must_not_start, signal};
use crate::support::{eventually, look, tools};

const PATIENCE: Duration = Duration::from_secs(30);
const LAUNCHER: &str = "skillgate-runs";

#[test]
fn as_process_1_it_leaves_no_zombies_and_ends_as_ever() {
    if !is_root() {
        // Who may not make a pid namespace alone does not come to be process 1 of one.
        return tools::left_out("the gateway as process 1: it takes root");
    }
    let _alone = alone();
    let house = House::new(Settings::default());
    let first = || {
        let serve = house.command();
        let mut command = Command::new("unshare");
        command
            .args(["--pid", "--fork", "--mount-proc", "--kill-child"])
            .arg(serve.get_program())
            .args(serve.get_args());
        house.clean(&mut command);
        command
    };
    let mut gateway = house.start_as(first());
    // Of `unshare`, which only waits.
    gateway.pid = look::descendants(gateway.pid)[0].pid;

    // What it forks has its name at first, and is found after it.
    let launcher = || {
        let mut all = look::descendants(gateway.pid).into_iter();
        all.find(|process| process.name == LAUNCHER && process.lives())
    };
    for _ in 0..3 {
        let before = launcher().unwrap();
        signal("KILL", before.pid);
        let code = "def main(args):\n    return 1\n";
        let ran = gateway.client().run(code, json!({})).unwrap();
        assert_eq!(ran["output"], 1, "{ran}");
        assert_ne!(launcher().unwrap().pid, before.pid);
    }
    eventually("nobody is left without a parent who asks", PATIENCE, || {
        look::descendants(gateway.pid)
            .iter()
            .all(look::Process::lives)
    });
    gateway.signal("HUP");
    eventually("it hears of a reload", PATIENCE, || {
        gateway.log().contains("reloaded: ")
    });
    gateway.signal("TERM");
    assert!(gateway.end(PATIENCE).success(), "{}", gateway.said());

    // And how it ends is told.
    let mut gateway = house.start_as(first());
    let below = look::descendants(gateway.pid);
    // Process 1, and its child.
    assert_eq!([&*below[0].name, &*below[1].name], ["skillgate"; 2]);
    signal("KILL", below[1].pid);
    assert_eq!(gateway.end(PATIENCE).code(), Some(128 + 9));
    // Everything in the pid namespace went with it, whoever would have removed its control groups too: the next one does.
    house.start().stop();
    std::fs::write(house.config(), "[server\n").unwrap();
    let (code, said) = must_not_start(first());
    assert_eq!(code, Some(3), "{said}");
    assert_eq!(said.matches("error: ").count(), 1, "{said}");
}

/// A control group of version 2, as a container has one; removed with what a gateway leaves in it.
struct Container(PathBuf);

impl Container {
    /// `None`: this host does not hand down what runs need.
    fn make() -> Option<Self> {
        let root = Path::new("/sys/fs/cgroup");
        let handed_down = std::fs::read_to_string(root.join("cgroup.subtree_control")).ok()?;
        let mut needed = ["memory", "pids"].into_iter();
        if !is_root() || !needed.all(|name| handed_down.split_whitespace().any(|c| c == name)) {
            return None;
        }
        // Process ids are those of a namespace.
        let unique = std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap();
        let dir = root.join(format!("container-{}", unique.trim()));
        std::fs::create_dir(&dir).unwrap();
        Some(Container(dir))
    }

    fn groups(&self) -> Vec<PathBuf> {
        let all = std::fs::read_dir(&self.0).unwrap().flatten();
        let dirs = all.filter(|entry| entry.file_type().unwrap().is_dir());
        dirs.map(|entry| entry.path()).collect()
    }
}

/// With the groups below it, as far as they are empty.
fn remove(group: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(group)?.flatten() {
        if entry.file_type()?.is_dir() {
            remove(&entry.path())?;
        }
    }
    std::fs::remove_dir(group)
}

impl Drop for Container {
    fn drop(&mut self) {
        // Of a test that has failed somebody may be left.
        let killed = std::fs::write(self.0.join("cgroup.kill"), "1");
        let gone_by = Instant::now() + PATIENCE;
        let mut removed = killed.and_then(|()| remove(&self.0));
        while removed.is_err() && Instant::now() < gone_by {
            std::thread::yield_now();
            removed = remove(&self.0);
        }
        // A second panic would end all tests.
        assert!(
            removed.is_ok() || std::thread::panicking(),
            "{}: {removed:?}",
            self.0.display()
        );
    }
}

/// Which hands no controller down while it has processes.
#[test]
fn in_a_container_of_version_2_it_leaves_its_group_to_runs() {
    let Some(container) = Container::make() else {
        return tools::left_out(
            "a container of control groups of version 2: it takes root and them",
        );
    };
    let _alone = alone();
    let house = House::new(Settings::default());
    let serve = house.command();
    let mut command = Command::new("unshare");
    let enter = r#"echo 0 >"$0/cgroup.procs" && exec unshare --cgroup --mount sh -c "$@""#;
    let within = r#"umount /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup && exec "$@""#;
    command
        .args(["--pid", "--fork", "--mount-proc", "--kill-child"])
        .args(["sh", "-c", enter])
        .arg(&container.0)
        .args([within, "sh"])
        .arg(serve.get_program())
        .args(serve.get_args());
    house.clean(&mut command);
    let mut gateway = house.start_as(command);
    // Of `unshare`, which only waits.
    gateway.pid = look::descendants(gateway.pid)[0].pid;

    let code = "def main(args):\n    return 1\n";
    let ran = gateway.client().run(code, json!({})).unwrap();
    assert_eq!(ran["output"], 1, "{ran}");
    let groups = container.groups();
    assert_eq!(groups.len(), 2, "{groups:?}");
    for group in groups {
        let holds = std::fs::read_to_string(group.join("cgroup.procs")).unwrap();
        // Process 1, the gateway and the launcher at least; of the other the groups below it have what there is.
        let expected = group.ends_with("gateway");
        assert_eq!(holds.lines().count() > 2, expected, "{}", group.display());
    }
    gateway.signal("TERM");
    assert!(gateway.end(PATIENCE).success(), "{}", gateway.said());
}

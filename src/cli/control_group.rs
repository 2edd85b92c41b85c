//! The control group that this program is started in, where that is its own to divide.
//!
//! Version 2 hands controllers down only from a group without processes (cgroups(7), "no internal processes"). So a gateway that was
//! given a group for itself, by a service manager or as a container's, goes into one below it: then runs have theirs beside it,
//! within all that the group as a whole is limited to. systemd does the same for a service (`DelegateSubgroup=`), since 254.

use std::fs;
use std::io;
use std::path::Path;

use rustix::io::Errno;

/// Where version 2 is mounted, alone or beside version 1.
const MOUNTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
/// The group below its own into which it goes.
const BELOW: &str = "gateway";
/// By these systemd says that whoever is started in a group may divide it: the second for those who may not read the first, since
/// 251 (systemd.resource-control(5), `Delegate=`).
const DELEGATED: [&str; 2] = ["trusted.delegate", "user.delegate"];

/// Goes into a group below its own and takes along who waits for it. To be called before anything is started. What a sandbox
/// lacks where that cannot be done is the sandbox's to say, as `skillgate doctor` shows.
pub(super) fn make_room() -> io::Result<()> {
    let own = fs::read_to_string("/proc/self/cgroup")?;
    let Some(path) = own.lines().find_map(|line| line.strip_prefix("0::")) else {
        return Ok(());
    };
    let family = family();
    for mount in MOUNTS {
        let group = Path::new(mount).join(path.trim_start_matches('/'));
        // The root of what this process sees of the groups: a container's, unless it is the host's.
        if path == "/" || is_delegated(&group) {
            divide(&group, &family)?;
        }
    }
    Ok(())
}

fn is_delegated(group: &Path) -> bool {
    let mut value = [0; 8];
    DELEGATED.iter().any(|name| {
        let read = rustix::fs::getxattr(group, *name, &mut value);
        read.is_ok_and(|length| value.get(..length) == Some(b"1"))
    })
}

/// This process, its parent, and so on up.
fn family() -> Vec<u32> {
    let mut all = vec![std::process::id()];
    while let Some(&last) = all.last() {
        // Of other users' processes nothing need be seen (proc(5), hidepid), and one may end meanwhile. One that is in the group
        // all the same is not of the family then.
        let status = fs::read_to_string(format!("/proc/{last}/status")).unwrap_or_default();
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
        match parent.and_then(|pid| pid.trim().parse().ok()) {
            // Process 1 has none, nor has one whose parent is outside of this pid namespace.
            None | Some(0) => break,
            Some(pid) => all.push(pid),
        }
    }
    all
}

/// Moves all of a group's processes into one below it, if they are of `family`: a shell or an init that has started this program
/// and waits for it. Those of anybody else stay, and so does everything.
fn divide(group: &Path, family: &[u32]) -> io::Result<()> {
    // The host's root, which alone has no type, may have processes and hand controllers down.
    let hands_down = fs::read_to_string(group.join("cgroup.controllers")).unwrap_or_default();
    if hands_down.trim().is_empty() || !group.join("cgroup.type").exists() {
        return Ok(());
    }
    let members = fs::read_to_string(group.join("cgroup.procs"))?;
    // 0 is a process that this pid namespace has not.
    let members: Option<Vec<u32>> = members.lines().map(|pid| pid.parse().ok()).collect();
    let members = members.unwrap_or_default();
    let is_of_the_family = |pid: &u32| family.contains(pid);
    if members.is_empty() || !members.iter().all(is_of_the_family) {
        return Ok(());
    }
    let below = group.join(BELOW);
    match fs::create_dir(&below) {
        // An earlier life's.
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        made => made?,
    }
    for pid in members {
        match fs::write(below.join("cgroup.procs"), pid.to_string()) {
            // It has ended.
            Err(e) if e.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => {}
            moved => moved?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel shows of a group, in a directory.
    fn group(members: &str) -> tempfile::TempDir {
        let group = tempfile::tempdir().unwrap();
        for (file, text) in [
            ("cgroup.controllers", "cpu memory pids\n"),
            ("cgroup.type", "domain\n"),
            ("cgroup.procs", members),
        ] {
            fs::write(group.path().join(file), text).unwrap();
        }
        group
    }

    fn is_left(group: &tempfile::TempDir) -> bool {
        group.path().join(BELOW).exists()
    }

    #[test]
    fn a_group_of_its_own_is_left_to_runs() {
        let group = group("7\n");
        divide(group.path(), &[7, 5, 1]).unwrap();
        let moved = group.path().join(BELOW).join("cgroup.procs");
        assert_eq!(fs::read_to_string(&moved).unwrap(), "7");
        // As by the next life of a service.
        fs::remove_file(&moved).unwrap();
        divide(group.path(), &[7, 5, 1]).unwrap();
        assert!(moved.exists());
    }

    #[test]
    fn who_has_started_it_goes_along() {
        let group = group("5\n7\n");
        divide(group.path(), &[7, 5, 1]).unwrap();
        // Here a file, which keeps the last that was written.
        let moved = group.path().join(BELOW).join("cgroup.procs");
        assert_eq!(fs::read_to_string(moved).unwrap(), "7");
    }

    #[test]
    fn a_group_with_others_stays_as_it_is() {
        for members in ["7\n8\n", "7\n0\n", "8\n", ""] {
            let group = group(members);
            divide(group.path(), &[7, 5, 1]).unwrap();
            assert!(!is_left(&group), "{members:?}");
        }
    }

    #[test]
    fn the_hosts_root_and_one_without_controllers_stay_as_they_are() {
        let root = group("7\n");
        fs::remove_file(root.path().join("cgroup.type")).unwrap();
        let poor = group("7\n");
        fs::write(poor.path().join("cgroup.controllers"), "\n").unwrap();
        for group in [root, poor] {
            divide(group.path(), &[7]).unwrap();
            assert!(!is_left(&group));
        }
    }

    #[test]
    fn the_family_is_this_process_and_those_above_it() {
        let family = family();
        assert_eq!(family[0], std::process::id());
        assert_eq!(family[1], std::os::unix::process::parent_id());
        assert!(!family.contains(&0), "{family:?}");
    }
}

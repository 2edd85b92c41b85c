//! What earlier lives of an instance have left.

use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use super::remove_if_there;
use crate::sys;

/// Kills and removes what earlier lives have left: only `<name>-<digits>`, so another instance's groups stay.
pub(super) fn sweep(base: &Path, name: &str) {
    let Ok(entries) = fs::read_dir(base) else {
        return;
    };
    for dir in entries.flatten().map(|e| e.path()) {
        let file_name = dir
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let ours = file_name
            .strip_prefix(name)
            .and_then(|r| r.strip_prefix('-'))
            .is_some_and(|r| !r.is_empty() && r.bytes().all(|b| b.is_ascii_digit()));
        if !ours {
            continue;
        }
        let runs: Vec<PathBuf> = fs::read_dir(&dir)
            .into_iter()
            .flatten()
            .flatten()
            .map(|e| e.path())
            .filter(|p| p.is_dir())
            .collect();
        for _ in 0..200 {
            for group in runs.iter().chain([&dir]) {
                end_members(group);
            }
            // What cannot be removed yet is tried again; after two seconds it is left for the next start.
            if runs
                .iter()
                .chain([&dir])
                .filter(|g| remove_if_there(g).is_err())
                .count()
                == 0
            {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

fn end_members(group: &Path) {
    let members = || fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    for pid in members().lines().filter_map(|l| l.parse().ok()) {
        // Opened first, looked up again, then killed: a number that has gone to somebody else is not in the group.
        if let Ok(pidfd) = sys::pidfd_open(pid)
            && members().lines().any(|l| l.parse() == Ok(pid))
        {
            // A failure shows as a group that cannot be removed.
            let _ = sys::kill_by_pidfd(pidfd.as_fd());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a pid namespace a gateway that was killed mostly comes back with the same one.
    #[test]
    fn an_earlier_life_may_have_had_the_same_process_id() {
        let base = tempfile::tempdir().unwrap();
        let mine = format!("skillgate-a-{}", std::process::id());
        let others = ["skillgate-ab-7", "skillgate-a-x", "skillgate-a-", "else"];
        for name in [mine.as_str(), "skillgate-a-7"].iter().chain(&others) {
            fs::create_dir_all(base.path().join(name).join("run-1")).unwrap();
        }
        sweep(base.path(), "skillgate-a");
        let mut left: Vec<_> = fs::read_dir(base.path())
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort_unstable();
        let mut others = others.map(str::to_owned);
        others.sort_unstable();
        assert_eq!(left, others);
    }
}

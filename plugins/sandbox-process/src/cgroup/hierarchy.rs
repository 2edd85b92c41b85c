//! Which control group hierarchies this host has, and where in them this process may work.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::cannot_write;

/// One hierarchy, and the group below which the instance works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hierarchy {
    pub(super) v2: bool,
    /// Of `memory`, `pids`, `cpu`, `cpuacct`: those that are used here.
    pub(super) controllers: Vec<&'static str>,
    /// Whether `cpu` has a quota, and does not share processors out alone: [`Hierarchy::look_for_quota`].
    pub(super) bounds_cpu: bool,
    /// Where the instance's parent group is made.
    pub(super) base: PathBuf,
}

/// With which `cpu` bounds what a group uses, in version 1 and 2: a kernel without CONFIG_CFS_BANDWIDTH has no such file, and only
/// shares processors out.
const QUOTA_FILE: [&str; 2] = ["cpu.cfs_quota_us", "cpu.max"];

impl Hierarchy {
    /// Looks at `group`, one of the instance's own in it. `Some`: why processors are not bounded there, though `cpu` is used.
    pub(super) fn look_for_quota(&mut self, group: &Path) -> Option<String> {
        let file = QUOTA_FILE[usize::from(self.v2)];
        self.bounds_cpu = self.controllers.contains(&"cpu") && group.join(file).exists();
        (self.controllers.contains(&"cpu") && !self.bounds_cpu).then(|| {
            let base = self.base.display();
            format!("the cpu controller in {base} has no {file} (the kernel has no CONFIG_CFS_BANDWIDTH)")
        })
    }
}

const CONTROLLERS: [&str; 4] = ["memory", "pids", "cpu", "cpuacct"];

/// Which hierarchies to use, and why others cannot be. `configured` is a path below the mount of each.
pub(super) fn hierarchies(
    mountinfo: &str,
    own: &str,
    configured: Option<&str>,
) -> (Vec<Hierarchy>, Vec<String>) {
    let mut found: Vec<Hierarchy> = Vec::new();
    let mut refused = Vec::new();
    let mut wanted: Vec<&'static str> = CONTROLLERS.to_vec();
    for (root, point, kind, options) in mountinfo.lines().filter_map(mount_line) {
        let v2 = kind == "cgroup2";
        if !v2 && kind != "cgroup" {
            continue;
        }
        let Some(path) = own.lines().find_map(|l| own_path(l, v2, options)) else {
            continue;
        };
        let below = |path: &str| {
            point.join(
                path.strip_prefix(root.trim_end_matches('/'))
                    .unwrap_or(path)
                    .trim_start_matches('/'),
            )
        };
        let base = match configured {
            Some(configured) => Ok(below(configured)),
            None if v2 => hands_down(below(path), &point),
            None => Ok(below(path)),
        };
        let base = match base {
            Ok(base) => base,
            Err(why) => {
                refused.push(why);
                continue;
            }
        };
        let there = match v2 {
            true => fs::read_to_string(base.join("cgroup.controllers")).unwrap_or_default(),
            false => options.replace(',', " "),
        };
        let usable: Vec<&'static str> = wanted
            .iter()
            .copied()
            .filter(|w| there.split_whitespace().any(|t| t == *w))
            .collect();
        if !base.is_dir() {
            // Where version 2 is beside version 1 it may have nothing that is wanted, which is not to be seen then.
            if v2 || !usable.is_empty() {
                refused.push(format!("there is no group {}", base.display()));
            }
            continue;
        }
        if usable.is_empty() {
            continue;
        }
        if v2 && let Err(e) = enable(&base, &usable) {
            refused.push(e.to_string());
            continue;
        }
        wanted.retain(|w| !usable.contains(w));
        if v2 && usable.contains(&"cpu") {
            // That of version 2 counts too.
            wanted.retain(|w| *w != "cpuacct");
        }
        found.push(Hierarchy {
            v2,
            controllers: usable,
            bounds_cpu: false,
            base,
        });
    }
    (found, refused)
}

/// v2: lets children of a group be limited. Fails where the group itself holds processes.
pub(super) fn enable(dir: &Path, controllers: &[&str]) -> io::Result<()> {
    let path = dir.join("cgroup.subtree_control");
    let have = fs::read_to_string(&path)
        .map_err(|e| io::Error::new(e.kind(), format!("cannot read {}: {e}", path.display())))?;
    let missing: Vec<String> = controllers
        .iter()
        .filter(|c| !have.split_whitespace().any(|h| h == **c))
        .map(|c| format!("+{c}"))
        .collect();
    if missing.is_empty() {
        Ok(())
    } else {
        let all = missing.join(" ");
        fs::write(&path, &all).map_err(|e| cannot_write(&path, &all, e))
    }
}

/// The group of version 2 below which runs can have theirs, with this process in `own` and the mount at `point`.
fn hands_down(own: PathBuf, point: &Path) -> Result<PathBuf, String> {
    // The host's root, which alone has no type, may have processes.
    if !own.join("cgroup.type").exists() {
        return Ok(own);
    }
    // From any other that has some the kernel hands down pids and cpu at most, and that makes a domain for threads of it, in which
    // nobody is born (cgroups(7)).
    match own.parent() {
        Some(parent) if own != point => Ok(parent.to_path_buf()),
        _ => Err(format!(
            "{} has processes, so it hands no controller down, and the group above it cannot be seen from here",
            own.display()
        )),
    }
}

/// The path in a line of /proc/self/cgroup (`4:memory:/a`), if it is of the hierarchy with these mount options.
fn own_path<'a>(line: &'a str, v2: bool, options: &str) -> Option<&'a str> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (names, path) = (parts.next()?, parts.next()?);
    let here = if v2 {
        names.is_empty()
    } else {
        !names.is_empty() && names.split(',').all(|n| options.split(',').any(|o| o == n))
    };
    here.then_some(path)
}

/// Root, mount point, file system type and super block options of a line of mountinfo.
fn mount_line(line: &str) -> Option<(String, PathBuf, &str, &str)> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(3);
    let (root, point) = (left.next()?, left.next()?);
    let mut right = right.splitn(3, ' ');
    let (kind, _source, options) = (right.next()?, right.next()?, right.next()?);
    let plain = |s: &str| {
        s.replace("\\040", " ")
            .replace("\\011", "\t")
            .replace("\\012", "\n")
            .replace("\\134", "\\")
    };
    Some((plain(root), PathBuf::from(plain(point)), kind, options))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(dir: &Path, kind: &str, point: &str, options: &str) -> String {
        format!(
            "30 23 0:28 / {} rw,nosuid - {kind} none rw,{options}\n",
            dir.join(point).display()
        )
    }

    #[test]
    fn version_1_uses_every_hierarchy_at_the_own_path() {
        let tmp = tempfile::tempdir().unwrap();
        for d in ["memory/a/b", "pids", "cpu,cpuacct/a"] {
            fs::create_dir_all(tmp.path().join(d)).unwrap();
        }
        let info = at(tmp.path(), "cgroup", "memory", "memory")
            + &at(tmp.path(), "cgroup", "pids", "pids")
            + &at(tmp.path(), "cgroup", "cpu,cpuacct", "cpu,cpuacct");
        let own = "4:memory:/a/b\n8:pids:/\n3:cpu,cpuacct:/a\n0::/\n";
        let (found, _) = hierarchies(&info, own, None);
        let bases: Vec<_> = found
            .iter()
            .map(|h| (h.controllers.join(","), h.base.clone()))
            .collect();
        assert_eq!(
            bases,
            [
                ("memory".into(), tmp.path().join("memory/a/b")),
                ("pids".into(), tmp.path().join("pids/")),
                ("cpu,cpuacct".into(), tmp.path().join("cpu,cpuacct/a"))
            ]
        );
    }

    #[test]
    fn version_2_takes_the_group_above_its_own() {
        let tmp = tempfile::tempdir().unwrap();
        let (parent, own) = (tmp.path().join("svc"), tmp.path().join("svc/gateway"));
        fs::create_dir_all(&own).unwrap();
        fs::write(
            parent.join("cgroup.controllers"),
            "cpuset cpu io memory pids\n",
        )
        .unwrap();
        fs::write(parent.join("cgroup.subtree_control"), "cpu memory pids\n").unwrap();
        fs::write(own.join("cgroup.controllers"), "cpu memory pids\n").unwrap();
        // The own group holds the gateway. To hand something down there would be a mistake, even where the kernel takes it.
        fs::write(own.join("cgroup.subtree_control"), "\n").unwrap();
        fs::write(own.join("cgroup.type"), "domain\n").unwrap();
        let info = at(tmp.path(), "cgroup2", "", "nsdelegate");
        let (found, refused) = hierarchies(&info, "0::/svc/gateway\n", None);
        assert_eq!(
            found,
            [Hierarchy {
                v2: true,
                controllers: vec!["memory", "pids", "cpu"],
                bounds_cpu: false,
                base: parent
            }]
        );
        assert_eq!(refused, Vec::<String>::new());
        let own = fs::read_to_string(own.join("cgroup.subtree_control"));
        assert_eq!(own.unwrap(), "\n");
    }

    #[test]
    fn version_2_says_why_it_cannot_be_used() {
        let tmp = tempfile::tempdir().unwrap();
        let own = tmp.path().join("gateway");
        fs::create_dir(&own).unwrap();
        for group in [tmp.path(), &own] {
            fs::write(group.join("cgroup.controllers"), "cpu memory pids\n").unwrap();
            fs::write(group.join("cgroup.type"), "domain\n").unwrap();
        }
        let info = at(tmp.path(), "cgroup2", "", "nsdelegate");
        let why = |own: &str| {
            let (found, refused) = hierarchies(&info, own, None);
            assert_eq!(found, []);
            refused
                .join("; ")
                .replace(&tmp.path().display().to_string(), "GROUP")
        };
        // A container in whose group somebody else is too.
        assert!(why("0::/\n").starts_with("GROUP/ has processes"));
        // The kernel says no: here by a file that cannot be written.
        let no = tmp.path().join("cgroup.subtree_control");
        fs::create_dir(no).unwrap();
        let said = why("0::/gateway\n");
        assert!(said.contains("GROUP/cgroup.subtree_control"), "{said}");
    }

    #[test]
    fn processors_that_cannot_be_bounded_are_told_of() {
        let tmp = tempfile::tempdir().unwrap();
        for (v2, file) in [(false, "cpu.cfs_quota_us"), (true, "cpu.max")] {
            let mut hierarchy = Hierarchy {
                v2,
                controllers: vec!["memory", "cpu", "cpuacct"],
                bounds_cpu: false,
                base: tmp.path().into(),
            };
            let why = hierarchy.look_for_quota(tmp.path()).unwrap();
            assert!(why.contains(&format!("has no {file} ")), "{why}");
            assert!(!hierarchy.bounds_cpu);
            fs::write(tmp.path().join(file), "").unwrap();
            assert_eq!(hierarchy.look_for_quota(tmp.path()), None);
            assert!(hierarchy.bounds_cpu);
            // Another one has them.
            hierarchy.controllers.retain(|it| *it != "cpu");
            assert_eq!(hierarchy.look_for_quota(tmp.path()), None);
            assert!(!hierarchy.bounds_cpu);
        }
    }

    #[test]
    fn a_hybrid_host_mixes() {
        let tmp = tempfile::tempdir().unwrap();
        for d in ["memory", "unified"] {
            fs::create_dir_all(tmp.path().join(d)).unwrap();
        }
        fs::write(tmp.path().join("unified/cgroup.controllers"), "pids cpu\n").unwrap();
        fs::write(
            tmp.path().join("unified/cgroup.subtree_control"),
            "pids cpu\n",
        )
        .unwrap();
        let info = at(tmp.path(), "cgroup", "memory", "memory")
            + &at(tmp.path(), "cgroup2", "unified", "x");
        let (found, _) = hierarchies(&info, "4:memory:/\n0::/\n", None);
        assert_eq!(
            found
                .iter()
                .map(|h| (h.v2, h.controllers.join(",")))
                .collect::<Vec<_>>(),
            [(false, "memory".into()), (true, "pids,cpu".into())]
        );
    }
}

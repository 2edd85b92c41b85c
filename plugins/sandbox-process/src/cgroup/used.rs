//! What a group has counted, by its files.

use std::path::PathBuf;
use std::sync::Arc;

use super::hierarchy::Hierarchy;

/// What a group has counted.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct GroupUse {
    pub(crate) cpu_us: Option<u64>,
    pub(crate) peak_memory_bytes: Option<u64>,
    pub(crate) oom_kills: u64,
    /// Of those, none for its own limit: the memory of the host, or of a group above, was at its end. Nobody counts them apart:
    /// a limit that was never met has killed nothing. (v1: that it was met is counted by old kernels alone where swap is limited
    /// too, so it was not where the group has always had less than its limit.)
    pub(crate) killed_for_others: bool,
    pub(crate) pids_refused: u64,
}

impl GroupUse {
    /// With what a zygote's child has had from its birth.
    pub(super) fn with_copied(self, bytes: u64) -> Self {
        let peak = self.peak_memory_bytes.map(|peak| peak + bytes);
        GroupUse {
            peak_memory_bytes: peak,
            ..self
        }
    }
}

/// What a kernel asks a group for at once, and more: a huge page, or what it keeps in stock for later. A limit is met where less
/// than that is left of it.
const CHARGE_BYTES_MAX: u64 = 4 << 20;

const fn peak_file(v2: bool) -> &'static str {
    if v2 {
        "memory.peak"
    } else {
        "memory.max_usage_in_bytes"
    }
}

const fn cpu_file(v2: bool) -> &'static str {
    if v2 { "cpu.stat" } else { "cpuacct.usage" }
}

/// The files that [`count`] reads without `events`.
pub(super) fn use_files(v2: bool, controllers: &[String]) -> impl Iterator<Item = &'static str> {
    let has = |name| controllers.iter().any(|c| c == name);
    let peak = has("memory").then(|| peak_file(v2));
    let cpu = (v2 || has("cpuacct")).then(|| cpu_file(v2));
    peak.into_iter().chain(cpu)
}

/// Adds what one directory of a group has counted. `events`: how often a limit was met, too.
pub(super) fn count(
    total: &mut GroupUse,
    v2: bool,
    controllers: &[&str],
    events: bool,
    read: impl Fn(&str) -> String,
) {
    let number = |file: &str| read(file).trim().parse::<u64>().ok();
    if controllers.contains(&"memory") {
        total.peak_memory_bytes = number(peak_file(v2));
        if events {
            let file = if v2 {
                "memory.events"
            } else {
                "memory.oom_control"
            };
            total.oom_kills = field_of(&read(file), "oom_kill").unwrap_or(0);
            // What cannot be read is no reason to blame the host.
            total.killed_for_others = total.oom_kills > 0
                && match v2 {
                    true => field_of(&read(file), "oom") == Some(0),
                    // The second holds memory and swap together, and has the same value where swap is accounted.
                    false => {
                        let peak = total.peak_memory_bytes;
                        let peak = peak.max(number("memory.memsw.max_usage_in_bytes"));
                        let limit = number("memory.limit_in_bytes");
                        let is_below = peak.zip(limit).is_some_and(|(peak, limit)| {
                            peak.saturating_add(CHARGE_BYTES_MAX) < limit
                        });
                        is_below
                            && number("memory.failcnt") == Some(0)
                            && number("memory.memsw.failcnt").unwrap_or(0) == 0
                    }
                };
        }
    }
    if events && controllers.contains(&"pids") {
        total.pids_refused = field_of(&read("pids.events"), "max").unwrap_or(0);
    }
    if v2 {
        total.cpu_us = field_of(&read(cpu_file(v2)), "usage_usec");
    } else if controllers.contains(&"cpuacct") {
        total.cpu_us = number(cpu_file(v2)).map(|ns| ns / 1000);
    }
}

/// Whether groups in these say how much memory and time was used.
pub(super) fn counts_all(parents: &[(Arc<Hierarchy>, PathBuf)]) -> bool {
    let has = |(h, parent): &(Arc<Hierarchy>, PathBuf), file: fn(bool) -> &'static str| {
        let controllers: Vec<_> = h.controllers.iter().map(|c| (*c).to_owned()).collect();
        use_files(h.v2, &controllers).any(|f| f == file(h.v2) && parent.join(f).exists())
    };
    let some_has = |file| parents.iter().any(|parent| has(parent, file));
    some_has(cpu_file) && some_has(peak_file)
}

pub(super) fn field_of(text: &str, name: &str) -> Option<u64> {
    text.lines()
        .find_map(|l| l.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_group_counts_all_where_it_has_a_file_for_each() {
        let base = tempfile::tempdir().unwrap();
        let counts_all = |v2, controllers: &[&'static str], files: &[&str]| {
            let parent = base.path().join(files.concat());
            fs::create_dir_all(&parent).unwrap();
            for file in files {
                fs::write(parent.join(file), "").unwrap();
            }
            let hierarchy = Hierarchy {
                v2,
                controllers: controllers.to_vec(),
                bounds_cpu: true,
                base: base.path().into(),
            };
            counts_all(&[(Arc::new(hierarchy), parent)])
        };
        let (v1, v2) = (["cpuacct", "memory"], ["memory", "cpu"]);
        let of_v1 = ["cpuacct.usage", "memory.max_usage_in_bytes"];
        assert!(counts_all(true, &v2, &["cpu.stat", "memory.peak"]));
        assert!(!counts_all(true, &v2, &["cpu.stat"]), "Linux 5.18");
        assert!(!counts_all(true, &["pids"], &["cpu.stat"]));
        assert!(counts_all(false, &v1, &of_v1));
        assert!(!counts_all(false, &v1[1..], &of_v1[1..]));
    }

    #[test]
    fn who_was_killed_for_others_has_not_met_its_limit() {
        let counted = |v2, files: &[(&str, &str)]| {
            let mut total = GroupUse::default();
            count(&mut total, v2, &["memory"], true, |file| {
                let found = files.iter().find(|(name, _)| *name == file);
                found.map_or_else(String::new, |(_, text)| (*text).to_owned())
            });
            (total.oom_kills, total.killed_for_others)
        };
        let v2 = |events| counted(true, &[("memory.events", events)]);
        assert_eq!(v2("low 0\nmax 9\noom 0\noom_kill 0\n"), (0, false));
        assert_eq!(v2("low 0\nmax 9\noom 1\noom_kill 1\n"), (1, false));
        assert_eq!(v2("low 0\nmax 0\noom 0\noom_kill 2\n"), (2, true));
        let v1 = |more: &[(&'static str, &'static str)]| {
            let mut files = vec![
                ("memory.oom_control", "under_oom 0\noom_kill 1\n"),
                ("memory.failcnt", "0\n"),
                ("memory.max_usage_in_bytes", "100000000\n"),
                ("memory.limit_in_bytes", "268435456\n"),
            ];
            files.retain(|(name, _)| more.iter().all(|(other, _)| name != other));
            files.extend(more);
            counted(false, &files)
        };
        for (more, of_others) in [
            (&[][..], true),
            (&[("memory.memsw.failcnt", "0\n")], true),
            (&[("memory.memsw.failcnt", "3\n")], false),
            (&[("memory.failcnt", "3\n")], false),
            (&[("memory.failcnt", "")], false),
            // Both as a kernel of today says them of a run that has met both its limits.
            (
                &[
                    ("memory.max_usage_in_bytes", "268369920\n"),
                    ("memory.memsw.failcnt", "0\n"),
                ],
                false,
            ),
            (&[("memory.memsw.max_usage_in_bytes", "268369920\n")], false),
            (&[("memory.max_usage_in_bytes", "")], false),
            (&[("memory.limit_in_bytes", "")], false),
        ] {
            assert_eq!(v1(more), (1, of_others), "{more:?}");
        }
    }

    #[test]
    fn fields() {
        assert_eq!(
            field_of("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", "oom_kill"),
            Some(3)
        );
        assert_eq!(field_of("low 0\nmax 7\noom 1\n", "max"), Some(7));
        assert_eq!(field_of("", "max"), None);
    }
}

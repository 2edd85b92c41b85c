//! The process that a plugin shares: it is left as it was.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

use rustix::process::{Pid, getpid, set_child_subreaper};

use crate::bench::{Bench, Done, demand};
use crate::contract::{destroy, each_kind, go_round, make};
use crate::raw::{Handler, HostShape, Kind, RawPlugin, Shape, Values, locale, signal_handlers};
use crate::run::WRITTEN;

/// Instances that are made to see whether something of each stays.
const LIVES: usize = 4;

/// Ids and names of this process's threads.
pub(crate) fn threads() -> io::Result<BTreeMap<String, String>> {
    let mut threads = BTreeMap::new();
    for entry in std::fs::read_dir("/proc/self/task")? {
        let entry = entry?;
        // One that ends just now is none.
        if let Ok(name) = std::fs::read_to_string(entry.path().join("comm")) {
            let id = entry.file_name().to_string_lossy().into_owned();
            threads.insert(id, name.trim().to_owned());
        }
    }
    Ok(threads)
}

/// Numbers and names of open descriptors.
fn descriptors() -> io::Result<BTreeMap<String, String>> {
    let mut open = BTreeMap::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let entry = entry?;
        // The directory's own descriptor is gone when it is looked at.
        let Ok(what) = std::fs::read_link(entry.path()) else {
            continue;
        };
        let what = what.to_string_lossy().into_owned();
        if what != format!("/proc/{}/fd", getpid().as_raw_nonzero()) {
            open.insert(entry.file_name().to_string_lossy().into_owned(), what);
        }
    }
    Ok(open)
}

/// A line of /proc/self/status.
fn status(name: &str) -> io::Result<String> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with(name));
    Ok(line.unwrap_or_default().replace('\t', " "))
}

/// Processes whose parent is this one.
pub(crate) fn children() -> io::Result<Vec<(Pid, String)>> {
    let this = getpid().as_raw_nonzero().to_string();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(pid) = name.parse().ok().and_then(Pid::from_raw) else {
            continue;
        };
        // One that ends just now is none.
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else {
            continue;
        };
        let mut rest = stat
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .split_whitespace();
        // A zombie is none.
        if rest.next() != Some("Z") && rest.next() == Some(&this) {
            let comm = stat.split(['(', ')']).nth(1).unwrap_or_default();
            found.push((pid, comm.to_owned()));
        }
    }
    Ok(found)
}

/// Does with an instance what there is to do, looks at `look` before, while it lives, and after, and compares.
fn unchanged<T: PartialEq>(
    bench: &Bench,
    look: impl Fn() -> io::Result<T>,
    differ: impl Fn(&T, &T) -> String,
) -> Done {
    each_kind(bench, |plugin, kind| {
        let before = look()?;
        let compare = |when: &str| -> Done {
            let now = look()?;
            demand(now == before, || {
                format!("{when}: {}", differ(&before, &now))
            })
        };
        let instance = make(bench, plugin, kind, "a", HostShape::Now, Shape::Whole)?;
        compare("after create")?;
        go_round(bench, &instance, Values::Plain, Shape::Whole)?;
        compare("after some calls")?;
        destroy(bench, &instance)?;
        compare("after destroy")
    })
}

fn was<T: std::fmt::Debug>(before: &T, now: &T) -> String {
    format!("it was {before:?} and is {now:?}")
}

pub(crate) fn signals(bench: &Bench) -> Done {
    let look = || Ok((signal_handlers(), status("SigBlk")?));
    unchanged(bench, look, |before, now| {
        let changed = |(old, new): (&Handler, &Handler)| {
            (old != new).then(|| format!("the handler of signal {} is another", old.signal))
        };
        let changed: Vec<_> = before.0.iter().zip(&now.0).filter_map(changed).collect();
        if changed.is_empty() {
            was(&before.1, &now.1)
        } else {
            changed.join("; ")
        }
    })
}

pub(crate) fn working_directory(bench: &Bench) -> Done {
    unchanged(bench, std::env::current_dir, was::<PathBuf>)
}

pub(crate) fn umask(bench: &Bench) -> Done {
    unchanged(bench, || status("Umask"), was::<String>)
}

pub(crate) fn environment(bench: &Bench) -> Done {
    let look = || Ok(std::env::vars_os().collect::<BTreeMap<OsString, OsString>>());
    unchanged(bench, look, |before, now| {
        let names: Vec<_> = before
            .keys()
            .chain(now.keys())
            .filter(|name| before.get(*name) != now.get(*name))
            .map(|name| name.to_string_lossy().into_owned())
            .collect();
        format!("variables that are not as they were: {}", names.join(", "))
    })
}

pub(crate) fn locale_kept(bench: &Bench) -> Done {
    unchanged(bench, || Ok(locale()), was::<String>)
}

pub(crate) fn limits(bench: &Bench) -> Done {
    let look = || std::fs::read_to_string("/proc/self/limits");
    unchanged(bench, look, |before, now| {
        let changed = before
            .lines()
            .zip(now.lines())
            .filter(|(old, new)| old != new);
        let lines: Vec<_> = changed
            .map(|(_, new)| new.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        format!("changed limits: {}", lines.join("; "))
    })
}

pub(crate) fn identity(bench: &Bench) -> Done {
    let look = || {
        Ok([
            status("Uid")?,
            status("Gid")?,
            status("Groups")?,
            status("NoNewPrivs")?,
        ])
    };
    unchanged(bench, look, was::<[String; 4]>)
}

/// Makes and destroys instances; gives what there was after the first and after the last.
fn lives<T>(
    bench: &Bench,
    plugin: &RawPlugin,
    kind: Kind,
    look: impl Fn() -> io::Result<T>,
) -> Done<(T, T)> {
    let live = || -> Done<T> {
        let instance = make(bench, plugin, kind, "a", HostShape::Now, Shape::Whole)?;
        go_round(bench, &instance, Values::Plain, Shape::Whole)?;
        destroy(bench, &instance)?;
        Ok(look()?)
    };
    // The first may leave behind what all share.
    let first = live()?;
    for _ in 2..LIVES {
        live()?;
    }
    Ok((first, live()?))
}

pub(crate) fn descriptors_kept(bench: &Bench) -> Done {
    each_kind(bench, |plugin, kind| {
        let before = descriptors()?;
        let (first, last) = lives(bench, plugin, kind, descriptors)?;
        let closed: Vec<_> = before
            .iter()
            .filter(|(number, what)| last.get(*number) != Some(*what))
            .map(|(number, what)| format!("{number} ({what})"))
            .collect();
        demand(closed.is_empty(), || {
            format!(
                "descriptors that it did not open are closed or others: {}",
                closed.join(", ")
            )
        })?;
        let left: Vec<_> = last
            .iter()
            .filter(|(number, _)| !first.contains_key(*number))
            .map(|(number, what)| format!("{number} ({what})"))
            .collect();
        demand(left.is_empty(), || {
            format!(
                "{} destroyed instances have left descriptors open: {}",
                LIVES,
                left.join(", ")
            )
        })
    })
}

pub(crate) fn threads_kept(bench: &Bench) -> Done {
    each_kind(bench, |plugin, kind| {
        let (first, last) = lives(bench, plugin, kind, threads)?;
        demand(last.len() <= first.len(), || {
            let names: Vec<_> = last.values().map(String::as_str).collect();
            format!(
                "{} threads after the first destroyed instance, {} after {LIVES}: {}",
                first.len(),
                last.len(),
                names.join(", ")
            )
        })
    })
}

pub(crate) fn children_kept(bench: &Bench) -> Done {
    // What loses its parent below this process becomes a child of it.
    set_child_subreaper(Some(getpid())).map_err(io::Error::from)?;
    each_kind(bench, |plugin, kind| {
        let (_, left) = lives(bench, plugin, kind, children)?;
        let names: Vec<_> = left.iter().map(|(_, name)| name.as_str()).collect();
        demand(left.is_empty(), || {
            format!(
                "{} processes are left after destroy: {}",
                left.len(),
                names.join(", ")
            )
        })
    })
}

pub(crate) fn streams(bench: &Bench) -> Done {
    each_kind(bench, |plugin, kind| {
        lives(bench, plugin, kind, || Ok(()))?;
        for name in WRITTEN {
            let written = std::fs::read(bench.dir.join(name))?;
            let text = String::from_utf8_lossy(&written[..written.len().min(200)]).into_owned();
            demand(written.is_empty(), || {
                format!("it wrote to {name}: {text:?}")
            })?;
        }
        Ok(())
    })
}

//! The process that a plugin shares: it is left as it was.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, getpid, set_child_subreaper};

use crate::bench::{Bench, Done, demand};
use crate::contract::{destroy, each_kind, go_round, make};
use crate::raw::{Handler, HostShape, Kind, RawPlugin, Shape, Values, locale, signal_handlers};
use crate::run::WRITTEN;

/// Instances that are made to see whether something of each stays.
const LIVES: usize = 4;
/// Rounds of calls of one instance, each of which may start a process.
const ROUNDS: usize = 6;
/// So many may wait for the next round; where each leaves one there are more, though the last may not have ended yet.
const LATE_MAX: usize = ROUNDS / 2;
/// How late a process may be waited for that has ended.
const REAP_LIMIT: Duration = Duration::from_secs(5);
/// Between two looks.
const REAP_LOOK: Duration = Duration::from_millis(20);

/// PF_EXITING of linux/sched.h: set before the kernel tells pthread_join(3) that the thread is gone, and it runs nothing of
/// its process any more; yet it stays in /proc until the kernel has put it away, on a busy machine for milliseconds.
const EXITING: u32 = 0x4;

/// What a stat file of /proc says of a process or thread (proc_pid_stat(5)).
#[derive(Debug)]
pub(crate) struct Stat {
    pub(crate) name: String,
    /// A letter; `Z` of a zombie.
    pub(crate) state: String,
    pub(crate) parent: String,
    flags: u32,
    /// When it has started, in ticks since the system has.
    pub(crate) start: String,
}

impl Stat {
    /// Of a directory of /proc. Nothing of what has ended and is put away.
    pub(crate) fn read(dir: &Path) -> Option<Stat> {
        // The kernel cuts a name off at a byte, in the middle of a character too.
        let stat = std::fs::read(dir.join("stat")).ok()?;
        Stat::parse(&String::from_utf8_lossy(&stat))
    }

    fn parse(stat: &str) -> Option<Stat> {
        // A name may hold anything, brackets too.
        let (front, behind) = stat.rsplit_once(')')?;
        let fields: Vec<_> = behind.split_whitespace().collect();
        // The first behind the name is the third of all.
        let field = |number: usize| fields.get(number - 3).copied();
        Some(Stat {
            name: front.split_once('(')?.1.to_owned(),
            state: field(3)?.to_owned(),
            parent: field(4)?.to_owned(),
            flags: field(9)?.parse().ok()?,
            start: field(22)?.to_owned(),
        })
    }
}

/// Ids and names of this process's threads that run, or may.
pub(crate) fn threads() -> io::Result<BTreeMap<String, String>> {
    let mut threads = BTreeMap::new();
    for entry in std::fs::read_dir("/proc/self/task")? {
        let entry = entry?;
        if let Some(stat) = Stat::read(&entry.path())
            && stat.flags & EXITING == 0
        {
            let id = entry.file_name().to_string_lossy().into_owned();
            threads.insert(id, stat.name);
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

/// Processes that go on and whose parent is this one.
pub(crate) fn children() -> io::Result<Vec<(Pid, String)>> {
    of_this_process(|state| state != "Z")
}

/// Processes that have ended, and that this one has not waited for.
fn zombies() -> io::Result<Vec<(Pid, String)>> {
    of_this_process(|state| state == "Z")
}

fn of_this_process(wanted: impl Fn(&str) -> bool) -> io::Result<Vec<(Pid, String)>> {
    let this = getpid().as_raw_nonzero().to_string();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(pid) = name.parse().ok().and_then(Pid::from_raw) else {
            continue;
        };
        let Some(stat) = Stat::read(&entry.path()) else {
            continue;
        };
        if wanted(&stat.state) && stat.parent == this {
            found.push((pid, stat.name));
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

/// A few: one that is waited for when the next begins is no leak.
pub(crate) fn zombies_kept(bench: &Bench) -> Done {
    each_kind(bench, |plugin, kind| {
        let instance = make(bench, plugin, kind, "a", HostShape::Now, Shape::Whole)?;
        for _ in 0..ROUNDS {
            go_round(bench, &instance, Values::Plain, Shape::Whole)?;
        }
        bench.step("looking for processes that nobody has waited for");
        let left = until(|left| left <= LATE_MAX)?;
        destroy(bench, &instance)?;
        let names: Vec<_> = left.iter().map(|(_, name)| name.as_str()).collect();
        demand(left.len() <= LATE_MAX, || {
            format!(
                "after {ROUNDS} rounds of calls {} processes that have ended are still there as zombies, {} s later, and fill the process table: {}",
                left.len(),
                REAP_LIMIT.as_secs(),
                names.join(", ")
            )
        })?;
        let left = until(|left| left == 0)?;
        demand(left.is_empty(), || {
            format!(
                "destroy has returned, and {} processes of the instance are there as zombies",
                left.len()
            )
        })
    })
}

/// The zombies, as soon as there are so few, or after a while: who waits for them may be late.
fn until(few: impl Fn(usize) -> bool) -> io::Result<Vec<(Pid, String)>> {
    let late = Instant::now() + REAP_LIMIT;
    loop {
        let found = zombies()?;
        if few(found.len()) || Instant::now() > late {
            return Ok(found);
        }
        std::thread::sleep(REAP_LOOK);
    }
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

#[cfg(test)]
mod tests {
    use std::fs::File;

    use rustix::thread::{UnshareFlags, gettid, unshare_unsafe};

    use super::*;

    /// Each has a table of descriptors of its own, which the kernel empties when the joiner knows already that the thread is
    /// gone.
    #[test]
    #[allow(unsafe_code)]
    fn a_joined_thread_is_none() {
        for _ in 0..20 {
            let (tell, told) = std::sync::mpsc::channel();
            let (end, ended) = std::sync::mpsc::channel::<()>();
            let thread = std::thread::spawn(move || {
                // SAFETY: no other thread sees a descriptor of this table; this one closes none of those copied to it.
                unsafe { unshare_unsafe(UnshareFlags::FILES) }.unwrap();
                let open = || File::open("/dev/null").unwrap();
                let files: Vec<_> = std::iter::repeat_with(open).take(500).collect();
                std::mem::forget(files);
                tell.send(gettid().to_string()).unwrap();
                ended.recv().unwrap_err();
            });
            let id = told.recv().unwrap();
            assert!(threads().unwrap().contains_key(&id));
            drop(end);
            thread.join().unwrap();
            assert!(!threads().unwrap().contains_key(&id));
        }
    }

    #[test]
    fn a_name_that_is_cut_off_hides_no_thread() {
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        // Of its 16 bytes the kernel keeps 15.
        let thread = std::thread::Builder::new().name("ääääääää".into());
        let thread = thread.spawn(move || {
            tell.send(gettid().to_string()).unwrap();
            ended.recv().unwrap_err();
        });
        let id = told.recv().unwrap();
        assert!(threads().unwrap()[&id].starts_with("äääääää"));
        drop(end);
        thread.unwrap().join().unwrap();
    }

    #[test]
    fn a_name_may_hold_brackets_and_spaces() {
        let stat = "12 (a) Z (b) S 7 12 12 0 -1 4194308 1 2 3 4 5 6 7 8 20 0 1 0 99 0";
        let stat = Stat::parse(stat).unwrap();
        assert_eq!((stat.name.as_str(), stat.state.as_str()), ("a) Z (b", "S"));
        assert_eq!((stat.parent.as_str(), stat.start.as_str()), ("7", "99"));
        assert_eq!(stat.flags & EXITING, EXITING);
        assert!(Stat::parse("12 (a) S 7").is_none());
    }
}

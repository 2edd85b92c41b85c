//! What runs leave on the disk: nothing, in the directories that the kit knows of.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{request, run};
use crate::bench::{Bench, Done, demand};
use crate::sandbox::life::until_none;

/// Runs after which nothing is looked at: the first may make what all share.
const FIRST: usize = 2;
/// Runs that may leave something; fewer files than runs are what a plugin keeps for its next one.
const RUNS: usize = 6;
/// Of what is left so much is named.
const NAMED: usize = 3;

/// A run that leaves files where it may, and one in two that fails.
fn code(number: usize) -> String {
    let fails = number % 2;
    format!(
        "def main(args):\n    for place in ('/workspace', '/tmp', '/dev/shm'):\n        try: open(place + '/skillgate-check-left', 'w').write('x' * 10000)\n        except OSError: pass\n    return 1 // (1 - {fails})\n"
    )
}

pub(crate) fn left(bench: &Bench) -> Done {
    let sandbox = super::python(bench)?;
    let places = bench.places("a");
    let runs = |count: usize| -> Done {
        for number in 0..count {
            let what = "one that leaves files inside";
            run(
                bench,
                &sandbox,
                what,
                request(&code(number)),
                &Arc::default(),
            )?;
        }
        Ok(())
    };
    runs(FIRST)?;
    let before = files(&places)?;
    runs(RUNS)?;
    bench.step("looking for files of runs");
    // Those that take their time to go are no leftovers.
    let left = until_none(|| {
        let now = files(&places)?;
        let new: Vec<PathBuf> = now.difference(&before).cloned().collect();
        let grown = now.len() >= before.len() + RUNS;
        Ok(if grown { new } else { Vec::new() })
    })?;
    let named: Vec<_> = left
        .iter()
        .take(NAMED)
        .map(|path| shown(path, &bench.dir))
        .collect();
    demand(left.is_empty(), || {
        format!(
            "{RUNS} runs have ended, and {} files or directories are there that were not before: {}",
            left.len(),
            named.join(", ")
        )
    })
}

/// As its owner knows it.
fn shown(path: &Path, dir: &Path) -> String {
    let below = path.strip_prefix(dir).unwrap_or(path).display().to_string();
    let names = [("state/a/", "state_dir/"), ("a/", "${scratch}/")];
    let known = names
        .iter()
        .find_map(|(from, to)| Some(format!("{to}{}", below.strip_prefix(from)?)));
    known.unwrap_or(below)
}

/// All that is below these. What others may not look into, and what goes just now, is not.
fn files(places: &[PathBuf]) -> io::Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    let mut todo = places.to_vec();
    while let Some(dir) = todo.pop() {
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                todo.push(entry.path());
            }
            found.insert(entry.path());
        }
    }
    Ok(found)
}

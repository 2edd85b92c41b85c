//! How many bytes the blobs take: counted by looking, a part with each health call, so that neither a start nor a call has
//! to wait for a store that has grown large. What is there and what has gone meanwhile is seen by the next count.

use std::sync::Mutex;

use rustix::fs::{AtFlags, FileType, statat};
use rustix::io::Errno;

use super::{CHUNKS_FILE, DATA_FILE};
use crate::beneath;
use crate::fault::{Fault, Result};
use crate::ground::Ground;

/// Directories and blobs that one call looks at; those of the directory that it is at are looked at to the end.
const MAX_LOOKED_AT: usize = 10_000;

const TENANTS: &str = "tenants";

#[derive(Debug, Default)]
pub(super) struct Census {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Directories that are to be looked at yet: empty between two counts.
    todo: Vec<Visit>,
    bytes: u64,
    /// The last whole count.
    counted: Option<u64>,
}

/// A directory, by what its entries are.
#[derive(Debug)]
enum Visit {
    Tenants,
    Prefixes(String),
    Blobs(String),
}

impl Census {
    /// Goes on counting, and gives the last count that has come to its end.
    pub(super) fn bytes(&self, ground: &Ground) -> Option<u64> {
        // A count that was broken off is begun anew.
        let mut state = self.state.lock().unwrap_or_else(|poisoned| {
            let mut state = poisoned.into_inner();
            state.todo.clear();
            state
        });
        if let Err(fault) = state.go_on(ground) {
            state.todo.clear();
            ground.warn("could not count the bytes of all blobs", &fault);
        }
        state.counted
    }
}

impl State {
    fn go_on(&mut self, ground: &Ground) -> Result<()> {
        if self.todo.is_empty() {
            self.todo.push(Visit::Tenants);
            self.bytes = 0;
        }
        let mut looked_at = 0;
        while looked_at < MAX_LOOKED_AT {
            let Some(visit) = self.todo.pop() else {
                break;
            };
            looked_at += 1 + self.visit(ground, visit)?;
        }
        if self.todo.is_empty() {
            self.counted = Some(self.bytes);
        }
        Ok(())
    }

    /// Gives the number of entries.
    fn visit(&mut self, ground: &Ground, visit: Visit) -> Result<usize> {
        let path = match &visit {
            Visit::Tenants => TENANTS,
            Visit::Prefixes(path) | Visit::Blobs(path) => path,
        };
        let dir = match beneath::open_dir(ground.root(), path) {
            Ok(dir) => dir,
            Err(fault) if fault.is_missing() => return Ok(0),
            Err(fault) => return Err(fault),
        };
        let mut entries = beneath::entries(&dir, path)?;
        entries.retain(|(_, kind)| *kind == FileType::Directory);
        for (name, _) in &entries {
            match &visit {
                Visit::Tenants => self
                    .todo
                    .push(Visit::Prefixes(format!("{TENANTS}/{name}/blobs"))),
                Visit::Prefixes(path) => self.todo.push(Visit::Blobs(format!("{path}/{name}"))),
                Visit::Blobs(path) => {
                    for file in [DATA_FILE, CHUNKS_FILE] {
                        let file = format!("{name}/{file}");
                        match statat(&dir, &file, AtFlags::SYMLINK_NOFOLLOW) {
                            Ok(stat) => self.bytes += u64::try_from(stat.st_size).unwrap_or(0),
                            // A small blob has no digests of chunks, and one that has just been deleted has nothing.
                            Err(Errno::NOENT) => {}
                            Err(errno) => {
                                return Err(Fault::os("stat", &format!("{path}/{file}"))(errno));
                            }
                        }
                    }
                }
            }
        }
        Ok(entries.len())
    }
}

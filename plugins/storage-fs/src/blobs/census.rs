//! How many bytes the blobs take: counted by looking, a part with each health call, so that neither a start nor a call has
//! to wait for a store that has grown large. What is there and what has gone meanwhile is seen by the next count.

use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError, TryLockError};

use rustix::fs::{AtFlags, statat};
use rustix::io::Errno;

use super::{CHUNKS_FILE, DATA_FILE};
use crate::beneath;
use crate::clock::Clock;
use crate::fault::{Fault, Result};
use crate::ground::Ground;

/// Directories and blobs that one call looks at.
const MAX_LOOKED_AT: usize = 10_000;
/// How long one call looks: whoever asks for the health waits for seconds only, and there are file systems on which a look takes
/// a millisecond.
const LOOKS_FOR_MS: u64 = 100;

const TENANTS: &str = "tenants";

#[derive(Debug, Default)]
pub(super) struct Census {
    count: Mutex<Count>,
    /// The last whole count.
    counted: Mutex<Option<u64>>,
}

#[derive(Debug, Default)]
struct Count {
    /// Directories that are to be looked at yet: empty between two counts.
    todo: Vec<Visit>,
    bytes: u64,
}

/// A directory, by what its entries are.
#[derive(Debug)]
enum Visit {
    Tenants,
    Prefixes(String),
    Blobs(String),
    /// These of them.
    These(String, Vec<String>),
}

/// What one call may still look at.
struct Look<'a> {
    clock: &'a Clock,
    began_ms: u64,
    looked_at: usize,
}

impl Look<'_> {
    /// One more was looked at: is that enough?
    fn is_enough(&mut self) -> bool {
        self.looked_at += 1;
        self.looked_at >= MAX_LOOKED_AT || (self.clock)().abs_diff(self.began_ms) >= LOOKS_FOR_MS
    }
}

impl Census {
    /// Goes on counting, and gives the last count that has come to its end. While another call counts it does not wait for it:
    /// on a file system that hangs one thread hangs, and not one for each call.
    pub(super) fn bytes(&self, ground: &Ground, clock: &Clock) -> Option<u64> {
        let count = match self.count.try_lock() {
            Ok(count) => Some(count),
            // A count that was broken off is begun anew.
            Err(TryLockError::Poisoned(poisoned)) => {
                let mut count = poisoned.into_inner();
                count.todo.clear();
                Some(count)
            }
            Err(TryLockError::WouldBlock) => None,
        };
        let went_on = count.map(|mut count| {
            let went_on = count.go_on(ground, clock);
            if went_on.is_err() {
                count.todo.clear();
            }
            went_on
        });
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        match went_on {
            Some(Ok(Some(bytes))) => *counted = Some(bytes),
            Some(Err(fault)) => ground.warn("could not count the bytes of all blobs", &fault),
            Some(Ok(None)) | None => {}
        }
        *counted
    }
}

impl Count {
    /// Gives the sum when it has come to its end.
    fn go_on(&mut self, ground: &Ground, clock: &Clock) -> Result<Option<u64>> {
        let mut look = Look {
            clock,
            began_ms: clock(),
            looked_at: 0,
        };
        if self.todo.is_empty() {
            self.todo.push(Visit::Tenants);
            self.bytes = 0;
        }
        // At least one of them, so that it comes to its end.
        while let Some(visit) = self.todo.pop() {
            if self.visit(ground, visit, &mut look)? {
                break;
            }
        }
        Ok(self.todo.is_empty().then_some(self.bytes))
    }

    /// Gives whether it was enough for this call.
    fn visit(&mut self, ground: &Ground, visit: Visit, look: &mut Look<'_>) -> Result<bool> {
        let path = match &visit {
            Visit::Tenants => TENANTS,
            Visit::Prefixes(path) | Visit::Blobs(path) | Visit::These(path, _) => path,
        };
        let dir = match beneath::open_dir(ground.root(), path) {
            Ok(dir) => dir,
            Err(fault) if fault.is_missing() => return Ok(look.is_enough()),
            Err(fault) => return Err(fault),
        };
        let names = || beneath::directories(&dir, path);
        match visit {
            Visit::Tenants => {
                let prefixes = |name| Visit::Prefixes(format!("{TENANTS}/{name}/blobs"));
                self.todo.extend(names()?.into_iter().map(prefixes));
            }
            Visit::Prefixes(ref path) => {
                let blobs = |name| Visit::Blobs(format!("{path}/{name}"));
                self.todo.extend(names()?.into_iter().map(blobs));
            }
            Visit::Blobs(ref path) => {
                let names = names()?;
                self.todo.push(Visit::These(path.clone(), names));
            }
            Visit::These(path, mut names) => {
                while let Some(name) = names.pop() {
                    self.look(&dir, &path, &name)?;
                    if look.is_enough() {
                        if !names.is_empty() {
                            self.todo.push(Visit::These(path, names));
                        }
                        return Ok(true);
                    }
                }
            }
        }
        Ok(look.is_enough())
    }

    fn look(&mut self, dir: &OwnedFd, path: &str, blob: &str) -> Result<()> {
        for file in [DATA_FILE, CHUNKS_FILE] {
            let file = format!("{blob}/{file}");
            match statat(dir, &file, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => {
                    let bytes = u64::try_from(stat.st_size).unwrap_or(0);
                    self.bytes = self.bytes.saturating_add(bytes);
                }
                // A small blob has no digests of chunks, and one that has just been deleted has nothing.
                Err(Errno::NOENT) => {}
                Err(errno) => {
                    return Err(Fault::os("stat", &format!("{path}/{file}"))(errno));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;

    use skillgate_plugin_sdk::Host;

    use super::*;
    use crate::floor::{self, Floor, Size};

    const BLOBS: u64 = 50;

    /// A store with one directory of blobs of a byte each.
    fn ground(dir: &std::path::Path) -> Ground {
        let floor = Floor::new(Size::default(), floor::of_the_file_system());
        let host = Host::for_tests(|_, _, _, _| {});
        let ground = Ground::open(dir, false, floor, host).unwrap();
        for blob in 0..BLOBS {
            let blob = dir.join(format!("tenants/acme/blobs/aa/{blob}"));
            std::fs::create_dir_all(&blob).unwrap();
            std::fs::write(blob.join(DATA_FILE), b"x").unwrap();
        }
        ground
    }

    #[test]
    fn who_asks_while_another_counts_does_not_wait() {
        let dir = tempfile::tempdir().unwrap();
        let ground = ground(dir.path());
        let clock: Clock = Arc::new(|| 0);
        let census = Arc::new(Census::default());
        assert_eq!(census.bytes(&ground, &clock), Some(BLOBS));
        let counting = census.count.lock().unwrap();
        let (send, receive) = mpsc::channel();
        let asked = Arc::clone(&census);
        std::thread::spawn(move || send.send(asked.bytes(&ground, &clock)));
        let answer = receive.recv_timeout(Duration::from_secs(60));
        assert_eq!(answer, Ok(Some(BLOBS)), "the last number");
        drop(counting);
    }

    #[test]
    fn a_call_ends_in_time_and_the_next_one_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let ground = ground(dir.path());
        let now = AtomicU64::new(0);
        let slow: Clock = Arc::new(move || now.fetch_add(LOOKS_FOR_MS, Ordering::Relaxed));
        let census = Census::default();
        // All tenants, one of them, one directory of its blobs.
        let before = 3;
        for call in 1..before + BLOBS {
            assert_eq!(census.bytes(&ground, &slow), None, "call {call}");
            let seen = census.count.lock().unwrap().bytes;
            assert_eq!(seen, call.saturating_sub(before), "call {call}");
        }
        assert_eq!(census.bytes(&ground, &slow), Some(BLOBS));
        // It counts until the next one has come to its end.
        std::fs::remove_dir_all(dir.path().join("tenants/acme/blobs/aa/7")).unwrap();
        for _ in 1..before + BLOBS - 1 {
            assert_eq!(census.bytes(&ground, &slow), Some(BLOBS));
        }
        assert_eq!(census.bytes(&ground, &slow), Some(BLOBS - 1));
    }
}

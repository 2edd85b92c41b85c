//! Blobs that do not stay. That one has expired is decided at every look by its `meta.json`; what is here only frees the disk.
//!
//! A blob with an end leaves an empty file `expires/<minute>/<tenant>/<name>`, durable before the blob is visible. A sweep
//! reads the minutes that have passed and nothing else: a start over 100,000 blobs costs the same as over none.

use std::collections::{BTreeMap, HashSet};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, unlinkat};
use rustix::io::Errno;
use skillgate_plugin_sdk::Level;

use super::place;
use crate::beneath;
use crate::clock::Clock;
use crate::fault::{Fault, Result};
use crate::ground::{Ground, TARGET};
use crate::names::{BlobName, TenantDir};

const EXPIRES: &str = "expires";
const MINUTE_MS: u64 = 60_000;

/// When a store looks for what has expired: by default after a minute, and again a minute after each sweep has ended. What
/// expires while the store serves is free within three minutes: a minute's blobs are due at its end, and by two looks at the
/// clock.
#[derive(Debug, Clone, Copy)]
pub struct Sweeps {
    /// From the start to the first one.
    pub after: Duration,
    /// From the end of one to the next.
    pub every: Duration,
}

impl Default for Sweeps {
    fn default() -> Self {
        let minute = Duration::from_millis(MINUTE_MS);
        Sweeps {
            after: minute,
            every: minute,
        }
    }
}

/// Blobs of a tenant that go before the directories that they were in are made durable, each of them once.
const SETTLED_TOGETHER: usize = 1000;

/// Things that one sweep could not remove and names in the log; of the others it says how many they are.
const MAX_TOLD: usize = 8;

/// The first minute that begins after the blob has expired.
fn minute_after(expires_unix_ms: u64) -> u64 {
    expires_unix_ms / MINUTE_MS + 1
}

/// The names of blobs that have a marker and are about to be published. A sweep leaves these alone, however due they are: to it
/// they are not there yet, and of one that became visible after its marker had gone nobody would ever free the disk. One process
/// uses a store, so this is known here.
#[derive(Debug, Default)]
struct Coming(Mutex<HashSet<String>>);

/// One of them, until it is dropped.
#[derive(Debug)]
struct Comes {
    coming: Arc<Coming>,
    name: String,
}

impl Coming {
    fn names(&self) -> MutexGuard<'_, HashSet<String>> {
        // A panic while it was held leaves a set, whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(self: &Arc<Self>, name: &str) -> Comes {
        self.names().insert(name.to_owned());
        Comes {
            coming: Arc::clone(self),
            name: name.to_owned(),
        }
    }

    fn has(&self, name: &str) -> bool {
        self.names().contains(name)
    }
}

impl Drop for Comes {
    fn drop(&mut self) {
        self.coming.names().remove(&self.name);
    }
}

/// A marker that is taken away again unless its blob has been published.
#[derive(Debug)]
pub(super) struct Marker {
    dir: OwnedFd,
    comes: Comes,
    kept: bool,
}

impl Marker {
    fn set(
        ground: &Ground,
        coming: &Arc<Coming>,
        expires_unix_ms: u64,
        tenant: &TenantDir,
        name: &BlobName,
    ) -> Result<Marker> {
        let path = format!(
            "{EXPIRES}/{}/{}",
            minute_after(expires_unix_ms),
            tenant.as_str()
        );
        // Before any sweep can find it.
        let comes = coming.enter(name.as_str());
        // A sweep removes directories that are empty, this one too when the clock has jumped.
        let dir = ground.in_dir(&path, |dir| {
            beneath::create_file(&dir, name.as_str())?;
            Ok(dir)
        })?;
        let marker = Marker {
            dir,
            comes,
            kept: false,
        };
        ground.sync_shared(&marker.dir, &path)?;
        Ok(marker)
    }

    pub(super) fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Marker {
    fn drop(&mut self) {
        if !self.kept {
            // A marker without a blob does no harm: the sweep removes it when its time has come.
            let _ = unlinkat(&self.dir, &self.comes.name, AtFlags::empty());
        }
    }
}

/// Frees what has expired, on a thread of its own: it does not depend on who asks the store for what, and nobody waits for
/// it. The thread has ended when this has been dropped.
#[derive(Debug)]
pub(super) struct Sweeper {
    shared: Arc<Shared>,
    coming: Arc<Coming>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    ended: Mutex<bool>,
    told: Condvar,
    /// What the last sweep could not remove; see [`Swept::stuck_after`].
    stuck: AtomicUsize,
}

impl Shared {
    fn ended(&self) -> MutexGuard<'_, bool> {
        // A panic while it was held leaves one of two values, both of them valid.
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the end, but not for ever.
    fn ends_within(&self, pause: Duration) -> bool {
        let waited = self
            .told
            .wait_timeout_while(self.ended(), pause, |ended| !*ended);
        let (ended, _) = waited.unwrap_or_else(PoisonError::into_inner);
        *ended
    }
}

impl Sweeper {
    /// The first sweep takes what has expired while nobody was here.
    ///
    /// What is removed is gone for good, and a clock may be ahead: a machine has started, and its time is about to be set.
    /// So a sweep believes the earlier of two looks, this one and the one before, a pause ago.
    pub(super) fn start(ground: Arc<Ground>, clock: Clock, sweeps: Sweeps) -> Result<Sweeper> {
        let shared = Arc::<Shared>::default();
        let its = Arc::clone(&shared);
        let coming = Arc::<Coming>::default();
        let leaves = Arc::clone(&coming);
        let work = move || {
            let (mut before, mut pause) = (clock(), sweeps.after);
            while !its.ends_within(pause) {
                let now = clock();
                let swept = sweep(&ground, now.min(before), &leaves, &|| *its.ended());
                let stuck = swept.stuck_after(its.stuck.load(Ordering::Relaxed));
                its.stuck.store(stuck, Ordering::Relaxed);
                swept.tell(&ground);
                (before, pause) = (now, sweeps.every);
            }
        };
        let thread = std::thread::Builder::new().name("skillgate-sweep".into());
        let thread = thread.spawn(work).map_err(|error| {
            Fault::Exhausted(format!(
                "cannot start the thread that removes expired blobs: {error}"
            ))
        })?;
        Ok(Sweeper {
            shared,
            coming,
            thread: Some(thread),
        })
    }

    /// The marker of a blob that is about to be published.
    pub(super) fn mark(
        &self,
        ground: &Ground,
        expires_unix_ms: u64,
        tenant: &TenantDir,
        name: &BlobName,
    ) -> Result<Marker> {
        Marker::set(ground, &self.coming, expires_unix_ms, tenant, name)
    }

    /// How much the last sweep could not remove, at least: 1 where it could not look.
    pub(super) fn stuck(&self) -> usize {
        self.shared.stuck.load(Ordering::Relaxed)
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        *self.shared.ended() = true;
        self.shared.told.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of it has been reported where it happened.
            let _ = thread.join();
        }
    }
}

/// What has become of a sweep.
#[derive(Debug, Default)]
struct Swept {
    removed: usize,
    /// Could not be removed, and waits for the next sweep.
    stuck: usize,
    /// Why it has seen no more.
    ended: Option<Fault>,
}

impl Swept {
    /// How much is stuck, by this sweep and what was known before it: one that has not seen all says nothing against that.
    fn stuck_after(&self, before: usize) -> usize {
        match self.ended {
            None => self.stuck,
            Some(_) => before.max(self.stuck).max(1),
        }
    }

    fn tell(&self, ground: &Ground) {
        let count = |level, message, count: usize| {
            let count = count.to_string();
            let fields = [("count", count.as_str())];
            ground.host().log(level, TARGET, message, &fields);
        };
        if let Some(fault) = &self.ended {
            ground.warn("could not look for all expired blobs", fault);
        }
        if self.stuck > MAX_TOLD {
            let message = "could not remove more of what has expired";
            count(Level::Warn, message, self.stuck - MAX_TOLD);
        }
        if self.removed > 0 {
            count(Level::Info, "removed expired blobs", self.removed);
        }
    }
}

/// Removes what has expired and is there, until `is_over`.
fn sweep(ground: &Ground, now_unix_ms: u64, coming: &Coming, is_over: &dyn Fn() -> bool) -> Swept {
    let mut sweep = Sweep {
        ground,
        now_unix_ms,
        coming,
        is_over,
        swept: Swept::default(),
    };
    // The thread goes on: else what expires would stay, and nobody would hear of it.
    let seen = catch_unwind(AssertUnwindSafe(|| sweep.all()));
    let seen = seen.unwrap_or_else(|_| {
        let said = "it panicked, which is a mistake in this plugin; the place has been reported on standard error";
        Err(Fault::Unavailable(said.into()))
    });
    sweep.swept.ended = seen.err();
    sweep.swept
}

struct Sweep<'a> {
    ground: &'a Ground,
    now_unix_ms: u64,
    coming: &'a Coming,
    is_over: &'a dyn Fn() -> bool,
    swept: Swept,
}

impl Sweep<'_> {
    /// An error, here and below, ends what the function is about; [`Sweep::go_on`] says whether the rest has its turn.
    fn all(&mut self) -> Result<()> {
        let all = match beneath::open_dir(self.ground.root(), EXPIRES) {
            // Another thing in its place has no markers either, and those that there were are not known.
            Err(Fault::Os { errno, .. }) if errno == Errno::NOENT => return Ok(()),
            all => all?,
        };
        for (minute, _) in beneath::entries(&all, EXPIRES)? {
            if (self.is_over)() {
                return Ok(());
            }
            let due = minute
                .parse::<u64>()
                .is_ok_and(|m| m.saturating_mul(MINUTE_MS) <= self.now_unix_ms);
            if due {
                let path = format!("{EXPIRES}/{minute}");
                let swept = self.minute(&minute, &path);
                self.go_on(&path, swept)?;
            }
        }
        Ok(())
    }

    fn minute(&mut self, minute: &str, path: &str) -> Result<()> {
        let Some(tenants) = open_if_there(self.ground, path)? else {
            return Ok(());
        };
        for (tenant, kind) in beneath::entries(&tenants, path)? {
            if (self.is_over)() {
                return Ok(());
            }
            if let (FileType::Directory, Some(tenant)) = (kind, TenantDir::from_entry(&tenant)) {
                let swept = self.tenant(path, &tenant);
                self.go_on(&format!("{path}/{}", tenant.as_str()), swept)?;
            }
        }
        self.ground.remove_empty_dir(EXPIRES, minute)
    }

    fn tenant(&mut self, minute: &str, tenant: &TenantDir) -> Result<()> {
        let path = format!("{minute}/{}", tenant.as_str());
        let Some(markers) = open_if_there(self.ground, &path)? else {
            return Ok(());
        };
        for some in beneath::entries(&markers, &path)?.chunks(SETTLED_TOGETHER) {
            let some = some.iter().map(|(marker, _)| marker.as_str());
            self.some(&path, &markers, tenant, some)?;
        }
        self.ground.remove_empty_dir(minute, tenant.as_str())
    }

    fn some<'n>(
        &mut self,
        path: &str,
        markers: &OwnedFd,
        tenant: &TenantDir,
        names: impl Iterator<Item = &'n str>,
    ) -> Result<()> {
        let mut gone = BTreeMap::<String, Vec<&str>>::new();
        for marker in names {
            if (self.is_over)() {
                return Ok(());
            }
            // Asked before the blob is looked for: one that is not coming any more is there, or never will be.
            if self.coming.has(marker) {
                continue;
            }
            if let Some(name) = BlobName::parse(&format!("blob:{marker}")) {
                let place = place(tenant, &name);
                let retired = self.ground.retire(&place.parent, name.as_str(), false);
                if let Some(was_there) = self.go_on(&place.path, retired)? {
                    self.swept.removed += usize::from(was_there);
                    gone.entry(place.parent).or_default().push(marker);
                }
            }
        }
        // The blobs are gone for good before their markers are: otherwise a power cut could bring back one that no sweep
        // would find. One that was not there may have been taken by a sweep that did not come to this.
        for (parent, its) in gone {
            if (self.is_over)() {
                return Ok(());
            }
            let settled = self.settle(&parent);
            if self.go_on(&parent, settled)?.is_none() {
                continue;
            }
            for marker in its {
                let shown = format!("{path}/{marker}");
                let unlinked = match unlinkat(markers, marker, AtFlags::empty()) {
                    Ok(()) | Err(Errno::NOENT) => Ok(()),
                    Err(errno) => Err(Fault::os("remove", &shown)(errno)),
                };
                self.go_on(&shown, unlinked)?;
            }
        }
        Ok(())
    }

    fn settle(&self, parent: &str) -> Result<()> {
        match open_if_there(self.ground, parent)? {
            Some(_) => self.ground.settle(parent),
            None => Ok(()),
        }
    }

    /// What is in the way of one thing is told, and the others have their turn: nobody's blobs wait for those of another.
    /// `None`: something was.
    fn go_on<T>(&mut self, path: &str, result: Result<T>) -> Result<Option<T>> {
        match result {
            Ok(done) => Ok(Some(done)),
            // The others would fare no better.
            Err(fault) if fault.is_shortage() || self.ground.broken().is_some() => Err(fault),
            Err(fault) => {
                self.swept.stuck += 1;
                if self.swept.stuck <= MAX_TOLD {
                    let error = fault.to_string();
                    self.ground.host().log(
                        Level::Warn,
                        TARGET,
                        "could not remove what has expired: the next sweep tries again",
                        &[("path", path), ("error", &error)],
                    );
                }
                Ok(None)
            }
        }
    }
}

fn open_if_there(ground: &Ground, path: &str) -> Result<Option<OwnedFd>> {
    match beneath::open_dir(ground.root(), path) {
        Ok(dir) => Ok(Some(dir)),
        Err(fault) if fault.is_missing() => Ok(None),
        Err(fault) => Err(fault),
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::floor::{self, Floor, Size};
    use skillgate_plugin_sdk::Host;

    /// Blobs with these ends of their names, each to be removed when so many minutes have passed.
    fn blobs_that_end(root: &Path, all: &[(&str, u64)]) -> (Ground, Vec<PathBuf>) {
        let floor = Floor::new(Size::default(), floor::of_the_file_system());
        let host = Host::for_tests(|_, _, _, _| {});
        let ground = Ground::open(root, false, floor, host).unwrap();
        let put = |&(last, minute): &(&str, u64)| {
            let name = format!("{}{last}", "a".repeat(25));
            let markers = ground.ensure_dir(&format!("expires/{minute}/acme"));
            beneath::create_file(markers.unwrap(), &name).unwrap();
            let dir = root.join("tenants/acme/blobs/aa").join(name);
            std::fs::create_dir_all(&dir).unwrap();
            dir
        };
        let dirs = all.iter().map(put).collect();
        (ground, dirs)
    }

    /// As a machine's is that has started, until its time is set.
    #[test]
    fn a_clock_that_is_ahead_at_every_second_look_removes_nothing_early() {
        let dir = tempfile::tempdir().unwrap();
        let (ground, dirs) = blobs_that_end(dir.path(), &[("b", 2), ("c", 9)]);
        let (looks, seen) = std::sync::mpsc::sync_channel(0);
        let looks = Mutex::new((0, looks));
        let clock = move || {
            let (count, looks) = &mut *looks.lock().unwrap();
            *count += 1;
            // Until the test has seen enough.
            let _ = looks.send(());
            [5, 1000][*count % 2] * MINUTE_MS
        };
        let sweeps = Sweeps {
            after: Duration::ZERO,
            every: Duration::ZERO,
        };
        let sweeper = Sweeper::start(Arc::new(ground), Arc::new(clock), sweeps).unwrap();
        seen.iter().take(6).for_each(drop);
        drop(seen);
        drop(sweeper);
        let there = dirs.iter().map(|dir| dir.exists());
        assert_eq!(there.collect::<Vec<_>>(), [false, true]);
    }

    #[test]
    fn a_sweep_that_panics_has_not_seen_all() {
        let dir = tempfile::tempdir().unwrap();
        let (ground, dirs) = blobs_that_end(dir.path(), &[("b", 2)]);
        let coming = Coming::default();
        let swept = sweep(&ground, 5 * MINUTE_MS, &coming, &|| panic!("by the test"));
        assert_eq!((swept.removed, swept.stuck_after(0)), (0, 1));
        assert!(
            swept
                .ended
                .is_some_and(|fault| fault.to_string().contains("panicked"))
        );
        let swept = sweep(&ground, 5 * MINUTE_MS, &coming, &|| false);
        assert_eq!((swept.removed, swept.stuck_after(1)), (1, 0));
        assert!(!dirs[0].exists());
    }

    #[test]
    fn a_marker_is_set_while_a_sweep_removes_its_directory() {
        const TIMES: usize = 2000;
        let dir = tempfile::tempdir().unwrap();
        let (ground, _) = blobs_that_end(dir.path(), &[]);
        let tenant = TenantDir::new("acme").unwrap();
        let coming = Arc::<Coming>::default();
        let both = std::sync::Barrier::new(2);
        let refused = std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..TIMES {
                    both.wait();
                    sweep(&ground, MINUTE_MS, &coming, &|| false);
                }
            });
            let refused = (0..TIMES).filter_map(|_| {
                both.wait();
                let name = BlobName::random().unwrap();
                // Dropped, it leaves an empty directory.
                Marker::set(&ground, &coming, 0, &tenant, &name).err()
            });
            refused.collect::<Vec<_>>()
        });
        assert!(refused.is_empty(), "{} {:?}", refused.len(), refused[0]);
    }

    #[test]
    fn a_sweep_that_is_over_stops_and_the_next_one_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let names = [("b", 1), ("c", 1), ("d", 1)];
        let none = Coming::default();
        let (ground, _) = blobs_that_end(dir.path(), &names);
        let blobs = dir.path().join("tenants/acme/blobs/aa");
        let left = || std::fs::read_dir(&blobs).unwrap().count();
        let one_is_gone = || left() < names.len();
        assert_eq!(sweep(&ground, MINUTE_MS, &none, &one_is_gone).removed, 1);
        assert_eq!(left(), 2);
        // Its marker is there until its absence is known to be durable.
        let markers = dir.path().join("expires/1/acme");
        assert_eq!(std::fs::read_dir(&markers).unwrap().count(), 3);
        assert_eq!(sweep(&ground, MINUTE_MS, &none, &|| false).removed, 2);
        assert_eq!(left(), 0);
        assert!(!markers.exists());
    }

    #[test]
    fn a_sweep_that_is_broken_off_says_nothing_against_the_one_before() {
        let swept = |stuck, ended| Swept {
            stuck,
            ended,
            ..Swept::default()
        };
        assert_eq!(swept(2, None).stuck_after(5), 2);
        for (stuck, before, known) in [(2, 5, 5), (2, 0, 2), (0, 0, 1)] {
            let ended = Some(Fault::Exhausted("no files".into()));
            assert_eq!(swept(stuck, ended).stuck_after(before), known);
        }
    }

    /// As one whose commit hangs on its disk until it has expired.
    #[test]
    fn a_blob_that_is_published_after_its_end_is_removed_by_the_next_sweep() {
        let dir = tempfile::tempdir().unwrap();
        let (ground, _) = blobs_that_end(dir.path(), &[]);
        let (coming, tenant) = (Arc::<Coming>::default(), TenantDir::new("acme").unwrap());
        let name = BlobName::random().unwrap();
        let swept = || sweep(&ground, MINUTE_MS, &coming, &|| false).removed;
        let marker = Marker::set(&ground, &coming, 0, &tenant, &name).unwrap();
        assert_eq!(swept(), 0, "it is not there yet");
        let blob = dir.path().join(place(&tenant, &name).path);
        std::fs::create_dir_all(&blob).unwrap();
        marker.keep();
        assert_eq!(swept(), 1);
        assert!(!blob.exists() && !dir.path().join("expires/1").exists());
        // Of one that did not come nothing is left.
        let name = BlobName::random().unwrap();
        drop(Marker::set(&ground, &coming, 0, &tenant, &name).unwrap());
        assert_eq!((swept(), coming.names().len()), (0, 0));
        assert!(!dir.path().join("expires/1").exists());
    }
}

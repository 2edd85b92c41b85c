//! The ground that the writable store stands on: its root, who may use it, and the one way in which something new
//! appears in it.

mod lock;
mod root;

use std::collections::HashSet;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{
    AtFlags, Mode, OFlags, RenameFlags, fchmod, fsync, mkdirat, renameat_with, unlinkat,
};
use rustix::io::{Errno, retry_on_intr};
use skillgate_plugin_sdk::{Host, Level};

use crate::beneath;
use crate::fault::{Fault, Result};
use crate::floor::{Floor, Promise, Room, Size};
use crate::names::random_name;

use lock::{LOCK_FILE, Lock, take_lock};
use root::{close_to_others, make_dirs, refuse_foreign, settle_above};

/// Log target of this plugin.
pub(crate) const TARGET: &str = "storage_fs";

/// The layout that this code reads and writes, as the whole content of `root/format`.
const FORMAT: &str = "skillgate-store 1\n";

const FORMAT_FILE: &str = "format";
const TMP: &str = "tmp";

/// What the root of a store may hold before it has a format: what a start that was cut short leaves, and what a fresh
/// file system comes with.
const ALLOWED_IN_NEW: [&str; 3] = [LOCK_FILE, TMP, "lost+found"];

/// How many directories are remembered as durable; beyond, the memory starts anew, which costs an fsync and no more.
const MAX_SETTLED: usize = 65_536;

/// To open a directory that the operator has named, or one above it.
const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);

/// A directory that goes as soon as it is made is made again this often.
const MAX_RACES: usize = 8;

/// An open writable store. Only one exists for a root at any time.
#[derive(Debug)]
pub(crate) struct Ground {
    root: OwnedFd,
    /// Holding it open is holding the lock.
    _lock: Lock,
    tmp: OwnedFd,
    fsync: bool,
    /// Directories whose own entry is known to be durable in this life. Another thread's mkdir may not be yet when we
    /// find the directory there, and a directory of an earlier life may never have become so.
    settled: Mutex<HashSet<String>>,
    /// An fsync of a directory has failed: what the kernel holds and what the disk holds may differ from now on, and a
    /// second fsync would report success without having written the pages.
    broken: AtomicBool,
    /// How many things have been retired in this life.
    removals: AtomicU64,
    /// And how many have appeared.
    publications: AtomicU64,
    floor: Arc<Floor>,
    host: Host,
}

/// How a publication ended when nothing failed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Published {
    Done,
    /// Something of that name was there first; what was built goes with its [`Durable`].
    Exists,
}

impl Ground {
    /// Opens or makes the store at `root`, takes its lock, and removes what an earlier life left half-built.
    pub(crate) fn open(root: &Path, fsync: bool, floor: Floor, host: Host) -> Result<Ground> {
        make_dirs(root, fsync)?;
        let shown = root.display().to_string();
        let fd =
            rustix::fs::open(root, DIRECTORY, Mode::empty()).map_err(Fault::os("open", &shown))?;
        refuse_foreign(&fd, &shown)?;
        let lock = take_lock(&fd, &shown)?;
        close_to_others(&fd, &shown, &host)?;
        if fsync {
            settle_above(root, &shown)?;
        }
        match mkdirat(&fd, TMP, Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(Fault::os("make", TMP)(errno)),
        }
        let tmp = beneath::open_dir(&fd, TMP)?;
        let ground = Ground {
            root: fd,
            _lock: lock,
            tmp,
            fsync,
            settled: Mutex::new(HashSet::new()),
            broken: AtomicBool::new(false),
            removals: AtomicU64::new(0),
            publications: AtomicU64::new(0),
            floor: Arc::new(floor),
            host,
        };
        ground.check_format(&shown)?;
        ground.sweep_tmp()?;
        Ok(ground)
    }

    pub(crate) fn root(&self) -> &OwnedFd {
        &self.root
    }

    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    /// How many things have appeared in this life.
    pub(crate) fn publications(&self) -> u64 {
        self.publications.load(Ordering::Relaxed)
    }

    /// What is free, and whether that is enough.
    pub(crate) fn room(&self) -> Room {
        self.floor.room(&self.root, &self.host)
    }

    /// Something that no caller waits for did not go well.
    pub(crate) fn warn(&self, message: &str, fault: &Fault) {
        let text = fault.to_string();
        self.host
            .log(Level::Warn, TARGET, message, &[("error", &text)]);
    }

    /// Why nothing can be written any more.
    pub(crate) fn broken(&self) -> Option<&'static str> {
        self.broken.load(Ordering::Acquire).then_some(
            "the disk failed to take a directory: check it, then restart; nothing is written until then",
        )
    }

    fn refuse_when_broken(&self) -> Result<()> {
        let why = self.broken().map(str::to_owned);
        why.map_or(Ok(()), |why| Err(Fault::Unavailable(why)))
    }

    fn check_format(&self, shown: &str) -> Result<()> {
        match beneath::read_file(&self.root, FORMAT_FILE, 4096) {
            Ok(found) if found == FORMAT.as_bytes() => Ok(()),
            Ok(found) => Err(Fault::Precondition(format!(
                "the store {shown} has the layout {:?} and this version knows only {:?}: use the version that made it, or another root",
                String::from_utf8_lossy(&found).trim_end(),
                FORMAT.trim_end()
            ))),
            Err(fault) if fault.is_missing() => {
                let name = random_name()?;
                let file = beneath::create_file(&self.tmp, &name)?;
                beneath::write_all(&file, FORMAT_FILE, FORMAT.as_bytes())?;
                self.sync(&file, FORMAT_FILE)?;
                renameat_with(
                    &self.tmp,
                    &name,
                    &self.root,
                    FORMAT_FILE,
                    RenameFlags::NOREPLACE,
                )
                .map_err(Fault::os("make", FORMAT_FILE))?;
                self.sync(&self.root, ".")?;
                // Where `root` names another place than before, or a disk is not mounted, nothing else tells.
                let message = "this store is new: it has no skills and no blobs";
                self.host
                    .log(Level::Info, TARGET, message, &[("root", shown)]);
                Ok(())
            }
            Err(fault) => Err(fault),
        }
    }

    /// Whatever is in tmp/ was never published. What cannot be removed takes room there, and nothing else from anybody.
    fn sweep_tmp(&self) -> Result<()> {
        let mut removed = 0;
        for name in beneath::names(&self.tmp, TMP)? {
            match beneath::remove_tree(&self.tmp, &name) {
                Ok(()) => removed += 1,
                Err(fault) => self.warn_leftover(&name.to_string_lossy(), &fault),
            }
        }
        if removed > 0 {
            self.host.log(
                Level::Info,
                TARGET,
                "removed what an earlier life left half-built",
                &[("count", &removed.to_string())],
            );
        }
        Ok(())
    }

    /// A new private directory to build something in. What is known of its size is kept free for it until it is written;
    /// what comes on top says so with [`Staging::expect`].
    pub(crate) fn stage(self: &Arc<Ground>, size: Size) -> Result<Staging> {
        self.refuse_when_broken()?;
        let promise = self.floor.begin(&self.root, &self.host, size)?;
        let name = random_name()?;
        mkdirat(&self.tmp, &name, Mode::from_raw_mode(beneath::DIR_MODE))
            .map_err(Fault::os("make", "tmp/"))?;
        let mut staging = Staging {
            ground: Arc::clone(self),
            name,
            dir: None,
            dirs: Vec::new(),
            promise,
            published: false,
        };
        let dir = beneath::open_dir(&self.tmp, &staging.name)?;
        set_mode(&dir, beneath::DIR_MODE, "tmp/")?;
        staging.dir = Some(dir);
        Ok(staging)
    }

    /// Makes `path` and its parents, each durable in its parent before anything is put into it.
    pub(crate) fn ensure_dir(&self, path: &str) -> Result<OwnedFd> {
        self.in_dir(path, Ok)
    }

    /// The same, and does something in it: again in a new one, where it has been removed meanwhile because it was empty.
    pub(crate) fn in_dir<T>(&self, path: &str, work: impl Fn(OwnedFd) -> Result<T>) -> Result<T> {
        let mut races = 0;
        loop {
            match self.make_dir(path).and_then(&work) {
                Err(fault) if fault.is_missing() && races < MAX_RACES => races += 1,
                other => return other,
            }
            let mut settled = self.settled();
            settled.remove(path);
            for (at, _) in path.match_indices('/') {
                settled.remove(&path[..at]);
            }
        }
    }

    fn make_dir(&self, path: &str) -> Result<OwnedFd> {
        let mut parent = String::new();
        for part in path.split('/') {
            let here = if parent.is_empty() {
                part.to_owned()
            } else {
                format!("{parent}/{part}")
            };
            if !self.settled().contains(&here) {
                let above = if parent.is_empty() {
                    beneath::open_dir(&self.root, ".")?
                } else {
                    beneath::open_dir(&self.root, &parent)?
                };
                match mkdirat(&above, part, Mode::from_raw_mode(beneath::DIR_MODE)) {
                    Ok(()) => {
                        let made = beneath::open_dir(&above, part)?;
                        set_mode(&made, beneath::DIR_MODE, &here)?;
                        self.sync_shared(&made, &here)?;
                    }
                    Err(Errno::EXIST) => {}
                    Err(errno) => return Err(Fault::os("make", &here)(errno)),
                }
                self.sync_shared(&above, &parent)?;
                let mut settled = self.settled();
                if settled.len() >= MAX_SETTLED {
                    settled.clear();
                }
                settled.insert(here.clone());
            }
            parent = here;
        }
        beneath::open_dir(&self.root, path)
    }

    /// Makes durable what is in `parent` already: it may stem from a life that ended before it had done so.
    pub(crate) fn settle(&self, parent: &str) -> Result<()> {
        self.refuse_when_broken()?;
        let dir = self.ensure_dir(parent)?;
        self.sync_shared(&dir, parent)
    }

    /// Takes `parent/name` out of sight at once and for good, then removes it. False: it was not there.
    pub(crate) fn retire(&self, parent: &str, name: &str, durably: bool) -> Result<bool> {
        self.refuse_when_broken()?;
        let dir = match beneath::open_dir(&self.root, parent) {
            Ok(dir) => dir,
            Err(fault) if fault.is_missing() => return Ok(false),
            Err(fault) => return Err(fault),
        };
        let grave = random_name()?;
        match renameat_with(&dir, name, &self.tmp, &grave, RenameFlags::NOREPLACE) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Ok(false),
            Err(errno) => return Err(Fault::os("remove", &format!("{parent}/{name}"))(errno)),
        }
        self.removals.fetch_add(1, Ordering::Release);
        let synced = if durably {
            self.sync_shared(&dir, parent)
        } else {
            Ok(())
        };
        if let Err(fault) = beneath::remove_tree(&self.tmp, &grave) {
            self.warn_leftover(&grave, &fault);
        }
        synced.map(|()| true)
    }

    /// Changes with everything that is taken out of sight.
    pub(crate) fn removals(&self) -> u64 {
        self.removals.load(Ordering::Acquire)
    }

    /// Removes `parent/name` when nothing is in it.
    pub(crate) fn remove_empty_dir(&self, parent: &str, name: &str) -> Result<()> {
        let path = format!("{parent}/{name}");
        let dir = beneath::open_dir(&self.root, parent)?;
        // Forgotten first: whoever wants it again makes it again.
        let below = format!("{path}/");
        self.settled()
            .retain(|known| *known != path && !known.starts_with(&below));
        match unlinkat(&dir, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
            Err(errno) => Err(Fault::os("remove", &path)(errno)),
        }
    }

    /// fsync of something that only its maker knows: after a failure it is thrown away.
    pub(crate) fn sync(&self, fd: impl AsFd, path: &str) -> Result<()> {
        if self.fsync {
            retry_on_intr(|| fsync(&fd)).map_err(Fault::os("make durable", path))?;
        }
        Ok(())
    }

    /// fsync of a directory that stays. A failure other than "no space" ends all writing until a restart.
    pub(crate) fn sync_shared(&self, fd: impl AsFd, path: &str) -> Result<()> {
        let synced = self.sync(fd, path);
        if let Err(Fault::Os { errno, .. }) = &synced
            && !matches!(*errno, Errno::NOSPC | Errno::DQUOT)
            && !self.broken.swap(true, Ordering::AcqRel)
        {
            self.host.log(
                Level::Error,
                TARGET,
                "fsync of a directory failed: nothing more is written until a restart",
                &[("directory", path), ("error", &errno.to_string())],
            );
        }
        // Also what had begun before: this success may stand for pages that were lost with the one that failed.
        synced.and_then(|()| self.refuse_when_broken())
    }

    fn settled(&self) -> std::sync::MutexGuard<'_, HashSet<String>> {
        self.settled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn warn_leftover(&self, name: &str, fault: &Fault) {
        self.host.log(
            Level::Warn,
            TARGET,
            "could not remove a temporary directory: the next start tries again",
            &[("directory", name), ("error", &fault.to_string())],
        );
    }
}

/// Something that is being built and that nobody sees. Dropped without [`Durable::publish`], it is gone.
#[derive(Debug)]
pub(crate) struct Staging {
    ground: Arc<Ground>,
    name: String,
    /// `None` only until the directory is open, so that a failure in between removes it too.
    dir: Option<OwnedFd>,
    /// Directories below, parents before children.
    dirs: Vec<String>,
    /// Ends after what was built has been removed.
    promise: Promise,
    published: bool,
}

impl Drop for Staging {
    fn drop(&mut self) {
        if self.published {
            return;
        }
        // Its descriptor may be the one that is wanted for the way through it.
        self.dir = None;
        if let Err(fault) = beneath::remove_tree(&self.ground.tmp, &self.name) {
            self.ground.warn_leftover(&self.name, &fault);
        }
    }
}

impl Staging {
    fn dir(&self) -> Result<&OwnedFd> {
        self.dir
            .as_ref()
            .ok_or_else(|| Fault::Unavailable("the temporary directory is not open".to_owned()))
    }

    /// So many bytes beyond what it began with are about to be written; refused when they would be too many for the disk.
    pub(crate) fn expect(&self, bytes: u64) -> Result<()> {
        let ground = &self.ground;
        ground.floor.go_on(&ground.root, &ground.host, bytes)
    }

    /// A new file at `path`, its directories made as needed. Finish it with [`Staging::close`].
    pub(crate) fn create(&mut self, path: &str) -> Result<OwnedFd> {
        for (at, _) in path.match_indices('/') {
            self.make_dir(&path[..at])?;
        }
        beneath::create_file(self.dir()?, path)
    }

    /// A directory at `path` whose parent is there.
    pub(crate) fn make_dir(&mut self, path: &str) -> Result<()> {
        if self.dirs.iter().any(|known| known == path) {
            return Ok(());
        }
        let (above, name) = match path.rsplit_once('/') {
            Some((above, name)) => (beneath::open_dir(self.dir()?, above)?, name),
            None => (beneath::open_dir(self.dir()?, ".")?, path),
        };
        mkdirat(&above, name, Mode::from_raw_mode(beneath::DIR_MODE))
            .map_err(Fault::os("make", path))?;
        set_mode(beneath::open_dir(&above, name)?, beneath::DIR_MODE, path)?;
        self.dirs.push(path.to_owned());
        Ok(())
    }

    /// The file is complete: readable for all who get at it, and durable.
    pub(crate) fn close(&self, file: OwnedFd, path: &str) -> Result<()> {
        set_mode(&file, beneath::FILE_MODE, path)?;
        self.ground.sync(&file, path)
    }

    /// A whole file at once.
    pub(crate) fn write(&mut self, path: &str, data: &[u8]) -> Result<()> {
        let file = self.create(path)?;
        beneath::write_all(&file, path, data)?;
        self.promise.written(data.len() as u64);
        self.close(file, path)
    }

    /// All files are written: makes the directories durable, each after those below it. There may be very many, so this is
    /// not for a caller that holds a lock.
    pub(crate) fn synced(self) -> Result<Durable> {
        for path in self.dirs.iter().rev() {
            let dir = beneath::open_dir(self.dir()?, path)?;
            self.ground.sync(dir, path)?;
        }
        self.ground.sync(self.dir()?, "tmp/")?;
        Ok(Durable(self))
    }
}

/// Something that is whole and durable, and that nobody sees yet. It can only be published, or dropped and gone.
#[derive(Debug)]
pub(crate) struct Durable(Staging);

impl Durable {
    /// The one way in which anything appears in the store: everything that was built is durable already, one rename that
    /// replaces nothing makes it visible, then the directory that it appeared in is made durable. After an error it is
    /// not visible, but where taking it back fails, too, which the log says. What this costs does not depend on how much was built; what is not published is removed by the drop.
    pub(crate) fn publish(&mut self, parent: &str, name: &str) -> Result<Published> {
        let staging = &mut self.0;
        let ground = &staging.ground;
        let target = ground.ensure_dir(parent)?;
        match renameat_with(
            &ground.tmp,
            &staging.name,
            &target,
            name,
            RenameFlags::NOREPLACE,
        ) {
            Ok(()) => {}
            Err(Errno::EXIST | Errno::NOTEMPTY) => return Ok(Published::Exists),
            Err(errno) => return Err(Fault::os("publish", &format!("{parent}/{name}"))(errno)),
        }
        if let Err(fault) = ground.sync_shared(&target, parent) {
            // Not acknowledged, so it must not be seen; dropping this then removes it.
            if let Err(errno) = renameat_with(
                &target,
                name,
                &ground.tmp,
                &staging.name,
                RenameFlags::NOREPLACE,
            ) {
                let (place, why) = (format!("{parent}/{name}"), errno.to_string());
                ground.host.log(
                    Level::Error,
                    TARGET,
                    "cannot take back what may not be durable: it is stored, and whoever stored it was refused",
                    &[("directory", &place), ("error", &why)],
                );
            }
            return Err(fault);
        }
        staging.published = true;
        ground.publications.fetch_add(1, Ordering::Relaxed);
        Ok(Published::Done)
    }
}

fn set_mode(fd: impl AsFd, mode: u32, path: &str) -> Result<()> {
    // The umask of the process has had its say at the open; a sandbox with another user has to read this.
    fchmod(&fd, Mode::from_raw_mode(mode)).map_err(Fault::os("set the mode of", path))
}

#[cfg(test)]
mod tests;

//! The directory that a store is in, before the store is there: made, made durable, and nobody else's.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, fchmod, fsync};
use rustix::io::{Errno, retry_on_intr};
use skillgate_plugin_sdk::{Host, Level};

use super::{ALLOWED_IN_NEW, DIRECTORY, FORMAT_FILE, TARGET};
use crate::beneath;
use crate::fault::{Fault, Result};

/// Makes the root and what is missing above it.
pub(super) fn make_dirs(root: &Path, fsync_wanted: bool) -> Result<()> {
    let mut missing: Vec<PathBuf> = Vec::new();
    let mut at = root;
    while !at.as_os_str().is_empty() && !at.exists() {
        missing.push(at.to_owned());
        match at.parent() {
            Some(parent) => at = parent,
            None => break,
        }
    }
    for dir in missing.iter().rev() {
        let shown = dir.display().to_string();
        match rustix::fs::mkdir(dir, Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(Fault::os("make", &shown)(errno)),
        }
        let parent = match dir.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        if fsync_wanted {
            rustix::fs::open(parent, DIRECTORY, Mode::empty())
                .and_then(|fd| retry_on_intr(|| fsync(&fd)))
                .map_err(Fault::os("make durable", &shown))?;
        }
    }
    Ok(())
}

/// Makes the entry of the root and of each directory above it durable, as far as they are on one disk and may be opened:
/// one that was there already may have been made a moment ago, by the gateway for something else of its own.
pub(super) fn settle_above(root: &Path, shown: &str) -> Result<()> {
    let way = std::fs::canonicalize(root)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
        .map_err(Fault::os("resolve", shown))?;
    let stat = rustix::fs::stat(&way).map_err(Fault::os("stat", shown))?;
    for dir in way.ancestors().skip(1) {
        let shown = dir.display().to_string();
        let fd = match rustix::fs::open(dir, DIRECTORY, Mode::empty()) {
            Err(Errno::ACCESS) => break,
            opened => opened.map_err(Fault::os("open", &shown))?,
        };
        let above = rustix::fs::fstat(&fd).map_err(Fault::os("stat", &shown))?;
        if above.st_dev != stat.st_dev {
            break;
        }
        retry_on_intr(|| fsync(&fd)).map_err(Fault::os("make durable", &shown))?;
    }
    Ok(())
}

/// A directory of somebody else is not turned into a store, and its mode is not changed.
pub(super) fn refuse_foreign(root: &OwnedFd, shown: &str) -> Result<()> {
    let entries = beneath::entries(root, shown).map_err(|fault| match fault {
        Fault::Os { errno, .. } => Fault::os("list", shown)(errno),
        other => other,
    })?;
    if entries.iter().any(|(name, _)| name == FORMAT_FILE) {
        return Ok(());
    }
    match entries
        .iter()
        .find(|(name, _)| !ALLOWED_IN_NEW.contains(&name.as_str()))
    {
        None => Ok(()),
        Some((name, _)) => Err(Fault::Precondition(format!(
            "{shown} is not a store of skillgate and not empty (it holds {name:?}): name an empty or a new directory as `root`"
        ))),
    }
}

/// Skills and blobs below are readable for everybody, because a sandbox with a user of its own reads them through a
/// mount; that other users of this host do not is the work of the root's mode alone.
pub(super) fn close_to_others(root: &OwnedFd, shown: &str, host: &Host) -> Result<()> {
    let stat = rustix::fs::fstat(root).map_err(Fault::os("stat", shown))?;
    if stat.st_mode & 0o077 == 0 {
        return Ok(());
    }
    match fchmod(root, Mode::from_raw_mode(0o700)) {
        Ok(()) => Ok(()),
        // A volume that somebody else owns and that we may write to.
        Err(Errno::PERM | Errno::ROFS) => {
            host.log(
                Level::Warn,
                TARGET,
                "the store's root is open to other users of this host and its mode cannot be changed",
                &[("root", shown), ("mode", &format!("{:o}", stat.st_mode & 0o7777))],
            );
            Ok(())
        }
        Err(errno) => Err(Fault::os("set the mode of", shown)(errno)),
    }
}

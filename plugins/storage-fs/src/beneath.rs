//! Files below a directory that is open already, and never outside of it.
//!
//! Every open goes through openat2 with BENEATH, NO_SYMLINKS and NO_MAGICLINKS, so that the kernel refuses a way out
//! at the moment of the open; a check of the path beforehand could be outrun. Only regular files are read: the open
//! does not block on a FIFO, and fstat decides on the descriptor that is then used.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags, Stat, openat2};
use rustix::io::{Errno, retry_on_intr};

use crate::fault::{Fault, Result};

/// Directories within the store; the root above them is closed to others.
pub(crate) const DIR_MODE: u32 = 0o755;
/// Files within the store.
pub(crate) const FILE_MODE: u32 = 0o644;

/// A walk or a removal goes no deeper: a tree that we make is far below.
pub(crate) const MAX_DEPTH: usize = 64;

/// openat2 answers EAGAIN when a rename raced with the walk; it is asked again this often.
const MAX_RACES: usize = 64;

fn open(dir: impl AsFd, path: &str, flags: OFlags, mode: u32) -> Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY;
    let mut races = 0;
    loop {
        match openat2(&dir, path, flags, Mode::from_raw_mode(mode), resolve) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if races < MAX_RACES => races += 1,
            // Nobody but an intruder puts one there.
            Err(Errno::LOOP | Errno::XDEV) => {
                return Err(Fault::Corrupt(format!(
                    "{path:?} leads over a symbolic link or out of its directory, and none is followed: remove it"
                )));
            }
            other => return other.map_err(Fault::os("open", path)),
        }
    }
}

/// A regular file, for reading.
pub(crate) fn open_file(dir: impl AsFd, path: &str) -> Result<(OwnedFd, Stat)> {
    let fd = open(dir, path, OFlags::RDONLY | OFlags::NONBLOCK, 0)?;
    let stat = rustix::fs::fstat(&fd).map_err(Fault::os("stat", path))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok((fd, stat)),
        FileType::Directory => Err(Fault::Invalid(format!("{path:?} is a directory"))),
        _ => Err(Fault::Corrupt(format!(
            "{path:?} is not a regular file: remove it"
        ))),
    }
}

/// A file and its state: the same means that it has not been written to since.
pub(crate) type Fingerprint = (u64, u64, i64, (i64, u64), (i64, u64));

pub(crate) fn fingerprint(stat: &Stat) -> Fingerprint {
    (
        stat.st_dev,
        stat.st_ino,
        stat.st_size,
        (stat.st_mtime, stat.st_mtime_nsec),
        (stat.st_ctime, stat.st_ctime_nsec),
    )
}

/// A directory, for reading and as a starting point.
pub(crate) fn open_dir(dir: impl AsFd, path: &str) -> Result<OwnedFd> {
    open(dir, path, OFlags::RDONLY | OFlags::DIRECTORY, 0)
}

/// A new regular file, for writing.
pub(crate) fn create_file(dir: impl AsFd, path: &str) -> Result<OwnedFd> {
    open(
        dir,
        path,
        OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL,
        FILE_MODE,
    )
}

/// A file that need not be there yet, for writing and locking.
pub(crate) fn open_or_create_file(dir: impl AsFd, path: &str) -> Result<OwnedFd> {
    open(
        dir,
        path,
        OFlags::RDWR | OFlags::CREATE | OFlags::NONBLOCK,
        FILE_MODE,
    )
}

/// The whole of a regular file of at most `max` bytes, also when it grows while it is read.
pub(crate) fn read_file(dir: impl AsFd, path: &str, max: u64) -> Result<Vec<u8>> {
    let (fd, stat) = open_file(dir, path)?;
    let too_large = || {
        Fault::OutOfRange(format!(
            "{path:?} is larger than the {max} bytes that are read of such a file"
        ))
    };
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    if size > max {
        return Err(too_large());
    }
    let limit = usize::try_from(max).unwrap_or(usize::MAX);
    let mut bytes = vec![0; usize::try_from(size).unwrap_or(0) + 1];
    let mut filled = 0;
    loop {
        if filled == bytes.len() {
            bytes.resize(bytes.len().saturating_mul(2), 0);
        }
        match read_at(&fd, path, &mut bytes[filled..], filled as u64)? {
            0 => break,
            n => filled += n,
        }
        if filled > limit {
            return Err(too_large());
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

/// One read at an offset; 0 is the end.
pub(crate) fn read_at(fd: impl AsFd, path: &str, buf: &mut [u8], offset: u64) -> Result<usize> {
    retry_on_intr(|| rustix::io::pread(&fd, &mut *buf, offset)).map_err(Fault::os("read", path))
}

/// Exactly `buf`, or how much there was before the end.
pub(crate) fn fill_at(fd: impl AsFd, path: &str, buf: &mut [u8], offset: u64) -> Result<usize> {
    let mut filled = 0;
    while filled < buf.len() {
        match read_at(&fd, path, &mut buf[filled..], offset + filled as u64)? {
            0 => break,
            n => filled += n,
        }
    }
    Ok(filled)
}

/// All of `data`: a short write is continued.
pub(crate) fn write_all(fd: impl AsFd, path: &str, mut data: &[u8]) -> Result<()> {
    while !data.is_empty() {
        let n = retry_on_intr(|| rustix::io::write(&fd, data)).map_err(Fault::os("write", path))?;
        if n == 0 {
            return Err(Fault::os("write", path)(Errno::IO));
        }
        data = &data[n..];
    }
    Ok(())
}

/// The entries of an open directory, sorted by name, with what they are. Names that are not UTF-8 are given back lossily
/// and can therefore not be opened, which is what they deserve: nothing of ours has such a name.
pub(crate) fn entries(dir: impl AsFd, path: &str) -> Result<Vec<(String, FileType)>> {
    let mut found = Vec::new();
    let reader = Dir::read_from(&dir).map_err(Fault::os("list", path))?;
    for entry in reader {
        let entry = entry.map_err(Fault::os("list", path))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name == "." || name == ".." {
            continue;
        }
        let kind = match entry.file_type() {
            // Some file systems do not say.
            FileType::Unknown => {
                match rustix::fs::statat(
                    &dir,
                    entry.file_name(),
                    rustix::fs::AtFlags::SYMLINK_NOFOLLOW,
                ) {
                    Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                    Err(Errno::NOENT) => continue,
                    Err(errno) => return Err(Fault::os("stat", &name)(errno)),
                }
            }
            known => known,
        };
        found.push((name, kind));
    }
    found.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    Ok(found)
}

/// The names of its directories, sorted.
pub(crate) fn directories(dir: impl AsFd, path: &str) -> Result<Vec<String>> {
    let mut entries = entries(dir, path)?;
    entries.retain(|(_, kind)| *kind == FileType::Directory);
    Ok(entries.into_iter().map(|(name, _)| name).collect())
}

/// Removes `name` and everything below it, following nothing. What is not there is fine.
pub(crate) fn remove_tree(dir: impl AsFd, name: impl AsRef<OsStr>) -> Result<()> {
    remove_below(dir.as_fd(), name.as_ref(), 0)
}

/// The names in an open directory, as they are.
pub(crate) fn names(dir: impl AsFd, path: &str) -> Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(&dir).map_err(Fault::os("list", path))? {
        let entry = entry.map_err(Fault::os("list", path))?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(OsStr::from_bytes(name).to_owned());
        }
    }
    Ok(names)
}

fn remove_below(dir: std::os::fd::BorrowedFd<'_>, name: &OsStr, depth: usize) -> Result<()> {
    use rustix::fs::{AtFlags, openat, unlinkat};
    let shown = name.to_string_lossy();
    match unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(errno) => return Err(Fault::os("remove", &shown)(errno)),
    }
    if depth >= MAX_DEPTH {
        return Err(Fault::Corrupt(format!(
            "{shown:?} is nested deeper than {MAX_DEPTH} directories: remove it by hand"
        )));
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let below = match openat(dir, name, flags, Mode::empty()) {
        Ok(below) => below,
        // One that is empty goes without a look into it, for which there may be no descriptor.
        Err(errno) => {
            return unlinkat(dir, name, AtFlags::REMOVEDIR)
                .map_err(|_| Fault::os("open", &shown)(errno));
        }
    };
    // Names first: removing while listing may skip entries on some file systems.
    for name in &self::names(&below, &shown)? {
        remove_below(below.as_fd(), name, depth + 1)?;
    }
    match unlinkat(dir, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(Fault::os("remove", &shown)(errno)),
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::{FdFlags, fcntl_getfd};

    use super::*;

    fn dir_at(path: impl AsRef<std::path::Path>) -> OwnedFd {
        std::fs::File::open(path.as_ref()).unwrap().into()
    }

    /// The kernel's own files have no size until they are read, like one that grows just then.
    #[test]
    fn what_grows_while_it_is_read_is_read_whole_and_no_further_than_its_limit() {
        let proc = dir_at("/proc");
        let (_, stat) = open_file(&proc, "version").unwrap();
        assert_eq!(stat.st_size, 0);
        let whole = std::fs::read("/proc/version").unwrap();
        let size = whole.len() as u64;
        assert_eq!(read_file(&proc, "version", size).unwrap(), whole);
        for max in [0, 1, size - 1] {
            let read = read_file(&proc, "version", max);
            assert!(matches!(read, Err(Fault::OutOfRange(_))), "{max}: {read:?}");
        }
        // One that has a size is as long as it says.
        let temp = tempfile::tempdir().unwrap();
        std::fs::write(temp.path().join("still"), b"abc").unwrap();
        let still = |max| read_file(dir_at(temp.path()), "still", max);
        assert_eq!(still(3).unwrap(), b"abc");
        assert!(matches!(still(2), Err(Fault::OutOfRange(_))));
    }

    /// A program that the gateway starts has none of them.
    #[test]
    fn whatever_is_opened_is_of_its_kind_and_ends_with_the_program() {
        let temp = tempfile::tempdir().unwrap();
        let dir = dir_at(temp.path());
        let opened = [
            create_file(&dir, "new").unwrap(),
            open_or_create_file(&dir, "lock").unwrap(),
            open_file(&dir, "new").unwrap().0,
            open_dir(&dir, ".").unwrap(),
        ];
        for fd in &opened {
            assert_eq!(fcntl_getfd(fd).unwrap(), FdFlags::CLOEXEC);
        }
        assert!(open_dir(&dir, "new").unwrap_err().is_missing());
    }
}

//! All of a skill, as a store gives it to be run, held against its list of files: the code that is decided about is the code
//! that runs. What a directory or an archive is changed to after this look, only its store can see.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::FileExt as _;
use std::path::{Component, Path};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, fstat, openat, statat};
use sha2::{Digest as _, Sha256};
use skillgate_plugin_sdk::model::{Content, SkillFile};
use skillgate_skill::path::PATH_DEPTH_MAX;
use tar::EntryType;

/// Content of all files. No store of ours has larger skills, and our sandbox unpacks no larger archive.
const CONTENT_BYTES_MAX: u64 = 256 << 20;
/// Files and directories: those that are empty too.
const ENTRIES_MAX: usize = 10_000;
/// What an entry of an archive has beside its content: the archive's reader takes that into memory.
const HEAD_BYTES_MAX: u64 = 64 << 10;
const READ_BYTES: usize = 64 << 10;

/// Reads all of it, a piece at a time, and leaves every descriptor where it stands. An error says what is not as it should be, as
/// a sentence.
pub(super) fn is_of(given: &Content, files: &[SkillFile]) -> Result<(), String> {
    // A run of a gateway that is root is another user's, and reads what others may.
    let for_others = rustix::process::geteuid().is_root();
    is_of_within(given, files, ENTRIES_MAX, for_others)
}

fn is_of_within(
    given: &Content,
    files: &[SkillFile],
    entries_max: usize,
    for_others: bool,
) -> Result<(), String> {
    let bytes = files.iter().map(|file| file.size_bytes);
    if bytes.fold(0, u64::saturating_add) > CONTENT_BYTES_MAX {
        return Err(format!("has more than {CONTENT_BYTES_MAX} bytes"));
    }
    let mut look = Look {
        left: files
            .iter()
            .map(|file| (file.path.as_str(), file))
            .collect(),
        entries_left: entries_max,
        for_others,
    };
    match given {
        Content::Dir(fd) => {
            let stat = fstat(fd).map_err(|errno| unreadable("", errno))?;
            look.mode("its directory", stat.st_mode)?;
            look.directory(fd.as_fd(), "", 0)?;
        }
        Content::Tar(fd, _) => {
            let file = fd.try_clone().map(File::from);
            let file = file.map_err(|error| format!("its archive cannot be read: {error}"))?;
            look.archive(&file)?;
        }
        Content::Data(_) | Content::File(..) => {
            return Err("the store answered a directory with a file".into());
        }
    }
    match look.left.first_key_value() {
        Some((path, _)) => Err(format!("{path}: is not there")),
        None => Ok(()),
    }
}

struct Look<'a> {
    /// Files that were not met yet.
    left: BTreeMap<&'a str, &'a SkillFile>,
    entries_left: usize,
    /// Whether others than this user have to be able to read it.
    for_others: bool,
}

fn unreadable(path: &str, errno: rustix::io::Errno) -> String {
    let path = if path.is_empty() {
        "its directory"
    } else {
        path
    };
    format!("{path}: cannot be read: {errno}")
}

impl Look<'_> {
    fn count(&mut self) -> Result<(), String> {
        let less = self.entries_left.checked_sub(1);
        self.entries_left = less.ok_or("has more entries than are looked at")?;
        Ok(())
    }

    /// Whether the code of a run can read it: a store that leaves modes to the umask has files that it cannot.
    fn mode(&self, path: &str, raw_mode: u32) -> Result<(), String> {
        let (needed, wanted) = match FileType::from_raw_mode(raw_mode) {
            FileType::Directory => (Mode::ROTH | Mode::XOTH, "o+rx"),
            _ => (Mode::ROTH, "o+r"),
        };
        let mode = Mode::from_raw_mode(raw_mode);
        if mode.contains(needed) || !self.for_others {
            return Ok(());
        }
        Err(format!(
            "{path}: has the mode {:04o}, and runs, which are other users, cannot read it: its store has to make it {wanted}",
            mode.as_raw_mode()
        ))
    }

    /// One more is as bad as one that was changed: code is found by its name.
    fn file(&mut self, path: &str, content: impl Read) -> Result<(), String> {
        let Some(record) = self.left.remove(path) else {
            return Err(format!(
                "{path:?}: is none of the files that were published, or is there twice"
            ));
        };
        match is_as_recorded(content, record) {
            Ok(true) => Ok(()),
            Ok(false) => Err(format!("{path}: is not what its record says")),
            Err(error) => Err(format!("{path}: cannot be read: {error}")),
        }
    }

    fn directory(&mut self, dir: BorrowedFd<'_>, above: &str, depth: usize) -> Result<(), String> {
        if depth > PATH_DEPTH_MAX {
            return Err(format!(
                "{above}: is nested deeper than {PATH_DEPTH_MAX} directories"
            ));
        }
        for entry in Dir::read_from(dir).map_err(|errno| unreadable(above, errno))? {
            let entry = entry.map_err(|errno| unreadable(above, errno))?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            self.count()?;
            let path = format!("{above}{}", name.to_string_lossy());
            let wrong = |errno| unreadable(&path, errno);
            let stat = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).map_err(wrong)?;
            // What comes to be a pipe in between keeps nobody waiting.
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => {
                    self.mode(&path, stat.st_mode)?;
                    let below = openat(dir, name, flags | OFlags::DIRECTORY, Mode::empty());
                    let below = below.map_err(wrong)?;
                    self.directory(below.as_fd(), &format!("{path}/"), depth + 1)?;
                }
                FileType::RegularFile => {
                    self.mode(&path, stat.st_mode)?;
                    let file = openat(dir, name, flags, Mode::empty()).map_err(wrong)?;
                    self.file(&path, File::from(file))?;
                }
                _ => return Err(format!("{path:?}: is neither a file nor a directory")),
            }
        }
        Ok(())
    }

    fn archive(&mut self, file: &File) -> Result<(), String> {
        let (left, is_over) = (Cell::new(HEAD_BYTES_MAX), Cell::new(false));
        let within = Within {
            file,
            at: 0,
            left: &left,
            is_over: &is_over,
        };
        let unreadable = |error: io::Error| format!("its archive cannot be read: {error}");
        for entry in tar::Archive::new(within).entries().map_err(unreadable)? {
            let mut entry = entry.map_err(unreadable)?;
            self.count()?;
            let path = inside(&entry.path().map_err(unreadable)?)?;
            match entry.header().entry_type() {
                EntryType::Directory => {}
                EntryType::Regular => {
                    left.set(entry.size());
                    self.file(&path, &mut entry)?;
                }
                // As `git archive` begins: of which commit it is.
                EntryType::XGlobalHeader if is_comment(&mut entry).map_err(unreadable)? => {}
                _ => return Err(format!("{path:?}: is neither a file nor a directory")),
            }
            left.set(HEAD_BYTES_MAX);
        }
        match is_over.get() {
            true => Err("its archive is cut off between two entries".into()),
            false => Ok(()),
        }
    }
}

/// No more is read than it is said to have, and one byte.
fn is_as_recorded(mut content: impl Read, record: &SkillFile) -> io::Result<bool> {
    let (mut hash, mut bytes) = (Sha256::new(), 0);
    let mut piece = vec![0; READ_BYTES];
    loop {
        let n = match content.read(&mut piece) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        bytes += n as u64;
        if n == 0 || bytes > record.size_bytes {
            break;
        }
        hash.update(&piece[..n]);
    }
    Ok(bytes == record.size_bytes && hex::encode(hash.finalize()) == record.sha256)
}

/// As it is in a list of files; "./" before it is no part of it.
fn inside(name: &Path) -> Result<String, String> {
    let mut parts = Vec::new();
    for component in name.components() {
        match (component, component.as_os_str().to_str()) {
            (Component::Normal(_), Some(part)) => parts.push(part),
            (Component::CurDir, _) => {}
            _ => return Err(format!("{name:?}: is no path inside a skill")),
        }
    }
    Ok(parts.join("/"))
}

/// Whether a head that is for all entries changes none of them.
fn is_comment(head: &mut tar::Entry<'_, impl Read>) -> io::Result<bool> {
    let said = head.pax_extensions()?;
    Ok(said
        .is_some_and(|mut all| all.all(|one| one.is_ok_and(|one| one.key_bytes() == b"comment"))))
}

/// An archive from its beginning, of which so much may still be read.
struct Within<'a> {
    file: &'a File,
    at: u64,
    left: &'a Cell<u64>,
    /// There was nothing more to read when something was asked for: behind the last entry there are blocks of zeros.
    is_over: &'a Cell<bool>,
}

impl Read for Within<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let left = self.left.get();
        if left == 0 && !buf.is_empty() {
            return Err(io::Error::other(format!(
                "an entry has more than {HEAD_BYTES_MAX} bytes beside its content"
            )));
        }
        let most = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let n = self.file.read_at(&mut buf[..most], self.at)?;
        self.is_over.set(n == 0 && most > 0);
        self.at += n as u64;
        self.left.set(left - n as u64);
        Ok(n)
    }
}

#[cfg(test)]
mod tests;

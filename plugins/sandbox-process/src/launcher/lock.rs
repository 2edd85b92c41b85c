//! One launcher per state directory.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::sys;

/// How long a launcher waits for the one before it to end.
const WAIT: Duration = Duration::from_secs(5);
const AGAIN: Duration = Duration::from_millis(10);
/// More than a process's number has.
const HOLDER_BYTES_MAX: u64 = 32;

/// A state directory, as long as this lives.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
    /// `false`: its file system has no locks, and nobody knows who else has it.
    pub(super) is_certain: bool,
}

/// Takes the directory: an earlier launcher is given time to end.
pub(super) fn lock(state: &Path) -> io::Result<Lock> {
    lock_within(state, WAIT, |file| sys::try_lock(file.as_fd()))
}

fn lock_within(
    state: &Path,
    wait: Duration,
    try_lock: impl Fn(&File) -> io::Result<bool>,
) -> io::Result<Lock> {
    let path = path_in(state);
    let until = Instant::now() + wait;
    loop {
        // Opened each time: the file may be another one by now.
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)?;
        let (locked, is_certain) = match try_lock(&file) {
            Err(e) if has_no_locks(&e) => (true, false),
            tried => (tried?, true),
        };
        // The lock of a file that has no name any more says nothing.
        if locked && is_at(&file, &path) {
            // What is not written is only not named, and not taken away.
            let _ = write_holder(&mut file);
            return Ok(Lock {
                _file: file,
                is_certain,
            });
        }
        if Instant::now() > until {
            let process = match holder(file) {
                Some(number) => format!(" (process {number})"),
                None => String::new(),
            };
            return Err(io::Error::other(format!(
                "another launcher{process} holds {}; is a second gateway using this directory?",
                path.display()
            )));
        }
        std::thread::sleep(AGAIN);
    }
}

fn has_no_locks(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOLCK | libc::ENOTSUP | libc::ENOSYS)
    )
}

/// Takes the directory from one of these processes, should it be theirs: the caller's own children, which were killed and do not
/// end, since a file system does not answer. They do nothing more there, but hold their lock until that does. So the next one has
/// another file. One that waits for the first meanwhile, another gateway's, finds that it has no name when it gets it.
pub(crate) fn take_from(killed: &[u32], state: &Path) -> io::Result<()> {
    if killed.is_empty() {
        return Ok(());
    }
    let path = path_in(state);
    let file = match File::open(&path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
    match holder(file) {
        Some(number) if killed.contains(&number) => std::fs::remove_file(&path),
        _ => Ok(()),
    }
}

fn path_in(state: &Path) -> PathBuf {
    state.join("launcher.lock")
}

fn is_at(file: &File, path: &Path) -> bool {
    let same = || {
        let (own, named) = (file.metadata()?, std::fs::symlink_metadata(path)?);
        io::Result::Ok((own.dev(), own.ino()) == (named.dev(), named.ino()))
    };
    same().unwrap_or(false)
}

fn write_holder(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    writeln!(file, "{}", std::process::id())
}

/// The number of the process that has it, as far as that is written.
fn holder(file: File) -> Option<u32> {
    let mut text = String::new();
    file.take(HOLDER_BYTES_MAX).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT_ONCE: Duration = Duration::ZERO;

    fn at_once(state: &Path) -> io::Result<Lock> {
        lock_within(state, AT_ONCE, |file| sys::try_lock(file.as_fd()))
    }

    #[test]
    fn who_holds_it_is_named() {
        let state = tempfile::tempdir().unwrap();
        let first = at_once(state.path()).unwrap();
        assert!(first.is_certain);
        let said = at_once(state.path()).unwrap_err().to_string();
        let who = format!("another launcher (process {}) holds", std::process::id());
        assert!(said.starts_with(&who), "{said}");
        drop(first);
        at_once(state.path()).unwrap();
    }

    #[test]
    fn it_is_taken_from_a_process_that_has_it_and_from_no_other() {
        let state = tempfile::tempdir().unwrap();
        let own = std::process::id();
        let _first = at_once(state.path()).unwrap();
        for others in [vec![], vec![own + 1]] {
            take_from(&others, state.path()).unwrap();
            assert!(at_once(state.path()).is_err(), "{others:?}");
        }
        take_from(&[own + 1, own], state.path()).unwrap();
        let _second = at_once(state.path()).unwrap();
        assert!(at_once(state.path()).is_err(), "one at a time");
    }

    /// As a second gateway's launcher would that has opened the first.
    #[test]
    fn the_lock_of_a_file_that_is_put_away_says_nothing() {
        let state = tempfile::tempdir().unwrap();
        let path = path_in(state.path());
        let put_away_first = |file: &File| {
            if is_at(file, &path) {
                std::fs::remove_file(&path).unwrap();
            }
            sys::try_lock(file.as_fd())
        };
        assert!(lock_within(state.path(), AT_ONCE, put_away_first).is_err());
        assert!(at_once(state.path()).is_ok());
    }

    #[test]
    fn where_there_are_no_locks_nothing_is_certain() {
        let state = tempfile::tempdir().unwrap();
        let tried = |errno| {
            let fails = |_: &File| Err(io::Error::from_raw_os_error(errno));
            lock_within(state.path(), AT_ONCE, fails).map(|lock| lock.is_certain)
        };
        for errno in [libc::ENOLCK, libc::EOPNOTSUPP, libc::ENOSYS] {
            assert!(!tried(errno).unwrap(), "{errno}");
        }
        let other = tried(libc::EIO).unwrap_err();
        assert_eq!(other.raw_os_error(), Some(libc::EIO));
    }
}

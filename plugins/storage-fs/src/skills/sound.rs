//! Whether the files of a published version are still those that were published. Looked at before its directory is given out
//! to be run: whole when it is asked for the first time after a start, and again when anything in it has been written to,
//! exchanged, added or taken away since, which the file system says of each file.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{AtFlags, FileType, statat};
use sha2::{Digest, Sha256};
use skillgate_skill::file_digest;

use super::MAX_FILE_BYTES;
use super::store::File;
use crate::beneath::{self, Fingerprint, MAX_DEPTH, fingerprint};
use crate::fault::{Fault, Result};

/// What the directory of a version was when its files were found to be sound: one digest over what the file system says of
/// them, so that a store with very many versions keeps little of each.
#[derive(Debug, Default)]
pub(super) struct Sound(Mutex<Option<[u8; 32]>>);

/// A file by its path in the version, and its state.
type Found = Vec<(String, Fingerprint)>;

impl Sound {
    /// `files` are sorted by path; `at` is how an operator finds `dir`.
    pub(super) fn check(&self, dir: &OwnedFd, at: &str, files: &[File]) -> Result<()> {
        // Whoever comes meanwhile waits for the same look.
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = all(dir, at)?;
        let now = digest(&found);
        if *known == Some(now) {
            return Ok(());
        }
        *known = None;
        same_names(&found, at, files)?;
        for file in files {
            let path = format!("{at}/{}", file.path);
            let bytes = beneath::read_file(dir, &file.path, MAX_FILE_BYTES);
            is_sound(bytes, &path, file)?;
        }
        if digest(&all(dir, at)?) != now {
            return Err(Fault::Corrupt(format!(
                "{at}: it changes while it is read: nobody but the store may write there"
            )));
        }
        *known = Some(now);
        Ok(())
    }
}

/// The bytes of a file, if they are those that were stored.
pub(super) fn is_sound(bytes: Result<Vec<u8>>, path: &str, file: &File) -> Result<Vec<u8>> {
    let why = match bytes {
        Ok(bytes) if file_digest(&bytes) == file.sha256 => return Ok(bytes),
        Err(fault) if fault.is_missing() => "missing".to_owned(),
        Ok(_) | Err(Fault::OutOfRange(_)) => "the content is not what was stored".to_owned(),
        Err(fault) if fault.is_damage() => fault.to_string(),
        Err(fault) => return Err(fault),
    };
    Err(Fault::Corrupt(format!(
        "{path}: {why}: restore it from a backup"
    )))
}

/// A file more is as bad as one that was changed: code is found by its name.
fn same_names(found: &Found, at: &str, files: &[File]) -> Result<()> {
    let is_of = |path: &str| files.binary_search_by(|file| file.path.as_str().cmp(path));
    if let Some((path, _)) = found.iter().find(|(path, _)| is_of(path).is_err()) {
        return Err(Fault::Corrupt(format!(
            "{at}/{path}: it is none of the files that were published: remove it"
        )));
    }
    let is_there = |file: &&File| !found.iter().any(|(path, _)| *path == file.path);
    match files.len() == found.len() {
        true => Ok(()),
        false => match files.iter().find(is_there) {
            Some(file) => Err(Fault::Corrupt(format!(
                "{at}/{}: missing: restore it from a backup",
                file.path
            ))),
            None => Ok(()),
        },
    }
}

fn digest(found: &Found) -> [u8; 32] {
    let mut whole = Sha256::new();
    for file in found {
        whole.update(format!("{file:?}"));
    }
    whole.finalize().into()
}

/// Every file below `dir`. What is neither a file nor a directory is refused.
fn all(dir: &OwnedFd, at: &str) -> Result<Found> {
    let mut found = Found::new();
    walk(dir, at, "", 0, &mut found)?;
    Ok(found)
}

fn walk(dir: &OwnedFd, at: &str, above: &str, depth: usize, found: &mut Found) -> Result<()> {
    if depth > MAX_DEPTH {
        return Err(Fault::Corrupt(format!(
            "{at}/{above}: nested deeper than {MAX_DEPTH} directories: remove it"
        )));
    }
    for (name, kind) in beneath::entries(dir, at)? {
        let path = format!("{above}{name}");
        match kind {
            FileType::Directory => {
                let below = beneath::open_dir(dir.as_fd(), &name)?;
                walk(&below, at, &format!("{path}/"), depth + 1, found)?;
            }
            FileType::RegularFile => {
                let stat = statat(dir, &name, AtFlags::SYMLINK_NOFOLLOW);
                let stat = stat.map_err(Fault::os("stat", &format!("{at}/{path}")))?;
                found.push((path, fingerprint(&stat)));
            }
            _ => {
                return Err(Fault::Corrupt(format!(
                    "{at}/{path}: it is no regular file: remove it"
                )));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, content: &[u8]) -> File {
        File {
            path: path.to_owned(),
            sha256: file_digest(content),
            size_bytes: content.len() as u64,
        }
    }

    /// An operator is told to restore what is damaged, and nothing else.
    #[test]
    fn what_cannot_be_read_for_now_is_no_damage() {
        use rustix::io::Errno;
        let stored = file("SKILL.md", b"2");
        let read = |errno| is_sound(Err(Fault::os("open", "x")(errno)), "x", &stored);
        for errno in [Errno::MFILE, Errno::NOMEM, Errno::ACCESS] {
            assert!(matches!(read(errno), Err(Fault::Os { .. })), "{errno:?}");
        }
        for (errno, said) in [
            (Errno::NOENT, "x: missing: "),
            (Errno::IO, "x: cannot open"),
        ] {
            let why = read(errno).unwrap_err();
            assert!(matches!(why, Fault::Corrupt(_)) && why.to_string().starts_with(said));
        }
    }

    #[test]
    fn what_has_not_changed_is_not_read_again() {
        let place = tempfile::tempdir().unwrap();
        std::fs::create_dir(place.path().join("code")).unwrap();
        std::fs::write(place.path().join("code/main.py"), "1").unwrap();
        std::fs::write(place.path().join("SKILL.md"), "2").unwrap();
        let dir = OwnedFd::from(std::fs::File::open(place.path()).unwrap());
        let (sound, files) = (
            Sound::default(),
            [file("SKILL.md", b"2"), file("code/main.py", b"1")],
        );
        let other = [file("SKILL.md", b"3"), file("code/main.py", b"1")];
        assert!(sound.check(&dir, "x", &other).is_err());
        sound.check(&dir, "x", &files).unwrap();
        // It is not looked into, or this would be seen.
        sound.check(&dir, "x", &other).unwrap();
        // The same bytes, written again.
        std::fs::write(place.path().join("new"), "2").unwrap();
        std::fs::rename(place.path().join("new"), place.path().join("SKILL.md")).unwrap();
        assert!(sound.check(&dir, "x", &other).is_err());
        sound.check(&dir, "x", &files).unwrap();
    }
}

//! From the request's mounts to what the launcher can attach.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use skillgate_plugin_sdk::model::{Error, Mount, Source};
use skillgate_plugin_sdk::{RunServices, abi};

use crate::archive;
use crate::sys;
use crate::wire::{MOUNTS_MAX, MountSpec};

const COPY_BYTES: usize = 256 << 10;

/// The mounts of a run, held open until it is over.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) specs: Vec<MountSpec>,
    /// The ids of its input blobs, as they came.
    pub(crate) blobs: Vec<String>,
    _held: Vec<OwnedFd>,
    _copies: Copies,
}

/// A directory for what has no place of its own in the file system, removed with the run.
#[derive(Debug)]
struct Copies {
    dir: PathBuf,
    made: bool,
}

impl Drop for Copies {
    fn drop(&mut self) {
        if self.made {
            // Left for the next start's sweep, should it fail.
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}

/// Where copies are, below the state directory.
pub(crate) fn copies_dir(state_dir: &Path) -> PathBuf {
    state_dir.join("copies")
}

/// Opens every source and finds out where it is.
pub(crate) fn prepare(
    mounts: Vec<Mount>,
    run_id: &str,
    state_dir: &Path,
    services: &dyn RunServices,
) -> Result<Prepared, Error> {
    if mounts.len() > MOUNTS_MAX {
        return Err(invalid(format!(
            "{} mounts, where {MOUNTS_MAX} are possible",
            mounts.len()
        )));
    }
    let mut copies = Copies {
        dir: copies_dir(state_dir).join(run_id),
        made: false,
    };
    let (mut specs, mut blobs, mut held, mut targets) =
        (Vec::new(), Vec::new(), Vec::new(), BTreeSet::new());
    for mount in mounts {
        let name = place_of(&mount.target)?;
        if !targets.insert(mount.target.clone()) {
            return Err(invalid(format!("mount {} comes twice", mount.target)));
        }
        if !mount.read_only {
            return Err(invalid(format!("mount {} is not read-only", mount.target)));
        }
        if mount.target.starts_with("/blobs/") {
            blobs.push(format!("blob:{name}"));
        }
        let named = |e: io::Error| {
            Error::new(abi::E_UNAVAILABLE, format!("mount {}: {e}", mount.target)).not_executed()
        };
        let opened = match mount.source {
            Source::Path(path) => sys::open(path, libc::O_PATH).map_err(named)?,
            Source::Fd(fd) => fd,
            Source::Blob(id) => match services.blob_fd(&id) {
                Ok(fd) => fd,
                Err(e) if e.code == abi::E_UNIMPLEMENTED => copies.fetch(name, &id, services)?,
                Err(e) => return Err(e.not_executed()),
            },
            Source::Tar(fd) => copies.unpack(name, fd).map_err(named)?,
        };
        let (opened, path) = copies.with_a_place(name, opened).map_err(named)?;
        let stat = sys::stat(opened.as_fd()).map_err(named)?;
        if !matches!(stat.mode & libc::S_IFMT, libc::S_IFDIR | libc::S_IFREG) {
            return Err(invalid(format!(
                "mount {} is neither a directory nor a file",
                mount.target
            )));
        }
        let path = path
            .into_os_string()
            .into_string()
            .map_err(|p| invalid(format!("mount {}: {p:?} is not UTF-8", mount.target)))?;
        specs.push(MountSpec {
            target: mount.target,
            path,
            dev: stat.dev,
            ino: stat.ino,
        });
        held.push(opened);
    }
    Ok(Prepared {
        specs,
        blobs,
        _held: held,
        _copies: copies,
    })
}

impl Copies {
    /// With where it is. A file that is nowhere any more (deleted, or only ever in memory) cannot be mounted: its content is
    /// copied.
    fn with_a_place(&mut self, name: &str, fd: OwnedFd) -> io::Result<(OwnedFd, PathBuf)> {
        let path = sys::path_of(fd.as_fd())?;
        // So ends the path of what was deleted, and a name may end so too. How many names it has tells nothing: of a file that
        // has two the one that it was opened by may be gone.
        let ends_so = path.as_os_str().as_bytes().ends_with(b" (deleted)");
        if path.is_absolute() && (!ends_so || leads_to(&path, fd.as_fd())?) {
            return Ok((fd, path));
        }
        if sys::stat(fd.as_fd())?.mode & libc::S_IFMT != libc::S_IFREG {
            return Err(io::Error::other("the directory has been deleted"));
        }
        let (mut file, path) = self.file(name)?;
        let mut from = fs::File::from(fd);
        io::Seek::rewind(&mut from)?;
        io::copy(&mut from, &mut file)?;
        Ok((sys::open(path.as_os_str().as_bytes(), libc::O_PATH)?, path))
    }

    fn fetch(
        &mut self,
        name: &str,
        id: &str,
        services: &dyn RunServices,
    ) -> Result<OwnedFd, Error> {
        let named = |e: io::Error| {
            Error::new(abi::E_UNAVAILABLE, format!("a copy of an input blob: {e}")).not_executed()
        };
        let (mut file, path) = self.file(name).map_err(named)?;
        let mut buf = vec![0; COPY_BYTES];
        let mut offset = 0;
        loop {
            match services
                .blob_read(id, offset, &mut buf)
                .map_err(Error::not_executed)?
            {
                0 => break,
                n => {
                    file.write_all(&buf[..n]).map_err(named)?;
                    offset += n as u64;
                }
            }
        }
        sys::open(path.as_os_str().as_bytes(), libc::O_PATH).map_err(named)
    }

    fn unpack(&mut self, name: &str, archive: OwnedFd) -> io::Result<OwnedFd> {
        // Beside a blob of the same name.
        let path = self.place(&format!("tree-{name}"))?;
        let mut archive = fs::File::from(archive);
        io::Seek::rewind(&mut archive)?;
        archive::unpack(io::BufReader::new(archive), &path)?;
        sys::open(path.as_os_str().as_bytes(), libc::O_PATH)
    }

    /// The way there is searchable by nobody else; what is there must be readable by the run.
    fn place(&mut self, name: &str) -> io::Result<PathBuf> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.dir)?;
        self.made = true;
        Ok(self.dir.join(name))
    }

    fn file(&mut self, name: &str) -> io::Result<(fs::File, PathBuf)> {
        let path = self.place(name)?;
        let file = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o444)
            .open(&path)?;
        use std::os::unix::fs::PermissionsExt;
        file.set_permissions(fs::Permissions::from_mode(0o444))?;
        Ok((file, path))
    }
}

fn leads_to(path: &Path, fd: BorrowedFd<'_>) -> io::Result<bool> {
    let own = sys::stat(fd)?;
    let at = sys::open(path.as_os_str().as_bytes(), libc::O_PATH | libc::O_NOFOLLOW);
    let there = at.and_then(|at| sys::stat(at.as_fd()));
    Ok(there.is_ok_and(|there| (there.dev, there.ino) == (own.dev, own.ino)))
}

/// The one name below `/skills` or `/blobs`.
fn place_of(target: &str) -> Result<&str, Error> {
    let name = target
        .strip_prefix("/skills/")
        .or_else(|| target.strip_prefix("/blobs/"))
        .unwrap_or_default();
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    if name.is_empty() || name.len() > 255 || name.starts_with('.') || !name.bytes().all(plain) {
        return Err(invalid(format!(
            "mount target {target:?}: use /skills/<name> or /blobs/<id>"
        )));
    }
    Ok(name)
}

fn invalid(message: String) -> Error {
    Error::new(abi::E_INVALID_ARGUMENT, message).not_executed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_as_if_deleted_is_there() {
        let room = tempfile::tempdir().unwrap();
        let at = |name: &str| room.path().join(name);
        let open = |name: &str| sys::open(at(name).to_str().unwrap(), libc::O_RDONLY).unwrap();
        let mut copies = Copies {
            dir: at("copies"),
            made: false,
        };
        fs::create_dir(at("x (deleted)")).unwrap();
        fs::write(at("y (deleted)"), "y").unwrap();
        for name in ["x (deleted)", "y (deleted)"] {
            let (_, path) = copies.with_a_place("a", open(name)).unwrap();
            assert_eq!(path, at(name));
        }
        assert!(!copies.made);

        // As the kernel calls these now, another is named.
        fs::create_dir(at("x")).unwrap();
        fs::write(at("y"), "its own").unwrap();
        fs::hard_link(at("y"), at("z")).unwrap();
        let (directory, file) = (open("x"), open("y"));
        fs::remove_dir(at("x")).unwrap();
        fs::remove_file(at("y")).unwrap();
        let gone = copies.with_a_place("b", directory).unwrap_err();
        assert_eq!(gone.to_string(), "the directory has been deleted");
        let (_, path) = copies.with_a_place("b", file).unwrap();
        assert_eq!(path, at("copies/b"));
        assert_eq!(fs::read(path).unwrap(), b"its own");
    }

    #[test]
    fn targets() {
        assert_eq!(place_of("/skills/acme.leads").unwrap(), "acme.leads");
        assert_eq!(place_of("/blobs/0a1b").unwrap(), "0a1b");
        for bad in [
            "",
            "/",
            "/skills",
            "/skills/",
            "/skills/..",
            "/skills/.hidden",
            "/skills/a/b",
            "/etc/passwd",
            "skills/a",
            "/blobs/a\0b",
            "/blobs/a b",
            "/blobs//a",
        ] {
            assert!(place_of(bad).is_err(), "{bad:?}");
        }
    }
}

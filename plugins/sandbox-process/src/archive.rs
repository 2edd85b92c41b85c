//! Unpacks a skill that a store hands over as a tar archive (`SKG_SRC_TAR`): a store that keeps its skills elsewhere has
//! no directory to show.
//!
//! The bytes come from a plugin, what is in them from an author: directories and plain files, inside, within bounds;
//! everything else is refused, not skipped.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

/// Files and directories in one archive.
const ENTRIES_MAX: usize = 10_000;
/// Content of all files of one archive.
const CONTENT_BYTES_MAX: u64 = 256 << 20;

/// Unpacks into `into`, which must not exist. Whatever is there after an error is the caller's to remove.
pub(crate) fn unpack(archive: impl Read, into: &Path) -> io::Result<()> {
    unpack_within(archive, into, ENTRIES_MAX, CONTENT_BYTES_MAX)
}

fn unpack_within(
    archive: impl Read,
    into: &Path,
    entries_max: usize,
    content_bytes_max: u64,
) -> io::Result<()> {
    directory(into)?;
    let mut content_bytes = 0_u64;
    for (index, entry) in tar::Archive::new(archive).entries()?.enumerate() {
        if index >= entries_max {
            return Err(bad(format!("more than {entries_max} entries")));
        }
        let mut entry = entry?;
        let name = entry.path()?.into_owned();
        let path = into.join(inside(&name)?);
        match entry.header().entry_type() {
            tar::EntryType::Directory => match directory(&path) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
                made => made?,
            },
            tar::EntryType::Regular => {
                content_bytes = content_bytes.saturating_add(entry.size());
                if content_bytes > content_bytes_max {
                    return Err(bad(format!("more than {content_bytes_max} bytes")));
                }
                for above in missing(&path, into) {
                    directory(&above)?;
                }
                let mut file = fs::OpenOptions::new()
                    .write(true)
                    .create_new(true)
                    .mode(0o444)
                    .open(&path)?;
                let copied = io::copy(&mut entry, &mut file)?;
                if copied != entry.size() {
                    return Err(bad(format!("{} is cut off", name.display())));
                }
                file.set_permissions(fs::Permissions::from_mode(0o444))?;
            }
            other => {
                return Err(bad(format!(
                    "{} is neither a file nor a directory ({other:?})",
                    name.display()
                )));
            }
        }
    }
    Ok(())
}

/// Readable by the run, whatever the umask.
fn directory(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().mode(0o755).create(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}

/// The directories between `into` and a file that no entry has named, outermost first.
fn missing(path: &Path, into: &Path) -> Vec<PathBuf> {
    let mut above: Vec<PathBuf> = path
        .ancestors()
        .skip(1)
        .take_while(|above| *above != into && !above.is_dir())
        .map(Path::to_path_buf)
        .collect();
    above.reverse();
    above
}

/// A relative path without a way up. Nothing in `into` is a link, so what is inside by its name is inside.
fn inside(name: &Path) -> io::Result<PathBuf> {
    let mut path = PathBuf::new();
    for component in name.components() {
        match component {
            Component::Normal(part) => path.push(part),
            Component::CurDir => {}
            _ => return Err(bad(format!("{} leads out of it", name.display()))),
        }
    }
    Ok(path)
}

fn bad(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the archive: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(entries: &[(&str, tar::EntryType, &[u8])]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (name, kind, content) in entries {
            let mut header = tar::Header::new_gnu();
            // As raw bytes: the crate's own setter refuses what is tried here.
            header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_entry_type(*kind);
            header.set_size(content.len() as u64);
            header.set_mode(0o777);
            if matches!(kind, tar::EntryType::Symlink | tar::EntryType::Link) {
                header.set_link_name("/etc/passwd").unwrap();
            }
            header.set_cksum();
            builder.append(&header, *content).unwrap();
        }
        builder.into_inner().unwrap()
    }

    const FILE: tar::EntryType = tar::EntryType::Regular;

    fn tried(bytes: &[u8]) -> (tempfile::TempDir, Result<(), String>) {
        let dir = tempfile::tempdir().unwrap();
        let result = unpack_within(bytes, &dir.path().join("a"), 4, 100);
        (dir, result.map_err(|e| e.to_string()))
    }

    #[test]
    fn files_and_directories() {
        let bytes = archive(&[
            ("./", tar::EntryType::Directory, b""),
            ("code/", tar::EntryType::Directory, b""),
            ("code/main.py", FILE, b"x = 1"),
            ("a/b/c", FILE, b""),
        ]);
        let (dir, result) = tried(&bytes);
        result.unwrap();
        let at = |p: &str| dir.path().join("a").join(p);
        assert_eq!(fs::read(at("code/main.py")).unwrap(), b"x = 1");
        assert_eq!(fs::metadata(at("a/b")).unwrap().mode_bits(), 0o755);
        assert_eq!(fs::metadata(at("a/b/c")).unwrap().mode_bits(), 0o444);
    }

    trait ModeBits {
        fn mode_bits(&self) -> u32;
    }
    impl ModeBits for fs::Metadata {
        fn mode_bits(&self) -> u32 {
            self.permissions().mode() & 0o7777
        }
    }

    #[test]
    fn everything_else_is_refused_by_name() {
        let five = [("a", FILE, &b""[..]); 5];
        let cut = archive(&[("a", FILE, &[7; 90])]);
        for (bytes, word) in [
            (archive(&[("../a", FILE, b"")]), "leads out"),
            (archive(&[("/a", FILE, b"")]), "leads out"),
            (archive(&[("b/../../a", FILE, b"")]), "leads out"),
            (archive(&[("a", tar::EntryType::Symlink, b"")]), "neither"),
            (archive(&[("a", tar::EntryType::Link, b"")]), "neither"),
            (archive(&[("a", tar::EntryType::Fifo, b"")]), "neither"),
            (archive(&[("a", tar::EntryType::Block, b"")]), "neither"),
            (
                archive(&[("a", FILE, &[0; 60]), ("b", FILE, &[0; 60])]),
                "more than 100 bytes",
            ),
            (archive(&[("a", FILE, b""), ("a", FILE, b"")]), "exists"),
            (archive(&[("a", FILE, b""), ("a/b", FILE, b"")]), ""),
            (archive(&five[..1]).repeat(1)[..300].to_vec(), ""),
            (cut[..550].to_vec(), ""),
            (b"not an archive, but long enough".repeat(40), ""),
        ] {
            let (_dir, result) = tried(&bytes);
            let error = result.expect_err(word);
            assert!(error.contains(word), "{error}");
        }
        let names = ["a", "b", "c", "d", "e"].map(|n| (n, FILE, &b""[..]));
        let (_dir, result) = tried(&archive(&names));
        assert!(result.unwrap_err().contains("more than 4 entries"));
    }
}

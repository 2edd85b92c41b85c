//! Unpacks a skill that a store hands over as a tar archive (`SKG_SRC_TAR`): a store that keeps its skills elsewhere has
//! no directory to show.
//!
//! The bytes come from a plugin, what is in them from an author: directories and plain files, inside, within bounds;
//! everything else is refused, not skipped.

use std::cell::Cell;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

/// Files and directories in one archive, with those that no entry has named.
const ENTRIES_MAX: usize = 10_000;
/// Content of all files of one archive.
const CONTENT_BYTES_MAX: u64 = 256 << 20;
/// What an entry has beside its content, its name above all: that is read into memory, whatever the archive says of its length.
const HEAD_BYTES_MAX: u64 = 64 << 10;
/// The kernel takes no longer path.
const NAME_BYTES_MAX: usize = 4096;
/// Parts of a name. To remove a tree takes a descriptor for each directory on the way down.
const DEPTH_MAX: usize = 64;

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
    let (mut content_bytes, mut entries) = (0_u64, 0);
    let (left, is_over) = (Cell::new(HEAD_BYTES_MAX), Cell::new(false));
    let archive = Within {
        archive,
        left: &left,
        is_over: &is_over,
    };
    for entry in tar::Archive::new(archive).entries()? {
        let mut entry = entry?;
        let bytes = entry.path_bytes().len();
        if bytes > NAME_BYTES_MAX {
            return Err(bad(format!(
                "a name of {bytes} bytes, where {NAME_BYTES_MAX} are possible"
            )));
        }
        let name = entry.path()?.into_owned();
        let path = into.join(inside(&name)?);
        let above = missing(&path, into);
        entries += 1 + above.len();
        if entries > entries_max {
            return Err(bad(format!("more than {entries_max} entries")));
        }
        for above in above {
            directory(&above)?;
        }
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
                left.set(entry.size());
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
            // As `git archive` begins: of which commit it is.
            tar::EntryType::XGlobalHeader if is_comment(&mut entry)? => {}
            other => {
                return Err(bad(format!(
                    "{} is neither a file nor a directory ({other:?})",
                    name.display()
                )));
            }
        }
        left.set(HEAD_BYTES_MAX);
    }
    if is_over.get() {
        // Behind the last entry there are blocks of zeros, and nothing is read beyond the first of these.
        return Err(bad("it is cut off between two entries".into()));
    }
    Ok(())
}

/// Whether a head that is for all entries changes none of them.
fn is_comment(head: &mut tar::Entry<'_, impl Read>) -> io::Result<bool> {
    let said = head.pax_extensions()?;
    Ok(said
        .is_some_and(|mut all| all.all(|one| one.is_ok_and(|one| one.key_bytes() == b"comment"))))
}

/// An archive of which so much may still be read.
struct Within<'a, R> {
    archive: R,
    left: &'a Cell<u64>,
    /// There was nothing more to read when something was asked for.
    is_over: &'a Cell<bool>,
}

impl<R: Read> Read for Within<'_, R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let left = self.left.get();
        if left == 0 && !buf.is_empty() {
            return Err(bad(format!(
                "an entry with more than {HEAD_BYTES_MAX} bytes beside its content"
            )));
        }
        let most = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let n = self.archive.read(&mut buf[..most])?;
        self.is_over.set(n == 0 && most > 0);
        self.left.set(left - n as u64);
        Ok(n)
    }
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
    if path.components().count() > DEPTH_MAX {
        return Err(bad(format!(
            "{} has more than {DEPTH_MAX} parts",
            name.display()
        )));
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
        let result = unpack_within(bytes, &dir.path().join("a"), 6, 100);
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
        let names = ["a", "b", "c", "d", "e", "f", "g"].map(|n| (n, FILE, &b""[..]));
        let (_dir, result) = tried(&archive(&names));
        assert!(result.unwrap_err().contains("more than 6 entries"));
    }

    /// A store's copy that was never finished, of small files: each takes two blocks.
    #[test]
    fn an_archive_that_ends_between_two_files_is_no_smaller_skill() {
        let whole = archive(&[("a", FILE, b"1"), ("b", FILE, b"2")]);
        for (bytes, is_whole) in [(0, false), (1024, false), (2048, false), (2560, true)] {
            let (_dir, result) = tried(&whole[..bytes]);
            let error = result.err().unwrap_or_default();
            assert_eq!(error.is_empty(), is_whole, "{bytes}: {error}");
            assert!(is_whole || error.ends_with("it is cut off between two entries"));
        }
    }

    #[test]
    fn what_git_says_of_an_archive_is_no_file_of_it() {
        const HEAD: tar::EntryType = tar::EntryType::XGlobalHeader;
        let comment = format!("52 comment={}\n", "0".repeat(40));
        let with = |said: &str| {
            archive(&[
                ("pax_global_header", HEAD, said.as_bytes()),
                ("main.py", FILE, b"x = 1"),
            ])
        };
        let (dir, result) = tried(&with(&comment));
        result.unwrap();
        let files = fs::read_dir(dir.path().join("a")).unwrap();
        let names: Vec<_> = files.map(|file| file.unwrap().file_name()).collect();
        assert_eq!(names, ["main.py"]);
        for said in ["12 path=b/c\n", "no head"] {
            let (_dir, result) = tried(&with(&(comment.clone() + said)));
            let error = result.unwrap_err();
            assert!(error.contains("pax_global_header is neither"), "{error}");
        }
    }

    /// With its name in an entry of its own, as every tar writes what does not fit into a head.
    fn named(name: &str, kind: tar::EntryType) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(0);
        header.set_mode(0o644);
        builder.append_data(&mut header, name, &b""[..]).unwrap();
        builder.into_inner().unwrap()
    }

    /// Many directories take few bytes of an archive, and the gateway would make each.
    #[test]
    fn directories_that_no_entry_names_count_too() {
        let (_dir, result) = tried(&named("1/2/3/4/5/6", FILE));
        result.unwrap();
        let (dir, result) = tried(&named("1/2/3/4/5/6/7", FILE));
        assert!(result.unwrap_err().contains("more than 6 entries"));
        assert!(!dir.path().join("a/1").exists(), "before any is made");
        let (dir, result) = tried(&named("1/2/3/", tar::EntryType::Directory));
        result.unwrap();
        assert!(dir.path().join("a/1/2/3").is_dir());
    }

    /// The gateway has as much memory as all of its runs have.
    #[test]
    fn no_name_takes_more_memory_than_a_name_may() {
        let length = |bytes| "x".repeat(bytes);
        for (name, word) in [
            (length(NAME_BYTES_MAX + 1), "4097 bytes, where 4096"),
            (
                length(HEAD_BYTES_MAX as usize),
                "more than 65536 bytes beside its content",
            ),
            (length(8 << 20), "more than 65536 bytes beside its content"),
            ("x/".repeat(DEPTH_MAX) + "x", "more than 64 parts"),
        ] {
            let (dir, result) = tried(&named(&name, FILE));
            let error = result.expect_err(word);
            assert!(error.contains(word), "{}", &error[error.len() - 100..]);
            assert_eq!(fs::read_dir(dir.path().join("a")).unwrap().count(), 0);
        }
    }
}

#[cfg(test)]
mod anything;

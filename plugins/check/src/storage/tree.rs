//! A skill's tree: the files that were published, whichever way the store gives them.

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path};

use skillgate_plugin_sdk::model::{Content, PutSkill};

use super::FILE_BYTES_MAX;
use crate::bench::{Done, failed_at};

/// Files and directories that are looked at: far more than any skill of the kit has.
const ENTRIES_MAX: usize = 1000;

type Files = Vec<(String, Vec<u8>)>;

/// The tree must have the files of `put`, with their bytes, and no others.
pub(super) fn same(put: &PutSkill, tree: Content) -> Done {
    let wrong = |seen: String| failed_at("skill_tree", seen);
    let (what, read) = match tree {
        Content::Dir(fd) => ("its directory", in_directory(&fd)),
        Content::Tar(fd, size) => ("its tar", in_tar(fd, size)),
        Content::Data(_) | Content::File(..) => {
            return Err(wrong("it is answered with a file".into()));
        }
    };
    let mut found = read.map_err(|error| wrong(format!("{what} cannot be read: {error}")))?;
    found.sort();
    if found == put.files {
        return Ok(());
    }
    let shown = |files: &Files| {
        let files = files.iter().map(|(path, data)| (path.clone(), data.len()));
        format!("{:?}", files.collect::<Vec<_>>())
    };
    let (has, wanted) = (shown(&found), shown(&put.files));
    Err(wrong(if has == wanted {
        format!("{what} has {has}, but not their bytes")
    } else {
        format!("{what} has {has}, and what was put has {wanted}")
    }))
}

/// What is mounted is read by the code of runs, which is another user where the gateway is root.
pub(super) fn others_read(path: &Path, metadata: &fs::Metadata) -> io::Result<()> {
    let (needed, wanted) = match metadata.is_dir() {
        true => (0o5, "o+rx"),
        false => (0o4, "o+r"),
    };
    let mode = metadata.mode() & 0o7777;
    if mode & needed == needed {
        return Ok(());
    }
    let text = format!(
        "{} has the mode {mode:04o}, and is to be {wanted}: runs may be another user's",
        path.display()
    );
    Err(io::Error::other(text))
}

fn in_directory(fd: &OwnedFd) -> io::Result<Files> {
    // By its descriptor, as a mount would.
    let root = format!("/proc/self/fd/{}/", fd.as_raw_fd());
    let root = Path::new(&root);
    others_read(Path::new("it"), &fs::metadata(root)?)?;
    let (mut files, mut seen) = (Files::new(), 0);
    let mut open = vec![root.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            let name = path.strip_prefix(root).map_err(io::Error::other)?;
            count(&mut seen)?;
            // A link is no file, wherever it leads.
            let metadata = fs::symlink_metadata(&path)?;
            if metadata.is_dir() {
                others_read(name, &metadata)?;
                open.push(path);
            } else if metadata.is_file() {
                others_read(name, &metadata)?;
                files.push((named(name)?, whole(File::open(&path)?)?));
            } else {
                return Err(neither(name));
            }
        }
    }
    Ok(files)
}

fn in_tar(fd: OwnedFd, size: u64) -> io::Result<Files> {
    let mut file = File::from(fd);
    let there = file.metadata()?.len();
    if there != size {
        let text = format!("size_bytes is {size}, and its file has {there}");
        return Err(io::Error::other(text));
    }
    file.rewind()?;
    let (mut files, mut seen) = (Files::new(), 0);
    let mut archive = tar::Archive::new(BufReader::new(file));
    for entry in archive.entries()? {
        let entry = entry?;
        let name = entry.path()?.into_owned();
        count(&mut seen)?;
        match entry.header().entry_type() {
            tar::EntryType::Directory => {}
            tar::EntryType::Regular => files.push((named(&name)?, whole(entry)?)),
            _ => return Err(neither(&name)),
        }
    }
    Ok(files)
}

fn count(seen: &mut usize) -> io::Result<()> {
    *seen += 1;
    if *seen > ENTRIES_MAX {
        return Err(io::Error::other(format!("more than {ENTRIES_MAX} entries")));
    }
    Ok(())
}

fn whole(file: impl Read) -> io::Result<Vec<u8>> {
    let mut data = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut data)?;
    Ok(data)
}

fn neither(name: &Path) -> io::Error {
    let text = format!("{} is neither a file nor a directory", name.display());
    io::Error::other(text)
}

/// The path as it was put: a tar may write "./" before it.
fn named(path: &Path) -> io::Result<String> {
    let mut parts = Vec::new();
    for part in path.components() {
        match (part, part.as_os_str().to_str()) {
            (Component::CurDir, _) => {}
            (Component::Normal(_), Some(text)) => parts.push(text),
            _ => {
                let text = format!("{path:?} is not the path of a skill's file");
                return Err(io::Error::other(text));
            }
        }
    }
    Ok(parts.join("/"))
}

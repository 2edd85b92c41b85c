//! The files of a log: their names, the end of the one that is written, and the lock.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use sha2::{Digest, Sha256};

use super::chain::{Head, LINE_BYTES_MAX, Link};
use super::memory::{SEQUENCE_MAX, Was};

/// Why the file is not what was written, in the `resumed` record behind it: its records are lost, unless somebody has a copy.
pub(super) const CUT: &str = "the file was cut";
/// Digits of the sequence in the name of a file that is full: all that a `u64` can have.
const SEQUENCE_DIGITS: usize = 20;
/// What a new file may be used for: by its owner.
pub(super) const MODE: u32 = 0o600;

/// Why a log was not opened: which file, and what to do.
#[derive(Debug)]
pub struct OpenError {
    path: PathBuf,
    why: String,
    error: Option<io::Error>,
}

impl OpenError {
    pub(super) fn new(path: &Path, why: impl Into<String>, error: io::Error) -> Self {
        OpenError {
            path: path.to_owned(),
            why: why.into(),
            error: Some(error),
        }
    }

    fn refused(path: &Path, why: impl Into<String>) -> Self {
        OpenError {
            path: path.to_owned(),
            why: why.into(),
            error: None,
        }
    }
}

impl std::fmt::Display for OpenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "audit.path: {}: {}", self.path.display(), self.why)?;
        match &self.error {
            Some(error) => write!(f, ": {error}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.as_ref().map(|error| error as _)
    }
}

/// The names of a log's files.
#[derive(Debug, Clone)]
pub(super) struct Names {
    /// The one that is written.
    pub(super) active: PathBuf,
    pub(super) dir: PathBuf,
    stem: String,
    /// With its dot, or empty.
    ending: String,
}

impl Names {
    /// Of the log at `path`. None: it names no file.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let stem = path.file_stem()?.to_str()?.to_owned();
        let ending = match path.extension() {
            Some(ending) => format!(".{}", ending.to_str()?),
            None => String::new(),
        };
        let dir = match path.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => dir.to_owned(),
            _ => PathBuf::from("."),
        };
        Some(Names {
            active: path.to_owned(),
            dir,
            stem,
            ending,
        })
    }

    /// The name of a full file that begins with this sequence.
    pub(super) fn full(&self, first: u64) -> PathBuf {
        let (stem, ending) = (&self.stem, &self.ending);
        self.dir
            .join(format!("{stem}.{first:0SEQUENCE_DIGITS$}{ending}"))
    }

    /// The first sequence that the name of a full file gives.
    pub(super) fn sequence(&self, name: &str) -> Option<u64> {
        let digits = name
            .strip_prefix(&self.stem)?
            .strip_prefix('.')?
            .strip_suffix(&self.ending)?;
        let fits = digits.len() == SEQUENCE_DIGITS && digits.bytes().all(|b| b.is_ascii_digit());
        fits.then(|| digits.parse().ok())?
    }

    /// The full files that are there, in the order of the chain.
    pub(super) fn full_files(&self) -> io::Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let name = entry?.file_name();
            if let Some(sequence) = name.to_str().and_then(|name| self.sequence(name)) {
                found.push((sequence, self.dir.join(name)));
            }
        }
        found.sort();
        Ok(found.into_iter().map(|(_, path)| path).collect())
    }

    /// Held by the gateway that writes.
    pub(super) fn lock(&self) -> PathBuf {
        self.dir.join(format!("{}{}.lock", self.stem, self.ending))
    }

    /// What is remembered of where the chain ends.
    pub(super) fn memory(&self) -> PathBuf {
        self.dir.join(format!("{}{}.head", self.stem, self.ending))
    }
}

/// The right to write a log; ends with this.
#[derive(Debug)]
pub(super) struct Lock {
    file: File,
}

impl Drop for Lock {
    /// To close it is not enough: a child that this process is just making has the same open file until it executes its
    /// program (flock(2)), and the next one to write the log would find it taken.
    fn drop(&mut self) {
        // An error would be that of a descriptor that is not open.
        let _ = self.file.unlock();
    }
}

impl Lock {
    pub(super) fn take(names: &Names) -> Result<Lock, OpenError> {
        // First, so that a path that is no log's gets no lock file beside it.
        check_regular(&names.active)
            .map_err(|error| OpenError::new(&names.active, "cannot open it", error))?;
        let path = names.lock();
        let file = open_regular(&path).map_err(|error| {
            OpenError::new(&names.active, "cannot make its lock file beside it", error)
        })?;
        match file.try_lock() {
            Ok(()) => Ok(Lock { file }),
            Err(TryLockError::WouldBlock) => Err(OpenError::refused(
                &names.active,
                "another gateway writes this log: wait for it to end, or give this one an audit.path and a plugins.state_dir of its own",
            )),
            Err(TryLockError::Error(error)) => {
                Err(OpenError::new(&names.active, "cannot lock it", error))
            }
        }
    }
}

/// Opens a file for reading and writing, makes it where there is none, and takes nothing else for it: not a link, which
/// could lead anywhere, not a pipe, which could block.
fn open_regular(path: &Path) -> io::Result<File> {
    check_regular(path)?;
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(MODE)
        .open(path)
}

pub(super) fn check_regular(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.is_file() => Err(io::Error::other("it is not a regular file")),
        Ok(found) if found.mode() & 0o022 != 0 => Err(io::Error::other(
            "others may write it, so nothing in it proves anything; chmod go-w",
        )),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// What a file ends with.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Tail {
    /// The last whole record; none: there is no line.
    pub(super) head: Option<Head>,
    /// The length up to the last line end.
    pub(super) whole_bytes: u64,
    /// What is behind it: the beginning of a record that was not written to its end.
    pub(super) torn: Option<Torn>,
}

/// Bytes that were cut off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Torn {
    pub(super) bytes: u64,
    pub(super) sha256: String,
}

impl Torn {
    /// Some text and so many zeros behind it; nothing of nothing.
    fn of(text: &[u8], zeros: u64) -> Option<Torn> {
        let mut digest = Sha256::new_with_prefix(text);
        let mut left = zeros;
        while left > 0 {
            let piece = left.min(ZEROS.len() as u64);
            digest.update(&ZEROS[..piece as usize]);
            left -= piece;
        }
        let bytes = text.len() as u64 + zeros;
        (bytes > 0).then(|| Torn {
            bytes,
            sha256: hex::encode(digest.finalize()),
        })
    }
}

static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

/// How many bytes at the end of a file are zero, of which no record has one. After a power cut a file may have the length that
/// it had, and zeros for whatever had not come to the disk: of a busy log more than a record.
fn zeros_at_end(file: &mut (impl Read + Seek), len: u64) -> io::Result<u64> {
    let mut piece = Vec::new();
    let mut zeros = 0;
    while zeros < len {
        let bytes = (len - zeros).min(ZEROS.len() as u64);
        file.seek(SeekFrom::Start(len - zeros - bytes))?;
        piece.clear();
        file.take(bytes).read_to_end(&mut piece)?;
        match piece.iter().rposition(|byte| *byte != 0) {
            Some(last) => return Ok(zeros + (piece.len() - last - 1) as u64),
            None => zeros += bytes,
        }
    }
    Ok(zeros)
}

/// Reads the end of a file. The inner error says what is wrong with the last line.
pub(super) fn tail(file: &mut (impl Read + Seek)) -> io::Result<Result<Tail, &'static str>> {
    let len = file.seek(SeekFrom::End(0))?;
    let zeros = zeros_at_end(file, len)?;
    // The last whole line and a torn one behind it.
    let window = (len - zeros).min(2 * LINE_BYTES_MAX as u64);
    file.seek(SeekFrom::Start(len - zeros - window))?;
    let mut bytes = Vec::new();
    file.take(window).read_to_end(&mut bytes)?;
    let end = bytes
        .iter()
        .rposition(|b| *b == b'\n')
        .map_or(0, |at| at + 1);
    let torn = &bytes[end..];
    if torn.len() > LINE_BYTES_MAX {
        return Ok(Err("its last line is longer than any record"));
    }
    let tail = |head| Tail {
        head,
        whole_bytes: len - zeros - torn.len() as u64,
        torn: Torn::of(torn, zeros),
    };
    let Some(lines) = bytes[..end].strip_suffix(b"\n") else {
        return Ok(Ok(tail(None)));
    };
    let start = lines
        .iter()
        .rposition(|b| *b == b'\n')
        .map_or(0, |at| at + 1);
    Ok(match Link::read(&lines[start..]) {
        Some(link) if link.sequence >= SEQUENCE_MAX => {
            Err("its last record has a number behind which there are none")
        }
        Some(link) if link.is_whole() => Ok(tail(Some(link.head()))),
        Some(_) => Err("its last record is not what its hash was made of"),
        None => Err("its last line is no record"),
    })
}

/// The file that is written.
#[derive(Debug)]
pub(super) struct Active {
    file: File,
    /// Of the whole records in it.
    pub(super) bytes: u64,
    inode: (u64, u64),
}

/// Where a file ends that could not be cut there: behind it may be records of which nobody was told that they are written. Known for
/// as long as this process lives: the next one takes them for a part of the chain, as it has to take those that it finds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Uncut {
    bytes: u64,
    inode: (u64, u64),
}

/// What was found when a log was opened.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) active: Active,
    /// Where the files end; before the first record, where there are none.
    pub(super) head: Head,
    pub(super) torn: Option<Torn>,
    pub(super) was: Was,
}

impl Active {
    /// Finds where the chain ends, and cuts off what a crash left behind its end.
    pub(super) fn find(names: &Names) -> Result<Found, OpenError> {
        let path = &names.active;
        let was = match fs::symlink_metadata(path) {
            Ok(found) if found.len() == 0 => Was::Empty,
            Ok(_) => Was::Written,
            // Whatever else it is, opening it says so.
            Err(_) => Was::Absent,
        };
        let (mut active, torn, head) = Active::open(path)?;
        let head = match head {
            Some(head) => head,
            None => before(names)?,
        };
        active.cut().map_err(|error| {
            OpenError::new(path, "cannot cut off what a crash left at its end", error)
        })?;
        sync_dir(&names.dir).map_err(|error| {
            OpenError::new(path, "cannot make its name durable in its directory", error)
        })?;
        Ok(Found {
            active,
            head,
            torn,
            was,
        })
    }

    /// Opens it, with what it ends in. Nothing is changed yet but that it is there.
    fn open(path: &Path) -> Result<(Active, Option<Torn>, Option<Head>), OpenError> {
        let mut file =
            open_regular(path).map_err(|error| OpenError::new(path, "cannot open it", error))?;
        let read = |error| OpenError::new(path, "cannot read its end", error);
        let tail = tail(&mut file).map_err(read)?;
        let tail = tail.map_err(|why| broken(path, &mut file, why))?;
        let meta = file.metadata().map_err(read)?;
        let active = Active {
            file,
            bytes: tail.whole_bytes,
            inode: (meta.dev(), meta.ino()),
        };
        Ok((active, tail.torn, tail.head))
    }

    /// Opens it again while the gateway runs: after a failure, or when somebody has moved it away or cut it. Where the
    /// chain ends is known, so what is in the file counts only for where to write.
    pub(super) fn reopen(names: &Names, uncut: Option<Uncut>) -> io::Result<Active> {
        let mut file = open_regular(&names.active)?;
        let mut bytes = match tail(&mut file)? {
            Ok(tail) => tail.whole_bytes,
            // Not ours to repair now; `verify` will say what is wrong with it.
            Err(_) => file.seek(SeekFrom::End(0))?,
        };
        let meta = file.metadata()?;
        let inode = (meta.dev(), meta.ino());
        // The next record takes the number of the first that is behind it.
        if let Some(uncut) = uncut.filter(|uncut| uncut.inode == inode) {
            bytes = bytes.min(uncut.bytes);
        }
        let mut active = Active { file, bytes, inode };
        active.cut()?;
        sync_dir(&names.dir)?;
        Ok(active)
    }

    /// Why it is not the file at its name any more, or not what was written: where to write has to be found anew.
    pub(super) fn is_gone(&self, names: &Names) -> Option<&'static str> {
        match fs::symlink_metadata(&names.active) {
            Ok(found) if (found.dev(), found.ino()) == self.inode => {
                // To go on where it ended would leave zeros before it.
                (found.len() < self.bytes).then_some(CUT)
            }
            _ => Some("the file was moved away"),
        }
    }

    /// Goes on in another file, as if it were the same.
    #[cfg(test)]
    pub(super) fn write_into(&mut self, file: File) {
        self.file = file;
    }

    /// Appends whole records, durably where they are to be synced. When it fails all or a part of them may be there.
    pub(super) fn append(&mut self, records: &[u8], synced: bool) -> io::Result<()> {
        self.file.write_all(records)?;
        if synced {
            self.sync()?;
        }
        self.bytes += records.len() as u64;
        Ok(())
    }

    /// Takes back an append that has failed. What cannot be cut off is before the next write, in [`Active::reopen`].
    pub(super) fn take_back(mut self) -> Option<Uncut> {
        self.cut().err().map(|_| Uncut {
            bytes: self.bytes,
            inode: self.inode,
        })
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn cut(&mut self) -> io::Result<()> {
        if self.file.metadata()?.len() != self.bytes {
            self.file.set_len(self.bytes)?;
        }
        self.file.seek(SeekFrom::Start(self.bytes))?;
        Ok(())
    }

    /// Renames it after the first sequence that it holds, and begins a new one. It has to be synced: nobody does that later.
    pub(super) fn rotate(&mut self, names: &Names) -> io::Result<()> {
        let mode = self.file.metadata()?.permissions().mode();
        let mut first = [0; 64];
        let read = self.file.read_at(&mut first, 0)?;
        let first = first_sequence(&first[..read])
            .ok_or_else(|| io::Error::other("its first line is no record"))?;
        let full = names.full(first);
        if fs::symlink_metadata(&full).is_ok() {
            let name = full.display();
            return Err(io::Error::other(format!("{name} is there already")));
        }
        fs::rename(&names.active, &full)?;
        let mut next = Active::reopen(names, None)?;
        // Whoever was let read the last file may read the next.
        let _ = next
            .file
            .set_permissions(fs::Permissions::from_mode(mode & 0o644));
        std::mem::swap(self, &mut next);
        Ok(())
    }
}

/// The sequence of a record, from the beginning of its line.
fn first_sequence(line: &[u8]) -> Option<u64> {
    let digits = line.strip_prefix(br#"{"sequence":"#)?;
    let end = digits.iter().position(|b| *b == b',')?;
    std::str::from_utf8(&digits[..end]).ok()?.parse().ok()
}

/// The end of the last full file, where the one that is written has no record yet.
fn before(names: &Names) -> Result<Head, OpenError> {
    let full = names
        .full_files()
        .map_err(|error| OpenError::new(&names.active, "cannot list its directory", error))?;
    let Some(path) = full.last() else {
        return Ok(Head::genesis());
    };
    let mut file =
        File::open(path).map_err(|error| OpenError::new(path, "cannot open it", error))?;
    match tail(&mut file).map_err(|error| OpenError::new(path, "cannot read its end", error))? {
        Ok(Tail {
            head: Some(head),
            torn: None,
            ..
        }) => Ok(head),
        Ok(_) => Err(broken(path, &mut file, "it does not end with a record")),
        Err(why) => Err(broken(path, &mut file, why)),
    }
}

fn broken(path: &Path, file: &mut File, why: &str) -> OpenError {
    let line = lines(file).map_or_else(|_| String::new(), |lines| format!("line {lines}: "));
    OpenError::refused(
        path,
        format!(
            "{line}{why}, so the chain cannot go on from it; look at it with `skillgate audit verify`, \
             then move the log's files away"
        ),
    )
}

/// How many lines it has, the last one counted with or without its end.
fn lines(file: &mut File) -> io::Result<usize> {
    file.seek(SeekFrom::Start(0))?;
    let (mut buffer, mut lines, mut last) = (vec![0; 1 << 16], 0, b'\n');
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            return Ok(lines + usize::from(last != b'\n'));
        }
        lines += buffer[..read].iter().filter(|b| **b == b'\n').count();
        last = buffer[read - 1];
    }
}

/// Makes the directory of a log, and its own entry and those above it durable, as far as they are on one disk and may be
/// opened: whoever made one of them, this process or an earlier one, may not have come to that.
pub(super) fn make_dir(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let way = fs::canonicalize(dir)?;
    let disk = fs::metadata(&way)?.dev();
    for above in way.ancestors().skip(1) {
        let opened = match File::open(above) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => break,
            opened => opened?,
        };
        if opened.metadata()?.dev() != disk {
            break;
        }
        opened.sync_all()?;
    }
    Ok(())
}

/// A name that was made or changed is durable only when its directory is.
pub(super) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// It is full, or a quota is, or it fails, for which the system may let nobody write to it any more: as it may at any time, it may
/// when a gateway has just opened its log.
pub(super) fn is_of_the_disk(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(
        errno,
        Some(Errno::NOSPC | Errno::DQUOT | Errno::IO | Errno::ROFS)
    )
}

#[cfg(test)]
mod tests {
    use std::io;

    use rustix::io::Errno;

    use super::{Lock, Names, is_of_the_disk};

    #[test]
    fn what_a_disk_does_is_told_from_what_is_wrong_with_a_file() {
        for (errno, is) in [
            (Errno::NOSPC, true),
            (Errno::DQUOT, true),
            (Errno::IO, true),
            (Errno::ROFS, true),
            (Errno::ACCESS, false),
            (Errno::FBIG, false),
            (Errno::NOTDIR, false),
        ] {
            assert_eq!(is_of_the_disk(&io::Error::from(errno)), is, "{errno}");
        }
        assert!(!is_of_the_disk(&io::Error::other("the writer panicked")));
    }

    #[test]
    fn a_child_that_is_being_made_does_not_keep_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let names = Names::of(&dir.path().join("audit.jsonl")).unwrap();
        let lock = Lock::take(&names).unwrap();
        assert!(Lock::take(&names).is_err());
        // What a fork gives to a child.
        let child = lock.file.try_clone().unwrap();
        drop(lock);
        assert!(Lock::take(&names).is_ok());
        drop(child);
    }
}

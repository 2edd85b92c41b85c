//! Reads a log and says where its chain breaks. Needs no gateway, takes one line at a time.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::chain::{Head, LINE_BYTES_MAX, Link};
use super::file::{CUT, Names};

/// More breaks are counted, not listed.
const BREAKS_MAX: usize = 100;
/// And of what a log says that it lacks, more than this.
const OWN_NOTES_MAX: usize = 100;
/// How often a last line without an end is read again, and the time before each: a record that is being written just now has its end
/// within a second, and what a crash has left has none after it either.
const READ_AGAIN: u32 = 20;
const READ_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// What was found in a log.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// There is no break.
    pub ok: bool,
    /// The files, in the order of the chain.
    pub files: Vec<Checked>,
    /// Where it breaks; at most 100 of them.
    pub breaks: Vec<Break>,
    /// All of them.
    pub break_count: usize,
    /// What is no break but worth knowing.
    pub notes: Vec<String>,
}

/// One file.
#[derive(Debug, Serialize)]
pub struct Checked {
    /// Where it is.
    pub path: PathBuf,
    /// Lines that are records.
    pub records: u64,
    /// Of the first one; 0 without any.
    pub first_sequence: u64,
    /// Of the last one; 0 without any.
    pub last_sequence: u64,
    /// Of the last one, empty without any. Noted elsewhere, it proves later that the log up to here is the same.
    pub last_hash: String,
}

/// A place where the chain breaks.
#[derive(Debug, Serialize)]
pub struct Break {
    /// Where.
    pub file: PathBuf,
    /// From 1.
    pub line: u64,
    /// Stable word for what is wrong.
    pub kind: &'static str,
    /// The same in a sentence.
    pub message: String,
}

/// Checks a log. A directory: every log in it. A file: it and, when it is the one that is written, the full ones of the
/// same log before it.
///
/// # Errors
/// When something cannot be read at all, or there is no log.
pub fn verify(path: &Path) -> io::Result<Report> {
    check(&find(path)?)
}

/// Checks these files as one log, in this order: what was taken elsewhere, and what came after it.
///
/// # Errors
/// When one of them cannot be read.
pub fn verify_in_order(paths: &[PathBuf]) -> io::Result<Report> {
    let file = |path: &PathBuf| LogFile {
        path: path.clone(),
        opened: None,
    };
    check(&[paths.iter().map(file).collect()])
}

/// One file of a log.
#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    /// The one that was written when it was looked for: its name may be another's at any time.
    opened: Option<File>,
}

impl LogFile {
    /// Where it is, or was.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its lines without their ends, and without more of one in memory than a record can have; `None` for one that is no text,
    /// or longer than any record.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn each_line(&self, mut take: impl FnMut(Option<&str>)) -> io::Result<()> {
        let (mut reader, mut line) = (self.reader()?, Vec::new());
        loop {
            let end = read_line(&mut reader, &mut line)
                .map_err(|error| unreadable(&self.path, &error))?;
            match end {
                End::Nothing => return Ok(()),
                End::TooLong => take(None),
                End::Whole | End::Torn => take(std::str::from_utf8(&line).ok()),
            }
        }
    }

    /// From its beginning.
    fn reader(&self) -> io::Result<BufReader<File>> {
        let opened = match &self.opened {
            // One place for all that read it: one after the other.
            Some(opened) => opened.try_clone().and_then(|mut file| {
                file.rewind()?;
                Ok(file)
            }),
            None => File::open(&self.path),
        };
        let file = opened.map_err(|error| unreadable(&self.path, &error))?;
        Ok(BufReader::with_capacity(1 << 16, file))
    }
}

/// The files of the logs that [`verify`] checks, in the order of their chains.
///
/// # Errors
/// When something cannot be looked at, or there is no log.
pub fn find(path: &Path) -> io::Result<Vec<Vec<LogFile>>> {
    let found = fs::metadata(path).map(|meta| meta.is_dir());
    let paths = match found {
        Ok(true) => logs_in(path)?.into_iter().collect(),
        Ok(false) => vec![path.to_owned()],
        // The one that is written may be missing: after it was moved away, or between two files.
        Err(error) if error.kind() == io::ErrorKind::NotFound => vec![path.to_owned()],
        Err(error) => return Err(error),
    };
    let logs = paths.iter().map(|path| log_of(path));
    let logs = logs.collect::<io::Result<Vec<_>>>()?;
    if logs.iter().all(Vec::is_empty) {
        return Err(io::Error::new(
            io::ErrorKind::NotFound,
            "there is no audit log here",
        ));
    }
    Ok(logs)
}

/// Checks what was found. Waits for up to a second for the end of a record that is being written just now.
///
/// # Errors
/// When something cannot be read at all.
pub fn check(logs: &[Vec<LogFile>]) -> io::Result<Report> {
    check_waiting(logs, || std::thread::sleep(READ_AGAIN_AFTER))
}

/// The same with another way to wait before the end of a log is read again.
pub(super) fn check_waiting(logs: &[Vec<LogFile>], mut wait: impl FnMut()) -> io::Result<Report> {
    let mut report = Report::default();
    for files in logs {
        let mut chain = Chain {
            report: &mut report,
            head: None,
            unwritten: None,
            own_notes: 0,
        };
        for (at, file) in files.iter().enumerate() {
            // Only the last one is written.
            let again = if at + 1 == files.len() { READ_AGAIN } else { 0 };
            chain.file(file, (0..again).map(|_| wait()))?;
        }
        chain.end();
    }
    report.ok = report.break_count == 0;
    Ok(report)
}

/// The log that is written at `path`. That file is opened before the full ones are listed: a gateway may rename it at any time,
/// and one that is opened after that has a file before it which the list does not have.
fn log_of(path: &Path) -> io::Result<Vec<LogFile>> {
    let mut opened = match File::open(path) {
        Ok(file) => Some(file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(unreadable(path, &error)),
    };
    let full = match Names::of(path) {
        Some(names) if names.dir.is_dir() => names.full_files()?,
        _ => Vec::new(),
    };
    let inode = |meta: fs::Metadata| (meta.dev(), meta.ino());
    let active = opened.as_ref().map(File::metadata).transpose()?.map(inode);
    let mut files = Vec::with_capacity(full.len() + 1);
    for path in full {
        // Renamed meanwhile: it has its place in the list, and is read once.
        let is_active = active.is_some() && fs::metadata(&path).ok().map(inode) == active;
        files.push(LogFile {
            opened: if is_active { opened.take() } else { None },
            path,
        });
    }
    if opened.is_some() {
        let path = path.to_owned();
        files.push(LogFile { path, opened });
    }
    Ok(files)
}

/// What the files `*.jsonl` belong to: each the log that is written at its name, or, a full one, at the name without its number.
fn logs_in(dir: &Path) -> io::Result<BTreeSet<PathBuf>> {
    let mut logs = BTreeSet::new();
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        let Some(stem) = name.to_str().and_then(|name| name.strip_suffix(".jsonl")) else {
            continue;
        };
        let full = stem
            .rsplit_once('.')
            .map(|(stem, _)| stem)
            .and_then(|stem| {
                let active = dir.join(format!("{stem}.jsonl"));
                let is_full = Names::of(&active)?.sequence(name.to_str()?).is_some();
                is_full.then_some(active)
            });
        logs.insert(full.unwrap_or_else(|| dir.join(&name)));
    }
    Ok(logs)
}

fn unreadable(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(
        error.kind(),
        format!("cannot read {}: {error}", path.display()),
    )
}

/// One log on its way through its files.
struct Chain<'a> {
    report: &'a mut Report,
    /// The last record that was read; none before the first.
    head: Option<Head>,
    /// What the log has said last that it lacks since the gateway was started; none before it has said anything.
    unwritten: Option<u64>,
    /// Notes of what it has said, those that are not listed too.
    own_notes: usize,
}

/// A record of the log about itself, as far as it is about what the log lacks.
#[derive(Debug, Deserialize)]
struct Own {
    event: String,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    unwritten: u64,
    repaired: Option<Repaired>,
    had_at_least: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct Repaired {
    cut_bytes: u64,
}

impl Own {
    /// The gateway has found its file emptied, and begins anew.
    fn follows_a_cut(&self) -> bool {
        self.event == "resumed" && self.reason == CUT
    }

    /// The gateway has not found the end of its log, which had this record at least.
    fn lost(&self) -> Option<u64> {
        self.had_at_least.filter(|_| self.event == "started")
    }
}

impl Chain<'_> {
    /// `again` waits before each time that a line without an end may be read again.
    fn file(&mut self, file: &LogFile, mut again: impl Iterator<Item = ()>) -> io::Result<()> {
        let path = file.path();
        let mut reader = file.reader()?;
        let mut checked = Checked {
            path: path.to_owned(),
            records: 0,
            first_sequence: 0,
            last_sequence: 0,
            last_hash: String::new(),
        };
        let (mut line, mut number) = (Vec::new(), 0);
        loop {
            let end = read_line(&mut reader, &mut line);
            let mut end = end.map_err(|error| unreadable(path, &error))?;
            while end == End::Torn && again.next().is_some() {
                end = read_line_again(&mut reader, &mut line)
                    .map_err(|error| unreadable(path, &error))?;
            }
            if end == End::Nothing {
                break;
            }
            number += 1;
            if let Some(link) = self.line(path, number, &line, end) {
                if checked.records == 0 {
                    checked.first_sequence = link.sequence;
                    self.name(path, &link);
                }
                checked.records += 1;
                checked.last_sequence = link.sequence;
                checked.last_hash.clone_from(&link.hash);
                self.head = Some(link.head());
            }
        }
        self.report.files.push(checked);
        Ok(())
    }

    /// Checks one line against the one before; gives it back when it is a record at all, so that one break does not hide
    /// the next.
    fn line(&mut self, path: &Path, number: u64, line: &[u8], end: End) -> Option<Link> {
        let mut wrong = |kind, message: String| self.report.found(path, number, kind, message);
        if end == End::TooLong {
            wrong(
                "no_record",
                format!("longer than any record ({LINE_BYTES_MAX} bytes)"),
            );
            return None;
        }
        if end == End::Torn {
            let message = format!(
                "the file ends in the middle of a record, after {} bytes of it: cut off, left by a crash \
                 (the gateway notes that at its next start), or written to a disk that hangs",
                line.len()
            );
            wrong("torn", message);
            return None;
        }
        let Some(link) = Link::read(line) else {
            wrong("no_record", "not a record of this log".into());
            return None;
        };
        if !link.is_whole() {
            let message = format!(
                "record {}: its bytes are not those that its hash was made of: it was changed",
                link.sequence
            );
            wrong("changed", message);
            return Some(link);
        }
        let text = std::str::from_utf8(line).ok();
        if text.is_none_or(|text| crate::json::walk(text).is_err()) {
            wrong(
                "no_record",
                "its hash fits, but it is not JSON that every reader reads alike".into(),
            );
        }
        let own = link.is_own.then(|| serde_json::from_slice::<Own>(line));
        let own = own.and_then(Result::ok);
        let Some(before) = &self.head else {
            if own.as_ref().is_some_and(Own::follows_a_cut) {
                // Who takes full files away leaves one that begins with any other record.
                let message = format!(
                    "the log begins with record {}, which says that the file was cut: the records before were in it",
                    link.sequence
                );
                wrong("cut", message);
            } else if link.sequence == 1 && link.prev != Head::genesis().hash {
                wrong("chain", "record 1 names a record before it".into());
            } else if link.sequence != 1 {
                self.report.notes.push(format!(
                    "{}: begins with record {}; the ones before are not here, so nothing is said of them",
                    path.display(),
                    link.sequence
                ));
            }
            if let Some(own) = own {
                self.own(path, number, link.sequence, &own);
            }
            return Some(link);
        };
        // A changed line may say any number.
        let (expected, found) = (before.sequence.saturating_add(1), link.sequence);
        if found > expected && own.as_ref().and_then(Own::lost).is_some() {
            let message = format!(
                "record {found} follows {}: the gateway was killed, and its file gone when it was started: how many are \
                 missing between them, if any, is not known",
                before.sequence
            );
            wrong("missing", message);
        } else if found > expected {
            let message = format!(
                "record {found} follows {}: {} missing",
                before.sequence,
                found - expected
            );
            wrong("missing", message);
        } else if found < expected {
            let message = format!(
                "record {found} follows {}: out of order, there twice, or put in",
                before.sequence
            );
            wrong("order", message);
        } else if link.prev != before.hash {
            let message = format!(
                "record {found} was written after another record {} than the one before it: that one was replaced",
                before.sequence
            );
            wrong("chain", message);
        }
        if let Some(own) = own {
            self.own(path, number, link.sequence, &own);
        }
        Some(link)
    }

    /// What a whole log lacks all the same, as it says itself.
    fn own(&mut self, path: &Path, number: u64, sequence: u64, own: &Own) {
        // Counted since then.
        if own.event == "started" {
            self.unwritten = Some(0);
        }
        let known = self.unwritten.replace(own.unwritten);
        let more = own.unwritten.saturating_sub(known.unwrap_or(0));
        let since = match known {
            Some(_) => "here",
            None => "since the gateway was started",
        };
        let mut notes = Vec::new();
        if more > 0 {
            notes.push(format!("it lacks {more} record(s) {since}"));
        }
        if let Some(repaired) = &own.repaired {
            let bytes = repaired.cut_bytes;
            notes.push(format!(
                "it ended in the middle of a record here, of which {bytes} bytes were cut off"
            ));
        }
        if let Some(had) = own.lost() {
            notes.push(if sequence > had {
                format!("its file was gone here, and what it had behind record {had} is not known")
            } else {
                let ended = sequence.saturating_sub(1);
                format!("it had record {had} before, and its file ended with record {ended} here")
            });
        }
        for note in notes {
            self.own_notes += 1;
            if self.own_notes <= OWN_NOTES_MAX {
                let note = format!("{}:{number}: the log says that {note}", path.display());
                self.report.notes.push(note);
            }
        }
    }

    fn end(self) {
        let unlisted = self.own_notes.saturating_sub(OWN_NOTES_MAX);
        if unlisted > 0 {
            let note = format!("the log says so at {unlisted} more place(s)");
            self.report.notes.push(note);
        }
    }

    /// A full file is named after its first record.
    fn name(&mut self, path: &Path, first: &Link) {
        let named = path.file_stem().and_then(|stem| {
            let stem = Path::new(stem).file_stem()?;
            let names = Names::of(&path.with_file_name(stem).with_extension(path.extension()?))?;
            names.sequence(path.file_name()?.to_str()?)
        });
        if let Some(named) = named
            && named != first.sequence
        {
            let message = format!(
                "the file's name says {named}, its first record is {}",
                first.sequence
            );
            self.report.found(path, 1, "name", message);
        }
    }
}

impl Report {
    fn found(&mut self, file: &Path, line: u64, kind: &'static str, message: String) {
        self.break_count += 1;
        if self.breaks.len() < BREAKS_MAX {
            self.breaks.push(Break {
                file: file.to_owned(),
                line,
                kind,
                message,
            });
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// With its line end.
    Whole,
    /// The file ended first.
    Torn,
    /// Only its beginning was kept.
    TooLong,
    /// There is no line.
    Nothing,
}

/// Reads a line without its end, of a long one no more than a record can have.
fn read_line(reader: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<End> {
    line.clear();
    let mut any = false;
    loop {
        let buffer = reader.fill_buf()?;
        if buffer.is_empty() {
            return Ok(if any { End::Torn } else { End::Nothing });
        }
        any = true;
        let end = buffer.iter().position(|b| *b == b'\n');
        let piece = end.unwrap_or(buffer.len());
        let room = LINE_BYTES_MAX.saturating_sub(line.len());
        line.extend_from_slice(&buffer[..piece.min(room)]);
        let over = piece > room;
        let used = end.map_or(piece, |end| end + 1);
        reader.consume(used);
        if over {
            if end.is_none() {
                skip_line(reader)?;
            }
            return Ok(End::TooLong);
        }
        if end.is_some() {
            return Ok(End::Whole);
        }
    }
}

/// Reads the last line anew, of which there was no end: its writer may have gone on, or taken it back.
fn read_line_again(reader: &mut BufReader<File>, line: &mut Vec<u8>) -> io::Result<End> {
    // A line that has no end yet was kept whole; it is shorter than any file may be.
    let back = i64::try_from(line.len()).unwrap_or(i64::MAX);
    reader.seek(SeekFrom::Current(-back))?;
    read_line(reader, line)
}

fn skip_line(reader: &mut impl BufRead) -> io::Result<()> {
    loop {
        let buffer = reader.fill_buf()?;
        let end = buffer.iter().position(|b| *b == b'\n');
        let used = end.map_or(buffer.len(), |end| end + 1);
        let done = buffer.is_empty() || end.is_some();
        reader.consume(used);
        if done {
            return Ok(());
        }
    }
}

//! A blob on its way out: no byte leaves before the chunk that it belongs to has been verified.

use std::collections::{HashSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::Stat;
use sha2::{Digest, Sha256};
use skillgate_plugin_sdk::model::BlobStat;

use super::{CHUNK_BYTES, CHUNKS_FILE, DATA_FILE, DIGEST_BYTES, no_blob};
use crate::beneath::{self, Fingerprint, fingerprint};
use crate::fault::{Fault, Result};
use crate::ground::Ground;

/// Chunks that are kept between two calls, over all readers: 64 MiB. A reader that gets none reads and verifies its chunk
/// again with the next call, so that many slow readers cost time and not memory.
const MAX_KEPT_CHUNKS: usize = 64;

/// Files whose content has been verified and that have not changed since. An entry takes about 120 bytes.
const MAX_VERIFIED: usize = 16_384;

/// An open blob and the part of it that is still to be given out.
#[derive(Debug)]
pub(super) struct Reader {
    path: String,
    data: OwnedFd,
    digests: Digests,
    size: u64,
    at: u64,
    end: u64,
    kept: Option<KeptChunk>,
    budget: Arc<KeptChunks>,
}

/// Where the digest of a chunk is found.
#[derive(Debug)]
enum Digests {
    /// One chunk: the digest of the whole.
    Whole(String),
    File(OwnedFd),
}

impl Reader {
    pub(super) fn open(
        ground: &Ground,
        path: &str,
        stat: &BlobStat,
        offset: u64,
        len: u64,
        budget: &Arc<KeptChunks>,
    ) -> Result<Reader> {
        let size = stat.size_bytes;
        if offset > size {
            return Err(Fault::OutOfRange(format!(
                "offset {offset} is beyond the end of the blob, which has {size} bytes"
            )));
        }
        let (data, _) = open_data(ground, path, size)?;
        let digests = if size <= CHUNK_BYTES as u64 {
            Digests::Whole(stat.sha256.clone())
        } else {
            let (fd, stat) = open_part(ground, path, CHUNKS_FILE)?;
            let expected = size.div_ceil(CHUNK_BYTES as u64) * DIGEST_BYTES as u64;
            if u64::try_from(stat.st_size) != Ok(expected) {
                return Err(Fault::Corrupt(format!(
                    "{path}/{CHUNKS_FILE}: not {expected} bytes long"
                )));
            }
            Digests::File(fd)
        };
        let end = match len {
            0 => size,
            len => offset.saturating_add(len).min(size),
        };
        Ok(Reader {
            path: path.to_owned(),
            data,
            digests,
            size,
            at: offset,
            end,
            kept: None,
            budget: Arc::clone(budget),
        })
    }

    /// At most to the end of a chunk, like a read of a file at most to the end of what is there.
    pub(super) fn read(&mut self, buf: &mut [u8]) -> Result<(usize, bool)> {
        if self.at == self.end || buf.is_empty() {
            return Ok((0, self.at == self.end));
        }
        let index = self.at / CHUNK_BYTES as u64;
        let start = index * CHUNK_BYTES as u64;
        let mut chunk = match self.kept.take() {
            Some(kept) if kept.index == index => kept,
            _ => KeptChunk::new(index, self.load(index)?),
        };
        let stop = self.end.min(start + chunk.bytes.len() as u64);
        // Both are within the chunk, so both fit.
        let from = (self.at - start) as usize;
        let n = buf.len().min((stop - self.at) as usize);
        buf[..n].copy_from_slice(&chunk.bytes[from..from + n]);
        self.at += n as u64;
        if self.at < stop && chunk.keep(&self.budget) {
            self.kept = Some(chunk);
        }
        Ok((n, self.at == self.end))
    }

    /// The bytes of a chunk, verified.
    fn load(&self, index: u64) -> Result<Vec<u8>> {
        let start = index * CHUNK_BYTES as u64;
        let len = (self.size - start).min(CHUNK_BYTES as u64) as usize;
        let mut bytes = vec![0; len];
        let n = beneath::fill_at(&self.data, &self.path, &mut bytes, start)
            .map_err(damaged(&self.path))?;
        let found = Sha256::digest(&bytes[..n]);
        let matches = match &self.digests {
            Digests::Whole(hex) => *hex == hex::encode(found),
            Digests::File(fd) => {
                let mut expected = [0; DIGEST_BYTES];
                let at = index * DIGEST_BYTES as u64;
                let got = beneath::fill_at(fd, &self.path, &mut expected, at)
                    .map_err(damaged(&self.path))?;
                got == DIGEST_BYTES && expected[..] == found[..]
            }
        };
        if n != len || !matches {
            return Err(Fault::Corrupt(format!(
                "{}: the content from byte {start} to {} is not what was stored: restore it from a backup",
                self.path,
                start + len as u64
            )));
        }
        Ok(bytes)
    }
}

/// How many chunks are kept between calls.
#[derive(Debug, Default)]
pub(super) struct KeptChunks(AtomicUsize);

/// A verified chunk.
#[derive(Debug)]
struct KeptChunk {
    index: u64,
    bytes: Vec<u8>,
    /// Set once it counts.
    counted: Option<Arc<KeptChunks>>,
}

impl KeptChunk {
    fn new(index: u64, bytes: Vec<u8>) -> Self {
        KeptChunk {
            index,
            bytes,
            counted: None,
        }
    }

    /// May it be kept beyond this call?
    fn keep(&mut self, budget: &Arc<KeptChunks>) -> bool {
        if self.counted.is_some() {
            return true;
        }
        let room = |n: usize| (n < MAX_KEPT_CHUNKS).then_some(n + 1);
        let got = budget
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, room)
            .is_ok();
        if got {
            self.counted = Some(Arc::clone(budget));
        }
        got
    }
}

impl Drop for KeptChunk {
    fn drop(&mut self) {
        if let Some(budget) = &self.counted {
            budget.0.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Which files need not be verified again before a descriptor is given out.
#[derive(Debug, Default)]
pub(super) struct Verified(Mutex<(HashSet<Fingerprint>, VecDeque<Fingerprint>)>);

impl Verified {
    /// A read-only descriptor of the whole, verified now or since its last change.
    pub(super) fn open(&self, ground: &Ground, path: &str, stat: &BlobStat) -> Result<OwnedFd> {
        let (fd, before) = open_data(ground, path, stat.size_bytes)?;
        let before = fingerprint(&before);
        if self.contains(&before) {
            return Ok(fd);
        }
        let mut whole = Sha256::new();
        let mut buf = vec![0; CHUNK_BYTES / 4];
        let mut at = 0;
        loop {
            let n = beneath::fill_at(&fd, path, &mut buf, at).map_err(damaged(path))?;
            whole.update(&buf[..n]);
            at += n as u64;
            if n < buf.len() {
                break;
            }
        }
        let after = rustix::fs::fstat(&fd).map_err(Fault::os("stat", path))?;
        let is_sound = hex::encode(whole.finalize()) == stat.sha256;
        let is_same = fingerprint(&after) == before;
        if is_sound && !is_same && is_gone(ground, path)? {
            return Err(no_blob());
        }
        if !is_sound || !is_same {
            return Err(Fault::Corrupt(format!(
                "{path}: the content is not what was stored: restore it from a backup"
            )));
        }
        self.remember(before);
        Ok(fd)
    }

    fn contains(&self, print: &Fingerprint) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.0.contains(print)
    }

    fn remember(&self, print: Fingerprint) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (set, order) = &mut *known;
        if set.insert(print) {
            order.push_back(print);
        }
        if order.len() > MAX_VERIFIED
            && let Some(oldest) = order.pop_front()
        {
            set.remove(&oldest);
        }
    }
}

fn open_data(ground: &Ground, path: &str, size: u64) -> Result<(OwnedFd, Stat)> {
    let (fd, stat) = open_part(ground, path, DATA_FILE)?;
    if u64::try_from(stat.st_size) != Ok(size) {
        return Err(Fault::Corrupt(format!(
            "{path}/{DATA_FILE}: {} bytes long and not {size}: restore it from a backup",
            stat.st_size
        )));
    }
    Ok((fd, stat))
}

/// One of a blob's files.
fn open_part(ground: &Ground, blob: &str, file: &str) -> Result<(OwnedFd, Stat)> {
    let path = format!("{blob}/{file}");
    match beneath::open_file(ground.root(), &path) {
        Err(fault) if fault.is_missing() && is_gone(ground, blob)? => Err(no_blob()),
        opened => opened.map_err(damaged(&path)),
    }
}

/// Was the blob deleted, or has it expired and been swept, since its meta.json was read? Its directory goes with all that
/// is in it, by one rename; what is missing or has changed after that is no damage.
fn is_gone(ground: &Ground, blob: &str) -> Result<bool> {
    match beneath::open_dir(ground.root(), blob) {
        Ok(_) => Ok(false),
        Err(fault) if fault.is_missing() => Ok(true),
        Err(fault) => Err(fault),
    }
}

/// A blob that is there has its files: a missing one, a directory in its place, one that is too large or a disk that cannot read
/// it is damage.
pub(super) fn damaged(path: &str) -> impl FnOnce(Fault) -> Fault {
    let path = path.to_owned();
    move |fault| match fault.is_damage() || matches!(fault, Fault::OutOfRange(_)) {
        true => Fault::Corrupt(format!("{path}: {fault}")),
        false => fault,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::floor::{self, Floor, Size};
    use skillgate_plugin_sdk::Host;

    /// As open() and fd() find a blob whose meta.json they have read.
    #[test]
    fn a_blob_that_was_deleted_since_it_was_found_is_not_there_and_a_lost_file_is_damage() {
        const BLOB: &str = "tenants/acme/blobs/aa/gone";
        let dir = tempfile::tempdir().unwrap();
        let floor = Floor::new(Size::default(), floor::of_the_file_system());
        let host = Host::for_tests(|_, _, _, _| {});
        let ground = Ground::open(dir.path(), false, floor, host).unwrap();
        let stat = BlobStat {
            size_bytes: CHUNK_BYTES as u64 + 1,
            ..BlobStat::default()
        };
        let opened = || {
            let reader = Reader::open(&ground, BLOB, &stat, 0, 0, &Arc::default()).map(drop);
            let fd = Verified::default().open(&ground, BLOB, &stat).map(drop);
            [reader.unwrap_err(), fd.unwrap_err()]
        };
        for fault in opened() {
            assert!(matches!(&fault, Fault::NotFound(_)), "{fault:?}");
        }
        let place = dir.path().join(BLOB);
        std::fs::create_dir_all(&place).unwrap();
        for fault in opened() {
            assert!(matches!(&fault, Fault::Corrupt(_)), "{fault:?}");
            assert!(fault.to_string().starts_with(&format!("{BLOB}/data: ")));
        }
        // Its other file is looked for in the same way.
        let data = std::fs::File::create(place.join(DATA_FILE)).unwrap();
        data.set_len(stat.size_bytes).unwrap();
        let [lost, _] = opened();
        assert!(lost.to_string().starts_with(&format!("{BLOB}/chunks: ")));
        std::fs::remove_dir_all(&place).unwrap();
        let gone = open_part(&ground, BLOB, CHUNKS_FILE).map(drop);
        assert!(matches!(gone, Err(Fault::NotFound(_))), "{gone:?}");
        // What cannot be looked into is not gone for that.
        let above = place.parent().unwrap();
        std::fs::remove_dir(above).unwrap();
        std::os::unix::fs::symlink(dir.path(), above).unwrap();
        assert!(is_gone(&ground, BLOB).is_err());
    }

    #[test]
    fn so_many_chunks_are_kept_and_who_ends_makes_room() {
        let budget = Arc::default();
        let chunk = || KeptChunk::new(0, Vec::new());
        let mut kept: Vec<_> = (0..MAX_KEPT_CHUNKS).map(|_| chunk()).collect();
        // Each of them once, however often it is asked for.
        for _ in 0..2 {
            assert!(kept.iter_mut().all(|chunk| chunk.keep(&budget)));
        }
        let mut late = chunk();
        assert!(!late.keep(&budget));
        kept.pop();
        assert!(late.keep(&budget));
        drop((kept, late));
        assert_eq!(budget.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn so_many_files_are_known_to_be_sound_and_the_oldest_is_forgotten() {
        let verified = Verified::default();
        let print = |n: usize| (0, n as u64, 0, (0, 0), (0, 0));
        for n in [0].into_iter().chain(0..MAX_VERIFIED) {
            verified.remember(print(n));
        }
        assert!(verified.contains(&print(0)));
        verified.remember(print(MAX_VERIFIED));
        assert!(!verified.contains(&print(0)));
        assert!((1..=MAX_VERIFIED).all(|n| verified.contains(&print(n))));
        let known = verified.0.lock().unwrap();
        assert_eq!((known.0.len(), known.1.len()), (MAX_VERIFIED, MAX_VERIFIED));
    }
}

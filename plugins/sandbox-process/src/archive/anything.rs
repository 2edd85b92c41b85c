//! Archives that somebody has made to be unpacked elsewhere, or to be two things at once.

use std::collections::BTreeMap;

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};

use super::*;

const ROUNDS: usize = 300;
const ENTRIES: usize = 6;
const CONTENT_BYTES: u64 = 2000;

const NAMES: &[&str] = &[
    "a",
    "b",
    "c.py",
    "d/e.py",
    "d/f.py",
    "resources/g",
    "h",
    "code/lib.py",
    "code/",
    "code/main.py",
    "./code/main.py",
    "code/main.py/x",
    "code//json.py",
    "a/b/c",
    ".",
    "",
    "..",
    "../a",
    "a/../b",
    "/etc/passwd",
    "é",
    "SKILL.md",
];
/// Plain files and directories above all.
const KINDS: &[u8] = b"0000000000000000000000\x005555555512346 7SLKxgV";

/// A record of a head that goes before its entry.
fn record(key: &str, value: &str) -> String {
    let rest = format!(" {key}={value}\n");
    let digits = (rest.len() + 2).to_string().len();
    format!("{}{rest}", rest.len() + digits)
}

fn entry(archive: &mut Vec<u8>, name: &str, kind: u8, content: &[u8], random: &mut SmallRng) {
    let mut header = match random.random_bool(0.7) {
        true => tar::Header::new_gnu(),
        false => tar::Header::new_ustar(),
    };
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.as_old_mut().linkname[..2].copy_from_slice(b"..");
    header.as_old_mut().linkflag = [kind];
    let lies = [0, 1, 513, 1 << 33, u64::MAX - 511, u64::MAX];
    header.set_size(match random.random_bool(0.05) {
        true => *lies.choose(random).unwrap(),
        false => content.len() as u64,
    });
    header.set_mode(0o777);
    header.set_cksum();
    archive.extend_from_slice(header.as_bytes());
    archive.extend_from_slice(content);
    archive.resize(archive.len().next_multiple_of(512), 0);
}

fn archive(random: &mut SmallRng) -> Vec<u8> {
    let mut archive = Vec::new();
    for _ in 0..random.random_range(1..=3) {
        let name = |random: &mut SmallRng| *NAMES.choose(random).unwrap();
        if random.random_bool(0.2) {
            let size = ["0", "5", "600", "18446744073709551615"].choose(random);
            let said = match random.random_bool(0.7) {
                true => record("path", name(random)),
                false => record("size", size.unwrap()),
            };
            entry(&mut archive, "head", b'x', said.as_bytes(), random);
        }
        if random.random_bool(0.1) {
            let long = name(random).as_bytes();
            entry(&mut archive, "long", b'L', long, random);
        }
        let kind = *KINDS.choose(random).unwrap();
        let length = match kind {
            b'5' => 0,
            _ => *[0, 5, 512, 600].choose(random).unwrap(),
        };
        let content = vec![random.random_range(b'a'..=b'z'); length];
        let name = name(random);
        entry(&mut archive, name, kind, &content, random);
    }
    archive.resize(archive.len() + 1024, 0);
    if random.random_bool(0.2) {
        let at = random.random_range(0..archive.len());
        match random.random_bool(0.5) {
            true => archive.truncate(at),
            false => archive[at] = random.random(),
        }
    }
    archive
}

/// Content by path.
type Files = BTreeMap<PathBuf, Vec<u8>>;

/// The files that are there, and how many directories. There is nothing else.
fn unpacked(dir: &Path, root: &Path, files: &mut Files) -> usize {
    let mut directories = 0;
    for there in fs::read_dir(dir).unwrap() {
        let path = there.unwrap().path();
        let kind = path.symlink_metadata().unwrap().file_type();
        assert!(kind.is_dir() || kind.is_file(), "{}", path.display());
        if kind.is_dir() {
            directories += 1 + unpacked(&path, root, files);
        } else {
            let inside = path.strip_prefix(root).unwrap().to_owned();
            files.insert(inside, fs::read(&path).unwrap());
        }
    }
    directories
}

/// The plain files that it says to have, each once: what whoever checks an archive before it is unpacked goes by.
fn said(archive: &[u8]) -> io::Result<Files> {
    let mut files = Files::new();
    for entry in tar::Archive::new(archive).entries()? {
        let mut entry = entry?;
        if entry.header().entry_type() == tar::EntryType::Regular {
            let path = entry.path()?.components().collect::<PathBuf>();
            let path = path.strip_prefix(".").unwrap_or(&path).to_owned();
            let mut content = Vec::new();
            entry.read_to_end(&mut content)?;
            assert!(files.insert(path, content).is_none());
        }
    }
    Ok(files)
}

#[test]
fn what_is_unpacked_is_inside_and_what_the_archive_says() {
    let place = tempfile::tempdir().unwrap();
    let into = place.path().join("in");
    let mut random = SmallRng::seed_from_u64(7411);
    let (mut whole, mut of_files) = (0, 0);
    for round in 0..ROUNDS {
        let bytes = archive(&mut random);
        let result = unpack_within(&bytes[..], &into, ENTRIES, CONTENT_BYTES);
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
        let mut files = Files::new();
        let entries = unpacked(&into, &into, &mut files) + files.len();
        let content_bytes: usize = files.values().map(Vec::len).sum();
        // Also when it was refused in the end.
        assert!(entries <= ENTRIES && content_bytes as u64 <= CONTENT_BYTES);
        if result.is_ok() {
            assert_eq!(files, said(&bytes).unwrap(), "round {round}");
            whole += 1;
            of_files += files.len();
        }
        fs::remove_dir_all(&into).unwrap();
    }
    // Neither refuses all of them, nor takes all.
    let counted = [whole, ROUNDS - whole, of_files];
    assert!(counted.iter().all(|n| *n > ROUNDS / 10), "{counted:?}");
}

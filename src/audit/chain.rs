//! The chain itself: bytes to bytes, no files. The format is in the module above.

use std::io::Write as _;

use sha2::{Digest, Sha256};

/// Longest line with its end, in bytes: a reader needs no more room.
pub const LINE_BYTES_MAX: usize = super::record::RECORD_BYTES_MAX + 4096;

/// `,"hash":"` and 64 digits and `"}`.
const TRAILER_BYTES: usize = 75;

/// A SHA-256 as 64 lower case hex digits.
pub(super) type Hash = String;

/// Where a chain ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Head {
    /// Of the last record; 0 before the first.
    pub(super) sequence: u64,
    /// Of the last record; zeros before the first.
    pub(super) hash: Hash,
}

impl Head {
    /// Before the first record.
    pub(super) fn genesis() -> Self {
        Head {
            sequence: 0,
            hash: "0".repeat(64),
        }
    }

    /// Puts the next record at the end of `out`. Each of `members` is empty or begins with a comma.
    pub(super) fn seal(&mut self, kind: &str, members: &[&[u8]], out: &mut Vec<u8>) {
        let start = out.len();
        let next = self.sequence + 1;
        // Writing to memory does not fail.
        let _ = write!(
            out,
            r#"{{"sequence":{next},"prev":"{}","kind":"{kind}""#,
            self.hash
        );
        for members in members {
            out.extend_from_slice(members);
        }
        let hash = hex::encode(Sha256::digest(&out[start..]));
        let _ = writeln!(out, r#","hash":"{hash}"}}"#);
        *self = Head {
            sequence: next,
            hash,
        };
    }
}

/// One line, read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) sequence: u64,
    pub(super) prev: Hash,
    /// As the line says it.
    pub(super) hash: Hash,
    /// As its bytes make it.
    pub(super) computed: Hash,
    /// Its kind is `log`: what the log says of itself.
    pub(super) is_own: bool,
}

impl Link {
    /// Reads a line without its end. None: it does not have the form of one.
    pub(super) fn read(line: &[u8]) -> Option<Link> {
        let body = &line[..line.len().checked_sub(TRAILER_BYTES)?];
        let hash = line[body.len()..]
            .strip_prefix(br#","hash":""#)?
            .strip_suffix(br#""}"#)?;
        let rest = body.strip_prefix(br#"{"sequence":"#)?;
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let sequence = std::str::from_utf8(&rest[..digits]).ok()?;
        // One way to write a number.
        let sequence: u64 = sequence
            .parse()
            .ok()
            .filter(|n| sequence == format!("{n}"))?;
        let prev = rest[digits..].strip_prefix(br#","prev":""#)?.get(..64)?;
        let kind = rest[digits + 9 + 64..].strip_prefix(br#"","kind":""#)?;
        Some(Link {
            sequence,
            prev: digest(prev)?,
            hash: digest(hash)?,
            computed: hex::encode(Sha256::digest(body)),
            is_own: kind.starts_with(br#"log""#),
        })
    }

    /// Its bytes are those that its hash was made of.
    pub(super) fn is_whole(&self) -> bool {
        self.hash == self.computed
    }

    /// The chain up to here.
    pub(super) fn head(&self) -> Head {
        Head {
            sequence: self.sequence,
            hash: self.hash.clone(),
        }
    }
}

fn digest(hex: &[u8]) -> Option<Hash> {
    is_hash(hex).then(|| String::from_utf8_lossy(hex).into_owned())
}

pub(super) fn is_hash(hex: &[u8]) -> bool {
    hex.len() == 64 && hex.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::{Head, Link};

    fn two() -> Vec<Vec<u8>> {
        let (mut head, mut out) = (Head::genesis(), Vec::new());
        head.seal(
            "decision",
            &[br#","timestamp":"t""#, br#","n":1"#],
            &mut out,
        );
        head.seal("run", &[], &mut out);
        out.split(|b| *b == b'\n')
            .filter(|line| !line.is_empty())
            .map(<[u8]>::to_vec)
            .collect()
    }

    #[test]
    fn the_bytes_are_the_documented_ones() {
        // The digests are those of `printf '%s' ... | sha256sum`.
        let zeros = "0".repeat(64);
        let first = format!(
            r#"{{"sequence":1,"prev":"{zeros}","kind":"decision","timestamp":"t","n":1,"hash":"2f0e"#
        );
        let line = String::from_utf8(two()[0].clone()).unwrap();
        assert_eq!(line[..first.len() - 4], first[..first.len() - 4]);
        serde_json::from_str::<serde_json::Value>(&line).unwrap();
        let (a, b) = (
            Link::read(&two()[0]).unwrap(),
            Link::read(&two()[1]).unwrap(),
        );
        assert!(a.is_whole() && b.is_whole());
        assert_eq!((a.sequence, b.sequence, &b.prev), (1, 2, &a.hash));
        assert_eq!(a.prev, zeros);
    }

    #[test]
    fn every_changed_byte_shows() {
        let line = two()[0].clone();
        for at in 0..line.len() {
            for flip in [1, 0x20, 0x80] {
                let mut changed = line.clone();
                changed[at] ^= flip;
                let link = Link::read(&changed);
                assert!(!link.is_some_and(|link| link.is_whole()), "byte {at}");
            }
        }
        for end in 0..line.len() {
            assert!(!Link::read(&line[..end]).is_some_and(|link| link.is_whole()));
        }
    }

    #[test]
    fn one_way_to_write_a_number() {
        let line = String::from_utf8(two()[0].clone()).unwrap();
        for other in ["01", "+1", "1.0", "", "18446744073709551616", " 1"] {
            let changed = line.replacen(":1,", &format!(":{other},"), 1);
            assert_eq!(Link::read(changed.as_bytes()), None, "{other}");
        }
    }
}

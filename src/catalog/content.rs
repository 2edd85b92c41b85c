//! A file of a skill, as a store gives it. What the skill's record says of its length is the same store's word, and an operator's
//! own directory may have changed since: what is read into memory has a bound of its own. What a tenant has published is what
//! its record says, byte for byte.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt as _;

use skillgate_plugin_sdk::model::{Content, SkillFile};
use skillgate_skill::file_digest;

/// Bytes of one file. No store of ours takes a longer one.
pub(super) const BYTES_MAX: u64 = 16 << 20;

/// Reads it, at most so many bytes, and compares it with its record, if there is one that holds. Blocks where it is a file. An
/// error says why there is none, as a sentence.
pub(super) fn read(
    given: Content,
    record: Option<&SkillFile>,
    bytes_max: u64,
) -> Result<Vec<u8>, String> {
    let too_long = || Err(format!("has more than {bytes_max} bytes"));
    let data = match given {
        Content::Data(data) if data.len() as u64 > bytes_max => return too_long(),
        Content::Data(data) => data,
        Content::File(_, size) if size > bytes_max => return too_long(),
        Content::File(fd, size) => whole(&File::from(fd), size)?,
        Content::Dir(_) | Content::Tar(..) => {
            return Err("the store answered a file with a directory".into());
        }
    };
    match record {
        Some(record) if record.sha256 != file_digest(&data) => {
            Err("is not what its record says: its sha256 is another one".into())
        }
        _ => Ok(data),
    }
}

/// From its beginning, wherever the descriptor stands: others may read the same one at the same time.
fn whole(file: &File, size: u64) -> Result<Vec<u8>, String> {
    let unreadable = |error| format!("cannot be read: {error}");
    let mut data = vec![0; usize::try_from(size).map_err(|error| error.to_string())?];
    match file.read_exact_at(&mut data, 0) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
            return Err(format!("has not the {size} bytes that the store says"));
        }
        outcome => outcome.map_err(unreadable)?,
    }
    match file.read_at(&mut [0], size).map_err(unreadable)? {
        0 => Ok(data),
        _ => Err(format!(
            "has more than the {size} bytes that the store says"
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::fd::OwnedFd;

    use super::*;

    fn file(path: &str) -> OwnedFd {
        std::fs::File::open(path).unwrap().into()
    }

    /// Read to its end by somebody before.
    fn used(content: &str) -> OwnedFd {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(content.as_bytes()).unwrap();
        file.into()
    }

    #[test]
    fn a_file_is_as_long_as_it_is_said_to_be_and_not_longer_than_memory_has() {
        for (given, expected) in [
            (Content::Data(b"abc".to_vec()), Ok(&b"abc"[..])),
            (
                Content::Data(b"abcd".to_vec()),
                Err("has more than 3 bytes"),
            ),
            (Content::File(used("abc"), 3), Ok(&b"abc"[..])),
            (Content::File(file("/dev/null"), 0), Ok(&[][..])),
            // Without an end, whatever is said of its size.
            (
                Content::File(file("/dev/zero"), u64::MAX),
                Err("has more than 3 bytes"),
            ),
            (
                Content::File(file("/dev/zero"), 3),
                Err("has more than the 3 bytes that the store says"),
            ),
            (
                Content::File(file("/dev/null"), 3),
                Err("has not the 3 bytes that the store says"),
            ),
            (
                Content::File(used("ab"), 3),
                Err("has not the 3 bytes that the store says"),
            ),
            (
                Content::Dir(file("/")),
                Err("the store answered a file with a directory"),
            ),
        ] {
            let got = read(given, None, 3);
            let got = got.as_deref().map_err(String::as_str);
            assert_eq!(got, expected);
        }
    }

    #[test]
    fn what_was_published_is_what_is_read() {
        let record = SkillFile {
            sha256: file_digest(b"abc"),
            ..SkillFile::default()
        };
        let other = Err("is not what its record says: its sha256 is another one".to_owned());
        for (content, expected) in [("abc", Ok(b"abc".to_vec())), ("abd", other)] {
            let data = Content::Data(content.into());
            assert_eq!(read(data, Some(&record), 3), expected);
            let file = Content::File(used(content), 3);
            assert_eq!(read(file, Some(&record), 3), expected);
        }
    }
}

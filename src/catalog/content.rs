//! A file of a skill, as a store gives it. What the skill's record says of its length is the same store's word, and an operator's
//! own directory may have changed since: what is read into memory has a bound of its own.

use std::io::Read as _;

use skillgate_plugin_sdk::model::Content;

/// Bytes of one file. No store of ours takes a longer one.
pub(super) const BYTES_MAX: u64 = 16 << 20;

/// Reads it, at most so many bytes. Blocks where it is a file. An error says why there is none, as a sentence.
pub(super) fn read(given: Content, bytes_max: u64) -> Result<Vec<u8>, String> {
    let data = match given {
        Content::Data(data) => data,
        Content::File(fd, _) => {
            let mut data = Vec::new();
            // One more: it is seen that there is more.
            let mut file = std::fs::File::from(fd).take(bytes_max + 1);
            file.read_to_end(&mut data)
                .map_err(|error| format!("cannot be read: {error}"))?;
            data
        }
        Content::Dir(_) | Content::Tar(..) => {
            return Err("the store answered a file with a directory".into());
        }
    };
    if data.len() as u64 > bytes_max {
        return Err(format!("has more than {bytes_max} bytes"));
    }
    Ok(data)
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;

    fn file(path: &str) -> OwnedFd {
        std::fs::File::open(path).unwrap().into()
    }

    #[test]
    fn a_file_is_as_long_as_it_is_and_not_longer_than_memory_has() {
        for (given, expected) in [
            (Content::Data(b"abc".to_vec()), Ok(&b"abc"[..])),
            (
                Content::Data(b"abcd".to_vec()),
                Err("has more than 3 bytes"),
            ),
            // Without an end, whatever is said of its size.
            (
                Content::File(file("/dev/zero"), u64::MAX),
                Err("has more than 3 bytes"),
            ),
            (
                Content::File(file("/dev/zero"), 3),
                Err("has more than 3 bytes"),
            ),
            (Content::File(file("/dev/null"), 3), Ok(&[][..])),
            (
                Content::Dir(file("/")),
                Err("the store answered a file with a directory"),
            ),
        ] {
            let got = read(given, 3);
            let got = got.as_deref().map_err(String::as_str);
            assert_eq!(got, expected);
        }
    }
}

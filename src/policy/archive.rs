//! A bundle as one file: `.tar.gz`, as `opa build` writes it.

use std::cell::Cell;
use std::fs::File;
use std::io::{Read, Take};
use std::path::Path;

use flate2::read::MultiGzDecoder;
use tar::{Archive, EntryType};

use super::bundle::{BUNDLE_BYTES_MAX, BundleError, Files};

/// Bytes of the file as it is.
const ARCHIVE_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Bytes of the archive when it is unpacked: the files, and a header for each.
const UNPACKED_BYTES_MAX: u64 = BUNDLE_BYTES_MAX + 16 * 1024 * 1024;

/// Reads an archive into memory; nothing is written anywhere.
pub(super) fn read(path: &Path) -> Result<Files, BundleError> {
    let wrong = |message: String| BundleError::new(path.display(), message);
    let unread = |error| BundleError::unread(path, &error);
    let file = File::open(path).map_err(unread)?;
    let meta = file.metadata().map_err(unread)?;
    if !meta.is_file() {
        return Err(wrong(
            "is neither a directory nor a regular file (.tar.gz)".into(),
        ));
    }
    if meta.len() > ARCHIVE_BYTES_MAX {
        return Err(wrong(format!(
            "has {} bytes; a bundle has at most {ARCHIVE_BYTES_MAX}",
            meta.len()
        )));
    }
    unpack(file.take(ARCHIVE_BYTES_MAX)).map_err(wrong)
}

fn unpack(compressed: Take<impl Read>) -> Result<Files, String> {
    let broken = |error: std::io::Error| format!("is no .tar.gz that can be read: {error}");
    let is_over = Cell::new(false);
    // A few bytes can unpack to any number of them: what comes out is what is limited. Of members as many as there are, as in OPA.
    let unpacked = Ending {
        archive: MultiGzDecoder::new(compressed).take(UNPACKED_BYTES_MAX),
        is_over: &is_over,
    };
    let mut archive = Archive::new(unpacked);
    let mut files = Files::default();
    let mut bytes_total = 0_u64;
    for entry in archive.entries().map_err(broken)? {
        let mut entry = entry.map_err(broken)?;
        let bytes = entry.path_bytes().into_owned();
        let path = String::from_utf8(bytes).map_err(|_| "has a path that is no text".to_owned())?;
        match entry.header().entry_type() {
            EntryType::Directory | EntryType::XGlobalHeader => continue,
            EntryType::Regular | EntryType::Continuous => {}
            // A link would be somebody else's choice of what is read.
            kind => {
                return Err(format!(
                    "{path:?} is of type {kind:?}; a bundle has files only"
                ));
            }
        }
        // `opa build` writes "/data.json", tar writes "./data.json".
        let path = path.strip_prefix("./").unwrap_or(&path);
        let path = path.strip_prefix('/').unwrap_or(path).to_owned();
        bytes_total = bytes_total.saturating_add(entry.size());
        if bytes_total > BUNDLE_BYTES_MAX {
            return Err(format!("unpacks to more than {BUNDLE_BYTES_MAX} bytes"));
        }
        let mut content = Vec::new();
        entry.read_to_end(&mut content).map_err(broken)?;
        if content.len() as u64 != entry.size() {
            return Err(format!("{path:?} is cut off"));
        }
        files
            .add(path.clone(), content)
            .map_err(|why| format!("{path:?} {why}"))?;
    }
    if is_over.get() {
        // Behind the last entry there are blocks of zeros, and nothing is read beyond the first of these.
        return Err("is cut off between two files".into());
    }
    // The checksum of what was read is behind all of it.
    std::io::copy(&mut archive.into_inner(), &mut std::io::sink()).map_err(broken)?;
    Ok(files)
}

/// An archive of which it is seen whether its bytes had an end before it had: without the rest it would be a smaller policy.
struct Ending<'a, R> {
    archive: R,
    /// There was nothing more to read when something was asked for.
    is_over: &'a Cell<bool>,
}

impl<R: Read> Read for Ending<'_, R> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let n = self.archive.read(buf)?;
        self.is_over.set(n == 0 && !buf.is_empty());
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file's or link's path, type and content.
    type Item<'a> = (&'a str, EntryType, &'a [u8]);

    fn packed(items: &[Item<'_>]) -> Vec<u8> {
        let gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        let mut builder = tar::Builder::new(gz);
        for (path, kind, content) in items {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_size(content.len() as u64);
            // Written as bytes: the builder refuses the paths that are to be refused here.
            header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
            if kind.is_symlink() || kind.is_hard_link() {
                header.set_link_name("/etc/passwd").unwrap();
            }
            header.set_cksum();
            builder.append(&header, *content).unwrap();
        }
        builder.into_inner().unwrap().finish().unwrap()
    }

    fn read_bytes(bytes: &[u8]) -> Result<Files, String> {
        unpack(bytes.take(ARCHIVE_BYTES_MAX))
    }

    #[test]
    fn what_opa_and_tar_write() {
        let file = EntryType::Regular;
        let bytes = packed(&[
            ("/.manifest", file, b"{}"),
            ("./skills/a.rego", file, b"package a"),
            ("skills/", EntryType::Directory, b""),
            ("data.json", file, b"{}"),
        ]);
        let files = read_bytes(&bytes).unwrap();
        let paths: Vec<&str> = files.contents.keys().map(String::as_str).collect();
        assert_eq!(paths, [".manifest", "data.json", "skills/a.rego"]);
    }

    #[test]
    fn what_is_refused() {
        let file = EntryType::Regular;
        for (items, why) in [
            (
                &[("a.rego", EntryType::Symlink, &b""[..])][..],
                "files only",
            ),
            (&[("a.rego", EntryType::Link, b"")], "files only"),
            (&[("a", EntryType::Fifo, b"")], "files only"),
            (&[("../a.rego", file, b"")], "a path that"),
            (&[("a/../../b.rego", file, b"")], "a path that"),
            (&[("//etc/passwd", file, b"")], "a path that"),
            (&[("a\\b", file, b"")], "a path that"),
            (&[("a", file, b"1"), ("./a", file, b"2")], "twice"),
        ] {
            let error = read_bytes(&packed(items)).unwrap_err();
            assert!(error.contains(why), "{items:?}: {error}");
        }
        assert!(read_bytes(b"no archive").is_err());
        let whole = packed(&[("a", file, &[7; 4000])]);
        assert!(read_bytes(&whole[..whole.len() / 2]).is_err());
    }

    fn zipped(bytes: &[u8]) -> Vec<u8> {
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut gz, bytes).unwrap();
        gz.finish().unwrap()
    }

    /// It would be a policy without the rules behind that.
    #[test]
    fn what_ends_between_two_files_is_no_archive() {
        let file = EntryType::Regular;
        let mut whole = Vec::new();
        let packed = packed(&[
            ("a.rego", file, b"package a"),
            ("b.rego", file, b"package b"),
        ]);
        let mut unpacked = MultiGzDecoder::new(&packed[..]);
        unpacked.read_to_end(&mut whole).unwrap();
        // Each has a block of its own for its head and its content.
        for files in 0..=2 {
            let why = read_bytes(&zipped(&whole[..files * 1024])).unwrap_err();
            assert_eq!(why, "is cut off between two files", "{files}");
        }
        let members = [zipped(&whole[..1024]), zipped(&whole[1024..])].concat();
        assert_eq!(read_bytes(&members).unwrap().contents.len(), 2);
    }

    /// A disk or a network that loses a bit makes no other policy: the archive has a checksum.
    #[test]
    fn a_changed_bit_is_no_other_policy() {
        let whole = packed(&[
            ("a.rego", EntryType::Regular, b"package a\nallow := false\n"),
            (
                "data.json",
                EntryType::Regular,
                b"{\"admins\": [\"alice\"]}",
            ),
        ]);
        let files = read_bytes(&whole).unwrap();
        for bit in 0..8 * whole.len() {
            let mut changed = whole.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            // In what the header of gzip says beside the content.
            let is_same = read_bytes(&changed).is_ok_and(|read| read == files);
            assert!(is_same || read_bytes(&changed).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_bomb_is_noticed_by_what_comes_out() {
        let mut header = tar::Header::new_gnu();
        header.set_path("data.json").unwrap();
        header.set_size(BUNDLE_BYTES_MAX + 1);
        header.set_cksum();
        let error = read_bytes(&zipped(header.as_bytes())).unwrap_err();
        assert!(error.contains("unpacks to more than"), "{error}");
    }
}

//! Digests of files and of whole skills, as the plugin contract defines them.

use sha2::{Digest, Sha256};

/// The sha256 of a file's bytes, as 64 lower-case hex digits.
pub fn file_digest(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// The digest of a skill: sha256 over, for each file in the byte order of its path,
/// `<path>\0<file_digest of its content>\n`. Takes (path, file digest) in any order; 64 lower-case
/// hex digits.
pub fn tree_digest<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let mut files: Vec<_> = files.into_iter().collect();
    files.sort_unstable();
    let mut hash = Sha256::new();
    for (path, digest) in files {
        hash.update(path.as_bytes());
        hash.update(b"\0");
        hash.update(digest.as_bytes());
        hash.update(b"\n");
    }
    hex::encode(hash.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        // printf '' | sha256sum
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(file_digest(b""), empty);
        assert_eq!(tree_digest([]), empty);
        // printf 'a\0%s\nb/c\0%s\n' $empty $empty | sha256sum
        let tree = file_digest(format!("a\0{empty}\nb/c\0{empty}\n").as_bytes());
        assert_eq!(tree_digest([("b/c", empty), ("a", empty)]), tree);
        assert_eq!(tree_digest([("a", empty), ("b/c", empty)]), tree);
    }
}

//! Whose file it is: who can change it, and who has signed it.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use minisign_verify::{PublicKey, Signature};

use crate::load::Refusal;

/// Largest signature file; a minisign signature has about 300 bytes.
const SIGNATURE_BYTES_MAX: u64 = 4096;
/// What the trusted comment of a plugin's signature begins with.
const COMMENT: &str = "skillgate-plugin";
/// Permission bits that let others write.
const OTHERS_WRITE: u32 = 0o022;
const ROOT: u32 = 0;

/// Refuses a file that others can change, or replace through its directory: the one it is in, and where the path is a
/// symbolic link, the one that the link is in. Whoever owns one of them can, whatever its mode says.
pub(crate) fn guarded(path: &Path) -> Result<(), Refusal> {
    let path = std::path::absolute(path).map_err(Refusal::Unreadable)?;
    let real = path.canonicalize().map_err(Refusal::Unreadable)?;
    let directory = |path: &Path| path.parent().map(Path::to_owned);
    let looked = [Some(real.clone()), directory(&real), directory(&path)];
    // SAFETY: asks for a number; it cannot fail.
    let this_user = unsafe { libc::geteuid() };
    for what in looked.into_iter().flatten() {
        let found = what.metadata().map_err(Refusal::Unreadable)?;
        let mode = found.mode() & 0o7777;
        if mode & OTHERS_WRITE != 0 {
            return Err(Refusal::Writable { what, mode });
        }
        // Root can change it whoever it belongs to.
        let owner = found.uid();
        if owner != ROOT && owner != this_user {
            return Err(Refusal::Owner {
                what,
                owner,
                this_user,
            });
        }
    }
    Ok(())
}

/// Checks `<path>.minisig` against the bytes and the key. Answers with its trusted comment, which is signed too.
pub(crate) fn trusted_comment(path: &Path, bytes: &[u8], key: &str) -> Result<String, Refusal> {
    let key = PublicKey::from_base64(key).map_err(|error| Refusal::Key(error.to_string()))?;
    let mut file = path.as_os_str().to_owned();
    file.push(".minisig");
    let file = PathBuf::from(file);
    let text = read_text(&file).map_err(|error| Refusal::NoSignature { file, error })?;
    let wrong = |error: minisign_verify::Error| Refusal::Signature(error.to_string());
    let signature = Signature::decode(&text).map_err(wrong)?;
    // `false`: only signatures of the file's hash, which is what minisign makes; the older form is not accepted.
    key.verify(bytes, &signature, false).map_err(wrong)?;
    Ok(signature.trusted_comment().to_owned())
}

fn read_text(file: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    let file = std::fs::File::open(file)?;
    file.take(SIGNATURE_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// Is it signed as this plugin, and as this version when that is known?
pub(crate) fn signed_as(comment: &str, id: &str, version: Option<&str>) -> Result<(), Refusal> {
    let words: Vec<_> = comment.split(' ').collect();
    let fits = match (words.as_slice(), version) {
        ([word, of, at], Some(version)) => *word == COMMENT && *of == id && *at == version,
        // A note holds 43 bytes of an id.
        ([word, of, _], None) => {
            *word == COMMENT && (*of == id || (id.len() == 43 && of.starts_with(id)))
        }
        _ => false,
    };
    if fits {
        return Ok(());
    }
    Err(Refusal::SignedAs {
        signed: comment.to_owned(),
        expected: format!("{COMMENT} {id} {}", version.unwrap_or("<version>")),
    })
}

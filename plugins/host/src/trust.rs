//! Whose file it is: who can change it, and who has signed it.

use std::ffi::OsString;
use std::fs::Metadata;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use minisign_verify::{PublicKey, Signature};

use crate::inspect::NOTE_ID_BYTES;
use crate::load::Refusal;

/// Largest signature file; a minisign signature has about 300 bytes.
const SIGNATURE_BYTES_MAX: u64 = 4096;
/// What the trusted comment of a plugin's signature begins with.
const COMMENT: &str = "skillgate-plugin";
/// Permission bits that let others write.
const OTHERS_WRITE: u32 = 0o022;
/// In a directory: only who owns a name in it, or it, may take the name away or give it to something else.
const STICKY: u32 = 0o1000;
/// Symbolic links on the way to one file, as many as the kernel follows.
const LINKS_MAX: usize = 40;
const ROOT: u32 = 0;

/// Refuses a file that others can change, or replace by another under its name: in the directory that it is in, in one above
/// that, or on the way of a symbolic link. Whoever owns one of them can, whatever its mode says.
pub(crate) fn guarded(path: &Path) -> Result<(), Refusal> {
    let path = std::path::absolute(path).map_err(Refusal::Unreadable)?;
    let (mut here, mut todo, mut links) = (PathBuf::from("/"), names(&path), 0);
    while let Some(name) = todo.pop() {
        if name == ".." {
            // `here` is no link.
            here.pop();
            continue;
        }
        let entry = here.join(name);
        let found = entry.symlink_metadata().map_err(Refusal::Unreadable)?;
        let above = here.metadata().map_err(Refusal::Unreadable)?;
        // In a sticky directory, as /tmp is, a name is its owner's. The one that the file, or a link to it, is in is nobody
        // else's to write to all the same.
        if above.mode() & STICKY != 0 && !todo.is_empty() {
            of_trusted(&here, &above)?;
            of_trusted(&entry, &found)?;
        } else {
            unchangeable(&here, &above)?;
        }
        if !found.is_symlink() {
            here = entry;
            continue;
        }
        links += 1;
        if links > LINKS_MAX {
            let endless = std::io::Error::from_raw_os_error(libc::ELOOP);
            return Err(Refusal::Unreadable(endless));
        }
        let target = entry.read_link().map_err(Refusal::Unreadable)?;
        if target.is_absolute() {
            here = PathBuf::from("/");
        }
        todo.extend(names(&target));
    }
    unchangeable(&here, &here.metadata().map_err(Refusal::Unreadable)?)
}

/// The names in a path, the last one first.
fn names(path: &Path) -> Vec<OsString> {
    let names = path.components().rev().filter_map(|part| match part {
        Component::Normal(_) | Component::ParentDir => Some(part.as_os_str().to_owned()),
        Component::Prefix(_) | Component::RootDir | Component::CurDir => None,
    });
    names.collect()
}

fn unchangeable(what: &Path, found: &Metadata) -> Result<(), Refusal> {
    let mode = found.mode() & 0o7777;
    if mode & OTHERS_WRITE != 0 {
        let what = what.to_owned();
        return Err(Refusal::Writable { what, mode });
    }
    of_trusted(what, found)
}

/// Root can change it whoever it belongs to.
fn of_trusted(what: &Path, found: &Metadata) -> Result<(), Refusal> {
    // SAFETY: asks for a number; it cannot fail.
    let (owner, this_user) = (found.uid(), unsafe { libc::geteuid() });
    if owner == ROOT || owner == this_user {
        return Ok(());
    }
    Err(Refusal::Owner {
        what: what.to_owned(),
        owner,
        this_user,
    })
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
        ([word, of, _], None) => {
            *word == COMMENT && (*of == id || (id.len() == NOTE_ID_BYTES && of.starts_with(id)))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn before_it_runs_only_an_id_that_was_cut_may_go_on() {
        let cut = "x".repeat(NOTE_ID_BYTES);
        let (whole, shorter) = (format!("{cut}yz"), &cut[1..]);
        let signed = |of: &str| format!("{COMMENT} {of} 1.0.0");
        for (of, id, fits) in [
            ("org.example.a", "org.example.a", true),
            ("org.example.ab", "org.example.a", false),
            ("org.example", "org.example.a", false),
            (&cut, &cut, true),
            (&whole, &cut, true),
            (&cut, shorter, false),
            (shorter, &cut, false),
        ] {
            assert_eq!(signed_as(&signed(of), id, None).is_ok(), fits, "{of} {id}");
            // What it then says of itself is the whole of it.
            let exact = signed_as(&signed(of), id, Some("1.0.0")).is_ok();
            assert_eq!(exact, of == id, "{of} {id}");
        }
    }
}

//! What files look like from outside: whether something of them has changed since.

use std::collections::hash_map::DefaultHasher;
use std::fs::DirEntry;
use std::hash::{Hash as _, Hasher as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Files of one directory, and of those in it, that are looked at to see whether something has changed; what is beyond is reloaded
/// on SIGHUP only, and the log says so.
pub(super) const WATCHED_FILES_MAX: usize = 10_000;
/// Names, sizes, times and inodes of everything that is there. The time of the inode, too: who may read or write a file, which
/// decides whether it is taken, changes that one alone, and nobody can set it back. A link counts as what it leads to: that is how
/// secrets and configuration are replaced where they are mounted. And the first directory of which that is not all: each has a bound of
/// its own, so that none keeps the others, or a file with keys, from being looked at.
pub(super) fn fingerprint(paths: &[PathBuf], files_max: usize) -> (u64, Option<&Path>) {
    let (mut hasher, mut beyond) = (DefaultHasher::new(), None);
    for path in paths {
        let mut left = files_max;
        if !look(path, &mut hasher, &mut left) {
            beyond = beyond.or(Some(path.as_path()));
        }
    }
    (hasher.finish(), beyond)
}

/// `false`: not at all of it.
fn look(path: &Path, hasher: &mut DefaultHasher, left: &mut usize) -> bool {
    if *left == 0 {
        return false;
    }
    *left -= 1;
    path.hash(hasher);
    let Ok(meta) = std::fs::metadata(path) else {
        return true;
    };
    (meta.dev(), meta.ino(), meta.len()).hash(hasher);
    (meta.mtime(), meta.mtime_nsec()).hash(hasher);
    (meta.ctime(), meta.ctime_nsec()).hash(hasher);
    if !meta.is_dir() {
        return true;
    }
    // Nobody reads what lies in a hidden one (`.git`), but by a link from beside it.
    let is_hidden = |entry: &DirEntry| {
        entry.file_name().as_bytes().starts_with(b".")
            && entry.file_type().is_ok_and(|kind| kind.is_dir())
    };
    let mut names: Vec<PathBuf> = std::fs::read_dir(path)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| !is_hidden(entry))
        .map(|entry| entry.path())
        .collect();
    names.sort_unstable();
    // Deep trees and loops of links end at the bound.
    names.iter().all(|name| look(name, hasher, left))
}

/// Changes a file until its times, which go by the ticks of the kernel's clock, tell it from before.
#[cfg(test)]
pub(super) fn until_it_shows(path: &Path, change: impl Fn()) {
    let times = || {
        let meta = path.metadata().unwrap();
        (meta.ctime(), meta.ctime_nsec())
    };
    let before = times();
    while times() == before {
        change();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::fs::{File, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn what_is_watched_shows_every_change() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let paths = [dir.path().to_path_buf(), at("..data-link")];
        let look = || fingerprint(&paths, WATCHED_FILES_MAX);
        let mut seen = vec![look()];
        let mut changed = |what: &str| {
            let now = look();
            assert!(!seen.contains(&now), "{what}");
            assert_eq!(now, look(), "{what}: it stands still");
            seen.push(now);
        };
        std::fs::create_dir_all(at("one/two")).unwrap();
        changed("directories");
        std::fs::write(at("one/two/a"), "1").unwrap();
        changed("a file in them");
        std::fs::write(at("one/two/a"), "22").unwrap();
        changed("its content");
        let a = at("one/two/a");
        until_it_shows(&a, || {
            std::fs::set_permissions(&a, Permissions::from_mode(0o600)).unwrap();
        });
        changed("who may read it");
        let was = a.metadata().unwrap().modified().unwrap();
        until_it_shows(&a, || {
            std::fs::write(&a, "33").unwrap();
            File::options()
                .write(true)
                .open(&a)
                .and_then(|file| file.set_modified(was))
                .unwrap();
        });
        changed("as much content, said to be as old");
        std::os::unix::fs::symlink("one", at("..data-link")).unwrap();
        changed("a link");
        std::fs::create_dir(at("three")).unwrap();
        std::fs::remove_file(at("..data-link")).unwrap();
        std::os::unix::fs::symlink("three", at("..data-link")).unwrap();
        changed("where the link leads");
        std::fs::remove_dir_all(at("one")).unwrap();
        changed("nothing left");
    }

    #[test]
    fn a_loop_of_links_ends() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(".", dir.path().join("again")).unwrap();
        let paths = [dir.path().to_path_buf()];
        fingerprint(&paths, WATCHED_FILES_MAX);
    }

    /// However many files a policy has, and whatever its repository keeps beside them, a key that is taken away is seen to be.
    #[test]
    fn no_directory_keeps_a_file_from_being_looked_at() {
        let dir = tempfile::tempdir().unwrap();
        let (policy, keys) = (dir.path().join("policy"), dir.path().join("keys.json"));
        std::fs::create_dir_all(policy.join(".git/objects")).unwrap();
        for n in 0..100 {
            std::fs::write(policy.join(".git/objects").join(n.to_string()), "").unwrap();
        }
        for n in 0..4 {
            std::fs::create_dir(policy.join(n.to_string())).unwrap();
            std::fs::write(policy.join(n.to_string()).join("data.json"), "{}").unwrap();
        }
        std::fs::write(&keys, "[1]").unwrap();
        let paths = [policy.clone(), keys.clone()];
        let all = fingerprint(&paths, 9);
        assert_eq!(all.1, None);
        let some = fingerprint(&paths, 8);
        assert_eq!(some.1, Some(policy.as_path()));
        std::fs::write(&keys, "[]").unwrap();
        assert_ne!(
            (fingerprint(&paths, 9), fingerprint(&paths, 8)),
            (all, some)
        );
        assert_ne!(fingerprint(&paths, 8), some);
    }
}

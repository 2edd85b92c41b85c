//! Directories of skills that are kept open. A version never changes, and to ask the store for its directory takes the way to
//! another thread and back: 0.1 ms of a run's answer, where processors have to be woken for it.

use std::fs::File;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::Skill;

/// Directories that are kept; at the next one all are let go.
const TREES_MAX: usize = 64;

/// Of skills as they were read, each the one that its store gave then: nobody else's, and of no other store. It does not keep
/// a skill in memory that nobody else does.
#[derive(Debug, Default)]
pub(super) struct Trees(Mutex<Vec<(Weak<Skill>, Arc<OwnedFd>)>>);

impl Trees {
    fn kept(&self) -> MutexGuard<'_, Vec<(Weak<Skill>, Arc<OwnedFd>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The directory of a skill; `None`: its store has to be asked.
    pub(super) fn open(&self, skill: &Arc<Skill>) -> Option<OwnedFd> {
        // The place of a skill that is gone is nobody else's while this knows of it.
        let is_it = |(of, _): &&(Weak<Skill>, _)| Weak::as_ptr(of) == Arc::as_ptr(skill);
        let kept = self.kept().iter().find(is_it).map(|(_, dir)| dir.clone())?;
        let opened = again(&kept);
        if opened.is_none() {
            self.kept().retain(|(_, dir)| !Arc::ptr_eq(dir, &kept));
        }
        opened
    }

    /// Keeps what a store has given of a skill. Gives what is for who asked.
    pub(super) fn keep(&self, skill: &Arc<Skill>, dir: OwnedFd) -> OwnedFd {
        let Some(opened) = again(&dir) else {
            return dir;
        };
        let mut kept = self.kept();
        kept.retain(|(of, _)| of.strong_count() > 0);
        if kept.len() >= TREES_MAX {
            kept.clear();
        }
        kept.push((Arc::downgrade(skill), Arc::new(dir)));
        opened
    }

    pub(super) fn forget(&self) {
        self.kept().clear();
    }
}

/// The same directory, opened for itself: two who read in one and the same descriptor take names from each other. `None`: it
/// has been removed, or cannot be opened here.
fn again(dir: &OwnedFd) -> Option<OwnedFd> {
    let opened = File::open(format!("/proc/self/fd/{}", dir.as_raw_fd())).ok()?;
    let metadata = opened.metadata().ok()?;
    (metadata.is_dir() && metadata.nlink() > 0).then(|| opened.into())
}

#[cfg(test)]
mod tests {
    use std::io::{Seek as _, SeekFrom};

    use super::*;

    fn skill() -> Arc<Skill> {
        let manifest = "name = \"acme.x\"\nversion = \"0.1.0\"\ndescription = \"x\"\nkind = \"instruction\"\nnamespace = \"acme\"\n";
        Arc::new(Skill::unstored(manifest, true).unwrap())
    }

    fn inode(dir: &OwnedFd) -> u64 {
        let dir = File::from(dir.try_clone().unwrap());
        dir.metadata().unwrap().ino()
    }

    #[test]
    fn a_directory_is_kept_for_the_very_skill_until_it_is_removed() {
        let (trees, of) = (Trees::default(), skill());
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("x");
        std::fs::create_dir(&dir).unwrap();
        assert!(trees.open(&of).is_none());
        let given = trees.keep(&of, File::open(&dir).unwrap().into());
        let later = trees.open(&of).unwrap();
        assert_eq!(inode(&given), inode(&later));
        // Who reads in the one does not move the other.
        let (mut one, mut other) = (File::from(given), File::from(later));
        one.seek(SeekFrom::Start(1)).unwrap();
        assert_eq!(other.stream_position().unwrap(), 0);
        // Of the same name and version, from another store or for another tenant.
        assert!(trees.open(&skill()).is_none());
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(trees.open(&of).is_none());
        assert!(trees.kept().is_empty());
    }

    #[test]
    fn so_many_and_no_more_are_open() {
        let trees = Trees::default();
        let place = tempfile::tempdir().unwrap();
        let skills: Vec<_> = (0..=TREES_MAX).map(|_| skill()).collect();
        for skill in &skills {
            trees.keep(skill, File::open(place.path()).unwrap().into());
            assert!(trees.kept().len() <= TREES_MAX);
        }
        assert!(trees.open(&skills[0]).is_none());
        assert!(trees.open(&skills[TREES_MAX]).is_some());
        trees.forget();
        assert!(trees.open(&skills[TREES_MAX]).is_none());
        // Those that nobody has in memory any more are let go.
        trees.keep(&skills[0], File::open(place.path()).unwrap().into());
        drop(skills);
        let last = skill();
        trees.keep(&last, File::open(place.path()).unwrap().into());
        assert!(trees.kept().len() == 1 && trees.open(&last).is_some());
    }
}

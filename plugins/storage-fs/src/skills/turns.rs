//! Puts of the same version, one after the other.
//!
//! Who comes later finds what came of the first: the version, which takes nothing more of the tenant's quota, or its room given
//! back. And nobody finds a version that is visible but may yet be taken back, or answers of it before it is durable.

use std::collections::HashSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Of all versions.
#[derive(Debug, Default)]
pub(super) struct Turns {
    taken: Mutex<HashSet<String>>,
    ended: Condvar,
}

/// Of one version, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    path: String,
}

impl Turns {
    /// Waits for those of `path` who came before.
    pub(super) fn wait(&self, path: String) -> Turn<'_> {
        let mut taken = self
            .ended
            .wait_while(self.taken(), |taken| taken.contains(&path))
            .unwrap_or_else(PoisonError::into_inner);
        taken.insert(path.clone());
        Turn { turns: self, path }
    }

    fn taken(&self) -> MutexGuard<'_, HashSet<String>> {
        // A panic while it was held leaves a set, whole.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.taken().remove(&self.path);
        self.turns.ended.notify_all();
    }
}

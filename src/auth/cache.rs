//! Tokens that were verified already: a signature is checked once per token, not once per request.
//!
//! An entry is found by the SHA-256 of the whole token, so that nothing but the very same bytes finds it, and the token
//! itself is not kept. It is never used at or after its `exp`, nor after the keys have changed: a key that an issuer has
//! taken back must not live on in here.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use sha2::{Digest as _, Sha256};

use super::Subject;

/// SHA-256 of a token.
pub(super) type Digest = [u8; 32];

/// The name of a token in the cache.
pub(super) fn digest(token: &str) -> Digest {
    Sha256::digest(token.as_bytes()).into()
}

/// How often keys have changed. Read before a token is verified, so that a change meanwhile is seen.
#[derive(Debug, Clone, Default)]
pub(super) struct Generation(Arc<AtomicU64>);

impl Generation {
    pub(super) fn current(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Everything that was verified before counts no more.
    pub(super) fn advance(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

#[derive(Debug, Clone)]
struct Entry {
    subject: Arc<Subject>,
    expires_s: u64,
    generation: u64,
}

/// Two halves: new entries and used ones go into the young half; when it is full it becomes the old one, and what was
/// in that and nobody has asked for is forgotten.
#[derive(Debug)]
pub(super) struct Cache {
    half: usize,
    generation: Generation,
    halves: Mutex<Halves>,
}

#[derive(Debug, Default)]
struct Halves {
    young: HashMap<Digest, Entry>,
    old: HashMap<Digest, Entry>,
}

impl Cache {
    /// For at most `entries`; 0 keeps none.
    pub(super) fn new(entries: usize, generation: Generation) -> Self {
        Cache {
            half: entries / 2,
            generation,
            halves: Mutex::default(),
        }
    }

    pub(super) fn get(&self, digest: &Digest, now_s: u64) -> Option<Arc<Subject>> {
        let mut halves = self.lock();
        let Halves { young, old } = &mut *halves;
        let entry = match young.get(digest) {
            Some(entry) => entry.clone(),
            None => old.remove(digest)?,
        };
        if now_s >= entry.expires_s || entry.generation != self.generation.current() {
            young.remove(digest);
            return None;
        }
        let subject = entry.subject.clone();
        if !young.contains_key(digest) {
            self.insert(&mut halves, *digest, entry);
        }
        Some(subject)
    }

    /// Keeps what was verified with the keys of `generation`.
    pub(super) fn put(&self, digest: Digest, subject: &Arc<Subject>, generation: u64) {
        let Some(expires_s) = subject.expires_s else {
            return;
        };
        let entry = Entry {
            subject: subject.clone(),
            expires_s,
            generation,
        };
        self.insert(&mut self.lock(), digest, entry);
    }

    fn insert(&self, halves: &mut Halves, digest: Digest, entry: Entry) {
        if self.half == 0 {
            return;
        }
        if halves.young.len() >= self.half {
            halves.old = std::mem::take(&mut halves.young);
        }
        halves.young.insert(digest, entry);
    }

    /// How many there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        let halves = self.lock();
        halves.young.len() + halves.old.len()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Halves> {
        // No code of others runs under the lock; a half that a panic left behind is still a map.
        self.halves.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::{Cache, Digest, Generation, digest};
    use crate::auth::Subject;
    use std::sync::Arc;

    fn subject(expires_s: u64) -> Arc<Subject> {
        Arc::new(Subject {
            expires_s: Some(expires_s),
            ..Subject::local()
        })
    }

    fn name(number: u32) -> Digest {
        digest(&number.to_string())
    }

    #[test]
    fn an_entry_ends_with_its_token_and_with_the_keys() {
        let generation = Generation::default();
        let cache = Cache::new(10, generation.clone());
        cache.put(name(1), &subject(100), generation.current());
        assert!(cache.get(&name(1), 99).is_some());
        assert!(cache.get(&name(2), 99).is_none());
        assert!(cache.get(&name(1), 100).is_none(), "exp itself is too late");
        assert_eq!(cache.len(), 0, "what has ended is forgotten");

        cache.put(name(1), &subject(100), generation.current());
        generation.advance();
        assert!(cache.get(&name(1), 1).is_none(), "the keys have changed");

        let before = generation.current();
        generation.advance();
        cache.put(name(1), &subject(100), before);
        assert!(
            cache.get(&name(1), 1).is_none(),
            "verified with keys that were gone when it was kept"
        );
    }

    #[test]
    fn a_flood_of_tokens_is_bounded_and_the_used_ones_stay() {
        let generation = Generation::default();
        let cache = Cache::new(100, generation.clone());
        for number in 0..100_000 {
            cache.put(name(number), &subject(u64::MAX), 0);
            assert!(cache.get(&name(0), 0).is_some(), "in use at {number}");
            assert!(cache.len() <= 100);
        }
        assert!(cache.get(&name(50_000), 0).is_none());
        assert!(cache.get(&name(99_999), 0).is_some());

        let none = Cache::new(0, generation.clone());
        none.put(name(1), &subject(u64::MAX), 0);
        assert!(none.get(&name(1), 0).is_none() && none.len() == 0);

        // As many as it is for, though one of them is asked for again and again.
        let few = Cache::new(4, generation);
        for number in 0..4 {
            few.put(name(number), &subject(u64::MAX), 0);
            for _ in 0..4 {
                assert!(few.get(&name(number), 0).is_some());
            }
        }
        assert_eq!(few.len(), 4);
        assert!(few.get(&name(0), 0).is_some());
    }
}

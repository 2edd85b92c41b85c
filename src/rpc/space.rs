//! Room for large content, in and out: there is so much of it, and tenants share it.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;

use super::body::Held;
use super::{SMALL_BYTES_MAX, fits};
use crate::slots::{Slot, Slots};

/// The place of one body and of its answers: one for all that is large in them, taken with the first that is.
#[derive(Debug, Clone)]
pub struct Space(Option<Arc<Shared>>);

#[derive(Debug)]
struct Shared {
    places: Arc<Slots>,
    tenant: String,
    /// How long to wait for a place; none once that was in vain, else each call of a batch would wait anew.
    patience: Mutex<Duration>,
    place: Mutex<Option<Slot>>,
    /// That of a body which is not large, for as long as anybody has the body.
    _small: Option<Slot>,
}

/// There is none, and has been none for a while.
#[derive(Debug, thiserror::Error)]
#[error(
    "there are too many answers of over {SMALL_BYTES_MAX} bytes on their way (server.max_large_bodies): call again later, or ask for less"
)]
pub struct NoSpace;

impl Space {
    /// For who calls without a gateway around: there is always room.
    pub fn unlimited() -> Self {
        Space(None)
    }

    /// With what the body has already.
    pub(super) fn new(places: &Arc<Slots>, tenant: &str, patience: Duration, held: Held) -> Self {
        Space(Some(Arc::new(Shared {
            places: places.clone(),
            tenant: tenant.to_owned(),
            patience: Mutex::new(patience),
            place: Mutex::new(held.large),
            _small: held.small,
        })))
    }

    /// Before so many bytes are read into an answer.
    ///
    /// # Errors
    /// [`NoSpace`]
    pub async fn enter(&self, bytes: u64) -> Result<(), NoSpace> {
        if bytes <= SMALL_BYTES_MAX as u64 {
            return Ok(());
        }
        self.wait().await
    }

    /// Whether an answer is a large one as JSON, which what it was made of need not have been, and has no place yet.
    pub fn lacks(&self, answer: &impl Serialize) -> bool {
        let is_without = |shared: &Arc<Shared>| shared.place().is_none();
        self.0.as_ref().is_some_and(is_without) && !fits(answer, SMALL_BYTES_MAX as u64)
    }

    /// For what would be large in memory while it waits: the place, if there is one now.
    pub fn take(&self) -> bool {
        let Some(shared) = &self.0 else {
            return true;
        };
        let mut place = shared.place();
        if place.is_none() {
            *place = shared.places.take(&shared.tenant);
        }
        place.is_some()
    }

    /// For what is large, the place.
    ///
    /// # Errors
    /// [`NoSpace`]
    pub async fn wait(&self) -> Result<(), NoSpace> {
        if self.take() {
            return Ok(());
        }
        let Some(shared) = &self.0 else {
            return Ok(());
        };
        let patience = *shared.patience();
        let place = tokio::time::timeout(patience, shared.places.wait(&shared.tenant)).await;
        let Ok(place) = place else {
            *shared.patience() = Duration::ZERO;
            return Err(NoSpace);
        };
        *shared.place() = Some(place);
        Ok(())
    }

    /// What came, on its way to who may have it for longer than its caller is there: it has the place with it, to its last piece.
    pub fn keep(self, content: Vec<u8>) -> Bytes {
        Bytes::from_owner(Kept {
            content,
            _space: self,
        })
    }

    /// An answer on its way: a large one keeps the place until all of it has left, or nobody wants it any more.
    pub(super) fn leave(&self, answer: String) -> Bytes {
        let is_large = answer.len() > SMALL_BYTES_MAX;
        // What became large with a batch's last call, or with a call whose work is done, is counted where it can be.
        if is_large {
            self.take();
        }
        let place = self.0.as_ref().and_then(|shared| shared.place().take());
        match place {
            Some(place) if is_large => Bytes::from_owner(Leaving {
                answer,
                _place: place,
            }),
            _ => answer.into(),
        }
    }
}

impl Shared {
    // A panic while one of them was held leaves a whole value.
    fn place(&self) -> MutexGuard<'_, Option<Slot>> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn patience(&self) -> MutexGuard<'_, Duration> {
        self.patience.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Kept {
    content: Vec<u8>,
    _space: Space,
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.content
    }
}

struct Leaving {
    answer: String,
    _place: Slot,
}

impl AsRef<[u8]> for Leaving {
    fn as_ref(&self) -> &[u8] {
        self.answer.as_bytes()
    }
}

impl fmt::Debug for Leaving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leaving").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_large_answer_has_a_place_until_it_has_left() {
        let places = Slots::new(1);
        let patience = Duration::from_secs(5);
        let space = || Space::new(&places, "acme", patience, Held::default());
        let large = SMALL_BYTES_MAX + 1;
        let (first, second) = (space(), space());
        first.enter(SMALL_BYTES_MAX as u64).await.unwrap();
        second.enter(large as u64).await.unwrap();
        // What has a place needs no other.
        second.enter(large as u64).await.unwrap();
        assert!(first.enter(large as u64).await.is_err());

        let answer = second.leave("x".repeat(large));
        assert_eq!(answer.len(), large);
        drop(second);
        assert!(first.enter(large as u64).await.is_err());
        // As it is sent piece by piece.
        let last = answer.slice(large - 1..);
        drop(answer);
        assert!(first.enter(large as u64).await.is_err());
        drop(last);
        first.enter(large as u64).await.unwrap();

        // A small one needs none.
        let third = space();
        let answer = first.leave("x".into());
        third.enter(large as u64).await.unwrap();
        drop(answer);
        drop(third);
        Space::unlimited().enter(u64::MAX).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn what_came_has_its_place_to_its_last_piece() {
        let places = Slots::new(1);
        let patience = Duration::from_secs(5);
        let held = Held {
            large: places.take("acme"),
            small: None,
        };
        let space = Space::new(&places, "acme", patience, held);
        let mut content = space.clone().keep(vec![7; SMALL_BYTES_MAX + 1]);
        assert_eq!(content.len(), SMALL_BYTES_MAX + 1);
        drop(space);
        let piece = content.split_to(1);
        drop(content);
        assert!(places.take("acme").is_none(), "somebody writes it still");
        drop(piece);
        assert!(places.take("acme").is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn what_an_answer_is_as_json_counts() {
        let places = Slots::new(1);
        let patience = Duration::from_secs(5);
        let space = || Space::new(&places, "acme", patience, Held::default());
        let plain = "x".repeat(SMALL_BYTES_MAX / 2);
        let escaped = "\u{1}".repeat(SMALL_BYTES_MAX / 2);
        let (first, second) = (space(), space());
        assert!(!first.lacks(&plain) && first.lacks(&escaped));
        assert!(first.take() && !first.lacks(&escaped), "it has one");
        assert!(!second.take());
        let began = tokio::time::Instant::now();
        for _ in 0..20 {
            assert!(second.wait().await.is_err());
        }
        assert_eq!(began.elapsed().as_secs(), 5, "it waits once for all calls");
        let answer = first.leave("x".repeat(SMALL_BYTES_MAX + 1));
        assert!(!second.take());
        drop(answer);
        // What is large all the same when it leaves has one if there is one.
        let answer = second.leave("x".repeat(SMALL_BYTES_MAX + 1));
        assert!(!first.take());
        drop(answer);
        assert!(first.take());
        assert!(!Space::unlimited().lacks(&plain.repeat(10)));
    }
}

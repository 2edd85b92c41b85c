//! Room for large content, in and out: there is so much of it, and tenants share it.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use super::SMALL_BYTES_MAX;
use crate::slots::{Slot, Slots};

/// The place of one body and of its answers: one for all that is large in them, taken with the first that is.
#[derive(Debug, Clone)]
pub struct Space(Option<Arc<Shared>>);

#[derive(Debug)]
struct Shared {
    places: Arc<Slots>,
    tenant: String,
    patience: Duration,
    place: Mutex<Option<Slot>>,
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

    /// With the place that the body has already.
    pub(super) fn new(
        places: &Arc<Slots>,
        tenant: &str,
        patience: Duration,
        place: Option<Slot>,
    ) -> Self {
        Space(Some(Arc::new(Shared {
            places: places.clone(),
            tenant: tenant.to_owned(),
            patience,
            place: Mutex::new(place),
        })))
    }

    /// Before so many bytes are read into an answer.
    ///
    /// # Errors
    /// [`NoSpace`]
    pub async fn enter(&self, bytes: u64) -> Result<(), NoSpace> {
        let Some(shared) = &self.0 else {
            return Ok(());
        };
        if bytes <= SMALL_BYTES_MAX as u64 || shared.place().is_some() {
            return Ok(());
        }
        let place = shared.places.wait(&shared.tenant);
        let place = tokio::time::timeout(shared.patience, place).await;
        *shared.place() = Some(place.map_err(|_| NoSpace)?);
        Ok(())
    }

    /// An answer on its way: a large one keeps the place until all of it has left, or nobody wants it any more.
    pub(super) fn leave(&self, answer: String) -> Bytes {
        let place = self.0.as_ref().and_then(|shared| shared.place().take());
        match place {
            Some(place) if answer.len() > SMALL_BYTES_MAX => Bytes::from_owner(Leaving {
                answer,
                _place: place,
            }),
            _ => answer.into(),
        }
    }
}

impl Shared {
    fn place(&self) -> std::sync::MutexGuard<'_, Option<Slot>> {
        // A panic while it was held leaves a place or none.
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
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
        let space = || Space::new(&places, "acme", patience, None);
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
}

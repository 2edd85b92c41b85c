//! Room for large content, in and out: there is so much of it, and tenants share it.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use super::SMALL_BYTES_MAX;
use super::body::{FIRST_BYTES_MAX, Held};
use crate::slots::{Slot, Slots};

/// The place of one body and of its answers: one for all that is large in them, taken with the first that is; else one of
/// the other kind for all that is more than a few bytes.
#[derive(Debug, Clone)]
pub(crate) struct Space(Option<Arc<Shared>>);

#[derive(Debug)]
struct Shared {
    places: Places,
    tenant: String,
    /// How long to wait for a place; none once that was in vain, else each call of a batch would wait anew.
    patience: Mutex<Duration>,
    /// The body's at first, for as long as anybody has the body.
    held: Mutex<Held>,
    /// Bytes of the answers before this one in its batch: all of them leave together.
    before: AtomicU64,
}

/// Those that there are.
#[derive(Debug, Clone)]
pub(super) struct Places {
    /// For what is large.
    pub(super) large: Arc<Slots>,
    /// For what has over [`FIRST_BYTES_MAX`] and is not large.
    pub(super) small: Arc<Slots>,
}

/// There is none for so much, and has been none for a while.
#[derive(Debug, thiserror::Error)]
#[error(
    "there are too many answers of over {over_bytes} bytes on their way (server.max_large_bodies): call again later, or ask for less"
)]
pub struct NoSpace {
    over_bytes: usize,
}

/// What an answer needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    Nothing,
    Small,
    Large,
}

impl Need {
    fn of(bytes: u64) -> Self {
        if bytes > SMALL_BYTES_MAX as u64 {
            Need::Large
        } else if bytes > FIRST_BYTES_MAX as u64 {
            Need::Small
        } else {
            Need::Nothing
        }
    }

    fn is_met(self, held: &Held) -> bool {
        match self {
            Need::Nothing => true,
            Need::Small => held.small.is_some() || held.large.is_some(),
            Need::Large => held.large.is_some(),
        }
    }

    fn keep(self, place: Slot, held: &mut Held) {
        match self {
            Need::Large => held.large = Some(place),
            Need::Small | Need::Nothing => held.small = Some(place),
        }
    }
}

impl Space {
    /// For who calls without a gateway around: there is always room.
    pub(crate) fn unlimited() -> Self {
        Space(None)
    }

    /// With what the body has already.
    pub(super) fn new(places: &Places, tenant: &str, patience: Duration, held: Held) -> Self {
        Space(Some(Arc::new(Shared {
            places: places.clone(),
            tenant: tenant.to_owned(),
            patience: Mutex::new(patience),
            held: Mutex::new(held),
            before: AtomicU64::new(0),
        })))
    }

    /// Before a call of a batch, the answers before which have so many bytes.
    ///
    /// # Errors
    /// [`NoSpace`], for them alone
    pub(super) async fn beside(&self, bytes: u64) -> Result<(), NoSpace> {
        if let Some(shared) = &self.0 {
            shared.before.store(bytes, Ordering::Relaxed);
        }
        self.enter(0).await
    }

    /// Before so many bytes are read into an answer, and before it is written as so many.
    ///
    /// # Errors
    /// [`NoSpace`]
    pub(crate) async fn enter(&self, bytes: u64) -> Result<(), NoSpace> {
        let Some(shared) = &self.0 else {
            return Ok(());
        };
        let need = shared.need(bytes);
        if shared.take(need) {
            return Ok(());
        }
        let patience = *shared.patience();
        let wait = shared.of(need).wait(&shared.tenant);
        let Ok(place) = tokio::time::timeout(patience, wait).await else {
            *shared.patience() = Duration::ZERO;
            return Err(match need {
                Need::Large => NoSpace {
                    over_bytes: SMALL_BYTES_MAX,
                },
                Need::Small | Need::Nothing => NoSpace {
                    over_bytes: FIRST_BYTES_MAX,
                },
            });
        };
        need.keep(place, &mut shared.held());
        Ok(())
    }

    /// For what would have so many bytes in memory while it waits: the place, if there is one now.
    pub(crate) fn take(&self, bytes: u64) -> bool {
        let take = |shared: &Arc<Shared>| shared.take(shared.need(bytes));
        self.0.as_ref().is_none_or(take)
    }

    /// How many bytes an answer may have that has not been counted, so that it is looked through `aside`: what has a place for
    /// what is large may be as large as that.
    pub(crate) fn large_bytes(&self) -> usize {
        let is_large = |shared: &Arc<Shared>| shared.held().large.is_some();
        match self.0.as_ref().is_some_and(is_large) {
            true => SMALL_BYTES_MAX + 1,
            false => 0,
        }
    }

    /// What came, on its way to who may have it for longer than its caller is there: it has the place with it, to its last piece.
    pub(crate) fn keep(self, content: Vec<u8>) -> Bytes {
        Bytes::from_owner(Kept {
            content,
            _space: self,
        })
    }

    /// An answer on its way: one that needs a place keeps it until all of it has left, or nobody wants it any more.
    pub(super) fn leave(&self, answer: String) -> Bytes {
        let need = Need::of(answer.len() as u64);
        match self.0.as_ref().and_then(|shared| shared.leave(need)) {
            Some(place) => Bytes::from_owner(Leaving {
                answer,
                _place: place,
            }),
            None => answer.into(),
        }
    }
}

impl Shared {
    fn need(&self, bytes: u64) -> Need {
        Need::of(bytes.saturating_add(self.before.load(Ordering::Relaxed)))
    }

    fn of(&self, need: Need) -> &Arc<Slots> {
        match need {
            Need::Large => &self.places.large,
            Need::Small | Need::Nothing => &self.places.small,
        }
    }

    /// Whether there is what is needed, or was one to take.
    fn take(&self, need: Need) -> bool {
        let mut held = self.held();
        if !need.is_met(&held)
            && let Some(place) = self.of(need).take(&self.tenant)
        {
            need.keep(place, &mut held);
        }
        need.is_met(&held)
    }

    /// The place that goes with an answer that is done. What grew with a batch's last call, or with a call whose work is done,
    /// is counted where it can be; a large place is given back before an answer that does not need it.
    fn leave(&self, need: Need) -> Option<Slot> {
        let mut held = self.held();
        let large = held.large.take();
        let another = || self.of(need).take(&self.tenant);
        match need {
            Need::Nothing => None,
            Need::Small => held.small.take().or_else(another).or(large),
            Need::Large => large.or_else(another),
        }
    }

    // A panic while one of them was held leaves a whole value.
    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
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
    use crate::rpc::json_bytes;

    const LARGE: u64 = SMALL_BYTES_MAX as u64 + 1;

    fn places(large: usize, small: usize) -> Places {
        Places {
            large: Slots::new(large),
            small: Slots::new(small),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_answer_has_a_place_until_it_has_left() {
        let places = places(1, 16);
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
        let places = places(1, 16);
        let patience = Duration::from_secs(5);
        let held = Held {
            large: places.large.take("acme"),
            small: None,
        };
        let space = Space::new(&places, "acme", patience, held);
        let mut content = space.clone().keep(vec![7; SMALL_BYTES_MAX + 1]);
        assert_eq!(content.len(), SMALL_BYTES_MAX + 1);
        drop(space);
        let piece = content.split_to(1);
        drop(content);
        assert!(
            places.large.take("acme").is_none(),
            "somebody writes it still"
        );
        drop(piece);
        assert!(places.large.take("acme").is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn what_an_answer_is_as_json_counts() {
        let places = places(1, 16);
        let patience = Duration::from_secs(5);
        let space = || Space::new(&places, "acme", patience, Held::default());
        let (first, second) = (space(), space());
        let bytes = |answer: &str| json_bytes(&answer, u64::MAX).unwrap();
        let plain = bytes(&"x".repeat(SMALL_BYTES_MAX / 2));
        let escaped = bytes(&"\u{1}".repeat(SMALL_BYTES_MAX / 2));
        assert!(plain < LARGE && escaped >= LARGE);
        assert!(first.take(plain) && second.take(LARGE), "no large place");
        second.leave(String::new());
        assert!(first.take(escaped));
        assert!(first.take(LARGE), "it has one");
        assert!(!second.take(LARGE));
        let began = tokio::time::Instant::now();
        for _ in 0..20 {
            assert!(second.enter(LARGE).await.is_err());
        }
        assert_eq!(began.elapsed().as_secs(), 5, "it waits once for all calls");
        let answer = first.leave("x".repeat(SMALL_BYTES_MAX + 1));
        assert!(!second.take(LARGE));
        drop(answer);
        // What is large all the same when it leaves has one if there is one.
        let answer = second.leave("x".repeat(SMALL_BYTES_MAX + 1));
        assert!(!first.take(LARGE));
        drop(answer);
        assert!(first.take(LARGE));
        assert!(Space::unlimited().take(u64::MAX));
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_not_large_has_a_place_of_its_kind() {
        let places = places(1, 1);
        let patience = Duration::from_secs(5);
        let space = || Space::new(&places, "acme", patience, Held::default());
        let (first, second) = (space(), space());
        let few = FIRST_BYTES_MAX as u64;
        first.enter(few + 1).await.unwrap();
        second.enter(few).await.unwrap();
        let none = second.enter(few + 1).await.unwrap_err();
        assert!(none.to_string().contains("over 16384 bytes"), "{none}");
        let answer = first.leave("x".repeat(FIRST_BYTES_MAX + 1));
        drop(first);
        assert!(!second.take(few + 1));
        drop(answer);
        assert!(second.take(few + 1));

        drop(second);

        // One of its body is also its answer's, to the last piece of it.
        let small = places.small.take("acme");
        let third = Space::new(&places, "acme", patience, Held { large: None, small });
        third.enter(LARGE - 1).await.unwrap();
        let answer = third.leave("x".repeat(FIRST_BYTES_MAX + 1));
        drop(third);
        assert!(!space().take(few + 1));
        drop(answer);
        // A large one of a body is not kept for an answer that does not need it.
        let large = places.large.take("acme");
        let fourth = Space::new(&places, "acme", patience, Held { large, small: None });
        let answer = fourth.leave("x".repeat(FIRST_BYTES_MAX + 1));
        assert!(space().take(LARGE) && !space().take(few + 1));
        drop(answer);
        assert!(space().take(few + 1));
    }

    #[tokio::test(start_paused = true)]
    async fn the_answers_of_a_batch_are_one() {
        let places = places(1, 16);
        let patience = Duration::from_secs(5);
        let space = Space::new(&places, "acme", patience, Held::default());
        let another = places.large.take("another");
        space.beside(LARGE / 2).await.unwrap();
        assert!(space.take(LARGE / 2) && !space.take(LARGE / 2 + 1));
        assert!(space.enter(LARGE / 2 + 1).await.is_err(), "before its call");
        assert!(space.beside(LARGE).await.is_err());
        drop(another);
        space.beside(LARGE).await.unwrap();
    }
}

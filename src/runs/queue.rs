//! How many runs go on at once, and how many wait.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{Semaphore, SemaphorePermit};

use super::Error;

/// What a caller is told to wait when the queue is full.
const RETRY_AFTER_MS: u64 = 1000;

/// A bounded number of places with a bounded queue before them, first come first served.
#[derive(Debug)]
pub(super) struct Queue {
    places: Semaphore,
    waiting: AtomicUsize,
    waiting_max: usize,
}

impl Queue {
    pub(super) fn new(places: usize, waiting_max: usize) -> Self {
        Queue {
            places: Semaphore::new(places),
            waiting: AtomicUsize::new(0),
            waiting_max,
        }
    }

    /// Waits for a place; it is given back when the permit is dropped.
    pub(super) async fn turn(&self) -> Result<SemaphorePermit<'_>, Error> {
        if let Ok(place) = self.places.try_acquire() {
            return Ok(place);
        }
        let full = Error::QueueFull {
            retry_after_ms: RETRY_AFTER_MS,
        };
        let _waiting = Waiting::enter(&self.waiting, self.waiting_max).ok_or(full)?;
        self.places.acquire().await.map_err(|_| Error::Lost)
    }
}

/// A place in the queue; leaving it, also by being dropped while waiting, frees it.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn enter(count: &'a AtomicUsize, max: usize) -> Option<Self> {
        count
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |waiting| {
                (waiting < max).then_some(waiting + 1)
            })
            .ok()?;
        Some(Waiting(count))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::{Error, Queue};
    use futures_util::FutureExt;

    #[tokio::test]
    async fn places_then_queue_then_refusal() {
        let queue = Queue::new(1, 1);
        let first = queue.turn().await.unwrap();
        let mut second = Box::pin(queue.turn());
        assert!(second.as_mut().now_or_never().is_none(), "waits");
        assert!(matches!(queue.turn().await, Err(Error::QueueFull { .. })));
        drop(second);
        let third = queue.turn();
        drop(first);
        assert!(third.await.is_ok());
    }
}

//! The instance that calls go to, which may be another one for the next call.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use skillgate_plugin_abi as abi;
use skillgate_plugin_sdk::model::{Error, Result};
use tokio::sync::watch;

use crate::counts::{CallCounts, Counted, Succession};
use crate::instance::on_event_loop;

/// A place for an instance. Every call asks it anew, and keeps what it got until it has ended; so an instance that was
/// replaced goes on with what it has begun. Cheap to clone; keeps the instance alive.
pub struct Current<I>(Arc<Cell<I>>);

/// The same, and keeps nothing alive.
pub struct WeakCurrent<I>(Weak<Cell<I>>);

struct Cell<I> {
    held: Mutex<Held<I>>,
    /// Of all that have been here.
    counts: Mutex<Succession>,
    /// For who waits: on a thread, and on the event loop.
    changed: Condvar,
    told: watch::Sender<()>,
}

enum Held<I> {
    Here(Arc<I>),
    /// There is none, and there will be one soon: calls wait.
    Changing,
    /// There is none, and why: calls are refused.
    Gone(String),
}

impl<I> Clone for Current<I> {
    fn clone(&self) -> Self {
        Current(Arc::clone(&self.0))
    }
}

impl<I> Clone for WeakCurrent<I> {
    fn clone(&self) -> Self {
        WeakCurrent(Weak::clone(&self.0))
    }
}

impl<I: std::fmt::Debug> std::fmt::Debug for Current<I> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Current").field(&self.peek()).finish()
    }
}

impl<I> std::fmt::Debug for WeakCurrent<I> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WeakCurrent")
    }
}

impl<I: Counted> Current<I> {
    /// With the first one.
    #[must_use]
    pub fn new(instance: Arc<I>) -> Self {
        let mut counts = Succession::default();
        counts.follow(&instance.counts());
        Current(Arc::new(Cell {
            held: Mutex::new(Held::Here(instance)),
            counts: Mutex::new(counts),
            changed: Condvar::new(),
            told: watch::Sender::new(()),
        }))
    }

    /// From now on calls go to `next`, those that wait too. Gives the one before.
    pub fn replace(&self, next: Arc<I>) -> Option<Arc<I>> {
        self.succession().follow(&next.counts());
        self.put(Held::Here(next))
    }
}

impl<I> Current<I> {
    /// The one for a call. Waits while there is none because it is being exchanged.
    ///
    /// # Errors
    /// `E_UNAVAILABLE` when there is none.
    pub async fn get(&self) -> Result<Arc<I>> {
        // Before the look: a change after it is not missed.
        let mut told = self.0.told.subscribe();
        loop {
            if let Some(found) = look(&self.held()) {
                return found;
            }
            // An error would say that the sender is gone: this holds it.
            drop(told.changed().await);
        }
    }

    /// The same for a thread that may wait.
    ///
    /// # Errors
    /// As [`Current::get`]; `E_WOULD_DEADLOCK` when it would have to wait on the event loop.
    pub fn get_blocking(&self) -> Result<Arc<I>> {
        let mut held = self.held();
        loop {
            if let Some(found) = look(&held) {
                return found;
            }
            if on_event_loop() {
                let message = "the plugin is being exchanged, and this thread may not wait";
                return Err(Error::new(abi::E_WOULD_DEADLOCK, message));
            }
            held = self
                .0
                .changed
                .wait(held)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The one that is there now.
    #[must_use]
    pub fn peek(&self) -> Option<Arc<I>> {
        look(&self.held())?.ok()
    }

    /// How often all that have been here were called until now, and how many of those calls go on, also in one that was
    /// exchanged and has still to end.
    #[must_use]
    pub fn counts(&self) -> CallCounts {
        self.succession().total()
    }

    /// From now on calls wait. Gives the one that they went to.
    pub fn take(&self) -> Option<Arc<I>> {
        self.put(Held::Changing)
    }

    /// From now on calls are refused, those that wait too.
    pub fn give_up(&self, why: impl Into<String>) {
        drop(self.put(Held::Gone(why.into())));
    }

    /// Why calls are refused, if they are.
    #[must_use]
    pub fn gone(&self) -> Option<String> {
        match &*self.held() {
            Held::Gone(why) => Some(why.clone()),
            Held::Here(_) | Held::Changing => None,
        }
    }

    /// For who only looks.
    #[must_use]
    pub fn downgrade(&self) -> WeakCurrent<I> {
        WeakCurrent(Arc::downgrade(&self.0))
    }

    fn put(&self, next: Held<I>) -> Option<Arc<I>> {
        let before = std::mem::replace(&mut *self.held(), next);
        self.0.changed.notify_all();
        self.0.told.send_replace(());
        match before {
            Held::Here(instance) => Some(instance),
            Held::Changing | Held::Gone(_) => None,
        }
    }

    fn succession(&self) -> MutexGuard<'_, Succession> {
        // Numbers: a panic while it was held leaves them short at worst.
        self.0.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held(&self) -> MutexGuard<'_, Held<I>> {
        // What is inside is replaced as a whole, so it is good whenever it can be seen.
        self.0.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<I> WeakCurrent<I> {
    /// `None` when nobody keeps it any more.
    #[must_use]
    pub fn upgrade(&self) -> Option<Current<I>> {
        self.0.upgrade().map(Current)
    }
}

/// `None`: wait.
fn look<I>(held: &Held<I>) -> Option<Result<Arc<I>>> {
    match held {
        Held::Here(instance) => Some(Ok(Arc::clone(instance))),
        Held::Changing => None,
        Held::Gone(why) => Some(Err(
            Error::new(abi::E_UNAVAILABLE, why.clone()).not_executed()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nth(u32, CallCounts);

    impl Counted for Nth {
        fn counts(&self) -> CallCounts {
            self.1.clone()
        }
    }

    fn nth(n: u32) -> Arc<Nth> {
        Arc::new(Nth(n, CallCounts::default()))
    }

    #[tokio::test]
    async fn calls_wait_for_the_next_one() {
        let current = Current::new(nth(1));
        assert_eq!(current.get().await.unwrap().0, 1);
        assert_eq!(current.take().map(|it| it.0), Some(1));
        assert!(current.peek().is_none() && current.take().is_none());
        let (later, blocked) = (current.clone(), current.clone());
        let later = tokio::spawn(async move { later.get().await.unwrap().0 });
        let blocked = tokio::task::spawn_blocking(move || blocked.get_blocking().unwrap().0);
        tokio::task::yield_now().await;
        assert!(!later.is_finished() && !blocked.is_finished());
        assert!(current.replace(nth(2)).is_none());
        assert_eq!((later.await.unwrap(), blocked.await.unwrap()), (2, 2));
        assert_eq!(current.replace(nth(3)).map(|it| it.0), Some(2));
    }

    #[tokio::test]
    async fn who_waited_in_vain_is_told_why() {
        let current = Current::new(nth(1));
        let weak = current.downgrade();
        drop(current.take());
        let waiting = tokio::spawn({
            let current = current.clone();
            async move { current.get().await }
        });
        tokio::task::yield_now().await;
        current.give_up("its disk is gone");
        let error = waiting.await.unwrap().map(|it| it.0).unwrap_err();
        assert_eq!(
            (error.code, error.message.as_str(), error.not_executed),
            (abi::E_UNAVAILABLE, "its disk is gone", true)
        );
        assert_eq!(
            current.get_blocking().map(|it| it.0).unwrap_err().code,
            abi::E_UNAVAILABLE
        );
        assert_eq!(current.gone().as_deref(), Some("its disk is gone"));
        drop(current);
        assert!(weak.upgrade().is_none());
    }

    #[test]
    fn each_that_has_been_here_is_counted() {
        let (first, second) = (nth(1), nth(2));
        first.1.add("run", abi::OK);
        let current = Current::new(first);
        let old = current.replace(second).unwrap();
        let going = old.1.begin("run");
        current.peek().unwrap().1.add("run", abi::OK);
        let counts = current.counts();
        assert_eq!(
            (counts.all(), counts.in_flight()),
            (vec![("run", "ok", 2)], 1)
        );
        drop(old);
        going.ended("run", abi::OK);
        current.give_up("its disk is gone");
        let counts = current.counts();
        assert_eq!(
            (counts.all(), counts.in_flight()),
            (vec![("run", "ok", 3)], 0)
        );
    }
}

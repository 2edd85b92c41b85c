//! Numbers for what is open: writers and readers of blobs, at most so many at once.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::fault::{Fault, Result};

/// `None` once it has been taken, which only a caller that breaks the contract can see.
type Slot<T> = Arc<Mutex<Option<T>>>;

/// Open things by number. A number is never used twice.
#[derive(Debug)]
pub(crate) struct Handles<T> {
    what: &'static str,
    max: usize,
    next: AtomicU64,
    open: Mutex<HashMap<u64, Slot<T>>>,
}

impl<T> Handles<T> {
    pub(crate) fn new(what: &'static str, max: usize) -> Self {
        Handles {
            what,
            max,
            next: AtomicU64::new(1),
            open: Mutex::new(HashMap::new()),
        }
    }

    /// Is there room for one more? Asked before work is done for it.
    pub(crate) fn check_room(&self) -> Result<()> {
        self.room_in(&self.lock())
    }

    pub(crate) fn insert(&self, value: T) -> Result<u64> {
        let mut open = self.lock();
        self.room_in(&open)?;
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        open.insert(handle, Arc::new(Mutex::new(Some(value))));
        Ok(handle)
    }

    /// Works with what is open as `handle`.
    pub(crate) fn with<R>(&self, handle: u64, work: impl FnOnce(&mut T) -> Result<R>) -> Result<R> {
        let slot = self.lock().get(&handle).map(Arc::clone);
        let slot = slot.ok_or(self.stale())?;
        let mut value = slot.lock().unwrap_or_else(PoisonError::into_inner);
        work(value.as_mut().ok_or(self.stale())?)
    }

    /// What was open as `handle` is the caller's now, and the number is gone.
    pub(crate) fn take(&self, handle: u64) -> Result<T> {
        let slot = self.lock().remove(&handle).ok_or(self.stale())?;
        let taken = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
        taken.ok_or(self.stale())
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    fn stale(&self) -> Fault {
        Fault::Stale(self.what)
    }

    fn room_in(&self, open: &HashMap<u64, Slot<T>>) -> Result<()> {
        if open.len() >= self.max {
            return Err(Fault::Exhausted(format!(
                "{} are open, which is the most: close some",
                self.max
            )));
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Slot<T>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

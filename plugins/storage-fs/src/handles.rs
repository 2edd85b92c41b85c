//! Numbers for what is open: writers and readers of blobs, at most so many at once, divided between the tenants.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::fault::{Fault, Result};
use crate::names::TenantDir;

/// Times the free ones that one tenant may have, as with whatever else the gateway divides between them: alone it has three
/// quarters, so that who comes next finds some.
const SHARE: usize = 3;

/// `None` once it has been taken, which only a caller that breaks the contract can see.
type Slot<T> = Arc<Mutex<Option<T>>>;

/// Open things by number. A number is never used twice.
#[derive(Debug)]
pub(crate) struct Handles<T> {
    what: &'static str,
    max: usize,
    next: AtomicU64,
    open: Mutex<Open<T>>,
}

#[derive(Debug)]
struct Open<T> {
    by_number: HashMap<u64, (TenantDir, Slot<T>)>,
    /// Of tenants that have some.
    held: HashMap<TenantDir, usize>,
}

impl<T> Handles<T> {
    pub(crate) fn new(what: &'static str, max: usize) -> Self {
        Handles {
            what,
            max,
            next: AtomicU64::new(1),
            open: Mutex::new(Open {
                by_number: HashMap::new(),
                held: HashMap::new(),
            }),
        }
    }

    /// Is there room for one more of this tenant? Asked before work is done for it.
    pub(crate) fn check_room(&self, tenant: &TenantDir) -> Result<()> {
        self.room_in(&self.lock(), tenant)
    }

    pub(crate) fn insert(&self, tenant: &TenantDir, value: T) -> Result<u64> {
        let mut open = self.lock();
        self.room_in(&open, tenant)?;
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        let slot = Arc::new(Mutex::new(Some(value)));
        open.by_number.insert(handle, (tenant.clone(), slot));
        *open.held.entry(tenant.clone()).or_default() += 1;
        Ok(handle)
    }

    /// Works with what is open as `handle`.
    pub(crate) fn with<R>(&self, handle: u64, work: impl FnOnce(&mut T) -> Result<R>) -> Result<R> {
        let slot = self.lock().by_number.get(&handle).map(|(_, s)| s.clone());
        let slot = slot.ok_or(self.stale())?;
        let mut value = slot.lock().unwrap_or_else(PoisonError::into_inner);
        work(value.as_mut().ok_or(self.stale())?)
    }

    /// What was open as `handle` is the caller's now, and the number is gone.
    pub(crate) fn take(&self, handle: u64) -> Result<T> {
        let slot = self.lock().remove(handle).ok_or(self.stale())?;
        let taken = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
        taken.ok_or(self.stale())
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().by_number.len()
    }

    fn stale(&self) -> Fault {
        Fault::Stale(self.what)
    }

    fn room_in(&self, open: &Open<T>, tenant: &TenantDir) -> Result<()> {
        let free = self.max.saturating_sub(open.by_number.len());
        let held = open.held.get(tenant).copied().unwrap_or_default();
        if held < free.saturating_mul(SHARE) {
            return Ok(());
        }
        Err(Fault::Exhausted(if free == 0 {
            format!("{} are open, which is the most: close some", self.max)
        } else {
            format!(
                "this tenant has {held} open of {}, which is its share: close some",
                self.max
            )
        }))
    }

    fn lock(&self) -> MutexGuard<'_, Open<T>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Open<T> {
    fn remove(&mut self, handle: u64) -> Option<Slot<T>> {
        let (tenant, slot) = self.by_number.remove(&handle)?;
        if let Entry::Occupied(mut held) = self.held.entry(tenant) {
            *held.get_mut() -= 1;
            if *held.get() == 0 {
                held.remove();
            }
        }
        Some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_leaves_some_to_the_others() {
        let handles = Handles::new("closed", 8);
        let [a, b] = ["a", "b"].map(|name| TenantDir::new(name).unwrap());
        let full = |tenant: &TenantDir| match handles.insert(tenant, ()) {
            Err(Fault::Exhausted(why)) => why,
            other => panic!("{other:?}"),
        };
        let of_a: Vec<u64> = (0..6).map(|_| handles.insert(&a, ()).unwrap()).collect();
        assert!(handles.check_room(&a).is_err());
        assert!(full(&a).starts_with("this tenant has 6 open of 8"));
        let of_b = [(); 2].map(|()| handles.insert(&b, ()).unwrap());
        assert!(full(&b).starts_with("8 are open"));
        // What is closed is counted no more: for the tenant, and for all.
        handles.take(of_b[0]).unwrap();
        assert!(matches!(handles.take(of_b[0]), Err(Fault::Stale(_))));
        handles.check_room(&b).unwrap();
        for handle in of_a {
            handles.take(handle).unwrap();
        }
        handles.take(of_b[1]).unwrap();
        assert_eq!(handles.len(), 0);
        assert!(handles.lock().held.is_empty());
    }
}

//! The calls of one instance that have not ended, divided between the tenants that they are for: one that floods a store, or whose
//! part of it hangs, leaves some to whoever comes. The rule is that of the gateway's `slots`: a tenant that has [`SHARE`] times as
//! many as are free gets no more. So a tenant alone has three quarters of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Times the free ones that one tenant may have.
const SHARE: usize = 3;

/// So many calls.
pub(crate) struct Shares(Mutex<State>);

struct State {
    free: usize,
    /// Of tenants that have some.
    held: HashMap<Arc<str>, usize>,
}

/// One of them, until it is dropped.
pub(crate) struct Share {
    shares: Arc<Shares>,
    tenant: Arc<str>,
}

impl Shares {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Shares(Mutex::new(State {
            free: max,
            held: HashMap::new(),
        })))
    }

    /// Nothing that can panic runs under this lock.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One for this tenant. An error: it has so many, and gets no more.
    pub(crate) fn take(self: &Arc<Self>, tenant: &str) -> Result<Share, usize> {
        let tenant: Arc<str> = tenant.into();
        let mut state = self.state();
        let held = state.held.get(&tenant).copied().unwrap_or_default();
        if held >= state.free.saturating_mul(SHARE) {
            return Err(held);
        }
        state.free -= 1;
        state.held.insert(Arc::clone(&tenant), held + 1);
        drop(state);
        let shares = Arc::clone(self);
        Ok(Share { shares, tenant })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut state = self.shares.state();
        state.free += 1;
        if let Some(held) = state.held.get_mut(&self.tenant) {
            *held -= 1;
            if *held == 0 {
                state.held.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_comes_finds_some_and_nothing_is_remembered() {
        let shares = Shares::new(64);
        let all =
            |tenant| -> Vec<Share> { std::iter::from_fn(|| shares.take(tenant).ok()).collect() };
        let floods = ["a", "b", "c", "d"].map(all);
        assert_eq!(floods.each_ref().map(Vec::len), [48, 12, 3, 1]);
        assert_eq!(shares.take("a").err(), Some(48));
        assert_eq!(shares.take("e").err(), Some(0), "there is none at all");
        drop(floods);
        assert!(shares.take("e").is_ok());
        let state = shares.state();
        assert_eq!((state.free, state.held.len()), (64, 0));
    }
}

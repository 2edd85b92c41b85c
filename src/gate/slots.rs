//! `gate.max_tunnels`, divided between tenants as they come: one that holds [`SHARE`] times as many as are free gets no
//! more until some are given back (the dynamic thresholds of Choudhury and Hahne 1998, for shared buffers). So a tenant
//! alone has three quarters of them, and whoever comes finds some, without a number for each tenant to be set.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Times the free ones that one tenant may hold.
const SHARE: usize = 3;

/// The connections to hosts that there may be.
#[derive(Debug)]
pub(super) struct Slots(Mutex<State>);

#[derive(Debug)]
struct State {
    free: usize,
    /// Of tenants that hold some.
    held: HashMap<Arc<str>, usize>,
}

/// One of them, until it is dropped.
#[derive(Debug)]
pub(super) struct Slot {
    slots: Arc<Slots>,
    tenant: Arc<str>,
}

impl Slots {
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Slots(Mutex::new(State {
            free: max,
            held: HashMap::new(),
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that holds it can panic between two changes that belong together.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One for this tenant; none when there is none, or none for it.
    pub(super) fn take(self: &Arc<Self>, tenant: &str) -> Option<Slot> {
        let mut state = self.state();
        let held = state.held.get(tenant).copied().unwrap_or_default();
        if held >= state.free.saturating_mul(SHARE) {
            return None;
        }
        let tenant: Arc<str> = tenant.into();
        state.free -= 1;
        *state.held.entry(tenant.clone()).or_default() += 1;
        Some(Slot {
            slots: self.clone(),
            tenant,
        })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut state = self.slots.state();
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

    fn all(slots: &Arc<Slots>, tenant: &str) -> Vec<Slot> {
        std::iter::from_fn(|| slots.take(tenant)).collect()
    }

    #[test]
    fn whoever_comes_finds_some_and_all_are_given_back() {
        let slots = Slots::new(1024);
        let floods: Vec<_> = ["a", "b", "c", "d"]
            .map(|tenant| all(&slots, tenant))
            .into();
        let counts: Vec<usize> = floods.iter().map(Vec::len).collect();
        assert_eq!(counts, [768, 192, 48, 12]);
        assert!(slots.take("e").is_some() && slots.take("a").is_none());
        drop(floods);
        let state = slots.state();
        assert_eq!(
            (state.free, state.held.len()),
            (1024, 0),
            "nothing is remembered"
        );
    }

    #[test]
    fn few_are_given_too() {
        for (max, alone) in [(1, 1), (2, 2), (3, 3), (4, 3), (8, 6)] {
            assert_eq!(all(&Slots::new(max), "a").len(), alone, "{max}");
        }
    }
}

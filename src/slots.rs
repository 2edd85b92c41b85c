//! So many of something, divided between tenants as they come (`gate.max_tunnels`, `server.max_large_bodies`,
//! `blobs.max_transfers`; of `server.max_connections` an address is the tenant): a tenant that holds [`SHARE`] times as many
//! as are free gets no more until some are given back (the dynamic thresholds of Choudhury and Hahne 1998, for shared
//! buffers). So a tenant alone has three quarters of them, and whoever comes finds some, without a number for each tenant to
//! be set.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// Times the free ones that one tenant may hold.
const SHARE: usize = 3;

type Tenant = Arc<str>;

/// So many of something, and who waits for one.
#[derive(Debug)]
pub(crate) struct Slots(Mutex<State>);

#[derive(Debug)]
struct State {
    free: usize,
    /// Of tenants that hold some.
    held: HashMap<Tenant, usize>,
    /// Those who wait, by tenant in the order in which they came. Nobody in here could have one now.
    waiting: HashMap<Tenant, VecDeque<oneshot::Sender<Slot>>>,
    /// The tenants in `waiting`, each once: whose turn is next.
    turns: VecDeque<Tenant>,
}

/// One of them, until it is dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    slots: Arc<Slots>,
    tenant: Tenant,
}

impl Slots {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Slots(Mutex::new(State {
            free: max,
            held: HashMap::new(),
            waiting: HashMap::new(),
            turns: VecDeque::new(),
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that holds it can panic between two changes that belong together.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn slot(self: &Arc<Self>, tenant: Tenant) -> Slot {
        Slot {
            slots: self.clone(),
            tenant,
        }
    }

    /// One for this tenant; none when there is none, or none for it.
    pub(crate) fn take(self: &Arc<Self>, tenant: &str) -> Option<Slot> {
        let tenant: Tenant = tenant.into();
        self.state()
            .occupy(&tenant)
            .then(|| self.slot(tenant.clone()))
    }

    /// How many nobody has.
    #[cfg(test)]
    pub(crate) fn free(&self) -> usize {
        self.state().free
    }

    /// One for this tenant, as soon as there is one for it. Dropping the future leaves the queue.
    pub(crate) async fn wait(self: &Arc<Self>, tenant: &str) -> Slot {
        let tenant: Tenant = tenant.into();
        loop {
            let called = {
                let mut state = self.state();
                if state.occupy(&tenant) {
                    return self.slot(tenant);
                }
                state.queue(&tenant)
            };
            // Nobody but a call ends the wait; should there be another end, this one queues again.
            if let Ok(slot) = called.await {
                return slot;
            }
        }
    }
}

impl State {
    fn occupy(&mut self, tenant: &Tenant) -> bool {
        let held = self.held.get(tenant).copied().unwrap_or_default();
        if held >= self.free.saturating_mul(SHARE) {
            return false;
        }
        self.free -= 1;
        *self.held.entry(tenant.clone()).or_default() += 1;
        true
    }

    fn vacate(&mut self, tenant: &Tenant) {
        self.free += 1;
        if let Some(held) = self.held.get_mut(tenant) {
            *held -= 1;
            if *held == 0 {
                self.held.remove(tenant);
            }
        }
    }

    fn queue(&mut self, tenant: &Tenant) -> oneshot::Receiver<Slot> {
        let (call, called) = oneshot::channel();
        let queue = self.waiting.entry(tenant.clone()).or_default();
        if queue.is_empty() {
            self.turns.push_back(tenant.clone());
        }
        // Whoever has left is no more than a place in memory, and no longer than until the next one comes.
        queue.retain(|call| !call.is_closed());
        queue.push_back(call);
        called
    }

    /// The next one that can have one, which is counted as taken.
    fn next(&mut self) -> Option<(Tenant, oneshot::Sender<Slot>)> {
        for _ in 0..self.turns.len() {
            let tenant = self.turns.pop_front()?;
            let mut queue = self.waiting.remove(&tenant)?;
            queue.retain(|call| !call.is_closed());
            let call = if !queue.is_empty() && self.occupy(&tenant) {
                queue.pop_front()
            } else {
                None
            };
            if !queue.is_empty() {
                self.waiting.insert(tenant.clone(), queue);
                self.turns.push_back(tenant.clone());
            }
            if let Some(call) = call {
                return Some((tenant, call));
            }
        }
        None
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut state = self.slots.state();
        state.vacate(&self.tenant);
        let called: Vec<_> = std::iter::from_fn(|| state.next()).collect();
        drop(state);
        for (tenant, call) in called {
            // Who has left in this moment gives it back at once: what cannot be sent is dropped here.
            drop(call.send(self.slots.slot(tenant)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use futures_util::FutureExt as _;
    use rand::rngs::StdRng;
    use rand::{Rng as _, SeedableRng as _};

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

    type Waits<'a> = Pin<Box<dyn Future<Output = Slot> + 'a>>;

    /// Asks for one, and has to wait.
    fn waits<'a>(slots: &'a Arc<Slots>, tenant: &'a str) -> Waits<'a> {
        let mut wait: Waits<'a> = Box::pin(slots.wait(tenant));
        assert!(wait.as_mut().now_or_never().is_none(), "{tenant} got one");
        wait
    }

    /// Whose turn it was.
    fn called<'a>(waiting: &mut Vec<(&'a str, Waits<'_>)>) -> Option<(&'a str, Slot)> {
        (0..waiting.len()).find_map(|at| {
            let slot = waiting[at].1.as_mut().now_or_never()?;
            Some((waiting.remove(at).0, slot))
        })
    }

    #[test]
    fn a_flood_waits_and_whoever_comes_does_not() {
        let slots = Slots::new(8);
        let mut held = all(&slots, "a");
        let mut waiting: Vec<_> = ["a1", "a2"].map(|name| (name, waits(&slots, "a"))).into();
        assert_eq!(held.len(), 6);
        let b = slots.wait("b").now_or_never().expect("at once");
        assert!(called(&mut waiting).is_none());
        // What a gives back is for those of a that wait, in their order.
        held.pop();
        let (first, _slot) = called(&mut waiting).unwrap();
        assert_eq!(first, "a1");
        drop(b);
        assert!(called(&mut waiting).is_none(), "it is kept for others");
        held.pop();
        assert_eq!(called(&mut waiting).unwrap().0, "a2");
    }

    #[test]
    fn tenants_come_in_turn() {
        let slots = Slots::new(1);
        let first = slots.take("a").unwrap();
        let names = ["a1", "a2", "a3", "b1", "b2", "c1"];
        let mut waiting: Vec<_> = names.map(|name| (name, waits(&slots, &name[..1]))).into();
        let mut order = Vec::new();
        drop(first);
        while let Some((name, slot)) = called(&mut waiting) {
            order.push(name);
            drop(slot);
        }
        assert_eq!(order, ["a1", "b1", "c1", "a2", "b2", "a3"]);
        let state = slots.state();
        assert_eq!(
            (
                state.free,
                state.held.len(),
                state.waiting.len(),
                state.turns.len()
            ),
            (1, 0, 0, 0),
            "nothing is remembered"
        );
    }

    #[test]
    fn who_has_left_is_passed_over() {
        let slots = Slots::new(1);
        let first = slots.take("a").unwrap();
        let gone: Vec<_> = (0..100).map(|_| waits(&slots, "b")).collect();
        drop(gone);
        let mut there = vec![("b", waits(&slots, "b")), ("c", waits(&slots, "c"))];
        assert_eq!(slots.state().waiting["b"].len(), 1, "nor remembered");
        // One leaves after it was called, without having looked.
        drop(first);
        drop(there.remove(0));
        assert_eq!(called(&mut there).unwrap().0, "c");
        assert_eq!(slots.state().free, 1);
    }

    /// Nobody has more than the rule gives, and nobody waits for what it could have.
    #[test]
    fn any_order_of_coming_and_going() {
        let mut random = StdRng::seed_from_u64(1998);
        for _ in 0..50 {
            let max = random.random_range(1..12);
            let slots = Slots::new(max);
            let (mut held, mut waiting) = (Vec::<(&str, Slot)>::new(), Vec::new());
            for _ in 0..100 {
                let could = |held: &[(&str, Slot)], tenant: &str| {
                    let own = held.iter().filter(|(of, _)| *of == tenant).count();
                    own < SHARE * (max - held.len())
                };
                let tenant = ["a", "b", "c"][random.random_range(0..3)];
                match random.random_range(0..6) {
                    0 => {
                        let slot = slots.take(tenant);
                        assert_eq!(slot.is_some(), could(&held, tenant));
                        held.extend(slot.map(|slot| (tenant, slot)));
                    }
                    1..=3 => waiting.push((tenant, Box::pin(slots.wait(tenant)) as Waits<'_>)),
                    4 if !waiting.is_empty() => {
                        drop(waiting.remove(random.random_range(0..waiting.len())));
                    }
                    _ if !held.is_empty() => {
                        drop(held.swap_remove(random.random_range(0..held.len())));
                    }
                    _ => {}
                }
                while let Some(called) = called(&mut waiting) {
                    held.push(called);
                }
                assert_eq!(slots.free(), max - held.len());
                let mut waiting = waiting.iter();
                assert!(waiting.all(|(tenant, _)| !could(&held, tenant)));
            }
            drop((held, waiting));
            let state = slots.state();
            assert_eq!((state.free, state.held.len()), (max, 0));
        }
    }

    #[test]
    fn few_are_given_too() {
        for (max, alone) in [(1, 1), (2, 2), (3, 3), (4, 3), (8, 6)] {
            assert_eq!(all(&Slots::new(max), "a").len(), alone, "{max}");
        }
    }
}

//! How many runs go on at once, how many wait, and whose turn it is.
//!
//! Places go to tenants in turn, and within a tenant to its subjects in turn, each first come first served: a tenant
//! with one run waits behind one run of each other tenant, however many those have. The queue is bounded. One tenant
//! alone may fill it; when it is full and another comes with fewer waiting, the newest of the longest is refused in its
//! place, and likewise among the subjects of a tenant.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::Error;

/// What a caller is told to wait when the queue is full.
const RETRY_AFTER_MS: u64 = 1000;

/// There is no place in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Full {
    /// It had one, until somebody with a better claim came.
    pub(super) waited: bool,
}

impl From<Full> for Error {
    fn from(_: Full) -> Self {
        Error::QueueFull {
            retry_after_ms: RETRY_AFTER_MS,
        }
    }
}

/// Who waits.
type Name = Arc<str>;
/// Those of one subject that wait, in the order in which they came.
type Tickets = BTreeMap<u64, oneshot::Sender<Place>>;

/// A bounded number of places with a bounded queue before them.
#[derive(Debug)]
pub(super) struct Queue {
    waiting_max: usize,
    /// Places that one tenant may have at the same time.
    tenant_max: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    free: usize,
    running: usize,
    waiting: usize,
    next_ticket: u64,
    /// Those that run or wait.
    tenants: BTreeMap<Name, Tenant>,
    /// Those that wait, each once.
    turns: VecDeque<Name>,
}

#[derive(Debug, Default)]
struct Tenant {
    running: usize,
    waiting: usize,
    subjects: BTreeMap<Name, Tickets>,
    /// Those that wait, each once.
    turns: VecDeque<Name>,
}

impl Queue {
    /// `tenant_max` 0: a tenant may have all places.
    pub(super) fn new(places: usize, tenant_max: usize, waiting_max: usize) -> Arc<Self> {
        let state = State {
            free: places,
            ..State::default()
        };
        Arc::new(Queue {
            waiting_max,
            tenant_max: if tenant_max == 0 { places } else { tenant_max },
            state: Mutex::new(state),
        })
    }

    /// Waits for a place; it is given back when it is dropped. Dropping the future leaves the queue.
    pub(super) async fn turn(self: &Arc<Self>, tenant: &str, subject: &str) -> Result<Place, Full> {
        let mut ticket = match self.enter(tenant.into(), subject.into()) {
            Entered::Place(place) => return Ok(place),
            Entered::Queue(ticket) => ticket,
            Entered::Full => return Err(Full { waited: false }),
        };
        // The sender is dropped when somebody else has a better claim to the place in the queue.
        (&mut ticket.place).await.map_err(|_| Full { waited: true })
    }

    /// Runs that go on, and runs that wait.
    pub(super) fn load(&self) -> (usize, usize) {
        let state = self.state();
        (state.running, state.waiting)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that holds it can panic between two changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(self: &Arc<Self>, tenant: Name, subject: Name) -> Entered {
        let mut state = self.state();
        // Whoever waits does so because there is no place, or none for its tenant: a place for this one is its own.
        if state.free > 0 && state.running_of(&tenant) < self.tenant_max {
            state.occupy(&tenant);
            return Entered::Place(self.place(tenant));
        }
        if state.waiting >= self.waiting_max && !state.make_room(&tenant, &subject) {
            return Entered::Full;
        }
        let (sender, receiver) = oneshot::channel();
        let number = state.queue(&tenant, &subject, sender);
        Entered::Queue(Ticket {
            queue: self.clone(),
            tenant,
            subject,
            number,
            place: receiver,
        })
    }

    fn place(self: &Arc<Self>, tenant: Name) -> Place {
        Place {
            queue: self.clone(),
            tenant,
        }
    }

    /// Gives a place back, and on to those whose turn it is.
    fn release(self: &Arc<Self>, tenant: &Name) {
        let mut state = self.state();
        state.vacate(tenant);
        let mut called = Vec::new();
        while let Some(next) = state.next(self.tenant_max) {
            called.push(next);
        }
        drop(state);
        for (tenant, sender) in called {
            // Whoever has gone in this moment gives it back at once: the place that cannot be sent is dropped here.
            drop(sender.send(self.place(tenant)));
        }
    }
}

enum Entered {
    Place(Place),
    Queue(Ticket),
    Full,
}

/// A place among those that run.
#[derive(Debug)]
pub(super) struct Place {
    queue: Arc<Queue>,
    tenant: Name,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.queue.release(&self.tenant);
    }
}

/// A place in the queue; whoever drops it has left.
struct Ticket {
    queue: Arc<Queue>,
    tenant: Name,
    subject: Name,
    number: u64,
    place: oneshot::Receiver<Place>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.queue
            .state()
            .leave(&self.tenant, &self.subject, self.number);
    }
}

// === the order ===

impl State {
    fn running_of(&self, tenant: &Name) -> usize {
        self.tenants.get(tenant).map_or(0, |tenant| tenant.running)
    }

    fn occupy(&mut self, name: &Name) {
        self.free -= 1;
        self.running += 1;
        self.tenants.entry(name.clone()).or_default().running += 1;
    }

    fn vacate(&mut self, name: &Name) {
        self.free += 1;
        self.running -= 1;
        if let Some(tenant) = self.tenants.get_mut(name) {
            tenant.running -= 1;
        }
        self.forget_if_idle(name);
    }

    fn forget_if_idle(&mut self, name: &Name) {
        let idle = |tenant: &Tenant| tenant.running == 0 && tenant.waiting == 0;
        if self.tenants.get(name).is_some_and(idle) {
            self.tenants.remove(name);
        }
    }

    fn queue(&mut self, name: &Name, subject: &Name, sender: oneshot::Sender<Place>) -> u64 {
        let number = self.next_ticket;
        self.next_ticket += 1;
        self.waiting += 1;
        let tenant = self.tenants.entry(name.clone()).or_default();
        if tenant.waiting == 0 {
            self.turns.push_back(name.clone());
        }
        tenant.waiting += 1;
        let tickets = tenant.subjects.entry(subject.clone()).or_default();
        if tickets.is_empty() {
            tenant.turns.push_back(subject.clone());
        }
        tickets.insert(number, sender);
        number
    }

    /// Takes a ticket out; `None` when it is not there any more.
    fn leave(
        &mut self,
        name: &Name,
        subject: &Name,
        number: u64,
    ) -> Option<oneshot::Sender<Place>> {
        let tenant = self.tenants.get_mut(name)?;
        let tickets = tenant.subjects.get_mut(subject)?;
        let sender = tickets.remove(&number)?;
        self.waiting -= 1;
        tenant.waiting -= 1;
        if tickets.is_empty() {
            tenant.subjects.remove(subject);
            tenant.turns.retain(|other| other != subject);
        }
        if tenant.waiting == 0 {
            self.turns.retain(|other| other != name);
        }
        self.forget_if_idle(name);
        Some(sender)
    }

    /// Whose turn it is, if there is a place for it; it has it from here on.
    fn next(&mut self, tenant_max: usize) -> Option<(Name, oneshot::Sender<Place>)> {
        if self.free == 0 {
            return None;
        }
        let may = |name: &Name| self.running_of(name) < tenant_max;
        let at = self.turns.iter().position(may)?;
        let name = self.turns.remove(at)?;
        let tenant = self.tenants.get_mut(&name)?;
        let subject = tenant.turns.pop_front()?;
        let number = *tenant.subjects.get(&subject)?.keys().next()?;
        // To the end of the line; leaving takes them out of it again when they have no more.
        tenant.turns.push_back(subject.clone());
        self.turns.push_back(name.clone());
        self.occupy(&name);
        let sender = self.leave(&name, &subject, number)?;
        Some((name, sender))
    }

    /// Refuses the newest of those who wait for more than their share, if the newcomer's share is smaller.
    fn make_room(&mut self, name: &Name, subject: &Name) -> bool {
        let mine = self.tenants.get(name).map_or(0, |tenant| tenant.waiting);
        let longest = self.tenants.iter().max_by_key(|(_, tenant)| tenant.waiting);
        let from = match longest {
            Some((longest, tenant)) if tenant.waiting > mine + 1 => longest.clone(),
            _ => name.clone(),
        };
        let Some(tenant) = self.tenants.get(&from) else {
            return false;
        };
        let Some((victim, tickets)) = tenant
            .subjects
            .iter()
            .max_by_key(|(_, tickets)| tickets.len())
        else {
            return false;
        };
        let own = tenant.subjects.get(subject).map_or(0, Tickets::len);
        if from == *name && tickets.len() <= own + 1 {
            return false;
        }
        let (victim, newest) = (victim.clone(), tickets.keys().next_back().copied());
        newest.is_some_and(|newest| self.leave(&from, &victim, newest).is_some())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::pin::Pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::FutureExt;

    use super::{Full, Place, Queue};

    type Waiter = Pin<Box<dyn Future<Output = Result<Place, Full>> + Send>>;

    /// Waits until it is polled again; `None` when it was served or refused at once.
    fn wait(queue: &Arc<Queue>, tenant: &'static str, subject: &'static str) -> Option<Waiter> {
        let queue = queue.clone();
        let mut waiter: Waiter = Box::pin(async move { queue.turn(tenant, subject).await });
        waiter.as_mut().now_or_never().is_none().then_some(waiter)
    }

    fn now(queue: &Arc<Queue>, tenant: &str, subject: &str) -> Result<Place, Full> {
        queue.turn(tenant, subject).now_or_never().expect("at once")
    }

    fn served(waiter: &mut Waiter) -> Option<Place> {
        let outcome = waiter.as_mut().now_or_never()?;
        Some(outcome.expect("a place"))
    }

    /// After it had waited.
    fn refused(waiter: &mut Waiter) -> bool {
        let outcome = waiter.as_mut().now_or_never();
        outcome.is_some_and(|outcome| outcome.is_err_and(|full| full.waited))
    }

    #[test]
    fn places_then_queue_then_refusal() {
        let queue = Queue::new(1, 0, 1);
        let first = now(&queue, "a", "x").unwrap();
        let second = wait(&queue, "a", "x").unwrap();
        let at_once = now(&queue, "a", "x").map(drop);
        assert_eq!(at_once, Err(Full { waited: false }));
        assert_eq!(queue.load(), (1, 1));
        drop(second);
        assert_eq!(queue.load(), (1, 0));
        let mut third = wait(&queue, "a", "x").unwrap();
        drop(first);
        assert_eq!(queue.load(), (1, 0), "it has its place before it looks");
        drop(served(&mut third).unwrap());
        assert_eq!(queue.load(), (0, 0));
        assert!(queue.state().tenants.is_empty(), "nothing is remembered");
    }

    #[test]
    fn no_queue_at_all() {
        let queue = Queue::new(1, 0, 0);
        let _first = now(&queue, "a", "x").unwrap();
        assert!(now(&queue, "b", "y").is_err());
    }

    #[test]
    fn one_tenants_flood_is_one_turn_for_another() {
        let queue = Queue::new(4, 0, 256);
        let mut running: VecDeque<Place> = (0..4).map(|_| now(&queue, "a", "x").unwrap()).collect();
        let mut flood: Vec<Waiter> = (0..256).map(|_| wait(&queue, "a", "x").unwrap()).collect();
        assert_eq!(queue.load(), (4, 256));
        // The queue is full: the last of the flood makes room.
        let mut single = wait(&queue, "b", "y").unwrap();
        assert!(refused(flood.last_mut().unwrap()));
        flood.pop();
        assert_eq!(queue.load(), (4, 256));
        let mut ended = 0;
        let place = loop {
            running.pop_front();
            ended += 1;
            if let Some(place) = served(&mut single) {
                break place;
            }
            running.extend(flood.iter_mut().find_map(served));
        };
        println!("the single run had its place after {ended} of the flood had ended");
        assert!(ended <= 2, "{ended}");
        drop(place);
    }

    #[test]
    fn turns_go_round_tenants_and_their_subjects() {
        let queue = Queue::new(1, 0, 100);
        let mut running = Some(now(&queue, "a", "x").unwrap());
        let arrivals = [
            ("a", "x"),
            ("a", "x"),
            ("a", "x"),
            ("a", "y"),
            ("b", "z"),
            ("b", "z"),
            ("c", "w"),
        ];
        let mut waiting: Vec<(usize, Waiter)> = arrivals
            .iter()
            .enumerate()
            .map(|(at, (tenant, subject))| (at, wait(&queue, tenant, subject).unwrap()))
            .collect();
        let mut order = Vec::new();
        while running.take().is_some() {
            let next = waiting
                .iter_mut()
                .find_map(|(at, waiter)| Some((*at, served(waiter)?)));
            if let Some((at, place)) = next {
                waiting.retain(|(other, _)| *other != at);
                order.push(at);
                running = Some(place);
            }
        }
        assert_eq!(order, [0, 4, 6, 3, 5, 1, 2]);
    }

    #[test]
    fn a_full_queue_is_shared() {
        let queue = Queue::new(1, 0, 6);
        let _running = now(&queue, "a", "x").unwrap();
        let mut a: Vec<Waiter> = (0..6).map(|_| wait(&queue, "a", "x").unwrap()).collect();
        assert!(now(&queue, "a", "x").is_err(), "its own share is all");
        // Within the tenant: another subject has a claim to half of it.
        let mut other: Vec<Waiter> = (0..3).map(|_| wait(&queue, "a", "o").unwrap()).collect();
        assert!(now(&queue, "a", "o").is_err());
        assert_eq!(
            a.iter_mut()
                .filter_map(|w| refused(w).then_some(()))
                .count(),
            3
        );
        assert!(now(&queue, "a", "x").is_err());
        // Another tenant has a claim to half of all.
        let b: Vec<Waiter> = (0..3).map(|_| wait(&queue, "b", "z").unwrap()).collect();
        assert!(now(&queue, "b", "z").is_err());
        assert_eq!(queue.load(), (1, 6));
        let pushed = other
            .iter_mut()
            .filter_map(|w| refused(w).then_some(()))
            .count();
        assert_eq!(pushed, 1, "the longest of the tenant each time");
        drop(b);
        assert_eq!(queue.load(), (1, 3));
    }

    #[test]
    fn who_has_as_much_as_the_others_takes_nothing_of_theirs() {
        let queue = Queue::new(1, 0, 2);
        let _running = now(&queue, "a", "x").unwrap();
        let (_a, _b) = (
            wait(&queue, "a", "x").unwrap(),
            wait(&queue, "b", "y").unwrap(),
        );
        for (tenant, subject) in [("a", "x"), ("b", "y"), ("a", "other"), ("b", "other")] {
            assert!(now(&queue, tenant, subject).is_err(), "{tenant} {subject}");
        }
        assert_eq!(queue.load(), (1, 2));
    }

    #[test]
    fn a_tenants_share_is_its_subjects_together() {
        let queue = Queue::new(1, 0, 2);
        let _running = now(&queue, "a", "x").unwrap();
        let mut a = ["x", "y"].map(|subject| wait(&queue, "a", subject).unwrap());
        let _b =
            wait(&queue, "b", "z").expect("one of the two made room, each of which had one alone");
        assert_eq!(
            a.iter_mut()
                .filter_map(|w| refused(w).then_some(()))
                .count(),
            1
        );
    }

    #[test]
    fn a_tenant_has_no_more_places_than_its_own() {
        let queue = Queue::new(4, 2, 10);
        let first = now(&queue, "a", "x").unwrap();
        let _second = now(&queue, "a", "x").unwrap();
        let mut third = wait(&queue, "a", "x").unwrap();
        let _b = now(&queue, "b", "y").unwrap();
        let c = now(&queue, "c", "z").unwrap();
        let mut b2 = wait(&queue, "b", "y").unwrap();
        drop(c);
        assert!(served(&mut third).is_none(), "both of its places are taken");
        let b2 = served(&mut b2).unwrap();
        drop(b2);
        drop(first);
        assert!(served(&mut third).is_some());
    }

    /// Counted down however it ends.
    struct One<'a>(&'a AtomicUsize);

    impl Drop for One<'_> {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn cancelled_waiters_leave_no_ghosts() {
        const PLACES: usize = 3;
        let queue = Queue::new(PLACES, 0, 50);
        let at_once = Arc::new(AtomicUsize::new(0));
        let tasks: Vec<_> = (0..2000_u64)
            .map(|number| {
                let (queue, at_once) = (queue.clone(), at_once.clone());
                tokio::spawn(async move {
                    let tenant = ["a", "b", "c", "d"][number as usize % 4];
                    let work = async {
                        let _place = queue.turn(tenant, "x").await?;
                        assert!(at_once.fetch_add(1, Ordering::SeqCst) < PLACES);
                        let _one = One(&at_once);
                        tokio::task::yield_now().await;
                        Ok::<(), Full>(())
                    };
                    // Some give up, in every state there is.
                    if number % 3 == 0 {
                        let mut work = Box::pin(work);
                        let ended = work.as_mut().now_or_never().is_some();
                        tokio::task::yield_now().await;
                        if !ended && number % 2 == 0 {
                            let _whatever = work.await;
                        }
                    } else {
                        let _whatever = work.await;
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(queue.load(), (0, 0));
        let state = queue.state();
        assert_eq!(state.free, PLACES);
        assert!(state.tenants.is_empty() && state.turns.is_empty());
    }
}

//! The calls of one instance that have not ended, and the threads that they are made on, divided between the tenants that they are
//! for: one that floods a store, or whose part of it hangs, leaves some to whoever comes. The rule is that of the gateway's
//! `slots`: a tenant that has [`SHARE`] times as many as are free gets no more. So a tenant alone has three quarters of them.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Times the free ones that one tenant may have.
const SHARE: usize = 3;

/// So many calls, or threads.
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
        let mut state = self.state();
        let held = state.held.get(tenant).copied().unwrap_or_default();
        if held >= state.free.saturating_mul(SHARE) {
            return Err(held);
        }
        let tenant: Arc<str> = tenant.into();
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

/// What such a thread does.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// A job that panics, which is a fault of the host's own (the plugin's panics end where it is called), is told of by the panic's
/// hook. It must not take its thread with it: nobody would ask for those who wait for that.
pub(crate) fn run_to_end(job: Job) {
    drop(catch_unwind(AssertUnwindSafe(job)));
}

/// What waits for one of so many threads. A tenant that has its share of them is passed over. Nothing waits for which a thread is
/// free, so that only a thread that has ended one asks for the next.
pub(crate) struct Waiting<J> {
    shares: Arc<Shares>,
    /// Of each tenant in the order in which they came, numbered over all of them.
    jobs: HashMap<Arc<str>, VecDeque<(u64, J)>>,
    came: u64,
}

impl<J> Waiting<J> {
    pub(crate) fn new(threads_max: usize) -> Self {
        Waiting {
            shares: Shares::new(threads_max),
            jobs: HashMap::new(),
            came: 0,
        }
    }

    /// Gives it back where a thread may begin with it; else it waits.
    pub(crate) fn enter(&mut self, tenant: &str, job: J) -> Option<(Share, J)> {
        match self.shares.take(tenant) {
            Ok(share) => Some((share, job)),
            Err(_) => {
                self.wait(tenant, job);
                None
            }
        }
    }

    pub(crate) fn wait(&mut self, tenant: &str, job: J) {
        self.came += 1;
        let jobs = self.jobs.entry(tenant.into()).or_default();
        jobs.push_back((self.came, job));
    }

    /// For the thread that has ended one: first what is of a tenant that has none at all. Then of its own: a thread that went to
    /// another instead could leave one free that its own may have, and nobody would ask for it.
    pub(crate) fn next(&mut self, ended: Share) -> Option<(Share, J)> {
        let own = Arc::clone(&ended.tenant);
        drop(ended);
        let state = self.shares.state();
        let may_have = state.free.saturating_mul(SHARE);
        let of = |(tenant, jobs): (&Arc<str>, &VecDeque<(u64, J)>)| {
            let held = state.held.get(tenant).copied().unwrap_or_default();
            let first = jobs.front().filter(|_| held < may_have)?.0;
            let is_others = held > 0 && *tenant != own;
            Some((held > 0, is_others, first, Arc::clone(tenant)))
        };
        let (.., tenant) = self.jobs.iter().filter_map(of).min()?;
        drop(state);
        let share = self.shares.take(&tenant).ok()?;
        let jobs = self.jobs.get_mut(&tenant)?;
        let (_, job) = jobs.pop_front()?;
        if jobs.is_empty() {
            self.jobs.remove(&tenant);
        }
        Some((share, job))
    }

    /// The first of these.
    pub(crate) fn remove(&mut self, is_it: impl Fn(&J) -> bool) -> Option<J> {
        let found = self.jobs.iter().find_map(|(tenant, jobs)| {
            let at = jobs.iter().position(|(_, job)| is_it(job))?;
            Some((Arc::clone(tenant), at))
        });
        let (tenant, at) = found?;
        let jobs = self.jobs.get_mut(&tenant)?;
        let removed = jobs.remove(at).map(|(_, job)| job);
        if jobs.is_empty() {
            self.jobs.remove(&tenant);
        }
        removed
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.jobs.values().map(VecDeque::len).sum()
    }

    /// To be dropped where nobody waits for it.
    pub(crate) fn remove_all(&mut self) -> impl Sized + use<J> {
        std::mem::take(&mut self.jobs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn began(waiting: &mut Waiting<String>, tenant: &str, jobs: usize) -> Vec<Share> {
        let enter = |job| waiting.enter(tenant, format!("{tenant}{job}"));
        (0..jobs)
            .filter_map(enter)
            .map(|(share, _)| share)
            .collect()
    }

    #[test]
    fn who_has_his_share_of_the_threads_is_passed_over() {
        let mut waiting = Waiting::new(8);
        let mut loud = began(&mut waiting, "loud", 10);
        let mut quiet = began(&mut waiting, "quiet", 3);
        let mut late = began(&mut waiting, "late", 1);
        assert_eq!((loud.len(), quiet.len(), late.len()), (6, 2, 0));
        // Whoever has none comes first, also before those who came before.
        let (share, next) = waiting.next(quiet.pop().unwrap()).unwrap();
        assert_eq!(next, "late0");
        late.push(share);
        // One free is for one of three at most.
        assert!(
            waiting
                .next(loud.pop().unwrap())
                .is_some_and(|(share, next)| {
                    quiet.push(share);
                    next == "quiet2"
                })
        );
        assert!(waiting.next(loud.pop().unwrap()).is_none());
        let (share, next) = waiting.next(loud.pop().unwrap()).unwrap();
        assert_eq!(next, "loud6");
        loud.push(share);
        assert_eq!(waiting.len(), 3);
        assert_eq!(
            waiting.remove(|job| job.ends_with('8')).as_deref(),
            Some("loud8")
        );
        drop((late, quiet));
        let (_loud7, next) = waiting.next(loud.pop().unwrap()).unwrap();
        assert_eq!(next, "loud7");
        drop(waiting.remove_all());
        assert!(waiting.next(loud.pop().unwrap()).is_none());
    }

    /// Neither a tenant's name nor whose thread has ended decides it.
    #[test]
    fn of_those_who_have_none_the_first_that_came_comes_first() {
        for late in ["a", "b"] {
            let mut waiting = Waiting::new(1);
            let ended = began(&mut waiting, "a", 1).pop().unwrap();
            for tenant in ["z", late] {
                assert!(began(&mut waiting, tenant, 1).is_empty());
            }
            let (ended, first) = waiting.next(ended).unwrap();
            assert_eq!(first, "z0");
            let (_, second) = waiting.next(ended).unwrap();
            assert_eq!(second, format!("{late}0"));
        }
    }

    /// Whatever ends and whatever comes: a job that may be begun does not wait.
    #[test]
    fn nothing_waits_for_which_a_thread_is_free() {
        let mut waiting = Waiting::new(16);
        let mut running: Vec<Share> = Vec::new();
        let mut random = 1_u32;
        for _ in 0..20_000 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (of, ends) = ((random >> 8) as usize, random >> 31 == 0);
            if ends && !running.is_empty() {
                let ended = running.swap_remove(of % running.len());
                running.extend(waiting.next(ended).map(|(share, _)| share));
            } else if waiting.len() < 64 {
                // Of four tenants, the first most of all.
                let tenant = ["a", "a", "a", "b", "b", "c", "d"][of % 7];
                running.extend(began(&mut waiting, tenant, 1));
            }
            for tenant in waiting.jobs.keys() {
                let free = waiting.shares.take(tenant);
                assert!(free.is_err(), "{tenant} waits, and may have one");
            }
        }
        assert!(waiting.len() > 0 && running.len() > 12);
    }

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

//! Threads for the calls into one instance that may wait. The gateway has so many for all that waits in it: an instance whose calls
//! do not come back, a store on a disk that hangs for one, must not have those of everything else too. Nor may the calls of one
//! tenant have all of an instance's: his part alone may be what hangs.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use skillgate_plugin_abi::Op;

use crate::shares::{Job, Share, Waiting, run_to_end};

/// The blocking threads that one instance has, and what waits for one of them.
pub(crate) struct Lane {
    state: Mutex<State>,
}

struct State {
    threads: usize,
    /// Each with the call that it makes, if it makes one.
    waiting: Waiting<(Option<Op>, Job)>,
}

/// What a thread begins with, for whoever comes first.
fn take<T>(first: &Mutex<Option<T>>) -> Option<T> {
    first.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// One of its threads.
struct Thread {
    lane: Arc<Lane>,
    /// Of the tenant whose job it does.
    share: Option<Share>,
    ended: bool,
}

/// Does what blocks and is no call, on a thread of its own: to ask the runtime for one panics where the system gives none, and
/// who keeps a plugin's process alive, or makes instances anew, would do so no more.
pub(crate) async fn on_a_thread<T: Send + 'static>(
    name: &str,
    job: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let (tell, done) = oneshot::channel();
    let thread = std::thread::Builder::new().name(name.into());
    thread.spawn(move || drop(tell.send(job())))?;
    done.await
        .map_err(|_| io::Error::other(format!("the thread {name} has panicked")))
}

impl Lane {
    pub(crate) fn new(threads_max: usize) -> Arc<Self> {
        let state = State {
            threads: 0,
            waiting: Waiting::new(threads_max),
        };
        Arc::new(Lane {
            state: Mutex::new(state),
        })
    }

    /// No job runs, and none is dropped, under this lock.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops the job of a call that still waits; false where none does.
    pub(crate) fn give_up(&self, call: Op) -> bool {
        let mut state = self.state();
        let forsaken = state.waiting.remove(|(of, _)| *of == Some(call));
        drop(state);
        forsaken.is_some()
    }

    /// Does it on a blocking thread of the runtime, in the order in which they come, as long as its tenant leaves threads to
    /// others. Dropped instead when the runtime ends, or with the call that it is of ([`Lane::give_up`]); a call's also where the
    /// system has no thread for it.
    pub(crate) fn run(
        self: &Arc<Self>,
        runtime: &Handle,
        tenant: &str,
        of: Option<Op>,
        job: impl FnOnce() + Send + 'static,
    ) {
        let job: Job = Box::new(job);
        let mut state = self.state();
        let Some((share, (_, job))) = state.waiting.enter(tenant, (of, job)) else {
            return;
        };
        state.threads += 1;
        drop(state);
        let thread = Thread {
            lane: Arc::clone(self),
            share: Some(share),
            ended: false,
        };
        let first = Arc::new(Mutex::new(Some((job, thread))));
        let taken = Arc::clone(&first);
        let work = move || {
            let Some((job, mut thread)) = take(&taken) else {
                return;
            };
            run_to_end(job);
            while let Some(job) = thread.next() {
                run_to_end(job);
            }
        };
        // Without a thread of its own, and of the system's, the runtime panics, and does it when it has one again. That may be
        // too late for a call, whose caller waits; to let go of something it is not.
        let asked = catch_unwind(AssertUnwindSafe(|| drop(runtime.spawn_blocking(work))));
        if asked.is_err() && of.is_some() {
            drop(take(&first));
        }
    }
}

impl Thread {
    fn next(&mut self) -> Option<Job> {
        let mut state = self.lane.state();
        match self
            .share
            .take()
            .and_then(|ended| state.waiting.next(ended))
        {
            Some((share, (_, job))) => {
                self.share = Some(share);
                Some(job)
            }
            None => {
                state.threads -= 1;
                self.ended = true;
                None
            }
        }
    }
}

impl Drop for Thread {
    /// It never began, since the runtime ends, or has no thread: nobody waits for a thread that there is not. Its share goes
    /// under the same lock: whoever comes between the two would wait for it, and nobody would ask for him.
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let mut state = self.lane.state();
        self.share = None;
        state.threads -= 1;
        let is_last = state.threads == 0;
        let forsaken = is_last.then(|| state.waiting.remove_all());
        drop(state);
        drop(forsaken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn jobs_have_their_turn_or_end_unheard() {
        let runtime = tokio::runtime::Builder::new_multi_thread().build().unwrap();
        let (lane, handle) = (Lane::new(1), runtime.handle().clone());
        let (done, order) = mpsc::channel();
        let say = |number| {
            let done = done.clone();
            lane.run(&handle, "t", None, move || done.send(number).unwrap());
        };
        let (go, gone) = mpsc::channel::<()>();
        lane.run(&handle, "t", None, move || gone.recv().unwrap());
        (0..3).for_each(say);
        go.send(()).unwrap();
        assert_eq!(order.iter().take(3).collect::<Vec<_>>(), [0, 1, 2]);
        while lane.state().threads > 0 {
            std::thread::yield_now();
        }
        // One that panics takes nobody's turn.
        let (go, gone) = mpsc::channel::<()>();
        lane.run(&handle, "t", None, move || gone.recv().unwrap());
        (3..6).for_each(say);
        drop(go);
        assert_eq!(order.iter().take(3).collect::<Vec<_>>(), [3, 4, 5]);
        while lane.state().threads > 0 {
            std::thread::yield_now();
        }
        // Where the runtime has ended no thread begins, and nothing waits for one, however many come at once.
        runtime.shutdown_background();
        for _ in 0..500 {
            std::thread::scope(|scope| {
                scope.spawn(|| (6..9).for_each(say));
                scope.spawn(|| (6..9).for_each(say));
            });
            let state = lane.state();
            assert_eq!((state.threads, state.waiting.len()), (0, 0));
        }
        drop(done);
        assert_eq!(order.iter().next(), None);
    }

    #[test]
    fn what_waits_leaves_with_its_call() {
        let runtime = tokio::runtime::Builder::new_multi_thread().build().unwrap();
        let (lane, handle) = (Lane::new(1), runtime.handle().clone());
        let (done, order) = mpsc::channel();
        let (go, gone) = mpsc::channel::<()>();
        lane.run(&handle, "t", Some(1), move || gone.recv().unwrap());
        for number in 2..4 {
            let done = done.clone();
            lane.run(&handle, "t", Some(number), move || {
                done.send(number).unwrap()
            });
        }
        assert!(!lane.give_up(1), "it has begun");
        assert!(lane.give_up(2) && !lane.give_up(2));
        assert_eq!(lane.state().waiting.len(), 1);
        go.send(()).unwrap();
        drop(done);
        assert_eq!(order.iter().collect::<Vec<_>>(), [3]);
    }
}

//! The threads of a plugin's process.
//!
//! Whoever reads a call makes it: there is no other thread to wake, which is most of what a call costs. Before it makes one
//! that may block, another thread takes over reading, so somebody always reads: cancellations and replies come through.
//! When all threads are busy, the last one reads on and calls wait in a queue. So do those of a tenant that has its share of the
//! threads: his part of a store alone may be what hangs.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use skillgate_plugin_sdk::wire::Malformed;

use super::super::frame::{Frame, Incoming};
use super::harden;
use super::line::Line;
use super::wait::Wait;
use crate::shares::{self, Share, Waiting, run_to_end};
use crate::wire::Read;

/// Threads that wait for something to do; others end.
const IDLE_MAX: usize = 4;

/// What a frame asks for that whoever reads does not do itself.
pub(super) enum Task {
    Do(Job),
    /// Nobody wants this call any more. If its job still waits, that is dropped, which ends the call; else this is done.
    GiveUp(u64, shares::Job),
}

/// Something to do for a tenant.
pub(super) struct Job {
    pub(super) tenant: String,
    /// That it makes, if it makes one.
    pub(super) call: Option<u64>,
    pub(super) work: shares::Job,
}

type Handle = Box<dyn Fn(Frame) -> Read<Option<Task>> + Send + Sync>;

pub(super) struct Pool {
    line: Arc<Line>,
    reading: Mutex<(Incoming, Wait)>,
    handle: Handle,
    threads_max: usize,
    state: Mutex<State>,
}

struct State {
    threads: usize,
    /// Of these, threads that read or wait for their turn to.
    idle: usize,
    /// Each with the call that it makes, if it makes one.
    queue: Waiting<(Option<u64>, shares::Job)>,
}

impl Pool {
    /// Serves from now on, until the process ends. `shared`: between tenants; else whoever sends the calls has divided them. An
    /// error: there are no threads for it.
    pub(super) fn begin(
        line: Arc<Line>,
        incoming: Incoming,
        threads_max: usize,
        shared: bool,
        handle: impl Fn(Frame) -> Read<Option<Task>> + Send + Sync + 'static,
    ) -> io::Result<()> {
        // One that reads and one that works.
        let threads_max = threads_max.max(2);
        let state = State {
            threads: 0,
            idle: 0,
            queue: Waiting::new(if shared { threads_max - 1 } else { usize::MAX }),
        };
        let pool = Arc::new(Pool {
            line,
            reading: Mutex::new((incoming, Wait::default())),
            handle: Box::new(handle),
            threads_max,
            state: Mutex::new(state),
        });
        // These first: later there may be no room for one that works, and nobody would ask for what waits for it.
        for _ in 0..2 {
            pool.spawn(&mut pool.state())?;
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a thread, idle.
    fn spawn(self: &Arc<Self>, state: &mut State) -> io::Result<()> {
        let pool = Arc::clone(self);
        let thread = std::thread::Builder::new().name("plugin-call".into());
        thread.spawn(move || pool.work())?;
        state.threads += 1;
        state.idle += 1;
        Ok(())
    }

    /// Is there, or can there be, a thread that goes on reading when another takes something to do?
    fn has_another(self: &Arc<Self>, state: &mut State) -> bool {
        state.idle > 1 || state.threads < self.threads_max && self.spawn(state).is_ok()
    }

    /// One thread: it is counted as idle.
    fn work(self: Arc<Self>) {
        loop {
            let (mut share, mut work) = self.read();
            loop {
                run_to_end(work);
                let mut state = self.state();
                if let Some(next) = state.queue.next(share) {
                    drop(state);
                    (share, (_, work)) = next;
                    continue;
                }
                if state.idle >= IDLE_MAX {
                    state.threads -= 1;
                    return;
                }
                state.idle += 1;
                break;
            }
        }
    }

    /// Waits for its turn and reads until there is something to do, which is then this thread's: it is not idle any more.
    fn read(self: &Arc<Self>) -> (Share, shares::Job) {
        let mut reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        let (incoming, wait) = &mut *reading;
        loop {
            let frame = match super::next(self.line.socket(), incoming, wait) {
                Ok(frame) => frame,
                // The gateway is gone, or speaks another language: nothing can be said to it any more.
                Err(_) => harden::end(1),
            };
            let job = match (self.handle)(frame) {
                Ok(Some(Task::Do(job))) => job,
                Ok(Some(Task::GiveUp(call, else_tell))) => {
                    self.give_up(call, else_tell);
                    continue;
                }
                Ok(None) => continue,
                Err(Malformed(_)) => harden::end(1),
            };
            let Job { tenant, call, work } = job;
            let mut state = self.state();
            if self.has_another(&mut state) {
                if let Some((share, (_, work))) = state.queue.enter(&tenant, (call, work)) {
                    state.idle -= 1;
                    return (share, work);
                }
            } else {
                state.queue.wait(&tenant, (call, work));
            }
            // It is begun by a thread that is busy now, which asks the queue before it is idle again: all others are busy, or
            // its tenant has so many of them.
        }
    }

    fn give_up(&self, call: u64, else_tell: shares::Job) {
        let waited = self.state().queue.remove(|(of, _)| *of == Some(call));
        // Not under the lock: its end is an answer, which is sent.
        match waited {
            Some(job) => drop(job),
            None => else_tell(),
        }
    }
}

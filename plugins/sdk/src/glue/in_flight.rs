//! What an instance is doing, and whether it takes more: the same for every plugin, so that none has to count by itself.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use skillgate_plugin_abi as abi;

use crate::model::{Error, Result};

/// The calls of one instance that are under way.
#[derive(Default)]
pub(super) struct InFlight {
    state: Mutex<State>,
    /// The last call has ended, or somebody has to look again.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    calls: usize,
    draining: bool,
    /// Counts [`InFlight::look_again`].
    looks: u64,
    /// Drains that wait, for the tests.
    waiting: usize,
}

/// One call. It is in flight until this is dropped, which is after its completion.
pub(super) struct Call<'a>(&'a InFlight);

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.calls -= 1;
        if state.calls == 0 {
            self.0.changed.notify_all();
        }
    }
}

impl InFlight {
    /// No code of the plugin or of the host runs under this lock.
    fn lock(&self) -> MutexGuard<'_, State> {
        // A number and a flag are whole whatever panics.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call that begins something: refused from the first drain on. The look and the count are one step, so a drain
    /// either waits for the call or has refused it.
    pub(super) fn begin(&self) -> Result<Call<'_>> {
        let mut state = self.lock();
        if state.draining {
            let error = Error::new(abi::E_UNAVAILABLE, "it takes no new work: it is draining");
            return Err(error.not_executed());
        }
        state.calls += 1;
        Ok(Call(self))
    }

    /// A call that goes on with what is open already: a drain waits for it, and refuses it never.
    pub(super) fn resume(&self) -> Call<'_> {
        self.lock().calls += 1;
        Call(self)
    }

    /// From now on nothing begins. Returns when no call is in flight, or as soon as `cancelled` says that nobody waits
    /// for that any more (`E_CANCELLED`); then, too, nothing begins.
    pub(super) fn drain(&self, cancelled: impl Fn() -> bool) -> Result<()> {
        let mut state = self.lock();
        state.draining = true;
        loop {
            let looks = state.looks;
            // The host's code: asked without the lock. Who cancels after this answer calls look_again() after that,
            // and the number says so.
            drop(state);
            if cancelled() {
                return Err(Error::new(abi::E_CANCELLED, "the drain was cancelled"));
            }
            state = self.lock();
            state.waiting += 1;
            while state.calls > 0 && state.looks == looks {
                let woken = self.changed.wait(state);
                state = woken.unwrap_or_else(PoisonError::into_inner);
            }
            state.waiting -= 1;
            if state.calls == 0 {
                return Ok(());
            }
        }
    }

    /// Lets a drain ask again whether it is cancelled.
    pub(super) fn look_again(&self) {
        self.lock().looks += 1;
        self.changed.notify_all();
    }

    #[cfg(test)]
    pub(super) fn drains_waiting(&self) -> usize {
        self.lock().waiting
    }
}

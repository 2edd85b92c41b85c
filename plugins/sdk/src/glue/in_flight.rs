//! What an instance is doing, and whether it takes more: the same for every plugin, so that none has to count by itself.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use skillgate_plugin_abi as abi;

use crate::model::{Error, Result};

/// The calls of one instance that are under way.
#[derive(Default)]
pub(super) struct InFlight(Mutex<State>);

#[derive(Default)]
struct State {
    calls: usize,
    draining: bool,
    /// Drains that wait for the last call, by their op.
    drains: Vec<(abi::Op, Drained)>,
}

/// What is done when a drain ends.
pub(super) type Drained = Box<dyn FnOnce(Result<()>) + Send>;

/// One call. It is in flight until this is dropped, which is after its completion.
pub(super) struct Call(Arc<InFlight>);

impl Drop for Call {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.calls -= 1;
        let drains = if state.calls == 0 {
            std::mem::take(&mut state.drains)
        } else {
            Vec::new()
        };
        drop(state);
        for (_, drained) in drains {
            drained(Ok(()));
        }
    }
}

impl InFlight {
    /// No code of the plugin or of the host runs under this lock.
    fn lock(&self) -> MutexGuard<'_, State> {
        // Numbers, a flag and a list are whole whatever panics.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call that begins something: refused from the first drain on. The look and the count are one step, so a drain
    /// either waits for the call or has refused it.
    pub(super) fn begin(self: &Arc<Self>) -> Result<Call> {
        let mut state = self.lock();
        if state.draining {
            let error = Error::new(abi::E_UNAVAILABLE, "it takes no new work: it is draining");
            return Err(error.not_executed());
        }
        state.calls += 1;
        Ok(Call(Arc::clone(self)))
    }

    /// A call that goes on with what is open already: a drain waits for it, and refuses it never.
    pub(super) fn resume(self: &Arc<Self>) -> Call {
        self.lock().calls += 1;
        Call(Arc::clone(self))
    }

    /// From now on nothing begins.
    pub(super) fn close(&self) {
        self.lock().draining = true;
    }

    /// Does something when no call is in flight: at once, or on whichever thread ends the last one. A drain that is
    /// cancelled before that ends with `E_CANCELLED`; `cancelled` says whether it has been already.
    pub(super) fn when_idle(
        &self,
        drain: abi::Op,
        cancelled: impl FnOnce() -> bool,
        then: Drained,
    ) {
        let mut state = self.lock();
        if state.calls == 0 {
            drop(state);
            return then(Ok(()));
        }
        state.drains.push((drain, then));
        drop(state);
        // Asked when the drain can be found here: who cancels after this answer finds it.
        if cancelled() {
            self.cancel(drain);
        }
    }

    /// Ends a drain that nobody waits for any more. Nothing begins all the same.
    pub(super) fn cancel(&self, drain: abi::Op) {
        let mut state = self.lock();
        let place = state.drains.iter().position(|(op, _)| *op == drain);
        let drained = place.map(|place| state.drains.swap_remove(place));
        drop(state);
        if let Some((_, drained)) = drained {
            drained(Err(Error::new(abi::E_CANCELLED, "the drain was cancelled")));
        }
    }

    #[cfg(test)]
    pub(super) fn drains_waiting(&self) -> usize {
        self.lock().drains.len()
    }
}

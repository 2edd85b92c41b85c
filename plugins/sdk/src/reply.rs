//! The answer to one call of a plugin that does not wait while it is called.

use std::cell::Cell;
use std::sync::Arc;
use std::thread::panicking;

use skillgate_plugin_abi as abi;

use crate::glue::panics;
use crate::model::{Error, Result};

/// How one call is answered: once, now or later, from any thread.
///
/// The types see to "once": an answer takes the reply. One that is dropped without an answer ends its call with
/// `E_INTERNAL`, or with `E_PANIC` when a panic has dropped it, so that nobody waits for ever. Only [`std::mem::forget`] and
/// the like can lose it: then the call ends never, the host cancels it in vain at its deadline, and a drain waits for it.
///
/// Answer without holding a lock that calls of the plugin take: what the SDK does then may call it (`blob_abort` of a
/// writer that the host did not take).
#[must_use = "dropped without an answer, it ends the call with an error"]
pub struct Reply<T: 'static> {
    /// None: answered.
    end: Option<End<T>>,
    op: abi::Op,
    origin: Arc<dyn Origin>,
    /// `origin` has a function of this op's to call.
    watched: Cell<bool>,
}

pub(crate) type End<T> = Box<dyn FnOnce(Result<T>) + Send>;
pub(crate) type OnCancel = Box<dyn FnOnce() + Send>;

/// Who knows whether an op is wanted.
pub(crate) trait Origin: Send + Sync {
    /// Does nobody want it any more?
    fn cancelled(&self, op: abi::Op) -> bool;
    /// Calls `then` when nobody wants it any more, at once if that is so already. In place of an earlier one.
    fn on_cancel(&self, op: abi::Op, then: OnCancel);
    /// The op has ended: what was to be called is not called any more.
    fn forget(&self, op: abi::Op);
}

impl<T> Reply<T> {
    pub(crate) fn new(
        op: abi::Op,
        origin: Arc<dyn Origin>,
        end: impl FnOnce(Result<T>) + Send + 'static,
    ) -> Self {
        Reply {
            end: Some(Box::new(end)),
            op,
            origin,
            watched: Cell::new(false),
        }
    }

    /// The answer.
    pub fn ok(self, answer: T) {
        self.finish(Ok(answer));
    }

    /// Why there is none.
    pub fn fail(self, error: Error) {
        self.finish(Err(error));
    }

    /// The answer, or why there is none.
    pub fn finish(mut self, result: Result<T>) {
        if let Some(end) = self.take() {
            end(result);
        }
    }

    /// Whether nobody wants this answer any more. The call is still owed one, soon: `E_CANCELLED`, or what there is.
    #[must_use]
    pub fn cancelled(&self) -> bool {
        self.origin.cancelled(self.op)
    }

    /// Calls `then` once when nobody wants this answer any more, from any thread, and at once if that is so already. It must
    /// not wait: it wakes or marks whoever answers. A second one takes the place of the first. Once the call is answered
    /// it is not called any more, unless it is being called just then.
    pub fn on_cancel(&self, then: impl FnOnce() + Send + 'static) {
        self.watched.set(true);
        self.origin.on_cancel(self.op, Box::new(then));
    }

    fn take(&mut self) -> Option<End<T>> {
        let end = self.end.take();
        if end.is_some() && self.watched.get() {
            self.origin.forget(self.op);
        }
        end
    }
}

impl<T: 'static> Drop for Reply<T> {
    fn drop(&mut self) {
        let end = match self.take() {
            Some(end) => end,
            None => return,
        };
        if panicking() {
            panics::unwound(Box::new(move |error| end(Err(error))));
        } else {
            let bug =
                "the plugin dropped this call's reply without an answer: a mistake of the plugin's";
            end(Err(Error::new(abi::E_INTERNAL, bug)));
        }
    }
}

impl<T> std::fmt::Debug for Reply<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reply").field("op", &self.op).finish()
    }
}

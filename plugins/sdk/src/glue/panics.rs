//! Nothing unwinds into C: where code of the plugin is called, its panics end here.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{catch_unwind, AssertUnwindSafe};

use skillgate_plugin_abi as abi;

use crate::model::{Error, Result};

/// Ends the op of a reply that a panic has dropped.
pub(crate) type Unwound = Box<dyn FnOnce(Error) + Send>;

thread_local! {
    /// The replies that were dropped by a panic in the guarded code that this thread is in. None: it is in none.
    static UNWOUND: RefCell<Option<Vec<Unwound>>> = const { RefCell::new(None) };
}

/// A panic has dropped a reply. Where it is caught its text is known, so that is where the op ends; on a thread of the
/// plugin's own it ends here.
pub(crate) fn unwound(end: Unwound) {
    let mut end = Some(end);
    // No such place any more: the thread is ending.
    let _ = UNWOUND.try_with(|unwound| {
        if let Some(replies) = unwound.borrow_mut().as_mut() {
            replies.extend(end.take());
        }
    });
    if let Some(end) = end {
        let text =
            "the plugin panicked on a thread of its own, which had this call; the log has the text";
        end(Error::new(abi::E_PANIC, text));
    }
}

/// Puts another list in the place of this thread's. None where the thread is ending and has no such place any more.
fn replace(list: Option<Vec<Unwound>>) -> Option<Vec<Unwound>> {
    UNWOUND
        .try_with(|unwound| unwound.replace(list))
        .unwrap_or(None)
}

/// Runs code of the plugin; a panic becomes an error with its text, also of the ops whose replies it has dropped.
pub(super) fn guard<R>(f: impl FnOnce() -> Result<R>) -> Result<R> {
    let outer = replace(Some(Vec::new()));
    let caught = catch_unwind(AssertUnwindSafe(f));
    let replies = replace(outer);
    let (outcome, text) = match caught {
        Ok(outcome) => (outcome, "the plugin panicked, and caught it".to_owned()),
        Err(panic) => {
            let text = format!("the plugin panicked: {}", panic_text(&*panic));
            // A payload may panic when it is dropped: then it is not dropped.
            std::mem::forget(panic);
            (Err(Error::new(abi::E_PANIC, text.clone())), text)
        }
    };
    for end in replies.unwrap_or_default() {
        end(Error::new(abi::E_PANIC, text.clone()));
    }
    outcome
}

/// A call without an op: a panic has nowhere to go but the log, where the hook has put it.
pub(super) fn quietly(f: impl FnOnce()) {
    drop(guard(|| {
        f();
        Ok(())
    }));
}

pub(super) fn panic_text(panic: &(dyn Any + Send)) -> &str {
    if let Some(text) = panic.downcast_ref::<&str>() {
        text
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text
    } else {
        "(no text)"
    }
}

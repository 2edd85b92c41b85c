//! The host as an instance calls it.

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::{Arc, PoisonError, RwLock};

use skillgate_plugin_abi as abi;

use super::convert::Complete;
use super::instances;
use super::panics::guard;
use crate::host::Service;
use crate::model::{Error, Result};
use crate::wire::{self, Malformed};
use crate::{Host, Level};

/// The host as one instance has it. Shut before destroy() returns, so that what outlives the instance is not a call into
/// the host.
pub(crate) struct HostTable {
    table: abi::Host,
    open: RwLock<bool>,
}

// SAFETY: the contract: every function of the table is thread-safe; the pointers are valid until destroy() has returned,
// and `open` says so.
unsafe impl Send for HostTable {}
// SAFETY: as above.
unsafe impl Sync for HostTable {}

thread_local! {
    /// The op that this thread works for, and the host whose op it is, by the table's address.
    static WORKS_FOR: Cell<(usize, abi::Op)> = const { Cell::new((0, 0)) };
}

impl HostTable {
    /// # Safety
    /// `host` is the table given to create().
    pub(super) unsafe fn new(host: *const abi::Host) -> Result<Arc<Self>, Malformed> {
        // SAFETY: the caller's promise.
        let table = unsafe { wire::prefix(host, "host") }?;
        if table.abi_major != abi::ABI_MAJOR {
            return Err(Malformed(format!(
                "host: major {} of the contract",
                table.abi_major
            )));
        }
        if table.complete.is_none() {
            return Err(Malformed("host: complete is null".into()));
        }
        let host = Arc::new(HostTable {
            table,
            open: RwLock::new(true),
        });
        instances().push(Arc::downgrade(&host));
        Ok(host)
    }

    pub(super) fn shut(&self) {
        *self.open.write().unwrap_or_else(PoisonError::into_inner) = false;
    }

    pub(super) fn facade(self: &Arc<Self>) -> Host {
        Host {
            service: Arc::<Self>::clone(self),
        }
    }

    /// Would the host keep such a record? It must be open.
    fn keeps(&self, level: Level, target: &str) -> bool {
        match (self.table.log, self.table.log_enabled) {
            // SAFETY: open: the table is valid; the target is readable during the call.
            (Some(_), Some(enabled)) => unsafe {
                enabled(self.table.ctx, level as u32, abi::Str::of(target)) != 0
            },
            (log, _) => log.is_some(),
        }
    }

    /// Asks the host for something. None: the instance is destroyed, and with it the table. Destroy waits for what is asked,
    /// so that nobody asks on.
    pub(super) fn ask<R>(&self, f: impl FnOnce(&abi::Host) -> R) -> Option<R> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.then(|| f(&self.table))
    }

    fn complete(&self, op: abi::Op, completion: &abi::Completion) -> i32 {
        let code = self.ask(|host| match host.complete {
            // SAFETY: open: the table is valid; the completion is readable during the call.
            Some(complete) => unsafe { complete(host.ctx, op, completion) },
            None => abi::E_UNIMPLEMENTED,
        });
        code.unwrap_or(abi::E_STALE)
    }

    /// Ends an op with a result struct of the contract, or null for "none".
    fn answer(&self, op: abi::Op, result: *const c_void) -> i32 {
        self.complete(
            op,
            &abi::Completion {
                struct_size: wire::size_of_u32::<abi::Completion>(),
                status: abi::OK,
                error: std::ptr::null(),
                result,
            },
        )
    }

    pub(super) fn fail(&self, op: abi::Op, error: &Error) {
        let code = error_code(error);
        let error = c_error(error, code);
        // Not taken: the op has ended already, and nobody is left to be told.
        self.complete(
            op,
            &abi::Completion {
                struct_size: wire::size_of_u32::<abi::Completion>(),
                status: code,
                error: std::ptr::addr_of!(error),
                result: std::ptr::null(),
            },
        );
    }

    /// Ends an op: `encode` lends the answer as a C struct. Always completed.
    pub(super) fn end<A>(
        &self,
        op: abi::Op,
        result: Result<A>,
        encode: impl FnOnce(A, Complete<'_>),
    ) {
        let mut completed = false;
        let mut complete = |result: *const c_void| {
            completed = true;
            self.answer(op, result)
        };
        let ended = result.and_then(|answer| {
            guard(|| {
                encode(answer, &mut complete);
                Ok(())
            })
        });
        match ended {
            Err(error) if !completed => self.fail(op, &error),
            _ => {}
        }
    }

    /// Calls the plugin for an op: what it logs on this thread meanwhile is about that. `f` does not unwind.
    pub(super) fn about(&self, op: abi::Op, f: impl FnOnce()) {
        let outer = WORKS_FOR.with(|it| it.replace((self.address(), op)));
        f();
        WORKS_FOR.with(|it| it.set(outer));
    }

    fn address(&self) -> usize {
        self as *const Self as usize
    }

    /// The op of this host that this thread works for, or 0.
    fn op_here(&self) -> abi::Op {
        // Threads log to their end, when what they had of their own is gone.
        let (host, op) = WORKS_FOR.try_with(Cell::get).unwrap_or_default();
        if host == self.address() {
            op
        } else {
            0
        }
    }

    /// Does the host no longer want this op? A host that is gone wants nothing.
    pub(super) fn cancelled(&self, op: abi::Op) -> bool {
        let cancelled = self.ask(|host| match host.op_cancelled {
            // SAFETY: open: the table is valid.
            Some(cancelled) => unsafe { cancelled(host.ctx, op) == 1 },
            None => false,
        });
        cancelled.unwrap_or(true)
    }
}

impl Service for HostTable {
    fn log(&self, level: Level, target: &str, message: &str, fields: &[(&str, &str)]) -> bool {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        if !*open {
            return false;
        }
        let log = match self.table.log {
            Some(log) if self.keeps(level, target) => log,
            _ => return true,
        };
        let fields: Vec<_> = fields
            .iter()
            .map(|(k, v)| abi::Kv {
                key: abi::Str::of(k),
                value: abi::Str::of(v),
            })
            .collect();
        let record = abi::LogRecord {
            struct_size: wire::size_of_u32::<abi::LogRecord>(),
            level: level as u32,
            op: self.op_here(),
            target: abi::Str::of(target),
            message: abi::Str::of(message),
            fields: abi::List::of(&fields),
        };
        // SAFETY: open: the table is valid; the record is readable during the call.
        unsafe { log(self.table.ctx, std::ptr::addr_of!(record)) };
        true
    }

    fn log_enabled(&self, level: Level, target: &str) -> Option<bool> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.then(|| self.keeps(level, target))
    }
}

/// What an error says to C, where only what is negative is one.
pub(super) fn error_code(error: &Error) -> i32 {
    if error.code < 0 {
        error.code
    } else {
        abi::E_INTERNAL
    }
}

/// An error that borrows its texts.
pub(super) fn c_error(error: &Error, code: i32) -> abi::Error {
    let mut flags = 0;
    if error.retryable {
        flags |= abi::ERR_RETRYABLE;
    }
    if error.not_executed {
        flags |= abi::ERR_NOT_EXECUTED;
    }
    if error.of_tenant {
        flags |= abi::ERR_TENANT;
    }
    abi::Error {
        struct_size: wire::size_of_u32::<abi::Error>(),
        code,
        flags,
        retry_after_ms: error.retry_after_ms,
        message: abi::Str::of(&error.message),
        detail_json: abi::Str::of(&error.detail_json),
    }
}

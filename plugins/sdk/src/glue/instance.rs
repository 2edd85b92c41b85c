//! What an instance is made of, whatever its kind: the plugin's own part, and who still owes the host an answer.

use std::collections::HashMap;
use std::sync::{mpsc, Arc, Mutex, MutexGuard, PoisonError, RwLock};

use skillgate_plugin_abi as abi;

use super::convert::{self, Complete};
use super::host_table::HostTable;
use super::in_flight::{Call, InFlight};
use super::malformed;
use super::panics::quietly;
use crate::model::{Error, Result};
use crate::reply::{OnCancel, Origin, Reply};
use crate::wire::Malformed;

/// An instance of a plugin. Replies have it too, so its memory may outlive destroy(); the plugin's part does not.
pub(super) struct Instance<P> {
    pub(super) host: Arc<HostTable>,
    pub(super) calls: Arc<InFlight>,
    /// None: destroyed.
    plugin: RwLock<Option<P>>,
    /// What replies want to have called.
    watched: Mutex<HashMap<abi::Op, OnCancel>>,
}

impl<P: Send + Sync + 'static> Instance<P> {
    pub(super) fn new(host: Arc<HostTable>, plugin: P) -> Arc<Self> {
        Arc::new(Instance {
            host,
            calls: Arc::default(),
            plugin: RwLock::new(Some(plugin)),
            watched: Mutex::default(),
        })
    }

    /// Calls the plugin. None: it is destroyed.
    pub(super) fn with<R>(&self, f: impl FnOnce(&P) -> R) -> Option<R> {
        let plugin = self.plugin.read().unwrap_or_else(PoisonError::into_inner);
        plugin.as_ref().map(f)
    }

    /// No code of the plugin or of the host runs under this lock.
    fn watched(&self) -> MutexGuard<'_, HashMap<abi::Op, OnCancel>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn origin(self: &Arc<Self>) -> Arc<dyn Origin> {
        Arc::<Self>::clone(self)
    }

    /// Serves one op. `call`: as what it is counted until it is completed, or why it is refused. `read` reads the host's
    /// request, `ask` hands it to the plugin, `encode` lends the answer as a C struct. Always accepted, always completed.
    pub(super) fn serve<R, A: 'static>(
        self: &Arc<Self>,
        op: abi::Op,
        call: Result<Option<Call>>,
        read: impl FnOnce() -> Result<R, Malformed>,
        ask: impl FnOnce(&P, R, Reply<A>),
        encode: impl FnOnce(&Self, A, Complete<'_>) + Send + 'static,
    ) -> i32 {
        let call = match call {
            Ok(call) => call,
            Err(error) => {
                self.host.fail(op, &error);
                return abi::OK;
            }
        };
        let instance = Arc::clone(self);
        let reply = Reply::new(op, self.origin(), move |result| {
            let encode = |answer, complete: Complete<'_>| encode(&instance, answer, complete);
            instance.host.end(op, result, encode);
            drop(call);
        });
        let work = || match read() {
            Ok(request) => {
                self.with(|plugin| ask(plugin, request, reply));
            }
            Err(error) => reply.fail(malformed(error)),
        };
        self.host.about(op, || quietly(work));
        abi::OK
    }

    /// Serves drain(): `hook` is the plugin's own part of it, and in flight like the calls that are waited for.
    pub(super) fn drain(self: &Arc<Self>, op: abi::Op, hook: impl FnOnce(&P, Reply<()>)) -> i32 {
        self.calls.close();
        let said = Arc::new(Mutex::new(Ok(())));
        let (call, says) = (self.calls.resume(), Arc::clone(&said));
        let reply = Reply::new(op, self.origin(), move |result| {
            *says.lock().unwrap_or_else(PoisonError::into_inner) = result;
            drop(call);
        });
        let host = Arc::clone(&self.host);
        let ended = move |idle: Result<()>| {
            let said = said.lock().unwrap_or_else(PoisonError::into_inner).clone();
            host.end(op, idle.and(said), convert::none);
        };
        let cancelled = || self.host.cancelled(op);
        self.calls.when_idle(op, cancelled, Box::new(ended));
        let work = || {
            self.with(|plugin| hook(plugin, reply));
        };
        self.host.about(op, || quietly(work));
        abi::OK
    }

    /// Serves drain() of a blocking plugin: waits here until nothing is in flight, and then for `hook`, which answers before
    /// it returns.
    pub(super) fn drain_here(
        self: &Arc<Self>,
        op: abi::Op,
        hook: impl FnOnce(&P, Reply<()>),
    ) -> i32 {
        self.calls.close();
        let (ended, end) = mpsc::channel();
        let cancelled = || self.host.cancelled(op);
        // Nobody leaves before it has been told.
        let tell = move |result| drop(ended.send(result));
        self.calls.when_idle(op, cancelled, Box::new(tell));
        let idle = end
            .recv()
            .unwrap_or_else(|_| Err(Error::new(abi::E_INTERNAL, "the drain was forgotten")));
        let idle = idle.map(|()| None);
        self.serve(
            op,
            idle,
            || Ok(()),
            |plugin, (), reply| hook(plugin, reply),
            |_, answer, complete| convert::none(answer, complete),
        )
    }

    /// The host no longer wants an op: tells who wants to know, and ends a drain, whatever becomes of that.
    pub(super) fn cancel(&self, op: abi::Op) {
        quietly(|| self.tell(op));
        self.calls.cancel(op);
    }

    fn tell(&self, op: abi::Op) {
        let then = self.watched().remove(&op);
        if let Some(then) = then {
            then();
        }
    }

    /// All ops are complete, as the contract says: what a reply does that is still somewhere goes nowhere.
    pub(super) fn destroy(&self) {
        let watched = std::mem::take(&mut *self.watched());
        let plugin = {
            let mut plugin = self.plugin.write().unwrap_or_else(PoisonError::into_inner);
            plugin.take()
        };
        quietly(|| drop(watched));
        quietly(|| drop(plugin));
        self.host.shut();
    }
}

impl<P: Send + Sync + 'static> Origin for Instance<P> {
    fn cancelled(&self, op: abi::Op) -> bool {
        self.host.cancelled(op)
    }

    fn on_cancel(&self, op: abi::Op, then: OnCancel) {
        let before = self.watched().insert(op, then);
        quietly(|| drop(before));
        // The host marks an op before it calls cancel: whoever cancelled before this was there is seen now.
        if self.host.cancelled(op) {
            self.tell(op);
        }
    }

    fn forget(&self, op: abi::Op) {
        let then = self.watched().remove(&op);
        // It is the vendor's: whatever it does when it goes, the op is still owed its answer.
        quietly(|| drop(then));
    }
}

//! One instance of a plugin and how it is called: on the event loop when the plugin promises not to block, on tokio's
//! blocking threads when it says that it does.

use std::cell::Cell;
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use skillgate_plugin_abi as abi;
use skillgate_plugin_sdk::model::{Error, Result};
use skillgate_plugin_sdk::wire::Malformed;
use tokio::sync::watch;

use crate::ask::Ask;
use crate::counts::CallCounts;
use crate::hosttable::HostContext;
use crate::lane::Lane;
use crate::sandbox::RunContext;

/// Calls into one blocking store at once, each on a thread of the runtime's; those beyond wait for one of these to end, and so
/// do those of a tenant that has three quarters of them. Runs are not counted here: who starts them does.
pub const STORE_THREADS_MAX: usize = 64;
/// Calls into one store, wherever it is, that have not ended, those included that wait for a thread. Tenants share them; those
/// beyond are refused (`SKG_E_UNAVAILABLE`). A store that works has done with so many in a moment, and of one that hangs nobody
/// should wait for more.
pub const STORE_CALLS_MAX: usize = 4096;

/// The functions that every kind of instance has. `Copy`: our own zero-filled copy of the plugin's table.
pub(crate) trait Table: Copy + Send + Sync + 'static {
    /// Blocking threads that an instance may have.
    const THREADS_MAX: usize;
    /// Calls of an instance that have not ended.
    const CALLS_MAX: usize;
    fn self_(&self) -> *mut c_void;
    fn cancel(&self) -> Option<unsafe extern "C" fn(*mut c_void, abi::Op)>;
    fn health(&self) -> Option<unsafe extern "C" fn(*mut c_void, abi::Op) -> i32>;
    fn drain(&self) -> Option<unsafe extern "C" fn(*mut c_void, abi::Op) -> i32>;
    fn destroy(&self) -> Option<unsafe extern "C" fn(*mut c_void)>;
}

macro_rules! table {
    ($name:ident, $abi:ty, $threads_max:expr, $calls_max:expr) => {
        #[derive(Clone, Copy)]
        pub(crate) struct $name(pub(crate) $abi);
        // SAFETY: the contract: every function may be called from any thread, concurrently with itself.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}
        impl Table for $name {
            const THREADS_MAX: usize = $threads_max;
            const CALLS_MAX: usize = $calls_max;
            fn self_(&self) -> *mut c_void {
                self.0.self_
            }
            fn cancel(&self) -> Option<unsafe extern "C" fn(*mut c_void, abi::Op)> {
                self.0.cancel
            }
            fn health(&self) -> Option<unsafe extern "C" fn(*mut c_void, abi::Op) -> i32> {
                self.0.health
            }
            fn drain(&self) -> Option<unsafe extern "C" fn(*mut c_void, abi::Op) -> i32> {
                self.0.drain
            }
            fn destroy(&self) -> Option<unsafe extern "C" fn(*mut c_void)> {
                self.0.destroy
            }
        }
    };
}
table!(
    StorageTable,
    abi::Storage,
    STORE_THREADS_MAX,
    STORE_CALLS_MAX
);
table!(SandboxTable, abi::Sandbox, usize::MAX, usize::MAX);

thread_local! {
    /// A plugin is being called on this thread of the event loop.
    static ON_EVENT_LOOP: Cell<bool> = const { Cell::new(false) };
}

/// Is this code running inside a call that the event loop makes into a plugin? Then it must not wait: the plugin's own
/// threads and the blocking threads may.
pub(crate) fn on_event_loop() -> bool {
    ON_EVENT_LOOP.get()
}

fn as_event_loop<R>(f: impl FnOnce() -> R) -> R {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            ON_EVENT_LOOP.set(self.0);
        }
    }
    let _restore = Restore(ON_EVENT_LOOP.replace(true));
    f()
}

pub(crate) struct Instance<T: Table> {
    pub(crate) table: T,
    pub(crate) host: &'static HostContext,
    pub(crate) counts: CallCounts,
    pub(crate) blocking: bool,
    pub(crate) runtime: tokio::runtime::Handle,
    lane: Arc<Lane>,
    destroyed: Arc<watch::Sender<bool>>,
    /// Dropped after destroy() has returned: the singleton's place.
    place: Option<Box<dyn std::any::Any + Send + Sync>>,
}

impl<T: Table> Instance<T> {
    pub(crate) fn new(
        table: T,
        host: &'static HostContext,
        blocking: bool,
        runtime: tokio::runtime::Handle,
        place: Box<dyn std::any::Any + Send + Sync>,
    ) -> Arc<Self> {
        Arc::new(Instance {
            table,
            host,
            counts: CallCounts::default(),
            blocking,
            runtime,
            lane: Lane::new(T::THREADS_MAX),
            destroyed: Arc::new(watch::Sender::new(false)),
            place: Some(place),
        })
    }

    /// Makes an op for a call, and says how it ends to `then`, on whichever thread ends it.
    pub(crate) fn begin<A: Ask<T>>(
        self: &Arc<Self>,
        ask: A,
        run: Option<Arc<RunContext>>,
        then: impl FnOnce(Result<A::Answer>) + Send + 'static,
    ) -> Result<Begun<T>> {
        // The op owns the call, and with it all that the plugin may use, until the plugin is done with it.
        let ask = Arc::new(ask);
        // Where the call may have to wait for a thread.
        let tenant = match self.blocking {
            true => ask.tenant().to_owned(),
            false => String::new(),
        };
        let (keep, asked) = (Arc::clone(self), Arc::clone(&ask));
        let going = self.counts.begin(A::NAME);
        let done = move |result: Result<*const c_void>| {
            // SAFETY: the contract: the plugin completes a call with what that call answers with.
            let answer = result.map(|p| unsafe { asked.read(p) });
            let (answer, code) = match answer {
                Ok(Ok(answer)) => (Ok(answer), abi::OK),
                Ok(Err(Malformed(why))) => {
                    let (name, plugin) = (A::NAME, &keep.host.plugin);
                    let message =
                        format!("{name}: the plugin {plugin} gave a malformed answer: {why}");
                    (Err(Error::new(abi::E_PROTOCOL, message)), abi::E_PROTOCOL)
                }
                Err(error) => (Err(error), abi::OK),
            };
            let ended = answer.as_ref().map_or_else(|error| error.code, |_| abi::OK);
            going.ended(A::NAME, ended);
            then(answer);
            code
        };
        let op = self
            .host
            .ops
            .insert(run, Box::new(done))
            .inspect_err(|error| self.counts.add(A::NAME, error.code))?;
        let invoke = move |table: &T, op| {
            ask.begun();
            let code = ask.invoke(table, op);
            if code < 0 {
                ask.refused();
            }
            code
        };
        Ok(Begun {
            instance: Arc::clone(self),
            name: A::NAME,
            tenant,
            op,
            invoke: Some(Box::new(invoke)),
            queued: false,
        })
    }

    /// Makes the call where this plugin's calls are made.
    pub(crate) fn start(&self, mut begun: Begun<T>) {
        if !self.blocking {
            return begun.invoke();
        }
        begun.queued = true;
        let (call, tenant) = (Some(begun.op), std::mem::take(&mut begun.tenant));
        self.lane
            .run(&self.runtime, &tenant, call, move || begun.invoke());
    }

    /// Ends an op that the plugin will not complete.
    fn abandon(&self, op: abi::Op, error: Error) {
        if let Some(done) = self.host.ops.take(op) {
            done(Err(error));
        }
    }

    fn invoke(&self, name: &'static str, op: abi::Op, invoke: Invoke<T>) {
        if self.host.ops.is_cancelled(op) != Some(false) {
            let message = format!("{name}: the caller left before the plugin was called");
            return self.abandon(op, Error::new(abi::E_CANCELLED, message).not_executed());
        }
        let code = if self.blocking {
            invoke(&self.table, op)
        } else {
            as_event_loop(|| invoke(&self.table, op))
        };
        let plugin = &self.host.plugin;
        if code < 0 {
            let why = if code == abi::E_UNIMPLEMENTED {
                "does not offer this call"
            } else {
                "refused the call"
            };
            self.abandon(
                op,
                Error::new(code, format!("{name}: the plugin {plugin} {why}")).not_executed(),
            );
        } else if self.blocking && self.host.ops.is_live(op) {
            let message = format!(
                "{name}: the plugin {plugin} returned without completing the call, although it says that it is blocking"
            );
            self.abandon(op, Error::new(abi::E_PROTOCOL, message));
        }
    }

    /// Tells the plugin that nobody wants this op any more. The op stays until the plugin completes it; one that it has not heard
    /// of ends, with all that it holds: a store that hangs may be called and left again any number of times.
    pub(crate) fn cancel(&self, op: abi::Op) {
        if self.host.ops.mark_cancelled(op)
            && !self.lane.give_up(op)
            && let Some(cancel) = self.table.cancel()
        {
            // SAFETY: the instance lives (self), and cancel takes any op: it is advice.
            as_event_loop(|| unsafe { cancel(self.table.self_(), op) });
        }
    }

    /// Runs `f` on a blocking thread, some time: for calls without an op, made from destructors. Never inline, since a
    /// destructor may run inside the plugin's own call of `complete`.
    pub(crate) fn background(self: &Arc<Self>, tenant: &str, f: impl FnOnce(&T) + Send + 'static) {
        let instance = Arc::clone(self);
        self.lane
            .run(&self.runtime, tenant, None, move || f(&instance.table));
    }

    /// Resolves when destroy() has returned.
    pub(crate) fn destroyed(&self) -> watch::Receiver<bool> {
        self.destroyed.subscribe()
    }
}

impl<T: Table> Drop for Instance<T> {
    /// Every op holds the instance, so all of them have ended. destroy() waits for the plugin's threads, and this may be
    /// one of them (inside `complete`), so it gets a thread of its own.
    fn drop(&mut self) {
        let (table, destroyed) = (self.table, Arc::clone(&self.destroyed));
        // Not with the thread that there may not be: what is not destroyed keeps it.
        let place = ManuallyDrop::new(self.place.take());
        let thread = std::thread::Builder::new()
            .name("plugin-destroy".into())
            .spawn(move || {
                if let Some(destroy) = table.destroy() {
                    // SAFETY: called once, here; no op is left, and no new one can start without the instance.
                    unsafe { destroy(table.self_()) };
                }
                drop(ManuallyDrop::into_inner(place));
                destroyed.send_replace(true);
            });
        if let Err(error) = thread {
            tracing::error!(plugin = %self.host.plugin, instance = %self.host.instance, %error, "no thread to destroy an instance: it stays");
        }
    }
}

type Invoke<T> = Box<dyn FnOnce(&T, abi::Op) -> i32 + Send>;

/// An op that the plugin has not heard of yet. Dropping it ends the op.
pub(crate) struct Begun<T: Table> {
    instance: Arc<Instance<T>>,
    name: &'static str,
    /// Whom it is for; empty, too, where it does not wait for a thread.
    tenant: String,
    op: abi::Op,
    invoke: Option<Invoke<T>>,
    /// It waits for a blocking thread; dropped there, its caller has left, or there will be none.
    queued: bool,
}

impl<T: Table> Begun<T> {
    pub(crate) fn op(&self) -> abi::Op {
        self.op
    }

    pub(crate) fn tenant(&self) -> &str {
        &self.tenant
    }

    /// Calls the plugin, on this thread.
    pub(crate) fn invoke(mut self) {
        if let Some(invoke) = self.invoke.take() {
            self.instance.invoke(self.name, self.op, invoke);
        }
    }
}

impl<T: Table> Drop for Begun<T> {
    fn drop(&mut self) {
        if self.invoke.is_none() {
            return;
        }
        let is_left = self.instance.host.ops.is_cancelled(self.op) != Some(false);
        let (code, why) = if self.queued && !is_left {
            let why = "there is no thread for it: the gateway is stopping, or has as many as the system allows";
            (abi::E_UNAVAILABLE, why)
        } else {
            (
                abi::E_CANCELLED,
                "the caller left before the plugin was called",
            )
        };
        let error = Error::new(code, format!("{}: {why}", self.name)).not_executed();
        self.instance.abandon(self.op, error);
    }
}

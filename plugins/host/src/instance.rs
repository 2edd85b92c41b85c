//! One instance of a plugin and how it is called: on the event loop when the plugin promises not to block, on tokio's
//! blocking threads when it says that it does.

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::Arc;

use skillgate_plugin_abi as abi;
use skillgate_plugin_sdk::model::{Error, Health, Result};
use skillgate_plugin_sdk::wire::Malformed;
use tokio::sync::{oneshot, watch};

use crate::answer;
use crate::counts::CallCounts;
use crate::hosttable::HostContext;
use crate::sandbox::RunContext;

/// The functions that every kind of instance has. `Copy`: our own zero-filled copy of the plugin's table.
pub(crate) trait Table: Copy + Send + Sync + 'static {
    fn self_(&self) -> *mut c_void;
    fn cancel(&self) -> Option<unsafe extern "C" fn(*mut c_void, abi::Op)>;
    fn health(&self) -> Option<unsafe extern "C" fn(*mut c_void, abi::Op) -> i32>;
    fn drain(&self) -> Option<unsafe extern "C" fn(*mut c_void, abi::Op) -> i32>;
    fn destroy(&self) -> Option<unsafe extern "C" fn(*mut c_void)>;
}

macro_rules! table {
    ($name:ident, $abi:ty) => {
        #[derive(Clone, Copy)]
        pub(crate) struct $name(pub(crate) $abi);
        // SAFETY: the contract: every function may be called from any thread, concurrently with itself.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}
        impl Table for $name {
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
table!(StorageTable, abi::Storage);
table!(SandboxTable, abi::Sandbox);

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
    blocking: bool,
    runtime: tokio::runtime::Handle,
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
            destroyed: Arc::new(watch::Sender::new(false)),
            place: Some(place),
        })
    }

    /// Makes an op whose answer `decode` reads. `decode` owns what the plugin may use until the op completes; `invoke`
    /// calls the plugin.
    ///
    /// `decode` gets the result pointer of a completion and must be able to read the struct that the call answers with.
    pub(crate) fn call<A: Send + 'static>(
        self: &Arc<Self>,
        name: &'static str,
        run: Option<Arc<RunContext>>,
        decode: impl FnOnce(*const c_void) -> Result<A, Malformed> + Send + 'static,
        invoke: impl FnOnce(&T, abi::Op) -> i32 + Send + 'static,
    ) -> Result<Call<T, A>> {
        let (send, answer) = oneshot::channel();
        let keep = Arc::clone(self);
        let done = move |result: Result<*const c_void>| {
            let (answer, code) = match result.map(decode) {
                Ok(Ok(answer)) => (Ok(answer), abi::OK),
                Ok(Err(Malformed(why))) => {
                    let message = format!(
                        "{name}: the plugin {} gave a malformed answer: {why}",
                        keep.host.plugin
                    );
                    (Err(Error::new(abi::E_PROTOCOL, message)), abi::E_PROTOCOL)
                }
                Err(error) => (Err(error), abi::OK),
            };
            let ended = answer.as_ref().map_or_else(|error| error.code, |_| abi::OK);
            keep.counts.add(name, ended);
            // Nobody is waiting any more when the caller has left: the answer ends here, with what it holds.
            drop(send.send(answer));
            code
        };
        let op = self
            .host
            .ops
            .insert(run, Box::new(done))
            .inspect_err(|error| self.counts.add(name, error.code))?;
        Ok(Call {
            instance: Arc::clone(self),
            name,
            op,
            answer,
            invoke: Some(Box::new(invoke)),
            settled: false,
        })
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

    /// Tells the plugin that nobody wants this op any more. The op stays until the plugin completes it.
    fn cancel(&self, op: abi::Op) {
        if self.host.ops.mark_cancelled(op)
            && let Some(cancel) = self.table.cancel()
        {
            // SAFETY: the instance lives (self), and cancel takes any op: it is advice.
            as_event_loop(|| unsafe { cancel(self.table.self_(), op) });
        }
    }

    /// Runs `f` on a blocking thread, some time: for calls without an op, made from destructors. Never inline, since a
    /// destructor may run inside the plugin's own call of `complete`.
    pub(crate) fn background(self: &Arc<Self>, f: impl FnOnce(&T) + Send + 'static) {
        let instance = Arc::clone(self);
        drop(self.runtime.spawn_blocking(move || f(&instance.table)));
    }

    pub(crate) fn call_health(self: &Arc<Self>) -> Result<Call<T, Health>> {
        // SAFETY: the contract: health answers with a skg_health.
        let decode = |p: *const c_void| unsafe { answer::health(p.cast()) };
        self.call("health", None, decode, |table, op| match table.health() {
            // SAFETY: the instance lives until its ops have ended.
            Some(f) => unsafe { f(table.self_(), op) },
            None => abi::E_UNIMPLEMENTED,
        })
    }

    pub(crate) fn call_drain(self: &Arc<Self>) -> Result<Call<T, ()>> {
        self.call(
            "drain",
            None,
            |_| Ok(()),
            |table, op| match table.drain() {
                // SAFETY: the instance lives until its ops have ended.
                Some(f) => unsafe { f(table.self_(), op) },
                None => abi::E_UNIMPLEMENTED,
            },
        )
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
        let (table, destroyed, place) =
            (self.table, Arc::clone(&self.destroyed), self.place.take());
        let thread = std::thread::Builder::new()
            .name("plugin-destroy".into())
            .spawn(move || {
                if let Some(destroy) = table.destroy() {
                    // SAFETY: called once, here; no op is left, and no new one can start without the instance.
                    unsafe { destroy(table.self_()) };
                }
                drop(place);
                destroyed.send_replace(true);
            });
        if let Err(error) = thread {
            tracing::error!(plugin = %self.host.plugin, instance = %self.host.instance, %error, "no thread to destroy an instance: it stays");
        }
    }
}

type Invoke<T> = Box<dyn FnOnce(&T, abi::Op) -> i32 + Send>;

/// An op that is ready to be started, and then waited for. Dropping it cancels the op.
pub(crate) struct Call<T: Table, A> {
    instance: Arc<Instance<T>>,
    name: &'static str,
    op: abi::Op,
    answer: oneshot::Receiver<Result<A>>,
    invoke: Option<Invoke<T>>,
    settled: bool,
}

/// Ends the op when its turn on a blocking thread never came (the runtime is shutting down).
struct Queued<T: Table>(Arc<Instance<T>>, &'static str, abi::Op);

impl<T: Table> Drop for Queued<T> {
    fn drop(&mut self) {
        if self.0.host.ops.is_live(self.2) {
            let message = format!("{}: the gateway is stopping", self.1);
            self.0.abandon(
                self.2,
                Error::new(abi::E_UNAVAILABLE, message).not_executed(),
            );
        }
    }
}

impl<T: Table, A> Call<T, A> {
    /// Starts the op and waits on the event loop.
    pub(crate) async fn wait(mut self) -> Result<A> {
        if let Some(invoke) = self.invoke.take() {
            if self.instance.blocking {
                let queued = Queued(Arc::clone(&self.instance), self.name, self.op);
                drop(self.instance.runtime.spawn_blocking(move || {
                    queued.0.invoke(queued.1, queued.2, invoke);
                }));
            } else {
                self.instance.invoke(self.name, self.op, invoke);
            }
        }
        let answer = (&mut self.answer).await;
        self.settle(answer.ok())
    }

    /// Starts the op and waits on this thread, which must not be one of the event loop's.
    pub(crate) fn wait_blocking(mut self) -> Result<A> {
        if on_event_loop() {
            let message = format!("{}: a blocking call on the event loop", self.name);
            return Err(Error::new(abi::E_WOULD_DEADLOCK, message));
        }
        if let Some(invoke) = self.invoke.take() {
            self.instance.invoke(self.name, self.op, invoke);
        }
        // A blocking plugin has answered by now; asking first makes this legal wherever such a plugin is called.
        let answer = match self.answer.try_recv() {
            Ok(answer) => Some(answer),
            Err(oneshot::error::TryRecvError::Closed) => None,
            Err(oneshot::error::TryRecvError::Empty) => {
                let (_, gone) = oneshot::channel();
                std::mem::replace(&mut self.answer, gone)
                    .blocking_recv()
                    .ok()
            }
        };
        self.settle(answer)
    }

    fn settle(mut self, answer: Option<Result<A>>) -> Result<A> {
        self.settled = true;
        answer.unwrap_or_else(|| {
            Err(Error::new(
                abi::E_INTERNAL,
                format!("{}: the op ended without an answer", self.name),
            ))
        })
    }
}

impl<T: Table, A> Drop for Call<T, A> {
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        if self.invoke.is_some() {
            // The plugin never heard of it.
            let message = format!(
                "{}: the caller left before the plugin was called",
                self.name
            );
            self.instance.abandon(
                self.op,
                Error::new(abi::E_CANCELLED, message).not_executed(),
            );
        } else {
            self.instance.cancel(self.op);
        }
    }
}

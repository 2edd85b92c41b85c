//! Where an instance is, and one call of it: the same to the gateway's code whether the plugin is in this process or in
//! one of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use skillgate_plugin_abi as abi;
use skillgate_plugin_sdk::model::{Error, Result};
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};

use crate::ask::Ask;
use crate::counts::CallCounts;
use crate::instance::{Begun, Instance, Table, on_event_loop};
use crate::process::{Asked, Remote};
use crate::sandbox::RunContext;
use crate::shares::{Share, Shares};

/// An instance. Cheap to clone; it is destroyed when the last clone is gone and every op has ended.
pub(crate) struct Place<T: Table> {
    pub(crate) home: Home<T>,
    shares: Arc<Shares>,
    users: Arc<AtomicUsize>,
}

/// One who waits for a call of it, or may make one, until this is dropped. What a call that its caller has given up keeps is none;
/// a thread that is in a call gives it up when it is [`Over`].
pub(crate) struct User(Arc<AtomicUsize>);

impl Clone for User {
    fn clone(&self) -> Self {
        User::of(&self.0)
    }
}

impl Drop for User {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl User {
    fn of(users: &Arc<AtomicUsize>) -> Self {
        users.fetch_add(1, Ordering::AcqRel);
        User(Arc::clone(users))
    }
}

pub(crate) enum Home<T: Table> {
    /// In this process.
    Here(Arc<Instance<T>>),
    /// In a process of its own.
    There(Arc<Remote>),
}

impl<T: Table> Clone for Place<T> {
    fn clone(&self) -> Self {
        let home = match &self.home {
            Home::Here(instance) => Home::Here(Arc::clone(instance)),
            Home::There(remote) => Home::There(Arc::clone(remote)),
        };
        let shares = Arc::clone(&self.shares);
        let users = Arc::clone(&self.users);
        Place {
            home,
            shares,
            users,
        }
    }
}

impl<T: Table> Place<T> {
    pub(crate) fn here(instance: Arc<Instance<T>>) -> Self {
        Place::at(Home::Here(instance))
    }

    pub(crate) fn there(remote: Arc<Remote>) -> Self {
        Place::at(Home::There(remote))
    }

    fn at(home: Home<T>) -> Self {
        let shares = Shares::new(T::CALLS_MAX);
        let users = Arc::default();
        Place {
            home,
            shares,
            users,
        }
    }

    /// One more.
    pub(crate) fn user(&self) -> User {
        User::of(&self.users)
    }

    /// A call, not started yet.
    pub(crate) fn call<A: Ask<T>>(&self, ask: A) -> Result<Call<T, A::Answer>> {
        self.call_with(ask, None, |answer, _| answer)
    }

    /// A call whose answer is turned into something else as soon as it is there, whoever waits: `map` gets it with the
    /// life of the plugin's process that gave it. `run`: what the plugin may ask for until the op has ended.
    pub(crate) fn call_with<A: Ask<T>, B: Send + 'static>(
        &self,
        ask: A,
        run: Option<Arc<RunContext>>,
        map: impl FnOnce(A::Answer, u64) -> B + Send + 'static,
    ) -> Result<Call<T, B>> {
        let share = self.share(&ask)?;
        let (send, answer) = oneshot::channel();
        // Nobody is waiting any more when the caller has left: the answer ends here, with what it holds.
        let to = match &self.home {
            Home::Here(instance) => {
                let then = move |answer: Result<A::Answer>| {
                    drop(share);
                    drop(send.send(answer.map(|answer| map(answer, 0))));
                };
                let begun = instance.begin(ask, run, then)?;
                let op = begun.op();
                To::Here(Some(begun), Arc::clone(instance), op)
            }
            Home::There(remote) => To::There(remote.ask::<T, A>(ask, run, move |answer| {
                drop(share);
                drop(send.send(answer.map(|(answer, life)| map(answer, life))));
            })?),
        };
        Ok(Call {
            name: A::NAME,
            to,
            answer,
            settled: false,
            _user: self.user(),
        })
    }

    /// One of the calls that it may have, for the tenant that this one is for.
    fn share<A: Ask<T>>(&self, ask: &A) -> Result<Share> {
        self.shares.take(ask.tenant()).map_err(|held| {
            let (name, plugin) = (A::NAME, self.plugin());
            let message = format!(
                "{name}: {held} calls of this tenant wait for the plugin {plugin}, and it gets no more: what that works with is \
                 slow, or hangs"
            );
            self.counts().add(name, abi::E_UNAVAILABLE);
            let error = Error::new(abi::E_UNAVAILABLE, message);
            error.not_executed().of_tenant().retryable(1000)
        })
    }

    /// The plugin's id.
    pub(crate) fn plugin(&self) -> &str {
        match &self.home {
            Home::Here(instance) => &instance.host.plugin,
            Home::There(remote) => remote.plugin(),
        }
    }

    /// As the configuration names it.
    pub(crate) fn name(&self) -> &str {
        match &self.home {
            Home::Here(instance) => &instance.host.instance,
            Home::There(remote) => remote.instance(),
        }
    }

    pub(crate) fn counts(&self) -> CallCounts {
        match &self.home {
            Home::Here(instance) => instance.counts.clone(),
            Home::There(remote) => remote.counts(),
        }
    }

    /// Between two looks at whether an instance is used.
    pub(crate) const LOOK: Duration = Duration::from_millis(2);

    /// Has anybody else this instance, to call it or until a call, reader or writer ends?
    pub(crate) fn is_used(&self) -> bool {
        match &self.home {
            Home::Here(instance) => Arc::strong_count(instance) > 1,
            // A call that its caller has given up goes on without it.
            Home::There(remote) => Arc::strong_count(remote) > 1 || remote.has_calls(),
        }
    }

    /// Is it in a process of its own, in which nobody waits for anything? Calls that were given up may go on there.
    pub(crate) fn is_deserted(&self) -> bool {
        matches!(self.home, Home::There(_)) && self.users.load(Ordering::Acquire) == 0
    }

    /// Has its process end, also when calls that were given up go on in it: it is killed after its grace time.
    pub(crate) fn end_process(&self) {
        if let Home::There(remote) = &self.home {
            remote.stop();
        }
    }

    /// Resolves when destroy() has returned, or its process is gone.
    pub(crate) fn destroyed(&self) -> Destroyed {
        Destroyed(match &self.home {
            Home::Here(instance) => instance.destroyed(),
            Home::There(remote) => remote.destroyed(),
        })
    }
}

/// The end of an instance. Cheap to clone; keeps nothing alive.
#[derive(Debug, Clone)]
pub struct Destroyed(watch::Receiver<bool>);

impl Destroyed {
    /// Resolves when destroy() has returned, or the instance's process is gone.
    pub async fn wait(&mut self) {
        if self.0.wait_for(|done| *done).await.is_err() {
            // There was no thread to destroy it: it stays.
            std::future::pending::<()>().await;
        }
    }
}

enum To<T: Table> {
    /// `None` once it has been started.
    Here(Option<Begun<T>>, Arc<Instance<T>>, abi::Op),
    There(Asked),
}

/// Whoever asks a store on a thread is over: that thread waits no longer. Dropping it says so, too.
#[derive(Debug)]
pub struct Over(watch::Sender<bool>);

impl Default for Over {
    fn default() -> Self {
        Over(watch::Sender::new(false))
    }
}

impl Over {
    /// From now on.
    pub fn set(&self) {
        self.0.send_replace(true);
    }
}

/// How long a thread waits: for the answer, or until [`Over`] if that is sooner.
#[derive(Debug, Clone, Default)]
pub(crate) struct Until(Option<watch::Receiver<bool>>);

impl From<&Over> for Until {
    fn from(over: &Over) -> Self {
        Until(Some(over.0.subscribe()))
    }
}

impl Until {
    pub(crate) fn is_over(&self) -> bool {
        let is_set = |over: &watch::Receiver<bool>| *over.borrow() || over.has_changed().is_err();
        self.0.as_ref().is_some_and(is_set)
    }

    async fn over(self) {
        match self.0 {
            Some(mut over) => drop(over.wait_for(|over| *over).await),
            None => std::future::pending().await,
        }
    }
}

/// A call that is ready to be started, and then waited for. Dropping it cancels the op.
pub(crate) struct Call<T: Table, A> {
    name: &'static str,
    to: To<T>,
    answer: oneshot::Receiver<Result<A>>,
    settled: bool,
    _user: User,
}

impl<T: Table, A> Call<T, A> {
    /// Starts the op and waits on the event loop.
    pub(crate) async fn wait(mut self) -> Result<A> {
        match &mut self.to {
            To::Here(begun, instance, _) => {
                if let Some(begun) = begun.take() {
                    instance.start(begun);
                }
            }
            To::There(asked) => asked.send(),
        }
        // The op ends, whatever happens to this future: `To` knows it.
        let answer = (&mut self.answer).await;
        self.settle(answer.ok())
    }

    /// Starts the op and waits on this thread, which must not be one of the event loop's. A plugin that is called on this very
    /// thread keeps it, whatever `until` says.
    pub(crate) fn wait_blocking(mut self, until: &Until) -> Result<A> {
        if on_event_loop() {
            let message = format!("{}: a blocking call on the event loop", self.name);
            return Err(Error::new(abi::E_WOULD_DEADLOCK, message));
        }
        let over = |name: &str| {
            let message = format!("{name}: nobody waits for this any more");
            Error::new(abi::E_CANCELLED, message)
        };
        if until.is_over() {
            return Err(over(self.name).not_executed());
        }
        match &mut self.to {
            To::Here(begun, ..) => {
                if let Some(begun) = begun.take() {
                    begun.invoke();
                }
            }
            To::There(asked) => asked.send(),
        }
        // A blocking plugin has answered by now; asking first makes this legal wherever such a plugin is called.
        let answer = match self.answer.try_recv() {
            Ok(answer) => Some(answer),
            Err(oneshot::error::TryRecvError::Closed) => None,
            Err(oneshot::error::TryRecvError::Empty) => {
                let (runtime, until) = (self.runtime(), until.clone());
                let answered = runtime.block_on(async {
                    tokio::select! {
                        biased;
                        answer = &mut self.answer => Some(answer.ok()),
                        () = until.over() => None,
                    }
                });
                // Not settled: the plugin is told that nobody waits.
                answered.ok_or_else(|| over(self.name))?
            }
        };
        self.settle(answer)
    }

    fn runtime(&self) -> Handle {
        match &self.to {
            To::Here(_, instance, _) => instance.runtime.clone(),
            To::There(asked) => asked.runtime(),
        }
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
        match &mut self.to {
            To::Here(begun, instance, op) => match begun.take() {
                // The plugin never heard of it.
                Some(begun) => drop(begun),
                None => instance.cancel(*op),
            },
            To::There(asked) => asked.cancel(),
        }
    }
}

//! An instance in a process of its own, over all the lives of that process.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use skillgate_plugin_abi as abi;
use skillgate_plugin_sdk::model::{CreateRequest, Error, Result};
use skillgate_plugin_sdk::wire::Malformed;
use tokio::sync::watch;

use super::backoff::Restarts;
use super::covers::lacks;
use super::frame::{Kind as FrameKind, Packet};
use super::link::{Asked, End, Link, Pending, Ready};
use super::services::{Open, Taken};
use super::start::{Fresh, Image, Kind};
use crate::ask::{Ask, Handle};
use crate::blobs::Which;
use crate::counts::CallCounts;
use crate::instance::Table;
use crate::lane::on_a_thread;
use crate::logs;
use crate::sandbox::RunContext;
use crate::wire::{In, Read, Wire};

/// Calls that a process may have at the same time, as for a plugin in this process.
const IN_FLIGHT_MAX: usize = (1 << 16) - 1;

/// Why a process was killed that had the grace time to end.
const NOT_IN_TIME: &str = "it was told to end, and did not";

/// An instance. Dropping it ends the instance, and its process, once its calls have ended.
pub(crate) struct Remote(Arc<Shared>);

/// What an instance and the task that keeps it alive share.
pub(crate) struct Shared {
    image: Arc<Image>,
    kind: Kind,
    request: CreateRequest,
    plugin: String,
    /// Its calls can end when nobody waits for them any more, so one that goes on after its grace holds up others, or is lost. A
    /// blocking store's need not: what flushes a large blob to its disk cannot be told anything, and to end the process for it would
    /// take what everybody else has open there. What hangs in such a store has no more of its threads and calls than in the
    /// gateway (`shares`), and ends with the instance.
    pub(super) hears_of_the_end: bool,
    /// As the first life said, and as the gateway goes by; a later one must be able to do as much.
    caps: Vec<u8>,
    state: RwLock<State>,
    counts: CallCounts,
    /// Of all its lives.
    pub(super) log_pace: logs::Pace,
    stop: watch::Sender<bool>,
    destroyed: watch::Sender<bool>,
    pub(super) runtime: tokio::runtime::Handle,
}

enum State {
    Up(Arc<Link>),
    Down {
        again: Instant,
    },
    /// It is not started again.
    Over,
}

impl Remote {
    /// Makes an instance, in `first` when there is a process that has only loaded the plugin, or in a new one. Answers
    /// with its capabilities too, as bytes. Must be called inside a runtime.
    pub(crate) async fn make(
        image: Arc<Image>,
        first: Option<Fresh>,
        kind: Kind,
        request: CreateRequest,
    ) -> Result<(Arc<Remote>, Vec<u8>)> {
        let (plugin, made) = {
            let (image, request) = (Arc::clone(&image), request.clone());
            let job = move || life(&image, first, kind, &request);
            match on_a_thread("plugin-start", job).await {
                Ok(made) => made?,
                Err(error) => {
                    let message = format!("the start of the plugin's process did not end: {error}");
                    return Err(Error::new(abi::E_UNAVAILABLE, message));
                }
            }
        };
        let (fresh, caps) = made;
        let hears_of_the_end = kind == Kind::Sandbox || !fresh.info.blocking;
        let link = Link::new(fresh, 1, Arc::default()).map_err(|error| {
            Error::new(abi::E_UNAVAILABLE, format!("the plugin's socket: {error}"))
        })?;
        let shared = Arc::new(Shared {
            image,
            kind,
            request,
            plugin,
            hears_of_the_end,
            caps: caps.clone(),
            state: RwLock::new(State::Up(Arc::clone(&link))),
            counts: CallCounts::default(),
            log_pace: logs::Pace::default(),
            stop: watch::Sender::new(false),
            destroyed: watch::Sender::new(false),
            runtime: tokio::runtime::Handle::current(),
        });
        shared.runtime.spawn(Arc::clone(&shared).keep(link));
        Ok((Arc::new(Remote(shared)), caps))
    }

    pub(crate) fn instance(&self) -> &str {
        self.0.instance()
    }

    pub(crate) fn plugin(&self) -> &str {
        &self.0.plugin
    }

    pub(crate) fn counts(&self) -> CallCounts {
        self.0.counts.clone()
    }

    /// Whether there are calls that have not been answered, whoever waits for that.
    pub(crate) fn has_calls(&self) -> bool {
        self.0.counts.in_flight() > 0
    }

    pub(crate) fn destroyed(&self) -> watch::Receiver<bool> {
        self.0.destroyed.subscribe()
    }

    /// Makes a call, and says how it ends to `then`: with the answer and the life of the process that gave it.
    pub(crate) fn ask<T: Table, A: Ask<T>>(
        &self,
        ask: A,
        run: Option<Arc<RunContext>>,
        then: impl FnOnce(Result<(A::Answer, u64)>) + Send + 'static,
    ) -> Result<Asked> {
        let shared = &self.0;
        let refuse = |error: Error| {
            shared.counts.add(A::NAME, error.code);
            Err(error)
        };
        let Some(link) = shared.link() else {
            return refuse(shared.down(A::NAME));
        };
        if ask.life().is_some_and(|life| life != link.life) {
            let message = format!(
                "{}: the process of the plugin {} that had this open has ended",
                A::NAME,
                shared.plugin
            );
            return refuse(Error::new(abi::E_STALE, message));
        }
        let going = shared.counts.begin(A::NAME);
        if going.before >= IN_FLIGHT_MAX {
            let message =
                format!("{IN_FLIGHT_MAX} calls of this plugin are in flight, and no more fit");
            let error = Error::new(abi::E_EXHAUSTED, message);
            return refuse(error.not_executed().retryable(1000));
        }
        let packet = Packet::new(FrameKind::Call, 0, |out| {
            out.u8(A::CODE);
            ask.put(out);
        });
        let packet = match packet {
            Ok(packet) => packet,
            Err(error) => {
                let error = Error::new(abi::E_EXHAUSTED, format!("{}: {error}", A::NAME));
                return refuse(error.not_executed());
            }
        };
        let ask = Arc::new(ask);
        let (asked, keep, life) = (Arc::clone(&ask), Arc::clone(shared), link.life);
        let done = move |answer: Result<&mut In<'_>>| -> Read<()> {
            let (answer, verdict) = match answer {
                Ok(from) => match read::<T, A>(&asked, from) {
                    Ok(answer) => (Ok((answer, life)), Ok(())),
                    Err(Malformed(why)) => {
                        let (name, plugin) = (A::NAME, &keep.plugin);
                        let message =
                            format!("{name}: the plugin {plugin} gave a malformed answer: {why}");
                        let error = Error::new(abi::E_PROTOCOL, message);
                        (Err(error), Err(Malformed(why)))
                    }
                },
                Err(error) => (Err(error), Ok(())),
            };
            let ended = answer.as_ref().map_or_else(|error| error.code, |_| abi::OK);
            going.ended(A::NAME, ended);
            then(answer);
            verdict
        };
        let pending = Pending {
            name: A::NAME,
            ends: ask.ends().cloned(),
            started: run.is_none(),
            run,
            taken: Taken::default(),
            open: Open::default(),
            done: Box::new(done),
        };
        Ok(Asked {
            shared: Arc::clone(shared),
            link,
            ready: Some(Ready {
                packet,
                pending,
                begun: Box::new(move || ask.begun()),
            }),
            call: 0,
        })
    }

    /// Ends the instance, and its process, whoever keeps this.
    pub(crate) fn stop(&self) {
        self.0.stop.send_replace(true);
    }

    /// Lets go of a reader or a writer. One of an earlier life is gone already.
    pub(crate) fn close(&self, tenant: &str, which: Which, handle: Handle) {
        let Some(link) = self.0.link().filter(|link| link.life == handle.life) else {
            return;
        };
        let packet = Packet::new(FrameKind::Close, 0, |out| {
            out.u8(u8::from(matches!(which, Which::Writer)));
            out.u64(handle.number);
            out.text(tenant);
        });
        if let Ok(packet) = packet {
            link.insist(packet);
        }
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Nobody keeps the instance alive any more, for whatever reason (the runtime may be gone): whoever waits is told.
struct Over(Arc<Shared>);

impl Drop for Over {
    fn drop(&mut self) {
        let link = self.0.link();
        self.0.set(State::Over);
        if let Some(link) = link {
            link.process.kill();
            link.bury();
        }
        self.0.destroyed.send_replace(true);
    }
}

fn read<T: Table, A: Ask<T>>(ask: &A, from: &mut In<'_>) -> Read<A::Answer> {
    let answer = A::Answer::take(from)?;
    from.end()?;
    ask.check(&answer)?;
    Ok(answer)
}

/// Starts a process, or takes the one that is there, and makes the instance in it. Blocks.
fn life(
    image: &Image,
    first: Option<Fresh>,
    kind: Kind,
    request: &CreateRequest,
) -> Result<(String, (Fresh, Vec<u8>))> {
    let mut fresh = match first {
        Some(fresh) => fresh,
        None => image
            .start()
            .map_err(|error| Error::new(abi::E_UNAVAILABLE, error.to_string()))?,
    };
    let caps = fresh
        .create(kind, request, image.settings.start_timeout)
        .map_err(|mut error| {
            let plugin = format!("the plugin {} ", fresh.info.id);
            // Its process says so as a rule.
            if !error.message.starts_with(&plugin) {
                error.message = format!(
                    "{plugin}refused to start the instance {}: {}",
                    request.instance_id, error.message
                );
            }
            fresh.end();
            error
        })?;
    Ok((fresh.info.id.clone(), (fresh, caps)))
}

impl Shared {
    pub(super) fn instance(&self) -> &str {
        &self.request.instance_id
    }

    pub(super) fn grace(&self) -> Duration {
        self.image.settings.cancel_grace
    }

    fn link(&self) -> Option<Arc<Link>> {
        // A panic while it was held leaves one state or the other.
        match &*self.state.read().unwrap_or_else(PoisonError::into_inner) {
            State::Up(link) => Some(Arc::clone(link)),
            State::Down { .. } | State::Over => None,
        }
    }

    fn set(&self, state: State) {
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = state;
    }

    /// The error of a call while there is no process.
    pub(super) fn down(&self, call: &str) -> Error {
        let plugin = &self.plugin;
        let (why, ms) = match &*self.state.read().unwrap_or_else(PoisonError::into_inner) {
            State::Over => ("is stopping", 0),
            State::Up(_) => ("has ended just now", 100),
            State::Down { again } => {
                let left = again.saturating_duration_since(Instant::now());
                let ms = u32::try_from(left.as_millis()).unwrap_or(u32::MAX);
                ("has ended and is started again", ms.max(100))
            }
        };
        let message = format!("{call}: the process of the plugin {plugin} {why}");
        Error::new(abi::E_UNAVAILABLE, message)
            .not_executed()
            .retryable(ms)
    }

    /// Keeps it alive until it is stopped.
    async fn keep(self: Arc<Self>, mut link: Arc<Link>) {
        let _over = Over(Arc::clone(&self));
        let mut restarts = Restarts::default();
        let mut stop = self.stop.subscribe();
        loop {
            let began = Instant::now();
            let end = tokio::select! {
                end = link.serve(&self) => end,
                () = self.stop_it(&link, stop.clone()) => End::Died(NOT_IN_TIME.to_owned()),
            };
            // Before the state says that there is no link: whoever ends this task buries the one that there is.
            link.end().await;
            self.set(State::Down {
                again: Instant::now(),
            });
            let (lost, not_begun) = link.bury();
            let gone = Arc::clone(&link);
            let status = on_a_thread("plugin-reap", move || gone.process.reap()).await;
            let status = status.unwrap_or_else(|error| format!("how, is not known: {error}"));
            let stops = *stop.borrow();
            let why = match end {
                End::Asked if stops => break,
                End::Asked => "it ended without being asked to".to_owned(),
                End::Died(why) => why,
            };
            let (plugin, instance) = (&self.plugin, self.instance());
            if stops {
                // Its data may not be as the plugin's own end leaves it, and nothing else would say so.
                tracing::error!(%plugin, %instance, why, status, calls_lost = lost, calls_not_begun = not_begun, "the process of a plugin that was told to end has not ended by itself");
                break;
            }
            let mut delay = restarts.ended(began.elapsed());
            tracing::error!(%plugin, %instance, why, status, calls_lost = lost, calls_not_begun = not_begun, again_ms = delay.as_millis() as u64, "the process of a plugin has ended");
            link = loop {
                self.set(State::Down {
                    again: Instant::now() + delay,
                });
                tokio::select! {
                    () = tokio::time::sleep(delay) => {}
                    // Dropped or told so: either way nobody needs it any more.
                    _ = stop.wait_for(|stop| *stop) => return,
                }
                match self.again(&link).await {
                    Ok(next) => break next,
                    Err(error) => {
                        delay = restarts.failed();
                        let (plugin, why) = (&self.plugin, &error.message);
                        tracing::error!(%plugin, instance = self.instance(), why, again_ms = delay.as_millis() as u64, "a plugin's process does not start again");
                    }
                }
            };
            tracing::warn!(
                plugin = self.plugin,
                instance = self.instance(),
                life = link.life,
                "a plugin's process was started again"
            );
            self.set(State::Up(Arc::clone(&link)));
        }
    }

    /// Waits until it is told to stop, has the plugin destroy the instance, and gives up after the grace time.
    async fn stop_it(&self, link: &Link, mut stop: watch::Receiver<bool>) {
        // Dropped or told so: either way nobody needs it any more.
        let _ = stop.wait_for(|stop| *stop).await;
        if let Ok(packet) = Packet::new(FrameKind::Destroy, 0, |_| {}) {
            link.send(packet);
        }
        tokio::time::sleep(self.grace()).await;
        let ms = self.grace().as_millis();
        tracing::error!(
            plugin = self.plugin,
            instance = self.instance(),
            "a plugin's process did not end within {ms} ms and is killed"
        );
        link.kill(NOT_IN_TIME.to_owned());
    }

    /// The life after that one.
    async fn again(self: &Arc<Self>, last: &Link) -> Result<Arc<Link>> {
        let shared = Arc::clone(self);
        let job = move || {
            let (_, (fresh, caps)) = life(&shared.image, None, shared.kind, &shared.request)?;
            if let Some(what) = lacks(shared.kind, &shared.caps, &caps) {
                fresh.end();
                // What the gateway has promised by the first ones would not hold.
                let message = format!(
                    "it can do less than when it was first started ({what}): let it do that again, or restart the gateway"
                );
                return Err(Error::new(abi::E_PRECONDITION, message));
            }
            Ok(fresh)
        };
        let made = on_a_thread("plugin-start", job).await;
        let fresh = made.map_err(|error| Error::new(abi::E_UNAVAILABLE, error.to_string()))??;
        let services = Arc::clone(&last.services);
        Link::new(fresh, last.life + 1, services)
            .map_err(|error| Error::new(abi::E_UNAVAILABLE, error.to_string()))
    }
}

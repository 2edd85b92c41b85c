//! One life of a plugin's process: what is sent to it, the calls that it has, and what it sends.

mod outgoing;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io::{self, PipeReader, Read as _};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use skillgate_plugin_abi as abi;
use skillgate_plugin_sdk::model::{Error, Result};
use skillgate_plugin_sdk::wire::Malformed;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

use super::frame::{Frame, Incoming, Kind, Packet};
use super::remote::Shared;
use super::services;
use super::socket;
use super::start::{Fresh, Process};
use crate::sandbox::RunContext;
use crate::wire::{In, Read};
use crate::written::take_error;
use outgoing::{Full, Outgoing};

/// Frames that are handled before others get their turn on this thread.
const FRAMES_AT_ONCE: usize = 64;
/// After so many answers the pipe of begun runs is read, long before it is full.
const ANSWERS_BEFORE_BEGUN: usize = 1024;
/// Bytes of a run's number in that pipe.
const BEGUN_BYTES: usize = 8;
/// How long the death of a process that was killed is waited for, before its calls are answered all the same. It takes
/// longer only when the system cannot end it at once; of the plugin nothing goes on by then.
const DEATH_MAX: Duration = Duration::from_secs(1);

/// Reads the answer and hands it to the caller, or says why there is none.
pub(super) type Done = Box<dyn FnOnce(Result<&mut In<'_>>) -> Read<()> + Send>;

/// A call that the process has, or is about to have.
pub(super) struct Pending {
    pub(super) name: &'static str,
    pub(super) run: Option<Arc<RunContext>>,
    /// The plugin may have begun with it.
    pub(super) started: bool,
    /// Of its output, when it is a run.
    pub(super) taken: services::Taken,
    /// Those of its services that may wait.
    pub(super) open: services::Open,
    /// What is to be said again of what ends with it ([`crate::ask::Ask::ends`]) where the plugin has not heard of it.
    pub(super) ends: Option<Arc<AtomicBool>>,
    pub(super) done: Done,
}

#[derive(Default)]
struct Calls {
    /// Its end has begun: there are no calls any more, and none can be added.
    over: bool,
    last: u64,
    pending: HashMap<u64, Pending>,
}

/// How a life ended.
#[derive(Debug)]
pub(super) enum End {
    /// As it was asked to.
    Asked,
    /// Otherwise, and why as far as this side knows.
    Died(String),
}

pub(crate) struct Link {
    pub(super) life: u64,
    pub(super) plugin: String,
    pub(super) process: Process,
    socket: AsyncFd<UnixStream>,
    /// Numbers of runs that the plugin has begun with.
    begun: PipeReader,
    answers: AtomicUsize,
    incoming: Mutex<Option<Incoming>>,
    outgoing: Mutex<Outgoing>,
    more: Notify,
    calls: Mutex<Calls>,
    /// Services of runs that wait for a thread or are on one, of all lives: what hangs does not end with its process.
    pub(super) services: Arc<AtomicUsize>,
    killed: Notify,
    why_killed: Mutex<Option<String>>,
}

impl Link {
    /// Must be called inside a runtime. `services`: those of the lives before.
    pub(super) fn new(
        fresh: Fresh,
        life: u64,
        services: Arc<AtomicUsize>,
    ) -> io::Result<Arc<Self>> {
        let Fresh {
            process,
            socket,
            begun,
            incoming,
            info,
            ..
        } = fresh;
        socket.set_nonblocking(true)?;
        Ok(Arc::new(Link {
            life,
            plugin: info.id,
            process,
            socket: socket::watched(socket)?,
            begun,
            answers: AtomicUsize::new(0),
            incoming: Mutex::new(Some(incoming)),
            outgoing: Mutex::default(),
            more: Notify::new(),
            calls: Mutex::default(),
            services,
            killed: Notify::new(),
            why_killed: Mutex::default(),
        }))
    }

    // Locks: no plugin's or caller's code runs under them, and what a panic leaves is whole.
    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn outgoing(&self) -> MutexGuard<'_, Outgoing> {
        self.outgoing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a call. When its process is ending, the call comes back.
    pub(super) fn begin(
        &self,
        mut packet: Packet,
        pending: Pending,
    ) -> std::result::Result<u64, Pending> {
        let mut calls = self.calls();
        if calls.over {
            return Err(pending);
        }
        calls.last += 1;
        let call = calls.last;
        calls.pending.insert(call, pending);
        drop(calls);
        packet.set_call(call);
        packet.begins = call;
        if !self.send(packet)
            && let Some(pending) = self.calls().pending.remove(&call)
        {
            if let Some(ends) = &pending.ends {
                ends.store(true, Ordering::Release);
            }
            return Err(pending);
        }
        Ok(call)
    }

    pub(super) fn is_pending(&self, call: u64) -> bool {
        self.calls().pending.contains_key(&call)
    }

    /// What the run of this call may ask for.
    pub(super) fn run(&self, call: u64) -> Option<Arc<RunContext>> {
        self.calls().pending.get(&call)?.run.clone()
    }

    /// Of a run's output so many bytes were taken: how many the process is to be told of now, and whether more are wanted.
    pub(super) fn taken(&self, call: u64, bytes: usize, more: bool) -> Option<(u32, bool)> {
        let mut calls = self.calls();
        calls.pending.get_mut(&call)?.taken.add(bytes, more)
    }

    /// Is there a run of this name?
    fn has_run(&self, run_id: &str) -> bool {
        let calls = self.calls();
        let mut runs = calls.pending.values().filter_map(|p| p.run.as_ref());
        runs.any(|run| run.request.run_id == run_id)
    }

    /// A service of a call that may wait begins. `false`: the call was cancelled. Of one that has ended there is none to end.
    pub(super) fn opens(&self, call: u64, service: &Arc<services::Waits>) -> bool {
        let mut calls = self.calls();
        let pending = calls.pending.get_mut(&call);
        pending.is_none_or(|pending| pending.open.begin(service))
    }

    /// It has come back.
    pub(super) fn closes(&self, call: u64, service: &Arc<services::Waits>) {
        if let Some(pending) = self.calls().pending.get_mut(&call) {
            pending.open.end(service);
        }
    }

    /// Asks the plugin to end a call, and lets it wait for nothing of the gateway's own: what hangs there would keep it from
    /// that, and its process would be ended for it, with the runs of everybody else.
    pub(super) fn cancel(&self, call: u64) {
        let mut calls = self.calls();
        let open = calls.pending.get_mut(&call).map(|it| it.open.cancel());
        drop(calls);
        if let Ok(packet) = Packet::new(Kind::Cancel, call, |_| {}) {
            self.send(packet);
        }
        for service in open.unwrap_or_default() {
            service.cancel(self);
        }
    }

    /// Sends what nobody would say again, such as what it need not keep any more: a process that has no place for that is ended.
    pub(super) fn insist(&self, packet: Packet) {
        if !self.send(packet) {
            self.kill("it does not read what it is told".to_owned());
        }
    }

    /// Ends the process. Its calls get their answers when it is gone.
    pub(super) fn kill(&self, why: String) {
        let mut reason = self
            .why_killed
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        reason.get_or_insert(why);
        drop(reason);
        self.process.kill();
        self.killed.notify_one();
    }

    /// Serves it until it ends.
    pub(super) async fn serve(self: &Arc<Self>, shared: &Arc<Shared>) -> End {
        let incoming = self
            .incoming
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some(mut incoming) = incoming else {
            return End::Died("it was served before".to_owned());
        };
        let gone = async {
            if self.gone().await.is_err() {
                // Then the socket alone says when it ends.
                std::future::pending().await
            }
        };
        let end = tokio::select! {
            end = self.read(&mut incoming, shared) => end,
            end = self.write() => end,
            () = self.killed.notified() => End::Died(String::new()),
            () = gone => {
                // What it has still said counts.
                self.read_rest(&mut incoming, shared).await
            }
        };
        let reason = self
            .why_killed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        match (end, reason) {
            (End::Died(_), Some(reason)) => End::Died(reason),
            (end, _) => end,
        }
    }

    /// Waits until the process is dead. An error: that cannot be seen here.
    async fn gone(&self) -> io::Result<()> {
        let pidfd = socket::watched(socket::pidfd(self.process.pid)?)?;
        pidfd.readable().await.map(drop)
    }

    /// No call is added any more, and the process is killed when it is not dead. Waits for its death: until then a thread
    /// of it may still begin with a run, which must not be called "not executed".
    pub(super) async fn end(&self) {
        self.calls().over = true;
        self.process.kill();
        // Whatever comes of it: its calls are answered now.
        let _ = tokio::time::timeout(DEATH_MAX, self.gone()).await;
    }

    async fn read(self: &Arc<Self>, incoming: &mut Incoming, shared: &Arc<Shared>) -> End {
        let mut handled = 0;
        loop {
            match self.frames(incoming, shared, &mut handled) {
                Ok(None) => {}
                Ok(Some(end)) => return end,
                Err(Malformed(why)) => {
                    self.kill(format!("what it sent makes no sense: {why}"));
                    return End::Died(why);
                }
            }
            if handled >= FRAMES_AT_ONCE {
                handled = 0;
                tokio::task::yield_now().await;
                continue;
            }
            let mut ready = match self.socket.readable().await {
                Ok(ready) => ready,
                Err(error) => return End::Died(error.to_string()),
            };
            match ready.try_io(|socket| incoming.receive(socket.get_ref(), libc::MSG_DONTWAIT)) {
                Ok(Ok(0)) => return End::Died("it has closed its socket".to_owned()),
                Ok(Ok(_)) | Err(_) => {}
                Ok(Err(error)) => return End::Died(error.to_string()),
            }
        }
    }

    /// Handles the frames that are there.
    fn frames(
        self: &Arc<Self>,
        incoming: &mut Incoming,
        shared: &Arc<Shared>,
        handled: &mut usize,
    ) -> Read<Option<End>> {
        while *handled < FRAMES_AT_ONCE {
            let Some(frame) = incoming.frame()? else {
                return Ok(None);
            };
            *handled += 1;
            if let Some(end) = self.handle(frame, shared)? {
                return Ok(Some(end));
            }
        }
        Ok(None)
    }

    /// The process is gone: reads what it has left in the socket, without waiting. More may come for ever, from a child
    /// that it has forked, and is not its word any more.
    async fn read_rest(self: &Arc<Self>, incoming: &mut Incoming, shared: &Arc<Shared>) -> End {
        let mut left = socket::holds(self.socket.get_ref()).unwrap_or(0);
        loop {
            let mut handled = 0;
            match self.frames(incoming, shared, &mut handled) {
                Ok(Some(end)) => return end,
                Ok(None) if handled == FRAMES_AT_ONCE => {
                    tokio::task::yield_now().await;
                    continue;
                }
                Ok(None) => {}
                Err(Malformed(why)) => return End::Died(why),
            }
            if left == 0 {
                break;
            }
            match incoming.receive(self.socket.get_ref(), libc::MSG_DONTWAIT) {
                Ok(n @ 1..) => left = left.saturating_sub(n),
                Ok(0) | Err(_) => break,
            }
        }
        End::Died("it has ended".to_owned())
    }

    async fn write(&self) -> End {
        loop {
            self.more.notified().await;
            loop {
                let mut ready = match self.socket.writable().await {
                    Ok(ready) => ready,
                    Err(error) => return End::Died(error.to_string()),
                };
                match self.send_more() {
                    Ok(Full(false)) => break,
                    Ok(Full(true)) => ready.clear_ready(),
                    Err(error) => return End::Died(error.to_string()),
                }
            }
        }
    }

    fn handle(self: &Arc<Self>, mut frame: Frame, shared: &Arc<Shared>) -> Read<Option<End>> {
        if frame.lost && !matches!(frame.kind, Kind::Answer | Kind::Service) {
            let kind = frame.kind;
            return Err(Malformed(format!("frame: {kind:?} with descriptors")));
        }
        match frame.kind {
            Kind::Answer | Kind::Failed | Kind::Unheard => self.answer(frame)?,
            Kind::Started => {
                if let Some(pending) = self.calls().pending.get_mut(&frame.call) {
                    pending.started = true;
                }
            }
            Kind::Log => {
                let (instance, pace) = (shared.instance(), &shared.log_pace);
                let is_run = |run_id: &str| self.has_run(run_id);
                services::log(&self.plugin, instance, pace, &mut frame, is_run)?;
            }
            Kind::Output => services::output(self, &mut frame)?,
            Kind::Service => services::service(self, frame, &shared.runtime)?,
            Kind::Destroyed => return Ok(Some(End::Asked)),
            kind => return Err(Malformed(format!("frame: {kind:?} from a plugin"))),
        }
        Ok(None)
    }

    /// Hears of the runs that the plugin has begun with: what has been said by now. More may come for ever, from the
    /// plugin or from a child that it has forked.
    fn hear_begun(&self) {
        let mut numbers = [0; BEGUN_BYTES * 512];
        let mut left = socket::holds(&self.begun).unwrap_or(0);
        while left > 0 {
            let at_once = left.min(numbers.len());
            let Ok(n @ 1..) = (&self.begun).read(&mut numbers[..at_once]) else {
                return;
            };
            left -= n;
            let mut calls = self.calls();
            for number in numbers[..n].as_chunks::<BEGUN_BYTES>().0 {
                if let Some(pending) = calls.pending.get_mut(&u64::from_le_bytes(*number)) {
                    pending.started = true;
                }
            }
        }
    }

    fn answer(&self, mut frame: Frame) -> Read<()> {
        let answers = self.answers.fetch_add(1, Ordering::Relaxed);
        if answers % ANSWERS_BEFORE_BEGUN == ANSWERS_BEFORE_BEGUN - 1 {
            self.hear_begun();
        }
        let pending = self.calls().pending.remove(&frame.call);
        let Some(Pending {
            name,
            run,
            ends,
            done,
            ..
        }) = pending
        else {
            return Err(Malformed(format!(
                "answer: there is no call {}, or it has been answered",
                frame.call
            )));
        };
        if let (Kind::Unheard, Some(ends)) = (frame.kind, ends) {
            ends.store(true, Ordering::Release);
        }
        let outcome = if matches!(frame.kind, Kind::Failed | Kind::Unheard) {
            match frame.read(take_error) {
                Ok(error) => done(Err(error)),
                Err(Malformed(why)) => {
                    let plugin = &self.plugin;
                    let message =
                        format!("{name}: the plugin {plugin} gave a malformed answer: {why}");
                    let told = done(Err(Error::new(abi::E_PROTOCOL, message)));
                    told.and(Err(Malformed(why)))
                }
            }
        } else if frame.lost {
            let mut error = Frame::lost("the gateway");
            error.message = format!("{name}: {}", error.message);
            done(Err(error))
        } else {
            done(Ok(&mut frame.reader()))
        };
        // What the run had open ends with it, not before its answer.
        drop(run);
        outcome.map_err(|Malformed(why)| Malformed(format!("{name}: {why}")))
    }

    /// It has ended, or was killed just now: answers all that it had. How many calls that were, and how many of them the
    /// plugin had not begun.
    pub(super) fn bury(&self) -> (usize, usize) {
        self.hear_begun();
        let mut calls = self.calls();
        calls.over = true;
        let pending = std::mem::take(&mut calls.pending);
        drop(calls);
        let outgoing = std::mem::take(&mut *self.outgoing());
        // Of the first, a part has left.
        let unsent = outgoing.packets.iter().skip(usize::from(outgoing.sent > 0));
        let unsent: Vec<u64> = unsent.map(|packet| packet.begins).collect();
        let (all, mut not_begun) = (pending.len(), 0);
        for (
            call,
            Pending {
                name,
                run,
                started,
                done,
                ..
            },
        ) in pending
        {
            let error = if !started || unsent.contains(&call) {
                not_begun += 1;
                let message = format!(
                    "{name}: the process of the plugin {} has ended before it began with this",
                    self.plugin
                );
                Error::new(abi::E_UNAVAILABLE, message)
                    .not_executed()
                    .retryable(100)
            } else {
                let message = format!(
                    "{name}: the process of the plugin {} has ended",
                    self.plugin
                );
                Error::new(abi::E_CRASHED, message)
            };
            // An error cannot be malformed.
            let _ = done(Err(error));
            drop(run);
        }
        (all, not_begun)
    }
}

/// A call that nobody has heard of yet.
pub(super) struct Ready {
    pub(super) packet: Packet,
    pub(super) pending: Pending,
    /// Called when it is on its way.
    pub(super) begun: Box<dyn FnOnce() + Send>,
}

/// A call of a plugin in a process of its own, as its caller has it.
pub(crate) struct Asked {
    pub(super) shared: Arc<Shared>,
    pub(super) link: Arc<Link>,
    /// What is to be sent; `None` once it has been.
    pub(super) ready: Option<Ready>,
    /// Its number, once it has been sent.
    pub(super) call: u64,
}

impl Asked {
    pub(crate) fn runtime(&self) -> tokio::runtime::Handle {
        self.shared.runtime.clone()
    }

    /// Sends it: from here on it belongs to the plugin.
    pub(crate) fn send(&mut self) {
        let Some(Ready {
            packet,
            pending,
            begun,
        }) = self.ready.take()
        else {
            return;
        };
        begun();
        match self.link.begin(packet, pending) {
            Ok(call) => self.call = call,
            Err(pending) => {
                let error = self.shared.down(pending.name);
                // An error cannot be malformed.
                let _ = (pending.done)(Err(error));
            }
        }
    }

    /// Nobody waits any more: the plugin is told, and when it could listen and does not, its process is ended.
    pub(crate) fn cancel(&mut self) {
        if let Some(Ready { pending, .. }) = self.ready.take() {
            let message = format!(
                "{}: the caller left before the plugin was called",
                pending.name
            );
            let error = Error::new(abi::E_CANCELLED, message).not_executed();
            // An error cannot be malformed.
            let _ = (pending.done)(Err(error));
            return;
        }
        if !self.link.is_pending(self.call) {
            return;
        }
        self.link.cancel(self.call);
        if !self.shared.hears_of_the_end {
            return;
        }
        let (link, call, grace) = (Arc::clone(&self.link), self.call, self.shared.grace());
        self.shared.runtime.spawn(async move {
            tokio::time::sleep(grace).await;
            if link.is_pending(call) {
                let ms = grace.as_millis();
                link.kill(format!("a call went on for {ms} ms after it was cancelled"));
            }
        });
    }
}

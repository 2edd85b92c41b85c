//! The other end: the process of a plugin. No part of the gateway runs here but the code that calls plugins.

mod harden;
mod line;
mod pool;
mod run;
mod wait;
mod watch;

use std::fs::File;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, PoisonError, RwLock};

use skillgate_plugin_abi as abi;
use skillgate_plugin_sdk::model::{BlobCreate, CreateRequest, Error, Result};
use skillgate_plugin_sdk::wire::Malformed;

use super::frame::{Frame, Incoming, Kind as FrameKind, Packet, TO_PLUGIN_BYTES_MAX};
use super::start::Kind;
use crate::answer::SHOWN_BYTES;
use crate::ask::{
    Ask, AskFd, AskHealth, AskStat, BlobCommit, BlobDelete, BlobOpen, BlobRead, BlobWrite, Drain,
    Run, SkillGet, SkillList, SkillPut, SkillRead, SkillTree, storage_calls,
};
use crate::blobs::Which;
use crate::inspect::Note;
use crate::instance::{Instance, SandboxTable, StorageTable, Table};
use crate::load::{Loaded, load_copy};
use crate::logs;
use crate::plugin::{self, Made};
use crate::sandbox::RunContext;
use crate::wire::{In, Read, Wire};
use crate::written::put_error;
use line::Line;
use pool::{Job, Pool, Task};
use run::RemoteRun;
use wait::Wait;

/// What a plugin's process is, from its first instruction to its end: it loads the plugin that it is given over standard
/// input, which must be the gateway's socket, and serves it. Ends the process when the socket ends. Returns only when it
/// could not begin.
///
/// # Errors
/// Why it could not begin, in a line.
pub fn serve_plugin() -> std::result::Result<std::convert::Infallible, String> {
    let broken = |error: io::Error| error.to_string();
    let socket = harden::socket().map_err(|error| {
        format!(
            "this command is started by the gateway, with a socket for its standard input: {error}"
        )
    })?;
    harden::process().map_err(broken)?;
    let mut incoming = Incoming::new(TO_PLUGIN_BYTES_MAX);
    let mut wait = Wait::default();
    let mut hello = next(&socket, &mut incoming, &mut wait).map_err(broken)?;
    let wrong = |Malformed(why): Malformed| why;
    if hello.lost {
        return Err(Frame::lost("this process").message);
    }
    let hello = hello.read(Hello::take).map_err(wrong)?;
    if hello.no_new_privs {
        // Before there is another thread: each thread has its own.
        harden::no_new_privs().map_err(broken)?;
    }
    let line = Arc::new(Line::new(socket, hello.begins));
    // Before the plugin's first code, which may not come back.
    watch::begin(Arc::clone(&line)).map_err(broken)?;
    let loaded = match load_copy(&hello.copy, Some(&hello.note)) {
        Ok(loaded) => loaded,
        Err(why) => {
            let mut why = why.to_string();
            why.truncate(why.floor_char_boundary(SHOWN_BYTES));
            line.send(&Packet::new(FrameKind::Refused, 0, |out| out.text(&why)).map_err(broken)?);
            return Err(why);
        }
    };
    let offers = plugin::offers(&loaded);
    let said = Packet::new(FrameKind::Loaded, 0, |out| {
        loaded.info.put(out);
        out.u32(offers);
    });
    line.send(&said.map_err(broken)?);
    let log = Arc::clone(&line);
    logs::send_elsewhere(hello.least_level, move |record| log.log(record));

    let mut create = next(line.socket(), &mut incoming, &mut wait).map_err(broken)?;
    let read = |from: &mut In<'_>| Ok((from.u8("kind")?, CreateRequest::take(from)?));
    let (kind, request) = create.read(read).map_err(wrong)?;
    let start = Start {
        loaded,
        request,
        incoming,
        threads_max: hello.threads_max,
        line,
    };
    if kind == Kind::Storage as u8 {
        start.run::<StorageTable>()
    } else {
        start.run::<SandboxTable>()
    }
}

/// The gateway's first word.
struct Hello {
    no_new_privs: bool,
    threads_max: u32,
    least_level: u32,
    note: Note,
    copy: File,
    begins: File,
}

impl Hello {
    fn take(from: &mut In<'_>) -> Read<Self> {
        let release = from.text("release", SHOWN_BYTES)?;
        if release != env!("CARGO_PKG_VERSION") {
            return Err(Malformed(format!(
                "the gateway is release {release}, and this is {}",
                env!("CARGO_PKG_VERSION")
            )));
        }
        Ok(Hello {
            no_new_privs: from.flag("no_new_privs")?,
            threads_max: from.u32("threads_max")?,
            least_level: from.u32("least_level")?,
            note: Note::take(from)?,
            copy: File::from(from.fd("copy")?),
            begins: File::from(from.fd("begins")?),
        })
    }
}

/// The next frame, waited for. The end of the socket is the end of the process.
fn next(socket: &UnixStream, incoming: &mut Incoming, wait: &mut Wait) -> io::Result<Frame> {
    loop {
        let frame = incoming.frame();
        if let Some(frame) = frame.map_err(|Malformed(why)| io::Error::other(why))? {
            return Ok(frame);
        }
        if wait.receive(socket, incoming)? == 0 {
            harden::end(0);
        }
    }
}

struct Start {
    loaded: Loaded,
    request: CreateRequest,
    incoming: Incoming,
    threads_max: u32,
    line: Arc<Line>,
}

impl Start {
    fn run<T: Served>(self) -> std::result::Result<std::convert::Infallible, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let handle = runtime.handle().clone();
        let made = plugin::make_here::<T>(&self.loaded, &self.request, handle, Box::new(()));
        let (instance, caps) = match made {
            Ok(made) => made,
            Err(error) => {
                let failed = Packet::new(FrameKind::Failed, 0, |out| put_error(&error, out));
                self.line.send(&failed.map_err(|error| error.to_string())?);
                return Err(error.message);
            }
        };
        let canceller = T::HAS_RUNS.then(canceller).transpose();
        let canceller = canceller.map_err(|error| error.to_string())?;
        let server = Arc::new(Server {
            instance: RwLock::new(Some(instance)),
            line: Arc::clone(&self.line),
            canceller,
            runtime,
        });
        let handle = move |frame| server.handle(frame);
        let (line, threads_max) = (Arc::clone(&self.line), self.threads_max as usize);
        Pool::begin(line, self.incoming, threads_max, !T::HAS_RUNS, handle)
            .map_err(|error| format!("no thread to call the plugin on: {error}"))?;
        let created = Packet::new(FrameKind::Created, 0, |out| caps.put(out));
        self.line.send(&created.map_err(|error| error.to_string())?);
        loop {
            std::thread::park();
        }
    }
}

/// A thread that tells an instance of cancellations, where whoever reads must not. It is none of the pool's: those may
/// all be busy with what is to be cancelled.
fn canceller<T: Table>() -> io::Result<Sender<(abi::Op, Arc<Instance<T>>)>> {
    let (send, cancelled) = channel::<(abi::Op, Arc<Instance<T>>)>();
    let thread = std::thread::Builder::new().name("plugin-cancel".into());
    thread.spawn(move || {
        for (op, instance) in cancelled {
            instance.cancel(op);
        }
    })?;
    Ok(send)
}

/// An instance that is served.
struct Server<T: Table> {
    /// `None` once it is being destroyed.
    instance: RwLock<Option<Arc<Instance<T>>>>,
    line: Arc<Line>,
    /// `None`: whoever reads does it.
    canceller: Option<Sender<(abi::Op, Arc<Instance<T>>)>>,
    /// Nobody drives it: for its blocking threads and for waiting.
    runtime: tokio::runtime::Runtime,
}

impl<T: Served> Server<T> {
    fn instance(&self) -> Option<Arc<Instance<T>>> {
        let instance = self.instance.read();
        instance.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What is done about a frame that is more than a moment's work.
    fn handle(self: &Arc<Self>, mut frame: Frame) -> Read<Option<Task>> {
        match frame.kind {
            FrameKind::Call if frame.lost => {
                // The plugin has not heard of it.
                let lost = Frame::lost("the plugin's process").not_executed();
                self.line.answer::<()>(frame.call, Err(lost), true);
                Ok(None)
            }
            FrameKind::Call => {
                let call = frame.call;
                let mut from = frame.reader();
                let code = from.u8("code")?;
                Ok(T::begin(self, code, call, &mut from)?.map(Task::Do))
            }
            FrameKind::Cancel => {
                Ok(self.line.op_of(frame.call).map(|op| {
                    let (instance, canceller) = (self.instance(), self.canceller.clone());
                    let tell = move || match (instance, canceller) {
                        // It is there as long as the process is.
                        (Some(instance), Some(canceller)) => drop(canceller.send((op, instance))),
                        (Some(instance), None) => instance.cancel(op),
                        // It is being destroyed.
                        (None, _) => {}
                    };
                    Task::GiveUp(frame.call, Box::new(tell))
                }))
            }
            FrameKind::Reply => {
                self.line.reply(frame);
                Ok(None)
            }
            FrameKind::Taken => {
                let read = |from: &mut In<'_>| Ok((from.u32("bytes")?, from.flag("more")?));
                let (bytes, more) = frame.read(read)?;
                self.line.taken(frame.call, bytes as usize, more);
                Ok(None)
            }
            FrameKind::Close => {
                let read = |from: &mut In<'_>| {
                    let (writer, handle) = (from.flag("writer")?, from.u64("handle")?);
                    Ok((writer, handle, from.text("tenant", usize::MAX)?))
                };
                let (writer, handle, tenant) = frame.read(read)?;
                let which = if writer { Which::Writer } else { Which::Reader };
                let job = self.instance().map(|instance| Job {
                    tenant,
                    call: None,
                    work: Box::new(move || T::close(&instance.table, which, handle)),
                });
                Ok(job.map(Task::Do))
            }
            FrameKind::Destroy => {
                let server = Arc::clone(self);
                Ok(Some(Task::Do(Job {
                    tenant: String::new(),
                    call: None,
                    work: Box::new(move || server.destroy()),
                })))
            }
            kind => Err(Malformed(format!("frame: {kind:?} from the gateway"))),
        }
    }

    /// Makes a call's op, and calls the plugin: here when it promises not to block, else in a job. Without `SKG_F_BLOCKING`
    /// it is back within about a millisecond (contract): to wake another thread that reads meanwhile would cost more.
    /// Where there are runs every call is a job, see [`Served::HAS_RUNS`]: beside what a run costs, that is nothing.
    fn begin<A: Ask<T>>(
        &self,
        call: u64,
        ask: A,
        run: Option<Arc<RunContext>>,
    ) -> Read<Option<Job>> {
        let is_run = run.is_some();
        let begun = match self.instance() {
            Some(instance) => {
                let (line, open) = (Arc::clone(&self.line), ask.ends().cloned());
                let begun = instance.begin(ask, run, move |answer| {
                    let unheard = open.is_some_and(|open| open.load(Ordering::Acquire));
                    line.answer(call, answer, unheard);
                });
                begun.map(|begun| (begun, instance.blocking))
            }
            None => Err(Error::new(abi::E_UNAVAILABLE, "the instance is ending").not_executed()),
        };
        match begun {
            Ok((begun, blocking)) => {
                self.line.begun(call, begun.op());
                let line = Arc::clone(&self.line);
                let tenant = begun.tenant().to_owned();
                let work = move || {
                    if is_run {
                        line.started(call);
                    }
                    begun.invoke();
                };
                if blocking || T::HAS_RUNS {
                    return Ok(Some(Job {
                        tenant,
                        call: Some(call),
                        work: Box::new(work),
                    }));
                }
                work();
            }
            Err(error) => self.line.answer::<()>(call, Err(error), true),
        }
        Ok(None)
    }

    /// Ends the instance, when its calls have ended, and then the process.
    fn destroy(&self) {
        let instance = self.instance.write();
        let instance = instance.unwrap_or_else(PoisonError::into_inner).take();
        if let Some(instance) = instance {
            let mut destroyed = instance.destroyed();
            drop(instance);
            // An error says that the sender is gone, which is as good an end as any.
            drop(self.runtime.block_on(destroyed.wait_for(|done| *done)));
        }
        if let Ok(packet) = Packet::new(FrameKind::Destroyed, 0, |_| {}) {
            self.line.send(&packet);
        }
        harden::end(0);
    }
}

/// Which calls a kind of plugin has.
trait Served: Made + Sized {
    /// There are runs, and a run may wait for a reply of the gateway's inside any call, blocking or not. So whoever
    /// reads never calls such a plugin: not to begin a run, and not for what may wait for a lock that a run holds.
    const HAS_RUNS: bool;

    fn begin(
        server: &Arc<Server<Self>>,
        code: u8,
        call: u64,
        from: &mut In<'_>,
    ) -> Read<Option<Job>>;
    fn close(table: &Self, which: Which, handle: u64);
}

/// Reads the rest of a call, which is all that there is.
fn whole<T>(from: &mut In<'_>) -> Read<T>
where
    T: Wire,
{
    let value = T::take(from)?;
    from.end()?;
    Ok(value)
}

fn no_such_call<T>(code: u8) -> Read<T> {
    Err(Malformed(format!("call: code {code}")))
}

impl Served for StorageTable {
    const HAS_RUNS: bool = false;

    fn begin(
        server: &Arc<Server<Self>>,
        code: u8,
        call: u64,
        from: &mut In<'_>,
    ) -> Read<Option<Job>> {
        /// The call whose code it is.
        macro_rules! one_of {
            ($($ask:ty),+) => {
                $(if code == <$ask as Ask<StorageTable>>::CODE {
                    return server.begin(call, whole::<$ask>(from)?, None);
                })+
            };
        }
        storage_calls!(one_of);
        no_such_call(code)
    }
    fn close(table: &Self, which: Which, handle: u64) {
        which.close(table, handle);
    }
}

impl Served for SandboxTable {
    const HAS_RUNS: bool = true;

    fn begin(
        server: &Arc<Server<Self>>,
        code: u8,
        call: u64,
        from: &mut In<'_>,
    ) -> Read<Option<Job>> {
        if code == <Run as Ask<SandboxTable>>::CODE {
            let run: Run = whole(from)?;
            let context = Arc::new(RunContext {
                host: Arc::new(RemoteRun::new(&server.line, call)),
                request: Arc::clone(&run.0),
            });
            server.begin(call, run, Some(context))
        } else if code == <AskHealth as Ask<SandboxTable>>::CODE {
            server.begin(call, whole::<AskHealth>(from)?, None)
        } else if code == <Drain as Ask<SandboxTable>>::CODE {
            server.begin(call, whole::<Drain>(from)?, None)
        } else {
            no_such_call(code)
        }
    }
    /// It has neither readers nor writers.
    fn close(_: &Self, _: Which, _: u64) {}
}

impl Line {
    /// The answer of a call, from whichever thread has it. `unheard`: it did not reach the plugin, or was
    /// refused there.
    fn answer<A: Wire>(&self, call: u64, answer: Result<A>, unheard: bool) {
        self.ended(call);
        let failed = match unheard {
            true => FrameKind::Unheard,
            false => FrameKind::Failed,
        };
        let sent = answer.and_then(|answer| {
            let packet = Packet::new(FrameKind::Answer, call, |out| answer.put(out));
            let packet = packet.map_err(|error| Error::new(abi::E_EXHAUSTED, error.to_string()))?;
            self.try_send(&packet)
        });
        if let Err(error) = sent
            && let Ok(packet) = Packet::new(failed, call, |out| put_error(&error, out))
        {
            self.send(&packet);
        }
    }
}

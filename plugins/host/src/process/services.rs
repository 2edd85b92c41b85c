//! What a plugin's process wants of the gateway: the log, and the services of its runs. Nothing that it says is believed:
//! which run it is about must be one that it has, a secret must be one that the run was granted.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use skillgate_plugin_abi as abi;
use skillgate_plugin_sdk::model::{Error, Result};
use skillgate_plugin_sdk::wire::{self, Malformed};

use super::frame::{Frame, Kind, Packet};
use super::link::Link;
use crate::answer::{NAME_BYTES, SHOWN_BYTES};
use crate::logs;
use crate::sandbox::RunContext;
use crate::wire::{In, Out, Read};
use crate::written::{file, put_error};

/// Most bytes of a piece of a blob or of a run's output.
pub(super) const PIECE_BYTES: usize = 1 << 20;
/// Bytes of a run's output that may be under way. More: the plugin waits until they were taken.
pub(super) const WINDOW_BYTES: usize = 256 << 10;
/// Bytes that the plugin's process sends of it at once.
pub(super) const OUTPUT_BYTES: usize = WINDOW_BYTES / 2;
/// Bytes of it that were taken and that the process is not told of yet: not a frame for each line that a run prints.
const UNTOLD_BYTES: usize = WINDOW_BYTES / 4;
// What waits for room has it when all that was sent has been taken.
const _: () = assert!(UNTOLD_BYTES + OUTPUT_BYTES <= WINDOW_BYTES);
/// Services about blobs that a process may have at the same time.
const BLOB_SERVICES_MAX: usize = 256;

/// What a run may ask for; each is answered by a [`Kind::Reply`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Service {
    Secret = 1,
    GateServe,
    BlobFd,
    BlobRead,
    BlobCreate,
    BlobWrite,
    BlobFinish,
}

impl Service {
    fn of(n: u8) -> Read<Service> {
        Ok(match n {
            1 => Service::Secret,
            2 => Service::GateServe,
            3 => Service::BlobFd,
            4 => Service::BlobRead,
            5 => Service::BlobCreate,
            6 => Service::BlobWrite,
            7 => Service::BlobFinish,
            n => return Err(Malformed(format!("service: {n}"))),
        })
    }
}

/// A record of the log. `is_run`: is there a run of this name?
pub(super) fn log(
    plugin: &str,
    instance: &str,
    pace: &logs::Pace,
    frame: &mut Frame,
    is_run: impl FnOnce(&str) -> bool,
) -> Read<()> {
    let read = |from: &mut In<'_>| {
        let level = from.u32("level")?;
        Ok((
            level,
            from.text("target", logs::TARGET_BYTES)?,
            from.text("run_id", SHOWN_BYTES)?,
            from.text("fields", logs::FIELDS_BYTES)?,
            from.text("message", SHOWN_BYTES)?,
        ))
    };
    let (level, target, run_id, fields, message) = frame.read(read)?;
    if !logs::enabled(level) {
        return Ok(());
    }
    let run_id = if !run_id.is_empty() && is_run(&run_id) {
        run_id.as_str()
    } else {
        ""
    };
    logs::write(&logs::Record {
        level,
        plugin,
        instance,
        target: &target,
        run_id,
        fields: &fields,
        message: &message,
        pace,
    });
    Ok(())
}

/// What has been taken of a run's output.
#[derive(Debug, Default)]
pub(super) struct Taken {
    untold: usize,
    /// Its process knows that no more is wanted.
    enough: bool,
}

impl Taken {
    /// So much more. What the process is to be told now, if anything: how much was taken, and whether more is wanted.
    pub(super) fn add(&mut self, bytes: usize, more: bool) -> Option<(u32, bool)> {
        self.untold += bytes;
        let news = !more && !self.enough;
        self.enough |= news;
        if self.untold < UNTOLD_BYTES && !news {
            return None;
        }
        let bytes = u32::try_from(std::mem::take(&mut self.untold)).unwrap_or(u32::MAX);
        Some((bytes, !self.enough))
    }
}

/// A service that may wait. It is answered once: with what comes of it, or when its call is cancelled, if that is sooner.
pub(super) struct Waits {
    number: u64,
    answered: AtomicBool,
}

impl Waits {
    fn answer(&self, link: &Link, packet: Packet) {
        if !self.answered.swap(true, Ordering::AcqRel) {
            link.reply(packet);
        }
    }

    /// What it does goes on, and is of no use to its run any more.
    pub(super) fn cancel(&self, link: &Link) {
        let cancelled = Error::new(abi::E_CANCELLED, "the run was cancelled");
        self.answer(link, failed(self.number, &cancelled));
    }
}

/// Those of a call.
#[derive(Default)]
pub(super) struct Open {
    all: Vec<Arc<Waits>>,
    /// It begins no more of them.
    cancelled: bool,
}

impl Open {
    /// `false`: it is not begun any more.
    pub(super) fn begin(&mut self, service: &Arc<Waits>) -> bool {
        if !self.cancelled {
            self.all.push(Arc::clone(service));
        }
        !self.cancelled
    }

    pub(super) fn end(&mut self, service: &Arc<Waits>) {
        // Not by its number: that is the process's word.
        self.all.retain(|it| !Arc::ptr_eq(it, service));
    }

    /// Those that are to be told.
    pub(super) fn cancel(&mut self) -> Vec<Arc<Waits>> {
        self.cancelled = true;
        std::mem::take(&mut self.all)
    }
}

/// Output of a run that goes on. Of one that has ended it is thrown away and not answered: its process lets nobody wait
/// for that ([`super::serve`]).
pub(super) fn output(link: &Link, frame: &mut Frame) -> Read<()> {
    let call = frame.call;
    let mut from = frame.reader();
    let stream = from.u8("stream")?;
    let data = from.data("data", PIECE_BYTES)?;
    from.end()?;
    if !matches!(u32::from(stream), abi::STDOUT | abi::STDERR | abi::RUNLOG) {
        return Err(Malformed(format!("stream: {stream}")));
    }
    let Some(run) = link.run(call) else {
        return Ok(());
    };
    let more = guarded(|| Ok(run.host.output(u32::from(stream), data))).unwrap_or(false);
    if let Some((bytes, more)) = link.taken(call, data.len(), more) {
        let packet = Packet::new(Kind::Taken, call, |out| {
            out.u32(bytes);
            out.u8(u8::from(more));
        });
        if let Ok(packet) = packet {
            link.reply(packet);
        }
    }
    Ok(())
}

/// A panic of the gateway's own code ends this one service, not the plugin.
fn guarded<R>(f: impl FnOnce() -> Result<R>) -> Result<R> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|_| {
        tracing::error!("a service of a run panicked");
        Err(Error::new(
            abi::E_INTERNAL,
            "the gateway's own code has failed",
        ))
    })
}

/// A service. Those about blobs may wait, and so do it on another thread.
pub(super) fn service(
    link: &Arc<Link>,
    mut frame: Frame,
    runtime: &tokio::runtime::Handle,
) -> Read<()> {
    let (service, number) = {
        let mut from = frame.reader();
        (Service::of(from.u8("service")?)?, from.u64("number")?)
    };
    if frame.lost {
        if service != Service::GateServe {
            return Err(Malformed(format!("service: {service:?} with descriptors")));
        }
        link.reply(failed(number, &Frame::lost("the gateway")));
        return Ok(());
    }
    let run = link.run(frame.call);
    if matches!(service, Service::Secret | Service::GateServe) {
        let packet = serve(service, number, run, &mut frame)?;
        link.reply(packet);
        return Ok(());
    }
    let call = frame.call;
    let waits = Arc::new(Waits {
        number,
        answered: AtomicBool::new(false),
    });
    if link.services.fetch_add(1, Ordering::AcqRel) >= BLOB_SERVICES_MAX {
        link.services.fetch_sub(1, Ordering::AcqRel);
        let many = format!("{BLOB_SERVICES_MAX} services at the same time");
        let many = Error::new(abi::E_EXHAUSTED, many);
        link.reply(failed(number, &many));
        return Ok(());
    }
    if !link.opens(call, &waits) {
        link.services.fetch_sub(1, Ordering::AcqRel);
        waits.cancel(link);
        return Ok(());
    }
    let (of, it) = (Arc::clone(link), Arc::clone(&waits));
    let taken = Arc::new(AtomicBool::new(false));
    let is_taken = Arc::clone(&taken);
    let work = move || {
        if is_taken.swap(true, Ordering::AcqRel) {
            return;
        }
        match serve(service, number, run, &mut frame) {
            Ok(packet) => it.answer(&of, packet),
            Err(Malformed(why)) => of.kill(format!("what it sent makes no sense: {why}")),
        }
        of.closes(call, &it);
        of.services.fetch_sub(1, Ordering::AcqRel);
    };
    let began = catch_unwind(AssertUnwindSafe(|| drop(runtime.spawn_blocking(work))));
    if began.is_err() && !taken.swap(true, Ordering::AcqRel) {
        // The runtime has no thread, and neither has the system. What was to be done stays in the runtime's queue, and whoever
        // waits for it would wait for somebody else to ask for a thread.
        link.closes(call, &waits);
        link.services.fetch_sub(1, Ordering::AcqRel);
        let none = Error::new(abi::E_EXHAUSTED, "the gateway gets no thread for it");
        waits.answer(link, failed(number, &none));
    }
    Ok(())
}

/// The reply to a service; what was written must be sendable.
fn reply(number: u64, write: impl FnOnce(&mut Out)) -> Packet {
    let packet = Packet::new(Kind::Reply, number, |out| {
        out.u8(1);
        write(out);
    });
    packet.unwrap_or_else(|error| {
        let unsendable = Error::new(abi::E_EXHAUSTED, error.to_string());
        failed(number, &unsendable)
    })
}

/// The reply to a service that has failed.
pub(super) fn failed(number: u64, error: &Error) -> Packet {
    let mut out = Out::default();
    put_error(error, &mut out);
    let failed = Packet::new(Kind::Reply, number, |to| {
        to.u8(0);
        to.bytes.extend_from_slice(&out.bytes);
    });
    // An error has no descriptors and is small: there is nothing to refuse.
    failed.unwrap_or_else(|_| Packet {
        bytes: Vec::new(),
        fds: Vec::new(),
        begins: 0,
        secret: false,
        reply: false,
    })
}

fn serve(
    service: Service,
    number: u64,
    run: Option<Arc<RunContext>>,
    frame: &mut Frame,
) -> Read<Packet> {
    let mut from = frame.reader();
    from.u8("service")?;
    from.u64("number")?;
    // Read whole, whatever becomes of it.
    let asked = Asked::take(service, &mut from)?;
    from.end()?;
    let Some(run) = run else {
        let stale = Error::new(abi::E_STALE, "this run has ended, or never was");
        return Ok(failed(number, &stale));
    };
    if let Asked::Secret(name) = &asked {
        return Ok(secret(number, &run, name));
    }
    let answer = guarded(|| asked.answer(&run));
    Ok(match answer {
        Ok(answer) => reply(number, |out| answer.put(out)),
        Err(error) => failed(number, &error),
    })
}

fn secret(number: u64, run: &RunContext, name: &String) -> Packet {
    let value = if run.request.secrets.contains(name) {
        guarded(|| run.host.secret(name))
    } else {
        Err(Error::new(
            abi::E_PERMISSION,
            "the request does not name this secret",
        ))
    };
    match value {
        Ok(mut value) => {
            let mut packet = reply(number, |out| out.data(&value));
            packet.secret = true;
            wire::wipe(&mut value);
            packet
        }
        Err(error) => failed(number, &error),
    }
}

/// What is wanted.
enum Asked {
    Secret(String),
    GateServe(OwnedFd),
    BlobFd(String),
    BlobRead { id: String, offset: u64, cap: usize },
    BlobCreate(String),
    BlobWrite(i64, Vec<u8>),
    BlobFinish(i64, bool),
}

/// What it is answered with.
enum Answer {
    Done,
    Fd(OwnedFd),
    Data(Vec<u8>),
    Writer(i64),
    Id(Option<String>),
}

impl Asked {
    fn take(service: Service, from: &mut In<'_>) -> Read<Asked> {
        Ok(match service {
            Service::Secret => Asked::Secret(from.text("name", NAME_BYTES)?),
            Service::GateServe => Asked::GateServe(file(from, libc::S_IFSOCK)?),
            Service::BlobFd => Asked::BlobFd(from.text("id", NAME_BYTES)?),
            Service::BlobRead => Asked::BlobRead {
                id: from.text("id", NAME_BYTES)?,
                offset: from.u64("offset")?,
                cap: usize::try_from(from.u64("cap")?)
                    .unwrap_or(0)
                    .min(PIECE_BYTES),
            },
            Service::BlobCreate => Asked::BlobCreate(from.text("kind", NAME_BYTES)?),
            Service::BlobWrite => Asked::BlobWrite(
                from.u64("writer")?.cast_signed(),
                from.data("data", PIECE_BYTES)?.to_vec(),
            ),
            Service::BlobFinish => {
                Asked::BlobFinish(from.u64("writer")?.cast_signed(), from.flag("commit")?)
            }
        })
    }

    fn answer(self, run: &RunContext) -> Result<Answer> {
        let host = &run.host;
        match self {
            Asked::Secret(_) => Err(Error::new(abi::E_INTERNAL, "a secret is given elsewhere")),
            Asked::GateServe(listener) => host.gate_serve(listener).map(|()| Answer::Done),
            Asked::BlobFd(id) => host.blob_fd(&id).map(Answer::Fd),
            Asked::BlobRead { id, offset, cap } => {
                let mut data = vec![0; cap];
                let n = host.blob_read(&id, offset, &mut data)?;
                data.truncate(n);
                Ok(Answer::Data(data))
            }
            Asked::BlobCreate(kind) => host.blob_create(&kind).map(Answer::Writer),
            Asked::BlobWrite(writer, data) => host.blob_write(writer, &data).map(|()| Answer::Done),
            Asked::BlobFinish(writer, commit) => host.blob_finish(writer, commit).map(Answer::Id),
        }
    }
}

impl Answer {
    fn put(self, out: &mut Out) {
        match self {
            Answer::Done => {}
            Answer::Fd(fd) => out.fds.push(fd),
            Answer::Data(data) => out.data(&data),
            Answer::Writer(writer) => out.u64(writer.cast_unsigned()),
            Answer::Id(id) => {
                out.u8(u8::from(id.is_some()));
                out.text(id.as_deref().unwrap_or_default());
            }
        }
    }
}

/// A reply as the plugin's process reads it.
pub(super) fn replied<T>(mut frame: Frame, read: impl FnOnce(&mut In<'_>) -> Read<T>) -> Result<T> {
    if frame.lost {
        return Err(Frame::lost("the plugin's process"));
    }
    let mut nothing = VecDeque::new();
    let answer = (|| {
        let mut from = In::new(&frame.body, &mut frame.fds);
        if from.flag("ok")? {
            let value = read(&mut from)?;
            from.end()?;
            Ok(Ok(value))
        } else {
            let mut from = In::new(frame.body.get(1..).unwrap_or_default(), &mut nothing);
            crate::written::take_error(&mut from).map(Err)
        }
    })();
    match answer {
        Ok(answer) => answer,
        Err(Malformed(why)) => Err(Error::new(abi::E_PROTOCOL, why)),
    }
}

#[cfg(test)]
mod tests {
    use skillgate_plugin_sdk::model::RunRequest;

    use super::*;
    use crate::sandbox::RunHost;

    /// Has every secret, and nothing else.
    struct Rich;

    fn nothing<T>() -> Result<T> {
        Err(Error::new(abi::E_NOT_FOUND, "nothing"))
    }

    impl RunHost for Rich {
        fn output(&self, _: u32, _: &[u8]) -> bool {
            true
        }
        fn secret(&self, name: &str) -> Result<Vec<u8>> {
            Ok(format!("the value of {name}").into_bytes())
        }
        fn blob_fd(&self, _: &str) -> Result<OwnedFd> {
            nothing()
        }
        fn blob_read(&self, _: &str, _: u64, _: &mut [u8]) -> Result<usize> {
            nothing()
        }
        fn blob_create(&self, _: &str) -> Result<i64> {
            nothing()
        }
        fn blob_write(&self, _: i64, _: &[u8]) -> Result<()> {
            nothing()
        }
        fn blob_finish(&self, _: i64, _: bool) -> Result<Option<String>> {
            nothing()
        }
        fn gate_serve(&self, _: OwnedFd) -> Result<()> {
            Ok(())
        }
    }

    fn run() -> Arc<RunContext> {
        Arc::new(RunContext {
            host: Arc::new(Rich),
            request: Arc::new(RunRequest {
                secrets: vec!["GRANTED".into()],
                ..RunRequest::default()
            }),
        })
    }

    /// As a process that does not keep to anything would send it.
    fn sent(service: Service, write: impl FnOnce(&mut Out)) -> Frame {
        let mut out = Out::default();
        out.u8(service as u8);
        out.u64(7);
        write(&mut out);
        Frame {
            kind: Kind::Service,
            call: 1,
            body: out.bytes,
            fds: out.fds.into(),
            lost: false,
        }
    }

    fn outcome(
        service: Service,
        run: Option<Arc<RunContext>>,
        write: impl FnOnce(&mut Out),
    ) -> Result<Vec<u8>> {
        let mut packet = serve(service, 7, run, &mut sent(service, write)).unwrap();
        let frame = Frame {
            kind: Kind::Reply,
            call: 7,
            body: packet.bytes[super::super::frame::HEADER_BYTES..].to_vec(),
            fds: std::mem::take(&mut packet.fds).into(),
            lost: false,
        };
        replied(frame, |from| {
            from.data("value", PIECE_BYTES).map(<[u8]>::to_vec)
        })
    }

    #[test]
    fn a_secret_is_given_to_a_run_that_was_granted_it_while_it_lasts() {
        let ask = |run, name: &'static str| outcome(Service::Secret, run, |out| out.text(name));
        assert_eq!(
            ask(Some(run()), "GRANTED").unwrap(),
            b"the value of GRANTED"
        );
        let other = ask(Some(run()), "ANOTHER").unwrap_err();
        assert_eq!(other.code, abi::E_PERMISSION);
        assert_eq!(ask(None, "GRANTED").unwrap_err().code, abi::E_STALE);
        let packet = secret(7, &run(), &"GRANTED".to_owned());
        assert!(packet.secret, "wiped when it has left");
    }

    #[test]
    fn what_makes_no_sense_is_told_apart_from_what_is_refused() {
        let gate = |fd: OwnedFd| {
            let mut frame = sent(Service::GateServe, |out| out.fds.push(fd));
            serve(Service::GateServe, 7, Some(run()), &mut frame).map(drop)
        };
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        gate(listener.into()).unwrap();
        let file = gate(tempfile::tempfile().unwrap().into()).unwrap_err();
        assert_eq!(file.0, "fd: is a regular file instead of a socket");
        let mut none = sent(Service::GateServe, |_| {});
        assert!(serve(Service::GateServe, 7, Some(run()), &mut none).is_err());
        let large = |out: &mut Out| {
            out.u64(1);
            out.data(&vec![0; PIECE_BYTES + 1]);
        };
        let mut large = sent(Service::BlobWrite, large);
        assert!(serve(Service::BlobWrite, 7, Some(run()), &mut large).is_err());
        let mut long = sent(Service::BlobFd, |out| {
            out.text("blob:a");
            out.u8(0);
        });
        assert!(serve(Service::BlobFd, 7, Some(run()), &mut long).is_err());
        assert!(Service::of(0).is_err() && Service::of(8).is_err());
    }
}

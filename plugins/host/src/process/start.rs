//! Starting a plugin's process: until it has said what it is, and until it has an instance. Blocks.

use std::fs::File;
use std::io::{self, PipeReader, Read as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use skillgate_plugin_abi as abi;
use skillgate_plugin_sdk::model::{CreateRequest, Error};
use skillgate_plugin_sdk::wire::Malformed;

use super::frame::{FROM_PLUGIN_BYTES_MAX, Frame, Incoming, Kind as FrameKind, Packet};
use super::{ProcessSettings, services, socket};
use crate::answer::SHOWN_BYTES;
use crate::inspect::Note;
use crate::load::{Checked, LoadError, Refusal};
use crate::logs;
use crate::plugin::Info;
use crate::wire::{In, Wire};
use crate::written::take_error;

/// Bytes of what it writes to standard error that are kept, to say why it has ended.
const LAST_WORDS_BYTES: usize = 2048;
/// How long a process that was killed, or has closed its socket, may take to be gone.
const GONE_MAX: Duration = Duration::from_secs(5);

/// Which kind of instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Storage = 1,
    Sandbox = 2,
}

/// What a plugin's processes are started from: bytes that were checked, and how.
#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) checked: Arc<Checked>,
    pub(crate) settings: ProcessSettings,
}

/// A process that has loaded the plugin and has no instance yet.
#[derive(Debug)]
pub(crate) struct Fresh {
    pub(crate) process: Process,
    pub(crate) socket: UnixStream,
    /// Numbers of runs that the plugin has begun with, eight bytes each: read when it has died, or to make room, so that
    /// nobody is woken for one.
    pub(crate) begun: PipeReader,
    pub(crate) incoming: Incoming,
    pub(crate) info: Info,
    /// Bits of [`Kind`].
    pub(crate) offers: u32,
    deadline: Instant,
}

/// A process of ours, which is not left behind.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    child: Mutex<Option<Child>>,
    last_words: LastWords,
}

/// The end of what it has written to standard error.
#[derive(Debug)]
struct LastWords {
    said: Arc<Mutex<Vec<u8>>>,
    /// Closed when nothing more can come.
    over: Mutex<Receiver<()>>,
}

impl LastWords {
    /// Keeps the process from waiting for a reader, too.
    fn listen(stderr: PipeReader, pidfd: OwnedFd) -> io::Result<LastWords> {
        let said: Arc<Mutex<Vec<u8>>> = Arc::default();
        let kept = Arc::clone(&said);
        let (open, over) = sync_channel(0);
        let thread = std::thread::Builder::new().name("plugin-stderr".into());
        thread.spawn(move || {
            let _open = open;
            let keep = |said: &[u8]| {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend_from_slice(said);
                let old = kept.len().saturating_sub(LAST_WORDS_BYTES);
                kept.drain(..old);
            };
            if let Err(error) = read_until_ended(stderr, &pidfd, keep) {
                tracing::warn!(%error, "what a plugin's process writes to standard error is not read any more");
            }
        })?;
        let over = Mutex::new(over);
        Ok(LastWords { said, over })
    }

    /// Of a process that has ended.
    fn text(&self) -> String {
        let over = self.over.lock().unwrap_or_else(PoisonError::into_inner);
        // Nothing is ever sent: this is its end.
        let _ = over.recv();
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&said).trim().to_owned()
    }
}

/// Reads what comes, until all have closed it, or until the process has ended: what that has started may have standard error
/// for as long as it likes, and is not heard any more then, but for what is there already.
fn read_until_ended(
    mut stderr: PipeReader,
    pidfd: &OwnedFd,
    mut keep: impl FnMut(&[u8]),
) -> io::Result<()> {
    let mut buffer = [0; 4096];
    while !socket::ends_before(pidfd, &stderr)? {
        match stderr.read(&mut buffer)? {
            0 => return Ok(()),
            n => keep(&buffer[..n]),
        }
    }
    let mut left = socket::holds(&stderr)?;
    while left > 0 {
        let next = left.min(buffer.len());
        stderr.read_exact(&mut buffer[..next])?;
        keep(&buffer[..next]);
        left -= next;
    }
    Ok(())
}

impl Process {
    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends it now.
    pub(crate) fn kill(&self) {
        if let Some(child) = self.child().as_mut() {
            // It has ended by itself: then it is as it should be.
            let _ = child.kill();
        }
    }

    /// Waits for its end, and says how it ended; after [`GONE_MAX`] it is killed. Blocks.
    pub(crate) fn reap(&self) -> String {
        let Some(mut child) = self.child().take() else {
            return "it has ended".to_owned();
        };
        let began = Instant::now();
        let status = loop {
            match child.try_wait() {
                Ok(Some(status)) => break Ok(status),
                Ok(None) if began.elapsed() < GONE_MAX => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Ok(None) => {
                    let _ = child.kill();
                    break child.wait();
                }
                Err(error) => break Err(error),
            }
        };
        let said = self.last_words.text();
        let how = status.map_or_else(|error| error.to_string(), describe);
        if said.is_empty() {
            how
        } else {
            format!("{how}; its last words: {said}")
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let Some(mut child) = self.child().take() else {
            return;
        };
        let _ = child.kill();
        // Killed, it is gone soon, but perhaps not at once, and this may be the event loop. Without a thread its number stays
        // taken for as long as this process lives.
        let thread = std::thread::Builder::new().name("plugin-reap".into());
        drop(thread.spawn(move || child.wait()));
    }
}

fn describe(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("it was ended by signal {signal}"),
        (None, code) => format!("it has exited with code {}", code.unwrap_or(-1)),
    }
}

impl Image {
    /// Starts a process and has it load the plugin.
    pub(crate) fn start(&self) -> Result<Fresh, LoadError> {
        let path = &self.checked.inspection.path;
        let refuse = |why| LoadError::new(path, why);
        let failed = |why: String| refuse(Refusal::Process(why));
        let (mut fresh, begins) = Self::spawn(&self.settings, self.id()).map_err(|error| {
            failed(format!(
                "{error}: it needs memory, a process and descriptors"
            ))
        })?;
        let Some(note) = &self.checked.inspection.note else {
            return Err(refuse(Refusal::NoNote));
        };
        match fresh.hello(&self.checked.copy, begins, note, &self.settings) {
            Ok(Ok(())) => {}
            Ok(Err(refusal)) => return Err(refuse(Refusal::InProcess(refusal))),
            Err(why) => return Err(failed(fresh.why(&why))),
        }
        self.checked.agrees(&fresh.info)?;
        Ok(fresh)
    }

    fn id(&self) -> &str {
        let note = self.checked.inspection.note.as_ref();
        note.map_or("", |note| note.id.as_str())
    }

    /// With the end of a pipe that is the process's.
    pub(super) fn spawn(settings: &ProcessSettings, id: &str) -> io::Result<(Fresh, OwnedFd)> {
        let (ours, theirs) = UnixStream::pair()?;
        let (begun, begins) = io::pipe()?;
        socket::set_nonblocking(begun.as_fd())?;
        socket::set_nonblocking(begins.as_fd())?;
        let mut child = Command::new(&settings.program)
            .args(&settings.args)
            // What `ps` shows.
            .arg0(format!("skillgate: plugin {id}"))
            .env_clear()
            .envs(
                settings
                    .environment
                    .iter()
                    .map(|(name, value)| (name, value)),
            )
            // The socket takes the place of standard input: no number to agree on, nothing else inherited.
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // A terminal's Ctrl-C is for the gateway, which then ends its plugins in order.
            .process_group(0)
            .spawn()?;
        let stderr = child.stderr.take();
        let stderr = stderr.ok_or_else(|| io::Error::other("it has no standard error"));
        let pidfd = socket::pidfd(child.id());
        let listen = |stderr| LastWords::listen(PipeReader::from(OwnedFd::from(stderr)), pidfd?);
        let last_words = stderr.and_then(listen).inspect_err(|_| {
            // It is not left behind. That it has ended by itself is as good.
            let _ = child.kill().and_then(|()| child.wait());
        })?;
        let fresh = Fresh {
            process: Process {
                pid: child.id(),
                child: Mutex::new(Some(child)),
                last_words,
            },
            socket: ours,
            begun,
            incoming: Incoming::new(FROM_PLUGIN_BYTES_MAX),
            info: Info::default(),
            offers: 0,
            deadline: Instant::now() + settings.start_timeout,
        };
        Ok((fresh, begins.into()))
    }
}

impl Fresh {
    /// `Ok(Err)`: the plugin is refused there.
    fn hello(
        &mut self,
        copy: &File,
        begins: OwnedFd,
        note: &Note,
        settings: &ProcessSettings,
    ) -> Result<Result<(), String>, String> {
        let copy = OwnedFd::from(copy.try_clone().map_err(|error| error.to_string())?);
        let hello = Packet::new(FrameKind::Hello, 0, |out| {
            out.text(env!("CARGO_PKG_VERSION"));
            out.u8(u8::from(settings.no_new_privs));
            out.u32(settings.threads_max);
            out.u32(logs::least_level());
            note.put(out);
            out.fd(&copy);
            out.fd(&begins);
        });
        self.send(&hello.map_err(|error| error.to_string())?)?;
        let mut frame = self.next()?;
        match frame.kind {
            FrameKind::Loaded => {
                let read = |from: &mut In<'_>| Ok((Info::take(from)?, u32::take(from)?));
                (self.info, self.offers) = frame.read(read).map_err(|Malformed(why)| why)?;
                Ok(Ok(()))
            }
            FrameKind::Refused => {
                let why = frame.read(|from| from.text("why", SHOWN_BYTES));
                Ok(Err(why.map_err(|Malformed(why)| why)?))
            }
            kind => Err(format!("it sent {kind:?} before it had loaded the plugin")),
        }
    }

    /// Makes the instance. Answers with its capabilities, as bytes.
    pub(crate) fn create(
        &mut self,
        kind: Kind,
        request: &CreateRequest,
        start_timeout: Duration,
    ) -> Result<Vec<u8>, Error> {
        self.deadline = Instant::now() + start_timeout;
        let asked = self.create_asked(kind, request);
        match asked {
            Ok(answer) => answer,
            Err(why) => {
                let message = format!(
                    "the plugin {} did not get as far as an instance: {}",
                    self.info.id,
                    self.why(&why)
                );
                Err(Error::new(abi::E_CRASHED, message))
            }
        }
    }

    fn create_asked(
        &mut self,
        kind: Kind,
        request: &CreateRequest,
    ) -> Result<Result<Vec<u8>, Error>, String> {
        let create = Packet::new(FrameKind::Create, 0, |out| {
            out.u8(kind as u8);
            request.put(out);
        });
        self.send(&create.map_err(|error| error.to_string())?)?;
        let pace = logs::Pace::default();
        loop {
            let mut frame = self.next()?;
            match frame.kind {
                FrameKind::Created => return Ok(Ok(std::mem::take(&mut frame.body))),
                FrameKind::Failed => {
                    let error = frame.read(take_error).map_err(|Malformed(why)| why)?;
                    return Ok(Err(error));
                }
                FrameKind::Log => {
                    let plugin = self.info.id.clone();
                    services::log(&plugin, &request.instance_id, &pace, &mut frame, |_| false)
                        .map_err(|Malformed(why)| why)?;
                }
                kind => return Err(format!("it sent {kind:?} before it had an instance")),
            }
        }
    }

    /// Ends the process, and waits until it is gone: another one may be made for the same data then. Blocks.
    pub(crate) fn end(&self) {
        self.process.kill();
        self.process.reap();
    }

    fn left(&self) -> Result<Duration, String> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err("it took too long".to_owned());
        }
        Ok(left)
    }

    fn send(&mut self, packet: &Packet) -> Result<(), String> {
        let left = self.left()?;
        let send = || -> io::Result<()> {
            self.socket.set_write_timeout(Some(left))?;
            let mut sent = socket::send(&self.socket, &[&packet.bytes], &packet.fds, 0)?;
            while sent < packet.bytes.len() {
                sent += socket::send(&self.socket, &[&packet.bytes[sent..]], &[], 0)?;
            }
            Ok(())
        };
        send().map_err(|error| error.to_string())
    }

    fn next(&mut self) -> Result<Frame, String> {
        loop {
            if let Some(frame) = self.incoming.frame().map_err(|Malformed(why)| why)? {
                if frame.lost {
                    return Err(format!("it sent {:?} with descriptors", frame.kind));
                }
                return Ok(frame);
            }
            let left = self.left()?;
            let timeout = self.socket.set_read_timeout(Some(left));
            timeout.map_err(|error| error.to_string())?;
            match self.incoming.receive(&self.socket, 0) {
                Ok(0) => return Err("it has closed its socket".to_owned()),
                Ok(_) => {}
                // A time that is over: said above.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// With how the process ended, when it has.
    fn why(&self, why: &str) -> String {
        if self.left().is_err() {
            self.process.kill();
        }
        // It ends when its socket does.
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        format!("{why}; {}", self.process.reap())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn who_has_standard_error_longer_than_its_process_keeps_no_thread_and_loses_no_words() {
        let (stderr, mut child) = io::pipe().unwrap();
        // It is readable when all have closed it, as the descriptor of a process is when that has ended.
        let (process, ends) = io::pipe().unwrap();
        let words = LastWords::listen(stderr, process.into()).unwrap();
        let long = [b'x'; 3 * LAST_WORDS_BYTES];
        child.write_all(&long).unwrap();
        child.write_all(b" and the last").unwrap();
        drop(ends);
        let text = words.text();
        assert_eq!(text.len(), LAST_WORDS_BYTES);
        assert!(text.ends_with("xx and the last"), "{text}");
        // The thread has closed the other side.
        let error = child.write_all(b"more").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn who_goes_on_writing_for_ever_does_not_keep_the_last_words_back() {
        let (stderr, mut child) = io::pipe().unwrap();
        let (process, ends) = io::pipe().unwrap();
        let words = LastWords::listen(stderr, process.into()).unwrap();
        drop(ends);
        std::thread::spawn(move || while child.write_all(&[b'x'; 4096]).is_ok() {});
        let (told, text) = sync_channel(1);
        std::thread::spawn(move || told.send(words.text()));
        let text = text.recv_timeout(Duration::from_secs(30)).unwrap();
        assert!(text.len() <= LAST_WORDS_BYTES);
    }
}

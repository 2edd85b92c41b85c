//! The plugin's end of a run's channel. Everything that comes out of it was written by hostile code.
//!
//! A frame is a u32 (little-endian) length of what follows, one byte of type and the payload. The length is checked
//! before anything is kept for it; what is JSON is an object, and all of it UTF-8; a frame that breaks a rule ends the run; only
//! the first result counts.

#[cfg(test)]
pub(crate) mod fake;
mod object;
mod received;

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use serde::Deserialize;
use serde_json::value::RawValue;
use skillgate_plugin_sdk::model::Error;
use skillgate_plugin_sdk::{RunServices, abi};

use crate::answer;
use crate::job::{Frames, Wiped};
use crate::sys::{self, Poll};
pub(crate) use object::Object;
use received::{LENGTH_BYTES, Received};

/// The longest frame from the guest: 1 MiB of data and its head, or a result.
pub(crate) const FRAME_BYTES_MAX: usize = (1 << 20) + (64 << 10);
/// The longest job.
pub(crate) const JOB_BYTES_MAX: usize = 24 << 20;
/// What is read after a run's end: a request that it had just sent and its result, each of the longest. More is in the socket
/// of a run that has made it larger, or that is written to while it is read.
const LAST_BYTES_MAX: usize = 2 * (LENGTH_BYTES + FRAME_BYTES_MAX);
const DATA_BYTES_MAX: u64 = 1 << 20;
/// Of a frame: its length and its type.
const HEAD_BYTES: usize = LENGTH_BYTES + 1;
const OPEN_WRITERS_MAX: usize = 16;
const KIND_BYTES_MAX: usize = 255;
const ID_BYTES_MAX: usize = 255;
/// What is said of a frame that cannot be read: the reason may quote all of it.
const WHY_BYTES_MAX: usize = 256;

/// A result as the guest has sent it, its shape checked and nothing else.
#[derive(Debug, Deserialize)]
pub(crate) struct GuestResult {
    pub(crate) status: Status,
    #[serde(default)]
    pub(crate) output: Option<Box<RawValue>>,
    #[serde(default)]
    pub(crate) spilled: bool,
    #[serde(default)]
    pub(crate) summary: Option<String>,
    #[serde(default)]
    pub(crate) error: Option<Object<GuestError>>,
}

/// How the guest says it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) enum Status {
    Completed,
    Failed,
}

impl TryFrom<String> for Status {
    type Error = &'static str;

    fn try_from(word: String) -> Result<Self, Self::Error> {
        match word.as_str() {
            "completed" => Ok(Status::Completed),
            "failed" => Ok(Status::Failed),
            _ => Err("a status is `completed` or `failed`"),
        }
    }
}

/// What was raised.
#[derive(Debug, Deserialize)]
pub(crate) struct GuestError {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) message: String,
}

/// One run's channel.
pub(crate) struct Channel<'a> {
    socket: OwnedFd,
    services: &'a dyn RunServices,
    received: Received,
    /// It may hold the job, with its secrets.
    to_send: Wiped,
    sent: usize,
    /// The other end has gone, or hears nothing any more: nothing is answered, and nothing waited for.
    closed: bool,
    /// The run was ended, or what it had asked for before it ended is done: nothing more is done for it.
    over: bool,
    /// Nothing more can be read.
    at_end: bool,
    /// The other end has gone without reading all that was sent.
    unread: bool,
    heard: bool,
    readable: BTreeSet<String>,
    writers: BTreeSet<i64>,
    /// Ids of what the run has stored, in order.
    pub(crate) blobs: Vec<String>,
    /// The first result.
    pub(crate) result: Option<GuestResult>,
}

impl<'a> Channel<'a> {
    /// With the job to send and what comes with it, and the input blobs that the run may read.
    pub(crate) fn new(
        socket: OwnedFd,
        first: &Frames,
        readable: &[String],
        services: &'a dyn RunServices,
    ) -> io::Result<Self> {
        sys::set_nonblocking(socket.as_fd())?;
        // What comes is closed by this thread, and there are files that it takes long to close. An older kernel has no such
        // switch; then it is the filter's list of calls that leaves a run none.
        sys::refuse_descriptors(socket.as_fd());
        let mut channel = Channel {
            socket,
            services,
            received: Received::default(),
            to_send: Wiped(Vec::new()),
            sent: 0,
            closed: false,
            over: false,
            at_end: false,
            unread: false,
            heard: false,
            readable: readable.iter().cloned().collect(),
            writers: BTreeSet::new(),
            blobs: Vec::new(),
            result: None,
        };
        // At once: to grow later would leave a copy of the job, with its secrets, where nobody wipes it.
        let bytes = first.job.0.len() + first.code.len() + 2 * HEAD_BYTES;
        channel.to_send.0.reserve_exact(bytes);
        channel.queue(b'J', &[&first.job.0]);
        if !first.code.is_empty() {
            channel.add(b'K', &[&first.code]);
        }
        Ok(channel)
    }

    /// What to wait for: an answer is sent before the next request is read, and what is here is served before more is read. Behind
    /// a result comes nothing.
    pub(crate) fn interest(&self) -> Poll {
        let mut poll = Poll::readable(self.socket.as_fd());
        if self.closed || self.result.is_some() || self.has_frame() {
            poll.fd = -1;
        } else if self.is_sending() {
            poll.events = libc::POLLOUT;
        }
        poll
    }

    /// Whether there is something to attend to already, with nothing to wait for.
    pub(crate) fn has_frame(&self) -> bool {
        self.result.is_none() && !self.is_sending() && self.received.has_frame()
    }

    fn is_sending(&self) -> bool {
        self.sent < self.to_send.0.len()
    }

    /// Sends as much of the job as there is room for, before anybody waits for it.
    pub(crate) fn begin(&mut self) {
        self.send();
    }

    /// Whether the job was never read, all of it, and so nothing was done with it.
    pub(crate) fn is_unread(&self) -> bool {
        self.unread && !self.heard
    }

    /// Whether the run has said anything, and so has begun.
    pub(crate) fn has_heard(&self) -> bool {
        self.heard
    }

    /// Something can be read or written, or [`Channel::has_frame`]. One request is served at most: what it costs the store is the
    /// run's time, so whether that is over is looked at in between. `asked` comes before it. An error is a rule that the run has
    /// broken.
    pub(crate) fn attend(&mut self, asked: impl FnOnce()) -> Result<(), String> {
        if self.is_sending() {
            self.send();
        } else if self.has_frame() || self.receive() > 0 {
            self.serve(asked)?;
        }
        Ok(())
    }

    /// The run has ended: nobody hears an answer.
    pub(crate) fn hears_nothing(&mut self) {
        self.wipe();
        self.closed = true;
    }

    /// After the run's end: what it had sent before. Requests are not served any more.
    pub(crate) fn drain(&mut self) -> Result<(), String> {
        self.drain_at_most(LAST_BYTES_MAX)
    }

    /// Waits until nobody has the other end any more, for so long at most, and hears whether the job was read.
    pub(crate) fn hear_its_end(&mut self, wait_ns: u64) {
        let mut gone = [Poll::hung_up(self.socket.as_fd())];
        // What cannot be waited for is looked at as it is.
        let _ = sys::poll_until(&mut gone, sys::now_ns().saturating_add(wait_ns));
        let had_result = self.result.is_some();
        // Whatever else it says is not its result any more.
        let _ = self.drain();
        if !had_result {
            self.result = None;
        }
    }

    fn drain_at_most(&mut self, bytes_max: usize) -> Result<(), String> {
        self.hears_nothing();
        self.over = true;
        let mut left = bytes_max;
        loop {
            self.serve(|| ())?;
            if self.result.is_some() || self.at_end || left == 0 {
                return Ok(());
            }
            match self.receive() {
                0 => return Ok(()),
                n => left = left.saturating_sub(n),
            }
        }
    }

    /// Throws away what was never finished. The host would too; sooner is better.
    pub(crate) fn abandon(&mut self) {
        for writer in std::mem::take(&mut self.writers) {
            // Thrown away in any case when the run's services end.
            let _ = self.services.blob_finish(writer, false);
        }
        self.wipe();
    }

    fn queue(&mut self, kind: u8, parts: &[&[u8]]) {
        self.wipe();
        self.add(kind, parts);
    }

    /// What was to be sent may be the job with its secrets.
    fn wipe(&mut self) {
        self.to_send.0.fill(0);
        self.to_send.0.clear();
        self.sent = 0;
    }

    /// Behind what is to be sent already.
    fn add(&mut self, kind: u8, parts: &[&[u8]]) {
        let length = 1 + parts.iter().map(|p| p.len()).sum::<usize>();
        self.to_send.0.extend((length as u32).to_le_bytes());
        self.to_send.0.push(kind);
        parts
            .iter()
            .for_each(|p| self.to_send.0.extend_from_slice(p));
    }

    fn send(&mut self) {
        if self.closed {
            self.wipe();
        }
        while self.is_sending() {
            match sys::send(self.socket.as_fd(), &self.to_send.0[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                // The run has closed its end. It may live on; it can tell nothing any more.
                Err(_) => {
                    self.unread = true;
                    self.closed = true;
                    break;
                }
            }
        }
        self.wipe();
        self.to_send.0.shrink_to(2 * FRAME_BYTES_MAX);
    }

    /// Reads once. 0: nothing came.
    fn receive(&mut self) -> usize {
        match self.received.read(self.socket.as_fd()) {
            Ok(0) => self.close(),
            Ok(n) => {
                self.heard = true;
                return n;
            }
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock
                ) => {}
            Err(e) => {
                // What the kernel says when the other end is closed with something unread in it.
                self.unread = e.kind() == io::ErrorKind::ConnectionReset;
                self.close();
            }
        }
        0
    }

    fn close(&mut self) {
        self.closed = true;
        self.at_end = true;
    }

    fn serve(&mut self, asked: impl FnOnce()) -> Result<(), String> {
        // Apart for as long, so that no frame is copied.
        let mut received = std::mem::take(&mut self.received);
        let served = self.serve_from(&mut received, asked);
        if !received.has_frame() {
            received.make_room();
        }
        self.received = received;
        served
    }

    /// Until a request is answered, or the result is there: only the first counts, and nothing comes after it.
    fn serve_from(&mut self, received: &mut Received, asked: impl FnOnce()) -> Result<(), String> {
        while self.result.is_none()
            && let Some((kind, payload)) = received.next_frame()?
        {
            match kind {
                b'R' => self.result = Some(parse(payload)?),
                // Of what is only read nobody would hear. What was stored is there all the same, though nobody waits for it.
                b'G' if self.closed => {}
                b'C' | b'W' | b'F' if self.over => {}
                _ => {
                    asked();
                    self.answer(kind, payload)?;
                    self.send();
                    break;
                }
            }
        }
        Ok(())
    }

    fn answer(&mut self, kind: u8, payload: &[u8]) -> Result<(), String> {
        match kind {
            b'C' => {
                let request: Create = parse(payload)?;
                let answer = self
                    .create(&request.kind)
                    .map(|writer| serde_json::json!({ "writer": writer }));
                self.reply(answer);
            }
            b'W' => {
                let (writer, data) = payload
                    .split_first_chunk::<8>()
                    .ok_or("a write without its head on the run's channel")?;
                let answer = self
                    .write(u64::from_le_bytes(*writer), data)
                    .map(|()| serde_json::json!({}));
                self.reply(answer);
            }
            b'F' => {
                let request: Finish = parse(payload)?;
                let answer = self
                    .finish(&request)
                    .map(|id| serde_json::json!({ "id": id }));
                self.reply(answer);
            }
            b'G' => {
                let request: Get = parse(payload)?;
                match self.get(&request) {
                    Ok(data) => self.queue(b'D', &[&data]),
                    Err(e) => self.reply(Err(e)),
                }
            }
            other => return Err(format!("a frame of type {other:#04x} on the run's channel")),
        }
        Ok(())
    }

    fn reply(&mut self, answer: Result<serde_json::Value, Refusal>) {
        match answer {
            Ok(value) => self.queue(b'O', &[value.to_string().as_bytes()]),
            Err(refusal) => {
                let (error, message) = refusal.words();
                let text = serde_json::json!({ "error": error, "message": message }).to_string();
                self.queue(b'E', &[text.as_bytes()]);
            }
        }
    }

    fn create(&mut self, kind: &str) -> Result<i64, Refusal> {
        if kind.len() > KIND_BYTES_MAX {
            return Err(Refusal::Invalid);
        }
        if self.writers.len() >= OPEN_WRITERS_MAX {
            return Err(Refusal::TooMany);
        }
        let created = self.services.blob_create(kind);
        let writer = created.map_err(|e| match e.code {
            // There is nothing yet that could be too large.
            abi::E_OUT_OF_RANGE => Refusal::TooMany,
            _ => e.into(),
        })?;
        self.writers.insert(writer);
        Ok(writer)
    }

    fn own_writer(&self, writer: i64) -> Result<i64, Refusal> {
        if self.writers.contains(&writer) {
            Ok(writer)
        } else {
            Err(Refusal::Invalid)
        }
    }

    fn write(&mut self, writer: u64, data: &[u8]) -> Result<(), Refusal> {
        let writer = self.own_writer(i64::try_from(writer).map_err(|_| Refusal::Invalid)?)?;
        if data.len() as u64 > DATA_BYTES_MAX {
            return Err(Refusal::Invalid);
        }
        Ok(self.services.blob_write(writer, data)?)
    }

    fn finish(&mut self, request: &Finish) -> Result<Option<String>, Refusal> {
        let writer = self.own_writer(request.writer)?;
        self.writers.remove(&writer);
        let id = self.services.blob_finish(writer, request.commit)?;
        self.blobs.extend(id.clone());
        Ok(id)
    }

    fn get(&mut self, request: &Get) -> Result<Vec<u8>, Refusal> {
        if request.len > DATA_BYTES_MAX || request.id.len() > ID_BYTES_MAX {
            return Err(Refusal::Invalid);
        }
        if !self.readable.contains(&request.id) && !self.blobs.contains(&request.id) {
            // Whatever else exists is not there for this run.
            return Err(Refusal::NotFound);
        }
        let mut data = vec![0; request.len as usize];
        let read = self
            .services
            .blob_read(&request.id, request.offset, &mut data);
        let n = read.map_err(|error| match error.code {
            // Of readers: whoever reads needs no room.
            abi::E_EXHAUSTED => Refusal::Unavailable,
            _ => error.into(),
        })?;
        data.truncate(n);
        Ok(data)
    }
}

#[derive(Deserialize)]
struct Create {
    kind: String,
}

#[derive(Deserialize)]
struct Finish {
    writer: i64,
    commit: bool,
}

#[derive(Deserialize)]
struct Get {
    id: String,
    offset: u64,
    len: u64,
}

fn parse<'de, T: Deserialize<'de>>(payload: &'de [u8]) -> Result<T, String> {
    let unreadable = |why: String| {
        let why = answer::cut(why, WHY_BYTES_MAX);
        format!("a frame that cannot be read on the run's channel: {why}")
    };
    // All of it: in members that nobody reads serde would not look at it.
    let text = std::str::from_utf8(payload).map_err(|e| unreadable(e.to_string()))?;
    let Object(value) = serde_json::from_str(text).map_err(|e| unreadable(e.to_string()))?;
    Ok(value)
}

/// Why a request is refused: the words that the guest knows, and no text of the host's.
enum Refusal {
    NotFound,
    TooLarge,
    TooMany,
    DiskFull,
    Unavailable,
    /// A store that keeps none, which no time changes.
    NoBlobs,
    Invalid,
}

impl Refusal {
    fn words(&self) -> (&'static str, &'static str) {
        match self {
            Refusal::NotFound => ("not_found", "there is no such blob for this run"),
            Refusal::TooLarge => ("too_large", "the blob is larger than this gateway stores"),
            Refusal::TooMany => (
                "too_many",
                "this run may make no more blobs, or no more at once: put more into one",
            ),
            Refusal::DiskFull => (
                "disk_full",
                "the store, or this tenant's share of it, has no room left, or too many blobs are being written at once: store less, try again later, or ask its operator",
            ),
            Refusal::Unavailable => (
                "unavailable",
                "the store cannot do this now: try again in a moment, or ask its operator",
            ),
            Refusal::NoBlobs => (
                "unsupported",
                "the store of this gateway keeps no blobs, and an output that is too large would be one: return less",
            ),
            Refusal::Invalid => ("invalid", "the request is not valid"),
        }
    }
}

impl From<Error> for Refusal {
    fn from(e: Error) -> Self {
        match e.code {
            abi::E_NOT_FOUND => Refusal::NotFound,
            abi::E_OUT_OF_RANGE => Refusal::TooLarge,
            abi::E_EXHAUSTED => Refusal::DiskFull,
            abi::E_INVALID_ARGUMENT => Refusal::Invalid,
            abi::E_UNIMPLEMENTED => Refusal::NoBlobs,
            _ => Refusal::Unavailable,
        }
    }
}

#[cfg(test)]
mod tests;

//! The plugin's end of a run's channel. Everything that comes out of it was written by hostile code.
//!
//! A frame is a u32 (little-endian) length of what follows, one byte of type and the payload. The length is checked
//! before anything is kept for it; a frame that breaks a rule ends the run; only the first result counts.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use serde::Deserialize;
use serde_json::value::RawValue;
use skillgate_plugin_sdk::model::Error;
use skillgate_plugin_sdk::{RunServices, abi};

use crate::job::Frames;
use crate::sys::{self, Poll};

/// The longest frame from the guest: 1 MiB of data and its head, or a result.
pub(crate) const FRAME_BYTES_MAX: usize = (1 << 20) + (64 << 10);
/// The longest job.
pub(crate) const JOB_BYTES_MAX: usize = 24 << 20;
const DATA_BYTES_MAX: u64 = 1 << 20;
const READ_BYTES: usize = 64 << 10;
/// Of a frame: its length and its type.
const HEAD_BYTES: usize = 5;
const OPEN_WRITERS_MAX: usize = 16;
const KIND_BYTES_MAX: usize = 255;
const ID_BYTES_MAX: usize = 255;

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
    pub(crate) error: Option<GuestError>,
}

/// How the guest says it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Status {
    Completed,
    Failed,
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
    received: Vec<u8>,
    to_send: Vec<u8>,
    sent: usize,
    closed: bool,
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
        readable: BTreeSet<String>,
        services: &'a dyn RunServices,
    ) -> io::Result<Self> {
        sys::set_nonblocking(socket.as_fd())?;
        // What comes is closed by this thread, and there are files that it takes long to close. An older kernel has no such
        // switch; then it is the filter's list of calls that leaves a run none.
        sys::refuse_descriptors(socket.as_fd());
        let mut channel = Channel {
            socket,
            services,
            received: Vec::new(),
            to_send: Vec::new(),
            sent: 0,
            closed: false,
            unread: false,
            heard: false,
            readable,
            writers: BTreeSet::new(),
            blobs: Vec::new(),
            result: None,
        };
        // At once: to grow later would leave a copy of the job, with its secrets, where nobody wipes it.
        let bytes = first.job.0.len() + first.code.len() + 2 * HEAD_BYTES;
        channel.to_send.reserve_exact(bytes);
        channel.queue(b'J', &[&first.job.0]);
        if !first.code.is_empty() {
            channel.add(b'K', &[&first.code]);
        }
        Ok(channel)
    }

    /// What to wait for: an answer is sent before the next request is read.
    pub(crate) fn interest(&self) -> Poll {
        let mut poll = Poll::readable(self.socket.as_fd());
        match (self.closed, self.is_sending()) {
            (true, _) => poll.fd = -1,
            (_, true) => poll.events = libc::POLLOUT,
            _ => {}
        }
        poll
    }

    fn is_sending(&self) -> bool {
        self.sent < self.to_send.len()
    }

    /// Sends as much of the job as there is room for, before anybody waits for it.
    pub(crate) fn begin(&mut self) {
        self.send();
    }

    /// Whether the job was never read, all of it, and so nothing was done with it.
    pub(crate) fn is_unread(&self) -> bool {
        self.unread && !self.heard
    }

    /// Something can be read or written. An error is a rule that the run has broken.
    pub(crate) fn attend(&mut self) -> Result<(), String> {
        if self.is_sending() {
            self.send();
        } else if self.receive() {
            self.serve()?;
        }
        Ok(())
    }

    /// After the run's end: what it had sent before. Requests are not served any more.
    pub(crate) fn drain(&mut self) -> Result<(), String> {
        self.to_send.clear();
        self.sent = 0;
        while !self.closed && self.result.is_none() && self.receive() {
            while let Some(frame) = self.next_frame()? {
                if frame[0] == b'R' {
                    self.keep_result(&frame[1..])?;
                }
            }
        }
        Ok(())
    }

    /// Throws away what was never finished. The host would too; sooner is better.
    pub(crate) fn abandon(&mut self) {
        for writer in std::mem::take(&mut self.writers) {
            // Thrown away in any case when the run's services end.
            let _ = self.services.blob_finish(writer, false);
        }
        self.to_send.fill(0);
    }

    fn queue(&mut self, kind: u8, parts: &[&[u8]]) {
        // The last thing sent may have been the job with its secrets.
        self.to_send.fill(0);
        self.to_send.clear();
        self.sent = 0;
        self.add(kind, parts);
    }

    /// Behind what is to be sent already.
    fn add(&mut self, kind: u8, parts: &[&[u8]]) {
        let length = 1 + parts.iter().map(|p| p.len()).sum::<usize>();
        self.to_send.extend((length as u32).to_le_bytes());
        self.to_send.push(kind);
        parts.iter().for_each(|p| self.to_send.extend_from_slice(p));
    }

    fn send(&mut self) {
        while self.is_sending() {
            match sys::send(self.socket.as_fd(), &self.to_send[self.sent..]) {
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
        self.to_send.fill(0);
        self.to_send.clear();
        self.to_send.shrink_to(2 * FRAME_BYTES_MAX);
        self.sent = 0;
    }

    /// Reads once. `false`: nothing came.
    fn receive(&mut self) -> bool {
        match sys::read_more(self.socket.as_fd(), &mut self.received, READ_BYTES) {
            Ok(0) => self.closed = true,
            Ok(_) => {
                self.heard = true;
                return true;
            }
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock
                ) => {}
            Err(e) => {
                // What the kernel says when the other end is closed with something unread in it.
                self.unread = e.kind() == io::ErrorKind::ConnectionReset;
                self.closed = true;
            }
        }
        false
    }

    fn serve(&mut self) -> Result<(), String> {
        while !self.is_sending() {
            let Some(frame) = self.next_frame()? else {
                return Ok(());
            };
            self.answer(frame[0], &frame[1..])?;
            self.send();
        }
        Ok(())
    }

    /// A whole frame, type first.
    fn next_frame(&mut self) -> Result<Option<Vec<u8>>, String> {
        let Some(head) = self.received.first_chunk::<4>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*head) as usize;
        if !(1..=FRAME_BYTES_MAX).contains(&length) {
            return Err(format!("a frame of {length} bytes on the run's channel"));
        }
        if self.received.len() < 4 + length {
            return Ok(None);
        }
        let rest = self.received.split_off(4 + length);
        let mut frame = std::mem::replace(&mut self.received, rest);
        frame.drain(..4);
        Ok(Some(frame))
    }

    fn answer(&mut self, kind: u8, payload: &[u8]) -> Result<(), String> {
        if self.result.is_some() {
            // Only the first result counts, and nothing comes after it.
            return Ok(());
        }
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
            b'R' => self.keep_result(payload)?,
            other => return Err(format!("a frame of type {other:#04x} on the run's channel")),
        }
        Ok(())
    }

    fn keep_result(&mut self, payload: &[u8]) -> Result<(), String> {
        self.result = Some(parse(payload)?);
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
        if self.writers.len() >= OPEN_WRITERS_MAX || kind.len() > KIND_BYTES_MAX {
            return Err(Refusal::Invalid);
        }
        let writer = self.services.blob_create(kind)?;
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
        let n = self
            .services
            .blob_read(&request.id, request.offset, &mut data)?;
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
    serde_json::from_slice(payload)
        .map_err(|e| format!("a frame that cannot be read on the run's channel: {e}"))
}

/// Why a request is refused: the words that the guest knows, and no text of the host's.
enum Refusal {
    NotFound,
    TooLarge,
    DiskFull,
    Unavailable,
    Invalid,
}

impl Refusal {
    fn words(&self) -> (&'static str, &'static str) {
        match self {
            Refusal::NotFound => ("not_found", "there is no such blob for this run"),
            Refusal::TooLarge => ("too_large", "the blob is larger than this gateway stores"),
            Refusal::DiskFull => (
                "disk_full",
                "the store has no room left: store less, or ask its operator",
            ),
            Refusal::Unavailable => ("unavailable", "the store does not answer"),
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
            _ => Refusal::Unavailable,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Wiped;

    /// No copy of a job is left behind where its bytes have moved away.
    #[test]
    fn what_comes_with_a_job_finds_its_room_there() {
        let (socket, _theirs) = sys::socketpair(libc::SOCK_STREAM).unwrap();
        let first = Frames {
            job: Wiped(vec![b'j'; 100]),
            code: vec![b'c'; 50],
        };
        let services = skillgate_plugin_sdk::testing::Run::new();
        let channel = Channel::new(socket, &first, BTreeSet::new(), &services).unwrap();
        let bytes = 100 + 50 + 2 * HEAD_BYTES;
        assert_eq!(channel.to_send.len(), bytes);
        assert_eq!(channel.to_send.capacity(), bytes);
    }
}

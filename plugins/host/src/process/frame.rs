//! Frames: what travels between the gateway and a plugin's process.
//!
//! A frame is `{length of the body: u32, kind: u8, descriptors: u8, 0: u16, call: u64}` and the body. Its descriptors come
//! with its first byte.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use skillgate_plugin_abi as abi;
use skillgate_plugin_sdk::model::Error;
use skillgate_plugin_sdk::wire::Malformed;

use super::socket;
use crate::answer::ANSWER_BYTES;
use crate::wire::{In, Out, Read};

/// Bytes of a frame before its body.
pub(crate) const HEADER_BYTES: usize = 16;
/// Where in it the kind is.
const KIND_AT: usize = 4;
/// Most bytes of a body from a plugin's process: an answer, and what stands around it.
pub(crate) const FROM_PLUGIN_BYTES_MAX: usize = ANSWER_BYTES + (1 << 20);
/// Most bytes of a body to a plugin's process.
pub(crate) const TO_PLUGIN_BYTES_MAX: usize = 1 << 30;
/// Most descriptors of a frame: what the kernel takes at once.
pub(crate) const FDS_MAX: usize = 253;
/// Bytes that are read at once when nothing is known of what comes.
const BUFFER_BYTES: usize = 64 << 10;
/// A buffer that has become larger than this is given back when it is empty.
const BUFFER_KEEP_BYTES: usize = 1 << 20;
/// Room that a packet may have beyond its bytes. What is written in pieces may have as much again.
const SPARE_BYTES_MAX: usize = 4 << 10;

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    // From the gateway.
    /// Release, settings; with it come the plugin's sealed copy, and the end of a pipe for the numbers of begun runs.
    Hello = 1,
    /// Kind of plugin, and what an instance is made from.
    Create,
    /// A call.
    Call,
    /// Nobody wants this call any more.
    Cancel,
    /// The answer to a service of a run; `call` is the service's number.
    Reply,
    /// So many bytes of a run's output were taken, and whether more are wanted.
    Taken,
    /// Lets go of a reader or a writer.
    Close,
    /// Ends the instance, when its calls have ended.
    Destroy,
    // From the plugin's process.
    /// What the plugin says of itself.
    Loaded,
    /// It is not loaded.
    Refused,
    /// The instance, with its capabilities.
    Created,
    /// A call, or create, has failed.
    Failed,
    /// A call has succeeded.
    Answer,
    /// From now on a run cannot be called "not executed". Said here when the pipe for it is full.
    Started,
    /// A record of the log.
    Log,
    /// Output of a run.
    Output,
    /// A run wants something of the gateway, and waits for it.
    Service,
    /// The instance has ended.
    Destroyed,
    /// A call has failed, and the plugin has not heard of it or has refused it: what would have ended with it is still there.
    Unheard,
}

impl Kind {
    const ALL: [Kind; 19] = [
        Kind::Hello,
        Kind::Create,
        Kind::Call,
        Kind::Cancel,
        Kind::Reply,
        Kind::Taken,
        Kind::Close,
        Kind::Destroy,
        Kind::Loaded,
        Kind::Refused,
        Kind::Created,
        Kind::Failed,
        Kind::Answer,
        Kind::Started,
        Kind::Log,
        Kind::Output,
        Kind::Service,
        Kind::Destroyed,
        Kind::Unheard,
    ];

    fn of(n: u8) -> Read<Kind> {
        let kind = Kind::ALL.get(usize::from(n).wrapping_sub(1)).copied();
        kind.ok_or_else(|| Malformed(format!("frame: kind {n}")))
    }
}

/// A frame that has arrived.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) kind: Kind,
    /// The call that it is about; 0: none.
    pub(crate) call: u64,
    pub(crate) body: Vec<u8>,
    pub(crate) fds: VecDeque<OwnedFd>,
    /// Descriptors came with it, and this process had no room for all of them: it has none of them.
    pub(crate) lost: bool,
}

impl Drop for Frame {
    fn drop(&mut self) {
        if self.kind == Kind::Reply {
            // It may have been a secret, whether anybody has waited for it or not.
            skillgate_plugin_sdk::wire::wipe(&mut self.body);
            #[cfg(test)]
            tests::WIPED.set(tests::WIPED.get() + 1);
        }
    }
}

impl Frame {
    pub(crate) fn reader(&mut self) -> In<'_> {
        In::new(&self.body, &mut self.fds)
    }

    /// The error of what cannot go on without the descriptors that were lost. `whose`: the process that has no room.
    pub(crate) fn lost(whose: &str) -> Error {
        let message = format!(
            "descriptors that came with it were lost: {whose} has as many open as it may have (RLIMIT_NOFILE)"
        );
        Error::new(abi::E_EXHAUSTED, message)
    }

    /// Reads all of it with `f`.
    pub(crate) fn read<T>(&mut self, f: impl FnOnce(&mut In<'_>) -> Read<T>) -> Read<T> {
        let mut from = self.reader();
        let value = f(&mut from)?;
        from.end()?;
        Ok(value)
    }
}

/// A frame that is about to leave.
#[derive(Debug)]
pub(crate) struct Packet {
    pub(crate) bytes: Vec<u8>,
    pub(crate) fds: Vec<OwnedFd>,
    /// The call that it begins, or 0.
    pub(crate) begins: u64,
    /// It holds a secret: wiped when it has left, or never will.
    pub(crate) secret: bool,
    /// It answers a frame of the process's own.
    pub(crate) reply: bool,
}

impl Packet {
    /// Memory that it holds while it waits.
    pub(crate) fn holds(&self) -> usize {
        size_of::<Packet>() + self.bytes.capacity() + self.fds.capacity() * size_of::<OwnedFd>()
    }

    /// `Err`: what keeps it from being sent.
    pub(crate) fn new(kind: Kind, call: u64, write: impl FnOnce(&mut Out)) -> io::Result<Packet> {
        let mut out = Out {
            bytes: vec![0; HEADER_BYTES],
            ..Out::default()
        };
        write(&mut out);
        let Out {
            mut bytes,
            fds,
            broken,
        } = out;
        if let Some(error) = broken {
            return Err(error);
        }
        let len = bytes.len() - HEADER_BYTES;
        if len > TO_PLUGIN_BYTES_MAX || fds.len() > FDS_MAX {
            return Err(io::Error::other(format!(
                "{len} bytes and {} descriptors do not fit one call: at most {TO_PLUGIN_BYTES_MAX} and {FDS_MAX}",
                fds.len()
            )));
        }
        if bytes.capacity() - bytes.len() > SPARE_BYTES_MAX {
            bytes.shrink_to_fit();
        }
        let mut packet = Packet {
            bytes,
            fds,
            begins: 0,
            secret: false,
            reply: false,
        };
        packet.bytes[..4].copy_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes());
        packet.bytes[KIND_AT] = kind as u8;
        packet.bytes[5] = u8::try_from(packet.fds.len()).unwrap_or(u8::MAX);
        packet.set_call(call);
        Ok(packet)
    }

    /// The call, or the service, that it is about.
    pub(crate) fn call(&self) -> u64 {
        let mut call = [0; 8];
        call.copy_from_slice(&self.bytes[8..HEADER_BYTES]);
        u64::from_le_bytes(call)
    }

    pub(crate) fn set_call(&mut self, call: u64) {
        self.bytes[8..HEADER_BYTES].copy_from_slice(&call.to_le_bytes());
    }
}

impl Drop for Packet {
    fn drop(&mut self) {
        if self.secret {
            skillgate_plugin_sdk::wire::wipe(&mut self.bytes);
            #[cfg(test)]
            tests::WIPED.set(tests::WIPED.get() + 1);
        }
    }
}

/// What has arrived and is not yet a frame.
#[derive(Debug)]
pub(crate) struct Incoming {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// `None`: those of one frame, some of which were lost.
    fds: VecDeque<Option<OwnedFd>>,
    body_bytes_max: usize,
}

impl Incoming {
    pub(crate) fn new(body_bytes_max: usize) -> Self {
        Incoming {
            buffer: vec![0; BUFFER_BYTES],
            start: 0,
            end: 0,
            fds: VecDeque::new(),
            body_bytes_max,
        }
    }

    /// The next frame, when all of it is there.
    pub(crate) fn frame(&mut self) -> Read<Option<Frame>> {
        let there = &self.buffer[self.start..self.end];
        let Some((header, rest)) = there.split_at_checked(HEADER_BYTES) else {
            return Ok(None);
        };
        let mut nothing = VecDeque::new();
        let mut from = In::new(header, &mut nothing);
        let len = from.u32("length")? as usize;
        let (kind, fds) = (Kind::of(from.u8("kind")?)?, from.u8("descriptors")?);
        let (fds, call) = (usize::from(fds), {
            from.u8("0")?;
            from.u8("0")?;
            from.u64("call")?
        });
        if len > self.body_bytes_max {
            let max = self.body_bytes_max;
            return Err(Malformed(format!("frame: {len} bytes, at most {max}")));
        }
        let Some(body) = rest.get(..len) else {
            return Ok(None);
        };
        // Descriptors of two frames are never received at once (unix(7)), so one `None` stands for those of one frame.
        let lost = fds > 0 && matches!(self.fds.front(), Some(None));
        let there = self.fds.iter().take_while(|fd| fd.is_some()).count();
        if !lost && fds > there {
            return Err(Malformed(format!(
                "frame: {fds} descriptors announced, {there} there"
            )));
        }
        let taken = if lost { 1 } else { fds };
        let frame = Frame {
            kind,
            call,
            body: body.to_vec(),
            fds: self.fds.drain(..taken).flatten().collect(),
            lost,
        };
        let end = self.start + HEADER_BYTES + len;
        if kind == Kind::Reply {
            // It may have been a secret.
            skillgate_plugin_sdk::wire::wipe(&mut self.buffer[self.start..end]);
        }
        self.start = end;
        Ok(Some(frame))
    }

    /// Is what has arrived a part of a reply? It may be one of a secret.
    fn is_reply(&self) -> bool {
        self.buffer[self.start..self.end].get(KIND_AT) == Some(&(Kind::Reply as u8))
    }

    /// Receives what there is; 0: the end.
    pub(crate) fn receive(&mut self, socket: &UnixStream, flags: i32) -> io::Result<usize> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            if self.buffer.len() > BUFFER_KEEP_BYTES {
                self.buffer = vec![0; BUFFER_BYTES];
            }
        } else if self.start > 0 && self.end == self.buffer.len() {
            // Looked at before it is moved over its own beginning.
            let (there, is_reply) = (self.end - self.start, self.is_reply());
            self.buffer.copy_within(self.start..self.end, 0);
            if is_reply {
                // What it left behind where it was.
                let left = self.start.max(there);
                skillgate_plugin_sdk::wire::wipe(&mut self.buffer[left..self.end]);
            }
            (self.start, self.end) = (0, there);
        }
        if self.end == self.buffer.len() {
            // Twice as much as has really come, whatever is announced.
            let mut larger = vec![0; self.buffer.len() * 2];
            larger[..self.end].copy_from_slice(&self.buffer);
            if self.is_reply() {
                skillgate_plugin_sdk::wire::wipe(&mut self.buffer);
                #[cfg(test)]
                tests::WIPED.set(tests::WIPED.get() + 1);
            }
            self.buffer = larger;
        }
        let n = socket::receive(socket, &mut self.buffer[self.end..], &mut self.fds, flags)?;
        if self.fds.len() > 2 * FDS_MAX {
            return Err(io::Error::other("descriptors that belong to no frame"));
        }
        self.end += n;
        Ok(n)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    thread_local! {
        /// How many packets with secrets, replies and buffers with a part of one this thread has wiped.
        pub(crate) static WIPED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
    }

    fn packet(body: &[u8]) -> Packet {
        Packet::new(Kind::Log, 7, |out| out.bytes.extend_from_slice(body)).unwrap()
    }

    #[test]
    fn frames_arrive_however_they_are_cut() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let bodies: Vec<Vec<u8>> = (0..40).map(|n| vec![n as u8; n * n * 97]).collect();
        let bytes: Vec<u8> = bodies
            .iter()
            .flat_map(|body| packet(body).bytes.clone())
            .collect();
        let sender = std::thread::spawn(move || {
            for piece in bytes.chunks(977) {
                socket::send(&theirs, &[piece], &[], 0).unwrap();
            }
        });
        let mut incoming = Incoming::new(1 << 20);
        for body in bodies {
            let frame = loop {
                if let Some(frame) = incoming.frame().unwrap() {
                    break frame;
                }
                assert_ne!(incoming.receive(&ours, 0).unwrap(), 0);
            };
            assert_eq!((frame.kind, frame.call), (Kind::Log, 7));
            assert_eq!(frame.body, body);
        }
        sender.join().unwrap();
        assert_eq!(incoming.receive(&ours, 0).unwrap(), 0);
    }

    #[test]
    fn nothing_of_a_reply_is_left_however_it_comes() {
        const SECRET: &[u8] = b"the value of a secret";
        let secret = |bytes: usize| {
            let mut value = vec![b'.'; bytes];
            for at in (0..bytes - SECRET.len()).step_by(100) {
                value[at..at + SECRET.len()].copy_from_slice(SECRET);
            }
            Packet::new(Kind::Reply, 7, |out| out.bytes.extend_from_slice(&value)).unwrap()
        };
        let filled = packet(&[b'x'; BUFFER_BYTES - 10_000]);
        let little = packet(&[b'x'; 1000]);
        let (moved, grown) = (secret(30_000), secret(3 * BUFFER_BYTES));
        let shifted = secret(BUFFER_BYTES - 500);
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut incoming = Incoming::new(1 << 20);
        let has_secret = |bytes: &[u8]| bytes.windows(SECRET.len()).any(|part| part == SECRET);
        // The first part of one comes to the end of the buffer, one is moved over itself, one needs a larger one.
        for (bytes, frames, wiped) in [
            ([&filled.bytes[..], &moved.bytes].concat(), 2, 1),
            ([&little.bytes[..], &shifted.bytes].concat(), 2, 1),
            (grown.bytes.clone(), 1, 3),
        ] {
            let wiped_before = WIPED.get();
            std::thread::scope(|scope| {
                scope.spawn(|| socket::send(&theirs, &[&bytes], &[], 0).unwrap());
                for _ in 0..frames {
                    while incoming.frame().unwrap().is_none() {
                        assert_ne!(incoming.receive(&ours, 0).unwrap(), 0);
                    }
                }
            });
            assert!(!has_secret(&incoming.buffer));
            // The frame, and each buffer that was too small for it.
            assert_eq!(WIPED.get() - wiped_before, wiped);
        }
    }

    #[test]
    fn descriptors_come_with_their_frame() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let file = tempfile::tempfile().unwrap();
        let other = Packet::new(Kind::Log, 1, |out| {
            out.fd(&file.try_clone().unwrap().into());
            out.fd(&theirs.try_clone().unwrap().into());
        });
        let mut incoming = Incoming::new(1 << 20);
        for packet in [packet(b"before"), other.unwrap(), packet(b"after")] {
            socket::send(&theirs, &[&packet.bytes], &packet.fds, 0).unwrap();
        }
        let mut fds = Vec::new();
        for _ in 0..3 {
            let frame = loop {
                match incoming.frame().unwrap() {
                    Some(frame) => break frame,
                    None => assert_ne!(incoming.receive(&ours, 0).unwrap(), 0),
                }
            };
            fds.push(frame.fds.len());
        }
        assert_eq!(fds, [0, 2, 0]);
    }

    /// That they are lost is shown where a limit can be a whole process's: tests/shortage.
    #[test]
    fn descriptors_that_were_lost_are_missed_by_their_own_frame() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let with_fd = || {
            Packet::new(Kind::Log, 1, |out| {
                out.fd(&theirs.try_clone().unwrap().into())
            })
        };
        let mut incoming = Incoming::new(1 << 20);
        let mut next = |packet: Packet, loses: bool| {
            socket::send(&theirs, &[&packet.bytes], &packet.fds, 0).unwrap();
            incoming.receive(&ours, 0).unwrap();
            if loses {
                incoming.fds.clear();
                incoming.fds.push_back(None);
            }
            let frame = incoming.frame().unwrap().unwrap();
            (frame.lost, frame.fds.len())
        };
        assert_eq!(next(with_fd().unwrap(), true), (true, 0));
        assert_eq!(next(packet(b"between"), false), (false, 0));
        assert_eq!(next(with_fd().unwrap(), false), (false, 1));
        assert!(incoming.fds.is_empty());
        // One without any that is there with it has lost nothing, and takes nothing from it.
        for packet in [packet(b"before"), with_fd().unwrap()] {
            socket::send(&theirs, &[&packet.bytes], &packet.fds, 0).unwrap();
        }
        while incoming.fds.is_empty() {
            incoming.receive(&ours, 0).unwrap();
        }
        incoming.fds.clear();
        incoming.fds.push_back(None);
        let lost = [(); 2].map(|()| incoming.frame().unwrap().unwrap().lost);
        assert_eq!(lost, [false, true]);
    }

    #[test]
    fn a_buffer_that_has_grown_is_given_back() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut incoming = Incoming::new(2 * BUFFER_KEEP_BYTES);
        let mut grown = 0;
        for large in [true, false] {
            let packet = packet(&vec![1; if large { BUFFER_KEEP_BYTES } else { 1 }]);
            std::thread::scope(|scope| {
                scope.spawn(|| socket::send(&theirs, &[&packet.bytes], &[], 0).unwrap());
                while incoming.frame().unwrap().is_none() {
                    assert_ne!(incoming.receive(&ours, 0).unwrap(), 0);
                    grown = grown.max(incoming.buffer.len());
                }
            });
        }
        assert!(grown > BUFFER_KEEP_BYTES);
        assert_eq!(incoming.buffer.len(), BUFFER_BYTES);
    }

    #[test]
    fn frames_that_make_no_sense_are_refused() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let refusal = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = packet(b"body").bytes.clone();
            change(&mut bytes);
            socket::send(&theirs, &[&bytes], &[], 0).unwrap();
            let mut incoming = Incoming::new(100);
            incoming.receive(&ours, 0).unwrap();
            incoming.frame().unwrap_err().0
        };
        assert_eq!(refusal(&|b| b[4] = 0), "frame: kind 0");
        assert_eq!(refusal(&|b| b[4] = 99), "frame: kind 99");
        assert_eq!(refusal(&|b| b[0] = 101), "frame: 101 bytes, at most 100");
        socket::send(&theirs, &[&packet(&[0; 100]).bytes], &[], 0).unwrap();
        let mut incoming = Incoming::new(100);
        incoming.receive(&ours, 0).unwrap();
        assert_eq!(incoming.frame().unwrap().unwrap().body, [0; 100]);
        assert_eq!(
            refusal(&|b| b[5] = 1),
            "frame: 1 descriptors announced, 0 there"
        );
    }
}

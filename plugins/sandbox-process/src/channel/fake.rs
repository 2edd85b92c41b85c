//! For tests: what a run says, and a store that counts what it is asked for.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};

use skillgate_plugin_sdk::model::Result;
use skillgate_plugin_sdk::{RunServices, Secret, testing};

use super::*;

pub(crate) const BLOB: &str = "blob:a";
pub(crate) const BLOB_BYTES: [u8; 100] = [b'x'; 100];

/// With one blob.
pub(crate) struct Store<'t> {
    run: testing::Run,
    asked: AtomicUsize,
    /// Begins no blob, for this reason.
    refuses: Option<i32>,
    /// Happens while the store is asked, before it answers.
    meanwhile: Box<dyn Fn() + Send + Sync + 't>,
}

impl<'t> Store<'t> {
    pub(crate) fn new(meanwhile: impl Fn() + Send + Sync + 't) -> Self {
        Store {
            run: testing::Run::new().with_blob(BLOB, &BLOB_BYTES),
            asked: AtomicUsize::new(0),
            refuses: None,
            meanwhile: Box::new(meanwhile),
        }
    }

    pub(crate) fn refusing(code: i32) -> Self {
        Store {
            refuses: Some(code),
            ..Store::new(|| ())
        }
    }

    /// How often it was asked for something.
    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }

    /// The blobs that it has, but for the first.
    pub(crate) fn made(&self) -> Vec<testing::Made> {
        self.run.made()
    }

    fn ask(&self) -> &testing::Run {
        self.asked.fetch_add(1, Ordering::Relaxed);
        (self.meanwhile)();
        &self.run
    }
}

impl RunServices for Store<'_> {
    fn output(&self, stream: u32, data: &[u8]) -> bool {
        self.run.output(stream, data)
    }
    fn secret(&self, name: &str) -> Result<Secret> {
        self.run.secret(name)
    }
    fn blob_fd(&self, id: &str) -> Result<OwnedFd> {
        self.ask().blob_fd(id)
    }
    fn blob_read(&self, id: &str, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.ask().blob_read(id, offset, buf)
    }
    fn blob_create(&self, kind: &str) -> Result<i64> {
        let run = self.ask();
        match self.refuses {
            Some(code) => Err(Error::new(code, "what the host says of it")),
            None => run.blob_create(kind),
        }
    }
    fn blob_write(&self, writer: i64, data: &[u8]) -> Result<()> {
        self.ask().blob_write(writer, data)
    }
    fn blob_finish(&self, writer: i64, commit: bool) -> Result<Option<String>> {
        self.ask().blob_finish(writer, commit)
    }
    fn gate_serve(&self, listener: OwnedFd) -> Result<()> {
        self.run.gate_serve(listener)
    }
    fn cancelled(&self) -> bool {
        self.run.cancelled()
    }
}

/// The channel of a run that has its job, and the run's end of it.
pub(crate) fn channel<'a>(services: &'a dyn RunServices) -> (Channel<'a>, OwnedFd) {
    let (socket, theirs) = sys::socketpair(libc::SOCK_STREAM).unwrap();
    let first = Frames {
        job: Wiped(b"{}".to_vec()),
        code: Vec::new(),
    };
    let readable = [BLOB.to_owned()];
    let mut channel = Channel::new(socket, &first, &readable, services).unwrap();
    channel.begin();
    (channel, theirs)
}

pub(crate) fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let length = 1 + payload.len() as u32;
    [&length.to_le_bytes()[..], &[kind], payload].concat()
}

/// Asks for a byte of the blob.
pub(crate) fn get() -> Vec<u8> {
    frame(b'G', br#"{"id":"blob:a","offset":0,"len":1}"#)
}

pub(crate) fn result() -> Vec<u8> {
    frame(b'R', br#"{"status":"completed","output":1}"#)
}

/// All at once, as far as the socket has room.
pub(crate) fn say(theirs: &OwnedFd, frames: &[Vec<u8>]) {
    let bytes = frames.concat();
    assert_eq!(sys::send(theirs.as_fd(), &bytes).unwrap(), bytes.len());
}

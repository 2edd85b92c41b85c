//! A host for a plugin's unit tests: what it logs is kept, and a run is given what the test says and tells what it did.
//!
//! ```
//! use skillgate_plugin_sdk::testing;
//! use skillgate_plugin_sdk::{abi, RunServices};
//!
//! let run = testing::Run::new().with_secret("API_KEY", "hunter22");
//! assert_eq!(&*run.secret("API_KEY").unwrap(), b"hunter22");
//! run.output(abi::STDOUT, b"hello\n");
//! assert_eq!(run.said(abi::STDOUT), b"hello\n");
//! ```
//!
//! A call that is answered later gets a [`reply()`], whose other end has the answer, and can leave:
//!
//! ```
//! use skillgate_plugin_sdk::testing;
//!
//! let (reply, replied) = testing::reply();
//! std::thread::spawn(move || reply.ok("the answer"));
//! assert_eq!(replied.wait(), Ok("the answer"));
//! ```

mod reply;

pub use reply::{blob_buffer, blob_data, reply, reply_to, Replied};

use std::collections::BTreeMap;
use std::os::unix::io::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use skillgate_plugin_abi as abi;

use crate::model::{Error, Result};
use crate::{Host, Level, RunServices, Secret};

/// A record of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// How severe.
    pub level: Level,
    /// The part of the plugin that it is from.
    pub target: String,
    /// The sentence.
    pub message: String,
    /// What goes with it, by name.
    pub fields: Vec<(String, String)>,
}

/// What was logged, in order.
#[derive(Debug, Clone, Default)]
pub struct Records(Arc<Mutex<Vec<Record>>>);

impl Records {
    /// All until now.
    #[must_use]
    pub fn all(&self) -> Vec<Record> {
        lock(&self.0).clone()
    }

    /// Whether a record has this sentence.
    #[must_use]
    pub fn has(&self, message: &str) -> bool {
        lock(&self.0).iter().any(|record| record.message == message)
    }
}

/// A host, and what is logged to it.
#[must_use]
pub fn host() -> (Host, Records) {
    let records = Records::default();
    let keep = records.clone();
    let host = Host::for_tests(move |level, target, message, fields| {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        lock(&keep.0).push(Record {
            level,
            target: target.to_owned(),
            message: message.to_owned(),
            fields: fields.iter().map(owned).collect(),
        });
    });
    (host, records)
}

/// A blob that a run has made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    /// Its id.
    pub id: String,
    /// Its MIME type.
    pub kind: String,
    /// Its content.
    pub content: Vec<u8>,
}

/// The services of one run. Everything is in memory: [`RunServices::blob_fd`] gives no descriptors, as hosts may.
#[derive(Debug, Default)]
pub struct Run {
    secrets: BTreeMap<String, Secret>,
    blobs: BTreeMap<String, Vec<u8>>,
    gate: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    output: BTreeMap<u32, Vec<u8>>,
    writers: BTreeMap<i64, (String, Vec<u8>)>,
    last_writer: i64,
    made: Vec<Made>,
    listeners: Vec<OwnedFd>,
    cancelled: bool,
    wants_no_more: bool,
}

impl Run {
    /// Of a run that is given nothing.
    #[must_use]
    pub fn new() -> Self {
        Run::default()
    }

    /// The request names this secret.
    #[must_use]
    pub fn with_secret(mut self, name: &str, value: &str) -> Self {
        self.secrets
            .insert(name.to_owned(), Secret::new(value.as_bytes().to_vec()));
        self
    }

    /// The run may read this blob.
    #[must_use]
    pub fn with_blob(mut self, id: &str, content: &[u8]) -> Self {
        self.blobs.insert(id.to_owned(), content.to_vec());
        self
    }

    /// The run has a gate.
    #[must_use]
    pub fn with_gate(mut self) -> Self {
        self.gate = true;
        self
    }

    /// From now on nobody wants the run any more. The test calls `cancel` of the plugin after this, as a host does.
    pub fn cancel(&self) {
        self.state().cancelled = true;
    }

    /// From now on the run's output is refused, as by a host that has kept all that its limits allow.
    pub fn want_no_more_output(&self) {
        self.state().wants_no_more = true;
    }

    /// What was put out on a stream (`STDOUT`, `STDERR`, `RUNLOG`) and taken.
    #[must_use]
    pub fn said(&self, stream: u32) -> Vec<u8> {
        self.state()
            .output
            .get(&stream)
            .cloned()
            .unwrap_or_default()
    }

    /// The blobs that were committed, in order.
    #[must_use]
    pub fn made(&self) -> Vec<Made> {
        self.state().made.clone()
    }

    /// The listeners that the run's gate was asked to serve, handed over.
    #[must_use]
    pub fn listeners(&self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.state().listeners)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl RunServices for Run {
    fn output(&self, stream: u32, data: &[u8]) -> bool {
        let mut state = self.state();
        if state.wants_no_more {
            return false;
        }
        state
            .output
            .entry(stream)
            .or_default()
            .extend_from_slice(data);
        true
    }

    fn secret(&self, name: &str) -> Result<Secret> {
        let unnamed = || {
            Error::new(
                abi::E_PERMISSION,
                format!("the request does not name the secret {name}"),
            )
        };
        let secret = self.secrets.get(name).ok_or_else(unnamed)?;
        Ok(Secret::new(secret.to_vec()))
    }

    fn blob_fd(&self, _id: &str) -> Result<OwnedFd> {
        Err(Error::new(
            abi::E_UNIMPLEMENTED,
            "this store gives no descriptors",
        ))
    }

    fn blob_read(&self, id: &str, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let state = self.state();
        let made = state.made.iter().find(|made| made.id == id);
        let content = match (self.blobs.get(id), made) {
            (Some(content), _) => content,
            (None, Some(made)) => &made.content,
            (None, None) => return Err(Error::new(abi::E_NOT_FOUND, "not a blob of this run")),
        };
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        let rest = content.get(from..).unwrap_or_default();
        let n = rest.len().min(buf.len());
        buf[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    }

    fn blob_create(&self, kind: &str) -> Result<i64> {
        let mut state = self.state();
        state.last_writer += 1;
        let writer = state.last_writer;
        state.writers.insert(writer, (kind.to_owned(), Vec::new()));
        Ok(writer)
    }

    fn blob_write(&self, writer: i64, data: &[u8]) -> Result<()> {
        match self.state().writers.get_mut(&writer) {
            Some((_, content)) => {
                content.extend_from_slice(data);
                Ok(())
            }
            None => Err(no_writer()),
        }
    }

    fn blob_finish(&self, writer: i64, commit: bool) -> Result<Option<String>> {
        let mut state = self.state();
        let (kind, content) = state.writers.remove(&writer).ok_or_else(no_writer)?;
        if !commit {
            return Ok(None);
        }
        let id = format!("blob:made-{}", state.made.len() + 1);
        state.made.push(Made {
            id: id.clone(),
            kind,
            content,
        });
        Ok(Some(id))
    }

    fn gate_serve(&self, listener: OwnedFd) -> Result<()> {
        if !self.gate {
            return Err(Error::new(abi::E_PERMISSION, "the run has no gate"));
        }
        self.state().listeners.push(listener);
        Ok(())
    }

    fn cancelled(&self) -> bool {
        self.state().cancelled
    }
}

fn no_writer() -> Error {
    Error::new(abi::E_STALE, "there is no such writer")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code<T>(result: Result<T>) -> i32 {
        result.map(drop).unwrap_err().code
    }

    #[test]
    fn a_run_has_what_it_is_given_and_nothing_else() {
        let run = Run::new()
            .with_secret("KEY", "value")
            .with_blob("blob:a", b"12345");
        assert_eq!(&*run.secret("KEY").unwrap(), b"value");
        assert_eq!(code(run.secret("OTHER")), abi::E_PERMISSION);
        let mut buf = [0; 3];
        assert_eq!(run.blob_read("blob:a", 3, &mut buf).unwrap(), 2);
        assert_eq!(&buf[..2], b"45");
        assert_eq!(run.blob_read("blob:a", 9, &mut buf).unwrap(), 0);
        assert_eq!(code(run.blob_read("blob:b", 0, &mut buf)), abi::E_NOT_FOUND);
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(code(run.gate_serve(one.into())), abi::E_PERMISSION);
        assert!(!run.cancelled());
        run.cancel();
        assert!(run.cancelled());
    }

    #[test]
    fn what_a_run_does_is_told() {
        let run = Run::new().with_gate();
        assert!(run.output(abi::STDOUT, b"a") && run.output(abi::STDERR, b"b"));
        assert!(run.output(abi::STDOUT, b"c"));
        run.want_no_more_output();
        assert!(!run.output(abi::STDOUT, b"d"));
        assert_eq!(
            (run.said(abi::STDOUT), run.said(abi::STDERR)),
            (b"ac".to_vec(), b"b".to_vec())
        );
        let (kept, dropped) = (
            run.blob_create("text/plain").unwrap(),
            run.blob_create("text/csv").unwrap(),
        );
        run.blob_write(kept, b"12").unwrap();
        run.blob_write(kept, b"3").unwrap();
        assert_eq!(run.blob_finish(dropped, false).unwrap(), None);
        let id = run.blob_finish(kept, true).unwrap().unwrap();
        assert_eq!(code(run.blob_write(kept, b"4")), abi::E_STALE);
        let made = run.made();
        assert_eq!(made.len(), 1);
        assert_eq!(
            (made[0].id.as_str(), made[0].kind.as_str()),
            (id.as_str(), "text/plain")
        );
        let mut buf = [0; 8];
        assert_eq!(run.blob_read(&id, 0, &mut buf).unwrap(), 3);
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        run.gate_serve(one.into()).unwrap();
        assert_eq!((run.listeners().len(), run.listeners().len()), (1, 0));
    }

    #[test]
    fn what_is_logged_is_kept() {
        let (host, records) = host();
        host.log(Level::Warn, "part", "a sentence", &[("name", "value")]);
        assert!(records.has("a sentence") && !records.has("another"));
        let all = records.all();
        assert_eq!(
            (all[0].level, all[0].target.as_str()),
            (Level::Warn, "part")
        );
        assert_eq!(all[0].fields, [("name".to_owned(), "value".to_owned())]);
    }
}

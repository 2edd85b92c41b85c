//! What the gateway does for one run while it goes on: takes its output, hands it its secrets, reads and makes blobs.
//!
//! The capability rule: a run reads the blobs that it was given and those that it has made, no others, whatever ids
//! it knows.

mod made;
mod spilled;

use std::borrow::Cow;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use skillgate_plugin_host::{BlobWriter, BlockingStorage, Over, RunHost};
use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::model::{Error, Result};

use super::Job;
use super::ending::End;
use super::queue::Place;
use super::redaction::Streams;
use crate::auth::Caller;
use crate::blobs::{self, Blobs, Kind};
use crate::gate;
use crate::secrets::{Granted, redact_json};
pub(super) use made::Closed;
use made::Made;

/// Blobs that a run may be writing at once.
const WRITERS_MAX: usize = 8;

/// The services of one run.
#[derive(Debug)]
pub(super) struct Services {
    /// Called on the run's own thread: a run needs no other one for its blobs.
    blobs: Blobs,
    caller: Caller,
    run_id: String,
    inputs: Vec<String>,
    granted: Granted,
    created_max: usize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Until it has ended, also when nobody waits for that any more: the sandbox keeps this for as long.
    turn: Option<Place>,
    /// `None`: no network was granted, or the run is over: the sandbox may keep this for longer.
    gate: Option<gate::Open>,
    logs: Streams,
    made: Made,
    writers: Writers<BlobWriter>,
    /// The store that it writes blobs in, for as long as it does.
    at_hand: Option<BlockingStorage>,
    /// A store that hangs keeps the run's thread, and with it a place in the sandbox, no longer than this.
    over: Over,
}

impl State {
    fn stop(&mut self) {
        self.over.set();
        self.gate = None;
        self.writers.close();
        self.at_hand = None;
    }

    fn close(&mut self, end: End) -> Closed {
        self.stop();
        self.made.close(end)
    }

    /// A handle for a blob that is about to be made, if the run may make one more: those count that the store works on.
    fn begin_blob(&mut self, created_max: usize) -> Result<i64> {
        self.writers.check()?;
        let open = self.writers.open.len();
        if self.made.ids.len() + open >= created_max {
            let why = format!("a run makes at most {created_max} blobs (runs.max_output_blobs)");
            return Err(Error::new(abi::E_OUT_OF_RANGE, why));
        }
        if open >= WRITERS_MAX {
            let why = format!("a run writes at most {WRITERS_MAX} blobs at once");
            return Err(Error::new(abi::E_OUT_OF_RANGE, why));
        }
        self.writers.reserve()
    }

    /// What the store has made of a blob's writer: one to go on with, or none.
    fn begun(&mut self, handle: i64, writer: Result<BlobWriter>) -> Result<i64> {
        match writer {
            Ok(writer) => self.writers.put(handle, writer)?,
            Err(error) => {
                self.no_more(handle);
                return Err(error);
            }
        }
        Ok(handle)
    }

    /// A writer is none any more.
    fn no_more(&mut self, handle: i64) {
        self.writers.open.remove(&handle);
        if self.writers.open.is_empty() {
            self.at_hand = None;
        }
    }

    /// A blob is not on its way any more. `None`: the store did not take it.
    fn arrived(&mut self, handle: i64, id: Option<String>) {
        self.no_more(handle);
        self.made.arrived(id);
    }

    fn serve(&self, listener: OwnedFd) -> Result<()> {
        let Some(gate) = &self.gate else {
            return Err(if self.made.over {
                Error::new(abi::E_CANCELLED, "the run is over")
            } else {
                Error::new(abi::E_PERMISSION, "no network is granted to this run")
            });
        };
        gate.serve(listener).map_err(|error| {
            Error::new(
                abi::E_INVALID_ARGUMENT,
                format!("the run's listener cannot be served: {error}"),
            )
        })
    }
}

/// The blobs that a run is writing, each with its handle. With its end they are thrown away, and it begins no more, whoever
/// keeps what serves it: else they would have their room in the store for as long.
#[derive(Debug)]
struct Writers<W> {
    /// `None` while the store works on it, with no lock held over that: it is one of the run's all the same, and its sandbox may
    /// ask for the next one on another thread.
    open: HashMap<i64, Option<W>>,
    next: i64,
    over: bool,
}

impl<W> Default for Writers<W> {
    fn default() -> Self {
        Writers {
            open: HashMap::new(),
            next: 0,
            over: false,
        }
    }
}

impl<W> Writers<W> {
    fn check(&self) -> Result<()> {
        if self.over {
            return Err(Error::new(abi::E_CANCELLED, "the run is over"));
        }
        Ok(())
    }

    /// A handle for one that is about to be made.
    fn reserve(&mut self) -> Result<i64> {
        self.check()?;
        self.next += 1;
        self.open.insert(self.next, None);
        Ok(self.next)
    }

    /// Out, while it is written to.
    fn take(&mut self, handle: i64) -> Result<W> {
        self.check()?;
        let writer = self.open.get_mut(&handle).and_then(Option::take);
        writer.ok_or_else(unknown_writer)
    }

    /// One that was made or taken out.
    fn put(&mut self, handle: i64, writer: W) -> Result<()> {
        self.check()?;
        self.open.insert(handle, Some(writer));
        Ok(())
    }

    fn close(&mut self) {
        self.over = true;
        self.open.clear();
    }
}

impl Services {
    pub(super) fn new(
        blobs: Blobs,
        job: &Job,
        run_id: &str,
        granted: Granted,
        created_max: usize,
        gate: Option<gate::Open>,
        turn: Place,
    ) -> Self {
        Services {
            blobs,
            caller: job.caller.clone(),
            run_id: run_id.to_owned(),
            inputs: job.input_blobs.iter().map(|blob| blob.id.clone()).collect(),
            created_max,
            state: Mutex::new(State {
                turn: Some(turn),
                gate,
                logs: Streams::new(granted.redactor()),
                made: Made::new(granted.redactor().is_some()),
                writers: Writers::default(),
                at_hand: None,
                over: Over::default(),
            }),
            granted,
        }
    }

    /// It has ended: what it was given to run is for whoever runs next.
    pub(super) fn turn_over(&self) -> Option<Place> {
        self.state().turn.take()
    }

    /// What it printed, without the secrets that it was given.
    pub(super) fn logs(&self) -> (String, bool) {
        self.state().logs.preview()
    }

    /// A text of the run, without the secrets that it was given.
    pub(super) fn redacted<'a>(&self, text: &'a str) -> Cow<'a, str> {
        match self.granted.redactor() {
            Some(redactor) => redactor.text(text),
            None => Cow::Borrowed(text),
        }
    }

    /// JSON text of the run, without the secrets that it was given; none when there are none in it.
    pub(super) fn redacted_json(&self, json: &str) -> Option<String> {
        redact_json(self.granted.redactor()?, json)
    }

    /// The blobs that it made, in order.
    pub(super) fn created(&self) -> Vec<String> {
        self.state().made.ids.clone()
    }

    /// It makes no more blobs, and reaches nobody any more.
    pub(super) fn close(&self, end: End) -> Closed {
        self.state().close(end)
    }

    /// An end that is owed is recorded now, whatever is still on its way.
    pub(super) fn pay(&self) {
        self.state().made.pay();
    }

    /// Nobody waits any more for what is on its way.
    pub(super) fn is_left(&self) {
        self.state().made.is_left();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic while it was held leaves counts and lists, all of them valid.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For one call. Who writes a blob asks the store that it is in: to wait for the one in force would be to wait for whoever
    /// exchanges it, who waits until nobody writes.
    fn store(&self) -> Result<BlockingStorage> {
        let at_hand = {
            let state = self.state();
            state.writers.check()?;
            state.at_hand.clone()
        };
        let store = at_hand.map_or_else(|| self.blobs.blocking(), Ok)?;
        Ok(store.until(&self.state().over))
    }

    fn may_read(&self, id: &str) -> Result<()> {
        if self.inputs.iter().any(|input| input == id)
            || self.state().made.ids.iter().any(|made| made == id)
        {
            return Ok(());
        }
        Err(Error::new(
            abi::E_NOT_FOUND,
            format!(
                "there is no blob {:?} in this run: name it in input_blobs",
                crate::json::short(id)
            ),
        ))
    }
}

impl RunHost for Services {
    fn output(&self, stream: u32, data: &[u8]) -> bool {
        self.state().logs.push(stream, data);
        true
    }

    fn secret(&self, name: &str) -> Result<Vec<u8>> {
        match self.granted.value(name) {
            Some(value) => Ok(value.expose().as_bytes().to_vec()),
            None => Err(Error::new(
                abi::E_PERMISSION,
                "this secret is not granted to this run",
            )),
        }
    }

    fn blob_fd(&self, id: &str) -> Result<OwnedFd> {
        self.may_read(id)?;
        let given = self.store()?.blob_fd(self.caller.tenant(), id);
        given.map(|(fd, _)| fd)
    }

    fn blob_read(&self, id: &str, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.may_read(id)?;
        let store = self.store()?;
        let size = store.blob_stat(self.caller.tenant(), id)?.size_bytes;
        let len = (buf.len() as u64).min(size.saturating_sub(offset));
        if len == 0 {
            return Ok(0);
        }
        let mut reader = store.blob_open(self.caller.tenant(), id, offset, len)?;
        let mut filled = 0;
        loop {
            let (piece, end) = reader.read_blocking(blobs::CHUNK_BYTES)?;
            let room = &mut buf[filled..];
            let take = piece.len().min(room.len());
            room[..take].copy_from_slice(&piece[..take]);
            filled += take;
            if end || filled == buf.len() {
                return Ok(filled);
            }
        }
    }

    fn blob_create(&self, kind: &str) -> Result<i64> {
        let kind = Kind::parse(kind).map_err(|why| Error::new(abi::E_INVALID_ARGUMENT, why))?;
        // The content is data of the run's own; its kind stands in decisions, records and headers.
        let redactor = self.granted.redactor();
        if redactor.is_some_and(|redactor| redactor.is_in(kind.as_str())) {
            let why = "its kind holds a secret of the run";
            tracing::info!(run_id = self.run_id, reason = why, "a blob is refused");
            return Err(Error::new(abi::E_INVALID_ARGUMENT, why));
        }
        let handle = self.state().begin_blob(self.created_max)?;
        let creation = self.blobs.creation(&self.caller, &kind, &self.run_id);
        let store = self.store();
        let made = store.as_ref().map_err(Clone::clone);
        let made = made.and_then(|store| store.blob_create(creation));
        let mut state = self.state();
        state.begun(handle, made)?;
        state.at_hand = store.ok();
        Ok(handle)
    }

    fn blob_write(&self, handle: i64, data: &[u8]) -> Result<()> {
        let mut writer = self.state().writers.take(handle)?;
        let written = writer.write_blocking(Bytes::copy_from_slice(data));
        let going_on = written.map(|()| writer);
        self.state().begun(handle, going_on).map(drop)
    }

    fn blob_finish(&self, handle: i64, commit: bool) -> Result<Option<String>> {
        let writer = self.state().writers.take(handle)?;
        if !commit {
            self.state().no_more(handle);
            return Ok(None);
        }
        self.state().made.begin()?;
        let mut arrival = Arrival {
            at: self,
            handle,
            id: None,
        };
        let id = writer.commit_blocking().map(|stat| stat.id);
        arrival.id = id.as_ref().ok().cloned();
        drop(arrival);
        id.map(Some)
    }

    fn gate_serve(&self, listener: OwnedFd) -> Result<()> {
        self.state().serve(listener)
    }
}

/// A blob that is on its way, whatever becomes of that; with its id when it has arrived.
struct Arrival<'a> {
    at: &'a Services,
    handle: i64,
    id: Option<String>,
}

impl Drop for Arrival<'_> {
    fn drop(&mut self) {
        self.at.state().arrived(self.handle, self.id.take());
    }
}

fn unknown_writer() -> Error {
    Error::new(
        abi::E_STALE,
        "this writer is not open: it was finished, or a write to it failed",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::Audit;

    fn state(gate: Option<gate::Open>) -> State {
        State {
            turn: None,
            gate,
            logs: Streams::new(None),
            made: Made::default(),
            writers: Writers::default(),
            at_hand: None,
            over: Over::default(),
        }
    }

    /// A sandbox may call from several threads: what the store works on for one of them counts for the others.
    #[test]
    fn a_run_makes_no_more_blobs_at_once_than_one_after_the_other() {
        let mut state = state(None);
        let full = |state: &mut State, max| {
            let refused = state.begin_blob(max).unwrap_err();
            assert_eq!(refused.code, abi::E_OUT_OF_RANGE);
            refused.message
        };
        let (first, second) = (state.begin_blob(2).unwrap(), state.begin_blob(2).unwrap());
        assert!(full(&mut state, 2).contains("makes at most 2"));
        // What is not made leaves its place to another one, what is made does not.
        let failed = Err(Error::new(abi::E_EXHAUSTED, "full"));
        assert!(state.begun(first, failed).is_err());
        let third = state.begin_blob(2).unwrap();
        for (handle, id) in [(second, "blob:2"), (third, "blob:3")] {
            state.made.begin().unwrap();
            full(&mut state, 2);
            state.arrived(handle, Some(id.into()));
            full(&mut state, 2);
        }
        let most = state.made.ids.len() + WRITERS_MAX + 1;
        for _ in 0..WRITERS_MAX {
            state.begin_blob(most).unwrap();
        }
        assert!(full(&mut state, most).contains("writes at most 8"));
    }

    /// A sandbox that does not end a run in time keeps what serves it.
    #[tokio::test]
    async fn a_run_that_is_over_reaches_nobody() {
        let network = ["https://api.example.com".to_owned()];
        let grant = gate::Grant::new("run_1", "default", "dec_1", &network, &[]).unwrap();
        let mut state = state(Some(gate::Gate::for_tests().open(grant)));
        let listener = || std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (served, late) = (listener(), listener());
        let address = served.local_addr().unwrap();
        state.serve(served.into()).unwrap();
        assert!(state.close(End::for_tests(Audit::off())).is_ok());
        assert_eq!(state.serve(late.into()).unwrap_err().code, abi::E_CANCELLED);
        assert_eq!(state.writers.check().unwrap_err().code, abi::E_CANCELLED);
        // Closed by the task that has it, when that is told.
        while std::net::TcpStream::connect(address).is_ok() {
            tokio::task::yield_now().await;
        }
    }

    #[test]
    fn what_a_run_was_writing_goes_with_its_end() {
        let mut writers = Writers::default();
        let all = [(); 3].map(|()| std::sync::Arc::new(()));
        let [waits, is_written, late] = all.each_ref().map(std::sync::Arc::downgrade);
        let [first, second, third] = all;
        let add = |writers: &mut Writers<_>, writer| {
            let handle = writers.reserve()?;
            writers.put(handle, writer).map(|()| handle)
        };
        add(&mut writers, first).unwrap();
        let handle = add(&mut writers, second).unwrap();
        let second = writers.take(handle).unwrap();
        assert_eq!(writers.take(handle).unwrap_err().code, abi::E_STALE);
        writers.put(handle, second).unwrap();
        let second = writers.take(handle).unwrap();
        writers.close();
        let refused = |outcome: Result<()>| assert_eq!(outcome.unwrap_err().code, abi::E_CANCELLED);
        refused(writers.put(handle, second));
        refused(add(&mut writers, third).map(drop));
        refused(writers.take(1).map(drop));
        let kept = [waits, is_written, late]
            .iter()
            .filter(|it| it.strong_count() > 0)
            .count();
        assert_eq!(kept, 0);
    }
}

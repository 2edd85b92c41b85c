//! What the gateway does for one run while it goes on: takes its output, hands it its secrets, reads and makes blobs.
//!
//! The capability rule: a run reads the blobs that it was given and those that it has made, no others, whatever ids
//! it knows.

use std::borrow::Cow;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use skillgate_plugin_host::{BlobWriter, RunHost};
use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::model::{Error, Result};

use super::Job;
use super::redaction::Streams;
use crate::auth::Caller;
use crate::blobs::{self, Blobs, Kind};
use crate::gate;
use crate::secrets::{Granted, redact_json};

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
    /// `None`: no network was granted. Ends with this.
    gate: Option<gate::Open>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    logs: Streams,
    created: Vec<String>,
    writers: HashMap<i64, BlobWriter>,
    next_writer: i64,
}

impl Services {
    pub(super) fn new(
        blobs: Blobs,
        job: &Job,
        run_id: &str,
        granted: Granted,
        created_max: usize,
        gate: Option<gate::Open>,
    ) -> Self {
        Services {
            blobs,
            caller: job.caller.clone(),
            run_id: run_id.to_owned(),
            inputs: job.input_blobs.iter().map(|blob| blob.id.clone()).collect(),
            created_max,
            gate,
            state: Mutex::new(State {
                logs: Streams::new(granted.redactor()),
                created: Vec::new(),
                writers: HashMap::new(),
                next_writer: 0,
            }),
            granted,
        }
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
        self.state().created.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic while it was held leaves counts and lists, all of them valid.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn may_read(&self, id: &str) -> Result<()> {
        if self.inputs.iter().any(|input| input == id)
            || self.state().created.iter().any(|created| created == id)
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
        self.blobs
            .blocking()?
            .blob_fd(self.caller.tenant(), id)
            .map(|(fd, _)| fd)
    }

    fn blob_read(&self, id: &str, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.may_read(id)?;
        let store = self.blobs.blocking()?;
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
        {
            let state = self.state();
            if state.created.len() + state.writers.len() >= self.created_max {
                let max = self.created_max;
                let why = format!("a run makes at most {max} blobs (runs.max_output_blobs)");
                return Err(Error::new(abi::E_OUT_OF_RANGE, why));
            }
            if state.writers.len() >= WRITERS_MAX {
                let why = format!("a run writes at most {WRITERS_MAX} blobs at once");
                return Err(Error::new(abi::E_OUT_OF_RANGE, why));
            }
        }
        let creation = self.blobs.creation(&self.caller, &kind, &self.run_id);
        let writer = self.blobs.blocking()?.blob_create(creation)?;
        let mut state = self.state();
        state.next_writer += 1;
        let handle = state.next_writer;
        state.writers.insert(handle, writer);
        Ok(handle)
    }

    fn blob_write(&self, handle: i64, data: &[u8]) -> Result<()> {
        // Taken out while it is written to, so that no lock is held over the store's work.
        let mut writer = self
            .state()
            .writers
            .remove(&handle)
            .ok_or_else(unknown_writer)?;
        writer.write_blocking(Bytes::copy_from_slice(data))?;
        self.state().writers.insert(handle, writer);
        Ok(())
    }

    fn blob_finish(&self, handle: i64, commit: bool) -> Result<Option<String>> {
        let writer = self
            .state()
            .writers
            .remove(&handle)
            .ok_or_else(unknown_writer)?;
        if !commit {
            return Ok(None);
        }
        let stat = writer.commit_blocking()?;
        self.state().created.push(stat.id.clone());
        Ok(Some(stat.id))
    }

    fn gate_serve(&self, listener: OwnedFd) -> Result<()> {
        let Some(gate) = &self.gate else {
            return Err(Error::new(
                abi::E_PERMISSION,
                "no network is granted to this run",
            ));
        };
        gate.serve(listener).map_err(|error| {
            Error::new(
                abi::E_INVALID_ARGUMENT,
                format!("the run's listener cannot be served: {error}"),
            )
        })
    }
}

fn unknown_writer() -> Error {
    Error::new(
        abi::E_STALE,
        "this writer is not open: it was finished, or a write to it failed",
    )
}

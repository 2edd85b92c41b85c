//! Large data: through a run or to a caller without passing the model, and without ever being in memory whole.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use skillgate_plugin_host::{BlobReader, BlobWriter, BlockingStorage, Current, StorageInstance};
use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::model::{self, BlobCreate, BlobStat};
use tokio::sync::oneshot;
use tracing::Instrument as _;

use crate::auth::Caller;
use crate::telemetry::with_sources;

/// Bytes that go to or from the store in one call.
pub(crate) const CHUNK_BYTES: usize = 256 * 1024;
/// A sample whose size nobody asks for (REQUIREMENTS P2).
pub(crate) const SAMPLE_BYTES_DEFAULT: u64 = 2000;
/// Longest MIME type, in bytes (RFC 6838 section 4.2: each half at most 127).
const KIND_BYTES_MAX: usize = 255;
/// How long a store is asked for a blob's commit after its sender has gone. Then it is cancelled, as any other call.
const COMMIT_PATIENCE: Duration = Duration::from_secs(60);

/// What can go wrong with a blob.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Missing, expired or another tenant's: the same words for all three.
    #[error(
        "there is no blob {id:?} (any more): name it as create_blob or output_blobs of a run did, \"blob:\" included"
    )]
    NotFound {
        /// As asked for.
        id: String,
    },
    /// Over a limit.
    #[error("{message}")]
    TooLarge {
        /// Which, and what to do.
        message: String,
    },
    /// The store does not say that it has any (`SKG_ST_BLOBS`).
    #[error(
        "the store of this gateway keeps no blobs: give what is small as an argument of the call, and return it as its output"
    )]
    NoBlobs,
    /// The store failed.
    #[error("blob store failed")]
    Store(#[source] model::Error),
}

/// A MIME type that is safe to keep and to send as a header (RFC 6838 section 4.2, RFC 9110 section 8.3.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kind(String);

impl Kind {
    /// Checks `type/subtype` with optional parameters in visible ASCII.
    ///
    /// # Errors
    /// What is wrong with it, as a sentence.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let token = |part: &str| {
            !part.is_empty()
                && part
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"!#$&-^_.+".contains(&byte))
        };
        let essence = text.split(';').next().unwrap_or("").trim_end();
        let good = text.len() <= KIND_BYTES_MAX
            && text.bytes().all(|byte| (0x20..0x7f).contains(&byte))
            && essence
                .split_once('/')
                .is_some_and(|(major, minor)| token(major) && token(minor));
        if good {
            Ok(Kind(text.to_owned()))
        } else {
            Err("kind must be a MIME type such as \"text/csv\" or \"application/json\", at most 255 bytes".into())
        }
    }

    /// As text.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Which part of a blob to look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mode {
    /// The beginning.
    SampleHead,
    /// The end.
    SampleTail,
    /// All, as far as an answer can hold it.
    Full,
}

impl Mode {
    /// On the wire.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Mode::SampleHead => "sample_head",
            Mode::SampleTail => "sample_tail",
            Mode::Full => "full",
        }
    }
}

/// A look at a blob.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Preview {
    /// The bytes, cut between characters when the blob is text.
    pub bytes: Vec<u8>,
    /// There is more than these.
    pub truncated: bool,
    /// MIME type.
    pub kind: String,
}

/// The blobs of all tenants.
#[derive(Debug, Clone)]
pub(crate) struct Blobs {
    store: Current<StorageInstance>,
    bytes_max: u64,
    ttl_s: u64,
}

impl Blobs {
    /// On top of a store, with `blobs.max_bytes` and `blobs.ttl_s`.
    pub(crate) fn new(store: Current<StorageInstance>, bytes_max: u64, ttl_s: u64) -> Self {
        Blobs {
            store,
            bytes_max,
            ttl_s,
        }
    }

    /// The same with a lower limit on what is made, where a permit has one.
    #[must_use]
    pub(crate) fn within(&self, bytes_max: Option<u64>) -> Self {
        Blobs {
            bytes_max: bytes_max.map_or(self.bytes_max, |max| max.min(self.bytes_max)),
            ..self.clone()
        }
    }

    /// What is known of a blob of this tenant.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Store`].
    pub(crate) async fn stat(&self, tenant: &str, id: &str) -> Result<BlobStat, Error> {
        let store = self.store().await?;
        if !store.keeps_blobs() {
            return Err(Error::NotFound {
                id: crate::json::short(id),
            });
        }
        store
            .blob_stat(tenant, id)
            .await
            .map_err(|error| match error.code {
                // Of an id that none of its blobs could have, as the caller may have made up: there is no such blob.
                abi::E_INVALID_ARGUMENT => Error::NotFound {
                    id: crate::json::short(id),
                },
                _ => self.of(id, error),
            })
    }

    /// What a new blob of this caller is to be; `run_id` is empty when no run makes it.
    pub(crate) fn creation(&self, caller: &Caller, kind: &Kind, run_id: &str) -> BlobCreate {
        BlobCreate {
            tenant: caller.tenant().to_owned(),
            kind: kind.0.clone(),
            owner: caller.subject().id.clone(),
            run_id: run_id.to_owned(),
            max_bytes: self.bytes_max,
            ttl_s: self.ttl_s,
        }
    }

    /// The store for threads that may wait, those of runs: for one call, since the next may be another store's.
    ///
    /// # Errors
    /// `E_UNAVAILABLE` when there is none, `E_UNIMPLEMENTED` when it keeps no blobs.
    pub(crate) fn blocking(&self) -> Result<BlockingStorage, model::Error> {
        let store = self.store.get_blocking()?;
        match store.keeps_blobs() {
            true => Ok(store.blocking()),
            false => {
                let error = model::Error::new(abi::E_UNIMPLEMENTED, Error::NoBlobs.to_string());
                Err(error.not_executed())
            }
        }
    }

    /// The store for one call.
    async fn store(&self) -> Result<Arc<StorageInstance>, Error> {
        self.store.get().await.map_err(Error::Store)
    }

    /// Whether one of so many bytes may be stored, as far as the configuration goes.
    ///
    /// # Errors
    /// [`Error::TooLarge`] beyond `blobs.max_bytes`.
    pub(crate) fn check_size(&self, bytes: u64) -> Result<(), Error> {
        match bytes > self.bytes_max {
            true => Err(self.too_large()),
            false => Ok(()),
        }
    }

    fn too_large(&self) -> Error {
        Error::TooLarge {
            message: format!(
                "a blob holds at most {} bytes here (blobs.max_bytes, or what the policy allows)",
                self.bytes_max
            ),
        }
    }

    /// Stores a stream. Nothing is visible before all of it is durable; a stream that breaks off leaves nothing.
    ///
    /// # Errors
    /// [`Error::TooLarge`] beyond `blobs.max_bytes`; what the stream failed with.
    pub(crate) async fn create<E>(
        &self,
        caller: &Caller,
        kind: &Kind,
        content: impl Stream<Item = Result<Bytes, E>>,
    ) -> Result<BlobStat, E>
    where
        E: From<Error>,
    {
        let store = self.store().await?;
        if !store.keeps_blobs() {
            return Err(Error::NoBlobs.into());
        }
        let writer = store.blob_create(self.creation(caller, kind, "")).await;
        drop(store);
        let mut writer = writer.map_err(|error| self.of("", error))?;
        let mut content = std::pin::pin!(content);
        while let Some(piece) = content.next().await {
            let mut piece = piece?;
            while !piece.is_empty() {
                let part = piece.split_to(piece.len().min(CHUNK_BYTES));
                writer
                    .write(part)
                    .await
                    .map_err(|error| self.of("", error))?;
            }
        }
        let committed = self.commit(writer, caller.tenant().to_owned()).await;
        Ok(committed.map_err(|error| self.of("", error))?)
    }

    /// A task of its own, which outlives whoever waits: what the store has taken by then is removed again, as nobody knows its id.
    /// No method gives that, so it would have its room for good, and who sends it once more would have it twice.
    async fn commit(&self, writer: BlobWriter, tenant: String) -> Result<BlobStat, model::Error> {
        let (mut tell, told) = oneshot::channel();
        let blobs = self.clone();
        let commit = async move {
            let Some(outcome) = outlasts(writer.commit(), tell.closed()).await else {
                tracing::warn!(
                    tenant,
                    "the store does not say whether it has a blob whose sender has gone: it may be kept"
                );
                return;
            };
            let Err(Ok(stat)) = tell.send(outcome) else {
                return;
            };
            match blobs.delete(&tenant, &stat.id).await {
                Ok(()) => tracing::info!(
                    "a blob is removed: its sender went before he could be told of it"
                ),
                Err(error) => {
                    let error = with_sources(&error);
                    tracing::warn!(
                        tenant,
                        blob = stat.id,
                        %error,
                        "a blob whose sender has gone cannot be removed"
                    );
                }
            }
        };
        tokio::spawn(commit.in_current_span());
        told.await
            .unwrap_or_else(|_| Err(model::Error::new(abi::E_ABORTED, "its commit was given up")))
    }

    /// A part of a blob, of which `stat` is known, for an answer of at most `answer_bytes_max` bytes.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::TooLarge`] when all of it is asked for and it does not fit.
    pub(crate) async fn preview(
        &self,
        tenant: &str,
        stat: BlobStat,
        mode: Mode,
        max_bytes: Option<u64>,
        answer_bytes_max: u64,
    ) -> Result<Preview, Error> {
        let id = stat.id.as_str();
        let want = match (mode, max_bytes) {
            (Mode::Full, None) if stat.size_bytes > answer_bytes_max => {
                return Err(Error::TooLarge {
                    message: format!(
                        "the blob has {} bytes and an answer holds at most {answer_bytes_max} (server.max_body_bytes): read a sample, \
                         pass max_bytes, stream GET /blobs/{id}, or work on it in a run with input_blobs",
                        stat.size_bytes
                    ),
                });
            }
            (Mode::Full, None) => stat.size_bytes,
            (_, max_bytes) => max_bytes
                .unwrap_or(SAMPLE_BYTES_DEFAULT)
                .min(answer_bytes_max)
                .min(stat.size_bytes),
        };
        let truncated = want < stat.size_bytes;
        let offset = if mode == Mode::SampleTail {
            stat.size_bytes - want
        } else {
            0
        };
        let bytes = if want == 0 {
            Vec::new()
        } else {
            self.read(tenant, id, offset, want).await?
        };
        let bytes = match mode {
            Mode::SampleTail if offset > 0 => cut_front(bytes),
            _ if truncated => cut_back(bytes),
            _ => bytes,
        };
        Ok(Preview {
            bytes,
            truncated,
            kind: stat.kind,
        })
    }

    async fn read(&self, tenant: &str, id: &str, offset: u64, len: u64) -> Result<Vec<u8>, Error> {
        let mut reader = self.open(tenant, id, offset, len).await?;
        let mut all = Vec::with_capacity(len as usize);
        loop {
            let (piece, end) = reader
                .read(CHUNK_BYTES)
                .await
                .map_err(|error| self.of(id, error))?;
            all.extend_from_slice(&piece);
            if end {
                return Ok(all);
            }
        }
    }

    /// A reader of a range; `len` 0: to the end.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Store`].
    pub(crate) async fn open(
        &self,
        tenant: &str,
        id: &str,
        offset: u64,
        len: u64,
    ) -> Result<BlobReader, Error> {
        self.store()
            .await?
            .blob_open(tenant, id, offset, len)
            .await
            .map_err(|error| self.of(id, error))
    }

    /// A descriptor of a blob's checked content, where the store has one.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Store`].
    pub(crate) async fn fd(&self, tenant: &str, id: &str) -> Result<Option<OwnedFd>, Error> {
        match self.store().await?.blob_fd(tenant, id).await {
            Ok((fd, _)) => Ok(Some(fd)),
            Err(error) if error.code == abi::E_UNIMPLEMENTED => Ok(None),
            Err(error) => Err(self.of(id, error)),
        }
    }

    /// Removes a blob, for the gateway's own reasons: no method does that.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Store`].
    pub(crate) async fn delete(&self, tenant: &str, id: &str) -> Result<(), Error> {
        let gone = self.store().await?.blob_delete(tenant, id).await;
        gone.map_err(|error| self.of(id, error))
    }

    fn of(&self, id: &str, error: model::Error) -> Error {
        match error.code {
            abi::E_NOT_FOUND => Error::NotFound {
                id: crate::json::short(id),
            },
            abi::E_OUT_OF_RANGE => self.too_large(),
            _ => Error::Store(error),
        }
    }
}

/// Drops a character that the end has cut in two, when the rest is text (REQUIREMENTS R11).
fn cut_back(mut bytes: Vec<u8>) -> Vec<u8> {
    if let Err(error) = std::str::from_utf8(&bytes)
        && error.error_len().is_none()
    {
        bytes.truncate(error.valid_up_to());
    }
    bytes
}

/// Drops the rest of a character that the beginning has cut in two, when what follows is text.
fn cut_front(mut bytes: Vec<u8>) -> Vec<u8> {
    let rest = bytes
        .iter()
        .take(3)
        .take_while(|byte| (0x80..0xc0).contains(*byte))
        .count();
    if std::str::from_utf8(&bytes[rest..]).is_ok() {
        bytes.drain(..rest);
    }
    bytes
}

/// What comes of a commit; `None`: its sender has gone, and nothing has come of it since for [`COMMIT_PATIENCE`].
async fn outlasts<T>(
    commit: impl Future<Output = T>,
    sender_gone: impl Future<Output = ()>,
) -> Option<T> {
    let given_up = async {
        sender_gone.await;
        tokio::time::sleep(COMMIT_PATIENCE).await;
    };
    tokio::select! {
        biased;
        outcome = commit => Some(outcome),
        () = given_up => None,
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::time::Duration;

    use tokio::time::{Instant, sleep};

    use super::{COMMIT_PATIENCE, Kind, cut_back, cut_front, outlasts};

    #[tokio::test(start_paused = true)]
    async fn a_commit_outlasts_its_sender_and_not_for_ever() {
        let nearly = COMMIT_PATIENCE - Duration::from_millis(1);
        assert_eq!(outlasts(sleep(nearly), ready(())).await, Some(()));
        let waited_for = sleep(2 * COMMIT_PATIENCE);
        assert_eq!(outlasts(waited_for, pending()).await, Some(()));
        let began = Instant::now();
        assert_eq!(outlasts(pending::<()>(), ready(())).await, None);
        assert!(began.elapsed() >= COMMIT_PATIENCE);
    }

    #[test]
    fn samples_never_cut_a_character() {
        let text = "aé漢🙂z".as_bytes();
        for end in 0..=text.len() {
            assert!(
                std::str::from_utf8(&cut_back(text[..end].to_vec())).is_ok(),
                "end {end}"
            );
            assert!(
                std::str::from_utf8(&cut_front(text[end..].to_vec())).is_ok(),
                "start {end}"
            );
        }
        assert_eq!(
            cut_back(vec![0xff, 0xfe, 0x41]),
            vec![0xff, 0xfe, 0x41],
            "bytes that are no text stay as they are"
        );
        assert_eq!(cut_front(vec![0x80, 0xff, 0x41]), vec![0x80, 0xff, 0x41]);
    }

    #[test]
    fn kinds() {
        for good in [
            "text/plain",
            "application/json",
            "text/csv; charset=utf-8",
            "image/svg+xml",
            "application/vnd.ms-excel",
        ] {
            assert_eq!(Kind::parse(good).unwrap().as_str(), good);
        }
        let long = format!("text/{}", "x".repeat(300));
        for bad in [
            "",
            "text",
            "/",
            "text/",
            "/plain",
            "text/plain\r\nX: y",
            "text/plain; a=b\r\nX: y",
            "text/plain; a=\u{7f}",
            "text/plain; a=é",
            "text/pl ain",
            "té/xt",
            "a/b/c",
            &long,
        ] {
            assert!(Kind::parse(bad).is_err(), "{bad:?}");
        }
    }
}

//! JSON-RPC 2.0 over one HTTP endpoint: bytes in, calls out, answers back. Knows no skills.
//!
//! A body is taken apart twice: [`envelope`] splits it into requests without reading `params`; [`json`] then checks
//! each `params` text once (nesting, duplicate members, numbers), so that every later reader sees the same value. What is
//! large is walked on a thread of its own both times.
//! Requests of a batch run one after the other and each is authorized and limited by itself.

mod aside;
mod body;
pub(crate) mod code;
mod envelope;
mod space;

use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{Response, StatusCode, header};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tower::{Service, ServiceExt};
use tracing::Instrument;

use crate::auth::{Authenticated, Caller, Lapsed};
use crate::json::{self, Refused};
use crate::rescue::{Refusal, RequestId};
use crate::server::{Body, full};
use crate::slots::Slots;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::trace::Trace;
pub(crate) use aside::aside;
use body::SMALL_PLACES;
use code::Code;
use envelope::{BadBody, Envelope, NotARequest};
use space::Places;
pub(crate) use space::{NoSpace, Space};

/// A body of more bytes is a large one: it takes a place while it is here, and is not walked on a thread that others need. So
/// does an answer, until it has left.
const SMALL_BYTES_MAX: usize = 256 << 10;

/// One method call, as it leaves this layer.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    /// Who asks.
    pub caller: Caller,
    /// What for.
    pub method: String,
    /// The exact text of the `id`, for the decision log; empty for a notification.
    pub id: String,
    /// JSON text of the parameters: an object, walked.
    pub params: Params,
    /// The limits of requests have counted it: the first call of a body, with its request.
    pub counted: bool,
    /// Where it is in its trace.
    pub trace: Trace,
    /// For what is large in its answer.
    pub space: Space,
}

/// The text of a parameters object, a slice of the body it came in.
#[derive(Debug, Clone)]
pub(crate) struct Params(Bytes);

impl Params {
    /// No parameters.
    pub(crate) fn empty() -> Self {
        Params(Bytes::from_static(b"{}"))
    }

    /// Takes a JSON object's text.
    ///
    /// # Errors
    /// [`ErrorObject`] when the text is not an object that everybody reads alike.
    pub(crate) fn from_text(text: Bytes) -> Result<Self, ErrorObject> {
        let object = std::str::from_utf8(&text)
            .map_err(|error| ErrorObject::invalid_params("", error.to_string()))?;
        // Their places count from where the parameters begin, and would be read as places in the body.
        json::walk(object).map_err(|refused| match refused {
            Refused::Syntax(message) => ErrorObject::new(
                Code::Parse,
                "parse_error",
                format!("parse error in params: {}", json::without_place(&message)),
            ),
            Refused::Content(message) => {
                ErrorObject::invalid_params("", json::without_place(&message))
            }
        })?;
        // Every parameter here has a name; an empty list of them by position is an empty list all the same.
        if object
            .strip_prefix('[')
            .is_some_and(|rest| rest.trim_start() == "]")
        {
            return Ok(Params::empty());
        }
        if !object.starts_with('{') {
            return Err(ErrorObject::invalid_params(
                "",
                "params must be an object with the parameters by name",
            ));
        }
        Ok(Params(text))
    }

    /// The JSON text.
    pub(crate) fn as_str(&self) -> &str {
        // Checked when it was made; a wrong answer here could only be an empty object, which no method mistakes.
        std::str::from_utf8(&self.0).unwrap_or("{}")
    }
}

/// The `error` member of an answer.
#[derive(Debug, Clone)]
pub struct ErrorObject {
    /// The number.
    pub code: Code,
    /// The stable identifier.
    pub kind: &'static str,
    /// For the caller: a sentence that a model can act on.
    pub message: String,
    /// More members of `data`.
    pub data: Map<String, Value>,
}

impl ErrorObject {
    /// An error without further data.
    pub fn new(code: Code, kind: &'static str, message: impl Into<String>) -> Self {
        ErrorObject {
            code,
            kind,
            message: message.into(),
            data: Map::new(),
        }
    }

    /// -32602 `invalid_params`; `pointer` is a JSON pointer into `params`.
    pub fn invalid_params(pointer: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(Code::InvalidParams, "invalid_params", message)
            .with("pointer", Value::String(pointer.into()))
    }

    /// Of a call whose token is taken no more: as a request with it would hear that came now.
    pub fn lapsed(lapsed: Lapsed, message: String) -> Self {
        match lapsed.retry_after_s() {
            None => Self::new(Code::Unauthenticated, "unauthenticated", message),
            Some(wait_s) => Self::new(Code::Unavailable, "unavailable", message)
                .with("retry_after_ms", wait_s.saturating_mul(1000).into()),
        }
    }

    /// -32603: the caller learns nothing but the request id; the log has the rest.
    pub fn internal() -> Self {
        Self::new(
            Code::Internal,
            "internal",
            "internal error: the gateway's log has it under the request id",
        )
    }

    /// Adds a member to `data`.
    #[must_use]
    pub fn with(mut self, name: &str, value: Value) -> Self {
        self.data.insert(name.to_owned(), value);
        self
    }

    /// The whole answer, for the request with this `id` text.
    pub fn answer(&self, id: Option<&str>, request_id: &RequestId) -> String {
        let mut data = Map::new();
        data.insert("kind".into(), self.kind.into());
        data.insert("request_id".into(), request_id.as_str().into());
        data.extend(self.data.clone());
        let mut error = Map::new();
        error.insert("code".into(), self.code.number().into());
        error.insert("message".into(), self.message.as_str().into());
        error.insert("data".into(), Value::Object(data));
        format!(
            r#"{{"jsonrpc":"2.0","id":{},"error":{}}}"#,
            id.unwrap_or("null"),
            Value::Object(error)
        )
    }
}

/// What this layer is told by configuration.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// `server.max_body_bytes`: of a body, and of the answers of a batch after which no more of its calls are made.
    pub body_bytes_max: usize,
    /// `server.body_timeout_ms`: without progress, and [`body::BODY_TIMEOUTS_MAX`] times that in all.
    pub body_timeout: Duration,
    /// `server.max_batch`
    pub batch_max: usize,
    /// `server.max_large_bodies`
    pub large_bodies_max: usize,
}

/// The service of `POST /rpc`: decodes, asks the service below once for each call, encodes.
#[derive(Debug, Clone)]
pub(crate) struct Rpc<S> {
    inner: S,
    limits: Limits,
    /// Of bodies that are here and of answers that have not left.
    places: Places,
    /// Large bodies that are being walked: as many as there are processors.
    walks: Arc<Slots>,
    metrics: Metrics,
}

impl<S> Rpc<S> {
    /// Puts JSON-RPC on top of a service of calls.
    pub(crate) fn new(inner: S, limits: Limits) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Rpc {
            inner,
            limits,
            places: Places {
                large: Slots::new(limits.large_bodies_max),
                small: Slots::new(limits.large_bodies_max.saturating_mul(SMALL_PLACES)),
            },
            walks: Slots::new(processors),
            metrics: Metrics::default(),
        }
    }

    /// Counts its calls there.
    #[must_use]
    pub(crate) fn watched_by(self, metrics: Metrics) -> Self {
        Rpc { metrics, ..self }
    }
}

impl<S, E> Service<Authenticated> for Rpc<S>
where
    S: Service<Call, Response = Box<RawValue>, Error = E> + Clone + Send + Sync + 'static,
    S::Future: Send,
    E: Into<ErrorObject> + Send,
{
    type Response = Response<Body>;
    type Error = Refusal;
    type Future = BoxFuture<'static, Result<Self::Response, Refusal>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Refusal>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Authenticated) -> Self::Future {
        let this = self.clone();
        Box::pin(async move { this.answer(request).await })
    }
}

impl<S, E> Rpc<S>
where
    S: Service<Call, Response = Box<RawValue>, Error = E> + Clone + Send + Sync + 'static,
    S::Future: Send,
    E: Into<ErrorObject> + Send,
{
    async fn answer(self, request: Authenticated) -> Result<Response<Body>, Refusal> {
        let Authenticated {
            caller,
            request_id,
            request,
        } = request;
        require_json(request.headers())?;
        let trace = Trace::in_request(&request);
        let (body, held) = self.read_body(request.into_body(), caller.tenant()).await?;
        let patience = self.limits.body_timeout;
        let space = Space::new(&self.places, caller.tenant(), patience, held);
        let turn = Turn {
            rpc: self,
            caller,
            request_id,
            trace,
            body,
            space,
            counted: AtomicBool::new(false),
        };
        Ok(match turn.whole().await {
            Some(text) => json_response(turn.space.leave(text)),
            None => no_content(),
        })
    }
}

/// One body on its way through.
struct Turn<S> {
    rpc: Rpc<S>,
    caller: Caller,
    request_id: RequestId,
    trace: Trace,
    body: Bytes,
    space: Space,
    /// A call has been made already.
    counted: AtomicBool,
}

impl<S, E> Turn<S>
where
    S: Service<Call, Response = Box<RawValue>, Error = E> + Clone + Send + Sync + 'static,
    S::Future: Send,
    E: Into<ErrorObject> + Send,
{
    /// The answer's text; `None` when there were only notifications.
    async fn whole(&self) -> Option<String> {
        let batch_max = self.rpc.limits.batch_max;
        let opened = self.walk(self.body.clone(), move |body| {
            envelope::open(&body, batch_max)
        });
        let opened = match opened.await {
            Ok(Ok(opened)) => opened,
            Ok(Err(BadBody::Parse(message))) => {
                let message = format!("parse error: {message}");
                return Some(self.refuse(ErrorObject::new(Code::Parse, "parse_error", message)));
            }
            Ok(Err(BadBody::Request(message))) => {
                let code = Code::InvalidRequest;
                return Some(self.refuse(ErrorObject::new(code, "invalid_request", message)));
            }
            Err(error) => return Some(self.refuse(error)),
        };
        let mut answers = String::new();
        let mut room = Ok(());
        for request in opened.requests {
            if room.is_ok() {
                room = self.room_beside(answers.len()).await;
            }
            let Some(answer) = self.single(request, &room).await else {
                continue;
            };
            if !opened.is_batch {
                return Some(answer);
            }
            answers.push(if answers.is_empty() { '[' } else { ',' });
            answers.push_str(&answer);
        }
        (!answers.is_empty()).then(|| answers + "]")
    }

    /// For an answer beside so many bytes of those before it: before its call is made, so that nothing is done that nobody is
    /// told of.
    async fn room_beside(&self, bytes: usize) -> Result<(), ErrorObject> {
        let max = self.rpc.limits.body_bytes_max;
        if bytes > max {
            let message = format!(
                "this call was not made: the answers before it in the batch have over {max} bytes (server.max_body_bytes); send it in a request of its own"
            );
            return Err(ErrorObject::new(Code::TooLarge, "too_large", message));
        }
        Ok(self.space.beside(bytes as u64).await?)
    }

    /// The whole body.
    fn refuse(&self, error: ErrorObject) -> String {
        self.rpc.metrics.rpc_refused(error.kind);
        error.answer(None, &self.request_id)
    }

    /// `room`: what it is answered when there is none for its answer.
    async fn single(
        &self,
        request: Result<Envelope, NotARequest>,
        room: &Result<(), ErrorObject>,
    ) -> Option<String> {
        let envelope = match request {
            Ok(envelope) => envelope,
            Err(bad) => {
                let error = ErrorObject::new(Code::InvalidRequest, "invalid_request", bad.message);
                self.rpc.metrics.rpc_refused(error.kind);
                return Some(error.answer(bad.id.as_deref(), &self.request_id));
            }
        };
        let id = envelope.id.as_deref();
        let mut counted = Counted {
            metrics: &self.rpc.metrics,
            method: &envelope.method,
            began: Instant::now(),
            kind: None,
        };
        let outcome = match room {
            Err(none) if id.is_some() => Err(none.clone()),
            _ => self.call(&envelope).await,
        };
        counted.kind = Some(outcome.as_ref().err().map(|error| error.kind));
        drop(counted);
        // JSON-RPC 2.0 section 4.1: a notification is never answered, not even with an error.
        let id = id?;
        Some(match outcome {
            Ok(result) => aside(result.get().len(), || {
                format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{}}}"#, result.get())
            }),
            Err(error) => error.answer(Some(id), &self.request_id),
        })
    }

    /// To walk a megabyte of short names takes some hundredths of a second: a large text is walked on a thread that nobody
    /// else waits for.
    async fn walk<T: Send + 'static>(
        &self,
        text: Bytes,
        walk: impl FnOnce(Bytes) -> T + Send + 'static,
    ) -> Result<T, ErrorObject> {
        if text.len() <= SMALL_BYTES_MAX {
            return Ok(walk(text));
        }
        let turn = self.rpc.walks.wait(self.caller.tenant()).await;
        let walk = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            walk(text)
        });
        walk.await.map_err(|error| {
            tracing::error!(%error, "walking a body");
            ErrorObject::internal()
        })
    }

    async fn call(&self, envelope: &Envelope) -> Result<Box<RawValue>, ErrorObject> {
        if let Some(lapsed) = self.caller.lapsed() {
            let remedy = lapsed.remedy();
            let message = format!("{lapsed} before this call began; {remedy} and send it again");
            return Err(ErrorObject::lapsed(lapsed, message));
        }
        let params = match &envelope.params {
            None => Params::empty(),
            Some(text) => self.walk(text.clone(), Params::from_text).await??,
        };
        let method = json::short(&envelope.method);
        let call = Call {
            caller: self.caller.clone(),
            method: envelope.method.clone(),
            id: envelope.id.clone().unwrap_or_default(),
            params,
            counted: !self.counted.swap(true, Ordering::Relaxed),
            trace: self.trace,
            space: self.space.clone(),
        };
        let span = tracing::info_span!("call", method);
        let answer = AssertUnwindSafe(self.rpc.inner.clone().oneshot(call))
            .catch_unwind()
            .instrument(span)
            .await;
        match answer {
            // What has been done is told, with a place or without: whoever is to call again would do it twice. A method that
            // only reads has taken the place itself.
            Ok(outcome) => outcome.map_err(Into::into),
            Err(panic) => {
                let text = panic
                    .downcast_ref::<String>()
                    .map(String::as_str)
                    .or_else(|| panic.downcast_ref::<&str>().copied());
                tracing::error!(
                    method,
                    panic = text.unwrap_or("not a text"),
                    "a method panicked"
                );
                Err(ErrorObject::internal())
            }
        }
    }
}

/// A call, counted when this is dropped: with its answer, or without when its client has gone.
struct Counted<'a> {
    metrics: &'a Metrics,
    method: &'a str,
    began: Instant,
    /// Of an answer; that of its error.
    kind: Option<Option<&'static str>>,
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        let took = self.began.elapsed();
        match self.kind {
            Some(kind) => self.metrics.rpc_request(self.method, kind, took),
            None => self.metrics.rpc_unanswered(self.method, took),
        }
    }
}

fn require_json(headers: &http::HeaderMap) -> Result<(), Refusal> {
    let kind = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or("");
    let essence = kind.split(';').next().unwrap_or("").trim();
    if !essence.eq_ignore_ascii_case("application/json") {
        // Also what keeps a browser's form from reaching /rpc without a preflight.
        return Err(Refusal::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported_media_type",
            "send the body as Content-Type: application/json",
        ));
    }
    if headers.contains_key(header::CONTENT_ENCODING) {
        return Err(Refusal::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported_media_type",
            "a Content-Encoding is not accepted: send the body as it is",
        ));
    }
    Ok(())
}

fn json_response(text: Bytes) -> Response<Body> {
    let mut response = Response::new(full(text));
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        http::HeaderValue::from_static("application/json"),
    );
    response
}

fn no_content() -> Response<Body> {
    let mut response = Response::new(full(""));
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

/// How many bytes an answer has as JSON, where a control character of a text has six; none when these are more than so
/// many: it looks no further.
pub(crate) fn json_bytes(answer: &impl serde::Serialize, bytes_max: u64) -> Option<u64> {
    /// Counts, and fails with the first byte too many.
    struct Room(u64);
    impl io::Write for Room {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            match self.0.checked_sub(bytes.len() as u64) {
                Some(left) => self.0 = left,
                None => return Err(io::ErrorKind::StorageFull.into()),
            }
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut room = Room(bytes_max);
    let counted = serde_json::to_writer(&mut room, answer);
    // Any other error is told to whoever writes the answer.
    (!counted.is_err_and(|error| error.is_io())).then(|| bytes_max - room.0)
}

/// Serializes an answer of ours.
///
/// # Errors
/// None in practice: our answers are structs without maps of odd keys; a failure is an internal error.
pub(crate) fn to_raw(
    answer: &impl serde::Serialize,
) -> Result<Box<RawValue>, Arc<serde_json::Error>> {
    serde_json::value::to_raw_value(answer).map_err(Arc::new)
}

#[cfg(test)]
mod tests;

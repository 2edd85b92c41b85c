//! Outermost: one place that decides what a caller is told.
//!
//! A [`Refusal`] is an answer to a whole HTTP request that never reached JSON-RPC; the `From` impl at the end turns
//! every error of a call into its JSON-RPC error. An error that is ours (a plugin broke, a disk failed) becomes
//! `internal` for the caller and a log record with the cause; nothing in between leaks.

mod plugin;

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode, header};
use serde_json::{Map, Value};
use skillgate_plugin_sdk::abi;
use skillgate_skill::SkillName;
use tower::{Layer, Service, ServiceExt};
use tracing::Instrument;

use crate::json::cut;
use crate::rpc::code::Code;
use crate::rpc::{ErrorObject, NoSpace};
use crate::server::{Body, Broken, Ends, full, peer_ip};
use crate::telemetry::trace::Trace;
use crate::telemetry::with_sources;
use crate::{blobs, catalog, methods, runs};
use plugin::plugin;

/// `X-Request-Id`, echoed or made.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Longest id of a caller that is echoed, in bytes.
const REQUEST_ID_BYTES_MAX: usize = 128;
/// Of a path and of an HTTP method so many characters are in the log: whoever has no token yet writes some lines with each.
const LOGGED_PATH_CHARS_MAX: usize = 256;
const LOGGED_METHOD_CHARS_MAX: usize = 16;

/// The name of one HTTP request in logs and answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestId(Arc<str>);

impl RequestId {
    /// The caller's own when it is short and plain, else a new random one.
    pub fn of(headers: &http::HeaderMap) -> Self {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/+=".contains(&byte);
        match headers.get(&REQUEST_ID).map(HeaderValue::as_bytes) {
            Some(id)
                if !id.is_empty()
                    && id.len() <= REQUEST_ID_BYTES_MAX
                    && id.iter().copied().all(plain) =>
            {
                RequestId(String::from_utf8_lossy(id).into())
            }
            _ => RequestId::new(),
        }
    }

    /// A new random one.
    pub fn new() -> Self {
        RequestId(hex::encode(rand::random::<[u8; 12]>()).into())
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for RequestId {
    fn default() -> Self {
        RequestId::new()
    }
}

/// What an answer is for, unless it says otherwise: whoever has asked, now. A cache may keep a 404 else, and give it to others (RFC
/// 9110 section 15.1, RFC 9111 section 3).
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// An HTTP request that is refused before it was a call.
#[derive(Debug)]
pub struct Refusal {
    /// HTTP status.
    pub status: StatusCode,
    /// Stable identifier.
    pub kind: &'static str,
    /// JSON-RPC's, for the body.
    code: Code,
    /// For the caller.
    pub message: String,
    /// More members of `error.data`.
    pub data: Map<String, Value>,
    /// Further headers: `Allow`, `RateLimit`, `Retry-After`, `WWW-Authenticate`.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Close the connection after the answer: what follows on it cannot be trusted or is not wanted.
    pub close: bool,
}

impl Refusal {
    /// A refusal without further headers.
    pub fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        let close = matches!(
            status,
            StatusCode::PAYLOAD_TOO_LARGE | StatusCode::REQUEST_TIMEOUT
        );
        let code = match status {
            StatusCode::UNAUTHORIZED => Code::Unauthenticated,
            StatusCode::FORBIDDEN => Code::Denied,
            StatusCode::TOO_MANY_REQUESTS => Code::RateLimited,
            StatusCode::SERVICE_UNAVAILABLE => Code::Unavailable,
            StatusCode::INTERNAL_SERVER_ERROR => Code::Internal,
            _ => Code::InvalidRequest,
        };
        Refusal {
            status,
            kind,
            code,
            message: message.into(),
            data: Map::new(),
            headers: Vec::new(),
            close,
        }
    }

    /// Of what comes while the gateway drains. Its connection may not have heard of the drain yet, and will be closed all the
    /// same: whoever has this would else send his next request into that end.
    pub fn stopping() -> Self {
        let why = "the gateway is stopping; nothing was done: try again, with another one if there are several";
        let refusal = Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", why);
        Refusal {
            close: true,
            ..refusal.with(header::RETRY_AFTER, "1")
        }
    }

    /// Of what has no answer yet when the drain is over. Nobody is told when to try again: whoever does so unseen may do it twice.
    pub fn cut_off() -> Self {
        let why = "the gateway had to stop before this call was answered; whether it was done is not known: look for what it should have done before you send it again";
        Refusal {
            close: true,
            ..Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", why)
        }
    }

    /// With a header.
    #[must_use]
    pub fn with(mut self, name: HeaderName, value: &'static str) -> Self {
        self.headers.push((name, HeaderValue::from_static(value)));
        self
    }

    /// With a member of `error.data`.
    #[must_use]
    pub fn with_data(mut self, name: &str, value: Value) -> Self {
        self.data.insert(name.to_owned(), value);
        self
    }

    fn response(self, request_id: &RequestId) -> Response<String> {
        let mut error = ErrorObject::new(self.code, self.kind, self.message);
        error.data = self.data;
        let text = error.answer(None, request_id);
        let mut response = Response::new(text);
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        // One name may come several times: each rate limit that has counted the request adds its own.
        for (name, value) in self.headers {
            headers.append(name, value);
        }
        headers.insert(header::CACHE_CONTROL, NO_STORE);
        if self.close {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    /// As it is sent, for a connection that ends with it and of which no service has seen a request.
    pub(crate) fn last_answer(mut self, request_id: &RequestId) -> Vec<u8> {
        self.close = true;
        let (head, text) = self.response(request_id).into_parts();
        let mut answer = format!(
            "HTTP/1.1 {}\r\n{REQUEST_ID}: {}\r\ncontent-length: {}\r\n",
            head.status,
            request_id.as_str(),
            text.len(),
        )
        .into_bytes();
        for (name, value) in &head.headers {
            answer.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
        }
        answer.extend([b"\r\n", text.as_bytes()].concat());
        answer
    }
}

impl From<Broken> for Refusal {
    fn from(broken: Broken) -> Self {
        match broken {
            Broken::Read(error) => Refusal::new(
                StatusCode::BAD_REQUEST,
                "bad_request",
                format!("the body could not be read: {error}"),
            ),
            Broken::Stalled => Refusal::new(
                StatusCode::REQUEST_TIMEOUT,
                "timeout",
                "the body stopped arriving (server.body_timeout_ms)",
            ),
        }
    }
}

impl From<ErrorObject> for Refusal {
    /// For the HTTP faces of a method (`/blobs`), which have no JSON-RPC envelope to answer in.
    fn from(error: ErrorObject) -> Self {
        let status = match error.code {
            Code::Denied => StatusCode::FORBIDDEN,
            Code::RateLimited => StatusCode::TOO_MANY_REQUESTS,
            Code::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Code::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Code::Unauthenticated => StatusCode::UNAUTHORIZED,
            Code::AlreadyExists => StatusCode::CONFLICT,
            _ if error.kind.ends_with("_not_found") => StatusCode::NOT_FOUND,
            _ => StatusCode::BAD_REQUEST,
        };
        let mut refusal = Refusal {
            // As for the method: its kind is one of that code's.
            code: error.code,
            ..Refusal::new(status, error.kind, error.message)
        };
        if let Some(wait_ms) = error.data.get("retry_after_ms").and_then(Value::as_u64) {
            let wait = HeaderValue::from(wait_ms.div_ceil(1000));
            refusal.headers.push((header::RETRY_AFTER, wait));
        }
        refusal.data = error.data;
        refusal
    }
}

impl From<methods::Error> for Refusal {
    /// For the same faces: as its error object, and one of a rate limit with the headers that every 429 has.
    fn from(error: methods::Error) -> Self {
        match error {
            methods::Error::Limited(limited) => limited.into(),
            error => ErrorObject::from(error).into(),
        }
    }
}

/// A request with its name, as the layers below take it.
#[derive(Debug)]
pub struct Named {
    /// Its name.
    pub request_id: RequestId,
    /// The request.
    pub request: Request<Body>,
}

/// Makes [`Rescue`].
#[derive(Debug, Clone, Copy)]
pub struct RescueLayer;

impl<S> Layer<S> for RescueLayer {
    type Service = Rescue<S>;
    fn layer(&self, inner: S) -> Rescue<S> {
        Rescue { inner }
    }
}

/// Names each request, logs it, and turns a refusal into its answer. It never fails.
#[derive(Debug, Clone)]
pub struct Rescue<S> {
    inner: S,
}

impl<S> Service<Request<Body>> for Rescue<S>
where
    S: Service<Named, Response = Response<Body>, Error = Refusal> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let inner = self.inner.clone();
        let ends = request.extensions_mut().remove::<Ends>();
        let request_id = RequestId::of(request.headers());
        let began = Instant::now();
        let trace = Trace::in_request(&request);
        let span = tracing::info_span!(
            "request",
            id = request_id.as_str(),
            peer = %peer_ip(&request),
            trace_id = trace.trace_id(),
            span_id = trace.span_id(),
            method = %cut(request.method().as_str(), LOGGED_METHOD_CHARS_MAX),
            path = &*cut(request.uri().path(), LOGGED_PATH_CHARS_MAX),
        );
        let work = async move {
            let named = Named {
                request_id: request_id.clone(),
                request,
            };
            let answered = AssertUnwindSafe(inner.oneshot(named)).catch_unwind();
            let outcome = tokio::select! {
                biased;
                outcome = answered => outcome.unwrap_or_else(|_| {
                    // The panic's own message is in the log already; nobody else is told of it.
                    tracing::error!("a request ended in a panic");
                    Err(ErrorObject::internal().into())
                }),
                () = cut_off(ends) => Err(Refusal::cut_off()),
            };
            let mut response = outcome.unwrap_or_else(|refusal| {
                tracing::info!(
                    kind = refusal.kind,
                    reason = refusal.message,
                    "request refused"
                );
                refusal.response(&request_id).map(full)
            });
            let headers = response.headers_mut();
            if let Ok(value) = HeaderValue::from_str(request_id.as_str()) {
                headers.insert(REQUEST_ID, value);
            }
            headers.entry(header::CACHE_CONTROL).or_insert(NO_STORE);
            let status = response.status().as_u16();
            let took_us = began.elapsed().as_micros() as u64;
            if status < 400 {
                // The audit log has each call; twice on disk would cost more than the call.
                tracing::debug!(status, took_us, "answered");
            } else {
                tracing::info!(status, took_us, "answered");
            }
            Ok(response)
        };
        Box::pin(work.instrument(span))
    }
}

/// Resolves when a request's time is over, which only its connection knows.
async fn cut_off(ends: Option<Ends>) {
    match ends {
        Some(mut ends) => ends.cuts().await,
        None => std::future::pending().await,
    }
}

// === what a caller is told of each error of a call ===

impl From<methods::Error> for ErrorObject {
    fn from(error: methods::Error) -> Self {
        use methods::Error;
        match error {
            Error::UnknownMethod { method } => {
                let is_a_skills = !method.starts_with("rpc.")
                    && method.contains('.')
                    && SkillName::parse(&method).is_ok();
                let instead = match is_a_skills {
                    true => format!(
                        ": if it is a skill, execute_skill runs it, with {{\"name\": {method:?}}}"
                    ),
                    false => String::new(),
                };
                let names = methods::names().join(", ");
                ErrorObject::new(
                    Code::MethodNotFound,
                    "method_not_found",
                    format!("there is no method {method:?}{instead}; there are {names}"),
                )
            }
            Error::Params { pointer, message } => ErrorObject::invalid_params(pointer, message),
            Error::TooLarge { message } => ErrorObject::new(Code::TooLarge, "too_large", message),
            Error::Denied(denied) => {
                let error = ErrorObject::new(Code::Denied, "policy_denied", denied.to_string())
                    .with("decision_id", denied.decision_id.into())
                    .with("reasons", Value::Array(denied.reasons));
                match denied.retryable {
                    true => error.with("retryable", true.into()),
                    false => error,
                }
            }
            Error::Limited(limited) => {
                ErrorObject::new(Code::RateLimited, "rate_limited", limited.to_string())
                    .with("retry_after_ms", limited.retry_after_ms.into())
            }
            Error::Catalog(error) => error.into(),
            Error::Blobs(error) => error.into(),
            Error::Runs(error) => error.into(),
            Error::NoSpace(error) => error.into(),
            Error::Serialize(error) => ours("an answer could not be serialized", &error),
        }
    }
}

impl From<catalog::Error> for ErrorObject {
    fn from(error: catalog::Error) -> Self {
        use catalog::Error;
        let message = error.to_string();
        match error {
            Error::SkillNotFound { .. } => {
                ErrorObject::new(Code::InvalidParams, "skill_not_found", message)
            }
            Error::VersionNotFound { .. } => {
                ErrorObject::new(Code::InvalidParams, "version_not_found", message)
            }
            Error::FileNotFound { .. } => {
                ErrorObject::new(Code::InvalidParams, "file_not_found", message)
            }
            Error::PathEscape { .. } => {
                ErrorObject::new(Code::InvalidParams, "path_escape", message)
            }
            Error::CursorInvalid => {
                ErrorObject::new(Code::InvalidParams, "cursor_invalid", message)
            }
            Error::LanguageUnsupported { .. } => {
                ErrorObject::new(Code::InvalidParams, "language_unsupported", message)
            }
            Error::Invalid { pointer, message } => ErrorObject::invalid_params(pointer, message),
            Error::AlreadyExists { .. } => {
                ErrorObject::new(Code::AlreadyExists, "already_exists", message)
            }
            Error::TooLarge { .. } => ErrorObject::new(Code::TooLarge, "too_large", message),
            // The configuration's fault or wish; to call again changes nothing.
            Error::ReadOnly | Error::NoSkills => {
                ErrorObject::new(Code::Unavailable, "unavailable", message)
            }
            Error::Broken { .. } => ours("a stored skill is broken", &error),
            Error::Replaced { .. } => ErrorObject::new(Code::Unavailable, "unavailable", message)
                .with("retry_after_ms", 0.into()),
            Error::Store(error) => plugin("skill store", "store less", &error),
        }
    }
}

impl From<blobs::Error> for ErrorObject {
    fn from(error: blobs::Error) -> Self {
        use blobs::Error;
        let message = error.to_string();
        match error {
            Error::NotFound { .. } => {
                ErrorObject::new(Code::InvalidParams, "blob_not_found", message)
            }
            Error::TooLarge { .. } => ErrorObject::new(Code::TooLarge, "too_large", message),
            Error::NoBlobs => ErrorObject::new(Code::Unavailable, "unavailable", message),
            Error::Store(error) => plugin("blob store", "store less", &error),
        }
    }
}

impl From<NoSpace> for ErrorObject {
    fn from(error: NoSpace) -> Self {
        ErrorObject::new(Code::Unavailable, "unavailable", error.to_string())
            .with("retry_after_ms", 1000.into())
    }
}

impl From<runs::Error> for ErrorObject {
    fn from(error: runs::Error) -> Self {
        use runs::Error;
        let message = error.to_string();
        match error {
            Error::NotExecutable { .. } => {
                ErrorObject::new(Code::InvalidParams, "skill_not_executable", message)
            }
            Error::QueueFull { retry_after_ms } => {
                ErrorObject::new(Code::Unavailable, "unavailable", message)
                    .with("retry_after_ms", retry_after_ms.into())
            }
            Error::Outdated => ErrorObject::new(Code::Unavailable, "unavailable", message)
                .with("retry_after_ms", 0.into()),
            Error::Stopping => ErrorObject::new(Code::Unavailable, "unavailable", message)
                .with("retry_after_ms", 1000.into()),
            Error::Lapsed(lapsed) => ErrorObject::lapsed(lapsed, message),
            Error::Catalog(error) => error.into(),
            Error::Blobs(error) => error.into(),
            Error::Secrets(_) | Error::NoGate => {
                ErrorObject::new(Code::Unavailable, "unavailable", message)
            }
            // The result is withheld: what cannot be recorded is not given away. Whoever is told to try again would do it twice.
            Error::Audit(_) => ErrorObject::new(Code::Unavailable, "unavailable", message),
            Error::Grant(_) => ours("a run's network cannot be granted", &error),
            // The configuration's fault, and what a caller would ask its operator: another sandbox.
            Error::Sandbox(error) if error.code == abi::E_UNIMPLEMENTED && error.not_executed => {
                tracing::error!(reason = error.message, "the sandbox does not run python");
                let message = "the sandbox of this gateway does not run \"python\"";
                ErrorObject::new(Code::InvalidParams, "language_unsupported", message)
            }
            // What a request may have is the operator's to say, and what a sandbox takes its maker's.
            Error::Sandbox(error) if error.code == abi::E_OUT_OF_RANGE && error.not_executed => {
                tracing::info!(
                    reason = error.message,
                    "the sandbox does not take a run of this size"
                );
                let message = "code and arguments are larger than this sandbox takes: pass large data as input_blobs";
                ErrorObject::new(Code::TooLarge, "too_large", message)
            }
            Error::Sandbox(error) => plugin("sandbox", "run less at once", &error),
            Error::Lost => ours("a run ended without a result", &error),
        }
    }
}

fn ours(what: &'static str, error: &dyn std::error::Error) -> ErrorObject {
    let error = with_sources(error);
    tracing::error!(what, %error, "internal error");
    ErrorObject::internal()
}

#[cfg(test)]
mod tests;

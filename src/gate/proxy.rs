//! The run's side: HTTP/1.1, CONNECT and absolute-form requests (RFC 9110, 9.3.6; RFC 9112, 3.2). Every request of a
//! connection is decided by itself.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderValue, TRANSFER_ENCODING,
};
use http::{Method, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::ext::ReasonPhrase;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use skillgate_skill::Scheme;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};

use super::Run;
use super::dial::dial;
use super::forward::{Answer, forward};
use super::record::Entry;
use super::refusal::Refusal;
use super::target::Target;
use super::tunnel::Tunnel;
use crate::server::is_plainly_framed;
use crate::slots::Slot;

/// Headers of a request.
const HEADERS_MAX: usize = 100;

/// Serves one connection of a run to its end.
pub(super) async fn serve<S>(stream: S, run: Arc<Run>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let accepted: Arc<Mutex<Option<Tunnel>>> = Arc::default();
    let service = {
        let (run, accepted) = (run.clone(), accepted.clone());
        service_fn(move |request| answer(run.clone(), accepted.clone(), request))
    };
    let settings = &run.gate.settings;
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(settings.header_timeout)
        .max_buf_size(settings.header_bytes_max)
        .max_headers(HEADERS_MAX)
        .serve_connection(TokioIo::new(stream), service)
        .without_shutdown()
        .await;
    let Ok(parts) = served else {
        // Not HTTP, or the client has gone: hyper has answered where there was something to answer.
        return;
    };
    let mut stream = parts.io.into_inner();
    // Nothing panics while it is held, and what it holds is whole in any case.
    let tunnel = accepted
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    match tunnel {
        Some(tunnel) => tunnel.run(run, stream, &parts.read_buf).await,
        None => {
            // An end that is gone cannot be told.
            let _ = stream.shutdown().await;
        }
    }
}

/// An answer's body: the host's, or words of the gate's own.
#[derive(Debug)]
enum Reply {
    Host(Answer),
    Gate(Full<Bytes>),
}

impl Body for Reply {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut *self {
            Reply::Host(body) => Pin::new(body).poll_frame(cx),
            Reply::Gate(body) => Pin::new(body)
                .poll_frame(cx)
                .map_err(|never| match never {}),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Reply::Host(body) => body.is_end_stream(),
            Reply::Gate(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Reply::Host(body) => body.size_hint(),
            Reply::Gate(body) => body.size_hint(),
        }
    }
}

async fn answer(
    run: Arc<Run>,
    accepted: Arc<Mutex<Option<Tunnel>>>,
    request: Request<Incoming>,
) -> Result<Response<Reply>, Infallible> {
    let outcome = if request.method() == Method::CONNECT {
        connect(run.clone(), &request).await.map(|tunnel| {
            *accepted.lock().unwrap_or_else(PoisonError::into_inner) = Some(tunnel);
            Response::new(Reply::Gate(Full::default()))
        })
    } else {
        pass_on(run.clone(), request).await
    };
    Ok(outcome.unwrap_or_else(|refusal| {
        let mut response = refused(&refusal);
        if run.is_past_records() {
            // Whoever asks on and on pays a connection for each answer.
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(CONNECTION, close);
        }
        response
    }))
}

/// A record for a request, where it leads, if it may, and its place.
fn decide(
    run: &Arc<Run>,
    target: Result<Target, Refusal>,
) -> Result<(Entry, Target, Slot), Refusal> {
    let mut entry = Entry::new(run.clone());
    let checked = target.and_then(|target| {
        entry.target(&target);
        let grant = run.grant();
        if !grant.allows(&target) {
            return Err(Refusal::NotGranted {
                target,
                granted: grant.patterns().to_vec(),
            });
        }
        // Before the host hears of it: it would act on a request whose answer does not reach the run.
        if run.is_spent() {
            return Err(Refusal::BytesSpent);
        }
        if !run.gate.ledger.can_keep() {
            return Err(Refusal::NoRecord);
        }
        let slot = run.slot().ok_or(Refusal::Busy)?;
        // Last: what is refused for another reason costs the tenant none.
        if !run.gate.paced.admits(&grant.tenant) {
            return Err(Refusal::TooFast);
        }
        Ok((target, slot))
    });
    match checked {
        Ok((target, slot)) => Ok((entry, target, slot)),
        Err(refusal) => {
            entry.refused(&refusal);
            Err(refusal)
        }
    }
}

async fn connect(run: Arc<Run>, request: &Request<Incoming>) -> Result<Tunnel, Refusal> {
    let (mut entry, target, slot) = decide(&run, connect_target(request))?;
    match dial(&run, &target).await {
        Ok((upstream, address)) => {
            entry.dialled(address);
            Ok(Tunnel {
                entry,
                target,
                upstream,
                address,
                slot,
            })
        }
        Err(refusal) => {
            entry.refused(&refusal);
            Err(refusal)
        }
    }
}

/// The one host of a CONNECT. A tunnel carries TLS, so it needs a pattern of scheme https.
fn connect_target(request: &Request<Incoming>) -> Result<Target, Refusal> {
    let bad = |why: &str| Err(Refusal::BadRequest(why.into()));
    let uri = request.uri();
    let authority = match (uri.scheme(), uri.authority(), uri.path_and_query()) {
        (None, Some(authority), None) => authority,
        _ => return bad("CONNECT takes host:port"),
    };
    let headers = request.headers();
    if headers.contains_key(TRANSFER_ENCODING)
        || headers
            .get(CONTENT_LENGTH)
            .is_some_and(|length| length != "0")
    {
        return bad("CONNECT has no body");
    }
    let target = Target::parse(Scheme::Https, authority.as_str()).map_err(Refusal::BadHost)?;
    // There is no default (RFC 9110, 9.3.6).
    if authority.port().is_none() {
        return bad("CONNECT takes host:port, and the port is missing");
    }
    same_host(headers, &target)?;
    Ok(target)
}

async fn pass_on(run: Arc<Run>, request: Request<Incoming>) -> Result<Response<Reply>, Refusal> {
    let (entry, target, slot) = decide(&run, absolute_target(&request))?;
    forward(&run, entry, slot, target, request)
        .await
        .map(|response| response.map(Reply::Host))
}

/// The one host of an absolute-form request.
fn absolute_target(request: &Request<Incoming>) -> Result<Target, Refusal> {
    let uri = request.uri();
    let scheme = uri.scheme_str().ok_or(Refusal::NotAProxyRequest)?;
    if request.method() == Method::TRACE {
        return Err(Refusal::BadRequest("TRACE is not passed on".into()));
    }
    match scheme {
        "http" => {}
        "https" => return Err(Refusal::HttpsWithoutConnect),
        _ => {
            return Err(Refusal::BadRequest(
                "only http and https go through the gate".into(),
            ));
        }
    }
    if !is_plainly_framed(request.headers()) {
        return Err(Refusal::BadRequest(
            "the one Transfer-Encoding that is passed on is `chunked`, once".into(),
        ));
    }
    let authority = uri
        .authority()
        .ok_or_else(|| Refusal::BadRequest("the URL has no host".into()))?;
    let target = Target::parse(Scheme::Http, authority.as_str()).map_err(Refusal::BadHost)?;
    same_host(request.headers(), &target)?;
    Ok(target)
}

/// The Host header, when there is one, says the same (RFC 9112, 3.2.2 would ignore it; the host behind might not).
fn same_host(headers: &HeaderMap, target: &Target) -> Result<(), Refusal> {
    let mut hosts = headers.get_all(HOST).iter();
    let (first, second) = (hosts.next(), hosts.next());
    let same = |value: &HeaderValue| {
        value
            .to_str()
            .ok()
            .and_then(|host| Target::parse(target.scheme(), host).ok())
            .is_some_and(|host| host == *target)
    };
    match (first, second) {
        (None, _) => Ok(()),
        (Some(host), None) if same(host) => Ok(()),
        (Some(_), None) => Err(Refusal::BadRequest(
            "its Host is another than the one it is for".into(),
        )),
        (Some(_), Some(_)) => Err(Refusal::BadRequest("it has two Hosts".into())),
    }
}

/// The gate's own answer: what went wrong as a status line, as `Proxy-Status` (RFC 9209) and as JSON.
fn refused(refusal: &Refusal) -> Response<Reply> {
    let mut body = serde_json::json!({ "error": refusal.code(), "message": refusal.to_string() });
    if let Some(target) = refusal.target() {
        body["target"] = target.to_string().into();
    }
    let mut response = Response::new(Reply::Gate(Full::new(Bytes::from(format!("{body}\n")))));
    *response.status_mut() =
        StatusCode::from_u16(refusal.status()).unwrap_or(StatusCode::FORBIDDEN);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(
        "proxy-status",
        HeaderValue::from_static(proxy_status(refusal)),
    );
    if matches!(refusal, Refusal::Busy | Refusal::TooFast) {
        headers.insert(http::header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    if let Ok(reason) = ReasonPhrase::try_from(refusal.headline().into_bytes()) {
        response.extensions_mut().insert(reason);
    }
    response
}

/// Error types of RFC 9209, 2.3.
fn proxy_status(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::BadRequest(_)
        | Refusal::BadHost(_)
        | Refusal::HttpsWithoutConnect
        | Refusal::NotAProxyRequest => "skillgate; error=http_request_error",
        Refusal::NotGranted { .. } | Refusal::BytesSpent => "skillgate; error=http_request_denied",
        Refusal::Address(_) => "skillgate; error=destination_ip_prohibited",
        Refusal::NoSuchHost(_) => "skillgate; error=dns_error",
        Refusal::Unreachable(_) => "skillgate; error=destination_unavailable",
        Refusal::Timeout(_) => "skillgate; error=connection_timeout",
        Refusal::NoAnswer(_) => "skillgate; error=connection_terminated",
        Refusal::BadAnswer(_) => "skillgate; error=http_protocol_error",
        Refusal::Busy | Refusal::TooFast => "skillgate; error=connection_limit_reached",
        Refusal::NoRecord => "skillgate; error=proxy_internal_error",
    }
}

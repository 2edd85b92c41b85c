//! The public paths: JSON-RPC, blobs as streams, and the documents made from the method table.

mod blobs;
mod tools;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use http::{HeaderValue, Method, Response, StatusCode, header};
use serde_json::value::RawValue;
use tower::util::BoxCloneSyncService;
use tower::{Service, ServiceExt};

use crate::audit::Audit;
use crate::auth::{Authenticated, Authenticator, METADATA_PATH, is_open};
use crate::methods;
use crate::rescue::Refusal;
use crate::rpc::{Call, Rpc};
use crate::server::{Body, full};
use crate::telemetry::health::{Check, Health, Part, State};

pub(crate) use blobs::Transfer;

/// Calls, as JSON-RPC and the command line make them.
pub(crate) type Calls = BoxCloneSyncService<Call, Box<RawValue>, methods::Error>;

/// Whether the gateway takes work: not while it drains, and not while a part of it is not well.
#[derive(Debug, Clone)]
pub(crate) struct Readiness {
    draining: Arc<AtomicBool>,
    audit: Audit,
    health: Health,
}

impl Readiness {
    /// Ready, as long as what must be recorded can be and the parts in `health` are well.
    pub(crate) fn new(audit: Audit, health: Health) -> Self {
        Readiness {
            draining: Arc::new(AtomicBool::new(false)),
            audit,
            health,
        }
    }

    /// The same and one part more.
    #[must_use]
    pub(crate) fn and(self, name: &'static str, check: Check) -> Self {
        Readiness {
            health: self.health.and(name, check),
            ..self
        }
    }

    /// From now on `/readyz` says no, so that a balancer sends nothing more, and what comes all the same is refused.
    pub(crate) fn draining(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Part by part, for the operator. The gateway's own state is as it is now, that of the others at most a second old.
    pub(crate) async fn report(&self) -> Vec<Part> {
        let draining = if self.is_draining() {
            State::Failed("the gateway is stopping".into())
        } else {
            State::Well("no".into())
        };
        let audit = self.audit.health();
        let audit = match audit.failing {
            Some(why) if audit.denies => State::Failed(why),
            Some(why) => State::Impaired(format!("records are lost: {why}")),
            None => State::Well(format!("{} records", audit.records)),
        };
        let mut parts = vec![
            Part {
                name: "draining",
                state: draining,
            },
            Part {
                name: "audit",
                state: audit,
            },
        ];
        parts.extend(self.health.report().await.iter().cloned());
        parts
    }

    /// Why it does not take work, for everybody; none when it does.
    async fn refuses(&self) -> Option<&'static str> {
        let parts = self.report().await;
        let bad = parts.into_iter().find(Part::failed)?;
        Some(match bad.name {
            "draining" => "draining",
            "audit" => "the audit log cannot be written",
            _ => "a part of the gateway is not well",
        })
    }
}

/// Stands for the path of each blob.
const ONE_BLOB: &str = "/blobs/{id}";

/// The public paths, with the methods they answer: what `serve` prints, and by what requests are counted.
pub(crate) const PATHS: [(&str, &str, &str); 9] = [
    ("/rpc", "POST", "JSON-RPC 2.0"),
    ("/blobs", "POST", "store a body as a blob, streamed"),
    (ONE_BLOB, "GET", "a blob, streamed, or a range of it"),
    (
        "/tools",
        "GET",
        "tool definitions, ?format=json-schema|openai|openai-chat|anthropic|gemini|mcp",
    ),
    ("/system-prompt", "GET", "what to tell a model"),
    ("/openrpc.json", "GET", "every method"),
    (
        METADATA_PATH,
        "GET",
        "where to get a token, with auth.mode = \"jwt\"",
    ),
    ("/livez", "GET", "the process lives"),
    ("/readyz", "GET", "it takes work"),
];

/// What anybody may ask: whether the gateway is well, and where to get a token.
pub(crate) const OPEN_PATHS: [&str; 4] = [
    "/livez",
    "/readyz",
    METADATA_PATH,
    "/.well-known/oauth-protected-resource/",
];

/// The known word for a path, for metrics.
pub(crate) fn route(path: &str) -> &'static str {
    if path.starts_with("/blobs/") {
        return ONE_BLOB;
    }
    let known = PATHS.iter().find(|(known, _, _)| *known == path);
    known.map_or("other", |(known, _, _)| known)
}

/// Sends each request to its path's service. Cheap to clone: every layer above does so for each request.
#[derive(Debug, Clone)]
pub(crate) struct Faces(Arc<Services>);

#[derive(Debug)]
struct Services {
    authenticator: Authenticator,
    rpc: Rpc<Calls>,
    blobs: Transfer,
    readiness: Readiness,
}

impl Faces {
    /// The paths over one stack of calls.
    pub(crate) fn new(
        rpc: Rpc<Calls>,
        blobs: Transfer,
        readiness: Readiness,
        authenticator: Authenticator,
    ) -> Self {
        Faces(Arc::new(Services {
            rpc,
            blobs,
            readiness,
            authenticator,
        }))
    }

    async fn answer(self, request: Authenticated) -> Result<Response<Body>, Refusal> {
        let Faces(services) = self;
        let path = request.request.uri().path();
        // A connection on which a request had begun to arrive before is read to that one's end.
        if services.readiness.is_draining() && !is_open(&OPEN_PATHS, path) {
            return Err(Refusal::stopping());
        }
        if let Some(id) = path.strip_prefix("/blobs/") {
            only(request.request.method(), "GET, HEAD")?;
            let id = blob_id(id);
            return services.blobs.send(request, &id).await;
        }
        // RFC 9728 section 3.1: at this path, or with the resource's own path behind it.
        if let Some(rest) = path.strip_prefix(METADATA_PATH)
            && (rest.is_empty() || rest.starts_with('/'))
            && let Some(text) = services.authenticator.metadata(request.request.headers())
        {
            return document(&request, "application/json", text);
        }
        match path {
            "/rpc" => {
                only(request.request.method(), "POST")?;
                services.rpc.clone().oneshot(request).await
            }
            "/blobs" => {
                only(request.request.method(), "POST")?;
                services.blobs.receive(request).await
            }
            "/tools" => {
                only(request.request.method(), "GET, HEAD")?;
                tools::answer(&request.request)
            }
            "/system-prompt" => document(
                &request,
                "text/plain; charset=utf-8",
                methods::SYSTEM_PROMPT.to_owned(),
            ),
            "/openrpc.json" => {
                document(&request, "application/json", methods::openrpc().to_string())
            }
            "/livez" => document(&request, "text/plain; charset=utf-8", "ok\n".into()),
            "/readyz" => match services.readiness.refuses().await {
                None => document(&request, "text/plain; charset=utf-8", "ok\n".into()),
                Some(why) => Err(
                    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", why)
                        .with(header::RETRY_AFTER, "1"),
                ),
            },
            _ => Err(Refusal::new(
                StatusCode::NOT_FOUND,
                "not_found",
                "there is nothing at this path; the API is POST /rpc",
            )),
        }
    }
}

/// As a path names a blob. What writes a name into a path (JavaScript's `encodeURIComponent`, Python's `quote`) writes the
/// colon of an id as `%3A`, which means the same there (RFC 3986, sections 2.1 and 3.3).
fn blob_id(in_path: &str) -> String {
    in_path.replace("%3A", ":").replace("%3a", ":")
}

/// Refuses other methods than those of the header `Allow`.
pub(crate) fn only(method: &Method, allow: &'static str) -> Result<(), Refusal> {
    if allow.split(", ").any(|it| it == method.as_str()) {
        return Ok(());
    }
    Err(Refusal::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "method_not_allowed",
        format!("this path takes {allow}"),
    )
    .with(header::ALLOW, allow))
}

fn document(
    request: &Authenticated,
    kind: &'static str,
    text: String,
) -> Result<Response<Body>, Refusal> {
    only(request.request.method(), "GET, HEAD")?;
    Ok(text_response(kind, text))
}

fn text_response(kind: &'static str, text: String) -> Response<Body> {
    let mut response = Response::new(full(text));
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

impl Service<Authenticated> for Faces {
    type Response = Response<Body>;
    type Error = Refusal;
    type Future = BoxFuture<'static, Result<Response<Body>, Refusal>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Refusal>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Authenticated) -> Self::Future {
        Box::pin(self.clone().answer(request))
    }
}

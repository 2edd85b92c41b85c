//! Which requests are meant for this server, and end where everybody sees them end: the defence against web pages that make
//! a browser send them, and against requests hidden in the body of another.
//!
//! A page on another site can make a browser talk to a local address, directly or by rebinding its own name to it.
//! The `Host` of such a request is the page's, its `Origin` too, so both must be ours.

use std::net::IpAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use http::uri::Authority;
use http::{HeaderMap, Response, StatusCode, Uri, Version, header};
use tower::{Layer, Service, ServiceExt};

use crate::json::short;
use crate::rescue::{Named, Refusal};
use crate::server::{Body, is_plainly_framed};

/// Makes [`Door`].
#[derive(Debug, Clone)]
pub(crate) struct DoorLayer {
    names: Arc<[String]>,
    key: &'static str,
}

impl DoorLayer {
    /// Lets requests in that name the listen address, a loopback name, an IP address, or one of `allowed_hosts`, which the
    /// configuration has as `key`.
    ///
    /// As a `Host` an IP address is safe whatever it is: rebinding needs a name. As an `Origin` it is not.
    pub(crate) fn new(allowed_hosts: &[String], key: &'static str) -> Self {
        DoorLayer {
            key,
            names: allowed_hosts
                .iter()
                .map(|name| name.to_ascii_lowercase())
                .chain(["localhost".into()])
                .collect(),
        }
    }
}

impl<S> Layer<S> for DoorLayer {
    type Service = Door<S>;
    fn layer(&self, inner: S) -> Door<S> {
        Door {
            names: self.names.clone(),
            key: self.key,
            inner,
        }
    }
}

/// Refuses requests for other hosts and from other origins.
#[derive(Debug, Clone)]
pub(crate) struct Door<S> {
    names: Arc<[String]>,
    key: &'static str,
    inner: S,
}

impl<S> Door<S> {
    fn check(&self, named: &Named) -> Result<(), Refusal> {
        let request = &named.request;
        framed(request.headers())?;
        of_one_kind(request.headers())?;
        let host = host(request.headers(), request.uri(), request.version())?;
        if !self.ours(&host) {
            return Err(Refusal::new(
                StatusCode::BAD_REQUEST,
                "bad_request",
                format!(
                    "this server does not answer for the host {:?}; an operator adds it to {}",
                    short(host.as_str()),
                    self.key
                ),
            ));
        }
        let mut origins = request.headers().get_all(header::ORIGIN).iter();
        if let Some(origin) = origins.next() {
            let theirs = origin
                .to_str()
                .ok()
                .and_then(|origin| origin.parse::<Uri>().ok())
                .and_then(|uri| uri.authority().cloned());
            let is_ours = theirs.is_some_and(|theirs| self.is_our_page(&theirs, &host));
            if origins.next().is_some() || !is_ours {
                return Err(Refusal::new(
                    StatusCode::FORBIDDEN,
                    "insufficient_scope",
                    "requests of web pages from other origins are not taken",
                ));
            }
        }
        Ok(())
    }

    fn ours(&self, authority: &Authority) -> bool {
        address(authority).is_some() || self.is_named(authority)
    }

    /// A page from an address is another's, unless the operator names it, or it is from this machine or from where the
    /// request goes: any web server has one, and needs no name to be visited.
    fn is_our_page(&self, origin: &Authority, host: &Authority) -> bool {
        let is_here = |ip: IpAddr| ip.to_canonical().is_loopback() || Some(ip) == address(host);
        self.is_named(origin) || address(origin).is_some_and(is_here)
    }

    fn is_named(&self, authority: &Authority) -> bool {
        let host = authority.host().to_ascii_lowercase();
        let whole = authority.as_str().to_ascii_lowercase();
        let mut names = self.names.iter();
        names.any(|name| *name == host || *name == whole)
    }
}

/// Its host, if that is an address.
fn address(authority: &Authority) -> Option<IpAddr> {
    let host = authority.host();
    host.trim_start_matches('[')
        .trim_end_matches(']')
        .parse()
        .ok()
}

/// The one host that a request is for (RFC 9112 section 3.2).
fn host(headers: &HeaderMap, uri: &Uri, version: Version) -> Result<Authority, Refusal> {
    let bad = |why: &str| Refusal::new(StatusCode::BAD_REQUEST, "bad_request", why);
    let mut hosts = headers.get_all(header::HOST).iter();
    let first = hosts.next();
    if hosts.next().is_some() {
        return Err(bad("the request has more than one Host header"));
    }
    let named = first
        .map(|value| {
            value
                .to_str()
                .ok()
                .and_then(|host| host.parse::<Authority>().ok())
                .ok_or_else(|| bad("the Host header is malformed"))
        })
        .transpose()?;
    let has_user = |authority: &Authority| authority.as_str().contains('@');
    if named.as_ref().is_some_and(has_user) {
        return Err(bad("the Host header is malformed"));
    }
    // RFC 9110 section 4.2.4.
    if uri.authority().is_some_and(has_user) {
        return Err(bad("the request's target has a user in it"));
    }
    let differ = |target: &Authority, named: &Authority| {
        let ports = target.port_u16().zip(named.port_u16());
        target.host() != named.host() || ports.is_some_and(|(target, named)| target != named)
    };
    match (uri.authority(), named) {
        (Some(target), Some(named)) if differ(target, &named) => {
            Err(bad("the Host header differs from the request's target"))
        }
        (Some(target), _) => Ok(target.clone()),
        (None, Some(named)) => Ok(named),
        (None, None) if version == Version::HTTP_10 => Ok(Authority::from_static("localhost")),
        (None, None) => Err(bad("the request has no Host header")),
    }
}

/// Where a body ends must not be a matter of opinion.
fn framed(headers: &HeaderMap) -> Result<(), Refusal> {
    if is_plainly_framed(headers) {
        return Ok(());
    }
    Err(Refusal::new(
        StatusCode::BAD_REQUEST,
        "bad_request",
        "the one Transfer-Encoding that is taken is `chunked`, once: send the body without another",
    ))
}

/// What a body is must not be either: what stands in front may have looked at the second header, and we at the first.
fn of_one_kind(headers: &HeaderMap) -> Result<(), Refusal> {
    if headers.get_all(header::CONTENT_TYPE).iter().count() < 2 {
        return Ok(());
    }
    Err(Refusal::new(
        StatusCode::BAD_REQUEST,
        "bad_request",
        "the request has more than one Content-Type header",
    ))
}

impl<S> Service<Named> for Door<S>
where
    S: Service<Named, Response = Response<Body>, Error = Refusal> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Response<Body>;
    type Error = Refusal;
    type Future = BoxFuture<'static, Result<Response<Body>, Refusal>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Refusal>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, named: Named) -> Self::Future {
        match self.check(&named) {
            Ok(()) => Box::pin(self.inner.clone().oneshot(named)),
            Err(refusal) => Box::pin(std::future::ready(Err(refusal))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::DoorLayer;
    use crate::rescue::{Named, RequestId};
    use crate::server::full;
    use http::{Request, Response};
    use tower::{Layer, ServiceExt, service_fn};

    async fn status(build: impl Fn(http::request::Builder) -> http::request::Builder) -> u16 {
        let ours = ["gate.example.com".into(), "192.0.2.9:3000".into()];
        let layer = DoorLayer::new(&ours, "server.allowed_hosts");
        let door = layer.layer(service_fn(|_: Named| async {
            Ok(Response::new(full("in")))
        }));
        let request = build(Request::builder().method("POST").uri("/rpc"))
            .body(full(""))
            .unwrap();
        door.oneshot(Named {
            request_id: RequestId::new(),
            request,
        })
        .await
        .map_or_else(|refusal| refusal.status.as_u16(), |_| 200)
    }

    #[tokio::test]
    async fn a_body_is_framed_in_one_way() {
        let framed = async |codings: &[&str]| {
            status(|b| {
                let b = b.header("host", "localhost");
                let with = |b: http::request::Builder, &coding: &&str| {
                    b.header("transfer-encoding", coding)
                };
                codings.iter().fold(b, with)
            })
            .await
        };
        for codings in [&[][..], &["chunked"], &["Chunked"], &[" chunked "]] {
            assert_eq!(framed(codings).await, 200, "{codings:?}");
        }
        for codings in [
            &["gzip, chunked"][..],
            &["gzip", "chunked"],
            &["chunked", "chunked"],
            &["chunked, chunked"],
            &["identity"],
            &["chunked;a=b"],
            &[""],
        ] {
            assert_eq!(framed(codings).await, 400, "{codings:?}");
        }
    }

    #[tokio::test]
    async fn a_body_is_of_one_kind() {
        let typed = async |kinds: &[&str]| {
            status(|b| {
                let b = b.header("host", "localhost");
                kinds
                    .iter()
                    .fold(b, |b, &kind| b.header("content-type", kind))
            })
            .await
        };
        for kinds in [&[][..], &["application/json"], &["text/plain"]] {
            assert_eq!(typed(kinds).await, 200, "{kinds:?}");
        }
        for kinds in [
            ["application/json", "text/plain"],
            ["application/json", "application/json"],
        ] {
            assert_eq!(typed(&kinds).await, 400, "{kinds:?}");
        }
    }

    #[tokio::test]
    async fn hosts_and_origins() {
        for host in [
            "127.0.0.1:8080",
            "localhost",
            "localhost:8080",
            "LOCALHOST:1",
            "[::1]:8080",
            "10.0.0.7",
            "gate.example.com",
            "gate.example.com:443",
        ] {
            assert_eq!(status(|b| b.header("host", host)).await, 200, "{host}");
        }
        for host in [
            "evil.example",
            "gate.example.com.evil.example",
            "a@localhost",
            "localhost.evil.example:8080",
            "",
            "localhost:80:80",
        ] {
            assert_eq!(status(|b| b.header("host", host)).await, 400, "{host}");
        }
        assert_eq!(status(|b| b).await, 400, "no host");
        assert_eq!(
            status(|b| b.header("host", "localhost").header("host", "localhost")).await,
            400,
            "two hosts"
        );
        for (host, expected) in [
            ("gate.example.com", 200),
            ("gate.example.com:80", 200),
            ("localhost", 400),
            ("evil.example", 400),
        ] {
            let whole = status(|b| b.uri("http://gate.example.com/rpc").header("host", host));
            assert_eq!(whole.await, expected, "{host} for another target");
        }
        for (target, expected) in [
            ("http://localhost:80/rpc", 200),
            ("http://localhost:81/rpc", 400),
            ("http://evil.example@localhost/rpc", 400),
        ] {
            let whole = status(|b| b.uri(target).header("host", "localhost:80"));
            assert_eq!(whole.await, expected, "{target}");
        }
        for (origin, expected) in [
            ("http://localhost:3000", 200),
            ("http://gate.example.com", 200),
            ("http://127.0.0.1:3000", 200),
            ("http://[::1]", 200),
            ("http://10.0.0.7:3000", 200),
            ("https://evil.example", 403),
            ("http://192.0.2.9:3000", 200),
            ("http://192.0.2.9", 403),
            ("http://10.0.0.8", 403),
            ("http://203.0.113.5", 403),
            ("http://[2001:db8::1]:8080", 403),
            ("null", 403),
            ("", 403),
        ] {
            assert_eq!(
                status(|b| b.header("host", "10.0.0.7:8080").header("origin", origin)).await,
                expected,
                "{origin}"
            );
        }
        let ours = "http://localhost:3000";
        let two = status(|b| {
            let b = b.header("host", "localhost");
            b.header("origin", ours).header("origin", ours)
        });
        assert_eq!(two.await, 403, "two origins");
    }
}

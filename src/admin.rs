//! The operator's listener: health part by part, and metrics. It asks nobody who they are, so it listens on a loopback
//! address unless the configuration says otherwise, and nothing of it is on the public listener but plain health.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use tower::util::BoxCloneSyncService;
use tower::{Service, ServiceBuilder};

use crate::door::DoorLayer;
use crate::faces::Readiness;
use crate::rescue::{Named, Refusal, RescueLayer};
use crate::server::{Body, Stack, full};
use crate::telemetry::health::Part;
use crate::telemetry::metrics::Metrics;

/// Connections at the same time: a scraper, some probes and a person.
pub const CONNECTIONS_MAX: usize = 64;

/// The paths, for what `serve` prints.
pub const PATHS: [(&str, &str, &str); 3] = [
    ("/livez", "GET", "the process lives"),
    ("/readyz?verbose", "GET", "it takes work, part by part"),
    ("/metrics", "GET", "metrics for Prometheus"),
];

/// What the operator can ask.
#[derive(Debug, Clone)]
pub struct Admin {
    /// Whether it takes work.
    pub readiness: Readiness,
    /// What is counted.
    pub metrics: Metrics,
}

/// The listener's stack: like the public one, every refusal has its one place and every host is checked.
pub fn stack(admin: Admin, door: DoorLayer) -> Stack {
    let stack = ServiceBuilder::new()
        .layer(RescueLayer)
        .layer(door)
        .service(admin);
    BoxCloneSyncService::<Request<Body>, Response<Body>, Infallible>::new(stack)
}

impl Service<Named> for Admin {
    type Response = Response<Body>;
    type Error = Refusal;
    type Future = BoxFuture<'static, Result<Response<Body>, Refusal>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Refusal>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, named: Named) -> Self::Future {
        let this = self.clone();
        Box::pin(async move { this.answer(named.request).await })
    }
}

impl Admin {
    async fn answer(&self, request: Request<Body>) -> Result<Response<Body>, Refusal> {
        let (request, _unread) = request.into_parts();
        let path = request.uri.path();
        if !["/livez", "/readyz", "/metrics"].contains(&path) {
            return Err(Refusal::new(
                StatusCode::NOT_FOUND,
                "not_found",
                "there is nothing at this path; there are /livez, /readyz?verbose and /metrics",
            ));
        }
        if ![Method::GET, Method::HEAD].contains(&request.method) {
            return Err(Refusal::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "method_not_allowed",
                "this path takes GET, HEAD",
            )
            .with(header::ALLOW, "GET, HEAD"));
        }
        Ok(match path {
            "/livez" => text(StatusCode::OK, "ok\n".into()),
            "/readyz" => {
                let verbose = request
                    .uri
                    .query()
                    .is_some_and(|query| query.split('&').any(|key| key.starts_with("verbose")));
                self.ready(verbose).await
            }
            _ => {
                let mut response = text(StatusCode::OK, self.metrics.page());
                response.headers_mut().insert(
                    header::CONTENT_TYPE,
                    HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8"),
                );
                response
            }
        })
    }

    async fn ready(&self, verbose: bool) -> Response<Body> {
        let parts = self.readiness.report().await;
        let ready = parts.iter().all(|part| part.state.is_ok());
        let status = if ready {
            StatusCode::OK
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        };
        text(status, report(&parts, ready, verbose))
    }
}

/// One line for each part, in the form that kube-apiserver has made known.
fn report(parts: &[Part], ready: bool, verbose: bool) -> String {
    let mut text = String::new();
    for part in parts.iter().filter(|part| verbose || part.state.is_err()) {
        // One line each, whatever a plugin says.
        let line = |said: &str| said.replace(char::is_control, " ");
        let _ = match &part.state {
            Ok(said) if said.is_empty() => writeln!(text, "[+]{} ok", part.name),
            Ok(said) => writeln!(text, "[+]{} ok: {}", part.name, line(said)),
            Err(why) => writeln!(text, "[-]{} failed: {}", part.name, line(why)),
        };
    }
    text + if ready { "ready\n" } else { "not ready\n" }
}

fn text(status: StatusCode, text: String) -> Response<Body> {
    let mut response = Response::new(full(text));
    *response.status_mut() = status;
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    response
}

#[cfg(test)]
mod tests {
    use super::{Admin, stack};
    use crate::audit::Audit;
    use crate::door::DoorLayer;
    use crate::faces::Readiness;
    use crate::server::full;
    use crate::telemetry::health::Health;
    use crate::telemetry::metrics::Metrics;
    use futures_util::FutureExt;
    use http::Request;
    use http_body_util::BodyExt;
    use tower::ServiceExt;

    async fn ask(admin: &Admin, method: &str, host: &str, path: &str) -> (u16, String) {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", host)
            .body(full(""))
            .unwrap();
        let answer = stack(admin.clone(), DoorLayer::new(&[]))
            .oneshot(request)
            .await
            .unwrap();
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    fn with(state: Result<&'static str, &'static str>) -> Admin {
        let health = Health::new(vec![(
            "storage",
            Box::new(move || {
                std::future::ready(state.map(str::to_owned).map_err(str::to_owned)).boxed()
            }),
        )]);
        Admin {
            readiness: Readiness::new(Audit::off(), health),
            metrics: Metrics::default(),
        }
    }

    #[tokio::test]
    async fn ready_and_not() {
        let host = "127.0.0.1:9081";
        let good = with(Ok("12 of 99 in\nuse"));
        assert_eq!(
            ask(&good, "GET", host, "/livez").await,
            (200, "ok\n".into())
        );
        assert_eq!(
            ask(&good, "GET", host, "/readyz").await,
            (200, "ready\n".into())
        );
        let whole =
            "[+]draining ok: no\n[+]audit ok: 0 records\n[+]storage ok: 12 of 99 in use\nready\n"
                .to_owned();
        assert_eq!(
            ask(&good, "GET", host, "/readyz?verbose").await,
            (200, whole)
        );
        good.readiness.draining();
        let whole = "[-]draining failed: the gateway is stopping\nnot ready\n".to_owned();
        assert_eq!(ask(&good, "GET", host, "/readyz").await, (503, whole));
        let bad = with(Err("no space"));
        let whole =
            "[+]draining ok: no\n[+]audit ok: 0 records\n[-]storage failed: no space\nnot ready\n"
                .to_owned();
        assert_eq!(
            ask(&bad, "GET", host, "/readyz?verbose=1").await,
            (503, whole)
        );
        assert_eq!(ask(&bad, "GET", host, "/livez").await.0, 200);
    }

    #[tokio::test]
    async fn only_for_whoever_means_it() {
        let admin = with(Ok(""));
        for (method, host, path, status) in [
            ("GET", "localhost:9081", "/metrics", 200),
            ("HEAD", "localhost:9081", "/metrics", 200),
            ("GET", "evil.example", "/metrics", 400),
            ("POST", "localhost", "/metrics", 405),
            ("GET", "localhost", "/", 404),
            ("GET", "localhost", "/console/", 404),
            ("GET", "localhost", "/metrics/", 404),
            ("POST", "localhost", "/rpc", 404),
        ] {
            let (got, text) = ask(&admin, method, host, path).await;
            assert_eq!(got, status, "{method} {host} {path}: {text}");
        }
    }
}

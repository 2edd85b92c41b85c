//! The operator's listener: health part by part, and metrics. It asks nobody who they are, so it listens on a loopback
//! address unless the configuration says otherwise, and nothing of it is on the public listener but plain health.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use http::{HeaderValue, Request, Response, StatusCode, header};
use skillgate_plugin_host::on_one_line;
use tower::util::BoxCloneSyncService;
use tower::{Service, ServiceBuilder};

use crate::door::DoorLayer;
use crate::faces::{self, Readiness};
use crate::json;
use crate::rescue::{Named, Refusal, RescueLayer};
use crate::server::{Body, Stack, full};
use crate::telemetry::health::{Part, State};
use crate::telemetry::metrics::Metrics;

/// Connections at the same time: a scraper, some probes and a person.
pub(crate) const CONNECTIONS_MAX: usize = 64;

/// Most characters of what a part says of itself: a plugin may send a megabyte.
const SAID_CHARS_MAX: usize = 1024;

/// The paths, for what `serve` prints.
pub(crate) const PATHS: [(&str, &str, &str); 3] = [
    ("/livez", "GET", "the process lives"),
    ("/readyz?verbose", "GET", "it takes work, part by part"),
    ("/metrics", "GET", "metrics for Prometheus"),
];

/// What the operator can ask.
#[derive(Debug, Clone)]
pub(crate) struct Admin {
    /// Whether it takes work.
    pub readiness: Readiness,
    /// What is counted.
    pub metrics: Metrics,
}

/// The listener's stack: like the public one, every refusal has its one place and every host is checked.
pub(crate) fn stack(admin: Admin, door: DoorLayer) -> Stack {
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
        faces::only(&request.method, "GET, HEAD")?;
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
                let mut response = text(StatusCode::OK, self.numbers().await);
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
        let ready = !parts.iter().any(Part::failed);
        let status = if ready {
            StatusCode::OK
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        };
        text(status, report(&parts, ready, verbose))
    }

    async fn numbers(&self) -> String {
        let parts = self.readiness.report().await;
        let mut page = self.metrics.page();
        page.family(
            "skillgate_part_ready",
            "gauge",
            "1 for each part that does its work, 0 for one that keeps the gateway from being ready.",
        );
        for part in &parts {
            page.sample(&[("part", part.name)], f64::from(!part.failed()));
        }
        page.into_text()
    }
}

/// One line for each part, much as kube-apiserver has made it known.
fn report(parts: &[Part], ready: bool, verbose: bool) -> String {
    let mut text = String::new();
    for part in parts.iter().filter(|part| verbose || part.failed()) {
        let (sign, word, said) = match &part.state {
            State::Well(said) => ('+', "ok", said),
            State::Impaired(said) => ('!', "impaired", said),
            State::Failed(said) => ('-', "failed", said),
        };
        // One line each that can be read, whatever a plugin says.
        let said = on_one_line(said);
        let said = json::cut(&said, SAID_CHARS_MAX);
        let colon = if said.is_empty() { "" } else { ": " };
        let _ = writeln!(text, "[{sign}]{} {word}{colon}{said}", part.name);
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
    use crate::telemetry::health::{Health, State};
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
        let answer = stack(admin.clone(), DoorLayer::new(&[], "admin.allowed_hosts"))
            .oneshot(request)
            .await
            .unwrap();
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    fn with(state: State) -> Admin {
        let health = Health::new(vec![(
            "storage",
            std::sync::Arc::new(move || std::future::ready(state.clone()).boxed()),
        )]);
        Admin {
            readiness: Readiness::new(Audit::off(), health),
            metrics: Metrics::default(),
        }
    }

    #[tokio::test]
    async fn ready_and_not() {
        let host = "127.0.0.1:9081";
        let good = with(State::Well("12 of 99 in\nuse\u{202e}\u{2028}".into()));
        assert_eq!(
            ask(&good, "GET", host, "/livez").await,
            (200, "ok\n".into())
        );
        assert_eq!(
            ask(&good, "GET", host, "/readyz").await,
            (200, "ready\n".into())
        );
        let whole =
            "[+]draining ok: no\n[+]audit ok: 0 records\n[+]storage ok: 12 of 99 in\\nuse\\u{202e}\\u{2028}\nready\n"
                .to_owned();
        assert_eq!(
            ask(&good, "GET", host, "/readyz?verbose").await,
            (200, whole)
        );
        good.readiness.draining();
        let whole = "[-]draining failed: the gateway is stopping\nnot ready\n".to_owned();
        assert_eq!(ask(&good, "GET", host, "/readyz").await, (503, whole));
        let bad = with(State::Failed("no space".into()));
        let whole =
            "[+]draining ok: no\n[+]audit ok: 0 records\n[-]storage failed: no space\nnot ready\n"
                .to_owned();
        assert_eq!(
            ask(&bad, "GET", host, "/readyz?verbose=1").await,
            (503, whole)
        );
        assert_eq!(ask(&bad, "GET", host, "/livez").await.0, 200);
        let (_, page) = ask(&bad, "GET", host, "/metrics").await;
        assert!(page.contains("skillgate_part_ready{part=\"storage\"} 0\n"));
        let wordy = with(State::Failed("é\n".repeat(1 << 19)));
        let (_, whole) = ask(&wordy, "GET", host, "/readyz").await;
        assert_eq!(whole.lines().count(), 2);
        assert!(whole.len() < 3000, "{} bytes", whole.len());
        assert!(whole.contains('…'), "{whole}");
        let so_so = with(State::Impaired("slow".into()));
        let (status, whole) = ask(&so_so, "GET", host, "/readyz?verbose").await;
        assert_eq!(status, 200);
        assert!(
            whole.ends_with("[!]storage impaired: slow\nready\n"),
            "{whole}"
        );
    }

    #[tokio::test]
    async fn only_for_whoever_means_it() {
        let admin = with(State::Impaired(String::new()));
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

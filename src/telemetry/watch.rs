//! Around everything: names the trace of a request and counts its answer.

use std::convert::Infallible;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use http::{Request, Response};
use tower::{Layer, Service};

use super::metrics::Metrics;
use super::trace::{TRACEPARENT, Trace};
use crate::server::Body;

/// Makes [`Watch`].
#[derive(Debug, Clone)]
pub struct WatchLayer {
    /// Where it is counted.
    pub metrics: Metrics,
    /// The known word for a path.
    pub route: fn(&str) -> &'static str,
}

impl<S> Layer<S> for WatchLayer {
    type Service = Watch<S>;
    fn layer(&self, inner: S) -> Watch<S> {
        Watch {
            layer: self.clone(),
            inner,
        }
    }
}

/// What is counted of a request that ends without an answer, as nginx does: its client had gone.
const NO_ANSWER: u16 = 499;

/// A request, counted when this is dropped, with its answer or without.
#[derive(Debug)]
struct Counted {
    metrics: Metrics,
    route: &'static str,
    status: u16,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.metrics.http_request(self.route, self.status);
    }
}

/// Puts a [`Trace`] into the request's extensions and into the answer.
#[derive(Debug, Clone)]
pub struct Watch<S> {
    layer: WatchLayer,
    inner: S,
}

impl<S> Service<Request<Body>> for Watch<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let trace = Trace::of(request.headers());
        request.extensions_mut().insert(trace);
        let mut counted = Counted {
            metrics: self.layer.metrics.clone(),
            route: (self.layer.route)(request.uri().path()),
            status: NO_ANSWER,
        };
        let answer = self.inner.call(request);
        Box::pin(async move {
            let mut response = answer.await?;
            counted.status = response.status().as_u16();
            drop(counted);
            if let Some(value) = trace.header() {
                response.headers_mut().insert(TRACEPARENT, value);
            }
            Ok(response)
        })
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tower::{ServiceExt as _, service_fn};

    use super::*;
    use crate::server::full;

    #[test]
    fn a_request_is_counted_once_with_its_answer_or_without() {
        let metrics = Metrics::default();
        let layer = WatchLayer {
            metrics: metrics.clone(),
            route: |_| "/rpc",
        };
        let counts = || {
            let page = metrics.page().into_text();
            let of_requests = |line: &&str| line.starts_with("skillgate_http_requests_total{");
            let lines = page.lines().filter(of_requests);
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        let request = || Request::new(full(""));
        let pending = layer.layer(service_fn(|_| std::future::pending()));
        let mut asked = Box::pin(pending.oneshot(request()));
        assert!(asked.as_mut().now_or_never().is_none());
        assert!(counts().is_empty());
        drop(asked);
        let answers = layer.layer(service_fn(async |_| Ok(Response::new(full("")))));
        let answered = answers.oneshot(request()).now_or_never();
        assert!(answered.is_some_and(|answer| answer.is_ok()));
        let of = |code| format!(r#"skillgate_http_requests_total{{route="/rpc",code="{code}"}} 1"#);
        assert_eq!(counts(), [of("200"), of("499")]);
    }
}

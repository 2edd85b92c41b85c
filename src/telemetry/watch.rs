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
        let route = (self.layer.route)(request.uri().path());
        let metrics = self.layer.metrics.clone();
        let answer = self.inner.call(request);
        Box::pin(async move {
            let mut response = answer.await?;
            metrics.http_request(route, response.status().as_u16());
            if let Some(value) = trace.header() {
                response.headers_mut().insert(TRACEPARENT, value);
            }
            Ok(response)
        })
    }
}

//! How much. Counts a request before its body is read.
//!
//! Rules whose key needs only the address, the tenant or the subject belong here; rules by method or skill are
//! counted after the policy has allowed a call, so that a refused call costs nothing there (contract, section 4).
//! This version has the layer and no rules: the configuration refuses any.

use std::task::{Context, Poll};

use http::Response;
use tower::{Layer, Service};

use crate::auth::Authenticated;
use crate::rescue::Refusal;
use crate::server::Body;

/// Makes [`Limit`].
#[derive(Debug, Clone, Copy)]
pub struct LimitLayer;

impl<S> Layer<S> for LimitLayer {
    type Service = Limit<S>;
    fn layer(&self, inner: S) -> Limit<S> {
        Limit { inner }
    }
}

/// Passes every request on: `rate_limit = []`.
#[derive(Debug, Clone)]
pub struct Limit<S> {
    inner: S,
}

impl<S> Service<Authenticated> for Limit<S>
where
    S: Service<Authenticated, Response = Response<Body>, Error = Refusal>,
{
    type Response = S::Response;
    type Error = Refusal;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Refusal>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Authenticated) -> S::Future {
        self.inner.call(request)
    }
}

//! How much. Each rule of `[[rate_limit]]` counts as early as it can:
//!
//! - key `ip` alone: before authentication, so that it also holds back whoever tries tokens ([`AddressLimit`]);
//! - key of `ip`, `tenant`, `subject`: before the body is read ([`Limit`]); a caller without a token, on a path that needs
//!   none, is counted by his address or not at all;
//! - `method` or `skill` in the key, or a list of `methods`: each call, after the policy has allowed it, so that a
//!   refused call costs nothing there (contract, section 4; [`CallLimit`]).
//!
//! A batch is one request and counts once before its body is read; its second call and every one after it is counted
//! by the same rules when its turn comes ([`Recount`]), so that a batch saves no quota.
//!
//! The algorithm is GCRA: `quota` calls in `per_s` seconds, evenly spread, of which up to `burst` may come at once. A
//! key that was idle has exactly `burst` calls; each call comes back `per_s / quota` seconds after it was due. The rules
//! of one level count a call together or not at all: a call that one of them refuses costs nothing in the others.
//!
//! Memory is bounded by `max_keys` for each rule. A key with its whole burst again is forgotten; when `max_keys` keys
//! have calls outstanding, further keys share one count together until there is room. So whoever floods a rule with
//! new keys takes quota from new keys only, and nobody ever gets more than the rule says.

mod rules;
#[cfg(test)]
mod tests;

use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{BoxFuture, Either, Ready, ready};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, header};
use tower::{Layer, Service, ServiceExt};

use crate::auth::Authenticated;
use crate::policy::{Decidable, Permitted};
use crate::rescue::{Named, Refusal};
use crate::rpc::Call;
use crate::server::{Body, peer_ip};
use rules::{Asked, Level, Standing};
pub(crate) use rules::{Limited, Limits, RuleReport, SinceStart};

/// draft-ietf-httpapi-ratelimit-headers-10, section 4: what is left.
const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
/// Section 3: what the rule is.
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// How often a part of the idle keys is dropped: all are looked at once in half a minute.
const SWEEP_EVERY: Duration = Duration::from_secs(2);

impl Limits {
    /// Drops idle keys for as long as it is polled.
    pub(crate) async fn housekeeping(self) {
        let mut ticks = tokio::time::interval(SWEEP_EVERY);
        loop {
            ticks.tick().await;
            self.sweep_some();
        }
    }
}

/// Probes of whoever watches over the gateway are answered, however many calls there are.
fn is_probe(request: &Request<Body>) -> bool {
    matches!(request.uri().path(), "/livez" | "/readyz")
}

// === headers ===

/// `RateLimit` and `RateLimit-Policy`, structured fields (RFC 9651): a list of names with parameters.
fn headers(standings: &[Standing]) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
    let list = |item: fn(&Standing) -> String| {
        let items: Vec<String> = standings.iter().map(item).collect();
        HeaderValue::from_str(&items.join(", ")).ok()
    };
    let limit = list(|standing| {
        let (name, left) = (&standing.rule.config.name, standing.left);
        // The effective window: until then no more than that.
        format!("\"{name}\";r={left};t={}", seconds(standing.next_ns))
    });
    let policy = list(|standing| {
        let rule = &standing.rule.config;
        let text = format!("\"{}\";q={};w={}", rule.name, rule.quota, rule.per_s);
        if rule.burst == rule.quota {
            text
        } else {
            format!("{text};skillgate-burst={}", rule.burst)
        }
    });
    [(RATE_LIMIT, limit), (RATE_LIMIT_POLICY, policy)]
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
        .filter(|(_, value)| !value.is_empty())
}

fn seconds(ns: u64) -> u64 {
    ns.div_ceil(1_000_000_000)
}

fn add_headers(to: &mut HeaderMap, standings: &[Standing]) {
    for (name, value) in headers(standings) {
        to.append(name, value);
    }
}

fn refusal(limited: &Limited, standings: &[Standing]) -> Refusal {
    let mut refusal = Refusal::new(
        StatusCode::TOO_MANY_REQUESTS,
        "rate_limited",
        limited.to_string(),
    )
    .with_data("retry_after_ms", limited.retry_after_ms.into());
    let wait = limited.retry_after_ms.div_ceil(1000);
    refusal
        .headers
        .push((header::RETRY_AFTER, HeaderValue::from(wait)));
    refusal.headers.extend(headers(standings));
    refusal
}

impl From<Limited> for Refusal {
    /// For a call that is an HTTP request of its own.
    fn from(limited: Limited) -> Self {
        refusal(&limited, &limited.standings)
    }
}

// === the request's levels ===

/// Makes [`AddressLimit`].
#[derive(Debug, Clone)]
pub(crate) struct AddressLimitLayer(pub Limits);

impl<S> Layer<S> for AddressLimitLayer {
    type Service = AddressLimit<S>;
    fn layer(&self, inner: S) -> AddressLimit<S> {
        AddressLimit {
            limits: self.0.clone(),
            inner,
        }
    }
}

/// Counts a request by its address alone.
#[derive(Debug, Clone)]
pub(crate) struct AddressLimit<S> {
    limits: Limits,
    inner: S,
}

impl<S> Service<Named> for AddressLimit<S>
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
        let asked = Asked::from(peer_ip(&named.request));
        let counted = (!is_probe(&named.request)).then(|| self.limits.count(Level::Address, asked));
        pass(counted, self.inner.clone(), named)
    }
}

/// Makes [`Limit`].
#[derive(Debug, Clone)]
pub(crate) struct LimitLayer(pub Limits);

impl<S> Layer<S> for LimitLayer {
    type Service = Limit<S>;
    fn layer(&self, inner: S) -> Limit<S> {
        Limit {
            limits: self.0.clone(),
            inner,
        }
    }
}

/// Counts a request by its caller.
#[derive(Debug, Clone)]
pub(crate) struct Limit<S> {
    limits: Limits,
    inner: S,
}

impl<S> Service<Authenticated> for Limit<S>
where
    S: Service<Authenticated, Response = Response<Body>, Error = Refusal> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Response<Body>;
    type Error = Refusal;
    type Future = BoxFuture<'static, Result<Response<Body>, Refusal>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Refusal>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Authenticated) -> Self::Future {
        let asked = Asked::by(&request.caller);
        let counted =
            (!is_probe(&request.request)).then(|| self.limits.count(Level::Caller, asked));
        pass(counted, self.inner.clone(), request)
    }
}

/// On to `inner`, or not; the headers are added on the way back, to an answer and to what `inner` refuses alike.
fn pass<S, R>(
    counted: Option<(Vec<Standing>, Result<(), Limited>)>,
    inner: S,
    request: R,
) -> BoxFuture<'static, Result<Response<Body>, Refusal>>
where
    S: Service<R, Response = Response<Body>, Error = Refusal> + Send + 'static,
    S::Future: Send,
    R: Send + 'static,
{
    match counted {
        Some((standings, Err(limited))) => Box::pin(ready(Err(refusal(&limited, &standings)))),
        Some((standings, Ok(()))) if !standings.is_empty() => Box::pin(async move {
            let mut answer = inner.oneshot(request).await;
            match &mut answer {
                Ok(response) => add_headers(response.headers_mut(), &standings),
                Err(refusal) => refusal.headers.extend(headers(&standings)),
            }
            answer
        }),
        _ => Box::pin(inner.oneshot(request)),
    }
}

// === the call's levels ===

type Answered<F, R, E> = Either<F, Ready<Result<R, E>>>;

/// Makes [`Recount`].
#[derive(Debug, Clone)]
pub(crate) struct RecountLayer(pub Limits);

impl<S> Layer<S> for RecountLayer {
    type Service = Recount<S>;
    fn layer(&self, inner: S) -> Recount<S> {
        Recount {
            limits: self.0.clone(),
            inner,
        }
    }
}

/// Counts the calls of a batch that its request has not been counted for.
#[derive(Debug, Clone)]
pub(crate) struct Recount<S> {
    limits: Limits,
    inner: S,
}

impl<S> Service<Call> for Recount<S>
where
    S: Service<Call>,
    S::Error: From<Limited>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Answered<S::Future, S::Response, S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, call: Call) -> Self::Future {
        if !call.counted {
            let asked = Asked::by(&call.caller);
            for level in [Level::Address, Level::Caller] {
                if let (_, Err(limited)) = self.limits.count(level, asked) {
                    return Either::Right(ready(Err(limited.into())));
                }
            }
        }
        Either::Left(self.inner.call(call))
    }
}

/// Makes [`CallLimit`].
#[derive(Debug, Clone)]
pub(crate) struct CallLimitLayer(pub Limits);

impl<S> Layer<S> for CallLimitLayer {
    type Service = CallLimit<S>;
    fn layer(&self, inner: S) -> CallLimit<S> {
        CallLimit {
            limits: self.0.clone(),
            inner,
        }
    }
}

/// Counts a call that the policy has allowed.
#[derive(Debug, Clone)]
pub(crate) struct CallLimit<S> {
    limits: Limits,
    inner: S,
}

impl<S, T> Service<Permitted<T>> for CallLimit<S>
where
    T: Decidable,
    S: Service<Permitted<T>>,
    S::Error: From<Limited>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Answered<S::Future, S::Response, S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, permitted: Permitted<T>) -> Self::Future {
        let facts = permitted.get().facts();
        let skills: Vec<&str> = facts.skills.iter().map(|skill| skill.name()).collect();
        let asked = Asked {
            method: facts.method,
            skills: &skills,
            ..Asked::by(&facts.caller)
        };
        if let (standings, Err(limited)) = self.limits.count(Level::Call, asked) {
            let limited = Limited {
                standings,
                ..limited
            };
            return Either::Right(ready(Err(limited.into())));
        }
        Either::Left(self.inner.call(permitted))
    }
}

//! Who asks. Only this module makes a [`Caller`].
//!
//! With `auth.mode = "jwt"` a caller is who a token says it is (RFC 9068 access tokens, checked as RFC 8725 asks for):
//! `auth/token.rs` takes a token apart, `auth/verify.rs` believes it or not, `auth/claims.rs` says who that is.
//! The keys come from `auth/jwks.rs`; what a caller is told who is not let in is in `auth/refused.rs` and
//! `auth/challenge.rs`.

mod cache;
mod challenge;
mod claims;
mod clock;
mod crypto;
mod fetch;
mod jwks;
mod keys;
mod mint;
mod prepare;
mod refused;
mod spki;
#[cfg(test)]
mod tests;
mod token;
mod verify;

use std::net::IpAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use serde_json::{Map, Value};
use tower::{Layer, Service, ServiceExt};

use crate::config::{Config, ConfigErrors};
use crate::rescue::{Named, Refusal, RequestId};
use crate::server::{Body, peer_ip};
use crate::telemetry::metrics::Metrics;
pub use challenge::METADATA_PATH;
pub use claims::check_subject;
pub use clock::{Clock, Now};
use keys::Signed;
pub use mint::{DevelopmentKey, MintError};
use prepare::Jwt;
pub use prepare::{IssuerState, Prepared, check, prepare};
pub use refused::Refused;
pub(crate) use spki::value as der_value;

/// How often [`Authenticator::housekeeping`] looks at the keys; each issuer is asked as rarely as if tokens had come.
const TEND_EVERY: Duration = Duration::from_secs(5);
/// A failure that is none of the token's own.
const INSUFFICIENT_SCOPE: &str = "insufficient_scope";

/// What is known of whoever asks (contract, section 3).
#[derive(Debug)]
#[non_exhaustive]
pub struct Subject {
    /// Proven by a token, or the local operator.
    pub authenticated: bool,
    /// "service" for a client that acts for itself, as far as its token says so; else "user".
    pub kind: &'static str,
    /// `sub`
    pub id: String,
    /// Whose skills and blobs it works with.
    pub tenant: String,
    /// Who says so: `iss`. Empty without a token.
    pub issuer: String,
    /// Roles.
    pub roles: Vec<String>,
    /// Groups.
    pub groups: Vec<String>,
    /// Scopes.
    pub scopes: Vec<String>,
    /// The claims that policies may see.
    pub claims: Map<String, Value>,
    /// Who acts for the subject, if it does not itself.
    pub actor: Option<Actor>,
    /// `exp`, in seconds since 1970. None: without an end.
    pub expires_s: Option<u64>,
    /// `exp` and the leeway of its issuer: from then on the token is refused.
    pub accepted_until_s: Option<u64>,
    /// By what its token was found to be good.
    signed: Option<Signed>,
}

/// Who acts for somebody else: `act` (RFC 8693 section 4.1).
#[derive(Debug)]
#[non_exhaustive]
pub struct Actor {
    /// `act.sub`
    pub id: String,
}

impl Subject {
    /// The subject of `auth.mode = "off"` and of the command line (contract, section 3).
    fn local() -> Self {
        Subject {
            authenticated: true,
            kind: "user",
            id: "local".into(),
            tenant: "default".into(),
            issuer: String::new(),
            roles: vec!["admin".into()],
            groups: Vec::new(),
            scopes: Vec::new(),
            claims: Map::new(),
            actor: None,
            expires_s: None,
            accepted_until_s: None,
            signed: None,
        }
    }

    /// Whoever asks for a path that needs no token. No tenant, no role: not even a policy that forgets to ask whether
    /// it is authenticated finds anything to go by.
    fn nobody() -> Self {
        Subject {
            authenticated: false,
            id: String::new(),
            tenant: String::new(),
            roles: Vec::new(),
            ..Subject::local()
        }
    }
}

/// The proof that a request went through this layer. Cheap to clone; cannot be made elsewhere.
#[derive(Debug, Clone)]
pub struct Caller {
    subject: Arc<Subject>,
    ip: IpAddr,
    /// None: for ever, as the local operator.
    let_in_by: Option<Authenticator>,
}

/// Why a token that was taken when its request came is taken no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Lapsed {
    /// Its end has come.
    #[error("the token expired")]
    Expired,
    /// Its issuer is not configured any more, or the key that signed it is none that is used.
    #[error("the token's key is trusted no more")]
    Withdrawn,
    /// The keys of its issuer are too old to be used, and that has not given any since.
    #[error("the keys of the token's issuer could not be fetched again")]
    KeysUnavailable,
    /// The calendar was set back to before this program was written.
    #[error("this server's clock is not set any more")]
    ClockUnset,
}

impl Lapsed {
    /// What its caller is to do, before the same again.
    pub fn remedy(self) -> &'static str {
        match self {
            Lapsed::Expired | Lapsed::Withdrawn => "get a new token",
            // Not the caller's fault, and another token would not help.
            Lapsed::KeysUnavailable | Lapsed::ClockUnset => "wait a little",
        }
    }

    /// When that may help, in seconds, where it is for the caller to wait alone.
    pub fn retry_after_s(self) -> Option<u64> {
        match self {
            Lapsed::Expired | Lapsed::Withdrawn => None,
            Lapsed::KeysUnavailable => Refused::Unavailable.retry_after_s(),
            Lapsed::ClockUnset => Refused::ClockUnset.retry_after_s(),
        }
    }
}

impl Caller {
    /// Who.
    pub fn subject(&self) -> &Subject {
        &self.subject
    }
    /// Who, as all callers with the same verified token share it.
    pub(crate) fn shared_subject(&self) -> &Arc<Subject> {
        &self.subject
    }
    /// Whose skills and blobs.
    pub fn tenant(&self) -> &str {
        &self.subject.tenant
    }
    /// From where.
    pub fn ip(&self) -> IpAddr {
        self.ip
    }

    /// Whether the token is taken no more since it was checked, and why: a body can take its time to arrive, and a call waits
    /// for those before it in a batch. Meanwhile a reload or a new JWKS can have taken its key away.
    pub fn lapsed(&self) -> Option<Lapsed> {
        match &**self.let_in_by.as_ref()?.0.mode.load() {
            // Nobody is asked for a token.
            Mode::Off => None,
            Mode::Jwt(jwt) => jwt.verifier.lapsed(&self.subject),
        }
    }

    /// The same after its token has expired.
    #[cfg(test)]
    pub(crate) fn expired(self) -> Self {
        let subject = Subject {
            accepted_until_s: Some(0),
            ..Subject::local()
        };
        let (issuers, generation) = (Default::default(), Default::default());
        let jwt = Jwt {
            verifier: verify::Verifier::new(issuers, 0, generation, Clock::system()),
            challenge: challenge::Challenge {
                resource: None,
                required_scopes: Vec::new(),
                issuers: Vec::new(),
            },
        };
        Caller {
            subject: Arc::new(subject),
            let_in_by: Some(Authenticator::new(Prepared(Mode::Jwt(Box::new(jwt))))),
            ..self
        }
    }

    /// A caller that no token vouches for.
    #[cfg(test)]
    pub(crate) fn for_tests(tenant: &str, id: &str, roles: &[&str]) -> Self {
        let subject = Subject {
            id: id.into(),
            tenant: tenant.into(),
            roles: roles.iter().map(|&role| role.into()).collect(),
            ..Subject::local()
        };
        Caller {
            subject: Arc::new(subject),
            ip: IpAddr::from([127, 0, 0, 1]),
            let_in_by: None,
        }
    }

    /// The same with claims that an issuer's token would have.
    #[cfg(test)]
    pub(crate) fn with_claims(mut self, claims: Map<String, Value>) -> Self {
        Arc::get_mut(&mut self.subject).unwrap().claims = claims;
        self
    }
}

/// How callers are known. Clones share what is installed.
#[derive(Debug, Clone)]
pub struct Authenticator(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    mode: ArcSwap<Mode>,
    local: Arc<Subject>,
    nobody: Arc<Subject>,
}

#[derive(Debug)]
enum Mode {
    /// `auth.mode = "off"`: everybody who can connect is the local operator.
    Off,
    /// `auth.mode = "jwt"`
    Jwt(Box<Jwt>),
}

impl Authenticator {
    /// `auth.mode = "off"`
    pub fn off() -> Self {
        Authenticator(Arc::new(Inner {
            mode: ArcSwap::from_pointee(Mode::Off),
            local: Arc::new(Subject::local()),
            nobody: Arc::new(Subject::nobody()),
        }))
    }

    /// As the configuration wants it.
    pub fn new(prepared: Prepared) -> Self {
        let authenticator = Authenticator::off();
        authenticator.install(prepared);
        authenticator
    }

    /// What [`prepare()`] gives, to be installed here. A file that had keys of an issuer and says now that there are none is
    /// taken: they are withdrawn. One that cannot be read, or is no JWKS, is an error as ever.
    ///
    /// # Errors
    /// As [`prepare()`].
    pub async fn prepare_again(
        &self,
        config: &Config,
        clock: Clock,
    ) -> Result<Prepared, ConfigErrors> {
        prepare::after(Some(self.0.mode.load_full()), config, clock).await
    }

    /// From now on requests are judged by this. Tokens that were verified before are verified anew; keys that an issuer
    /// does not give at this moment are taken over.
    pub fn install(&self, Prepared(mode): Prepared) {
        if let (Mode::Jwt(new), Mode::Jwt(old)) = (&mode, &**self.0.mode.load()) {
            new.inherit(old);
        }
        if let Mode::Jwt(new) = &mode {
            new.tell_withdrawn();
        }
        self.0.mode.store(Arc::new(mode));
    }

    /// Has issuers' keys fetched that are missing or no longer fresh, for as long as it is polled. Requests do so as well, but
    /// a gateway that is not ready for want of keys is sent none.
    pub async fn housekeeping(self) {
        let mut ticks = tokio::time::interval(TEND_EVERY);
        loop {
            ticks.tick().await;
            if let Mode::Jwt(jwt) = &**self.0.mode.load() {
                jwt.verifier.tend();
            }
        }
    }

    /// The caller of the command line, which asks without HTTP.
    pub fn local(&self) -> Caller {
        Caller {
            subject: self.0.local.clone(),
            ip: IpAddr::from([127, 0, 0, 1]),
            let_in_by: None,
        }
    }

    /// The document of RFC 9728 for a request with these headers; none while nobody is asked for a token.
    pub fn metadata(&self, headers: &HeaderMap) -> Option<String> {
        match &**self.0.mode.load() {
            Mode::Off => None,
            Mode::Jwt(jwt) => Some(jwt.challenge.metadata(headers)),
        }
    }

    /// Whether it is known what time it is, where that is asked for: else no token is taken.
    pub fn tells_time(&self) -> bool {
        match &**self.0.mode.load() {
            Mode::Off => true,
            Mode::Jwt(jwt) => jwt.verifier.tells_time(),
        }
    }

    /// How the issuers' keys are, for operators.
    pub fn issuers(&self) -> Vec<IssuerState> {
        match &**self.0.mode.load() {
            Mode::Off => Vec::new(),
            Mode::Jwt(jwt) => jwt.issuers(),
        }
    }

    /// A refusal from below. One for want of a token says what to do, as it does to whoever comes with a bad one: the token has
    /// expired since it was checked. `host`: what the request called us.
    fn challenge(&self, mut refusal: Refusal, host: Option<HeaderValue>) -> Refusal {
        if let Mode::Jwt(jwt) = &**self.0.mode.load()
            && refusal.status == StatusCode::UNAUTHORIZED
        {
            let headers = host.map(|host| (header::HOST, host)).into_iter().collect();
            let challenge = jwt.challenge.expired(&refusal.message, &headers);
            refusal.headers.push(challenge);
        }
        refusal
    }

    /// Who asks; the error has its name for metrics with it.
    async fn authenticate(
        &self,
        headers: &HeaderMap,
        query: Option<&str>,
        ip: IpAddr,
    ) -> Result<Caller, (&'static str, Refusal)> {
        let mode = self.0.mode.load_full();
        let Mode::Jwt(jwt) = &*mode else {
            return Ok(Caller { ip, ..self.local() });
        };
        let outcome = match bearer(headers, query) {
            Ok(token) => jwt.verifier.verify(token).await,
            Err(refused) => Err(refused),
        };
        let subject = outcome.map_err(|refused| {
            tracing::info!(reason = refused.reason(), "token refused");
            (refused.reason(), jwt.challenge.refuse(&refused, headers))
        })?;
        let has = |scope: &String| subject.scopes.contains(scope);
        if jwt.challenge.required_scopes.iter().all(has) {
            let let_in_by = Some(self.clone());
            Ok(Caller {
                subject,
                ip,
                let_in_by,
            })
        } else {
            let refusal = jwt.challenge.insufficient_scope(headers);
            Err((INSUFFICIENT_SCOPE, refusal))
        }
    }
}

/// The token of the one `Authorization` header (RFC 6750 section 2.1). The other two ways of that document, a form and
/// the URL, are not taken.
fn bearer<'a>(headers: &'a HeaderMap, query: Option<&str>) -> Result<&'a str, Refused> {
    let mut all = headers.get_all(header::AUTHORIZATION).iter();
    let Some(value) = all.next() else {
        let in_url = query.is_some_and(|query| {
            query
                .split('&')
                .any(|pair| pair.split('=').next() == Some("access_token"))
        });
        return Err(if in_url {
            Refused::InUrl
        } else {
            Refused::Missing
        });
    };
    if all.next().is_some() {
        return Err(Refused::BadRequest);
    }
    let text = value.to_str().map_err(|_| Refused::BadRequest)?;
    let (scheme, token) = text.split_once(' ').unwrap_or((text, ""));
    // RFC 9110 section 11.1: the scheme in any case of letters, then one space or more.
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(Refused::Missing);
    }
    Ok(token.trim_start_matches(' '))
}

/// What [`Metrics`] calls the failures by that it is told here.
pub fn failures() -> impl Iterator<Item = &'static str> {
    Refused::REASONS.into_iter().chain([INSUFFICIENT_SCOPE])
}

/// A request whose sender is known.
#[derive(Debug)]
pub struct Authenticated {
    /// Who.
    pub caller: Caller,
    /// Its name.
    pub request_id: RequestId,
    /// The request.
    pub request: Request<Body>,
}

/// Makes [`Auth`].
#[derive(Debug, Clone)]
pub struct AuthLayer {
    /// How callers are known.
    pub authenticator: Authenticator,
    /// Paths that are answered to anybody, by a caller who is nobody: exactly these, and what is below one that ends in
    /// `/`.
    pub open: &'static [&'static str],
    /// Where refusals are counted.
    pub metrics: Metrics,
}

impl<S> Layer<S> for AuthLayer {
    type Service = Auth<S>;
    fn layer(&self, inner: S) -> Auth<S> {
        Auth {
            layer: self.clone(),
            inner,
        }
    }
}

/// Whether a path is one of these; one that ends in `/` stands for all below it.
pub(crate) fn is_open(open: &[&str], path: &str) -> bool {
    open.iter()
        .any(|open| path == *open || open.ends_with('/') && path.starts_with(open))
}

/// Turns a request into one with a [`Caller`], or refuses it.
#[derive(Debug, Clone)]
pub struct Auth<S> {
    layer: AuthLayer,
    inner: S,
}

impl AuthLayer {
    async fn identify(&self, named: Named) -> Result<Authenticated, Refusal> {
        let Named {
            request_id,
            mut request,
        } = named;
        let ip = peer_ip(&request);
        let caller = if is_open(self.open, request.uri().path()) {
            Caller {
                subject: self.authenticator.0.nobody.clone(),
                ip,
                let_in_by: None,
            }
        } else {
            let query = request.uri().query();
            self.authenticator
                .authenticate(request.headers(), query, ip)
                .await
                .map_err(|(reason, refusal)| {
                    self.metrics.auth_failed(reason);
                    refusal
                })?
        };
        // Nothing below needs it, so nothing below can show it to anybody.
        request.headers_mut().remove(header::AUTHORIZATION);
        Ok(Authenticated {
            caller,
            request_id,
            request,
        })
    }
}

impl<S> Service<Named> for Auth<S>
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

    fn call(&mut self, named: Named) -> Self::Future {
        let Auth { layer, inner } = self.clone();
        let host = named.request.headers().get(header::HOST).cloned();
        Box::pin(async move {
            let answer = inner.oneshot(layer.identify(named).await?).await;
            answer.map_err(|refusal| layer.authenticator.challenge(refusal, host))
        })
    }
}

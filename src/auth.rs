//! Who asks. Only this module makes a [`Caller`].

use std::net::IpAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use http::{Request, Response};
use serde_json::{Map, Value};
use tower::{Layer, Service, ServiceExt};

use crate::rescue::{Named, Refusal, RequestId};
use crate::server::{Body, Peer};

/// What is known of whoever asks (contract, section 3).
#[derive(Debug)]
#[non_exhaustive]
pub struct Subject {
    /// Proven by a token, or the local operator.
    pub authenticated: bool,
    /// `sub`
    pub id: String,
    /// Whose skills and blobs it works with.
    pub tenant: String,
    /// Roles.
    pub roles: Vec<String>,
    /// Groups.
    pub groups: Vec<String>,
    /// Scopes.
    pub scopes: Vec<String>,
    /// The claims that policies may see.
    pub claims: Map<String, Value>,
}

/// The proof that a request went through this layer. Cheap to clone; cannot be made elsewhere.
#[derive(Debug, Clone)]
pub struct Caller {
    subject: Arc<Subject>,
    ip: IpAddr,
}

impl Caller {
    /// Who.
    pub fn subject(&self) -> &Subject {
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
}

/// How callers are known.
#[derive(Debug, Clone)]
pub enum Authenticator {
    /// `auth.mode = "off"`: everybody who can connect is the local operator.
    Off(Arc<Subject>),
}

impl Authenticator {
    /// The subject of `auth.mode = "off"` (contract, section 3).
    pub fn off() -> Self {
        Authenticator::Off(Arc::new(Subject {
            authenticated: true,
            id: "local".into(),
            tenant: "default".into(),
            roles: vec!["admin".into()],
            groups: Vec::new(),
            scopes: Vec::new(),
            claims: Map::new(),
        }))
    }

    /// The caller of the command line, which asks without HTTP.
    pub fn local(&self) -> Caller {
        let Authenticator::Off(subject) = self;
        Caller {
            subject: subject.clone(),
            ip: IpAddr::from([127, 0, 0, 1]),
        }
    }

    fn authenticate(&self, peer: IpAddr) -> Caller {
        let Authenticator::Off(subject) = self;
        Caller {
            subject: subject.clone(),
            ip: peer,
        }
    }
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
pub struct AuthLayer(pub Authenticator);

impl<S> Layer<S> for AuthLayer {
    type Service = Auth<S>;
    fn layer(&self, inner: S) -> Auth<S> {
        Auth {
            authenticator: self.0.clone(),
            inner,
        }
    }
}

/// Turns a request into one with a [`Caller`], or refuses it.
#[derive(Debug, Clone)]
pub struct Auth<S> {
    authenticator: Authenticator,
    inner: S,
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
        let Named {
            request_id,
            request,
        } = named;
        // The address is the connection's own: forwarding headers can be written by anybody.
        let peer = request
            .extensions()
            .get::<Peer>()
            .map_or(IpAddr::from([0, 0, 0, 0]), |peer| peer.0.ip());
        let caller = self.authenticator.authenticate(peer);
        Box::pin(self.inner.clone().oneshot(Authenticated {
            caller,
            request_id,
            request,
        }))
    }
}

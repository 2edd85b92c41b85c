//! The way of a request, as one list. The order is a security decision; the reasons stand beside it.

use http::{Request, Response};
use serde_json::value::RawValue;
use tower::ServiceBuilder;
use tower::util::BoxCloneSyncService;

use crate::auth::{AuthLayer, Authenticator};
use crate::door::DoorLayer;
use crate::faces::{Faces, OPEN_PATHS, Readiness};
use crate::limit::LimitLayer;
use crate::methods::{self, Perform, ResolveLayer, Rooms};
use crate::policy::{Policy, PolicyLayer};
use crate::rescue::RescueLayer;
use crate::rpc::{self, Call, Rpc};
use crate::server::{Body, Stack};

/// Calls, as JSON-RPC and the command line make them.
pub type Calls = BoxCloneSyncService<Call, Box<RawValue>, methods::Error>;

/// What the stack is made of.
#[derive(Debug, Clone)]
pub struct Parts {
    /// What the methods work with.
    pub rooms: Rooms,
    /// Who asks.
    pub authenticator: Authenticator,
    /// What is allowed.
    pub policy: Policy,
    /// JSON-RPC's limits.
    pub rpc: rpc::Limits,
    /// Which `Host` a request may name.
    pub door: DoorLayer,
    /// Whether the gateway takes work.
    pub readiness: Readiness,
}

/// From a call to its result.
pub fn calls(parts: &Parts) -> Calls {
    BoxCloneSyncService::new(
        ServiceBuilder::new()
            // Reads the parameters and finds what they name: a decision is about this skill in this version, these
            // blobs, this long, not about words that somebody else might read differently.
            .layer(ResolveLayer(parts.rooms.clone()))
            // Nothing has been done yet; from here on everything carries its permit.
            .layer(PolicyLayer(parts.policy.clone()))
            .service(Perform),
    )
}

/// From an HTTP request to its answer.
pub fn public(parts: &Parts) -> Stack {
    let faces = Faces::new(Rpc::new(calls(parts), parts.rpc), parts);
    let stack = ServiceBuilder::new()
        // Outermost, so that every refusal below becomes an answer in one place, with a request id.
        .layer(RescueLayer)
        // Before authentication: a request that a web page has smuggled in must not even learn whether a token holds.
        .layer(parts.door.clone())
        // Before limits: they are counted for subjects and tenants, which only a checked token can name.
        .layer(AuthLayer {
            authenticator: parts.authenticator.clone(),
            open: &OPEN_PATHS,
        })
        // Before the body is read: a refused request costs no memory.
        .layer(LimitLayer)
        // JSON-RPC, blobs and documents; below each of them the calls above.
        .service(faces);
    BoxCloneSyncService::<Request<Body>, Response<Body>, _>::new(stack)
}

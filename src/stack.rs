//! The way of a request, as one list. The order is a security decision; the reasons stand beside it.

use http::{Request, Response};
use tower::ServiceBuilder;
use tower::util::BoxCloneSyncService;

use crate::auth::{AuthLayer, Authenticator};
use crate::door::DoorLayer;
use crate::faces::{self, Calls, Faces, OPEN_PATHS, Readiness, Transfer};
use crate::limit::{AddressLimitLayer, CallLimitLayer, LimitLayer, Limits, RecountLayer};
use crate::methods::{Perform, ResolveLayer, Rooms};
use crate::policy::{Policy, PolicyLayer};
use crate::rescue::RescueLayer;
use crate::rpc::{self, Rpc};
use crate::server::{Body, Stack};
use crate::telemetry::metrics::Metrics;
use crate::telemetry::watch::WatchLayer;

/// What the stack is made of.
#[derive(Debug, Clone)]
pub(crate) struct Parts {
    /// What the methods work with.
    pub rooms: Rooms,
    /// Who asks.
    pub authenticator: Authenticator,
    /// What is allowed.
    pub policy: Policy,
    /// How much.
    pub limits: Limits,
    /// JSON-RPC's limits.
    pub rpc: rpc::Limits,
    /// `blobs.max_transfers`
    pub transfers_max: usize,
    /// Which `Host` a request may name.
    pub door: DoorLayer,
    /// Whether the gateway takes work.
    pub readiness: Readiness,
    /// What is counted.
    pub metrics: Metrics,
}

/// From a call to its result.
pub(crate) fn calls(parts: &Parts) -> Calls {
    BoxCloneSyncService::new(
        ServiceBuilder::new()
            // Before anything is read: what the limits of requests owe a batch.
            .layer(RecountLayer(parts.limits.clone()))
            // Reads the parameters and finds what they name: a decision is about this skill in this version, these
            // blobs, this long, not about words that somebody else might read differently.
            .layer(ResolveLayer(parts.rooms.clone()))
            // Nothing has been done yet; from here on everything carries its permit.
            .layer(PolicyLayer(parts.policy.clone()))
            // After the decision: a refused call costs nothing by method or skill.
            .layer(CallLimitLayer(parts.limits.clone()))
            .service(Perform),
    )
}

/// From an HTTP request to its answer.
pub(crate) fn public(parts: &Parts) -> Stack {
    let metrics = parts.metrics.clone();
    let rpc = Rpc::new(calls(parts), parts.rpc).watched_by(metrics.clone());
    let transfer = Transfer::new(
        parts.rooms.blobs.clone(),
        parts.policy.clone(),
        parts.limits.clone(),
        parts.rpc.body_timeout,
        parts.transfers_max,
    );
    let faces = Faces::new(
        rpc,
        transfer,
        parts.readiness.clone(),
        parts.authenticator.clone(),
    );
    let route = faces::route;
    let stack = ServiceBuilder::new()
        // Outermost, so that what is counted is what was answered, and every line of the log has its trace.
        .layer(WatchLayer { metrics, route })
        // Above all others, so that every refusal below becomes an answer in one place, with a request id.
        .layer(RescueLayer)
        // Before authentication: a request that a web page has smuggled in must not even learn whether a token holds.
        .layer(parts.door.clone())
        // Before authentication: whoever tries tokens is counted too.
        .layer(AddressLimitLayer(parts.limits.clone()))
        // Before the other limits: they are counted for subjects and tenants, which only a checked token can name.
        .layer(AuthLayer {
            authenticator: parts.authenticator.clone(),
            open: &OPEN_PATHS,
            metrics: parts.metrics.clone(),
        })
        // Before the body is read: a refused request costs no memory.
        .layer(LimitLayer(parts.limits.clone()))
        // JSON-RPC, blobs and documents; below each of them the calls above.
        .service(faces);
    BoxCloneSyncService::<Request<Body>, Response<Body>, _>::new(stack)
}

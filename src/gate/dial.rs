//! From a granted name to a connection: one question, every answer vetted, the vetted address dialled.

use std::net::SocketAddr;

use tokio::net::TcpStream;

use super::Run;
use super::address::vet;
use super::refusal::Refusal;
use super::target::Target;

/// Addresses of one host that are tried.
const DIALS_MAX: usize = 8;

/// Connects, within `connect_timeout` for the name and the connection together.
pub(super) async fn dial(run: &Run, target: &Target) -> Result<(TcpStream, SocketAddr), Refusal> {
    tokio::time::timeout(run.gate.settings.connect_timeout, dial_now(run, target))
        .await
        .unwrap_or_else(|_| Err(Refusal::Timeout(target.clone())))
}

async fn dial_now(run: &Run, target: &Target) -> Result<(TcpStream, SocketAddr), Refusal> {
    let settings = &run.gate.settings;
    // A closed semaphore has no turns left: the run is over.
    let turn = run.lookups.clone().acquire_owned().await;
    let turn = turn.map_err(|_| Refusal::Busy)?;
    let addresses = run
        .gate
        .resolver
        .resolve(target.host(), &run.grant().tenant, turn)
        .await
        .map_err(|_| Refusal::NoSuchHost(target.clone()))?;
    let grant = run.grant();
    for address in &addresses {
        if let Err(unfit) = vet(*address, &settings.allow_private, grant.deny()) {
            // One bad answer spoils all: a name that leads inside now and then is not to be trusted at other times.
            tracing::warn!(
                run_id = grant.run_id,
                host = %grant.plain(target.host()),
                %address,
                ?unfit,
                "a granted name leads to an address that is not dialled"
            );
            return Err(Refusal::Address(target.clone()));
        }
    }
    let tried = addresses.len().min(DIALS_MAX);
    let patience = settings.connect_timeout / (tried.max(1) as u32);
    for address in addresses.into_iter().take(DIALS_MAX) {
        let address = SocketAddr::new(address, target.port());
        if let Ok(Ok(stream)) = tokio::time::timeout(patience, TcpStream::connect(address)).await {
            // A relay must not hold back the last piece of a message. A socket that refuses is slower, no more.
            let _ = stream.set_nodelay(true);
            return Ok((stream, address));
        }
    }
    Err(if tried == 0 {
        Refusal::NoSuchHost(target.clone())
    } else {
        Refusal::Unreachable(target.clone())
    })
}

//! From a granted name to a connection: one question, every answer vetted, the vetted address dialled.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::io::Errno;
use tokio::net::TcpStream;

use super::Run;
use super::address::vet;
use super::refusal::Refusal;
use super::target::Target;

/// Addresses of one host that are tried.
const DIALS_MAX: usize = 8;
/// Failures of one run that are warned of. They cost the run nothing, so without an end a loop of them would fill the log.
const FAILURES_LOGGED_MAX: u64 = 20;

/// Connects, within `connect_timeout` for the name and the connection together.
pub(super) async fn dial(run: &Run, target: &Target) -> Result<(TcpStream, SocketAddr), Refusal> {
    tokio::time::timeout(run.gate.settings.connect_timeout, dial_now(run, target))
        .await
        .unwrap_or_else(|_| Err(Refusal::Timeout(target.clone())))
}

async fn dial_now(run: &Run, target: &Target) -> Result<(TcpStream, SocketAddr), Refusal> {
    let settings = &run.gate.settings;
    // Nobody closes it: a run that is over has its tasks ended.
    let turn = run.lookups.clone().acquire_owned().await;
    let turn = turn.map_err(|_| Refusal::Busy)?;
    let addresses = run
        .gate
        .resolver
        .resolve(target.host(), &run.grant().tenant, turn)
        .await
        .map_err(|error| {
            failed(run, target, None, &error);
            if is_out_of_files(&error) {
                Refusal::Busy
            } else {
                Refusal::NoSuchHost(target.clone())
            }
        })?;
    let grant = run.grant();
    for address in &addresses {
        if let Err(unfit) = vet(*address, &settings.allow_private, grant.deny()) {
            // One bad answer spoils all: a name that leads inside now and then is not to be trusted at other times.
            if is_told(run) {
                tracing::warn!(
                    run_id = grant.run_id,
                    host = %grant.plain(target.host()),
                    %address,
                    ?unfit,
                    "a granted name leads to an address that is not dialled"
                );
            }
            return Err(Refusal::Address(target.clone()));
        }
    }
    let tried = addresses.len().min(DIALS_MAX);
    let patience = settings.connect_timeout / (tried.max(1) as u32);
    for address in addresses.into_iter().take(DIALS_MAX) {
        let address = SocketAddr::new(address, target.port());
        match connect(address, patience).await {
            Ok(stream) => return Ok((stream, address)),
            Err(error) => {
                failed(run, target, Some(address), &error);
                if is_out_of_files(&error) {
                    return Err(Refusal::Busy);
                }
            }
        }
    }
    Err(if tried == 0 {
        Refusal::NoSuchHost(target.clone())
    } else {
        Refusal::Unreachable(target.clone())
    })
}

async fn connect(address: SocketAddr, patience: Duration) -> io::Result<TcpStream> {
    let stream = tokio::time::timeout(patience, TcpStream::connect(address)).await??;
    // A relay must not hold back the last piece of a message. A socket that refuses is slower, no more.
    let _ = stream.set_nodelay(true);
    Ok(stream)
}

/// The gateway's own trouble, which says nothing of a host.
fn is_out_of_files(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::MFILE | Errno::NFILE)
    )
}

/// Whether one more failure of this run is warned of.
fn is_told(run: &Run) -> bool {
    run.failures.fetch_add(1, Ordering::Relaxed) < FAILURES_LOGGED_MAX
}

/// The operator's part: a run is told of no address, and nothing of the gateway's host.
fn failed(run: &Run, target: &Target, address: Option<SocketAddr>, error: &io::Error) {
    if !is_told(run) {
        return;
    }
    let grant = run.grant();
    let (run_id, host) = (&grant.run_id, grant.plain(target.host()));
    match address {
        Some(address) => {
            tracing::warn!(run_id, %host, %address, %error, "a granted host cannot be reached");
        }
        None => tracing::warn!(run_id, %host, %error, "a granted name cannot be resolved"),
    }
}

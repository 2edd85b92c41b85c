//! The egress gate: the only way out of a run, kept to its permit.
//!
//! ```text
//! run ── 127.0.0.1:3128 in its own network namespace ── proxy ── grant ── dial ──────── tunnel ── host
//!                                                        │        │        │  resolve     │
//!                                                        │        │        │  address     └ hello: the name in TLS
//!                                                        │        │        └ the vetted address, never the name
//!                                                        │        └ patterns of the permit
//!                                                        └ target: one form of a host
//! ```
//!
//! A sandbox gives the listener that only its run can reach; accepting on it is serving that run. The gate does not
//! rely on the run's good will: without it there is no way out, so a program that ignores the proxy variables reaches
//! nothing. What it promises: a connection goes to a granted scheme, host and port, at an address that is public or that
//! the operator has named, and over TLS to a server that is asked for by that name. What it does not: it does not read
//! what goes through TLS (see `tunnel`), and what a granted host does with data is not its to know.

mod address;
mod dial;
mod forward;
mod grant;
mod hello;
mod listener;
mod meter;
mod paced;
mod proxy;
mod record;
mod refusal;
mod resolve;
mod routes;
mod target;
mod tunnel;

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net as unix;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use ipnet::IpNet;
use rustix::io::Errno;
use tokio::net::{TcpStream, UnixStream};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::task::{AbortHandle, JoinSet};

pub use grant::{BadGrant, Grant, Regrant};
pub use record::{Ledger, NoLedger, Record, Verdict};
pub use resolve::{Resolver, SystemResolver};

use crate::config;
use crate::pace::Pace;
use crate::slots::{Slot, Slots};
use listener::Listener;
use paced::Paced;
use target::Target;

/// Questions to the resolver that one run has under way: names that nobody answers must not hold up others' names.
const RUN_LOOKUPS_MAX: usize = 4;
/// Refused requests of one run that are recorded one by one. They cost the run nothing, so without an end a loop of them would
/// fill the log; a connection that was made is always recorded.
const REFUSALS_RECORDED_MAX: u64 = 1000;
/// Failures of one run that are warned of. They cost the run nothing, so without an end a loop of them would fill the log.
const FAILURES_LOGGED_MAX: u64 = 20;
/// Listeners of one run, each of which keeps a descriptor of the gateway. A sandbox needs one.
const LISTENERS_MAX: usize = 4;
/// How long connections that were ended with their runs may take to be on record.
const END_TIMEOUT: Duration = Duration::from_secs(1);
/// Wait before accepting again when there are no descriptors left.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// What the configuration's `[gate]` says.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Addresses that are not public and may be dialled all the same.
    pub allow_private: Vec<IpNet>,
    /// Of all runs at once; see `slots.rs` for one tenant's.
    pub tunnels_max: usize,
    /// Of one run at once; more wait to be accepted.
    pub run_connections_max: usize,
    /// Of one tenant's runs, one after the other.
    pub tenant_pace: Pace,
    /// For the name and the connection together.
    pub connect_timeout: Duration,
    /// Without a byte in either direction.
    pub idle_timeout: Duration,
    /// For a request's head.
    pub header_timeout: Duration,
    /// Of a request's head.
    pub header_bytes_max: usize,
    /// For the ClientHello.
    pub hello_timeout: Duration,
    /// Of the ClientHello.
    pub hello_bytes_max: usize,
    /// From one run, all connections together.
    pub run_upload_bytes_max: u64,
    /// To one run, all connections together.
    pub run_download_bytes_max: u64,
}

impl Settings {
    /// As configured.
    pub fn new(config: &config::Gate) -> Self {
        let ms = Duration::from_millis;
        Settings {
            allow_private: config.allow_private.clone(),
            tunnels_max: config.max_tunnels,
            run_connections_max: config.max_run_connections,
            tenant_pace: Pace::new(
                config.tenant_connections_per_s,
                1,
                config.tenant_connections_burst,
            ),
            connect_timeout: ms(config.connect_timeout_ms),
            idle_timeout: ms(config.idle_timeout_ms),
            header_timeout: ms(config.header_timeout_ms),
            header_bytes_max: config.max_header_bytes,
            hello_timeout: ms(config.hello_timeout_ms),
            hello_bytes_max: config.max_hello_bytes,
            run_upload_bytes_max: config.max_run_upload_bytes,
            run_download_bytes_max: config.max_run_download_bytes,
        }
    }
}

/// Opens gates for runs.
#[derive(Debug, Clone)]
pub struct Gate(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    settings: Settings,
    resolver: Arc<dyn Resolver>,
    ledger: Arc<dyn Ledger>,
    slots: Arc<Slots>,
    paced: Paced,
    runs: Mutex<Vec<Weak<Run>>>,
    /// Where each run is known until the last of its connections is on record.
    going: watch::Sender<()>,
    runtime: Handle,
}

impl Inner {
    fn runs(&self) -> MutexGuard<'_, Vec<Weak<Run>>> {
        // The list is whole between any two lines that change it.
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A run, as its connections see it.
#[derive(Debug)]
struct Run {
    gate: Arc<Inner>,
    grant: watch::Sender<Arc<Grant>>,
    connections: Arc<Semaphore>,
    lookups: Arc<Semaphore>,
    up: AtomicU64,
    down: AtomicU64,
    /// Requests that led to no connection.
    refusals: AtomicU64,
    /// Failures to find or to reach a host, or to accept a connection.
    failures: AtomicU64,
    ended: AtomicBool,
    /// Dropped with the last connection, behind its record.
    _going: watch::Receiver<()>,
}

impl Run {
    /// One of `gate.max_tunnels`, if there is one for this tenant.
    fn slot(&self) -> Option<Slot> {
        self.gate.slots.take(&self.grant().tenant)
    }

    /// As it is now.
    fn grant(&self) -> Arc<Grant> {
        self.grant.borrow().clone()
    }

    /// One more request has led to no connection; how many had before.
    fn count_refusal(&self) -> u64 {
        self.refusals.fetch_add(1, Ordering::AcqRel)
    }

    /// Whether one more failure is warned of.
    fn tells_a_failure(&self) -> bool {
        self.failures.fetch_add(1, Ordering::Relaxed) < FAILURES_LOGGED_MAX
    }

    /// It has been refused so often that what it is refused now is not recorded.
    fn is_past_records(&self) -> bool {
        self.refusals.load(Ordering::Acquire) > REFUSALS_RECORDED_MAX
    }

    /// It has moved as many bytes as it may in one direction, without which the other is of no use.
    fn is_spent(&self) -> bool {
        let settings = &self.gate.settings;
        self.up.load(Ordering::Relaxed) >= settings.run_upload_bytes_max
            || self.down.load(Ordering::Relaxed) >= settings.run_download_bytes_max
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}

impl Gate {
    /// A gate whose connections are served by the runtime that this is called in.
    pub fn new(settings: Settings, resolver: Arc<dyn Resolver>, ledger: Arc<dyn Ledger>) -> Self {
        Gate(Arc::new(Inner {
            slots: Slots::new(settings.tunnels_max),
            paced: Paced::new(settings.tenant_pace),
            settings,
            resolver,
            ledger,
            runs: Mutex::default(),
            going: watch::Sender::default(),
            runtime: Handle::current(),
        }))
    }

    /// The gate of one run, until it is dropped.
    pub fn open(&self, grant: Grant) -> Open {
        let run = Arc::new(Run {
            gate: self.0.clone(),
            grant: watch::Sender::new(Arc::new(grant)),
            connections: Arc::new(Semaphore::new(self.0.settings.run_connections_max)),
            lookups: Arc::new(Semaphore::new(RUN_LOOKUPS_MAX)),
            up: AtomicU64::new(0),
            down: AtomicU64::new(0),
            refusals: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            _going: self.0.going.subscribe(),
        });
        let mut runs = self.0.runs();
        runs.retain(|run| run.strong_count() > 0);
        runs.push(Arc::downgrade(&run));
        Open {
            run,
            tasks: Mutex::default(),
        }
    }

    /// Comes back when all runs have let go of it and the ends of their connections are with the ledger, for which whatever carries
    /// a connection has to be polled once more; or soon, where a run does not end.
    pub async fn drain(&self) {
        if tokio::time::timeout(END_TIMEOUT, self.0.going.closed())
            .await
            .is_err()
        {
            tracing::warn!(
                "connections of runs that have ended may be missing from the audit log: they do not end"
            );
        }
    }

    /// After the rules have changed: asks for every run what it would be granted now, takes away what is no longer
    /// granted, and ends the connections that stood on it. Nothing is ever added: a run keeps to the decision that
    /// started it. `None`: nothing has changed for this run. `now` must not wait: the run's grant is locked meanwhile.
    pub fn recheck(&self, now: impl Fn(&Grant) -> Option<Regrant>) {
        let runs: Vec<Arc<Run>> = self.0.runs().iter().filter_map(Weak::upgrade).collect();
        for run in runs {
            // Read and replaced as one: of two rechecks at once the second takes from what the first has left, and gives nothing
            // of it back.
            run.grant.send_if_modified(|grant| {
                let Some(left) = now(grant).and_then(|now| left_of(grant, &now)) else {
                    return false;
                };
                *grant = Arc::new(left);
                true
            });
        }
    }
}

/// What a run keeps.
fn left_of(grant: &Grant, now: &Regrant) -> Option<Grant> {
    grant
        .narrowed(now)
        .or_else(|error| {
            tracing::error!(run_id = grant.run_id, %error, "a run loses its network");
            // An empty list of patterns always makes a grant.
            grant.narrowed(&Regrant {
                decision_id: now.decision_id.clone(),
                ..Regrant::default()
            })
        })
        .ok()
}

/// The open gate of one run. When it is dropped, everything that went through it ends.
#[derive(Debug)]
pub struct Open {
    run: Arc<Run>,
    tasks: Mutex<Vec<AbortHandle>>,
}

impl Open {
    /// Serves the run on a listening socket, TCP or unix, that nobody else can reach. May be called more than once, from
    /// any thread.
    ///
    /// # Errors
    /// When it is no such socket, or the run has too many.
    pub fn serve(&self, listener: OwnedFd) -> io::Result<()> {
        // One that does not listen would fail again and again, for as long as the run lasts.
        if !rustix::net::sockopt::socket_acceptconn(&listener)? {
            return Err(io::Error::other("the socket does not listen"));
        }
        // A panic while it was held leaves a list.
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        if tasks.len() == LISTENERS_MAX {
            return Err(io::Error::other(format!(
                "a run has no more than {LISTENERS_MAX} listeners"
            )));
        }
        let run = self.run.clone();
        let _runtime = self.run.gate.runtime.enter();
        let tcp = std::net::TcpListener::from(listener);
        let task = if tcp.local_addr().is_ok() {
            let listener = Listener::new(tcp.into())?;
            tokio::spawn(accept(run, listener, |stream| {
                TcpStream::from_std(stream.into())
            }))
        } else {
            let unix = unix::UnixListener::from(OwnedFd::from(tcp));
            unix.local_addr()?;
            let listener = Listener::new(unix.into())?;
            tokio::spawn(accept(run, listener, |stream| {
                UnixStream::from_std(stream.into())
            }))
        };
        tasks.push(task.abort_handle());
        Ok(())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.run.ended.store(true, Ordering::Release);
        for task in self
            .tasks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
        {
            task.abort();
        }
    }
}

/// Accepts and serves; what it has begun ends with it.
async fn accept<S>(run: Arc<Run>, listener: Listener, stream: impl Fn(OwnedFd) -> io::Result<S>)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        // Before accepting: who comes too often waits in the listener's queue, on the run's account.
        let Ok(place) = run.connections.clone().acquire_owned().await else {
            return;
        };
        match listener.next().await.and_then(&stream) {
            Ok(stream) => {
                let run = run.clone();
                connections.spawn(async move {
                    let _place = place;
                    proxy::serve(stream, run).await;
                });
            }
            Err(error) => {
                let is_over = Errno::from_io_error(&error) == Some(Errno::INVAL);
                if run.tells_a_failure() {
                    let run_id = run.grant().run_id.clone();
                    let what = if is_over {
                        "a run's gate is closed: its listener listens no more"
                    } else {
                        "a run's gate cannot accept a connection: it tries again"
                    };
                    tracing::warn!(run_id, %error, "{what}");
                }
                if is_over {
                    // What is under way goes on.
                    while connections.join_next().await.is_some() {}
                    return;
                }
                tokio::time::sleep(ACCEPT_AGAIN).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
}

/// Ends when the rules no longer allow a connection.
async fn revoked(run: &Run, target: &Target, address: SocketAddr) {
    let mut grant = run.grant.subscribe();
    let nobody_can_change_it = grant
        .wait_for(|grant| !grant.allows(target) || address::is_denied(address.ip(), grant.deny()))
        .await
        .is_err();
    if nobody_can_change_it {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests;

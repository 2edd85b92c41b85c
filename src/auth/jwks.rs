//! The keys of one issuer over time: read once from a file, or fetched, kept, and fetched again.
//!
//! Who sends tokens must not be able to make us ask the issuer: an unknown key leads to at most one fetch in
//! [`REFETCH_INTERVAL`], however many ask, and all who ask meanwhile wait for that one. What was fetched is used while
//! the issuer cannot be reached, up to a limit; a fetch that fails takes nothing away, an answer without keys takes all.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use jsonwebtoken::Algorithm;
use serde::Deserialize;
use tokio::task::AbortHandle;

use super::cache::Generation;
use super::clock::Clock;
use super::fetch::{FetchError, Fetcher};
use super::keys::{BadKeys, KeySet, Strictness};
use super::refused::Refused;
use crate::json::{cut, short};

/// Between two fetches from one issuer, whatever asks for them (contract, section 3), but a reload, which begins with one.
pub(super) const REFETCH_INTERVAL: Duration = Duration::from_secs(30);
/// How long a request waits for keys that it needs.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(3);

/// Of a URL so many characters are in the log: one of the two is the issuer's own word.
const URL_CHARS_MAX: usize = 256;

/// How long fetched keys are good.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ages {
    /// `auth.jwks_max_age_s`: then they are fetched again, whether or not requests come.
    pub(super) fresh: Duration,
    /// `auth.jwks_max_stale_s`: then they are used no more.
    pub(super) stale: Duration,
}

/// Where keys are fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Location {
    /// A JWKS.
    Url(String),
    /// As the issuer's configuration document says.
    Discovery {
        /// `issuer`, as configured.
        issuer: String,
    },
}

/// How keys are fetched; a test has its own.
pub(super) type Fetch = Arc<dyn Fn() -> BoxFuture<'static, Result<KeySet, GetError>> + Send + Sync>;

/// Why no keys were got. For the log.
#[derive(Debug, thiserror::Error)]
pub(super) enum GetError {
    #[error("{url}: {error}")]
    Fetch { url: String, error: FetchError },
    #[error("the document says it is of the issuer {0:?}")]
    OtherIssuer(String),
    #[error("the document at /.well-known/openid-configuration has no issuer and jwks_uri")]
    NoDiscovery,
    #[error(
        "jwks_uri must be https, or http on a loopback address for an issuer that is there too"
    )]
    JwksUri,
    #[error(transparent)]
    Keys(#[from] BadKeys),
}

impl Location {
    /// Gets the keys from here.
    pub(super) fn fetch(self, fetcher: Fetcher, algorithms: Vec<Algorithm>) -> Fetch {
        Arc::new(move || {
            let (location, fetcher, algorithms) =
                (self.clone(), fetcher.clone(), algorithms.clone());
            async move {
                let url = match location {
                    Location::Url(url) => url,
                    Location::Discovery { issuer } => discover(&fetcher, &issuer).await?,
                };
                let text = get(&fetcher, &url).await?;
                Ok(KeySet::from_jwks(&text, &algorithms, Strictness::Remote)?)
            }
            .boxed()
        })
    }
}

/// A document; an error says which, since one of the two is where the other says.
async fn get(fetcher: &Fetcher, url: &str) -> Result<String, GetError> {
    let got = fetcher.get(url).await;
    got.map_err(|error| GetError::Fetch {
        url: cut(url, URL_CHARS_MAX).into_owned(),
        error,
    })
}

/// OpenID Connect Discovery section 4: where the document is, and that it must be the issuer's own, byte for byte.
async fn discover(fetcher: &Fetcher, issuer: &str) -> Result<String, GetError> {
    #[derive(Deserialize)]
    struct Document {
        issuer: String,
        jwks_uri: String,
    }
    let base = issuer.strip_suffix('/').unwrap_or(issuer);
    let text = get(fetcher, &format!("{base}/.well-known/openid-configuration")).await?;
    let document: Document = serde_json::from_str(&text).map_err(|_| GetError::NoDiscovery)?;
    if document.issuer != issuer {
        return Err(GetError::OtherIssuer(short(&document.issuer)));
    }
    // An issuer on the network must not send us to ourselves.
    let plain = document.jwks_uri.starts_with("http://") && issuer.starts_with("http://");
    if !document.jwks_uri.starts_with("https://") && !plain {
        return Err(GetError::JwksUri);
    }
    Ok(document.jwks_uri)
}

/// The keys of one issuer.
pub(super) enum Keys {
    /// From a file: which, where it is one that can be exchanged for another.
    Fixed(KeySet, Option<PathBuf>),
    /// None: the file had some, and says now that there are none.
    Withdrawn {
        /// Which one.
        file: PathBuf,
        /// As the same file is refused at a start.
        why: BadKeys,
    },
    /// From the network.
    Remote(Arc<Remote>),
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Keys::Fixed(set, _) => f.debug_tuple("Fixed").field(set).finish(),
            Keys::Withdrawn { file, .. } => f.debug_tuple("Withdrawn").field(file).finish(),
            Keys::Remote(remote) => f.debug_tuple("Remote").field(&remote.name).finish(),
        }
    }
}

/// Keys that are fetched.
pub(super) struct Remote {
    /// The issuer, for the log.
    name: String,
    /// From where, and whom it trusts: keys of another source are not taken over.
    source: String,
    fetch: Fetch,
    ages: Ages,
    clock: Clock,
    generation: Generation,
    held: ArcSwapOption<Held>,
    flight: Mutex<Flight>,
    failing: AtomicBool,
    fetches: Arc<Fetches>,
}

/// How many fetches there were of the keys of an issuer, in all of its lives: counters that begin anew hide what they grow by.
#[derive(Debug, Default)]
pub(super) struct Fetches {
    good: AtomicU64,
    failed: AtomicU64,
}

/// Keys and when they were fetched, by [`super::clock::Now::uptime`].
#[derive(Debug)]
pub(super) struct Held {
    pub(super) set: KeySet,
    fetched: Duration,
}

/// What is known of fetches.
#[derive(Default)]
struct Flight {
    began: Option<Duration>,
    /// The last one.
    last: Option<Last>,
}

/// A fetch.
struct Last {
    /// Knows when it has ended, also if nobody waits for it: [`Self::landed`] knows only what somebody has polled.
    task: AbortHandle,
    landed: Shared<BoxFuture<'static, ()>>,
}

impl Remote {
    pub(super) fn new(
        name: &str,
        source: String,
        fetch: Fetch,
        ages: Ages,
        clock: Clock,
        generation: Generation,
        fetches: Arc<Fetches>,
    ) -> Arc<Self> {
        Arc::new(Remote {
            name: name.to_owned(),
            source,
            fetch,
            ages,
            clock,
            generation,
            held: ArcSwapOption::empty(),
            flight: Mutex::default(),
            failing: AtomicBool::new(false),
            fetches,
        })
    }

    /// The keys that may be used, after the issuer was asked for others unless it was just now.
    pub(super) async fn ask(self: &Arc<Self>) -> Result<Arc<Held>, Refused> {
        if let Some(landed) = self.refresh() {
            // Longer than this is not worth a caller's time; the fetch itself goes on.
            let _too_late = tokio::time::timeout(WAIT_MAX, landed).await;
        }
        self.usable().ok_or(Refused::Unavailable)
    }

    /// The keys that may be used. Where there are none, or they are no longer fresh, others are asked for beside.
    pub(super) fn tend(self: &Arc<Self>) -> Option<Arc<Held>> {
        let held = self.usable();
        if held
            .as_ref()
            .is_none_or(|held| self.age(held) >= self.ages.fresh)
        {
            // Nobody here waits for it.
            let _under_way = self.refresh();
        }
        held
    }

    /// The keys that may be used, as old as they are; none where the issuer has taken back all.
    pub(super) fn usable(&self) -> Option<Arc<Held>> {
        self.held
            .load_full()
            .filter(|held| held.set.len() > 0 && self.age(held) < self.ages.stale)
    }

    /// Whether the last fetch failed.
    pub(super) fn failing(&self) -> bool {
        self.failing.load(Ordering::Relaxed)
    }

    /// How many fetches there were: good ones and failed ones.
    pub(super) fn fetches(&self) -> (u64, u64) {
        (
            self.fetches.good.load(Ordering::Relaxed),
            self.fetches.failed.load(Ordering::Relaxed),
        )
    }

    /// Where they are counted, for a later life of the same issuer.
    pub(super) fn counted(&self) -> Arc<Fetches> {
        self.fetches.clone()
    }

    /// How old keys are.
    pub(super) fn age(&self, held: &Held) -> Duration {
        self.clock.now().uptime.saturating_sub(held.fetched)
    }

    /// Takes over the keys of an earlier life of the same issuer where this one has none yet.
    pub(super) fn inherit(&self, earlier: &Remote) {
        if self.source == earlier.source
            && let Some(held) = earlier.usable()
        {
            // As old as they are: no reload makes keys younger. What this one has fetched is newer, though it came just now.
            self.held
                .rcu(|own| own.clone().or_else(|| Some(held.clone())));
        }
    }

    /// Begins a fetch unless the last one began just now; gives the one that is under way, if any. It goes on
    /// whether or not somebody waits for it, so that nobody can end it for the others by going away.
    pub(super) fn refresh(self: &Arc<Self>) -> Option<Shared<BoxFuture<'static, ()>>> {
        let mut flight = self.lock();
        if let Some(last) = flight.last.as_ref().filter(|f| !f.task.is_finished()) {
            return Some(last.landed.clone());
        }
        let now = self.clock.now().uptime;
        if flight
            .began
            .is_some_and(|began| now.saturating_sub(began) < REFETCH_INTERVAL)
        {
            return None;
        }
        let this = self.clone();
        let task = tokio::spawn(async move {
            let outcome = (this.fetch)().await;
            this.land(outcome);
        });
        let last = Last {
            task: task.abort_handle(),
            landed: task.map(|_ended| ()).boxed().shared(),
        };
        let landed = last.landed.clone();
        flight.began = Some(now);
        flight.last = Some(last);
        Some(landed)
    }

    fn land(&self, outcome: Result<KeySet, GetError>) {
        let count = if outcome.is_ok() {
            &self.fetches.good
        } else {
            &self.fetches.failed
        };
        count.fetch_add(1, Ordering::Relaxed);
        match outcome {
            Ok(mut set) => {
                let (keys, unused) = (set.len(), set.take_unused());
                let changed = self.hold(set);
                self.failing.store(false, Ordering::Relaxed);
                if changed {
                    tracing::info!(issuer = self.name, keys, "keys of an issuer fetched");
                    for error in unused {
                        tracing::warn!(issuer = self.name, %error, "some keys of an issuer are not used");
                    }
                }
            }
            // An answer, not a failure to get one: whoever withdraws all keys is not trusted by what he had before.
            Err(GetError::Keys(error @ BadKeys::None(_))) => {
                self.hold(KeySet::default());
                self.failing.store(true, Ordering::Relaxed);
                tracing::warn!(
                    issuer = self.name,
                    %error,
                    "an issuer publishes no key that can be used: none of its tokens is taken"
                );
            }
            Err(error) => {
                self.failing.store(true, Ordering::Relaxed);
                tracing::warn!(issuer = self.name, %error, "keys of an issuer cannot be fetched");
            }
        }
    }

    /// Puts these keys in the place of those before; gives whether they are others.
    fn hold(&self, set: KeySet) -> bool {
        let changed = self
            .held
            .load()
            .as_ref()
            .is_none_or(|held| !held.set.same_as(&set));
        let fetched = self.clock.now().uptime;
        self.held.store(Some(Arc::new(Held { set, fetched })));
        if changed {
            // After the new keys are in place: what is verified from here on is verified with them.
            self.generation.advance();
        }
        changed
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Flight> {
        self.flight.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

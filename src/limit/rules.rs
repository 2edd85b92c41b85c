//! The rules in force, and counting by them: all rules of a level count a call, or none does.

use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;

use crate::auth::Caller;
use crate::config::{Config, RateKey, RateLimit};
use crate::pace::{Key, Ledger, Pace, Place};
use crate::reload;
use crate::server::network;

/// Where time comes from.
pub(crate) trait Clock: fmt::Debug + Send + Sync {
    /// Since some moment before all others.
    fn now(&self) -> Duration;
}

/// Monotonic: a step of the wall clock neither gives nor takes calls.
#[derive(Debug)]
pub(crate) struct SinceStart(Instant);

impl Default for SinceStart {
    fn default() -> Self {
        SinceStart(Instant::now())
    }
}

impl Clock for SinceStart {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}

/// Before what a rule counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    /// Authentication: needs the address alone. Also holds back whoever tries tokens.
    Address,
    /// The body: needs the caller.
    Caller,
    /// The method: needs the call, and that it is allowed.
    Call,
}

impl Level {
    fn of(rule: &RateLimit) -> Self {
        let by_call = |key: &RateKey| matches!(key, RateKey::Method | RateKey::Skill);
        if !rule.methods.is_empty() || rule.key.iter().any(by_call) {
            Level::Call
        } else if rule.key == [RateKey::Ip] {
            Level::Address
        } else {
            Level::Caller
        }
    }
}

/// One rule and what it remembers.
#[derive(Debug)]
pub(super) struct Rule {
    /// Makes the order in which rules are locked, also across reloads.
    number: u64,
    pub(super) config: RateLimit,
    level: Level,
    pub(super) pace: Pace,
    secrets: [RandomState; 2],
    refused: AtomicU64,
    shared: AtomicU64,
    ledger: Mutex<Ledger>,
}

impl Rule {
    fn new(number: u64, config: &RateLimit) -> Self {
        let pace = Pace::new(config.quota, config.per_s, config.burst);
        Rule {
            number,
            config: config.clone(),
            level: Level::of(config),
            pace,
            secrets: [RandomState::new(), RandomState::new()],
            refused: AtomicU64::new(0),
            shared: AtomicU64::new(0),
            ledger: Mutex::new(Ledger::new(pace, config.max_keys)),
        }
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        // A panic while it was held leaves counts, all of them valid.
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn counts(&self, asked: &Asked<'_>) -> bool {
        let RateLimit { key, methods, .. } = &self.config;
        // All who are nobody would be one caller, whom any of them could lock out.
        if asked.anonymous && !key.contains(&RateKey::Ip) {
            return false;
        }
        methods.is_empty() || methods.iter().any(|method| method == asked.method)
    }

    fn key(&self, asked: &Asked<'_>, skill: &str) -> Key {
        let hash = |secret: &RandomState| {
            let mut hasher = secret.build_hasher();
            for part in &self.config.key {
                match part {
                    RateKey::Ip => network(asked.ip).hash(&mut hasher),
                    RateKey::Tenant => asked.tenant.hash(&mut hasher),
                    // With its tenant: nobody spends the quota of another tenant's subject by having its name.
                    RateKey::Subject => (asked.tenant, asked.subject).hash(&mut hasher),
                    RateKey::Method => asked.method.hash(&mut hasher),
                    RateKey::Skill => skill.hash(&mut hasher),
                }
            }
            hasher.finish()
        };
        Key(hash(&self.secrets[0]), hash(&self.secrets[1]))
    }
}

/// What a rule's key is made of. What a level does not know yet is empty.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) ip: IpAddr,
    pub(super) tenant: &'a str,
    pub(super) subject: &'a str,
    /// On a path that needs no token: tenant and subject tell such callers not apart, only their addresses do.
    pub(super) anonymous: bool,
    pub(super) method: &'a str,
    /// A call that concerns several skills is counted for each of them, one that concerns none by no rule with `skill`
    /// in its key.
    pub(super) skills: &'a [&'a str],
}

impl<'a> Asked<'a> {
    /// By an address, of which no more is known.
    pub(super) fn from(ip: IpAddr) -> Self {
        Asked {
            ip,
            tenant: "",
            subject: "",
            anonymous: false,
            method: "",
            skills: &[],
        }
    }

    /// By a caller.
    pub(super) fn by(caller: &'a Caller) -> Self {
        Asked {
            tenant: caller.tenant(),
            subject: &caller.subject().id,
            anonymous: !caller.subject().authenticated,
            ..Asked::from(caller.ip())
        }
    }
}

/// How a rule stands for one caller after a call was counted, or was not.
#[derive(Debug, Clone)]
pub(super) struct Standing {
    pub(super) rule: Arc<Rule>,
    pub(super) left: u64,
    pub(super) next_ns: u64,
}

/// Too much.
#[derive(Debug, Clone, thiserror::Error)]
#[error(
    "rate limit {rule:?} is reached ({quota} calls in {per_s} s, {burst} at once); try again in {retry_after_ms} ms"
)]
pub struct Limited {
    /// By which rule; of several, the one that takes longest.
    pub rule: Arc<str>,
    /// Calls.
    pub quota: u64,
    /// Seconds.
    pub per_s: u64,
    /// Calls.
    pub burst: u64,
    /// From then on one call fits, if nobody else takes it.
    pub retry_after_ms: u64,
    /// How the rules stand that counted the call or did not, for who is told in headers.
    pub(super) standings: Vec<Standing>,
}

impl Limited {
    fn new(rule: &Rule, wait_ns: u64) -> Self {
        let RateLimit {
            name,
            quota,
            per_s,
            burst,
            ..
        } = &rule.config;
        Limited {
            rule: name.as_str().into(),
            quota: *quota,
            per_s: *per_s,
            burst: *burst,
            retry_after_ms: wait_ns.div_ceil(1_000_000),
            standings: Vec::new(),
        }
    }
}

impl reload::Part for Limits {
    fn name(&self) -> &'static str {
        "rate_limit"
    }

    /// What can be wrong with a rule is found by the configuration, which knows the line; so this cannot fail.
    fn prepare(&self, config: &Config) -> Result<reload::Install, String> {
        let (this, prepared) = (self.clone(), Limits::prepare(config));
        Ok(reload::Install::new(move || this.install(prepared)))
    }

    /// Nothing but the configuration itself.
    fn watched(_: &Config) -> Vec<PathBuf> {
        Vec::new()
    }
}

/// How one rule does, for metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RuleReport {
    /// `rate_limit.name`
    pub rule: String,
    /// Refused by it since it came into force.
    pub refused: u64,
    /// Keys that are counted apart now.
    pub keys: usize,
    /// Calls that had to share one count since `max_keys` keys were in use.
    pub shared: u64,
}

/// Rules that are checked and ready, not yet in force.
#[derive(Debug)]
pub(crate) struct Prepared(Vec<RateLimit>);

#[cfg(test)]
impl Prepared {
    pub(super) fn of(rules: &[RateLimit]) -> Self {
        Prepared(rules.to_vec())
    }
}

#[derive(Debug, Default)]
struct Rules {
    all: Vec<Arc<Rule>>,
}

/// The rate limits. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Limits(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    rules: ArcSwap<Rules>,
    numbers: AtomicU64,
    clock: Arc<dyn Clock>,
}

impl Limits {
    /// Without any rule yet.
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Limits(Arc::new(Inner {
            rules: ArcSwap::default(),
            numbers: AtomicU64::default(),
            clock,
        }))
    }

    /// The first step: changes nothing.
    pub(crate) fn prepare(config: &Config) -> Prepared {
        Prepared(config.rate_limit.clone())
    }

    /// The second step: in force from here on, at once. A rule that is unchanged goes on counting where it was; one
    /// with a changed value begins anew.
    pub(crate) fn install(&self, prepared: Prepared) {
        let before = self.0.rules.load_full();
        let keep = |config: &RateLimit| {
            let same = before.all.iter().find(|rule| rule.config == *config);
            same.cloned().unwrap_or_else(|| {
                let number = self.0.numbers.fetch_add(1, Ordering::Relaxed);
                Arc::new(Rule::new(number, config))
            })
        };
        let mut all: Vec<Arc<Rule>> = prepared.0.iter().map(keep).collect();
        all.sort_by_key(|rule| rule.number);
        self.0.rules.store(Arc::new(Rules { all }));
    }

    /// Counts a call by every rule of a level, or, if one of them refuses, by none.
    pub(super) fn count(
        &self,
        level: Level,
        asked: Asked<'_>,
    ) -> (Vec<Standing>, Result<(), Limited>) {
        let rules = self.0.rules.load();
        let mut wanted: Vec<(&Arc<Rule>, Vec<Key>)> = Vec::new();
        for rule in rules.all.iter().filter(|rule| rule.level == level) {
            if !rule.counts(&asked) {
                continue;
            }
            let keys: Vec<Key> = if rule.config.key.contains(&RateKey::Skill) {
                let skills = asked.skills.iter();
                skills.map(|skill| rule.key(&asked, skill)).collect()
            } else {
                vec![rule.key(&asked, "")]
            };
            if !keys.is_empty() {
                wanted.push((rule, keys));
            }
        }
        if wanted.is_empty() {
            return (Vec::new(), Ok(()));
        }
        // All at once, and in the order of their numbers, which is the same for everybody: no two calls wait for each
        // other's rules. Nothing below waits for anything.
        let mut locked: Vec<MutexGuard<'_, Ledger>> =
            wanted.iter().map(|(rule, _)| rule.ledger()).collect();
        let now = u64::try_from(self.0.clock.now().as_nanos()).unwrap_or(u64::MAX / 2);
        let mut counted: Vec<(usize, Place, Option<u64>)> = Vec::new();
        let mut places: Vec<Place> = Vec::with_capacity(wanted.len());
        let mut refusal: Option<(&Arc<Rule>, u64)> = None;
        for (at, (rule, keys)) in wanted.iter().enumerate() {
            let ledger = &mut *locked[at];
            let mut place = Place::Shared;
            let mut shares = false;
            for key in keys {
                place = ledger.place(*key, now);
                // Once, however many skills it is about: more of them than a burst would never fit.
                if place == Place::Shared && std::mem::replace(&mut shares, true) {
                    continue;
                }
                let before = ledger.full_at(place);
                match ledger.count(place, now) {
                    Ok(()) => counted.push((at, place, before)),
                    Err(wait) if refusal.is_none_or(|(_, longest)| wait > longest) => {
                        refusal = Some((rule, wait));
                    }
                    Err(_) => {}
                }
            }
            places.push(place);
            if shares {
                rule.shared.fetch_add(1, Ordering::Relaxed);
            }
        }
        if refusal.is_some() {
            for (at, place, before) in counted.into_iter().rev() {
                locked[at].set(place, before);
            }
        }
        let standing = wanted.iter().zip(&places).zip(&locked);
        let standings = standing
            .map(|(((rule, _), place), ledger)| {
                let (left, next_ns) = rule.pace.left(ledger.full_at(*place), now);
                Standing {
                    rule: Arc::clone(rule),
                    left,
                    next_ns,
                }
            })
            .collect();
        drop(locked);
        let outcome = match refusal {
            None => Ok(()),
            Some((rule, wait)) => {
                rule.refused.fetch_add(1, Ordering::Relaxed);
                Err(Limited::new(rule, wait))
            }
        };
        (standings, outcome)
    }

    /// Drops idle keys, a part of each rule at a time. To be called every few seconds.
    pub(crate) fn sweep_some(&self) {
        for rule in &self.0.rules.load().all {
            let now = u64::try_from(self.0.clock.now().as_nanos()).unwrap_or(u64::MAX / 2);
            rule.ledger().sweep_some(now);
        }
    }

    /// How each rule does.
    pub(crate) fn report(&self) -> Vec<RuleReport> {
        let report = |rule: &Arc<Rule>| RuleReport {
            rule: rule.config.name.clone(),
            refused: rule.refused.load(Ordering::Relaxed),
            keys: rule.ledger().keys(),
            shared: rule.shared.load(Ordering::Relaxed),
        };
        self.0.rules.load().all.iter().map(report).collect()
    }
}

//! What of the gateway can change while it serves.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt;
use tokio::runtime::Handle;

use super::swap::{OfSandbox, OfStorage, Plugins};
use crate::auth::{self, Authenticator};
use crate::config::{AuthMode, Config, KeySource};
use crate::gate::Regrant;
use crate::limit::Limits;
use crate::policy::{self, Denied, Permit, Policy};
use crate::reload::{Install, Part, Reload, Seen, Source, Watched};
use crate::runs::Runs;
use crate::secrets::Secrets;
use crate::stack::Parts;

/// Everything that reloads, in the order in which it is put in place: who may come in last, so that nobody who is let in
/// anew meets old rules, and the rules behind the secrets, so that nothing that they allow gets an old one. Its outcome is
/// shown with the health and the metrics of the parts.
pub(super) fn reload(seen: Seen, source: Source, parts: &mut Parts, plugins: &Plugins) -> Reload {
    let handle = Handle::current();
    let runs = parts.rooms.runs.clone();
    let mode = seen.config.auth.mode;
    let reload = Reload::new(
        seen,
        source,
        vec![
            Box::new(runs.secrets().clone()),
            Box::new(Rules {
                policy: parts.policy.clone(),
                is_short: AtomicBool::new(false),
                runs,
                handle: handle.clone(),
            }),
            Box::new(parts.limits.clone()),
            Box::new(Keys {
                authenticator: parts.authenticator.clone(),
                mode,
                handle: handle.clone(),
            }),
            Box::new(plugins.of_sandbox(handle.clone())),
            // The last: it cannot be prepared without being done.
            Box::new(plugins.of_storage(handle, parts.rooms.catalog.clone())),
        ],
    );
    let (state, numbers) = (reload.report(), reload.report());
    parts.metrics.add_source(move |page| numbers.write(page));
    let check = move || std::future::ready(state.state()).boxed();
    parts.readiness = parts.readiness.clone().and("reload", Arc::new(check));
    reload
}

/// What all of these read.
pub(super) fn watched(config: &Config) -> Vec<PathBuf> {
    let each: [Watched; 6] = [
        Secrets::watched,
        Rules::watched,
        Limits::watched,
        Keys::watched,
        OfSandbox::watched,
        OfStorage::watched,
    ];
    each.iter().flat_map(|watched| watched(config)).collect()
}

/// The policy, and what runs hold on the strength of it.
struct Rules {
    policy: Policy,
    /// Their trial was not held, for lack of room.
    is_short: AtomicBool,
    runs: Runs,
    handle: Handle,
}

impl Part for Rules {
    fn name(&self) -> &'static str {
        "policy"
    }
    fn prepare(&self, config: &Config) -> Result<Install, String> {
        let prepared = self.policy.prepare_next(config);
        let is_short = prepared.as_ref().is_err_and(|error| error.is_passing);
        self.is_short.store(is_short, Ordering::Relaxed);
        let prepared = prepared.map_err(|error| error.to_string())?;
        // Before the secrets are exchanged, too: what the rules before allow gets none of the new ones.
        let runs = self.runs.clone();
        let outdate = move |generation| runs.outdate(generation);
        let (policy, runs, handle) = (self.policy.clone(), self.runs.clone(), self.handle.clone());
        // What goes on with a network that it would not get any more loses it.
        let in_force = move || {
            drop(handle.spawn(async move {
                let decide = async |permit| regrant(policy.reconsider(&permit).await);
                runs.recheck(policy.generation(), decide).await;
            }));
        };
        Ok(self.policy.exchange(prepared, outdate, in_force))
    }
    fn is_short(&self) -> bool {
        self.is_short.load(Ordering::Relaxed)
    }
    /// What was enforced is not forgotten before it is on the disk.
    fn is_lost(&self) -> bool {
        self.policy.is_unkept()
    }
    fn recover(&self) -> Result<(), String> {
        self.policy.keep()
    }
    fn watched(config: &Config) -> Vec<PathBuf> {
        policy::watched(config)
    }
}

/// What a run is granted now; nothing when it would be refused.
fn regrant(now: Option<Result<Permit, Denied>>) -> Regrant {
    match now {
        Some(Ok(permit)) => Regrant {
            decision_id: permit.decision_id,
            network: permit.network,
            deny_cidrs: permit.deny_cidrs,
        },
        Some(Err(denied)) => Regrant {
            decision_id: denied.decision_id,
            ..Regrant::default()
        },
        // It has no network that could be taken.
        None => Regrant::default(),
    }
}

/// Who is let in.
struct Keys {
    authenticator: Authenticator,
    /// With which the gateway has started: what it listens on was chosen for that.
    mode: AuthMode,
    handle: Handle,
}

impl Part for Keys {
    fn name(&self) -> &'static str {
        "auth"
    }
    fn prepare(&self, config: &Config) -> Result<Install, String> {
        if config.auth.mode != self.mode {
            return Err("auth.mode cannot change while the gateway serves; restart it".into());
        }
        let authenticator = self.authenticator.clone();
        let prepared = self
            .handle
            .block_on(authenticator.prepare_again(config, auth::Clock::system()))
            .map_err(|errors| errors.to_string())?;
        Ok(Install::new(move || authenticator.install(prepared)))
    }
    fn watched(config: &Config) -> Vec<PathBuf> {
        let issuers = config.auth.issuers.iter();
        issuers
            .flat_map(|issuer| {
                let keys = match &issuer.keys {
                    KeySource::File(file) | KeySource::Secret(file) => Some(file.clone()),
                    KeySource::Url(_) | KeySource::Discovery => None,
                };
                [keys, issuer.ca_file.clone()].into_iter().flatten()
            })
            .collect()
    }
}

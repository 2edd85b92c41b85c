//! What of the gateway can change while it serves.

use std::path::PathBuf;

use tokio::runtime::Handle;

use crate::auth::{self, Authenticator};
use crate::config::{self, AuthMode, Config, KeySource, PolicyMode};
use crate::limit::Limits;
use crate::policy::{self, Policy};
use crate::reload::{Install, Part, Read, Reload};
use crate::runs::Runs;
use crate::secrets::Secrets;
use crate::stack::Parts;

/// Everything that reloads, in the order in which it is put in place: who may come in last, so that nobody who is let in
/// anew meets old rules.
pub(super) fn reload(config: &Config, read: Read, parts: &Parts) -> Reload {
    let handle = Handle::current();
    Reload::new(
        config.clone(),
        read,
        vec![
            Box::new(SecretsPart(parts.rooms.runs.secrets().clone())),
            Box::new(PolicyPart {
                policy: parts.policy.clone(),
                runs: parts.rooms.runs.clone(),
                handle: handle.clone(),
            }),
            Box::new(LimitsPart(parts.limits.clone())),
            Box::new(AuthPart {
                authenticator: parts.authenticator.clone(),
                mode: config.auth.mode,
                handle,
            }),
        ],
    )
}

struct SecretsPart(Secrets);

impl Part for SecretsPart {
    fn name(&self) -> &'static str {
        "secrets"
    }
    fn prepare(&self, config: &Config) -> Result<Install, String> {
        let prepared = Secrets::prepare(config).map_err(|error| error.to_string())?;
        let secrets = self.0.clone();
        Ok(Box::new(move || secrets.install(prepared)))
    }
    fn watched(&self, config: &Config) -> Vec<PathBuf> {
        match &config.secrets {
            config::Secrets::Env => Vec::new(),
            config::Secrets::Dir(dir) => vec![dir.clone()],
        }
    }
}

struct PolicyPart {
    policy: Policy,
    runs: Runs,
    handle: Handle,
}

impl Part for PolicyPart {
    fn name(&self) -> &'static str {
        "policy"
    }
    fn prepare(&self, config: &Config) -> Result<Install, String> {
        let prepared = policy::prepare(config).map_err(|error| error.to_string())?;
        let (policy, runs, handle) = (self.policy.clone(), self.runs.clone(), self.handle.clone());
        Ok(Box::new(move || {
            policy.install(prepared);
            // What goes on with a network that it would not get any more loses it.
            handle.spawn(async move { runs.recheck(&policy).await });
        }))
    }
    fn watched(&self, config: &Config) -> Vec<PathBuf> {
        match config.policy.mode {
            PolicyMode::Off => Vec::new(),
            _ => vec![config.policy.path.clone()],
        }
    }
}

struct LimitsPart(Limits);

impl Part for LimitsPart {
    fn name(&self) -> &'static str {
        "rate limits"
    }
    fn prepare(&self, config: &Config) -> Result<Install, String> {
        let prepared = Limits::prepare(config);
        let limits = self.0.clone();
        Ok(Box::new(move || limits.install(prepared)))
    }
    fn watched(&self, _: &Config) -> Vec<PathBuf> {
        Vec::new()
    }
}

struct AuthPart {
    authenticator: Authenticator,
    /// With which the gateway has started: what it listens on was chosen for that.
    mode: AuthMode,
    handle: Handle,
}

impl Part for AuthPart {
    fn name(&self) -> &'static str {
        "keys"
    }
    fn prepare(&self, config: &Config) -> Result<Install, String> {
        if config.auth.mode != self.mode {
            return Err("auth.mode cannot change while the gateway serves; restart it".into());
        }
        let prepared = self
            .handle
            .block_on(auth::prepare(config, auth::Clock::system()))
            .map_err(|errors| errors.to_string())?;
        let authenticator = self.authenticator.clone();
        Ok(Box::new(move || authenticator.install(prepared)))
    }
    fn watched(&self, config: &Config) -> Vec<PathBuf> {
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

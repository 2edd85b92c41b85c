//! Secrets: where their values come from, who gets them, and keeping them out of what a run says.
//!
//! A run gets the secrets that its permit names, in its environment, and nothing else does: not an argument, not a log, not
//! an answer. Values are kept in memory from the start or the last reload on and overwritten when they are let go; the
//! automaton that looks for them ([`Redactor`]) is let go with them. Variables of the gateway's own environment stay where
//! the system keeps them (`/proc/<pid>/environ`, readable by the same user): a directory does not have that.
//!
//! In the texts of a run (output, summary, log preview, error) each value that it was given is replaced by `[secret NAME]`,
//! also in the forms that `secrets/forms.rs` lists, before anything is cut. Blobs that a run writes are data of its own
//! and are not changed.

mod forms;
mod output;
mod provider;
mod redact;
mod search;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use skillgate_skill::SecretName;
use zeroize::Zeroizing;

use crate::config::{self, Config};
pub(crate) use output::redact_json;
pub(crate) use provider::Refused;
pub(crate) use redact::{Redactor, Stream};
pub(crate) use search::Search;

use crate::reload::{Install, Part};

/// Shortest value, in bytes: a shorter one would be replaced where it is only a word, and is no secret.
pub(crate) const VALUE_BYTES_MIN: usize = 8;
/// Longest value, in bytes; a private key of 4096 bits takes half of it.
pub(crate) const VALUE_BYTES_MAX: usize = 8192;
/// Secrets of one gateway.
pub(crate) const SECRETS_MAX: usize = 1000;
/// Bytes of all values that one run is given: what is looked for takes memory, about a hundred times as much, and twice that
/// for values of several lines.
pub(crate) const RUN_BYTES_MAX: usize = 32 << 10;
/// Bytes of all values whose automata are kept for the next run with the same secrets.
const KEPT_BYTES_MAX: usize = 64 << 10;

/// A value. Overwritten at its end; shows nothing of itself.
#[derive(Clone)]
pub(crate) struct Secret(Arc<Zeroizing<String>>);

impl Secret {
    /// What it is. Whoever asks for it takes care of it.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Why a run does not get what was granted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// The provider does not have it.
    #[error(
        "the secret {name} is granted to this run, but the gateway has no value for it; its operator has to provide one"
    )]
    NoValue {
        /// Which.
        name: String,
    },
    /// Too much for one run.
    #[error(
        "the secrets granted to this run are {bytes} bytes together, over the limit of {RUN_BYTES_MAX}; let the skill ask for fewer"
    )]
    TooLarge {
        /// All of them.
        bytes: usize,
    },
}

/// Every value that there is, at one time.
struct Snapshot {
    values: BTreeMap<SecretName, Secret>,
    /// By the names that they look for.
    redactors: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    bytes: usize,
    redactors: BTreeMap<Vec<String>, Arc<Redactor>>,
}

/// Values that were read and can be put in force.
#[derive(Debug)]
pub(crate) struct Prepared(Snapshot);

impl fmt::Debug for Snapshot {
    /// Names only.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.values.keys()).finish()
    }
}

/// The secrets in force. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Secrets(Arc<ArcSwap<Snapshot>>);

/// What one run was given.
#[derive(Debug, Clone, Default)]
pub(crate) struct Granted {
    values: BTreeMap<String, Secret>,
    redactor: Option<Arc<Redactor>>,
}

impl Secrets {
    /// Reads all values as the configuration says. Changes nothing.
    ///
    /// # Errors
    /// [`Refused`]: everything that is wrong, by file or variable.
    pub(crate) fn prepare(config: &Config) -> Result<Prepared, Refused> {
        let values = provider::read(config)?;
        Ok(Prepared(Snapshot {
            values,
            redactors: Mutex::default(),
        }))
    }

    /// With these values.
    pub(crate) fn new(prepared: Prepared) -> Self {
        Secrets(Arc::new(ArcSwap::from_pointee(prepared.0)))
    }

    /// Puts other values in force: runs that begin from now on get those. A run that goes on keeps its own.
    pub(crate) fn install(&self, prepared: Prepared) {
        self.0.store(Arc::new(prepared.0));
    }

    /// One value.
    ///
    /// # Errors
    /// [`Missing::NoValue`].
    #[cfg(test)]
    fn get(&self, name: &str) -> Result<Secret, Missing> {
        self.0.load().get(name)
    }

    /// What a permit names, all of one reload.
    ///
    /// # Errors
    /// [`Missing`]: a run without a secret that it was granted would fail in the middle of what it does.
    pub(crate) async fn grant(&self, names: &[String]) -> Result<Granted, Missing> {
        if names.is_empty() {
            return Ok(Granted::default());
        }
        let snapshot = self.0.load_full();
        let mut values = BTreeMap::new();
        for name in names {
            values.insert(name.clone(), snapshot.get(name)?);
        }
        let bytes = values.values().map(|value| value.expose().len()).sum();
        let too_large = Missing::TooLarge { bytes };
        if bytes > RUN_BYTES_MAX {
            return Err(too_large);
        }
        let names: Vec<String> = values.keys().cloned().collect();
        let kept = snapshot.kept().redactors.get(&names).cloned();
        let redactor = match kept {
            Some(redactor) => redactor,
            None => {
                let values = values.clone();
                // Long values take some milliseconds.
                let made = tokio::task::spawn_blocking(move || {
                    Redactor::new(
                        values
                            .iter()
                            .map(|(name, value)| (name.as_str(), value.expose())),
                    )
                });
                let redactor = match made.await {
                    Ok(Ok(redactor)) => Arc::new(redactor),
                    _ => return Err(too_large),
                };
                snapshot.keep(names, bytes, redactor.clone());
                redactor
            }
        };
        Ok(Granted {
            values,
            redactor: Some(redactor),
        })
    }
}

impl Part for Secrets {
    fn name(&self) -> &'static str {
        "secrets"
    }

    fn prepare(&self, config: &Config) -> Result<Install, String> {
        let prepared = Secrets::prepare(config).map_err(|refused| refused.to_string())?;
        let secrets = self.clone();
        Ok(Install::new(move || secrets.install(prepared)))
    }

    fn watched(config: &Config) -> Vec<PathBuf> {
        match &config.secrets {
            config::Secrets::Dir(dir) => vec![dir.clone()],
            config::Secrets::Env => Vec::new(),
        }
    }
}

impl Snapshot {
    fn get(&self, name: &str) -> Result<Secret, Missing> {
        let value = SecretName::parse(name)
            .ok()
            .and_then(|name| self.values.get(&name));
        value.cloned().ok_or_else(|| Missing::NoValue {
            name: crate::json::short(name),
        })
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, Kept> {
        // A panic while it was held leaves a map that is whole.
        self.redactors
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, names: Vec<String>, bytes: usize, redactor: Arc<Redactor>) {
        let mut kept = self.kept();
        if kept.bytes + bytes > KEPT_BYTES_MAX {
            *kept = Kept::default();
        }
        if kept.redactors.insert(names, redactor).is_none() {
            kept.bytes += bytes;
        }
    }
}

impl Granted {
    /// The value of a secret that was granted.
    pub(crate) fn value(&self, name: &str) -> Option<&Secret> {
        self.values.get(name)
    }

    /// Looks for the values in what the run says. None: the run has no secrets.
    pub(crate) fn redactor(&self) -> Option<&Arc<Redactor>> {
        self.redactor.as_ref()
    }
}

#[cfg(test)]
mod tests;

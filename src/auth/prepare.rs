//! From the configuration to something that can judge tokens: reads key files and fetches keys. Slow, may fail,
//! changes nothing that is in force.

use std::collections::HashMap;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::Mode;
use super::cache::Generation;
use super::challenge::Challenge;
use super::clock::Clock;
use super::fetch::Fetcher;
use super::jwks::{Ages, Keys, Location, Remote, WAIT_MAX};
use super::keys::{BadKeys, KeySet};
use super::verify::{Issuer, Verifier, algorithms};
use crate::config::{self, AuthMode, Config, ConfigErrors, KeySource};

/// Largest file of keys, in bytes.
const KEY_FILE_BYTES_MAX: u64 = 256 * 1024;

/// What `auth.mode = "jwt"` needs.
#[derive(Debug)]
pub(super) struct Jwt {
    pub(super) verifier: Verifier,
    pub(super) challenge: Challenge,
}

/// A way to judge requests that is ready to be installed.
#[derive(Debug)]
pub struct Prepared(pub(super) Mode);

/// How the keys of an issuer are, for operators.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct IssuerState {
    /// `iss`
    pub issuer: String,
    /// Keys that can be used now.
    pub keys: usize,
    /// How old they are; none for keys from a file, and while there are none.
    pub age: Option<Duration>,
    /// The last fetch failed.
    pub failing: bool,
    /// Fetches that were good, and that failed, those before a reload too; none for keys from a file.
    pub fetches: Option<(u64, u64)>,
}

/// Reads the keys that the configuration names and fetches those of issuers on the network, each for a few seconds at
/// most. An issuer that does not answer is no error: its tokens are refused (503) until it does.
///
/// # Errors
/// What is wrong with a file of keys, with the place in the configuration that names it.
pub async fn prepare(config: &Config, clock: Clock) -> Result<Prepared, ConfigErrors> {
    after(None, config, clock).await
}

/// What is to follow `earlier`, see [`super::Authenticator::prepare_again`].
pub(super) async fn after(
    earlier: Option<Arc<Mode>>,
    config: &Config,
    clock: Clock,
) -> Result<Prepared, ConfigErrors> {
    if config.auth.mode == AuthMode::Off {
        return Ok(Prepared(Mode::Off));
    }
    let own = config.clone();
    let jwt = tokio::task::spawn_blocking(move || assemble(earlier.as_deref(), &own, clock))
        .await
        .map_err(|error| config.wrong("auth", format!("cannot be used: {error}")))??;
    warm(jwt.verifier.issuers()).await;
    Ok(Prepared(Mode::Jwt(Box::new(jwt))))
}

/// What [`prepare`] would find wrong with files, without asking anybody.
///
/// # Errors
/// The same.
pub fn check(config: &Config) -> Result<(), ConfigErrors> {
    match config.auth.mode {
        AuthMode::Off => Ok(()),
        AuthMode::Jwt => assemble(None, config, Clock::system()).map(drop),
    }
}

/// The part that reads files.
fn assemble(earlier: Option<&Mode>, config: &Config, clock: Clock) -> Result<Jwt, ConfigErrors> {
    let earlier = match earlier {
        Some(Mode::Jwt(jwt)) => Some(jwt.verifier.issuers()),
        Some(Mode::Off) | None => None,
    };
    let auth = &config.auth;
    let generation = Generation::default();
    let ages = Ages {
        fresh: Duration::from_secs(auth.jwks_max_age_s),
        stale: Duration::from_secs(auth.jwks_max_stale_s),
    };
    let (mut issuers, mut problems) = (HashMap::new(), Vec::new());
    for (at, issuer) in auth.issuers.iter().enumerate() {
        let earlier = earlier.and_then(|all| all.get(&issuer.issuer));
        match keys_of(config, at, earlier, ages, &clock, &generation) {
            Ok(keys) => {
                issuers.insert(issuer.issuer.clone(), Issuer::new(issuer, keys));
            }
            Err(wrong) => problems.extend(wrong.problems),
        }
    }
    if !problems.is_empty() {
        return Err(ConfigErrors { problems });
    }
    let verifier = Verifier::new(issuers, auth.token_cache_entries, generation, clock);
    let challenge = Challenge {
        resource: auth.resource.clone(),
        required_scopes: auth.required_scopes.clone(),
        // A shared secret belongs to no server that gives out tokens.
        issuers: auth
            .issuers
            .iter()
            .filter(|issuer| !matches!(issuer.keys, KeySource::Secret(_)))
            .map(|issuer| issuer.issuer.clone())
            .collect(),
    };
    Ok(Jwt {
        verifier,
        challenge,
    })
}

/// Of the issuer at this place, which `earlier` was until now.
fn keys_of(
    config: &Config,
    at: usize,
    earlier: Option<&Issuer>,
    ages: Ages,
    clock: &Clock,
    generation: &Generation,
) -> Result<Keys, ConfigErrors> {
    let issuer = &config.auth.issuers[at];
    let wrong =
        |key: &str, message: String| config.wrong(&format!("auth.issuers[{at}].{key}"), message);
    let remote = |location: Location| {
        let ca = issuer.ca_file.as_deref().map(read).transpose();
        let fetcher = ca
            .and_then(|ca| Fetcher::new(ca.as_deref()))
            .map_err(|why| match &issuer.ca_file {
                Some(path) => wrong("ca_file", format!("{}: {why}", path.display())),
                None => wrong("issuer", why),
            })?;
        let source = format!("{location:?} {:?}", issuer.ca_file);
        let fetches = match earlier.map(|it| &it.keys) {
            Some(Keys::Remote(earlier)) => earlier.counted(),
            Some(Keys::Fixed(..) | Keys::Withdrawn { .. }) | None => Arc::default(),
        };
        let fetch = location.fetch(fetcher, algorithms(issuer));
        Ok(Keys::Remote(Remote::new(
            &issuer.issuer,
            source,
            fetch,
            ages,
            clock.clone(),
            generation.clone(),
            fetches,
        )))
    };
    Ok(match &issuer.keys {
        KeySource::File(path) => {
            // One that is new has nothing to withdraw, as little as another file, and where no key fits algorithms that are new,
            // those are the mistake.
            let is_same_file = |keys: &Keys| match keys {
                Keys::Fixed(_, file) => file.as_ref() == Some(path),
                Keys::Withdrawn { file, .. } => file == path,
                Keys::Remote(_) => false,
            };
            let goes_on = earlier
                .is_some_and(|it| it.algorithms == algorithms(issuer) && is_same_file(&it.keys));
            key_file(path, issuer, goes_on)
                .map_err(|why| wrong("jwks_file", format!("{}: {why}", path.display())))?
        }
        KeySource::Secret(path) => Keys::Fixed(
            secret_file(path)
                .map_err(|why| wrong("secret_file", format!("{}: {why}", path.display())))?,
            None,
        ),
        KeySource::Url(url) => remote(Location::Url(url.clone()))?,
        KeySource::Discovery => remote(Location::Discovery {
            issuer: issuer.issuer.clone(),
        })?,
    })
}

/// Asks all issuers at once, so that the first requests need not wait.
async fn warm(issuers: &HashMap<String, Issuer>) {
    let flights = issuers.values().filter_map(|issuer| match &issuer.keys {
        Keys::Fixed(..) | Keys::Withdrawn { .. } => None,
        Keys::Remote(remote) => remote.refresh(),
    });
    let all = join_all(flights);
    // What has not come by then comes beside the first requests.
    let _too_late = tokio::time::timeout(WAIT_MAX, all).await;
}

/// `goes_on`: of an issuer that has had keys, who may take them back. Only a whole JWKS does that: of a file of PEM what has
/// been written so far is good, too.
fn key_file(path: &Path, issuer: &config::Issuer, goes_on: bool) -> Result<Keys, String> {
    let bytes = read(path)?;
    let text = String::from_utf8(bytes).map_err(|_| "not UTF-8".to_owned())?;
    match KeySet::from_file(&text, &algorithms(issuer)) {
        Ok(set) => Ok(Keys::Fixed(set, Some(path.to_owned()))),
        Err(why @ BadKeys::None(_)) if goes_on && text.trim_start().starts_with('{') => {
            let file = path.to_owned();
            Ok(Keys::Withdrawn { file, why })
        }
        Err(error) => Err(error.to_string()),
    }
}

fn secret_file(path: &Path) -> Result<KeySet, String> {
    use std::os::unix::fs::PermissionsExt as _;
    let keys = KeySet::from_secret(&read(path)?).map_err(|error| error.to_string())?;
    let mode = std::fs::metadata(path).map_or(0, |meta| meta.permissions().mode());
    if mode & 0o077 != 0 {
        // Not refused: Kubernetes mounts its secrets this way, for a container that has one user.
        tracing::warn!(
            file = %path.display(),
            mode = format!("{:o}", mode & 0o777),
            "others can read this shared secret, and who can read it can make tokens; chmod 600"
        );
    }
    Ok(keys)
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    let mut bytes = Vec::new();
    file.take(KEY_FILE_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| error.to_string())?;
    if bytes.len() as u64 > KEY_FILE_BYTES_MAX {
        return Err(format!("larger than {KEY_FILE_BYTES_MAX} bytes"));
    }
    Ok(bytes)
}

impl Jwt {
    /// Takes over the fetched keys of those issuers that have not answered yet, and are asked for them in the same way.
    pub(super) fn inherit(&self, old: &Jwt) {
        for (name, issuer) in self.verifier.issuers() {
            if let (Keys::Remote(new), Some(Keys::Remote(old))) = (
                &issuer.keys,
                old.verifier.issuers().get(name).map(|issuer| &issuer.keys),
            ) {
                new.inherit(old);
            }
        }
    }

    /// Says of which issuers there is no key any more, from when that counts: what is prepared may still be refused.
    pub(super) fn tell_withdrawn(&self) {
        for (issuer, it) in self.verifier.issuers() {
            if let Keys::Withdrawn { file, why } = &it.keys {
                let file = file.display();
                tracing::warn!(
                    issuer,
                    %file,
                    error = %why,
                    "a file of keys has none that can be used: no token of its issuer is taken; before the next start write a key into it or take out the issuer"
                );
            }
        }
    }

    pub(super) fn issuers(&self) -> Vec<IssuerState> {
        let fixed = |issuer, keys| IssuerState {
            issuer,
            keys,
            age: None,
            failing: false,
            fetches: None,
        };
        let mut states: Vec<IssuerState> = self
            .verifier
            .issuers()
            .iter()
            .map(|(name, issuer)| {
                let issuer_name = name.clone();
                match &issuer.keys {
                    Keys::Fixed(set, _) => fixed(issuer_name, set.len()),
                    Keys::Withdrawn { .. } => fixed(issuer_name, 0),
                    Keys::Remote(remote) => {
                        let held = remote.usable();
                        IssuerState {
                            issuer: issuer_name,
                            keys: held.as_ref().map_or(0, |held| held.set.len()),
                            age: held.as_ref().map(|held| remote.age(held)),
                            failing: remote.failing(),
                            fetches: Some(remote.fetches()),
                        }
                    }
                }
            })
            .collect();
        states.sort_by(|a, b| a.issuer.cmp(&b.issuer));
        states
    }
}

//! Takes changed keys, policies, limits, secrets and plugins while the gateway serves: all of a change, or nothing of it.
//!
//! On SIGHUP, or when a watched file has changed, the configuration is read again and every [`Part`] prepares itself.
//! Only when all have succeeded is anything installed; else the gateway goes on with what it had, says so in the log,
//! and keeps saying so in [`Status`] until a reload succeeds.

use std::collections::hash_map::DefaultHasher;
use std::fmt;
use std::hash::{Hash as _, Hasher as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::signal::unix::Signal;

use crate::config::{Config, ConfigErrors};
use crate::telemetry::health::State;
use crate::telemetry::metrics::Page;

/// Files that are looked at to see whether something has changed; what is beyond is reloaded on SIGHUP only.
const WATCHED_FILES_MAX: usize = 10_000;
/// What these sections say beyond the parts' own is read once, at the start.
const RELOADED: [&str; 5] = ["auth", "plugins", "policy", "rate_limit", "secrets"];

/// Puts what was prepared in place. Cannot fail, and does not wait.
pub type Install = Box<dyn FnOnce() + Send>;

/// Something of the gateway that can be changed while it serves.
pub trait Part: Send + Sync {
    /// For the log.
    fn name(&self) -> &'static str;

    /// Reads and checks everything, and changes nothing yet. May take its time.
    ///
    /// # Errors
    /// What is wrong, with file and line where there is one.
    fn prepare(&self, config: &Config) -> Result<Install, String>;

    /// The files and directories that it reads.
    fn watched(&self, config: &Config) -> Vec<PathBuf>;
}

/// How the last reload went.
#[derive(Debug, Clone, Default)]
pub struct Status {
    /// Reloads that were taken since the start.
    pub taken: u64,
    /// Reloads that were refused since the start.
    pub refused: u64,
    /// When the last one ended, whichever way.
    pub at: Option<SystemTime>,
    /// Why the last one was refused; `None` when it was taken.
    pub error: Option<String>,
}

/// Reads the configuration as the program did when it started.
pub type Read = Box<dyn Fn() -> Result<Config, ConfigErrors> + Send + Sync>;

/// Reloads. Cheap to clone.
#[derive(Clone)]
pub struct Reload(Arc<Inner>);

struct Inner {
    read: Read,
    parts: Vec<Box<dyn Part>>,
    /// The configuration that is in force. Held during a reload, so that there is one at a time.
    config: Mutex<Config>,
    report: Report,
}

/// How the last reload went. Cheap to clone, and holds on to none of the parts, so that they can end while somebody
/// still asks.
#[derive(Debug, Clone, Default)]
pub struct Report(Arc<Mutex<Status>>);

impl fmt::Debug for Reload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<&str> = self.0.parts.iter().map(|part| part.name()).collect();
        f.debug_struct("Reload")
            .field("parts", &parts)
            .finish_non_exhaustive()
    }
}

impl Report {
    /// How the last reload went.
    pub fn status(&self) -> Status {
        lock(&self.0).clone()
    }

    /// The same for `/readyz?verbose`. A refused one does not keep the gateway from being ready: it serves on.
    pub fn state(&self) -> State {
        let status = self.status();
        match status.error {
            Some(why) => State::Impaired(format!("refused, the last good state is kept: {why}")),
            None => State::Well(format!("{} taken", status.taken)),
        }
    }

    /// The same for metrics.
    pub fn write(&self, page: &mut Page) {
        let status = self.status();
        page.family(
            "skillgate_config_reloads_total",
            "counter",
            "Reloads by outcome (taken, refused).",
        );
        page.sample(&[("outcome", "taken")], status.taken as f64);
        page.sample(&[("outcome", "refused")], status.refused as f64);
        page.family(
            "skillgate_config_last_reload_successful",
            "gauge",
            "0 when the last reload was refused and what is in force is older than it.",
        );
        page.sample(&[], f64::from(status.error.is_none()));
    }
}

impl Reload {
    /// From the configuration that the gateway has started with.
    pub fn new(config: Config, read: Read, parts: Vec<Box<dyn Part>>) -> Self {
        Reload(Arc::new(Inner {
            read,
            parts,
            config: Mutex::new(config),
            report: Report::default(),
        }))
    }

    /// How the last one went.
    pub fn report(&self) -> Report {
        self.0.report.clone()
    }

    /// Takes everything as it is now, or nothing. Blocks; not for an async thread.
    ///
    /// # Errors
    /// What was wrong; what was in force before still is.
    pub fn now(&self) -> Result<(), String> {
        let mut in_force = lock(&self.0.config);
        let outcome = self.prepare_all();
        let error = outcome.as_ref().err().cloned();
        let result = match outcome {
            Ok((config, installs)) => {
                for section in frozen(&in_force, &config) {
                    tracing::warn!(
                        section,
                        "changed, and read at the start only: restart to use it"
                    );
                }
                installs.into_iter().for_each(|install| install());
                *in_force = config;
                Ok(())
            }
            Err(error) => Err(error),
        };
        drop(in_force);
        let mut status = lock(&self.0.report.0);
        status.at = Some(SystemTime::now());
        match &error {
            None => {
                status.taken += 1;
                tracing::info!(
                    "reloaded: keys, policies, limits, secrets and plugins as they are now"
                );
            }
            Some(reason) => {
                status.refused += 1;
                tracing::error!(
                    reason,
                    "reload refused: serving on with the last good state"
                );
            }
        }
        status.error = error;
        result
    }

    fn prepare_all(&self) -> Result<(Config, Vec<Install>), String> {
        let config = (self.0.read)().map_err(|errors| errors.to_string())?;
        let mut installs = Vec::with_capacity(self.0.parts.len());
        for part in &self.0.parts {
            let install = part
                .prepare(&config)
                .map_err(|why| format!("{}: {why}", part.name()))?;
            installs.push(install);
        }
        Ok((config, installs))
    }

    /// What the watched files look like, without reading them.
    fn fingerprint(&self) -> u64 {
        let config = lock(&self.0.config);
        let mut paths: Vec<PathBuf> = config.file.iter().cloned().collect();
        for part in &self.0.parts {
            paths.extend(part.watched(&config));
        }
        drop(config);
        fingerprint(&paths)
    }

    /// Reloads on every SIGHUP, and when the watched files have changed and then stood still for `interval`: a
    /// half-written change is not taken. `interval` zero: on SIGHUP only. Never ends.
    pub async fn follow(self, mut hangup: Signal, interval: Duration) {
        let mut seen = self.blocking(Reload::fingerprint).await;
        let mut before = seen;
        loop {
            let asked = tokio::select! {
                _ = hangup.recv() => true,
                () = tokio::time::sleep(interval), if !interval.is_zero() => false,
            };
            let looks = self.blocking(Reload::fingerprint).await;
            if asked || (looks != seen && looks == before) {
                // Said in the log and in the status.
                let _ = self.blocking(Reload::now).await;
                seen = looks;
            }
            before = looks;
        }
    }

    /// `None` when the work has panicked: then nothing, or everything, of it has happened.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Reload) -> T + Send + 'static,
    ) -> Option<T> {
        let this = self.clone();
        let outcome = tokio::task::spawn_blocking(move || work(&this)).await;
        outcome
            .inspect_err(|error| tracing::error!(%error, "a reload ended early"))
            .ok()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // What is inside is replaced as a whole, so it is good whenever it can be seen.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The sections that have changed and are not taken.
fn frozen(old: &Config, new: &Config) -> Vec<String> {
    let (old, new) = (old.show_json(), new.show_json());
    let sections = new.as_object().into_iter().flatten();
    sections
        .filter(|(name, value)| !RELOADED.contains(&name.as_str()) && old.get(name) != Some(value))
        .map(|(name, _)| name.clone())
        .collect()
}

/// Names, sizes, times and inodes of everything that is there. A link counts as what it leads to: that is how secrets
/// and configuration are replaced where they are mounted.
fn fingerprint(paths: &[PathBuf]) -> u64 {
    let mut hasher = DefaultHasher::new();
    let mut left = WATCHED_FILES_MAX;
    for path in paths {
        look(path, &mut hasher, &mut left);
    }
    hasher.finish()
}

fn look(path: &Path, hasher: &mut DefaultHasher, left: &mut usize) {
    if *left == 0 {
        return;
    }
    *left -= 1;
    path.hash(hasher);
    let Ok(meta) = std::fs::metadata(path) else {
        return;
    };
    (meta.ino(), meta.len(), meta.mtime(), meta.mtime_nsec()).hash(hasher);
    if !meta.is_dir() {
        return;
    }
    let mut names: Vec<PathBuf> = std::fs::read_dir(path)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    names.sort_unstable();
    // Deep trees and loops of links end at the bound.
    names.iter().for_each(|name| look(name, hasher, left));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Flags, Sources};
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    struct Number {
        name: &'static str,
        good: Arc<AtomicBool>,
        installed: Arc<AtomicU64>,
    }

    impl Part for Number {
        fn name(&self) -> &'static str {
            self.name
        }
        fn prepare(&self, _: &Config) -> Result<Install, String> {
            if !self.good.load(Ordering::Relaxed) {
                return Err("keys.json:3:7: no key".into());
            }
            let installed = self.installed.clone();
            Ok(Box::new(move || {
                installed.fetch_add(1, Ordering::Relaxed);
            }))
        }
        fn watched(&self, _: &Config) -> Vec<PathBuf> {
            Vec::new()
        }
    }

    /// A machine without files.
    fn nothing() -> Sources {
        Sources {
            env: Default::default(),
            secrets: Default::default(),
            read: Box::new(|_| Err(std::io::ErrorKind::NotFound.into())),
            is_dir: Box::new(|_| false),
            exe: None,
        }
    }

    fn config() -> Config {
        Config::load(&nothing(), &Flags::default()).unwrap()
    }

    #[test]
    fn all_of_a_change_or_nothing_of_it() {
        let (good, bad) = (
            Arc::new(AtomicBool::new(true)),
            Arc::new(AtomicBool::new(false)),
        );
        let installed = Arc::new(AtomicU64::new(0));
        let part = |name, good: &Arc<AtomicBool>| -> Box<dyn Part> {
            Box::new(Number {
                name,
                good: good.clone(),
                installed: installed.clone(),
            })
        };
        let reload = Reload::new(
            config(),
            Box::new(|| Ok(config())),
            vec![part("limits", &good), part("keys", &bad)],
        );
        assert_eq!(reload.now().unwrap_err(), "keys: keys.json:3:7: no key");
        assert_eq!(
            installed.load(Ordering::Relaxed),
            0,
            "the first one neither"
        );
        let status = reload.report().status();
        assert_eq!((status.taken, status.refused), (0, 1));
        assert!(
            status
                .error
                .is_some_and(|error| error.contains("keys.json:3:7"))
        );

        bad.store(true, Ordering::Relaxed);
        reload.now().unwrap();
        assert_eq!(installed.load(Ordering::Relaxed), 2);
        let status = reload.report().status();
        assert_eq!((status.taken, status.refused, status.error), (1, 1, None));
    }

    #[test]
    fn a_broken_configuration_is_refused() {
        let read = || {
            let flags = Flags {
                config: Some("/nowhere/at/all.toml".into()),
                ..Flags::default()
            };
            Config::load(&nothing(), &flags)
        };
        let reload = Reload::new(config(), Box::new(read), vec![]);
        assert!(reload.now().unwrap_err().contains("/nowhere/at/all.toml"));
    }

    #[test]
    fn what_is_watched_shows_every_change() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let look = || fingerprint(&[dir.path().to_path_buf(), at("..data-link")]);
        let mut seen = vec![look()];
        let mut changed = |what: &str| {
            let now = look();
            assert!(!seen.contains(&now), "{what}");
            assert_eq!(now, look(), "{what}: it stands still");
            seen.push(now);
        };
        std::fs::create_dir_all(at("one/two")).unwrap();
        changed("directories");
        std::fs::write(at("one/two/a"), "1").unwrap();
        changed("a file in them");
        std::fs::write(at("one/two/a"), "22").unwrap();
        changed("its content");
        std::os::unix::fs::symlink("one", at("..data-link")).unwrap();
        changed("a link");
        std::fs::create_dir(at("three")).unwrap();
        std::fs::remove_file(at("..data-link")).unwrap();
        std::os::unix::fs::symlink("three", at("..data-link")).unwrap();
        changed("where the link leads");
        std::fs::remove_dir_all(at("one")).unwrap();
        changed("nothing left");
    }

    #[test]
    fn a_loop_of_links_ends() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(".", dir.path().join("again")).unwrap();
        fingerprint(&[dir.path().to_path_buf()]);
    }
}

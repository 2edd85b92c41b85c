//! Takes changed keys, policies, limits, secrets and plugins while the gateway serves: all of a change, or nothing of it.
//!
//! On SIGHUP, or when a watched file has changed, the configuration is read again and every [`Part`] prepares itself.
//! Only when all have succeeded is anything installed; else the gateway goes on with what it had, says so in the log,
//! and keeps saying so in [`Status`] until a reload succeeds.
//!
//! Files are looked at before they are read, never after: what changes in between looks new the next time, and costs at
//! most one reload more. So it is at the start, too, which takes seconds, and after a change that was refused.

mod look;
#[cfg(test)]
pub(crate) mod tests;

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::Duration;

use tokio::signal::unix::Signal;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::config::{Config, ConfigErrors};
use crate::telemetry::health::State;
use crate::telemetry::metrics::Page;
use look::{WATCHED_FILES_MAX, fingerprint};

/// How long after a try a part that is lost is tried again, and so is what the machine had no room for.
const LOST_AGAIN: Duration = Duration::from_secs(60);
/// One that goes on for longer than this, or the look before it, is shown: something that it reads hangs, a disk or a network,
/// and until it has ended nothing else is taken.
const SLOW_AFTER: Duration = Duration::from_secs(60);
/// What these sections say beyond the parts' own is read once, at the start.
const RELOADED: [&str; 5] = ["auth", "plugins", "policy", "rate_limit", "secrets"];

/// Of a reload, or a look before it, that did not begin.
const NO_THREAD: &str = "the system has no thread for it (ulimit -u, pids.max): it is tried again";

type Step = Box<dyn FnOnce() + Send>;

/// What was prepared, and how it is put in place.
pub struct Install {
    before: Option<Step>,
    put: Step,
}

impl Install {
    /// `put` puts it in place. Cannot fail, and does not wait: what is asked in between meets a half of two.
    pub fn new(put: impl FnOnce() + Send + 'static) -> Self {
        Install {
            before: None,
            put: Box::new(put),
        }
    }

    /// `before` comes when all is prepared and before anything of it is in place, that of other parts included. It cannot fail
    /// either, and may wait, for a disk: all that was in force is in force still, but a store that has changed hands.
    #[must_use]
    pub fn preceded_by(self, before: impl FnOnce() + Send + 'static) -> Self {
        Install {
            before: Some(Box::new(before)),
            ..self
        }
    }

    /// All of them, in their order.
    pub(crate) fn all(installs: Vec<Install>) {
        let (before, put): (Vec<_>, Vec<_>) =
            installs.into_iter().map(|it| (it.before, it.put)).unzip();
        before.into_iter().flatten().for_each(|before| before());
        put.into_iter().for_each(|put| put());
    }
}

/// Something of the gateway that can be changed while it serves.
pub(crate) trait Part: Send + Sync {
    /// For the log.
    fn name(&self) -> &'static str;

    /// Reads and checks everything, and changes nothing yet. May take its time.
    ///
    /// # Errors
    /// What is wrong, with file and line where there is one.
    fn prepare(&self, config: &Config) -> Result<Install, String>;

    /// Whether what it has refused last says nothing of what is written: the machine lacked something, such as a process or a
    /// thread. It is tried again.
    fn is_short(&self) -> bool {
        false
    }

    /// Whether it has nothing in force any more, or not on the disk what has to be there, although it should have.
    fn is_lost(&self) -> bool {
        false
    }

    /// Tries to get back what was lost, as it was in force before, without regard to the other parts and to what is written now.
    ///
    /// # Errors
    /// Why it is still lost.
    fn recover(&self) -> Result<(), String> {
        Ok(())
    }

    /// The files and directories that it reads. Asked before there is a part: the start looks at them before it reads.
    fn watched(config: &Config) -> Vec<PathBuf>
    where
        Self: Sized;
}

/// How the last reload went.
#[derive(Debug, Clone, Default)]
pub(crate) struct Status {
    /// Reloads that were taken since the start.
    pub taken: u64,
    /// Reloads that were refused since the start.
    pub refused: u64,
    /// Why the last one was refused; `None` when it was taken.
    pub error: Option<String>,
    /// Not because of what is written: it may be taken when it is tried again.
    pub is_passing: bool,
    /// Since when one goes on, or a look at the files.
    pub since: Option<Instant>,
}

/// Reads the configuration as the program did when it started.
pub(crate) type Read = Box<dyn Fn() -> Result<Config, ConfigErrors> + Send + Sync>;

/// What all parts together read.
pub(crate) type Watched = fn(&Config) -> Vec<PathBuf>;

/// Where configurations come from, and which files they name.
pub(crate) struct Source {
    read: Read,
    watched: Watched,
}

/// A configuration, and what the files that it names looked like before it and they were read.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    /// As it was read.
    pub config: Config,
    looks: u64,
}

/// Reloads. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Reload(Arc<Inner>);

struct Inner {
    source: Source,
    parts: Vec<Box<dyn Part>>,
    /// With which the gateway has started. What of it is read then alone is in force until the end.
    started_with: Config,
    /// Held during a reload, so that there is one at a time.
    state: Mutex<Known>,
    report: Report,
    /// That there is more than is looked at has been said.
    said: Once,
}

struct Known {
    in_force: Seen,
    /// What was read last, if it was refused. Its files are watched too: one that was missing may come.
    refused: Option<Seen>,
}

/// How the last reload went. Cheap to clone, and holds on to none of the parts, so that they can end while somebody
/// still asks.
#[derive(Debug, Clone, Default)]
pub(crate) struct Report(Arc<Mutex<Status>>);

/// Why one is refused.
struct Refusal {
    why: String,
    is_passing: bool,
}

impl From<String> for Refusal {
    fn from(why: String) -> Self {
        let is_passing = false;
        Refusal { why, is_passing }
    }
}

/// See [`Report::begin`].
struct GoesOn<'a>(&'a Report);

impl Drop for GoesOn<'_> {
    fn drop(&mut self) {
        lock(&self.0.0).since = None;
    }
}

impl fmt::Debug for Install {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Install").finish_non_exhaustive()
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").finish_non_exhaustive()
    }
}

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
    pub(crate) fn status(&self) -> Status {
        lock(&self.0).clone()
    }

    fn refuse(&self, refusal: Refusal) {
        let Refusal { why, is_passing } = refusal;
        // Whoever has read the line finds it in the status.
        let mut status = lock(&self.0);
        tracing::error!(
            reason = why,
            "reload refused: serving on with the last good state, and keys and secrets of before still count"
        );
        status.refused += 1;
        (status.error, status.is_passing) = (Some(why), is_passing);
    }

    fn is_passing(&self) -> bool {
        lock(&self.0).is_passing
    }

    /// Something of it begins, and goes on until what this gives is dropped.
    fn begin(&self) -> GoesOn<'_> {
        lock(&self.0).since = Some(Instant::now());
        GoesOn(self)
    }

    /// The same for `/readyz?verbose`. A refused one does not keep the gateway from being ready: it serves on.
    pub(crate) fn state(&self) -> State {
        let status = self.status();
        let goes_on = status.since.map_or(Duration::ZERO, |since| since.elapsed());
        if goes_on >= SLOW_AFTER {
            let s = goes_on.as_secs();
            return State::Impaired(format!(
                "it has not come to an end for {s} s, the last good state is kept: a disk or a network that it reads from hangs?"
            ));
        }
        match status.error {
            Some(why) => State::Impaired(format!(
                "refused, the last good state is kept, and keys and secrets of before still count: {why}"
            )),
            None => State::Well(format!("{} taken", status.taken)),
        }
    }

    /// The same for metrics.
    pub(crate) fn write(&self, page: &mut Page) {
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

impl Source {
    /// `watched`: what the parts read with a configuration.
    pub(crate) fn new(read: Read, watched: Watched) -> Self {
        Source { read, watched }
    }

    /// Reads a configuration, after a look at its files. Blocks for as long as that takes.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub(crate) fn read(&self) -> Result<Seen, ConfigErrors> {
        // Only a configuration says which files to look at, its own first of all. So it is read for that, and again
        // after the look: the second one counts. If it names others than the first, the next look will differ.
        let (looks, _) = self.looks(&(self.read)()?);
        let config = (self.read)()?;
        Ok(Seen { config, looks })
    }

    /// What the files of a configuration look like now, without reading them, and the first directory of which that is not all.
    fn looks(&self, config: &Config) -> (u64, Option<PathBuf>) {
        let mut paths = config.looked_for.clone();
        paths.extend((self.watched)(config));
        let (looks, beyond) = fingerprint(&paths, WATCHED_FILES_MAX);
        (looks, beyond.map(Path::to_owned))
    }
}

impl Reload {
    /// From the configuration that the gateway has started with, and what was seen before that.
    pub(crate) fn new(seen: Seen, source: Source, parts: Vec<Box<dyn Part>>) -> Self {
        Reload(Arc::new(Inner {
            source,
            parts,
            started_with: seen.config.clone(),
            state: Mutex::new(Known {
                in_force: seen,
                refused: None,
            }),
            report: Report::default(),
            said: Once::new(),
        }))
    }

    /// How the last one went.
    pub(crate) fn report(&self) -> Report {
        self.0.report.clone()
    }

    /// Takes everything as it is now, or nothing. Blocks; not for an async thread.
    ///
    /// # Errors
    /// What was wrong; what was in force before still is.
    pub(crate) fn now(&self) -> Result<(), String> {
        let known = &mut *lock(&self.0.state);
        let _goes_on = self.0.report.begin();
        let lost_before = self.lost();
        // It is refused like any other: a mistake of ours must not pass for a reload that nobody asked for.
        let taken = catch_unwind(AssertUnwindSafe(|| self.take(known)));
        let taken = taken.unwrap_or_else(|panic| Err(panicked(&*panic).into()));
        let result = match taken {
            Ok(()) => {
                let mut status = lock(&self.0.report.0);
                tracing::info!(
                    "reloaded: keys, policies, limits, secrets and plugins as they are now"
                );
                status.taken += 1;
                (status.error, status.is_passing) = (None, false);
                Ok(())
            }
            Err(refusal) => {
                let why = refusal.why.clone();
                self.0.report.refuse(refusal);
                Err(why)
            }
        };
        // What was well before, has just been put in place, and could not be kept, is not tried twice at once.
        let lost = match result {
            Ok(()) => lost_before,
            Err(_) => self.lost(),
        };
        self.recover(lost);
        result
    }

    /// Tries again what is lost. What was refused may be what brings it back, so all of that is tried again, too, if it `stands`
    /// still.
    fn again(&self, stands: bool) {
        // One that did not begin has read nothing.
        let is_refused = lock(&self.0.state).refused.is_some() || self.0.report.is_passing();
        if stands && is_refused {
            // Said in the log and in the status.
            let _ = self.now();
            return;
        }
        let _one_at_a_time = lock(&self.0.state);
        let _goes_on = self.0.report.begin();
        self.recover(self.lost());
    }

    fn lost(&self) -> Vec<&dyn Part> {
        let parts = self.0.parts.iter().map(AsRef::as_ref);
        parts.filter(|part| part.is_lost()).collect()
    }

    /// Whether or not the rest of a reload is taken: neither keeps the other from it.
    fn recover(&self, lost: Vec<&dyn Part>) {
        // A reload may have brought it back.
        for part in lost.into_iter().filter(|part| part.is_lost()) {
            let name = part.name();
            let recovered = catch_unwind(AssertUnwindSafe(|| part.recover()));
            match recovered.unwrap_or_else(|panic| Err(panicked(&*panic))) {
                Ok(()) => tracing::info!(part = name, "is again as it should be"),
                Err(reason) => tracing::error!(part = name, reason, "is still not as it should be"),
            }
        }
    }

    fn take(&self, known: &mut Known) -> Result<(), Refusal> {
        let source = &self.0.source;
        // Whatever comes of it, it is not tried again before something has changed from here on.
        known.refused = None;
        known.in_force.looks = self.looks(&known.in_force.config);
        let seen = source.read().map_err(|errors| errors.to_string())?;
        let config = &known.refused.insert(seen).config;
        let mut installs = Vec::with_capacity(self.0.parts.len());
        for part in &self.0.parts {
            let install = part.prepare(config).map_err(|why| Refusal {
                why: format!("{}: {why}", part.name()),
                is_passing: part.is_short(),
            })?;
            installs.push(install);
        }
        for section in frozen(&self.0.started_with, config) {
            tracing::warn!(
                section,
                "changed, and read at the start only: restart to use it"
            );
        }
        Install::all(installs);
        if let Some(taken) = known.refused.take() {
            known.in_force = taken;
        }
        Ok(())
    }

    /// As [`Source::looks`], and says what is not looked at: not there, since the first look is before there is a log.
    fn looks(&self, config: &Config) -> u64 {
        let (looks, beyond) = self.0.source.looks(config);
        if let Some(dir) = beyond {
            self.0.said.call_once(|| {
                tracing::warn!(
                    dir = %dir.display(),
                    "has more than {WATCHED_FILES_MAX} files: that one of the others changes is seen on SIGHUP only"
                );
            });
        }
        looks
    }

    /// What the watched files look like, if that is new.
    fn changed(&self) -> Option<Vec<u64>> {
        let known = lock(&self.0.state);
        let _goes_on = self.0.report.begin();
        let all = || std::iter::once(&known.in_force).chain(&known.refused);
        let look = |seen: &Seen| self.looks(&seen.config);
        let looks: Vec<u64> = all().map(look).collect();
        let is_new = all().map(|seen| seen.looks).ne(looks.iter().copied());
        is_new.then_some(looks)
    }

    /// Reloads on every SIGHUP, and when the watched files have changed and then stood still for `interval`: a
    /// half-written change is not taken. Every [`LOST_AGAIN`] it tries again what is lost, and what the machine had no room for.
    /// `interval` zero: on SIGHUP only, and what that has asked for, as it was when it was read: what is edited later waits for the
    /// next one.
    /// Ends with `stop`, and not in the middle of a reload: that is on a thread, which nothing can call back.
    pub(crate) async fn follow(
        self,
        mut hangup: Signal,
        interval: Duration,
        stop: impl Future<Output = ()>,
    ) {
        let mut stop = std::pin::pin!(stop);
        let (mut before, mut tried) = (None, Instant::now());
        // A SIGHUP for which nothing has been read yet. A look that could not begin: the next one comes later, as each of them costs
        // the log a panic of the runtime's.
        let (mut is_unread, mut is_blind) = (false, false);
        loop {
            let pause = if is_blind {
                interval.max(LOST_AGAIN)
            } else {
                interval
            };
            let asked = tokio::select! {
                biased;
                () = &mut stop => return,
                _ = hangup.recv() => true,
                () = tokio::time::sleep(pause), if !interval.is_zero() => false,
                () = tokio::time::sleep_until(tried + LOST_AGAIN), if self.0.report.is_passing() => false,
            };
            let looked = self.blocking(Reload::changed).await;
            if looked.is_err() && !is_blind {
                tracing::error!(reason = NO_THREAD, "cannot look for changes");
            }
            is_blind = looked.is_err();
            // Not where nobody has looked.
            let stands = matches!(looked, Ok(Some(None)));
            let changed = looked.ok().flatten().flatten();
            let is_wanted = !interval.is_zero() || is_unread;
            let is_new = is_wanted && changed.is_some() && changed == before;
            let is_lost = || !self.lost().is_empty();
            let begun = if asked || is_new {
                // Said in the log and in the status.
                Some(self.blocking(|reload| drop(reload.now())).await)
            } else if tried.elapsed() >= LOST_AGAIN && (self.0.report.is_passing() || is_lost()) {
                Some(self.blocking(move |reload| reload.again(stands)).await)
            } else {
                None
            };
            if let Some(begun) = begun {
                tried = Instant::now();
                if begun.is_err() {
                    is_unread |= asked;
                    self.0.report.refuse(Refusal {
                        why: NO_THREAD.into(),
                        is_passing: true,
                    });
                } else if asked || is_new || stands {
                    is_unread = false;
                }
            }
            before = changed;
        }
    }

    /// `None` when the work has panicked.
    ///
    /// # Errors
    /// There is no thread for it, and it is not begun.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Reload) -> T + Send + 'static,
    ) -> Result<Option<T>, NoThread> {
        let this = self.clone();
        let (done, outcome) = oneshot::channel();
        let work = Arc::new(Mutex::new(Some(work)));
        let taken = work.clone();
        let work_on = move || {
            // One that is forsaken stays in the runtime's queue.
            let Some(work) = lock(&taken).take() else {
                return;
            };
            // Whoever asked may have ended.
            let _ = done.send(work(&this));
        };
        // Without a thread of its own, and of the system's, the runtime panics.
        let begun = catch_unwind(AssertUnwindSafe(|| {
            drop(tokio::task::spawn_blocking(work_on));
        }));
        if begun.is_err() && lock(&work).take().is_some() {
            return Err(NoThread);
        }
        let outcome = outcome.await;
        Ok(outcome
            .inspect_err(|_| tracing::error!("a reload ended early"))
            .ok())
    }
}

/// See [`NO_THREAD`].
struct NoThread;

/// The log has the place, as of every panic.
fn panicked(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let text = text.unwrap_or("no message");
    format!("it ended in a panic, a mistake of this program that should be reported: {text}")
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // What is inside is replaced as a whole, so it is good whenever it can be seen.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The sections that differ from those of the start and are not taken.
fn frozen(old: &Config, new: &Config) -> Vec<String> {
    let (old, new) = (old.show_json(), new.show_json());
    let sections = new.as_object().into_iter().flatten();
    sections
        .filter(|(name, value)| !RELOADED.contains(&name.as_str()) && old.get(name) != Some(value))
        .map(|(name, _)| name.clone())
        .collect()
}

//! From the configuration to a policy that can be put in force. Everything that can fail fails here.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::bundle::{self, Bundle, BundleError, Files};
use super::engine::PolicySet;
use super::memo::Memo;
use super::trial::Report;
use super::{Active, Policy, child, signature};
use crate::config::{self, Config, PolicyMode};
use crate::reload::Install;

/// This program. By this name it is found after it was replaced by a newer one, too.
const SELF: &str = "/proc/self/exe";
/// What was enforced last, below `plugins.state_dir`.
const LAST: &str = "policy/last.json";

/// How the policy is, for health and metrics.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Status {
    /// `enforce`, `shadow` or `off`.
    pub mode: &'static str,
    /// What decides; empty with `off`.
    pub revision: String,
    /// sha256 over the files of the bundle; empty with `off`.
    pub sha256: String,
    /// Since it was put in force.
    pub age_s: u64,
    /// Allowed calls on which the two engines disagreed since then.
    pub engine_mismatches: u64,
    /// The same since the start, whatever rules decided.
    pub engine_mismatches_total: u64,
    /// Allowed calls that were to be confirmed in the background and were not, since too many were waiting.
    pub unconfirmed: u64,
    /// Why the disk does not have the place, in the order of revisions, of what was enforced last.
    pub unkept: Option<String>,
}

/// A policy that passed its trial and waits to be put in force.
#[derive(Debug)]
pub struct Prepared {
    pub(super) active: Active,
    /// Where to remember it, where it is to be.
    pub(super) last: Option<PathBuf>,
}

/// The place of a bundle in the order of revisions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Last {
    sequence: u64,
    revision: String,
    sha256: String,
}

impl Prepared {
    /// Names it in logs and records.
    pub fn revision(&self) -> &str {
        self.active
            .set
            .as_ref()
            .map_or("off", |set| set.revision.as_str())
    }

    /// Without a place to remember it.
    #[cfg(test)]
    pub(super) fn of(active: Active) -> Self {
        Prepared { active, last: None }
    }

    /// For who asks it and puts nothing in force: what was last in force is the gateway's to say.
    #[must_use]
    pub fn unremembered(self) -> Self {
        Prepared { last: None, ..self }
    }

    /// Its place in the order of revisions, where it has one that is to be remembered. A shadow only tries its rules: those that
    /// were enforced before it may be enforced again.
    pub(super) fn place(&self) -> Option<Place> {
        if self.active.mode != PolicyMode::Enforce {
            return None;
        }
        let set = self.active.set.as_ref()?;
        Some(Place {
            last: Last {
                sequence: set.sequence?,
                revision: set.revision.clone(),
                sha256: set.digest.clone(),
            },
            file: self.last.clone()?,
        })
    }
}

/// What is to be remembered, and where.
#[derive(Debug, Clone)]
pub(super) struct Place {
    last: Last,
    file: PathBuf,
}

/// The place of what was enforced last, as long as it could not be written, and why. What comes next has to follow it all the same.
#[derive(Debug, Default)]
pub(super) struct UnkeptPlace(Mutex<Option<(Place, String)>>);

impl UnkeptPlace {
    /// So that a restart does not forget it. Where that fails, this process does not forget it at least.
    pub(super) fn remember(&self, place: Place) {
        let file = place.file.display().to_string();
        if let Err(why) = self.write(place) {
            tracing::error!(
                error = why,
                file,
                "the policy's sequence could not be kept: until it is, a restart would take an older bundle"
            );
        }
    }

    /// Not with the lock held: the disk may hang, and whoever asks for health must not.
    fn write(&self, place: Place) -> Result<(), String> {
        let written = write_last(&place.file, &place.last).map_err(|error| error.to_string());
        *self.lock() = written.clone().err().map(|why| (place, why));
        written
    }

    pub(super) fn why(&self) -> Option<String> {
        self.lock().as_ref().map(|(_, why)| why.clone())
    }

    fn place(&self) -> Option<Place> {
        self.lock().as_ref().map(|(place, _)| place.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Option<(Place, String)>> {
        // What is inside is replaced as a whole, so it is good whenever it can be seen.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn write_last(path: &Path, last: &Last) -> std::io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(dir)?;
    let mut file = tempfile::NamedTempFile::new_in(dir)?;
    serde_json::to_writer(&mut file, last)?;
    file.flush()?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    fs::File::open(dir)?.sync_all()
}

pub(super) fn mode_name(mode: PolicyMode) -> &'static str {
    match mode {
        PolicyMode::Off => "off",
        PolicyMode::Shadow => "shadow",
        PolicyMode::Enforce => "enforce",
    }
}

/// Reads, tries and compiles what `[policy]` names. Slow; changes nothing.
///
/// # Errors
/// [`BundleError`] with the file, and the line where there is one.
pub fn prepare(config: &Config) -> Result<Prepared, BundleError> {
    prepare_behind(config, None)
}

fn prepare_behind(config: &Config, unkept: Option<Place>) -> Result<Prepared, BundleError> {
    let policy = &config.policy;
    let set = match policy.mode {
        PolicyMode::Off => None,
        PolicyMode::Shadow | PolicyMode::Enforce => {
            let (set, _) = load(policy, &config.plugins.state_dir, unkept)?;
            Some(Arc::new(set))
        }
    };
    Ok(Prepared {
        active: Active {
            mode: policy.mode,
            confirm: policy.confirm,
            exposure: policy.exposure,
            include_args: policy.include_args.clone(),
            instructions_max: policy.instruction_budget,
            generation: 0,
            memo: Memo::new(set.as_ref().is_none_or(|set| set.may_see_id)),
            set,
            since: Instant::now(),
            mismatches: Arc::default(),
        },
        last: Some(config.plugins.state_dir.join(LAST)),
    })
}

/// Everything that a bundle must pass. `skillgate policy check` asks here too, so that it says what the gateway will say.
pub(super) fn load(
    policy: &config::Policy,
    state_dir: &Path,
    unkept: Option<Place>,
) -> Result<(PolicySet, Report), BundleError> {
    let place = policy.path.display().to_string();
    let files = Files::read(&policy.path)?;
    signature::verify(&files, &policy.keys, &place)?;
    let bundle = Bundle::new(&files, &place)?;
    let report = child::run(Path::new(SELF), &files, &place, policy.instruction_budget).map_err(
        |failed| BundleError {
            is_passing: failed.is_passing,
            ..refused(&place, &failed.problems)
        },
    )?;
    let set =
        PolicySet::compile(&bundle).map_err(|error| BundleError::new(&place, error.to_string()))?;
    tracing::info!(
        revision = set.revision,
        sha256 = set.digest,
        modules = report.modules,
        tests = report.tests,
        goldens = report.goldens,
        "policy passed its trial"
    );
    for warning in &report.warnings {
        tracing::warn!(warning, "something in the policy has no effect");
    }
    if !policy.allow_rollback
        && let Some(last) = last_enforced(state_dir, unkept)?
    {
        follows(&set, &last, &policy.path)?;
    }
    Ok((set, report))
}

/// The place of what was enforced last. Where the disk has not taken it, what the disk has is older news, and may be a higher number:
/// of before a way back that was allowed.
fn last_enforced(state_dir: &Path, unkept: Option<Place>) -> Result<Option<Last>, BundleError> {
    match unkept {
        Some(place) => Ok(Some(place.last)),
        None => read_last(&state_dir.join(LAST)),
    }
}

/// What is wrong, without saying the bundle's path twice.
pub(super) fn refused(place: &str, problems: &[String]) -> BundleError {
    let text = problems.join("\n");
    match text.strip_prefix(place) {
        Some(rest) if rest.starts_with('/') => match rest.split_once(": ") {
            Some((file, message)) => BundleError::new(format!("{place}{file}"), message),
            None => BundleError::new(place, text),
        },
        _ => BundleError::new(place, text),
    }
}

fn read_last(last: &Path) -> Result<Option<Last>, BundleError> {
    let text = match fs::read_to_string(last) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            return Err(BundleError::new(
                last.display(),
                format!("says which policy was in force last, and cannot be read: {error}"),
            ));
        }
    };
    serde_json::from_str(&text).map(Some).map_err(|error| {
        BundleError::new(
            last.display(),
            format!("is broken ({error}); if that is known, remove it"),
        )
    })
}

/// A signature says who made a bundle, not that it is the newest: `metadata.sequence` never goes back, and two
/// contents never share one.
fn follows(set: &PolicySet, last: &Last, path: &Path) -> Result<(), BundleError> {
    let follows = match set.sequence {
        None => false,
        Some(sequence) if sequence == last.sequence => set.digest == last.sha256,
        Some(sequence) => sequence > last.sequence,
    };
    if follows {
        return Ok(());
    }
    let found = set
        .sequence
        .map_or("none".to_owned(), |sequence| sequence.to_string());
    Err(BundleError::new(
        format!("{}/{}", path.display(), bundle::MANIFEST),
        format!(
            "metadata.sequence is {found}, and {} of revision {:?} was in force already: raise it with every change, or allow going back with policy.allow_rollback = true",
            last.sequence, last.revision
        ),
    ))
}

impl Policy {
    /// As [`prepare`], for one that comes behind this one.
    ///
    /// # Errors
    /// As there.
    pub fn prepare_next(&self, config: &Config) -> Result<Prepared, BundleError> {
        prepare_behind(config, self.0.unkept.place())
    }

    /// Whether the disk lacks the place, in the order of revisions, of what was enforced last.
    pub fn is_unkept(&self) -> bool {
        self.0.unkept.place().is_some()
    }

    /// Writes it again.
    ///
    /// # Errors
    /// Why it is still not there.
    pub fn keep(&self) -> Result<(), String> {
        let Some(place) = self.0.unkept.place() else {
            return Ok(());
        };
        let file = place.file.display().to_string();
        self.0.unkept.write(place).map_err(|why| {
            format!("its rules are in force, and their sequence cannot be kept in {file}: {why}")
        })
    }

    /// Puts a prepared policy in force, in a reload. `outdate` hears of the generation of new rules before anything of the reload is
    /// in place, and `in_force` when the rules are.
    ///
    /// Their place in the order of revisions is on the disk before they decide anything: a gateway that ends in between must not
    /// take older ones after that. So it is before the reload, all of it, and no disk that hangs keeps a half of it in force.
    pub fn exchange(
        &self,
        prepared: Prepared,
        outdate: impl FnOnce(u64) + Send + 'static,
        in_force: impl FnOnce() + Send + 'static,
    ) -> Install {
        let (policy, memory, place) = (self.clone(), self.clone(), prepared.place());
        let next = self.next_generation(&prepared);
        Install::new(move || {
            policy.install(prepared);
            in_force();
        })
        .preceded_by(move || {
            if let Some(generation) = next {
                let place = place.into_iter();
                place.for_each(|place| memory.0.unkept.remember(place));
                outdate(generation);
            }
        })
    }
}

/// The files and directories that a policy is read from.
pub fn watched(config: &Config) -> Vec<PathBuf> {
    let policy = &config.policy;
    let keys = policy.keys.iter().map(|key| key.file.clone());
    std::iter::once(policy.path.clone()).chain(keys).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last(sequence: u64) -> Last {
        Last {
            sequence,
            revision: format!("r{sequence}"),
            sha256: format!("digest of {sequence}"),
        }
    }

    /// Else no reload would be taken any more, of the rules in force neither, until the disk is well.
    #[test]
    fn a_way_back_that_the_disk_has_not_taken_counts_and_not_what_the_disk_has() {
        let dir = tempfile::tempdir().unwrap();
        let sequence = |unkept| {
            let enforced = last_enforced(dir.path(), unkept).unwrap();
            enforced.map(|last| last.sequence)
        };
        assert_eq!(sequence(None), None);
        let file = dir.path().join(LAST);
        write_last(&file, &last(8)).unwrap();
        assert_eq!(sequence(None), Some(8));

        // Going back to 5 was allowed, and no directory can be made for it.
        let lost = dir.path().join(LAST).join("beyond");
        let unkept = UnkeptPlace::default();
        unkept.remember(Place {
            last: last(5),
            file: lost,
        });
        assert_eq!(sequence(unkept.place()), Some(5));
        assert_eq!(sequence(None), Some(8), "for who has no process to ask");
    }
}

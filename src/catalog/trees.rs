//! Directories of skills that are kept open. A version never changes, and to ask the store for its directory takes the way to
//! another thread and back: 0.1 ms of a run's answer, where processors have to be woken for it.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, openat, statx};
use skillgate_plugin_host::StorageInstance;
use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::model::{self, Content, Source};
use tokio::sync::OwnedMutexGuard;

use super::reads::Reads;
use super::{Catalog, Error, Skill, broken, given};

/// Directories that are kept. For one more, the oldest of the tenant with the most is let go.
const TREES_MAX: usize = 64;
/// Then the store is asked again, which looks whether what is in it is still what was published: somebody, or the disk, may have
/// changed it.
const ASKED_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// Of skills as they were read, each the one that its store gave then: nobody else's, and of no other store. It does not keep
/// a skill in memory that nobody else does.
#[derive(Debug, Default)]
pub(super) struct Trees(Mutex<Vec<Open>>);

#[derive(Debug)]
struct Open {
    /// Empty for the shelf.
    tenant: String,
    of: Weak<Skill>,
    dir: Arc<OwnedFd>,
    given: Instant,
}

impl Trees {
    fn kept(&self) -> MutexGuard<'_, Vec<Open>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The directory of a skill; `None`: its store has to be asked.
    pub(super) fn open(&self, skill: &Arc<Skill>, now: Instant) -> Option<OwnedFd> {
        // The place of a skill that is gone is nobody else's while this knows of it.
        let is_it = |open: &&Open| Weak::as_ptr(&open.of) == Arc::as_ptr(skill);
        let (kept, given) = {
            let kept = self.kept();
            let open = kept.iter().find(is_it)?;
            (open.dir.clone(), open.given)
        };
        let is_fresh = now.saturating_duration_since(given) < ASKED_AGAIN_AFTER;
        let opened = again(&kept).filter(|_| is_fresh);
        if opened.is_none() {
            self.kept().retain(|open| !Arc::ptr_eq(&open.dir, &kept));
        }
        opened
    }

    /// Keeps what a store has given of a tenant's skill. Gives what is for who asked.
    pub(super) fn keep(
        &self,
        tenant: &str,
        skill: &Arc<Skill>,
        dir: OwnedFd,
        given: Instant,
    ) -> OwnedFd {
        let Some(opened) = again(&dir) else {
            return dir;
        };
        let mut kept = self.kept();
        kept.retain(|open| open.of.strong_count() > 0);
        if kept.len() >= TREES_MAX {
            let of = |open: &Open| kept.iter().filter(|o| o.tenant == open.tenant).count();
            // Of several that are equal it takes the last it sees: the oldest.
            let oldest = (0..kept.len()).rev().max_by_key(|at| of(&kept[*at]));
            if let Some(at) = oldest {
                kept.remove(at);
            }
        }
        kept.push(Open {
            tenant: tenant.to_owned(),
            of: Arc::downgrade(skill),
            dir: Arc::new(dir),
            given,
        });
        opened
    }

    pub(super) fn forget(&self) {
        self.kept().clear();
    }
}

impl Catalog {
    /// The skill's directory, as a sandbox mounts it.
    ///
    /// # Errors
    /// [`Error::Broken`], [`Error::Replaced`], [`Error::Store`].
    pub async fn tree(&self, tenant: &str, skill: &Arc<Skill>) -> Result<Source, Error> {
        let kept = || self.0.trees.open(skill, Instant::now()).map(Source::Fd);
        if let Some(source) = kept() {
            return Ok(source);
        }
        if skill.turn.is_for_nothing() {
            return self.ask(tenant, skill, &mut None).await;
        }
        let turn = skill.turn.take().await?;
        if let Some(source) = kept() {
            return Ok(source);
        }
        if skill.turn.is_for_nothing() {
            drop(turn);
            return self.ask(tenant, skill, &mut None).await;
        }
        let mut turn = Some(turn);
        let asked = self.ask(tenant, skill, &mut turn).await;
        skill.turn.ended(turn, &asked);
        asked
    }

    async fn ask(
        &self,
        tenant: &str,
        skill: &Arc<Skill>,
        turn: &mut Option<Taken>,
    ) -> Result<Source, Error> {
        let source = self.source_of(tenant, skill).await?;
        let given = source
            .skill_tree(tenant, skill.name(), skill.version())
            .await
            .map_err(Error::Store)?;
        // The store that came with this program looks itself, and reads again only what has changed: to read all of it here too
        // would cost a run more than that. The operator's own skills are in no other store, and he changes them as he likes.
        let given = match source.is_ours() {
            true => given,
            false => looked_at(given, skill, self.reads_of(&source), tenant, turn).await?,
        };
        match given {
            Content::Dir(fd) => {
                let owner = self.owner(tenant, skill.name());
                let dir = self.0.trees.keep(owner, skill, fd, Instant::now());
                Ok(Source::Fd(dir))
            }
            Content::Tar(fd, _) => Ok(Source::Tar(fd)),
            Content::Data(_) | Content::File(..) => Err(broken(
                &skill.record,
                "the store answered a directory with a file",
            )),
        }
    }
}

/// Who asks a store for a skill's directory: one at a time. Runs that come meanwhile wait for the same answer: at the end of the
/// minute, and after a start, they come together.
#[derive(Debug, Default)]
pub(super) struct Turn {
    last_failure: Arc<tokio::sync::Mutex<Option<Error>>>,
    failures: AtomicU64,
    gives_archives: AtomicBool,
}

type Taken = OwnedMutexGuard<Option<Error>>;

impl Turn {
    /// What is not kept is asked for by each on its own.
    fn is_for_nothing(&self) -> bool {
        self.gives_archives.load(Ordering::Relaxed)
    }

    /// Waits for who asks. Who goes away without an answer leaves the turn to the next one.
    ///
    /// # Errors
    /// What that one was told: of a store that does not work, many would ask one after the other.
    async fn take(&self) -> Result<Taken, Error> {
        let failures = self.failures.load(Ordering::Acquire);
        let taken = self.last_failure.clone().lock_owned().await;
        match &*taken {
            Some(error) if self.failures.load(Ordering::Acquire) != failures => Err(error.clone()),
            _ => Ok(taken),
        }
    }

    fn ended(&self, taken: Option<Taken>, asked: &Result<Source, Error>) {
        match asked {
            Ok(Source::Tar(_)) => self.gives_archives.store(true, Ordering::Relaxed),
            Ok(_) => {}
            Err(error) if is_of_who_asked(error) => {}
            Err(error) => {
                if let Some(mut taken) = taken {
                    *taken = Some(error.clone());
                    self.failures.fetch_add(1, Ordering::Release);
                }
            }
        }
    }
}

/// One tenant has used up what it may have, its calls that wait among that: it says nothing of another one's.
fn is_of_who_asked(error: &Error) -> bool {
    matches!(error, Error::Store(error) if error.of_tenant)
}

/// What is given, if it is what was published.
async fn looked_at(
    given: Content,
    skill: &Arc<Skill>,
    reads: &Reads,
    tenant: &str,
    turn: &mut Option<Taken>,
) -> Result<Content, Error> {
    let (of, taken) = (skill.clone(), turn.take());
    // A caller who goes away does not end it, so until it ends nobody else begins another one.
    let look = move || {
        let seen = given::is_of(&given, &of.record.files);
        (seen.map(|()| given), taken)
    };
    let outcome = reads.read(tenant, look).await;
    let (seen, taken) = outcome.map_err(|_| broken(&skill.record, "a reader ended early"))?;
    *turn = taken;
    seen.map_err(|why| broken(&skill.record, &why))
}

/// Of a skill that another store has described: that this one has the same. What a call was decided about is what it gets, and
/// nobody has looked at what a new store has under the same name and version.
pub(super) async fn check_same(
    store: &StorageInstance,
    tenant: &str,
    skill: &Skill,
) -> Result<(), Error> {
    let there = match store.keeps_skills() {
        true => store.skill_get(tenant, skill.name(), skill.version()).await,
        false => Err(model::Error::new(abi::E_NOT_FOUND, "it keeps no skills")),
    };
    let is_same = match there {
        Ok(there) => there.tree_sha256 == skill.digest(),
        Err(error) if error.code == abi::E_NOT_FOUND => false,
        Err(error) => return Err(Error::Store(error)),
    };
    is_same.then_some(()).ok_or_else(|| Error::Replaced {
        name: skill.name().to_owned(),
        version: skill.version().to_owned(),
    })
}

/// The same directory, opened for itself: two who read in one and the same descriptor take names from each other. `None`: it
/// has been removed, or cannot be opened here.
///
/// On the event loop, so by what the kernel has in memory as far as can be: `.` of what is open is looked up nowhere, and its links
/// are not asked of a server across a network. That is asked, as before each open, where what the kernel knows of who may read has
/// become too old; a path through `/proc/self/fd` would ask it each time.
fn again(dir: &OwnedFd) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = openat(dir, ".", flags, Mode::empty()).ok()?;
    let known = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let links = statx(&opened, "", known, StatxFlags::NLINK).ok()?.stx_nlink;
    (links > 0).then_some(opened)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Seek as _, SeekFrom};
    use std::os::unix::fs::MetadataExt as _;

    use futures_util::FutureExt as _;
    use skillgate_plugin_sdk::model;

    use super::*;

    fn skill() -> Arc<Skill> {
        let manifest = "name = \"acme.x\"\nversion = \"0.1.0\"\ndescription = \"x\"\nkind = \"instruction\"\nnamespace = \"acme\"\n";
        Arc::new(Skill::unstored(manifest, true).unwrap())
    }

    fn inode(dir: &OwnedFd) -> u64 {
        let dir = File::from(dir.try_clone().unwrap());
        dir.metadata().unwrap().ino()
    }

    #[test]
    fn a_directory_is_kept_for_the_very_skill_until_it_is_removed() {
        let (trees, of) = (Trees::default(), skill());
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("x");
        std::fs::create_dir(&dir).unwrap();
        assert!(trees.open(&of, Instant::now()).is_none());
        let given = trees.keep("t", &of, File::open(&dir).unwrap().into(), Instant::now());
        let later = trees.open(&of, Instant::now()).unwrap();
        assert_eq!(inode(&given), inode(&later));
        // Who reads in the one does not move the other.
        let (mut one, mut other) = (File::from(given), File::from(later));
        one.seek(SeekFrom::Start(1)).unwrap();
        assert_eq!(other.stream_position().unwrap(), 0);
        // Of the same name and version, from another store or for another tenant.
        assert!(trees.open(&skill(), Instant::now()).is_none());
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(trees.open(&of, Instant::now()).is_none());
        assert!(trees.kept().is_empty());
    }

    #[test]
    fn so_many_and_no_more_are_open() {
        let trees = Trees::default();
        let place = tempfile::tempdir().unwrap();
        let skills: Vec<_> = (0..=TREES_MAX).map(|_| skill()).collect();
        for skill in &skills {
            trees.keep(
                "t",
                skill,
                File::open(place.path()).unwrap().into(),
                Instant::now(),
            );
            assert!(trees.kept().len() <= TREES_MAX);
        }
        assert!(trees.open(&skills[0], Instant::now()).is_none());
        assert!(trees.open(&skills[1], Instant::now()).is_some());
        assert!(trees.open(&skills[TREES_MAX], Instant::now()).is_some());
        trees.forget();
        assert!(trees.open(&skills[TREES_MAX], Instant::now()).is_none());
        // Those that nobody has in memory any more are let go.
        trees.keep(
            "t",
            &skills[0],
            File::open(place.path()).unwrap().into(),
            Instant::now(),
        );
        drop(skills);
        let last = skill();
        trees.keep(
            "t",
            &last,
            File::open(place.path()).unwrap().into(),
            Instant::now(),
        );
        assert!(trees.kept().len() == 1 && trees.open(&last, Instant::now()).is_some());
    }

    #[test]
    fn who_runs_many_has_nobody_elses_let_go() {
        let trees = Trees::default();
        let place = tempfile::tempdir().unwrap();
        let keep = |tenant, skill| {
            trees.keep(
                tenant,
                skill,
                File::open(place.path()).unwrap().into(),
                Instant::now(),
            )
        };
        let quiet = skill();
        let many: Vec<_> = (0..2 * TREES_MAX).map(|_| skill()).collect();
        keep("loud", &many[0]);
        keep("quiet", &quiet);
        many.iter()
            .skip(1)
            .for_each(|skill| drop(keep("loud", skill)));
        assert!(trees.open(&quiet, Instant::now()).is_some());
        assert!(trees.kept().len() <= TREES_MAX);
    }

    #[test]
    fn the_store_is_asked_again_after_a_while() {
        let (trees, of) = (Trees::default(), skill());
        let place = tempfile::tempdir().unwrap();
        let given = Instant::now();
        let keep = |at| trees.keep("t", &of, File::open(place.path()).unwrap().into(), at);
        keep(given);
        let later = given + ASKED_AGAIN_AFTER;
        assert!(trees.open(&of, later - Duration::from_millis(1)).is_some());
        assert!(trees.open(&of, later).is_none());
        assert!(trees.kept().is_empty());
        keep(later);
        assert!(trees.open(&of, later).is_some());
    }

    #[tokio::test]
    async fn one_asks_and_the_others_have_the_same_answer() {
        let turn = Turn::default();
        let failed = || {
            let why = broken(&skill().record, "the first answer");
            Err::<Source, _>(why)
        };
        let first = turn.take().await.unwrap();
        let (mut second, mut third) = (Box::pin(turn.take()), Box::pin(turn.take()));
        for waits in [&mut second, &mut third] {
            assert!(waits.now_or_never().is_none());
        }
        turn.ended(Some(first), &failed());
        for waits in [second, third] {
            let told = waits.await.map(drop).unwrap_err();
            assert!(told.to_string().ends_with("the first answer"), "{told}");
        }
        // A refusal that is only that one's leaves the turn to the next; what the store itself says is everybody's.
        let unavailable = || model::Error::new(abi::E_UNAVAILABLE, "the store's answer");
        for (refused, of_one) in [
            (unavailable().of_tenant(), true),
            (unavailable().not_executed().retryable(1000), false),
            (unavailable(), false),
        ] {
            let first = turn.take().await.unwrap();
            let mut second = Box::pin(turn.take());
            assert!((&mut second).now_or_never().is_none());
            turn.ended(Some(first), &Err(Error::Store(refused)));
            assert_eq!(second.await.is_ok(), of_one);
        }
        // Whoever comes after that asks again, and so does the next one where nobody was told anything.
        drop(turn.take().await.unwrap());
        let taken = turn.take().await.unwrap();
        assert!(!turn.is_for_nothing());
        let tar = File::open("/dev/null").unwrap().into();
        turn.ended(Some(taken), &Ok(Source::Tar(tar)));
        assert!(turn.is_for_nothing());
    }
}

//! What a case works with: its directory, the plugin, instances of it, and a note of every step, for when there is no
//! verdict.

use std::fs::{DirBuilder, File, OpenOptions};
use std::future::Future;
use std::io::Write as _;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use skillgate_plugin_host::{
    Isolation, Pin, Plugin, ProcessSettings, SandboxInstance, StorageInstance,
};
use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::model::{CreateRequest, Error, Result};
use tokio::runtime::Runtime;

use crate::raw::Kind;
use crate::run::{SANITIZERS, STEPS};
use crate::watchdog::ANSWERED;
use crate::{About, Figure, Job, KitError, Verdict};

/// Longest that one call may take, unless a case says otherwise.
pub(crate) const CALL_LIMIT: Duration = Duration::from_secs(20);
/// So much of what a call takes may be its way: a plugin that is farther away is a slow one.
const FAR_MAX: Duration = Duration::from_millis(250);
/// How long is listened for what must not come any more: a second completion, a call after destroy().
pub(crate) const LISTEN: Duration = Duration::from_millis(150);
/// How long the kit's own threads may take to end, when there is nothing more to do.
const END_LIMIT: Duration = Duration::from_secs(2);
/// The kit's children are the gateway's: a cancelled call may go on for this long before its process is killed.
const CANCEL_GRACE: Duration = Duration::from_secs(10);
/// Of a case's directory: in it each instance has its `state_dir`. No instance has this name.
const STATE: &str = "state";

/// Why a case does not pass.
#[derive(Debug)]
pub(crate) enum Stop {
    /// Not as the header demands: what was seen, at which function (`None`: the case's own).
    Failed {
        function: Option<&'static str>,
        seen: String,
    },
    /// A call that had to succeed did not; the last step says which.
    Call(Error),
    /// Nothing to check here.
    Skipped(String),
}

pub(crate) type Done<T = ()> = std::result::Result<T, Stop>;

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Stop::Call(error)
    }
}

impl From<std::io::Error> for Stop {
    fn from(error: std::io::Error) -> Self {
        failed(format!("the kit itself cannot go on: {error}"))
    }
}

/// A failure of what the case is about.
pub(crate) fn failed(seen: impl Into<String>) -> Stop {
    Stop::Failed {
        function: None,
        seen: seen.into(),
    }
}

/// A failure of one function.
pub(crate) fn failed_at(function: &'static str, seen: impl Into<String>) -> Stop {
    Stop::Failed {
        function: Some(function),
        seen: seen.into(),
    }
}

/// Fails with `seen` unless it is so.
pub(crate) fn demand(so: bool, seen: impl FnOnce() -> String) -> Done {
    if so { Ok(()) } else { Err(failed(seen())) }
}

pub(crate) struct Bench {
    pub(crate) job: Job,
    pub(crate) dir: PathBuf,
    steps: File,
    answered: File,
    /// What of the seconds that were waited for answers is not in there yet.
    waited: Mutex<Duration>,
    last_step: Mutex<String>,
    about: Mutex<Option<About>>,
    figures: Mutex<Vec<Figure>>,
    runtime: Runtime,
}

impl Bench {
    pub(crate) fn new(job: Job, dir: &Path) -> std::result::Result<Self, KitError> {
        let notes = |name| {
            let file = OpenOptions::new()
                .create(true)
                .append(true)
                .open(dir.join(name));
            file.map_err(KitError::os("note a case's steps"))
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .map_err(KitError::os("start threads"))?;
        Ok(Bench {
            job,
            dir: dir.to_owned(),
            steps: notes(STEPS)?,
            answered: notes(ANSWERED)?,
            waited: Mutex::default(),
            last_step: Mutex::default(),
            about: Mutex::default(),
            figures: Mutex::default(),
            runtime,
        })
    }

    /// Notes what comes next.
    pub(crate) fn step(&self, what: impl Into<String>) {
        let what = what.into().replace('\n', " ");
        // A step that is not noted is missed in a message, nowhere else.
        let _ = (&self.steps).write_all(format!("{what}\n").as_bytes());
        *lock(&self.last_step) = what;
    }

    pub(crate) fn last_step(&self) -> String {
        lock(&self.last_step).clone()
    }

    pub(crate) fn figure(&self, name: &str, value: f64) {
        lock(&self.figures).push(Figure {
            name: name.to_owned(),
            value,
        });
    }

    pub(crate) fn tell_about(&self, about: About) {
        *lock(&self.about) = Some(about);
    }

    pub(crate) fn end(self) -> Verdict {
        let verdict = Verdict {
            about: lock(&self.about).take(),
            figures: std::mem::take(&mut lock(&self.figures)),
            ..Verdict::default()
        };
        // Its threads are gone then, and are no leak. One that a plugin keeps busy must not keep the verdict.
        self.runtime.shutdown_timeout(END_LIMIT);
        verdict
    }

    /// The plugin in this very process.
    pub(crate) fn load(&self) -> Done<Plugin> {
        self.step("loading it");
        Plugin::load_alone(&self.job.plugin).map_err(|error| failed(error.to_string()))
    }

    /// The plugin where this check wants its calls to go.
    pub(crate) fn open(&self, kind: Kind) -> Done<Plugin> {
        if self.job.own_process {
            self.open_apart(kind)
        } else {
            self.load()
        }
    }

    /// The plugin in a process of its own.
    pub(crate) fn open_apart(&self, kind: Kind) -> Done<Plugin> {
        self.step("loading it into a process of its own");
        let args: Vec<&str> = self.job.host_args.iter().map(String::as_str).collect();
        let settings = ProcessSettings {
            program: self.job.program.clone(),
            // Its accesses are looked at wherever it is.
            environment: SANITIZERS
                .iter()
                .filter_map(|name| Some((name.into(), std::env::var_os(name)?)))
                .collect(),
            no_new_privs: kind == Kind::Storage,
            cancel_grace: CANCEL_GRACE,
            ..ProcessSettings::this_program(&args)
        };
        Plugin::open(
            &self.job.plugin,
            &Pin::default(),
            Isolation::Process,
            &settings,
        )
        .map_err(|error| failed(error.to_string()))
    }

    /// What the plugin offers; each is checked.
    pub(crate) fn kinds(&self, plugin: &Plugin) -> Vec<Kind> {
        let offered = [
            (plugin.offers_storage(), Kind::Storage),
            (plugin.offers_sandbox(), Kind::Sandbox),
        ];
        let kinds = offered.into_iter().filter(|(offered, _)| *offered);
        kinds.map(|(_, kind)| kind).collect()
    }

    /// What an instance is made from; two of the same name share what they keep.
    pub(crate) fn request(&self, instance: &str) -> Done<CreateRequest> {
        let scratch = self.dir.join(instance);
        std::fs::create_dir_all(&scratch)?;
        // Not in there, which is the plugin's alone, and closed to others, as the gateway makes it.
        let state = self.dir.join(STATE).join(instance);
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&state)?;
        let path = scratch.display().to_string();
        // The path goes into JSON text, whose quotes are there already.
        let quoted = serde_json::Value::from(path).to_string();
        let bare = quoted.get(1..quoted.len() - 1).unwrap_or_default();
        let config = self.job.config_json.replace("${scratch}", bare);
        Ok(CreateRequest {
            instance_id: format!("check-{instance}"),
            state_dir: state.display().to_string(),
            config_json: config.into_bytes(),
        })
    }

    /// Where an instance of this name may leave files: its `state_dir`, and what its configuration calls `${scratch}`.
    pub(crate) fn places(&self, instance: &str) -> [PathBuf; 2] {
        [self.dir.join(STATE).join(instance), self.dir.join(instance)]
    }

    pub(crate) fn storage(&self) -> Done<Store<'_>> {
        self.storage_of(&self.open(Kind::Storage)?, "a")
    }

    pub(crate) fn storage_of(&self, plugin: &Plugin, name: &str) -> Done<Store<'_>> {
        let request = self.request(name)?;
        self.step(format!("create of storage {name}"));
        let instance = self.wait(plugin.storage(request))?;
        Ok(Store {
            bench: self,
            instance,
        })
    }

    pub(crate) fn sandbox(&self) -> Done<Arc<SandboxInstance>> {
        self.sandbox_of(&self.open(Kind::Sandbox)?, "a")
    }

    pub(crate) fn sandbox_of(&self, plugin: &Plugin, name: &str) -> Done<Arc<SandboxInstance>> {
        let request = self.request(name)?;
        self.step(format!("create of sandbox {name}"));
        Ok(self.wait(plugin.sandbox(request))?)
    }

    /// Waits until an instance that was given up is destroyed: before that a singleton has no other.
    pub(crate) fn until_destroyed(&self, destroyed: impl Future<Output = ()>) -> Done {
        self.step("destroy");
        let ended = async {
            destroyed.await;
            Ok(())
        };
        Ok(self.wait(ended)?)
    }

    /// Waits for one call, no longer than [`CALL_LIMIT`].
    pub(crate) fn wait<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        self.wait_within(CALL_LIMIT, call)
    }

    pub(crate) fn wait_within<T>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let began = Instant::now();
        self.runtime.block_on(async {
            match tokio::time::timeout(limit, call).await {
                Ok(answer) => {
                    self.is_answered_after(began.elapsed());
                    answer
                }
                Err(_) => Err(Error::new(
                    abi::E_DEADLINE,
                    format!("no answer within {} s", limit.as_secs()),
                )),
            }
        })
    }

    /// Tells the watchdog: an answer that was waited for is no hanging.
    fn is_answered_after(&self, time: Duration) {
        let mut waited = lock(&self.waited);
        *waited += time.min(FAR_MAX);
        while *waited >= Duration::from_secs(1) {
            *waited -= Duration::from_secs(1);
            // One that is not noted makes the case's limit no longer.
            let _ = (&self.answered).write_all(b".");
        }
    }

    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> tokio::task::JoinHandle<T> {
        self.runtime.spawn(work)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A storage instance whose calls are waited for.
pub(crate) struct Store<'a> {
    pub(crate) bench: &'a Bench,
    pub(crate) instance: Arc<StorageInstance>,
}

impl Store<'_> {
    /// Makes one call and notes it.
    pub(crate) fn call<T, F: Future<Output = Result<T>>>(
        &self,
        step: impl Into<String>,
        call: impl FnOnce(Arc<StorageInstance>) -> F,
    ) -> Result<T> {
        self.bench.step(step);
        self.bench.wait(call(Arc::clone(&self.instance)))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn bench(dir: &Path, config_json: &str) -> Bench {
        let job = Job {
            case: "contract/answers".into(),
            plugin: PathBuf::new(),
            config_json: config_json.into(),
            own_process: false,
            full: false,
            program: PathBuf::new(),
            host_args: Vec::new(),
        };
        Bench::new(job, dir).unwrap()
    }

    #[test]
    fn scratch_is_an_empty_directory_and_state_dir_a_private_one() {
        let dir = tempfile::tempdir().unwrap();
        let bench = bench(dir.path(), "${scratch}");
        let mut places = std::collections::HashSet::new();
        for instance in ["a", "b"] {
            let request = bench.request(instance).unwrap();
            let scratch = PathBuf::from(String::from_utf8(request.config_json).unwrap());
            let found: Vec<_> = std::fs::read_dir(&scratch).unwrap().flatten().collect();
            assert!(found.is_empty(), "{instance}: {found:?}");
            let mode = std::fs::metadata(&request.state_dir).unwrap().mode();
            assert_eq!(mode & 0o7777, 0o700, "{instance}");
            assert!(places.insert(scratch) && places.insert(request.state_dir.into()));
        }
        // The next life of an instance finds what the one before has kept.
        let kept = |request: CreateRequest| Path::new(&request.state_dir).join("kept");
        std::fs::write(kept(bench.request("a").unwrap()), "").unwrap();
        assert!(kept(bench.request("a").unwrap()).exists());
        assert!(!kept(bench.request("b").unwrap()).exists());
    }
    #[test]
    fn what_answers_take_is_noted_for_the_watchdog() {
        let dir = tempfile::tempdir().unwrap();
        let bench = bench(dir.path(), "");
        let noted = || std::fs::metadata(dir.path().join(ANSWERED)).unwrap().len();
        for _ in 0..25 {
            bench.is_answered_after(Duration::from_millis(40));
        }
        assert_eq!(noted(), 1);
        // A slow one is not far away.
        for _ in 0..3 {
            bench.is_answered_after(CALL_LIMIT);
        }
        assert_eq!(noted(), 1);
        bench.is_answered_after(CALL_LIMIT);
        assert_eq!(noted(), 2);
        let late = async {
            tokio::time::sleep(CALL_LIMIT).await;
            Ok(())
        };
        let late = bench.wait_within(FAR_MAX, late);
        assert_eq!(late.unwrap_err().code, abi::E_DEADLINE);
        assert_eq!(*lock(&bench.waited), Duration::ZERO);
        let answer = async {
            tokio::time::sleep(LISTEN).await;
            Ok(())
        };
        bench.wait(answer).unwrap();
        assert!(*lock(&bench.waited) >= LISTEN);
    }
}

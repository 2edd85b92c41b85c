//! The plugin: an instance, its runs, its health.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use skillgate_plugin_sdk::blocking::Sandbox;
use skillgate_plugin_sdk::model::{
    CreateRequest, Error, Health, Result, RunRequest, RunResult, SandboxCaps,
};
use skillgate_plugin_sdk::{Host, Level, Reply, RunServices, abi};

use crate::codes::Codes;
use crate::config::{Config, Namespaces, ZygotePer};
use crate::guard::{Guard, Without};
use crate::interpreter::Interpreter;
use crate::mounts;
use crate::pool::{FIRST_ZYGOTE_WAIT, PoolRules, PoolState};
use crate::run::{self, Around, Handle, Ways};
use crate::supervisor::{self, Supervisor};
use crate::sys;
use crate::wire::{Hello, Layer, LayerReport, LayerState, ZygoteRules};

/// Namespaces and directories of control groups that are kept where few children wait: as many runs at once make no more.
const KEPT_MIN: usize = 32;
/// Who asks for the health while a launcher starts is answered so much later at most.
const HEALTH_WAIT: Duration = Duration::from_secs(1);
const MAX_TIMEOUT_MS: u64 = 24 * 60 * 60 * 1000;

/// Runs Python in a process with namespaces, a root, limits and filters of its own.
#[derive(Debug)]
pub struct SandboxProcess {
    host: Host,
    state_dir: PathBuf,
    supervisor: Supervisor,
    runs: Mutex<Runs>,
    all_over: Condvar,
    counts: Counts,
    ways: Ways,
    codes: Codes,
    processors: u32,
    source: InterpreterSource,
}

/// Where the interpreters of runs come from, in the words of the configuration.
#[derive(Debug)]
struct InterpreterSource(String);

impl InterpreterSource {
    fn of(config: &Config, rules: PoolRules) -> Self {
        if config.fresh {
            return Self("every run starts an interpreter of its own (`fresh`)".into());
        }
        let whose = match config.zygote_per {
            ZygotePer::Gateway => "one warmed interpreter".to_owned(),
            ZygotePer::Tenant => {
                format!(
                    "a warmed interpreter per tenant, {} at most",
                    config.zygotes_max
                )
            }
        };
        let of_each = match config.zygote_per {
            ZygotePer::Gateway => "",
            ZygotePer::Tenant => " of each",
        };
        let namespaces = match config.namespaces {
            Namespaces::Leased => "leased",
            Namespaces::Fresh => "made for each run",
        };
        Self(format!(
            "runs are children of {whose}; {} to {}{of_each} wait; net, ipc and user namespaces are {namespaces}",
            rules.min, rules.max
        ))
    }

    fn line(&self, pool: &PoolState, lacks: &[String]) -> LayerReport {
        let whose = &self.0;
        let (state, detail, advice) = match &pool.cold {
            Some(why) => (
                LayerState::Degraded,
                format!("{whose}; at the moment each starts its own: {why}"),
                "the same isolation, about 20 ms later; if it stays so, look at `interpreter` and `preload`",
            ),
            // As safe, and as good as it gets on this host: no reason to call it degraded.
            None if !lacks.is_empty() => (
                LayerState::Ok,
                format!("{whose}; {}", not_given(lacks)),
                "the same isolation, a little slower; OPERATING.md, \"The sandbox\", says what it takes",
            ),
            None if pool.zygotes == 0 && pool.is_wanted => {
                (LayerState::Ok, format!("{whose}; none is warm yet"), "")
            }
            None => (LayerState::Ok, whose.clone(), ""),
        };
        LayerReport {
            layer: Layer::Zygote,
            state,
            detail,
            advice: advice.into(),
        }
    }
}

/// What makes runs slower than they could be, in words.
fn not_given(lacks: &[String]) -> String {
    format!("this host does not give {}", lacks.join(", nor "))
}

#[derive(Debug, Default)]
struct Runs {
    live: HashMap<String, Arc<Handle>>,
    /// These, and those that are answered and put away what they leave.
    present: usize,
    draining: bool,
}

impl Runs {
    fn leave(&mut self, entered: &Entered<'_>) {
        // The name may be another's by now.
        let found = self.live.get(&entered.run_id);
        if found.is_some_and(|handle| Arc::ptr_eq(handle, &entered.handle)) {
            self.live.remove(&entered.run_id);
        }
    }
}

#[derive(Debug, Default)]
struct Counts {
    completed: AtomicU64,
    failed: AtomicU64,
    refused: AtomicU64,
}

/// What tests put in the place of the plugin's own parts.
#[doc(hidden)]
#[derive(Debug, Default)]
pub struct Parts {
    /// The shared object to execute as the launcher, when this code is not in it.
    pub launcher: Option<PathBuf>,
    /// Name and text of other files than the guest's.
    pub guest: Option<Vec<(String, String)>>,
    /// Pieces of the isolation to leave out. Here and not in the configuration: nobody but a test can.
    pub without: Vec<Guard>,
}

impl SandboxProcess {
    /// [`Sandbox::create`] with parts of a test.
    #[doc(hidden)]
    pub fn create_with(host: Host, request: CreateRequest, parts: Parts) -> Result<Self> {
        let config = Config::parse(&request.config_json)
            .map_err(|m| Error::new(abi::E_INVALID_ARGUMENT, m))?;
        let state_dir = PathBuf::from(&request.state_dir);
        let broken = |e: io::Error| {
            Error::new(
                abi::E_UNAVAILABLE,
                format!("state directory {}: {e}", state_dir.display()),
            )
        };
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&state_dir)
            .map_err(broken)?;
        let state_dir = state_dir.canonicalize().map_err(broken)?;
        let guest = parts.guest.unwrap_or_else(guest_files);
        let interpreter = Interpreter::discover(config.interpreter.as_deref(), &guest)
            .map_err(|e| Error::new(abi::E_PRECONDITION, e.to_string()))?;
        let program = supervisor::own_program(parts.launcher)
            .map_err(|e| Error::new(abi::E_UNAVAILABLE, format!("the launcher's file: {e}")))?;
        let per_tenant = config.zygote_per == ZygotePer::Tenant;
        // Of a part of one it has that one.
        let processors = config.cpus.ceil() as u32;
        let codes = Codes::new(config.code_cache_bytes, per_tenant);
        let domains_max = match config.zygote_per {
            ZygotePer::Gateway => 1,
            ZygotePer::Tenant => config.zygotes_max,
        };
        let rules = PoolRules {
            min: config.pool_min,
            max: config.pool_max,
            per_tenant,
        };
        // Pieces can be left out where a run executes its interpreter, and nowhere else.
        let fresh = config.fresh || !parts.without.is_empty();
        let rules = if fresh {
            rules
        } else {
            parts_of(rules, domains_max, &host)?
        };
        let source = InterpreterSource::of(&config, rules);
        let hello = Hello {
            instance: group_name(&request.instance_id, &state_dir).map_err(broken)?,
            state_dir: state_dir.to_string_lossy().into_owned(),
            uid_base: config.uid_base,
            cpus: config.cpus,
            pace_ns: config.pace_us * 1000,
            cgroup_parent: config.cgroup_parent,
            downgrades: config.downgrades,
            interpreter,
            guest,
            without: Without(parts.without),
            zygotes: (!fresh).then(|| ZygoteRules {
                preload: config.preload,
                children_max: config.zygote_runs,
                age_max_ns: config.zygote_age_s.saturating_mul(1_000_000_000),
                domains_max,
                kept_max: match config.namespaces {
                    Namespaces::Leased => KEPT_MIN.max(rules.max as usize * domains_max),
                    Namespaces::Fresh => 0,
                },
            }),
        };
        let supervisor =
            Supervisor::start(program, hello, (!fresh).then_some(rules), host.clone())?;
        // Not before the launcher has the directory to itself: until then they may be another's, whose runs need them.
        match fs::remove_dir_all(mounts::copies_dir(&state_dir)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(broken(e)),
            _ => {}
        }
        Ok(SandboxProcess {
            host,
            state_dir,
            supervisor,
            runs: Mutex::default(),
            all_over: Condvar::new(),
            counts: Counts::default(),
            ways: Ways::default(),
            codes,
            processors,
            source,
        })
    }

    /// The launcher's process id.
    #[doc(hidden)]
    pub fn launcher_pid(&self) -> Option<u32> {
        self.supervisor.pid()
    }

    fn runs(&self) -> MutexGuard<'_, Runs> {
        // The map is whole between any two lines that change it.
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One run. `answer` gets its result; what it leaves is put away after that.
    fn run_then<T>(
        &self,
        request: RunRequest,
        services: &dyn RunServices,
        answer: impl FnOnce(Result<RunResult>) -> T,
    ) -> T {
        let begun = self.enter(&request.run_id).and_then(|entered| {
            // A cancel that came before has found nothing here, and does not come again.
            if services.cancelled() {
                let error = Error::new(abi::E_CANCELLED, "cancelled before it began");
                return Err(error.not_executed());
            }
            Ok(entered)
        });
        let entered = match begun {
            Ok(entered) => entered,
            Err(e) => {
                let refused = Err(e);
                self.count(&refused);
                return answer(refused);
            }
        };
        let around = Around {
            supervisor: &self.supervisor,
            host: &self.host,
            state_dir: &self.state_dir,
            ways: &self.ways,
            codes: &self.codes,
            processors: self.processors,
        };
        run::run(request, services, &entered.handle, &around, |result| {
            self.count(&result);
            entered.leave();
            answer(result)
        })
    }

    fn count(&self, result: &Result<RunResult>) {
        let counter = match result {
            Ok(result) if result.completed => &self.counts.completed,
            Ok(_) => &self.counts.failed,
            Err(_) => &self.counts.refused,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, run_id: &str) -> Result<Entered<'_>> {
        let handle = Handle::new()
            .map(Arc::new)
            .map_err(|e| Error::new(abi::E_UNAVAILABLE, format!("eventfd: {e}")).not_executed())?;
        let mut runs = self.runs();
        if runs.draining {
            return Err(Error::new(
                abi::E_UNAVAILABLE,
                "the sandbox is draining and takes no new runs",
            )
            .not_executed());
        }
        if runs.live.contains_key(run_id) {
            return Err(Error::new(
                abi::E_ALREADY_EXISTS,
                format!("the run {run_id} is under way"),
            )
            .not_executed());
        }
        runs.live.insert(run_id.to_owned(), handle.clone());
        runs.present += 1;
        Ok(Entered {
            plugin: self,
            run_id: run_id.to_owned(),
            handle,
        })
    }
}

/// A run in the list of live runs, and until it is dropped one of those for which a drain waits.
struct Entered<'a> {
    plugin: &'a SandboxProcess,
    run_id: String,
    handle: Arc<Handle>,
}

impl Entered<'_> {
    /// It is answered: another may have its name.
    fn leave(&self) {
        self.plugin.runs().leave(self);
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut runs = self.plugin.runs();
        runs.leave(self);
        runs.present -= 1;
        if runs.present == 0 {
            self.plugin.all_over.notify_all();
        }
    }
}

impl Sandbox for SandboxProcess {
    fn create(host: Host, request: CreateRequest) -> Result<Self> {
        Self::create_with(host, request, Parts::default())
    }

    fn caps(&self) -> SandboxCaps {
        let mut enforces = abi::LIMIT_WALL | abi::LIMIT_DISK | abi::LIMIT_NONROOT;
        let mut max_memory_bytes = 0;
        if let Ok(launcher) = self.supervisor.launcher(|| false) {
            let has = launcher.promises;
            for (there, flag) in [
                (has.cpu, abi::LIMIT_CPU),
                (has.memory, abi::LIMIT_MEMORY),
                (has.pids, abi::LIMIT_PIDS),
            ] {
                enforces |= if there { flag } else { 0 };
            }
            max_memory_bytes = if has.memory { u64::MAX >> 1 } else { 0 };
        }
        SandboxCaps {
            egress: abi::EGRESS_CAN_DENY | abi::EGRESS_GATE_LISTENER,
            max_concurrent: 0,
            isolation: abi::ISO_CONTAINER,
            max_memory_bytes,
            max_timeout_ms: MAX_TIMEOUT_MS,
            enforces,
        }
    }

    fn health(&self) -> Result<Health> {
        let asked = Instant::now();
        let is_over = || asked.elapsed() >= HEALTH_WAIT;
        let launcher = self.supervisor.launcher(is_over);
        let (mut report, starts) = self.supervisor.report();
        let in_flight = self.runs().live.len();
        let lacking: Vec<_> = report
            .iter()
            .filter(|l| l.state != LayerState::Ok)
            .map(LayerReport::in_words)
            .collect();
        let pool = launcher
            .as_ref()
            .ok()
            .and_then(|l| l.pool.as_ref())
            .map(|p| {
                p.settle(FIRST_ZYGOTE_WAIT);
                p.look()
            })
            .unwrap_or_default();
        let paced = launcher.as_ref().map(|l| l.paced.clone());
        let paced = paced.unwrap_or_default();
        let lacks: Vec<_> = pool.lacks.iter().cloned().chain(paced.lacks).collect();
        let mut said = if lacking.is_empty() {
            "runs are isolated with every layer".to_owned()
        } else {
            let lacking = lacking.join("; ");
            format!("runs are isolated with less than every layer: {lacking}")
        };
        if let Some(why) = &pool.cold {
            said += &format!("; they start slowly: {why}");
        } else if !lacks.is_empty() {
            said += &format!("; {}", not_given(&lacks));
        }
        let (state, message) = match &launcher {
            Err(e) => (abi::HEALTH_DOWN, e.message.clone()),
            Ok(_) if lacking.is_empty() && pool.cold.is_none() => (abi::HEALTH_OK, said),
            Ok(_) => (abi::HEALTH_DEGRADED, said),
        };
        report.push(self.source.line(&pool, &lacks));
        let count = |c: &AtomicU64| c.load(Ordering::Relaxed);
        let (code_skills, code_bytes) = self.codes.size();
        let metrics = serde_json::json!({
            "runs_completed": count(&self.counts.completed),
            "runs_failed": count(&self.counts.failed),
            "runs_refused": count(&self.counts.refused),
            "runs_in_flight": in_flight,
            "runs_from_pool": count(&self.ways.pooled),
            "runs_furnished": count(&self.ways.furnished),
            "runs_on_demand": count(&self.ways.on_demand),
            "runs_fresh": count(&self.ways.fresh),
            "runs_waiting": pool.waiting,
            "runs_waited_us": count(&self.ways.waited_us),
            "pool_idle": pool.idle,
            "pool_furnished": pool.furnished,
            "pool_target": pool.ahead,
            "code_kept_skills": code_skills,
            "code_kept_bytes": code_bytes,
            "zygotes": pool.zygotes,
            "zygotes_in_large_pages": pool.zygotes_in_large_pages,
            "zygotes_copied_ahead": pool.zygotes_copied_ahead,
            "zygotes_lost": pool.zygotes_lost,
            "processors_paced": paced.processors,
            "processors_paced_in_real_time": paced.real_time,
            "launcher_starts": starts,
        });
        Ok(Health {
            state,
            in_flight: in_flight as u32,
            capacity: if launcher.is_ok() { u32::MAX } else { 0 },
            message,
            metrics_json: metrics.to_string(),
            report_json: serde_json::to_string(&report).unwrap_or_default(),
        })
    }

    fn run(&self, request: RunRequest, services: &dyn RunServices) -> Result<RunResult> {
        self.run_then(request, services, |result| result)
    }

    fn run_and_clear(
        &self,
        request: RunRequest,
        services: &dyn RunServices,
        reply: Reply<RunResult>,
    ) {
        self.run_then(request, services, |result| reply.finish(result));
    }

    fn cancel(&self, run_id: &str) {
        if let Some(handle) = self.runs().live.get(run_id) {
            handle.cancel();
        }
    }

    fn drain(&self) -> Result<()> {
        let mut runs = self.runs();
        runs.draining = true;
        while runs.present > 0 {
            runs = self
                .all_over
                .wait(runs)
                .unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }
}

/// The part of each pool, and the operator hears of it if files are what limits it.
fn parts_of(rules: PoolRules, domains: usize, host: &Host) -> Result<PoolRules> {
    let files = sys::limits(libc::RLIMIT_NOFILE as i32)
        .map_err(|e| Error::new(abi::E_UNAVAILABLE, format!("the limit of open files: {e}")))?
        .rlim_cur;
    let part = rules.for_each(domains, files);
    if part.max < rules.for_each(domains, u64::MAX).max {
        host.log(
            Level::Warn,
            "sandbox_process",
            "fewer interpreters wait than pool_max says: raise the limit of open files (ulimit -n, LimitNOFILE=)",
            &[
                ("pool_max", &rules.max.to_string()),
                ("wait", &(u64::from(part.max) * domains as u64).to_string()),
                ("open_files_max", &files.to_string()),
            ],
        );
    }
    Ok(part)
}

/// `skillgate-<instance>-<state directory>`: two gateways may call their instances the same, and, each with a mount namespace of its
/// own, their directories too, and still make their groups below the same one. So it is the directory itself that counts, beside
/// its path: in its next life an instance finds what it has left. Where it is another one by then (restored from a backup, on a
/// file system that was mounted anew) what was left stays: groups with nothing in them, since all that was has died with its launcher.
#[doc(hidden)]
pub fn group_name(instance_id: &str, state_dir: &Path) -> io::Result<String> {
    use std::hash::{DefaultHasher, Hash as _, Hasher as _};
    let plain: String = instance_id
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
        .take(40)
        .collect();
    let directory = fs::metadata(state_dir)?;
    let mut hasher = DefaultHasher::new();
    (state_dir, directory.dev(), directory.ino()).hash(&mut hasher);
    Ok(format!("skillgate-{plain}-{:08x}", hasher.finish() as u32))
}

fn guest_files() -> Vec<(String, String)> {
    skillgate_plugin_guest::FILES
        .iter()
        .map(|(name, content)| {
            (
                (*name).to_owned(),
                String::from_utf8_lossy(content).into_owned(),
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As it is for two gateways that each have a directory of their own at the same path.
    #[test]
    fn groups_have_the_name_of_the_directory_and_not_of_its_path() {
        let base = tempfile::tempdir().unwrap();
        let state = base.path().join("state");
        let name = || group_name("a.b", &state).unwrap();
        fs::create_dir(&state).unwrap();
        let first = name();
        assert!(first.starts_with("skillgate-a_b-"), "{first}");
        assert_eq!(name(), first, "its next life finds them");
        // It stays, so that its number is no other's.
        fs::rename(&state, base.path().join("away")).unwrap();
        assert!(group_name("a.b", &state).is_err(), "there is none");
        fs::create_dir(&state).unwrap();
        assert_ne!(name(), first);
    }
}

//! An instance with its own state directory, and a host that keeps what it is told.

use std::collections::HashMap;
use std::fmt::Display;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use skillgate_plugin_sdk::blocking::Sandbox;
use skillgate_plugin_sdk::model::{CreateRequest, Error, Limits, Result, RunRequest, RunResult};
use skillgate_plugin_sdk::{Host, RunServices, Secret, abi};
use skillgate_sandbox_process::{Guard, Parts, SandboxProcess};

/// The shared object that cargo has built for this test.
pub(crate) fn launcher() -> PathBuf {
    let deps = std::env::current_exe().unwrap();
    deps.parent()
        .unwrap()
        .join("libskillgate_sandbox_process.so")
}

pub(crate) struct Instance {
    pub(crate) plugin: SandboxProcess,
    pub(crate) state: tempfile::TempDir,
}

/// A program that has to succeed, and all that it says.
pub(crate) fn succeeds(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    let text = said.concat();
    assert!(output.status.success(), "{text}");
    text
}

/// What an instance is made from in these tests: an ordinary user has no delegated groups here. SANDBOX_MODE says which
/// way runs get their interpreters: `pool` (the default), `demand` or `fresh`; SANDBOX_PYTHON, which Python it is.
pub(crate) fn config() -> String {
    config_with(serde_json::json!({}))
}

/// [`config`] with other keys beside.
pub(crate) fn config_with(mut keys: serde_json::Value) -> String {
    let mode = std::env::var("SANDBOX_MODE").unwrap_or_else(|_| "pool".into());
    match mode.as_str() {
        "pool" => {}
        "demand" => keys["pool_max"] = 0.into(),
        "fresh" => keys["fresh"] = true.into(),
        other => panic!("SANDBOX_MODE={other}: use pool, demand or fresh"),
    }
    if !is_root() {
        keys["downgrades"] = serde_json::json!(["cgroup"]);
    }
    keys.to_string()
}

/// A way to make runs.
pub(crate) struct Mode {
    pub(crate) name: &'static str,
    pub(crate) config: String,
    /// Whether a run is a fork of an interpreter, and not one of its own.
    pub(crate) forks: bool,
}

/// Every way that there is, or the one that SANDBOX_MODE says.
pub(crate) fn modes() -> Vec<Mode> {
    let chosen = std::env::var("SANDBOX_MODE").ok();
    let all = all_modes().into_iter();
    all.filter(|mode| chosen.as_deref().is_none_or(|name| name == mode.name))
        .collect()
}

/// An interpreter of its own for each run.
pub(crate) fn fresh() -> Mode {
    let [fresh, ..] = all_modes();
    fresh
}

fn all_modes() -> [Mode; 3] {
    let mode = |(name, mut keys, forks): (&'static str, serde_json::Value, bool)| {
        if !is_root() {
            keys["downgrades"] = serde_json::json!(["cgroup"]);
        }
        Mode {
            name,
            config: keys.to_string(),
            forks,
        }
    };
    [
        ("fresh", serde_json::json!({ "fresh": true }), false),
        ("demand", serde_json::json!({ "pool_max": 0 }), true),
        ("pool", serde_json::json!({}), true),
    ]
    .map(mode)
}

/// Whether to take the time for everything.
pub(crate) fn full() -> bool {
    std::env::var_os("SKILLGATE_TEST_FULL").is_some()
}

pub(crate) fn is_root() -> bool {
    std::fs::metadata("/proc/self")
        .map(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0)
        .unwrap()
}

pub(crate) fn create(
    state: &std::path::Path,
    config: &str,
    guest: Option<&str>,
) -> Result<SandboxProcess> {
    create_without(state, config, guest, &[])
}

fn create_without(
    state: &std::path::Path,
    config: &str,
    guest: Option<&str>,
    without: &[Guard],
) -> Result<SandboxProcess> {
    let mut config: serde_json::Value = serde_json::from_str(config).unwrap();
    if guest.is_some() {
        // A guest of the test's is a program, not something that a zygote could import.
        config["fresh"] = true.into();
    }
    if let Ok(python) = std::env::var("SANDBOX_PYTHON")
        && config.get("interpreter").is_none()
    {
        config["interpreter"] = python.into();
    }
    allow_all_files();
    let host = Host::for_tests(|_, _, _, _| {});
    let request = CreateRequest {
        instance_id: "test".into(),
        state_dir: state.join("state").display().to_string(),
        config_json: config.to_string().into_bytes(),
    };
    let guest = guest.map(|text| vec![("bootstrap.py".to_owned(), text.to_owned())]);
    SandboxProcess::create_with(
        host,
        request,
        Parts {
            launcher: Some(launcher()),
            guest,
            without: without.into(),
        },
    )
}

/// A login's 1024 are for one gateway; here many instances are beside each other.
fn allow_all_files() {
    let limit = getrlimit(Resource::Nofile);
    let all = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, all).unwrap();
}

impl Instance {
    pub(crate) fn new() -> Self {
        Self::with(&config(), None)
    }

    /// When this returns, runs get their interpreters the way that `config` says.
    pub(crate) fn with(config: &str, guest: Option<&str>) -> Self {
        let instance = Self::made(config, guest, &[]);
        if guest.is_none() {
            instance.warm_up(config);
        }
        instance
    }

    /// One whose first runs may start interpreters of their own, whatever `config` says.
    pub(crate) fn cold(config: &str) -> Self {
        Self::made(config, None, &[])
    }

    fn warm_up(&self, config: &str) {
        let keys: serde_json::Value = serde_json::from_str(config).unwrap();
        if keys["fresh"] == true || keys["zygote_per"] == "tenant" {
            return;
        }
        eventually("a zygote is warm", || metric(self, "zygotes") == 1);
        if keys["pool_max"] != 0 {
            eventually("a child waits", || metric(self, "pool_idle") > 0);
        }
    }

    /// With pieces of the isolation left out, and user ids that no other instance has: without a user namespace the
    /// processes of all who have the same one are counted together.
    pub(crate) fn without(config: &str, guards: &[Guard]) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let mut config: serde_json::Value = serde_json::from_str(config).unwrap();
        let number = NEXT.fetch_add(1, Ordering::Relaxed) + u64::from(std::process::id()) * 1000;
        config["uid_base"] = (1_000_000 + number % 1_000_000 * 100).into();
        let instance = Self::made(&config.to_string(), None, guards);
        if guards.is_empty() {
            instance.warm_up(&config.to_string());
        }
        instance
    }

    fn made(config: &str, guest: Option<&str>, without: &[Guard]) -> Self {
        let state = tempfile::Builder::new()
            .prefix("skillgate-sandbox-")
            .tempdir()
            .unwrap();
        let plugin = create_without(state.path(), config, guest, without)
            .unwrap_or_else(|e| panic!("{e}\n{}", e.detail_json));
        Instance { plugin, state }
    }

    pub(crate) fn run(&self, request: RunRequest) -> (RunResult, Services) {
        let services = Services::default();
        let result = self
            .plugin
            .run(request, &services)
            .unwrap_or_else(|e| panic!("{e}"));
        (result, services)
    }

    /// Runs code, with everything else at its default.
    pub(crate) fn code(&self, code: &str) -> (RunResult, Services) {
        self.run(request(code))
    }

    /// Runs code that must complete, and gives what it returned.
    pub(crate) fn output(&self, code: &str) -> serde_json::Value {
        let (result, services) = self.code(code);
        returned(&result, &services)
    }
}

/// What a run has returned that must have completed.
pub(crate) fn returned<T: serde::de::DeserializeOwned>(
    result: &RunResult,
    services: &Services,
) -> T {
    assert!(
        result.completed,
        "{}: {}\n{}",
        result.error_type,
        result.error_message,
        services.text()
    );
    serde_json::from_slice(&result.output_json).unwrap_or_else(|e| panic!("{e}: {result:?}"))
}

pub(crate) fn limits() -> Limits {
    Limits {
        max_pids: 32,
        wall_ms: 20_000,
        cpu_ms: 0,
        memory_bytes: 256 << 20,
        disk_bytes: 32 << 20,
        disk_inodes: 1000,
        output_bytes: 4096,
    }
}

static NEXT: AtomicU64 = AtomicU64::new(0);

pub(crate) fn request(code: &str) -> RunRequest {
    RunRequest {
        run_id: format!(
            "run_{}_{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        ),
        tenant: "default".into(),
        language: "python".into(),
        code: code.into(),
        function: "main".into(),
        args_json: b"{}".to_vec(),
        limits: limits(),
        ..RunRequest::default()
    }
}

/// A host for one run.
#[derive(Default)]
pub(crate) struct Services {
    pub(crate) output: Mutex<Vec<u8>>,
    pub(crate) keep: Option<usize>,
    pub(crate) discarded: AtomicU64,
    pub(crate) secrets: HashMap<String, String>,
    pub(crate) blobs: Mutex<HashMap<String, Vec<u8>>>,
    pub(crate) writers: Mutex<HashMap<i64, Vec<u8>>>,
    pub(crate) next: AtomicU64,
    /// Takes a run's listener. Without it there is no gate.
    pub(crate) gate: Option<Box<dyn Fn(OwnedFd) + Send + Sync>>,
    /// Happens to a whole blob before a part of it is read.
    pub(crate) on_read: Option<fn(&[u8])>,
    pub(crate) reads: AtomicU64,
    /// Happens before a blob is kept.
    pub(crate) on_commit: Option<Box<dyn Fn() + Send + Sync>>,
    /// What it says of the run when it is asked.
    pub(crate) cancelled: bool,
}

impl Services {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.output.lock().unwrap()).into_owned()
    }
    pub(crate) fn open_writers(&self) -> usize {
        self.writers.lock().unwrap().len()
    }
}

fn not_found() -> Error {
    Error::new(abi::E_NOT_FOUND, "no such blob")
}

impl RunServices for Services {
    fn output(&self, _stream: u32, data: &[u8]) -> bool {
        let mut out = self.output.lock().unwrap();
        let keep = self.keep.unwrap_or(1 << 20);
        let room = keep - out.len();
        out.extend_from_slice(&data[..data.len().min(room)]);
        self.discarded
            .fetch_add(data.len().saturating_sub(room) as u64, Ordering::Relaxed);
        out.len() < keep
    }
    fn secret(&self, name: &str) -> Result<Secret> {
        self.secrets
            .get(name)
            .map(|v| Secret::new(v.clone().into_bytes()))
            .ok_or_else(not_found)
    }
    fn blob_fd(&self, _id: &str) -> Result<OwnedFd> {
        Err(Error::new(abi::E_UNIMPLEMENTED, "no descriptors"))
    }
    fn blob_read(&self, id: &str, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let blobs = self.blobs.lock().unwrap();
        let blob = blobs.get(id).ok_or_else(not_found)?;
        self.reads.fetch_add(1, Ordering::Relaxed);
        if let Some(happens) = self.on_read {
            happens(blob);
        }
        let rest = blob.get(offset as usize..).unwrap_or_default();
        let n = rest.len().min(buf.len());
        buf[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    }
    fn blob_create(&self, _kind: &str) -> Result<i64> {
        let writer = self.next.fetch_add(1, Ordering::Relaxed) as i64 + 1;
        self.writers.lock().unwrap().insert(writer, Vec::new());
        Ok(writer)
    }
    fn blob_write(&self, writer: i64, data: &[u8]) -> Result<()> {
        self.writers
            .lock()
            .unwrap()
            .get_mut(&writer)
            .ok_or_else(not_found)?
            .extend_from_slice(data);
        Ok(())
    }
    fn blob_finish(&self, writer: i64, commit: bool) -> Result<Option<String>> {
        let data = self
            .writers
            .lock()
            .unwrap()
            .remove(&writer)
            .ok_or_else(not_found)?;
        if !commit {
            return Ok(None);
        }
        if let Some(happens) = &self.on_commit {
            happens();
        }
        let id = format!("blob:{writer:032x}");
        self.blobs.lock().unwrap().insert(id.clone(), data);
        Ok(Some(id))
    }
    fn gate_serve(&self, listener: OwnedFd) -> Result<()> {
        let gate = self
            .gate
            .as_ref()
            .ok_or_else(|| Error::new(abi::E_PERMISSION, "no gate"))?;
        gate(listener);
        Ok(())
    }
    fn cancelled(&self) -> bool {
        self.cancelled
    }
}

/// Sets a flag when it goes, also with a check that fails: threads that go on until it is set end, whichever way the others
/// end.
pub(crate) struct Over<'a>(pub(crate) &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Waits until something is so; what it is in the message.
pub(crate) fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    eventually_there(what, || if so() { Ok(()) } else { Err("it is not so") });
}

/// Waits until something is there, and gives it; what it is in the message, and what there was instead.
pub(crate) fn eventually_there<T, E: Display>(
    what: &str,
    mut there: impl FnMut() -> Result<T, E>,
) -> T {
    // Only there to fail: whatever has to come sooner is timed by its test.
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        match there() {
            Ok(found) => return found,
            Err(instead) => assert!(Instant::now() < until, "{what}: {instead}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Process ids below `root`, by what /proc says now.
pub(crate) fn descendants(root: u32) -> Vec<u32> {
    let all = descendants_and_parents(root).into_iter();
    all.map(|(pid, _)| pid).collect()
}

/// Each with the process that it is a child of.
fn descendants_and_parents(root: u32) -> Vec<(u32, u32)> {
    let mut parents = HashMap::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else {
            continue;
        };
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let ppid = stat
            .rsplit(')')
            .next()
            .and_then(|rest| rest.split_whitespace().nth(1)?.parse::<u32>().ok());
        if let Some(ppid) = ppid {
            parents.insert(pid, ppid);
        }
    }
    let mut found = vec![(root, 0)];
    let mut at = 0;
    while let Some((parent, _)) = found.get(at).copied() {
        let children = parents.iter().filter(|(_, pp)| **pp == parent);
        found.extend(children.map(|(pid, pp)| (*pid, *pp)));
        at += 1;
    }
    found.split_off(1)
}

/// Calls `one` with 0, 1, 2 and so on, from so many threads, until `count` have been begun.
pub(crate) fn at_once(threads: usize, count: usize, one: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let number = || next.fetch_add(1, Ordering::Relaxed);
                std::iter::repeat_with(number)
                    .take_while(|number| *number < count)
                    .for_each(&one);
            });
        }
    });
}

/// The middle one.
pub(crate) fn median(values: Vec<f64>) -> f64 {
    quantile(values, 0.5)
}

/// How long a run takes that does nothing, in milliseconds.
pub(crate) fn took_ms(instance: &Instance) -> f64 {
    let began = Instant::now();
    assert_eq!(instance.output("def main(args): return 1\n"), 1);
    began.elapsed().as_secs_f64() * 1000.0
}

/// The value below which a share of them lies.
pub(crate) fn quantile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = ((values.len() as f64 * share) as usize).min(values.len() - 1);
    values[at]
}

/// A number of the instance's health.
pub(crate) fn metric(instance: &Instance, name: &str) -> u64 {
    let [number] = metrics(instance, [name]);
    number
}

/// Numbers of the instance's health, of one time.
pub(crate) fn metrics<const N: usize>(instance: &Instance, names: [&str; N]) -> [u64; N] {
    let health = instance.plugin.health().unwrap();
    let metrics: serde_json::Value = serde_json::from_str(&health.metrics_json).unwrap();
    names.map(|name| {
        let number = metrics[name].as_u64();
        number.unwrap_or_else(|| panic!("no {name} in {metrics}"))
    })
}

/// What the sandbox says of one layer.
pub(crate) fn layer(instance: &Instance, name: &str) -> serde_json::Value {
    let health = instance.plugin.health().unwrap();
    let report: Vec<serde_json::Value> = serde_json::from_str(&health.report_json).unwrap();
    let line = report.into_iter().find(|line| line["layer"] == name);
    line.unwrap_or_else(|| panic!("no {name} in {}", health.report_json))
}

/// Whether the kernel is older than Linux 6.12, whose Landlock is the first with all that is wanted of it.
pub(crate) fn has_old_landlock() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(str::parse::<u32>);
    let mut next = || numbers.next().unwrap().unwrap();
    (next(), next()) < (6, 12)
}

/// The process's name, as `ps` shows it.
pub(crate) fn name_of(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim().to_owned()
}

/// A number of proc_pid_stat(5), by that of its field, from the fourth on.
pub(crate) fn stat_field(pid: u32, field: usize) -> u64 {
    let all = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // The name is the second, and may have spaces and brackets; the state is the third.
    let from_state = all.rsplit_once(')').unwrap().1;
    let text = from_state.split_whitespace().nth(field - 3).unwrap();
    text.parse().unwrap()
}

/// What is below a launcher but for what waits: zygotes, their spares, what keeps the pace, and children that have no run (an init and a waiting process).
pub(crate) fn processes_of_runs(launcher: u32) -> Vec<u32> {
    const OF_NO_RUN: [&str; 5] = [
        "",
        "skillgate-warm",
        "skillgate-spare",
        "skillgate-pace",
        "skillgate-idle",
    ];
    let named: Vec<(u32, u32, String)> = descendants_and_parents(launcher)
        .into_iter()
        .map(|(pid, parent)| (pid, parent, name_of(pid)))
        .collect();
    let idle = named.iter().filter(|(.., name)| name == "skillgate-idle");
    let inits_of_idle: Vec<u32> = idle.map(|(_, parent, _)| *parent).collect();
    named
        .into_iter()
        .filter(|(pid, _, name)| !OF_NO_RUN.contains(&&**name) && !inits_of_idle.contains(pid))
        .map(|(pid, ..)| pid)
        .collect()
}

/// The share of the processors of a group that nobody has changed, as version 1 counts it.
pub(crate) const SHARE: u64 = 1024;

/// That of the group of a process, where it has one.
pub(crate) fn share_of(pid: &u32) -> Option<u64> {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let read = |file: String| {
            let share = std::fs::read_to_string(file).ok()?;
            share.trim().parse::<u64>().ok()
        };
        if controllers.is_empty() {
            let percent = read(format!("/sys/fs/cgroup{path}/cpu.weight"))?;
            return Some(percent * SHARE / 100);
        }
        let has = controllers.split(',').any(|c| c == "cpu");
        has.then(|| read(format!("/sys/fs/cgroup/{controllers}{path}/cpu.shares")))?
    })
}

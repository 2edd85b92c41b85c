//! What is taken, what is refused, and when somebody looks.

pub(crate) mod shortage;

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::*;
use crate::config::{Flags, Sources};
use crate::telemetry::logged::Log;

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
        Ok(Install::new(move || {
            installed.fetch_add(1, Ordering::Relaxed);
        }))
    }
    fn watched(_: &Config) -> Vec<PathBuf> {
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

/// From the defaults, with whatever is read later.
fn started(read: Read, parts: Vec<Box<dyn Part>>) -> Reload {
    let seen = Seen {
        config: config(),
        looks: 0,
    };
    Reload::new(seen, Source::new(read, Number::watched), parts)
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
    let reload = started(
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

/// Which is what the gateway still has, however often it has been reloaded since.
#[test]
fn what_needs_a_restart_is_said_until_it_is_as_at_the_start() {
    let queued = Arc::new(AtomicU64::new(7));
    let written = queued.clone();
    let read = move || {
        let mut sources = nothing();
        let queued = written.load(Ordering::Relaxed).to_string();
        let key = "SKILLGATE_RUNS__MAX_QUEUED".into();
        sources.env.insert(key, queued.into());
        Config::load(&sources, &Flags::default())
    };
    let reload = started(Box::new(read), vec![]);
    let (log, _here) = Log::begin();
    let said = || log.taken().matches("restart to use it").count();
    for (queued_now, expected) in [(7, 1), (7, 1), (8, 1), (256, 0)] {
        queued.store(queued_now, Ordering::Relaxed);
        reload.now().unwrap();
        assert_eq!(said(), expected, "{queued_now}");
    }
}

/// A mistake of ours.
struct Panics;

impl Part for Panics {
    fn name(&self) -> &'static str {
        "panics"
    }
    fn prepare(&self, _: &Config) -> Result<Install, String> {
        panic!("at the first look");
    }
    fn watched(_: &Config) -> Vec<PathBuf> {
        Vec::new()
    }
}

#[test]
fn a_reload_that_panics_is_refused_and_said() {
    let reload = started(Box::new(|| Ok(config())), vec![Box::new(Panics)]);
    let why = reload.now().unwrap_err();
    assert!(why.contains("at the first look"), "{why}");
    let status = reload.report().status();
    assert_eq!((status.taken, status.refused), (0, 1));
    assert_eq!(status.error, Some(why));
    assert!(matches!(reload.report().state(), State::Impaired(_)));
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
    let reload = started(Box::new(read), vec![]);
    assert!(reload.now().unwrap_err().contains("/nowhere/at/all.toml"));
}

/// Prepared when somebody says so, after it has said that it is asked.
struct Waits(
    mpsc::UnboundedSender<()>,
    Mutex<std::sync::mpsc::Receiver<()>>,
);

impl Part for Waits {
    fn name(&self) -> &'static str {
        "waits"
    }
    fn prepare(&self, _: &Config) -> Result<Install, String> {
        self.0.send(()).unwrap();
        lock(&self.1).recv().unwrap();
        Ok(Install::new(|| ()))
    }
    fn watched(_: &Config) -> Vec<PathBuf> {
        Vec::new()
    }
}

#[tokio::test(start_paused = true)]
async fn a_reload_that_does_not_end_is_shown() {
    let (say, mut asked) = mpsc::unbounded_channel();
    let (go, goes) = std::sync::mpsc::channel();
    let part = Waits(say, Mutex::new(goes));
    let reload = started(Box::new(|| Ok(config())), vec![Box::new(part)]);
    let report = reload.report();
    let reloading = tokio::task::spawn_blocking(move || reload.now());
    asked.recv().await.unwrap();
    assert_eq!(report.state(), State::Well("0 taken".into()));
    tokio::time::advance(Duration::from_secs(61)).await;
    let State::Impaired(shown) = report.state() else {
        panic!("{:?}", report.state());
    };
    assert!(
        shown.starts_with("it has not come to an end for 61 s"),
        "{shown}"
    );
    go.send(()).unwrap();
    reloading.await.unwrap().unwrap();
    assert_eq!(report.state(), State::Well("1 taken".into()));
}

/// Of what is looked at, which hangs.
static IS_ASKED: AtomicBool = AtomicBool::new(false);
static ANSWERS: AtomicBool = AtomicBool::new(false);

fn hangs(_: &Config) -> Vec<PathBuf> {
    IS_ASKED.store(true, Ordering::SeqCst);
    while !ANSWERS.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    Vec::new()
}

/// Nobody gets as far as a reload.
#[tokio::test(start_paused = true)]
async fn a_look_that_does_not_end_is_shown() {
    let seen = Seen {
        config: config(),
        looks: 0,
    };
    let source = Source::new(Box::new(|| Ok(config())), hangs);
    let reload = Reload::new(seen, source, vec![]);
    let report = reload.report();
    let looking = tokio::task::spawn_blocking(move || reload.changed());
    while !IS_ASKED.load(Ordering::SeqCst) {
        tokio::task::yield_now().await;
    }
    tokio::time::advance(Duration::from_secs(61)).await;
    let shown = report.state();
    ANSWERS.store(true, Ordering::SeqCst);
    assert!(matches!(shown, State::Impaired(_)), "{shown:?}");
    looking.await.unwrap();
    assert_eq!(report.state(), State::Well("0 taken".into()));
}

// === when somebody looks ===

/// A configuration file, and the files that its `policy.path` may name.
#[derive(Clone)]
struct Files(Arc<tempfile::TempDir>);

impl Files {
    fn new() -> Self {
        let files = Files(Arc::new(tempfile::tempdir().unwrap()));
        files.put("rules", "old");
        files.name("rules");
        files
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Whole, under another name first: as a deployment does it.
    fn put(&self, name: &str, text: &str) {
        fs::write(self.at("next"), text).unwrap();
        fs::rename(self.at("next"), self.at(name)).unwrap();
    }

    /// Writes the configuration that names a file.
    fn name(&self, name: &str) {
        let text = format!("[policy]\npath = {:?}\n", self.at(name));
        self.put("gate.toml", &text);
    }

    fn load(&self) -> Result<Config, ConfigErrors> {
        let sources = Sources {
            read: Box::new(|path| fs::read_to_string(path)),
            ..nothing()
        };
        let flags = Flags {
            config: Some(self.at("gate.toml")),
            ..Flags::default()
        };
        Config::load(&sources, &flags)
    }

    /// As where none is named: one may be there or not.
    fn find(&self) -> Result<Config, ConfigErrors> {
        if self.at("gate.toml").exists() {
            return self.load();
        }
        let mut config = config();
        config.looked_for = vec![self.at("gate.toml")];
        config.policy.path = self.at("rules");
        Ok(config)
    }

    fn source(&self) -> Source {
        let files = self.clone();
        Source::new(Box::new(move || files.load()), Text::watched)
    }
}

/// What a file has in it, and what was done with it. One that others may write is refused, as plugins are.
struct Text(mpsc::UnboundedSender<String>);

impl Part for Text {
    fn name(&self) -> &'static str {
        "text"
    }
    fn prepare(&self, config: &Config) -> Result<Install, String> {
        let said = self.0.clone();
        let path = &config.policy.path;
        let safe = || match fs::metadata(path)?.mode() & 0o022 {
            0 => fs::read_to_string(path),
            _ => Err(std::io::ErrorKind::PermissionDenied.into()),
        };
        match safe() {
            Ok(text) => Ok(Install::new(move || said.send(text).unwrap())),
            Err(error) => {
                said.send("refused".into()).unwrap();
                Err(error.to_string())
            }
        }
    }
    fn watched(config: &Config) -> Vec<PathBuf> {
        vec![config.policy.path.clone()]
    }
}

struct Following {
    said: mpsc::UnboundedReceiver<String>,
    report: Report,
}

impl Following {
    /// The end of a start.
    fn new(seen: Seen, source: Source) -> Self {
        let (say, said) = mpsc::unbounded_channel();
        let reload = Reload::new(seen, source, vec![Box::new(Text(say))]);
        let report = reload.report();
        let hangup = signal(SignalKind::hangup()).unwrap();
        let never = std::future::pending();
        tokio::spawn(reload.follow(hangup, Duration::from_millis(100), never));
        Following { said, report }
    }

    /// What is done next, if anything is done within a minute.
    async fn next(&mut self) -> Option<String> {
        let next = tokio::time::timeout(Duration::from_secs(60), self.said.recv());
        next.await.ok().flatten()
    }
}

#[tokio::test(start_paused = true)]
async fn what_changes_while_the_gateway_starts_is_taken() {
    let files = Files::new();
    let source = files.source();
    let seen = source.read().unwrap();
    // Now the start has read it, and is busy with other things.
    files.put("rules", "newer");
    let mut following = Following::new(seen, source);
    assert_eq!(following.next().await.as_deref(), Some("newer"));
    assert_eq!(following.next().await, None, "once");
}

#[tokio::test(start_paused = true)]
async fn a_configuration_that_changes_while_it_is_read_is_taken() {
    // It is read to know what to look at, and to start with; after either it may change.
    for nth in 1..=2 {
        let files = Files::new();
        files.put("others", "other rules");
        let (reads, at) = (AtomicU64::new(0), files.clone());
        let read = move || {
            let config = at.load();
            if reads.fetch_add(1, Ordering::Relaxed) + 1 == nth {
                at.name("others");
            }
            config
        };
        let source = Source::new(Box::new(read), Text::watched);
        let mut following = Following::new(source.read().unwrap(), source);
        let next = following.next().await;
        assert_eq!(next.as_deref(), Some("other rules"), "after reading {nth}");
        assert_eq!(following.next().await, None, "once");
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_missing_when_it_was_named_is_taken_when_it_comes() {
    let files = Files::new();
    let source = files.source();
    let mut following = Following::new(source.read().unwrap(), source);
    assert_eq!(following.next().await, None, "nothing has changed");

    files.name("later");
    assert_eq!(following.next().await.as_deref(), Some("refused"));
    assert_eq!(
        following.next().await,
        None,
        "the same mistake is made once"
    );
    assert_eq!(following.report.status().refused, 1);

    files.put("later", "late rules");
    assert_eq!(following.next().await.as_deref(), Some("late rules"));
    // What is in force now is watched, and nothing else.
    files.put("rules", "of nobody");
    assert_eq!(following.next().await, None);
    files.put("later", "later rules");
    assert_eq!(following.next().await.as_deref(), Some("later rules"));
}

/// What a refusal asks for is `chmod go-w`, which changes nothing in the file.
#[tokio::test(start_paused = true)]
async fn what_others_could_write_is_taken_when_they_no_longer_can() {
    let files = Files::new();
    let source = files.source();
    let mut following = Following::new(source.read().unwrap(), source);
    let rules = files.at("rules");
    let may = |mode| fs::set_permissions(&rules, Permissions::from_mode(mode)).unwrap();
    files.put("rules", "newer");
    may(0o666);
    assert_eq!(following.next().await.as_deref(), Some("refused"));
    assert_eq!(following.next().await, None, "it stands");
    look::until_it_shows(&rules, || may(0o644));
    assert_eq!(following.next().await.as_deref(), Some("newer"));
}

#[tokio::test(start_paused = true)]
async fn a_configuration_that_comes_where_none_was_is_taken() {
    let files = Files::new();
    fs::remove_file(files.at("gate.toml")).unwrap();
    let at = files.clone();
    let source = Source::new(Box::new(move || at.find()), Text::watched);
    let mut following = Following::new(source.read().unwrap(), source);
    assert_eq!(following.next().await, None, "nothing has changed");

    files.put("others", "other rules");
    files.name("others");
    assert_eq!(following.next().await.as_deref(), Some("other rules"));
    fs::remove_file(files.at("gate.toml")).unwrap();
    let next = following.next().await;
    assert_eq!(next.as_deref(), Some("old"), "the defaults again");
}

#[tokio::test(start_paused = true)]
async fn a_broken_configuration_is_refused_once() {
    let files = Files::new();
    let source = files.source();
    let mut following = Following::new(source.read().unwrap(), source);
    files.name("later");
    assert_eq!(following.next().await.as_deref(), Some("refused"));
    files.put("gate.toml", "[policy\n");
    assert_eq!(following.next().await, None);
    assert_eq!(following.report.status().refused, 2);
    files.name("rules");
    assert_eq!(following.next().await.as_deref(), Some("old"));
}

/// Tells when it is tried, and is back the third time.
struct Lost(mpsc::UnboundedSender<tokio::time::Instant>, AtomicU64);

impl Part for Lost {
    fn name(&self) -> &'static str {
        "lost"
    }
    fn prepare(&self, _: &Config) -> Result<Install, String> {
        Ok(Install::new(|| ()))
    }
    fn is_lost(&self) -> bool {
        self.1.load(Ordering::Relaxed) < 3
    }
    fn recover(&self) -> Result<(), String> {
        self.0.send(tokio::time::Instant::now()).unwrap();
        match self.1.fetch_add(1, Ordering::Relaxed) {
            2 => Ok(()),
            _ => Err("its disk is gone".into()),
        }
    }
    fn watched(_: &Config) -> Vec<PathBuf> {
        Vec::new()
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_lost_is_tried_again_until_it_is_back() {
    // Whether the rest is taken or not, neither keeps the other from it.
    for good in [true, false] {
        let installed = Arc::new(AtomicU64::new(0));
        let rules = Number {
            name: "rules",
            good: Arc::new(AtomicBool::new(good)),
            installed: installed.clone(),
        };
        is_tried_again(Box::new(rules)).await;
        assert_eq!(installed.load(Ordering::Relaxed) > 0, good);
    }
}

async fn is_tried_again(beside: Box<dyn Part>) {
    let (say, mut said) = mpsc::unbounded_channel();
    let reload = started(
        Box::new(|| Ok(config())),
        vec![Box::new(Lost(say, AtomicU64::new(0))), beside],
    );
    // Files that have not changed since.
    let _ = reload.now();
    let mut before = said.recv().await.unwrap();
    let hangup = signal(SignalKind::hangup()).unwrap();
    let never = std::future::pending();
    let following = tokio::spawn(reload.follow(hangup, Duration::from_secs(1), never));
    let patience = Duration::from_secs(600);
    for _ in 0..2 {
        let tried = tokio::time::timeout(patience, said.recv()).await;
        let tried = tried.unwrap().unwrap();
        let after = tried.duration_since(before).as_secs();
        assert!((60..65).contains(&after), "{after} s");
        before = tried;
    }
    let never = tokio::time::timeout(patience, said.recv());
    assert!(never.await.is_err(), "it is back");
    following.abort();
}

/// Says that it begins, and waits for a word.
struct Slow {
    begins: mpsc::UnboundedSender<()>,
    go: Mutex<std::sync::mpsc::Receiver<()>>,
    installed: Arc<AtomicBool>,
}

impl Part for Slow {
    fn name(&self) -> &'static str {
        "slow"
    }
    fn prepare(&self, _: &Config) -> Result<Install, String> {
        self.begins.send(()).unwrap();
        lock(&self.go).recv().unwrap();
        let installed = self.installed.clone();
        Ok(Install::new(move || {
            installed.store(true, Ordering::Relaxed)
        }))
    }
    fn watched(_: &Config) -> Vec<PathBuf> {
        Vec::new()
    }
}

/// What it puts in place would come after the end of what was there.
#[tokio::test]
async fn who_stops_it_waits_for_a_reload_that_goes_on() {
    let (begins, mut begun) = mpsc::unbounded_channel();
    let (go, gone) = std::sync::mpsc::channel();
    let installed = Arc::new(AtomicBool::new(false));
    let slow = Slow {
        begins,
        go: Mutex::new(gone),
        installed: installed.clone(),
    };
    let reload = started(Box::new(|| Ok(config())), vec![Box::new(slow)]);
    let hangup = signal(SignalKind::hangup()).unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let stopped = async { stopped.await.unwrap_or(()) };
    let following = tokio::spawn(reload.follow(hangup, Duration::from_millis(1), stopped));
    begun.recv().await.unwrap();
    drop(stop);
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(!following.is_finished());
    go.send(()).unwrap();
    following.await.unwrap();
    assert!(installed.load(Ordering::Relaxed));
}

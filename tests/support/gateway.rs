//! Starts and stops the real program.

use std::fs;
use std::io::{BufRead, BufReader, Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::http::Client;
use super::look::{self, Process};
use super::{eventually, http, tools};

/// How long a gateway may take to start, and to stop.
const PATIENCE: Duration = Duration::from_secs(40);

/// What the plugin calls its helper process.
const LAUNCHER: &str = "skillgate-runs";

pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|meta| std::os::unix::fs::MetadataExt::uid(&meta) == 0)
}

/// Where one gateway, or several one after the other, keep everything.
#[derive(Debug)]
pub(crate) struct House {
    dir: tempfile::TempDir,
}

/// What a configuration says beside the usual. Each is TOML.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Settings<'a> {
    /// Keys of `[server]`.
    pub(crate) server: &'a str,
    /// Keys of `[runs]`.
    pub(crate) runs: &'a str,
    /// Keys of `[blobs]`.
    pub(crate) blobs: &'a str,
    /// More of the store's `config`, beginning with a comma.
    pub(crate) store: &'a str,
    /// More sections, whole.
    pub(crate) extra: &'a str,
    /// `config` of the sandbox; the default fits the user that the tests run as.
    pub(crate) sandbox: Option<&'a str>,
}

impl House {
    pub(crate) fn new(settings: Settings<'_>) -> House {
        let dir = tempfile::Builder::new()
            .prefix("skillgate-gateway-")
            .tempdir()
            .unwrap();
        let house = House { dir };
        house.configure(settings);
        house
    }

    pub(crate) fn configure(&self, settings: Settings<'_>) {
        // An ordinary user has no control groups to make unless somebody has given it some.
        let fitting = if is_root() {
            "{}"
        } else {
            r#"{ downgrades = ["cgroup"] }"#
        };
        let text = format!(
            r#"[server]
listen = "127.0.0.1:0"
{server}
[admin]
listen = "127.0.0.1:0"
[runs]
{runs}
[blobs]
{blobs}
[skills]
paths = [{skills:?}]
[plugins]
state_dir = {state:?}
[plugins.storage]
name = "storage-fs"
config = {{ root = {store:?} {more} }}
[plugins.sandbox]
name = "sandbox-process"
config = {sandbox}
{extra}
"#,
            server = settings.server,
            runs = settings.runs,
            blobs = settings.blobs,
            skills = Path::new(env!("CARGO_MANIFEST_DIR")).join("skills"),
            state = self.path().join("state"),
            store = self.store(),
            more = settings.store,
            extra = settings.extra,
            sandbox = settings.sandbox.unwrap_or(fitting),
        );
        fs::write(self.config(), text).unwrap();
    }

    /// The operator's skills are those in `shelf`, and not ours.
    pub(crate) fn shelve(&self, shelf: &Path) {
        let text = fs::read_to_string(self.config()).unwrap();
        let paths = text.lines().find(|line| line.starts_with("paths = "));
        let text = text.replace(paths.unwrap(), &format!("paths = [{shelf:?}]"));
        fs::write(self.config(), text).unwrap();
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.path().join("skillgate.toml")
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.path().join("store")
    }

    /// The directory of each blob that is in the store.
    pub(crate) fn blobs(&self) -> Vec<PathBuf> {
        let below = |dir: &Path| -> Vec<PathBuf> {
            fs::read_dir(dir)
                .into_iter()
                .flatten()
                .flatten()
                .map(|entry| entry.path())
                .collect()
        };
        let blobs = self.store().join("tenants/default/blobs");
        below(&blobs).iter().flat_map(|part| below(part)).collect()
    }

    /// What is in the store and not published.
    pub(crate) fn unfinished(&self) -> usize {
        look::tree(&self.store().join("tmp")).len()
    }

    /// `skillgate serve`, not yet started.
    pub(crate) fn command(&self) -> Command {
        self.command_of(Path::new(env!("CARGO_BIN_EXE_skillgate")))
    }

    pub(crate) fn command_of(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.args(["serve", "--config"]).arg(self.config());
        self.clean(&mut command);
        command
    }

    /// No setting of whoever runs the tests.
    pub(crate) fn clean(&self, command: &mut Command) {
        command.current_dir(self.path());
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("SKILLGATE_") {
                command.env_remove(name);
            }
        }
    }

    pub(crate) fn start(&self) -> Gateway {
        self.start_as(self.command())
    }

    pub(crate) fn start_as(&self, command: Command) -> Gateway {
        let log = fs::File::create(self.log_file()).unwrap();
        self.start_saying(command, log.into())
    }

    fn log_file(&self) -> PathBuf {
        self.path().join("stderr.log")
    }

    /// The same, with its log elsewhere than where [`Gateway::log`] looks.
    pub(crate) fn start_saying(&self, mut command: Command, log: Stdio) -> Gateway {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let stdout = child.stdout.take().unwrap();
        let (send, receive) = mpsc::channel();
        let (send_admin, receive_admin) = mpsc::channel();
        // Reads to the end, so that the gateway never writes to a closed pipe.
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Some(address) = address_in(&line, "/metrics") {
                    let _already_known = send_admin.send(address);
                }
                if let Some(address) = address_in(&line, "/rpc") {
                    let _already_known = send.send(address);
                }
            }
        });
        let mut gateway = Gateway {
            pid: child.id(),
            child: Some(child),
            address: String::new(),
            admin: String::new(),
            launcher: None,
            log: self.log_file(),
        };
        match receive.recv_timeout(PATIENCE) {
            Ok(address) => {
                gateway.address = address;
                gateway.admin = receive_admin.recv().unwrap();
            }
            Err(_) => panic!("the gateway does not start: {}", gateway.said()),
        }
        gateway.launcher = look::descendants(gateway.pid)
            .into_iter()
            .find(|process| process.name == LAUNCHER);
        gateway
    }
}

/// What must not start: how it ended, and all that it said. One that has started all the same is ended.
pub(crate) fn must_not_start(mut command: Command) -> (Option<i32>, String) {
    // Not into pipes: who says more than one holds would wait for a reader.
    let mut said = tempfile::tempfile().unwrap();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(said.try_clone().unwrap())
        .stderr(said.try_clone().unwrap())
        .spawn()
        .unwrap();
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() && began.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ended_already = child.kill();
    let code = child.wait().unwrap().code();
    let mut text = Vec::new();
    said.rewind().unwrap();
    said.read_to_end(&mut text).unwrap();
    (code, String::from_utf8_lossy(&text).into_owned())
}

/// To one process.
pub(crate) fn signal(name: &str, pid: u32) {
    assert!(tools::kill(&format!("-{name}"), pid), "kill -{name} {pid}");
}

/// `  http://127.0.0.1:4567/rpc   POST …`
fn address_in(line: &str, path: &str) -> Option<String> {
    let url = line.split_whitespace().next()?.strip_prefix("http://")?;
    url.strip_suffix(path).map(str::to_owned)
}

/// A running gateway. It ends when this does.
#[derive(Debug)]
pub(crate) struct Gateway {
    child: Option<Child>,
    pub(crate) pid: u32,
    /// `127.0.0.1:4567`
    pub(crate) address: String,
    /// The operator's.
    pub(crate) admin: String,
    /// Of `sandbox-process`.
    launcher: Option<Process>,
    log: PathBuf,
}

impl Gateway {
    pub(crate) fn client(&self) -> http::Client {
        Client::open(&self.address).unwrap()
    }

    pub(crate) fn launcher(&self) -> &Process {
        self.launcher.as_ref().expect("its sandbox has a launcher")
    }

    /// What the names of this instance's control groups end in.
    pub(crate) fn group(&self) -> String {
        format!("-{}", self.launcher().pid)
    }

    /// The name of its control groups without the launcher's number, so that those of the lives before are found too.
    /// Empty where the host gives it none.
    pub(crate) fn instance(&self) -> String {
        let number = self.group();
        // Not `run-<number>`, somebody's run of that number, which is below such a group.
        look::groups("skillgate-")
            .iter()
            .filter_map(|path| path.file_name()?.to_str()?.strip_suffix(&number))
            .find(|name| name.starts_with("skillgate-"))
            .map(str::to_owned)
            .unwrap_or_default()
    }

    /// Processes of runs: neither a warmed interpreter, its spare or what keeps the pace, nor one that waits for its run, with its init.
    pub(crate) fn inside(&self) -> Vec<Process> {
        let mut all = look::descendants(self.launcher().pid);
        let stays = ["skillgate-warm", "skillgate-spare", "skillgate-pace"];
        all.retain(|p| !stays.contains(&p.name.as_str()));
        let mut waiting = all.iter().filter(|p| p.name == "skillgate-idle").count();
        all.retain(|p| {
            let of_waiting = p.name == "skillgate-init" && waiting > 0;
            waiting -= usize::from(of_waiting);
            !of_waiting && p.name != "skillgate-idle"
        });
        all
    }

    /// No thread of its runtime does anything.
    pub(crate) fn is_idle(&self) -> bool {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid)).unwrap();
        let stats =
            tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("stat")).ok());
        stats
            .filter(|stat| stat.contains("(tokio-"))
            .all(|stat| stat.contains(") S "))
    }

    pub(crate) fn rss_kib(&self) -> u64 {
        look::status_kib(self.pid, "VmRSS")
    }

    /// The end of what it wrote to standard error.
    pub(crate) fn said(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(name, self.pid);
    }

    /// SIGKILL, at once.
    pub(crate) fn kill(&mut self) {
        let mut child = self.child.take().expect("not ended yet");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child
            .as_mut()
            .and_then(|child| child.try_wait().unwrap())
    }

    /// Waits for the end that was asked for.
    pub(crate) fn end(&mut self, limit: Duration) -> ExitStatus {
        let mut status = None;
        eventually("the gateway ends", limit, || {
            status = self.ended();
            status.is_some()
        });
        self.child = None;
        status.expect("it has ended")
    }

    /// SIGTERM; it must end well and leave nothing that the kernel knows of.
    pub(crate) fn stop(mut self) {
        let instance = self.launcher.as_ref().map(|_| self.instance());
        self.signal("TERM");
        let status = self.end(PATIENCE);
        assert!(status.success(), "{status}: {}", self.said());
        let Some(instance) = instance else {
            return;
        };
        assert!(!self.launcher().lives(), "the launcher is left");
        assert_eq!(look::members(&instance), [], "processes are left");
        assert_eq!(
            look::groups(&instance).len(),
            0,
            "groups are left: {:?}",
            look::groups(&instance)
        );
    }
}

impl Drop for Gateway {
    /// After a failed test.
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            eprintln!("the gateway said: {}", self.said());
            // Its launcher ends with it, and everything inside.
            let _gone_already = child.kill();
            let _status = child.wait();
        }
    }
}

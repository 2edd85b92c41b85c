//! What there is outside of a run to be reached: files, sockets, memory, processes, a neighbour.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};
use skillgate_plugin_sdk::model::{Mount, RunRequest, Source};

use crate::basics::{mount, open_to_all};
use crate::support::*;

/// A directory of the host and a process that waits for visitors.
pub(super) struct World {
    pub(super) directory: tempfile::TempDir,
    outside: Child,
    input: Option<ChildStdin>,
    said: BufReader<ChildStdout>,
    pub(super) facts: Value,
}

impl World {
    pub(super) fn new() -> Self {
        // Nobody can have guessed it.
        let canary = format!("canary-{:x}", std::process::id() ^ 0x5ca1ab1e);
        let directory = tempfile::Builder::new()
            .prefix("skillgate-outside-")
            .tempdir()
            .unwrap();
        open_to_all(directory.path());
        let given = directory.path().join("given");
        std::fs::create_dir(&given).unwrap();
        let file = |name: &str, text: &str, mode: u32| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            path.display().to_string()
        };
        let canary_file = file("canary", &canary, 0o644);
        let scratch = file("scratch", "", 0o666);
        file("given/open", "x", 0o666);
        std::os::unix::fs::symlink("/etc/passwd", given.join("link")).unwrap();
        for (name, mode) in [("program", 0o755), ("setuid", 0o4755)] {
            std::fs::copy("/bin/true", given.join(name)).unwrap();
            std::fs::set_permissions(given.join(name), PermissionsExt::from_mode(mode)).unwrap();
        }
        if is_root() {
            let device = given.join("device");
            let status = Command::new("mknod")
                .arg(&device)
                .args(["-m", "666", "c", "1", "5"])
                .status();
            assert!(status.unwrap().success());
        }
        let open_directory = directory.path().join("drop");
        std::fs::create_dir(&open_directory).unwrap();
        std::fs::set_permissions(&open_directory, PermissionsExt::from_mode(0o777)).unwrap();
        let mut outside = Command::new("python3")
            .args(["-I", "-S", "-c", include_str!("outside.py"), &canary])
            .arg(directory.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = outside.stdin.take();
        let mut said = BufReader::new(outside.stdout.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        let mut facts: Value = serde_json::from_str(&line).unwrap();
        let loader = if cfg!(target_arch = "x86_64") {
            "/lib64/ld-linux-x86-64.so.2"
        } else {
            "/lib/ld-linux-aarch64.so.1"
        };
        let more = json!({
            "canary": canary, "file": canary_file, "scratch": scratch, "loader": loader, "pid_namespace": true,
            "open_directory": open_directory, "group_file": "/sys/fs/cgroup/memory/cgroup.procs",
        });
        facts
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        World {
            directory,
            outside,
            input,
            said,
            facts,
        }
    }

    /// The files that a run is given.
    pub(super) fn mounts(&self, targets: &[&str]) -> Vec<Mount> {
        let given = self.directory.path().join("given").display().to_string();
        let source = || Source::Path(given.clone());
        targets.iter().map(|at| mount(at, source())).collect()
    }

    /// A run beside the one that is watched, until the file `go/x` is there: what it has seen happen to itself.
    pub(super) fn neighbour(&self) -> RunRequest {
        let code = "\
import fcntl, os, resource, signal, socket, time
def state():
    names = [d + '/' + n for d in ('/workspace', '/tmp', '/dev/shm') for n in sorted(os.listdir(d))]
    flags = [fcntl.fcntl(fd, fcntl.F_GETFL) for fd in range(4)]
    return [names, flags, [resource.getrlimit(n) for n in range(16)], open('/workspace/neighbour').read(), os.listdir('/proc/self/fd')]
def main(args):
    seen = []
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, lambda n, f: seen.append(n))
    s = socket.socket(socket.AF_UNIX); s.bind('\\0' + args['name']); s.listen()
    for d in ('/workspace', '/tmp', '/dev/shm'):
        with open(d + '/neighbour', 'w') as f: f.write('mine')
    before = state()
    print('here', flush=True)
    while not os.path.exists('/blobs/go/x'): time.sleep(0.01)
    s.setblocking(False)
    try:
        s.accept(); seen.append('a visitor')
    except BlockingIOError:
        pass
    return [seen, before == state()]
";
        let mut request = request(code);
        request.args_json = json!({ "name": self.neighbour_name() })
            .to_string()
            .into_bytes();
        let go = self.directory.path().join("go");
        std::fs::create_dir_all(&go).unwrap();
        request.mounts = vec![mount("/blobs/go", Source::Path(go.display().to_string()))];
        request.limits.wall_ms = 120_000;
        request
    }

    pub(super) fn neighbour_name(&self) -> String {
        format!("{}-neighbour", self.facts["abstract"].as_str().unwrap())
    }

    /// Lets the neighbour go.
    pub(super) fn go(&self) {
        std::fs::write(self.directory.path().join("go/x"), "").unwrap();
    }

    /// How many have come to the process outside, which this ends.
    pub(super) fn visits(mut self) -> u64 {
        self.end()["visits"].as_u64().unwrap()
    }

    fn end(&mut self) -> Value {
        drop(self.input.take());
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        assert!(self.outside.wait().unwrap().success());
        serde_json::from_str(&line).unwrap()
    }

    /// What a run has changed outside.
    pub(super) fn changes(&self) -> Vec<String> {
        let mut changes = Vec::new();
        let path = |name: &str| Path::new(self.facts[name].as_str().unwrap()).to_path_buf();
        if std::fs::read_to_string(path("file")).unwrap() != self.facts["canary"] {
            changes.push("the canary".into());
        }
        if !std::fs::read(path("scratch")).unwrap().is_empty() {
            changes.push("the scratch file".into());
        }
        for entry in std::fs::read_dir(path("open_directory")).unwrap() {
            changes.push(format!("{:?}", entry.unwrap().file_name()));
        }
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        if name.trim() != self.facts["hostname"] {
            changes.push("the name of the host".into());
        }
        changes
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if self.input.is_some() {
            self.end();
        }
    }
}

//! What a run finds around it, told by the run itself and looked at from outside.

use crate::basics::{mount, open_to_all};
use crate::red_list::RED_LIST;
use crate::support::*;
use skillgate_plugin_sdk::model::Source;

/// `call`, and the modules that it needs.
const CALLS: &str = include_str!("escapes/harness.py");

#[test]
fn status_says_that_nothing_is_left() {
    let instance = Instance::new();
    let code = "\
import os
def main(args):
    s = dict(l.split(':', 1) for l in open('/proc/self/status'))
    return {'caps': {k: s[k].strip() for k in s if k.startswith('Cap')}, 'nnp': s['NoNewPrivs'].strip(), 'seccomp': s['Seccomp'].strip(),
        'uid': s['Uid'].split(), 'gid': s['Gid'].split(), 'groups': s['Groups'].split(), 'pid': os.getpid(), 'ppid': os.getppid(), 'sid': os.getsid(0),
        'host': os.uname().nodename, 'cwd': os.getcwd(), 'umask': s['Umask'].strip(), 'fds': sorted(int(f) for f in os.listdir('/proc/self/fd')),
        'pids': sorted(int(p) for p in os.listdir('/proc') if p.isdigit()), 'sigign': s['SigIgn'].strip(), 'sigblk': s['SigBlk'].strip()}
";
    let s = instance.output(code);
    for (name, value) in s["caps"].as_object().unwrap() {
        assert!(
            value.as_str().unwrap().bytes().all(|b| b == b'0'),
            "{name} {value}"
        );
    }
    assert_eq!(s["caps"].as_object().unwrap().len(), 5);
    assert_eq!((&s["nnp"], &s["seccomp"]), (&"1".into(), &"2".into()));
    let all = |id: &str| serde_json::json!([id, id, id, id]);
    assert_eq!((&s["uid"], &s["gid"]), (&all("1000"), &all("1000")));
    if is_root() {
        assert_eq!(s["groups"], serde_json::json!([]));
    }
    assert_eq!(
        (&s["pid"], &s["ppid"], &s["sid"]),
        (&2.into(), &1.into(), &2.into())
    );
    assert_eq!(
        (&s["host"], &s["cwd"], &s["umask"]),
        (&"sandbox".into(), &"/workspace".into(), &"0022".into())
    );
    // 4 is the directory that is being listed.
    assert_eq!(s["fds"], serde_json::json!([0, 1, 2, 3, 4]));
    assert_eq!(s["pids"], serde_json::json!([2]), "init is hidden");
    // Python itself ignores SIGPIPE (13) and SIGXFSZ (25).
    assert_eq!(
        (&s["sigign"], &s["sigblk"]),
        (&"0000000001001000".into(), &"0000000000000000".into())
    );
}

#[test]
fn descriptors_are_what_they_should_be() {
    let instance = Instance::new();
    let code = "\
import os, stat
def main(args):
    kinds = []
    for fd in range(4):
        st = os.fstat(fd)
        kinds.append([os.readlink('/proc/self/fd/%d' % fd).split(':')[0], stat.S_IFMT(st.st_mode)])
    return [kinds, os.fstat(1).st_ino == os.fstat(2).st_ino, os.read(0, 10).decode(), os.isatty(1)]
";
    let s = instance.output(code);
    assert_eq!(
        s,
        serde_json::json!([
            [
                ["/dev/null", 0o020_000],
                ["pipe", 0o010_000],
                ["pipe", 0o010_000],
                ["socket", 0o140_000]
            ],
            true,
            "",
            false
        ])
    );
    let tty = instance.output("import os\ndef main(args):\n    try:\n        return os.open('/dev/tty', os.O_RDWR)\n    except OSError as e:\n        return e.errno\n");
    assert_eq!(tty, 2, "there is no terminal");
}

#[test]
fn nothing_can_be_dumped_or_looked_into() {
    let instance = Instance::new();
    let code = "\
import ctypes, os, resource
def main(args):
    libc = ctypes.CDLL(None)
    # Who wants none sets this, and it must not be what it says: the host's handler is called then (core(5)).
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pid = os.fork()
    if pid == 0:
        import time; time.sleep(30)
    seen = []
    for path in ('/proc/1/environ', '/proc/1/mem', '/proc/%d/mem' % pid, '/proc/%d/environ' % pid):
        try:
            open(path, 'rb').read(1); seen.append(path)
        except OSError:
            pass
    try:
        both = resource.prlimit(0, resource.RLIMIT_CORE, (0, 0))
    except PermissionError:
        both = None
    loader = [line.split()[-1] for line in open('/proc/self/maps') if '/ld-linux' in line][0]
    try:
        seen.append(open(loader, 'rb').read(4))
    except PermissionError:
        pass
    core = [resource.getrlimit(resource.RLIMIT_CORE), resource.prlimit(0, resource.RLIMIT_CORE)]
    return {'dumpable': libc.prctl(3, 0, 0, 0, 0), 'core': core, 'both': both, 'seen': seen}
";
    let s = instance.output(code);
    assert_eq!(
        s,
        serde_json::json!({"dumpable": 0, "core": [[1, 1], [1, 1]], "both": null, "seen": []})
    );
}

#[test]
fn namespaces_are_not_the_hosts_and_not_shared() {
    let instance = Instance::new();
    let code = "import os\ndef main(args):\n    return {n: os.readlink('/proc/self/ns/' + n) for n in ('mnt', 'pid', 'net', 'ipc', 'uts', 'cgroup', 'user')}\n";
    let (one, two) = (instance.output(code), instance.output(code));
    for name in ["mnt", "pid", "net", "ipc", "uts", "cgroup", "user"] {
        let host = std::fs::read_link(format!("/proc/self/ns/{name}")).unwrap();
        assert_ne!(one[name], host.to_str().unwrap());
    }
    // Not compared with `two` by number: a kernel may give a number again. Two at once are in `neighbours.rs`.
    assert!(two.is_object());
}

#[test]
fn only_what_is_needed_is_in_the_root() {
    let instance = Instance::new();
    let code = "\
import os
def main(args):
    return {p: sorted(os.listdir(p)) for p in ('/', '/etc', '/dev', '/usr', '/usr/bin', '/usr/lib', '/proc', '/workspace', '/tmp', '/skills', '/blobs', '/dev/shm')}
";
    let s = instance.output(code);
    assert_eq!(
        s["/etc"],
        if std::path::Path::new("/etc/ssl/certs/ca-certificates.crt").exists() {
            serde_json::json!(["group", "hosts", "nsswitch.conf", "passwd", "ssl"])
        } else {
            serde_json::json!(["group", "hosts", "nsswitch.conf", "passwd"])
        }
    );
    assert_eq!(
        s["/dev"],
        serde_json::json!([
            "fd", "full", "null", "random", "shm", "stderr", "stdin", "stdout", "urandom", "zero"
        ])
    );
    let root: Vec<&str> = s["/"]
        .as_array()
        .unwrap()
        .iter()
        .map(|v| v.as_str().unwrap())
        .collect();
    for wanted in [
        "blobs",
        "dev",
        "etc",
        "proc",
        "skills",
        "tmp",
        "usr",
        "workspace",
    ] {
        assert!(root.contains(&wanted), "{root:?}");
    }
    for absent in [
        "sys", "home", "root", "var", "boot", "mnt", "bin", "sbin", "run", "opt",
    ] {
        assert!(!root.contains(&absent), "{root:?}");
    }
    assert_eq!(s["/tmp"], serde_json::json!(["run_code.py"]));
    for empty in ["/workspace", "/skills", "/blobs", "/dev/shm"] {
        assert_eq!(s[empty], serde_json::json!([]), "{empty}");
    }
    let bin = s["/usr/bin"].as_array().unwrap();
    assert!(
        bin.iter()
            .all(|b| b.as_str().unwrap().starts_with("python")),
        "{bin:?}"
    );
    assert!(
        s["/proc"].as_array().unwrap().iter().all(|p| {
            let p = p.as_str().unwrap();
            p.parse::<u32>().is_ok() || ["self", "thread-self"].contains(&p)
        }),
        "{}",
        s["/proc"]
    );
    let packages = instance.output("import os, sys\ndef main(args):\n    return [d for p in sys.path for d in (os.listdir(p) if os.path.isdir(p) else []) if d.endswith('-packages') and os.listdir(os.path.join(p, d))]\n");
    assert_eq!(packages, serde_json::json!([]), "packages of the operator");
}

#[test]
fn the_root_cannot_be_written_and_nothing_new_executed() {
    let instance = Instance::new();
    let code = "\
import ctypes, errno, mmap, os, subprocess, sys
def name(f):
    try:
        f(); return 'done'
    except OSError as e:
        return errno.errorcode.get(e.errno)
def main(args):
    out = {}
    for p in ('/', '/usr/bin', '/usr/lib/skillgate', '/etc', '/dev', '/skills', '/blobs', '/proc', '/proc/self', os.path.dirname(os.__file__)):
        out[p] = name(lambda: open(p + '/x', 'w'))
    out['passwd'] = name(lambda: open('/etc/passwd', 'a'))
    out['python'] = name(lambda: open(sys.executable, 'rb'))
    for d in ('/workspace', '/tmp', '/dev/shm'):
        with open(d + '/prog.py', 'w') as f: f.write('#!/usr/bin/python3\\nprint(1)\\n')
        os.chmod(d + '/prog.py', 0o4755)
        out['exec ' + d] = name(lambda: os.execv(d + '/prog.py', ['x']))
        import shutil; shutil.copyfile(args['lib'], d + '/lib.so')
        out['load ' + d] = 'done' if name(lambda: ctypes.CDLL(d + '/lib.so')) == 'done' else 'refused'
        with open(d + '/lib.so', 'rb') as f:
            out['map ' + d] = name(lambda: mmap.mmap(f.fileno(), 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC))
    out['loader'] = subprocess.run([args['loader'], '/workspace/lib.so'], capture_output=True).returncode != 0
    out['self'] = subprocess.run([sys.executable, '-I', '-S', '-c', 'print(6*7)'], capture_output=True, text=True).stdout
    out['shell'] = name(lambda: subprocess.run(['/bin/sh', '-c', 'true']))
    out['device'] = name(lambda: os.mknod('/workspace/null', 0o20666, os.makedev(1, 3)))
    return out
";
    let find = |prefix: &str| {
        std::fs::read_to_string("/proc/self/maps")
            .unwrap()
            .lines()
            .filter_map(|l| l.split_whitespace().nth(5).map(str::to_owned))
            .find(|p| p.contains(prefix))
            .unwrap()
    };
    let (lib, loader) = (
        find("libc.so"),
        if cfg!(target_arch = "x86_64") {
            "/lib64/ld-linux-x86-64.so.2"
        } else {
            "/lib/ld-linux-aarch64.so.1"
        },
    );
    let mut request = request(code);
    request.args_json = serde_json::json!({"lib": lib, "loader": loader})
        .to_string()
        .into_bytes();
    let (result, services) = instance.run(request);
    assert!(result.completed, "{result:?}\n{}", services.text());
    let s: serde_json::Value = serde_json::from_slice(&result.output_json).unwrap();
    for (what, answer) in s.as_object().unwrap() {
        let answer = answer.as_str().unwrap_or("true");
        let fine: &[&str] = match what.as_str() {
            "self" => &["42\n"],
            "loader" => &["true"],
            "shell" => &["ENOENT"],
            "device" => &["EPERM"],
            "python" => &["EACCES"],
            w if w.starts_with("load") => &["refused"],
            w if w.starts_with("map") => &["EPERM"],
            w if w.starts_with("exec") => &["EACCES"],
            _ => &["EROFS", "EACCES", "EPERM", "ENOENT"],
        };
        assert!(fine.contains(&answer), "{what}: {answer}");
    }
}

#[test]
fn every_mount_is_read_only_or_cannot_execute() {
    let instance = Instance::new();
    let dir = tempfile::tempdir().unwrap();
    open_to_all(dir.path());
    let mut request = request(
        "def main(args):\n    return [l.split(' - ')[0].split()[4:6] + [l.split(' - ')[1].split()[0]] for l in open('/proc/self/mountinfo')] + [open('/proc/self/cgroup').read()]\n",
    );
    let path = dir.path().display().to_string();
    request.mounts = vec![
        mount("/skills/a", Source::Path(path.clone())),
        mount("/blobs/b", Source::Path(path)),
    ];
    request.limits.output_bytes = 1 << 16;
    let (result, services) = instance.run(request);
    assert!(result.completed, "{result:?} {}", services.text());
    let mut lines: Vec<serde_json::Value> = serde_json::from_slice(&result.output_json).unwrap();
    let groups = lines.pop().unwrap();
    let own_root = |l: &str| l.ends_with(":/") || !is_root();
    assert!(groups.as_str().unwrap().lines().all(own_root), "{groups}");
    let mut places = Vec::new();
    for line in &lines {
        let (place, options) = (line[0].as_str().unwrap(), line[1].as_str().unwrap());
        let has = |o: &str| options.split(',').any(|x| x == o);
        let device = place.starts_with("/dev/") && place != "/dev/shm";
        assert!(has("nosuid") && (device || has("nodev")), "{line}");
        if ["/workspace", "/tmp", "/dev/shm", "/proc"].contains(&place) {
            assert!(has("noexec"), "{line}");
        } else {
            assert!(has("ro"), "{line}");
        }
        if place.starts_with("/skills") || place.starts_with("/blobs") {
            assert!(has("noexec"), "{line}");
        }
        if ["/skills/a", "/blobs/b"].contains(&place) {
            assert!(has("nosymfollow"), "{line}");
        }
        places.push(place);
    }
    places.sort_unstable();
    for wanted in [
        "/",
        "/workspace",
        "/tmp",
        "/dev/shm",
        "/proc",
        "/skills",
        "/skills/a",
        "/blobs",
        "/blobs/b",
    ] {
        assert_eq!(
            places.iter().filter(|p| **p == wanted).count(),
            1,
            "{wanted} in {places:?}"
        );
    }
}

/// A file of the root that the mounts would let a run execute: only the second layer says no.
#[test]
fn landlock_leaves_the_interpreter_alone_to_execute() {
    let instance = Instance::new();
    let code = "\
import errno, os, stat
def main(args):
    out = []
    for d, _, files in os.walk('/usr'):
        for f in files:
            p = os.path.join(d, f)
            if d.endswith('/bin') or not os.access(p, os.X_OK): continue
            try:
                os.execv(p, ['x'])
            except OSError as e:
                out.append(errno.errorcode[e.errno])
            if len(out) == 20: return sorted(set(out))
";
    assert_eq!(instance.output(code), serde_json::json!(["EACCES"]));
}

#[test]
fn links_in_a_skill_lead_nowhere() {
    let instance = Instance::new();
    let dir = tempfile::tempdir().unwrap();
    open_to_all(dir.path());
    std::os::unix::fs::symlink("/etc/passwd", dir.path().join("absolute")).unwrap();
    std::os::unix::fs::symlink("real", dir.path().join("relative")).unwrap();
    std::fs::write(dir.path().join("real"), "x").unwrap();
    let code = "\
import errno
def main(args):
    out = {}
    for n in ('absolute', 'relative', 'real', '../../etc/passwd'):
        try:
            out[n] = len(open('/skills/a/' + n).read())
        except OSError as e:
            out[n] = errno.errorcode[e.errno]
    return out
";
    let mut request = request(code);
    request.mounts = vec![mount(
        "/skills/a",
        Source::Path(dir.path().display().to_string()),
    )];
    let (result, _) = instance.run(request);
    let s: serde_json::Value = serde_json::from_slice(&result.output_json).unwrap();
    assert_eq!(
        (&s["absolute"], &s["relative"], &s["real"]),
        (&"ELOOP".into(), &"ELOOP".into(), &1.into())
    );
    assert!(
        s["../../etc/passwd"].as_i64().unwrap() < 120,
        "it is the sandbox's own: {s}"
    );
}

#[test]
fn there_is_no_network() {
    let instance = Instance::new();
    let code = "\
import errno, socket
def main(args):
    out = {}
    for family in range(0, 46):
        if family == socket.AF_UNIX: continue
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW):
            try:
                socket.socket(family, kind); out[family] = 'made'
            except OSError as e:
                if e.errno != errno.EPERM: out[family] = errno.errorcode[e.errno]
    a, b = socket.socketpair(); a.send(b'x')
    try:
        socket.getaddrinfo('example.com', 443); out['dns'] = 'answered'
    except OSError:
        pass
    return out
";
    assert_eq!(instance.output(code), serde_json::json!({}));
}

/// Through ctypes, so that nothing of Python's stands between. A call must fail, with EPERM or, for clone3, ENOSYS.
#[test]
fn red_list() {
    assert!(RED_LIST.len() >= 70);
    let instance = Instance::new();
    let code = "\
def main(args):
    out = {}
    for name, number in args['calls']:
        if not is_here(number):
            continue
        try:
            out[name] = call(number)
        except OSError as e:
            if e.errno != errno.EPERM:
                out[name] = e.errno
    return out
";
    let mut request = request(&[CALLS, code].concat());
    request.args_json = serde_json::json!({"calls": RED_LIST})
        .to_string()
        .into_bytes();
    let (result, _) = instance.run(request);
    assert_eq!(
        String::from_utf8(result.output_json.clone()).unwrap(),
        "{}",
        "{result:?}"
    );
}

#[test]
fn arguments_are_looked_at() {
    let instance = Instance::new();
    let code = "\
def main(args):
    out = {}
    def no(what, *words):
        try:
            call(*words)
            out[what] = 0
        except OSError as e:
            out[what] = -e.errno
    for bit in (0x80, 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        no('clone %x' % bit, 56, bit | 17, 0, 0, 0, 0)
    no('clone3', 435, 0, 0)
    no('TIOCSTI', 16, 1, 0x5412, 0)
    no('TIOCLINUX', 16, 1, 0x541c, 0)
    no('FICLONE', 16, 1, 0x40049409, 0)
    no('TIOCSTI with high bits', 16, 1, 0x100005412, 0)
    no('prctl dumpable', 157, 4, 1, 0, 0, 0)
    no('prctl seccomp', 157, 22, 2, 0, 0, 0)
    no('prctl mm', 157, 35, 1, 0, 0, 0)
    no('prlimit init', 302, 1, 7, 0, 0)
    no('mmap of huge pages', 9, 0, 2 << 20, 3, 0x40022, -1, 0)
    no('getsockopt SO_PEERPIDFD', 55, 3, 1, 77, 0, 0)
    no('preadv2 RWF_NOWAIT', 327, 0, 0, 0, 0, 0, 8)
    no('preadv2 RWF_DONTCACHE', 327, 0, 0, 0, 0, 0, 0x80)
    if is_here(133):
        no('mknod fifo', 133, 0, 0o10644, 0)
    no('mknodat fifo', 259, -100, 0, 0o10644, 0)
    return out
";
    let s = instance.output(&[CALLS, code].concat());
    for (what, answer) in s.as_object().unwrap() {
        let errno = match what.as_str() {
            "clone3" => libc::ENOSYS,
            "FICLONE" => libc::EOPNOTSUPP,
            _ => libc::EPERM,
        };
        assert_eq!(answer, -errno, "{what}");
    }
}

/// Calls of another architecture's table end the process.
#[test]
#[cfg(target_arch = "x86_64")]
fn foreign_calls_kill() {
    let instance = Instance::new();
    for (what, bytes) in [
        // mov eax, 20 (getpid of i386); int 0x80; ret
        ("int 0x80", "b'\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3'"),
        // mov eax, 0x40000027 (getpid of x32); syscall; ret
        ("x32", "b'\\xb8\\x27\\x00\\x00\\x40\\x0f\\x05\\xc3'"),
    ] {
        let code = format!(
            "import ctypes, mmap\ndef main(args):\n    m = mmap.mmap(-1, 4096, prot=7)\n    m.write({bytes})\n    f = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))\n    return f()\n"
        );
        let (result, _) = instance.code(&code);
        assert_eq!(
            (result.error_type.as_str(), result.signal),
            ("SandboxError", 31),
            "{what}: {result:?}"
        );
    }
}

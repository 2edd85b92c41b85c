//! A run with network reaches its gate and nothing else. Sentinels listen in the namespace that the tests run in: on
//! loopback, on the machine's own addresses, on unix sockets. Whatever a run tries, none of them hears of it.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::blocking::Sandbox as _;
use skillgate_plugin_sdk::model::RunRequest;

use crate::support::{Instance, Services, is_root, request, returned};

/// A gate that keeps what it is asked and answers everything with `hello`.
fn gate() -> (Services, Arc<Mutex<Vec<String>>>) {
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let kept = asked.clone();
    let serve = move |listener: OwnedFd| {
        let listener = TcpListener::from(listener);
        let kept = kept.clone();
        std::thread::spawn(move || {
            // Ends when nobody has the listener's namespace any more: with the run.
            while let Ok((mut stream, _)) = listener.accept() {
                let mut head = Vec::new();
                let mut byte = [0];
                while !head.ends_with(b"\r\n\r\n") && matches!(stream.read(&mut byte), Ok(1)) {
                    head.push(byte[0]);
                }
                let head = String::from_utf8_lossy(&head).into_owned();
                let last = head.contains("X-Last");
                kept.lock().unwrap().push(head);
                let _ = stream.write_all(
                    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello",
                );
                if last {
                    return;
                }
            }
        });
    };
    let services = Services {
        gate: Some(Box::new(serve)),
        ..Services::default()
    };
    (services, asked)
}

/// Says to the fake gate that it can go.
const LAST: &str = "\nimport urllib.request\ndef last():\n    urllib.request.urlopen(urllib.request.Request('http://last.test/', headers={'X-Last': '1'}), timeout=5).read()\n";

fn with_network(code: &str) -> RunRequest {
    RunRequest {
        network: abi::NET_GATE,
        ..request(&format!("{LAST}{code}"))
    }
}

fn run(instance: &Instance, code: &str) -> (Value, Vec<String>) {
    let (services, asked) = gate();
    let result = instance
        .plugin
        .run(with_network(code), &services)
        .unwrap_or_else(|e| panic!("{e}"));
    let asked = asked.lock().unwrap().clone();
    (returned(&result, &services), asked)
}

/// Counts who comes.
struct Sentinels {
    tcp: Vec<SocketAddr>,
    udp: Vec<SocketAddr>,
    _directory: tempfile::TempDir,
    path: String,
    name: String,
    came: Arc<AtomicUsize>,
}

impl Sentinels {
    fn new() -> Sentinels {
        let came: Arc<AtomicUsize> = Arc::default();
        let (mut tcp, mut udp) = (Vec::new(), Vec::new());
        // Asked which address a packet to the world would come from; none is sent.
        let outward = UdpSocket::bind("0.0.0.0:0")
            .and_then(|s| s.connect("192.0.2.1:9").and_then(|()| s.local_addr()))
            .map(|a| a.ip().to_string());
        let own: Vec<String> = ["127.0.0.1", "127.0.0.2", "::1"]
            .into_iter()
            .map(str::to_owned)
            .chain(outward)
            .collect();
        for ip in own {
            let ip: std::net::IpAddr = ip.parse().unwrap();
            // A machine without IPv6 has no ::1.
            if let Ok(listener) = TcpListener::bind((ip, 0)) {
                tcp.push(listener.local_addr().unwrap());
                count(came.clone(), move || listener.accept().is_ok());
            }
            if let Ok(socket) = UdpSocket::bind((ip, 0)) {
                udp.push(socket.local_addr().unwrap());
                count(came.clone(), move || socket.recv(&mut [0; 64]).is_ok());
            }
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sentinel");
        let listener = UnixListener::bind(&path).unwrap();
        count(came.clone(), move || listener.accept().is_ok());
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let next = NEXT.fetch_add(1, Ordering::SeqCst);
        let name = format!("skillgate-sentinel-{}-{next}", std::process::id());
        let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
        let listener = UnixListener::bind_addr(&address).unwrap();
        count(came.clone(), move || listener.accept().is_ok());
        Sentinels {
            tcp,
            udp,
            path: path.display().to_string(),
            _directory: directory,
            name,
            came,
        }
    }

    /// What a run is told of them.
    fn told(&self) -> String {
        let pairs = |list: &[SocketAddr]| {
            list.iter()
                .map(|a| json!([a.ip().to_string(), a.port()]))
                .collect::<Vec<_>>()
        };
        json!({"tcp": pairs(&self.tcp), "udp": pairs(&self.udp), "path": self.path, "name": self.name}).to_string()
    }
}

/// The thread ends with the process.
fn count(came: Arc<AtomicUsize>, mut next: impl FnMut() -> bool + Send + 'static) {
    std::thread::spawn(move || {
        while next() {
            came.fetch_add(1, Ordering::SeqCst);
        }
    });
}

#[test]
fn programs_find_the_gate_by_themselves() {
    let instance = Instance::new();
    let (out, asked) = run(
        &instance,
        "import http.client, os, ssl, urllib.request\ndef main(args):\n    body = urllib.request.urlopen('http://a.test/x', timeout=5).read().decode()\n    try:\n        urllib.request.urlopen('https://b.test/', timeout=5)\n        tls = 'opened'\n    except OSError as e:\n        tls = type(e).__name__\n    c = http.client.HTTPConnection('127.0.0.1', 3128, timeout=5)\n    c.request('GET', 'http://c.test/')\n    direct = c.getresponse().read().decode()\n    last()\n    env = {k: v for k, v in os.environ.items() if 'proxy' in k.lower()}\n    return {'body': body, 'tls': tls, 'direct': direct, 'env': env, 'certificates': len(ssl.create_default_context().get_ca_certs())}\n",
    );
    assert_eq!(out["body"], "hello");
    assert_eq!(out["direct"], "hello");
    let env = out["env"].as_object().unwrap();
    assert_eq!(env.len(), 8, "{env:?}");
    for (name, value) in env {
        let want = if name.eq_ignore_ascii_case("no_proxy") {
            "localhost,127.0.0.1,::1"
        } else {
            "http://127.0.0.1:3128"
        };
        assert_eq!(value, want, "{name}");
    }
    assert!(
        asked[0].starts_with("GET http://a.test/x HTTP/1.1\r\n"),
        "{asked:?}"
    );
    assert!(
        asked[1].starts_with("CONNECT b.test:443 HTTP/1."),
        "{asked:?}"
    );
    assert!(asked[2].starts_with("GET http://c.test/ "), "{asked:?}");
    if std::path::Path::new("/etc/ssl/certs/ca-certificates.crt").exists() {
        assert!(out["certificates"].as_u64().unwrap() > 10, "{out}");
    }
}

/// The system's words are for somebody whose cable is out.
#[test]
fn who_goes_past_the_proxy_is_told_of_it() {
    let instance = Instance::new();
    for line in [
        "socket.create_connection(('192.0.2.1', 443), timeout=5)",
        "socket.create_connection(('2001:db8::1', 443), timeout=5)",
        "socket.create_connection(('a.test', 443), timeout=5)",
        "socket.socket().connect(('192.0.2.1', 443))",
        // Its proxy's port, which Landlock knows no address of.
        "socket.socket().connect(('192.0.2.1', 3128))",
        "socket.socket(type=socket.SOCK_DGRAM).sendto(b'?', ('192.0.2.1', 53))",
    ] {
        let (services, _) = gate();
        let code =
            format!("import socket\ndef main(args):\n    try: {line}\n    finally: last()\n");
        let result = instance.plugin.run(with_network(&code), &services).unwrap();
        let told = "this run reaches its granted hosts through the proxy that HTTPS_PROXY names";
        let message = &result.error_message;
        assert!(message.starts_with(told), "{line}: {message}");
    }
}

#[test]
fn without_network_nothing_of_it_is_there() {
    let instance = Instance::new();
    let sentinels = Sentinels::new();
    let out = instance.output(
        "import os, socket\ndef main(args):\n    try:\n        socket.socket()\n        made = True\n    except PermissionError:\n        made = False\n    return {'made': made, 'env': [k for k in os.environ if 'proxy' in k.lower()]}\n",
    );
    assert_eq!(out, json!({"made": false, "env": []}));
    assert_eq!(sentinels.came.load(Ordering::SeqCst), 0);
}

#[test]
fn a_run_that_cannot_have_its_gate_does_not_go_on() {
    let instance = Instance::new();
    let services = Services::default();
    // It is ended while the launcher is still about to tell it to begin, now before that and now after.
    for _ in 0..60 {
        let request = with_network("import time\ndef main(args):\n    time.sleep(15)\n");
        let result = instance.plugin.run(request, &services).unwrap();
        assert_eq!(
            (result.completed, result.error_type.as_str()),
            (false, "SandboxError")
        );
        let message = &result.error_message;
        assert!(message.contains("gate"), "{message}");
    }
}

#[test]
fn names_of_the_proxy_cannot_be_set_from_outside() {
    let instance = Instance::new();
    for name in ["HTTP_PROXY", "https_proxy", "No_Proxy", "ALL_PROXY"] {
        for network in [abi::NET_NONE, abi::NET_GATE] {
            let request = RunRequest {
                network,
                env: vec![(name.into(), "http://evil.test".into())],
                ..request("def main(args): pass")
            };
            let error = instance.plugin.run(request, &gate().0).unwrap_err();
            assert!(
                error.message.contains("cannot be set from outside"),
                "{error}"
            );
        }
    }
}

/// Each attempt is a line: what, and how it ended. `done` is what must not be.
const ATTEMPTS: &str = r#"
import ctypes, errno, json, os, socket, struct, threading
TOLD = json.loads('''@TOLD@''')
libc = ctypes.CDLL(None, use_errno=True)
out = []
def attempt(what, f):
    try:
        f()
        out.append([what, 'done'])
    except OSError as e:
        out.append([what, errno.errorcode.get(e.errno, str(e.errno)) if e.errno else type(e).__name__])
    except Exception as e:
        out.append([what, type(e).__name__])

def tcp(address, family=socket.AF_INET, how='connect'):
    def go():
        s = socket.socket(family, socket.SOCK_STREAM)
        s.settimeout(1)
        if how == 'connect': s.connect(address)
        elif how == 'connect_ex':
            e = s.connect_ex(address)
            if e: raise OSError(e, '')
        elif how == 'nonblocking':
            s.setblocking(False)
            e = s.connect_ex(address)
            if e: raise OSError(e, '')
        elif how == 'fastopen': s.sendto(b'x', socket.MSG_FASTOPEN, address)
        elif how == 'sendmsg': s.sendmsg([b'x'], [], socket.MSG_FASTOPEN, address)
        elif how == 'bound':
            s.bind(('127.0.0.1', 0)); s.connect(address)
        elif how == 'fastopen_connect':
            s.setsockopt(6, 30, 1); s.connect(address); s.send(b'x')
    return go

def raw(number, *args):
    def go():
        ctypes.set_errno(0)
        if libc.syscall(number, *args) < 0:
            raise OSError(ctypes.get_errno(), '')
    return go

def datagram(address, family=socket.AF_INET, kind=socket.SOCK_DGRAM, proto=0):
    def go():
        s = socket.socket(family, kind, proto)
        s.sendto(b'x' * 12, address)
    return go

def main(args):
    # the sentinels themselves, by every way to connect
    for ip, port in TOLD['tcp']:
        family = socket.AF_INET6 if ':' in ip else socket.AF_INET
        for how in ('connect', 'connect_ex', 'nonblocking', 'fastopen', 'sendmsg', 'bound', 'fastopen_connect'):
            attempt(f'tcp {how} {ip}:{port}', tcp((ip, port), family, how))
    for ip, port in TOLD['udp']:
        family = socket.AF_INET6 if ':' in ip else socket.AF_INET
        attempt(f'udp {ip}:{port}', datagram((ip, port), family))
    # the same in other words: addresses of this machine, of its network, of its cloud, of the world
    ports = sorted({port for _, port in TOLD['tcp']})
    for host in ('127.0.0.1', '127.1', '127.0.1', '127.0.0.2', '0.0.0.0', '0', '2130706433', '0x7f000001', '017700000001', '0x7f.1',
                 'localhost', '127.255.255.254', '10.0.0.1', '172.17.0.1', '192.168.0.1', '169.254.169.254', '100.100.100.200',
                 '168.63.129.16', '255.255.255.255', '224.0.0.1', '1.1.1.1', '8.8.8.8', '93.184.216.34', '198.51.100.1'):
        for port in ports + [53, 80, 443]:
            attempt(f'tcp {host}:{port}', tcp((host, port)))
    for host in ('::1', '::', '::ffff:127.0.0.1', '::127.0.0.1', 'fe80::1%lo', 'fe80::1', 'fd00:ec2::254', '2606:4700::1111',
                 '64:ff9b::7f00:1', '2002:7f00:1::', 'ff02::1', '::ffff:0:127.0.0.1'):
        for port in ports[:2] + [443, 3128]:
            attempt(f'tcp6 [{host}]:{port}', tcp((host, port), socket.AF_INET6))
    # names
    for name in ('example.com', 'localhost.', 'metadata.google.internal', 'a.' * 60 + 'com', 'x' * 63 + '.evil.test'):
        attempt(f'getaddrinfo {name[:20]}', lambda: socket.getaddrinfo(name, 443, 0, socket.SOCK_STREAM) if not name.startswith('localhost') else tcp((name, ports[0]))())
        attempt(f'gethostbyname {name[:20]}', lambda: socket.gethostbyname(name) if not name.startswith('localhost') else tcp((name, 443))())
    for server in ('1.1.1.1', '8.8.8.8', '127.0.0.53', '10.255.255.53'):
        attempt(f'dns udp {server}', datagram((server, 53)))
        attempt(f'dns tcp {server}', tcp((server, 53)))
    # other kinds of sockets
    for family in range(0, 46):
        if family == socket.AF_UNIX: continue
        for kind, proto in ((1, 0), (1, 6), (2, 0), (2, 17), (3, 1), (3, 255), (3, 768), (5, 132), (1, 132), (1, 262), (2, 1), (3, 0)):
            if family == socket.AF_INET and (kind, proto) in ((1, 0), (1, 6)): continue
            attempt(f'socket {family} {kind} {proto}', lambda: socket.socket(family, kind, proto))
            attempt(f'syscall socket {family} {kind} {proto}', raw(41, family, kind, proto, 0))
    for kind in (1, 2, 3, 5):
        attempt(f'socketpair inet {kind}', raw(53, socket.AF_INET, kind, 0, (ctypes.c_int * 2)()))
    # unix sockets of the host
    attempt('unix path', lambda: socket.socket(socket.AF_UNIX).connect(TOLD['path']))
    attempt('unix abstract', lambda: socket.socket(socket.AF_UNIX).connect('\0' + TOLD['name']))
    attempt('unix abstract datagram', lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'x', '\0' + TOLD['name']))
    for path in ('/run/docker.sock', '/var/run/docker.sock', '/run/dbus/system_bus_socket', '/run/systemd/notify', '/dev/log'):
        attempt(f'unix {path}', lambda: socket.socket(socket.AF_UNIX).connect(path))
        attempt(f'unix datagram {path}', lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).connect(path))
    # ways around the filter
    attempt('io_uring_setup', raw(425, 8, ctypes.create_string_buffer(120)))
    for number in (426, 427):
        attempt(f'io_uring {number}', raw(number, 0, 0, 0, 0, 0, 0))
    attempt('unshare net', raw(272, 0x40000000))
    attempt('unshare user net', raw(272, 0x50000000))
    attempt('clone net', raw(56, 0x40000000 | 17, 0, 0, 0, 0))
    for ns in ('net', 'user', 'mnt'):
        attempt(f'setns own {ns}', lambda: raw(308, os.open(f'/proc/self/ns/{ns}', os.O_RDONLY), 0)())
        attempt(f'setns init {ns}', lambda: raw(308, os.open(f'/proc/1/ns/{ns}', os.O_RDONLY), 0)())
    attempt('pidfd_getfd', raw(438, 0, 0, 0))
    attempt('bpf', raw(321, 0, 0, 0))
    # the interface, the tables and the options of the socket that it may have
    s = socket.socket()
    for request in (0x8912, 0x8914, 0x8915, 0x8916, 0x890b, 0x890c, 0x8955, 0x8933, 0x8927, 0x89a0, 0x89f0, 0x8946):
        attempt(f'ioctl {request:#x}', raw(16, s.fileno(), request, ctypes.create_string_buffer(64)))
    for level, option in ((0, 64), (41, 64), (6, 31), (6, 19), (0, 35), (284, 1), (0, 19), (6, 13), (263, 1), (41, 26)):
        attempt(f'setsockopt {level} {option}', raw(54, s.fileno(), level, option, ctypes.create_string_buffer(b'tls\0' * 8), 32))
    attempt('SO_BINDTODEVICE eth0', lambda: s.setsockopt(socket.SOL_SOCKET, 25, b'eth0\0'))
    attempt('SO_MARK', lambda: s.setsockopt(socket.SOL_SOCKET, 36, 1))
    # listening for others
    for port in (0, 80, 3129, 8080):
        attempt(f'bind {port}', lambda: socket.socket().bind(('127.0.0.1', port)))
    attempt('bind the gate', lambda: socket.socket().bind(('127.0.0.1', 3128)))
    attempt('/proc/net', lambda: open('/proc/net/tcp').read())
    # its own namespace's, and empty but for the heading
    attempt('/proc/self/net/route', lambda: open('/proc/self/net/route').readlines()[1])
    attempt('/sys/class/net', lambda: os.listdir('/sys/class/net'))
    attempt('/dev/net/tun', lambda: os.open('/dev/net/tun', os.O_RDWR))
    attempt('/dev/vsock', lambda: os.open('/dev/vsock', os.O_RDWR))
    attempt('/dev/vhost-net', lambda: os.open('/dev/vhost-net', os.O_RDWR))
    # from a thread and from another process
    thread = threading.Thread(target=lambda: attempt('thread', tcp(tuple(TOLD['tcp'][0]))))
    thread.start(); thread.join()
    pid = os.fork()
    if pid == 0:
        try:
            socket.create_connection(tuple(TOLD['tcp'][0]), timeout=1)
            os._exit(0)
        except OSError:
            os._exit(1)
    out.append(['fork', 'done' if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0 else 'refused'])
    last()
    bad = [line for line in out if line[1] == 'done']
    words = {}
    for _, word in out:
        words[word] = words.get(word, 0) + 1
    return {'count': len(out), 'bad': bad, 'words': words}
"#;

#[test]
fn nothing_else_is_reached() {
    let instance = Instance::new();
    let sentinels = Sentinels::new();
    let (out, _) = run(&instance, &ATTEMPTS.replace("@TOLD@", &sentinels.told()));
    assert_eq!(out["bad"], json!([]), "{out}");
    assert!(out["count"].as_u64().unwrap() >= 300, "{out}");
    assert_eq!(sentinels.came.load(Ordering::SeqCst), 0);
}

/// Two runs at the same time, each with a gate of its own at the same address.
#[test]
fn the_gate_of_another_run_is_not_there() {
    let instance = Instance::new();
    let code = |name: &str| {
        format!(
            "def main(args):\n    import socket, urllib.request\n    for _ in range(20):\n        urllib.request.urlopen('http://{name}.test/', timeout=5).read()\n    try:\n        socket.socket(socket.AF_UNIX).connect('\\0gate')\n        return 'reached'\n    except OSError:\n        pass\n    last()\n    return 'ok'\n"
        )
    };
    std::thread::scope(|scope| {
        for name in ["one", "two", "three"] {
            let (instance, code) = (&instance, code(name));
            scope.spawn(move || {
                let (out, asked) = run(instance, &code);
                assert_eq!(out, "ok");
                assert_eq!(asked.len(), 21);
                assert!(
                    asked[..20]
                        .iter()
                        .all(|head| head.starts_with(&format!("GET http://{name}.test/"))),
                    "{asked:?}"
                );
            });
        }
    });
}

/// What it sends and nobody reads lies in the kernel, where every connection of the host is counted together.
#[test]
fn what_connections_hold_is_bounded() {
    const MOST: u64 = 128 << 20;
    let code = format!(
        "\
import socket
def main(args):
    sockets, sent, idle = [], 0, 0
    for _ in range(900):
        s = socket.socket()
        s.setblocking(False)
        s.connect_ex(('127.0.0.1', 3128))
        sockets.append(s)
    chunk = bytes(1 << 16)
    while idle < 3 and sent <= {MOST}:
        before = sent
        for s in sockets:
            try:
                while sent <= {MOST}: sent += s.send(chunk)
            except OSError: pass
        idle = idle + 1 if sent == before else 0
    return sent
"
    );
    let instance = Instance::new();
    let kept: Mutex<Option<OwnedFd>> = Mutex::default();
    let services = Services {
        gate: Some(Box::new(move |listener| {
            *kept.lock().unwrap() = Some(listener);
        })),
        ..Services::default()
    };
    let mut request = with_network(&code);
    // Where what it sends is memory like any other.
    request.limits.memory_bytes = MOST / 2;
    let result = instance.plugin.run(request, &services).unwrap();
    let sent: u64 = returned(&result, &services);
    assert!(sent > 0, "{result:?}");
    // Without control groups nothing bounds what is not accepted yet but how many there are.
    if is_root() {
        assert!(sent <= MOST, "{sent}");
    }
}

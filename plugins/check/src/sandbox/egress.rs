//! The way out: none, or the gate and nothing else. Sentinels listen on the host; no run may reach one.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use rustix::process::getpid;
use serde::Deserialize;
use serde_json::json;
use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::model::RunRequest;

use super::gate::Gate;
use super::{Services, output_of, request};
use crate::bench::{Bench, Done, Stop, demand, failed, failed_at};

struct Sentinels {
    tcp: Vec<TcpListener>,
    udp: Vec<UdpSocket>,
    unix: Vec<(String, UnixListener)>,
    /// Abstract names, where a file's path would be.
    names: Vec<String>,
}

impl Sentinels {
    fn new(bench: &Bench) -> Done<Self> {
        // Asked which address a packet to the world would come from; none is sent. A machine without a network has none.
        let outward = UdpSocket::bind("0.0.0.0:0")
            .and_then(|s| s.connect("192.0.2.1:9").and_then(|()| s.local_addr()))
            .map(|address| address.ip());
        let own = [
            IpAddr::from([127, 0, 0, 1]),
            IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]),
        ];
        let (mut tcp, mut udp) = (Vec::new(), Vec::new());
        for ip in own.into_iter().chain(outward) {
            // A machine without IPv6 has no ::1.
            if let (Ok(listener), Ok(socket)) =
                (TcpListener::bind((ip, 0)), UdpSocket::bind((ip, 0)))
            {
                listener.set_nonblocking(true)?;
                socket.set_nonblocking(true)?;
                tcp.push(listener);
                udp.push(socket);
            }
        }
        let path = bench.dir.join("sentinel").display().to_string();
        let listener = UnixListener::bind(&path)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777))?;
        listener.set_nonblocking(true)?;
        let mut unix = vec![(path, listener)];
        let name = format!("skillgate-check-{}", getpid().as_raw_nonzero());
        let address = std::os::unix::net::SocketAddr::from_abstract_name(&name)?;
        let listener = UnixListener::bind_addr(&address)?;
        listener.set_nonblocking(true)?;
        unix.push((format!("@{name}"), listener));
        Ok(Sentinels {
            tcp,
            udp,
            unix,
            names: vec![name],
        })
    }

    fn told(&self) -> Done<serde_json::Value> {
        let pair = |address: SocketAddr| json!([address.ip().to_string(), address.port()]);
        let mut tcp = Vec::new();
        for listener in &self.tcp {
            tcp.push(pair(listener.local_addr()?));
        }
        let mut udp = Vec::new();
        for socket in &self.udp {
            udp.push(pair(socket.local_addr()?));
        }
        let paths: Vec<_> = self
            .unix
            .iter()
            .map(|(path, _)| path)
            .filter(|path| !path.starts_with('@'))
            .collect();
        Ok(json!({"tcp": tcp, "udp": udp, "paths": paths, "names": self.names}))
    }

    /// Who was reached.
    fn reached(&self) -> Done<Vec<String>> {
        let mut reached = Vec::new();
        let mut heard = |what: String, came: std::io::Result<()>| match came {
            Ok(()) => {
                reached.push(what);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        };
        for listener in &self.tcp {
            heard(
                format!("tcp {}", listener.local_addr()?),
                listener.accept().map(drop),
            )?;
        }
        for socket in &self.udp {
            heard(
                format!("udp {}", socket.local_addr()?),
                socket.recv(&mut [0; 64]).map(drop),
            )?;
        }
        for (path, listener) in &self.unix {
            heard(format!("unix {path}"), listener.accept().map(drop))?;
        }
        Ok(reached)
    }
}

/// Tries every way that there is; says what it could open, and which interfaces it has beside its loopback, which is the
/// first of every network (`None`: it cannot know).
const ATTEMPTS: &str = r"
import socket, threading
def tries(told):
    done = []
    def attempt(what, f):
        try:
            f()
            done.append(what)
        except (OSError, ValueError, RuntimeError): pass
    def stream(family, address):
        s = socket.socket(family, socket.SOCK_STREAM)
        s.settimeout(1)
        s.connect(address)
    def datagram(family, address):
        socket.socket(family, socket.SOCK_DGRAM).sendto(b'x', address)
    def family(ip):
        return socket.AF_INET6 if ':' in ip else socket.AF_INET
    for ip, port in told['tcp']:
        attempt('tcp ' + ip, lambda: stream(family(ip), (ip, port)))
    for ip, port in told['udp']:
        attempt('udp ' + ip, lambda: datagram(family(ip), (ip, port)))
    for path in told['paths']:
        attempt('unix ' + path, lambda: stream(socket.AF_UNIX, path))
    for name in told['names']:
        attempt('abstract ' + name, lambda: stream(socket.AF_UNIX, '\0' + name))
    attempt('metadata service', lambda: stream(socket.AF_INET, ('169.254.169.254', 80)))
    attempt('metadata service by IPv6', lambda: stream(socket.AF_INET6, ('fd00:ec2::254', 80)))
    def resolve():
        # Who asks for a name is heard by whoever its server asks. Not for longer: its server may answer never.
        found = []
        def ask():
            try: found.extend(socket.getaddrinfo('example.com', 80))
            except OSError: pass
        asks = threading.Thread(target=ask, daemon=True)
        asks.start()
        asks.join(2)
        if not found: raise OSError
    attempt('name service', resolve)
    attempt('raw socket', lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).sendto(b'\x08\x00\xf7\xff\x00\x00\x00\x00', ('127.0.0.1', 0)))
    attempt('packet socket', lambda: socket.socket(17, socket.SOCK_RAW, 0x0300))
    try: beside = [name for index, name in socket.if_nameindex() if (index, name) != (1, 'lo')]
    except OSError: beside = None
    return {'opened': done, 'beside': beside}
";
/// As it calls them.
const RAW: &str = "raw socket";
const PACKET: &str = "packet socket";

#[derive(Debug, Deserialize)]
struct Tried {
    opened: Vec<String>,
    beside: Option<Vec<String>>,
}

impl Tried {
    /// What is a way out, or may be one. `host_has_others`: this machine's network is more than a loopback.
    fn ways_out(&self, host_has_others: bool) -> Vec<&str> {
        // Who may write packets reaches what there is an interface for. With nothing but a loopback that is nobody, if it is
        // not this machine's own.
        let is_alone = self.beside.as_ref().is_some_and(Vec::is_empty) && host_has_others;
        let opened = self.opened.iter().map(String::as_str);
        let is_out = |what: &&str| match *what {
            RAW | PACKET => !is_alone,
            // A datagram to an address of its own is not a way out; everything that is a connection is.
            what => !what.starts_with("udp "),
        };
        opened.filter(is_out).collect()
    }
}

/// Has this machine's network another interface than its loopback?
fn host_has_others() -> std::io::Result<bool> {
    let devices = std::fs::read_to_string("/proc/self/net/dev")?;
    // Two lines of headings, then "name: counts".
    let mut names = devices
        .lines()
        .skip(2)
        .filter_map(|line| line.split_once(':'));
    Ok(names.any(|(name, _)| name.trim() != "lo"))
}

pub(crate) fn none(bench: &Bench) -> Done {
    let sandbox = super::python(bench)?;
    if sandbox.caps().egress & abi::EGRESS_CAN_DENY == 0 {
        return Err(Stop::Skipped(
            "caps.egress does not say SKG_EGRESS_CAN_DENY".into(),
        ));
    }
    let sentinels = Sentinels::new(bench)?;
    let code = format!("{ATTEMPTS}\ndef main(args):\n    return tries(args)\n");
    let request = RunRequest {
        args_json: sentinels.told()?.to_string().into_bytes(),
        network: abi::NET_NONE,
        ..request(&code)
    };
    let services = Arc::new(Services::default());
    let done = output_of(
        bench,
        &sandbox,
        "one without a network that looks for a way out",
        request,
        &services,
    )?;
    let tried = Tried::deserialize(&done).map_err(|_| {
        failed(format!(
            "code that returns what it could open returns {done}"
        ))
    })?;
    is_contained("SKG_NET_NONE", &sentinels, &tried)
}

/// Neither has a run of this mode reached a sentinel, nor could it open what leads past all of them.
fn is_contained(mode: &str, sentinels: &Sentinels, tried: &Tried) -> Done {
    let reached = sentinels.reached()?;
    demand(reached.is_empty(), || {
        let reached = reached.join(", ");
        format!("a run with mode {mode} has reached the host: {reached}")
    })?;
    let out = tried.ways_out(host_has_others()?);
    demand(out.is_empty(), || {
        format!(
            "a run with mode {mode} could open: {}; its interfaces beside a loopback: {:?}",
            out.join(", "),
            tried.beside
        )
    })
}

/// What a run says that has been through its gate, and past it if it could.
#[derive(Debug, Deserialize)]
struct ThroughGate {
    body: String,
    tried: Tried,
}

pub(crate) fn gate(bench: &Bench) -> Done {
    let sandbox = super::python(bench)?;
    if sandbox.caps().egress & abi::EGRESS_GATE_LISTENER == 0 {
        return Err(Stop::Skipped(
            "caps.egress does not say SKG_EGRESS_GATE_LISTENER".into(),
        ));
    }
    let sentinels = Sentinels::new(bench)?;
    let code = format!(
        "{ATTEMPTS}\nimport urllib.request\ndef main(args):\n    body = urllib.request.urlopen('http://gate.test/through', timeout=10).read().decode()\n    return {{'body': body, 'tried': tries(args)}}\n"
    );
    let request = RunRequest {
        args_json: sentinels.told()?.to_string().into_bytes(),
        network: abi::NET_GATE,
        ..request(&code)
    };
    let services = Arc::new(Services {
        gate: Some(Gate::default()),
        ..Services::default()
    });
    let done = output_of(
        bench,
        &sandbox,
        "one that goes through its gate",
        request,
        &services,
    )?;
    let ThroughGate { body, tried } = ThroughGate::deserialize(&done).map_err(|_| {
        failed(format!(
            "code that returns what it read and could open returns {done}"
        ))
    })?;
    let gate = services.gate.as_ref();
    if !gate.is_some_and(Gate::has_listener) {
        return Err(failed_at(
            "gate_serve",
            "it was not called for a run with mode SKG_NET_GATE",
        ));
    }
    let asked = gate.map(Gate::asked).unwrap_or_default();
    demand(
        body == "hello" && asked.iter().any(|line| line.contains("gate.test/through")),
        || format!("through its gate a run reads {body}; the gate was asked {asked:?}"),
    )?;
    is_contained("SKG_NET_GATE", &sentinels, &tried)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn tried(opened: &[&str], beside: Option<&[&str]>) -> Tried {
        let owned = |all: &[&str]| all.iter().map(|&text| text.to_owned()).collect();
        Tried {
            opened: owned(opened),
            beside: beside.map(owned),
        }
    }

    #[test]
    fn packets_lead_nowhere_where_there_is_nothing_but_a_loopback_of_its_own() {
        let all = ["udp 127.0.0.1", RAW, PACKET];
        let alone = tried(&all, Some(&[]));
        assert!(alone.ways_out(true).is_empty());
        assert_eq!(alone.ways_out(false), [RAW, PACKET], "it may be the host's");
        for beside in [Some(&["eth0"][..]), None] {
            let out = tried(&all, beside);
            assert_eq!(out.ways_out(true), [RAW, PACKET], "{beside:?}");
        }
        let through = tried(&["tcp 127.0.0.1"], Some(&[]));
        assert_eq!(through.ways_out(true), ["tcp 127.0.0.1"]);
    }

    /// What a run is told to try, tried by Python here.
    fn attempts(first: &str, program: &str, args: &[&str]) -> Tried {
        let nobody = r#"{"tcp": [], "udp": [], "paths": [], "names": []}"#;
        let code =
            format!("{ATTEMPTS}\nimport json\n{first}\nprint(json.dumps(tries({nobody})))\n");
        let output = Command::new(program)
            .args(args)
            .args(["-c", &code])
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// No run of a test asks a real one.
    #[test]
    fn a_name_that_is_resolved_is_a_way_out() {
        let answers = "socket.getaddrinfo = lambda host, port: [(host, port)]";
        let hangs = "import time\nsocket.getaddrinfo = lambda host, port: time.sleep(60)";
        let none = "def none(*_): raise socket.gaierror\nsocket.getaddrinfo = none";
        for (first, is_out) in [(answers, true), (hangs, false), (none, false)] {
            let tried = attempts(first, "python3", &[]);
            let out = tried.ways_out(true);
            assert_eq!(out.contains(&"name service"), is_out, "{first}: {out:?}");
        }
    }

    #[test]
    fn a_network_of_its_own_is_told_from_this_machines() {
        let nobody_asked = "def none(*_): raise socket.gaierror\nsocket.getaddrinfo = none";
        let here = attempts(nobody_asked, "python3", &[]);
        let has_others = here.beside.map(|beside| !beside.is_empty());
        assert_eq!(has_others, Some(host_has_others().unwrap()));
        if !rustix::process::geteuid().is_root() {
            eprintln!("not checked: only the superuser makes a network and sends packets");
            return;
        }
        // With its loopback up a raw packet is sent, to nobody.
        let up = "import fcntl, struct\nfcntl.ioctl(socket.socket(socket.AF_INET, socket.SOCK_DGRAM), 0x8914, struct.pack('16sH14x', b'lo', 1))";
        let there = attempts(up, "unshare", &["--net", "python3"]);
        assert_eq!(there.opened, [RAW, PACKET]);
        assert_eq!(there.beside.as_deref(), Some(&[][..]));
        assert!(there.ways_out(true).is_empty());
    }
}

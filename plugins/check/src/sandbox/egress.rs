//! The way out: none, or the gate and nothing else. Sentinels listen on the host; no run may reach one.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::process::getpid;
use serde_json::json;
use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::model::RunRequest;

use super::{Services, output_of, request};
use crate::bench::{Bench, Done, Stop, demand, failed_at};

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

/// Tries every way that there is; says what succeeded.
const ATTEMPTS: &str = r"
import socket
def tries(told):
    done = []
    def attempt(what, f):
        try:
            f()
            done.append(what)
        except (OSError, ValueError): pass
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
    attempt('raw socket', lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).sendto(b'\x08\x00\xf7\xff\x00\x00\x00\x00', ('127.0.0.1', 0)))
    attempt('packet socket', lambda: socket.socket(17, socket.SOCK_RAW, 0x0300))
    return done
";

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
    demand(done.is_array(), || {
        format!("code that returns what it could open returns {done}")
    })?;
    let reached = sentinels.reached()?;
    demand(reached.is_empty(), || {
        format!(
            "a run with mode SKG_NET_NONE has reached the host: {}",
            reached.join(", ")
        )
    })?;
    // A datagram to an address of its own is not a way out; everything that is a connection is.
    let out: Vec<_> = done
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|what| what.as_str())
        .filter(|what| !what.starts_with("udp "))
        .collect();
    demand(out.is_empty(), || {
        format!(
            "a run with mode SKG_NET_NONE could open: {}",
            out.join(", ")
        )
    })
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
        "{ATTEMPTS}\nimport urllib.request\ndef main(args):\n    body = urllib.request.urlopen('http://gate.test/through', timeout=10).read().decode()\n    tries(args)\n    return body\n"
    );
    let request = RunRequest {
        args_json: sentinels.told()?.to_string().into_bytes(),
        network: abi::NET_GATE,
        ..request(&code)
    };
    let services = Arc::new(Services {
        gate: true,
        ..Services::default()
    });
    let body = output_of(
        bench,
        &sandbox,
        "one that goes through its gate",
        request,
        &services,
    )?;
    if !services.gate_served.load(Ordering::Acquire) {
        return Err(failed_at(
            "gate_serve",
            "it was not called for a run with mode SKG_NET_GATE",
        ));
    }
    let asked = super::lock(&services.asked).clone();
    demand(
        body == "hello" && asked.iter().any(|line| line.contains("gate.test/through")),
        || format!("through its gate a run reads {body}; the gate was asked {asked:?}"),
    )?;
    let reached = sentinels.reached()?;
    demand(reached.is_empty(), || {
        format!(
            "a run with mode SKG_NET_GATE has reached the host beside its gate: {}",
            reached.join(", ")
        )
    })
}

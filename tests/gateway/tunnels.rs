//! New rules and what goes on under the old ones: a tunnel whose host is no longer granted is cut while its run goes on,
//! one that is still granted is not, and both are on record.
//!
//! The hosts are two ports of `localhost`, which `gate.allow_private` lets the gate reach; they need not speak TLS, since
//! the gate asks for a ClientHello and passes on what comes behind it.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::policy::policy_in;
use crate::support::eventually;
use crate::support::gateway::{Gateway, House, Settings};
use crate::{alone, audit};

const PATIENCE: Duration = Duration::from_secs(30);
/// From the gateway's word that it has reloaded to the end of what is no longer granted. The rest is the same machine's
/// loopback; a busy machine gets plenty.
const CUT_WITHIN: Duration = Duration::from_secs(5);

/// Opens a tunnel to each port, waits until the first `cut` of them have ended, and says how all of them are.
const CODE: &str = r#"
import socket
import ssl

GATE = ("127.0.0.1", 3128)


def hello():
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    side = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()


def record(data):
    return b"\x17\x03\x03" + len(data).to_bytes(2, "big") + data


def ask(port):
    s = socket.create_connection(GATE, timeout=60)
    host = b"localhost:%d" % port
    s.sendall(b"CONNECT " + host + b" HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += s.recv(1)
    return s, head.split(b" ")[1].decode()


def state(s):
    try:
        s.sendall(record(b"PING"))
        return s.recv(4).decode() or "ended"
    except OSError:
        return "ended"


def main(args):
    tunnels = []
    for port in args["ports"]:
        s, status = ask(port)
        assert status == "200", status
        s.sendall(hello())
        assert state(s) == "PONG"
        tunnels.append(s)
    for s in tunnels:
        s.sendall(record(b"HERE"))
    for s in tunnels[: args["cut"]]:
        try:
            assert s.recv(1) == b""
        except ConnectionResetError:
            pass
    return {
        "tunnels": [state(s) for s in tunnels],
        "again": [ask(port)[1] for port in args["ports"]],
    }
"#;

/// Answers each PING with PONG, and counts who is there and who has gone. Ends with the test program.
#[derive(Debug, Clone, Default)]
struct Host {
    port: u16,
    here: Arc<AtomicUsize>,
    gone: Arc<AtomicUsize>,
}

impl Host {
    fn start() -> Host {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let host = Host {
            port: listener.local_addr().unwrap().port(),
            ..Host::default()
        };
        let this = host.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (this, stream) = (this.clone(), stream.unwrap());
                std::thread::spawn(move || {
                    // A tunnel that is cut may end in a reset.
                    let _ended = this.serve(stream);
                    this.gone.fetch_add(1, Ordering::SeqCst);
                });
            }
        });
        host
    }

    fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let (mut said, mut piece) = (Vec::new(), [0; 4096]);
        loop {
            let n = stream.read(&mut piece)?;
            if n == 0 {
                return Ok(());
            }
            said.extend_from_slice(&piece[..n]);
            while let Some(at) = said.windows(4).position(|w| w == b"PING" || w == b"HERE") {
                if said[at] == b'P' {
                    stream.write_all(b"PONG")?;
                } else {
                    self.here.fetch_add(1, Ordering::SeqCst);
                }
                said.drain(..at + 4);
            }
        }
    }

    fn here(&self) -> usize {
        self.here.load(Ordering::SeqCst)
    }

    fn gone(&self) -> usize {
        self.gone.load(Ordering::SeqCst)
    }
}

fn skill(dir: &Path, hosts: &[Host; 2]) {
    let dir = dir.join("skills/net.hold");
    fs::create_dir_all(dir.join("code")).unwrap();
    fs::write(dir.join("code/main.py"), CODE).unwrap();
    let text = "---\nname: net.hold\ndescription: Holds tunnels open. For tests.\n---\n";
    fs::write(dir.join("SKILL.md"), text).unwrap();
    let network = hosts
        .each_ref()
        .map(|host| format!("https://localhost:{}", host.port));
    let manifest = format!(
        "name = \"net.hold\"\nversion = \"1.0.0\"\ndescription = \"Holds tunnels open.\"\nkind = \"action\"\n\
         namespace = \"net\"\n[runtime]\nlanguage = \"python\"\nentrypoint = \"code/main.py\"\nexport = \"main\"\n\
         [permissions]\nnetwork = {network:?}\n"
    );
    fs::write(dir.join("skill.toml"), manifest).unwrap();
}

/// Rules that grant these ports of `localhost`.
fn granting(house: &House, hosts: &[&Host]) {
    granting_beside(house, hosts, 0);
}

/// With as many tenants that nobody here is of: other rules, which grant the same.
fn granting_beside(house: &House, hosts: &[&Host], tenants: usize) {
    let ports: Vec<u16> = hosts.iter().map(|host| host.port).collect();
    policy_in(house, |data| {
        for nth in 0..tenants {
            data["tenants"][format!("other{nth}")] = json!({ "source_cidrs": [], "limits": {} });
        }
        data["network"]["allow"]["localhost"] = json!({
            "exact": true, "subdomains": false, "schemes": ["https"], "ports": ports, "roles": ["*"], "skills": ["net"],
        });
        data["network"]["deny_cidrs"] = json!([]);
    });
}

/// Puts the rules as they are now in force, and says how long after that `so` came to be.
fn reload(gateway: &Gateway, what: &str, so: impl FnMut() -> bool) -> Duration {
    let said = || gateway.log().matches("reloaded: ").count();
    let before = said();
    gateway.signal("HUP");
    eventually("it is reloaded", PATIENCE, || said() > before);
    eventually(what, CUT_WITHIN, so)
}

/// Runs the skill until `change` has cut the first `cut` of its tunnels.
fn held(gateway: &Gateway, hosts: &[Host; 2], cut: usize, change: impl FnOnce()) -> Value {
    let here = hosts.each_ref().map(Host::here);
    std::thread::scope(|scope| {
        let run = scope.spawn(|| {
            let args = json!({ "ports": hosts.each_ref().map(|host| host.port), "cut": cut });
            let params = json!({ "name": "net.hold", "args": args, "timeout_ms": 60_000 });
            gateway.client().result("execute_skill", params).unwrap()
        });
        eventually("both tunnels are open", PATIENCE, || {
            hosts
                .iter()
                .zip(here)
                .all(|(host, before)| host.here() > before)
                || run.is_finished()
        });
        assert!(!run.is_finished(), "the run waits: {}", gateway.said());
        change();
        let answer = run.join().unwrap();
        assert_eq!(answer["status"], "completed", "{answer}");
        answer
    })
}

#[test]
fn a_reload_cuts_what_is_no_longer_granted_and_nothing_else() {
    let _alone = alone();
    let hosts = [Host::start(), Host::start()];
    let [lost, kept] = &hosts;
    let house = House::new(Settings::default());
    skill(house.path(), &hosts);
    house.configure(Settings {
        server: "reload_watch_ms = 0",
        extra: "[policy]\npath = \"policies\"\n[gate]\nallow_private = [\"127.0.0.0/8\", \"::1\"]\n",
        ..Settings::default()
    });
    granting(&house, &[lost, kept]);
    let mut command = house.command();
    let skills = house.path().join("skills");
    command.env("SKILLGATE_SKILLS__PATHS", format!("[{skills:?}]"));
    let gateway = house.start_as(command);

    // One of two hosts: the bundled administrator may run a skill with less than it declares.
    let mut took = Duration::ZERO;
    let narrowed = held(&gateway, &hosts, 1, || {
        granting(&house, &[kept]);
        took = reload(&gateway, "the tunnel is cut", || lost.gone() == 1);
    });
    println!("cut {} ms after the reload", took.as_millis());
    assert_eq!(
        narrowed["output"],
        json!({ "tunnels": ["ended", "PONG"], "again": ["403", "200"] })
    );

    // A reload of the same rules asks nothing again, and one that changes nothing for a run cuts nothing of it; one that would
    // refuse the run takes its whole network.
    granting(&house, &[lost, kept]);
    reload(&gateway, "both are granted again", || true);
    let (lost_before, kept_before) = (lost.gone(), kept.gone());
    let refused = held(&gateway, &hosts, 2, || {
        let decided = || decisions(&house).len();
        let before = decided();
        reload(&gateway, "the rules are the same", || true);
        // Twice: when the second is on record, the first has long had its effect.
        for nth in 1..=2 {
            granting_beside(&house, &[lost, kept], nth);
            reload(&gateway, "the run is decided again", || {
                decided() >= before + nth
            });
        }
        assert_eq!(decided(), before + 2);
        assert_eq!((lost.gone(), kept.gone()), (lost_before, kept_before));
        policy_in(&house, |data| data["roles"] = json!({}));
        reload(&gateway, "both are cut", || {
            lost.gone() == lost_before + 1 && kept.gone() == kept_before + 1
        });
    });
    assert_eq!(
        refused["output"],
        json!({ "tunnels": ["ended", "ended"], "again": ["403", "403"] })
    );
    gateway.stop();
    recorded(&house, &hosts, &narrowed["run_id"], &refused["run_id"]);
}

fn records(house: &House) -> Vec<Value> {
    audit::lines(&audit::path(house))
}

fn decisions(house: &House) -> Vec<Value> {
    let mut records = records(house);
    records.retain(|record| record["kind"] == "decision");
    records
}

/// Every connection with its end, every decision with what it granted.
fn recorded(house: &House, [lost, kept]: &[Host; 2], narrowed: &Value, refused: &Value) {
    let all = records(house);
    let decisions = decisions(house);
    // Started, narrowed; started, twice the same, refused.
    let nth = |decision_id: &Value| {
        let mut all = decisions.iter();
        all.position(|decision| decision["decision_id"] == *decision_id)
    };
    let of = |run: &Value, host: &Host| -> Vec<(String, String, Option<usize>)> {
        let mut ends: Vec<_> = all
            .iter()
            .filter(|record| record["kind"] == "connection" && record["run_id"] == *run)
            .filter(|record| record["port"] == host.port && record["host"] == "localhost")
            .map(|record| {
                let text = |name: &str| record[name].as_str().unwrap().to_owned();
                let decision = nth(&record["decision_id"]);
                (text("verdict"), text("reason"), decision)
            })
            .collect();
        // A connection is recorded at its end: two ends at the same time have no order.
        ends.sort();
        ends
    };
    // What ended it is the decision that no longer granted it.
    let cut = |nth: usize| {
        ["network.not_granted", "revoked"]
            .map(|why| ("refused".to_owned(), why.to_owned(), Some(nth)))
    };
    assert_eq!(of(narrowed, lost), cut(1));
    let still = of(narrowed, kept);
    let by: Vec<_> = still.iter().map(|(_, _, decision)| *decision).collect();
    assert_eq!(by.len(), 2, "{still:?}");
    assert!(by.contains(&Some(0)) && by.contains(&Some(1)), "{still:?}");
    assert!(
        still.iter().all(|(verdict, _, _)| verdict == "allowed"),
        "{still:?}"
    );
    for host in [lost, kept] {
        assert_eq!(of(refused, host), cut(5));
    }
    let granted: Vec<Value> = decisions
        .iter()
        .map(|record| record["result"]["granted"]["network"].clone())
        .collect();
    let url = |host: &Host| format!("https://localhost:{}", host.port);
    let mut both = [url(lost), url(kept)];
    both.sort();
    let (both, one) = (json!(both), json!([url(kept)]));
    let nothing = json!([]);
    assert_eq!(
        granted.iter().collect::<Vec<_>>(),
        [&both, &one, &both, &both, &both, &nothing]
    );
}

//! The way out through the whole gateway: a policy that grants, a skill that tries everything, and a world of sentinels.
//!
//! The test runs again in namespaces of its own (mounts and network), so that the world is one of ours: a second network
//! namespace answers on every address behind a pair of virtual interfaces, public addresses, metadata services and
//! private networks alike, and writes down who came. `/etc/hosts` is ours there too. That takes root; what an ordinary
//! user can try from inside is in the sandbox's own tests.

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::eventually;
use crate::support::gateway::{Gateway, House, Settings, is_root};
use crate::support::tools;

/// The one host that is granted, and what it is called.
const HOST: &str = "93.184.216.34";
/// Addresses that the world has besides. None may hear of a run.
const OTHERS: &[&str] = &[
    "93.184.216.99",
    "10.9.9.9",
    "169.254.169.254",
    "100.100.100.200",
    "168.63.129.16",
    "192.168.7.7",
    "198.18.9.9",
    "2606:2800:220:1::1",
    "fd00:ec2::254",
    "2001:db8:1::2",
    "64:ff9b::a09:909",
    "2001:0:a09:909::1",
    "2002:a09:909::1",
    "fec0::9",
];
/// An address of the gateway's own machine that looks public.
const OWN: &str = "93.184.216.50";

fn hosts() -> String {
    let names = |address: &str, names: &[&str]| {
        names
            .iter()
            .map(|name| format!("{address} {name}\n"))
            .collect::<String>()
    };
    let wild = |address: &str, name: &str| format!("{address} {name}.wild.allowed.test\n");
    [
        "127.0.0.1 localhost\n".to_owned(),
        names(
            HOST,
            &[
                "api.allowed.test",
                "plain.allowed.test",
                "x.wild.allowed.test",
            ],
        ),
        names(
            "93.184.216.99",
            &[
                "evil.test",
                "ungranted.test",
                "xapi.allowed.test",
                "allowed.test",
                "wild.allowed.test",
                "api.allowed.test.evil.test",
            ],
        ),
        wild("169.254.169.254", "meta"),
        wild("10.9.9.9", "inner"),
        wild(HOST, "mixed"),
        wild("10.9.9.9", "mixed"),
        wild("10.9.9.9", "mixed2"),
        wild(HOST, "mixed2"),
        wild("127.0.0.1", "loop"),
        wild("0.0.0.0", "any"),
        wild("fe80::1", "linklocal"),
        wild("fd00:ec2::254", "ula"),
        wild("::1", "six-loop"),
        wild("::ffff:10.9.9.9", "mapped"),
        wild("64:ff9b::a09:909", "nat64"),
        wild("2001:0:a09:909::1", "teredo"),
        wild("2002:a09:909::1", "sixtofour"),
        wild("2001:db8:1::2", "documentation"),
        wild("100.100.100.200", "carrier"),
        wild("224.0.0.1", "multicast"),
        wild("255.255.255.255", "broadcast"),
        wild(OWN, "own"),
        wild("168.63.129.16", "azure"),
        wild("fec0::9", "sitelocal"),
        wild("198.18.9.9", "benchmark"),
    ]
    .concat()
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

fn sh(script: &str) {
    let status = Command::new("sh").args(["-ec", script]).status().unwrap();
    assert!(status.success(), "{script}");
}

/// The other side of the wire. Ends with this.
struct World {
    child: Child,
    log: PathBuf,
}

impl Drop for World {
    fn drop(&mut self) {
        let _gone_already = self.child.kill();
        let _status = self.child.wait();
    }
}

impl World {
    fn new(dir: &Path) -> World {
        let log = dir.join("world.log");
        fs::write(&log, "").unwrap();
        let gate = dir.join("world.go");
        // It waits for its addresses before it listens on them.
        let wait = "while [ ! -e \"$1\" ]; do read -t 0.05 _ < /dev/zero 2>/dev/null || true; done; shift; exec \"$@\"";
        let tls = fixtures().join("tls");
        let child = Command::new("unshare")
            .args(["-n", "bash", "-c", wait, "bash"])
            .arg(&gate)
            .arg("python3")
            .arg(fixtures().join("egress/world.py"))
            .arg(&log)
            .args([tls.join("cert.pem"), tls.join("key.pem")])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let pid = child.id();
        let world = World { child, log };
        let own_net = fs::read_link("/proc/self/ns/net").unwrap();
        eventually(
            "the world has a network of its own",
            Duration::from_secs(10),
            || fs::read_link(format!("/proc/{pid}/ns/net")).is_ok_and(|net| net != own_net),
        );
        sh(&format!(
            "ip link set lo up
             ip link add v0 type veth peer name v1 netns {pid}
             ip addr add 203.0.113.1/24 dev v0; ip addr add {OWN}/32 dev v0
             ip link set v0 up; ip route add default dev v0
             ip -6 addr add 2001:db8:ffff::1/64 dev v0 nodad; ip -6 route add default dev v0 || true"
        ));
        let addresses: String = OTHERS
            .iter()
            .chain([&HOST])
            .map(|address| {
                if address.contains(':') {
                    format!("ip -6 addr add {address}/128 dev v1 nodad; ")
                } else {
                    format!("ip addr add {address}/32 dev v1; ")
                }
            })
            .collect();
        sh(&format!(
            "nsenter -t {pid} -n sh -ec 'ip link set lo up; ip link set v1 up; {addresses} ip route add default dev v1; ip -6 route add default dev v1 || true'"
        ));
        fs::write(&gate, "").unwrap();
        eventually("the world is ready", Duration::from_secs(20), || {
            world.lines().iter().any(|line| line == "ready")
        });
        world
    }

    fn lines(&self) -> Vec<String> {
        fs::read_to_string(&self.log)
            .unwrap()
            .lines()
            .map(str::to_owned)
            .collect()
    }

    /// What has come, without repetitions.
    fn came(&self) -> BTreeSet<String> {
        self.lines()
            .into_iter()
            .filter(|line| line != "ready")
            .collect()
    }
}

/// The bundled policy with other data: the grants of this test, and nothing of what it denies by address, so that the
/// gate alone has to.
pub(crate) fn policy(dir: &Path) -> PathBuf {
    let to = dir.join("policies");
    sh(&format!(
        "cp -r {:?} {to:?}",
        Path::new(env!("CARGO_MANIFEST_DIR")).join("policies")
    ));
    let path = to.join("skills/config/data.json");
    let mut data: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let entry = |exact: bool, subdomains: bool, scheme: &str, port: u16| json!({"exact": exact, "subdomains": subdomains, "schemes": [scheme], "ports": [port], "roles": ["*"], "skills": ["net"]});
    let network = &mut data["network"];
    network["allow"]["api.allowed.test"] = entry(true, false, "https", 443);
    network["allow"]["plain.allowed.test"] = entry(true, false, "http", 80);
    network["allow"]["wild.allowed.test"] = entry(false, true, "https", 443);
    network["deny_cidrs"] = json!([]);
    fs::write(&path, data.to_string()).unwrap();
    // They are about the bundled data as they are.
    for file in ["decision_test.rego", "conditions_test.rego"] {
        fs::remove_file(to.join("tests").join(file)).unwrap();
    }
    to
}

pub(crate) fn start(house: &House) -> Gateway {
    let mut command = house.command();
    command.env(
        "SKILLGATE_SKILLS__PATHS",
        format!("[{:?}]", fixtures().join("egress/skills")),
    );
    house.start_as(command)
}

fn execute(gateway: &Gateway, args: Value) -> Value {
    let answer = gateway
        .client()
        .result("execute_skill", json!({ "name": "net.try", "args": args }))
        .unwrap();
    assert_eq!(answer["status"], "completed", "{answer}");
    answer["output"].clone()
}

#[test]
fn nothing_but_what_is_granted_is_reached() {
    if !is_root() {
        tools::left_out_but_in_ci("a world of sentinels: it takes root");
        return;
    }
    let tools = ["ip", "nsenter", "bash", "mount"];
    if !tools
        .iter()
        .all(|tool| tools::there(tool, "a world of sentinels"))
    {
        return;
    }
    let _alone = crate::alone();
    let status = Command::new("unshare")
        .args(["-m", "-n", "--propagation", "private"])
        .arg(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "egress::in_namespaces",
            "--ignored",
            "--nocapture",
            "--test-threads",
            "1",
        ])
        .status()
        .unwrap();
    assert!(status.success(), "{status}");
}

#[test]
#[ignore = "what `nothing_but_what_is_granted_is_reached` starts in namespaces of its own"]
fn in_namespaces() {
    let dir = tempfile::tempdir().unwrap();
    let world = World::new(dir.path());
    let own_reached: Arc<AtomicUsize> = Arc::default();
    for address in [
        format!("{OWN}:443"),
        "127.0.0.1:443".into(),
        "127.0.0.1:8080".into(),
    ] {
        let listener = TcpListener::bind(&address).unwrap();
        let counted = own_reached.clone();
        std::thread::spawn(move || {
            while listener.accept().is_ok() {
                counted.fetch_add(1, Ordering::SeqCst);
            }
        });
    }
    let file = dir.path().join("hosts");
    fs::write(&file, hosts()).unwrap();
    sh(&format!("mount --bind {file:?} /etc/hosts"));
    let policy = policy(dir.path());
    let audit = dir.path().join("audit.jsonl");
    let house = House::new(Settings {
        extra: &format!(
            "[policy]\npath = {policy:?}\n[audit]\npath = {audit:?}\n[gate]\nheader_timeout_ms = 1000\nhello_timeout_ms = 1000\n"
        ),
        ..Settings::default()
    });
    let gateway = start(&house);

    // What is granted works, with the programs' own proxy settings and with certificates checked.
    let certificate = fs::read_to_string(fixtures().join("tls/cert.pem")).unwrap();
    let out = execute(
        &gateway,
        json!({ "do": "allowed", "certificate": certificate }),
    );
    for (what, body) in out.as_object().unwrap() {
        assert!(body == "WORLD" || body == "answer", "{what}: {body}");
    }
    let came = world.came();
    for line in [
        "https api.allowed.test /a",
        "https x.wild.allowed.test /c",
        "http plain.allowed.test /g",
    ] {
        assert!(came.contains(line), "{line}: {came:?}");
    }

    // Nothing else does.
    let out = execute(&gateway, json!({ "do": "bypass" }));
    assert_eq!(out["reached"], json!([]));
    assert!(out["count"].as_u64().unwrap() >= 300, "{out}");
    eprintln!("{} attempts", out["count"]);
    let fine = |line: &String| match line.split(' ').collect::<Vec<_>>()[..] {
        ["tcp", address, port] => address == HOST && ["80", "443"].contains(&port),
        ["sni", name] => [
            "api.allowed.test",
            "x.wild.allowed.test",
            "API.allowed.test",
        ]
        .contains(&name),
        ["https", host, _] => {
            let host = host.trim_end_matches(":443");
            ["api.allowed.test", "x.wild.allowed.test"].contains(&host)
        }
        ["http", host, _] => host.trim_end_matches(":80") == "plain.allowed.test",
        _ => false,
    };
    let bad: Vec<String> = world
        .came()
        .into_iter()
        .filter(|line| !fine(line))
        .collect();
    assert_eq!(bad, Vec::<String>::new());
    assert_eq!(own_reached.load(Ordering::SeqCst), 0);

    // Who is refused is told why.
    let out = execute(
        &gateway,
        json!({ "do": "told", "urls": ["https://evil.test/", "http://evil.test/", "https://inner.wild.allowed.test/", "https://nowhere.wild.allowed.test/"] }),
    );
    let said = |url: &str| out[url].as_str().unwrap().to_owned();
    assert!(
        said("https://evil.test/").contains(
            "https://evil.test is not granted to this run: permissions.network must name it"
        ),
        "{out}"
    );
    assert!(
        said("http://evil.test/").contains("skill.toml")
            && said("http://evil.test/").contains("policy grants it"),
        "{out}"
    );
    assert!(
        said("https://inner.wild.allowed.test/").contains("only its operator can allow it"),
        "{out}"
    );
    assert!(
        !out.to_string().contains("10.9.9.9"),
        "no address reaches a run: {out}"
    );
    assert!(
        said("https://nowhere.wild.allowed.test/").contains("has no address"),
        "{out}"
    );

    // Every connection is on record.
    let mut records = crate::audit::lines(&audit);
    records.retain(|record| record["kind"] == "connection");
    assert!(records.len() >= 300, "{}", records.len());
    let granted: BTreeSet<&str> = records
        .iter()
        .filter(|r| r["verdict"] == "allowed")
        .map(|r| r["host"].as_str().unwrap())
        .collect();
    assert_eq!(
        granted.into_iter().collect::<Vec<_>>(),
        [
            "api.allowed.test",
            "plain.allowed.test",
            "x.wild.allowed.test"
        ]
    );
    gateway.stop();
}

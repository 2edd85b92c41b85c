//! What a run sees of the world, asked from inside.

use serde_json::Value;

use crate::alone;
use crate::support::gateway::{House, Settings, is_root};

/// The answer stays below the 4096 bytes that an output may have.
const QUESTION: &str = r#"
import os

def main(args):
    status = dict(line.rstrip("\n").split(":\t", 1) for line in open("/proc/self/status") if ":\t" in line)
    mounts = []
    for line in open("/proc/self/mountinfo"):
        left, right = line.split(" - ")
        fields = left.split()
        mounts.append([fields[4], right.split()[0], fields[5]])
    fds = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            fds[fd] = os.readlink("/proc/self/fd/" + fd).split(":")[0]
        except FileNotFoundError:
            pass  # the one that listed the directory
    return {
        "uid": os.getresuid(), "gid": os.getresgid(), "groups": os.getgroups(),
        "pid": os.getpid(), "session": os.getsid(0),
        "processes": sorted(int(n) for n in os.listdir("/proc") if n.isdigit()),
        "status": {k: status[k] for k in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Seccomp_filters") if k in status},
        "ns": {n: os.readlink("/proc/self/ns/" + n) for n in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")},
        "mounts": mounts, "root": sorted(os.listdir("/")), "fds": fds,
        "environment": sorted(os.environ), "cwd": os.getcwd(), "host": os.uname().nodename,
        "links": sorted(os.listdir("/sys/class/net")) if os.path.isdir("/sys/class/net") else None,
        "net": [line.split(":")[0].strip() for line in list(open("/proc/net/dev"))[2:]] if os.path.exists("/proc/net/dev") else None,
        "umask": os.umask(0o077),
    }
"#;

fn texts(value: &Value) -> Vec<&str> {
    value
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect()
}

#[test]
fn seen_from_inside() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let gateway = house.start();
    let result = gateway
        .client()
        .run(QUESTION, serde_json::json!({}))
        .unwrap();
    let seen = &result["output"];
    println!("{seen:#}");
    assert!(seen.is_object(), "{result}");

    for id in ["uid", "gid"] {
        let ids: Vec<u64> = seen[id]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(Value::as_u64)
            .collect();
        assert!(
            ids.len() == 3 && ids.iter().all(|i| *i > 0 && *i == ids[0]),
            "{id}: {ids:?}"
        );
    }
    // Groups that an ordinary user cannot drop show as the overflow group.
    let groups = seen["groups"].as_array().unwrap();
    assert!(
        if is_root() {
            groups.is_empty()
        } else {
            groups.iter().all(|g| *g == 65534 || *g == seen["gid"][0])
        },
        "{groups:?}"
    );
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(seen["status"][set], "0000000000000000", "{set}");
    }
    assert_eq!(seen["status"]["NoNewPrivs"], "1");
    assert_eq!(seen["status"]["Seccomp"], "2", "a filter is on");

    for (name, inside) in seen["ns"].as_object().unwrap() {
        let outside = std::fs::read_link(format!("/proc/self/ns/{name}")).unwrap();
        assert_ne!(
            inside.as_str().unwrap(),
            outside.to_string_lossy(),
            "its own {name} namespace"
        );
    }
    let processes = seen["processes"].as_array().unwrap();
    assert!(
        processes.len() <= 2 && *seen["pid"].as_u64().as_ref().unwrap() <= 2,
        "sees only itself: {processes:?}"
    );
    assert!(
        seen["session"].as_u64().unwrap() > 0,
        "a session of its own, made inside"
    );
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert_ne!(
        seen["host"].as_str().unwrap(),
        host.trim(),
        "not the host's name"
    );
    if let Some(net) = seen["net"].as_array() {
        assert_eq!(net, &["lo"], "nothing but loopback");
    }

    for name in texts(&seen["environment"]) {
        assert!(
            ["HOME", "PATH", "LANG", "TMPDIR", "SKILLGATE_RUN_ID"].contains(&name),
            "{name} is in the environment"
        );
    }
    let fds = seen["fds"].as_object().unwrap();
    // 0 is /dev/null, 1 and 2 the log, 3 the channel to the gateway; one more lists the directory.
    let open: Vec<(&str, &str)> = fds
        .iter()
        .map(|(k, v)| (k.as_str(), v.as_str().unwrap()))
        .collect();
    for (fd, what) in &open {
        let fits = match *fd {
            "0" => *what == "/dev/null",
            "1" | "2" => *what == "pipe",
            "3" => *what == "socket",
            _ => what.starts_with("/proc/"),
        };
        assert!(fits, "descriptor {fd} is {what}");
    }

    let root = texts(&seen["root"]);
    for name in &root {
        assert!(
            [
                // Where the run's own tmpfs was put together; empty.
                ".run",
                "bin",
                "blobs",
                "dev",
                "etc",
                "lib",
                "lib64",
                "proc",
                "skills",
                "tmp",
                "usr",
                "workspace"
            ]
            .contains(name),
            "/{name} is visible: {root:?}"
        );
    }
    assert_eq!(seen["cwd"], "/workspace");
    let mut writable = Vec::new();
    for mount in seen["mounts"].as_array().unwrap() {
        let (point, kind, options) = (
            mount[0].as_str().unwrap(),
            mount[1].as_str().unwrap(),
            mount[2].as_str().unwrap(),
        );
        let options: Vec<&str> = options.split(',').collect();
        assert!(
            options.contains(&"nosuid"),
            "{point} may have setuid programs: {options:?}"
        );
        if options.contains(&"rw") && kind != "proc" {
            writable.push(point);
        }
        if ["/workspace", "/tmp", "/blobs"].contains(&point) {
            for option in ["nosuid", "nodev", "noexec"] {
                assert!(
                    options.contains(&option),
                    "{point} is not {option}: {options:?}"
                );
            }
        }
    }
    for point in &writable {
        assert!(
            ["/workspace", "/tmp"].contains(point) || point.starts_with("/dev/"),
            "{point} can be written to"
        );
    }
    gateway.stop();
}

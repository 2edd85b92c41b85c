//! What the suite grants where it configures the server itself: secrets, and hosts that say who came. Only so can be seen
//! that what is granted is given.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

/// The secrets that the server has, and their values. Policy grants the first and the last, and the skill
/// `conformance.keys` (`own/skills`) names the first and the second.
pub(crate) const SECRETS: [(&str, &str); 3] = [
    ("CONFORMANCE_GRANTED", "conformance-granted-7731"),
    ("CONFORMANCE_REFUSED", "conformance-refused-5208"),
    ("CONFORMANCE_UNNAMED", "conformance-unnamed-9164"),
];

/// How long a run may take to ask a host.
const PATIENCE: Duration = Duration::from_secs(5);

/// HTTP servers of this process, each `localhost:port`.
#[derive(Debug, Clone)]
pub(crate) struct Hosts {
    /// Granted to every skill that declares it.
    pub(crate) granted: String,
    /// Granted to nobody, whoever declares it.
    pub(crate) refused: String,
    /// Granted too, but no skill declares it.
    pub(crate) unnamed: String,
}

impl Hosts {
    /// They serve until this process ends.
    pub(crate) fn start() -> Result<Hosts, String> {
        Ok(Hosts {
            granted: host()?,
            refused: host()?,
            unnamed: host()?,
        })
    }
}

fn host() -> Result<String, String> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|e| format!("127.0.0.1: {e}"))?;
    let port = listener.local_addr().map_err(|e| e.to_string())?.port();
    std::thread::spawn(move || {
        let mut beats = BTreeMap::new();
        // One after the other, so that a count has all that came before it.
        for stream in listener.incoming().flatten() {
            let _who_asked_is_gone = serve(stream, &mut beats);
        }
    });
    Ok(format!("localhost:{port}"))
}

/// `/beat/NAME` counts, `/beats/NAME` says how many there were; anything else is `here`.
fn serve(mut stream: TcpStream, beats: &mut BTreeMap<String, u64>) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    while lines
        .next()
        .transpose()?
        .is_some_and(|line| !line.is_empty())
    {}
    let path = first.split(' ').nth(1).unwrap_or_default();
    let body = if let Some(name) = path.strip_prefix("/beats/") {
        beats.get(name).copied().unwrap_or_default().to_string()
    } else {
        if let Some(name) = path.strip_prefix("/beat/") {
            *beats.entry(name.to_owned()).or_default() += 1;
        }
        "here".to_owned()
    };
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
}

/// The bundled policy with the suite's grants, in `data`.
pub(crate) fn policy(repo: &Path, data: &Path, hosts: &Hosts) -> Result<(), String> {
    let to = data.join("policies");
    let copied = Command::new("cp")
        .arg("-r")
        .args([&repo.join("policies"), &to])
        .status();
    if !copied.as_ref().is_ok_and(std::process::ExitStatus::success) {
        return Err(format!("cp -r policies: {copied:?}"));
    }
    let failed =
        |path: &Path, error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    // They are about the bundled data as they are.
    let tests = to.join("tests");
    std::fs::remove_dir_all(&tests).map_err(|e| failed(&tests, &e))?;
    let rules = to.join("skills/custom/conformance.rego");
    let own = repo.join("tests/conformance/own/conformance.rego");
    std::fs::copy(&own, &rules).map_err(|e| failed(&own, &e))?;
    let file = to.join("skills/config/data.json");
    let text = std::fs::read_to_string(&file).map_err(|e| failed(&file, &e))?;
    let mut value: Value = serde_json::from_str(&text).map_err(|e| failed(&file, &e))?;
    for (name, _) in [SECRETS[0], SECRETS[2]] {
        value["secrets"][name] =
            json!({"roles": ["*"], "skills": ["conformance"], "hosts": [], "delivery": "env"});
    }
    let port = |host: &str| {
        host.rsplit(':')
            .next()
            .and_then(|port| port.parse::<u16>().ok())
    };
    let ports = [port(&hosts.granted), port(&hosts.unnamed)];
    value["network"]["allow"]["localhost"] = json!({"exact": true, "subdomains": false, "schemes": ["http"], "ports": ports, "roles": ["*"], "skills": ["*"]});
    // The hosts are on this machine.
    if let Some(denied) = value["network"]["deny_cidrs"].as_array_mut() {
        denied.retain(|cidr| cidr != "127.0.0.0/8" && cidr != "::1/128");
    }
    std::fs::write(&file, value.to_string()).map_err(|e| failed(&file, &e))
}

//! The client that the specification prints.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::http::Endpoint;

/// The specification's client makes a dozen calls.
const SECONDS_MAX: u32 = 300;

/// The specification's Python client, as printed; its status is the exit code.
pub(crate) fn printed(endpoint: &Endpoint, dir: &Path) -> Result<(Value, String), String> {
    printed_within(SECONDS_MAX, endpoint, dir)
}

fn printed_within(
    seconds: u32,
    endpoint: &Endpoint,
    dir: &Path,
) -> Result<(Value, String), String> {
    let mut client = Command::new("python3");
    client.env_remove("SKILLS_TOKEN");
    if let Some(token) = &endpoint.token {
        client.env("SKILLS_TOKEN", token);
    }
    let told = || std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    if let Some(authorities) = endpoint.authorities.clone().or_else(told) {
        // Python's own name for it, and that of the package requests.
        client.env("SSL_CERT_FILE", &authorities);
        client.env("REQUESTS_CA_BUNDLE", &authorities);
    }
    let out = client
        .arg("-B")
        .arg(dir.join("client/run_printed.py"))
        .arg(endpoint.url())
        .arg(seconds.to_string())
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("python3: {e}"))?;
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    if let Some(line) = said.lines().find(|l| l.starts_with("using ")) {
        println!("printed client: {line}");
    }
    let seen = json!({
        "status": out.status.code(),
        "body": String::from_utf8_lossy(&out.stdout),
        "stderr": said,
    });
    Ok((seen, "the specification's client".into()))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// It has no limit of its own, and the suite waits for it.
    #[test]
    fn it_is_ended_where_the_server_never_answers() {
        // Whoever connects waits in its queue.
        let silent = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = silent.local_addr().expect("it has an address");
        let endpoint =
            Endpoint::parse(&format!("http://{address}/rpc")).expect("this is an address");
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance");
        let (seen, _) = printed_within(2, &endpoint, &dir).expect("there is python3");
        assert_eq!(seen["status"], 1, "{seen}");
        let said = seen["stderr"].as_str().unwrap_or_default();
        let end = "the client has not come to its end in 2 s\n";
        assert!(said.ends_with(end), "{said}");
    }
}

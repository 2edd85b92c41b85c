//! Starts and stops the gateway under test.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::http::Endpoint;
use crate::own::{self, Hosts};
use crate::tools;

/// How long a server may take to start, and to stop.
const PATIENCE: Duration = Duration::from_secs(20);

/// A directory that is removed at the end.
#[derive(Debug)]
pub(crate) struct TempDir(pub(crate) PathBuf);

impl TempDir {
    /// A new one under the system's place for them.
    pub(crate) fn new(name: &str) -> Result<TempDir, String> {
        let nanos = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |d| d.as_nanos());
        let path = std::env::temp_dir().join(format!("{name}-{}-{nanos:x}", std::process::id()));
        std::fs::create_dir(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(TempDir(path))
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        if let Err(e) = std::fs::remove_dir_all(&self.0) {
            eprintln!("cannot remove {}: {e}", self.0.display());
        }
    }
}

/// A server process that ends when this does.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    pub(crate) endpoint: Endpoint,
    /// What its runs may try to reach.
    pub(crate) hosts: Hosts,
    /// Where its standard error goes.
    pub(crate) stderr: PathBuf,
}

impl Server {
    /// Starts `command` and waits for the line that shows its endpoint.
    pub(crate) fn start(
        mut command: Command,
        stderr: PathBuf,
        hosts: Hosts,
    ) -> Result<Server, String> {
        let log = std::fs::File::create(&stderr).map_err(|e| e.to_string())?;
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .map_err(|e| format!("cannot start {command:?}: {e}"))?;
        let stdout = child.stdout.take().ok_or("the server has no stdout")?;
        let (send, receive) = mpsc::channel();
        // Reads to the end, so that the server never blocks on a full pipe.
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Some(url) = endpoint_in(&line) {
                    let _already_known = send.send(url);
                }
            }
        });
        let said = receive.recv_timeout(PATIENCE);
        let mut server = Server {
            child,
            endpoint: Endpoint::default(),
            hosts,
            stderr,
        };
        match said
            .map_err(|_| "no line with http://…/rpc on stdout".to_owned())
            .and_then(|url| Endpoint::parse(&url))
        {
            Ok(endpoint) => server.endpoint = endpoint,
            Err(why) => {
                return Err(format!(
                    "the server does not start: {why}\n{}",
                    server.said()
                ));
            }
        }
        Ok(server)
    }

    /// The end of what it wrote to standard error.
    pub(crate) fn said(&self) -> String {
        let text = std::fs::read_to_string(&self.stderr).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let asked = tools::kill("-TERM", self.child.id());
        let began = Instant::now();
        while asked && began.elapsed() < PATIENCE {
            match self.child.try_wait() {
                Ok(None) => std::thread::sleep(Duration::from_millis(20)),
                _ => return,
            }
        }
        eprintln!("the server does not end on SIGTERM: {}", self.said());
        let _gone_already = self.child.kill();
        let _status = self.child.wait();
    }
}

/// Which plugins the gateway under test has, and where; and whether it asks for tokens.
#[derive(Debug, Clone, Default)]
pub(crate) struct Plugins {
    /// "storage-fs", "example-c", or a plugin's file. Absent: the first.
    pub(crate) store: Option<String>,
    /// `config` of a plugin's file, in TOML. Absent: none.
    pub(crate) store_config: Option<String>,
    /// Where both plugins run: "gateway" or "process". Absent: as the gateway's defaults say.
    pub(crate) isolation: Option<String>,
    /// Callers need a token. The endpoint then has one.
    pub(crate) tokens: bool,
}

impl Plugins {
    /// What whoever runs the suite has asked for.
    pub(crate) fn asked_for() -> Result<Plugins, String> {
        let setting = |name: &str| match std::env::var(name) {
            Ok(value) => Ok(Some(value)),
            Err(std::env::VarError::NotPresent) => Ok(None),
            Err(error) => Err(format!("{name}: {error}")),
        };
        Ok(Plugins {
            store: setting("SKILLS_STORE")?,
            store_config: setting("SKILLS_STORE_CONFIG")?,
            isolation: setting("SKILLS_ISOLATION")?,
            tokens: false,
        })
    }

    /// What `[plugins.storage]` says.
    fn storage(&self, repo: &Path, data: &Path) -> Result<String, String> {
        let file = match self.store.as_deref() {
            None | Some("storage-fs") => {
                let root = data.join("store");
                return Ok(format!(
                    "name = \"storage-fs\"\nconfig = {{ root = {root:?} }}"
                ));
            }
            Some("example-c") => example_c(repo, data)?,
            Some(path) => std::path::absolute(path).map_err(|e| format!("{path}: {e}"))?,
        };
        let config = self.store_config.as_deref().unwrap_or("{}");
        Ok(format!(
            "path = {file:?}\nallow_unsigned = true\nconfig = {config}"
        ))
    }
}

/// Our gateway on a free port, with everything it keeps in `data`.
///
/// An ordinary user has no cgroup of its own unless the host gives it one, and the gateway then refuses to start: the suite
/// says so and takes the downgrade that the refusal names, since every row can be kept without it.
pub(crate) fn start(repo: &Path, data: &Path, plugins: &Plugins) -> Result<Server, String> {
    let hosts = Hosts::start()?;
    own::policy(repo, data, &hosts)?;
    start_with(repo, data, plugins, "{}", &hosts).or_else(|why| {
        if !why.contains("cgroup") {
            return Err(why);
        }
        println!(
            "this host gives its user no cgroup: runs have no limit on their memory as a whole"
        );
        start_with(
            repo,
            data,
            plugins,
            r#"{ downgrades = ["cgroup"] }"#,
            &hosts,
        )
    })
}

/// The example of a store in C, compiled as it says itself.
fn example_c(repo: &Path, data: &Path) -> Result<PathBuf, String> {
    let file = data.join("store.so");
    let output = Command::new("cc")
        .args(["-std=c99", "-O2", "-fPIC", "-shared", "-pthread", "-I"])
        .arg(repo.join("plugins/abi/include"))
        .arg("-o")
        .args([&file, &repo.join("plugins/example-c/store.c")])
        .output()
        .map_err(|e| format!("the store in C needs a C compiler, cc: {e}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    Ok(file)
}

/// The program, with no setting of whoever runs the tests.
fn skillgate(data: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_skillgate"));
    command.current_dir(data);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("SKILLGATE_") {
            command.env_remove(name);
        }
    }
    command
}

/// What `skillgate token` prints.
fn token(data: &Path, args: &[&str]) -> Result<String, String> {
    let output = skillgate(data).arg("token").args(args).output();
    let output = output.map_err(|e| format!("skillgate token: {e}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// An issuer whose key is in `data`; none when callers need no token.
fn issuer(data: &Path, plugins: &Plugins) -> Result<String, String> {
    if !plugins.tokens {
        return Ok(String::new());
    }
    let jwks = data.join("keys.json");
    if !jwks.exists() {
        token(data, &["keygen", "dev.pem", "--jwks", "keys.json"])?;
    }
    Ok(format!(
        r#"
[auth]
mode = "jwt"

[[auth.issuers]]
issuer = "https://conformance.example"
audiences = ["skillgate"]
jwks_file = {jwks:?}
algorithms = ["ES256"]
"#
    ))
}

fn start_with(
    repo: &Path,
    data: &Path,
    plugins: &Plugins,
    sandbox: &str,
    hosts: &Hosts,
) -> Result<Server, String> {
    let isolation = plugins.isolation.as_ref();
    let isolation = isolation.map_or_else(String::new, |it| format!("isolation = {it:?}"));
    let config = data.join("skillgate.toml");
    let own = repo.join("tests/conformance/own/skills");
    let text = format!(
        r#"rate_limit = []

[server]
listen = "127.0.0.1:0"

[admin]
listen = "127.0.0.1:0"

[skills]
paths = [{skills:?}, {own:?}]

[policy]
path = {policy:?}

[gate]
allow_private = ["127.0.0.1", "::1"]

[plugins.storage]
{store}
{isolation}

[plugins.sandbox]
name = "sandbox-process"
config = {sandbox}
{isolation}
{issuer}"#,
        issuer = issuer(data, plugins)?,
        skills = repo.join("skills"),
        policy = data.join("policies"),
        store = plugins.storage(repo, data)?,
    );
    std::fs::write(&config, text).map_err(|e| format!("{}: {e}", config.display()))?;
    let mut command = skillgate(data);
    command.args(["serve", "--config"]).arg(&config);
    // A secret that the gateway has and that no run may see unless its skill names it and policy grants it.
    command.env(
        "SKILLGATE_SECRET_SALESFORCE_API_KEY",
        "conformance-secret-value-0451",
    );
    for (name, value) in own::SECRETS {
        command.env(format!("SKILLGATE_SECRET_{name}"), value);
    }
    let mut server = Server::start(command, data.join("stderr.log"), hosts.clone())?;
    if plugins.tokens {
        let caller = [
            "--subject",
            "conformance",
            "--tenant",
            "default",
            "--role",
            "admin",
        ];
        let mint = ["mint", "--key", "dev.pem", "--config", "skillgate.toml"];
        server.endpoint.token = Some(token(data, &[&mint[..], &caller].concat())?);
    }
    Ok(server)
}

/// `… http://127.0.0.1:4567/rpc …`
fn endpoint_in(line: &str) -> Option<String> {
    let from = line.find("http://")?;
    let url = line[from..].split_whitespace().next()?;
    url.ends_with("/rpc").then(|| url.to_owned())
}

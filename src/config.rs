//! The configuration: TOML as written, checked and made ready. Every key is documented in `config/default.toml`.
//!
//! Reading is two steps. `config/sources.rs` finds the layers (defaults, file, environment, command line) and
//! `config/raw.rs` lays them over each other as one tree that remembers where each value was written. Then this file
//! reads the tree, key by key, into the types below; what it finds wrong is reported all at once.

mod problem;
mod raw;
mod section;
mod show;
mod sources;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;

pub use problem::{ConfigErrors, Origin, Problem};
use raw::{Document, Table};
use section::{Notes, Section};
pub use sources::{Flags, Sources};

/// Every key with its default and what it means.
pub const DEFAULT_TOML: &str = include_str!("config/default.toml");

/// A configuration that has been checked.
#[derive(Debug, Clone)]
pub struct Config {
    /// The public listener.
    pub server: Server,
    /// The operator's listener.
    pub admin: Admin,
    /// Who callers are.
    pub auth: Auth,
    /// How much they may call. Empty: no limits.
    pub rate_limit: Vec<RateLimit>,
    /// What they may call.
    pub policy: Policy,
    /// The limits of runs.
    pub runs: Runs,
    /// Skills beside the writable store.
    pub skills: Skills,
    /// Large data.
    pub blobs: Blobs,
    /// Where secrets come from.
    pub secrets: Secrets,
    /// Storage and sandbox.
    pub plugins: Plugins,
    /// The decision log.
    pub audit: Audit,
    /// The file that was read; none when only the defaults (and the environment) count.
    pub file: Option<PathBuf>,
    effective: show::Effective,
}

/// `[server]`
#[derive(Debug, Clone)]
pub struct Server {
    /// Address and port; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// A non-loopback address is taken although nobody is asked who they are (`--insecure-no-auth`; no key of a file).
    pub insecure_no_auth: bool,
    /// `host` or `host:port`, lower case, beyond the listen address.
    pub allowed_hosts: Vec<String>,
    /// Of a body on /rpc and /mcp, and of the largest answer.
    pub max_body_bytes: u64,
    /// For a request's head.
    pub header_timeout_ms: u64,
    /// Without progress in a request's body.
    pub body_timeout_ms: u64,
    /// Open at the same time.
    pub max_connections: usize,
    /// Calls in one batch.
    pub max_batch: usize,
    /// For running calls after SIGTERM.
    pub drain_timeout_ms: u64,
    /// Absent: plain HTTP.
    pub tls: Option<Tls>,
}

/// `server.tls`
#[derive(Debug, Clone)]
pub struct Tls {
    /// PEM, the leaf first.
    pub cert_file: PathBuf,
    /// PEM.
    pub key_file: PathBuf,
}

/// `[admin]`
#[derive(Debug, Clone)]
pub struct Admin {
    /// Address and port; port 0 lets the system choose.
    pub listen: SocketAddr,
}

/// `[auth]`
#[derive(Debug, Clone)]
pub struct Auth {
    /// Whether callers are asked who they are.
    pub mode: AuthMode,
    /// Who may issue tokens.
    pub issuers: Vec<Issuer>,
}

/// `auth.mode`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthMode {
    /// Everybody is the local administrator.
    Off,
    /// Bearer tokens.
    Jwt,
}

/// `[[auth.issuers]]`
#[derive(Debug, Clone)]
pub struct Issuer {
    /// `iss`, exactly.
    pub issuer: String,
    /// One of them must be in `aud`. Not empty.
    pub audiences: Vec<String>,
    /// Where its keys are.
    pub keys: KeySource,
    /// Signature algorithms of JWA (RFC 7518, RFC 8037), asymmetric ones. Not empty.
    pub algorithms: Vec<&'static str>,
    /// Of the clocks.
    pub leeway_s: u64,
    /// Which claims say who the caller is.
    pub claims: Claims,
}

/// Where an issuer's keys are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeySource {
    /// A JWKS file.
    File(PathBuf),
    /// A JWKS by https, or by http on a loopback address.
    Url(String),
    /// As `<issuer>/.well-known/openid-configuration` says.
    Discovery,
}

/// `auth.issuers.claims`: paths into the token's claims, members separated by `.`
#[derive(Debug, Clone)]
pub struct Claims {
    /// The caller's id.
    pub subject: String,
    /// The caller's tenant.
    pub tenant: String,
    /// All of them are joined.
    pub roles: Vec<String>,
    /// All of them are joined.
    pub groups: Vec<String>,
    /// All of them are joined.
    pub scopes: Vec<String>,
}

/// `[[rate_limit]]`
#[derive(Debug, Clone)]
pub struct RateLimit {
    /// Shown to callers; unique.
    pub name: String,
    /// What is counted apart. Not empty, none twice.
    pub key: Vec<RateKey>,
    /// Names of methods. Empty: all.
    pub methods: Vec<String>,
    /// Calls per `per_s`.
    pub quota: u64,
    /// Seconds.
    pub per_s: u64,
    /// Calls at once.
    pub burst: u64,
}

/// `rate_limit.key`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RateKey {
    /// The peer's address.
    Ip,
    /// The caller's tenant.
    Tenant,
    /// The caller.
    Subject,
    /// The method that is called.
    Method,
    /// The skill that is called.
    Skill,
}

/// `[policy]`
#[derive(Debug, Clone)]
pub struct Policy {
    /// Whether decisions are made, and whether they count.
    pub mode: PolicyMode,
    /// A directory or a bundle (`.tar.gz`).
    pub path: PathBuf,
    /// Steps of the policy machine for one decision.
    pub instruction_budget: u64,
    /// Whether an allow is decided again on the interpreter.
    pub confirm: Confirm,
}

/// `policy.mode`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyMode {
    /// No decisions: what the manifest declares is not granted, network and secrets included.
    Off,
    /// Decides and records, does not enforce.
    Shadow,
    /// Decides.
    Enforce,
}

/// `policy.confirm`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Confirm {
    /// Never.
    Off,
    /// Some of them.
    Sample,
    /// Each.
    Always,
}

/// `[runs]`
#[derive(Debug, Clone)]
pub struct Runs {
    /// When the caller does not say.
    pub default_timeout_ms: u64,
    /// Not below `default_timeout_ms`.
    pub max_timeout_ms: u64,
    /// At the same time.
    pub max_concurrent: usize,
    /// Waiting.
    pub max_queued: usize,
    /// Of one run.
    pub memory_bytes: u64,
    /// Processes and threads of one run.
    pub max_pids: u64,
    /// Of /workspace and /tmp together.
    pub workspace_bytes: u64,
    /// Files and directories in them.
    pub workspace_inodes: u64,
    /// What happens to a run whose caller has gone.
    pub on_disconnect: OnDisconnect,
}

/// `runs.on_disconnect`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnDisconnect {
    /// It ends.
    Kill,
    /// It goes on to its end.
    Finish,
}

/// `[skills]`
#[derive(Debug, Clone)]
pub struct Skills {
    /// Read-only directories.
    pub paths: Vec<PathBuf>,
    /// Of one skill.
    pub max_files: usize,
    /// Of one skill, all files together.
    pub max_bytes: u64,
}

/// `[blobs]`
#[derive(Debug, Clone)]
pub struct Blobs {
    /// Of one blob.
    pub max_bytes: u64,
    /// 0: until it is deleted.
    pub ttl_s: u64,
}

/// `[secrets]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Secrets {
    /// Variables `SKILLGATE_SECRET_<NAME>`.
    Env,
    /// A directory with a file per name.
    Dir(PathBuf),
}

/// `[plugins]`
#[derive(Debug, Clone)]
pub struct Plugins {
    /// The writable store of skills and blobs.
    pub storage: PluginRef,
    /// Where runs happen.
    pub sandbox: PluginRef,
}

/// `[plugins.storage]`, `[plugins.sandbox]`
#[derive(Debug, Clone)]
pub struct PluginRef {
    /// Which plugin.
    pub source: PluginSource,
    /// What its file must be: 64 lower case hex digits.
    pub sha256: Option<String>,
    /// The public key that its file must be signed by, base64 as minisign prints it.
    pub minisign_key: Option<String>,
    /// Where it is loaded.
    pub isolation: PluginIsolation,
    /// Its own section: a JSON object. May hold secrets: never printed or logged as it is.
    pub config: serde_json::Value,
}

/// Which plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PluginSource {
    /// A bundled one, by name.
    Name(String),
    /// A file.
    Path(PathBuf),
}

/// `plugins.*.isolation`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PluginIsolation {
    /// In the gateway's process.
    Gateway,
    /// In a process of its own.
    Process,
}

/// `[audit]`
#[derive(Debug, Clone)]
pub struct Audit {
    /// JSON lines.
    pub path: PathBuf,
}

// === loading ===

impl Config {
    /// Finds, reads and checks the configuration. Everything that is wrong with it is in the error.
    pub fn load(sources: &Sources, flags: &Flags) -> Result<Config, ConfigErrors> {
        let mut tree = raw::parse(&Document::Default, DEFAULT_TOML).map_err(ConfigErrors::new)?;
        find_bundled(&mut tree, sources);
        let (layers, file) = sources.layers(flags)?;
        for layer in layers {
            forget_replaced_plugins(&mut tree, &layer);
            raw::overlay(&mut tree, layer);
        }
        let notes = Notes::default();
        let mut config = Section::root(&tree, &notes, |root| {
            let config = read(root, flags);
            check_together(root, &config);
            unsupported_yet(root, &config);
            config
        });
        let problems = notes.problems.into_inner();
        if !problems.is_empty() {
            return Err(ConfigErrors::new(problems));
        }
        config.file = file;
        config.effective = show::Effective::new(tree, &notes.known.into_inner());
        Ok(config)
    }

    /// What is in force, as TOML that could be read again; secrets are masked. With `origins` each line says in a
    /// comment where its value comes from.
    pub fn show(&self, origins: bool) -> String {
        self.effective.to_toml(origins)
    }

    /// The same as JSON.
    pub fn show_json(&self) -> serde_json::Value {
        self.effective.to_json()
    }
}

/// Points the defaults at the bundled directories. Without any, there are no skills beside the store.
fn find_bundled(tree: &mut Table, sources: &Sources) {
    let text = |path: &PathBuf| raw::Value::String(path.to_string_lossy().into_owned());
    let skills = sources.bundled_dir("skills");
    raw::replace(tree, "skills", "paths", |origin| {
        let node = |path| raw::Node {
            key_origin: origin.clone(),
            origin: origin.clone(),
            value: text(path),
        };
        raw::Value::List(skills.iter().map(node).collect())
    });
    if let Some(policies) = sources.bundled_dir("policies") {
        raw::replace(tree, "policy", "path", |_| text(&policies));
    }
}

/// A layer that names a plugin means that plugin: the pins and the section of the one below are not its own.
fn forget_replaced_plugins(tree: &mut Table, layer: &Table) {
    let Some(raw::Value::Table(above)) = raw::get(layer, "plugins").map(|node| &node.value) else {
        return;
    };
    let Some(raw::Value::Table(below)) = raw::get_mut(tree, "plugins").map(|node| &mut node.value)
    else {
        return;
    };
    for (kind, node) in above {
        let raw::Value::Table(above) = &node.value else {
            continue;
        };
        let Some(raw::Value::Table(below)) = raw::get_mut(below, kind).map(|node| &mut node.value)
        else {
            continue;
        };
        let text = |table: &Table, key: &str| {
            raw::get(table, key)
                .and_then(|node| section::as_text(&node.value))
                .map(str::to_owned)
        };
        let renamed =
            raw::get(above, "name").is_some() && text(above, "name") != text(below, "name");
        let moved = raw::get(above, "path").is_some() && text(above, "path") != text(below, "path");
        if renamed || moved {
            below.retain(|(key, _)| {
                !["name", "path", "sha256", "minisign_key", "config"].contains(&key.as_str())
            });
        }
    }
}

// === reading: one line per key ===

const MS_MAX: u64 = 3_600_000;
const DAY_MS: u64 = 86_400_000;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

fn read(root: &Section<'_>, flags: &Flags) -> Config {
    Config {
        rate_limit: root.sections("rate_limit", rate_limit),
        server: root.section("server", |s| Server {
            listen: s.address("listen"),
            insecure_no_auth: flags.insecure_no_auth,
            allowed_hosts: allowed_hosts(s),
            max_body_bytes: s.integer("max_body_bytes", 1024..=GIB),
            header_timeout_ms: s.integer("header_timeout_ms", 1..=MS_MAX),
            body_timeout_ms: s.integer("body_timeout_ms", 1..=MS_MAX),
            max_connections: s.count("max_connections", 1..=1_000_000),
            max_batch: s.count("max_batch", 1..=10_000),
            drain_timeout_ms: s.integer("drain_timeout_ms", 0..=MS_MAX),
            tls: s.optional_section("tls", |s| Tls {
                cert_file: s.path("cert_file"),
                key_file: s.path("key_file"),
            }),
        }),
        admin: root.section("admin", |s| Admin {
            listen: s.address("listen"),
        }),
        auth: root.section("auth", |s| Auth {
            mode: s.choice("mode", &[("off", AuthMode::Off), ("jwt", AuthMode::Jwt)]),
            issuers: s.sections("issuers", issuer),
        }),
        policy: root.section("policy", |s| Policy {
            mode: s.choice(
                "mode",
                &[
                    ("enforce", PolicyMode::Enforce),
                    ("shadow", PolicyMode::Shadow),
                    ("off", PolicyMode::Off),
                ],
            ),
            path: s.path("path"),
            instruction_budget: s.integer("instruction_budget", 1000..=1_000_000_000),
            confirm: s.choice(
                "confirm",
                &[
                    ("off", Confirm::Off),
                    ("sample", Confirm::Sample),
                    ("always", Confirm::Always),
                ],
            ),
        }),
        runs: root.section("runs", |s| Runs {
            default_timeout_ms: s.integer("default_timeout_ms", 1..=DAY_MS),
            max_timeout_ms: s.integer("max_timeout_ms", 1..=DAY_MS),
            max_concurrent: s.count("max_concurrent", 1..=10_000),
            max_queued: s.count("max_queued", 0..=1_000_000),
            memory_bytes: s.integer("memory_bytes", (16 << 20)..=TIB),
            max_pids: s.integer("max_pids", 1..=32_768),
            workspace_bytes: s.integer("workspace_bytes", (1 << 20)..=TIB),
            workspace_inodes: s.integer("workspace_inodes", 64..=(1 << 24)),
            on_disconnect: s.choice(
                "on_disconnect",
                &[
                    ("kill", OnDisconnect::Kill),
                    ("finish", OnDisconnect::Finish),
                ],
            ),
        }),
        skills: root.section("skills", |s| Skills {
            paths: s
                .texts("paths", None)
                .into_iter()
                .map(PathBuf::from)
                .collect(),
            max_files: s.count("max_files", 2..=100_000),
            max_bytes: s.integer("max_bytes", 1024..=GIB),
        }),
        blobs: root.section("blobs", |s| Blobs {
            max_bytes: s.integer("max_bytes", 1..=TIB),
            ttl_s: s.integer("ttl_s", 0..=315_360_000),
        }),
        secrets: root.section("secrets", secrets),
        plugins: root.section("plugins", |s| Plugins {
            storage: s.section("storage", |s| plugin(s, &["storage-fs"])),
            sandbox: s.section("sandbox", |s| plugin(s, &["sandbox-process"])),
        }),
        audit: root.section("audit", |s| Audit {
            path: s.path("path"),
        }),
        file: None,
        effective: show::Effective::default(),
    }
}

fn allowed_hosts(s: &Section<'_>) -> Vec<String> {
    let hosts = s.texts("allowed_hosts", None);
    for host in &hosts {
        let name = match host.rsplit_once(':') {
            Some((name, port)) if !host.ends_with(']') => {
                port.parse::<u16>().is_ok().then_some(name)
            }
            _ => Some(host.as_str()),
        };
        let in_brackets = |name: &str| {
            name.strip_prefix('[')
                .and_then(|n| n.strip_suffix(']'))
                .map(str::to_owned)
        };
        let fits = name.is_some_and(|name| match in_brackets(name) {
            Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
            None => {
                !name.is_empty()
                    && name
                        .chars()
                        .all(|c| c.is_ascii_alphanumeric() || "-._".contains(c))
            }
        });
        if !fits {
            s.wrong(
                "allowed_hosts",
                format!(
                    "{:?} is no host, expected \"host\" or \"host:port\"",
                    raw::cut(host)
                ),
            );
        }
    }
    hosts.iter().map(|host| host.to_ascii_lowercase()).collect()
}

fn issuer(s: &Section<'_>) -> Issuer {
    let issuer = s.text("issuer", "the token's `iss`, an https URL");
    if !issuer.is_empty() && !is_trusted_url(&issuer) {
        s.wrong(
            "issuer",
            "expected an https URL, or http on a loopback address, without user and fragment",
        );
    }
    let audiences = s.texts("audiences", None);
    let algorithms = s.choices("algorithms", &ALGORITHMS.map(|name| (name, name)));
    for (key, empty) in [
        ("audiences", audiences.is_empty()),
        ("algorithms", algorithms.is_empty()),
    ] {
        if empty && s.has(key) {
            s.wrong(key, "an empty list accepts no token, expected at least one");
        }
    }
    let (file, url, discovery) = (
        s.optional_path("jwks_file"),
        s.optional_text("jwks_url", "an https URL"),
        s.flag("discovery"),
    );
    if url.as_ref().is_some_and(|url| !is_trusted_url(url)) {
        s.wrong(
            "jwks_url",
            "expected an https URL, or http on a loopback address, without user and fragment",
        );
    }
    let keys = match (file, url, discovery) {
        (Some(file), None, false) => KeySource::File(file),
        (None, Some(url), false) => KeySource::Url(url),
        (None, None, true) => KeySource::Discovery,
        _ => {
            s.wrong(
                "",
                "expected exactly one of jwks_file, jwks_url, discovery = true",
            );
            KeySource::Discovery
        }
    };
    let leeway_s = s.integer_or("leeway_s", 0..=300, 30);
    let claims = s.section("claims", |s| Claims {
        subject: s
            .optional_text("subject", "the name of a claim")
            .unwrap_or_else(|| "sub".into()),
        tenant: s
            .optional_text("tenant", "the name of a claim")
            .unwrap_or_else(|| "tenant".into()),
        roles: s.text_or_texts("roles", &["roles", "realm_access.roles"]),
        groups: s.text_or_texts("groups", &["groups"]),
        scopes: s.text_or_texts("scopes", &["scope", "scp"]),
    });
    Issuer {
        issuer,
        audiences,
        keys,
        algorithms,
        leeway_s,
        claims,
    }
}

/// Asymmetric ones alone: with a shared secret, whoever can check a token can make one.
const ALGORITHMS: [&str; 9] = [
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA",
];

/// Keys that come over a wire that others can write to are nobody's keys.
fn is_trusted_url(url: &str) -> bool {
    if url
        .chars()
        .any(|c| c.is_whitespace() || c.is_control() || c == '#')
    {
        return false;
    }
    let host_of = |rest: &str| rest.split(['/', '?']).next().unwrap_or_default().to_owned();
    let plain = |host: &str| !host.is_empty() && !host.contains(['@', '\\']);
    if let Some(rest) = url.strip_prefix("https://") {
        return plain(&host_of(rest));
    }
    let Some(host) = url.strip_prefix("http://").map(host_of) else {
        return false;
    };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.parse::<u16>().is_ok() => name,
        _ => &host,
    };
    plain(&host)
        && (name == "localhost"
            || name == "[::1]"
            || name
                .parse()
                .is_ok_and(|ip: std::net::Ipv4Addr| ip.is_loopback()))
}

fn rate_limit(s: &Section<'_>) -> RateLimit {
    let name = s.parsed("name", "1 to 64 letters, digits, `-` or `_`", |text| {
        let fits = text.len() <= 64
            && text
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
        fits.then(|| text.to_owned())
    });
    if !s.has("name") {
        s.wrong("name", "missing, expected a name");
    }
    let key = s.choices(
        "key",
        &[
            ("ip", RateKey::Ip),
            ("tenant", RateKey::Tenant),
            ("subject", RateKey::Subject),
            ("method", RateKey::Method),
            ("skill", RateKey::Skill),
        ],
    );
    if key.is_empty() && s.has("key") {
        s.wrong(
            "key",
            "an empty list, expected at least one of ip, tenant, subject, method, skill",
        );
    }
    let methods = s.texts("methods", Some(&[]));
    for method in methods
        .iter()
        .filter(|method| !METHODS.contains(&method.as_str()))
    {
        let hint = problem::did_you_mean(method, METHODS)
            .map(|meant| format!("; did you mean {meant:?}?"));
        s.wrong(
            "methods",
            format!(
                "{:?} is no method{}",
                raw::cut(method),
                hint.unwrap_or_default()
            ),
        );
    }
    let quota = s.integer("quota", 1..=1_000_000_000);
    let per_s = s.integer("per_s", 1..=2_678_400);
    let burst = s.integer_or("burst", 1..=1_000_000_000, quota);
    RateLimit {
        name: name.unwrap_or_default(),
        key,
        methods,
        quota,
        per_s,
        burst,
    }
}

/// What a rule may count: the protocol's methods. A rule with a typing error would count nothing.
pub const METHODS: [&str; 10] = [
    "load_skills_protocol_guide",
    "list_skills",
    "describe_skill",
    "read_skill_file",
    "execute_skill",
    "run_code",
    "create_blob",
    "read_blob",
    "create_skill",
    "rpc.discover",
];

fn secrets(s: &Section<'_>) -> Secrets {
    let from_dir = s.choice("provider", &[("env", false), ("dir", true)]);
    match (from_dir, s.optional_path("dir")) {
        (true, Some(dir)) => Secrets::Dir(dir),
        (true, None) => {
            s.wrong(
                "provider",
                "\"dir\" needs the key `dir`, the directory with a file per secret",
            );
            Secrets::Env
        }
        (false, Some(_)) => {
            s.wrong(
                "dir",
                "has no meaning with provider = \"env\"; did you mean provider = \"dir\"?",
            );
            Secrets::Env
        }
        (false, None) => Secrets::Env,
    }
}

fn plugin(s: &Section<'_>, bundled: &[&str]) -> PluginRef {
    let known = bundled.join(", ");
    let expected = format!("a bundled plugin ({known})");
    let name = s.parsed(
        "name",
        &format!("{expected}; a file is named with `path`"),
        |name| bundled.contains(&name).then(|| name.to_owned()),
    );
    let source = match (name, s.optional_path("path")) {
        (_, Some(_)) if s.has("name") => {
            s.wrong("path", "there is a `name` too, expected one of the two");
            PluginSource::Name(String::new())
        }
        (_, Some(path)) => PluginSource::Path(path),
        (Some(name), None) => PluginSource::Name(name),
        (None, None) => {
            if !s.has("name") && !s.has("path") {
                s.wrong(
                    "",
                    format!("expected name = {expected} or path = the plugin's file"),
                );
            }
            PluginSource::Name(String::new())
        }
    };
    PluginRef {
        source,
        sha256: s.parsed("sha256", "64 hex digits", |text| {
            let fits = text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit());
            fits.then(|| text.to_ascii_lowercase())
        }),
        minisign_key: s.parsed(
            "minisign_key",
            "a minisign public key, 56 characters that start with RW",
            |text| {
                let base64 = text
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b == b'+' || b == b'/');
                (text.len() == 56 && text.starts_with("RW") && base64).then(|| text.to_owned())
            },
        ),
        isolation: s.choice(
            "isolation",
            &[
                ("gateway", PluginIsolation::Gateway),
                ("process", PluginIsolation::Process),
            ],
        ),
        config: s.open("config"),
    }
}

// === what must fit together ===

fn check_together(root: &Section<'_>, config: &Config) {
    let open = config.auth.mode == AuthMode::Off && !config.server.insecure_no_auth;
    for (key, listen) in [
        ("server.listen", config.server.listen),
        ("admin.listen", config.admin.listen),
    ] {
        if open && !listen.ip().to_canonical().is_loopback() {
            let message = format!(
                "{listen} can be reached by others while auth.mode = \"off\" asks nobody who they are; \
                 expected a loopback address, or start with --insecure-no-auth if that is what you want"
            );
            root.wrong(key, message);
        }
    }
    if config.server.listen == config.admin.listen && config.admin.listen.port() != 0 {
        root.wrong(
            "admin.listen",
            format!(
                "{} is server.listen too, expected another port",
                config.admin.listen
            ),
        );
    }
    if config.runs.max_timeout_ms < config.runs.default_timeout_ms {
        let (max, default) = (config.runs.max_timeout_ms, config.runs.default_timeout_ms);
        root.wrong(
            "runs.max_timeout_ms",
            format!("{max} is less than runs.default_timeout_ms, expected at least {default}"),
        );
    }
    if config.auth.mode == AuthMode::Jwt && config.auth.issuers.is_empty() {
        root.wrong("auth.mode", "\"jwt\" needs at least one [[auth.issuers]]");
    }
    let mut seen = BTreeSet::new();
    for issuer in config
        .auth
        .issuers
        .iter()
        .filter(|issuer| !seen.insert(&issuer.issuer))
    {
        root.wrong(
            "auth.issuers",
            format!("{:?} is there twice", raw::cut(&issuer.issuer)),
        );
    }
    let mut seen = BTreeSet::new();
    for rule in config
        .rate_limit
        .iter()
        .filter(|rule| !rule.name.is_empty() && !seen.insert(&rule.name))
    {
        root.wrong(
            "rate_limit",
            format!(
                "{:?} is there twice, each name may be there once",
                rule.name
            ),
        );
    }
}

/// What can be written but is not built: accepting it would promise a protection that is not there.
fn unsupported_yet(root: &Section<'_>, config: &Config) {
    let by_operator = |key: &str| !matches!(root.origin(key), Origin::Default { .. });
    let process = |plugin: &PluginRef| plugin.isolation == PluginIsolation::Process;
    let signed = |plugin: &PluginRef| plugin.minisign_key.is_some();
    let plugins = &config.plugins;
    let wanted = [
        (
            "auth.mode",
            config.auth.mode == AuthMode::Jwt,
            "set it to \"off\"",
        ),
        ("rate_limit", !config.rate_limit.is_empty(), "set it to []"),
        (
            "policy.mode",
            config.policy.mode != PolicyMode::Off,
            "set it to \"off\"",
        ),
        (
            "server.tls",
            config.server.tls.is_some(),
            "put a proxy that ends TLS in front",
        ),
        (
            "secrets.provider",
            config.secrets != Secrets::Env,
            "set it to \"env\"",
        ),
        ("audit.path", by_operator("audit.path"), "leave it out"),
        (
            "plugins.storage.isolation",
            process(&plugins.storage),
            "set it to \"gateway\"",
        ),
        (
            "plugins.sandbox.isolation",
            process(&plugins.sandbox),
            "set it to \"gateway\"",
        ),
        (
            "plugins.storage.minisign_key",
            signed(&plugins.storage),
            "pin the file with sha256",
        ),
        (
            "plugins.sandbox.minisign_key",
            signed(&plugins.sandbox),
            "pin the file with sha256",
        ),
    ];
    for (key, _, instead) in wanted.into_iter().filter(|(_, wanted, _)| *wanted) {
        root.wrong(
            key,
            format!("this version does not have it yet and will not pretend to: {instead}"),
        );
    }
}

//! The configuration: TOML as written, checked and made ready. Every key is documented in `config/default.toml`.
//!
//! Reading is two steps. `config/sources.rs` finds the layers (defaults, file, environment, command line) and
//! `config/raw.rs` lays them over each other as one tree that remembers where each value was written. Then this file
//! reads the tree, key by key, into the types below; what it finds wrong is reported all at once.

mod auth;
mod check;
mod gate;
mod plugins;
mod problem;
mod raw;
mod schema;
mod section;
mod show;
mod sources;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

pub(crate) use auth::{TENANT_RULE, is_tenant};
pub use check::MEMORY_BYTES_MIN;
pub(crate) use check::METHODS;
use check::{check_together, read, unsupported_yet};
pub use gate::Gate;
use plugins::forget_replaced_plugins;
pub use plugins::{PluginIsolation, PluginRef, PluginSource, Plugins};
pub(crate) use problem::did_you_mean;
pub use problem::{ConfigErrors, Origin, Problem};
use raw::{Document, Table};
pub(crate) use schema::misfits;
use section::{Notes, Section};
pub use sources::{Flags, SECRET_PREFIX, SecretVariables, Sources};

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
    /// The way out of runs.
    pub gate: Gate,
    /// Skills beside the writable store.
    pub skills: Skills,
    /// Large data.
    pub blobs: Blobs,
    /// Where secrets come from.
    pub secrets: Secrets,
    /// What the environment has of them.
    pub secret_variables: SecretVariables,
    /// Storage and sandbox.
    pub plugins: Plugins,
    /// The decision log.
    pub audit: Audit,
    /// What is logged to stderr.
    pub log: Log,
    /// The file that was read; none when only the defaults (and the environment) count.
    pub file: Option<PathBuf>,
    /// Where one was looked for, up to the one that was read: whatever comes to lie there counts from then on.
    pub looked_for: Vec<PathBuf>,
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
    /// Of a body on /rpc, and of an answer with what is stored.
    pub max_body_bytes: u64,
    /// For a request's head.
    pub header_timeout_ms: u64,
    /// Without progress in a request's body; on /rpc ten times that in all.
    pub body_timeout_ms: u64,
    /// Without progress in an answer that the client could read.
    pub write_timeout_ms: u64,
    /// Open at the same time.
    pub max_connections: usize,
    /// Calls in one batch.
    pub max_batch: usize,
    /// Bodies on /rpc of more than 256 KiB that are here at the same time.
    pub max_large_bodies: usize,
    /// For running calls and runs without a caller after SIGTERM; then they are ended.
    pub drain_timeout_ms: u64,
    /// Between two looks at the files that are reloaded when they change. 0: they are not looked at.
    pub reload_watch_ms: u64,
    /// Whether there is a `server.tls`, which is refused.
    pub tls: bool,
}

/// `[admin]`
#[derive(Debug, Clone)]
pub struct Admin {
    /// Address and port; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// A non-loopback address is taken although nobody is asked who they are.
    pub allow_remote: bool,
    /// As `server.allowed_hosts`.
    pub allowed_hosts: Vec<String>,
}

/// `[auth]`
#[derive(Debug, Clone)]
pub struct Auth {
    /// Whether callers are asked who they are.
    pub mode: AuthMode,
    /// The name of this server as a resource (RFC 9728): what clients call it. Absent: as each request calls it.
    pub resource: Option<String>,
    /// Every caller's token must have them.
    pub required_scopes: Vec<String>,
    /// Tokens that are not verified again while they hold. 0: each is, every time.
    pub token_cache_entries: usize,
    /// Then fetched keys are fetched again.
    pub jwks_max_age_s: u64,
    /// Then keys that could not be fetched again are used no more. Not below `jwks_max_age_s`.
    pub jwks_max_stale_s: u64,
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
    /// Certificates (PEM) of those who vouch for its servers. Absent: the system's.
    pub ca_file: Option<PathBuf>,
    /// Signature algorithms of JWA (RFC 7518, RFC 8037). Not empty; `HS256` alone, and only with a secret.
    pub algorithms: Vec<&'static str>,
    /// What its tokens may say they are. Not empty.
    pub token_types: Vec<TokenType>,
    /// Who its tokens may have been issued to, by `client_id`, `azp` or `cid`. Empty: anybody.
    pub authorized_parties: Vec<String>,
    /// Tenants that it may speak for. Empty: any.
    pub tenants: Vec<String>,
    /// The tenant of a token that names none. Absent: such a token is refused.
    pub default_tenant: Option<String>,
    /// Of the clocks.
    pub leeway_s: u64,
    /// Which claims say who the caller is.
    pub claims: Claims,
}

/// Where an issuer's keys are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeySource {
    /// A file: a JWKS or PEM public keys.
    File(PathBuf),
    /// A file with a shared secret, for HS256.
    Secret(PathBuf),
    /// A JWKS by https, or by http on a loopback address.
    Url(String),
    /// As `<issuer>/.well-known/openid-configuration` says.
    Discovery,
}

/// `auth.issuers.token_types`: `typ` in the token's header
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenType {
    /// `at+jwt` (RFC 9068)
    AtJwt,
    /// `JWT`
    Jwt,
    /// None at all.
    Absent,
}

/// `auth.issuers.claims`: paths into the token's claims, members separated by `.`
#[derive(Debug, Clone)]
pub struct Claims {
    /// The caller's id: the first that is there.
    pub subject: Vec<String>,
    /// The caller's tenant: the first that is there.
    pub tenant: Vec<String>,
    /// All of them are joined.
    pub roles: Vec<String>,
    /// All of them are joined.
    pub groups: Vec<String>,
    /// All of them are joined.
    pub scopes: Vec<String>,
    /// What policies may see, beside the above.
    pub expose: Vec<String>,
}

/// `[[rate_limit]]`
#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// Keys that are counted apart.
    pub max_keys: usize,
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
    /// Each skill that a call is about.
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
    /// What a refused caller is told.
    pub exposure: Exposure,
    /// Skills whose arguments the rules see.
    pub include_args: Vec<String>,
    /// Who may sign bundles. Empty: nobody needs to.
    pub keys: Vec<PolicyKey>,
    /// An older bundle may replace a newer one.
    pub allow_rollback: bool,
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

/// `[[policy.keys]]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyKey {
    /// `keyid` of the signature.
    pub id: String,
    /// Of JWA (RFC 7518), asymmetric.
    pub algorithm: &'static str,
    /// A public key, PEM.
    pub file: PathBuf,
}

/// `policy.exposure`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exposure {
    /// Codes and messages of the reasons.
    Full,
    /// Their codes.
    Codes,
    /// Nothing but the decision's id.
    None,
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
    /// At the same time, of one tenant. 0: as many as `max_concurrent`.
    pub max_concurrent_per_tenant: usize,
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
    /// Blobs that one run may create.
    pub max_output_blobs: usize,
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
    /// 0: for good; no method deletes one.
    pub ttl_s: u64,
    /// Over `/blobs` at the same time, in either direction.
    pub max_transfers: usize,
}

/// `[secrets]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Secrets {
    /// Variables `SKILLGATE_SECRET_<NAME>`.
    Env,
    /// A directory with a file per name.
    Dir(PathBuf),
}

/// `[audit]`
#[derive(Debug, Clone)]
pub struct Audit {
    /// JSON lines.
    pub path: PathBuf,
    /// When they are made durable.
    pub fsync: Fsync,
    /// A larger file is renamed, and a new one begun.
    pub max_file_bytes: u64,
    /// What becomes of what cannot be recorded.
    pub on_failure: OnAuditFailure,
}

/// `audit.fsync`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fsync {
    /// Before an answer is given.
    Always,
    /// At most this long after it.
    Interval(Duration),
    /// When the system likes.
    Never,
}

/// `audit.on_failure`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnAuditFailure {
    /// It does not happen.
    Deny,
    /// It happens, unrecorded.
    Continue,
}

/// `[log]`
#[derive(Debug, Clone)]
pub struct Log {
    /// A filter of `tracing_subscriber::EnvFilter`, checked.
    pub filter: String,
    /// How a line looks.
    pub format: LogFormat,
    /// Of lines that wait until stderr takes them.
    pub buffer_bytes: usize,
}

/// `log.format`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// A JSON object per line.
    Json,
}

// === loading ===

impl Config {
    /// Finds, reads and checks the configuration. Everything that is wrong with it is in the error.
    pub fn load(sources: &Sources, flags: &Flags) -> Result<Config, ConfigErrors> {
        let mut tree = raw::parse(&Document::Default, DEFAULT_TOML).map_err(ConfigErrors::new)?;
        find_bundled(&mut tree, sources);
        let sources::Layers {
            tables,
            looked_for,
            file,
        } = sources.layers(flags)?;
        for layer in tables {
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
        config.looked_for = looked_for;
        config.secret_variables = sources.secrets.clone();
        config.effective = show::Effective::new(tree, &notes.known.into_inner());
        Ok(config)
    }

    /// What is in force, as TOML that could be read again; secrets are masked. With `origins` each line says in a
    /// comment where its value comes from.
    pub fn show(&self, origins: bool) -> String {
        self.effective.to_toml(origins)
    }

    /// What is wrong with the value at `path` (`auth.issuers[0].jwks_file`), found later than all else, by whoever has
    /// used it; says where it was written.
    pub fn wrong(&self, path: &str, message: String) -> ConfigErrors {
        ConfigErrors::new(vec![Problem {
            origin: self.effective.origin(path).cloned(),
            key: path.to_owned(),
            message,
        }])
    }

    /// Whether nobody has set the key at `path`, like `log.filter`.
    pub fn is_default(&self, path: &str) -> bool {
        self.effective.is_default(path)
    }

    /// What is in force, as JSON; secrets are masked.
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

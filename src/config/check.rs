//! From the tree to the checked types: one line per key with its range, then what must fit together, then what this
//! version does not have yet.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use skillgate_skill::SkillName;
use tracing::level_filters::LevelFilter;

use super::auth::auth;
use super::problem::{Origin, did_you_mean};
use super::section::Section;
use super::{
    Admin, Audit, AuthMode, Blobs, Config, Confirm, Exposure, Flags, Fsync, Log, LogFormat,
    OnAuditFailure, OnDisconnect, Policy, PolicyKey, PolicyMode, RateKey, RateLimit, Runs,
    SecretVariables, Secrets, Server, Skills, gate, plugins, raw, show,
};

pub(super) const MS_MAX: u64 = 3_600_000;
const DAY_MS: u64 = 86_400_000;
const GIB: u64 = 1 << 30;
pub(super) const TIB: u64 = 1 << 40;
/// What the bundled store keeps of one skill: who is let publish more would be told by the store that he is not.
const SKILL_BYTES_MAX: u64 = 64 << 20;
/// An interpreter that has imported what it begins with has some ten MiB.
pub const MEMORY_BYTES_MIN: u64 = 16 << 20;

pub(super) fn read(root: &Section<'_>, flags: &Flags) -> Config {
    Config {
        rate_limit: root.sections("rate_limit", rate_limit),
        server: root.section("server", |s| Server {
            listen: s.address("listen"),
            insecure_no_auth: flags.insecure_no_auth,
            allowed_hosts: allowed_hosts(s),
            max_body_bytes: s.integer("max_body_bytes", 1024..=GIB),
            header_timeout_ms: s.integer("header_timeout_ms", 1..=MS_MAX),
            body_timeout_ms: s.integer("body_timeout_ms", 1..=MS_MAX),
            write_timeout_ms: s.integer("write_timeout_ms", 1..=MS_MAX),
            max_connections: s.count("max_connections", 1..=1_000_000),
            max_batch: s.count("max_batch", 1..=10_000),
            max_large_bodies: s.count("max_large_bodies", 1..=10_000),
            drain_timeout_ms: s.integer("drain_timeout_ms", 0..=MS_MAX),
            reload_watch_ms: s.integer("reload_watch_ms", 0..=MS_MAX),
            // Its keys are known, and asked for, all the same.
            tls: s
                .optional_section("tls", |s| ["cert_file", "key_file"].map(|key| s.path(key)))
                .is_some(),
        }),
        admin: root.section("admin", |s| Admin {
            listen: s.address("listen"),
            allow_remote: s.flag("allow_remote"),
            allowed_hosts: allowed_hosts(s),
        }),
        auth: root.section("auth", auth),
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
            exposure: s.choice(
                "exposure",
                &[
                    ("full", Exposure::Full),
                    ("codes", Exposure::Codes),
                    ("none", Exposure::None),
                ],
            ),
            keys: s.sections("keys", |s| PolicyKey {
                id: s.text("id", "the key's name in signatures"),
                algorithm: s.choice("algorithm", &SIGNATURES.map(|name| (name, name))),
                file: s.path("file"),
            }),
            include_args: skill_names(s, "include_args"),
            allow_rollback: s.flag("allow_rollback"),
        }),
        runs: root.section("runs", |s| Runs {
            default_timeout_ms: s.integer("default_timeout_ms", 1..=DAY_MS),
            max_timeout_ms: s.integer("max_timeout_ms", 1..=DAY_MS),
            max_concurrent: s.count("max_concurrent", 1..=10_000),
            max_concurrent_per_tenant: s.count("max_concurrent_per_tenant", 0..=10_000),
            max_queued: s.count("max_queued", 0..=1_000_000),
            memory_bytes: s.integer("memory_bytes", MEMORY_BYTES_MIN..=TIB),
            max_pids: s.integer("max_pids", 1..=32_768),
            workspace_bytes: s.integer("workspace_bytes", (1 << 20)..=TIB),
            workspace_inodes: s.integer("workspace_inodes", 64..=(1 << 24)),
            // The host takes no result of a sandbox that names more.
            max_output_blobs: s.count("max_output_blobs", 0..=10_000),
            on_disconnect: s.choice(
                "on_disconnect",
                &[
                    ("kill", OnDisconnect::Kill),
                    ("finish", OnDisconnect::Finish),
                ],
            ),
        }),
        gate: root.section("gate", gate::read),
        skills: root.section("skills", |s| Skills {
            paths: s
                .texts("paths", None)
                .into_iter()
                .map(PathBuf::from)
                .collect(),
            max_files: s.count("max_files", 2..=1000),
            max_bytes: s.integer("max_bytes", 1024..=SKILL_BYTES_MAX),
        }),
        blobs: root.section("blobs", |s| Blobs {
            max_bytes: s.integer("max_bytes", 1..=TIB),
            ttl_s: s.integer("ttl_s", 0..=315_360_000),
            max_transfers: s.count("max_transfers", 1..=10_000),
        }),
        secrets: root.section("secrets", secrets),
        plugins: root.section("plugins", plugins::read),
        audit: root.section("audit", audit),
        log: root.section("log", |s| Log {
            filter: s
                .parsed(
                    "filter",
                    "a level, or a list like \"info,hyper=warn\"",
                    log_filter,
                )
                .unwrap_or_default(),
            format: s.choice(
                "format",
                &[("text", LogFormat::Text), ("json", LogFormat::Json)],
            ),
            buffer_bytes: s.count("buffer_bytes", 4096..=1 << 30),
        }),
        secret_variables: SecretVariables::default(),
        file: None,
        looked_for: Vec::new(),
        effective: show::Effective::default(),
    }
}

/// A name that no skill can have would be a rule that never sees what it is about.
fn skill_names(s: &Section<'_>, key: &'static str) -> Vec<String> {
    let names = s.texts(key, None);
    for name in &names {
        if let Err(error) = SkillName::parse(name) {
            s.wrong(key, error.to_string());
        }
    }
    names
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

/// What `opa sign` writes and this gateway reads.
const SIGNATURES: [&str; 8] = [
    "ES256", "ES384", "PS256", "PS384", "PS512", "RS256", "RS384", "RS512",
];

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
        let hint = did_you_mean(method, METHODS).map(|meant| format!("; did you mean {meant:?}?"));
        s.wrong(
            "methods",
            format!(
                "{:?} is no method{}",
                raw::cut(method),
                hint.unwrap_or_default()
            ),
        );
    }
    let counts = |method: &String| ABOUT_SKILLS.contains(&method.as_str());
    if key.contains(&RateKey::Skill) && !methods.is_empty() && !methods.iter().any(counts) {
        s.wrong(
            "key",
            format!(
                "by skill this rule counts nothing, since none of its methods is about a skill; expected one of {}, or a key without skill",
                ABOUT_SKILLS.join(", ")
            ),
        );
    }
    let quota = s.integer("quota", 1..=1_000_000_000);
    let per_s = s.integer("per_s", 1..=2_678_400);
    let burst = s.integer_or("burst", 1..=1_000_000_000, quota);
    let recovery_s = u128::from(burst) * u128::from(per_s) / u128::from(quota);
    if recovery_s > u128::from(RECOVERY_S_MAX) {
        s.wrong(
            "burst",
            format!(
                "with quota = {quota} and per_s = {per_s} a burst of {burst} takes {recovery_s} s to come back, \
                 expected at most {RECOVERY_S_MAX}"
            ),
        );
    }
    let max_keys = s.integer_or("max_keys", 1000..=10_000_000, 100_000);
    RateLimit {
        name: name.unwrap_or_default(),
        key,
        methods,
        quota,
        per_s,
        burst,
        max_keys: usize::try_from(max_keys).unwrap_or(usize::MAX),
    }
}

/// A year. Until a burst is back its key is in memory, and its end must be a time that can be counted in nanoseconds.
const RECOVERY_S_MAX: u64 = 366 * 86_400;

/// Most rules: each request is counted by all of them, and the answer's headers name them.
const RULES_MAX: usize = 64;

/// The protocol's methods: every one that calls arrive for. A rule that counts by one with a typing error would count nothing.
pub(crate) const METHODS: [&str; 10] = [
    "list_skills",
    "describe_skill",
    "read_skill_file",
    "execute_skill",
    "run_code",
    "create_blob",
    "read_blob",
    "load_skills_protocol_guide",
    "create_skill",
    "rpc.discover",
];

/// Those of them that are about skills.
const ABOUT_SKILLS: [&str; 5] = [
    "describe_skill",
    "read_skill_file",
    "execute_skill",
    "run_code",
    "create_skill",
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

fn audit(s: &Section<'_>) -> Audit {
    let interval = Duration::from_millis(s.integer("fsync_interval_ms", 1..=MS_MAX));
    Audit {
        path: s.path("path"),
        fsync: s.choice(
            "fsync",
            &[
                ("interval", Fsync::Interval(interval)),
                ("always", Fsync::Always),
                ("never", Fsync::Never),
            ],
        ),
        max_file_bytes: s.integer("max_file_bytes", (1 << 20)..=TIB),
        on_failure: s.choice(
            "on_failure",
            &[
                ("deny", OnAuditFailure::Deny),
                ("continue", OnAuditFailure::Continue),
            ],
        ),
    }
}

/// A filter of modules that do not exist would log nothing: at least the form is checked. A word alone is a level, and not a
/// module all of whose records are wanted: "warning" would be silence.
fn log_filter(text: &str) -> Option<String> {
    let says_level = |part: &str| part.contains('=') || part.trim().parse::<LevelFilter>().is_ok();
    // Fields of spans have commas of their own.
    if !text.contains('[') && !text.split(',').all(says_level) {
        return None;
    }
    tracing_subscriber::EnvFilter::builder()
        .parse(text)
        .ok()
        .map(|_| text.to_owned())
}

// === what must fit together ===

pub(super) fn check_together(root: &Section<'_>, config: &Config) {
    let open = config.auth.mode == AuthMode::Off && !config.server.insecure_no_auth;
    let listen = config.server.listen;
    if open && !listen.ip().to_canonical().is_loopback() {
        let message = format!(
            "{listen} can be reached by others while auth.mode = \"off\" asks nobody who they are; \
             expected a loopback address, or start with --insecure-no-auth if that is what you want"
        );
        root.wrong("server.listen", message);
    }
    let (listen, free) = (config.admin.listen, config.admin.allow_remote);
    if !free && !listen.ip().to_canonical().is_loopback() {
        let message = format!(
            "{listen} can be reached by others, and this listener asks nobody who they are; \
             expected a loopback address, or admin.allow_remote = true where only the operator's network reaches it"
        );
        root.wrong("admin.listen", message);
    }
    if config.server.listen == config.admin.listen && config.admin.listen.port() != 0 {
        let (one, other) = of_two(root, "admin.listen", "server.listen");
        root.wrong(
            one,
            format!(
                "{} is {other} too, expected another port",
                config.admin.listen
            ),
        );
    }
    not_below(
        root,
        ("runs.max_timeout_ms", config.runs.max_timeout_ms),
        ("runs.default_timeout_ms", config.runs.default_timeout_ms),
    );
    if config.auth.mode == AuthMode::Jwt && config.auth.issuers.is_empty() {
        root.wrong("auth.mode", "\"jwt\" needs at least one [[auth.issuers]]");
    }
    // By default, and not because anybody wants it: behind a proxy on the same host everybody would be the administrator.
    let is_unsaid = matches!(root.origin("auth.mode"), Origin::Default { .. });
    if config.auth.mode == AuthMode::Off && is_unsaid && !config.auth.issuers.is_empty() {
        let message = "no token is looked at, since auth.mode is \"off\" where nothing else is said; \
            expected mode = \"jwt\" in [auth], or mode = \"off\" if that is what you want";
        root.wrong("auth.issuers", message);
    }
    not_below(
        root,
        ("auth.jwks_max_stale_s", config.auth.jwks_max_stale_s),
        ("auth.jwks_max_age_s", config.auth.jwks_max_age_s),
    );
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
    if config.rate_limit.len() > RULES_MAX {
        let rules = config.rate_limit.len();
        root.wrong(
            "rate_limit",
            format!("{rules} rules, expected at most {RULES_MAX}"),
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

/// Two keys that do not fit together: the one that somebody has written, which is where the mistake was made, and the other.
fn of_two<'k>(root: &Section<'_>, first: &'k str, second: &'k str) -> (&'k str, &'k str) {
    let one = root.written(&[first, second]);
    (one, if one == first { second } else { first })
}

fn not_below(root: &Section<'_>, (high, most): (&str, u64), (low, least): (&str, u64)) {
    if least <= most {
        return;
    }
    let (one, other) = of_two(root, high, low);
    let message = if one == high {
        format!("{most} is less than {other}, expected at least {least}")
    } else {
        format!("{least} is more than {other}, expected at most {most}")
    };
    root.wrong(one, message);
}

/// What can be written but is not built: accepting it would promise a protection that is not there.
pub(super) fn unsupported_yet(root: &Section<'_>, config: &Config) {
    let wanted = [(
        "server.tls",
        config.server.tls,
        "put a proxy that ends TLS in front",
    )];
    for (key, _, instead) in wanted.into_iter().filter(|(_, wanted, _)| *wanted) {
        root.wrong(
            key,
            format!("this version cannot do it yet, so it is refused; {instead}"),
        );
    }
}

//! The plugin's section of the configuration.

use serde::Deserialize;

use crate::launcher::UID_ROOM;
use crate::probe::EXCUSABLE;
use crate::wire::Layer;

/// As written, unknown keys refused, then checked.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Config {
    /// The Python of every run; `None`: /usr/bin/python3, else python3 on PATH.
    pub(crate) interpreter: Option<String>,
    /// As root: runs have the user ids `uid_base` and up, outside.
    pub(crate) uid_base: u32,
    /// Processors that one run may use.
    pub(crate) cpus: f64,
    /// While a run lasts, how often it is looked who is next on a processor; 0: when the kernel does.
    pub(crate) pace_us: u64,
    /// Control group to work below, instead of the gateway's own.
    pub(crate) cgroup_parent: Option<String>,
    /// Layers that may be missing on this host.
    pub(crate) downgrades: Vec<Layer>,
    /// Every run starts an interpreter of its own.
    pub(crate) fresh: bool,
    pub(crate) namespaces: Namespaces,
    /// Waiting interpreters, at least and at most.
    pub(crate) pool_min: u32,
    pub(crate) pool_max: u32,
    /// Modules that zygotes have imported.
    pub(crate) preload: Vec<String>,
    pub(crate) zygote_per: ZygotePer,
    /// How many zygotes live, with one for each tenant.
    pub(crate) zygotes_max: usize,
    pub(crate) zygote_runs: u64,
    pub(crate) zygote_age_s: u64,
    /// Of the code of skills that is kept; 0: every run compiles what it imports.
    pub(crate) code_cache_bytes: usize,
}

/// Where a run's network, ipc and user namespaces come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Namespaces {
    /// Made ahead, one run's at a time, and used again when nothing can be left in them.
    Leased,
    /// Made for one run.
    Fresh,
}

/// Whose runs come from the same zygote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ZygotePer {
    Gateway,
    Tenant,
}

/// Says every key; `skillgate config check` holds the section against it.
pub(crate) const SCHEMA: &str = r#"{
  "type": "object",
  "additionalProperties": false,
  "properties": {
    "interpreter": {"type": "string", "description": "path of the Python (3.9 or later) of every run; default: /usr/bin/python3, else python3 on PATH"},
    "uid_base": {"type": "integer", "minimum": 1000, "maximum": 4293918719, "default": 200000, "description": "as root: each live run has a user id of its own, from this one up"},
    "cpus": {"type": "number", "minimum": 0.01, "maximum": 1024, "default": 1, "description": "processors that one run may use"},
    "pace_us": {"type": "integer", "anyOf": [{"minimum": 100, "maximum": 4000}, {"enum": [0]}], "default": 1000, "description": "while a run takes the processors for more than some milliseconds: after so many microseconds at the latest one goes to whoever else is owed it, whatever the kernel's clock; at least 100, or 0: at the ticks of that"},
    "cgroup_parent": {"type": "string", "description": "control group to work below (a path below the mount of each hierarchy); default: the gateway's own"},
    "downgrades": {"type": "array", "items": {"enum": ["cgroup", "landlock", "user_namespace"]}, "default": [], "description": "layers that may be missing on this host; without its name here a missing layer stops the start"},
    "fresh": {"type": "boolean", "default": false, "description": "every run starts an interpreter of its own (about 20 ms) instead of being a child of a warmed one"},
    "namespaces": {"enum": ["leased", "fresh"], "default": "leased", "description": "network, ipc and user namespaces of a run: made ahead and used again when nothing can be left in them, or made for it"},
    "pool_min": {"type": "integer", "minimum": 0, "maximum": 1024, "default": 2, "description": "interpreters that wait for runs when there is little to do"},
    "pool_max": {"type": "integer", "minimum": 0, "maximum": 1024, "default": 128, "description": "the most that wait, 1.5 to 2.5 MiB each; 0: each is made when its run is there"},
    "preload": {"type": "array", "items": {"type": "string"}, "default": ["base64", "collections", "datetime", "math", "re", "urllib.parse"], "description": "modules of the standard library that a warmed interpreter has imported"},
    "zygote_per": {"enum": ["gateway", "tenant"], "default": "gateway", "description": "whose runs are children of the same warmed interpreter, and so have the same address layout and hash seed"},
    "zygotes_max": {"type": "integer", "minimum": 1, "maximum": 256, "default": 8, "description": "with one per tenant: how many live; the one that is longest unused makes room, after 4 s at the earliest"},
    "zygote_runs": {"type": "integer", "minimum": 1, "default": 5000, "description": "a warmed interpreter is replaced after so many children"},
    "zygote_age_s": {"type": "integer", "minimum": 1, "maximum": 31536000, "default": 600, "description": "a warmed interpreter is replaced at this age"},
    "code_cache_bytes": {"type": "integer", "minimum": 0, "maximum": 1073741824, "default": 33554432, "description": "source and compiled code of skills that is kept for their next runs, 256 KiB of each at most; 0: every run compiles what it imports"}
  }
}"#;

const WAITING_MAX: u64 = 1024;

impl Default for Config {
    fn default() -> Self {
        Config {
            interpreter: None,
            uid_base: 200_000,
            cpus: 1.0,
            pace_us: 1000,
            cgroup_parent: None,
            downgrades: Vec::new(),
            fresh: false,
            namespaces: Namespaces::Leased,
            pool_min: 2,
            pool_max: 128,
            preload: [
                "base64",
                "collections",
                "datetime",
                "math",
                "re",
                "urllib.parse",
            ]
            .map(str::to_owned)
            .into(),
            zygote_per: ZygotePer::Gateway,
            zygotes_max: 8,
            zygote_runs: 5000,
            zygote_age_s: 600,
            code_cache_bytes: 32 << 20,
        }
    }
}

impl Config {
    /// Reads and checks. The error names the key and what to do.
    pub(crate) fn parse(json: &[u8]) -> Result<Self, String> {
        if json.iter().all(u8::is_ascii_whitespace) {
            return Ok(Self::default());
        }
        if json.trim_ascii_start().first() != Some(&b'{') {
            return Err("sandbox-process configuration: it is not an object".into());
        }
        let config: Self = serde_json::from_slice(json)
            .map_err(|e| format!("sandbox-process configuration: {e}"))?;
        if !(0.01..=1024.0).contains(&config.cpus) {
            return Err(format!("cpus = {}: use 0.01 to 1024", config.cpus));
        }
        if config.pace_us != 0 && !(100..=4000).contains(&config.pace_us) {
            return Err(format!(
                "pace_us = {}: use 0, or 100 to 4000",
                config.pace_us
            ));
        }
        if config.uid_base < 1000 || config.uid_base > u32::MAX - UID_ROOM {
            return Err(format!(
                "uid_base = {}: use 1000 to {}, a range that no account has",
                config.uid_base,
                u32::MAX - UID_ROOM
            ));
        }
        if let Some(layer) = config.downgrades.iter().find(|l| !EXCUSABLE.contains(l)) {
            return Err(format!(
                "downgrades names {layer:?}: only cgroup, landlock and user_namespace can be excused"
            ));
        }
        for (key, value, least, most) in [
            ("pool_min", u64::from(config.pool_min), 0, WAITING_MAX),
            ("pool_max", u64::from(config.pool_max), 0, WAITING_MAX),
            ("zygotes_max", config.zygotes_max as u64, 1, 256),
            ("zygote_runs", config.zygote_runs, 1, u64::MAX),
            ("zygote_age_s", config.zygote_age_s, 1, 31_536_000),
            (
                "code_cache_bytes",
                config.code_cache_bytes as u64,
                0,
                1 << 30,
            ),
        ] {
            if !(least..=most).contains(&value) {
                return Err(format!("{key} = {value}: use {least} to {most}"));
            }
        }
        let is_name = |name: &String| {
            name.split('.').all(|part| {
                !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
            })
        };
        if let Some(name) = config.preload.iter().find(|name| !is_name(name)) {
            return Err(format!("preload names {name:?}: that is no module"));
        }
        if let Some(parent) = config
            .cgroup_parent
            .as_deref()
            .filter(|p| p.split('/').any(|part| part == ".."))
        {
            return Err(format!(
                "cgroup_parent = {parent:?}: it must not contain `..`"
            ));
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nowhere else can an operator read them: who only inspects a plugin executes nothing of it, and so has no schema.
    #[test]
    fn every_key_is_in_the_operators_page() {
        let schema: serde_json::Value = serde_json::from_str(SCHEMA).unwrap();
        let page = include_str!("../../../OPERATING.md");
        let keys = schema["properties"].as_object().unwrap().keys();
        let missing: Vec<_> = keys
            .filter(|key| !page.contains(&format!("`{key}`")))
            .collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn defaults_are_what_the_schema_says() {
        let schema: serde_json::Value = serde_json::from_str(SCHEMA).unwrap();
        let of = |key: &str| schema["properties"][key]["default"].clone();
        let config = Config::parse(b"{}").unwrap();
        assert_eq!(of("uid_base"), config.uid_base);
        assert_eq!(of("cpus"), 1);
        assert_eq!(config.cpus, 1.0);
        assert_eq!(
            (of("fresh"), of("namespaces")),
            (false.into(), "leased".into())
        );
        assert_eq!(
            (config.fresh, config.namespaces),
            (false, Namespaces::Leased)
        );
        assert_eq!(
            (of("zygote_per"), config.zygote_per),
            ("gateway".into(), ZygotePer::Gateway)
        );
        assert_eq!(of("pace_us"), config.pace_us);
        assert_eq!(of("pool_min"), config.pool_min);
        assert_eq!(of("pool_max"), config.pool_max);
        assert_eq!(of("preload"), serde_json::json!(config.preload));
        assert_eq!(of("zygotes_max"), config.zygotes_max);
        assert_eq!(of("zygote_runs"), config.zygote_runs);
        assert_eq!(of("zygote_age_s"), config.zygote_age_s);
        assert_eq!(of("code_cache_bytes"), config.code_cache_bytes);
        let empty = Config::parse(b"  ").unwrap();
        assert_eq!(
            (empty.uid_base, empty.downgrades),
            (config.uid_base, Vec::new())
        );
    }

    #[test]
    fn wrong_values_are_named() {
        for (json, part) in [
            (r#"{"interpeter":"x"}"#, "unknown field `interpeter`"),
            (r#"{"cpus":0}"#, "cpus = 0"),
            (r#"{"uid_base":0}"#, "uid_base = 0"),
            (r#"{"downgrades":["seccomp"]}"#, "can be excused"),
            (
                r#"{"downgrades":["firewall"]}"#,
                "unknown variant `firewall`",
            ),
            (r#"{"cgroup_parent":"/a/../b"}"#, "must not contain"),
            (r#"{"pace_us":4001}"#, "pace_us = 4001"),
            (r#"{"pace_us":99}"#, "pace_us = 99: use 0, or 100"),
            (r#"{"pool_max":1025}"#, "pool_max = 1025"),
            (r#"{"zygotes_max":0}"#, "zygotes_max = 0"),
            (r#"{"zygote_runs":0}"#, "zygote_runs = 0"),
            (r#"{"zygote_age_s":0}"#, "zygote_age_s = 0"),
            (
                r#"{"code_cache_bytes":1073741825}"#,
                "code_cache_bytes = 1073741825",
            ),
            (r#"{"preload":["os; import x"]}"#, "preload names"),
            (r#"{"namespaces":"shared"}"#, "unknown variant `shared`"),
            ("[]", "configuration"),
        ] {
            let error = Config::parse(json.as_bytes()).unwrap_err();
            assert!(error.contains(part), "{json}: {error}");
        }
    }
}

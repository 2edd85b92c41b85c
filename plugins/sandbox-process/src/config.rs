//! The plugin's section of the configuration.

use serde::Deserialize;

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
    /// Control group to work below, instead of the gateway's own.
    pub(crate) cgroup_parent: Option<String>,
    /// Layers that may be missing on this host.
    pub(crate) downgrades: Vec<Layer>,
}

/// Says every key; the gateway shows it and `plugin inspect` prints it.
pub(crate) const SCHEMA: &str = r#"{
  "type": "object",
  "additionalProperties": false,
  "properties": {
    "interpreter": {"type": "string", "description": "path of the Python (3.9 or later) of every run; default: /usr/bin/python3, else python3 on PATH"},
    "uid_base": {"type": "integer", "minimum": 1000, "maximum": 4293918719, "default": 200000, "description": "as root: each live run has a user id of its own, from this one up"},
    "cpus": {"type": "number", "minimum": 0.01, "maximum": 1024, "default": 1, "description": "processors that one run may use"},
    "cgroup_parent": {"type": "string", "description": "control group to work below (a path below the mount of each hierarchy); default: the gateway's own"},
    "downgrades": {"type": "array", "items": {"enum": ["cgroup", "landlock", "user_namespace"]}, "default": [], "description": "layers that may be missing on this host; without its name here a missing layer stops the start"}
  }
}"#;

/// Room above `uid_base` for as many runs as can ever live at once.
const UID_ROOM: u32 = 1 << 20;

impl Default for Config {
    fn default() -> Self {
        Config {
            interpreter: None,
            uid_base: 200_000,
            cpus: 1.0,
            cgroup_parent: None,
            downgrades: Vec::new(),
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

    #[test]
    fn defaults_are_what_the_schema_says() {
        let schema: serde_json::Value = serde_json::from_str(SCHEMA).unwrap();
        let of = |key: &str| schema["properties"][key]["default"].clone();
        let config = Config::parse(b"{}").unwrap();
        assert_eq!(of("uid_base"), config.uid_base);
        assert_eq!(of("cpus"), 1);
        assert_eq!(config.cpus, 1.0);
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
            ("[]", "configuration"),
        ] {
            let error = Config::parse(json.as_bytes()).unwrap_err();
            assert!(error.contains(part), "{json}: {error}");
        }
    }
}

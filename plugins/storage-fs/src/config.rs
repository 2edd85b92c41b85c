//! The plugin's section of the configuration: as written, then checked.

use std::path::PathBuf;

use serde::Deserialize;

use crate::fault::{Fault, Result};
use crate::floor::Size;

/// What an operator may write, as a JSON Schema.
pub(crate) const CONFIG_SCHEMA: &str = r#"{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "title": "storage-fs",
  "type": "object",
  "additionalProperties": false,
  "properties": {
    "root": {
      "type": "string", "minLength": 1,
      "description": "directory of the writable store, made when it is not there; absent: no writable store"
    },
    "read_only_skills": {
      "type": "array", "items": {"type": "string", "minLength": 1}, "default": [],
      "description": "directories of skills, <dir>/<any>/skill.toml or <dir>/<name>/<version>/skill.toml, or <dir>/skill.toml for a directory that is one skill; the same for every tenant"
    },
    "fsync": {
      "type": "boolean", "default": true,
      "description": "false: what is stored may be lost in a power cut; only for throw-away stores"
    },
    "reserve_bytes": {
      "type": "integer", "minimum": 0, "default": 268435456,
      "description": "what the file system of `root` keeps free for others, the gateway's records above all: a blob or a skill that would leave less is refused; 0: none"
    },
    "reserve_inodes": {
      "type": "integer", "minimum": 0, "default": 4096,
      "description": "how many files the file system of `root` keeps room for in the same way, where it can have only so many; 0: none"
    },
    "tenant_blob_bytes": {
      "type": "integer", "minimum": 0, "default": 0,
      "description": "what the blobs of one tenant may take together, each of them counted with 12288 beside its content, for what it takes on the disk, and above 1 MiB with some more: one that would take more is refused; 0: any amount"
    },
    "tenant_skill_bytes": {
      "type": "integer", "minimum": 0, "default": 0,
      "description": "what the published skills of one tenant may take together, each file and directory counted with 4096 beside its content: a version that would take more is refused, and versions stay; 0: any amount"
    }
  },
  "anyOf": [{"required": ["root"]}, {"required": ["read_only_skills"]}]
}"#;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    #[serde(default)]
    root: Option<PathBuf>,
    #[serde(default)]
    read_only_skills: Option<Vec<PathBuf>>,
    #[serde(default = "yes")]
    fsync: bool,
    #[serde(default = "reserve_bytes")]
    reserve_bytes: u64,
    #[serde(default = "reserve_inodes")]
    reserve_inodes: u64,
    #[serde(default)]
    tenant_blob_bytes: u64,
    #[serde(default)]
    tenant_skill_bytes: u64,
}

fn yes() -> bool {
    true
}

fn reserve_bytes() -> u64 {
    256 * 1024 * 1024
}

fn reserve_inodes() -> u64 {
    4096
}

/// Checked and ready.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) root: Option<PathBuf>,
    pub(crate) read_only_skills: Vec<PathBuf>,
    pub(crate) fsync: bool,
    /// What is kept free; 0: none.
    pub(crate) reserve: Size,
    /// 0: none.
    pub(crate) tenant_blob_bytes: u64,
    /// 0: none.
    pub(crate) tenant_skill_bytes: u64,
}

impl Config {
    pub(crate) fn parse(json: &[u8]) -> Result<Config> {
        // No section at all reads like an empty one.
        let json = if json.is_empty() { b"{}" } else { json };
        let raw: Raw = serde_json::from_slice(json)
            .map_err(|error| Fault::Invalid(format!("the configuration of storage-fs: {error}")))?;
        let empty = |path: &PathBuf| path.as_os_str().is_empty();
        if raw.root.as_ref().is_some_and(empty) {
            return Err(Fault::Invalid(
                "the configuration of storage-fs: `root` is empty: name a directory, or leave it out".to_owned(),
            ));
        }
        if raw.read_only_skills.iter().flatten().any(empty) {
            return Err(Fault::Invalid(
                "the configuration of storage-fs: `read_only_skills` has an empty entry".to_owned(),
            ));
        }
        if raw.root.is_none() && raw.read_only_skills.is_none() {
            return Err(Fault::Invalid(
                "the configuration of storage-fs names neither `root` nor `read_only_skills`: there is nothing to serve"
                    .to_owned(),
            ));
        }
        Ok(Config {
            root: raw.root,
            read_only_skills: raw.read_only_skills.unwrap_or_default(),
            fsync: raw.fsync,
            reserve: Size {
                bytes: raw.reserve_bytes,
                inodes: raw.reserve_inodes,
            },
            tenant_blob_bytes: raw.tenant_blob_bytes,
            tenant_skill_bytes: raw.tenant_skill_bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_read() {
        let store = Config::parse(br#"{"root": "store"}"#).unwrap();
        assert_eq!(store.root, Some(PathBuf::from("store")));
        assert!(store.fsync && store.read_only_skills.is_empty());
        let schema: serde_json::Value = serde_json::from_str(CONFIG_SCHEMA).unwrap();
        let said = |key: &str| &schema["properties"][key]["default"];
        assert_eq!(*said("reserve_bytes"), store.reserve.bytes);
        assert_eq!(*said("reserve_inodes"), store.reserve.inodes);
        assert_eq!((store.tenant_blob_bytes, store.tenant_skill_bytes), (0, 0));
        let none = Config::parse(br#"{"root": "x", "reserve_bytes": 0, "reserve_inodes": 0}"#);
        assert_eq!(none.unwrap().reserve, Size::default());
        let shelf = Config::parse(br#"{"read_only_skills": ["a", "b"], "fsync": false}"#).unwrap();
        assert_eq!(shelf.root, None);
        assert_eq!(shelf.read_only_skills.len(), 2);
        assert!(!shelf.fsync);
    }

    #[test]
    fn mistakes_are_named() {
        let cases: [(&[u8], &str); 9] = [
            (b"", "nothing to serve"),
            (b"{}", "nothing to serve"),
            (br#"{"rooot": "x"}"#, "unknown field `rooot`"),
            (br#"{"root": ""}"#, "`root` is empty"),
            (br#"{"root": 5}"#, "invalid type"),
            (br#"{"read_only_skills": [""]}"#, "empty entry"),
            (br#"{"root": "x", "fsync": "no"}"#, "expected a boolean"),
            (br#"{"root": "x", "reserve_bytes": -1}"#, "expected u64"),
            (br#"{"root": "x", "reserve_inodes": -1}"#, "expected u64"),
        ];
        for (json, expected) in cases {
            let text = Config::parse(json).unwrap_err().to_string();
            assert!(text.contains(expected), "{text}");
        }
        let schema: serde_json::Value = serde_json::from_str(CONFIG_SCHEMA).unwrap();
        assert_eq!(schema["properties"].as_object().unwrap().len(), 7);
    }
}

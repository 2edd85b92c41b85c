//! `[plugins]`: which files are loaded, where, and what they are given.

use std::path::PathBuf;

use super::check::MS_MAX;
use super::raw::{self, Table};
use super::section::{self, Section};

/// `[plugins]`
#[derive(Debug, Clone)]
pub struct Plugins {
    /// What plugins keep between restarts; the gateway makes it.
    pub state_dir: PathBuf,
    /// Until a plugin's own process has an instance.
    pub process_start_timeout_ms: u64,
    /// Until a plugin's own process that ignores a cancellation, or its end, is killed.
    pub process_cancel_grace_ms: u64,
    /// The writable store of skills and blobs.
    pub storage: PluginRef,
    /// Where runs happen.
    pub sandbox: PluginRef,
}

/// `[plugins.storage]`, `[plugins.sandbox]`
#[derive(Clone, PartialEq)]
pub struct PluginRef {
    /// Which plugin.
    pub source: PluginSource,
    /// What its file must be: 64 lower case hex digits.
    pub sha256: Option<String>,
    /// The public key that its file must be signed by, base64 as minisign prints it.
    pub minisign_key: Option<String>,
    /// Its file needs neither of these two.
    pub allow_unsigned: bool,
    /// Where it is loaded.
    pub isolation: PluginIsolation,
    /// Its own section: a JSON object. May hold secrets: never printed or logged as it is.
    pub config: serde_json::Value,
}

impl std::fmt::Debug for PluginRef {
    /// Without `config`, so that no log of a configuration is a log of secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let PluginRef {
            source,
            sha256,
            minisign_key,
            allow_unsigned,
            isolation,
            config: _,
        } = self;
        f.debug_struct("PluginRef")
            .field("source", source)
            .field("sha256", sha256)
            .field("minisign_key", minisign_key)
            .field("allow_unsigned", allow_unsigned)
            .field("isolation", isolation)
            .finish_non_exhaustive()
    }
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

pub(super) fn read(s: &Section<'_>) -> Plugins {
    Plugins {
        state_dir: s.path("state_dir"),
        process_start_timeout_ms: s.integer("process_start_timeout_ms", 100..=MS_MAX),
        process_cancel_grace_ms: s.integer("process_cancel_grace_ms", 1..=MS_MAX),
        storage: s.section("storage", |s| plugin(s, &["storage-fs"])),
        sandbox: s.section("sandbox", |s| plugin(s, &["sandbox-process"])),
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
    // Code of others stays out of the gateway unless the operator writes otherwise.
    let isolation = match (s.has("isolation"), &source) {
        (true, _) => s.choice(
            "isolation",
            &[
                ("gateway", PluginIsolation::Gateway),
                ("process", PluginIsolation::Process),
            ],
        ),
        (false, PluginSource::Name(_)) => PluginIsolation::Gateway,
        (false, PluginSource::Path(_)) => PluginIsolation::Process,
    };
    let allow_unsigned = s.flag("allow_unsigned");
    let known = s.has("sha256") || s.has("minisign_key");
    if matches!(source, PluginSource::Path(_)) && !known && !allow_unsigned {
        s.wrong(
            "path",
            "nothing says which file this has to be, expected sha256 (`skillgate plugin inspect` prints it) or \
             minisign_key beside it, or allow_unsigned = true if any file at this path may run",
        );
    }
    PluginRef {
        source,
        allow_unsigned,
        isolation,
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
        config: s.open("config"),
    }
}

/// What is about one plugin, and not about the next that takes its place.
const OF_ONE_PLUGIN: [&str; 7] = [
    "name",
    "path",
    "sha256",
    "minisign_key",
    "allow_unsigned",
    "isolation",
    "config",
];

/// A layer that names a plugin means that plugin: the pins and the section of the one below are not its own.
pub(super) fn forget_replaced_plugins(tree: &mut Table, layer: &Table) {
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
            below.retain(|(key, _)| !OF_ONE_PLUGIN.contains(&key.as_str()));
        }
    }
}

//! A bundle: a directory of Rego, or the archive that `opa build -b` makes of one. Reading it decides nothing: what
//! its parts mean is checked when it is compiled and tried.
//!
//! Of the files these count: `*.rego`, `data.json` (its directory is its path below `data`), `.manifest`,
//! `.signatures.json`, and golden decisions in `tests/decisions/*.json`. Layout: OPA documentation, "Bundles", section
//! "Bundle File Format".

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use regorus::Value;
use rustix::io::Errno;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::{decision, input};
use crate::json;

/// Bytes of all files of a bundle together.
pub(super) const BUNDLE_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// Files of a bundle.
const BUNDLE_FILES_MAX: usize = 4096;
/// Bytes of one file of rules: what the engine takes.
const MODULE_BYTES_MAX: usize = 1024 * 1024;
/// Bytes of a path in a bundle.
const PATH_BYTES_MAX: usize = 512;
/// Directories one below the other.
const DEPTH_MAX: usize = 32;

/// The manifest.
pub(super) const MANIFEST: &str = ".manifest";
/// Signatures.
pub(super) const SIGNATURES: &str = ".signatures.json";
/// Where the golden decisions are.
const DECISIONS: &str = "tests/decisions/";

/// Why a bundle cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BundleError {
    /// The bundle, or a file in it, as far as it is known: `policies/skills/a.rego`.
    pub place: String,
    /// What is wrong, and what to do.
    pub message: String,
    /// Not because of what is in it: the machine had no room to read or to try it, and may have later.
    pub is_passing: bool,
}

/// Of a machine that may have room later: processes, threads, memory and open files.
pub(super) const NO_ROOM: [Errno; 4] = [Errno::AGAIN, Errno::NOMEM, Errno::MFILE, Errno::NFILE];

pub(super) fn lacks_room(error: &io::Error) -> bool {
    Errno::from_io_error(error).is_some_and(|errno| NO_ROOM.contains(&errno))
}

impl BundleError {
    pub(super) fn new(place: impl fmt::Display, message: impl Into<String>) -> Self {
        BundleError {
            place: place.to_string(),
            message: message.into(),
            is_passing: false,
        }
    }

    pub(super) fn unread(path: &Path, error: &io::Error) -> Self {
        BundleError {
            is_passing: lacks_room(error),
            ..BundleError::new(path.display(), format!("cannot be read: {error}"))
        }
    }
}

impl fmt::Display for BundleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.message)
    }
}

impl std::error::Error for BundleError {}

/// The files of a bundle by their path in it, and the paths of those of its directory that are no part of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Files {
    pub(super) contents: BTreeMap<String, Vec<u8>>,
    pub(super) left_out: Vec<String>,
}

/// One file of rules.
#[derive(Debug, Clone)]
pub(super) struct Module {
    pub(super) path: String,
    pub(super) text: String,
}

impl Module {
    /// Tests are tried, not served.
    pub(super) fn is_test(&self) -> bool {
        self.path.ends_with("_test.rego")
    }
}

/// A recorded input and what must come of it.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Golden {
    pub(super) name: String,
    pub(super) input: serde_json::Value,
    pub(super) expect: Expect,
}

/// The outcome of a golden decision.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Expect {
    pub(super) allow: bool,
    /// Codes of the reasons, in any order.
    pub(super) codes: Vec<String>,
    /// The grants, where the case is about them.
    pub(super) grants: Option<serde_json::Value>,
}

/// `.manifest`
#[derive(Debug, Clone, Default, Deserialize)]
struct Manifest {
    #[serde(default)]
    revision: String,
    roots: Option<Vec<String>>,
    rego_version: Option<u64>,
    #[serde(default)]
    metadata: serde_json::Map<String, serde_json::Value>,
}

/// What was read.
#[derive(Debug, Clone)]
pub(super) struct Bundle {
    manifest: Manifest,
    modules: Vec<Module>,
    data: Vec<(String, Value)>,
    goldens: Vec<Golden>,
    left_out: Vec<String>,
    digest: String,
}

impl Bundle {
    pub(super) fn revision(&self) -> &str {
        &self.manifest.revision
    }

    /// Counts the changes of a bundle; none: nobody counts them.
    pub(super) fn sequence(&self) -> Option<u64> {
        self.manifest.metadata.get("sequence")?.as_u64()
    }

    pub(super) fn digest(&self) -> &str {
        &self.digest
    }

    pub(super) fn modules(&self) -> &[Module] {
        &self.modules
    }

    /// Documents, each nested as deep as its directory.
    pub(super) fn data(&self) -> impl Iterator<Item = &Value> {
        self.data.iter().map(|(_, value)| value)
    }

    /// The same, each with its file.
    pub(super) fn documents(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.data.iter().map(|(file, value)| (file.as_str(), value))
    }

    /// Files that are not read and are no words for people, either: they may have been meant as a part of it.
    pub(super) fn left_out(&self) -> Vec<String> {
        let all = self.left_out.iter();
        all.map(|path| {
            format!(
                "{path}: is not read; a bundle has *.rego, data.json and tests/decisions/*.json, whose names do not begin with a dot: rename it, or keep it elsewhere"
            )
        })
        .collect()
    }

    pub(super) fn goldens(&self) -> &[Golden] {
        &self.goldens
    }

    /// Whether a path below `data` (`skills.authz`) belongs to the bundle.
    pub(super) fn owns(&self, package: &str) -> bool {
        let within = |root: &String| {
            let root = root.trim_matches('/').replace('/', ".");
            package
                .strip_prefix(root.as_str())
                .is_some_and(|rest| root.is_empty() || rest.is_empty() || rest.starts_with('.'))
        };
        self.manifest
            .roots
            .as_ref()
            .is_none_or(|roots| roots.iter().any(within))
    }

    /// Sorts the files into what they are. `place` is what errors begin with.
    pub(super) fn new(files: &Files, place: &str) -> Result<Self, BundleError> {
        let at = |path: &str| format!("{}/{path}", place.trim_end_matches('/'));
        let mut bundle = Bundle {
            manifest: Manifest::default(),
            modules: Vec::new(),
            data: Vec::new(),
            goldens: Vec::new(),
            left_out: Vec::new(),
            digest: files.digest(),
        };
        for (path, bytes) in &files.contents {
            let name = path.rsplit('/').next().unwrap_or(path);
            let text = || {
                std::str::from_utf8(bytes)
                    .map_err(|_| BundleError::new(at(path), "is not UTF-8 text"))
            };
            let bad = |error: serde_json::Error| BundleError::new(at(path), error.to_string());
            if path.ends_with(".rego") {
                if bytes.len() > MODULE_BYTES_MAX {
                    let message = format!(
                        "has {} bytes; a file of rules has at most {MODULE_BYTES_MAX}, lists belong into data.json",
                        bytes.len()
                    );
                    return Err(BundleError::new(at(path), message));
                }
                bundle.modules.push(Module {
                    path: at(path),
                    text: text()?.to_owned(),
                });
            } else if name == "data.json" {
                bundle.data.push((
                    at(path),
                    read_data(path, text()?).map_err(|why| BundleError::new(at(path), why))?,
                ));
            } else if path == MANIFEST {
                bundle.manifest = serde_json::from_str(text()?).map_err(bad)?;
            } else if path.starts_with(DECISIONS) && path.ends_with(".json") {
                bundle
                    .goldens
                    .push(serde_json::from_str(text()?).map_err(bad)?);
            } else if name == "data.yaml" || name == "data.yml" {
                return Err(BundleError::new(
                    at(path),
                    "YAML is not read: write it as data.json",
                ));
            } else if path.ends_with(".wasm") || name == "plan.json" || name == "patch.json" {
                return Err(BundleError::new(
                    at(path),
                    "compiled and delta bundles are not read: build with `opa build -b`",
                ));
            } else if path != SIGNATURES && looks_meant(path) {
                bundle.left_out.push(at(path));
            }
        }
        let left_out = files.left_out.iter().filter(|path| looks_meant(path));
        bundle.left_out.extend(left_out.map(|path| at(path)));
        bundle.check(place)?;
        Ok(bundle)
    }

    fn check(&mut self, place: &str) -> Result<(), BundleError> {
        let manifest = format!("{}/{MANIFEST}", place.trim_end_matches('/'));
        if let Some(version) = self.manifest.rego_version.filter(|version| *version != 1) {
            let message = format!("rego_version is {version}; only Rego v1 is read");
            return Err(BundleError::new(manifest, message));
        }
        if let Some(sequence) = self.manifest.metadata.get("sequence")
            && sequence.as_u64().is_none()
        {
            let message = format!("metadata.sequence is {sequence}, not a whole number");
            return Err(BundleError::new(manifest, message));
        }
        // Rules about a member that this gateway does not give would say nothing, those that deny among them; nor would those of
        // an entry that it does not ask.
        let version = "its rules are for another version; take those for this one, or install the version that they are for";
        let entry = "no other rule is asked; make its decision that one's";
        for (key, known, what_to_do) in [
            ("input_schema", input::SCHEMA, version),
            ("decision_schema", decision::SCHEMA, version),
            ("entrypoint", decision::ENTRY, entry),
        ] {
            if let Some(written_for) = self.manifest.metadata.get(key)
                && written_for.as_str() != Some(known)
            {
                let message = format!(
                    "metadata.{key} is {written_for}, and this gateway has {known:?}: {what_to_do}"
                );
                return Err(BundleError::new(manifest, message));
            }
        }
        if self.manifest.revision.is_empty() {
            // Every decision names its revision: without one of its own, the content is the name.
            self.manifest.revision = format!("sha256:{}", &self.digest[..12]);
        }
        if !self.modules.iter().any(|module| !module.is_test()) {
            let message = "there is no .rego file in it; policy.path must name a directory of Rego or an OPA bundle";
            return Err(BundleError::new(place, message));
        }
        for (path, value) in &self.data {
            let owned = value.as_object().is_ok_and(|top| {
                top.iter().all(|(key, below)| {
                    let top = key.as_string().map(ToString::to_string).unwrap_or_default();
                    self.owns_below(&top, below)
                })
            });
            if !owned {
                return Err(BundleError::new(
                    path,
                    "has data outside the roots of .manifest",
                ));
            }
        }
        Ok(())
    }

    /// Whether everything at `path` is below some root: an object above a root may lead to it.
    fn owns_below(&self, path: &str, value: &Value) -> bool {
        if self.owns(path) {
            return true;
        }
        let leads = self.manifest.roots.iter().flatten().any(|root| {
            root.trim_matches('/')
                .replace('/', ".")
                .starts_with(&format!("{path}."))
        });
        leads
            && value.as_object().is_ok_and(|members| {
                members.iter().all(|(key, below)| {
                    key.as_string()
                        .is_ok_and(|key| self.owns_below(&format!("{path}.{key}"), below))
                })
            })
    }
}

/// `a/b/data.json` as the document `{"a": {"b": ...}}`.
fn read_data(path: &str, text: &str) -> Result<Value, String> {
    // A name twice: the reader of the file and the engine would see different lists.
    json::walk(text).map_err(json::Refused::why)?;
    if let Some(number) = json::rounded_integer(text) {
        return Err(format!(
            "has the integer {}, which rules would see rounded: one beyond 64 bits is written as a string",
            json::short(number)
        ));
    }
    let mut value = Value::from_json_str(text).map_err(|error| error.to_string())?;
    if value.as_object().is_err() {
        return Err("is no JSON object".into());
    }
    for directory in path.split('/').rev().skip(1) {
        value = Value::from(BTreeMap::from([(Value::from(directory), value)]));
    }
    Ok(value)
}

impl Files {
    /// Reads a directory or an archive.
    pub(super) fn read(path: &Path) -> Result<Files, BundleError> {
        let found = fs::metadata(path).map_err(|error| BundleError::unread(path, &error))?;
        let files = if found.is_dir() {
            Files::of_directory(path)?
        } else {
            super::archive::read(path)?
        };
        Ok(files)
    }

    fn digest(&self) -> String {
        let mut hash = Sha256::new();
        for (path, bytes) in &self.contents {
            hash.update(path.as_bytes());
            hash.update(b"\0");
            hash.update(Sha256::digest(bytes));
        }
        hex::encode(hash.finalize())
    }

    /// Adds a file. Whoever reads them counts their bytes.
    pub(super) fn add(&mut self, path: String, bytes: Vec<u8>) -> Result<(), String> {
        if self.contents.len() >= BUNDLE_FILES_MAX {
            return Err(format!("a bundle has at most {BUNDLE_FILES_MAX} files"));
        }
        check_path(&path)?;
        match self.contents.insert(path, bytes) {
            None => Ok(()),
            Some(_) => Err("is there twice".into()),
        }
    }

    fn of_directory(root: &Path) -> Result<Files, BundleError> {
        let cannot = |path: &Path, error: io::Error| BundleError::unread(path, &error);
        let real_root = fs::canonicalize(root).map_err(|error| cannot(root, error))?;
        let mut files = Files::default();
        let mut bytes_total = 0_u64;
        let mut todo: Vec<(PathBuf, String, usize)> = vec![(root.to_owned(), String::new(), 0)];
        while let Some((dir, prefix, depth)) = todo.pop() {
            if depth > DEPTH_MAX {
                return Err(BundleError::new(dir.display(), "is too deep"));
            }
            for entry in fs::read_dir(&dir).map_err(|error| cannot(&dir, error))? {
                let entry = entry.map_err(|error| cannot(&dir, error))?;
                let path = entry.path();
                let name = entry.file_name();
                let Some(name) = name.to_str() else {
                    return Err(BundleError::new(
                        path.display(),
                        "has a name that is no text",
                    ));
                };
                let relative = format!("{prefix}{name}");
                let kind = entry.file_type().map_err(|error| cannot(&path, error))?;
                if kind.is_dir() {
                    // `.git`, and the directories behind a Kubernetes volume's links.
                    if !name.starts_with('.') {
                        todo.push((path, format!("{relative}/"), depth + 1));
                    }
                    continue;
                }
                // Nobody would miss what is left out: rules that deny, and their tests with them.
                if kind.is_symlink()
                    && !name.starts_with('.')
                    && fs::metadata(&path).is_ok_and(|found| found.is_dir())
                {
                    let message = "is a link to a directory, which is not followed: put the directory itself there";
                    return Err(BundleError::new(path.display(), message));
                }
                if !is_wanted(&relative) {
                    if files.left_out.len() < BUNDLE_FILES_MAX {
                        files.left_out.push(relative);
                    }
                    continue;
                }
                let real = fs::canonicalize(&path).map_err(|error| cannot(&path, error))?;
                if !real.starts_with(&real_root) {
                    let message = "is a link out of the bundle, which is not followed";
                    return Err(BundleError::new(path.display(), message));
                }
                let file = fs::File::open(&real).map_err(|error| cannot(&path, error))?;
                if !file.metadata().is_ok_and(|meta| meta.is_file()) {
                    return Err(BundleError::new(path.display(), "is no regular file"));
                }
                let room = BUNDLE_BYTES_MAX - bytes_total;
                let mut bytes = Vec::new();
                file.take(room + 1)
                    .read_to_end(&mut bytes)
                    .map_err(|error| cannot(&path, error))?;
                bytes_total += bytes.len() as u64;
                if bytes_total > BUNDLE_BYTES_MAX {
                    let message = format!("a bundle has at most {BUNDLE_BYTES_MAX} bytes");
                    return Err(BundleError::new(path.display(), message));
                }
                files
                    .add(relative, bytes)
                    .map_err(|why| BundleError::new(path.display(), why))?;
            }
        }
        files.left_out.sort_unstable();
        Ok(files)
    }
}

/// Whether a file that is not read may have been meant to be. Documents and a tool's own settings are not; a directory like `.git` is
/// not looked into.
fn looks_meant(path: &str) -> bool {
    let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
    let is_hidden = |part: &str| part.len() > 2 && part.starts_with('.');
    let name = name.to_lowercase();
    let is_of_bundle = || name.contains(".rego") || name.ends_with(".json") || name == MANIFEST;
    let is_document = ["readme", "license"].iter().any(|it| name.starts_with(it));
    !above.split('/').any(is_hidden)
        && !is_document
        && !name.ends_with(".md")
        && (!name.starts_with('.') || is_of_bundle())
}

/// Whether a file of a directory is part of the bundle. Of an archive every file is.
pub(super) fn is_wanted(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    path == MANIFEST
        || path == SIGNATURES
        || ["data.json", "data.yaml", "data.yml"].contains(&name)
        || path.ends_with(".rego") && !name.starts_with('.')
        || path.starts_with(DECISIONS) && path.ends_with(".json")
}

fn check_path(path: &str) -> Result<(), String> {
    let plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    let good = path.len() <= PATH_BYTES_MAX
        && path.split('/').all(plain)
        && path.split('/').count() <= DEPTH_MAX
        && !path.chars().any(|c| c.is_control() || c == '\\');
    match good {
        true => Ok(()),
        false => Err("has a path that a bundle cannot have".into()),
    }
}

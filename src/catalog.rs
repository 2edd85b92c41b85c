//! Which skills there are: the operator's shelf and the store behind one view.
//!
//! The shelf holds the directories of `[skills].paths` and the built-in guide, the same for every tenant; the store
//! holds what tenants publish, each its own. A name on the shelf belongs to the operator: nobody can publish another
//! version of it, and what a store has under it is not seen.

mod builtin;
mod cursor;
mod merge;

use std::collections::{HashMap, HashSet};
use std::io::Read as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine as _;
use serde::Serialize;
use serde_json::Value;
use skillgate_plugin_host::StorageInstance;
use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::model::{self, Content, PutSkill, SkillKey, Source};
use skillgate_skill::{
    Bundle, Code, Manifest, Namespace, PathError, Problem, Runtime, SKILL_MD, SkillMd, SkillName,
    SkillPath, SkillRef, Version,
};

use crate::auth::Caller;
use merge::Merge;

/// Parsed skills that are kept; at the next one the cache starts anew.
const CACHE_SKILLS_MAX: usize = 4096;
/// Problems that one refused `create_skill` names.
const PROBLEMS_TOLD_MAX: usize = 8;

/// What can go wrong with a skill.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Missing, hidden or another tenant's: the same words for all.
    #[error("there is no skill {name:?}; list_skills shows what there is")]
    SkillNotFound {
        /// As asked for, cut.
        name: String,
    },
    /// The skill is there, this version is not.
    #[error("skill {name} has no version {version:?}; its latest is {latest}")]
    VersionNotFound {
        /// Which.
        name: String,
        /// As asked for, cut.
        version: String,
        /// What there is.
        latest: String,
    },
    /// No such file in the skill.
    #[error("skill {name} {version} has no file {path:?}; it has {files}")]
    FileNotFound {
        /// Which.
        name: String,
        /// In which version.
        version: String,
        /// As asked for.
        path: String,
        /// A list of what there is.
        files: String,
    },
    /// A path that points out of the skill.
    #[error("path {path:?}: {why}; a path stays inside the skill's directory")]
    PathEscape {
        /// As asked for, cut.
        path: String,
        /// How.
        why: String,
    },
    /// Not a cursor of this listing.
    #[error("cursor is not one of this listing; begin again without a cursor")]
    CursorInvalid,
    /// Not Python.
    #[error("language {language:?} is not supported; \"python\" is")]
    LanguageUnsupported {
        /// As asked for.
        language: String,
    },
    /// A parameter that does not fit.
    #[error("{message}")]
    Invalid {
        /// JSON pointer into `params`.
        pointer: String,
        /// What was wrong.
        message: String,
    },
    /// The version is taken by other content, or the name by the operator.
    #[error("{message}")]
    AlreadyExists {
        /// What is taken, and what to do.
        message: String,
    },
    /// Over a limit.
    #[error("{message}")]
    TooLarge {
        /// Which.
        message: String,
    },
    /// A stored skill that cannot be read.
    #[error("stored skill {name} {version} is broken: {why}")]
    Broken {
        /// Which.
        name: String,
        /// In which version.
        version: String,
        /// How.
        why: String,
    },
    /// The store failed.
    #[error("skill store failed")]
    Store(#[source] model::Error),
}

/// A skill version, parsed.
#[derive(Debug)]
pub struct Skill {
    record: model::Skill,
    manifest: Manifest,
    manifest_json: Value,
    frontmatter: Value,
}

impl Skill {
    /// `salesforce.leads.sync`
    pub fn name(&self) -> &str {
        &self.record.name
    }
    /// SemVer.
    pub fn version(&self) -> &str {
        &self.record.version
    }
    /// sha256 over its files, 64 hex digits.
    pub fn digest(&self) -> &str {
        &self.record.tree_sha256
    }
    /// As Python imports it below `skills.`; `-` reads as `_` (REQUIREMENTS R1).
    pub fn import_name(&self) -> String {
        self.manifest.name().import_name()
    }
    /// How to run it; none for an instruction skill.
    pub fn runtime(&self) -> Option<&Runtime> {
        self.manifest.runtime()
    }
    /// The manifest, typed.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }
    /// skill.toml as JSON.
    pub fn manifest_json(&self) -> &Value {
        &self.manifest_json
    }
    /// SKILL.md's front matter.
    pub fn frontmatter(&self) -> &Value {
        &self.frontmatter
    }
    /// From the operator's shelf; else published by [`Skill::publisher`].
    pub fn on_shelf(&self) -> bool {
        self.record.read_only
    }
    /// The subject that published it, or empty.
    pub fn publisher(&self) -> &str {
        &self.record.publisher
    }
}

/// What to list.
#[derive(Debug, Clone)]
pub struct Listing {
    /// That namespace and all below it.
    pub namespace: Option<String>,
    /// Entries on the page.
    pub limit: u32,
    /// Of the page before.
    pub cursor: Option<String>,
    /// With each skill's tags.
    pub with_tags: bool,
}

/// A page of a listing.
#[derive(Debug, Serialize)]
pub struct Page {
    skills: Vec<Entry>,
    next_cursor: Option<String>,
}

#[derive(Debug, Serialize)]
struct Entry {
    name: String,
    version: String,
    description: String,
    namespace: String,
    kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    tags: Option<Vec<String>>,
}

/// A skill to publish, as it came.
#[derive(Debug)]
pub struct NewSkill {
    /// skill.toml as JSON text.
    pub manifest: String,
    /// SKILL.md.
    pub skill_md: String,
    /// Path and content of the others.
    pub files: Vec<(String, Vec<u8>)>,
}

/// A skill that has been checked and is not yet published.
#[derive(Debug)]
pub struct Draft {
    skill: Arc<Skill>,
    put: PutSkill,
}

impl Draft {
    /// As it would be.
    pub fn skill(&self) -> Arc<Skill> {
        self.skill.clone()
    }
    /// Files, skill.toml and SKILL.md included.
    pub fn file_count(&self) -> usize {
        self.put.files.len()
    }
    /// Bytes of all files.
    pub fn bytes(&self) -> usize {
        self.put
            .files
            .iter()
            .map(|(_, content)| content.len())
            .sum()
    }
}

/// The skills of all tenants. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Catalog(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    shelf: Arc<StorageInstance>,
    store: Arc<StorageInstance>,
    shelf_names: HashSet<String>,
    cache: Mutex<HashMap<CacheKey, Arc<Skill>>>,
    files_max: usize,
    bytes_max: u64,
}

/// Tenant (empty for the shelf), name, version.
type CacheKey = (String, String, String);

impl Catalog {
    /// Puts the two together; reads the names on the shelf once.
    ///
    /// # Errors
    /// The shelf's.
    pub async fn open(
        shelf: Arc<StorageInstance>,
        store: Arc<StorageInstance>,
        files_max: usize,
        bytes_max: u64,
    ) -> Result<Self, model::Error> {
        let mut shelf_names = HashSet::new();
        let mut merge = Merge::new(vec![shelf.clone()], "", "", SkillKey::default());
        while let Some((_, skill)) = merge.next().await? {
            shelf_names.insert(skill.name);
        }
        tracing::info!(skills = shelf_names.len(), "the operator's shelf is read");
        Ok(Catalog(Arc::new(Inner {
            shelf,
            store,
            shelf_names,
            cache: Mutex::default(),
            files_max,
            bytes_max,
        })))
    }

    /// One page, in the order of (namespace, name, version descending).
    ///
    /// # Errors
    /// [`Error::CursorInvalid`], [`Error::Invalid`] for a namespace that is none, [`Error::Store`].
    pub async fn list(&self, tenant: &str, listing: &Listing) -> Result<Page, Error> {
        let namespace = listing.namespace.as_deref().unwrap_or("");
        if !namespace.is_empty() {
            Namespace::parse(namespace).map_err(|error| Error::Invalid {
                pointer: "/namespace".into(),
                message: format!("namespace {error}"),
            })?;
        }
        let after = match &listing.cursor {
            None => SkillKey::default(),
            Some(cursor) => {
                cursor::decode(cursor, tenant, namespace).ok_or(Error::CursorInvalid)?
            }
        };
        let mut merge = Merge::new(
            vec![self.0.shelf.clone(), self.0.store.clone()],
            tenant,
            namespace,
            after,
        );
        let mut skills: Vec<model::Skill> = Vec::new();
        let mut more = false;
        while let Some((source, skill)) = merge.next().await.map_err(Error::Store)? {
            if source > 0 && self.0.shelf_names.contains(&skill.name) {
                continue;
            }
            if skills.len() == listing.limit as usize {
                more = true;
                break;
            }
            skills.push(skill);
        }
        let next_cursor = skills.last().filter(|_| more).map(|last| {
            let key = SkillKey {
                namespace: last.namespace.clone(),
                name: last.name.clone(),
                version: last.version.clone(),
            };
            cursor::encode(&key, tenant, namespace)
        });
        let mut entries = Vec::with_capacity(skills.len());
        for skill in skills {
            let tags = match listing.with_tags {
                true => Some(
                    self.get(tenant, &skill.name, Some(&skill.version))
                        .await?
                        .manifest
                        .tags()
                        .to_vec(),
                ),
                false => None,
            };
            let model::Skill {
                name,
                version,
                description,
                namespace,
                kind,
                ..
            } = skill;
            entries.push(Entry {
                name,
                version,
                description,
                namespace,
                kind,
                tags,
            });
        }
        Ok(Page {
            skills: entries,
            next_cursor,
        })
    }

    /// A skill in a version, or in its latest (REQUIREMENTS R4).
    ///
    /// # Errors
    /// [`Error::SkillNotFound`], [`Error::VersionNotFound`], [`Error::Store`].
    pub async fn get(
        &self,
        tenant: &str,
        name: &str,
        version: Option<&str>,
    ) -> Result<Arc<Skill>, Error> {
        let missing = || Error::SkillNotFound {
            name: crate::json::short(name),
        };
        // What is no name is the name of nothing.
        SkillName::parse(name).map_err(|_| missing())?;
        if let Some(version) = version {
            Version::parse(version).map_err(|error| Error::Invalid {
                pointer: "/version".into(),
                message: format!("version {error}"),
            })?;
        }
        let (source, owner) = self.source(tenant, name);
        let cached = |version: &str| {
            let key = (owner.to_owned(), name.to_owned(), version.to_owned());
            self.0
                .cache
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .get(&key)
                .cloned()
        };
        // A version never changes, so one that was read is known for good.
        if let Some(skill) = version.and_then(cached) {
            return Ok(skill);
        }
        let record = match source.skill_get(tenant, name, version.unwrap_or("")).await {
            Ok(record) => record,
            Err(error) if error.code != abi::E_NOT_FOUND => return Err(Error::Store(error)),
            Err(_) => {
                let Some(version) = version else {
                    return Err(missing());
                };
                return Err(match source.skill_get(tenant, name, "").await {
                    Ok(latest) => Error::VersionNotFound {
                        name: name.to_owned(),
                        version: crate::json::short(version),
                        latest: latest.version,
                    },
                    Err(error) if error.code == abi::E_NOT_FOUND => missing(),
                    Err(error) => Error::Store(error),
                });
            }
        };
        if record.name != name || version.is_some_and(|version| version != record.version) {
            return Err(broken(&record, "the store answered with another skill"));
        }
        if let Some(skill) = cached(&record.version) {
            return Ok(skill);
        }
        let skill_md = self.fetch(source, tenant, &record, SKILL_MD).await?;
        let skill = Arc::new(parse(record, &skill_md)?);
        let mut cache = self.0.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if cache.len() >= CACHE_SKILLS_MAX {
            cache.clear();
        }
        cache.insert(
            (
                owner.to_owned(),
                name.to_owned(),
                skill.version().to_owned(),
            ),
            skill.clone(),
        );
        Ok(skill)
    }

    /// Where a name lives, and whose it is in the cache.
    fn source<'a>(&'a self, tenant: &'a str, name: &str) -> (&'a Arc<StorageInstance>, &'a str) {
        if self.0.shelf_names.contains(name) {
            (&self.0.shelf, "")
        } else {
            (&self.0.store, tenant)
        }
    }

    /// The text of SKILL.md, front matter included.
    ///
    /// # Errors
    /// [`Error::Broken`], [`Error::Store`].
    pub async fn skill_md(&self, tenant: &str, skill: &Skill) -> Result<String, Error> {
        let (source, _) = self.source(tenant, skill.name());
        let bytes = self.fetch(source, tenant, &skill.record, SKILL_MD).await?;
        String::from_utf8(bytes).map_err(|_| broken(&skill.record, "SKILL.md is not UTF-8"))
    }

    /// One file of a skill.
    ///
    /// # Errors
    /// [`Error::FileNotFound`], [`Error::TooLarge`] beyond `bytes_max`, [`Error::Store`].
    pub async fn read(
        &self,
        tenant: &str,
        skill: &Skill,
        path: &SkillPath,
        bytes_max: u64,
    ) -> Result<Vec<u8>, Error> {
        let Some(file) = skill
            .record
            .files
            .iter()
            .find(|file| file.path == path.as_str())
        else {
            let names: Vec<&str> = skill
                .record
                .files
                .iter()
                .take(20)
                .map(|file| file.path.as_str())
                .collect();
            let rest = skill.record.files.len() - names.len();
            let files = if rest == 0 {
                names.join(", ")
            } else {
                format!("{} and {rest} more", names.join(", "))
            };
            return Err(Error::FileNotFound {
                name: skill.name().into(),
                version: skill.version().into(),
                path: path.to_string(),
                files,
            });
        };
        if file.size_bytes > bytes_max {
            let message = format!(
                "{path} has {} bytes and an answer holds at most {bytes_max} (server.max_body_bytes)",
                file.size_bytes
            );
            return Err(Error::TooLarge { message });
        }
        let (source, _) = self.source(tenant, skill.name());
        self.fetch(source, tenant, &skill.record, path.as_str())
            .await
    }

    async fn fetch(
        &self,
        source: &Arc<StorageInstance>,
        tenant: &str,
        record: &model::Skill,
        path: &str,
    ) -> Result<Vec<u8>, Error> {
        match source
            .skill_read(tenant, &record.name, &record.version, path)
            .await
            .map_err(Error::Store)?
        {
            Content::Data(bytes) => Ok(bytes),
            Content::File(fd, size) => {
                let read = move || {
                    let mut bytes = Vec::new();
                    std::fs::File::from(fd)
                        .take(size)
                        .read_to_end(&mut bytes)
                        .map(|_| bytes)
                };
                let outcome = tokio::task::spawn_blocking(read).await;
                outcome
                    .map_err(|_| broken(record, "a reader ended early"))?
                    .map_err(|error| broken(record, &format!("{path} cannot be read: {error}")))
            }
            Content::Dir(_) | Content::Tar(..) => {
                Err(broken(record, "the store answered a file with a directory"))
            }
        }
    }

    /// The skill's directory, as a sandbox mounts it.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn tree(&self, tenant: &str, skill: &Skill) -> Result<Source, Error> {
        let (source, _) = self.source(tenant, skill.name());
        match source
            .skill_tree(tenant, skill.name(), skill.version())
            .await
            .map_err(Error::Store)?
        {
            Content::Dir(fd) => Ok(Source::Fd(fd)),
            Content::Tar(fd, _) => Ok(Source::Tar(fd)),
            Content::Data(_) | Content::File(..) => Err(broken(
                &skill.record,
                "the store answered a directory with a file",
            )),
        }
    }

    /// Checks a new skill whole, before anybody decides about it.
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::PathEscape`], [`Error::LanguageUnsupported`], [`Error::TooLarge`],
    /// [`Error::AlreadyExists`] for a name of the operator's.
    pub async fn draft(&self, caller: &Caller, new: NewSkill) -> Result<Draft, Error> {
        let (files_max, bytes_max) = (self.0.files_max, self.0.bytes_max);
        // Hashing and parsing up to a body's worth of files is work for a thread that may take its time.
        let assembled =
            tokio::task::spawn_blocking(move || assemble(new, files_max, bytes_max)).await;
        let unchecked = |_| Error::Invalid {
            pointer: String::new(),
            message: "the skill could not be checked".into(),
        };
        let bundle = assembled.map_err(unchecked)??;
        let skillgate_skill::Skill {
            manifest,
            frontmatter,
            files,
            tree_sha256,
            ..
        } = bundle.skill;
        if self.0.shelf_names.contains(manifest.name().as_str()) {
            let message = format!(
                "{} is one of the operator's own skills: publish under another name",
                manifest.name()
            );
            return Err(Error::AlreadyExists { message });
        }
        let manifest_json = manifest.to_json();
        let put = PutSkill {
            tenant: caller.tenant().to_owned(),
            name: manifest.name().to_string(),
            version: manifest.version().to_string(),
            namespace: manifest.namespace().to_string(),
            kind: manifest.kind().as_str().to_owned(),
            description: manifest.description().to_owned(),
            publisher: caller.subject().id.clone(),
            tree_sha256,
            manifest_json: manifest_json.to_string().into_bytes(),
            files: bundle
                .files
                .into_iter()
                .map(|(path, content)| (path.to_string(), content))
                .collect(),
        };
        let described = |file: skillgate_skill::SkillFile| model::SkillFile {
            path: file.path.to_string(),
            sha256: file.sha256,
            size_bytes: file.size_bytes,
        };
        let record = model::Skill {
            read_only: false,
            name: put.name.clone(),
            version: put.version.clone(),
            namespace: put.namespace.clone(),
            kind: put.kind.clone(),
            description: put.description.clone(),
            tree_sha256: put.tree_sha256.clone(),
            publisher: put.publisher.clone(),
            manifest_json: Vec::new(),
            files: files.into_iter().map(described).collect(),
        };
        Ok(Draft {
            skill: Arc::new(Skill {
                record,
                manifest,
                manifest_json,
                frontmatter: Value::Object(frontmatter),
            }),
            put,
        })
    }

    /// Publishes a draft: durable when this returns (REQUIREMENTS K7, R9).
    ///
    /// # Errors
    /// [`Error::AlreadyExists`] when the version is there with other content, [`Error::Store`].
    pub async fn publish(&self, draft: Draft) -> Result<model::Skill, Error> {
        let (name, version) = (draft.put.name.clone(), draft.put.version.clone());
        self.0.store.skill_put(draft.put).await.map_err(|error| match error.code {
            abi::E_ALREADY_EXISTS => Error::AlreadyExists {
                message: format!("{name} {version} is published with other content, and a version never changes: choose a higher version"),
            },
            _ => Error::Store(error),
        })
    }
}

fn broken(record: &model::Skill, why: &str) -> Error {
    Error::Broken {
        name: record.name.clone(),
        version: record.version.clone(),
        why: why.to_owned(),
    }
}

fn parse(record: model::Skill, skill_md: &[u8]) -> Result<Skill, Error> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec());
    let manifest_text =
        text(&record.manifest_json).map_err(|_| broken(&record, "its manifest is not UTF-8"))?;
    let manifest =
        Manifest::from_json(&manifest_text).map_err(|error| broken(&record, &error.to_string()))?;
    let skill_md = text(skill_md).map_err(|_| broken(&record, "SKILL.md is not UTF-8"))?;
    let skill_md =
        SkillMd::parse(&skill_md).map_err(|error| broken(&record, &error.to_string()))?;
    let manifest_json = manifest.to_json();
    Ok(Skill {
        record,
        manifest,
        manifest_json,
        frontmatter: Value::Object(skill_md.frontmatter),
    })
}

fn assemble(new: NewSkill, files_max: usize, bytes_max: u64) -> Result<Bundle, Error> {
    if new.files.len() + 2 > files_max {
        return Err(Error::TooLarge {
            message: format!("a skill has at most {files_max} files (skills.max_files)"),
        });
    }
    let manifest =
        Manifest::from_json(&new.manifest).map_err(|error| refused(error.problems(), bytes_max))?;
    let mut files = Vec::with_capacity(new.files.len());
    for (index, (file, content)) in new.files.into_iter().enumerate() {
        let path = SkillPath::parse(&file)
            .map_err(|error| misplaced(error, &file, &format!("/files/{index}/path")))?;
        files.push((path, content));
    }
    skillgate_skill::assemble(&manifest, &new.skill_md, files, bytes_max)
        .map_err(|problems| refused(&problems, bytes_max))
}

/// A path that is none: out of the skill, or outside the grammar.
fn misplaced(error: PathError, text: &str, pointer: &str) -> Error {
    let path = crate::json::short(text);
    match error.is_escape() {
        true => Error::PathEscape {
            path,
            why: error.to_string(),
        },
        false => Error::Invalid {
            pointer: pointer.to_owned(),
            message: format!("path {path:?}: {error}"),
        },
    }
}

/// The problems of a refused skill as one error: the first decides its kind, all are told.
fn refused(problems: &[Problem], bytes_max: u64) -> Error {
    let errors: Vec<&Problem> = problems
        .iter()
        .filter(|problem| problem.is_error())
        .collect();
    let mut message = errors
        .iter()
        .take(PROBLEMS_TOLD_MAX)
        .map(|problem| format!("{problem:#}").replace('\n', "; "))
        .collect::<Vec<_>>()
        .join("\n");
    if errors.len() > PROBLEMS_TOLD_MAX {
        message.push_str(&format!("\nand {} more", errors.len() - PROBLEMS_TOLD_MAX));
    }
    let Some(first) = errors.first() else {
        return Error::Invalid {
            pointer: String::new(),
            message: "the skill was refused".into(),
        };
    };
    match first.code {
        Code::PathEscape => Error::PathEscape {
            path: crate::json::short(&first.file),
            why: first.message.clone(),
        },
        Code::LanguageUnsupported => Error::LanguageUnsupported {
            language: first.message.clone(),
        },
        Code::TooLarge => Error::TooLarge {
            message: format!("{message} (skills.max_bytes = {bytes_max})"),
        },
        _ => Error::Invalid {
            pointer: pointer(first),
            message,
        },
    }
}

/// Where in `create_skill`'s parameters a problem is.
fn pointer(problem: &Problem) -> String {
    match problem.file.as_str() {
        "manifest" => format!("/manifest{}", problem.pointer),
        SKILL_MD => "/skill_md".into(),
        _ => "/files".into(),
    }
}

// === for methods and commands that need a grammar, not a skill ===

/// A path inside a skill.
///
/// # Errors
/// [`Error::PathEscape`] when it points out of the skill, else [`Error::Invalid`].
pub fn path(text: &str) -> Result<SkillPath, Error> {
    SkillPath::parse(text).map_err(|error| misplaced(error, text, "/path"))
}

/// `name` or `name@version` (REQUIREMENTS R10).
///
/// # Errors
/// What is wrong with it, as a sentence.
pub fn reference(text: &str) -> Result<(String, Option<String>), String> {
    let reference = SkillRef::parse(text).map_err(|error| error.to_string())?;
    Ok((
        reference.name.to_string(),
        reference.version.map(|version| version.to_string()),
    ))
}

/// Whether a text can name a Python function.
pub fn is_identifier(text: &str) -> bool {
    skillgate_skill::FunctionName::parse(text).is_ok()
}

/// Name and version of a skill.toml's text.
///
/// # Errors
/// What is wrong with it, as a sentence.
pub fn name_of(manifest: &str) -> Result<(String, String), String> {
    let manifest = Manifest::from_toml(manifest).map_err(|error| error.to_string())?;
    Ok((manifest.name().to_string(), manifest.version().to_string()))
}

/// Bytes for a parameter with `encoding: "base64"`.
pub fn base64(bytes: &[u8]) -> String {
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// Writes the built-in skill below a directory that becomes part of the shelf.
///
/// # Errors
/// What the file system says.
pub fn write_builtin(root: &Path) -> std::io::Result<()> {
    builtin::write(root)
}

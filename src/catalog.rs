//! Which skills there are: the operator's shelf and the store behind one view.
//!
//! The shelf holds the directories of `[skills].paths` and the built-in guide, the same for every tenant; the store
//! holds what tenants publish, each its own. A name on the shelf belongs to the operator: nobody can publish another
//! version of it, and what a store has under it is not seen.

mod builtin;
mod content;
mod cursor;
mod error;
mod files;
mod given;
mod kept;
mod listing;
mod manifest;
mod merge;
mod publish;
mod reads;
mod shelf;
mod trees;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Weak};

use serde_json::Value;
use skillgate_plugin_host::{Current, StorageInstance};
use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::model::{self, Content};
use skillgate_skill::{
    Manifest, Runtime, SKILL_MD, SkillMd, SkillName, SkillPath, SkillRef, Version,
};

pub use error::Error;
use kept::Kept;
pub use listing::{Listing, Page};
pub use publish::{Draft, NewSkill};
use reads::Reads;
use trees::{Trees, check_same};

/// What is longer is not looked at on an async thread.
const READ_BYTES_MAX: usize = 64 << 10;

/// The operator's own are decided about as such, and what is read of them is held against nothing. He names their directories to
/// the store that came with this program; no other one is believed.
const NOT_THE_OPERATORS: &str = "its store says that it is the operator's own (SKG_SKILL_READ_ONLY), and only the bundled \
     store is believed: name its directory in [skills].paths";

/// A skill version, parsed.
#[derive(Debug)]
pub struct Skill {
    record: model::Skill,
    manifest: Manifest,
    manifest_json: Value,
    frontmatter: Value,
    /// The store that said so.
    store: Weak<StorageInstance>,
    /// To ask it for the directory.
    turn: trees::Turn,
    /// Nothing is known but its name ([`Catalog::stand_in`]).
    is_unread: bool,
}

impl Skill {
    /// A skill of a manifest (skill.toml) that is in no store, with a digest of its own: to be decided about.
    ///
    /// # Errors
    /// What is wrong with the manifest.
    pub fn unstored(manifest: &str, on_shelf: bool) -> Result<Self, String> {
        let manifest = Manifest::from_toml(manifest).map_err(|error| error.to_string())?;
        let digest = skillgate_skill::file_digest(manifest.to_toml().as_bytes());
        Ok(Skill {
            record: model::Skill {
                read_only: on_shelf,
                name: manifest.name().to_string(),
                version: manifest.version().to_string(),
                namespace: manifest.namespace().to_string(),
                kind: manifest.kind().as_str().to_owned(),
                description: manifest.description().to_owned(),
                tree_sha256: digest,
                ..model::Skill::default()
            },
            manifest_json: manifest.to_json(),
            manifest,
            frontmatter: Value::Null,
            store: Weak::new(),
            turn: trees::Turn::default(),
            is_unread: false,
        })
    }

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
    /// All that it has, by path.
    pub fn files(&self) -> &[model::SkillFile] {
        &self.record.files
    }
    /// Of one of its files; 0 of one that it does not have.
    pub fn file_bytes(&self, path: &str) -> u64 {
        self.file(path).map_or(0, |file| file.size_bytes)
    }
    /// Its store has it as long as its process lives: who has read it asks again each time whether it is there.
    fn may_be_lost(&self) -> bool {
        let store = self.store.upgrade();
        store.is_some_and(|store| store.caps() & abi::ST_VOLATILE != 0)
    }
    fn file(&self, path: &str) -> Option<&model::SkillFile> {
        self.record.files.iter().find(|file| file.path == path)
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
    /// It could not be read, and this is what stands in its place: its version, kind and digest are nobody's, and it is not run.
    pub fn is_unread(&self) -> bool {
        self.is_unread
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

/// The skills of all tenants. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Catalog(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    shelf: Arc<StorageInstance>,
    store: Current<StorageInstance>,
    /// Name → latest version.
    shelf_latest: HashMap<String, String>,
    kept: Kept,
    trees: Trees,
    reads_of_shelf: Reads,
    reads_of_store: Reads,
    files_max: usize,
    bytes_max: u64,
}

impl Catalog {
    /// Puts the two together; reads once what is on the shelf: the operator changes it with a restart.
    ///
    /// # Errors
    /// The shelf's.
    pub async fn open(
        shelf: Arc<StorageInstance>,
        store: Current<StorageInstance>,
        files_max: usize,
        bytes_max: u64,
    ) -> Result<Self, model::Error> {
        let shelf_latest = shelf::read(&shelf).await?;
        Ok(Catalog(Arc::new(Inner {
            shelf,
            store,
            shelf_latest,
            kept: Kept::default(),
            trees: Trees::default(),
            reads_of_shelf: Reads::default(),
            reads_of_store: Reads::default(),
            files_max,
            bytes_max,
        })))
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
        self.get_from(None, tenant, name, version).await
    }

    /// The same; who has a store at hand reads in that one. To wait for the one in force would be to wait for whoever exchanges
    /// it, who waits until nobody has the old one at hand any more.
    async fn get_from(
        &self,
        at_hand: Option<&Arc<StorageInstance>>,
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
                message: format!("version {error}, or leave it out for the latest"),
            })?;
        }
        let version = version.or_else(|| self.0.shelf_latest.get(name).map(String::as_str));
        let kept = |version: &str| self.0.kept.get(&self.key(tenant, name, version));
        if let Some(skill) = version.and_then(kept)
            && !skill.may_be_lost()
        {
            return Ok(skill);
        }
        let source = match at_hand {
            Some(store) => store.clone(),
            None => self.source(name).await?,
        };
        if !source.keeps_skills() {
            return Err(missing());
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
        // A store that had lost it may have another one by now, under the same name and version.
        if let Some(skill) = kept(&record.version)
            && skill.digest() == record.tree_sha256
        {
            return Ok(skill);
        }
        if record.read_only && !source.is_ours() {
            return Err(broken(&record, NOT_THE_OPERATORS));
        }
        files::of_its_digest(&record).map_err(|why| broken(&record, &why))?;
        let skill_md = self.fetch(&source, tenant, &record, SKILL_MD).await?;
        let skill = Arc::new(parse(record, &skill_md, &source)?);
        self.check_manifest(&source, tenant, &skill).await?;
        let key = self.key(tenant, name, skill.version());
        self.0.kept.put(key, &skill);
        Ok(skill)
    }

    /// What can be decided about in the place of a skill that cannot be read: its name, and nothing that it asks for. None for
    /// what cannot be the name of a skill.
    pub fn stand_in(&self, name: &str) -> Option<Arc<Skill>> {
        // A manifest has to have them; whoever decides or records is told that they are none (`is_unread`).
        let manifest = format!(
            "name = {name:?}\nversion = \"0.0.0\"\ndescription = \"cannot be read\"\nkind = \"instruction\"\n"
        );
        let on_shelf = self.0.shelf_latest.contains_key(name);
        let skill = Skill::unstored(&manifest, on_shelf).ok()?;
        Some(Arc::new(Skill {
            is_unread: true,
            ..skill
        }))
    }

    fn key(&self, tenant: &str, name: &str, version: &str) -> kept::Key {
        let owner = self.owner(tenant, name).to_owned();
        (owner, name.to_owned(), version.to_owned())
    }

    /// Whose a name is in the cache.
    fn owner<'a>(&self, tenant: &'a str, name: &str) -> &'a str {
        match self.0.shelf_latest.contains_key(name) {
            true => "",
            false => tenant,
        }
    }

    /// Where a name lives.
    async fn source(&self, name: &str) -> Result<Arc<StorageInstance>, Error> {
        if self.0.shelf_latest.contains_key(name) {
            return Ok(self.0.shelf.clone());
        }
        self.0.store.get().await.map_err(Error::Store)
    }

    fn reads_of(&self, source: &Arc<StorageInstance>) -> &Reads {
        match Arc::ptr_eq(source, &self.0.shelf) {
            true => &self.0.reads_of_shelf,
            false => &self.0.reads_of_store,
        }
    }

    /// Where a skill that was found lives by now.
    async fn source_of(&self, tenant: &str, skill: &Skill) -> Result<Arc<StorageInstance>, Error> {
        let source = self.source(skill.name()).await?;
        if !std::ptr::eq(skill.store.as_ptr(), Arc::as_ptr(&source)) {
            check_same(&source, tenant, skill).await?;
        }
        Ok(source)
    }

    /// Forgets what was read: there is another store.
    pub fn forget(&self) {
        self.0.kept.forget();
        self.0.trees.forget();
    }

    /// The text of SKILL.md, front matter included.
    ///
    /// # Errors
    /// [`Error::Broken`], [`Error::Replaced`], [`Error::Store`].
    pub async fn skill_md(&self, tenant: &str, skill: &Skill) -> Result<String, Error> {
        let source = self.source_of(tenant, skill).await?;
        let bytes = self.fetch(&source, tenant, &skill.record, SKILL_MD).await?;
        String::from_utf8(bytes).map_err(|_| broken(&skill.record, "SKILL.md is not UTF-8"))
    }

    /// One file of a skill.
    ///
    /// # Errors
    /// [`Error::FileNotFound`], [`Error::TooLarge`] beyond `bytes_max`, [`Error::Replaced`], [`Error::Store`].
    pub async fn read(
        &self,
        tenant: &str,
        skill: &Skill,
        path: &SkillPath,
        bytes_max: u64,
    ) -> Result<Vec<u8>, Error> {
        let Some(file) = skill.file(path.as_str()) else {
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
                "{path} has {} bytes and an answer holds at most {bytes_max} (server.max_body_bytes): read it in a run that mounts the \
                 skill (run_code with mount_skills)",
                file.size_bytes
            );
            return Err(Error::TooLarge { message });
        }
        let source = self.source_of(tenant, skill).await?;
        self.fetch(&source, tenant, &skill.record, path.as_str())
            .await
    }

    async fn fetch(
        &self,
        source: &Arc<StorageInstance>,
        tenant: &str,
        record: &model::Skill,
        path: &str,
    ) -> Result<Vec<u8>, Error> {
        let given = source
            .skill_read(tenant, &record.name, &record.version, path)
            .await
            .map_err(Error::Store)?;
        // An operator changes his own files as he likes.
        let is_operators = record.read_only && source.is_ours();
        let expected = record.files.iter().find(|file| file.path == path);
        let expected = expected.filter(|_| !is_operators).cloned();
        let takes_long = match &given {
            Content::Data(data) => data.len() > READ_BYTES_MAX,
            _ => true,
        };
        let read = move || content::read(given, expected.as_ref(), content::BYTES_MAX);
        let outcome = if takes_long {
            let outcome = self.reads_of(source).read(tenant, read).await;
            outcome.map_err(|_| broken(record, "a reader ended early"))?
        } else {
            read()
        };
        outcome.map_err(|why| broken(record, &format!("{path}: {why}")))
    }
}

fn broken(record: &model::Skill, why: &str) -> Error {
    Error::Broken {
        name: record.name.clone(),
        version: record.version.clone(),
        why: why.to_owned(),
    }
}

fn parse(
    record: model::Skill,
    skill_md: &[u8],
    store: &Arc<StorageInstance>,
) -> Result<Skill, Error> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec());
    let manifest_text =
        text(&record.manifest_json).map_err(|_| broken(&record, "its manifest is not UTF-8"))?;
    let manifest =
        Manifest::from_json(&manifest_text).map_err(|error| broken(&record, &error.to_string()))?;
    manifest::is_for(&manifest, &record).map_err(|why| broken(&record, &why))?;
    let skill_md = text(skill_md).map_err(|_| broken(&record, "SKILL.md is not UTF-8"))?;
    let skill_md =
        SkillMd::parse(&skill_md).map_err(|error| broken(&record, &error.to_string()))?;
    let manifest_json = manifest.to_json();
    Ok(Skill {
        record,
        manifest,
        manifest_json,
        frontmatter: Value::Object(skill_md.frontmatter),
        store: Arc::downgrade(store),
        turn: trees::Turn::default(),
        is_unread: false,
    })
}

// === for methods and commands that need a grammar, not a skill ===

/// A path inside a skill.
///
/// # Errors
/// [`Error::PathEscape`] when it points out of the skill, else [`Error::Invalid`].
pub fn path(text: &str) -> Result<SkillPath, Error> {
    SkillPath::parse(text).map_err(|error| publish::misplaced(error, "/path"))
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

/// Writes the built-in skill below a directory that becomes part of the shelf.
///
/// # Errors
/// What the file system says.
pub fn write_builtin(root: &Path) -> std::io::Result<()> {
    builtin::write(root)
}

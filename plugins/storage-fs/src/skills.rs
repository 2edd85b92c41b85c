//! Skills of both kinds, those that tenants have published and those on the operator's shelf, as one.

mod index;
mod quota;
mod shelf;
mod sound;
mod store;
mod turns;

use std::cmp::Ordering;
use std::path::PathBuf;
use std::sync::Arc;

use skillgate_plugin_sdk::Host;
use skillgate_plugin_sdk::model::{Content, PutSkill, Skill, SkillPage, SkillQuery};
use skillgate_skill::{SkillName, SkillPath, Version};

use crate::fault::{Fault, Result};
use crate::ground::Ground;
use crate::names::TenantDir;

use index::{Entry, Key};
use shelf::{Shelf, Shelved};
use sound::Sound;
use store::Stored;

/// A page has at most so many entries.
const MAX_PAGE: u32 = 1000;

/// A larger file is not stored as a part of a skill and not read as one.
pub(crate) const MAX_FILE_BYTES: u64 = 16 * 1024 * 1024;

/// A larger skill is not stored and not put on the shelf. The number of its files is limited by `skillgate_skill`.
pub(crate) const MAX_SKILL_BYTES: u64 = 64 * 1024 * 1024;

/// What an instance knows of skills.
#[derive(Debug)]
pub(crate) struct Skills {
    stored: Option<Stored>,
    shelf: Shelf,
}

/// A version that was found, and where.
enum Found {
    Stored(TenantDir, Arc<Entry<Sound>>),
    Shelved(Arc<Entry<Shelved>>),
}

impl Skills {
    /// `tenant_bytes`: what the published skills of one tenant may take, and 0 for any amount.
    pub(crate) fn open(
        ground: Option<Arc<Ground>>,
        shelf: &[PathBuf],
        tenant_bytes: u64,
        host: &Host,
    ) -> Result<Skills> {
        Ok(Skills {
            stored: ground
                .map(|ground| Stored::load(ground, tenant_bytes))
                .transpose()?,
            shelf: Shelf::scan(shelf, host)?,
        })
    }

    /// What could not be read at the start.
    pub(crate) fn unread(&self) -> usize {
        self.stored.as_ref().map_or(0, Stored::unread) + self.shelf.unread()
    }

    /// Directories of the shelf that have been removed since the start.
    pub(crate) fn gone(&self) -> usize {
        self.shelf.gone()
    }

    /// What of the writable store was found to be damaged when it was last asked for.
    pub(crate) fn damaged(&self) -> usize {
        self.stored.as_ref().map_or(0, Stored::damaged)
    }

    pub(crate) fn count(&self) -> usize {
        self.stored.as_ref().map_or(0, Stored::count) + self.shelf.index().len()
    }

    pub(crate) fn list(&self, query: &SkillQuery) -> Result<SkillPage> {
        let tenant = TenantDir::new(&query.tenant)?;
        if query.limit == 0 || query.limit > MAX_PAGE {
            return Err(Fault::Invalid(format!(
                "a page has 1 to {MAX_PAGE} skills, not {}",
                query.limit
            )));
        }
        let after = Key::parse(&query.after)?;
        // One more than wanted says whether there are more.
        let wanted = query.limit as usize + 1;
        let shelved = self
            .shelf
            .index()
            .list(&query.namespace, after.as_ref())
            .take(wanted);
        let mut skills = match &self.stored {
            None => shelved.map(|(_, skill)| skill.clone()).collect(),
            Some(stored) => stored.with(&tenant, |index| {
                let own =
                    index.map(|index| index.list(&query.namespace, after.as_ref()).take(wanted));
                merge(shelved, own.into_iter().flatten())
            }),
        };
        let more = skills.len() >= wanted;
        skills.truncate(query.limit as usize);
        Ok(SkillPage { more, skills })
    }

    pub(crate) fn get(&self, tenant: &str, name: &str, version: &str) -> Result<Skill> {
        match self.find(tenant, name, version)? {
            Found::Stored(tenant, entry) => self.stored()?.get(&tenant, &entry),
            Found::Shelved(entry) => Ok(entry.place.skill(&entry.skill)),
        }
    }

    pub(crate) fn read(
        &self,
        tenant: &str,
        name: &str,
        version: &str,
        path: &str,
    ) -> Result<Content> {
        let found = self.find(tenant, name, version)?;
        check_path(path)?;
        match found {
            Found::Stored(tenant, entry) => self.stored()?.read(&tenant, &entry, path),
            Found::Shelved(entry) => self.shelf.read(&entry.place, path),
        }
        .map(Content::Data)
    }

    pub(crate) fn tree(&self, tenant: &str, name: &str, version: &str) -> Result<Content> {
        match self.find(tenant, name, version)? {
            Found::Stored(tenant, entry) => self.stored()?.tree(&tenant, &entry),
            Found::Shelved(entry) => self.shelf.tree(&entry.place),
        }
        .map(Content::Dir)
    }

    pub(crate) fn put(&self, put: &PutSkill) -> Result<Skill> {
        let stored = self.stored()?;
        let version = check(&put.name, &put.version)?;
        if let Some(entry) = self.shelf.index().get(&put.name, &version) {
            if entry.skill.tree_sha256 == put.tree_sha256 {
                return Ok(entry.place.skill(&entry.skill));
            }
            return Err(Fault::AlreadyExists(format!(
                "{} {} is on the operator's shelf: choose another name or version",
                put.name, put.version
            )));
        }
        if self.shelf.is_incomplete(&put.name) {
            return Err(Fault::AlreadyExists(format!(
                "{} is on the operator's shelf, where something of it was left off at the start: choose another name",
                put.name
            )));
        }
        stored.put(put)
    }

    fn stored(&self) -> Result<&Stored> {
        self.stored.as_ref().ok_or(Fault::Unimplemented(
            "this store takes no skills: it has no `root`",
        ))
    }

    /// `version` empty: the latest of shelf and store together.
    fn find(&self, tenant: &str, name: &str, version: &str) -> Result<Found> {
        let tenant = TenantDir::new(tenant)?;
        let shelf = self.shelf.index();
        let found = if version.is_empty() {
            let own = self
                .stored
                .as_ref()
                .and_then(|s| s.with(&tenant, |index| index.and_then(|i| i.latest(name))));
            match (shelf.latest(name), own) {
                (Some((a, _)), Some((b, own))) if is_later(&b, &a) => {
                    Some(Found::Stored(tenant, own))
                }
                (Some((_, shelved)), _) => Some(Found::Shelved(shelved)),
                (None, own) => own.map(|(_, own)| Found::Stored(tenant, own)),
            }
        } else {
            // A text that is no version names nothing.
            Version::parse(version).ok().and_then(|version| {
                let shelved = shelf.get(name, &version).map(Found::Shelved);
                shelved.or_else(|| {
                    let stored = self.stored.as_ref()?;
                    let own =
                        stored.with(&tenant, |index| index.and_then(|i| i.get(name, &version)))?;
                    Some(Found::Stored(tenant, own))
                })
            })
        };
        // Not "not found": whoever asks whether a name is free has to hear that it is not.
        if found.is_none() && version.is_empty() && self.shelf.is_incomplete(name) {
            return Err(Fault::Corrupt(format!(
                "{name} was left off the shelf at the start: see the log"
            )));
        }
        found.ok_or_else(|| no_skill(name, version))
    }
}

/// Is `a` rather "latest" than `b`?
fn is_later(a: &Version, b: &Version) -> bool {
    match (a.is_prerelease(), b.is_prerelease()) {
        (false, true) => true,
        (true, false) => false,
        _ => a > b,
    }
}

/// Two sorted lists as one; of two entries with the same key the one on the shelf counts.
fn merge<'a, 'b>(
    shelved: impl Iterator<Item = (&'a Key, &'a Skill)>,
    own: impl Iterator<Item = (&'b Key, &'b Skill)>,
) -> Vec<Skill> {
    let (mut shelved, mut own) = (shelved.peekable(), own.peekable());
    let mut merged = Vec::new();
    loop {
        let order = match (shelved.peek(), own.peek()) {
            (None, None) => return merged,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some((a, _)), Some((b, _))) => a.cmp(b),
        };
        if order.is_eq() {
            own.next();
        }
        let next = if order.is_gt() {
            own.next()
        } else {
            shelved.next()
        };
        merged.extend(next.map(|(_, skill)| skill.clone()));
    }
}

fn no_skill(name: &str, version: &str) -> Fault {
    Fault::NotFound(match version {
        "" => format!("there is no skill {name:?}"),
        version => format!("there is no version {version:?} of a skill {name:?}"),
    })
}

/// Why `path` cannot be read when no file has that name.
fn no_file<'a>(path: &str, mut files: impl Iterator<Item = &'a str>) -> Fault {
    let below = format!("{path}/");
    if files.any(|file| file.starts_with(&below)) {
        Fault::Invalid(format!("{path:?} is a directory: name a file"))
    } else {
        Fault::NotFound(format!("the skill has no file {path:?}"))
    }
}

/// What becomes the names of directories is checked here again, although the host has done so.
fn check(name: &str, version: &str) -> Result<Version> {
    SkillName::parse(name).map_err(|why| Fault::Invalid(format!("the skill's name {why}")))?;
    Version::parse(version).map_err(|why| Fault::Invalid(format!("the skill's version {why}")))
}

fn check_path(path: &str) -> Result<SkillPath> {
    SkillPath::parse(path).map_err(|why| Fault::Invalid(why.to_string()))
}

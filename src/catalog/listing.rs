//! What there is, page by page. What an agent chooses by is what its author wrote: an entry of a vendor's store is held against the
//! skill's manifest, which is held against its skill.toml.

use std::error::Error as _;
use std::sync::Arc;

use serde::Serialize;
use skillgate_plugin_host::StorageInstance;
use skillgate_plugin_sdk::model::{self, SkillKey};
use skillgate_skill::Namespace;

use super::merge::Merge;
use super::{Catalog, Error, cursor, manifest};

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

impl Entry {
    fn new(of: model::Skill, tags: Option<Vec<String>>) -> Self {
        Entry {
            name: of.name,
            version: of.version,
            description: of.description,
            namespace: of.namespace,
            kind: of.kind,
            tags,
        }
    }
}

impl Catalog {
    /// One page of the skills whose name `shows` takes, in the order of (namespace, name, version descending).
    ///
    /// # Errors
    /// [`Error::CursorInvalid`], [`Error::Invalid`] for a namespace that is none, [`Error::Store`].
    pub async fn list(
        &self,
        tenant: &str,
        listing: &Listing,
        shows: &(dyn Fn(&str) -> bool + Sync),
    ) -> Result<Page, Error> {
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
        let store = self.0.store.get().await.map_err(Error::Store)?;
        // The shelf is there in any case, and the first.
        let stores = [self.0.shelf.clone(), store];
        let stores: Vec<_> = stores
            .into_iter()
            .filter(|store| store.keeps_skills())
            .collect();
        let mut merge = Merge::new(stores.clone(), tenant, namespace, after);
        let mut skills: Vec<Entry> = Vec::new();
        let mut more = false;
        while let Some((source, skill)) = merge.next().await.map_err(Error::Store)? {
            if source > 0 && self.0.shelf_latest.contains_key(&skill.name) || !shows(&skill.name) {
                continue;
            }
            if skills.len() == listing.limit as usize {
                more = true;
                break;
            }
            let entry = self.entry(&stores[source], tenant, skill, listing).await?;
            skills.extend(entry);
        }
        let next_cursor = skills.last().filter(|_| more).map(|last| {
            let key = SkillKey {
                namespace: last.namespace.clone(),
                name: last.name.clone(),
                version: last.version.clone(),
            };
            cursor::encode(&key, tenant, namespace)
        });
        Ok(Page {
            skills,
            next_cursor,
        })
    }

    /// None of what a vendor's store lists and is not so. One skill that cannot be read must not hide all others.
    async fn entry(
        &self,
        store: &Arc<StorageInstance>,
        tenant: &str,
        of: model::Skill,
        listing: &Listing,
    ) -> Result<Option<Entry>, Error> {
        let is_ours = store.is_ours();
        if is_ours && !listing.with_tags {
            return Ok(Some(Entry::new(of, None)));
        }
        let (name, version) = (of.name.as_str(), of.version.as_str());
        // What it lists it has: with the digest of what was read there is nothing to ask, of a store that may have lost that either.
        let kept = self.0.kept.get(&self.key(tenant, name, version));
        let read = match kept.filter(|skill| skill.digest() == of.tree_sha256) {
            Some(skill) => Ok(skill),
            None => {
                self.get_from(Some(store), tenant, name, Some(version))
                    .await
            }
        };
        let skill = match read {
            Ok(skill) => skill,
            Err(error) if error.is_of_one_skill(is_ours) => {
                let cause = error.source().map(ToString::to_string);
                tracing::error!(
                    skill = name, version, tenant, %error, cause,
                    "{}: it cannot be read",
                    if is_ours { "a skill is listed without its tags" } else { "a skill is not listed" }
                );
                return Ok(is_ours.then(|| Entry::new(of, None)));
            }
            Err(error) => return Err(error),
        };
        let namespace = listing.namespace.as_deref().unwrap_or("");
        if !is_ours && let Err(why) = manifest::is_listed(&skill.manifest, &of, namespace) {
            tracing::error!(skill = name, version, tenant, why, "a skill is not listed");
            return Ok(None);
        }
        let tags = listing.with_tags.then(|| skill.manifest.tags().to_vec());
        Ok(Some(Entry::new(of, tags)))
    }
}

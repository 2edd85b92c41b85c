//! Several sorted listings as one.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::sync::Arc;

use skillgate_plugin_host::StorageInstance;
use skillgate_plugin_sdk::model::{self, Skill, SkillKey, SkillQuery};
use skillgate_skill::Version;

/// Entries that are asked of a store in one call.
const FETCH: u32 = 100;

/// Gives the entries of all sources in order, reading each source page by page.
pub(super) struct Merge {
    tenant: String,
    namespace: String,
    sources: Vec<Source>,
}

struct Source {
    store: Arc<StorageInstance>,
    ahead: VecDeque<Skill>,
    after: SkillKey,
    more: bool,
}

impl Merge {
    pub(super) fn new(
        stores: Vec<Arc<StorageInstance>>,
        tenant: &str,
        namespace: &str,
        after: SkillKey,
    ) -> Self {
        let sources = stores
            .into_iter()
            .map(|store| Source {
                store,
                ahead: VecDeque::new(),
                after: after.clone(),
                more: true,
            })
            .collect();
        Merge {
            tenant: tenant.to_owned(),
            namespace: namespace.to_owned(),
            sources,
        }
    }

    /// The next entry and the number of its source.
    pub(super) async fn next(&mut self) -> Result<Option<(usize, Skill)>, model::Error> {
        for source in &mut self.sources {
            source.fill(&self.tenant, &self.namespace).await?;
        }
        let fronts = self
            .sources
            .iter()
            .enumerate()
            .filter_map(|(index, source)| source.ahead.front().map(|skill| (index, skill)));
        let first = fronts
            .min_by(|(_, a), (_, b)| order(a, b))
            .map(|(index, _)| index);
        Ok(first.and_then(|index| {
            self.sources[index]
                .ahead
                .pop_front()
                .map(|skill| (index, skill))
        }))
    }
}

impl Source {
    async fn fill(&mut self, tenant: &str, namespace: &str) -> Result<(), model::Error> {
        if !self.ahead.is_empty() || !self.more {
            return Ok(());
        }
        let query = SkillQuery {
            limit: FETCH,
            tenant: tenant.to_owned(),
            namespace: namespace.to_owned(),
            after: self.after.clone(),
        };
        let page = self.store.skill_list(query).await?;
        // A store that says "more" and gives nothing would never end.
        self.more = page.more && !page.skills.is_empty();
        if let Some(last) = page.skills.last() {
            self.after = SkillKey {
                namespace: last.namespace.clone(),
                name: last.name.clone(),
                version: last.version.clone(),
            };
        }
        self.ahead = page.skills.into();
        Ok(())
    }
}

/// Namespace, name, version descending (REQUIREMENTS D2).
fn order(a: &Skill, b: &Skill) -> Ordering {
    let version = |skill: &Skill| Version::parse(&skill.version).ok();
    a.namespace
        .cmp(&b.namespace)
        .then_with(|| a.name.cmp(&b.name))
        .then_with(|| version(b).cmp(&version(a)))
        .then_with(|| b.version.cmp(&a.version))
}

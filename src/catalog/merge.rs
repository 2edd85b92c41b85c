//! Several sorted listings as one.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::sync::Arc;

use skillgate_plugin_host::StorageInstance;
use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::model::{self, Skill, SkillKey, SkillQuery};
use skillgate_skill::Version;

use crate::json::short;

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
            .min_by(|(_, a), (_, b)| order(place(a), place(b)))
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
        if !self.store.is_ours() {
            check_order(&self.after, &page.skills)?;
        }
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

/// That each comes after the one before it: what is listed again and again has no end, and a caller would wait for it.
fn check_order(after: &SkillKey, skills: &[Skill]) -> Result<(), model::Error> {
    let mut before = [&*after.namespace, &*after.name, &*after.version];
    for skill in skills {
        let this = place(skill);
        if order(before, this) != Ordering::Less {
            let message = format!(
                "the store lists {} {} where it does not belong: skill_list gives what comes after the place that it is asked for, in the order of skg_skill_key",
                short(&skill.name),
                short(&skill.version)
            );
            return Err(model::Error::new(abi::E_INTERNAL, message));
        }
        before = this;
    }
    Ok(())
}

fn place(skill: &Skill) -> [&str; 3] {
    [&skill.namespace, &skill.name, &skill.version]
}

/// Namespace, name, version descending (REQUIREMENTS D2).
fn order(a: [&str; 3], b: [&str; 3]) -> Ordering {
    let version = |place: [&str; 3]| Version::parse(place[2]).ok();
    a[..2]
        .cmp(&b[..2])
        .then_with(|| version(b).cmp(&version(a)))
        .then_with(|| b[2].cmp(a[2]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_goes_on() {
        let skill = |[namespace, name, version]: [&str; 3]| Skill {
            namespace: namespace.into(),
            name: name.into(),
            version: version.into(),
            ..Skill::default()
        };
        let after = |[namespace, name, version]: [&str; 3]| SkillKey {
            namespace: namespace.into(),
            name: name.into(),
            version: version.into(),
        };
        let all = [
            ["", "b", "1.0.0"],
            ["a", "a.b", "1.0.0+b"],
            ["a", "a.b", "1.0.0+a"],
            ["a", "a.b", "1.0.0-rc.10"],
            ["a", "a.b", "1.0.0-rc.9"],
            ["a", "a.c", "0.1.0"],
            ["a.b", "a.a", "0.1.0"],
        ];
        let look = |at, all: &[[&str; 3]]| {
            let skills: Vec<Skill> = all.iter().copied().map(skill).collect();
            check_order(&after(at), &skills).map_err(|error| error.message)
        };
        assert_eq!(look([""; 3], &all), Ok(()));
        assert_eq!(look([""; 3], &[]), Ok(()));
        for at in 0..all.len() {
            assert_eq!(look(all[at], &all[at + 1..]), Ok(()));
            let why = look(all[at], &all[at..]).unwrap_err();
            let said = format!("the store lists {} {} where", all[at][1], all[at][2]);
            assert!(why.starts_with(&said), "{why}");
            if at > 0 {
                let mut swapped = all;
                swapped.swap(at, at - 1);
                assert!(look([""; 3], &swapped).is_err(), "{swapped:?}");
            }
        }
    }
}

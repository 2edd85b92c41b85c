//! Skill versions in memory, in the order of a listing, so that the thousandth page costs what the first does.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use skillgate_plugin_sdk::model::{Skill, SkillKey};
use skillgate_skill::Version;

use crate::fault::{Fault, Result};

/// A place in the order of a listing: namespace, name, version descending.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    namespace: String,
    name: String,
    version: Reverse<Rank>,
}

/// A version, or the place above all versions.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Version(Version),
    Top,
}

impl Key {
    fn before(namespace: &str) -> Key {
        Key {
            namespace: namespace.to_owned(),
            name: String::new(),
            version: Reverse(Rank::Top),
        }
    }

    /// `None`: before the first.
    pub(crate) fn parse(key: &SkillKey) -> Result<Option<Key>> {
        if key.namespace.is_empty() && key.name.is_empty() && key.version.is_empty() {
            return Ok(None);
        }
        let rank = match key.version.as_str() {
            "" => Rank::Top,
            text => Rank::Version(Version::parse(text).map_err(|why| {
                Fault::Invalid(format!("the place to list from has a version that {why}"))
            })?),
        };
        Ok(Some(Key {
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            version: Reverse(rank),
        }))
    }
}

/// A skill version and where it is.
#[derive(Debug)]
pub(crate) struct Entry<T> {
    /// Without manifest and files.
    pub(crate) skill: Skill,
    pub(crate) place: T,
}

/// All versions that one tenant sees, or that the shelf holds.
#[derive(Debug)]
pub(crate) struct Index<T> {
    in_order: BTreeMap<Key, Arc<Entry<T>>>,
    by_name: BTreeMap<String, BTreeMap<Version, Arc<Entry<T>>>>,
}

impl<T> Default for Index<T> {
    fn default() -> Self {
        Index {
            in_order: BTreeMap::new(),
            by_name: BTreeMap::new(),
        }
    }
}

impl<T> Index<T> {
    /// False: this name and version is in it already, and stays.
    pub(crate) fn insert(&mut self, version: Version, skill: Skill, place: T) -> bool {
        let versions = self.by_name.entry(skill.name.clone()).or_default();
        if versions.contains_key(&version) {
            return false;
        }
        let key = Key {
            namespace: skill.namespace.clone(),
            name: skill.name.clone(),
            version: Reverse(Rank::Version(version.clone())),
        };
        let entry = Arc::new(Entry { skill, place });
        versions.insert(version, Arc::clone(&entry));
        self.in_order.insert(key, entry);
        true
    }

    pub(crate) fn get(&self, name: &str, version: &Version) -> Option<Arc<Entry<T>>> {
        self.by_name.get(name)?.get(version).map(Arc::clone)
    }

    /// The highest version; a pre-release only when there is nothing else.
    pub(crate) fn latest(&self, name: &str) -> Option<(Version, Arc<Entry<T>>)> {
        let versions = self.by_name.get(name)?;
        let released = versions
            .iter()
            .rev()
            .find(|(version, _)| !version.is_prerelease());
        let (version, entry) = released.or_else(|| versions.last_key_value())?;
        Some((version.clone(), Arc::clone(entry)))
    }

    pub(crate) fn len(&self) -> usize {
        self.in_order.len()
    }

    /// What sorts strictly after `after`, in `namespace` or below it (empty: everywhere).
    pub(crate) fn list<'a>(
        &'a self,
        namespace: &'a str,
        after: Option<&Key>,
    ) -> impl Iterator<Item = (&'a Key, &'a Skill)> + use<'a, T> {
        // "a-b" sorts between "a" and "a.b", so what is in or below "a" are two stretches of the order.
        let below = format!("{namespace}.");
        let exact = self.stretch(Key::before(namespace), after);
        let exact =
            exact.take_while(move |(key, _)| namespace.is_empty() || key.namespace == namespace);
        let rest = (!namespace.is_empty()).then(|| self.stretch(Key::before(&below), after));
        let rest = rest
            .into_iter()
            .flatten()
            .take_while(move |(key, _)| key.namespace.starts_with(&below));
        exact.chain(rest).map(|(key, entry)| (key, &entry.skill))
    }

    fn stretch(
        &self,
        from: Key,
        after: Option<&Key>,
    ) -> std::collections::btree_map::Range<'_, Key, Arc<Entry<T>>> {
        let lower = match after {
            Some(after) if *after >= from => Bound::Excluded(after),
            _ => Bound::Included(&from),
        };
        self.in_order.range((lower, Bound::Unbounded))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(entries: &[(&str, &str, &str)]) -> Index<()> {
        let mut index = Index::default();
        for (namespace, name, version) in entries {
            let skill = Skill {
                namespace: (*namespace).to_owned(),
                name: (*name).to_owned(),
                version: (*version).to_owned(),
                ..Skill::default()
            };
            index.insert(Version::parse(version).unwrap(), skill, ());
        }
        index
    }

    fn listed(index: &Index<()>, namespace: &str, after: (&str, &str, &str)) -> Vec<String> {
        let key = SkillKey {
            namespace: after.0.into(),
            name: after.1.into(),
            version: after.2.into(),
        };
        let key = Key::parse(&key).unwrap();
        index
            .list(namespace, key.as_ref())
            .map(|(_, s)| format!("{}@{}", s.name, s.version))
            .collect()
    }

    #[test]
    fn versions_go_down_by_precedence() {
        let versions = [
            "1.0.0",
            "1.0.0-alpha",
            "1.0.0-alpha.1",
            "1.0.0-alpha.beta",
            "1.0.0-beta",
            "1.0.0-beta.2",
            "1.0.0-beta.11",
            "1.0.0-rc.1",
            "2.0.0",
            "10.0.0",
            "1.0.0+b",
            "1.0.0+a",
            "1.0.0+10",
            "1.0.0+9",
        ];
        let entries: Vec<_> = versions.iter().map(|v| ("a", "a.b", *v)).collect();
        let got = listed(&index(&entries), "", ("", "", ""));
        let expected = [
            "10.0.0",
            "2.0.0",
            "1.0.0+b",
            "1.0.0+a",
            "1.0.0+9",
            "1.0.0+10",
            "1.0.0",
            "1.0.0-rc.1",
            "1.0.0-beta.11",
            "1.0.0-beta.2",
            "1.0.0-beta",
            "1.0.0-alpha.beta",
            "1.0.0-alpha.1",
            "1.0.0-alpha",
        ];
        assert_eq!(got, expected.map(|v| format!("a.b@{v}")));
    }

    #[test]
    fn a_namespace_means_itself_and_what_is_below() {
        let index = index(&[
            ("skills", "skills.x", "1.0.0"),
            ("skills-old", "skills-old.x", "1.0.0"),
            ("skills.protocol", "skills.protocol.guide", "1.0.0"),
            ("skills.protocol", "skills.protocol.guide", "1.1.0"),
            ("skillset", "skillset.x", "1.0.0"),
            ("zzz", "zzz.x", "1.0.0"),
        ]);
        let all = [
            "skills.x@1.0.0",
            "skills.protocol.guide@1.1.0",
            "skills.protocol.guide@1.0.0",
        ];
        assert_eq!(listed(&index, "skills", ("", "", "")), all);
        assert_eq!(
            listed(&index, "skills", ("skills", "skills.x", "1.0.0")),
            all[1..]
        );
        assert_eq!(
            listed(&index, "skills", ("skills-old", "skills-old.x", "1.0.0")),
            all[1..]
        );
        assert_eq!(
            listed(
                &index,
                "skills",
                ("skills.protocol", "skills.protocol.guide", "1.1.0")
            ),
            all[2..]
        );
        assert_eq!(
            listed(
                &index,
                "skills",
                ("skills.protocol", "skills.protocol.guide", "1.0.0")
            ),
            [""; 0]
        );
        assert_eq!(listed(&index, "skills.protocol", ("a", "", "")), all[1..]);
        assert_eq!(listed(&index, "skill", ("", "", "")), [""; 0]);
        assert_eq!(listed(&index, "", ("", "", "")).len(), 6);
        assert_eq!(listed(&index, "", ("skillset", "", "")).len(), 2);
        // A place whose entry is not there (any more) works as well.
        assert_eq!(
            listed(&index, "", ("skillset", "skillset.x", "0.5.0")),
            ["zzz.x@1.0.0"]
        );
    }

    #[test]
    fn latest_is_the_highest_release() {
        let index = index(&[
            ("a", "a.b", "1.9.0"),
            ("a", "a.b", "1.10.0"),
            ("a", "a.b", "2.0.0-rc.1"),
            ("a", "a.pre", "1.0.0-alpha"),
            ("a", "a.pre", "1.0.0-beta"),
        ]);
        let latest = |name: &str| {
            index
                .latest(name)
                .map(|(_, entry)| entry.skill.version.clone())
        };
        assert_eq!(latest("a.b").as_deref(), Some("1.10.0"));
        assert_eq!(latest("a.pre").as_deref(), Some("1.0.0-beta"));
        assert_eq!(latest("a"), None);
    }
}

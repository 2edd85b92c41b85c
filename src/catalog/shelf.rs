//! The operator's shelf, as it is read at the start.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use skillgate_plugin_host::StorageInstance;
use skillgate_plugin_sdk::model::{self, SkillKey};
use skillgate_skill::Manifest;

use super::merge::Merge;
use super::publish::told;

/// Whose name it is read in; it is the same for everybody.
const TENANT: &str = "default";

/// The latest version of each name. Says in the log what is hardly meant as it is: who publishes is told by `create_skill`, and who
/// puts a directory here need not have asked `skillgate skill validate`.
pub(super) async fn read(
    shelf: &Arc<StorageInstance>,
) -> Result<HashMap<String, String>, model::Error> {
    let mut latest_of = HashMap::new();
    let mut merge = Merge::new(vec![shelf.clone()], TENANT, "", SkillKey::default());
    while let Some((_, skill)) = merge.next().await? {
        // Each is run where it is asked for by its version.
        let version = shelf.skill_get(TENANT, &skill.name, &skill.version);
        for warning in warnings(&version.await?) {
            tracing::warn!(
                skill = skill.name,
                version = skill.version,
                warning,
                "a skill on the operator's shelf is hardly what was meant"
            );
        }
        if let Entry::Vacant(entry) = latest_of.entry(skill.name) {
            let latest = shelf.skill_get(TENANT, entry.key(), "").await?;
            entry.insert(latest.version);
        }
    }
    tracing::info!(skills = latest_of.len(), "the operator's shelf is read");
    Ok(latest_of)
}

/// None of one that cannot be read: whoever asks for it hears that.
fn warnings(skill: &model::Skill) -> Vec<String> {
    let text = std::str::from_utf8(&skill.manifest_json).unwrap_or_default();
    Manifest::from_json(text).map_or_else(|_| Vec::new(), |manifest| told(manifest.warnings()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_hardly_meant_is_told() {
        let of = |manifest: &str| {
            warnings(&model::Skill {
                manifest_json: manifest.as_bytes().to_vec(),
                ..model::Skill::default()
            })
        };
        let manifest = r#"{"name":"a","version":"1.0.0","description":"x","kind":"instruction"}"#;
        assert!(of(manifest).is_empty() && of("{").is_empty());
        let told = of(&manifest.replace('}', r#","permision":{"network":[]}}"#));
        assert_eq!(told.len(), 1);
        assert!(told[0].ends_with("did you mean permissions?"), "{told:?}");
    }
}

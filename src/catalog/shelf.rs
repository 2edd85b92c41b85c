//! The operator's shelf, as it is read at the start.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use skillgate_plugin_host::StorageInstance;
use skillgate_plugin_sdk::model::{self, Content, SkillFile, SkillKey};
use skillgate_skill::bundle::MODULES_BYTES_MAX;
use skillgate_skill::python::is_module_of;
use skillgate_skill::{Manifest, SkillPath, code_warnings};

use super::content;
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
        for warning in warnings(shelf, version.await?).await {
            tracing::warn!(
                skill = skill.name,
                version = skill.version,
                warning,
                "a skill on the operator's shelf (skills.paths) is hardly what was meant"
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
async fn warnings(shelf: &Arc<StorageInstance>, skill: model::Skill) -> Vec<String> {
    let Some(manifest) = manifest(&skill) else {
        return Vec::new();
    };
    let mut code = Vec::new();
    for path in code_of(&manifest, &skill.files) {
        let given = shelf.skill_read(TENANT, &skill.name, &skill.version, path.as_str());
        if let Ok(given) = given.await {
            code.push((path, given));
        }
    }
    let looked = tokio::task::spawn_blocking(move || warned(&manifest, code)).await;
    // A panic has been said already.
    looked.unwrap_or_default()
}

fn manifest(skill: &model::Skill) -> Option<Manifest> {
    let text = std::str::from_utf8(&skill.manifest_json).ok()?;
    Manifest::from_json(text).ok()
}

/// The files that are looked at: no more bytes than the look is worth.
fn code_of(manifest: &Manifest, files: &[SkillFile]) -> Vec<SkillPath> {
    let Some(runtime) = manifest.runtime() else {
        return Vec::new();
    };
    let entrypoint = runtime.entrypoint.as_str();
    let mut left = MODULES_BYTES_MAX as u64;
    let code = files.iter().filter(|file| {
        if file.path == entrypoint {
            return true;
        }
        let less = left.checked_sub(file.size_bytes);
        let is_code = is_module_of(entrypoint, &file.path) && less.is_some();
        left = less.filter(|_| is_code).unwrap_or(left);
        is_code
    });
    code.filter_map(|file| SkillPath::parse(&file.path).ok())
        .collect()
}

/// Reads the code. Blocks.
fn warned(manifest: &Manifest, code: Vec<(SkillPath, Content)>) -> Vec<String> {
    let read = |(path, given)| {
        let content = content::read(given, None, content::BYTES_MAX).ok()?;
        Some((path, content))
    };
    let files: Vec<(SkillPath, Vec<u8>)> = code.into_iter().filter_map(read).collect();
    let mut problems = manifest.warnings().to_vec();
    if let Some(runtime) = manifest.runtime() {
        problems.extend(code_warnings(runtime, &files));
    }
    told(&problems)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skill(manifest: &str) -> model::Skill {
        model::Skill {
            manifest_json: manifest.as_bytes().to_vec(),
            ..model::Skill::default()
        }
    }

    #[test]
    fn what_is_hardly_meant_is_told() {
        let of = |text: &str| warned(&manifest(&skill(text)).unwrap(), Vec::new());
        let text = r#"{"name":"a","version":"1.0.0","description":"x","kind":"instruction"}"#;
        assert!(of(text).is_empty() && manifest(&skill("{")).is_none());
        let told = of(&text.replace('}', r#","permision":{"network":[]}}"#));
        assert_eq!(told.len(), 1);
        assert!(told[0].ends_with("did you mean permissions?"), "{told:?}");
    }

    #[test]
    fn its_code_is_looked_at_within_bounds() {
        let manifest = manifest(&skill(
            r#"{"name":"a","version":"1.0.0","description":"x","kind":"action",
            "runtime":{"language":"python","entrypoint":"code/main.py","export":"main"}}"#,
        ))
        .unwrap();
        let file = |(path, size_bytes): (&str, u64)| SkillFile {
            path: path.into(),
            size_bytes,
            ..SkillFile::default()
        };
        let max = MODULES_BYTES_MAX as u64;
        let files = [
            ("SKILL.md", 1),
            ("code/a.py", max + 1),
            ("code/b.py", max - 1),
            ("code/c.py", 2),
            ("code/d.py", 1),
            ("code/e.py", 1),
            ("code/main.py", 2 * max),
            ("resources/f.py", 1),
        ]
        .map(file);
        let code = code_of(&manifest, &files);
        let code: Vec<&str> = code.iter().map(SkillPath::as_str).collect();
        assert_eq!(code, ["code/b.py", "code/d.py", "code/main.py"]);
        let given = |path: &str, text: &str| {
            let path = SkillPath::parse(path).unwrap();
            (path, Content::Data(text.as_bytes().to_vec()))
        };
        let code = vec![
            given("code/b.py", "x = ("),
            given("code/main.py", "x = 1\n"),
        ];
        let told = warned(&manifest, code);
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].starts_with("code/main.py: warning: no definition of `main`"));
        assert!(told[1].starts_with("code/b.py:1: warning: `(` is never closed"));
    }
}

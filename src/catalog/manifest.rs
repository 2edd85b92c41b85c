//! Whether the manifest that a store gives beside a skill's files is that of the skill.toml among them. By the manifest a skill is
//! decided about: what it asks for, what is run. The digest, by which an operator knows a version, is of the file.

use std::sync::Arc;

use serde_json::Value;
use skillgate_plugin_host::StorageInstance;
use skillgate_plugin_sdk::model;
use skillgate_skill::{Manifest, SKILL_TOML, in_namespace};

use super::{Catalog, Error, Skill, broken};

impl Catalog {
    /// That a skill's manifest is its skill.toml. Once, when it is read: a version never changes. The store that came with this
    /// program keeps the manifest under a digest of its own, or makes it of the file whenever it is asked.
    pub(super) async fn check_manifest(
        &self,
        source: &Arc<StorageInstance>,
        tenant: &str,
        skill: &Arc<Skill>,
    ) -> Result<(), Error> {
        if source.is_ours() {
            return Ok(());
        }
        let skill_toml = self
            .fetch(source, tenant, &skill.record, SKILL_TOML)
            .await?;
        let of = skill.clone();
        let look = tokio::task::spawn_blocking(move || is_of(&of.manifest_json, &skill_toml));
        let outcome = look.await;
        let seen = outcome.map_err(|_| broken(&skill.record, "a reader ended early"))?;
        seen.map_err(|why| broken(&skill.record, &why))
    }
}

/// An error says that it is another skill's, as a sentence: a skill runs and is mounted by the name that its record has.
pub(super) fn is_for(manifest: &Manifest, record: &model::Skill) -> Result<(), String> {
    let (name, version) = (manifest.name().as_str(), manifest.version().to_string());
    match name == record.name && version == record.version {
        true => Ok(()),
        false => Err(format!("its manifest is that of {name} {version}")),
    }
}

/// An error says how what a list has of a skill is not what its manifest says, as a sentence. `within`: the namespace that was asked
/// for; empty: all.
pub(super) fn is_listed(
    manifest: &Manifest,
    listed: &model::Skill,
    within: &str,
) -> Result<(), String> {
    let namespace = manifest.namespace().as_str();
    for (what, listed, meant) in [
        ("description", &*listed.description, manifest.description()),
        ("kind", &*listed.kind, manifest.kind().as_str()),
        ("namespace", &*listed.namespace, namespace),
    ] {
        if listed != meant {
            return Err(format!(
                "its store lists it with another {what} than its manifest has"
            ));
        }
    }
    match within.is_empty() || in_namespace(namespace, within) {
        true => Ok(()),
        false => Err(format!("its store lists it below {within}")),
    }
}

/// `given` as [`Manifest::to_json`] has it, with the namespace that a store may leave out. An error says how the two differ, as a
/// sentence.
fn is_of(given: &Value, skill_toml: &[u8]) -> Result<(), String> {
    let text = std::str::from_utf8(skill_toml).map_err(|_| format!("{SKILL_TOML} is not UTF-8"))?;
    let file = Manifest::from_toml(text).map_err(|error| error.to_string())?;
    // By the way that the other one came: the two readers may differ in the last bit of a number.
    let file = Manifest::from_json(&file.to_json().to_string())
        .map_err(|error| format!("{SKILL_TOML}: {error}"))?
        .to_json();
    if file == *given {
        return Ok(());
    }
    let members = |of: &Value| of.as_object().cloned().unwrap_or_default();
    let (file, given) = (members(&file), members(given));
    let mut keys = file.keys().chain(given.keys());
    let differs = keys.find(|key| file.get(*key) != given.get(*key));
    Err(format!(
        "its manifest is not that of its {SKILL_TOML}: they differ in {:?}",
        differs.map_or("", String::as_str)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"name = "acme.x"
version = "1.0.0"
description = "x"
kind = "action"
ratio = 0.5

[runtime]
language = "python"
entrypoint = "code/main.py"
export = "main"

[permissions]
network = ["https://example.com"]
secrets = ["KEY"]
"#;

    fn of(json: &str) -> Manifest {
        Manifest::from_json(json).unwrap()
    }

    fn given() -> Value {
        Manifest::from_toml(FILE).unwrap().to_json()
    }

    #[test]
    fn a_manifest_is_what_the_file_says() {
        let look = |given: &Value| is_of(&of(&given.to_string()).to_json(), FILE.as_bytes());
        assert_eq!(look(&given()), Ok(()));
        // The namespace may be left out, and what is null is not there.
        let mut same = given();
        same.as_object_mut().unwrap().remove("namespace");
        same["tags"] = Value::Null;
        assert_eq!(look(&same), Ok(()));
        let differ = |pointer: &str, value: Value, key: &str| {
            let mut given = given();
            *given.pointer_mut(pointer).unwrap() = value;
            let why = format!("its manifest is not that of its skill.toml: they differ in {key:?}");
            assert_eq!(look(&given), Err(why));
        };
        // Narrower is as untrue as wider: what a policy forbids to ask for would not be seen.
        differ("/permissions/network", [0; 0].into(), "permissions");
        let wider = ["https://example.com", "https://example.org"];
        differ(
            "/permissions/network",
            wider.as_slice().into(),
            "permissions",
        );
        differ("/permissions", Value::Null, "permissions");
        differ("/runtime/export", "other".into(), "runtime");
        differ("/namespace", "other".into(), "namespace");
        differ("/ratio", 0.25.into(), "ratio");
        let mut more = given();
        more["more"] = true.into();
        assert!(look(&more).unwrap_err().ends_with("\"more\""));
    }

    #[test]
    fn a_number_is_the_same_by_both_ways() {
        // Without float_roundtrip serde_json reads its neighbour, and TOML does not.
        let odd = 7.499_218_046_235_200_5e-6_f64;
        let file = format!("{FILE}[inputs]\nx = {{ most = {odd} }}\n");
        let published = Manifest::from_toml(&file).unwrap().to_json().to_string();
        assert_eq!(is_of(&of(&published).to_json(), file.as_bytes()), Ok(()));
    }

    #[test]
    fn a_file_that_is_no_manifest_is_said_to_be_none() {
        let why = |file: &[u8]| is_of(&given(), file).unwrap_err();
        assert_eq!(why(b"\xff"), "skill.toml is not UTF-8");
        let said = why(b"name = 1");
        assert!(said.starts_with("skill.toml:1:"), "{said}");
    }

    #[test]
    fn a_manifest_is_of_the_skill_that_was_asked_for() {
        let manifest = Manifest::from_toml(FILE).unwrap();
        let record = |name: &str, version: &str| model::Skill {
            name: name.into(),
            version: version.into(),
            ..model::Skill::default()
        };
        assert_eq!(is_for(&manifest, &record("acme.x", "1.0.0")), Ok(()));
        for (name, version) in [("acme.y", "1.0.0"), ("acme.x", "1.0.1")] {
            let why = "its manifest is that of acme.x 1.0.0".to_owned();
            assert_eq!(is_for(&manifest, &record(name, version)), Err(why));
        }
    }

    #[test]
    fn what_is_listed_is_what_the_manifest_says() {
        let manifest = Manifest::from_toml(FILE).unwrap();
        let listed = || model::Skill {
            description: "x".into(),
            kind: "action".into(),
            namespace: "acme".into(),
            ..model::Skill::default()
        };
        let look = |listed: &model::Skill, within| is_listed(&manifest, listed, within);
        assert_eq!(look(&listed(), ""), Ok(()));
        assert_eq!(look(&listed(), "acme"), Ok(()));
        let why = "its store lists it below acm".to_owned();
        assert_eq!(look(&listed(), "acm"), Err(why));
        let other = |change: fn(&mut model::Skill), what| {
            let mut listed = listed();
            change(&mut listed);
            let why = format!("its store lists it with another {what} than its manifest has");
            assert_eq!(look(&listed, ""), Err(why));
        };
        other(|it| it.description.push('.'), "description");
        other(|it| it.kind = "instruction".into(), "kind");
        other(|it| it.namespace.clear(), "namespace");
    }
}

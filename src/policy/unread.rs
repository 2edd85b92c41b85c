//! Keys of the organisation's data that no rule reads. To Rego a list under a misspelled name is one that is not there: the guard
//! that it was meant to be is none, and nothing fails.

use std::collections::BTreeSet;

use regorus::Value;

use super::bundle::{Bundle, Module};
use super::trial::{code_of, is_of_word};
use crate::config::did_you_mean;
use crate::json::short;

/// What is known at a place of `data.skills.config` (policies/README.md, "The data"); `*` is any name. Limits and freezes are
/// missing: the rules refuse what they do not know of those.
pub(super) const KNOWN: [(&str, &[&str]); 8] = [
    (
        "",
        &[
            "roles",
            "groups",
            "tenants",
            "network",
            "secrets",
            "approved_digests",
            "sandbox",
            "limits",
            "freezes",
            "log",
        ],
    ),
    (
        "roles.*",
        &["actions", "namespaces", "attenuate", "any_namespace"],
    ),
    ("tenants.*", &["source_cidrs", "limits"]),
    ("network", &["allow", "deny_cidrs"]),
    (
        "network.allow.*",
        &["exact", "subdomains", "schemes", "ports", "roles", "skills"],
    ),
    ("secrets.*", &["roles", "skills", "hosts", "delivery"]),
    ("sandbox", &["fresh"]),
    ("log", &["mask"]),
];

/// Where the rules are that the project brings.
const BUNDLED: [&str; 2] = ["/skills/authz/", "/skills/lib/"];

/// What is asked of each skill in an object, and is found in none if it is anything else: refused, since a list that is one level
/// too high would be a guard that is none.
///
/// # Errors
/// A line for each, with the file.
pub(super) fn shapes(bundle: &Bundle) -> Result<(), Vec<String>> {
    let mut wrong = Vec::new();
    for (file, document) in bundle.documents() {
        for (_, sandbox) in objects(document, "skills.config.sandbox") {
            if sandbox.as_object().is_err() {
                wrong.push(format!(
                    "{file}: sandbox is no object, so its list \"fresh\" cannot be found: write \"sandbox\": {{\"fresh\": [...]}} with the namespaces, or leave sandbox out"
                ));
            }
        }
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(wrong),
    }
}

/// The keys beside known ones, or like one, that no rule reads.
pub(super) fn keys(bundle: &Bundle) -> Vec<String> {
    let served = bundle.modules().iter().filter(|module| !module.is_test());
    let (bundled, own): (Vec<_>, Vec<_>) =
        served.partition(|module| BUNDLED.iter().any(|dir| module.path.contains(dir)));
    let read_by = |modules: Vec<&'_ Module>| -> BTreeSet<String> {
        let code = modules.iter().flat_map(|it| it.text.lines().map(code_of));
        code.flat_map(names).map(str::to_owned).collect()
    };
    let mut read = read_by(bundled);
    // That the bundled rules read it in another place says nothing of this one; where your own do may be anywhere.
    read.retain(|name| {
        !KNOWN
            .iter()
            .any(|(_, known)| known.contains(&name.as_str()))
    });
    read.extend(read_by(own));
    let mut warnings = Vec::new();
    for (file, document) in bundle.documents() {
        let configs = objects(document, "skills.config");
        for (_, config) in configs {
            for (place, known) in KNOWN {
                for (place, object) in objects(config, place) {
                    let unread = unread(object, known, &read);
                    warnings.extend(unread.map(|why| format!("{file}: {place}{why}")));
                }
            }
        }
    }
    warnings
}

fn unread(
    object: &Value,
    known: &'static [&'static str],
    read: &BTreeSet<String>,
) -> impl Iterator<Item = String> {
    // What has none of these and nothing like them is a document of another kind.
    let is_ours = members(object).any(|(name, _)| known.contains(&name));
    members(object).filter_map(move |(name, _)| {
        if known.contains(&name) || read.contains(name) {
            return None;
        }
        let hint = match did_you_mean(name, known.iter().copied()) {
            Some(meant) => format!("did you mean {meant}?"),
            None if is_ours => format!("known here: {}", known.join(", ")),
            None => return None,
        };
        let name = short(name);
        Some(format!(
            "{name}: no rule reads it, so it has no effect; {hint}"
        ))
    })
}

/// What a line of rules may take out of an object: `.name`, and a text that is no key of an object that it makes.
fn names(code: &str) -> Vec<&str> {
    let parts: Vec<&str> = code.split('"').collect();
    let mut names = Vec::new();
    for (index, part) in parts.iter().enumerate() {
        let after = parts.get(index + 1).map_or("", |after| after.trim_start());
        if index % 2 == 0 {
            let paths = part.split(|c| c != '.' && !is_of_word(c));
            // What is asked of the caller is nothing of the data.
            let paths = paths.filter(|path| !path.starts_with("input."));
            names.extend(paths.flat_map(|path| path.split('.').skip(1)));
        } else if !after.starts_with(':') {
            names.push(*part);
        }
    }
    names
}

/// The values at a place below another, each with its own path and a dot.
pub(super) fn objects<'v>(above: &'v Value, place: &str) -> Vec<(String, &'v Value)> {
    let mut found = vec![(String::new(), above)];
    for step in place.split('.').filter(|step| !step.is_empty()) {
        let below = |(path, value): (String, &'v Value)| {
            members(value)
                .filter(|(name, _)| step == "*" || *name == step)
                .map(move |(name, value)| (format!("{path}{}.", short(name)), value))
                .collect::<Vec<_>>()
        };
        found = found.into_iter().flat_map(below).collect();
    }
    found
}

pub(super) fn members(value: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let members = value.as_object().into_iter().flatten();
    members.filter_map(|(name, value)| Some((name.as_string().ok()?.as_ref(), value)))
}

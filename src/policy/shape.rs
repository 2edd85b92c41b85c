//! Values of the organisation's data that the bundled rules can do nothing with: a network that is none, a namespace with a wildcard.
//! To Rego they are values like others, equal to nothing that is ever asked.

use std::collections::BTreeSet;

use regorus::Value;
use skillgate_skill::{Namespace, canonical_host};

use super::bundle::Bundle;
use super::decision::is_cidr;
use super::unread::{members, objects};
use super::words::{Kind, Sheet};
use crate::config::did_you_mean;
use crate::json::short;

/// What a text has to be.
#[derive(Clone, Copy)]
enum Of {
    Anything,
    Action,
    Namespace,
    Host,
    Network,
    Known(&'static [&'static str]),
}

/// What a value has to be.
#[derive(Clone, Copy)]
enum Form {
    Object,
    Truth,
    Ports,
    Text(Of),
    Texts(Of),
    /// The same where it is a list; what is none is taken care of by the rules.
    TextsIfList(Of),
}

/// Of the documented keys (policies/README.md, "The data"), but for those that the rules themselves look at: limits and freezes.
const FORMS: [(&str, Form); 23] = [
    ("roles.*", Form::Object),
    ("roles.*.actions", Form::Texts(Of::Action)),
    ("roles.*.namespaces", Form::Texts(Of::Namespace)),
    ("roles.*.attenuate", Form::Texts(Of::Namespace)),
    ("roles.*.any_namespace", Form::Truth),
    ("groups.*", Form::Texts(Of::Anything)),
    ("tenants.*", Form::Object),
    ("tenants.*.source_cidrs", Form::Texts(Of::Network)),
    ("network.allow.*", Form::Object),
    ("network.allow.*.exact", Form::Truth),
    ("network.allow.*.subdomains", Form::Truth),
    (
        "network.allow.*.schemes",
        Form::Texts(Of::Known(&["https", "http"])),
    ),
    ("network.allow.*.ports", Form::Ports),
    ("network.allow.*.roles", Form::Texts(Of::Anything)),
    ("network.allow.*.skills", Form::Texts(Of::Namespace)),
    ("network.deny_cidrs", Form::TextsIfList(Of::Network)),
    ("secrets.*", Form::Object),
    ("secrets.*.roles", Form::Texts(Of::Anything)),
    ("secrets.*.skills", Form::Texts(Of::Namespace)),
    ("secrets.*.hosts", Form::Texts(Of::Host)),
    (
        "secrets.*.delivery",
        Form::Text(Of::Known(&["env", "proxy"])),
    ),
    ("approved_digests", Form::Object),
    ("sandbox.fresh", Form::TextsIfList(Of::Namespace)),
];

/// What can never work, each with its file and its place there. Whoever has rules instead of the bundled ones knows better.
pub(super) fn values(bundle: &Bundle, sheets: &[Sheet<'_>]) -> Vec<String> {
    let is_bundled = |sheet: &Sheet<'_>| sheet.module.path.ends_with("/skills/authz/rbac.rego");
    if !sheets.iter().any(is_bundled) {
        return vec![];
    }
    // The bundled rules have all actions that there are, and others may have more.
    let words = sheets.iter().flat_map(|sheet| &sheet.words);
    let texts = words.filter(|word| matches!(word.kind, Kind::Text | Kind::Raw));
    let written: BTreeSet<&str> = texts.map(|word| word.text.as_ref()).collect();
    let mut warnings = Vec::new();
    for (file, document) in bundle.documents() {
        for (_, config) in objects(document, "skills.config") {
            let mut say = |place: &str, why: String| {
                let place = place.trim_end_matches('.');
                warnings.push(format!("{file}: {place}: {why}"));
            };
            for (place, form) in FORMS {
                for (place, value) in objects(config, place) {
                    check(place.trim_end_matches('.'), value, form, &written, &mut say);
                }
            }
            for (_, allow) in objects(config, "network.allow") {
                for (host, _) in members(allow) {
                    if let Err(why) = text(host, Of::Host, &written) {
                        say("network.allow", why);
                    }
                }
            }
            for (_, approved) in objects(config, "approved_digests") {
                for (digest, _) in members(approved) {
                    let hex = digest.strip_prefix("sha256:").unwrap_or_default();
                    let is_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
                    if hex.len() != 64 || !hex.bytes().all(is_hex) {
                        say(
                            "approved_digests",
                            format!("{:?} is no digest (sha256:<64 hex digits>)", short(digest)),
                        );
                    }
                }
            }
        }
    }
    warnings
}

fn check(
    place: &str,
    value: &Value,
    form: Form,
    written: &BTreeSet<&str>,
    say: &mut impl FnMut(&str, String),
) {
    let show = |value: &Value| short(&serde_json::to_string(value).unwrap_or_default());
    let shown = || show(value);
    match form {
        Form::Object if value.as_object().is_err() => {
            say(place, format!("{} is no object", shown()));
        }
        Form::Truth if value.as_bool().is_err() => {
            say(place, format!("{} is neither true nor false", shown()));
        }
        Form::Object | Form::Truth => {}
        Form::Text(of) => match value.as_string() {
            Ok(it) => {
                if let Err(why) = text(it, of, written) {
                    say(place, why);
                }
            }
            Err(_) => say(place, format!("{} is no text", shown())),
        },
        Form::Ports | Form::Texts(_) | Form::TextsIfList(_) => match (value.as_array(), form) {
            (Ok(items), _) => {
                for (index, item) in items.iter().enumerate() {
                    let place = format!("{place}[{index}]");
                    match form {
                        Form::Texts(of) | Form::TextsIfList(of) => {
                            check(&place, item, Form::Text(of), written, say);
                        }
                        _ if item.as_u64().is_ok_and(|port| (1..=65535).contains(&port)) => {}
                        _ => say(&place, format!("{} is no port (1 to 65535)", show(item))),
                    }
                }
            }
            (Err(_), Form::TextsIfList(_)) => {}
            (Err(_), _) if value.as_string().is_ok() => {
                say(place, format!("{} is no list: write [{0}]", shown()));
            }
            (Err(_), _) => say(place, format!("{} is no list", shown())),
        },
    }
}

/// Why a text is not what it has to be.
fn text(it: &str, of: Of, written: &BTreeSet<&str>) -> Result<(), String> {
    let shown = short(it);
    let meant = |what: &str, known: &[&str]| match did_you_mean(it, known.iter().copied()) {
        Some(meant) => format!("{shown:?} is no {what}; did you mean {meant:?}?"),
        None => format!("{shown:?} is no {what}; known are {}", known.join(", ")),
    };
    match of {
        Of::Anything => Ok(()),
        Of::Known(known) if known.contains(&it) => Ok(()),
        Of::Known(known) => Err(meant("word that is known here", known)),
        Of::Action if it == "*" || written.contains(it) => Ok(()),
        Of::Action => Err(meant("action", &ACTIONS)),
        Of::Namespace if it == "*" => Ok(()),
        Of::Namespace => Namespace::parse(it).map(drop).map_err(|error| {
            match it.strip_suffix(".*").map(Namespace::parse) {
                Some(Ok(whole)) => format!(
                    "{shown:?} is no namespace: write \"{whole}\", which covers all below it"
                ),
                _ => format!("{shown:?} is no namespace (like \"salesforce\", or \"*\"): {error}"),
            }
        }),
        Of::Network if is_cidr(it) => Ok(()),
        Of::Network => Err(format!("{shown:?} is no network (address/bits)")),
        Of::Host => {
            let bare = it.rsplit("://").next().unwrap_or(it);
            let bare = bare.trim_start_matches("*.");
            let bare = bare.split(['/', ':']).next().unwrap_or(bare);
            match (
                canonical_host(it),
                canonical_host(bare.trim_end_matches('.')),
            ) {
                (Ok(host), _) if host == it => Ok(()),
                (_, Ok(host)) => Err(format!(
                    "{shown:?} is no host as skills' hosts are compared: write {host:?}"
                )),
                (_, Err(why)) => Err(format!("{shown:?} is no host: it {why}")),
            }
        }
    }
}

/// As the bundled rules have them.
const ACTIONS: [&str; 9] = [
    "skills:list",
    "skills:read",
    "skills:execute",
    "skills:publish",
    "code:run",
    "blobs:read",
    "blobs:write",
    "guide:read",
    "*",
];

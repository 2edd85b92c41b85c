//! Rules that the engine takes and that do nothing: a rule to deny where nobody asks for it, a condition on what is never there.
//! To Rego what is undefined is no mistake: the rule does not fire, and what it was to refuse is allowed.

use std::collections::{BTreeMap, BTreeSet};

use super::bundle::Bundle;
use super::unread::{KNOWN, members, objects};
use super::words::{Kind, Sheet, Word};
use crate::config::{METHODS, did_you_mean};
use crate::json::short;

/// The package that is asked for the decision.
const AUTHZ: &str = "skills.authz";
/// The package of an organisation's own rules.
const CUSTOM: &str = "skills.custom";
/// Where the organisation's data is.
const CONFIG: &str = "data.skills.config";
/// The files of [`AUTHZ`] that the project brings.
const AUTHZ_FILES: [&str; 5] = ["decision", "limits", "network", "rbac", "secrets"];

/// All that is in the input (see `input` and the facts of each method); `*` is any of a list.
const INPUT: [&str; 62] = [
    "blobs.*.id",
    "blobs.*.kind",
    "blobs.*.owner",
    "blobs.*.size_bytes",
    "blobs.*.tenant",
    "limits.blob_bytes",
    "limits.requested.timeout_ms",
    "request.arg_bytes",
    "request.arg_keys.*",
    "request.args",
    "request.bytes",
    "request.code_bytes",
    "request.code_sha256",
    "request.detail",
    "request.entrypoint",
    "request.file_count",
    "request.id",
    "request.kind",
    "request.language",
    "request.limit",
    "request.max_bytes",
    "request.method",
    "request.mode",
    "request.namespace",
    "request.path",
    "request.protocol",
    "request.version_pinned",
    "sandbox.isolation",
    "sandbox.plugin",
    "sandbox.secret_delivery.*",
    "schema",
    "skills.*.digest",
    "skills.*.kind",
    "skills.*.name",
    "skills.*.namespace",
    "skills.*.permissions.network.*.host",
    "skills.*.permissions.network.*.pattern",
    "skills.*.permissions.network.*.port",
    "skills.*.permissions.network.*.scheme",
    "skills.*.permissions.network.*.suffixes.*",
    "skills.*.permissions.network.*.wildcard",
    "skills.*.permissions.secrets.*",
    "skills.*.provenance.origin",
    "skills.*.provenance.publisher",
    "skills.*.provenance.signed",
    "skills.*.unread",
    "skills.*.version",
    "source.ip",
    "source.proxied",
    "subject.actor.id",
    "subject.actor.kind",
    "subject.authenticated",
    "subject.claims",
    "subject.groups.*",
    "subject.id",
    "subject.issuer",
    "subject.kind",
    "subject.roles.*",
    "subject.scopes.*",
    "subject.tenant",
    "time.now_s",
    "time.weekday",
];

/// What may have anything below it.
const OPEN: [&str; 2] = ["subject.claims", "request.args"];

/// What does nothing, each with its place.
pub(super) fn rules(bundle: &Bundle, sheets: &[Sheet<'_>]) -> Vec<String> {
    let taken = Taken::of(sheets);
    let mut warnings = unasked(sheets, &taken);
    warnings.extend(explains_only(sheets));
    warnings.extend(unread(sheets, &taken));
    for sheet in sheets {
        warnings.extend(not_in_input(sheet));
        warnings.extend(no_method(sheet));
    }
    warnings.extend(not_in_data(bundle, sheets));
    warnings
}

/// What rules take of `data`, each with the packages whose rules do.
#[derive(Default)]
struct Taken<'b> {
    /// By its whole path, and by each above it.
    named: BTreeMap<String, BTreeSet<&'b str>>,
    /// With all that is below it, or any of that.
    whole: BTreeMap<String, BTreeSet<&'b str>>,
}

impl<'b> Taken<'b> {
    fn of(sheets: &'b [Sheet<'_>]) -> Self {
        let mut taken = Taken::default();
        for sheet in sheets {
            for path in paths(&sheet.words) {
                // Who uses it is looked at.
                let is_import = path.begin > 0 && sheet.words[path.begin - 1].is("import");
                let mut steps = absolute(sheet, &path).into_iter();
                if is_import || steps.next() != Some(Some("data")) {
                    continue;
                }
                let mut place = String::new();
                for step in steps.map_while(|step| step) {
                    let dot = if place.is_empty() { "" } else { "." };
                    place = format!("{place}{dot}{step}");
                    let by = taken.named.entry(place.clone()).or_default();
                    by.insert(&sheet.package);
                }
                taken.whole.entry(place).or_default().insert(&sheet.package);
            }
        }
        taken
    }

    /// Whether a package, or a rule in one, is asked for by rules of other packages than `own`.
    fn is_asked(&self, what: &str, own: Option<&str>) -> bool {
        let other = |by: Option<&BTreeSet<&str>>| {
            by.is_some_and(|by| by.iter().any(|package| Some(*package) != own))
        };
        let ends = what.match_indices('.').map(|(at, _)| at);
        let mut above = std::iter::once(0).chain(ends);
        other(self.named.get(what)) || above.any(|end| other(self.whole.get(&what[..end])))
    }
}

/// Rules to deny in a package that no other speaks of: `skills.customs`, or `skills.custom.weekend`, which is a package like any
/// other, where `skills.custom` was meant.
fn unasked(sheets: &[Sheet<'_>], taken: &Taken<'_>) -> Vec<String> {
    let mut warnings = Vec::new();
    for sheet in sheets {
        let package = &sheet.package;
        let deny = sheet.heads.iter().find(|head| head.root() == "deny");
        let is_asked = |what: &str| taken.is_asked(what, Some(package));
        let Some(deny) = deny.filter(|_| package != AUTHZ && !is_asked(package)) else {
            continue;
        };
        let above = package.rsplit_once('.').map_or("", |(above, _)| above);
        let mut others = [above, CUSTOM].into_iter();
        let asked = others.find(|other| other != package && is_asked(&format!("{other}.deny")));
        let advice = match asked {
            Some(other) => format!("write `package {other}`, which is asked"),
            None => format!("let a rule of {AUTHZ} ask data.{package}.deny"),
        };
        warnings.push(format!(
            "{}: nothing asks package {package}, so its rules to deny refuse nothing: {advice}",
            sheet.place(deny.line)
        ));
    }
    warnings
}

/// The bundled decision asks its own package's rules to deny why it has refused, and never whether to.
fn explains_only(sheets: &[Sheet<'_>]) -> Vec<String> {
    let is_bundled = |sheet: &Sheet<'_>| {
        let mut names = AUTHZ_FILES.iter();
        let path = &sheet.module.path;
        names.any(|name| path.ends_with(&format!("/skills/authz/{name}.rego")))
    };
    let own = |sheet: &&Sheet<'_>| sheet.package == AUTHZ;
    let authz = || sheets.iter().filter(own);
    let has_bundled = authz().any(|it| it.module.path.ends_with("/skills/authz/decision.rego"));
    let decides = |sheet: &Sheet<'_>| {
        let mut pairs = sheet.words.windows(2);
        pairs.any(|pair| {
            let rule = sheet.rule_at(pair[1].start);
            pair[1].is("deny")
                && !pair[0].is(".")
                && rule.is_some_and(|it| ["allow", "guards_ok"].contains(&it.root()))
        })
    };
    if !has_bundled || authz().any(decides) {
        return vec![];
    }
    // Beside a guard that is asked, they explain that one.
    let is_guard = |sheet: &Sheet<'_>| {
        let others = || authz().filter(|other| !std::ptr::eq(*other, sheet));
        let asked = |name: &str| others().any(|it| it.words.iter().any(|word| word.is(name)));
        let mut names = sheet.heads.iter().map(|head| head.root());
        names.any(|name| name != "deny" && asked(name))
    };
    let own = authz().filter(|sheet| !is_bundled(sheet) && !is_guard(sheet));
    own.filter_map(|sheet| {
        let deny = sheet.heads.iter().find(|head| head.root() == "deny")?;
        Some(format!(
            "{}: `deny` of package {AUTHZ} explains what is refused already and refuses nothing itself: write `package {CUSTOM}`",
            sheet.place(deny.line)
        ))
    })
    .collect()
}

/// Rules of the organisation's own package that nothing reads: `denied`, where `deny` was meant.
fn unread(sheets: &[Sheet<'_>], taken: &Taken<'_>) -> Vec<String> {
    let own = || sheets.iter().filter(|sheet| sheet.package == CUSTOM);
    let is_head = |sheet: &Sheet<'_>, word: &Word<'_>| {
        let mut heads = sheet.heads.iter();
        heads.any(|head| head.at == word.start)
    };
    let read: BTreeSet<&str> = own()
        .flat_map(|sheet| {
            let words = sheet.words.iter();
            let words = words.filter(|word| word.kind != Kind::Other && !is_head(sheet, word));
            words.map(|word| word.text.as_ref())
        })
        .collect();
    let mut seen = BTreeSet::new();
    let mut warnings = Vec::new();
    for sheet in own() {
        for head in &sheet.heads {
            let name = head.root();
            if name == "deny" || read.contains(name) || !seen.insert(name) {
                continue;
            }
            if !taken.is_asked(&format!("{CUSTOM}.{name}"), None) {
                warnings.push(format!(
                    "{}: nothing reads the rule {name}, so it has no effect; refusals are `deny contains {{\"code\": ..., \"message\": ...}} if ...`",
                    sheet.place(head.line)
                ));
            }
        }
    }
    warnings
}

/// A name and what is taken out of it: `.name`, `["name"]`, or an index that is not known here.
pub(super) struct Path<'w> {
    pub(super) root: &'w str,
    steps: Vec<Option<&'w str>>,
    pub(super) line: usize,
    /// Of the first word, and of the one behind the last.
    pub(super) begin: usize,
    end: usize,
}

pub(super) fn paths<'w>(words: &'w [Word<'_>]) -> Vec<Path<'w>> {
    let mut found = Vec::new();
    for (begin, word) in words.iter().enumerate() {
        let is_step = begin > 0 && words[begin - 1].is(".");
        if word.kind != Kind::Name || is_step {
            continue;
        }
        let mut path = Path {
            root: &word.text,
            steps: vec![],
            line: word.line,
            begin,
            end: begin + 1,
        };
        while let Some((step, end)) = step(words, path.end) {
            path.steps.push(step);
            path.end = end;
        }
        found.push(path);
    }
    found
}

/// One step, and the word behind it.
fn step<'w>(words: &'w [Word<'_>], at: usize) -> Option<(Option<&'w str>, usize)> {
    let (sign, next) = (words.get(at)?, words.get(at + 1)?);
    if sign.is(".") && next.kind == Kind::Name {
        return Some((Some(&next.text), at + 2));
    }
    // What stands apart is a list of its own.
    if !sign.is("[") || words[at - 1].end != sign.start {
        return None;
    }
    if matches!(next.kind, Kind::Text | Kind::Raw) && words.get(at + 2)?.is("]") {
        return Some((Some(&next.text), at + 3));
    }
    let mut depth = 0_usize;
    for (index, word) in words.iter().enumerate().skip(at) {
        if ["[", "(", "{"].iter().any(|open| word.is(open)) {
            depth += 1;
        } else if ["]", ")", "}"].iter().any(|close| word.is(close)) {
            depth -= 1;
            if depth == 0 {
                return Some((None, index + 1));
            }
        }
    }
    None
}

/// The names below a place of the input; of a list `*`.
fn below(place: &str) -> BTreeSet<&'static str> {
    let inside = |path: &&'static str| {
        if place.is_empty() {
            return path.split('.').next();
        }
        let rest = path.strip_prefix(place)?.strip_prefix('.')?;
        rest.split('.').next()
    };
    INPUT.iter().filter_map(inside).collect()
}

fn not_in_input(sheet: &Sheet<'_>) -> Vec<String> {
    let mut warnings = Vec::new();
    for path in paths(&sheet.words) {
        let is_import = path.begin > 0 && sheet.words[path.begin - 1].is("import");
        let mut steps = absolute(sheet, &path).into_iter();
        if is_import || steps.next() != Some(Some("input")) {
            continue;
        }
        let mut place = String::new();
        for step in steps {
            if OPEN.contains(&place.as_str()) {
                break;
            }
            let known = below(&place);
            let step = match step {
                None if known.contains("*") => "*",
                None => break,
                Some(name) => name,
            };
            let dot = if place.is_empty() { "" } else { "." };
            if !known.contains(step) {
                let advice = match did_you_mean(step, known.iter().copied()) {
                    Some(meant) if meant != "*" => format!("did you mean {meant}?"),
                    _ if known.is_empty() => "nothing is below that".to_owned(),
                    _ if known.contains("*") => "that is a list: `some x in ...`".to_owned(),
                    _ => format!("known here: {}", Vec::from_iter(known).join(", ")),
                };
                warnings.push(format!(
                    "{}: input.{place}{dot}{} is never there, so what asks for it is undefined; {advice}",
                    sheet.place(path.line),
                    short(step)
                ));
                break;
            }
            place = format!("{place}{dot}{step}");
        }
    }
    warnings
}

/// A method that is compared with what is none.
fn no_method(sheet: &Sheet<'_>) -> Vec<String> {
    let words = &sheet.words;
    let is_equal = |word: &Word<'_>| ["==", "!=", "="].iter().any(|sign| word.is(sign));
    let mut compared: Vec<&Word<'_>> = Vec::new();
    for path in paths(words) {
        if absolute(sheet, &path) != ["input", "request", "method"].map(Some) {
            continue;
        }
        if let Some([value, sign]) = path.begin.checked_sub(2).map(|at| &words[at..at + 2])
            && is_equal(sign)
        {
            compared.push(value);
        }
        match &words[path.end..] {
            [sign, value, ..] if is_equal(sign) => compared.push(value),
            [is_in, open, rest @ ..] if is_in.is("in") && (open.is("{") || open.is("[")) => {
                let close = if open.is("{") { "}" } else { "]" };
                let all = rest.iter().take_while(|word| !word.is(close));
                // The values of an object are something else.
                let all: Vec<&Word<'_>> = all.collect();
                if !all.iter().any(|word| word.is(":") || word.is("|")) {
                    compared.extend(all);
                }
            }
            _ => {}
        }
    }
    let texts = compared
        .iter()
        .filter(|word| matches!(word.kind, Kind::Text | Kind::Raw));
    let wrong = texts.filter(|word| !METHODS.contains(&word.text.as_ref()));
    wrong
        .map(|word| {
            let advice = match did_you_mean(&word.text, METHODS) {
                Some(meant) => format!("did you mean {meant:?}?"),
                None => format!("there are {}", METHODS.join(", ")),
            };
            let name = short(&word.text);
            format!(
                "{}: {name:?} is no method, so this is never equal; {advice}",
                sheet.place(word.line)
            )
        })
        .collect()
}

/// A key of the organisation's data that is not there, where nothing provides for that.
fn not_in_data(bundle: &Bundle, sheets: &[Sheet<'_>]) -> Vec<String> {
    let documents: Vec<_> = bundle
        .documents()
        .flat_map(|(_, document)| objects(document, "skills.config"))
        .collect();
    let mut known: BTreeSet<&str> = documents
        .iter()
        .flat_map(|(_, config)| members(config).map(|(name, _)| name))
        .collect();
    if known.is_empty() {
        return vec![];
    }
    known.extend(KNOWN[0].1);
    // What rules make there.
    for sheet in sheets {
        match sheet.package.strip_prefix("skills.config") {
            Some("") => known.extend(sheet.heads.iter().map(|head| head.root())),
            Some(more) => known.extend(more.split('.').nth(1)),
            None => {}
        }
    }
    let mut missing: BTreeMap<String, String> = BTreeMap::new();
    let mut provided: BTreeSet<String> = BTreeSet::new();
    for sheet in sheets {
        let texts = sheet.words.iter().filter(|it| it.kind == Kind::Text);
        provided.extend(texts.map(|it| it.text.to_string()));
        for path in paths(&sheet.words) {
            let before = &sheet.words[..path.begin];
            let Some(key) = key_of(sheet, &path).filter(|key| !known.contains(key)) else {
                continue;
            };
            // Who uses it is looked at.
            if before.last().is_some_and(|word| word.is("import")) {
                continue;
            }
            let rule = sheet.rule_at(sheet.words[path.begin].start);
            let has_default = rule.is_some_and(|rule| {
                let same = sheets.iter().filter(|it| it.package == sheet.package);
                let mut heads = same.flat_map(|it| &it.heads);
                heads.any(|head| head.is_default && head.name == rule.name)
            });
            let mut line = before.iter().rev().take_while(|it| it.line == path.line);
            if has_default || line.any(|word| word.is("not")) {
                provided.insert(key.to_owned());
            } else {
                let place = || sheet.place(path.line);
                missing.entry(key.to_owned()).or_insert_with(place);
            }
        }
    }
    missing.retain(|key, _| !provided.contains(key));
    missing
        .into_iter()
        .map(|(key, place)| {
            let advice = match did_you_mean(&key, known.iter().copied()) {
                Some(meant) => format!("did you mean {meant}?"),
                None => "add it to data.json".to_owned(),
            };
            format!(
                "{place}: the data has no {CONFIG}.{}, so what asks for it is undefined; {advice}",
                short(&key)
            )
        })
        .collect()
}

/// A path with what its root was imported as.
pub(super) fn absolute<'w>(sheet: &'w Sheet<'_>, path: &Path<'w>) -> Vec<Option<&'w str>> {
    let import = sheet.imports.iter().find(|it| it.name == path.root);
    let root = import.map_or(path.root, |it| it.path.as_str());
    let steps = path.steps.iter().copied();
    root.split('.').map(Some).chain(steps).collect()
}

/// The key of the organisation's data that a path takes, by whatever name that was imported.
fn key_of<'w>(sheet: &'w Sheet<'_>, path: &Path<'w>) -> Option<&'w str> {
    let mut steps = absolute(sheet, path).into_iter();
    let mut config = CONFIG.split('.');
    let is_config = config.all(|step| steps.next() == Some(Some(step)));
    steps.next().filter(|_| is_config)?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::bundle::Files;

    /// Each place of a document; below the open ones nothing.
    fn places(value: &serde_json::Value, place: &str, found: &mut BTreeSet<String>) {
        let mut go = |step: &str, value: &serde_json::Value| {
            let place = format!("{place}.{step}");
            let place = place.trim_start_matches('.');
            found.insert(place.to_owned());
            if !OPEN.contains(&place) {
                places(value, place, found);
            }
        };
        match value {
            serde_json::Value::Object(members) => {
                members.iter().for_each(|(name, it)| go(name, it))
            }
            serde_json::Value::Array(items) => items.iter().for_each(|it| go("*", it)),
            _ => {}
        }
    }

    #[test]
    fn the_input_is_what_the_golden_decisions_have() {
        let bundled = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("policies");
        let bundle = Bundle::new(&Files::read(&bundled).unwrap(), "policies").unwrap();
        let mut found = BTreeSet::new();
        for golden in bundle.goldens() {
            places(&golden.input, "", &mut found);
        }
        for place in &found {
            let is_above = |known: &&str| {
                let rest = known.strip_prefix(place.as_str());
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            };
            assert!(INPUT.iter().any(is_above), "{place}");
        }
        // Arguments are there for skills that the operator names.
        let lists = |known: &str| found.contains(known.trim_end_matches(".*"));
        let more: Vec<&str> = INPUT.into_iter().filter(|known| !lists(known)).collect();
        assert_eq!(more, ["request.args"]);
    }
}

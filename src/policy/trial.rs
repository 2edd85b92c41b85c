//! The trial that a bundle must pass before it decides anything: it compiles, it uses known functions only, it denies
//! who is nobody, its own tests hold on the interpreter, and its golden decisions on both engines.
//!
//! Runs in a process of its own (see `child`), for the gateway and for the command line alike.

use std::collections::BTreeSet;

use regorus::Value;
use serde::{Deserialize, Serialize};

use super::bundle::{Bundle, Golden};
use super::decision::Decision;
use super::engine::{self, Fault, PolicySet};
use super::suite::{self, Case};
use super::{shape, silent, unread, whole, width, words};
use crate::config::METHODS;

/// Built-in functions whose time and memory are bounded by what they are given. Not among them: `http.send` (a stub
/// that is always undefined), `time.now_ns` and random numbers (a decision must be repeatable), `numbers.range`,
/// `net.cidr_expand`, `bits.lsh`, `sprintf` with a width and others that make much out of little in one step, which
/// no instruction counter sees. `sprintf` itself is needed for messages: its width is looked for in the text.
const BUILTINS: &[&str] = &[
    // comparison and numbers
    "abs",
    "ceil",
    "floor",
    "round",
    "to_number",
    // aggregates
    "count",
    "max",
    "min",
    "sort",
    "sum",
    // arrays, sets, objects
    "array.concat",
    "array.reverse",
    "array.slice",
    "intersection",
    "union",
    "object.filter",
    "object.get",
    "object.keys",
    "object.remove",
    "object.subset",
    "object.union",
    "object.union_n",
    // text
    "concat",
    "contains",
    "endswith",
    "format_int",
    "indexof",
    "indexof_n",
    "lower",
    "replace",
    "split",
    "sprintf",
    "startswith",
    "strings.any_prefix_match",
    "strings.any_suffix_match",
    "strings.count",
    "strings.reverse",
    "substring",
    "trim",
    "trim_left",
    "trim_prefix",
    "trim_right",
    "trim_space",
    "trim_suffix",
    "upper",
    // patterns: compiled once, matched in linear time
    "glob.match",
    "glob.quote_meta",
    "regex.find_n",
    "regex.is_valid",
    "regex.match",
    "regex.split",
    // networks
    "net.cidr_contains",
    "net.cidr_is_valid",
    // versions
    "semver.compare",
    "semver.is_valid",
    // times that are given
    "time.add_date",
    "time.clock",
    "time.date",
    "time.diff",
    "time.parse_duration_ns",
    "time.parse_rfc3339_ns",
    "time.weekday",
    // types
    "is_array",
    "is_boolean",
    "is_null",
    "is_number",
    "is_object",
    "is_set",
    "is_string",
    "type_name",
    // encodings
    "base64.decode",
    "base64.encode",
    "base64.is_valid",
    "base64url.decode",
    "base64url.encode",
    "base64url.encode_no_pad",
    "hex.decode",
    "hex.encode",
    "json.is_valid",
    "json.marshal",
    "json.unmarshal",
    "units.parse",
    "units.parse_bytes",
];

/// Nesting of brackets in a file of rules. The parser takes twice as long for each level of a literal: 12 levels are
/// 0.1 s, 20 are 23 s, and 100,000 end the process.
const NESTING_MAX: usize = 12;
/// Most warnings of a bundle that are told.
const WARNINGS_MAX: usize = 20;

/// What a bundle that passed has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Of the manifest, or else the digest's beginning.
    pub revision: String,
    /// Files of rules, tests included.
    pub modules: usize,
    /// Tests that passed.
    pub tests: usize,
    /// Golden decisions that hold on both engines.
    pub goldens: usize,
    /// What is no mistake to Rego, and hardly what was meant: rules that do nothing, data that no rule reads or that it can do
    /// nothing with, files that are not read. With the place in the bundle.
    pub warnings: Vec<String>,
}

/// Tries a bundle. The errors begin with the place in the bundle, as far as there is one.
pub(super) fn run(bundle: &Bundle, instructions_max: u64) -> Result<Report, Vec<String>> {
    for module in bundle.modules() {
        if let Some(line) = too_deep(&module.text) {
            return Err(vec![format!(
                "{}:{line}: brackets are nested deeper than {NESTING_MAX}; move literals to data.json or name their parts",
                module.path
            )]);
        }
    }
    unread::shapes(bundle)?;
    let one = |why: String| vec![why];
    let set = PolicySet::compile(bundle).map_err(|error| one(error.to_string()))?;
    let (sheets, tests) = words::sheets(bundle).map_err(one)?;
    words::one_default(&sheets)?;
    words::one_meaning(&sheets)?;
    check_packages(bundle)?;
    check_builtins(&set, bundle)?;
    let budget = instructions_max;
    denies_nobody(&set, bundle, budget)?;
    let cases = suite::run(bundle).map_err(one)?;
    // Tests that fail for this say nothing of it.
    let uncertain = whole::asked(&sheets, &tests)?;
    let failed: Vec<String> = cases.iter().filter_map(Case::failure).collect();
    // A test may fail because of a value in the data, and says nothing of that.
    let values = shape::values(bundle, &sheets);
    if !failed.is_empty() {
        return Err([first(values), failed].concat());
    }
    let wrong: Vec<String> = bundle
        .goldens()
        .iter()
        .filter_map(|golden| check_golden(&set, golden, budget).err())
        .collect();
    if !wrong.is_empty() {
        return Err([first(values), wrong].concat());
    }
    Ok(Report {
        revision: bundle.revision().to_owned(),
        modules: bundle.modules().len(),
        tests: cases.len(),
        goldens: bundle.goldens().len(),
        warnings: first(
            [
                ungolden(bundle),
                uncertain,
                silent::rules(bundle, &sheets),
                unread::keys(bundle),
                values,
                bundle.left_out(),
            ]
            .concat(),
        ),
    })
}

/// As many as somebody reads.
fn first(mut warnings: Vec<String>) -> Vec<String> {
    let more = warnings.len().saturating_sub(WARNINGS_MAX);
    warnings.truncate(WARNINGS_MAX);
    if more > 0 {
        warnings.push(format!("and {more} more like these"));
    }
    warnings
}

/// The line in which the nesting exceeds the maximum. Comments and texts do not count.
fn too_deep(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    let mut line = 1;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\n' => line += 1,
            '#' => {
                let mut rest = chars.by_ref().skip_while(|c| *c != '\n');
                if rest.next().is_some() {
                    line += 1;
                }
            }
            '"' => {
                while let Some(c) = chars.next() {
                    match c {
                        '\\' => {
                            chars.next();
                        }
                        '\n' => line += 1,
                        '"' => break,
                        _ => {}
                    }
                }
            }
            '`' => {
                let inside = chars.by_ref().take_while(|c| *c != '`');
                line += inside.filter(|c| *c == '\n').count();
            }
            '[' | '{' | '(' => {
                depth += 1;
                if depth > NESTING_MAX {
                    return Some(line);
                }
            }
            ']' | '}' | ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    None
}

fn check_packages(bundle: &Bundle) -> Result<(), Vec<String>> {
    let engine = engine::engine(bundle, true).map_err(|why| vec![why])?;
    let packages = engine
        .get_packages()
        .map_err(|error| vec![error.to_string()])?;
    let foreign: BTreeSet<_> = packages
        .iter()
        .map(|package| package.trim_start_matches("data."))
        .filter(|package| !bundle.owns(package))
        .map(|package| format!("package {package} is outside the roots of .manifest"))
        .collect();
    match foreign.is_empty() {
        true => Ok(()),
        false => Err(foreign.into_iter().collect()),
    }
}

/// That what decides has hardly been asked: tests are run by the interpreter alone.
fn ungolden(bundle: &Bundle) -> Vec<String> {
    let warning = "no golden decisions (tests/decisions/*.json): the virtual machine, which decides, was hardly tried; `opa build` \
                   leaves them out, and `tar -C DIRECTORY -czf FILE .` keeps them";
    match bundle.goldens().is_empty() {
        true => vec![warning.into()],
        false => vec![],
    }
}

/// A line without its comment. A `#` in a string begins none.
pub(super) fn code_of(line: &str) -> &str {
    let (mut quote, mut escaped) = (None, false);
    for (at, c) in line.char_indices() {
        match quote {
            _ if escaped => escaped = false,
            Some('"') if c == '\\' => escaped = true,
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None if c == '"' || c == '`' => quote = Some(c),
            None if c == '#' => return &line[..at],
            None => {}
        }
    }
    line
}

pub(super) fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

pub(super) fn check_builtins(set: &PolicySet, bundle: &Bundle) -> Result<(), Vec<String>> {
    let mut wrong: Vec<String> = set
        .builtins()
        .filter(|name| !BUILTINS.contains(name))
        .map(|name| {
            let place = bundle
                .modules()
                .iter()
                .filter(|module| !module.is_test())
                .find_map(|module| {
                    let mut lines = module.text.lines();
                    let line = lines.position(|line| code_of(line).contains(name))?;
                    Some(format!("{}:{}: ", module.path, line + 1))
                })
                .unwrap_or_default();
            format!("{place}the built-in function {name} is not allowed: it is unbounded, not repeatable, or reaches out of the policy")
        })
        .collect();
    wrong.extend(width::widths(bundle).map_err(|why| vec![why])?);
    wrong.sort();
    wrong.dedup();
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(wrong),
    }
}

// === who is nobody gets nothing ===

/// Methods about one skill: without one there is nothing that could be allowed.
const ABOUT_A_SKILL: [&str; 4] = [
    "describe_skill",
    "read_skill_file",
    "execute_skill",
    "create_skill",
];

fn denies_nobody(set: &PolicySet, bundle: &Bundle, budget: u64) -> Result<(), Vec<String>> {
    let mut wrong = Vec::new();
    let mut must_deny = |what: String, input: serde_json::Value| {
        let input = Value::from(input);
        let machine = set
            .decide(input.clone(), budget)
            .and_then(|value| Decision::parse(&value));
        let interpreter = set
            .interpret(input)
            .and_then(|value| Decision::parse(&value));
        for (engine, outcome) in [("virtual machine", machine), ("interpreter", interpreter)] {
            if outcome.is_ok_and(|decision| decision.allow) {
                wrong.push(format!("{what} is allowed ({engine}); it must be denied"));
            }
        }
    };
    must_deny("an empty input".into(), serde_json::json!({}));
    must_deny("no input".into(), serde_json::Value::Null);
    for method in METHODS {
        let input = serde_json::json!({ "request": { "method": method } });
        must_deny(format!("{method} without a subject"), input);
    }
    for golden in bundle.goldens().iter().filter(|golden| golden.expect.allow) {
        // Quoted, since it is the bundle's: it could be a line of its own.
        let name = format!("{:?}", golden.name);
        let without = |path: &[&str]| {
            let mut input = golden.input.clone();
            remove(&mut input, path);
            input
        };
        must_deny(format!("{name} without its subject"), without(&["subject"]));
        must_deny(format!("{name} without its request"), without(&["request"]));
        must_deny(
            format!("{name} without its method"),
            without(&["request", "method"]),
        );
        must_deny(
            format!("{name} without subject.authenticated"),
            without(&["subject", "authenticated"]),
        );
        let mut input = golden.input.clone();
        input["subject"]["authenticated"] = false.into();
        must_deny(format!("{name}, unauthenticated"), input);
        let method = golden.input["request"]["method"]
            .as_str()
            .unwrap_or_default();
        if ABOUT_A_SKILL.contains(&method) {
            must_deny(format!("{name} without its skills"), without(&["skills"]));
            let mut input = golden.input.clone();
            input["skills"] = serde_json::json!([]);
            must_deny(format!("{name} with no skill"), input);
        }
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(wrong),
    }
}

/// Takes a member out.
pub(super) fn remove(value: &mut serde_json::Value, path: &[&str]) {
    match path {
        [] => {}
        [last] => {
            if let Some(object) = value.as_object_mut() {
                object.remove(*last);
            }
        }
        [first, rest @ ..] => {
            if let Some(below) = value.get_mut(*first) {
                remove(below, rest);
            }
        }
    }
}

// === golden decisions ===

fn check_golden(set: &PolicySet, golden: &Golden, budget: u64) -> Result<(), String> {
    let input = Value::from(golden.input.clone());
    let is_late = |outcome: &Result<Value, Fault>| *outcome == Err(Fault::Limit);
    let decide = || set.decide(input.clone(), budget);
    let machine = suite::in_its_own_time(decide, is_late, suite::thread_time);
    let interpret = || set.interpret(input.clone());
    let interpreter = suite::in_its_own_time(interpret, is_late, suite::thread_time);
    let name = &golden.name;
    if machine != interpreter {
        let show = |outcome: &Result<Value, Fault>| match outcome {
            Ok(value) => value.to_json_str().unwrap_or_default(),
            Err(fault) => fault.to_string(),
        };
        return Err(format!(
            "golden decision {name:?}: the engines disagree: virtual machine {}, interpreter {}",
            show(&machine),
            show(&interpreter)
        ));
    }
    let value = machine.map_err(|fault| format!("golden decision {name:?}: {fault}"))?;
    let decision =
        Decision::parse(&value).map_err(|fault| format!("golden decision {name:?}: {fault}"))?;
    let codes =
        |codes: &mut dyn Iterator<Item = &str>| codes.map(str::to_owned).collect::<BTreeSet<_>>();
    let got = codes(
        &mut decision
            .reasons
            .iter()
            .map(|reason| reason["code"].as_str()),
    );
    let want = codes(&mut golden.expect.codes.iter().map(String::as_str));
    if decision.allow != golden.expect.allow || got != want {
        return Err(format!(
            "golden decision {name:?}: expected allow = {} {want:?}, got allow = {} {got:?}",
            golden.expect.allow, decision.allow
        ));
    }
    if let Some(want) = &golden.expect.grants {
        let got = value
            .as_object()
            .ok()
            .and_then(|members| members.get(&"grants".into()))
            .cloned()
            .unwrap_or(Value::Undefined);
        if got != Value::from(want.clone()) {
            return Err(format!(
                "golden decision {name:?}: expected grants {want}, got {}",
                got.to_json_str().unwrap_or_default()
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{BUILTINS, PolicySet, check_golden, code_of, denies_nobody};
    use crate::policy::bundle::{Bundle, Files};

    /// A name that it does not know is one that it may know in another version, as something else than was meant.
    #[test]
    fn the_engine_has_every_function_that_is_allowed() {
        let compile = |call: &str| {
            let mut files = Files::default();
            let text = format!("package skills.authz\n\ndecision := {call}\n");
            files.add("a.rego".into(), text.into_bytes()).unwrap();
            let bundle = Bundle::new(&files, "policies").unwrap();
            PolicySet::compile(&bundle).map_err(|error| error.to_string())
        };
        for name in BUILTINS {
            let calls = ["", "1", "1, 1", "1, 1, 1", "1, 1, 1, 1"];
            let tried = calls.map(|arguments| compile(&format!("{name}({arguments})")));
            let known = |set: &Result<PolicySet, String>| {
                let set = set.as_ref();
                set.is_ok_and(|set| set.builtins().any(|it| it == *name))
            };
            assert!(tried.iter().any(known), "{name}: {tried:?}");
        }
        let unknown = compile("array.nothing([])").unwrap_err();
        assert!(unknown.contains("array.nothing"), "{unknown}");
    }

    #[test]
    fn the_functions_that_are_allowed_are_those_that_authors_read_of() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("policies/README.md");
        let page = std::fs::read_to_string(page).unwrap();
        let (_, list) = page.split_once("may use these functions").unwrap();
        let (_, list) = list.split_once("```text\n").unwrap();
        let (list, _) = list.split_once("```").unwrap();
        let mut told: Vec<&str> = list.split_whitespace().collect();
        let mut allowed = BUILTINS.to_vec();
        told.sort_unstable();
        allowed.sort_unstable();
        assert_eq!(told, allowed);
    }

    #[test]
    fn what_a_golden_decision_is_called_makes_no_lines() {
        const BUDGET: u64 = 1_000_000;
        let mut files = Files::default();
        let rules = "package skills.authz\n\ndecision := {\"allow\": true}\n";
        files.add("a.rego".into(), rules.into()).unwrap();
        for (file, allow) in [("a", false), ("b", true)] {
            let golden = serde_json::json!({
                "name": "a\npolicies: fine", "input": { "request": { "method": "describe_skill" } },
                "expect": { "allow": allow, "codes": [], "grants": { "network": ["x"] } },
            });
            let file = format!("tests/decisions/{file}.json");
            files.add(file, golden.to_string().into()).unwrap();
        }
        let bundle = Bundle::new(&files, "policies").unwrap();
        let set = PolicySet::compile(&bundle).unwrap();
        let goldens = bundle.goldens().iter();
        let mut said: Vec<String> = goldens
            .map(|golden| check_golden(&set, golden, BUDGET).unwrap_err())
            .collect();
        assert_eq!(said.len(), 2);
        let nobody = denies_nobody(&set, &bundle, BUDGET).unwrap_err();
        said.extend(
            nobody
                .into_iter()
                .filter(|why| why.contains("policies: fine")),
        );
        assert_eq!(said.len(), 2 + 2 * 7, "{said:?}");
        for why in said {
            let is_quoted = why.contains(r#""a\npolicies: fine""#);
            assert!(is_quoted && why.lines().count() == 1, "{why}");
        }
    }

    #[test]
    fn a_comment_begins_outside_of_strings() {
        for (line, code) in [
            ("", ""),
            ("# all of it", ""),
            ("x := 1 # one", "x := 1 "),
            (
                r##"split(a, "#")[0] == input.b # "c""##,
                r##"split(a, "#")[0] == input.b "##,
            ),
            (r##"a == "\"#" # b"##, r##"a == "\"#" "##),
            (r##"a == "\\" # b"##, r##"a == "\\" "##),
            (r##"a == `\`# b"##, r##"a == `\`"##),
            (r##"a == `"#` # b"##, r##"a == `"#` "##),
        ] {
            assert_eq!(code_of(line), code);
        }
    }
}

//! The tests of a bundle: every rule `test_...`, as `opa test` finds and runs them.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use regorus::{Engine, Value};
use rustix::time::{ClockId, clock_gettime};

use super::bundle::{Bundle, Module};
use super::engine;
use super::trial::is_of_word;

/// How often something is evaluated that the clock stops.
const TRIES_MAX: u32 = 10;

/// One test and how it ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    /// `data.skills.authz_test`
    pub package: String,
    /// `test_empty_input_is_denied`
    pub name: String,
    /// Where it is written.
    pub file: String,
    /// Its line there.
    pub line: usize,
    /// How it ended.
    pub outcome: TestOutcome,
    /// How long it took.
    pub took: Duration,
}

/// How a test ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TestOutcome {
    /// It is true.
    Passed,
    /// It is false or undefined.
    Failed,
    /// Its evaluation failed.
    Error(String),
    /// Its name begins with `todo_`: not run.
    Skipped,
}

impl Case {
    /// `policies/tests/a_test.rego:12: data.a.test_b failed`
    pub(super) fn failure(&self) -> Option<String> {
        let Case {
            package,
            name,
            file,
            line,
            ..
        } = self;
        match &self.outcome {
            TestOutcome::Passed | TestOutcome::Skipped => None,
            TestOutcome::Failed => Some(format!("{file}:{line}: {package}.{name} failed")),
            TestOutcome::Error(why) => Some(format!("{file}:{line}: {package}.{name}: {why}")),
        }
    }
}

/// Lines of a file that the tests reached, and those that they did not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Coverage {
    /// As in the bundle.
    pub file: String,
    /// Lines with code that was evaluated.
    pub covered: Vec<u32>,
    /// Lines with code that was not.
    pub not_covered: Vec<u32>,
}

/// Runs all tests on the interpreter: the virtual machine does not know `with`.
pub(super) fn run(bundle: &Bundle) -> Result<Vec<Case>, String> {
    let engine = with_tests(bundle)?;
    Ok(cases(bundle)
        .into_iter()
        .map(|case| evaluate(&mut engine.clone(), case))
        .collect())
}

/// The same, and which lines of the rules they reached.
pub(super) fn run_with_coverage(bundle: &Bundle) -> Result<(Vec<Case>, Vec<Coverage>), String> {
    let mut engine = with_tests(bundle)?;
    engine.set_enable_coverage(true);
    let mut lines: BTreeMap<String, (Vec<u32>, Vec<u32>)> = BTreeMap::new();
    let mut done = Vec::new();
    for case in cases(bundle) {
        done.push(evaluate(&mut engine, case));
    }
    let report = engine
        .get_coverage_report()
        .map_err(|error| error.to_string())?;
    for file in report.files {
        let entry = lines.entry(file.path).or_default();
        entry.0.extend(file.covered);
        entry.1.extend(file.not_covered);
    }
    let coverage = lines
        .into_iter()
        .filter(|(file, _)| !file.ends_with("_test.rego") && !file.contains("/tests/"))
        .map(|(file, (covered, not_covered))| Coverage {
            file,
            covered,
            not_covered,
        })
        .collect();
    Ok((done, coverage))
}

/// An interpreter with the tests beside the rules that they are about.
fn with_tests(bundle: &Bundle) -> Result<Engine, String> {
    let engine = engine::engine(bundle, true)?;
    let found = not_served(&engine, bundle)?;
    match found.is_empty() {
        true => Ok(engine),
        false => Err(found.join("\n")),
    }
}

/// Rules in files of tests that would be asked if they were served: with a rule to deny among them every test may hold, and the
/// gateway, which does not have it, allows.
fn not_served(engine: &Engine, bundle: &Bundle) -> Result<Vec<String>, String> {
    let packages = engine.get_policy_package_components();
    let packages: BTreeMap<String, String> = packages
        .map_err(|error| error.to_string())?
        .into_iter()
        .map(|it| (it.source_file, it.components.join(".")))
        .collect();
    let package_of = |module: &Module| packages.get(&module.path).map_or("", String::as_str);
    let all = bundle.modules().iter();
    let (tests, served): (Vec<_>, Vec<_>) = all.partition(|module| module.is_test());
    let own: BTreeSet<&str> = served.iter().map(|module| package_of(module)).collect();
    let mut found = Vec::new();
    for module in tests {
        let package = package_of(module);
        if !own.contains(package) && !served.iter().any(|it| asks(&it.text, package)) {
            continue;
        }
        let mut looked_at = BTreeSet::new();
        for (index, line) in module.text.lines().enumerate() {
            let head = line.trim_start();
            let name = word(head.strip_prefix("default ").unwrap_or(head));
            // Words that are no names of rules are an error to the engine.
            let is_rule = || engine.has_declared_rule_rooted_at(&module.path, name);
            if !is_test(name) && looked_at.insert(name) && is_rule().unwrap_or(false) {
                found.push(format!(
                    "{}:{}: the rule {name} of package {package} is not served, as nothing in a file whose name ends in _test.rego: put it into another file, or give the tests a package of their own (`package {package}_test`)",
                    module.path,
                    index + 1
                ));
            }
        }
    }
    Ok(found)
}

/// Whether rules speak of a package, or of any below one that it is in, by its whole name or by one that they import.
fn asks(rules: &str, package: &str) -> bool {
    let package: Vec<&str> = package.split('.').collect();
    let lines: Vec<String> = rules.lines().map(unquoted).collect();
    // What stands beside others in its line is looked at as they are.
    let is_import =
        |line: &&String| line.trim_start().starts_with("import ") && !line.contains(';');
    let (imports, code): (Vec<&String>, Vec<&String>) = lines.iter().partition(is_import);
    let mut names = vec![("data", package.as_slice())];
    names.extend(imports.iter().filter_map(|line| imported(line, &package)));
    let is_imported = names.iter().any(|(_, rest)| rest.is_empty());
    let mut places = code
        .iter()
        .flat_map(|line| names.iter().map(move |it| (line, it)));
    is_imported || places.any(|(line, (name, rest))| speaks_of(line, name, rest))
}

/// What an import calls that which a package is in, and what of the package's name comes behind that: nothing where it is the
/// package itself, or something in it.
fn imported<'a>(import: &'a str, package: &'a [&'a str]) -> Option<(&'a str, &'a [&'a str])> {
    let mut words = import.split_whitespace().skip(1);
    let mut steps = words.next()?.split('.');
    let mut name = steps.next().filter(|step| *step == "data")?;
    let mut rest = package;
    for step in steps {
        let Some((first, more)) = rest.split_first() else {
            break;
        };
        name = word(step);
        if name != *first {
            return None;
        }
        // `data.skills["custom"]`: any that is there.
        rest = if name == step { more } else { &[] };
    }
    Some((words.nth(1).unwrap_or(name), rest))
}

/// Whether a line has that name with the rest behind it, or all or any of what is below a part of that.
fn speaks_of(line: &str, name: &str, rest: &[&str]) -> bool {
    let mut places = line.match_indices(name);
    places.any(|(at, _)| {
        let mut tail = &line[at + name.len()..];
        if line[..at].ends_with(|c| c == '.' || is_of_word(c)) || tail.starts_with(is_of_word) {
            return false;
        }
        for part in rest {
            match tail.strip_prefix('.') {
                Some(more) if word(more) == *part => tail = &more[part.len()..],
                Some(_) => return false,
                None => return true,
            }
        }
        true
    })
}

/// A line without what its strings say, and without its comment.
fn unquoted(line: &str) -> String {
    let (mut code, mut end, mut is_escaped) = (String::new(), None, false);
    for c in line.chars() {
        match end {
            None if c == '#' => break,
            None => {
                end = ['"', '`'].contains(&c).then_some(c);
                code.push(c);
            }
            Some(_) if is_escaped => is_escaped = false,
            Some(quote) if c == quote => {
                end = None;
                code.push(c);
            }
            Some(quote) => is_escaped = quote == '"' && c == '\\',
        }
    }
    code
}

/// What a line begins with.
pub(super) fn word(line: &str) -> &str {
    let end = line.find(|c| !is_of_word(c)).unwrap_or(line.len());
    &line[..end]
}

fn is_test(name: &str) -> bool {
    name.starts_with("test_") || name.starts_with("todo_test_")
}

/// Finds the tests by their text: a rule's head stands at the beginning of a line.
fn cases(bundle: &Bundle) -> Vec<Case> {
    let mut found: Vec<Case> = Vec::new();
    for module in bundle.modules() {
        let mut package = String::new();
        for (index, line) in module.text.lines().enumerate() {
            if let Some(name) = line.strip_prefix("package ") {
                let name = name.split('#').next().unwrap_or_default().trim();
                package = format!("data.{name}");
            }
            let name = word(line);
            // One name may have several bodies, which are one rule.
            let is_new = |case: &Case| case.package != package || case.name != name;
            if is_test(name) && found.iter().all(is_new) {
                found.push(Case {
                    package: package.clone(),
                    outcome: match name.starts_with("todo_") {
                        true => TestOutcome::Skipped,
                        false => TestOutcome::Passed,
                    },
                    name: name.to_owned(),
                    file: module.path.clone(),
                    line: index + 1,
                    took: Duration::ZERO,
                });
            }
        }
    }
    found
}

fn evaluate(engine: &mut Engine, mut case: Case) -> Case {
    if case.outcome == TestOutcome::Skipped {
        return case;
    }
    let began = Instant::now();
    let rule = format!("{}.{}", case.package, case.name);
    let outcome = || {
        let outcome = catch_unwind(AssertUnwindSafe(|| engine.eval_rule(rule.clone())));
        match outcome {
            Ok(Ok(Value::Bool(true))) => TestOutcome::Passed,
            Ok(Ok(_)) => TestOutcome::Failed,
            Ok(Err(error)) => TestOutcome::Error(error.to_string().trim().to_owned()),
            Err(_) => TestOutcome::Error("the interpreter panicked".into()),
        }
    };
    let is_late = |outcome: &TestOutcome| matches!(outcome, TestOutcome::Error(why) if why.contains("time limit"));
    case.outcome = in_its_own_time(outcome, is_late, thread_time);
    case.took = began.elapsed();
    case
}

/// Evaluates again what the clock has stopped ([`engine::WALL_MAX`]) before it had used the processor for half of that: a busy host
/// has taken its thread away, which says nothing of a bundle. What loops is stopped at once, by what it has `used` itself.
pub(super) fn in_its_own_time<T>(
    mut evaluate: impl FnMut() -> T,
    is_late: impl Fn(&T) -> bool,
    used: impl Fn() -> Duration,
) -> T {
    let mut tries = 1;
    loop {
        let before = used();
        let outcome = evaluate();
        let own = used().saturating_sub(before);
        if !is_late(&outcome) || own >= engine::WALL_MAX / 2 || tries == TRIES_MAX {
            return outcome;
        }
        tries += 1;
    }
}

/// How long this thread has had a processor.
pub(super) fn thread_time() -> Duration {
    let used = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(used).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_host_that_is_busy_refuses_no_bundle() {
        let (tries, used) = (Cell::new(0), Cell::new(Duration::ZERO));
        // The clock stops the first `late`, each after this much work of its own.
        let evaluated = |late: u32, own: Duration| {
            tries.set(0);
            let evaluate = || {
                tries.set(tries.get() + 1);
                used.set(used.get() + own);
                tries.get() <= late
            };
            let is_late = in_its_own_time(evaluate, |is_late| *is_late, || used.get());
            (is_late, tries.get())
        };
        let little = Duration::from_millis(20);
        assert_eq!(evaluated(0, little), (false, 1));
        assert_eq!(evaluated(3, little), (false, 4));
        // Not for ever.
        assert_eq!(evaluated(u32::MAX, little), (true, TRIES_MAX));
        // What loops.
        assert_eq!(evaluated(u32::MAX, engine::WALL_MAX), (true, 1));
    }

    #[test]
    fn a_threads_own_time_goes_on_as_it_works() {
        let began = thread_time();
        while thread_time() - began < Duration::from_millis(1) {
            std::hint::spin_loop();
        }
    }
}

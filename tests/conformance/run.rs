//! Runs cases against a server and keeps the score by rows.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::answer::{
    decode, envelope, members, null_is_absent, picture, replies, run_shape, says_it_is_a_run,
};
use crate::case::{Case, Step, Suite};
use crate::client;
use crate::expect::{holds, value_at};
use crate::http::Endpoint;
use crate::own::Hosts;
use crate::published::Lacking;
use crate::request::{Vars, fill, request_body, unhex};
use crate::walk;

/// A server and what may be asked of it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Target {
    pub(crate) endpoint: Endpoint,
    /// It promises what skillgate's contract says beyond the specification.
    pub(crate) product: bool,
    /// It isolates runs.
    pub(crate) sandbox: bool,
    /// What cases leave on it may be what its users read.
    pub(crate) lasting: bool,
    /// Its data directory, when this suite started it.
    pub(crate) data_dir: Option<String>,
    /// Hosts for its runs, when this suite configured it.
    pub(crate) hosts: Option<Hosts>,
}

/// What became of one case.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) id: String,
    pub(crate) rows: Vec<String>,
    pub(crate) verdict: Verdict,
}

/// Why a case is skipped that came to the end of what it may try.
pub(crate) const UNDECIDED: &str = "is undecided: nothing stopped it as far as the case goes, and the texts name no size; \
                                   it may be that nothing would";

#[derive(Debug)]
pub(crate) enum Verdict {
    Passed,
    Skipped(&'static str),
    /// Request, answer and the expectations that failed.
    Failed(String),
}

/// Error kinds and skillgate's codes.
const KINDS: &[(&str, i64)] = &[
    ("parse_error", -32700),
    ("invalid_request", -32600),
    ("method_not_found", -32601),
    ("invalid_params", -32602),
    ("skill_not_found", -32602),
    ("version_not_found", -32602),
    ("file_not_found", -32602),
    ("blob_not_found", -32602),
    ("path_escape", -32602),
    ("cursor_invalid", -32602),
    ("skill_not_executable", -32602),
    ("language_unsupported", -32602),
    ("already_exists", -32004),
    ("too_large", -32006),
];

/// What JSON-RPC itself names. The code of every other kind is the server's own affair, in the texts too.
const NAMED: &[&str] = &[
    "parse_error",
    "invalid_request",
    "method_not_found",
    "invalid_params",
];

/// Requests in a row without an answer after which nothing more is asked: more than any step sends at once, so that a server
/// that is slow with one of them is not taken for one that is gone.
const UNANSWERED_MAX: usize = 64;

/// Why a case is skipped that there is nobody to ask for.
pub(crate) const GONE: &str =
    "was not asked: the server has left the 64 requests before it without an answer";

/// Why a case is skipped that could leave something for good in a place that everybody reads.
pub(crate) const LASTING: &str = "could leave something behind that all users of the server would read: SKILLS_LASTING=yes asks it";

/// Publishes the suite's skills, then runs the cases, four at a time.
///
/// With rows in `until_red`, it stops as soon as each of them has a failed case.
pub(crate) fn run(
    target: &Target,
    suite: &Suite,
    dir: &Path,
    cases: &[&Case],
    until_red: &[&str],
) -> Vec<Outcome> {
    let mut runner = Runner {
        target,
        dir,
        vars: first_vars(target),
        ids: AtomicU64::new(1),
        lacking: Lacking::default(),
    };
    if let Err(why) = runner.knock() {
        return vec![Outcome {
            id: "endpoint".into(),
            rows: vec!["T1".into()],
            verdict: Verdict::Failed(why),
        }];
    }
    let (published, lacking) = runner.publish_all(&suite.skills);
    runner.lacking = lacking;
    let runner = runner;
    let (alone, together): (Vec<&Case>, Vec<&Case>) = cases.iter().partition(|case| case.alone);
    let next = AtomicUsize::new(0);
    let done = Mutex::new(published);
    let outcomes = || done.lock().expect("no thread panics while it holds this");
    let enough = || !until_red.is_empty() && until_red.iter().all(|row| red(&outcomes(), row) > 0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(case) = together.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if enough() {
                        break;
                    }
                    let outcome = runner.case(case);
                    outcomes().push(outcome);
                }
            });
        }
    });
    for case in alone {
        if !enough() {
            let outcome = runner.case(case);
            outcomes().push(outcome);
        }
    }
    done.into_inner()
        .expect("no thread panics while it holds this")
}

/// How many cases of a row fail.
pub(crate) fn red(outcomes: &[Outcome], row: &str) -> usize {
    let fails =
        |o: &&Outcome| matches!(o.verdict, Verdict::Failed(_)) && o.rows.iter().any(|r| r == row);
    outcomes.iter().filter(fails).count()
}

/// skillgate's own tests ask again where an answer was late and nothing else is wrong, as where the machine has stood still for a
/// moment. Other servers have 12 s, and are asked once.
const TRIES: usize = 3;

fn is_late_alone(wrong: &[String]) -> bool {
    let is_late = |wrong: &String| wrong.starts_with("expected `took <= ");
    !wrong.is_empty() && wrong.iter().all(is_late)
}

fn first_vars(target: &Target) -> Vars {
    let since_1970 = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| d.as_nanos());
    // A server that keeps its store sees this suite many times: names must not meet those of an earlier run.
    let prefix = format!("c{:x}{:x}", since_1970 & 0xff_ffff_ffff, std::process::id());
    let mut vars = Vars::new();
    vars.insert("p".into(), prefix.into());
    vars.insert("host".into(), target.endpoint.host.clone().into());
    let port = target.endpoint.host.rsplit(':').next().unwrap_or_default();
    vars.insert("port".into(), port.into());
    vars.insert("rpc".into(), target.endpoint.path.clone().into());
    vars.insert(
        "data_dir".into(),
        target.data_dir.clone().unwrap_or_default().into(),
    );
    if let Some(hosts) = &target.hosts {
        vars.insert("granted_host".into(), hosts.granted.clone().into());
        vars.insert("refused_host".into(), hosts.refused.clone().into());
        vars.insert("unnamed_host".into(), hosts.unnamed.clone().into());
    }
    vars
}

pub(crate) struct Runner<'a> {
    pub(crate) target: &'a Target,
    dir: &'a Path,
    pub(crate) vars: Vars,
    pub(crate) ids: AtomicU64,
    /// Of the suite's skills.
    lacking: Lacking,
}

impl Runner<'_> {
    /// Is there anybody? Else every case would wait for an answer by itself.
    fn knock(&self) -> Result<(), String> {
        let endpoint = &self.target.endpoint;
        let request = r#"{"jsonrpc":"2.0","id":1,"method":"list_skills","params":{"limit":1}}"#;
        match endpoint.post(request.as_bytes()) {
            Ok(_) => Ok(()),
            Err(why) => Err(format!(
                "{} gives no HTTP answer, so no case was asked: {why}\n    request: {request}",
                endpoint.url()
            )),
        }
    }

    fn case(&self, case: &Case) -> Outcome {
        let verdict = if case.product && !self.target.product {
            Verdict::Skipped("skillgate's own promise")
        } else if case.sandbox && !self.target.sandbox {
            Verdict::Skipped("needs a sandbox: the server has none, or SKILLS_SANDBOX=no")
        } else if case.own_server && self.target.hosts.is_none() {
            Verdict::Skipped("needs a server started by the suite")
        } else if case.lasting && self.target.hosts.is_none() && !self.target.lasting {
            Verdict::Skipped(LASTING)
        } else if let Some(why) = self.lacking.of(case) {
            Verdict::Skipped(why)
        } else if self.gone() {
            Verdict::Skipped(GONE)
        } else {
            self.steps(case)
        };
        Outcome {
            id: case.id.clone(),
            rows: case.rows.clone(),
            verdict,
        }
    }

    pub(crate) fn gone(&self) -> bool {
        self.target.endpoint.unanswered() >= UNANSWERED_MAX
    }

    fn steps(&self, case: &Case) -> Verdict {
        let mut vars = self.vars.clone();
        let names_another = |value: &toml::Value| {
            let text = value.as_str().unwrap_or_default();
            let mut names = case.vars.keys();
            names.any(|name| text.contains(&format!("{{{name}}}")))
        };
        // Those that others are made of come first, whatever their names.
        let (made, plain): (Vec<_>, Vec<_>) =
            (case.vars.iter()).partition(|(_, value)| names_another(value));
        for (name, value) in plain.into_iter().chain(made) {
            let mut value: Value = serde_json::to_value(value).expect("TOML is also JSON");
            if let Some(text) = value.as_str() {
                value = fill(text, &vars, false).into();
            }
            vars.insert(name.clone(), value);
        }
        let mut decided = true;
        for (n, step) in case.step.iter().enumerate() {
            match self.step(step, &mut vars) {
                Ok(step_decided) => decided &= step_decided,
                Err(why) => {
                    return Verdict::Failed(format!("{}\n  step {}: {why}", case.about, n + 1));
                }
            }
        }
        if decided {
            Verdict::Passed
        } else {
            Verdict::Skipped(UNDECIDED)
        }
    }

    /// What comes back, with the request; of each of several that are asked at the same time.
    fn answers(&self, step: &Step, vars: &Vars) -> Result<Vec<(Value, String)>, String> {
        let times = step.times.max(1);
        if times == 1 {
            return Ok(vec![self.send(step, vars)?]);
        }
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..times)
                .map(|nth| {
                    scope.spawn(move || {
                        let mut vars = vars.clone();
                        vars.insert("nth".into(), nth.into());
                        self.send(step, &vars)
                    })
                })
                .collect();
            all.into_iter()
                .map(|one| {
                    one.join()
                        .unwrap_or_else(|_| Err("the sender panicked".into()))
                })
                .collect()
        })
    }

    /// False: what came back is allowed, and leaves the case undecided.
    pub(crate) fn step(&self, step: &Step, vars: &mut Vars) -> Result<bool, String> {
        let mut answers = self.answers(step, vars)?;
        for _ in 1..TRIES {
            let mut wrong = answers.iter().map(|(seen, _)| self.wrong(step, seen, vars));
            if !self.target.product || !wrong.any(|wrong| is_late_alone(&wrong)) {
                break;
            }
            answers = self.answers(step, vars)?;
        }
        for (seen, request) in &answers {
            let wrong = self.wrong(step, seen, vars);
            if !wrong.is_empty() {
                return Err(format!(
                    "{}\n    request: {}\n    answer: {}",
                    wrong.join("\n    "),
                    clip(request, 1500),
                    clip(&picture(seen), 2500)
                ));
            }
        }
        for path in &step.distinct {
            let mut values = BTreeSet::new();
            for (seen, _) in &answers {
                if !values.insert(value_at(path, seen)?.to_string()) {
                    return Err(format!("{path} is the same in two answers"));
                }
            }
        }
        for (name, path) in &step.save {
            let value = value_at(path, &answers[0].0)?.clone();
            vars.insert(name.clone(), value);
        }
        let undecided = !self.target.product
            && !step.undecided.is_empty()
            && (answers.iter())
                .any(|(seen, _)| self.failing(&step.undecided, seen, vars).is_empty());
        Ok(!undecided)
    }

    /// Every expectation that does not hold.
    fn wrong(&self, step: &Step, seen: &Value, vars: &Vars) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut lines = Vec::new();
        if step.call.is_some() || step.run.is_some() {
            wrong.extend(envelope(seen, self.target.product));
        } else if step.post.is_some() || step.post_hex.is_some() {
            wrong.extend(members(seen));
        }
        if self.target.product {
            wrong.extend(self.product_promises(seen));
        }
        let method = step.call.as_ref().map(|call| fill(call, vars, false));
        let runs = |reply: &&Value| match method.as_deref() {
            Some(method) => matches!(method, "execute_skill" | "run_code"),
            None => step.run.is_some() || step.post.is_some() && says_it_is_a_run(reply),
        };
        for reply in replies(seen).iter().filter(runs) {
            wrong.extend(run_shape(reply, self.target.product));
        }
        if let Some(output) = &step.output {
            lines.push("result.status == \"completed\"".to_owned());
            lines.push(format!("result.output == {output}"));
        }
        if let Some(class) = &step.failed {
            lines.push("result.status == \"failed\"".to_owned());
            let class = fill(class, vars, false);
            if class != "any" {
                let (mark, class) = class
                    .strip_prefix("product ")
                    .map_or(("", class.as_str()), |c| ("product: ", c));
                let list: Vec<&str> = class.split('|').collect();
                lines.push(format!("{mark}result.error.type in {}", json!(list)));
            }
        }
        if let Some(kind) = &step.refused {
            let kind = fill(kind, vars, false);
            let kinds: Vec<&str> = kind.split('|').collect();
            let codes: BTreeSet<i64> = kinds.iter().map(|k| code_of(k)).collect();
            let named = kinds.iter().all(|kind| NAMED.contains(kind));
            lines.push("result is absent".to_owned());
            let any = if codes.contains(&-32602) {
                "refusal"
            } else {
                "integer"
            };
            lines.push(format!("error.code is {any}"));
            let mark = if named { "" } else { "product: " };
            lines.push(format!("{mark}error.code in {}", json!(codes)));
            lines.push(format!("product: error.data.kind in {}", json!(kinds)));
        }
        lines.extend(step.expect.iter().cloned());
        wrong.extend(self.failing(&lines, seen, vars));
        if !step.any.is_empty() {
            let tries: Vec<Vec<String>> = step
                .any
                .iter()
                .map(|lines| self.failing(lines, seen, vars))
                .collect();
            if tries.iter().all(|failing| !failing.is_empty()) {
                wrong.push(format!(
                    "none of the allowed answers: {}",
                    tries.concat().join("; or: ")
                ));
            }
        }
        wrong
    }

    fn failing(&self, lines: &[String], seen: &Value, vars: &Vars) -> Vec<String> {
        let mut wrong = Vec::new();
        for line in lines {
            let line = match line.strip_prefix("product: ") {
                Some(_) if !self.target.product => continue,
                Some(line) => line,
                None => line,
            };
            let line = fill(line, vars, true);
            if let Err(why) = holds(&line, seen) {
                wrong.push(format!("expected `{}`, but {why}", clip(&line, 300)));
            }
        }
        wrong
    }

    /// True of every answer of skillgate: errors have a kind and a request id, and nothing inside leaks out.
    fn product_promises(&self, seen: &Value) -> Vec<String> {
        let mut wrong = Vec::new();
        for error in replies(seen).iter().filter_map(|reply| reply.get("error")) {
            for member in ["kind", "request_id"] {
                if error["data"][member].as_str().is_none_or(str::is_empty) {
                    wrong.push(format!("expected error.data.{member} in every error"));
                }
            }
        }
        let body = seen["body"].as_str().unwrap_or_default();
        let inside = [Some("panicked at"), self.target.data_dir.as_deref()];
        for word in inside.into_iter().flatten() {
            if body.contains(word) {
                wrong.push(format!(
                    "the answer shows {word:?}, which is the server's inside"
                ));
            }
        }
        wrong
    }

    fn send(&self, step: &Step, vars: &Vars) -> Result<(Value, String), String> {
        if step.client {
            return client::printed(&self.target.endpoint, self.dir);
        }
        if let Some(params) = &step.walk {
            return walk::to_the_end(&self.target.endpoint, &fill(params, vars, true));
        }
        let endpoint = &self.target.endpoint;
        let id = match &step.id {
            Some(id) => fill(id, vars, true),
            None => self.ids.fetch_add(1, Ordering::Relaxed).to_string(),
        };
        if let Some(body) = request_body(step, &id, vars) {
            let answer = endpoint
                .post(body.as_bytes())
                .map_err(|e| format!("{e}\n    request: {}", clip(&body, 1500)))?;
            let expected_id = (step.call.is_some() || step.run.is_some()).then_some(id.as_str());
            let mut seen = decode(&answer, expected_id);
            if !self.target.product {
                null_is_absent(&mut seen);
            }
            return Ok((seen, body));
        }
        let (answer, request) = if let Some(hex) = &step.post_hex {
            let hex = fill(hex, vars, false);
            (endpoint.post(&unhex(&hex)?)?, format!("bytes {hex}"))
        } else if let Some(path) = &step.get {
            let path = fill(path, vars, false);
            (
                endpoint.request("GET", &path, &[], b"")?,
                format!("GET {path}"),
            )
        } else if let Some(http) = &step.http {
            let path = fill(&http.path, vars, false);
            let body = fill(&http.body, vars, false);
            let headers: Vec<(String, String)> = http
                .headers
                .iter()
                .map(|(n, v)| (n.clone(), fill(v, vars, false)))
                .collect();
            let method = fill(&http.method, vars, false);
            let request = format!("{method} {path} {headers:?}\n{body}");
            (
                endpoint.request(&method, &path, &headers, body.as_bytes())?,
                request,
            )
        } else {
            let raw = fill(step.raw.as_deref().unwrap_or_default(), vars, false);
            (endpoint.raw(&raw)?, raw)
        };
        Ok((decode(&answer, None), request))
    }
}

fn code_of(kind: &str) -> i64 {
    let known = KINDS.iter().find(|(name, _)| *name == kind);
    known
        .unwrap_or_else(|| panic!("a case names the kind {kind:?}, which is not in the table"))
        .1
}

pub(crate) fn clip(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((n, _)) => format!("{}… ({} bytes)", &text[..n], text.len()),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who reads it has the answer before him and not the case's variables.
    #[test]
    fn a_line_that_does_not_hold_is_shown_with_its_values() {
        let target = Target::default();
        let mut runner = Runner {
            target: &target,
            dir: Path::new(""),
            vars: Vars::new(),
            ids: AtomicU64::new(1),
            lacking: Lacking::default(),
        };
        runner.vars.insert("p".into(), "c1".into());
        let lines = [r#"result.name == "${p}.echo""#.to_owned()];
        let seen = json!({"reply": {"result": {"name": "x"}}});
        assert_eq!(
            runner.failing(&lines, &seen, &runner.vars),
            [r#"expected `result.name == "c1.echo"`, but result.name is "x": not "c1.echo""#]
        );
    }

    #[test]
    fn only_what_is_late_is_asked_for_again() {
        let late = "expected `took <= 1500`, but took is 1700".to_owned();
        let other = "expected `result is present`, but it is not there".to_owned();
        let early = "expected `took >= 650`, but took is 3".to_owned();
        assert!(is_late_alone(std::slice::from_ref(&late)));
        for wrong in [vec![], vec![other.clone()], vec![early], vec![late, other]] {
            assert!(!is_late_alone(&wrong), "{wrong:?}");
        }
    }
}

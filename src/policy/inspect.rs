//! For those who write rules and those who ask why: trying, testing and asking a bundle outside of a gateway.

use std::borrow::Cow;
use std::path::Path;

use serde::Serialize;
use serde_json::{Value, json};
use skillgate_skill::{NetworkPattern, SecretName};

use super::bundle::{Bundle, BundleError, Files};
use super::confirm;
use super::decision::{Decision, Declared};
use super::engine::{self, Fault, PolicySet};
use super::load::{load, refused};
use super::record;
use crate::config::{Config, Confirm};

pub use super::suite::{Case, Coverage, TestOutcome};
pub use super::trial::Report;

/// A bundle that is looked at.
#[derive(Debug)]
pub struct Candidate {
    bundle: Bundle,
    set: PolicySet,
    instructions_max: u64,
    confirm: Confirm,
}

/// What a bundle says to an input.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Opinion {
    /// The call would go on.
    pub allow: bool,
    /// `{code, message, ...}` each.
    pub reasons: Vec<Value>,
    /// What a run would get, within what the skills declare.
    pub network: Vec<String>,
    /// Names of secrets.
    pub secrets: Vec<String>,
    /// The whole decision; none where there was no valid one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decision: Option<Value>,
    /// What the interpreter says, where that is something else or an error of its own. Whether a call is refused for that is
    /// `policy.confirm`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interpreter: Option<String>,
    /// The ceilings, as records have them.
    #[serde(skip)]
    limits: Value,
}

/// A rule that an allow stands on, and what it is for an input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Guard {
    /// `data.skills.authz.network_ok`
    pub rule: String,
    /// Where it is written.
    pub file: String,
    /// Its line there.
    pub line: usize,
    /// Whether it holds; none when its evaluation failed.
    pub holds: Option<bool>,
    /// Why it failed, with the place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Does with a bundle what a gateway of this configuration does before it takes one. `unsigned`: but for its signature,
/// since who writes rules checks them before they are signed.
///
/// # Errors
/// Why it would be refused.
pub fn check(path: &Path, config: &Config, unsigned: bool) -> Result<Report, BundleError> {
    let mut policy = config.policy.clone();
    path.clone_into(&mut policy.path);
    if unsigned {
        policy.keys.clear();
    }
    load(&policy, &config.plugins.state_dir, None).map(|(_, report)| report)
}

/// Runs the tests of a bundle, and says which lines they reached if that is asked for.
///
/// # Errors
/// Why they cannot be run.
pub fn test(path: &Path, with_coverage: bool) -> Result<(Vec<Case>, Vec<Coverage>), BundleError> {
    let bundle = bundle_at(path)?;
    let outcome = match with_coverage {
        true => super::suite::run_with_coverage(&bundle),
        false => super::suite::run(&bundle).map(|cases| (cases, Vec::new())),
    };
    outcome.map_err(|why| refused(&path.display().to_string(), &[why]))
}

fn bundle_at(path: &Path) -> Result<Bundle, BundleError> {
    Bundle::new(&Files::read(path)?, &path.display().to_string())
}

impl Candidate {
    /// Reads and compiles a bundle, to be asked as that configuration has it; its tests are not run.
    ///
    /// # Errors
    /// Why it cannot be compiled.
    pub fn load(path: &Path, config: &Config) -> Result<Self, BundleError> {
        let bundle = bundle_at(path)?;
        let set = PolicySet::compile(&bundle)
            .map_err(|error| refused(&path.display().to_string(), &[error.0]))?;
        Ok(Candidate {
            bundle,
            set,
            instructions_max: config.policy.instruction_budget,
            confirm: config.policy.confirm,
        })
    }

    /// Of a bundle that was read.
    #[cfg(test)]
    pub(super) fn for_tests(bundle: Bundle, instructions_max: u64, confirm: Confirm) -> Self {
        Candidate {
            set: PolicySet::compile(&bundle).unwrap(),
            bundle,
            instructions_max,
            confirm,
        }
    }

    /// As decisions name it.
    pub fn revision(&self) -> &str {
        &self.set.revision
    }

    /// sha256 over its files.
    pub fn sha256(&self) -> &str {
        &self.set.digest
    }

    /// What it says to an input document, on both engines.
    pub fn opinion(&self, input: &Value) -> Opinion {
        let first = self.decide(input);
        let second = self.set.interpret(input.clone().into());
        let second = second.and_then(|raw| read(input, &raw)).map(|(_, it)| it);
        let said = |fault: &Fault| match fault {
            Fault::Error(why) => engine::on_one_line(why),
            other => other.to_string(),
        };
        let interpreter = match (&first, &second) {
            (Ok((_, first)), Ok(second)) if first == second || !(first.allow || second.allow) => {
                None
            }
            (_, Ok(second)) => {
                let codes = second.reasons.iter().filter_map(|it| it.get("code"));
                let codes: Vec<_> = codes.map(String::as_str).collect();
                Some(match second.allow {
                    true => "another decision, which allows it".into(),
                    false => format!("it is denied ({})", codes.join(", ")),
                })
            }
            (Err(first), Err(second)) if first == second => None,
            (_, Err(second)) => Some(said(second)),
        };
        let is_refused = interpreter.is_some()
            && matches!(&first, Ok((opinion, _)) if opinion.allow)
            && confirm::comes_first(
                self.confirm,
                method_of(input),
                input.pointer("/request/args").is_some(),
            ) == Some(true);
        let opinion = match first {
            Ok(_) if is_refused => {
                let why = interpreter.clone().unwrap_or_default();
                refusal(&Fault::EngineMismatch(why))
            }
            other => given(other),
        };
        Opinion {
            interpreter,
            ..opinion
        }
    }

    /// What the virtual machine says, which decides.
    fn decided(&self, input: &Value) -> Opinion {
        given(self.decide(input))
    }

    fn decide(&self, input: &Value) -> Result<(Opinion, Decision), Fault> {
        let raw = self
            .set
            .decide(input.clone().into(), self.instructions_max)?;
        read(input, &raw)
    }

    /// Where a reason's code is written: the rules that give it.
    pub fn places(&self, code: &str) -> Vec<String> {
        let quoted = format!("\"{code}\"");
        let modules = self.bundle.modules().iter();
        modules
            .filter(|module| !module.is_test())
            .flat_map(|module| {
                let lines = module.text.lines().enumerate();
                let found = lines.filter(|(_, line)| line.contains(&quoted));
                found.map(|(index, _)| format!("{}:{}", module.path, index + 1))
            })
            .collect()
    }

    /// The rules with `default ... := false`, on the interpreter: an allow is their conjunction.
    pub fn guards(&self, input: &Value) -> Vec<Guard> {
        let Ok(mut engine) = engine::engine(&self.bundle, false) else {
            return Vec::new();
        };
        engine.set_input(input.clone().into());
        let mut guards = Vec::new();
        for module in self
            .bundle
            .modules()
            .iter()
            .filter(|module| !module.is_test())
        {
            let mut package = "";
            for (index, line) in module.text.lines().enumerate() {
                if let Some(name) = line.strip_prefix("package ") {
                    package = name.trim();
                }
                let name = line
                    .strip_prefix("default ")
                    .and_then(|rest| rest.strip_suffix(":= false"))
                    .map(str::trim);
                if let Some(name) = name {
                    let rule = format!("data.{package}.{name}");
                    let value = engine.eval_rule(rule.clone());
                    let (holds, error) = match value {
                        Ok(value) => (value.as_bool().ok().copied(), None),
                        Err(error) => (None, Some(engine::on_one_line(&error.to_string()))),
                    };
                    guards.push(Guard {
                        holds,
                        error,
                        rule,
                        file: module.path.clone(),
                        line: index + 1,
                    });
                }
            }
        }
        guards
    }
}

/// What an engine's answer to an input comes to.
fn read(input: &Value, raw: &regorus::Value) -> Result<(Opinion, Decision), Fault> {
    let decision = Decision::parse(raw)?;
    let grant = match decision.allow {
        true => decision.grant(method_of(input), &declared(input))?,
        false => Default::default(),
    };
    let opinion = Opinion {
        allow: decision.allow,
        reasons: decision.reasons_json(),
        network: grant.network,
        secrets: grant.secrets,
        decision: Some(json!(record::Json(raw))),
        interpreter: None,
        limits: json!(decision.limits),
    };
    Ok((opinion, decision))
}

fn given(decided: Result<(Opinion, Decision), Fault>) -> Opinion {
    match decided {
        Ok((opinion, _)) => opinion,
        Err(fault) => refusal(&fault),
    }
}

fn refusal(fault: &Fault) -> Opinion {
    Opinion {
        allow: false,
        reasons: vec![json!({ "code": fault.code(), "message": fault.to_string() })],
        network: Vec::new(),
        secrets: Vec::new(),
        decision: None,
        interpreter: None,
        limits: Value::Null,
    }
}

fn method_of(input: &Value) -> &str {
    input["request"]["method"].as_str().unwrap_or_default()
}

/// What the skills of an input document declare.
fn declared(input: &Value) -> Vec<Declared<'_>> {
    let texts = |list: &'_ Value, member: Option<&str>| -> Vec<String> {
        list.as_array()
            .into_iter()
            .flatten()
            .filter_map(|item| {
                member
                    .map_or(Some(item), |member| item.get(member))?
                    .as_str()
            })
            .map(str::to_owned)
            .collect()
    };
    let skill = |skill: &'_ Value| {
        let permissions = &skill["permissions"];
        (
            texts(&permissions["network"], Some("pattern")),
            texts(&permissions["secrets"], None),
        )
    };
    input["skills"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|value| {
            let (network, secrets) = skill(value);
            let network: Vec<_> = network
                .iter()
                .filter_map(|text| NetworkPattern::parse(text).ok())
                .collect();
            let secrets: Vec<_> = secrets
                .iter()
                .filter_map(|text| SecretName::parse(text).ok())
                .collect();
            Declared {
                name: value["name"].as_str().unwrap_or_default(),
                network: Cow::Owned(network),
                secrets: Cow::Owned(secrets),
            }
        })
        .collect()
}

/// Name and version of each skill that a decision was about; `(could not be read)` where that is not known.
pub fn skills(input: &Value) -> Vec<String> {
    let named = |skill: &Value| {
        let version = skill["version"].as_str().unwrap_or("(could not be read)");
        format!("{} {version}", skill["name"].as_str().unwrap_or_default())
    };
    let skills = input["skills"].as_array().into_iter().flatten();
    skills.map(named).collect()
}

/// How a recorded decision would be with another bundle.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Flip {
    /// Which.
    pub decision_id: String,
    /// Of whom and for what.
    pub method: String,
    /// The subject's id.
    pub subject: String,
    /// See [`skills`].
    pub skills: Vec<String>,
    /// As it was.
    pub was: Value,
    /// As it would be.
    pub would_be: Value,
}

/// What a replay found.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Replay {
    /// Decisions that were replayed.
    pub replayed: u64,
    /// Decisions whose record has no input (`log.level` none, or it was too large).
    pub without_input: u64,
    /// Lines that are no JSON, or are nested too deeply to be read: decisions may be among them.
    pub unreadable: u64,
    /// Replayed decisions of whose input something was erased: the candidate saw less than the gateway.
    pub erased: u64,
    /// Replayed decisions about a skill that could not be read: about its name, and nothing that it asks for.
    pub unread: u64,
    /// Calls that were allowed and would be denied.
    pub would_be_denied: u64,
    /// Calls that were denied and would be allowed.
    pub would_be_allowed: u64,
    /// Calls that would get another network or other secrets.
    pub other_grants: u64,
    /// Calls that would get the same, within other limits or under other obligations, or would show other skills.
    pub other_terms: u64,
    /// Allowed calls whose record has not the whole decision (`log.level` full): what they may show and their obligations were
    /// not compared.
    pub without_decision: u64,
    /// Each of those, as many as were asked for.
    pub flips: Vec<Flip>,
}

impl Replay {
    /// Adds one line of a log; what is no decision is passed over.
    pub fn add(&mut self, candidate: &Candidate, line: &str, flips_max: usize) {
        let Ok(record) = serde_json::from_str::<Value>(line) else {
            self.unreadable += 1;
            return;
        };
        if record["kind"] != "decision" {
            return;
        }
        let Some(input) = record.get("input").filter(|input| input.is_object()) else {
            self.without_input += 1;
            return;
        };
        self.replayed += 1;
        let is_of_input = |pointer: &Value| {
            pointer
                .as_str()
                .is_some_and(|pointer| pointer.starts_with("/input"))
        };
        if record["erased"]
            .as_array()
            .is_some_and(|all| all.iter().any(is_of_input))
        {
            self.erased += 1;
        }
        let mut skills = input["skills"].as_array().into_iter().flatten();
        if skills.any(|skill| skill["unread"] == true) {
            self.unread += 1;
        }
        let opinion = candidate.decided(input);
        let result = &record["result"];
        let was_allowed = result["allow"] == true;
        let granted = |name: &str| result["granted"].get(name).cloned().unwrap_or(json!([]));
        let same_grants = granted("network") == json!(opinion.network)
            && granted("secrets") == json!(opinion.secrets);
        let was = &result["decision"];
        let erased = record["erased"].as_array().into_iter().flatten();
        let erased: Vec<&str> = erased.filter_map(Value::as_str).collect();
        // What was masked, above or below, is not what it was.
        let is_whole = |place: &str| {
            let mut erased = erased.iter();
            !erased.any(|it| it.starts_with(place) || place.starts_with(it))
        };
        let terms = ["visible", "obligations"];
        let has = |name: &str| !was.is_null() && is_whole(&format!("/result/decision/{name}"));
        if was_allowed && opinion.allow && !terms.into_iter().all(has) {
            self.without_decision += 1;
        }
        let same_terms = || {
            let is = opinion.decision.as_ref();
            let member = |name: &str| is.is_none_or(|is| !has(name) || is[name] == was[name]);
            let has_limits = !result["limits"].is_null() && is_whole("/result/limits");
            (!has_limits || result["limits"] == opinion.limits) && terms.into_iter().all(member)
        };
        match (was_allowed, opinion.allow) {
            (true, false) => self.would_be_denied += 1,
            (false, true) => self.would_be_allowed += 1,
            (true, true) if !same_grants => self.other_grants += 1,
            (true, true) if !same_terms() => self.other_terms += 1,
            _ => return,
        }
        if self.flips.len() < flips_max {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let codes = |reasons: &[Value]| -> Value {
                reasons
                    .iter()
                    .map(|reason| reason["code"].clone())
                    .collect()
            };
            let reasons = result["reasons"].as_array().cloned().unwrap_or_default();
            self.flips.push(Flip {
                decision_id: text(&record["decision_id"]),
                method: text(&input["request"]["method"]),
                subject: text(&input["subject"]["id"]),
                skills: self::skills(input),
                was: json!({ "allow": was_allowed, "codes": codes(&reasons), "network": granted("network"), "secrets": granted("secrets"), "limits": result["limits"] }),
                would_be: json!({ "allow": opinion.allow, "codes": codes(&opinion.reasons), "network": opinion.network, "secrets": opinion.secrets, "limits": opinion.limits }),
            });
        }
    }
}

/// Finds the record of a decision by its id, or by the id of its run.
#[derive(Debug)]
pub struct Search {
    wanted: String,
    decision: Option<Value>,
    is_run: bool,
    is_late: bool,
}

impl Search {
    /// For `dec_...` or `run_...`.
    pub fn new(id: &str) -> Self {
        Search {
            wanted: id.to_owned(),
            decision: None,
            is_run: id.starts_with("run_"),
            is_late: false,
        }
    }

    /// Looks at one line of a log. A run's record comes after its decision's, so the log is read twice for a run.
    pub fn add(&mut self, line: &str) {
        // Most lines are about something else: no need to parse them.
        let may_be_resumed = self.decision.is_some() && line.contains("\"late\":");
        if !line.contains(&self.wanted) && !may_be_resumed {
            return;
        }
        let Ok(record) = serde_json::from_str::<Value>(line) else {
            return;
        };
        if self.is_run && record["kind"] == "run" && record["run_id"] == *self.wanted {
            if let Some(id) = record["decision_id"].as_str() {
                id.clone_into(&mut self.wanted);
                self.is_run = false;
            }
        } else if record["kind"] == "decision" && record["decision_id"] == *self.wanted {
            self.decision = Some(record);
        } else if record["kind"] == "log" && record["event"] == "resumed" {
            let late = record["late"].as_array().into_iter().flatten();
            let decision = self.decision.as_ref().map(|decision| &decision["sequence"]);
            self.is_late |= late.map(Some).any(|sequence| sequence == decision);
        }
    }

    /// Whether a record behind it says that the log hung and the call was refused, whatever was decided.
    pub fn is_late(&self) -> bool {
        self.is_late
    }

    /// The decision, if it is found.
    pub fn found(&self) -> Option<&Value> {
        self.decision.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::Search;

    #[test]
    fn a_decision_whose_call_was_given_up_is_found_to_be_so() {
        let log = [
            r#"{"sequence":3,"kind":"log","event":"resumed","late":[2]}"#,
            r#"{"sequence":4,"kind":"decision","decision_id":"dec_a","result":{"allow":true}}"#,
            r#"{"sequence":5,"kind":"decision","decision_id":"dec_b","input":{"late":[5]}}"#,
            r#"{"sequence":6,"kind":"run","run_id":"run_a","decision_id":"dec_a"}"#,
            r#"{"sequence":7,"kind":"log","event":"resumed","unwritten":1,"late":[4]}"#,
            r#"{"sequence":8,"kind":"log","event":"resumed","unwritten":2}"#,
        ];
        for (id, is_late) in [("dec_a", true), ("run_a", true), ("dec_b", false)] {
            let mut search = Search::new(id);
            // Twice, as for a run.
            log.iter().chain(&log).for_each(|line| search.add(line));
            assert!(search.found().is_some(), "{id}");
            assert_eq!(search.is_late(), is_late, "{id}");
        }
    }
}

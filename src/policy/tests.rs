//! The engine, the layer and the trial, with the bundled policy and with wrong ones.

mod bundles;
mod confirmed;
mod exchange;
mod layer;
mod memo;
mod narrowed;
mod nobody;
mod numbers;
mod opinions;
mod recorded;
mod silent;
mod traps;

use std::path::Path;
use std::time::SystemTime;

use super::bundle::{Bundle, Files};
use super::engine::PolicySet;
use super::*;
use crate::auth::Authenticator;

/// Instructions of a decision, as configured by default.
const BUDGET: u64 = 250_000;

/// The files of the bundled policy.
fn bundled_files() -> Files {
    Files::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("policies")).unwrap()
}

fn bundle(files: &Files) -> Bundle {
    Bundle::new(files, "policies").unwrap()
}

/// A bundle of one file, below `skills.authz`.
fn one(rules: &str) -> Files {
    let mut files = Files::default();
    let text = format!("package skills.authz\n\n{rules}\n");
    files.add("a.rego".into(), text.into_bytes()).unwrap();
    files
}

/// A policy in force, without its trial.
fn policy(files: &Files, mode: PolicyMode, confirm: Confirm) -> Policy {
    in_force(prepared(files, mode, confirm))
}

fn in_force(prepared: Prepared) -> Policy {
    let sandbox = Sandbox {
        plugin: "process".into(),
    };
    Policy::new(prepared, &sandbox, Audit::off())
}

/// One whose rules see the arguments of that skill.
fn seeing_args(skill: &str, rules: &str, confirm: Confirm) -> Policy {
    let mut prepared = prepared(&one(rules), PolicyMode::Enforce, confirm);
    prepared.active.include_args = vec![skill.into()];
    in_force(prepared)
}

fn prepared(files: &Files, mode: PolicyMode, confirm: Confirm) -> Prepared {
    let set = PolicySet::compile(&bundle(files)).unwrap();
    Prepared::of(Active {
        generation: 0,
        mode,
        confirm,
        exposure: Exposure::Full,
        include_args: Vec::new(),
        instructions_max: BUDGET,
        memo: Memo::new(set.may_see_id),
        set: Some(Arc::new(set)),
        since: Instant::now(),
        mismatches: Arc::default(),
    })
}

fn enforced(rules: &str) -> Policy {
    policy(&one(rules), PolicyMode::Enforce, Confirm::Off)
}

fn skill(name: &str, permissions: &str) -> Arc<Skill> {
    let manifest = format!(
        "name = {name:?}\nversion = \"0.1.0\"\ndescription = \"x\"\nkind = \"action\"\n[runtime]\nlanguage = \"python\"\nentrypoint = \"code/main.py\"\nexport = \"main\"\n[permissions]\n{permissions}\n"
    );
    Arc::new(Skill::unstored(&manifest, true).unwrap())
}

/// The specification's example.
fn salesforce() -> Arc<Skill> {
    skill(
        "salesforce.leads.sync",
        "network = [\"https://*.salesforce.com\"]\nsecrets = [\"SALESFORCE_API_KEY\"]",
    )
}

fn facts(method: &'static str, skills: Vec<Arc<Skill>>) -> Facts {
    let mut facts = Facts::new(method, Authenticator::off().local(), "1");
    facts.skills = skills;
    facts
}

fn codes(denied: &Denied) -> Vec<&str> {
    denied
        .reasons
        .iter()
        .filter_map(|reason| reason["code"].as_str())
        .collect()
}

/// The codes of a denial, and whether to try again.
async fn fault(policy: &Policy, facts: &Facts) -> (String, bool) {
    let denied = policy.decide(facts).await.unwrap_err();
    (codes(&denied).join(","), denied.retryable)
}

//! One decision, from the resolved facts of a call to its permit, without HTTP.
//!
//!     cargo bench --bench policy

#![allow(clippy::unwrap_used, reason = "a measurement that fails says so")]
#![allow(clippy::print_stdout, reason = "figures are what it is for")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::convert::Infallible;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Map, Value, json};
use skillgate::audit::Audit;
use skillgate::auth::Authenticator;
use skillgate::catalog::Skill;
use skillgate::config::{Config, Flags, Sources};
use skillgate::policy::{self, Decidable, Denied, Facts, Permitted, Policy, PolicyLayer, Sandbox};
use support::quantile;
use tower::{Layer as _, Service as _, service_fn};

/// As the program has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Decisions of each kind.
const DECISIONS: usize = 20_000;
/// Before that, unmeasured.
const WARM_UP: usize = 2_000;

struct Asked(Arc<Facts>);

impl Decidable for Asked {
    fn facts(&self) -> &Facts {
        &self.0
    }
}

#[derive(Debug)]
struct Refused;

impl From<Denied> for Refused {
    fn from(denied: Denied) -> Self {
        panic!("denied: {denied}");
    }
}

impl From<Infallible> for Refused {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

fn main() -> ExitCode {
    // The trial of a policy is this program again.
    if std::env::args().nth(1).as_deref() == Some("policy") {
        return skillgate::cli::main();
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .build()
        .unwrap();
    println!(
        "| method | entries | asked anew, p50 µs | p99 µs | asked again, p50 µs | p99 µs |\n|---|---|---|---|---|---|"
    );
    for entries in [1_000, 100_000] {
        let dir = tempfile::tempdir().unwrap();
        let policy = policy_with(dir.path(), entries);
        for (method, facts) in calls() {
            let anew = runtime.block_on(measure(&policy, &facts, true));
            let again = runtime.block_on(measure(&policy, &facts, false));
            println!(
                "| {method} | {entries} | {:.1} | {:.1} | {:.1} | {:.1} |",
                quantile(&anew, 0.5),
                quantile(&anew, 0.99),
                quantile(&again, 0.5),
                quantile(&again, 0.99)
            );
        }
    }
    ExitCode::SUCCESS
}

/// A call that differs from the one before is put to the rules, and one that does not is remembered for a second.
async fn measure(policy: &Policy, facts: &Facts, differ: bool) -> Vec<f64> {
    let inner = service_fn(async |permitted: Permitted<Asked>| {
        std::hint::black_box(permitted.into_parts());
        Ok::<(), Refused>(())
    });
    let mut gate = PolicyLayer(policy.clone()).layer(inner);
    let mut took = Vec::with_capacity(DECISIONS);
    for round in 0..WARM_UP + DECISIONS {
        let mut facts = facts.clone();
        if differ {
            facts = facts.with("round", round);
        }
        let asked = Asked(Arc::new(facts));
        let began = Instant::now();
        gate.call(asked).await.unwrap();
        if round >= WARM_UP {
            took.push(began.elapsed().as_secs_f64() * 1e6);
        }
    }
    took.sort_by(f64::total_cmp);
    took
}

/// The bundled policy, with so many hosts and secrets in its data, granting the example skill what it declares.
fn policy_with(dir: &Path, entries: usize) -> Policy {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("policies");
    copy(&source, &dir.join("policies"));
    let file = dir.join("policies/skills/config/data.json");
    let mut data: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let (mut hosts, mut secrets) = (Map::new(), Map::new());
    for n in 0..entries / 2 {
        hosts.insert(
            format!("host{n}.example.com"),
            json!({ "exact": true, "subdomains": true, "schemes": ["https"], "ports": [443], "roles": ["coder"], "skills": [format!("team{n}")] }),
        );
        secrets.insert(
            format!("TEAM_{n}_KEY"),
            json!({ "roles": ["coder"], "skills": [format!("team{n}")], "hosts": [format!("host{n}.example.com")], "delivery": "env" }),
        );
    }
    for (name, more) in [("/network/allow", hosts), ("/secrets", secrets)] {
        data.pointer_mut(name)
            .unwrap()
            .as_object_mut()
            .unwrap()
            .extend(more);
    }
    for pointer in [
        "/network/allow/salesforce.com/roles",
        "/secrets/SALESFORCE_API_KEY/roles",
    ] {
        *data.pointer_mut(pointer).unwrap() = json!(["admin"]);
    }
    // Strict, as for everybody but the local administrator.
    data["roles"]["admin"]
        .as_object_mut()
        .unwrap()
        .remove("attenuate");
    fs::write(&file, data.to_string()).unwrap();
    // The tests are about the bundled data.
    fs::remove_dir_all(dir.join("policies/tests")).unwrap();
    let config = dir.join("skillgate.toml");
    let text = format!(
        "[policy]\npath = {:?}\n[plugins]\nstate_dir = {:?}\n",
        dir.join("policies"),
        dir.join("state")
    );
    fs::write(&config, text).unwrap();
    let flags = Flags {
        config: Some(config),
        ..Flags::default()
    };
    let config = Config::load(&Sources::of_process(), &flags).unwrap();
    let sandbox = Sandbox {
        plugin: "process".into(),
    };
    Policy::new(policy::prepare(&config).unwrap(), &sandbox, Audit::off())
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// One call of each kind, as the methods describe it.
fn calls() -> Vec<(&'static str, Facts)> {
    let manifest = r#"
name = "salesforce.leads.sync"
version = "0.1.0"
description = "Sync leads"
kind = "action"
[runtime]
language = "python"
entrypoint = "code/main.py"
export = "main"
[permissions]
network = ["https://*.salesforce.com", "https://login.salesforce.com"]
secrets = ["SALESFORCE_API_KEY"]
"#;
    let skill = Arc::new(Skill::unstored(manifest, true).unwrap());
    let of = |method| Facts::new(method, Authenticator::off().local(), "42");
    let list = of("list_skills")
        .with("namespace", "salesforce")
        .with("detail", "names")
        .with("limit", 50);
    let mut describe = of("describe_skill").with("detail", "summary");
    describe.skills = vec![skill.clone()];
    let mut read = of("read_skill_file").with("path", "SKILL.md");
    read.skills = vec![skill.clone()];
    let guide = of("load_skills_protocol_guide");
    let mut create = of("create_blob").with("kind", "text/csv");
    create.blob_bytes = Some(200_000);
    let mut execute = of("execute_skill")
        .with("version_pinned", true)
        .with("arg_keys", json!(["env", "sheet_blob"]))
        .with("arg_bytes", 54);
    execute.skills = vec![skill];
    execute.timeout_ms = Some(300_000);
    let run = of("run_code")
        .with("language", "python")
        .with("code_sha256", "9b74c9897bac770ffc029102a200c5de")
        .with("code_bytes", 412)
        .with("entrypoint", "main");
    vec![
        ("list_skills", list),
        ("describe_skill", describe),
        ("read_skill_file", read),
        ("load_skills_protocol_guide", guide),
        ("create_blob", create),
        ("execute_skill", execute),
        ("run_code", run),
    ]
}

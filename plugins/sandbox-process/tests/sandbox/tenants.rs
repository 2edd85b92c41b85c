//! Two tenants by turns: nothing random is ever drawn twice, and nothing of one is found by the other.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::process::Command;

use serde::Deserialize;
use serde_json::{Value, json};
use skillgate_plugin_sdk::blocking::Sandbox;
use skillgate_plugin_sdk::model::{RunRequest, Source};

use crate::basics::{mount, open_to_all};
use crate::support::*;
use crate::tools;

/// Runs in each mode, and with `SKILLGATE_TEST_FULL`.
const RUNS: usize = 100;
const RUNS_FULL: usize = 10_000;

/// What a run says.
#[derive(Deserialize)]
struct Said {
    draws: BTreeMap<String, Value>,
    again: BTreeMap<String, Value>,
    foreign: BTreeMap<String, String>,
}

/// Marks of one run: one for each place that something of it may be in.
struct Marks(Vec<String>);

impl Marks {
    fn new(number: usize) -> Self {
        let mark = |place: usize| {
            format!(
                "CNRY-{:016x}",
                number * 16 + place + (std::process::id() as usize) * (1 << 32)
            )
        };
        Marks((0..5).map(mark).collect())
    }

    /// A run that has them in its code, arguments, environment, secret and what it has mounted at `targets`, each from its own
    /// place in `directory`.
    fn request(&self, tenant: &str, directory: &Path, targets: &[&str]) -> (RunRequest, Services) {
        let [code, argument, variable, secret, content] = &self.0[..] else {
            panic!("five");
        };
        let mut request = request(&format!("# {code}\n{}", include_str!("tenants.py")));
        request.tenant = tenant.into();
        request.args_json = json!({ "mine": self.0, "argument": argument })
            .to_string()
            .into_bytes();
        request.env = vec![("VARIABLE".into(), variable.clone())];
        request.secrets = vec!["SECRET".into()];
        for target in targets {
            let place = directory.join(target.replace('/', "-"));
            if !place.exists() {
                std::fs::create_dir(&place).unwrap();
                open_to_all(&place);
            }
            std::fs::write(place.join("content"), content).unwrap();
            let source = Source::Path(place.display().to_string());
            request.mounts.push(mount(target, source));
        }
        let services = Services {
            secrets: HashMap::from([("SECRET".into(), secret.clone())]),
            ..Services::default()
        };
        (request, services)
    }
}

fn said(instance: &Instance, request: RunRequest, services: &Services) -> Said {
    let result = instance.plugin.run(request, services).unwrap();
    assert!(result.completed, "{result:?}\n{}", services.text());
    serde_json::from_slice(&result.output_json).unwrap()
}

/// Most runs are of one kind, so that children wait with its mounts while the other tenant's run. Blobs are in both's.
fn turn(number: usize) -> (&'static str, &'static [&'static str]) {
    match number % 12 {
        0 => ("left", &["/skills/left", "/blobs/given"]),
        3 | 7 | 11 => ("right", &["/skills/right", "/blobs/given"]),
        _ => ("left", &["/skills/left"]),
    }
}

fn alternate(mode: &Mode, runs: usize) {
    let instance = Instance::with(&mode.config, None);
    let directory = tempfile::tempdir().unwrap();
    open_to_all(directory.path());
    let mut seen: HashSet<(String, String)> = HashSet::new();
    for number in 0..runs {
        let (tenant, targets) = turn(number);
        let (request, services) = Marks::new(number).request(tenant, directory.path(), targets);
        let said = said(&instance, request, &services);
        assert_eq!(
            said.foreign,
            BTreeMap::new(),
            "{}: run {number} has found another's marks",
            mode.name
        );
        for (source, drawn) in said.draws.into_iter().chain(said.again) {
            let new = seen.insert((source.clone(), drawn.to_string()));
            assert!(
                new,
                "{}: run {number} has drawn {drawn} from {source} once more",
                mode.name
            );
        }
    }
    let furnished = metric(&instance, "runs_furnished");
    assert_eq!(furnished > 0, mode.name == "pool", "{}", mode.name);
    println!(
        "{}: {runs} runs, {furnished} with mounts that had waited for them, {} values, each once",
        mode.name,
        seen.len()
    );
}

#[test]
fn nothing_is_drawn_twice_and_nothing_is_found() {
    for mode in modes() {
        alternate(&mode, if full() { RUNS_FULL } else { RUNS });
    }
}

/// The check itself: a mark of another in each place where one might be left is seen.
#[test]
fn a_mark_that_is_there_is_found() {
    let instance = Instance::new();
    let directory = tempfile::tempdir().unwrap();
    open_to_all(directory.path());
    let targets = ["/skills/left", "/blobs/given"];
    let (mut request, services) = Marks::new(1).request("left", directory.path(), &targets);
    // It knows of none of its own, so all that it has are another's.
    request.args_json = json!({ "mine": ["CNRY-"], "argument": "CNRY-00000000000000aa" })
        .to_string()
        .into_bytes();
    let found = said(&instance, request, &services).foreign;
    let in_place = |part: &str| found.keys().any(|place| place.contains(part));
    for place in [
        "environment",
        "/skills/left/content",
        "/blobs/given/content",
        "/tmp/run_code.py",
    ] {
        assert!(in_place(place), "{place}: {found:?}");
    }
    // The heap is called so where a zygote's has been put into a file.
    assert!(
        in_place("[heap]") || in_place("skillgate-memory"),
        "{found:?}"
    );
}

/// In a container the gateway is often process 1, and then the pids of runs and of what they are forked from can be the same
/// number: libraries that take a changed pid for the sign of a fork see none.
#[test]
fn the_same_where_the_gateway_is_process_1() {
    if !is_root() {
        return tools::left_out("an ordinary user makes no pid namespace to be process 1 of");
    }
    let text = succeeds(
        Command::new("unshare")
            .args(["--pid", "--fork", "--mount-proc"])
            .arg(std::env::current_exe().unwrap())
            .args([
                "--ignored",
                "--exact",
                "tenants::as_process_1",
                "--nocapture",
            ]),
    );
    assert!(text.contains("each once"), "{text}");
    println!(
        "{}",
        text.lines()
            .filter(|line| line.contains("each once"))
            .collect::<Vec<_>>()
            .join("\n")
    );
}

#[test]
#[ignore = "what `the_same_where_the_gateway_is_process_1` runs"]
fn as_process_1() {
    assert_eq!(std::process::id(), 1);
    for mode in modes() {
        alternate(&mode, RUNS);
    }
}

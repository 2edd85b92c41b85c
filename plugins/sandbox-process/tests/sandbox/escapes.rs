//! Attempts to get out of a run, as data: `escapes/*.py` has them with what each is after and which guards stop it.
//!
//! With everything in place none succeeds, in every mode. With guards left out exactly those succeed whose every guard is
//! among them, so each name in the data is tried: that it stops the attempt by itself, and that nothing else is needed.
//! `SKILLGATE_TEST_FULL=1` leaves out every combination that the data names instead of one guard at a time.

mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde::Deserialize;
use serde_json::json;
use skillgate_plugin_sdk::blocking::Sandbox;
use skillgate_sandbox_process::Guard;

use crate::guards::removable;
use crate::support::*;
use crate::tools;
use world::World;

/// The least that there must be.
const ATTEMPTS_MIN: usize = 150;

/// What the data says of an attempt.
#[derive(Debug, Deserialize)]
struct About {
    kind: String,
    covers: Vec<String>,
    sure: bool,
    known: Option<String>,
    /// This host's may not do yet what is said of it, see [`has_old_landlock`].
    #[serde(skip)]
    landlock_is_old: bool,
}

impl About {
    /// Whether it succeeds with these left out; `None`: that depends on the kernel of this host.
    fn succeeds(&self, mode: &Mode, without: &[Guard]) -> Option<bool> {
        if self.known.is_some() {
            return Some(true);
        }
        let left_out: Vec<String> = without.iter().map(|guard| format!("{guard:?}")).collect();
        let holds = |cover: &&String| match cover.as_str() {
            "Execution" => !mode.forks,
            _ => !left_out.contains(*cover),
        };
        let held_by: Vec<&str> = (self.covers.iter().filter(holds))
            .map(String::as_str)
            .collect();
        match held_by[..] {
            [] if self.covers.is_empty() => Some(false),
            [] => self.sure.then_some(true),
            ["Landlock"] if self.landlock_is_old => None,
            _ => Some(false),
        }
    }

    /// The guards among its covers.
    fn guards(&self) -> BTreeSet<Guard> {
        let named = |guard: &Guard| self.covers.contains(&format!("{guard:?}"));
        Guard::ALL.into_iter().filter(named).collect()
    }
}

type Attempts = BTreeMap<String, About>;
/// What came of each attempt: "got", "stopped" or "broken", and the words for it.
type Outcomes = BTreeMap<String, (String, String)>;

const PROGRAM: &str = concat!(
    include_str!("escapes/harness.py"),
    include_str!("escapes/calls.py"),
    include_str!("escapes/files.py"),
    include_str!("escapes/others.py"),
);

/// Where what a run is given is mounted. Children wait with skills alone.
const MOUNTED: &[&str] = &["/skills/given", "/blobs/given"];
const WAITING: &[&str] = &["/skills/given"];

fn run<T: serde::de::DeserializeOwned>(
    instance: &Instance,
    world: &World,
    mounted: &[&str],
    args: &serde_json::Value,
) -> T {
    let mut request = request(PROGRAM);
    request.args_json = args.to_string().into_bytes();
    request.mounts = world.mounts(mounted);
    request.limits.output_bytes = 1 << 20;
    request.limits.wall_ms = 120_000;
    let (result, services) = instance.run(request);
    returned(&result, &services)
}

/// What there is to attempt.
fn attempts() -> Attempts {
    let args = json!({ "list": true });
    let mut attempts: Attempts = run(&Instance::new(), &World::new(), MOUNTED, &args);
    let landlock_is_old = has_old_landlock();
    for about in attempts.values_mut() {
        about.landlock_is_old = landlock_is_old;
    }
    attempts
}

/// Runs that want the skill alone, until every child that waits has it, as in a pool of fewer than four.
fn make_usual(instance: &Instance, world: &World) {
    eventually("children wait with the skill", || {
        let mut request = request("def main(args): return 1\n");
        request.mounts = world.mounts(WAITING);
        let (result, services) = instance.run(request);
        assert_eq!(returned::<u32>(&result, &services), 1);
        // As they are at one time: another child may come between two looks.
        let [idle, furnished] = metrics(instance, ["pool_idle", "pool_furnished"]);
        idle > 0 && idle == furnished
    });
}

/// Every attempt once, beside a neighbour. The second: what the neighbour says has happened to it.
fn attempt_all(
    mode: &Mode,
    without: &[Guard],
    world: &World,
    mounted: &[&str],
) -> (Outcomes, String) {
    let mut config: serde_json::Value = serde_json::from_str(&mode.config).unwrap();
    let waits = mounted == WAITING;
    if waits {
        config["pool_max"] = 3.into();
    }
    let instance = Instance::without(&config.to_string(), without);
    let services = Services::default();
    let neighbour = world.neighbour();
    std::thread::scope(|scope| {
        let neighbour = scope.spawn(|| instance.plugin.run(neighbour, &services).unwrap());
        eventually("the neighbour runs", || services.text().contains("here"));
        let launcher = instance.plugin.launcher_pid().unwrap();
        let mut facts = world.facts.clone();
        facts["launcher_pid"] = launcher.into();
        facts["neighbour_pid"] = pid_of_neighbour(launcher).into();
        facts["neighbour_abstract"] = world.neighbour_name().into();
        facts["state"] = instance.state.path().join("state").to_string_lossy().into();
        facts["pid_namespace"] = (!without.contains(&Guard::PidNamespace)).into();
        let args = json!({ "world": facts });
        if waits {
            make_usual(&instance, world);
        }
        let before = metric(&instance, "runs_furnished");
        let outcomes = run(&instance, world, mounted, &args);
        let furnished = metric(&instance, "runs_furnished") - before;
        assert_eq!(furnished, u64::from(waits), "{}, {mounted:?}", mode.name);
        world.go();
        let said = neighbour.join().unwrap();
        let said = String::from_utf8(said.output_json).unwrap();
        (outcomes, said)
    })
}

/// The neighbour's program as root sees it; any process of a run to others.
fn pid_of_neighbour(launcher: u32) -> u32 {
    let pids = descendants(launcher);
    let is_it = |pid: &&u32| {
        std::path::Path::new(&format!("/proc/{pid}/root/workspace/neighbour")).exists()
    };
    *pids.iter().find(is_it).or(pids.last()).unwrap()
}

/// Where an outcome is not what the data says. Several guards left out are judged by the attempts that they are named for:
/// one who is root in more than one way gets at other things too.
fn wrong(mode: &Mode, without: &[Guard], attempts: &Attempts, outcomes: &Outcomes) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, (word, detail)) in outcomes {
        let about = &attempts[name];
        if without.len() > 1 && !without.iter().all(|guard| about.guards().contains(guard)) {
            continue;
        }
        let fits = match (word.as_str(), about.succeeds(mode, without)) {
            ("got" | "stopped", None) => true,
            ("got", Some(open)) => open,
            ("stopped", Some(open)) => !open,
            _ => false,
        };
        if !fits {
            wrong.push(format!(
                "{} without {without:?}: {name:?} ({}) {word} {detail:?}; stopped by {:?}",
                mode.name, about.kind, about.covers
            ));
        }
    }
    wrong
}

#[test]
fn nothing_gets_out() {
    let attempts = attempts();
    let modes = modes();
    let waiting = modes.iter().filter(|mode| mode.name == "pool");
    let all = modes.iter().map(|mode| (mode, MOUNTED));
    for (mode, mounted) in all.chain(waiting.map(|mode| (mode, WAITING))) {
        let world = World::new();
        let (outcomes, neighbour) = attempt_all(mode, &[], &world, mounted);
        assert!(outcomes.len() >= ATTEMPTS_MIN && outcomes.len() == attempts.len());
        let wrong = wrong(mode, &[], &attempts, &outcomes);
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert_eq!(
            neighbour, "[[],true]",
            "{}: nothing happened to it",
            mode.name
        );
        assert_eq!(world.changes(), Vec::<String>::new(), "{}", mode.name);
        assert_eq!(
            world.visits(),
            0,
            "{}: nobody came to the process outside",
            mode.name
        );
        let known = attempts
            .values()
            .filter(|about| about.known.is_some())
            .count();
        println!(
            "{}, with {}: {} attempts, {known} of them known to succeed",
            mode.name,
            mounted.join(" and "),
            outcomes.len()
        );
    }
}

/// What to leave out: nothing but one guard, or all that the data names together and all of these but one.
fn combinations(attempts: &Attempts) -> BTreeSet<Vec<Guard>> {
    let mut sets: BTreeSet<Vec<Guard>> = removable().into_iter().map(|guard| vec![guard]).collect();
    if full() {
        let named = attempts.values().map(About::guards);
        for guards in named.filter(|guards| guards.len() > 1) {
            let but = |kept: &Guard| {
                guards
                    .iter()
                    .copied()
                    .filter(|guard| guard != kept)
                    .collect()
            };
            sets.extend(guards.iter().map(but));
            sets.insert(guards.into_iter().collect());
        }
    }
    sets
}

/// Of runs with an interpreter of their own: a forked one is under more rules of the kernel's (its memory is closed by
/// the change of user alone) and has executed nothing (rights that it had it would keep).
#[test]
fn each_guard_stops_what_it_is_said_to_stop() {
    if !is_root() {
        // What succeeds then depends on what else an ordinary user may do on this host; `nothing_gets_out` is for both.
        return tools::left_out("each guard by itself: it takes root");
    }
    let mode = &fresh();
    let attempts = attempts();
    let sets = combinations(&attempts);
    let mut mistakes = Vec::new();
    let mut alone: BTreeMap<String, Vec<Guard>> = BTreeMap::new();
    for without in &sets {
        let (mut outcomes, _) = attempt_all(mode, without, &World::new(), MOUNTED);
        // That something is open is shown by one time that it works: on a busy host another can come too late.
        let closed = |(name, (word, _)): (&String, &(String, String))| {
            word == "stopped" && attempts[name].succeeds(mode, without) == Some(true)
        };
        if outcomes.iter().any(closed) {
            let (again, _) = attempt_all(mode, without, &World::new(), MOUNTED);
            outcomes.extend(again.into_iter().filter(|(_, (word, _))| word != "stopped"));
        }
        mistakes.extend(wrong(mode, without, &attempts, &outcomes));
        if let [guard] = without[..] {
            for (name, _) in outcomes.into_iter().filter(|(_, (word, _))| word == "got") {
                alone.entry(name).or_default().push(guard);
            }
        }
    }
    assert!(
        mistakes.is_empty(),
        "{} mistakes:\n{}",
        mistakes.len(),
        mistakes.join("\n")
    );
    println!(
        "{}, {} launchers without something\n{}",
        mode.name,
        sets.len(),
        table(&attempts, &alone)
    );
}

/// Which layers cover which attempt. A cover that is alone is in capitals: without it the attempt was seen to succeed.
fn table(attempts: &Attempts, alone: &BTreeMap<String, Vec<Guard>>) -> String {
    let mut text =
        String::from("| attempt | after | stopped by, each by itself |\n|---|---|---|\n");
    for (name, about) in attempts {
        let covers: Vec<String> = about
            .covers
            .iter()
            .map(|cover| {
                let seen = alone
                    .get(name)
                    .is_some_and(|guards| guards.iter().any(|g| format!("{g:?}") == *cover));
                if seen {
                    cover.to_uppercase()
                } else {
                    cover.clone()
                }
            })
            .collect();
        let covers = about
            .known
            .clone()
            .map_or(covers.join(", "), |known| format!("nothing: {known}"));
        let _ = writeln!(text, "| {name} | {} | {covers} |", about.kind);
    }
    for guard in Guard::ALL {
        let stops = attempts
            .values()
            .filter(|about| about.guards().contains(&guard))
            .count();
        let _ = writeln!(text, "{guard:?}: stops {stops}");
    }
    text
}

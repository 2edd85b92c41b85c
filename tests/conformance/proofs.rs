//! That the suite can fail, and that it does not where a server is right: it is shown servers of its own.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::case::{Case, Suite};
use crate::gateway::TempDir;
use crate::http::Endpoint;
use crate::run::{Outcome, Target, Verdict};
use crate::{ONE_AT_A_TIME, chosen, failure, here, published, report, rows, run, suite, toy};

/// A suite that cannot fail proves nothing: each wrong server must turn the rows red that it breaks,
/// and the same server without its fault must leave them green.
#[test]
fn the_suite_fails_on_a_wrong_server() {
    let _turn = ONE_AT_A_TIME.lock();
    let suite = suite();
    let data = TempDir::new("skillgate-toy").expect("a temporary directory can be made");
    let right = toy::start(&here(), &data.0, "none").unwrap_or_else(|why| panic!("{why}"));
    let all: Vec<&Case> = suite.cases.iter().collect();
    let outcomes = run::run(&toy::target(&right), &suite, &here(), &all, &[]);
    let failed: Vec<String> = outcomes.iter().filter_map(failure).collect();
    assert!(
        failed.is_empty(),
        "the toy server is right, but:\n\n{}",
        failed.join("\n\n")
    );
    // What is asked of skillgate alone is not red for another reason than the fault.
    let by_itself = |case: &&Case| {
        let mut faults = toy::FAULTS.iter().filter(|fault| fault.product);
        faults.any(|fault| fault.case == Some(case.id.as_str()))
    };
    let products: Vec<&Case> = suite.cases.iter().filter(by_itself).collect();
    let mut target = toy::target(&right);
    target.product = true;
    let outcomes = run::run(&target, &suite, &here(), &products, &[]);
    let failed: Vec<String> = outcomes.iter().filter_map(failure).collect();
    assert!(
        failed.is_empty(),
        "the toy server is right, but asked as skillgate is:\n\n{}",
        failed.join("\n\n")
    );
    drop(right);

    let broken: BTreeSet<&str> = toy::FAULTS
        .iter()
        .flat_map(|fault| fault.rows)
        .copied()
        .collect();
    let unbroken: Vec<String> = rows()
        .into_iter()
        .map(|(id, _)| id)
        .filter(|id| !broken.contains(id.as_str()))
        .collect();
    assert!(
        unbroken.is_empty(),
        "no wrong server breaks the rows {unbroken:?}"
    );

    let next = AtomicUsize::new(0);
    let missed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while let Some(fault) = toy::FAULTS.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let green = still_green(&suite, &data.0, fault);
                    missed
                        .lock()
                        .expect("no thread panics while it holds this")
                        .extend(green);
                }
            });
        }
    });
    let missed = missed
        .into_inner()
        .expect("no thread panics while it holds this");
    assert!(
        missed.is_empty(),
        "the suite does not notice:\n{}",
        missed.join("\n")
    );
}

/// Where there is no server, nobody waits for each case by itself, and what is said is why.
#[test]
fn a_server_that_gives_no_answer_is_asked_once() {
    let suite = suite();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let there = listener.local_addr().expect("it has an address");
    // A port that nobody listens on, and that nobody gets meanwhile: that of a connection.
    let taken = std::net::TcpStream::connect(there).expect("one listens");
    let url = format!(
        "http://{}/rpc",
        taken.local_addr().expect("it has an address")
    );
    let target = Target {
        endpoint: Endpoint::parse(&url).expect("this is an address"),
        ..Target::default()
    };
    let all: Vec<&Case> = suite.cases.iter().collect();
    let outcomes = run::run(&target, &suite, &here(), &all, &[]);
    assert_eq!(outcomes.len(), 1);
    let why = failure(&outcomes[0]).expect("there is no server");
    let begins = format!("endpoint [T1] {url} gives no HTTP answer, so no case was asked: cannot");
    assert!(why.starts_with(&begins), "{why}");
}

/// One that goes away in the middle costs the cases that it was asked, and the others are not asked.
#[test]
fn a_server_that_goes_away_is_left() {
    let suite = suite();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let url = format!(
        "http://{}/rpc",
        listener.local_addr().expect("it has an address")
    );
    let answered = std::thread::spawn(move || {
        use std::io::{Read, Write};
        let (mut stream, _) = listener.accept().expect("somebody knocks");
        let mut request = [0u8; 4096];
        let read = stream.read(&mut request).expect("it is a request");
        assert!(read > 0);
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
        stream.write_all(answer).expect("it is read");
    });
    let target = Target {
        endpoint: Endpoint::parse(&url).expect("this is an address"),
        ..Target::default()
    };
    // Each asks nobody but the server; all of them would be asked, and none could be.
    let all = chosen(&suite, "codes.").unwrap_or_else(|why| panic!("{why}"));
    let outcomes = run::run(&target, &suite, &here(), &all, &[]);
    answered.join().expect("it answers once");
    let failed = outcomes.iter().filter_map(failure).count();
    let not_asked = |o: &&Outcome| matches!(o.verdict, Verdict::Skipped(run::GONE));
    let not_asked = outcomes.iter().filter(not_asked).count();
    assert!((60..100).contains(&failed), "{failed} are red");
    assert!(not_asked > 30, "{not_asked} of {}", outcomes.len());
    assert!(report(&outcomes).contains("was not asked: the server has left the 64 requests"));
}

/// And a suite that takes our ways for the protocol's calls servers wrong that are not.
#[test]
fn the_suite_passes_servers_that_are_right_in_other_ways() {
    let _turn = ONE_AT_A_TIME.lock();
    let suite = suite();
    let data = TempDir::new("skillgate-toy").expect("a temporary directory can be made");
    for way in toy::WAYS {
        let server = toy::start(&here(), &data.0, way.name).unwrap_or_else(|why| panic!("{why}"));
        let mut target = toy::target(&server);
        target.sandbox = way.sandbox;
        for time in 1..=way.times {
            stays_green(&suite, &target, way, time);
        }
    }
}

/// One run of the suite against a server that is right in its own way, the first or a later one.
fn stays_green(suite: &Suite, target: &Target, way: &toy::Way, time: usize) {
    let sees = |case: &&Case| way.cases.iter().any(|id| case.id.starts_with(id));
    let cases: Vec<&Case> = suite.cases.iter().filter(sees).collect();
    let outcomes = run::run(target, suite, &here(), &cases, &[]);
    let failed: Vec<String> = outcomes.iter().filter_map(failure).collect();
    let (name, what) = (way.name, way.what);
    assert!(
        failed.is_empty(),
        "{name}, run {time}: a server is right that {what}, but:\n\n{}",
        failed.join("\n\n")
    );
    let undecided = |o: &&Outcome| matches!(o.verdict, Verdict::Skipped(run::UNDECIDED));
    let undecided: Vec<&str> = outcomes.iter().filter(undecided).map(|o| &*o.id).collect();
    assert_eq!(undecided, way.undecided, "{name}");
    let report = report(&outcomes);
    for id in undecided {
        assert!(
            report.contains(&format!("skipped 1: {id} is undecided: ")),
            "{report}"
        );
    }
    let green = cases.len() - way.undecided.len();
    println!("{name:<24} {what:<50} {green} cases are green");
}

/// The rows that do not notice a fault.
fn still_green(suite: &Suite, data: &Path, fault: &toy::Fault) -> Vec<String> {
    let server = toy::start(&here(), data, fault.name).unwrap_or_else(|why| panic!("{why}"));
    let mut target = toy::target(&server);
    target.sandbox = fault.sandbox;
    target.product = fault.product;
    let concerned = |case: &&Case| {
        case.rows
            .iter()
            .any(|row| fault.rows.contains(&row.as_str()))
            && (!fault.sandbox || case.sandbox)
            && fault.case.is_none_or(|id| case.id == id)
    };
    let cases: Vec<&Case> = suite.cases.iter().filter(concerned).collect();
    let outcomes = run::run(&target, suite, &here(), &cases, fault.rows);
    let (green, red): (Vec<&str>, Vec<&str>) = fault
        .rows
        .iter()
        .partition(|row| run::red(&outcomes, row) == 0);
    println!(
        "{:<24} {:<50} red: {}",
        fault.name,
        fault.what,
        red.join(" ")
    );
    green
        .into_iter()
        .map(|row| format!("{}: {row} stays green", fault.name))
        .collect()
}

/// `create_skill` may be left out (S, "Creating Skills"): then what needs the suite's skills is not asked, and that is said.
#[test]
fn a_server_without_create_skill_is_asked_the_rest() {
    let _turn = ONE_AT_A_TIME.lock();
    let suite = suite();
    let outcomes = of_the_toy(&suite, "no-create-skill");
    let (asked, without) = (
        passed(&outcomes),
        skipped(&outcomes, published::CANNOT_PUBLISH),
    );
    assert!(asked.len() > 200, "{} cases were asked", asked.len());
    assert!(without.len() > 200, "{} cases were not", without.len());
    for id in [
        "list.pages#1",
        "publish.minimal#1",
        "texts.execute",
        "skill hello.world 0.1.0",
    ] {
        assert!(without.contains(&id), "{id} was asked");
    }
    for id in ["code.syntax#1", "blob.unknown#1", "guide.content"] {
        assert!(asked.contains(&id), "{id} was not asked");
    }
    let said = format!("skipped {}: {}", without.len(), published::CANNOT_PUBLISH);
    assert!(report(&outcomes).contains(&said));
}

/// Its makers may have the texts' examples in other words: then cases about these are not asked, and no others are left out.
#[test]
fn a_server_with_examples_of_its_own_is_not_asked_about_them() {
    let _turn = ONE_AT_A_TIME.lock();
    let suite = suite();
    let outcomes = of_the_toy(&suite, "bundled");
    let theirs = skipped(&outcomes, published::THEIRS);
    assert!(theirs.contains(&"skill salesforce.leads.sync 0.1.0"));
    assert!(theirs.contains(&"texts.run-code"), "{theirs:?}");
    assert!((3..40).contains(&theirs.len()), "{theirs:?}");
    let asked = passed(&outcomes);
    for id in ["list.pages#1", "skill hello.world 0.1.0"] {
        assert!(asked.contains(&id), "{id} was not asked");
    }
}

/// All cases, none of which may be red.
fn of_the_toy(suite: &Suite, fault: &str) -> Vec<Outcome> {
    let data = TempDir::new("skillgate-toy").expect("a temporary directory can be made");
    let server = toy::start(&here(), &data.0, fault).unwrap_or_else(|why| panic!("{why}"));
    let all: Vec<&Case> = suite.cases.iter().collect();
    let outcomes = run::run(&toy::target(&server), suite, &here(), &all, &[]);
    let failed: Vec<String> = outcomes.iter().filter_map(failure).collect();
    assert!(failed.is_empty(), "{fault}:\n\n{}", failed.join("\n\n"));
    outcomes
}

fn passed(outcomes: &[Outcome]) -> Vec<&str> {
    let passed = |o: &&Outcome| matches!(o.verdict, Verdict::Passed);
    outcomes.iter().filter(passed).map(|o| &*o.id).collect()
}

fn skipped<'o>(outcomes: &'o [Outcome], why: &str) -> Vec<&'o str> {
    let skipped = |o: &&Outcome| matches!(o.verdict, Verdict::Skipped(said) if said == why);
    outcomes.iter().filter(skipped).map(|o| &*o.id).collect()
}

/// What a wrong server would keep for good, where its users look first, is tried on those that the suite starts, and on others
/// when they are said to be there for that.
#[test]
fn what_lasts_is_asked_of_others_only_when_it_is_said() {
    let _turn = ONE_AT_A_TIME.lock();
    let suite = suite();
    let data = TempDir::new("skillgate-toy").expect("a temporary directory can be made");
    let server = toy::start(&here(), &data.0, "none").unwrap_or_else(|why| panic!("{why}"));
    let hijacks = chosen(&suite, "guide.hijack").unwrap_or_else(|why| panic!("{why}"));
    let not_asked = |target: &Target| {
        let outcomes = run::run(target, &suite, &here(), &hijacks, &[]);
        skipped(&outcomes, run::LASTING).len()
    };
    let started = toy::target(&server);
    let found = Target {
        hosts: None,
        ..started.clone()
    };
    let given = Target {
        lasting: true,
        ..found.clone()
    };
    assert_eq!(hijacks.len(), 3);
    assert_eq!(
        [&started, &found, &given].map(not_asked),
        [0, hijacks.len(), 0]
    );
}

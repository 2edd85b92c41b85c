//! Does a server keep the Skills Protocol? Cases are data (`cases/*.toml`), each names the rows it proves (`rows.txt`);
//! `README.md` beside this file says how to read and write them and how to aim the suite at any server.

#![allow(
    clippy::print_stdout,
    reason = "the table of rows is what this test is run for"
)]

mod answer;
mod case;
mod client;
mod expect;
mod front;
mod gateway;
mod http;
mod own;
mod proofs;
mod published;
mod request;
mod run;
#[path = "../support/tools.rs"]
mod tools;
mod toy;
mod walk;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use sha2::{Digest, Sha256};

use crate::case::{Case, Suite};
use crate::front::Front;
use crate::gateway::{Plugins, TempDir};
use crate::http::Endpoint;
use crate::run::{Outcome, Target, Verdict};

/// Of `client/spec_client.py`: the specification's client must stay as printed.
const CLIENT_SHA256: &str = "64cc688046723836a6b0abeda4d761e1191f1618ef259619371072e87b1e67d5";

/// Two servers under load at once would measure each other: cases look at the clock.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn here() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance")
}

fn suite() -> Suite {
    Suite::load(&here()).unwrap_or_else(|why| panic!("{why}"))
}

fn rows() -> Vec<(String, String)> {
    include_str!("rows.txt")
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| {
            let (id, text) = line.split_once(' ').expect("a row is an id and a sentence");
            (id.to_owned(), text.to_owned())
        })
        .collect()
}

#[test]
fn every_row_has_a_case() {
    let suite = suite();
    let named: BTreeSet<&str> = suite
        .cases
        .iter()
        .flat_map(|case| case.rows.iter().map(String::as_str))
        .collect();
    let known: Vec<String> = rows().into_iter().map(|(id, _)| id).collect();
    let without: Vec<&String> = known
        .iter()
        .filter(|id| !named.contains(id.as_str()))
        .collect();
    assert!(without.is_empty(), "rows without a case: {without:?}");
    let unknown: Vec<&&str> = named
        .iter()
        .filter(|id| !known.iter().any(|k| k == **id))
        .collect();
    assert!(
        unknown.is_empty(),
        "cases name rows that are not in rows.txt: {unknown:?}"
    );
}

#[test]
fn the_printed_client_is_as_printed() {
    let text = std::fs::read(here().join("client/spec_client.py")).expect("the client is there");
    let digest: String = Sha256::digest(text)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(
        digest, CLIENT_SHA256,
        "client/spec_client.py is no longer the specification's text"
    );
}

#[test]
fn conformance() {
    let foreign = std::env::var("SKILLS_ENDPOINT").ok();
    let plugins = Plugins::asked_for().unwrap_or_else(|why| panic!("{why}"));
    keeps_every_row(foreign.as_deref(), &plugins);
}

/// A server that asks who is there is given what `SKILLS_TOKEN` says: here our own, with a few cases of each way to send.
#[test]
fn with_tokens() {
    let _turn = ONE_AT_A_TIME.lock();
    let suite = suite();
    let data = TempDir::new("skillgate-conformance").expect("a temporary directory can be made");
    let plugins = Plugins {
        tokens: true,
        ..Plugins::default()
    };
    let repo = Path::new(env!("CARGO_MANIFEST_DIR"));
    let server = gateway::start(repo, &data.0, &plugins).unwrap_or_else(|why| panic!("{why}"));
    let cases = of_each_way_to_send(&suite);
    let mut target = Target {
        endpoint: server.endpoint.clone(),
        product: true,
        sandbox: true,
        hosts: Some(server.hosts.clone()),
        ..Target::default()
    };
    let outcomes = run::run(&target, &suite, &here(), &cases, &[]);
    let failed: Vec<String> = outcomes.iter().filter_map(failure).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));

    // With `SKILLS_SANDBOX=no` what needs isolation is left out, and only that.
    target.sandbox = false;
    let outcomes = run::run(&target, &suite, &here(), &cases, &[]);
    let left_out = |outcome: &&Outcome| matches!(outcome.verdict, Verdict::Skipped(_));
    let left_out: Vec<&str> = outcomes.iter().filter(left_out).map(|o| &*o.id).collect();
    assert_eq!(left_out, ["sandbox.user"]);
    assert!(report(&outcomes).contains("skipped 1: needs a sandbox"));

    target.endpoint.token = None;
    let outcomes = run::run(&target, &suite, &here(), &cases, &["D1", "K9"]);
    for row in ["D1", "K9"] {
        assert!(
            run::red(&outcomes, row) > 0,
            "{row} is green without a token"
        );
    }
}

/// One that speaks TLS alone is asked as any other: here our own, behind something that takes it off.
#[test]
fn over_tls() {
    let _turn = ONE_AT_A_TIME.lock();
    let suite = suite();
    let data = TempDir::new("skillgate-conformance").expect("a temporary directory can be made");
    let repo = Path::new(env!("CARGO_MANIFEST_DIR"));
    let server =
        gateway::start(repo, &data.0, &Plugins::default()).unwrap_or_else(|why| panic!("{why}"));
    let keys = repo.join("tests/fixtures/keys");
    let front = Front::start(
        &server.endpoint.host,
        &keys.join("tls.pem"),
        &keys.join("tls.key.pem"),
    )
    .unwrap_or_else(|why| panic!("{why}"));
    let asked = |url: &str, authority: &Path| {
        let endpoint = Endpoint::trusting(url, Some(authority));
        let target = Target {
            endpoint: endpoint.unwrap_or_else(|why| panic!("{why}")),
            product: true,
            sandbox: true,
            ..Target::default()
        };
        run::run(&target, &suite, &here(), &of_each_way_to_send(&suite), &[])
    };
    let (url, authority) = (
        format!("https://localhost:{}/rpc", front.port),
        keys.join("ca.pem"),
    );
    let outcomes = asked(&url, &authority);
    let failed: Vec<String> = outcomes.iter().filter_map(failure).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));

    // Whoever else has a certificate is not the server that is meant.
    let other_name = format!("https://127.0.0.1:{}/rpc", front.port);
    let other_authority = repo.join("tests/fixtures/tls/cert.pem");
    for (url, authority, why) in [
        (&other_name, &authority, "certificate not valid for name"),
        (&url, &other_authority, "SSL_CERT_FILE names a file"),
    ] {
        let outcomes = asked(url, authority);
        assert_eq!(outcomes.len(), 1);
        let said = failure(&outcomes[0]).expect("nothing is asked of it");
        assert!(said.contains(why), "{said}");
    }
}

/// A few cases of each, of those that any server can be asked.
fn of_each_way_to_send(suite: &Suite) -> Vec<&Case> {
    let ways = [
        "list.",
        "batch",
        "transport.",
        "texts.client",
        "sandbox.user",
    ];
    ways.iter()
        .flat_map(|way| chosen(suite, way).unwrap_or_else(|why| panic!("{why}")))
        .filter(|case| !case.own_server)
        .collect()
}

#[test]
fn a_selection_of_nothing_is_a_mistake() {
    let suite = suite();
    let why = chosen(&suite, "blobs.").expect_err("no case is called blobs.");
    for word in ["SKILLS_CASES=blobs.", " blob.", " sandbox."] {
        assert!(why.contains(word), "{why}");
    }
    assert_eq!(
        chosen(&suite, "").map(|all| all.len()),
        Ok(suite.cases.len())
    );
    assert_eq!(chosen(&suite, "sandbox.user").map(|all| all.len()), Ok(1));
    assert_eq!(said("SKILLS_SANDBOX", None, true), Ok(true));
    assert_eq!(said("SKILLS_SANDBOX", Some("no"), true), Ok(false));
    assert_eq!(said("SKILLS_LASTING", Some("yes"), false), Ok(true));
    assert!(said("SKILLS_SANDBOX", Some("false"), true).is_err());
    assert_eq!(is_product(None), Ok(false));
    assert_eq!(is_product(Some("skillgate")), Ok(true));
    assert!(is_product(Some("Skillgate")).is_err());
    // Nor does one of which every case is skipped.
    let outcome = |id: &str, verdict| Outcome {
        id: id.into(),
        rows: vec!["T1".into()],
        verdict,
    };
    let mut outcomes = vec![
        outcome("skill hello.world 0.1.0", Verdict::Passed),
        outcome("sandbox.user", Verdict::Skipped("needs a sandbox")),
    ];
    assert!(nothing_asked(&suite, &outcomes));
    outcomes[1].verdict = Verdict::Passed;
    assert!(!nothing_asked(&suite, &outcomes));
}

/// The cases whose id contains `wanted`.
fn chosen<'s>(suite: &'s Suite, wanted: &str) -> Result<Vec<&'s Case>, String> {
    let cases: Vec<&Case> = suite
        .cases
        .iter()
        .filter(|case| case.id.contains(wanted))
        .collect();
    if cases.is_empty() {
        let beginning = |case: &Case| case.id.split_inclusive('.').next().map(str::to_owned);
        let known: BTreeSet<String> = suite.cases.iter().filter_map(beginning).collect();
        let known: Vec<String> = known.into_iter().collect();
        return Err(format!(
            "SKILLS_CASES={wanted} names no case; their ids begin with {}",
            known.join(" ")
        ));
    }
    Ok(cases)
}

/// `SKILLS_SANDBOX`: are the cases asked that try what a run could break? `SKILLS_LASTING`: those that could spoil the server for
/// its users?
fn said(variable: &str, value: Option<&str>, otherwise: bool) -> Result<bool, String> {
    match value {
        None => Ok(otherwise),
        Some("yes") => Ok(true),
        Some("no") => Ok(false),
        Some(other) => Err(format!("{variable} is yes or no, not {other:?}")),
    }
}

/// `SKILLS_PRODUCT`: does the server promise what skillgate's contract says?
fn is_product(value: Option<&str>) -> Result<bool, String> {
    match value {
        None | Some("") => Ok(false),
        Some("skillgate") => Ok(true),
        Some(other) => Err(format!(
            "SKILLS_PRODUCT is skillgate or not set, not {other:?}"
        )),
    }
}

/// Whether no case came to be asked, of those that were chosen: then nothing has been shown.
fn nothing_asked(suite: &Suite, outcomes: &[Outcome]) -> bool {
    let asked = |o: &Outcome| {
        !matches!(o.verdict, Verdict::Skipped(_)) && suite.cases.iter().any(|case| case.id == o.id)
    };
    !outcomes.iter().any(asked)
}

/// The bundled plugins keep to the gateway's own process unless somebody says otherwise: here somebody does.
#[test]
fn with_the_plugins_in_processes_of_their_own() {
    let plugins = Plugins {
        isolation: Some("process".into()),
        ..Plugins::default()
    };
    keeps_every_row(None, &plugins);
}

/// Nothing of the protocol is in the bundled store: another one, in another language, does as well.
#[test]
fn with_the_store_in_c() {
    let plugins = Plugins {
        store: Some("example-c".into()),
        isolation: Some("gateway".into()),
        ..Plugins::default()
    };
    keeps_every_row(None, &plugins);
}

/// `foreign`: the endpoint of a server that is there already; else ours is started, with these plugins.
fn keeps_every_row(foreign: Option<&str>, plugins: &Plugins) {
    let _turn = ONE_AT_A_TIME.lock();
    let suite = suite();
    let wanted = std::env::var("SKILLS_CASES").unwrap_or_default();
    let cases = chosen(&suite, &wanted).unwrap_or_else(|why| panic!("{why}"));
    let asked = |variable: &str, otherwise| {
        let value = std::env::var(variable).ok();
        said(variable, value.as_deref(), otherwise).unwrap_or_else(|why| panic!("{why}"))
    };
    let (sandbox, lasting) = (
        asked("SKILLS_SANDBOX", true),
        asked("SKILLS_LASTING", false),
    );
    let product = std::env::var("SKILLS_PRODUCT").ok();
    let product = is_product(product.as_deref()).unwrap_or_else(|why| panic!("{why}"));
    let data = TempDir::new("skillgate-conformance").expect("a temporary directory can be made");
    let (target, server) = match foreign {
        Some(url) => {
            let mut endpoint =
                Endpoint::parse(url).expect("SKILLS_ENDPOINT is http(s)://host:port/rpc");
            endpoint.token = std::env::var("SKILLS_TOKEN").ok();
            let target = Target {
                endpoint,
                product,
                sandbox,
                lasting,
                ..Target::default()
            };
            (target, None)
        }
        None => {
            let repo = Path::new(env!("CARGO_MANIFEST_DIR"));
            let server =
                gateway::start(repo, &data.0, plugins).unwrap_or_else(|why| panic!("{why}"));
            let target = Target {
                endpoint: server.endpoint.clone(),
                product: true,
                sandbox,
                lasting,
                data_dir: Some(data.0.display().to_string()),
                hosts: Some(server.hosts.clone()),
            };
            (target, Some(server))
        }
    };
    let outcomes = run::run(&target, &suite, &here(), &cases, &[]);
    let report = report(&outcomes);
    println!("{}\n{report}", target.endpoint.url());
    let waited = target.endpoint.waited();
    if !waited.is_zero() {
        println!("waited {waited:?} for a server that said when to come again");
    }
    let failed: Vec<String> = outcomes.iter().filter_map(failure).collect();
    let log = server
        .as_ref()
        .map(gateway::Server::said)
        .unwrap_or_default();
    drop(server);
    if !failed.is_empty() && !log.is_empty() {
        eprintln!("the server's last words:\n{log}");
    }
    assert!(
        failed.is_empty(),
        "{} of {} cases fail:\n\n{}",
        failed.len(),
        outcomes.len(),
        failed.join("\n\n")
    );
    assert!(
        !nothing_asked(&suite, &outcomes),
        "no case of {} was asked:\n{report}",
        cases.len()
    );
}

fn failure(outcome: &Outcome) -> Option<String> {
    match &outcome.verdict {
        Verdict::Failed(why) => Some(format!("{} [{}] {why}", outcome.id, outcome.rows.join(" "))),
        _ => None,
    }
}

/// One line per row: how many cases, and how they went.
fn report(outcomes: &[Outcome]) -> String {
    let mut table = String::from("row   cases  passed  failed  skipped\n");
    let line = |name: &str, of: &[&Outcome]| {
        let count = |want: fn(&Verdict) -> bool| of.iter().filter(|o| want(&o.verdict)).count();
        let failed = count(|v| matches!(v, Verdict::Failed(_)));
        format!(
            "{name:<5} {:>5}  {:>6}  {failed:>6}  {:>7}",
            of.len(),
            count(|v| matches!(v, Verdict::Passed)),
            count(|v| matches!(v, Verdict::Skipped(_))),
        )
    };
    for (id, text) in rows() {
        let of: Vec<&Outcome> = outcomes.iter().filter(|o| o.rows.contains(&id)).collect();
        table.push_str(&format!("{}  {text}\n", line(&id, &of)));
    }
    let all: Vec<&Outcome> = outcomes.iter().collect();
    table.push_str(&line("all", &all));
    let mut reasons = BTreeMap::new();
    for outcome in outcomes {
        if let Verdict::Skipped(why) = outcome.verdict {
            let of = match why {
                run::UNDECIDED => format!("{} ", outcome.id),
                _ => String::new(),
            };
            *reasons.entry(of + why).or_insert(0) += 1;
        }
    }
    for (why, count) in reasons {
        table.push_str(&format!("\nskipped {count}: {why}"));
    }
    table
}

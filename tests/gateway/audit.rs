//! The audit log of the whole program: nothing that was answered is missing, whatever dies; what was changed is named; what
//! cannot be recorded is not done.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::gateway::{House, Settings, must_not_start};
use crate::support::http::Client;
use crate::support::random::Random;
use crate::support::{Over, eventually};
use crate::{alone, count};

const CODE: &str = "def main(args):\n    return 1\n";

pub(crate) fn path(house: &House) -> PathBuf {
    house.path().join(".skillgate/audit.jsonl")
}

/// The records of a log, which may be written meanwhile: then a reader sees a part of the last line.
pub(crate) fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    let whole = &text[..text.rfind('\n').map_or(0, |at| at + 1)];
    whole
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// `skillgate audit verify` with the house's configuration and these arguments.
fn verify(house: &House, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_skillgate"));
    command.args(["audit", "verify"]).args(arguments);
    if arguments.iter().all(|argument| argument.starts_with("--")) {
        command.arg("--config").arg(house.config());
    }
    house.clean(&mut command);
    command.output().unwrap()
}

pub(crate) fn assert_holds(house: &House) {
    let output = verify(house, &[]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(
        output.status.code(),
        Some(0),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(said.ends_with("the chain holds\n"), "{said}");
}

/// Runs code until the gateway does not answer any more, or nobody waits for that.
fn runs(address: &str, told: &Mutex<BTreeSet<String>>, over: &AtomicBool) -> std::io::Result<()> {
    let mut client = Client::open(address)?;
    while !over.load(Ordering::Relaxed) {
        let result = client.run(CODE, json!({}))?;
        let id = result["run_id"].as_str().unwrap().to_owned();
        told.lock().unwrap().insert(id);
    }
    Ok(())
}

#[test]
fn a_killed_gateway_has_recorded_what_it_answered() {
    let _alone = alone();
    let mut random = Random::seeded("audit kills");
    let house = House::new(Settings::default());
    let told = Mutex::new(BTreeSet::new());
    let (mut kills, mut torn) = (0, 0);
    for round in 0..count(4, 60) {
        let mut gateway = house.start();
        let before = told.lock().unwrap().len();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _over = Over(&over);
            for _ in 0..3 {
                scope.spawn(|| runs(&gateway.address.clone(), &told, &over));
            }
            eventually("some runs are answered", Duration::from_secs(20), || {
                told.lock().unwrap().len() > before + 3 + random.below(10) as usize
            });
            gateway.signal("KILL");
        });
        gateway.end(Duration::from_secs(10));
        kills += 1;
        // Every other time as if the system had torn the last write.
        if round % 2 == 1 {
            let whole = fs::read(path(&house)).unwrap();
            let half = br#"{"sequence":99999,"prev":"0123"#;
            fs::write(path(&house), [&whole[..], half].concat()).unwrap();
            assert_eq!(verify(&house, &[]).status.code(), Some(1));
            torn += 1;
        }
        // Started again it repairs what is torn, and says so.
        house.start().stop();
        assert_holds(&house);
    }
    let lines = lines(&path(&house));
    let recorded: BTreeSet<&str> = lines
        .iter()
        .filter_map(|line| line["run_id"].as_str())
        .collect();
    let told = told.into_inner().unwrap();
    let missing = told
        .iter()
        .filter(|id| !recorded.contains(id.as_str()))
        .count();
    println!(
        "{kills} kills: {} runs answered, {} recorded, {missing} answered and not recorded",
        told.len(),
        recorded.len()
    );
    assert_eq!(missing, 0);
    let repaired = lines
        .iter()
        .filter(|line| !line["repaired"].is_null())
        .count();
    assert!(repaired >= torn, "{repaired} repairs of {torn} torn ends");
}

#[test]
fn records_say_who_and_what_and_nothing_of_the_content() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let gateway = house.start();
    let code = "import sys\ndef main(args):\n    print('canary-printed')\n    raise ValueError('canary-raised' if args else '')\n";
    let mut client = gateway.client();
    client
        .result(
            "run_code",
            json!({ "language": "python", "code": code, "args": { "name": "canary-value" } }),
        )
        .unwrap();
    client.run(CODE, json!({})).unwrap();

    // One whose caller goes away has an end, too.
    let mut gone = gateway.client();
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "run_code",
        "params": { "language": "python", "code": "import time\ndef main(args):\n    time.sleep(1000)\n" } })
    .to_string();
    let length = body.len().to_string();
    gone.head(
        "POST",
        "/rpc",
        &[
            ("Content-Type", "application/json"),
            ("Content-Length", &length),
        ],
    )
    .unwrap();
    let started = || gateway.log().matches("run started").count();
    let before = started();
    gone.write(body.as_bytes()).unwrap();
    // A child that is being born for the pool looks like a run's for a moment: the log knows better.
    eventually("the run is under way", Duration::from_secs(20), || {
        started() > before && gateway.inside().len() >= 2
    });
    gone.hang_up();
    eventually("its end is recorded", Duration::from_secs(5), || {
        lines(&path(&house))
            .iter()
            .any(|line| line["status"] == "cancelled")
    });
    gateway.stop();

    let text = fs::read_to_string(path(&house)).unwrap();
    assert!(
        !text.contains("canary") && !text.contains("def main"),
        "{text}"
    );
    let all = lines(&path(&house));
    let ends: Vec<&Value> = all.iter().filter(|line| line["kind"] == "run").collect();
    let statuses: Vec<&Value> = ends.iter().map(|line| &line["status"]).collect();
    assert_eq!(statuses, ["failed", "completed", "cancelled"]);
    let digest = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(code));
    assert_eq!(
        ends[0]["code"],
        json!({ "sha256": digest, "bytes": code.len() })
    );
    assert_eq!(
        (
            &ends[0]["error_type"],
            &ends[0]["requested_by"],
            &ends[0]["tenant"],
            &ends[0]["source_ip"],
        ),
        (
            &json!("ValueError"),
            &json!("local"),
            &json!("default"),
            &json!("127.0.0.1")
        )
    );
    for end in ends {
        assert!(end["decision_id"].as_str().unwrap().len() > 8);
        assert!(end["run_id"].as_str().unwrap().starts_with("run_"));
        assert!(end["usage"]["wall_ms"].is_u64());
    }
    assert_eq!(all.last().unwrap()["event"], "stopped");
    assert_holds(&house);
}

#[test]
fn verify_names_the_place_and_its_exit_code_says_it() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let gateway = house.start();
    for _ in 0..3 {
        gateway.client().run(CODE, json!({})).unwrap();
    }
    gateway.stop();
    assert_holds(&house);
    let file = path(&house);
    let whole = fs::read_to_string(&file).unwrap();
    let at = whole.find("\"completed\"").unwrap();
    let line = whole[..at].lines().count();
    fs::write(&file, whole.replacen("\"completed\"", "\"Completed\"", 1)).unwrap();
    let output = verify(&house, &[]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said.contains(&format!("audit.jsonl:{line}: record {line}: "))
            && said.contains("was changed"),
        "{said}"
    );
    let output = verify(&house, &["--output=json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (
            &report["ok"],
            &report["breaks"][0]["line"],
            &report["breaks"][0]["kind"]
        ),
        (&json!(false), &json!(line), &json!("changed"))
    );
    // By the file, by its directory, and where there is none.
    assert_eq!(
        verify(&house, &[file.to_str().unwrap()]).status.code(),
        Some(1)
    );
    assert_eq!(
        verify(&house, &[file.parent().unwrap().to_str().unwrap()])
            .status
            .code(),
        Some(1)
    );
    let output = verify(&house, &["none.jsonl"]);
    assert_eq!(output.status.code(), Some(4));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("none.jsonl: there is no audit log here")
    );
}

/// By a stopped gateway's operator. Its numbers would begin again, and `verify` of both call them out of order.
#[test]
fn a_log_that_was_taken_away_is_one_with_what_comes_after_it() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let gateway = house.start();
    gateway.client().run(CODE, json!({})).unwrap();
    gateway.stop();
    let take = |name: &str| {
        let to = house.path().join(name);
        fs::rename(path(&house), &to).unwrap();
        to.to_str().unwrap().to_owned()
    };
    let one = take("one.jsonl");
    let mut gateway = house.start();
    let said = gateway.log();
    assert!(said.contains("the audit log is not what it was"), "{said}");
    gateway.client().run(CODE, json!({})).unwrap();
    gateway.signal("KILL");
    gateway.end(Duration::from_secs(10));
    let two = take("two.jsonl");
    let output = verify(&house, &[&one, &two]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.ends_with("\nthe chain holds\n"), "{said}");
    assert!(!said.contains("note: "), "{said}");
    // Nobody knows what it had written when it was killed.
    house.start().stop();
    assert_holds(&house);
    let file = path(&house);
    let output = verify(&house, &[&two, file.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("how many are missing between them, if any, is not known")
            && said.ends_with("\nthe chain breaks at 1 place(s)\n"),
        "{said}"
    );
}

#[test]
fn a_log_that_cannot_be_used_keeps_the_gateway_from_starting() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let gateway = house.start();
    let refused_as = |command: Command, what: &str| {
        let (code, said) = must_not_start(command);
        assert_eq!(code, Some(4), "{said}");
        assert!(said.contains(what), "{said}");
        said
    };
    let refused = |what: &str| {
        let said = refused_as(house.command(), what);
        assert!(said.contains(&path(&house).display().to_string()), "{said}");
    };
    // Who has the same of everything, as before an upgrade, hears of whom: a log of his own would be another chain.
    let by_whom = format!("in use by another skillgate (process {})", gateway.pid);
    let said = refused_as(house.command(), &by_whom);
    assert!(!said.contains("audit.path"), "{said}");
    let mut other = house.command();
    other.env("SKILLGATE_PLUGINS__STATE_DIR", house.path().join("other"));
    let said = refused_as(other, "another gateway writes this log: wait for it to end");
    assert!(said.contains(&path(&house).display().to_string()), "{said}");
    gateway.stop();
    let whole = fs::read_to_string(path(&house)).unwrap();
    fs::write(path(&house), whole.replace("stopped", "Stopped")).unwrap();
    refused("line 2: its last record is not what its hash was made of");
    fs::remove_file(path(&house)).unwrap();
    fs::create_dir(path(&house)).unwrap();
    refused("not a regular file");
}

/// The limit on the size of a file (setrlimit(2), RLIMIT_FSIZE) stands for the full disk: a write goes to the limit and
/// then fails, also for the superuser.
#[test]
fn a_full_disk_denies_what_must_be_recorded_and_recovers_by_itself() {
    const BYTES: u64 = 512 << 10;
    let _alone = alone();
    let house = House::new(Settings::default());
    // Nearly as long as a file may get.
    let gateway = house.start();
    gateway.stop();
    let room = 20_000;
    fill(&house, BYTES - room);

    let mut command = Command::new("sh");
    // An ignored signal stays ignored in what is executed.
    command.args(["-c", r#"trap "" XFSZ; exec "$0" "$@""#]);
    let serve = house.command();
    command.arg(serve.get_program()).args(serve.get_args());
    house.clean(&mut command);
    let gateway = house.start_as(command);
    let limit = |bytes: &str| {
        let limit = format!("--fsize={bytes}:unlimited");
        let pid = gateway.pid.to_string();
        let status = Command::new("prlimit")
            .args(["--pid", &pid, &limit])
            .status();
        assert!(status.unwrap().success());
    };
    limit(&BYTES.to_string());
    let mut client = gateway.client();
    let mut answered = 0;
    let refusal = loop {
        let reply = client
            .call("run_code", json!({ "language": "python", "code": CODE }))
            .unwrap();
        if reply.get("error").is_some() {
            break reply;
        }
        answered += 1;
        assert!(answered < 1000, "the disk does not get full");
    };
    // The decision cannot be recorded, or the run's end, whichever comes first.
    let error = (&refusal["error"]["code"], &refusal["error"]["data"]["kind"]);
    assert!(
        error == (&json!(-32007), &json!("unavailable"))
            || error == (&json!(-32003), &json!("policy_denied")),
        "{refusal}"
    );
    assert!(
        refusal["error"]["message"]
            .as_str()
            .unwrap()
            .contains("recorded"),
        "{refusal}"
    );
    assert_eq!(client.get("/readyz").unwrap().status, 503);
    assert_eq!(client.get("/livez").unwrap().status, 200);
    client.result("list_skills", json!({})).unwrap();
    assert!(
        gateway.log().contains("the audit log cannot be written"),
        "{}",
        gateway.said()
    );
    assert!(fs::metadata(path(&house)).unwrap().len() <= BYTES);

    limit("unlimited");
    let took = eventually("it is ready by itself", Duration::from_secs(5), || {
        client.get("/readyz").unwrap().status == 200
    });
    client.run(CODE, json!({})).unwrap();
    gateway.stop();
    println!(
        "{answered} runs answered before the disk was full; {} ms from free to ready",
        took.as_millis()
    );
    assert_holds(&house);
    let all = lines(&path(&house));
    let resumed: Vec<&Value> = all
        .iter()
        .filter(|line| line["event"] == "resumed")
        .collect();
    assert_eq!(resumed.len(), 1);
    assert!(
        resumed[0]["unwritten"].as_u64() >= Some(1),
        "{}",
        resumed[0]
    );
    let completed = all
        .iter()
        .filter(|line| line["status"] == "completed")
        .count();
    assert_eq!(completed, answered + 1);
}

/// Makes the log long with records of its own form.
fn fill(house: &House, bytes: u64) {
    let settings = skillgate::config::Audit {
        path: path(house),
        fsync: skillgate::config::Fsync::Never,
        max_file_bytes: 1 << 30,
        on_failure: skillgate::config::OnAuditFailure::Deny,
    };
    let audit = skillgate::audit::Audit::open(&settings).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        while fs::metadata(path(house)).unwrap().len() + 1500 < bytes {
            let body = json!({ "filling": "x".repeat(1000) })
                .as_object()
                .unwrap()
                .clone();
            audit
                .note(skillgate::audit::Record::new(
                    skillgate::audit::Kind::Decision,
                    body,
                ))
                .await;
        }
        audit.close().await;
    });
}

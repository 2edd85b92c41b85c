//! A disk that fails under the audit log: what must be recorded is not done (`audit.on_failure = "deny"`), or goes on and
//! is counted (`"continue"`), and either way the log says afterwards what it lacks.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use serde_json::{Value, json};

use crate::alone;
use crate::audit::{assert_holds, lines, path};
use crate::policy::policy_in;
use crate::support::eventually;
use crate::support::gateway::{Gateway, House, Settings, must_not_start};
use crate::support::http::Client;
use crate::swap::{TAKEN, readyz, reload};

const PATIENCE: Duration = Duration::from_secs(20);
const REFUSED: &str = "reload refused";
const CODE: &str = "def main(args):\n    return 1\n";

/// A gateway for which no sync of `path` (its end) succeeds while `switch` is there.
fn failing_sync(house: &House, path: &Path, switch: &Path) -> Command {
    let mut command = on_an_ailing_disk(house);
    command
        .env("FAIL_SYNC_OF", path)
        .env("FAIL_SYNC_WHILE", switch);
    command
}

/// What ails it, the environment says.
fn on_an_ailing_disk(house: &House) -> Command {
    let shim = house.path().join("disk.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/audit/disk.c");
    let compiled = Command::new("cc")
        .args([
            "-std=gnu99",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-O1",
            "-fPIC",
            "-shared",
            "-o",
        ])
        .args([&shim, &source])
        .output()
        .unwrap();
    assert!(
        compiled.status.success(),
        "{}",
        String::from_utf8_lossy(&compiled.stderr)
    );
    let mut command = house.command();
    command.env("LD_PRELOAD", &shim);
    command
}

/// A gateway whose audit log is on a disk that fails to sync while a file is there.
struct Failing {
    house: House,
    gateway: Gateway,
    switch: PathBuf,
}

impl Failing {
    /// `audit`: keys of `[audit]`.
    fn start(audit: &str) -> Failing {
        Failing::start_with(audit, |_| ())
    }

    /// With more that ails the disk.
    fn start_with(audit: &str, more: impl FnOnce(&mut Command)) -> Failing {
        let house = House::new(Settings {
            extra: &format!("[audit]\n{audit}\n"),
            ..Settings::default()
        });
        let switch = house.path().join("the-disk-fails");
        let mut command = failing_sync(&house, Path::new("/audit.jsonl"), &switch);
        more(&mut command);
        let gateway = house.start_as(command);
        Failing {
            house,
            gateway,
            switch,
        }
    }

    fn fail(&self) {
        fs::write(&self.switch, "").unwrap();
    }

    fn mend(&self) {
        fs::remove_file(&self.switch).unwrap();
    }

    fn operator(&self, path: &str) -> String {
        Client::open(&self.gateway.admin)
            .unwrap()
            .get(path)
            .unwrap()
            .text()
    }

    fn metric(&self, name: &str) -> u64 {
        let page = self.operator("/metrics");
        let value = page
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value
            .unwrap_or_else(|| panic!("no {name} in {page}"))
            .parse()
            .unwrap()
    }

    /// `(kind, codes of the reasons)` of the error of a call.
    fn refusal(&self, method: &str, params: Value) -> (String, Vec<String>) {
        let reply = self.gateway.client().call(method, params).unwrap();
        let data = &reply["error"]["data"];
        let reasons = data["reasons"].as_array().into_iter().flatten();
        let codes = reasons.map(|reason| reason["code"].as_str().unwrap().to_owned());
        (
            data["kind"].as_str().unwrap_or_default().to_owned(),
            codes.collect(),
        )
    }

    fn ready(&self) -> bool {
        self.gateway.client().get("/readyz").unwrap().status == 200
    }

    /// The `resumed` records, after the end.
    fn resumed(self) -> Vec<Value> {
        self.gateway.stop();
        assert_holds(&self.house);
        let mut all = lines(&path(&self.house));
        all.retain(|line| line["event"] == "resumed");
        all
    }
}

fn code() -> Value {
    json!({ "language": "python", "code": CODE })
}

/// A power cut would take away the log together with a directory that nobody has made durable.
#[test]
fn a_log_whose_directory_is_not_durable_is_not_written() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let switch = house.path().join("the-disk-fails");
    let command = || failing_sync(&house, house.path(), &switch);
    fs::write(&switch, "").unwrap();
    // The directory is made by the first of them, and found by the second.
    for _ in 0..2 {
        let (code, said) = must_not_start(command());
        assert_eq!(code, Some(4), "{said}");
        assert!(said.contains("cannot make its directory"), "{said}");
        assert!(path(&house).parent().unwrap().is_dir() && !path(&house).exists());
    }
    fs::remove_file(&switch).unwrap();
    house.start_as(command()).stop();
}

#[test]
fn a_record_that_is_not_durable_is_none() {
    let _alone = alone();
    let failing = Failing::start("fsync = \"always\"");
    let mut client = failing.gateway.client();
    client.run(CODE, json!({})).unwrap();

    // A run that has begun while the disk was well: its end cannot be recorded, so its result is withheld.
    let late = std::thread::scope(|scope| {
        let run = scope.spawn(|| {
            let text = "import time\ndef main(args):\n    time.sleep(4)\n    return 'withheld'\n";
            let params = json!({ "language": "python", "code": text });
            failing.gateway.client().call("run_code", params).unwrap()
        });
        eventually("it is under way", PATIENCE, || {
            failing.gateway.log().matches("run started").count() == 2
        });
        failing.fail();
        run.join().unwrap()
    });
    let error = &late["error"];
    assert_eq!(error["data"]["kind"], "unavailable", "{late}");
    // It has run: nobody is told that nothing was done, or to do it again.
    let said = error["message"].as_str().unwrap();
    assert!(said.starts_with("the run has ended"), "{late}");
    assert!(error["data"]["retry_after_ms"].is_null(), "{late}");

    // Nothing that has consequences begins.
    let blobs = failing.house.blobs().len();
    for (method, params) in [
        ("run_code", code()),
        (
            "execute_skill",
            json!({ "name": "hello.world", "args": {} }),
        ),
        (
            "create_blob",
            json!({ "content": "x", "kind": "text/plain" }),
        ),
        (
            "create_skill",
            json!({
                "manifest": { "name": "user.x", "version": "1.0.0", "description": "x", "kind": "instruction", "namespace": "user" },
                "skill_md": "---\nname: user.x\ndescription: x\n---\nx\n",
            }),
        ),
    ] {
        let denied = (
            "policy_denied".to_owned(),
            vec!["policy.unavailable".to_owned()],
        );
        assert_eq!(failing.refusal(method, params), denied, "{method}");
    }
    let put = client
        .request("POST", "/blobs", &[("Content-Type", "text/plain")], b"x")
        .unwrap();
    assert!(put.status >= 400, "{}", put.text());
    assert_eq!(failing.house.blobs().len(), blobs, "nothing was made");
    assert_eq!(
        failing.gateway.log().matches("run started").count(),
        2,
        "nothing was run"
    );
    // What only reads goes on; whoever balances load sends it elsewhere.
    client
        .result("describe_skill", json!({ "name": "hello.world" }))
        .unwrap();
    eventually("it is not ready", PATIENCE, || !failing.ready());
    let verbose = failing.operator("/readyz?verbose");
    assert!(
        verbose.contains("[-]audit failed: Input/output error"),
        "{verbose}"
    );
    assert!(failing.metric("skillgate_audit_refused_total") >= 6);
    assert!(failing.metric("skillgate_audit_failures_total") >= 6);
    assert!(
        failing.metric("skillgate_audit_lost_total") >= 1,
        "the reading one"
    );

    failing.mend();
    eventually("it is ready by itself", PATIENCE, || failing.ready());
    client.run(CODE, json!({})).unwrap();
    let resumed = failing.resumed();
    assert_eq!(resumed.len(), 1, "{resumed:?}");
    assert!(
        resumed[0]["unwritten"].as_u64() >= Some(7),
        "{}",
        resumed[0]
    );
    assert!(
        resumed[0]["reason"]
            .as_str()
            .unwrap()
            .contains("Input/output"),
        "{}",
        resumed[0]
    );
}

/// Nor can it be taken back, for as long as the disk fails: it is whole, and in the file, and nobody was told of it. What comes behind
/// it then must not have its number.
#[test]
fn a_record_that_cannot_be_taken_back_is_not_in_the_chain() {
    let _alone = alone();
    let failing = Failing::start_with("fsync = \"always\"", |command| {
        command.env("FAIL_CUT_OF", "/audit.jsonl");
    });
    failing.gateway.client().run(CODE, json!({})).unwrap();
    let before = fs::metadata(path(&failing.house)).unwrap().len();
    failing.fail();
    assert_eq!(failing.refusal("run_code", code()).0, "policy_denied");
    let left = fs::metadata(path(&failing.house)).unwrap().len();
    assert!(left > before, "it is in the file: {before} to {left} bytes");
    let failures = failing.metric("skillgate_audit_failures_total");
    eventually("it is tried again", PATIENCE, || {
        failing.metric("skillgate_audit_failures_total") > failures
    });
    failing.mend();
    eventually("it is ready by itself", PATIENCE, || failing.ready());
    failing.gateway.client().run(CODE, json!({})).unwrap();
    let resumed = failing.resumed();
    assert_eq!(resumed.len(), 1, "{resumed:?}");
    assert!(
        resumed[0]["unwritten"].as_u64() >= Some(1),
        "{}",
        resumed[0]
    );
}

#[test]
fn an_operator_may_choose_to_go_on_without_records() {
    let _alone = alone();
    let failing = Failing::start("fsync = \"always\"\non_failure = \"continue\"");
    let mut client = failing.gateway.client();
    client.run(CODE, json!({})).unwrap();
    failing.fail();
    for _ in 0..3 {
        client.run(CODE, json!({})).unwrap();
    }
    client
        .result(
            "create_blob",
            json!({ "content": "x", "kind": "text/plain" }),
        )
        .unwrap();
    assert!(failing.ready(), "it serves on");
    eventually("the operator is told", PATIENCE, || {
        failing
            .operator("/readyz?verbose")
            .contains("[!]audit impaired: records are lost: Input/output error")
    });
    assert!(
        failing
            .gateway
            .log()
            .contains("the audit log cannot be written")
    );
    // Three decisions, three ends, one blob's decision.
    assert_eq!(failing.metric("skillgate_audit_lost_total"), 7);
    assert_eq!(failing.metric("skillgate_audit_refused_total"), 0);
    failing.mend();
    eventually("it writes again", PATIENCE, || {
        failing.operator("/readyz?verbose").contains("[+]audit ok")
    });
    client.run(CODE, json!({})).unwrap();
    let resumed = failing.resumed();
    assert_eq!(resumed.len(), 1, "{resumed:?}");
    assert_eq!(resumed[0]["unwritten"], 7);
}

/// Who goes on without records while the disk fails does not end for good where it fails at a restart.
#[test]
fn a_start_without_records_is_refused_unless_an_operator_has_chosen_to_go_on() {
    let _alone = alone();
    let configured = |audit| Settings {
        extra: audit,
        ..Settings::default()
    };
    let house = House::new(configured("[audit]\nfsync = \"always\"\n"));
    let switch = house.path().join("the-disk-fails");
    let command = || failing_sync(&house, Path::new("/audit.jsonl"), &switch);
    house.start_as(command()).stop();
    fs::write(&switch, "").unwrap();
    let (code, said) = must_not_start(command());
    assert_eq!(code, Some(4), "{said}");
    assert!(said.contains("cannot write it: Input/output"), "{said}");

    let continues = "[audit]\nfsync = \"always\"\non_failure = \"continue\"\n";
    house.configure(configured(continues));
    let gateway = house.start_as(command());
    gateway.client().run(CODE, json!({})).unwrap();
    let is_shown = |text: &str| eventually(text, PATIENCE, || readyz(&gateway).1.contains(text));
    is_shown("[!]audit impaired: records are lost: Input/output error");
    fs::remove_file(&switch).unwrap();
    is_shown("[+]audit ok");
    gateway.client().run(CODE, json!({})).unwrap();
    gateway.stop();
    assert_holds(&house);
    let lines = lines(&path(&house));
    let mut events = lines.iter().filter(|line| line["kind"] == "log");
    // It started when it did, and not when the disk took the record of it.
    let mut late = events
        .clone()
        .skip(2)
        .map(|line| line["timestamp"].as_str());
    assert!(late.next() < late.next(), "{lines:?}");
    for (event, unwritten) in [
        ("started", 0),
        ("stopped", 0),
        ("started", 0),
        ("resumed", 2),
    ] {
        let next = events.next().unwrap();
        assert_eq!(
            (&next["event"], &next["unwritten"]),
            (&event.into(), &unwritten.into())
        );
    }
}

/// What is remembered of a log that was cut is all that shows it, until the record that says so is on the disk.
#[test]
fn a_start_without_records_keeps_what_is_remembered() {
    let _alone = alone();
    for fsync in ["always", "interval"] {
        let house = House::new(Settings {
            extra: &format!("[audit]\nfsync = \"{fsync}\"\non_failure = \"continue\"\n"),
            ..Settings::default()
        });
        let (log, switch) = (path(&house), house.path().join("the-disk-fails"));
        let memory = || fs::read_to_string(log.with_file_name("audit.jsonl.head")).unwrap();
        let start = || house.start_as(failing_sync(&house, Path::new("/audit.jsonl"), &switch));
        let gateway = start();
        gateway.client().run(CODE, json!({})).unwrap();
        gateway.stop();
        let whole = fs::read_to_string(&log).unwrap();
        let first = whole.split_inclusive('\n').next().unwrap();
        fs::write(&log, first).unwrap();
        let remembered = memory();

        fs::write(&switch, "").unwrap();
        let mut gateway = start();
        assert_eq!(memory(), remembered, "{fsync}");
        gateway.kill();
        let mut gateway = start();
        fs::remove_file(&switch).unwrap();
        eventually("it is written", PATIENCE, || {
            readyz(&gateway).1.contains("[+]audit ok")
        });
        let now: Value = serde_json::from_str(&memory()).unwrap();
        assert_eq!(now["is_last"], false, "{fsync}");
        gateway.kill();
        start().stop();
        assert_holds(&house);
        let mut started = lines(&log);
        started.retain(|line| line["event"] == "started");
        let had: Vec<_> = started.iter().map(|line| &line["had_at_least"]).collect();
        let had_once = json!(whole.lines().count());
        assert_eq!(had, [&Value::Null, &had_once, &Value::Null], "{fsync}");
    }
}

/// With `fsync = "interval"` a record counts before it is synced: what a failing sync tells comes later, and then counts.
#[test]
fn a_sync_that_fails_later_is_told_and_stops_what_comes_then() {
    let _alone = alone();
    let failing = Failing::start("fsync = \"interval\"\nfsync_interval_ms = 50");
    let mut client = failing.gateway.client();
    client.run(CODE, json!({})).unwrap();
    failing.fail();
    client
        .result("describe_skill", json!({ "name": "hello.world" }))
        .unwrap();
    eventually("it is told", PATIENCE, || {
        failing.metric("skillgate_audit_failures_total") >= 1
    });
    failing.mend();
    eventually("it is ready by itself", PATIENCE, || failing.ready());
    client.run(CODE, json!({})).unwrap();
    let resumed = failing.resumed();
    assert!(!resumed.is_empty());
    assert_eq!(resumed[0]["unwritten"], 0, "all records are in the file");
}

/// One record is on its way to a disk that hangs. Whoever waits for it does; the gateway goes on, also where nothing but that
/// went on in it: of an idle runtime one thread alone waits for the network and the clock, and that is the one which writes.
#[test]
fn a_write_that_hangs_holds_up_nobody_who_needs_no_record() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let switch = house.path().join("the-disk-hangs");
    let mut command = on_an_ailing_disk(&house);
    command
        .env("HANG_WRITE_OF", "/audit.jsonl")
        .env("HANG_WRITE_WHILE", &switch);
    let gateway = house.start_as(command);
    gateway.client().run(CODE, json!({})).unwrap();
    eventually("it is idle", PATIENCE, || gateway.is_idle());

    fs::write(&switch, "").unwrap();
    let mut caller = gateway.client();
    let recorded = std::thread::spawn(move || caller.run(CODE, json!({})));
    eventually("the record hangs", PATIENCE, || {
        Client::open(&gateway.admin).is_ok_and(|mut operator| {
            let ready = operator.get("/readyz?verbose");
            ready.is_ok_and(|ready| ready.status == 503 && ready.text().contains("[-]audit"))
        })
    });
    assert_eq!(gateway.client().get("/openrpc.json").unwrap().status, 200);
    fs::remove_file(&switch).unwrap();
    recorded.join().unwrap().unwrap();
    gateway.stop();
    assert_holds(&house);
}

/// Else a power cut would take away which rules were in force, and older ones would be taken. The process that enforces them knows
/// it all the same, and goes on trying.
#[test]
fn rules_that_are_not_durably_remembered_are_told_of() {
    let _alone = alone();
    let settings = Settings {
        server: "reload_watch_ms = 0",
        extra: "[policy]\npath = \"policies\"",
        ..Settings::default()
    };
    let house = House::new(settings);
    let policies = policy_in(&house, |_| ());
    let publish = |sequence: u64| {
        let metadata = json!({ "sequence": sequence });
        let manifest = json!({ "revision": "r", "roots": ["skills"], "metadata": metadata });
        fs::write(policies.join(".manifest"), manifest.to_string()).unwrap();
    };
    publish(7);
    let (last, switch) = (
        house.path().join("state/policy/last.json"),
        house.path().join("the-disk-fails"),
    );
    let said = "the policy's sequence could not be kept";
    fs::write(&switch, "").unwrap();
    // What is written, and then its name.
    for (of, is_there) in [("/state/policy/", false), ("/state/policy", true)] {
        let gateway = house.start_as(failing_sync(&house, Path::new(of), &switch));
        eventually("it is told", PATIENCE, || gateway.log().contains(said));
        assert_eq!(last.exists(), is_there, "{of}");
        gateway.stop();
    }
    fs::remove_file(&switch).unwrap();
    fs::remove_file(&last).unwrap();
    let gateway = house.start_as(failing_sync(&house, Path::new("/state/policy"), &switch));
    eventually("it is remembered", PATIENCE, || last.exists());
    assert!(!gateway.log().contains(said));
    gateway.stop();

    let gateway = house.start_as(failing_sync(&house, Path::new("/state/policy/"), &switch));
    let is_kept = |sequence: u64| {
        let kept: Value = serde_json::from_slice(&fs::read(&last).unwrap()).unwrap();
        kept["sequence"] == sequence
    };
    let is_shown = |text: &str| eventually(text, PATIENCE, || readyz(&gateway).1.contains(text));
    fs::write(&switch, "").unwrap();
    publish(8);
    reload(&gateway, TAKEN);
    assert!(gateway.log().contains(said) && is_kept(7));
    is_shown("[!]policy impaired: enforce, revision r for");
    is_shown(
        "the sequence is not on the disk, and a restart would take an older bundle: Input/output error",
    );
    publish(7);
    reload(&gateway, REFUSED);
    let why = "metadata.sequence is 7, and 8 of revision \"r\" was in force already";
    assert!(
        gateway.log().contains(&why.replace('"', "\\\"")),
        "{}",
        gateway.said()
    );
    fs::remove_file(&switch).unwrap();
    reload(&gateway, REFUSED);
    eventually("it is remembered", PATIENCE, || is_kept(8));
    is_shown("[+]policy ok");

    // A way back that was allowed once, and that the disk has not taken, is what is in force.
    fs::write(&switch, "").unwrap();
    publish(5);
    house.configure(Settings {
        extra: "[policy]\npath = \"policies\"\nallow_rollback = true",
        ..settings
    });
    reload(&gateway, TAKEN);
    house.configure(settings);
    reload(&gateway, TAKEN);
    assert!(is_kept(8));
    fs::remove_file(&switch).unwrap();
    reload(&gateway, TAKEN);
    eventually("it is remembered", PATIENCE, || is_kept(5));
    gateway.stop();
}

/// A process that ends with this.
pub(crate) struct Ends(pub(crate) Child);

impl Ends {
    /// How it has ended, which it does soon.
    pub(crate) fn status(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("it has ended", Duration::from_secs(20), || {
            status = self.0.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        let _gone_already = self.0.kill();
        let _status = self.0.wait();
    }
}

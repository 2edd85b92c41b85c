//! Changes while the gateway serves: taken whole, or refused whole with the place of the mistake.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use crate::alone;
use crate::jwt::{ask, auth};
use crate::keys::Issuer;
use crate::operator::{metrics, value};
use crate::policy::{narrow, policy_in};
use crate::stopping::{SLEEPS, begun};
use crate::support::gateway::{Gateway, House, Settings, is_root, signal};
use crate::support::look;
use crate::support::{eventually, writing_end};

const PATIENCE: Duration = Duration::from_secs(30);

fn configure(house: &House, policies: &Path, watch_ms: u64, more: &str) {
    house.configure(Settings {
        server: &format!("reload_watch_ms = {watch_ms}"),
        extra: &format!("[policy]\npath = {policies:?}\n{more}"),
        ..Settings::default()
    });
}

/// Asks for a reload and waits until the log says how it went.
fn reload(gateway: &Gateway, outcome: &str) {
    let before = gateway.log().matches(outcome).count();
    gateway.signal("HUP");
    eventually(outcome, PATIENCE, || {
        gateway.log().matches(outcome).count() > before
    });
}

/// `null` when a run is allowed, else the kind of the refusal.
fn refusal(gateway: &Gateway) -> Value {
    let code = json!({ "language": "python", "code": "def main(args):\n    return 1\n" });
    let mut reply = gateway.client().call("run_code", code).unwrap();
    reply["error"]["data"]["kind"].take()
}

const TAKEN: &str = "reloaded";
const REFUSED: &str = "reload refused";

/// The bundled rules, which are an example, are a default for the start. The operator's own, found in the working directory, do not
/// give way to them because that is away for a moment.
#[test]
fn rules_whose_directory_is_away_stay_in_force() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let policies = policy_in(&house, narrow);
    house.configure(Settings {
        server: "reload_watch_ms = 0",
        ..Settings::default()
    });
    let gateway = house.start();
    assert_eq!(refusal(&gateway), "policy_denied");
    let aside = house.path().join("aside");
    fs::rename(&policies, &aside).unwrap();
    reload(&gateway, REFUSED);
    assert_eq!(refusal(&gateway), "policy_denied");
    fs::rename(&aside, &policies).unwrap();
    reload(&gateway, TAKEN);
    assert_eq!(refusal(&gateway), "policy_denied");
    assert!(!gateway.log().contains("which are an example"));
    gateway.stop();

    // And where there were none at the start, those that come later wait for the next one.
    fs::rename(&policies, &aside).unwrap();
    let gateway = house.start();
    assert!(gateway.log().contains("which are an example"));
    fs::rename(&aside, &policies).unwrap();
    reload(&gateway, TAKEN);
    assert_eq!(refusal(&gateway), Value::Null);
    gateway.stop();
}

/// While it makes itself ready, a service manager or a script may ask for a reload already.
#[test]
fn a_reload_that_is_asked_for_during_the_start_comes_after_it() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let serve = house.command();
    let mut command = Command::new("sh");
    command
        .args(["-c", "echo $$ > pid; exec \"$@\"", "sh"])
        .arg(serve.get_program())
        .args(serve.get_args());
    house.clean(&mut command);
    std::thread::scope(|scope| {
        let gateway = scope.spawn(|| house.start_as(command));
        eventually("it has begun", PATIENCE, || {
            let log = fs::read_to_string(house.path().join("stderr.log"));
            log.is_ok_and(|log| log.contains("policy passed its trial"))
        });
        let pid = fs::read_to_string(house.path().join("pid")).unwrap();
        signal("HUP", pid.trim().parse().unwrap());
        let gateway = gateway.join().unwrap();
        eventually(TAKEN, PATIENCE, || gateway.log().contains(TAKEN));
        gateway.stop();
    });
}

/// Also while it reads its configuration, of which it may have missed what was written just then; and as process 1, which hands
/// it on.
#[test]
fn a_reload_that_is_asked_for_while_the_configuration_is_read_comes_too() {
    let _alone = alone();
    let mut ways: Vec<&[&str]> = vec![&[]];
    if is_root() {
        ways.push(&["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]);
    }
    for way in ways {
        let house = House::new(Settings::default());
        let text = fs::read(house.config()).unwrap();
        fs::remove_file(house.config()).unwrap();
        let made = Command::new("mkfifo").arg(house.config()).status().unwrap();
        assert!(made.success());
        let serve = house.command();
        let mut command = Command::new("sh");
        command
            .args(["-c", "echo $$ > pid; exec \"$@\"", "sh"])
            .args(way)
            .arg(serve.get_program())
            .args(serve.get_args());
        house.clean(&mut command);
        std::thread::scope(|scope| {
            let gateway = scope.spawn(|| house.start_as(command));
            // Comes back when somebody reads.
            let mut pipe = writing_end(&house.config(), PATIENCE);
            let pid = fs::read_to_string(house.path().join("pid")).unwrap();
            let mut pid = pid.trim().parse().unwrap();
            if !way.is_empty() {
                // Of `unshare`, which only waits.
                pid = look::descendants(pid)[0].pid;
            }
            signal("HUP", pid);
            // Process 1 has to hear of it, which nothing shows, before the other one goes on.
            std::thread::sleep(Duration::from_millis(300));
            // Nobody is there to read it where the signal has ended the gateway: its start says so.
            let _broken = pipe.write_all(&text);
            drop(pipe);
            let mut gateway = gateway.join().unwrap();
            gateway.pid = pid;
            eventually(TAKEN, PATIENCE, || gateway.log().contains(TAKEN));
            gateway.signal("TERM");
            assert!(gateway.end(PATIENCE).success(), "{}", gateway.said());
        });
    }
}

#[test]
fn all_of_a_change_or_nothing_of_it() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let policies = policy_in(&house, |_| ());
    configure(&house, &policies, 0, "");
    let gateway = house.start();
    assert_eq!(refusal(&gateway), Value::Null);

    policy_in(&house, narrow);
    assert_eq!(
        refusal(&gateway),
        Value::Null,
        "nobody has asked for it yet"
    );
    reload(&gateway, TAKEN);
    assert_eq!(refusal(&gateway), "policy_denied");

    // A mistake on its third line, and at the same time a limit that would be fine.
    policy_in(&house, |_| ());
    let custom = policies.join("skills/custom/custom.rego");
    fs::write(&custom, "package skills.custom\n\ndeny contains {\n").unwrap();
    let limit = "[[rate_limit]]\nname = \"few\"\nkey = [\"method\"]\nquota = 1\nper_s = 1000\n";
    configure(&house, &policies, 0, limit);
    reload(&gateway, REFUSED);
    assert!(
        gateway.log().contains("skills/custom/custom.rego:"),
        "{}",
        gateway.log()
    );
    assert_eq!(refusal(&gateway), "policy_denied", "the last good rules");
    assert_eq!(gateway.client().get("/readyz").unwrap().status, 200);

    policy_in(&house, |_| ());
    reload(&gateway, TAKEN);
    assert_eq!(refusal(&gateway), Value::Null);
    assert_eq!(
        refusal(&gateway),
        "rate_limited",
        "one in a thousand seconds"
    );

    let text = fs::read_to_string(house.config()).unwrap();
    fs::write(
        house.config(),
        format!("{text}\n[polizy]\nmode = \"off\"\n"),
    )
    .unwrap();
    reload(&gateway, REFUSED);
    assert!(
        gateway.log().contains("polizy: unknown"),
        "{}",
        gateway.log()
    );
    assert_eq!(refusal(&gateway), "rate_limited");

    // Whoever can write the file must not open a door that the address was not chosen for.
    let keys = house.path().join("keys.json");
    fs::write(&keys, "{\"keys\": []}").unwrap();
    let jwt = format!(
        "{text}\n[auth]\nmode = \"jwt\"\n[[auth.issuers]]\nissuer = \"https://idp.example.com\"\naudiences = [\"skillgate\"]\njwks_file = {keys:?}\nalgorithms = [\"ES256\"]\n"
    );
    fs::write(house.config(), jwt).unwrap();
    reload(&gateway, REFUSED);
    assert!(
        gateway.log().contains("auth.mode cannot change"),
        "{}",
        gateway.log()
    );
    gateway.stop();
}

/// Also where that was so before the log was there to say it.
#[test]
fn that_not_all_files_are_looked_at_is_said() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let policies = policy_in(&house, |_| ());
    let notes = policies.join("notes");
    fs::create_dir(&notes).unwrap();
    for number in 0..10_001 {
        fs::write(notes.join(format!("{number}.txt")), "").unwrap();
    }
    configure(&house, &policies, 20, "");
    let gateway = house.start();
    let said = || gateway.log().matches("is seen on SIGHUP only").count();
    eventually("it is said", PATIENCE, || said() > 0);
    reload(&gateway, TAKEN);
    assert_eq!(said(), 1, "once is enough");
    gateway.stop();
}

#[test]
fn a_changed_file_is_taken_without_a_signal() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let policies = policy_in(&house, |_| ());
    configure(&house, &policies, 20, "");
    let gateway = house.start();
    assert_eq!(refusal(&gateway), Value::Null);
    // As a deployment does it: a whole new directory under the same name.
    fs::rename(&policies, house.path().join("old")).unwrap();
    policy_in(&house, narrow);
    eventually("the new rules are in force", PATIENCE, || {
        refusal(&gateway) == "policy_denied"
    });
    gateway.stop();
}

#[test]
fn a_file_that_comes_after_it_was_named_is_taken_without_a_signal() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let ready = house.path().join("ready");
    fs::rename(policy_in(&house, narrow), &ready).unwrap();
    let policies = policy_in(&house, |_| ());
    configure(&house, &policies, 20, "");
    let gateway = house.start();
    let next = house.path().join("policies-next");
    configure(&house, &next, 20, "");
    eventually("it is not there yet", PATIENCE, || {
        gateway.log().contains(REFUSED)
    });
    assert_eq!(refusal(&gateway), Value::Null, "the last good rules");
    fs::rename(ready, next).unwrap();
    eventually("the new rules are in force", PATIENCE, || {
        refusal(&gateway) == "policy_denied"
    });
    gateway.stop();
}

#[test]
fn a_change_during_the_start_is_taken_without_a_signal() {
    let _alone = alone();
    let keys = Arc::new(Mutex::new(Some("{\"keys\": []}".to_owned())));
    let issuer = Issuer::start(&keys);
    let auth = auth(&format!("jwks_url = \"{}\"", issuer.url), r#"["ES256"]"#);
    let house = House::new(Settings::default());
    let policies = policy_in(&house, |_| ());
    configure(&house, &policies, 20, &auth);
    let gateway = std::thread::scope(|scope| {
        // The issuer answers when this is let go: until then the start waits for its keys.
        let held = keys.lock().unwrap();
        let starting = scope.spawn(|| house.start());
        eventually("the issuer is asked", PATIENCE, || {
            *issuer.asked.lock().unwrap() > 0
        });
        let limit = "[[rate_limit]]\nname = \"few\"\nkey = [\"ip\"]\nquota = 1\nper_s = 1000\n";
        configure(&house, &policies, 20, &format!("{auth}{limit}"));
        drop(held);
        starting.join().unwrap()
    });
    let mut client = gateway.client();
    eventually("the limit is in force", PATIENCE, || {
        ask(&mut client, &[], b"{}").status == 429
    });
    gateway.stop();
}

#[test]
fn a_run_that_waits_is_not_begun_under_rules_that_are_gone() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let policies = policy_in(&house, |_| ());
    house.configure(Settings {
        server: "reload_watch_ms = 0",
        runs: "max_concurrent = 1",
        extra: &format!("[policy]\npath = {policies:?}\n"),
        ..Settings::default()
    });
    let gateway = house.start();
    let first = begun(&gateway, SLEEPS);
    std::thread::scope(|scope| {
        let second = scope.spawn(|| refusal(&gateway));
        eventually("the second waits", PATIENCE, || {
            value(&metrics(&gateway), "skillgate_run_queue_depth ") == 1.0
        });
        policy_in(&house, narrow);
        reload(&gateway, TAKEN);
        first.hang_up();
        assert_eq!(second.join().unwrap(), "unavailable");
    });
    assert_eq!(refusal(&gateway), "policy_denied");
    gateway.stop();
}

#[test]
fn a_run_that_waits_outlasts_a_reload_of_something_else() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let settings = |limit| Settings {
        server: "reload_watch_ms = 0",
        runs: "max_concurrent = 1",
        extra: limit,
        ..Settings::default()
    };
    house.configure(settings(""));
    let gateway = house.start();
    let first = begun(&gateway, SLEEPS);
    std::thread::scope(|scope| {
        let second = scope.spawn(|| {
            gateway
                .client()
                .run("def main(args):\n    return 7\n", json!({}))
        });
        eventually("the second waits", PATIENCE, || {
            value(&metrics(&gateway), "skillgate_run_queue_depth ") == 1.0
        });
        house.configure(settings(
            "[[rate_limit]]\nname = \"wide\"\nkey = [\"tenant\"]\nquota = 1000\nper_s = 1\nburst = 1000\n",
        ));
        reload(&gateway, TAKEN);
        first.hang_up();
        assert_eq!(second.join().unwrap().unwrap()["output"], 7);
    });
    gateway.stop();
}

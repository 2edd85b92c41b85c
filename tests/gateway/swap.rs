//! Plugins are exchanged while the gateway serves: the new one takes over, the old one ends what it has begun, and no call
//! fails; nor does one when the new one is no good.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::json;

use crate::operator::{metrics, value};
use crate::support::gateway::{Gateway, House, Settings};
use crate::support::http::Client;
use crate::support::look;
use crate::support::{Over, eventually, writing_end};
use crate::{alone, count, unread};

mod bundled;
mod hung;

const PATIENCE: Duration = Duration::from_secs(30);
const CLIENTS: u64 = 3;

pub(crate) const TAKEN: &str = "reloaded: ";
const REFUSED: &str = "reload refused";

/// The bundled plugins as a vendor's: files of their own, named by their paths.
struct Vendor<'a> {
    house: &'a House,
    usual: String,
}

impl<'a> Vendor<'a> {
    fn new(house: &'a House, watch_ms: u64) -> Self {
        house.configure(Settings {
            server: &format!("reload_watch_ms = {watch_ms}"),
            ..Settings::default()
        });
        let vendor = Vendor {
            usual: fs::read_to_string(house.config()).unwrap(),
            house,
        };
        vendor.release("storage", 0);
        vendor.release("sandbox", 0);
        vendor.configure("gateway", "");
        vendor
    }

    fn file(&self, kind: &str) -> PathBuf {
        self.house.path().join(format!("{kind}.so"))
    }

    /// Puts a file in its place, as a whole.
    fn install(&self, kind: &str, bytes: &[u8]) {
        use std::os::unix::fs::PermissionsExt as _;
        let new = self.house.path().join("new");
        fs::write(&new, bytes).unwrap();
        fs::set_permissions(&new, fs::Permissions::from_mode(0o644)).unwrap();
        fs::rename(new, self.file(kind)).unwrap();
    }

    /// Another file of the same plugin: what follows an ELF file's last section is nobody's.
    fn release(&self, kind: &str, number: u64) {
        let name = match kind {
            "storage" => "libskillgate_storage_fs.so",
            _ => "libskillgate_sandbox_process.so",
        };
        let program = Path::new(env!("CARGO_BIN_EXE_skillgate"));
        let file = program.parent().unwrap().join("deps").join(name);
        let mut bytes = fs::read(file).unwrap();
        bytes.extend_from_slice(format!("release {number}").as_bytes());
        self.install(kind, &bytes);
    }

    /// Where the store is, and more of its section.
    fn configure(&self, isolation: &str, more: &str) {
        let with = |kind: &str, isolation: &str| {
            let path = self.file(kind);
            format!("path = {path:?}\nallow_unsigned = true\nisolation = {isolation:?}")
        };
        let text = self
            .usual
            .replace(r#"name = "storage-fs""#, &with("storage", isolation))
            .replace(r#"name = "sandbox-process""#, &with("sandbox", "process"))
            .replace("config = { root =", &format!("config = {{ {more} root ="));
        assert!(text.contains("storage.so") && text.contains("sandbox.so"));
        fs::write(self.house.config(), text).unwrap();
    }
}

/// Has the configuration name another directory of this name as the store.
pub(crate) fn another_store(house: &House) -> impl Fn(&str) {
    let usual = fs::read_to_string(house.config()).unwrap();
    move |name| {
        let store = format!("{:?}", house.path().join(name));
        let text = usual.replace(&format!("{:?}", house.store()), &store);
        fs::write(house.config(), text).unwrap();
    }
}

/// Asks for a reload and waits until the log says how it went.
pub(crate) fn reload(gateway: &Gateway, outcome: &str) {
    let before = gateway.log().matches(outcome).count();
    gateway.signal("HUP");
    eventually(outcome, PATIENCE, || {
        gateway.log().matches(outcome).count() > before
    });
}

/// What the operator sees of reloads.
pub(crate) fn readyz(gateway: &Gateway) -> (u16, String) {
    let mut operator = Client::open(&gateway.admin).unwrap();
    let answer = operator.get("/readyz?verbose").unwrap();
    (answer.status, answer.text())
}

/// Stores, reads and runs until it is told to stop. Every answer that is not the right one, as text.
fn client(gateway: &Gateway, number: u64, stop: &AtomicBool, answered: &AtomicU64) -> Vec<String> {
    let mut client = gateway.client();
    let mut wrong = Vec::new();
    let mut round = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        round += 1;
        let content = format!("{number} {round}");
        let params = json!({ "content": content, "kind": "text/plain" });
        let made = client.call("create_blob", params);
        let id = made.as_ref().map(|it| it["result"]["blob_id"].clone());
        let read = match id {
            Ok(id) if id.is_string() => {
                client.call("read_blob", json!({ "blob_id": id, "mode": "full" }))
            }
            _ => {
                wrong.push(format!("create_blob: {made:?}"));
                continue;
            }
        };
        if !read
            .as_ref()
            .is_ok_and(|it| it["result"]["content"] == content)
        {
            wrong.push(format!("read_blob: {read:?}"));
        }
        // A run makes a blob, too: its thread asks for the store in the middle of it.
        if round.is_multiple_of(4) {
            let code = "from runtime import blobs\n\ndef main(args):\n    return len(blobs.write_text('x' * 10))\n";
            let ran = client.call("run_code", json!({ "language": "python", "code": code }));
            let completed = ran
                .as_ref()
                .is_ok_and(|it| it["result"]["status"] == "completed");
            if !completed {
                wrong.push(format!("run_code: {ran:?}"));
            }
        }
        answered.fetch_add(1, Ordering::Relaxed);
    }
    wrong
}

#[test]
fn no_call_fails_while_plugins_are_exchanged() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let vendor = Vendor::new(&house, 0);
    let gateway = house.start();
    let rounds = count(5, 50);
    let (stop, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    let goes_on = || {
        let before = answered.load(Ordering::Relaxed);
        eventually("calls are answered", PATIENCE, || {
            answered.load(Ordering::Relaxed) >= before + 4 * CLIENTS
        });
    };
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|n| {
                let (gateway, stop, answered) = (&gateway, &stop, &answered);
                scope.spawn(move || client(gateway, n, stop, answered))
            })
            .collect();
        // A failed check must end the clients, too.
        let checks = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            goes_on();
            for round in 1..=rounds {
                vendor.release("storage", round);
                vendor.release("sandbox", round);
                let isolation = if round % 2 == 0 { "gateway" } else { "process" };
                vendor.configure(isolation, "");
                reload(&gateway, TAKEN);
                goes_on();
            }
            let log = gateway.log();
            let swapped = |what: &str| log.matches(what).count() as u64;
            assert_eq!(swapped("the new plugin has the store"), rounds);
            assert_eq!(swapped("new runs go to the new plugin"), rounds);

            broken(&vendor, &gateway, &goes_on);
            // And a good one after all that.
            vendor.release("sandbox", rounds + 1);
            vendor.configure("gateway", "");
            reload(&gateway, TAKEN);
            eventually("the operator sees that all is well", PATIENCE, || {
                readyz(&gateway).1.contains("[+]reload ok")
            });
            goes_on();
        }));
        stop.store(true, Ordering::Relaxed);
        let wrong = clients.into_iter().flat_map(|it| it.join().unwrap());
        let wrong = wrong.collect();
        if let Err(failed) = checks {
            eprintln!(
                "the gateway said: {}",
                gateway
                    .log()
                    .lines()
                    .filter(|line| !line.contains("request{"))
                    .collect::<Vec<_>>()
                    .join("\n")
            );
            std::panic::resume_unwind(failed);
        }
        wrong
    });
    println!(
        "{} exchanges of each plugin, {} rounds of calls, {} wrong answers",
        rounds,
        answered.load(Ordering::Relaxed),
        wrong.len()
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // Of the old ones nothing is left.
    eventually("the old plugins end", PATIENCE, || {
        let all = look::descendants(gateway.pid);
        all.iter().filter(|it| it.name == "skillgate-runs").count() == 1
            && all.iter().filter(|it| it.name == "skillgate-host").count() == 1
    });
    gateway.stop();
}

/// New plugins that are no good: refused, said so, and the old ones serve on.
fn broken(vendor: &Vendor<'_>, gateway: &Gateway, goes_on: &dyn Fn()) {
    let refused = |why: &str| {
        reload(gateway, REFUSED);
        // What is shown may be some seconds old.
        eventually("the operator is told", PATIENCE, || {
            let (status, text) = readyz(gateway);
            assert_eq!(status, 200, "{text}");
            text.contains("refused, the last good state is kept") && text.contains(why)
        });
        let log = gateway.log();
        let line = log.lines().rfind(|line| line.contains(REFUSED)).unwrap();
        assert!(line.contains(why), "{line}");
        goes_on();
    };
    // A file that is not one.
    let whole = fs::read(vendor.file("sandbox")).unwrap();
    vendor.install("sandbox", &whole[..4096]);
    refused("plugins.sandbox: ");
    vendor.install("sandbox", &whole);
    // One that loads and does not start: the store has been let go by then, and is taken again.
    vendor.configure("gateway", "no_such_key = 1,");
    refused("no_such_key");
    // Another sandbox would be decided about in another way.
    let text = fs::read_to_string(vendor.house.config()).unwrap();
    fs::rename(vendor.file("sandbox"), vendor.file("other")).unwrap();
    fs::write(
        vendor.house.config(),
        text.replace("sandbox.so", "other.so")
            .replace("no_such_key = 1,", ""),
    )
    .unwrap();
    refused("policies decide by the sandbox's name");
    fs::rename(vendor.file("other"), vendor.file("sandbox")).unwrap();
}

/// Runs that the sandbox has ended well, and those that go on.
fn counted(gateway: &Gateway) -> (u64, u64) {
    let page = metrics(gateway);
    let ended = r#"skillgate_plugin_calls_total{plugin="sandbox",op="run",outcome="ok"}"#;
    let going = r#"skillgate_plugin_calls_in_flight{plugin="sandbox"}"#;
    (value(&page, ended) as u64, value(&page, going) as u64)
}

/// A run that is under way stays where it began, and ends there.
#[test]
fn a_file_that_has_changed_is_taken_without_a_signal_and_runs_go_on() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let vendor = Vendor::new(&house, 20);
    let mut gateway = house.start();
    let before = gateway.launcher().pid;
    std::thread::scope(|scope| {
        let run = scope.spawn(|| {
            // Longer than a slow machine takes to load a plugin.
            let code = "import time\n\ndef main(args):\n    time.sleep(8)\n    return 'from the old one'\n";
            gateway
                .client()
                .call("run_code", json!({ "language": "python", "code": code }))
        });
        eventually("the run begins", PATIENCE, || !gateway.inside().is_empty());
        vendor.release("sandbox", 1);
        eventually("the new one is taken", PATIENCE, || {
            gateway.log().contains("new runs go to the new plugin")
        });
        assert!(!run.is_finished(), "the run goes on");
        let other = gateway
            .client()
            .run(
                "def main(args):\n    return 'from the new one'\n",
                json!({}),
            )
            .unwrap();
        assert_eq!(other["output"], "from the new one");
        eventually("the run that goes on is seen, too", PATIENCE, || {
            counted(&gateway) == (1, 1)
        });
        let ran = run.join().unwrap().unwrap();
        assert_eq!(ran["result"]["output"], "from the old one", "{ran}");
        eventually("it is counted", PATIENCE, || counted(&gateway) == (2, 0));
    });
    eventually("the old one ends", PATIENCE, || {
        gateway.log().contains("the old plugin has ended")
            && !look::descendants(gateway.pid)
                .iter()
                .any(|process| process.pid == before)
    });

    // The second one has a name of its own: whoever starts next removes what it left.
    let state = house.path().join("state/sandbox-2");
    assert!(state.is_dir());
    gateway.kill();
    let gateway = house.start();
    let swept = r#"removed what an exchanged sandbox left instance="sandbox-2""#;
    assert!(gateway.log().contains(swept), "{}", gateway.said());
    assert!(!state.exists());
    gateway.stop();
}

/// A store is not taken away from an upload that is under way: the exchange is given up, calls that waited for it go on, and
/// so does the upload.
#[test]
fn a_slow_upload_keeps_its_store() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let vendor = Vendor::new(&house, 0);
    let gateway = house.start();
    let mut upload = gateway.client();
    upload
        .head(
            "POST",
            "/blobs",
            &[("content-type", "text/plain"), ("content-length", "10")],
        )
        .unwrap();
    upload.write(b"01234").unwrap();
    eventually("the upload has begun", PATIENCE, || house.unfinished() > 0);
    vendor.release("storage", 1);
    let (stop, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    let wrong = std::thread::scope(|scope| {
        let over = Over(&stop);
        // Sooner or later one of these meets the exchange; none fails.
        let calls = scope.spawn(|| client(&gateway, 0, &stop, &answered));
        reload(&gateway, REFUSED);
        drop(over);
        calls.join().unwrap()
    });
    assert!(wrong.is_empty(), "{wrong:?}");
    assert!(
        gateway
            .log()
            .contains("calls of the store have gone on for 5 s"),
        "{}",
        gateway.said()
    );
    upload.write(b"56789").unwrap();
    let answer = upload.answer().unwrap();
    assert_eq!(answer.status, 201, "{}", answer.text());
    // Nobody has it any more.
    reload(&gateway, TAKEN);
    assert!(gateway.log().contains("the new plugin has the store"));
    gateway.stop();
}

/// Nor does a client that reads nothing of a blob: it is let go while the exchange waits.
#[test]
fn a_download_that_nobody_reads_gives_up_its_store() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let vendor = Vendor::new(&house, 0);
    let text = fs::read_to_string(house.config()).unwrap();
    let text = text.replace("[server]\n", "[server]\nwrite_timeout_ms = 1000\n");
    fs::write(house.config(), text).unwrap();
    let gateway = house.start();
    let path = unread::large_blob(&mut gateway.client());
    let (_unread, _head) = unread::asks(&gateway, &path);
    vendor.release("storage", 1);
    reload(&gateway, TAKEN);
    let log = gateway.log();
    assert!(log.contains("the new plugin has the store") && !log.contains(REFUSED));
    gateway.stop();
}

/// Installs an example in C a function of which waits until somebody opens the pipe that this gives.
fn install_waiting(vendor: &Vendor<'_>, kind: &str, source: &str, function: &str) -> PathBuf {
    let plugins = Path::new(env!("CARGO_MANIFEST_DIR")).join("plugins");
    let dir = vendor.house.path();
    let pipe = dir.join(format!("{kind}.pipe"));
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let text = fs::read_to_string(plugins.join("example-c").join(source)).unwrap();
    let begin = text.find(function).unwrap();
    let body = begin + text[begin..].find("{\n").unwrap() + 2;
    let waits = format!(
        "    FILE *waits = fopen({pipe:?}, \"r\");\n    if (waits != NULL) fclose(waits);\n"
    );
    let file = dir.join(source);
    let text = ["#include <stdio.h>\n", &text[..body], &waits, &text[body..]].concat();
    // What says that it is before all other headers stays so.
    let text = format!(
        "#define _GNU_SOURCE\n{}",
        text.replace("#define _GNU_SOURCE", "")
    );
    fs::write(&file, text).unwrap();
    let built = dir.join(format!("{kind}.waiting.so"));
    let output = Command::new("cc")
        .args(["-fPIC", "-shared", "-pthread", "-I"])
        .arg(plugins.join("abi/include"))
        .arg("-o")
        .args([&built, &file])
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    vendor.install(kind, &fs::read(built).unwrap());
    pipe
}

/// Whoever waits for the pipe goes on.
fn open(pipe: &Path) {
    drop(writing_end(pipe, PATIENCE));
}

const CREATE: &str = "static int32_t create(";
const DESTROY: &str = "static void destroy(";

/// Long enough for a plugin that comes up.
const CREATE_MAX: &str = "[plugins]\nprocess_start_timeout_ms = 10000\n";

/// Nobody waits for ever for a store that does not come up: the exchange is given up, and the one before is back as soon as
/// the other cannot have its data any more.
#[test]
fn a_store_that_does_not_come_up_is_given_up() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let vendor = Vendor::new(&house, 0);
    let text = fs::read_to_string(house.config()).unwrap();
    fs::write(house.config(), text.replace("[plugins]\n", CREATE_MAX)).unwrap();
    let gateway = house.start();
    let pipe = install_waiting(&vendor, "storage", "store.c", CREATE);
    gateway.signal("HUP");
    eventually("it is given up", PATIENCE, || {
        gateway.log().contains("a plugin does not come up")
    });
    let mut client = gateway.client();
    let waiting = std::thread::spawn(move || {
        let params = json!({ "content": "a", "kind": "text/plain" });
        client.call("create_blob", params)
    });
    open(&pipe);
    let answer = waiting.join().unwrap().unwrap();
    assert!(answer["result"]["blob_id"].is_string(), "{answer}");
    eventually("the exchange is refused", PATIENCE, || {
        gateway.log().contains(REFUSED)
    });
    let log = gateway.log();
    let line = log.lines().rfind(|line| line.contains(REFUSED)).unwrap();
    assert!(
        line.contains("its create() goes on for longer than 10000 ms"),
        "{line}"
    );
    gateway.stop();
}

/// A sandbox that does not come up keeps no other reload from being taken, and its name is no other's until it has ended.
#[test]
fn a_sandbox_that_does_not_come_up_is_given_up() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let vendor = Vendor::new(&house, 0);
    let text = fs::read_to_string(house.config()).unwrap();
    let text = text.replace("[plugins]\n", CREATE_MAX);
    let text = text.replace(r#"isolation = "process""#, r#"isolation = "gateway""#);
    fs::write(house.config(), text).unwrap();
    let gateway = house.start();
    let pipe = install_waiting(&vendor, "sandbox", "echo.c", CREATE);
    reload(&gateway, REFUSED);
    assert!(
        gateway
            .log()
            .contains("its create() goes on for longer than 10000 ms")
    );
    vendor.release("sandbox", 1);
    reload(&gateway, TAKEN);
    assert!(house.path().join("state/sandbox-3").is_dir());
    open(&pipe);
    eventually("what came too late has ended", PATIENCE, || {
        gateway
            .log()
            .contains(r#"the old plugin has ended part="plugins.sandbox" instance="sandbox-2""#)
    });
    gateway.stop();
}

/// A sandbox that was made for a reload that is refused ends as slowly as any other: its name is no other's until then.
#[test]
fn a_sandbox_that_is_not_taken_keeps_its_name_until_it_has_ended() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let vendor = Vendor::new(&house, 0);
    let gateway = house.start();
    let pipe = install_waiting(&vendor, "sandbox", "echo.c", DESTROY);
    vendor.configure("gateway", "no_such_key = 1,");
    let text = fs::read_to_string(house.config()).unwrap();
    let text = text.replace(r#"isolation = "process""#, r#"isolation = "gateway""#);
    fs::write(house.config(), text).unwrap();
    reload(&gateway, REFUSED);
    reload(&gateway, REFUSED);
    let state = house.path().join("state");
    assert!(state.join("sandbox-2").is_dir() && state.join("sandbox-3").is_dir());
    // Both ends of it: nobody waits for it any more.
    let both = fs::OpenOptions::new().read(true).write(true).open(&pipe);
    eventually("both have ended", PATIENCE, || {
        gateway.log().matches("the old plugin has ended").count() == 2
    });
    drop(both);
    gateway.stop();
}

/// A run that waits while the store is exchanged was decided about as the store before had its skill. The new one may have
/// something else under the same name and version, at which nobody has looked.
#[test]
fn a_run_that_waited_is_of_the_skill_that_was_decided_about() {
    let _alone = alone();
    let house = House::new(Settings {
        runs: "max_concurrent = 1",
        ..Settings::default()
    });
    let in_store = another_store(&house);
    let publish = |gateway: &Gateway, said: &str| {
        let params = json!({
            "manifest": {
                "name": "acme.says", "version": "1.0.0", "description": "Says.", "kind": "action", "namespace": "acme",
                "runtime": { "language": "python", "entrypoint": "code/main.py", "export": "main" },
            },
            "skill_md": "---\nname: acme.says\n---\n",
            "files": [{ "path": "code/main.py", "content": format!("def main(args):\n    return {said:?}\n") }],
        });
        gateway.client().result("create_skill", params).unwrap();
    };
    let executes = json!({ "name": "acme.says", "args": {} });
    let gateway = house.start();
    publish(&gateway, "the first");
    in_store("same");
    reload(&gateway, TAKEN);
    publish(&gateway, "the first");
    in_store("other");
    reload(&gateway, TAKEN);
    publish(&gateway, "another");

    for (next, outcome) in [("same", Some("the first")), ("other", None)] {
        in_store("store");
        reload(&gateway, TAKEN);
        let mut holds = gateway.client();
        let code = "import time\n\ndef main(args):\n    time.sleep(1000)\n";
        holds
            .ask("run_code", json!({ "language": "python", "code": code }))
            .unwrap();
        eventually("a run goes on", PATIENCE, || {
            metrics(&gateway).contains("skillgate_runs_in_flight 1")
        });
        let mut waits = gateway.client();
        waits.ask("execute_skill", executes.clone()).unwrap();
        eventually("another one waits", PATIENCE, || {
            metrics(&gateway).contains("skillgate_run_queue_depth 1")
        });
        in_store(next);
        reload(&gateway, TAKEN);
        drop(holds);
        let answer = waits.answer().unwrap().json().unwrap();
        match outcome {
            Some(said) => assert_eq!(answer["result"]["output"], said, "{next}: {answer}"),
            None => {
                let error = &answer["error"];
                assert_eq!(error["code"], -32007, "{next}: {answer}");
                assert_eq!(error["data"]["kind"], "unavailable");
                let said = gateway.client().result("execute_skill", executes.clone());
                assert_eq!(said.unwrap()["output"], "another", "called again");
            }
        }
    }
    gateway.stop();
}

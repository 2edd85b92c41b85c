//! The examples for vendors, loaded by the real gateway: it says what they are not.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::alone;
use crate::audit;
use crate::support::gateway::{House, Settings};
use crate::support::http::Client;
use crate::support::{eventually, writing_end};

const PATIENCE: Duration = Duration::from_secs(30);

/// Compiles one of `plugins/example-c` into the house; its section of the configuration.
fn example(house: &House, name: &str) -> String {
    let source = plugins().join(format!("example-c/{name}.c"));
    compiled(house, name, &source)
}

pub(crate) fn plugins() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("plugins")
}

pub(crate) fn compiled(house: &House, name: &str, source: &Path) -> String {
    let file = house.path().join(format!("{name}.so"));
    let output = Command::new("cc")
        .args(["-std=c99", "-fPIC", "-shared", "-pthread", "-I"])
        .arg(plugins().join("abi/include"))
        .arg("-o")
        .args([&file, source])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    format!("path = {file:?}\nallow_unsigned = true")
}

/// The same, with other words in the place of some.
pub(crate) fn changed(house: &House, name: &str, changes: &[(&str, &str)]) -> String {
    let mut text = std::fs::read_to_string(plugins().join(format!("example-c/{name}.c"))).unwrap();
    for (from, to) in changes {
        assert!(text.contains(from), "{from}");
        text = text.replace(from, to);
    }
    let source = house.path().join(format!("changed-{name}.c"));
    std::fs::write(&source, text).unwrap();
    compiled(house, &format!("changed-{name}"), &source)
}

/// Puts it in the place of a bundled plugin, whose configuration is not its own.
pub(crate) fn instead(text: &str, bundled: &str, section: &str) -> String {
    let begin = text.find(bundled).unwrap();
    let config = begin + text[begin..].find("config = ").unwrap();
    let end = config + text[config..].find('\n').unwrap();
    format!("{}{section}{}", &text[..begin], &text[end..])
}

#[test]
fn a_sandbox_that_runs_no_python_refuses_every_run_and_says_why() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let text = std::fs::read_to_string(house.config()).unwrap();
    let echo = example(&house, "echo");
    let text = instead(&text, r#"name = "sandbox-process""#, &echo);
    std::fs::write(house.config(), text).unwrap();
    let gateway = house.start();
    let code = "def main(args):\n    return 1\n";
    let params = json!({ "language": "python", "code": code });
    let answer = gateway.client().call("run_code", params).unwrap();
    let error = &answer["error"];
    assert_eq!(error["data"]["kind"], "language_unsupported", "{answer}");
    let said = "the sandbox of this gateway does not run \"python\"";
    assert_eq!(error["message"], said, "{answer}");
    // The plugin's own words are the operator's.
    assert!(!answer.to_string().contains("echo"), "{answer}");
    let log = gateway.log();
    assert!(
        log.contains("this sandbox runs") && log.contains("echo"),
        "{log}"
    );
    gateway.stop();
}

/// The contract: the host cancels at `wall_ms`. One that enforces it itself gets a moment to say so.
#[test]
fn a_run_is_cancelled_at_its_deadline_unless_its_sandbox_ends_it() {
    let _alone = alone();
    const WALL_MS: u64 = 300;
    const OVERTIME_MS: u64 = 2000;
    let house = House::new(Settings::default());
    let usual = std::fs::read_to_string(house.config()).unwrap();
    let seen = house.path().join("seen");
    let clock = "#define _POSIX_C_SOURCE 200809L\n#include \"skillgate_plugin.h\"\n#include <stdio.h>\n#include <time.h>\n\
        static struct timespec began;\n";
    let begins = "int added;\n    clock_gettime(CLOCK_MONOTONIC, &began);";
    let writes = format!(
        "{{ struct timespec now; FILE *file = fopen({seen:?}, \"w\"); clock_gettime(CLOCK_MONOTONIC, &now);\n\
         fprintf(file, \"%ld\", (long)((now.tv_sec - began.tv_sec) * 1000 + (now.tv_nsec - began.tv_nsec) / 1000000)); fclose(file); }}\n\
         fail(e, op, SKG_E_CANCELLED, 0, \"cancelled\");"
    );
    for (enforces, overtime_ms) in [("0", 0), ("SKG_LIMIT_WALL", OVERTIME_MS)] {
        let caps = format!("out->egress = SKG_EGRESS_CAN_DENY; out->enforces = {enforces};");
        let changes = [
            ("#include \"skillgate_plugin.h\"\n", clock),
            ("int added;", begins),
            (
                "fail(e, op, SKG_E_CANCELLED, 0, \"cancelled\");",
                writes.as_str(),
            ),
            ("out->egress = SKG_EGRESS_CAN_DENY;", caps.as_str()),
            (
                r#"is(req->language, "echo")"#,
                r#"is(req->language, "python")"#,
            ),
        ];
        let section = changed(&house, "echo", &changes);
        let text = instead(&usual, r#"name = "sandbox-process""#, &section);
        std::fs::write(house.config(), text).unwrap();
        let gateway = house.start();
        let params =
            json!({ "language": "python", "code": "wait", "limits": { "timeout_ms": WALL_MS } });
        let run = gateway.client().result("run_code", params).unwrap();
        assert_eq!(run["error"]["type"], "Timeout", "{run}");
        // It is written before the run has ended for the plugin, and the gateway does not end before that.
        let blamed = gateway.log().contains("did not keep the deadline");
        gateway.stop();
        assert_eq!(blamed, overtime_ms > 0, "{enforces}");
        let cancelled: u64 = std::fs::read_to_string(&seen).unwrap().parse().unwrap();
        // What a slow machine adds is less than what it must not wait for.
        let within = WALL_MS + overtime_ms + OVERTIME_MS;
        assert!(cancelled < within, "{enforces}: {cancelled} ms");
        // Not before: by the gateway's clock, since the plugin's begins later.
        let wall_ms = run["usage"]["wall_ms"].as_u64().unwrap();
        assert!(wall_ms >= WALL_MS + overtime_ms, "{enforces}: {run}");
    }
}

/// A vendor's sandbox can put what it does below the call, in whatever keeps the traces.
#[test]
fn a_sandbox_is_told_of_the_trace() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let says = r#"char json[80];
    r.output_json.ptr = (const uint8_t *)json;
    r.output_json.len = (uint64_t)snprintf(json, sizeof json, "\"%.*s\"", (int)req->traceparent.len, req->traceparent.ptr);"#;
    let section = changed(
        &house,
        "echo",
        &[
            (
                r#"is(req->language, "echo")"#,
                r#"is(req->language, "python")"#,
            ),
            (
                "#include <stdlib.h>",
                "#include <stdio.h>\n#include <stdlib.h>",
            ),
            ("r.output_json = req->args_json;", says),
        ],
    );
    let text = std::fs::read_to_string(house.config()).unwrap();
    let text = instead(&text, r#"name = "sandbox-process""#, &section);
    std::fs::write(house.config(), text).unwrap();
    let gateway = house.start();
    let params = json!({ "language": "python", "code": "def main(args):\n    return 1\n" });
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "run_code", "params": params });
    let body = body.to_string();
    let json = ("Content-Type", "application/json");
    let of_a_caller = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    for given in [&[("traceparent", of_a_caller)][..], &[]] {
        let headers: Vec<_> = given.iter().chain([&json]).copied().collect();
        let answer = gateway
            .client()
            .request("POST", "/rpc", &headers, body.as_bytes())
            .unwrap();
        let ours = answer.header("traceparent").unwrap().to_owned();
        let answer = answer.json().unwrap();
        assert_eq!(answer["result"]["output"], ours, "{answer}");
    }
    gateway.stop();
}

#[test]
fn a_sandbox_without_a_gate_is_not_given_a_run_that_has_network() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let text = std::fs::read_to_string(house.config()).unwrap();
    let policy = crate::egress::policy(house.path());
    let echo = example(&house, "echo");
    let text = instead(&text, r#"name = "sandbox-process""#, &echo);
    let text = format!("{text}\n[policy]\npath = {policy:?}\n");
    std::fs::write(house.config(), text).unwrap();
    let gateway = crate::egress::start(&house);
    let warning = "does not say that it keeps runs from the network";
    assert!(!gateway.log().contains(warning), "{}", gateway.log());
    let params = json!({ "name": "net.try", "args": {} });
    let answer = gateway.client().call("execute_skill", params).unwrap();
    let error = &answer["error"];
    assert_eq!(error["data"]["kind"], "unavailable", "{answer}");
    let said = error["message"].as_str().unwrap();
    assert!(said.contains("needs no network"), "{answer}");
    let not_started = || gateway.log().matches("run not started").count();
    assert_eq!(not_started(), 1, "{}", gateway.log());
    // Without network it gets as far as the sandbox.
    let params = json!({ "language": "python", "code": "def main(args):\n    return 1\n" });
    let answer = gateway.client().call("run_code", params).unwrap();
    let kind = &answer["error"]["data"]["kind"];
    assert_eq!(kind, "language_unsupported", "{answer}");
    assert_eq!(not_started(), 2, "{}", gateway.log());
    gateway.stop();
}

#[test]
fn a_sandbox_that_promises_no_containment_is_named_at_the_start() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let echo = std::fs::read_to_string(plugins().join("example-c/echo.c")).unwrap();
    let promise = "out->egress = SKG_EGRESS_CAN_DENY";
    assert!(echo.contains(promise));
    let source = house.path().join("open.c");
    std::fs::write(&source, echo.replace(promise, "out->egress = 0")).unwrap();
    let open = compiled(&house, "open", &source);
    let text = std::fs::read_to_string(house.config()).unwrap();
    let text = instead(&text, r#"name = "sandbox-process""#, &open);
    std::fs::write(house.config(), text).unwrap();
    let gateway = house.start();
    let log = gateway.log();
    let warning = "does not say that it keeps runs from the network";
    let line = log.lines().find(|line| line.contains(warning));
    let line = line.unwrap_or_else(|| panic!("{log}"));
    assert!(
        line.contains("WARN") && line.contains("org.skillgate"),
        "{line}"
    );
    gateway.stop();
}

/// What tenants keep is one gateway's; a store that has its data once would refuse whoever comes beside it.
#[test]
fn a_store_that_a_gateway_has_is_made_by_no_command_beside_it() {
    let _alone = alone();
    let house = House::new(Settings::default());
    // Each time that it is made a file comes.
    let made = house.path().join("made");
    std::fs::create_dir(&made).unwrap();
    let mark = format!(
        "s->host = host; {{ char name[] = {:?}; close(mkstemp(name)); }}",
        made.join("XXXXXX")
    );
    let section = changed(&house, "store", &[("s->host = host;", &mark)]);
    let text = std::fs::read_to_string(house.config()).unwrap();
    let text = instead(&text, r#"name = "storage-fs""#, &section);
    std::fs::write(house.config(), text).unwrap();
    let times = || std::fs::read_dir(&made).unwrap().count();
    let gateway = house.start();
    assert_eq!(times(), 1);
    let doctor = crate::commands::said(&house, &["doctor"], 0);
    let told = "not asked: another skillgate (process ";
    assert!(doctor.contains(told), "{doctor}");
    let skill = Path::new(env!("CARGO_MANIFEST_DIR")).join("skills/hello.world");
    let skill = skill.to_str().unwrap();
    crate::commands::said(&house, &["skill", "run", skill], 0);
    assert_eq!(times(), 1);
    gateway.stop();
    // Nobody has it any more.
    let doctor = crate::commands::said(&house, &["doctor"], 0);
    assert!(!doctor.contains("not asked"), "{doctor}");
    assert_eq!(times(), 2);
    crate::commands::said(&house, &["skill", "run", skill], 0);
    assert_eq!(times(), 2);
}

/// At the start, while it serves, and to whoever asks before.
#[test]
fn a_sandbox_that_enforces_less_than_is_configured_is_named() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let echo = std::fs::read_to_string(plugins().join("example-c/echo.c")).unwrap();
    let promise = "out->egress = SKG_EGRESS_CAN_DENY;";
    assert!(echo.contains(promise));
    let less = "{ out->egress = SKG_EGRESS_CAN_DENY; out->max_concurrent = 2; out->enforces = SKG_LIMIT_WALL \
                | SKG_LIMIT_PIDS | SKG_LIMIT_DISK | SKG_LIMIT_NONROOT; }";
    let source = house.path().join("less.c");
    std::fs::write(&source, echo.replace(promise, less)).unwrap();
    let section = compiled(&house, "less", &source);
    let text = std::fs::read_to_string(house.config()).unwrap();
    let text = instead(&text, r#"name = "sandbox-process""#, &section);
    std::fs::write(house.config(), text).unwrap();
    let lacks = [
        "does not say that it enforces runs.memory_bytes: ",
        "runs.max_concurrent is 64, and this sandbox takes at most 2: ",
    ];
    let gateway = house.start();
    let log = gateway.log();
    let mut operator = Client::open(&gateway.admin).unwrap();
    let health = operator.get("/readyz?verbose").unwrap().text();
    let doctor = crate::commands::said(&house, &["doctor"], 0);
    let of_sandbox = health.lines().find(|line| line.contains("]sandbox "));
    let of_sandbox = of_sandbox.unwrap_or_else(|| panic!("{health}"));
    assert!(of_sandbox.starts_with("[!]"), "{health}");
    for lack in lacks {
        let line = log.lines().find(|line| line.contains(lack));
        assert!(line.is_some_and(|line| line.contains("WARN")), "{log}");
        assert!(of_sandbox.contains(lack), "{health}");
        assert!(doctor.contains(lack), "{doctor}");
    }
    assert!(doctor.contains("the gateway would start on this host"));
    gateway.stop();
}

/// The example's store, where a function waits until somebody has written into a pipe; its section, and that pipe.
pub(crate) fn waiting_store(house: &House, function: &str) -> (String, PathBuf) {
    let pipe = house.path().join("go");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let store = std::fs::read_to_string(plugins().join("example-c/store.c")).unwrap();
    let begin = store.find(&format!(" {function}(void *self")).unwrap();
    let body = begin + store[begin..].find("{\n").unwrap() + 2;
    let waits = format!(
        "    char go;\n    int pipe = open({pipe:?}, O_RDONLY);\n    if (read(pipe, &go, 1) >= 0) close(pipe);\n"
    );
    let source = house.path().join("waiting.c");
    std::fs::write(&source, [&store[..body], &waits, &store[body..]].concat()).unwrap();
    (compiled(house, "waiting", &source), pipe)
}

/// The run has its end and its caller an answer before the store has said that it has the blob.
#[test]
fn a_blob_that_arrives_after_the_end_of_its_run_is_on_record() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let text = std::fs::read_to_string(house.config()).unwrap();
    let (store, pipe) = waiting_store(&house, "blob_commit");
    let text = instead(&text, r#"name = "storage-fs""#, &store);
    std::fs::write(house.config(), text).unwrap();
    let gateway = house.start();
    let mut client = gateway.client();
    let code = "from runtime import blobs\n\ndef main(args):\n    blobs.write_text('late')\n    blobs.write_text('later')\n";
    let params = json!({ "language": "python", "code": code, "limits": { "timeout_ms": 4000 } });
    let run = client.result("run_code", params).unwrap();
    assert_eq!(run["error"]["type"], "Timeout", "{run}");
    assert_eq!(run["output_blobs"], json!([]), "{run}");
    let records = || -> Vec<Value> {
        let records = audit::lines(&audit::path(&house)).into_iter();
        let records = records.filter(|record| record["run_id"] == run["run_id"]);
        records.collect()
    };
    assert_eq!(records(), [json!(null); 0], "it waits for its blob");
    writing_end(&pipe, PATIENCE).write_all(b"x").unwrap();
    eventually("the end of the run is on record", PATIENCE, || {
        !records().is_empty()
    });
    let records = records();
    let [record] = &records[..] else {
        panic!("{records:?}")
    };
    assert_eq!(record["status"], "failed", "{record}");
    assert_eq!(record["error_type"], "Timeout", "{record}");
    let [id] = &record["output_blobs"].as_array().unwrap()[..] else {
        panic!("{record}")
    };
    let read = client.result("read_blob", json!({ "blob_id": id }));
    assert_eq!(read.unwrap()["content"], "late");
    gateway.stop();
}

/// Two stores never have the same data: the next one is made when the one before has ended, however long that takes.
#[test]
fn a_store_that_is_slow_to_end_is_waited_for() {
    let _alone = alone();
    let house = House::new(Settings {
        server: "reload_watch_ms = 0",
        ..Settings::default()
    });
    let usual = std::fs::read_to_string(house.config()).unwrap();
    let (_, pipe) = waiting_store(&house, "destroy");
    // It writes down when it begins and when it has ended.
    let journal = house.path().join("journal");
    let note = |what: &str| {
        format!(
            "    {{ int at = open({journal:?}, O_WRONLY | O_CREAT | O_APPEND, 0600); if (at >= 0 && write(at, \"{what}\\n\", {}) > 0) close(at); }}\n",
            what.len() + 1
        )
    };
    let source = house.path().join("waiting.c");
    let mut store = std::fs::read_to_string(&source).unwrap();
    for (before, what) in [
        ("    s->host = host;\n", "made"),
        ("    pthread_mutex_destroy(&s->budget);\n", "ended"),
    ] {
        assert!(store.contains(before));
        store = store.replace(before, &format!("{}{before}", note(what)));
    }
    let release = |number: u32| {
        std::fs::write(&source, format!("{store}\nint release{number};\n")).unwrap();
        let section = compiled(&house, &format!("release{number}"), &source);
        let section = format!("{section}\nisolation = \"gateway\"");
        let text = instead(&usual, r#"name = "storage-fs""#, &section);
        std::fs::write(house.config(), text).unwrap();
    };
    let written = || std::fs::read_to_string(&journal).unwrap();
    release(0);
    let gateway = house.start();
    assert_eq!(written(), "made\n");
    release(1);
    gateway.signal("HUP");
    let said = |text: &str| eventually(text, PATIENCE, || gateway.log().contains(text));
    said("a plugin did not end in time");
    said("the store before has not ended yet");
    assert_eq!(written(), "made\n");
    std::thread::scope(|scope| {
        // A call waits meanwhile, and is answered by the next one.
        let call = scope.spawn(|| {
            let made = json!({ "content": "x", "kind": "text/plain" });
            gateway.client().call("create_blob", made)
        });
        writing_end(&pipe, PATIENCE).write_all(b"x").unwrap();
        said("the new plugin has the store");
        assert_eq!(written(), "made\nended\nmade\n");
        let made = call.join().unwrap().unwrap();
        assert!(made["result"]["blob_id"].is_string(), "{made}");
    });
    // Whoever opens it after that need not wait either.
    std::thread::scope(|scope| {
        scope.spawn(|| writing_end(&pipe, PATIENCE).write_all(b"x"));
        gateway.stop();
    });
    assert_eq!(written(), "made\nended\nmade\nended\n");
}

/// The contract lets them leave `health` out: they work, at the start, when they are looked at and when they are exchanged.
#[test]
fn plugins_that_do_not_say_how_they_are_work() {
    let _alone = alone();
    let house = House::new(Settings {
        server: "reload_watch_ms = 0",
        ..Settings::default()
    });
    let usual = std::fs::read_to_string(house.config()).unwrap();
    let release = |number: u32| {
        let another = format!("#include <stdlib.h>\nextern int release;\nint release = {number};");
        let of = |name: &str, table: &str, bundled: &str, text: &str| {
            let health = format!("    {table}health = health;");
            let none = "    (void)health;";
            let changes = [
                (health.as_str(), none),
                ("#include <stdlib.h>", another.as_str()),
            ];
            instead(text, bundled, &changed(&house, name, &changes))
        };
        let text = of("store", "t->", r#"name = "storage-fs""#, &usual);
        let text = of("echo", "e->table.", r#"name = "sandbox-process""#, &text);
        std::fs::write(house.config(), text).unwrap();
    };
    release(1);
    let says_nothing = "it does not say how it is";
    let doctor = crate::commands::said(&house, &["doctor"], 0);
    assert_eq!(doctor.matches(says_nothing).count(), 2, "{doctor}");
    let gateway = house.start();
    let is_ready = || {
        let (status, parts) = crate::swap::readyz(&gateway);
        assert_eq!(status, 200, "{parts}");
        for part in ["storage", "sandbox"] {
            let of = parts
                .lines()
                .find(|line| line.contains(&format!("]{part} ")));
            assert!(of.is_some_and(|of| of.contains(says_nothing)), "{parts}");
        }
    };
    let stores = || {
        let made = json!({ "content": "x", "kind": "text/plain" });
        let made = gateway.client().call("create_blob", made).unwrap();
        assert!(made["result"]["blob_id"].is_string(), "{made}");
    };
    is_ready();
    stores();
    release(2);
    crate::swap::reload(&gateway, crate::swap::TAKEN);
    for taken in [
        "the new plugin has the store",
        "new runs go to the new plugin",
    ] {
        assert!(gateway.log().contains(taken), "{}", gateway.log());
    }
    is_ready();
    stores();
    gateway.stop();
}

#[test]
fn a_store_that_keeps_nothing_is_named_at_the_start() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let usual = std::fs::read_to_string(house.config()).unwrap();
    let warning = "this store keeps nothing";
    // The bundled one keeps everything.
    let gateway = house.start();
    assert!(!gateway.log().contains(warning), "{}", gateway.log());
    gateway.stop();
    let store = example(&house, "store");
    let text = instead(&usual, r#"name = "storage-fs""#, &store);
    std::fs::write(house.config(), text).unwrap();
    let gateway = house.start();
    let log = gateway.log();
    let line = log.lines().find(|line| line.contains(warning));
    let line = line.unwrap_or_else(|| panic!("{log}"));
    assert!(
        line.contains("WARN") && line.contains("org.skillgate.example-store"),
        "{line}"
    );
    let made = json!({ "content": "x", "kind": "text/plain" });
    let made = gateway.client().call("create_blob", made).unwrap();
    assert!(made["result"]["blob_id"].is_string(), "{made}");
    gateway.stop();
}

/// Or it would end well, without a word, and a service manager would leave it at that.
#[test]
fn a_plugin_in_the_gateway_that_exits_is_told_of() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let include = "#include \"skillgate_plugin.h\"\n";
    let changes = [
        (
            include,
            "#include \"skillgate_plugin.h\"\n#include <stdlib.h>\n",
        ),
        ("int added;", "int added;\n    exit(0);"),
        (
            r#"is(req->language, "echo")"#,
            r#"is(req->language, "python")"#,
        ),
    ];
    let section = changed(&house, "echo", &changes) + "\nisolation = \"gateway\"";
    let text = std::fs::read_to_string(house.config()).unwrap();
    let text = instead(&text, r#"name = "sandbox-process""#, &section);
    std::fs::write(house.config(), text).unwrap();
    let mut gateway = house.start();
    let params = json!({ "language": "python", "code": "wait" });
    let mut client = gateway.client();
    client.ask("run_code", params).unwrap();
    let status = gateway.end(PATIENCE);
    let log = gateway.log();
    assert_eq!(status.code(), Some(4), "{status}: {log}");
    let told = "error: a plugin in the gateway called exit()";
    assert_eq!(log.matches(told).count(), 1, "{log}");
}

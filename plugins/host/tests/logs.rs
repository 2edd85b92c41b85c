//! A plugin's log records are the gateway's events.
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on says so by panicking"
)]

mod support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use skillgate_plugin_host::model::CreateRequest;
use skillgate_plugin_host::{Isolation, Pin, Plugin, ProcessSettings};
use support::{Gateway, config, load, open, probe, run, sdk_plugin, settings};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Keeps each event as `LEVEL target field=value ...`.
struct Keep(Arc<Mutex<Vec<String>>>);

struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.push_str(&format!(" {field}={value:?}"));
    }
}

impl Subscriber for Keep {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::INFO
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields(format!(
            "{} {}",
            event.metadata().level(),
            event.metadata().target()
        ));
        event.record(&mut fields);
        self.0.lock().unwrap().push(fields.0);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

// This plugin does not block, so it is called, and logs, on the thread of the test.
#[tokio::test]
async fn a_record_has_its_plugin_target_run_and_fields() {
    let events = Arc::default();
    let dir = tempfile::tempdir().unwrap();
    let plugin = load(&probe(dir.path(), "logging", &[]));
    let sandbox = plugin.sandbox(config("{}")).await.unwrap();
    let _kept = tracing::subscriber::set_default(Keep(Arc::clone(&events)));
    sandbox.run(run("log"), Gateway::new()).await.unwrap();
    let much = sandbox.run(run("log much"), Gateway::new()).await;
    much.unwrap();
    let events = events.lock().unwrap();
    let expected = concat!(
        r#"WARN skillgate::plugin message=something is off plugin="org.skillgate.probe" instance="test""#,
        r#" plugin_target="probe::run" run_id="run_log" fields="n=42""#
    );
    assert_eq!(events[0], expected);
    // A record has so many; what is beyond is left out, and no more than that.
    assert_eq!(events[1].matches("n=42").count(), 64, "{}", events[1]);
    assert_eq!(events.len(), 2);
}

/// What the gateway would write of a record, in its format `text`, or as JSON.
async fn written(isolation: Isolation, function: &str, json: bool) -> String {
    let dir = tempfile::tempdir().unwrap();
    let file = std::fs::File::create_new(dir.path().join("log")).unwrap();
    let builder = tracing_subscriber::fmt().with_writer(Mutex::new(file));
    let log: tracing::Dispatch = if json {
        builder.json().flatten_event(true).finish().into()
    } else {
        builder.with_ansi(false).finish().into()
    };
    // Before there is a process, which is told what the log wants.
    let _log = tracing::dispatcher::set_default(&log);
    let plugin = open(&probe(dir.path(), "written", &[]), isolation);
    let sandbox = plugin.sandbox(config("{}")).await.unwrap();
    sandbox.run(run(function), Gateway::new()).await.unwrap();
    std::fs::read_to_string(dir.path().join("log")).unwrap()
}

/// The disk that the log is on is everybody's.
#[tokio::test]
async fn a_plugin_that_logs_on_and_on_leaves_room_and_that_is_said() {
    for isolation in WAYS {
        let log = written(isolation, "log on and on", false).await;
        let bytes = log.len() / 1024;
        assert!(
            (3 * 1024..6 * 1024).contains(&bytes),
            "{isolation:?}: {bytes} KiB"
        );
        let said = log.lines().find(|it| it.contains("logs more than it may"));
        let said = said.expect("it is said");
        assert!(
            said.contains("WARN") && said.contains(r#"plugin="org.skillgate.probe""#),
            "{said}"
        );
    }
}

const WAYS: [Isolation; 2] = [Isolation::Gateway, Isolation::Process];

/// Also where the format has members of its own beside the fields.
#[tokio::test]
async fn a_record_as_json_has_each_member_once() {
    for isolation in WAYS {
        let line = written(isolation, "log", true).await;
        let whole: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(whole["target"], "skillgate::plugin", "{line}");
        assert_eq!(whole["plugin_target"], "probe::run", "{line}");
        for member in whole.as_object().unwrap().keys() {
            let times = line.matches(&format!("\"{member}\":")).count();
            assert_eq!(times, 1, "{member}: {line}");
        }
    }
}

#[tokio::test]
async fn a_record_is_one_line_whatever_is_in_it() {
    for isolation in WAYS {
        let line = written(isolation, "log lines", false).await;
        assert_eq!(line.lines().count(), 1, "{line}");
        assert!(line.contains(r"a\nb\u{1b}[2J plugin="), "{line}");
        let json = written(isolation, "log lines", true).await;
        let whole: serde_json::Value = serde_json::from_str(&json).unwrap();
        // What a name and a value are is seen by who reads it.
        assert_eq!(whole["fields"], r#"n=42 "a b"="1 c=\"2\"\n""#, "{json}");
    }
}

#[tokio::test]
async fn a_process_that_dies_as_it_is_ended_has_its_last_words() {
    let settings = ProcessSettings {
        cancel_grace: Duration::from_secs(1),
        ..settings()
    };
    for (option, signal) in [("-DCRASH_IN_DESTROY", 6), ("-DHANG_IN_DESTROY", 9)] {
        let events: Arc<Mutex<Vec<String>>> = Arc::default();
        let _kept = tracing::subscriber::set_default(Keep(Arc::clone(&events)));
        let dir = tempfile::tempdir().unwrap();
        let file = probe(dir.path(), "ends", &[option]);
        let plugin = Plugin::open(&file, &Pin::default(), Isolation::Process, &settings);
        let sandbox = plugin.unwrap().sandbox(config("{}")).await.unwrap();
        drop(sandbox);
        let said = format!("it was ended by signal {signal}; its last words: destroy has no end");
        let is_it = |event: &String| event.starts_with("ERROR ") && event.contains(&said);
        let logged = async {
            while !events.lock().unwrap().iter().any(is_it) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let logged = tokio::time::timeout(Duration::from_secs(20), logged).await;
        assert!(logged.is_ok(), "{option}: {:?}", events.lock().unwrap());
    }
}

// This one blocks, and so logs on other threads: its events are for the program's subscriber, which is of this test only.
#[tokio::test]
async fn records_of_the_sdk_are_of_a_run_and_of_whichever_instance_is_left() {
    let events: Arc<Mutex<Vec<String>>> = Arc::default();
    tracing::subscriber::set_global_default(Keep(Arc::clone(&events))).unwrap();
    let plugin = load(&sdk_plugin());
    let store = async |instance: &str| {
        let request = CreateRequest {
            instance_id: instance.into(),
            ..config("tracing")
        };
        plugin.storage(request).await.unwrap()
    };
    let ask = async |store: &skillgate_plugin_host::StorageInstance, version: &str| {
        store
            .skill_get("acme", "traced", version)
            .await
            .unwrap_err();
    };
    let a = store("a").await;
    ask(&a, "1").await;
    let b = store("b").await;
    // One log for both: the later one has it.
    ask(&a, "2").await;
    b.shutdown().await.unwrap();
    ask(&a, "3").await;
    let sandbox = plugin.sandbox(config("{}")).await.unwrap();
    sandbox.run(run("log"), Gateway::new()).await.unwrap();
    let events = events.lock().unwrap();
    let traced: Vec<_> = events
        .iter()
        .filter(|event| event.contains(r#"plugin_target="traced""#))
        .collect();
    let expected = [("a", 1), ("b", 2), ("a", 3)].map(|(instance, version)| {
        format!(
            r#"WARN skillgate::plugin message=asked plugin="org.skillgate.test" instance="{instance}" plugin_target="traced" run_id="" fields="tenant=acme version={version}""#
        )
    });
    assert_eq!(traced, expected.iter().collect::<Vec<_>>());
    // The SDK says of which call a record is.
    let of_run = r#"plugin_target="echo" run_id="run_log""#;
    assert!(events.iter().any(|e| e.contains(of_run)), "{events:?}");
}

//! The log of a gateway goes into a pipe, as under most service managers, and nobody empties it.

use std::env;
use std::io::{BufRead as _, BufReader, PipeReader, pipe};
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use serde_json::Value;
use skillgate::config::{Log, LogFormat};
use skillgate::telemetry;

use crate::alone;
use crate::operator::{metrics, value};
use crate::support::eventually;
use crate::support::gateway::{Gateway, House, Settings};

const PATIENCE: Duration = Duration::from_secs(30);
/// Each is refused, and has two lines: many times what the pipe holds and the gateway keeps.
const REQUESTS: u32 = 2000;
const LOST: &str = "skillgate_log_lost_lines_total ";

/// A gateway whose log is in this pipe, after so many requests.
fn unheard(house: &House) -> (Gateway, PipeReader) {
    let (reads, writes) = pipe().unwrap();
    let gateway = house.start_saying(house.command(), writes.into());
    let (answered, all) = mpsc::channel();
    let mut client = gateway.client();
    std::thread::spawn(move || {
        for _ in 0..REQUESTS {
            assert_eq!(client.get("/no/such/path").unwrap().status, 404);
        }
        answered.send(()).unwrap();
    });
    all.recv_timeout(PATIENCE).expect("all are answered");
    (gateway, reads)
}

#[test]
fn a_log_that_nobody_reads_holds_up_nobody() {
    let _alone = alone();
    let house = House::new(Settings {
        extra: "[log]\nbuffer_bytes = 100000\n",
        ..Settings::default()
    });
    let (gateway, reads) = unheard(&house);
    let lost = value(&metrics(&gateway), LOST);
    assert!(lost > f64::from(REQUESTS), "{lost}");

    let (say, said) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(reads).lines() {
            say.send(line.unwrap()).unwrap();
        }
    });
    // What was kept comes first, each line whole.
    let mut kept = 0;
    let told = loop {
        let line = said.recv_timeout(PATIENCE).expect("it says what is lost");
        if line.contains("lines were dropped") {
            break line;
        }
        assert!(line.contains(" INFO ") || line.contains(" WARN "), "{line}");
        kept += line.len() + 1;
    };
    assert!(told.contains(&format!("lines={lost}")), "{told}");
    assert!((100_000..300_000).contains(&kept), "{kept}");
    assert_eq!(value(&metrics(&gateway), LOST), lost);
    // The next is heard, and so is the last.
    gateway.stop();
    let rest: Vec<String> = said.iter().collect();
    assert!(
        rest.iter().any(|line| line.contains("draining")),
        "{rest:?}"
    );
    assert!(rest.last().is_some_and(|line| line.ends_with("stopped")));
}

#[test]
fn a_log_that_nobody_reads_holds_up_no_end() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let (mut gateway, reads) = unheard(&house);
    gateway.signal("TERM");
    assert!(gateway.end(PATIENCE).success());
    drop(reads);
    // Nor does one whose reader has gone.
    let (mut gateway, reads) = unheard(&house);
    drop(reads);
    eventually("it is counted", PATIENCE, || {
        gateway.client().get("/no/such/path").unwrap();
        value(&metrics(&gateway), LOST) > 0.0
    });
    gateway.signal("TERM");
    assert!(gateway.end(PATIENCE).success());
}

/// Whoever collects JSON reads nothing else.
#[test]
fn a_panic_is_a_line_like_any_other() {
    const PANICS: &str = "GATEWAY_TEST_PANICS";
    if env::var_os(PANICS).is_some() {
        let log = Log {
            filter: "info".into(),
            format: LogFormat::Json,
            buffer_bytes: 10_000,
        };
        telemetry::start(&log).unwrap();
        let _request = tracing::info_span!("request", id = "the-request").entered();
        assert!(std::panic::catch_unwind(|| panic!("of this\nkind")).is_err());
        return telemetry::flush();
    }
    let name = "log::a_panic_is_a_line_like_any_other";
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(PANICS, "1")
        .env("RUST_BACKTRACE", "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    let lines = text.lines().map(|line| {
        let line: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{text}"));
        line
    });
    let lines: Vec<Value> = lines.collect();
    let line = match &lines[..] {
        [line] => line,
        _ => panic!("{text}"),
    };
    assert_eq!(line["level"], "ERROR");
    assert_eq!(line["message"], "panicked");
    assert_eq!(line["reason"], "of this\nkind");
    assert_eq!(line["span"]["id"], "the-request");
    assert!(line["place"].as_str().unwrap().contains("gateway/log.rs:"));
    assert!(
        line["backtrace"]
            .as_str()
            .unwrap()
            .contains("a_panic_is_a_line")
    );
}

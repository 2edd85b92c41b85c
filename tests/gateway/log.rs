//! The log of a gateway goes into a pipe, as under most service managers, and nobody empties it.

use std::io::{BufRead as _, BufReader, PipeReader, pipe};
use std::sync::mpsc;
use std::time::Duration;

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

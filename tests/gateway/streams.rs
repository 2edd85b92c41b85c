//! What the program's two streams lead to: a disk that is full, or nobody.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::Duration;

use serde_json::json;

use crate::alone;
use crate::disk::Ends;
use crate::support::eventually;
use crate::support::gateway::{House, Settings, signal};
use crate::support::http::Client;

const PATIENCE: Duration = Duration::from_secs(20);
const CODE: &str = "def main(args):\n    return 1\n";

fn full() -> Stdio {
    fs::File::options()
        .write(true)
        .open("/dev/full")
        .unwrap()
        .into()
}

/// Where nobody can be told where it serves, the log says so. All that it needs to serve is there by then.
#[test]
fn a_start_that_cannot_say_so_serves() {
    let _alone = alone();
    let house = House::new(Settings::default());
    for (what, stdout) in [("a full disk", full()), ("nobody", Stdio::piped())] {
        let at = house.path().join("stderr.log");
        let mut command = house.command();
        command.stdin(Stdio::null()).stdout(stdout);
        command.stderr(fs::File::create(&at).unwrap());
        let mut child = Ends(command.spawn().unwrap());
        drop(child.0.stdout.take());
        let mut url = None;
        eventually("it serves", PATIENCE, || {
            let log = fs::read_to_string(&at).unwrap();
            let said = log
                .lines()
                .find(|line| line.contains("cannot write to stdout"));
            let address = said.and_then(|line| line.split_once("public=http://"));
            url = address.and_then(|(_, rest)| Some(rest.split(' ').next()?.to_owned()));
            url.is_some()
        });
        let mut client = Client::open(&url.unwrap()).unwrap();
        assert_eq!(client.run(CODE, json!({})).unwrap()["output"], 1, "{what}");
        signal("TERM", child.0.id());
        assert!(child.status().success(), "{what}");
    }
}

/// Its own log is no reason to end, or to refuse anybody: where the disk is full that it goes to, and where nobody reads it any
/// more.
#[test]
fn a_log_that_cannot_be_written_ends_nothing() {
    let _alone = alone();
    let house = House::new(Settings::default());
    for (what, stderr) in [("a full disk", full()), ("nobody", Stdio::piped())] {
        let mut command = house.command();
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = Ends(command.stderr(stderr).spawn().unwrap());
        drop(child.0.stderr.take());
        // Kept: it says more than that.
        let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
        let mut said = lines.by_ref().map_while(Result::ok);
        let url = said.find_map(|line| {
            let url = line.split_whitespace().next()?.strip_prefix("http://")?;
            url.strip_suffix("/rpc").map(str::to_owned)
        });
        let url = url.unwrap_or_else(|| panic!("{what}: it does not start"));
        let mut client = Client::open(&url).unwrap();
        for _ in 0..3 {
            assert_eq!(client.run(CODE, json!({})).unwrap()["output"], 1, "{what}");
        }
        signal("TERM", child.0.id());
        assert!(child.0.wait().unwrap().success(), "{what}");
    }
}

//! Outputs that are stored while their runs end: no answer and no record has one with a secret in it, and none is kept.

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Instant;

use super::*;
use crate::audit;
use crate::examples::{instead, waiting_store};
use crate::operator::{metrics, value};
use crate::support::writing_end;

/// What the example's store counts of all that it has.
const STORED_BYTES: &str = "skillgate_plugin_value{plugin=\"storage\",name=\"bytes\"} ";

/// A gateway whose store waits in one of its calls until it is told to go on.
struct Storing {
    place: Place,
    gateway: Gateway,
    pipe: PathBuf,
}

impl Storing {
    fn start(waits_in: &str) -> Storing {
        let place = Place::new();
        let text = fs::read_to_string(place.house.config()).unwrap();
        let (store, pipe) = waiting_store(&place.house, waits_in);
        let text = instead(&text, r#"name = "storage-fs""#, &store);
        fs::write(place.house.config(), text).unwrap();
        Storing {
            gateway: place.start(),
            place,
            pipe,
        }
    }

    /// Comes back when the store is in that call: who is to have the answer, and what the store waits for.
    fn run(&self, args: Value, timeout_ms: u64) -> (Client, File) {
        let mut client = self.gateway.client();
        let params = json!({ "name": "canary.leak", "args": args, "timeout_ms": timeout_ms });
        client.ask("execute_skill", params).unwrap();
        (client, writing_end(&self.pipe, PATIENCE))
    }

    fn ends(&self) -> Vec<Value> {
        let mut all = audit::lines(&audit::path(&self.place.house));
        all.retain(|line| line["kind"] == "run");
        all
    }

    /// That of so many, which is the last one so far.
    fn end(&self, number: usize) -> Value {
        eventually("its end is on record", PATIENCE, || {
            self.ends().len() == number
        });
        self.ends().remove(number - 1)
    }

    /// What the store keeps.
    fn kept(&self) -> f64 {
        // The gateway does not ask it more often than that.
        std::thread::sleep(Duration::from_millis(1100));
        value(&metrics(&self.gateway), STORED_BYTES)
    }
}

/// Two outputs, and how many blobs become of each: one has a secret in it.
fn outputs() -> [(Value, usize); 2] {
    let secret = json!({ "way": "stored", "form": 0 });
    [(secret, 0), (json!({ "way": "stored, nothing" }), 1)]
}

fn timed_out(mut client: Client) -> Value {
    let result = client.answer().unwrap().json().unwrap()["result"].clone();
    assert_eq!(result["error"]["type"], "Timeout", "{result}");
    result["output_blobs"].clone()
}

/// The run has no time left to say that it has stored its output.
#[test]
fn an_output_that_is_stored_at_the_deadline_has_no_secret_in_it_either() {
    let _alone = alone();
    let storing = Storing::start("blob_commit");
    let before = storing.kept();
    let mut outputs = outputs().into_iter().peekable();
    for number in 1..10 {
        let Some((args, count)) = outputs.peek().cloned() else {
            break;
        };
        let began = Instant::now();
        let (client, mut pipe) = storing.run(args, 3000);
        // Later than its deadline, and sooner than its end is known without the sandbox, which is 2 s after that: so long may
        // the way into the store have taken. On a machine that stood still it may have been longer, and that is another test.
        std::thread::sleep(Duration::from_millis(3300));
        pipe.write_all(b"x").unwrap();
        let is_in_time = began.elapsed() < Duration::from_millis(4800);
        let (blobs, end) = (timed_out(client), storing.end(number));
        if is_in_time {
            assert_eq!(blobs.as_array().unwrap().len(), count, "{blobs}");
            assert_eq!(end["output_blobs"], blobs);
            assert_eq!(storing.kept() > before, count > 0);
            outputs.next();
        }
    }
    assert!(
        outputs.next().is_none(),
        "the machine stood still each time"
    );
    storing.gateway.stop();
}

/// The caller has been answered by then.
#[test]
fn an_output_that_is_stored_after_the_end_has_no_secret_in_it_either() {
    let _alone = alone();
    let storing = Storing::start("blob_commit");
    let before = storing.kept();
    for (number, (args, count)) in (1..).zip(outputs()) {
        let (client, mut pipe) = storing.run(args, 4000);
        assert_eq!(timed_out(client), json!([]));
        assert_eq!(storing.ends().len(), number - 1, "it waits for its blob");
        pipe.write_all(b"x").unwrap();
        let end = storing.end(number);
        assert_eq!(end["error_type"], "Timeout", "{end}");
        let blobs = end["output_blobs"].as_array().unwrap();
        assert_eq!(blobs.len(), count, "{end}");
        assert_eq!(storing.kept() > before, count > 0);
    }
    storing.gateway.stop();
}

#[test]
fn an_output_that_is_stored_for_nobody_has_no_secret_in_it_either() {
    let _alone = alone();
    let storing = Storing::start("blob_commit");
    let before = storing.kept();
    for (number, (args, count)) in (1..).zip(outputs()) {
        let (client, mut pipe) = storing.run(args, 60_000);
        client.hang_up();
        let cancelled = format!(
            "skillgate_runs_total{{kind=\"skill\",status=\"cancelled\",error_type=\"\"}} {number}\n"
        );
        eventually("the run is cancelled", PATIENCE, || {
            metrics(&storing.gateway).contains(&cancelled)
        });
        pipe.write_all(b"x").unwrap();
        let end = storing.end(number);
        assert_eq!(end["status"], "cancelled", "{end}");
        let blobs = end["output_blobs"].as_array().unwrap();
        assert_eq!(blobs.len(), count, "{end}");
        assert_eq!(storing.kept() > before, count > 0);
    }
    storing.gateway.stop();
}

/// It goes all the same: nobody will ask for it, and it would be kept for good.
#[test]
fn an_output_whose_caller_goes_while_it_is_looked_through_has_no_secret_in_it_either() {
    let _alone = alone();
    let storing = Storing::start("blob_open");
    let before = storing.kept();
    for (number, (args, count)) in (1..).zip(outputs()) {
        let (client, mut pipe) = storing.run(args, 60_000);
        client.hang_up();
        let page = format!(
            "skillgate_runs_total{{kind=\"skill\",status=\"cancelled\",error_type=\"\"}} {number}\n"
        );
        eventually("the run is cancelled", PATIENCE, || {
            metrics(&storing.gateway).contains(&page)
        });
        assert_eq!(storing.ends().len(), number - 1, "it waits for the look");
        // A letter for each time that the store is asked.
        pipe.write_all(b"x").unwrap();
        let end = storing.end(number);
        assert_eq!(end["status"], "cancelled", "{end}");
        let blobs = end["output_blobs"].as_array().unwrap();
        assert_eq!(blobs.len(), count, "{end}");
        assert_eq!(storing.kept() > before, count > 0);
    }
    storing.gateway.stop();
}

//! Whose turn it is, seen from outside: a tenant that floods the runs takes nothing from another, nor does one of its
//! subjects from the next.
//!
//! What is counted are places that others got, not time: the gateway's own log says in which order runs were allowed
//! and started, and a trace id that the caller chose says which lines are its own.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use skillgate::auth::DevelopmentKey;

use crate::jwt::{ask, claims, house_of};
use crate::operator::metrics;
use crate::support::gateway::{Gateway, Settings};
use crate::support::{Over, eventually};
use crate::{alone, count};

/// `runs.max_concurrent`
const PLACES: usize = 2;
/// `runs.max_queued`
const QUEUE: usize = 16;
/// More than run and wait: there is always one more that comes.
const FLOOD: usize = PLACES + QUEUE + 6;
/// Long enough that the flood is never through.
const CODE: &str = "import time\ndef main(args):\n    time.sleep(args['s'])\n    return 1\n";

/// One caller.
struct Who {
    token: String,
    /// Runs of others that may start between the moment at which one of its runs is allowed and its start, on average:
    /// those of its turn, and those that had their places already and had not said so yet.
    before_max: usize,
}

impl Who {
    fn new(key: &DevelopmentKey, subject: &str, tenant: &str, turns: usize) -> Who {
        Who {
            token: key.token(&claims(subject, tenant)).unwrap(),
            before_max: turns + PLACES,
        }
    }

    /// Asks for one run; gives the error's kind, or null, and the trace.
    fn run(&self, gateway: &Gateway, seconds: f64) -> (Value, String) {
        let trace = hex::encode(rand::random::<[u8; 16]>());
        let params = json!({ "language": "python", "code": CODE, "args": { "s": seconds } });
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "run_code", "params": params });
        let headers = [
            ("Authorization", format!("Bearer {}", self.token)),
            ("traceparent", format!("00-{trace}-00f067aa0ba902b7-01")),
        ];
        let headers = headers
            .each_ref()
            .map(|(name, value)| (*name, value.as_str()));
        let answer = ask(&mut gateway.client(), &headers, body.to_string().as_bytes());
        assert_eq!(answer.status, 200, "{}", answer.text());
        let mut reply = answer.json().unwrap();
        (reply["error"]["data"]["kind"].take(), trace)
    }
}

/// Runs of others that started while the one of this trace waited.
fn before(log: &str, trace: &str) -> usize {
    let lines: Vec<&str> = log.lines().collect();
    let at = |event: &str| {
        let is = |line: &&str| line.contains(trace) && line.contains(event);
        lines
            .iter()
            .position(is)
            .unwrap_or_else(|| panic!("no {event:?} of {trace}"))
    };
    let waited = &lines[at(": allowed ")..at(": run started ")];
    waited
        .iter()
        .filter(|line| line.contains(": run started "))
        .count()
}

#[test]
fn a_flood_delays_others_by_their_turn_and_no_more() {
    let _alone = alone();
    let key = DevelopmentKey::generate("ES256").unwrap();
    let (house, sections) = house_of(&key, &["north", "south"]);
    house.configure(Settings {
        runs: &format!("max_concurrent = {PLACES}\nmax_queued = {QUEUE}"),
        extra: &format!("{sections}[log]\nfilter = \"info,skillgate::policy=debug\"\n"),
        ..Settings::default()
    });
    let gateway = house.start();
    let flood = Who::new(&key, "alice", "north", 0);
    // Another tenant: one of the flood's at most comes first. Another subject of the same: one of each before it.
    let others = [
        ("another tenant", Who::new(&key, "bob", "south", 1)),
        ("another subject", Who::new(&key, "carol", "north", 3)),
    ];
    let runs = count(6, 40) as usize;

    let [served, refused] = [const { AtomicUsize::new(0) }; 2];
    let over = AtomicBool::new(false);
    let traces: Vec<Vec<String>> = std::thread::scope(|scope| {
        let _over = Over(&over);
        for _ in 0..FLOOD {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    match flood.run(&gateway, 0.05).0 {
                        Value::Null => served.fetch_add(1, Ordering::Relaxed),
                        kind => {
                            assert_eq!(kind, "unavailable");
                            refused.fetch_add(1, Ordering::Relaxed)
                        }
                    };
                }
            });
        }
        eventually("the queue is full", Duration::from_secs(30), || {
            refused.load(Ordering::Relaxed) > 0
        });
        let asked: Vec<_> = others
            .iter()
            .map(|(what, who)| {
                let gateway = &gateway;
                scope.spawn(move || -> Vec<String> {
                    (0..runs)
                        .map(|_| {
                            let (kind, trace) = who.run(gateway, 0.0);
                            assert_eq!(
                                kind,
                                Value::Null,
                                "{what} has room where the flood has none"
                            );
                            trace
                        })
                        .collect()
                })
            })
            .collect();
        let traces = asked.into_iter().map(|thread| thread.join().unwrap());
        traces.collect()
    });

    let log = gateway.log();
    let [served, refused] = [served, refused].map(AtomicUsize::into_inner);
    for ((what, who), traces) in others.iter().zip(&traces) {
        let waited: Vec<usize> = traces.iter().map(|trace| before(&log, trace)).collect();
        println!("{what}: {runs} runs, others started before each: {waited:?}");
        let mean = waited.iter().sum::<usize>() as f64 / runs as f64;
        assert!(mean <= who.before_max as f64, "{what}: {mean} on average");
        // Between being allowed and standing in the queue it may be put off by a busy machine; a queue in which whoever
        // came first is served first would let all of it pass.
        let worst = waited.iter().max();
        assert!(
            worst < Some(&QUEUE),
            "{what}: {worst:?} before one of its runs"
        );
    }
    println!("the flood: {served} runs served, {refused} refused");
    assert!(served >= runs, "the flood is not starved either");
    gateway.stop();
}

/// Who makes room for another was not started, and has waited.
#[test]
fn who_makes_room_has_waited() {
    let key = DevelopmentKey::generate("ES256").unwrap();
    let (house, sections) = house_of(&key, &["north"]);
    house.configure(Settings {
        runs: "max_concurrent = 1\nmax_queued = 2",
        extra: &sections,
        ..Settings::default()
    });
    let gateway = house.start();
    let params = json!({ "language": "python", "code": CODE, "args": { "s": 1000 } });
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "run_code", "params": params });
    let body = body.to_string();
    let sends = |subject: &str| {
        let token = key.token(&claims(subject, "north")).unwrap();
        let headers = [
            ("Authorization", &*format!("Bearer {token}")),
            ("Content-Type", "application/json"),
            ("Content-Length", &*body.len().to_string()),
        ];
        let mut client = gateway.client();
        client.head("POST", "/rpc", &headers).unwrap();
        client.write(body.as_bytes()).unwrap();
        client
    };
    let shows = |line: &str| {
        eventually(line, Duration::from_secs(20), || {
            metrics(&gateway).lines().any(|have| have == line)
        });
    };
    let holds = sends("alice");
    shows("skillgate_runs_in_flight 1");
    let waits = sends("alice");
    shows("skillgate_run_queue_depth 1");
    let mut newest = sends("alice");
    shows("skillgate_run_queue_depth 2");
    let other = sends("bob");
    let answer = newest.answer().unwrap().json().unwrap();
    assert_eq!(answer["error"]["data"]["kind"], "unavailable", "{answer}");
    shows("skillgate_run_queue_seconds_count 2");
    shows(r#"skillgate_runs_total{kind="code",status="not_started",error_type=""} 1"#);
    for client in [holds, waits, other] {
        client.hang_up();
    }
    gateway.stop();
}

//! The channel, with a guest that breaks its rules.

use std::hint::black_box;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{assert_gone, ended_in_time, ended_in_time_with, timed, timed_with};
use crate::support::*;
use skillgate_plugin_sdk::model::RunResult;

/// `s` is the channel; the job has been read.
fn guest(body: &str) -> String {
    format!(
        "import os, socket, struct, time\ns = socket.socket(fileno=3)\ndef read(n):\n    b = b''\n    while len(b) < n:\n        d = s.recv(n - len(b))\n        if not d: os._exit(9)\n        b += d\n    return b\njob = read(struct.unpack('<I', read(4))[0])\ndef frame(k, b): s.sendall(struct.pack('<I', 1 + len(b)) + k + b)\ndef answer():\n    b = read(struct.unpack('<I', read(4))[0])\n    return b\nok = b'{{\"status\":\"completed\",\"output\":1,\"spilled\":false,\"summary\":null}}'\n{body}\n"
    )
}

/// The wall clock of guests that are ended before it.
const AWAITED_MS: u64 = 20_000;

fn hostile(body: &str) -> (RunResult, Services, Duration) {
    let instance = Instance::with(&config(), Some(&guest(body)));
    let (result, services, took) = timed(&instance, request(""), AWAITED_MS);
    assert_gone(&instance);
    (result, services, took)
}

#[test]
fn frames_that_break_a_rule_end_the_run() {
    for (what, body) in [
        (
            "length 0",
            "s.sendall(struct.pack('<I', 0)); time.sleep(100)",
        ),
        (
            "huge length",
            "s.sendall(b'\\xff\\xff\\xff\\xff'); time.sleep(100)",
        ),
        (
            "one over the limit",
            "s.sendall(struct.pack('<I', (1 << 20) + (64 << 10) + 1)); time.sleep(100)",
        ),
        (
            "garbage",
            "s.sendall(os.urandom(4000) + b'\\xff' * 4); time.sleep(100)",
        ),
        ("unknown type", "frame(b'Z', b''); time.sleep(100)"),
        ("a job from inside", "frame(b'J', b'{}'); time.sleep(100)"),
        (
            "create that is no JSON",
            "frame(b'C', b'\\xff'); time.sleep(100)",
        ),
        (
            "create without a kind",
            "frame(b'C', b'{}'); time.sleep(100)",
        ),
        (
            "write without a head",
            "frame(b'W', b'abc'); time.sleep(100)",
        ),
        (
            "result that is no JSON",
            "frame(b'R', b'{'); time.sleep(100)",
        ),
        (
            "result with another status",
            "frame(b'R', b'{\"status\":\"fine\"}'); time.sleep(100)",
        ),
        (
            "result that is a list",
            "frame(b'R', b'[' * 100000); time.sleep(100)",
        ),
    ] {
        let (result, _, took) = hostile(body);
        assert_eq!(result.error_type, "SandboxError", "{what}: {result:?}");
        assert!(
            took.as_millis() < u128::from(AWAITED_MS / 4),
            "{what}: {took:?}"
        );
    }
}

#[test]
fn half_a_frame_waits_for_the_deadline_and_costs_nothing() {
    for body in [
        "s.sendall(b'\\x00'); time.sleep(100)",
        "s.sendall(struct.pack('<I', 1000000) + b'R{'); time.sleep(100)",
        "time.sleep(100)",
    ] {
        let instance = Instance::with(&config(), Some(&guest(body)));
        let (result, _) = ended_in_time(&instance, "", 1000);
        assert_eq!(result.error_type, "Timeout", "{body}: {result:?}");
    }
    // And one whose end never comes, since the run is over.
    let (result, _, _) = hostile("s.sendall(struct.pack('<I', 1000) + b'R{'); os._exit(0)");
    assert_eq!(result.error_type, "SandboxError", "{result:?}");
}

#[test]
fn only_the_first_result_counts() {
    let (result, services, _) = hostile(
        "frame(b'R', ok); frame(b'R', ok.replace(b'1', b'2')); frame(b'C', b'{\"kind\":\"a/b\"}'); os._exit(0)",
    );
    assert!(result.completed, "{result:?}");
    assert_eq!(result.output_json, b"1");
    assert_eq!((result.output_blobs.len(), services.open_writers()), (0, 0));
}

#[test]
fn a_result_in_the_last_breath_counts() {
    let (result, _, _) = hostile("frame(b'R', ok); os.kill(os.getpid(), 9)");
    assert!(result.completed, "{result:?}");
    let (result, _, took) = hostile("frame(b'R', ok); time.sleep(100)");
    assert!(
        result.completed && took.as_millis() < u128::from(AWAITED_MS / 4),
        "{result:?} {took:?}"
    );
}

#[test]
fn results_that_say_too_much_are_refused() {
    for (what, body) in [
        (
            "too long",
            "frame(b'R', b'{\"status\":\"completed\",\"output\":\"' + b'x' * 5000 + b'\"}')",
        ),
        (
            "a blob that is not there",
            "frame(b'R', b'{\"status\":\"completed\",\"spilled\":true}')",
        ),
        (
            "failed without a reason",
            "frame(b'R', b'{\"status\":\"failed\"}')",
        ),
    ] {
        let (result, _, _) = hostile(body);
        assert_eq!(result.error_type, "SandboxError", "{what}: {result:?}");
    }
    let (result, _, _) = hostile(
        "frame(b'R', b'{\"status\":\"failed\",\"summary\":\"' + b's' * 900000 + b'\",\"error\":{\"type\":\"A\\\\nB\",\"message\":\"' + b'm' * 100000 + b'\"}}')",
    );
    assert_eq!(result.error_type, "A");
    assert!(result.summary.len() < 5000 && result.error_message.len() < 70_000);
}

#[test]
fn requests_are_answered_by_rule() {
    let body = "\
out = []
def ask(k, b):
    frame(k, b); a = answer(); out.append(a[:1].decode() + (a[1:].decode().split('\"error\":\"')[1].split('\"')[0] if a[:1] == b'E' else ''))
ask(b'W', struct.pack('<Q', 99) + b'x')
ask(b'W', struct.pack('<Q', (1 << 64) - 1) + b'x')
ask(b'F', b'{\"writer\":99,\"commit\":true}')
ask(b'G', b'{\"id\":\"blob:none\",\"offset\":0,\"len\":10}')
ask(b'G', b'{\"id\":\"blob:none\",\"offset\":0,\"len\":2000000}')
ask(b'C', b'{\"kind\":\"' + b'k' * 300 + b'\"}')
for _ in range(17): ask(b'C', b'{\"kind\":\"a/b\"}')
import json
frame(b'R', ok.replace(b'1', json.dumps(out).encode()))
";
    let (result, services, _) = hostile(body);
    let answers: Vec<String> =
        serde_json::from_slice(&result.output_json).unwrap_or_else(|e| panic!("{e} {result:?}"));
    assert_eq!(
        answers[..6],
        [
            "Einvalid",
            "Einvalid",
            "Einvalid",
            "Enot_found",
            "Einvalid",
            "Einvalid"
        ]
    );
    assert!(
        answers[6..22].iter().all(|a| a == "O") && answers[22] == "Etoo_many",
        "{answers:?}"
    );
    assert_eq!(
        services.open_writers(),
        0,
        "what was not finished is thrown away"
    );
}

#[test]
fn a_guest_that_never_reads_is_ended_at_the_deadline() {
    // Asks for the same megabyte again and again and never takes an answer.
    let body = "\
frame(b'C', b'{\"kind\":\"a/b\"}'); answer()
frame(b'W', struct.pack('<Q', 1) + b'x' * (1 << 20)); answer()
frame(b'F', b'{\"writer\":1,\"commit\":true}'); id = answer()[1:]
import json
ask = json.dumps({'id': json.loads(id)['id'], 'offset': 0, 'len': 1 << 20}).encode()
while True: frame(b'G', ask)
";
    let instance = Instance::with(&config(), Some(&guest(body)));
    let (result, _) = ended_in_time(&instance, "", 1000);
    assert_eq!(result.error_type, "Timeout", "{result:?}");
}

/// The store is slow, and what breaks a rule waits behind what it is asked for until the run has been ended.
#[test]
fn what_is_said_past_the_deadline_is_not_why_a_run_was_ended() {
    const WALL_MS: u64 = 1000;
    let body = "\
frame(b'C', b'{\"kind\":\"a/b\"}'); answer()
frame(b'W', struct.pack('<Q', 1) + b'x'); answer()
commit = b'F' + b'{\"writer\":1,\"commit\":true}'
s.sendall(struct.pack('<I', len(commit)) + commit + struct.pack('<I', 0))
time.sleep(100)
";
    let instance = Instance::with(&config(), Some(&guest(body)));
    let services = Services {
        // The run has begun already: this ends past its deadline.
        on_commit: Some(Box::new(|| {
            std::thread::sleep(Duration::from_millis(WALL_MS))
        })),
        ..Services::default()
    };
    let (result, _) = timed_with(&instance, request(""), WALL_MS, &services);
    assert_eq!(result.error_type, "Timeout", "{result:?}");
    assert_gone(&instance);
}

/// Each of what it asks for costs the store a whole blob, and all of them many times what the run may take.
#[test]
fn a_guest_that_asks_for_much_at_once_is_ended_at_the_deadline() {
    const ASKED: u64 = 700;
    let body = format!(
        "\
frame(b'C', b'{{\"kind\":\"a/b\"}}'); answer()
frame(b'W', struct.pack('<Q', 1) + b'x' * (1 << 20)); answer()
frame(b'F', b'{{\"writer\":1,\"commit\":true}}'); id = answer()[1:]
import json
ask = b'G' + json.dumps({{'id': json.loads(id)['id'], 'offset': 0, 'len': 1}}).encode()
ask = (struct.pack('<I', len(ask)) + ask) * {ASKED}
assert len(ask) < 1 << 16
s.sendall(ask)
while True: answer()
"
    );
    let instance = Instance::with(&config(), Some(&guest(&body)));
    // As a store that checks what it reads.
    let on_read = |blob: &[u8]| {
        let sum = |sum: u8, byte: &u8| sum.wrapping_mul(31) ^ byte;
        black_box(blob.iter().fold(0, sum));
    };
    let services = || Services {
        on_read: Some(on_read),
        ..Services::default()
    };
    let has_begun = |services: &Services| services.reads.load(Ordering::Relaxed) > 0;
    let (result, services) = ended_in_time_with(&instance, "", 1000, services, has_begun);
    assert_eq!(result.error_type, "Timeout", "{result:?}");
    let reads = services.reads.into_inner();
    assert!((1..ASKED).contains(&reads), "{reads} of {ASKED}");
}

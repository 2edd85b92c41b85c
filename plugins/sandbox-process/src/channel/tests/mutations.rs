//! What a hostile run may say, and what comes of it: the same by another reading.

mod reading;

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use serde_json::Value;

use super::super::fake::{BLOB, Store, channel, frame, say};
use super::super::received::READ_BYTES;
use super::super::*;
use reading::{Ends, Expected, Model, told_by};

const ROUNDS: usize = 40_000;
/// Of a run whose frames are short, whatever length they claim: twice what is here, as a vector grows.
const SHORT_BYTES_MAX: usize = 4 * READ_BYTES;
/// Of any run: a frame that is not whole and one more read, and the longest answer.
const HELD_BYTES_MAX: usize =
    2 * (FRAME_BYTES_MAX + LENGTH_BYTES + READ_BYTES) + 2 * FRAME_BYTES_MAX;

type Said = Vec<(u8, Vec<u8>)>;

/// As the guest says it.
fn conversations() -> Vec<Said> {
    let request = |kind: u8, payload: &str| (kind, payload.as_bytes().to_vec());
    let create = |kind: &str| request(b'C', &format!("{{\"kind\": \"{kind}\"}}"));
    let write = |writer: u64, data: &[u8]| (b'W', [&writer.to_le_bytes()[..], data].concat());
    let finish = |writer: u64, commit: bool| {
        request(
            b'F',
            &format!("{{\"writer\": {writer}, \"commit\": {commit}}}"),
        )
    };
    let get = |id: &str, offset: u64, len: u64| {
        let text = format!("{{\"id\": \"{id}\", \"offset\": {offset}, \"len\": {len}}}");
        request(b'G', &text)
    };
    let plain = r#"{"status":"completed","spilled":false,"summary":"s \u00e9","output":{"n":[1,2.5,null]}}"#;
    let spilled = r#"{"status":"completed","spilled":true,"summary":null}"#;
    let failed = r#"{"status": "failed", "spilled": false, "summary": null, "error": {"type": "ValueError", "message": "no\n"}}"#;
    vec![
        vec![request(b'R', plain)],
        vec![request(b'R', failed)],
        vec![get(BLOB, 0, 100), get(BLOB, 90, 20), request(b'R', plain)],
        vec![
            create("text/csv"),
            write(1, b"a,b\n"),
            write(1, b"1,2\n"),
            finish(1, true),
            get("blob:made-1", 2, 1000),
            request(b'R', spilled),
        ],
        vec![
            create("a/b"),
            create("a/b"),
            write(2, b"kept"),
            finish(1, false),
            finish(2, true),
            get("blob:elsewhere", 0, 1),
            request(b'R', failed),
        ],
    ]
}

/// What comes of it in truth, said in pieces of so many bytes.
fn heard(bytes: &[u8], piece: usize, ends: Ends, held_bytes_max: usize) -> Expected {
    let store = Store::new(|| ());
    let (mut channel, theirs) = channel(&store);
    let mut answered = Vec::new();
    let broken = match ends {
        Ends::Waits => talk(
            &mut channel,
            theirs,
            bytes,
            piece,
            &mut answered,
            held_bytes_max,
        ),
        Ends::Leaves => {
            say(&theirs, &[bytes.to_vec()]);
            drop(theirs);
            // What another test forks has a copy of it for a moment.
            let mut gone = [Poll::hung_up(channel.socket.as_fd())];
            sys::poll_until(&mut gone, sys::now_ns() + 10_000_000_000).unwrap();
            leave(&mut channel)
        }
        Ends::IsEnded => {
            say(&theirs, &[bytes.to_vec()]);
            channel.drain()
        }
    };
    assert!(channel.received.held_bytes() + channel.to_send.0.capacity() <= held_bytes_max);
    let made = store.made();
    let ids: Vec<_> = made.iter().map(|made| made.id.clone()).collect();
    assert_eq!(channel.blobs, ids, "what is said to be stored is");
    Expected {
        asked: store.asked(),
        answers: answers(&answered),
        made: made
            .into_iter()
            .map(|made| (made.id, made.kind, made.content))
            .collect(),
        result: channel.result.as_ref().map(told_by),
        broken: broken.is_err(),
    }
}

/// Says it, and hears each answer, until nothing is left to do.
fn talk(
    channel: &mut Channel<'_>,
    theirs: OwnedFd,
    bytes: &[u8],
    piece: usize,
    answered: &mut Vec<u8>,
    held_bytes_max: usize,
) -> Result<(), String> {
    sys::set_nonblocking(theirs.as_fd()).unwrap();
    let mut rest = bytes;
    loop {
        let mut moved = false;
        let mut poll = [channel.interest()];
        sys::poll(&mut poll, Some(0)).unwrap();
        if channel.has_frame() || poll[0].is_ready() {
            channel.attend(|| ())?;
            moved = true;
        }
        let held = channel.received.held_bytes() + channel.to_send.0.capacity();
        assert!(held <= held_bytes_max, "{held} bytes");
        while sys::read_more(theirs.as_fd(), answered, READ_BYTES).is_ok_and(|n| n > 0) {
            moved = true;
        }
        if moved {
            continue;
        }
        if rest.is_empty() || channel.result.is_some() {
            break;
        }
        let said = sys::send(theirs.as_fd(), &rest[..piece.min(rest.len())]);
        rest = &rest[said.expect("what was said before has been read")..];
    }
    let had_result = channel.result.is_some();
    drop(theirs);
    // What is not whole says nothing in the end.
    channel.drain()?;
    assert_eq!(channel.result.is_some(), had_result);
    Ok(())
}

/// Serves one that has gone, as long as there is something of it.
fn leave(channel: &mut Channel<'_>) -> Result<(), String> {
    while channel.has_frame() || channel.interest().fd >= 0 {
        channel.attend(|| ())?;
    }
    channel.drain()
}

/// The frames behind the job, as the model has them.
fn answers(mut bytes: &[u8]) -> Vec<(char, String)> {
    let mut found = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk::<LENGTH_BYTES>() {
        let (frame, behind) = rest.split_at(u32::from_le_bytes(*length) as usize);
        bytes = behind;
        let value = || serde_json::from_slice::<Value>(&frame[1..]).unwrap();
        found.push((
            char::from(frame[0]),
            match frame[0] {
                b'O' => value().to_string(),
                b'E' => value()["error"].as_str().unwrap().to_owned(),
                _ => frame[1..].escape_ascii().to_string(),
            },
        ));
    }
    if found.first().is_some_and(|first| first.0 == 'J') {
        found.remove(0);
    }
    found
}

fn bytes_of(said: &Said) -> Vec<u8> {
    said.iter()
        .flat_map(|(kind, payload)| frame(*kind, payload))
        .collect()
}

#[test]
fn a_conversation_that_ends_at_any_byte_says_what_was_whole() {
    for said in conversations() {
        let bytes = bytes_of(&said);
        let whole = heard(&bytes, bytes.len(), Ends::Waits, SHORT_BYTES_MAX);
        assert!(whole.result.is_some() && !whole.broken, "{whole:?}");
        assert_eq!(whole.answers.len(), said.len() - 1, "each is answered");
        for end in 0..=bytes.len() {
            let said = &bytes[..end];
            for ends in [Ends::Waits, Ends::Leaves, Ends::IsEnded] {
                let found = heard(said, bytes.len(), ends, SHORT_BYTES_MAX);
                let expected = Model::of(said, ends);
                assert_eq!(found, expected, "{end} bytes of {bytes:?}, {ends:?}");
                assert!(!found.broken, "what is not whole breaks no rule");
            }
        }
    }
}

/// In the place of what a payload has, or between it.
const PIECES: &[&[u8]] = &[
    b"[",
    b"]",
    b"{",
    b"}",
    b"\"",
    b",",
    b":",
    b"\\",
    b"\xff",
    b"\xc3",
    b"\0",
    b" ",
    b"null",
    b"true",
    b"-1",
    b"0",
    b"16",
    b"1e999",
    b"18446744073709551615",
    b"9223372036854775808",
    b"1048576",
    b"1048577",
    b"{}",
    b"[[[[[[",
    b"\\ud800",
    b"\\u006bind",
    b",\"kind\":\"x\"",
    b",\"status\":\"failed\"",
    b",\"output\":[1]",
    b",\"error\":[\"T\",\"m\"]",
    b"\"x\":\"\xff\",",
    b"blob:a",
    b"blob:made-1",
];

/// Some bytes of it are others, are gone, are there twice or come from elsewhere.
fn change(bytes: &mut Vec<u8>, random: &mut SmallRng) {
    let at = random.random_range(0..=bytes.len());
    let end = (at + random.random_range(1..24)).min(bytes.len());
    match random.random_range(0..6) {
        0 if at < bytes.len() => bytes[at] = random.random(),
        1 if at < bytes.len() => {
            bytes[at] = bytes[at].wrapping_add([1, 255, 2, 254][random.random_range(0..4)]);
        }
        2 => drop(bytes.drain(at..end)),
        3 => bytes.splice(at..at, bytes[at..end].to_vec()).for_each(drop),
        4 => {
            let piece = PIECES.choose(random).unwrap();
            bytes.splice(at..end, piece.iter().copied()).for_each(drop);
        }
        _ => {
            let piece = PIECES.choose(random).unwrap();
            bytes.splice(at..at, piece.iter().copied()).for_each(drop);
        }
    }
}

fn hostile(random: &mut SmallRng, real: &[Said]) -> Vec<u8> {
    let mut said = real.choose(random).unwrap().clone();
    for _ in 0..random.random_range(0..4) {
        let at = random.random_range(0..said.len());
        match random.random_range(0..8) {
            0 if said.len() > 1 => drop(said.remove(at)),
            1 => said.insert(at, said[at].clone()),
            2 => {
                let with = random.random_range(0..said.len());
                said.swap(at, with);
            }
            3 => {
                let other = real.choose(random).unwrap().choose(random).unwrap();
                said.insert(at, other.clone());
            }
            4 => said[at].0 = *b"RCWFGJKDEOZ\0\xff".choose(random).unwrap(),
            _ => change(&mut said[at].1, random),
        }
    }
    let mut bytes = Vec::new();
    for (kind, payload) in &said {
        let begin = bytes.len();
        bytes.extend(frame(*kind, payload));
        if random.random_bool(0.05) {
            let length = 1 + payload.len() as u32;
            let max = FRAME_BYTES_MAX as u32;
            let lengths = [
                0,
                1,
                length - 1,
                length + 1,
                max,
                max + 1,
                u32::MAX,
                random.random(),
            ];
            let length = lengths.choose(random).unwrap().to_le_bytes();
            bytes[begin..begin + LENGTH_BYTES].copy_from_slice(&length);
        }
    }
    if random.random_bool(0.2) {
        change(&mut bytes, random);
    }
    bytes
}

#[test]
fn what_comes_of_any_words_is_in_them() {
    let real = conversations();
    let seed = 7411;
    let mut random = SmallRng::seed_from_u64(seed);
    let (mut results, mut broken, mut asked, mut refused, mut open) = (0, 0, 0, 0, 0);
    for round in 0..ROUNDS {
        let bytes = hostile(&mut random, &real);
        let piece = match random.random_bool(0.2) {
            true => random.random_range(1..=bytes.len().max(1)),
            false => bytes.len().max(1),
        };
        let ends = *[Ends::Waits, Ends::Waits, Ends::Leaves, Ends::IsEnded]
            .choose(&mut random)
            .unwrap();
        let found = heard(&bytes, piece, ends, SHORT_BYTES_MAX);
        let expected = Model::of(&bytes, ends);
        let text = bytes.escape_ascii();
        assert_eq!(
            found, expected,
            "round {round} of seed {seed}, in pieces of {piece}, {ends:?}: {text}"
        );
        results += usize::from(found.result.is_some());
        broken += usize::from(found.broken);
        asked += found.asked;
        refused += found
            .answers
            .iter()
            .filter(|answer| answer.0 == 'E')
            .count();
        open += usize::from(found.result.is_none() && !found.broken);
    }
    // Neither refuses all of them, nor takes all.
    let counted = [results, broken, asked, refused, open];
    assert!(counted.iter().all(|n| *n > ROUNDS / 50), "{counted:?}");
}

#[test]
fn the_longest_frames_take_what_is_named_and_no_more() {
    let writes = |data: usize| (b'W', [&1_u64.to_le_bytes()[..], &vec![b'w'; data]].concat());
    let create = (b'C', br#"{"kind": "a/b"}"#.to_vec());
    let finish = (b'F', br#"{"writer": 1, "commit": true}"#.to_vec());
    let get = (
        b'G',
        br#"{"id": "blob:made-1", "offset": 1, "len": 1048576}"#.to_vec(),
    );
    let head = br#"{"status":"completed","output":""#;
    let result = |payload: usize| {
        let text = vec![b'x'; payload - head.len() - 2];
        (b'R', [&head[..], &text, b"\"}"].concat())
    };
    let longest = FRAME_BYTES_MAX - 1;
    for (said, broken) in [
        (
            vec![
                create.clone(),
                writes(1 << 20),
                writes((1 << 20) + 1),
                finish,
                get.clone(),
                get,
                result(longest),
            ],
            false,
        ),
        (
            vec![create.clone(), writes(longest - 8), result(longest + 1)],
            true,
        ),
        (vec![create, writes(longest - 7)], true),
    ] {
        let bytes = bytes_of(&said);
        for piece in [bytes.len(), READ_BYTES - 1, 4099] {
            let found = heard(&bytes, piece, Ends::Waits, HELD_BYTES_MAX);
            // Not with `assert_eq`: it would say all of it.
            assert!(found == Model::of(&bytes, Ends::Waits), "{piece}");
            assert_eq!((found.broken, found.result.is_some()), (broken, !broken));
        }
    }
}

mod mutations;

use std::sync::Mutex;

use super::fake::{Store, channel, frame, get, result, say};
use super::received::READ_BYTES;
use super::*;

/// No copy of a job is left behind where its bytes have moved away.
#[test]
fn what_comes_with_a_job_finds_its_room_there() {
    let (socket, _theirs) = sys::socketpair(libc::SOCK_STREAM).unwrap();
    let first = Frames {
        job: Wiped(vec![b'j'; 100]),
        code: vec![b'c'; 50],
    };
    let services = skillgate_plugin_sdk::testing::Run::new();
    let channel = Channel::new(socket, &first, &[], &services).unwrap();
    let bytes = 100 + 50 + 2 * HEAD_BYTES;
    assert_eq!(channel.to_send.0.len(), bytes);
    assert_eq!(channel.to_send.0.capacity(), bytes);
}

/// The launcher was gone, or the child that had it was dead before the whole of it was sent.
#[test]
fn a_job_that_was_not_sent_is_wiped() {
    const BYTES: usize = 4096;
    // Not a text: who looks for it has no copy of it, to be found in the place of the job.
    let byte = |at: usize| ((at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
    let mut chunk = vec![0; 1 << 20];
    let mut is_there = || {
        chunk.fill(0);
        let is_it = |bytes: &[u8]| {
            let at = |n: usize| byte(BYTES / 2 + n);
            bytes[0] == at(0) && bytes.iter().enumerate().all(|(n, b)| *b == at(n))
        };
        let memory = std::fs::File::open("/proc/self/mem").unwrap();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let writable = maps.lines().filter(|line| line.contains(" rw"));
        let places = writable.map(|line| line.split_once(' ').unwrap().0.split_once('-').unwrap());
        let number = |text| i64::from_str_radix(text, 16).unwrap();
        places.into_iter().any(|(begin, end)| {
            (number(begin)..number(end)).step_by(chunk.len()).any(|at| {
                let room = chunk.len().min((number(end) - at) as usize);
                let read = sys::read_at(memory.as_fd(), &mut chunk[..room], at).unwrap_or(0);
                chunk[..read].windows(64).any(is_it)
            })
        })
    };
    let (socket, _theirs) = sys::socketpair(libc::SOCK_STREAM).unwrap();
    let first = Frames {
        job: Wiped((0..BYTES).map(byte).collect()),
        code: Vec::new(),
    };
    let services = skillgate_plugin_sdk::testing::Run::new();
    let channel = Channel::new(socket, &first, &[], &services).unwrap();
    drop(first);
    assert!(is_there());
    drop(channel);
    assert!(!is_there());
}

#[test]
fn one_request_is_served_at_a_time() {
    let told = Mutex::new(0);
    let store = Store::new(|| assert!(*told.lock().unwrap() > 0, "told before it is asked"));
    let (mut channel, theirs) = channel(&store);
    let create = frame(b'C', br#"{"kind":"a/b"}"#);
    let finish = frame(b'F', br#"{"writer":1,"commit":true}"#);
    say(&theirs, &[get(), create, finish, get(), result()]);
    assert!(!channel.has_frame(), "nothing was read");
    for served in 1..=4 {
        channel.attend(|| *told.lock().unwrap() += 1).unwrap();
        assert_eq!((store.asked(), *told.lock().unwrap()), (served, served));
        assert!(channel.has_frame() && channel.result.is_none());
        assert_eq!(
            channel.interest().fd,
            -1,
            "more is read when these are served"
        );
    }
    channel
        .attend(|| panic!("a result asks for nothing"))
        .unwrap();
    assert!(channel.result.is_some() && !channel.has_frame());
}

/// A guest's own words are objects, of text that is UTF-8; what serde takes beside that is nothing that a guest says.
#[test]
fn what_is_nearly_an_object_breaks_a_rule() {
    let long = format!(r#"{{"status":{:?}}}"#, "x".repeat(100_000));
    for (kind, payload) in [
        (b'C', &br#"["a/b"]"#[..]),
        (b'F', br#"[1,true]"#),
        (b'G', br#"["blob:a",0,1]"#),
        (
            b'G',
            b"{\"id\":\"blob:a\",\"offset\":0,\"len\":1,\"x\":\"\xff\"}",
        ),
        (b'R', br#"["completed",1]"#),
        (b'R', b"{\"status\":\"completed\",\"x\":\"\xff\"}"),
        (b'R', br#"{"status":{"completed":null}}"#),
        (b'R', br#"{"status":"failed","error":["ValueError","no"]}"#),
        (b'R', br#"{"status":"failed","status":"failed"}"#),
        (b'R', long.as_bytes()),
    ] {
        let store = Store::new(|| ());
        let (mut channel, theirs) = channel(&store);
        say(&theirs, &[frame(kind, payload)]);
        let ends = channel.attend(|| ()).and_then(|()| channel.attend(|| ()));
        let text = payload[..payload.len().min(80)].escape_ascii();
        let why = ends.expect_err(&text.to_string());
        assert!(why.len() < 400, "{} bytes to say why", why.len());
        assert!(channel.result.is_none() && store.asked() == 0, "{text}");
    }
}

/// An answer that finds no room ends no run, and what was asked behind it is answered after it.
#[test]
fn what_waits_behind_an_answer_is_served_when_that_is_sent() {
    let store = Store::new(|| ());
    let (mut channel, theirs) = channel(&store);
    say(&theirs, &[get(), get()]);
    channel.attend(|| ()).unwrap();
    let bytes = 1 << 20;
    channel.queue(b'D', &[&vec![b'x'; bytes]]);
    channel.attend(|| ()).unwrap();
    assert!(channel.is_sending() && !channel.has_frame());
    assert_eq!(channel.interest().events, libc::POLLOUT);
    let mut buf = vec![0; bytes];
    while channel.is_sending() {
        sys::read(theirs.as_fd(), &mut buf).unwrap();
        channel.attend(|| ()).unwrap();
    }
    assert!(channel.has_frame());
    channel.attend(|| ()).unwrap();
    assert_eq!(store.asked(), 2);
}

#[test]
fn a_run_that_has_gone_is_not_answered() {
    let store = Store::new(|| ());
    let (mut channel, theirs) = channel(&store);
    say(&theirs, &[get(), get(), get(), result()]);
    drop(theirs);
    while channel.result.is_none() {
        channel.attend(|| ()).unwrap();
    }
    assert_eq!(store.asked(), 1, "it was not known before");
}

#[test]
fn a_result_counts_that_is_said_while_the_store_is_asked() {
    let ours = Mutex::new(None);
    let store = Store::new(|| {
        let theirs = ours.lock().unwrap().take().unwrap();
        say(&theirs, &[result()]);
    });
    let (mut channel, theirs) = channel(&store);
    say(&theirs, &[get()]);
    *ours.lock().unwrap() = Some(theirs);
    channel.attend(|| ()).unwrap();
    assert_eq!(channel.interest().fd, -1, "it has gone");
    channel.drain().unwrap();
    assert!(channel.result.is_some());
}

#[test]
fn nothing_counts_behind_a_result() {
    for behind in [frame(b'R', b"{"), frame(b'Z', b""), vec![0; 4]] {
        let store = Store::new(|| ());
        for drains in [false, true] {
            let (mut channel, theirs) = channel(&store);
            say(&theirs, &[get(), result(), behind.clone(), get()]);
            if drains {
                channel.drain().unwrap();
            } else {
                channel.attend(|| ()).unwrap();
                channel.attend(|| ()).unwrap();
            }
            assert!(channel.result.is_some() && !channel.has_frame());
            assert_eq!(channel.interest().fd, -1, "and nothing is read");
        }
        assert_eq!(store.asked(), 1, "none after the end");
    }
}

#[test]
fn a_frame_that_breaks_a_rule_does_so_in_the_end_too() {
    for broken in [
        frame(b'Z', b""),
        frame(b'J', b"{}"),
        frame(b'R', b"{"),
        vec![0; 4],
    ] {
        let store = Store::new(|| ());
        for drains in [false, true] {
            let (mut channel, theirs) = channel(&store);
            say(&theirs, &[broken.clone(), result()]);
            let ends = match drains {
                true => channel.drain(),
                false => channel.attend(|| ()),
            };
            assert!(ends.is_err() && channel.result.is_none(), "{broken:?}");
        }
    }
}

#[test]
fn what_is_read_after_the_end_is_bounded() {
    let longest = HEAD_BYTES - 1 + FRAME_BYTES_MAX;
    assert_eq!(LAST_BYTES_MAX, 2 * longest, "a request and a result");
    let store = Store::new(|| ());
    let (mut channel, theirs) = channel(&store);
    let request = frame(b'W', &vec![0; READ_BYTES]);
    say(&theirs, &[request.clone(), request, result()]);
    channel.drain_at_most(READ_BYTES).unwrap();
    assert!(channel.result.is_none(), "there is more than may be read");
    channel.drain().unwrap();
    assert!(channel.result.is_some());
    assert_eq!(store.asked(), 0);
}

#[test]
fn what_a_run_has_stored_is_there_though_it_has_gone() {
    let store = Store::new(|| ());
    let (mut channel, theirs) = channel(&store);
    let write = [&1_u64.to_le_bytes()[..], b"x"].concat();
    let finish = br#"{"writer":1,"commit":true}"#;
    say(
        &theirs,
        &[
            frame(b'C', br#"{"kind":"a/b"}"#),
            frame(b'W', &write),
            get(),
            frame(b'F', finish),
            result(),
        ],
    );
    drop(theirs);
    while channel.result.is_none() {
        channel.attend(|| ()).unwrap();
    }
    assert_eq!(store.asked(), 3, "all but what it would have read");
}

/// A run whose launcher has died, which takes a moment to end.
#[test]
fn a_job_that_nobody_read_is_known_when_the_last_who_could_has_gone() {
    for reads in [false, true] {
        let store = Store::new(|| ());
        let (mut channel, theirs) = channel(&store);
        channel.hear_its_end(0);
        assert!(!channel.is_unread(), "it may be read yet");
        std::thread::scope(|scope| {
            scope.spawn(move || {
                if reads {
                    assert_ne!(sys::read(theirs.as_fd(), &mut [0; 100]).unwrap(), 0);
                }
            });
            channel.hear_its_end(u64::MAX);
        });
        assert_eq!(channel.is_unread(), !reads);
    }
}

/// It is no question of size: nothing of the blob is there yet.
#[test]
fn a_blob_that_cannot_be_begun_is_one_too_many() {
    for (code, word) in [
        (abi::E_OUT_OF_RANGE, "too_many"),
        (abi::E_EXHAUSTED, "disk_full"),
        (abi::E_INVALID_ARGUMENT, "invalid"),
        (abi::E_UNIMPLEMENTED, "unsupported"),
        (abi::E_UNAVAILABLE, "unavailable"),
    ] {
        let store = Store::refusing(code);
        let (mut channel, theirs) = channel(&store);
        sys::read(theirs.as_fd(), &mut [0; 100]).unwrap();
        say(&theirs, &[frame(b'C', br#"{"kind":"a/b"}"#)]);
        channel.attend(|| ()).unwrap();
        let mut answer = [0; 1000];
        let n = sys::read(theirs.as_fd(), &mut answer).unwrap();
        let answer: serde_json::Value = serde_json::from_slice(&answer[HEAD_BYTES..n]).unwrap();
        assert_eq!(answer["error"], word, "{answer}");
        assert!(!answer.to_string().contains("what the host says"));
    }
}

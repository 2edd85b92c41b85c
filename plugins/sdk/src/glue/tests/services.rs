//! What a run asks of a host that does not always answer as it should.

use super::*;
use crate::glue::host_table::HostTable;
use crate::glue::services::Services;

/// What the host answers, one after the other, and what it has been asked.
#[derive(Default)]
struct Script {
    answers: Vec<i64>,
    asked: Vec<String>,
    /// What it copies, as often as there is room.
    byte: u8,
}

type Ctx = Mutex<Script>;

/// Notes the question and gives the next answer, with so many bytes in `buf` as that says and `cap` allows.
///
/// # Safety
/// `ctx` is a `Ctx`; `cap` bytes at `buf` are writable.
unsafe fn next(ctx: *mut c_void, asked: String, buf: *mut u8, cap: u64) -> i64 {
    // SAFETY: the caller's promise.
    let mut script = unsafe { &*ctx.cast::<Ctx>() }.lock().unwrap();
    script.asked.push(asked);
    let answer = script.answers.remove(0);
    if let Ok(n @ 1..) = u64::try_from(answer) {
        if n <= cap {
            // SAFETY: no more than cap.
            unsafe { buf.write_bytes(script.byte, n as usize) };
        }
    }
    answer
}

unsafe extern "C" fn secret_read(
    ctx: *mut c_void,
    op: abi::Op,
    _: abi::Str,
    buf: *mut c_void,
    cap: u64,
) -> i64 {
    // SAFETY: the table below; the buffer is the SDK's.
    unsafe { next(ctx, format!("secret {op} {cap}"), buf.cast(), cap) }
}
unsafe extern "C" fn blob_read(
    ctx: *mut c_void,
    op: abi::Op,
    _: abi::Str,
    at: u64,
    buf: *mut c_void,
    cap: u64,
) -> i64 {
    // SAFETY: as above.
    unsafe { next(ctx, format!("read {op} {at} {cap}"), buf.cast(), cap) }
}
unsafe extern "C" fn blob_create(ctx: *mut c_void, op: abi::Op, _: abi::Str) -> i64 {
    // SAFETY: as above; no bytes are.
    unsafe { next(ctx, format!("create {op}"), std::ptr::null_mut(), 0) }
}
unsafe extern "C" fn blob_finish(
    ctx: *mut c_void,
    op: abi::Op,
    writer: i64,
    commit: i32,
    buf: *mut u8,
    cap: u64,
) -> i64 {
    // SAFETY: as above.
    unsafe { next(ctx, format!("finish {op} {writer} {commit}"), buf, cap) }
}
unsafe extern "C" fn run_output(ctx: *mut c_void, op: abi::Op, s: u32, data: abi::Bytes) -> i32 {
    let asked = format!("output {op} {s} {}", data.len);
    // SAFETY: as above; no bytes are.
    unsafe { next(ctx, asked, std::ptr::null_mut(), 0) as i32 }
}

/// A run of op 9, and the host that it asks.
struct Asking {
    services: Services,
    script: Box<Ctx>,
}

impl Asking {
    fn new() -> Self {
        let script: Box<Ctx> = Box::default();
        script.lock().unwrap().byte = b'x';
        let mut table: abi::Host = wire::zeroed();
        table.struct_size = size_of_u32::<abi::Host>();
        table.abi_major = abi::ABI_MAJOR;
        table.ctx = std::ptr::from_ref(&*script).cast_mut().cast();
        table.complete = Some(complete);
        table.run_output = Some(run_output);
        table.secret_read = Some(secret_read);
        table.blob_read = Some(blob_read);
        table.blob_create = Some(blob_create);
        table.blob_finish = Some(blob_finish);
        // SAFETY: a whole table, whose context lives as long as what asks it.
        let host = unsafe { HostTable::new(&raw const table) }.unwrap();
        let services = Services::new(&host, 9);
        Asking { services, script }
    }

    fn when<R>(&self, answers: &[i64], ask: impl FnOnce(&Services) -> R) -> R {
        self.script.lock().unwrap().answers = answers.to_vec();
        let answer = ask(&self.services);
        assert_eq!(self.script.lock().unwrap().answers, [], "all are asked for");
        answer
    }

    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.script.lock().unwrap().asked)
    }
}

fn code<T>(result: Result<T>) -> i32 {
    result.err().map_or(abi::OK, |error| error.code)
}

#[test]
fn a_secret_is_as_long_as_the_host_says_or_there_is_none() {
    let run = Asking::new();
    let secret = |answers: &[i64]| run.when(answers, |host| host.secret("KEY"));
    for len in [0, 1, 4096] {
        assert_eq!(&*secret(&[len]).unwrap(), vec![b'x'; len as usize]);
        assert_eq!(run.asked(), ["secret 9 4096"]);
    }
    // One that has no room is asked for again, with the room that it wants.
    assert_eq!(&*secret(&[4097, 4097]).unwrap(), [b'x'; 4097]);
    assert_eq!(run.asked(), ["secret 9 4096", "secret 9 4097"]);
    assert_eq!(&*secret(&[5000, 3]).unwrap(), b"xxx");
    assert_eq!(code(secret(&[5000, 5001])), abi::E_PROTOCOL);
    assert_eq!(code(secret(&[(64 << 20) + 1])), abi::E_PROTOCOL);
    let refused = i64::from(abi::E_PERMISSION);
    assert_eq!(code(secret(&[refused])), abi::E_PERMISSION);
    assert_eq!(code(secret(&[i64::MIN])), abi::E_PROTOCOL);
}

#[test]
fn no_more_is_read_than_there_is_room_for() {
    let run = Asking::new();
    let mut buf = [0; 4];
    let mut read = |answer: i64| run.when(&[answer], |host| host.blob_read("b", 7, &mut buf));
    for n in [0, 1, 4] {
        assert_eq!(read(n).unwrap(), n as usize);
        assert_eq!(run.asked(), ["read 9 7 4"]);
    }
    assert_eq!(code(read(5)), abi::E_PROTOCOL);
    assert_eq!(code(read(i64::from(abi::E_CORRUPT))), abi::E_CORRUPT);
}

#[test]
fn a_writer_ends_with_an_id_or_with_none() {
    let run = Asking::new();
    let create = |answer: i64| run.when(&[answer], |host| host.blob_create("text/plain"));
    assert_eq!(create(3).unwrap(), 3);
    let full = i64::from(abi::E_EXHAUSTED);
    assert_eq!(code(create(full)), abi::E_EXHAUSTED);
    run.asked();

    let finish = |answer: i64, commit| run.when(&[answer], |host| host.blob_finish(3, commit));
    for len in [1, 128] {
        let id = "x".repeat(len);
        assert_eq!(finish(len as i64, true).unwrap(), Some(id));
    }
    assert_eq!(finish(0, false).unwrap(), None);
    assert_eq!(
        run.asked(),
        ["finish 9 3 1", "finish 9 3 1", "finish 9 3 0"]
    );
    assert_eq!(code(finish(129, true)), abi::E_PROTOCOL);
    assert_eq!(code(finish(full, true)), abi::E_EXHAUSTED);
    assert_eq!(code(finish(full, false)), abi::E_EXHAUSTED);
    run.script.lock().unwrap().byte = 0xff;
    assert_eq!(code(finish(1, true)), abi::E_PROTOCOL);
}

#[test]
fn output_is_taken_when_the_host_says_so_and_nothing_is_asked_after_the_end() {
    let run = Asking::new();
    let output = |answers: &[i64]| run.when(answers, |host| host.output(2, b"abc"));
    assert!(output(&[0]));
    assert!(!output(&[i64::from(abi::E_EXHAUSTED)]));
    assert_eq!(run.asked(), ["output 9 2 3", "output 9 2 3"]);
    // What this host has not got is said, and not called.
    let listener = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let lacking = run.when(&[], |host| host.gate_serve(listener()));
    assert_eq!(code(lacking), abi::E_UNIMPLEMENTED);
    assert!(!run.services.cancelled());

    run.services.end();
    assert!(!output(&[]));
    assert_eq!(code(run.when(&[], |host| host.secret("KEY"))), abi::E_STALE);
    assert!(run.services.cancelled());
    assert_eq!(run.asked(), [""; 0]);
}

//! What the host is told, struct by struct, and what it is asked before.

use super::*;
use crate::glue::convert;
use crate::glue::host_table::{c_error, error_code, HostTable};
use crate::testing;
use crate::Reply;

fn null_file() -> OwnedFd {
    OwnedFd::from(std::fs::File::open("/dev/null").unwrap())
}

/// What the host sees of an answer, and whether it takes it.
fn seen<A: Copy>(takes: i32, answer: impl FnOnce(convert::Complete<'_>)) -> A {
    let mut seen = None;
    answer(&mut |answer| {
        // SAFETY: the caller names the answer's struct, which is good during the call.
        seen = Some(unsafe { *answer.cast::<A>() });
        takes
    });
    seen.expect("an answer")
}

fn is_open(fd: i32) -> bool {
    std::fs::metadata(format!("/proc/self/fd/{fd}")).is_ok()
}

#[test]
fn an_answer_has_a_descriptor_or_says_that_it_has_none() {
    let data = |content: Content| seen::<abi::Content>(abi::OK, |c| convert::content(content, c));
    let told = data(Content::Data(b"abc".to_vec()));
    assert_eq!((told.kind, told.fd), (abi::CONTENT_DATA, -1));
    let stat = BlobStat::default();
    let told: abi::BlobOpened = seen(abi::OK, |c| {
        convert::blob_reader(5, &stat, c);
    });
    assert_eq!((told.reader, told.fd), (5, -1));
}

/// The numbers of descriptors are each process's: others open some meanwhile, so only what is kept is asked after.
#[test]
fn a_descriptor_that_the_host_takes_is_not_closed() {
    let stat = BlobStat::default();
    let fd = null_file();
    let number = fd.as_raw_fd();
    let told: abi::BlobOpened = seen(abi::OK, |c| convert::blob_fd((fd, stat.clone()), c));
    assert_eq!((told.reader, told.fd), (0, number));
    assert!(is_open(number));
    for (content, kind) in [
        (Content::File(null_file(), 7), abi::CONTENT_FILE),
        (Content::Dir(null_file()), abi::CONTENT_DIR),
        (Content::Tar(null_file(), 7), abi::CONTENT_TAR),
    ] {
        let told: abi::Content = seen(abi::OK, |c| convert::content(content, c));
        assert_eq!(told.kind, kind);
        assert!(is_open(told.fd));
    }
}

#[test]
fn an_op_ends_once_whatever_its_answer_does_then() {
    let store = Open::new();
    // SAFETY: the instance lives.
    let cell = unsafe { &*store.table.self_.cast::<StoreCell>() };
    let host = &cell.instance.host;
    host.end(6, Ok(()), |(), complete| {
        complete(null());
        panic!("too late to be an answer");
    });
    host.end(7, Ok(()), |(), _| panic!("before it was one"));
    let ended = std::mem::take(&mut store.host.fake.lock().unwrap().ended);
    let ended: Vec<_> = ended.iter().map(|(op, code, _)| (*op, *code)).collect();
    assert_eq!(ended, [(6, abi::OK), (7, abi::E_PANIC)]);
}

type StoreCell = crate::glue::storage::Cell<crate::glue::blocking::Blocking<Store>>;

#[test]
fn only_what_is_negative_is_an_error() {
    for (code, told) in [(-1, -1), (0, abi::E_INTERNAL), (1, abi::E_INTERNAL)] {
        assert_eq!(error_code(&Error::new(code, "")), told);
    }
}

#[test]
fn what_is_true_or_false_is_told_as_it_is() {
    for is in [true, false] {
        let skill = Skill {
            read_only: is,
            ..Skill::default()
        };
        let told: abi::Skill = seen(abi::OK, |c| convert::skill(skill, c));
        assert_eq!(told.flags == abi::SKILL_READ_ONLY, is);
        let result = RunResult {
            completed: is,
            ..RunResult::default()
        };
        let told: abi::RunResult = seen(abi::OK, |c| convert::run_result(result, c));
        let status = [abi::RUN_FAILED, abi::RUN_COMPLETED][usize::from(is)];
        assert_eq!(told.status, status);
    }
    let error = |retryable, not_executed, of_tenant| Error {
        retryable,
        not_executed,
        of_tenant,
        ..Error::new(abi::E_UNAVAILABLE, "")
    };
    for (error, flags) in [
        (error(false, false, false), 0),
        (error(true, false, false), abi::ERR_RETRYABLE),
        (error(false, true, false), abi::ERR_NOT_EXECUTED),
        (error(false, false, true), abi::ERR_TENANT),
    ] {
        assert_eq!(c_error(&error, error.code).flags, flags);
    }
}

#[test]
fn a_host_of_another_major_or_without_an_end_for_calls_is_refused() {
    let past = PastHost::new();
    let refused = |change: fn(&mut abi::Host)| {
        let mut table = past.table;
        change(&mut table);
        // SAFETY: a whole table; nothing is asked of it.
        unsafe { HostTable::new(&raw const table) }
            .err()
            .map(|why| why.0)
    };
    let major = refused(|table| table.abi_major = abi::ABI_MAJOR + 1);
    let other = format!("host: major {} of the contract", abi::ABI_MAJOR + 1);
    assert_eq!(major, Some(other));
    let endless = refused(|table| table.complete = None);
    assert_eq!(endless.as_deref(), Some("host: complete is null"));
}

unsafe extern "C" fn keeps_warnings(_: *mut c_void, level: u32, _: abi::Str) -> i32 {
    i32::from(level == Level::Warn as u32)
}

#[test]
fn what_the_host_would_not_keep_is_not_sent() {
    let mut past = PastHost::new();
    let host = |past: &PastHost| {
        // SAFETY: a whole table, whose context lives as long as what asks it.
        unsafe { HostTable::new(&raw const past.table) }.unwrap()
    };
    // A host that cannot be asked keeps what it is sent.
    let (sends, asks) = (host(&past), |past: &mut PastHost| {
        past.table.log_enabled = Some(keeps_warnings);
        host(past)
    });
    assert!(sends.facade().log_enabled(Level::Debug, "t"));
    sends.facade().log(Level::Debug, "t", "sent", &[]);
    let asked = asks(&mut past).facade();
    assert!(asked.log_enabled(Level::Warn, "t") && !asked.log_enabled(Level::Debug, "t"));
    asked.log(Level::Debug, "t", "not sent", &[]);
    asked.log(Level::Warn, "t", "wanted", &[]);
    past.table.log = None;
    assert!(!host(&past).facade().log_enabled(Level::Warn, "t"));
    let logs = &past.fake.lock().unwrap().logs;
    let logs: Vec<_> = logs.iter().map(|(_, text)| text.as_str()).collect();
    assert_eq!(logs, ["sent", "wanted"]);
}

/// Whoever lives hears of panics; whoever does not is forgotten.
#[test]
fn instances_are_known_as_long_as_they_live() {
    let store = Open::new();
    // SAFETY: the instance lives.
    let cell = unsafe { &*store.table.self_.cast::<StoreCell>() };
    let host = std::sync::Arc::downgrade(&cell.instance.host);
    let is_known = || crate::glue::instances().iter().any(|it| it.ptr_eq(&host));
    assert!(is_known());
    drop(store);
    assert!(!is_known());
}

/// A sandbox that has nothing in the background.
struct Quiet;

impl crate::Sandbox for Quiet {
    fn create(_: Host, _: CreateRequest) -> Result<Self> {
        Ok(Quiet)
    }
    fn caps(&self) -> SandboxCaps {
        SandboxCaps::default()
    }
    fn health(&self, reply: Reply<Health>) {
        reply.ok(Health::default());
    }
    fn run(&self, _: RunRequest, _: std::sync::Arc<dyn RunServices>, reply: Reply<RunResult>) {
        reply.ok(RunResult::default());
    }
}

#[test]
fn who_has_nothing_to_end_has_drained() {
    let (reply, replied) = testing::reply();
    crate::Sandbox::drain(&Quiet, reply);
    assert_eq!(replied.now(), Some(Ok(())));
}

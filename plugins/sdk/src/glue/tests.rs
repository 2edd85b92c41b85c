//! The C side against a host made of test code: what the gateway's own tests cannot ask of the real one.

mod answers;
mod drain;
mod logs;
mod replies;
mod services;

use std::ffi::c_void;
use std::os::unix::io::{AsRawFd, OwnedFd};
use std::ptr::null;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use skillgate_plugin_abi as abi;

use crate::blocking::{Sandbox, Storage};
use crate::model::*;
use crate::wire::{self, size_of_u32};
use crate::{Host, Level, RunServices};

/// For what a thread does at once, on a machine that is busy.
const SOON: Duration = Duration::from_secs(20);

fn eventually(what: &str, is: impl Fn() -> bool) {
    let until = Instant::now() + SOON;
    while !is() {
        assert!(Instant::now() < until, "{what}");
        std::thread::yield_now();
    }
}

/// What the fake host has been told.
#[derive(Default)]
struct Told {
    /// op, status, message of the error
    ended: Vec<(abi::Op, i32, String)>,
    /// Flags of the last error.
    flags: u32,
    /// op, message
    logs: Vec<(abi::Op, String)>,
    /// What `complete` answers.
    reply: i32,
    cancelled: bool,
    /// The descriptor of the last content answer.
    fd: i32,
}

type Fake = Mutex<Told>;

unsafe extern "C" fn complete(ctx: *mut c_void, op: abi::Op, c: *const abi::Completion) -> i32 {
    // SAFETY: the table below; the completion is the SDK's, good during the call.
    let (fake, c) = unsafe { (&*ctx.cast::<Fake>(), &*c) };
    let mut told = fake.lock().unwrap();
    // SAFETY: as above.
    let message = unsafe { c.error.as_ref().map(|e| wire::shown(e.message, 1000)) };
    // SAFETY: as above.
    told.flags = unsafe { c.error.as_ref() }.map_or(0, |e| e.flags);
    told.ended.push((op, c.status, message.unwrap_or_default()));
    if op == CONTENT {
        // SAFETY: this op's answer is a content.
        told.fd = unsafe { (*c.result.cast::<abi::Content>()).fd };
    }
    told.reply
}
unsafe extern "C" fn op_cancelled(ctx: *mut c_void, _: abi::Op) -> i32 {
    // SAFETY: the table below.
    i32::from(unsafe { &*ctx.cast::<Fake>() }.lock().unwrap().cancelled)
}
unsafe extern "C" fn log(ctx: *mut c_void, record: *const abi::LogRecord) {
    // SAFETY: the table below; the record is the SDK's, good during the call.
    let (fake, record) = unsafe { (&*ctx.cast::<Fake>(), &*record) };
    // SAFETY: as above.
    let text = unsafe { wire::shown(record.message, 1000) };
    fake.lock().unwrap().logs.push((record.op, text));
}

/// The op that answers with a content.
const CONTENT: abi::Op = 77;

/// A host of the past: its table ends after `log`.
struct PastHost {
    table: abi::Host,
    fake: Box<Fake>,
}

impl PastHost {
    fn new() -> Self {
        let fake: Box<Fake> = Box::default();
        let mut table: abi::Host = wire::zeroed();
        table.struct_size = std::mem::offset_of!(abi::Host, get_extension) as u32;
        table.abi_major = abi::ABI_MAJOR;
        table.ctx = std::ptr::from_ref(&*fake).cast_mut().cast();
        table.complete = Some(complete);
        table.op_cancelled = Some(op_cancelled);
        table.log = Some(log);
        // Beyond its end: must not be called.
        // SAFETY: never called; any address is a valid function pointer value.
        table.run_output = Some(unsafe {
            std::mem::transmute::<
                usize,
                unsafe extern "C" fn(*mut c_void, abi::Op, u32, abi::Bytes) -> i32,
            >(1)
        });
        PastHost { table, fake }
    }
    fn ended(&self) -> (abi::Op, i32, String) {
        let ended = &mut self.fake.lock().unwrap().ended;
        ended.pop().expect("an op has ended")
    }
    fn create<T>(
        &self,
        create: Option<Create<T>>,
        config: &[u8],
    ) -> Result<*const T, (i32, String)> {
        let mut request: abi::CreateRequest = wire::zeroed();
        request.struct_size = size_of_u32::<abi::CreateRequest>();
        request.config_json = abi::Bytes::of(config);
        let mut error: abi::Error = wire::zeroed();
        error.struct_size = size_of_u32::<abi::Error>();
        let mut out = null();
        // SAFETY: all of it lives during the call.
        let code = unsafe {
            create.unwrap()(
                &raw const self.table,
                &raw const request,
                &raw mut out,
                &raw mut error,
            )
        };
        if code < 0 {
            assert_eq!(error.code, code);
            // SAFETY: good until the next create on this thread.
            return Err((code, unsafe { wire::shown(error.message, 1000) }));
        }
        Ok(out)
    }
}

type Create<T> = unsafe extern "C" fn(
    *const abi::Host,
    *const abi::CreateRequest,
    *mut *const T,
    *mut abi::Error,
) -> i32;

/// What the plugins below have been asked.
static ASKED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// The host of an instance that was refused.
static KEPT: Mutex<Option<Host>> = Mutex::new(None);

struct Store(Host);

impl Storage for Store {
    fn create(host: Host, request: CreateRequest) -> Result<Self> {
        match request.config_json.as_slice() {
            b"refuse" => Err(Error::new(abi::E_PRECONDITION, "not here")),
            b"panic" => panic!("at create"),
            b"refuse and keep" => {
                host.log(Level::Info, "t", "before", &[]);
                *KEPT.lock().unwrap() = Some(host);
                Err(Error::new(abi::E_PRECONDITION, "not here"))
            }
            _ => Ok(Store(host)),
        }
    }
    fn caps(&self) -> u32 {
        5
    }
    fn health(&self) -> Result<Health> {
        Ok(Health::default())
    }
    fn skill_list(&self, query: &SkillQuery) -> Result<SkillPage> {
        Err(Error::new(abi::E_NOT_FOUND, format!("{query:?}")))
    }
    fn skill_get(&self, tenant: &str, name: &str, version: &str) -> Result<Skill> {
        self.0.log(Level::Info, "store", "asked", &[("name", name)]);
        match name {
            "panic" => std::panic::panic_any(42),
            _ => Err(Error::new(
                abi::E_NOT_FOUND,
                format!("{tenant:?} {name:?} {version:?}"),
            )),
        }
    }
    fn skill_read(&self, _: &str, _: &str, _: &str, _: &str) -> Result<Content> {
        Ok(Content::File(
            OwnedFd::from(std::fs::File::open("/dev/null").unwrap()),
            0,
        ))
    }
    fn skill_tree(&self, _: &str, _: &str, _: &str) -> Result<Content> {
        Err(Error::new(5, "a code that is no error"))
    }
    fn skill_put(&self, put: &PutSkill) -> Result<Skill> {
        Err(Error::new(abi::E_NOT_FOUND, format!("{:?}", put.files)))
    }
    fn blob_create(&self, _: &BlobCreate) -> Result<u64> {
        Ok(900)
    }
    fn blob_write(&self, _: u64, data: &[u8]) -> Result<()> {
        Err(Error::new(abi::E_NOT_FOUND, format!("{}", data.len())))
    }
    fn blob_commit(&self, _: u64) -> Result<BlobStat> {
        Ok(BlobStat::default())
    }
    fn blob_abort(&self, writer: u64) {
        ASKED.lock().unwrap().push(format!("abort {writer}"));
    }
    fn blob_stat(&self, _: &str, _: &str) -> Result<BlobStat> {
        Ok(BlobStat::default())
    }
    fn blob_open(&self, _: &str, _: &str, _: u64, _: u64) -> Result<(u64, BlobStat)> {
        Ok((901, BlobStat::default()))
    }
    fn blob_read(&self, _: u64, buf: &mut [u8]) -> Result<(usize, bool)> {
        Ok((buf.len(), true))
    }
    fn blob_close(&self, reader: u64) {
        ASKED.lock().unwrap().push(format!("close {reader}"));
        panic!("nobody hears this");
    }
    fn blob_delete(&self, _: &str, _: &str) -> Result<()> {
        Ok(())
    }
}

/// A store behind its table. Destroyed at the end.
struct Open {
    host: PastHost,
    table: abi::Storage,
}

impl Open {
    fn new() -> Self {
        let host = PastHost::new();
        let table = host
            .create(super::blocking_storage_factory::<Store>().create, b"{}")
            .unwrap();
        // SAFETY: create has succeeded.
        let table = unsafe { *table };
        Open { host, table }
    }
    fn get(&self, tenant: abi::Str, r: *const abi::SkillRef) -> (abi::Op, i32, String) {
        let f = self.table.skill_get.unwrap();
        // SAFETY: the instance lives, the arguments during the call.
        let code = unsafe { f(self.table.self_, 5, tenant, r) };
        assert_eq!(code, abi::OK);
        self.host.ended()
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // SAFETY: once, no op is left.
        unsafe { self.table.destroy.unwrap()(self.table.self_) };
    }
}

#[test]
fn a_refused_create_says_why_and_a_panic_is_a_refusal() {
    let host = PastHost::new();
    let create = super::blocking_storage_factory::<Store>().create;
    assert_eq!(
        host.create(create, b"refuse"),
        Err((abi::E_PRECONDITION, "not here".into()))
    );
    let (code, text) = host.create(create, b"panic").unwrap_err();
    assert_eq!(
        (code, text.as_str()),
        (abi::E_PANIC, "the plugin panicked: at create")
    );
    // Without a place for the error, and without a host.
    let mut out: *const abi::Storage = null();
    // SAFETY: null is what is tested.
    let code = unsafe { create.unwrap()(null(), null(), &raw mut out, std::ptr::null_mut()) };
    assert_eq!(code, abi::E_INVALID_ARGUMENT);
}

#[test]
fn null_with_length_0_is_empty_and_text_is_utf8() {
    let store = Open::new();
    let empty = abi::SkillRef {
        name: abi::Str::EMPTY,
        version: abi::Str::EMPTY,
    };
    let (op, status, message) = store.get(abi::Str::EMPTY, &raw const empty);
    assert_eq!(
        (op, status, message.as_str()),
        (5, abi::E_NOT_FOUND, r#""" "" """#)
    );
    let latin1 = abi::Str {
        ptr: b"\xe9".as_ptr(),
        len: 1,
    };
    let (_, status, message) = store.get(latin1, &raw const empty);
    assert_eq!(
        (status, message.as_str()),
        (abi::E_INVALID_ARGUMENT, "tenant: not UTF-8 at byte 0")
    );
    let (_, status, message) = store.get(
        abi::Str {
            ptr: null(),
            len: 3,
        },
        &raw const empty,
    );
    assert_eq!(
        (status, message.as_str()),
        (abi::E_INVALID_ARGUMENT, "tenant: null with length 3")
    );
    let (_, status, message) = store.get(abi::Str::EMPTY, null());
    assert_eq!(
        (status, message.as_str()),
        (abi::E_INVALID_ARGUMENT, "skill_ref: is null")
    );
}

#[test]
fn a_panic_without_text_ends_the_op_too() {
    let store = Open::new();
    let which = abi::SkillRef {
        name: abi::Str::new("panic"),
        version: abi::Str::EMPTY,
    };
    let (_, status, message) = store.get(abi::Str::EMPTY, &raw const which);
    assert_eq!(
        (status, message.as_str()),
        (abi::E_PANIC, "the plugin panicked: (no text)")
    );
    let told = store.host.fake.lock().unwrap();
    assert_eq!(told.logs, [(5, "asked".to_owned())]);
}

#[test]
fn a_code_that_is_no_error_is_made_one() {
    let store = Open::new();
    let empty = abi::SkillRef {
        name: abi::Str::EMPTY,
        version: abi::Str::EMPTY,
    };
    // SAFETY: the instance lives, the arguments during the call.
    unsafe {
        store.table.skill_tree.unwrap()(store.table.self_, 6, abi::Str::EMPTY, &raw const empty)
    };
    assert_eq!(store.host.ended().1, abi::E_INTERNAL);
}

#[test]
fn requests_of_a_past_and_of_a_future_host() {
    let store = Open::new();
    let mut request: abi::ListRequest = wire::zeroed();
    request.limit = 7;
    request.tenant = abi::Str::new("acme");
    request.namespace_ = abi::Str {
        ptr: std::ptr::dangling(),
        len: 9,
    };
    // It ends after tenant: the namespace is not the plugin's to read.
    request.struct_size = std::mem::offset_of!(abi::ListRequest, namespace_) as u32;
    // SAFETY: as much of the request is good as it says.
    unsafe { store.table.skill_list.unwrap()(store.table.self_, 8, &raw const request) };
    let (_, status, message) = store.host.ended();
    assert_eq!(status, abi::E_NOT_FOUND);
    assert!(
        message.contains(r#"limit: 7, tenant: "acme", namespace: """#),
        "{message}"
    );

    // Elements that are larger than ours, in a struct that is larger than ours.
    #[repr(C)]
    struct Wide(abi::PutFile, [u8; 24]);
    #[repr(C)]
    struct Longer(abi::PutSkill, [u8; 40]);
    let file = |path, data: &'static [u8]| {
        Wide(
            abi::PutFile {
                path: abi::Str::new(path),
                data: abi::Bytes::of(data),
            },
            [0xee; 24],
        )
    };
    let files = [file("a", b"1"), file("b", b"")];
    let mut request = Longer(wire::zeroed(), [0xee; 40]);
    request.0.struct_size = size_of_u32::<Longer>();
    request.0.files = abi::List::of(&files);
    // SAFETY: the request is good during the call.
    unsafe { store.table.skill_put.unwrap()(store.table.self_, 9, &raw const request.0) };
    assert_eq!(store.host.ended().2, r#"[("a", [49]), ("b", [])]"#);
}

#[test]
fn what_the_host_does_not_take_is_ended_here() {
    let store = Open::new();
    store.host.fake.lock().unwrap().reply = abi::E_STALE;
    let mut create: abi::BlobCreateRequest = wire::zeroed();
    create.struct_size = size_of_u32::<abi::BlobCreateRequest>();
    let which = abi::SkillRef {
        name: abi::Str::EMPTY,
        version: abi::Str::EMPTY,
    };
    let t = &store.table;
    // SAFETY: the instance lives, the arguments during the calls.
    unsafe {
        t.blob_create.unwrap()(t.self_, 1, &raw const create);
        t.blob_open.unwrap()(t.self_, 2, abi::Str::EMPTY, abi::Str::EMPTY, 0, 0);
        t.skill_read.unwrap()(
            t.self_,
            CONTENT,
            abi::Str::EMPTY,
            &raw const which,
            abi::Str::EMPTY,
        );
    }
    let asked = ASKED.lock().unwrap().clone();
    assert!(
        asked.contains(&"abort 900".into()) && asked.contains(&"close 901".into()),
        "{asked:?}"
    );
    let fd = store.host.fake.lock().unwrap().fd;
    // Another test may have got the number by now, but not for /dev/null.
    let link = std::fs::read_link(format!("/proc/self/fd/{fd}"));
    assert!(
        link.is_err() || link.is_ok_and(|l| l != std::path::Path::new("/dev/null")),
        "descriptor {fd} leaked"
    );
}

struct Cage;

impl Sandbox for Cage {
    fn create(_: Host, _: CreateRequest) -> Result<Self> {
        Ok(Cage)
    }
    fn caps(&self) -> SandboxCaps {
        SandboxCaps {
            egress: 1,
            enforces: 63,
            ..SandboxCaps::default()
        }
    }
    fn health(&self) -> Result<Health> {
        Ok(Health::default())
    }
    fn run(&self, request: RunRequest, services: &dyn RunServices) -> Result<RunResult> {
        ASKED
            .lock()
            .unwrap()
            .push(format!("run {}", request.run_id));
        if request.fresh {
            return Err(Error::new(abi::E_UNIMPLEMENTED, "asked to be fresh"));
        }
        if let Some(Source::Fd(fd)) = request.mounts.first().map(|m| &m.source) {
            return Err(Error::new(
                abi::E_NOT_FOUND,
                format!("fd {}", fd.as_raw_fd()),
            ));
        }
        assert!(
            !services.output(abi::STDOUT, b"x"),
            "this host has no run_output"
        );
        Err(services.secret("A").unwrap_err())
    }
    fn cancel(&self, _: &str) {}
}

fn run(host: &PastHost, mounts: &[abi::Mount], run_id: &'static str) -> (abi::Op, i32, String) {
    run_flagged(host, mounts, run_id, 0)
}

fn run_flagged(
    host: &PastHost,
    mounts: &[abi::Mount],
    run_id: &'static str,
    flags: u32,
) -> (abi::Op, i32, String) {
    let table = host
        .create(super::blocking_sandbox_factory::<Cage>().create, b"")
        .unwrap();
    let mut limits: abi::Limits = wire::zeroed();
    limits.struct_size = size_of_u32::<abi::Limits>();
    let mut request: abi::RunRequest = wire::zeroed();
    request.struct_size = size_of_u32::<abi::RunRequest>();
    request.flags = flags;
    request.run_id = abi::Str::new(run_id);
    request.limits = &raw const limits;
    request.mounts = abi::List::of(mounts);
    // SAFETY: create has succeeded; the request is good during the call; destroyed once.
    unsafe {
        let table = *table;
        assert_eq!(
            table.run.unwrap()(table.self_, 3, &raw const request),
            abi::OK
        );
        table.cancel.unwrap()(table.self_, 3);
        table.destroy.unwrap()(table.self_);
    }
    host.ended()
}

#[test]
fn services_that_the_host_lacks_are_unimplemented() {
    let (_, status, message) = run(&PastHost::new(), &[], "run_past");
    assert_eq!(
        (status, message.as_str()),
        (abi::E_UNIMPLEMENTED, "this host does not offer secret_read")
    );
}

#[test]
fn a_run_can_ask_to_be_fresh() {
    let (_, status, message) = run_flagged(&PastHost::new(), &[], "run_fresh", abi::REQUEST_FRESH);
    assert_eq!(
        (status, message.as_str()),
        (abi::E_UNIMPLEMENTED, "asked to be fresh")
    );
}

#[test]
fn a_run_that_was_cancelled_before_it_began_does_not_begin() {
    let host = PastHost::new();
    host.fake.lock().unwrap().cancelled = true;
    assert_eq!(run(&host, &[], "run_cancelled").1, abi::E_CANCELLED);
    assert!(!ASKED.lock().unwrap().contains(&"run run_cancelled".into()));
}

#[test]
fn a_mounts_descriptor_is_duplicated() {
    let dir = std::fs::File::open("/").unwrap();
    let mut mount: abi::Mount = wire::zeroed();
    mount.struct_size = size_of_u32::<abi::Mount>();
    mount.source_kind = abi::SRC_FD;
    mount.fd = dir.as_raw_fd();
    let (_, status, message) = run(&PastHost::new(), &[mount], "run_mount");
    assert_eq!(status, abi::E_NOT_FOUND);
    assert_ne!(message, format!("fd {}", dir.as_raw_fd()));
    assert!(dir.metadata().is_ok(), "the host's own is still open");
    mount.fd = -1;
    let (_, status, message) = run(&PastHost::new(), &[mount], "run_no_fd");
    assert_eq!(
        (status, message.as_str()),
        (abi::E_INVALID_ARGUMENT, "mounts.fd: no descriptor")
    );
    mount.source_kind = 99;
    assert_eq!(
        run(&PastHost::new(), &[mount], "run_kind").1,
        abi::E_INVALID_ARGUMENT
    );
}

#[test]
fn caps_fit_into_what_the_host_has() {
    let host = PastHost::new();
    let table = host
        .create(super::blocking_sandbox_factory::<Cage>().create, b"")
        .unwrap();
    let mut out: abi::SandboxCaps = wire::zeroed();
    out.struct_size = 8;
    // SAFETY: create has succeeded; out says how large it is; destroyed once.
    unsafe {
        let table = *table;
        assert_eq!(table.caps.unwrap()(table.self_, &raw mut out), abi::OK);
        table.destroy.unwrap()(table.self_);
    }
    assert_eq!((out.struct_size, out.egress, out.enforces), (8, 1, 0));
}

#[test]
fn the_note_holds_a_cut_id() {
    let long = "com.example.a-plugin-with-a-name-that-is-longer-than-the-note";
    let note = super::note(long, abi::F_BLOCKING);
    assert_eq!(&note.id[..43], &long.as_bytes()[..43]);
    assert_eq!(
        (note.id[43], note.namesz, note.descsz, note.flags),
        (0, 10, 64, 1)
    );
}

#[test]
fn factories_are_found_by_id() {
    let (a, b) = (1_u8, 2_u8);
    let list = [
        (&b"x/1\0"[..], (&raw const a).cast()),
        (&b"y/1\0"[..], (&raw const b).cast()),
    ];
    // SAFETY: NUL-terminated, or null.
    unsafe {
        assert_eq!(
            super::pick_factory(c"y/1".as_ptr().cast(), &list),
            (&raw const b).cast()
        );
        assert!(super::pick_factory(c"z/1".as_ptr().cast(), &list).is_null());
        assert!(super::pick_factory(null(), &list).is_null());
    }
}

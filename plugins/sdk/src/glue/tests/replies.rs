//! Answers that come later: once each, whatever safe code does with its reply.

mod cancelled;

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use super::*;
use crate::glue::{sandbox, storage};
use crate::{BlobBuffer, BlobData, Reply};

/// A run.
type Begun = (Arc<dyn RunServices>, Reply<RunResult>);

/// What a plugin below has been given and not answered yet. The test has it too, and answers.
#[derive(Default)]
struct Desk {
    gets: Mutex<Vec<Reply<Skill>>>,
    writers: Mutex<Vec<Reply<u64>>>,
    data: Mutex<Vec<BlobData>>,
    buffers: Mutex<Vec<BlobBuffer>>,
    runs: Mutex<Vec<Begun>>,
    drains: Mutex<Vec<Reply<()>>>,
    aborted: Mutex<Vec<u64>>,
    cancelled: AtomicUsize,
    destroyed: AtomicUsize,
}

impl Desk {
    fn get(&self) -> Reply<Skill> {
        self.gets.lock().unwrap().pop().expect("a skill_get")
    }
    fn run(&self) -> Begun {
        self.runs.lock().unwrap().pop().expect("a run")
    }
    fn count(&self, what: fn(&Desk) -> &AtomicUsize) -> usize {
        what(self).load(Ordering::SeqCst)
    }
}

/// A store, and a sandbox, that puts everything on its desk.
struct Later(Arc<Desk>);

impl Drop for Later {
    fn drop(&mut self) {
        self.0.destroyed.fetch_add(1, Ordering::SeqCst);
        // What it still has ends with it, as in any plugin that keeps its replies in itself.
        self.0.writers.lock().unwrap().clear();
    }
}

impl crate::Storage for Later {
    fn create(_: Host, _: CreateRequest) -> Result<Self> {
        Ok(Later(Arc::default()))
    }
    fn caps(&self) -> u32 {
        3
    }
    fn health(&self, reply: Reply<Health>) {
        reply.ok(Health::default());
    }
    fn skill_list(&self, query: SkillQuery, reply: Reply<SkillPage>) {
        reply.fail(Error::new(abi::E_NOT_FOUND, query.tenant));
    }
    /// Does what the name says.
    fn skill_get(&self, which: SkillRef, reply: Reply<Skill>) {
        match which.name.as_str() {
            "drop" => drop(reply),
            "panic with it" => panic!("with it"),
            "panic without it" => {
                self.0.gets.lock().unwrap().push(reply);
                panic!("without it");
            }
            "panic elsewhere" => {
                let thread = std::thread::spawn(move || {
                    let _reply = reply;
                    panic!("elsewhere");
                });
                drop(thread.join().unwrap_err());
            }
            "catch" => {
                let caught = std::panic::catch_unwind(AssertUnwindSafe(|| {
                    let _reply = reply;
                    panic!("caught");
                }));
                drop(caught.unwrap_err());
            }
            "forget" => std::mem::forget(reply),
            "watch" => {
                let desk = Arc::clone(&self.0);
                reply.on_cancel(move || {
                    desk.cancelled.fetch_add(1, Ordering::SeqCst);
                });
                self.0.gets.lock().unwrap().push(reply);
            }
            "answer when cancelled" => {
                let reply = Arc::new(Mutex::new(Some(reply)));
                let taken = Arc::clone(&reply);
                let answer = move || {
                    let reply = taken.lock().unwrap().take();
                    reply.unwrap().fail(Error::new(abi::E_CANCELLED, "gone"));
                };
                reply.lock().unwrap().as_ref().unwrap().on_cancel(answer);
            }
            _ => self.0.gets.lock().unwrap().push(reply),
        }
    }
    fn skill_read(&self, _: SkillRef, path: String, reply: Reply<Content>) {
        reply.ok(Content::Data(path.into_bytes()));
    }
    fn skill_tree(&self, _: SkillRef, reply: Reply<Content>) {
        drop(reply);
    }
    fn skill_put(&self, _: PutSkill, reply: Reply<Skill>) {
        drop(reply);
    }
    fn blob_create(&self, _: BlobCreate, reply: Reply<u64>) {
        self.0.writers.lock().unwrap().push(reply);
    }
    fn blob_write(&self, _: u64, data: BlobData) {
        self.0.data.lock().unwrap().push(data);
    }
    fn blob_commit(&self, _: u64, reply: Reply<BlobStat>) {
        reply.ok(BlobStat::default());
    }
    fn blob_abort(&self, writer: u64) {
        self.0.aborted.lock().unwrap().push(writer);
    }
    fn blob_stat(&self, _: String, _: String, reply: Reply<BlobStat>) {
        reply.ok(BlobStat::default());
    }
    fn blob_open(&self, _: String, _: String, _: u64, _: u64, reply: Reply<(u64, BlobStat)>) {
        reply.ok((902, BlobStat::default()));
    }
    fn blob_read(&self, _: u64, buffer: BlobBuffer) {
        self.0.buffers.lock().unwrap().push(buffer);
    }
    fn blob_close(&self, reader: u64) {
        self.0.aborted.lock().unwrap().push(reader);
    }
    fn blob_delete(&self, _: String, _: String, reply: Reply<()>) {
        reply.ok(());
    }
    fn drain(&self, reply: Reply<()>) {
        self.0.drains.lock().unwrap().push(reply);
    }
}

impl crate::Sandbox for Later {
    fn create(_: Host, _: CreateRequest) -> Result<Self> {
        Ok(Later(Arc::default()))
    }
    fn caps(&self) -> SandboxCaps {
        SandboxCaps::default()
    }
    fn health(&self, reply: Reply<Health>) {
        reply.ok(Health::default());
    }
    fn run(&self, _: RunRequest, services: Arc<dyn RunServices>, reply: Reply<RunResult>) {
        self.0.runs.lock().unwrap().push((services, reply));
    }
}

/// A store behind its table.
struct Shop {
    host: PastHost,
    table: abi::Storage,
    desk: Arc<Desk>,
}

// SAFETY: the contract: every function of a table and of the host may be called from any thread.
unsafe impl Sync for Shop {}

impl Shop {
    fn new() -> Self {
        let host = PastHost::new();
        let create = crate::glue::storage_factory::<Later>().create;
        let table = host.create(create, b"").unwrap();
        // SAFETY: create has succeeded.
        let table = unsafe { *table };
        // SAFETY: the table's own self, before destroy.
        let cell = unsafe { &*table.self_.cast::<storage::Cell<Later>>() };
        let desk = cell.instance.with(|later| Arc::clone(&later.0)).unwrap();
        Shop { host, table, desk }
    }
    fn get(&self, op: abi::Op, name: &'static str) {
        let which = abi::SkillRef {
            name: abi::Str::new(name),
            version: abi::Str::EMPTY,
        };
        let f = self.table.skill_get.unwrap();
        // SAFETY: the instance lives, the arguments during the call.
        let code = unsafe { f(self.table.self_, op, abi::Str::EMPTY, &raw const which) };
        assert_eq!(code, abi::OK);
    }
    fn cancel(&self, op: abi::Op) {
        // SAFETY: the instance lives.
        unsafe { self.table.cancel.unwrap()(self.table.self_, op) };
    }
    fn drain(&self, op: abi::Op) {
        // SAFETY: the instance lives.
        let code = unsafe { self.table.drain.unwrap()(self.table.self_, op) };
        assert_eq!(code, abi::OK);
    }
    fn hook(&self) -> Reply<()> {
        let mut drains = self.desk.drains.lock().unwrap();
        drains.pop().expect("the plugin's own part of a drain")
    }
    fn destroy(&self) {
        // SAFETY: once for each test.
        unsafe { self.table.destroy.unwrap()(self.table.self_) };
    }
    /// op, status and message, in the order in which they ended
    fn ends(&self) -> Vec<(abi::Op, i32, String)> {
        self.host.fake.lock().unwrap().ended.clone()
    }
    /// The only end that there is, of op 1.
    fn the_end(&self) -> (i32, String) {
        let ends = self.ends();
        assert_eq!((ends.len(), ends[0].0), (1, 1), "{ends:?}");
        (ends[0].1, ends[0].2.clone())
    }
}

#[test]
fn an_answer_comes_later_from_another_thread() {
    let shop = Shop::new();
    shop.get(1, "");
    assert_eq!(shop.ends(), []);
    let reply = shop.desk.get();
    assert!(!reply.cancelled());
    let answer = std::thread::spawn(move || reply.ok(Skill::default()));
    answer.join().unwrap();
    assert_eq!(shop.the_end(), (abi::OK, String::new()));
    shop.destroy();
}

#[test]
fn a_reply_that_is_dropped_ends_its_call() {
    let shop = Shop::new();
    shop.get(1, "drop");
    let (code, why) = shop.the_end();
    assert_eq!(code, abi::E_INTERNAL);
    assert!(why.contains("dropped this call's reply"), "{why}");
    shop.destroy();
}

#[test]
fn a_panic_ends_the_call_whose_reply_it_drops() {
    let text = |name| {
        let shop = Shop::new();
        shop.get(1, name);
        let (code, text) = shop.the_end();
        assert_eq!(code, abi::E_PANIC, "{name}: {text}");
        shop.destroy();
        text
    };
    assert_eq!(text("panic with it"), "the plugin panicked: with it");
    assert!(text("panic elsewhere").starts_with("the plugin panicked on a thread of its own"));
    assert_eq!(text("catch"), "the plugin panicked, and caught it");
}

#[test]
fn a_panic_leaves_a_call_whose_reply_is_elsewhere() {
    let shop = Shop::new();
    shop.get(1, "panic without it");
    assert_eq!(shop.ends(), []);
    shop.desk.get().fail(Error::new(abi::E_NOT_FOUND, "later"));
    assert_eq!(shop.the_end(), (abi::E_NOT_FOUND, "later".into()));
    shop.destroy();
}

#[test]
fn a_drain_ends_with_the_last_answer_and_holds_nobody_up() {
    let shop = Shop::new();
    shop.get(1, "");
    shop.get(2, "");
    shop.drain(3);
    shop.hook().ok(());
    shop.get(4, "");
    let ends = shop.ends();
    assert_eq!(
        (ends.len(), ends[0].0, ends[0].1),
        (1, 4, abi::E_UNAVAILABLE)
    );
    shop.desk.get().ok(Skill::default());
    assert_eq!(shop.ends().len(), 2, "one is left");
    let last = shop.desk.get();
    std::thread::spawn(move || drop(last)).join().unwrap();
    let ends: Vec<_> = shop.ends().into_iter().map(|end| (end.0, end.1)).collect();
    assert_eq!(ends[2..], [(1, abi::E_INTERNAL), (3, abi::OK)]);
    shop.destroy();
}

#[test]
fn a_drain_waits_for_the_plugins_own_part_and_says_why_that_failed() {
    let shop = Shop::new();
    shop.drain(1);
    assert_eq!(shop.ends(), []);
    shop.hook().fail(Error::new(abi::E_UNAVAILABLE, "not yet"));
    assert_eq!(shop.the_end(), (abi::E_UNAVAILABLE, "not yet".into()));
    shop.drain(2);
    shop.hook().ok(());
    assert_eq!(shop.host.ended().1, abi::OK);
    shop.destroy();
}

#[test]
fn a_reply_that_is_lost_costs_its_call_and_the_drain_until_that_is_cancelled() {
    let shop = Shop::new();
    shop.get(1, "forget");
    shop.drain(2);
    shop.hook().ok(());
    assert_eq!(shop.ends(), []);
    shop.cancel(2);
    let ends = shop.ends();
    assert_eq!((ends.len(), ends[0].0, ends[0].1), (1, 2, abi::E_CANCELLED));
    shop.destroy();
}

#[test]
fn destroy_ends_the_plugin_and_a_reply_that_is_left_goes_nowhere() {
    let shop = Shop::new();
    let mut create: abi::BlobCreateRequest = wire::zeroed();
    create.struct_size = size_of_u32::<abi::BlobCreateRequest>();
    // SAFETY: the instance lives, the request during the call.
    unsafe { shop.table.blob_create.unwrap()(shop.table.self_, 1, &raw const create) };
    shop.get(2, "watch");
    shop.get(3, "watch");
    shop.destroy();
    assert_eq!(
        shop.desk.count(|desk| &desk.destroyed),
        1,
        "though replies are left"
    );
    assert_eq!(
        Arc::strong_count(&shop.desk),
        1,
        "nothing waits to be called"
    );
    // What the plugin dropped while it was ending could still be told.
    assert_eq!(shop.the_end().0, abi::E_INTERNAL);
    let reply = shop.desk.get();
    assert!(reply.cancelled());
    reply.on_cancel(|| {});
    reply.ok(Skill::default());
    drop(shop.desk.get());
    assert_eq!(shop.ends().len(), 1, "no call into the host");
    assert_eq!(shop.desk.count(|desk| &desk.cancelled), 0);
}

#[test]
fn what_is_longer_than_memory_can_be_is_refused_unread() {
    const GARBLED: u64 = 1 << 63;
    let shop = Shop::new();
    let t = &shop.table;
    let mut room = [0_u8; 1];
    let (start, len) = (room.as_mut_ptr(), GARBLED);
    let which = abi::SkillRef {
        name: abi::Str { ptr: start, len },
        version: abi::Str::EMPTY,
    };
    let data = abi::Bytes { ptr: start, len };
    // SAFETY: the instance lives; what the lengths say is refused.
    unsafe {
        t.skill_get.unwrap()(t.self_, 1, abi::Str::EMPTY, &raw const which);
        t.blob_write.unwrap()(t.self_, 2, 7, data);
        t.blob_read.unwrap()(t.self_, 3, 7, start.cast(), GARBLED);
    }
    let most = isize::MAX;
    let refused = [
        format!("name: {GARBLED} bytes, more than the {most} that are allowed"),
        format!("data: null or too large, with length {GARBLED}"),
        format!("buf: null or too large, with cap {GARBLED}"),
    ];
    let refused = refused.map(|why| (abi::E_INVALID_ARGUMENT, why));
    let ends = shop.ends().into_iter().map(|(_, code, why)| (code, why));
    assert_eq!(ends.collect::<Vec<_>>(), refused);
}

#[test]
fn bytes_are_lent_until_the_answer_on_any_thread() {
    let shop = Shop::new();
    let t = &shop.table;
    let written = b"written".to_vec();
    let mut room = vec![0_u8; 4];
    let ptr = room.as_mut_ptr().cast();
    // SAFETY: the instance lives; the buffers do until the ops are complete, and nobody else uses them.
    unsafe {
        t.blob_write.unwrap()(t.self_, 1, 7, abi::Bytes::of(&written));
        t.blob_read.unwrap()(t.self_, 2, 7, ptr, 4);
        t.blob_read.unwrap()(t.self_, 3, 7, ptr, 4);
        t.blob_write.unwrap()(t.self_, 4, 7, abi::Bytes::EMPTY);
        t.blob_read.unwrap()(t.self_, 5, 7, std::ptr::null_mut(), 4);
    }
    let refused = (
        5,
        abi::E_INVALID_ARGUMENT,
        "buf: null or too large, with cap 4".into(),
    );
    assert_eq!(shop.ends(), [refused]);
    let data = std::mem::take(&mut *shop.desk.data.lock().unwrap());
    let buffers = std::mem::take(&mut *shop.desk.buffers.lock().unwrap());
    let elsewhere = std::thread::spawn(move || {
        assert_eq!(
            (data[0].bytes(), data[1].bytes()),
            (&b"written"[..], &b""[..])
        );
        let mut buffers = buffers.into_iter();
        let mut first = buffers.next().unwrap();
        assert!(!first.reply().cancelled() && !data[0].reply().cancelled());
        first.room()[..3].copy_from_slice(b"abc");
        first.finish(Ok((3, true)));
        buffers.next().unwrap().finish(Ok((5, true)));
        data.into_iter().for_each(|data| data.finish(Ok(())));
    });
    elsewhere.join().unwrap();
    assert_eq!(&room, b"abc\0");
    let ends: Vec<_> = shop.ends().into_iter().map(|end| (end.0, end.1)).collect();
    assert_eq!(
        ends[1..],
        [
            (2, abi::OK),
            (3, abi::E_INTERNAL),
            (1, abi::OK),
            (4, abi::OK)
        ]
    );
    shop.destroy();
}

#[test]
fn what_the_host_does_not_take_is_given_back_to_the_plugin() {
    let shop = Shop::new();
    let mut create: abi::BlobCreateRequest = wire::zeroed();
    create.struct_size = size_of_u32::<abi::BlobCreateRequest>();
    let t = &shop.table;
    shop.host.fake.lock().unwrap().reply = abi::E_STALE;
    let none = abi::Str::EMPTY;
    // SAFETY: the instance lives, the arguments during the calls.
    unsafe {
        t.blob_create.unwrap()(t.self_, 1, &raw const create);
        t.blob_open.unwrap()(t.self_, 2, none, none, 0, 0);
    }
    let writer = shop.desk.writers.lock().unwrap().pop().unwrap();
    std::thread::spawn(move || writer.ok(901)).join().unwrap();
    assert_eq!(*shop.desk.aborted.lock().unwrap(), [902, 901]);
    shop.destroy();
}

/// Counts what is asked of it.
static OUTPUTS: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn run_output(_: *mut c_void, _: abi::Op, _: u32, _: abi::Bytes) -> i32 {
    OUTPUTS.fetch_add(1, Ordering::SeqCst);
    abi::OK
}

#[test]
fn the_services_of_a_run_end_with_its_answer_and_those_of_others_go_on() {
    let mut host = PastHost::new();
    host.table.run_output = Some(run_output);
    host.table.struct_size = std::mem::offset_of!(abi::Host, secret_read) as u32;
    let create = crate::glue::sandbox_factory::<Later>().create;
    let table = host.create(create, b"").unwrap();
    // SAFETY: create has succeeded.
    let table = unsafe { *table };
    // SAFETY: the table's own self, before destroy.
    let cell = unsafe { &*table.self_.cast::<sandbox::Cell<Later>>() };
    let desk = cell.instance.with(|later| Arc::clone(&later.0)).unwrap();
    let mut limits: abi::Limits = wire::zeroed();
    limits.struct_size = size_of_u32::<abi::Limits>();
    let mut request: abi::RunRequest = wire::zeroed();
    request.struct_size = size_of_u32::<abi::RunRequest>();
    request.limits = &raw const limits;
    // SAFETY: the instance lives, the request during the call.
    let run = |op| unsafe { table.run.unwrap()(table.self_, op, &raw const request) };
    let outputs = || OUTPUTS.load(Ordering::SeqCst);

    assert_eq!((run(1), run(2)), (abi::OK, abi::OK));
    let (other, other_reply) = desk.run();
    let (services, reply) = desk.run();
    let kept = Arc::clone(&services);
    assert!(services.output(abi::STDOUT, b"x") && !services.cancelled());
    assert_eq!(services.secret("A").unwrap_err().code, abi::E_UNIMPLEMENTED);
    assert_eq!(outputs(), 1);
    reply.ok(RunResult::default());
    assert!(!kept.output(abi::STDOUT, b"y") && kept.cancelled());
    let (one, _two) = std::os::unix::net::UnixStream::pair().unwrap();
    let codes = [
        kept.secret("A").unwrap_err().code,
        kept.blob_fd("b").unwrap_err().code,
        kept.blob_read("b", 0, &mut [0]).unwrap_err().code,
        kept.blob_create("k").unwrap_err().code,
        kept.blob_write(1, b"").unwrap_err().code,
        kept.blob_finish(1, true).unwrap_err().code,
        kept.gate_serve(one.into()).unwrap_err().code,
    ];
    assert_eq!(codes, [abi::E_STALE; 7]);
    assert_eq!(outputs(), 1, "the host has not been asked");
    assert!(other.output(abi::STDOUT, b"z"));
    // Dropped, it ends too.
    drop(other_reply);
    assert!(!other.output(abi::STDOUT, b"z"));
    assert_eq!(outputs(), 2);

    // One that was cancelled before it began does not begin; one that is left when the instance ends has no host.
    host.fake.lock().unwrap().cancelled = true;
    assert_eq!(run(3), abi::OK);
    assert_eq!(host.ended().1, abi::E_CANCELLED);
    assert_eq!(host.fake.lock().unwrap().flags, abi::ERR_NOT_EXECUTED);
    assert!(desk.runs.lock().unwrap().is_empty());
    host.fake.lock().unwrap().cancelled = false;
    assert_eq!(run(4), abi::OK);
    let (late, late_reply) = desk.run();
    // SAFETY: once.
    unsafe { table.destroy.unwrap()(table.self_) };
    assert!(!late.output(abi::STDOUT, b"z") && late.cancelled());
    late_reply.ok(RunResult::default());
    assert_eq!((outputs(), host.fake.lock().unwrap().ended.len()), (2, 2));
}

#[test]
fn a_store_that_gives_no_descriptors_says_so() {
    let store = Later(Arc::default());
    let (reply, replied) = crate::testing::reply();
    crate::Storage::blob_fd(&store, "acme".to_owned(), "blob:x".to_owned(), reply);
    let refused = replied.now().unwrap().unwrap_err();
    assert_eq!(refused.code, abi::E_UNIMPLEMENTED);
}

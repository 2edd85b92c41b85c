//! Drain: what the SDK does for every plugin, so that none has to count what is in flight.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{mpsc, Arc, Condvar};

use super::*;
use crate::glue::blocking::Blocking;
use crate::glue::in_flight::InFlight;

/// Lets whoever comes wait until it is opened.
#[derive(Default)]
struct Door {
    open: Mutex<bool>,
    moved: Condvar,
    inside: AtomicUsize,
}

impl Door {
    fn pass(&self) {
        self.inside.fetch_add(1, Ordering::SeqCst);
        let mut open = self.open.lock().unwrap();
        while !*open {
            open = self.moved.wait(open).unwrap();
        }
    }
    fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.moved.notify_all();
    }
}

/// Opens it in the end, so that a test that fails does not wait for ever.
struct OpenedAtTheEnd<'a>(&'a Door);

impl Drop for OpenedAtTheEnd<'_> {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// A sandbox whose runs wait at its door.
#[derive(Default)]
struct Slow {
    door: Door,
    hooks: AtomicUsize,
}

impl Sandbox for Slow {
    fn create(_: Host, _: CreateRequest) -> Result<Self> {
        Ok(Slow::default())
    }
    fn caps(&self) -> SandboxCaps {
        SandboxCaps::default()
    }
    fn health(&self) -> Result<Health> {
        Ok(Health::default())
    }
    fn run(&self, _: RunRequest, _: &dyn RunServices) -> Result<RunResult> {
        self.door.pass();
        Ok(RunResult::default())
    }
    fn cancel(&self, _: &str) {}
    fn drain(&self) -> Result<()> {
        self.hooks.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

/// A slow sandbox behind its table. Destroyed at the end.
struct SlowBox {
    host: PastHost,
    table: abi::Sandbox,
}

// SAFETY: the contract: every function of a table and of the host may be called from any thread.
unsafe impl Sync for SlowBox {}

impl SlowBox {
    fn new() -> Self {
        let host = PastHost::new();
        let create = crate::glue::blocking_sandbox_factory::<Slow>().create;
        let table = host.create(create, b"").unwrap();
        // SAFETY: create has succeeded.
        let table = unsafe { *table };
        SlowBox { host, table }
    }
    fn cell(&self) -> &crate::glue::sandbox::Cell<Blocking<Slow>> {
        // SAFETY: the table's own self, before destroy.
        unsafe { &*self.table.self_.cast() }
    }
    fn slow(&self) -> Arc<Slow> {
        let slow = self.cell().instance.with(|slow| Arc::clone(&slow.0));
        slow.expect("it is not destroyed")
    }
    fn drains_waiting(&self) -> usize {
        self.cell().instance.calls.drains_waiting()
    }
    fn run(&self, op: abi::Op) {
        let mut limits: abi::Limits = wire::zeroed();
        limits.struct_size = size_of_u32::<abi::Limits>();
        let mut request: abi::RunRequest = wire::zeroed();
        request.struct_size = size_of_u32::<abi::RunRequest>();
        request.limits = &raw const limits;
        // SAFETY: the instance lives, the request during the call.
        let code = unsafe { self.table.run.unwrap()(self.table.self_, op, &raw const request) };
        assert_eq!(code, abi::OK);
    }
    fn drain(&self, op: abi::Op) {
        // SAFETY: the instance lives.
        let code = unsafe { self.table.drain.unwrap()(self.table.self_, op) };
        assert_eq!(code, abi::OK);
    }
    fn cancel(&self, op: abi::Op) {
        // SAFETY: the instance lives.
        unsafe { self.table.cancel.unwrap()(self.table.self_, op) };
    }
    /// op and status, in the order in which they ended
    fn ends(&self) -> Vec<(abi::Op, i32)> {
        let told = self.host.fake.lock().unwrap();
        told.ended
            .iter()
            .map(|(op, code, _)| (*op, *code))
            .collect()
    }
    fn hooks(&self) -> usize {
        self.slow().hooks.load(Ordering::SeqCst)
    }
}

impl Drop for SlowBox {
    fn drop(&mut self) {
        // SAFETY: once, no op is left.
        unsafe { self.table.destroy.unwrap()(self.table.self_) };
    }
}

#[test]
fn drain_ends_after_the_runs_and_takes_no_new_one() {
    let slow = SlowBox::new();
    let inside = slow.slow();
    let door = &inside.door;
    std::thread::scope(|scope| {
        let _end = OpenedAtTheEnd(door);
        scope.spawn(|| slow.run(1));
        scope.spawn(|| slow.run(2));
        eventually("two runs", || door.inside.load(Ordering::SeqCst) == 2);
        scope.spawn(|| slow.drain(3));
        eventually("it waits", || slow.drains_waiting() == 1);
        slow.run(4);
        let refused = slow.host.ended();
        assert_eq!(
            refused,
            (
                4,
                abi::E_UNAVAILABLE,
                "it takes no new work: it is draining".into()
            )
        );
        assert_eq!(slow.host.fake.lock().unwrap().flags, abi::ERR_NOT_EXECUTED);
        assert_eq!((slow.ends().len(), slow.hooks()), (0, 0), "it goes on");
    });
    let ends = slow.ends();
    assert_eq!((ends.len(), ends[2]), (3, (3, abi::OK)), "{ends:?}");
    // Again, with nothing in flight.
    slow.drain(5);
    assert_eq!((slow.host.ended().1, slow.hooks()), (abi::OK, 2));
    slow.run(6);
    assert_eq!(slow.host.ended().1, abi::E_UNAVAILABLE);
}

#[test]
fn a_drain_that_is_cancelled_ends_and_the_runs_go_on() {
    let slow = SlowBox::new();
    let inside = slow.slow();
    let door = &inside.door;
    std::thread::scope(|scope| {
        let _end = OpenedAtTheEnd(door);
        scope.spawn(|| slow.run(1));
        eventually("a run", || door.inside.load(Ordering::SeqCst) == 1);
        let drain = scope.spawn(|| slow.drain(2));
        eventually("it waits", || slow.drains_waiting() == 1);
        slow.cancel(1);
        slow.cancel(99);
        assert_eq!(slow.drains_waiting(), 1, "neither is the drain");
        slow.cancel(2);
        eventually("the drain ends", || drain.is_finished());
        assert_eq!(slow.ends(), [(2, abi::E_CANCELLED)]);
        slow.run(3);
        assert_eq!(slow.host.ended().1, abi::E_UNAVAILABLE, "it still drains");
        // Cancelled before it came.
        slow.host.fake.lock().unwrap().cancelled = true;
        slow.drain(4);
        assert_eq!(
            slow.host.ended(),
            (4, abi::E_CANCELLED, "the drain was cancelled".into())
        );
    });
    assert_eq!(slow.hooks(), 0, "a run was in flight");
    assert_eq!(slow.ends()[1], (1, abi::OK));
}

#[test]
fn what_is_open_in_a_store_goes_on_after_drain_and_nothing_begins() {
    let store = Open::new();
    let t = &store.table;
    let none = abi::Str::EMPTY;
    let which = abi::SkillRef {
        name: none,
        version: none,
    };
    let (list, put, create) = (wire::zeroed(), wire::zeroed(), wire::zeroed());
    let mut buf = [0_u8; 4];
    // SAFETY: the instance lives, the arguments during the calls.
    let begin: [&dyn Fn() -> i32; 10] = unsafe {
        [
            &|| t.skill_list.unwrap()(t.self_, 1, &raw const list),
            &|| t.skill_get.unwrap()(t.self_, 1, none, &raw const which),
            &|| t.skill_read.unwrap()(t.self_, 1, none, &raw const which, none),
            &|| t.skill_tree.unwrap()(t.self_, 1, none, &raw const which),
            &|| t.skill_put.unwrap()(t.self_, 1, &raw const put),
            &|| t.blob_create.unwrap()(t.self_, 1, &raw const create),
            &|| t.blob_stat.unwrap()(t.self_, 1, none, none),
            &|| t.blob_open.unwrap()(t.self_, 1, none, none, 0, 0),
            &|| t.blob_fd.unwrap()(t.self_, 1, none, none),
            &|| t.blob_delete.unwrap()(t.self_, 1, none, none),
        ]
    };
    for (i, call) in begin.iter().enumerate() {
        assert_eq!(call(), abi::OK);
        assert_ne!(store.host.ended().1, abi::E_UNAVAILABLE, "call {i}");
    }
    // SAFETY: as above.
    unsafe { t.drain.unwrap()(t.self_, 1) };
    assert_eq!(store.host.ended().1, abi::OK);
    for (i, call) in begin.iter().enumerate() {
        assert_eq!(call(), abi::OK);
        assert_eq!(store.host.ended().1, abi::E_UNAVAILABLE, "call {i}");
    }
    // SAFETY: as above; buf is initialised and has its length.
    unsafe {
        let buf = buf.as_mut_ptr().cast();
        t.blob_write.unwrap()(t.self_, 1, 2, abi::Bytes::of(b"abc"));
        assert_eq!(store.host.ended().2, "3", "the store's own answer");
        t.blob_commit.unwrap()(t.self_, 1, 2);
        assert_eq!(store.host.ended().1, abi::OK);
        t.blob_read.unwrap()(t.self_, 1, 2, buf, 4);
        assert_eq!(store.host.ended().1, abi::OK);
        t.health.unwrap()(t.self_, 1);
        assert_eq!(store.host.ended().1, abi::OK);
        t.blob_abort.unwrap()(t.self_, 902);
        t.blob_close.unwrap()(t.self_, 903);
    }
    let asked = ASKED.lock().unwrap().clone();
    assert!(
        asked.contains(&"abort 902".into()) && asked.contains(&"close 903".into()),
        "{asked:?}"
    );
}

#[test]
fn no_end_of_a_call_is_missed() {
    for _ in 0..200 {
        let calls = Arc::new(InFlight::default());
        let (drained, is_drained) = mpsc::channel();
        let workers: Vec<_> = (0..3)
            .map(|_| {
                let calls = Arc::clone(&calls);
                std::thread::spawn(move || while calls.begin().is_ok() {})
            })
            .collect();
        let drain = Arc::clone(&calls);
        std::thread::spawn(move || {
            drain.close();
            let then = Box::new(move |result| drained.send(result).unwrap());
            drain.when_idle(1, || false, then);
        });
        assert_eq!(is_drained.recv_timeout(SOON), Ok(Ok(())));
        for worker in workers {
            worker.join().unwrap();
        }
    }
}

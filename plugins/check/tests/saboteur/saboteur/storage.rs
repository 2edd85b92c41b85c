//! What is wrong with a store.

use std::ffi::c_void;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::wire;

use super::answers::ctx_of;
use super::{STORES, answer, asked, lock, under};

/// Of a store that publishes nothing, too, blobs are asked for.
pub(super) const FORGETS_BLOBS: &str = "publishes nothing, and forgets blobs at its end";

/// How many calls of skill_put are under way.
static PUBLISHING: AtomicUsize = AtomicUsize::new(0);
/// How many publishers have just come.
static COMING: AtomicUsize = AtomicUsize::new(0);
/// The tenant that was last written for.
static WRITTEN_FOR: Mutex<&str> = Mutex::new("");

pub(super) fn is_publishing() -> bool {
    PUBLISHING.load(Ordering::SeqCst) > 0
}

/// The good table with the functions that are wrong.
pub(super) fn wrap(inner: abi::Storage) -> abi::Storage {
    let mut table = abi::Storage {
        caps: Some(caps),
        health: Some(health),
        cancel: Some(cancel),
        drain: Some(drain),
        destroy: Some(destroy),
        skill_list: Some(skill_list),
        skill_get: Some(skill_get),
        skill_put: Some(skill_put),
        skill_read: Some(skill_read),
        skill_tree: Some(skill_tree),
        blob_create: Some(blob_create),
        blob_write: Some(blob_write),
        blob_commit: Some(blob_commit),
        blob_abort: Some(blob_abort),
        blob_close: Some(blob_close),
        blob_read: Some(blob_read),
        blob_fd: Some(blob_fd),
        blob_stat: Some(blob_stat),
        blob_open: Some(blob_open),
        blob_delete: Some(blob_delete),
        ..inner
    };
    if asked("says that it has skills, and lists none") {
        table.skill_list = None;
    }
    if asked("lies about the size of its table") {
        table.struct_size += 1000;
    }
    table
}

/// Where the tenant of the last skill_list was.
static KEPT: AtomicUsize = AtomicUsize::new(0);
/// Where the data of the last blob_write was.
static WRITTEN: AtomicUsize = AtomicUsize::new(0);
/// How many calls of health are under way.
static BUSY: AtomicUsize = AtomicUsize::new(0);
/// drain() was called.
static DRAINED: AtomicBool = AtomicBool::new(false);
/// Writers that were committed.
static COMMITTED: Mutex<Vec<u64>> = Mutex::new(Vec::new());
/// Blobs that were deleted.
static DELETED: AtomicUsize = AtomicUsize::new(0);
/// The writer, and the reader, that was given last.
static LAST_WRITER: AtomicU64 = AtomicU64::new(0);
static LAST_READER: AtomicU64 = AtomicU64::new(0);

/// # Safety
/// `c` is the good plugin's completion of that call.
pub(super) unsafe fn note(call: &str, c: &abi::Completion) {
    if c.status != abi::OK {
        return;
    }
    // SAFETY: the caller's promise: a good result of that call.
    unsafe {
        match call {
            "blob_create" => {
                LAST_WRITER.store((*c.result.cast::<abi::Handle>()).handle, Ordering::SeqCst);
            }
            "blob_open" => {
                let opened = c.result.cast::<abi::BlobOpened>();
                LAST_READER.store((*opened).reader, Ordering::SeqCst);
            }
            _ => {}
        }
    }
}

/// What every kind of call can be asked for, in place of health().
pub(super) fn at_health() {
    match super::SABOTAGE.get().map(String::as_str) {
        // SAFETY: none: this is what it is for.
        Some("segfaults") => unsafe { std::ptr::dangling_mut::<u8>().write_volatile(1) },
        Some("aborts") => std::process::abort(),
        Some("calls exit()") => std::process::exit(0),
        Some("hangs") => loop {
            std::thread::park();
        },
        Some(leaves) if leaves.starts_with("leaves a session and hangs") => {
            super::process::leave_a_session(leaves);
            loop {
                std::thread::park();
            }
        }
        Some(leaves) if leaves.starts_with("leaves a session and aborts") => {
            super::process::leave_a_session(leaves);
            std::process::abort();
        }
        Some("panics across the boundary") => panic!("health panics, as asked"),
        Some("overflows its stack") => {
            fn deeper(n: u64) -> u64 {
                if n == u64::MAX {
                    return 0;
                }
                let page = [n; 512];
                std::hint::black_box(&page);
                deeper(n + 1) + page[0]
            }
            std::hint::black_box(deeper(0));
        }
        _ => {}
    }
}

/// # Safety
/// The arguments are health()'s, as for every function here.
unsafe extern "C" fn health(this: *mut c_void, op: abi::Op) -> i32 {
    at_health();
    if asked("fails when it is busy") {
        let busy = BUSY.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(std::time::Duration::from_millis(5));
        BUSY.fetch_sub(1, Ordering::SeqCst);
        if busy > 3 {
            return abi::E_INTERNAL;
        }
    }
    // SAFETY: the good plugin's own function, with its own self.
    let code = under("health", || unsafe {
        STORES.get(this).health.unwrap()(this, op)
    });
    if asked("refuses what it has completed") {
        return abi::E_EXHAUSTED;
    }
    code
}

unsafe extern "C" fn caps(this: *mut c_void, out: *mut u32) -> i32 {
    // SAFETY: as above; out is the host's to be written.
    unsafe {
        let code = STORES.get(this).caps.unwrap()(this, out);
        if asked(FORGETS_BLOBS) || asked("publishes what it says it cannot") {
            *out &= !abi::ST_SKILLS_WRITE;
        }
        if asked("says what nobody knows") {
            *out |= 0x8000;
        }
        code
    }
}

unsafe extern "C" fn cancel(this: *mut c_void, op: abi::Op) {
    if asked("aborts at a cancel of nothing") && op == u64::MAX {
        std::process::abort();
    }
    // SAFETY: as above.
    unsafe {
        if asked("completes what is cancelled") && op > 1 && op != u64::MAX {
            answer(ctx_of(this), op, std::ptr::null());
        }
        STORES.get(this).cancel.unwrap()(this, op);
    }
}

unsafe extern "C" fn drain(this: *mut c_void, op: abi::Op) -> i32 {
    // SAFETY: as above.
    unsafe {
        if asked("goes on after drain") {
            answer(ctx_of(this), op, std::ptr::null());
            return abi::OK;
        }
        DRAINED.store(true, Ordering::SeqCst);
        STORES.get(this).drain.unwrap()(this, op)
    }
}

unsafe extern "C" fn destroy(this: *mut c_void) {
    // SAFETY: as above.
    unsafe { STORES.get(this).destroy.unwrap()(this) };
    after_destroy(this);
}

/// What outlives an instance.
pub(super) fn after_destroy(this: *mut c_void) {
    if asked("calls the host after destroy") {
        let ctx = ctx_of(this) as usize;
        std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(10));
            // SAFETY: none: this is what it is for.
            unsafe { answer(ctx as *mut c_void, 1, std::ptr::null()) }
        });
    }
}

unsafe extern "C" fn skill_list(this: *mut c_void, op: abi::Op, r: *const abi::ListRequest) -> i32 {
    // SAFETY: as above; the host's request is readable.
    unsafe {
        let mut request = wire::prefix(r, "request").unwrap();
        if asked("asks no host") {
            super::CANCELLED.get().unwrap()(std::ptr::null_mut(), op);
        }
        if asked("hangs on what is cancelled already")
            && super::CANCELLED.get().unwrap()(ctx_of(this), op) != 0
        {
            loop {
                std::thread::park();
            }
        }
        if asked("gives the first page for ever") {
            request.after = abi::SkillKey {
                namespace_: abi::Str::EMPTY,
                name: abi::Str::EMPTY,
                version: abi::Str::EMPTY,
            };
        }
        if asked("reads an empty text") {
            std::hint::black_box(request.tenant.ptr.read_volatile());
        }
        if asked("reads what a newer host adds")
            && (*r).struct_size as usize > size_of::<abi::ListRequest>()
        {
            let more = r.add(1).cast::<*const u8>().read();
            std::hint::black_box(more.read_volatile());
        }
        if asked("keeps a request") {
            KEPT.store(request.tenant.ptr as usize, Ordering::SeqCst);
        }
        if asked("reads past the struct_size of a request") {
            std::hint::black_box(r.add(1).cast::<u64>().read_volatile());
        }
        request.struct_size = wire::size_of_u32::<abi::ListRequest>();
        under("skill_list", || {
            STORES.get(this).skill_list.unwrap()(this, op, &raw const request)
        })
    }
}

unsafe extern "C" fn skill_get(
    this: *mut c_void,
    op: abi::Op,
    tenant: abi::Str,
    r: *const abi::SkillRef,
) -> i32 {
    // SAFETY: as above.
    unsafe {
        let kept = KEPT.load(Ordering::SeqCst) as *const u8;
        if !kept.is_null() {
            std::hint::black_box(kept.read_volatile());
        }
        let tenant = whose(tenant, "gives another tenant's skill");
        let mut which = r.read();
        if asked("says that a pre-release is the latest")
            && which.version.len == 0
            && which.name.bytes().ends_with(b".pre")
        {
            which.version = abi::Str::new("2.0.0-rc.1");
        }
        under("skill_get", || {
            STORES.get(this).skill_get.unwrap()(this, op, tenant, &raw const which)
        })
    }
}

unsafe extern "C" fn skill_read(
    this: *mut c_void,
    op: abi::Op,
    tenant: abi::Str,
    r: *const abi::SkillRef,
    path: abi::Str,
) -> i32 {
    // SAFETY: as above.
    under("skill_read", || unsafe {
        STORES.get(this).skill_read.unwrap()(this, op, tenant, r, path)
    })
}

unsafe extern "C" fn skill_tree(
    this: *mut c_void,
    op: abi::Op,
    tenant: abi::Str,
    r: *const abi::SkillRef,
) -> i32 {
    // SAFETY: as above.
    under("skill_tree", || unsafe {
        STORES.get(this).skill_tree.unwrap()(this, op, tenant, r)
    })
}

/// The tenant that is asked for, or the one that was last written for.
///
/// # Safety
/// `tenant` is readable.
unsafe fn whose(tenant: abi::Str, sabotage: &str) -> abi::Str {
    if asked(sabotage) {
        abi::Str::of(*lock(&WRITTEN_FOR))
    } else {
        tenant
    }
}

/// # Safety
/// `tenant` is readable.
unsafe fn written_for(tenant: abi::Str) {
    // SAFETY: the caller's promise.
    let tenant = unsafe { wire::shown(tenant, 100) };
    *lock(&WRITTEN_FOR) = tenant.leak();
}

unsafe extern "C" fn skill_put(this: *mut c_void, op: abi::Op, r: *const abi::PutSkill) -> i32 {
    // SAFETY: as above.
    unsafe {
        if asked(FORGETS_BLOBS) || asked("publishes nothing, and says that it can") {
            return abi::E_UNIMPLEMENTED;
        }
        let request = wire::prefix(r, "request").unwrap();
        written_for(request.tenant);
        if asked("accepts paths that escape") {
            let escapes = (0..request.files.len).any(|i| {
                let file = request.files.at::<abi::PutFile>(i).read();
                file.path.bytes().starts_with(b"..")
            });
            if escapes {
                let mut skill: abi::Skill = wire::zeroed();
                skill.struct_size = wire::size_of_u32::<abi::Skill>();
                answer(ctx_of(this), op, (&raw const skill).cast());
                return abi::OK;
            }
        }
        if asked("loses what is published beside others") {
            let others = COMING.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(std::time::Duration::from_millis(2));
            COMING.fetch_sub(1, Ordering::SeqCst);
            if others > 0 {
                let mut skill: abi::Skill = wire::zeroed();
                skill.struct_size = wire::size_of_u32::<abi::Skill>();
                answer(ctx_of(this), op, (&raw const skill).cast());
                return abi::OK;
            }
        }
        if asked("takes the same at once for another") {
            let others = COMING.fetch_add(1, Ordering::SeqCst);
            // Long enough for others to come. Over before this one is told that it has published.
            std::thread::sleep(std::time::Duration::from_millis(20));
            COMING.fetch_sub(1, Ordering::SeqCst);
            if others > 0 {
                return abi::E_ALREADY_EXISTS;
            }
        }
        PUBLISHING.fetch_add(1, Ordering::SeqCst);
        let code = under("skill_put", || {
            STORES.get(this).skill_put.unwrap()(this, op, r)
        });
        if asked("shows what is being published in part") {
            // Long enough to be looked at.
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        PUBLISHING.fetch_sub(1, Ordering::SeqCst);
        code
    }
}

unsafe extern "C" fn blob_create(
    this: *mut c_void,
    op: abi::Op,
    r: *const abi::BlobCreateRequest,
) -> i32 {
    // SAFETY: as above.
    unsafe {
        let mut request = wire::prefix(r, "request").unwrap();
        written_for(request.tenant);
        request.struct_size = wire::size_of_u32::<abi::BlobCreateRequest>();
        if asked("takes more than max_bytes") {
            request.max_bytes = u64::MAX >> 1;
        }
        if asked("keeps what has expired") {
            request.ttl_s = 0;
        }
        under("blob_create", || {
            STORES.get(this).blob_create.unwrap()(this, op, &raw const request)
        })
    }
}

unsafe extern "C" fn blob_write(
    this: *mut c_void,
    op: abi::Op,
    mut writer: u64,
    mut data: abi::Bytes,
) -> i32 {
    if asked("writes into the blob that was begun last") {
        writer = LAST_WRITER.load(Ordering::SeqCst);
    }
    if asked("loses the last byte of a long write") && data.len > 1000 {
        data.len -= 1;
    }
    if asked("ends what is open at drain") && DRAINED.load(Ordering::SeqCst) {
        return abi::E_UNAVAILABLE;
    }
    // SAFETY: as above.
    unsafe {
        if asked("writes on after a commit") && lock(&COMMITTED).contains(&writer) {
            answer(ctx_of(this), op, std::ptr::null());
            return abi::OK;
        }
        if asked("keeps blob_write's data") {
            WRITTEN.store(data.ptr as usize, Ordering::SeqCst);
        }
        STORES.get(this).blob_write.unwrap()(this, op, writer, data)
    }
}

unsafe extern "C" fn blob_abort(this: *mut c_void, writer: u64) {
    if asked("keeps what is given up") {
        return;
    }
    // SAFETY: as above.
    unsafe { STORES.get(this).blob_abort.unwrap()(this, writer) }
}

unsafe extern "C" fn blob_close(this: *mut c_void, reader: u64) {
    if asked("keeps what is closed") {
        return;
    }
    // SAFETY: as above.
    unsafe { STORES.get(this).blob_close.unwrap()(this, reader) }
}

unsafe extern "C" fn blob_read(
    this: *mut c_void,
    op: abi::Op,
    mut reader: u64,
    buf: *mut c_void,
    cap: u64,
) -> i32 {
    if asked("reads from the blob that was opened last") {
        reader = LAST_READER.load(Ordering::SeqCst);
    }
    // SAFETY: as above.
    unsafe {
        if asked("gives other bytes of what is deleted") && DELETED.load(Ordering::SeqCst) > 0 {
            let count = abi::Count { n: cap, eof: 1 };
            answer(ctx_of(this), op, (&raw const count).cast());
            return abi::OK;
        }
        if asked("gives nothing before the end") {
            let count = abi::Count { n: 0, eof: 0 };
            answer(ctx_of(this), op, (&raw const count).cast());
            return abi::OK;
        }
        if asked("ends what is read at drain") && DRAINED.load(Ordering::SeqCst) {
            return abi::E_UNAVAILABLE;
        }
        if asked("says more than it has read") {
            let count = abi::Count { n: cap + 1, eof: 0 };
            answer(ctx_of(this), op, (&raw const count).cast());
            return abi::OK;
        }
        if asked("writes 16 bytes whatever cap is") {
            buf.cast::<[u8; 16]>().write_unaligned([0; 16]);
        }
        let code = STORES.get(this).blob_read.unwrap()(this, op, reader, buf, cap);
        if asked("writes into the room after complete") && code == abi::OK {
            buf.cast::<u8>().write_volatile(0);
        }
        code
    }
}

unsafe extern "C" fn blob_fd(
    this: *mut c_void,
    op: abi::Op,
    tenant: abi::Str,
    id: abi::Str,
) -> i32 {
    // SAFETY: as above.
    under("blob_fd", || unsafe {
        STORES.get(this).blob_fd.unwrap()(this, op, tenant, id)
    })
}

unsafe extern "C" fn blob_commit(this: *mut c_void, op: abi::Op, writer: u64) -> i32 {
    lock(&COMMITTED).push(writer);
    let written = WRITTEN.load(Ordering::SeqCst) as *const u8;
    if !written.is_null() {
        // SAFETY: none: this is what it is for.
        std::hint::black_box(unsafe { written.read_volatile() });
    }
    // SAFETY: as above.
    under("blob_commit", || unsafe {
        STORES.get(this).blob_commit.unwrap()(this, op, writer)
    })
}

unsafe extern "C" fn blob_stat(
    this: *mut c_void,
    op: abi::Op,
    tenant: abi::Str,
    id: abi::Str,
) -> i32 {
    // SAFETY: as above.
    unsafe {
        let tenant = whose(tenant, "gives another tenant's blob");
        let code = STORES.get(this).blob_stat.unwrap()(this, op, tenant, id);
        code + i32::from(asked("says 1 where it has accepted"))
    }
}

unsafe extern "C" fn blob_open(
    this: *mut c_void,
    op: abi::Op,
    tenant: abi::Str,
    id: abi::Str,
    offset: u64,
    len: u64,
) -> i32 {
    // SAFETY: as above.
    unsafe {
        let tenant = whose(tenant, "gives another tenant's blob");
        let (offset, len) = if asked("gives the whole for a range") {
            (0, 0)
        } else if asked("begins each range at the start") && len > 0 {
            (0, len)
        } else if asked("counts ranges in 64 bits and no further") {
            match offset.wrapping_add(len) {
                end if end < offset => (0, end),
                _ => (offset, len),
            }
        } else {
            (offset, len)
        };
        under("blob_open", || {
            STORES.get(this).blob_open.unwrap()(this, op, tenant, id, offset, len)
        })
    }
}

unsafe extern "C" fn blob_delete(
    this: *mut c_void,
    op: abi::Op,
    tenant: abi::Str,
    id: abi::Str,
) -> i32 {
    // SAFETY: as above.
    unsafe {
        if asked("keeps what is deleted") {
            answer(ctx_of(this), op, std::ptr::null());
            return abi::OK;
        }
        DELETED.fetch_add(1, Ordering::SeqCst);
        STORES.get(this).blob_delete.unwrap()(this, op, tenant, id)
    }
}

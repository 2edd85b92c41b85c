//! A host table that gives nothing and counts everything.

mod said;
pub(super) mod services;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ffi::c_void;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use skillgate_plugin_host::{check_blob_id, check_content, check_opened};
use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::wire::{self, Grows, size_of_u32};

use services::{
    blob_create, blob_fd, blob_finish, blob_read, blob_write, gate_serve, run_output, secret_read,
};

use super::place::{Room, Shape, for_ever, keep, place};

/// A minor of the contract that no plugin has heard of.
const FUTURE_MINOR: u32 = 9;
/// Ops are far apart, so that an invented one is not one by chance.
const OP_STEP: u64 = 0x1_0001;
/// Longest message that is kept.
const MESSAGE_BYTES_MAX: usize = 300;

/// What a call is answered with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    None,
    Health,
    Page,
    Skill,
    Content,
    Handle,
    Stat,
    /// blob_open's, and blob_fd's: one struct, and a descriptor only in the other.
    Reader,
    Opened,
    Count,
    Run,
}

/// Which host the plugin sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HostShape {
    Now,
    /// The oldest that there is.
    Oldest,
    Newer,
}

/// How an op ended.
#[derive(Debug, Clone, Default)]
pub(crate) struct End {
    pub(crate) status: i32,
    pub(crate) message: String,
    /// It failed, and says that no code of the skill has run.
    pub(crate) not_executed: bool,
    /// Of a writer or reader.
    pub(crate) handle: u64,
    /// Of a blob.
    pub(crate) id: String,
    /// What was read of one, and whether that was its end.
    pub(crate) data: Vec<u8>,
    pub(crate) eof: bool,
    /// Structs in it whose `struct_size` is not what the header declares: (struct, said, declared).
    pub(crate) sizes: Vec<(&'static str, u32, u32)>,
}

/// What the plugin may touch until its op completes.
#[derive(Debug, Default)]
pub(super) struct Lent {
    pub(super) room: Option<Room>,
    /// Of mounts.
    pub(super) descriptors: Vec<OwnedFd>,
}

impl Lent {
    fn take_back(self) {
        if let Some(room) = self.room {
            room.take_back();
        }
        drop(self.descriptors);
    }
}

struct OpState {
    name: &'static str,
    answer: Answer,
    cancelled: bool,
    refused: bool,
    output: usize,
    lent: Lent,
    /// Whoever completes it first has it; its answer may still be being read.
    completed: bool,
    ended: Option<End>,
}

#[derive(Default)]
struct State {
    ops: HashMap<abi::Op, OpState>,
    next: abi::Op,
    wrongs: Vec<String>,
    destroyed: bool,
}

/// What the plugin's calls go to.
#[derive(Default)]
pub(crate) struct RawHost {
    state: Mutex<State>,
    changed: Condvar,
}

impl RawHost {
    /// A host and the table that shows it, for ever.
    pub(crate) fn new(shape: HostShape) -> io::Result<(&'static RawHost, *const abi::Host)> {
        let host: &'static RawHost = keep(Box::default());
        let table = abi::Host {
            struct_size: size_of_u32::<abi::Host>(),
            abi_major: abi::ABI_MAJOR,
            abi_minor: if shape == HostShape::Newer {
                FUTURE_MINOR
            } else {
                abi::ABI_MINOR
            },
            flags: 0,
            ctx: std::ptr::from_ref(host).cast_mut().cast(),
            name: abi::Str::new("skillgate"),
            version: abi::Str::new(env!("CARGO_PKG_VERSION")),
            complete: Some(complete),
            op_cancelled: Some(op_cancelled),
            log_enabled: Some(log_enabled),
            log: Some(log),
            get_extension: Some(get_extension),
            run_output: Some(run_output),
            secret_read: Some(secret_read),
            blob_fd: Some(blob_fd),
            blob_read: Some(blob_read),
            blob_create: Some(blob_create),
            blob_write: Some(blob_write),
            blob_finish: Some(blob_finish),
            gate_serve: Some(gate_serve),
        };
        let shape = match shape {
            HostShape::Now => Shape::Whole,
            HostShape::Oldest => Shape::Oldest,
            HostShape::Newer => Shape::Longer,
        };
        Ok((host, for_ever(|| place(&table, shape))?))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An op for a call that is about to be made.
    pub(super) fn begin(&self, name: &'static str, answer: Answer, cancelled: bool) -> abi::Op {
        let mut state = self.lock();
        state.next += OP_STEP;
        let op = state.next;
        let new = OpState {
            name,
            answer,
            cancelled,
            refused: false,
            output: 0,
            lent: Lent::default(),
            completed: false,
            ended: None,
        };
        state.ops.insert(op, new);
        op
    }

    /// Of the call that will be made next, if nobody else makes one.
    pub(crate) fn next_op(&self) -> abi::Op {
        self.lock().next + OP_STEP
    }

    /// The op of the call that is made now has this until it completes.
    pub(super) fn lends(&self, op: abi::Op, lent: Lent) {
        if let Some(of) = self.lock().ops.get_mut(&op) {
            of.lent = lent;
        }
    }

    /// The call was refused: the op must not be completed.
    pub(super) fn refused(&self, op: abi::Op, code: i32) {
        let mut state = self.lock();
        let Some(of) = state.ops.get_mut(&op) else {
            return;
        };
        of.refused = true;
        std::mem::take(&mut of.lent).take_back();
        if of.completed {
            let wrong = format!(
                "{} was refused with {code}, and completed all the same",
                of.name
            );
            state.wrongs.push(wrong);
        }
    }

    pub(crate) fn mark_cancelled(&self, op: abi::Op) {
        if let Some(of) = self.lock().ops.get_mut(&op) {
            of.cancelled = true;
        }
    }

    /// From now on the table is invalid.
    pub(super) fn destroyed(&self) {
        let mut state = self.lock();
        state.destroyed = true;
        let open: Vec<_> = state
            .ops
            .values()
            .filter(|of| of.ended.is_none() && !of.refused)
            .map(|of| format!("{} was never completed", of.name))
            .collect();
        state.wrongs.extend(open);
    }

    /// What went against the rules so far, also in calls that are no host's: it is the same plugin's.
    pub(crate) fn wrongs(&self) -> Vec<String> {
        let mut wrongs = self.lock().wrongs.clone();
        wrongs.extend_from_slice(&STRAY.lock().unwrap_or_else(PoisonError::into_inner));
        wrongs
    }

    /// How an op ended; `None`: not within `limit`.
    pub(crate) fn ended(&self, op: abi::Op, limit: Duration) -> Option<End> {
        self.until(limit, |state| {
            state.ops.get(&op).and_then(|of| of.ended.clone())
        })
    }

    /// Whether an op has ended, or was refused, within `limit`.
    pub(crate) fn is_over(&self, op: abi::Op, limit: Duration) -> bool {
        let over = self.until(limit, |state| {
            let of = state.ops.get(&op)?;
            (of.refused || of.ended.is_some()).then_some(())
        });
        over.is_some()
    }

    pub(crate) fn has_ended(&self, op: abi::Op) -> bool {
        self.ended(op, Duration::ZERO).is_some()
    }

    /// Waits until a run has written something; `false`: it has not, and never will.
    pub(crate) fn has_output(&self, op: abi::Op, limit: Duration) -> bool {
        let written = self.until(limit, |state| {
            let of = state.ops.get(&op)?;
            let decided = of.output > 0 || of.refused || of.ended.is_some();
            decided.then_some(of.output > 0)
        });
        written.unwrap_or(false)
    }

    /// Listens for what must not come any more.
    pub(crate) fn listen(&self, time: Duration) -> Vec<String> {
        self.until(time, |state| (!state.wrongs.is_empty()).then_some(()));
        self.wrongs()
    }

    fn until<T>(&self, limit: Duration, mut found: impl FnMut(&State) -> Option<T>) -> Option<T> {
        let until = Instant::now() + limit;
        let mut state = self.lock();
        loop {
            if let Some(found) = found(&state) {
                return Some(found);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            state = self
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// A call of any function of the table; `false` after destroy().
    fn is_open(&self, function: &str) -> bool {
        let mut state = self.lock();
        if state.destroyed {
            state.wrongs.push(format!(
                "{function} was called after destroy() had returned"
            ));
        }
        !state.destroyed
    }
}

/// Calls that say of no host that they are its.
static STRAY: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Whom a call of `function` is for: null is what the gateway refuses, and the kit finds.
///
/// # Safety
/// `ctx` is null or that of a table made by [`RawHost::new`].
unsafe fn host(ctx: *mut c_void, function: &str) -> Option<&'static RawHost> {
    // SAFETY: the caller's promise; hosts are leaked and only ever shared.
    let host = unsafe { ctx.cast_const().cast::<RawHost>().as_ref() };
    if host.is_none() {
        let mut stray = STRAY.lock().unwrap_or_else(PoisonError::into_inner);
        stray.push(format!("{function} was called with ctx null"));
    }
    host
}

unsafe extern "C" fn complete(ctx: *mut c_void, op: abi::Op, c: *const abi::Completion) -> i32 {
    // SAFETY: the plugin gives back the ctx of its table.
    let Some(host) = (unsafe { host(ctx, "complete") }) else {
        return abi::E_INVALID_ARGUMENT;
    };
    if !host.is_open("complete") {
        return abi::E_STALE;
    }
    let mut state = host.lock();
    let (answer, wrong) = match state.ops.get_mut(&op) {
        None => (
            None,
            format!("complete was called with the op {op:#x}, which nobody gave"),
        ),
        Some(of) if of.completed => (None, format!("{} was completed a second time", of.name)),
        Some(of) if of.refused => (None, format!("{} was refused and completed later", of.name)),
        Some(of) => {
            of.completed = true;
            let lent = std::mem::take(&mut of.lent);
            (Some((of.name, of.answer, lent)), String::new())
        }
    };
    let Some((name, answer, lent)) = answer else {
        state.wrongs.push(wrong);
        host.changed.notify_all();
        return abi::E_STALE;
    };
    drop(state);
    // SAFETY: the contract: c points to a completion, valid during this call.
    let (end, code) = match unsafe { read(c, answer, lent.room) } {
        Ok(end) => (end, abi::OK),
        Err(why) => {
            let wrong = format!("{name} was completed with a malformed answer: {why}");
            host.lock().wrongs.push(wrong);
            (
                End {
                    status: abi::E_PROTOCOL,
                    message: why,
                    ..End::default()
                },
                abi::E_PROTOCOL,
            )
        }
    };
    lent.take_back();
    let mut state = host.lock();
    if let Some(of) = state.ops.get_mut(&op) {
        of.ended = Some(end);
    }
    host.changed.notify_all();
    code
}

/// # Safety
/// `c` is what a plugin gave to complete(), and `room` what its op was lent.
unsafe fn read(
    c: *const abi::Completion,
    answer: Answer,
    room: Option<Room>,
) -> Result<End, String> {
    let mut end = End::default();
    // SAFETY: the caller's promise.
    let completion = unsafe { sized(c, "skg_completion", &mut end) }?;
    end.status = completion.status;
    if completion.status != abi::OK {
        if completion.status > 0 {
            return Err(format!("its status is {}", completion.status));
        }
        if !completion.error.is_null() {
            // SAFETY: the contract: not null: an error with its texts, valid during this call.
            let error = unsafe { sized(completion.error, "skg_error", &mut end) }?;
            // SAFETY: as above.
            unsafe { text(error.message, "skg_error.message") }?;
            // SAFETY: as above.
            end.message = unsafe { wire::shown(error.message, MESSAGE_BYTES_MAX) };
            end.not_executed = error.flags & abi::ERR_NOT_EXECUTED != 0;
        }
        return Ok(end);
    }
    let p = completion.result;
    if p.is_null() && answer != Answer::None {
        return Err("its result is null".into());
    }
    // SAFETY: the contract: the result struct of the call that this op is, valid during this call.
    unsafe {
        match answer {
            Answer::None => {}
            Answer::Health => {
                let health = sized(p.cast::<abi::Health>(), "skg_health", &mut end)?;
                text(health.message, "skg_health.message")?;
                said::state(health.state)?;
                said::metrics(&text(health.metrics_json, "skg_health.metrics_json")?)?;
                said::report(&text(health.report_json, "skg_health.report_json")?)?;
            }
            Answer::Run => drop(sized(
                p.cast::<abi::RunResult>(),
                "skg_run_result",
                &mut end,
            )?),
            Answer::Page => {
                let page = sized(p.cast::<abi::SkillPage>(), "skg_skill_page", &mut end)?;
                elements::<abi::Skill>(page.skills, "skg_skill", &mut end)?;
            }
            Answer::Skill => {
                let skill = sized(p.cast::<abi::Skill>(), "skg_skill", &mut end)?;
                elements::<abi::SkillFile>(skill.files, "skg_skill_file", &mut end)?;
            }
            Answer::Content => {
                let content = sized(p.cast::<abi::Content>(), "skg_content", &mut end)?;
                check_content(&content)?;
                if content.kind != abi::CONTENT_DATA {
                    take(content.fd);
                }
            }
            Answer::Handle => end.handle = p.cast::<abi::Handle>().read_unaligned().handle,
            Answer::Count => {
                let count = p.cast::<abi::Count>().read_unaligned();
                end.eof = count.eof != 0;
                if let Some(room) = room {
                    let (n, cap) = (count.n, room.len());
                    let data = room.copy(n);
                    end.data = data.ok_or_else(|| format!("n is {n}, and cap is {cap}"))?;
                }
            }
            Answer::Stat => {
                let stat = sized(p.cast::<abi::BlobStat>(), "skg_blob_stat", &mut end)?;
                end.id = wire::shown(stat.id, MESSAGE_BYTES_MAX);
                check_blob_id(&end.id)?;
            }
            Answer::Reader | Answer::Opened => {
                let opened = sized(p.cast::<abi::BlobOpened>(), "skg_blob_opened", &mut end)?;
                let is_fd = answer == Answer::Opened;
                check_opened(&opened, is_fd)?;
                end.handle = opened.reader;
                if is_fd {
                    take(opened.fd);
                }
            }
        }
    }
    Ok(end)
}

/// # Safety
/// `p` is null or points to a struct of the contract.
unsafe fn sized<T: Grows>(p: *const T, name: &'static str, end: &mut End) -> Result<T, String> {
    // SAFETY: the caller's promise.
    let value = unsafe { wire::prefix(p, name) }.map_err(|e| e.0)?;
    // SAFETY: not null, or the line above had returned; every struct that grows begins with its size.
    let said = unsafe { p.cast::<u32>().read_unaligned() };
    if said != size_of_u32::<T>() {
        end.sizes.push((name, said, size_of_u32::<T>()));
    }
    Ok(value)
}

/// A text that the gateway only shows, and so does not refuse: it is held to the rules here.
///
/// # Safety
/// As [`wire::Reader::text`].
unsafe fn text(text: abi::Str, what: &str) -> Result<String, String> {
    const TEXT_BYTES_MAX: usize = 1 << 20;
    // SAFETY: the caller's promise.
    let read = unsafe { wire::Reader::new(TEXT_BYTES_MAX).text(text, what, TEXT_BYTES_MAX) };
    read.map_err(|e| e.0)
}

/// # Safety
/// As [`wire::Reader::items`].
unsafe fn elements<T: Grows>(
    list: abi::List,
    name: &'static str,
    end: &mut End,
) -> Result<(), String> {
    const ELEMENTS_MAX: u32 = 10_000;
    // SAFETY: the caller's promise.
    unsafe { wire::Reader::new(64 << 20).items::<T>(list, name, ELEMENTS_MAX) }.map_err(|e| e.0)?;
    if list.len > 0 && list.stride != size_of_u32::<T>() {
        end.sizes.push((name, list.stride, size_of_u32::<T>()));
    }
    Ok(())
}

/// A descriptor in an answer is the host's.
///
/// # Safety
/// `fd` was looked at as the gateway looks at it, and changes its owner here.
unsafe fn take(fd: abi::Fd) {
    // SAFETY: the caller's promise.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
}

unsafe extern "C" fn op_cancelled(ctx: *mut c_void, op: abi::Op) -> i32 {
    // SAFETY: the plugin gives back the ctx of its table.
    let Some(host) = (unsafe { host(ctx, "op_cancelled") }) else {
        return abi::E_INVALID_ARGUMENT;
    };
    if !host.is_open("op_cancelled") {
        return 1;
    }
    let state = host.lock();
    let of = state.ops.get(&op);
    i32::from(of.is_none_or(|of| of.cancelled || of.ended.is_some()))
}

unsafe extern "C" fn log_enabled(ctx: *mut c_void, _level: u32, _target: abi::Str) -> i32 {
    // SAFETY: the plugin gives back the ctx of its table.
    let host = unsafe { host(ctx, "log_enabled") };
    i32::from(host.is_some_and(|host| host.is_open("log_enabled")))
}

unsafe extern "C" fn log(ctx: *mut c_void, record: *const abi::LogRecord) {
    // SAFETY: the plugin gives back the ctx of its table.
    let Some(host) = (unsafe { host(ctx, "log") }).filter(|host| host.is_open("log")) else {
        return;
    };
    // SAFETY: the contract: record points to a record, valid during this call.
    if let Err(why) = unsafe { wire::prefix(record, "skg_log_record") } {
        host.lock()
            .wrongs
            .push(format!("log was called with a malformed record: {why}"));
    }
}

unsafe extern "C" fn get_extension(ctx: *mut c_void, _id: *const u8) -> *const c_void {
    // SAFETY: the plugin gives back the ctx of its table.
    if let Some(host) = unsafe { host(ctx, "get_extension") } {
        host.is_open("get_extension");
    }
    std::ptr::null()
}

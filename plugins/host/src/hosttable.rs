//! What the host offers to an instance: the `skg_host` table and the C functions in it.
//!
//! A table and its context are leaked on purpose: a few hundred bytes for each instance ever made. A plugin that calls
//! after its destroy() then meets an empty op table instead of freed memory.

use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use skillgate_plugin_abi as abi;
use skillgate_plugin_sdk::model::{Error, Result};
use skillgate_plugin_sdk::wire::{self, Reader};

use crate::answer::{self, SHOWN_BYTES};
use crate::first;
use crate::instance::on_event_loop;
use crate::logs;
use crate::ops::OpTable;
use crate::sandbox::RunContext;

/// Longest text that a plugin can name something with in a host call: a blob id, a secret's name, a MIME type.
const NAME_BYTES: usize = 1024;
/// Most bytes in one blob_write or run_output.
const CHUNK_BYTES: u64 = 64 << 20;
/// blob_finish gives no id longer than this, and takes no smaller buffer.
const BLOB_ID_BYTES: u64 = 128;

pub(crate) struct HostContext {
    /// The plugin's id.
    pub(crate) plugin: String,
    pub(crate) instance: String,
    pub(crate) ops: OpTable,
    pace: logs::Pace,
}

/// A host table for one instance, valid for ever.
pub(crate) fn make(plugin: &str, instance: &str) -> (&'static HostContext, &'static abi::Host) {
    let context: &'static HostContext = Box::leak(Box::new(HostContext {
        plugin: plugin.to_owned(),
        instance: instance.to_owned(),
        ops: OpTable::default(),
        pace: logs::Pace::default(),
    }));
    let table = Box::leak(Box::new(abi::Host {
        struct_size: wire::size_of_u32::<abi::Host>(),
        abi_major: abi::ABI_MAJOR,
        abi_minor: abi::ABI_MINOR,
        flags: 0,
        ctx: std::ptr::from_ref(context).cast_mut().cast(),
        name: abi::Str::of("skillgate"),
        version: abi::Str::of(env!("CARGO_PKG_VERSION")),
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
    }));
    (context, table)
}

/// # Safety
/// `ctx` is null or the context of a table made by [`make`].
unsafe fn context(ctx: *mut c_void) -> Result<&'static HostContext> {
    // SAFETY: the caller's promise; contexts are leaked and only ever shared.
    unsafe { ctx.cast_const().cast::<HostContext>().as_ref() }
        .ok_or_else(|| Error::new(abi::E_INVALID_ARGUMENT, "ctx is null"))
}

/// Runs `f`; a panic of the gateway's own code does not unwind into C.
fn guard<R: From<i32>>(f: impl FnOnce() -> Result<R>) -> R {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(Ok(value)) => value,
        Ok(Err(error)) => R::from(if error.code < 0 {
            error.code
        } else {
            abi::E_INTERNAL
        }),
        Err(_) => {
            tracing::error!("a host function panicked under a plugin's call");
            R::from(abi::E_INTERNAL)
        }
    }
}

fn stale() -> Error {
    Error::new(abi::E_STALE, "this op has ended, or never was")
}

/// # Safety
/// As [`context`].
unsafe fn run_of(ctx: *mut c_void, op: abi::Op) -> Result<Arc<RunContext>> {
    // SAFETY: the caller's promise.
    unsafe { context(ctx) }?.ops.run(op).ok_or_else(stale)
}

/// # Safety
/// As [`context`].
unsafe fn blocking_run_of(ctx: *mut c_void, op: abi::Op) -> Result<Arc<RunContext>> {
    if on_event_loop() {
        return Err(Error::new(
            abi::E_WOULD_DEADLOCK,
            "a blocking host function on the event loop",
        ));
    }
    // SAFETY: the caller's promise.
    unsafe { run_of(ctx, op) }
}

/// # Safety
/// As [`Reader::text`].
unsafe fn name(s: abi::Str, what: &str) -> Result<String> {
    // SAFETY: the caller's promise.
    unsafe { Reader::new(NAME_BYTES).text(s, what, NAME_BYTES) }
        .map_err(|e| Error::new(abi::E_INVALID_ARGUMENT, e.0))
}

/// # Safety
/// `b.len` bytes are readable at `b.ptr` for as long as the result lives, or `b.ptr` is null.
unsafe fn chunk<'a>(b: abi::Bytes) -> Result<&'a [u8]> {
    if b.len > CHUNK_BYTES || (b.ptr.is_null() && b.len > 0) {
        let message = format!("{} bytes at once, or null: at most {CHUNK_BYTES}", b.len);
        return Err(Error::new(abi::E_INVALID_ARGUMENT, message));
    }
    // SAFETY: not null unless empty; the caller's promise.
    Ok(unsafe { b.bytes() })
}

/// # Safety
/// `cap` bytes are writable at `buf` for as long as the result lives, or `buf` is null.
unsafe fn buffer<'a>(buf: *mut c_void, cap: u64) -> Result<&'a mut [u8]> {
    if cap == 0 {
        return Ok(&mut []);
    }
    if buf.is_null() {
        return Err(Error::new(
            abi::E_INVALID_ARGUMENT,
            format!("buf is null with cap {cap}"),
        ));
    }
    let cap = usize::try_from(cap.min(CHUNK_BYTES)).unwrap_or(0);
    // The plugin's buffer may be memory that nobody has written yet, and a Rust slice has to be written memory.
    // SAFETY: writable by the caller's promise; zeroes are as good as anything for what is about to be filled.
    unsafe { std::ptr::write_bytes(buf.cast::<u8>(), 0, cap) };
    // SAFETY: written just now, and nobody else uses it during the call.
    Ok(unsafe { std::slice::from_raw_parts_mut(buf.cast(), cap) })
}

fn length(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

unsafe extern "C" fn complete(ctx: *mut c_void, op: abi::Op, c: *const abi::Completion) -> i32 {
    guard(|| {
        // SAFETY: the plugin gives back the ctx of its table.
        let context = unsafe { context(ctx) }?;
        // SAFETY: the contract: c points to a completion, valid during this call.
        let completion = unsafe { first::prefix(c, "completion") };
        let done = context.ops.take(op).ok_or_else(stale)?;
        let completion = match completion {
            Ok(completion) => completion,
            Err(e) => {
                done(Err(Error::new(
                    abi::E_PROTOCOL,
                    format!(
                        "the plugin {} gave a malformed completion: {e}",
                        context.plugin
                    ),
                )));
                return Ok(abi::E_PROTOCOL);
            }
        };
        if completion.status == abi::OK {
            return Ok(done(Ok(completion.result)));
        }
        if completion.status > 0 {
            // Nothing of it was read, so nothing in it was taken: the plugin must not hear SKG_OK.
            done(Err(Error::new(
                abi::E_PROTOCOL,
                format!(
                    "the plugin {} completed a call with the status {}, which is no SKG_E_*",
                    context.plugin, completion.status
                ),
            )));
            return Ok(abi::E_PROTOCOL);
        }
        // SAFETY: the contract: error is null or points to an error, valid during this call.
        let error = unsafe { error_of(completion.status, completion.error) };
        Ok(done(Err(error)))
    })
}

/// # Safety
/// `p` is null or points to a skg_error whose texts are readable.
pub(crate) unsafe fn error_of(status: i32, p: *const abi::Error) -> Error {
    let no_reason = |why: String| {
        let code = if status < 0 { status } else { abi::E_PROTOCOL };
        Error::new(code, format!("the plugin gave no reason{why}"))
    };
    if p.is_null() {
        return no_reason(String::new());
    }
    // SAFETY: the caller's promise.
    let e = match unsafe { first::prefix(p, "error") } {
        Ok(e) => e,
        Err(why) => return no_reason(format!(" ({why})")),
    };
    let code = match (e.code, status) {
        (code, _) if code < 0 => code,
        (_, status) if status < 0 => status,
        _ => abi::E_PROTOCOL,
    };
    Error {
        code,
        // SAFETY: the caller's promise.
        message: unsafe { wire::shown(e.message, SHOWN_BYTES) },
        retryable: e.flags & abi::ERR_RETRYABLE != 0,
        not_executed: e.flags & abi::ERR_NOT_EXECUTED != 0,
        of_tenant: e.flags & abi::ERR_TENANT != 0,
        retry_after_ms: e.retry_after_ms,
        // SAFETY: the caller's promise.
        detail_json: unsafe { wire::shown(e.detail_json, SHOWN_BYTES) },
    }
}

unsafe extern "C" fn op_cancelled(ctx: *mut c_void, op: abi::Op) -> i32 {
    guard(|| {
        // SAFETY: the plugin gives back the ctx of its table.
        let cancelled = unsafe { context(ctx) }?.ops.is_cancelled(op);
        // An op that has ended is one that nobody wants.
        Ok(i32::from(cancelled.unwrap_or(true)))
    })
}

unsafe extern "C" fn log_enabled(_ctx: *mut c_void, level: u32, _target: abi::Str) -> i32 {
    guard(|| Ok(i32::from(logs::enabled(level))))
}

unsafe extern "C" fn log(ctx: *mut c_void, record: *const abi::LogRecord) {
    guard::<i32>(|| {
        // SAFETY: the plugin gives back the ctx of its table.
        let context = unsafe { context(ctx) }?;
        // SAFETY: the contract: record points to a record, valid during this call.
        let Ok(record) = (unsafe { wire::prefix(record, "record") }) else {
            return Ok(abi::E_PROTOCOL);
        };
        if !logs::enabled(record.level) {
            return Ok(abi::OK);
        }
        // What goes beyond is left out, as of everything else that is written.
        let mut first = record.fields;
        first.len = first.len.min(logs::FIELDS_MAX);
        // SAFETY: the contract: fields is a list of skg_kv, valid during this call; every bit pattern is a skg_kv.
        let pairs = unsafe {
            Reader::new(SHOWN_BYTES).frozen::<abi::Kv>(first, "fields", logs::FIELDS_MAX)
        };
        let mut fields = String::new();
        for pair in pairs.unwrap_or_default() {
            // SAFETY: the contract: texts of the record are readable during this call.
            let (key, value) = unsafe {
                (
                    wire::shown(pair.key, logs::KEY_BYTES),
                    wire::shown(pair.value, logs::VALUE_BYTES),
                )
            };
            if !logs::add_field(&mut fields, &key, &value) {
                break;
            }
        }
        let run = context.ops.run(record.op);
        logs::write(&logs::Record {
            level: record.level,
            plugin: &context.plugin,
            instance: &context.instance,
            // SAFETY: as above.
            target: &unsafe { wire::shown(record.target, logs::TARGET_BYTES) },
            run_id: run.as_ref().map_or("", |run| &run.request.run_id),
            fields: &fields,
            // SAFETY: as above.
            message: &unsafe { wire::shown(record.message, SHOWN_BYTES) },
            pace: &context.pace,
        });
        Ok(abi::OK)
    });
}

unsafe extern "C" fn get_extension(_ctx: *mut c_void, _id: *const u8) -> *const c_void {
    std::ptr::null()
}

unsafe extern "C" fn run_output(
    ctx: *mut c_void,
    run: abi::Op,
    stream: u32,
    data: abi::Bytes,
) -> i32 {
    guard(|| {
        // SAFETY: the plugin gives back the ctx of its table; data is readable during this call.
        let (run, data) = unsafe { (run_of(ctx, run)?, chunk(data)?) };
        if !matches!(stream, abi::STDOUT | abi::STDERR | abi::RUNLOG) {
            return Ok(abi::E_INVALID_ARGUMENT);
        }
        Ok(if run.host.output(stream, data) {
            abi::OK
        } else {
            abi::E_EXHAUSTED
        })
    })
}

unsafe extern "C" fn secret_read(
    ctx: *mut c_void,
    run: abi::Op,
    secret: abi::Str,
    buf: *mut c_void,
    cap: u64,
) -> i64 {
    guard(|| {
        // SAFETY: the plugin gives back the ctx of its table; the name is readable during this call.
        let (run, secret) = unsafe { (run_of(ctx, run)?, name(secret, "name")?) };
        if !run.request.secrets.contains(&secret) {
            return Ok(i64::from(abi::E_PERMISSION));
        }
        let mut value = run.host.secret(&secret)?;
        let n = length(value.len());
        // SAFETY: the contract: cap bytes are writable at buf during this call.
        let copied = match unsafe { buffer(buf, cap) } {
            Ok(buf) if value.len() <= buf.len() => {
                buf[..value.len()].copy_from_slice(&value);
                Ok(n)
            }
            Ok(_) => Ok(n),
            Err(e) => Err(e),
        };
        wire::wipe(&mut value);
        copied
    })
}

/// A descriptor for the plugin, which closes it.
fn give(fd: OwnedFd) -> i32 {
    fd.into_raw_fd()
}

unsafe extern "C" fn blob_fd(ctx: *mut c_void, run: abi::Op, id: abi::Str) -> i32 {
    guard(|| {
        // SAFETY: the plugin gives back the ctx of its table; the id is readable during this call.
        let (run, id) = unsafe { (blocking_run_of(ctx, run)?, name(id, "id")?) };
        run.host.blob_fd(&id).map(give)
    })
}

unsafe extern "C" fn blob_read(
    ctx: *mut c_void,
    run: abi::Op,
    id: abi::Str,
    offset: u64,
    buf: *mut c_void,
    cap: u64,
) -> i64 {
    guard(|| {
        // SAFETY: the plugin gives back the ctx of its table; id and buf are good during this call.
        let (run, id, buf) = unsafe {
            (
                blocking_run_of(ctx, run)?,
                name(id, "id")?,
                buffer(buf, cap)?,
            )
        };
        let n = run.host.blob_read(&id, offset, buf)?;
        Ok(length(n.min(buf.len())))
    })
}

unsafe extern "C" fn blob_create(ctx: *mut c_void, run: abi::Op, kind: abi::Str) -> i64 {
    guard(|| {
        // SAFETY: the plugin gives back the ctx of its table; the kind is readable during this call.
        let (run, kind) = unsafe { (blocking_run_of(ctx, run)?, name(kind, "kind")?) };
        run.host.blob_create(&kind)
    })
}

unsafe extern "C" fn blob_write(
    ctx: *mut c_void,
    run: abi::Op,
    writer: i64,
    data: abi::Bytes,
) -> i32 {
    guard(|| {
        // SAFETY: the plugin gives back the ctx of its table; data is readable during this call.
        let (run, data) = unsafe { (blocking_run_of(ctx, run)?, chunk(data)?) };
        run.host.blob_write(writer, data).map(|()| abi::OK)
    })
}

unsafe extern "C" fn blob_finish(
    ctx: *mut c_void,
    run: abi::Op,
    writer: i64,
    commit: i32,
    id_buf: *mut u8,
    cap: u64,
) -> i64 {
    guard(|| {
        // SAFETY: the plugin gives back the ctx of its table.
        let run = unsafe { blocking_run_of(ctx, run) }?;
        let commit = match commit {
            0 => false,
            1 if cap >= BLOB_ID_BYTES => true,
            // Before anything is done: a blob that is stored but cannot be named would be lost.
            _ => return Ok(i64::from(abi::E_INVALID_ARGUMENT)),
        };
        let buf: &mut [u8] = if commit {
            // SAFETY: the contract: cap bytes are writable at id_buf during this call.
            unsafe { buffer(id_buf.cast(), cap) }?
        } else {
            &mut []
        };
        let Some(id) = run.host.blob_finish(writer, commit)? else {
            return Ok(0);
        };
        match buf.get_mut(..id.len()) {
            Some(space) => space.copy_from_slice(id.as_bytes()),
            None => return Ok(i64::from(abi::E_INTERNAL)),
        }
        Ok(length(id.len()))
    })
}

unsafe extern "C" fn gate_serve(ctx: *mut c_void, run: abi::Op, listener: abi::Fd) -> i32 {
    guard(|| {
        // SAFETY: the plugin gives back the ctx of its table.
        let run = unsafe { run_of(ctx, run) }?;
        // Before it is handed on: what the gateway's side refuses of a process of its own is that process's end.
        if answer::check_type(listener, libc::S_IFSOCK, "listener").is_err() {
            return Ok(abi::E_INVALID_ARGUMENT);
        }
        // SAFETY: the contract: an open descriptor, the plugin's until this call has returned SKG_OK.
        let borrowed = unsafe { BorrowedFd::borrow_raw(listener) };
        let ours = match borrowed.as_fd().try_clone_to_owned() {
            Ok(ours) => ours,
            // It is a listener as it should be: there is no room for another descriptor now.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
                return Ok(abi::E_EXHAUSTED);
            }
            Err(_) => return Ok(abi::E_INVALID_ARGUMENT),
        };
        run.host.gate_serve(ours)?;
        // SAFETY: taken over: the call succeeds, so the plugin no longer owns it.
        drop(unsafe { OwnedFd::from_raw_fd(listener) });
        Ok(abi::OK)
    })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn what_is_in_a_completion_whose_status_is_none_stays_the_plugins() {
        let (context, table) = make("com.acme.store", "a");
        let file = tempfile::tempfile().unwrap();
        let mut content: abi::Content = wire::zeroed();
        content.struct_size = wire::size_of_u32::<abi::Content>();
        content.kind = abi::CONTENT_FILE;
        content.fd = file.as_raw_fd();
        let completion = abi::Completion {
            struct_size: wire::size_of_u32::<abi::Completion>(),
            status: 5,
            error: std::ptr::null(),
            result: (&raw const content).cast(),
        };
        let (ended, end) = mpsc::channel();
        let done = move |result: Result<*const c_void>| {
            // SAFETY: the content above, which lives until `complete` is back.
            let read = result.map(|p| unsafe { answer::content(p.cast()) });
            ended.send(read.map(drop)).unwrap();
            abi::OK
        };
        let op = context.ops.insert(None, Box::new(done)).unwrap();
        // SAFETY: the table's own ctx, and a completion that lives until it is back.
        let code = unsafe { table.complete.unwrap()(table.ctx, op, &raw const completion) };
        assert_eq!(code, abi::E_PROTOCOL);
        let error = end.recv().unwrap().unwrap_err();
        assert_eq!(error.code, abi::E_PROTOCOL);
        assert_eq!(
            error.message,
            "the plugin com.acme.store completed a call with the status 5, which is no SKG_E_*"
        );
        // Still open, and still the same file.
        file.set_len(7).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 7);
        assert!(!context.ops.is_live(op));
    }
}

//! What a run may ask for. It has one secret, and nothing else.

use std::ffi::c_void;

use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::wire;

use super::{Answer, MESSAGE_BYTES_MAX, host};

/// The one secret that runs are granted.
pub(in crate::raw) const SECRET: &str = "CHECK_SECRET";
const SECRET_VALUE: &str = "what the kit keeps to itself";

/// A service of a run: is there such a run, and is it going on?
///
/// # Safety
/// `ctx` is null or that of a table made by [`RawHost::new`](super::RawHost::new).
unsafe fn service(ctx: *mut c_void, run: abi::Op, function: &str, code: i32) -> i32 {
    // SAFETY: the caller's promise.
    let Some(host) = (unsafe { host(ctx, function) }) else {
        return abi::E_INVALID_ARGUMENT;
    };
    if !host.is_open(function) {
        return abi::E_STALE;
    }
    let state = host.lock();
    match state.ops.get(&run) {
        Some(of) if of.answer == Answer::Run && of.ended.is_none() => code,
        _ => abi::E_STALE,
    }
}

pub(super) unsafe extern "C" fn run_output(
    ctx: *mut c_void,
    run: abi::Op,
    stream: u32,
    data: abi::Bytes,
) -> i32 {
    // SAFETY: the plugin gives back the ctx of its table.
    let code = unsafe { service(ctx, run, "run_output", abi::OK) };
    if code == abi::OK && !matches!(stream, abi::STDOUT | abi::STDERR | abi::RUNLOG) {
        return abi::E_INVALID_ARGUMENT;
    }
    if code == abi::OK
        // SAFETY: as above.
        && let Some(host) = unsafe { host(ctx, "run_output") }
    {
        if let Some(of) = host.lock().ops.get_mut(&run) {
            of.output += usize::try_from(data.len).unwrap_or(0);
        }
        host.changed.notify_all();
    }
    code
}

pub(super) unsafe extern "C" fn secret_read(
    ctx: *mut c_void,
    run: abi::Op,
    name: abi::Str,
    buf: *mut c_void,
    cap: u64,
) -> i64 {
    // SAFETY: the plugin gives back the ctx of its table; the name is readable during this call.
    let (code, name) = unsafe {
        (
            service(ctx, run, "secret_read", abi::OK),
            wire::shown(name, MESSAGE_BYTES_MAX),
        )
    };
    if code != abi::OK {
        return i64::from(code);
    }
    if name != SECRET {
        return i64::from(abi::E_PERMISSION);
    }
    if buf.is_null() && cap > 0 {
        // SAFETY: the plugin gives back the ctx of its table.
        if let Some(host) = unsafe { host(ctx, "secret_read") } {
            let wrong = format!("secret_read was called with buf null and cap {cap}");
            host.lock().wrongs.push(wrong);
            host.changed.notify_all();
        }
        return i64::from(abi::E_INVALID_ARGUMENT);
    }
    let value = SECRET_VALUE.as_bytes();
    if value.len() as u64 <= cap {
        // SAFETY: the contract: cap bytes are writable there during this call.
        unsafe { std::ptr::copy_nonoverlapping(value.as_ptr(), buf.cast(), value.len()) };
    }
    i64::try_from(value.len()).unwrap_or(i64::MAX)
}

pub(super) unsafe extern "C" fn blob_fd(ctx: *mut c_void, run: abi::Op, _: abi::Str) -> i32 {
    // SAFETY: the plugin gives back the ctx of its table.
    unsafe { service(ctx, run, "blob_fd", abi::E_NOT_FOUND) }
}

pub(super) unsafe extern "C" fn blob_read(
    ctx: *mut c_void,
    run: abi::Op,
    _: abi::Str,
    _: u64,
    _: *mut c_void,
    _: u64,
) -> i64 {
    // SAFETY: the plugin gives back the ctx of its table.
    i64::from(unsafe { service(ctx, run, "blob_read", abi::E_NOT_FOUND) })
}

pub(super) unsafe extern "C" fn blob_create(ctx: *mut c_void, run: abi::Op, _: abi::Str) -> i64 {
    // SAFETY: the plugin gives back the ctx of its table.
    i64::from(unsafe { service(ctx, run, "blob_create", abi::E_EXHAUSTED) })
}

pub(super) unsafe extern "C" fn blob_write(
    ctx: *mut c_void,
    run: abi::Op,
    _: i64,
    _: abi::Bytes,
) -> i32 {
    // SAFETY: the plugin gives back the ctx of its table.
    unsafe { service(ctx, run, "blob_write", abi::E_STALE) }
}

pub(super) unsafe extern "C" fn blob_finish(
    ctx: *mut c_void,
    run: abi::Op,
    _: i64,
    _: i32,
    _: *mut u8,
    _: u64,
) -> i64 {
    // SAFETY: the plugin gives back the ctx of its table.
    i64::from(unsafe { service(ctx, run, "blob_finish", abi::E_STALE) })
}

pub(super) unsafe extern "C" fn gate_serve(ctx: *mut c_void, run: abi::Op, _: abi::Fd) -> i32 {
    // SAFETY: the plugin gives back the ctx of its table.
    unsafe { service(ctx, run, "gate_serve", abi::E_PERMISSION) }
}

//! What of this process only C can ask for.

use std::ffi::CStr;

/// What happens at a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Handler {
    pub(crate) signal: i32,
    pub(crate) action: usize,
    pub(crate) flags: i32,
}

/// For every signal.
pub(crate) fn signal_handlers() -> Vec<Handler> {
    let ask = |signal| {
        // SAFETY: an all-zero sigaction is a valid one.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: asks for the handler, sets none.
        let asked = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
        // The two that belong to the C library are refused.
        (asked == 0).then_some(Handler {
            signal,
            action: action.sa_sigaction,
            flags: action.sa_flags,
        })
    };
    (1..=64).filter_map(ask).collect()
}

/// The locale of the process, as C names it.
pub(crate) fn locale() -> String {
    // SAFETY: asks for the name, sets none.
    let name = unsafe { libc::setlocale(libc::LC_ALL, std::ptr::null()) };
    if name.is_null() {
        return String::new();
    }
    // SAFETY: not null: a NUL-terminated name, copied before anybody can change it.
    unsafe { CStr::from_ptr(name) }
        .to_string_lossy()
        .into_owned()
}

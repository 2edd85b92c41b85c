//! The saboteur as a store.
#![allow(unsafe_code, reason = "it misbehaves as only unsafe code can")]
#![allow(
    clippy::unwrap_used,
    reason = "what is wrong with the test is a crash, and the kit says so"
)]

mod saboteur;

/// What it offers.
const KIND: &std::ffi::CStr = c"skillgate.storage/1";

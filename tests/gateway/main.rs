//! The whole gateway: the real program with the real bundled plugins, driven over HTTP and looked at from outside.
//!
//! Each case starts its own gateway on a free port with everything it keeps in a temporary directory, prints the figures
//! that it saw (`cargo test --test gateway -- --nocapture`), and ends with nothing left behind. By default the counts are
//! small enough for every `cargo test`; `SKILLGATE_TEST_FULL=1` takes the full ones (see `README.md`). What is random has
//! a seed that is printed; `SKILLGATE_TEST_SEED` repeats it.

#![allow(clippy::unwrap_used, reason = "a test says what was wrong by failing")]
#![allow(
    clippy::print_stdout,
    reason = "the figures are what some of these are run for"
)]

#[path = "../support/mod.rs"]
mod support;

mod apart;
mod audit;
mod blobs;
mod caches;
mod commands;
mod crash;
mod damaged;
mod disk;
mod egress;
mod examples;
mod fairness;
mod files;
mod first;
mod floor;
mod inside;
mod installed;
mod jwt;
mod keys;
mod limits;
mod load;
mod log;
mod lost;
mod operator;
mod ordinary_user;
mod plugin_check;
mod plugin_new;
mod policy;
mod reload;
mod secrets;
mod signed;
mod stopping;
mod storm;
mod streams;
mod swap;
mod tunnels;
mod unread;
mod untrue;
mod versions;
mod waited;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Cases look at the clock and at memory: two at once would measure each other.
fn alone() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    // A case that failed says nothing about the next.
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The count for every day, or the full one.
fn count(every_day: u64, full: u64) -> u64 {
    if std::env::var_os("SKILLGATE_TEST_FULL").is_some_and(|value| value != "0") {
        full
    } else {
        every_day
    }
}

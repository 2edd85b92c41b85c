//! The sandbox through its trait: real launcher, real runs.
//!
//! As root every layer is on. Runs get their interpreters from a pool, where a check does not say otherwise; `everywhere`
//! runs the same binary again as an ordinary user and in the other ways.

#![allow(clippy::unwrap_used, reason = "a test says what was wrong by failing")]
#![allow(
    clippy::print_stdout,
    reason = "figures and tables for who asks with --nocapture"
)]

mod basics;
mod bombs;
mod burdens;
mod codes;
mod egress;
mod escapes;
mod everywhere;
mod furnished;
mod guards;
mod hostile;
mod in_time;
mod inside;
mod kept;
mod lifecycle;
mod many;
mod neighbours;
mod pace;
mod pool;
mod programs;
mod red_list;
mod support;
mod tenants;
#[path = "../../../../tests/support/tools.rs"]
mod tools;
mod zygote;

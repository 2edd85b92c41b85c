//! The sandbox through its trait: real launcher, real runs.
//!
//! As root every layer is on; `as_user` runs the same binary again as an ordinary user.

#![allow(clippy::unwrap_used, reason = "a test says what was wrong by failing")]
#![allow(
    clippy::print_stdout,
    reason = "figures and tables for who asks with --nocapture"
)]

mod basics;
mod bombs;
mod egress;
mod escapes;
mod guards;
mod hostile;
mod inside;
mod lifecycle;
mod many;
mod pool;
mod red_list;
mod support;
mod tenants;
mod zygote;

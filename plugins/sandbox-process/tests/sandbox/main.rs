//! The sandbox through its trait: real launcher, real runs.
//!
//! As root every layer is on; `as_user` runs the same binary again as an ordinary user.

#![allow(clippy::unwrap_used, reason = "a test says what was wrong by failing")]

mod basics;
mod egress;
mod hostile;
mod inside;
mod lifecycle;
mod pool;
mod red_list;
mod support;
mod zygote;

//! The C side of the kit, and all of its unsafe code: a host table that counts, requests at the edge of readable memory,
//! and what of this process only C can ask for.
//!
//! What is lent to a plugin is never freed: a case's process is short, and a plugin that keeps what it must not keep is
//! to be judged by what it says, not by what happens to be in that memory next. One case takes it back, for good.
#![allow(
    unsafe_code,
    reason = "it is a host: it calls C functions and is called by them"
)]

mod host;
mod instance;
mod place;
mod process;
mod tour;

pub(crate) use host::{End, HostShape};
pub(crate) use instance::{Called, Kind, Made, RawInstance, RawPlugin};
pub(crate) use place::{Room, Shape, keep, taking_back};
pub(crate) use process::{Handler, locale, signal_handlers};
pub(crate) use tour::{READ_BYTES, Values, run_code, tour};

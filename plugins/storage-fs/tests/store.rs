//! The whole store through its trait: one binary, so that it links once.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

#[path = "store/support.rs"]
mod support;

#[path = "store/anything.rs"]
mod anything;
#[path = "store/blobs.rs"]
mod blobs;
#[path = "store/child.rs"]
mod child;
#[path = "store/crash.rs"]
mod crash;
#[path = "store/damage.rs"]
mod damage;
#[path = "store/floor.rs"]
mod floor;
#[path = "store/ground.rs"]
mod ground;
#[path = "store/limits.rs"]
mod limits;
#[path = "store/order.rs"]
mod order;
#[path = "store/planted.rs"]
mod planted;
#[path = "store/power.rs"]
mod power;
#[path = "store/quota.rs"]
mod quota;
#[path = "store/shelf.rs"]
mod shelf;
#[path = "store/skills.rs"]
mod skills;
#[path = "../../../tests/support/tools.rs"]
mod tools;

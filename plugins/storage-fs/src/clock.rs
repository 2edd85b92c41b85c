//! What time it is, as a parameter: tests move it by hand.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// 2026-01-01. This store is no older, so a clock that says an earlier time has not been set since its machine was started.
/// The end of a blob that is reckoned from it is past as soon as it is set.
pub(crate) const SET_FROM_MS: u64 = 1_767_225_600_000;

/// Milliseconds since 1970.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

pub(crate) fn system() -> Clock {
    Arc::new(|| {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| {
                u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
            })
    })
}

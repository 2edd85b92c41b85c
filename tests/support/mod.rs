//! For tests and benches of the whole gateway: start it, speak to it, look at its processes.

#![allow(dead_code, reason = "each of the programs that share this uses a part")]

pub(crate) mod cargo;
pub(crate) mod gateway;
pub(crate) mod http;
pub(crate) mod look;
pub(crate) mod random;
pub(crate) mod tools;

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

pub(crate) const MIB: u64 = 1 << 20;

/// Waits until something is so and says how long that took; fails with what it was.
pub(crate) fn eventually(what: &str, limit: Duration, mut so: impl FnMut() -> bool) -> Duration {
    let began = Instant::now();
    while !so() {
        assert!(began.elapsed() < limit, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
    began.elapsed()
}

/// A program that heeds signals, though whoever runs the tests may have them ignored: what a shell starts in the background has
/// SIGINT ignored, and what `nohup` starts SIGHUP.
pub(crate) fn heeding(program: &str) -> Command {
    let mut command = Command::new("env");
    command.arg("--default-signal").arg(program);
    command
}

/// The end for writing of a named pipe, as soon as somebody has the other one: a plain open waits for that, and for ever
/// where nobody comes.
pub(crate) fn writing_end(pipe: &Path, limit: Duration) -> File {
    let mut end = Err(Errno::NXIO);
    eventually("somebody reads the pipe", limit, || {
        end = rustix::fs::open(pipe, OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty());
        !matches!(end, Err(Errno::NXIO))
    });
    end.unwrap().into()
}

/// Sets a flag when it goes, also with a check that fails: threads that go on until it is set end, and with them their scope.
pub(crate) struct Over<'a>(pub(crate) &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The value below which a share of the (sorted) values lies.
pub(crate) fn quantile(sorted: &[f64], share: f64) -> f64 {
    let at = ((sorted.len() as f64 * share) as usize).min(sorted.len().saturating_sub(1));
    sorted.get(at).copied().unwrap_or(0.0)
}

/// The middle one.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    quantile(&sorted, 0.5)
}

//! A command that makes instances of plugins, and directories for them, ends in order where a signal ends it: what it was given
//! and what it has made is somebody's data, and must not stay behind in a temporary directory.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use super::AppError;
use crate::telemetry;

/// SIGHUP (its terminal is gone), SIGINT and SIGTERM, which from when this is made are no end of the process any more. Those that
/// it was started to ignore, as `nohup` does it, stay ignored.
#[derive(Debug)]
pub(crate) struct EndSignals([Option<Signal>; 3]);

impl EndSignals {
    /// Must be called within a runtime.
    pub(crate) fn new() -> io::Result<Self> {
        let status = std::fs::read_to_string("/proc/self/status")?;
        let on = |kind: SignalKind| match is_ignored(&status, kind) {
            true => Ok(None),
            false => signal(kind).map(Some),
        };
        Ok(EndSignals([
            on(SignalKind::hangup())?,
            on(SignalKind::interrupt())?,
            on(SignalKind::terminate())?,
        ]))
    }

    /// Waits for one: the exit code of a process that it ends, as a shell says it.
    pub(crate) async fn next(&mut self) -> u8 {
        let [hangup, interrupt, terminate] = &mut self.0;
        tokio::select! {
            () = come(hangup) => 129,
            () = come(interrupt) => 130,
            () = come(terminate) => 143,
        }
    }
}

async fn come(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// By the mask in /proc/PID/status (proc(5)). One that is not there ignores nothing.
fn is_ignored(status: &str, kind: SignalKind) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.unwrap_or(0) & (1 << (kind.as_raw_value() - 1)) != 0
}

/// From when this is made such a signal is no end of the process, but of the work that looks for it. A second one is: who sends
/// it does not want to wait. So is one that comes when this is gone.
#[derive(Debug)]
pub(super) struct Signals(watch::Receiver<Option<u8>>);

impl Signals {
    /// On a thread of its own, for as long as the process lives: there is no way back from a signal's handler to its default. Not
    /// to be called within a runtime.
    pub(super) fn new() -> Result<Self, AppError> {
        let why = "cannot wait for signals";
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()
            .map_err(AppError::io(why))?;
        let mut signals = {
            let _here = runtime.enter();
            EndSignals::new().map_err(AppError::io(why))?
        };
        let (tell, came) = watch::channel(None);
        let wait = move || loop {
            let exit_code = runtime.block_on(signals.next());
            if tell.is_closed() || tell.borrow().is_some() {
                telemetry::flush();
                std::process::exit(exit_code.into());
            }
            tell.send_replace(Some(exit_code));
        };
        let thread = std::thread::Builder::new().name("signals".into());
        thread.spawn(wait).map_err(AppError::io(why))?;
        Ok(Signals(came))
    }

    /// What is to be done, or no more of it once one has come.
    pub(super) async fn unless_ended<T>(
        &mut self,
        work: impl Future<Output = Result<T, AppError>>,
    ) -> Result<T, AppError> {
        tokio::select! {
            biased;
            ended = self.ended() => Err(ended),
            outcome = work => outcome,
        }
    }

    /// # Errors
    /// [`AppError::Ended`] where one has come.
    pub(super) fn check(&self) -> Result<(), AppError> {
        let exit_code = *self.0.borrow();
        exit_code.map_or(Ok(()), |exit_code| Err(AppError::Ended { exit_code }))
    }

    async fn ended(&mut self) -> AppError {
        let came = self.0.wait_for(Option::is_some).await;
        match came.ok().and_then(|came| *came) {
            Some(exit_code) => AppError::Ended { exit_code },
            // Nobody is left who could say so.
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ignored_from_the_start_is_seen() {
        let (hangup, terminate) = (SignalKind::hangup(), SignalKind::terminate());
        let nohup =
            "SigBlk:\tffffffffffffffff\nSigIgn:\t0000000000001001\nSigCgt:\tffffffffffffffff\n";
        assert!(is_ignored(nohup, hangup) && !is_ignored(nohup, terminate));
        assert!(!is_ignored("", hangup));
    }
}

//! A command that makes instances of plugins, and directories for them, ends in order where a signal ends it: what it was given
//! and what it has made is somebody's data, and must not stay behind in a temporary directory.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use super::AppError;
use crate::telemetry;

/// From when this is made SIGINT and SIGTERM are no end of the process, but of the work that looks for them. A second one is: who
/// sends it does not want to wait. So is one that comes when this is gone.
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
        let on = |kind| signal(kind).map_err(AppError::io(why));
        let mut both = {
            let _here = runtime.enter();
            (on(SignalKind::interrupt())?, on(SignalKind::terminate())?)
        };
        let (tell, came) = watch::channel(None);
        let wait = move || loop {
            let exit_code = runtime.block_on(next(&mut both));
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

/// As a shell says it.
async fn next((interrupt, terminate): &mut (Signal, Signal)) -> u8 {
    tokio::select! {
        _ = interrupt.recv() => 130,
        _ = terminate.recv() => 143,
    }
}

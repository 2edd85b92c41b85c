//! A command that is ended by a signal, and has something to clear away first.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use super::Exit;
use crate::app::EndSignals;

/// From when it is made SIGHUP, SIGINT and SIGTERM are no end of this process, but of what looks at `pipe`. A second one is: who
/// sends it does not want to wait.
#[derive(Debug)]
pub(super) struct Ended {
    /// Its other end is closed by the first signal.
    pub(super) pipe: Arc<OwnedFd>,
    came: Arc<OnceLock<Exit>>,
}

impl Ended {
    pub(super) fn by_signals() -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()?;
        let mut signals = {
            let _here = runtime.enter();
            EndSignals::new()?
        };
        let (pipe, end) = io::pipe()?;
        let came = Arc::<OnceLock<Exit>>::default();
        let tell = Arc::clone(&came);
        let thread = std::thread::Builder::new().name("signals".into());
        thread.spawn(move || {
            let first = runtime.block_on(signals.next());
            tell.get_or_init(|| Exit::by_signal(first));
            drop(end);
            let second = runtime.block_on(signals.next());
            std::process::exit(second.into());
        })?;
        Ok(Ended {
            pipe: Arc::new(pipe.into()),
            came,
        })
    }

    /// As the signal that came has it.
    pub(super) fn exit(&self) -> Option<Exit> {
        self.came.get().copied()
    }
}

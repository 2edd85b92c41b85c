//! The listener, which goes on when it fails.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

/// How long to leave the listener alone when the process has no descriptor left.
const PAUSE: Duration = Duration::from_millis(100);
/// As many as the kernel keeps of those that have connected and were not accepted yet: what tokio asks for.
const BACKLOG: usize = 1024;
/// While something goes on that may happen any number of times, after what time the log says it again.
const SAID_AGAIN: Duration = Duration::from_secs(10);

/// What may happen any number of times: the log has it now and then, lest it drive out what it comes from.
#[derive(Debug, Default)]
pub(super) struct Often {
    /// Since it was said.
    times: u64,
    said: Option<Instant>,
}

impl Often {
    /// It has happened once more. When it is time to say so: how often since it was said.
    pub(super) fn once_more(&mut self) -> Option<u64> {
        self.times += 1;
        let is_time = self.said.is_none_or(|said| said.elapsed() >= SAID_AGAIN);
        is_time.then(|| {
            self.said = Some(Instant::now());
            std::mem::take(&mut self.times)
        })
    }
}

/// Accepts connections.
#[derive(Debug)]
pub(super) struct Accepting {
    listener: TcpListener,
    failures: Often,
    /// So many more of those that wait at its end.
    left: usize,
}

impl Accepting {
    pub(super) fn new(listener: TcpListener) -> Self {
        Accepting {
            listener,
            failures: Often::default(),
            left: BACKLOG,
        }
    }

    /// The next one, whenever it comes. May be given up: no connection is lost by that.
    pub(super) async fn next(&mut self) -> (TcpStream, SocketAddr) {
        loop {
            let error = match self.listener.accept().await {
                Ok(accepted) => return accepted,
                Err(error) => error,
            };
            // EMFILE and its like pass. A loop that spins on them would take a core with it.
            if let Some(failed) = self.failures.once_more() {
                tracing::warn!(%error, failed, "cannot accept a connection");
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// One that has connected already: those that are left when the listener goes are reset by the kernel, and some have sent a
    /// request by then. `None`, too, after as many as could wait: whoever goes on connecting does not put off the end.
    pub(super) async fn waiting(&mut self) -> Option<(TcpStream, SocketAddr)> {
        self.left = self.left.checked_sub(1)?;
        let accepted = tokio::time::timeout(Duration::ZERO, self.listener.accept()).await;
        accepted.ok()?.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use rustix::net::{Shutdown, shutdown};

    use crate::telemetry::logged::Log;

    #[tokio::test(start_paused = true)]
    async fn a_listener_that_fails_is_said_now_and_then() {
        let (log, _here) = Log::begin();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        // From now on it fails, as without descriptors.
        shutdown(&listener, Shutdown::Read).unwrap();
        let mut listener = Accepting::new(listener);
        let minute = async {
            for _ in 0..600 {
                tokio::time::sleep(PAUSE).await;
            }
        };
        tokio::select! {
            _ = listener.next() => panic!("accepted"),
            () = minute => {}
        }
        let log = log.taken();
        let said: Vec<_> = log.lines().collect();
        assert!((5..=7).contains(&said.len()), "{} lines", said.len());
        assert!(said[1].contains("failed=100"), "{}", said[1]);
    }
}

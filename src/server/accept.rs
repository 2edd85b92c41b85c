//! The listener, which goes on when it fails.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

/// How long to leave the listener alone when the process has no descriptor left.
const PAUSE: Duration = Duration::from_millis(100);
/// While that lasts, after what time the log says it again.
const SAID_AGAIN: Duration = Duration::from_secs(10);

/// Accepts connections.
#[derive(Debug)]
pub(super) struct Accepting {
    listener: TcpListener,
    /// How often it has failed since that was said.
    failed: u64,
    said: Option<Instant>,
}

impl Accepting {
    pub(super) fn new(listener: TcpListener) -> Self {
        Accepting {
            listener,
            failed: 0,
            said: None,
        }
    }

    /// The next one, whenever it comes. May be given up: no connection is lost by that.
    pub(super) async fn next(&mut self) -> (TcpStream, SocketAddr) {
        loop {
            let error = match self.listener.accept().await {
                Ok(accepted) => return accepted,
                Err(error) => error,
            };
            // EMFILE and its like pass. A loop that spins on them would take a core with it, and one that says so each time would
            // drive out of the log what has the descriptors.
            self.failed += 1;
            if self.said.is_none_or(|said| said.elapsed() >= SAID_AGAIN) {
                let failed = std::mem::take(&mut self.failed);
                tracing::warn!(%error, failed, "cannot accept a connection");
                self.said = Some(Instant::now());
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use rustix::net::{Shutdown, shutdown};

    /// What is logged.
    #[derive(Debug, Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(line)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_listener_that_fails_is_said_now_and_then() {
        let log = Log::default();
        let lines = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || lines.clone());
        let _here = tracing::subscriber::set_default(subscriber.finish());
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
        let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        let said: Vec<_> = log.lines().collect();
        assert!((5..=7).contains(&said.len()), "{} lines", said.len());
        assert!(said[1].contains("failed=100"), "{}", said[1]);
    }
}

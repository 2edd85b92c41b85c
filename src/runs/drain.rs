//! The end of all runs when the gateway stops: it waits for those that go on, and then has them end.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::server::WORDS_TIMEOUT;

/// How long runs that are to end may take to be on record. Some hang until they are dropped: those of connections when these are cut
/// off ([`WORDS_TIMEOUT`]), those without a caller after [`OVER_TIMEOUT`].
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a run without a caller may take to end by itself when it is to.
const OVER_TIMEOUT: Duration = WORDS_TIMEOUT;

/// Where each run that goes on is known. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct Drain(watch::Sender<bool>);

/// One that goes on, until this is dropped.
#[derive(Debug, Clone)]
pub(super) struct Going(watch::Receiver<bool>);

impl Drain {
    pub(super) fn enter(&self) -> Going {
        Going(self.0.subscribe())
    }

    /// Comes back when none goes on. At `until` they are told to end, and get no more than [`END_TIMEOUT`] for it.
    pub(super) async fn wait(&self, until: Instant) {
        if timeout_at(until, self.0.closed()).await.is_ok() {
            return;
        }
        tracing::warn!("runs still went on when the drain timeout ended: they are ended");
        self.0.send_replace(true);
        if timeout(END_TIMEOUT, self.0.closed()).await.is_err() {
            tracing::warn!("runs that were told to end have not ended");
        }
    }
}

impl Going {
    /// Resolves when it is to end.
    pub(super) async fn over(&mut self) {
        if self.0.wait_for(|over| *over).await.is_err() {
            // Nobody is left who could say so.
            std::future::pending::<()>().await;
        }
    }

    /// Resolves when it has had its time to end, and is to be dropped.
    pub(super) async fn long_over(&mut self) {
        self.over().await;
        sleep(OVER_TIMEOUT).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn later(ms: u64) -> Instant {
        Instant::now() + Duration::from_millis(ms)
    }

    #[tokio::test(start_paused = true)]
    async fn it_takes_no_longer_than_the_runs_or_the_time_that_they_have() {
        let drain = Drain::default();
        let began = Instant::now();
        drain.wait(later(500)).await;
        assert_eq!(began.elapsed(), Duration::ZERO, "there was none");

        // One ends by itself.
        let going = drain.enter();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(200)).await;
            drop(going);
        });
        drain.wait(later(500)).await;
        assert_eq!(began.elapsed().as_millis(), 200);

        // One ends when it is told to.
        let mut going = drain.enter();
        let ended = tokio::spawn(async move { going.over().await });
        drain.wait(later(500)).await;
        assert_eq!(began.elapsed().as_millis(), 700);
        assert!(ended.is_finished());

        // One does not.
        let _going = drain.enter();
        drain.wait(later(500)).await;
        assert_eq!(began.elapsed(), Duration::from_millis(1200) + END_TIMEOUT);
    }
}

//! The end of all connections when the gateway stops: what is asked may be answered until the drain timeout, and what has no
//! answer then is told that it gets none.

use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

/// How long connections that are cut off may take to be gone: each ends where it waits next.
const CUT_TIMEOUT: Duration = Duration::from_secs(1);

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Serves,
    Drains,
    Cuts,
}

/// Tells all connections.
#[derive(Debug)]
pub(super) struct Drain(watch::Sender<Phase>);

/// One connection hears of it here until it has ended, and so does each request, in whose extensions this is.
#[derive(Debug, Clone)]
pub struct Ends(watch::Receiver<Phase>);

impl Drain {
    pub(super) fn new() -> Self {
        Drain(watch::channel(Phase::Serves).0)
    }

    pub(super) fn enter(&self) -> Ends {
        Ends(self.0.subscribe())
    }

    pub(super) fn begin(&self) {
        self.0.send_replace(Phase::Drains);
    }

    /// Comes back when no connection is left, or at `until`.
    pub(super) async fn wait(self, until: Instant, connections: JoinSet<()>) -> Left {
        // Who only stays for the rest of a request that has been answered is not waited for.
        if timeout_at(until, self.0.closed()).await.is_err() {
            tracing::warn!(
                "requests were still in flight when the drain timeout ended: they are cut off"
            );
        }
        Left {
            until,
            phase: self.0,
            connections,
        }
    }
}

impl Ends {
    /// Resolves when the drain begins.
    pub(super) async fn drains(&mut self) {
        self.reaches(Phase::Drains).await;
    }

    /// Resolves when a request that has no answer yet gets none any more, but for words of the gateway that say so.
    pub async fn cuts(&mut self) {
        self.reaches(Phase::Cuts).await;
    }

    async fn reaches(&mut self, phase: Phase) {
        if self.0.wait_for(|now| *now >= phase).await.is_err() {
            // Nobody is left who could say so.
            std::future::pending::<()>().await;
        }
    }
}

/// What a drain has left over.
#[derive(Debug)]
#[must_use = "connections that are left have to be cut off"]
pub struct Left {
    until: Instant,
    phase: watch::Sender<Phase>,
    connections: JoinSet<()>,
}

impl Left {
    /// Until when what else is under way may go on: the drain timeout's end, whether or not it was needed.
    pub fn until(&self) -> Instant {
        self.until
    }

    /// Cuts off what is left. Those who wait for something that ends at this moment too, a run above all, get their answer
    /// within `words`; the others are told in as much time again that there will be none.
    pub async fn cut_off(mut self, words: Duration) {
        if timeout(words, self.phase.closed()).await.is_err() {
            self.phase.send_replace(Phase::Cuts);
            let _told = timeout(words, self.phase.closed()).await;
        }
        // Each request that is left is dropped with what it waits for: its run ends as if the caller had gone away. So is what
        // only stays for the rest of a request that has been answered.
        let gone = timeout(CUT_TIMEOUT, self.connections.shutdown()).await;
        if gone.is_err() {
            tracing::warn!("connections that are cut off do not end");
        }
    }
}

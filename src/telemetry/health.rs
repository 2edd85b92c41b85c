//! Whether each part of the gateway can do its work.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use tokio::sync::Mutex;
use tokio::time::Instant;

/// How old an answer may be: whoever asks often does not make the parts work often.
const FRESH: Duration = Duration::from_secs(1);
/// A part that takes longer to say how it is, is not well.
const PATIENCE: Duration = Duration::from_secs(2);

/// Asks one part.
pub type Check = Arc<dyn Fn() -> BoxFuture<'static, State> + Send + Sync>;

/// How a part is, in its words, which are the operator's to read and nobody else's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// It does its work.
    Well(String),
    /// It does its work, and something should be done about it.
    Impaired(String),
    /// It does not do its work: the gateway is not ready.
    Failed(String),
}

/// One part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Its name.
    pub name: &'static str,
    /// How it is.
    pub state: State,
}

impl Part {
    /// The gateway is not ready because of it.
    pub fn failed(&self) -> bool {
        matches!(self.state, State::Failed(_))
    }
}

/// The parts that must be well for the gateway to be ready. Cheap to clone.
#[derive(Clone)]
pub struct Health(Arc<Inner>);

struct Inner {
    checks: Vec<(&'static str, Check)>,
    last: Mutex<Option<(Instant, Arc<[Part]>)>>,
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.0.checks.iter().map(|(name, _)| name);
        f.debug_list().entries(names).finish()
    }
}

impl Health {
    /// Of these parts, shown in this order.
    pub fn new(checks: Vec<(&'static str, Check)>) -> Self {
        Health(Arc::new(Inner {
            checks,
            last: Mutex::default(),
        }))
    }

    /// The same and one part more, shown last.
    #[must_use]
    pub fn and(&self, name: &'static str, check: Check) -> Self {
        let mut checks = self.0.checks.clone();
        checks.push((name, check));
        Health::new(checks)
    }

    /// How all of them are, now or less than a second ago.
    pub async fn report(&self) -> Arc<[Part]> {
        let this = self.clone();
        // A task of its own: whoever asks and goes away again has asked once all the same.
        let asked = tokio::spawn(async move { this.ask().await });
        asked.await.unwrap_or_else(|_| {
            let state = State::Failed("a check ended without an answer".into());
            Arc::new([Part {
                name: "health",
                state,
            }])
        })
    }

    async fn ask(&self) -> Arc<[Part]> {
        // Whoever comes while they are asked waits for the same answer.
        let mut last = self.0.last.lock().await;
        if let Some((when, parts)) = &*last
            && when.elapsed() < FRESH
        {
            return parts.clone();
        }
        let asked = self.0.checks.iter().map(|(name, check)| async move {
            let state = tokio::time::timeout(PATIENCE, check())
                .await
                .unwrap_or_else(|_| {
                    State::Failed(format!("no answer in {} s", PATIENCE.as_secs()))
                });
            Part { name, state }
        });
        let parts: Arc<[Part]> = join_all(asked).await.into();
        *last = Some((Instant::now(), parts.clone()));
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::{FRESH, Health, State};
    use futures_util::FutureExt;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[tokio::test(start_paused = true)]
    async fn parts_are_asked_at_most_once_a_second_and_not_forever() {
        let asked = Arc::new(AtomicUsize::new(0));
        let counter = asked.clone();
        let health = Health::new(vec![
            (
                "good",
                Arc::new(move || {
                    let number = counter.fetch_add(1, Ordering::Relaxed);
                    std::future::ready(State::Well(format!("asked {number}"))).boxed()
                }),
            ),
            ("silent", Arc::new(|| std::future::pending().boxed())),
        ]);
        let first = health.report().await;
        assert_eq!(first[0].state, State::Well("asked 0".into()));
        assert_eq!(first[1].state, State::Failed("no answer in 2 s".into()));
        health.report().await;
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        tokio::time::advance(FRESH).await;
        health.report().await;
        assert_eq!(asked.load(Ordering::Relaxed), 2);
    }
}

//! What runs that go on lose when there are new rules.

use std::collections::HashMap;
use std::hash::Hash;

use futures_util::{StreamExt as _, stream};

use super::Runs;
use crate::gate::Regrant;
use crate::policy::Permit;

/// So many are decided at once: calls wait for the log and for a second opinion behind them.
const AT_ONCE_MAX: usize = 16;

impl Runs {
    /// After new rules, of this `generation`, have been put in force: takes from runs that go on what they would not be granted
    /// any more. What a permit of the rules before is worth now, `decide` says.
    pub(crate) async fn recheck<D, F>(&self, generation: u64, decide: D)
    where
        D: Fn(Permit) -> F,
        F: Future<Output = Regrant>,
    {
        let earlier = self.permits.before(generation).into_iter();
        let decided = earlier.map(|(run_id, permit)| {
            let decided = decide(permit);
            async { (run_id, decided.await) }
        });
        // Every other run has been decided by the new rules, or has ended.
        as_decided(decided, |granted| {
            self.gate
                .recheck(|grant| granted.get(&grant.run_id).cloned());
        })
        .await;
    }
}

/// Decides many at once, and takes what is decided as soon as it is: a decision waits for its record, which on a disk that hangs
/// takes as long as the log waits, and no run keeps for that long what another one waits for.
async fn as_decided<K: Eq + Hash, V>(
    all: impl Iterator<Item = impl Future<Output = (K, V)>>,
    mut take: impl FnMut(HashMap<K, V>),
) {
    let decided = stream::iter(all).buffer_unordered(AT_ONCE_MAX);
    // Each look at the grants is one at all of them.
    let mut decided = std::pin::pin!(decided.ready_chunks(AT_ONCE_MAX));
    while let Some(some) = decided.next().await {
        take(some.into_iter().collect());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::{Instant, sleep};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_that_waits_holds_up_no_other() {
        let began = Instant::now();
        let seconds = [10, 0, 10, 10, 0];
        let decided = seconds.iter().enumerate().map(async |(n, &s)| {
            sleep(Duration::from_secs(s)).await;
            (n, s)
        });
        let mut taken = Vec::new();
        as_decided(decided, |some| {
            let mut some: Vec<_> = some.into_iter().collect();
            some.sort_unstable();
            taken.extend(
                some.iter()
                    .map(|(n, s)| (*n, *s, began.elapsed().as_secs())),
            );
        })
        .await;
        taken.sort_unstable();
        assert_eq!(
            taken,
            [(0, 10, 10), (1, 0, 0), (2, 10, 10), (3, 10, 10), (4, 0, 0)]
        );
    }
}

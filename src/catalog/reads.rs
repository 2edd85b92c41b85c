//! Threads that read what a store has given as a descriptor. A disk or a server may be behind it, and a read that hangs ends with
//! no caller who goes away: the gateway has so many threads for all that waits in it, and such reads have so many of them.

use std::sync::Arc;

use tokio::task::{JoinError, spawn_blocking};

use crate::slots::Slots;

/// Files, directories and archives that are read at the same time. The shelf has as many as the store, each its own: what hangs
/// of the one holds up nothing of the other.
const READS_MAX: usize = 12;

/// Divided between tenants: the part of one alone may be what hangs.
#[derive(Debug)]
pub(super) struct Reads(Arc<Slots>);

impl Default for Reads {
    fn default() -> Self {
        Reads(Slots::new(READS_MAX))
    }
}

impl Reads {
    /// Reads in this tenant's turn. The turn is the thread's and not that of who waits for it, who may have gone long before.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        tenant: &str,
        read: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        let turn = self.0.wait(tenant).await;
        spawn_blocking(move || {
            let _turn = turn;
            read()
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn reads_that_hang_and_that_nobody_waits_for_take_no_more_threads() {
        let reads = Reads::default();
        let (begins, begun) = channel();
        let (go, hangs) = channel::<()>();
        let hangs = Arc::new(std::sync::Mutex::new(hangs));
        for _ in 0..10 * READS_MAX {
            let (begins, hangs) = (begins.clone(), hangs.clone());
            let read = reads.read("loud", move || {
                begins.send(()).unwrap();
                hangs.lock().unwrap().recv().unwrap_err();
            });
            assert!(read.now_or_never().is_none(), "it hangs");
        }
        drop(begins);
        // Others have theirs meanwhile.
        assert_eq!(reads.read("quiet", || "read").await.unwrap(), "read");
        assert_eq!(reads.0.free(), READS_MAX / 4);
        drop(go);
        assert_eq!(begun.iter().count(), READS_MAX * 3 / 4);
        let mut all = Vec::new();
        while all.len() < READS_MAX {
            all.push(reads.0.wait(&all.len().to_string()).await);
        }
    }
}

//! How a store changes hands, and how one that is lost comes back.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use skillgate_plugin_host::{Counted as _, Current, StorageInstance};
use tokio::runtime::Handle;

use super::late::in_time;
use super::{Ends as _, Inner, Loaded, Plugins, lock, nothing, storage, watched, well};
use crate::app::plugins::Role;
use crate::catalog::Catalog;
use crate::config::Config;
use crate::reload::{Install, Part};

/// How long calls of a store wait for those under way to end before the exchange is given up.
const HANDOVER_PATIENCE: Duration = Duration::from_secs(5);
/// How long the store before is made again and again when it does not come back at once, and how often. Longer than whatever
/// has it may take to end.
const COMEBACK_PATIENCE: Duration = Duration::from_secs(30);
const COMEBACK_AGAIN: Duration = Duration::from_millis(250);

/// The plugin that stores.
pub(in crate::app) struct OfStorage {
    pub(super) plugins: Plugins,
    pub(super) handle: Handle,
    pub(super) catalog: Catalog,
}

impl Part for OfStorage {
    fn name(&self) -> &'static str {
        "plugins.storage"
    }

    /// Everything: calls wait until then (see the top of `swap.rs`), and must not for what others have to do before the reload is
    /// in place, such as a sync of a disk. Nothing can refuse the reload any more.
    fn prepare(&self, config: &Config) -> Result<Install, String> {
        let Plugins(inner) = &self.plugins;
        let before = lock(&inner.loaded_storage).clone();
        // One that is lost comes back by itself (`recover`), and is no reason to refuse what has changed elsewhere.
        if before.is_as(config, Role::Storage)? {
            return Ok(nothing());
        }
        let next = before.next(config, Role::Storage);
        let loaded = next.map_err(|error| error.to_string())?;
        let outcome = self.handle.block_on(hand_over(inner, &before, &loaded));
        // Also where the old one was made once more: it may have lost what was read from it.
        self.catalog.forget();
        let instance = outcome?;
        *lock(&inner.loaded_storage) = loaded;
        inner.storage.replace(instance);
        Ok(Install::new(|| {
            tracing::info!(
                part = "plugins.storage",
                "the new plugin has the store; the old one has ended"
            );
        }))
    }

    fn is_lost(&self) -> bool {
        self.plugins.0.storage.gone().is_some()
    }

    fn recover(&self) -> Result<(), String> {
        let Plugins(inner) = &self.plugins;
        let before = lock(&inner.loaded_storage).clone();
        let again = self.handle.block_on(inner.make_store(&before))?;
        self.catalog.forget();
        inner.storage.replace(again);
        Ok(())
    }

    fn watched(config: &Config) -> Vec<PathBuf> {
        watched(config, Role::Storage)
    }
}

/// Ends the old instance and makes the new one while calls wait. After an error they go on, with the old plugin.
async fn hand_over(
    inner: &Inner,
    before: &Loaded,
    next: &Loaded,
) -> Result<Arc<StorageInstance>, String> {
    let waiting = Waiting(&inner.storage);
    // Where there is none calls do not wait: they have been refused until now, and are until there is one.
    let is_there = inner.storage.gone().is_none();
    if is_there && let Some(old) = inner.storage.take() {
        let unused = tokio::time::timeout(HANDOVER_PATIENCE, old.unused()).await;
        if unused.is_ok() {
            inner.leave(old).await;
        } else if old.is_deserted() {
            tracing::warn!(
                calls = old.counts().in_flight(),
                "the old store's process is ended: only calls that nobody waits for go on in it"
            );
            inner.leaves(&old);
            old.end_process();
        } else {
            inner.storage.replace(old);
            waiting.over();
            return Err(format!(
                "calls of the store have gone on for {} s (a slow upload or download?): reload again later",
                HANDOVER_PATIENCE.as_secs()
            ));
        }
    }
    inner.has_left(COMEBACK_PATIENCE).await?;
    let why = match inner.make_store(next).await {
        Ok(made) => {
            waiting.over();
            return Ok(made);
        }
        Err(why) => why,
    };
    match until_back(async || inner.make_store(before).await).await {
        Ok(again) => {
            inner.storage.replace(again);
            waiting.over();
            Err(why)
        }
        Err(worse) => Err(format!("{why}; and the one before: {worse}")),
    }
}

impl Inner {
    /// Makes a store where there is none, if the one before has left.
    async fn make_store(&self, loaded: &Loaded) -> Result<Arc<StorageInstance>, String> {
        self.has_left(COMEBACK_AGAIN).await?;
        let (of, state) = (loaded.clone(), self.state.clone());
        let making = async move { storage(&of.plugin, "store", &state, &of.section.config).await };
        let made = in_time(making, loaded.create_max).await.map_err(|not| {
            if let Some(ending) = not.ending {
                *lock(&self.leaving) = Some(ending);
            }
            not.why
        })?;
        match well(made.health()).await {
            Ok(()) => Ok(made),
            Err(why) => {
                // It may have the store, which the next one needs.
                self.leave(made).await;
                Err(why)
            }
        }
    }

    /// Has a store end, in the time that a plugin has for that.
    async fn leave(&self, store: Arc<StorageInstance>) {
        self.leaves(&store);
        store.end().await;
    }

    /// From now on no store is made before this one has ended.
    fn leaves(&self, store: &StorageInstance) {
        let mut destroyed = store.destroyed();
        let ending = async move { destroyed.wait().await }.boxed().shared();
        *lock(&self.leaving) = Some(ending);
    }

    /// Waits until no store before this one has the data, those included that an exchange before could not wait for.
    async fn has_left(&self, patience: Duration) -> Result<(), String> {
        let leaving = lock(&self.leaving).clone();
        let Some(leaving) = leaving else {
            return Ok(());
        };
        if leaving.clone().now_or_never().is_none() {
            tracing::warn!("the store before has not ended yet: no other one is made");
        }
        let left = tokio::time::timeout(patience, leaving).await;
        left.map_err(|_| {
            "the store before has not ended, and two must not have its data: it ends by itself, or with the gateway"
        })?;
        *lock(&self.leaving) = None;
        Ok(())
    }
}

/// Tries again for [`COMEBACK_PATIENCE`]: what had the store last may be slow to let it go, on a disk that is slow itself.
async fn until_back<T>(make: impl AsyncFn() -> Result<T, String>) -> Result<T, String> {
    let until = tokio::time::Instant::now() + COMEBACK_PATIENCE;
    loop {
        match make().await {
            Err(_) if tokio::time::Instant::now() < until => {
                tokio::time::sleep(COMEBACK_AGAIN).await;
            }
            made => return made,
        }
    }
}

/// Calls wait. Dropped before that is over, they are refused: better than for ever.
struct Waiting<'a>(&'a Current<StorageInstance>);

impl Waiting<'_> {
    fn over(self) {
        std::mem::forget(self);
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0
            .give_up("the store could not be exchanged, and the one before did not come back");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_store_before_has_some_time_to_come_back() {
        let tries = AtomicU32::new(0);
        let made = until_back(async || match tries.fetch_add(1, Ordering::Relaxed) {
            0..5 => Err("it is in use".to_owned()),
            _ => Ok("back"),
        });
        assert_eq!(made.await, Ok("back"));
        let began = tokio::time::Instant::now();
        let never = until_back(async || Err::<(), _>("it is in use".to_owned()));
        assert_eq!(never.await, Err("it is in use".to_owned()));
        assert!(began.elapsed() >= COMEBACK_PATIENCE);
    }
}

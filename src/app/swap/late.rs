//! Instances that come too late, or that nobody takes: they are ended, and until they have, what is theirs is nobody else's.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use skillgate_plugin_host::{SandboxInstance, StorageInstance};
use tokio::runtime::Handle;

use super::seats::Seat;
use super::{AppError, Plugins, Whose, end, well};

/// The end of an instance. It comes whether or not somebody waits for it.
pub(super) type Ending = Shared<BoxFuture<'static, ()>>;

pub(in crate::app) trait Ends: Send + Sync + 'static {
    /// Ends it, and waits for that as long as a plugin has for it: whether it has.
    fn end(self: Arc<Self>) -> BoxFuture<'static, bool>;
    /// Ends it, and waits for that as long as it takes.
    fn ended(self: Arc<Self>) -> BoxFuture<'static, ()>;
}

macro_rules! ends {
    ($($instance:ty: $role:literal)+) => { $(
        impl Ends for $instance {
            fn end(self: Arc<Self>) -> BoxFuture<'static, bool> {
                let whose = Whose {
                    role: $role,
                    plugin: self.plugin().to_owned(),
                    instance: self.name().to_owned(),
                };
                async move { end(whose, self.shutdown()).await }.boxed()
            }
            fn ended(self: Arc<Self>) -> BoxFuture<'static, ()> {
                let mut destroyed = self.destroyed();
                async move {
                    if !self.end().await {
                        destroyed.wait().await;
                    }
                }
                .boxed()
            }
        }
    )+ };
}
ends!(SandboxInstance: "sandbox" StorageInstance: "storage");

/// Why there is no instance, and the end of what may come of it still.
pub(super) struct NotMade {
    pub(super) why: String,
    pub(super) ending: Option<Ending>,
}

/// Waits for an instance, and no longer than `limit`: `create` of a plugin in this process may wait for a disk that never
/// answers, and so may the end of what it has made and is no good.
pub(super) async fn in_time<I: Ends>(
    making: impl Future<Output = Result<Arc<I>, AppError>> + Send + 'static,
    limit: Duration,
) -> Result<Arc<I>, NotMade> {
    let not_made = |why: String| NotMade { why, ending: None };
    let mut making = tokio::spawn(making);
    if let Ok(made) = tokio::time::timeout(limit, &mut making).await {
        let made = made.map_err(|error| not_made(error.to_string()))?;
        return made.map_err(|error| not_made(error.to_string()));
    }
    let why = format!(
        "its create() goes on for longer than {} ms (plugins.process_start_timeout_ms): see what it waits for, or the end of what it has made",
        limit.as_millis()
    );
    tracing::warn!(
        why,
        "a plugin does not come up; if its create() still returns, that instance is ended, and nothing else has its place until then"
    );
    let ending = tokio::spawn(async move {
        if let Ok(Ok(made)) = making.await {
            made.ended().await;
        }
    });
    let ending = ending.map(drop).boxed().shared();
    Err(NotMade {
        why,
        ending: Some(ending),
    })
}

/// A sandbox that has come up, and its name. Dropped before it is taken, since it or another part of the reload is no good,
/// it keeps that name until it has ended.
pub(super) struct Untaken {
    plugins: Plugins,
    handle: Handle,
    made: Option<(Arc<SandboxInstance>, Seat)>,
}

impl Untaken {
    pub(super) fn new(
        plugins: &Plugins,
        handle: &Handle,
        instance: Arc<SandboxInstance>,
        seat: Seat,
    ) -> Self {
        Untaken {
            plugins: plugins.clone(),
            handle: handle.clone(),
            made: Some((instance, seat)),
        }
    }

    pub(super) async fn is_well(&self) -> Result<(), String> {
        match &self.made {
            Some((instance, _)) => well(instance.health()).await,
            None => Ok(()),
        }
    }

    pub(super) fn take(mut self) -> Option<(Arc<SandboxInstance>, Seat)> {
        self.made.take()
    }
}

impl Drop for Untaken {
    fn drop(&mut self) {
        if let Some((instance, seat)) = self.made.take() {
            let Plugins(inner) = &self.plugins;
            inner.see_off(&self.handle, seat, instance.ended());
        }
    }
}

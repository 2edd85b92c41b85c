//! Instances that come too late: they are ended, and until they have, what is theirs is nobody else's.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use skillgate_plugin_host::{SandboxInstance, StorageInstance};

use super::{AppError, end};

/// The end of an instance. It comes whether or not somebody waits for it.
pub(super) type Ending = Shared<BoxFuture<'static, ()>>;

pub(super) trait Ends: Send + Sync + 'static {
    /// Ends it, and waits for that as long as it takes.
    fn ended(self: Arc<Self>) -> BoxFuture<'static, ()>;
}

macro_rules! ends {
    ($($instance:ty)+) => { $(
        impl Ends for $instance {
            fn ended(self: Arc<Self>) -> BoxFuture<'static, ()> {
                let mut destroyed = self.destroyed();
                async move {
                    if !end(self.shutdown()).await {
                        destroyed.wait().await;
                    }
                }
                .boxed()
            }
        }
    )+ };
}
ends!(SandboxInstance StorageInstance);

/// Why there is no instance, and the end of what may come of it still.
pub(super) struct NotMade {
    pub(super) why: String,
    pub(super) ending: Option<Ending>,
}

/// Waits for an instance, and no longer than `limit`: `create` of a plugin in this process may wait for a disk that never
/// answers.
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
        "its create() goes on for longer than {} ms (plugins.process_start_timeout_ms): see what it waits for",
        limit.as_millis()
    );
    tracing::warn!(
        why,
        "a plugin does not come up; what comes of it is ended, and nothing else has its place until then"
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

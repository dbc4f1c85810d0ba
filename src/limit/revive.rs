//! Keeps a task of the store going: one that panics is counted, logged, and started anew. Used by
//! `desk`, the Redis store and the control thread for what they cannot do without.

use std::time::Duration;

use prometheus::IntCounter;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Before a task that failed is started anew: one that fails at once must not take the worker's time.
const PAUSE: Duration = Duration::from_millis(10);

/// Runs what `start` makes until it ends by itself. Dropped, it ends it.
pub async fn revive<Work>(restarts: IntCounter, start: impl Fn() -> Work)
where
    Work: Future<Output = ()> + 'static,
{
    let mut task = JoinSet::new();
    loop {
        task.spawn_local(start());
        match task.join_next().await {
            Some(Err(error)) if error.is_panic() => {
                restarts.inc();
                tracing::error!(%error, "a task of the limit store failed and is started anew");
                sleep(PAUSE).await;
            }
            _ => return,
        }
    }
}

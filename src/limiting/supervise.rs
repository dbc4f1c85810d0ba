//! Restarts background tasks that panic. The charge manager, the Redis store and the control thread use it for tasks
//! that must not end early.

use std::time::Duration;

use prometheus::IntCounter;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Pause before a restart, so that a task that panics at once does not use up the worker's time.
const PAUSE: Duration = Duration::from_millis(10);

/// Runs the future that `start` creates until it completes. If it panics, counts that in `restarts`, logs it and starts
/// a new one. Dropping the returned future cancels the task.
pub async fn restart_on_panic<Work>(restarts: IntCounter, start: impl Fn() -> Work)
where
    Work: Future<Output = ()> + 'static,
{
    let mut task = JoinSet::new();
    loop {
        task.spawn_local(start());
        match task.join_next().await {
            Some(Err(error)) if error.is_panic() => {
                restarts.inc();
                tracing::error!(%error, "a background task of the limit store panicked; starting it again");
                sleep(PAUSE).await;
            }
            _ => return,
        }
    }
}

//! Waits for a reply of a server, with a deadline that does not run while the worker itself is late.
//!
//! A worker that is flooded with requests may poll its sockets less often than a deadline is long. Replies then wait in
//! the socket, and an ordinary timeout would blame the server for the delay of the worker. So the deadline consists of
//! steps, each a timer of its own. A timer that fires much too late shows that the worker was late, and only one step
//! of that time counts. After the last step, the worker polls its sockets again before the reply counts as missing.

use std::pin::pin;
use std::time::Duration;

use tokio::select;
use tokio::task::yield_now;
use tokio::time::{Instant, timeout_at};

/// Number of steps of a deadline.
const STEPS: u32 = 8;
/// Shortest step: timers are precise to about a millisecond.
const STEP_MIN: Duration = Duration::from_millis(2);
/// Turns of the event loop after the last step. In a turn, the worker polls its sockets, and the task of the connection
/// reads what has arrived and passes it on.
const LAST_TURNS: usize = 3;

/// A reply that arrived in time.
#[derive(Debug)]
pub struct TimelyReply<T> {
    pub value: T,
    /// How much of the deadline had passed, in whole steps.
    pub waited: Duration,
}

/// Waits for `reply` until the worker has polled its sockets for `limit` without success. Returns `None` if the reply
/// is missing then. While the worker is late, this takes longer than `limit`: a few turns of the event loop for each
/// step.
pub async fn await_reply<T>(limit: Duration, reply: impl Future<Output = T>) -> Option<TimelyReply<T>> {
    let step = (limit / STEPS).max(STEP_MIN);
    let mut reply = pin!(reply);
    let (mut waited, mut due) = (Duration::ZERO, Instant::now());
    while waited < limit {
        let part = step.min(limit.saturating_sub(waited));
        due += part;
        if let Ok(value) = timeout_at(due, reply.as_mut()).await {
            return Some(TimelyReply { value, waited });
        }
        waited += part;
        let now = Instant::now();
        if now > due + step {
            due = now;
        }
    }
    for _ in 0..LAST_TURNS {
        select! {
            biased;
            value = reply.as_mut() => return Some(TimelyReply { value, waited }),
            () = yield_now() => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::thread;

    use tokio::sync::oneshot;
    use tokio::task::spawn_local;
    use tokio::time::sleep;

    use super::*;

    const LIMIT: Duration = Duration::from_millis(80);

    fn on_worker<T>(work: impl Future<Output = T>) -> T {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().build_local(tokio::runtime::LocalOptions::default()).unwrap().block_on(work)
    }

    #[test]
    fn a_missing_reply_is_noticed_at_the_deadline() {
        on_worker(async {
            let started = Instant::now();
            assert!(await_reply(LIMIT, pending::<()>()).await.is_none());
            assert!(started.elapsed() >= LIMIT);
            assert!(await_reply(Duration::from_millis(1), pending::<()>()).await.is_none());
            let reply = await_reply(LIMIT, async { 7 }).await.unwrap();
            assert_eq!((reply.value, reply.waited), (7, Duration::ZERO));
        });
    }

    #[test]
    fn time_in_which_the_worker_is_late_is_not_the_servers() {
        on_worker(async {
            let (sender, reply) = oneshot::channel();
            // The reply takes a quarter of the deadline, but the worker does not run for three of them in the meantime.
            spawn_local(async move {
                thread::sleep(LIMIT * 3);
                sleep(LIMIT / 4).await;
                let _ = sender.send(());
            });
            assert!(await_reply(LIMIT, reply).await.is_some());
        });
    }

    #[test]
    fn a_busy_worker_notices_a_missing_reply_after_some_turns() {
        on_worker(async {
            let busy = spawn_local(async {
                loop {
                    thread::sleep(LIMIT / 4);
                    yield_now().await;
                }
            });
            let started = Instant::now();
            assert!(await_reply(LIMIT, pending::<()>()).await.is_none());
            busy.abort();
            assert!(started.elapsed() >= LIMIT * 2, "{:?}", started.elapsed());
        });
    }
}

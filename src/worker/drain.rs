//! Drains a worker in stages: connections close after their requests, idle ones a little later, and the worker cuts
//! connections that take too long. Finally, it waits until leases are returned to the store.

use std::time::Duration;

use tokio::time::{Instant, interval};

use crate::proxy::connection::timeouts::TICK;
use crate::proxy::context::worker_context::{DrainStage, WorkerContext};

/// Longest wait for the store to accept the leases and refunds of the last requests. If two timeouts of the store are
/// longer, the worker waits for these: one for a decision under way, one for its refund.
const REFUND_TIMEOUT: Duration = Duration::from_secs(1);

/// Time for which an idle HTTP/1.1 connection stays open, for a request that its client may have sent already. Clients
/// in steady use send one within it, and learn from the response that the connection closes.
const IDLE_GRACE: Duration = Duration::from_millis(500);

/// Ends every connection after its request, and cuts those that are left after `timeout`. Returns true if no client was
/// cut off while it waited for a response.
pub async fn drain_worker(worker: &WorkerContext, timeout: Duration) -> bool {
    worker.enter_stage(DrainStage::Draining);
    let grace = IDLE_GRACE.min(timeout / 2);
    let empty = wait_until_empty(worker, grace).await || {
        worker.enter_stage(DrainStage::Closing);
        wait_until_empty(worker, timeout - grace).await
    };
    // Exchanges that linger have no client, and tunnels have no end of their own. They may be cut.
    let whole = !worker.connections.has_waiting_client();
    if !empty {
        worker.connections.cut_all();
        // Each ends when its task runs next.
        wait_until_empty(worker, REFUND_TIMEOUT).await;
    }
    wait_for_refunds(worker).await;
    whole
}

/// Returns true once there is no connection, false after `timeout`.
async fn wait_until_empty(worker: &WorkerContext, timeout: Duration) -> bool {
    let until = Instant::now() + timeout;
    let mut ticks = interval(TICK / 4);
    while !worker.connections.is_empty() {
        if Instant::now() >= until {
            return false;
        }
        ticks.tick().await;
    }
    true
}

/// Waits until the leases and refunds of the last requests are in the store.
async fn wait_for_refunds(worker: &WorkerContext) {
    let (managers, deadline) = worker.state.lease_managers();
    let until = Instant::now() + REFUND_TIMEOUT.max(deadline * 2);
    while managers.iter().any(|manager| manager.pending_calls() > 0) && Instant::now() < until {
        tokio::time::sleep(TICK / 20).await;
    }
}

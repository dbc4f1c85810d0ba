//! The end of a worker: connections close after their requests, those that take too long are cut,
//! and the store gets back what they held. Called by the worker when it is told to drain.

use std::time::Duration;

use tokio::time::{Instant, interval};

use super::Worker;
use crate::http::deadline::TICK;

/// Longest wait of a drained worker for the store to take back what the last requests held; two
/// deadlines of the store, if that is longer: a decision under way, then what it gives back.
const GIVE_BACK: Duration = Duration::from_secs(1);

impl Worker {
    /// Ends every connection after its request, and cuts those that are left after `timeout`; true
    /// when none was.
    pub(super) async fn drained(&self, timeout: Duration) -> bool {
        self.draining.set(true);
        self.connections.wake();
        let empty = self.emptied(timeout).await;
        // Nobody misses the answer of an exchange whose client has left, and a tunnel has no other end.
        let whole = self.connections.none_waits();
        if !empty {
            self.connections.cut();
            // Each goes with its next turn.
            self.emptied(GIVE_BACK).await;
        }
        self.given_back().await;
        whole
    }

    /// True once there is no connection, false after `timeout`.
    async fn emptied(&self, timeout: Duration) -> bool {
        let until = Instant::now() + timeout;
        let mut beats = interval(TICK / 4);
        while !self.connections.is_empty() {
            if Instant::now() >= until {
                return false;
            }
            beats.tick().await;
        }
        true
    }

    /// Waits for what the last requests give back to their limits.
    async fn given_back(&self) {
        let (desks, deadline) = self.local.desks();
        let until = Instant::now() + GIVE_BACK.max(deadline * 2);
        while desks.iter().any(|desk| desk.pending() > 0) && Instant::now() < until {
            tokio::time::sleep(TICK / 20).await;
        }
    }
}

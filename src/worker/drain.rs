//! The end of a worker, stage by stage: connections close after their requests, idle ones a little later,
//! those that take too long are cut, and the store gets back what they held. Called by the worker when it is
//! told to drain.

use std::time::Duration;

use tokio::time::{Instant, interval};

use super::Worker;
use crate::http::deadline::TICK;

/// Longest wait of a drained worker for the store to take back what the last requests held; two
/// deadlines of the store, if that is longer: a decision under way, then what it gives back.
const GIVE_BACK: Duration = Duration::from_secs(1);

/// How long an idle connection of HTTP/1.1 is kept for a request that its client may have sent already.
/// Clients in steady use send within it, and read in the answer that the connection closes.
const IDLE_GRACE: Duration = Duration::from_millis(500);

/// How far a worker is on its way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DrainStage {
    /// It is not.
    Open,
    /// It accepts, and answers of HTTP/1.1 close their connections.
    Leaving,
    /// It accepts no more, and HTTP/2 is told to go away.
    Draining,
    /// Connections without a request end.
    Closing,
}

impl Worker {
    /// Enters `stage`; every connection looks at what that means for it.
    pub(super) fn enter_stage(&self, stage: DrainStage) {
        self.stage.set(stage);
        self.local.leaving.set(self.leaving());
        self.connections.wake();
    }

    /// Answers close their connections.
    pub(super) fn leaving(&self) -> bool {
        self.stage.get() >= DrainStage::Leaving
    }

    pub(super) fn draining(&self) -> bool {
        self.stage.get() >= DrainStage::Draining
    }

    /// Nothing new is waited for.
    pub(super) fn closing(&self) -> bool {
        self.stage.get() >= DrainStage::Closing
    }

    /// Ends every connection after its request, and cuts those that are left after `timeout`; true
    /// when none was.
    pub(super) async fn drained(&self, timeout: Duration) -> bool {
        self.enter_stage(DrainStage::Draining);
        let grace = IDLE_GRACE.min(timeout / 2);
        let empty = self.emptied(grace).await || {
            self.enter_stage(DrainStage::Closing);
            self.emptied(timeout - grace).await
        };
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

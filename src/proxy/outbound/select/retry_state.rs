//! The state of one request on its way to a server: the servers it has tried, and what it needs from its next
//! connection. Made by `worker_upstream`, updated by `acquire`, `retry` and `forward`.

use std::rc::Rc;
use std::sync::Arc;

use tokio::time::Instant;

use crate::proxy::outbound::pool::ServerLease;
use crate::proxy::outbound::select::endpoint::{ConnectionNeed, WorkerEndpoint};
use crate::upstream::caps::InFlight;

/// The state of one request over all of its attempts.
#[derive(Default)]
pub struct RetryState {
    /// Servers on which the request has failed.
    pub(super) tried: Vec<Rc<WorkerEndpoint>>,
    /// Hash of the `hash_on` key; selects the server.
    pub(super) hash: Option<u64>,
    pub(super) need: ConnectionNeed,
    /// When the request last needed a connection, on the worker's clock.
    pub(super) acquired_ms: u64,
    /// When the request leaves the queue; set when it first waits. All its waits share this time.
    pub(super) queue_until: Option<Instant>,
    /// The server that is reserved for the next attempt.
    pub(super) reserved: Option<Reservation>,
}

/// A server with a slot of its concurrency limit.
pub(super) type Reservation = (Rc<WorkerEndpoint>, InFlight);

/// A connection for a request, and its server.
pub struct Acquired {
    pub server: Rc<WorkerEndpoint>,
    pub connection: ServerLease,
}

impl RetryState {
    /// Returns on how many servers the request has failed.
    pub fn failures(&self) -> usize {
        self.tried.len()
    }

    /// Rules out connections that existed at the last attempt: the server may have closed them as well.
    pub fn require_new_connection(&mut self) {
        self.need.since_ms = Some(self.acquired_ms);
    }

    /// Returns whether connections of the last attempt are ruled out.
    pub fn requires_new_connection(&self) -> bool {
        self.need.since_ms.is_some()
    }

    pub(super) fn has_tried(&self, server: &WorkerEndpoint) -> bool {
        self.tried.iter().any(|tried| Arc::ptr_eq(&tried.state, &server.state))
    }
}

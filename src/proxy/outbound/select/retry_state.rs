//! The state of one request on its way to a server: the servers it has tried, and what it needs from its next
//! connection. Made by `worker_upstream`, updated by `acquire`, `retry` and `forward`.

use std::rc::Rc;
use std::sync::Arc;

use tokio::time::Instant;

use crate::proxy::outbound::pool::ServerLease;
use crate::proxy::outbound::select::endpoint::{ConnectionNeed, WorkerEndpoint};
use crate::proxy::outbound::select::place::CapacityPermit;
use crate::upstream::adaptive::window::SampleKind;
use crate::upstream::caps::InFlight;
use crate::upstream::priority::Priority;

/// The state of one request over all of its attempts.
#[derive(Default)]
pub struct RetryState {
    /// Servers on which the request has failed.
    pub tried: Vec<Rc<WorkerEndpoint>>,
    /// Hash of the `hash_on` key; selects the server.
    pub hash: Option<u64>,
    pub need: ConnectionNeed,
    /// When the request last needed a connection, on the worker's clock.
    pub acquired_ms: u64,
    /// When the request leaves the queue; set when it first waits. All its waits share this time.
    pub queue_until: Option<Instant>,
    /// The server that is reserved for the next attempt.
    pub reserved: Option<Reservation>,
    /// The place below the adaptive limit, for all attempts.
    pub place: Option<CapacityPermit>,
    pub priority: Priority,
}

/// A server with a slot of its concurrency limit.
pub type Reservation = (Rc<WorkerEndpoint>, InFlight);

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

    /// Returns the place below the adaptive limit.
    pub fn place(&self) -> Option<&CapacityPermit> {
        self.place.as_ref()
    }

    /// Frees the place below the adaptive limit, and records how the last attempt ended if it is a sample.
    pub fn end_place(&mut self, kind: Option<SampleKind>) {
        if let Some(place) = self.place.take() {
            place.end(kind);
        }
    }

    /// Keeps the place below the adaptive limit for another attempt.
    pub fn restart_place(&self) {
        if let Some(place) = &self.place {
            place.restart();
        }
    }

    pub fn has_tried(&self, server: &WorkerEndpoint) -> bool {
        self.tried.iter().any(|tried| Arc::ptr_eq(&tried.state, &server.state))
    }
}

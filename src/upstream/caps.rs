//! Limits of concurrent requests and of connections, for one server and for all servers of an upstream, counted over
//! all workers. `select` and `pool` of `proxy::outbound` take slots; a slot is returned when it is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::upstream::adaptive::AdaptiveLimit;
use crate::upstream::adaptive::controller::AdaptiveRule;
use crate::upstream::priority::{PRIORITIES, Priority};
use crate::upstream::queue::{NewestFirst, RequestQueue};
use crate::upstream::state::ServerState;

/// `max_in_flight`, `max_connections`, `max_waiting` and `waiting_timeout` of an upstream, and its `total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapRule {
    /// Requests in flight per server, unless the server has a limit of its own.
    pub in_flight: u32,
    /// Connections per server, likewise.
    pub connections: u32,
    /// Requests in flight of all servers together.
    pub total_in_flight: u32,
    /// Connections of all servers together.
    pub total_connections: u32,
    /// Length of the queue, per server.
    pub waiting: usize,
    /// Longest time in the queue.
    pub waiting_ms: u64,
    /// When the newest request goes first. `None`: never.
    pub newest_first: Option<NewestFirst>,
}

/// `max_in_flight` and `max_connections` of one server. They override the bounds of its upstream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ServerCaps {
    pub in_flight: Option<u32>,
    pub connections: Option<u32>,
}

/// Load of one upstream over all workers. The counts survive reloads.
#[derive(Default)]
pub struct UpstreamLoad {
    in_flight: Arc<AtomicU32>,
    connections: Arc<AtomicU32>,
    /// The queue of the requests that wait under the same settings.
    pub queue: Arc<RequestQueue>,
    /// The adaptive limit of requests that wait for the head of their response, if the upstream has one.
    pub adaptive: Option<Arc<AdaptiveLimit>>,
    /// Requests that were refused because of overload, by priority.
    refused: Arc<[AtomicU64; PRIORITIES]>,
}

/// A request in flight at a server.
pub struct InFlight {
    state: Arc<ServerState>,
    /// `None` if the upstream has no limits.
    load: Option<Arc<UpstreamLoad>>,
}

/// A slot for a connection, where connections are limited.
pub struct ConnectionPermit {
    state: Arc<ServerState>,
    load: Arc<UpstreamLoad>,
}

/// Increments `count` unless it is at `max`. Returns whether it did.
fn try_increment(count: &AtomicU32, max: u32) -> bool {
    count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |now| (now < max).then_some(now + 1)).is_ok()
}

/// Increments the count of a server and that of its upstream, or neither.
fn try_increment_both(own: &AtomicU32, max: u32, all: &AtomicU32, max_all: u32, queue: &RequestQueue) -> bool {
    if !try_increment(own, max) {
        return false;
    }
    let is_taken = try_increment(all, max_all);
    if !is_taken {
        own.fetch_sub(1, Ordering::SeqCst);
        // Another worker may have seen the server at its limit in the meantime.
        queue.notify_first();
    }
    is_taken
}

impl ServerCaps {
    /// Returns the rule of the upstream with the overrides of this server.
    pub fn override_rule(&self, rule: &CapRule) -> CapRule {
        CapRule {
            in_flight: self.in_flight.unwrap_or(rule.in_flight),
            connections: self.connections.unwrap_or(rule.connections),
            ..*rule
        }
    }
}

impl CapRule {
    /// Takes a slot for a request. Returns `None` at a limit.
    pub fn take_request_slot(&self, state: &Arc<ServerState>, load: &Arc<UpstreamLoad>) -> Option<InFlight> {
        try_increment_both(&state.in_flight, self.in_flight, &load.in_flight, self.total_in_flight, &load.queue)
            .then(|| InFlight { state: state.clone(), load: Some(load.clone()) })
    }

    /// Takes a slot for a connection. Returns `None` at a limit.
    pub fn take_connection_slot(&self, state: &Arc<ServerState>, load: &Arc<UpstreamLoad>) -> Option<ConnectionPermit> {
        try_increment_both(&state.connections, self.connections, &load.connections, self.total_connections, &load.queue)
            .then(|| ConnectionPermit { state: state.clone(), load: load.clone() })
    }

    /// Returns whether there is a slot for a request.
    pub fn has_request_slot(&self, state: &ServerState, load: &UpstreamLoad) -> bool {
        let of = |count: &AtomicU32, max| count.load(Ordering::SeqCst) < max;
        of(&state.in_flight, self.in_flight) && of(&load.in_flight, self.total_in_flight)
    }

    /// Returns whether there is a slot for a connection.
    pub fn has_connection_slot(&self, state: &ServerState, load: &UpstreamLoad) -> bool {
        let of = |count: &AtomicU32, max| count.load(Ordering::SeqCst) < max;
        of(&state.connections, self.connections) && of(&load.connections, self.total_connections)
    }

    /// Returns whether connections are limited.
    pub fn caps_connections(&self) -> bool {
        self.connections < u32::MAX || self.total_connections < u32::MAX
    }
}

impl UpstreamLoad {
    /// Returns the load of a new upstream.
    pub fn new(adaptive: Option<AdaptiveRule>) -> UpstreamLoad {
        let adaptive = adaptive.map(|rule| Arc::new(AdaptiveLimit::new(rule)));
        UpstreamLoad { adaptive, ..UpstreamLoad::default() }
    }

    /// Returns the load for new settings: with the same counts and the same adaptive limit, and a queue of its own.
    /// Requests that the new settings admit do not wait behind those that wait under the old ones.
    pub fn with_new_queue(&self, adaptive: Option<AdaptiveRule>) -> UpstreamLoad {
        let known = self.adaptive.clone();
        UpstreamLoad {
            in_flight: self.in_flight.clone(),
            connections: self.connections.clone(),
            queue: Arc::default(),
            adaptive: adaptive.map(|rule| known.unwrap_or_else(|| Arc::new(AdaptiveLimit::new(rule)))),
            refused: self.refused.clone(),
        }
    }

    /// Counts a request that was refused because of overload.
    pub fn count_refused(&self, priority: Priority) {
        self.refused[priority.index()].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the requests that were refused because of overload, by priority.
    pub fn refused(&self) -> [u64; PRIORITIES] {
        self.refused.each_ref().map(|count| count.load(Ordering::Relaxed))
    }

    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    pub fn connections(&self) -> u32 {
        self.connections.load(Ordering::Relaxed)
    }
}

impl InFlight {
    /// Counts a request without any limit.
    pub fn count_unlimited(state: &Arc<ServerState>) -> InFlight {
        state.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlight { state: state.clone(), load: None }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.state.in_flight.fetch_sub(1, Ordering::SeqCst);
        if let Some(load) = &self.load {
            load.in_flight.fetch_sub(1, Ordering::SeqCst);
            load.queue.notify_first();
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.state.connections.fetch_sub(1, Ordering::SeqCst);
        self.load.connections.fetch_sub(1, Ordering::SeqCst);
        self.load.queue.notify_first();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::{Wake, Waker};
    use std::time::Instant;

    use super::*;
    use crate::upstream::queue::{Arrival, ServerPace, Turn};

    struct WakeCount(AtomicUsize);

    impl Wake for WakeCount {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    const ONE: CapRule = CapRule {
        in_flight: 1,
        connections: 1,
        total_in_flight: 1,
        total_connections: 1,
        waiting: 1,
        waiting_ms: 1,
        newest_first: None,
    };

    fn arrival() -> Arrival {
        Arrival { priority: Priority::default(), max: 1, now: Instant::now(), random: 0, sheds: false }
    }

    #[test]
    fn released_slots_can_be_taken_again_and_nothing_leaks() {
        let rule = CapRule { in_flight: 2, total_in_flight: 3, ..ONE };
        let (one, other) = (Arc::<ServerState>::default(), Arc::<ServerState>::default());
        let load = Arc::<UpstreamLoad>::default();
        let mut taken: Vec<_> = (0..2).map(|_| rule.take_request_slot(&one, &load).unwrap()).collect();
        assert!(rule.take_request_slot(&one, &load).is_none() && !rule.has_request_slot(&one, &load));
        taken.extend(rule.take_request_slot(&other, &load));
        assert!(rule.take_request_slot(&other, &load).is_none(), "the upstream is at its limit");
        assert_eq!((one.in_flight(), other.in_flight(), load.in_flight()), (2, 1, 3));
        taken.remove(0);
        assert!(rule.has_request_slot(&other, &load));
        taken.clear();
        assert_eq!((one.in_flight(), other.in_flight(), load.in_flight()), (0, 0, 0));
        let slot = rule.take_connection_slot(&one, &load);
        assert!(
            slot.is_some()
                && rule.take_connection_slot(&one, &load).is_none()
                && !rule.has_connection_slot(&other, &load)
        );
        drop(slot);
        assert_eq!((one.connections(), load.connections()), (0, 0));
    }

    #[test]
    fn other_settings_share_the_counts_and_have_their_own_queue() {
        let (state, load) = (Arc::<ServerState>::default(), Arc::<UpstreamLoad>::default());
        let taken = (ONE.take_request_slot(&state, &load), ONE.take_connection_slot(&state, &load));
        let _waits = load.queue.join(arrival());
        let renewed = Arc::new(load.with_new_queue(None));
        assert_eq!((renewed.in_flight(), renewed.connections(), renewed.queue.len()), (1, 1, 0));
        drop(taken);
        assert_eq!((renewed.in_flight(), renewed.connections()), (0, 0));
    }

    /// Another worker may have seen the last slot of a server as taken in the meantime.
    #[test]
    fn a_reverted_increment_wakes_the_first_request() {
        let (one, other, load) = (Arc::default(), Arc::<ServerState>::default(), Arc::<UpstreamLoad>::default());
        let _taken = (ONE.take_request_slot(&one, &load), ONE.take_connection_slot(&one, &load));
        let place = load.queue.join(arrival()).unwrap();
        let woken = Arc::new(WakeCount(AtomicUsize::new(0)));
        let turn = place.check_turn(&Waker::from(woken.clone()), None, ServerPace::default(), Instant::now());
        assert_eq!(turn, Turn::First);
        assert!(ONE.take_request_slot(&other, &load).is_none() && ONE.take_connection_slot(&other, &load).is_none());
        assert_eq!((woken.0.load(Ordering::SeqCst), other.in_flight(), other.connections()), (2, 0, 0));
    }
}

//! What servers are given at once: requests and connections, of one server and of all of an upstream, counted
//! over all workers. Taken by `turn`, `acquire` and `pool` of `http::upstream`, given back when what was taken
//! is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::line::WaitingLine;
use super::state::ServerState;

/// `max_in_flight`, `max_connections`, `max_waiting` and `waiting_timeout` of an upstream, and its `total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapRule {
    /// Of each server that has none of its own.
    pub in_flight: u32,
    pub connections: u32,
    /// Of all servers together.
    pub total_in_flight: u32,
    pub total_connections: u32,
    /// Requests that wait, for each server.
    pub waiting: usize,
    pub waiting_ms: u64,
}

/// `max_in_flight` and `max_connections` of one server, in place of those of its upstream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ServerCaps {
    pub in_flight: Option<u32>,
    pub connections: Option<u32>,
}

/// What all workers have of one upstream. The counts are kept over reloads.
#[derive(Default)]
pub struct UpstreamLoad {
    in_flight: Arc<AtomicU32>,
    connections: Arc<AtomicU32>,
    /// Of those that wait by the same settings.
    pub line: Arc<WaitingLine>,
}

/// A request in flight at a server.
pub struct InFlight {
    state: Arc<ServerState>,
    /// Where that is capped.
    load: Option<Arc<UpstreamLoad>>,
}

/// A connection to a server, which has as many as it may at most.
pub struct ConnectionSlot {
    state: Arc<ServerState>,
    load: Arc<UpstreamLoad>,
}

/// Numbers that are counted up to a cap.
fn take(count: &AtomicU32, max: u32) -> bool {
    count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |now| (now < max).then_some(now + 1)).is_ok()
}

fn take_both(own: &AtomicU32, max: u32, all: &AtomicU32, max_all: u32, line: &WaitingLine) -> bool {
    if !take(own, max) {
        return false;
    }
    let taken = take(all, max_all);
    if !taken {
        own.fetch_sub(1, Ordering::SeqCst);
        // Who looked meanwhile has seen no room.
        line.stir();
    }
    taken
}

impl ServerCaps {
    /// The rule of the upstream as it is for this server.
    pub fn within(&self, rule: &CapRule) -> CapRule {
        CapRule {
            in_flight: self.in_flight.unwrap_or(rule.in_flight),
            connections: self.connections.unwrap_or(rule.connections),
            ..*rule
        }
    }
}

impl CapRule {
    /// One more request, if that may be.
    pub fn enter(&self, state: &Arc<ServerState>, load: &Arc<UpstreamLoad>) -> Option<InFlight> {
        take_both(&state.in_flight, self.in_flight, &load.in_flight, self.total_in_flight, &load.line)
            .then(|| InFlight { state: state.clone(), load: Some(load.clone()) })
    }

    /// One more connection, if that may be.
    pub fn connect(&self, state: &Arc<ServerState>, load: &Arc<UpstreamLoad>) -> Option<ConnectionSlot> {
        take_both(&state.connections, self.connections, &load.connections, self.total_connections, &load.line)
            .then(|| ConnectionSlot { state: state.clone(), load: load.clone() })
    }

    /// A request may be sent there.
    pub fn has_room(&self, state: &ServerState, load: &UpstreamLoad) -> bool {
        let of = |count: &AtomicU32, max| count.load(Ordering::SeqCst) < max;
        of(&state.in_flight, self.in_flight) && of(&load.in_flight, self.total_in_flight)
    }

    /// Another connection may be made.
    pub fn may_connect(&self, state: &ServerState, load: &UpstreamLoad) -> bool {
        let of = |count: &AtomicU32, max| count.load(Ordering::SeqCst) < max;
        of(&state.connections, self.connections) && of(&load.connections, self.total_connections)
    }

    pub fn caps_connections(&self) -> bool {
        self.connections < u32::MAX || self.total_connections < u32::MAX
    }
}

impl UpstreamLoad {
    /// The same where other settings are in force: what they give room to does not wait behind those that
    /// wait by the settings before.
    pub fn renewed(&self) -> UpstreamLoad {
        let (in_flight, connections) = (self.in_flight.clone(), self.connections.clone());
        UpstreamLoad { in_flight, connections, line: Arc::default() }
    }

    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    pub fn connections(&self) -> u32 {
        self.connections.load(Ordering::Relaxed)
    }
}

impl InFlight {
    /// Where nothing is capped.
    pub fn of(state: &Arc<ServerState>) -> InFlight {
        state.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlight { state: state.clone(), load: None }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.state.in_flight.fetch_sub(1, Ordering::SeqCst);
        if let Some(load) = &self.load {
            load.in_flight.fetch_sub(1, Ordering::SeqCst);
            load.line.stir();
        }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.state.connections.fetch_sub(1, Ordering::SeqCst);
        self.load.connections.fetch_sub(1, Ordering::SeqCst);
        self.load.line.stir();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::{Wake, Waker};

    use super::*;

    struct WakeCount(AtomicUsize);

    impl Wake for WakeCount {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    const ONE: CapRule =
        CapRule { in_flight: 1, connections: 1, total_in_flight: 1, total_connections: 1, waiting: 1, waiting_ms: 1 };

    #[test]
    fn what_is_given_back_can_be_taken_again_and_nothing_leaks() {
        let rule = CapRule { in_flight: 2, total_in_flight: 3, ..ONE };
        let (one, other) = (Arc::<ServerState>::default(), Arc::<ServerState>::default());
        let load = Arc::<UpstreamLoad>::default();
        let mut taken: Vec<_> = (0..2).map(|_| rule.enter(&one, &load).unwrap()).collect();
        assert!(rule.enter(&one, &load).is_none() && !rule.has_room(&one, &load));
        taken.extend(rule.enter(&other, &load));
        assert!(rule.enter(&other, &load).is_none(), "all together have what they may");
        assert_eq!((one.in_flight(), other.in_flight(), load.in_flight()), (2, 1, 3));
        taken.remove(0);
        assert!(rule.has_room(&other, &load));
        taken.clear();
        assert_eq!((one.in_flight(), other.in_flight(), load.in_flight()), (0, 0, 0));
        let slot = rule.connect(&one, &load);
        assert!(slot.is_some() && rule.connect(&one, &load).is_none() && !rule.may_connect(&other, &load));
        drop(slot);
        assert_eq!((one.connections(), load.connections()), (0, 0));
    }

    #[test]
    fn other_settings_count_what_is_there_and_wait_in_a_line_of_their_own() {
        let (state, load) = (Arc::<ServerState>::default(), Arc::<UpstreamLoad>::default());
        let taken = (ONE.enter(&state, &load), ONE.connect(&state, &load));
        let _waits = load.line.join(1);
        let renewed = Arc::new(load.renewed());
        assert_eq!((renewed.in_flight(), renewed.connections(), renewed.line.len()), (1, 1, 0));
        drop(taken);
        assert_eq!((renewed.in_flight(), renewed.connections()), (0, 0));
    }

    /// In between, the last room of a server seemed to be taken.
    #[test]
    fn who_takes_room_and_undoes_it_has_the_first_look_again() {
        let (one, other, load) = (Arc::default(), Arc::<ServerState>::default(), Arc::<UpstreamLoad>::default());
        let _taken = (ONE.enter(&one, &load), ONE.connect(&one, &load));
        let place = load.line.join(1).unwrap();
        let woken = Arc::new(WakeCount(AtomicUsize::new(0)));
        assert!(place.is_first(&Waker::from(woken.clone())));
        assert!(ONE.enter(&other, &load).is_none() && ONE.connect(&other, &load).is_none());
        assert_eq!((woken.0.load(Ordering::SeqCst), other.in_flight(), other.connections()), (2, 0, 0));
    }
}

//! The registry of a worker's client connections, with the state of each. At `max_connections` it closes idle ones for
//! new ones.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use slab::Slab;

use crate::ends::End;
use crate::net::client_network;
use crate::proxy::connection::connection_count::{ConnectionBounds, ConnectionCount, CountedConnection};
use crate::proxy::connection::phase::{GoAway, Phase};
use crate::proxy::connection::state::ConnectionState;
use crate::proxy::connection::timeouts::Ticks;

/// The most streams of idle HTTP/2 connections of one worker. Each connection counts with the most streams that it has
/// had at once, because the HTTP/2 library keeps about 2 KiB for each of them until the connection ends. Beyond that,
/// the worker closes the connections that have been idle for the longest time.
const IDLE_STREAMS: usize = 8192;
/// The number of idle connections that are selected at once at `max_connections`, because each selection reads all.
const SELECTED: usize = 32;
/// The part of `max_connections` that may be closing to make room. So many connections more may be open for a moment.
const CLOSING_PART: usize = 2;
/// The age from which a connection without any request counts as idle.
const SILENT_MS: u64 = 1_000;

/// The connections of one worker.
pub struct ConnectionRegistry {
    count: Arc<ConnectionCount>,
    ticks: Ticks,
    states: RefCell<Slab<Rc<Registered>>>,
    /// Connections to close next at `max_connections`, with the first one at the end. The references are weak, because
    /// the connections may end earlier.
    selected: RefCell<Vec<Weak<Registered>>>,
    /// The tick at which no connection was idle that may close: until the next one, none is searched for.
    none_idle_ms: Cell<Option<u64>>,
}

/// A connection of the worker.
struct Registered {
    state: Rc<ConnectionState>,
    peer: Cell<IpAddr>,
    opened_ms: u64,
    /// The connection closes to make room.
    makes_room: Cell<bool>,
}

/// Registers a connection until it is dropped. Every task that works for the connection holds the ticket, so that the
/// connection is counted and drained: for example an exchange that lingers after the client has disconnected.
pub struct ConnectionTicket {
    connections: Rc<ConnectionRegistry>,
    registered: Rc<Registered>,
    key: usize,
    counted: CountedConnection,
}

impl ConnectionRegistry {
    pub fn new(count: Arc<ConnectionCount>) -> Rc<ConnectionRegistry> {
        Rc::new(ConnectionRegistry {
            count,
            ticks: Ticks::default(),
            states: RefCell::default(),
            selected: RefCell::default(),
            none_idle_ms: Cell::default(),
        })
    }

    /// Registers a connection of `peer`. If there are too many already, an idle one closes. Returns whether one does.
    ///
    /// # Errors
    /// There are too many connections already and none is idle, or too many of that client.
    pub fn register(self: &Rc<Self>, peer: IpAddr, bounds: ConnectionBounds) -> Result<(ConnectionTicket, bool), End> {
        let mut counted = CountedConnection::new(&self.count, peer, bounds);
        let makes_room = matches!(counted, Err(End::MaxConnections)) && self.make_room(peer, bounds);
        if makes_room {
            counted = CountedConnection::new(&self.count, peer, bounds);
        }
        let counted = counted?;
        let state = Rc::new(ConnectionState::new(self.ticks.clone()));
        let opened_ms = self.ticks.get();
        let entry = Rc::new(Registered { state, peer: Cell::new(peer), opened_ms, makes_room: Cell::new(false) });
        let key = self.states.borrow_mut().insert(entry.clone());
        Ok((ConnectionTicket { connections: self.clone(), registered: entry, key, counted }, makes_room))
    }

    /// Advances the worker's coarse clock to `now_ms`, and checks the timers of all connections.
    pub fn check_timers(&self, now_ms: u64) {
        self.ticks.set(now_ms);
        let mut idle_streams = 0;
        for (_, registered) in &*self.states.borrow() {
            registered.state.check_timers();
            idle_streams += registered.state.idle_streams();
            if registered.makes_room.get() && !registered.is_ending() {
                // Its next request came first.
                self.end_closing(registered);
            }
        }
        if idle_streams > IDLE_STREAMS {
            self.close_idle(idle_streams - IDLE_STREAMS);
        }
        if self.count.wanted.load(Ordering::Relaxed) > 0 && self.close_selected(None) {
            let count = self.count.wanted.swap(0, Ordering::Relaxed);
            for _ in 1..count {
                self.close_selected(None);
            }
        }
    }

    /// Closes an idle connection for a new one of `peer`, unless many are closing already: one of its own if it has its
    /// part. If this worker has none, the other workers close one at their next tick, for the next connection. Returns
    /// whether a connection closes.
    fn make_room(&self, peer: IpAddr, bounds: ConnectionBounds) -> bool {
        if self.count.closing.load(Ordering::Relaxed) > bounds.max / CLOSING_PART {
            return false;
        }
        let only_of = self.count.has_part(peer, bounds).then(|| client_network(peer));
        let closes = self.close_selected(only_of);
        if !closes && only_of.is_none() {
            let next = |wanted| (wanted < SELECTED).then_some(wanted + 1);
            let _ = self.count.wanted.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        }
        closes
    }

    /// Closes the next idle connection: one of the client that has the most connections and, of these, the one that has
    /// been idle for the longest time. Returns false if none is idle, or if the next one is not of `only_of`.
    fn close_selected(&self, only_of: Option<IpAddr>) -> bool {
        let now_ms = self.ticks.get();
        let mut selection = self.selected.borrow_mut();
        for is_fresh in [false, true] {
            if is_fresh && self.none_idle_ms.get() != Some(now_ms) {
                *selection = self.select_idle(now_ms);
                self.none_idle_ms.set(selection.is_empty().then_some(now_ms));
            }
            while let Some(registered) = selection.pop() {
                let Some(registered) = registered.upgrade() else { continue };
                if only_of.is_some_and(|client| client != registered.client()) {
                    selection.push(Rc::downgrade(&registered));
                    self.none_idle_ms.set(is_fresh.then_some(now_ms).or(self.none_idle_ms.get()));
                    break;
                }
                if registered.close_if_idle(now_ms) {
                    self.count.closing.fetch_add(1, Ordering::Relaxed);
                    return true;
                }
            }
        }
        false
    }

    /// Selects the idle connections to close next, the first of them at the end.
    fn select_idle(&self, now_ms: u64) -> Vec<Weak<Registered>> {
        let states = self.states.borrow();
        let mut counts = HashMap::<IpAddr, usize>::new();
        for (_, registered) in &*states {
            *counts.entry(registered.client()).or_default() += 1;
        }
        let mut idle: Vec<_> = states
            .iter()
            .filter_map(|(_, registered)| {
                let idleness = registered.idleness(now_ms)?;
                Some((Reverse(counts.get(&registered.client()).copied()), idleness, registered))
            })
            .collect();
        idle.sort_unstable_by_key(|(count, idleness, _)| (*count, *idleness));
        idle.truncate(SELECTED);
        idle.into_iter().rev().map(|(_, _, registered)| Rc::downgrade(registered)).collect()
    }

    /// Records that a connection that closed to make room has ended, or continues.
    fn end_closing(&self, registered: &Registered) {
        if registered.makes_room.replace(false) {
            self.count.closing.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Closes idle HTTP/2 connections, those that have been idle for the longest time first, until they add up to
    /// `streams`.
    fn close_idle(&self, streams: usize) {
        let states = self.states.borrow();
        let mut idle: Vec<&Rc<ConnectionState>> =
            states.iter().map(|(_, registered)| &registered.state).filter(|state| state.idle_streams() > 0).collect();
        idle.sort_by_key(|state| state.idle_since_ms());
        let mut count = 0;
        for state in idle {
            if count >= streams {
                return;
            }
            count += state.idle_streams();
            state.close_idle();
        }
    }

    /// Wakes the task of each connection, so that it checks the drain stage.
    pub fn wake_all(&self) {
        self.states.borrow().iter().for_each(|(_, registered)| registered.state.wake_task());
    }

    /// Ends each connection without a response.
    pub fn cut_all(&self) {
        self.states.borrow().iter().for_each(|(_, registered)| registered.state.cut_off());
    }

    /// Returns the number of connections over all workers.
    pub fn count_of_all_workers(&self) -> usize {
        self.count.all.load(Ordering::Relaxed)
    }

    /// Returns how many connections the client at `peer` has, over all workers.
    pub fn count_of(&self, peer: IpAddr) -> usize {
        self.count.of(peer)
    }

    /// Milliseconds on the worker's coarse clock.
    pub fn now_ms(&self) -> u64 {
        self.ticks.get()
    }

    /// Closes one connection that has been idle for a while, to free its descriptor for a client that waits.
    pub fn close_one_resting(&self) {
        self.states.borrow().iter().any(|(_, registered)| registered.state.close_if_resting());
    }

    pub fn len(&self) -> usize {
        self.states.borrow().len()
    }

    pub fn is_empty(&self) -> bool {
        self.states.borrow().is_empty()
    }

    /// Returns whether a client waits for a response.
    pub fn has_waiting_client(&self) -> bool {
        self.states.borrow().iter().any(|(_, registered)| registered.state.has_waiting_client())
    }
}

impl Registered {
    /// Returns a sort key for a connection that may close to make room: the lowest one closes first. `None` if it is
    /// not idle. Connections that rest come first, then those that have just become idle. The last are those that have
    /// not had a request for a while since they were opened.
    fn idleness(&self, now_ms: u64) -> Option<(u8, u64)> {
        let Registered { state, .. } = self;
        let is_silent = || {
            let awaits_first =
                matches!(state.phase(), Phase::Handshake | Phase::Head) && state.most_requests.get() == 0;
            awaits_first && now_ms.saturating_sub(self.opened_ms) >= SILENT_MS
        };
        match () {
            () if self.makes_room.get() || state.is_over() => None,
            () if state.is_resting() => Some((0, state.idle_since_ms())),
            () if state.is_idle() => Some((1, state.idle_since_ms())),
            () if is_silent() => Some((2, self.opened_ms)),
            () => None,
        }
    }

    /// Closes the connection to make room, if it is idle. Returns whether it does.
    fn close_if_idle(&self, now_ms: u64) -> bool {
        if self.idleness(now_ms).is_none() {
            return false;
        }
        self.makes_room.set(true);
        match self.state.is_idle() {
            true => self.state.close_idle(),
            false => self.state.cut_off(),
        }
        true
    }

    /// Returns whether the connection is about to end. After GOAWAY, an HTTP/2 client may open streams until it has
    /// acknowledged the frame, and the connection ends with the last stream.
    fn is_ending(&self) -> bool {
        let is_told = self.state.goaway.get() != GoAway::No;
        self.state.is_over() || (is_told && !self.state.phase().has_requests())
    }

    fn client(&self) -> IpAddr {
        client_network(self.peer.get())
    }
}

impl ConnectionTicket {
    /// Returns the state of the connection.
    pub fn connection(&self) -> &Rc<ConnectionState> {
        &self.registered.state
    }

    /// Counts the connection for `client` from now on, and no longer for the address that it had.
    ///
    /// # Errors
    /// There are too many connections of that client already.
    pub fn recount_for(&mut self, client: IpAddr, bounds: ConnectionBounds) -> Result<(), End> {
        if client_network(client) != client_network(self.counted.peer) {
            self.counted.recount_for(client, bounds)?;
        }
        self.registered.peer.set(client);
        Ok(())
    }

    /// Counts an exchange that lingers while its connection has other requests, for the same address.
    ///
    /// # Errors
    /// There are too many connections already, or too many of that address.
    pub fn count_lingering(&self, bounds: ConnectionBounds) -> Result<CountedConnection, End> {
        CountedConnection::new(&self.connections.count, self.counted.peer, bounds)
    }
}

impl Drop for ConnectionTicket {
    fn drop(&mut self) {
        self.connections.states.borrow_mut().remove(self.key);
        self.connections.end_closing(&self.registered);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const KEEPALIVE: Duration = Duration::from_secs(75);

    fn registry() -> (Rc<ConnectionRegistry>, Arc<ConnectionCount>) {
        let count = Arc::<ConnectionCount>::default();
        (ConnectionRegistry::new(count.clone()), count)
    }

    fn at_most(max: usize) -> ConnectionBounds {
        ConnectionBounds { max, max_per_ip: usize::MAX, is_proxy: false }
    }

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    /// Opens a connection that is idle after a request.
    fn open_idle(registry: &Rc<ConnectionRegistry>, peer: IpAddr, max: usize) -> ConnectionTicket {
        let (ticket, _) = registry.register(peer, at_most(max)).map_err(|_| "full").unwrap();
        ticket.connection().enter_phase(Phase::Head, KEEPALIVE);
        ticket.connection().begin_request(true).end();
        ticket.connection().request_ended(KEEPALIVE);
        ticket
    }

    /// Returns the indexes of the connections that close.
    fn closing(tickets: &[ConnectionTicket]) -> Vec<usize> {
        (0..tickets.len()).filter(|index| tickets[*index].connection().is_over()).collect()
    }

    #[test]
    fn the_client_with_the_most_connections_loses_its_oldest_idle_one() {
        let (registry, _) = registry();
        let mut tickets = Vec::new();
        for (now_ms, peer) in [(0, 1), (1_000, 2), (2_000, 2), (3_000, 2), (4_000, 3)] {
            registry.check_timers(now_ms);
            tickets.push(open_idle(&registry, ip(peer), 8));
        }
        registry.check_timers(9_000);
        // A connection that is new is not idle.
        let (first, closes) = registry.register(ip(9), at_most(6)).ok().unwrap();
        assert!(!closes && closing(&tickets).is_empty());
        let mut new = vec![first];
        for _ in 0..2 {
            let (ticket, closes) = registry.register(ip(9), at_most(6)).ok().unwrap();
            new.push(ticket);
            assert_eq!((closing(&tickets), closes), (vec![1], true));
            tickets.remove(1);
        }
        assert_eq!(tickets.len(), 3);
    }

    #[test]
    fn a_connection_with_a_request_never_closes_for_another() {
        let (registry, count) = registry();
        let busy = open_idle(&registry, ip(1), 2);
        let idle = open_idle(&registry, ip(1), 2);
        let _request = busy.connection().begin_request(true);
        registry.check_timers(5_000);
        let (_new, closes) = registry.register(ip(2), at_most(2)).ok().unwrap();
        assert!(closes && !busy.connection().is_over() && idle.connection().is_over());
        assert_eq!(count.closing.load(Ordering::Relaxed), 1);
        assert!(matches!(registry.register(ip(2), at_most(2)), Err(End::MaxConnections)));
        drop(idle);
        assert_eq!(count.closing.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_connection_whose_next_request_came_first_is_kept_and_counted_again() {
        let (registry, count) = registry();
        let idle = open_idle(&registry, ip(1), 1);
        registry.check_timers(5_000);
        let (new, _) = registry.register(ip(2), at_most(1)).ok().unwrap();
        let _request = idle.connection().begin_request(true);
        registry.check_timers(5_100);
        assert_eq!((count.closing.load(Ordering::Relaxed), registry.count_of_all_workers()), (0, 2));
        drop((new, idle));
        assert_eq!((count.closing.load(Ordering::Relaxed), registry.count_of_all_workers()), (0, 0));
    }

    #[test]
    fn a_stream_after_goaway_has_the_connection_counted_again() {
        let (registry, count) = registry();
        let idle = open_idle(&registry, ip(1), 1);
        idle.connection().set_multiplexed(KEEPALIVE);
        registry.check_timers(5_000);
        let _new = registry.register(ip(2), at_most(1)).ok().unwrap();
        idle.connection().begin_goaway(KEEPALIVE);
        registry.check_timers(5_100);
        assert_eq!(count.closing.load(Ordering::Relaxed), 1);
        let _stream = idle.connection().begin_request(true);
        registry.check_timers(5_200);
        assert_eq!(count.closing.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_connection_that_has_ended_makes_no_room() {
        let (registry, count) = registry();
        let silent = |from| (0..3).map(|_| registry.register(ip(from), at_most(3)).ok().unwrap().0).collect::<Vec<_>>();
        let first = silent(1);
        registry.check_timers(SILENT_MS);
        // One of them closes, and the others are selected.
        drop((registry.register(ip(2), at_most(3)).ok().unwrap(), first));
        let _fresh = silent(3);
        assert!(matches!(registry.register(ip(2), at_most(3)), Err(End::MaxConnections)));
        assert_eq!(count.closing.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn connections_without_a_request_close_last_and_not_at_once() {
        let (registry, _) = registry();
        let silent = registry.register(ip(1), at_most(2)).ok().unwrap().0;
        silent.connection().enter_phase(Phase::Handshake, KEEPALIVE);
        let idle = open_idle(&registry, ip(1), 2);
        assert!(matches!(registry.register(ip(2), at_most(2)), Ok((_, true))));
        assert!(idle.connection().is_over() && !silent.connection().is_over());
        drop(idle);
        assert!(registry.register(ip(3), at_most(1)).is_err());
        assert!(!silent.connection().is_cut());
        registry.check_timers(SILENT_MS);
        assert!(registry.register(ip(3), at_most(1)).is_ok());
        assert!(silent.connection().is_cut());
    }

    #[test]
    fn a_worker_without_an_idle_connection_asks_the_others() {
        let (registry, count) = registry();
        let other = ConnectionRegistry::new(count.clone());
        let idle = open_idle(&registry, ip(1), 1);
        assert!(other.register(ip(2), at_most(1)).is_err());
        registry.check_timers(5_000);
        assert!(idle.connection().is_over());
        assert!(other.register(ip(2), at_most(1)).is_ok());
    }

    #[test]
    fn a_client_that_has_its_part_closes_only_its_own_idle_connections() {
        let (registry, _) = registry();
        let own: Vec<_> = (0..87).map(|_| open_idle(&registry, ip(1), 100)).collect();
        let requests: Vec<_> = own.iter().map(|ticket| ticket.connection().begin_request(true)).collect();
        let other = open_idle(&registry, ip(2), 100);
        registry.check_timers(1_000);
        assert!(matches!(registry.register(ip(1), at_most(100)), Err(End::MaxConnections)));
        registry.check_timers(2_000);
        assert!(!other.connection().is_over());
        requests[0].end();
        own[0].connection().request_ended(KEEPALIVE);
        assert!(registry.register(ip(1), at_most(100)).is_err());
        assert!(own[0].connection().is_over() && !other.connection().is_over());
    }

    #[test]
    fn the_addresses_of_a_network_are_one_client() {
        let (registry, count) = registry();
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let register = |text: &str| {
            registry
                .register(address(text), ConnectionBounds { max_per_ip: 2, ..at_most(99) })
                .map(|(ticket, _)| ticket)
        };
        let (first, mut second) = (register("2001:db8::1").ok().unwrap(), register("2001:db8::2").ok().unwrap());
        assert!(matches!(register("2001:db8:0:0:ffff::3"), Err(End::MaxConnectionsPerIp)));
        let other = register("2001:db8:0:1::1").ok().unwrap();
        assert_eq!(count.of(address("2001:db8::9")), 2);
        // A proxy and its client may be in one network.
        let most = |max_per_ip| ConnectionBounds { max_per_ip, ..at_most(99) };
        assert!(second.recount_for(address("2001:db8::7"), most(2)).is_ok());
        assert!(second.recount_for(address("2001:db8:0:1::7"), most(1)).is_err());
        drop((first, second, other));
        assert_eq!(count.of(address("2001:db8::1")), 0);
    }
}

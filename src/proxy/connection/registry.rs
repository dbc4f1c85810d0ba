//! The registry of client connections: how many there are over all workers and per address (`max_connections`,
//! `max_connections_per_ip`), and the state of each connection of a worker.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use slab::Slab;

use crate::proxy::connection::state::ConnectionState;
use crate::proxy::connection::timeouts::Ticks;
use crate::telemetry::metrics::Cutoff;

/// The most streams of idle HTTP/2 connections of one worker. Each connection counts with the most streams that it has
/// had at once, because the HTTP/2 library keeps about 2 KiB for each of them until the connection ends. Beyond that,
/// the worker closes the connections that have been idle for the longest time.
const IDLE_STREAMS: usize = 8192;

/// The number of connections over all workers.
#[derive(Default)]
pub struct ConnectionCount {
    all: AtomicUsize,
    by_ip: Mutex<HashMap<IpAddr, usize>>,
}

/// The connections of one worker.
pub struct ConnectionRegistry {
    count: Arc<ConnectionCount>,
    ticks: Ticks,
    states: RefCell<Slab<Rc<ConnectionState>>>,
}

/// Registers a connection until it is dropped. Every task that works for the connection holds the ticket, so that the
/// connection is counted and drained: for example an exchange that lingers after the client has left.
pub struct ConnectionTicket {
    connections: Rc<ConnectionRegistry>,
    state: Rc<ConnectionState>,
    key: usize,
    counted: CountedConnection,
}

/// Counts one connection, among all and among those of an address, until it is dropped.
pub struct CountedConnection {
    count: Arc<ConnectionCount>,
    peer: IpAddr,
}

impl ConnectionRegistry {
    pub fn new(count: Arc<ConnectionCount>) -> Rc<ConnectionRegistry> {
        Rc::new(ConnectionRegistry { count, ticks: Ticks::default(), states: RefCell::default() })
    }

    /// Registers a connection of `peer`.
    ///
    /// # Errors
    /// There are `max` connections already, or `max_per_ip` of that address.
    pub fn register(self: &Rc<Self>, peer: IpAddr, max: usize, max_per_ip: usize) -> Result<ConnectionTicket, Cutoff> {
        let place = CountedConnection::new(&self.count, peer, max, max_per_ip)?;
        let state = Rc::new(ConnectionState::new(self.ticks.clone()));
        let key = self.states.borrow_mut().insert(state.clone());
        Ok(ConnectionTicket { connections: self.clone(), state, key, counted: place })
    }

    /// Advances the worker's coarse clock to `now_ms`, and checks the timers of all connections.
    pub fn check_timers(&self, now_ms: u64) {
        self.ticks.set(now_ms);
        let mut idle_streams = 0;
        for (_, state) in &*self.states.borrow() {
            state.check_timers();
            idle_streams += state.idle_streams();
        }
        if idle_streams > IDLE_STREAMS {
            self.close_idle(idle_streams - IDLE_STREAMS);
        }
    }

    /// Closes idle HTTP/2 connections, those that have been idle for the longest time first, until they add up to
    /// `streams`.
    fn close_idle(&self, streams: usize) {
        let states = self.states.borrow();
        let mut idle: Vec<&Rc<ConnectionState>> =
            states.iter().map(|(_, state)| state).filter(|state| state.idle_streams() > 0).collect();
        idle.sort_by_key(|state| state.idle_since_ms());
        let mut closed = 0;
        for state in idle {
            if closed >= streams {
                return;
            }
            closed += state.idle_streams();
            state.close_idle();
        }
    }

    /// Wakes the task of each connection, so that it checks the drain stage.
    pub fn wake_all(&self) {
        self.states.borrow().iter().for_each(|(_, state)| state.wake_task());
    }

    /// Ends each connection without a response.
    pub fn cut_all(&self) {
        self.states.borrow().iter().for_each(|(_, state)| state.cut_off());
    }

    /// Returns the number of connections over all workers.
    pub fn count_of_all_workers(&self) -> usize {
        self.count.all.load(Ordering::Relaxed)
    }

    /// Closes one connection that has been idle for a while, to free its descriptor for a client that waits.
    pub fn close_one_resting(&self) {
        self.states.borrow().iter().any(|(_, state)| state.close_if_resting());
    }

    pub fn len(&self) -> usize {
        self.states.borrow().len()
    }

    pub fn is_empty(&self) -> bool {
        self.states.borrow().is_empty()
    }

    /// Returns whether a client waits for a response.
    pub fn has_waiting_client(&self) -> bool {
        self.states.borrow().iter().any(|(_, state)| state.has_waiting_client())
    }
}

impl ConnectionTicket {
    /// Returns the state of the connection.
    pub fn connection(&self) -> &Rc<ConnectionState> {
        &self.state
    }

    /// Counts the connection for `client` from now on, and no longer for the address that it had.
    ///
    /// # Errors
    /// There are `max_per_ip` connections of that address already.
    pub fn recount_for(&mut self, client: IpAddr, max_per_ip: usize) -> Result<(), Cutoff> {
        if client != self.counted.peer {
            self.counted = CountedConnection::new(&self.connections.count, client, usize::MAX, max_per_ip)?;
        }
        Ok(())
    }

    /// Counts what lingers beside other requests of the connection, for the same address.
    ///
    /// # Errors
    /// There are `max` connections already, or `max_per_ip` of that address.
    pub fn count_lingering(&self, max: usize, max_per_ip: usize) -> Result<CountedConnection, Cutoff> {
        CountedConnection::new(&self.connections.count, self.counted.peer, max, max_per_ip)
    }
}

impl Drop for ConnectionTicket {
    fn drop(&mut self) {
        self.connections.states.borrow_mut().remove(self.key);
    }
}

impl CountedConnection {
    fn new(
        count: &Arc<ConnectionCount>,
        peer: IpAddr,
        max: usize,
        max_per_ip: usize,
    ) -> Result<CountedConnection, Cutoff> {
        count.add_connection(peer, max, max_per_ip)?;
        Ok(CountedConnection { count: count.clone(), peer })
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        self.count.remove_connection(self.peer);
    }
}

impl ConnectionCount {
    fn add_connection(&self, peer: IpAddr, max: usize, max_per_ip: usize) -> Result<(), Cutoff> {
        if self.all.fetch_add(1, Ordering::Relaxed) >= max {
            self.all.fetch_sub(1, Ordering::Relaxed);
            return Err(Cutoff::MaxConnections);
        }
        let mut by_ip = self.by_ip.lock().unwrap_or_else(PoisonError::into_inner);
        let count = by_ip.entry(peer).or_default();
        if *count >= max_per_ip {
            self.all.fetch_sub(1, Ordering::Relaxed);
            return Err(Cutoff::MaxConnectionsPerIp);
        }
        *count += 1;
        Ok(())
    }

    fn remove_connection(&self, peer: IpAddr) {
        self.all.fetch_sub(1, Ordering::Relaxed);
        let mut by_ip = self.by_ip.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = by_ip.get_mut(&peer) {
            *count -= 1;
            if *count == 0 {
                by_ip.remove(&peer);
            }
        }
    }
}

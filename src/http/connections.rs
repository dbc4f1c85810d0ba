//! The client connections of the gateway: how many all workers have, and which ones a worker has. Made
//! by the workers.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use slab::Slab;

use crate::http::deadline::{ConnectionDeadline, Ticks};
use crate::metrics::Cutoff;

/// The streams of idle HTTP/2 connections of one worker, each connection counted by the most streams that it has had at
/// once. The HTTP/2 library keeps about 2 KiB for each of them until the connection ends. When there are more, the
/// connections that have been idle for the longest time are closed.
const IDLE_STREAMS: usize = 8192;

/// How many connections there are, over all workers.
#[derive(Default)]
pub struct ConnectionCount {
    all: AtomicUsize,
    by_ip: Mutex<HashMap<IpAddr, usize>>,
}

/// One worker's connections.
pub struct Connections {
    count: Arc<ConnectionCount>,
    ticks: Ticks,
    deadlines: RefCell<Slab<Rc<ConnectionDeadline>>>,
}

/// A connection's place among the others, which it leaves when dropped. Whatever goes on for the
/// connection keeps it, so that it is counted and drained: an exchange after its client left, for one.
pub struct Ticket {
    connections: Rc<Connections>,
    deadline: Rc<ConnectionDeadline>,
    key: usize,
    place: CountedPlace,
}

/// One more in the count of all connections, and in that of an address, until it is dropped.
pub struct CountedPlace {
    count: Arc<ConnectionCount>,
    peer: IpAddr,
}

impl Connections {
    pub fn new(count: Arc<ConnectionCount>) -> Rc<Connections> {
        Rc::new(Connections { count, ticks: Ticks::default(), deadlines: RefCell::default() })
    }

    /// A place for a connection of `peer`, unless there are `max` connections already, or `max_per_ip`
    /// of that address.
    pub fn enter(self: &Rc<Self>, peer: IpAddr, max: usize, max_per_ip: usize) -> Result<Ticket, Cutoff> {
        let place = CountedPlace::enter(&self.count, peer, max, max_per_ip)?;
        let deadline = Rc::new(ConnectionDeadline::new(self.ticks.clone()));
        let key = self.deadlines.borrow_mut().insert(deadline.clone());
        Ok(Ticket { connections: self.clone(), deadline, key, place })
    }

    /// Looks at all deadlines, `now_ms` after the worker's start.
    pub fn look(&self, now_ms: u64) {
        self.ticks.set(now_ms);
        let mut idle_streams = 0;
        for (_, deadline) in &*self.deadlines.borrow() {
            deadline.look();
            idle_streams += deadline.idle_streams();
        }
        if idle_streams > IDLE_STREAMS {
            self.close_idle(idle_streams - IDLE_STREAMS);
        }
    }

    /// Closes idle HTTP/2 connections that have had so many streams.
    fn close_idle(&self, streams: usize) {
        let deadlines = self.deadlines.borrow();
        let mut idle: Vec<&Rc<ConnectionDeadline>> =
            deadlines.iter().map(|(_, deadline)| deadline).filter(|deadline| deadline.idle_streams() > 0).collect();
        idle.sort_by_key(|deadline| deadline.idle_since_ms());
        let mut closed = 0;
        for deadline in idle {
            if closed >= streams {
                return;
            }
            closed += deadline.idle_streams();
            deadline.close_idle();
        }
    }

    /// Lets each connection look around.
    pub fn wake(&self) {
        self.each(ConnectionDeadline::wake);
    }

    /// Ends each connection wherever it is.
    pub fn cut(&self) {
        self.each(ConnectionDeadline::cut);
    }

    /// Over all workers.
    pub fn of_all(&self) -> usize {
        self.count.all.load(Ordering::Relaxed)
    }

    /// Ends one that has been idle for a while, for those that wait for its descriptor.
    pub fn make_room(&self) {
        self.deadlines.borrow().iter().any(|(_, deadline)| deadline.make_room());
    }

    pub fn len(&self) -> usize {
        self.deadlines.borrow().len()
    }

    pub fn is_empty(&self) -> bool {
        self.deadlines.borrow().is_empty()
    }

    /// There is none whose client waits for an answer.
    pub fn none_waits(&self) -> bool {
        !self.deadlines.borrow().iter().any(|(_, deadline)| deadline.is_awaited())
    }

    fn each(&self, act: impl Fn(&ConnectionDeadline)) {
        self.deadlines.borrow().iter().for_each(|(_, deadline)| act(deadline));
    }
}

impl Ticket {
    pub fn deadline(&self) -> &Rc<ConnectionDeadline> {
        &self.deadline
    }

    /// Counts the connection for another address than so far, unless that has `max_per_ip` already.
    pub fn count_for(&mut self, client: IpAddr, max_per_ip: usize) -> Result<(), Cutoff> {
        if client != self.place.peer {
            self.place = CountedPlace::enter(&self.connections.count, client, usize::MAX, max_per_ip)?;
        }
        Ok(())
    }

    /// A place of its own for what goes on beside others of the connection, counted for the same address.
    pub fn enter_beside(&self, max: usize, max_per_ip: usize) -> Result<CountedPlace, Cutoff> {
        CountedPlace::enter(&self.connections.count, self.place.peer, max, max_per_ip)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.connections.deadlines.borrow_mut().remove(self.key);
    }
}

impl CountedPlace {
    fn enter(
        count: &Arc<ConnectionCount>,
        peer: IpAddr,
        max: usize,
        max_per_ip: usize,
    ) -> Result<CountedPlace, Cutoff> {
        count.enter(peer, max, max_per_ip)?;
        Ok(CountedPlace { count: count.clone(), peer })
    }
}

impl Drop for CountedPlace {
    fn drop(&mut self) {
        self.count.leave(self.peer);
    }
}

impl ConnectionCount {
    fn enter(&self, peer: IpAddr, max: usize, max_per_ip: usize) -> Result<(), Cutoff> {
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

    fn leave(&self, peer: IpAddr) {
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

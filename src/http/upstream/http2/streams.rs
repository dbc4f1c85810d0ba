//! The HTTP/2 connections to one server: a request takes a place on one of them; where there is none, one
//! connection more is made for all that wait. Kept by `pool`.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;

use tokio::sync::Notify;

use super::{Http2Connection, STREAMS_MAX};
use crate::http::upstream::connect::ConnectError;

pub struct StreamPool {
    connections: RefCell<Vec<Rc<Http2Connection>>>,
    /// Connections that are being made.
    dials: Cell<usize>,
    /// Requests that wait for a place.
    waiting: Cell<usize>,
    /// Places that a connection of this server had lately.
    room: Cell<usize>,
    /// Failed so far, and why the last did.
    failures: Cell<u64>,
    failure: RefCell<Option<ConnectError>>,
    changed: Notify,
}

/// A place for one request on a connection that others share.
pub struct StreamPlace {
    pub connection: Rc<Http2Connection>,
    pool: Rc<StreamPool>,
    now_ms: Rc<Cell<u64>>,
}

/// Counts a request that waits.
pub struct WaitingRequests<'a>(&'a StreamPool);

impl StreamPool {
    pub fn new() -> Rc<StreamPool> {
        Rc::new(StreamPool {
            connections: RefCell::default(),
            dials: Cell::new(0),
            waiting: Cell::new(0),
            room: Cell::new(STREAMS_MAX),
            failures: Cell::new(0),
            failure: RefCell::default(),
            changed: Notify::new(),
        })
    }

    /// A place on a connection that there is, made at `since_ms` or later.
    pub fn place(self: &Rc<StreamPool>, now_ms: &Rc<Cell<u64>>, since_ms: u64) -> Option<StreamPlace> {
        let takes = |connection: &&Rc<Http2Connection>| connection.born_ms >= since_ms && connection.has_room();
        let connection = self.connections.borrow().iter().find(takes)?.clone();
        connection.enter();
        Some(StreamPlace { connection, pool: self.clone(), now_ms: now_ms.clone() })
    }

    pub fn has_place(&self) -> bool {
        self.connections.borrow().iter().any(|connection| connection.has_room())
    }

    /// Lets go of a connection that nobody uses. Where all are used and `also_used`, one takes nothing more.
    pub fn give_way(&self, also_used: bool) -> bool {
        let mut connections = self.connections.borrow_mut();
        let place = connections.iter().position(|connection| connection.in_use() == 0);
        match place.or_else(|| connections.len().checked_sub(1).filter(|_| also_used)) {
            Some(place) => {
                connections.remove(place).retire();
                true
            }
            None => false,
        }
    }

    pub fn wait(&self) -> WaitingRequests<'_> {
        self.waiting.set(self.waiting.get() + 1);
        WaitingRequests(self)
    }

    /// Whether those being made leave somebody without a place.
    pub fn needs_dial(&self) -> bool {
        self.dials.get() * self.room.get() < self.waiting.get()
    }

    pub fn dials(&self) -> bool {
        self.dials.get() > 0
    }

    pub fn dial(&self) {
        self.dials.set(self.dials.get() + 1);
    }

    /// A connection was made, be it none of HTTP/2, or failed.
    pub fn dialled(&self, outcome: Result<Option<Rc<Http2Connection>>, ConnectError>) {
        self.dials.set(self.dials.get() - 1);
        match outcome {
            Ok(Some(connection)) => self.add(connection),
            Ok(None) => {}
            Err(error) => {
                self.failures.set(self.failures.get() + 1);
                *self.failure.borrow_mut() = Some(error);
            }
        }
        self.changed.notify_waiters();
    }

    pub fn add(&self, connection: Rc<Http2Connection>) {
        self.room.set(connection.room().max(1));
        self.connections.borrow_mut().push(connection);
    }

    /// Waits until there may be a place.
    ///
    /// # Errors
    /// When a connection failed meanwhile.
    pub async fn change(&self) -> Result<(), ConnectError> {
        let before = self.failures.get();
        self.changed.notified().await;
        match &*self.failure.borrow() {
            Some(error) if self.failures.get() != before => {
                Err(ConnectError { fault: error.fault, reason: io::Error::other(error.reason.to_string()) })
            }
            _ => Ok(()),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.connections.borrow().is_empty()
    }

    /// Lets go of connections that have ended, are idle for `idle_ms` or older than `age_ms`.
    pub fn sweep(&self, now_ms: u64, age_ms: u64, idle_ms: u64) {
        self.connections.borrow_mut().retain(|connection| {
            connection.look(now_ms);
            let unused = connection.in_use() == 0;
            !connection.is_retired()
                && now_ms < connection.born_ms + age_ms
                && !(unused && now_ms >= connection.idle_ms.get() + idle_ms)
        });
    }
}

impl StreamPlace {
    pub fn now_ms(&self) -> u64 {
        self.now_ms.get()
    }
}

impl Drop for StreamPlace {
    fn drop(&mut self) {
        self.connection.leave(self.now_ms.get());
        if self.pool.waiting.get() > 0 {
            self.pool.changed.notify_waiters();
        }
    }
}

impl Drop for WaitingRequests<'_> {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get() - 1);
    }
}

//! The HTTP/2 connections of one worker to one server. A request takes a stream on one of them. If there is none,
//! requests wait together for one more connection. Kept by `pool`.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;

use tokio::sync::Notify;

use crate::proxy::outbound::dial::ConnectError;
use crate::proxy::outbound::http2::{Http2Connection, STREAMS_MAX};

/// The shared connections to one server.
pub struct StreamPool {
    connections: RefCell<Vec<Rc<Http2Connection>>>,
    /// Connections that are being opened.
    dials: Cell<usize>,
    /// Requests that wait for a stream.
    waiting: Cell<usize>,
    /// Streams that the last new connection to this server allowed.
    streams_per_connection: Cell<usize>,
    /// Connections that could not be opened so far.
    failures: Cell<u64>,
    /// Why the last connection could not be opened.
    failure: RefCell<Option<ConnectError>>,
    changed: Notify,
}

/// The stream of one request on a shared connection.
pub struct StreamPermit {
    pub connection: Rc<Http2Connection>,
    pool: Rc<StreamPool>,
    now_ms: Rc<Cell<u64>>,
}

/// Counts a waiting request until it is dropped.
pub struct WaitingRequests<'a>(&'a StreamPool);

impl StreamPool {
    pub fn new() -> Rc<StreamPool> {
        Rc::new(StreamPool {
            connections: RefCell::default(),
            dials: Cell::new(0),
            waiting: Cell::new(0),
            streams_per_connection: Cell::new(STREAMS_MAX),
            failures: Cell::new(0),
            failure: RefCell::default(),
            changed: Notify::new(),
        })
    }

    /// Returns a stream on a connection that was opened at `since_ms` or later, if one is free.
    pub fn take_stream(self: &Rc<StreamPool>, now_ms: &Rc<Cell<u64>>, since_ms: u64) -> Option<StreamPermit> {
        let takes = |connection: &&Rc<Http2Connection>| connection.opened_ms >= since_ms && connection.has_capacity();
        let connection = self.connections.borrow().iter().find(takes)?.clone();
        connection.begin_request();
        Some(StreamPermit { connection, pool: self.clone(), now_ms: now_ms.clone() })
    }

    /// Returns whether a connection has a free stream.
    pub fn has_free_stream(&self) -> bool {
        self.connections.borrow().iter().any(|connection| connection.has_capacity())
    }

    /// Closes an unused connection. If all are in use and `also_used`, retires one: it accepts no further requests.
    /// Returns false if there was none.
    pub fn close_unused(&self, also_used: bool) -> bool {
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

    /// Counts a request that waits for a stream.
    pub fn count_waiting(&self) -> WaitingRequests<'_> {
        self.waiting.set(self.waiting.get() + 1);
        WaitingRequests(self)
    }

    /// Returns whether the connections that are being opened have too few streams for the waiting requests.
    pub fn needs_dial(&self) -> bool {
        self.dials.get() * self.streams_per_connection.get() < self.waiting.get()
    }

    /// Returns whether a connection is being opened.
    pub fn is_dialing(&self) -> bool {
        self.dials.get() > 0
    }

    /// Counts a connection that is being opened.
    pub fn count_dial(&self) {
        self.dials.set(self.dials.get() + 1);
    }

    /// Records the end of an attempt to open a connection. `Ok(None)`: it speaks HTTP/1.1.
    pub fn record_dial(&self, outcome: Result<Option<Rc<Http2Connection>>, ConnectError>) {
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

    /// Adds a new connection.
    pub fn add(&self, connection: Rc<Http2Connection>) {
        self.streams_per_connection.set(connection.max_streams().max(1));
        self.connections.borrow_mut().push(connection);
    }

    /// Waits until a stream may be free.
    ///
    /// # Errors
    /// A connection could not be opened in the meantime.
    pub async fn wait_for_change(&self) -> Result<(), ConnectError> {
        let before = self.failures.get();
        self.changed.notified().await;
        match &*self.failure.borrow() {
            Some(error) if self.failures.get() != before => {
                Err(ConnectError { end: error.end, reason: io::Error::other(error.reason.to_string()) })
            }
            _ => Ok(()),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.connections.borrow().is_empty()
    }

    /// Drops connections that have ended, are idle for `idle_ms`, are older than `age_ms`, or are idle and accept no
    /// stream.
    pub fn sweep(&self, now_ms: u64, age_ms: u64, idle_ms: u64) {
        self.connections.borrow_mut().retain(|connection| {
            connection.check_ping(now_ms);
            let is_unused = connection.in_use() == 0;
            !connection.is_retired()
                && now_ms < connection.opened_ms + age_ms
                && !(is_unused && (now_ms >= connection.idle_ms.get() + idle_ms || connection.max_streams() == 0))
        });
    }
}

impl StreamPermit {
    pub fn now_ms(&self) -> u64 {
        self.now_ms.get()
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        self.connection.end_request(self.now_ms.get());
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

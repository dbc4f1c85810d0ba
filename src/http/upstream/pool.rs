//! One worker's connections to the servers of the upstreams: idle ones are kept by server, last
//! used first, and survive a reload that keeps the server. Used by `servers`.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use http::HeaderValue;
use tokio::time::timeout;

use super::connect::{ConnectError, UpstreamConnection};
use crate::upstream::Origin;
use crate::upstream::state::InFlight;

/// Shorter than the 5 s after which common application servers close an idle connection. Those kept are
/// never more than were in use at once within this time.
const IDLE_MS: u64 = 4_000;
/// Connections are renewed after this long, so that a changed name or balance takes effect.
const AGE_MS: u64 = 3_600_000;

/// All servers this worker talks to. Cheap to clone.
#[derive(Clone, Default)]
pub struct Pools {
    servers: Rc<RefCell<HashMap<Origin, Rc<ServerPool>>>>,
    now_ms: Rc<Cell<u64>>,
}

pub struct ServerPool {
    origin: Origin,
    /// What it reads as `Host` unless that is the request's.
    pub host: HeaderValue,
    idle: RefCell<Vec<Idle>>,
    in_flight: Cell<u32>,
    now_ms: Rc<Cell<u64>>,
}

struct Idle {
    connection: UpstreamConnection,
    since_ms: u64,
    born_ms: u64,
}

/// A connection in use by one request.
pub struct PooledConnection {
    pub connection: UpstreamConnection,
    /// It served a request before, so the server may be closing it right now.
    pub reused: bool,
    /// Counts the request in flight for all workers.
    pub counted: Option<InFlight>,
    born_ms: u64,
    max_idle: usize,
    load: Load,
}

/// Counts a request in flight at its server.
struct Load(Rc<ServerPool>);

impl Pools {
    /// The connections to a server of `origin`.
    pub fn of(&self, origin: &Origin) -> Rc<ServerPool> {
        let make = || Rc::new(ServerPool::new(origin, self.now_ms.clone()));
        self.servers.borrow_mut().entry(origin.clone()).or_insert_with(make).clone()
    }

    /// Milliseconds on the clock of the last sweep.
    pub fn now_ms(&self) -> u64 {
        self.now_ms.get()
    }

    /// Closes connections that are idle too long and forgets servers no view names any more.
    pub fn sweep(&self, now_ms: u64) {
        self.now_ms.set(now_ms);
        self.servers.borrow_mut().retain(|_, server| {
            let kept = |idle: &mut Idle| now_ms < idle.since_ms + IDLE_MS && idle.connection.is_quiet();
            server.idle.borrow_mut().retain_mut(kept);
            Rc::strong_count(server) > 1
        });
    }
}

impl ServerPool {
    fn new(origin: &Origin, now_ms: Rc<Cell<u64>>) -> ServerPool {
        ServerPool {
            host: HeaderValue::from_str(origin.host()).unwrap_or(HeaderValue::from_static("localhost")),
            origin: origin.clone(),
            idle: RefCell::default(),
            in_flight: Cell::new(0),
            now_ms,
        }
    }

    pub fn authority(&self) -> &str {
        &self.origin.authority
    }

    /// Requests in flight.
    pub fn load(&self) -> u32 {
        self.in_flight.get()
    }

    /// An idle connection, if there is one.
    pub fn idle(self: &Rc<ServerPool>, max_idle: usize) -> Option<PooledConnection> {
        loop {
            let Idle { mut connection, born_ms, .. } = self.idle.borrow_mut().pop()?;
            if connection.is_quiet() {
                return Some(self.lease(connection, true, born_ms, max_idle));
            }
        }
    }

    /// A new connection, name look-up included, within `limit`.
    pub async fn connect(
        self: &Rc<ServerPool>,
        limit: Duration,
        max_idle: usize,
    ) -> Result<PooledConnection, ConnectError> {
        let opened = timeout(limit, UpstreamConnection::open(&self.origin)).await;
        let connection = opened.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))?;
        Ok(self.lease(connection, false, self.now_ms.get(), max_idle))
    }

    fn lease(
        self: &Rc<ServerPool>,
        connection: UpstreamConnection,
        reused: bool,
        born_ms: u64,
        max_idle: usize,
    ) -> PooledConnection {
        self.in_flight.set(self.in_flight.get() + 1);
        PooledConnection { connection, reused, counted: None, born_ms, max_idle, load: Load(self.clone()) }
    }
}

impl PooledConnection {
    pub fn server(&self) -> &ServerPool {
        &self.load.0
    }

    /// Keeps the connection for another request: the exchange ended cleanly on both sides.
    pub fn release(self) {
        let PooledConnection { mut connection, born_ms, max_idle, load, .. } = self;
        let now_ms = load.0.now_ms.get();
        let mut idle = load.0.idle.borrow_mut();
        if idle.len() < max_idle && now_ms < born_ms + AGE_MS && connection.received.is_empty() {
            connection.rest();
            idle.push(Idle { connection, since_ms: now_ms, born_ms });
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.in_flight.set(self.0.in_flight.get() - 1);
    }
}

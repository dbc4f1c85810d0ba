//! One worker's connections to the servers of the upstreams: idle ones are kept by server, last
//! used first, and survive a reload that keeps the server. Used by `lineup` and `asked`.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use tokio::task::spawn_local;
use tokio::time::timeout;

use super::connect::{ConnectError, ConnectFault, DialQueue, UpstreamConnection};
use super::http2::Http2Connection;
use super::http2::streams::{StreamPlace, StreamPool};
use crate::descriptors;
use crate::sampled::Sampled;
use crate::upstream::WireProtocol;
use crate::upstream::caps::{CapRule, InFlight, UpstreamLoad};
use crate::upstream::endpoint::Endpoint;
use crate::upstream::state::ServerState;

/// Shorter than the 5 s after which common application servers close an idle connection. Those kept are
/// never more than were in use at once within this time.
const IDLE_MS: u64 = 4_000;
/// Connections are renewed after this long, so that a changed balance takes effect.
const AGE_MS: u64 = 3_600_000;
/// Those of HTTP/2; shorter than what servers and what is between allow.
const STREAM_IDLE_MS: u64 = 60_000;

/// A server, and the upstream that has its connections alone.
type PoolKey = (Endpoint, Option<String>);

/// All servers this worker talks to. Cheap to clone.
#[derive(Clone, Default)]
pub struct Pools {
    servers: Rc<RefCell<HashMap<PoolKey, Rc<ServerPool>>>>,
    now_ms: Rc<Cell<u64>>,
    max_unread: Rc<Cell<usize>>,
    /// Of descriptors, as far as this worker has seen.
    shortages: Rc<Cell<usize>>,
}

pub struct ServerPool {
    endpoint: Endpoint,
    /// What the access log and the log call it.
    label: String,
    /// What it reads as `Host` unless that is the request's.
    pub host: HeaderValue,
    idle: RefCell<Vec<Idle>>,
    streams: Rc<StreamPool>,
    /// What its connections speak, as far as that is known.
    speaks: Cell<WireProtocol>,
    /// What its connections begin with: nothing, or a PROXY header, and then they are for that client alone.
    introduction: Option<Rc<[u8]>>,
    /// Those, by what they begin with.
    of_clients: RefCell<HashMap<Rc<[u8]>, Rc<ServerPool>>>,
    counts: Rc<ServerCounts>,
    cap: RefCell<Option<Rc<PoolCap>>>,
    now_ms: Rc<Cell<u64>>,
    max_unread: Rc<Cell<usize>>,
}

/// What bounds the connections of a pool, which is then of one upstream alone.
pub struct PoolCap {
    pub upstream: String,
    pub rule: CapRule,
    pub state: Arc<ServerState>,
    pub load: Arc<UpstreamLoad>,
    /// Whose pool it is.
    pub worker: usize,
}

/// Of one server, whomever its connections are for.
#[derive(Default)]
struct ServerCounts {
    in_flight: Cell<u32>,
    idle: Cell<usize>,
    dial_queue: DialQueue,
    floods: Rc<Sampled>,
}

struct Idle {
    connection: UpstreamConnection,
    since_ms: u64,
    born_ms: u64,
}

/// A connection in use by one request.
pub struct PooledConnection {
    pub connection: UpstreamConnection,
    /// It served a request before.
    reused: bool,
    /// Counts the request in flight for all workers.
    counted: Option<InFlight>,
    born_ms: u64,
    max_idle: usize,
    load: Load,
}

/// What a request has of its server.
pub enum ServerLease {
    Connection(PooledConnection),
    Stream(PooledStream),
}

/// A place on a connection that many requests share.
pub struct PooledStream {
    place: StreamPlace,
    /// The connection served a request before.
    reused: bool,
    /// Counts the request in flight for all workers.
    counted: Option<InFlight>,
    load: Load,
}

/// Counts a request in flight at its server.
struct Load(Rc<ServerPool>);

impl Pools {
    /// The connections to one server.
    pub fn of(&self, endpoint: &Endpoint, cap: Option<PoolCap>) -> Rc<ServerPool> {
        let make = || Rc::new(ServerPool::new(endpoint, self.now_ms.clone(), self.max_unread.clone()));
        let key = (endpoint.clone(), cap.as_ref().map(|cap| cap.upstream.clone()));
        let pool = self.servers.borrow_mut().entry(key).or_insert_with(make).clone();
        *pool.cap.borrow_mut() = cap.map(Rc::new);
        pool
    }

    /// What the kernel keeps of an answer until it is read, in bytes, for new connections; 0 = as it likes.
    pub fn bound_unread(&self, max: usize) {
        self.max_unread.set(max);
    }

    /// Milliseconds on the clock of the last sweep.
    pub fn now_ms(&self) -> u64 {
        self.now_ms.get()
    }

    /// Closes connections that are idle too long and forgets servers no view names any more.
    pub fn sweep(&self, now_ms: u64) {
        self.now_ms.set(now_ms);
        let shortages = descriptors::shortages();
        if self.shortages.replace(shortages) != shortages {
            self.close_idle();
        }
        self.servers.borrow_mut().retain(|_, server| {
            server.sweep(now_ms);
            server.answer_claim();
            Rc::strong_count(server) > 1
        });
    }

    /// Closes connections that nobody uses: others want their descriptors.
    pub fn close_idle(&self) {
        self.servers.borrow().values().for_each(|server| server.close_idle());
    }
}

impl ServerPool {
    fn new(endpoint: &Endpoint, now_ms: Rc<Cell<u64>>, max_unread: Rc<Cell<usize>>) -> ServerPool {
        let origin = &endpoint.origin;
        ServerPool {
            host: HeaderValue::from_str(origin.host()).unwrap_or(HeaderValue::from_static("localhost")),
            endpoint: endpoint.clone(),
            label: endpoint.label(),
            idle: RefCell::default(),
            streams: StreamPool::new(),
            speaks: Cell::new(origin.protocol()),
            introduction: None,
            of_clients: RefCell::default(),
            counts: Rc::default(),
            cap: RefCell::default(),
            now_ms,
            max_unread,
        }
    }

    /// Its connections that begin with `introduction`.
    pub fn of_client(&self, introduction: &Rc<[u8]>) -> Rc<ServerPool> {
        let make = || {
            Rc::new(ServerPool {
                introduction: Some(introduction.clone()),
                counts: self.counts.clone(),
                ..ServerPool::new(&self.endpoint, self.now_ms.clone(), self.max_unread.clone())
            })
        };
        let pool = self.of_clients.borrow_mut().entry(introduction.clone()).or_insert_with(make).clone();
        pool.cap.borrow_mut().clone_from(&self.cap.borrow());
        pool
    }

    fn close_idle(&self) {
        self.idle.borrow_mut().clear();
        self.counts.idle.set(0);
        while self.streams.give_way(false) {}
        self.of_clients.borrow().values().for_each(|pool| pool.close_idle());
    }

    fn sweep(&self, now_ms: u64) {
        let kept = |idle: &mut Idle| now_ms < idle.since_ms + IDLE_MS && idle.connection.is_quiet();
        let mut idle = self.idle.borrow_mut();
        let before = idle.len();
        idle.retain_mut(kept);
        self.counts.idle.set(self.counts.idle.get() - (before - idle.len()));
        // A client that has gone asks for nothing more.
        let stream_idle_ms = if self.introduction.is_some() { IDLE_MS } else { STREAM_IDLE_MS };
        self.streams.sweep(now_ms, AGE_MS, stream_idle_ms);
        self.of_clients.borrow_mut().retain(|_, pool| {
            pool.sweep(now_ms);
            Rc::strong_count(pool) > 1 || !pool.is_empty()
        });
    }

    /// Closes a connection that another worker waits for, or has the next one closed.
    fn answer_claim(&self) {
        let Some(cap) = self.cap.borrow().clone() else { return };
        if let Some(claimant) = cap.state.claim.take(cap.worker)
            && !self.give_way(true)
        {
            cap.state.claim.make(claimant);
        }
    }

    /// Closes a connection that nobody uses, so that another can be made. Where there is none and `also_used`,
    /// one that others share takes nothing more.
    pub fn give_way(&self, also_used: bool) -> bool {
        let mut idle = self.idle.borrow_mut();
        if !idle.is_empty() {
            idle.remove(0);
            self.counts.idle.set(self.counts.idle.get() - 1);
            return true;
        }
        drop(idle);
        self.streams.give_way(also_used) || self.of_clients.borrow().values().any(|pool| pool.give_way(also_used))
    }

    /// There is a connection for a request, or a place on one.
    pub fn has_ready(&self) -> bool {
        match self.speaks.get() {
            WireProtocol::Http1 => !self.idle.borrow().is_empty(),
            WireProtocol::Http2 => self.streams.has_place(),
            WireProtocol::Auto => false,
        }
    }

    fn is_empty(&self) -> bool {
        self.idle.borrow().is_empty() && self.streams.is_empty()
    }

    pub fn label(&self) -> &str {
        &self.label
    }

    /// Where the config says that it is: `host:port`, or the path of a socket.
    pub fn authority(&self) -> &str {
        &self.endpoint.origin.authority
    }

    /// Requests in flight.
    pub fn load(&self) -> u32 {
        self.counts.in_flight.get()
    }

    /// A connection that there is, or a place on one; made then or later if `since_ms` says when.
    pub fn ready(self: &Rc<ServerPool>, max_idle: usize, since_ms: Option<u64>) -> Option<ServerLease> {
        match self.speaks.get() {
            // Those that are idle have served.
            WireProtocol::Http1 if since_ms.is_some() => None,
            WireProtocol::Http1 => self.idle(max_idle).map(ServerLease::Connection),
            WireProtocol::Http2 => self.place(since_ms).map(ServerLease::Stream),
            // Nothing has been made yet.
            WireProtocol::Auto => None,
        }
    }

    fn place(self: &Rc<ServerPool>, since_ms: Option<u64>) -> Option<PooledStream> {
        let place = self.streams.place(&self.now_ms, since_ms.unwrap_or(0))?;
        let reused = place.connection.served.replace(true);
        Some(PooledStream { place, reused, counted: None, load: self.count_in() })
    }

    fn count_in(self: &Rc<ServerPool>) -> Load {
        self.counts.in_flight.set(self.counts.in_flight.get() + 1);
        Load(self.clone())
    }

    /// An idle connection, if there is one.
    fn idle(self: &Rc<ServerPool>, max_idle: usize) -> Option<PooledConnection> {
        loop {
            let Idle { mut connection, born_ms, .. } = self.idle.borrow_mut().pop()?;
            self.counts.idle.set(self.counts.idle.get() - 1);
            if connection.is_quiet() {
                return Some(self.lease(connection, true, born_ms, max_idle));
            }
        }
    }

    /// A new connection, or a place on one, made at `since_ms` or later if that is said; within `limit`.
    pub async fn connect(
        self: &Rc<ServerPool>,
        limit: Duration,
        max_idle: usize,
        since_ms: Option<u64>,
    ) -> Result<ServerLease, ConnectError> {
        // It is load from now on, or a server that answers no connect would draw all requests.
        let _connecting = self.count_in();
        let connected = timeout(limit, self.shared(limit, max_idle, since_ms)).await;
        connected.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
    }

    /// A place on a connection, made where there is none; or what there is instead when the server turns out
    /// to speak HTTP/1.1.
    async fn shared(
        self: &Rc<ServerPool>,
        limit: Duration,
        max_idle: usize,
        since_ms: Option<u64>,
    ) -> Result<ServerLease, ConnectError> {
        let _waiting = self.streams.wait();
        loop {
            if let Some(lease) = self.ready(max_idle, since_ms) {
                return Ok(lease);
            }
            if self.speaks.get() == WireProtocol::Http1 {
                return match self.open(limit).await? {
                    Opened::Connection(connection) => {
                        Ok(ServerLease::Connection(self.lease(connection, false, self.now_ms.get(), max_idle)))
                    }
                    // It chose another protocol than before.
                    Opened::Shared(connection) => {
                        self.streams.add(connection);
                        continue;
                    }
                };
            }
            if self.streams.needs_dial() {
                self.streams.dial();
                spawn_local(self.clone().dial(limit));
            }
            self.streams.change().await?;
        }
    }

    /// Makes a connection for whoever waits.
    async fn dial(self: Rc<ServerPool>, limit: Duration) {
        let outcome = match self.open(limit).await {
            Ok(Opened::Shared(connection)) => Ok(Some(connection)),
            Ok(Opened::Connection(connection)) => {
                let now_ms = self.now_ms.get();
                self.keep(Idle { connection, since_ms: now_ms, born_ms: now_ms });
                Ok(None)
            }
            Err(error) => Err(error),
        };
        self.streams.dialled(outcome);
        if let Some(cap) = &*self.cap.borrow() {
            // There are more places than one, or the room for a connection is free again.
            cap.load.line.stir();
        }
    }

    /// A connection that many will share is being made.
    pub fn dials(&self) -> bool {
        self.streams.dials() || self.of_clients.borrow().values().any(|pool| pool.dials())
    }

    /// A new connection, handshakes included, within `limit`.
    async fn open(&self, limit: Duration) -> Result<Opened, ConnectError> {
        let cap = self.cap.borrow().clone();
        let slot = match cap {
            None => None,
            Some(cap) => Some(cap.rule.connect(&cap.state, &cap.load).ok_or_else(full)?),
        };
        let introduction = self.introduction.as_deref().unwrap_or_default();
        let opening = async {
            let mut connection =
                UpstreamConnection::open(&self.endpoint, introduction, &self.counts.dial_queue).await?;
            connection.bound_unread(self.max_unread.get());
            connection.slot = slot;
            match connection.http2 {
                false => Ok(Opened::Connection(connection)),
                true => Http2Connection::start(connection, self.now_ms.get(), &self.label, &self.counts.floods)
                    .await
                    .map(Opened::Shared),
            }
        };
        let opened = timeout(limit, opening).await;
        let opened = opened.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))?;
        self.speaks.set(match &opened {
            Opened::Connection(_) => WireProtocol::Http1,
            Opened::Shared(_) => WireProtocol::Http2,
        });
        Ok(opened)
    }

    fn keep(&self, idle: Idle) {
        self.counts.idle.set(self.counts.idle.get() + 1);
        self.idle.borrow_mut().push(idle);
    }

    fn lease(
        self: &Rc<ServerPool>,
        connection: UpstreamConnection,
        reused: bool,
        born_ms: u64,
        max_idle: usize,
    ) -> PooledConnection {
        PooledConnection { connection, reused, counted: None, born_ms, max_idle, load: self.count_in() }
    }
}

fn full() -> ConnectError {
    let reason = io::Error::other("the server has as many connections as it may");
    ConnectError { fault: ConnectFault::MaxConnections, reason }
}

/// A new connection, by what it speaks.
enum Opened {
    Connection(UpstreamConnection),
    Shared(Rc<Http2Connection>),
}

impl ServerLease {
    pub fn server(&self) -> &ServerPool {
        match self {
            ServerLease::Connection(lease) => lease.server(),
            ServerLease::Stream(lease) => lease.server(),
        }
    }

    /// Counts the request for all workers.
    pub fn count(&mut self, counted: InFlight) {
        match self {
            ServerLease::Connection(lease) => lease.counted = Some(counted),
            ServerLease::Stream(lease) => lease.counted = Some(counted),
        }
    }

    /// Its connection served a request before, so the server may be closing it right now.
    pub fn is_reused(&self) -> bool {
        match self {
            ServerLease::Connection(lease) => lease.reused,
            ServerLease::Stream(lease) => lease.reused,
        }
    }
}

impl PooledStream {
    pub fn server(&self) -> &ServerPool {
        &self.load.0
    }

    pub fn connection(&self) -> &Http2Connection {
        &self.place.connection
    }

    pub fn is_secure(&self) -> bool {
        self.load.0.endpoint.origin.is_secure()
    }

    pub fn now_ms(&self) -> u64 {
        self.place.now_ms()
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
        let cap = load.0.cap.borrow();
        if cap.as_ref().is_some_and(|cap| cap.state.claim.take(cap.worker).is_some()) {
            return;
        }
        if load.0.counts.idle.get() < max_idle && now_ms < born_ms + AGE_MS && connection.received.is_empty() {
            connection.rest();
            load.0.keep(Idle { connection, since_ms: now_ms, born_ms });
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let in_flight = &self.0.counts.in_flight;
        in_flight.set(in_flight.get() - 1);
    }
}

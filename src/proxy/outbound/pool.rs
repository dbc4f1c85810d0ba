//! The connections of one worker to one server. Idle connections are reused last in, first out. Kept by `pools`, used
//! by `select::endpoint`.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use tokio::task::spawn_local;
use tokio::time::timeout;

use crate::ends::End;
use crate::proxy::outbound::bulk::BulkBudget;
use crate::proxy::outbound::dial::{ConnectError, DialQueue, UpstreamConnection};
use crate::proxy::outbound::http2::Http2Connection;
use crate::proxy::outbound::http2::streams::{StreamPermit, StreamPool};
use crate::telemetry::sampled::LogSampler;
use crate::upstream::caps::{CapRule, InFlight, UpstreamLoad};
use crate::upstream::endpoint::Endpoint;
use crate::upstream::state::ServerState;
use crate::upstream::{HeadBounds, WireProtocol};

/// How long an idle HTTP/1.1 connection is kept: less than the 5 s after which common application servers close one.
/// The pool thus never holds more connections than were in use at once within this time.
const IDLE_MS: u64 = 4_000;
/// Age at which a connection is replaced, so that a changed balance takes effect.
const AGE_MS: u64 = 3_600_000;
/// How long an idle HTTP/2 connection is kept: less than servers and middleboxes allow.
const STREAM_IDLE_MS: u64 = 60_000;

/// The connections of one worker to one server. With an `proxy_header`, those of one client only.
pub struct ServerPool {
    endpoint: Endpoint,
    /// Name of the server in logs.
    label: String,
    /// The server's own `Host`, for requests whose own is not forwarded.
    pub host: HeaderValue,
    idle: RefCell<Vec<IdleConnection>>,
    streams: Rc<StreamPool>,
    /// The HTTP version of its connections, as far as that is known.
    protocol: Cell<WireProtocol>,
    /// The PROXY header that its connections begin with: they are then for that client only.
    proxy_header: Option<Rc<[u8]>>,
    /// The pools of single clients, by their PROXY header.
    client_pools: RefCell<HashMap<Rc<[u8]>, Rc<ServerPool>>>,
    counts: Rc<PoolCounts>,
    cap: RefCell<Option<Rc<PoolCap>>>,
    shared: WorkerShared,
}

/// State that all pools of a worker share. Cheap to clone.
#[derive(Clone)]
pub struct WorkerShared {
    /// The coarse clock in milliseconds.
    pub now_ms: Rc<Cell<u64>>,
    /// Bound of the unread bytes per connection; 0 leaves that to the kernel.
    pub max_unread: Rc<Cell<usize>>,
    pub bulk: Rc<BulkBudget>,
}

/// The limit of connections of a pool. Such a pool belongs to one upstream only.
pub struct PoolCap {
    pub upstream: String,
    pub rule: CapRule,
    pub state: Arc<ServerState>,
    pub load: Arc<UpstreamLoad>,
    /// The worker that has the pool.
    pub worker: usize,
}

/// Counts of one server over the pools of all its clients.
#[derive(Default)]
struct PoolCounts {
    in_flight: Cell<u32>,
    idle: Cell<usize>,
    dial_queue: DialQueue,
    floods: Rc<LogSampler>,
}

/// An idle HTTP/1.1 connection.
struct IdleConnection {
    connection: Box<UpstreamConnection>,
    since_ms: u64,
    opened_ms: u64,
}

/// A connection in use by one request.
pub struct PooledConnection {
    /// Boxed once, because each request moves it several times.
    pub connection: Box<UpstreamConnection>,
    /// The connection has served a request before.
    reused: bool,
    /// Counts the request in flight for all workers.
    counted: Option<InFlight>,
    opened_ms: u64,
    max_idle: usize,
    load: RequestCount,
}

/// The connection of a request: its own over HTTP/1.1, a stream of a shared one over HTTP/2.
pub enum ServerLease {
    Connection(PooledConnection),
    Stream(PooledStream),
}

/// A stream on a connection that many requests share.
pub struct PooledStream {
    place: StreamPermit,
    /// The connection has served a request before.
    reused: bool,
    /// Counts the request in flight for all workers.
    counted: Option<InFlight>,
    load: RequestCount,
}

/// Counts a request in flight at its server in this worker.
struct RequestCount(Rc<ServerPool>);

impl ServerPool {
    /// Returns an empty pool.
    pub fn new(endpoint: &Endpoint, shared: WorkerShared) -> ServerPool {
        let origin = &endpoint.origin;
        ServerPool {
            host: HeaderValue::from_str(origin.default_host()).unwrap_or(HeaderValue::from_static("localhost")),
            endpoint: endpoint.clone(),
            label: endpoint.label(),
            idle: RefCell::default(),
            streams: StreamPool::new(),
            protocol: Cell::new(origin.protocol()),
            proxy_header: None,
            client_pools: RefCell::default(),
            counts: Rc::default(),
            cap: RefCell::default(),
            shared,
        }
    }

    /// Replaces the limit of connections.
    pub fn set_cap(&self, cap: Option<PoolCap>) {
        *self.cap.borrow_mut() = cap.map(Rc::new);
    }

    /// Returns the pool of the connections that begin with `proxy_header`.
    pub fn client_pool(&self, proxy_header: &Rc<[u8]>) -> Rc<ServerPool> {
        let make = || {
            Rc::new(ServerPool {
                proxy_header: Some(proxy_header.clone()),
                counts: self.counts.clone(),
                ..ServerPool::new(&self.endpoint, self.shared.clone())
            })
        };
        let pool = self.client_pools.borrow_mut().entry(proxy_header.clone()).or_insert_with(make).clone();
        pool.cap.borrow_mut().clone_from(&self.cap.borrow());
        pool
    }

    /// Closes all unused connections.
    pub fn close_idle(&self) {
        self.idle.borrow_mut().clear();
        self.counts.idle.set(0);
        while self.streams.close_unused(false) {}
        self.client_pools.borrow().values().for_each(|pool| pool.close_idle());
    }

    /// Closes connections that are idle for too long, and drops the pools of clients that have disconnected.
    pub fn sweep(&self, now_ms: u64) {
        let is_kept = |idle: &mut IdleConnection| now_ms < idle.since_ms + IDLE_MS && idle.connection.is_quiet();
        let mut idle = self.idle.borrow_mut();
        let before = idle.len();
        idle.retain_mut(is_kept);
        self.counts.idle.set(self.counts.idle.get() - (before - idle.len()));
        // A connection for one client is of no use after the client has disconnected.
        let stream_idle_ms = if self.proxy_header.is_some() { IDLE_MS } else { STREAM_IDLE_MS };
        self.streams.sweep(now_ms, AGE_MS, stream_idle_ms);
        self.client_pools.borrow_mut().retain(|_, pool| {
            pool.sweep(now_ms);
            Rc::strong_count(pool) > 1 || !pool.is_empty()
        });
    }

    /// Closes a connection that another worker claims. Without one to close, renews the claim for the next worker.
    pub fn serve_claim(&self) {
        let Some(cap) = self.cap.borrow().clone() else { return };
        if let Some(claimant) = cap.state.claim.take_from_other(cap.worker)
            && !self.close_unused(true)
        {
            cap.state.claim.claim_for(claimant);
        }
    }

    /// Closes an unused connection, so that another one can be opened. Returns false if there is none. With
    /// `also_used`, a shared connection in use is then retired instead: it accepts no further requests.
    pub fn close_unused(&self, also_used: bool) -> bool {
        let mut idle = self.idle.borrow_mut();
        if !idle.is_empty() {
            idle.remove(0);
            self.counts.idle.set(self.counts.idle.get() - 1);
            return true;
        }
        drop(idle);
        self.streams.close_unused(also_used)
            || self.client_pools.borrow().values().any(|pool| pool.close_unused(also_used))
    }

    /// Returns whether there is an idle connection, or a free stream on a shared one.
    pub fn has_ready(&self) -> bool {
        match self.protocol.get() {
            WireProtocol::Http1 => !self.idle.borrow().is_empty(),
            WireProtocol::Http2 => self.streams.has_free_stream(),
            WireProtocol::Auto => false,
        }
    }

    fn is_empty(&self) -> bool {
        self.idle.borrow().is_empty() && self.streams.is_empty()
    }

    /// Returns the name of the server in logs.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Returns whether the scheme of the server's URL is `https`.
    pub fn is_https(&self) -> bool {
        self.endpoint.origin.is_secure()
    }

    /// Returns how large the heads of the server's responses may be.
    pub fn head_bounds(&self) -> HeadBounds {
        self.endpoint.origin.head_bounds
    }

    /// Returns the location of the server in the config: `host:port`, or the path of a socket.
    pub fn authority(&self) -> &str {
        &self.endpoint.origin.authority
    }

    /// Returns the requests in flight in this worker.
    pub fn in_flight(&self) -> u32 {
        self.counts.in_flight.get()
    }

    /// Returns an idle connection, or a free stream on a shared one. With `since_ms`, only of a connection that was
    /// opened at that time or later.
    pub fn take_ready(self: &Rc<ServerPool>, max_idle: usize, since_ms: Option<u64>) -> Option<ServerLease> {
        match self.protocol.get() {
            // Idle HTTP/1.1 connections are older.
            WireProtocol::Http1 if since_ms.is_some() => None,
            WireProtocol::Http1 => self.take_idle(max_idle).map(ServerLease::Connection),
            WireProtocol::Http2 => self.take_stream(since_ms).map(ServerLease::Stream),
            // No connection was opened yet.
            WireProtocol::Auto => None,
        }
    }

    fn take_stream(self: &Rc<ServerPool>, since_ms: Option<u64>) -> Option<PooledStream> {
        let place = self.streams.take_stream(&self.shared.now_ms, since_ms.unwrap_or(0))?;
        let is_reused = place.connection.served.replace(true);
        Some(PooledStream { place, reused: is_reused, counted: None, load: self.count_request() })
    }

    fn count_request(self: &Rc<ServerPool>) -> RequestCount {
        self.counts.in_flight.set(self.counts.in_flight.get() + 1);
        RequestCount(self.clone())
    }

    /// Returns an idle connection that the server has not closed, if there is one.
    fn take_idle(self: &Rc<ServerPool>, max_idle: usize) -> Option<PooledConnection> {
        loop {
            let IdleConnection { mut connection, opened_ms, .. } = self.idle.borrow_mut().pop()?;
            self.counts.idle.set(self.counts.idle.get() - 1);
            if connection.is_quiet() {
                return Some(self.lease_connection(connection, true, opened_ms, max_idle));
            }
        }
    }

    /// Opens a connection, or waits for a stream on a shared one, within `limit`. `since_ms`: see
    /// [`ServerPool::take_ready`].
    pub async fn connect(
        self: &Rc<ServerPool>,
        limit: Duration,
        max_idle: usize,
        since_ms: Option<u64>,
    ) -> Result<ServerLease, ConnectError> {
        // The attempt counts as load. Otherwise a server that does not respond would attract all requests.
        let _connecting = self.count_request();
        let result = timeout(limit, self.wait_for_lease(limit, max_idle, since_ms)).await;
        result.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
    }

    /// Waits for a stream on a shared connection, and opens one if there are too few. If the server turns out to speak
    /// HTTP/1.1, returns a connection of its own.
    async fn wait_for_lease(
        self: &Rc<ServerPool>,
        limit: Duration,
        max_idle: usize,
        since_ms: Option<u64>,
    ) -> Result<ServerLease, ConnectError> {
        let _waiting = self.streams.count_waiting();
        loop {
            if let Some(lease) = self.take_ready(max_idle, since_ms) {
                return Ok(lease);
            }
            if self.protocol.get() == WireProtocol::Http1 {
                return match self.open_connection(limit).await? {
                    NewConnection::Connection(connection) => Ok(ServerLease::Connection(self.lease_connection(
                        connection,
                        false,
                        self.shared.now_ms.get(),
                        max_idle,
                    ))),
                    // The server chose HTTP/2 now, and HTTP/1.1 before.
                    NewConnection::Shared(connection) => {
                        self.streams.add(connection);
                        continue;
                    }
                };
            }
            if self.streams.needs_dial() {
                self.streams.count_dial();
                spawn_local(self.clone().dial_shared(limit));
            }
            self.streams.wait_for_change().await?;
        }
    }

    /// Opens a connection for the requests that wait.
    async fn dial_shared(self: Rc<ServerPool>, limit: Duration) {
        let outcome = match self.open_connection(limit).await {
            Ok(NewConnection::Shared(connection)) => Ok(Some(connection)),
            Ok(NewConnection::Connection(connection)) => {
                let now_ms = self.shared.now_ms.get();
                self.keep_idle(IdleConnection { connection, since_ms: now_ms, opened_ms: now_ms });
                Ok(None)
            }
            Err(error) => Err(error),
        };
        self.streams.record_dial(outcome);
        if let Some(cap) = &*self.cap.borrow() {
            // There are streams for several requests now, or the slot of the failed connection is free again.
            cap.load.queue.notify_first();
        }
    }

    /// Returns whether a shared connection is being opened.
    pub fn is_dialing(&self) -> bool {
        self.streams.is_dialing() || self.client_pools.borrow().values().any(|pool| pool.is_dialing())
    }

    /// Opens a connection, handshakes included, within `limit`.
    async fn open_connection(&self, limit: Duration) -> Result<NewConnection, ConnectError> {
        let cap = self.cap.borrow().clone();
        let slot = match cap {
            None => None,
            Some(cap) => Some(cap.rule.take_connection_slot(&cap.state, &cap.load).ok_or_else(max_connections_error)?),
        };
        let proxy_header = self.proxy_header.as_deref().unwrap_or_default();
        let opening = async {
            let mut connection =
                UpstreamConnection::open(&self.endpoint, proxy_header, &self.counts.dial_queue).await?;
            connection.limit_receive_buffer(self.shared.max_unread.get());
            connection.slot = slot;
            match connection.http2 {
                false => {
                    connection.allow_bulk(self.shared.bulk.clone());
                    Ok(NewConnection::Connection(Box::new(connection)))
                }
                true => Http2Connection::start(
                    connection,
                    self.shared.now_ms.get(),
                    &self.label,
                    self.head_bounds(),
                    &self.counts.floods,
                )
                .await
                .map(NewConnection::Shared),
            }
        };
        let result = timeout(limit, opening).await;
        let result = result.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))?;
        self.protocol.set(match &result {
            NewConnection::Connection(_) => WireProtocol::Http1,
            NewConnection::Shared(_) => WireProtocol::Http2,
        });
        Ok(result)
    }

    fn keep_idle(&self, idle: IdleConnection) {
        self.counts.idle.set(self.counts.idle.get() + 1);
        self.idle.borrow_mut().push(idle);
    }

    fn lease_connection(
        self: &Rc<ServerPool>,
        connection: Box<UpstreamConnection>,
        reused: bool,
        opened_ms: u64,
        max_idle: usize,
    ) -> PooledConnection {
        PooledConnection { connection, reused, counted: None, opened_ms, max_idle, load: self.count_request() }
    }
}

fn max_connections_error() -> ConnectError {
    let reason = io::Error::other("the server is at its limit of connections (max_connections)");
    ConnectError { end: End::ConnectMaxConnections, reason }
}

/// A new connection, by its HTTP version.
enum NewConnection {
    Connection(Box<UpstreamConnection>),
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
    pub fn count_in_flight(&mut self, counted: InFlight) {
        match self {
            ServerLease::Connection(lease) => lease.counted = Some(counted),
            ServerLease::Stream(lease) => lease.counted = Some(counted),
        }
    }

    /// Returns whether the connection has served a request before, so that the server may be closing it right now.
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

    /// Counts the request as ended. Its stream stays occupied.
    pub fn into_slot(self) -> StreamPermit {
        self.place
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
        let PooledConnection { mut connection, opened_ms, max_idle, load, .. } = self;
        let now_ms = load.0.shared.now_ms.get();
        let cap = load.0.cap.borrow();
        if cap.as_ref().is_some_and(|cap| cap.state.claim.take_from_other(cap.worker).is_some()) {
            return;
        }
        if load.0.counts.idle.get() < max_idle && now_ms < opened_ms + AGE_MS && connection.received.is_empty() {
            connection.shrink_buffer();
            load.0.keep_idle(IdleConnection { connection, since_ms: now_ms, opened_ms });
        }
    }
}

impl Drop for RequestCount {
    fn drop(&mut self) {
        let in_flight = &self.0.counts.in_flight;
        in_flight.set(in_flight.get() - 1);
    }
}

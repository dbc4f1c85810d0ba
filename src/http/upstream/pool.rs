//! One worker's connections to the servers of the upstreams: idle ones are kept by server, last
//! used first, and survive a reload that keeps the server. Used by `forward`.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use http::HeaderValue;
use tokio::time::timeout;

use super::connect::{ConnectError, ConnectFault, UpstreamConnection};
use crate::http::complaints::{UpstreamComplaints, UpstreamTrouble};
use crate::http::context::Common;
use crate::metrics::{Counter, Metrics, RetryReason, UpstreamOutcome};
use crate::upstream::balance::Balancer;
use crate::upstream::{Origin, Upstream};

/// Shorter than the 5 s after which common application servers close an idle connection. Those kept are
/// never more than were in use at once within this time.
const IDLE_MS: u64 = 4_000;
/// Connections are renewed after this long, so that a changed name or balance takes effect.
const AGE_MS: u64 = 3_600_000;
/// Servers asked for a connection before a request fails.
const ATTEMPTS: usize = 3;
/// A server that refused a connection is passed over this long while others are there.
const AVOID_MS: u64 = 2_000;

/// All servers this worker talks to.
#[derive(Default)]
pub struct Pools {
    servers: RefCell<HashMap<Origin, Rc<ServerPool>>>,
    now_ms: Rc<Cell<u64>>,
}

/// The servers of one upstream.
pub struct Servers {
    pub list: Vec<Rc<ServerPool>>,
    pub outcomes: OutcomeCounters,
    pub complaints: Rc<UpstreamComplaints>,
    /// Idle connections kept per server and worker.
    max_idle: usize,
    balancer: Balancer,
    random: Cell<u64>,
}

/// Counters of one upstream, by what became of a request sent to it.
pub struct OutcomeCounters {
    /// By `UpstreamOutcome`.
    requests: Vec<Counter>,
    /// By `RetryReason`.
    retries: Vec<Counter>,
}

pub struct ServerPool {
    origin: Origin,
    /// What it reads as `Host` unless that is the request's.
    pub host: HeaderValue,
    idle: RefCell<Vec<Idle>>,
    in_flight: Cell<u32>,
    avoid_until_ms: Cell<u64>,
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
    born_ms: u64,
    max_idle: usize,
    load: Load,
}

/// Counts a request in flight at its server.
struct Load(Rc<ServerPool>);

impl Pools {
    pub fn servers(&self, upstream: &Upstream, common: &Common) -> Servers {
        let mut servers = self.servers.borrow_mut();
        let list = upstream.servers.iter().map(|server| {
            let make = || Rc::new(ServerPool::new(&server.origin, self.now_ms.clone()));
            servers.entry(server.origin.clone()).or_insert_with(make).clone()
        });
        Servers {
            list: list.collect(),
            outcomes: OutcomeCounters::new(&upstream.name, &common.metrics),
            complaints: Rc::new(common.complaints.of(&upstream.name)),
            max_idle: upstream.max_idle.unwrap_or(usize::MAX),
            balancer: Balancer::new(upstream.balance, &upstream.servers),
            random: Cell::new(rand::random::<u64>() | 1),
        }
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

impl Servers {
    /// A connection: an idle one unless `fresh`, else a new one, at the servers' turns.
    ///
    /// # Errors
    /// When no server accepted one.
    pub async fn acquire(&self, connect: Duration, fresh: bool) -> Result<PooledConnection, ConnectFault> {
        let server = self.pick();
        let idle = if fresh { None } else { server.idle(self.max_idle) };
        match idle {
            Some(lease) => Ok(lease),
            // Rare, and larger than all the rest that a request keeps.
            None => Box::pin(self.connect(server, connect, fresh)).await,
        }
    }

    /// Connects to `server`, or to others when it does not accept.
    async fn connect(
        &self,
        mut server: &Rc<ServerPool>,
        limit: Duration,
        fresh: bool,
    ) -> Result<PooledConnection, ConnectFault> {
        let mut attempt = 1;
        loop {
            match server.connect(limit, self.max_idle).await {
                Ok(lease) => return Ok(lease),
                Err(error) => {
                    let kind = match error.fault {
                        ConnectFault::Tls => UpstreamTrouble::Tls,
                        _ => UpstreamTrouble::Connect,
                    };
                    self.complaints.tell(kind, server.authority(), &error);
                    if self.list.len() == 1 || attempt == ATTEMPTS {
                        return Err(error.fault);
                    }
                    self.outcomes.count_retry(RetryReason::ConnectError);
                }
            }
            attempt += 1;
            server = self.pick();
            if let (false, Some(lease)) = (fresh, server.idle(self.max_idle)) {
                return Ok(lease);
            }
        }
    }

    /// The server for the next attempt.
    fn pick(&self) -> &Rc<ServerPool> {
        let index = self.balancer.pick(
            self.next_random(),
            |server| self.list[server].in_flight.get(),
            |server| self.list[server].usable(),
        );
        &self.list[index]
    }

    /// xorshift64*: spread, not secrecy.
    fn next_random(&self) -> u64 {
        let mut x = self.random.get();
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        self.random.set(x);
        x.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
}

impl OutcomeCounters {
    fn new(upstream: &str, metrics: &Metrics) -> OutcomeCounters {
        let requests = UpstreamOutcome::ALL.iter().map(|outcome| metrics.upstream_requests(upstream, *outcome));
        let retries = RetryReason::ALL.iter().map(|reason| metrics.upstream_retries(upstream, *reason));
        OutcomeCounters { requests: requests.collect(), retries: retries.collect() }
    }

    pub fn count(&self, outcome: UpstreamOutcome) {
        self.requests[outcome as usize].inc();
    }

    pub fn count_retry(&self, reason: RetryReason) {
        self.retries[reason as usize].inc();
    }
}

impl ServerPool {
    fn new(origin: &Origin, now_ms: Rc<Cell<u64>>) -> ServerPool {
        ServerPool {
            host: HeaderValue::from_str(origin.host()).unwrap_or(HeaderValue::from_static("localhost")),
            origin: origin.clone(),
            idle: RefCell::default(),
            in_flight: Cell::new(0),
            avoid_until_ms: Cell::new(0),
            now_ms,
        }
    }

    pub fn authority(&self) -> &str {
        &self.origin.authority
    }

    fn usable(&self) -> bool {
        self.now_ms.get() >= self.avoid_until_ms.get()
    }

    /// An idle connection, if there is one.
    fn idle(self: &Rc<ServerPool>, max_idle: usize) -> Option<PooledConnection> {
        loop {
            let Idle { mut connection, born_ms, .. } = self.idle.borrow_mut().pop()?;
            if connection.is_quiet() {
                return Some(self.lease(connection, true, born_ms, max_idle));
            }
        }
    }

    /// A new connection, name look-up included, within `limit`.
    async fn connect(
        self: &Rc<ServerPool>,
        limit: Duration,
        max_idle: usize,
    ) -> Result<PooledConnection, ConnectError> {
        let opened = timeout(limit, UpstreamConnection::open(&self.origin)).await;
        match opened.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into())) {
            Ok(connection) => {
                self.avoid_until_ms.set(0);
                Ok(self.lease(connection, false, self.now_ms.get(), max_idle))
            }
            Err(error) => {
                self.avoid_until_ms.set(self.now_ms.get() + AVOID_MS);
                Err(error)
            }
        }
    }

    fn lease(
        self: &Rc<ServerPool>,
        connection: UpstreamConnection,
        reused: bool,
        born_ms: u64,
        max_idle: usize,
    ) -> PooledConnection {
        self.in_flight.set(self.in_flight.get() + 1);
        PooledConnection { connection, reused, born_ms, max_idle, load: Load(self.clone()) }
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

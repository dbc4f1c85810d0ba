//! One worker's connections to the servers of the upstreams: idle ones are kept by server, last
//! used first, and survive a reload that keeps the server. Used by `forward`.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::Duration;

use http::HeaderValue;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use prometheus::IntCounter;
use tokio::net::TcpStream;
use tokio::task::spawn_local;
use tokio::time::timeout;

use super::upload::RequestBody;
use crate::metrics::Metrics;
use crate::upstream::Upstream;
use crate::upstream::balance::Balancer;

/// Idle connections kept per server and worker.
const IDLE_MAX: usize = 64;
/// Shorter than the 5 s after which common application servers close an idle connection.
const IDLE_MS: u64 = 4_000;
/// Connections are renewed after this long, so that a changed name or balance takes effect.
const AGE_MS: u64 = 3_600_000;
/// A server that refused a connection is passed over this long while others are there.
const AVOID_MS: u64 = 2_000;

/// All servers this worker talks to, by authority.
#[derive(Default)]
pub struct Pools {
    servers: RefCell<HashMap<String, Rc<ServerPool>>>,
    now_ms: Rc<Cell<u64>>,
}

/// The servers of one upstream.
pub struct Servers {
    pub name: String,
    pub list: Vec<Rc<ServerPool>>,
    pub outcomes: Outcomes,
    balancer: Balancer,
    random: Cell<u64>,
}

/// Counters of one upstream, by what became of a request sent to it.
pub struct Outcomes {
    pub ok: IntCounter,
    pub connect_error: IntCounter,
    pub timeout: IntCounter,
    pub broken: IntCounter,
    pub retried_stale: IntCounter,
    pub retried_connect: IntCounter,
}

pub struct ServerPool {
    authority: String,
    /// The authority as a `Host` value.
    pub host: HeaderValue,
    idle: RefCell<Vec<Idle>>,
    in_flight: Cell<u32>,
    avoid_until_ms: Cell<u64>,
    now_ms: Rc<Cell<u64>>,
}

struct Idle {
    sender: SendRequest<RequestBody>,
    wire: Option<Wire>,
    since_ms: u64,
    born_ms: u64,
}

/// The moving part of a connection: nothing is read or written unless it is polled.
type Wire = Pin<Box<http1::Connection<TokioIo<TcpStream>, RequestBody>>>;

/// A connection in use by one request.
pub struct Lease {
    pub sender: SendRequest<RequestBody>,
    /// `None` once it has ended, or once a task of its own polls it.
    wire: Option<Wire>,
    /// It served a request before, so the server may be closing it right now.
    pub reused: bool,
    born_ms: u64,
    load: Load,
}

/// Counts a request in flight at its server.
struct Load(Rc<ServerPool>);

impl Pools {
    pub fn servers(&self, upstream: &Upstream, metrics: &Metrics) -> Servers {
        let mut servers = self.servers.borrow_mut();
        let list = upstream.servers.iter().map(|server| {
            let make = || Rc::new(ServerPool::new(&server.authority, self.now_ms.clone()));
            servers.entry(server.authority.clone()).or_insert_with(make).clone()
        });
        Servers {
            name: upstream.name.clone(),
            list: list.collect(),
            outcomes: Outcomes::new(&upstream.name, metrics),
            balancer: Balancer::new(upstream.balance, &upstream.servers),
            random: Cell::new(rand::random::<u64>() | 1),
        }
    }

    /// Closes connections that are idle too long and forgets servers no view names any more.
    pub fn sweep(&self, now_ms: u64) {
        self.now_ms.set(now_ms);
        self.servers.borrow_mut().retain(|_, server| {
            server.idle.borrow_mut().retain_mut(|idle| now_ms < idle.since_ms + IDLE_MS && idle.open());
            Rc::strong_count(server) > 1
        });
    }
}

impl Servers {
    /// The server for the next attempt.
    pub fn pick(&self) -> &Rc<ServerPool> {
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

impl Outcomes {
    fn new(upstream: &str, metrics: &Metrics) -> Outcomes {
        Outcomes {
            ok: metrics.upstream_requests(upstream, "ok"),
            connect_error: metrics.upstream_requests(upstream, "connect_error"),
            timeout: metrics.upstream_requests(upstream, "timeout"),
            broken: metrics.upstream_requests(upstream, "broken"),
            retried_stale: metrics.upstream_retries(upstream, "stale_connection"),
            retried_connect: metrics.upstream_retries(upstream, "connect_error"),
        }
    }
}

impl ServerPool {
    fn new(authority: &str, now_ms: Rc<Cell<u64>>) -> ServerPool {
        ServerPool {
            host: HeaderValue::from_str(authority).unwrap_or(HeaderValue::from_static("localhost")),
            authority: authority.to_owned(),
            idle: RefCell::default(),
            in_flight: Cell::new(0),
            avoid_until_ms: Cell::new(0),
            now_ms,
        }
    }

    fn usable(&self) -> bool {
        self.now_ms.get() >= self.avoid_until_ms.get()
    }

    /// An idle connection, if one is ready.
    pub fn idle(self: &Rc<ServerPool>) -> Option<Lease> {
        let mut idle = self.idle.borrow_mut();
        while let Some(mut kept) = idle.pop() {
            if kept.open() && kept.sender.is_ready() {
                let Idle { sender, wire, born_ms, .. } = kept;
                return Some(self.lease(sender, wire, true, born_ms));
            }
        }
        None
    }

    /// A new connection, name look-up included, within `limit`.
    pub async fn connect(self: &Rc<ServerPool>, limit: Duration) -> io::Result<Lease> {
        match timeout(limit, self.handshake()).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok((sender, wire)) => {
                self.avoid_until_ms.set(0);
                Ok(self.lease(sender, Some(wire), false, self.now_ms.get()))
            }
            Err(error) => {
                self.avoid_until_ms.set(self.now_ms.get() + AVOID_MS);
                tracing::debug!(server = self.authority, %error, "cannot connect to an upstream server");
                Err(error)
            }
        }
    }

    async fn handshake(&self) -> io::Result<(SendRequest<RequestBody>, Wire)> {
        let stream = TcpStream::connect(&self.authority).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) =
            http1::Builder::new().handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        Ok((sender, Box::pin(connection)))
    }

    fn lease(
        self: &Rc<ServerPool>,
        sender: SendRequest<RequestBody>,
        wire: Option<Wire>,
        reused: bool,
        born_ms: u64,
    ) -> Lease {
        self.in_flight.set(self.in_flight.get() + 1);
        Lease { sender, wire, reused, born_ms, load: Load(self.clone()) }
    }
}

impl Idle {
    /// Reads what has arrived, which while idle can only be the end.
    fn open(&mut self) -> bool {
        advance(&mut self.wire, &mut Context::from_waker(Waker::noop()));
        !self.sender.is_closed()
    }
}

/// Errors of the connection reach the request that meets them.
fn advance(wire: &mut Option<Wire>, cx: &mut Context<'_>) {
    if wire.as_mut().is_some_and(|wire| wire.as_mut().poll(cx).is_ready()) {
        *wire = None;
    }
}

impl Lease {
    /// Moves bytes both ways. The request's own task does it, which spares a wake-up of another
    /// one each time.
    pub fn advance(&mut self, cx: &mut Context<'_>) {
        advance(&mut self.wire, cx);
    }

    /// Gives the connection a task of its own: an upload must go on while nobody reads the
    /// response.
    pub fn detach(&mut self) {
        if let Some(wire) = self.wire.take() {
            spawn_local(async move { drop(wire.await) });
        }
    }

    pub fn server(&self) -> &ServerPool {
        &self.load.0
    }

    /// Keeps the connection for another request: the exchange ended cleanly on both sides.
    pub fn release(self) {
        let Lease { sender, wire, born_ms, load, .. } = self;
        let now_ms = load.0.now_ms.get();
        let mut idle = load.0.idle.borrow_mut();
        if idle.len() < IDLE_MAX && now_ms < born_ms + AGE_MS && !sender.is_closed() {
            idle.push(Idle { sender, wire, since_ms: now_ms, born_ms });
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.in_flight.set(self.0.in_flight.get() - 1);
    }
}

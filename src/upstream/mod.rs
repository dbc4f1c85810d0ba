//! Upstreams: groups of interchangeable servers, which of them is healthy, and which gets the next request.
//!
//! Input are the `[upstream]` sections of the config, the results of requests, of health checks and of DNS lookups.
//! Output is the state that all workers share. This module does no I/O: time and randomness are arguments. Each worker
//! keeps its own connections to the servers (`proxy::outbound::pool`).
//!
//! - `mod.rs`: the settings of an upstream and its servers
//! - `roster`: the active servers, one per address; `state`: what is known of one server
//! - `balance`: the balancers and the hash of `hash_on`, with `fair_shares` (weights) and `round_robin`
//! - `eject`: when a failing server is left out; `health`: the results of health checks
//! - `adaptive`: a limit of requests that follows the capacity of the servers; `priority`: who is refused first
//! - `caps`: limits of requests and connections, with `queue` (waiting requests) and `claim` (connections of other
//!   workers)
//! - `breaker`: the circuit breaker of an upstream or a route
//! - `retry_budget`: how many requests may be retried
//! - `hostname`, `endpoint`: names, addresses and sockets of servers; `tls`, `proxy_header`: how connections begin
//!
//! To add a balancer: add a variant to [`Balance`] and an arm to `Balancer::select`.

pub(crate) mod adaptive;
pub(crate) mod balance;
pub(crate) mod breaker;
pub(crate) mod caps;
pub(crate) mod claim;
pub(crate) mod eject;
pub(crate) mod endpoint;
pub(crate) mod fair_shares;
pub(crate) mod health;
pub(crate) mod hostname;
pub(crate) mod priority;
pub(crate) mod proxy_header;
pub(crate) mod queue;
pub(crate) mod retry_budget;
pub(crate) mod roster;
pub(crate) mod round_robin;
pub(crate) mod state;
pub(crate) mod tls;

use std::fmt;
use std::sync::Arc;

use crate::labels::labels;
use crate::limiting::key::Key;
use crate::upstream::adaptive::controller::AdaptiveRule;
use crate::upstream::breaker::machine::BreakerRule;
use crate::upstream::caps::{CapRule, ServerCaps};
use crate::upstream::eject::EjectRule;
use crate::upstream::health::HealthRule;
use crate::upstream::proxy_header::ProxyVersion;
use crate::upstream::retry_budget::RetryRule;
use crate::upstream::tls::UpstreamTls;

/// A group of interchangeable servers.
#[derive(Debug, PartialEq)]
pub struct Upstream {
    /// The NAME of `[upstream.NAME]`. An upstream that is written as URLs in its route is named by its origins.
    pub name: String,
    /// Never empty.
    pub servers: Vec<Server>,
    pub balance: Balance,
    /// Idle connections kept per server and worker. `None`: as many as were in use at once in the last seconds.
    pub max_idle: Option<usize>,
    /// When failing servers are left out for a while.
    pub eject: Option<EjectRule>,
    /// When all requests are refused for a while.
    pub breaker: Option<BreakerRule>,
    /// How servers are checked.
    pub health: Option<HealthRule>,
    /// When a request is sent to another server.
    pub retry: Option<RetryRule>,
    /// The key whose hash selects the server, for `consistent_hash`.
    pub hash_on: Option<Key>,
    /// Requests in flight below which `consistent_hash` never passes over the server of a key.
    pub spread_above: u32,
    /// Milliseconds until a server that joins or returns has its whole weight. 0: at once.
    pub slow_start_ms: u64,
    /// Connections begin with a PROXY header.
    pub proxy_protocol: Option<ProxyVersion>,
    /// Limits of concurrent requests and of connections.
    pub caps: Option<CapRule>,
    /// The bounds of the limit that follows the capacity of the servers. With it, there are `caps` too.
    pub adaptive: Option<AdaptiveRule>,
    /// Longest time between two DNS lookups of the servers' hostnames.
    pub resolve_every_ms: u64,
}

/// Default of `resolve_every_ms`.
const RESOLVE_EVERY_MS: u64 = 5_000;

/// The default of `spread_above`: the six connections of a browser and the calls of its page, but fewer requests than
/// crush a server.
const SPREAD_ABOVE: u32 = 16;

impl Upstream {
    /// Returns whether requests in flight are counted over all workers.
    pub fn counts_all_workers(&self) -> bool {
        self.caps.is_some() || matches!(self.balance, Balance::LeastRequests | Balance::ConsistentHash)
    }

    /// Returns an upstream with the default settings.
    pub fn new(name: &str, servers: Vec<Server>, balance: Balance) -> Upstream {
        Upstream {
            name: name.to_owned(),
            servers,
            balance,
            max_idle: None,
            eject: None,
            breaker: None,
            health: None,
            retry: None,
            hash_on: None,
            spread_above: SPREAD_ABOVE,
            slow_start_ms: 0,
            proxy_protocol: None,
            caps: None,
            adaptive: None,
            resolve_every_ms: RESOLVE_EVERY_MS,
        }
    }
}

/// A server as the config has it. One with a hostname stands for all its addresses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Server {
    pub origin: Origin,
    /// A server of weight 0 gets no requests.
    pub weight: u32,
    pub caps: ServerCaps,
}

/// Identity of a server: connections to equal origins are interchangeable.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    pub scheme: Scheme,
    /// `host:port`, with IPv6 in brackets and always with a port; the path of a Unix socket; or `srv:` and the name of
    /// a service.
    pub authority: String,
    /// SRV records of DNS state the servers: their hosts, ports and weights.
    pub is_service: bool,
    /// How large the heads of its responses may be.
    pub head_bounds: HeadBounds,
}

/// Prefix of the names of services, in `authority` and in the names that are looked up. No hostname contains a colon.
pub const SERVICE_PREFIX: &str = "srv:";

/// How the head of a response is read: its bounds, where each interim response counts by itself, and its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HeadBounds {
    pub headers: usize,
    pub bytes: usize,
    /// Names of headers keep the case in which the server writes them.
    pub keeps_case: bool,
}

impl HeadBounds {
    /// The bounds unless the config states others, and the least default.
    pub const DEFAULT: HeadBounds = HeadBounds { headers: 100, bytes: 64 * 1024, keeps_case: false };
}

/// The transport to a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    Http,
    /// HTTP/2 without TLS, by prior knowledge.
    H2c,
    Https(Arc<UpstreamTls>),
    /// HTTP over a Unix socket.
    Unix(SocketProtocol),
}

labels! {
    /// The HTTP version over TLS.
    WireProtocol:
    /// The server chooses by ALPN.
    Auto = "auto",
    Http1 = "http1",
    Http2 = "http2",
}

/// The HTTP version over a Unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SocketProtocol {
    Http1,
    Http2,
}

impl Origin {
    /// Returns the host alone, an IPv6 address without brackets.
    pub fn bare_host(&self) -> &str {
        if self.is_service {
            return self.service_domain();
        }
        let host = self.authority.rsplit_once(':').map_or(&*self.authority, |(host, _)| host);
        host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
    }

    /// Returns the domain of a service: `app.example` of `srv:_http._tcp.app.example`.
    fn service_domain(&self) -> &str {
        let mut domain = self.authority.strip_prefix(SERVICE_PREFIX).unwrap_or(&self.authority);
        while let Some((_, rest)) = domain.split_once('.').filter(|(label, _)| label.starts_with('_')) {
            domain = rest;
        }
        domain.strip_suffix('.').unwrap_or(domain)
    }

    /// Returns the `Host` for requests that have none, or whose own is not forwarded.
    pub fn default_host(&self) -> &str {
        match self.scheme {
            _ if self.is_service => self.service_domain(),
            Scheme::Http | Scheme::H2c => self.authority.strip_suffix(":80").unwrap_or(&self.authority),
            Scheme::Https(_) => self.authority.strip_suffix(":443").unwrap_or(&self.authority),
            Scheme::Unix(_) => "localhost",
        }
    }

    /// Returns whether the connection uses TLS.
    pub fn is_secure(&self) -> bool {
        matches!(self.scheme, Scheme::Https(_))
    }

    /// Returns the HTTP version that the config demands of the server.
    pub fn protocol(&self) -> WireProtocol {
        match &self.scheme {
            Scheme::Http | Scheme::Unix(SocketProtocol::Http1) => WireProtocol::Http1,
            Scheme::H2c | Scheme::Unix(SocketProtocol::Http2) => WireProtocol::Http2,
            Scheme::Https(tls) => tls.protocol,
        }
    }
}

/// Writes the origin as in the config, but without `http://`.
impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.scheme {
            Scheme::Https(_) if self.is_service => {
                write!(f, "srv+https:{}", self.authority.trim_start_matches(SERVICE_PREFIX))
            }
            Scheme::Http => f.write_str(&self.authority),
            Scheme::H2c if self.is_service => f.write_str(&self.authority),
            Scheme::Https(_) => write!(f, "https://{}", self.authority),
            Scheme::H2c => write!(f, "h2c://{}", self.authority),
            Scheme::Unix(_) => write!(f, "unix:{}", self.authority),
        }
    }
}

labels! {
    /// How the next server is selected.
    Balance:
    /// Power of two choices: of two random servers, the one with fewer requests in flight.
    P2c = "p2c",
    RoundRobin = "round_robin",
    /// The server with the fewest requests in flight over all workers.
    LeastRequests = "least_requests",
    /// The same server for the same key, unless that server has much more than its share.
    ConsistentHash = "consistent_hash",
}

/// A fraction, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fraction(u32);

impl Fraction {
    pub const HALF: Fraction = Fraction(500);
    pub const FIFTH: Fraction = Fraction(200);
    const WHOLE: u32 = 1000;

    /// Returns the fraction for a number from 0.001 to 1.
    pub fn parse(part: f64) -> Option<Fraction> {
        (1..=Fraction::WHOLE).find(|thousandths| (f64::from(*thousandths) - part * 1000.0).abs() <= 0.5).map(Fraction)
    }

    /// Returns the fraction in thousandths.
    pub fn thousandths(self) -> u32 {
        self.0
    }

    /// Returns this fraction of `whole`, rounded down.
    pub fn of_count(self, whole: usize) -> usize {
        whole.saturating_mul(self.0 as usize) / Fraction::WHOLE as usize
    }

    /// Returns whether `part` is at least this fraction of `whole`.
    pub fn is_reached(self, part: u64, whole: u64) -> bool {
        part.saturating_mul(u64::from(Fraction::WHOLE)) >= whole.saturating_mul(u64::from(self.0))
    }
}

//! An upstream: a set of servers and the way to pick one. Built by the config compiler; each
//! worker keeps its own connections to the servers (`http::upstream::pool`).

pub(crate) mod balance;
pub(crate) mod budget;
pub(crate) mod caps;
pub(crate) mod claim;
pub(crate) mod eject;
pub(crate) mod endpoint;
pub(crate) mod fair_shares;
pub(crate) mod hash;
pub(crate) mod health;
pub(crate) mod introduction;
pub(crate) mod line;
pub(crate) mod names;
pub(crate) mod roster;
pub(crate) mod rotation;
pub(crate) mod state;
pub(crate) mod tls;

use std::fmt;
use std::sync::Arc;

use crate::labels::labels;
use crate::limit::key::Key;
use budget::RetryRule;
use caps::{CapRule, ServerCaps};
use eject::EjectRule;
use health::HealthRule;
use introduction::ProxyVersion;
use tls::UpstreamTls;

/// A set of servers that serve alike.
#[derive(Debug, PartialEq)]
pub struct Upstream {
    /// The `[upstream.NAME]`, or its origins for one written as URLs in its route.
    pub name: String,
    /// Never empty.
    pub servers: Vec<Server>,
    pub balance: Balance,
    /// Idle connections kept per server and worker; `None` = as many as were in use at once lately.
    pub max_idle: Option<usize>,
    /// When servers that fail are passed over.
    pub eject: Option<EjectRule>,
    /// How servers are checked.
    pub health: Option<HealthRule>,
    /// When a request is sent to another server.
    pub retry: Option<RetryRule>,
    /// What requests are told apart by, for `consistent_hash`.
    pub hash_on: Option<Key>,
    /// Requests in flight below which `consistent_hash` never passes over the server of a key.
    pub spread_above: u32,
    /// A server that comes, or comes back, has its whole weight after so long; 0 = at once.
    pub slow_start_ms: u64,
    /// Connections begin with a PROXY header.
    pub proxy_protocol: Option<ProxyVersion>,
    /// What servers are given at once.
    pub caps: Option<CapRule>,
    /// The names of servers are looked up again after so long at the latest.
    pub resolve_every_ms: u64,
}

/// Where nothing else is said.
const RESOLVE_EVERY_MS: u64 = 5_000;

/// The default of `spread_above`: the six connections of a browser and the calls of its page, but fewer requests than
/// crush a server.
const SPREAD_ABOVE: u32 = 16;

impl Upstream {
    /// Requests in flight are counted over all workers.
    pub fn counts_all(&self) -> bool {
        self.caps.is_some() || matches!(self.balance, Balance::LeastRequests | Balance::ConsistentHash)
    }

    /// With nothing else said.
    pub fn new(name: &str, servers: Vec<Server>, balance: Balance) -> Upstream {
        Upstream {
            name: name.to_owned(),
            servers,
            balance,
            max_idle: None,
            eject: None,
            health: None,
            retry: None,
            hash_on: None,
            spread_above: SPREAD_ABOVE,
            slow_start_ms: 0,
            proxy_protocol: None,
            caps: None,
            resolve_every_ms: RESOLVE_EVERY_MS,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Server {
    pub origin: Origin,
    /// 0 = it gets no requests.
    pub weight: u32,
    pub caps: ServerCaps,
}

/// What servers are told apart by: connections to equal origins serve alike.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    pub scheme: Scheme,
    /// `host:port`, IPv6 in brackets, the port always written; the path of a Unix socket.
    pub authority: String,
}

/// How a server is spoken to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    Http,
    /// HTTP/2 without TLS, known in advance.
    H2c,
    Https(Arc<UpstreamTls>),
    /// HTTP over a Unix socket.
    Unix(SocketProtocol),
}

/// What is spoken over TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WireProtocol {
    /// What the server chooses.
    #[default]
    Auto,
    Http1,
    Http2,
}

/// What is spoken over a Unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SocketProtocol {
    Http1,
    Http2,
}

impl Origin {
    /// The host alone, an address without brackets.
    pub fn name(&self) -> &str {
        let host = self.authority.rsplit_once(':').map_or(&*self.authority, |(host, _)| host);
        host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
    }

    /// What its servers read as `Host` where a request says none, or is not to.
    pub fn host(&self) -> &str {
        match self.scheme {
            Scheme::Http | Scheme::H2c => self.authority.strip_suffix(":80").unwrap_or(&self.authority),
            Scheme::Https(_) => self.authority.strip_suffix(":443").unwrap_or(&self.authority),
            Scheme::Unix(_) => "localhost",
        }
    }

    /// Over TLS.
    pub fn is_secure(&self) -> bool {
        matches!(self.scheme, Scheme::Https(_))
    }

    pub fn protocol(&self) -> WireProtocol {
        match &self.scheme {
            Scheme::Http | Scheme::Unix(SocketProtocol::Http1) => WireProtocol::Http1,
            Scheme::H2c | Scheme::Unix(SocketProtocol::Http2) => WireProtocol::Http2,
            Scheme::Https(tls) => tls.protocol,
        }
    }
}

/// As it is written in the config, without `http://`.
impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.scheme {
            Scheme::Http => f.write_str(&self.authority),
            Scheme::Https(_) => write!(f, "https://{}", self.authority),
            Scheme::H2c => write!(f, "h2c://{}", self.authority),
            Scheme::Unix(_) => write!(f, "unix:{}", self.authority),
        }
    }
}

labels! {
    /// How the next server is picked.
    Balance:
    /// Power of two choices: of two random servers, the one with fewer requests in flight.
    P2c = "p2c",
    RoundRobin = "round_robin",
    /// Of all servers, the one with the fewest requests in flight over all workers.
    LeastRequests = "least_requests",
    /// The same server for the same key, unless it has much more than its share.
    ConsistentHash = "consistent_hash",
}

/// A part of a whole, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fraction(u32);

impl Fraction {
    pub const HALF: Fraction = Fraction(500);
    pub const FIFTH: Fraction = Fraction(200);
    const WHOLE: u32 = 1000;

    /// Of a number from 0.001 to 1.
    pub fn parse(part: f64) -> Option<Fraction> {
        (1..=Fraction::WHOLE).find(|thousandths| (f64::from(*thousandths) - part * 1000.0).abs() <= 0.5).map(Fraction)
    }

    /// Rounded down.
    pub fn of(self, whole: usize) -> usize {
        whole.saturating_mul(self.0 as usize) / Fraction::WHOLE as usize
    }

    pub fn is_reached(self, part: u64, whole: u64) -> bool {
        part.saturating_mul(u64::from(Fraction::WHOLE)) >= whole.saturating_mul(u64::from(self.0))
    }
}

//! An upstream: a set of servers and the way to pick one. Built by the config compiler; each
//! worker keeps its own connections to the servers (`http::pool`).

pub(crate) mod balance;
pub(crate) mod tls;

use std::fmt;
use std::sync::Arc;

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
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Server {
    pub origin: Origin,
    pub weight: u32,
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
    Https(Arc<UpstreamTls>),
    /// HTTP over a Unix socket.
    Unix,
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
            Scheme::Http => self.authority.strip_suffix(":80").unwrap_or(&self.authority),
            Scheme::Https(_) => self.authority.strip_suffix(":443").unwrap_or(&self.authority),
            Scheme::Unix => "localhost",
        }
    }
}

/// As it is written in the config, without `http://`.
impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.scheme {
            Scheme::Http => f.write_str(&self.authority),
            Scheme::Https(_) => write!(f, "https://{}", self.authority),
            Scheme::Unix => write!(f, "unix:{}", self.authority),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Balance {
    /// Power of two choices: of two random servers, the one with fewer requests in flight.
    P2c,
    RoundRobin,
}

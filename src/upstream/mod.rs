//! An upstream: a set of servers and the way to pick one. Built by the config compiler; each
//! worker keeps its own connections to the servers (`http::pool`).

pub(crate) mod balance;

/// A set of servers that serve alike.
#[derive(Debug, PartialEq)]
pub struct Upstream {
    /// The `[upstream.NAME]`, or `host:port` for one written as a URL in its route.
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
    /// `host:port`, IPv6 in brackets; the port is always written.
    pub authority: String,
}

/// How a server is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    Http,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Balance {
    /// Power of two choices: of two random servers, the one with fewer requests in flight.
    P2c,
    RoundRobin,
}

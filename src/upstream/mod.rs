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
    /// `host:port`, IPv6 in brackets; the port is always written.
    pub authority: String,
    pub weight: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Balance {
    /// Power of two choices: of two random servers, the one with fewer requests in flight.
    P2c,
    RoundRobin,
}

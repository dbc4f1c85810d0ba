//! Approval of requests by an auth server (`auth = { forward = ... }`). Compiled by `config::compile`, applied by
//! `proxy::steps::auth::forward`.

use std::time::Duration;

use http::HeaderName;
use http::header::{AUTHORIZATION, COOKIE};

/// Sends every request of a route to an auth server for approval, before the route's limits and its upstream.
#[derive(Debug)]
pub struct ForwardAuth {
    /// Index into `Config::upstreams`: the auth servers.
    pub upstream: usize,
    /// Name of this upstream.
    pub upstream_name: String,
    /// Path and query of the requests to the auth server.
    pub target: String,
    /// Headers of the client that the auth server gets. `None` sends all of them.
    pub request_headers: Option<Vec<HeaderName>>,
    /// Headers of the auth response that the upstream server gets. Clients cannot send them.
    pub copy_headers: Vec<CopiedHeader>,
    /// Header of the auth response that names the user.
    pub user: Option<HeaderName>,
    /// Longest time of the exchange with the auth server, with all its retries.
    pub timeout: Duration,
    /// Requests pass without an identity if the auth server fails (`on_error = "open"`).
    pub is_open_on_error: bool,
}

/// A header of the auth response and its name in the request to the upstream server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopiedHeader {
    pub from: HeaderName,
    pub to: HeaderName,
}

/// Headers by which some applications and auth servers replace host, method or target of a request, besides
/// `X-Original-*`. On routes with an auth server, nobody gets those of a client or a proxy before the gateway: the
/// application would serve another request than the one that was judged.
const STATING: [&str; 13] = [
    "x-forwarded-host",
    "x-forwarded-prefix",
    "x-forwarded-server",
    "x-forwarded-uri",
    "x-forwarded-url",
    "x-forwarded-path",
    "x-forwarded-method",
    "x-rewrite-url",
    "x-host",
    "x-http-host-override",
    "x-http-method-override",
    "x-http-method",
    "x-method-override",
];

/// Returns true for headers that applications and auth servers read instead of the host, method or target of a request.
pub fn states_request(name: &HeaderName) -> bool {
    let name = name.as_str();
    name.starts_with("x-") && (name.starts_with("x-original-") || STATING.contains(&name))
}

impl ForwardAuth {
    /// Returns the headers that the upstream server trusts. It must never get them from the client.
    pub fn owned_headers(&self) -> impl Iterator<Item = &HeaderName> {
        self.copy_headers.iter().map(|copied| &copied.to)
    }

    /// Returns whether the auth server gets this header of a client. Unless `request_headers` lists them, it gets no
    /// headers that it states itself, because it could mistake them for its own; except credentials.
    pub fn is_sent(&self, name: &HeaderName) -> bool {
        match &self.request_headers {
            Some(listed) => listed.contains(name),
            None if *name == AUTHORIZATION || *name == COOKIE => true,
            None => self.copy_headers.iter().all(|copied| copied.from != *name && copied.to != *name),
        }
    }
}

/// Compares rules as they are written: the index of an upstream changes with other upstreams.
impl PartialEq for ForwardAuth {
    fn eq(&self, other: &ForwardAuth) -> bool {
        let key = |rule: &ForwardAuth| {
            (rule.upstream_name.clone(), rule.target.clone(), rule.user.clone(), rule.timeout, rule.is_open_on_error)
        };
        key(self) == key(other)
            && self.request_headers == other.request_headers
            && self.copy_headers == other.copy_headers
    }
}

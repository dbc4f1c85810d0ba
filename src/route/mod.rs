//! A route: which requests it takes, and everything that then happens to them. Built by the
//! config compiler, found by `table::RouteTable`, obeyed by the request function.

mod plan;
mod steps;
pub(crate) mod table;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use regex::Regex;

use crate::limit::limits::Limit;
use crate::limit::refuse::Refuse;
use crate::limit::source::PathParam;
use crate::net::IpSet;

/// What every request reads comes first and fills two lines of memory. What many routes have in common
/// stands once for all of them.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Route {
    pub action: Action,
    /// In config order. A limit stands here at most once, so no two checks share a state key.
    pub limits: Vec<Arc<Limit>>,
    /// Clients answered 403 before any limit is asked.
    pub deny: Arc<IpSet>,
    pub rewrite: Arc<Rewrite>,
    pub request_headers: Arc<HeaderEdit>,
    pub response_headers: Arc<HeaderEdit>,
    pub timeouts: Arc<Timeouts>,
    pub reading: Reading,
    /// Largest request body in bytes.
    pub max_body: u64,
    /// Requests of this route served at once, over all workers.
    pub max_in_flight: Option<usize>,
    /// So many bytes of a body are read before the limits are asked; `None`: none of them goes by it.
    pub key_body: Option<usize>,
    /// Forms of the rate limit fields of this route's responses, where they are not those of all.
    pub ratelimit_headers: Option<Vec<Dialect>>,
    /// Protocols that its clients may switch to.
    pub upgrades: Upgrades,
    /// Clients let through without asking any limit.
    pub allow: Arc<IpSet>,
    /// Of limits that have none of their own.
    pub refuse: Arc<Refuse>,
    /// Of its template.
    pub params: Vec<PathParam>,
    /// Unique among the routes; the metric label and log field.
    pub name: String,
    pub matcher: Matcher,
}

/// All conditions must hold; an empty list is no condition.
#[derive(Debug, PartialEq)]
pub struct Matcher {
    pub hosts: Vec<HostPattern>,
    pub path: PathPattern,
    pub methods: Vec<Method>,
    /// Header present with exactly this value.
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

impl Matcher {
    /// How many there are besides host and path.
    fn conditions(&self) -> usize {
        usize::from(!self.methods.is_empty()) + self.headers.len()
    }

    /// The conditions besides host and path.
    fn takes(&self, method: &Method, headers: &HeaderMap) -> bool {
        (self.methods.is_empty() || self.methods.contains(method))
            && self.headers.iter().all(|(name, value)| headers.get_all(name).iter().any(|found| found == value))
    }

    /// Whether it takes all that `other` takes, host and path being equal.
    fn covers(&self, other: &Matcher) -> bool {
        let methods = self.methods.is_empty()
            || (!other.methods.is_empty() && other.methods.iter().all(|method| self.methods.contains(method)));
        methods && self.headers.iter().all(|condition| other.headers.contains(condition))
    }
}

/// Hosts are lower case, without port and trailing dot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostPattern {
    Exact(String),
    /// `*.example.com` holds `.example.com`; matches one or more labels before it.
    Suffix(String),
}

#[derive(Clone, Debug)]
pub enum PathPattern {
    /// `segments` must match, then the path ends (`exact`; one slash may follow those of a template) or goes on
    /// with a further segment.
    Segments {
        segments: Vec<Segment>,
        exact: bool,
    },
    Regex(Regex),
}

/// As in the config, without the mark of an exact path.
impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PathPattern::Regex(regex) => f.write_str(regex.as_str()),
            PathPattern::Segments { segments, .. } => {
                for segment in segments {
                    match segment {
                        Segment::Literal(text) => write!(f, "/{text}")?,
                        Segment::Param(name) => write!(f, "/{{{name}}}")?,
                    }
                }
                f.write_str(if segments.is_empty() { "/" } else { "" })
            }
        }
    }
}

/// As written.
impl PartialEq for PathPattern {
    fn eq(&self, other: &PathPattern) -> bool {
        match (self, other) {
            (
                PathPattern::Segments { segments, exact },
                PathPattern::Segments { segments: other_segments, exact: other_exact },
            ) => (segments, exact) == (other_segments, other_exact),
            (PathPattern::Regex(regex), PathPattern::Regex(other)) => regex.as_str() == other.as_str(),
            (PathPattern::Segments { .. } | PathPattern::Regex(_), _) => false,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Segment {
    Literal(String),
    /// `{name}`: any one non-empty segment.
    Param(String),
}

#[derive(Debug, PartialEq)]
pub enum Action {
    /// Index into `Config::upstreams`.
    Upstream(usize),
    /// The built-in echo server.
    Echo,
    Respond(Box<Fixed>),
}

/// A route's own answer.
#[derive(Debug, PartialEq)]
pub struct Fixed {
    pub status: StatusCode,
    pub body: Bytes,
    pub content_type: HeaderValue,
}

/// Prefixes without a trailing slash; empty = leave.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Rewrite {
    pub strip_prefix: String,
    pub add_prefix: String,
    /// Send the server's own authority as `Host` instead of the client's.
    pub upstream_host: bool,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct HeaderEdit {
    pub remove: Vec<HeaderName>,
    pub set: Vec<(HeaderName, HeaderValue)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Longest pause between two pieces of a request body.
    pub body: Duration,
    /// Slowest average request body after the first `body` interval, bytes per second.
    pub min_body_rate: u64,
    /// Slowest average at which a client takes what waits for it after the first `stream` interval, bytes per second.
    pub min_response_rate: u64,
    /// Upstream connection set-up, name look-up included.
    pub connect: Duration,
    /// From the request sent to the response head.
    pub response: Duration,
    /// Longest pause while a response body streams, from the upstream or into the client.
    pub stream: Duration,
    /// Longest silence of a tunnel.
    pub tunnel: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strictness {
    /// Refuse what other servers on the path could read differently.
    Strict,
    /// Repair what can be repaired, refuse the rest.
    Defensive,
    /// Count what `Defensive` would refuse, and let it pass.
    Monitor,
}

/// How unclear requests are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    pub strictness: Strictness,
    /// Paths may hold encoded slashes (`%2F`), which stay as they are, each a part of its segment.
    pub keeps_slashes: bool,
}

impl Reading {
    /// `keeps_slashes`: unless the strictness is to say.
    pub fn new(strictness: Strictness, keeps_slashes: Option<bool>) -> Reading {
        Reading { strictness, keeps_slashes: keeps_slashes.unwrap_or(strictness != Strictness::Strict) }
    }
}

/// Protocols by name, whatever their case.
#[derive(Debug, Default, PartialEq, Eq)]
pub enum Upgrades {
    #[default]
    Any,
    Only(Vec<String>),
}

impl Upgrades {
    pub fn has(&self, protocol: &str) -> bool {
        match self {
            Upgrades::Any => true,
            Upgrades::Only(names) => names.iter().any(|name| name.eq_ignore_ascii_case(protocol)),
        }
    }
}

/// A form of the rate limit response fields; several may be sent at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// draft-ietf-httpapi-ratelimit-headers-11: `RateLimit: "name";r=9;t=1`.
    Draft11,
    /// Draft 07: `RateLimit: limit=10, remaining=9, reset=1`.
    Draft07,
    /// Draft 03: `RateLimit-Limit`, `RateLimit-Remaining`, `RateLimit-Reset`.
    Draft03,
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining`, `X-RateLimit-Reset`.
    Legacy,
}

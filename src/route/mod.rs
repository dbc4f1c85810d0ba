//! A route: which requests it takes, and everything that then happens to them. Built by the
//! config compiler, found by `table::RouteTable`, obeyed by the request function.

pub(crate) mod table;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, StatusCode};
use regex::Regex;

use crate::limit::limits::Limit;
use crate::limit::source::Param;
use crate::net::IpSet;

#[derive(Debug)]
pub struct Route {
    /// Unique among the routes; the metric label and log field.
    pub name: String,
    pub matcher: Matcher,
    /// Of its template.
    pub params: Vec<Param>,
    pub action: Action,
    /// In config order. A limit stands here at most once, so no two checks share a state key.
    pub limits: Vec<Arc<Limit>>,
    /// Clients let through without asking any limit.
    pub allow: IpSet,
    /// Clients answered 403 before any limit is asked.
    pub deny: IpSet,
    pub rewrite: Rewrite,
    pub request_headers: HeaderEdit,
    pub response_headers: HeaderEdit,
    /// Largest request body in bytes.
    pub max_body: u64,
    /// Requests of this route served at once, over all workers.
    pub max_in_flight: Option<usize>,
    pub timeouts: Timeouts,
    pub refuse: Refuse,
    /// Forms of the rate limit fields of this route's responses, where they are not those of all.
    pub ratelimit_headers: Option<Vec<Dialect>>,
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

/// Hosts are lower case, without port and trailing dot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostPattern {
    Exact(String),
    /// `*.example.com` holds `.example.com`; matches one or more labels before it.
    Suffix(String),
}

#[derive(Clone, Debug)]
pub enum PathPattern {
    /// `segments` must match, then the path ends (`exact`) or goes on with a further segment.
    Segments {
        segments: Vec<Segment>,
        exact: bool,
    },
    Regex(Regex),
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
    Respond {
        status: StatusCode,
        body: Bytes,
        content_type: HeaderValue,
    },
}

/// Prefixes without a trailing slash; empty = leave.
#[derive(Debug, Default, PartialEq)]
pub struct Rewrite {
    pub strip_prefix: String,
    pub add_prefix: String,
    /// Send the server's own authority as `Host` instead of the client's.
    pub upstream_host: bool,
}

#[derive(Debug, Default, PartialEq)]
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
    /// Upstream connection set-up, name look-up included.
    pub connect: Duration,
    /// From the request sent to the response head.
    pub response: Duration,
    /// Longest pause while a response body streams, from the upstream or into the client.
    pub stream: Duration,
}

/// How a limit's refusal looks. `body: None` = `application/problem+json`.
#[derive(Debug, PartialEq)]
pub struct Refuse {
    pub status: StatusCode,
    /// May hold `{retry_after}`, `{limit}`, `{route}`.
    pub body: Option<String>,
    pub content_type: HeaderValue,
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

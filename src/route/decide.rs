//! Routes of listeners with `serve = "decide"`, which other proxies query: their names, the limits behind each, and the
//! headers with the facts of the request.

use std::collections::BTreeMap;

use http::{HeaderName, StatusCode};

use crate::labels::labels;
use crate::limiting::limit::Limit;
use crate::limiting::source::SourceOrigin;
use crate::route::Route;

/// Header of a refusal that has another status than its own, which this header states.
pub const X_LIMIT_STATUS: HeaderName = HeaderName::from_static("x-limit-status");

/// All names that other proxies may ask about.
#[derive(Debug, Default)]
pub struct DecideTable {
    by_name: BTreeMap<String, DecidePoint>,
    /// The limits of `[decide.NAME]` sections, as routes that match no request.
    pub routes: Vec<Route>,
}

/// One name: `[decide.NAME]`, or a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecidePoint {
    /// Index of the route with the limits. Indexes from the number of `[[route]]` sections on are those of
    /// [`DecideTable::routes`].
    pub route: usize,
    pub from: FactFamily,
    pub deny_as: DenyStatus,
    /// Header with the id of the request: a question with the same id soon after gets the same answer.
    pub once: Option<HeaderName>,
    /// The asking proxy joins the lines of a repeated header by commas; `None` if the config does not say so.
    pub joins_lines: Option<bool>,
}

impl DecidePoint {
    /// Returns whether questions over HTTP may have joined lines. Envoy joins them, and states the request in the path.
    pub fn joins_lines(&self) -> bool {
        self.joins_lines.unwrap_or(self.from == FactFamily::Path)
    }
}

labels! {
    /// The headers that state the request in question.
    FactFamily:
    /// `X-Forwarded-Method`, `X-Forwarded-Host` and `X-Forwarded-Uri`.
    Forwarded = "forwarded",
    /// `X-Original-Method`, and `X-Original-URL` or `X-Original-URI`.
    Original = "original",
    /// The method and host of the question itself, and the rest of its path after NAME.
    Path = "path",
}

/// The status of a refusal for the asking proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DenyStatus {
    TooManyRequests,
    /// 403, for proxies that accept no other status. The status of the refusal is in `X-Limit-Status`.
    Forbidden,
}

impl DenyStatus {
    /// Returns the status that replaces the own status of a refusal.
    pub fn replace(self, status: StatusCode) -> Option<StatusCode> {
        (self == DenyStatus::Forbidden && status.is_client_error()).then_some(StatusCode::FORBIDDEN)
    }
}

impl DecideTable {
    pub fn insert(&mut self, name: &str, point: DecidePoint) {
        self.by_name.insert(name.to_owned(), point);
    }

    pub fn find(&self, name: &str) -> Option<&DecidePoint> {
        self.by_name.get(name)
    }

    /// Returns the names with their limits, in alphabetical order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &DecidePoint)> {
        self.by_name.iter().map(|(name, point)| (name.as_str(), point))
    }
}

/// Returns why a question cannot be decided by the limit: what the limit needs is not in a question, or comes after the
/// answer.
pub fn why_undecidable(limit: &Limit) -> Option<&'static str> {
    if limit.rule.lease_ms().is_some() {
        return Some("it counts requests in flight, and nobody tells the gateway when such a request ends");
    }
    if limit.forwards_excess() {
        return Some("it forwards what exceeds it, and here the asking proxy forwards requests");
    }
    if limit.counts_bytes() {
        return Some("it counts bytes, and here they pass the asking proxy");
    }
    limit.sources().find_map(|source| match source.kind().origin() {
        SourceOrigin::Body => Some("it reads the body, which the asking proxy does not send"),
        SourceOrigin::Certificate => {
            Some("it reads the certificate of the client, but the connection is that of the asking proxy")
        }
        SourceOrigin::Identity => Some("it reads `user`, which only `auth` of a route verifies"),
        SourceOrigin::Descriptor => Some("it reads a descriptor, which only rate limit requests of Envoy have"),
        SourceOrigin::Request | SourceOrigin::Target | SourceOrigin::Fields | SourceOrigin::Token => None,
    })
}

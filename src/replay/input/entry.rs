//! A request as an access log describes it, independent of the log's format. Created by `line` and `common`.

use std::net::IpAddr;

use http::{HeaderMap, Method};

use crate::limiting::shown_key::ShownPart;
use crate::proxy::inbound::canonical;

#[derive(Debug, PartialEq)]
pub struct ReplayEntry {
    /// Time of the line.
    pub logged_ms: i64,
    /// The time has a resolution of whole seconds.
    pub coarse: bool,
    /// When limits are evaluated: the end minus the duration, or the logged time.
    pub start_ms: i64,
    pub duration_ms: Option<i64>,
    /// Status of the response.
    pub status: Option<u16>,
    /// A limit refused the request when it was logged.
    pub limited: bool,
    pub client: IpAddr,
    /// Identity that the server verified; `None` if there was none or the log does not have it.
    pub user: Option<String>,
    /// `None` if the client sent something other than a request.
    pub request: Option<Request>,
    /// Parts of the keys that the limits used when the request was logged. Hashes stand for values.
    pub key_parts: Vec<ShownPart>,
    pub format: AccessLogFormat,
}

#[derive(Debug, PartialEq)]
pub struct Request {
    pub method: Method,
    /// Canonical host; `None` if the log has none.
    pub host: Option<String>,
    /// Path as logged.
    pub path: String,
    pub query: Option<String>,
    /// The few headers that logs contain.
    pub headers: HeaderMap,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessLogFormat {
    Common,
    Combined,
    Json,
}

impl ReplayEntry {
    /// Returns whether the request was shorter than the resolution of its time stamp, so that the log does not show
    /// what ran concurrently.
    pub fn is_blurred(&self) -> bool {
        self.coarse && self.duration_ms.is_some_and(|duration_ms| duration_ms < 1000)
    }
}

impl AccessLogFormat {
    /// Returns whether lines contain user agent and referer.
    pub fn has_agents(self) -> bool {
        self != AccessLogFormat::Common
    }

    pub fn name(self) -> &'static str {
        match self {
            AccessLogFormat::Common => "common",
            AccessLogFormat::Combined => "combined",
            AccessLogFormat::Json => "json",
        }
    }
}

/// Builds a request; `target` may be absolute.
pub fn parse_request(method: &[u8], target: &str, headers: HeaderMap) -> Option<Request> {
    let method = Method::from_bytes(method).ok()?;
    let absolute = target.strip_prefix("http://").or_else(|| target.strip_prefix("https://"));
    let (named, target) = match absolute {
        None => (None, target),
        Some(rest) => {
            let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
            (canonical_host(authority.as_bytes()), if path.is_empty() { "/" } else { path })
        }
    };
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query.to_owned())),
        None => (target, None),
    };
    let path = if path.is_empty() && absolute.is_some() { "/" } else { path };
    if !path.starts_with('/') && path != "*" {
        return None;
    }
    Some(Request { method, host: named, path: path.to_owned(), query, headers })
}

/// Returns the canonical host of `host[:port]`.
pub fn canonical_host(text: &[u8]) -> Option<String> {
    let read = canonical::parse_authority(text)?;
    let mut host = match read.rewritten {
        Some(text) => text,
        None => str::from_utf8(text).ok()?.to_owned(),
    };
    host.truncate(read.host_len);
    Some(host).filter(|host| !host.is_empty())
}

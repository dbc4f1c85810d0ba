//! A request as far as a log knows it, whatever the log's form. Made by `line` and `common`.

use std::net::IpAddr;

use http::{HeaderMap, Method};

use crate::http::downstream::canonical;

#[derive(Debug, PartialEq)]
pub struct ReplayEntry {
    /// As the line says.
    pub logged_ms: i64,
    /// That is in whole seconds.
    pub coarse: bool,
    /// When limits are asked: before the end by the duration, or as logged.
    pub start_ms: i64,
    pub duration_ms: Option<i64>,
    /// Of the answer.
    pub status: Option<u16>,
    /// A limit refused it when it was logged.
    pub limited: bool,
    pub client: IpAddr,
    /// `None`: the client sent something else than a request.
    pub request: Option<Request>,
    pub format: AccessLogFormat,
}

#[derive(Debug, PartialEq)]
pub struct Request {
    pub method: Method,
    /// Canonical; `None` when the log does not say.
    pub host: Option<String>,
    /// As logged.
    pub path: String,
    pub query: Option<String>,
    /// The few fields that logs hold.
    pub headers: HeaderMap,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessLogFormat {
    Common,
    Combined,
    Json,
}

impl ReplayEntry {
    /// It took less than its time stamp can tell apart, so what it ran beside is not in the log.
    pub fn is_blurred(&self) -> bool {
        self.coarse && self.duration_ms.is_some_and(|duration_ms| duration_ms < 1000)
    }
}

impl AccessLogFormat {
    /// Whether lines hold the user agent and the referer.
    pub fn holds_agents(self) -> bool {
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

/// `target` may be absolute.
pub fn request(method: &[u8], target: &str, headers: HeaderMap) -> Option<Request> {
    let method = Method::from_bytes(method).ok()?;
    let absolute = target.strip_prefix("http://").or_else(|| target.strip_prefix("https://"));
    let (named, target) = match absolute {
        None => (None, target),
        Some(rest) => {
            let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
            (host(authority.as_bytes()), if path.is_empty() { "/" } else { path })
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

/// The canonical host of `host[:port]`.
pub fn host(text: &[u8]) -> Option<String> {
    let read = canonical::authority(text)?;
    let mut host = match read.rewritten {
        Some(text) => text,
        None => str::from_utf8(text).ok()?.to_owned(),
    };
    host.truncate(read.host_len);
    Some(host).filter(|host| !host.is_empty())
}

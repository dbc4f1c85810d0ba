//! Preflights (CORS): before a page sends a request to another origin that a form could not send, its browser asks with
//! OPTIONS whether it may. The gateway answers for routes with `cors`: before `auth`, because browsers send no
//! credentials, and before limits, which are not charged. The route is that of the request that would follow.

use http::header::{ACCESS_CONTROL_REQUEST_METHOD, ORIGIN};
use http::{HeaderMap, Method};

use crate::config::Config;
use crate::proxy::head::validate::ValidatedHead;
use crate::proxy::words::known_headers::find_single;
use crate::route::cors::CorsPolicy;

/// A preflight that the gateway answers.
pub struct Preflight<'a> {
    /// Index of the route of the request that would follow; `None` if it would match none.
    pub route: Option<usize>,
    /// The method of that request.
    pub method: Method,
    pub policy: &'a CorsPolicy,
}

/// Returns the preflight, if the head is one and the route of the request that would follow has `cors`. Every other
/// OPTIONS request continues as any request.
pub fn find_preflight<'a>(config: &'a Config, head: &ValidatedHead, headers: &HeaderMap) -> Option<Preflight<'a>> {
    if !config.has_cors || *head.method() != Method::OPTIONS {
        return None;
    }
    find_single(headers, &ORIGIN)?;
    let method = find_single(headers, &ACCESS_CONTROL_REQUEST_METHOD)?.as_bytes().to_ascii_uppercase();
    let method = Method::from_bytes(&method).ok()?;
    let route = config.table.find_route(&config.routes, head.read_host(), head.matched_path(), &method, headers);
    let policy = config.cors_policy(route)?;
    Some(Preflight { route, method, policy })
}

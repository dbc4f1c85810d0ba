//! Lists the request headers that clients must not state: in their heads, or in trailers. Called by `compile`.

use std::sync::Arc;

use http::HeaderName;

use crate::limiting::limit::over::EXCEEDED_HEADER;
use crate::limiting::source::Source;
use crate::limiting::source::jwt::TokenVerifier;
use crate::route::Route;
use crate::upstream::Upstream;

/// Returns the request headers that only the gateway may set, each once: those in which some route states an identity,
/// and the one that names exceeded limits.
pub fn list_own_headers(routes: &[Route]) -> Arc<[HeaderName]> {
    let mut names: Vec<HeaderName> = Vec::new();
    for auth in routes.iter().filter_map(|route| route.auth.as_ref()) {
        for name in auth.identity_headers() {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
    }
    if routes.iter().flat_map(|route| &route.limits).any(|limit| limit.forwards_excess()) {
        names.push(EXCEEDED_HEADER);
    }
    names.into()
}

/// Returns the request headers that the config reads, states or removes: in conditions of routes, keys, `when`, costs,
/// `hash_on`, `auth` and `request_headers`. A server that merges trailers with headers would otherwise read a value that
/// the gateway has not seen.
pub fn list_guarded_headers(routes: &[Route], upstreams: &[Upstream], jwt: Option<&TokenVerifier>) -> Vec<HeaderName> {
    let read_by = |source: &Source| match source {
        Source::Header(name) | Source::Credential(name) => Some(name.clone()),
        _ => None,
    };
    let mut names: Vec<HeaderName> = list_own_headers(routes).to_vec();
    for route in routes {
        let Route { limits, matcher, request_headers, auth, .. } = route;
        names.extend(limits.iter().flat_map(|limit| limit.sources()).filter_map(read_by));
        names.extend(matcher.headers.iter().chain(&request_headers.set).map(|(name, _)| name.clone()));
        names.extend(request_headers.remove.iter().cloned());
        names.extend(auth.iter().flat_map(|auth| auth.read_headers()).cloned());
    }
    let hash_keys = upstreams.iter().filter_map(|upstream| upstream.hash_on.as_ref());
    names.extend(hash_keys.flat_map(|key| key.sources()).filter_map(read_by));
    names.extend(jwt.map(|jwt| jwt.header.clone()));
    names.sort_unstable_by(|one, other| one.as_str().cmp(other.as_str()));
    names.dedup();
    names
}

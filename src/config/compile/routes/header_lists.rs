//! Lists the request headers that clients must not state: in their heads, or in trailers. Called by `compile`.

use std::sync::Arc;

use http::HeaderName;

use crate::config::ServerSettings;
use crate::config::compile::routes::identity_header::parse_identity_header;
use crate::limiting::limit::over::EXCEEDED_HEADER;
use crate::limiting::source::Source;
use crate::limiting::source::jwt::TokenVerifier;
use crate::route::Route;
use crate::route::mirror::MIRRORED_HEADER;
use crate::upstream::Upstream;

/// Headers that applications read together. Where the gateway states one of a family, clients may state none of it.
const FAMILIES: [&[&str]; 2] = [
    // RFC 9440
    &["client-cert", "client-cert-chain"],
    &["x-forwarded-tls-client-cert", "x-forwarded-tls-client-cert-info"],
];

/// Returns the request headers that only the gateway may set, each once: those in which some route states an identity,
/// also by `request_headers`, the one that names exceeded limits, and the one that marks copies of requests.
pub fn list_own_headers(routes: &[Route]) -> Arc<[HeaderName]> {
    let mut names: Vec<HeaderName> = Vec::new();
    for auth in routes.iter().filter_map(|route| route.auth.as_ref()) {
        for name in auth.identity_headers() {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
    }
    for (name, _) in routes.iter().flat_map(|route| &route.request_headers.stated) {
        // What requests need, such as `Authorization`, is only replaced on its route. The gateway cleans forwarding
        // headers itself.
        if !names.contains(name) && parse_identity_header(name.as_str()).is_ok() {
            names.push(name.clone());
        }
    }
    let is_stated = |family: &&[&str]| names.iter().any(|name| family.contains(&name.as_str()));
    let families: Vec<&[&'static str]> = FAMILIES.into_iter().filter(is_stated).collect();
    for name in families.into_iter().flatten().copied().map(HeaderName::from_static) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    if routes.iter().flat_map(|route| &route.limits).any(|limit| limit.forwards_excess()) {
        names.push(EXCEEDED_HEADER);
    }
    if routes.iter().any(|route| route.mirror.is_some()) {
        names.push(MIRRORED_HEADER);
    }
    names.into()
}

/// Returns the request headers that the config reads, states or removes: in conditions of routes, keys, `when`, costs,
/// `hash_on`, `split_by`, `auth`, `request_headers` and `client_address`. A server that merges trailers with headers
/// would otherwise read a value that the gateway has not seen.
pub fn list_guarded_headers(
    (routes, upstreams): (&[Route], &[Upstream]),
    jwt: Option<&TokenVerifier>,
    server: &ServerSettings,
) -> Vec<HeaderName> {
    let read_by = |source: &Source| match source {
        Source::Header(name) | Source::Credential(name) => Some(name.clone()),
        _ => None,
    };
    let mut names: Vec<HeaderName> = list_own_headers(routes).to_vec();
    for route in routes {
        let Route { limits, matcher, request_headers, auth, .. } = route;
        names.extend(limits.iter().flat_map(|limit| limit.sources()).filter_map(read_by));
        names.extend(matcher.headers.iter().map(|(name, _)| name.clone()));
        names.extend(request_headers.names().cloned());
        names.extend(auth.iter().flat_map(|auth| auth.read_headers()).cloned());
    }
    let hash_keys = upstreams.iter().filter_map(|upstream| upstream.hash_on.as_ref());
    let split_keys = routes.iter().filter_map(|route| route.split.as_ref()?.key.as_ref());
    names.extend(hash_keys.chain(split_keys).flat_map(|key| key.sources()).filter_map(read_by));
    names.extend(jwt.map(|jwt| jwt.header.clone()));
    names.extend(server.client_address.headers.singles().cloned());
    names.sort_unstable_by(|one, other| one.as_str().cmp(other.as_str()));
    names.dedup();
    names
}
